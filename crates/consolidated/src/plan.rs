//! A model made ready for use: what the engines and the backends need of each table, worked out once.

use headwater_model::{Lineage, Model, Table};
use headwater_protocol::message::TableHeader;
use headwater_protocol::row::put_row;
use headwater_protocol::{Row, Type, Value};

/// A model made ready.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model.
    pub model: Model,
    /// [`Model::fingerprint`], by which statements are kept prepared.
    pub fingerprint: u64,
    /// Its tables, in the model's order.
    pub tables: Vec<TablePlan>,
}

/// A table made ready.
#[derive(Clone, Debug)]
pub struct TablePlan {
    /// [`Model::fingerprint`] of the model it belongs to: with `number` it names the table's prepared statements.
    pub fingerprint: u64,
    /// The table's number on the wire.
    pub number: u32,
    /// The table.
    pub table: Table,
    /// Its header frame's content.
    pub header: TableHeader,
    /// The types of its columns.
    pub types: Vec<Type>,
    /// The types of its key's columns.
    pub key_types: Vec<Type>,
    /// The types of its partition's columns; empty if it is not partitioned.
    pub partition_types: Vec<Type>,
    /// The tables from which it takes its partition, its parent first; none if it has the partition's columns itself.
    pub parents: Vec<Table>,
    /// How it and they are tracked ([`Lineage::layouts`]).
    pub layouts: Vec<String>,
    /// Places of the columns by which it refers to the first of them, in the order of that one's key.
    pub through: Vec<usize>,
}

impl Plan {
    /// Makes a model ready.
    pub fn new(model: Model) -> Plan {
        let fingerprint = model.fingerprint();
        let tables = (0u32..)
            .zip(&model.tables)
            .map(|(number, table)| TablePlan::new(fingerprint, number, &model, table))
            .collect();
        Plan { model, fingerprint, tables }
    }
}

impl TablePlan {
    fn new(fingerprint: u64, number: u32, model: &Model, table: &Table) -> TablePlan {
        let columns: Vec<(String, Type)> = table.columns.iter().map(|c| (c.name.clone(), c.kind.base)).collect();
        let types = columns.iter().map(|(_, kind)| *kind).collect();
        let header = TableHeader { table: number, name: table.name.clone(), columns, key: table.key.clone() };
        let key_types = header.key_types();
        let lineage = Lineage::new(model, table);
        let partition_types = lineage.root().partition_columns().map(|c| c.kind.base).collect();
        let parents = lineage.parents().iter().copied().cloned().collect();
        let place = |column: &headwater_model::Column| table.columns.iter().position(|own| own == column);
        let link = if lineage.parents().is_empty() { Vec::new() } else { lineage.link(0) };
        let through = link.into_iter().filter_map(|(column, _)| place(column)).collect();
        let (table, layouts) = (table.clone(), lineage.layouts().to_vec());
        TablePlan { fingerprint, number, table, header, types, key_types, partition_types, parents, layouts, through }
    }

    /// How the partition of its rows is found.
    pub fn lineage(&self) -> Lineage<'_> {
        Lineage::of_tables(std::iter::once(&self.table).chain(&self.parents).collect(), self.layouts.clone())
    }

    /// The key of the row from which a row takes its partition; `None` if it refers to none.
    pub fn parent_key(&self, row: &[Value]) -> Option<Row> {
        let key: Row = self.through.iter().map(|&place| row[place].clone()).collect();
        (!key.iter().any(Value::is_null)).then_some(key)
    }

    /// The key of a row.
    pub fn key_of(&self, row: &[Value]) -> Vec<Value> {
        self.table.key.iter().map(|&place| row[place].clone()).collect()
    }

    /// Places of the columns that decide where a row lies: its partition's, or those that refer to the row from which it takes that.
    pub fn deciding(&self) -> &[usize] {
        match &self.table.partition {
            Some(partition) if self.parents.is_empty() => &partition.columns,
            _ => &self.through,
        }
    }

    /// Places of the columns that are noted of a row, or say where it is to be noted: the key's, and others that decide where it lies.
    pub fn noted(&self) -> Vec<usize> {
        let others = self.deciding().iter().filter(|place| !self.table.key.contains(place));
        self.table.key.iter().chain(others).copied().collect()
    }

    /// The partition that a row lies in, in the form in which watermarks and marks name it (empty for a table that is not
    /// partitioned); `None` if one of its columns is NULL: such a row lies in no partition. Of a table that takes its partition from
    /// another the row alone does not tell, and none is given ([`crate::standing`]).
    pub fn partition_of(&self, row: &[Value]) -> Option<Vec<u8>> {
        if !self.parents.is_empty() {
            return None;
        }
        let values: Vec<Value> =
            self.table.partition.iter().flat_map(|p| &p.columns).map(|&place| row[place].clone()).collect();
        self.partition_key(&values)
    }

    /// The form in which watermarks and marks name the partition with these values; `None` if one is NULL.
    pub fn partition_key(&self, values: &[Value]) -> Option<Vec<u8>> {
        if values.iter().any(Value::is_null) {
            return None;
        }
        let mut key = Vec::new();
        put_row(&mut key, &self.partition_types, values);
        Some(key)
    }
}
