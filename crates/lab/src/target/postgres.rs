//! Sessions on PostgreSQL: values go as text, of which the server makes each parameter's type.

use std::error::Error as _;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use futures_util::{SinkExt as _, TryStreamExt as _};
use headwater_consolidated::postgres::Postgres;
use tokio_postgres::types::{Format, IsNull, ToSql, Type};
use tokio_postgres::{CancelToken, Client, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{RawRow, Row};
use crate::harness::{Class, Failure};
use crate::sampling::Whose;
use crate::scenario::Statement;
use crate::value::Value;

/// Asked of each server once a campaign: name and value.
pub(super) const DESCRIPTION: &[&str] = &[
    "SELECT 'version', version()",
    "SELECT 'setting ' || name, current_setting(name) FROM pg_settings WHERE name IN ('autovacuum', \
     'checkpoint_completion_target', 'checkpoint_timeout', 'data_checksums', 'default_transaction_isolation', \
     'effective_cache_size', 'effective_io_concurrency', 'fsync', 'full_page_writes', 'huge_pages', 'io_method', 'jit', \
     'maintenance_work_mem', 'max_connections', 'max_parallel_workers_per_gather', 'max_wal_size', 'random_page_cost', \
     'server_encoding', 'shared_buffers', 'synchronous_commit', 'synchronous_standby_names', 'wal_compression', 'wal_level', \
     'work_mem') ORDER BY name",
];

/// Whose process is below that of the server, and since when: the ID, and the second since 1970 in which it began.
pub(crate) const PROCESS: &str =
    "SELECT pid, extract(epoch FROM backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// What sessions are at: state, type of the wait, event, statement, how many. Whoever asks is left out.
pub(crate) fn sessions(whose: Whose) -> String {
    format!(
        "SELECT coalesce(state, ''), coalesce(wait_event_type, ''), coalesce(wait_event, ''), \
         CASE WHEN state = 'active' THEN left(query, 200) ELSE '' END, count(*) FROM pg_stat_activity seen \
         WHERE {} AND pid <> pg_backend_pid() GROUP BY 1, 2, 3, 4",
        theirs("seen", whose)
    )
}

/// Which statement of a session waits for which of another: statement, the other's, how many.
pub(crate) fn blockers(whose: Whose) -> String {
    format!(
        "SELECT left(waiting.query, 200), left(other.query, 200), count(*) FROM pg_stat_activity waiting \
         CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) blocking (pid) \
         JOIN pg_stat_activity other ON other.pid = blocking.pid \
         WHERE {} AND waiting.wait_event_type = 'Lock' GROUP BY 1, 2",
        theirs("waiting", whose)
    )
}

/// The condition that a session is one of theirs.
fn theirs(session: &str, whose: Whose) -> String {
    let is = match whose {
        Whose::Labs => "=",
        Whose::Servers => "<>",
    };
    format!(
        "{session}.application_name {is} 'headwater lab' AND {session}.datname = current_database() \
         AND {session}.backend_type = 'client backend'"
    )
}

/// About how much of a `COPY` goes in one message.
const COPY_BYTES: usize = 64 * 1024;

/// How long a server may take to hear that something is to be cancelled.
const CANCEL: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    client: Client,
    cancel: CancelToken,
    tls: MakeRustlsConnect,
    /// Each with the `COPY` that does the same with many values, where there is one.
    statements: Vec<(tokio_postgres::Statement, Option<String>)>,
}

impl Session {
    pub(super) async fn connect(postgres: &Postgres) -> Result<Session, Failure> {
        let (mut config, tls) = postgres.driver();
        config.application_name("headwater lab");
        let (client, connection) = config.connect(tls.clone()).await.map_err(|error| {
            let mut failure = failure(&error);
            // The server's own answers keep their SQLSTATE; a wrong password or database is a matter of the address.
            let is_answer = error.as_db_error().is_some();
            failure.class = if is_answer { failure.class } else { Class::Refused };
            failure.is_broken = true;
            failure.is_usage = matches!(error.code().and_then(|code| code.code().get(..2)), Some("28" | "3D"));
            failure.detail = format!(
                "connecting to {}: {}",
                headwater_consolidated::QueryBackend::address(postgres),
                failure.detail
            );
            failure
        })?;
        // Ends with the client; what it says of a broken connection, the client's own calls say too.
        tokio::spawn(connection);
        Ok(Session { cancel: client.cancel_token(), client, tls, statements: Vec::new() })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub(super) async fn prepare(&mut self, statements: &[Statement]) -> Result<(), Failure> {
        for statement in statements {
            let prepared = self.client.prepare(&statement.sql).await;
            let prepared = prepared.map_err(|error| {
                let failure = failure(&error);
                Failure {
                    detail: format!("{}: {}", statement.sql, failure.detail),
                    is_usage: !failure.is_broken,
                    ..failure
                }
            })?;
            self.statements.push((prepared, copy_of(&statement.sql)));
        }
        Ok(())
    }

    pub(super) async fn execute(&mut self, statement: usize, values: &[&Value]) -> Result<u64, Failure> {
        let parameters: Vec<_> = values.iter().map(|value| AsText(value)).collect();
        let rows = self.client.query_raw(&self.statements[statement].0, parameters).await;
        let mut rows = std::pin::pin!(rows.map_err(|error| failure(&error))?);
        let mut count = 0;
        while rows.try_next().await.map_err(|error| failure(&error))?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// By the server's bulk path, where the statement is an `INSERT` of its parameters and nothing else. Otherwise one after the other, but without
    /// waiting for the answers between.
    pub(super) async fn execute_all(&mut self, statement: usize, all: &[Vec<&Value>]) -> Result<(), Failure> {
        if let (_, Some(copy)) = &self.statements[statement] {
            return self.copy(copy, all).await.map_err(|error| failure(&error));
        }
        let executed = all.iter().map(|values| {
            let parameters: Vec<_> = values.iter().map(|value| AsText(value)).collect();
            self.client.execute_raw(&self.statements[statement].0, parameters)
        });
        try_join_all(executed).await.map(|_| ()).map_err(|error| failure(&error))
    }

    async fn copy(&self, copy: &str, all: &[Vec<&Value>]) -> Result<(), tokio_postgres::Error> {
        let sink = self.client.copy_in::<_, Bytes>(copy).await?;
        let mut sink = std::pin::pin!(sink);
        let mut rows = BytesMut::new();
        for values in all {
            write_row(&mut rows, values);
            if rows.len() >= COPY_BYTES {
                sink.as_mut().send(rows.split().freeze()).await?;
            }
        }
        sink.as_mut().send(rows.freeze()).await?;
        sink.as_mut().finish().await?;
        Ok(())
    }

    pub(super) async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        self.client.batch_execute(sql).await.map_err(|error| failure(&error))
    }

    pub(super) async fn rows(&mut self, sql: &str, most: usize) -> Result<Vec<Row>, Failure> {
        let messages = self.client.simple_query(sql).await.map_err(|error| failure(&error))?;
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let read = |row: &tokio_postgres::SimpleQueryRow| {
            let value = |place: usize| row.get(place).unwrap_or("NULL").to_owned();
            row.columns().iter().enumerate().map(|(place, column)| (column.name().to_owned(), value(place))).collect()
        };
        Ok(rows.take(most).map(read).collect())
    }

    pub(super) async fn each(&mut self, sql: &str, each: &mut dyn FnMut(RawRow) -> bool) -> Result<(), Failure> {
        let messages = self.client.simple_query_raw(sql).await.map_err(|error| failure(&error))?;
        let mut messages = std::pin::pin!(messages);
        while let Some(message) = messages.try_next().await.map_err(|error| failure(&error))? {
            let SimpleQueryMessage::Row(row) = message else { continue };
            let value = |place| Ok(row.try_get(place)?.map(|text| text.as_bytes().to_vec()));
            let values = (0..row.len()).map(value).collect::<Result<_, _>>();
            if !each(values.map_err(|error| failure(&error))?) {
                break;
            }
        }
        Ok(())
    }

    /// Has the server give up what it is at. It may not listen; then the closed connection tells it later.
    pub(super) async fn cancel(self) {
        let _ = tokio::time::timeout(CANCEL, self.cancel.cancel_query(self.tls)).await;
    }
}

/// The `COPY` that does what many executions of an `INSERT` do: one of its parameters in their order, each once, and nothing else.
fn copy_of(insert: &str) -> Option<String> {
    let text = insert.trim().trim_end_matches(';').trim_end();
    let word = |text: &str, word: &str| text.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
    let rest = text.get(12..).filter(|_| word(text, "INSERT INTO "))?;
    let (place, values) = rest.match_indices(|c: char| c.is_whitespace()).find_map(|(at, _)| {
        let after = rest[at..].trim_start();
        word(after, "VALUES").then(|| (rest[..at].trim(), after[6..].trim()))
    })?;
    let list = values.strip_prefix('(')?.strip_suffix(')')?;
    let are_parameters = list.split(',').enumerate().all(|(nth, value)| value.trim() == format!("${}", nth + 1));
    (are_parameters && place.ends_with(')')).then(|| format!("COPY {place} FROM STDIN"))
}

/// A line of `COPY`'s text format: https://www.postgresql.org/docs/15/sql-copy.html, "Text Format".
fn write_row(out: &mut BytesMut, values: &[&Value]) {
    for (nth, value) in values.iter().enumerate() {
        if nth > 0 {
            out.extend_from_slice(b"\t");
        }
        for byte in value.to_string().bytes() {
            match byte {
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                other => out.extend_from_slice(&[other]),
            }
        }
    }
    out.extend_from_slice(b"\n");
}

/// A value in text form.
#[derive(Debug)]
struct AsText<'v>(&'v Value);

impl ToSql for AsText<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self.0 {
            Value::Text(text) => out.extend_from_slice(text.as_bytes()),
            value => write!(out, "{value}")?,
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    fn to_sql_checked(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.to_sql(kind, out)
    }
}

/// What an error of the driver means.
fn failure(error: &tokio_postgres::Error) -> Failure {
    if let Some(answer) = error.as_db_error() {
        let code = answer.code().code();
        let mut failure = Failure::new(Class::Code(code.to_owned()), answer.message());
        // The server ends the session: shut down by an administrator, crashed, terminated.
        failure.is_broken = answer.severity() != "ERROR" || code.starts_with("57P0") || code.starts_with("08");
        return failure;
    }
    let mut detail = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(detail, ": {error}");
        cause = error.source();
    }
    Failure::new(Class::Lost, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insert_of_its_parameters_has_a_copy() {
        let copy = |sql: &str| copy_of(sql);
        assert_eq!(copy("INSERT INTO t (a, b) VALUES ($1, $2)").as_deref(), Some("COPY t (a, b) FROM STDIN"));
        assert_eq!(copy(" insert into \"T\" (a)\n values ( $1 ) ; ").as_deref(), Some("COPY \"T\" (a) FROM STDIN"));
        for other in [
            "INSERT INTO t (a, b) VALUES ($2, $1)",
            "INSERT INTO t (a, b) VALUES ($1, $1)",
            "INSERT INTO t (a, b) VALUES ($1, lower($2))",
            "INSERT INTO t (a) VALUES ($1) ON CONFLICT DO NOTHING",
            "INSERT INTO t (a) VALUES ($1) RETURNING (a)",
            "INSERT INTO t VALUES ($1)",
            "INSERT INTO t (a) SELECT ($1)",
            "UPDATE t SET a = $1",
            "",
        ] {
            assert_eq!(copy(other), None, "{other}");
        }
    }

    #[test]
    fn what_parts_rows_and_values_is_told_from_what_is_in_them() {
        let mut out = BytesMut::new();
        let text = Value::Text("a\tb\nc\\d\re".to_owned());
        write_row(&mut out, &[&Value::Integer(-5), &text, &Value::Bytes(vec![0, 255])]);
        assert_eq!(&out[..], b"-5\ta\\tb\\nc\\\\d\\re\t\\\\x00ff\n");
    }
}
