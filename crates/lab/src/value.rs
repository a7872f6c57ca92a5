//! Values of settings and parameters, and of what is bound to statements.

use std::fmt;
use std::time::Duration;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Real(f64),
    /// Text.
    Text(String),
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
            Value::Time(_) => "a time",
        }
    }

    /// The value as a literal of SQL.
    pub(crate) fn literal(&self) -> String {
        match self {
            Value::Integer(_) | Value::Real(_) => self.to_string(),
            Value::Text(_) | Value::Time(_) => headwater_model::sql::literal(&self.to_string()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Integer(number) => write!(f, "{number}"),
            Value::Real(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
            Value::Time(time) => write!(f, "{time:?}"),
        }
    }
}
