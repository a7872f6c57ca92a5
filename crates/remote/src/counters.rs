//! Counters of a table ([`headwater_model::Table::sum`]): of a pending change they are the difference that it makes.
//!
//! What comes down beside a pending change is counted on from: the row has what came and the difference, and the old image has what came.
//! So the row shows what the consolidated database will have, and the change still adds what it added.
//!
//! | | old image | row |
//! |---|---|---|
//! | the application took 1 of 10 | 10 | 9 |
//! | 7 comes down | 7 | 6 |
//! | the upload adds 6 - 7 to what the database has by then | | |
//!
//! An upload whose receipt can't be had was applied, as far as anybody knows: what it added is not added again, unless the user asks for
//! it by `remote retry`.

use headwater_protocol::counter::{Counted, adds, count};

use crate::local::{Local, from_wire, to_wire};
use crate::plan::TablePlan;
use crate::rows::Pending;

/// What the counter at a place of a row comes to where `came` has come down beside a change from `old` to `new`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Total {
    /// Came, and the difference.
    Is(Local),
    /// There is no counter, or one of the values is no number: the column goes by the conflict rule.
    Uncounted,
    /// It does not fit into the column.
    TooLarge,
}

/// The total of the column at a place.
pub(crate) fn total(table: &TablePlan, place: usize, came: &Local, (old, new): (&Local, &Local)) -> Total {
    let (Some(limits), Some(kind)) = (table.table.counter(place), table.types.get(place)) else {
        return Total::Uncounted;
    };
    let values = to_wire(&[came.clone(), old.clone(), new.clone()], &[*kind; 3]);
    let [came, old, new] = &values[..] else { return Total::Uncounted };
    match count(came, old, new, limits) {
        Counted::Total(total) => from_wire(&[total]).pop().map_or(Total::Uncounted, Total::Is),
        Counted::NoNumber => Total::Uncounted,
        Counted::Overflow => Total::TooLarge,
    }
}

/// Whether a change adds something to a counter.
pub(crate) fn has_added(table: &TablePlan, pending: &Pending) -> bool {
    let (Some(old), Some(new), false) = (&pending.old, &pending.new, table.table.sum.is_empty()) else { return false };
    let (old, new) = (to_wire(old, &table.types), to_wire(new, &table.types));
    table.table.sum.iter().any(|place| match (old.get(*place), new.get(*place), table.table.counter(*place)) {
        (Some(old), Some(new), Some(limits)) => adds(old, new, limits),
        _ => false,
    })
}

/// An old image by which a change adds nothing to any counter: the values are those of `new`.
pub(crate) fn without_difference(table: &TablePlan, old: &[Local], new: &[Local]) -> Vec<Local> {
    let value = |(place, (old, new)): (usize, (&Local, &Local))| {
        if table.table.sum.contains(&place) { new.clone() } else { old.clone() }
    };
    old.iter().zip(new).enumerate().map(value).collect()
}

/// A change that is made again where `there` stands: its images with the counters as they are there, and what it adds.
pub(crate) fn made_again(table: &TablePlan, old: &[Local], new: &[Local], there: &[Local]) -> (Vec<Local>, Vec<Local>) {
    let (mut from, mut to) = (old.to_vec(), new.to_vec());
    for place in &table.table.sum {
        let (Some(old), Some(new), Some(there)) = (old.get(*place), new.get(*place), there.get(*place)) else {
            continue;
        };
        if let (Total::Is(total), Some(from), Some(to)) =
            (total(table, *place, there, (old, new)), from.get_mut(*place), to.get_mut(*place))
        {
            (*from, *to) = (there.clone(), total);
        }
    }
    (from, to)
}
