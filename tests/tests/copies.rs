//! Remotes that aren't what they seem: copies of one file, a file put back from a backup, somebody else's remote ID, two syncs of one
//! remote at once. Nothing of any of them is lost or applied twice, and what is refused says why and no more.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_protocol::message::ErrorCode;
use headwater_remote::http::Credentials;
use headwater_remote::{Error, Remote, SyncOptions, SyncReport};
use headwater_testkit::proxy::Direction;
use headwater_testkit::{FaultProxy, Plan, wait_until};
use headwater_tests::backup::copy_file;
use headwater_tests::{Central, KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, text TEXT); CREATE TABLE applied (id TEXT)";
const MODEL: &str = r#"
name = "notes"
version = 1
[tables.note]
conflict = "remote_wins"
key = ["id"]
columns = { id = "text not null", text = "text" }
"#;

/// The application's own trigger counts how often a row is inserted.
fn counting(kind: Kind) -> &'static str {
    match kind {
        Kind::Sqlite => "CREATE TRIGGER counting AFTER INSERT ON note BEGIN INSERT INTO applied VALUES (NEW.id); END",
        Kind::Postgres => {
            "CREATE FUNCTION counting() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN INSERT INTO applied VALUES (NEW.id); RETURN NEW; END$$; \
             CREATE TRIGGER counting AFTER INSERT ON note FOR EACH ROW EXECUTE FUNCTION counting()"
        }
    }
}

fn on_both(test: impl Fn(&mut World) -> Result<()>) -> Result<()> {
    for kind in KINDS {
        let mut world = World::unserved(kind, SCHEMA, MODEL, &["anna", "ben"])?;
        world.central.execute(counting(kind))?;
        world.config.workers = 2;
        world.start_server()?;
        test(&mut world).with_context(|| format!("on {kind:?}"))?;
        let twice = world.central.rows("SELECT id FROM applied GROUP BY id HAVING count(*) > 1")?;
        ensure!(twice.is_empty(), "on {kind:?} applied twice: {twice:?}");
    }
    Ok(())
}

/// Copies a remote's file, as a person does who takes it to another machine.
fn copy(world: &World, from: &str, to: &str) -> Result<Remote> {
    let (from, to) = (world.path(from), world.path(to));
    copy_file(&from, &to)?;
    Ok(Remote::open(&to)?)
}

fn write(world: &World, name: &str, id: &str) -> Result<()> {
    world.edit(name, &format!("INSERT INTO note VALUES ('{id}', 'by {name}')"))
}

/// One attempt and no more.
fn try_sync(world: &World, remote: &mut Remote) -> Result<SyncReport, Error> {
    let user = remote.status()?.user;
    let mut options = SyncOptions::new(Credentials::Token(world.token(&user).expect("a token")));
    options.config.attempts_max = 1;
    remote.sync(&mut options)
}

/// The same, for which silence is over soon.
fn impatient_sync(world: &World, remote: &mut Remote) -> Result<SyncReport, Error> {
    let mut options = SyncOptions::new(Credentials::Token(world.token("anna").expect("a token")));
    options.config.attempts_max = 1;
    options.config.idle_max = Duration::from_secs(2);
    remote.sync(&mut options)
}

/// All that was ever written is at the head, and the remotes of these names have it.
fn all_there(world: &World, names: &[&str], ids: &[&str]) -> Result<()> {
    let there = world.central.rows("SELECT id FROM note ORDER BY id")?.into_iter().flatten().flatten();
    let there: Vec<String> = there.collect();
    let mut expected = ids.to_vec();
    expected.sort_unstable();
    ensure!(there == expected, "the head has {there:?}, expected {expected:?}");
    for name in names {
        let report = world.diff(name)?;
        ensure!(report.is_equal(false), "{name} differs: {}", serde_json::to_string(&report)?);
    }
    Ok(())
}

#[test]
fn two_copies_that_sync_in_turns() -> Result<()> {
    on_both(|world| {
        let mut first = world.remote("first", "anna")?;
        write(world, "first", "before")?;
        world.sync(&mut first)?;
        let mut second = copy(world, "first", "second")?;
        let mut ids = vec!["before".to_owned()];
        let mut renamed = 0;
        for turn in 0..4 {
            for (name, remote) in [("first", &mut first), ("second", &mut second)] {
                ids.push(format!("{name} {turn}"));
                write(world, name, &format!("{name} {turn}"))?;
                let report = world.sync(remote)?;
                ensure!(!report.restarted && report.refused == 0, "{report:?}");
                renamed += u32::from(report.new_remote_id);
            }
        }
        ensure!(renamed == 1, "one of them takes a new remote ID, once: {renamed}");
        ensure!(first.status()?.remote_id != second.status()?.remote_id);
        world.sync(&mut first)?;
        all_there(world, &["first", "second"], &ids.iter().map(String::as_str).collect::<Vec<_>>())
    })
}

/// The copy has nothing to send: it finds out by what the database has of an upload that it never sent.
#[test]
fn a_copy_without_changes() -> Result<()> {
    on_both(|world| {
        let mut first = world.remote("first", "anna")?;
        world.sync(&mut first)?;
        let mut second = copy(world, "first", "second")?;
        write(world, "first", "one")?;
        world.sync(&mut first)?;
        let report = world.sync(&mut second)?;
        ensure!(report.new_remote_id && !report.restarted, "{report:?}");
        all_there(world, &["first", "second"], &["one"])
    })
}

/// An upload was frozen, and is in both.
/// A tool that copies files takes the database without its `-wal`: the copy is an earlier state of the file, and goes on as that.
#[test]
fn a_file_that_is_copied_without_its_log() -> Result<()> {
    on_both(|world| {
        let mut first = world.remote("first", "anna")?;
        write(world, "first", "before")?;
        world.sync(&mut first)?;
        // Whoever closes a file last writes all to it.
        drop(first);
        let mut first = Remote::open(world.path("first"))?;
        write(world, "first", "in the log alone")?;
        let log = world.path("first").with_extension("db-wal");
        ensure!(log.metadata().context("a log")?.len() > 0, "what was written is in the log");
        std::fs::copy(world.path("first"), world.path("second"))?;
        let mut second = Remote::open(world.path("second"))?;
        ensure!(second.status()?.pending == 0, "it has not got that far");
        write(world, "second", "of the second")?;
        for is_second in [true, false, true] {
            let remote = if is_second { &mut second } else { &mut first };
            let report = world.sync(remote)?;
            ensure!(report.refused == 0 && !report.restarted, "{report:?}");
        }
        world.sync(&mut first)?;
        all_there(world, &["first", "second"], &["before", "in the log alone", "of the second"])
    })
}

#[test]
fn a_copy_made_in_the_middle_of_a_sync() -> Result<()> {
    for applied in [false, true] {
        on_both(|world| {
            let mut first = world.remote("first", "anna")?;
            world.sync(&mut first)?;
            write(world, "first", "staged")?;
            world.stop_server();
            ensure!(try_sync(world, &mut first).is_err(), "no server runs");
            ensure!(first.status()?.is_frozen, "the upload is cut");
            let mut second = copy(world, "first", "second")?;
            write(world, "first", "later at first")?;
            write(world, "second", "later at second")?;
            world.start_server()?;
            let url = world.server_url()?;
            first.set_server(&url, "anna")?;
            second.set_server(&url, "anna")?;
            if applied {
                // The copy comes when the original has gone on for two more uploads.
                world.sync(&mut first)?;
                write(world, "first", "more")?;
                world.sync(&mut first)?;
            }
            for _ in 0..2 {
                world.sync(&mut second)?;
                world.sync(&mut first)?;
            }
            ensure!(first.status()?.remote_id != second.status()?.remote_id);
            world.sync(&mut second)?;
            let more = if applied { &["more"][..] } else { &[] };
            all_there(world, &["first", "second"], &[&["later at first", "later at second", "staged"], more].concat())
        })?;
    }
    Ok(())
}

#[test]
fn a_file_put_back_from_a_backup() -> Result<()> {
    on_both(|world| {
        let mut remote = world.remote("file", "anna")?;
        write(world, "file", "old")?;
        world.sync(&mut remote)?;
        write(world, "file", "pending then")?;
        let backup: PathBuf = world.folder.path().join("backup.db");
        copy_file(&world.path("file"), &backup)?;
        for turn in 0..3 {
            write(world, "file", &format!("since {turn}"))?;
            world.sync(&mut remote)?;
        }
        let id = remote.status()?.remote_id;
        drop(remote);
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(world.folder.path().join(format!("file.db{suffix}")));
        }
        std::fs::rename(&backup, world.path("file"))?;
        write(world, "file", "pending now")?;
        let mut remote = Remote::open(world.path("file"))?;
        let report = world.sync(&mut remote)?;
        ensure!(report.new_remote_id && report.lost.is_none() && report.refused == 0, "{report:?}");
        ensure!(remote.status()?.remote_id != id);
        all_there(world, &["file"], &["old", "pending then", "pending now", "since 0", "since 1", "since 2"])?;
        let quiet = world.sync(&mut remote)?;
        ensure!((quiet.changes_up, quiet.rows_down, quiet.new_remote_id) == (0, 0, false), "{quiet:?}");
        Ok(())
    })
}

#[test]
fn somebody_elses_remote_id() -> Result<()> {
    on_both(|world| {
        let mut victim = world.remote("victim", "anna")?;
        write(world, "victim", "hers")?;
        world.sync(&mut victim)?;
        let mut thief = world.remote("thief", "ben")?;
        write(world, "thief", "his")?;
        let id = world.rows("victim", "SELECT hex(remote_id) FROM hw_state")?[0][0].clone().context("an ID")?;
        world.edit("thief", &format!("UPDATE hw_state SET remote_id = x'{id}', upload_sequence = 1"))?;
        let Err(error) = try_sync(world, &mut thief) else { anyhow::bail!("another's remote ID was taken") };
        let Error::Failed(failure) = &error else { anyhow::bail!("{error:?}") };
        ensure!(failure.code() == Some(ErrorCode::WrongSecret) && !failure.is_retryable(), "{failure:?}");
        let text = failure.to_string();
        ensure!(!text.contains("anna") && !text.contains("hers"), "nothing is revealed: {text}");
        ensure!(thief.status()?.pending == 1, "what was pending is pending");
        all_there(world, &["victim"], &["hers"])?;
        let report = world.sync(&mut victim)?;
        ensure!(!report.new_remote_id && !report.restarted, "the victim notices nothing: {report:?}");
        // A secret that was spoilt in a file is no better.
        world.edit("victim", "UPDATE hw_state SET secret = zeroblob(32)")?;
        let Err(error) = try_sync(world, &mut victim) else { anyhow::bail!("a wrong secret was taken") };
        ensure!(error.to_string().contains("secret") || error.code() == "wrong_secret", "{error}");
        Ok(())
    })
}

/// The first sync waits in the database; the second, by a copy of the file, is told to come back, and its worker is free at once.
#[test]
fn two_syncs_of_one_remote_at_once() -> Result<()> {
    on_both(|world| {
        world.config.workers = 1;
        world.config.uploaders = 1;
        world.start_server()?;
        let mut first = world.remote("first", "anna")?;
        world.sync(&mut first)?;
        let mut second = copy(world, "first", "second")?;
        let mut other = world.remote("other", "anna")?;
        write(world, "first", "one")?;
        write(world, "second", "two")?;
        let Central::Postgres(url) = world.central.clone() else {
            return one_server_at_once(world, &mut first, &mut second);
        };
        // A server of its own, which knows nothing of the first one's syncs.
        let elsewhere = World::over(world.central.clone(), tempfile::tempdir()?, world.plan.model.clone(), &[]);
        let mut elsewhere = elsewhere.context("a second server")?;
        elsewhere.config.workers = 1;
        elsewhere.config.uploaders = 1;
        elsewhere.start_server()?;
        second.set_server(&elsewhere.server_url()?, "anna")?;
        other.set_server(&elsewhere.server_url()?, "anna")?;
        let mut blocking = world.central.backend()?.connect()?;
        blocking.batch("BEGIN; LOCK TABLE note IN SHARE MODE")?;
        std::thread::scope(|scope| -> Result<()> {
            let syncing = scope.spawn(|| try_sync(world, &mut first));
            let waits = || {
                let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'note'::regclass \
                           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
                headwater_testkit::sql(&url, sql).is_ok_and(|rows| rows[0][0].as_deref() != Some("0"))
            };
            let has_begun = wait_until(Duration::from_mins(1), waits);
            let told = try_sync(&elsewhere, &mut second);
            let free = try_sync(&elsewhere, &mut other);
            blocking.batch("ROLLBACK")?;
            let done = syncing.join().map_err(|_| anyhow::anyhow!("the first sync panicked"))?;
            ensure!(has_begun, "the first sync never waited");
            is_busy(told)?;
            free.context("the only worker is free")?;
            done.context("the first goes on")?;
            Ok(())
        })?;
        finish_both(world, &mut first, &mut second, &elsewhere)
    })
}

fn one_server_at_once(world: &World, first: &mut Remote, second: &mut Remote) -> Result<()> {
    let mut blocking = world.central.backend()?.connect()?;
    blocking.batch("BEGIN IMMEDIATE")?;
    let url = world.server_url()?;
    std::thread::scope(|scope| -> Result<()> {
        let syncing = scope.spawn(|| try_sync(world, first));
        let has_begun = wait_until(Duration::from_mins(1), || busy_workers(&url).is_ok_and(|busy| busy == 1));
        let told = try_sync(world, second);
        blocking.batch("ROLLBACK")?;
        let done = syncing.join().map_err(|_| anyhow::anyhow!("the first sync panicked"))?;
        ensure!(has_begun, "the first sync never had a worker");
        is_busy(told)?;
        done.context("the first goes on")?;
        Ok(())
    })?;
    finish_both(world, first, second, world)
}

fn finish_both(world: &World, first: &mut Remote, second: &mut Remote, elsewhere: &World) -> Result<()> {
    let report = elsewhere.sync(second)?;
    ensure!(report.new_remote_id, "it is a copy, it turns out: {report:?}");
    world.sync(first)?;
    all_there(world, &["first", "second"], &["one", "two"])
}

fn is_busy(told: Result<SyncReport, Error>) -> Result<()> {
    let Err(Error::Failed(failure)) = told else { anyhow::bail!("the second sync was let in: {told:?}") };
    ensure!(failure.code() == Some(ErrorCode::RemoteBusy) && failure.is_retryable(), "{failure:?}");
    Ok(())
}

fn busy_workers(url: &str) -> Result<u64> {
    use std::io::{Read as _, Write as _};
    let address = url.strip_prefix("http://").context("an address")?;
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nHost: headwater\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").context("a body")?.1;
    let start = body.find('{').context("JSON")?;
    let end = body.rfind('}').context("JSON")?;
    let ready: serde_json::Value = serde_json::from_str(&body[start..=end])?;
    ready["load"]["workers_busy"].as_u64().context("a number")
}

/// The upload was applied, its receipt lost, and then the file was copied. One of the two goes on with it; the other must not send it again:
/// meanwhile another user has deleted the row.
#[test]
fn what_was_applied_before_the_copy_is_not_sent_again() -> Result<()> {
    for is_edited in [false, true] {
        on_both(|world| {
            let mut first = world.remote("first", "anna")?;
            world.sync(&mut first)?;
            write(world, "first", "one")?;
            write(world, "first", "two")?;
            lose_the_receipt(world, &mut first)?;
            let mut second = copy(world, "first", "second")?;
            write(world, "first", "more")?;
            for _ in 0..2 {
                world.sync(&mut first)?;
            }
            world.central.execute("DELETE FROM note WHERE id = 'one'")?;
            if is_edited {
                world.edit("second", "UPDATE note SET text = 'edited' WHERE id = 'two'")?;
            }
            let report = world.sync(&mut second)?;
            ensure!(report.new_remote_id && !report.restarted, "{report:?}");
            world.sync(&mut second)?;
            world.sync(&mut first)?;
            let text = world.central.rows("SELECT text FROM note WHERE id = 'two'")?;
            ensure!(text == [[Some(if is_edited { "edited" } else { "by first" }.to_owned())]], "{text:?}");
            let (status, aside) = (second.status()?, second.set_aside(10)?);
            ensure!(status.pending == 0 && !status.is_frozen, "{status:?}");
            ensure!(aside.len() == 1 && aside[0].reason == "unanswered", "of the row that was deleted: {aside:?}");
            second.drop_set_aside(&headwater_remote::Choice::All)?;
            world.sync(&mut second)?;
            all_there(world, &["first", "second"], &["two", "more"])
        })?;
    }
    Ok(())
}

/// Two copies of one file make the same change under the same number. Both changes count.
#[test]
fn the_same_change_at_two_copies_counts_twice() -> Result<()> {
    for kind in KINDS {
        let schema =
            "CREATE TABLE stock (id TEXT NOT NULL PRIMARY KEY, qty INTEGER); INSERT INTO stock VALUES ('a', 10)";
        let model = "name = \"stock\"\nversion = 1\n[tables.stock]\nkey = [\"id\"]\n\
                     conflict = { merge = \"consolidated\", sum = [\"qty\"] }\ncolumns = { id = \"text not null\", qty = \"int\" }\n";
        let world = World::new(kind, schema, model, &["anna"])?;
        let mut first = world.remote("first", "anna")?;
        world.sync(&mut first)?;
        let mut second = copy(&world, "first", "second")?;
        for name in ["first", "second"] {
            world.edit(name, "UPDATE stock SET qty = qty - 1")?;
        }
        world.sync(&mut first)?;
        let report = world.sync(&mut second)?;
        ensure!(report.new_remote_id, "{report:?}");
        world.sync(&mut first)?;
        for rows in [world.central.rows("SELECT qty FROM stock")?, world.rows("first", "SELECT qty FROM stock")?] {
            ensure!(rows == [[Some("8".to_owned())]], "on {kind:?}: {rows:?}");
        }
    }
    Ok(())
}

/// A request that somebody on the way held back arrives when the remote has given the upload up: it is refused, whatever the remote has done
/// since, and the number is used for no other upload.
#[test]
fn a_late_request_is_not_applied_once_its_upload_is_given_up() -> Result<()> {
    for goes_on in [false, true] {
        on_both(|world| {
            let large = world.start_another_server(None)?;
            world.config.upload_bytes_max = 4_000;
            let small = world.start_another_server(None)?;
            let sink = std::net::TcpListener::bind("127.0.0.1:0")?;
            let proxy = FaultProxy::start(sink.local_addr()?)?;
            let mut remote = world.remote_at("first", "anna", &format!("http://{large}"))?;
            world.sync(&mut remote)?;
            let text = (0..5_000_u32).map(|number| number.wrapping_mul(2_654_435_761).to_string()).collect::<String>();
            world.edit("first", &format!("INSERT INTO note VALUES ('late', '{text}')"))?;
            // Somebody on the way takes the request and does not pass it on.
            proxy.record(true);
            remote.set_server(&format!("http://{}", proxy.address()), "anna")?;
            ensure!(impatient_sync(world, &mut remote).is_err() && remote.status()?.is_frozen);
            let held: Vec<u8> =
                proxy.connections().into_iter().filter_map(|it| it.recorded).flat_map(|it| it.0).collect();
            ensure!(held.len() > 10_000, "the whole request was on its way: {} bytes", held.len());
            // The next server does not take it: the row is set aside, and then given up.
            remote.set_server(&format!("http://{small}"), "anna")?;
            world.sync(&mut remote)?;
            let aside = remote.set_aside(10)?;
            ensure!(aside.len() == 1 && aside[0].reason == "row_too_large", "{aside:?}");
            world.edit("first", "DELETE FROM note WHERE id = 'late'")?;
            if goes_on {
                write(world, "first", "next")?;
                world.sync(&mut remote)?;
            }
            let answer = send(large, &held)?;
            ensure!(answer.contains("another upload has this number"), "the late request is refused: {answer}");
            ensure!(
                world.central.rows("SELECT id FROM note WHERE id = 'late'")?.is_empty(),
                "it was applied: {answer}"
            );
            write(world, "first", "last")?;
            let report = world.sync(&mut remote)?;
            ensure!(!report.new_remote_id && !report.restarted, "{report:?}");
            let ids: &[&str] = if goes_on { &["next", "last"] } else { &["last"] };
            all_there(world, &["first"], ids)
        })?;
    }
    Ok(())
}

/// Sends a request as it was recorded, and gives what can be read of the answer.
fn send(server: std::net::SocketAddr, request: &[u8]) -> Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server)?;
    // (Not shut down: a server stops working for a client that is gone.)
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The server applies the upload, and its answer comes no further than a proxy.
fn lose_the_receipt(world: &World, remote: &mut Remote) -> Result<()> {
    let before = world.central.rows("SELECT id FROM applied")?.len();
    let url = world.server_url()?;
    let proxy = FaultProxy::start(url.trim_start_matches("http://"))?;
    proxy.next([Plan::clean().delay(Direction::Down, Duration::from_secs(30))]);
    remote.set_server(&format!("http://{}", proxy.address()), "anna")?;
    ensure!(impatient_sync(world, remote).is_err(), "the answer is lost");
    let is_applied = || world.central.rows("SELECT id FROM applied").is_ok_and(|rows| rows.len() > before);
    ensure!(wait_until(Duration::from_secs(30), is_applied), "it was applied");
    ensure!(remote.status()?.is_frozen);
    remote.set_server(&url, "anna")?;
    Ok(())
}
