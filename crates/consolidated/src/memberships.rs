//! A user's memberships: which partitions a remote of his holds. Read inside the transaction that uses them.

use std::collections::HashSet;

use headwater_model::{Model, Partition, sql};
use headwater_protocol::row::put_row;
use headwater_protocol::{Row, Type, Value, text};

use crate::backend::{Dialect, Query};
use crate::{Connection, Error};

/// Runs a partition's membership query for a user. Each row is one partition's values, made the partition's types; a number of SQLite's that
/// is of no such type stays what it is, as it does in rows. A row with a NULL names no partition and is left out; a partition that the
/// query returns several times is there once.
pub fn query(
    connection: &mut dyn Connection,
    partition: &Partition,
    user: &str,
    remote_id: &[u8; 16],
) -> Result<Vec<Row>, Error> {
    let Query { sql, parameters } = asked(partition, user, remote_id);
    let rows = connection.query(&sql, &parameters)?.into_iter().filter(|row| !row.iter().any(Value::is_null));
    let dialect = connection.dialect();
    let mut members = rows.map(|row| typed(partition, &row, dialect)).collect::<Result<Vec<Row>, Error>>()?;
    let types: Vec<Type> = partition.columns.iter().map(|(_, kind)| kind.base).collect();
    let mut known = HashSet::with_capacity(members.len());
    members.retain(|row| known.insert(encoded(&types, row)));
    Ok(members)
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
