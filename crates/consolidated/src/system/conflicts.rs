//! The conflicts on record.

use headwater_protocol::{Row, Value};

use super::sql::{array, dialect_sql, integer, optional_text, text};
use crate::{Connection, Error};

/// One conflict: the images as JSON objects (`null` where there was no row).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictRecord {
    /// Its number; later ones are greater.
    pub id: i64,
    /// When it was judged.
    pub at: String,
    /// Whose upload it was.
    pub remote_id: [u8; 16],
    /// Who synced.
    pub user: String,
    /// The table.
    pub table: String,
    /// The row's key.
    pub key: String,
    /// What the remote thought was stored; `None`: nothing.
    pub old: Option<String>,
    /// What the remote wanted; `None`: a deletion.
    pub uploaded: Option<String>,
    /// What was stored; `None`: nothing.
    pub stored: Option<String>,
    /// How it ended: `consolidated`, `remote` or `merged`.
    pub outcome: String,
    /// What is stored now; `None`: nothing.
    pub result: Option<String>,
}

/// Which conflicts are asked for.
#[derive(Clone, Debug)]
pub struct ConflictQuery {
    /// Of one table only.
    pub table: Option<String>,
    /// Of one remote only.
    pub remote_id: Option<[u8; 16]>,
    /// Only those before this one (for pages).
    pub before: Option<i64>,
    /// At most so many.
    pub limit: u32,
}

impl Default for ConflictQuery {
    fn default() -> Self {
        ConflictQuery { table: None, remote_id: None, before: None, limit: 100 }
    }
}

/// Conflicts, the latest first.
pub fn conflicts(connection: &mut dyn Connection, query: &ConflictQuery) -> Result<Vec<ConflictRecord>, Error> {
    let mut values = Vec::new();
    let mut wheres = Vec::new();
    let mut condition = |column: &str, value: Option<Value>| {
        if let Some(value) = value {
            values.push(value);
            wheres.push(format!("{column} ?{}", values.len()));
        }
    };
    condition("table_name =", query.table.as_ref().map(Value::text));
    condition("remote_id =", query.remote_id.map(|id| Value::Bytes(id.to_vec())));
    condition("id <", query.before.map(Value::Int));
    let filter = if wheres.is_empty() { String::new() } else { format!(" WHERE {}", wheres.join(" AND ")) };
    let sql = format!(
        "SELECT id, at, remote_id, user_name, table_name, row_key, old_image, uploaded_image, stored_image, outcome, result_image \
         FROM {{hw}}conflict{filter} ORDER BY id DESC LIMIT {}",
        query.limit
    );
    connection.query(&dialect_sql(connection.dialect(), &sql), &values)?.iter().map(record).collect()
}

fn record(row: &Row) -> Result<ConflictRecord, Error> {
    Ok(ConflictRecord {
        id: integer(row.first(), "id")?,
        at: text(row.get(1), "at")?,
        remote_id: array(row.get(2), "remote_id")?,
        user: text(row.get(3), "user_name")?,
        table: text(row.get(4), "table_name")?,
        key: text(row.get(5), "row_key")?,
        old: optional_text(row.get(6)),
        uploaded: optional_text(row.get(7)),
        stored: optional_text(row.get(8)),
        outcome: text(row.get(9), "outcome")?,
        result: optional_text(row.get(10)),
    })
}
