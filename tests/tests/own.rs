//! What an application makes of its own at a remote: triggers, columns, and tables of the model that are gone.

use anyhow::{Context, Result, bail, ensure};
use headwater_remote::Remote;
use headwater_tests::{Central, KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE gen (id BIGINT NOT NULL PRIMARY KEY, a BIGINT, upd TEXT)";
const MODEL: &str = "name = \"own\"\nversion = 1\n[tables.gen]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", a = \"int\", upd = \"text\" }\n";

/// Says who stored the row last.
fn stamp(world: &World, name: &str, when: &str) -> Result<()> {
    world.edit(
        name,
        &format!("CREATE TRIGGER app_upd AFTER UPDATE ON gen {when} BEGIN UPDATE gen SET upd = '{name}' WHERE id = NEW.id; END"),
    )
}

fn equal(world: &World, name: &str) -> Result<()> {
    let report = world.diff(name)?;
    ensure!(report.is_equal(false), "{}", serde_json::to_string(&report)?);
    Ok(())
}

#[test]
fn what_triggers_write_in_downloads_goes_up() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
        world.central.execute("INSERT INTO gen VALUES (1, 1, 'x'), (2, 2, 'x')")?;
        let (mut one, mut two) = (world.remote("one", "ann")?, world.remote("two", "ann")?);
        world.sync(&mut one)?;
        world.sync(&mut two)?;
        stamp(&world, "one", "")?;
        world.central.execute("UPDATE gen SET a = 88 WHERE id = 2")?;
        world.sync(&mut one)?;
        ensure!(one.status()?.pending == 1, "{kind:?}: it is no silent difference");
        let report = world.sync(&mut one)?;
        ensure!((report.changes_up, report.conflicts, report.rows_down) == (1, 0, 0), "{kind:?}: {report:?}");
        equal(&world, "one").with_context(|| format!("{kind:?}"))?;
        let quiet = world.sync(&mut one)?;
        ensure!((quiet.changes_up, quiet.rows_down) == (0, 0), "{kind:?}: one upload of one download: {quiet:?}");
        two_of_them(&world, &mut one, &mut two).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// Two remotes whose triggers write different things send the row to each other, until the triggers sit downloads out.
fn two_of_them(world: &World, one: &mut Remote, two: &mut Remote) -> Result<()> {
    world.sync(two)?;
    stamp(world, "two", "")?;
    world.central.execute("UPDATE gen SET a = 99 WHERE id = 2")?;
    world.sync(one)?;
    world.sync(two)?;
    let mut changes_up = (0, 0);
    for _ in 0..9 {
        changes_up.0 += world.sync(one)?.changes_up;
        changes_up.1 += world.sync(two)?.changes_up;
    }
    ensure!(changes_up.0 >= 3 && changes_up.1 >= 3, "{changes_up:?}");
    for name in ["one", "two"] {
        world.edit(name, "DROP TRIGGER app_upd")?;
        stamp(world, name, "WHEN NOT EXISTS (SELECT 1 FROM hw_applying)")?;
    }
    for _ in 0..2 {
        world.sync(one)?;
        world.sync(two)?;
    }
    let (first, second) = (world.sync(one)?, world.sync(two)?);
    ensure!((first.changes_up, second.changes_up) == (0, 0), "{first:?} {second:?}");
    world.edit("one", "UPDATE gen SET a = 100 WHERE id = 1")?;
    world.sync(one)?;
    world.sync(two)?;
    ensure!(
        world.rows("two", "SELECT upd FROM gen WHERE id = 1")? == [[Some("one".to_owned())]],
        "a local write is stamped"
    );
    equal(world, "one")?;
    equal(world, "two")
}

/// A trigger that rolls back our transaction ends the sync and names its table; when it is mended everything comes.
#[test]
fn a_trigger_that_ends_the_transaction_loses_nothing() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
        world.central.execute("INSERT INTO gen VALUES (1, 1, 'x'), (2, 2, 'x'), (3, 3, 'x')")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        let rollback = "BEFORE UPDATE ON gen WHEN NEW.a = 66 BEGIN SELECT RAISE(ROLLBACK, 'rolled');";
        world.edit("one", &format!("CREATE TRIGGER rbk {rollback} END; UPDATE gen SET a = 30 WHERE id = 3"))?;
        world.central.execute(
            "UPDATE gen SET a = 10 WHERE id = 1; UPDATE gen SET a = 66 WHERE id = 2; INSERT INTO gen VALUES (4, 4, 'x')",
        )?;
        for _ in 0..2 {
            let error = world.sync(&mut remote).expect_err("the transaction is gone");
            ensure!(error.to_string().contains("RAISE(ABORT)"), "{kind:?}: {error}");
            let rows = world.rows("one", "SELECT group_concat(id || ' ' || a) FROM gen ORDER BY id")?.concat();
            ensure!(rows == [Some("1 1,2 2,3 30".to_owned())], "{kind:?}: {rows:?}");
        }
        world.edit(
            "one",
            &format!("DROP TRIGGER rbk; CREATE TRIGGER rbk {} END", rollback.replace("ROLLBACK", "ABORT")),
        )?;
        let report = world.sync(&mut remote)?;
        ensure!(report.rows_down >= 3, "{kind:?}: {report:?}");
        world.edit("one", "DROP TRIGGER rbk")?;
        world.sync(&mut remote)?;
        equal(&world, "one").with_context(|| format!("{kind:?}"))?;
        let there = world.rows("one", "SELECT group_concat(id || ' ' || a) FROM gen ORDER BY id")?.concat();
        ensure!(there == [Some("1 10,2 66,3 30,4 4".to_owned())], "{kind:?}: {there:?}");
    }
    Ok(())
}

/// Whatever makes everything come again, columns of the application's own keep their values.
#[test]
fn own_columns_outlive_a_fresh_start() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
        world.central.execute("INSERT INTO gen VALUES (1, 1, 'x'), (2, 2, 'x'), (3, 3, 'x')")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit("one", "ALTER TABLE gen ADD COLUMN mine TEXT; UPDATE gen SET mine = 'local' || id")?;
        ensure!(world.sync(&mut remote)?.changes_up == 0, "{kind:?}: it is nobody else's");
        world.central.execute(
            "UPDATE gen SET a = 20 WHERE id = 2; DELETE FROM gen WHERE id = 3; INSERT INTO gen VALUES (4, 4, 'x')",
        )?;
        remote.reset()?;
        world.sync(&mut remote)?;
        let rows =
            world.rows("one", "SELECT id || ' ' || a || ' ' || coalesce(mine, '-') FROM gen ORDER BY id")?.concat();
        ensure!(rows == ["1 1 local1", "2 20 local2", "4 4 -"].map(|row| Some(row.to_owned())), "{kind:?}: {rows:?}");
        equal(&world, "one").with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// A table that the application drops comes again; one that it renames is named.
#[test]
fn a_dropped_table_comes_again() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
        world.central.execute("INSERT INTO gen VALUES (1, 1, 'x'), (2, 2, 'x')")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit("one", "UPDATE gen SET a = 5 WHERE id = 1; DROP TABLE gen")?;
        // An open one notices at its next sync, any other command when it opens the file.
        if kind == KINDS[0] {
            drop(remote);
            remote = Remote::open(world.path("one"))?;
            ensure!((remote.status()?.pending, remote.status()?.tables[0].rows) == (0, 0), "{kind:?}");
        }
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.rows_down) == (0, 2), "{kind:?}: {report:?}");
        equal(&world, "one").with_context(|| format!("{kind:?}"))?;

        world.edit("one", "UPDATE gen SET a = 6 WHERE id = 1; ALTER TABLE gen RENAME TO other")?;
        let error = world.sync(&mut remote).expect_err("the table is gone").to_string();
        ensure!(error.contains(r#"rename it back (ALTER TABLE "other" RENAME TO "gen")"#), "{kind:?}: {error}");
        world.edit("one", "ALTER TABLE other RENAME TO gen")?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.untracked) == (1, 0), "{kind:?}: {report:?}");
        equal(&world, "one").with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// A SQLite database, too, can refuse the writes that fire no trigger, by the index that docs/server.md shows.
#[test]
fn incremental_writes_can_be_refused_at_a_sqlite_database() -> Result<()> {
    let schema = "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, data BLOB); INSERT INTO item VALUES (1, x'0102')";
    let model = "name = \"blobs\"\nversion = 1\n[tables.item]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", data = \"bytes\" }";
    let world = World::new(Kind::Sqlite, schema, model, &["ann"])?;
    let mut remote = world.remote("ann", "ann")?;
    world.sync(&mut remote)?;
    let Central::Sqlite(file) = &world.central else { bail!("a file") };
    let application = rusqlite::Connection::open(file)?;
    let write = || application.blob_open("main", "item", "data", 1, false).map(drop);
    write().context("nothing refuses it")?;
    application.execute_batch("CREATE INDEX whole_item ON item (id + 1) WHERE id IS NULL")?;
    let refused = write().err().context("it is refused")?.to_string();
    ensure!(refused.contains("cannot open indexed column for writing"), "{refused}");
    application.execute_batch("UPDATE item SET data = x'0304'")?;
    ensure!(world.sync(&mut remote)?.rows_down == 1, "the row alone");
    ensure!(world.diff("ann")?.is_equal(false), "it arrives");
    Ok(())
}
