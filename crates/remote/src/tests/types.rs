//! Values of every type come down, are copied by the application's own SQL, and go up as they came: to the bit.

use headwater_protocol::row::put_row;
use headwater_protocol::text::MICROS_A_DAY;
use headwater_protocol::value::{NEGATIVE_INFINITY, POSITIVE_INFINITY};
use headwater_protocol::{Decimal, Row, Type, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::support::{Fixture, changes, model, table};
use crate::local::{Local, to_wire};

/// A table with a column of each type, and an integer as its key.
fn every_type() -> Fixture {
    let columns: Vec<(String, Type)> = Type::ALL.iter().map(|kind| (format!("a_{}", kind.name()), *kind)).collect();
    let columns = std::iter::once(("id", Type::Int)).chain(columns.iter().map(|(name, kind)| (name.as_str(), *kind)));
    Fixture::new(&model(vec![table("every", &columns.collect::<Vec<_>>())]))
}

fn types() -> Vec<Type> {
    std::iter::once(Type::Int).chain(Type::ALL).collect()
}

fn a_decimal() -> impl Strategy<Value = Value> {
    let number =
        ("-?", "(0|[1-9][0-9]{0,60})", "(\\.[0-9]{1,60})?").prop_map(|(sign, whole, rest)| sign + &whole + &rest);
    let sixty = "9".repeat(60);
    let special = ["NaN", "Infinity", "-Infinity", "-0.00", "0.10", &sixty, &format!("0.{sixty}")].map(str::to_owned);
    prop_oneof![number, select(special.to_vec())]
        .prop_map(|text| Value::Decimal(Decimal::parse(&text).expect("canonical text")))
}

fn a_real() -> impl Strategy<Value = Value> {
    let special =
        vec![0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE / 2.0, f64::MAX, 0.1, 1e15];
    let any = any::<u64>().prop_map(f64::from_bits);
    // There is one NaN: what its bits hold beside travels nowhere.
    prop_oneof![any, select(special)].prop_map(|real| Value::Real(if real.is_nan() { f64::NAN } else { real }))
}

fn some_bytes() -> impl Strategy<Value = Vec<u8>> {
    let special = ["", "\0", "a\0b", "Ünïcödé 日本 🦀", "1", "007", "1.0", "NULL", "'", "x'61'", " 1e3 "];
    let special = special.map(|text| text.as_bytes().to_vec());
    prop_oneof![vec(any::<u8>(), 0..40), select(special.to_vec()), Just(vec![0xff, 0xfe]), vec(b'a'..=b'z', 100..300)]
}

fn an_integer() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -200..200i64, select(vec![i64::MIN, i64::MAX, 0, -1, (1 << 53) + 1])]
}

/// What any database's calendar has and far beyond, both infinities too.
fn a_date() -> impl Strategy<Value = i64> {
    let ends = select(vec![NEGATIVE_INFINITY, POSITIVE_INFINITY]);
    prop_oneof![4 => -719_162..2_932_897i64, 2 => -1_000_000_000_000..1_000_000_000_000i64, 1 => ends]
}

/// Mostly what calendars have, to the microsecond; sometimes what they don't.
fn an_instant() -> impl Strategy<Value = i64> {
    prop_oneof![3 => -62_135_596_800_000_000..253_402_300_800_000_000i64, 1 => an_integer()]
}

fn a_value(kind: Type) -> BoxedStrategy<Value> {
    let value = match kind {
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Int => an_integer().prop_map(Value::Int).boxed(),
        Type::Real => a_real().boxed(),
        Type::Decimal => a_decimal().boxed(),
        Type::Text => some_bytes().prop_map(Value::Text).boxed(),
        Type::Bytes => some_bytes().prop_map(Value::Bytes).boxed(),
        Type::Date => a_date().prop_map(Value::Date).boxed(),
        Type::Time => (0..=MICROS_A_DAY).prop_map(Value::Time).boxed(),
        Type::Timestamp => an_instant().prop_map(Value::Timestamp).boxed(),
        Type::Timestamptz => an_instant().prop_map(Value::Timestamptz).boxed(),
        Type::Uuid => any::<[u8; 16]>().prop_map(Value::Uuid).boxed(),
        Type::Json => some_bytes().prop_map(Value::Json).boxed(),
    };
    prop_oneof![9 => value, 1 => Just(Value::Null)].boxed()
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = Type::ALL.map(a_value).to_vec();
    vec(row, 1..20).prop_map(|rows| {
        (0..).zip(rows).map(|(id, row)| std::iter::once(Value::Int(id)).chain(row).collect()).collect()
    })
}

fn bytes(rows: &[Row]) -> Vec<u8> {
    let mut out = Vec::new();
    for row in rows {
        put_row(&mut out, &types(), row);
    }
    out
}

fn stored(f: &Fixture) -> Vec<Row> {
    let mut select = f.application.prepare("SELECT * FROM every ORDER BY id").expect("a statement");
    let width = select.column_count();
    let rows =
        select.query_map([], |row| (0..width).map(|place| Local::read(row, place)).collect::<Result<Vec<_>, _>>());
    rows.expect("rows").map(|row| to_wire(&row.expect("a row"), &types())).collect()
}

const DOUBLE: &str = "INSERT INTO every SELECT id + 1000, a_bool, a_int, a_real, a_decimal, a_text, a_bytes, a_date, \
                      a_time, a_timestamp, a_timestamptz, a_uuid, a_json FROM every";

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_value_survives_the_file(rows in rows()) {
        let f = every_type();
        f.download(f.down().whole("every", &[]).rows("every", &rows));
        prop_assert_eq!(bytes(&stored(&f)), bytes(&rows), "down: {:?}", rows);
        prop_assert!(f.cut().is_none(), "what came down is no change");

        f.sql(DOUBLE);
        f.sql("DELETE FROM every WHERE id < 1000");
        f.cut();
        let changes: Vec<_> = changes(&f.remote).into_iter().map(|(_, change)| change).collect();
        let old: Vec<Row> = changes.iter().filter_map(|change| change.old.clone()).collect();
        let new: Vec<Row> = changes.iter().filter_map(|change| change.new.clone()).collect();
        let moved: Vec<Row> = (1000..).zip(&rows).map(|(id, row)| {
            std::iter::once(Value::Int(id)).chain(row[1..].iter().cloned()).collect()
        }).collect();
        prop_assert_eq!(bytes(&old), bytes(&rows), "old images: {:?}", rows);
        prop_assert_eq!(bytes(&new), bytes(&moved), "new images: {:?}", rows);
    }
}

/// What the test above compares by tells values apart that are equal for some.
#[test]
fn what_is_compared_by_can_tell_values_apart() {
    let row = |place: usize, value: Value| {
        let mut row = vec![Value::Null; types().len()];
        row[place] = value;
        bytes(&[row])
    };
    let place = |kind: Type| 1 + Type::ALL.iter().position(|other| *other == kind).expect("a type");
    let decimal = |text: &str| Value::Decimal(Decimal::parse(text).expect("a decimal"));
    assert_ne!(row(place(Type::Real), Value::Real(0.0)), row(place(Type::Real), Value::Real(-0.0)));
    assert_ne!(row(place(Type::Decimal), decimal("1.0")), row(place(Type::Decimal), decimal("1.00")));
    assert_ne!(row(place(Type::Text), Value::text("")), row(place(Type::Text), Value::Null));
    assert_ne!(row(place(Type::Timestamp), Value::Timestamp(1)), row(place(Type::Timestamp), Value::Timestamp(0)));
}

/// What an application writes where another type is declared goes up as what it is.
#[test]
fn values_of_other_types_are_not_bent() {
    let f = every_type();
    f.sql("INSERT INTO every (id, a_int, a_date, a_uuid, a_bool) VALUES (1, 'many', 'tomorrow', x'00', 7)");
    f.cut();
    let changes = changes(&f.remote);
    let new = changes[0].1.new.clone().expect("an insert");
    let kinds: Vec<_> = new.iter().filter_map(|value| value.as_ref().kind()).collect();
    assert_eq!(kinds, [Type::Int, Type::Int, Type::Text, Type::Text, Type::Bytes]);
}

/// A column of a SQLite head may hold a number where a date, a UUID or JSON is declared: seconds since 1970, a Julian day. And a text there
/// may look like a number.
#[test]
fn numbers_in_columns_of_dates_come_and_go_as_numbers() {
    let f = every_type();
    let number = |id: i64, value: &Value| {
        let row = types().into_iter().map(|kind| match kind {
            Type::Date | Type::Time | Type::Timestamp | Type::Timestamptz | Type::Uuid | Type::Json => value.clone(),
            _ => Value::Null,
        });
        std::iter::once(Value::Int(id)).chain(row.skip(1)).collect::<Row>()
    };
    let rows = [
        number(1, &Value::Int(1_704_067_200)),
        number(2, &Value::Real(2_460_310.5)),
        // In a column of JSON every text is JSON.
        number(3, &Value::text("1704067200")).into_iter().take(12).chain([Value::Json(b"7".to_vec())]).collect(),
    ];
    f.download(f.down().whole("every", &[]).rows("every", &rows));
    assert_eq!(bytes(&stored(&f)), bytes(&rows));
    f.sql("UPDATE every SET a_text = 'edited'");
    f.cut();
    let changes: Vec<_> = changes(&f.remote).into_iter().map(|(_, change)| change).collect();
    let old: Vec<Row> = changes.iter().filter_map(|change| change.old.clone()).collect();
    assert_eq!(bytes(&old), bytes(&rows), "what goes up is what came down");
}

/// As many columns as a table may have: changes go up, and the table is compared when tracking was off.
#[test]
fn a_wide_table_is_compared() {
    let names: Vec<String> = (0..990).map(|number| format!("c{number}")).collect();
    let columns: Vec<(&str, Type)> = names.iter().map(|name| (name.as_str(), Type::Int)).collect();
    let mut f = Fixture::new(&model(vec![table("wide", &columns)]));
    let wide = |id: i64, last: i64| {
        let mut row = vec![Value::Int(0); 990];
        (row[0], row[989]) = (Value::Int(id), Value::Int(last));
        row
    };
    f.download(f.down().whole("wide", &[]).rows("wide", &[wide(1, 1), wide(2, 2)]));
    f.sql("UPDATE wide SET c989 = 5 WHERE c0 = 1");
    assert_eq!(f.cut_changes().len(), 1);
    f.receipt(Vec::new());
    f.download(f.down().whole("wide", &[]).rows("wide", &[wide(1, 5), wide(2, 2), wide(3, 3)]));
    for name in f.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'wide'") {
        f.sql(&format!("DROP TRIGGER {name}"));
    }
    f.sql("UPDATE wide SET c989 = 7 WHERE c0 = 2; ALTER TABLE wide ADD COLUMN own TEXT; UPDATE wide SET own = 'mine'");
    f.reopen();
    f.download(f.down().holds("wide", &[]));
    assert!(crate::untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
    f.download(f.down().whole("wide", &[]).rows("wide", &[wide(1, 5), wide(2, 2), wide(3, 3)]));
    assert_eq!(f.set_aside(), [r#"wide {"c0":2} untracked in place"#]);
    assert_eq!(f.rows("SELECT c989, own FROM wide"), ["5|mine", "7|mine", "3|mine"]);
    f.check();
}
