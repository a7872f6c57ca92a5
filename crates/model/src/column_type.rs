//! Column types as text: `text`, `timestamptz`, `decimal`, `decimal(30,6)`.
//!
//! The same words stand in the model file and in the model's JSON, so that what a remote is told can be read beside the file.

use std::fmt;
use std::str::FromStr;

use headwater_protocol::Type;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ColumnType, DECIMAL_PRECISION_MAX};

/// A column type that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnTypeError {
    /// No type has this name.
    #[error(
        "type {0:?} is not known, expected bool, int, real, decimal, decimal(precision,scale), text, bytes, date, time, \
         timestamp, timestamptz, uuid or json"
    )]
    Unknown(String),
    /// Only decimals are limited.
    #[error("type {0:?} has limits, but only decimal takes (precision,scale)")]
    Limited(String),
    /// The precision or scale is no number or out of range.
    #[error(
        "type {0:?} has a precision or scale out of range, expected precision 1 to 1000 and scale 0 to the precision"
    )]
    Range(String),
}

impl ColumnType {
    /// A type without limits.
    pub fn plain(base: Type) -> ColumnType {
        ColumnType { base, precision: None }
    }

    /// A decimal of so many digits, so many of them after the point.
    pub fn decimal(precision: u16, scale: u16) -> ColumnType {
        ColumnType { base: Type::Decimal, precision: Some((precision, scale)) }
    }
}

impl From<Type> for ColumnType {
    fn from(base: Type) -> ColumnType {
        ColumnType::plain(base)
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.precision {
            Some((precision, scale)) => f.pad(&format!("{}({precision},{scale})", self.base.name())),
            None => f.pad(self.base.name()),
        }
    }
}

impl FromStr for ColumnType {
    type Err = ColumnTypeError;

    /// Reads a type's text; white space inside the parentheses is allowed, `decimal(9)` is `decimal(9,0)`.
    fn from_str(text: &str) -> Result<ColumnType, ColumnTypeError> {
        let trimmed = text.trim();
        let (name, limits) = match trimmed.strip_suffix(')').and_then(|rest| rest.split_once('(')) {
            Some((name, limits)) => (name.trim_end(), Some(limits)),
            None => (trimmed, None),
        };
        let unknown = || ColumnTypeError::Unknown(trimmed.to_owned());
        let base = Type::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(unknown)?;
        match limits {
            None => Ok(ColumnType::plain(base)),
            Some(_) if base != Type::Decimal => Err(ColumnTypeError::Limited(trimmed.to_owned())),
            Some(limits) => read_limits(limits).ok_or_else(|| ColumnTypeError::Range(trimmed.to_owned())),
        }
    }
}

fn read_limits(limits: &str) -> Option<ColumnType> {
    let (precision, scale) = limits.split_once(',').unwrap_or((limits, "0"));
    let precision = read_number(precision).filter(|p| (1..=DECIMAL_PRECISION_MAX).contains(p))?;
    let scale = read_number(scale).filter(|s| *s <= precision)?;
    Some(ColumnType::decimal(precision, scale))
}

/// Digits only: `u16::from_str` would take a sign.
fn read_number(text: &str) -> Option<u16> {
    let text = text.trim();
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl Serialize for ColumnType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ColumnType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ColumnType, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for kind in
            Type::ALL.map(ColumnType::plain).into_iter().chain([ColumnType::decimal(30, 6), ColumnType::decimal(1, 1)])
        {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(ColumnType::decimal(30, 6).to_string(), "decimal(30,6)");
        assert_eq!(" decimal ( 9 , 2 ) ".parse(), Ok(ColumnType::decimal(9, 2)));
        assert_eq!("decimal(9)".parse(), Ok(ColumnType::decimal(9, 0)));
    }

    #[test]
    fn other_text_is_refused() {
        let read = |text: &str| text.parse::<ColumnType>();
        for text in ["", "integer", "Text", "text null", "decimal(", "decimal)", "(3,1)"] {
            assert!(matches!(read(text), Err(ColumnTypeError::Unknown(_))), "{text}: {:?}", read(text));
        }
        assert!(matches!(read("text(10)"), Err(ColumnTypeError::Limited(_))));
        for text in [
            "decimal(0,0)",
            "decimal(1001,0)",
            "decimal(5,6)",
            "decimal(,)",
            "decimal(+5,1)",
            "decimal(5,1,1)",
            "decimal(x)",
        ] {
            assert!(matches!(read(text), Err(ColumnTypeError::Range(_))), "{text}: {:?}", read(text));
        }
    }
}
