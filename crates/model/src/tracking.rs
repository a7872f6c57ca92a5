//! Change tracking at the consolidated database, as SQL: what `headwater track` runs there, one dialect a module.
//!
//! For each table one *side table* notes, by key and partition, which version changed a row last; triggers keep it. The
//! statements are generated from the model and from the little of the catalogue that [`TrackedTable`] carries, so that the same
//! input always gives the same text: `track --dry-run` shows it, and a hash of it tells whether what is installed is current.
//!
//! Versions of a model live side by side, and may partition a table in different ways. Each way is tracked by itself, under names that
//! end in its [`layout`]: so a version comes or goes without a change to what another one's remotes have seen.

pub mod postgres;
pub mod sqlite;

use sha2::{Digest, Sha256};

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

/// How a table is partitioned, as the end of names: empty for one that is not, else `@` and the columns.
pub fn layout(table: &Table) -> String {
    let columns: Vec<&str> = table.partition_columns().map(|column| column.name.as_str()).collect();
    if table.name.contains('@') || columns.iter().any(|name| name.contains('@')) {
        // Which `@` is ours could not be told.
        let digest = Sha256::digest(format!("{}\0{}", table.name, columns.join("\0")).as_bytes());
        return digest.iter().take(4).fold("@".to_owned(), |text, byte| format!("{text}{byte:02x}"));
    }
    columns.iter().flat_map(|name| ["@", *name]).collect()
}
