//! Versions that a file cannot go to, and columns of another type.

use anyhow::{Context as _, Result};
use headwater_remote::{Choice, Remote};
use headwater_tests::{KINDS, Kind, World, read_model};

use super::{one, retire_one, texts, upgrade, world};

#[test]
fn what_keeps_a_file_from_a_version_is_named_and_changes_nothing() -> Result<()> {
    let tables = "SELECT sql FROM sqlite_schema ORDER BY name";
    for (edit, why) in [
        ("INSERT INTO old VALUES ('p', 'mine')", "table \"old\" is not in the new version, and 1 of its changes wait"),
        ("ALTER TABLE item ADD COLUMN colour TEXT", "a column \"colour\" of the application's own"),
        ("CREATE TABLE tag (x)", "the file has a table \"tag\" of the application's own"),
        (
            "CREATE TABLE child (old TEXT REFERENCES old (id)); -- child",
            "\"child\", a table of the application's own, refers to it",
        ),
        ("CREATE VIEW v AS SELECT text FROM old", "\"v\", or a trigger of the application's on it, does not fit"),
        (
            "CREATE TABLE log (x); CREATE TRIGGER t AFTER INSERT ON log BEGIN INSERT INTO old VALUES (NEW.x, ''); END",
            "\"log\", or a trigger of the application's on it, does not fit",
        ),
    ] {
        let mut world = world(Kind::Sqlite, "remote_wins")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit("one", edit)?;
        world.edit("one", "UPDATE item SET name = 'mine' WHERE id = 'a'")?;
        let new = retire_one(&mut world, &mut remote)?;
        let before = world.rows("one", tables)?;
        let error = upgrade(&world, &mut remote, &new).expect_err(edit);
        assert_eq!(error.code(), "configuration", "{edit}: {error}");
        assert!(error.to_string().contains(why), "{edit}: {error}");
        assert_eq!(world.rows("one", tables)?, before, "{edit}");
        let status = Remote::open(world.path("one"))?.status()?;
        assert_eq!((status.model.1, status.pending >= 1), (1, true), "{edit}");
        // Mended, it goes.
        world.edit(
            "one",
            match edit.split(' ').next_back() {
                Some("TEXT") => "ALTER TABLE item DROP COLUMN colour",
                Some("(x)") => "DROP TABLE tag",
                Some("child") => "DROP TABLE child",
                Some("old") => "DROP VIEW v",
                Some("END") => "DROP TABLE log",
                _ => "DELETE FROM old WHERE id = 'p'",
            },
        )?;
        upgrade(&world, &mut remote, &new).context(edit)?;
        assert!(world.diff("one")?.is_equal(false), "{edit}");
    }
    Ok(())
}

#[test]
fn only_a_newer_version_of_the_same_model_will_do() -> Result<()> {
    let world = world(Kind::Sqlite, "off")?;
    let mut remote = world.remote("one", "ann")?;
    let newer = one("off").replace("version = 1", "version = 2");
    let other_key = newer.replace(
        "key = [\"id\"]\ncolumns = { id = \"text not null\", text = \"text\" }",
        "key = [\"text\"]\ncolumns = { id = \"text not null\", text = \"text not null\" }",
    );
    for (model, why) in [
        (newer.replace("name = \"shop\"", "name = \"store\""), "expected a version of that, not of \"store\""),
        (one("off"), "expected a newer one than that, not 1"),
        (other_key, "the key of table \"old\" is (id text), and in version 2 (text text): a table keeps its key"),
    ] {
        let error = upgrade(&world, &mut remote, &read_model(&model)?).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
    assert_eq!(remote.status()?.model.1, 1);
    Ok(())
}

#[test]
fn a_column_of_another_type() -> Result<()> {
    for kind in KINDS {
        let schema = "CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, n BIGINT, t TEXT); \
                      INSERT INTO item VALUES ('a', 1, '1'), ('b', 2, '2'), ('c', 3, '3'), ('d', 4, '4')";
        let model = |version: u32, n: &str, t: &str| {
            format!(
                "name = \"types\"\nversion = {version}\n[tables.item]\nkey = [\"id\"]\nconflict = \"consolidated_wins\"\n\
                 columns = {{ id = \"text not null\", n = \"{n}\", t = \"{t}\" }}\n"
            )
        };
        let mut world = World::new(kind, schema, &model(1, "int", "text"), &["ann"])?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "UPDATE item SET n = 10 WHERE id = 'a'; UPDATE item SET t = '20' WHERE id = 'b'; UPDATE item SET t = 'many' WHERE id = 'c';
             INSERT INTO item VALUES ('e', 5, '5')",
        )?;
        world.stop_server();
        world.central.execute(match kind {
            Kind::Postgres => "ALTER TABLE item ALTER n TYPE text, ALTER t TYPE bigint USING t::bigint; UPDATE item SET n = '04', t = 44 WHERE id = 'd'",
            Kind::Sqlite => {
                "CREATE TABLE next (id TEXT NOT NULL PRIMARY KEY, n TEXT, t BIGINT); INSERT INTO next SELECT * FROM item; \
                 DROP TABLE item; ALTER TABLE next RENAME TO item; UPDATE item SET n = '04', t = 44 WHERE id = 'd'"
            }
        })?;
        world.serve_also(&model(2, "text", "int"))?;
        world.plan = world.beside.remove(0);
        world.start_server()?;
        remote.set_server(&world.server_url()?, "ann")?;
        let new = world.plan.model.clone();
        let done = upgrade(&world, &mut remote, &new).with_context(|| format!("{kind:?}"))?;
        assert_eq!(
            (done.sync.changes_up, done.sync.conflicts, done.sync.refused),
            (4, 0, u64::from(kind == Kind::Postgres)),
            "{kind:?}"
        );
        let there = world.central.rows("SELECT id, n, t FROM item ORDER BY id")?;
        let c: &[&str] = if kind == Kind::Postgres { &["c", "3", "3"] } else { &["c", "3", "many"] };
        assert_eq!(
            there,
            texts(&[&["a", "10", "1"], &["b", "2", "20"], c, &["d", "04", "44"], &["e", "5", "5"]]),
            "{kind:?}"
        );
        let aside = remote.set_aside(9)?;
        assert!(aside.iter().all(|one| one.reason == "data" && one.is_in_place), "{aside:?}");
        remote.drop_set_aside(&Choice::All)?;
        world.sync(&mut remote)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
    }
    Ok(())
}
