//! Indexes of the application's that don't fit their table here: it was filled with another `NOCASE`, or another `lower()`, than ours.
//!
//! SQLite lets a program redefine collations and functions, as builds with ICU do. An index that is ordered or computed by them looks like
//! any other in the file. A write of ours would put its entry where the application does not find it, or not find the one that it is to
//! delete. So such indexes are checked after a change of the schema, before anything is written, as SQLite's own `integrity_check` does it: each
//! row is looked for in the index, and the entries are counted. Where one does not fit, no row of the table is stored, and what comes is held until it does
//! ([`crate::writing`]).
//!
//! Only indexes are checked that may depend on such: on an expression, on a generated column, with a condition, or of another collation than
//! `BINARY`. The version of the schema at which a table's indexes fitted is kept. An index that does not fit is checked again at each sync.
//!
//! *Caveats.* An index whose rows are the same by both definitions (all of ASCII) fits. What is written after the check shows only when SQLite
//! does not find an entry that it is to delete; from then on the table counts as one whose indexes don't fit. In an index on an expression SQLite
//! finds it by the key, whatever the expression gives: there nothing shows until the schema changes.

use std::cell::RefCell;
use std::collections::HashMap;

use headwater_model::sql::quote;
use rusqlite::{Connection, OptionalExtension, ffi, params};

use crate::database::Database;
use crate::error::{Error, While};
use crate::index_sql;
use crate::plan::TablePlan;
use crate::rows::Rows;

/// By table: why no row of it can be written.
#[derive(Debug, Default)]
pub(crate) struct Unfit(RefCell<HashMap<u32, Option<String>>>);

impl Rows<'_> {
    /// Why no row of a table can be written: the first of its indexes that does not fit.
    pub(crate) fn unfit(&self, table: &TablePlan) -> Result<Option<String>, Error> {
        if let Some(known) = self.unfit.0.borrow().get(&table.number) {
            return Ok(known.clone());
        }
        let index = look(self.connection, table).while_doing("checking the indexes of a table")?;
        let why = index.map(|index| why(&index));
        if let Some(why) = &why {
            tracing::warn!(
                table = table.table.name,
                why,
                "rows of a table can't be stored; they are held and tried again"
            );
        }
        self.unfit.0.borrow_mut().insert(table.number, why.clone());
        Ok(why)
    }

    /// What a statement says that did not find an entry of an index of the application's: nothing is written to that table any more.
    pub(crate) fn found_unfit(
        &self,
        table: &TablePlan,
        result: &rusqlite::Result<usize>,
    ) -> Result<Option<String>, Error> {
        let Err(rusqlite::Error::SqliteFailure(error, _)) = result else { return Ok(None) };
        if error.extended_code != ffi::SQLITE_CORRUPT_INDEX {
            return Ok(None);
        }
        let indexes = in_question(self.connection, table).while_doing("checking the indexes of a table")?;
        if indexes.is_empty() {
            return Ok(None);
        }
        set_checked(self.connection, table, None).while_doing("checking the indexes of a table")?;
        let why = why(&indexes.join("\" or \""));
        self.unfit.0.borrow_mut().insert(table.number, Some(why.clone()));
        Ok(Some(why))
    }
}

pub(crate) fn why(index: &str) -> String {
    format!(
        "index \"{index}\" does not fit the rows here: the application seems to have a NOCASE, a lower() or the like of its own; drop the \
         index, or make it with a collation or function of another name"
    )
}

/// Checks the indexes of a table while nobody has to wait, so that it is known when something is to be written.
pub(crate) fn check_ahead(database: &Database, table: &TablePlan) -> Result<(), Error> {
    let doing = "checking the indexes of a table";
    let connection = &database.connection;
    let Some((indexes, version)) = unchecked(connection, table).while_doing(doing)? else { return Ok(()) };
    if check(connection, table, &indexes).while_doing(doing)?.is_some() {
        return Ok(());
    }
    database.write(doing, |connection| set_checked(connection, table, Some(version)).while_doing(doing))
}

/// The first index of a table that does not fit.
pub(crate) fn look(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Option<String>> {
    let Some((indexes, version)) = unchecked(connection, table)? else { return Ok(None) };
    let unfit = check(connection, table, &indexes)?;
    if unfit.is_none() {
        set_checked(connection, table, Some(version))?;
    }
    Ok(unfit)
}

/// The indexes of a table that are to be checked, and the version of the schema; `None`: they fitted at that version, or there are none.
fn unchecked(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Option<(Vec<String>, i64)>> {
    let indexes = in_question(connection, table)?;
    if indexes.is_empty() {
        return Ok(None);
    }
    let version: i64 = connection.prepare_cached("PRAGMA main.schema_version")?.query_row([], |row| row.get(0))?;
    let sql = "SELECT 1 FROM \"hw_tracking\" WHERE \"table\" = ? AND \"checked\" = ?";
    let is_checked = connection.prepare_cached(sql)?.exists(params![table.number, version])?;
    Ok((!is_checked).then_some((indexes, version)))
}

/// The indexes of a table that may depend on what a program can redefine.
fn in_question(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT i.name FROM pragma_index_list(?1) AS i WHERE i.name NOT LIKE 'hw\\_%' ESCAPE '\\' AND (i.partial \
               OR EXISTS (SELECT 1 FROM pragma_index_xinfo(i.name) AS x WHERE x.key AND (x.cid < -1 OR upper(x.coll) <> 'BINARY' \
               OR x.cid IN (SELECT cid FROM pragma_table_xinfo(?1) WHERE hidden > 1)))) ORDER BY i.name";
    connection.prepare_cached(sql)?.query_map([&table.table.name], |row| row.get(0))?.collect()
}

fn check(connection: &Connection, table: &TablePlan, indexes: &[String]) -> rusqlite::Result<Option<String>> {
    // What can't be computed here at all shows with the row that is to be written.
    if let Some(index) = first_named(connection, table, indexes).unwrap_or_default() {
        return Ok(Some(index));
    }
    for index in indexes {
        if has_others(connection, table, index)? {
            return Ok(Some(index.clone()));
        }
    }
    Ok(None)
}

/// The first of these indexes that SQLite finds at fault; it looks no further.
fn first_named(connection: &Connection, table: &TablePlan, indexes: &[String]) -> rusqlite::Result<Option<String>> {
    let mut select = connection.prepare_cached("SELECT integrity_check FROM pragma_integrity_check(?)")?;
    let mut said = select.query([&table.table.name])?;
    while let Some(row) = said.next()? {
        let line: String = row.get(0)?;
        let named = indexes.iter().find(|index| line.ends_with(&format!(" index {index}")));
        if named.is_some() {
            return Ok(named.cloned());
        }
    }
    Ok(None)
}

/// Whether an index with a condition has another number of entries than the table has rows that meet it, which `integrity_check` does not
/// look at.
fn has_others(connection: &Connection, table: &TablePlan, index: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ? AND sql IS NOT NULL";
    let sql: Option<String> = connection.prepare_cached(sql)?.query_row([index], |row| row.get(0)).optional()?;
    let Some((_, Some(filter))) = sql.as_deref().and_then(index_sql::terms) else { return Ok(false) };
    let (own, index) = (table.name(), quote(index));
    // Lines of their own: the condition may end with a comment.
    let sql = format!(
        "SELECT (SELECT count(*) FROM {own} INDEXED BY {index} WHERE {filter}\n) \
         <> (SELECT count(*) FROM {own} NOT INDEXED WHERE {filter}\n)"
    );
    Ok(connection.query_row(&sql, [], |row| row.get(0)).unwrap_or(false))
}

fn set_checked(connection: &Connection, table: &TablePlan, version: Option<i64>) -> rusqlite::Result<()> {
    let sql = "UPDATE \"hw_tracking\" SET \"checked\" = ? WHERE \"table\" = ?";
    connection.prepare_cached(sql)?.execute(params![version, table.number]).map(drop)
}
