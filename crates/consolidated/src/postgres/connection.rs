//! One connection: its transaction, its statements, and the calls that are one statement each.
//!
//! Statements on a table are prepared once, when they are first needed, and kept by model and table; those of the engines' own SQL by
//! their text. After an error that is not a row's refusal, a table's statements are forgotten: it may have been altered.

use std::collections::HashMap;

use headwater_model::sql::with_parameters;
use headwater_protocol::{Row, Value};
use tokio_postgres::{Client, SimpleQueryMessage, Statement};

use super::bound::Bound;
use super::codec::Scratch;
use super::link::{Link, behind};
use super::shape::{COLUMNS_SQL, Shape, Verb};
use super::watermark::Watermark;
use super::{catalogue, error, parts, raw};
use crate::backend::{Changes, Gaps, Inserted};
use crate::catalogue::Catalogue;
use crate::{Connection, Dialect, Error, Mode, Plan, RowsWriter, TablePlan};

/// The most statements of the engines' own SQL that are kept; beyond them, all are forgotten and prepared again.
const QUERIES_MAX: usize = 500;

/// One value that is another whenever tables have come or gone below others: it comes with a download's beginning, so that a look at
/// the parts costs no round trip while they stay.
const HIERARCHY_SQL: &str = "SELECT count(*) || ':' || coalesce(bit_xor(hashint8extended( \
    (i.inhrelid::int8 << 32) | i.inhparent::int8, i.xmin::text::int8)), 0) FROM pg_catalog.pg_inherits i";

/// Table name, the horizon, a transaction: of the horizon, and of tables that changed without a note.
const LIMITS_SQL: &str = "SELECT NULL, encode(h.version, 'hex'), NULL FROM headwater.horizon h \
    JOIN headwater.identity i ON i.incarnation = h.incarnation \
    UNION ALL SELECT r.table_name, NULL, r.transaction::text FROM headwater.refresh r \
    JOIN headwater.identity i ON i.incarnation = r.incarnation";

/// From where on side tables tell everything.
#[derive(Debug, Default)]
struct Limits {
    /// The first transaction whose changes are not purged.
    horizon: u64,
    /// By table, the last transaction that was not noted.
    refreshed: Vec<(String, u64)>,
}

impl Limits {
    /// Takes a row of [`LIMITS_SQL`].
    fn add(&mut self, table: Option<&str>, horizon: Option<&str>, transaction: Option<&str>) -> Result<(), Error> {
        let unreadable = || Error::Database {
            context: "reading how far back changes can be told".into(),
            detail: format!("{table:?}, {horizon:?}, {transaction:?}"),
        };
        match (table, horizon, transaction) {
            (None, Some(version), None) => {
                let version = hex::decode(version).map_err(|_| unreadable())?;
                self.horizon = Watermark::from_bytes(&version)?.seen_below();
            }
            (Some(table), None, Some(number)) => {
                self.refreshed.push((table.to_owned(), number.parse().map_err(|_| unreadable())?));
            }
            _ => return Err(unreadable()),
        }
        Ok(())
    }
}

/// When the first of the transactions that are open began, or now; NULL where that can't be told (a prepared transaction shows no
/// beginning, a standby not what runs at its primary). And whether some may be hidden from this role.
const EARLIEST_START_SQL: &str = "SELECT CASE
        WHEN pg_is_in_recovery() OR EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()) THEN NULL
        ELSE least(statement_timestamp(), min(a.xact_start)) END,
    coalesce(bool_or(a.usesysid <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)), false)
        AND NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
    FROM pg_catalog.pg_stat_activity a
    WHERE a.datname = current_database() AND a.backend_type IS DISTINCT FROM 'autovacuum worker'";

/// A statement with the parameters `$1`, `$2`, ...
fn numbered(sql: &str) -> String {
    with_parameters(sql, |name| match name.strip_prefix('?') {
        Some(number) if !number.is_empty() => format!("${number}"),
        _ => name.to_owned(),
    })
}

/// A connection to PostgreSQL.
pub(super) struct PostgresConnection {
    pub(super) link: Link,
    tables: HashMap<(u64, u32), Table>,
    queries: HashMap<String, Statement>,
    /// By model: what [`HIERARCHY_SQL`] gave when every part was known to be tracked.
    known_parts: HashMap<u64, String>,
    /// The tables of [`LIMITS_SQL`] are there: it goes out with the next download's beginning.
    has_limits: bool,
    state: State,
    /// Control statements that go out with the next statement, each ended by a semicolon: a savepoint costs no round trip of its own.
    pub(super) queued: String,
    pub(super) scratch: Scratch,
}

/// What is known of a table, and its statements as far as they have been needed.
struct Table {
    shape: std::sync::Arc<Shape>,
    statements: [Option<Statement>; Verb::COUNT],
    /// An insert ON CONFLICT has found a unique index, not deferrable, of the key: one without it will be refused a second row.
    is_key_unique: bool,
}

#[derive(Debug, Default)]
struct State {
    mode: Option<Mode>,
    /// The transaction is good only for a rollback.
    failed: bool,
    savepoint: bool,
    /// The snapshot of a download.
    watermark: Option<Watermark>,
    /// What [`HIERARCHY_SQL`] gave in it; `None` on a standby, where nothing can be tracked anyway.
    hierarchy: Option<String>,
    /// What side tables don't tell any more, as that snapshot has it.
    limits: Option<Limits>,
    /// Rows are looked up by index, whatever the planner believes.
    by_index: bool,
}

impl PostgresConnection {
    pub(super) fn new(link: Link) -> PostgresConnection {
        let scratch = Scratch::default();
        let (tables, queries, known_parts) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (state, queued) = (State::default(), String::new());
        PostgresConnection { link, tables, queries, known_parts, has_limits: false, state, queued, scratch }
    }

    /// What an error means, and what it leaves behind.
    pub(super) fn failure(&mut self, context: &str, failure: &tokio_postgres::Error) -> Error {
        self.state.failed = self.state.mode.is_some();
        let converted = error::convert(context, failure);
        match (converted, self.link.ending()) {
            (Error::Retry { detail, .. }, Some(ending)) => {
                Error::Retry { detail: format!("{detail} ({ending})"), broken: true }
            }
            // Nothing is written in a download: whatever its SQL (a membership query, say) stumbles over is no row of a remote's.
            (Error::Refused { detail, .. }, _) if self.state.mode == Some(Mode::Download) => {
                Error::Database { context: context.to_owned(), detail }
            }
            (other, _) => other,
        }
    }

    /// Has rows looked up by index for the rest of a download, or lets the planner choose again. It can't know how few rows are newer
    /// than a watermark before the side table's statistics have seen them, and reads whole tables until then.
    pub(super) fn look_up_by_index(&mut self, by_index: bool) {
        if self.state.by_index == by_index {
            return;
        }
        self.state.by_index = by_index;
        let value = if by_index { "off" } else { "on" };
        for plan in ["seqscan", "hashjoin", "mergejoin"] {
            self.queued.extend(["SET LOCAL enable_", plan, " = ", value, ";"]);
        }
    }

    /// Runs a request behind what is queued.
    pub(super) fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, tokio_postgres::Error> {
        let queued = std::mem::take(&mut self.queued);
        self.link.run(async |client| behind(client, &queued, work(client)).await)
    }

    /// A table's shape and one of its statements.
    pub(super) fn table(&mut self, plan: &TablePlan, verb: Verb) -> Result<(std::sync::Arc<Shape>, Statement), Error> {
        let name = (plan.fingerprint, plan.number);
        if !self.tables.contains_key(&name) {
            let mut columns =
                |table| self.query(COLUMNS_SQL, &[Value::text(headwater_model::tracking::postgres::base_table(table))]);
            let found = columns(&plan.table)?;
            let root = plan.parents.last().map(columns).transpose()?;
            let shape = Shape::new(plan, &found, root.as_ref().unwrap_or(&found))?;
            let statements = std::array::from_fn(|_| None);
            self.tables.insert(name, Table { shape: std::sync::Arc::new(shape), statements, is_key_unique: false });
        }
        let table = &self.tables[&name];
        if let Some(statement) = &table.statements[verb as usize] {
            return Ok((table.shape.clone(), statement.clone()));
        }
        let shape = table.shape.clone();
        let statement = self.prepare(&shape.sql(verb))?;
        if let Some(table) = self.tables.get_mut(&name) {
            table.statements[verb as usize] = Some(statement.clone());
        }
        Ok((shape, statement))
    }

    /// Whether a plain insert may be trusted with the table's key.
    fn is_key_unique(&self, plan: &TablePlan) -> bool {
        self.tables.get(&(plan.fingerprint, plan.number)).is_some_and(|table| table.is_key_unique)
    }

    pub(super) fn note_key_is_unique(&mut self, plan: &TablePlan) {
        if let Some(table) = self.tables.get_mut(&(plan.fingerprint, plan.number)) {
            table.is_key_unique = true;
        }
    }

    /// Looks at the result of a statement on a table.
    pub(super) fn settle<T>(&mut self, plan: &TablePlan, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.state.failed = self.state.mode.is_some();
            if error.refusal().is_none() {
                self.tables.remove(&(plan.fingerprint, plan.number));
            }
        }
        result
    }

    fn prepare(&mut self, sql: &str) -> Result<Statement, Error> {
        let prepared = self.run(async |client| client.prepare(sql).await);
        prepared.map_err(|failure| match self.failure("preparing a statement", &failure) {
            // The statement itself does not fit, so no row is to blame.
            Error::Refused { detail, .. } => Error::Database { context: format!("preparing {sql:?}"), detail },
            other => other,
        })
    }

    /// The prepared form of the engines' own SQL, and its parameters.
    fn bind(&mut self, sql: &str, parameters: &[Value]) -> Result<(Statement, Vec<Bound>), Error> {
        let statement = match self.queries.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.prepare(&numbered(sql))?;
                if self.queries.len() >= QUERIES_MAX {
                    self.queries.clear();
                }
                self.queries.insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let kinds = statement.params();
        if kinds.len() > parameters.len() {
            let detail = format!("{} parameters for {sql:?}, expected {}", parameters.len(), kinds.len());
            return Err(Error::Database { context: "binding parameters".into(), detail });
        }
        let bound = parameters.iter().zip(kinds).map(|(value, kind)| Bound::value(value, kind)).collect();
        Ok((statement, bound))
    }

    /// What a statement of the engines' own SQL failed of.
    fn query_failure(&mut self, sql: &str, failure: &tokio_postgres::Error) -> Error {
        let is_remote_busy = sql.contains("NOWAIT") && error::is_not_available(failure);
        self.queries.remove(sql);
        let converted = self.failure(&format!("running {sql:?}"), failure);
        if is_remote_busy { Error::RemoteBusy } else { converted }
    }

    /// Statements without parameters and results.
    fn control(&mut self, sql: &str) -> Result<(), Error> {
        let sql = std::mem::take(&mut self.queued) + sql;
        let done = self.link.run(async |client| client.batch_execute(&sql).await);
        done.map_err(|failure| self.failure(&format!("running {sql:?}"), &failure))
    }

    fn first_value(&mut self, sql: &str) -> Result<u64, Error> {
        match self.query(sql, &[])?.first().and_then(|row| row.first()) {
            Some(Value::Int(number)) => Ok(*number as u64),
            other => {
                Err(Error::Database { context: sql.to_owned(), detail: format!("{other:?} is no transaction number") })
            }
        }
    }

    /// What was asked for with the beginning of a download.
    fn note_beginning(&mut self, answers: &[SimpleQueryMessage]) -> Result<(), Error> {
        let mut rows = answers.iter().filter_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let first = rows.next().and_then(|row| Some((row.get(0)?, row.get(1)? == "t", row.get(2)?)));
        if let Some((snapshot, in_recovery, hierarchy)) = first {
            self.state.watermark = Watermark::from_snapshot(snapshot, in_recovery);
            self.state.hierarchy = (!in_recovery).then(|| hierarchy.to_owned());
        }
        if self.has_limits {
            let mut limits = Limits::default();
            rows.try_for_each(|row| limits.add(row.get(0), row.get(1), row.get(2)))?;
            self.state.limits = Some(limits);
        }
        Ok(())
    }

    fn limits(&mut self) -> Result<&Limits, Error> {
        if self.state.limits.is_none() {
            let mut limits = Limits::default();
            for row in self.query(LIMITS_SQL, &[])? {
                let text = |place: usize| row.get(place).and_then(|value| crate::system::optional_text(Some(value)));
                limits.add(text(0).as_deref(), text(1).as_deref(), text(2).as_deref())?;
            }
            self.has_limits = true;
            self.state.limits = Some(limits);
        }
        Ok(self.state.limits.get_or_insert_default())
    }

    /// The snapshot of the download that is running.
    fn snapshot(&self) -> Result<&Watermark, Error> {
        self.state.watermark.as_ref().ok_or_else(|| Error::Database {
            context: "asking for a watermark".into(),
            detail: "no download has begun".into(),
        })
    }
}

impl Connection for PostgresConnection {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn begin(&mut self, mode: Mode) -> Result<(), Error> {
        let sql = match mode {
            // What the application made deferrable is checked when an upload is whole: its order does not matter.
            Mode::Upload => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET CONSTRAINTS ALL DEFERRED".to_owned(),
            Mode::Download => format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
                 SELECT pg_current_snapshot(), pg_is_in_recovery(), ({HIERARCHY_SQL}){}{}",
                if self.has_limits { "; " } else { "" },
                if self.has_limits { LIMITS_SQL } else { "" },
            ),
        };
        let answered = self.link.run(async |client| client.simple_query(&sql).await);
        let answers = answered.map_err(|failure| self.failure("beginning a transaction", &failure))?;
        self.state = State { mode: Some(mode), ..State::default() };
        if mode == Mode::Download {
            self.note_beginning(&answers)?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        if self.state.failed {
            // COMMIT would roll back without an error.
            let detail = "an error before it was not rolled back".into();
            self.rollback()?;
            return Err(Error::Database { context: "committing".into(), detail });
        }
        let done = self.run(async |client| client.batch_execute("COMMIT").await);
        let result = done.map_err(|failure| self.failure("committing", &failure));
        self.state = State::default();
        result
    }

    fn rollback(&mut self) -> Result<(), Error> {
        if self.state.mode.is_none() {
            return Ok(());
        }
        self.state = State::default();
        self.queued.clear();
        self.control("ROLLBACK")
    }

    fn savepoint(&mut self) -> Result<(), Error> {
        let moved = if self.state.savepoint { "RELEASE SAVEPOINT headwater;" } else { "" };
        self.queued.push_str(moved);
        self.queued.push_str("SAVEPOINT headwater;");
        self.state.savepoint = true;
        Ok(())
    }

    fn rollback_to_savepoint(&mut self) -> Result<(), Error> {
        self.control("ROLLBACK TO SAVEPOINT headwater")?;
        self.state.failed = false;
        Ok(())
    }

    fn release_savepoint(&mut self) -> Result<(), Error> {
        self.queued.push_str("RELEASE SAVEPOINT headwater;");
        self.state.savepoint = false;
        Ok(())
    }

    fn query(&mut self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, Error> {
        let (statement, bound) = self.bind(sql, parameters)?;
        let run = async |client: &Client| {
            let rows = client.query_raw(&statement, &bound).await?;
            futures_util::TryStreamExt::try_collect::<Vec<_>>(rows).await
        };
        let rows = self.run(run);
        let rows = rows.map_err(|failure| self.query_failure(sql, &failure))?;
        rows.iter().map(raw::row).collect()
    }

    fn each_row(
        &mut self,
        sql: &str,
        parameters: &[Value],
        each: &mut dyn FnMut(Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.look_up_by_index(false);
        let (statement, bound) = self.bind(sql, parameters)?;
        self.stream("running a query", &statement, &bound, |row, _| each(raw::row(row)?))
    }

    fn describe(&mut self, sql: &str) -> Result<Vec<String>, Error> {
        let numbered = numbered(sql);
        let statement = self.prepare(&numbered)?;
        Ok(statement.columns().iter().map(|column| column.name().to_owned()).collect())
    }

    fn earliest_start(&mut self) -> Result<Option<i64>, Error> {
        let rows = self.query(EARLIEST_START_SQL, &[])?;
        let Some([start, Value::Bool(hides)]) = rows.first().map(Vec::as_slice) else { return Ok(None) };
        if *hides {
            return Err(Error::Setup {
                what: "the transactions of other roles can't be seen, which :s.last_download depends on".to_owned(),
                mend: "GRANT pg_read_all_stats to the user of the database's URL".to_owned(),
            });
        }
        Ok(match start {
            Value::Timestamptz(micros) => Some(*micros),
            _ => None,
        })
    }

    fn execute(&mut self, sql: &str, parameters: &[Value]) -> Result<u64, Error> {
        let (statement, bound) = self.bind(sql, parameters)?;
        let done = self.run(async |client| client.execute_raw(&statement, &bound).await);
        done.map_err(|failure| self.query_failure(sql, &failure))
    }

    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        // What was prepared may no longer fit.
        self.tables.clear();
        self.queries.clear();
        self.control(sql)
    }

    fn fetch(&mut self, table: &TablePlan, keys: &[Row], lock: bool) -> Result<Vec<Row>, Error> {
        self.fetch_rows(table, keys, lock)
    }

    fn insert(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        self.insert_rows(table, rows, Verb::Insert)
    }

    fn insert_new(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        let verb = if self.is_key_unique(table) { Verb::InsertNew } else { Verb::Insert };
        self.insert_rows(table, rows, verb)
    }

    fn update(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<u64, Error> {
        self.update_rows(table, rows)
    }

    fn delete(&mut self, table: &TablePlan, keys: &[&Row]) -> Result<u64, Error> {
        self.delete_rows(table, keys)
    }

    fn check_deferred(&mut self) -> Result<(), Error> {
        self.control("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")
    }

    fn set_actor(&mut self, user: &str, remote_id: &[u8; 16]) -> Result<(), Error> {
        // Sent with the next statement, so it costs no round trip. As hex, so that no setting of the database's can make it end early.
        let text = |bytes: &[u8]| format!("convert_from(decode('{}', 'hex'), 'UTF8')", hex::encode(bytes));
        let remote_id = uuid::Uuid::from_bytes(*remote_id).to_string();
        for (name, value) in [("user", user), ("remote_id", &remote_id)] {
            let value = text(value.as_bytes());
            self.queued.extend(["SELECT set_config('headwater.", name, "', ", &value, ", true);"]);
        }
        Ok(())
    }

    fn own_mark(&mut self) -> Result<Vec<u8>, Error> {
        Ok(self.first_value("SELECT pg_current_xact_id()")?.to_be_bytes().to_vec())
    }

    fn watermark(&mut self) -> Result<Vec<u8>, Error> {
        Ok(self.snapshot()?.to_bytes())
    }

    fn accepts_watermark(&mut self, watermark: &[u8]) -> Result<bool, Error> {
        let Ok(watermark) = Watermark::from_bytes(watermark) else { return Ok(false) };
        let now = match &self.state.watermark {
            Some(now) => now.end,
            None => self.first_value("SELECT pg_snapshot_xmax(pg_current_snapshot())")?,
        };
        Ok(watermark.end <= now)
    }

    fn gaps(&mut self, watermark: &[u8]) -> Result<Gaps, Error> {
        let watermark = Watermark::from_bytes(watermark)?;
        let limits = self.limits()?;
        let unseen = |(table, transaction): &(String, u64)| (!watermark.has_seen(*transaction)).then(|| table.clone());
        let tables = limits.refreshed.iter().filter_map(unseen).collect();
        Ok(Gaps { everything: watermark.seen_below() < limits.horizon, tables })
    }

    fn parts_have_changed(&mut self, plan: &Plan) -> Result<bool, Error> {
        let Some(hierarchy) = self.state.hierarchy.clone() else { return Ok(false) };
        if self.known_parts.get(&plan.fingerprint) == Some(&hierarchy) {
            return Ok(false);
        }
        let (have_changed, are_waiting) = parts::have_changed(self, plan)?;
        if !have_changed && !are_waiting {
            self.known_parts.insert(plan.fingerprint, hierarchy);
        }
        Ok(have_changed)
    }

    fn adopt_parts(&mut self, plan: &Plan) -> Result<(), Error> {
        parts::adopt(self, plan)
    }

    fn read_whole(&mut self, table: &TablePlan, partitions: &[Row], out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        self.read_whole_rows(table, partitions, out)
    }

    fn read_changes(&mut self, changes: &Changes<'_>, out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        self.read_changed_rows(changes, out)
    }

    fn partitions_below(&mut self, table: &TablePlan, parents: &[Row], lock: bool) -> Result<Vec<(Row, Row)>, Error> {
        self.partitions_below_rows(table, parents, lock)
    }

    fn catalogue(&mut self) -> Result<Catalogue, Error> {
        catalogue::read(self)
    }
}
