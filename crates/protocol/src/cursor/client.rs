//! The client's side: cursors that it opens, what comes of them, and the credit that it gives.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use super::batch::{Shape, types_of};
use super::{
    Batch, CREDIT_MAX, Cancel, Column, Columns, Credit, End, Failed, Open, Question, REQUEST_BYTES_MAX, Rows, Welcome,
};
use crate::frame::{Decoder, Frame, Kind};
use crate::wire::DecodeError;

/// What has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The server takes cursors.
    Welcome(Welcome),
    /// The columns of a cursor.
    Columns(u64, Arc<[Column]>),
    /// Rows of a cursor. Once they are consumed, [`Client::consumed`].
    Rows(u64, Batch),
    /// All rows of a cursor have come: so many.
    End(u64, u64),
    /// A cursor has ended without all of its rows.
    Failed(Failed),
    /// The server ends the connection, and says why.
    Over(Failed),
}

/// What a server must not send.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misled {
    /// It is no frame, or one that is not as the format says.
    #[error("the server sent what is no message of a cursor: {0}")]
    Malformed(#[from] DecodeError),
    /// It does not belong there.
    #[error("the server sent {what}")]
    Unexpected {
        /// What it is.
        what: String,
    },
}

/// A cursor that has not ended.
#[derive(Debug)]
struct State {
    columns: Option<Shape>,
    /// Credit that is left, as the server counts it.
    credit: i64,
    /// Bytes that were consumed and not given back yet.
    consumed: u64,
    /// All the credit that it may have.
    window: u64,
    rows: u64,
    is_cancelled: bool,
}

/// The client's side of a connection.
///
/// ```
/// use headwater_protocol::cursor::{Client, Columns, Column, End, Event, Question, Welcome};
///
/// let mut client = Client::new(1 << 20);
/// let cursor = client.open(Question::Named("flights".into(), vec![]), 1 << 20).unwrap();
/// let request = client.take_out(); // to be sent
/// client.push(&Welcome { cursors_max: 4, idle_ms: 60_000 }.to_frame().to_bytes());
/// client.push(&Columns { cursor, columns: vec![] }.to_frame().to_bytes());
/// client.push(&End { cursor, rows: 0 }.to_frame().to_bytes());
/// assert!(matches!(client.poll(), Ok(Some(Event::Welcome(_)))));
/// assert!(matches!(client.poll(), Ok(Some(Event::Columns(..)))));
/// assert_eq!(client.poll(), Ok(Some(Event::End(cursor, 0))));
/// ```
#[derive(Debug)]
pub struct Client {
    decoder: Decoder,
    frame_bytes_max: usize,
    is_welcome: bool,
    last: u64,
    cursors: BTreeMap<u64, State>,
    out: Vec<u8>,
}

impl Client {
    /// A client that takes frames of so many bytes at the most.
    pub fn new(frame_bytes_max: usize) -> Client {
        Client {
            decoder: Decoder::new(frame_bytes_max),
            frame_bytes_max,
            is_welcome: false,
            last: 0,
            cursors: BTreeMap::new(),
            out: Vec::new(),
        }
    }

    /// Opens a cursor, of which the server sends so many bytes of rows before it waits until some are consumed. An error where the question
    /// has more bytes, or arguments, than a server takes.
    pub fn open(&mut self, question: Question, window: u64) -> Result<u64, DecodeError> {
        let (cursor, window) = (self.last + 1, window.clamp(1, CREDIT_MAX / 2));
        let frame = Open { cursor, question, credit: window }.to_frame();
        Open::from_payload(&frame.payload(REQUEST_BYTES_MAX)?)?;
        if frame.plain_bytes() > REQUEST_BYTES_MAX {
            let (actual, limit) = (frame.plain_bytes() as u64, REQUEST_BYTES_MAX as u64);
            return Err(DecodeError::TooLarge { field: "question", actual, limit });
        }
        self.last = cursor;
        let credit = window.cast_signed();
        let state = State { columns: None, credit, consumed: 0, window, rows: 0, is_cancelled: false };
        self.cursors.insert(cursor, state);
        frame.write(&mut self.out);
        Ok(cursor)
    }

    /// Rows of so many bytes are consumed: there may come more. What is given back goes in few messages, before half of all is used.
    pub fn consumed(&mut self, cursor: u64, bytes: usize) {
        let Some(state) = self.cursors.get_mut(&cursor) else { return };
        state.consumed += bytes as u64;
        if state.consumed < state.window.div_ceil(2) || state.is_cancelled {
            return;
        }
        let bytes = std::mem::take(&mut state.consumed);
        state.credit += bytes.cast_signed();
        Credit { cursor, bytes }.to_frame().write(&mut self.out);
    }

    /// No more rows of it are wanted. It ends nonetheless, by [`Event::End`] or [`Event::Failed`]; what comes before that is not told.
    pub fn cancel(&mut self, cursor: u64) {
        let Some(state) = self.cursors.get_mut(&cursor).filter(|state| !state.is_cancelled) else { return };
        state.is_cancelled = true;
        Cancel { cursor }.to_frame().write(&mut self.out);
    }

    /// Bytes to be sent; none: there is nothing to say.
    pub fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Adds bytes that came. All that they tell is to be polled before there are more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// Whether the stream stands between two frames, and no cursor is open: it may end there.
    pub fn is_done(&self) -> bool {
        self.decoder.is_at_boundary() && self.cursors.is_empty()
    }

    /// What has come next; `None`: more bytes are needed. After an error the connection can't go on.
    pub fn poll(&mut self) -> Result<Option<Event>, Misled> {
        while let Some(frame) = self.decoder.next_frame()? {
            if let Some(event) = self.take(frame)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn take(&mut self, frame: Frame) -> Result<Option<Event>, Misled> {
        let kind = frame.kind;
        let payload = frame.into_payload(self.frame_bytes_max)?;
        Ok(Some(match kind {
            Kind::CursorWelcome if !self.is_welcome => {
                self.is_welcome = true;
                Event::Welcome(Welcome::from_payload(&payload)?)
            }
            Kind::CursorFailed => {
                let failed = Failed::from_payload(&payload)?;
                match failed.cursor {
                    0 => Event::Over(failed),
                    cursor => {
                        self.end(cursor)?;
                        Event::Failed(failed)
                    }
                }
            }
            _ if !self.is_welcome => return Err(unexpected("something before WELCOME")),
            Kind::CursorColumns => return self.columns(Columns::from_payload(&payload)?),
            Kind::CursorRows => return self.rows(payload),
            Kind::CursorEnd => {
                let End { cursor, rows } = End::from_payload(&payload)?;
                let state = self.end(cursor)?;
                if !state.is_cancelled && (state.rows != rows || state.columns.is_none()) {
                    let came = state.rows;
                    return Err(unexpected(format!("the end of cursor {cursor} after {came} rows, and says {rows}")));
                }
                Event::End(cursor, rows)
            }
            other => return Err(unexpected(format!("a frame of kind {:#04x}", other as u8))),
        }))
    }

    fn state(&mut self, cursor: u64) -> Result<&mut State, Misled> {
        self.cursors
            .get_mut(&cursor)
            .ok_or_else(|| unexpected(format!("something of cursor {cursor}, which is not open")))
    }

    fn end(&mut self, cursor: u64) -> Result<State, Misled> {
        self.state(cursor)?;
        self.cursors.remove(&cursor).ok_or_else(|| unexpected("the end of a cursor twice"))
    }

    fn columns(&mut self, Columns { cursor, columns }: Columns) -> Result<Option<Event>, Misled> {
        let state = self.state(cursor)?;
        if state.columns.is_some() {
            return Err(unexpected(format!("the columns of cursor {cursor} twice")));
        }
        let (types, columns) = (types_of(&columns), Arc::<[Column]>::from(columns));
        state.columns = Some((Arc::clone(&columns), types));
        Ok((!state.is_cancelled).then_some(Event::Columns(cursor, columns)))
    }

    fn rows(&mut self, payload: Vec<u8>) -> Result<Option<Event>, Misled> {
        let (Rows { cursor, rows }, start) = Rows::from_payload(&payload)?;
        let state = self.state(cursor)?;
        let Some(columns) = state.columns.clone() else {
            return Err(unexpected(format!("rows of cursor {cursor} before its columns")));
        };
        if state.credit <= 0 && !state.is_cancelled {
            return Err(unexpected(format!("rows of cursor {cursor} beyond its credit")));
        }
        let batch = Batch::new(columns, (payload, start), rows);
        if rows == 0 || rows > batch.bytes() as u64 {
            return Err(unexpected(format!("{} bytes as {rows} rows of cursor {cursor}", batch.bytes())));
        }
        state.credit = state.credit.saturating_sub_unsigned(batch.bytes() as u64);
        state.rows = state.rows.saturating_add(rows);
        Ok((!state.is_cancelled).then_some(Event::Rows(cursor, batch)))
    }
}

fn unexpected(what: impl Into<String>) -> Misled {
    Misled::Unexpected { what: what.into() }
}
