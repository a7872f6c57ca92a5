//! Virtual time: remotes, a network that loses, delays, repeats and damages, a server that crashes, and the events between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use headwater_protocol::client::{Config, Instruction, Reply, Session, Summary};
use headwater_protocol::message::{Download, ErrorCode, ServerError, Ticket};
use headwater_protocol::server::{PiecesReader, RequestEvent, RequestReader};
use headwater_protocol::{Frame, Kind, Limits};

use super::database::{Database, Request};
use super::random::Random;
use super::remote::File;

/// A defect planted on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    /// The server applies an upload again that it has.
    AlwaysApply,
    /// The server doesn't keep the receipt, and makes one up for a repetition.
    ForgottenReceipt,
    /// The remote applies a staged download after the next upload was cut.
    StagedAfterCut,
    /// The remote doesn't keep frozen frames, it encodes them anew for each attempt.
    Recut,
    /// The server takes watermarks of another incarnation for its own.
    IgnoredIncarnation,
    /// The remote keeps the watermark of a download before it has applied it.
    EarlyWatermark,
    /// The server skips a frame of a download that is resumed.
    RestTooLate,
    /// The server doesn't use the number up of an upload that the remote gives up.
    KeptNumber,
    /// The remote uses the number of an upload again that it has thawed.
    ReusedNumber,
    /// The server tells no remote that the number of its frozen upload is another's.
    NumberAlone,
}

/// What may go wrong beside the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twist {
    None,
    /// A remote's file is copied, and both go on.
    Copy,
    /// The database is restored from a backup.
    Restore,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A remote begins a sync.
    Begin(usize),
    /// A remote's session has waited until now, if it is still the same.
    Wake(usize, u64),
    /// The application at a remote writes.
    Write(usize),
    /// The application at the consolidated database writes.
    WriteCentral,
    ToServer(u64, Vec<u8>),
    ToServerEnd(u64),
    /// The server works on a request that it has received whole.
    Work(u64),
    /// The server is asked for the rest of a download, from an offset.
    Rest(u64, [u8; 16], usize),
    ToRemote(u64, Vec<u8>),
    ToRemoteEnd(u64),
    CrashServer,
    Backup,
    Restore,
    CopyFile,
}

struct Remote {
    file: File,
    session: Option<Session>,
    connection: u64,
    /// When the session began.
    began: Duration,
    wakes: u64,
}

struct Connection {
    remote: Option<usize>,
    reader: RequestReader,
    received: Vec<RequestEvent>,
    broken: bool,
}

/// An upload that comes in pieces.
struct Held {
    remote_id: [u8; 16],
    digest: [u8; 32],
    bytes: Vec<u8>,
}

pub(crate) struct World {
    random: Random,
    bug: Bug,
    twist: Twist,
    faults: bool,
    now: Duration,
    order: u64,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    pub(crate) database: Database,
    backup: Option<Database>,
    /// Uploads that a restore has undone.
    pub(crate) undone: Vec<super::database::UploadId>,
    remotes: Vec<Remote>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// Downloads by ID, and when they were read.
    kept: BTreeMap<[u8; 16], (Vec<Frame>, Duration)>,
    /// Uploads that come in pieces.
    tickets: BTreeMap<[u8; 16], Held>,
    /// Downloads whose rest was taken.
    pub(crate) resumed: usize,
    next_op: i64,
    pub(crate) summaries: Vec<Summary>,
}

const REMOTES: usize = 2;
const KEYS: u64 = 8;
const RESUMABLE_S: u32 = 20;

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

impl World {
    pub(crate) fn new(seed: u64, bug: Bug, twist: Twist) -> World {
        let file = |number: usize| File::new([number as u8 + 1; 16]);
        let remote =
            |number| Remote { file: file(number), session: None, connection: 0, began: Duration::ZERO, wakes: 0 };
        World {
            random: Random::new(seed),
            bug,
            twist,
            faults: true,
            now: Duration::ZERO,
            order: 0,
            events: BinaryHeap::new(),
            database: Database::new(),
            backup: None,
            undone: Vec::new(),
            remotes: (0..REMOTES).map(remote).collect(),
            connections: BTreeMap::new(),
            next_connection: 1,
            kept: BTreeMap::new(),
            tickets: BTreeMap::new(),
            resumed: 0,
            next_op: 1,
            summaries: Vec::new(),
        }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        self.remotes.iter().map(|remote| &remote.file)
    }

    /// Some minutes of writes, syncs and faults, then syncs without either until everything must agree.
    pub(crate) fn run(&mut self) {
        for _ in 0..40 {
            let (at, remote) = (self.random.below(200_000), self.random.below(REMOTES as u64) as usize);
            let event = if self.random.once_in(4) { Event::WriteCentral } else { Event::Write(remote) };
            self.after(ms(at), event);
        }
        for _ in 0..8 {
            for remote in 0..REMOTES {
                let at = self.random.below(200_000);
                self.after(ms(at), Event::Begin(remote));
            }
        }
        for _ in 0..2 {
            let at = self.random.below(200_000);
            self.after(ms(at), Event::CrashServer);
        }
        match self.twist {
            Twist::None => {}
            Twist::Copy => self.after(ms(100_000), Event::CopyFile),
            Twist::Restore => {
                self.after(ms(60_000), Event::Backup);
                self.after(ms(120_000), Event::Restore);
            }
        }
        self.drain();
        self.faults = false;
        for _ in 0..3 {
            for remote in 0..self.remotes.len() {
                self.after(ms(1), Event::Begin(remote));
                let before = self.summaries.len();
                self.drain();
                assert!(self.summaries.len() > before, "without faults a sync comes to its end");
            }
        }
    }

    fn drain(&mut self) {
        let mut steps = 0;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            steps += 1;
            assert!(steps < 100_000, "the world comes to rest");
            self.now = at;
            self.happen(event);
        }
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + delay, self.order, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin(remote) => self.begin(remote),
            Event::Wake(remote, wake) => {
                if self.remotes[remote].wakes == wake {
                    self.drive(remote);
                }
            }
            Event::Write(remote) => {
                let (key, image) = self.change();
                self.remotes[remote].file.write(key, image);
            }
            Event::WriteCentral => {
                let (key, image) = self.change();
                self.database.write(key, image);
            }
            Event::ToServer(id, bytes) => self.receive(id, &bytes),
            Event::ToServerEnd(id) => self.received(id),
            Event::Work(id) => self.work(id),
            Event::Rest(id, download, offset) => self.rest(id, download, offset),
            Event::ToRemote(id, bytes) => self.answer(id, |session, now| session.bytes(now, &bytes)),
            Event::ToRemoteEnd(id) => self.answer(id, Session::closed),
            Event::CrashServer => self.crash_server(),
            Event::Backup => self.backup = Some(self.database.clone()),
            Event::Restore => self.restore(),
            Event::CopyFile => {
                let file = self.remotes[0].file.clone();
                self.remotes.push(Remote { file, session: None, connection: 0, began: self.now, wakes: 0 });
                self.after(ms(1), Event::Begin(REMOTES));
                self.after(ms(50_000), Event::Begin(REMOTES));
                self.after(ms(10_000), Event::Write(REMOTES));
            }
        }
    }

    fn change(&mut self) -> (i64, Option<i64>) {
        self.next_op += 1;
        let key = self.random.below(KEYS) as i64;
        (key, if self.random.once_in(4) { None } else { Some(self.next_op) })
    }

    // The remote's shell.

    fn begin(&mut self, number: usize) {
        let seed = self.random.next();
        let remote = &mut self.remotes[number];
        if remote.session.is_none() {
            let config = Config { elapsed_max: Duration::from_hours(1), ..Config::default() };
            remote.session = Some(Session::new(remote.file.start(), config, seed));
            remote.began = self.now;
            self.drive(number);
        }
    }

    /// Carries out instructions until the session waits.
    fn drive(&mut self, number: usize) {
        loop {
            let now = self.elapsed(number);
            let Some(session) = &mut self.remotes[number].session else { return };
            let instruction = session.poll(now);
            match instruction {
                Instruction::Read { until } | Instruction::WaitUntil(until) => {
                    if matches!(instruction, Instruction::WaitUntil(_)) {
                        self.remotes[number].connection = 0;
                    }
                    self.remotes[number].wakes += 1;
                    let wake = Event::Wake(number, self.remotes[number].wakes);
                    return self.after(until.saturating_sub(now), wake);
                }
                Instruction::Done(summary) => {
                    self.remotes[number].session = None;
                    self.check_summary(&summary);
                    return self.summaries.push(summary);
                }
                Instruction::Failed(failure) => {
                    self.remotes[number].session = None;
                    assert!(self.faults, "failed without faults: {failure:?}");
                    return;
                }
                Instruction::Request { has_upload, ticket, wants_download, gives_up, .. } => {
                    if self.crashes(number) {
                        return;
                    }
                    self.request(number, has_upload, ticket, (wants_download, gives_up));
                }
                Instruction::Ticket | Instruction::Piece { .. } => {
                    if self.crashes(number) {
                        return;
                    }
                    self.send_piece(number, &instruction);
                }
                Instruction::Resume => {
                    if self.crashes(number) {
                        return;
                    }
                    self.ask_rest(number);
                }
                instruction => {
                    if self.crashes(number) {
                        return;
                    }
                    let (random, bug) = (&mut self.random, self.bug);
                    let reply = self.remotes[number].file.carry_out(&instruction, random, bug);
                    if self.crashes(number) {
                        return;
                    }
                    if let Some(session) = &mut self.remotes[number].session {
                        session.done(now, reply);
                    }
                }
            }
        }
    }

    fn elapsed(&self, number: usize) -> Duration {
        self.now.saturating_sub(self.remotes[number].began)
    }

    fn check_summary(&self, summary: &Summary) {
        // A length that was damaged on the way is answered as too large: then comes a greeting, and the upload cut smaller.
        // Each attempt may ask for a ticket and send some pieces first, and what brings one further does not count.
        let most = 10 * (Config::default().attempts_max + 6);
        assert!(summary.requests <= most, "requests {}, expected at most {most}", summary.requests);
        assert!(!summary.new_remote_id || self.twist == Twist::Copy, "a new remote ID without a copy");
        assert!(!summary.restarted || self.twist == Twist::Restore, "a restart without a restore");
    }

    /// Now and then a remote loses its power.
    fn crashes(&mut self, number: usize) -> bool {
        let crashes = self.faults && self.random.once_in(60);
        if crashes {
            self.remotes[number].session = None;
            self.remotes[number].connection = 0;
            let delay = self.random.below(5_000);
            self.after(ms(delay), Event::Begin(number));
        }
        crashes
    }

    // The network.

    /// A ticket, or a piece, at once: what is sent may be lost, and so may what is answered.
    fn send_piece(&mut self, number: usize, instruction: &Instruction) {
        let now = self.elapsed(number);
        let (remote_id, (digest, bytes)) = (self.remotes[number].file.remote_id, self.remotes[number].file.pieces());
        let is_lost = self.faults && self.random.once_in(6);
        let is_answer_lost = self.faults && self.random.once_in(6);
        let cut = self.random.below(200) as usize;
        let reply = match *instruction {
            _ if is_lost => None,
            Instruction::Piece { offset, .. } if offset == bytes.len() as u64 => {
                Some(Reply::Piece { offset, is_all: true })
            }
            Instruction::Piece { ticket, offset, bytes_max } => match self.tickets.get_mut(&ticket) {
                None => return self.refuse_piece(number),
                Some(held) => {
                    let end = bytes.len().min(offset as usize + bytes_max as usize);
                    if held.bytes.len() == offset as usize {
                        let came = if is_answer_lost { cut.min(end - offset as usize) } else { end - offset as usize };
                        held.bytes.extend_from_slice(&bytes[offset as usize..offset as usize + came]);
                    }
                    let has = held.bytes.len();
                    Some(Reply::Piece { offset: has as u64, is_all: has == bytes.len() })
                }
            },
            _ => {
                let known = self.tickets.iter().find(|(_, held)| (held.remote_id, held.digest) == (remote_id, digest));
                let (ticket, offset) = known.map_or(([0; 16], 0), |(ticket, held)| (*ticket, held.bytes.len() as u64));
                let ticket = if known.is_some() { ticket } else { self.new_ticket(remote_id, digest) };
                Some(Reply::Ticket { ticket, offset, piece_bytes: 100 })
            }
        };
        let Some(session) = &mut self.remotes[number].session else { return };
        match reply.filter(|_| !is_answer_lost) {
            Some(reply) => session.done(now, reply),
            None => session.io_error(now, "no answer"),
        }
    }

    fn new_ticket(&mut self, remote_id: [u8; 16], digest: [u8; 32]) -> [u8; 16] {
        let mut ticket = [0; 16];
        ticket[..8].copy_from_slice(&self.random.next().to_le_bytes());
        self.tickets.insert(ticket, Held { remote_id, digest, bytes: Vec::new() });
        ticket
    }

    fn refuse_piece(&mut self, number: usize) {
        let now = self.elapsed(number);
        if let Some(session) = &mut self.remotes[number].session {
            let message = String::new();
            session.refused(now, ServerError { code: ErrorCode::TicketUnknown, retry_after_ms: 0, message });
        }
    }

    fn request(&mut self, number: usize, has_upload: bool, ticket: Option<Ticket>, asks: (bool, bool)) {
        let now = self.elapsed(number);
        let (wants_download, gives_up) = asks;
        let mut bytes = self.remotes[number].file.request(has_upload, ticket, wants_download, gives_up, self.bug);
        let Some(session) = &mut self.remotes[number].session else { return };
        if self.faults && self.random.once_in(10) {
            return session.io_error(now, "no route to host");
        }
        session.done(now, headwater_protocol::client::Reply::Done);
        if self.faults && self.random.once_in(12) && self.twist != Twist::Restore {
            // Something on the way sends the request a second time, later; its answer goes nowhere. (Not across a restore: a
            // remote's very first requests name no incarnation, and one repeated then costs it its remote ID, though no change.)
            let delay = self.random.below(60_000);
            self.send(None, &bytes, ms(delay));
        }
        self.spoil(&mut bytes);
        let id = self.send(Some(number), &bytes, Duration::ZERO);
        self.remotes[number].connection = id;
    }

    fn ask_rest(&mut self, number: usize) {
        let now = self.elapsed(number);
        let (download, offset) = self.remotes[number].file.rest().expect("a download that is kept");
        if let Some(session) = &mut self.remotes[number].session {
            session.done(now, Reply::Done);
        }
        let id = self.send(Some(number), &[], Duration::ZERO);
        self.remotes[number].connection = id;
        let delay = self.random.below(200);
        self.after(ms(delay), Event::Rest(id, download, offset));
    }

    fn send(&mut self, remote: Option<usize>, bytes: &[u8], delay: Duration) -> u64 {
        let id = self.next_connection;
        self.next_connection += 1;
        let connection =
            Connection { remote, reader: RequestReader::new(Limits::REQUEST), received: Vec::new(), broken: false };
        self.connections.insert(id, connection);
        let mut at = delay;
        for piece in self.pieces(bytes) {
            at += ms(self.random.below(200));
            self.after(at, Event::ToServer(id, piece));
        }
        if !bytes.is_empty() {
            self.after(at, Event::ToServerEnd(id));
        }
        id
    }

    fn pieces(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let size = 1 + self.random.below(300) as usize;
        bytes.chunks(size).map(<[u8]>::to_vec).collect()
    }

    /// Cuts or damages what is on its way.
    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        if self.faults && self.random.once_in(6) {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes.truncate(at);
        } else if self.faults && self.random.once_in(20) {
            let bit = self.random.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn answer(&mut self, id: u64, tell: impl FnOnce(&mut Session, Duration)) {
        let Some(number) = self.remotes.iter().position(|remote| remote.connection == id) else { return };
        let now = self.elapsed(number);
        if let Some(session) = &mut self.remotes[number].session {
            tell(session, now);
            self.drive(number);
        }
    }

    // The server.

    fn receive(&mut self, id: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.broken {
            return;
        }
        connection.reader.push(bytes);
        let error = loop {
            match connection.reader.poll() {
                Ok(Some(event)) => connection.received.push(event),
                Ok(None) => return,
                Err(error) => break error,
            }
        };
        connection.broken = true;
        self.reply(id, &[error.to_server_error().to_frame()]);
    }

    fn received(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id).filter(|connection| !connection.broken) else { return };
        if connection.reader.finish().is_err() {
            return self.reply(id, &[]);
        }
        if self.faults && self.random.once_in(8) {
            let retry_after_ms = self.random.below(3_000) as u32;
            let error = ServerError { code: ErrorCode::Overloaded, retry_after_ms, message: String::new() };
            return self.reply(id, &[error.to_frame()]);
        }
        let delay = self.random.below(12_000);
        for beat in 1..=delay / 5_000 {
            let heartbeat = Frame::new(Kind::Heartbeat, Vec::new()).to_bytes();
            self.after(ms(beat * 5_000), Event::ToRemote(id, heartbeat));
        }
        self.after(ms(delay), Event::Work(id));
    }

    /// What came under a ticket, if it is known and all of it came.
    fn frames_of(&self, ticket: &Ticket) -> Option<Vec<Frame>> {
        let held = self.tickets.get(&ticket.ticket).filter(|held| held.bytes.len() as u64 == ticket.bytes)?;
        let mut reader = PiecesReader::new(Limits::REQUEST);
        reader.push(&held.bytes);
        let frames = std::iter::from_fn(|| reader.poll().expect("frames")).collect();
        assert_eq!(reader.finish().expect("whole"), held.digest, "what came is what was announced");
        Some(frames)
    }

    fn work(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut hello = None;
        let (mut frames, mut end) = (Vec::new(), None);
        for event in std::mem::take(&mut connection.received) {
            match event {
                RequestEvent::Hello(first) => hello = Some(*first),
                RequestEvent::Frame(frame) => frames.push(frame),
                RequestEvent::UploadEnd(upload_end) => end = Some(upload_end),
                RequestEvent::Ticket(ticket) => match self.frames_of(&ticket) {
                    Some(sent) => frames = sent,
                    None => {
                        let (code, message) = (ErrorCode::TicketUnknown, String::new());
                        return self.reply(id, &[ServerError { code, retry_after_ms: 0, message }.to_frame()]);
                    }
                },
                RequestEvent::KeyRanges(_) | RequestEvent::End => {}
            }
        }
        let request = Request { hello: hello.expect("a whole request has a HELLO"), frames, end };
        if self.faults && self.random.once_in(30) {
            return self.crash_server(); // before its commit
        }
        let mut answer = self.database.work(&request, self.bug);
        self.keep(&mut answer);
        if self.faults && self.random.once_in(30) {
            return self.crash_server(); // after it
        }
        self.reply(id, &answer);
    }

    /// Keeps a download for as long as it says.
    fn keep(&mut self, answer: &mut [Frame]) {
        let Some(place) = answer.iter().position(|frame| frame.kind == Kind::Download) else { return };
        if self.random.once_in(4) {
            return;
        }
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.random.next().to_le_bytes());
        answer[place] = Download { id, resumable_s: RESUMABLE_S, rows: 0, bytes: 0 }.to_frame();
        self.kept.insert(id, (answer[place..].to_vec(), self.now));
    }

    fn rest(&mut self, id: u64, download: [u8; 16], offset: usize) {
        let limit = Duration::from_secs(u64::from(RESUMABLE_S));
        let kept = self.kept.get(&download).filter(|(_, since)| self.now < *since + limit);
        let Some((frames, _)) = kept else {
            let error = ServerError { code: ErrorCode::Gone, retry_after_ms: 0, message: String::new() };
            return self.reply(id, &[error.to_frame()]);
        };
        let mut place = 0;
        let rest = frames.iter().filter(|frame| {
            place += frame.wire_bytes();
            place > offset
        });
        let skipped = usize::from(self.bug == Bug::RestTooLate);
        let rest: Vec<Frame> = rest.skip(skipped).cloned().collect();
        self.resumed += 1;
        self.reply(id, &rest);
    }

    fn reply(&mut self, id: u64, frames: &[Frame]) {
        let connection = self.connections.remove(&id);
        if connection.is_none_or(|connection| connection.remote.is_none()) {
            return;
        }
        let mut bytes: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
        if !bytes.is_empty() {
            self.spoil(&mut bytes);
        }
        let mut at = Duration::ZERO;
        for piece in self.pieces(&bytes) {
            at += ms(self.random.below(300));
            self.after(at, Event::ToRemote(id, piece));
        }
        // Now and then nothing tells the remote that the connection is gone.
        if !self.faults || !self.random.once_in(8) {
            self.after(at, Event::ToRemoteEnd(id));
        }
    }

    fn crash_server(&mut self) {
        self.kept.clear();
        self.tickets.clear();
        self.close_all();
    }

    fn close_all(&mut self) {
        for id in std::mem::take(&mut self.connections).into_keys() {
            self.after(ms(1), Event::ToRemoteEnd(id));
        }
    }

    fn restore(&mut self) {
        let backup = self.backup.take().expect("a backup is made before it is restored");
        let lost = std::mem::replace(&mut self.database, backup);
        self.database.incarnation = lost.incarnation + 1;
        self.undone = lost.ledger.into_keys().filter(|upload| !self.database.ledger.contains_key(upload)).collect();
        // The servers run on, with the downloads that they keep.
        self.close_all();
    }
}
