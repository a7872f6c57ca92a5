//! A model made ready for use: what the engines and the backends need of each table, worked out once.

use headwater_model::{Model, Table};
use headwater_protocol::message::TableHeader;
use headwater_protocol::row::put_row;
use headwater_protocol::{Type, Value};

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
}

impl Plan {
    /// Makes a model ready.
    pub fn new(model: Model) -> Plan {
        let fingerprint = model.fingerprint();
        let tables =
            (0u32..).zip(&model.tables).map(|(number, table)| TablePlan::new(fingerprint, number, table)).collect();
        Plan { model, fingerprint, tables }
    }
}

impl TablePlan {
    fn new(fingerprint: u64, number: u32, table: &Table) -> TablePlan {
        let columns: Vec<(String, Type)> = table.columns.iter().map(|c| (c.name.clone(), c.kind.base)).collect();
        let types = columns.iter().map(|(_, kind)| *kind).collect();
        let header = TableHeader { table: number, name: table.name.clone(), columns, key: table.key.clone() };
        let key_types = header.key_types();
        let partition_types = table.partition_columns().map(|c| c.kind.base).collect();
        TablePlan { fingerprint, number, table: table.clone(), header, types, key_types, partition_types }
    }

    /// The key of a row.
    pub fn key_of(&self, row: &[Value]) -> Vec<Value> {
        self.table.key.iter().map(|&place| row[place].clone()).collect()
    }

    /// The partition that a row lies in, in the form in which watermarks and marks name it (empty for a table that is not
    /// partitioned); `None` if one of its columns is NULL: such a row lies in no partition.
    pub fn partition_of(&self, row: &[Value]) -> Option<Vec<u8>> {
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
