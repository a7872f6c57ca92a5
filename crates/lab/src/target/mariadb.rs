//! Sessions on MariaDB. They speak SQL as the other databases do: `"` quotes names, a backslash is a backslash.

mod making;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error as DriverError, IoError, Opts, OptsBuilder, Params, Value as Parameter};

use super::{RawRow, Row};
use crate::error::Error;
use crate::harness::{Class, Failure};
use crate::scenario::Statement;
use crate::value::Value;

pub(super) use making::LEFT;

/// What each session begins with. A recursion that makes rows would end after a thousand of them.
const SETUP: &str = "SET SESSION sql_mode = concat(@@sql_mode, ',ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'), \
    SESSION max_recursive_iterations = 4294967295";

/// Asked of each server once a campaign: name and value.
pub(super) const DESCRIPTION: &[&str] = &[
    "SELECT 'version', concat('MariaDB ', @@version, ' ', @@version_comment)",
    "SELECT concat('setting ', lower(variable_name)), variable_value FROM information_schema.global_variables \
     WHERE lower(variable_name) IN ('binlog_format', 'character_set_server', 'innodb_adaptive_hash_index', \
     'innodb_buffer_pool_size', 'innodb_deadlock_detect', 'innodb_doublewrite', 'innodb_file_per_table', \
     'innodb_flush_log_at_trx_commit', 'innodb_flush_method', 'innodb_io_capacity', 'innodb_lock_wait_timeout', \
     'innodb_log_file_size', 'innodb_page_size', 'innodb_read_io_threads', 'innodb_write_io_threads', 'log_bin', \
     'max_allowed_packet', 'max_connections', 'performance_schema', 'query_cache_type', 'sql_mode', 'sync_binlog', \
     'thread_handling', 'tx_isolation') ORDER BY 1",
];

/// Which process it is, and since when: the file with its ID, and the second since 1970 in which it began.
pub(crate) const PROCESS: &str = "SELECT if(@@pid_file LIKE '/%', @@pid_file, concat(@@datadir, @@pid_file)), \
    unix_timestamp() - variable_value FROM information_schema.global_status WHERE variable_name = 'UPTIME'";

/// How long a server may take to hear that something is to be ended.
const CANCEL: Duration = Duration::from_secs(1);

/// A server's database, and the lab's sessions on it.
#[derive(Clone, Debug)]
pub struct MariaDb {
    opts: Opts,
    address: String,
    database: String,
    /// By the server's numbers: it keeps no name of a program by which they could be told from others.
    sessions: Arc<Mutex<BTreeSet<u32>>>,
}

impl MariaDb {
    /// Reads `mysql://user:password@host:port/database` or `mariadb://...`. Does not connect.
    pub fn parse(address: &str) -> Result<MariaDb, Error> {
        let wrong = |what: &str| {
            Error::Usage(format!(
                "the target's address {}: {what}; expected mariadb://user:password@host:port/database",
                crate::address::shown(address)
            ))
        };
        let rest = address.split_once("://").map_or("", |(_, rest)| rest);
        let opts = Opts::from_url(&format!("mysql://{rest}")).map_err(|error| wrong(&error.to_string()))?;
        let database = opts.db_name().ok_or_else(|| wrong("it names no database"))?.to_owned();
        if opts.user().is_none() {
            return Err(wrong("it names no user"));
        }
        // What is measured is the way that the address names, and a statement is prepared as long as its session needs it.
        let socket = opts.socket().is_some();
        let opts = OptsBuilder::from_opts(opts).prefer_socket(socket).stmt_cache_size(0).into();
        Ok(MariaDb { opts, address: crate::address::shown(address), database, sessions: Arc::default() })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn port(&self) -> u16 {
        self.opts.tcp_port()
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there is no session, and what mends it.
    fn refused(&self, error: &DriverError) -> Failure {
        let mut failure = failure(error);
        let code = if let DriverError::Server(answer) = error { Some(answer.code) } else { None };
        if code.is_none() {
            failure.class = Class::Refused;
        }
        failure.is_broken = true;
        failure.is_usage = matches!(code, Some(1044 | 1045 | 1049 | 1698));
        let database = &self.database;
        let mend = match code {
            Some(1045 | 1698) => "; mend user and password of the address".to_owned(),
            Some(1044) => format!("; GRANT ALL ON {database}.* TO the user, or take another database"),
            Some(1049) => format!("; CREATE DATABASE {database} first, or take another"),
            Some(1040 | 1203) => "; take fewer load.clients, or raise max_connections".to_owned(),
            Some(_) => String::new(),
            None => "; start the server, or mend host and port of the address".to_owned(),
        };
        failure.detail = format!("connecting to {}: {}{mend}", self.address, failure.detail);
        failure
    }
}

pub(crate) struct Session {
    conn: Conn,
    server: MariaDb,
    statements: Vec<mysql_async::Statement>,
}

impl Session {
    pub(super) async fn connect(server: &MariaDb) -> Result<Session, Failure> {
        let mut conn = Conn::new(server.opts.clone()).await.map_err(|error| server.refused(&error))?;
        conn.query_drop(SETUP).await.map_err(|error| server.refused(&error))?;
        server.sessions().insert(conn.id());
        Ok(Session { conn, server: server.clone(), statements: Vec::new() })
    }

    pub(super) async fn prepare(&mut self, statements: &[Statement]) -> Result<(), Failure> {
        for statement in statements {
            let prepared = self.conn.prep(statement.sql.as_str()).await.map_err(|error| {
                let failure = failure(&error);
                let detail = format!("{}: {}", statement.sql, failure.detail);
                Failure { detail, is_usage: !failure.is_broken, ..failure }
            })?;
            self.statements.push(prepared);
        }
        Ok(())
    }

    pub(super) async fn execute(&mut self, statement: usize, values: &[&Value]) -> Result<u64, Failure> {
        let parameters: Vec<Parameter> = values.iter().map(|value| parameter(value)).collect();
        let rows = self.conn.exec_iter(&self.statements[statement], Params::from(parameters)).await;
        let mut rows = rows.map_err(|error| failure(&error))?;
        let mut count = 0;
        while rows.next().await.map_err(|error| failure(&error))?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// All go in one message (`COM_STMT_BULK_EXECUTE`), or in as few as `max_allowed_packet` lets them.
    pub(super) async fn execute_all(&mut self, statement: usize, all: &[Vec<&Value>]) -> Result<(), Failure> {
        let parameters =
            |values: &Vec<&Value>| -> Vec<Parameter> { values.iter().map(|value| parameter(value)).collect() };
        let all: Vec<_> = all.iter().map(parameters).collect();
        self.conn.exec_batch(&self.statements[statement], all).await.map_err(|error| failure(&error))
    }

    pub(super) async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        self.conn.query_drop(sql).await.map_err(|error| failure(&error))
    }

    pub(super) async fn rows(&mut self, sql: &str, most: usize) -> Result<Vec<Row>, Failure> {
        let rows: Vec<mysql_async::Row> = self.conn.query(sql).await.map_err(|error| failure(&error))?;
        let read = |row: &mysql_async::Row| {
            let value = |place: usize| row.as_ref(place).map_or_else(String::new, shown);
            let columns = row.columns_ref().iter().enumerate();
            columns.map(|(place, column)| (column.name_str().into_owned(), value(place))).collect()
        };
        Ok(rows.iter().take(most).map(read).collect())
    }

    pub(super) async fn each(&mut self, sql: &str, each: &mut dyn FnMut(RawRow) -> bool) -> Result<(), Failure> {
        let mut rows = self.conn.query_iter(sql).await.map_err(|error| failure(&error))?;
        while let Some(row) = rows.next().await.map_err(|error| failure(&error))? {
            if !each(row.unwrap().into_iter().map(raw).collect()) {
                break;
            }
        }
        Ok(())
    }

    /// What the lab's sessions are at: state, kind of the wait, event, statement, how many. Whoever asks is left out.
    ///
    /// *Caveats.* MariaDB tells of a statement that waits for a lock, for its commit or for the client; one that waits for a page of a
    /// file or for a latch looks as if it ran. Seeing transactions takes the privilege PROCESS.
    pub(crate) fn sessions(&self) -> String {
        format!(
            "SELECT CASE WHEN command <> 'Sleep' THEN 'active' WHEN trx_id IS NULL THEN 'idle' ELSE 'idle in transaction' END, \
             CASE WHEN command = 'Sleep' THEN 'Client' WHEN trx_state = 'LOCK WAIT' OR state LIKE 'Waiting for % lock' THEN 'Lock' \
             WHEN state IN ('Commit', 'Writing to binlog', 'Waiting for prior transaction to commit') \
             AND (@@innodb_flush_log_at_trx_commit = 1 OR @@sync_binlog = 1) THEN 'IO' \
             WHEN state IN ('Reading from net', 'Writing to net', 'Sending to client') THEN 'Client' \
             WHEN state = 'User sleep' THEN 'Timeout' ELSE '' END, \
             CASE WHEN trx_state = 'LOCK WAIT' THEN 'row' WHEN command = 'Sleep' THEN 'sleep' \
             WHEN state LIKE 'Waiting for %' OR state IN ('Commit', 'Writing to binlog', 'User sleep') THEN state ELSE '' END, \
             CASE WHEN command <> 'Sleep' THEN coalesce(left(info, 200), '') ELSE '' END, count(*) \
             FROM information_schema.processlist LEFT JOIN information_schema.innodb_trx ON trx_mysql_thread_id = id \
             WHERE id IN ({}) AND id <> connection_id() GROUP BY 1, 2, 3, 4",
            self.of_the_lab()
        )
    }

    /// Which statement of a session waits for which of another: statement, the other's, how many.
    pub(crate) fn blockers(&self) -> String {
        format!(
            "SELECT coalesce(left(waiting.trx_query, 200), ''), coalesce(left(other.trx_query, 200), 'a transaction at rest'), count(*) \
             FROM information_schema.innodb_lock_waits JOIN information_schema.innodb_trx waiting ON waiting.trx_id = requesting_trx_id \
             JOIN information_schema.innodb_trx other ON other.trx_id = blocking_trx_id \
             WHERE waiting.trx_mysql_thread_id IN ({}) GROUP BY 1, 2",
            self.of_the_lab()
        )
    }

    /// The numbers of the lab's sessions; 0, which is none's, where there is none.
    fn of_the_lab(&self) -> String {
        let mut list = "0".to_owned();
        for id in self.server.sessions().iter() {
            let _ = write!(list, ", {id}");
        }
        list
    }

    /// Has the server end the session with what it is at. It may not listen; then the closed connection tells it later.
    pub(super) async fn cancel(self) {
        let end = async {
            let mut other = Conn::new(self.server.opts.clone()).await?;
            other.query_drop(format!("KILL {}", self.conn.id())).await
        };
        let _ = tokio::time::timeout(CANCEL, end).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.server.sessions().remove(&self.conn.id());
    }
}

/// A value as it is bound.
fn parameter(value: &Value) -> Parameter {
    match value {
        Value::Integer(number) => Parameter::Int(*number),
        Value::Real(number) => Parameter::Double(*number),
        Value::Text(text) => Parameter::Bytes(text.as_bytes().to_vec()),
        Value::Bytes(bytes) => Parameter::Bytes(bytes.clone()),
        Value::Time(_) => Parameter::Bytes(value.to_string().into_bytes()),
    }
}

fn shown(value: &Parameter) -> String {
    match value {
        Parameter::NULL => "NULL".to_owned(),
        Parameter::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => other.as_sql(true),
    }
}

fn raw(value: Parameter) -> Option<Vec<u8>> {
    match value {
        Parameter::NULL => None,
        Parameter::Bytes(bytes) => Some(bytes),
        other => Some(other.as_sql(true).into_bytes()),
    }
}

/// What an error of the driver means. SQLSTATE alone would not tell a lock that was waited for too long from much else.
fn failure(error: &DriverError) -> Failure {
    let detail = match error {
        DriverError::Server(answer) => {
            let class = Class::Code(format!("{}/{}", answer.state, answer.code));
            let mut failure = Failure::new(class, answer.message.clone());
            // The server ends the session: shut down, or killed by an administrator.
            failure.is_broken = answer.state.starts_with("08") || matches!(answer.code, 1053 | 1927);
            return failure;
        }
        DriverError::Io(IoError::Io(error)) => error.to_string(),
        other => other.to_string(),
    };
    Failure::new(Class::Lost, detail)
}
