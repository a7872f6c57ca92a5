//! Change tracking in SQLite.
//!
//! The side table of `t` is `headwater_side_t`: a row for each key and partition that a row of `t` has been in since tracking began,
//! with the version of the last change. It does not say whether the row still lives there: a download joins `t` and sees. So a
//! trigger may note a change that then doesn't happen, and no more is lost by that than a row sent twice.
//!
//! That matters for `REPLACE`: where `recursive_triggers` is off, rows that it deletes, by the key or by any unique index, fire no
//! delete trigger. `BEFORE` triggers note them while they are still there; under `INSERT OR IGNORE` or an upsert they then stay.
//!
//! ```text
//! BEFORE INSERT   rows that the new one would replace
//! AFTER INSERT    the new row
//! BEFORE UPDATE   other rows that the new image would replace
//! AFTER UPDATE    the new image; the old one where its key or partition is another
//! AFTER DELETE    the old row
//! ```
//!
//! Versions come from the one row of `headwater_version`; there is one writer, so a version above a download's is one not seen. Side
//! columns have no declared type: they hold what the table holds. A row with a NULL in its partition or key is in no partition.
//!
//! A table that takes its partition from the row that a foreign key refers to is noted where that row is; where that row is gone (a
//! cascade deletes what was below it), wherever its own side table says that it was. A table from which others take theirs notes all
//! rows below with its own:
//!
//! ```text
//! BEFORE INSERT   what is below rows that the new one would replace, unless they stay where they are
//! AFTER INSERT    what waited for the new row
//! BEFORE UPDATE   of key, partition or parent: what is below the old image, where it is and where it is going to be
//! BEFORE DELETE   the old row, and what is below it
//! ```
//!
//! *Caveats.* Rows replaced through a unique index on an expression, or through a rowid that is not the key, are not noted where
//! `recursive_triggers` is off. The statements of a trigger obey the conflict clause of the statement that fired it (`INSERT OR
//! REPLACE` makes its inserts replace), so they are written to come to the same under each.

mod kin;

use super::{Kin, TrackedTable};
use crate::sql::{literal, quote};
use crate::{Column, Lineage, Table};

/// The side table, in quotes.
pub fn side_table(lineage: &Lineage<'_>) -> String {
    quote(&side_name(lineage))
}

/// The side table's name.
pub fn side_name(lineage: &Lineage<'_>) -> String {
    format!("headwater_side_{}{}", lineage.table().name, lineage.layout())
}

/// The side table's columns that hold the key, in quotes and key order.
pub fn key_columns(table: &Table) -> Vec<String> {
    table.key_columns().map(|column| quote(&format!("key_{}", column.name))).collect()
}

/// The side table's columns that hold the partition, in quotes and the partition's order. A column of the key stands there once.
pub fn partition_columns(lineage: &Lineage<'_>) -> Vec<String> {
    let table = lineage.table();
    let is_of_key = |column: &Column| lineage.parents().is_empty() && table.key_columns().any(|key| key == column);
    let prefix = |column: &Column| if is_of_key(column) { "key" } else { "partition" };
    let name = |column: &Column| quote(&format!("{}_{}", prefix(column), column.name));
    lineage.root().partition_columns().map(name).collect()
}

/// The names of all triggers of a table.
pub fn triggers(kin: &Kin<'_>) -> Vec<String> {
    let further = kin_trigger_names(&kin.lineage).into_iter().filter(|_| !kin.below.is_empty());
    trigger_names(&kin.lineage).into_iter().chain(further).collect()
}

fn trigger_names(lineage: &Lineage<'_>) -> [String; 5] {
    ["before_insert", "after_insert", "before_update", "after_update", "after_delete"]
        .map(|event| trigger_name(event, lineage))
}

fn trigger_name(event: &str, lineage: &Lineage<'_>) -> String {
    format!("headwater_{event}_{}{}", lineage.table().name, lineage.layout())
}

/// The names of the further triggers of a table from which others take their partition.
fn kin_trigger_names(lineage: &Lineage<'_>) -> [String; 2] {
    ["before_move", "before_delete"].map(|event| trigger_name(event, lineage))
}

/// The statements that install the tracking of a table. The side table stays where there is one.
pub fn install(tracked: &TrackedTable<'_>) -> Vec<String> {
    let kin = tracked.kin;
    let names = Names::new(&kin.lineage);
    let mut statements = vec![create_side_table(&names), create_index(&names)];
    statements.extend(drop_triggers(&kin.lineage));
    let [before_insert, after_insert, before_update, after_update, after_delete] = trigger_names(&kin.lineage);
    let old_elsewhere = Note::image("OLD", Some(names.differs("OLD", "NEW")));
    let inserted = [names.here(&Note::image("NEW", None)), kin::below(kin, &Note::image("NEW", None), false)].concat();
    let updated = [names.anywhere(&old_elsewhere), names.here(&Note::image("NEW", None))].concat();
    statements.extend([
        replacing(&before_insert, "BEFORE INSERT", tracked, &names, None),
        trigger(&after_insert, "AFTER INSERT", &names, "", &inserted),
        replacing(&before_update, "BEFORE UPDATE", tracked, &names, Some("OLD")),
        trigger(&after_update, "AFTER UPDATE", &names, "", &updated),
        trigger(&after_delete, "AFTER DELETE", &names, "", &names.anywhere(&Note::image("OLD", None))),
    ]);
    if !kin.below.is_empty() {
        statements.extend(kin::triggers(kin, &names));
    }
    statements
}

/// The statements that remove the tracking of a table; harmless where there is none.
pub fn uninstall(kin: &Kin<'_>) -> Vec<String> {
    let mut statements = drop_triggers(&kin.lineage);
    statements.push(format!("DROP TABLE IF EXISTS {}", side_table(&kin.lineage)));
    statements.push(format!("DELETE FROM headwater_table_change WHERE table_name = {}", literal(&kin.table().name)));
    statements
}

fn drop_triggers(lineage: &Lineage<'_>) -> Vec<String> {
    let names = trigger_names(lineage).into_iter().chain(kin_trigger_names(lineage));
    names.map(|name| format!("DROP TRIGGER IF EXISTS {}", quote(&name))).collect()
}

/// The columns that a trigger notes, and where.
struct Names<'m> {
    lineage: &'m Lineage<'m>,
    table: String,
    literal: String,
    side: String,
    /// The side table's columns: of the key, then of the partition that are not of the key.
    into: Vec<String>,
    key: Vec<String>,
    /// The table's columns that say where a row belongs: those of the partition that are not of the key, or those that refer to the
    /// table that has them.
    deciding: Vec<String>,
}

impl<'m> Names<'m> {
    fn new(lineage: &'m Lineage<'m>) -> Names<'m> {
        let table = lineage.table();
        let key: Vec<String> = table.key_columns().map(|column| quote(&column.name)).collect();
        let mut into = key_columns(table);
        into.extend(partition_columns(lineage).into_iter().filter(|side| !key_columns(table).contains(side)));
        let deciding = lineage.deciding(0).into_iter().map(|column| quote(&column.name));
        let deciding = deciding.filter(|column| !key.contains(column)).collect();
        let (table, literal, side) = (quote(&table.name), literal(&table.name), side_table(lineage));
        Names { lineage, table, literal, side, into, key, deciding }
    }

    fn is_own(&self) -> bool {
        self.lineage.parents().is_empty()
    }

    /// The columns that are noted of a row, or say where it is to be noted.
    fn read(&self) -> impl Iterator<Item = &String> {
        self.key.iter().chain(&self.deciding)
    }

    fn of(columns: &[String], row: &str) -> Vec<String> {
        columns.iter().map(|column| format!("{row}.{column}")).collect()
    }

    /// That what is noted of two images is not the same.
    fn differs(&self, one: &str, other: &str) -> String {
        let pairs: Vec<String> = self.read().map(|column| format!("{one}.{column} IS NOT {other}.{column}")).collect();
        format!("({})", pairs.join(" OR "))
    }

    /// The statement that notes a row in the partition where it is.
    fn here(&self, note: &Note) -> Vec<String> {
        if !self.is_own() {
            return vec![kin::by_parent(self, note)];
        }
        let values: Vec<String> =
            Names::of(&self.key, note.row).into_iter().chain(Names::of(&self.deciding, note.row)).collect();
        let whole = values.iter().map(|value| format!("{value} IS NOT NULL"));
        let from = if note.from.is_empty() { String::new() } else { format!("{}, ", note.from) };
        let conditions: Vec<String> = whole.chain(note.condition.clone()).collect();
        vec![self.insert(&values, &format!("{from}headwater_version v"), &conditions)]
    }

    /// The same for a row that is no more what it was: its parent may have gone before it.
    fn anywhere(&self, note: &Note) -> Vec<String> {
        let mut statements = self.here(note);
        if !self.is_own() {
            statements.push(kin::by_gone_parent(self, note));
        }
        statements
    }

    fn insert(&self, values: &[String], from: &str, conditions: &[String]) -> String {
        format!(
            "INSERT INTO {} ({}, version)\n    SELECT {}, v.version FROM {from} WHERE {}\n    \
             ON CONFLICT ({}) DO UPDATE SET version = excluded.version;",
            self.side,
            self.into.join(", "),
            values.join(", "),
            conditions.join(" AND "),
            self.into.join(", "),
        )
    }
}

/// Notes that follow are newer than those before.
pub const NEXT_VERSION: &str = "UPDATE headwater_version SET version = version + 1";

/// The statement that notes a row as changed where it says that it lies, after [`NEXT_VERSION`]. Parameters: its key, then the columns that decide where it is and are
/// not of the key.
pub fn note_again(lineage: &Lineage<'_>) -> String {
    let names = Names::new(lineage);
    let columns = names.read().zip(1..).map(|(column, number): (_, usize)| format!("?{number} AS {column}"));
    let from = format!("(SELECT {}) AS hw_row", columns.collect::<Vec<_>>().join(", "));
    names.here(&Note { row: "hw_row", from, condition: None }).concat()
}

fn create_side_table(names: &Names<'_>) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (\n  {},\n  version INTEGER,\n  PRIMARY KEY ({})\n) WITHOUT ROWID",
        names.side,
        names.into.join(",\n  "),
        names.into.join(", ")
    )
}

fn create_index(names: &Names<'_>) -> String {
    let mut columns = partition_columns(names.lineage);
    columns.push("version".to_owned());
    let index = quote(&format!("headwater_side_{}_version{}", names.lineage.table().name, names.lineage.layout()));
    format!("CREATE INDEX IF NOT EXISTS {index} ON {} ({})", names.side, columns.join(", "))
}

/// Something that a trigger notes: `row` of `from`, where `condition` holds.
#[derive(Clone)]
struct Note {
    row: &'static str,
    from: String,
    condition: Option<String>,
}

impl Note {
    /// One of the trigger's own images.
    fn image(row: &'static str, condition: Option<String>) -> Note {
        Note { row, from: String::new(), condition }
    }
}

/// The rows that the new image would replace: by the key or any unique index. `self_row`: that of the row itself, which it does not.
fn replaced(tracked: &TrackedTable<'_>, names: &Names<'_>, self_row: Option<&str>) -> Vec<Note> {
    let key = names.key.iter().map(|column| (column.clone(), None)).collect::<Vec<_>>();
    let indexes = tracked.unique.iter().map(|index| {
        index.columns.iter().map(|(column, collation)| (quote(column), collation.clone())).collect::<Vec<_>>()
    });
    let mut seen: Vec<Vec<(String, Option<String>)>> = Vec::new();
    for columns in std::iter::once(key).chain(indexes) {
        let is_known = |known: &Vec<(String, Option<String>)>| {
            known.len() == columns.len()
                && columns.iter().all(|(column, _)| known.iter().any(|(other, _)| other == column))
        };
        // The key's own index is among them; another collation makes another rule.
        if !seen.iter().any(is_known) || columns.iter().any(|(_, collation)| collation.is_some()) {
            seen.push(columns);
        }
    }
    seen.iter().map(|columns| replaced_by(names, columns, self_row)).collect()
}

fn replaced_by(names: &Names<'_>, columns: &[(String, Option<String>)], self_row: Option<&str>) -> Note {
    let mut conditions: Vec<String> = columns
        .iter()
        .map(|(column, collation)| {
            let collation = collation.as_ref().map_or_else(String::new, |name| format!(" COLLATE {}", quote(name)));
            format!("b.{column} = NEW.{column}{collation}")
        })
        .collect();
    if let Some(row) = self_row {
        let same: Vec<String> = names.key.iter().map(|column| format!("b.{column} IS {row}.{column}")).collect();
        conditions.push(format!("NOT ({})", same.join(" AND ")));
    }
    Note { row: "b", from: format!("{} b", names.table), condition: Some(conditions.join(" AND ")) }
}

/// A trigger before a write that may replace rows: notes those.
fn replacing(
    name: &str,
    event: &str,
    tracked: &TrackedTable<'_>,
    names: &Names<'_>,
    self_row: Option<&'static str>,
) -> String {
    let notes = replaced(tracked, names, self_row);
    // What may be replaced mostly isn't there: then not even the version is counted up.
    let exists = |note: &Note| {
        format!("EXISTS (SELECT 1 FROM {} WHERE {})", note.from, note.condition.as_deref().unwrap_or("true"))
    };
    let when = format!("\nWHEN {}", notes.iter().map(exists).collect::<Vec<_>>().join("\n  OR "));
    let of_rows = notes.iter().flat_map(|note| names.anywhere(note));
    let below = notes.iter().flat_map(|note| kin::below_replaced(tracked.kin, names, note));
    trigger(name, event, names, &when, &of_rows.chain(below).collect::<Vec<_>>())
}

fn trigger(name: &str, event: &str, names: &Names<'_>, when: &str, statements: &[String]) -> String {
    format!(
        "CREATE TRIGGER {} {event} ON {}{when}\nBEGIN\n  {NEXT_VERSION};\n  {}\n  \
         INSERT INTO headwater_table_change (table_name, version) SELECT {}, v.version FROM headwater_version v WHERE true\n    \
         ON CONFLICT (table_name) DO UPDATE SET version = excluded.version;\nEND",
        quote(name),
        names.table,
        statements.join("\n  "),
        names.literal
    )
}
