//! Values of arguments: read from a text, in one form each, and compared.
//!
//! | given | form |
//! |---|---|
//! | `+7`, `007`, `-0` (int) | `7`, `7`, `0` |
//! | `1e3`, `.5`, `-0`, `10e300` (real) | `1000`, `0.5`, `0`, `1e301` |
//! | `+2.50`, `007`, `1e3`, `.5`, `5.`, `-0.0`, `10e300` (decimal) | `2.5`, `7`, `1000`, `0.5`, `5`, `0`, `1e301` |
//! | `inf`, `-INFINITY`, `nan` (real and decimal) | `Infinity`, `-Infinity`, `NaN` |
//! | `TRUE`, `t`, `1` (bool) | `true` |
//! | `1e400`, `1e-400` (real) | none: no double is near |
//!
//! What has been brought into its form is in it: reading that again gives the same value.

use std::cmp::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_protocol::decimal::Decimal;
use headwater_protocol::stored::{Scratch, Stored, encode};
use headwater_protocol::text::coerce;
use headwater_protocol::{Type, Value};

/// A value of this type, in its one form; `None`: the text says none.
pub(super) fn read(text: &str, kind: Type) -> Option<Value> {
    read_key(text, kind).map(canonical)
}

/// The same of a page's key.
pub(super) fn read_key(text: &str, kind: Type) -> Option<Value> {
    let value = match kind {
        Type::Real => Value::Real(real(text)?),
        Type::Decimal => coerce(&Value::text(word(text).map_or_else(|| unadorned(text), str::to_owned)), kind)?,
        Type::Bool => coerce(&Value::text(text.to_ascii_lowercase()), kind)?,
        _ => coerce(&Value::text(text), kind)?,
    };
    is_sound(&value).then(|| of_key(value))
}

/// A page's key in one form, but for a decimal's zeros: a database may keep it as a text with them (SQLite), and compare it so.
pub(super) fn of_key(value: Value) -> Value {
    match value {
        Value::Decimal(_) => value,
        other => canonical(other),
    }
}

/// A value of a page's key as it stands in a URL.
pub(super) fn form_of_key(value: &Value) -> String {
    match value {
        Value::Decimal(_) => text_of(value),
        other => form_of(other),
    }
}

/// What a type's values are written as, for people.
pub(super) fn described(kind: Type) -> String {
    let example = match kind {
        Type::Bool => "true or false",
        Type::Int => "42",
        Type::Real => "2.5, 1e300, Infinity, -Infinity or NaN",
        Type::Decimal => "2.50, 1e300, Infinity, -Infinity or NaN",
        Type::Date => "2013-01-31",
        Type::Time => "12:00:00",
        Type::Timestamp => "2013-01-31 12:00:00",
        Type::Timestamptz => "2013-01-31 12:00:00Z",
        Type::Text | Type::Bytes | Type::Uuid | Type::Json => return kind.name().to_owned(),
    };
    format!("{} ({example})", kind.name())
}

/// A number that is none, in whatever letters; a decimal has it in these.
fn word(text: &str) -> Option<&'static str> {
    let (sign, word) = match text.as_bytes().first() {
        Some(b'-') => ("-", &text[1..]),
        Some(b'+') => ("", &text[1..]),
        _ => ("", text),
    };
    match (sign, word.to_ascii_lowercase().as_str()) {
        (_, "nan") => Some("NaN"),
        ("-", "inf" | "infinity") => Some("-Infinity"),
        (_, "inf" | "infinity") => Some("Infinity"),
        _ => None,
    }
}

/// The one form of all values that are equal: zero has no sign, a decimal no zeros at its end.
pub(super) fn canonical(value: Value) -> Value {
    match value {
        Value::Real(real) if real.is_nan() => Value::Real(f64::NAN),
        Value::Real(real) => Value::Real(if real == 0.0 { 0.0 } else { real }),
        Value::Decimal(decimal) => Value::Decimal(shortest(decimal)),
        other => other,
    }
}

fn shortest(decimal: Decimal) -> Decimal {
    let text = text_of(&Value::Decimal(decimal.clone()));
    let short = match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.'),
        None => text.as_str(),
    };
    Decimal::parse(if short == "-0" { "0" } else { short }).unwrap_or(decimal)
}

/// A double: a number near one, or what is written as a word. A number beyond all doubles is no infinity, and one too small no zero.
fn real(text: &str) -> Option<f64> {
    let real: f64 = text.parse().ok()?;
    let digits = text.split(['e', 'E']).next().unwrap_or_default();
    let is_number = digits.contains(|letter: char| letter.is_ascii_digit());
    let is_out_of_range = real.is_infinite() || real == 0.0 && digits.contains(|letter| matches!(letter, '1'..='9'));
    (!(is_number && is_out_of_range)).then_some(real)
}

/// A decimal without a plus sign and needless zeros before it, with digits on both sides of its point.
fn unadorned(text: &str) -> String {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').filter(|digits| !digits.starts_with('-')).unwrap_or(text)),
    };
    let whole = digits.bytes().take_while(u8::is_ascii_digit).count();
    let zeros = digits.bytes().take_while(|byte| *byte == b'0').count().min(whole.saturating_sub(1));
    let (whole, rest) = (&digits[zeros..whole], &digits[whole..]);
    let Some(behind) = rest.strip_prefix('.') else { return format!("{sign}{whole}{rest}") };
    match (whole.is_empty(), behind.bytes().next()) {
        (true, Some(b'0'..=b'9')) => format!("{sign}0{rest}"),
        (false, None | Some(b'e' | b'E')) => format!("{sign}{whole}{behind}"),
        _ => format!("{sign}{whole}{rest}"),
    }
}

/// Whether a value is what its type says: JSON is taken as it comes elsewhere.
fn is_sound(value: &Value) -> bool {
    match value {
        // Two of PostgreSQL's JSON types take a NUL in a text, one does not.
        Value::Json(bytes) => {
            serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
                && !bytes.windows(6).any(|six| six == b"\\u0000")
        }
        _ => true,
    }
}

/// Whether both, in their forms, are one value; NaN is itself.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Real(one), Value::Real(other)) => one.total_cmp(other).is_eq(),
        _ => one == other,
    }
}

/// Like values of one type, in their forms; others are equal. NaN is greater than all numbers, as PostgreSQL has it.
pub(super) fn compare(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Int(one), Value::Int(other))
        | (Value::Date(one), Value::Date(other))
        | (Value::Time(one), Value::Time(other))
        | (Value::Timestamp(one), Value::Timestamp(other))
        | (Value::Timestamptz(one), Value::Timestamptz(other)) => one.cmp(other),
        (Value::Real(one), Value::Real(other)) => one.total_cmp(other),
        (Value::Decimal(_), Value::Decimal(_)) => compare_decimals(&text_of(one), &text_of(other)),
        (Value::Text(one), Value::Text(other)) => one.cmp(other),
        (Value::Uuid(one), Value::Uuid(other)) => one.cmp(other),
        _ => Ordering::Equal,
    }
}

/// Decimals, digit by digit.
fn compare_decimals(one: &str, other: &str) -> Ordering {
    let rank = |text: &str| match text {
        "-Infinity" => -1,
        "Infinity" => 1,
        "NaN" => 2,
        _ => 0,
    };
    match (rank(one), rank(other)) {
        (0, 0) => {}
        (one, other) => return one.cmp(&other),
    }
    let parts = |text: &str| {
        let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        (is_negative, (whole.len(), whole.to_owned(), fraction.to_owned()))
    };
    let ((one_is_negative, one), (other_is_negative, other)) = (parts(one), parts(other));
    match (one_is_negative, other_is_negative) {
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
        (true, true) => other.cmp(&one),
        (false, false) => one.cmp(&other),
    }
}

/// The most zeros that are written out on one side of a number's digits.
const ZEROS_MAX: usize = 20;
/// The greatest exponent of a decimal that can be read.
const EXPONENT_MAX: usize = 400;

/// A value as it stands in a URL: a number that would be mostly zeros has an exponent (`1e300`).
pub(super) fn form_of(value: &Value) -> String {
    let text = text_of(value);
    match value {
        Value::Real(real) if real.is_finite() => shortened(&text).unwrap_or(text),
        Value::Decimal(_) => shortened(&text).unwrap_or(text),
        _ => text,
    }
}

/// Digits with an exponent in the place of their zeros, if there are so many.
fn shortened(text: &str) -> Option<String> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (kept, mark, zeros) = match digits.split_once('.') {
        None => {
            let kept = digits.trim_end_matches('0');
            (kept, "", digits.len() - kept.len())
        }
        Some(("0", fraction)) => {
            let kept = fraction.trim_start_matches('0');
            (kept, "-", fraction.len() - kept.len())
        }
        Some(_) => return None,
    };
    let exponent = if mark.is_empty() { zeros } else { zeros + kept.len() };
    let is_worth_it = !kept.is_empty() && zeros > ZEROS_MAX && exponent <= EXPONENT_MAX;
    is_worth_it.then(|| format!("{sign}{kept}e{mark}{exponent}"))
}

/// A value for people; NULL is nothing, and bytes are in base64.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Bytes(bytes) => return STANDARD.encode(bytes),
        Value::Bool(truth) => return truth.to_string(),
        Value::Real(real) if real.is_finite() => return real.to_string(),
        Value::Real(real) => return word(&real.to_string()).unwrap_or_default().to_owned(),
        _ => {}
    }
    match encode(value.as_ref(), &mut Scratch::default()) {
        Stored::Null => String::new(),
        Stored::Integer(number) => number.to_string(),
        Stored::Real(real) => real.to_string(),
        Stored::Text(bytes) | Stored::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form(text: &str, kind: Type) -> Option<String> {
        Some(form_of(&read(text, kind)?))
    }

    #[test]
    fn numbers_have_one_form_each() {
        for (kind, given, expected) in [
            (Type::Int, "-0", Some("0")),
            (Type::Int, "+007", Some("7")),
            (Type::Int, "1e3", None),
            (Type::Real, "-0", Some("0")),
            (Type::Real, "-0e5", Some("0")),
            (Type::Real, "+.50", Some("0.5")),
            (Type::Real, "1e400", None),
            (Type::Real, "-1e400", None),
            (Type::Real, "1e-400", None),
            (Type::Real, "5e-324", Some("5e-324")),
            (Type::Real, "1e300", Some("1e300")),
            (Type::Real, "-1.25E300", Some("-125e298")),
            (Type::Real, "1e20", Some("100000000000000000000")),
            (Type::Real, "1e21", Some("1e21")),
            (Type::Real, "1e-21", Some("0.000000000000000000001")),
            (Type::Real, "1e-22", Some("1e-22")),
            (Type::Real, "1.7976931348623157e308", Some("17976931348623157e292")),
            (Type::Real, "0e400", Some("0")),
            (Type::Real, "-Infinity", Some("-Infinity")),
            (Type::Real, "INF", Some("Infinity")),
            (Type::Decimal, "+inf", Some("Infinity")),
            (Type::Decimal, "-infinity", Some("-Infinity")),
            (Type::Decimal, "nan", Some("NaN")),
            (Type::Decimal, "1e300", Some("1e300")),
            (Type::Decimal, "-0.0120e-30", Some("-12e-33")),
            (Type::Decimal, "1000000000000000000000.5", Some("1000000000000000000000.5")),
            (Type::Decimal, "1e401", None),
            (Type::Bool, "TRUE", Some("true")),
            (Type::Bool, "F", Some("false")),
            (Type::Bool, "yes", None),
            (Type::Real, "-nan", Some("NaN")),
            (Type::Decimal, "-0.00", Some("0")),
            (Type::Decimal, "+007.50", Some("7.5")),
            (Type::Decimal, "-00", Some("0")),
            (Type::Decimal, "1e3", Some("1000")),
            (Type::Decimal, "0012e-1", Some("1.2")),
            (Type::Decimal, "100", Some("100")),
            (Type::Decimal, "+-1", None),
            (Type::Decimal, "1.", Some("1")),
            (Type::Decimal, "00.", Some("0")),
            (Type::Decimal, "-5.e2", Some("-500")),
            (Type::Decimal, "+.50", Some("0.5")),
            (Type::Decimal, "-.5E-1", Some("-0.05")),
            (Type::Decimal, ".", None),
            (Type::Decimal, "-.", None),
            (Type::Decimal, ".e5", None),
            (Type::Decimal, "1..", None),
            (Type::Decimal, "0..0", None),
            (Type::Decimal, "1.-5", None),
            (Type::Decimal, "5.Infinity", None),
            (Type::Real, "5.", Some("5")),
            (Type::Real, "5.e2", Some("500")),
            (Type::Real, ".", None),
            (Type::Real, ".e5", None),
            (Type::Decimal, "", None),
            (Type::Decimal, "Infinity", Some("Infinity")),
        ] {
            assert_eq!(form(given, kind).as_deref(), expected, "{given} as {}", kind.name());
        }
    }

    #[test]
    fn words_of_decimals_stand_where_postgresql_has_them() {
        let words = ["-Infinity", "-1000", "-2", "0", "1.5", "1000000", "Infinity", "NaN"];
        let values = words.map(|word| read(word, Type::Decimal).expect("a decimal"));
        for (place, pair) in values.windows(2).enumerate() {
            assert_eq!(compare(&pair[0], &pair[1]), Ordering::Less, "{}", words[place]);
            assert_eq!(compare(&pair[1], &pair[0]), Ordering::Greater, "{}", words[place]);
        }
    }

    fn given() -> impl Strategy<Value = String> {
        prop_oneof![
            "[+-]?0{0,2}[0-9]{0,22}(\\.[0-9]{0,8})?",
            "[+-]?0{0,2}[0-9]{1,3}(\\.[0-9]{1,8}0{0,3})?[eE][+-]?[0-9]{1,3}",
            "[+-]?(\\.[0-9]{0,4}|[0-9]{1,4}\\.)([eE][+-]?[0-9]{0,2})?",
            "[+-]?(NaN|nan|inf|infinity|Infinity|-zero|zero)",
            "[+-]?[0-9]{4,6}-[01][0-9]-[0-3][0-9]([ T][0-2][0-9]:[0-5][0-9](:[0-5][0-9](\\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}(:[0-9]{2})?)?)?",
            "[0-2][0-9]:[0-5][0-9](:[0-5][0-9](\\.[0-9]{1,6})?)?",
            "(t|f|true|false|0|1)",
            "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}",
            "\\PC{0,8}",
        ]
    }

    /// The number that a text says, to a double's precision, by other means than those above.
    fn near(text: &str) -> Option<f64> {
        text.parse().ok()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// The form of a form is itself, and means the same.
        #[test]
        fn a_form_is_in_its_form(text in given(), kind in prop::sample::select(Type::ALL.to_vec())) {
            let Some(value) = read(&text, kind) else { return Ok(()) };
            let form = form_of(&value);
            let again = read(&form, kind);
            prop_assert!(again.as_ref().is_some_and(|again| is_same(again, &value)), "{form}: {again:?}, {value:?}");
            prop_assert_eq!(form_of(&again.expect("read")), form.clone());
            if matches!(kind, Type::Int | Type::Real | Type::Decimal) {
                let (said, kept) = (near(&text).expect("a number"), near(&form).expect("a number"));
                let is_same = said.partial_cmp(&kept).is_some_and(Ordering::is_eq) || said.is_nan() && kept.is_nan();
                prop_assert!(is_same, "{text} became {form}");
            }
        }

        /// Of numbers that a double is near: what is one as a real is the same as a decimal, and the other way.
        #[test]
        fn reals_and_decimals_take_the_same_spellings(
            text in "[+-]{0,2}[0-9]{0,3}\\.{0,2}[0-9]{0,3}([eE][+-]?[0-9]{0,2})?|[+-]?(NaN|inf|Infinity|infinite|e5)",
        ) {
            let [real, decimal] = [Type::Real, Type::Decimal].map(|kind| form(&text, kind));
            prop_assert_eq!(real.is_some(), decimal.is_some(), "{}", text);
            prop_assert_eq!(real.and_then(|form| near(&form)).map(f64::to_bits), decimal.and_then(|form| near(&form)).map(f64::to_bits));
        }

        /// Every double has a form that reads as it does; so the key of any row can say where the next page begins.
        #[test]
        fn every_double_has_a_form(bits in any::<u64>()) {
            let value = canonical(Value::Real(f64::from_bits(bits)));
            let again = read(&form_of(&value), Type::Real);
            prop_assert!(again.is_some_and(|again| is_same(&again, &value)));
        }
    }
}
