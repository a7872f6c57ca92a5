//! In which partition rows lie: by their own columns, or by the rows that they refer to, as those stand now.

use std::collections::HashMap;

use headwater_protocol::row::put_row;
use headwater_protocol::{Row, Type};

use crate::{Connection, Error, TablePlan};

/// Where a row stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In the partition of this name ([`TablePlan::partition_key`]).
    In(Vec<u8>),
    /// In none: a value by which it would be found is NULL.
    Nowhere,
    /// In none: the row that it refers to is not there.
    Orphan,
}

/// Where each of these rows of a table stands. `lock`: what they refer to does not move before the transaction ends.
pub fn of_rows(
    connection: &mut dyn Connection,
    table: &TablePlan,
    rows: &[&Row],
    lock: bool,
) -> Result<Vec<Standing>, Error> {
    if table.parents.is_empty() {
        return Ok(rows.iter().map(|row| table.partition_of(row).map_or(Standing::Nowhere, Standing::In)).collect());
    }
    let types: Vec<Type> = table.through.iter().map(|place| table.types[*place]).collect();
    let bytes = |key: &Row| {
        let mut bytes = Vec::new();
        put_row(&mut bytes, &types, key);
        bytes
    };
    let mut wanted: HashMap<Vec<u8>, Row> = HashMap::new();
    for key in rows.iter().filter_map(|row| table.parent_key(row)) {
        wanted.insert(bytes(&key), key);
    }
    let keys: Vec<Row> = wanted.into_values().collect();
    let found = connection.partitions_below(table, &keys, lock)?;
    let found: HashMap<Vec<u8>, Row> = found.into_iter().map(|(key, partition)| (bytes(&key), partition)).collect();
    let standing = |row: &&Row| match table.parent_key(row).map(|key| found.get(&bytes(&key))) {
        None => Standing::Nowhere,
        Some(None) => Standing::Orphan,
        Some(Some(partition)) => table.partition_key(partition).map_or(Standing::Nowhere, Standing::In),
    };
    Ok(rows.iter().map(standing).collect())
}
