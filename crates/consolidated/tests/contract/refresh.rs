//! Tables that come whole to every remote that has not seen a transaction: how that is kept (PostgreSQL).

use headwater_consolidated::{check, system, track};

use super::database::Database;
use super::kin::stocked;
use super::replica::Replica;

/// What an older build made.
const OLD_FORM: &str = "DROP TABLE headwater.refresh CASCADE; ALTER TABLE headwater.tracked DROP COLUMN installed_at; \
    CREATE TABLE headwater.refresh (table_name text PRIMARY KEY, transaction xid8 NOT NULL, incarnation bytea NOT NULL)";

/// What an older build's server, or one of its triggers, writes.
const OLD_WRITE: &str = "INSERT INTO headwater.refresh (table_name, transaction, incarnation) \
    SELECT 'customer', pg_current_xact_id(), incarnation FROM headwater.identity ON CONFLICT (table_name) \
    DO UPDATE SET transaction = EXCLUDED.transaction, incarnation = EXCLUDED.incarnation";

pub(crate) fn the_table_of_an_older_build_goes_on_and_is_upgraded(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
    database.application(OLD_FORM);
    let incarnation = system::identity(&mut *database.connect()).expect("an identity").incarnation;
    let mut remote = Replica::synced(database, &plan, "anna");
    let mut whole = |what: &str, expected: usize| {
        let synced = remote.sync(database, &plan);
        assert_eq!((synced.marks.len(), synced.upserts.len()), (expected, expected), "{what}");
        remote.assert_equals_fresh(database, &plan);
    };
    whole("nothing has changed", 0);
    database.application(OLD_WRITE);
    whole("an older build writes to its own table", 1);
    system::take_note(&mut *database.connect()).expect("a note is taken beside the old table");
    track::track(&mut *database.connect(), &plan).expect("upgraded");
    assert_eq!(track::track(&mut *database.connect(), &plan).expect("again"), Vec::<String>::new());
    whole("what was seen stays seen", 0);
    database.application(OLD_WRITE);
    database.application(OLD_WRITE);
    whole("triggers and servers of an older build go on after the upgrade", 1);
    database.application(&format!("BEGIN; {}; COMMIT", append("'new'")));
    whole("new rows go to the new table", 1);
    assert_eq!(database.number("SELECT count(*) FROM ONLY headwater.refresh"), 1);
    assert_eq!(system::identity(&mut *database.connect()).expect("an identity").incarnation, incarnation);
}

fn append(cause: &str) -> String {
    headwater_model::tracking::postgres::refresh::append(["customer"], cause)
}

/// Nobody waits, what commits late is not missed, and the table stays small.
pub(crate) fn rows_are_only_added_and_fold(database: &Database) {
    let plan = database.standard();
    database.application("INSERT INTO customer VALUES (1, 'a', 'Ada', 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    let mut late = database.connect();
    late.batch(&format!("BEGIN; {append}; {append}", append = append("'late'"))).expect("an open transaction");
    // A newer transaction is over before.
    database.application("UPDATE customer SET name = 'between'");
    // It would wait for the first if both wrote to one row.
    database.application(&format!("SET lock_timeout = '2s'; BEGIN; {}; COMMIT", append("'early'")));
    assert_eq!(remote.sync(database, &plan).marks.len(), 1, "what has been committed");
    assert_eq!(remote.sync(database, &plan).marks.len(), 0);
    late.batch("COMMIT").expect("committed late");
    let note = || system::take_note(&mut *database.connect()).expect("a note").len();
    note();
    assert_eq!(
        remote.sync(database, &plan).marks.len(),
        1,
        "the later row did not know that the earlier transaction was over"
    );
    remote.assert_equals_fresh(database, &plan);
    for number in 0..20 {
        database.application(&format!("BEGIN; {}; COMMIT", append(&format!("'number {number}'"))));
    }
    assert_eq!(remote.sync(database, &plan).marks.len(), 1);
    assert!(database.number("SELECT count(*) FROM headwater.refresh_event") > 20);
    // A row sees those before it once no transaction of the cluster, another database's among them, is older.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        note();
        if database.number("SELECT count(*) FROM headwater.refresh_event") == 1 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the rows stay");
        database.application(&format!("BEGIN; {}; COMMIT", append("'one more'")));
    }
    remote.sync(database, &plan);
    assert_eq!(remote.sync(database, &plan).marks.len(), 0);
}

/// A remote that has not seen any of it gets the table whole after the rows were folded, too; `check` names a cause that comes again, and no
/// other.
pub(crate) fn the_cause_is_named_by_check(database: &Database) {
    let plan = database.standard();
    let mut remote = Replica::synced(database, &plan, "anna");
    let found = || {
        let findings = check::check(&mut *database.connect(), &plan).expect("checked");
        let afresh = findings.into_iter().filter(|finding| finding.code == "comes_afresh");
        afresh.map(|finding| format!("{}: {}", finding.message, finding.mend)).collect::<Vec<_>>()
    };
    let event = |cause: &str| database.application(&format!("BEGIN; {}; COMMIT", append(cause)));
    assert_eq!(found(), Vec::<String>::new());
    event("'column note was exchanged'");
    assert_eq!(remote.sync(database, &plan).marks.len(), 1);
    assert_eq!(found(), Vec::<String>::new(), "it comes whole once, and nothing is to be done");
    for cause in ["'one'", "'a change could not be noted (54000): the key''s value is too long'"] {
        event(cause);
    }
    system::take_note(&mut *database.connect()).expect("a note");
    assert_eq!(remote.sync(database, &plan).marks.len(), 1);
    let warned = found().concat();
    assert!(warned.contains("the key's value") && warned.contains("write a shorter value"), "{warned}");
    event("'another table has its name now'");
    assert_eq!(found().concat(), warned, "an event of another kind does not hide it");
    let track_ran = "UPDATE headwater.tracked SET installed_at = installed_at - interval";
    database
        .application(&format!("{track_ran} '30 days'; UPDATE headwater.refresh_event SET at = at - interval '6 days'"));
    assert_eq!(found().len(), 1, "it may write such a value again");
    database.application("UPDATE headwater.refresh_event SET at = at - interval '2 days'");
    assert_eq!(found(), Vec::<String>::new(), "the application writes no such values any more");
    assert_eq!(remote.sync(database, &plan).marks.len(), 1);
}

/// Two transactions that read old snapshots and move parents have the same tables sent afresh: neither waits for the other.
pub(crate) fn two_moves_that_see_old_snapshots_do_not_wait(database: &Database) {
    let plan = stocked(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    let mover = |statement: &str| {
        let mut mover = database.connect();
        mover.batch("SET lock_timeout = '2s'; BEGIN ISOLATION LEVEL REPEATABLE READ").expect("begun");
        mover.query("SELECT count(*) FROM shop", &[]).expect("a snapshot");
        mover.batch(statement).expect(statement);
        mover
    };
    let mut first = mover("UPDATE shop SET region = 'south' WHERE id = 1");
    let mut second = mover("UPDATE shop SET region = 'north' WHERE id = 2");
    second.batch("COMMIT").expect("the second");
    anna.sync(database, &plan);
    first.batch("COMMIT").expect("the first");
    anna.sync(database, &plan);
    anna.assert_equals_fresh(database, &plan);
}
