//! The names of a table's partitions, where the database calls partitions equal whose bytes differ.
//!
//! A remote knows a partition by the bytes of its values, and takes a row's partition from the row's own bytes. A head with `citext`, a
//! collation without case, `char(n)` or decimals of any scale calls `North` and `north` one partition. So one partition of the head may
//! be several of a remote's, its *spellings*: each has its own entry in the remote's watermarks, and a partition that comes whole or is
//! left does so in each of its spellings. What the remote does with bytes is then what the head does with its own equality.
//!
//! ```text
//! membership        'North'
//! rows              'north', 'North'
//! first download    PARTITION whole 'North', PARTITION whole 'north', rows, WATERMARKS 'North' 'north'
//! a new row 'NORTH' the row, WATERMARKS 'North' 'north' 'NORTH'
//! membership ends   PARTITION left of all three
//! ```
//!
//! The membership's spelling is the partition's *name*: of several that are equal, the first. What is read from the database is asked for by
//! names alone.
//!
//! A table whose partition columns compare by bytes costs nothing of this.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headwater_model::Direction;
use headwater_protocol::Row;
use headwater_protocol::message::{PartitionAction, WatermarkEntry};
use headwater_protocol::row::read_row;
use headwater_protocol::wire::Reader;

use super::{Coming, Download, partitions_of};
use crate::backend::Reading;
use crate::memberships::why_it_stays;
use crate::{Error, TablePlan};

/// The partitions of one table that a remote is to hold.
#[derive(Debug, Default)]
pub(super) struct Naming {
    /// The name of each, once.
    pub(super) names: Vec<Row>,
    /// By the place of a name, its spellings that the remote holds or a membership has. Empty where bytes decide.
    classes: HashMap<usize, Vec<Vec<u8>>>,
    pub(super) has_spellings: bool,
}

impl Naming {
    /// The known spellings of a name.
    pub(super) fn spellings(&self, place: usize) -> &[Vec<u8>] {
        self.classes.get(&place).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Spellings that the remote will hold, by the table whose columns have them.
pub(super) type Spellings = BTreeMap<String, BTreeSet<Vec<u8>>>;

impl<'a> Download<'a, '_> {
    /// Names the partitions of all tables; before anything is sorted.
    pub(super) fn name_partitions(&mut self) -> Result<(), Error> {
        let plan = self.request.plan;
        for table in plan.tables.iter().filter(|table| table.table.direction != Direction::Upload) {
            let naming = match &table.table.partition {
                None => Naming { names: vec![Row::new()], ..Naming::default() },
                Some(partition) => {
                    let members =
                        self.members.get(partition.partition).map(|members| members.rows.clone()).unwrap_or_default();
                    self.name_partitions_of(table, members)?
                }
            };
            self.namings.insert(table.number, naming);
        }
        Ok(())
    }

    fn name_partitions_of(&mut self, table: &TablePlan, members: Vec<Row>) -> Result<Naming, Error> {
        if !self.connection.has_spelled_partitions(table)? {
            return Ok(Naming { names: members, ..Naming::default() });
        }
        let entries = self.request.watermarks.entries.iter().filter(|entry| entry.table == table.number);
        // What can't be read as a partition is none of the user's, and is left.
        let read = |bytes: &[u8]| read_row(&mut Reader::new(bytes), &table.partition_types, usize::MAX, None).ok();
        let held = entries.filter_map(|entry| read(&entry.partition));
        let all: Vec<Row> = members.iter().cloned().chain(held).collect();
        let first = self.connection.partition_classes(table, &all)?;
        let (mut places, mut naming) = (HashMap::new(), Naming { has_spellings: true, ..Naming::default() });
        for (row, first) in all.iter().zip(first) {
            // Members come first: the first of a class that has none is what the remote holds.
            let Some(name) = members.get(first) else { continue };
            let place = *places.entry(first).or_insert_with(|| {
                naming.names.push(name.clone());
                naming.names.len() - 1
            });
            naming.classes.entry(place).or_default().extend(table.partition_key(row));
        }
        Ok(naming)
    }

    /// The partitions that the remote is to hold of a table afterwards; for one that is not partitioned, the one without values.
    pub(super) fn wanted(&self, table: &TablePlan) -> Vec<Row> {
        self.namings.get(&table.number).map(|naming| naming.names.clone()).unwrap_or_default()
    }

    /// Whether partitions of a table may be spelled otherwise than their names.
    pub(super) fn is_spelled(&self, table: &TablePlan) -> bool {
        self.namings.get(&table.number).is_some_and(|naming| naming.has_spellings)
    }

    /// Sends the marks of the other spellings of partitions that come whole or are left, and remembers those that the remote will hold.
    pub(super) fn mark_spellings(&mut self, coming: &Coming<'a>) -> Result<(), Error> {
        let table = coming.table;
        if !self.is_spelled(table) {
            return Ok(());
        }
        let (whole, left) = (&coming.sorted.whole, &coming.sorted.left);
        let keys = |rows: &[Row]| rows.iter().filter_map(|row| travelling_key(table, row)).collect::<BTreeSet<_>>();
        // A remote that an older server told of no other spelling may hold rows of them.
        let rows = left
            .iter()
            .filter_map(|key| read_row(&mut Reader::new(key), &table.partition_types, usize::MAX, None).ok());
        let rows: Vec<Row> = rows.collect();
        for key in self.spellings_of(table, &rows)? {
            if !left.contains(&key) {
                self.mark(table, PartitionAction::Left, key)?;
            }
        }
        let mut spellings = self.spellings_of(table, whole)?;
        spellings.extend(coming.sorted.whole_spellings.iter().cloned());
        let named = keys(whole);
        for key in spellings.iter().filter(|key| !named.contains(*key)) {
            self.mark(table, PartitionAction::Whole, key.clone())?;
        }
        for changes in coming.changes(self.request) {
            let found = self.connection.spellings(&Reading::Changes(&changes))?;
            spellings.extend(keys(&found));
        }
        spellings.extend(coming.sorted.kept_spellings.iter().cloned());
        let root = table.lineage().root().name.clone();
        self.spellings.entry(root).or_default().extend(spellings);
        Ok(())
    }

    fn spellings_of(&mut self, table: &TablePlan, partitions: &[Row]) -> Result<BTreeSet<Vec<u8>>, Error> {
        if partitions.is_empty() {
            return Ok(BTreeSet::new());
        }
        let found = self.connection.spellings(&Reading::Whole(table, partitions_of(table, partitions)))?;
        Ok(found.iter().filter_map(|row| travelling_key(table, row)).collect())
    }

    /// Notes the spellings of all tables: where a parent's rows have a new one, so have those below them.
    pub(super) fn remember_spellings(&mut self) {
        let plan = self.request.plan;
        for table in &plan.tables {
            let Some(spellings) = self.spellings.get(&table.lineage().root().name) else { continue };
            let entries = self.seen.entries.iter().filter(|entry| entry.table == table.number);
            let known: BTreeSet<&[u8]> = entries.map(|entry| entry.partition.as_slice()).collect();
            if known.is_empty() {
                // It does not come down, or nothing of it is the user's.
                continue;
            }
            let new = spellings.iter().filter(|key| !known.contains(key.as_slice()));
            let new: Vec<_> =
                new.map(|key| WatermarkEntry { table: table.number, partition: key.clone(), mark: 0 }).collect();
            self.seen.entries.extend(new);
        }
    }
}

/// The key of a spelling; `None` where it can't travel, so that its rows don't come down either.
fn travelling_key(table: &TablePlan, row: &Row) -> Option<Vec<u8>> {
    table.partition_key(row).filter(|key| why_it_stays(row, key.len()).is_none())
}
