//! The remote's side of a model as SQL text: its tables, its change tracking, and what Headwater itself keeps in the file.
//!
//! Change tracking is plain triggers, so any SQLite program may write to a remote. Each table `t` has a log `hw_log_t` with one
//! row for each key changed since the last upload: whether the row existed then, and its old image. What the change *is* is found
//! later by comparing that image with the row. So a trigger only ever adds "this key, as it was", once, and it may do so for rows
//! that are not changed after all: they compare as equal and leave the log again.
//!
//! ```text
//! hw_log_t   upload  0 = open; n = frozen as part of upload n
//!            k_...   the key
//!            existed 1 = o_... is the old image; 0 = there was no such row
//!            o_...   the other columns of the old image
//!            aside   0; else the code with which the change was refused: it is not sent
//! ```
//!
//! Why the triggers look as they do:
//!
//! - A statement's `OR REPLACE` or `OR IGNORE` also rules the statements inside its triggers. So rows are logged by
//!   `INSERT ... SELECT ... WHERE NOT EXISTS`, never by a conflict clause.
//! - `REPLACE` deletes rows without firing their delete triggers (unless `recursive_triggers` is on). So the triggers before an
//!   insert or update log every row that would be in its way, by key and by each unique index.
//! - They run *before* the change: an application's own trigger that runs after it and changes the row again would else be logged
//!   first. A key that SQLite is to choose is not known yet (`NEW` says -1), so the one that it will choose is computed.
//! - While a download is applied `hw_applying` has the number of the table whose rows are stored, and they are not logged; or, where the
//!   application has triggers on that table, -1 less its number: all is logged, and only keys of others are let in.
//! - The log's columns have no declared type, so that values keep their storage class; `+NEW.x` takes the type off the other side of
//!   a comparison, without which the log's primary key would not be used.
//!
//! Incremental writes to a BLOB (`sqlite3_blob_write`) fire no trigger. SQLite refuses them in a table with an index on an expression, so
//! each table with rowids has one, which is empty ([`whole_index`]).
//!
//! *Caveats.* Rows replaced through a unique index that the application made after Headwater last opened the file are not logged. The
//! triggers don't know such an index ([`Unique::is_known`]), and so the next look at the file puts the table in doubt.

mod key_ranges;

use headwater_protocol::Type;

pub use self::key_ranges::{next_key_view, pass_taken_keys, taken_keys};
use crate::sql::{literal, quote};
use crate::{ColumnType, Direction, Model, OnDelete, Reference, Table};

/// The version of the file's layout, in `hw_state`; counted up with each change of the tables there.
pub const FORMAT: i64 = 2;

/// The name of a table's log.
pub fn log_name(table: &Table) -> String {
    format!("hw_log_{}", table.name)
}

/// The type with which a column is declared. It decides the column's affinity, which keeps values as they are: what SQLite has no
/// type for is text.
pub fn declared_type(kind: ColumnType) -> String {
    match (kind.base, kind.precision) {
        (Type::Bool, _) => "BOOLEAN".to_owned(),
        (Type::Int, _) => "BIGINT".to_owned(),
        (Type::Real, _) => "DOUBLE".to_owned(),
        (Type::Decimal, Some((precision, scale))) => format!("DECIMAL_TEXT({precision},{scale})"),
        (Type::Decimal, None) => "DECIMAL_TEXT".to_owned(),
        (Type::Text, _) => "TEXT".to_owned(),
        (Type::Bytes, _) => "BLOB".to_owned(),
        (Type::Date, _) => "DATE_BLOB".to_owned(),
        (Type::Time, _) => "TIME_BLOB".to_owned(),
        (Type::Timestamp, _) => "TIMESTAMP_BLOB".to_owned(),
        (Type::Timestamptz, _) => "TIMESTAMPTZ_BLOB".to_owned(),
        (Type::Uuid, _) => "UUID_BLOB".to_owned(),
        (Type::Json, _) => "JSON_BLOB".to_owned(),
    }
}

/// Whether the key is one integer column: then it is SQLite's own `INTEGER PRIMARY KEY`.
pub fn has_integer_key(table: &Table) -> bool {
    table.key.len() == 1 && table.key_columns().all(|column| column.kind.base == Type::Int)
}

/// The foreign keys that the remote enforces: those whose parent columns are a key or unique, and whose parent is sure to be at the
/// remote where the child is (the parent is not partitioned, or the reference itself carries the partition, or the child takes its
/// partition by it).
pub fn enforced_references<'m>(model: &'m Model, table: &'m Table) -> Vec<&'m Reference> {
    table.references.iter().filter(|reference| is_enforced(model, table, reference)).collect()
}

fn is_enforced(model: &Model, table: &Table, reference: &Reference) -> bool {
    let Some(parent) = model.tables.get(reference.table) else {
        return false;
    };
    let same_set = |places: &[usize]| {
        places.len() == reference.target.len() && places.iter().all(|place| reference.target.contains(place))
    };
    let is_unique = same_set(&parent.key) || parent.unique.iter().any(|unique| same_set(unique));
    let comes_down = parent.direction != Direction::Upload || table.direction == Direction::Upload;
    let same_partition = match (&parent.partition, &table.partition) {
        (None, _) => true,
        _ if table.through().is_some() => table.through() == Some(reference),
        (Some(theirs), Some(_)) if theirs.through.is_some() => false,
        (Some(theirs), Some(ours)) => {
            theirs.partition == ours.partition
                && theirs.columns.iter().zip(&ours.columns).all(|(theirs, ours)| {
                    reference
                        .columns
                        .iter()
                        .zip(&reference.target)
                        .any(|(child, parent)| child == ours && parent == theirs)
                })
        }
        (Some(_), None) => false,
    };
    is_unique && comes_down && same_partition
}

/// The statement that creates a table.
pub fn create_table(model: &Model, table: &Table) -> String {
    let integer_key = has_integer_key(table);
    let mut lines = Vec::new();
    for (place, column) in table.columns.iter().enumerate() {
        let is_key = table.key.contains(&place);
        lines.push(if is_key && integer_key {
            format!("{} INTEGER PRIMARY KEY", quote(&column.name))
        } else {
            let not_null = if is_key || !column.nullable { " NOT NULL" } else { "" };
            format!("{} {}{not_null}", quote(&column.name), declared_type(column.kind))
        });
    }
    if !integer_key {
        lines.push(format!("PRIMARY KEY ({})", columns(table, &table.key)));
    }
    for unique in &table.unique {
        lines.push(format!("UNIQUE ({})", columns(table, unique)));
    }
    for reference in enforced_references(model, table) {
        let parent = &model.tables[reference.table];
        let action = match reference.on_delete {
            OnDelete::NoAction => "",
            OnDelete::Cascade => " ON DELETE CASCADE",
            OnDelete::SetNull => " ON DELETE SET NULL",
        };
        lines.push(format!(
            "FOREIGN KEY ({}) REFERENCES {} ({}){action}",
            columns(table, &reference.columns),
            quote(&parent.name),
            columns(parent, &reference.target),
        ));
    }
    let layout = if integer_key { "" } else { " WITHOUT ROWID" };
    format!("CREATE TABLE {} (\n  {}\n){layout};\n", quote(&table.name), lines.join(",\n  "))
}

/// The statement that creates a table's log.
pub fn create_log(table: &Table) -> String {
    let keys: Vec<String> = table.key_columns().map(|column| quote(&format!("k_{}", column.name))).collect();
    let keys = keys.join(", ");
    let mut lines = vec!["\"upload\" NOT NULL".to_owned(), keys.clone(), "\"existed\" NOT NULL".to_owned()];
    lines.extend(others(table).map(|column| quote(&format!("o_{column}"))));
    lines.push("\"aside\" NOT NULL DEFAULT 0".to_owned());
    lines.push(format!("PRIMARY KEY (\"upload\", {keys})"));
    format!("CREATE TABLE {} (\n  {}\n) WITHOUT ROWID;\n", quote(&log_name(table)), lines.join(",\n  "))
}

/// The statements that create a table, and its log if it tracks changes.
pub fn create_table_and_log(model: &Model, table: &Table) -> String {
    let log = if table.direction == Direction::Download { String::new() } else { create_log(table) };
    create_table(model, table) + &log
}

/// Every table of the model and the logs of those that track changes.
pub fn create_tables(model: &Model) -> String {
    model.tables.iter().map(|table| create_table_and_log(model, table)).collect()
}

/// What `hw_applying` has while rows leave the remote, as the view `hw_leaving` knows: no table has this number.
pub const LEAVING: i64 = 1 << 32;

/// What Headwater itself keeps in a remote. docs/protocol.md explains each column.
pub fn system_tables() -> &'static str {
    include_str!("remote_system.sql")
}

/// A unique index beside the key, through which `REPLACE` may delete rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique {
    /// What is unique together.
    pub terms: Vec<Term>,
    /// The index's `WHERE`, if it is partial.
    pub filter: Option<String>,
}

/// One term of a unique index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// A column, and the collation by which the index compares it if it is not the column's own.
    Column(String, Option<String>),
    /// An expression, and the names of the columns that it may use.
    Expression(String, Vec<String>),
}

impl Unique {
    /// The unique constraints of the model.
    pub fn of_model(table: &Table) -> Vec<Unique> {
        let term = |place: &usize| Term::Column(table.columns[*place].name.clone(), None);
        table.unique.iter().map(|places| Unique { terms: places.iter().map(term).collect(), filter: None }).collect()
    }

    /// A condition on the rows of the table: which stand in the way of a row whose columns `value` gives as SQL.
    pub fn collides(&self, table: &Table, value: &dyn Fn(&str) -> String) -> String {
        let own = quote(&table.name);
        let mut conditions: Vec<String> = self
            .terms
            .iter()
            .map(|term| match term {
                Term::Column(name, collation) => {
                    let collate =
                        collation.as_ref().map(|name| format!(" COLLATE {}", quote(name))).unwrap_or_default();
                    format!("{own}.{}{collate} = +{}", quote(name), value(name))
                }
                Term::Expression(sql, names) => {
                    let row: Vec<String> = names.iter().map(|n| format!("{} AS {}", value(n), quote(n))).collect();
                    let row = if row.is_empty() { "1".to_owned() } else { row.join(", ") };
                    format!("({sql}\n) = (SELECT {sql}\nFROM (SELECT {row}))")
                }
            })
            .collect();
        conditions.extend(self.filter.iter().map(|filter| format!("({filter}\n)")));
        conditions.join(" AND ")
    }

    /// Whether triggers of this text log the rows that `REPLACE` deletes through the index.
    pub fn is_known(&self, table: &Table, triggers: &str) -> bool {
        let condition = self.collides(table, &|name| format!("NEW.{}", quote(name)));
        let log = quote(&log_name(table));
        triggers.contains(&format!("WHERE {condition} AND NOT EXISTS (SELECT 1 FROM {log} WHERE "))
    }
}

/// The name of the index that keeps the values of a table whole, and the statement that creates it.
pub fn whole_index(table: &Table) -> Option<(String, String)> {
    let name = format!("hw_whole_{}", table.name);
    let key = quote(&table.key_columns().next()?.name);
    let sql = format!("CREATE INDEX {} ON {} ({key} + 1) WHERE {key} IS NULL", quote(&name), quote(&table.name));
    Some((name, sql))
}

/// The name of the view that is made after a table's triggers. It says nothing: in the catalogue it stands behind them, as long as nobody has
/// made them again.
pub fn marker_name(table: &Table) -> String {
    format!("hw_made_{}", table.name)
}

/// A trigger of change tracking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Its name.
    pub name: String,
    /// The statement that creates it, without a semicolon at its end, as `sqlite_schema` has it.
    pub sql: String,
}

/// How a table of the file has its key, where the application made the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyTraits {
    /// SQLite takes rows whose key is NULL.
    pub may_be_null: bool,
    /// SQLite chooses no key that the table has ever had (`AUTOINCREMENT`).
    pub is_autoincrement: bool,
}

/// The triggers of one table; `number` is its place in the model. `uniques`: the model's and the application's own unique indexes.
pub fn triggers(number: usize, table: &Table, uniques: &[Unique], key: KeyTraits) -> Vec<Trigger> {
    let tracking = Tracking { number, table, log: quote(&log_name(table)), own: quote(&table.name), key };
    if table.direction == Direction::Download { tracking.refusals() } else { tracking.logging(uniques) }
}

/// The kinds of triggers that a table may have, of this build or an earlier one.
const TRIGGER_KINDS: [&str; 10] = [
    "insert",
    "update",
    "delete",
    "update_key",
    "inserted",
    "update_unique",
    "key_range",
    "key_range_update",
    "key_used",
    "key_used_update",
];

/// The names of all triggers that [`triggers`] may make for a table.
pub fn trigger_names(table: &Table) -> Vec<String> {
    TRIGGER_KINDS.iter().map(|kind| trigger_name(kind, table)).collect()
}

/// The name of the trigger that is told the keys of new rows, where SQLite may choose them.
pub fn inserted_name(table: &Table) -> String {
    trigger_name("inserted", table)
}

fn trigger_name(kind: &str, table: &Table) -> String {
    format!("hw_{}_{}", kind.to_ascii_lowercase(), table.name)
}

struct Tracking<'a> {
    number: usize,
    table: &'a Table,
    log: String,
    own: String,
    key: KeyTraits,
}

impl Tracking<'_> {
    fn refusals(&self) -> Vec<Trigger> {
        let text = format!(
            "headwater: table {} only comes from the consolidated database (direction = \"download\" in the model)",
            self.table.name
        );
        let body = format!("SELECT RAISE(ABORT, {});", literal(&text));
        ["INSERT", "UPDATE", "DELETE"].iter().map(|event| self.trigger(event, "BEFORE", event, None, &body)).collect()
    }

    fn logging(&self, uniques: &[Unique]) -> Vec<Trigger> {
        let new = |name: &str| format!("NEW.{}", quote(name));
        let in_the_way: Vec<String> =
            uniques.iter().map(|unique| self.log_rows(&unique.collides(self.table, &new))).collect();
        let same_key = self.keys(|k| format!("{}.{k} = +NEW.{k}", self.own));
        let new_key = self.refuse_null()
            + &self.log_rows(&same_key.join(" AND "))
            + &self.log_absent(&self.keys(|k| format!("NEW.{k}")));
        let insert = format!("{}{new_key}{}", in_the_way.concat(), self.log_next());
        let key_changes = self.keys(|k| format!("NEW.{k} IS NOT OLD.{k}")).join(" OR ");
        let mut triggers = self.key_range();
        triggers.extend([
            self.trigger("insert", "BEFORE", "INSERT", None, &insert),
            self.trigger("update", "BEFORE", "UPDATE", None, &self.log_old()),
            self.trigger("delete", "BEFORE", "DELETE", None, &self.log_old()),
            self.trigger("update_key", "BEFORE", "UPDATE", Some(&key_changes), &new_key),
        ]);
        if has_integer_key(self.table) {
            let inserted = self.log_absent(&self.keys(|k| format!("NEW.{k}")));
            triggers.push(self.trigger("inserted", "AFTER", "INSERT", None, &inserted));
        }
        if !in_the_way.is_empty() {
            let changes = unique_changes(uniques);
            triggers.push(self.trigger("update_unique", "BEFORE", "UPDATE", changes.as_deref(), &in_the_way.concat()));
        }
        triggers
    }

    fn trigger(&self, name: &str, time: &str, event: &str, when: Option<&str>, body: &str) -> Trigger {
        let name = trigger_name(name, self.table);
        let when = when.map(|when| format!(" AND ({when})")).unwrap_or_default();
        let sql = format!(
            "CREATE TRIGGER {} {time} {event} ON {}\nWHEN NOT EXISTS (SELECT 1 FROM \"hw_applying\" WHERE \"table\" = {}){when}\n\
             BEGIN\n  {}END",
            quote(&name),
            self.own,
            self.number,
            body
        );
        Trigger { name, sql }
    }

    /// Refuses a key that is NULL, where the table itself does not: such a row can't be told from others.
    fn refuse_null(&self) -> String {
        if !self.key.may_be_null {
            return String::new();
        }
        let text = format!("headwater: the key of table {} may not be NULL", self.table.name);
        let is_null = self.keys(|k| format!("NEW.{k} IS NULL")).join(" OR ");
        format!("SELECT RAISE(ABORT, {}) WHERE {is_null};\n", literal(&text))
    }

    /// Leaves out rows that have no key since before the triggers: they are in no log, and can be given one or deleted.
    fn with_key(&self, row: &str) -> String {
        if !self.key.may_be_null {
            return String::new();
        }
        self.keys(|k| format!(" AND {row}.{k} IS NOT NULL")).concat()
    }

    /// Logs the row that is updated or deleted.
    fn log_old(&self) -> String {
        let (image, with_key) = (self.image("OLD"), self.with_key("OLD"));
        let known = self.known(&self.keys(|k| format!("OLD.{k}")));
        format!(
            "INSERT INTO {} ({}) SELECT {image} WHERE NOT EXISTS ({known}){with_key};\n",
            self.log,
            self.log_columns()
        )
    }

    /// Logs the rows of the table that meet the condition.
    fn log_rows(&self, condition: &str) -> String {
        let own = &self.own;
        let known = self.known(&self.keys(|k| format!("{own}.{k}")));
        format!(
            "INSERT INTO {} ({}) SELECT {} FROM {own} WHERE {condition} AND NOT EXISTS ({known}){};\n",
            self.log,
            self.log_columns(),
            self.image(own),
            self.with_key(own),
        )
    }

    /// Logs that there was no row with this key.
    fn log_absent(&self, key: &[String]) -> String {
        let names = self.keys_named(|name| quote(&format!("k_{name}"))).join(", ");
        let some = key.iter().map(|k| format!("{k} IS NOT NULL")).collect::<Vec<_>>().join(" AND ");
        format!(
            "INSERT INTO {} (\"upload\", {names}, \"existed\") SELECT 0, {}, 0 WHERE {some} AND NOT EXISTS ({});\n",
            self.log,
            key.join(", "),
            self.known(key),
        )
    }

    /// Logs that there was no row with the key that SQLite is going to choose, where it is to choose: `NEW` says -1 then.
    fn log_next(&self) -> String {
        if !has_integer_key(self.table) {
            return String::new();
        }
        let sequence = literal(&self.table.name);
        let largest = |k: &str| {
            let there = format!("coalesce(max({k}), 0)");
            if self.key.is_autoincrement {
                let ever = format!(
                    "coalesce((SELECT max(\"seq\") FROM \"sqlite_sequence\" WHERE \"name\" = {sequence} COLLATE NOCASE), 0)"
                );
                format!("max({there}, {ever})")
            } else {
                there
            }
        };
        self.log_absent(
            &self.keys(|k| format!("CASE WHEN NEW.{k} IS -1 THEN (SELECT {} + 1 FROM {}) END", largest(k), self.own)),
        )
    }

    fn known(&self, key: &[String]) -> String {
        let names = self.keys_named(|name| quote(&format!("k_{name}")));
        let equal: Vec<String> = names.iter().zip(key).map(|(name, value)| format!("{name} = +{value}")).collect();
        format!("SELECT 1 FROM {} WHERE \"upload\" = 0 AND {}", self.log, equal.join(" AND "))
    }

    fn log_columns(&self) -> String {
        let mut names = vec!["\"upload\"".to_owned()];
        names.extend(self.keys_named(|name| quote(&format!("k_{name}"))));
        names.push("\"existed\"".to_owned());
        names.extend(others(self.table).map(|name| quote(&format!("o_{name}"))));
        names.join(", ")
    }

    fn image(&self, row: &str) -> String {
        let mut values = vec!["0".to_owned()];
        values.extend(self.keys(|k| format!("{row}.{k}")));
        values.push("1".to_owned());
        values.extend(others(self.table).map(|name| format!("{row}.{}", quote(name))));
        values.join(", ")
    }

    fn keys(&self, sql: impl Fn(&str) -> String) -> Vec<String> {
        self.keys_named(|name| sql(&quote(name)))
    }

    fn keys_named(&self, sql: impl Fn(&str) -> String) -> Vec<String> {
        self.table.key_columns().map(|column| sql(&column.name)).collect()
    }
}

/// A condition: an update changes a column that is in a unique index. `None` where an expression is, which may read any column.
fn unique_changes(uniques: &[Unique]) -> Option<String> {
    let terms = uniques.iter().flat_map(|unique| &unique.terms);
    let changes: Option<Vec<String>> = terms
        .map(|term| match term {
            Term::Column(name, _) => Some(format!("NEW.{0} IS NOT OLD.{0}", quote(name))),
            Term::Expression(..) => None,
        })
        .collect();
    // A partial index may begin to hold for a row when a column of its condition changes.
    let is_partial = uniques.iter().any(|unique| unique.filter.is_some());
    changes.filter(|_| !is_partial).map(|changes| changes.join(" OR "))
}

/// The names of the columns that are not of the key.
fn others(table: &Table) -> impl Iterator<Item = &str> {
    table
        .columns
        .iter()
        .enumerate()
        .filter(|(place, _)| !table.key.contains(place))
        .map(|(_, column)| column.name.as_str())
}

fn columns(table: &Table, places: &[usize]) -> String {
    places.iter().map(|&place| quote(&table.columns[place].name)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
