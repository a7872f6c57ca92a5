//! A consolidated database in memory behind a real socket: enough of a server to sync with, and one that breaks on demand.
//!
//! Every rule is `consolidated_wins`; an insert or update whose image has the text `bad` is refused. Tables are not partitioned.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use headwater_protocol::chunk::Key;
use headwater_protocol::message::{
    Change, ChunkRef, ConflictEnd, Download, ErrorCode, Hello, Outcome, PartitionAction, PartitionMark, Receipt,
    Refusal, RefusalCode, RowOp, ServerError, Snapshot, TableHeader, UploadEnd, WatermarkEntry, Watermarks, Welcome,
};
use headwater_protocol::row::put_row;
use headwater_protocol::server::{RequestEvent, RequestReader};
use headwater_protocol::upload::{Stored, Verdict, judge};
use headwater_protocol::wire::Reader;
use headwater_protocol::{Frame, Kind, Limits, Row, Value};

/// What the server does next instead of what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Closes the connection before it applies anything.
    BeforeUpload,
    /// Sends only so many bytes of the answer.
    CutAnswer(usize),
    /// Answers with this status and a page.
    Status(u16),
    /// Answers with this ERROR frame.
    Error(ErrorCode),
    /// Takes the token for no good any more.
    TokenEnds,
}

#[derive(Default)]
pub(super) struct Database {
    pub(super) headers: Vec<TableHeader>,
    /// By table and key: the row (`None`: deleted) and the version of its last change.
    rows: BTreeMap<(u32, Vec<u8>), (Option<Row>, u64)>,
    version: u64,
    remotes: HashMap<[u8; 16], (Stored, Receipt)>,
    pub(super) incarnation: [u8; 16],
    /// Taken from the end, one a request.
    pub(super) faults: Vec<Fault>,
    pub(super) requests: u32,
    /// Every insert that was applied, to find those that were applied twice.
    pub(super) inserted: Vec<(u32, Row)>,
    pub(super) token: String,
    /// Somebody on the way takes no request with more changes than so many, and says so by this status.
    pub(super) changes_max: Option<(u64, u16)>,
    /// Rows and bytes that DOWNLOAD announces.
    pub(super) announced: (u64, u64),
    /// The first table's rows are to be got in a chunk of so many bytes, which nobody has.
    pub(super) chunk_bytes: Option<u32>,
}

impl Database {
    /// Stores a row, or deletes it (`None`), as another user would.
    pub(super) fn set(&mut self, table: u32, key: &[Value], row: Option<Row>) {
        self.version += 1;
        let key = self.key(table, key);
        self.rows.insert((table, key), (row, self.version));
    }

    pub(super) fn row(&self, table: u32, key: &[Value]) -> Option<&Row> {
        self.rows.get(&(table, self.key(table, key)))?.0.as_ref()
    }

    /// The rows of a table, by key.
    pub(super) fn table(&self, table: u32) -> Vec<&Row> {
        self.rows.iter().filter(|((number, _), _)| *number == table).filter_map(|(_, (row, _))| row.as_ref()).collect()
    }

    fn key(&self, table: u32, key: &[Value]) -> Vec<u8> {
        let mut out = Vec::new();
        put_row(&mut out, &self.headers[table as usize].key_types(), key);
        out
    }

    fn apply(&mut self, upload: &[Frame], end: &UploadEnd) -> (Receipt, Vec<(u32, Row)>) {
        let mut receipt = Receipt { sequence: end.sequence, changes: end.changes, outcomes: Vec::new() };
        let (mut conflicted, mut ordinal, mut number) = (Vec::new(), 0, 0);
        for frame in upload {
            let payload = frame.payload(Limits::REQUEST.frame_bytes_max).expect("a payload");
            if frame.kind == Kind::Table {
                let header = TableHeader::from_payload(&payload).expect("a header");
                assert_eq!(header, self.headers[header.table as usize]);
                number = header.table;
                continue;
            }
            let types = self.headers[number as usize].types();
            let mut reader = Reader::new(&payload);
            while !reader.is_empty() {
                let change = Change::read(&mut reader, &types, usize::MAX).expect("a change");
                if let Some(outcome) = self.change(number, &change) {
                    if matches!(outcome, Outcome::Conflict(_)) {
                        conflicted.push((number, self.key_of(number, change.image())));
                    }
                    receipt.outcomes.push((ordinal, outcome));
                }
                ordinal += 1;
            }
        }
        assert_eq!(ordinal, end.changes);
        (receipt, conflicted)
    }

    fn key_of(&self, table: u32, row: &[Value]) -> Row {
        self.headers[table as usize].key.iter().map(|&place| row[place].clone()).collect()
    }

    fn change(&mut self, table: u32, change: &Change) -> Option<Outcome> {
        let key = self.key_of(table, change.image());
        let stored = self.row(table, &key).cloned();
        if change.new.as_ref().is_some_and(|row| row.contains(&Value::text("bad"))) {
            return Some(Outcome::Refused(Refusal { code: RefusalCode::Check, message: "bad".to_owned() }));
        }
        if stored == change.new {
            return None;
        }
        if stored != change.old {
            return Some(Outcome::Conflict(ConflictEnd::Consolidated));
        }
        if change.old.is_none() {
            self.inserted.push((table, change.image().to_vec()));
        }
        self.set(table, &key, change.new.clone());
        None
    }

    fn answer(&mut self, hello: &Hello, upload: Option<(&[Frame], UploadEnd)>) -> Vec<Frame> {
        let stored = self.remotes.get(&hello.remote_id).map(|(stored, _)| *stored);
        let restart = hello.incarnation != self.incarnation;
        let welcome = Welcome {
            incarnation: self.incarnation,
            restart,
            upload_sequence: stored.map_or(0, |stored| stored.sequence),
            ..Welcome::default()
        };
        let mut frames = vec![welcome.to_frame()];
        let mut conflicted = Vec::new();
        if let Some((upload, end)) = upload {
            match judge(stored, hello.upload_sequence, &end, hello.frozen.map(|frozen| frozen.cut)) {
                Verdict::Apply => {
                    let (receipt, keys) = self.apply(upload, &end);
                    conflicted = keys;
                    let cut = hello.frozen.map(|frozen| frozen.cut);
                    let stored = Stored { sequence: end.sequence, digest: end.digest, cut };
                    self.remotes.insert(hello.remote_id, (stored, receipt.clone()));
                    frames.push(receipt.to_frame());
                }
                Verdict::Replay => frames.push(self.remotes[&hello.remote_id].1.to_frame()),
                Verdict::Copy => return vec![error(ErrorCode::Copy)],
                Verdict::Behind => {
                    frames.push(error(ErrorCode::Behind));
                    return frames;
                }
            }
        }
        if hello.wants_download {
            self.download(hello, restart, &conflicted, &mut frames);
        }
        frames.push(Frame::new(Kind::End, Vec::new()));
        frames
    }

    fn download(&self, hello: &Hello, restart: bool, conflicted: &[(u32, Row)], frames: &mut Vec<Frame>) {
        let (rows, bytes) = self.announced;
        frames.push(Download { id: [9; 16], resumable_s: 0, rows, bytes }.to_frame());
        let mut entries = Vec::new();
        for header in &self.headers {
            let seen = hello.watermarks.entries.iter().find(|entry| entry.table == header.table && !restart);
            let since = seen.map(|entry| {
                let mark: [u8; 8] = hello.watermarks.marks[entry.mark as usize].as_slice().try_into().expect("a mark");
                u64::from_le_bytes(mark)
            });
            if since.is_none() {
                let mark = PartitionMark { table: header.table, action: PartitionAction::Whole, partition: Vec::new() };
                frames.push(mark.to_frame());
                let chunk_bytes = self.chunk_bytes.filter(|_| hello.takes_chunks && header.table == 0);
                frames.extend(chunk_bytes.map(|bytes| lost_chunk(bytes).to_frame()));
            }
            frames.push(header.to_frame());
            self.rows_frames(header, since, conflicted, frames);
            entries.push(WatermarkEntry { table: header.table, partition: Vec::new(), mark: 0 });
        }
        frames.push(Watermarks { marks: vec![self.version.to_le_bytes().to_vec()], entries }.to_frame());
    }

    fn rows_frames(
        &self,
        header: &TableHeader,
        since: Option<u64>,
        conflicted: &[(u32, Row)],
        frames: &mut Vec<Frame>,
    ) {
        let mut payload = Vec::new();
        for ((table, key), (row, version)) in &self.rows {
            let is_conflicted = conflicted.iter().any(|(number, row)| number == table && self.key(*table, row) == *key);
            if *table != header.table || since.is_some_and(|since| *version <= since) && !is_conflicted {
                continue;
            }
            match row {
                Some(row) => {
                    payload.push(RowOp::Upsert as u8);
                    put_row(&mut payload, &header.types(), row);
                }
                None if since.is_some() => {
                    payload.push(RowOp::Delete as u8);
                    payload.extend_from_slice(key);
                }
                None => {}
            }
            if payload.len() > 4096 {
                frames.push(Frame::packed(Kind::Rows, std::mem::take(&mut payload)));
            }
        }
        // A conflict over a row that never was here.
        for (number, row) in conflicted {
            if *number == header.table && !self.rows.contains_key(&(*number, self.key(*number, row))) {
                payload.push(RowOp::Delete as u8);
                put_row(&mut payload, &header.key_types(), row);
            }
        }
        if !payload.is_empty() {
            frames.push(Frame::packed(Kind::Rows, payload));
        }
    }
}

fn lost_chunk(bytes: u32) -> Snapshot {
    let chunks = vec![ChunkRef { id: [7; 16], bytes, digest: [0; 32] }];
    Snapshot { table: 0, partition: Vec::new(), url: String::new(), key: Key::new([0; 32]), rows: 1, chunks }
}

fn error(code: ErrorCode) -> Frame {
    ServerError { code, retry_after_ms: 1, message: "as asked".to_owned() }.to_frame()
}

/// The server; it ends with the test's process.
pub(super) struct Server {
    pub(super) url: String,
    database: Arc<Mutex<Database>>,
}

impl Server {
    pub(super) fn start(headers: Vec<TableHeader>) -> Server {
        let database = Database { headers, incarnation: [1; 16], token: "token".to_owned(), ..Database::default() };
        let database = Arc::new(Mutex::new(database));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::clone(&database);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.expect("a connection"), Arc::clone(&shared));
                thread::spawn(move || serve(stream, &shared));
            }
        });
        Server { url, database }
    }

    pub(super) fn database(&self) -> MutexGuard<'_, Database> {
        self.database.lock().expect("no panic before")
    }
}

fn serve(stream: TcpStream, database: &Mutex<Database>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let head = read_head(&mut reader)?;
        if header(&head, "expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
        }
        let body = read_body(&mut reader, &head)?;
        let first = head.lines().next()?;
        if first.starts_with("POST /v1/token ") {
            // base64 of ann:secret
            let is_ann = header(&head, "authorization") == Some("Basic YW5uOnNlY3JldA==");
            let token = database.lock().ok()?.token.clone();
            let (status, text) = if is_ann {
                ("200 OK", format!("{{\"token\":\"{token}\",\"expires_in_s\":900}}"))
            } else {
                ("401 No", r#"{"error":"unauthenticated","message":"no"}"#.to_owned())
            };
            respond(&mut stream, status, "application/json", text.as_bytes(), None)?;
            continue;
        }
        if first.contains(" /v1/upload") || first.contains(" /v1/chunk") {
            // It takes no pieces, and has none.
            respond(&mut stream, "404 No", "text/html", b"<html>", None)?;
            continue;
        }
        let mut database = database.lock().ok()?;
        database.requests += 1;
        let fault = database.faults.pop();
        let expected = format!("Bearer {}", database.token);
        if fault == Some(Fault::TokenEnds) || header(&head, "authorization") != Some(expected.as_str()) {
            respond(&mut stream, "401 No", FRAMES, &error(ErrorCode::Unauthenticated).to_bytes(), None)?;
            continue;
        }
        match fault {
            Some(Fault::BeforeUpload) => return None,
            Some(Fault::Status(status)) => {
                respond(&mut stream, &format!("{status} Page"), "text/html", b"<html>", None)?;
                continue;
            }
            Some(Fault::Error(code)) => {
                respond(&mut stream, "200 OK", FRAMES, &error(code).to_bytes(), None)?;
                continue;
            }
            _ => {}
        }
        if let Some((_, status)) = database.changes_max.filter(|(most, _)| changes(&body) > *most) {
            respond(&mut stream, &format!("{status} Page"), "text/html", b"<html>", None)?;
            continue;
        }
        let cut = match fault {
            Some(Fault::CutAnswer(bytes)) => Some(bytes),
            _ => None,
        };
        let mut answer = Vec::new();
        for frame in understand(&mut database, &body) {
            frame.write(&mut answer);
        }
        drop(database);
        respond(&mut stream, "200 OK", FRAMES, &answer, cut)?;
    }
}

const FRAMES: &str = "application/vnd.headwater.sync";

fn changes(body: &[u8]) -> u64 {
    let mut reader = RequestReader::new(Limits::REQUEST);
    reader.push(body);
    while let Ok(Some(event)) = reader.poll() {
        if let RequestEvent::UploadEnd(end) = event {
            return end.changes;
        }
    }
    0
}

fn understand(database: &mut Database, body: &[u8]) -> Vec<Frame> {
    let mut reader = RequestReader::new(Limits::REQUEST);
    reader.push(body);
    let (mut hello, mut upload, mut end) = (None, Vec::new(), None);
    while let Some(event) = reader.poll().expect("a request") {
        match event {
            RequestEvent::Hello(message) => hello = Some(message),
            RequestEvent::Frame(frame) => upload.push(frame),
            RequestEvent::UploadEnd(message) => end = Some(message),
            RequestEvent::KeyRanges(_) | RequestEvent::Ticket(_) | RequestEvent::End => {}
        }
    }
    reader.finish().expect("the request is whole");
    database.answer(&hello.expect("a hello"), end.map(|end| (upload.as_slice(), end)))
}

fn read_head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    loop {
        let start = head.len();
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
        if head[start..].trim().is_empty() {
            return Some(head);
        }
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

fn read_body(reader: &mut impl BufRead, head: &str) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    if let Some(length) = header(head, "content-length") {
        body.resize(length.parse().ok()?, 0);
        reader.read_exact(&mut body).ok()?;
        return Some(body);
    }
    if header(head, "transfer-encoding").is_none() {
        return Some(body);
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim(), 16).ok()?;
        let start = body.len();
        body.resize(start + length, 0);
        reader.read_exact(&mut body[start..]).ok()?;
        reader.read_line(&mut line).ok()?;
        if length == 0 {
            return Some(body);
        }
    }
}

/// Answers; `cut`: so much of the body, and no more.
fn respond(stream: &mut TcpStream, status: &str, kind: &str, body: &[u8], cut: Option<usize>) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let shown = cut.map_or(body, |cut| &body[..cut.min(body.len())]);
    for piece in shown.chunks(1000) {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).ok()?;
        stream.write_all(piece).ok()?;
        stream.write_all(b"\r\n").ok()?;
    }
    if shown.len() < body.len() {
        return None;
    }
    stream.write_all(b"0\r\n\r\n").ok()
}
