//! Values in PostgreSQL's binary form, by type.
//!
//! | codec | PostgreSQL's types | bytes |
//! |---|---|---|
//! | bool | bool | 0 or 1 |
//! | int | int2, int4, int8, oid | big-endian |
//! | real | float4, float8 | big-endian IEEE 754 |
//! | decimal | numeric | see [`super::numeric`] |
//! | text | text, varchar, bpchar, name | as they are |
//! | bytes | bytea | as they are |
//! | date | date | days since 2000-01-01, 32 bits; greatest and least: the infinities |
//! | time | time | microseconds since midnight |
//! | timestamp, timestamptz | the same | microseconds since 2000-01-01; greatest and least: the infinities |
//! | uuid | uuid | 16 bytes |
//! | json | json; jsonb behind a version byte | text |
//!
//! Every other type travels as its text (`::text` on reading, a cast on writing), so here it is text. So are timestamps of
//! PostgreSQL's last thirty years, for which the wire has no number: `+294276-12-31 23:59:59Z`, in the form of [`text`], both ways.

use headwater_protocol::decimal::{Decimal, DecimalPacker};
use headwater_protocol::value::{NEGATIVE_INFINITY, POSITIVE_INFINITY};
use headwater_protocol::{Type, ValueRef, text};

use super::numeric;

/// From 1970-01-01 to 2000-01-01.
const EPOCH_DAYS: i64 = 10_957;
const EPOCH_MICROS: i64 = EPOCH_DAYS * 86_400_000_000;
/// The first day that PostgreSQL has, 4714-11-24 BC (Julian day 0), in days since 2000-01-01.
const DAY_MIN: i64 = -2_451_545;
/// The day after the last one that a date can be, 5874898-01-01.
const DATE_END: i64 = 2_147_483_494 - 2_451_545;
/// The microsecond after the last one that a timestamp can be, 294277-01-01, since 2000-01-01.
const TIMESTAMP_END: i64 = 9_223_371_331_200_000_000;
const DAY_MICROS: i64 = 86_400_000_000;

/// How values of a column are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Bool,
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
    Numeric,
    Text,
    Bytea,
    Date,
    Time,
    Timestamp,
    Timestamptz,
    Uuid,
    Json,
    Jsonb,
}

/// Where values that need room of their own are put together; used again for the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    packer: DecimalPacker,
    text: String,
}

impl Scratch {
    /// A timestamp that the wire's timestamps can't hold travels as text.
    fn late(&mut self, stored: i64, zone: &str) -> ValueRef<'_> {
        write_late(&mut self.text, stored, zone);
        ValueRef::Text(self.text.as_bytes())
    }
}

impl Codec {
    /// The codec of the type with this OID; `None` for one that travels as text. Domains are known by their base type.
    pub(super) fn of(oid: u32) -> Option<Codec> {
        Some(match oid {
            16 => Codec::Bool,
            17 => Codec::Bytea,
            19 | 25 | 1042 | 1043 => Codec::Text,
            20 => Codec::Int8,
            21 => Codec::Int2,
            23 => Codec::Int4,
            26 => Codec::Oid,
            114 => Codec::Json,
            700 => Codec::Float4,
            701 => Codec::Float8,
            1082 => Codec::Date,
            1083 => Codec::Time,
            1114 => Codec::Timestamp,
            1184 => Codec::Timestamptz,
            1700 => Codec::Numeric,
            2950 => Codec::Uuid,
            3802 => Codec::Jsonb,
            _ => return None,
        })
    }

    /// The model's type for it.
    pub(super) fn kind(self) -> Type {
        match self {
            Codec::Bool => Type::Bool,
            Codec::Int2 | Codec::Int4 | Codec::Int8 | Codec::Oid => Type::Int,
            Codec::Float4 | Codec::Float8 => Type::Real,
            Codec::Numeric => Type::Decimal,
            Codec::Text => Type::Text,
            Codec::Bytea => Type::Bytes,
            Codec::Date => Type::Date,
            Codec::Time => Type::Time,
            Codec::Timestamp => Type::Timestamp,
            Codec::Timestamptz => Type::Timestamptz,
            Codec::Uuid => Type::Uuid,
            Codec::Json | Codec::Jsonb => Type::Json,
        }
    }

    /// The type's name in SQL, and its OID, as parameters have it.
    pub(super) fn parameter(self) -> (&'static str, u32) {
        match self {
            Codec::Bool => ("bool", 16),
            Codec::Int2 => ("int2", 21),
            Codec::Int4 => ("int4", 23),
            Codec::Int8 => ("int8", 20),
            Codec::Oid => ("oid", 26),
            Codec::Float4 => ("float4", 700),
            Codec::Float8 => ("float8", 701),
            Codec::Numeric => ("numeric", 1700),
            Codec::Text => ("text", 25),
            Codec::Bytea => ("bytea", 17),
            Codec::Date => ("date", 1082),
            Codec::Time => ("time", 1083),
            Codec::Timestamp => ("timestamp", 1114),
            Codec::Timestamptz => ("timestamptz", 1184),
            Codec::Uuid => ("uuid", 2950),
            Codec::Json => ("json", 114),
            Codec::Jsonb => ("jsonb", 3802),
        }
    }

    /// Reads a value that is not NULL; `None` if the bytes are not of this type.
    pub(super) fn decode<'a>(self, raw: &'a [u8], scratch: &'a mut Scratch) -> Option<ValueRef<'a>> {
        Some(match self {
            Codec::Bool => ValueRef::Bool(u8::from_be_bytes(raw.try_into().ok()?) != 0),
            Codec::Int2 | Codec::Int4 | Codec::Int8 => ValueRef::Int(integer(raw)?),
            Codec::Oid => ValueRef::Int(i64::from(u32::from_be_bytes(raw.try_into().ok()?))),
            Codec::Float4 => ValueRef::Real(f64::from(f32::from_be_bytes(raw.try_into().ok()?))),
            Codec::Float8 => ValueRef::Real(f64::from_be_bytes(raw.try_into().ok()?)),
            Codec::Numeric => ValueRef::Decimal(numeric::decode(raw, &mut scratch.packer)?),
            Codec::Text => ValueRef::Text(raw),
            Codec::Bytea => ValueRef::Bytes(raw),
            Codec::Date => ValueRef::Date(match i32::from_be_bytes(raw.try_into().ok()?) {
                i32::MAX => POSITIVE_INFINITY,
                i32::MIN => NEGATIVE_INFINITY,
                days => i64::from(days) + EPOCH_DAYS,
            }),
            Codec::Time => ValueRef::Time(i64::from_be_bytes(raw.try_into().ok()?)),
            Codec::Timestamp => {
                let stored = i64::from_be_bytes(raw.try_into().ok()?);
                timestamp(stored).map_or_else(|| scratch.late(stored, ""), ValueRef::Timestamp)
            }
            Codec::Timestamptz => {
                let stored = i64::from_be_bytes(raw.try_into().ok()?);
                timestamp(stored).map_or_else(|| scratch.late(stored, ZONE), ValueRef::Timestamptz)
            }
            Codec::Uuid => ValueRef::Uuid(raw.try_into().ok()?),
            Codec::Json => ValueRef::Json(raw),
            Codec::Jsonb => ValueRef::Json(raw.strip_prefix(&[1])?),
        })
    }

    /// Appends the binary form of a value that is not NULL; says what is wrong if the type can't hold it.
    pub(super) fn encode(self, value: ValueRef<'_>, out: &mut Vec<u8>) -> Result<(), &'static str> {
        match (self, value) {
            (Codec::Bool, ValueRef::Bool(v)) => out.push(u8::from(v)),
            (Codec::Int2, ValueRef::Int(v)) => out.extend(i16::try_from(v).map_err(|_| SMALLINT)?.to_be_bytes()),
            (Codec::Int4, ValueRef::Int(v)) => out.extend(i32::try_from(v).map_err(|_| INTEGER)?.to_be_bytes()),
            (Codec::Int8, ValueRef::Int(v)) => out.extend(v.to_be_bytes()),
            (Codec::Oid, ValueRef::Int(v)) => out.extend(u32::try_from(v).map_err(|_| OID)?.to_be_bytes()),
            (Codec::Float4, ValueRef::Real(v)) => out.extend(narrowed(v)?.to_be_bytes()),
            (Codec::Float8, ValueRef::Real(v)) => out.extend(v.to_be_bytes()),
            (Codec::Float8, ValueRef::Int(v)) if exact(v) => out.extend((v as f64).to_be_bytes()),
            (Codec::Numeric, ValueRef::Decimal(v)) => {
                if !numeric::encode(v, out) {
                    return Err("more digits than a numeric holds");
                }
            }
            (Codec::Numeric, ValueRef::Int(v)) => {
                let decimal = Decimal::parse(&v.to_string()).ok_or("not a number")?;
                numeric::encode(decimal.as_ref(), out);
            }
            (Codec::Text, ValueRef::Text(v)) | (Codec::Json, ValueRef::Json(v)) => put_text(v, out)?,
            (Codec::Bytea, ValueRef::Bytes(v)) => out.extend_from_slice(v),
            (Codec::Date, ValueRef::Date(v)) => out.extend(date(v)?.to_be_bytes()),
            (Codec::Time, ValueRef::Time(v)) if (0..=DAY_MICROS).contains(&v) => out.extend(v.to_be_bytes()),
            (Codec::Time, ValueRef::Time(_)) => return Err("a time outside 00:00:00 to 24:00:00"),
            (Codec::Timestamp, ValueRef::Timestamp(v)) | (Codec::Timestamptz, ValueRef::Timestamptz(v)) => {
                out.extend(stored_timestamp(v)?.to_be_bytes());
            }
            (Codec::Timestamp | Codec::Timestamptz, ValueRef::Text(v)) => {
                let zone = if self == Codec::Timestamptz { ZONE } else { "" };
                out.extend(late(v, zone).ok_or(self.expected())?.to_be_bytes());
            }
            (Codec::Uuid, ValueRef::Uuid(v)) => out.extend_from_slice(&v),
            (Codec::Jsonb, ValueRef::Json(v)) => {
                out.push(1);
                put_text(v, out)?;
            }
            _ => return Err(self.expected()),
        }
        Ok(())
    }

    /// What a value that is of another type should have been.
    fn expected(self) -> &'static str {
        match self {
            Codec::Bool => "a value of another type, expected 0 or 1",
            Codec::Int2 | Codec::Int4 | Codec::Int8 | Codec::Oid => "a value of another type, expected an integer",
            Codec::Float4 | Codec::Float8 => "a value of another type, expected a number",
            Codec::Numeric => "a value of another type, expected a decimal like 12.50",
            Codec::Text => "a value of another type, expected text",
            Codec::Bytea => "a value of another type, expected a blob",
            Codec::Date => "a value of another type, expected a date like 2013-01-31",
            Codec::Time => "a value of another type, expected a time like 05:00:00.000001",
            Codec::Timestamp => "a value of another type, expected a timestamp like 2013-01-31 05:00:00.000001",
            Codec::Timestamptz => "a value of another type, expected an instant like 2013-01-31 05:00:00Z",
            Codec::Uuid => "a value of another type, expected a UUID with its hyphens",
            Codec::Json | Codec::Jsonb => "a value of another type, expected JSON",
        }
    }
}

const SMALLINT: &str = "an integer outside -32768 to 32767";
const INTEGER: &str = "an integer outside -2147483648 to 2147483647";
const OID: &str = "an integer outside 0 to 4294967295";

/// An integer of any width: a side table's columns are wider than those of its table.
fn integer(raw: &[u8]) -> Option<i64> {
    Some(match raw.len() {
        2 => i64::from(i16::from_be_bytes(raw.try_into().ok()?)),
        4 => i64::from(i32::from_be_bytes(raw.try_into().ok()?)),
        _ => i64::from_be_bytes(raw.try_into().ok()?),
    })
}

/// Microseconds since 1970; `None` for PostgreSQL's last thirty years, which don't fit.
fn timestamp(stored: i64) -> Option<i64> {
    match stored {
        i64::MAX => Some(POSITIVE_INFINITY),
        i64::MIN => Some(NEGATIVE_INFINITY),
        micros => micros.checked_add(EPOCH_MICROS).filter(|value| *value != POSITIVE_INFINITY),
    }
}

/// What an instant's text ends with.
const ZONE: &str = "Z";

/// The text of a timestamp that [`timestamp`] has no number for, in the form of [`text`].
fn write_late(out: &mut String, stored: i64, zone: &str) {
    out.clear();
    text::write_date(out, stored.div_euclid(DAY_MICROS) + EPOCH_DAYS);
    out.push(' ');
    text::write_time(out, stored.rem_euclid(DAY_MICROS));
    out.push_str(zone);
}

/// What [`write_late`] wrote; `None` for any other text, a timestamp that has a number among them.
fn late(value: &[u8], zone: &str) -> Option<i64> {
    let value = std::str::from_utf8(value).ok()?;
    let (day, clock) = value.strip_suffix(zone)?.split_once(' ')?;
    let days = text::parse_date(day)?.checked_sub(EPOCH_DAYS)?;
    let stored = days.checked_mul(DAY_MICROS)?.checked_add(text::parse_time(clock)?)?;
    let mut written = String::new();
    write_late(&mut written, stored, zone);
    (stored < TIMESTAMP_END && timestamp(stored).is_none() && written == value).then_some(stored)
}

fn stored_timestamp(value: i64) -> Result<i64, &'static str> {
    match value {
        POSITIVE_INFINITY => Ok(i64::MAX),
        NEGATIVE_INFINITY => Ok(i64::MIN),
        micros => micros
            .checked_sub(EPOCH_MICROS)
            .filter(|stored| (DAY_MIN * DAY_MICROS..TIMESTAMP_END).contains(stored))
            .ok_or("a timestamp outside 4714-11-24 BC to 294276-12-31"),
    }
}

fn date(value: i64) -> Result<i32, &'static str> {
    match value {
        POSITIVE_INFINITY => Ok(i32::MAX),
        NEGATIVE_INFINITY => Ok(i32::MIN),
        days => days
            .checked_sub(EPOCH_DAYS)
            .filter(|stored| (DAY_MIN..DATE_END).contains(stored))
            .map(|stored| stored as i32)
            .ok_or("a date outside 4714-11-24 BC to 5874897-12-31"),
    }
}

/// The nearest `float4`, as the server itself would round; a finite number stays finite.
fn narrowed(value: f64) -> Result<f32, &'static str> {
    let narrow = value as f32;
    if value.is_finite() && !narrow.is_finite() { Err("a number beyond what a float4 holds") } else { Ok(narrow) }
}

/// Whether a double holds this integer exactly.
fn exact(value: i64) -> bool {
    value.unsigned_abs() <= 1 << 53
}

fn put_text(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
    if bytes.contains(&0) {
        return Err("text with a NUL character");
    }
    std::str::from_utf8(bytes).map_err(|_| "text that is not UTF-8")?;
    out.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use headwater_protocol::Value;

    use super::*;

    fn encoded(codec: Codec, value: &Value) -> Result<Vec<u8>, &'static str> {
        let mut out = Vec::new();
        codec.encode(value.as_ref(), &mut out).map(|()| out)
    }

    #[test]
    fn what_a_type_can_not_hold_is_refused() {
        for (codec, value) in [
            (Codec::Int2, Value::Int(32_768)),
            (Codec::Int4, Value::Int(-2_147_483_649)),
            (Codec::Oid, Value::Int(-1)),
            (Codec::Float4, Value::Real(1e300)),
            (Codec::Float8, Value::Int((1 << 53) + 1)),
            (Codec::Text, Value::Text(vec![b'a', 0])),
            (Codec::Text, Value::Text(vec![0xff])),
            (Codec::Jsonb, Value::Json(vec![0xc0, 0x80])),
            (Codec::Int4, Value::text("1")),
            (Codec::Text, Value::Int(1)),
            (Codec::Date, Value::Date(i64::MAX - 1)),
            (Codec::Date, Value::Date(DAY_MIN + EPOCH_DAYS - 1)),
            (Codec::Timestamptz, Value::Timestamptz(i64::MIN + 1)),
            (Codec::Time, Value::Time(DAY_MICROS + 1)),
            (Codec::Timestamp, Value::Timestamptz(0)),
        ] {
            assert!(encoded(codec, &value).is_err(), "{codec:?} {value:?}");
        }
    }

    #[test]
    fn timestamps_beyond_the_wires_range_are_texts_both_ways() {
        let first = timestamp_edge() + 1;
        for (stored, text) in
            [(first, "+294247-01-10 04:00:54.775807"), (TIMESTAMP_END - 1, "+294276-12-31 23:59:59.999999")]
        {
            for (codec, text) in [(Codec::Timestamp, text.to_owned()), (Codec::Timestamptz, format!("{text}Z"))] {
                let mut scratch = Scratch::default();
                let came = codec.decode(&stored.to_be_bytes(), &mut scratch).map(|value| value.to_value());
                assert_eq!(came, Some(Value::text(text.clone())));
                assert_eq!(encoded(codec, &Value::text(text)), Ok(stored.to_be_bytes().to_vec()));
            }
        }
    }

    /// The last one that is a number on the wire.
    fn timestamp_edge() -> i64 {
        i64::MAX - 1 - EPOCH_MICROS
    }

    #[test]
    fn other_texts_are_no_timestamps() {
        for text in [
            "+294247-01-10 04:00:54.775806",
            "+294277-01-01 00:00:00",
            "294276-12-31 23:59:59.999999",
            "+294276-12-31 23:59:59.5",
            "+294276-12-31T23:59:59",
            "+294276-12-31 24:00:00",
            "+294276-12-31 23:59:59+00",
            "2013-01-31 05:00:00",
            "infinity 05:00:00",
            "-infinity 05:00:00",
            "é",
        ] {
            assert!(encoded(Codec::Timestamp, &Value::text(text)).is_err(), "{text}");
            assert!(encoded(Codec::Timestamptz, &Value::text(text)).is_err(), "{text}, which has no zone");
            assert!(encoded(Codec::Timestamp, &Value::text(format!("{text}Z"))).is_err(), "{text}Z");
        }
    }

    #[test]
    fn values_round_trip() {
        for (codec, value) in [
            (Codec::Float4, Value::Real(f64::INFINITY)),
            (Codec::Float4, Value::Real(1.5)),
            (Codec::Date, Value::Date(POSITIVE_INFINITY)),
            (Codec::Date, Value::Date(DAY_MIN + EPOCH_DAYS)),
            (Codec::Timestamp, Value::Timestamp(NEGATIVE_INFINITY)),
            (Codec::Timestamptz, Value::Timestamptz(-1)),
            (Codec::Time, Value::Time(DAY_MICROS)),
            (Codec::Jsonb, Value::Json(b"{}".to_vec())),
            (Codec::Oid, Value::Int(4_294_967_295)),
        ] {
            let raw = encoded(codec, &value).expect("a value that the type holds");
            assert_eq!(codec.decode(&raw, &mut Scratch::default()).map(|v| v.to_value()), Some(value));
        }
    }
}
