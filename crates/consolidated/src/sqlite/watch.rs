//! What a query depends on, and whether that has changed.
//!
//! SQLite tells its authorizer of each table that a statement reads, through views too, and of each function that it calls. The last change of
//! a tracked table is on record by its version; there is one writer, so the last is the greatest.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use headwater_model::sql::literal;
use headwater_protocol::{Row, Value};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use sha2::{Digest as _, Sha256};

use super::connection::SqliteConnection;
use super::error::sort;
use crate::catalogue::{integer, text};
use crate::watch::{Marked, Watched};
use crate::{Connection as _, Error};

/// Functions that give another value for the same arguments, or may.
const STRANGE: [&str; 15] = [
    "random",
    "randomblob",
    "changes",
    "total_changes",
    "last_insert_rowid",
    "date",
    "time",
    "datetime",
    "julianday",
    "unixepoch",
    "strftime",
    "timediff",
    "current_date",
    "current_time",
    "current_timestamp",
];
/// The triggers that a tracked table has at least.
const TRIGGERS_MIN: i64 = 5;

/// What a statement reads.
#[derive(Debug, Default)]
struct Reads {
    tables: BTreeSet<String>,
    is_strange: bool,
}

impl SqliteConnection {
    /// What is to be known of a query to watch it; `None`: it can't be.
    pub(super) fn watch_query(&mut self, sql: &str) -> Result<Option<Watched>, Error> {
        // One that can't be prepared is told of when it is run.
        let Some(reads) = self.reads_of(sql)? else { return Ok(None) };
        if reads.is_strange || reads.tables.is_empty() {
            return Ok(None);
        }
        let names: Vec<String> = reads.tables.iter().map(|name| literal(name)).collect();
        let sql = marking_sql(&names.join(", "));
        // Headwater's own tables are there where something is tracked.
        let installed =
            "SELECT count(*) FROM sqlite_schema WHERE name IN ('headwater_table_change', 'headwater_identity')";
        if self.query(installed, &[])?.first().is_none_or(|row| integer(row, 0) < 2) {
            return Ok(None);
        }
        let state = self.query(&sql, &[])?.first().map(|row| self.state_of(row)).unwrap_or_default();
        for name in &reads.tables {
            if !self.is_tracked(name)? {
                return Ok(None);
            }
        }
        let names = self.file_number();
        Ok(Some(Watched { sql, state, outlook_sql: String::new(), names }))
    }

    /// Whether changes of a table are noted; a view has none of its own.
    fn is_tracked(&mut self, name: &str) -> Result<bool, Error> {
        let sql = "SELECT t.type, (SELECT count(*) FROM sqlite_schema g WHERE g.type = 'trigger' AND g.tbl_name = t.name \
                   AND g.name LIKE 'headwater\\_%' ESCAPE '\\' AND g.sql LIKE '%headwater\\_table\\_change%' ESCAPE '\\') \
                   FROM sqlite_schema t WHERE t.type IN ('table', 'view') AND t.name = ?1 COLLATE NOCASE";
        let rows = self.query(sql, &[Value::text(name)])?;
        Ok(rows.first().is_some_and(|row| text(row, 0) == "view" || integer(row, 1) >= TRIGGERS_MIN))
    }

    fn reads_of(&mut self, sql: &str) -> Result<Option<Reads>, Error> {
        let reads = Arc::new(Mutex::new(Reads::default()));
        let noting = Arc::clone(&reads);
        let note = move |context: AuthContext<'_>| {
            let mut reads = noting.lock().unwrap_or_else(PoisonError::into_inner);
            match context.action {
                AuthAction::Read { table_name, .. } => {
                    reads.tables.insert(table_name.to_owned());
                }
                AuthAction::Function { function_name } => {
                    reads.is_strange |= STRANGE.iter().any(|name| name.eq_ignore_ascii_case(function_name));
                }
                _ => {}
            }
            Authorization::Allow
        };
        let told = |error| sort(error, "looking into a query");
        self.inner.authorizer(Some(note)).map_err(told)?;
        // Anew: one that is kept prepared is not told of.
        let is_prepared = self.inner.prepare(sql).is_ok();
        self.inner.authorizer(None::<fn(AuthContext<'_>) -> Authorization>).map_err(told)?;
        let mut reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(is_prepared.then(|| std::mem::take(&mut *reads)))
    }

    /// What the schema is, in which file, and since when the system runs.
    fn state_of(&self, row: &Row) -> String {
        format!("{}/{}/{}", self.file_number().unwrap_or_default(), life_of_system(), text(row, 0))
    }

    /// What is known of a watched query's tables now.
    pub(super) fn mark_of(&mut self, watched: &Watched, since: Option<&str>) -> Result<Marked, Error> {
        self.check_file()?;
        let rows = self.query(&watched.sql, &[])?;
        let Some(row) = rows.first().filter(|row| self.state_of(row) == watched.state) else {
            return Ok(Marked::Altered);
        };
        let mark = watched.mark(&Sha256::digest(text(row, 1))[..16]);
        Ok(if since == Some(&mark) { Marked::Unchanged(mark) } else { Marked::Changed(mark) })
    }
}

/// What is another value when the system was started again: what was committed without a wait for the disk may be lost then.
fn life_of_system() -> &'static str {
    static LIFE: OnceLock<String> = OnceLock::new();
    LIFE.get_or_init(|| {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
    })
}

/// Gives the state of the schema and of the database, and the versions of these tables.
fn marking_sql(names: &str) -> String {
    format!(
        "SELECT (SELECT schema_version FROM pragma_schema_version) || '/' || (SELECT hex(incarnation) FROM headwater_identity), \
         'at ' || coalesce((SELECT group_concat(table_name || ':' || version, '/') FROM (SELECT table_name, version \
         FROM headwater_table_change WHERE table_name COLLATE NOCASE IN ({names}) ORDER BY table_name)), '')"
    )
}
