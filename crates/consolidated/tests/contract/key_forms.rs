//! Keys that a column of SQLite would store as another value: refused, and only they.

use headwater_consolidated::Plan;
use headwater_consolidated::check::check;
use headwater_protocol::message::{Change, Outcome};
use headwater_protocol::{Row, Value};

use super::database::{Database, plan};
use super::replica::{Replica, Synced, find};
use super::values::{decimal, int, text};

/// A table `t` with a key of this type, which travels as the model says.
fn tables(database: &Database, declared: &str, model: &str, conflict: &str) -> Plan {
    database.application(&format!(
        "CREATE TABLE t (k {declared} NOT NULL PRIMARY KEY, v TEXT UNIQUE); CREATE TABLE other (id INTEGER PRIMARY KEY)"
    ));
    let plan = plan(&format!(
        "name = \"keys\"\nversion = 1\n[tables.t]\nkey = [\"k\"]\nconflict = \"{conflict}\"\n\
         columns = {{ k = \"{model} not null\", v = \"text\" }}\n[tables.other]\nkey = [\"id\"]\ncolumns = {{ id = \"int not null\" }}"
    ));
    let mut connection = database.connect();
    headwater_consolidated::system::install(&mut *connection).expect("installed");
    headwater_consolidated::track::track(&mut *connection, &plan).expect("tracked");
    plan
}

fn row(key: &Value, note: &str) -> Row {
    vec![key.clone(), text(note)]
}

fn messages(synced: &Synced) -> Vec<String> {
    let message = |(_, outcome): &(u64, Outcome)| match outcome {
        Outcome::Refused(refusal) => format!("{}: {}", refusal.code.name(), refusal.message),
        Outcome::Conflict(end) => format!("{end:?}"),
    };
    synced.outcomes().iter().map(message).collect()
}

fn refused(given: &str, form: &str) -> String {
    format!("data: key column k would store {given} as {form}: write the key so")
}

#[test]
fn keys_that_would_be_stored_as_other_values_are_refused() {
    for (declared, model, key, given, form) in [
        ("DATETIME", "timestamp", text("1767225600"), "the text '1767225600'", "the integer 1767225600"),
        ("DATETIME", "timestamp", text(" 12.5 "), "the text ' 12.5 '", "the real 12.5"),
        ("DATETIME", "timestamp", Value::Real(800.0), "the real 800.0", "the integer 800"),
        ("DATE", "date", text("2026"), "the text '2026'", "the integer 2026"),
        ("UUID", "uuid", text("1e3"), "the text '1e3'", "the integer 1000"),
        ("DECIMAL(10,0)", "decimal(10,0)", decimal("7.0"), "the text '7.0'", "the integer 7"),
        ("DECIMAL(10,0)", "decimal(10,0)", text("007"), "the text '007'", "the integer 7"),
        ("DECIMAL(10,2)", "decimal(10,2)", decimal("7.50"), "the text '7.50'", "the real 7.5"),
        ("DATE_TEXT", "date", int(5), "the integer 5", "the text '5'"),
    ] {
        let database = Database::sqlite();
        let plan = tables(&database, declared, model, "consolidated_wins");
        let mut remote = Replica::synced(&database, &plan, "anna");
        remote.insert(&plan, "t", row(&key, "x"));
        remote.insert(&plan, "other", vec![int(1)]);
        let synced = remote.sync(&database, &plan);
        assert_eq!(messages(&synced), [refused(given, form)], "{declared}");
        assert_eq!(database.number("SELECT count(*) FROM t"), 0, "{declared}");
        assert_eq!(database.number("SELECT count(*) FROM other"), 1, "the rest goes on");
    }
}

#[test]
fn keys_that_come_back_as_they_were_are_stored() {
    for (declared, model, keys) in [
        ("TIMESTAMP", "timestamp", vec![Value::Timestamp(1), text("2026-01-31T05:00"), int(1_767_225_600)]),
        ("DATETIME", "timestamp", vec![Value::Real(2_461_041.5), text("soon"), Value::Bytes(b"7".to_vec())]),
        ("UUID", "uuid", vec![Value::Uuid([1; 16]), text("7-7")]),
        ("DECIMAL(10,2)", "decimal(10,2)", vec![decimal("7.5"), decimal("-8"), decimal("0.1"), decimal("123456.78")]),
        ("DECIMAL_TEXT", "decimal", vec![decimal("7.50"), decimal("9.0")]),
        ("DATETIME_BLOB", "timestamp", vec![text("1767225600"), Value::Real(800.0)]),
    ] {
        let database = Database::sqlite();
        let plan = tables(&database, declared, model, "consolidated_wins");
        let mut remote = Replica::synced(&database, &plan, "anna");
        for (number, key) in keys.iter().enumerate() {
            remote.insert(&plan, "t", row(key, &number.to_string()));
        }
        let synced = remote.sync(&database, &plan);
        assert!(synced.outcomes().is_empty(), "{declared}: {:?}", synced.outcomes());
        remote.assert_equals_fresh(&database, &plan);
    }
}

#[test]
fn the_row_that_has_the_stored_key_stays_as_it_is() {
    for conflict in ["off", "consolidated_wins", "remote_wins", "merge(remote)"] {
        let database = Database::sqlite();
        let plan = tables(&database, "DATETIME", "timestamp", conflict);
        database.application("INSERT INTO t VALUES (1767225600, 'stored')");
        let mut remote = Replica::synced(&database, &plan, "anna");
        remote.insert(&plan, "t", row(&text("1767225600"), "x"));
        remote.insert(&plan, "t", row(&text("800"), "y"));
        let synced = remote.sync(&database, &plan);
        assert_eq!(synced.refusals(), [(0, "data"), (1, "data")], "{conflict}");
        assert_eq!(database.rows("SELECT v FROM t"), [vec![text("stored")]], "{conflict}");
    }
}

#[test]
fn an_update_of_a_row_that_is_gone_is_refused_too() {
    let database = Database::sqlite();
    let plan = tables(&database, "DATETIME", "timestamp", "remote_wins");
    let mut remote = Replica::synced(&database, &plan, "anna");
    let old = row(&text("800"), "x");
    let change = headwater_protocol::message::Change { old: Some(old), new: Some(row(&text("800"), "y")) };
    remote.send(&plan.tables[0], change);
    assert_eq!(messages(&remote.sync(&database, &plan)), [refused("the text '800'", "the integer 800")]);
    assert_eq!(database.number("SELECT count(*) FROM t"), 0);
}

#[test]
fn many_at_once_are_refused_where_plain_changes_are_taken() {
    let database = Database::sqlite();
    let plan = tables(&database, "DATETIME", "timestamp", "consolidated_wins");
    let mut remote = Replica::synced(&database, &plan, "anna");
    for number in 0..300 {
        let key = if number % 100 == 50 { text(&number.to_string()) } else { Value::Timestamp(number) };
        remote.insert(&plan, "t", row(&key, &number.to_string()));
    }
    assert_eq!(remote.sync(&database, &plan).refusals(), [(50, "data"), (150, "data"), (250, "data")]);
    assert_eq!(database.number("SELECT count(*) FROM t"), 297);
}

/// Unique values that change places are written in two steps.
#[test]
fn keys_in_an_exchange_of_unique_values_are_refused() {
    let database = Database::sqlite();
    let plan = tables(&database, "DECIMAL(10,2)", "decimal(10,2)", "remote_wins");
    database.application("INSERT INTO t VALUES (1, 'a'), (7, 'c')");
    let mut remote = Replica::synced(&database, &plan, "anna");
    remote.update(&plan, "t", row(&decimal("1"), "c"));
    remote.insert(&plan, "t", row(&decimal("7.0"), "a"));
    assert_eq!(remote.sync(&database, &plan).refusals(), [(0, "unique"), (1, "data")]);
    assert_eq!(database.rows("SELECT v FROM t ORDER BY k"), [vec![text("a")], vec![text("c")]]);
}

const RULES: [&str; 5] = ["off", "consolidated_wins", "remote_wins", "merge(remote)", "merge(consolidated)"];

fn change(old: Option<Row>, new: Option<Row>) -> Change {
    Change { old, new }
}

fn codes(synced: &Synced) -> Vec<&'static str> {
    synced.refusals().iter().map(|(_, code)| *code).collect()
}

/// Zeros after the point, and the sign of zero: the same number, and another key at a remote.
pub(crate) fn numbers_of_other_spellings_are_set_aside(create: &dyn Fn() -> Database) {
    for rule in RULES {
        let database = &create();
        let plan = tables(database, "DECIMAL(5,0)", "decimal(5,0)", rule);
        database.application("INSERT INTO t VALUES (4, 'four'), (5, 'five')");
        for (change, given, form) in [
            (change(None, Some(row(&decimal("2.0"), "x"))), "2.0", "2"),
            (change(None, Some(row(&decimal("-0"), "x"))), "-0", "0"),
            (change(None, Some(row(&decimal("4.0"), "x"))), "4.0", "4"),
            (change(None, Some(row(&decimal("4.0"), "four"))), "4.0", "4"),
            (change(Some(row(&decimal("4.00"), "four")), None), "4.00", "4"),
            (change(Some(row(&decimal("4.00"), "gone")), None), "4.00", "4"),
            (change(Some(row(&decimal("5.0"), "five")), Some(row(&decimal("5.0"), "x"))), "5.0", "5"),
            (change(Some(row(&decimal("5"), "five")), Some(row(&decimal("5.0"), "x"))), "5.0", "5"),
        ] {
            let told = format!("{rule}: {change:?}");
            let mut remote = Replica::synced(database, &plan, "anna");
            remote.send(find(&plan, "t"), change);
            let said = messages(&remote.sync(database, &plan));
            let [said] = said.as_slice() else { panic!("{told}: {said:?}") };
            let (given, form) = (format!("{given} as "), format!("{form}: write the key so"));
            let is_spelled = said.replace('\'', "").contains(&given) && said.ends_with(&form);
            assert!(said.starts_with("data: key column k would store ") && is_spelled, "{told}: {said}");
            let stored = [row(&decimal("4"), "four"), row(&decimal("5"), "five")];
            assert_eq!(Replica::synced(database, &plan, "ben").table(&plan, "t"), stored, "{told}");
        }
    }
}

/// To a server it is a deletion and an insert.
pub(crate) fn a_row_stays_whose_key_a_remote_spells_otherwise(create: &dyn Fn() -> Database) {
    for rule in RULES {
        for count in [1, 60] {
            let database = &create();
            let plan = tables(database, "DECIMAL(5,0)", "decimal(5,0)", rule);
            for number in 1..=count {
                database.application(&format!("INSERT INTO t VALUES ({number}, 'of {number}')"));
            }
            let mut remote = Replica::synced(database, &plan, "anna");
            for number in 1..=count {
                let of = |key: &str| row(&decimal(key), &format!("of {number}"));
                remote.delete(&plan, "t", &of(&number.to_string()));
                remote.insert(&plan, "t", of(&format!("{number}.0")));
            }
            let codes = codes(&remote.sync(database, &plan));
            assert_eq!((codes.len(), codes.iter().all(|code| *code == "data")), (2 * count, true), "{rule}: {codes:?}");
            assert_eq!(database.number("SELECT count(*) FROM t"), count as i64, "{rule}");
            // Written as it is stored, it goes up.
            let mut remote = Replica::synced(database, &plan, "anna");
            remote.update(&plan, "t", row(&decimal("1"), "changed"));
            assert!(remote.sync(database, &plan).outcomes().is_empty(), "{rule}");
        }
    }
}

pub(crate) fn children_stay_whose_parent_a_remote_spells_otherwise(database: &Database) {
    database.application(
        "CREATE TABLE parent (k DECIMAL(5,0) PRIMARY KEY NOT NULL, v TEXT); \
         CREATE TABLE child (id INTEGER PRIMARY KEY, k DECIMAL(5,0) REFERENCES parent ON DELETE CASCADE)",
    );
    let plan = plan(
        "name = \"keys\"\nversion = 1\n\
         [tables.parent]\nkey = [\"k\"]\ncolumns = { k = \"decimal(5,0) not null\", v = \"text\" }\n\
         [tables.child]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", k = \"decimal(5,0)\" }\n\
         references = [{ columns = [\"k\"], table = \"parent\", on_delete = \"cascade\" }]",
    );
    headwater_consolidated::track::track(&mut *database.connect(), &plan).expect("tracked");
    database.application("INSERT INTO parent VALUES (1, 'x'); INSERT INTO child VALUES (10, 1)");
    let mut remote = Replica::synced(database, &plan, "anna");
    remote.delete(&plan, "parent", &row(&decimal("1"), "x"));
    remote.insert(&plan, "parent", row(&decimal("1.0"), "x"));
    remote.insert(&plan, "parent", row(&decimal("2.0"), "y"));
    remote.update(&plan, "child", vec![int(10), decimal("1.0")]);
    remote.insert(&plan, "child", vec![int(11), decimal("1.0")]);
    remote.insert(&plan, "child", vec![int(12), decimal("2.0")]);
    let mut codes = codes(&remote.sync(database, &plan));
    codes.sort_unstable();
    assert_eq!(codes, ["data", "data", "data", "foreign_key"]);
    let fresh = Replica::synced(database, &plan, "ben");
    assert_eq!(fresh.table(&plan, "child"), [vec![int(10), decimal("1")], vec![int(11), decimal("1")]]);
    assert_eq!(fresh.table(&plan, "parent"), [row(&decimal("1"), "x")]);
    for id in [10, 11] {
        assert!(
            remote.table(&plan, "child").contains(&vec![int(id), decimal("1")]),
            "{:?}",
            remote.table(&plan, "child")
        );
    }
}

/// Types that round, and types that cut blanks.
pub(crate) fn keys_that_a_type_rounds_are_set_aside(create: &dyn Fn() -> Database) {
    let clock = |micros: i64| Value::Time(micros);
    for (declared, model, stored, key, given) in [
        ("numeric(5,0)", "decimal(5,0)", "1", decimal("1.2"), "1.2 as 1"),
        (
            "timestamp(0)",
            "timestamp",
            "1970-01-01",
            Value::Timestamp(400_000),
            "1970-01-01 00:00:00.400000 as 1970-01-01 00:00:00",
        ),
        ("time(0)", "time", "00:00:00", clock(400_000), "00:00:00.400000 as 00:00:00"),
        ("varchar(3)", "text", "abc", text("abc "), "abc  as abc"),
    ] {
        for rule in ["off", "remote_wins"] {
            let database = &create();
            let plan = tables(database, declared, model, rule);
            let new = Change { old: None, new: Some(row(&key, "new")) };
            let mut remote = Replica::synced(database, &plan, "anna");
            remote.send(find(&plan, "t"), new.clone());
            let said = messages(&remote.sync(database, &plan));
            let form = format!("key column k would store {given}: write the key so");
            assert!(said.len() == 1 && said[0].ends_with(&form), "{declared}: {said:?}");
            database.application(&format!("INSERT INTO t VALUES ('{stored}', 'stored')"));
            let of = |v: &str| Some(row(&key, v));
            for change in [new, change(of("stored"), of("new")), change(of("stored"), None)] {
                let mut remote = Replica::synced(database, &plan, "anna");
                remote.send(find(&plan, "t"), change);
                remote.sync(database, &plan);
                assert_eq!(database.rows("SELECT v FROM t"), [vec![text("stored")]], "{declared} {rule}");
            }
        }
    }
}

#[test]
fn check_warns_of_key_columns_that_change_values() {
    for (declared, model, is_found) in [
        ("DATETIME", "timestamp", true),
        ("UUID", "uuid", true),
        ("DECIMAL(10,2)", "decimal(10,2)", true),
        ("BYTEA", "bytes", true),
        ("DATETIME_BLOB", "timestamp", false),
        ("DATE_TEXT", "date", false),
        ("DECIMAL_TEXT(10,2)", "decimal(10,2)", false),
        ("TEXT", "text", false),
        ("BOOLEAN", "bool", false),
        ("BIGINT", "int", false),
    ] {
        let database = Database::sqlite();
        let plan = tables(&database, declared, model, "off");
        let findings = check(&mut *database.connect(), &plan).expect("checked");
        let found = findings.iter().find(|finding| finding.code == "key_affinity");
        assert_eq!(found.is_some(), is_found, "{declared}: {findings:?}");
    }
}
