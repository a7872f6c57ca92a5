//! Rows as people and programs take them: JSON, NDJSON, CSV.
//!
//! | type | JSON and NDJSON | CSV |
//! |---|---|---|
//! | bool | `true` | `true` |
//! | int | a number; a text beyond 2^53 - 1, where readers would round it | `9007199254740993` |
//! | real | a number; NaN and the infinities are texts | `1.5`, `NaN` |
//! | decimal | a text, digit for digit | `1.50` |
//! | text, uuid, date and the like | a text | as it is |
//! | bytes | a text in base64 | base64 |
//! | json | the JSON itself | its text |
//! | NULL | `null` | nothing, where an empty text and no bytes are `""` |
//!
//! What is no UTF-8 (a SQLite file may hold it) comes with replacement characters.
//!
//! JSON says in `columns` what each is. An answer is written row by row; what has been written is taken in between, so none is held whole.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_protocol::stored::{Scratch, Stored, encode};
use headwater_protocol::{Type, ValueRef};

/// The greatest whole number that every reader of JSON takes exactly (RFC 8259, 6): 2^53 - 1.
const EXACT_MAX: u64 = (1 << 53) - 1;

/// In which form rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One JSON object; rows as objects.
    Json,
    /// The same; rows as arrays.
    JsonArrays,
    /// A JSON object a line.
    Ndjson,
    /// RFC 4180, with a line of names.
    Csv,
}

impl Format {
    /// All of them, by the ends of the URLs that ask for them.
    pub const ALL: [(&'static str, Format); 4] =
        [("json", Format::Json), ("arrays.json", Format::JsonArrays), ("ndjson", Format::Ndjson), ("csv", Format::Csv)];

    /// What `Content-Type` says.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Json | Format::JsonArrays => "application/json",
            Format::Ndjson => "application/x-ndjson",
            Format::Csv => "text/csv; charset=utf-8; header=present",
        }
    }

    /// What a request's `Accept` wants most of what there is; `None`: nothing of it. (RFC 9110, 12.5.1. Of equal ones the first here.)
    pub fn accepted(accept: &str) -> Option<Format> {
        const OFFERED: [(&str, Format); 3] =
            [("application/json", Format::Json), ("application/x-ndjson", Format::Ndjson), ("text/csv", Format::Csv)];
        let quality = |offered: &str| {
            let matching = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let range = parts.next()?.to_ascii_lowercase();
                let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
                let (kind, _) = offered.split_once('/')?;
                // What names it more closely goes first.
                let closeness = match range.as_str() {
                    exact if exact == offered => 3,
                    "*/*" => 1,
                    group if group.strip_suffix("/*") == Some(kind) => 2,
                    _ => return None,
                };
                Some((closeness, weight))
            });
            matching.max_by_key(|(closeness, _)| *closeness).map_or(0.0, |(_, weight)| weight)
        };
        let best = OFFERED
            .into_iter()
            .map(|(name, format)| (quality(name), format))
            .reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.filter(|(quality, _)| *quality > 0.0).map(|(_, format)| format)
    }
}

/// A column of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The type of its values, where it is known.
    pub kind: Option<Type>,
}

/// An answer that is being written.
///
/// ```
/// use headwater_gateway::format::{Column, Encoder, Format};
/// use headwater_protocol::{Type, ValueRef};
///
/// let columns = vec![Column { name: "id".to_owned(), kind: Some(Type::Int) }];
/// let mut csv = Encoder::begin(Format::Csv, columns);
/// csv.row(&[ValueRef::Int(7)]);
/// csv.end(None);
/// assert_eq!(csv.take(), b"id\r\n7\r\n");
/// ```
#[derive(Debug)]
pub struct Encoder {
    format: Format,
    /// The names, as JSON texts with their colons.
    names: Vec<Vec<u8>>,
    out: Vec<u8>,
    rows: u64,
    scratch: Scratch,
}

impl Encoder {
    /// Begins an answer.
    pub fn begin(format: Format, columns: Vec<Column>) -> Encoder {
        let mut out = Vec::new();
        match format {
            Format::Json | Format::JsonArrays => {
                out.extend(b"{\"columns\":[");
                for (place, column) in columns.iter().enumerate() {
                    separate(&mut out, place);
                    out.extend(b"{\"name\":");
                    json_text(&mut out, column.name.as_bytes());
                    let (name, form) = column.kind.map_or(("any", "any"), |kind| (kind.name(), json_form(kind)));
                    let _ = write!(out, ",\"type\":\"{name}\",\"json\":\"{form}\"}}");
                }
                out.extend(b"],\"rows\":[");
            }
            Format::Csv => {
                for (place, column) in columns.iter().enumerate() {
                    separate(&mut out, place);
                    csv_text(&mut out, column.name.as_bytes());
                }
                out.extend(b"\r\n");
            }
            Format::Ndjson => {}
        }
        let name = |column: Column| {
            let mut name = Vec::new();
            json_text(&mut name, column.name.as_bytes());
            name.push(b':');
            name
        };
        Encoder { format, names: columns.into_iter().map(name).collect(), out, rows: 0, scratch: Scratch::default() }
    }

    /// Adds a row: a value for each column.
    pub fn row(&mut self, values: &[ValueRef<'_>]) {
        let Encoder { format, names, out, rows, scratch } = self;
        match format {
            Format::Json | Format::JsonArrays => {
                out.extend(if *rows == 0 { &b"\n"[..] } else { b",\n" });
            }
            Format::Ndjson | Format::Csv => {}
        }
        match format {
            Format::Json | Format::Ndjson => {
                out.push(b'{');
                for (place, (name, value)) in names.iter().zip(values).enumerate() {
                    separate(out, place);
                    out.extend(name);
                    json_value(out, *value, scratch);
                }
                out.push(b'}');
            }
            Format::JsonArrays => {
                out.push(b'[');
                for (place, value) in values.iter().enumerate() {
                    separate(out, place);
                    json_value(out, *value, scratch);
                }
                out.push(b']');
            }
            Format::Csv => {
                for (place, value) in values.iter().enumerate() {
                    separate(out, place);
                    csv_value(out, *value, scratch);
                }
                out.extend(b"\r\n");
            }
        }
        if *format == Format::Ndjson {
            out.push(b'\n');
        }
        *rows += 1;
    }

    /// Ends the answer; `next`: the URL of the next page.
    pub fn end(&mut self, next: Option<&str>) {
        if let Format::Json | Format::JsonArrays = self.format {
            let _ = write!(self.out, "\n],\"count\":{}", self.rows);
            if let Some(next) = next {
                self.out.extend(b",\"next\":");
                json_text(&mut self.out, next.as_bytes());
            }
            self.out.extend(b"}\n");
        }
    }

    /// What has been written since it was taken last.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Rows until now.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

fn separate(out: &mut Vec<u8>, place: usize) {
    if place > 0 {
        out.push(b',');
    }
}

/// What a type's values are in JSON.
fn json_form(kind: Type) -> &'static str {
    match kind {
        Type::Bool => "boolean",
        Type::Int => "number, string beyond 2^53-1",
        Type::Real => "number, string if not finite",
        Type::Bytes => "string, base64",
        Type::Json => "any",
        _ => "string",
    }
}

fn json_value(out: &mut Vec<u8>, value: ValueRef<'_>, scratch: &mut Scratch) {
    match value {
        ValueRef::Null => out.extend(b"null"),
        ValueRef::Bool(truth) => out.extend(if truth { &b"true"[..] } else { b"false" }),
        ValueRef::Int(number) if number.unsigned_abs() <= EXACT_MAX => {
            let _ = write!(out, "{number}");
        }
        ValueRef::Int(number) => {
            let _ = write!(out, "\"{number}\"");
        }
        ValueRef::Real(real) if real.is_finite() => {
            let _ = write!(out, "{real:?}"); // `1e300` and `1.0`: shorter than all digits, and as exact
        }
        ValueRef::Real(real) => {
            let _ = write!(out, "\"{}\"", real_name(real));
        }
        ValueRef::Json(bytes) if serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() => {
            // Lines are rows.
            out.extend(bytes.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
        }
        ValueRef::Text(bytes) | ValueRef::Json(bytes) => json_text(out, bytes),
        ValueRef::Bytes(bytes) => {
            out.push(b'"');
            base64(out, bytes);
            out.push(b'"');
        }
        other => json_text(out, text_bytes(other, scratch)),
    }
}

fn csv_value(out: &mut Vec<u8>, value: ValueRef<'_>, scratch: &mut Scratch) {
    match value {
        ValueRef::Null => {}
        ValueRef::Bool(truth) => out.extend(if truth { &b"true"[..] } else { b"false" }),
        ValueRef::Int(number) => {
            let _ = write!(out, "{number}");
        }
        ValueRef::Real(real) if real.is_finite() => {
            let _ = write!(out, "{real:?}");
        }
        ValueRef::Real(real) => out.extend(real_name(real).as_bytes()),
        ValueRef::Text(bytes) | ValueRef::Json(bytes) => csv_text(out, String::from_utf8_lossy(bytes).as_bytes()),
        ValueRef::Bytes(b"") => csv_text(out, b""),
        ValueRef::Bytes(bytes) => base64(out, bytes),
        other => csv_text(out, text_bytes(other, scratch)),
    }
}

fn real_name(real: f64) -> &'static str {
    match real {
        _ if real.is_nan() => "NaN",
        _ if real > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}

/// Of what SQLite stores as text.
fn text_bytes<'s>(value: ValueRef<'s>, scratch: &'s mut Scratch) -> &'s [u8] {
    match encode(value, scratch) {
        Stored::Text(bytes) | Stored::Blob(bytes) => bytes,
        Stored::Null | Stored::Integer(_) | Stored::Real(_) => b"",
    }
}

fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The room is as long as the encoding is said to be.
    let _ = STANDARD.encode_slice(bytes, &mut out[start..]);
}

/// A text as JSON has it.
fn json_text(out: &mut Vec<u8>, bytes: &[u8]) {
    // A vector takes whatever it is given.
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(bytes));
}

/// A field of RFC 4180: in quotes where it has a comma, a quote or a line's end, or is empty, which NULL is too.
fn csv_text(out: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() && !bytes.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r')) {
        out.extend(bytes);
        return;
    }
    out.push(b'"');
    for byte in bytes {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use headwater_protocol::{Decimal, Value};
    use proptest::prelude::*;

    use super::*;

    fn column(name: &str, kind: Type) -> Column {
        Column { name: name.to_owned(), kind: Some(kind) }
    }

    fn written(format: Format, columns: &[Column], rows: &[Vec<Value>]) -> String {
        let mut encoder = Encoder::begin(format, columns.to_vec());
        for row in rows {
            encoder.row(&row.iter().map(Value::as_ref).collect::<Vec<_>>());
        }
        encoder.end(None);
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
        let arrays: serde_json::Value =
            serde_json::from_str(&written(Format::JsonArrays, &columns, &rows)).expect("JSON");
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

    proptest! {
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
}
