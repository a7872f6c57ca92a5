//! Taking a ready file: asking, fetching, checking, and making it the remote's own.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use headwater_model::Model;
use headwater_protocol::client::{ReadyAnswer, ReadyReader};
use headwater_protocol::message::{ErrorCode, Hello, READY_BLOCK_BYTES, ReadyFile, Watermarks, Welcome};
use headwater_protocol::{Frame, Kind, Limits};
use rusqlite::{Connection, params};
use sha2::{Digest, Sha256};

use crate::database::{Database, crash};
use crate::error::{Error, While};
use crate::http::{Answer, Client, Refused, Server, Who};
use crate::plan::Plan;
use crate::remote::{CreateOptions, Remote, random};
use crate::schema;
use crate::state::{State, write_watermarks};

/// A silence longer than this ends a request; the server answers within 20 seconds, or has nothing.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How often a transfer that breaks is taken up again without a byte having come.
const FUTILE_MAX: u32 = 4;
/// The pause before the first of them; it doubles each time.
const PAUSE: Duration = Duration::from_millis(200);
/// How much is read at a time.
const READ_BYTES: usize = 1 << 18;

/// A ready file that a new remote has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Rows that came with it.
    pub rows: u64,
    /// Bytes that came over the network for it.
    pub bytes_down: u64,
}

impl Remote {
    /// Makes a remote as [`Remote::create`] does and, where the server has a ready file for its user's partitions, with the rows that are in it:
    /// the next sync brings what has changed since. (Only in a file that is not there yet. Otherwise, and where anything goes wrong with
    /// it, the remote is made without rows, which the first sync brings. After [`Error::DiskFull`] there is none: the next attempt goes on
    /// with what has come.)
    pub fn create_from(
        path: impl AsRef<Path>,
        model: &Model,
        options: &CreateOptions,
        server: &Server,
    ) -> Result<(Remote, Option<Taken>), Error> {
        let path = path.as_ref();
        let is_new =
            !options.adopt && fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if is_new {
            match take(path, model, options, server) {
                Ok(None) => {}
                Ok(Some(taken)) => return Ok((Remote::open_with(path, options.busy_wait)?, Some(taken))),
                #[cfg(test)]
                Err(error @ Error::Crash(_)) => return Err(error),
                // A download would need no less room.
                Err(error @ Error::DiskFull { .. }) => return Err(error),
                Err(error) => tracing::warn!(%error, "no ready file is taken; the first sync brings the rows"),
            }
        }
        let remote = Remote::create(path, model, options)?;
        if is_new {
            // Nobody goes on with what has come of a file any more.
            sweep(path, None);
        }
        Ok((remote, None))
    }
}

/// Makes the remote of a ready file; `None`: there is none.
fn take(path: &Path, model: &Model, options: &CreateOptions, server: &Server) -> Result<Option<Taken>, Error> {
    let plan = Plan::served(model)?;
    let client = Client::new(server, IDLE_MAX)?;
    let who = Who { token: client.token()?.token, user: options.user.clone(), remote_id: random()? };
    let secret = random()?;
    let Some((welcome, file, seen)) = ask(&client, &who, secret, &plan)? else { return Ok(None) };
    let mut arriving = Arriving::open(path, &file)?;
    let bytes_down = arriving.fetch(&client, &who)?;
    crash::step("fetching a ready file")?;
    let own = Own { plan: &plan, who: &who, secret, options, welcome, seen };
    let taken_over = own.take_over(&arriving.path).map_err(|error| error.judged(&arriving.path));
    let made = taken_over.and_then(|()| arriving.publish(path));
    if made.is_err() && !is_crash(&made) {
        arriving.remove();
    }
    made.map(|()| Some(Taken { rows: file.rows, bytes_down }))
}

#[cfg(test)]
fn is_crash<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Crash(_)))
}

#[cfg(not(test))]
fn is_crash<T>(_: &Result<T, Error>) -> bool {
    false
}

/// Whether there is a file, and what it is.
fn ask(
    client: &Client<'_>,
    who: &Who,
    secret: [u8; 32],
    plan: &Plan,
) -> Result<Option<(Welcome, ReadyFile, Watermarks)>, Error> {
    let hello = Hello {
        remote_id: who.remote_id,
        secret,
        model: plan.model.name.clone(),
        model_version: plan.model.version,
        fingerprint: plan.fingerprint,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 0,
        download_applied: [0; 16],
        has_upload: false,
        takes_chunks: false,
        knows_leaving: false,
        wants_download: true,
        uploads: Vec::new(),
        frozen: None,
        watermarks: Watermarks::default(),
    };
    let mut body = hello.to_frame().to_bytes();
    Frame::new(Kind::End, Vec::new()).write(&mut body);
    let mut answer = match client.ask_file(who, &body) {
        Ok(answer) => answer,
        Err(refused) => {
            // An older server knows nothing of files; one that is busy will say so to the sync.
            tracing::debug!(?refused, "no ready file");
            return Ok(None);
        }
    };
    let mut reader = ReadyReader::new(Limits::ANSWER);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = answer.read(&mut buffer).map_err(|error| unreadable(&error))?;
        if count == 0 {
            break;
        }
        reader.push(&buffer[..count]).map_err(|error| unreadable(&error))?;
    }
    match reader.finish().map_err(|error| unreadable(&error))? {
        ReadyAnswer::File(welcome, file, seen) => Ok(Some((welcome, file, seen))),
        ReadyAnswer::None => Ok(None),
        ReadyAnswer::ServerError(error) => {
            tracing::debug!(?error, "no ready file");
            Ok(None)
        }
    }
}

fn unreadable(error: &dyn std::error::Error) -> Error {
    Error::Unexpected { what: format!("what it says of a ready file can't be read: {error}") }
}

/// A file on its way.
struct Arriving {
    file: File,
    path: PathBuf,
    promised: ReadyFile,
    came: u64,
    /// Bytes that the network has brought.
    bytes_down: u64,
}

impl Arriving {
    /// Goes on with what came of the same file before; what came of others goes.
    fn open(path: &Path, promised: &ReadyFile) -> Result<Arriving, Error> {
        let own = beside(path, &format!("-ready-{}", hex::encode(&promised.digest[..16])));
        sweep(path, Some(&own));
        let open = || {
            let file = File::options().read(true).append(true).create(true).open(&own)?;
            // Another program makes the same remote: it has the file, or a remote without rows is made here.
            file.try_lock().map_err(io::Error::other)?;
            let came = file.metadata()?.len();
            Ok::<_, io::Error>((file, came))
        };
        let (file, came) = open().map_err(|error| not_written(&own, error))?;
        let mut arriving = Arriving { file, path: own, promised: *promised, came, bytes_down: 0 };
        if came > promised.bytes {
            arriving.begin_anew()?;
        }
        Ok(arriving)
    }

    fn begin_anew(&mut self) -> Result<(), Error> {
        self.came = 0;
        self.file.set_len(0).map_err(|error| not_written(&self.path, error))
    }

    /// The beginning of a block, from which on the server sends what is compressed: what came beyond it comes again.
    fn back_to_a_block(&mut self) -> Result<(), Error> {
        self.came -= self.came % READY_BLOCK_BYTES;
        self.file.set_len(self.came).map_err(|error| not_written(&self.path, error))
    }

    /// Fetches what has not come yet, and sees that it is the file that was promised. Gives the bytes that came.
    fn fetch(&mut self, client: &Client<'_>, who: &Who) -> Result<u64, Error> {
        let (mut futile, mut pause) = (0, PAUSE);
        while self.came < self.promised.bytes {
            self.back_to_a_block()?;
            let stood = self.came;
            let Err(broken) = self.fetch_once(client, who)? else { break };
            futile = if self.came > stood { 0 } else { futile + 1 };
            if futile >= FUTILE_MAX {
                return Err(Error::Unexpected { what: format!("the file does not come: {broken}") });
            }
            tracing::debug!(came = self.came, broken, "the transfer of a ready file broke");
            std::thread::sleep(pause);
            pause = if futile == 0 { PAUSE } else { pause * 2 };
        }
        if self.came == self.promised.bytes && self.digest()? == self.promised.digest {
            return Ok(self.bytes_down);
        }
        self.remove();
        Err(Error::Unexpected { what: "the file that came is not the one that was promised".to_owned() })
    }

    /// One request. `Err` within: it broke, and the next may bring more.
    fn fetch_once(&mut self, client: &Client<'_>, who: &Who) -> Result<Result<(), String>, Error> {
        let (mut answer, came) = match client.file(who, &self.promised.id, self.came) {
            Ok(answer) => answer,
            Err(Refused::Network(why)) => return Ok(Err(why)),
            Err(Refused::Status(error)) if error.code == ErrorCode::Overloaded => return Ok(Err(error.message)),
            Err(Refused::Status(error)) => {
                return Err(Error::Unexpected { what: format!("the file is not given: {}", error.message) });
            }
            Err(Refused::Stranger(error)) => return Err(error),
        };
        let broken = self.read(&mut answer);
        self.bytes_down += came.get();
        broken
    }

    /// Reads an answer to its end.
    fn read(&mut self, answer: &mut Answer) -> Result<Result<(), String>, Error> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match answer.read(&mut buffer) {
                Ok(0) if self.came < self.promised.bytes => return Ok(Err("it ended early".to_owned())),
                Ok(0) => return Ok(Ok(())),
                Ok(count) if self.came + count as u64 > self.promised.bytes => {
                    self.remove();
                    return Err(Error::Unexpected { what: "more came of the file than was promised".to_owned() });
                }
                Ok(count) => {
                    self.file.write_all(&buffer[..count]).map_err(|error| not_written(&self.path, error))?;
                    self.came += count as u64;
                }
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        let mut read = || {
            self.file.seek(SeekFrom::Start(0))?;
            let (mut sha, mut buffer) = (Sha256::new(), vec![0; READ_BYTES]);
            loop {
                match self.file.read(&mut buffer)? {
                    0 => return Ok::<_, io::Error>(sha.finalize().into()),
                    count => sha.update(&buffer[..count]),
                }
            }
        };
        read().map_err(|error| not_written(&self.path, error))
    }

    /// Makes it the file of this path, whole and lasting, unless something is there.
    fn publish(&self, path: &Path) -> Result<(), Error> {
        let publish = || {
            self.file.sync_all()?;
            fs::hard_link(&self.path, path)
        };
        publish().map_err(|error| not_written(path, error))?;
        crash::step("naming a remote")?;
        self.remove();
        // The name outlasts a power failure too; where folders can't be synced, what is there without it is no remote at all.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What makes a file a remote's own.
struct Own<'a> {
    plan: &'a Plan,
    who: &'a Who,
    secret: [u8; 32],
    options: &'a CreateOptions,
    welcome: Welcome,
    seen: Watermarks,
}

impl Own<'_> {
    /// Writes it, once the file is sure to be what it should be. From here on its digest is another: after a crash it is of no use.
    fn take_over(&self, path: &Path) -> Result<(), Error> {
        let database = Database::open_scratch(path)?;
        let connection = &database.connection;
        if schema_of(connection)? != self.expected_schema()? {
            return Err(Error::Unexpected { what: "the file's tables are not those of the model here".to_owned() });
        }
        State::check_format(connection)?;
        database.write("taking a ready file over", |connection| {
            let sql = "UPDATE \"hw_state\" SET \"remote_id\" = ?, \"secret\" = ?, \"server\" = ?, \"user\" = ?, \"model\" = ?, \
                       \"fingerprint\" = ?, \"incarnation\" = ?, \"note\" = ?, \"last_sync\" = NULL";
            let CreateOptions { server, user, .. } = self.options;
            let (model, fingerprint) = (self.plan.model.to_json(), self.plan.fingerprint as i64);
            let Welcome { incarnation, note, .. } = self.welcome;
            let row = params![self.who.remote_id, self.secret, server, user, model, fingerprint, incarnation, note];
            let changed = connection.execute(sql, row).while_doing("taking a ready file over")?;
            if changed != 1 {
                return Err(Error::Unexpected { what: "the file has no state".to_owned() });
            }
            write_watermarks(connection, &self.seen)
        })
    }

    /// The schema of a remote that is made here.
    fn expected_schema(&self) -> Result<BTreeSet<[String; 4]>, Error> {
        let connection = Connection::open_in_memory().while_doing("making the tables of the model")?;
        schema::create(&connection, self.plan)?;
        schema_of(&connection)
    }
}

/// All that a file's catalogue has.
fn schema_of(connection: &Connection) -> Result<BTreeSet<[String; 4]>, Error> {
    let read = || {
        let mut select = connection.prepare("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema")?;
        let rows = select.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))?;
        rows.collect::<rusqlite::Result<_>>()
    };
    read().while_doing("reading the catalogue")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Removes what attempts have left beside a remote, but for this.
fn sweep(path: &Path, but: Option<&Path>) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else { return };
    let (prefix, but) = (format!("{name}-ready-"), but.and_then(Path::file_name));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) && Some(entry.file_name().as_os_str()) != but {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn not_written(path: &Path, error: io::Error) -> Error {
    Error::of_io("taking a ready file", path, error)
}
