//! A request's body, made while it is sent: of a frozen upload one frame at a time is in memory.

use std::io::{self, Read};

use headwater_protocol::message::{FrozenUpload, Hello, Ticket};
use headwater_protocol::{Frame, Kind};
use rusqlite::Connection;

use crate::cut::{cut_name, frozen_frame};
use crate::error::Error;
use crate::key_ranges;
use crate::plan::Plan;
use crate::sent;
use crate::state::{State, read_watermarks};
use crate::sync::{Phase, Progress};
use crate::untracked;
use crate::upgrade::Change;

/// What becomes of the frozen upload with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Offer {
    /// It is named, and stays.
    #[default]
    Stays,
    /// It goes with it.
    Goes,
    /// It is given up.
    GivenUp,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// What becomes of the frozen upload.
    pub(crate) upload: Offer,
    /// In the place of its frames.
    pub(crate) ticket: Option<Ticket>,
    /// A download is wanted.
    pub(crate) wants_download: bool,
    /// Rows of it may come in chunks.
    pub(crate) takes_chunks: bool,
}

/// A request's body, made as it is sent: HELLO, the frozen frames or their ticket, UPLOAD_END, END.
pub(crate) struct RequestBody<'c> {
    connection: &'c Connection,
    buffer: Vec<u8>,
    read: usize,
    /// The next of the frozen frames; `None`: none are left to send.
    next: Option<i64>,
    /// What comes after them.
    tail: Vec<u8>,
    /// What went wrong with the file while the body was read.
    pub(crate) failure: Option<Error>,
}

impl<'c> RequestBody<'c> {
    /// `change`: the request is one under the version that it leads to.
    pub(crate) fn new(
        connection: &'c Connection,
        plan: &Plan,
        change: Option<&Change>,
        state: &State,
        asked: Asked,
    ) -> Result<RequestBody<'c>, Error> {
        let Asked { upload: offer, ticket, wants_download, takes_chunks } = asked;
        let mut seen = read_watermarks(connection)?;
        untracked::ask_whole(connection, plan, &mut seen)?;
        // What is compared with what comes is compared with what there is now, not with what was built before.
        let takes_chunks = takes_chunks && !untracked::any(connection, plan)?;
        let plan = change.map_or(plan, |change| &change.plan);
        let model = &plan.model;
        let upload = state.frozen.filter(|_| offer == Offer::Goes);
        let hello = Hello {
            remote_id: state.remote_id,
            secret: state.secret,
            model: model.name.clone(),
            model_version: model.version,
            fingerprint: plan.fingerprint,
            incarnation: state.incarnation,
            note: state.note,
            upload_sequence: state.upload_sequence,
            download_applied: state.download_applied,
            has_upload: upload.is_some(),
            wants_download,
            takes_chunks,
            knows_leaving: true,
            uploads: sent::newest(connection)?,
            frozen: frozen(connection, state, offer == Offer::GivenUp)?,
            watermarks: match change {
                Some(change) => change.watermarks(seen),
                None => seen,
            },
        };
        let mut head = hello.to_frame().to_bytes();
        if let Some(left) = key_ranges::left(connection, plan)?.filter(|_| wants_download) {
            let left = match change {
                Some(change) => change.key_ranges(left),
                None => left,
            };
            left.to_frame().write(&mut head);
        }
        if let Some(ticket) = ticket {
            ticket.to_frame().write(&mut head);
        }
        let mut tail = upload.map(|end| end.to_frame().to_bytes()).unwrap_or_default();
        Frame::new(Kind::End, Vec::new()).write(&mut tail);
        Ok(RequestBody {
            connection,
            buffer: head,
            read: 0,
            next: upload.filter(|_| ticket.is_none()).map(|_| 1),
            tail,
            failure: None,
        })
    }

    fn fill(&mut self) -> Result<(), Error> {
        self.read = 0;
        self.buffer.clear();
        if let Some(number) = self.next {
            self.next = None;
            if let Some((kind, payload)) = frozen_frame(self.connection, number)? {
                self.next = Some(number + 1);
                Frame::packed(kind, payload).write(&mut self.buffer);
                return Ok(());
            }
        }
        self.buffer = std::mem::take(&mut self.tail);
        Ok(())
    }
}

impl Read for RequestBody<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.read == self.buffer.len()
            && let Err(error) = self.fill()
        {
            let text = error.to_string();
            self.failure = Some(error);
            return Err(io::Error::other(text));
        }
        let rest = &self.buffer[self.read..];
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        Ok(count)
    }
}

/// The frozen upload, as HELLO names it.
fn frozen(connection: &Connection, state: &State, is_given_up: bool) -> Result<Option<FrozenUpload>, Error> {
    let Some(end) = state.frozen else { return Ok(None) };
    let cut = cut_name(connection, end.sequence)?;
    Ok(cut.map(|cut| FrozenUpload { sequence: end.sequence, cut, is_given_up }))
}

/// Counts what is sent, and tells it.
pub(crate) struct Counting<'b, 'c, 'p, 'o> {
    body: &'b mut RequestBody<'c>,
    progress: &'p mut Option<&'o mut dyn FnMut(Progress)>,
    pub(crate) bytes: u64,
}

impl<'b, 'c, 'p, 'o> Counting<'b, 'c, 'p, 'o> {
    pub(crate) fn new(body: &'b mut RequestBody<'c>, progress: &'p mut Option<&'o mut dyn FnMut(Progress)>) -> Self {
        Counting { body, progress, bytes: 0 }
    }
}

impl Read for Counting<'_, '_, '_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.body.read(out)?;
        self.bytes += count as u64;
        if let Some(progress) = self.progress {
            progress(Progress::new(Phase::Send, self.bytes, None));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use headwater_protocol::Type;

    use super::*;
    use crate::tests::support::{Fixture, model, table};

    /// What waits in memory never is more than a frame, however large the upload; and what is read is all of it.
    #[test]
    fn an_upload_is_never_whole_in_memory() {
        let f = Fixture::new(&model(vec![table("doc", &[("id", Type::Int), ("body", Type::Bytes)])]));
        f.sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000) \
             INSERT INTO doc SELECT i, randomblob(1000) FROM n",
        );
        f.cut().expect("an upload");
        let state = f.remote.state().expect("a state");
        let connection = &f.remote.database.connection;
        let asked = Asked { upload: Offer::Goes, wants_download: true, ..Asked::default() };
        let mut body = RequestBody::new(connection, &f.remote.plan, None, &state, asked).expect("a body");
        let (mut buffer, mut bytes, mut widest) = ([0; 1000], 0, 0);
        loop {
            let count = body.read(&mut buffer).expect("the file is sound");
            widest = widest.max(body.buffer.capacity());
            bytes += count;
            if count == 0 {
                break;
            }
        }
        assert!(bytes > 4_000_000, "random bytes do not pack: {bytes}");
        assert!(widest < 200_000, "{widest} bytes were in memory at a time");
    }
}
