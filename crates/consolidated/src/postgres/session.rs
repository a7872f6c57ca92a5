//! A session that stays as it was when it was opened, whatever the application's code does to it.
//!
//! Triggers, scripts and the functions of membership queries run in our sessions, and each session serves many users. What they set for the
//! session (`SET ROLE`, `search_path`, `client_encoding`, any setting), lock for it (`pg_advisory_lock`) or make for it (temporary tables,
//! cursors, `LISTEN`) would be there for the next one.
//!
//! ```text
//! COMMIT | RESET_SQL | restore        after a transaction in which the application's code may have run; one round trip for all three
//! restore | the next statement        inside an upload, behind each statement whose triggers may have run
//! ROLLBACK; advisory locks            settings go back by themselves
//! ```
//!
//! `RESET` leaves the values that the server's configuration, the role and the database have. What differed from those when the session was
//! ready for use (our own settings; a pooler's) is set again by the `restore` statement, which is prepared once.
//!
//! *Caveats.* A trigger that changes a setting and reads it in the same statement sees what it set. Statements that the application's code has
//! prepared (`EXECUTE 'PREPARE ...'`), libraries that it has loaded, and variables of procedural languages stay.

use futures_util::future::{join, join3, join4};
use headwater_model::sql::literal;
use headwater_protocol::Value;
use tokio_postgres::{Client, Statement};

use super::ahead::Queue;
use super::connection::{Application, PostgresConnection};
use crate::catalogue::text;
use crate::{Connection as _, Error, Mode};

/// What ends a transaction that is not to be kept. Locks of the session outlive it.
pub(super) const ROLLBACK_SQL: &str = "ROLLBACK; SELECT pg_catalog.pg_advisory_unlock_all()";

/// What is not a setting of ours goes. In a transaction of its own.
const RESET_SQL: &str = "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES; \
     SELECT pg_catalog.pg_advisory_unlock_all()";

/// Names and values of settings that our own statements depend on, and of all others that are not as `RESET` would leave them; the role comes
/// after whose session it is, which takes the role away.
const SETTINGS_SQL: &str = "SELECT name, value FROM ( \
    SELECT 1 AS place, 'session_authorization' AS name, session_user::text AS value WHERE current_setting('is_superuser') = 'on' \
    UNION ALL SELECT 2, 'role', current_setting('role') \
    UNION ALL SELECT 3, name, setting FROM pg_catalog.pg_settings \
    WHERE name NOT LIKE 'transaction%' AND (context = 'user' OR context = 'superuser' AND current_setting('is_superuser') = 'on') \
    AND (setting IS DISTINCT FROM reset_val OR name IN ('search_path', 'client_encoding', 'TimeZone', 'DateStyle', 'IntervalStyle', \
        'extra_float_digits', 'bytea_output', 'lc_monetary', 'standard_conforming_strings', 'array_nulls', 'row_security', \
        'session_replication_role')) \
    ) AS s ORDER BY place, name";

/// What a session has to have.
pub(super) struct Session {
    /// Sets all that [`SETTINGS_SQL`] gave.
    restore: Statement,
}

impl PostgresConnection {
    /// Remembers the settings that the session has now.
    pub(super) fn remember_session(&mut self) -> Result<(), Error> {
        let rows = self.query(SETTINGS_SQL, &[])?;
        let set = rows
            .iter()
            .filter(|row| !matches!(row.get(1), None | Some(Value::Null)))
            .map(|row| format!("pg_catalog.set_config({}, {}, false)", literal(&text(row, 0)), literal(&text(row, 1))));
        let restore = self.prepare(&format!("SELECT {}", set.collect::<Vec<_>>().join(", ")))?;
        self.session = Some(Session { restore });
        Ok(())
    }

    /// A statement may have run the application's code, which may have changed the session: the next one finds it as it was.
    pub(super) fn application_ran(&mut self) {
        if self.state.mode == Some(Mode::Upload) {
            self.state.application = Application::Ran;
        }
    }

    /// What waits for the next request, with the session put right before it.
    pub(super) fn take_queued(&mut self) -> Queue {
        let mut queued = std::mem::take(&mut self.queued);
        // In a transaction that has failed nothing can be set, and going back to the savepoint sets all.
        if self.state.application == Application::Ran
            && !self.state.failed
            && let Some(session) = &self.session
        {
            self.state.application = Application::Quiet;
            queued.prepared_first((session.restore.clone(), Vec::new()));
        }
        queued
    }

    /// The statement that puts the session right between two others of the application's, in an upload.
    pub(super) fn restoring(&self) -> Option<Statement> {
        let session = self.session.as_ref().filter(|_| self.state.mode == Some(Mode::Upload))?;
        Some(session.restore.clone())
    }

    /// Commits, and has the session be as it was. One round trip.
    pub(super) fn commit_and_restore(&mut self, commit: &str) -> Result<(), tokio_postgres::Error> {
        let Some(restore) = self.session.as_ref().map(|session| session.restore.clone()) else {
            return self.run(async |client| client.batch_execute(commit).await);
        };
        let Some(guard) = &self.guard else {
            let restored = self.run(async |client| {
                let (committed, reset, set) =
                    join3(client.batch_execute(commit), client.batch_execute(RESET_SQL), run(client, &restore)).await;
                committed.map(|()| reset.and(set))
            })?;
            self.note_restored(restored);
            return Ok(());
        };
        let reset = format!("BEGIN; {guard}; {RESET_SQL}");
        let restored = self.run(async |client| {
            let (committed, reset, set, ended) = join4(
                client.batch_execute(commit),
                client.batch_execute(&reset),
                run(client, &restore),
                client.batch_execute("COMMIT"),
            )
            .await;
            committed.map(|()| reset.and(set).and(ended))
        })?;
        self.note_restored(restored);
        Ok(())
    }

    fn note_restored(&mut self, restored: Result<(), tokio_postgres::Error>) {
        if let Err(error) = restored {
            tracing::warn!(%error, "a session could not be put back as it was; its connection is closed");
            self.is_unclean = true;
        }
    }

    /// An error where the session is not as it was, and can't serve anybody else.
    pub(super) fn check_clean(&self) -> Result<(), Error> {
        if self.is_unclean {
            let detail = "the session could not be put back as it was".to_owned();
            return Err(Error::Retry { detail, broken: true });
        }
        Ok(())
    }
}

/// Runs a request, behind the statement that puts the session right, without waiting in between.
pub(super) async fn restored<T>(
    client: &Client,
    restore: Option<&Statement>,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, tokio_postgres::Error> {
    let Some(restore) = restore else { return work.await };
    let (set, done) = join(run(client, restore), work).await;
    set.and(done)
}

async fn run(client: &Client, statement: &Statement) -> Result<(), tokio_postgres::Error> {
    let none: [&(dyn tokio_postgres::types::ToSql + Sync); 0] = [];
    client.execute_raw(statement, none).await.map(drop)
}
