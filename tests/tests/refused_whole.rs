//! Uploads that are not taken as they are: refused whole because the model wants all or nothing, or too large for somebody on the way.
//! Either way the download goes on, nothing is lost, and one change never blocks the others for good.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Choice, PendingChoice, SyncOptions};
use headwater_testkit::proxy::Direction;
use headwater_testkit::{FaultProxy, Plan};
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, n BIGINT CHECK (n < 100), body TEXT);";

fn model(on_error: &str) -> String {
    format!(
        "name = \"notes\"\nversion = 1\n{on_error}\n[tables.note]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
         [tables.note.columns]\nid = \"text not null\"\nn = \"int\"\nbody = \"text\"\n"
    )
}

fn ids(world: &World) -> Result<Vec<String>> {
    let rows = world.central.rows("SELECT id FROM note ORDER BY id")?;
    Ok(rows.into_iter().filter_map(|mut row| row.remove(0)).collect())
}

#[test]
fn an_upload_is_applied_whole_or_not_at_all_where_the_model_says_so() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, &model("on_error = \"reject\""), &["ann"])?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.central.execute("INSERT INTO note VALUES ('theirs', 1, 'x')")?;
        world.edit("one", "INSERT INTO note VALUES ('a', 1, 'x'), ('b', 1000, 'x'), ('c', 3, 'x')")?;
        for _ in 0..2 {
            let report = world.sync(&mut remote)?;
            let why = report.upload_refused.as_deref().unwrap_or_default();
            assert!(why.starts_with("1 of 3 changes are refused\ntable \"note\", id = b: "), "{kind:?}: {why}");
            assert!(why.ends_with("(check)"), "{kind:?}: {why}");
            assert_eq!(remote.upload_refused()?.len(), 2);
            assert_eq!((report.changes_up, report.refused), (0, 0));
            assert_eq!(ids(&world)?, ["theirs"], "{kind:?}: nothing of the upload is applied");
            let status = remote.status()?;
            assert_eq!((status.pending, status.set_aside, status.is_frozen), (3, 0, false));
            assert_eq!(status.upload_sequence, 0, "no number is used");
            let theirs = world.rows("one", "SELECT count(*) FROM note WHERE id = 'theirs'")?;
            assert_eq!(theirs[0][0].as_deref(), Some("1"), "{kind:?}: the download goes on");
        }
        world.edit("one", "UPDATE note SET n = 10 WHERE id = 'b'")?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.upload_refused), (3, None));
        assert_eq!(remote.status()?.upload_refused, None, "that is settled");
        assert_eq!(ids(&world)?, ["a", "b", "c", "theirs"]);
        assert!(world.diff("one")?.is_equal(false));
    }
    Ok(())
}

/// Whoever can't mend his rows gives them up: the consolidated rows come back, the newest, and the rest goes up.
#[test]
fn what_is_refused_whole_is_listed_and_given_up() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, &model("on_error = \"reject\""), &["ann"])?;
        let mut remote = world.remote("one", "ann")?;
        world.central.execute("INSERT INTO note VALUES ('a', 1, 'x'), ('b', 2, 'x'), ('c', 3, 'x')")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "UPDATE note SET n = n * 1000, body = 'here' WHERE id IN ('a', 'b'); DELETE FROM note WHERE id = 'c'; \
             WITH RECURSIVE i(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM i WHERE i < 200) \
             INSERT INTO note SELECT 'new' || char(10) || i, 1000, 'x' FROM i; INSERT INTO note VALUES ('good', 1, 'x')",
        )?;
        world.central.execute("UPDATE note SET n = 20 WHERE id = 'b'")?;
        world.sync(&mut remote)?;
        let lines = remote.upload_refused()?;
        let named = lines.len() as u64 - 2;
        assert!(named > 40 && lines[1].starts_with("table \"note\", id = a: "), "{kind:?}: {lines:?}");
        let first_and_last = [&lines[0], &lines[lines.len() - 1]];
        assert_eq!(first_and_last, ["202 of 204 changes are refused", &format!("and {} more", 202 - named)]);
        assert_eq!(remote.status()?.upload_refused.map(|why| why.lines().count()), Some(lines.len()));

        let key = |id: &str| PendingChoice::Key { table: "note".to_owned(), key: format!("{{\"id\":\"{id}\"}}") };
        for wrong in [key("z"), PendingChoice::Table("nots".to_owned())] {
            let error = remote.drop_pending(&wrong).expect_err("there is none").to_string();
            assert!(error.contains("log FILE --pending") || error.contains("it has note"), "{error}");
        }
        assert_eq!(remote.drop_pending(&key("a"))? + remote.drop_pending(&key("b"))?, 2);
        let rows =
            |sql: &str| world.rows("one", sql).map(|rows| rows.concat().into_iter().flatten().collect::<Vec<_>>());
        let a_and_b = "SELECT id || ' ' || n || ' ' || body FROM note WHERE id IN ('a', 'b')";
        assert_eq!(rows(a_and_b)?, ["a 1 x", "b 20 x"], "{kind:?}: as they came down last");
        assert_eq!(remote.upload_refused()?, [""; 0]);
        for change in remote.pending(1000)? {
            if change.key.contains("new") {
                remote.drop_pending(&PendingChoice::Key { table: change.table, key: change.key })?;
            }
        }
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.upload_refused), (2, None), "{kind:?}");
        assert_eq!(ids(&world)?, ["a", "b", "good"]);
        assert!(world.diff("one")?.is_equal(false));

        world.edit("one", "INSERT INTO note VALUES ('d', 1, 'x'), ('e', 1, 'x'); DELETE FROM note WHERE id = 'a'")?;
        assert_eq!(remote.drop_pending(&PendingChoice::All)?, 3);
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, rows("SELECT id FROM note")?), (0, ids(&world)?), "{kind:?}");
        assert!(world.diff("one")?.is_equal(false));
    }
    Ok(())
}

#[test]
fn without_a_download_the_reason_is_told_too() -> Result<()> {
    let world = World::new(Kind::Sqlite, SCHEMA, &model("on_error = \"reject\""), &["ann"])?;
    let mut remote = world.remote("one", "ann")?;
    world.sync(&mut remote)?;
    world.edit("one", "INSERT INTO note VALUES ('b', 1000, 'x')")?;
    let token = world.token("ann")?;
    let mut options = headwater_remote::SyncOptions::new(headwater_remote::http::Credentials::Token(token));
    options.config.wants_download = false;
    let report = remote.sync(&mut options)?;
    assert!(report.upload_refused.is_some());
    assert_eq!((remote.status()?.pending, remote.status()?.is_frozen), (1, false));
    Ok(())
}

/// A server takes less than the remote cuts: it is cut smaller until it passes.
#[test]
fn an_upload_too_large_for_the_server_is_cut_smaller() -> Result<()> {
    for kind in KINDS {
        let mut world = World::unserved(kind, SCHEMA, &model(""), &["ann"])?;
        world.config.upload_bytes_max = 100_000;
        world.start_server()?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
             INSERT INTO note SELECT printf('%04d', i), 1, hex(randomblob(1000)) FROM n",
        )?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused, report.failures), (500, 0, 0), "{kind:?}");
        assert!(report.requests > 5, "{kind:?}: {} requests", report.requests);
        assert_eq!(ids(&world)?.len(), 500);
        assert!(world.diff("one")?.is_equal(false));
    }
    Ok(())
}

/// One change is larger than the server takes: it is set aside, the others pass.
#[test]
fn a_change_too_large_for_the_server_is_set_aside_alone() -> Result<()> {
    for kind in KINDS {
        let mut world = World::unserved(kind, SCHEMA, &model(""), &["ann"])?;
        world.config.upload_bytes_max = 100_000;
        world.start_server()?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) \
             INSERT INTO note SELECT printf('%04d', i), 1, CASE i WHEN 7 THEN hex(randomblob(150000)) ELSE 'x' END FROM n",
        )?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused), (19, 1), "{kind:?}");
        let aside = remote.set_aside(10)?;
        assert_eq!((aside.len(), aside[0].reason.as_str()), (1, "row_too_large"));
        assert!(aside[0].key.contains("0007"), "{}", aside[0].key);
        assert_eq!(ids(&world)?.len(), 19);
        world.edit("one", "UPDATE note SET body = 'short' WHERE id = '0007'")?;
        world.sync(&mut remote)?;
        assert_eq!(ids(&world)?.len(), 20);
        assert!(world.diff("one")?.is_equal(false));
        assert_eq!(remote.status()?.set_aside, 0);
    }
    Ok(())
}

/// It is applied, its receipt is lost, and then the server's limit is lowered below its size: what was uploaded counts as uploaded.
#[test]
fn an_upload_that_has_become_too_large_is_done_without_its_receipt() -> Result<()> {
    for kind in KINDS {
        let mut world = World::new(kind, SCHEMA, &model(""), &["ann"])?;
        let mut remote = world.remote("one", "ann")?;
        world.central.execute("INSERT INTO note VALUES ('gone', 1, 'x'), ('kept', 1, 'x')")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            &format!(
                "{}; DELETE FROM note WHERE id = 'gone'; UPDATE note SET n = 1000 WHERE id = 'kept'",
                MANY.replace("500", "100")
            ),
        )?;
        let proxy = FaultProxy::start(world.address()?)?;
        proxy.next([Plan::clean().black_hole(Direction::Down, 1)]);
        let mut options = SyncOptions::new(Credentials::Token(world.token("ann")?));
        (options.config.attempts_max, options.config.idle_max) = (1, Duration::from_secs(2));
        remote.set_server(&format!("http://{}", proxy.address()), "ann")?;
        ensure!(remote.sync(&mut options).is_err() && remote.status()?.is_frozen, "the answer is lost");
        let until = Instant::now() + Duration::from_secs(20);
        while ids(&world)?.len() != 101 {
            ensure!(Instant::now() < until, "{kind:?}: the upload is not applied");
            std::thread::sleep(Duration::from_millis(5));
        }

        world.config.upload_bytes_max = 100_000;
        world.start_server()?;
        remote.set_server(&world.server_url()?, "ann")?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused), (0, 0), "{kind:?}: nothing goes up again");
        let aside: Vec<_> = remote.set_aside(9)?.into_iter().map(|one| format!("{} {}", one.key, one.reason)).collect();
        assert_eq!(aside, ["{\"id\":\"kept\"} unanswered"], "{kind:?}: all that did not come as it was uploaded");
        remote.drop_set_aside(&Choice::All)?;
        world.sync(&mut remote)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

const MANY: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
                    INSERT INTO note SELECT printf('%04d', i), 1, hex(randomblob(1000)) FROM n";

/// All or nothing: what the server finds too large is neither cut smaller nor set aside, however often, until its limit is raised or it is given up.
#[test]
fn an_upload_too_large_is_not_cut_where_the_model_wants_all_or_nothing() -> Result<()> {
    for kind in KINDS {
        for (option, edit, pending) in [
            ("upload_bytes_max", MANY, 500),
            ("upload_frames_max", MANY, 500),
            ("upload_bytes_max", "INSERT INTO note VALUES ('large', 1, hex(randomblob(150000)))", 1),
        ] {
            let mut world = World::unserved(kind, SCHEMA, &model("on_error = \"reject\""), &["ann"])?;
            let usual = world.config.clone();
            match option {
                "upload_frames_max" => world.config.upload_frames_max = 6,
                _ => world.config.upload_bytes_max = 100_000,
            }
            world.start_server()?;
            let mut remote = world.remote("one", "ann")?;
            world.sync(&mut remote)?;
            world.edit("one", edit)?;
            for round in 1..=2 {
                world.central.execute(&format!("INSERT INTO note VALUES ('theirs {round}', 1, 'x')"))?;
                let report = world.sync(&mut remote)?;
                let why = report.upload_refused.as_deref().unwrap_or_default();
                assert!(why.contains(&format!("({option})")) && why.contains("all or nothing"), "{kind:?}: {why}");
                assert_eq!((report.changes_up, report.refused, report.rows_down), (0, 0, 1), "{kind:?}, {option}");
                assert_eq!(ids(&world)?.len(), round, "{kind:?}: nothing of the upload is applied");
                let status = remote.status()?;
                assert_eq!((status.pending, status.set_aside, status.is_frozen), (pending, 0, false), "{kind:?}");
                assert_eq!((status.upload_refused.as_deref(), sent(&world)?), (Some(why), 0));
            }
            if pending == 1 {
                let key = PendingChoice::Key { table: "note".to_owned(), key: "{\"id\":\"large\"}".to_owned() };
                assert_eq!(remote.drop_pending(&key)?, 1);
                assert_eq!(remote.status()?.upload_refused, None);
            } else {
                world.stop_server();
                world.config = usual;
                world.start_server()?;
                remote.set_server(&world.server_url()?, "ann")?;
            }
            let report = world.sync(&mut remote)?;
            assert_eq!((report.changes_up, report.upload_refused), (if pending == 1 { 0 } else { pending }, None));
            assert!(world.diff("one")?.is_equal(false));
        }
    }
    Ok(())
}

/// How many uploads of the remote have a receipt. (Their numbers are used up by those that were given up, too.)
fn sent(world: &World) -> Result<u64> {
    let rows = world.rows("one", "SELECT count(*) FROM hw_sent")?;
    Ok(rows[0][0].as_deref().unwrap_or_default().parse()?)
}

/// What was cut small by a limit of before is cut anew, not sent in parts, once the model wants all or nothing.
#[test]
fn no_part_is_sent_where_the_model_wants_all_or_nothing() -> Result<()> {
    for kind in KINDS {
        for (on_error, uploads) in [("", 2..=u64::MAX), ("on_error = \"reject\"", 1..=1)] {
            let world = World::new(kind, SCHEMA, &model(on_error), &["ann"])?;
            let mut remote = world.remote("one", "ann")?;
            world.sync(&mut remote)?;
            world.edit("one", &format!("{MANY}; UPDATE hw_state SET cut_bytes_max = 20000"))?;
            let report = world.sync(&mut remote)?;
            assert_eq!((report.changes_up, report.upload_refused), (500, None), "{kind:?}");
            let sent = sent(&world)?;
            assert!(uploads.contains(&sent), "{kind:?}, {on_error}: {sent} uploads");
            assert!(world.diff("one")?.is_equal(false));
        }
    }
    Ok(())
}
