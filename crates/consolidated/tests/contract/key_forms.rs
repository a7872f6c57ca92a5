//! Keys that a column of SQLite would store as another value: refused, and only they.

use headwater_consolidated::Plan;
use headwater_consolidated::check::check;
use headwater_protocol::message::Outcome;
use headwater_protocol::{Row, Value};

use super::database::{Database, plan};
use super::replica::{Replica, Synced};
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
