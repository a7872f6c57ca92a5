//! Ranges of integer keys, handed to remotes so that rows made offline never meet on one key.
//!
//! A range belongs to one remote for good. A remote says with each request what it has left of its ranges; it gets the next before
//! the last one is used up. A range whose hand-over was lost on the way is handed over again, not a further one.

use headwater_model::KeyRangeRule;
use headwater_model::sql::quote;
use headwater_model::tracking::postgres::base_table;
use headwater_protocol::Value;
use headwater_protocol::message::KeyRange;

use super::sql::{dialect_sql, integer};
use crate::{Connection, Dialect, Error, Mode, Plan, TablePlan};

/// How far behind what was handed out a key in use, or a range that a remote tells, is followed: a million million. What lies further away
/// was not made by counting, and would take all keys up to it from everybody.
const REACH: i64 = 1 << 40;

/// The ranges that a remote is to have now beside those that it says it has left (`left`: next and last key of each; a range that is
/// used up is told as its last key). Empty where nothing is needed. In a transaction of its own.
///
/// A range that the remote has and the database doesn't know (it was restored from before the hand-over) is the remote's again, unless
/// another has been given keys of it meanwhile. Then it counts for nothing here: the remote gets another, and what both have made with the
/// same keys meets as conflicts.
pub fn key_ranges(
    connection: &mut dyn Connection,
    plan: &Plan,
    remote_id: &[u8; 16],
    left: &[KeyRange],
) -> Result<Vec<KeyRange>, Error> {
    if plan.tables.iter().all(|table| table.table.key_range.is_none()) {
        return Ok(Vec::new());
    }
    connection.begin(Mode::Upload)?;
    let ranges = inside(connection, plan, remote_id, left);
    crate::finish(connection, ranges)
}

fn inside(
    connection: &mut dyn Connection,
    plan: &Plan,
    remote_id: &[u8; 16],
    left: &[KeyRange],
) -> Result<Vec<KeyRange>, Error> {
    if connection.dialect() == Dialect::Postgres {
        // Two servers would find the same end of what is handed out.
        connection.query("SELECT pg_advisory_xact_lock(x'6865616477617475'::bigint)", &[])?;
    }
    let mut ranges = Vec::new();
    for (number, table) in (0u32..).zip(&plan.tables) {
        if let Some(rule) = table.table.key_range {
            let left: Vec<KeyRange> = left.iter().filter(|range| range.table == number).copied().collect();
            let owner = Owner { connection, table, rule, remote_id };
            ranges.extend(owner.next(number, &left)?);
        }
    }
    Ok(ranges)
}

struct Owner<'a> {
    connection: &'a mut dyn Connection,
    table: &'a TablePlan,
    rule: KeyRangeRule,
    remote_id: &'a [u8; 16],
}

impl Owner<'_> {
    fn next(mut self, number: u32, left: &[KeyRange]) -> Result<Option<KeyRange>, Error> {
        for range in left {
            self.take_back(range)?;
        }
        let newest = self.newest()?;
        let range = match newest {
            // It never arrived: a remote tells its newest even when that is used up.
            Some(newest) if left.iter().all(|range| range.last < newest.1) => newest,
            Some((_, last)) if !self.is_short(left, last) => return Ok(None),
            _ => match self.hand_out()? {
                Some(range) => range,
                None => return Ok(None),
            },
        };
        Ok(Some(KeyRange { table: number, first: range.0, last: range.1 }))
    }

    fn is_short(&self, left: &[KeyRange], last: i64) -> bool {
        let keys =
            left.iter().find(|range| range.last == last).map_or(0, |range| range.last.saturating_sub(range.first));
        keys < self.rule.size / 2
    }

    /// The remote's newest range.
    fn newest(&mut self) -> Result<Option<(i64, i64)>, Error> {
        let sql = "SELECT first_key, last_key FROM {hw}key_range WHERE table_name = ?1 AND remote_id = ?2 \
                   ORDER BY first_key DESC LIMIT 1";
        let parameters = [self.name(), Value::Bytes(self.remote_id.to_vec())];
        let rows = self.query(sql, &parameters)?;
        rows.first().map(|row| Ok((integer(row.first(), "first_key")?, integer(row.get(1), "last_key")?))).transpose()
    }

    /// Notes a range that the remote has and the database doesn't know.
    fn take_back(&mut self, range: &KeyRange) -> Result<(), Error> {
        // PostgreSQL can't tell the types of parameters in a list of results.
        let sql = format!(
            "INSERT INTO {{hw}}key_range (table_name, first_key, last_key, remote_id) \
             SELECT CAST(?1 AS text), CAST(?2 AS {{int}}), CAST(?3 AS {{int}}), CAST(?4 AS {{bytes}}) \
             WHERE NOT EXISTS (SELECT 1 FROM {{hw}}key_range WHERE table_name = ?1 AND last_key >= ?2 AND first_key <= ?3) \
             AND {} <= (SELECT coalesce(max(last_key), {}) FROM {{hw}}key_range WHERE table_name = ?1)",
            range.last.saturating_sub(REACH),
            self.rule.from
        );
        self.insert(&sql, (range.first, range.last))
    }

    /// The range after the last that was handed out, and after every key that is in use from there on, as far as [`REACH`] goes; none where
    /// there are no integers left.
    fn hand_out(&mut self) -> Result<Option<(i64, i64)>, Error> {
        let sql = "SELECT max(last_key) FROM {hw}key_range WHERE table_name = ?1";
        let parameters = [self.name()];
        let handed_out = self.query(sql, &parameters)?;
        let handed_out = greatest(&handed_out)?.unwrap_or(i64::MIN).max(self.rule.from.saturating_sub(1));
        let key = self.table.table.key_columns().next().map(|column| quote(&column.name)).unwrap_or_default();
        let (base, reach) = (self.base(), handed_out.saturating_add(REACH));
        let stored = format!("SELECT max({key}) FROM {base} WHERE {key} > {handed_out} AND {key} <= {reach}");
        let stored = self.query(&stored, &[])?;
        let first = greatest(&stored)?.unwrap_or(handed_out).checked_add(1);
        let Some((first, last)) = first.and_then(|first| Some((first, first.checked_add(self.rule.size - 1)?))) else {
            tracing::warn!(table = self.table.table.name, "there are no integers left to hand out as keys");
            return Ok(None);
        };
        let sql = "INSERT INTO {hw}key_range (table_name, first_key, last_key, remote_id) VALUES (?1, ?2, ?3, ?4)";
        self.insert(sql, (first, last))?;
        Ok(Some((first, last)))
    }

    fn insert(&mut self, sql: &str, (first, last): (i64, i64)) -> Result<(), Error> {
        let parameters = [self.name(), Value::Int(first), Value::Int(last), Value::Bytes(self.remote_id.to_vec())];
        self.connection.execute(&dialect_sql(self.connection.dialect(), sql), &parameters).map(drop)
    }

    /// The table as SQL names it, whatever the role's `search_path` is.
    fn base(&self) -> String {
        match self.connection.dialect() {
            Dialect::Sqlite => quote(&self.table.table.name),
            Dialect::Postgres => base_table(&self.table.table),
        }
    }

    fn name(&self) -> Value {
        Value::Text(crate::track::base_name(&self.table.table).into_bytes())
    }

    fn query(&mut self, sql: &str, parameters: &[Value]) -> Result<Vec<headwater_protocol::Row>, Error> {
        let sql = dialect_sql(self.connection.dialect(), sql);
        self.connection.query(&sql, parameters)
    }
}

/// The only value of an answer; NULL is none.
fn greatest(rows: &[headwater_protocol::Row]) -> Result<Option<i64>, Error> {
    let value = rows.first().and_then(|row| row.first()).filter(|value| **value != Value::Null);
    value.map(|value| integer(Some(value), "a key")).transpose()
}
