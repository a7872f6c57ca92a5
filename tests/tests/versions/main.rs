//! Versions of a model side by side, and remotes that go from one to the next with changes pending.

mod extended;
mod pending;
mod program;
mod refused;

use anyhow::{Context as _, Result, ensure};
use headwater_model::Model;
use headwater_remote::http::Credentials;
use headwater_remote::{Choice, CreateOptions, Error, Remote, SyncOptions, Upgraded};
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "
CREATE TABLE member (login TEXT NOT NULL, area TEXT NOT NULL, PRIMARY KEY (login, area));
INSERT INTO member VALUES ('ann', 'north'), ('bo', 'north'), ('bo', 'south');
CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, name TEXT CHECK (name <> 'bad'), n BIGINT);
CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, area TEXT NOT NULL, text TEXT);
CREATE TABLE old (id TEXT NOT NULL PRIMARY KEY, text TEXT);
INSERT INTO item VALUES ('a', 'apple', 1), ('b', 'bean', 2), ('c', 'corn', 3), ('d', 'dill', 4), ('e', 'egg', 5);
INSERT INTO note VALUES ('x', 'north', 'x'), ('y', 'south', 'y');
INSERT INTO old VALUES ('o', 'o');";

const ONE: &str = r#"
name = "shop"
version = 1
[partitions.area]
columns = { area = "text" }
members = "SELECT area FROM member WHERE login = :s.user"
[tables.note]
key = ["id"]
partition = "area"
columns = { id = "text not null", area = "text not null", text = "text" }
[tables.item]
key = ["id"]
conflict = "RULE"
columns = { id = "text not null", name = "text", n = "int" }
[tables.old]
key = ["id"]
columns = { id = "text not null", text = "text" }
"#;

/// What the second version needs: columns of items, one of which partitions them, and a further table.
const CHANGES: &str = "
ALTER TABLE item ADD COLUMN area TEXT NOT NULL DEFAULT 'north';
ALTER TABLE item ADD COLUMN price BIGINT;
ALTER TABLE item ADD COLUMN grade BIGINT NOT NULL DEFAULT 7;
UPDATE item SET price = n * 10, area = CASE id WHEN 'e' THEN 'south' ELSE 'north' END;
CREATE TABLE tag (id TEXT NOT NULL PRIMARY KEY, text TEXT);
INSERT INTO tag VALUES ('t', 't');";

const TWO: &str = r#"
name = "shop"
version = 2
[partitions.area]
columns = { area = "text" }
members = "SELECT area FROM member WHERE login = :s.user"
[tables.item]
key = ["id"]
partition = "area"
conflict = "RULE"
columns = { id = "text not null", grade = "int not null", name = "text", n = "int", area = "text not null", price = "int" }
[tables.note]
key = ["id"]
partition = "area"
columns = { id = "text not null", area = "text not null", text = "text" }
[tables.tag]
key = ["id"]
columns = { id = "text not null", text = "text" }
"#;

const RULES: [&str; 3] = ["consolidated_wins", "remote_wins", "merge(remote)"];

fn one(rule: &str) -> String {
    ONE.replace("RULE", rule)
}

fn two(rule: &str) -> String {
    TWO.replace("RULE", rule)
}

fn world(kind: Kind, rule: &str) -> Result<World> {
    World::new(kind, SCHEMA, &one(rule), &["ann", "bo"])
}

fn upgrade(world: &World, remote: &mut Remote, model: &Model) -> Result<Upgraded, Error> {
    let user = remote.status()?.user;
    let token = world.token(&user).expect("a token");
    remote.upgrade(&model.public(), &mut SyncOptions::new(Credentials::Token(token)))
}

fn texts(rows: &[&[&str]]) -> Vec<Vec<Option<String>>> {
    rows.iter().map(|row| row.iter().map(|value| (*value != "-").then(|| (*value).to_owned())).collect()).collect()
}

/// Only the second version is served from now on.
fn retire_one(world: &mut World, remote: &mut Remote) -> Result<Model> {
    world.central.execute(CHANGES)?;
    world.serve_also(&two("remote_wins"))?;
    world.plan = world.beside.remove(0);
    world.start_server()?;
    remote.set_server(&world.server_url()?, "ann")?;
    Ok(world.plan.model.clone())
}

#[test]
fn remotes_of_two_versions_edit_the_same_rows() -> Result<()> {
    for (kind, rule) in KINDS.into_iter().flat_map(|kind| RULES.map(|rule| (kind, rule))) {
        let mut world = world(kind, rule)?;
        let mut first = world.remote("first", "bo")?;
        world.sync(&mut first)?;
        let before = first.status()?;
        world.central.execute(CHANGES)?;
        world.serve_also(&two(rule))?;
        first.set_server(&world.server_url()?, "bo")?;
        // What changed between the tracking of the two, and after.
        world.central.execute("UPDATE item SET n = 20 WHERE id = 'b'; DELETE FROM item WHERE id = 'd'")?;
        let report = world.sync(&mut first)?;
        assert!(!report.restarted, "tracking a further version begins no incarnation: {kind:?}");
        assert_eq!((report.rows_down, report.deletions_down), (4, 1), "{kind:?}");
        assert_eq!(first.status()?.remote_id, before.remote_id);

        let mut second = world.remote_of("second", "bo", &world.beside[0].model)?;
        let mut north = world.remote_of("north", "ann", &world.beside[0].model)?;
        for round in 0..4 {
            for remote in [&mut second, &mut north, &mut first] {
                remote.set_server(&world.server_url()?, &remote.status()?.user)?;
                world.sync(remote)?;
            }
            world.edit(
                "first",
                &format!(
                    "UPDATE item SET n = n + 100, name = 'first {round}' WHERE id IN ('a', 'b');
                     INSERT INTO item VALUES ('f{round}', 'of one', {round}); DELETE FROM item WHERE id = 's{round}'"
                ),
            )?;
            world.edit(
                "second",
                &format!(
                    "UPDATE item SET price = price + 1, name = 'second {round}' WHERE id IN ('a', 'c');
                     UPDATE item SET area = CASE area WHEN 'north' THEN 'south' ELSE 'north' END WHERE id = 'c';
                     INSERT INTO item VALUES ('s{}', 3, 'of two', 1, 'south', 1)",
                    round + 1
                ),
            )?;
            world.edit("north", "UPDATE item SET grade = grade + 1 WHERE id = 'b'")?;
            world.central.execute(&format!("UPDATE item SET name = 'centre {round}' WHERE id = 'b'"))?;
        }
        // Twice: the first sync may bring what the last made of conflicts.
        for _ in 0..2 {
            for remote in [&mut first, &mut second, &mut north] {
                world.sync(remote)?;
            }
        }
        for name in ["first", "second", "north"] {
            let report = world.diff(name)?;
            ensure!(report.is_equal(false), "{kind:?}, {rule}, {name}: {report:?}");
        }
        let mine = world.central.rows("SELECT id, area, price, grade FROM item WHERE id LIKE 'f%' ORDER BY id")?;
        let expected: Vec<Vec<&str>> = ["f0", "f1", "f2", "f3"].map(|id| vec![id, "north", "-", "7"]).to_vec();
        let expected: Vec<&[&str]> = expected.iter().map(Vec::as_slice).collect();
        assert_eq!(mine, texts(&expected), "what an old version does not know, the database's defaults fill");
        let untouched = world.central.rows("SELECT price IS NULL FROM item WHERE id IN ('a', 'b', 'c')")?;
        assert!(untouched.iter().all(|row| row[0].as_deref().is_some_and(|v| v == "0" || v == "f")), "{untouched:?}");
    }
    Ok(())
}

#[test]
fn a_file_that_has_never_synchronized_changes_its_version_too() -> Result<()> {
    for (kind, adopt) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let context = format!("{kind:?}, adopted: {adopt}");
        let mut world = world(kind, "consolidated_wins")?;
        let rows = "INSERT INTO item VALUES ('a', 'apple', 1), ('b', 'mine', 2), ('n', 'new', 9)";
        if adopt {
            let table = "CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, name TEXT, n INTEGER);";
            rusqlite::Connection::open(world.path("one"))?.execute_batch(&format!("{table} {rows}"))?;
        }
        let options = CreateOptions { adopt, ..CreateOptions::new(world.server_url()?, "ann") };
        let mut remote = Remote::create(world.path("one"), &world.plan.model.public(), &options)?;
        if !adopt {
            world.edit("one", rows)?;
        }
        let new = retire_one(&mut world, &mut remote)?;
        let done = upgrade(&world, &mut remote, &new).context(context.clone())?;
        assert_eq!((done.sync.conflicts, done.sync.refused), (1, 0), "what is equal is no conflict: {context}");
        let aside: Vec<String> = remote.set_aside(9)?.iter().map(|one| format!("{} {}", one.key, one.reason)).collect();
        assert_eq!(aside, [r#"{"id":"n"} not_null"#], "{context}");
        world.edit("one", "UPDATE item SET area = 'north', grade = 1 WHERE id = 'n'")?;
        assert_eq!(world.sync(&mut remote)?.refused, 0, "{context}");
        assert!(world.diff("one")?.is_equal(false), "{context}: {:?}", world.diff("one")?);
    }
    Ok(())
}

/// Tables that every remote held whole take their partition from a parent's row in the next version.
#[test]
fn a_partition_that_comes_from_a_parent() -> Result<()> {
    let schema = "
        CREATE TABLE member (login TEXT NOT NULL, area TEXT NOT NULL, PRIMARY KEY (login, area));
        INSERT INTO member VALUES ('ann', 'north'), ('bo', 'north'), ('bo', 'south');
        CREATE TABLE shop (id TEXT NOT NULL PRIMARY KEY, area TEXT);
        CREATE TABLE line (id TEXT NOT NULL PRIMARY KEY, shop TEXT REFERENCES shop (id), n BIGINT);
        INSERT INTO shop VALUES ('n', 'north'), ('s', 'south');
        INSERT INTO line VALUES ('n1', 'n', 1), ('n2', 'n', 2), ('n3', 'n', 3), ('s1', 's', 4)";
    let model = |version: u32, through: &str| {
        format!(
            "name = \"m\"\nversion = {version}\n[partitions.area]\ncolumns = {{ area = \"text\" }}\n\
             members = \"SELECT area FROM member WHERE login = :s.user\"\n[tables.shop]\nkey = [\"id\"]\npartition = \"area\"\n\
             columns = {{ id = \"text not null\", area = \"text\" }}\n[tables.line]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n{through}\
             references = [{{ columns = [\"shop\"], table = \"shop\" }}]\n\
             columns = {{ id = \"text not null\", shop = \"text\", n = \"int\" }}\n"
        )
    };
    let (one, two) = (model(1, ""), model(2, "partition = { through = \"shop\" }\n"));
    for kind in KINDS {
        let mut world = World::new(kind, schema, &one, &["ann", "bo"])?;
        let (mut remote, mut beside) = (world.remote("one", "ann")?, world.remote("beside", "bo")?);
        world.sync(&mut remote)?;
        world.sync(&mut beside)?;
        world.serve_also(&two)?;
        let new = world.beside[0].model.clone();
        remote.set_server(&world.server_url()?, "ann")?;
        beside.set_server(&world.server_url()?, "bo")?;
        let done = upgrade(&world, &mut remote, &new).with_context(|| format!("{kind:?}"))?;
        assert!(done.whole.contains(&"line".to_owned()), "{kind:?}: {done:?}");
        // Each sees the other's, and what moves with its parent.
        world.edit("one", "UPDATE line SET n = 10 WHERE id = 'n1'; INSERT INTO line VALUES ('n4', 'n', 4)")?;
        world.edit("beside", "UPDATE line SET n = 20 WHERE id = 'n2'; UPDATE line SET shop = 's' WHERE id = 'n3'")?;
        for _ in 0..2 {
            world.sync(&mut remote)?;
            world.sync(&mut beside)?;
        }
        let ids = |name: &str| world.rows(name, "SELECT id, n FROM line ORDER BY id");
        assert_eq!(ids("one")?, texts(&[&["n1", "10"], &["n2", "20"], &["n4", "4"]]), "{kind:?}");
        world.central.execute("UPDATE shop SET area = 'north' WHERE id = 's'")?;
        world.sync(&mut remote)?;
        world.sync(&mut beside)?;
        assert_eq!(ids("one")?.len(), 5, "{kind:?}");
        assert!(world.diff("one")?.is_equal(false) && world.diff("beside")?.is_equal(false), "{kind:?}");

        // The other follows when the old version is gone, with changes pending inside and outside of its part.
        world.central.execute("UPDATE shop SET area = 'east' WHERE id = 's'")?;
        world.edit("beside", "UPDATE line SET n = 30 WHERE id IN ('n1', 's1'); DELETE FROM line WHERE id = 'n2'")?;
        world.plan = world.beside.remove(0);
        world.start_server()?;
        beside.set_server(&world.server_url()?, "bo")?;
        remote.set_server(&world.server_url()?, "ann")?;
        let done = upgrade(&world, &mut beside, &new).with_context(|| format!("{kind:?}"))?;
        assert_eq!((done.sync.changes_up, done.sync.displaced), (2, 1), "{kind:?}: {done:?}");
        let aside = beside.set_aside(9)?;
        assert_eq!((aside.len(), aside[0].reason.as_str()), (1, "foreign_key"), "{kind:?}: {aside:?}");
        beside.drop_set_aside(&Choice::All)?;
        world.sync(&mut beside)?;
        world.sync(&mut remote)?;
        assert!(world.diff("one")?.is_equal(false) && world.diff("beside")?.is_equal(false), "{kind:?}");
        let there = world.central.rows("SELECT id, n FROM line ORDER BY id")?;
        assert_eq!(there, texts(&[&["n1", "30"], &["n3", "3"], &["n4", "4"], &["s1", "4"]]), "{kind:?}");
    }
    Ok(())
}

/// The parents come whole under the new version, what is below them does not; meanwhile the remote leaves a partition.
#[test]
fn what_is_below_a_table_made_anew_goes_with_a_partition_that_is_left() -> Result<()> {
    let schema = "
        CREATE TABLE member (login TEXT NOT NULL, area TEXT NOT NULL, PRIMARY KEY (login, area));
        INSERT INTO member VALUES ('bo', 'north'), ('bo', 'south');
        CREATE TABLE shop (id TEXT NOT NULL PRIMARY KEY, area TEXT, name TEXT);
        CREATE TABLE line (id TEXT NOT NULL PRIMARY KEY, shop TEXT REFERENCES shop (id), n BIGINT);
        INSERT INTO shop VALUES ('n', 'north', 'N'), ('s', 'south', 'S');
        INSERT INTO line VALUES ('n1', 'n', 1), ('n2', 'n', 2), ('s1', 's', 3), ('s2', 's', 4)";
    let model = |version: u32, name: &str| {
        format!(
            "name = \"m\"\nversion = {version}\n[partitions.area]\ncolumns = {{ area = \"text\" }}\n\
             members = \"SELECT area FROM member WHERE login = :s.user\"\n[tables.shop]\nkey = [\"id\"]\npartition = \"area\"\n\
             columns = {{ id = \"text not null\"{name}, area = \"text\" }}\n[tables.line]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
             partition = {{ through = \"shop\" }}\nreferences = [{{ columns = [\"shop\"], table = \"shop\" }}]\n\
             columns = {{ id = \"text not null\", shop = \"text\", n = \"int\" }}\n"
        )
    };
    for kind in KINDS {
        let mut world = World::new(kind, schema, &model(1, ""), &["bo"])?;
        let mut remote = world.remote("one", "bo")?;
        world.sync(&mut remote)?;
        world.serve_also(&model(2, ", name = \"text\""))?;
        world.plan = world.beside.remove(0);
        world.start_server()?;
        remote.set_server(&world.server_url()?, "bo")?;
        world.edit("one", "UPDATE line SET n = 40 WHERE id = 's2'; UPDATE line SET n = 20 WHERE id = 'n2'")?;
        world.central.execute("DELETE FROM member WHERE area = 'south'")?;
        let new = world.plan.model.clone();
        let done = upgrade(&world, &mut remote, &new).with_context(|| format!("{kind:?}"))?;
        let held = |what: &str| world.rows("one", &format!("SELECT count(*) FROM {what}"));
        assert_eq!(
            (done.whole, held("hw_held")?),
            (vec!["shop".to_owned(), "line".to_owned()], texts(&[&["0"]])),
            "{kind:?}"
        );
        let aside = remote.set_aside(9)?;
        assert_eq!((aside.len(), aside[0].reason.as_str()), (1, "foreign_key"), "{kind:?}: {aside:?}");
        // What is deleted there before it comes back must not come back with its parent.
        world.central.execute("DELETE FROM line WHERE id = 's1'")?;
        world.sync(&mut remote)?;
        world.central.execute("UPDATE shop SET area = 'north' WHERE id = 's'")?;
        world.sync(&mut remote)?;
        assert_eq!(held("line WHERE shop = 's'")?, texts(&[&["1"]]), "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// What was seen of a partition under a value of the old type is nothing that the new version could name.
#[test]
fn a_partition_of_another_type_that_is_a_parents() -> Result<()> {
    let schema = "
        CREATE TABLE member (login TEXT NOT NULL, area BIGINT NOT NULL, PRIMARY KEY (login, area));
        INSERT INTO member VALUES ('bo', 1), ('bo', 2);
        CREATE TABLE shop (id TEXT NOT NULL PRIMARY KEY, area BIGINT);
        CREATE TABLE line (id TEXT NOT NULL PRIMARY KEY, shop TEXT REFERENCES shop (id), n BIGINT);
        INSERT INTO shop VALUES ('n', 1), ('s', 2);
        INSERT INTO line VALUES ('n1', 'n', 1), ('n2', 'n', 2), ('s1', 's', 3), ('s2', 's', 4)";
    let model = |version: u32, kind: &str| {
        format!(
            "name = \"m\"\nversion = {version}\n[partitions.area]\ncolumns = {{ area = \"{kind}\" }}\n\
             members = \"SELECT area FROM member WHERE login = :s.user\"\n[tables.shop]\nkey = [\"id\"]\npartition = \"area\"\n\
             columns = {{ id = \"text not null\", area = \"{kind}\" }}\n[tables.line]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
             partition = {{ through = \"shop\" }}\nreferences = [{{ columns = [\"shop\"], table = \"shop\" }}]\n\
             columns = {{ id = \"text not null\", shop = \"text\", n = \"int\" }}\n"
        )
    };
    let mut world = World::new(Kind::Sqlite, schema, &model(1, "int"), &["bo"])?;
    let mut remote = world.remote("one", "bo")?;
    world.sync(&mut remote)?;
    world.serve_also(&model(2, "decimal"))?;
    world.plan = world.beside.remove(0);
    world.start_server()?;
    remote.set_server(&world.server_url()?, "bo")?;
    world.edit("one", "UPDATE line SET n = 40 WHERE id = 's2'")?;
    world.central.execute("DELETE FROM line WHERE id = 'n1'; UPDATE line SET n = 20 WHERE id = 'n2'")?;
    let new = world.plan.model.clone();
    upgrade(&world, &mut remote, &new)?;
    assert!(world.diff("one")?.is_equal(false), "{:?}", world.diff("one")?);
    world.central.execute("DELETE FROM member WHERE area = 2")?;
    world.sync(&mut remote)?;
    assert!(world.diff("one")?.is_equal(false), "{:?}", world.diff("one")?);
    assert_eq!(world.rows("one", "SELECT id, n FROM line")?, texts(&[&["n2", "20"]]));
    Ok(())
}
