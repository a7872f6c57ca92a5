//! Changes set aside: what refers to them, sending them again, giving them up, and starting afresh.

use anyhow::Result;
use headwater_remote::{Choice, PendingChoice, Remote};
use headwater_tests::{KINDS, Kind, World};

/// What a remote's schema does not know: kinds, and that an order has less than a hundred pieces.
const SCHEMA: &str = "CREATE TABLE kind (id TEXT NOT NULL PRIMARY KEY); INSERT INTO kind VALUES ('tea'); \
    CREATE TABLE orders (id TEXT NOT NULL PRIMARY KEY, n BIGINT CHECK (n < 100), label TEXT UNIQUE, kind TEXT REFERENCES kind (id)); \
    CREATE TABLE line (id TEXT NOT NULL PRIMARY KEY, orders TEXT REFERENCES orders (id), up TEXT REFERENCES line (id));";

const MODEL: &str = "name = \"shop\"\nversion = 1\n\
    [tables.orders]\nkey = [\"id\"]\nconflict = \"remote_wins\"\nunique = [[\"label\"]]\n\
    [tables.orders.columns]\nid = \"text not null\"\nn = \"int\"\nlabel = \"text\"\nkind = \"text\"\n\
    [tables.line]\nkey = [\"id\"]\nconflict = \"remote_wins\"\n\
    references = [{ columns = [\"orders\"], table = \"orders\", target = [\"id\"] }, { columns = [\"up\"], table = \"line\", target = [\"id\"] }]\n\
    [tables.line.columns]\nid = \"text not null\"\norders = \"text\"\nup = \"text\"\n";

fn world(kind: Kind) -> Result<(World, Remote)> {
    let world = World::new(kind, SCHEMA, MODEL, &["ann"])?;
    let mut remote = world.remote("one", "ann")?;
    world.sync(&mut remote)?;
    Ok((world, remote))
}

/// Key and reason of each change set aside, in the order of keys.
fn aside(remote: &Remote) -> Result<Vec<(String, String)>> {
    let mut list: Vec<_> = remote.set_aside(100)?.into_iter().map(|change| (change.key, change.reason)).collect();
    list.sort();
    Ok(list)
}

fn pair(key: &str, reason: &str) -> (String, String) {
    (format!("{{\"id\":\"{key}\"}}"), reason.to_owned())
}

#[test]
fn what_refers_to_a_change_set_aside_waits_with_it() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = world(kind)?;
        world.edit(
            "one",
            "INSERT INTO orders VALUES ('bad', 1000, 'a', 'tea'), ('good', 1, 'b', 'tea'); \
             INSERT INTO line VALUES ('l1', 'bad', NULL), ('l2', 'good', NULL), ('a-child', 'good', 'l1')",
        )?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused), (5, 3), "{kind:?}");
        let expected = [pair("a-child", "dependent"), pair("bad", "check"), pair("l1", "dependent")];
        assert_eq!(aside(&remote)?, expected, "{kind:?}");
        // Later ones are not even sent.
        world.edit("one", "INSERT INTO line VALUES ('l3', 'bad', NULL), ('l4', NULL, 'l3')")?;
        assert_eq!(world.sync(&mut remote)?.changes_up, 0, "{kind:?}");
        assert_eq!(aside(&remote)?.len(), 5);
        // They wake with it, in one upload.
        world.edit("one", "UPDATE orders SET n = 10 WHERE id = 'bad'")?;
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused), (5, 0), "{kind:?}");
        assert_eq!(aside(&remote)?, []);
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

#[test]
fn a_change_set_aside_is_sent_again_when_asked() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = world(kind)?;
        world.edit("one", "INSERT INTO orders VALUES ('x', 1, 'x', 'nuts'), ('y', 1, 'y', 'nuts')")?;
        assert_eq!(world.sync(&mut remote)?.refused, 2);
        assert_eq!(world.sync(&mut remote)?.changes_up, 0, "not by itself");
        world.central.execute("INSERT INTO kind VALUES ('nuts')")?;
        let numbers: Vec<i64> = remote.set_aside(10)?.iter().map(|change| change.number).collect();
        assert!(remote.retry(&Choice::Numbers(vec![numbers[0], 9999])).is_err(), "all or nothing");
        assert_eq!(remote.set_aside(10)?.len(), 2);
        assert_eq!(remote.retry(&Choice::Numbers(vec![numbers[0]]))?.changes, 1);
        assert_eq!(world.sync(&mut remote)?.changes_up, 1);
        assert_eq!(remote.retry(&Choice::Table("orders".to_owned()))?.changes, 1);
        assert_eq!(world.sync(&mut remote)?.changes_up, 1);
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
        assert!(remote.retry(&Choice::Table("nothing".to_owned())).is_err());
    }
    Ok(())
}

#[test]
fn a_dropped_change_gives_way_to_the_consolidated_row() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = world(kind)?;
        world
            .central
            .execute("INSERT INTO orders VALUES ('x', 1, 'x', 'tea'), ('y', 1, 'y', 'tea'), ('z', 1, 'z', 'tea')")?;
        world.sync(&mut remote)?;
        world.edit("one", "UPDATE orders SET n = 1000; INSERT INTO orders VALUES ('new', 1000, 'new', 'tea')")?;
        assert_eq!(world.sync(&mut remote)?.refused, 4);
        // Meanwhile one changes and one goes: the downloads are held beside the changes.
        world.central.execute("UPDATE orders SET n = 7 WHERE id = 'x'; DELETE FROM orders WHERE id = 'z'")?;
        assert_eq!(world.sync(&mut remote)?.held, 2);
        assert_eq!(remote.drop_set_aside(&Choice::All)?, 4);
        assert_eq!(world.rows("one", "SELECT id, n FROM orders ORDER BY id")?.len(), 2, "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
        let status = remote.status()?;
        assert_eq!((status.pending, status.set_aside, status.held), (0, 0, 0), "{kind:?}");
        assert_eq!(world.sync(&mut remote)?.changes_up, 0);
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// Of all, those whose parents are here are made again, whatever their order; one whose parent is gone is named, and those below it.
#[test]
fn what_lacks_its_parent_stops_no_other() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = world(kind)?;
        world.central.execute("INSERT INTO orders VALUES ('gone', 1, 'g', 'tea'), ('here', 1, 'h', 'tea')")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "INSERT INTO line VALUES ('a', 'gone', 'z'), ('b', 'here', NULL), ('c', 'here', 'a'), ('z', 'here', NULL)",
        )?;
        // Both go, and what refers to them is on the list alone. One comes back.
        world.central.execute("DELETE FROM orders")?;
        world.sync(&mut remote)?;
        world.sync(&mut remote)?;
        let list = remote.set_aside(10)?;
        assert!(list.len() == 4 && list.iter().all(|change| !change.is_in_place), "{kind:?}: {list:?}");
        world.central.execute("INSERT INTO orders VALUES ('here', 1, 'h', 'tea')")?;
        world.sync(&mut remote)?;
        // A row that refers to nothing and was there before, by an application that enforces no foreign keys.
        world.edit("one", "PRAGMA foreign_keys = OFF; INSERT INTO line VALUES ('y', 'nowhere', NULL)")?;

        let numbers = list.iter().filter(|change| change.key.contains("\"a\"")).map(|change| change.number).collect();
        let error = remote.retry(&Choice::Numbers(numbers)).expect_err("its parent is gone").to_string();
        assert!(error.contains("table \"orders\" that it refers to is not here; sync first"), "{kind:?}: {error}");
        let retried = remote.retry(&Choice::All)?;
        assert_eq!((retried.changes, retried.left.len()), (2, 2), "{kind:?}: {retried:?}");
        let of =
            |parent: &str| retried.left.iter().filter(|why| why.contains(&format!("table {parent:?} that"))).count();
        assert_eq!((of("orders"), of("line")), (1, 1), "{kind:?}: {retried:?}");
        assert_eq!(world.rows("one", "SELECT id FROM line")?.len(), 3, "{kind:?}: b, y and z");

        world.edit("one", "PRAGMA foreign_keys = OFF; DELETE FROM line WHERE id = 'y'")?;
        assert_eq!(world.sync(&mut remote)?.changes_up, 2, "{kind:?}");
        world.central.execute("INSERT INTO orders VALUES ('gone', 1, 'g', 'tea')")?;
        world.sync(&mut remote)?;
        assert_eq!(remote.retry(&Choice::All)?, headwater_remote::Retried { changes: 2, left: Vec::new() }, "{kind:?}");
        assert_eq!(world.sync(&mut remote)?.changes_up, 2, "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
        assert_eq!(aside(&remote)?, []);
    }
    Ok(())
}

/// Values that must be unique were swapped by changes that are both set aside: dropped, they are swapped back.
#[test]
fn swapped_values_are_dropped_together() -> Result<()> {
    let (schema, model) = (
        "CREATE TABLE seat (id TEXT NOT NULL PRIMARY KEY, who TEXT UNIQUE, n BIGINT CHECK (n < 100))",
        "name = \"hall\"\nversion = 1\n[tables.seat]\nkey = [\"id\"]\nunique = [[\"who\"]]\n[tables.seat.columns]\nid = \"text not null\"\n\
         who = \"text\"\nn = \"int\"\n",
    );
    let swap = "UPDATE seat SET who = NULL, n = 1000; UPDATE seat SET who = 'bert' WHERE id = '1'; \
                UPDATE seat SET who = 'anna' WHERE id = '2'";
    for kind in KINDS {
        let world = World::new(kind, schema, model, &["ann"])?;
        world.central.execute("INSERT INTO seat VALUES ('1', 'anna', 1), ('2', 'bert', 2), ('3', NULL, 3)")?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit("one", swap)?;
        assert_eq!(world.sync(&mut remote)?.refused, 3, "{kind:?}");
        assert_eq!(remote.drop_set_aside(&Choice::All)?, 3, "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
        assert_eq!(remote.status()?.pending, 0);

        // One is set aside, the other waits to be sent: neither can be dropped by itself, and the message says what helps.
        world.edit("one", swap)?;
        assert_eq!(world.sync(&mut remote)?.refused, 3, "{kind:?}");
        let first = remote.set_aside(9)?.iter().find(|it| it.key == "{\"id\":\"1\"}").map(|it| it.number);
        remote.retry(&Choice::Numbers(first.into_iter().collect()))?;
        for dropped in [remote.drop_set_aside(&Choice::All), remote.drop_pending(&PendingChoice::All)] {
            let error = dropped.expect_err("the other has its value").to_string();
            assert!(error.contains("`headwater remote retry FILE --all`, then drop both"), "{kind:?}: {error}");
        }
        assert!(remote.retry(&Choice::All)?.left.is_empty(), "{kind:?}");
        assert_eq!(remote.drop_pending(&PendingChoice::All)?, 3, "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// The same where other rows refer to those that swapped: none of them goes, nor what an application's trigger would have go with it.
#[test]
fn values_swapped_by_parents_are_dropped_together() -> Result<()> {
    let (schema, model) = (
        "CREATE TABLE customer (id BIGINT NOT NULL PRIMARY KEY, email TEXT NOT NULL UNIQUE, no BIGINT UNIQUE, credit BIGINT CHECK (credit >= 0)); \
         CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, customer BIGINT NOT NULL REFERENCES customer (id) ON DELETE CASCADE)",
        "name = \"shop\"\nversion = 1\n[tables.customer]\nkey = [\"id\"]\nunique = [[\"email\"], [\"no\"]]\n\
         columns = { id = \"int not null\", email = \"text not null\", no = \"int\", credit = \"int\" }\n\
         [tables.orders]\nkey = [\"id\"]\nreferences = [{ columns = [\"customer\"], table = \"customer\", on_delete = \"cascade\" }]\n\
         columns = { id = \"int not null\", customer = \"int not null\" }\n",
    );
    let swap = "UPDATE customer SET email = 'tmp', no = NULL WHERE id = 3; UPDATE customer SET email = 'c@x', no = 3, credit = -1 WHERE id = 4; \
                UPDATE customer SET email = 'd@x', no = 4, credit = -1 WHERE id = 3";
    for kind in KINDS {
        let world = World::new(kind, schema, model, &["ann"])?;
        world.central.execute(
            "INSERT INTO customer VALUES (3, 'c@x', 3, 1), (4, 'd@x', 4, 1); INSERT INTO orders VALUES (1, 3), (2, 4)",
        )?;
        let mut remote = world.remote("one", "ann")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "ALTER TABLE customer ADD COLUMN mine TEXT; UPDATE customer SET mine = 'kept'; \
             CREATE TRIGGER gone AFTER DELETE ON customer BEGIN DELETE FROM orders WHERE customer = OLD.id; END",
        )?;
        for is_aside in [false, true] {
            world.edit("one", swap)?;
            let dropped = if is_aside {
                assert_eq!(world.sync(&mut remote)?.refused, 2, "{kind:?}");
                remote.drop_set_aside(&Choice::All)?
            } else {
                remote.drop_pending(&headwater_remote::PendingChoice::All)?
            };
            assert_eq!(dropped, 2, "{kind:?}");
            let status = remote.status()?;
            assert_eq!((status.pending, status.set_aside), (0, 0), "{kind:?}");
            assert!(world.diff("one")?.is_equal(false), "{kind:?}");
            assert_eq!(world.rows("one", "SELECT id FROM customer WHERE mine = 'kept'")?.len(), 2, "{kind:?}");
        }
        // Where another change has the value, none is given up.
        world.edit(
            "one",
            "UPDATE customer SET email = 'free' WHERE id = 3; UPDATE customer SET email = 'c@x' WHERE id = 4",
        )?;
        let three = headwater_remote::PendingChoice::Key { table: "customer".to_owned(), key: "{\"id\":3}".to_owned() };
        let error = remote.drop_pending(&three).expect_err("4 has its value").to_string();
        assert!(error.contains("does not fit beside a local one"), "{kind:?}: {error}");
        assert_eq!(world.rows("one", "SELECT 1 FROM customer WHERE email IN ('free', 'c@x')")?.len(), 2, "{kind:?}");
    }
    Ok(())
}

#[test]
fn a_row_is_not_dropped_from_under_another() -> Result<()> {
    let (world, mut remote) = world(Kind::Sqlite)?;
    world.edit(
        "one",
        "INSERT INTO orders VALUES ('bad', 1000, 'a', 'tea'); INSERT INTO line VALUES ('l1', 'bad', NULL)",
    )?;
    world.sync(&mut remote)?;
    let error = remote.drop_set_aside(&Choice::Table("orders".to_owned())).expect_err("the line refers to it");
    assert!(error.to_string().contains("the row {\"id\":\"l1\"} of table \"line\""), "{error}");
    assert_eq!(aside(&remote)?.len(), 2, "nothing was dropped");
    // Nor where another row refers to nothing already.
    world.edit("one", "PRAGMA foreign_keys = OFF; INSERT INTO line VALUES ('a', 'nowhere', NULL)")?;
    assert!(remote.drop_set_aside(&Choice::Table("orders".to_owned())).is_err(), "l1 is another");
    world.edit("one", "DELETE FROM line WHERE id = 'a'")?;
    // What refers to it may wait to be sent, or the other way round: each command says which of the two comes first.
    world.edit("one", "INSERT INTO line VALUES ('l2', 'bad', NULL)")?;
    let error = remote.drop_set_aside(&Choice::All).expect_err("l2 refers to it").to_string();
    assert!(error.contains("`headwater remote drop FILE --pending --table line`"), "{error}");
    assert_eq!(remote.drop_pending(&PendingChoice::Table("line".to_owned()))?, 1);
    assert_eq!(remote.drop_set_aside(&Choice::All)?, 2);
    world
        .edit("one", "INSERT INTO orders VALUES ('new', 1, 'n', 'tea'); INSERT INTO line VALUES ('l3', 'new', NULL)")?;
    world.edit(
        "one",
        "INSERT INTO orders VALUES ('bad', 1000, 'a', 'tea'); INSERT INTO line VALUES ('l4', 'bad', NULL)",
    )?;
    world.sync(&mut remote)?;
    world.edit("one", "PRAGMA foreign_keys = OFF; UPDATE line SET orders = 'later' WHERE id = 'l4'")?;
    world.sync(&mut remote)?;
    world.edit("one", "INSERT INTO orders VALUES ('later', 1, 'l', 'tea')")?;
    let error = remote.drop_pending(&PendingChoice::All).expect_err("l4 refers to it").to_string();
    assert!(error.contains("`headwater remote drop FILE --table line`"), "{error}");
    assert_eq!(remote.drop_set_aside(&Choice::All)?, 2);
    assert_eq!(remote.drop_pending(&PendingChoice::All)?, 1);
    assert!(world.diff("one")?.is_equal(false));
    Ok(())
}

/// A row that was set aside and is mended counts as pending from then on, before the next sync too: drop does not take it for the change
/// that was refused.
#[test]
fn a_mended_row_is_not_dropped_for_the_refused_one() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = world(kind)?;
        world
            .central
            .execute("INSERT INTO orders VALUES ('x', 1, 'x', 'tea'), ('y', 1, 'y', 'tea'), ('z', 1, 'z', 'tea')")?;
        world.sync(&mut remote)?;
        world.edit("one", "UPDATE orders SET n = 1000")?;
        assert_eq!(world.sync(&mut remote)?.refused, 3);
        world.edit("one", "UPDATE orders SET n = 10 WHERE id = 'x'; DELETE FROM orders WHERE id = 'y'")?;
        let stands = |remote: &Remote| -> Result<_> {
            let status = remote.status()?;
            let marked = remote.pending(10)?.iter().filter(|change| change.is_set_aside).count();
            Ok((status.pending, status.set_aside, marked, aside(remote)?))
        };
        assert_eq!(stands(&remote)?, (2, 1, 1, vec![pair("z", "check")]), "{kind:?}");
        let refused =
            remote.drop_set_aside(&Choice::Numbers(vec![1])).expect_err("it has been changed since").to_string();
        assert!(refused.contains("has been changed since") && refused.contains("--pending"), "{refused}");
        assert_eq!(remote.drop_set_aside(&Choice::All)?, 1, "{kind:?}: z alone");
        assert_eq!(stands(&remote)?, (2, 0, 0, Vec::new()), "{kind:?}");
        assert_eq!(world.rows("one", "SELECT n FROM orders WHERE id = 'x'")?, [[Some("10".to_owned())]], "{kind:?}");

        world.edit("one", "UPDATE orders SET n = 2000 WHERE id = 'z'")?;
        assert_eq!(world.sync(&mut remote)?.refused, 1);
        world.edit("one", "UPDATE orders SET n = 20 WHERE id = 'z'")?;
        assert_eq!(remote.drop_pending(&PendingChoice::Table("orders".to_owned()))?, 1, "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// A row that stood in the way of a downloaded one is only on the list. It is made again once there is room.
#[test]
fn a_change_that_only_the_list_has_is_made_again() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = world(kind)?;
        world.central.execute("INSERT INTO orders VALUES ('theirs', 1, 'same', 'tea')")?;
        world.edit("one", "INSERT INTO orders VALUES ('ours', 1, 'same', 'tea')")?;
        world.sync(&mut remote)?;
        let list = remote.set_aside(10)?;
        assert_eq!((list.len(), list[0].is_in_place), (1, false), "{kind:?}: {list:?}");
        assert!(remote.retry(&Choice::Numbers(vec![list[0].number])).is_err(), "theirs still stands there");
        // Of all, what can be sent is: one that can't be made again stops no other.
        world.edit("one", "INSERT INTO orders VALUES ('nuts', 1, 'nuts', 'nuts')")?;
        assert_eq!(world.sync(&mut remote)?.refused, 1);
        let numbers: Vec<i64> = remote.set_aside(10)?.iter().map(|change| change.number).collect();
        let retried = remote.retry(&Choice::All)?;
        assert_eq!((retried.changes, retried.left.len()), (1, 1), "{kind:?}: {retried:?}");
        assert!(retried.left[0].contains("must be unique"), "{retried:?}");
        assert_eq!(world.sync(&mut remote)?.refused, 1);
        let again = remote.set_aside(10)?.iter().map(|change| change.number).max();
        assert!(again > numbers.iter().copied().max(), "a number never means another change");
        remote.drop_set_aside(&Choice::Numbers(again.into_iter().collect()))?;
        world.central.execute("DELETE FROM orders WHERE id = 'theirs'")?;
        world.sync(&mut remote)?;
        assert_eq!(remote.retry(&Choice::All)?.changes, 1);
        assert_eq!(world.sync(&mut remote)?.changes_up, 1);
        assert_eq!(world.central.rows("SELECT id FROM orders")?, [[Some("ours".to_owned())]], "{kind:?}");
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

#[test]
fn everything_comes_down_afresh_when_asked() -> Result<()> {
    for kind in KINDS {
        let (world, mut remote) = world(kind)?;
        world.central.execute("INSERT INTO orders VALUES ('x', 1, 'x', 'tea'), ('y', 1, 'y', 'tea')")?;
        world.sync(&mut remote)?;
        world.edit(
            "one",
            "UPDATE orders SET n = 5 WHERE id = 'y'; INSERT INTO orders VALUES ('bad', 1000, 'b', 'tea')",
        )?;
        // A row is lost behind the back of change tracking.
        world.edit(
            "one",
            "INSERT INTO hw_applying VALUES (0); DELETE FROM orders WHERE id = 'x'; DELETE FROM hw_applying",
        )?;
        remote.reset()?;
        assert_eq!(remote.status()?.pending, 2, "pending changes stay");
        let report = world.sync(&mut remote)?;
        assert_eq!((report.changes_up, report.refused), (2, 1));
        assert_eq!(world.rows("one", "SELECT n FROM orders WHERE id IN ('x', 'y') ORDER BY id")?.len(), 2);
        remote.drop_set_aside(&Choice::All)?;
        assert!(world.diff("one")?.is_equal(false), "{kind:?}");
    }
    Ok(())
}

/// A SQLite head stores such keys as other values: stored, the rows would come down once more beside the remote's own.
#[test]
fn a_key_that_the_head_would_store_as_another_value_is_set_aside() -> Result<()> {
    let model = "name = \"readings\"\nversion = 1\n[tables.reading]\nkey = [\"at\"]\nconflict = \"remote_wins\"\n\
        [tables.reading.columns]\nat = \"timestamp not null\"\nv = \"text\"\n";
    let schema = "CREATE TABLE reading (at DATETIME NOT NULL PRIMARY KEY, v TEXT); \
        INSERT INTO reading VALUES (1700000000, 'a');";
    let world = World::new(Kind::Sqlite, schema, model, &["ann"])?;
    let mut remote = world.remote("one", "ann")?;
    world.sync(&mut remote)?;
    world.edit(
        "one",
        "INSERT INTO reading VALUES (strftime('%s', '2026-01-01'), 'x'), (800.0, 'real'), (801, 'fits')",
    )?;
    assert_eq!(world.sync(&mut remote)?.refused, 2);
    assert_eq!(world.sync(&mut remote)?.changes_up, 0);
    let reasons: Vec<String> = aside(&remote)?.into_iter().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, ["data", "data"]);
    let count = || world.central.rows("SELECT count(*) FROM reading");
    assert_eq!(count()?, [[Some("2".to_owned())]]);
    world.edit("one", "UPDATE reading SET v = v || '!'")?;
    assert_eq!(world.sync(&mut remote)?.refused, 2, "still");
    world.edit("one", "UPDATE reading SET at = CAST(at AS INTEGER) WHERE typeof(at) <> 'integer'")?;
    assert_eq!(world.sync(&mut remote)?.refused, 0);
    assert_eq!(aside(&remote)?, []);
    assert_eq!(count()?, [[Some("4".to_owned())]]);
    assert!(world.diff("one")?.is_equal(false));
    Ok(())
}
