//! Sets of syncs, as the harness drives them: each client is a remote in memory, and syncs with a server that the lab starts.
//!
//! ```text
//! begin_set   download: the consolidated database changes
//! execute     the sync that is measured
//! end_set     every row of the consolidated database is compared with what it must be; download: it changes back
//! restore     the sync that takes the remote back to where it was
//! ```

use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use headwater_access::Tokens;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, Mode, Plan, system, track};
use headwater_protocol::ValueRef;
use headwater_protocol::message::{ChangeOp, RowOp};
use tokio::sync::{Mutex, watch};

use super::affinity::Confined;
use super::kind::{Standing, SyncSettings, Way};
use super::memory::{Identity, MemoryRemote, Pace, Synced, Upload};
use super::purchase::{self, Purchases, Whose};
use super::server::Server;
use crate::harness::{Attempts, Class, Failure, Tally, Workload};
use crate::link::Link;
use crate::random::Random;
use crate::sampling::{self, Serving};
use crate::scenario::Scenario;
use crate::target::{Session, Target};
use crate::workload::refuse_existing;

/// How long one statement over all rows may take.
const STATEMENT: Duration = Duration::from_hours(6);
/// For how long the clients' tokens are good.
const TOKEN: Duration = Duration::from_hours(24 * 30);
/// How many rows are put into the stock by one statement.
const STOCK_ROWS: i64 = 1_000;
/// How clients sync where nothing is measured.
const UNMEASURED: Pace = Pace {
    link: Link { bits_per_s: 0, delay: Duration::ZERO },
    row: Duration::ZERO,
    retry_delay: Some(Duration::from_millis(20)),
};
/// How many faults are told.
const FAULTS_MAX: usize = 3;
/// What MariaDB is no target for.
pub(crate) const NO_MARIADB: &str = "syncs take PostgreSQL or SQLite: MariaDB is no consolidated database";
/// Whose purchases all have in common.
const COMMON: i64 = 0;

/// Where the syncs are made.
pub(crate) struct Place {
    /// The consolidated database.
    pub(crate) target: Target,
    /// Its address as it was given, with what is secret.
    pub(crate) address: String,
    /// The program that serves.
    pub(crate) program: PathBuf,
    /// Told when the server runs, and when no more.
    pub(crate) server: Arc<Serving>,
}

/// Sets of syncs.
pub(crate) struct SyncWorkload {
    place: Place,
    scenario: Scenario,
    settings: SyncSettings,
    clients: usize,
    seed: u64,
    purchases: Purchases,
    plan: Plan,
    interrupt: watch::Receiver<bool>,
    admin: Mutex<Admin>,
    /// Host and port of the server, and each client's token.
    served: OnceLock<(String, Vec<String>)>,
    faults: StdMutex<Vec<String>>,
}

/// What prepares and cleans up.
#[derive(Default)]
struct Admin {
    session: Option<Session>,
    server: Option<Server>,
    /// The database's processes, where they are.
    database: Option<Confined>,
    has_made: bool,
}

/// One client.
pub(crate) struct Client {
    number: usize,
    remote: Option<MemoryRemote>,
}

impl SyncWorkload {
    pub(crate) fn new(
        place: Place,
        scenario: &Scenario,
        settings: SyncSettings,
        (clients, seed): (usize, u64),
        interrupt: watch::Receiver<bool>,
    ) -> SyncWorkload {
        let plan = purchase::plan(settings.detects_conflicts);
        SyncWorkload {
            place,
            scenario: scenario.clone(),
            settings,
            clients,
            seed,
            purchases: Purchases::new(&plan),
            plan,
            interrupt,
            admin: Mutex::default(),
            served: OnceLock::new(),
            faults: StdMutex::default(),
        }
    }

    /// Makes the tables and the stock.
    async fn fill(&self, session: &mut Session) -> Result<(), Failure> {
        let SyncSettings { rows, common, others, .. } = self.settings;
        let own = rows - common;
        let employees = (1..=self.clients as i64 + others).map(|employee| (employee, own));
        for (employee, count) in employees.chain([(COMMON, common)]) {
            for first in (1..=count).step_by(STOCK_ROWS as usize) {
                let last = (first + STOCK_ROWS).min(count + 1);
                session.script(&purchase::stock_sql(employee, first..last)).await?;
            }
        }
        for employee in 1..=self.clients as i64 {
            let user = user(employee as usize - 1);
            let common = if common > 0 { format!(", ('{user}', {COMMON})") } else { String::new() };
            session.script(&format!("INSERT INTO lab_member VALUES ('{user}', {employee}){common}")).await?;
        }
        session.script(&purchase::all_sql(self.others(), ChangeOp::Insert, false)).await?;
        if self.settings.before().are_there {
            session.script(&purchase::all_sql(self.own(), ChangeOp::Insert, false)).await?;
        }
        Ok(())
    }

    /// The purchases of those who sync.
    fn own(&self) -> Whose {
        Whose::Clients(self.clients)
    }

    /// Those that nobody touches.
    fn others(&self) -> Whose {
        Whose::Others(self.clients)
    }

    /// Has the consolidated database ready for a server, and starts that; blocks.
    fn serve(
        database: &Target,
        plan: &Plan,
        clients: usize,
        start: impl FnOnce() -> Result<Server, Failure>,
    ) -> Result<(Server, Vec<String>), Failure> {
        let backend: Arc<dyn Backend> = match database {
            Target::Postgres(postgres) => Arc::new((**postgres).clone()),
            Target::Sqlite { path, .. } => Arc::new(Sqlite::new(path)),
            Target::MariaDb(_) => return Err(Failure::usage(NO_MARIADB)),
        };
        let of_the_database = |error: headwater_consolidated::Error| Failure::new(Class::Other, error.to_string());
        let of_tokens = |error: headwater_access::Error| Failure::new(Class::Other, error.to_string());
        let mut connection = backend.connect().map_err(of_the_database)?;
        track::track(&mut *connection, plan).map_err(of_the_database)?;
        connection.begin(Mode::Upload).map_err(of_the_database)?;
        for number in 0..clients {
            // Tokens let them in; no password does.
            system::add_account(&mut *connection, &user(number), "none").map_err(of_the_database)?;
        }
        connection.commit().map_err(of_the_database)?;
        let key = system::identity(&mut *connection).map_err(of_the_database)?.token_key;
        let tokens = Tokens::new(&key).map_err(of_tokens)?;
        let token = |number| tokens.issue(&user(number), TOKEN, SystemTime::now());
        let tokens = (0..clients).map(|number| Ok(token(number)?.expose().to_owned())).collect::<Result<_, _>>();
        Ok((start()?, tokens.map_err(of_tokens)?))
    }

    /// Has the database run on as many processors as it may.
    async fn confine(&self, session: &mut Session) -> Result<Option<Confined>, Failure> {
        let Some(cpus) = self.settings.database_cpus else { return Ok(None) };
        let failed = |why: &str| Failure::usage(format!("scenario.database_cpus = {cpus}: {why}"));
        if self.place.target.is_blocking() {
            return Err(failed("SQLite works in the server; write server_cpus"));
        }
        let Some(root) = sampling::database(&self.place.target, session).await? else {
            return Err(failed("the database is not on this machine"));
        };
        Confined::tree(root, cpus).map(Some).map_err(|why| failed(&why))
    }

    /// The sum over the keys of all rows that a client has.
    fn sum(&self, number: usize) -> u64 {
        let SyncSettings { rows, common, .. } = self.settings;
        let all = |employee: i64, count: i64| (1..=count).map(move |number| purchase::mark(employee, number));
        all(number as i64 + 1, rows - common).chain(all(COMMON, common)).fold(0, u64::wrapping_add)
    }

    /// A sync, and then whether it brought what it must: these changes, so many up, and nothing else. Where not, that is a fault.
    async fn sync(
        &self,
        (client, pace): (&mut Client, Pace),
        down: Option<ChangeOp>,
        up: u64,
        standing: Standing,
    ) -> Result<Result<Attempts, Failure>, Failure> {
        let number = client.number;
        let expected = {
            let rows = self.settings.rows as u64;
            let (upserts, deletes, sum) = match down {
                None => (0, 0, 0),
                Some(ChangeOp::Delete) => (0, rows, self.sum(number)),
                Some(_) => (rows, 0, self.sum(number)),
            };
            Synced { upserts, deletes, sum, changes: up, ..Synced::default() }
        };
        let Some(remote) = &mut client.remote else { return Err(Failure::new(Class::Other, "there is no remote")) };
        let mut check = |_, op, row: &[ValueRef<'_>]| match (op, row) {
            (RowOp::Delete, &[ValueRef::Int(employee), ValueRef::Int(number)]) => Ok(purchase::mark(employee, number)),
            _ => match self.purchases.check(row, standing.is_updated) {
                Some((employee, number)) => Ok(purchase::mark(employee, number)),
                None => Err(format!("{row:?}")),
            },
        };
        let done = remote.sync(pace, &mut check).await?;
        let attempts = Attempts { refusals: done.refusals, retries: done.retries, ..Attempts::default() };
        let actual = Synced { bytes_in: 0, requests: 0, refusals: 0, retries: 0, ..done };
        if actual != expected {
            let what = format!("client {} had {}, expected {}", number + 1, told(&actual), told(&expected));
            self.fault(what.clone());
            return Ok(Err(Failure::new(Class::Other, what)));
        }
        Ok(Ok(attempts))
    }

    fn fault(&self, what: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// What the client is to send for this change of all its rows.
    fn upload(&self, client: &Client, op: ChangeOp, is_updated: bool) -> Option<Upload> {
        let employee = client.number as i64 + 1;
        let changes = (1..=self.settings.rows).map(|number| self.purchases.change(op, employee, number, is_updated));
        Upload::of(&self.purchases.header, changes)
    }

    /// Complains of each of these rows of the consolidated database that is not as it should be.
    async fn compare(
        &self,
        session: &mut Session,
        whose: Whose,
        standing: Standing,
        when: &str,
    ) -> Result<(), Failure> {
        for query in purchase::differences_sql(whose, standing.are_there, standing.is_updated) {
            for row in session.rows(&query, FAULTS_MAX).await? {
                let row: Vec<String> = row.into_iter().map(|(name, value)| format!("{name} = {value}")).collect();
                self.fault(format!("not so: the consolidated rows are as they must be {when} ({})", row.join(", ")));
            }
        }
        Ok(())
    }
}

impl Workload for SyncWorkload {
    type Client = Client;

    async fn prepare(&self) -> Result<(), Failure> {
        let mut admin = self.admin.lock().await;
        let target = &self.place.target;
        let mut session = target.connect(STATEMENT, &self.interrupt).await?;
        refuse_existing(target, &mut session, &self.scenario).await?;
        admin.database = self.confine(&mut session).await?;
        session.make(&[], &purchase::tables_sql(!target.is_blocking()), &mut |_| {}).await?;
        admin.has_made = true;
        self.fill(&mut session).await?;
        let (database, plan, clients) = (target.clone(), self.plan.clone(), self.clients);
        let (program, address, settings) = (self.place.program.clone(), self.place.address.clone(), self.settings);
        let start = move || Server::start(&program, &address, settings);
        let serve = move || SyncWorkload::serve(&database, &plan, clients, start);
        let started = tokio::task::spawn_blocking(serve).await;
        let (server, tokens) = started.map_err(|defect| Failure::new(Class::Other, defect.to_string()))??;
        self.place.server.begin(server.id(), &server.place);
        let _ = self.served.set((server.place.clone(), tokens));
        admin.server = Some(server);
        if !target.is_blocking() {
            session.script("ANALYZE").await?;
        }
        admin.session = Some(session);
        Ok(())
    }

    fn client(&self, number: usize) -> Client {
        Client { number, remote: None }
    }

    /// A first sync, in which it has the rows that are there from the start.
    async fn connect(&self, client: &mut Client) -> Result<(), Failure> {
        let Some((place, tokens)) = self.served.get() else {
            return Err(Failure::new(Class::Other, "no server runs"));
        };
        let mut random = Random::derived(self.seed, &[client.number as u64]);
        let mut bytes = [0; 48];
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.bits().to_le_bytes()));
        let model = &self.plan.model;
        client.remote = Some(MemoryRemote::new(Identity {
            place: place.clone(),
            user: user(client.number),
            token: tokens[client.number].clone(),
            model: (model.name.clone(), model.version, self.plan.fingerprint),
            remote_id: std::array::from_fn(|place| bytes[place]),
            secret: std::array::from_fn(|place| bytes[16 + place]),
        }));
        let before = self.settings.before();
        self.sync((client, UNMEASURED), before.are_there.then_some(ChangeOp::Insert), 0, before).await?.map(|_| ())
    }

    fn is_in_sets(&self) -> bool {
        true
    }

    async fn begin_set(&self) -> Result<(), Failure> {
        let mut admin = self.admin.lock().await;
        match &mut admin.session {
            Some(session) if self.settings.way == Way::Down => {
                session.script(&purchase::all_sql(self.own(), self.settings.op, self.settings.after().is_updated)).await
            }
            _ => Ok(()),
        }
    }

    fn generate(&self, client: &mut Client) {
        if self.settings.way == Way::Up {
            let upload = self.upload(client, self.settings.op, self.settings.after().is_updated);
            client.remote.iter_mut().for_each(|remote| remote.put(upload.clone()));
        }
    }

    async fn execute(&self, client: &mut Client) -> Result<Attempts, Failure> {
        let SyncSettings { way, op, rows, pace, .. } = self.settings;
        match way {
            Way::Down => self.sync((client, pace), Some(op), 0, self.settings.after()).await?,
            Way::Up => self.sync((client, pace), None, rows as u64, self.settings.after()).await?,
        }
    }

    async fn end_set(&self) -> Result<(), Failure> {
        let mut admin = self.admin.lock().await;
        let Some(session) = &mut admin.session else { return Ok(()) };
        self.compare(session, self.own(), self.settings.after(), "after a set").await?;
        match self.settings.way {
            Way::Down => session.script(&purchase::all_sql(self.own(), self.settings.back(), false)).await,
            Way::Up => Ok(()),
        }
    }

    async fn restore(&self, client: &mut Client) -> Result<(), Failure> {
        let (back, before) = (self.settings.back(), self.settings.before());
        let synced = match self.settings.way {
            Way::Down => self.sync((client, UNMEASURED), Some(back), 0, before).await,
            Way::Up => {
                let upload = self.upload(client, back, false);
                client.remote.iter_mut().for_each(|remote| remote.put(upload.clone()));
                self.sync((client, UNMEASURED), None, self.settings.rows as u64, before).await
            }
        };
        // A fault is told by verify.
        synced.map(|_| ())
    }

    async fn verify(&self, tally: Tally) -> Result<Vec<String>, Failure> {
        let mut admin = self.admin.lock().await;
        if let Some(session) = &mut admin.session {
            self.compare(session, self.own(), self.settings.before(), "at the end").await?;
            let untouched = Standing { are_there: true, is_updated: false };
            self.compare(session, self.others(), untouched, "of those who don't sync").await?;
        }
        let mut faults = std::mem::take(&mut *self.faults.lock().unwrap_or_else(PoisonError::into_inner));
        faults.truncate(FAULTS_MAX);
        if tally.failed > 0 {
            faults.push(format!("{} syncs failed, so that the rows can't be as they must be", tally.failed));
        }
        Ok(faults)
    }

    async fn clean_up(&self) -> Result<(), Failure> {
        let mut admin = self.admin.lock().await;
        if let Some(session) = admin.session.take() {
            session.abandon().await;
        }
        self.place.server.end();
        admin.server = None;
        admin.database = None;
        if !admin.has_made {
            return Ok(());
        }
        let target = &self.place.target;
        if target.is_blocking() {
            target.remove_if_new().map_err(|error| Failure::new(Class::Other, error.to_string()))?;
        } else {
            let (_keep, never) = watch::channel(false);
            let mut session = target.connect(STATEMENT, &never).await?;
            let tables = purchase::TABLES.join(", ");
            session.script(&format!("DROP SCHEMA IF EXISTS headwater CASCADE; DROP TABLE IF EXISTS {tables}")).await?;
        }
        admin.has_made = false;
        Ok(())
    }
}

/// The user of a client.
fn user(number: usize) -> String {
    format!("client{}", number + 1)
}

fn told(synced: &Synced) -> String {
    let Synced { upserts, deletes, sum, changes, contested, .. } = synced;
    format!(
        "{upserts} rows and {deletes} deletions (sum {sum:x}) down, {changes} changes up, {contested} of them contested"
    )
}
