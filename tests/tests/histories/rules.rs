//! What docs/conflicts.md says of each rule, written down once more and without a look at the code that judges: what a row is after a
//! remote's change of it, from the row that is stored, the row on which the change was made, and the row that it made.

use std::cmp::Ordering;

/// A value: what a database's own client shows of it.
pub(crate) type Cell = Option<String>;
/// A row; `None`: there is none.
pub(crate) type Image = Option<Vec<Cell>>;

/// A table's rule. Places are those of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Off,
    ConsolidatedWins,
    RemoteWins,
    NewerWins(usize),
    MergeConsolidated,
    MergeRemote,
}

/// Which columns are integers: they are compared as such.
pub(crate) type Integers<'a> = &'a [bool];

/// The row after the change.
pub(crate) fn judge(rule: Rule, stored: &Image, old: &Image, new: &Image, integers: Integers<'_>) -> Image {
    if rule == Rule::Off || stored == old {
        return new.clone();
    }
    if stored == new {
        return stored.clone();
    }
    match (rule, stored, new) {
        // Update against delete: the row survives, unless the rule names a side.
        (Rule::ConsolidatedWins, ..) | (Rule::NewerWins(_) | Rule::MergeConsolidated | Rule::MergeRemote, _, None) => {
            stored.clone()
        }
        (Rule::RemoteWins | Rule::Off, ..) | (_, None, _) => new.clone(),
        (Rule::NewerWins(place), Some(theirs), Some(ours)) => {
            let by_column = compare(&ours[place], &theirs[place], integers[place]);
            let by_row = || {
                let columns = ours.iter().zip(theirs).zip(integers);
                columns.map(|((ours, theirs), is)| compare(ours, theirs, *is)).find(|order| order.is_ne())
            };
            let order = if by_column.is_ne() { by_column } else { by_row().unwrap_or(Ordering::Equal) };
            if order.is_gt() { new.clone() } else { stored.clone() }
        }
        (Rule::MergeConsolidated | Rule::MergeRemote, Some(theirs), Some(ours)) => {
            let column = |place: usize| {
                let before = old.as_ref().map(|old| &old[place]);
                if before == Some(&ours[place]) || (before != Some(&theirs[place]) && rule == Rule::MergeConsolidated) {
                    theirs[place].clone()
                } else {
                    ours[place].clone()
                }
            };
            Some((0..ours.len()).map(column).collect())
        }
    }
}

/// NULL is smaller than any value.
fn compare(one: &Cell, other: &Cell, is_integer: bool) -> Ordering {
    let number = |cell: &Cell| cell.as_ref().and_then(|text| text.parse::<i64>().ok());
    if is_integer { number(one).cmp(&number(other)) } else { one.cmp(other) }
}

#[test]
fn the_model_says_what_the_page_says() {
    let row = |cells: [&str; 3]| Some(cells.map(|cell| Some(cell.to_owned())).to_vec());
    let integers = [false, true, false];
    let (old, theirs, ours) = (row(["k", "1", "a"]), row(["k", "9", "a"]), row(["k", "10", "b"]));
    let end = |rule| judge(rule, &theirs, &old, &ours, &integers);
    assert_eq!(end(Rule::Off), ours);
    assert_eq!(end(Rule::ConsolidatedWins), theirs);
    assert_eq!(end(Rule::RemoteWins), ours);
    assert_eq!(end(Rule::NewerWins(1)), ours, "10 is more than 9");
    assert_eq!(end(Rule::MergeConsolidated), row(["k", "9", "b"]));
    assert_eq!(end(Rule::MergeRemote), row(["k", "10", "b"]));
    assert_eq!(judge(Rule::ConsolidatedWins, &None, &old, &ours, &integers), None);
    assert_eq!(judge(Rule::MergeRemote, &None, &old, &ours, &integers), ours);
    assert_eq!(judge(Rule::NewerWins(1), &theirs, &old, &None, &integers), theirs);
    assert_eq!(judge(Rule::RemoteWins, &theirs, &old, &None, &integers), None);
}
