//! Versions of a model side by side, and remotes that go from one to the next with changes pending.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use headwater_model::Model;
use headwater_remote::http::Credentials;
use headwater_remote::{Choice, CreateOptions, Error, PendingChoice, Phase, Progress, Remote, SyncOptions, Upgraded};
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{Child, FaultProxy, Plan, Random, free_port, headwater_binary};
use headwater_tests::{KINDS, Kind, World, read_model};

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

/// Changes of every kind, at a remote of the first version.
fn pend(world: &World) -> Result<()> {
    world.edit(
        "one",
        "INSERT INTO item VALUES ('i', 'mine', 9); UPDATE item SET name = 'mine' WHERE id IN ('a', 'b');
         DELETE FROM item WHERE id = 'c'; UPDATE note SET text = 'mine' WHERE id = 'x'",
    )?;
    world
        .central
        .execute("UPDATE item SET n = 11 WHERE id = 'a'; UPDATE item SET name = 'theirs', n = 12 WHERE id = 'b'")
}

#[test]
fn pending_changes_go_along() -> Result<()> {
    for (kind, rule) in KINDS.into_iter().flat_map(|kind| RULES.map(|rule| (kind, rule))) {
        for both in [true, false] {
            let context = format!("{kind:?}, {rule}, both versions are served: {both}");
            let mut world = world(kind, rule)?;
            let mut remote = world.remote("one", "ann")?;
            world.sync(&mut remote)?;
            world.edit("one", "UPDATE item SET name = 'bad' WHERE id = 'd'")?;
            assert_eq!(world.sync(&mut remote)?.refused, 1);
            let own = "CREATE INDEX by_name ON item (name); CREATE TABLE heard (n); CREATE VIEW names AS SELECT name FROM item; \
                       CREATE TRIGGER hear AFTER UPDATE ON item BEGIN INSERT INTO heard VALUES (NEW.n); END";
            world.edit("one", own)?;
            world.central.execute(CHANGES)?;
            world.serve_also(&two(rule))?;
            pend(&world)?;
            let new = world.beside[0].model.clone();
            if !both {
                world.plan = world.beside.remove(0);
                world.start_server()?;
            }
            remote.set_server(&world.server_url()?, "ann")?;
            let done = upgrade(&world, &mut remote, &new).context(context.clone())?;
            assert_eq!((done.from, done.to, done.before.is_some()), (1, 2, both), "{context}");
            assert_eq!((done.whole, done.gone), (vec!["item".to_owned()], vec!["old".to_owned()]), "{context}");
            assert_eq!(remote.status()?.model, ("shop".to_owned(), 2));
            let came = 4 + 1 + done.sync.conflicts;
            assert_eq!(
                done.sync.rows_down, came,
                "items and tags; what does not differ does not come again: {context}"
            );

            let found = world.rows("one", "SELECT id, name, n, area, price, grade FROM item ORDER BY id")?;
            let b = if rule == "consolidated_wins" { ["b", "theirs", "12"] } else { ["b", "mine", "12"] };
            let b = if rule == "remote_wins" { ["b", "mine", "2"] } else { b };
            let a = if rule == "merge(remote)" { ["a", "mine", "11"] } else { ["a", "mine", "1"] };
            let a = if rule == "consolidated_wins" { ["a", "apple", "11"] } else { a };
            let mut expected = vec![
                [&a[..], &["north", "10", "7"]].concat(),
                [&b[..], &["north", "20", "7"]].concat(),
                vec!["d", "bad", "4", "north", "40", "7"],
            ];
            // Made under the old version: where that is served it got the database's values, else it waits for one.
            expected.push(if both {
                vec!["i", "mine", "9", "north", "-", "7"]
            } else {
                vec!["i", "mine", "9", "", "-", "0"]
            });
            let expected: Vec<&[&str]> = expected.iter().map(Vec::as_slice).collect();
            assert_eq!(found, texts(&expected), "{context}");
            let aside: Vec<String> = remote
                .set_aside(9)?
                .iter()
                .map(|one| format!("{} {} {}", one.key, one.reason, one.is_in_place))
                .collect();
            let waits = r#"{"id":"i"} not_null true"#;
            let bad = r#"{"id":"d"} check true"#;
            assert_eq!(aside, if both { vec![bad] } else { vec![waits, bad] }, "{context}");

            // The application gives what is missing, and what was refused is mended.
            world.edit("one", "UPDATE item SET area = 'north', grade = 5 WHERE id = 'i'; UPDATE item SET name = 'good' WHERE id = 'd'")?;
            let report = world.sync(&mut remote)?;
            assert_eq!((report.conflicts, report.refused), (0, 0), "{context}");
            assert!(world.diff("one")?.is_equal(false), "{context}: {:?}", world.diff("one")?);
            assert_eq!(remote.status()?.set_aside, 0);
            let there = world.central.rows("SELECT id, name, price FROM item WHERE id IN ('c', 'd') ORDER BY id")?;
            assert_eq!(
                there,
                texts(&[&["d", "good", "40"]]),
                "a column that was not known is not written to: {context}"
            );
            let own = "SELECT count(*) FROM sqlite_schema WHERE name IN ('by_name', 'hear', 'names')";
            assert_eq!(world.rows("one", own)?, texts(&[&["3"]]), "what the application made goes on");
            assert!(world.rows("one", "SELECT * FROM heard WHERE n = 9")?.len() == 1, "and works");
            assert_eq!(
                world.rows("one", "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%old'")?,
                texts(&[&["0"]])
            );
        }
    }
    Ok(())
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
fn an_upload_whose_answer_was_lost_is_settled_without_its_version() -> Result<()> {
    for (kind, is_applied) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let context = format!("{kind:?}, applied: {is_applied}");
        let mut world = world(kind, "remote_wins")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "INSERT INTO item VALUES ('i', 'mine', 9), ('j', 'mine', 9); UPDATE item SET n = n + 100; DELETE FROM item WHERE id = 'c';
             UPDATE item SET name = 'bad' WHERE id = 'd'; UPDATE note SET text = 'mine' WHERE id = 'x'; DELETE FROM old",
        )?;
        let proxy = FaultProxy::start(world.address()?)?;
        let plan = if is_applied {
            Plan::clean().black_hole(Direction::Down, 1)
        } else {
            Plan::clean().cut(Direction::Up, 300, Cut::Reset)
        };
        proxy.next([plan]);
        remote.set_server(&format!("http://{}", proxy.address()), "ann")?;
        let mut options = SyncOptions::new(Credentials::Token(world.token("ann")?));
        (options.config.attempts_max, options.config.idle_max) = (1, Duration::from_secs(2));
        ensure!(remote.sync(&mut options).is_err(), "the answer is lost");
        assert!(remote.status()?.is_frozen);
        let has_it = || world.central.rows("SELECT 1 FROM item WHERE id = 'i'").map(|rows| !rows.is_empty());
        let until = Instant::now() + Duration::from_secs(20);
        while is_applied && !has_it()? {
            ensure!(Instant::now() < until, "the upload is not applied");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(has_it()?, is_applied);
        let on_its_way = remote.pending(99)?;
        ensure!(on_its_way.len() == 9 && on_its_way.iter().all(|it| it.is_on_its_way), "{context}: {on_its_way:?}");
        assert_eq!(remote.pending(4)?, on_its_way[..4]);
        let error =
            remote.drop_pending(&PendingChoice::All).expect_err("nobody knows whether it has arrived").to_string();
        assert!(
            error.contains("sync first") && error.contains("version 1") && error.contains("remote upgrade"),
            "{error}"
        );
        // Changed again since, and one of those that were inserted deleted by others.
        world.edit("one", "UPDATE item SET n = n + 1000 WHERE id = 'a'")?;
        world.central.execute("DELETE FROM item WHERE id = 'j'")?;
        let new = retire_one(&mut world, &mut remote)?;
        let error = upgrade(&world, &mut remote, &new).expect_err("a change of a table that goes");
        assert!(error.to_string().contains("\"old\" is not in the new version, and 1 of its changes wait"), "{error}");
        if is_applied {
            assert_eq!(remote.drop_set_aside(&Choice::Table("old".to_owned()))?, 1);
        } else {
            world.edit("one", "INSERT INTO old VALUES ('o', 'o')")?;
        }
        let done = upgrade(&world, &mut remote, &new).context(context.clone())?;
        assert!(done.before.is_none() && done.sync.conflicts == 0, "{context}: {:?}", done.sync);
        let there = world.central.rows("SELECT id, n, price FROM item WHERE area = 'north' ORDER BY id")?;
        let mut expected: Vec<&[&str]> = vec![&["a", "1101", "10"], &["b", "102", "20"], &["d", "4", "40"]];
        if is_applied {
            // The update of all rows took those of the first download, one of which was moved south since.
            expected.push(&["i", "109", "90"]);
        }
        let there: Vec<Vec<Option<String>>> = there;
        let expected = texts(&expected);
        let ids = |rows: &[Vec<Option<String>>]| rows.iter().map(|row| row[..2].to_vec()).collect::<Vec<_>>();
        assert_eq!(ids(&there), ids(&expected), "{context}");
        let aside: Vec<String> = remote.set_aside(9)?.iter().map(|one| format!("{} {}", one.key, one.reason)).collect();
        let id = |id: &str, why: &str| format!("{{\"id\":\"{id}\"}} {why}");
        if is_applied {
            assert_eq!(aside, [id("j", "unanswered"), id("e", "unanswered"), id("d", "unanswered")], "{context}");
            remote.drop_set_aside(&Choice::All)?;
        } else {
            assert_eq!(
                aside,
                [id("d", "check"), id("j", "not_null"), id("i", "not_null"), id("e", "not_null")],
                "{context}"
            );
            remote.drop_set_aside(&Choice::All)?;
        }
        world.sync(&mut remote)?;
        assert!(world.diff("one")?.is_equal(false), "{context}: {:?}", world.diff("one")?);
    }
    Ok(())
}

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

/// The program, its configuration, and a server of it.
struct Program {
    world: World,
    port: u16,
    server: Option<Child>,
}

impl Program {
    fn new(kind: Kind) -> Result<Program> {
        let world = World::unserved(kind, SCHEMA, &one("remote_wins"), &["ann", "bo"])?;
        let mut program = Program { world, port: free_port()?, server: None };
        program.configure(&[("shop-1.toml", one("remote_wins"))])?;
        program.serve()?;
        Ok(program)
    }

    fn configure(&self, models: &[(&str, String)]) -> Result<()> {
        let folder = self.world.folder.path();
        models.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text))?;
        let names: Vec<&str> = models.iter().map(|(name, _)| *name).collect();
        let text = format!("models = {names:?}\n[database]\nurl = {:?}\n", self.world.central.url());
        Ok(std::fs::write(folder.join("headwater.toml"), text)?)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(headwater_binary()?);
        command.current_dir(self.world.folder.path()).args(arguments);
        command.env("HEADWATER_TOKEN", self.world.token("bo")?);
        Ok(command)
    }

    /// Runs a command; its exit code and all that it says.
    fn run(&self, arguments: &[&str]) -> Result<(Option<i32>, String)> {
        let done = self.command(arguments)?.output()?;
        Ok((done.status.code(), String::from_utf8([done.stdout, done.stderr].concat())?))
    }

    fn ok(&self, arguments: &[&str]) -> Result<String> {
        let (code, said) = self.run(arguments)?;
        ensure!(code == Some(0), "{arguments:?}: {code:?}: {said}");
        Ok(said)
    }

    fn serve(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            server.terminate()?;
            server.wait(Duration::from_mins(1))?;
        }
        let listen = format!("127.0.0.1:{}", self.port);
        let mut server = Child::spawn("serve", &mut self.command(&["serve", "--listen", &listen])?)?;
        server.wait_for_line("listening", Duration::from_mins(1))?;
        self.server = Some(server);
        Ok(())
    }

    fn create(&self, name: &str, options: &[&str]) -> Result<String> {
        let url = format!("http://127.0.0.1:{}", self.port);
        self.ok(&[&["remote", "create", name, "--server", &url, "--user", "bo"], options].concat())
    }
}

#[test]
fn the_program_from_one_version_to_the_next() -> Result<()> {
    for kind in KINDS {
        let mut program = Program::new(kind)?;
        program.create("one.db", &[])?;
        program.ok(&["remote", "sync", "one.db"])?;
        program.world.central.execute(CHANGES)?;
        let models = [("shop-1.toml", one("remote_wins")), ("shop-2.toml", two("remote_wins"))];
        program.configure(&models)?;
        let (code, said) = program.run(&["check"])?;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("shop version 2: item: changes of the table are not tracked"), "{said}");
        assert!(!said.contains("shop version 1: item: changes"), "{said}");
        let shown = program.ok(&["track", "--dry-run"])?;
        assert!(shown.contains("side_item@area") && !shown.contains("side_note"), "only what is not there: {shown}");
        program.ok(&["track"])?;
        assert!(program.ok(&["track"])?.contains("tracked already"));
        program.ok(&["check"])?;
        program.serve()?;
        if kind == Kind::Postgres {
            program.world.central.execute("ALTER TABLE item ALTER grade DROP DEFAULT")?;
            let said = program.ok(&["check"])?;
            let why = "shop version 1: item.grade: the column may not be NULL, has no default and is not in the model";
            assert!(said.contains(why) && !said.contains("version 2: item.grade"), "{said}");
            program.world.central.execute("ALTER TABLE item ALTER grade SET DEFAULT 7")?;
        }

        for (arguments, why) in [
            (&["remote", "upgrade", "one.db", "--to", "9"][..], "no model \"shop\" version 9"),
            (&["remote", "upgrade", "none.db"], "none.db is no remote"),
        ] {
            let (code, said) = program.run(arguments)?;
            assert!(code != Some(0) && said.contains(why), "{arguments:?}: {code:?}: {said}");
        }
        program.world.edit("one", "UPDATE item SET n = n + 1 WHERE id = 'a'")?;
        let said = program.ok(&["remote", "upgrade", "one.db"])?;
        assert!(said.contains("one.db goes on under version 2 of shop; it was 1"), "{said}");
        let (before, after) = said.split_once("The sync under version 2:").unwrap_or_default();
        let syncs = before.contains("under version 1:\nup    1 changes") && after.contains("up    0 changes");
        assert!(syncs, "both are told: {said}");
        assert!(program.ok(&["remote", "upgrade", "one.db"])?.contains("is at version 2 of shop already"));
        let store = one("off").replace("name = \"shop\"", "name = \"store\"");
        program.configure(&[&models[..], &[("store.toml", store)]].concat())?;
        program.ok(&["track"])?;
        program.serve()?;
        let error = program.create("three.db", &[]).expect_err("several models");
        assert!(
            error.to_string().contains("this server has the models shop, store: expected a name (--name"),
            "{error}"
        );
        assert!(program.create("three.db", &["--name", "store"])?.contains("store version 1"));
        let (_, said) = program.run(&["remote", "upgrade", "one.db", "--to", "1"])?;
        assert!(said.contains("expected a newer one than that, not 1"), "{said}");
        program.ok(&["diff", "one.db"])?;

        // The old version retires, and a remote that still has it is told what to do.
        assert!(program.create("two.db", &["--name", "shop", "--at", "1"])?.contains("shop version 1"));
        program.ok(&["remote", "sync", "two.db"])?;
        program.ok(&["diff", "two.db"])?;
        program.configure(&models[1..])?;
        program.serve()?;
        let (_, said) = program.run(&["remote", "sync", "two.db"])?;
        assert!(said.contains("it has version 2, to which `headwater remote upgrade` changes the remote"), "{said}");
        assert!(program.ok(&["remote", "upgrade", "two.db"])?.contains("no server has version 1 any more"));
        program.ok(&["diff", "two.db"])?;
        let gone = program.ok(&["untrack", "--unused", "--dry-run"])?;
        assert!(gone.contains("side_item\"") && gone.contains("side_old\"") && !gone.contains("side_note"), "{gone}");
        program.ok(&["untrack", "--unused"])?;
        assert!(program.ok(&["untrack", "--unused"])?.contains("nothing is tracked that is not used"));
        program.ok(&["check"])?;
        program.world.central.execute("UPDATE item SET n = 1000 WHERE id = 'b'; DELETE FROM old")?;
        for file in ["one.db", "two.db"] {
            let said = program.ok(&["remote", "sync", file])?;
            assert!(said.contains("down  1 rows, 0 deletions"), "nobody starts afresh: {said}");
            program.ok(&["diff", file])?;
        }
        let other = one("remote_wins").replace("key = [\"id\"]\nconflict", "key = [\"name\"]\nconflict");
        let other = other.replace("name = \"text\", n", "name = \"text not null\", n");
        program.configure(&[("shop-1.toml", other), models[1].clone()])?;
        let (code, said) = program.run(&["track"])?;
        assert!(code == Some(2) && said.contains("models side by side have one key for a table"), "{code:?}: {said}");
    }
    Ok(())
}

#[test]
fn killed_at_any_moment_a_file_is_of_one_version_or_the_other() -> Result<()> {
    for kind in KINDS {
        let mut program = Program::new(kind)?;
        program.world.central.execute(CHANGES)?;
        program.configure(&[("shop-1.toml", one("remote_wins")), ("shop-2.toml", two("remote_wins"))])?;
        program.ok(&["track"])?;
        program.serve()?;
        let (mut random, mut window, mut versions) = (Random::seeded(7), Duration::from_millis(1), [0, 0]);
        for round in 0..12u32 {
            let name = format!("r{round}");
            let file = format!("{name}.db");
            program.create(&file, &["--model", "shop-1.toml"])?;
            program.ok(&["remote", "sync", &file])?;
            let sql =
                format!("UPDATE item SET n = n + 1 WHERE id = 'a'; INSERT INTO item VALUES ('k{round}', 'kept', 1)");
            program.world.edit(&name, &sql)?;
            let started = Instant::now();
            let mut child = Child::spawn(&name, &mut program.command(&["remote", "upgrade", &file])?)?;
            if round > 0 {
                std::thread::sleep(window.mul_f64(random.below(1000) as f64 / 1000.0));
                child.kill()?;
            } else {
                ensure!(child.wait(Duration::from_mins(1))?.success(), "{}", child.stderr());
                window = started.elapsed();
            }
            let version = Remote::open(program.world.path(&name))?.status()?.model.1;
            versions[version as usize - 1] += 1;
            program.ok(&["remote", "upgrade", &file])?;
            program.ok(&["remote", "sync", &file])?;
            program
                .ok(&["diff", &file])
                .with_context(|| format!("{kind:?}, round {round}, killed at version {version}"))?;
        }
        let a = program.world.central.rows("SELECT n FROM item WHERE id = 'a'")?;
        assert_eq!(a, texts(&[&["13"]]), "each change is applied once: {kind:?}, {versions:?}");
        let kept = program.world.central.rows("SELECT count(*) FROM item WHERE id LIKE 'k%'")?;
        assert_eq!(kept, texts(&[&["12"]]), "{kind:?}, {versions:?}");
    }
    Ok(())
}

/// What is staged of a download under the next version is of no use under the one before: there its numbers mean other tables.
#[test]
fn a_change_of_version_that_breaks_leaves_the_old_version_whole() -> Result<()> {
    let model = |version: u32, second: &str| {
        let table = |name: &str| {
            format!("[tables.{name}]\nkey = [\"id\"]\ncolumns = {{ id = \"text not null\", text = \"text\" }}\n")
        };
        format!("name = \"m\"\nversion = {version}\n{}{}", table("large"), table(second))
    };
    let table = |name: &str| format!("CREATE TABLE {name} (id TEXT NOT NULL PRIMARY KEY, text TEXT);");
    let schema = ["large", "leaves", "comes"].map(table).concat() + "INSERT INTO leaves VALUES ('l', 'l')";
    for kind in KINDS {
        let mut world = World::new(kind, &schema, &model(1, "leaves"), &["ann"])?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.serve_also(&model(2, "comes"))?;
        let new = world.beside[0].model.clone();
        let proxy = FaultProxy::start(world.address()?)?;
        remote.set_server(&format!("http://{}", proxy.address()), "ann")?;
        proxy.script(|_| Plan::clean().cut(Direction::Down, 1_400_000, Cut::Reset));
        let (central, mut random) = (world.central.clone(), Random::seeded(3));
        // Much changes while the sync under the old version is at its end.
        let mut has_grown = false;
        let mut grow = |progress: Progress| {
            if progress.phase == Phase::Apply && !std::mem::replace(&mut has_grown, true) {
                for number in 0..30 {
                    let text: String = (0..100_000).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
                    central.execute(&format!("INSERT INTO large VALUES ('{number}', '{text}')")).expect("a row");
                }
            }
        };
        let mut options = SyncOptions::new(Credentials::Token(world.token("ann")?));
        options.config.attempts_max = 1;
        options.progress = Some(&mut grow);
        let error = remote.upgrade(&new.public(), &mut options).expect_err("a broken download");
        assert_eq!(error.code(), "network", "{kind:?}: {error}");
        let staged = world.rows("one", "SELECT count(*) FROM hw_staged")?;
        assert_ne!(staged, texts(&[&["0"]]), "{kind:?}: some of it is staged");
        proxy.go_clean();
        let mut remote = Remote::open(world.path("one"))?;
        world.sync(&mut remote)?;
        assert_eq!(remote.status()?.model.1, 1);
        assert!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
        upgrade(&world, &mut remote, &new)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
    }
    Ok(())
}

/// A table of each kind: numbers of tables change, and what is kept by them with it.
#[test]
fn what_is_held_counted_and_only_goes_one_way_goes_along() -> Result<()> {
    let schema = "
        CREATE TABLE zone (id BIGINT NOT NULL PRIMARY KEY, name TEXT CHECK (name <> 'bad'));
        CREATE TABLE spot (id BIGINT NOT NULL PRIMARY KEY, zone BIGINT NOT NULL REFERENCES zone (id), name TEXT CHECK (name <> 'bad'),
                           code TEXT UNIQUE, size BIGINT, CHECK (size <> -1));
        CREATE TABLE log (id TEXT NOT NULL PRIMARY KEY, text TEXT, level BIGINT DEFAULT 3);
        CREATE TABLE rate (id TEXT NOT NULL PRIMARY KEY, value BIGINT, unit TEXT DEFAULT 'eur');
        INSERT INTO zone VALUES (1, 'one'), (2, 'two');
        INSERT INTO spot VALUES (1, 1, 'a', 'A', 10), (2, 2, 'b', 'B', 20), (3, 2, 'c', 'C', 30);
        INSERT INTO rate VALUES ('r', 5, 'eur')";
    let zone = "[tables.zone]\nkey = [\"id\"]\nkey_range = 10\ncolumns = { id = \"int not null\", name = \"text\" }\n";
    let spot = |columns: &str| {
        format!(
            "[tables.spot]\nkey = [\"id\"]\nunique = [[\"code\"]]\nreferences = [{{ columns = [\"zone\"], table = \"zone\" }}]\n\
             columns = {{ id = \"int not null\", zone = \"int not null\", name = \"text\", code = \"text\"{columns} }}\n"
        )
    };
    let one_way = |log: &str, rate: &str| {
        format!(
            "[tables.log]\nkey = [\"id\"]\ndirection = \"upload\"\nconflict = \"off\"\ncolumns = {{ id = \"text not null\", text = \"text\"{log} }}\n\
             [tables.rate]\nkey = [\"id\"]\ndirection = \"download\"\ncolumns = {{ id = \"text not null\", value = \"int\"{rate} }}\n"
        )
    };
    let one = format!("name = \"m\"\nversion = 1\n{zone}{}{}", spot(""), one_way("", ""));
    let further = "[tables.aaa]\nkey = [\"id\"]\ncolumns = { id = \"text not null\" }\n";
    let two = format!(
        "name = \"m\"\nversion = 2\n{further}{zone}{}{}",
        one_way(", level = \"int\"", ", unit = \"text\""),
        spot(", size = \"int\""),
    );
    for kind in KINDS {
        let mut world = World::new(kind, schema, &one, &["ann"])?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "UPDATE zone SET name = 'bad' WHERE id = 2; UPDATE spot SET name = 'bad' WHERE id = 2; INSERT INTO log VALUES ('l', 'mine');
             INSERT INTO zone (id, name) SELECT key, 'mine' FROM hw_next_key WHERE \"table\" = 'zone'",
        )?;
        world.sync(&mut remote)?;
        // Rows that others changed are held beside the changes set aside.
        world.central.execute(
            "CREATE TABLE aaa (id TEXT NOT NULL PRIMARY KEY); INSERT INTO aaa VALUES ('x'); UPDATE zone SET name = 'theirs' WHERE id = 2;
             UPDATE spot SET name = 'theirs', size = 21 WHERE id = 2; UPDATE rate SET unit = 'usd'",
        )?;
        world.sync(&mut remote)?;
        assert_eq!((remote.status()?.held, remote.status()?.set_aside), (2, 2), "{kind:?}");
        let next = world.rows("one", "SELECT key, \"left\" FROM hw_next_key")?;
        world.serve_also(&two)?;
        remote.set_server(&world.server_url()?, "ann")?;
        world.edit("one", "UPDATE spot SET name = 'pending' WHERE id = 3; INSERT INTO log VALUES ('k', 'pending')")?;
        let new = world.beside[0].model.clone();
        let done = upgrade(&world, &mut remote, &new).with_context(|| format!("{kind:?}"))?;
        assert_eq!(done.whole, ["spot", "log", "rate"], "{kind:?}");
        assert_eq!((remote.status()?.held, remote.status()?.set_aside), (2, 2), "{kind:?}");
        assert_eq!(world.rows("one", "SELECT key, \"left\" FROM hw_next_key")?, next, "ranges stay: {kind:?}");
        assert_eq!(
            world.rows("one", "SELECT id, name, size FROM spot ORDER BY id")?,
            texts(&[&["1", "a", "10"], &["2", "bad", "21"], &["3", "pending", "30"]]),
            "{kind:?}"
        );
        let log = texts(&[&["k", "pending", "-"], &["l", "mine", "-"]]);
        assert_eq!(
            world.rows("one", "SELECT id, text, level FROM log ORDER BY id")?,
            log,
            "what only goes up stays here"
        );
        assert_eq!(world.rows("one", "SELECT value, unit FROM rate")?, texts(&[&["5", "usd"]]));
        assert!(world.edit("one", "UPDATE rate SET value = 6").is_err(), "it only comes down");
        // The key's range, the log and what is set aside work on.
        world.edit(
            "one",
            "INSERT INTO zone (id, name) SELECT key, 'new' FROM hw_next_key WHERE \"table\" = 'zone';
             INSERT INTO spot SELECT id, id, 'new', 'N', 1 FROM zone WHERE name = 'new'; UPDATE log SET level = 9 WHERE id = 'k'",
        )?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused, report.conflicts), (3, 0, 0), "{kind:?}");
        remote.drop_set_aside(&Choice::All)?;
        assert_eq!(
            world.rows(
                "one",
                "SELECT name, size FROM spot WHERE id = 2 UNION ALL SELECT name, 0 FROM zone WHERE id = 2"
            )?,
            texts(&[&["theirs", "21"], &["theirs", "0"]]),
            "the rows that were held come back: {kind:?}"
        );
        let report = world.diff("one")?;
        assert!(
            report.tables.iter().all(|table| table.table == "log" || table.differences() == 0),
            "{kind:?}: {report:?}"
        );
        let there = world.central.rows("SELECT id, level FROM log ORDER BY id")?;
        assert_eq!(there, texts(&[&["k", "9"], &["l", "3"]]), "{kind:?}");
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
        assert_eq!((done.sync.changes_up, done.sync.set_aside), (2, 1), "{kind:?}: {done:?}");
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
