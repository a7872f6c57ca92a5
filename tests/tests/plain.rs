//! Uploads of many rows: what the database stores just as it came does not come back; what it changes does, whatever it is that changes it
//! and however short before.

use anyhow::{Context, Result, ensure};
use headwater_remote::Remote;
use headwater_tests::{Kind, World};

const SCHEMA: &str = "CREATE TABLE item (id BIGINT NOT NULL PRIMARY KEY, price NUMERIC(20,6), note VARCHAR(20));
    CREATE FUNCTION stamped() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.note := 'stamped'; RETURN NEW; END $$;
    CREATE FUNCTION touched() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE item SET note = 'touched' WHERE note <> 'touched'; RETURN NULL; END $$;
    CREATE FUNCTION touching() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
        UPDATE item SET note = 'touched' WHERE note <> 'touched'; RETURN 1; END $$;";
const SQLITE: &str =
    "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, price DECIMAL_TEXT, note TEXT CHECK (length(note) <= 20))";
const MODEL: &str = "name = \"plain\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\n\
    columns = { id = \"int not null\", price = \"decimal(20,6)\", note = \"text\" }\n";
/// Rows of an upload: more than are looked at one by one.
const ROWS: i64 = 300;

/// What the database is told to do with rows, and how that is taken back.
const CHANGES: [(&str, &str); 7] = [
    ("CREATE TRIGGER t BEFORE INSERT ON item FOR EACH ROW EXECUTE FUNCTION stamped()", "DROP TRIGGER t ON item"),
    ("CREATE TRIGGER t AFTER INSERT ON item FOR EACH STATEMENT EXECUTE FUNCTION touched()", "DROP TRIGGER t ON item"),
    (
        "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON item DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION touched()",
        "DROP TRIGGER t ON item",
    ),
    (
        "CREATE RULE r AS ON INSERT TO item DO ALSO UPDATE item SET note = 'touched' WHERE id = NEW.id",
        "DROP RULE r ON item",
    ),
    (
        "CREATE TRIGGER t AFTER UPDATE ON headwater.remote FOR EACH STATEMENT EXECUTE FUNCTION touched()",
        "DROP TRIGGER t ON headwater.remote",
    ),
    (
        "ALTER TABLE item ADD COLUMN extra int DEFAULT 1; ALTER TABLE item ALTER extra SET DEFAULT touching()",
        "ALTER TABLE item DROP COLUMN extra",
    ),
    ("ALTER TABLE item ALTER price TYPE numeric(20,2)", "ALTER TABLE item ALTER price TYPE numeric(20,6)"),
];

const SQLITE_CHANGES: [(&str, &str); 2] = [
    (
        "CREATE TRIGGER t AFTER INSERT ON item BEGIN UPDATE item SET note = 'stamped' WHERE id = NEW.id; END",
        "DROP TRIGGER t",
    ),
    (
        "CREATE TRIGGER t AFTER UPDATE ON headwater_remote BEGIN \
             UPDATE item SET note = 'touched' WHERE note <> 'touched'; END",
        "DROP TRIGGER t",
    ),
];

fn world(kind: Kind) -> Result<World> {
    World::new(kind, if kind == Kind::Sqlite { SQLITE } else { SCHEMA }, MODEL, &["ann"])
}

/// Adds rows at the remote, from this ID on.
fn add(world: &World, first: i64) -> Result<()> {
    let last = first + ROWS - 1;
    world.edit(
        "one",
        &format!(
            "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) \
             INSERT INTO item SELECT i, '1.500000', printf('%-12d', i) FROM n"
        ),
    )
}

fn equal(world: &World) -> Result<()> {
    let report = world.diff("one")?;
    ensure!(report.is_equal(false), "{}", serde_json::to_string(&report)?);
    Ok(())
}

/// A remote whose server has got to know the table.
fn known(world: &World) -> Result<Remote> {
    let mut remote = world.remote("one", "ann")?;
    world.sync(&mut remote)?;
    for upload in 0..3 {
        add(world, upload * ROWS)?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.rows_down) == (ROWS as u64, 0), "{report:?}");
    }
    equal(world)?;
    Ok(remote)
}

#[test]
fn what_the_database_makes_of_new_rows_comes_back() -> Result<()> {
    comes_back(&world(Kind::Postgres)?, &CHANGES)
}

#[test]
fn what_sqlite_makes_of_new_rows_comes_back() -> Result<()> {
    comes_back(&world(Kind::Sqlite)?, &SQLITE_CHANGES)
}

/// The same for rows that are updated.
const CHANGES_OF_UPDATES: [(&str, &str); 2] = [
    ("CREATE TRIGGER t BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION stamped()", "DROP TRIGGER t ON item"),
    (
        "CREATE TRIGGER t AFTER UPDATE ON item FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION touched()",
        "DROP TRIGGER t ON item",
    ),
];

const SQLITE_CHANGES_OF_UPDATES: [(&str, &str); 1] = [(
    "CREATE TRIGGER t AFTER UPDATE ON item WHEN NEW.note <> 'stamped' BEGIN \
         UPDATE item SET note = 'stamped' WHERE id = NEW.id; END",
    "DROP TRIGGER t",
)];

#[test]
fn what_the_database_makes_of_updated_rows_comes_back() -> Result<()> {
    updates_come_back(&world(Kind::Postgres)?, &CHANGES_OF_UPDATES)?;
    updates_come_back(&world(Kind::Sqlite)?, &SQLITE_CHANGES_OF_UPDATES)
}

fn updates_come_back(world: &World, changes: &[(&str, &str)]) -> Result<()> {
    let mut remote = known(world)?;
    let mut round = 0;
    let mut update = |remote: &mut Remote| -> Result<u64> {
        round += 1;
        let price = format!("{}.234567", 10 + round);
        world.edit("one", &format!("UPDATE item SET note = 'round {round}', price = '{price}' WHERE id < {ROWS}"))?;
        let report = world.sync(remote)?;
        ensure!((report.changes_up, report.refused, report.conflicts) == (ROWS as u64, 0, 0), "{report:?}");
        Ok(report.rows_down)
    };
    ensure!(update(&mut remote)? == 0, "nothing changes them yet");
    for (change, back) in changes {
        world.central.execute(change)?;
        for _ in 0..2 {
            ensure!(update(&mut remote)? > 0, "{change}: nothing came back");
            equal(world).with_context(|| (*change).to_owned())?;
        }
        world.central.execute(back)?;
        world.sync(&mut remote)?;
        update(&mut remote)?;
        equal(world).with_context(|| (*back).to_owned())?;
    }
    ensure!(update(&mut remote)? == 0, "it is as it was");
    equal(world)
}

#[test]
fn updates_and_deletions_of_many_rows_do_not_come_back() -> Result<()> {
    for kind in [Kind::Postgres, Kind::Sqlite] {
        let world = world(kind)?;
        let mut remote = known(&world)?;
        world.edit("one", "UPDATE item SET price = '7.000000' WHERE id % 3 = 0; DELETE FROM item WHERE id % 3 = 1")?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.rows_down) == (2 * ROWS as u64, 0), "mixed: {report:?}");
        world.edit("one", "UPDATE item SET note = NULL WHERE id % 3 = 0")?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.rows_down) == (ROWS as u64, 0), "updates: {report:?}");
        world.edit("one", "DELETE FROM item WHERE id % 3 = 0")?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.rows_down) == (ROWS as u64, 0), "deletions: {report:?}");
        let left = world.central.rows("SELECT CAST(count(*) AS text) FROM item")?.concat();
        ensure!(left == [Some(ROWS.to_string())], "{left:?}");
        equal(&world)?;
    }
    Ok(())
}

fn comes_back(world: &World, changes: &[(&str, &str)]) -> Result<()> {
    let mut remote = known(world)?;
    let mut first = 3 * ROWS;
    for (change, back) in changes {
        world.central.execute(change)?;
        for round in 0..2 {
            add(world, first)?;
            first += ROWS;
            let report = world.sync(&mut remote)?;
            let has = (report.changes_up, report.refused, report.conflicts);
            ensure!(has == (ROWS as u64, 0, 0), "{change}: {report:?}");
            ensure!(report.rows_down > 0, "{change}, {round}: nothing came back");
            equal(world).with_context(|| format!("{change}, {round}"))?;
        }
        world.central.execute(back)?;
        world.sync(&mut remote)?;
        for _ in 0..2 {
            add(world, first)?;
            first += ROWS;
            world.sync(&mut remote)?;
        }
        equal(world).with_context(|| (*back).to_owned())?;
    }
    add(world, first)?;
    ensure!(world.sync(&mut remote)?.rows_down == 0, "it is as it was");
    Ok(())
}

#[test]
fn of_new_rows_among_other_changes_none_comes_back() -> Result<()> {
    // More digits than PostgreSQL's column keeps: that row comes back.
    among_others(Kind::Postgres, 1)?;
    among_others(Kind::Sqlite, 0)
}

fn among_others(kind: Kind, come_back: u64) -> Result<()> {
    let world = world(kind)?;
    let mut remote = known(&world)?;
    // Several frames of them.
    for upload in 3..23 {
        add(&world, upload * ROWS)?;
    }
    world.edit("one", "UPDATE item SET price = '9.12345678' WHERE id = 1; DELETE FROM item WHERE id = 2")?;
    let report = world.sync(&mut remote)?;
    ensure!(
        (report.changes_up, report.refused, report.rows_down) == (20 * ROWS as u64 + 2, 0, come_back),
        "{report:?}"
    );
    equal(&world)
}

#[test]
fn a_key_that_exists_is_a_conflict_and_a_value_that_does_not_fit_is_set_aside() -> Result<()> {
    exists_or_does_not_fit(Kind::Postgres)?;
    exists_or_does_not_fit(Kind::Sqlite)
}

fn exists_or_does_not_fit(kind: Kind) -> Result<()> {
    let world = world(kind)?;
    let mut remote = known(&world)?;
    world.central.execute(&format!("INSERT INTO item VALUES ({}, 7, 'theirs')", 3 * ROWS + 5))?;
    add(&world, 3 * ROWS)?;
    world.edit("one", &format!("UPDATE item SET note = 'far too long for this column' WHERE id = {}", 3 * ROWS + 6))?;
    let report = world.sync(&mut remote)?;
    ensure!((report.changes_up, report.refused, report.conflicts) == (ROWS as u64, 1, 1), "{report:?}");
    let stored = world.central.rows("SELECT count(*) FROM item")?.concat();
    ensure!(stored == [Some((4 * ROWS - 1).to_string())], "{stored:?}");
    let theirs = world.rows("one", &format!("SELECT note FROM item WHERE id = {}", 3 * ROWS + 5))?.concat();
    ensure!(theirs == [Some("theirs".to_owned())], "{theirs:?}");
    Ok(())
}

/// A row that SQLite takes away in the place of a new one is deleted at the remote, though the upload was the last to touch it.
#[test]
fn a_row_that_is_replaced_goes_from_the_remote_too() -> Result<()> {
    let schema =
        "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, price DECIMAL_TEXT, note TEXT UNIQUE ON CONFLICT REPLACE)";
    let world = World::new(Kind::Sqlite, schema, MODEL, &["ann"])?;
    let mut remote = world.remote("one", "ann")?;
    world.central.execute("INSERT INTO item VALUES (-1, '1.0', 'x')")?;
    world.sync(&mut remote)?;
    add(&world, 0)?;
    world.edit("one", "UPDATE item SET note = 'x' WHERE id = 7")?;
    let report = world.sync(&mut remote)?;
    ensure!((report.changes_up, report.refused) == (ROWS as u64, 0), "{report:?}");
    ensure!(world.central.rows("SELECT id FROM item WHERE note = 'x'")?.concat() == [Some("7".to_owned())]);
    equal(&world)
}

#[test]
fn a_strangers_partition_takes_no_new_rows() -> Result<()> {
    let schema = "CREATE TABLE item (area BIGINT NOT NULL, id BIGINT NOT NULL, PRIMARY KEY (area, id));
        CREATE TABLE member (user_name TEXT NOT NULL, area BIGINT NOT NULL); INSERT INTO member VALUES ('ann', 1), ('ann', 3)";
    let model = "name = \"plain\"\nversion = 1\n[partitions.area]\ncolumns = { area = \"int\" }\n\
        members = \"SELECT area FROM member WHERE user_name = :s.user\"\n[tables.item]\nkey = [\"area\", \"id\"]\npartition = \"area\"\n\
        columns = { area = \"int not null\", id = \"int not null\" }\n";
    let world = World::new(Kind::Postgres, schema, model, &["ann"])?;
    let mut remote = world.remote("one", "ann")?;
    world.sync(&mut remote)?;
    for upload in 0..3 {
        let (first, last) = (upload * ROWS, (upload + 1) * ROWS - 1);
        let numbers = format!("WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})");
        world.edit("one", &format!("{numbers} INSERT INTO item SELECT 1 + i % 2 * 2, i FROM n"))?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.refused, report.rows_down) == (ROWS as u64, 0, 0), "{report:?}");
    }
    let first = 3 * ROWS;
    let numbers =
        format!("WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {first} + 99)");
    world
        .edit("one", &format!("{numbers} INSERT INTO item SELECT CASE WHEN i % 10 = 0 THEN 2 ELSE 1 END, i FROM n"))?;
    let report = world.sync(&mut remote)?;
    ensure!((report.changes_up, report.refused) == (100, 10), "{report:?}");
    let stored = world.central.rows("SELECT count(*)::int, max(area)::int FROM item WHERE area IN (1, 2)")?.concat();
    ensure!(stored == [(3 * ROWS / 2 + 90).to_string(), "1".to_owned()].map(Some), "{stored:?}");
    Ok(())
}
