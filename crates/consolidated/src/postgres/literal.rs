//! Values as the text that PostgreSQL reads: for parameters whose type is not known to be the value's own.

use std::fmt::Write as _;

use headwater_protocol::Value;
use headwater_protocol::value::{NEGATIVE_INFINITY, POSITIVE_INFINITY};

const DAY_MICROS: i64 = 86_400_000_000;

/// The text of a value, as bytes (text in a SQLite file need not be UTF-8; the server says so then); `None` for NULL.
pub(super) fn text(value: &Value) -> Option<Vec<u8>> {
    let text = match value {
        Value::Null => return None,
        Value::Text(bytes) | Value::Json(bytes) => return Some(bytes.clone()),
        Value::Bool(truth) => truth.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Real(number) => real(*number),
        Value::Decimal(decimal) => decimal.to_string(),
        Value::Bytes(bytes) => format!("\\x{}", hex::encode(bytes)),
        Value::Date(days) => infinity(*days).unwrap_or_else(|| date(*days, "")),
        Value::Time(micros) => time(*micros),
        Value::Timestamp(micros) => infinity(*micros).unwrap_or_else(|| timestamp(*micros)),
        Value::Timestamptz(micros) => infinity(*micros).unwrap_or_else(|| zoned(*micros)),
        Value::Uuid(bytes) => uuid::Uuid::from_bytes(*bytes).to_string(),
    };
    Some(text.into_bytes())
}

/// A timestamp without its zone.
fn timestamp(micros: i64) -> String {
    let clock = time(micros.rem_euclid(DAY_MICROS));
    date(micros.div_euclid(DAY_MICROS), &format!(" {clock}"))
}

fn zoned(micros: i64) -> String {
    let text = timestamp(micros);
    match text.strip_suffix(" BC") {
        Some(before) => format!("{before}+00 BC"),
        None => text + "+00",
    }
}

fn real(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    format!("{number:?}") // the shortest text that gives the same number again; NaN is NaN
}

fn infinity(count: i64) -> Option<String> {
    match count {
        POSITIVE_INFINITY => Some("infinity".to_owned()),
        NEGATIVE_INFINITY => Some("-infinity".to_owned()),
        _ => None,
    }
}

fn time(micros: i64) -> String {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let mut text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction > 0 {
        let _ = write!(text, ".{fraction:06}");
    }
    text
}

/// A day since 1970-01-01 as `2005-01-31`, or `0044-03-15 BC`; `clock` goes before the BC.
fn date(days: i64, clock: &str) -> String {
    let (year, month, day) = civil(days);
    if year > 0 {
        format!("{year:04}-{month:02}-{day:02}{clock}")
    } else {
        format!("{:04}-{month:02}-{day:02}{clock} BC", 1 - year)
    }
}

/// Year, month and day in the proleptic Gregorian calendar, by counting years from March, so that the leap day comes last, and in
/// eras of 400 years, which all have as many days.
fn civil(days: i64) -> (i64, i64, i64) {
    const ERA_DAYS: i64 = 146_097;
    let since = i128::from(days) + 719_468; // from 0000-03-01
    let era = since.div_euclid(i128::from(ERA_DAYS)) as i64;
    let day = since.rem_euclid(i128::from(ERA_DAYS)) as i64;
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day_of_year - (153 * month_from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(value: &Value) -> String {
        String::from_utf8(text(value).expect("a value")).expect("UTF-8")
    }

    #[test]
    fn values_are_spelled_as_postgresql_reads_them() {
        for (value, expected) in [
            (Value::Date(0), "1970-01-01"),
            (Value::Date(11_016), "2000-02-29"),
            (Value::Date(-719_529), "0002-12-31 BC"),
            (Value::Date(POSITIVE_INFINITY), "infinity"),
            (Value::Timestamp(-1), "1969-12-31 23:59:59.999999"),
            (Value::Timestamptz(0), "1970-01-01 00:00:00+00"),
            (Value::Timestamptz(-62_167_219_200_000_001), "0002-12-31 23:59:59.999999+00 BC"),
            (Value::Time(86_400_000_000), "24:00:00"),
            (Value::Real(1e300), "1e300"),
            (Value::Real(f64::NEG_INFINITY), "-Infinity"),
            (Value::Real(f64::NAN), "NaN"),
            (Value::Bytes(vec![0, 255]), "\\x00ff"),
            (Value::Bool(true), "true"),
        ] {
            assert_eq!(shown(&value), expected);
        }
    }
}
