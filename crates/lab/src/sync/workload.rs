//! Sets of syncs, as the harness drives them: each client is a remote in memory, and syncs with a server that the lab starts.
//!
//! ```text
//! begin_set   download: the consolidated database changes
//! execute     the sync that is measured
//! end_set     every row of the consolidated database is compared with what it must be; download: it changes back
//! restore     the sync that takes the remote back to where it was
//! ```

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use headwater_access::Tokens;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, Mode, Plan, system, track};
use headwater_protocol::ValueRef;
use headwater_protocol::message::{ChangeOp, RowOp};
use tempfile::TempDir;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::Instant;

use super::affinity::Confined;
use super::file::FileRemote;
use super::kind::{Remotes, Standing, SyncSettings, Way};
use super::memory::{Identity, MemoryRemote, Pace, Synced, Upload};
use super::purchase::{self, Purchases, TextRow, Whose};
use super::server::Server;
use super::stamps::Stamps;
use crate::harness::{Attempts, Class, Failure, Tally, Workload};
use crate::link::Link;
use crate::peer::Peer;
use crate::random::Random;
use crate::sampling::{self, Serving};
use crate::scenario::Scenario;
use crate::target::{Session, Target};
use crate::workload::refuse_existing;

/// How long one statement over all rows may take.
const STATEMENT: Duration = Duration::from_hours(6);
/// For how long the clients' tokens are good.
const TOKEN: Duration = Duration::from_hours(24 * 30);
/// How clients sync where nothing is measured.
const UNMEASURED: Pace = Pace {
    link: Link { bits_per_s: 0, delay: Duration::ZERO, loss_permille: 0 },
    row: Duration::ZERO,
    retry_delay: Some(Duration::from_millis(20)),
    patience: None,
};
/// For how long such a sync is tried in its turn, and how much longer for each row: a server that does not answer ends the run.
const UNMEASURED_PATIENCE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_millis(10));
/// How many clients sync at once where nothing is measured: as many as keep a server busy. All at once would be refused and come again, each time by
/// a connection of its own; a machine has some 28,000 ports for these, which are used again after a minute, and looks for a free one for
/// milliseconds where half of them are taken.
const UNMEASURED_AT_ONCE: usize = 32;
/// The most clients with files: what a runtime has threads for that may block.
pub(crate) const FILES_MAX: usize = 500;
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
    /// Where it listens.
    pub(crate) host: IpAddr,
}

impl Place {
    /// For clients of a server that somebody else has started.
    pub(crate) fn elsewhere() -> Place {
        let nowhere = Target::Sqlite { path: PathBuf::new(), is_old: true };
        let (address, program, server) = (String::new(), PathBuf::new(), Arc::default());
        Place { target: nowhere, address, program, server, host: Ipv4Addr::LOCALHOST.into() }
    }
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
    unmeasured: Semaphore,
    /// Host and port of the server, and each client's token.
    served: OnceLock<(String, Vec<String>)>,
    faults: StdMutex<Vec<String>>,
    stamps: StdMutex<Stamps>,
    /// The remotes' files, where they have some.
    files: StdMutex<Option<TempDir>>,
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
    remote: Option<AnyRemote>,
    /// How many syncs it has done that are measured.
    syncs: u64,
}

enum AnyRemote {
    Memory(Box<MemoryRemote>),
    File(FileRemote),
}

impl AnyRemote {
    fn call(&mut self, sync_id: String) {
        if let AnyRemote::Memory(remote) = self {
            remote.call(sync_id);
        }
    }
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
            purchases: Purchases::new(&plan, settings.notes_bytes),
            plan,
            interrupt,
            admin: Mutex::default(),
            unmeasured: Semaphore::new(UNMEASURED_AT_ONCE),
            served: OnceLock::new(),
            faults: StdMutex::default(),
            stamps: StdMutex::new(Stamps::new()),
            files: StdMutex::default(),
        }
    }

    /// Makes the tables and the stock.
    async fn fill(&self, session: &mut Session) -> Result<(), Failure> {
        let SyncSettings { rows, common, others, notes_bytes, .. } = self.settings;
        let at_once = purchase::rows_a_statement(notes_bytes);
        let own = rows - common;
        let employees = (1..=self.clients as i64 + others).map(|employee| (employee, own));
        for (employee, count) in employees.chain([(COMMON, common)]) {
            for first in (1..=count).step_by(at_once as usize) {
                let last = (first + at_once).min(count + 1);
                session.script(&purchase::stock_sql(employee, first..last, notes_bytes)).await?;
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
        self.rows_of(number).map(|(employee, number)| purchase::mark(employee, number)).fold(0, u64::wrapping_add)
    }

    /// All rows that a client changes, by employee and number: its own, then those that all have in common.
    fn rows_of(&self, number: usize) -> impl Iterator<Item = (i64, i64)> + use<> {
        let SyncSettings { rows, common, .. } = self.settings;
        let all = |employee: i64, count: i64| (1..=count).map(move |number| (employee, number));
        all(number as i64 + 1, rows - common).chain(all(COMMON, common))
    }

    /// A sync, and then whether it brought what it must: these changes, so many up, and nothing else. Where not, that is a fault. With an upload may
    /// come what others have made of the rows that all have in common: each of them once, or not at all, as this client's own upload leaves it.
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
        // Of an upload only what is not in common is marked: nothing of it may come.
        let mark = |employee, number| {
            if up > 0 && employee == COMMON { 0 } else { purchase::mark(employee, number) }
        };
        let mut check = |_, op, row: &[ValueRef<'_>]| match (op, row) {
            (RowOp::Delete, &[ValueRef::Int(employee), ValueRef::Int(number)]) => Ok(mark(employee, number)),
            _ => match self.purchases.check(row, standing.is_updated) {
                Some((employee, number)) => Ok(mark(employee, number)),
                None => Err(format!("{row:?}")),
            },
        };
        let (done, expected) = match remote {
            AnyRemote::Memory(remote) => (remote.sync(pace, &mut check).await?, expected),
            // Its rows are looked at afterwards, when no time is taken.
            AnyRemote::File(remote) => (remote.sync(pace).await?, Synced { sum: 0, ..expected }),
        };
        let attempts = done.attempts();
        let mut actual = Synced { bytes_out: 0, bytes_in: 0, requests: 0, refusals: 0, retries: 0, ..done };
        if up > 0 {
            let of_others = if standing.are_there { &mut actual.upserts } else { &mut actual.deletes };
            *of_others = of_others.saturating_sub(self.settings.common as u64);
        }
        if actual != expected {
            let what = format!("client {} had {}, expected {}", number + 1, told(&actual), told(&expected));
            self.fault(what.clone());
            return Ok(Err(Failure::new(Class::Other, what)));
        }
        Ok(Ok(attempts))
    }

    /// A sync between the sets, after which all is as before a set, in its turn.
    async fn sync_unmeasured(
        &self,
        client: &mut Client,
        down: Option<ChangeOp>,
        up: u64,
    ) -> Result<Result<Attempts, Failure>, Failure> {
        let _turn = self.unmeasured.acquire().await;
        let (least, a_row) = UNMEASURED_PATIENCE;
        let patience = least + a_row.saturating_mul(u32::try_from(self.settings.rows).unwrap_or(u32::MAX));
        let pace = Pace { patience: Some(patience), ..UNMEASURED };
        self.sync((client, pace), down, up, self.settings.before()).await
    }

    /// When the syncs of the clients here began and ended; known once the server has ended.
    pub(crate) fn stamps(&self) -> MutexGuard<'_, Stamps> {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, what: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn in_memory(&self, number: usize, place: &str, (user, token): (String, String)) -> MemoryRemote {
        let mut random = Random::derived(self.seed, &[number as u64]);
        let mut bytes = [0; 48];
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.bits().to_le_bytes()));
        let model = &self.plan.model;
        MemoryRemote::new(Identity {
            server: Peer::at(place),
            user,
            token,
            model: (model.name.clone(), model.version, self.plan.fingerprint),
            remote_id: std::array::from_fn(|place| bytes[place]),
            secret: std::array::from_fn(|place| bytes[16 + place]),
        })
    }

    /// Where a client has its file: in a folder that goes with the run.
    fn file(&self, number: usize) -> Result<PathBuf, Failure> {
        let mut folder = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if folder.is_none() {
            let made = tempfile::Builder::new().prefix("headwater-lab-").tempdir();
            let failed = |error| Failure::new(Class::Other, format!("no folder for the remotes' files: {error}"));
            *folder = Some(made.map_err(failed)?);
        }
        let path = folder.as_ref().map(|folder| folder.path().join(format!("{}.db", user(number))));
        path.ok_or_else(|| Failure::new(Class::Other, "there is no folder for files"))
    }

    /// Has the client send this change of all its rows with its next sync.
    fn put(&self, client: &mut Client, op: ChangeOp, is_updated: bool) {
        let rows = self.rows_of(client.number);
        match &mut client.remote {
            None => {}
            Some(AnyRemote::Memory(remote)) => {
                let changes = rows.map(|(employee, number)| self.purchases.change(op, employee, number, is_updated));
                remote.put(Upload::of(&self.purchases.header, changes));
            }
            Some(AnyRemote::File(remote)) => {
                let notes_bytes = self.settings.notes_bytes;
                remote.write(op, rows.map(|(employee, number)| TextRow::of(employee, number, is_updated, notes_bytes)));
            }
        }
    }

    /// Complains of what is in the client's file, where it has one, if that is not as it must be after a set.
    async fn look_at_file(&self, client: &Client) -> Result<(), Failure> {
        let Some(AnyRemote::File(remote)) = &client.remote else { return Ok(()) };
        let (standing, notes_bytes) = (self.settings.after(), self.settings.notes_bytes);
        let mut rows: Vec<_> = self.rows_of(client.number).collect();
        rows.sort_unstable();
        let row = |(employee, number)| TextRow::of(employee, number, standing.is_updated, notes_bytes);
        let expected = rows.into_iter().map(row).collect();
        if let Some(fault) = remote.fault(standing, expected).await? {
            self.fault(format!("client {}: {fault}", client.number + 1));
        }
        Ok(())
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
        if self.settings.remotes == Remotes::Files && self.clients > FILES_MAX {
            let what =
                format!("{} clients with remotes = \"files\": each takes a thread, at most {FILES_MAX}", self.clients);
            return Err(Failure::usage(what));
        }
        refuse_existing(target, &mut session, &self.scenario).await?;
        admin.database = self.confine(&mut session).await?;
        session.make(&[], &purchase::tables_sql(!target.is_blocking()), &mut |_| {}).await?;
        admin.has_made = true;
        self.fill(&mut session).await?;
        let (database, plan, clients) = (target.clone(), self.plan.clone(), self.clients);
        let (program, address, settings) = (self.place.program.clone(), self.place.address.clone(), self.settings);
        let host = self.place.host;
        let start = move || Server::start(&program, (&address, host), settings);
        let serve = move || SyncWorkload::serve(&database, &plan, clients, start);
        let started = tokio::task::spawn_blocking(serve).await;
        let (server, tokens) = started.map_err(|defect| Failure::new(Class::Other, defect.to_string()))??;
        self.place.server.begin(Some(server.id()), Peer::at(&server.place));
        let _ = self.served.set((server.place.clone(), tokens));
        admin.server = Some(server);
        if !target.is_blocking() {
            session.script("ANALYZE").await?;
        }
        admin.session = Some(session);
        Ok(())
    }

    fn client(&self, number: usize) -> Client {
        Client { number, remote: None, syncs: 0 }
    }

    /// A first sync, in which it has the rows that are there from the start.
    async fn connect(&self, client: &mut Client) -> Result<(), Failure> {
        let Some((place, tokens)) = self.served.get() else {
            return Err(Failure::new(Class::Other, "no server runs"));
        };
        let (user, token) = (user(client.number), tokens[client.number].clone());
        client.remote = Some(match self.settings.remotes {
            Remotes::Memory => AnyRemote::Memory(Box::new(self.in_memory(client.number, place, (user, token)))),
            Remotes::Files => {
                let path = self.file(client.number)?;
                let model = self.plan.model.clone();
                AnyRemote::File(FileRemote::create(path, model, (place, user, token)).await?)
            }
        });
        let before = self.settings.before();
        self.sync_unmeasured(client, before.are_there.then_some(ChangeOp::Insert), 0).await?.map(|_| ())
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
            self.put(client, self.settings.op, self.settings.after().is_updated);
        }
    }

    async fn execute(&self, client: &mut Client) -> Result<Attempts, Failure> {
        let SyncSettings { way, op, rows, pace, .. } = self.settings;
        let (down, up) = if way == Way::Down { (Some(op), 0) } else { (None, rows as u64) };
        client.syncs += 1;
        let id = format!("{:x}-{:x}", client.number, client.syncs);
        client.remote.iter_mut().for_each(|remote| remote.call(id.clone()));
        let began = Instant::now();
        let done = self.sync((client, pace), down, up, self.settings.after()).await?;
        client.remote.iter_mut().for_each(|remote| remote.call(String::new()));
        let refusals = done.as_ref().map_or(0, |attempts| attempts.refusals);
        self.stamps().tell(client.number, id, began, refusals);
        done
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
        let back = self.settings.back();
        self.look_at_file(client).await?;
        // A fault is told by verify.
        let done = match self.settings.way {
            Way::Down => self.sync_unmeasured(client, Some(back), 0).await,
            Way::Up => {
                self.put(client, back, false);
                self.sync_unmeasured(client, None, self.settings.rows as u64).await
            }
        };
        done.map(|_| ())
    }

    fn handover(&self) -> serde_json::Value {
        self.served
            .get()
            .map(|(place, tokens)| serde_json::json!({ "place": place, "tokens": tokens }))
            .unwrap_or_default()
    }

    fn join(&self, handover: &serde_json::Value) -> Result<(), Failure> {
        let served = || {
            let tokens = handover["tokens"].as_array()?.iter().map(|token| token.as_str().map(str::to_owned));
            let tokens: Vec<_> = tokens.collect::<Option<_>>()?;
            (tokens.len() == self.clients).then_some((handover["place"].as_str()?.to_owned(), tokens))
        };
        let _ = self.served.set(served().ok_or_else(|| Failure::new(Class::Other, "no server runs"))?);
        Ok(())
    }

    fn report(&self, own: &dyn Fn(Instant) -> u64) -> serde_json::Value {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let faults: Vec<_> = faults.iter().take(FAULTS_MAX).collect();
        serde_json::json!({ "faults": faults, "syncs": self.stamps().report(own) })
    }

    fn take_report(&self, report: &serde_json::Value, moment: &dyn Fn(u64) -> Instant) {
        let faults = report["faults"].as_array().into_iter().flatten().filter_map(|fault| fault.as_str());
        faults.for_each(|fault| self.fault(fault.to_owned()));
        self.stamps().take_report(&report["syncs"], moment);
    }

    fn gone(&self) -> Option<String> {
        // Who has it uses the database, and is told.
        let mut admin = self.admin.try_lock().ok()?;
        let server = admin.server.as_mut().and_then(Server::ended);
        let is_closed = admin.session.as_ref().is_some_and(Session::is_closed);
        let database = || format!("{} has ended its connections", self.place.target.address());
        server.or_else(|| is_closed.then(database))
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
        if let Some(server) = admin.server.take() {
            self.stamps().join(&server.log());
        }
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
