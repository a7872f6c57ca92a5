//! What is pending, on its way or held when a remote changes its version.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Choice, PendingChoice, SyncOptions};
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{FaultProxy, Plan};
use headwater_tests::backup::Site;
use headwater_tests::{KINDS, World, read_model};

use super::{CHANGES, RULES, retire_one, texts, two, upgrade, world};

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
            // Where the row had come down before, the upgrade gave it the new version's values: an update too.
            let heard = world.rows("one", "SELECT * FROM heard WHERE n = 9")?.len();
            assert_eq!(heard, if both { 2 } else { 1 }, "and works: {context}");
            assert_eq!(
                world.rows("one", "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%old'")?,
                texts(&[&["0"]])
            );
        }
    }
    Ok(())
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
        assert_eq!(done.whole, ["spot", "log"], "rates keep their rows: {kind:?}");
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

/// A model whose one table has `note`, or has it not.
fn noted(version: u32, note: &str) -> String {
    format!(
        "name = \"m\"\nversion = {version}\n[tables.item]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
         columns = {{ id = \"text not null\", name = \"text\"{note} }}\n"
    )
}

/// No server has the old version any more, and a column went with it.
#[test]
fn what_was_changed_in_a_column_that_goes_is_on_the_list() -> Result<()> {
    let schema = "CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, name TEXT, note TEXT);
        INSERT INTO item VALUES ('a', 'apple', 'a'), ('b', 'bean', 'b'), ('c', 'corn', 'c')";
    for kind in KINDS {
        let mut world = World::new(kind, schema, &noted(1, ", note = \"text\""), &["bo"])?;
        let mut remote = world.remote("one", "bo")?;
        world.sync(&mut remote)?;
        world.serve_also(&noted(2, ""))?;
        world.plan = world.beside.remove(0);
        world.start_server()?;
        remote.set_server(&world.server_url()?, "bo")?;
        world.edit(
            "one",
            "UPDATE item SET note = 'mine' WHERE id = 'a'; UPDATE item SET name = 'x', note = 'mine' WHERE id = 'b'; \
             UPDATE item SET name = 'y' WHERE id = 'c'; INSERT INTO item VALUES ('d', 'dill', 'mine'), ('e', 'egg', NULL)",
        )?;
        let new = world.plan.model.clone();
        let done = upgrade(&world, &mut remote, &new)?;
        assert_eq!((done.sync.changes_up, done.sync.displaced, done.sync.left_out), (4, 0, 3), "{kind:?}: {done:?}");
        let aside = remote.set_aside(9)?;
        assert!(aside.iter().all(|one| one.message.contains("no column \"note\"") && !one.is_in_place), "{aside:?}");
        let mine: Vec<_> = aside.iter().map(|one| one.new.as_deref().unwrap_or_default()).collect();
        let expected = [
            r#"{"id":"d","name":"dill","note":"mine"}"#,
            r#"{"id":"b","name":"x","note":"mine"}"#,
            r#"{"id":"a","name":"apple","note":"mine"}"#,
        ];
        assert_eq!(mine, expected, "{kind:?}: as they were made");
        // What of them there is a column for has gone up.
        let left = remote.retry(&Choice::All)?.left;
        assert!(left.len() == 3 && left.iter().all(|why| why.ends_with("drop it")), "{kind:?}: {left:?}");
        assert_eq!(remote.drop_set_aside(&Choice::All)?, 3, "{kind:?}");
        world.sync(&mut remote)?;
        let there = world.central.rows("SELECT id, name, note FROM item ORDER BY id")?;
        let expected: [&[&str]; 5] =
            [&["a", "apple", "a"], &["b", "x", "b"], &["c", "y", "c"], &["d", "dill", "-"], &["e", "egg", "-"]];
        assert_eq!(there, texts(&expected), "{kind:?}");
        assert!(world.diff("one")?.is_equal(false) && remote.status()?.set_aside == 0, "{kind:?}");
    }
    Ok(())
}

/// Its own line on the list ends with the next change of the row, or where the rest of it comes down.
#[test]
fn what_is_set_aside_in_a_column_that_goes_stays_on_the_list() -> Result<()> {
    let schema = "CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, name TEXT, note TEXT CHECK (note <> 'bad'));
        INSERT INTO item VALUES ('a', 'apple', 'a'), ('b', 'bean', 'b')";
    for kind in KINDS {
        let mut world = World::new(kind, schema, &noted(1, ", note = \"text\""), &["bo"])?;
        let mut remote = world.remote("one", "bo")?;
        world.sync(&mut remote)?;
        world.edit("one", "UPDATE item SET note = 'bad'; UPDATE item SET name = 'x' WHERE id = 'b'")?;
        assert_eq!(world.sync(&mut remote)?.refused, 2, "{kind:?}");
        world.serve_also(&noted(2, ""))?;
        remote.set_server(&world.server_url()?, "bo")?;
        let new = world.beside[0].model.clone();
        upgrade(&world, &mut remote, &new)?;
        world.edit("one", "UPDATE item SET name = 'y' WHERE id = 'b'")?;
        world.sync(&mut remote)?;
        let aside = remote.set_aside(9)?;
        let bad: Vec<_> = aside.iter().map(|one| (one.is_in_place, one.new.as_deref().unwrap_or_default())).collect();
        let expected =
            [(false, r#"{"id":"b","name":"x","note":"bad"}"#), (false, r#"{"id":"a","name":"apple","note":"bad"}"#)];
        assert_eq!(bad, expected, "{kind:?}");
        assert!(aside.iter().all(|one| one.message.contains("no column \"note\"")), "{kind:?}: {aside:?}");
        let there = world.central.rows("SELECT id, name, note FROM item ORDER BY id")?;
        assert_eq!(there, texts(&[&["a", "apple", "a"], &["b", "y", "b"]]), "{kind:?}");
        assert_eq!(remote.drop_set_aside(&Choice::All)?, 2, "{kind:?}");
        world.sync(&mut remote)?;
        assert!(world.diff("one")?.is_equal(false) && remote.status()?.set_aside == 0, "{kind:?}");
    }
    Ok(())
}

/// A row that may not have gone up is on the list alone, and leaves it when it is changed.
#[test]
fn what_may_not_have_gone_up_in_a_column_that_goes_stays_on_the_list() -> Result<()> {
    let schema = "CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, name TEXT, note TEXT)";
    let up = |model: String| format!("{model}direction = \"upload\"\n");
    for (kind, comes_down) in KINDS.into_iter().flat_map(|kind| [false, true].map(|comes_down| (kind, comes_down))) {
        let context = format!("{kind:?}, comes down: {comes_down}");
        let mut world = World::new(kind, schema, &up(noted(1, ", note = \"text\"")), &["bo"])?;
        let mut remote = world.remote("one", "bo")?;
        world.sync(&mut remote)?;
        world.untrack("one", "item")?;
        world.edit("one", "INSERT INTO item VALUES ('a', 'apple', 'mine')")?;
        world.sync(&mut remote)?;
        assert!(remote.set_aside(9)?.iter().all(|one| one.is_perhaps_unsent), "{context}");
        let two = noted(2, "");
        world.serve_also(&if comes_down { two } else { up(two) })?;
        remote.set_server(&world.server_url()?, "bo")?;
        let new = world.beside[0].model.clone();
        assert_eq!(upgrade(&world, &mut remote, &new)?.sync.left_out, 1, "{context}");
        world.edit("one", "UPDATE item SET name = 'y'")?;
        world.sync(&mut remote)?;
        let aside = remote.set_aside(9)?;
        let [one] = &aside[..] else { panic!("{context}: {aside:?}") };
        assert!(one.message.contains("no column \"note\"") && !one.is_in_place, "{context}: {one:?}");
        assert_eq!(one.new.as_deref(), Some(r#"{"id":"a","name":"apple","note":"mine"}"#), "{context}");
        let there = world.central.rows("SELECT id, name, note FROM item")?;
        assert_eq!(there, texts(&[&["a", "y", "-"]]), "{context}");
    }
    Ok(())
}

/// An upload of the old version is lost, and the file has the new one when it learns of it.
#[test]
fn what_is_lost_in_a_column_that_goes_is_on_the_list() -> Result<()> {
    for kind in KINDS {
        let (site, central) = Site::new(kind)?;
        central.execute(
            "CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, name TEXT, note TEXT);
             INSERT INTO item VALUES ('a', 'apple', 'a'), ('b', 'bean', 'b'), ('c', 'corn', 'c'), ('d', 'dill', 'd')",
        )?;
        let one = read_model(&noted(1, ", note = \"text\""))?;
        let mut world = World::over(central, tempfile::tempdir()?, one, &["bo"])?;
        world.serve_also(&noted(2, ""))?;
        let mut remote = world.remote("one", "bo")?;
        world.sync(&mut remote)?;
        let backup = site.back_up()?;
        world.edit(
            "one",
            "UPDATE item SET note = 'mine' WHERE id = 'a'; UPDATE item SET name = 'x', note = 'mine' WHERE id IN ('b', 'd'); \
             UPDATE item SET name = 'y' WHERE id = 'c'; INSERT INTO item VALUES ('e', 'egg', 'mine')",
        )?;
        world.sync(&mut remote)?;
        world.edit("one", "UPDATE item SET note = 'again' WHERE id = 'b'; DELETE FROM item WHERE id = 'd'")?;
        world.sync(&mut remote)?;
        let new = world.beside[0].model.clone();
        upgrade(&world, &mut remote, &new)?;
        world.edit("one", "UPDATE item SET name = 'later' WHERE id = 'e'")?;
        site.put_back(&backup)?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.lost, report.lost_changes), (Some((1, 2)), 5), "{kind:?}: {report:?}");
        let mut gone = remote.set_aside(20)?;
        gone.retain(|one| one.message.contains("no column \"note\""));
        assert!(gone.iter().all(|one| !one.is_in_place && one.reason == "lost"), "{kind:?}: {gone:?}");
        let news: Vec<_> = gone.iter().rev().map(|one| one.new.as_deref().unwrap_or_default()).collect();
        let expected = [
            r#"{"id":"a","name":"apple","note":"mine"}"#,
            r#"{"id":"b","name":"x","note":"again"}"#,
            r#"{"id":"e","name":"egg","note":"mine"}"#,
        ];
        assert_eq!(news, expected, "{kind:?}");
        assert_eq!(remote.retry(&Choice::All)?.left.len(), 3, "{kind:?}");
        world.sync(&mut remote)?;
        assert_eq!(remote.drop_set_aside(&Choice::All)?, 3, "{kind:?}");
        let there = world.central.rows("SELECT id, name, note FROM item ORDER BY id")?;
        let expected: [&[&str]; 4] = [&["a", "apple", "a"], &["b", "x", "b"], &["c", "y", "c"], &["e", "later", "-"]];
        assert_eq!(there, texts(&expected), "{kind:?}");
        assert!(world.diff("one")?.is_equal(false) && remote.status()?.set_aside == 0, "{kind:?}");
    }
    Ok(())
}

/// A table goes with one version of the model and comes back with the next: its keys are not handed out, or used, a second time.
#[test]
fn a_table_that_comes_back_has_its_key_ranges() -> Result<()> {
    let schema = "CREATE TABLE item (id BIGINT NOT NULL PRIMARY KEY, text TEXT); CREATE TABLE other (id TEXT NOT NULL PRIMARY KEY)";
    let other = "[tables.other]\nkey = [\"id\"]\ncolumns = { id = \"text not null\" }\n";
    let item = "[tables.item]\nkey = [\"id\"]\nkey_range = { size = 10, from = 1000 }\ncolumns = { id = \"int not null\", text = \"text\" }\n";
    let model = |version: u32, tables: &str| format!("name = \"m\"\nversion = {version}\n{tables}{other}");
    let next = "SELECT key, \"left\" FROM hw_next_key";
    let insert = "INSERT INTO item (id, text) SELECT key, 'made offline' FROM hw_next_key";
    for kind in KINDS {
        let mut world = World::new(kind, schema, &model(1, item), &["ann"])?;
        let (mut one, mut two) = (world.remote("one", "ann")?, world.remote("two", "ann")?);
        world.sync(&mut one)?;
        world.sync(&mut two)?;
        for _ in 0..3 {
            world.edit("one", insert)?;
            world.sync(&mut one)?;
        }
        // Nothing tells any more that its last keys were used.
        world.edit("one", "DELETE FROM item WHERE id > 1000")?;
        for version in [2, 3] {
            world.serve_also(&model(version, if version == 2 { "" } else { item }))?;
            let new = world.beside.last().context("a version")?.model.clone();
            for remote in [&mut one, &mut two] {
                remote.set_server(&world.server_url()?, "ann")?;
                upgrade(&world, remote, &new).with_context(|| format!("{kind:?}, version {version}"))?;
            }
        }
        assert_eq!(world.rows("one", next)?, texts(&[&["1003", "7"]]), "{kind:?}");
        assert_eq!(world.rows("two", next)?, texts(&[&["1010", "10"]]), "{kind:?}");
        for _ in 0..7 {
            world.edit("one", insert)?;
        }
        let report = world.sync(&mut one)?;
        assert_eq!((report.conflicts, report.refused), (0, 0), "{kind:?}");
        assert_eq!(world.rows("one", next)?, texts(&[&["1020", "10"]]), "{kind:?}");
        world.sync(&mut two)?;
        assert!(world.diff("one")?.is_equal(false) && world.diff("two")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}
