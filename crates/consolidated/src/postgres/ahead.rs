//! What goes out without a round trip of its own: control statements before the next request, and, with a transaction's beginning, the
//! queries that are known to come first.
//!
//! ```text
//! BEGIN | snapshot | who syncs | memberships      one write, one read
//! SET LOCAL ... | changes of a table               the same
//! ```
//!
//! *Caveats.* The server answers in order, so what is asked ahead is read whole before anything else is asked.

use futures_util::TryStreamExt as _;
use futures_util::future::{join, join_all, join3};
use headwater_protocol::{Row, Value};
use tokio_postgres::{Client, Statement};

use super::bound::Bound;
use super::connection::{Application, PostgresConnection, State};
use super::raw;
use super::session::ROLLBACK_SQL;
use super::snapshot::{self, Snapshot};
use crate::backend::Query;
use crate::{Error, Mode};

/// Tells triggers, policies and queries of the application's own who syncs.
const ACTOR_SQL: &str = "set_config('headwater.user', ?1, true), set_config('headwater.remote_id', ?2, true)";

/// Statements that wait for the next request. Few: what has no parameters is put together.
#[derive(Default)]
pub(super) struct Queue(Vec<Queued>);

enum Queued {
    /// Each ended by a semicolon.
    Sql(String),
    Prepared(Statement, Vec<Bound>),
}

impl Queue {
    /// Adds statements without parameters, each ended by a semicolon.
    pub(super) fn sql<'s>(&mut self, parts: impl IntoIterator<Item = &'s str>) {
        if !matches!(self.0.last(), Some(Queued::Sql(_))) {
            self.0.push(Queued::Sql(String::new()));
        }
        if let Some(Queued::Sql(sql)) = self.0.last_mut() {
            sql.extend(parts);
        }
    }

    /// Adds a prepared statement, whose rows nobody wants.
    pub(super) fn prepared(&mut self, (statement, bound): (Statement, Vec<Bound>)) {
        self.0.push(Queued::Prepared(statement, bound));
    }

    /// The same, before all that waits.
    pub(super) fn prepared_first(&mut self, (statement, bound): (Statement, Vec<Bound>)) {
        self.0.insert(0, Queued::Prepared(statement, bound));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Runs what waits and a request behind it, without waiting in between.
    pub(super) async fn before<T, E: From<tokio_postgres::Error>>(
        &self,
        client: &Client,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if self.is_empty() {
            return work.await;
        }
        // Requests go out in the order of their first poll: `join` and, for few, `join_all` poll them in theirs.
        let all = join_all(self.0.iter().map(|queued| queued.run(client)));
        let (done, result) = join(all, work).await;
        done.into_iter().collect::<Result<(), _>>()?;
        result
    }
}

impl Queued {
    async fn run(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        match self {
            Queued::Sql(sql) => client.batch_execute(sql).await,
            Queued::Prepared(statement, bound) => client.execute_raw(statement, bound).await.map(|_| ()),
        }
    }
}

/// A query that was asked ahead, and what it gave.
#[derive(Debug)]
pub(super) struct Answered {
    sql: String,
    parameters: Vec<Value>,
    rows: Vec<Row>,
}

type Asked = (Statement, Vec<Bound>);

async fn rows_of(
    client: &Client,
    (statement, bound): &Asked,
) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
    client.query_raw(statement, bound).await?.try_collect().await
}

/// The parameters of [`ACTOR_SQL`].
fn told((user, remote_id): (&str, &[u8; 16])) -> [Value; 2] {
    [Value::text(user), Value::text(uuid::Uuid::from_bytes(*remote_id).to_string())]
}

impl PostgresConnection {
    /// Begins a transaction, says in it who syncs, and asks what will be asked first.
    pub(super) fn open_with(
        &mut self,
        mode: Mode,
        actor: Option<(&str, &[u8; 16])>,
        queries: &[Query],
    ) -> Result<(), Error> {
        self.check_clean()?;
        let (begin, snapshot_sql) = match mode {
            // What the application made deferrable is checked when an upload is whole: its order does not matter.
            Mode::Upload => ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET CONSTRAINTS ALL DEFERRED", None),
            Mode::Download => {
                ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", Some(snapshot::opening_sql(self.limits_form)))
            }
        };
        let first = match (snapshot_sql, actor) {
            (None, None) => None,
            (Some(sql), None) => Some(self.bind(&sql, &[])?),
            (None, Some(actor)) => Some(self.bind(&format!("SELECT {ACTOR_SQL}"), &told(actor))?),
            (Some(sql), Some(actor)) => Some(self.bind(&format!("{sql}, {ACTOR_SQL}"), &told(actor))?),
        };
        let asked = queries.iter().map(|query| self.bind(&query.sql, &query.parameters));
        let asked = asked.collect::<Result<Vec<_>, _>>()?;
        let begin = self.guarded(begin);
        // From here on a rollback has something to end, whichever of the statements fails.
        let is_applications = mode == Mode::Upload && actor.is_some();
        let application = if is_applications { Application::Quiet } else { Application::Absent };
        self.state = State { mode: Some(mode), application, ..State::default() };
        let with_limits = self.limits_form.is_some();
        let (opened, found, answers) = self.link.run(async |client| {
            let answers = join_all(asked.iter().map(|asked| rows_of(client, asked)));
            let first = async {
                match &first {
                    Some(first) => rows_of(client, first).await,
                    None => Ok(Vec::new()),
                }
            };
            join3(client.batch_execute(&begin), first, answers).await
        });
        let found = opened.and(found).map_err(|failure| {
            // The tables that it reads may not be there any more.
            self.limits_form = None;
            self.failure("beginning a transaction", &failure)
        })?;
        for (query, answer) in queries.iter().zip(answers) {
            let rows = answer.map_err(|failure| self.query_failure(&query.sql, &failure))?;
            let rows = rows.iter().map(raw::row).collect::<Result<_, _>>()?;
            let Query { sql, parameters } = query.clone();
            self.state.answered.push(Answered { sql, parameters, rows });
        }
        if mode == Mode::Download {
            self.state.snapshot = Some(Snapshot::read(found.first(), with_limits)?);
        }
        Ok(())
    }

    /// The statement that says who syncs.
    pub(super) fn actor(&mut self, user: &str, remote_id: &[u8; 16]) -> Result<Asked, Error> {
        self.bind(&format!("SELECT {ACTOR_SQL}"), &told((user, remote_id)))
    }

    /// What was asked ahead, if this was; once.
    pub(super) fn answered(&mut self, sql: &str, parameters: &[Value]) -> Option<Vec<Row>> {
        let is_it = |answered: &Answered| answered.sql == sql && answered.parameters == parameters;
        let place = self.state.answered.iter().position(is_it)?;
        Some(self.state.answered.swap_remove(place).rows)
    }

    /// Ends a transaction that has written nothing, without waiting for the answer: the next request reads it.
    pub(super) fn end_unseen(&mut self) {
        self.link.send(async |client| {
            // Where the connection has broken the next request says so.
            let _ = client.batch_execute(ROLLBACK_SQL).await;
        });
    }

    /// Has rows looked up by index for the rest of a download, or lets the planner choose again. It can't know how few rows are newer
    /// than a watermark before the side table's statistics have seen them, and reads whole tables until then.
    pub(super) fn look_up_by_index(&mut self, by_index: bool) -> Result<(), Error> {
        if self.state.by_index == by_index {
            return Ok(());
        }
        let sql = "SELECT set_config('enable_seqscan', ?1, true), set_config('enable_hashjoin', ?1, true), \
                   set_config('enable_mergejoin', ?1, true)";
        let planned = self.bind(sql, &[Value::text(if by_index { "off" } else { "on" })])?;
        self.queued.prepared(planned);
        self.state.by_index = by_index;
        Ok(())
    }

    /// What waits for the next request, at once.
    pub(super) fn send_queued(&mut self) -> Result<(), Error> {
        if self.queued.is_empty() {
            return Ok(());
        }
        let done = self.run(async |_| Ok(()));
        done.map_err(|failure| self.failure("running what was to go out with the next statement", &failure))
    }

    /// Control statements, at once.
    pub(super) fn control(&mut self, sql: &str) -> Result<(), Error> {
        let done = self.run(async |client| client.batch_execute(sql).await);
        done.map_err(|failure| self.failure(&format!("running {sql:?}"), &failure))
    }
}
