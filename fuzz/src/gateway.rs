//! Rows in the forms of the gateway: what is written is read as what it was, whatever a SQLite file holds in whatever column.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float64Type, Int64Type, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_schema::{DataType, Field};
use headwater_gateway::format::{Column, Encoder, Format};
use headwater_gateway::query::text_of;
use headwater_protocol::stored::{Scratch, Stored, decode};
use headwater_protocol::text::coerce;
use headwater_protocol::{Decimal, Type, Value};

const COLUMNS_MAX: u8 = 4;
const ROWS_MAX: usize = 50;

/// Bytes that are taken one after another.
struct Bytes<'d>(&'d [u8]);

impl<'d> Bytes<'d> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn some(&mut self, count: usize) -> &'d [u8] {
        let (some, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        some
    }

    fn number(&mut self) -> u64 {
        self.some(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// `None`: of no type, or the end.
    fn column(&mut self) -> Column {
        let kind = usize::from(self.byte().unwrap_or_default()) % (Type::ALL.len() + 1);
        let kind = kind.checked_sub(1).map(|place| Type::ALL[place]);
        let digits = (kind == Some(Type::Decimal)).then(|| self.byte()).flatten().filter(|bound| bound % 2 == 1);
        Column { name: "c".to_owned(), kind, digits: digits.map(|bound| (bound / 4, bound / 32)) }
    }

    /// A value, as SQLite gives it of such a column.
    fn value(&mut self, column: &Column) -> Option<Value> {
        let class = self.byte()?;
        let stored = match class % 5 {
            0 => Stored::Null,
            1 => Stored::Integer(self.number().cast_signed()),
            2 => Stored::Real(Some(f64::from_bits(self.number())).filter(|real| !real.is_nan()).unwrap_or(0.5)),
            3 => Stored::Text(self.some(usize::from(class / 5))),
            _ => Stored::Blob(self.some(usize::from(class / 5))),
        };
        Some(decode(stored, column.kind.unwrap_or(Type::Text), &mut Scratch::default()).to_value())
    }
}

/// Columns and rows, in every form.
pub fn rows(data: &[u8]) {
    let mut bytes = Bytes(data);
    let count = bytes.byte().unwrap_or_default() % COLUMNS_MAX + 1;
    let columns: Vec<Column> = (0..count).map(|_| bytes.column()).collect();
    let mut rows = Vec::new();
    while rows.len() < ROWS_MAX {
        let Some(row) = columns.iter().map(|column| bytes.value(column)).collect::<Option<Vec<Value>>>() else { break };
        rows.push(row);
    }
    if !rows.iter().flatten().all(is_text) {
        for (_, format) in Format::ALL {
            assert_eq!(written(format, &columns, &rows), None, "no form has room for a text that is none");
        }
        return;
    }
    let text =
        |format| String::from_utf8(written(format, &columns, &rows).expect("text has room for all")).expect("UTF-8");
    let (arrays, objects, lines) = (text(Format::JsonArrays), text(Format::Json), text(Format::Ndjson));
    [&*arrays, &*objects].into_iter().chain(lines.lines()).for_each(is_json);
    assert_eq!(lines.lines().count(), rows.len());
    if rows.iter().flatten().all(is_readable) {
        json(&arrays, &rows);
        assert_eq!(object(&objects)["count"], rows.len());
    }
    csv(&text(Format::Csv), &rows);
    if let Some(stream) = written(Format::Arrow, &columns, &rows) {
        arrow(&stream, &rows);
    }
}

/// SQLite keeps any bytes as a text.
fn is_text(value: &Value) -> bool {
    !matches!(value, Value::Text(bytes) | Value::Json(bytes) if std::str::from_utf8(bytes).is_err())
}

fn is_json(text: &str) {
    let read = serde_json::from_str::<serde::de::IgnoredAny>(text);
    assert!(read.is_ok(), "{read:?}: {text}");
}

/// Whether the reader has room for it: a number like 1e999 is JSON, and so is what is nested ten thousand times.
fn is_readable(value: &Value) -> bool {
    let Value::Json(bytes) = value else { return true };
    let text = String::from_utf8_lossy(bytes);
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    !is_json || serde_json::from_str::<serde_json::Value>(&format!("[[[[{text}]]]]")).is_ok()
}

fn object(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// `None`: there is no room for some value.
fn written(format: Format, columns: &[Column], rows: &[Vec<Value>]) -> Option<Vec<u8>> {
    let mut encoder = Encoder::begin(format, columns.to_vec());
    for row in rows {
        encoder.row(&row.iter().map(Value::as_ref).collect::<Vec<_>>()).ok()?;
    }
    encoder.end(None).ok()?;
    Some(encoder.take())
}

fn json(text: &str, rows: &[Vec<Value>]) {
    let read = object(text);
    let read = read["rows"].as_array().expect("rows");
    assert_eq!(read.len(), rows.len());
    for (read, value) in read.iter().flat_map(|row| row.as_array().expect("an array")).zip(rows.iter().flatten()) {
        let is_same = match value {
            Value::Null => read.is_null(),
            Value::Bool(truth) => read == truth,
            Value::Int(number) => read == number || read.as_str().is_some_and(|text| text.parse() == Ok(*number)),
            Value::Text(bytes) => read.as_str() == Some(&String::from_utf8_lossy(bytes)),
            // In base64, shortened by the reader, or any JSON.
            Value::Bytes(_) | Value::Real(_) | Value::Json(_) => true,
            other => read.as_str() == Some(&text_of(other)),
        };
        assert!(is_same, "{value:?} is {read}");
    }
}

/// As many fields as values: NULL is nothing, and nothing else is.
fn csv(text: &str, rows: &[Vec<Value>]) {
    let (_, text) = text.split_once("\r\n").expect("a line of names");
    let (mut is_quoted, mut fields, mut start) = (false, Vec::new(), 0);
    for (place, letter) in text.char_indices() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' | '\r' if !is_quoted => fields.push(&text[start..place]),
            _ => continue,
        }
        if letter != '"' {
            start = place + if letter == ',' { 1 } else { 2 };
        }
    }
    let values: Vec<&Value> = rows.iter().flatten().collect();
    assert_eq!(fields.len(), values.len(), "{text}");
    for (field, value) in fields.iter().zip(values) {
        assert_eq!(field.is_empty(), value.is_null(), "{value:?} is {field:?}");
        if let Value::Text(bytes) = value {
            let plain = field.strip_prefix('"').and_then(|field| field.strip_suffix('"'));
            let plain = plain.map_or_else(|| (*field).to_owned(), |field| field.replace("\"\"", "\""));
            assert_eq!(plain, String::from_utf8_lossy(bytes));
        }
    }
}

fn arrow(stream: &[u8], rows: &[Vec<Value>]) {
    let reader = StreamReader::try_new(stream, None).expect("a schema");
    let schema = reader.schema();
    let batches: Vec<RecordBatch> = reader.map(|batch| batch.expect("a batch")).collect();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), rows.len());
    let mut rows = rows.iter();
    for batch in &batches {
        for (place, row) in (0..batch.num_rows()).zip(&mut rows) {
            for (column, value) in row.iter().enumerate() {
                let read = cell(batch.column(column), place, schema.field(column));
                assert!(agrees(value, &read), "{value:?} is {read:?}");
            }
        }
    }
}

/// Whether it is the same value, though of another type or spelling.
fn agrees(given: &Value, read: &Value) -> bool {
    match (given, read) {
        (Value::Text(bytes), Value::Text(text)) => String::from_utf8_lossy(bytes).as_bytes() == text,
        (Value::Real(number), Value::Text(text)) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) == Some(*number)
        }
        (given, Value::Json(text)) => !given.is_null() && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok(),
        (given, Value::Text(text)) => text_of(given).as_bytes() == text,
        (given, read) => {
            let kind = read.as_ref().kind();
            given.same(read) || kind.and_then(|kind| coerce(given, kind)).is_some_and(|given| given.same(read))
        }
    }
}

fn cell(array: &dyn Array, place: usize, field: &Field) -> Value {
    if array.is_null(place) || *field.data_type() == DataType::Null {
        return Value::Null;
    }
    let is = |key: &str, name: &str| field.metadata().get(key).is_some_and(|value| value == name);
    match field.data_type() {
        DataType::Boolean => Value::Bool(array.as_boolean().value(place)),
        DataType::Int64 => Value::Int(array.as_primitive::<Int64Type>().value(place)),
        DataType::Float64 => Value::Real(array.as_primitive::<Float64Type>().value(place)),
        DataType::Decimal128(..) => {
            let text = array.as_primitive::<Decimal128Type>().value_as_string(place);
            Value::Decimal(Decimal::parse(&text).expect("a decimal"))
        }
        DataType::Utf8 if is("ARROW:extension:name", "arrow.json") => {
            Value::Json(array.as_string::<i32>().value(place).as_bytes().to_vec())
        }
        DataType::Utf8 => Value::text(array.as_string::<i32>().value(place)),
        DataType::Binary => Value::Bytes(array.as_binary::<i32>().value(place).to_vec()),
        DataType::Date32 => Value::Date(array.as_primitive::<Date32Type>().value(place).into()),
        DataType::Time64(_) => Value::Time(array.as_primitive::<Time64MicrosecondType>().value(place)),
        DataType::Timestamp(_, zone) => {
            let time = array.as_primitive::<TimestampMicrosecondType>().value(place);
            if zone.is_some() { Value::Timestamptz(time) } else { Value::Timestamp(time) }
        }
        _ => Value::Uuid(array.as_fixed_size_binary().value(place).try_into().expect("16 bytes")),
    }
}
