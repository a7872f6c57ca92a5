//! Short words for values.

use headwater_protocol::{Decimal, Row, Value};

pub(crate) fn int(number: i64) -> Value {
    Value::Int(number)
}

pub(crate) fn text(text: &str) -> Value {
    Value::text(text)
}

pub(crate) fn decimal(text: &str) -> Value {
    Value::Decimal(Decimal::parse(text).expect(text))
}

pub(crate) const NULL: Value = Value::Null;

/// `customer`: id, code (unique), name, changed.
pub(crate) fn customer(id: i64, code: &str, name: &str, changed: i64) -> Row {
    vec![int(id), text(code), text(name), int(changed)]
}

/// `orders`: id, region, note.
pub(crate) fn order(id: i64, region: &str, note: &str) -> Row {
    vec![int(id), text(region), text(note)]
}

/// `line`: order_id, no, region, amount (not negative).
pub(crate) fn line(order: i64, no: i64, region: &str, amount: &str) -> Row {
    vec![int(order), int(no), text(region), decimal(amount)]
}
