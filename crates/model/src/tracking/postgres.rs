//! Change tracking in PostgreSQL.

use super::TrackedTable;
use crate::Table;

/// The side table, schema and quotes included.
pub fn side_table(table: &Table) -> String {
    format!("headwater.{}", crate::sql::quote(&format!("side_{}", table.name)))
}

/// The statements that install the tracking of a table; harmless where it is installed.
pub fn install(_table: &TrackedTable<'_>) -> Vec<String> {
    Vec::new()
}

/// The statements that remove the tracking of a table; harmless where there is none.
pub fn uninstall(_table: &Table) -> Vec<String> {
    Vec::new()
}
