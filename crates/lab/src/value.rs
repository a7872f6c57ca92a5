//! Values of settings and parameters, and of what is bound to statements.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::scenario::Database;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A time.
    Time(Duration),
}

impl Value {
    /// The name of its type, as errors say it.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Integer(_) => "a whole number",
            Value::Real(_) => "a number",
            Value::Text(_) => "a string",
            Value::Bytes(_) => "bytes",
            Value::Time(_) => "a time",
        }
    }

    /// The value as a literal of a database's SQL.
    pub(crate) fn literal(&self, database: Database) -> String {
        match (self, database) {
            // `- -5` would begin a comment without the parentheses.
            (Value::Integer(..0), _) => format!("({self})"),
            (Value::Real(number), _) if *number < 0.0 => format!("({self})"),
            (Value::Integer(_) | Value::Real(_), _) => self.to_string(),
            (Value::Bytes(bytes), Database::Mariadb | Database::Sqlite) => format!("X'{}'", hex::encode(bytes)),
            _ => headwater_model::sql::literal(&self.to_string()),
        }
    }
}

/// The whole number of a scenario's parameter; an error has the parameter's name, and what is wrong with it.
pub(crate) fn integer(
    parameters: &[(String, Value)],
    name: &'static str,
    range: RangeInclusive<i64>,
) -> Result<i64, (&'static str, String)> {
    match parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value) {
        Some(Value::Integer(number)) if range.contains(number) => Ok(*number),
        other => {
            let found = other.map_or("nothing".to_owned(), ToString::to_string);
            Err((name, format!("have {name} = {found}, only {} to {}", range.start(), range.end())))
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Integer(number) => write!(f, "{number}"),
            Value::Real(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
            // As PostgreSQL reads and writes them.
            Value::Bytes(bytes) => write!(f, "\\x{}", hex::encode(bytes)),
            Value::Time(time) => write!(f, "{time:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_what_the_database_reads() {
        let literal = |value: Value| {
            [Database::Postgresql, Database::Mariadb, Database::Sqlite].map(|database| value.literal(database))
        };
        assert_eq!(literal(Value::Integer(5)), ["5", "5", "5"]);
        assert_eq!(literal(Value::Integer(-5)), ["(-5)", "(-5)", "(-5)"], "a minus before it would begin a comment");
        assert_eq!(literal(Value::Text("it's".to_owned())), ["'it''s'", "'it''s'", "'it''s'"]);
        assert_eq!(literal(Value::Bytes(vec![0, 171])), ["'\\x00ab'", "X'00ab'", "X'00ab'"]);
    }
}
