//! Tables whose keys come in ranges: the view of the next keys, and the triggers that hold inserts to the ranges.

use super::{Tracking, Trigger};
use crate::Model;
use crate::sql::literal;

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

impl Tracking<'_> {
    /// Where keys come in ranges: an insert of another key is refused, unless its row is or was there, and a key is used once.
    pub(super) fn key_range(&self) -> Vec<Trigger> {
        let (Some(_), Some(key)) = (self.table.key_range, self.keys(str::to_owned).pop()) else {
            return Vec::new();
        };
        let (number, own) = (self.number, &self.own);
        let refused = format!(
            "NOT EXISTS (SELECT 1 FROM \"hw_applying\" WHERE \"table\" = -1 - {number}) \
             AND NOT EXISTS (SELECT 1 FROM \"hw_key_range\" WHERE \"table\" = {number} AND NEW.{key} BETWEEN \"first\" AND \"last\") \
             AND NOT EXISTS (SELECT 1 FROM {own} WHERE {key} = NEW.{key}) \
             AND NOT EXISTS (SELECT 1 FROM {log} WHERE \"k_{name}\" = NEW.{key} AND \"existed\" = 1)",
            log = self.log,
            name = self.table.key_columns().map(|column| column.name.replace('"', "\"\"")).collect::<String>(),
        );
        let text = format!(
            "headwater: the key is not in a range of this remote; take it from: SELECT key FROM hw_next_key WHERE \"table\" = {} \
             (empty: sync first)",
            literal(&self.table.name)
        );
        let raise = format!("SELECT RAISE(ABORT, {});\n", literal(&text));
        let used = format!(
            "UPDATE \"hw_key_range\" SET \"next\" = NEW.{key} + 1 WHERE \"table\" = {number} \
             AND NEW.{key} BETWEEN \"next\" AND \"last\";\n"
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
