//! One line a sync, with its times by phase; and its stamps, for who has given it an ID and asks for them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;

use headwater_protocol::message::Fault;

use crate::failure::Failure;
use crate::receive::Received;
use crate::work::Done;

/// The header by which a client calls its sync by an ID.
const SYNC_ID: &str = "headwater-sync-id";
/// The most letters of one.
const SYNC_ID_LETTERS_MAX: usize = 64;

/// What a sync's line says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// As the client calls the sync; empty: it does not.
    id: String,
    begun: Option<SystemTime>,
    pub(crate) user: String,
    remote: String,
    model: String,
    model_version: u32,
    bytes_in: u64,
    pub(crate) bytes_out: u64,
    done: Done,
    pub(crate) receive: Duration,
    pub(crate) wait: Duration,
    pub(crate) send: Duration,
}

/// How a sync ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome<'a> {
    /// The client has taken the whole answer.
    Whole,
    /// Refused before the answer's head.
    Refused(&'a Failure),
    /// Ended by an ERROR frame.
    Failed(&'a Failure),
    /// The client went before the end.
    Gone,
    /// The client was cut for taking nothing, or because the server stops.
    Cut,
}

impl Outcome<'_> {
    fn name(&self) -> &'static str {
        match self {
            Outcome::Whole => "ok",
            Outcome::Refused(failure) | Outcome::Failed(failure) => failure.code.name(),
            Outcome::Gone => "client_gone",
            Outcome::Cut => "client_cut",
        }
    }

    fn failure(&self) -> Option<&Failure> {
        match self {
            Outcome::Refused(failure) | Outcome::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

macro_rules! line {
    ($level:ident, $line:expr, $outcome:expr, $detail:expr) => {{
        let (line, done) = ($line, &$line.done);
        tracing::$level!(
            target: "headwater::sync",
            outcome = $outcome,
            user = line.user,
            remote = line.remote,
            model = line.model,
            version = line.model_version,
            changes_up = done.changes,
            conflicts = done.counts.conflicts,
            refused = done.counts.refused,
            replayed = done.replayed,
            rows_down = done.rows_down,
            bytes_in = line.bytes_in,
            bytes_out = line.bytes_out,
            retries = done.retries,
            receive_ms = milliseconds(line.receive),
            wait_ms = milliseconds(line.wait),
            greet_ms = milliseconds(done.greet),
            upload_ms = milliseconds(done.upload),
            download_ms = milliseconds(done.download),
            send_ms = milliseconds(line.send),
            detail = $detail,
            "sync"
        );
    }};
}

impl Line {
    /// Of a sync that begins now.
    pub(crate) fn begin(headers: &HeaderMap) -> Line {
        let id = headers.get(SYNC_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
        let is_id = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        let is_fit = id.len() <= SYNC_ID_LETTERS_MAX && id.chars().all(is_id);
        let id = if is_fit { id.to_owned() } else { String::new() };
        Line { id, begun: Some(SystemTime::now()), ..Line::default() }
    }

    pub(crate) fn received(&mut self, received: &Received) {
        self.remote = uuid::Uuid::from_bytes(received.hello.remote_id).to_string();
        self.model.clone_from(&received.hello.model);
        self.model_version = received.hello.model_version;
        self.bytes_in = received.bytes;
    }

    pub(crate) fn done(&mut self, done: &Done) {
        self.done = done.clone();
    }

    /// Writes the line: an error where it is the server's fault, else information.
    pub(crate) fn write(&self, outcome: &Outcome<'_>) {
        let name = outcome.name();
        if !self.id.is_empty() {
            self.write_stamps(name);
        }
        match outcome.failure() {
            None => line!(info, self, name, tracing::field::Empty),
            Some(failure) => {
                let detail = failure.detail.as_deref().unwrap_or(&failure.message);
                if failure.code.fault() == Fault::Server {
                    line!(error, self, name, detail);
                } else {
                    line!(info, self, name, detail);
                }
            }
        }
    }
}

impl Line {
    /// When the sync began and ended by this server's clock, in microseconds since 1970, and how long each phase took.
    fn write_stamps(&self, outcome: &str) {
        let (line, done) = (self, &self.done);
        let begun = line.begun.and_then(|begun| begun.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        tracing::debug!(
            target: "headwater::stamps",
            id = line.id,
            outcome,
            begun_us = microseconds(begun),
            ended_us = microseconds(UNIX_EPOCH.elapsed().unwrap_or_default()),
            receive_us = microseconds(line.receive),
            wait_us = microseconds(line.wait),
            greet_us = microseconds(done.greet),
            upload_us = microseconds(done.upload),
            download_us = microseconds(done.download),
            send_us = microseconds(line.send),
            "stamps"
        );
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_sync_is_called_as_its_client_calls_it() {
        let long = "a".repeat(65);
        for (id, expected) in
            [("7f-1", "7f-1"), ("", ""), ("a b", ""), ("a\"b", ""), (&long[..64], &long[..64]), (&long, "")]
        {
            let mut headers = HeaderMap::new();
            headers.insert(SYNC_ID, HeaderValue::from_str(id).expect("a value"));
            assert_eq!(Line::begin(&headers).id, expected);
        }
        assert_eq!(Line::begin(&HeaderMap::new()).id, "");
    }
}
