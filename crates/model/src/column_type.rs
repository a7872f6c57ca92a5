//! How a type is spelled in a model file: its word, and for decimals perhaps precision and scale.

use std::fmt;
use std::str::FromStr;

use headwater_protocol::Type;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::ColumnType;

/// The most digits that a decimal's precision may name (PostgreSQL's limit).
pub const PRECISION_MAX: u16 = 1000;

/// A text that names no type.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "unknown type `{0}`, expected one of bool, int, real, decimal, decimal(p,s), text, bytes, date, time, timestamp, timestamptz, uuid, json"
)]
pub struct UnknownType(pub String);

impl From<Type> for ColumnType {
    fn from(base: Type) -> Self {
        ColumnType { base, precision: None }
    }
}

impl FromStr for ColumnType {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        let unknown = || UnknownType(text.to_owned());
        if let Some(limits) = text.strip_prefix("decimal(").and_then(|rest| rest.strip_suffix(')')) {
            let (precision, scale) = limits.split_once(',').ok_or_else(unknown)?;
            let precision: u16 = precision.trim().parse().map_err(|_| unknown())?;
            let scale: u16 = scale.trim().parse().map_err(|_| unknown())?;
            if precision == 0 || precision > PRECISION_MAX || scale > precision {
                return Err(unknown());
            }
            return Ok(ColumnType { base: Type::Decimal, precision: Some((precision, scale)) });
        }
        let base = Type::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(unknown)?;
        Ok(base.into())
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.precision {
            Some((precision, scale)) => write!(f, "{}({precision},{scale})", self.base.name()),
            None => f.write_str(self.base.name()),
        }
    }
}

impl Serialize for ColumnType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ColumnType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_spelled_as_they_are_read() {
        for text in ["bool", "timestamptz", "decimal", "decimal(30,6)", "decimal(1000,1000)"] {
            assert_eq!(text.parse::<ColumnType>().map(|kind| kind.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "Bool", "decimal(0,0)", "decimal(5,6)", "decimal(5)", "decimal(1001,0)", "text(5)"] {
            assert!(text.parse::<ColumnType>().is_err(), "{text}");
        }
    }
}
