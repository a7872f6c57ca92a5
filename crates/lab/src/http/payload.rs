//! What the lab's own server answers: a line with the key, and rows of one column.
//!
//! ```
//! use headwater_lab::http::payload::{Column, Payload, Rows};
//!
//! let rows = Rows::of(Payload { column: Column::Int, bytes: 30_000 });
//! let (head, body) = (Rows::head("k1"), rows.bytes());
//! assert_eq!(head.len() + body.len(), 30_000);
//!
//! let mut crc = flate2::Crc::new();
//! crc.update(&head);
//! crc.update(body);
//! assert_eq!(rows.crc("k1"), crc.sum(), "known without going through all of it again");
//! assert_ne!(rows.crc("k1"), rows.crc("k2"));
//! ```

use std::fmt::Write as _;

use bytes::Bytes;
use flate2::Crc;

use crate::random::Random;
use crate::scenario::Database;
use crate::value::Value;

/// The bytes of the line with the key, its end included.
const HEAD: usize = 64;
/// The fewest bytes of a payload.
pub const BYTES_MIN: i64 = HEAD as i64;
/// And the most.
pub const BYTES_MAX: i64 = 1 << 28;
/// Rows are drawn from this: the same in all runs, so that sizes after compression are too.
const SEED: u64 = 0x4857_6c62;
/// The bytes of a text or a blob.
const LONG: usize = 64;
/// Whole numbers are below this.
const INT_MAX: u64 = 1_000_000;

/// The column of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Whole numbers below a million, each in four bytes.
    Int,
    /// Numbers from 0 to 1, each in four bytes.
    Float,
    /// The same in eight.
    Double,
    /// Texts of 64 letters.
    Text,
    /// 64 bytes by chance.
    Blob,
}

/// The columns by the names that experiments have for them.
const COLUMNS: [(&str, Column); 5] = [
    ("int", Column::Int),
    ("float", Column::Float),
    ("double", Column::Double),
    ("text", Column::Text),
    ("blob", Column::Blob),
];

impl Column {
    /// The one of this name; an error says which there are.
    pub(super) fn named(name: &str) -> Result<Column, String> {
        let found = COLUMNS.into_iter().find(|(known, _)| *known == name);
        found
            .map(|(_, column)| column)
            .ok_or_else(|| format!("have the column {name:?}, only {}", COLUMNS.map(|(known, _)| known).join(", ")))
    }

    fn name(self) -> &'static str {
        COLUMNS.into_iter().find(|(_, column)| *column == self).map_or("", |(name, _)| name)
    }

    /// The bytes of a value.
    fn width(self) -> usize {
        match self {
            Column::Int | Column::Float => 4,
            Column::Double => 8,
            Column::Text | Column::Blob => LONG,
        }
    }

    /// The type that a table's column has for it.
    pub(super) fn sql_type(self, database: Database) -> &'static str {
        match (self, database) {
            (Column::Int, _) => "integer",
            (Column::Float, Database::Mariadb) => "float",
            (Column::Float, _) => "real",
            (Column::Double, _) => "double precision",
            (Column::Text, _) => "varchar(64)",
            (Column::Blob, Database::Postgresql) => "bytea",
            (Column::Blob, _) => "blob",
        }
    }

    /// A value's bytes as a literal of SQL.
    fn literal(self, bytes: &[u8], database: Database) -> String {
        let value = match self {
            Column::Int => bytes.try_into().map(|bytes| Value::Integer(u32::from_be_bytes(bytes).into())),
            // A text of its own: as a double it would have more digits.
            Column::Float => {
                return bytes.try_into().map_or_else(|_| String::new(), |bytes| f32::from_be_bytes(bytes).to_string());
            }
            Column::Double => bytes.try_into().map(|bytes| Value::Real(f64::from_be_bytes(bytes))),
            Column::Text => Ok(Value::Text(String::from_utf8_lossy(bytes).into_owned())),
            Column::Blob => Ok(Value::Bytes(bytes.to_vec())),
        };
        value.map_or_else(|_| String::new(), |value| value.literal(database))
    }

    /// Adds a value's bytes again from its text; none: it is no such value.
    pub(super) fn read(self, text: &[u8], to: &mut Vec<u8>) -> Option<()> {
        let word = || std::str::from_utf8(text).ok();
        match self {
            Column::Int => to.extend(word()?.parse::<u32>().ok()?.to_be_bytes()),
            Column::Float => to.extend(word()?.parse::<f32>().ok()?.to_be_bytes()),
            Column::Double => to.extend(word()?.parse::<f64>().ok()?.to_be_bytes()),
            Column::Text | Column::Blob => to.extend(text),
        }
        Some(())
    }

    fn draw(self, random: &mut Random, to: &mut Vec<u8>) {
        match self {
            Column::Int => to.extend((random.below(INT_MAX) as u32).to_be_bytes()),
            Column::Float => to.extend((random.fraction() as f32).to_be_bytes()),
            Column::Double => to.extend(random.fraction().to_be_bytes()),
            Column::Text => to.extend((0..LONG).map(|_| b'a' + random.below(26) as u8)),
            Column::Blob => (0..LONG / 8).for_each(|_| to.extend(random.bits().to_be_bytes())),
        }
    }
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How much of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// What the rows are.
    pub column: Column,
    /// All bytes, before any compression.
    pub bytes: usize,
}

impl Payload {
    /// How many whole values there is room for.
    fn count(self) -> usize {
        self.bytes / self.column.width()
    }

    /// The bytes that those have, and their CRC-32.
    pub(super) fn of_values(self) -> (u64, u32) {
        let mut crc = Crc::new();
        self.each_value(|value| crc.update(value));
        ((self.count() * self.column.width()) as u64, crc.sum())
    }

    /// The values as rows of an `INSERT`: a place from 1, and the value; so many in a piece.
    pub(super) fn tuples(self, database: Database, rows: usize) -> Vec<String> {
        let (mut pieces, mut place) = (Vec::with_capacity(self.count() / rows + 1), 0);
        self.each_value(|value| {
            if place % rows == 0 {
                pieces.push(String::new());
            }
            let comma = if place % rows == 0 { "" } else { ", " };
            place += 1;
            if let Some(piece) = pieces.last_mut() {
                // Into memory: there is nothing to fail.
                let _ = write!(piece, "{comma}({place}, {})", self.column.literal(value, database));
            }
        });
        pieces
    }

    fn each_value(self, mut each: impl FnMut(&[u8])) {
        let (mut random, mut value) = (Random::seeded(SEED), Vec::with_capacity(LONG));
        for _ in 0..self.count() {
            value.clear();
            self.column.draw(&mut random, &mut value);
            each(&value);
        }
    }
}

/// The rows of a payload, made once; only the line with the key differs from one answer to another.
#[derive(Debug)]
pub struct Rows {
    bytes: Bytes,
    crc: Crc,
}

impl Rows {
    /// Makes them; the last row may be cut.
    pub fn of(payload: Payload) -> Rows {
        let length = payload.bytes.saturating_sub(HEAD);
        let (mut random, mut bytes) = (Random::seeded(SEED), Vec::with_capacity(length + LONG));
        while bytes.len() < length {
            payload.column.draw(&mut random, &mut bytes);
        }
        bytes.truncate(length);
        let mut crc = Crc::new();
        crc.update(&bytes);
        Rows { bytes: bytes.into(), crc }
    }

    /// The rows, without the line before them.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The line with the key, of which it has as much as there is room for.
    pub fn head(key: &str) -> [u8; HEAD] {
        let mut head = [b' '; HEAD];
        head.iter_mut().zip(key.bytes().take(HEAD - 1)).for_each(|(to, from)| *to = from);
        head[HEAD - 1] = b'\n';
        head
    }

    /// The CRC-32 of all that is answered for a key.
    pub fn crc(&self, key: &str) -> u32 {
        let mut crc = Crc::new();
        crc.update(&Rows::head(key));
        crc.combine(&self.crc);
        crc.sum()
    }
}
