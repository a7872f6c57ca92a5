//! Rows of a query as a Frontier payload: every value as text, every type by Oracle's name.

use headwater_consolidated::results::ResultColumn;
use headwater_protocol::stored::{Scratch, Stored, encode};
use headwater_protocol::{Type, ValueRef};

use super::payload::Rows;

/// A payload that is being written.
pub(crate) struct FrontierRows {
    rows: Rows,
    scratch: Scratch,
}

impl FrontierRows {
    pub(crate) fn begin(columns: &[ResultColumn]) -> FrontierRows {
        // Oracle's names are upper-case, and clients look for those.
        let names: Vec<String> = columns.iter().map(|column| column.name.to_uppercase()).collect();
        let header = names.iter().zip(columns).map(|(name, column)| (name.as_str(), oracle_type(column)));
        FrontierRows { rows: Rows::begin(header), scratch: Scratch::default() }
    }

    pub(crate) fn row(&mut self, values: &[ValueRef<'_>]) {
        let FrontierRows { rows, scratch } = self;
        for value in values {
            match *value {
                ValueRef::Null => rows.value(None),
                ValueRef::Bool(truth) => rows.value(Some(if truth { b"1" } else { b"0" })),
                ValueRef::Int(number) => rows.value(Some(number.to_string().as_bytes())),
                ValueRef::Real(real) => rows.value(Some(real.to_string().as_bytes())),
                ValueRef::Text(bytes) | ValueRef::Json(bytes) | ValueRef::Bytes(bytes) => rows.value(Some(bytes)),
                // `2013-01-31 12:30:00Z`: times are in UTC, and have no letter for it.
                other => match encode(other, scratch) {
                    Stored::Text(bytes) | Stored::Blob(bytes) => {
                        rows.value(Some(bytes.strip_suffix(b"Z").unwrap_or(bytes)));
                    }
                    Stored::Null | Stored::Integer(_) | Stored::Real(_) => rows.value(None),
                },
            }
        }
        rows.end_row();
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.rows.take()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.rows.waiting()
    }
}

/// Oracle's name for a column's type. `NUMERIC` is not among them: the Python module refuses it.
fn oracle_type(column: &ResultColumn) -> &'static str {
    match (column.kind.unwrap_or(Type::Text), column.declared.to_ascii_lowercase().as_str()) {
        (Type::Bool, _) => "NUMBER(1)",
        (Type::Int, "int2" | "smallint") => "NUMBER(5)",
        (Type::Int, "int4" | "integer" | "int") => "NUMBER(10)",
        (Type::Int, _) => "NUMBER(19)",
        (Type::Real, "float4") => "BINARY_FLOAT",
        (Type::Real, _) => "BINARY_DOUBLE",
        (Type::Decimal, _) => "NUMBER",
        (Type::Bytes, _) => "BLOB",
        (Type::Json, _) => "CLOB",
        (Type::Date, _) => "DATE",
        (Type::Timestamp | Type::Timestamptz, _) => "TIMESTAMP",
        (Type::Text | Type::Time | Type::Uuid, _) => "VARCHAR2",
    }
}
