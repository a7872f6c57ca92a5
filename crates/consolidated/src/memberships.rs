//! A user's memberships: which partitions a remote of his holds. Read inside the transaction that uses them.

use headwater_model::Partition;
use headwater_protocol::{Row, Value, text};

use crate::{Connection, Error};

/// Runs a partition's membership query for a user. Each row is one partition's values, made the partition's types; rows with a NULL
/// name no partition and are left out.
pub fn query(
    connection: &mut dyn Connection,
    partition: &Partition,
    user: &str,
    remote_id: &[u8; 16],
) -> Result<Vec<Row>, Error> {
    let sql = positional(&partition.members);
    let parameters: Vec<Value> = sql
        .1
        .iter()
        .map(|name| match *name {
            Parameter::User => Value::text(user),
            Parameter::RemoteId => Value::text(uuid::Uuid::from_bytes(*remote_id).to_string()),
        })
        .collect();
    let rows = connection.query(&sql.0, &parameters)?;
    rows.into_iter().filter(|row| !row.iter().any(Value::is_null)).map(|row| typed(partition, &row)).collect()
}

fn typed(partition: &Partition, row: &Row) -> Result<Row, Error> {
    let wrong = |detail: String| Error::Database {
        context: format!("membership query of partition `{}`", partition.name),
        detail,
    };
    if row.len() != partition.columns.len() {
        return Err(wrong(format!("gives {} columns, expected {}", row.len(), partition.columns.len())));
    }
    row.iter()
        .zip(&partition.columns)
        .map(|(value, (name, kind))| {
            text::coerce(value, kind.base).ok_or_else(|| wrong(format!("column `{name}` is not {kind}")))
        })
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    User,
    RemoteId,
}

/// The query with `?1`, `?2` for its named parameters, and what they are. Text in quotes and comments is left alone.
fn positional(sql: &str) -> (String, Vec<Parameter>) {
    let names = [(":s.user", Parameter::User), (":s.remote_id", Parameter::RemoteId)];
    let mut out = String::with_capacity(sql.len());
    let mut parameters: Vec<Parameter> = Vec::new();
    let mut rest = sql;
    while let Some(next) = rest.chars().next() {
        let quoted = quoted_length(rest);
        if quoted > 0 {
            out.push_str(&rest[..quoted]);
            rest = &rest[quoted..];
        } else if let Some((name, parameter)) = names.iter().find(|(name, _)| is_name(rest, name)) {
            let place = parameters.iter().position(|known| known == parameter).unwrap_or_else(|| {
                parameters.push(*parameter);
                parameters.len() - 1
            });
            out.push('?');
            out.push_str(&(place + 1).to_string());
            rest = &rest[name.len()..];
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    (out, parameters)
}

fn is_name(rest: &str, name: &str) -> bool {
    rest.strip_prefix(name).is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// How many bytes of quoted text or comment begin here; 0: none.
fn quoted_length(rest: &str) -> usize {
    let until = |open: &str, close: &str| {
        rest.strip_prefix(open).map(|inner| inner.find(close).map_or(rest.len(), |end| open.len() + end + close.len()))
    };
    until("'", "'")
        .or_else(|| until("\"", "\""))
        .or_else(|| until("--", "\n"))
        .or_else(|| until("/*", "*/"))
        .unwrap_or(0)
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
