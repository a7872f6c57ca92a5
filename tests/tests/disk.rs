//! A large download says what it needs before it begins: how much comes, and how much disk that takes at its peak.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater_consolidated::results::{Placeholder, QueryBackend, QueryConnection};
use headwater_consolidated::{Backend, Connection, Dialect};
use headwater_protocol::message::Download;
use headwater_protocol::{Frame, Kind as FrameKind};
use headwater_remote::http::Credentials;
use headwater_remote::{CreateOptions, Phase, Progress, Remote, SyncOptions, SyncReport};
use headwater_testkit::{FaultProxy, headwater_binary, wait_until};
use headwater_tests::apart::is_apart;
use headwater_tests::disk::SmallDisk;
use headwater_tests::wire::frames;
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "
    CREATE TABLE member (user_name TEXT NOT NULL, area TEXT NOT NULL, PRIMARY KEY (user_name, area));
    INSERT INTO member VALUES ('ann', 'north'), ('ann', 'south');
    CREATE TABLE place (id BIGINT NOT NULL PRIMARY KEY, code TEXT NOT NULL, body TEXT);
    CREATE TABLE visit (id BIGINT NOT NULL PRIMARY KEY, area TEXT, body TEXT);";
const MODEL: &str = r#"
name = "places"
version = 1
[partitions.area]
columns = { area = "text" }
members = "SELECT area FROM member WHERE user_name = :s.user"
[tables.place]
key = ["id"]
unique = [["code"]]
conflict = "consolidated_wins"
columns = { id = "int not null", code = "text not null", body = "text" }
[tables.visit]
key = ["id"]
partition = "area"
conflict = "consolidated_wins"
columns = { id = "int not null", area = "text", body = "text" }
"#;

/// Rows of about 300 bytes, half of which packs well: so many places, ten times as many visits, of which six in ten are ann's.
fn rows(kind: Kind, places: u64) -> String {
    let body = match kind {
        Kind::Sqlite => "hex(randomblob(64)) || printf('%0150d', n.i)",
        Kind::Postgres => {
            "md5(n.i::text) || md5((-n.i)::text) || md5((n.i + 0.5)::text) || md5((n.i - 0.5)::text) || lpad(n.i::text, 150, '0')"
        }
    };
    let numbers = |count: u64| {
        format!(
            "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n) AS n"
        )
    };
    format!(
        "INSERT INTO place SELECT n.i, 'code ' || ((n.i * 7919) % {places}) || ' of the place', {body} FROM {};
         INSERT INTO visit SELECT n.i, CASE n.i % 10 WHEN 0 THEN 'north' WHEN 1 THEN 'south' WHEN 2 THEN 'south' WHEN 3 THEN 'south'
             WHEN 4 THEN 'south' WHEN 5 THEN 'south' ELSE 'east' END, {body} FROM {};",
        numbers(places),
        numbers(places * 10),
    )
}

fn world(kind: Kind, places: u64) -> Result<World> {
    let mut world = World::unserved(kind, SCHEMA, MODEL, &["ann"])?;
    // The tests say when it has statistics.
    if kind == Kind::Postgres {
        world.central.execute(
            "ALTER TABLE place SET (autovacuum_enabled = off); ALTER TABLE visit SET (autovacuum_enabled = off)",
        )?;
    }
    world.central.execute(&rows(kind, places))?;
    // However busy the machine is.
    world.config.estimate_ms_max = 300_000;
    world.start_server()?;
    Ok(world)
}

/// Bytes of a remote's file and of what belongs to it.
fn disk_bytes(path: &Path) -> u64 {
    let of = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map_or(0, |file| file.len())
    };
    ["", "-wal", "-shm", "-journal"].into_iter().map(of).sum()
}

/// Syncs; gives also the most bytes of disk that the file took more than before.
fn sync_measured(world: &World, name: &str, remote: &mut Remote) -> Result<(SyncReport, u64)> {
    let path = world.path(name);
    let (before, most, done) = (disk_bytes(&path), AtomicU64::new(0), AtomicBool::new(false));
    let look = || most.fetch_max(disk_bytes(&path), Ordering::Relaxed);
    let token = world.token("ann")?;
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                look();
                std::thread::yield_now();
            }
        });
        let mut progress = |_: Progress| {
            look();
        };
        let mut options = SyncOptions::new(Credentials::Token(token));
        options.progress = Some(&mut progress);
        let report = remote.sync(&mut options);
        done.store(true, Ordering::Relaxed);
        report
    })?;
    Ok((report, most.into_inner().saturating_sub(before)))
}

/// First downloads, replaced rows, a partition that comes back; without an index of the application's own and with one.
#[test]
fn the_need_is_that_of_the_peak() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, 12_000)?;
        let mut one = world.remote("one", "ann")?;
        holds(kind, "a first download", sync_measured(&world, "one", &mut one)?)?;
        world.central.execute("UPDATE visit SET body = 'x' || body WHERE id % 2 = 1")?;
        holds(kind, "half of the rows", sync_measured(&world, "one", &mut one)?)?;
        world.central.execute("DELETE FROM member WHERE area = 'south'")?;
        world.sync(&mut one)?;
        world.central.execute("INSERT INTO member VALUES ('ann', 'south')")?;
        holds(kind, "a partition again", sync_measured(&world, "one", &mut one)?)?;
        let mut two = world.remote("two", "ann")?;
        world.edit("two", "CREATE INDEX own ON visit (area)")?;
        holds(kind, "with an index", sync_measured(&world, "two", &mut two)?)?;
    }
    Ok(())
}

/// What was said of a download is about right, the need neither too small nor twice what it took.
fn holds(kind: Kind, what: &str, (report, peak): (SyncReport, u64)) -> Result<()> {
    let large = report.large.with_context(|| format!("{kind:?}, {what}: nothing was said"))?;
    eprintln!(
        "{kind:?}, {what}: {} bytes needed, {peak} taken; {large:?}, {} bytes came",
        large.disk_bytes, report.bytes_down
    );
    let (rows, bytes) = (large.rows.unwrap_or_default(), large.bytes);
    ensure!((report.rows_down / 2..=report.rows_down * 2).contains(&rows), "{kind:?}, {what}: {rows} rows, {report:?}");
    ensure!(
        (report.bytes_down / 2..=report.bytes_down * 2).contains(&bytes),
        "{kind:?}, {what}: {bytes} bytes, {report:?}"
    );
    let need = large.disk_bytes;
    ensure!((peak..=peak * 2).contains(&need), "{kind:?}, {what}: {need} bytes needed, {peak} taken");
    Ok(())
}

/// Below a mebibyte every number is exact.
#[test]
fn a_small_download_says_exactly_what_comes() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, 100)?;
        let proxy = FaultProxy::start(world.address()?)?;
        proxy.record(true);
        let mut remote = world.remote_at("one", "ann", &format!("http://{}", proxy.address()))?;
        for change in ["", "DELETE FROM visit WHERE id % 10 = 3; UPDATE place SET body = 'x'", ""] {
            world.central.execute(change)?;
            let report = world.sync(&mut remote)?;
            let last = || proxy.connections().pop().filter(|traffic| traffic.ended);
            ensure!(wait_until(Duration::from_mins(1), || last().is_some()), "the connection does not end");
            let traffic = last().and_then(|traffic| traffic.recorded).context("recorded")?;
            let frames: Vec<Frame> = frames(&traffic.1).into_iter().map(|placed| placed.frame).collect();
            let place = frames.iter().position(|frame| frame.kind == FrameKind::Download).context("a download")?;
            let said = Download::from_payload(&frames[place].payload(100)?)?;
            let came: usize = frames[place + 1..].iter().map(Frame::wire_bytes).sum();
            assert_eq!((said.rows, said.bytes), (report.rows_down + report.deletions_down, came as u64), "{kind:?}");
            assert_eq!(report.large, None, "{kind:?}: it stays in memory");
        }
    }
    Ok(())
}

/// The first download of another version says it too.
#[test]
fn an_upgrade_says_what_it_needs() -> Result<()> {
    for kind in KINDS {
        let mut world = world(kind, 12_000)?;
        world.central.execute("ALTER TABLE visit ADD COLUMN extra TEXT")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        let next = MODEL
            .replace("version = 1", "version = 2")
            .replace("area = \"text\", body", "area = \"text\", extra = \"text\", body");
        world.serve_also(&next)?;
        remote.set_server(&world.server_url()?, "ann")?;
        drop(remote);
        let mut command = Command::new(headwater_binary()?);
        command.args(["remote", "upgrade"]).arg(world.path("one")).env("HEADWATER_TOKEN", world.token("ann")?);
        let output = command.output()?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(out.contains("goes on under version 2"), "{kind:?}: {out}{err}");
        ensure!(err.contains("a large download begins: about 72,000 rows"), "{kind:?}: {out}{err}");
    }
    Ok(())
}

/// Whoever reads JSON is told the same, before anything is in the file, and once more in the answer.
#[test]
fn a_program_is_told_what_a_large_download_needs() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, 12_000)?;
        drop(world.remote("one", "ann")?);
        let mut command = Command::new(headwater_binary()?);
        command.args(["remote", "sync", "--json"]).arg(world.path("one")).env("HEADWATER_TOKEN", world.token("ann")?);
        let output = command.output()?;
        let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        let answer: serde_json::Value = serde_json::from_str(&out).with_context(|| format!("{out}{err}"))?;
        let told: Vec<serde_json::Value> = err.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        ensure!(told.len() == 1, "{kind:?}: {err}");
        ensure!(
            told[0]["note"].as_str().is_some_and(|note| note.starts_with("a large download begins: about")),
            "{err}"
        );
        ensure!(told[0]["about"]["rows"] == 84_000 && told[0]["about"]["disk_bytes"].is_u64(), "{kind:?}: {err}");
        ensure!(told[0]["about"] == answer["large_download"], "{kind:?}: {answer}");
    }
    Ok(())
}

/// A database that lets in one connection and no second.
struct One {
    inner: Arc<dyn Backend>,
    is_in: AtomicBool,
    turned_away: Arc<AtomicU64>,
}

impl QueryBackend for One {
    fn connect_for_queries(&self) -> Result<Box<dyn QueryConnection>, headwater_consolidated::Error> {
        Ok(self.connect()?)
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    fn placeholder(&self) -> Placeholder {
        self.inner.placeholder()
    }
}

impl Backend for One {
    fn connect(&self) -> Result<Box<dyn Connection>, headwater_consolidated::Error> {
        if self.is_in.swap(true, Ordering::SeqCst) {
            self.turned_away.fetch_add(1, Ordering::SeqCst);
            let detail = "there is one connection, and somebody has it".to_owned();
            return Err(headwater_consolidated::Error::Retry { detail, broken: false });
        }
        self.inner.connect()
    }

    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }
}

/// Where no second connection is to be had the size is not known until all has come, and nothing else is different.
#[test]
fn without_a_second_connection_it_comes_all_the_same() -> Result<()> {
    for kind in KINDS {
        let mut world = world(kind, 12_000)?;
        world.stop_server();
        let turned_away = Arc::default();
        let one = One {
            inner: world.central.backend()?,
            is_in: AtomicBool::new(false),
            turned_away: Arc::clone(&turned_away),
        };
        world.start_server_over(&(Arc::new(one) as Arc<dyn Backend>))?;
        let mut remote = world.remote("one", "ann")?;
        let mut known = Vec::new();
        let mut progress = |progress: Progress| known.extend(progress.total.map(|_| progress.phase));
        let mut options = SyncOptions::new(Credentials::Token(world.token("ann")?));
        options.progress = Some(&mut progress);
        let report = remote.sync(&mut options)?;
        assert_eq!((known, report.rows_down), (Vec::<Phase>::new(), 12_000 + 72_000), "{kind:?}");
        assert!(turned_away.load(Ordering::SeqCst) > 0, "{kind:?}: it was asked for");
        let large = report.large.context("it is said before it is applied")?;
        assert!(
            large.rows.is_none() && large.bytes <= report.bytes_down && large.bytes > 1 << 20,
            "{kind:?}: {large:?}"
        );
        let report = world.diff("one")?;
        ensure!(report.is_equal(false), "{}", serde_json::to_string(&report)?);
    }
    Ok(())
}

/// The warning comes first, then the error; what has come by then is not sent again.
#[test]
fn a_full_disk_is_foretold_and_loses_nothing() -> Result<()> {
    if !is_apart("a_full_disk_is_foretold_and_loses_nothing", "--mount")? {
        return Ok(());
    }
    for kind in KINDS {
        let world = world(kind, 12_000)?;
        let disk = SmallDisk::new(160)?;
        let options = CreateOptions::new(world.server_url()?, "ann");
        drop(Remote::create(disk.path().join("one.db"), &world.plan.model.public(), &options)?);
        let sync = |arguments: &[&str]| -> Result<(Option<i32>, String, String)> {
            let mut command = Command::new(headwater_binary()?);
            command.current_dir(disk.path()).args(["remote", "sync", "one.db"]).args(arguments);
            let done = command.env("HEADWATER_TOKEN", world.token("ann")?).output()?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok((done.status.code(), text(&done.stdout), text(&done.stderr)))
        };
        disk.leave(4 << 20)?;
        let (code, _, said) = sync(&[])?;
        for words in [
            "a large download begins: about 84,000 rows",
            "MB are free",
            "warning: the disk of one.db may get full",
            "error: the disk is full",
            "make room and try again",
        ] {
            ensure!(code != Some(0) && said.contains(words), "{kind:?}: no {words:?} in {said}");
        }
        disk.leave(20 << 20)?;
        let (code, _, said) = sync(&["--json"])?;
        for words in [r#""about":{"bytes":"#, r#""error":"the disk is full"#] {
            ensure!(code != Some(0) && said.contains(words), "{kind:?}: no {words:?} in {said}");
        }
        disk.clear()?;
        let (code, answer, said) = sync(&["--json"])?;
        ensure!(code == Some(0), "{kind:?}: {said}");
        let report: serde_json::Value = serde_json::from_str(&answer).with_context(|| answer.clone())?;
        assert_eq!(report["rows_down"], 84_000, "{kind:?}: {report}");
        ensure!(
            report["bytes_down"].as_u64() < report["large_download"]["bytes"].as_u64().map(|bytes| bytes / 2),
            "{kind:?}: {report}"
        );
        std::fs::copy(disk.path().join("one.db"), world.path("one"))?;
        let report = world.diff("one")?;
        ensure!(report.is_equal(false), "{}", serde_json::to_string(&report)?);
    }
    Ok(())
}
