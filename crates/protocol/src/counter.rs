//! Counters: columns whose changes are added up instead of compared.
//!
//! A change from `old` to `new` adds `new - old` to what the other side has. Both sides use this module, so that a remote and the
//! consolidated database come to the same number:
//!
//! ```
//! use headwater_protocol::counter::{Counted, count};
//! use headwater_protocol::Value;
//! let [stored, old, new] = [9, 10, 8].map(Value::Int);
//! assert_eq!(count(&stored, &old, &new, None), Counted::Total(Value::Int(7)));
//! ```
//!
//! The arithmetic is exact: 64-bit integers, and decimals of any precision with a fixed number of digits after the point. A decimal with
//! more digits after the point (`0.1 + 0.2` of a program that counts in floating point) is rounded to the column's first, half away from
//! zero, as PostgreSQL rounds it.
//!
//! *Caveats.* NULL, NaN, infinities and values of another type are no numbers to be added up: [`Counted::NoNumber`].

use std::cmp::Ordering;

use crate::decimal::{Decimal, Parts, digit};
use crate::value::Value;

/// What a change makes of a counter.
#[derive(Clone, Debug, PartialEq)]
pub enum Counted {
    /// The sum.
    Total(Value),
    /// One of the three values is no number.
    NoNumber,
    /// The sum does not fit into the column.
    Overflow,
}

/// Adds `new - old` to `stored`, which stays as it is, whatever fits, where the two are the same. `limits` are the precision and scale of a decimal column, `None` for an integer column.
pub fn count(stored: &Value, old: &Value, new: &Value, limits: Option<(u16, u16)>) -> Counted {
    match (limits, stored, old, new) {
        (None, Value::Int(there), Value::Int(old), Value::Int(new)) => {
            let total = i128::from(*there) + i128::from(*new) - i128::from(*old);
            i64::try_from(total).map_or(Counted::Overflow, |total| Counted::Total(Value::Int(total)))
        }
        (Some((precision, scale)), ..) => {
            let fixed = |value| Fixed::of(value, usize::from(scale));
            let (Some(there), Some(fixed_old), Some(fixed_new)) = (fixed(stored), fixed(old), fixed(new)) else {
                return Counted::NoNumber;
            };
            if old.same(new) {
                return Counted::Total(stored.clone());
            }
            let added = fixed_new.plus(&fixed_old.negated());
            let total = there.plus(&added).decimal(usize::from(precision), usize::from(scale));
            match total {
                Some(total) => Counted::Total(total),
                None if added.digits.is_empty() => Counted::Total(stored.clone()),
                None => Counted::Overflow,
            }
        }
        _ => Counted::NoNumber,
    }
}

/// Whether a change of a counter from `old` to `new` adds anything. Of values that are no numbers: whether they differ.
pub fn adds(old: &Value, new: &Value, limits: Option<(u16, u16)>) -> bool {
    match count(old, old, new, limits) {
        Counted::Total(total) => !total.same(old),
        Counted::NoNumber | Counted::Overflow => !new.same(old),
    }
}

/// A decimal as an integer of so many units: its digits, the last one first, without leading zeros.
#[derive(Clone, Debug)]
struct Fixed {
    is_negative: bool,
    digits: Vec<u8>,
}

impl Fixed {
    /// A value with `scale` digits after the point.
    fn of(value: &Value, scale: usize) -> Option<Fixed> {
        let whole;
        let decimal = match value {
            Value::Decimal(decimal) => decimal,
            Value::Int(number) => {
                whole = Decimal::parse(&number.to_string())?;
                &whole
            }
            _ => return None,
        };
        let Parts::Number { negative, count, scale: own, packed } = decimal.as_ref().parts() else { return None };
        let kept = count - own.saturating_sub(scale);
        let zeros = std::iter::repeat_n(0, scale.saturating_sub(own));
        let digits: Vec<u8> = zeros.chain((0..kept).rev().map(|place| digit(packed, place))).collect();
        let fixed = Fixed { is_negative: negative, digits }.trimmed();
        if kept < count && digit(packed, kept) >= 5 {
            return Some(fixed.plus(&Fixed { is_negative: negative, digits: vec![1] }));
        }
        Some(fixed)
    }

    fn trimmed(mut self) -> Fixed {
        while self.digits.last() == Some(&0) {
            self.digits.pop();
        }
        self.is_negative &= !self.digits.is_empty();
        self
    }

    fn negated(self) -> Fixed {
        Fixed { is_negative: !self.is_negative, ..self }.trimmed()
    }

    fn plus(&self, other: &Fixed) -> Fixed {
        let (larger, smaller) = if self.compare(other) == Ordering::Less { (other, self) } else { (self, other) };
        let subtracts = larger.is_negative != smaller.is_negative;
        let mut digits = Vec::with_capacity(larger.digits.len() + 1);
        let mut carry = 0;
        for (place, digit) in larger.digits.iter().enumerate() {
            let other = smaller.digits.get(place).copied().unwrap_or_default();
            let sum = if subtracts { 10 + digit - other - carry } else { digit + other + carry };
            digits.push(sum % 10);
            carry = if subtracts { u8::from(sum < 10) } else { sum / 10 };
        }
        if !subtracts {
            digits.push(carry);
        }
        Fixed { is_negative: larger.is_negative, digits }.trimmed()
    }

    /// Compares without the signs.
    fn compare(&self, other: &Fixed) -> Ordering {
        self.digits.len().cmp(&other.digits.len()).then_with(|| self.digits.iter().rev().cmp(other.digits.iter().rev()))
    }

    /// `None`: it has more digits than a column of this precision takes.
    fn decimal(&self, precision: usize, scale: usize) -> Option<Value> {
        if self.digits.len() > precision {
            return None;
        }
        let count = self.digits.len().max(scale + 1);
        let digits = (0..count).rev().map(|place| self.digits.get(place).copied().unwrap_or_default());
        Some(Value::Decimal(Decimal::from_digits(self.is_negative, scale, count, digits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Value {
        Value::Decimal(Decimal::parse(text).expect(text))
    }

    fn total(there: &str, old: &str, new: &str, limits: (u16, u16)) -> String {
        match count(&decimal(there), &decimal(old), &decimal(new), Some(limits)) {
            Counted::Total(Value::Decimal(total)) => total.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn integers_count_up_to_their_last() {
        let int = |there, old, new| count(&Value::Int(there), &Value::Int(old), &Value::Int(new), None);
        assert_eq!(int(9, 10, 9), Counted::Total(Value::Int(8)));
        assert_eq!(int(i64::MAX - 1, 0, 1), Counted::Total(Value::Int(i64::MAX)));
        assert_eq!(int(i64::MAX, 0, 1), Counted::Overflow);
        assert_eq!(int(i64::MIN, 1, 0), Counted::Overflow);
        assert_eq!(int(-1, i64::MIN, i64::MAX), Counted::Overflow);
        assert_eq!(int(i64::MIN, i64::MIN, i64::MAX), Counted::Total(Value::Int(i64::MAX)), "the way there is longer");
    }

    #[test]
    fn decimals_count_exactly() {
        assert_eq!(total("10.00", "10.00", "9.90", (10, 2)), "9.90");
        assert_eq!(total("0.1", "0", "0.2", (10, 2)), "0.30");
        assert_eq!(total("-0.05", "1.00", "1.05", (10, 2)), "0.00");
        assert_eq!(total("1.00", "0", "-1.01", (10, 2)), "-0.01");
        assert_eq!(total("999.99", "0", "0.01", (5, 2)), "Overflow");
        assert_eq!(total("-999.99", "0.01", "0", (5, 2)), "Overflow");
        assert_eq!(total("999.98", "0", "0.01", (5, 2)), "999.99");
        assert_eq!(total("0.98", "0", "0.01", (2, 2)), "0.99");
        assert_eq!(total("0.99", "0", "0.01", (2, 2)), "Overflow");
        let nines = "9".repeat(60);
        assert_eq!(total(&nines, "0", "1", (61, 0)), format!("1{}", "0".repeat(60)));
        assert_eq!(total("NaN", "0", "1", (5, 2)), "NoNumber");
        assert_eq!(total("1", "0", "Infinity", (5, 2)), "NoNumber");
    }

    #[test]
    fn more_digits_are_rounded_half_away_from_zero() {
        assert_eq!(total("0", "0", "0.30000000000000004", (10, 2)), "0.30");
        assert_eq!(total("0", "0", "2.675", (10, 2)), "2.68");
        assert_eq!(total("0", "0", "-0.125", (10, 2)), "-0.13");
        assert_eq!(total("0", "0", "0.004", (10, 2)), "0.00");
        assert_eq!(total("0", "0", "9.999", (10, 2)), "10.00");
        assert_eq!(total("5", "0.5", "1", (10, 0)), "5", "0.5 is 1 here");
    }

    #[test]
    fn a_change_that_adds_nothing_leaves_what_is_stored() {
        let huge = "100000000000000000000";
        assert_eq!(total(huge, huge, huge, (10, 2)), huge);
        assert_eq!(total("1.005", "1.0", "1.00", (10, 2)), "1.005", "nor is it rounded");
        assert_eq!(total(huge, "0", "0.004", (10, 2)), huge, "less than the last digit");
        assert_eq!(total(huge, "0", "0.01", (10, 2)), "Overflow");
    }

    #[test]
    fn what_is_no_number_is_not_added() {
        let one = Value::Int(1);
        for odd in [Value::Null, Value::text("1"), Value::Real(1.0)] {
            assert_eq!(count(&odd, &one, &one, None), Counted::NoNumber);
            assert_eq!(count(&one, &odd, &one, None), Counted::NoNumber);
            assert_eq!(count(&one, &one, &odd, None), Counted::NoNumber);
        }
        assert_eq!(count(&one, &decimal("1.5"), &decimal("2.25"), Some((5, 2))), Counted::Total(decimal("1.75")));
    }

    #[test]
    fn a_change_adds_something_or_nothing() {
        assert!(adds(&decimal("1.00"), &decimal("1.01"), Some((5, 2))));
        assert!(!adds(&decimal("1.0"), &decimal("1.00"), Some((5, 2))));
        assert!(adds(&Value::Null, &Value::Int(1), None) && !adds(&Value::Null, &Value::Null, None));
    }

    #[test]
    fn as_integers_add_so_do_decimals() {
        let text = |number: i64| {
            let sign = if number < 0 { "-" } else { "" };
            format!("{sign}{}.{:02}", number.abs() / 100, number.abs() % 100)
        };
        let mut seed = 7_i64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % 100_000
        };
        for _ in 0..20_000 {
            let (there, old, new) = (next(), next(), next());
            let expected = decimal(&text(there + new - old));
            let counted = count(&decimal(&text(there)), &decimal(&text(old)), &decimal(&text(new)), Some((9, 2)));
            assert!(
                matches!(&counted, Counted::Total(total) if total.same(&expected)),
                "{there} {old} {new} {counted:?}"
            );
        }
    }
}
