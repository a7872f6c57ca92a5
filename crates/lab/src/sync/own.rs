//! Syncs of a system of one's own: its server by its own configuration, its model, its scripts, its data, and remotes of its users.
//!
//! ```text
//! first-download   each client is a new remote, which gets all that its user may have
//! upload           each client changes a column of rows that it got; after the set, in no time that counts, it changes them back
//! ```
//!
//! The remotes that were made are removed from the server's tables afterwards.
//!
//! *Caveats.* What triggers do at each update stays done. Where a run is killed, rows keep another value in the column: a copy of the data is the place for this.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use headwater_access::Tokens;
use headwater_consolidated::{Backend, Plan, system};
use headwater_model::Direction;
use headwater_protocol::message::{Change, RowOp};
use headwater_protocol::row::put_row;
use headwater_protocol::{Row, Type, Value, ValueRef};
use tokio::sync::Mutex;

use super::kind::{SyncSettings, Way};
use super::memory::{Identity, MemoryRemote, Pace, Synced, Upload};
use super::server::Server;
use crate::harness::{Attempts, Class, Failure, Tally, Workload};
use crate::link::Link;
use crate::peer::Peer;
use crate::random::Random;
use crate::sampling::{self, Serving};

/// For how long the clients' tokens are good.
const TOKEN: Duration = Duration::from_hours(24);
/// Why rows are not as they were.
const WHO: &str = "somebody else writes to this database";
/// How many faults are told.
const FAULTS_MAX: usize = 3;
/// How clients sync where nothing is measured: a server that does not answer ends the run.
const UNMEASURED: Pace = Pace {
    link: Link { bits_per_s: 0, delay: Duration::ZERO, loss_permille: 0 },
    row: Duration::ZERO,
    retry_delay: None,
    patience: Some(Duration::from_mins(1)),
};

/// A system of one's own.
#[derive(Clone)]
pub struct Own {
    /// Its configuration, `headwater.toml`.
    pub config: PathBuf,
    /// Its consolidated database, as the configuration has it.
    pub backend: Arc<dyn Backend>,
    /// The database's address, with what is secret.
    pub address: String,
    /// The model that clients have.
    pub plan: Plan,
    /// Whose remotes the clients are, in turns; none: of every account.
    pub users: Vec<String>,
    /// Its server, which runs already; none: the lab starts one by the configuration.
    pub server: Option<Peer>,
}

/// Sets of its syncs.
pub(crate) struct OwnWorkload {
    own: Own,
    program: PathBuf,
    settings: SyncSettings,
    /// The workers that a server which runs must have; none: any number.
    expected: Option<u64>,
    /// Those that it has.
    workers: OnceLock<u64>,
    seed: u64,
    server: Arc<Serving>,
    running: Mutex<Option<Server>>,
    served: OnceLock<Served>,
    made: StdMutex<Vec<[u8; 16]>>,
    /// Rows that one of the clients changes: table and key.
    claimed: StdMutex<HashSet<Vec<u8>>>,
    faults: StdMutex<Vec<String>>,
}

/// Where clients sync, and as whom.
struct Served {
    server: Peer,
    /// Users with their tokens.
    users: Vec<(String, String)>,
}

/// One client.
pub(crate) struct Client {
    number: usize,
    random: Random,
    remote: Option<MemoryRemote>,
    /// What it got at first.
    had: Synced,
    /// What it changes.
    held: Option<Held>,
}

/// Rows of a table that a client holds, as they are at the consolidated database.
struct Held {
    table: u32,
    /// Which column it changes.
    column: usize,
    rows: Vec<Row>,
    /// What that column had at first, row by row.
    originals: Vec<Value>,
}

impl Held {
    /// The rows after this update.
    fn next(&self, is_changed: bool) -> Vec<Row> {
        let update = |(row, original): (&Row, &Value)| {
            let mut next = row.clone();
            next[self.column] = if is_changed { another(original).unwrap_or(Value::Null) } else { original.clone() };
            next
        };
        self.rows.iter().zip(&self.originals).map(update).collect()
    }
}

/// How columns are preferred: one that hardly ever is unique, or refers to another row, first.
const PREFERRED: [Type; 8] =
    [Type::Timestamp, Type::Timestamptz, Type::Date, Type::Real, Type::Text, Type::Bool, Type::Time, Type::Int];

/// Another value that a column may as well have; none: nobody knows.
fn another(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Timestamp(time) => Value::Timestamp(time - 1_000_000),
        Value::Timestamptz(time) => Value::Timestamptz(time - 1_000_000),
        Value::Date(day) => Value::Date(day - 1),
        Value::Real(number) => Value::Real(number + 1.0),
        Value::Bool(is_so) => Value::Bool(!is_so),
        Value::Time(time) => Value::Time((time + 1_000_000) % 86_400_000_000),
        Value::Int(number) => Value::Int(number ^ 1),
        Value::Text(text) => {
            // As long as before: the last letter is another.
            let mut text = text.clone();
            let last = text.last_mut().filter(|last| last.is_ascii())?;
            *last = if *last == b'x' { b'y' } else { b'x' };
            Value::Text(text)
        }
        _ => return None,
    })
}

impl OwnWorkload {
    pub(crate) fn new(
        own: Own,
        program: PathBuf,
        (settings, expected): (SyncSettings, Option<u64>),
        seed: u64,
        server: Arc<Serving>,
    ) -> OwnWorkload {
        OwnWorkload {
            own,
            program,
            settings,
            expected,
            workers: OnceLock::new(),
            seed,
            server,
            running: Mutex::default(),
            served: OnceLock::new(),
            made: StdMutex::default(),
            claimed: StdMutex::default(),
            faults: StdMutex::default(),
        }
    }

    /// The users with tokens, and the server, if the lab starts it; blocks.
    fn serve(own: &Own, program: &Path, settings: SyncSettings) -> Result<(Option<Server>, Served), Failure> {
        let of_the_database = |error: headwater_consolidated::Error| Failure::new(Class::Other, error.to_string());
        let mut connection = own.backend.connect().map_err(of_the_database)?;
        let accounts = system::accounts(&mut *connection).map_err(of_the_database)?;
        let mut users: Vec<String> =
            accounts.into_iter().filter(|account| !account.disabled).map(|account| account.user).collect();
        if let Some(unknown) = own.users.iter().find(|user| !users.contains(user)) {
            return Err(Failure::usage(format!(
                "there is no account {unknown:?}, or it is disabled (headwater user list)"
            )));
        }
        if users.is_empty() {
            return Err(Failure::usage(
                "the database has no account for clients to sync by: headwater user add".to_owned(),
            ));
        }
        if !own.users.is_empty() {
            users.clone_from(&own.users);
        }
        let key = system::identity(&mut *connection).map_err(of_the_database)?.token_key;
        let token = |user: String| {
            let issued = Tokens::new(&key).and_then(|tokens| tokens.issue(&user, TOKEN, SystemTime::now()));
            issued.map(|token| (user, token.expose().to_owned()))
        };
        let users: Result<_, headwater_access::Error> = users.into_iter().map(token).collect();
        let users = users.map_err(|error| Failure::new(Class::Other, error.to_string()))?;
        drop(connection);
        if let Some(server) = own.server.clone() {
            return Ok((None, Served { server, users }));
        }
        let server = Server::own(program, &own.config, &own.address, settings)?;
        let peer = Peer::at(&server.place);
        Ok((Some(server), Served { server: peer, users }))
    }

    /// Complains where the server that runs is another than the settings say.
    async fn look_at_server(&self, server: &Peer) -> Result<(), Failure> {
        let workers = sampling::workers(server).await?;
        let _ = self.workers.set(workers);
        match self.expected.filter(|expected| *expected != workers) {
            None => Ok(()),
            Some(expected) => Err(Failure::usage(format!(
                "the server at {} has {workers} workers, and scenario.workers (--workers) says {expected}: give {workers}",
                server.place()
            ))),
        }
    }

    /// The settings, with the workers that there turned out to be.
    pub(crate) fn settings(&self) -> SyncSettings {
        self.workers.get().map_or(self.settings, |workers| self.settings.with_workers(*workers as i64))
    }

    /// A new remote of the client's user.
    fn remote(&self, client: &mut Client) -> Result<MemoryRemote, Failure> {
        let Some(served) = self.served.get() else { return Err(Failure::new(Class::Other, "no server runs")) };
        let (user, token) = &served.users[client.number % served.users.len()];
        let mut bytes = [0; 48];
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&client.random.bits().to_le_bytes()));
        let remote_id: [u8; 16] = std::array::from_fn(|place| bytes[place]);
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(remote_id);
        let model = &self.own.plan.model;
        Ok(MemoryRemote::new(Identity {
            server: served.server.clone(),
            user: user.clone(),
            token: token.clone(),
            model: (model.name.clone(), model.version, self.own.plan.fingerprint),
            remote_id,
            secret: std::array::from_fn(|place| bytes[16 + place]),
        }))
    }

    /// The column of a table that clients may change; none: there is no such column, or the table does not go up.
    fn column(&self, table: u32) -> Option<usize> {
        let plan = &self.own.plan.tables[table as usize];
        let of_partition = plan.table.partition.iter().flat_map(|partition| &partition.columns);
        let fixed: Vec<usize> = plan.table.key.iter().chain(of_partition).chain(&plan.through).copied().collect();
        let mut free = (0..plan.types.len()).filter(|place| !fixed.contains(place)).collect::<Vec<_>>();
        free.retain(|&place| PREFERRED.contains(&plan.types[place]));
        let column = free.into_iter().min_by_key(|&place| PREFERRED.iter().position(|kind| *kind == plan.types[place]));
        column.filter(|_| plan.table.direction == Direction::Both)
    }

    /// Takes a row for one client: two that changed it would be in conflict. False: another has it.
    fn claim(&self, table: u32, row: &Row) -> bool {
        let plan = &self.own.plan.tables[table as usize];
        let mut name = table.to_le_bytes().to_vec();
        put_row(&mut name, &plan.key_types, &plan.key_of(row));
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).insert(name)
    }

    /// What a client changes of these rows: as many as asked for, of the table of which it has the most.
    fn held(&self, rows: Vec<(u32, Row)>) -> Option<Held> {
        let count = |table: u32| rows.iter().filter(|(of, _)| *of == table).count();
        let table = (0..self.own.plan.tables.len() as u32).max_by_key(|&table| count(table))?;
        let column = self.column(table)?;
        let rows: Vec<Row> = rows.into_iter().filter(|(of, _)| *of == table).map(|(_, row)| row).collect();
        let originals: Vec<Value> = rows.iter().map(|row| row[column].clone()).collect();
        (!rows.is_empty()).then_some(Held { table, column, rows, originals })
    }

    /// Has the client send this update with its next sync.
    fn put(&self, client: &mut Client, is_changed: bool) {
        let (Some(held), Some(remote)) = (&client.held, &mut client.remote) else { return };
        let changes = held.rows.iter().cloned().zip(held.next(is_changed));
        let changes = changes.map(|(old, new)| Change { old: Some(old), new: Some(new) });
        remote.put(Upload::of(&self.own.plan.tables[held.table as usize].header, changes));
    }

    /// The sync with an update: the client then has what it sent, or what the database made of it.
    async fn send(&self, client: &mut Client, is_changed: bool) -> Result<Attempts, Failure> {
        let (Some(held), Some(remote)) = (&mut client.held, &mut client.remote) else {
            return Err(Failure::new(Class::Other, "there is nothing to send"));
        };
        let mut came: Vec<Row> = Vec::new();
        let mut check = |table: u32, op, row: &[ValueRef<'_>]| {
            if table == held.table && op == RowOp::Upsert {
                came.push(row.iter().map(ValueRef::to_value).collect());
            }
            Ok(0)
        };
        let pace = if is_changed { self.settings.pace } else { UNMEASURED };
        let done = remote.sync(pace, &mut check).await?;
        if done.contested > 0 {
            return self.fault(format!(
                "{} of {} rows of client {} met a conflict or were refused: {WHO}, or a constraint is against it",
                done.contested,
                done.changes,
                client.number + 1
            ));
        }
        held.rows = held.next(is_changed);
        let plan = &self.own.plan.tables[held.table as usize];
        for row in came {
            let key = plan.key_of(&row);
            held.rows.iter_mut().filter(|held| plan.key_of(held) == key).for_each(|held| held.clone_from(&row));
        }
        Ok(done.attempts())
    }

    fn fault(&self, what: String) -> Result<Attempts, Failure> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what.clone());
        Err(Failure::new(Class::Other, what))
    }
}

impl Workload for OwnWorkload {
    type Client = Client;

    async fn prepare(&self) -> Result<(), Failure> {
        let (own, program, settings) = (self.own.clone(), self.program.clone(), self.settings);
        let started = tokio::task::spawn_blocking(move || OwnWorkload::serve(&own, &program, settings)).await;
        let (server, of_clients) = started.map_err(|defect| Failure::new(Class::Other, defect.to_string()))??;
        if server.is_none() {
            self.look_at_server(&of_clients.server).await?;
        }
        self.server.begin(server.as_ref().map(Server::id), of_clients.server.clone());
        let _ = self.served.set(of_clients);
        *self.running.lock().await = server;
        Ok(())
    }

    fn client(&self, number: usize) -> Client {
        let random = Random::derived(self.seed, &[number as u64]);
        Client { number, random, remote: None, had: Synced::default(), held: None }
    }

    /// A first sync, in which it gets what its user may have.
    async fn connect(&self, client: &mut Client) -> Result<(), Failure> {
        let mut remote = self.remote(client)?;
        let wanted = if self.settings.way == Way::Up { self.settings.rows as usize } else { 0 };
        let columns: Vec<_> = (0..self.own.plan.tables.len() as u32).map(|table| self.column(table)).collect();
        let mut counts = vec![0; columns.len()];
        let mut kept: Vec<(u32, Row)> = Vec::new();
        let mut check = |table: u32, op, row: &[ValueRef<'_>]| {
            let place = table as usize;
            let value =
                columns.get(place).copied().flatten().and_then(|column| row.get(column)).map(ValueRef::to_value);
            let may_change = op == RowOp::Upsert && value.is_some_and(|value| another(&value).is_some());
            if may_change && counts[place] < wanted {
                let row: Row = row.iter().map(ValueRef::to_value).collect();
                if self.claim(table, &row) {
                    counts[place] += 1;
                    kept.push((table, row));
                }
            }
            Ok(0)
        };
        client.had = remote.sync(Pace::default(), &mut check).await?;
        client.held = self.held(kept);
        client.remote = Some(remote);
        if wanted > 0 && client.held.is_none() {
            let user = self.served.get().map(|served| served.users[client.number % served.users.len()].0.as_str());
            return Err(Failure::usage(format!(
                "{:?} gets no row that nobody else changes and that has a column to change: name more users by --users, take fewer --clients or --rows, \
                 or leave out --kind upload",
                user.unwrap_or_default()
            )));
        }
        Ok(())
    }

    fn is_in_sets(&self) -> bool {
        true
    }

    async fn begin_set(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn generate(&self, client: &mut Client) {
        match self.settings.way {
            Way::Down => client.remote = self.remote(client).ok(),
            Way::Up => self.put(client, true),
        }
    }

    async fn execute(&self, client: &mut Client) -> Result<Attempts, Failure> {
        if self.settings.way == Way::Up {
            return self.send(client, true).await;
        }
        let Some(remote) = &mut client.remote else { return Err(Failure::new(Class::Other, "there is no remote")) };
        let done = remote.sync(self.settings.pace, &mut |_, _, _| Ok(0)).await?;
        if (done.upserts, done.deletes) != (client.had.upserts, client.had.deletes) {
            let (number, before) = (client.number + 1, client.had.upserts);
            return self.fault(format!("client {number} got {} rows, and {before} before: {WHO}", done.upserts));
        }
        Ok(done.attempts())
    }

    async fn end_set(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn restore(&self, client: &mut Client) -> Result<(), Failure> {
        if self.settings.way == Way::Up {
            self.put(client, false);
            // A fault is told by verify.
            return self.send(client, false).await.map(|_| ());
        }
        Ok(())
    }

    fn gone(&self) -> Option<String> {
        self.running.try_lock().ok()?.as_mut()?.ended()
    }

    async fn verify(&self, tally: Tally) -> Result<Vec<String>, Failure> {
        let mut faults = std::mem::take(&mut *self.faults.lock().unwrap_or_else(PoisonError::into_inner));
        faults.truncate(FAULTS_MAX);
        if tally.failed > 0 {
            faults.push(format!("{} syncs failed", tally.failed));
        }
        Ok(faults)
    }

    async fn clean_up(&self) -> Result<(), Failure> {
        self.server.end();
        *self.running.lock().await = None;
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        let backend = self.own.backend.clone();
        let forget = move || {
            let mut connection = backend.connect()?;
            system::forget_remotes(&mut *connection, &made)
        };
        let forgotten = tokio::task::spawn_blocking(forget).await;
        let failed = |what: String| Failure::new(Class::Other, what);
        forgotten.map_err(|defect| failed(defect.to_string()))?.map_err(|error| failed(error.to_string()))
    }
}
