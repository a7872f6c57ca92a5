//! The one table of these tests: a key, and the number of the operation that wrote the row last.

use headwater_protocol::message::TableHeader;
use headwater_protocol::{Row, Type, Value};

/// What is stored under a key: the operation's number, or nothing.
pub(crate) type Image = Option<i64>;

pub(crate) const TYPES: [Type; 2] = [Type::Int, Type::Int];

pub(crate) fn header() -> TableHeader {
    let columns = vec![("id".to_owned(), Type::Int), ("op".to_owned(), Type::Int)];
    TableHeader { table: 0, name: "t".to_owned(), columns, key: vec![0] }
}

pub(crate) fn to_row(key: i64, op: i64) -> Row {
    vec![Value::Int(key), Value::Int(op)]
}

pub(crate) fn from_row(row: &[Value]) -> (i64, i64) {
    match row {
        [Value::Int(key), Value::Int(op)] => (*key, *op),
        other => panic!("not a row of these tests: {other:?}"),
    }
}
