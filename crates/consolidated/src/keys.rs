//! Keys as bytes, equal where the database calls the keys equal: `1.50` is `1.5`, `-0` is `0`.
//!
//! A remote tells rows apart by the bytes of their keys, so a row whose key the database spells otherwise would be two rows there:
//! `other_form` says why its change is refused.

use headwater_protocol::decimal::Parts;
use headwater_protocol::message::{Refusal, RefusalCode};
use headwater_protocol::row::put_row;
use headwater_protocol::{Decimal, DecimalRef, Type, Value};

use crate::TablePlan;
use crate::images::plain_text;

/// The most characters of a value in a message.
const SHOWN_MAX: usize = 100;

/// The bytes of a key.
pub fn key_bytes(table: &TablePlan, key: &[Value]) -> Vec<u8> {
    let mut out = Vec::new();
    if key.iter().any(has_spellings) {
        let plain: Vec<Value> = key.iter().map(plain).collect();
        put_row(&mut out, &table.key_types, &plain);
    } else {
        put_row(&mut out, &table.key_types, key);
    }
    out
}

/// The bytes of a row's key.
pub fn key_bytes_of(table: &TablePlan, row: &[Value]) -> Vec<u8> {
    key_bytes(table, &table.key_of(row))
}

/// The bytes of these columns of a row, in which two rows are equal where the database calls the values equal; `None` if one is NULL.
pub fn value_bytes(types: &[Type], row: &[Value], columns: &[usize]) -> Option<Vec<u8>> {
    let values: Vec<Value> = columns.iter().map(|place| row.get(*place).map(plain)).collect::<Option<_>>()?;
    if values.iter().any(Value::is_null) {
        return None;
    }
    let mut out = Vec::new();
    put_row(&mut out, types, &values);
    Some(out)
}

/// The refusal of a change whose key the database stores in another spelling; `None`: it stores the key as it is.
pub(crate) fn other_form(table: &TablePlan, given: &[Value], stored: &[Value]) -> Option<Refusal> {
    let mut columns = table.table.key_columns().zip(given.iter().zip(stored));
    let (column, (given, stored)) = columns.find(|(_, (given, stored))| !given.is_identical(stored))?;
    Some(Refusal { code: RefusalCode::Data, message: write_so(&column.name, &shown(given), &shown(stored)) })
}

/// The text of such a refusal.
pub(crate) fn write_so(column: &str, given: &str, form: &str) -> String {
    format!("key column {column} would store {given} as {form}: write the key so")
}

fn shown(value: &Value) -> String {
    plain_text(value).unwrap_or_default().chars().take(SHOWN_MAX).collect()
}

/// Whether no other key is equal to this one in the database.
pub(crate) fn has_one_spelling(table: &TablePlan, key: &[Value]) -> bool {
    let is_typed = |value: &Value, kind: &Type| value.as_ref().kind() == Some(*kind);
    key.iter().zip(&table.key_types).all(|(value, kind)| is_typed(value, kind) && !has_spellings(value))
}

fn has_spellings(value: &Value) -> bool {
    matches!(value, Value::Decimal(_) | Value::Real(_))
}

fn plain(value: &Value) -> Value {
    match value {
        Value::Decimal(decimal) => Value::Decimal(shortest(decimal.as_ref())),
        // Adding zero turns -0.0 into 0.0 and leaves all else.
        Value::Real(real) if !real.is_nan() => Value::Real(real + 0.0),
        Value::Real(_) => Value::Real(f64::NAN),
        other => other.clone(),
    }
}

/// The number without zeros at its end, and zero without a sign.
fn shortest(decimal: DecimalRef<'_>) -> Decimal {
    let Parts::Number { negative, count, scale, packed } = decimal.parts() else {
        return decimal.to_owned();
    };
    let digits: Vec<u8> = packed.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(count).collect();
    let zeros = digits.iter().rev().take(scale).take_while(|digit| **digit == 0).count();
    let digits = &digits[..count - zeros];
    let is_zero = digits.iter().all(|digit| *digit == 0);
    Decimal::from_digits(negative && !is_zero, scale - zeros, digits.len(), digits.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_number_are_one_key() {
        let short = |text: &str| shortest(Decimal::parse(text).expect(text).as_ref()).to_string();
        for (spelled, expected) in
            [("1.50", "1.5"), ("-0.00", "0"), ("100", "100"), ("1.00", "1"), ("0.05", "0.05"), ("NaN", "NaN")]
        {
            assert_eq!(short(spelled), expected);
        }
        let Value::Real(zero) = plain(&Value::Real(-0.0)) else { panic!("a real stays one") };
        assert!(zero.is_sign_positive());
    }
}
