//! Values: those of rows as the driver has read them, and those of parameters.

use std::fmt::Write as _;

use headwater_protocol::decimal::DecimalPacker;
use headwater_protocol::text::{MICROS_A_DAY, date, write_date, write_time, write_timestamp, write_uuid};
use headwater_protocol::{Type, Value, ValueRef};
use mysql_async::consts::{ColumnFlags, ColumnType};
use mysql_async::{Column, Value as Raw};

/// The character set of what has none.
const BINARY: u16 = 63;
/// Digits of a `DECIMAL(65,30)` before its point and behind it.
const DECIMAL_DIGITS: [usize; 2] = [35, 30];

/// What a column's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `TINYINT(1)`.
    Bool,
    Int,
    /// Its bits, the greatest first.
    Bit,
    Real,
    Decimal,
    Text,
    Bytes,
    Date,
    Time,
    Datetime,
    Timestamp,
    /// Nothing but NULL, or a parameter that has no value yet.
    Unknown,
}

/// Where values are made that are not in the driver's buffer as they are.
#[derive(Default)]
pub(super) struct Scratch {
    text: String,
    decimal: DecimalPacker,
}

impl Kind {
    /// What a column has, and the database's name for it.
    pub(super) fn of(column: &Column) -> (Kind, &'static str) {
        let is_unsigned = column.flags().contains(ColumnFlags::UNSIGNED_FLAG);
        let is_binary = column.character_set() == BINARY;
        let of_sign = |signed, unsigned| (Kind::Int, if is_unsigned { unsigned } else { signed });
        match column.column_type() {
            ColumnType::MYSQL_TYPE_TINY if column.column_length() == 1 => (Kind::Bool, "boolean"),
            ColumnType::MYSQL_TYPE_TINY => of_sign("tinyint", "tinyint unsigned"),
            ColumnType::MYSQL_TYPE_SHORT => of_sign("smallint", "smallint unsigned"),
            ColumnType::MYSQL_TYPE_INT24 => of_sign("mediumint", "mediumint unsigned"),
            ColumnType::MYSQL_TYPE_LONG => of_sign("int", "int unsigned"),
            ColumnType::MYSQL_TYPE_LONGLONG => of_sign("bigint", "bigint unsigned"),
            ColumnType::MYSQL_TYPE_YEAR => (Kind::Int, "year"),
            ColumnType::MYSQL_TYPE_BIT => (Kind::Bit, "bit"),
            ColumnType::MYSQL_TYPE_FLOAT => (Kind::Real, "float"),
            ColumnType::MYSQL_TYPE_DOUBLE => (Kind::Real, "double"),
            ColumnType::MYSQL_TYPE_DECIMAL | ColumnType::MYSQL_TYPE_NEWDECIMAL => (Kind::Decimal, "decimal"),
            ColumnType::MYSQL_TYPE_DATE | ColumnType::MYSQL_TYPE_NEWDATE => (Kind::Date, "date"),
            ColumnType::MYSQL_TYPE_TIME | ColumnType::MYSQL_TYPE_TIME2 => (Kind::Time, "time"),
            ColumnType::MYSQL_TYPE_DATETIME | ColumnType::MYSQL_TYPE_DATETIME2 => (Kind::Datetime, "datetime"),
            ColumnType::MYSQL_TYPE_TIMESTAMP | ColumnType::MYSQL_TYPE_TIMESTAMP2 => (Kind::Timestamp, "timestamp"),
            ColumnType::MYSQL_TYPE_NULL => (Kind::Unknown, ""),
            ColumnType::MYSQL_TYPE_GEOMETRY => (Kind::Bytes, "geometry"),
            ColumnType::MYSQL_TYPE_TINY_BLOB
            | ColumnType::MYSQL_TYPE_BLOB
            | ColumnType::MYSQL_TYPE_MEDIUM_BLOB
            | ColumnType::MYSQL_TYPE_LONG_BLOB
                if is_binary =>
            {
                (Kind::Bytes, "blob")
            }
            _ if is_binary => (Kind::Bytes, "varbinary"),
            ColumnType::MYSQL_TYPE_STRING => (Kind::Text, "char"),
            ColumnType::MYSQL_TYPE_VAR_STRING | ColumnType::MYSQL_TYPE_VARCHAR => (Kind::Text, "varchar"),
            _ => (Kind::Text, "text"),
        }
    }

    /// The type of its values; `None`: there is none.
    pub(super) fn result(self) -> Option<Type> {
        Some(match self {
            Kind::Bool => Type::Bool,
            Kind::Int | Kind::Bit => Type::Int,
            Kind::Real => Type::Real,
            Kind::Decimal => Type::Decimal,
            Kind::Text => Type::Text,
            Kind::Bytes => Type::Bytes,
            Kind::Date => Type::Date,
            Kind::Time => Type::Time,
            Kind::Datetime => Type::Timestamp,
            Kind::Timestamp => Type::Timestamptz,
            Kind::Unknown => return None,
        })
    }

    /// A value; `None`: it is none of its column's type.
    pub(super) fn decode<'a>(self, raw: &'a Raw, scratch: &'a mut Scratch) -> Option<ValueRef<'a>> {
        Some(match (self, raw) {
            (_, Raw::NULL) => ValueRef::Null,
            (Kind::Bool, Raw::Int(number @ (0 | 1))) => ValueRef::Bool(*number == 1),
            (_, Raw::Int(number)) => ValueRef::Int(*number),
            (_, Raw::UInt(number)) => unsigned(*number, scratch)?,
            // The number that its shortest text means, and not the double beside it.
            (_, Raw::Float(real)) => ValueRef::Real(real.to_string().parse().ok()?),
            (_, Raw::Double(real)) => ValueRef::Real(*real),
            (Kind::Bit, Raw::Bytes(bytes)) if bytes.len() <= 8 => {
                unsigned(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)), scratch)?
            }
            (Kind::Decimal, Raw::Bytes(digits)) => decimal(digits, &mut scratch.decimal)?,
            (Kind::Bytes, Raw::Bytes(bytes)) => ValueRef::Bytes(bytes),
            (Kind::Text | Kind::Unknown, Raw::Bytes(bytes)) => ValueRef::Text(bytes),
            (Kind::Date | Kind::Datetime | Kind::Timestamp, Raw::Date(..)) => self.moment(raw, &mut scratch.text)?,
            (Kind::Time, Raw::Time(..)) => time(raw, &mut scratch.text)?,
            _ => return None,
        })
    }

    /// A date, with a time of day or without; as a text where there is no such date.
    fn moment<'a>(self, raw: &Raw, text: &'a mut String) -> Option<ValueRef<'a>> {
        let Raw::Date(year, month, day, hours, minutes, seconds, micros) = *raw else { return None };
        let clock = micros_of((u32::from(hours), minutes, seconds, micros));
        if let Some(days) = date(year.into(), month.into(), day.into()) {
            let moment = days * MICROS_A_DAY + clock;
            return Some(match self {
                Kind::Date => ValueRef::Date(days),
                Kind::Datetime => ValueRef::Timestamp(moment),
                _ => ValueRef::Timestamptz(moment),
            });
        }
        text.clear();
        write!(text, "{year:04}-{month:02}-{day:02}").ok()?;
        if self != Kind::Date {
            text.push(' ');
            write_time(text, clock);
        }
        Some(ValueRef::Text(text.as_bytes()))
    }
}

/// A time of day, or as a text what is none.
fn time<'a>(raw: &Raw, text: &'a mut String) -> Option<ValueRef<'a>> {
    let Raw::Time(is_negative, days, hours, minutes, seconds, micros) = *raw else { return None };
    let clock = micros_of((days.checked_mul(24)?.checked_add(hours.into())?, minutes, seconds, micros));
    if !is_negative && clock < MICROS_A_DAY {
        return Some(ValueRef::Time(clock));
    }
    text.clear();
    if is_negative {
        text.push('-');
    }
    write_time(text, clock);
    Some(ValueRef::Text(text.as_bytes()))
}

fn micros_of((hours, minutes, seconds, micros): (u32, u8, u8, u32)) -> i64 {
    ((i64::from(hours) * 60 + i64::from(minutes)) * 60 + i64::from(seconds)) * 1_000_000 + i64::from(micros)
}

fn unsigned(number: u64, scratch: &mut Scratch) -> Option<ValueRef<'_>> {
    if let Ok(number) = i64::try_from(number) {
        return Some(ValueRef::Int(number));
    }
    decimal(number.to_string().as_bytes(), &mut scratch.decimal)
}

/// A decimal of its digits: `-12.50`; ZEROFILL puts zeros in front.
fn decimal<'a>(digits: &[u8], packer: &'a mut DecimalPacker) -> Option<ValueRef<'a>> {
    let (is_negative, digits) = digits.strip_prefix(b"-").map_or((false, digits), |digits| (true, digits));
    let point = digits.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (&digits[..point], &digits[point + 1..]),
        None => (digits, &[][..]),
    };
    let zeros = whole.iter().take_while(|byte| **byte == b'0').count().min(whole.len().checked_sub(1)?);
    let whole = &whole[zeros..];
    if !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    packer.begin(is_negative, whole.len() + fraction.len(), fraction.len());
    for digits in whole.chunks(4).chain(fraction.chunks(4)) {
        packer.push_digits(digits.iter().fold(0, |number, byte| number * 10 + u16::from(byte - b'0')), digits.len());
    }
    Some(ValueRef::Decimal(packer.finish()))
}

/// A value as it is bound.
pub(super) fn parameter(value: &Value) -> Result<Raw, String> {
    let written = |write: &dyn Fn(&mut String)| {
        let mut text = String::new();
        write(&mut text);
        text
    };
    Ok(match value {
        Value::Null => Raw::NULL,
        Value::Bool(truth) => Raw::Int(i64::from(*truth)),
        Value::Int(number) => Raw::Int(*number),
        Value::Real(real) => Raw::Double(*real),
        Value::Decimal(decimal) => exact(&decimal.to_string())?,
        Value::Text(bytes) | Value::Bytes(bytes) | Value::Json(bytes) => Raw::Bytes(bytes.clone()),
        Value::Date(days) => dated(written(&|text| write_date(text, *days)))?,
        Value::Time(micros) => Raw::Bytes(written(&|text| write_time(text, *micros)).into_bytes()),
        // The session is in UTC, and MariaDB knows no Z.
        Value::Timestamp(micros) | Value::Timestamptz(micros) => {
            dated(written(&|text| write_timestamp(text, *micros)))?
        }
        Value::Uuid(uuid) => Raw::Bytes(written(&|text| write_uuid(text, uuid)).into_bytes()),
    })
}

/// A date, with a time of day or without, of which its cast does not make NULL. Other years have a sign, and infinity is a word.
fn dated(text: String) -> Result<Raw, String> {
    if text.starts_with(|letter: char| letter.is_ascii_digit()) {
        return Ok(Raw::Bytes(text.into_bytes()));
    }
    Err(format!("{text} is no date of MariaDB's, whose years are 0 to 9999"))
}

/// A decimal that its cast does not round.
fn exact(text: &str) -> Result<Raw, String> {
    let digits = text.trim_start_matches('-');
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let [most_whole, most_fraction] = DECIMAL_DIGITS;
    if whole.len() <= most_whole && fraction.len() <= most_fraction && !text.ends_with(char::is_alphabetic) {
        return Ok(Raw::Bytes(text.as_bytes().to_vec()));
    }
    Err(format!(
        "{text} is no DECIMAL(65,30): at most {most_whole} digits before the point and {most_fraction} behind it"
    ))
}
