//! What administrators do to SQLite's tables.

use anyhow::Result;

use super::Draw;
use crate::events::Event;
use crate::shape::{Shape, literal, quote};

/// Before and after what foreign keys would get in the way of.
const OFF: &str = "PRAGMA foreign_keys = OFF; BEGIN IMMEDIATE;";
const ON: &str = "; COMMIT; PRAGMA foreign_keys = ON";

impl Draw<'_> {
    pub(super) fn sqlite(&mut self, event: Event) -> Result<String> {
        let number = self.number;
        Ok(match event {
            Event::Truncate => {
                let shape = self.single();
                let change = self.change_of(&shape, "temp.keep");
                let name = shape.quoted();
                format!(
                    "DROP TABLE IF EXISTS temp.keep; CREATE TEMP TABLE keep AS SELECT * FROM {name}; {change}; DELETE FROM {name}; INSERT INTO {name} SELECT * FROM temp.keep; DROP TABLE temp.keep"
                )
            }
            Event::DropAdd => {
                let table = ["twin_a", "thing", "kind"][self.below(3)];
                let column = if table == "twin_a" { "body" } else { "label" };
                format!(
                    "ALTER TABLE {table} DROP COLUMN {column}; ALTER TABLE {table} ADD COLUMN {column} text DEFAULT 'anew {number}'"
                )
            }
            Event::Exchange => {
                let judged = self.schema.judged.clone();
                let pairs = [
                    ("thing", "p", "q"),
                    ("thing", "p", "q"),
                    ("thing", "val", "spare"),
                    ("twin_a", "body", "spare"),
                    (judged.as_str(), self.schema.column.as_str(), "n"),
                ];
                let (table, one, other) = pairs[self.below(pairs.len() - usize::from(self.is_neutral))];
                let (table, one, other) = (quote(table), quote(one), quote(other));
                format!(
                    "ALTER TABLE {table} RENAME COLUMN {one} TO elsewhere; ALTER TABLE {table} RENAME COLUMN {other} TO {one}; \
                     ALTER TABLE {table} RENAME COLUMN elsewhere TO {other}"
                )
            }
            Event::Swap | Event::TwelveSteps => {
                let shape = if event == Event::Swap { self.single() } else { self.any() };
                self.twelve_steps(&shape, event == Event::TwelveSteps)
            }
            Event::Twins => format!(
                "{OFF} ALTER TABLE twin_a RENAME TO twin_{number}; ALTER TABLE twin_b RENAME TO twin_a; ALTER TABLE twin_{number} RENAME TO twin_b{ON}"
            ),
            Event::Rewrite => {
                ["VACUUM", "REINDEX", "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"][self.below(4)].to_owned()
            }
            Event::Harmless => {
                let shape = self.any();
                let (name, column) = (shape.quoted(), quote(&shape.columns[shape.columns.len() - 1].name));
                match self.below(3) {
                    0 => format!("ALTER TABLE {name} ADD COLUMN extra_{number} bigint"),
                    1 => format!("ALTER TABLE {name} ADD COLUMN extra_{number} text DEFAULT 'x'"),
                    _ => format!("CREATE INDEX extra_{number} ON {name} ({column})"),
                }
            }
            Event::Remake => {
                let shape = self.any();
                let write = self.write_to(&shape);
                self.remake(&shape, &write)?
            }
            Event::MembersRewritten => {
                // As it was made: SELECT alone would lose the collation of a column.
                let table = if self.random.chance(50) { "member" } else { "holder" };
                let made = self.central.rows(&format!("SELECT sql FROM sqlite_schema WHERE name = '{table}'"))?;
                let Some(Some(made)) = made.into_iter().flatten().next() else { return Ok(String::new()) };
                let Some((_, columns)) = made.split_once('(') else { return Ok(String::new()) };
                format!(
                    "CREATE TABLE new_{number} ({columns}; INSERT INTO new_{number} SELECT * FROM {table}; \
                     DROP TABLE {table}; ALTER TABLE new_{number} RENAME TO {table}"
                )
            }
            _ => String::new(),
        })
    }

    /// <https://sqlite.org/lang_altertable.html#otheralter>: a new table is filled, the old one dropped (or renamed), the new one renamed.
    fn twelve_steps(&mut self, shape: &Shape, is_dropped: bool) -> String {
        let (name, new, old) = (shape.quoted(), format!("new_{}", self.number), format!("old_{}", self.number));
        let change = if shape.below.is_empty() { self.change_of(shape, &new) } else { "SELECT 1".to_owned() };
        let names = shape.names();
        let goes = if is_dropped {
            format!("DROP TABLE {name}")
        } else {
            format!(
                "PRAGMA legacy_alter_table = ON; ALTER TABLE {name} RENAME TO {old}; PRAGMA legacy_alter_table = OFF"
            )
        };
        format!(
            "{OFF} {}; INSERT INTO {new} ({names}) SELECT {names} FROM {name}; {change}; {goes}; ALTER TABLE {new} RENAME TO {name}{ON}",
            shape.create(&new)
        )
    }

    fn remake(&self, shape: &Shape, write: &str) -> Result<String> {
        let sql = format!(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = {}",
            literal(&shape.name)
        );
        let triggers = self.central.rows(&sql)?;
        let triggers: Vec<(String, String)> =
            triggers.into_iter().filter_map(|mut row| Some((row[0].take()?, row[1].take()?))).collect();
        let drops: Vec<String> = triggers.iter().map(|(name, _)| format!("DROP TRIGGER {}", quote(name))).collect();
        let made: Vec<String> = triggers.into_iter().map(|(_, sql)| sql).collect();
        Ok(format!("{}; {write}; {}", drops.join("; "), made.join("; ")))
    }
}
