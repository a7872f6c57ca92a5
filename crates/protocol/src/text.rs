//! Values as text: the forms in which SQLite files keep what SQLite has no type for.
//!
//! | type | canonical text | outside year 1 to 9999 |
//! |---|---|---|
//! | date | `2013-01-31` | `+12013-01-31`; year 0 is 1 BC: `0000-01-31`, before it `-0043-01-31` |
//! | time | `05:00:00`, `05:00:00.000001` (no fraction or six digits) | |
//! | timestamp | date, space, time | |
//! | timestamptz | as timestamp, in UTC, with a final `Z` | |
//! | date, timestamp, timestamptz | `infinity`, `-infinity` | |
//! | uuid | 36 characters, lower case | |
//!
//! [`crate::stored`] reads exactly these forms and leaves every other text a text, so that what a file holds comes back to the byte.
//! [`coerce`] is lenient: it is what a database with real types does with a text that an application wrote in another spelling.
//!
//! The calendar is the proleptic Gregorian one, by the era arithmetic of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".

use crate::decimal::Decimal;
use crate::value::{NEGATIVE_INFINITY, POSITIVE_INFINITY, Type, Value};

const MICROS_A_SECOND: i64 = 1_000_000;
/// Microseconds in a day.
pub const MICROS_A_DAY: i64 = 86_400 * MICROS_A_SECOND;

/// Appends a date, given in days since 1970-01-01.
pub fn write_date(out: &mut String, days: i64) {
    if let Some(word) = infinity(days) {
        return out.push_str(word);
    }
    let (year, month, day) = civil(days);
    match year {
        0..=9999 => push_digits(out, year, 4),
        10_000.. => {
            out.push('+');
            push_digits(out, year, 5);
        }
        _ => {
            out.push('-');
            push_digits(out, -year, 4);
        }
    }
    out.push('-');
    push_digits(out, month, 2);
    out.push('-');
    push_digits(out, day, 2);
}

/// Appends a time of day, given in microseconds. What is no time of day (negative, or above 24 hours) is written as what it counts.
pub fn write_time(out: &mut String, micros: i64) {
    let seconds = micros / MICROS_A_SECOND;
    push_digits(out, i128::from(seconds / 3600), 2);
    out.push(':');
    push_digits(out, i128::from(seconds / 60 % 60), 2);
    out.push(':');
    push_digits(out, i128::from(seconds % 60), 2);
    let fraction = micros % MICROS_A_SECOND;
    if fraction != 0 {
        out.push('.');
        push_digits(out, i128::from(fraction), 6);
    }
}

/// Appends a timestamp, given in microseconds since 1970-01-01 00:00:00.
pub fn write_timestamp(out: &mut String, micros: i64) {
    if let Some(word) = infinity(micros) {
        return out.push_str(word);
    }
    write_date(out, micros.div_euclid(MICROS_A_DAY));
    out.push(' ');
    write_time(out, micros.rem_euclid(MICROS_A_DAY));
}

/// Appends an instant, given in microseconds since 1970-01-01 00:00:00 UTC.
pub fn write_timestamptz(out: &mut String, micros: i64) {
    write_timestamp(out, micros);
    if infinity(micros).is_none() {
        out.push('Z');
    }
}

/// Appends a UUID.
pub fn write_uuid(out: &mut String, uuid: &[u8; 16]) {
    for (place, byte) in uuid.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        for half in [byte >> 4, byte & 15] {
            out.push(char::from_digit(u32::from(half), 16).unwrap_or('0'));
        }
    }
}

/// The days since 1970-01-01 of a date; `None`: there is no such date.
pub fn date(year: i64, month: i64, day: i64) -> Option<i64> {
    let days = days_from_civil(year, month, day);
    (civil(days) == (i128::from(year), i128::from(month), i128::from(day))).then_some(days)
}

/// Reads a date in any of the forms of this page's table; `None` for anything else and for days that don't exist.
pub fn parse_date(text: &str) -> Option<i64> {
    if let Some(value) = parse_infinity(text) {
        return Some(value);
    }
    let (sign, digits) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => (1, text),
    };
    let (year, rest) = digits.split_once('-')?;
    let (month, day) = rest.split_once('-')?;
    let expanded = text.starts_with('+');
    if year.len() < 4
        || year.len() > 12
        || expanded != (year.len() > 4 && sign > 0)
        || month.len() != 2
        || day.len() != 2
    {
        return None;
    }
    date(sign * number(year)?, number(month)?, number(day)?)
}

/// Reads a time of day: `HH:MM:SS` and up to six digits of a fraction; 24:00:00 is one.
pub fn parse_time(text: &str) -> Option<i64> {
    let (clock, fraction) = text.split_once('.').map_or((text, None), |(clock, fraction)| (clock, Some(fraction)));
    let bytes = clock.as_bytes();
    if bytes.len() != 8 || bytes[2] != b':' || bytes[5] != b':' {
        return None;
    }
    let (hour, minute, second) = (number(clock.get(..2)?)?, number(clock.get(3..5)?)?, number(clock.get(6..)?)?);
    let mut micros = ((hour * 60 + minute) * 60 + second) * MICROS_A_SECOND;
    if let Some(fraction) = fraction {
        if fraction.is_empty() || fraction.len() > 6 {
            return None;
        }
        micros += number(fraction)? * 10i64.pow(6 - fraction.len() as u32);
    }
    (minute < 60 && second < 60 && micros <= MICROS_A_DAY).then_some(micros)
}

/// Reads a timestamp: date, one space or `T`, time.
pub fn parse_timestamp(text: &str) -> Option<i64> {
    if let Some(value) = parse_infinity(text) {
        return Some(value);
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    moment(parse_date(date)?, parse_time(time)?)
}

/// The microseconds since 1970-01-01; `None` where 64 bits don't hold them beside the infinities.
fn moment(days: i64, micros: i64) -> Option<i64> {
    days.checked_mul(MICROS_A_DAY)?.checked_add(micros).filter(|moment| infinity(*moment).is_none())
}

/// Reads an instant: a timestamp with `Z` or an offset (`+02`, `+02:00`, `-0330`); one without zone is none.
pub fn parse_timestamptz(text: &str) -> Option<i64> {
    if let Some(value) = parse_infinity(text) {
        return Some(value);
    }
    if let Some(local) = text.strip_suffix(['Z', 'z']) {
        return parse_timestamp(local);
    }
    let start = text.rfind(['+', '-']).filter(|start| text[..*start].contains(':'))?;
    let (local, offset) = text.split_at(start);
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let digits: String = offset[1..].chars().filter(|c| *c != ':').collect();
    let minutes = match digits.len() {
        2 => number(&digits)? * 60,
        4 => number(digits.get(..2)?)? * 60 + number(digits.get(2..)?)?,
        _ => return None,
    };
    let moment = parse_timestamp(local)?.checked_sub(sign * minutes * 60 * MICROS_A_SECOND);
    moment.filter(|moment| infinity(*moment).is_none())
}

/// Reads a UUID: 36 characters with hyphens, either case.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 {
        return None;
    }
    let mut uuid = [0; 16];
    let mut halves = 0;
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 8 | 13 | 18 | 23) {
            if *byte != b'-' {
                return None;
            }
            continue;
        }
        let half = char::from(*byte).to_digit(16)? as u8;
        uuid[halves / 2] |= if halves % 2 == 0 { half << 4 } else { half };
        halves += 1;
    }
    Some(uuid)
}

/// A value as the nearest exact value of `kind`: what a database with real types makes of what an application wrote into a file that
/// has none. `None` where there is no exact one; the change is then to be set aside.
pub fn coerce(value: &Value, kind: Type) -> Option<Value> {
    if value.is_null() || value.as_ref().kind() == Some(kind) {
        return Some(value.clone());
    }
    match value {
        Value::Text(bytes) => from_text(std::str::from_utf8(bytes).ok()?, kind),
        Value::Json(bytes) if kind == Type::Text => Some(Value::Text(bytes.clone())),
        Value::Int(number) => match kind {
            Type::Bool if (0..=1).contains(number) => Some(Value::Bool(*number == 1)),
            Type::Real => i64_to_real(*number).map(Value::Real),
            Type::Decimal => Decimal::parse(&number.to_string()).map(Value::Decimal),
            Type::Text => Some(Value::text(number.to_string())),
            Type::Json => Some(Value::Json(number.to_string().into_bytes())),
            _ => None,
        },
        Value::Real(real) => match kind {
            Type::Int => real_to_i64(*real).map(Value::Int),
            Type::Decimal => real_to_decimal(*real).map(Value::Decimal),
            Type::Text => Some(Value::text(real.to_string())),
            Type::Json if real.is_finite() => Some(Value::Json(real.to_string().into_bytes())),
            _ => None,
        },
        Value::Bool(truth) if kind == Type::Int => Some(Value::Int(i64::from(*truth))),
        _ => None,
    }
}

fn from_text(text: &str, kind: Type) -> Option<Value> {
    Some(match kind {
        Type::Bool => match text {
            "t" | "true" | "1" => Value::Bool(true),
            "f" | "false" | "0" => Value::Bool(false),
            _ => return None,
        },
        Type::Int => Value::Int(text.parse().ok()?),
        Type::Real => Value::Real(text.parse().ok()?),
        Type::Decimal => Value::Decimal(lenient_decimal(text)?),
        Type::Date => Value::Date(parse_date(text.strip_suffix(" 00:00:00").unwrap_or(text))?),
        Type::Time => Value::Time(lenient_time(text)?),
        // `Z`: what JavaScript gives for a date.
        Type::Timestamp => Value::Timestamp(lenient_timestamp(text.strip_suffix('Z').unwrap_or(text))?),
        // SQLite's CURRENT_TIMESTAMP is in UTC, and does not say so.
        Type::Timestamptz => Value::Timestamptz(
            parse_timestamptz(text).or_else(|| lenient_timestamp(text.strip_suffix('Z').unwrap_or(text)))?,
        ),
        Type::Uuid => Value::Uuid(parse_uuid(text)?),
        Type::Json => Value::Json(text.as_bytes().to_vec()),
        Type::Text => Value::text(text),
        Type::Bytes => return None,
    })
}

/// A time of day whose seconds may be left out.
fn lenient_time(text: &str) -> Option<i64> {
    parse_time(text).or_else(|| parse_time(&format!("{text}:00")))
}

/// A timestamp whose seconds or whose whole time of day may be left out.
fn lenient_timestamp(text: &str) -> Option<i64> {
    let Some((date, time)) = text.split_once([' ', 'T']) else {
        return parse_timestamp(&format!("{text} 00:00:00")).or_else(|| parse_infinity(text));
    };
    moment(parse_date(date)?, lenient_time(time)?)
}

/// A decimal that may have an exponent: SQLite makes `1.0e-05` of a double where text is declared.
fn lenient_decimal(text: &str) -> Option<Decimal> {
    const EXPONENT_MAX: i64 = 400;
    let Some((digits, exponent)) = text.split_once(['e', 'E']) else { return Decimal::parse(text) };
    let exponent: i64 = exponent.parse().ok().filter(|exponent: &i64| exponent.abs() <= EXPONENT_MAX)?;
    Decimal::parse(digits)?;
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let point = whole.len() as i64 + exponent;
    let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap_or(0));
    let all = format!("{}{whole}{fraction}{}", zeros(1 - point), zeros(point - (whole.len() + fraction.len()) as i64));
    let (whole, fraction) = all.split_at(usize::try_from(point.max(1)).ok()?);
    let whole = Some(whole.trim_start_matches('0')).filter(|whole| !whole.is_empty()).unwrap_or("0");
    Decimal::parse(&if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") })
}

/// The double that is this integer, if there is one.
pub fn i64_to_real(number: i64) -> Option<f64> {
    (number.unsigned_abs() <= 1 << 53).then_some(number as f64)
}

#[allow(clippy::float_cmp, reason = "exact or not at all")]
fn real_to_i64(real: f64) -> Option<i64> {
    let number = real as i64;
    (real.abs() < 9e15 && number as f64 == real).then_some(number)
}

/// The shortest decimal that reads back as this double.
pub(crate) fn real_to_decimal(real: f64) -> Option<Decimal> {
    if real.is_finite() { Decimal::parse(&real.to_string()) } else { None }
}

fn infinity(value: i64) -> Option<&'static str> {
    match value {
        POSITIVE_INFINITY => Some("infinity"),
        NEGATIVE_INFINITY => Some("-infinity"),
        _ => None,
    }
}

fn parse_infinity(text: &str) -> Option<i64> {
    match text {
        "infinity" => Some(POSITIVE_INFINITY),
        "-infinity" => Some(NEGATIVE_INFINITY),
        _ => None,
    }
}

/// Digits and nothing else (no sign, no space).
fn number(digits: &str) -> Option<i64> {
    if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

fn push_digits(out: &mut String, value: i128, width: usize) {
    use std::fmt::Write as _;
    if (0..100).contains(&value) && width == 2 {
        out.push(char::from(b'0' + (value / 10) as u8));
        out.push(char::from(b'0' + (value % 10) as u8));
    } else {
        write!(out, "{value:0width$}").expect("a string takes everything");
    }
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(days: i64) -> (i128, i128, i128) {
    let shifted = i128::from(days) + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + i128::from(month <= 2), month, day)
}

/// Days since 1970-01-01; a month or day out of range gives the days of another date. Years have at most twelve digits.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
        out
    }

    #[test]
    fn dates_round_trip_across_the_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (15_706, "2013-01-01"),
            (11_016, "2000-02-29"),
            (-719_528, "0000-01-01"),
            (-719_529, "-0001-12-31"),
            (2_932_896, "9999-12-31"),
            (2_932_897, "+10000-01-01"),
            (POSITIVE_INFINITY, "infinity"),
            (NEGATIVE_INFINITY, "-infinity"),
        ] {
            assert_eq!(text(|out| write_date(out, days)), expected);
            assert_eq!(parse_date(expected), Some(days), "{expected}");
        }
        for days in (-4_000_000..4_000_000).step_by(997) {
            assert_eq!(parse_date(&text(|out| write_date(out, days))), Some(days));
        }
        // What the wire can carry but no calendar holds must at least not bring anything down.
        for days in [i64::MAX - 1, i64::MIN + 1] {
            assert!(!text(|out| write_date(out, days)).is_empty());
        }
    }

    #[test]
    fn times_and_timestamps_round_trip() {
        for (micros, expected) in [
            (0, "1970-01-01 00:00:00"),
            (1, "1970-01-01 00:00:00.000001"),
            (-1, "1969-12-31 23:59:59.999999"),
            (1_357_034_400_000_000, "2013-01-01 10:00:00"),
            (POSITIVE_INFINITY, "infinity"),
        ] {
            assert_eq!(text(|out| write_timestamp(out, micros)), expected);
            assert_eq!(parse_timestamp(expected), Some(micros));
            let zoned = if micros == POSITIVE_INFINITY { expected.to_owned() } else { format!("{expected}Z") };
            assert_eq!(text(|out| write_timestamptz(out, micros)), zoned);
            assert_eq!(parse_timestamptz(&zoned), Some(micros));
        }
        assert_eq!(parse_time("24:00:00"), Some(MICROS_A_DAY));
        assert_eq!(parse_timestamptz("2013-01-01T05:00:00.5-05:00"), Some(1_357_034_400_500_000));
        assert_eq!(parse_timestamptz("2013-01-01 10:00:00"), None, "no zone is no instant");
    }

    #[test]
    fn the_last_moment_is_not_infinity() {
        assert_eq!(parse_timestamp("+294247-01-10 04:00:54.775806"), Some(i64::MAX - 1));
        for text in ["+294247-01-10 04:00:54.775807", "-290308-12-21 19:59:05.224192"] {
            assert_eq!(parse_timestamp(text), None);
            assert_eq!(coerce(&Value::text(text), Type::Timestamp), None);
            assert_eq!(parse_timestamptz(&format!("{text}Z")), None);
            assert_eq!(coerce(&Value::text(format!("{text}Z")), Type::Timestamptz), None);
        }
        assert_eq!(parse_timestamptz("+294247-01-10 05:00:54.775807+01"), None);
    }

    #[test]
    fn what_is_no_date_or_time_is_refused() {
        for bad in [
            "",
            "2013-02-29",
            "2013-13-01",
            "2013-1-1",
            "13-01-01",
            "+2013-01-01",
            "12013-01-01",
            "2013-01-01 ",
            "2013-01-00",
            "é",
        ] {
            assert_eq!(parse_date(bad), None, "{bad}");
        }
        for bad in
            ["", "5:00:00", "05:00", "05:60:00", "24:00:01", "05:00:00.", "05:00:00.1234567", "+5:00:00", "0é:00:00"]
        {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn uuids_round_trip() {
        let uuid = parse_uuid("00112233-4455-6677-8899-AABBCCDDEEFF").expect("a uuid");
        assert_eq!(text(|out| write_uuid(out, &uuid)), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(parse_uuid("00112233445566778899aabbccddeeff"), None);
        assert_eq!(parse_uuid("0011223344-55-6677-8899-aabbccddeeff"), None);
    }

    #[test]
    fn coercion_is_exact_or_nothing() {
        assert_eq!(
            coerce(&Value::text("2013-01-01T05:00:00"), Type::Timestamp),
            Some(Value::Timestamp(1_357_016_400_000_000))
        );
        assert_eq!(coerce(&Value::Int(2), Type::Bool), None);
        assert_eq!(coerce(&Value::Int(i64::MAX), Type::Real), None);
        assert_eq!(coerce(&Value::Real(0.5), Type::Int), None);
        assert_eq!(coerce(&Value::text("x"), Type::Int), None);
        assert_eq!(coerce(&Value::text("x"), Type::Bytes), None);
        assert_eq!(coerce(&Value::Null, Type::Int), Some(Value::Null));
        assert_eq!(coerce(&Value::Int(5), Type::Json), Some(Value::Json(b"5".to_vec())));
        assert_eq!(coerce(&Value::Real(0.5), Type::Json), Some(Value::Json(b"0.5".to_vec())));
        assert_eq!(coerce(&Value::Real(f64::INFINITY), Type::Json), None);
    }

    #[test]
    fn spellings_that_applications_use_are_taken() {
        for (kind, other, canonical) in [
            (Type::Timestamptz, "2026-01-01 10:00:00", "2026-01-01 10:00:00Z"),
            (Type::Timestamptz, "2026-01-01T10:00Z", "2026-01-01 10:00:00Z"),
            (Type::Timestamptz, "2026-01-01", "2026-01-01 00:00:00Z"),
            (Type::Timestamp, "2026-01-01T10:00:00.125Z", "2026-01-01 10:00:00.125000"),
            (Type::Timestamp, "2026-01-01 10:00", "2026-01-01 10:00:00"),
            (Type::Timestamp, "2026-01-01", "2026-01-01 00:00:00"),
            (Type::Timestamp, "-infinity", "-infinity"),
            (Type::Date, "2026-01-02 00:00:00", "2026-01-02"),
            (Type::Time, "10:00", "10:00:00"),
            (Type::Decimal, "1.0e-05", "0.000010"),
            (Type::Decimal, "-12.5e1", "-125"),
            (Type::Decimal, "1E3", "1000"),
            (Type::Decimal, "0.0123e2", "1.23"),
            (Type::Decimal, "1.5e-3", "0.0015"),
        ] {
            let read = |text: &str| coerce(&Value::text(text), kind);
            assert!(read(canonical).is_some(), "{canonical}");
            assert_eq!(read(other), read(canonical), "{other}");
        }
        for (kind, text) in [
            (Type::Timestamp, "2026-01-01 10:00:00+02"),
            (Type::Timestamp, "2026-01-01 "),
            (Type::Timestamptz, "2026-02-30"),
            (Type::Timestamptz, "10:00:00"),
            (Type::Date, "2026-01-02 00:00:01"),
            (Type::Time, "10"),
            (Type::Time, "10:"),
            (Type::Decimal, "1e"),
            (Type::Decimal, "e5"),
            (Type::Decimal, "1e401"),
            (Type::Decimal, "NaNe1"),
            (Type::Decimal, "é"),
        ] {
            assert_eq!(coerce(&Value::text(text), kind), None, "{text}");
        }
    }
}
