//! The first of two steps for rows that stand in one another's way: the row as it is to be, with values that can't collide in its
//! unique columns and no values in the columns by which it refers to others.
//!
//! Rows that swap unique values, move them along a chain, or refer to one another in a circle can be written so, and in no other
//! order. Where a value can't be made up (a date, say, in a column that may not be NULL) the column is written as it is to be; then
//! the second attempt fails like the first and the row is refused.
//!
//! *Caveats.* Only constraints that the model names are seen. The database's own triggers see both steps.

use std::hash::{BuildHasher, RandomState};

use headwater_protocol::{Row, Type, Value};

use crate::TablePlan;

/// The row of the first step.
pub(super) fn park(table: &TablePlan, row: &Row) -> Row {
    let mut parked = row.clone();
    let fixed = |place: &usize| {
        let partition = table.table.partition.iter().flat_map(|partition| &partition.columns);
        table.table.key.contains(place) || partition.into_iter().any(|fixed| fixed == place)
    };
    for place in table.table.references.iter().flat_map(|reference| &reference.columns).filter(|place| !fixed(place)) {
        if table.table.columns.get(*place).is_some_and(|column| column.nullable) {
            parked[*place] = Value::Null;
        }
    }
    for place in table.table.unique.iter().flatten().filter(|place| !fixed(place)) {
        if let Some(column) = table.table.columns.get(*place) {
            let free = if column.nullable { Some(Value::Null) } else { made_up(column.kind.base) };
            if let Some(free) = free {
                parked[*place] = free;
            }
        }
    }
    parked
}

/// A value that no other row has, as far as chance goes.
fn made_up(kind: Type) -> Option<Value> {
    let random = RandomState::new().hash_one(0u8);
    Some(match kind {
        // Fits into 32 bits; negative, since most numbers in use are not.
        Type::Int => Value::Int(-i64::from(random as u32 >> 1) - 1),
        Type::Text => Value::text(format!("~{random:016x}")),
        Type::Bytes => Value::Bytes(random.to_le_bytes().to_vec()),
        Type::Uuid => Value::Uuid(*uuid::Uuid::new_v4().as_bytes()),
        _ => return None,
    })
}
