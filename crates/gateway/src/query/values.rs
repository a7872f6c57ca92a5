//! Values of arguments: read from a text, in one form each, and compared.
//!
//! | given | form |
//! |---|---|
//! | `+7`, `007`, `-0` (int) | `7`, `7`, `0` |
//! | `1e3`, `.5`, `-0`, `Infinity` (real) | `1000`, `0.5`, `0`, `inf` |
//! | `+2.50`, `007`, `1e3`, `-0.0` (decimal) | `2.5`, `7`, `1000`, `0` |
//! | `1e400`, `1e-400` (real) | none: no double is near |
//!
//! What has been brought into its form is in it: reading that again gives the same value.

use std::cmp::Ordering;

use headwater_protocol::decimal::Decimal;
use headwater_protocol::stored::{Scratch, Stored, encode};
use headwater_protocol::text::coerce;
use headwater_protocol::{Type, Value};

/// A value of this type, in its one form; `None`: the text says none.
pub(super) fn read(text: &str, kind: Type) -> Option<Value> {
    let value = match kind {
        Type::Real => Value::Real(real(text)?),
        Type::Decimal => coerce(&Value::text(unadorned(text)), kind)?,
        _ => coerce(&Value::text(text), kind)?,
    };
    is_sound(&value).then(|| canonical(value))
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

/// A decimal without a plus sign and needless zeros before it.
fn unadorned(text: &str) -> String {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').filter(|digits| !digits.starts_with('-')).unwrap_or(text)),
    };
    let whole = digits.bytes().take_while(u8::is_ascii_digit).count();
    let zeros = digits.bytes().take_while(|byte| *byte == b'0').count().min(whole.saturating_sub(1));
    format!("{sign}{}", &digits[zeros..])
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

/// A value as it stands in a URL, and for people; NULL is nothing.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Bool(truth) => return truth.to_string(),
        Value::Real(real) => return real.to_string(),
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
        Some(text_of(&read(text, kind)?))
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
            (Type::Real, "5e-324", Some(&format!("0.{}5", "0".repeat(323)))),
            (Type::Real, "0e400", Some("0")),
            (Type::Real, "-Infinity", Some("-inf")),
            (Type::Real, "-nan", Some("NaN")),
            (Type::Decimal, "-0.00", Some("0")),
            (Type::Decimal, "+007.50", Some("7.5")),
            (Type::Decimal, "-00", Some("0")),
            (Type::Decimal, "1e3", Some("1000")),
            (Type::Decimal, "0012e-1", Some("1.2")),
            (Type::Decimal, "100", Some("100")),
            (Type::Decimal, "+-1", None),
            (Type::Decimal, "1.", None),
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
            let form = text_of(&value);
            let again = read(&form, kind);
            prop_assert!(again.as_ref().is_some_and(|again| is_same(again, &value)), "{form}: {again:?}, {value:?}");
            prop_assert_eq!(text_of(&again.expect("read")), form.clone());
            if matches!(kind, Type::Int | Type::Real | Type::Decimal) {
                let (said, kept) = (near(&text).expect("a number"), near(&form).expect("a number"));
                let is_same = said.partial_cmp(&kept).is_some_and(Ordering::is_eq) || said.is_nan() && kept.is_nan();
                prop_assert!(is_same, "{text} became {form}");
            }
        }

        /// Every double has a form that reads as it does; so the key of any row can say where the next page begins.
        #[test]
        fn every_double_has_a_form(bits in any::<u64>()) {
            let value = canonical(Value::Real(f64::from_bits(bits)));
            let again = read(&text_of(&value), Type::Real);
            prop_assert!(again.is_some_and(|again| is_same(&again, &value)));
        }
    }
}
