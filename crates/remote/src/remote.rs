//! Making and opening a remote.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use headwater_model::Model;

use crate::adopt;
use crate::aside;
use crate::database::{BUSY_WAIT, Database};
use crate::error::{Error, While};
use crate::plan::Plan;
use crate::ready::nobody;
use crate::schema;
use crate::state::State;

/// A remote: one SQLite file that syncs.
pub struct Remote {
    pub(crate) path: PathBuf,
    pub(crate) database: Database,
    pub(crate) plan: Plan,
    /// The token got for a password, and until when it is good. Never written to the file.
    pub(crate) token: Option<(String, Instant)>,
    /// The number of the newest change on the list before a look at the file added others; `None`: all have been shown.
    pub(crate) newest_shown: Cell<Option<i64>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What a new remote is to be.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The server's address, `https://...`.
    pub server: String,
    /// The user who syncs it.
    pub user: String,
    /// How long to wait for other programs that write to the file.
    pub busy_wait: Duration,
    /// Take tables of the model that are in the file already, with their rows.
    pub adopt: bool,
}

impl CreateOptions {
    /// A remote of this user at this server.
    pub fn new(server: impl Into<String>, user: impl Into<String>) -> CreateOptions {
        CreateOptions { server: server.into(), user: user.into(), busy_wait: BUSY_WAIT, adopt: false }
    }
}

impl Remote {
    /// Makes the tables of a model in a file, which is created if there is none, and a new remote ID. After an error the file is as
    /// it was before.
    ///
    /// With [`CreateOptions::adopt`] tables that are there keep their rows: the first sync brings down what the consolidated database
    /// has, rows that are equal count as synchronized, others go up as inserts. [`Error::Configuration`] names what keeps a table from
    /// being adopted.
    pub fn create(path: impl AsRef<Path>, model: &Model, options: &CreateOptions) -> Result<Remote, Error> {
        let path = path.as_ref();
        let plan = Plan::served(model)?;
        let is_there = path.symlink_metadata().is_ok();
        let made = Remote::create_in(path, plan, options).map_err(|error| error.judged(path));
        if made.is_err() && !is_there {
            remove_empty(path);
        }
        made
    }

    fn create_in(path: &Path, mut plan: Plan, options: &CreateOptions) -> Result<Remote, Error> {
        let path = path.to_owned();
        let database = Database::create(&path, options.busy_wait)?;
        let state = State {
            remote_id: random()?,
            secret: random()?,
            server: options.server.clone(),
            user: options.user.clone(),
            is_adopted: options.adopt,
            ..nobody(&plan)
        };
        database.write("creating the remote", |connection| {
            if schema::exists(connection, "hw_state")? {
                return Err(Error::AlreadyARemote { path: path.clone() });
            }
            let present = adopt::present(connection, &plan)?;
            if let Some(table) = present.first().filter(|_| !options.adopt) {
                return Err(Error::TableExists { path: path.clone(), table: table.table.name.clone() });
            }
            for table in &present {
                if let Some(what) = adopt::obstacle(connection, table)? {
                    let name = &table.table.name;
                    return Err(Error::Configuration { what: format!("table {name:?} can't be adopted: {what}") });
                }
            }
            schema::create(connection, &plan)?;
            state.insert(connection)
        })?;
        schema::learn_uniques(&database.connection, &mut plan)?;
        Ok(Remote { path, database, plan, token: None, newest_shown: Cell::new(None) })
    }

    /// Opens a remote, and puts its change tracking in order where the application's own unique indexes are new. A file that is no
    /// remote stays as it is.
    pub fn open(path: impl AsRef<Path>) -> Result<Remote, Error> {
        Remote::open_with(path, BUSY_WAIT)
    }

    /// Opens a remote as [`Remote::open`] does, waiting at most so long for other programs that write to the file.
    pub fn open_with(path: impl AsRef<Path>, busy_wait: Duration) -> Result<Remote, Error> {
        let path = path.as_ref();
        let open = || {
            is_there(path)?;
            let database = Database::open(path, busy_wait)?;
            let plan = plan_of(&database)?;
            let mut remote =
                Remote { path: path.to_owned(), database, plan, token: None, newest_shown: Cell::new(None) };
            remote.refresh()?;
            Ok(remote)
        };
        open().map_err(|error: Error| error.judged(path))
    }

    /// Opens a remote to look at it alone, with the tables whose change tracking is not as it must be. Nothing is put in order.
    pub(crate) fn open_to_read(path: &Path) -> Result<(Remote, Vec<String>), Error> {
        is_there(path)?;
        let database = Database::open_to_read(path, BUSY_WAIT)?;
        database.is_remote(path)?;
        let mut plan = plan_of(&database)?;
        let untracked = schema::untracked(&database.connection, &mut plan)?;
        Ok((Remote { path: path.to_owned(), database, plan, token: None, newest_shown: Cell::new(None) }, untracked))
    }

    /// Looks at what the application has done to the schema, and remembers whether changes were set aside for it.
    pub(crate) fn refresh(&mut self) -> Result<(), Error> {
        let before = aside::newest(&self.database.connection);
        schema::refresh(&self.database, &mut self.plan)?;
        if let (Ok(before), Ok(now)) = (before, aside::newest(&self.database.connection))
            && now > before
        {
            self.newest_shown.set(self.newest_shown.get().or(Some(before)));
        }
        Ok(())
    }

    /// Says what an error means for the file, once no transaction is open any more.
    pub(crate) fn judged<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        done.map_err(|error| error.judged(&self.path))
    }

    /// The user who syncs it.
    pub fn user(&self) -> Result<String, Error> {
        self.judged(self.state()).map(|state| state.user)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's public form.
    pub fn model(&self) -> &Model {
        &self.plan.model
    }

    pub(crate) fn state(&self) -> Result<State, Error> {
        State::read(&self.database.connection)
    }

    /// Takes note of the file's model, where somebody else has changed its version.
    pub(crate) fn reread(&mut self) -> Result<(), Error> {
        if self.state()?.fingerprint != self.plan.fingerprint {
            self.plan = plan_of(&self.database)?;
            schema::learn_uniques(&self.database.connection, &mut self.plan)?;
        }
        Ok(())
    }

    /// Sets the server and the user to sync with from now on.
    pub fn set_server(&mut self, server: &str, user: &str) -> Result<(), Error> {
        self.token = None;
        self.judged(self.database.write("changing the server", |connection| {
            let sql = "UPDATE \"hw_state\" SET \"server\" = ?, \"user\" = ?";
            connection.execute(sql, [server, user]).while_doing("changing the server").map(drop)
        }))
    }
}

/// An error where there is no such file, which SQLite would tell in other words.
fn is_there(path: &Path) -> Result<(), Error> {
    match path.metadata() {
        Ok(there) if there.is_file() => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::NoFile { path: path.to_owned() }),
        Err(error) => Err(Error::of_io("opening the file", path, error)),
        _ => Err(Error::NotARemote { path: path.to_owned() }),
    }
}

/// Removes a file in which no table has been made, with what SQLite has left beside it. If it can't be removed, it is an empty file.
fn remove_empty(path: &Path) {
    const PAGE_BYTES: u64 = 4096;
    let beside = ["", "-wal", "-shm"].map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    });
    let bytes = |path: &Path| path.metadata().map_or(0, |there| there.len());
    if bytes(&beside[0]) <= PAGE_BYTES && bytes(&beside[1]) == 0 {
        for path in beside {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a remote says of itself, once it is sure that it is of this format.
fn plan_of(database: &Database) -> Result<Plan, Error> {
    State::check_format(&database.connection)?;
    let state = State::read(&database.connection)?;
    let model = Model::from_json(&state.model).map_err(|error| Error::Model(error.to_string()))?;
    Ok(Plan { fingerprint: state.fingerprint, ..Plan::new(model) })
}

/// Random bytes, from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Configuration { what: format!("the system gives no random numbers: {error}") })?;
    Ok(bytes)
}

/// Now, as records for people have it.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut text = String::new();
    headwater_protocol::text::write_timestamptz(&mut text, i64::try_from(since.as_micros()).unwrap_or(i64::MAX - 1));
    text
}
