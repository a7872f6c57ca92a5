//! What an upload's user may change: decided on the server's own knowledge, before any conflict is judged.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use headwater_model::Direction;
use headwater_protocol::Row;
use headwater_protocol::message::{PARTITION_KEY_BYTES_MAX, Refusal, RefusalCode};

use super::source::Item;
use crate::scripts::Actor;
use crate::standing::{self, Standing};
use crate::{Connection, Error, Plan, TablePlan, memberships};

/// The partitions that a user's remote may write to.
///
/// A partition is one of them if the database calls it equal to one, whatever its bytes are ([`Policy::learn`]).
#[derive(Debug)]
pub(super) struct Policy {
    /// By place in the model's partitions: the user's.
    rows: Vec<Vec<Row>>,
    /// The same by their keys.
    members: Vec<HashSet<Vec<u8>>>,
    /// By table and key, whether other spellings are equal to one of them.
    spellings: RefCell<HashMap<(u32, Vec<u8>), bool>>,
    /// Whose upload it is.
    pub(super) actor: Actor,
}

impl Policy {
    /// Reads the memberships inside the upload's transaction.
    pub(super) fn read(
        connection: &mut dyn Connection,
        plan: &Plan,
        user: &str,
        remote_id: &[u8; 16],
    ) -> Result<Policy, Error> {
        let (mut members, mut all) = (Vec::new(), Vec::new());
        for partition in &plan.model.partitions {
            let types: Vec<_> = partition.columns.iter().map(|(_, kind)| kind.base).collect();
            let rows = memberships::query(connection, partition, user, remote_id)?.rows;
            members.push(rows.iter().map(|row| encoded(&types, row)).collect());
            all.push(rows);
        }
        let spellings = RefCell::default();
        Ok(Policy { rows: all, members, spellings, actor: Actor { user: user.to_owned(), remote_id: *remote_id } })
    }

    /// Whether a table's partition of these bytes is one of the user's. A spelling that is too large to travel is none.
    pub(super) fn is_member(&self, table: &TablePlan, partition: &[u8]) -> bool {
        self.is_named(table, partition)
            || partition.len() <= PARTITION_KEY_BYTES_MAX
                && self.spellings.borrow().get(&(table.number, partition.to_vec())).copied().unwrap_or(false)
    }

    /// The same by its bytes.
    fn is_named(&self, table: &TablePlan, partition: &[u8]) -> bool {
        let place = table.table.partition.as_ref().map(|partition| partition.partition);
        place.and_then(|place| self.members.get(place)).is_some_and(|members| members.contains(partition))
    }

    /// Asks the database, in one statement, which of these partitions it calls equal to one of the user's; before they are judged.
    pub(super) fn learn(
        &self,
        connection: &mut dyn Connection,
        table: &TablePlan,
        partitions: &HashSet<Vec<u8>>,
    ) -> Result<(), Error> {
        let new: HashSet<&[u8]> =
            partitions.iter().map(Vec::as_slice).filter(|key| !self.is_known(table, key)).collect();
        let place = table.table.partition.as_ref().map(|partition| partition.partition);
        let Some(members) = place.and_then(|place| self.rows.get(place)) else { return Ok(()) };
        let equal = standing::equal_to_some(connection, table, &new, members)?;
        let mut spellings = self.spellings.borrow_mut();
        spellings.extend(new.iter().map(|key| ((table.number, key.to_vec()), false)));
        spellings.extend(equal.into_iter().map(|key| ((table.number, key), true)));
        Ok(())
    }

    /// [`Policy::learn`] of the partitions that the new rows of changes name themselves. A value that the column can't hold is equal to
    /// none of the user's.
    pub(super) fn learn_of_items(
        &self,
        connection: &mut dyn Connection,
        plan: &Plan,
        items: &[Item],
    ) -> Result<(), Error> {
        for run in items.chunk_by(|one, other| one.table == other.table) {
            let Some(table) = run.first().and_then(|item| plan.tables.get(item.table)) else { continue };
            let rows = run.iter().filter_map(|item| item.change.new.as_ref());
            let named: HashSet<Vec<u8>> = rows.filter_map(|row| table.partition_of(row)).collect();
            let new: Vec<Vec<u8>> = named.into_iter().filter(|key| !self.is_known(table, key)).collect();
            if new.is_empty() || table.table.partition.is_none() || !connection.has_spelled_partitions(table)? {
                continue;
            }
            connection.savepoint()?;
            if !self.has_learnt(connection, table, &new.iter().cloned().collect())? {
                for key in new {
                    if !self.has_learnt(connection, table, &HashSet::from([key.clone()]))? {
                        self.spellings.borrow_mut().insert((table.number, key), false);
                    }
                }
            }
            connection.release_savepoint()?;
        }
        Ok(())
    }

    /// `false`: the database refuses one of them.
    fn has_learnt(
        &self,
        connection: &mut dyn Connection,
        table: &TablePlan,
        partitions: &HashSet<Vec<u8>>,
    ) -> Result<bool, Error> {
        match self.learn(connection, table, partitions) {
            Err(Error::Refused { .. }) => connection.rollback_to_savepoint().map(|()| false),
            learnt => learnt.map(|()| true),
        }
    }

    fn is_known(&self, table: &TablePlan, partition: &[u8]) -> bool {
        self.is_named(table, partition) || self.spellings.borrow().contains_key(&(table.number, partition.to_vec()))
    }

    /// Whether rows that stand there lie in one of the user's partitions, each.
    pub(super) fn hold(
        &self,
        connection: &mut dyn Connection,
        table: &TablePlan,
        standings: &[Standing],
    ) -> Result<Vec<bool>, Error> {
        let key = |standing: &Standing| match standing {
            Standing::In(key) => Some(key.clone()),
            Standing::Nowhere | Standing::Orphan => None,
        };
        self.learn(connection, table, &standings.iter().filter_map(key).collect())?;
        Ok(standings.iter().map(|standing| self.holds(table, standing)).collect())
    }

    /// Whether rows that stand there lie in one of the user's partitions.
    fn holds(&self, table: &TablePlan, standing: &Standing) -> bool {
        match standing {
            _ if table.table.partition.is_none() => true,
            Standing::In(key) => self.is_member(table, key),
            Standing::Nowhere | Standing::Orphan => false,
        }
    }

    /// Why a change may not be made, whatever is stored; `None` if it may.
    pub(super) fn refusal(&self, table: &TablePlan, item: &Item) -> Option<Refusal> {
        let name = &table.table.name;
        if table.table.direction == Direction::Download {
            return Some(refusal(RefusalCode::Direction, format!("changes of table {name} are not uploaded")));
        }
        let key = table.key_of(item.change.image());
        if let Some((column, _)) = table.table.key_columns().zip(&key).find(|(_, value)| value.is_null()) {
            return Some(refusal(RefusalCode::NotNull, format!("key column {} is NULL", column.name)));
        }
        if item.is_key_respelled {
            let form = crate::images::key_image(table, &key);
            let message = format!("the key is spelled otherwise than the database spells it: write it as {form}");
            return Some(refusal(RefusalCode::Data, message));
        }
        if let (Some(old), Some(new)) = (&item.change.old, &item.change.new)
            && crate::keys::key_bytes_of(table, old) != crate::keys::key_bytes_of(table, new)
        {
            return Some(refusal(RefusalCode::Data, "an update can't change the key".to_owned()));
        }
        item.change.new.as_ref().filter(|new| self.is_surely_outside(table, new)).map(|_| outside(table))
    }

    /// Whether a row is in none of the user's partitions whatever it refers to.
    fn is_surely_outside(&self, table: &TablePlan, row: &Row) -> bool {
        if table.parents.is_empty() {
            let standing = table.partition_of(row).map_or(Standing::Nowhere, Standing::In);
            return !self.holds(table, &standing);
        }
        table.parent_key(row).is_none()
    }
}

/// The refusal of a row outside the user's partitions: the same whether the stored row or the new image lies there, and whether there
/// is a stored row at all.
pub(super) fn outside(table: &TablePlan) -> Refusal {
    refusal(RefusalCode::Partition, format!("the row of table {} is not in a partition of yours", table.table.name))
}

/// The refusal of a row that refers to one outside the user's partitions: the same whether that is there or not.
pub(super) fn outside_parent(table: &TablePlan) -> Refusal {
    let (own, parent) = (&table.table.name, table.parents.first().map_or("", |parent| parent.name.as_str()));
    let message = format!(
        "the row of table {own} refers to a row of table {parent} that is not there or in no partition of yours"
    );
    refusal(RefusalCode::ForeignKey, message)
}

pub(super) fn refusal(code: RefusalCode, message: String) -> Refusal {
    Refusal { code, message }
}

fn encoded(types: &[headwater_protocol::Type], row: &Row) -> Vec<u8> {
    let mut key = Vec::new();
    headwater_protocol::row::put_row(&mut key, types, row);
    key
}
