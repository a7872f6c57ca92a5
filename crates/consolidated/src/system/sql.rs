//! SQL written once for both dialects, and values read back from either.

use headwater_protocol::Value;

use crate::{Dialect, Error};

/// Fills in what the dialects spell differently: `{hw}` (prefix of our tables), `{int}`, `{bytes}`, `{bool}`, `{time}`, `{now}`,
/// `{serial}` (a key that counts by itself).
pub(crate) fn dialect_sql(dialect: Dialect, sql: &str) -> String {
    let (hw, int, bytes, boolean, time, now, serial) = match dialect {
        Dialect::Sqlite => (
            "headwater_",
            "INTEGER",
            "BLOB",
            "INTEGER",
            "TEXT",
            "(strftime('%Y-%m-%d %H:%M:%f', 'now') || 'Z')",
            "INTEGER PRIMARY KEY AUTOINCREMENT",
        ),
        Dialect::Postgres => (
            "headwater.",
            "bigint",
            "bytea",
            "boolean",
            "timestamptz",
            "clock_timestamp()",
            "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        ),
    };
    let tokens = [
        ("{hw}", hw),
        ("{int}", int),
        ("{bytes}", bytes),
        ("{bool}", boolean),
        ("{time}", time),
        ("{now}", now),
        ("{serial}", serial),
    ];
    let mut filled = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    while let Some(brace) = rest.find('{') {
        let (before, after) = rest.split_at(brace);
        filled.push_str(before);
        let token = tokens.iter().find(|(token, _)| after.starts_with(token));
        let (length, text) = token.map_or((1, "{"), |(token, text)| (token.len(), *text));
        filled.push_str(text);
        rest = &after[length..];
    }
    filled + rest
}

/// A text of a system table.
pub(crate) fn text(value: Option<&Value>, column: &'static str) -> Result<String, Error> {
    optional_text(value).ok_or_else(|| unexpected(value, column))
}

/// A text of a system table that may be NULL; times come as text too, whichever type the dialect keeps them in.
pub(crate) fn optional_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        other => crate::images::plain_text(other),
    }
}

/// An integer of a system table.
pub(crate) fn integer(value: Option<&Value>, column: &'static str) -> Result<i64, Error> {
    match value {
        Some(Value::Int(number)) => Ok(*number),
        Some(Value::Bool(truth)) => Ok(i64::from(*truth)),
        other => Err(unexpected(other, column)),
    }
}

/// Bytes of a system table; empty for NULL.
pub(crate) fn bytes(value: Option<&Value>, column: &'static str) -> Result<Vec<u8>, Error> {
    match value {
        Some(Value::Bytes(bytes)) => Ok(bytes.clone()),
        Some(Value::Null) => Ok(Vec::new()),
        other => Err(unexpected(other, column)),
    }
}

/// Bytes of a fixed length.
pub(crate) fn array<const N: usize>(value: Option<&Value>, column: &'static str) -> Result<[u8; N], Error> {
    let bytes = bytes(value, column)?;
    <[u8; N]>::try_from(bytes.as_slice()).map_err(|_| unexpected(value, column))
}

fn unexpected(value: Option<&Value>, column: &'static str) -> Error {
    Error::Database {
        context: format!("reading column {column} of a table of Headwater's"),
        detail: format!("a value of type {:?} is not what is kept there", value.and_then(|v| v.as_ref().kind())),
    }
}
