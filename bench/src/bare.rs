//! The bare limits: the same work by the databases' own bulk paths, without anything of Headwater's.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::{Buf, Bytes};
use futures_util::{StreamExt, pin_mut};
use rusqlite::Connection;
use tokio_postgres::{Client, Statement};

/// COPYs one employee's rows out of PostgreSQL (binary) and inserts them into a fresh SQLite file, whose table is made by `table`, with
/// one prepared statement, in one transaction, checkpointed at the end.
pub(crate) async fn download(client: &Client, employee: u32, table: &str, file: &Path) -> Result<(Duration, u64)> {
    let begin = Instant::now();
    let sqlite = open(file)?;
    sqlite.execute_batch(table)?;
    sqlite.execute_batch("BEGIN")?;
    let mut rows = 0;
    {
        let mut insert = sqlite.prepare("INSERT INTO purchase VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        // Text of the values that SQLite keeps as text is made by PostgreSQL: the cheapest way for this loop.
        let copy = client
            .copy_out(&format!(
                "COPY (SELECT emp_id, purch_id, cust_id, cost::text, order_date::text, notes FROM purchase WHERE emp_id = {employee}) \
                 TO STDOUT (FORMAT binary)"
            ))
            .await?;
        pin_mut!(copy);
        let mut header = true;
        let mut rest: Vec<u8> = Vec::new();
        while let Some(chunk) = copy.next().await {
            let chunk: Bytes = chunk?;
            let mut buffer: &[u8] = if rest.is_empty() {
                &chunk
            } else {
                rest.extend_from_slice(&chunk);
                &rest
            };
            if header {
                buffer.advance(19);
                header = false;
            }
            while let Some((fields, next)) = tuple(buffer)? {
                if let Some(fields) = fields {
                    insert.execute((
                        int(fields[0])?,
                        int(fields[1])?,
                        int(fields[2])?,
                        std::str::from_utf8(fields[3])?,
                        std::str::from_utf8(fields[4])?,
                        std::str::from_utf8(fields[5])?,
                    ))?;
                    rows += 1;
                }
                buffer = next;
            }
            rest = buffer.to_vec();
        }
    }
    sqlite.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE);")?;
    Ok((begin.elapsed(), rows))
}

/// A SQLite file opened with the pragmas under which a remote applies a download.
pub(crate) fn open(file: &Path) -> Result<Connection> {
    let sqlite = Connection::open(file)?;
    sqlite.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = OFF; PRAGMA cache_size = -16384;")?;
    Ok(sqlite)
}

type Fields<'a> = [&'a [u8]; 6];

/// The next tuple of a binary COPY: its fields (`None`: the trailer), and what follows. `None` if it is not whole.
fn tuple(mut buffer: &[u8]) -> Result<Option<(Option<Fields<'_>>, &[u8])>> {
    if buffer.len() < 2 {
        return Ok(None);
    }
    match buffer.get_i16() {
        -1 => return Ok(Some((None, buffer))),
        6 => {}
        other => bail!("a tuple of {other} fields in the copy, expected 6"),
    }
    let mut fields: Fields<'_> = [&[]; 6];
    for field in &mut fields {
        if buffer.len() < 4 {
            return Ok(None);
        }
        let length = usize::try_from(buffer.get_i32()).context("a NULL in the copy")?;
        let Some((value, rest)) = buffer.split_at_checked(length) else {
            return Ok(None);
        };
        *field = value;
        buffer = rest;
    }
    Ok(Some((Some(fields), buffer)))
}

fn int(field: &[u8]) -> Result<i64> {
    Ok(i64::from(i32::from_be_bytes(field.try_into().context("an int4 of another length")?)))
}

/// Inserts of purchases by `INSERT ... SELECT FROM unnest`, a batch in a transaction of its own.
pub(crate) struct Upload {
    insert: Statement,
    dates: Vec<Raw>,
}

impl Upload {
    /// Prepares inserts of `rows` at a time into `table`.
    pub(crate) async fn prepare(client: &Client, table: &str, rows: u64) -> Result<Upload> {
        let insert = client
            .prepare(&format!(
                "INSERT INTO {table} SELECT * FROM unnest($1::int4[], $2::int4[], $3::int4[], $4::text[]::numeric[], $5::timestamp[], $6::text[])"
            ))
            .await?;
        let dates = client
            .query_one(
                "SELECT array_agg(timestamp '2005-01-01' + n * interval '1 second') FROM generate_series(1, $1::int8) AS n",
                &[&(rows as i64)],
            )
            .await?;
        Ok(Upload { insert, dates: dates.get(0) })
    }

    /// Inserts one batch of an employee's purchases, from number `first` on. Only the statement is timed, not the making of values.
    pub(crate) async fn insert(&self, client: &Client, employee: u32, first: u64) -> Result<Duration> {
        let numbers: Vec<i32> = (first..first + self.dates.len() as u64).map(|number| number as i32).collect();
        let employees = vec![employee as i32; numbers.len()];
        let customers: Vec<i32> = numbers.iter().map(|n| n % 1000).collect();
        let costs: Vec<String> = numbers.iter().map(|n| format!("{}.120000", 123_456_789 + i64::from(*n))).collect();
        let notes: Vec<String> = numbers.iter().map(|n| note(*n)).collect();
        let begin = Instant::now();
        client.execute(&self.insert, &[&employees, &numbers, &customers, &costs, &self.dates, &notes]).await?;
        Ok(begin.elapsed())
    }
}

/// A note of exactly 64 characters, another for each number.
pub(crate) fn note(number: i32) -> String {
    let mut state = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..8).fold(String::with_capacity(64), |mut text, _| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let _ = write!(text, "{:08x}", state as u32);
        text
    })
}

/// A value in the server's binary form, handed back as it came.
#[derive(Debug, Clone)]
pub(crate) struct Raw(Vec<u8>);

impl tokio_postgres::types::FromSql<'_> for Raw {
    fn from_sql(
        _: &tokio_postgres::types::Type,
        raw: &[u8],
    ) -> std::result::Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Raw(raw.to_vec()))
    }

    fn accepts(_: &tokio_postgres::types::Type) -> bool {
        true
    }
}

impl tokio_postgres::types::ToSql for Raw {
    fn to_sql(
        &self,
        _: &tokio_postgres::types::Type,
        out: &mut tokio_postgres::types::private::BytesMut,
    ) -> std::result::Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(tokio_postgres::types::IsNull::No)
    }

    fn accepts(_: &tokio_postgres::types::Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}
