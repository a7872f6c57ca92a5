//! Tables that were in the file before it became a remote: their rows are kept, and all are pending inserts until a download has shown
//! which of them the consolidated database has.
//!
//! A table is adopted as it stands where change tracking and values are sure to work: each column of the model is there and keeps values
//! as the model's type needs (SQLite's affinity) and compares them byte by byte, the primary key is the model's, and what else must be unique is so in the model too.

use headwater_model::remote_sql::{create_log, declared_type, has_integer_key};
use headwater_model::sql::quote;
use rusqlite::{Connection, OptionalExtension};

use crate::error::{Error, While};
use crate::index_sql;
use crate::plan::{Plan, TablePlan};
use crate::schema;

/// A column of the file, as the catalogue has it.
struct Found {
    name: String,
    declared: String,
    not_null: bool,
    has_default: bool,
    /// Its place in the primary key, from 1; 0: none.
    key: usize,
}

/// Why one table can't be adopted; `None`: it can.
pub(crate) fn obstacle(connection: &Connection, table: &TablePlan) -> Result<Option<String>, Error> {
    let found = columns(connection, table).while_doing("reading the catalogue")?;
    let model = &table.table;
    for column in &model.columns {
        let Some(own) = found.iter().find(|own| own.name.eq_ignore_ascii_case(&column.name)) else {
            return Ok(Some(format!("it has no column {:?}", column.name)));
        };
        let expected = declared_type(column.kind);
        if !fits(&own.declared, &expected) {
            return Ok(Some(format!("column {:?} is declared {:?}, expected {expected}", column.name, own.declared)));
        }
        if let Some(other) = other_collation(connection, table, own).while_doing("reading the catalogue")? {
            return Ok(Some(format!(
                "column {:?} is compared by {other}, to which values are equal that differ for everybody else; expected BINARY",
                column.name
            )));
        }
    }
    let is_known = |own: &Found| model.columns.iter().any(|column| column.name.eq_ignore_ascii_case(&own.name));
    if let Some(own) = found.iter().find(|own| !is_known(own) && own.not_null && !own.has_default) {
        return Ok(Some(format!("column {:?} is not in the model, may not be NULL, and has no default", own.name)));
    }
    let mut key: Vec<&Found> = found.iter().filter(|own| own.key > 0).collect();
    key.sort_by_key(|own| own.key);
    let mut names: Vec<String> = key.iter().map(|own| own.name.to_ascii_lowercase()).collect();
    let mut expected: Vec<String> = model.key_columns().map(|column| column.name.to_ascii_lowercase()).collect();
    names.sort();
    expected.sort();
    if names != expected {
        return Ok(Some(format!("its primary key is ({}), expected ({})", names.join(", "), expected.join(", "))));
    }
    if has_integer_key(model) && key.iter().any(|own| !own.declared.eq_ignore_ascii_case("INTEGER")) {
        return Ok(Some("its key is not declared INTEGER PRIMARY KEY".to_owned()));
    }
    if let Some(what) = foreign_unique(connection, table).while_doing("reading the catalogue")? {
        return Ok(Some(what));
    }
    if let Some(rule) = conflict_rule(connection, table).while_doing("reading the catalogue")? {
        return Ok(Some(format!(
            "it says ON CONFLICT {}, by which rows go or stay out without a word; expected none",
            rule.to_uppercase()
        )));
    }
    let is_null: Vec<String> = table.keys("").iter().map(|own| format!("{own} IS NULL")).collect();
    let sql = format!("SELECT 1 FROM {} WHERE {}", table.name(), is_null.join(" OR "));
    let has_null = connection.prepare(&sql).and_then(|mut select| select.exists([]));
    let what = "a row of it has no key (NULL): give it one, or delete it";
    Ok(has_null.while_doing("reading the rows to adopt")?.then(|| what.to_owned()))
}

/// What the table itself does with a row that breaks one of its rules, if not refuse it.
fn conflict_rule(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE";
    let sql: Option<String> = connection.query_row(sql, [&table.table.name], |row| row.get(0)).optional()?;
    let words = index_sql::words(sql.as_deref().unwrap_or_default());
    let rules = words.windows(3).filter(|three| three[0] == "on" && three[1] == "conflict").map(|three| &three[2]);
    Ok(rules.into_iter().find(|rule| *rule != "abort").cloned())
}

/// How values of a column are compared, if not byte by byte: by the column's own collation, or by that of its place in the key.
fn other_collation(connection: &Connection, table: &TablePlan, column: &Found) -> rusqlite::Result<Option<String>> {
    const BINARY: &str = "BINARY";
    let sql = "SELECT c.coll FROM pragma_index_list(?1) i, pragma_index_xinfo(i.name) c \
               WHERE i.origin = 'pk' AND c.key AND c.name = ?2 COLLATE NOCASE";
    let of_key: Option<String> =
        connection.query_row(sql, [&table.table.name, &column.name], |row| row.get(0)).optional()?;
    let (_, own, ..) = connection.column_metadata(Some("main"), table.table.name.as_str(), column.name.as_str())?;
    let own = own.map(|own| own.to_string_lossy().into_owned());
    Ok(of_key.into_iter().chain(own).find(|collation| !collation.eq_ignore_ascii_case(BINARY)))
}

/// Makes the log of a table that is there, with every row as a pending insert.
pub(crate) fn adopt(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    if !table.is_tracked() {
        return Ok(());
    }
    connection.execute_batch(&create_log(&table.table)).while_doing("adopting a table")?;
    let (own, logged): (Vec<String>, Vec<String>) = (table.keys(""), table.keys("k_"));
    let sql = format!(
        "INSERT INTO {} (\"upload\", {}, \"existed\") SELECT 0, {}, 0 FROM {}",
        table.log(),
        logged.join(", "),
        own.join(", "),
        table.name()
    );
    connection.execute(&sql, []).while_doing("adopting a table").map(drop)
}

/// Which of the model's tables are in the file already.
pub(crate) fn present<'p>(connection: &Connection, plan: &'p Plan) -> Result<Vec<&'p TablePlan>, Error> {
    let mut present = Vec::new();
    for table in &plan.tables {
        if schema::exists(connection, &table.table.name)? {
            present.push(table);
        }
    }
    Ok(present)
}

fn columns(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Vec<Found>> {
    let sql = "SELECT name, type, \"notnull\", dflt_value IS NOT NULL, pk FROM pragma_table_xinfo(?) WHERE hidden = 0";
    let mut select = connection.prepare(sql)?;
    let found = select.query_map([&table.table.name], |row| {
        Ok(Found {
            name: row.get(0)?,
            declared: row.get(1)?,
            not_null: row.get(2)?,
            has_default: row.get(3)?,
            key: row.get::<_, i64>(4)? as usize,
        })
    })?;
    found.collect()
}

/// A UNIQUE of the table's own that the model does not have: rows that `REPLACE` deletes through it would not be tracked. (Indexes are
/// seen, these have no statement to read.)
fn foreign_unique(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT group_concat(c.name, char(10)) FROM pragma_index_list(?) i, pragma_index_info(i.name) c \
               WHERE i.origin = 'u' GROUP BY i.name";
    let mut select = connection.prepare(sql)?;
    let found: Vec<String> =
        select.query_map([&table.table.name], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let sorted = |names: Vec<String>| {
        let mut names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        names.sort();
        names
    };
    let model = &table.table;
    let known: Vec<Vec<String>> = model
        .unique
        .iter()
        .map(|places| sorted(places.iter().map(|place| model.columns[*place].name.clone()).collect()))
        .collect();
    let unknown = found
        .into_iter()
        .map(|names| sorted(names.split('\n').map(str::to_owned).collect()))
        .find(|names| !known.contains(names));
    Ok(unknown.map(|names| {
        let names: Vec<String> = names.iter().map(|name| quote(name)).collect();
        format!("({}) is unique in it and not in the model: add it to the table's `unique`", names.join(", "))
    }))
}

/// Whether a declared type keeps values as another does: SQLite's rules of affinity. INTEGER and NUMERIC keep alike.
fn fits(declared: &str, expected: &str) -> bool {
    let affinity = |declared: &str| {
        let declared = declared.to_ascii_uppercase();
        let has = |word: &str| declared.contains(word);
        if has("INT") {
            "NUMERIC"
        } else if has("CHAR") || has("CLOB") || has("TEXT") {
            "TEXT"
        } else if has("BLOB") || declared.is_empty() {
            "BLOB"
        } else if has("REAL") || has("FLOA") || has("DOUB") {
            "REAL"
        } else {
            "NUMERIC"
        }
    };
    // Older versions gave text affinity where columns have none now: what they hold is kept as well.
    let is_text = |affinity: &str| matches!(affinity, "TEXT" | "BLOB");
    affinity(declared) == affinity(expected) || expected.ends_with("_BLOB") && is_text(affinity(declared))
}
