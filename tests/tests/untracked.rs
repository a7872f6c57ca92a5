//! An application drops the triggers of change tracking at a remote, and writes. The next sync notices: what was written is named and
//! set aside where it stands, goes up if it is asked for, and nothing differs in the end.

use anyhow::{Context, Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Choice, Phase, Progress, Remote, SyncOptions};
use headwater_tests::{KINDS, Kind, World};

const SCHEMA: &str = "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, text TEXT); CREATE TABLE page (id TEXT NOT NULL PRIMARY KEY, \
                      note TEXT NOT NULL REFERENCES note, text TEXT)";
const MODEL: &str = r#"
name = "notes"
version = 1
[tables.note]
key = ["id"]
columns = { id = "text not null", text = "text" }
[tables.page]
key = ["id"]
columns = { id = "text not null", note = "text not null", text = "text" }
references = [{ columns = ["note"], table = "note", target = ["id"] }]
"#;

const NAME: &str = "anna";

fn aside(remote: &Remote) -> Result<Vec<(String, String, bool)>> {
    let mut list: Vec<_> = remote.set_aside(100)?.into_iter().map(|s| (s.key, s.reason, s.is_in_place)).collect();
    list.sort();
    Ok(list)
}

fn differences(world: &World, ignore_pending: bool) -> Result<()> {
    let report = world.diff(NAME)?;
    ensure!(report.is_equal(ignore_pending), "{}", serde_json::to_string(&report)?);
    Ok(())
}

#[test]
fn writes_while_tracking_was_off() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &[NAME])?;
        world.central.execute(
            "INSERT INTO note VALUES ('a', 'x'), ('b', 'x'), ('c', 'x'), ('d', 'x'); INSERT INTO page VALUES ('p', 'a', 'x')",
        )?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        drop(remote);

        world.untrack(NAME, "note")?;
        world.edit(
            NAME,
            "UPDATE note SET text = 'here' WHERE id IN ('b', 'c'); DELETE FROM note WHERE id = 'd'; \
             INSERT INTO note VALUES ('e', 'here'); INSERT INTO page VALUES ('q', 'e', 'tracked')",
        )?;
        world
            .central
            .execute("UPDATE note SET text = 'there' WHERE id = 'c'; INSERT INTO note VALUES ('f', 'there')")?;

        let mut remote = Remote::open(world.path(NAME))?;
        let report = world.sync(&mut remote).with_context(|| format!("{kind:?}"))?;
        ensure!(report.untracked == 4 && report.requests == 3, "{kind:?}: {report:?}");
        let key = |id: &str| format!(r#"{{"id":"{id}"}}"#);
        let untracked = |id: &str, in_place: bool| (key(id), "untracked".to_owned(), in_place);
        let page =
            aside(&remote)?.into_iter().find(|(id, ..)| *id == key("q")).context("it refers to nothing there")?;
        let expected = [untracked("b", true), untracked("c", false), untracked("d", true), untracked("e", true), page];
        ensure!(aside(&remote)? == expected, "{kind:?}: {:?}", aside(&remote)?);
        differences(&world, true)?;
        let quiet = world.sync(&mut remote)?;
        ensure!((quiet.untracked, quiet.requests, quiet.changes_up) == (0, 1, 0), "{kind:?}: {quiet:?}");

        remote.retry(&Choice::All)?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.refused, report.conflicts) == (5, 0, 1), "{kind:?}: {report:?}");
        differences(&world, false)?;
        let c = "what was changed on both sides meets the rule";
        ensure!(remote.conflicts(9)?.iter().all(|it| it.key == key("c") && it.end == "consolidated"), "{kind:?}: {c}");
        let head = world.central.rows("SELECT id || ' ' || text FROM note ORDER BY id")?.concat();
        let expected = ["a x", "b here", "c there", "e here", "f there"].map(|row| Some(row.to_owned()));
        ensure!(head == expected, "{kind:?}: {head:?}");
    }
    Ok(())
}

/// A change that only the list has is made again: not over what was written since, while tracking was off once more.
#[test]
fn retry_does_not_overwrite_what_nobody_has_seen() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &[NAME])?;
        world.central.execute("INSERT INTO note VALUES ('a', 'x'), ('b', 'x')")?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        world.untrack(NAME, "note")?;
        world.edit(NAME, "UPDATE note SET text = 'here'")?;
        world.central.execute("UPDATE note SET text = 'there'")?;
        world.sync(&mut remote)?;
        ensure!(aside(&remote)?.iter().all(|(.., in_place)| !in_place), "{kind:?}: {:?}", aside(&remote)?);

        world.untrack(NAME, "note")?;
        world.edit(NAME, "UPDATE note SET text = 'later'")?;
        let left = remote.retry(&Choice::All)?.left;
        ensure!(left.len() == 2 && left.iter().all(|why| why.contains("sync first")), "{kind:?}: {left:?}");
        world.sync(&mut remote)?;
        let listed: Vec<_> = remote.set_aside(9)?.into_iter().filter_map(|change| change.new).collect();
        let count = |text: &str| listed.iter().filter(|new| new.contains(text)).count();
        ensure!((count("here"), count("later")) == (2, 2), "{kind:?}: {listed:?}");
        ensure!(remote.retry(&Choice::All).is_ok(), "{kind:?}");
    }
    Ok(())
}

/// What was changed at the consolidated database alone looks as if it had been changed here, where tracking was off on both sides (what a
/// database that begins a new incarnation sends), or where it is changed while the remote finds out. Nothing there is overwritten without
/// a conflict on record.
#[test]
fn changes_of_others_are_not_overwritten() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &[NAME])?;
        world.central.execute("INSERT INTO note VALUES ('a', 'x'), ('b', 'x'), ('c', 'x'), ('d', 'x')")?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        drop(remote);

        world.untrack(NAME, "note")?;
        world.edit(NAME, "UPDATE note SET text = 'here' WHERE id = 'd'")?;
        let mut remote = Remote::open(world.path(NAME))?;
        let (mut begun, mut failed) = (0, None);
        let mut between = |progress: Progress| {
            begun += u32::from(progress.phase == Phase::Cut);
            if progress.phase == Phase::Cut && begun == 2 {
                let sql = "UPDATE note SET text = 'there' WHERE id = 'a'; DELETE FROM note WHERE id = 'b'";
                failed = world.central.execute(sql).err();
            }
        };
        let mut options = SyncOptions::new(Credentials::Token(world.token(NAME)?));
        options.progress = Some(&mut between);
        let report = remote.sync(&mut options)?;
        failed.map_or(Ok(()), Err)?;
        ensure!((report.untracked, report.requests) == (3, 3), "{kind:?}: {report:?}");
        let untracked = |id: &str, in_place: bool| (format!(r#"{{"id":"{id}"}}"#), "untracked".to_owned(), in_place);
        let expected = [untracked("a", false), untracked("b", false), untracked("d", true)];
        ensure!(aside(&remote)? == expected, "{kind:?}: {:?}", aside(&remote)?);

        ensure!(remote.retry(&Choice::All)?.changes == 3, "{kind:?}");
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.conflicts, report.refused) == (3, 2, 0), "{kind:?}: {report:?}");

        world.untrack(NAME, "note")?;
        world.central.execute("UPDATE note SET text = 'there too' WHERE id = 'c'")?;
        remote.reset()?;
        let report = world.sync(&mut remote)?;
        ensure!((report.untracked, report.requests) == (1, 1), "{kind:?}: {report:?}");
        ensure!(aside(&remote)? == [untracked("c", false)], "{kind:?}: {:?}", aside(&remote)?);
        ensure!(remote.retry(&Choice::All)?.changes == 1, "{kind:?}");
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.conflicts, report.refused) == (1, 1, 0), "{kind:?}: {report:?}");
        let head = world.central.rows("SELECT id || ' ' || text FROM note ORDER BY id")?.concat();
        let expected = ["a there", "c there too", "d here"].map(|row| Some(row.to_owned()));
        ensure!(head == expected, "{kind:?}: {head:?}");
        ensure!(world.central.rows(&conflicts(kind))? == [[Some("3".to_owned())]], "{kind:?}: all are on record");
        differences(&world, false)?;
    }
    Ok(())
}

fn conflicts(kind: Kind) -> String {
    let table = if kind == Kind::Postgres { "headwater.conflict" } else { "headwater_conflict" };
    format!("SELECT count(*) FROM {table}")
}

/// A table that was made anew, as SQLite's manual does to change a column: its triggers went with the old one.
#[test]
fn a_table_made_anew() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &[NAME])?;
        world.central.execute("INSERT INTO note VALUES ('a', 'x'), ('b', 'x')")?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        world.edit(NAME, "UPDATE note SET text = 'pending' WHERE id = 'a'")?;
        let anew = "PRAGMA foreign_keys = OFF; BEGIN; CREATE TABLE other (id TEXT NOT NULL PRIMARY KEY, text TEXT) WITHOUT ROWID; \
                    INSERT INTO other SELECT id, CASE id WHEN 'b' THEN 'changed' ELSE text END FROM note; DROP TABLE note; \
                    ALTER TABLE other RENAME TO note; COMMIT";
        world.edit(NAME, anew)?;
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.untracked) == (1, 1), "{kind:?}: {report:?}");
        ensure!(aside(&remote)? == [(r#"{"id":"b"}"#.to_owned(), "untracked".to_owned(), true)], "{kind:?}");
        remote.drop_set_aside(&Choice::All)?;
        differences(&world, false)?;
    }
    Ok(())
}

const REGIONS: &str = "CREATE TABLE member (login TEXT, region TEXT); INSERT INTO member VALUES ('anna', 'n'), ('anna', 's'); \
    CREATE TABLE customer (id TEXT NOT NULL PRIMARY KEY, name TEXT, region TEXT); \
    CREATE TABLE orders (id TEXT NOT NULL PRIMARY KEY, customer TEXT NOT NULL REFERENCES customer, text TEXT); \
    INSERT INTO customer VALUES ('1', 'x', 'n'), ('2', 'x', 's'), ('3', 'x', 's'); \
    INSERT INTO orders VALUES ('11', '1', 'x'), ('22', '2', 'x')";

const REGIONAL: &str = r#"
name = "regions"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE login = :s.user"
[tables.customer]
key = ["id"]
partition = "region"
columns = { id = "text not null", name = "text", region = "text" }
[tables.orders]
key = ["id"]
partition = { through = "customer" }
columns = { id = "text not null", customer = "text not null", text = "text" }
references = [{ columns = ["customer"], table = "customer" }]
"#;

/// A partition is left, and rows lie in none, where nobody saw what was written: all of it is on the list, and goes up when it may.
#[test]
fn what_lies_in_no_partition_or_in_one_that_is_left() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, REGIONS, REGIONAL, &[NAME])?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        drop(remote);

        world.untrack(NAME, "customer")?;
        world.untrack(NAME, "orders")?;
        world.edit(
            NAME,
            "UPDATE customer SET name = 'changed' WHERE id = '2'; INSERT INTO customer VALUES ('4', 'made', 's'), ('5', 'made', 'nowhere'); \
             INSERT INTO orders VALUES ('44', '4', 'made'), ('55', '5', 'made')",
        )?;
        world.central.execute("DELETE FROM member WHERE region = 's'")?;
        let mut remote = Remote::open(world.path(NAME))?;
        let report = world.sync(&mut remote)?;
        ensure!(report.untracked == 7, "{kind:?}: {report:?}");
        let untracked = |id: &str, in_place: bool| (format!(r#"{{"id":"{id}"}}"#), "untracked".to_owned(), in_place);
        let left = ["2", "22", "3", "4", "44"].map(|id| untracked(id, false));
        let mut expected = [&left[..], &["5", "55"].map(|id| untracked(id, true))].concat();
        expected.sort();
        ensure!(aside(&remote)? == expected, "{kind:?}: {:?}", aside(&remote)?);
        let changed = remote.set_aside(9)?.into_iter().filter_map(|it| it.new).any(|new| new.contains("changed"));
        ensure!(changed, "{kind:?}: the list has what was written");
        differences(&world, true)?;

        remote.reset()?;
        world.sync(&mut remote)?;
        ensure!(aside(&remote)? == expected, "{kind:?}: {:?}", aside(&remote)?);

        world.central.execute("INSERT INTO member VALUES ('anna', 's'), ('anna', 'nowhere')")?;
        world.sync(&mut remote)?;
        ensure!(remote.retry(&Choice::All)?.left.is_empty(), "{kind:?}");
        let report = world.sync(&mut remote)?;
        // The row that was changed, for perhaps it was not.
        ensure!((report.refused, report.conflicts) == (0, 1), "{kind:?}: {report:?}");
        let customers = world.central.rows("SELECT id || ' ' || name FROM customer ORDER BY id")?.concat();
        let expected = ["1 x", "2 x", "3 x", "4 made", "5 made"].map(|row| Some(row.to_owned()));
        ensure!(customers == expected, "{kind:?}: {customers:?}");
        let orders = world.central.rows("SELECT id FROM orders ORDER BY id")?.concat();
        ensure!(orders == ["11", "22", "44", "55"].map(|id| Some(id.to_owned())), "{kind:?}: {orders:?}");
        differences(&world, false)?;
    }
    Ok(())
}

/// A partition becomes the remote's with the sync that follows: what was written there meanwhile, or moved there, stands and is on the
/// list, and nothing is taken for deleted.
#[test]
fn what_lies_in_a_partition_that_is_joined() -> Result<()> {
    let cases = [&["customer"][..], &["customer", "orders"]];
    for (kind, tables) in KINDS.into_iter().flat_map(|kind| cases.map(|tables| (kind, tables))) {
        let world = World::new(kind, REGIONS, REGIONAL, &[NAME])?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        world.central.execute("DELETE FROM member WHERE region = 'n'")?;
        world.sync(&mut remote)?;
        drop(remote);

        tables.iter().try_for_each(|table| world.untrack(NAME, table))?;
        world.edit(
            NAME,
            "UPDATE customer SET name = 'moved', region = 'n' WHERE id IN ('2', '3'); \
             INSERT INTO customer VALUES ('1', 'x', 'n'), ('4', 'made', 'n'), ('5', 'here', 'n')",
        )?;
        if tables.len() == 2 {
            world.edit(NAME, "INSERT INTO orders VALUES ('44', '4', 'made')")?;
        }
        world.central.execute(
            "INSERT INTO member VALUES ('anna', 'n'); INSERT INTO customer VALUES ('5', 'there', 'n'); \
             DELETE FROM customer WHERE id = '3'",
        )?;
        let mut remote = Remote::open(world.path(NAME))?;
        world.sync(&mut remote)?;
        let untracked = |id: &str, in_place: bool| (format!(r#"{{"id":"{id}"}}"#), "untracked".to_owned(), in_place);
        let mut expected =
            vec![untracked("2", true), untracked("3", false), untracked("4", true), untracked("5", false)];
        if tables.len() == 2 {
            expected.insert(3, untracked("44", true));
        }
        ensure!(aside(&remote)? == expected, "{kind:?} {tables:?}: {:?}", aside(&remote)?);
        let list = remote.set_aside(9)?;
        ensure!(list.iter().all(|it| it.new.is_some()), "{kind:?} {tables:?}: nothing was deleted: {list:?}");
        differences(&world, true).with_context(|| format!("{kind:?} {tables:?}"))?;
        let quiet = world.sync(&mut remote)?;
        ensure!((quiet.untracked, quiet.requests, quiet.changes_up) == (0, 1, 0), "{kind:?} {tables:?}: {quiet:?}");

        ensure!(remote.retry(&Choice::All)?.left.is_empty(), "{kind:?} {tables:?}");
        let report = world.sync(&mut remote)?;
        ensure!(
            (report.refused, report.conflicts) == (0, 2),
            "{kind:?} {tables:?}: what others have changed: {report:?}"
        );
        let customers = world.central.rows("SELECT id || name || region FROM customer ORDER BY id")?.concat();
        let expected = ["1xn", "2movedn", "4maden", "5theren"].map(|row| Some(row.to_owned()));
        ensure!(customers == expected, "{kind:?} {tables:?}: {customers:?}");
        let orders = world.central.rows("SELECT id FROM orders ORDER BY id")?.concat();
        let expected = if tables.len() == 2 { &["11", "22", "44"][..] } else { &["11", "22"] };
        ensure!(orders.iter().flatten().eq(expected), "{kind:?} {tables:?}: {orders:?}");
        differences(&world, false).with_context(|| format!("{kind:?} {tables:?}"))?;
    }
    Ok(())
}

/// A row of such a partition has the unique value of one that was here: that steps aside before what became of it comes, and what was
/// written below it stands, or is on the list.
#[test]
fn what_lies_below_a_row_that_steps_aside_for_a_joined_one() -> Result<()> {
    let schema = format!("{REGIONS}; UPDATE customer SET name = id; CREATE UNIQUE INDEX name ON customer (name)");
    let model = REGIONAL.replace("partition = \"region\"", "partition = \"region\"\nunique = [[\"name\"]]");
    let two = ["DELETE FROM orders WHERE id = '22'; DELETE FROM customer", "UPDATE customer SET name = 'other'"];
    let cases = two.into_iter().flat_map(|two| [&["orders"][..], &["customer", "orders"]].map(|tables| (two, tables)));
    for (kind, (two, tables)) in KINDS.into_iter().flat_map(|kind| cases.clone().map(move |case| (kind, case))) {
        let case = format!("{kind:?} {tables:?} {two}");
        let world = World::new(kind, &schema, &model, &[NAME])?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        drop(remote);

        tables.iter().try_for_each(|table| world.untrack(NAME, table))?;
        world.edit(
            NAME,
            "UPDATE orders SET text = 'changed' WHERE id = '22'; INSERT INTO orders VALUES ('44', '2', 'made')",
        )?;
        world.central.execute(&format!(
            "{two} WHERE id = '2'; INSERT INTO customer VALUES ('5', '2', 'e'); INSERT INTO member VALUES ('anna', 'e')"
        ))?;
        let mut remote = Remote::open(world.path(NAME))?;
        world.sync(&mut remote)?;
        let is_gone = two.starts_with("DELETE");
        let orders: Vec<_> = remote.set_aside(9)?.into_iter().filter(|it| it.table == "orders").collect();
        let texts = ["changed", "made"]
            .map(|text| orders.iter().filter_map(|it| it.new.as_deref()).any(|new| new.contains(text)));
        ensure!(texts == [true; 2] && orders.len() == 2, "{case}: {orders:?}");
        ensure!(orders.iter().all(|it| it.reason == "untracked" && it.is_in_place != is_gone), "{case}: {orders:?}");
        let there = world.rows(NAME, "SELECT id FROM customer UNION ALL SELECT id FROM orders ORDER BY id")?.concat();
        let expected = if is_gone { &["1", "11", "3", "5"][..] } else { &["1", "11", "2", "22", "3", "44", "5"] };
        ensure!(there.iter().flatten().eq(expected), "{case}: {there:?}");
        differences(&world, true).with_context(|| case.clone())?;
        let quiet = world.sync(&mut remote)?;
        ensure!((quiet.untracked, quiet.requests, quiet.changes_up) == (0, 1, 0), "{case}: {quiet:?}");
    }
    Ok(())
}

/// What was written refers to a row that is deleted at the consolidated database meanwhile: it goes with it, and is on the list.
#[test]
fn what_refers_to_a_row_that_is_gone() -> Result<()> {
    for kind in KINDS {
        for on_delete in ["", " ON DELETE CASCADE"] {
            let schema = SCHEMA.replace("REFERENCES note", &format!("REFERENCES note{on_delete}"));
            let world = World::new(kind, &schema, MODEL, &[NAME])?;
            world
                .central
                .execute("INSERT INTO note VALUES ('a', 'x'), ('b', 'x'); INSERT INTO page VALUES ('p', 'b', 'x')")?;
            let mut remote = world.remote(NAME, NAME)?;
            world.sync(&mut remote)?;
            drop(remote);

            world.untrack(NAME, "page")?;
            world.edit(NAME, "INSERT INTO page VALUES ('q', 'a', 'made'); UPDATE page SET note = 'a', text = 'changed' WHERE id = 'p'")?;
            world.central.execute("DELETE FROM note WHERE id = 'a'")?;
            let mut remote = Remote::open(world.path(NAME))?;
            let report = world.sync(&mut remote)?;
            ensure!((report.untracked, report.refused, report.not_stored) == (2, 0, 0), "{kind:?}: {report:?}");
            let mut texts: Vec<_> = remote.set_aside(9)?.into_iter().filter_map(|it| it.new).collect();
            texts.sort();
            ensure!(
                texts.len() == 2 && texts[0].contains("changed") && texts[1].contains("made"),
                "{kind:?}: the list has what was written, and no deletion: {texts:?}"
            );
            differences(&world, false)?;
            ensure!(remote.retry(&Choice::All)?.changes == 0, "{kind:?}: nothing that refers to nothing");

            world.central.execute("INSERT INTO note VALUES ('a', 'again')")?;
            world.sync(&mut remote)?;
            ensure!(remote.retry(&Choice::All)?.left.is_empty(), "{kind:?}");
            let report = world.sync(&mut remote)?;
            // The row that was changed, for perhaps it was not.
            ensure!((report.refused, report.conflicts) == (0, 1), "{kind:?}: {report:?}");
            let pages = world.central.rows("SELECT id || ' ' || text FROM page ORDER BY id")?.concat();
            ensure!(pages == ["p x", "q made"].map(|row| Some(row.to_owned())), "{kind:?}: {pages:?}");
            differences(&world, false)?;
        }
    }
    Ok(())
}

const SEEN: &str = "CREATE TABLE seen (id TEXT NOT NULL PRIMARY KEY, text TEXT, price NUMERIC(9,2), at TIMESTAMP)";

fn seen(version: u32, rule: &str, direction: &str) -> String {
    format!(
        "name = \"seen\"\nversion = {version}\n[tables.seen]\nkey = [\"id\"]\ndirection = \"{direction}\"\nconflict = \"{rule}\"\n\
         columns = {{ id = \"text not null\", text = \"text\", price = \"decimal(9,2)\", at = \"timestamp\" }}\n"
    )
}

fn seen_there(world: &World) -> Result<Vec<String>> {
    let rows = world.central.rows("SELECT id || ' ' || text FROM seen ORDER BY id")?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// A remote whose table only goes up: `a` and `b` have gone up, then `b` is changed, `c` made and `a` left alone by a table made anew.
fn seen_untracked(world: &World) -> Result<Remote> {
    let mut remote = world.remote(NAME, NAME)?;
    world.edit(NAME, "INSERT INTO seen VALUES ('a', 'x', '1.5', '2026-01-02 03:04:05'), ('b', 'x', NULL, NULL)")?;
    world.sync(&mut remote)?;
    let anew = "BEGIN; CREATE TABLE other (id TEXT NOT NULL PRIMARY KEY, text TEXT, price DECIMAL_TEXT(9,2), at TIMESTAMP_TEXT); \
                INSERT INTO other SELECT id, CASE id WHEN 'b' THEN 'changed' ELSE text END, price, at FROM seen; \
                INSERT INTO other VALUES ('c', 'made', NULL, NULL); DROP TABLE seen; ALTER TABLE other RENAME TO seen; COMMIT";
    world.edit(NAME, anew)?;
    Ok(Remote::open(world.path(NAME))?)
}

/// Nothing of a table that only goes up comes down to compare it with: all of its rows are listed, and what is retried is no conflict where
/// it has gone up.
#[test]
fn a_table_that_only_goes_up_is_listed() -> Result<()> {
    for (kind, rule) in KINDS.into_iter().flat_map(|kind| ["consolidated_wins", "off"].map(|rule| (kind, rule))) {
        let world = World::new(kind, SEEN, &seen(1, rule, "upload"), &[NAME])?;
        let mut remote = seen_untracked(&world)?;
        let report = world.sync(&mut remote)?;
        ensure!((report.perhaps_unsent, report.untracked, report.changes_up) == (3, 0, 0), "{kind:?}: {report:?}");
        let listed = |id: &str| (format!(r#"{{"id":"{id}"}}"#), "untracked".to_owned(), false);
        ensure!(aside(&remote)? == ["a", "b", "c"].map(listed), "{kind:?}: {:?}", aside(&remote)?);
        let quiet = world.sync(&mut remote)?;
        ensure!((quiet.perhaps_unsent, quiet.requests, quiet.changes_up) == (0, 1, 0), "{kind:?}: {quiet:?}");

        ensure!(remote.retry(&Choice::Table("seen".to_owned()))?.changes == 3, "{kind:?}");
        let report = world.sync(&mut remote)?;
        let is_conflict = u64::from(rule != "off");
        ensure!((report.changes_up, report.conflicts, report.refused) == (3, is_conflict, 0), "{kind:?}: {report:?}");
        ensure!(aside(&remote)?.is_empty(), "{kind:?}: {:?}", aside(&remote)?);
        let conflicts = remote.conflicts(9)?;
        ensure!(conflicts.iter().all(|it| it.key == r#"{"id":"b"}"#), "{kind:?}: `a` was there as it is");
        ensure!(conflicts.iter().all(|it| it.is_untold && !it.is_open), "{kind:?}: nothing comes down: {conflicts:?}");
        let b = if rule == "off" { "b changed" } else { "b x" };
        ensure!(seen_there(&world)? == ["a x", b, "c made"], "{kind:?}: {:?}", seen_there(&world)?);
    }
    Ok(())
}

/// The next version has the table come down too: what the consolidated database does not have stays, and is named.
#[test]
fn a_table_that_only_went_up_comes_down() -> Result<()> {
    for kind in KINDS {
        let mut world = World::new(kind, SEEN, &seen(1, "consolidated_wins", "upload"), &[NAME])?;
        let mut remote = seen_untracked(&world)?;
        world.serve_also(&seen(2, "consolidated_wins", "both"))?;
        remote.set_server(&world.server_url()?, NAME)?;
        let new = world.beside[0].model.public();
        let done = remote.upgrade(&new, &mut SyncOptions::new(Credentials::Token(world.token(NAME)?)))?;
        ensure!(done.before.is_some_and(|before| before.perhaps_unsent == 3), "{kind:?}: {:?}", done.sync);
        let standing = |id: &str| (format!(r#"{{"id":"{id}"}}"#), "untracked".to_owned(), true);
        ensure!(aside(&remote)? == ["b", "c"].map(standing), "{kind:?}: {:?}", aside(&remote)?);
        let here = world.rows(NAME, "SELECT id || ' ' || text FROM seen ORDER BY id")?.concat();
        let expected = ["a x", "b changed", "c made"].map(|row| Some(row.to_owned()));
        ensure!(here == expected, "{kind:?}: {here:?}");

        ensure!(remote.retry(&Choice::All)?.changes == 2, "{kind:?}");
        let report = world.sync(&mut remote)?;
        ensure!((report.changes_up, report.conflicts, report.refused) == (2, 1, 0), "{kind:?}: {report:?}");
        ensure!(seen_there(&world)? == ["a x", "b x", "c made"], "{kind:?}: {:?}", seen_there(&world)?);
        differences(&world, false)?;
    }
    Ok(())
}

/// Beside unique values that were swapped, or are used here and there, no row is forgotten either, or taken for deleted.
#[test]
fn what_has_the_unique_value_of_a_row_that_comes() -> Result<()> {
    let model = MODEL.replacen("columns =", "unique = [[\"text\"]]\ncolumns =", 1);
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, &model, &[NAME])?;
        world
            .central
            .execute("INSERT INTO note VALUES ('a', '1'), ('b', '2'); INSERT INTO page VALUES ('p', 'b', 'x')")?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        drop(remote);

        world.untrack(NAME, "note")?;
        world.untrack(NAME, "page")?;
        world.edit(
            NAME,
            "UPDATE note SET text = 't' WHERE id = 'a'; UPDATE note SET text = '1' WHERE id = 'b'; \
             UPDATE note SET text = '2' WHERE id = 'a'; INSERT INTO note VALUES ('c', '3')",
        )?;
        world.central.execute("DELETE FROM note WHERE id = 'a'; INSERT INTO note VALUES ('a', '1'), ('d', '3')")?;
        let mut remote = Remote::open(world.path(NAME))?;
        world.sync(&mut remote)?;
        let list = remote.set_aside(9)?;
        ensure!(list.iter().all(|it| it.new.is_some()), "{kind:?}: nothing was deleted: {list:?}");
        for text in ["\"2\"", "\"1\"", "\"3\""] {
            let listed = list.iter().filter_map(|it| it.new.as_deref()).any(|new| new.contains(text));
            ensure!(listed, "{kind:?}: {text}: {list:?}");
        }
        differences(&world, false)?;
        remote.retry(&Choice::All)?;
        world.sync(&mut remote)?;
        let ids = world.central.rows("SELECT id FROM note UNION ALL SELECT id FROM page ORDER BY id")?.concat();
        ensure!(ids == ["a", "b", "d", "p"].map(|id| Some(id.to_owned())), "{kind:?}: {ids:?}");
    }
    Ok(())
}

/// A row that somebody else has made refers to one that was deleted here: the deletion is on the list, and can't be made again.
#[test]
fn a_deletion_that_others_refer_to() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, SCHEMA, MODEL, &[NAME])?;
        world.central.execute("INSERT INTO note VALUES ('a', 'x')")?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        drop(remote);

        world.untrack(NAME, "note")?;
        world.edit(NAME, "DELETE FROM note WHERE id = 'a'")?;
        world.central.execute("INSERT INTO page VALUES ('p', 'a', 'theirs')")?;
        let mut remote = Remote::open(world.path(NAME))?;
        world.sync(&mut remote)?;
        let left = remote.retry(&Choice::All)?.left;
        ensure!(left.len() == 1 && left[0].contains("\"page\" refers to its row"), "{kind:?}: {left:?}");
        differences(&world, false)?;
        world.edit(NAME, "DELETE FROM page WHERE id = 'p'")?;
        ensure!(remote.retry(&Choice::All)?.changes == 1, "{kind:?}");
        ensure!(world.sync(&mut remote)?.changes_up == 2, "{kind:?}");
        ensure!(world.central.rows("SELECT id FROM note")?.is_empty(), "{kind:?}");
        differences(&world, false)?;
    }
    Ok(())
}

/// Tracking is off twice, and the partition of the regional world's row left at last: each version that stood here is on the list, until
/// it is sent again or given up.
#[test]
fn a_row_has_as_many_changes_on_the_list_as_were_lost_to_it() -> Result<()> {
    for kind in KINDS {
        let world = World::new(kind, REGIONS, REGIONAL, &[NAME])?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        for round in ["1", "2"] {
            world.untrack(NAME, "customer")?;
            world.edit(NAME, &format!("UPDATE customer SET name = 'here {round}' WHERE id = '2'"))?;
            world.central.execute(&format!("UPDATE customer SET name = 'there {round}' WHERE id = '2'"))?;
            remote = Remote::open(world.path(NAME))?;
            world.sync(&mut remote)?;
        }
        world.untrack(NAME, "customer")?;
        world.edit(NAME, "UPDATE customer SET name = 'here 3' WHERE id = '2'")?;
        world.central.execute("DELETE FROM member WHERE region = 's'")?;
        remote = Remote::open(world.path(NAME))?;
        world.sync(&mut remote)?;
        let listed = |remote: &Remote, text: &str| -> Result<usize> {
            let list = remote.set_aside(99)?;
            Ok(list.iter().filter_map(|it| it.new.as_deref()).filter(|new| new.contains(text)).count())
        };
        for text in ["here 1", "here 2", "here 3"] {
            ensure!(listed(&remote, text)? == 1, "{kind:?} {text}: {:?}", remote.set_aside(99)?);
        }
        // Sent again one at a time: what is sent and loses is a conflict on record, the others stay.
        world.central.execute("INSERT INTO member VALUES ('anna', 's')")?;
        world.sync(&mut remote)?;
        let retried = remote.retry(&Choice::All)?;
        ensure!(retried.left.iter().any(|why| why.contains("has been changed since")), "{kind:?}: {retried:?}");
        world.sync(&mut remote)?;
        ensure!(listed(&remote, "here 2")? + listed(&remote, "here 3")? == 2, "{kind:?}: {:?}", remote.set_aside(99)?);
        ensure!(remote.drop_set_aside(&Choice::All)? > 0 && remote.set_aside(99)?.is_empty(), "{kind:?}");
        world.sync(&mut remote)?;
        differences(&world, false)?;
    }
    Ok(())
}
