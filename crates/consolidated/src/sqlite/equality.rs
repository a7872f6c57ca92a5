//! Which values a column of a SQLite file calls equal: by its collation and its affinity.
//!
//! Statements compare a table's own columns as the file does. A side table's columns have neither a type nor a collation, and a remote
//! names partitions by their bytes; for those the rules are here.
//!
//! | column | equal |
//! |---|---|
//! | `COLLATE NOCASE` | `North`, `north` (ASCII letters) |
//! | `COLLATE RTRIM` | `ab`, `ab` with blanks at its end |
//! | INTEGER, REAL or NUMERIC affinity | `7`, `7.0`, the text `'7.0'` |
//!
//! *Caveats.* A collation of the application's own is unknown to this connection: statements that need it fail.

use headwater_model::sql::quote;
use headwater_protocol::stored::{Scratch, Stored, encode, number};
use headwater_protocol::{Row, Type, Value};

use super::connection::SqliteConnection;
use super::error::sort;
use super::plain::Affinity;
use crate::{Error, TablePlan};

/// How a column compares values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Equality {
    affinity: Affinity,
    collation: Collation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collation {
    Binary,
    NoCase,
    RightTrim,
}

/// How a table's partitions are compared.
pub(super) struct PartitionEquality {
    columns: Vec<Equality>,
    has_spellings: bool,
}

impl PartitionEquality {
    /// Reads it from the table that has the partition's columns.
    pub(super) fn read(connection: &SqliteConnection, plan: &TablePlan) -> Result<PartitionEquality, Error> {
        let lineage = plan.lineage();
        let root = lineage.root();
        let mut equality = PartitionEquality { columns: Vec::new(), has_spellings: false };
        for column in root.partition_columns() {
            let own = read(connection, &root.name, &column.name)?;
            equality.has_spellings |= own.has_spellings(column.kind.base);
            equality.columns.push(own);
        }
        Ok(equality)
    }

    /// Whether equal partitions may have different bytes.
    pub(super) fn has_spellings(&self) -> bool {
        self.has_spellings
    }

    /// Bytes that are the same for partitions that are equal.
    pub(super) fn canonical(&self, partition: &[Value]) -> Vec<u8> {
        let (mut bytes, mut scratch) = (Vec::new(), Scratch::default());
        for (value, equality) in partition.iter().zip(&self.columns) {
            equality.write_canonical(encode(value.as_ref(), &mut scratch), &mut bytes);
        }
        bytes
    }

    /// Those of `spellings` that are equal to one of `partitions`, which they replace.
    pub(super) fn among(&self, spellings: Vec<Row>, partitions: &[Row]) -> Vec<Row> {
        let wanted: std::collections::HashSet<Vec<u8>> = partitions.iter().map(|row| self.canonical(row)).collect();
        spellings.into_iter().filter(|row| wanted.contains(&self.canonical(row))).collect()
    }
}

/// Why a column calls values equal whose bytes differ, if it does.
pub(super) fn spellings(
    connection: &SqliteConnection,
    table: &str,
    column: &str,
    kind: Type,
) -> Result<Option<String>, Error> {
    let equality = read(connection, table, column)?;
    Ok(match equality.collation {
        _ if !equality.has_spellings(kind) => None,
        Collation::NoCase => Some("collation NOCASE".to_owned()),
        Collation::RightTrim => Some("collation RTRIM".to_owned()),
        Collation::Binary => Some("7 and 7.0 are one number".to_owned()),
    })
}

/// A column's affinity.
pub(super) fn affinity(connection: &SqliteConnection, table: &str, column: &str) -> Result<Affinity, Error> {
    Ok(read(connection, table, column)?.affinity)
}

fn read(connection: &SqliteConnection, table: &str, column: &str) -> Result<Equality, Error> {
    let metadata = connection.inner.column_metadata(Some("main"), table, column);
    let (declared, collation, ..) =
        metadata.map_err(|error| sort(error, &format!("looking at column {} of {}", quote(column), quote(table))))?;
    let text = |name: Option<&std::ffi::CStr>| name.map(|name| name.to_string_lossy().to_ascii_uppercase());
    Ok(Equality {
        affinity: Affinity::of(&text(declared).unwrap_or_default()),
        collation: match text(collation).as_deref() {
            Some("NOCASE") => Collation::NoCase,
            Some("RTRIM") => Collation::RightTrim,
            _ => Collation::Binary,
        },
    })
}

impl Equality {
    fn has_spellings(self, kind: Type) -> bool {
        let by_affinity = match kind {
            Type::Real | Type::Decimal => true,
            Type::Int | Type::Bool => self.affinity != Affinity::Integer,
            _ => self.affinity.is_numeric(),
        };
        by_affinity || self.collation != Collation::Binary
    }

    fn write_canonical(self, stored: Stored<'_>, bytes: &mut Vec<u8>) {
        let stored = match stored {
            Stored::Text(text) if self.affinity.is_numeric() => number(text).unwrap_or(stored),
            other => other,
        };
        match stored {
            Stored::Null => bytes.push(0),
            Stored::Integer(number) => write(bytes, 1, &number.to_be_bytes()),
            Stored::Real(real) => match whole(real) {
                Some(number) => write(bytes, 1, &number.to_be_bytes()),
                None => write(bytes, 2, &real.to_bits().to_be_bytes()),
            },
            Stored::Text(text) => match self.collation {
                Collation::Binary => write(bytes, 3, text),
                Collation::NoCase => write(bytes, 3, &text.to_ascii_lowercase()),
                Collation::RightTrim => {
                    let end = text.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
                    write(bytes, 3, &text[..end]);
                }
            },
            Stored::Blob(blob) => write(bytes, 4, blob),
        }
    }
}

fn write(bytes: &mut Vec<u8>, class: u8, value: &[u8]) {
    bytes.push(class);
    bytes.extend_from_slice(&(value.len() as u64).to_be_bytes());
    bytes.extend_from_slice(value);
}

/// The integer that a real is.
fn whole(real: f64) -> Option<i64> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    (real.fract() == 0.0 && (-END..END).contains(&real)).then_some(real as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said here is what SQLite does, for each pair of values in columns of each kind.
    #[test]
    fn values_are_equal_where_sqlite_calls_them_equal() {
        let connection = rusqlite::Connection::open_in_memory().expect("a database");
        let columns =
            ["TEXT", "TEXT COLLATE NOCASE", "TEXT COLLATE RTRIM", "NUMERIC", "REAL", "INTEGER", "BLOB", "DATETIME"];
        let literals = [
            "'a'",
            "'A'",
            "'a '",
            "'\u{e4}'",
            "'\u{c4}'",
            "7",
            "7.0",
            "'7'",
            "'7.0'",
            "' 7'",
            "7.5",
            "'7.50'",
            "0.0",
            "-0.0",
            "x'37'",
            "'1e2'",
            "100",
            "9007199254740993",
            "9007199254740992.0",
        ];
        for declared in columns {
            let (kind, collation) = declared.split_once(" COLLATE ").unwrap_or((declared, ""));
            let collation = match collation {
                "NOCASE" => Collation::NoCase,
                "RTRIM" => Collation::RightTrim,
                _ => Collation::Binary,
            };
            let equality = Equality { affinity: Affinity::of(kind), collation };
            connection
                .execute_batch(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (v {declared})"))
                .expect("a table");
            for literal in literals {
                connection.execute_batch(&format!("DELETE FROM t; INSERT INTO t VALUES ({literal})")).expect("a row");
                for other in literals {
                    let sql = format!("SELECT v, v = {other} FROM t");
                    let (stored, expected): (rusqlite::types::Value, bool) =
                        connection.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("a comparison");
                    let given: rusqlite::types::Value =
                        connection.query_row(&format!("SELECT {other}"), [], |row| row.get(0)).expect("a value");
                    let bytes = |value: &rusqlite::types::Value| {
                        let mut bytes = Vec::new();
                        equality.write_canonical(as_stored(value), &mut bytes);
                        bytes
                    };
                    // What a TEXT column makes of a number is not said here: partitions of such columns are texts.
                    if kind == "TEXT" && !matches!(given, rusqlite::types::Value::Text(_)) {
                        continue;
                    }
                    assert_eq!(bytes(&stored) == bytes(&given), expected, "{literal} = {other} in {declared}");
                }
            }
        }
    }

    fn as_stored(value: &rusqlite::types::Value) -> Stored<'_> {
        use rusqlite::types::Value;
        match value {
            Value::Null => Stored::Null,
            Value::Integer(number) => Stored::Integer(*number),
            Value::Real(real) => Stored::Real(*real),
            Value::Text(text) => Stored::Text(text.as_bytes()),
            Value::Blob(blob) => Stored::Blob(blob),
        }
    }
}
