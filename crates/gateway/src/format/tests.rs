//! Rows in each form, read back.

use headwater_protocol::{Decimal, Value};
use proptest::prelude::*;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::query::text_of;

fn column(name: &str, kind: Type) -> Column {
    Column { name: name.to_owned(), kind: Some(kind), digits: None }
}

fn written(format: Format, columns: &[Column], rows: &[Vec<Value>]) -> String {
    let mut encoder = Encoder::begin(format, columns.to_vec());
    for row in rows {
        encoder.row(&row.iter().map(Value::as_ref).collect::<Vec<_>>()).expect("there is room for all");
    }
    encoder.end(None).expect("there is room for all");
    String::from_utf8(encoder.take()).expect("UTF-8")
}

fn of_all_types() -> (Vec<Column>, Vec<Vec<Value>>) {
    let columns = Type::ALL.map(|kind| column(kind.name(), kind)).to_vec();
    let row = vec![
        Value::Bool(true),
        Value::Int(9_007_199_254_740_993),
        Value::Real(f64::NEG_INFINITY),
        Value::Decimal(Decimal::parse("12345678901234567890.10").expect("a decimal")),
        Value::text("a \"b\",\n"),
        Value::Bytes(vec![0, 255, 16]),
        Value::Date(0),
        Value::Time(3_600_000_000),
        Value::Timestamp(1),
        Value::Timestamptz(0),
        Value::Uuid([0x11; 16]),
        Value::Json(b"{\"a\":\n[1]}".to_vec()),
    ];
    (columns, vec![row, vec![Value::Null; 12]])
}

#[test]
fn every_type_in_json() {
    let (columns, rows) = of_all_types();
    let read: serde_json::Value = serde_json::from_str(&written(Format::Json, &columns, &rows)).expect("JSON");
    assert_eq!((&read["count"], &read["columns"][1]["json"]), (&2.into(), &"number, string beyond 2^53-1".into()));
    let expected = serde_json::json!({
        "bool": true, "int": "9007199254740993", "real": "-Infinity", "decimal": "12345678901234567890.10", "text": "a \"b\",\n",
        "bytes": "AP8Q", "date": "1970-01-01", "time": "01:00:00", "timestamp": "1970-01-01 00:00:00.000001",
        "timestamptz": "1970-01-01 00:00:00Z", "uuid": "11111111-1111-1111-1111-111111111111", "json": { "a": [1] },
    });
    assert_eq!(read["rows"][0], expected);
    assert!(read["rows"][1].as_object().expect("an object").values().all(serde_json::Value::is_null));
    let arrays: serde_json::Value = serde_json::from_str(&written(Format::JsonArrays, &columns, &rows)).expect("JSON");
    let in_order: Vec<_> = columns.iter().map(|column| expected[&column.name].clone()).collect();
    assert_eq!(arrays["rows"][0], serde_json::Value::from(in_order));
    let lines = written(Format::Ndjson, &columns, &rows);
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert_eq!((first, lines.lines().count()), (expected, 2), "a line a row, whatever is in it");
}

#[test]
fn every_type_in_csv() {
    let (columns, rows) = of_all_types();
    let expected = "bool,int,real,decimal,text,bytes,date,time,timestamp,timestamptz,uuid,json\r\n\
                    true,9007199254740993,-Infinity,12345678901234567890.10,\"a \"\"b\"\",\n\",AP8Q,1970-01-01,01:00:00,\
                    1970-01-01 00:00:00.000001,1970-01-01 00:00:00Z,11111111-1111-1111-1111-111111111111,\
                    \"{\"\"a\"\":\n[1]}\"\r\n,,,,,,,,,,,\r\n";
    assert_eq!(written(Format::Csv, &columns, &rows), expected);
    let empty = written(Format::Csv, &[column("a", Type::Text)], &[vec![Value::text("")], vec![Value::Null]]);
    assert_eq!(empty, "a\r\n\"\"\r\n\r\n", "an empty text is no NULL");
}

#[test]
fn nothing_is_an_answer_too() {
    let columns = [column("a", Type::Int)];
    let json: serde_json::Value = serde_json::from_str(&written(Format::Json, &columns, &[])).expect("JSON");
    assert_eq!((&json["rows"], &json["count"]), (&serde_json::json!([]), &0.into()));
    assert_eq!(written(Format::Ndjson, &columns, &[]), "");
    assert_eq!(written(Format::Csv, &columns, &[]), "a\r\n");
}

/// A SQLite file may hold anything.
#[test]
fn what_is_no_json_is_a_text_and_what_is_no_utf8_ends_the_answer() {
    let lines = written(Format::Ndjson, &[column("a", Type::Json)], &[vec![Value::Json(b"[1".to_vec())]]);
    assert_eq!(lines, "{\"a\":\"[1\"}\n");
    let columns = [column("id", Type::Int), column("a", Type::Json), column("b", Type::Text)];
    let (good, odd) = ("gr\u{f6}\u{df}e".as_bytes(), &b"gr\xf6\xdfe"[..]);
    for (_, format) in Format::ALL {
        for (json, text, name) in [(good, good, ""), (odd, good, "a"), (b"[\"\xff\"]", good, "a"), (good, odd, "b")] {
            let mut encoder = Encoder::begin(format, columns.to_vec());
            encoder.row(&[ValueRef::Int(1), ValueRef::Null, ValueRef::Text(b"")]).expect("room");
            let row = encoder.row(&[ValueRef::Int(2), ValueRef::Json(json), ValueRef::Text(text)]);
            let expected = format!("column {name:?} has in row 2 the text ");
            match row.and_then(|()| encoder.end(None)) {
                Ok(()) => assert_eq!(name, "", "{format:?}"),
                Err(said) => {
                    let said = said.to_string();
                    assert!(
                        said.starts_with(&expected) && said.contains("is not UTF-8: mend it"),
                        "{format:?}: {said}"
                    );
                    assert!(!name.is_empty(), "{format:?}: {said}");
                }
            }
        }
    }
}

#[test]
fn what_a_client_accepts() {
    for (accept, expected) in [
        ("*/*", Some(Format::Json)),
        ("text/csv", Some(Format::Csv)),
        ("text/html, application/xhtml+xml, */*;q=0.8", Some(Format::Json)),
        ("application/json;q=0.5, text/csv", Some(Format::Csv)),
        ("application/*;q=0.2, application/x-ndjson", Some(Format::Ndjson)),
        ("*/*;q=0.1, application/json;q=0", Some(Format::Ndjson)),
        ("TEXT/*", Some(Format::Csv)),
        ("image/png", None),
        ("", None),
    ] {
        assert_eq!(Format::accepted(accept), expected, "{accept}");
    }
}

/// Values of this type that every form has room for, NULL among them.
fn of_kind(kind: Type) -> BoxedStrategy<Value> {
    let time = -200_000_000_000_000_000_i64..200_000_000_000_000_000;
    let value = match kind {
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Int => any::<i64>().prop_map(Value::Int).boxed(),
        Type::Real => any::<f64>().prop_map(Value::Real).boxed(),
        Type::Decimal => "-?(0|[1-9][0-9]{0,50})(\\.[0-9]{1,20})?|NaN"
            .prop_map(|text| Value::Decimal(Decimal::parse(&text).expect("a decimal")))
            .boxed(),
        Type::Text => ".*".prop_map(Value::text).boxed(),
        Type::Bytes => prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::Bytes).boxed(),
        Type::Date => (-2_000_000..2_000_000_i64).prop_map(Value::Date).boxed(),
        Type::Time => (0..86_400_000_000_i64).prop_map(Value::Time).boxed(),
        Type::Timestamp => time.prop_map(Value::Timestamp).boxed(),
        Type::Timestamptz => time.prop_map(Value::Timestamptz).boxed(),
        Type::Uuid => any::<[u8; 16]>().prop_map(Value::Uuid).boxed(),
        Type::Json => any::<(String, f64)>()
            .prop_map(|(text, real)| {
                Value::Json(serde_json::json!({ "a": [text, real, null] }).to_string().into_bytes())
            })
            .boxed(),
    };
    prop_oneof![1 => Just(Value::Null), 5 => value].boxed()
}

/// Types, and rows of them.
pub(super) fn tables() -> impl Strategy<Value = (Vec<Type>, Vec<Vec<Value>>)> {
    prop::collection::vec(prop::sample::select(Type::ALL.to_vec()), 1..6).prop_flat_map(|kinds| {
        let row = kinds.iter().map(|kind| of_kind(*kind)).collect::<Vec<_>>();
        (Just(kinds), prop::collection::vec(row, 0..12))
    })
}

/// What a value is in JSON. A real only about: serde_json rounds its last digit.
fn is_json(json: &serde_json::Value, value: &Value) -> bool {
    let text = || text_of(value);
    match value {
        Value::Null => json.is_null(),
        Value::Bool(truth) => json == truth,
        Value::Int(number) => json == number || json.as_str().is_some_and(|text| text.parse() == Ok(*number)),
        Value::Real(real) if real.is_finite() => {
            // The reader rounds the last digit, which of the smallest numbers is more than that part.
            let last_digits = (real.abs() * 1e-15).max(f64::from_bits(4));
            json.as_f64().is_some_and(|read| (read - real).abs() <= last_digits)
        }
        Value::Real(real) => *json == real_name(*real),
        Value::Bytes(bytes) => *json == STANDARD.encode(bytes),
        Value::Json(bytes) => serde_json::from_slice::<serde_json::Value>(bytes).is_ok_and(|value| value == *json),
        _ => *json == text(),
    }
}

fn real_name(real: f64) -> String {
    if real.is_nan() { "NaN".to_owned() } else { format!("{}Infinity", if real < 0.0 { "-" } else { "" }) }
}

/// The text of a value in CSV.
fn csv_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Real(real) if !real.is_finite() => Some(real_name(*real)),
        Value::Real(real) => Some(format!("{real:?}")),
        Value::Bytes(bytes) => Some(STANDARD.encode(bytes)),
        other => Some(text_of(other)),
    }
}

/// RFC 4180, read to the letter: a field in quotes is a text, an empty one without them NULL.
fn csv_read(text: &str) -> Vec<Vec<Option<String>>> {
    let (mut rows, mut row, mut letters) = (Vec::new(), Vec::new(), text.chars().peekable());
    while letters.peek().is_some() {
        let (mut field, is_quoted) = (String::new(), letters.next_if_eq(&'"').is_some());
        while let Some(letter) = letters.next_if(|letter| is_quoted || !matches!(letter, ',' | '\r')) {
            if is_quoted && letter == '"' && letters.next_if_eq(&'"').is_none() {
                break;
            }
            assert!(is_quoted || !matches!(letter, '"' | '\n'), "{text:?}");
            field.push(letter);
        }
        row.push(Some(field).filter(|field| is_quoted || !field.is_empty()));
        match letters.next() {
            Some(',') => {}
            Some('\r') => {
                assert_eq!(letters.next(), Some('\n'), "{text:?}");
                rows.push(std::mem::take(&mut row));
            }
            other => panic!("{other:?} behind a field: {text:?}"),
        }
    }
    rows
}

proptest! {
    /// Arbitrary rows of arbitrary types are read as what they were, in every form of text.
    #[test]
    fn rows_come_through_every_text((kinds, rows) in tables()) {
        let columns: Vec<Column> = (0..).zip(&kinds).map(|(place, kind)| column(&format!("c{place}"), *kind)).collect();
        let json: serde_json::Value = serde_json::from_str(&written(Format::Json, &columns, &rows)).expect("JSON");
        let arrays: serde_json::Value = serde_json::from_str(&written(Format::JsonArrays, &columns, &rows)).expect("JSON");
        let lines = written(Format::Ndjson, &columns, &rows);
        let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let csv = csv_read(&written(Format::Csv, &columns, &rows));
        prop_assert_eq!((&json["count"], lines.len(), csv.len()), (&rows.len().into(), rows.len(), rows.len() + 1));
        for (number, row) in rows.iter().enumerate() {
            for (place, value) in row.iter().enumerate() {
                let name = &columns[place].name;
                for read in [&json["rows"][number][name], &arrays["rows"][number][place], &lines[number][name]] {
                    prop_assert!(is_json(read, value), "{value:?} is {read}");
                }
                prop_assert_eq!(&csv[number + 1][place], &csv_of(value));
            }
        }
    }

    /// What is written as CSV is read as the same by another's reader.
    #[test]
    fn texts_come_through_csv_and_json(texts in prop::collection::vec(".*", 1..5)) {
        let columns: Vec<Column> = (0..texts.len()).map(|place| column(&format!("c{place}"), Type::Text)).collect();
        let row: Vec<Value> = texts.iter().map(Value::text).collect();
        let text = written(Format::Csv, &columns, std::slice::from_ref(&row));
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let read = reader.records().next().expect("a record").expect("CSV");
        prop_assert_eq!(read.iter().collect::<Vec<_>>(), texts.iter().map(String::as_str).collect::<Vec<_>>());
        let json: serde_json::Value = serde_json::from_str(&written(Format::JsonArrays, &columns, &[row])).expect("JSON");
        prop_assert_eq!(&json["rows"][0], &serde_json::json!(texts));
    }

    #[test]
    fn numbers_come_through_json(whole: i64, real: f64) {
        let columns = [column("a", Type::Int), column("b", Type::Real)];
        let text = written(Format::JsonArrays, &columns, &[vec![Value::Int(whole), Value::Real(real)]]);
        // Not by serde_json, which rounds the last digit.
        let row = text.split("[\n[").nth(1).and_then(|rest| rest.split(']').next()).expect("a row");
        let read: Vec<&str> = row.split(',').map(|value| value.trim_matches('"')).collect();
        prop_assert_eq!(read[0].parse(), Ok(whole));
        let same: f64 = read[1].parse().expect("a number");
        prop_assert!(same.to_bits() == real.to_bits() || (same.is_nan() && real.is_nan()));
    }
}
