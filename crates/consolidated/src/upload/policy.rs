//! What an upload's user may change: decided on the server's own knowledge, before any conflict is judged.

use std::collections::HashSet;

use headwater_model::Direction;
use headwater_protocol::Row;
use headwater_protocol::message::{Refusal, RefusalCode};

use super::source::Item;
use crate::scripts::Actor;
use crate::standing::Standing;
use crate::{Connection, Error, Plan, TablePlan, memberships};

/// The partitions that a user's remote may write to.
#[derive(Debug)]
pub(super) struct Policy {
    /// By place in the model's partitions: the keys of the user's.
    members: Vec<HashSet<Vec<u8>>>,
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
        let mut members = Vec::new();
        for partition in &plan.model.partitions {
            let types: Vec<_> = partition.columns.iter().map(|(_, kind)| kind.base).collect();
            let rows = memberships::query(connection, partition, user, remote_id)?;
            members.push(rows.iter().map(|row| encoded(&types, row)).collect());
        }
        Ok(Policy { members, actor: Actor { user: user.to_owned(), remote_id: *remote_id } })
    }

    /// Whether a table's partition of these bytes is one of the user's.
    pub(super) fn is_member(&self, table: &TablePlan, partition: &[u8]) -> bool {
        let place = table.table.partition.as_ref().map(|partition| partition.partition);
        place.and_then(|place| self.members.get(place)).is_some_and(|members| members.contains(partition))
    }

    /// Whether rows that stand there lie in one of the user's partitions.
    pub(super) fn holds(&self, table: &TablePlan, standing: &Standing) -> bool {
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
            let message = "the key is spelled otherwise than the database spells it; docs/types.md has the forms";
            return Some(refusal(RefusalCode::Data, message.to_owned()));
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
