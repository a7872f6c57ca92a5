//! Uploads that are not taken as they are: refused whole because the model wants all or nothing, or too large for somebody on the way.
//! Either way the download goes on, nothing is lost, and one change never blocks the others for good.

use anyhow::Result;
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
            assert!(why.contains("1 of 3 changes are refused, the first in table \"note\", id = b"), "{kind:?}: {why}");
            assert!(why.ends_with("(check)"), "{kind:?}: {why}");
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
        assert_eq!(ids(&world)?, ["a", "b", "c", "theirs"]);
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
