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

/// A key as a JSON object, for the log: after a text that is not UTF-8 its bytes follow in hex, by which the row can be found.
pub(crate) fn logged_key(table: &TablePlan, key: &[Value]) -> String {
    let cell = |value: &Value| if has_broken_text(value) { Json::String(logged_text(value)) } else { to_json(value) };
    let names = table.table.key_columns().map(|column| column.name.clone());
    let map: Map<String, Json> = names.zip(key.iter().map(cell)).collect();
    Json::Object(map).to_string()
}

/// A value as text, for the log; after a text that is not UTF-8 its bytes follow in hex.
pub(crate) fn logged_text(value: &Value) -> String {
    let shown = plain_text(value).unwrap_or_default();
    match value {
        Value::Text(bytes) | Value::Json(bytes) if has_broken_text(value) => {
            format!("{shown} (x'{}')", hex::encode(bytes))
        }
        _ => shown,
    }
}

/// Whether a value is a text that is not UTF-8.
pub(crate) fn has_broken_text(value: &Value) -> bool {
    match value {
        Value::Text(text) | Value::Json(text) => std::str::from_utf8(text).is_err(),
        _ => false,
    }
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

    #[test]
    fn the_log_has_the_bytes_of_a_text_that_is_not_utf_8() {
        assert_eq!(logged_text(&Value::Text(vec![b'a', 0xe4])), "a\u{fffd} (x'61e4')");
        assert_eq!(logged_text(&Value::text("\u{e4}")), "\u{e4}");
    }
}
