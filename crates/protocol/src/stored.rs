//! Values in a SQLite file: five storage classes for twelve types, without losing a bit. Remotes and a consolidated SQLite database
//! share these forms.
//!
//! | type | storage class | what SQLite could not hold |
//! |---|---|---|
//! | bool | INTEGER 0 or 1 | |
//! | int | INTEGER | |
//! | real | REAL | NaN is TEXT `NaN`, negative zero TEXT `-zero` |
//! | decimal | TEXT (the column's declared type has TEXT affinity) | |
//! | text, json | TEXT, byte for byte | |
//! | bytes | BLOB | |
//! | date, time, timestamp, timestamptz, uuid | TEXT in the form of [`crate::text`] | |
//!
//! Nothing in SQLite forces a column to hold its type. What is not in the form of the column's type is read as what it is (an
//! integer, a real, a text, bytes), travels tagged, and is stored as that again.

use crate::decimal::Decimal;
use crate::text;
use crate::value::{Type, ValueRef};

/// A value as SQLite has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored<'a> {
    /// NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// REAL.
    Real(f64),
    /// TEXT: UTF-8 unless somebody made it otherwise.
    Text(&'a [u8]),
    /// BLOB.
    Blob(&'a [u8]),
}

/// Room for values that have another form on the other side. One is enough for a value at a time.
#[derive(Debug, Default)]
pub struct Scratch {
    text: String,
    decimal: Option<Decimal>,
}

const NAN: &str = "NaN";
const NEGATIVE_ZERO: &str = "-zero";

/// What a stored value means in a column of this type.
pub fn decode<'a>(stored: Stored<'a>, kind: Type, scratch: &'a mut Scratch) -> ValueRef<'a> {
    typed(stored, kind, scratch).unwrap_or(match stored {
        Stored::Null => ValueRef::Null,
        Stored::Integer(number) => ValueRef::Int(number),
        Stored::Real(real) => ValueRef::Real(real),
        Stored::Text(text) => ValueRef::Text(text),
        Stored::Blob(bytes) => ValueRef::Bytes(bytes),
    })
}

/// The stored value as one of the column's type, if it has that type's form exactly.
fn typed<'a>(stored: Stored<'a>, kind: Type, scratch: &'a mut Scratch) -> Option<ValueRef<'a>> {
    match (kind, stored) {
        (Type::Bool, Stored::Integer(number @ 0..=1)) => Some(ValueRef::Bool(number == 1)),
        (Type::Real, Stored::Integer(number)) => text::i64_to_real(number).map(ValueRef::Real),
        (Type::Real, Stored::Text(b"NaN")) => Some(ValueRef::Real(f64::NAN)),
        (Type::Real, Stored::Text(b"-zero")) => Some(ValueRef::Real(-0.0)),
        (Type::Decimal, Stored::Integer(number)) => keep(scratch, Decimal::parse(&number.to_string())),
        (Type::Decimal, Stored::Real(real)) => keep(scratch, text::real_to_decimal(real)),
        (Type::Decimal, Stored::Text(bytes)) => keep(scratch, Decimal::parse(std::str::from_utf8(bytes).ok()?)),
        (Type::Json, Stored::Text(bytes)) => Some(ValueRef::Json(bytes)),
        (Type::Date | Type::Time | Type::Timestamp | Type::Timestamptz | Type::Uuid, Stored::Text(bytes)) => {
            let value = parse(std::str::from_utf8(bytes).ok()?, kind)?;
            // Only the canonical spelling is read as the value: every other comes back as it was written.
            let canonical = matches!(encode(value, scratch), Stored::Text(spelled) if spelled == bytes);
            canonical.then_some(value)
        }
        _ => None,
    }
}

fn keep(scratch: &mut Scratch, decimal: Option<Decimal>) -> Option<ValueRef<'_>> {
    scratch.decimal = decimal;
    scratch.decimal.as_ref().map(|decimal| ValueRef::Decimal(decimal.as_ref()))
}

fn parse(text: &str, kind: Type) -> Option<ValueRef<'static>> {
    match kind {
        Type::Date => text::parse_date(text).map(ValueRef::Date),
        Type::Time => text::parse_time(text).map(ValueRef::Time),
        Type::Timestamp => text::parse_timestamp(text).map(ValueRef::Timestamp),
        Type::Timestamptz => text::parse_timestamptz(text).map(ValueRef::Timestamptz),
        Type::Uuid => text::parse_uuid(text).map(ValueRef::Uuid),
        _ => None,
    }
}

/// How a value is stored.
pub fn encode<'a>(value: ValueRef<'a>, scratch: &'a mut Scratch) -> Stored<'a> {
    let out = &mut scratch.text;
    out.clear();
    match value {
        ValueRef::Null => return Stored::Null,
        ValueRef::Bool(truth) => return Stored::Integer(i64::from(truth)),
        ValueRef::Int(number) => return Stored::Integer(number),
        ValueRef::Real(real) if real.is_nan() => out.push_str(NAN),
        ValueRef::Real(real) if real == 0.0 && real.is_sign_negative() => out.push_str(NEGATIVE_ZERO),
        ValueRef::Real(real) => return Stored::Real(real),
        ValueRef::Text(bytes) | ValueRef::Json(bytes) => return Stored::Text(bytes),
        ValueRef::Bytes(bytes) => return Stored::Blob(bytes),
        ValueRef::Decimal(decimal) => decimal.write_text(out),
        ValueRef::Date(days) => text::write_date(out, days),
        ValueRef::Time(micros) => text::write_time(out, micros),
        ValueRef::Timestamp(micros) => text::write_timestamp(out, micros),
        ValueRef::Timestamptz(micros) => text::write_timestamptz(out, micros),
        ValueRef::Uuid(uuid) => text::write_uuid(out, &uuid),
    }
    Stored::Text(scratch.text.as_bytes())
}

/// The number that SQLite makes of a text in a column of numeric affinity, if the text looks like one: `7`, ` 7.50`, `1e3`
/// (<https://www.sqlite.org/datatype3.html>, section 3). A real that is a whole number stays a real here.
pub fn number(text: &[u8]) -> Option<Stored<'static>> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    if !text.chars().all(is_number) || !text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    text.parse().map(Stored::Integer).or_else(|_| text.parse().map(Stored::Real)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(value: ValueRef<'_>, kind: Type) {
        let (mut one, mut two) = (Scratch::default(), Scratch::default());
        let back = decode(encode(value, &mut one), kind, &mut two);
        let same_bits = match (value, back) {
            (ValueRef::Real(a), ValueRef::Real(b)) => a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
            (a, b) => a == b,
        };
        assert!(same_bits, "{value:?} came back as {back:?}");
    }

    #[test]
    fn every_type_comes_back() {
        let decimal = Decimal::parse("-123456789012345678901234567890.000100").expect("a decimal");
        round_trip(ValueRef::Null, Type::Int);
        round_trip(ValueRef::Bool(true), Type::Bool);
        round_trip(ValueRef::Int(i64::MIN), Type::Int);
        for real in [0.1, -0.0, f64::NAN, f64::INFINITY, 5e-324] {
            round_trip(ValueRef::Real(real), Type::Real);
        }
        round_trip(ValueRef::Decimal(decimal.as_ref()), Type::Decimal);
        round_trip(ValueRef::Text(b"a\0b\xff"), Type::Text);
        round_trip(ValueRef::Bytes(b"\0\xff"), Type::Bytes);
        round_trip(ValueRef::Date(-800_000), Type::Date);
        round_trip(ValueRef::Time(86_399_999_999), Type::Time);
        round_trip(ValueRef::Timestamp(1), Type::Timestamp);
        round_trip(ValueRef::Timestamptz(crate::value::NEGATIVE_INFINITY), Type::Timestamptz);
        round_trip(ValueRef::Uuid([7; 16]), Type::Uuid);
        round_trip(ValueRef::Json(b"{\"a\": 1}"), Type::Json);
    }

    #[test]
    fn what_is_not_in_the_columns_form_stays_what_it_is() {
        let mut scratch = Scratch::default();
        assert_eq!(
            decode(Stored::Text(b"2013-01-01T05:00:00"), Type::Timestamp, &mut scratch),
            ValueRef::Text(b"2013-01-01T05:00:00")
        );
        assert_eq!(decode(Stored::Text(b"abc"), Type::Int, &mut scratch), ValueRef::Text(b"abc"));
        assert_eq!(decode(Stored::Integer(2), Type::Bool, &mut scratch), ValueRef::Int(2));
        assert_eq!(decode(Stored::Real(1.5), Type::Int, &mut scratch), ValueRef::Real(1.5));
        assert_eq!(decode(Stored::Integer(i64::MAX), Type::Real, &mut scratch), ValueRef::Int(i64::MAX));
        assert_eq!(decode(Stored::Text(b"x"), Type::Bytes, &mut scratch), ValueRef::Text(b"x"));
    }
}
