//! What a remote has seen.

use headwater_consolidated::Dialect;
use headwater_protocol::message::Welcome;

use super::database::Database;
use super::replica::Replica;
use super::values::{customer, decimal, int};

pub(crate) fn what_was_seen_is_not_sent_again(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    for round in 0..5 {
        database.application(&format!("INSERT INTO customer VALUES ({round}, 'c{round}', 'x', 1)"));
        assert_eq!(remote.sync(database, &plan).count(), 1);
        assert_eq!(remote.sync(database, &plan).count(), 0);
    }
    remote.assert_equals_fresh(database, &plan);
}

/// Of two transactions the one that began first commits last; a remote syncs in between. SQLite has one writer, so there the
/// download merely must not see what is not committed.
pub(crate) fn a_transaction_that_commits_late_is_not_missed(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    let mut late = database.connect();
    late.batch("BEGIN").expect("begun");
    late.batch("INSERT INTO customer VALUES (1, 'a', 'late', 1)").expect("inserted");
    if database.dialect() == Dialect::Postgres {
        database.application("INSERT INTO customer VALUES (2, 'b', 'early', 1)");
    }
    let welcome = Welcome { incarnation: remote.incarnation, note: remote.note, ..Welcome::default() };
    let mut seen = 0;
    for _ in 0..3 {
        seen += remote.download(&mut *database.connect(), &plan, &welcome, None).expect("downloaded").count();
    }
    assert_eq!(seen, usize::from(database.dialect() == Dialect::Postgres), "each row once, none uncommitted");
    late.batch("COMMIT").expect("committed");
    assert_eq!(remote.sync(database, &plan).upserts[0].1, customer(1, "a", "late", 1));
    assert_eq!(remote.sync(database, &plan).count(), 0);
    remote.assert_equals_fresh(database, &plan);
    // The same with a first download, which reads the table itself.
    late.batch("BEGIN").expect("begun");
    late.batch("UPDATE customer SET name = 'later' WHERE id = 1").expect("updated");
    let mut fresh = Replica::new("anna");
    fresh.download(&mut *database.connect(), &plan, &welcome, None).expect("downloaded");
    late.batch("COMMIT").expect("committed");
    fresh.sync(database, &plan);
    fresh.assert_equals_fresh(database, &plan);
}

pub(crate) fn watermarks_of_another_database_are_refused(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1)");
    let synced = Replica::synced(database, &plan, "anna");
    let whole = |remote: &mut Replica| remote.sync(database, &plan).summary.partitions_whole > 0;
    assert!(!whole(&mut synced.clone()));
    for wrong in [vec![], vec![0xff; 40], synced.watermarks.marks[0][1..].to_vec(), {
        let mut future = synced.watermarks.marks[0].clone();
        future.iter_mut().skip(1).for_each(|byte| *byte = 0x7f);
        future
    }] {
        let mut remote = synced.clone();
        remote.watermarks.marks[0] = wrong;
        assert!(whole(&mut remote));
        remote.assert_equals_fresh(database, &plan);
    }
    let mut elsewhere = synced.clone();
    elsewhere.incarnation = [9; 16];
    assert!(whole(&mut elsewhere), "another incarnation");
    let mut lost = synced;
    lost.note = [9; 16];
    assert!(whole(&mut lost), "a note that this database does not have");
}

pub(crate) fn own_changes_are_not_sent_back_unless_the_database_changed_them(database: &Database) {
    let plan = database.standard();
    database.application(match database.dialect() {
        Dialect::Sqlite => {
            "CREATE TRIGGER polish AFTER INSERT ON customer WHEN NEW.name = 'rough' \
             BEGIN UPDATE customer SET name = 'polished' WHERE id = NEW.id; END"
        }
        Dialect::Postgres => {
            "CREATE FUNCTION polish() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN IF NEW.name = 'rough' THEN NEW.name := 'polished'; END IF; RETURN NEW; END$$; \
             CREATE TRIGGER polish BEFORE INSERT ON customer FOR EACH ROW EXECUTE FUNCTION polish()"
        }
    });
    let mut one = Replica::synced(database, &plan, "anna");
    let mut other = Replica::synced(database, &plan, "ben");
    one.insert(&plan, "customer", customer(1, "a", "fine", 1));
    one.insert(&plan, "customer", customer(2, "b", "rough", 1));
    one.insert(&plan, "line", vec![int(7), int(1), super::values::text("north"), decimal("1.5")]);
    let synced = one.sync(database, &plan);
    assert_eq!(synced.upserts, [(0, customer(2, "b", "polished", 1))], "only what is not as it was uploaded");
    assert_eq!(synced.refusals(), [(2, "foreign_key")]);
    assert_eq!(other.sync(database, &plan).upserts.len(), 2, "the other remote gets both");
    one.delete(&plan, "customer", &customer(1, "a", "fine", 1));
    assert_eq!(one.sync(database, &plan).count(), 0, "nor is a deletion sent back");
    assert_eq!(other.sync(database, &plan).deletes.len(), 1);
    // Somebody else changes the row after the upload and before the download.
    one.update(&plan, "customer", customer(2, "b", "mine", 2));
    let mut connection = database.connect();
    let welcome = one.greet(&mut *connection, &plan).expect("greeted");
    let uploaded = one.upload(&mut *connection, &plan).expect("uploaded");
    database.application("UPDATE customer SET name = 'theirs' WHERE id = 2");
    let synced = one.download(&mut *connection, &plan, &welcome, Some(&uploaded)).expect("downloaded");
    assert_eq!(synced.upserts, [(0, customer(2, "b", "theirs", 2))]);
}
