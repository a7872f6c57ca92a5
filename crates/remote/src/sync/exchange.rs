//! What goes over the network: each request, and what its answer tells the session.

use std::io;
use std::time::Instant;

use headwater_protocol::chunk;
use headwater_protocol::client::{Failure, Reply, Session, status_error};

use super::{Phase, Sync, Token};
use crate::error::Error;
use crate::http::{Answer, Credentials, Refused, Who};
use crate::pieces::{announced_bytes, frozen_bytes};
use crate::remote::Remote;
use crate::request::{Asked, Counting, Offer, RequestBody};
use crate::state::State;

/// How much is read from the socket at a time.
const READ_BYTES: usize = 64 * 1024;
/// Uploads of more changes or bytes than this ask first whether they are wanted, which costs a round trip: fewer are some tens of kilobytes.
const ASKED_CHANGES_MIN: u64 = 2_000;
const ASKED_BYTES_MIN: u64 = 256 * 1024;

impl Sync<'_, '_, '_> {
    pub(super) fn request(&mut self, session: &mut Session, asked: Asked) -> Result<(), Error> {
        let Asked { upload, ticket, .. } = asked;
        let began = Instant::now();
        let Some(who) = self.who(session)? else {
            return Ok(());
        };
        let state = self.remote.state()?;
        let Remote { database, plan, .. } = &*self.remote;
        self.stage.ask(&database.connection)?;
        let (connection, change) = (&database.connection, self.change.as_ref());
        let mut body = RequestBody::new(connection, plan, change, &state, asked)?;
        let sent = {
            let mut counting = Counting::new(&mut body, &mut self.options.progress);
            let is_long = upload == Offer::Goes
                && ticket.is_none()
                && (state.frozen.is_some_and(|end| end.changes > ASKED_CHANGES_MIN)
                    || frozen_bytes(&self.remote.database.connection)? > ASKED_BYTES_MIN);
            let sent = self.client.sync(&who, &mut counting, is_long);
            self.report.bytes_up += counting.bytes;
            sent
        };
        if let Some(error) = body.failure {
            return Err(error);
        }
        self.report.times.send += began.elapsed();
        self.answered(session, sent)
    }

    /// Asks for a ticket for the frozen upload.
    pub(super) fn ticket(&mut self, session: &mut Session) -> Result<(), Error> {
        let Some(who) = self.who(session)? else {
            return Ok(());
        };
        let end = self
            .remote
            .state()?
            .frozen
            .ok_or_else(|| Error::damaged("a ticket is asked for, but nothing is frozen"))?;
        let bytes = announced_bytes(&self.remote.database.connection)?;
        let given = self.client.ticket(&who, bytes, &end.digest).and_then(|given| {
            let ticket =
                u128::from_str_radix(&given.ticket, 16).map_err(|_| Refused::Status(status_error(404, None)))?;
            let (offset, piece_bytes) = (given.offset, given.piece_bytes);
            Ok(Reply::Ticket { ticket: ticket.to_be_bytes(), offset, piece_bytes })
        });
        self.replied(session, given)
    }

    /// Sends a piece of the frozen upload.
    pub(super) fn piece(
        &mut self,
        session: &mut Session,
        ticket: [u8; 16],
        offset: u64,
        bytes_max: u64,
    ) -> Result<(), Error> {
        let began = Instant::now();
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let (piece, is_last) = self.pieces.piece(&self.remote.database.connection, offset, bytes_max)?;
        let end = offset + piece.len() as u64;
        if piece.is_empty() {
            session.done(self.elapsed(), Reply::Piece { offset, is_all: true });
            return Ok(());
        }
        let Some(who) = self.who(session)? else {
            return Ok(());
        };
        let sent = self.client.piece(&who, &hex::encode(ticket), offset, &piece);
        self.report.bytes_up += piece.len() as u64;
        self.report.times.send += began.elapsed();
        self.tell(Phase::Send, end, None);
        self.replied(session, sent.map(|offset| Reply::Piece { offset, is_all: is_last && offset == end }))
    }

    fn replied(&self, session: &mut Session, reply: Result<Reply, Refused>) -> Result<(), Error> {
        match reply {
            Ok(reply) => session.done(self.elapsed(), reply),
            Err(Refused::Network(text)) => session.io_error(self.elapsed(), text),
            Err(Refused::Status(error)) => session.refused(self.elapsed(), error),
            Err(Refused::Stranger(error)) => return Err(error),
        }
        Ok(())
    }

    /// Asks for the rest of the staged download.
    pub(super) fn resume(&mut self, session: &mut Session) -> Result<(), Error> {
        let Some(who) = self.who(session)? else {
            return Ok(());
        };
        let rest =
            self.stage.rest().ok_or_else(|| Error::damaged("a download is to be resumed, but none is staged"))?;
        tracing::info!(offset = rest.offset, "a download that broke is resumed");
        let answer = self.client.rest(&who, &rest);
        self.answered(session, answer)
    }

    /// Gets the next chunk that the staged download lacks.
    pub(super) fn chunk(&mut self, session: &mut Session) -> Result<(), Error> {
        let began = Instant::now();
        let Some(lacking) = self.stage.lacking() else {
            session.done(self.elapsed(), Reply::Chunk { bytes: 0, is_all: true });
            return Ok(());
        };
        let came = match self.client.chunk(lacking.url, &lacking.named) {
            Ok(came) => came,
            Err(refused) => return self.replied(session, Err(refused)),
        };
        let bytes = came.len() as u64;
        let opened = chunk::open_named(lacking.key, lacking.place, &lacking.named, came);
        self.report.bytes_down += bytes;
        self.report.times.receive += began.elapsed();
        let Some(opened) = opened.filter(|opened| chunk::frames(opened).is_ok()) else {
            tracing::warn!(id = hex::encode(lacking.named.id), "a chunk is not the one that the server named");
            session.done(self.elapsed(), Reply::Damaged);
            return Ok(());
        };
        self.stage.put_chunk(&self.remote.database, &opened)?;
        self.tell(Phase::Receive, self.report.bytes_down, None);
        session.done(self.elapsed(), Reply::Chunk { bytes, is_all: self.stage.lacking().is_none() });
        Ok(())
    }

    fn answered(&mut self, session: &mut Session, answer: Result<Answer, Refused>) -> Result<(), Error> {
        let reply = answer.map(|answer| {
            self.answer = Some(answer);
            Reply::Done
        });
        self.replied(session, reply)
    }

    /// Who asks; `None`: there was no token, and the session knows.
    fn who(&mut self, session: &mut Session) -> Result<Option<Who>, Error> {
        let State { user, remote_id, .. } = self.remote.state()?;
        match self.token() {
            Ok(token) => Ok(Some(Who { token, user, remote_id })),
            Err(error) => self.token_failed(session, error).map(|()| None),
        }
    }

    fn token(&mut self) -> Result<String, Error> {
        if let Credentials::Token(token) = &self.options.credentials {
            return Ok(token.clone());
        }
        if let Some((token, until)) = &self.remote.token
            && Instant::now() < *until
        {
            self.token = Token::Kept;
            return Ok(token.clone());
        }
        self.token = Token::New;
        let token = self.client.token()?;
        self.remote.token = Some((token.token.clone(), Instant::now() + token.lifetime()));
        Ok(token.token)
    }

    fn token_failed(&mut self, session: &mut Session, error: Error) -> Result<(), Error> {
        match error {
            Error::Network { source, .. } => session.io_error(self.start.elapsed(), source.to_string()),
            Error::Failed(Failure::Refused(error)) => session.refused(self.start.elapsed(), error),
            Error::Http { status, .. } if error.is_retryable() => {
                let error = status_error(status, None);
                session.refused(self.start.elapsed(), error);
            }
            error => return Err(error),
        }
        Ok(())
    }

    pub(super) fn read(&mut self, session: &mut Session) {
        let began = Instant::now();
        let mut buffer = vec![0; READ_BYTES];
        let read = match &mut self.answer {
            Some(answer) => answer.read(&mut buffer),
            None => Err(io::Error::from(io::ErrorKind::NotConnected)),
        };
        let now = self.start.elapsed();
        match read {
            Ok(0) => session.closed(now),
            Ok(count) => {
                self.report.bytes_down += count as u64;
                session.bytes(now, &buffer[..count]);
            }
            Err(error) => session.io_error(now, error.to_string()),
        }
        self.report.times.receive += began.elapsed();
        match self.stage.download() {
            Some((download, came)) if download.bytes > 0 => self.tell(Phase::Receive, came, Some(download.bytes)),
            _ => self.tell(Phase::Receive, self.report.bytes_down, None),
        }
    }
}
