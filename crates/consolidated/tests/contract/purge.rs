//! Tombstones are purged by age, and nobody is given a hole for it.

use std::time::Duration;

use headwater_consolidated::system::{PurgeRequest, Purged, is_note_due, purge, take_note};
use headwater_consolidated::{Dialect, Mode};
use headwater_protocol::message::PartitionAction;

use super::database::Database;
use super::replica::{Replica, Synced};
use super::values::customer;

const NOW: PurgeRequest = PurgeRequest { older_than: Duration::ZERO, step: Duration::ZERO };

/// Takes a note and purges all that is older.
fn purge_all(database: &Database) -> Purged {
    let mut connection = database.connect();
    take_note(&mut *connection).expect("noted");
    purge(&mut *connection, &NOW, &mut || true).expect("purged")
}

fn side_rows(database: &Database, table: &str) -> i64 {
    let side = match database.dialect() {
        Dialect::Sqlite => format!("\"headwater_side_{table}\""),
        Dialect::Postgres => format!("headwater.\"side_{table}\""),
    };
    database.number(&format!("SELECT count(*) FROM {side}"))
}

fn has_whole(synced: &Synced) -> bool {
    synced.marks.iter().any(|mark| mark.action == PartitionAction::Whole)
}

pub(crate) fn a_remote_that_is_new_enough_is_given_what_it_has_not_seen(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1), (2, 'b', 'x', 1), (3, 'c', 'x', 1)");
    database.application("DELETE FROM customer WHERE id = 3");
    take_note(&mut *database.connect()).expect("noted");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application("DELETE FROM customer WHERE id = 1; UPDATE customer SET name = 'y' WHERE id = 2");
    // The horizon is the note's, so what is newer stays.
    let purged = purge(&mut *database.connect(), &NOW, &mut || true).expect("purged");
    assert_eq!((purged.has_moved, purged.rows), (true, 1));
    let synced = remote.sync(database, &plan);
    assert!(!has_whole(&synced), "{synced:?}");
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (1, 1));
    remote.assert_equals_fresh(database, &plan);
    database.application("UPDATE customer SET name = 'z' WHERE id = 2");
    assert_eq!(purge_all(database).rows, 2);
    assert!(has_whole(&remote.sync(database, &plan)), "it has not synced since the second note");
    assert!(!has_whole(&remote.sync(database, &plan)));
}

pub(crate) fn a_remote_below_the_horizon_starts_afresh_and_keeps_what_is_pending(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1), (2, 'b', 'x', 1)");
    database.application("INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'south', 'x')");
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.insert(&plan, "customer", customer(3, "c", "mine", 1));
    database.application("DELETE FROM customer WHERE id = 1; DELETE FROM orders");
    assert_eq!(purge_all(database).rows, 4, "a live row and three tombstones");
    let synced = remote.sync(database, &plan);
    assert!(has_whole(&synced), "{synced:?}");
    assert_eq!(synced.uploaded.as_ref().map(|uploaded| uploaded.counts.inserted), Some(1), "{synced:?}");
    assert_eq!(remote.table(&plan, "customer").len(), 2);
    assert_eq!(remote.table(&plan, "orders").len(), 0);
    remote.assert_equals_fresh(database, &plan);
    assert!(!has_whole(&remote.sync(database, &plan)), "once");
}

pub(crate) fn a_download_that_has_begun_is_not_disturbed(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1)");
    let remote = Replica::synced(database, &plan, "anna");
    database.application("DELETE FROM customer");
    let mut reading = database.connect();
    reading.begin(Mode::Download).expect("begun");
    reading.watermark().expect("a snapshot");
    assert_eq!(purge_all(database).rows, 1);
    let seen = remote.watermarks.marks[0].clone();
    assert_eq!(reading.gaps(&seen).expect("an answer"), headwater_consolidated::backend::Gaps::default());
    let side = match database.dialect() {
        Dialect::Sqlite => "SELECT count(*) FROM headwater_side_customer",
        Dialect::Postgres => "SELECT count(*) FROM headwater.side_customer",
    };
    assert_eq!(reading.query(side, &[]).expect("read")[0][0], super::values::int(1), "its snapshot has the tombstone");
    reading.rollback().expect("ended");
    reading.begin(Mode::Download).expect("begun");
    assert!(reading.gaps(&seen).expect("an answer").everything, "the next one has neither");
}

/// What a transaction does that was open when the note was taken is newer than the note, whatever its number.
pub(crate) fn a_transaction_open_at_the_note_is_not_purged(database: &Database) {
    let plan = database.standard();
    if database.dialect() == Dialect::Sqlite {
        return; // one writer: the note would wait for it
    }
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1), (2, 'b', 'x', 1)");
    let mut late = database.connect();
    late.batch("BEGIN").expect("begun");
    late.batch("DELETE FROM customer WHERE id = 1").expect("deleted");
    let mut before = Replica::synced(database, &plan, "anna");
    database.application("UPDATE customer SET name = 'y' WHERE id = 2");
    take_note(&mut *database.connect()).expect("noted");
    let mut after = Replica::synced(database, &plan, "anna");
    late.batch("COMMIT").expect("committed");
    purge(&mut *database.connect(), &NOW, &mut || true).expect("purged");
    for remote in [&mut before, &mut after] {
        let synced = remote.sync(database, &plan);
        assert!(!has_whole(&synced), "{synced:?}");
        assert_eq!(synced.deletes.len(), 1);
        remote.assert_equals_fresh(database, &plan);
    }
}

pub(crate) fn side_tables_do_not_grow(database: &Database) {
    database.standard();
    let values =
        |from: i64| (from..from + 200).map(|id| format!("({id}, 'c{id}', 'x', 1)")).collect::<Vec<_>>().join(", ");
    database.application(&format!("INSERT INTO customer VALUES {}", values(0)));
    for round in 1..5 {
        database.application("UPDATE customer SET changed = changed + 1");
        database.application("DELETE FROM customer");
        database.application(&format!("INSERT INTO customer VALUES {}", values(round * 200)));
        database.application("UPDATE orders SET note = note");
        assert_eq!(side_rows(database, "customer"), 400, "what lives, and the tombstones since the last purge");
        let rows = side_rows(database, "customer") + side_rows(database, "orders@region");
        // The rows that live were noted before the note was taken: they are as old.
        assert_eq!(purge_all(database).rows as i64, rows, "round {round}");
        assert_eq!(side_rows(database, "customer"), 0);
        database.application("UPDATE customer SET changed = 0");
    }
    // More than one statement looks through, and keys of several columns.
    database.application("INSERT INTO orders VALUES (1, 'north', 'x')");
    let lines: Vec<String> = (0..12_000).map(|no| format!("(1, {no}, 'north', 1)")).collect();
    for some in lines.chunks(500) {
        database.application(&format!("INSERT INTO line VALUES {}", some.join(", ")));
    }
    database.application("UPDATE line SET region = 'south' WHERE no % 2 = 0; DELETE FROM line WHERE no % 3 = 0");
    assert_eq!(side_rows(database, "line@region"), 18_000);
    assert_eq!(purge_all(database).rows, 18_000 + 1 + 200);
    assert_eq!(side_rows(database, "line@region"), 0);
}

pub(crate) fn a_horizon_ends_with_its_incarnation(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1)");
    purge_all(database);
    // The numbers of another database, with which a dump came.
    database.application(match database.dialect() {
        Dialect::Sqlite => {
            "UPDATE headwater_horizon SET version = x'01ffffffffffffff7f'; UPDATE headwater_identity SET incarnation = randomblob(16)"
        }
        Dialect::Postgres => {
            r"UPDATE headwater.horizon SET version = '\x01ffffffffff7f00';
              UPDATE headwater.identity SET incarnation = uuid_send(gen_random_uuid())"
        }
    });
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application("UPDATE customer SET name = 'y'");
    let synced = remote.sync(database, &plan);
    assert!(!has_whole(&synced), "{synced:?}");
    assert_eq!(synced.count(), 1);
    database.application("UPDATE customer SET name = 'z'");
    assert!(purge_all(database).has_moved, "nor does it stand in the way of the next one");
    assert!(has_whole(&remote.sync(database, &plan)));
    assert!(!has_whole(&remote.sync(database, &plan)));
}

pub(crate) fn a_purge_that_is_stopped_goes_on_later(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1), (2, 'b', 'x', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application("DELETE FROM customer WHERE id = 1");
    take_note(&mut *database.connect()).expect("noted");
    let stopped = purge(&mut *database.connect(), &NOW, &mut || false).expect("purged");
    assert_eq!(stopped, Purged { has_moved: true, rows: 0 });
    assert!(has_whole(&remote.sync(database, &plan)), "the horizon counts, whatever is left");
    let rest = purge(&mut *database.connect(), &NOW, &mut || true).expect("purged");
    assert_eq!(rest, Purged { has_moved: false, rows: 2 });
    remote.assert_equals_fresh(database, &plan);
}

pub(crate) fn only_what_is_old_is_purged(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'x', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    let day = Duration::from_hours(24);
    let monthly = PurgeRequest { older_than: 30 * day, step: day };
    let run = || purge(&mut *database.connect(), &monthly, &mut || true).expect("purged");
    let hw = database.sql(match database.dialect() {
        Dialect::Sqlite => "headwater_",
        Dialect::Postgres => "headwater.",
    });
    let note_of = |days: u32| {
        take_note(&mut *database.connect()).expect("noted");
        let at = match database.dialect() {
            Dialect::Sqlite => format!("strftime('%Y-%m-%d %H:%M:%f', 'now', '-{days} days') || 'Z'"),
            Dialect::Postgres => format!("clock_timestamp() - interval '{days} days'"),
        };
        database.application(&format!(
            "UPDATE {hw}note SET taken_at = {at} WHERE number = (SELECT max(number) FROM {hw}note)"
        ));
    };
    take_note(&mut *database.connect()).expect("noted");
    assert!(!is_note_due(&mut *database.connect(), Duration::from_mins(5)).expect("an answer"));
    assert_eq!(run(), Purged::default(), "nothing is old enough");
    assert!(!has_whole(&remote.sync(database, &plan)));
    database.application(&format!("DELETE FROM {hw}note WHERE number > 1"));
    note_of(32);
    database.application(&format!("UPDATE {hw}note SET taken_at = (SELECT min(taken_at) FROM {hw}note)"));
    assert!(is_note_due(&mut *database.connect(), Duration::from_mins(5)).expect("an answer"));
    assert_eq!(run(), Purged { has_moved: true, rows: 1 });
    // Another server an hour later: too little for a step.
    database.application("INSERT INTO customer VALUES (2, 'b', 'x', 1)");
    note_of(32);
    assert_eq!(run(), Purged::default());
    note_of(30);
    note_of(29);
    assert_eq!(run(), Purged { has_moved: true, rows: 1 });
    assert_eq!(database.number(&format!("SELECT count(*) FROM {hw}note")), 2, "older notes are gone");
    // The incarnation's first note among them.
    database.application("INSERT INTO customer VALUES (3, 'c', 'x', 1)");
    note_of(30);
    let before = match database.dialect() {
        Dialect::Sqlite => "strftime('%Y-%m-%d %H:%M:%f', 'now', '-50 days') || 'Z'",
        Dialect::Postgres => "clock_timestamp() - interval '50 days'",
    };
    database
        .application(&format!("UPDATE {hw}note SET taken_at = {before} WHERE note IN (SELECT note FROM {hw}horizon)"));
    assert_eq!(run(), Purged { has_moved: true, rows: 1 });
}
