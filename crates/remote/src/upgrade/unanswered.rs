//! An upload that is frozen under a version that no server has any more.
//!
//! A server of the new version is asked, without an upload, which is the last that the database has. If the frozen one is not, it was
//! never applied: it is thawed. (Should it be on its way still and be applied after all, the number that it took shows, and the file goes on
//! under a new remote ID.) If it is, its receipt can't be had, since a repetition would have to name the old columns. What became of its
//! changes the next download shows:
//!
//! | what comes down | the change |
//! |---|---|
//! | the row as the change made it | was applied, and is done |
//! | anything else, or nothing | stays in its place, set aside under the code `unanswered`: it may be sent again or given up, but not by itself |

use headwater_protocol::client::Failure;
use headwater_protocol::message::{Refusal, RefusalCode, ServerError, Welcome};
use headwater_protocol::{Decoder, Kind, Limits};
use rusqlite::Connection;

use super::Change;
use crate::cut::{forget_frames, reopen, set_aside_mark, thaw};
use crate::error::{Error, While};
use crate::http::{Client, Refused, Server, Who};
use crate::local::Local;
use crate::plan::{Plan, TablePlan};
use crate::remote::{Remote, now};
use crate::request::RequestBody;
use crate::rows::Rows;
use crate::state::State;
use crate::sync::SyncOptions;

impl Remote {
    /// Has no upload frozen any more.
    pub(super) fn settle(&mut self, change: &Change, options: &SyncOptions<'_>) -> Result<(), Error> {
        let _alone = self.lock()?;
        let Some(end) = self.state()?.frozen else {
            return Ok(());
        };
        let welcome = self.ask(change, options)?;
        self.database.write("settling an upload", |connection| {
            if welcome.upload_sequence == end.sequence {
                tracing::warn!(upload = end.sequence, "an upload was applied, but its receipt can't be had any more");
                return take_for_applied(connection, &self.plan, end.sequence, &now());
            }
            thaw(connection, &self.plan)
        })
    }

    /// The server's greeting under the new version.
    fn ask(&self, change: &Change, options: &SyncOptions<'_>) -> Result<Welcome, Error> {
        let state = self.state()?;
        let server = Server {
            url: state.server.clone(),
            credentials: options.credentials.clone(),
            ca_file: options.ca_file.clone(),
        };
        let client = Client::new(&server, options.config.idle_max)?;
        let broken = |text: String| Error::Network { server: server.url.clone(), source: text.into() };
        let who = Who { token: client.token()?.token, user: state.user.clone(), remote_id: state.remote_id };
        let connection = &self.database.connection;
        let mut body = RequestBody::new(connection, &self.plan, Some(change), &state, false, None, false)?;
        let mut answer = client.sync(&who, &mut body, false).map_err(|refused| match refused {
            Refused::Network(text) => broken(text),
            Refused::Status(error) => Error::Failed(Failure::Refused(error)),
            Refused::Stranger(error) => error,
        })?;
        let mut decoder = Decoder::new(Limits::ANSWER.frame_bytes_max);
        let mut buffer = [0; 4096];
        loop {
            while let Some(frame) = decoder.next_frame()? {
                let payload = frame.payload(Limits::ANSWER.frame_bytes_max)?;
                match frame.kind {
                    Kind::Welcome => return Ok(Welcome::from_payload(&payload)?),
                    Kind::Error => return Err(Error::Failed(Failure::Refused(ServerError::from_payload(&payload)?))),
                    Kind::Heartbeat => {}
                    kind => {
                        let what = format!("a frame of kind {kind:?} came before WELCOME");
                        return Err(Error::Unexpected { what });
                    }
                }
            }
            match answer.read(&mut buffer).map_err(|error| broken(error.to_string()))? {
                0 => return Err(broken("the answer ended before WELCOME".to_owned())),
                count => decoder.push(&buffer[..count]),
            }
        }
    }
}

/// Counts the frozen upload as applied, with outcomes that nobody knows.
fn take_for_applied(connection: &Connection, plan: &Plan, sequence: u64, now: &str) -> Result<(), Error> {
    let rows = Rows::new(connection);
    for table in plan.tracked() {
        for key in frozen_keys(&rows, table, sequence)? {
            let condition: Vec<String> =
                table.keys("k_").iter().zip(1..).map(|(name, place)| format!("f.{name} = ?{place}")).collect();
            let condition = condition.join(" AND ");
            if rows.pending(table, &key)?.is_some() {
                // Changed again since, from what was sent: that is what it goes up with.
                let gone = format!("DELETE FROM {} AS f WHERE f.\"upload\" = {sequence} AND {condition}", table.log());
                rows.execute(&gone, &key)?;
                continue;
            }
            reopen(connection, table, sequence, &condition, &key)?;
            set_aside_mark(connection, table, &key, RefusalCode::Unanswered as u16)?;
            let pending = rows.pending(table, &key)?;
            let pending = pending.ok_or_else(|| Error::damaged("a reopened change is not in the log"))?;
            let message = format!("upload {sequence} was applied, but what became of this change was not told");
            rows.note_aside(table, &pending, &Refusal { code: RefusalCode::Unanswered, message }, true, now)?;
        }
    }
    forget_frames(connection, sequence)?;
    State::set_frozen(connection, None)?;
    State::set_upload_sequence(connection, sequence)
}

fn frozen_keys(rows: &Rows<'_>, table: &TablePlan, sequence: u64) -> Result<Vec<Vec<Local>>, Error> {
    let sql = format!("SELECT {} FROM {} WHERE \"upload\" = ?", table.keys("k_").join(", "), table.log());
    let mut select = rows.prepare(&sql)?;
    let count = table.key_types.len();
    let read = |row: &rusqlite::Row<'_>| (0..count).map(|index| Local::read(row, index)).collect();
    let found = select.query_map([sequence as i64], read);
    found.and_then(Iterator::collect).while_doing("reading the log")
}
