//! Rows as people and programs take them: JSON, NDJSON, CSV, Arrow.
//!
//! | type | JSON and NDJSON | CSV |
//! |---|---|---|
//! | bool | `true` | `true` |
//! | int | a number; a text beyond 2^53 - 1, where readers would round it | `9007199254740993` |
//! | real | a number; NaN and the infinities are texts | `1.5`, `NaN` |
//! | decimal | a text, digit for digit | `1.50` |
//! | text, uuid, date and the like | a text | as it is |
//! | bytes | a text in base64 | base64 |
//! | json | the JSON itself | its text |
//! | NULL | `null` | nothing, where an empty text and no bytes are `""` |
//!
//! A text that is no UTF-8, which a SQLite file may hold, ends the answer: no form has room for it, and none is changed.
//!
//! JSON says in `columns` what each is; what Arrow makes of each is said in `format/arrow.rs`. An answer is written row by row; what has been written is
//! taken in between, so none is held whole.

mod arrow;
mod text;

use headwater_consolidated::results::ResultColumn;
use headwater_protocol::{Type, ValueRef};

use arrow::ArrowWriter;
use text::TextWriter;

/// In which form rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One JSON object; rows as objects.
    Json,
    /// The same; rows as arrays.
    JsonArrays,
    /// A JSON object a line.
    Ndjson,
    /// RFC 4180, with a line of names.
    Csv,
    /// An Arrow IPC stream.
    Arrow,
}

impl Format {
    /// All of them, by the ends of the URLs that ask for them.
    pub const ALL: [(&'static str, Format); 5] = [
        ("json", Format::Json),
        ("arrays.json", Format::JsonArrays),
        ("ndjson", Format::Ndjson),
        ("csv", Format::Csv),
        ("arrow", Format::Arrow),
    ];

    /// Those that `Accept` can ask for.
    pub(crate) const BY_ACCEPT: [Format; 4] = [Format::Json, Format::Ndjson, Format::Csv, Format::Arrow];

    /// What `Content-Type` says.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Json | Format::JsonArrays => "application/json",
            Format::Ndjson => "application/x-ndjson",
            Format::Csv => "text/csv; charset=utf-8; header=present",
            Format::Arrow => "application/vnd.apache.arrow.stream",
        }
    }

    /// The same without parameters: what `Accept` asks for.
    pub(crate) fn media_type(self) -> &'static str {
        self.content_type().split(';').next().unwrap_or_default()
    }

    /// What a request's `Accept` wants most of what there is; `None`: nothing of it. (RFC 9110, 12.5.1. Of equal ones the first here.)
    pub fn accepted(accept: &str) -> Option<Format> {
        let quality = |offered: &str| {
            let matching = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let range = parts.next()?.to_ascii_lowercase();
                let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
                let (kind, _) = offered.split_once('/')?;
                // What names it more closely goes first.
                let closeness = match range.as_str() {
                    exact if exact == offered => 3,
                    "*/*" => 1,
                    group if group.strip_suffix("/*") == Some(kind) => 2,
                    _ => return None,
                };
                Some((closeness, weight))
            });
            matching.max_by_key(|(closeness, _)| *closeness).map_or(0.0, |(_, weight)| weight)
        };
        let best = Format::BY_ACCEPT
            .into_iter()
            .map(|format| (quality(format.media_type()), format))
            .reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.filter(|(quality, _)| *quality > 0.0).map(|(_, format)| format)
    }
}

/// A column of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The type of its values, where it is known.
    pub kind: Option<Type>,
    /// Of a decimal: how many digits it has at most, and how many of them behind the point, where the database says it.
    pub digits: Option<(u8, u8)>,
}

impl From<&ResultColumn> for Column {
    fn from(column: &ResultColumn) -> Column {
        let digits = (column.kind == Some(Type::Decimal)).then(|| digits_of(&column.declared)).flatten();
        Column { name: column.name.clone(), kind: column.kind, digits }
    }
}

/// `numeric(10,2)`: 10 and 2. A number alone has nothing behind the point.
fn digits_of(declared: &str) -> Option<(u8, u8)> {
    let (_, inside) = declared.strip_suffix(')')?.split_once('(')?;
    let (digits, scale) = inside.split_once(',').unwrap_or((inside, "0"));
    Some((digits.trim().parse().ok()?, scale.trim().parse().ok()?))
}

/// A value that the form has no room for: the answer ends there. JSON and CSV have room for all but a text that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(String);

/// Whether every text of a row is one, in UTF-8: SQLite keeps any bytes as a text. `row`: its number, from 1.
pub fn texts_fit<'n>(names: impl IntoIterator<Item = &'n str>, values: &[ValueRef<'_>], row: u64) -> Result<(), Unfit> {
    let odd = names.into_iter().zip(values).find_map(|(name, value)| match value {
        ValueRef::Text(bytes) | ValueRef::Json(bytes) if std::str::from_utf8(bytes).is_err() => Some((name, bytes)),
        _ => None,
    });
    let Some((name, bytes)) = odd else { return Ok(()) };
    let shown: String = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).chars().take(60).collect();
    Err(Unfit(format!(
        "column {name:?} has in row {row} the text {shown:?}, which is not UTF-8: mend it in the database, or have the query give \
         its bytes by CAST(... AS BLOB)"
    )))
}

/// An answer that is being written.
///
/// ```
/// use headwater_gateway::format::{Column, Encoder, Format};
/// use headwater_protocol::{Type, ValueRef};
///
/// let columns = vec![Column { name: "id".to_owned(), kind: Some(Type::Int), digits: None }];
/// let mut csv = Encoder::begin(Format::Csv, columns);
/// csv.row(&[ValueRef::Int(7)])?;
/// csv.end(None)?;
/// assert_eq!(csv.take(), b"id\r\n7\r\n");
/// # Ok::<(), headwater_gateway::format::Unfit>(())
/// ```
#[derive(Debug)]
pub struct Encoder {
    writer: Writer,
    rows: u64,
}

#[derive(Debug)]
enum Writer {
    Text(TextWriter),
    Arrow(Box<ArrowWriter>),
}

impl Encoder {
    /// Begins an answer.
    pub fn begin(format: Format, columns: Vec<Column>) -> Encoder {
        let writer = match format {
            Format::Arrow => Writer::Arrow(Box::new(ArrowWriter::begin(columns))),
            text => Writer::Text(TextWriter::begin(text, columns)),
        };
        Encoder { writer, rows: 0 }
    }

    /// Adds a row: a value for each column. After an error the answer is none: nothing more can be added.
    pub fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Unfit> {
        self.rows += 1;
        match &mut self.writer {
            Writer::Text(writer) => writer.row(values),
            Writer::Arrow(writer) => writer.row(values),
        }
    }

    /// Ends the answer; `next`: the URL of the next page, which JSON says too.
    pub fn end(&mut self, next: Option<&str>) -> Result<(), Unfit> {
        match &mut self.writer {
            Writer::Text(writer) => writer.end(next),
            Writer::Arrow(writer) => writer.end()?,
        }
        Ok(())
    }

    /// What has been written since it was taken last.
    pub fn take(&mut self) -> Vec<u8> {
        match &mut self.writer {
            Writer::Text(writer) => writer.take(),
            Writer::Arrow(writer) => writer.take(),
        }
    }

    /// Bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        match &self.writer {
            Writer::Text(writer) => writer.waiting(),
            Writer::Arrow(writer) => writer.waiting(),
        }
    }

    /// Rows until now.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

#[cfg(test)]
mod tests;
