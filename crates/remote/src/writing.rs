//! Statements that store rows of a table, in a file where the application has objects of its own.
//!
//! With such a statement SQLite compiles the table's triggers, and computes its indexes and generated columns. If one of these does not work on
//! our connection, the statement fails:
//!
//! | | when it fails |
//! |---|---|
//! | a function, collation, tokenizer or module that only the application has; a trigger on a table that is gone | each statement, before it runs |
//! | an expression that can't be computed of one row (no JSON, an overflow); a full-text table that has lost count | with that row |
//! | an index that was filled with another collation or function of a standard name ([`crate::unfit`]) | not, or with some row: none is stored |
//!
//! Neither is an error of the sync: that row, or that table's rows, are held and tried again, and the reason names the objects.

use std::cell::RefCell;
use std::collections::HashMap;

use rusqlite::{CachedStatement, Connection, ErrorCode, ffi, params_from_iter};

use crate::error::{Error, While};
use crate::index_sql;
use crate::local::Local;
use crate::plan::TablePlan;
use crate::rows::{Placed, Rows};
use crate::upgrade::own::{self, Own};

/// How many objects a reason names.
const NAMED_MAX: usize = 5;

/// Statements that can't be prepared, each with the reason.
#[derive(Debug, Default)]
pub(crate) struct Unprepared(RefCell<HashMap<String, String>>);

impl<'c> Rows<'c> {
    /// A statement that stores rows of a table; otherwise why there can be none.
    pub(crate) fn prepare_writing(
        &self,
        table: &TablePlan,
        sql: &str,
    ) -> Result<Result<CachedStatement<'c>, String>, Error> {
        if let Some(why) = self.unprepared.0.borrow().get(sql) {
            return Ok(Err(why.clone()));
        }
        if let Some(why) = self.unfit(table)? {
            return Ok(Err(why));
        }
        let error = match self.connection.prepare_cached(sql) {
            Ok(statement) => return Ok(Ok(statement)),
            Err(error) => error,
        };
        let Some(why) = fault(&error) else { return Err(error).while_doing("preparing a statement") };
        let why = named(self.connection, table, &why)?;
        tracing::warn!(table = table.table.name, why, "rows of a table can't be stored; they are held and tried again");
        self.unprepared.0.borrow_mut().insert(sql.to_owned(), why.clone());
        Ok(Err(why))
    }

    /// Runs a statement that stores rows of a table, or deletes them; gives how many.
    pub(crate) fn run(&self, table: &TablePlan, sql: &str, values: &[Local]) -> Result<(Placed, usize), Error> {
        let mut statement = match self.prepare_writing(table, sql)? {
            Ok(statement) => statement,
            Err(why) => return Ok((Placed::Refused(why), 0)),
        };
        let done = statement.execute(params_from_iter(values));
        let count = done.as_ref().copied().unwrap_or_default();
        Ok((self.placed(table, done)?, count))
    }
}

/// What an error says that the application's own objects are at fault for, or a row; `None`: it is another's.
pub(crate) fn fault(error: &rusqlite::Error) -> Option<String> {
    let (code, text) = match error {
        rusqlite::Error::SqliteFailure(code, text) => (code, text.clone()),
        rusqlite::Error::SqlInputError { error, msg, .. } => (error, Some(msg.clone())),
        _ => return None,
    };
    let is_objects = code.code == ErrorCode::Unknown && code.extended_code & 0xff == ffi::SQLITE_ERROR;
    let is_full_text = code.extended_code == ffi::SQLITE_CORRUPT_VTAB;
    let why = || text.unwrap_or_else(|| code.to_string());
    match (is_objects, is_full_text) {
        (true, _) => Some(why()),
        (_, true) => Some("a virtual table, of full texts perhaps, does not fit its rows any more".to_owned()),
        _ => None,
    }
}

/// A reason, with the application's objects on a table that it may be about: those that have a word of it, or all.
pub(crate) fn named(connection: &Connection, table: &TablePlan, why: &str) -> Result<String, Error> {
    let objects = objects(connection, table)?;
    let said = index_sql::words(why.rsplit(": ").next().unwrap_or_default());
    let has_word = |(_, sql): &&(String, String)| index_sql::words(sql).iter().any(|word| said.contains(word));
    let about: Vec<&(String, String)> = objects.iter().filter(has_word).collect();
    let about = if about.is_empty() || about.len() == objects.len() { objects.iter().collect() } else { about };
    let mut names: Vec<&str> = about.iter().map(|(name, _)| name.as_str()).collect();
    let beyond = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let more = if beyond > 0 { format!(" and {beyond} more") } else { String::new() };
    Ok(match names.as_slice() {
        [] => why.to_owned(),
        names => format!("{why} (the application's own on table {:?}: {}{more})", table.table.name, names.join(", ")),
    })
}

/// The application's indexes and triggers on a table: what each is called, and its SQL.
fn objects(connection: &Connection, table: &TablePlan) -> Result<Vec<(String, String)>, Error> {
    let mut objects = Vec::new();
    for kind in ["index", "trigger"] {
        let found = own::on(connection, table, kind)?.into_iter();
        objects.extend(found.map(|Own { name, sql }| (format!("{kind} {name:?}"), sql)));
    }
    Ok(objects)
}
