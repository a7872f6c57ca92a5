//! One connection: its transaction, its statements, and the calls that are one statement each.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headwater_protocol::message::ChangeOp;
use headwater_protocol::{Row, Value};
use tokio_postgres::Client;

use super::ahead::{Answered, Queue};
use super::codec::Scratch;
use super::error::TableFault;
use super::link::Link;
use super::session::Session;
use super::shape::Verb;
use super::snapshot::{LimitsForm, Snapshot};
use super::statements::{ALTERED, Statements, numbered};
use super::watermark::Watermark;
use super::{catalogue, error, exposure, parts, raw, sides, standby, table_identity, trigger_states};
use crate::backend::{Changes, EncodedChanges, Gaps, Inserted, Query, Reading};
use crate::catalogue::Catalogue;
use crate::results::QueryConnection as _;
use crate::track::tracked_name;
use crate::{CommitWaits, Connection, Dialect, Error, Mode, Plan, RowsWriter, TablePlan};

/// When the first of the transactions that are open began, or now; NULL where that can't be told (a prepared transaction shows no
/// beginning, a standby not what runs at its primary). And whether some may be hidden from this role.
const EARLIEST_START_SQL: &str = "SELECT CASE
        WHEN pg_is_in_recovery() OR EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()) THEN NULL
        ELSE least(statement_timestamp(), min(a.xact_start)) END,
    coalesce(bool_or(a.usesysid <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)), false)
        AND NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
    FROM pg_catalog.pg_stat_activity a
    WHERE a.datname = current_database() AND a.backend_type IS DISTINCT FROM 'autovacuum worker'";

/// A connection to PostgreSQL.
pub(super) struct PostgresConnection {
    pub(super) link: Link,
    pub(super) statements: Statements,
    /// By model: [`Snapshot::hierarchy`] when every part was known to be tracked.
    known_parts: HashMap<u64, String>,
    whole_tracking: HashMap<u64, String>,
    /// By model: the [`Connection::tracking_mark`] with which its tables' statements were made.
    known_tables: HashMap<u64, String>,
    /// By model: the names of tables whose rows may change without being written ([`exposure`]).
    always_whole: HashMap<u64, Vec<String>>,
    unfollowed: HashMap<u64, Unfollowed>,
    /// The tables that tell how far back changes can be told, once they were seen: they are read with the next download's beginning.
    pub(super) limits_form: Option<LimitsForm>,
    pub(super) state: State,
    /// Control statements that go out with the next request: a savepoint costs no round trip of its own.
    pub(super) queued: Queue,
    pub(super) scratch: Scratch,
    /// Bytes of the largest row that a query has given: the driver keeps a buffer as large.
    pub(super) row_bytes: usize,
    /// What the last error says of its table.
    pub(super) table_fault: Option<TableFault>,
    /// The last download found that each of its tables can be read.
    pub(super) is_found_readable: bool,
    /// What the session has to have; `None` until it is ready for use.
    pub(super) session: Option<Session>,
    /// Behind a pooler: a statement that fails in any session but this one's.
    pub(super) guard: Option<String>,
    /// A table can't be read: which, is asked at each download. Shared by all connections of the database.
    pub(super) lacks_tables: Arc<AtomicBool>,
    pub(super) commit_waits: CommitWaits,
    /// The session could not be put back as it was.
    pub(super) is_unclean: bool,
    /// By query, whether it may read tables only while it runs ([`super::late`]).
    pub(super) late: HashMap<String, bool>,
}

/// The transaction that is open.
#[derive(Debug, Default)]
pub(super) struct State {
    /// `None`: there is none.
    pub(super) mode: Option<Mode>,
    /// The transaction is good only for a rollback.
    pub(super) failed: bool,
    pub(super) savepoint: bool,
    /// Of a download.
    pub(super) snapshot: Option<Snapshot>,
    /// Queries that were asked with its beginning, until somebody wants their rows.
    pub(super) answered: Vec<Answered>,
    /// The tables of its model whose changes are not all noted ([`Unfollowed`]); of a download.
    pub(super) unfollowed: Vec<String>,
    /// What [`Connection::take_moved`] gives.
    pub(super) moved: Vec<Row>,
    /// Its number, if the database has told it.
    pub(super) number: Option<i64>,
    /// Which tables the model's names meant at its beginning.
    pub(super) named: Option<String>,
    /// What part the application's code has in it.
    pub(super) application: Application,
    /// Rows are looked up by index, whatever the planner believes.
    pub(super) by_index: bool,
    /// The tables whose shapes it goes by, and those that it has read itself.
    pub(super) used_shapes: BTreeSet<(u64, u32)>,
    pub(super) read_shapes: BTreeSet<(u64, u32)>,
}

/// The names, as change tracking has them, of a model's tables whose changes are not all noted until a person does something: they come whole
/// at each sync.
#[derive(Debug, Default)]
struct Unfollowed {
    /// Those with a part on which the server's role can't make triggers.
    parts: Vec<String>,
    /// Those that are, or have a part that is, below a table which is not below them.
    parents: Vec<String>,
    /// Those whose side table calls other values equal than they do.
    sides: Vec<String>,
}

impl Unfollowed {
    fn tables(&self) -> Vec<String> {
        self.parts.iter().chain(&self.parents).chain(&self.sides).cloned().collect()
    }
}

/// The part that the application's code has in a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Application {
    /// None.
    #[default]
    Absent,
    /// It may run, and the session is as it was.
    Quiet,
    /// It may have changed the session since that was put right.
    Ran,
}

impl PostgresConnection {
    pub(super) fn new(link: Link) -> PostgresConnection {
        PostgresConnection {
            link,
            statements: Statements::default(),
            known_parts: HashMap::new(),
            whole_tracking: HashMap::new(),
            known_tables: HashMap::new(),
            always_whole: HashMap::new(),
            unfollowed: HashMap::new(),
            limits_form: None,
            state: State::default(),
            queued: Queue::default(),
            scratch: Scratch::default(),
            row_bytes: 0,
            table_fault: None,
            is_found_readable: false,
            session: None,
            guard: None,
            lacks_tables: Arc::default(),
            commit_waits: CommitWaits::default(),
            is_unclean: false,
            late: HashMap::new(),
        }
    }

    /// Whether this transaction has written anything, so that its commit would wait for a standby.
    fn has_written(&mut self) -> Result<bool, Error> {
        let rows = self.query("SELECT pg_current_xact_id_if_assigned() IS NOT NULL", &[])?;
        Ok(matches!(rows.first().and_then(|row| row.first()), Some(Value::Bool(true))))
    }

    /// What an error means, and what it leaves behind.
    pub(super) fn failure(&mut self, context: &str, failure: &tokio_postgres::Error) -> Error {
        self.state.failed = self.state.mode.is_some();
        self.table_fault = error::table_fault(failure);
        let converted = error::convert(context, failure);
        match (converted, self.link.ending()) {
            (Error::Retry { detail, .. }, Some(ending)) => {
                Error::Retry { detail: format!("{detail} ({ending})"), broken: true }
            }
            // Nothing is written in a download: whatever its SQL (a membership query, say) stumbles over is no row of a remote's.
            (Error::Refused { detail, .. }, _) if self.state.mode == Some(Mode::Download) => {
                Error::Database { context: context.to_owned(), detail }
            }
            (Error::InDoubt { detail, .. }, _) if self.state.mode != Some(Mode::Upload) => {
                if failure.code() == Some(&tokio_postgres::error::SqlState::INTERNAL_ERROR) {
                    return Error::Database { context: context.to_owned(), detail };
                }
                Error::Retry { detail: format!("{context}: {detail}"), broken: false }
            }
            (other, _) => other,
        }
    }

    /// Runs a request behind what is queued.
    pub(super) fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, tokio_postgres::Error> {
        let queued = self.take_queued();
        self.link.run(async |client| queued.before(client, work(client)).await)
    }
}

impl Connection for PostgresConnection {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn begin(&mut self, mode: Mode) -> Result<(), Error> {
        self.open_with(mode, None, &[])
    }

    fn open(&mut self, mode: Mode, (user, remote_id): (&str, &[u8; 16]), first: &[Query]) -> Result<(), Error> {
        self.open_with(mode, Some((user, remote_id)), first)
    }

    fn commit(&mut self) -> Result<(), Error> {
        if self.state.failed {
            // COMMIT would roll back without an error.
            let detail = "an error before it was not rolled back".into();
            self.rollback()?;
            return Err(Error::Database { context: "committing".into(), detail });
        }
        if let Some(waiting) = self.commit_waits.now()
            && self.has_written()?
        {
            // It would be one more that is left: there are as many as waited when it was found out.
            self.rollback()?;
            return Err(Error::Retry { detail: format!("a commit {}", waiting.what), broken: false });
        }
        let sql = self.commit_sql();
        let done = if self.state.application == Application::Absent {
            self.run(async |client| client.batch_execute(&sql).await)
        } else {
            self.commit_and_restore(&sql)
        };
        if let Err(failure) = &done
            && failure.as_db_error().is_some_and(|error| error.message().contains(ALTERED))
        {
            self.statements = Statements::default();
            self.state.failed = true;
            self.rollback()?;
            let detail = "a table was altered since it was looked at".to_owned();
            return Err(Error::Retry { detail, broken: false });
        }
        let result = done.map_err(|failure| {
            // What was queued before it may have failed because it does not fit any more.
            self.statements = Statements::default();
            self.failure("committing", &failure)
        });
        self.state = State::default();
        result
    }

    fn look_at_commits(&mut self) -> Result<(), Error> {
        let rows = self.query(standby::WAITING_SQL, &[])?;
        standby::note_rows(&self.commit_waits, &rows);
        Ok(())
    }

    fn savepoint(&mut self) -> Result<(), Error> {
        let moved = if self.state.savepoint { "RELEASE SAVEPOINT headwater;" } else { "" };
        self.queued.sql([moved, "SAVEPOINT headwater;"]);
        self.state.savepoint = true;
        Ok(())
    }

    fn rollback_to_savepoint(&mut self) -> Result<(), Error> {
        self.control("ROLLBACK TO SAVEPOINT headwater")?;
        self.state.failed = false;
        Ok(())
    }

    fn release_savepoint(&mut self) -> Result<(), Error> {
        self.queued.sql(["RELEASE SAVEPOINT headwater;"]);
        self.state.savepoint = false;
        Ok(())
    }

    fn query(&mut self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, Error> {
        if let Some(rows) = self.answered(sql, parameters) {
            return Ok(rows);
        }
        let (statement, bound) = self.bind(sql, parameters)?;
        let run = async |client: &Client| {
            let rows = client.query_raw(&statement, &bound).await?;
            futures_util::TryStreamExt::try_collect::<Vec<_>>(rows).await
        };
        let rows = self.run_alone(run);
        let rows = rows.map_err(|failure| self.query_failure(sql, &failure))?;
        raw::readable(statement.columns())?;
        rows.iter().map(raw::row).collect()
    }

    fn each_row(
        &mut self,
        sql: &str,
        parameters: &[Value],
        each: &mut dyn FnMut(Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.look_up_by_index(false)?;
        let (statement, bound) = self.bind(sql, parameters)?;
        self.stream("running a query", &statement, &bound, |row, _| each(raw::row(row)?))
    }

    fn query_each(
        &mut self,
        sql: &str,
        parameters: &mut dyn Iterator<Item = Vec<Value>>,
        each: &mut dyn FnMut(Vec<Row>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.query_pipelined(sql, parameters, each)
    }

    fn execute_each(&mut self, sql: &str, parameters: &mut dyn Iterator<Item = Vec<Value>>) -> Result<(), Error> {
        self.execute_pipelined(sql, parameters)
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
        let done = self.run_alone(async |client| client.execute_raw(&statement, &bound).await);
        done.map_err(|failure| self.query_failure(sql, &failure))
    }

    fn execute_with_next(&mut self, sql: &str, parameters: &[Value]) -> Result<(), Error> {
        let asked = self.bind(sql, parameters)?;
        self.queued.prepared(asked);
        Ok(())
    }

    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        // What was prepared may no longer fit.
        self.statements = Statements::default();
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

    fn takes_plain(&mut self, table: &TablePlan, op: ChangeOp) -> Result<bool, Error> {
        self.keeps_plain(table, op)
    }

    fn change_plain(&mut self, table: &TablePlan, changes: EncodedChanges<'_>, compares: bool) -> Result<bool, Error> {
        self.change_encoded(table, changes, compares)
    }

    fn stayed_plain(&mut self, tables: &[&TablePlan]) -> Result<bool, Error> {
        self.still_keep_plain(tables)
    }

    fn update(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<u64, Error> {
        self.update_rows(table, rows)
    }

    fn take_moved(&mut self) -> Vec<Row> {
        std::mem::take(&mut self.state.moved)
    }

    fn note_again(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
        self.note_rows_again(table, rows)
    }

    fn delete(&mut self, table: &TablePlan, keys: &[&Row]) -> Result<u64, Error> {
        self.delete_rows(table, keys)
    }

    fn check_deferred(&mut self) -> Result<(), Error> {
        let checked = self.control("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED");
        self.application_ran();
        checked
    }

    fn check_deferred_last(&mut self) -> Result<(), Error> {
        self.queued.sql(["SET CONSTRAINTS ALL IMMEDIATE;"]);
        if let Some(restore) = self.restoring() {
            self.queued.prepared((restore, Vec::new()));
        }
        Ok(())
    }

    fn set_actor(&mut self, user: &str, remote_id: &[u8; 16]) -> Result<(), Error> {
        // Sent with the next statement, so it costs no round trip.
        let actor = self.actor(user, remote_id)?;
        self.queued.prepared(actor);
        Ok(())
    }

    fn own_mark(&mut self) -> Result<Vec<u8>, Error> {
        if let Some(number) = self.state.number {
            return Ok(number.to_be_bytes().to_vec());
        }
        match self.query("SELECT pg_current_xact_id()", &[])?.first().and_then(|row| row.first()) {
            Some(Value::Int(number)) => Ok(number.to_be_bytes().to_vec()),
            other => Err(Error::Database {
                context: "asking for the transaction's number".into(),
                detail: format!("{other:?} is none"),
            }),
        }
    }

    fn watermark(&mut self) -> Result<Vec<u8>, Error> {
        Ok(self.snapshot()?.watermark.to_bytes())
    }

    fn withheld(&mut self, tables: &[&TablePlan]) -> Result<Vec<bool>, Error> {
        self.which_are_withheld(tables)
    }

    fn accepts_watermark(&mut self, watermark: &[u8]) -> Result<bool, Error> {
        let Ok(watermark) = Watermark::from_bytes(watermark) else { return Ok(false) };
        Ok(watermark.end <= self.snapshot()?.watermark.end)
    }

    fn gaps(&mut self, watermark: &[u8]) -> Result<Gaps, Error> {
        self.gaps_since(&Watermark::from_bytes(watermark)?)
    }

    fn end_download(&mut self) -> Result<Option<String>, Error> {
        self.end_guarded()
    }

    fn parts_have_changed(&mut self, plan: &Plan) -> Result<bool, Error> {
        let fingerprint = plan.fingerprint;
        let mut have_changed = false;
        // On a standby there is none, and [`Connection::settle_tables`] finds the parts.
        let hierarchy = self.snapshot()?.hierarchy.clone();
        if let Some(hierarchy) = hierarchy.filter(|found| self.known_parts.get(&fingerprint) != Some(found)) {
            let (changed, are_waiting) = parts::have_changed(self, plan)?;
            have_changed = changed;
            let by_parts = if are_waiting { parts::unfollowed_tables(self, plan)? } else { Vec::new() };
            let by_parents = parts::tables_below_others(self, plan)?;
            let unfollowed = self.unfollowed.entry(fingerprint).or_default();
            (unfollowed.parts, unfollowed.parents) = (by_parts, by_parents);
            if !changed && !are_waiting {
                self.known_parts.insert(fingerprint, hierarchy);
            }
        }
        self.state.unfollowed = self.unfollowed.get(&fingerprint).map(Unfollowed::tables).unwrap_or_default();
        Ok(have_changed)
    }

    fn tracking_query(&self, plan: &Plan) -> Option<Query> {
        table_identity::mark_sql(plan).map(|sql| Query { sql, parameters: Vec::new() })
    }

    fn tracking_mark(&mut self, plan: &Plan) -> Result<Option<String>, Error> {
        let Some(Query { sql, parameters }) = self.tracking_query(plan) else { return Ok(None) };
        let rows = self.query(&sql, &parameters)?;
        let mark = rows.first().and_then(|row| crate::system::optional_text(row.first()));
        self.state.named = rows.first().and_then(|row| crate::system::optional_text(row.get(1)));
        if self.known_tables.get(&plan.fingerprint) != mark.as_ref() {
            // What statements were made for may be another type now.
            self.forget_tables(plan.fingerprint);
            self.known_tables.extend(mark.clone().map(|mark| (plan.fingerprint, mark)));
        }
        Ok(mark)
    }

    fn has_same_tables(&mut self, plan: &Plan) -> Result<bool, Error> {
        let Some(sql) = table_identity::named_sql(plan) else { return Ok(true) };
        let rows = self.query(&sql, &[])?;
        Ok(rows.first().and_then(|row| crate::system::optional_text(row.first())) == self.state.named)
    }

    fn enable_triggers(&mut self, plan: &Plan) -> Result<bool, Error> {
        trigger_states::enable_again(self, plan)
    }

    fn settle_tables(&mut self, plan: &Plan) -> Result<(), Error> {
        table_identity::settle(self, plan)?;
        let mut whole = Vec::new();
        for table in plan.tables.iter().filter(|table| table.table.is_tracked()) {
            if exposure::policy_that_reads_more(self, &table.lineage())?.is_some() {
                whole.push(tracked_name(&table.lineage()));
            }
        }
        self.always_whole.insert(plan.fingerprint, whole);
        let mut unequal = Vec::new();
        for table in plan.tables.iter().filter(|table| table.table.is_tracked()) {
            if sides::unequal(self, &table.lineage())?.is_some() {
                unequal.push(tracked_name(&table.lineage()));
            }
        }
        let found = Unfollowed {
            parts: parts::unfollowed_tables(self, plan)?,
            parents: parts::tables_below_others(self, plan)?,
            sides: unequal,
        };
        self.unfollowed.insert(plan.fingerprint, found);
        Ok(())
    }

    fn always_whole(&self, plan: &Plan) -> Vec<String> {
        self.always_whole.get(&plan.fingerprint).cloned().unwrap_or_default()
    }

    fn whole_tracking(&mut self) -> &mut HashMap<u64, String> {
        &mut self.whole_tracking
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

    fn may_have_changed(&mut self, changes: &[Changes<'_>]) -> Result<Vec<bool>, Error> {
        self.which_have_changed(changes)
    }

    fn hurry(&mut self, limit: Duration) -> Result<(), Error> {
        let limit = limit.as_millis().max(1).to_string();
        self.queued.sql(["SET LOCAL statement_timeout = ", &limit, "; SET LOCAL lock_timeout = 1;"]);
        Ok(())
    }

    fn count(&mut self, reading: &Reading<'_>) -> Result<u64, Error> {
        self.count_rows(reading)
    }

    fn read_some(
        &mut self,
        table: &TablePlan,
        partitions: &[Row],
        rows_max: u32,
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        self.read_some_rows(table, partitions, rows_max, out)
    }

    fn read_valued(
        &mut self,
        table: &TablePlan,
        partitions: &[Row],
        columns: &[u32],
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        self.read_valued_rows(table, partitions, columns, out)
    }

    fn partitions_below(&mut self, table: &TablePlan, parents: &[Row], lock: bool) -> Result<Vec<(Row, Row)>, Error> {
        self.partitions_below_rows(table, parents, lock)
    }

    fn has_texts_of_any_bytes(&self) -> bool {
        self.link.is_sql_ascii()
    }

    fn has_spelled_partitions(&mut self, table: &TablePlan) -> Result<bool, Error> {
        self.has_spelled(table)
    }

    fn partition_classes(&mut self, table: &TablePlan, partitions: &[Row]) -> Result<Vec<usize>, Error> {
        self.classes(table, partitions)
    }

    fn spellings(&mut self, reading: &Reading<'_>) -> Result<Vec<Row>, Error> {
        self.read_spellings(reading)
    }

    fn catalogue(&mut self) -> Result<Catalogue, Error> {
        catalogue::read(self)
    }
}
