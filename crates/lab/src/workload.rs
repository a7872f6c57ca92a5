//! A scenario on a database, as the harness drives it.

use std::ops::Range;
use std::time::Duration;

use headwater_model::sql::with_parameters;
use tokio::sync::{Mutex, watch};

use crate::experiment::Cell;
use crate::harness::{Class, Failure, Tally, Workload};
use crate::random::{Random, stream};
use crate::scenario::{DONE, Draw, FAILED, Scenario, Statement, Transaction};
use crate::target::{Row, Session, Target};
use crate::value::Value;

/// How long one script of the preparation or one query of verify may take.
const SCRIPT: Duration = Duration::from_hours(6);
/// How many rows of a query of verify are shown.
const FAULTS_MAX: usize = 3;

/// A scenario on a database.
pub struct SqlWorkload {
    target: Target,
    scenario: Scenario,
    cell: Cell,
    seed: u64,
    /// Parameters and constants.
    fixed: Vec<(String, Value)>,
    kinds: Vec<Kind>,
    /// Of all kinds, one kind's after the other's.
    statements: Vec<Statement>,
    interrupt: watch::Receiver<bool>,
    admin: Mutex<Admin>,
}

/// A transaction, ready to be executed.
struct Kind {
    /// A draw below this chooses it, unless it chooses one before.
    weight_up_to: u64,
    begin: Option<String>,
    statements: Range<usize>,
}

/// What prepares and cleans up.
struct Admin {
    session: Option<Session>,
    made: Made,
}

/// Whether the scenario's tables are ours.
#[derive(Debug)]
enum Made {
    No,
    /// The transaction of this ID makes them; its end was not seen.
    Perhaps(String),
    Yes,
}

/// One client.
pub struct Client {
    session: Option<Session>,
    random: Random,
    /// For each kind of transaction.
    draws: Vec<Vec<Draw>>,
    /// For each kind: what was drawn, then what is fixed.
    values: Vec<Vec<Value>>,
    kind: usize,
}

impl SqlWorkload {
    /// A cell's scenario on a target. An error: its generators can't draw with the cell's parameters.
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
        let (mut kinds, mut statements, mut weight_up_to) = (Vec::new(), Vec::new(), 0);
        for transaction in &scenario.transactions {
            let drawn = transaction.values.iter().map(|(name, _)| name.as_str());
            let known: Vec<&str> = drawn.chain(fixed.iter().map(|(name, _)| name.as_str())).collect();
            let start = statements.len();
            statements.extend(transaction.statements.iter().map(|sql| Statement::new(sql, target.mark(), &known)));
            weight_up_to += u64::from(transaction.weight);
            kinds.push(Kind { weight_up_to, begin: transaction.begin.clone(), statements: start..statements.len() });
        }
        let admin = Mutex::new(Admin { session: None, made: Made::No });
        let (scenario, cell) = (scenario.clone(), cell.clone());
        Ok(SqlWorkload { target, scenario, cell, seed, fixed, kinds, statements, interrupt, admin })
    }

    async fn session(&self, timeout: Duration) -> Result<Session, Failure> {
        let mut session = self.target.connect(timeout, &self.interrupt).await?;
        if let Some(setup) = &self.cell.target.setup {
            session.script(setup).await.map_err(|failure| of_the_user("target.setup", failure))?;
        }
        Ok(session)
    }

    /// SQL with the values of parameters and constants in it, and of what else is given.
    fn filled(&self, sql: &str, more: &[(&str, u64)]) -> String {
        with_parameters(sql, |parameter| {
            let name = parameter.trim_start_matches(':');
            let fixed = self.fixed.iter().find(|(known, _)| known == name).map(|(_, value)| value.literal());
            let more = || more.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
            fixed.or_else(more).unwrap_or_else(|| parameter.to_owned())
        })
    }

    /// Statistics, and what a first reader would tidy up.
    async fn analyze(&self, session: &mut Session) -> Result<(), Failure> {
        for table in &self.scenario.tables {
            let statement = if self.target.is_blocking() { "ANALYZE" } else { "VACUUM (ANALYZE)" };
            session.script(&format!("{statement} {}", headwater_model::sql::quote(table))).await?;
        }
        Ok(())
    }

    async fn drop_tables(&self, session: &mut Session) -> Result<(), Failure> {
        for table in self.scenario.tables.iter().rev() {
            session.script(&format!("DROP TABLE IF EXISTS {}", headwater_model::sql::quote(table))).await?;
        }
        Ok(())
    }

    async fn transact(&self, session: &mut Session, kind: &Kind, values: &[Value]) -> Result<(), Failure> {
        if let Some(begin) = &kind.begin {
            session.script(begin).await?;
        }
        for statement in kind.statements.clone() {
            session.execute(statement, values).await?;
        }
        if kind.begin.is_some() { session.script("COMMIT").await } else { Ok(()) }
    }
}

impl Workload for SqlWorkload {
    type Client = Client;

    async fn prepare(&self) -> Result<(), Failure> {
        let mut admin = self.admin.lock().await;
        let Admin { session, made } = &mut *admin;
        let session = session.insert(self.session(SCRIPT).await?);
        refuse_existing(&self.target, session, &self.scenario).await?;
        if let Some(script) = &self.scenario.prepare {
            let note = |id: Option<String>| *made = id.map_or(Made::No, Made::Perhaps);
            let prepared = session.transaction(&self.filled(script, &[]), note).await;
            prepared.map_err(|failure| of_the_user("prepare", failure))?;
            *made = Made::Yes;
            self.analyze(session).await?;
        }
        admin.session = None;
        Ok(())
    }

    fn client(&self, number: usize) -> Client {
        let clients = self.cell.load.clients;
        let draws = |transaction: &Transaction| {
            // All could be resolved when the experiment was read.
            let resolve =
                |generator: &crate::scenario::Generator| generator.resolve(&self.cell.parameters, number, clients);
            transaction.values.iter().filter_map(|(_, generator)| resolve(generator).ok()).collect::<Vec<_>>()
        };
        let draws: Vec<Vec<Draw>> = self.scenario.transactions.iter().map(draws).collect();
        let fixed = || self.fixed.iter().map(|(_, value)| value.clone());
        let values =
            draws.iter().map(|draws| vec![Value::Integer(0); draws.len()].into_iter().chain(fixed()).collect());
        let values = values.collect();
        Client {
            session: None,
            random: Random::derived(self.seed, &[stream::DRAWS, number as u64]),
            draws,
            values,
            kind: 0,
        }
    }

    async fn connect(&self, client: &mut Client) -> Result<(), Failure> {
        if let Some(session) = client.session.take() {
            session.abandon().await;
        }
        let mut session = self.session(self.cell.load.timeout).await?;
        session.prepare(&self.statements).await?;
        client.session = Some(session);
        Ok(())
    }

    fn generate(&self, client: &mut Client) {
        let Client { random, draws, values, kind, .. } = client;
        if let Some(last) = self.kinds.last() {
            let chosen = random.below(last.weight_up_to);
            *kind = self.kinds.iter().position(|kind| chosen < kind.weight_up_to).unwrap_or(0);
        }
        for (value, draw) in values[*kind].iter_mut().zip(&mut draws[*kind]) {
            *value = draw.next(random);
        }
    }

    async fn execute(&self, client: &mut Client) -> Result<(), Failure> {
        let Some(session) = &mut client.session else {
            return Err(Failure::new(Class::Lost, "the client has no connection"));
        };
        let kind = &self.kinds[client.kind];
        let mut done = self.transact(session, kind, &client.values[client.kind]).await;
        if let Err(failure) = &mut done
            && kind.begin.is_some()
            && !failure.is_broken
        {
            // SQLite has rolled some back by itself; a connection on which nothing can be begun is seen at the next.
            let rolled_back = session.script("ROLLBACK").await;
            failure.is_broken = rolled_back.is_err_and(|failure| failure.is_broken);
        }
        done
    }

    async fn verify(&self, tally: Tally) -> Result<Vec<String>, Failure> {
        let mut session = self.session(SCRIPT).await?;
        let mut faults = Vec::new();
        for check in &self.scenario.checks {
            let query = self.filled(&check.sql, &[(DONE, tally.done), (FAILED, tally.failed)]);
            let rows = session.rows(&query, FAULTS_MAX).await.map_err(|failure| of_the_user("verify", failure))?;
            faults.extend(rows.iter().map(|row| format!("not so: {} ({})", check.what, shown(row))));
        }
        Ok(faults)
    }

    async fn clean_up(&self) -> Result<(), Failure> {
        let mut admin = self.admin.lock().await;
        if let Some(session) = admin.session.take() {
            session.abandon().await;
        }
        if matches!(admin.made, Made::No) {
            return Ok(());
        }
        let tables = self.scenario.tables.join(", ");
        let drop = async {
            // Nothing of the cell's setup, and no interrupt: that has done its work.
            let (_keep, never) = watch::channel(false);
            let mut session = self.target.connect(SCRIPT, &never).await?;
            if let Made::Perhaps(id) = &admin.made
                && !session.was_committed(id).await?
            {
                return Ok(());
            }
            self.drop_tables(&mut session).await
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
    let existing = session.existing(&scenario.tables).await?;
    if existing.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} has the tables of scenario {:?} already: {}. They are not touched: drop them if a run that was killed has left them, or \
         take another database",
        target.address(),
        scenario.name,
        existing.join(", "),
    )))
}

/// What the database refuses of SQL that is the user's is the user's matter.
fn of_the_user(what: &str, failure: Failure) -> Failure {
    let is_usage = !failure.is_broken && !matches!(failure.class, Class::TimeOut);
    Failure { detail: format!("{what}: {}", failure.detail), is_usage, ..failure }
}

fn shown(row: &Row) -> String {
    row.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
}
