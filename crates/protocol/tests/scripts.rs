//! Golden scripts: what a server answers on the left, what the remote's session does about it below, as a story with its times.
//!
//! A file in `tests/scripts/` begins with what happens:
//!
//! ```text
//! sequence 4 | frozen 5 | staged part | pending 2   what is durable at the remote; pending: how many cuts find something
//! large                                            uploads are too large to go within a request
//! part                                             uploads are parts of what is pending
//! answer WORD...       one request's answer, in order; the n-th request gets the n-th answer
//! crash after WORD     once, after this instruction has been carried out: a new session begins from what is durable
//! ```
//!
//! and ends, after a line `---`, with the trace. `HEADWATER_UPDATE=1 cargo test -p headwater-protocol --test scripts` writes traces anew.
//! Words of an answer: frames by their names (`welcome`, `welcome:restart`, `welcome:whole`, `welcome:has=3`,
//! `welcome:applied`, `welcome:given_up`, `welcome:another`, `download:kept`, `receipt`, `receipt:7`, `error:CODE`,
//! `error:CODE:MS`, ...), `wait:SECONDS`, `heartbeats` (for ever), `closed`, `silence`, `garbage`; or alone `unreachable`, `status:503:7`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use headwater_protocol::chunk::Key;
use headwater_protocol::client::{Cause, Config, Failure, Instruction, Reply, Session, Staged, Start, status_error};
use headwater_protocol::message::{
    ChunkRef, ConflictEnd, Download, ErrorCode, FrozenFate, Outcome, PartitionAction, PartitionMark, Receipt, Refusal,
    RefusalCode, ServerError, Snapshot, TableHeader, Watermarks, Welcome,
};
use headwater_protocol::{Frame, Kind, Type};

#[test]
fn every_script_gives_its_trace() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("folder of scripts").map(|e| e.expect("entry").path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "scripts are there");
    let update = std::env::var_os("HEADWATER_UPDATE").is_some();
    let mut wrong = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("script");
        let (script, expected) = text.split_once("---\n").unwrap_or((&text, ""));
        let actual = Story::tell(script);
        if update {
            std::fs::write(&path, format!("{script}---\n{actual}")).expect("script written");
        } else if actual != expected {
            wrong.push(format!("{}\n--- actual\n{actual}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "traces differ:\n{}", wrong.join("\n"));
}

/// How often the server says that it works.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A sync with a frozen upload, of which nothing comes but heartbeats from the greeting on.
fn with_heartbeats(config: Config) -> (Duration, Instruction) {
    let start = Start { upload_sequence: 0, frozen: Some(1), is_large: false, is_part: false, staged: Staged::Nothing };
    let mut session = Session::new(start, config, 1);
    let mut now = Duration::ZERO;
    let welcome = Welcome { incarnation: [1; 16], note: [1; 16], ..Welcome::default() };
    let mut coming = vec![welcome.to_frame().to_bytes()];
    loop {
        match session.poll(now) {
            Instruction::Read { .. } => {
                let heartbeat = || Frame::new(Kind::Heartbeat, Vec::new()).to_bytes();
                let bytes = coming.pop().unwrap_or_else(heartbeat);
                now += HEARTBEAT;
                session.bytes(now, &bytes);
            }
            Instruction::WaitUntil(until) => now = until,
            end @ (Instruction::Done(_) | Instruction::Failed(_)) => return (now, end),
            _ => session.done(now, Reply::Done),
        }
    }
}

#[test]
fn heartbeats_do_not_hold_a_sync_beyond_its_time() {
    let limit = Duration::from_mins(1);
    let (now, end) = with_heartbeats(Config { elapsed_max: limit, answer_max: limit, ..Config::default() });
    let Instruction::Failed(failure) = end else { panic!("{end:?}") };
    assert!(now <= limit + HEARTBEAT, "{now:?}");
    assert_eq!(failure, Failure::GaveUp { failures: 1, cause: Cause::Unanswered });
    assert!(failure.is_retryable());
    // Where no time was named, a server that works is waited for.
    let (now, end) = with_heartbeats(Config { elapsed_max: limit, ..Config::default() });
    assert!(matches!(end, Instruction::Failed(Failure::GaveUp { cause: Cause::Silent, .. })), "{end:?}");
    assert!(now > 5 * limit, "{now:?}");
}

struct Story {
    now: Duration,
    start: Start,
    /// The last number of an upload that was thawed.
    used: u64,
    /// How many cuts find something pending.
    pending: u32,
    answers: VecDeque<VecDeque<String>>,
    answer: VecDeque<String>,
    crash_after: Option<String>,
    unreadable: bool,
    /// Chunks are named that are not here.
    lacking: bool,
    /// How often the upload is cut smaller until its change is alone.
    alone: u32,
    trace: String,
}

impl Story {
    fn tell(script: &str) -> String {
        let mut story = Story::read(script);
        for life in 0.. {
            assert!(life < 5, "a script comes to its end");
            let mut session = Session::new(story.start, Config { attempts_max: 4, ..Config::default() }, 1);
            while let Step::Next = story.step(&mut session) {}
            if story.crash_after.is_some() || !story.trace.ends_with("crash\n") {
                break;
            }
        }
        story.trace
    }

    fn read(script: &str) -> Story {
        let mut story = Story {
            now: Duration::ZERO,
            start: Start { upload_sequence: 0, frozen: None, is_large: false, is_part: false, staged: Staged::Nothing },
            used: 0,
            pending: 0,
            answers: VecDeque::new(),
            answer: VecDeque::new(),
            crash_after: None,
            unreadable: false,
            lacking: false,
            alone: 2,
            trace: String::new(),
        };
        for line in script.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            if let Some(words) = line.strip_prefix("answer ") {
                story.answers.push_back(words.split_whitespace().map(str::to_owned).collect());
                continue;
            }
            if let Some(word) = line.strip_prefix("crash after ") {
                story.crash_after = Some(word.to_owned());
                continue;
            }
            for setting in line.split('|') {
                match setting.split_whitespace().collect::<Vec<_>>()[..] {
                    ["sequence", number] => story.start.upload_sequence = number.parse().expect("sequence"),
                    ["frozen", number] => story.start.frozen = Some(number.parse().expect("frozen")),
                    ["staged", "part"] => story.start.staged = Staged::Part,
                    ["staged", "resumable"] => story.start.staged = Staged::Resumable,
                    ["staged", "chunks"] => story.start.staged = Staged::Chunks,
                    ["staged", "whole"] => story.start.staged = Staged::Whole,
                    ["staged", "unreadable"] => {
                        story.start.staged = Staged::Whole;
                        story.unreadable = true;
                    }
                    ["large"] => story.start.is_large = true,
                    ["part"] => story.start.is_part = true,
                    ["pending", count] => story.pending = count.parse().expect("pending"),
                    _ => panic!("unknown setting {setting}"),
                }
            }
        }
        story
    }

    fn step(&mut self, session: &mut Session) -> Step {
        let instruction = session.poll(self.now);
        let (name, told) = describe(&instruction);
        if !matches!(instruction, Instruction::Read { .. }) {
            self.say(&told);
        }
        let reply = match instruction {
            Instruction::Read { until } => {
                self.feed(session, until);
                return Step::Next;
            }
            Instruction::WaitUntil(until) => {
                self.now = until;
                return Step::Next;
            }
            Instruction::Done(_) | Instruction::Failed(_) => return Step::Over,
            Instruction::Request { .. } | Instruction::Resume => return self.request(session),
            Instruction::Ticket | Instruction::Piece { .. } => return self.upload(session),
            Instruction::Chunk => return self.chunk(session),
            Instruction::ApplyStaged if std::mem::take(&mut self.unreadable) => Reply::Unreadable,
            instruction => self.carry_out(&instruction),
        };
        if self.crash_after.as_deref() == Some(name) {
            self.crash_after = None;
            self.say("crash");
            return Step::Over;
        }
        session.done(self.now, reply);
        Step::Next
    }

    /// What the shell would do durably.
    fn carry_out(&mut self, instruction: &Instruction) -> Reply {
        match instruction {
            Instruction::Cut => {
                if self.pending > 0 {
                    self.pending -= 1;
                    self.start.frozen = Some(self.start.upload_sequence.max(self.used) + 1);
                }
                let is_large = self.start.is_large;
                return match self.start.frozen {
                    Some(number) if self.start.is_part => Reply::CutPart { number, is_large },
                    Some(frozen) if self.start.is_large => Reply::CutLarge(frozen),
                    frozen => Reply::Cut(frozen),
                };
            }
            Instruction::ApplyStaged | Instruction::DropStaged => self.start.staged = Staged::Nothing,
            Instruction::Stage(frame) if frame.kind == Kind::Welcome => self.start.staged = Staged::Part,
            Instruction::Stage(frame) if frame.kind == Kind::Download => {
                let payload = frame.payload(100).expect("a payload");
                if Download::from_payload(&payload).expect("a download").resumable_s > 0 {
                    self.start.staged = Staged::Resumable;
                }
            }
            Instruction::Stage(frame) if frame.kind == Kind::Snapshot => self.lacking = true,
            Instruction::StageComplete if std::mem::take(&mut self.lacking) => {
                self.start.staged = Staged::Chunks;
                return Reply::Lacking;
            }
            Instruction::StageComplete => self.start.staged = Staged::Whole,
            Instruction::ApplyReceipt(receipt) => {
                self.start.upload_sequence = receipt.sequence;
                self.start.frozen = None;
            }
            Instruction::Rewind { to } => {
                self.used = self.used.max(self.start.upload_sequence);
                self.thaw(false);
                self.start.upload_sequence = *to;
            }
            Instruction::Thaw { is_given_up, .. } => self.thaw(*is_given_up),
            Instruction::CutSmaller { is_given_up, .. } => {
                self.thaw(*is_given_up);
                self.alone -= 1;
                if self.alone == 0 {
                    self.pending -= 1;
                    return Reply::SetAside;
                }
            }
            Instruction::TakeForApplied => {
                self.start.upload_sequence = self.start.frozen.take().expect("an upload is frozen");
            }
            Instruction::NewRemoteId => (self.start.upload_sequence, self.used) = (0, 0),
            _ => {}
        }
        Reply::Done
    }

    fn thaw(&mut self, is_given_up: bool) {
        if let Some(number) = self.start.frozen.take() {
            self.pending += 1;
            self.used = self.used.max(number);
            if is_given_up {
                self.start.upload_sequence = number;
            }
        }
    }

    /// The answer to a request for a ticket or to a piece: `ticket:OFFSET`, `has:OFFSET`, `all:OFFSET`, `refused:CODE`, or as for a sync.
    fn upload(&mut self, session: &mut Session) -> Step {
        let first = self.answers.front().and_then(|answer| answer.front()).cloned().unwrap_or_default();
        let words: Vec<&str> = first.split(':').collect();
        let number = |word: &str| word.parse().expect("bytes");
        let reply = match words[..] {
            ["ticket", offset] => Reply::Ticket { ticket: [4; 16], offset: number(offset), piece_bytes: 1_000_000 },
            ["has", offset] => Reply::Piece { offset: number(offset), is_all: false },
            ["all", offset] => Reply::Piece { offset: number(offset), is_all: true },
            ["refused", name] => {
                self.answers.pop_front();
                let code = *ErrorCode::ALL.iter().find(|code| code.name() == name).expect("an error code");
                session.refused(self.now, ServerError { code, retry_after_ms: 0, message: "so it is".into() });
                return Step::Next;
            }
            _ => return self.request(session),
        };
        self.say(&format!("    <- {}", words.join(" ")));
        self.answers.pop_front();
        session.done(self.now, reply);
        Step::Next
    }

    /// The answer to a request for a chunk: `chunk`, `chunk:last`, `damaged`, or as for a sync.
    fn chunk(&mut self, session: &mut Session) -> Step {
        let first = self.answers.front().and_then(|answer| answer.front()).cloned().unwrap_or_default();
        let reply = match first.as_str() {
            "chunk" => Reply::Chunk { bytes: 1_000, is_all: false },
            "chunk:last" => Reply::Chunk { bytes: 1_000, is_all: true },
            "damaged" => Reply::Damaged,
            _ => return self.request(session),
        };
        self.say(&format!("    <- {}", first.replace(':', " ")));
        self.answers.pop_front();
        if matches!(reply, Reply::Chunk { is_all: true, .. }) {
            self.start.staged = Staged::Whole;
        }
        if self.crash_after.as_deref() == Some("chunk") {
            self.crash_after = None;
            self.say("crash");
            return Step::Over;
        }
        session.done(self.now, reply);
        Step::Next
    }

    fn request(&mut self, session: &mut Session) -> Step {
        self.answer = self.answers.pop_front().expect("the script has an answer for each request");
        let first = self.answer.front().cloned().unwrap_or_default();
        let mut words = first.split(':');
        match words.next() {
            Some("unreachable") => session.io_error(self.now, "connection refused"),
            Some("status") => {
                let mut number = || words.next().and_then(|w| w.parse().ok());
                session.refused(self.now, status_error(number().expect("status") as u16, number()));
            }
            _ => session.done(self.now, Reply::Done),
        }
        Step::Next
    }

    /// Gives the session the next word of the answer.
    fn feed(&mut self, session: &mut Session, until: Duration) {
        let word = self.answer.pop_front().unwrap_or_else(|| "closed".to_owned());
        let parts: Vec<&str> = word.split(':').collect();
        let told = format!("    <- {}", parts.join(" "));
        if word != "heartbeats" || !self.trace.ends_with(&format!("{told}\n")) {
            self.say(&told);
        }
        match parts[..] {
            ["closed"] => session.closed(self.now),
            ["silence"] => self.now = until,
            ["heartbeats"] => {
                self.answer.push_front(word);
                self.now += Duration::from_secs(5);
                session.bytes(self.now, &Frame::new(Kind::Heartbeat, Vec::new()).to_bytes());
            }
            ["garbage"] => session.bytes(self.now, b"<html><body>Welcome to the hotel</body></html>"),
            ["wait", seconds] => self.now += Duration::from_secs(seconds.parse().expect("seconds")),
            _ => session.bytes(self.now, &self.frame(&parts).to_bytes()),
        }
    }

    fn frame(&self, parts: &[&str]) -> Frame {
        let mut welcome = Welcome {
            incarnation: [1; 16],
            note: [2; 16],
            upload_sequence: self.start.upload_sequence,
            ..Welcome::default()
        };
        let table = TableHeader { table: 0, name: "t".into(), columns: vec![("id".into(), Type::Int)], key: vec![0] };
        let mark = PartitionMark { table: 0, action: PartitionAction::Whole, partition: Vec::new() };
        match *parts {
            ["heartbeat"] => Frame::new(Kind::Heartbeat, Vec::new()),
            ["welcome"] => welcome.to_frame(),
            ["welcome", ref rest @ ..] => {
                for word in rest {
                    welcome.restart |= *word == "restart";
                    welcome.whole |= *word == "whole";
                    match *word {
                        "applied" => welcome.frozen = FrozenFate::Applied,
                        "given_up" => welcome.frozen = FrozenFate::GivenUp,
                        "another" => welcome.frozen = FrozenFate::Another,
                        _ => {}
                    }
                    if let Some(has) = word.strip_prefix("has=") {
                        welcome.upload_sequence = has.parse().expect("has");
                    }
                }
                welcome.to_frame()
            }
            ["receipt"] => receipt(self.start.frozen.expect("an upload is frozen")).to_frame(),
            ["receipt", sequence] => receipt(sequence.parse().expect("sequence")).to_frame(),
            ["download"] => Download { id: [3; 16], resumable_s: 0, rows: 0, bytes: 0 }.to_frame(),
            ["download", "kept"] => Download { id: [3; 16], resumable_s: 120, rows: 0, bytes: 0 }.to_frame(),
            ["table"] => table.to_frame(),
            ["snapshot"] => snapshot().to_frame(),
            ["partition"] => mark.to_frame(),
            ["rows"] => Frame::new(Kind::Rows, vec![1, 1, 2]),
            ["watermarks"] => Watermarks::default().to_frame(),
            ["end"] => Frame::new(Kind::End, Vec::new()),
            ["error", name] => error(name, 0),
            ["error", name, ms] => error(name, ms.parse().expect("milliseconds")),
            _ => panic!("unknown word {}", parts.join(":")),
        }
    }

    fn say(&mut self, what: &str) {
        writeln!(self.trace, "{:>8.3}  {what}", self.now.as_secs_f64()).expect("a string takes all");
    }
}

enum Step {
    Next,
    Over,
}

fn receipt(sequence: u64) -> Receipt {
    let refusal = Refusal { code: RefusalCode::Unique, message: "t_name_key".into() };
    let outcomes = vec![(1, Outcome::Conflict(ConflictEnd::Remote)), (2, Outcome::Refused(refusal))];
    Receipt { sequence, changes: 3, outcomes }
}

fn snapshot() -> Snapshot {
    let chunk = ChunkRef { id: [5; 16], bytes: 1_000, digest: [6; 32] };
    let (partition, url, key) = (Vec::new(), String::new(), Key::new([7; 32]));
    Snapshot { table: 0, partition, url, key, rows: 10, chunks: vec![chunk, chunk] }
}

fn error(name: &str, retry_after_ms: u32) -> Frame {
    let code = *ErrorCode::ALL.iter().find(|code| code.name() == name).expect("an error code");
    ServerError { code, retry_after_ms, message: "so it is".into() }.to_frame()
}

fn acknowledging(is_given_up: bool) -> &'static str {
    if is_given_up { ", its number is used up" } else { "" }
}

/// The instruction's word, and how the trace tells it.
fn describe(instruction: &Instruction) -> (&'static str, String) {
    let plain = |word: &'static str| (word, word.replace('-', " "));
    match instruction {
        Instruction::ApplyStaged => plain("apply-staged"),
        Instruction::DropStaged => plain("drop-staged"),
        Instruction::Cut => plain("cut"),
        Instruction::Ticket => plain("ticket"),
        Instruction::Piece { offset, bytes_max, .. } => ("piece", format!("piece from {offset}, up to {bytes_max}")),
        Instruction::Request { has_upload, ticket, wants_download, takes_chunks, gives_up } => {
            let upload = if ticket.is_some() { " ticket" } else { " upload" };
            let words = [(has_upload, upload), (wants_download, " download")];
            let words: String = words.into_iter().filter(|(on, _)| **on).map(|(_, word)| word).collect();
            let without = if *takes_chunks { "" } else { ", without chunks" };
            let gives_up = if *gives_up { " that gives the upload up" } else { "" };
            let words = if words.is_empty() { " greeting" } else { &words };
            ("request", format!("request:{words}{gives_up}{without}"))
        }
        Instruction::Resume => plain("resume"),
        Instruction::Read { .. } => plain("read"),
        Instruction::ApplyReceipt(receipt) => ("apply-receipt", format!("apply receipt {}", receipt.sequence)),
        Instruction::Restart => plain("restart"),
        Instruction::Rewind { to } => ("rewind", format!("rewind to {to}")),
        Instruction::Thaw { is_given_up, .. } => ("thaw", format!("thaw{}", acknowledging(*is_given_up))),
        Instruction::CutSmaller { error, is_given_up } => {
            ("cut-smaller", format!("cut smaller ({}){}", error.code.name(), acknowledging(*is_given_up)))
        }
        Instruction::TakeForApplied => plain("take-for-applied"),
        Instruction::NewRemoteId => plain("new-remote-id"),
        Instruction::Stage(frame) => ("stage", format!("stage {:?}", frame.kind)),
        Instruction::StageComplete => plain("stage-complete"),
        Instruction::Chunk => plain("chunk"),
        Instruction::WaitUntil(until) => ("wait", format!("wait until {:.3}", until.as_secs_f64())),
        Instruction::Done(s) => {
            let mut text = format!(
                "done: {} requests, {} failures, {} uploads ({} changes, {} conflicts, {} refused), {} downloads",
                s.requests, s.failures, s.uploads, s.changes, s.conflicts, s.refused, s.downloads
            );
            for (on, word) in [(s.new_remote_id, ", new remote ID"), (s.restarted, ", restarted")] {
                text.push_str(if on { word } else { "" });
            }
            if let Some(error) = &s.upload_refused {
                write!(text, ", the upload refused: {}", error.message).expect("a string takes all");
            }
            if let Some(lost) = &s.lost {
                write!(text, ", lost uploads {} to {}", lost.start(), lost.end()).expect("a string takes all");
            }
            ("done", text)
        }
        Instruction::Failed(failure) => {
            let cause = std::error::Error::source(failure).map(|c| format!(": {c}")).unwrap_or_default();
            ("failed", format!("failed: {failure}{cause}"))
        }
    }
}
