//! A real server on a real database, and clients that speak HTTP over a plain socket.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_access::{Credentials, Secret, hash_password};
use headwater_bufferpool::{Config as PoolConfig, Floors, Pools};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, Plan, system, track};
use headwater_protocol::message::{Change, ErrorCode, Hello, ServerError, UploadEnd, Watermarks};
use headwater_protocol::upload::Digest;
use headwater_protocol::{Frame, Kind, Row, Type, Value, frame};
use headwater_server::{Config, Handle, Joined, Server};

/// Nothing here takes as long; a client that waits longer fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

const MODEL: &str = r#"
name = "shop"
version = 3

[tables.item]
key = ["id"]
conflict = "consolidated_wins"

[tables.item.columns]
id = "int not null"
name = "text"
"#;

/// A small configuration on any free port. Nothing is kept for clients that have gone, so that all is freed at once.
pub(crate) fn config() -> Config {
    Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), kept_ms: 0, ..Config::default() }
}

pub(crate) fn plan() -> Plan {
    Plan::new(headwater_model::parse::parse("shop.toml", MODEL).expect("a model"))
}

/// A server, its runtime, and a SQLite database with the table `item` and the user anna, password `secret`.
pub(crate) struct Stand {
    // Declared before the folder: the server stops before its files go.
    pub(crate) handle: Option<Handle>,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) address: SocketAddr,
    pub(crate) plan: Plan,
    pub(crate) folder: tempfile::TempDir,
}

impl Stand {
    pub(crate) fn start(config: Config) -> Stand {
        Stand::start_with(config, |backend| backend)
    }

    /// With so much memory for what is on its way, and so much of a file.
    pub(crate) fn start_small(config: Config, budget_bytes: u64, overflow_bytes_max: u64) -> Stand {
        let small = PoolConfig { block_bytes: 4_096, budget_bytes, floors: Floors::default(), ..PoolConfig::default() };
        let pools = Pools::new(&PoolConfig { overflow_bytes_max, ..small }, None).expect("a pool");
        Stand::start_joined(config, Joined { pools: Some(Arc::new(pools)), ..Joined::default() }, |backend| backend)
    }

    /// With a database that `wrap` may put something before.
    pub(crate) fn start_with(config: Config, wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Stand {
        Stand::start_joined(config, Joined::default(), wrap)
    }

    fn start_joined(config: Config, joined: Joined, wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Stand {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("central.db");
        let sql = "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT)";
        rusqlite::Connection::open(&file).and_then(|db| db.execute_batch(sql)).expect("a table");
        let backend: Arc<dyn Backend> = Arc::new(Sqlite::new(&file).durable(false));
        prepare(&*backend);
        Stand::serve(config, wrap(backend), folder, joined)
    }

    /// On a database in which the table and [what is prepared](prepare) are already.
    pub(crate) fn start_on(config: Config, backend: Arc<dyn Backend>) -> Stand {
        Stand::serve(config, backend, tempfile::tempdir().expect("a folder"), Joined::default())
    }

    fn serve(config: Config, backend: Arc<dyn Backend>, folder: tempfile::TempDir, joined: Joined) -> Stand {
        log_if_asked();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let handle = runtime.block_on(Server::start_with(config, backend, vec![plan()], joined)).expect("a server");
        Stand { address: handle.local_addr(), handle: Some(handle), runtime, plan: plan(), folder }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("central.db")
    }

    /// The application's own connection.
    pub(crate) fn database(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.file()).expect("the database")
    }

    pub(crate) fn fill(&self, rows: u64) {
        self.fill_with(rows, 20);
    }

    /// Rows with so many random bytes each, which do not pack.
    pub(crate) fn fill_with(&self, rows: u64, bytes: u64) {
        let sql = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < ?1)
                   INSERT INTO item SELECT id, 'name ' || id || ' ' || hex(randomblob(?2)) FROM n";
        self.database().execute(sql, [rows as i64, bytes as i64]).expect("rows");
    }

    pub(crate) fn items(&self) -> i64 {
        self.database().query_row("SELECT count(*) FROM item", [], |row| row.get(0)).expect("a count")
    }

    /// Holds SQLite's write lock: a sync gets its worker and then waits in its greeting, until this is dropped.
    pub(crate) fn hold(&self) -> rusqlite::Connection {
        let database = self.database();
        database.busy_timeout(PATIENCE).expect("a timeout");
        database.execute_batch("BEGIN IMMEDIATE").expect("the lock");
        database
    }

    /// Connects and sends a whole request.
    pub(crate) fn post(&self, body: &[u8]) -> Client {
        let mut client = Client::connect(self.address);
        client.send(&head("POST", "/v1/sync", Some(&anna()), Some(body.len() as u64)));
        client.send(body);
        client
    }

    pub(crate) fn sync(&self, body: &[u8]) -> Answer {
        self.post(body).answer()
    }

    pub(crate) fn get(&self, path: &str, credentials: Option<&Credentials>) -> Answer {
        request(self.address, "GET", path, credentials)
    }

    pub(crate) fn ready(&self) -> serde_json::Value {
        self.get("/ready", None).json()
    }

    /// Waits until `/ready` is so.
    pub(crate) fn wait_until(&self, what: &str, so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = self.ready();
            if so(&ready) {
                return ready;
            }
            assert!(Instant::now() < deadline, "waiting for {what}: {ready}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until nothing is held any more: no sync, no worker, no byte in a spool.
    pub(crate) fn wait_until_idle(&self) {
        self.wait_until("everything freed", |ready| {
            let load = &ready["load"];
            let counts = ["workers_busy", "uploaders_busy", "waiting", "receiving", "sending"];
            counts.iter().all(|count| load[count] == 0)
                && ready["syncs"] == 0
                && ready["spool_memory_bytes"] == 0
                && ready["spool_file_bytes"] == 0
        });
    }

    pub(crate) fn hello(&self, remote: u8) -> Hello {
        Hello {
            remote_id: [remote; 16],
            secret: [remote; 32],
            model: self.plan.model.name.clone(),
            model_version: self.plan.model.version,
            fingerprint: self.plan.fingerprint,
            incarnation: [0; 16],
            note: [0; 16],
            upload_sequence: 0,
            download_applied: [0; 16],
            has_upload: false,
            wants_download: true,
            takes_chunks: false,
            knows_leaving: false,
            uploads: Vec::new(),
            frozen: None,
            watermarks: Watermarks::default(),
        }
    }

    /// A request that only downloads.
    pub(crate) fn download(&self, remote: u8) -> Vec<u8> {
        bytes(&[self.hello(remote).to_frame(), end()])
    }

    /// A request whose first upload inserts these rows.
    pub(crate) fn upload(&self, remote: u8, rows: &[(i64, &str)]) -> Vec<u8> {
        let row = |(id, name): &(i64, &str)| vec![Value::Int(*id), Value::text(*name)];
        self.upload_rows(remote, rows.iter().map(row).collect())
    }

    pub(crate) fn upload_rows(&self, remote: u8, rows: Vec<Row>) -> Vec<u8> {
        let count = rows.len() as u64;
        let mut frames = vec![self.plan.tables[0].header.to_frame()];
        let mut rows = rows.into_iter();
        loop {
            let mut payload = Vec::new();
            for row in rows.by_ref().take(1000) {
                Change { old: None, new: Some(row) }.write(&mut payload, &[Type::Int, Type::Text]);
            }
            if payload.is_empty() {
                break;
            }
            frames.push(Frame::packed(Kind::Changes, payload));
        }
        self.upload_frames(remote, count, &frames)
    }

    pub(crate) fn upload_frames(&self, remote: u8, changes: u64, upload: &[Frame]) -> Vec<u8> {
        upload_after(&Hello { has_upload: true, ..self.hello(remote) }, changes, upload)
    }
}

/// A request with the upload that follows what `hello` acknowledges.
pub(crate) fn upload_after(hello: &Hello, changes: u64, upload: &[Frame]) -> Vec<u8> {
    let mut digest = Digest::new();
    for frame in upload {
        digest.add(frame.kind, &frame.payload(1 << 30).expect("a payload"));
    }
    let last = UploadEnd { sequence: hello.upload_sequence + 1, changes, digest: digest.finish() }.to_frame();
    bytes(&[vec![hello.to_frame()], upload.to_vec(), vec![last, end()]].concat())
}

/// Headwater's own tables, the tracking, and the user.
pub(crate) fn prepare(backend: &dyn Backend) {
    let mut connection = backend.connect().expect("a connection");
    track::track(&mut *connection, &plan()).expect("tracking");
    let hash = hash_password(&Secret::new("secret")).expect("a hash");
    assert!(system::add_account(&mut *connection, "anna", &hash).expect("an account"));
}

pub(crate) fn anna() -> Credentials {
    Credentials::Password { user: "anna".into(), password: Secret::new("secret") }
}

pub(crate) fn end() -> Frame {
    Frame::new(Kind::End, Vec::new())
}

pub(crate) fn bytes(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(Frame::to_bytes).collect()
}

/// The head of a request; without a length its body is chunked.
pub(crate) fn head(method: &str, path: &str, credentials: Option<&Credentials>, length: Option<u64>) -> Vec<u8> {
    let authorization = credentials
        .map_or_else(String::new, |credentials| format!("Authorization: {}\r\n", credentials.to_header().expose()));
    let length =
        length.map_or("Transfer-Encoding: chunked\r\n".to_owned(), |length| format!("Content-Length: {length}\r\n"));
    format!("{method} {path} HTTP/1.1\r\nHost: headwater\r\n{authorization}{length}\r\n").into_bytes()
}

pub(crate) fn request(address: SocketAddr, method: &str, path: &str, credentials: Option<&Credentials>) -> Answer {
    let mut client = Client::connect(address);
    client.send(&head(method, path, credentials, Some(0)));
    client.answer()
}

/// A connection of a client's.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Client { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // A server that refuses may close before it has read everything; then the answer tells.
        let _ = self.stream.write_all(bytes);
    }

    /// Everything up to the answer's end, or to where it breaks.
    pub(crate) fn answer(&mut self) -> Answer {
        let (status, headers) = self.head();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let length =
            headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
        let mut body = Vec::new();
        let whole = if chunked {
            self.chunks(&mut body)
        } else {
            let length: usize = length.expect("a length");
            self.take(length).map(|bytes| body = bytes).is_some()
        };
        Answer { status, headers, body, whole }
    }

    /// The same where there may be no body (204 and 409).
    pub(crate) fn answer_or_empty(&mut self) -> Answer {
        let (status, headers) = self.head();
        let length =
            headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
        let body = self.take(length.unwrap_or(0)).unwrap_or_default();
        Answer { status, headers, body, whole: true }
    }

    pub(crate) fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            assert!(
                self.more(),
                "the connection ends in the answer's head: {:?}",
                String::from_utf8_lossy(&self.buffer)
            );
        };
        let head = String::from_utf8(self.buffer.drain(..end + 4).collect()).expect("text");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
        let headers =
            lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_lowercase(), value.into()));
        (status.expect("a status"), headers.collect())
    }

    /// The next chunk of a chunked body; `None` where it breaks off; empty at its end.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let end = loop {
            match self.buffer.windows(2).position(|window| window == b"\r\n") {
                Some(end) => break end,
                None if self.more() => {}
                None => return None,
            }
        };
        let line = String::from_utf8(self.buffer.drain(..end + 2).collect()).expect("text");
        let length = usize::from_str_radix(line.trim(), 16).expect("a length");
        let mut chunk = self.take(length + 2)?;
        chunk.truncate(length);
        Some(chunk)
    }

    /// Whether nothing more comes before the server closes the connection.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.buffer.is_empty() && !self.more()
    }

    /// True once the server has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        while self.more() {}
        true
    }

    fn chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            match self.chunk() {
                None => return false,
                Some(chunk) if chunk.is_empty() => return true,
                Some(chunk) => body.extend_from_slice(&chunk),
            }
        }
    }

    fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            if !self.more() {
                return None;
            }
        }
        Some(self.buffer.drain(..length).collect())
    }

    fn more(&mut self) -> bool {
        let mut piece = vec![0; 64 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => false,
            Ok(length) => {
                self.buffer.extend_from_slice(&piece[..length]);
                true
            }
            Err(error) => {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "nothing came for {PATIENCE:?}");
                false
            }
        }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether HTTP says that it is whole.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The frames, heartbeats aside.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        frames(&self.body).into_iter().filter(|frame| frame.kind != Kind::Heartbeat).collect()
    }

    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.frames().iter().map(|frame| frame.kind).collect()
    }

    /// The payload of the one frame of this kind.
    pub(crate) fn payload(&self, kind: Kind) -> Vec<u8> {
        let frames = self.frames();
        let mut found = frames.iter().filter(|frame| frame.kind == kind);
        let frame = found.next().unwrap_or_else(|| panic!("no {kind:?} among {:?}", self.kinds()));
        assert!(found.next().is_none(), "two of {kind:?}");
        frame.payload(1 << 30).expect("a payload").into_owned()
    }

    /// The ERROR frame, which must be the last.
    pub(crate) fn error(&self) -> ServerError {
        assert_eq!(self.kinds().last(), Some(&Kind::Error), "{:?}", self.kinds());
        ServerError::from_payload(&self.payload(Kind::Error)).expect("an error")
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.whole && self.kinds().last() == Some(&Kind::End)
    }

    /// Asserts that the answer is this status and one ERROR frame of this code.
    pub(crate) fn expect_error(&self, status: u16, code: ErrorCode) -> ServerError {
        let error = self.error();
        assert_eq!((self.status, error.code), (status, code), "{}", error.message);
        assert_eq!(self.header("content-type"), Some("application/vnd.headwater.sync"));
        error
    }

    /// How many rows were downloaded.
    pub(crate) fn rows(&self) -> u64 {
        let types = [Type::Int, Type::Text];
        let mut rows = 0;
        for frame in self.frames().iter().filter(|frame| frame.kind == Kind::Rows) {
            let payload = frame.payload(1 << 30).expect("a payload");
            let mut reader = headwater_protocol::message::RowsReader::new(&payload);
            while reader.next_op().expect("an op").is_some() {
                headwater_protocol::row::read_row(reader.row(), &types, 1 << 20, None).expect("a row");
                rows += 1;
            }
        }
        rows
    }
}

/// The whole frames at the beginning of these bytes.
pub(crate) fn frames(bytes: &[u8]) -> Vec<Frame> {
    let mut decoder = frame::Decoder::new(1 << 30);
    decoder.push(bytes);
    std::iter::from_fn(|| decoder.next_frame().expect("a frame")).collect()
}

/// `HEADWATER_TEST_LOG=debug` shows the server's log.
fn log_if_asked() {
    if let Ok(level) = std::env::var("HEADWATER_TEST_LOG") {
        let level: tracing_subscriber::filter::LevelFilter = level.parse().expect("a level");
        let _ = tracing_subscriber::fmt().with_max_level(level).try_init();
    }
}
