//! One life of a database: from the greeting to the count of a sync nothing may have been put in its place.
//!
//! A sync uses several transactions. Between two of them a standby may be promoted without the last second, an old data directory or an old file
//! be put back. What was read in one life and counted in the next would hide what the next has not: the count that shows the loss
//! ([`super::seal`]) would be made without a comparison. So each of these transactions says in which life it runs:
//!
//! | database | a life is |
//! |---|---|
//! | PostgreSQL | system identifier, OIDs of the database and of `identity`; timeline; when the server was started, and when its statistics were reset (a crash of one of its processes resets them and may lose commits without `synchronous_commit`); incarnation |
//! | SQLite | device and number of the open file; incarnation |
//!
//! It comes along with statements that are asked anyway, or beside them.
//!
//! *Caveats.* A SQLite file that is overwritten in place (`.restore`) is the same file. The count finds that where the version is then below what
//! the download has seen, or the count below the one presented.

use headwater_protocol::Value;

use super::identity::POSTGRES_ID_SQL;
use super::sql::{dialect_sql, text};
use crate::backend::Query;
use crate::{Connection, Dialect, Error};

/// One life of a database. Only whether two are the same means anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life(String);

impl Life {
    /// What [`life_sql`] gave on this connection.
    pub(super) fn read(connection: &dyn Connection, value: Option<&Value>) -> Result<Life, Error> {
        Ok(Life(format!("{}{}", connection.file_id(), text(value, "life")?)))
    }

    /// As [`life_sql`] gives it, where the database is no file.
    pub(super) fn as_text(&self) -> &str {
        &self.0
    }

    /// The life in which a transaction runs; it may have asked [`life_asked`] along with its beginning.
    pub(crate) fn of(connection: &mut dyn Connection) -> Result<Life, Error> {
        let Query { sql, parameters } = life_asked(connection.dialect());
        let rows = connection.query(&sql, &parameters)?;
        Life::read(connection, rows.first().and_then(|row| row.first()))
    }

    /// Fails unless this, of the greeting, is the life in which the transaction runs.
    pub(crate) fn compare(&self, connection: &mut dyn Connection) -> Result<(), Error> {
        if *self == Life::of(connection)? { Ok(()) } else { Err(Error::OtherLife) }
    }
}

/// The life, where the identity `i` is read.
pub(super) fn life_sql(dialect: Dialect) -> String {
    match dialect {
        Dialect::Sqlite => "lower(hex(i.incarnation))".to_owned(),
        Dialect::Postgres => format!(
            "({POSTGRES_ID_SQL} || '/' || \
             CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END || '/' || \
             extract(epoch FROM pg_postmaster_start_time())::text || '/' || \
             coalesce(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())::text, '') || '/' || encode(i.incarnation, 'hex'))"
        ),
    }
}

/// The query that [`Life::of`] asks, so that it may be asked along with a transaction's beginning.
pub(crate) fn life_asked(dialect: Dialect) -> Query {
    let sql = format!("SELECT {} FROM {{hw}}identity i", life_sql(dialect));
    Query { sql: dialect_sql(dialect, &sql), parameters: Vec::new() }
}
