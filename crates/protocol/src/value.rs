//! The values that travel, and their types.
//!
//! A column has one [`Type`]; a value is normally of its column's type, but nothing in a SQLite file forces that, so a
//! row can carry a value of another type, tagged as such (see [`crate::row`]). A receiver that can't store it says so by
//! setting the change aside; it never guesses.
//!
//! Canonical forms, which make equality of images a comparison of bytes:
//!
//! | type | in memory | note |
//! |---|---|---|
//! | `Decimal` | packed digits, see [`crate::decimal`] | compared as a number: `1.50` is `1.5` |
//! | `Text` | bytes, UTF-8 by promise, not by proof | SQLite can hold other bytes, and they travel |
//! | `Date` | days since 1970-01-01; [`POSITIVE_INFINITY`], [`NEGATIVE_INFINITY`] | proleptic Gregorian |
//! | `Time` | microseconds since midnight | |
//! | `Timestamp`, `Timestamptz` | microseconds since 1970-01-01 00:00:00 (UTC); infinities as for `Date` | |
//! | `Json` | text as its database spells it | |

use crate::decimal::{Decimal, DecimalRef};

/// `infinity` as a date or timestamp.
pub const POSITIVE_INFINITY: i64 = i64::MAX;
/// `-infinity` as a date or timestamp.
pub const NEGATIVE_INFINITY: i64 = i64::MIN;

/// The type of a column, as the wire and the model name it. The numbers are the wire's and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Type {
    /// True or false.
    Bool = 1,
    /// A signed 64-bit integer.
    Int = 2,
    /// An IEEE 754 double.
    Real = 3,
    /// A decimal number of any length.
    Decimal = 4,
    /// Text.
    Text = 5,
    /// Bytes.
    Bytes = 6,
    /// A calendar date.
    Date = 7,
    /// A time of day.
    Time = 8,
    /// A date and time without zone.
    Timestamp = 9,
    /// An instant.
    Timestamptz = 10,
    /// A UUID.
    Uuid = 11,
    /// A JSON document.
    Json = 12,
}

impl Type {
    /// Every type, in wire order.
    pub const ALL: [Type; 12] = [
        Type::Bool,
        Type::Int,
        Type::Real,
        Type::Decimal,
        Type::Text,
        Type::Bytes,
        Type::Date,
        Type::Time,
        Type::Timestamp,
        Type::Timestamptz,
        Type::Uuid,
        Type::Json,
    ];

    /// The type with this wire number; `None` if there is none.
    pub fn from_wire(number: u8) -> Option<Type> {
        Type::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The word for the type in a model file.
    pub fn name(self) -> &'static str {
        match self {
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Real => "real",
            Type::Decimal => "decimal",
            Type::Text => "text",
            Type::Bytes => "bytes",
            Type::Date => "date",
            Type::Time => "time",
            Type::Timestamp => "timestamp",
            Type::Timestamptz => "timestamptz",
            Type::Uuid => "uuid",
            Type::Json => "json",
        }
    }
}

/// A value that borrows its bytes: what the codec reads and writes without allocating.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRef<'a> {
    /// SQL NULL.
    Null,
    /// See [`Type::Bool`].
    Bool(bool),
    /// See [`Type::Int`].
    Int(i64),
    /// See [`Type::Real`].
    Real(f64),
    /// See [`Type::Decimal`].
    Decimal(DecimalRef<'a>),
    /// See [`Type::Text`].
    Text(&'a [u8]),
    /// See [`Type::Bytes`].
    Bytes(&'a [u8]),
    /// See [`Type::Date`].
    Date(i64),
    /// See [`Type::Time`].
    Time(i64),
    /// See [`Type::Timestamp`].
    Timestamp(i64),
    /// See [`Type::Timestamptz`].
    Timestamptz(i64),
    /// See [`Type::Uuid`].
    Uuid([u8; 16]),
    /// See [`Type::Json`].
    Json(&'a [u8]),
}

/// A value that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// See [`Type::Bool`].
    Bool(bool),
    /// See [`Type::Int`].
    Int(i64),
    /// See [`Type::Real`].
    Real(f64),
    /// See [`Type::Decimal`].
    Decimal(Decimal),
    /// See [`Type::Text`].
    Text(Vec<u8>),
    /// See [`Type::Bytes`].
    Bytes(Vec<u8>),
    /// See [`Type::Date`].
    Date(i64),
    /// See [`Type::Time`].
    Time(i64),
    /// See [`Type::Timestamp`].
    Timestamp(i64),
    /// See [`Type::Timestamptz`].
    Timestamptz(i64),
    /// See [`Type::Uuid`].
    Uuid([u8; 16]),
    /// See [`Type::Json`].
    Json(Vec<u8>),
}

/// A row: one value for each column of its table, in the model's order.
pub type Row = Vec<Value>;

impl ValueRef<'_> {
    /// The value's own type; `None` for NULL.
    pub fn kind(&self) -> Option<Type> {
        Some(match self {
            ValueRef::Null => return None,
            ValueRef::Bool(_) => Type::Bool,
            ValueRef::Int(_) => Type::Int,
            ValueRef::Real(_) => Type::Real,
            ValueRef::Decimal(_) => Type::Decimal,
            ValueRef::Text(_) => Type::Text,
            ValueRef::Bytes(_) => Type::Bytes,
            ValueRef::Date(_) => Type::Date,
            ValueRef::Time(_) => Type::Time,
            ValueRef::Timestamp(_) => Type::Timestamp,
            ValueRef::Timestamptz(_) => Type::Timestamptz,
            ValueRef::Uuid(_) => Type::Uuid,
            ValueRef::Json(_) => Type::Json,
        })
    }

    /// The same value, owned.
    pub fn to_value(&self) -> Value {
        match *self {
            ValueRef::Null => Value::Null,
            ValueRef::Bool(v) => Value::Bool(v),
            ValueRef::Int(v) => Value::Int(v),
            ValueRef::Real(v) => Value::Real(v),
            ValueRef::Decimal(v) => Value::Decimal(v.to_owned()),
            ValueRef::Text(v) => Value::Text(v.to_vec()),
            ValueRef::Bytes(v) => Value::Bytes(v.to_vec()),
            ValueRef::Date(v) => Value::Date(v),
            ValueRef::Time(v) => Value::Time(v),
            ValueRef::Timestamp(v) => Value::Timestamp(v),
            ValueRef::Timestamptz(v) => Value::Timestamptz(v),
            ValueRef::Uuid(v) => Value::Uuid(v),
            ValueRef::Json(v) => Value::Json(v.to_vec()),
        }
    }

    /// Whether two values are spelled the same, to the bit: `-0.0` is not `0.0`, nor 7.5 7.50, and NaN is NaN.
    pub fn is_identical(&self, other: &ValueRef<'_>) -> bool {
        match (self, other) {
            (ValueRef::Real(a), ValueRef::Real(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        }
    }

    /// Whether two values are the same for the judging of conflicts: NULL is NULL, decimals compare as numbers, NaN is
    /// NaN, `-0.0` is `0.0` (both databases call them equal); everything else by type and bytes.
    #[allow(clippy::float_cmp, reason = "equality is what the databases mean by it")]
    pub fn same(&self, other: &ValueRef<'_>) -> bool {
        match (self, other) {
            (ValueRef::Real(a), ValueRef::Real(b)) => a == b || (a.is_nan() && b.is_nan()),
            (ValueRef::Decimal(a), ValueRef::Decimal(b)) => a.same(b),
            (a, b) => a == b,
        }
    }
}

impl Value {
    /// The value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Null => ValueRef::Null,
            Value::Bool(v) => ValueRef::Bool(*v),
            Value::Int(v) => ValueRef::Int(*v),
            Value::Real(v) => ValueRef::Real(*v),
            Value::Decimal(v) => ValueRef::Decimal(v.as_ref()),
            Value::Text(v) => ValueRef::Text(v),
            Value::Bytes(v) => ValueRef::Bytes(v),
            Value::Date(v) => ValueRef::Date(*v),
            Value::Time(v) => ValueRef::Time(*v),
            Value::Timestamp(v) => ValueRef::Timestamp(*v),
            Value::Timestamptz(v) => ValueRef::Timestamptz(*v),
            Value::Uuid(v) => ValueRef::Uuid(*v),
            Value::Json(v) => ValueRef::Json(v),
        }
    }

    /// Text from a string.
    pub fn text(text: impl Into<String>) -> Value {
        Value::Text(text.into().into_bytes())
    }

    /// See [`ValueRef::is_identical`].
    pub fn is_identical(&self, other: &Value) -> bool {
        self.as_ref().is_identical(&other.as_ref())
    }

    /// See [`ValueRef::same`].
    pub fn same(&self, other: &Value) -> bool {
        self.as_ref().same(&other.as_ref())
    }

    /// Whether this is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_numbers_are_dense_and_stable() {
        for (index, kind) in Type::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index + 1);
            assert_eq!(Type::from_wire(*kind as u8), Some(*kind));
        }
        assert_eq!(Type::from_wire(0), None);
        assert_eq!(Type::from_wire(13), None);
    }

    #[test]
    fn equality_is_by_type_and_value() {
        assert!(
            ValueRef::Real(0.0).same(&ValueRef::Real(-0.0)) && ValueRef::Real(f64::NAN).same(&ValueRef::Real(f64::NAN))
        );
        assert!(!ValueRef::Text(b"1").same(&ValueRef::Int(1)) && ValueRef::Null.same(&ValueRef::Null));
    }
}
