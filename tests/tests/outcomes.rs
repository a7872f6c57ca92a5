//! Conflicts whose receipt comes and whose outcome does not.

use anyhow::{Result, ensure};
use headwater_remote::{Choice, Remote, SyncOptions, SyncReport, http::Credentials};
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE member (login text, region text);
    CREATE TABLE note (id text NOT NULL PRIMARY KEY, region text NOT NULL, body text);
    INSERT INTO member VALUES ('ann', 'south'), ('ann', 'west');
    INSERT INTO note VALUES ('n1', 'west', 'stays'), ('n2', 'south', 'goes')";

const MODEL: &str = r#"
name = "notes"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE login = :s.user"
[tables.note]
key = ["id"]
conflict = "consolidated_wins"
partition = "region"
columns = { id = "text not null", region = "text not null", body = "text" }
"#;

/// A sync that brings nothing down.
fn upload_alone(world: &World, remote: &mut Remote) -> Result<SyncReport> {
    let mut options = SyncOptions::new(Credentials::Token(world.token("ann")?));
    options.config.wants_download = false;
    Ok(remote.sync(&mut options)?)
}

/// The row that won lay in a partition of the remote's when it won, and lies in none any more when the remote looks again.
#[test]
fn a_row_that_lost_goes_though_the_one_that_won_never_came() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
        let mut remote = world.remote("a", "ann")?;
        world.sync(&mut remote)?;
        world.central.execute("INSERT INTO note VALUES ('n3', 'south', 'theirs'), ('n4', 'west', 'theirs')")?;
        world.edit("a", "INSERT INTO note VALUES ('n3', 'west', 'mine'), ('n4', 'west', 'mine')")?;
        let report = upload_alone(&world, &mut remote)?;
        ensure!(report.conflicts == 2, "{kind:?}: {report:?}");
        world.central.execute("DELETE FROM member WHERE region = 'south'")?;
        for _ in 0..2 {
            world.sync(&mut remote)?;
        }
        let rows = world.rows("a", "SELECT id, body FROM note ORDER BY id")?;
        let expected = [["n1", "stays"], ["n4", "theirs"]].map(|row| row.map(|text| Some(text.to_owned())).to_vec());
        ensure!(rows == expected, "{kind:?}: {rows:?}");
        ensure!(world.diff("a")?.is_equal(false), "{kind:?}: {:?}", world.diff("a")?);
        ensure!(remote.conflicts(10)?.iter().all(|conflict| !conflict.is_open), "{kind:?}: a conflict stays open");
        // And that is all: nothing comes whole again.
        let report = world.sync(&mut remote)?;
        ensure!(report.rows_down + report.deletions_down == 0, "{kind:?}: {report:?}");
    }
    Ok(())
}

/// A row went up into a partition that never came down: by the time the remote asks, its user is a member no more.
#[test]
fn a_row_goes_that_was_taken_into_a_partition_which_never_came() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
        let mut remote = world.remote("a", "ann")?;
        world.sync(&mut remote)?;
        // Two lose against rows that are there already; one is alone in its partition.
        let mine = "('n4', 'far', 'mine'), ('n5', 'east', 'mine'), ('n6', 'north', 'mine'), ('n8', 'up', 'mine'), ('n9', 'east', 'mine')";
        world.edit("a", &format!("INSERT INTO note VALUES {mine}"))?;
        world.central.execute(
            "INSERT INTO note VALUES ('n8', 'up', 'theirs'), ('n9', 'east', 'theirs');
             INSERT INTO member VALUES ('ann', 'east'), ('ann', 'north'), ('ann', 'up'), ('ann', 'far')",
        )?;
        let report = upload_alone(&world, &mut remote)?;
        ensure!((report.changes_up, report.conflicts, report.refused) == (5, 2, 0), "{kind:?}: {report:?}");
        world.central.execute("DELETE FROM member WHERE region IN ('east', 'up', 'far')")?;
        // What waits in the partition is kept, and what is in the other comes.
        world.edit("a", "UPDATE note SET body = 'later' WHERE id = 'n5'")?;
        world.central.execute("INSERT INTO note VALUES ('n7', 'north', 'theirs')")?;
        for _ in 0..2 {
            world.sync(&mut remote)?;
        }
        let rows = world.rows("a", "SELECT id FROM note ORDER BY id")?;
        let expected = ["n1", "n2", "n6", "n7"].map(|id| vec![Some(id.to_owned())]);
        ensure!(rows == expected, "{kind:?}: {rows:?}");
        let aside = remote.set_aside(10)?;
        ensure!(aside.len() == 1 && aside[0].new.as_deref().is_some_and(|new| new.contains("later")), "{aside:?}");
        remote.drop_set_aside(&Choice::All)?;
        ensure!(world.diff("a")?.is_equal(false), "{kind:?}: {:?}", world.diff("a")?);
        let report = world.sync(&mut remote)?;
        ensure!(report.rows_down + report.deletions_down == 0, "{kind:?}: {report:?}");
    }
    Ok(())
}

/// The database spells the partition of a row that went up otherwise: the row comes back in that spelling, and that is all.
#[test]
fn a_partition_that_was_spelled_otherwise_here_does_not_come_whole() -> Result<()> {
    for kind in KINDS {
        let (column, spellings) = match kind {
            Kind::Sqlite => ("NUMERIC", ["7.0", "7.00"]),
            Kind::Postgres => ("char(4)", ["7 ", "7"]),
        };
        let schema = SCHEMA.replace("region text", &format!("region {column}"));
        let schema = schema.replace("'south'", "'7'").replace("'west'", "'8'");
        let world = World::new(kind, &schema, MODEL, &["ann"])?;
        let mut remote = world.remote("a", "ann")?;
        world.sync(&mut remote)?;
        for (spelling, id) in spellings.into_iter().zip(["n3", "n4"]) {
            world.edit("a", &format!("INSERT INTO note VALUES ('{id}', '{spelling}', 'mine')"))?;
            let report = world.sync(&mut remote)?;
            ensure!((report.changes_up, report.rows_down) == (1, 1), "{kind:?}: {report:?}");
            let report = world.sync(&mut remote)?;
            ensure!((report.rows_down, report.afresh) == (0, 0), "{kind:?}: {report:?}");
            // The comparison tells 7 from '7'.
            if matches!(kind, Kind::Postgres) {
                ensure!(world.diff("a")?.is_equal(false), "{kind:?}: {:?}", world.diff("a")?);
            }
        }
        // One whose download does not come at once is noted all the same, and goes with its partition.
        world.edit("a", &format!("INSERT INTO note VALUES ('n5', '{}', 'mine')", spellings[0]))?;
        upload_alone(&world, &mut remote)?;
        world.central.execute("DELETE FROM member WHERE region = '7'")?;
        world.sync(&mut remote)?;
        let rows = world.rows("a", "SELECT id FROM note")?;
        ensure!(rows == [[Some("n1".to_owned())]], "{kind:?}: {rows:?}");
    }
    Ok(())
}

/// What the application writes is stored as another value, or in another spelling; the remote's file gets what is stored.
#[test]
fn what_is_stored_otherwise_comes_back() -> Result<()> {
    const MODEL: &str = "name = \"seen\"\nversion = 1\n[tables.seen]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
        columns = { id = \"int not null\", at = \"timestamp\", day = \"date\", who = \"uuid\", really = \"bool\", price = \"decimal\" }";
    for kind in KINDS {
        let (schema, writes): (_, &[_]) = match kind {
            Kind::Sqlite => (
                "CREATE TABLE seen (id INTEGER PRIMARY KEY, at DATETIME, day DATE, who UUID, really BOOLEAN, price DECIMAL(10, 2)); \
                 INSERT INTO seen VALUES (1, 1767225600, 2461041.5, 7, 1, 7.5)",
                &[
                    "at = 1767225600.0",
                    "at = '1767225600'",
                    "at = '1767225600.0'",
                    "at = '2026-01-01T05:00:00.000Z'",
                    "at = 20.0",
                    "day = '2461041.50'",
                    "day = 8.0",
                    "who = '7'",
                    "who = 8.0",
                    "really = '1'",
                    "really = 'true'",
                    "price = '7.50'",
                    "price = '7e0'",
                    "price = 8",
                ],
            ),
            Kind::Postgres => (
                "CREATE TABLE seen (id bigint PRIMARY KEY, at timestamp, day date, who uuid, really boolean, price numeric(10, 2)); \
                 INSERT INTO seen VALUES (1, '2026-01-01 05:00:00', '2026-01-01', '00000000-0000-0000-0000-00000000000a', true, 7.5)",
                &[
                    "at = '2026-01-01T05:00:00.000'",
                    "at = '2026-01-01 06:00'",
                    "who = '00000000-0000-0000-0000-00000000000A'",
                    "really = 'true'",
                    "price = '7.5'",
                    "price = '7e0'",
                    "price = 8",
                    "price = '8.001'",
                ],
            ),
        };
        let world = World::new(kind, schema, MODEL, &["ann"])?;
        let mut remote = world.remote("a", "ann")?;
        world.sync(&mut remote)?;
        for write in writes {
            world.edit("a", &format!("UPDATE seen SET {write}"))?;
            let report = world.sync(&mut remote)?;
            ensure!((report.conflicts, report.refused) == (0, 0), "{kind:?}, {write}: {report:?}");
            let diff = world.diff("a")?;
            ensure!(diff.is_equal(false), "{kind:?}, {write}: {}", serde_json::to_string(&diff)?);
            let report = world.sync(&mut remote)?;
            ensure!((report.rows_down, report.changes_up) == (0, 0), "{kind:?}, {write}: {report:?}");
        }
    }
    Ok(())
}

const WAYS: &str = "CREATE TABLE member (login text, region text);
    CREATE TABLE note (id text NOT NULL PRIMARY KEY, region text NOT NULL);
    CREATE TABLE tick (id text NOT NULL PRIMARY KEY, note text REFERENCES note);
    CREATE TABLE visit (id text NOT NULL PRIMARY KEY, region text NOT NULL);
    INSERT INTO member VALUES ('ann', 'west')";

const WAYS_MODEL: &str = r#"
name = "ways"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE login = :s.user"
[tables.note]
key = ["id"]
partition = "region"
columns = { id = "text not null", region = "text not null" }
[tables.tick]
key = ["id"]
direction = "upload"
partition = { through = "note" }
references = [{ columns = ["note"], table = "note", on_delete = "cascade" }]
columns = { id = "text not null", note = "text" }
[tables.visit]
key = ["id"]
direction = "upload"
partition = "region"
columns = { id = "text not null", region = "text not null" }
"#;

/// Tables that only go up, in such a partition and below it: nothing is noted of them that no download would ever end.
#[test]
fn a_table_that_only_goes_up_is_never_told_to_leave() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, WAYS, WAYS_MODEL, &["ann"])?;
        let mut remote = world.remote("a", "ann")?;
        world.sync(&mut remote)?;
        world.edit(
            "a",
            "INSERT INTO note VALUES ('n1', 'east'); INSERT INTO tick VALUES ('t1', 'n1');
             INSERT INTO visit VALUES ('v1', 'east')",
        )?;
        world.central.execute("INSERT INTO member VALUES ('ann', 'east')")?;
        let report = upload_alone(&world, &mut remote)?;
        ensure!((report.changes_up, report.refused) == (3, 0), "{kind:?}: {report:?}");
        let noted = "SELECT w.\"table\" FROM hw_watermark AS w JOIN hw_mark AS m ON m.id = w.mark WHERE m.bytes = x''";
        ensure!(world.rows("a", noted)? == [[Some("0".to_owned())]], "{kind:?}: {:?}", world.rows("a", noted)?);
        world.central.execute("DELETE FROM member WHERE region = 'east'")?;
        for _ in 0..2 {
            world.sync(&mut remote)?;
        }
        let left = "SELECT (SELECT count(*) FROM note), (SELECT count(*) FROM visit)";
        ensure!(world.rows("a", left)? == [["0", "1"].map(|count| Some(count.to_owned()))], "{kind:?}");
        ensure!(world.rows("a", noted)?.is_empty(), "{kind:?}: {:?}", world.rows("a", noted)?);
        let report = world.sync(&mut remote)?;
        ensure!(report.rows_down + report.deletions_down == 0, "{kind:?}: {report:?}");
    }
    Ok(())
}
