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
//! *Caveats.* Rows replaced through a unique index on an expression, or through a rowid that is not the key, are not noted where
//! `recursive_triggers` is off. The statements of a trigger obey the conflict clause of the statement that fired it (`INSERT OR
//! REPLACE` makes its inserts replace), so they are written to come to the same under each.

use super::{TrackedTable, layout};
use crate::Table;
use crate::sql::{literal, quote};

/// The side table, in quotes.
pub fn side_table(table: &Table) -> String {
    quote(&side_name(table))
}

/// The side table's name.
pub fn side_name(table: &Table) -> String {
    format!("headwater_side_{}{}", table.name, layout(table))
}

/// The side table's columns that hold the key, in quotes and key order.
pub fn key_columns(table: &Table) -> Vec<String> {
    table.key_columns().map(|column| quote(&format!("key_{}", column.name))).collect()
}

/// The side table's columns that hold the partition, in quotes and the partition's order. A column of the key stands there once.
pub fn partition_columns(table: &Table) -> Vec<String> {
    let places = table.partition.iter().flat_map(|partition| &partition.columns);
    let name = |place: &usize| {
        let prefix = if table.key.contains(place) { "key" } else { "partition" };
        table.columns.get(*place).map(|column| quote(&format!("{prefix}_{}", column.name)))
    };
    places.filter_map(name).collect()
}

/// The names of the triggers of a table.
pub fn trigger_names(table: &Table) -> [String; 5] {
    ["before_insert", "after_insert", "before_update", "after_update", "after_delete"]
        .map(|event| format!("headwater_{event}_{}{}", table.name, layout(table)))
}

/// The statements that install the tracking of a table. The side table stays where there is one.
pub fn install(tracked: &TrackedTable<'_>) -> Vec<String> {
    let table = tracked.table;
    let names = Names::new(table);
    let mut statements = vec![create_side_table(table, &names), create_index(table, &names)];
    statements.extend(drop_triggers(table));
    let [before_insert, after_insert, before_update, after_update, after_delete] = trigger_names(table);
    statements.extend([
        trigger(&before_insert, "BEFORE INSERT", &names, &replaced(tracked, &names, None)),
        trigger(&after_insert, "AFTER INSERT", &names, &[Note::image("NEW", None)]),
        trigger(&before_update, "BEFORE UPDATE", &names, &replaced(tracked, &names, Some("OLD"))),
        trigger(
            &after_update,
            "AFTER UPDATE",
            &names,
            &[Note::image("OLD", Some(names.differs("OLD", "NEW"))), Note::image("NEW", None)],
        ),
        trigger(&after_delete, "AFTER DELETE", &names, &[Note::image("OLD", None)]),
    ]);
    statements
}

/// The statements that remove the tracking of a table; harmless where there is none.
pub fn uninstall(table: &Table) -> Vec<String> {
    let mut statements = drop_triggers(table);
    statements.push(format!("DROP TABLE IF EXISTS {}", side_table(table)));
    statements.push(format!("DELETE FROM headwater_table_change WHERE table_name = {}", literal(&table.name)));
    statements
}

fn drop_triggers(table: &Table) -> Vec<String> {
    trigger_names(table).iter().map(|name| format!("DROP TRIGGER IF EXISTS {}", quote(name))).collect()
}

/// The columns that a trigger notes, and where.
struct Names {
    table: String,
    literal: String,
    side: String,
    /// The side table's columns.
    into: Vec<String>,
    /// The table's columns for them: of the key, then of the partition that are not of the key.
    from: Vec<String>,
    key: Vec<String>,
}

impl Names {
    fn new(table: &Table) -> Names {
        let key: Vec<String> = table.key_columns().map(|column| quote(&column.name)).collect();
        let mut into = key_columns(table);
        let mut from = key.clone();
        for (side, column) in partition_columns(table).into_iter().zip(table.partition_columns()) {
            if !into.contains(&side) {
                into.push(side);
                from.push(quote(&column.name));
            }
        }
        let (table, literal, side) = (quote(&table.name), literal(&table.name), side_table(table));
        Names { table, literal, side, into, from, key }
    }

    fn of(columns: &[String], row: &str, between: &str) -> String {
        columns.iter().map(|column| format!("{row}.{column}")).collect::<Vec<_>>().join(between)
    }

    /// That what is noted of two images is not the same.
    fn differs(&self, one: &str, other: &str) -> String {
        let pairs: Vec<String> =
            self.from.iter().map(|column| format!("{one}.{column} IS NOT {other}.{column}")).collect();
        format!("({})", pairs.join(" OR "))
    }
}

fn create_side_table(table: &Table, names: &Names) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (\n  {},\n  version INTEGER NOT NULL,\n  PRIMARY KEY ({})\n) WITHOUT ROWID",
        side_table(table),
        names.into.join(",\n  "),
        names.into.join(", ")
    )
}

fn create_index(table: &Table, names: &Names) -> String {
    let mut columns = partition_columns(table);
    columns.push("version".to_owned());
    let index = quote(&format!("headwater_side_{}_version{}", table.name, layout(table)));
    format!("CREATE INDEX IF NOT EXISTS {index} ON {} ({})", names.side, columns.join(", "))
}

/// Something that a trigger notes: `row` of `from`, where `condition` holds.
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
fn replaced(tracked: &TrackedTable<'_>, names: &Names, self_row: Option<&str>) -> Vec<Note> {
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

fn replaced_by(names: &Names, columns: &[(String, Option<String>)], self_row: Option<&str>) -> Note {
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

fn trigger(name: &str, event: &str, names: &Names, notes: &[Note]) -> String {
    // What may be replaced mostly isn't there: then not even the version is counted up.
    let when: Vec<String> = notes
        .iter()
        .filter(|note| !note.from.is_empty())
        .map(|note| {
            format!("EXISTS (SELECT 1 FROM {} WHERE {})", note.from, note.condition.as_deref().unwrap_or("true"))
        })
        .collect();
    let when = if when.is_empty() { String::new() } else { format!("\nWHEN {}", when.join("\n  OR ")) };
    let notes: Vec<String> = notes.iter().map(|note| statement(names, note)).collect();
    format!(
        "CREATE TRIGGER {} {event} ON {}{when}\nBEGIN\n  UPDATE headwater_version SET version = version + 1;\n  {}\n  \
         INSERT INTO headwater_table_change (table_name, version) SELECT {}, v.version FROM headwater_version v WHERE true\n    \
         ON CONFLICT (table_name) DO UPDATE SET version = excluded.version;\nEND",
        quote(name),
        names.table,
        notes.join("\n  "),
        names.literal
    )
}

fn statement(names: &Names, note: &Note) -> String {
    let from = if note.from.is_empty() { String::new() } else { format!("{}, ", note.from) };
    let whole: Vec<String> = names.from.iter().map(|column| format!("{}.{column} IS NOT NULL", note.row)).collect();
    let condition = note.condition.as_ref().map_or_else(String::new, |condition| format!(" AND {condition}"));
    format!(
        "INSERT INTO {} ({}, version)\n    SELECT {}, v.version FROM {from}headwater_version v WHERE {}{condition}\n    \
         ON CONFLICT ({}) DO UPDATE SET version = excluded.version;",
        names.side,
        names.into.join(", "),
        Names::of(&names.from, note.row, ", "),
        whole.join(" AND "),
        names.into.join(", "),
    )
}
