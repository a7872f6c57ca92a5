//! In which partition rows lie: by their own columns, or by the rows that they refer to, as those stand now.

use std::collections::{HashMap, HashSet};

use headwater_protocol::row::{put_row, read_row};
use headwater_protocol::wire::Reader;
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

/// Whether rows that stand there lie in one of these partitions of a table, by the database's own equality.
pub(crate) fn are_in(
    connection: &mut dyn Connection,
    table: &TablePlan,
    standings: &[Standing],
    partitions: &[Row],
) -> Result<Vec<bool>, Error> {
    let mut known: HashSet<Vec<u8>> = partitions.iter().filter_map(|row| table.partition_key(row)).collect();
    let keys = standings.iter().filter_map(|standing| match standing {
        Standing::In(key) if !known.contains(key) => Some(key.as_slice()),
        _ => None,
    });
    let others: HashSet<&[u8]> = keys.collect();
    let equal = equal_to_some(connection, table, &others, partitions)?;
    known.extend(equal);
    Ok(standings.iter().map(|standing| matches!(standing, Standing::In(key) if known.contains(key))).collect())
}

/// Those of these names of partitions ([`TablePlan::partition_key`]) that the database calls equal to one of these partitions.
pub(crate) fn equal_to_some(
    connection: &mut dyn Connection,
    table: &TablePlan,
    names: &HashSet<&[u8]>,
    partitions: &[Row],
) -> Result<Vec<Vec<u8>>, Error> {
    if names.is_empty() || partitions.is_empty() || !connection.has_spelled_partitions(table)? {
        return Ok(Vec::new());
    }
    let mut all = partitions.to_vec();
    let mut keys = Vec::with_capacity(names.len());
    for name in names {
        all.push(read_row(&mut Reader::new(name), &table.partition_types, usize::MAX, None)?);
        keys.push(*name);
    }
    let classes = connection.partition_classes(table, &all)?;
    let equal = classes.into_iter().skip(partitions.len()).zip(keys).filter(|(first, _)| *first < partitions.len());
    Ok(equal.map(|(_, key)| key.to_vec()).collect())
}
