//! The statements that note rows in a side table.

use super::{key_columns, kin, partition_columns, side_table};
use crate::sql::quote;
use crate::{Column, Lineage};

/// A column of the side table, and the column that it stands for.
pub(super) struct Pair {
    /// Of the table itself; of the partition where it is taken from another, of that one.
    pub(super) base: String,
    pub(super) side: String,
    pub(super) partition: bool,
}

/// The key's columns, then the partition's others.
pub(super) fn pairs(lineage: &Lineage<'_>) -> Vec<Pair> {
    let table = lineage.table();
    let partition = partition_columns(lineage);
    let pair = |(column, side): (&Column, String)| {
        let is_partition = partition.contains(&side);
        Pair { base: quote(&column.name), side, partition: is_partition }
    };
    let keys = key_columns(table);
    let others = lineage.root().partition_columns().zip(partition.clone()).filter(|(_, side)| !keys.contains(side));
    table.key_columns().zip(keys.clone()).chain(others).map(pair).collect()
}

pub(super) fn sides(lineage: &Lineage<'_>) -> Vec<String> {
    pairs(lineage).into_iter().map(|pair| pair.side).collect()
}

/// Which images a statement notes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Images {
    /// Rows as they were.
    Old,
    /// Rows as they are.
    New,
    /// Both; `hw_gone` tells.
    Both,
}

/// The statements that note rows in a side table.
pub(super) struct Notes<'m> {
    lineage: &'m Lineage<'m>,
    side: String,
    pub(super) pairs: Vec<Pair>,
    pub(super) keys: String,
    /// The columns of the table that have to be known of a row.
    pub(super) read: Vec<String>,
}

impl<'m> Notes<'m> {
    pub(super) fn new(lineage: &'m Lineage<'m>) -> Notes<'m> {
        let pairs = pairs(lineage);
        let mut read: Vec<String> = lineage.table().key_columns().map(|column| quote(&column.name)).collect();
        for column in lineage.deciding(0) {
            let name = quote(&column.name);
            if !read.contains(&name) {
                read.push(name);
            }
        }
        Notes { lineage, side: side_table(lineage), pairs, keys: sides(lineage).join(", "), read }
    }

    pub(super) fn insert(&self) -> String {
        format!("INSERT INTO {} AS s ({}, version, deleted)", self.side, self.keys)
    }

    /// A row that this transaction has noted already stays as it is.
    pub(super) fn conflict(&self) -> String {
        format!(
            "ON CONFLICT ({}) DO UPDATE SET version = EXCLUDED.version, deleted = EXCLUDED.deleted\n      \
             WHERE s.version <> EXCLUDED.version OR s.deleted IS DISTINCT FROM EXCLUDED.deleted",
            self.keys
        )
    }

    /// What the side table gets of a row, after [`Notes::join`].
    pub(super) fn values(&self, row: &str) -> String {
        let is_own = self.lineage.parents().is_empty();
        let value = |pair: &Pair| match (is_own, pair.partition) {
            (false, true) => format!("hw_in.{}", pair.side),
            _ => format!("{row}.{}", pair.base),
        };
        self.pairs.iter().map(value).collect::<Vec<_>>().join(", ")
    }

    /// Finds the partition of a row, where it is another's.
    pub(super) fn join(&self, row: &str, images: Images) -> String {
        if self.lineage.parents().is_empty() { String::new() } else { kin::partitions(self.lineage, row, images) }
    }

    /// That a row lies in a partition at all.
    pub(super) fn lies(&self, row: &str) -> String {
        let is_own = self.lineage.parents().is_empty();
        let columns = self.pairs.iter().filter(|pair| pair.partition);
        let test = |pair: &Pair| {
            let value = if is_own { format!("{row}.{}", pair.base) } else { format!("hw_in.{}", pair.side) };
            format!("{value} IS NOT NULL")
        };
        let tests: Vec<String> = columns.map(test).collect();
        if tests.is_empty() { String::new() } else { format!(" WHERE {}", tests.join(" AND ")) }
    }

    /// Notes the rows of a statement. To look for keys that repeat costs as much as a fifth of a large statement, so it is done where
    /// they can.
    pub(super) fn of_statement(&self, from: &str, images: Images) -> String {
        format!(
            "    IF TG_NARGS = 0 THEN\n    {};\n    ELSE\n    {};\n    END IF;\n",
            self.of_rows("", from, images),
            self.of_rows("DISTINCT ", from, images)
        )
    }

    /// Notes the rows of a table.
    pub(super) fn of_rows(&self, distinct: &str, from: &str, images: Images) -> String {
        let deleted = if images == Images::Old { "true" } else { "NULL::boolean" };
        self.noting(distinct, from, images, deleted)
    }

    /// Notes rows as gone from where they lie now.
    pub(super) fn of_rows_gone(&self, from: &str) -> String {
        self.noting("DISTINCT ", from, Images::New, "true")
    }

    fn noting(&self, distinct: &str, from: &str, images: Images, deleted: &str) -> String {
        format!(
            "{}\n    SELECT {distinct}{}, pg_current_xact_id(), {deleted} FROM {from} AS t{}{}\n    {}",
            self.insert(),
            self.values("t"),
            self.join("t", images),
            self.lies("t"),
            self.conflict()
        )
    }

    /// Notes the row of a trigger for each row: the old image where key or partition are others then, and the new one.
    pub(super) fn of_one_row(&self) -> String {
        let note = |condition: &str, image: &str, images: Images| {
            let deleted = if images == Images::Old { "true" } else { "NULL" };
            let (row, from) = if self.lineage.parents().is_empty() {
                (image, String::new())
            } else {
                ("t", format!(" FROM {} AS t{}", kin::one_row(&self.read, image), self.join("t", images)))
            };
            format!(
                "    IF {condition} THEN\n      {}\n      SELECT {}, pg_current_xact_id(), {deleted}{from}{}\n      {};\n    END IF;\n",
                self.insert(),
                self.values(row),
                self.lies(row),
                self.conflict()
            )
        };
        let of =
            |image: &str| self.read.iter().map(|column| format!("{image}.{column}")).collect::<Vec<_>>().join(", ");
        let moved = format!("ROW({}) IS DISTINCT FROM ROW({})", of("OLD"), of("NEW"));
        note(&format!("TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND {moved}"), "OLD", Images::Old)
            + &note("TG_OP <> 'DELETE'", "NEW", Images::New)
    }
}
