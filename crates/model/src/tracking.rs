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

use crate::{Lineage, Model, Table};

/// A table, and those with which it shares partitions by foreign keys.
#[derive(Clone, Debug)]
pub struct Kin<'m> {
    /// Where its rows' partition comes from.
    pub lineage: Lineage<'m>,
    /// The tracked tables that take theirs from it, directly or not, parents before children: when its rows move, so do theirs.
    pub below: Vec<Lineage<'m>>,
}

impl<'m> Kin<'m> {
    /// The kin of a table of a model.
    pub fn new(model: &'m Model, table: &'m Table) -> Kin<'m> {
        let below = Lineage::tables_below(model, table).filter(|below| below.is_tracked());
        Kin { below: below.map(|below| Lineage::new(model, below)).collect(), lineage: Lineage::new(model, table) }
    }

    /// The table itself.
    pub fn table(&self) -> &'m Table {
        self.lineage.table()
    }
}

/// How a table is named in `tracked`: each layout by itself.
pub fn tracked_name(lineage: &Lineage<'_>) -> String {
    base_name(lineage.table()) + lineage.layout()
}

/// How a table is named whatever its layout.
pub fn base_name(table: &Table) -> String {
    match table.schema.as_deref().filter(|schema| *schema != "public") {
        Some(schema) => format!("{schema}.{}", table.name),
        None => table.name.clone(),
    }
}

/// A table about to be tracked.
#[derive(Clone, Copy, Debug)]
pub struct TrackedTable<'a> {
    /// The table, as the model has it, and its kin.
    pub kin: &'a Kin<'a>,
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

/// How a table is tracked in a model, as the end of names: empty for one that is not partitioned, else `@` and the columns that say where
/// a row belongs. Tables that take their partition from one another are noted by one another's triggers: then a hash of all of them
/// follows.
pub fn layout(model: &Model, table: &Table) -> String {
    let lineage = Lineage::tables(model, table);
    let columns = deciding(&lineage);
    let family = family(model, lineage.last().copied().unwrap_or(table));
    let hash = |text: &str| {
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().take(4).fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
    };
    if table.name.contains('@') || columns.iter().any(|name| name.contains('@')) {
        // Which `@` is ours could not be told.
        return format!("@{}", hash(&format!("{}\0{}{family}", table.name, columns.join("\0"))));
    }
    let columns: String = columns.iter().flat_map(|name| ["@", *name]).collect();
    if family.is_empty() { columns } else { format!("{columns}~{}", hash(&family)) }
}

/// All tracked tables that take their partition from this one, directly or not; empty if there are none.
fn family(model: &Model, root: &Table) -> String {
    let below = Lineage::tables_below(model, root).filter(|below| below.is_tracked());
    let mut described: Vec<String> = below.map(|below| described(model, below)).collect();
    described.sort_unstable();
    described.iter().flat_map(|below| ["\0", below]).collect()
}

/// The columns by which a table's rows find their partition.
fn deciding<'m>(lineage: &[&'m Table]) -> Vec<&'m str> {
    let Some(table) = lineage.first() else { return Vec::new() };
    match table.through() {
        Some(reference) => {
            reference.columns.iter().filter_map(|place| Some(table.columns.get(*place)?.name.as_str())).collect()
        }
        None => table.partition_columns().map(|column| column.name.as_str()).collect(),
    }
}

/// A table with its key, and how its rows find their partition, from one table to the next.
fn described(model: &Model, table: &Table) -> String {
    let lineage = Lineage::tables(model, table);
    let one = |level: usize| {
        let (table, columns) = (lineage[level], deciding(&lineage[level..]));
        let key: Vec<&str> = table.key_columns().map(|column| column.name.as_str()).collect();
        format!("{}\u{1}{}\u{1}{}\u{1}{}", base_name(table), key.join("\u{2}"), columns.join("\u{2}"), level)
    };
    (0..lineage.len()).map(one).collect::<Vec<_>>().join("\u{3}")
}
