//! Connections for SQL that clients send: it reads the application's tables, and nothing else.
//!
//! SQLite knows no roles. Its authorizer is asked of each table that a statement reads, through views too, and of all else that it would do,
//! while the statement is prepared; what is not known to be harmless is denied.
//!
//! *Caveats.* A view of the application's own that reads a table of Headwater's can't be read here.

use std::path::Path;
use std::time::Duration;

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;

use super::connection::SqliteConnection;
use crate::Error;

/// Tables of Headwater's own begin so.
const OWN: &str = "headwater_";
/// And SQLite's own, of which some have samples of others' values (`sqlite_stat4`) or their pages (`sqlite_dbpage`).
const SQLITES: &str = "sqlite_";
/// Of those, what says which tables there are.
const SCHEMAS: [&str; 4] = ["sqlite_schema", "sqlite_master", "sqlite_temp_schema", "sqlite_temp_master"];
/// Pragmas that tell of the schema, and set nothing; and the one by which a full-text index (FTS5) tells whether it has changed.
const TELLING: [&str; 8] = [
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "foreign_key_list",
    "data_version",
];

impl SqliteConnection {
    /// A connection on which a value has no more than so many bytes: a longer one is an error when it is read or made.
    pub(super) fn open_for_client_sql(
        path: &Path,
        busy_timeout: Duration,
        value_bytes_max: u64,
    ) -> Result<SqliteConnection, Error> {
        SqliteConnection::open_with(path, busy_timeout, |inner| {
            inner.pragma_update(None, "query_only", true)?;
            inner.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
            inner.set_limit(Limit::SQLITE_LIMIT_LENGTH, i32::try_from(value_bytes_max).unwrap_or(i32::MAX))?;
            inner.authorizer(Some(judge))
        })
    }
}

fn judge(context: AuthContext<'_>) -> Authorization {
    let is_harmless = match context.action {
        AuthAction::Select | AuthAction::Recursive => true,
        AuthAction::Read { table_name, .. } => is_applications(&table_name.to_ascii_lowercase()),
        AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
        AuthAction::Pragma { pragma_name, .. } => TELLING.iter().any(|name| name.eq_ignore_ascii_case(pragma_name)),
        _ => false,
    };
    if is_harmless { Authorization::Allow } else { Authorization::Deny }
}

/// Of a name in lower case.
fn is_applications(table: &str) -> bool {
    !table.starts_with(OWN) && (!table.starts_with(SQLITES) || SCHEMAS.contains(&table))
}
