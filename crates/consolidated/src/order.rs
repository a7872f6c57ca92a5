//! A total order on values and rows, the same on every machine: what `newer_wins` decides by.
//!
//! NULL comes first; values of one type by their meaning (decimals as numbers, texts by bytes, NaN after all other reals and
//! decimals), an integer and a real as the numbers that they are; values of other different types by the types' numbers.

use std::cmp::Ordering;

use headwater_protocol::decimal::Parts;
use headwater_protocol::{DecimalRef, Value};

/// Compares two rows, first difference first.
pub fn compare_rows(one: &[Value], other: &[Value]) -> Ordering {
    let mut pairs = one.iter().zip(other).map(|(one, other)| compare_values(one, other));
    pairs.find(|order| order.is_ne()).unwrap_or_else(|| one.len().cmp(&other.len()))
}

/// Compares two values.
pub fn compare_values(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Int(a), Value::Int(b))
        | (Value::Date(a), Value::Date(b))
        | (Value::Time(a), Value::Time(b))
        | (Value::Timestamp(a), Value::Timestamp(b))
        | (Value::Timestamptz(a), Value::Timestamptz(b)) => a.cmp(b),
        (Value::Real(a), Value::Real(b)) => compare_reals(*a, *b),
        (Value::Int(a), Value::Real(b)) => compare_integer(*a, *b),
        (Value::Real(a), Value::Int(b)) => compare_integer(*b, *a).reverse(),
        (Value::Decimal(a), Value::Decimal(b)) => compare_decimals(a.as_ref(), b.as_ref()),
        (Value::Text(a), Value::Text(b)) | (Value::Bytes(a), Value::Bytes(b)) | (Value::Json(a), Value::Json(b)) => {
            a.cmp(b)
        }
        (Value::Uuid(a), Value::Uuid(b)) => a.cmp(b),
        (a, b) => a.as_ref().kind().cmp(&b.as_ref().kind()),
    }
}

fn compare_reals(one: f64, other: f64) -> Ordering {
    match (one.is_nan(), other.is_nan()) {
        (false, false) => one.partial_cmp(&other).unwrap_or(Ordering::Equal),
        (one, other) => one.cmp(&other),
    }
}

/// Compares an integer with a real exactly: neither is made the other where that would lose digits.
fn compare_integer(integer: i64, real: f64) -> Ordering {
    const END: f64 = 9_223_372_036_854_775_808.0;
    match real {
        real if real.is_nan() || real >= END => Ordering::Less,
        real if real < -END => Ordering::Greater,
        real => integer.cmp(&(real.trunc() as i64)).then_with(|| compare_reals(0.0, real.fract())),
    }
}

/// Where a decimal stands: -infinity, negative numbers, zero, positive numbers, infinity, NaN.
fn rank(parts: &Parts<'_>, digits: &[u8]) -> i8 {
    match parts {
        Parts::Infinity(true) => -2,
        Parts::Number { .. } if digits.iter().all(|digit| *digit == 0) => 0,
        Parts::Number { negative: true, .. } => -1,
        Parts::Number { .. } => 1,
        Parts::Infinity(false) => 2,
        Parts::NaN => 3,
    }
}

fn compare_decimals(one: DecimalRef<'_>, other: DecimalRef<'_>) -> Ordering {
    let (one_parts, other_parts) = (one.parts(), other.parts());
    let (one_digits, one_whole) = digits(&one_parts);
    let (other_digits, other_whole) = digits(&other_parts);
    let (one_rank, other_rank) = (rank(&one_parts, &one_digits), rank(&other_parts, &other_digits));
    one_rank.cmp(&other_rank).then_with(|| match one_rank {
        -1 => magnitude(&other_digits, other_whole, &one_digits, one_whole),
        1 => magnitude(&one_digits, one_whole, &other_digits, other_whole),
        _ => Ordering::Equal,
    })
}

/// The digits, and how many of them stand before the point.
fn digits(parts: &Parts<'_>) -> (Vec<u8>, usize) {
    match *parts {
        Parts::Number { count, scale, packed, .. } => {
            let halves = packed.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            (halves.take(count).collect(), count - scale)
        }
        _ => (Vec::new(), 0),
    }
}

/// Compares two numbers without signs. Digits before the point have no needless zero, so more of them is more, save for a lone 0.
fn magnitude(one: &[u8], one_whole: usize, other: &[u8], other_whole: usize) -> Ordering {
    let significant = |digits: &[u8], whole: usize| if digits.first() == Some(&0) { whole - 1 } else { whole };
    let by_length = significant(one, one_whole).cmp(&significant(other, other_whole));
    by_length.then_with(|| {
        let length = one.len().max(other.len());
        let padded =
            |digits: &[u8]| digits.iter().copied().chain(std::iter::repeat(0)).take(length).collect::<Vec<u8>>();
        padded(one).cmp(&padded(other))
    })
}

#[cfg(test)]
mod tests {
    use headwater_protocol::Decimal;

    use super::*;

    #[test]
    fn decimals_are_ordered_as_numbers() {
        let ascending = [
            "-Infinity",
            "-100",
            "-99.5",
            "-1",
            "-0.5",
            "-0.05",
            "0",
            "0.05",
            "0.5",
            "1",
            "1.5",
            "2",
            "10",
            "99.5",
            "100",
            "Infinity",
            "NaN",
        ];
        let values: Vec<Value> =
            ascending.iter().map(|text| Value::Decimal(Decimal::parse(text).expect(text))).collect();
        for (i, one) in values.iter().enumerate() {
            for (j, other) in values.iter().enumerate() {
                assert_eq!(compare_values(one, other), i.cmp(&j), "{} and {}", ascending[i], ascending[j]);
            }
        }
        let equal = |a, b| compare_decimals(Decimal::parse(a).expect(a).as_ref(), Decimal::parse(b).expect(b).as_ref());
        assert_eq!(equal("1.50", "1.5"), Ordering::Equal);
        assert_eq!(equal("-0", "0.00"), Ordering::Equal);
    }

    #[test]
    fn integers_and_reals_are_ordered_as_numbers() {
        let ascending = [
            Value::Real(f64::NEG_INFINITY),
            Value::Int(i64::MIN),
            Value::Real(-1.5),
            Value::Int(-1),
            Value::Real(-0.5),
            Value::Int(0),
            Value::Real(9999.5),
            Value::Int(10_000),
            Value::Int(9_007_199_254_740_991),
            Value::Real(9_007_199_254_740_992.0),
            Value::Int(9_007_199_254_740_993),
            Value::Int(i64::MAX),
            Value::Real(9_223_372_036_854_775_808.0),
            Value::Real(f64::NAN),
        ];
        for (i, one) in ascending.iter().enumerate() {
            for (j, other) in ascending.iter().enumerate() {
                assert_eq!(compare_values(one, other), i.cmp(&j), "{one:?} and {other:?}");
            }
        }
        assert_eq!(compare_values(&Value::Int(7), &Value::Real(7.0)), Ordering::Equal);
        assert_eq!(compare_values(&Value::Real(-0.0), &Value::Int(0)), Ordering::Equal);
        assert_eq!(compare_values(&Value::Int(i64::MIN), &Value::Real(i64::MIN as f64)), Ordering::Equal);
    }

    #[test]
    fn null_is_least_and_nan_greatest() {
        assert_eq!(compare_values(&Value::Null, &Value::Bool(false)), Ordering::Less);
        assert_eq!(compare_values(&Value::Real(f64::NAN), &Value::Real(f64::INFINITY)), Ordering::Greater);
        assert_eq!(compare_values(&Value::Real(-0.0), &Value::Real(0.0)), Ordering::Equal);
    }
}
