//! Rows as text for people: the images of conflicts, the keys in lists.
//!
//! An image is a JSON object by column, readable rather than typed: decimals, dates and UUIDs are strings in the forms of
//! [`headwater_protocol::text`], bytes are `{"bytes": "hex"}`, what is no UTF-8 shows U+FFFD. Nothing reads them back.

use headwater_protocol::{Value, text};
use serde_json::{Map, Value as Json, json};

use crate::TablePlan;

/// A row as a JSON object.
pub fn image(table: &TablePlan, row: &[Value]) -> String {
    object(table.table.columns.iter().map(|column| column.name.as_str()).zip(row))
}

/// A key as a JSON object.
pub fn key_image(table: &TablePlan, key: &[Value]) -> String {
    object(table.table.key_columns().map(|column| column.name.as_str()).zip(key))
}

fn object<'a>(cells: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let map: Map<String, Json> = cells.map(|(name, value)| (name.to_owned(), to_json(value))).collect();
    Json::Object(map).to_string()
}

fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(truth) => json!(truth),
        Value::Int(number) => json!(number),
        Value::Real(real) if real.is_finite() => json!(real),
        Value::Bytes(bytes) => json!({ "bytes": hex::encode(bytes) }),
        other => plain_text(other).map_or(Json::Null, Json::String),
    }
}

/// A value as text, without its type; `None` for NULL.
pub fn plain_text(value: &Value) -> Option<String> {
    let mut out = String::new();
    match value {
        Value::Null => return None,
        Value::Bool(truth) => out = truth.to_string(),
        Value::Int(number) => out = number.to_string(),
        Value::Real(real) => out = real.to_string(),
        Value::Decimal(decimal) => out = decimal.to_string(),
        Value::Text(bytes) | Value::Json(bytes) => out = String::from_utf8_lossy(bytes).into_owned(),
        Value::Bytes(bytes) => out = hex::encode(bytes),
        Value::Date(days) => text::write_date(&mut out, *days),
        Value::Time(micros) => text::write_time(&mut out, *micros),
        Value::Timestamp(micros) => text::write_timestamp(&mut out, *micros),
        Value::Timestamptz(micros) => text::write_timestamptz(&mut out, *micros),
        Value::Uuid(uuid) => text::write_uuid(&mut out, uuid),
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_well() {
        assert_eq!(to_json(&Value::Bytes(vec![0, 255])), json!({ "bytes": "00ff" }));
        assert_eq!(to_json(&Value::Timestamptz(0)), json!("1970-01-01 00:00:00Z"));
        assert_eq!(to_json(&Value::Real(f64::NAN)), json!("NaN"));
        assert_eq!(to_json(&Value::Text(vec![b'a', 0xff])), json!("a\u{fffd}"));
        assert_eq!(to_json(&Value::Null), Json::Null);
    }
}
