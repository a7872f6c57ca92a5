//! Counters, through the database (the pure rule is tested beside `judge`).

use headwater_consolidated::upload::Verdict;
use headwater_consolidated::{Plan, check, track};
use headwater_protocol::Row;
use headwater_protocol::message::{ConflictEnd, Outcome};

use super::database::{Database, plan};
use super::replica::{Replica, Synced};
use super::values::{decimal, int, text};

const MODEL: &str = r#"
    name = "counters"
    version = 1
    [tables.stock]
    key = ["id"]
    conflict = { merge = "consolidated", sum = ["qty", "price"] }
    columns = { id = "int not null", note = "text", qty = "int", price = "decimal(6,2)" }
"#;

fn made(database: &Database) -> Plan {
    let price = match database.dialect() {
        headwater_consolidated::Dialect::Sqlite => "DECIMAL_TEXT(6,2)",
        headwater_consolidated::Dialect::Postgres => "numeric(6,2)",
    };
    database.application(&format!(
        "CREATE TABLE stock (id {{int}} NOT NULL PRIMARY KEY, note text, qty {{int}} CHECK (qty >= 0), price {price}, seen {{int}} DEFAULT 0)"
    ));
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

fn stock(id: i64, note: &str, qty: i64, price: &str) -> Row {
    vec![int(id), text(note), int(qty), decimal(price)]
}

fn applied(synced: &Synced) {
    assert_eq!(synced.outcomes(), [], "no conflict, and nothing refused");
    assert_eq!(synced.uploaded.as_ref().map(|uploaded| uploaded.verdict), Some(Verdict::Applied));
}

pub(crate) fn what_two_remotes_take_is_taken_twice(database: &Database) {
    let plan = made(database);
    database.application("INSERT INTO stock (id, note, qty, price) VALUES (1, 'a', 10, '5.00')");
    let [mut one, mut two] = [(); 2].map(|()| Replica::synced(database, &plan, "anna"));
    one.update(&plan, "stock", stock(1, "a", 9, "4.90"));
    two.update(&plan, "stock", stock(1, "a", 9, "4.90"));
    applied(&one.sync(database, &plan));
    applied(&two.sync(database, &plan));
    assert_eq!(two.table(&plan, "stock"), [stock(1, "a", 8, "4.80")], "the total comes down");
    one.sync(database, &plan);
    one.assert_equals_fresh(database, &plan);
    two.assert_equals_fresh(database, &plan);
    // What the head took meanwhile stays taken, and a column beside it that nobody else has changed is taken over.
    database.application("UPDATE stock SET qty = qty - 3");
    two.update(&plan, "stock", stock(1, "b", 4, "4.80"));
    applied(&two.sync(database, &plan));
    assert_eq!(two.table(&plan, "stock"), [stock(1, "b", 1, "4.80")]);
    let recorded = if database.dialect() == headwater_consolidated::Dialect::Sqlite {
        "headwater_conflict"
    } else {
        "headwater.conflict"
    };
    assert_eq!(database.number(&format!("SELECT count(*) FROM {recorded}")), 0);
}

/// Both write the same beside a counter, which one of them leaves as it is: the total comes down, whichever download brings it.
pub(crate) fn the_same_beside_a_counter_leaves_the_total(database: &Database) {
    let plan = made(database);
    database.application("INSERT INTO stock (id, note, qty, price) VALUES (1, 'a', 10, '5.00')");
    let mut remote = Replica::synced(database, &plan, "anna");
    database.application("UPDATE stock SET qty = 6, note = 'b'");
    remote.update(&plan, "stock", stock(1, "b", 10, "5.00"));
    remote.upload(&mut *database.connect(), &plan).expect("applied");
    assert_eq!(database.number("SELECT qty FROM stock"), 6);
    remote.sync(database, &plan);
    remote.assert_equals_fresh(database, &plan);
}

/// Large uploads go another way, as long as each row is as the remote had it.
pub(crate) fn many_at_once_and_one_that_comes_again(database: &Database) {
    let plan = made(database);
    let rows: Vec<String> = (0..200).map(|id| format!("({id}, 'a', 10, '5.00')")).collect();
    database.application(&format!("INSERT INTO stock (id, note, qty, price) VALUES {}", rows.join(", ")));
    let [mut one, mut two] = [(); 2].map(|()| Replica::synced(database, &plan, "anna"));
    for id in 0..200 {
        one.update(&plan, "stock", stock(id, "a", 9, "5.00"));
        two.update(&plan, "stock", stock(id, "a", if id % 2 == 0 { 9 } else { 8 }, "5.00"));
    }
    applied(&one.sync(database, &plan));
    // The receipt gets lost, and the upload comes again.
    let sent = two.upload_only(&mut *database.connect(), &plan).expect("applied");
    assert_eq!((sent.verdict, sent.counts.conflicts), (Verdict::Applied, 0));
    let again = two.sync(database, &plan);
    assert_eq!(again.uploaded.as_ref().map(|uploaded| uploaded.verdict), Some(Verdict::Replayed));
    assert_eq!(database.number("SELECT CAST(sum(qty) AS bigint) FROM stock"), 100 * 8 + 100 * 7);
    two.assert_equals_fresh(database, &plan);
}

pub(crate) fn a_total_that_the_database_refuses_is_set_aside(database: &Database) {
    let plan = made(database);
    database.application("INSERT INTO stock (id, note, qty, price) VALUES (1, 'a', 10, '5.00'), (2, 'a', 10, '9999.00'), (3, 'a', 10, '5.00')");
    let mut one = Replica::synced(database, &plan, "anna");
    database.application("UPDATE stock SET qty = 3; UPDATE stock SET price = '9999.50' WHERE id = 2");
    one.update(&plan, "stock", stock(1, "a", 6, "5.00"));
    one.update(&plan, "stock", stock(2, "a", 10, "9999.50"));
    one.update(&plan, "stock", stock(3, "a", 9, "5.00"));
    let synced = one.sync(database, &plan);
    assert_eq!(synced.refusals(), [(0, "check"), (1, "data")], "3 - 4 is less than nothing, and 10000.00 is too long");
    assert_eq!(database.number("SELECT CAST(sum(qty) AS bigint) FROM stock"), 3 + 3 + 2);
}

pub(crate) fn beside_a_conflict_and_a_deletion(database: &Database) {
    let plan = made(database);
    database.application("INSERT INTO stock (id, note, qty, price) VALUES (1, 'a', 10, '5.00'), (2, 'a', 10, '5.00'), (3, 'a', 10, NULL)");
    let mut one = Replica::synced(database, &plan, "anna");
    database.application("UPDATE stock SET note = 'c', qty = 7 WHERE id = 1; DELETE FROM stock WHERE id = 2");
    database.application("UPDATE stock SET price = '2.00' WHERE id = 3");
    one.update(&plan, "stock", stock(1, "b", 9, "5.00"));
    one.update(&plan, "stock", stock(2, "a", 9, "5.00"));
    one.update(&plan, "stock", stock(3, "a", 10, "1.00"));
    let synced = one.sync(database, &plan);
    let ends: Vec<_> = synced.outcomes().iter().map(|(ordinal, outcome)| (*ordinal, outcome.clone())).collect();
    let ended = |ordinal, end| (ordinal, Outcome::Conflict(end));
    let expected = [ended(0, ConflictEnd::Merged), ended(1, ConflictEnd::Remote), ended(2, ConflictEnd::Consolidated)];
    assert_eq!(ends, expected);
    let rows = [stock(1, "c", 6, "5.00"), stock(2, "a", 9, "5.00"), stock(3, "a", 10, "2.00")];
    assert_eq!(one.table(&plan, "stock"), rows, "the update survives the deletion with its new image");
    one.assert_equals_fresh(database, &plan);
}

/// No version tells there that the row has changed.
pub(crate) fn where_a_script_says_what_comes_down(database: &Database) {
    made(database);
    database.application("INSERT INTO stock (id, note, qty, price) VALUES (1, 'a', 10, '5.00')");
    let mut model = plan(MODEL).model;
    model.tables[0].scripts = vec![headwater_model::script::Script {
        step: headwater_model::script::Step::DownloadCursor,
        file: "seen.sql".to_owned(),
        sql: "SELECT id, note, qty, price FROM stock WHERE seen > 0 OR :s.last_download < '1980-01-01'".to_owned(),
    }];
    let plan = Plan::new(model);
    let mut one = Replica::synced(database, &plan, "anna");
    assert_eq!(one.table(&plan, "stock"), [stock(1, "a", 10, "5.00")]);
    database.application("UPDATE stock SET qty = 7");
    one.update(&plan, "stock", stock(1, "a", 9, "5.00"));
    let sent = one.clone();
    applied(&one.sync(database, &plan));
    assert_eq!(one.table(&plan, "stock"), [stock(1, "a", 6, "5.00")], "the cursor does not give it");
    let mut again = sent;
    again.sync(database, &plan);
    assert_eq!(again.table(&plan, "stock"), [stock(1, "a", 6, "5.00")], "nor where the receipt comes again");
}

pub(crate) fn only_what_is_added_up_exactly_can_be_a_counter(database: &Database) {
    database.application(
        "CREATE TABLE stock (id {int} NOT NULL PRIMARY KEY, note text, qty {real}, price {decimal}, seen {int})",
    );
    let findings = check::check(&mut *database.connect(), &plan(MODEL)).expect("checked");
    let codes: Vec<_> =
        findings.iter().filter(|it| it.code == "counter_type").filter_map(|it| it.column.as_deref()).collect();
    let expected: &[&str] =
        if database.dialect() == headwater_consolidated::Dialect::Sqlite { &["qty"] } else { &["price", "qty"] };
    assert_eq!(codes, expected);
}

/// A column of a SQLite file may hold more digits than its declared type says.
#[test]
fn a_change_that_leaves_a_counter_as_it_is_is_made_whatever_is_stored() {
    let database = Database::sqlite();
    database.application("CREATE TABLE stock (id INTEGER PRIMARY KEY, note TEXT, qty BIGINT, price DECIMAL(6,2))");
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    database.application("INSERT INTO stock VALUES (1, 'a', 10, 1e20)");
    let mut remote = Replica::synced(&database, &plan, "anna");
    let huge = "100000000000000000000";
    remote.update(&plan, "stock", stock(1, "b", 9, huge));
    applied(&remote.sync(&database, &plan));
    remote.assert_equals_fresh(&database, &plan);
    assert_eq!(remote.table(&plan, "stock"), [stock(1, "b", 9, huge)]);
}
