//! The server's side: what a client asks, checked, and what each cursor may still be sent.

use std::collections::BTreeMap;

use super::{CREDIT_MAX, Cancel, Credit, Open, REQUEST_BYTES_MAX};
use crate::frame::{Decoder, Kind};
use crate::wire::DecodeError;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A cursor. It is open until [`Server::ended`].
    Open(Open),
    /// A cursor beyond those that it may have at a time: it is none, and the client is to be told.
    TooMany(u64),
    /// A cursor that had no credit left has some.
    MaySend(u64),
    /// No more rows of a cursor that is open are wanted. It is open until [`Server::ended`].
    Cancel(u64),
}

/// The server's side of a connection.
///
/// ```
/// use headwater_protocol::cursor::{Asked, Open, Question, Server};
///
/// let mut server = Server::new(4);
/// let open = Open { cursor: 1, question: Question::Named("flights".into(), vec![]), credit: 100 };
/// server.push(&open.to_frame().to_bytes());
/// assert_eq!(server.poll(), Ok(Some(Asked::Open(open))));
/// server.sent(1, 150); // a message that began within the credit
/// assert!(!server.may_send(1));
/// ```
#[derive(Debug)]
pub struct Server {
    decoder: Decoder,
    cursors_max: usize,
    /// The greatest number so far.
    last: u64,
    /// What open cursors may still be sent: below zero where their last message was larger than what was left.
    credits: BTreeMap<u64, i64>,
}

impl Server {
    /// A connection on which so many cursors are open at a time.
    pub fn new(cursors_max: usize) -> Server {
        Server { decoder: Decoder::new(REQUEST_BYTES_MAX), cursors_max, last: 0, credits: BTreeMap::new() }
    }

    /// Adds bytes that came. All that they ask is to be polled before there are more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// What is asked next; `None`: more bytes are needed. After an error the connection can't go on.
    pub fn poll(&mut self) -> Result<Option<Asked>, DecodeError> {
        while let Some(frame) = self.decoder.next_frame()? {
            let payload = frame.payload(REQUEST_BYTES_MAX)?;
            let asked = match frame.kind {
                Kind::CursorOpen => Some(self.open(Open::from_payload(&payload)?)?),
                Kind::CursorCredit => self.credit(Credit::from_payload(&payload)?)?,
                Kind::CursorCancel => self.cancel(Cancel::from_payload(&payload)?)?,
                other => return Err(DecodeError::Undefined { field: "frame kind", actual: other as u64 }),
            };
            if asked.is_some() {
                return Ok(asked);
            }
        }
        Ok(None)
    }

    fn open(&mut self, open: Open) -> Result<Asked, DecodeError> {
        if open.cursor <= self.last {
            return Err(DecodeError::Undefined { field: "number of a new cursor", actual: open.cursor });
        }
        self.last = open.cursor;
        if self.credits.len() >= self.cursors_max {
            return Ok(Asked::TooMany(open.cursor));
        }
        self.credits.insert(open.cursor, open.credit.cast_signed());
        Ok(Asked::Open(open))
    }

    /// A cursor that has ended may have been given credit, or cancelled, before the client knew.
    fn known(&self, cursor: u64) -> Result<(), DecodeError> {
        if cursor <= self.last { Ok(()) } else { Err(DecodeError::Undefined { field: "cursor", actual: cursor }) }
    }

    fn credit(&mut self, Credit { cursor, bytes }: Credit) -> Result<Option<Asked>, DecodeError> {
        self.known(cursor)?;
        let Some(credit) = self.credits.get_mut(&cursor) else { return Ok(None) };
        let had = *credit > 0;
        *credit += bytes.cast_signed();
        if *credit > CREDIT_MAX.cast_signed() {
            let actual = credit.cast_unsigned();
            return Err(DecodeError::TooLarge { field: "credit", actual, limit: CREDIT_MAX });
        }
        Ok((!had && *credit > 0).then_some(Asked::MaySend(cursor)))
    }

    fn cancel(&mut self, Cancel { cursor }: Cancel) -> Result<Option<Asked>, DecodeError> {
        self.known(cursor)?;
        Ok(self.credits.contains_key(&cursor).then_some(Asked::Cancel(cursor)))
    }

    /// Whether a message of this cursor may be sent.
    pub fn may_send(&self, cursor: u64) -> bool {
        self.credits.get(&cursor).is_some_and(|credit| *credit > 0)
    }

    /// A message of so many bytes of rows was sent.
    pub fn sent(&mut self, cursor: u64, bytes: usize) {
        if let Some(credit) = self.credits.get_mut(&cursor) {
            *credit = credit.saturating_sub_unsigned(bytes as u64);
        }
    }

    /// Its END or FAILED was sent.
    pub fn ended(&mut self, cursor: u64) {
        self.credits.remove(&cursor);
    }

    /// How many are open.
    pub fn open_cursors(&self) -> usize {
        self.credits.len()
    }
}
