//! Change tracking at the consolidated database, as SQL: what `headwater track` runs there, one dialect a module.
//!
//! For each table one *side table* notes, by key and partition, which version changed a row last; triggers keep it. The
//! statements are generated from the model and from the little of the catalogue that [`TrackedTable`] carries, so that the same
//! input always gives the same text: `track --dry-run` shows it, and a hash of it tells whether what is installed is current.

pub mod postgres;
pub mod sqlite;

use crate::Table;

/// A table about to be tracked.
#[derive(Clone, Copy, Debug)]
pub struct TrackedTable<'a> {
    /// The table, as the model has it.
    pub table: &'a Table,
    /// The type of each of the model's columns, in their order, as the database spells it.
    pub declared: &'a [String],
    /// Every unique index of the table, whole or partial, the key's among them.
    pub unique: &'a [UniqueIndex],
}

/// A unique index: through it `INSERT OR REPLACE` deletes rows of other keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueIndex {
    /// Its columns, each with its collation where that is not the column's own.
    pub columns: Vec<(String, Option<String>)>,
}
