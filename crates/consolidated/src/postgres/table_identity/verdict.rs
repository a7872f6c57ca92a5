//! Which differences between two states of a table mean that its rows may be others than its side table tells.
//!
//! | fact | differs | |
//! |---|---|---|
//! | `table` | its number | afresh: another table has its name |
//! | `column NAME` | place or type, or it is gone | afresh, if the model has the column |
//! | `touched NAME` | the column's `xmin` | afresh, if a file of the table changed too: its values were converted; or if all of the model's columns differ, and their rights don't: another table was above it and is gone again |
//! | `rights NAME` | the privileges on the column | harmless |
//! | `composite TYPE NAME` | the attributes of a composite type of which the column's values consist | afresh: each value reads otherwise |
//! | `label NUMBER NAME` | the label of an enum's value | afresh |
//! | `trigger TABLE NAME`, `function` | their `xmin`, or one is gone | afresh: they may have been off |
//! | `part TABLE` | the `xmin` of its link | afresh: it was away |
//! | `parent TABLE OTHER` | the `xmin` of its link to a table that is not below the tracked one | afresh: until then it came whole at each sync |
//! | `persistence TABLE` | | afresh: a crash empties an unlogged table |
//! | `security ROLE` | row security, its policies, and those for a role that the server's role is a member of | afresh: other rows are visible |
//! | `file TABLE` | | harmless alone: VACUUM FULL; TRUNCATE is noted by its trigger |
//!
//! What is new (a column, a part, a label, a type) is harmless: parts are adopted, and nobody holds the rest.

use std::collections::BTreeMap;

/// Facts by name.
pub(super) type State = BTreeMap<String, String>;

/// Of a state as the catalogue has it, what is to be on record: columns are those of the model, and of other versions of it that are on
/// record already. Facts of another server's role, and columns of another version that may come back, stay on record.
pub(super) fn to_record(mut now: State, before: Option<&State>, columns: &[&str]) -> State {
    let is_known = |column: &str| before.is_some_and(|before| before.contains_key(&format!("column {column}")));
    now.retain(|name, _| column_of(name).1.is_none_or(|column| columns.contains(&column) || is_known(column)));
    for (name, value) in before.into_iter().flatten() {
        let (kind, column) = column_of(name);
        let is_of_others = kind == "security" || column.is_some_and(|column| !columns.contains(&column));
        if is_of_others && !now.contains_key(name) {
            now.insert(name.clone(), value.clone());
        }
    }
    now
}

/// Whether a table has to come afresh, and why; and what is to be on record from now on. `columns`: those of the model.
pub(super) fn judge(before: &State, now: State, columns: &[&str]) -> (Option<String>, State) {
    let now = to_record(now, Some(before), columns);
    let is_moved = |(name, value): (&String, &String)| {
        name.starts_with("file ") && now.get(name).is_some_and(|file| file != value)
    };
    let is_rewritten = before.iter().any(is_moved);
    let cause = before.iter().find_map(|fact| cause(fact, &now, columns, is_rewritten));
    (cause.or_else(|| cause_of_visit(before, &now, columns)), now)
}

/// To become a partition of another table touches each column, and so does to be detached from it. Between the two, statements on that table
/// went by without a note.
fn cause_of_visit(before: &State, now: &State, columns: &[&str]) -> Option<String> {
    let is_touched = |column: &&str| {
        let of = |state: &State, kind: &str| state.get(&format!("{kind} {column}")).cloned();
        let is_granted = of(before, "rights") != of(now, "rights");
        !is_granted && of(before, "touched").zip(of(now, "touched")).is_some_and(|(before, now)| before != now)
    };
    let has_parent = now.keys().any(|name| column_of(name).0 == "parent");
    (!has_parent && columns.iter().all(is_touched))
        .then(|| "each column was altered at once, as where it was a partition of another table for a time".to_owned())
}

/// The kind of a fact, and the column that it is about.
fn column_of(name: &str) -> (&str, Option<&str>) {
    match name.split_once(' ') {
        Some((kind @ ("column" | "touched" | "rights"), column)) => (kind, Some(column)),
        Some((kind @ ("label" | "composite"), rest)) => (kind, rest.split_once(' ').map(|(_, column)| column)),
        Some((kind, _)) => (kind, None),
        None => (name, None),
    }
}

fn cause((name, before): (&String, &String), now: &State, columns: &[&str], is_rewritten: bool) -> Option<String> {
    let value = now.get(name);
    if value == Some(before) {
        return None;
    }
    let (kind, column) = column_of(name);
    let of = |column: Option<&str>| column.unwrap_or_default().to_owned();
    // One that the model does not have, and that is gone, is on record for versions that do.
    let is_gone = value.is_none() && column.is_some_and(|column| !columns.contains(&column));
    match kind {
        "table" => Some("another table has its name now".to_owned()),
        "column" if !is_gone => Some(format!("column {} was exchanged, dropped or given another type", of(column))),
        "touched" if value.is_some() && is_rewritten => Some(format!("column {} was rewritten", of(column))),
        "composite" if !is_gone => Some(format!("a composite type of column {} was altered", of(column))),
        "label" if !is_gone => Some(format!("a value of the enum of column {} was renamed", of(column))),
        "trigger" if is_there(name, now) => {
            Some("triggers of change tracking were switched off or made again".to_owned())
        }
        "function" => Some("the function of change tracking was replaced".to_owned()),
        "part" if value.is_some() => Some("a part was detached and attached again".to_owned()),
        "parent" => Some("statements on a table above it, which are not noted, changed it".to_owned()),
        "persistence" if value.is_some() => Some("it was made logged or unlogged".to_owned()),
        "security" if value.is_some() => Some("row security or its policies changed".to_owned()),
        _ => None,
    }
}

/// Whether the table that a trigger is on is still the tracked one, or a part of it.
fn is_there(trigger: &str, now: &State) -> bool {
    trigger.split(' ').nth(1).is_some_and(|table| now.contains_key(&format!("file {table}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &[(&str, &str)] = &[
        ("table", "100"),
        ("file 100", "100"),
        ("file 101", "101"),
        ("part 101", "100:7"),
        ("persistence 100", "p"),
        ("column a", "1 20"),
        ("touched a", "7"),
        ("column b c", "2 500"),
        ("touched b c", "7"),
        ("label 501 b c", "red"),
        ("composite 600 b c", "1:23 2:25"),
        ("column other", "3 20"),
        ("touched other", "7"),
        ("trigger 100 headwater_insert", "200:7"),
        ("trigger 101 headwater_insert_of_t", "201:7"),
        ("function", "300:7"),
        ("security server", "f"),
    ];

    fn state(facts: &[(&str, &str)]) -> State {
        facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Changes of [`BEFORE`]; an empty value takes the fact away.
    fn is_afresh(changes: &[(&str, &str)]) -> bool {
        let mut now = state(BEFORE);
        for (name, value) in changes {
            if value.is_empty() {
                now.remove(*name)
            } else {
                now.insert((*name).to_owned(), (*value).to_owned())
            };
        }
        let (cause, kept) = judge(&state(BEFORE), now.clone(), &["a", "b c"]);
        assert_eq!(judge(&kept, now, &["a", "b c"]).0, None, "judged once");
        cause.is_some()
    }

    #[test]
    fn what_may_have_changed_rows_unseen_is_told_from_the_rest() {
        for changes in [
            &[("table", "900")][..],
            &[("column a", "4 20")],
            &[("column a", "1 26")],
            &[("column a", ""), ("touched a", "")],
            &[("column b c", "1 20"), ("column a", "2 500")],
            &[("touched a", "9"), ("file 101", "109")],
            &[("label 501 b c", "green")],
            &[("composite 600 b c", "1:23")],
            &[("composite 600 b c", "1:23 2:25 3:25")],
            &[("composite 600 b c", "")],
            &[("trigger 100 headwater_insert", "200:9")],
            &[("trigger 101 headwater_insert_of_t", "")],
            &[("function", "300:9")],
            &[("part 101", "100:9")],
            &[("persistence 100", "u")],
            &[("security server", "t 1:7")],
            &[("column other", "5 20")],
            &[("touched a", "9"), ("touched b c", "9")],
        ] {
            assert!(is_afresh(changes), "{changes:?}");
        }
        for changes in [
            &[][..],
            &[("file 100", "109"), ("file 101", "110")],
            &[("touched a", "9")],
            &[("column new", "4 20"), ("touched new", "9"), ("file 100", "109")],
            &[("label 502 b c", "blue")],
            &[("composite 601 b c", "1:23")],
            &[("column other", ""), ("touched other", "")],
            &[("file 101", ""), ("part 101", ""), ("trigger 101 headwater_insert_of_t", "")],
            &[("file 102", "102"), ("part 102", "100:9"), ("trigger 102 headwater_insert_of_t", "202:9")],
            &[("security another", "t 1:7")],
            &[("touched a", "9"), ("touched b c", "9"), ("parent 100 50", "9")],
            &[("touched a", "9"), ("touched other", "9")],
            &[("touched a", "9"), ("touched b c", "9"), ("rights a", "{server=r/app}")],
        ] {
            assert!(!is_afresh(changes), "{changes:?}");
        }
    }

    #[test]
    fn a_table_that_was_below_another_comes_once_more() {
        let mut below = state(BEFORE);
        below.insert("parent 100 50".to_owned(), "9".to_owned());
        let (cause, kept) = judge(&state(BEFORE), below.clone(), &["a", "b c"]);
        assert_eq!((cause, &kept), (None, &below));
        assert!(judge(&kept, state(BEFORE), &["a", "b c"]).0.is_some());
        below.insert("parent 100 50".to_owned(), "11".to_owned());
        assert!(judge(&kept, below, &["a", "b c"]).0.is_some(), "away and back");
    }

    #[test]
    fn columns_of_no_model_are_not_on_record() {
        let mut now = state(BEFORE);
        now.insert("column free".to_owned(), "9 25".to_owned());
        assert!(!judge(&state(BEFORE), now.clone(), &["a", "b c"]).1.contains_key("column free"));
        assert_eq!(to_record(now, None, &["a"]).keys().filter(|name| name.starts_with("column")).count(), 1);
    }

    #[test]
    fn a_column_of_another_version_that_comes_back_is_another_one() {
        let mut without = state(BEFORE);
        without.retain(|name, _| !name.ends_with("other"));
        let (cause, kept) = judge(&state(BEFORE), without.clone(), &["a", "b c"]);
        assert_eq!(cause, None);
        without.insert("column other".to_owned(), "4 20".to_owned());
        assert!(judge(&kept, without, &["a", "other"]).0.is_some());
    }
}
