//! One line a sync, with its times by phase.

use std::time::Duration;

use headwater_protocol::message::Fault;

use crate::failure::Failure;
use crate::receive::Received;
use crate::work::Done;

/// What a sync's line says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
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

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
