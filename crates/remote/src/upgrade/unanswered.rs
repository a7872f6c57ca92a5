//! An upload that is frozen under a version that no server has any more.
//!
//! A server of the new version is asked, without an upload, which is the last that the database has. If the frozen one is not, it was
//! never applied: it is given up in the same request, so that it can't be applied later, and thawed. If it is, its receipt can't be had, since a repetition would have to name the old columns ([`unanswered`]).

use headwater_protocol::client::Failure;
use headwater_protocol::message::{FrozenFate, ServerError, Welcome};
use headwater_protocol::{Decoder, Kind, Limits};

use super::Change;
use crate::cut::thaw;
use crate::error::Error;
use crate::http::{Client, Refused, Server, Who};
use crate::remote::{Remote, now};
use crate::request::{Asked, Offer, RequestBody};
use crate::sync::SyncOptions;
use crate::unanswered;

impl Remote {
    /// Has no upload frozen any more.
    pub(super) fn settle(&mut self, change: &Change, options: &SyncOptions<'_>) -> Result<(), Error> {
        let _alone = self.lock()?;
        let Some(end) = self.state()?.frozen else {
            return Ok(());
        };
        let welcome = self.ask(change, options)?;
        let is_applied = match welcome.frozen {
            FrozenFate::Applied => true,
            FrozenFate::GivenUp | FrozenFate::Another => false,
            FrozenFate::Unknown => welcome.upload_sequence == end.sequence,
        };
        self.database.write("settling an upload", |connection| {
            if is_applied {
                return unanswered::take_for_applied(connection, &self.plan, &now());
            }
            thaw(connection, &self.plan, welcome.frozen == FrozenFate::GivenUp)
        })
    }

    /// The server's greeting under the new version.
    fn ask(&self, change: &Change, options: &SyncOptions<'_>) -> Result<Welcome, Error> {
        let state = self.state()?;
        let server = Server {
            url: options.server.clone().unwrap_or_else(|| state.server.clone()),
            credentials: options.credentials.clone(),
            ca_file: options.ca_file.clone(),
        };
        let client = Client::new(&server, options.config.idle_max)?;
        let broken = |text: String| Error::Network { server: server.url.clone(), source: text.into() };
        let who = Who { token: client.token()?.token, user: state.user.clone(), remote_id: state.remote_id };
        let connection = &self.database.connection;
        let asked = Asked { upload: Offer::GivenUp, ..Asked::default() };
        let mut body = RequestBody::new(connection, &self.plan, Some(change), &state, asked)?;
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
