//! Which rows a remote holds.

use headwater_protocol::message::PartitionAction;

use super::database::Database;
use super::logged::{logged, only};
use super::replica::Replica;
use super::values::order;

pub(crate) fn a_row_that_moves_between_held_partitions_is_never_deleted(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'x')");
    let mut anna = Replica::synced(database, &plan, "anna");
    let mut ben = Replica::synced(database, &plan, "ben");
    database.application("UPDATE orders SET region = 'south'");
    let synced = anna.sync(database, &plan);
    assert_eq!(
        (synced.upserts.len(), synced.deletes.len()),
        (1, 0),
        "it lives on in another partition that anna holds"
    );
    assert_eq!(anna.table(&plan, "orders"), [order(1, "south", "x")]);
    let synced = ben.sync(database, &plan);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (0, 1), "ben holds only north");
    database.application("UPDATE orders SET region = 'north', note = 'back'");
    anna.sync(database, &plan);
    ben.sync(database, &plan);
    anna.assert_equals_fresh(database, &plan);
    ben.assert_equals_fresh(database, &plan);
    assert_eq!(ben.table(&plan, "orders"), [order(1, "north", "back")]);
}

pub(crate) fn a_row_that_leaves_is_deleted_at_the_remote(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'north', 'y'), (3, 'east', 'z')");
    let mut ben = Replica::synced(database, &plan, "ben");
    assert_eq!(ben.table(&plan, "orders").len(), 2);
    database
        .application("UPDATE orders SET region = 'east' WHERE id = 1; UPDATE orders SET region = 'north' WHERE id = 3");
    let synced = ben.sync(database, &plan);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (1, 1));
    database.application("UPDATE orders SET region = 'east', id = 20 WHERE id = 2; DELETE FROM orders WHERE id = 1");
    ben.sync(database, &plan);
    ben.assert_equals_fresh(database, &plan);
    assert_eq!(ben.table(&plan, "orders"), [order(3, "north", "z")]);
}

pub(crate) fn a_row_without_a_partition_is_sent_to_nobody(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, NULL, 'x'), (2, 'north', 'y')");
    let mut ben = Replica::synced(database, &plan, "ben");
    assert_eq!(ben.table(&plan, "orders"), [order(2, "north", "y")]);
    database
        .application("UPDATE orders SET region = NULL WHERE id = 2; UPDATE orders SET region = 'north' WHERE id = 1");
    let synced = ben.sync(database, &plan);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (1, 1));
    assert_eq!(ben.table(&plan, "orders"), [order(1, "north", "x")]);
}

pub(crate) fn joining_and_leaving_partitions(database: &Database) {
    let plan = database.standard();
    database.application(
        "INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'south', 'y'), (3, 'west', 'z'); \
         INSERT INTO line VALUES (1, 1, 'north', '1'), (3, 1, 'west', '3')",
    );
    let mut ben = Replica::synced(database, &plan, "ben");
    database.application("DELETE FROM member WHERE user_name = 'ben'; INSERT INTO member VALUES ('ben', 'west')");
    let synced = ben.sync(database, &plan);
    let marks: Vec<(u32, PartitionAction)> = synced.marks.iter().map(|mark| (mark.table, mark.action)).collect();
    let of = |name: &str| super::replica::find(&plan, name).number;
    for table in [of("orders"), of("line")] {
        assert!(marks.contains(&(table, PartitionAction::Left)) && marks.contains(&(table, PartitionAction::Whole)));
    }
    assert_eq!(marks.len(), 4, "tables without partitions are as they were: {marks:?}");
    assert_eq!((synced.summary.partitions_left, synced.summary.partitions_whole), (2, 2));
    ben.assert_equals_fresh(database, &plan);
    assert_eq!(ben.table(&plan, "orders"), [order(3, "west", "z")]);
    // A row that came into the new partition out of one that was left.
    database.application(
        "INSERT INTO member VALUES ('ben', 'south'); UPDATE orders SET region = 'south' WHERE id = 3; \
         DELETE FROM member WHERE region = 'west'",
    );
    ben.sync(database, &plan);
    ben.assert_equals_fresh(database, &plan);
    assert_eq!(ben.table(&plan, "orders"), [order(2, "south", "y"), order(3, "south", "z")]);
    database.application("DELETE FROM member");
    ben.sync(database, &plan);
    assert!(ben.table(&plan, "orders").is_empty() && ben.table(&plan, "line").is_empty());
}

/// A membership that is not committed yet is none.
pub(crate) fn memberships_are_read_in_the_downloads_snapshot(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO orders VALUES (1, 'south', 'x')");
    let mut ben = Replica::synced(database, &plan, "ben");
    let mut application = database.connect();
    application.batch("BEGIN").expect("begun");
    application.batch("INSERT INTO member VALUES ('ben', 'south')").expect("inserted");
    // Only the download: SQLite has one writer, and greeting writes.
    let welcome = headwater_protocol::message::Welcome {
        incarnation: ben.incarnation,
        note: ben.note,
        ..headwater_protocol::message::Welcome::default()
    };
    let synced = ben.download(&mut *database.connect(), &plan, &welcome, None).expect("downloaded");
    assert!(synced.marks.is_empty());
    application.batch("COMMIT").expect("committed");
    ben.sync(database, &plan);
    assert_eq!(ben.table(&plan, "orders"), [order(1, "south", "x")]);
}

/// A join in the membership query returns a partition once for each of several grants.
pub(crate) fn a_partition_that_the_memberships_return_twice_comes_once(database: &Database) {
    let twice = "SELECT region FROM member WHERE user_name = :s.user UNION ALL SELECT region FROM member WHERE user_name = :s.user";
    let plan =
        database.standard_with(|model| model.replace("SELECT region FROM member WHERE user_name = :s.user", twice));
    database.application("INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'north', 'y'), (3, 'south', 'z')");
    let mut anna = Replica::new("anna");
    let first = anna.sync(database, &plan);
    assert_eq!((first.summary.partitions_whole, first.upserts.len()), (7, 3), "{:?}", first.marks);
    let idle = anna.sync(database, &plan);
    assert_eq!((idle.marks.len(), idle.count()), (0, 0), "{:?}", idle.marks);
    database.application("UPDATE orders SET note = 'changed' WHERE id = 1");
    assert_eq!(anna.sync(database, &plan).upserts.len(), 1);
    anna.assert_equals_fresh(database, &plan);
}

/// The value of a partition that no frame has room for.
fn too_large() -> String {
    "x".repeat(5_000)
}

/// It counts as no membership: all other partitions go on, and the log names it.
pub(crate) fn a_membership_that_is_too_large_to_travel_is_left_out(database: &Database) {
    let plan = database.standard();
    let large = too_large();
    database.application(&format!(
        "INSERT INTO member VALUES ('anna', '{large}'); \
         INSERT INTO orders VALUES (1, 'north', 'x'), (2, '{large}', 'y'), (3, 'north', 'moves')"
    ));
    let mut anna = Replica::new("anna");
    let (lines, first) = logged(|| anna.sync(database, &plan));
    assert_eq!(first.upserts.len(), 2);
    let line = only(&lines, &["a membership is left out"]);
    for word in ["partition=region", "user=anna", "bytes=5003", "limit=4096", "values=xxx"] {
        assert!(line.contains(word) && line.len() < 400, "{word}: {line}");
    }
    // A row that moves into it leaves, and one that comes from there arrives.
    database.application(&format!(
        "UPDATE orders SET region = '{large}' WHERE id = 3; UPDATE orders SET region = 'south' WHERE id = 2"
    ));
    let synced = anna.sync(database, &plan);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (1, 1));
    anna.assert_equals_fresh(database, &plan);
    // Nobody uploads into it, and the rest of the upload is applied.
    anna.insert(&plan, "orders", order(4, "north", "mine"));
    anna.insert(&plan, "orders", order(5, &large, "mine"));
    anna.insert(&plan, "orders", order(6, "south", "mine"));
    let (lines, synced) = logged(|| anna.sync(database, &plan));
    assert_eq!(synced.refusals(), [(1, "partition")]);
    assert_eq!(database.number("SELECT count(*) FROM orders WHERE note = 'mine'"), 2);
    only(&lines, &["a membership is left out"]);
}
