//! A value as it is compared: what a driver gave, in one spelling.
//!
//! | type | PostgreSQL's text | SQLite's class | compared as |
//! |---|---|---|---|
//! | bool | `t`, `true` | INTEGER 0, 1 | truth |
//! | int | digits | INTEGER | number |
//! | real | shortest text | REAL, INTEGER, `NaN`, `-zero` | the bits of a double, every NaN one |
//! | decimal | digits | TEXT, INTEGER, REAL | digits without outer zeros |
//! | text, json, uuid | itself | TEXT | bytes |
//! | bytes | `\x` and hex | BLOB | bytes |
//! | date, time, timestamp | `0044-03-15 BC`, `05:00:00.5` | TEXT | the remote's spelling: `-0043-03-15`, `05:00:00.500000` |
//! | timestamptz | ends with `+00` | TEXT ending with `Z` | the same |
//!
//! What is not in its column's form is compared as what it is: a text in an int column is a text, and equals no number.

use std::fmt;

use headwater_protocol::Type;
use rusqlite::types::ValueRef;
use serde::{Serialize, Serializer};

/// A value in the spelling in which both sides are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Null,
    /// A truth.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// The bits of a double.
    Real(u64),
    /// A decimal number, without outer zeros.
    Decimal(String),
    /// Text, dates and times; bytes that are not UTF-8 too.
    Text(Vec<u8>),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Value {
    /// What PostgreSQL gave as text for a column of this type. (Time zone UTC, dates in ISO form, bytes in hex.)
    pub(super) fn from_postgres(text: Option<&str>, kind: Type) -> Value {
        let Some(text) = text else {
            return Value::Null;
        };
        let typed = match kind {
            Type::Bool => match text {
                "t" | "true" => Some(Value::Bool(true)),
                "f" | "false" => Some(Value::Bool(false)),
                _ => None,
            },
            Type::Int => text.parse().ok().map(Value::Int),
            Type::Real => text.parse().ok().map(Value::real),
            Type::Decimal => decimal(text).map(Value::Decimal),
            Type::Bytes => text.strip_prefix("\\x").and_then(|digits| hex::decode(digits).ok()).map(Value::Bytes),
            Type::Date => Some(Value::from(date(text))),
            Type::Time => Some(Value::from(time(text))),
            Type::Timestamp => Some(Value::from(timestamp(text))),
            Type::Timestamptz => Some(Value::from(instant(text))),
            Type::Text | Type::Json | Type::Uuid => None,
        };
        typed.unwrap_or_else(|| Value::from(text.to_owned()))
    }

    /// What SQLite holds in a column of this type.
    pub(super) fn from_sqlite(stored: ValueRef<'_>, kind: Type) -> Value {
        match (kind, stored) {
            (_, ValueRef::Null) => Value::Null,
            (Type::Bool, ValueRef::Integer(number @ 0..=1)) => Value::Bool(number == 1),
            (Type::Real, ValueRef::Integer(number)) => whole_real(number).map_or(Value::Int(number), Value::real),
            (Type::Real, ValueRef::Text(b"NaN")) => Value::real(f64::NAN),
            (Type::Real, ValueRef::Text(b"-zero")) => Value::real(-0.0),
            (Type::Decimal, ValueRef::Integer(number)) => Value::Decimal(number.to_string()),
            (Type::Decimal, ValueRef::Real(real)) => {
                decimal(&real.to_string()).map_or(Value::real(real), Value::Decimal)
            }
            (Type::Decimal, ValueRef::Text(text)) => std::str::from_utf8(text)
                .ok()
                .and_then(decimal)
                .map_or_else(|| Value::Text(text.to_vec()), Value::Decimal),
            (_, ValueRef::Integer(number)) => Value::Int(number),
            (_, ValueRef::Real(real)) => Value::real(real),
            (_, ValueRef::Text(text)) => Value::Text(text.to_vec()),
            (_, ValueRef::Blob(bytes)) => Value::Bytes(bytes.to_vec()),
        }
    }

    /// The value as sync knows it; a decimal is its digits.
    pub(super) fn to_synced(&self) -> headwater_protocol::Value {
        use headwater_protocol::Value as Synced;
        match self {
            Value::Null => Synced::Null,
            Value::Bool(truth) => Synced::Bool(*truth),
            Value::Int(number) => Synced::Int(*number),
            Value::Real(bits) => Synced::Real(f64::from_bits(*bits)),
            Value::Decimal(digits) => Synced::text(digits),
            Value::Text(bytes) => Synced::Text(bytes.clone()),
            Value::Bytes(bytes) => Synced::Bytes(bytes.clone()),
        }
    }

    fn real(real: f64) -> Value {
        Value::Real(if real.is_nan() { f64::NAN.to_bits() } else { real.to_bits() })
    }

    /// Appends the value so that it can be read back.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let (tag, bytes): (u8, &[u8]) = match self {
            Value::Null => (0, &[]),
            Value::Bool(truth) => (1, if *truth { &[1] } else { &[0] }),
            Value::Int(number) => (2, &number.to_le_bytes()),
            Value::Real(bits) => (3, &bits.to_le_bytes()),
            Value::Decimal(text) => (4, text.as_bytes()),
            Value::Text(bytes) => (5, bytes),
            Value::Bytes(bytes) => (6, bytes),
        };
        out.push(tag);
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    }

    /// Reads what [`Value::write`] appended, and gives the rest.
    pub(super) fn read(bytes: &[u8]) -> Option<(Value, &[u8])> {
        let (&tag, rest) = bytes.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let value = match tag {
            0 => Value::Null,
            1 => Value::Bool(bytes == [1]),
            2 => Value::Int(i64::from_le_bytes(bytes.try_into().ok()?)),
            3 => Value::Real(u64::from_le_bytes(bytes.try_into().ok()?)),
            4 => Value::Decimal(String::from_utf8(bytes.to_vec()).ok()?),
            5 => Value::Text(bytes.to_vec()),
            6 => Value::Bytes(bytes.to_vec()),
            _ => return None,
        };
        Some((value, rest))
    }

    /// Appends the value so that bytes sort as values of one type do, and no two lists of values have the same bytes.
    pub(super) fn write_key(&self, out: &mut Vec<u8>) {
        match self {
            Value::Null => out.push(0),
            Value::Bool(truth) => out.extend([1, u8::from(*truth)]),
            Value::Int(number) => {
                out.push(2);
                out.extend((number.cast_unsigned() ^ 1 << 63).to_be_bytes());
            }
            Value::Real(bits) => {
                out.push(3);
                let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
                out.extend(ordered.to_be_bytes());
            }
            Value::Decimal(text) => write_key_bytes(out, 4, text.as_bytes()),
            Value::Text(bytes) => write_key_bytes(out, 5, bytes),
            Value::Bytes(bytes) => write_key_bytes(out, 6, bytes),
        }
    }
}

/// Zero bytes are followed by 0xff, the end is two zeros.
fn write_key_bytes(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    for &byte in bytes {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
    out.extend([0, 0]);
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text.into_bytes())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("NULL"),
            Value::Bool(truth) => write!(f, "{truth}"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Real(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Value::Decimal(text) => f.write_str(text),
            Value::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => write!(f, "{text:?}"),
                Err(_) => write!(f, "text x'{}'", hex::encode(bytes)),
            },
            Value::Bytes(bytes) => write!(f, "x'{}'", hex::encode(bytes)),
        }
    }
}

impl Serialize for Value {
    /// Numbers that JSON can't hold exactly, and bytes, become text.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_none(),
            Value::Bool(truth) => serializer.serialize_bool(*truth),
            Value::Int(number) => serializer.serialize_i64(*number),
            Value::Real(bits) if f64::from_bits(*bits).is_finite() => serializer.serialize_f64(f64::from_bits(*bits)),
            Value::Text(bytes) if std::str::from_utf8(bytes).is_ok() => {
                serializer.serialize_str(&String::from_utf8_lossy(bytes))
            }
            other => serializer.collect_str(other),
        }
    }
}

/// A whole number as a double, if it is one exactly.
fn whole_real(number: i64) -> Option<f64> {
    let real = number as f64;
    (real as i128 == i128::from(number)).then_some(real)
}

/// A decimal without outer zeros; `None` for other text.
fn decimal(text: &str) -> Option<String> {
    if matches!(text, "NaN" | "Infinity" | "-Infinity") {
        return Some(text.to_owned());
    }
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = !whole.is_empty() && (whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit());
    if !is_number || digits.ends_with('.') {
        return None;
    }
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    Some(match (whole, fraction) {
        ("", "") => "0".to_owned(),
        (whole, "") => format!("{sign}{whole}"),
        ("", fraction) => format!("{sign}0.{fraction}"),
        (whole, fraction) => format!("{sign}{whole}.{fraction}"),
    })
}

/// `0044-03-15 BC` as `-0043-03-15`, `12013-01-31` as `+12013-01-31`.
fn date(text: &str) -> String {
    year_signed(text, "")
}

/// `05:00:00.5` as `05:00:00.500000`.
fn time(text: &str) -> String {
    match text.split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}.{fraction:0<6}"),
        None => text.to_owned(),
    }
}

fn timestamp(text: &str) -> String {
    let (text, era) = text.strip_suffix(" BC").map_or((text, ""), |text| (text, " BC"));
    match text.split_once(' ') {
        Some((day, clock)) => format!("{} {}", year_signed(day, era), time(clock)),
        None => text.to_owned(),
    }
}

fn instant(text: &str) -> String {
    let (text, era) = text.strip_suffix(" BC").map_or((text, ""), |text| (text, " BC"));
    match text.strip_suffix("+00") {
        Some(utc) => format!("{}Z", timestamp(&format!("{utc}{era}"))),
        None => format!("{text}{era}"),
    }
}

/// Years as ISO 8601 counts them: 1 BC is 0, and a sign stands before more than four digits.
fn year_signed(day: &str, era: &str) -> String {
    let (day, is_before) = match day.strip_suffix(" BC") {
        Some(day) => (day, true),
        None => (day, era == " BC"),
    };
    let Some((year, rest)) = day.split_once('-') else {
        return day.to_owned();
    };
    match (is_before, year.parse::<u32>()) {
        (true, Ok(1)) => format!("0000-{rest}"),
        (true, Ok(year)) => format!("-{:04}-{rest}", year - 1),
        (false, Ok(10_000..)) => format!("+{day}"),
        _ => day.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(kind: Type, postgres: &str, sqlite: ValueRef<'_>) -> bool {
        Value::from_postgres(Some(postgres), kind) == Value::from_sqlite(sqlite, kind)
    }

    fn text(text: &str) -> ValueRef<'_> {
        ValueRef::Text(text.as_bytes())
    }

    #[test]
    fn the_same_value_of_both_databases_is_the_same() {
        assert!(same(Type::Bool, "true", ValueRef::Integer(1)) && same(Type::Bool, "f", ValueRef::Integer(0)));
        assert!(same(Type::Int, "-9223372036854775808", ValueRef::Integer(i64::MIN)));
        assert!(same(Type::Real, "0.1", ValueRef::Real(0.1)) && same(Type::Real, "5", ValueRef::Integer(5)));
        assert!(same(Type::Real, "NaN", text("NaN")) && same(Type::Real, "-0", text("-zero")));
        assert!(same(Type::Real, "Infinity", ValueRef::Real(f64::INFINITY)));
        assert!(same(Type::Real, "5e-324", ValueRef::Real(5e-324)));
        assert!(same(Type::Decimal, "1.50", text("1.5")) && same(Type::Decimal, "-0.0", ValueRef::Integer(0)));
        assert!(same(Type::Decimal, "0.1", ValueRef::Real(0.1)) && same(Type::Decimal, "NaN", text("NaN")));
        assert!(same(Type::Text, "hé", text("hé")) && same(Type::Json, "{}", text("{}")));
        assert!(same(Type::Bytes, "\\x00ff", ValueRef::Blob(&[0, 255])));
        assert!(
            same(Type::Date, "2013-01-31", text("2013-01-31")) && same(Type::Date, "0001-01-01 BC", text("0000-01-01"))
        );
        assert!(
            same(Type::Date, "0044-03-15 BC", text("-0043-03-15")) && same(Type::Date, "infinity", text("infinity"))
        );
        assert!(
            same(Type::Time, "05:00:00.5", text("05:00:00.500000")) && same(Type::Time, "24:00:00", text("24:00:00"))
        );
        assert!(same(Type::Timestamp, "12013-01-31 05:00:00", text("+12013-01-31 05:00:00")));
        assert!(same(Type::Timestamptz, "2013-01-01 10:00:00.000001+00", text("2013-01-01 10:00:00.000001Z")));
        assert!(same(Type::Timestamptz, "0044-03-15 12:00:00+00 BC", text("-0043-03-15 12:00:00Z")));
        assert!(same(Type::Timestamptz, "294276-12-31 23:59:59.5+00", text("+294276-12-31 23:59:59.500000Z")));
        assert!(same(Type::Timestamptz, "-infinity", text("-infinity")));
        assert_eq!(Value::from_postgres(None, Type::Int), Value::from_sqlite(ValueRef::Null, Type::Int));
    }

    #[test]
    fn one_digit_or_another_class_makes_a_difference() {
        assert!(!same(Type::Int, "5", text("5")) && !same(Type::Bool, "t", ValueRef::Integer(2)));
        assert!(!same(Type::Real, "0.1", ValueRef::Real(0.1 + 1e-17 * 2.0)) && !same(Type::Real, "0", text("-zero")));
        assert!(!same(Type::Decimal, "123456789012345678901234567890.1", text("123456789012345678901234567890.2")));
        assert!(!same(Type::Decimal, "10", text("1")) && !same(Type::Decimal, "1", text("1e0")));
        assert!(!same(Type::Text, "a", text("a ")) && !same(Type::Text, "a", ValueRef::Blob(b"a")));
        assert!(!same(Type::Timestamptz, "2013-01-01 10:00:00+00", text("2013-01-01 10:00:00")));
        assert!(!same(Type::Timestamp, "2013-01-01 10:00:00.1", text("2013-01-01 10:00:00.100001")));
        assert!(!same(Type::Date, "0044-03-15 BC", text("-0044-03-15")));
        assert!(!same(Type::Real, "9007199254740993", ValueRef::Integer(9_007_199_254_740_993)), "not a double");
    }

    #[test]
    fn what_is_written_is_read_and_keys_sort_as_values() {
        let values = [
            Value::Null,
            Value::Bool(true),
            Value::Int(-5),
            Value::real(1.5),
            Value::Decimal("1.5".into()),
            Value::Text(vec![0xff, 0]),
            Value::Bytes(vec![]),
        ];
        let mut out = Vec::new();
        for value in &values {
            value.write(&mut out);
        }
        let mut rest = out.as_slice();
        for value in &values {
            let (read, after) = Value::read(rest).expect("a value");
            assert_eq!(&read, value);
            rest = after;
        }
        assert!(rest.is_empty() && Value::read(&[5, 2, 0, 0, 0, 1]).is_none(), "cut short");

        let key = |values: &[Value]| {
            values.iter().fold(Vec::new(), |mut out, v| {
                v.write_key(&mut out);
                out
            })
        };
        let ordered = |a: Value, b: Value| key(&[a]) < key(&[b]);
        assert!(ordered(Value::Int(-5), Value::Int(3)) && ordered(Value::Int(9), Value::Int(10)));
        assert!(ordered(Value::real(-2.0), Value::real(-1.0)) && ordered(Value::real(-1.0), Value::real(0.5)));
        let text = |t: &str| Value::Text(t.as_bytes().to_vec());
        assert!(ordered(text("a"), text("ab")) && ordered(text("a"), text("a\0")));
        assert_ne!(key(&[text("a"), text("b\0")]), key(&[text("a\0"), text("b")]));
    }
}
