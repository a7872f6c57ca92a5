//! SQLite files that had tables before they became remotes: their rows are kept, and meet those of the consolidated database.

use anyhow::Result;
use headwater_remote::{CreateOptions, Error, Remote};
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, n BIGINT, price NUMERIC); \
    INSERT INTO item VALUES ('same', 1, 1.25), ('theirs', 2, 2.25), ('differs', 3, 3.25);";
const MODEL: &str = "name = \"items\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\nconflict = \"RULE\"\n[tables.item.columns]\n\
    id = \"text not null\"\nn = \"int\"\nprice = \"decimal\"\n";

fn adopted(world: &World, tables: &str) -> Result<Remote, Error> {
    let file = rusqlite::Connection::open(world.path("old")).expect("a file");
    file.execute_batch(tables).expect("its tables");
    drop(file);
    let options = CreateOptions { adopt: true, ..CreateOptions::new(world.server_url().expect("an address"), "ann") };
    Remote::create(world.path("old"), &world.plan.model.public(), &options)
}

#[test]
fn equal_rows_count_as_synchronized_and_others_go_up() -> Result<()> {
    for kind in KINDS {
        for (rule, survivor) in [("consolidated_wins", "3"), ("remote_wins", "30")] {
            let world = World::new(kind, SCHEMA, &MODEL.replace("RULE", rule), &["ann"])?;
            let mut remote = adopted(
                &world,
                "CREATE TABLE Item (id VARCHAR(20) PRIMARY KEY, note, n INTEGER, price TEXT); CREATE TABLE other (x); \
                 INSERT INTO item VALUES ('same', 'mine', 1, '1.25'), ('ours', NULL, 9, '9'), ('differs', NULL, 30, '3.25')",
            )?;
            assert_eq!(remote.status()?.pending, 3, "until something has come down");
            let report = world.sync(&mut remote)?;
            assert_eq!((report.changes_up, report.conflicts, report.refused), (2, 1, 0), "{kind:?}, {rule}");
            assert!(world.diff("old")?.is_equal(false), "{kind:?}, {rule}");
            let n = world.central.rows("SELECT n FROM item WHERE id = 'differs'")?;
            assert_eq!(n, [[Some(survivor.to_owned())]], "{kind:?}, {rule}");
            let note = world.rows("old", "SELECT note FROM item WHERE id = 'same'")?;
            assert_eq!(note, [[Some("mine".to_owned())]], "columns of its own stay");
            assert_eq!(remote.conflicts(10)?.len(), 1);
            world.edit("old", "UPDATE item SET n = 7 WHERE id = 'same'; DELETE FROM item WHERE id = 'ours'")?;
            assert_eq!(world.sync(&mut remote)?.changes_up, 2, "and it is a remote like any other");
            assert!(world.diff("old")?.is_equal(false));
        }
    }
    Ok(())
}

#[test]
fn a_table_that_would_not_keep_its_values_is_refused() -> Result<()> {
    for (tables, why) in [
        ("CREATE TABLE item (id TEXT PRIMARY KEY, n INTEGER)", "no column \"price\""),
        ("CREATE TABLE item (id TEXT PRIMARY KEY, n INTEGER, price REAL)", "column \"price\" is declared \"REAL\""),
        ("CREATE TABLE item (id TEXT, n INTEGER, price TEXT)", "its primary key is ()"),
        ("CREATE TABLE item (id TEXT PRIMARY KEY, n INTEGER UNIQUE, price TEXT)", "(\"n\") is unique in it"),
        (
            "CREATE TABLE item (id TEXT PRIMARY KEY, n INTEGER, price TEXT, x NOT NULL)",
            "column \"x\" is not in the model",
        ),
        (
            "CREATE TABLE item (id TEXT PRIMARY KEY ON CONFLICT ABORT, n INTEGER, price TEXT NOT NULL ON CONFLICT IGNORE)",
            "it says ON CONFLICT IGNORE",
        ),
        (
            "CREATE TABLE item (id TEXT PRIMARY KEY, n INTEGER, price TEXT, UNIQUE (id, n) ON CONFLICT REPLACE)",
            "(\"id\", \"n\") is unique in it",
        ),
        (
            "CREATE TABLE item (id TEXT PRIMARY KEY ON /**/ conflict replace, n INTEGER, price TEXT)",
            "it says ON CONFLICT REPLACE",
        ),
        (
            "CREATE TABLE item (id TEXT PRIMARY KEY COLLATE NOCASE, n INTEGER, price TEXT)",
            "column \"id\" is compared by NOCASE",
        ),
        (
            "CREATE TABLE item (id TEXT, n INTEGER, price TEXT, PRIMARY KEY (id COLLATE RTRIM))",
            "column \"id\" is compared by RTRIM",
        ),
        (
            "CREATE TABLE item (id TEXT PRIMARY KEY, n INTEGER, price TEXT COLLATE nocase)",
            "column \"price\" is compared by nocase",
        ),
        (
            "CREATE TABLE item (id TEXT PRIMARY KEY, n INTEGER, price TEXT); INSERT INTO item VALUES (NULL, 1, '1')",
            "a row of it has no key (NULL)",
        ),
        ("CREATE VIEW item AS SELECT 'a' AS id, 1 AS n, '1' AS price", "column \"id\" is declared"),
    ] {
        let world = World::new(Kind::Sqlite, SCHEMA, &MODEL.replace("RULE", "off"), &["ann"])?;
        let error = adopted(&world, tables).expect_err(tables);
        assert!(error.to_string().contains(why), "{tables}: {error}");
        let left = world.rows("old", "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'hw%'")?;
        assert_eq!(left, [[Some("0".to_owned())]], "the file is as it was");
    }
    Ok(())
}

/// An application makes a table anew, as SQLite's documentation tells for changes of a table, and not as it must be.
#[test]
fn a_table_made_anew_in_another_way_waits_for_its_mending() -> Result<()> {
    let world = World::new(Kind::Sqlite, SCHEMA, &MODEL.replace("RULE", "remote_wins"), &["ann"])?;
    let mut remote = world.remote("a", "ann")?;
    world.sync(&mut remote)?;
    let anew = |columns: &str| {
        format!(
            "CREATE TABLE anew ({columns}); INSERT INTO anew SELECT * FROM item; DROP TABLE item; ALTER TABLE anew RENAME TO item"
        )
    };
    for (columns, why) in [
        ("id TEXT PRIMARY KEY COLLATE NOCASE, n INTEGER, price TEXT", "column \"id\" is compared by NOCASE"),
        ("id TEXT PRIMARY KEY ON CONFLICT REPLACE, n INTEGER, price TEXT", "it says ON CONFLICT REPLACE"),
        ("id TEXT PRIMARY KEY, number INTEGER, price TEXT", "it has no column \"n\""),
    ] {
        world.edit("a", "UPDATE item SET n = n + 1 WHERE id = 'same'; INSERT INTO item (id, n) SELECT 'made ' || count(*), 7 FROM item")?;
        world.edit("a", &anew(columns))?;
        for error in [
            world.sync_as(&mut remote, "ann").expect_err(columns),
            Remote::open(world.path("a")).expect_err(columns).into(),
        ] {
            let told = format!("{error:#}");
            assert!(told.contains("has been made anew") && told.contains(why), "{columns}: {told}");
        }
        world.edit("a", &anew("id TEXT PRIMARY KEY, n INTEGER, price TEXT"))?;
        (0..3).try_for_each(|_| world.sync(&mut remote).map(drop))?;
        assert!(world.diff("a")?.is_equal(false), "{columns}");
    }
    let rows = world.central.rows("SELECT count(*), max(n) FILTER (WHERE id = 'same') FROM item")?;
    assert_eq!(rows, [[Some("6".to_owned()), Some("4".to_owned())]], "what was pending has gone up");
    Ok(())
}
