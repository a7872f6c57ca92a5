//! A scenario on a database, as the harness drives it.

mod operation;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headwater_model::sql::with_parameters;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::experiment::{Cell, TargetSettings};
use crate::harness::{Attempts, Class, Failure, Tally, Work, Workload};
use crate::random::{Random, stream};
use crate::replica::{self, Behind, Heart, Lags};
use crate::scenario::{DONE, Drives, FAILED, READ, Scenario};
use crate::target::{Row, Session, Target};
use crate::value::Value;
use operation::{Act, Kinds, Operation};

/// How long one script of the preparation or one query of verify may take.
const SCRIPT: Duration = Duration::from_hours(6);
/// How many rows of a query of verify are shown.
const FAULTS_MAX: usize = 3;

/// A scenario on a database.
pub struct SqlWorkload {
    target: Target,
    /// What comes to be read there is waited for.
    replica: Option<Target>,
    lags: Arc<Lags>,
    drained: OnceLock<Duration>,
    scenario: Scenario,
    cell: Cell,
    seed: u64,
    /// Parameters and constants.
    fixed: Vec<(String, Value)>,
    kinds: Kinds,
    /// Of operations that succeeded: how many rows they read, and how often they executed each step.
    read: AtomicU64,
    executed: Vec<AtomicU64>,
    interrupt: watch::Receiver<bool>,
    admin: Mutex<Admin>,
}

/// What prepares and cleans up.
struct Admin {
    session: Option<Session>,
    made: Made,
    heart: Option<Heart>,
}

/// Whether the scenario's tables are ours.
#[derive(Debug)]
enum Made {
    No,
    /// What is known by this ID makes them; its end was not seen.
    Perhaps(String),
    /// By this ID.
    Yes(String),
}

/// One client.
pub struct Client {
    session: Option<Session>,
    operation: Operation,
}

impl SqlWorkload {
    /// A cell's scenario on a target. An error: it is not possible with the cell's parameters.
    pub fn new(
        target: Target,
        scenario: &Scenario,
        cell: &Cell,
        seed: u64,
        interrupt: watch::Receiver<bool>,
    ) -> Result<SqlWorkload, Failure> {
        let mut fixed = cell.parameters.clone();
        let mut random = Random::derived(seed, &[stream::CONSTANTS]);
        for (name, generator) in &scenario.constants {
            let mut draw = generator.resolve(&cell.parameters, 0, 1).map_err(Failure::usage)?;
            fixed.push((name.clone(), draw.next(&mut random)));
        }
        let kinds = Kinds::new(scenario, &fixed, target.database()).map_err(Failure::usage)?;
        let executed = kinds.steps.iter().map(|_| AtomicU64::new(0)).collect();
        let admin = Mutex::new(Admin { session: None, made: Made::No, heart: None });
        let (scenario, cell, read) = (scenario.clone(), cell.clone(), AtomicU64::new(0));
        let (replica, lags, drained) = (None, Arc::default(), OnceLock::new());
        Ok(SqlWorkload {
            target,
            replica,
            lags,
            drained,
            scenario,
            cell,
            seed,
            fixed,
            kinds,
            read,
            executed,
            interrupt,
            admin,
        })
    }

    /// With a replica that is watched.
    #[must_use]
    pub fn with_replica(mut self, replica: Option<Target>) -> SqlWorkload {
        if replica.is_some() {
            self.scenario.tables.push(replica::TABLE.to_owned());
        }
        SqlWorkload { replica, ..self }
    }

    /// How far the replica was behind in this time.
    pub fn behind(&self, from: Instant, elapsed: Duration) -> Option<Behind> {
        self.replica.as_ref().map(|_| Behind::during(&self.lags, from, elapsed, self.drained.get().copied()))
    }

    /// The script of the preparation; none: there is nothing to make.
    fn preparation(&self) -> Option<String> {
        let script = self.scenario.prepare.as_ref().map(|script| self.filled(script.of(self.target.database()), &[]));
        match self.replica {
            Some(_) => Some(format!("{};\n{}", replica::MAKE, script.unwrap_or_default())),
            None => script,
        }
    }

    async fn session(&self, timeout: Duration) -> Result<Session, Failure> {
        let mut session = self.target.connect(timeout, &self.interrupt).await?;
        let TargetSettings { setup, setup_of, .. } = &self.cell.target;
        for setup in setup.iter().chain(setup_of.of(self.target.database())) {
            session.script(setup).await.map_err(|failure| of_the_user("target.setup", failure))?;
        }
        Ok(session)
    }

    /// SQL with the values of parameters and constants in it, and of what else is given.
    fn filled(&self, sql: &str, more: &[(&str, u64)]) -> String {
        with_parameters(sql, |parameter| {
            let name = parameter.trim_start_matches(':');
            let fixed = self.fixed.iter().find(|(known, _)| known == name);
            let fixed = fixed.map(|(_, value)| value.literal(self.target.database()));
            let more = || more.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
            fixed.or_else(more).unwrap_or_else(|| parameter.to_owned())
        })
    }

    /// Does what was drawn; gives the number of rows read.
    async fn transact(&self, session: &mut Session, operation: &Operation) -> Result<u64, Failure> {
        let begin = self.kinds.begin(operation);
        if let Some(begin) = begin {
            session.script(begin).await?;
        }
        let mut read = 0;
        for act in operation.acts() {
            match act {
                Act::Execute { statement, base } => {
                    let values = self.kinds.values(operation, *statement, *base);
                    read += session.execute(*statement, &values).await?;
                }
                Act::Bulk { statement, base, own, count } => {
                    let values = |number| self.kinds.values(operation, *statement, base + number * own);
                    session.execute_all(*statement, &(0..*count).map(values).collect::<Vec<_>>()).await?;
                }
                Act::Send(text) => session.script(text).await?,
                Act::Pause(time) => tokio::time::sleep(*time).await,
            }
        }
        if begin.is_some() {
            session.script("COMMIT").await?;
        }
        Ok(read)
    }

    /// What verify may ask for beside what is fixed.
    fn counts(&self, tally: Tally) -> Vec<(&str, u64)> {
        let read = self.read.load(Ordering::Relaxed);
        let mut counts = vec![(DONE, tally.done), (FAILED, tally.failed), (READ, read)];
        for (name, executed) in self.kinds.steps.iter().zip(&self.executed) {
            let executed = executed.load(Ordering::Relaxed);
            match counts.iter_mut().find(|(known, _)| known == name) {
                Some((_, count)) => *count += executed,
                None => counts.push((name, executed)),
            }
        }
        counts
    }
}

impl Workload for SqlWorkload {
    type Client = Client;

    async fn prepare(&self) -> Result<(), Failure> {
        let mut admin = self.admin.lock().await;
        let Admin { session, made, heart } = &mut *admin;
        let session = session.insert(self.session(SCRIPT).await?);
        refuse_existing(&self.target, session, &self.scenario).await?;
        if let Some(script) = self.preparation() {
            let mut note = |id: Option<String>| *made = id.map_or(Made::No, Made::Perhaps);
            let prepared = session.make(&self.scenario.tables, &script, &mut note).await;
            prepared.map_err(|failure| of_the_user("prepare", failure))?;
            if let Made::Perhaps(id) = std::mem::replace(made, Made::No) {
                *made = Made::Yes(id);
            }
            for table in &self.scenario.tables {
                session.analyze(table).await?;
            }
        }
        if let Some(replica) = &self.replica {
            *heart = Some(Heart::start(&self.target, replica, self.lags.clone(), &self.interrupt).await?);
        }
        admin.session = None;
        Ok(())
    }

    fn client(&self, number: usize) -> Client {
        let random = Random::derived(self.seed, &[stream::DRAWS, number as u64]);
        let of = (number, self.cell.load.clients);
        Client { session: None, operation: Operation::new(&self.scenario, &self.fixed, random, of) }
    }

    async fn connect(&self, client: &mut Client) -> Result<(), Failure> {
        if let Some(session) = client.session.take() {
            session.abandon().await;
        }
        let mut session = self.session(self.cell.load.timeout).await?;
        session.prepare(&self.kinds.statements).await?;
        client.session = Some(session);
        Ok(())
    }

    fn generate(&self, client: &mut Client) {
        self.kinds.draw(&mut client.operation);
    }

    async fn execute(&self, client: &mut Client) -> Result<Attempts, Failure> {
        let Client { session: Some(session), operation } = client else {
            return Err(Failure::new(Class::Lost, "the client has no connection"));
        };
        let mut done = self.transact(session, operation).await;
        match &mut done {
            Ok(read) => {
                self.read.fetch_add(*read, Ordering::Relaxed);
                for (step, count) in operation.executed() {
                    self.executed[*step].fetch_add(*count, Ordering::Relaxed);
                }
            }
            Err(failure) if self.kinds.begin(operation).is_some() && !failure.is_broken => {
                // SQLite has rolled some back by itself; a connection on which nothing can be begun is seen at the next.
                let rolled_back = session.script("ROLLBACK").await;
                failure.is_broken = rolled_back.is_err_and(|failure| failure.is_broken);
            }
            Err(_) => {}
        }
        // Nothing is tried again.
        let rows_read = done?;
        let work = Work { rows_read, ..self.kinds.work(operation) };
        Ok(Attempts { work, ..Attempts::default() })
    }

    fn report(&self, _: &dyn Fn(Instant) -> u64) -> serde_json::Value {
        let executed: Vec<_> = self.executed.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        serde_json::json!({ "read": self.read.load(Ordering::Relaxed), "executed": executed })
    }

    fn take_report(&self, report: &serde_json::Value, _: &dyn Fn(u64) -> Instant) {
        let number = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
        self.read.fetch_add(number(&report["read"]), Ordering::Relaxed);
        for (place, executed) in self.executed.iter().enumerate() {
            executed.fetch_add(number(&report["executed"][place]), Ordering::Relaxed);
        }
    }

    async fn verify(&self, tally: Tally) -> Result<Vec<String>, Failure> {
        if let Some(heart) = self.admin.lock().await.heart.take() {
            let _ = self.drained.set(heart.drain().await?);
        }
        let mut session = self.session(SCRIPT).await?;
        let (mut faults, counts) = (Vec::new(), self.counts(tally));
        for check in &self.scenario.checks {
            for query in check.queries.of(self.target.database()) {
                let query = self.filled(query, &counts);
                let rows = session.rows(&query, FAULTS_MAX).await.map_err(|failure| of_the_user("verify", failure))?;
                faults.extend(rows.iter().map(|row| format!("not so: {} ({})", check.what, shown(row))));
            }
        }
        Ok(faults)
    }

    async fn clean_up(&self) -> Result<(), Failure> {
        let mut admin = self.admin.lock().await;
        // It ends by itself.
        admin.heart = None;
        if let Some(session) = admin.session.take() {
            session.abandon().await;
        }
        let (id, is_certain) = match &admin.made {
            Made::No => return Ok(()),
            Made::Perhaps(id) => (id, false),
            Made::Yes(id) => (id, true),
        };
        let tables = self.scenario.tables.join(", ");
        let drop = async {
            // Nothing of the cell's setup, and no interrupt: that has done its work.
            let (_keep, never) = watch::channel(false);
            let mut session = self.target.connect(SCRIPT, &never).await?;
            if !is_certain && !session.was_made(id).await? {
                return Ok(());
            }
            session.unmake(&self.scenario.tables, id).await
        };
        drop.await.map_err(|failure: Failure| {
            let detail = format!("the tables {tables} could not be dropped: {}", failure.detail);
            Failure { detail, ..failure }
        })?;
        admin.made = Made::No;
        Ok(())
    }
}

/// Complains of tables that are there already.
pub(crate) async fn refuse_existing(
    target: &Target,
    session: &mut Session,
    scenario: &Scenario,
) -> Result<(), Failure> {
    let mut existing = session.existing(&scenario.tables).await?;
    if scenario.drives == Drives::Syncs {
        existing.extend(headwaters(target, session).await?);
    }
    if existing.is_empty() {
        return Ok(());
    }
    let is_of = |left: &String| left.split(", ").any(|name| existing.iter().any(|known| known == name));
    let left = session.left_by_runs().await?.into_iter().filter(is_of);
    let left: Vec<_> = left.map(|names| format!(". A run that was killed has left them: DROP TABLE {names}")).collect();
    Err(Failure::usage(format!(
        "{} has the tables of scenario {:?} already: {}. They are not touched: drop them if a run that was killed has left them, or \
         take another database{}",
        target.address(),
        scenario.name,
        existing.join(", "),
        left.concat(),
    )))
}

/// What a server's own tables would get in the way of, or what would be removed with them.
async fn headwaters(target: &Target, session: &mut Session) -> Result<Option<String>, Failure> {
    match target {
        Target::Sqlite { is_old, path } => {
            Ok(is_old.then(|| format!("{}, which is there already: syncs take a file of their own", path.display())))
        }
        Target::MariaDb(_) => Ok(None),
        Target::Postgres(_) => {
            let rows = session.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'headwater'", 1).await?;
            Ok((!rows.is_empty()).then(|| "Headwater's own (schema headwater)".to_owned()))
        }
    }
}

/// What the database refuses of SQL that is the user's is the user's matter.
fn of_the_user(what: &str, failure: Failure) -> Failure {
    let is_usage = !failure.is_broken && !matches!(failure.class, Class::TimeOut);
    Failure { detail: format!("{what}: {}", failure.detail), is_usage, ..failure }
}

fn shown(row: &Row) -> String {
    row.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
}
