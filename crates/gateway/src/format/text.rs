//! Rows as JSON, NDJSON and CSV.

use std::io::Write as _;
use std::str::from_utf8;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_protocol::stored::{Scratch, Stored, encode};
use headwater_protocol::{Type, ValueRef};

use super::{Column, Format, Unfit, texts_fit};

/// The greatest whole number that every reader of JSON takes exactly (RFC 8259, 6): 2^53 - 1.
const EXACT_MAX: u64 = (1 << 53) - 1;

/// An answer in one of the text forms.
#[derive(Debug)]
pub(super) struct TextWriter {
    format: Format,
    columns: Vec<String>,
    /// Their names, as JSON texts with their colons.
    names: Vec<Vec<u8>>,
    out: Vec<u8>,
    rows: u64,
    scratch: Scratch,
}

impl TextWriter {
    /// Begins an answer.
    pub(super) fn begin(format: Format, columns: Vec<Column>) -> TextWriter {
        let mut out = Vec::new();
        match format {
            Format::Json | Format::JsonArrays => {
                out.extend(b"{\"columns\":[");
                for (place, column) in columns.iter().enumerate() {
                    separate(&mut out, place);
                    out.extend(b"{\"name\":");
                    json_text(&mut out, &column.name);
                    let (name, form) = column.kind.map_or(("any", "any"), |kind| (kind.name(), json_form(kind)));
                    let _ = write!(out, ",\"type\":\"{name}\",\"json\":\"{form}\"}}");
                }
                out.extend(b"],\"rows\":[");
            }
            Format::Csv => {
                for (place, column) in columns.iter().enumerate() {
                    separate(&mut out, place);
                    csv_text(&mut out, column.name.as_bytes());
                }
                out.extend(b"\r\n");
            }
            Format::Ndjson | Format::Arrow => {}
        }
        let columns: Vec<String> = columns.into_iter().map(|column| column.name).collect();
        let name = |column: &String| {
            let mut name = Vec::new();
            json_text(&mut name, column);
            name.push(b':');
            name
        };
        let names = columns.iter().map(name).collect();
        TextWriter { format, columns, names, out, rows: 0, scratch: Scratch::default() }
    }

    /// Adds a row: a value for each column.
    pub(super) fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Unfit> {
        self.rows += 1;
        match self.write(values) {
            Some(()) => Ok(()),
            None => texts_fit(self.columns.iter().map(String::as_str), values, self.rows),
        }
    }

    /// `None`: a text is none.
    fn write(&mut self, values: &[ValueRef<'_>]) -> Option<()> {
        let TextWriter { format, columns: _, names, out, rows, scratch } = self;
        match format {
            Format::Json | Format::JsonArrays => {
                out.extend(if *rows == 1 { &b"\n"[..] } else { b",\n" });
            }
            Format::Ndjson | Format::Csv | Format::Arrow => {}
        }
        match format {
            Format::Json | Format::Ndjson => {
                out.push(b'{');
                for (place, (name, value)) in names.iter().zip(values).enumerate() {
                    separate(out, place);
                    out.extend(name);
                    json_value(out, *value, scratch)?;
                }
                out.push(b'}');
            }
            Format::JsonArrays => {
                out.push(b'[');
                for (place, value) in values.iter().enumerate() {
                    separate(out, place);
                    json_value(out, *value, scratch)?;
                }
                out.push(b']');
            }
            Format::Csv => {
                for (place, value) in values.iter().enumerate() {
                    separate(out, place);
                    csv_value(out, *value, scratch)?;
                }
                out.extend(b"\r\n");
            }
            Format::Arrow => {}
        }
        if *format == Format::Ndjson {
            out.push(b'\n');
        }
        Some(())
    }

    /// Ends the answer; `next`: the URL of the next page.
    pub(super) fn end(&mut self, next: Option<&str>) {
        if let Format::Json | Format::JsonArrays = self.format {
            let _ = write!(self.out, "\n],\"count\":{}", self.rows);
            if let Some(next) = next {
                self.out.extend(b",\"next\":");
                json_text(&mut self.out, next);
            }
            self.out.extend(b"}\n");
        }
    }

    /// What has been written since it was taken last.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Bytes that wait to be taken.
    pub(super) fn waiting(&self) -> usize {
        self.out.len()
    }
}

fn separate(out: &mut Vec<u8>, place: usize) {
    if place > 0 {
        out.push(b',');
    }
}

/// What a type's values are in JSON.
fn json_form(kind: Type) -> &'static str {
    match kind {
        Type::Bool => "boolean",
        Type::Int => "number, string beyond 2^53-1",
        Type::Real => "number, string if not finite",
        Type::Bytes => "string, base64",
        Type::Json => "any",
        _ => "string",
    }
}

/// A value in JSON; `None`: it is a text that is none, and what is written of it is to be thrown away.
pub(super) fn json_value(out: &mut Vec<u8>, value: ValueRef<'_>, scratch: &mut Scratch) -> Option<()> {
    match value {
        ValueRef::Null => out.extend(b"null"),
        ValueRef::Bool(truth) => out.extend(if truth { &b"true"[..] } else { b"false" }),
        ValueRef::Int(number) if number.unsigned_abs() <= EXACT_MAX => {
            let _ = write!(out, "{number}");
        }
        ValueRef::Int(number) => {
            let _ = write!(out, "\"{number}\"");
        }
        ValueRef::Real(real) if real.is_finite() => {
            let _ = write!(out, "{real:?}"); // `1e300` and `1.0`: shorter than all digits, and as exact
        }
        ValueRef::Real(real) => {
            let _ = write!(out, "\"{}\"", real_name(real));
        }
        ValueRef::Json(bytes) => match from_utf8(bytes).ok()? {
            // Lines are rows.
            json if is_json(json) => {
                out.extend(json.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
            }
            text => json_text(out, text),
        },
        ValueRef::Text(bytes) => json_text(out, from_utf8(bytes).ok()?),
        ValueRef::Bytes(bytes) => {
            out.push(b'"');
            base64(out, bytes);
            out.push(b'"');
        }
        other => json_text(out, from_utf8(text_bytes(other, scratch)).ok()?),
    }
    Some(())
}

/// Whether a column of JSON has some: SQLite keeps any text there.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn csv_value(out: &mut Vec<u8>, value: ValueRef<'_>, scratch: &mut Scratch) -> Option<()> {
    match value {
        ValueRef::Null => {}
        ValueRef::Text(bytes) | ValueRef::Json(bytes) => csv_text(out, from_utf8(bytes).ok()?.as_bytes()),
        ValueRef::Bytes(b"") => csv_text(out, b""),
        ValueRef::Bytes(bytes) => base64(out, bytes),
        other => plain(out, other, scratch),
    }
    Some(())
}

/// The text of what is neither text nor bytes: none of it has anything that a form of text must escape.
pub(super) fn plain(out: &mut Vec<u8>, value: ValueRef<'_>, scratch: &mut Scratch) {
    match value {
        ValueRef::Bool(truth) => out.extend(if truth { &b"true"[..] } else { b"false" }),
        ValueRef::Int(number) => {
            let _ = write!(out, "{number}");
        }
        ValueRef::Real(real) if real.is_finite() => {
            let _ = write!(out, "{real:?}");
        }
        ValueRef::Real(real) => out.extend(real_name(real).as_bytes()),
        other => out.extend(text_bytes(other, scratch)),
    }
}

fn real_name(real: f64) -> &'static str {
    match real {
        _ if real.is_nan() => "NaN",
        _ if real > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}

/// Of what SQLite stores as text.
fn text_bytes<'s>(value: ValueRef<'s>, scratch: &'s mut Scratch) -> &'s [u8] {
    match encode(value, scratch) {
        Stored::Text(bytes) | Stored::Blob(bytes) => bytes,
        Stored::Null | Stored::Integer(_) | Stored::Real(_) => b"",
    }
}

fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The room is as long as the encoding is said to be.
    let _ = STANDARD.encode_slice(bytes, &mut out[start..]);
}

/// A text as JSON has it.
fn json_text(out: &mut Vec<u8>, text: &str) {
    // A vector takes whatever it is given.
    let _ = serde_json::to_writer(out, text);
}

/// A field of RFC 4180: in quotes where it has a comma, a quote or a line's end, or is empty, which NULL is too.
fn csv_text(out: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() && !bytes.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r')) {
        out.extend(bytes);
        return;
    }
    out.push(b'"');
    for byte in bytes {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}
