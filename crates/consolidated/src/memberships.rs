//! A user's memberships: which partitions a remote of his holds. Read inside the transaction that uses them.
//!
//! A membership whose values are larger than a partition's key may be, or that has a text which is not UTF-8, names no partition that can
//! travel. It counts as no membership at all, and the log names it.

use std::collections::HashSet;

use headwater_model::{Model, Partition, sql};
use headwater_protocol::message::PARTITION_KEY_BYTES_MAX;
use headwater_protocol::row::put_row;
use headwater_protocol::{Row, Type, Value, text};

use crate::backend::{Dialect, Query};
use crate::images::{has_broken_text, logged_text};
use crate::{Connection, Error};

/// A user's memberships in one of the model's partitions.
#[derive(Debug, Default)]
pub struct Members {
    /// The partitions' values, each once.
    pub rows: Vec<Row>,
    left_out: Vec<LeftOut>,
}

/// A membership that can't travel.
#[derive(Debug)]
pub struct LeftOut {
    /// The beginning of its values.
    pub values: String,
    /// The bytes of the partition's key.
    pub bytes: usize,
    /// Why it can't.
    pub why: &'static str,
}

impl From<Vec<Row>> for Members {
    fn from(rows: Vec<Row>) -> Members {
        Members { rows, left_out: Vec::new() }
    }
}

impl Members {
    /// Names in the log the memberships that were left out.
    pub(crate) fn log_left_out(&self, partition: &Partition, user: &str) {
        for LeftOut { values, bytes, why } in &self.left_out {
            let partition = &partition.name;
            tracing::warn!(
                partition,
                user,
                bytes,
                limit = PARTITION_KEY_BYTES_MAX,
                values,
                "a membership is left out: {why}"
            );
        }
    }
}

/// Runs a partition's membership query for a user. Each row is one partition's values, made the partition's types; a number of SQLite's that
/// is of no such type stays what it is, as it does in rows. A row with a NULL names no partition and is left out; a partition that the
/// query returns several times is there once.
pub fn query(
    connection: &mut dyn Connection,
    partition: &Partition,
    user: &str,
    remote_id: &[u8; 16],
) -> Result<Members, Error> {
    let Query { sql, parameters } = asked(partition, user, remote_id);
    let rows = connection.query(&sql, &parameters)?.into_iter().filter(|row| !row.iter().any(Value::is_null));
    let dialect = connection.dialect();
    let found = rows.map(|row| typed(partition, &row, dialect)).collect::<Result<Vec<Row>, Error>>()?;
    let types: Vec<Type> = partition.columns.iter().map(|(_, kind)| kind.base).collect();
    let (mut known, mut members) = (HashSet::with_capacity(found.len()), Members::default());
    for row in found {
        let key = encoded(&types, &row);
        let bytes = key.len();
        if !known.insert(key) {
            continue;
        }
        match judged(&row, bytes) {
            None => members.rows.push(row),
            Some(left_out) => members.left_out.push(left_out),
        }
    }
    Ok(members)
}

/// What a download does with a membership of these values: `None` if it brings the partition. Values that are of no exact type of the
/// partition's stay what they are.
pub fn left_out(partition: &Partition, values: &[Value]) -> Option<LeftOut> {
    let types: Vec<Type> = partition.columns.iter().map(|(_, kind)| kind.base).collect();
    let exact = |(value, kind): (&Value, &Type)| text::coerce(value, *kind).unwrap_or_else(|| value.clone());
    let row: Row = values.iter().zip(&types).map(exact).collect();
    judged(&row, encoded(&types, &row).len())
}

fn judged(row: &Row, bytes: usize) -> Option<LeftOut> {
    why_it_stays(row, bytes).map(|why| LeftOut { values: shown(row), bytes, why })
}

/// Why a partition of these values, whose key has so many bytes, can't travel; `None` if it can.
pub(crate) fn why_it_stays(values: &[Value], bytes: usize) -> Option<&'static str> {
    if bytes > PARTITION_KEY_BYTES_MAX {
        Some("the partition's value is larger than can travel")
    } else if values.iter().any(has_broken_text) {
        Some("the partition's value has a text that is not UTF-8")
    } else {
        None
    }
}

/// The beginning of each value, for the log.
fn shown(row: &Row) -> String {
    const CHARACTERS_MAX: usize = 64;
    let shown = |value: &Value| {
        let value = logged_text(value);
        match value.char_indices().nth(CHARACTERS_MAX) {
            None => value,
            Some((end, _)) => format!("{}...", &value[..end]),
        }
    };
    row.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn encoded(types: &[Type], row: &Row) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_row(&mut bytes, types, row);
    bytes
}

/// What [`query`] asks the database.
pub(crate) fn asked(partition: &Partition, user: &str, remote_id: &[u8; 16]) -> Query {
    let sql = positional(&partition.members);
    let parameters: Vec<Value> = sql
        .1
        .iter()
        .map(|name| match *name {
            Parameter::User => Value::text(user),
            Parameter::RemoteId => Value::text(uuid::Uuid::from_bytes(*remote_id).to_string()),
        })
        .collect();
    Query { sql: sql.0, parameters }
}

/// The same for all partitions of a model.
pub(crate) fn all_asked(model: &Model, user: &str, remote_id: &[u8; 16]) -> Vec<Query> {
    model.partitions.iter().map(|partition| asked(partition, user, remote_id)).collect()
}

/// Whether a partition's membership query can be run and gives a value for each of its columns, whoever asks.
pub fn probe(connection: &mut dyn Connection, partition: &Partition) -> Result<(), Error> {
    let nulls = vec!["NULL"; partition.columns.len()].join(", ");
    // A union refuses parts of different width. The query may end in a comment.
    let members = format!("SELECT {nulls} WHERE 1 = 0 UNION ALL SELECT * FROM (\n{}\n) AS members", partition.members);
    let probed = Partition { members, ..partition.clone() };
    query(connection, &probed, "", &[0; 16]).map(|_| ())
}

fn typed(partition: &Partition, row: &Row, dialect: Dialect) -> Result<Row, Error> {
    let wrong = |detail: String| Error::Database {
        context: format!("membership query of partition `{}`", partition.name),
        detail,
    };
    if row.len() != partition.columns.len() {
        return Err(wrong(format!("gives {} columns, expected {}", row.len(), partition.columns.len())));
    }
    row.iter()
        .zip(&partition.columns)
        .map(|(value, (name, kind))| match text::coerce(value, kind.base) {
            Some(value) => Ok(value),
            None if dialect == Dialect::Sqlite && matches!(value, Value::Int(_) | Value::Real(_)) => Ok(value.clone()),
            None => Err(wrong(format!("column `{name}` is not {kind}"))),
        })
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    User,
    RemoteId,
}

/// The query with `?1`, `?2` for its named parameters, and what they are. Text in quotes and comments is left alone.
fn positional(query: &str) -> (String, Vec<Parameter>) {
    let mut parameters: Vec<Parameter> = Vec::new();
    let sql = sql::with_parameters(query, |name| {
        let parameter = match name {
            ":s.user" => Parameter::User,
            ":s.remote_id" => Parameter::RemoteId,
            // The model's parser has refused others.
            other => return other.to_owned(),
        };
        let place = parameters.iter().position(|known| *known == parameter).unwrap_or_else(|| {
            parameters.push(parameter);
            parameters.len() - 1
        });
        format!("?{}", place + 1)
    });
    (sql, parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_parameters_become_positional_outside_of_quotes() {
        let (sql, parameters) =
            positional("SELECT ':s.user' FROM m WHERE u = :s.user -- :s.user\n AND r = :s.remote_id OR u = :s.user");
        assert_eq!(sql, "SELECT ':s.user' FROM m WHERE u = ?1 -- :s.user\n AND r = ?2 OR u = ?1");
        assert_eq!(parameters, [Parameter::User, Parameter::RemoteId]);
        assert_eq!(positional("SELECT :s.username").0, "SELECT :s.username");
        assert_eq!(positional("SELECT 'open").0, "SELECT 'open");
    }
}
