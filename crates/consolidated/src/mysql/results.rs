//! Results of queries of the application's own.

use std::time::Duration;

use headwater_model::sql::quote;
use headwater_protocol::text::coerce;
use headwater_protocol::{Type, Value, ValueRef};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, DriverError, Error as Failure, Params, Row, Statement};

use super::error::{Doing, connecting, convert};
use super::link::{Killer, Link};
use super::sql::{begins_as_query, positional};
use super::values::{Kind, Scratch, parameter};
use crate::Error;
use crate::results::{Canceller, QueryConnection, ReadOptions, ResultColumn, ResultSink};

/// What each session begins with. A connection that rests in the pool is not closed for it, and a recursion ends where its query says.
const SETUP: &str = "SET NAMES utf8mb4; SET SESSION time_zone = '+00:00', SESSION sql_mode = \
    concat_ws(',', nullif(@@sql_mode, ''), 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'), \
    SESSION wait_timeout = 31536000, SESSION max_recursive_iterations = 4294967295";
const VERSION_SQL: &str = "SELECT @@version";
/// What may be tables of Headwater's with secrets, of those that the user may do anything with.
const SECRETS_SQL: &str = "SELECT table_schema, table_name FROM information_schema.tables \
    WHERE lower(table_name) IN ('headwater_account', 'headwater_identity', 'headwater_remote') \
    OR lower(table_schema) = 'headwater' AND lower(table_name) IN ('account', 'identity', 'remote') ORDER BY 1, 2";
/// What the user may do, and the role that it is in.
const GRANTS_SQL: &str = "SHOW GRANTS";
/// `ER_TABLEACCESS_DENIED_ERROR`, `ER_COLUMNACCESS_DENIED_ERROR`.
const DENIED: [u16; 2] = [1142, 1143];
/// For how much longer than a query the server waits until a slow client takes its rows.
const WRITE_MARGIN: Duration = Duration::from_mins(1);
/// For how long it waits where the query may take any time.
const WRITE_FOR_EVER: Duration = Duration::from_hours(24 * 365);

/// A parameter by its number. Those that travel as texts are cast: a decimal that is compared as a text is compared as a double.
pub fn placeholder(number: usize, kind: Type) -> String {
    let name = match kind {
        Type::Decimal => "DECIMAL(65,30)",
        Type::Date => "DATE",
        Type::Time => "TIME(6)",
        Type::Timestamp | Type::Timestamptz => "DATETIME(6)",
        Type::Bool | Type::Int | Type::Real | Type::Text | Type::Bytes | Type::Uuid | Type::Json => {
            return format!("?{number}");
        }
    };
    format!("CAST(?{number} AS {name})")
}

/// A connection to MariaDB.
pub(super) struct MariaDbConnection {
    link: Link,
    /// A transaction is open.
    is_open: bool,
    /// The last read's, which the session has still.
    time_out: Option<Duration>,
}

/// A column, and how its values are read.
struct Reader {
    column: ResultColumn,
    kind: Kind,
    /// What it is wanted as, where the database says something else.
    wanted: Option<Type>,
    scratch: Scratch,
}

/// What ends a stream of rows early.
enum Stop {
    Server(Failure),
    Own(Error),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Server(failure)
    }
}

impl MariaDbConnection {
    /// A connection whose session is as it has to be.
    pub(super) fn begin(mut link: Link, address: &str) -> Result<MariaDbConnection, Error> {
        let version = link.run(async |conn| {
            conn.query_drop(SETUP).await?;
            conn.query_first::<String, _>(VERSION_SQL).await
        });
        let version = version.map_err(|failure| connecting(address, &failure))?.unwrap_or_default();
        if !version.contains("MariaDB") {
            return Err(Error::Setup {
                what: format!("the server at {address} is {version}, expected MariaDB"),
                mend: "name a MariaDB server in the database's URL".to_owned(),
            });
        }
        Ok(MariaDbConnection { link, is_open: false, time_out: None })
    }

    /// Has the session be as it was when it began: what a query leaves in it (variables, `LAST_INSERT_ID(n)`, `FOUND_ROWS()`, locks of `GET_LOCK`)
    /// ends with its transaction.
    fn reset(&mut self) -> Result<(), Failure> {
        self.time_out = None;
        self.link.run(async |conn| {
            if !conn.reset().await? {
                return Err(Failure::from(DriverError::ConnectionClosed));
            }
            // MariaDB's reset leaves FOUND_ROWS() as it was.
            conn.query_drop(format!("{SETUP}; SELECT 1")).await
        })
    }

    /// Makes the session give up after this time, and begins a transaction.
    fn begin_reading(&mut self, time_out: Duration) -> Result<(), Failure> {
        let mut sql = String::new();
        if self.time_out != Some(time_out) {
            let wait = if time_out.is_zero() { WRITE_FOR_EVER } else { time_out + WRITE_MARGIN };
            let limit = time_out.as_secs_f64();
            let wait = wait.min(WRITE_FOR_EVER).as_secs();
            sql = format!("SET SESSION max_statement_time = {limit:.6}, SESSION net_write_timeout = {wait}; ");
        }
        sql += "START TRANSACTION READ ONLY";
        self.is_open = true;
        self.link.run(async |conn| conn.query_drop(sql).await)?;
        self.time_out = Some(time_out);
        Ok(())
    }

    /// A statement that gives rows, and which parameter stands where.
    fn prepare(&mut self, sql: &str) -> Result<(Statement, Vec<usize>), Error> {
        let (text, places) = positional(sql);
        let prepared = self.link.run(async |conn| conn.prep(text.as_str()).await);
        let statement = prepared.map_err(|failure| convert(Doing::Preparing, sql, &failure))?;
        let detail = if statement.num_columns() == 0 || !begins_as_query(&text) {
            "it gives no rows: expected a SELECT".to_owned()
        } else if usize::from(statement.num_params()) != places.len() {
            format!("it has {} parameters for the database, expected {}", statement.num_params(), places.len())
        } else {
            return Ok((statement, places));
        };
        Err(Error::Sql { detail, line: None, is_statement: true })
    }
}

impl QueryConnection for MariaDbConnection {
    fn columns(&mut self, sql: &str, options: &ReadOptions) -> Result<Vec<ResultColumn>, Error> {
        let (statement, _) = self.prepare(sql)?;
        Ok(readers(&statement.columns(), options).into_iter().map(|reader| reader.column).collect())
    }

    fn read(
        &mut self,
        sql: &str,
        parameters: &[Value],
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Error> {
        let (statement, places) = self.prepare(sql)?;
        let bound = bound(&places, parameters)?;
        self.begin_reading(options.time_out).map_err(|failure| convert(Doing::Running, sql, &failure))?;
        let killer = self.link.killer();
        let read = self.link.run(async |conn| stream(conn, &killer, &statement, bound, options, sink).await);
        read.map_err(|stop| match stop {
            Stop::Own(error) => error,
            Stop::Server(failure) => convert(Doing::Running, sql, &failure),
        })
    }

    fn rollback(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_open) {
            return Ok(());
        }
        self.reset().map_err(|failure| convert(Doing::Running, "the reset of a session", &failure))
    }

    fn readable_secrets(&mut self) -> Result<Vec<String>, Error> {
        let found = self.link.run(async |conn| conn.query::<(String, String), _>(SECRETS_SQL).await);
        let found = found.map_err(|failure| convert(Doing::Running, SECRETS_SQL, &failure))?;
        let grants = self.link.run(async |conn| conn.query::<String, _>(GRANTS_SQL).await);
        let grants = grants.map_err(|failure| convert(Doing::Running, GRANTS_SQL, &failure))?;
        let mut readable = Vec::new();
        for (schema, table) in found {
            let sql = format!("SELECT 1 FROM {}.{} LIMIT 0", quote(&schema), quote(&table));
            match self.link.run(async |conn| conn.query_drop(sql.as_str()).await) {
                Err(Failure::Server(server)) if DENIED.contains(&server.code) => {}
                Err(failure) => return Err(convert(Doing::Running, &sql, &failure)),
                Ok(()) => readable.push(format!("{schema}.{table}")),
            }
        }
        if grants.iter().any(|grant| reads_files(grant)) {
            readable.push("the files of the server, by the privilege FILE".to_owned());
        }
        Ok(readable)
    }

    fn is_gone(&mut self) -> bool {
        self.link.run(async |conn| conn.ping().await).is_err()
    }

    fn canceller(&self) -> Option<Canceller> {
        Some(self.link.canceller())
    }
}

/// Whether a line of [`GRANTS_SQL`] has the privilege to read files (`LOAD_FILE`): `GRANT SELECT, FILE ON *.* TO ...`.
fn reads_files(grant: &str) -> bool {
    let privileges = grant.strip_prefix("GRANT ").and_then(|rest| rest.split_once(" ON *.* TO "));
    privileges.is_some_and(|(all, _)| all.split(", ").any(|one| matches!(one, "FILE" | "ALL PRIVILEGES")))
}

/// Hands on the rows as they come. Where the sink takes no more, the server is told, so that little is left to be read over.
async fn stream(
    conn: &mut Conn,
    killer: &Killer,
    statement: &Statement,
    bound: Vec<mysql_async::Value>,
    options: &ReadOptions,
    sink: &mut dyn ResultSink,
) -> Result<(), Stop> {
    let parameters = if bound.is_empty() { Params::Empty } else { Params::Positional(bound) };
    let mut rows = conn.exec_iter(statement, parameters).await?;
    let mut readers = readers(rows.columns_ref(), options);
    let columns: Vec<ResultColumn> = readers.iter().map(|reader| reader.column.clone()).collect();
    let mut taken = sink.begin(&columns);
    while taken.is_ok() {
        let Some(row) = rows.next().await? else { return Ok(()) };
        taken = give(&row, &mut readers, sink);
    }
    if let Err(error) = killer.kill().await {
        tracing::debug!(error, "a query whose rows nobody wants runs to its end");
    }
    // That it was ended is no news.
    let _ = rows.drop_result().await;
    taken.map_err(Stop::Own)
}

/// The values in the order of the places.
fn bound(places: &[usize], parameters: &[Value]) -> Result<Vec<mysql_async::Value>, Error> {
    let bound = places.iter().map(|place| match parameters.get(*place) {
        Some(value) => parameter(value).map_err(|detail| Error::Parameter { detail }),
        None => {
            let detail = format!("there is no parameter {}", place + 1);
            Err(Error::Sql { detail, line: None, is_statement: true })
        }
    });
    bound.collect()
}

fn readers(columns: &[mysql_async::Column], options: &ReadOptions) -> Vec<Reader> {
    let reader = |column: &mysql_async::Column| {
        let name = column.name_str().into_owned();
        let (kind, declared) = Kind::of(column);
        let known = options.types.get(&name).copied();
        let wanted = known.filter(|known| Some(*known) != kind.result());
        let column = ResultColumn { name, kind: known.or(kind.result()), declared: declared.to_owned() };
        Reader { column, kind, wanted, scratch: Scratch::default() }
    };
    columns.iter().map(reader).collect()
}

fn give(row: &Row, readers: &mut [Reader], sink: &mut dyn ResultSink) -> Result<(), Error> {
    let is_coerced = readers.iter().any(|reader| reader.wanted.is_some());
    let mut wanted = Vec::new();
    let mut values = Vec::with_capacity(readers.len());
    for (place, reader) in readers.iter_mut().enumerate() {
        let raw = row.as_ref(place).unwrap_or(&mysql_async::Value::NULL);
        let value = reader.kind.decode(raw, &mut reader.scratch).ok_or_else(|| Error::Database {
            context: format!("column {:?}", reader.column.name),
            detail: "the database sent bytes that are none of its type".to_owned(),
        })?;
        wanted.push(reader.wanted);
        values.push(value);
    }
    if !is_coerced {
        return sink.row(&values);
    }
    let coerced: Vec<Value> = values
        .iter()
        .zip(wanted)
        .map(|(value, wanted)| {
            let own = value.to_value();
            wanted.and_then(|kind| coerce(&own, kind)).unwrap_or(own)
        })
        .collect();
    sink.row(&coerced.iter().map(Value::as_ref).collect::<Vec<ValueRef<'_>>>())
}

#[cfg(test)]
mod tests {
    use super::reads_files;

    #[test]
    fn the_privilege_of_files_is_seen_among_others() {
        for (grant, expected) in [
            ("GRANT FILE ON *.* TO `a`@`%` IDENTIFIED BY PASSWORD '*0'", true),
            ("GRANT SELECT, PROCESS, FILE ON *.* TO `a`@`%`", true),
            ("GRANT ALL PRIVILEGES ON *.* TO `a`@`%` WITH GRANT OPTION", true),
            ("GRANT ALL PRIVILEGES ON `shop`.* TO `a`@`%`", false),
            ("GRANT USAGE ON *.* TO `FILE`@`%`", false),
            ("GRANT SELECT ON `shop`.`FILE` TO `a`@`%`", false),
            ("GRANT `FILE` TO `a`@`%`", false),
        ] {
            assert_eq!(reads_files(grant), expected, "{grant}");
        }
    }
}
