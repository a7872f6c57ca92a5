//! What each frame of a cursor connection holds, field by field.

use super::{
    ARGUMENTS_MAX, COLUMNS_MAX, CREDIT_MAX, CURSORS_MAX, NAME_BYTES_MAX, REQUEST_BYTES_MAX, TEXT_BYTES_MAX, VERSION,
};
use crate::frame::{Frame, Kind};
use crate::value::Type;
use crate::wire::{DecodeError, Reader, Write, whole};

/// What the server says first: what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Cursors on this connection at a time.
    pub cursors_max: u64,
    /// Milliseconds after which a connection without cursors, or a cursor whose client gives no credit, is ended.
    pub idle_ms: u64,
}

/// What rows are wanted of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A named query, and its arguments by their names, as texts.
    Named(String, Vec<(String, String)>),
    /// SQL, and what stands for each `?` in it, as texts.
    Sql(String, Vec<String>),
}

/// Opens a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its number: greater than all before on this connection, and not 0.
    pub cursor: u64,
    /// What is asked.
    pub question: Question,
    /// Bytes of rows that may be sent before there is more credit.
    pub credit: u64,
}

/// Gives a cursor more credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The cursor.
    pub cursor: u64,
    /// How much more.
    pub bytes: u64,
}

/// Says that no more rows of a cursor are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The cursor.
    pub cursor: u64,
}

/// A column of a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The type of its values; `None`: the database can't tell. A value may be of another in SQLite all the same.
    pub kind: Option<Type>,
    /// The database's name for its type; may be empty.
    pub declared: String,
}

/// The columns of a cursor, before its first row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The cursor.
    pub cursor: u64,
    /// Its columns.
    pub columns: Vec<Column>,
}

/// The head of a message of rows; they follow it, to the frame's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The cursor.
    pub cursor: u64,
    /// How many follow.
    pub rows: u64,
}

/// All rows of a cursor have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The cursor.
    pub cursor: u64,
    /// How many.
    pub rows: u64,
}

/// A cursor has ended without all of its rows, or the connection has (cursor 0).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The cursor; 0: all of them.
    pub cursor: u64,
    /// A stable name of what is wrong.
    pub code: String,
    /// For people.
    pub message: String,
    /// When to come again; 0: that would not help.
    pub retry_after_ms: u64,
}

/// The number of a cursor, which is not 0.
fn cursor_of(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    match reader.varint("cursor")? {
        0 => Err(DecodeError::Undefined { field: "cursor", actual: 0 }),
        cursor => Ok(cursor),
    }
}

/// A number that is at most so much.
fn at_most(reader: &mut Reader<'_>, limit: u64, field: &'static str) -> Result<u64, DecodeError> {
    match reader.varint(field)? {
        actual if actual > limit => Err(DecodeError::TooLarge { field, actual, limit }),
        actual => Ok(actual),
    }
}

impl Welcome {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = vec![VERSION];
        out.put_varint(self.cursors_max);
        out.put_varint(self.idle_ms);
        Frame::new(Kind::CursorWelcome, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Welcome, DecodeError> {
        whole(payload, "cursor welcome", |reader| {
            let version = reader.u8("version")?;
            if version != VERSION {
                return Err(DecodeError::Undefined { field: "version", actual: version.into() });
            }
            let cursors_max = at_most(reader, CURSORS_MAX, "cursors")?;
            Ok(Welcome { cursors_max, idle_ms: reader.varint("idle time")? })
        })
    }
}

const NAMED: u8 = 1;
const SQL: u8 = 2;

impl Open {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(self.cursor);
        out.put_varint(self.credit);
        match &self.question {
            Question::Named(name, arguments) => {
                out.push(NAMED);
                out.put_bytes(name.as_bytes());
                out.put_varint(arguments.len() as u64);
                for (name, value) in arguments {
                    out.put_bytes(name.as_bytes());
                    out.put_bytes(value.as_bytes());
                }
            }
            Question::Sql(sql, arguments) => {
                out.push(SQL);
                out.put_bytes(sql.as_bytes());
                out.put_varint(arguments.len() as u64);
                for value in arguments {
                    out.put_bytes(value.as_bytes());
                }
            }
        }
        Frame::new(Kind::CursorOpen, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Open, DecodeError> {
        whole(payload, "cursor open", |reader| {
            let cursor = cursor_of(reader)?;
            let credit = at_most(reader, CREDIT_MAX, "credit")?;
            let text = |reader: &mut Reader<'_>, field| {
                Ok::<_, DecodeError>(reader.text(REQUEST_BYTES_MAX, field)?.to_owned())
            };
            let question = match reader.u8("question")? {
                NAMED => {
                    let name = reader.text(NAME_BYTES_MAX, "name of a query")?.to_owned();
                    let count = reader.count(ARGUMENTS_MAX, "number of arguments")?;
                    let argument = |_| Ok((text(reader, "name of an argument")?, text(reader, "argument")?));
                    Question::Named(name, (0..count).map(argument).collect::<Result<_, DecodeError>>()?)
                }
                SQL => {
                    let sql = text(reader, "SQL")?;
                    let count = reader.count(ARGUMENTS_MAX, "number of arguments")?;
                    Question::Sql(sql, (0..count).map(|_| text(reader, "argument")).collect::<Result<_, _>>()?)
                }
                other => return Err(DecodeError::Undefined { field: "question", actual: other.into() }),
            };
            Ok(Open { cursor, question, credit })
        })
    }
}

impl Credit {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(self.cursor);
        out.put_varint(self.bytes);
        Frame::new(Kind::CursorCredit, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Credit, DecodeError> {
        whole(payload, "cursor credit", |reader| {
            Ok(Credit { cursor: cursor_of(reader)?, bytes: at_most(reader, CREDIT_MAX, "credit")? })
        })
    }
}

impl Cancel {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(self.cursor);
        Frame::new(Kind::CursorCancel, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Cancel, DecodeError> {
        whole(payload, "cursor cancel", |reader| Ok(Cancel { cursor: cursor_of(reader)? }))
    }
}

impl Columns {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(self.cursor);
        out.put_varint(self.columns.len() as u64);
        for Column { name, kind, declared } in &self.columns {
            out.put_bytes(name.as_bytes());
            out.push(kind.map_or(0, |kind| kind as u8));
            out.put_bytes(declared.as_bytes());
        }
        Frame::new(Kind::CursorColumns, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Columns, DecodeError> {
        whole(payload, "cursor columns", |reader| {
            let cursor = cursor_of(reader)?;
            let count = reader.count(COLUMNS_MAX, "number of columns")?;
            let column = |_| {
                let name = reader.text(NAME_BYTES_MAX, "name of a column")?.to_owned();
                let kind = match reader.u8("type of a column")? {
                    0 => None,
                    number => Some(
                        Type::from_wire(number)
                            .ok_or(DecodeError::Undefined { field: "type of a column", actual: number.into() })?,
                    ),
                };
                let declared = reader.text(NAME_BYTES_MAX, "declared type")?.to_owned();
                Ok(Column { name, kind, declared })
            };
            Ok(Columns { cursor, columns: (0..count).map(column).collect::<Result<_, DecodeError>>()? })
        })
    }
}

impl Rows {
    /// The frame of rows that are encoded already, in a buffer that begins with [`Rows::HEAD_BYTES`] to be filled.
    pub fn to_frame(&self, rows: &[u8]) -> Frame {
        let mut out = Vec::with_capacity(rows.len() + Rows::HEAD_BYTES);
        out.put_varint(self.cursor);
        out.put_varint(self.rows);
        out.extend_from_slice(rows);
        Frame::new(Kind::CursorRows, out)
    }

    /// The most bytes before the rows.
    pub const HEAD_BYTES: usize = 20;

    /// Reads the head, and how many bytes it takes of the payload.
    pub fn from_payload(payload: &[u8]) -> Result<(Rows, usize), DecodeError> {
        let mut reader = Reader::new(payload);
        let cursor = cursor_of(&mut reader)?;
        // A row has a byte at least, but for those without columns.
        let rows = reader.varint("number of rows")?;
        Ok((Rows { cursor, rows }, payload.len() - reader.rest().len()))
    }
}

impl End {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(self.cursor);
        out.put_varint(self.rows);
        Frame::new(Kind::CursorEnd, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<End, DecodeError> {
        whole(payload, "cursor end", |reader| {
            Ok(End { cursor: cursor_of(reader)?, rows: reader.varint("number of rows")? })
        })
    }
}

impl Failed {
    /// The frame. What is too long is cut.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::new();
        out.put_varint(self.cursor);
        out.put_varint(self.retry_after_ms);
        out.put_bytes(cut(&self.code).as_bytes());
        out.put_bytes(cut(&self.message).as_bytes());
        Frame::new(Kind::CursorFailed, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<Failed, DecodeError> {
        whole(payload, "cursor failed", |reader| {
            let cursor = reader.varint("cursor")?;
            let retry_after_ms = reader.varint("time to come again")?;
            let code = reader.text(TEXT_BYTES_MAX, "code")?.to_owned();
            let message = reader.text(TEXT_BYTES_MAX, "message")?.to_owned();
            Ok(Failed { cursor, code, message, retry_after_ms })
        })
    }
}

/// As much of a text as there is room for.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}
