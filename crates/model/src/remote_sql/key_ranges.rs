//! Tables whose keys come in ranges: the view of the next keys, and the triggers that hold inserts to the ranges.
//!
//! `next` of a range is the first key that was not used yet and that no row has. Whatever a program inserts moves it on by triggers. Rows
//! that come otherwise move it on at the end of a download and when the file is opened or synced ([`pass_taken_keys`]): those of others,
//! those that were written while there were no triggers.
//!
//! The view itself can't look at the rows: `ALTER TABLE ... RENAME` fails where a view names a table that is not there, and so nobody could
//! make a table anew by `DROP TABLE item; ALTER TABLE new_item RENAME TO item`. A trigger goes with its table.

use super::{Tracking, Trigger, has_integer_key};
use crate::sql::{literal, quote};
use crate::{Model, Table};

/// The view that has the next key of each table whose keys come in ranges.
pub fn next_key_view(model: &Model) -> String {
    let numbers = (0..).zip(&model.tables).filter(|(_, table)| table.key_range.is_some());
    let names: Vec<String> =
        numbers.map(|(number, table): (usize, _)| format!("WHEN {number} THEN {}", literal(&table.name))).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "CREATE VIEW \"hw_next_key\" AS SELECT CASE \"table\" {} END AS \"table\", min(\"next\") AS \"key\", \
         sum(\"last\" - \"next\" + 1) AS \"left\" FROM \"hw_key_range\" WHERE \"next\" <= \"last\" GROUP BY 1;\n",
        names.join(" ")
    )
}

/// The query for ranges of a table whose next key has a row. `None`: its keys don't come in ranges.
pub fn taken_keys(number: usize, table: &Table) -> Option<String> {
    Some(format!("SELECT 1 FROM \"hw_key_range\" WHERE {}", next_is_taken(number, table)?))
}

/// The statement that moves such ranges on, to the first key behind that no row has.
pub fn pass_taken_keys(number: usize, table: &Table) -> Option<String> {
    let free = first_free(table, "\"hw_key_range\".\"next\"")?;
    Some(format!("UPDATE \"hw_key_range\" SET \"next\" = {free} WHERE {}", next_is_taken(number, table)?))
}

fn next_is_taken(number: usize, table: &Table) -> Option<String> {
    let (own, key) = (quote(&table.name), ranged_key(table)?);
    Some(format!(
        "\"hw_key_range\".\"table\" = {number} AND \"hw_key_range\".\"next\" <= \"hw_key_range\".\"last\" \
         AND EXISTS (SELECT 1 FROM {own} AS i WHERE i.{key} = \"hw_key_range\".\"next\")"
    ))
}

/// The first key from `from` on that no row has; where the range ends before it, the one behind its last. What is looked at are the rows
/// whose keys follow one upon the other.
fn first_free(table: &Table, from: &str) -> Option<String> {
    let (own, key) = (quote(&table.name), ranged_key(table)?);
    Some(format!(
        "CASE WHEN EXISTS (SELECT 1 FROM {own} AS i WHERE i.{key} = {from}) \
         THEN coalesce((SELECT i.{key} + 1 FROM {own} AS i WHERE i.{key} BETWEEN {from} AND \"hw_key_range\".\"last\" \
         AND NOT EXISTS (SELECT 1 FROM {own} AS j WHERE j.{key} = i.{key} + 1) ORDER BY i.{key} LIMIT 1), \
         \"hw_key_range\".\"last\" + 1) ELSE {from} END"
    ))
}

/// The key's column, quoted, where keys come in ranges.
fn ranged_key(table: &Table) -> Option<String> {
    table.key_range.filter(|_| has_integer_key(table))?;
    table.key_columns().next().map(|column| quote(&column.name))
}

impl Tracking<'_> {
    /// Where keys come in ranges: an insert of another key is refused, unless its row is or was there, and a key is used once.
    pub(super) fn key_range(&self) -> Vec<Trigger> {
        let Some(key) = ranged_key(self.table) else {
            return Vec::new();
        };
        let (number, own) = (self.number, &self.own);
        let refused = format!(
            "NOT EXISTS (SELECT 1 FROM \"hw_applying\" WHERE \"table\" = -1 - {number}) \
             AND NOT EXISTS (SELECT 1 FROM \"hw_key_range\" WHERE \"table\" = {number} AND NEW.{key} BETWEEN \"first\" AND \"last\") \
             AND NOT EXISTS (SELECT 1 FROM {own} WHERE {key} = NEW.{key}) \
             AND NOT EXISTS (SELECT 1 FROM {log} WHERE \"upload\" IN (0, (SELECT \"frozen\" FROM \"hw_state\")) \
             AND \"k_{name}\" = NEW.{key} AND \"existed\" = 1)",
            log = self.log,
            name = self.table.key_columns().map(|column| column.name.replace('"', "\"\"")).collect::<String>(),
        );
        let text = format!(
            "headwater: the key is not in a range of this remote; take it from: SELECT key FROM hw_next_key WHERE \"table\" = {} \
             (empty: sync first)",
            literal(&self.table.name)
        );
        let raise = format!("SELECT RAISE(ABORT, {});\n", literal(&text));
        let free = first_free(self.table, &format!("(NEW.{key} + 1)")).unwrap_or_default();
        let used = format!(
            "UPDATE \"hw_key_range\" SET \"next\" = {free} WHERE \"table\" = {number} AND NEW.{key} BETWEEN \"next\" AND \"last\";\n"
        );
        let changes = format!("NEW.{key} IS NOT OLD.{key} AND {refused}");
        let is_key = format!("NEW.{key} IS NOT OLD.{key}");
        vec![
            self.trigger("key_range", "BEFORE", "INSERT", Some(&refused), &raise),
            self.trigger("key_range_update", "BEFORE", "UPDATE", Some(&changes), &raise),
            self.trigger("key_used", "AFTER", "INSERT", None, &used),
            self.trigger("key_used_update", "AFTER", "UPDATE", Some(&is_key), &used),
        ]
    }
}
