//! The remotes that have synced.

use headwater_protocol::{Row, Value};

use super::sql::{array, dialect_sql, integer, text};
use crate::{Connection, Error, Mode};

/// What the database knows of a remote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRecord {
    /// The remote ID.
    pub remote_id: [u8; 16],
    /// Who synced last.
    pub user: String,
    /// The model's name.
    pub model: String,
    /// The model's version.
    pub model_version: u32,
    /// How many uploads have been applied.
    pub upload_sequence: u64,
    /// When it synced first.
    pub created_at: String,
    /// When it synced last.
    pub last_sync_at: String,
}

/// Every remote, the last to sync first; at most `limit`.
pub fn remotes(connection: &mut dyn Connection, limit: u32) -> Result<Vec<RemoteRecord>, Error> {
    let sql = format!(
        "SELECT remote_id, user_name, model, model_version, upload_sequence, created_at, last_sync_at FROM {{hw}}remote \
         ORDER BY last_sync_at DESC, remote_id LIMIT {limit}"
    );
    connection.query(&dialect_sql(connection.dialect(), &sql), &[])?.iter().map(record).collect()
}

/// Forgets these remotes, and the key ranges that they had: one of them that syncs again is a new one. All of them or none.
pub fn forget_remotes(connection: &mut dyn Connection, remote_ids: &[[u8; 16]]) -> Result<(), Error> {
    connection.begin(Mode::Upload)?;
    for remote_id in remote_ids {
        for table in ["key_range", "remote"] {
            let sql = dialect_sql(connection.dialect(), &format!("DELETE FROM {{hw}}{table} WHERE remote_id = ?1"));
            connection.execute(&sql, &[Value::Bytes(remote_id.to_vec())])?;
        }
    }
    connection.commit()
}

fn record(row: &Row) -> Result<RemoteRecord, Error> {
    Ok(RemoteRecord {
        remote_id: array(row.first(), "remote_id")?,
        user: text(row.get(1), "user_name")?,
        model: text(row.get(2), "model")?,
        model_version: integer(row.get(3), "model_version")? as u32,
        upload_sequence: integer(row.get(4), "upload_sequence")? as u64,
        created_at: text(row.get(5), "created_at")?,
        last_sync_at: text(row.get(6), "last_sync_at")?,
    })
}
