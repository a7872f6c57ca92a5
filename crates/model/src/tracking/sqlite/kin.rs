//! Notes of rows whose partition is that of the row that a foreign key refers to.

use super::{Names, Note, key_columns, kin_trigger_names, partition_columns, side_table, trigger};
use crate::sql::quote;
use crate::tracking::Kin;
use crate::{Lineage, Table};

fn named(table: &Table) -> String {
    quote(&table.name)
}

/// The triggers of a table from which others take their partition.
pub(super) fn triggers(kin: &Kin<'_>, names: &Names<'_>) -> [String; 2] {
    let [before_move, before_delete] = kin_trigger_names(&kin.lineage);
    let (old, new) = (Note::image("OLD", None), Note::image("NEW", None));
    let gone = [names.anywhere(&old), below(kin, &old, true)].concat();
    let moved = [gone.clone(), below(kin, &new, false)].concat();
    let when = format!("\nWHEN {}", names.differs("OLD", "NEW"));
    [
        trigger(&before_move, "BEFORE UPDATE", names, &when, &moved),
        trigger(&before_delete, "BEFORE DELETE", names, "", &gone),
    ]
}

/// Notes a row where its parent is.
pub(super) fn by_parent(names: &Names<'_>, note: &Note) -> String {
    let lineage = names.lineage;
    let partition = lineage.partition(0, note.row);
    let mut conditions: Vec<String> = partition.iter().map(|value| format!("{value} IS NOT NULL")).collect();
    conditions.extend(note.condition.clone());
    let values: Vec<String> = Names::of(&names.key, note.row).into_iter().chain(partition).collect();
    names.insert(&values, &(from(note) + &lineage.up(0, note.row, "JOIN", &named)), &conditions)
}

/// Notes a row wherever its parent was, if that is gone.
pub(super) fn by_gone_parent(names: &Names<'_>, note: &Note) -> String {
    let (side, partition, mut conditions) = gone_parent(names.lineage, 0, note.row);
    conditions.extend(note.condition.clone());
    let values: Vec<String> = Names::of(&names.key, note.row).into_iter().chain(partition).collect();
    names.insert(&values, &format!("{}, {side}", from(note)), &conditions)
}

/// The side rows of a parent that is gone, of `row` of a level: the side table as `o`, its partition's columns, conditions.
fn gone_parent(lineage: &Lineage<'_>, level: usize, row: &str) -> (String, Vec<String>, Vec<String>) {
    let Some(parent) = lineage.parents().get(level) else {
        return (String::new(), Vec::new(), vec!["false".to_owned()]);
    };
    let (mut noted, mut there) = (Vec::new(), Vec::new());
    for ((column, key), side) in lineage.link(level).into_iter().zip(key_columns(parent)) {
        noted.push(format!("o.{side} = {row}.{}", quote(&column.name)));
        there.push(format!("p.{} = {row}.{}", quote(&key.name), quote(&column.name)));
    }
    noted.push(format!("NOT EXISTS (SELECT 1 FROM {} p WHERE {})", named(parent), there.join(" AND ")));
    let mut of_parent = lineage.of_parent();
    for _ in 0..level {
        of_parent = of_parent.of_parent();
    }
    let partition = partition_columns(&of_parent).iter().map(|side| format!("o.{side}")).collect();
    (format!("{} o", side_table(&of_parent)), partition, noted)
}

/// Notes all rows below one, where that is. `is_past`: its parent may have gone before it.
pub(super) fn below(kin: &Kin<'_>, note: &Note, is_past: bool) -> Vec<String> {
    let mut statements = Vec::new();
    for lineage in &kin.below {
        let names = Names::new(lineage);
        let level = lineage.level_of(kin.table()).unwrap_or_default();
        let down = lineage.down(level, note.row, &named);
        let values = |partition: &[String]| -> Vec<String> {
            Names::of(&names.key, Lineage::OWN).into_iter().chain(partition.iter().cloned()).collect()
        };
        let here = lineage.partition(level, note.row);
        let mut conditions: Vec<String> = here.iter().map(|value| format!("{value} IS NOT NULL")).collect();
        conditions.extend(note.condition.clone());
        let joined = from(note) + &lineage.up(level, note.row, "JOIN", &named) + &down;
        statements.push(names.insert(&values(&here), &joined, &conditions));
        if is_past && !kin.lineage.parents().is_empty() {
            let (side, there, mut conditions) = gone_parent(lineage, level, note.row);
            conditions.extend(note.condition.clone());
            let joined = format!("{}{down}, {side}", from(note));
            statements.push(names.insert(&values(&there), &joined, &conditions));
        }
    }
    statements
}

/// Notes all rows below one that is replaced, unless it comes again as it was: what a cascade then deletes is found by its side row.
pub(super) fn below_replaced(kin: &Kin<'_>, names: &Names<'_>, note: &Note) -> Vec<String> {
    let goes = names.differs(note.row, "NEW");
    let condition = note.condition.as_ref().map_or(goes.clone(), |condition| format!("{condition} AND {goes}"));
    below(kin, &Note { condition: Some(condition), ..note.clone() }, true)
}

fn from(note: &Note) -> String {
    if note.from.is_empty() {
        "headwater_version v".to_owned()
    } else {
        format!("{} JOIN headwater_version v", note.from)
    }
}
