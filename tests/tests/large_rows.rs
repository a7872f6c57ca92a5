//! Rows up to 64 MiB go up and come down; larger ones are set aside where they were made, and keep no other from where it belongs.

use std::path::Path;

use anyhow::Result;
use headwater_protocol::ROW_BYTES_MAX;
use headwater_tests::{Central, KINDS, Kind, World};

const LARGE: usize = 60_000_000;
/// What a row of [`MODEL`] takes beside its body: states, a small ID, the body's length, no note.
const ROW_OWN_BYTES: usize = 6;

fn model(conflict: &str) -> String {
    format!(
        "name = \"files\"\nversion = 1\n[tables.file]\nkey = [\"id\"]\nconflict = \"{conflict}\"\n[tables.file.columns]\n\
         id = \"int not null\"\nnote = \"text\"\nbody = \"bytes\"\n"
    )
}

fn world(kind: Kind, conflict: &str) -> Result<World> {
    let bytes = if kind == Kind::Postgres { "bytea" } else { "BLOB" };
    let schema = format!("CREATE TABLE file (id BIGINT NOT NULL PRIMARY KEY, note TEXT, body {bytes})");
    World::new(kind, &schema, &model(conflict), &["ann"])
}

/// The ID, note and length of each row of the consolidated database.
fn files(world: &World) -> Result<Vec<String>> {
    let rows = world.central.rows("SELECT id, note, length(body) FROM file ORDER BY id")?;
    let text = |row: Vec<Option<String>>| row.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join(" ");
    Ok(rows.into_iter().map(text).collect())
}

#[test]
fn large_rows_go_up_come_down_and_change() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, "consolidated_wins")?;
        let (mut one, mut two) = (world.remote("one", "ann")?, world.remote("two", "ann")?);
        world.sync(&mut one)?;
        world.edit("one", &format!("INSERT INTO file VALUES (1, 'a', randomblob({LARGE})), (2, 'a', x'01')"))?;
        let report = world.sync(&mut one)?;
        assert_eq!((report.changes_up, report.refused, report.rows_down), (2, 0, 0), "{kind:?}");
        assert_eq!(files(&world)?, ["1 a 60000000", "2 a 1"], "{kind:?}");
        // It came down, and one small column of it changes; then all of it.
        world.sync(&mut two)?;
        world.edit("two", "UPDATE file SET note = 'b' WHERE id = 1")?;
        assert_eq!(world.sync(&mut two)?.changes_up, 1);
        world.edit("two", &format!("UPDATE file SET body = randomblob({LARGE}) WHERE id = 1"))?;
        let report = world.sync(&mut two)?;
        assert_eq!((report.changes_up, report.refused, report.conflicts), (1, 0, 0), "{kind:?}");
        assert!(report.bytes_up > 2 * LARGE as u64, "old and new image: {}", report.bytes_up);
        world.sync(&mut one)?;
        assert_eq!(files(&world)?, ["1 b 60000000", "2 a 1"], "{kind:?}");
        assert!(world.diff("one")?.is_equal(false) && world.diff("two")?.is_equal(false), "{kind:?}");
        world.edit("one", "DELETE FROM file WHERE id = 1")?;
        assert_eq!(world.sync(&mut one)?.changes_up, 1);
        assert_eq!(files(&world)?, ["2 a 1"], "{kind:?}");
        world.sync(&mut two)?;
        assert!(world.diff("two")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

#[test]
fn the_limit_is_one_and_the_same_both_ways() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, "consolidated_wins")?;
        let (mut one, mut two) = (world.remote("one", "ann")?, world.remote("two", "ann")?);
        let fits = ROW_BYTES_MAX - ROW_OWN_BYTES;
        world.edit(
            "one",
            &format!(
                "INSERT INTO file VALUES (1, NULL, zeroblob({fits})), (2, NULL, zeroblob({fits} + 1)), (3, NULL, x'01')"
            ),
        )?;
        let report = world.sync(&mut one)?;
        assert_eq!((report.changes_up, report.refused), (2, 1), "{kind:?}");
        assert_eq!(files(&world)?, [format!("1  {fits}"), "3  1".to_owned()], "{kind:?}");
        world.sync(&mut two)?;
        assert!(world.diff("two")?.is_equal(false), "{kind:?}");
        let aside = one.set_aside(10)?;
        let [note] = aside.as_slice() else { panic!("{aside:?}") };
        assert_eq!(
            (note.table.as_str(), note.key.as_str(), note.reason.as_str()),
            ("file", "{\"id\":2}", "row_too_large")
        );
        let message = format!("the row takes {} bytes, expected at most {ROW_BYTES_MAX}", ROW_BYTES_MAX + 1);
        assert!(note.message.starts_with(&message), "{}", note.message);
        if kind == Kind::Postgres {
            continue; // what follows is the remote's affair
        }
        // It is looked at again when it has changed, and goes up when it is small enough.
        let report = world.sync(&mut one)?;
        assert_eq!((report.changes_up, report.refused, one.status()?.set_aside), (0, 0, 1), "{kind:?}");
        world.edit("one", &format!("UPDATE file SET body = zeroblob({fits} + 2) WHERE id = 2"))?;
        assert_eq!(world.sync(&mut one)?.refused, 1, "{kind:?}");
        assert!(one.set_aside(10)?[0].message.contains(&(ROW_BYTES_MAX + 2).to_string()));
        world.edit("one", "UPDATE file SET body = x'02' WHERE id = 2")?;
        assert_eq!(world.sync(&mut one)?.changes_up, 1);
        // A row that grew can go, or be as it was.
        world.edit("one", &format!("UPDATE file SET body = zeroblob({fits} + 1) WHERE id <= 2"))?;
        assert_eq!(world.sync(&mut one)?.refused, 2, "{kind:?}");
        world.edit("one", "DELETE FROM file WHERE id = 2")?;
        let report = world.sync(&mut one)?;
        assert_eq!((report.changes_up, one.status()?.set_aside), (1, 1), "{kind:?}");
        one.drop_set_aside(&headwater_remote::Choice::All)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

#[test]
fn conflicts_on_large_rows_end_as_others_do() -> Result<()> {
    const LARGE: usize = 20_000_000;
    for (kind, conflict) in KINDS.into_iter().zip(["remote_wins", "consolidated_wins"]) {
        let world = world(kind, conflict)?;
        let (mut one, mut two) = (world.remote("one", "ann")?, world.remote("two", "ann")?);
        world.edit("one", &format!("INSERT INTO file VALUES (1, 'a', randomblob({LARGE}))"))?;
        world.sync(&mut one)?;
        world.sync(&mut two)?;
        for (name, remote) in [("one", &mut one), ("two", &mut two)] {
            world.edit(name, &format!("UPDATE file SET note = '{name}', body = randomblob({LARGE})"))?;
            let report = world.sync(remote)?;
            assert_eq!((report.changes_up, report.refused), (1, 0), "{kind:?}");
        }
        world.sync(&mut one)?;
        let winner = if conflict == "remote_wins" { "two" } else { "one" };
        assert_eq!(files(&world)?, [format!("1 {winner} {LARGE}")], "{kind:?}");
        assert!(world.diff("one")?.is_equal(false) && world.diff("two")?.is_equal(false), "{kind:?}");
        let conflicts = two.conflicts(10)?;
        assert!(conflicts.len() == 1 && !conflicts[0].is_open, "{kind:?}");
        let ours = conflicts[0].ours.clone().unwrap_or_default();
        assert!(ours.len() < 10_000 && ours.contains("20000000 bytes"), "people are shown the beginning: {ours}");
        let images = "length(old_image), length(uploaded_image), length(stored_image), length(result_image)";
        let table = if kind == Kind::Postgres { "headwater.conflict" } else { "headwater_conflict" };
        let lengths = world.central.rows(&format!("SELECT {images} FROM {table}"))?;
        for length in &lengths[0] {
            let length: usize = length.as_deref().unwrap_or_default().parse()?;
            assert!(length > 2 * LARGE, "the consolidated database has every image whole: {length}");
        }
    }
    Ok(())
}

/// Bytes of the write-ahead log of a SQLite file.
fn wal_bytes(file: &Path) -> u64 {
    let wal = format!("{}-wal", file.display());
    std::fs::metadata(wal).map_or(0, |wal| wal.len())
}

#[test]
fn the_write_ahead_log_is_cut_back() -> Result<()> {
    let world = world(Kind::Sqlite, "consolidated_wins")?;
    let Central::Sqlite(central) = &world.central else { unreachable!("it was made so") };
    let (mut one, mut two) = (world.remote("one", "ann")?, world.remote("two", "ann")?);
    world.sync(&mut two)?;
    // Somebody looks on, so that no file is closed for good and its log removed.
    let open = |file: &Path| rusqlite::Connection::open(file);
    let _others = (open(central)?, open(&world.path("one"))?, open(&world.path("two"))?);
    world.edit(
        "one",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) \
         INSERT INTO file SELECT i, NULL, randomblob(2000) FROM n",
    )?;
    assert!(wal_bytes(&world.path("one")) > 20_000_000, "the application's own transaction was large");
    assert_eq!(world.sync(&mut one)?.changes_up, 10_000);
    assert_eq!(wal_bytes(&world.path("one")), 0, "after a large upload");
    // The sync's end has been noted since.
    assert!(wal_bytes(central) < 1_000_000, "{} bytes after a large upload", wal_bytes(central));
    assert_eq!(world.sync(&mut two)?.rows_down, 10_000);
    assert_eq!(wal_bytes(&world.path("two")), 0, "after a large download");
    Ok(())
}

#[test]
fn a_row_that_remotes_do_not_take_keeps_no_other_from_them() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, "consolidated_wins")?;
        let mut remote = world.remote("one", "ann")?;
        let zeros = |bytes: u32| match kind {
            Kind::Sqlite => format!("zeroblob({bytes})"),
            Kind::Postgres => format!("decode(repeat('00', {bytes}), 'hex')"),
        };
        let (large, larger) = (zeros(50_000_000), zeros(70_000_000));
        world.central.execute(&format!(
            "INSERT INTO file VALUES (1, NULL, 'small'), (2, NULL, {larger}), (3, NULL, {large}), (4, NULL, 'small')"
        ))?;
        world.sync(&mut remote)?;
        let lengths = |id: u32| world.rows("one", &format!("SELECT length(body) FROM file WHERE id = {id}"));
        assert_eq!(world.rows("one", "SELECT id FROM file ORDER BY id")?.len(), 3, "{kind:?}");
        assert_eq!(lengths(3)?, [[Some("50000000".to_owned())]], "{kind:?}");
        // It grows too large, and others change; then it is smaller.
        world
            .central
            .execute(&format!("UPDATE file SET body = {larger} WHERE id = 1; DELETE FROM file WHERE id = 4"))?;
        world.sync(&mut remote)?;
        assert_eq!(world.rows("one", "SELECT id FROM file ORDER BY id")?.len(), 2, "{kind:?}");
        world.central.execute("UPDATE file SET body = 'small again' WHERE id <= 2")?;
        world.sync(&mut remote)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}
