//! Change tracking in SQLite.

use super::TrackedTable;
use crate::Table;
use crate::sql::quote;

/// The side table, in quotes.
pub fn side_table(table: &Table) -> String {
    quote(&format!("headwater_side_{}", table.name))
}

/// The side table's columns that hold the key, in quotes and key order.
pub fn key_columns(table: &Table) -> Vec<String> {
    table.key_columns().map(|column| quote(&format!("key_{}", column.name))).collect()
}

/// The side table's columns that hold the partition, in quotes and the partition's order. A column of the key stands there once.
pub fn partition_columns(table: &Table) -> Vec<String> {
    let places = table.partition.iter().flat_map(|partition| &partition.columns);
    let name = |place: &usize| {
        let prefix = if table.key.contains(place) { "key" } else { "partition" };
        table.columns.get(*place).map(|column| quote(&format!("{prefix}_{}", column.name)))
    };
    places.filter_map(name).collect()
}

/// The statements that install the tracking of a table; harmless where it is installed.
pub fn install(_table: &TrackedTable<'_>) -> Vec<String> {
    Vec::new()
}

/// The statements that remove the tracking of a table; harmless where there is none.
pub fn uninstall(_table: &Table) -> Vec<String> {
    Vec::new()
}
