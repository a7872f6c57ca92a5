//! What a database has, as its own catalogue tells: the same for every backend.

use headwater_model::ColumnType;
use headwater_protocol::{Row, Value};

/// The tables of a database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// Ordinary and partitioned tables, none of Headwater's own or the system's, by schema and name.
    pub tables: Vec<CatalogueTable>,
    /// Partitions of these tables, which a model may name too.
    pub partitions: Vec<CatalogueTable>,
}

/// One table.
#[derive(Clone, Debug, PartialEq)]
pub struct CatalogueTable {
    /// Its schema; `None` where there are none (SQLite) or it is the default one (`public`).
    pub schema: Option<String>,
    /// Its name.
    pub name: String,
    /// Its columns, in order.
    pub columns: Vec<CatalogueColumn>,
    /// The primary key's columns, in key order; empty: none.
    pub primary_key: Vec<String>,
    /// Unique constraints and indexes (whole, not partial) beside the primary key.
    pub unique: Vec<Vec<String>>,
    /// Unique constraints, the primary key among them, that are deferrable: no insert can look for a conflict by one.
    pub deferrable: Vec<DeferrableKey>,
    /// Indexes by which rows are found by their first columns: the columns of each, unique and primary ones among them.
    pub indexes: Vec<Vec<String>>,
    /// Foreign keys.
    pub references: Vec<CatalogueReference>,
    /// Whether tables inherit from it (partitions aside).
    pub has_heirs: bool,
    /// Whether a part of it is on a foreign server.
    pub has_foreign_parts: bool,
}

/// A unique constraint that may be broken until the transaction ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferrableKey {
    /// Its name.
    pub name: String,
    /// Its columns, in order.
    pub columns: Vec<String>,
    /// Whether it is the primary key.
    pub is_primary: bool,
}

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub struct CatalogueColumn {
    /// Its name.
    pub name: String,
    /// Its type as the database spells it.
    pub declared: String,
    /// The model's type for it; `None`: it can't travel.
    pub kind: Option<ColumnType>,
    /// Whether it may be NULL.
    pub nullable: bool,
    /// Whether the database makes its value itself and takes no other (generated columns).
    pub generated: bool,
    /// Whether the database has a value of its own for a row inserted without one.
    pub has_default: bool,
    /// Whether its equality is other than that of its bytes (case-insensitive collation, float): not for keys. What it is.
    pub equality: Option<String>,
    /// Why a comparison with the column calls values equal whose bytes differ, if it does; [`CatalogueColumn::equality`] is that of its key.
    pub spellings: Option<String>,
}

/// One foreign key.
#[derive(Clone, Debug, PartialEq)]
pub struct CatalogueReference {
    /// This table's columns.
    pub columns: Vec<String>,
    /// The schema of the table referred to.
    pub schema: Option<String>,
    /// The table referred to.
    pub table: String,
    /// Its columns.
    pub target: Vec<String>,
    /// What deleting a parent does: `no action`, `cascade`, `set null`, ... as SQL spells it, in lower case.
    pub on_delete: String,
}

/// The state of a table's change tracking: whether it is installed, enabled and as this version makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// Not installed.
    Absent,
    /// Installed and enabled.
    Complete,
    /// Something is missing or changed: what.
    Broken(String),
    /// As it was made, but for triggers that are off, or enabled in another way: which.
    Disabled(String),
    /// As it was made, and nothing was missed, but a column of the table now has a type of another kind than its side table: which.
    Retyped(String),
}

/// A text of a catalogue's own query; empty where there is none.
pub(crate) fn text(row: &Row, place: usize) -> String {
    match row.get(place) {
        Some(Value::Text(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

/// A number of a catalogue's own query; 0 where there is none.
pub(crate) fn integer(row: &Row, place: usize) -> i64 {
    match row.get(place) {
        Some(Value::Int(number)) => *number,
        _ => 0,
    }
}
