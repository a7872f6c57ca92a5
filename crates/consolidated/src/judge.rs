//! Judging one change against the stored row: pure, and the same for every database.
//!
//! | change | stored row | |
//! |---|---|---|
//! | insert | none | made |
//! | insert | the same as the new image | nothing to do, no conflict |
//! | insert | another | conflict with an empty old image |
//! | update | the same as the old image | made |
//! | update | the same as the new image | nothing to do, no conflict |
//! | update | another, or none | conflict |
//! | delete | none | nothing to do, no conflict |
//! | delete | the same as the old image | made |
//! | delete | another | conflict |
//!
//! Counters ([`headwater_model::Table::sum`]) come first: of an update, what it adds is added to the stored row. The new image has the total then, the
//! old one what is stored, so that a counter is never in conflict.
//!
//! A conflict ends by the table's rule. An update (or insert) and a deletion that meet: `consolidated_wins` keeps what is there,
//! `remote_wins` makes the remote's so, under `newer_wins` and `merge` the update survives.

use std::borrow::Cow;
use std::cmp::Ordering;

use headwater_model::{ConflictRule, Side, Table};
use headwater_protocol::counter::{Counted, count};
use headwater_protocol::message::{Change, ConflictEnd};
use headwater_protocol::stored::{Stored, number};
use headwater_protocol::{Row, Type, Value, text};

use crate::order::{compare_rows, compare_values};

/// What is to be done with a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What to do to the stored row.
    pub action: Action,
    /// How the conflict ended, if there was one that is to be recorded.
    pub conflict: Option<ConflictEnd>,
}

/// What to do to a stored row.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing.
    Keep,
    /// Insert this row, where none is stored.
    Insert(Row),
    /// Make the stored row like this one.
    Update(Row),
    /// Delete it.
    Delete,
    /// Refuse the change: the total of the counter at this place does not fit into its column.
    Refuse(usize),
}

/// The same with the table's counters, of which a change adds its difference to what is stored.
pub fn judge_counting(
    rule: ConflictRule,
    table: &Table,
    types: &[Type],
    change: &Change,
    stored: Option<&Row>,
) -> Judgement {
    let (Some(old), Some(new), Some(stored), false) = (&change.old, &change.new, stored, table.sum.is_empty()) else {
        return judge(rule, types, change, stored);
    };
    let (mut counted_old, mut counted_new, mut is_counters_alone) = (old.clone(), new.clone(), true);
    for (place, stored) in stored.iter().enumerate() {
        let (Some(old), Some(new)) = (counted_old.get_mut(place), counted_new.get_mut(place)) else { break };
        match table.counter(place).map(|limits| count(stored, old, new, limits)) {
            Some(Counted::Total(total)) => (*old, *new) = (stored.clone(), total),
            Some(Counted::Overflow) => return settled(Action::Refuse(place)),
            Some(Counted::NoNumber) | None => is_counters_alone &= old.same(new),
        }
    }
    let counted = Change { old: Some(counted_old), new: Some(counted_new) };
    let judgement = judge(rule, types, &counted, Some(stored));
    Judgement { conflict: judgement.conflict.filter(|_| !is_counters_alone), ..judgement }
}

/// Judges a change against the row that is stored under its key; `types` are those of the table's columns.
pub fn judge(rule: ConflictRule, types: &[Type], change: &Change, stored: Option<&Row>) -> Judgement {
    match (&change.old, &change.new, stored) {
        (_, None, None) | (None, None, Some(_)) => settled(Action::Keep),
        (None, Some(new), None) => settled(Action::Insert(new.clone())),
        (_, Some(new), Some(stored)) if same(new, stored) => settled(Action::Keep),
        (Some(old), Some(new), Some(stored)) if is_old(old, stored) => settled(Action::Update(new.clone())),
        (Some(old), None, Some(stored)) if is_old(old, stored) => settled(Action::Delete),
        (Some(_), Some(new), None) => update_of_deleted(rule, new),
        (Some(_), None, Some(_)) => delete_of_changed(rule),
        (old, Some(new), Some(stored)) => two_images(rule, types, old.as_ref(), new, stored),
    }
}

fn settled(action: Action) -> Judgement {
    Judgement { action, conflict: None }
}

fn ended(end: ConflictEnd, action: Action) -> Judgement {
    Judgement { action, conflict: Some(end) }
}

fn update_of_deleted(rule: ConflictRule, new: &Row) -> Judgement {
    let made = Action::Insert(new.clone());
    match rule {
        ConflictRule::Off => settled(made),
        ConflictRule::ConsolidatedWins => ended(ConflictEnd::Consolidated, Action::Keep),
        ConflictRule::RemoteWins | ConflictRule::NewerWins(_) | ConflictRule::Merge(_) => {
            ended(ConflictEnd::Remote, made)
        }
    }
}

fn delete_of_changed(rule: ConflictRule) -> Judgement {
    match rule {
        ConflictRule::Off => settled(Action::Delete),
        ConflictRule::RemoteWins => ended(ConflictEnd::Remote, Action::Delete),
        ConflictRule::ConsolidatedWins | ConflictRule::NewerWins(_) | ConflictRule::Merge(_) => {
            ended(ConflictEnd::Consolidated, Action::Keep)
        }
    }
}

fn two_images(rule: ConflictRule, types: &[Type], old: Option<&Row>, new: &Row, stored: &Row) -> Judgement {
    let remote = || Action::Update(new.clone());
    match rule {
        ConflictRule::Off => settled(remote()),
        ConflictRule::ConsolidatedWins => ended(ConflictEnd::Consolidated, Action::Keep),
        ConflictRule::RemoteWins => ended(ConflictEnd::Remote, remote()),
        ConflictRule::NewerWins(column) => {
            let by_column = match (new.get(column), stored.get(column)) {
                (Some(new), Some(stored)) => {
                    let kind = types.get(column).copied();
                    compare_values(&typed(new, kind), &typed(stored, kind))
                }
                _ => Ordering::Equal,
            };
            match by_column.then_with(|| compare_rows_typed(new, stored, types)) {
                Ordering::Greater => ended(ConflictEnd::Remote, remote()),
                _ => ended(ConflictEnd::Consolidated, Action::Keep),
            }
        }
        ConflictRule::Merge(side) => {
            let merged = merge(side, old, new, stored);
            if same(&merged, stored) {
                ended(ConflictEnd::Consolidated, Action::Keep)
            } else if same(&merged, new) {
                ended(ConflictEnd::Remote, remote())
            } else {
                ended(ConflictEnd::Merged, Action::Update(merged))
            }
        }
    }
}

/// Compares two rows by what their columns take the values for, and then by what they are.
fn compare_rows_typed(one: &Row, other: &Row, types: &[Type]) -> Ordering {
    let kinds = types.iter().copied().map(Some).chain(std::iter::repeat(None));
    let mut pairs = one.iter().zip(other).zip(kinds);
    let by_type = pairs.find_map(|((one, other), kind)| {
        Some(compare_values(&typed(one, kind), &typed(other, kind))).filter(|order| order.is_ne())
    });
    by_type.unwrap_or_else(|| compare_rows(one, other))
}

/// SQLite keeps what an application spelled in its own way (`2026-01-31T05:00Z`) as text: a time is to be compared as one. Of a text that
/// looks like a number (seconds since 1970, as `strftime` gives them) a column of dates or times makes that number.
fn typed(value: &Value, kind: Option<Type>) -> Cow<'_, Value> {
    let (Value::Text(spelled), Some(kind)) = (value, kind) else { return Cow::Borrowed(value) };
    let has_numbers = matches!(kind, Type::Date | Type::Time | Type::Timestamp | Type::Timestamptz | Type::Uuid);
    let number = has_numbers.then(|| number(spelled)).flatten().and_then(|number| match number {
        Stored::Integer(number) => Some(Value::Int(number)),
        Stored::Real(real) => Some(Value::Real(real)),
        _ => None,
    });
    number.or_else(|| text::coerce(value, kind)).map_or(Cow::Borrowed(value), Cow::Owned)
}

/// Column by column: one changed on one side only is taken from it; changed on both, from `side`. Without an old image every column
/// counts as changed on both.
fn merge(side: Side, old: Option<&Row>, new: &Row, stored: &Row) -> Row {
    let choose = |place: usize, new: &Value, stored: &Value| {
        let old = old.and_then(|old| old.get(place));
        let remote_changed = old.is_none_or(|old| !old.same(new));
        let consolidated_changed = old.is_none_or(|old| !is_old_value(old, stored));
        match (remote_changed, consolidated_changed) {
            (true, false) => new.clone(),
            (true, true) if side == Side::Remote => new.clone(),
            _ => stored.clone(),
        }
    };
    new.iter().zip(stored).enumerate().map(|(place, (new, stored))| choose(place, new, stored)).collect()
}

/// Whether two images are the same row.
pub fn same(one: &Row, other: &Row) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.same(other))
}

/// Whether a stored row is the one that the remote had.
fn is_old(old: &Row, stored: &Row) -> bool {
    old.len() == stored.len() && old.iter().zip(stored).all(|(old, stored)| is_old_value(old, stored))
}

/// Remotes that older versions made have text affinity where the database may hold a number (an epoch in a DATETIME column): the file
/// made a text of what came down.
fn is_old_value(old: &Value, stored: &Value) -> bool {
    let spelled = |text: &[u8]| match stored {
        Value::Int(number) => text == number.to_string().as_bytes(),
        Value::Real(real) => {
            let number = |text: &str| text.parse::<f64>().ok().map(f64::to_bits);
            let kept = std::str::from_utf8(text).ok().and_then(number);
            // SQLite's own conversion has fifteen digits, a later one seventeen.
            kept.is_some() && [format!("{real:.14e}"), format!("{real:.16e}")].iter().any(|text| number(text) == kept)
        }
        _ => false,
    };
    old.same(stored) || matches!(old, Value::Text(text) if spelled(text))
}

#[cfg(test)]
mod counters;
#[cfg(test)]
mod tests;
