//! Commits that wait for a synchronous standby.
//!
//! ```text
//! client    COMMIT ----- limit -----> looks by a connection of its own: is this session at `SyncRep`?
//! server    committed here, waits for the standby ......................... until it is back
//! ```
//!
//! A session that waits so holds its locks, and nobody sees what it has written. Closing the connection does not end it, and cancelling would be
//! worse: the commit would count here alone, and be lost with a failover. So the connection is closed and the session left to itself; what
//! became of the transaction is found out by the next attempt, as after any lost connection.
//!
//! *Caveats.* Other waits of a commit (a slow disk, a trigger that is checked at the end) are waited for. While the database can't be
//! asked, so is everything.

use std::time::Duration;

use headwater_protocol::Value;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::link::Link;
use super::target::Target;
use crate::Error;
use crate::catalogue::text;
use crate::commit_waits::CommitWaits;

/// Sessions of this role that wait for a standby: process, seconds, and the standbys' names as the configuration has them.
pub(super) const WAITING_SQL: &str = "SELECT a.pid::text, floor(extract(epoch FROM clock_timestamp() - a.query_start) * 1000)::bigint::text, \
     current_setting('synchronous_standby_names') FROM pg_catalog.pg_stat_activity a \
     WHERE a.wait_event = 'SyncRep' AND a.datname = current_database() AND a.usename = current_user";
/// How long the look may take.
const LOOK: Duration = Duration::from_secs(3);
/// Without a limit, after how long the log says what is waited for, and how often again.
const TELL: Duration = Duration::from_secs(10);

/// How long a connection waits for a commit, and what tells whether it waits for a standby.
pub(super) struct Patience {
    pub(super) target: Target,
    pub(super) tls: MakeRustlsConnect,
    pub(super) waits: CommitWaits,
    /// The process that this session is.
    pub(super) process: String,
}

/// A session that waits.
struct Session {
    process: String,
    waited: Duration,
    standbys: String,
}

/// How a connection goes on.
pub(super) enum Next {
    /// It waits for so long, then looks again.
    Wait(Duration),
    /// It leaves the session to itself, for this reason.
    Leave(String),
}

impl Patience {
    /// How long to wait before the first look.
    pub(super) fn pause(&self) -> Duration {
        self.waits.limit().unwrap_or(TELL)
    }

    /// Looks whether the session waits for a standby. Blocks; not inside of a runtime.
    pub(super) fn look(&self) -> Next {
        let pause = self.pause();
        let sessions = match self.sessions() {
            Ok(sessions) => sessions,
            Err(error) => {
                tracing::debug!(%error, "what a session waits for was not found out");
                return Next::Wait(pause);
            }
        };
        let Some(own) = sessions.iter().find(|session| session.process == self.process) else {
            return Next::Wait(pause);
        };
        let what = waits_for(&own.standbys);
        let Some(limit) = self.waits.limit() else {
            tracing::warn!(
                waited_s = own.waited.as_secs(),
                waits_for = what,
                "a commit waits; it goes on when that is there"
            );
            return Next::Wait(pause);
        };
        if let Some(rest) = limit.checked_sub(own.waited).filter(|rest| !rest.is_zero()) {
            return Next::Wait(rest);
        }
        let waited = own.waited;
        note(&self.waits, &sessions);
        Next::Leave(format!("after {} ms the commit still {what}: it is left to itself", waited.as_millis()))
    }

    fn sessions(&self) -> Result<Vec<Session>, Error> {
        let mut link = Link::connect(&self.target, self.tls.clone(), LOOK)?;
        let asked = link.run(async |client| tokio::time::timeout(LOOK, client.simple_query(WAITING_SQL)).await);
        let late = || Error::Retry { detail: format!("no answer within {LOOK:?}"), broken: true };
        let rows =
            asked.map_err(|_| late())?.map_err(|failure| super::error::convert("looking at commits", &failure))?;
        let session = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                let column = |place| row.get(place).unwrap_or_default();
                Some(Session::of(column(0), column(1), column(2)))
            }
            _ => None,
        };
        Ok(rows.iter().filter_map(session).collect())
    }
}

impl Session {
    fn of(process: &str, waited_ms: &str, standbys: &str) -> Session {
        let waited = Duration::from_millis(waited_ms.parse().unwrap_or_default());
        Session { process: process.to_owned(), waited, standbys: standbys.to_owned() }
    }
}

/// Notes what [`WAITING_SQL`] gave.
pub(super) fn note_rows(waits: &CommitWaits, rows: &[Vec<Value>]) {
    let sessions: Vec<_> = rows.iter().map(|row| Session::of(&text(row, 0), &text(row, 1), &text(row, 2))).collect();
    note(waits, &sessions);
}

/// Those that have waited longer than the limit count.
fn note(waits: &CommitWaits, sessions: &[Session]) {
    let limit = waits.limit().unwrap_or(TELL);
    let late: Vec<_> = sessions.iter().filter(|session| session.waited >= limit).collect();
    let longest = late.iter().map(|session| session.waited).max().unwrap_or_default();
    let what = late.first().map(|session| waits_for(&session.standbys)).unwrap_or_default();
    waits.found(late.len(), longest, &what);
}

fn waits_for(standbys: &str) -> String {
    format!("waits for a synchronous standby (wait event SyncRep; synchronous_standby_names is '{standbys}')")
}
