//! How the partition of a row is found: by the row itself, or by the rows that foreign keys refer to, one after the other.
//!
//! The lineage of order lines that take their partition from their order, which takes it from its customer:
//!
//! ```text
//! level      0                    1                         2
//!         line  --order_id-->  orders  --customer_id-->  customer (region)
//! ```
//!
//! A row whose foreign key is NULL, or that refers to a row that isn't there, is in no partition.

use crate::sql::quote;
use crate::{Column, Model, Table};

/// A table, the one from which it takes its partition, and so on up to the one that has the partition's columns.
#[derive(Clone, Debug)]
pub struct Lineage<'m> {
    /// The table itself first.
    tables: Vec<&'m Table>,
    /// For each of them, [`layout`](crate::tracking::layout).
    layouts: Vec<String>,
}

impl<'m> Lineage<'m> {
    /// The lineage of a table; it alone, if it has the partition's columns itself or is not partitioned.
    pub fn new(model: &'m Model, table: &'m Table) -> Lineage<'m> {
        let tables = Lineage::tables(model, table);
        let layouts = tables.iter().map(|table| crate::tracking::layout(model, table)).collect();
        Lineage { tables, layouts }
    }

    /// The tables of the lineage of a table.
    pub(crate) fn tables(model: &'m Model, table: &'m Table) -> Vec<&'m Table> {
        let mut tables = vec![table];
        // A model that is valid has no circle; another must not keep us here.
        while tables.len() <= model.tables.len()
            && let Some(parent) = tables.last().and_then(|t| t.through()).and_then(|r| model.tables.get(r.table))
        {
            tables.push(parent);
        }
        tables
    }

    /// The lineage of these tables, each of which takes its partition from the next, and their layouts. There must be one.
    pub fn of_tables(tables: Vec<&'m Table>, layouts: Vec<String>) -> Lineage<'m> {
        assert!(!tables.is_empty() && tables.len() == layouts.len(), "a lineage begins with a table");
        Lineage { tables, layouts }
    }

    /// The tables that take their partition from this one, directly or not; parents before children.
    pub fn tables_below(model: &'m Model, table: &Table) -> impl Iterator<Item = &'m Table> {
        model
            .tables
            .iter()
            .filter(|other| Lineage::tables(model, other).iter().skip(1).any(|parent| parent.name == table.name))
    }

    /// Its table's layout, the end of the names of what tracks it.
    pub fn layout(&self) -> &str {
        &self.layouts[0]
    }

    /// The layouts of all its tables.
    pub fn layouts(&self) -> &[String] {
        &self.layouts
    }

    /// The table itself.
    pub fn table(&self) -> &'m Table {
        self.tables[0]
    }

    /// The tables above it, its parent first.
    pub fn parents(&self) -> &[&'m Table] {
        &self.tables[1..]
    }

    /// The table that has the partition's columns.
    pub fn root(&self) -> &'m Table {
        self.tables[self.tables.len() - 1]
    }

    /// The lineage of its table's parent.
    #[must_use]
    pub fn of_parent(&self) -> Lineage<'m> {
        Lineage { tables: self.parents().to_vec(), layouts: self.layouts[1..].to_vec() }
    }

    /// The level of a table in it.
    pub fn level_of(&self, table: &Table) -> Option<usize> {
        self.tables.iter().position(|known| known.name == table.name)
    }

    /// The columns by which a row of a level refers to the next one, each with the column of that table's key; in that key's order.
    pub fn link(&self, level: usize) -> Vec<(&'m Column, &'m Column)> {
        let (Some(child), Some(parent)) = (self.tables.get(level), self.tables.get(level + 1)) else {
            return Vec::new();
        };
        let Some(reference) = child.through() else { return Vec::new() };
        let column = |place: &usize| {
            let index = reference.target.iter().position(|target| target == place)?;
            Some((child.columns.get(*reference.columns.get(index)?)?, parent.columns.get(*place)?))
        };
        parent.key.iter().filter_map(column).collect()
    }

    /// The columns that decide where rows of a level belong: those that refer to the next one, or the partition's own.
    pub fn deciding(&self, level: usize) -> Vec<&'m Column> {
        match self.tables.get(level) {
            Some(table) if level + 1 == self.tables.len() => table.partition_columns().collect(),
            _ => self.link(level).into_iter().map(|(column, _)| column).collect(),
        }
    }

    /// Joins from `row` of a level up to the table that has the partition's columns, as SQL; `named` says what a table is called.
    pub fn up(&self, level: usize, row: &str, join: &str, named: &dyn Fn(&Table) -> String) -> String {
        self.up_to(level, self.tables.len() - 1, row, join, named)
    }

    /// The same up to the table of level `top`.
    pub fn up_to(&self, level: usize, top: usize, row: &str, join: &str, named: &dyn Fn(&Table) -> String) -> String {
        let step = |at: usize| {
            let child = if at == level { row.to_owned() } else { above(at) };
            let on = self.on(at, &child, &above(at + 1));
            format!(" {join} {} AS {} ON {on}", named(self.tables[at + 1]), above(at + 1))
        };
        (level..top).map(step).collect()
    }

    /// The tables joined by [`Lineage::up`], under the names that they have there.
    pub fn joined_up(&self, level: usize) -> Vec<String> {
        (level + 1..self.tables.len()).map(above).collect()
    }

    /// The partition's columns of `row` of a level, after [`Lineage::up`].
    pub fn partition(&self, level: usize, row: &str) -> Vec<String> {
        let top = self.tables.len() - 1;
        let root = if level == top { row.to_owned() } else { above(top) };
        self.root().partition_columns().map(|column| format!("{root}.{}", quote(&column.name))).collect()
    }

    /// Joins from `row` of a level down to the rows of the table itself that lie below it, as SQL.
    pub fn down(&self, level: usize, row: &str, named: &dyn Fn(&Table) -> String) -> String {
        let step = |at: usize| {
            let parent = if at + 1 == level { row.to_owned() } else { below(at + 1) };
            format!(" JOIN {} AS {} ON {}", named(self.tables[at]), below(at), self.on(at, &below(at), &parent))
        };
        (0..level).rev().map(step).collect()
    }

    /// What [`Lineage::down`] calls the table itself.
    pub const OWN: &'static str = "hw_below0";

    fn on(&self, level: usize, child: &str, parent: &str) -> String {
        let equal =
            |(own, key): &(&Column, &Column)| format!("{parent}.{} = {child}.{}", quote(&key.name), quote(&own.name));
        self.link(level).iter().map(equal).collect::<Vec<_>>().join(" AND ")
    }
}

fn above(level: usize) -> String {
    format!("hw_above{level}")
}

fn below(level: usize) -> String {
    format!("hw_below{level}")
}
