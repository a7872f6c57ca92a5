//! The file's tree, entry by entry, with every complaint kept and placed.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ModelError;
use super::hint::{closest, type_of_sql};
use crate::{ColumnType, ColumnTypeError};

/// A place in the file, in bytes.
pub(super) type Span = Range<usize>;

/// Collects what is wrong while the tree is read.
pub(super) struct Reader<'t> {
    file: &'t str,
    text: &'t str,
    errors: Vec<(usize, ModelError)>,
}

/// One `name = value`.
#[derive(Clone)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) key_span: Span,
    /// The value's place.
    pub(super) span: Span,
    pub(super) value: &'a Spanned<DeValue<'a>>,
}

/// A table of the file whose keys are known words.
pub(super) struct Section<'a> {
    pub(super) what: String,
    /// Where to point when something is missing.
    pub(super) span: Span,
    entries: Vec<Entry<'a>>,
}

impl<'a> Section<'a> {
    pub(super) fn entry(&self, key: &str) -> Option<Entry<'a>> {
        self.entries.iter().find(|entry| entry.name == key).cloned()
    }
}

impl<'t> Reader<'t> {
    pub(super) fn new(file: &'t str, text: &'t str) -> Self {
        Reader { file, text, errors: Vec::new() }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// The value, if nothing was wrong; otherwise what was, in the file's order.
    pub(super) fn finish<T>(mut self, value: Option<T>) -> Result<T, Vec<ModelError>> {
        self.errors.sort_by_key(|(offset, _)| *offset);
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(self.errors.into_iter().map(|(_, error)| error).collect()),
        }
    }

    pub(super) fn error(&mut self, span: Span, found: impl Into<String>, expected: impl Into<String>) {
        self.error_hint(span, found, expected, None);
    }

    pub(super) fn error_hint(
        &mut self,
        span: Span,
        found: impl Into<String>,
        expected: impl Into<String>,
        hint: Option<String>,
    ) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let (file, found, expected) = (self.file.to_owned(), found.into(), expected.into());
        self.errors.push((span.start, ModelError { file, line, column, found, expected, hint }));
    }

    /// Complains of a word that is none of the known ones, and says which are.
    pub(super) fn unknown<'c>(&mut self, span: Span, found: String, word: &str, known: impl Iterator<Item = &'c str>) {
        let known: Vec<_> = known.collect();
        let hint = closest(word, known.iter().copied()).map(|near| format!("did you mean {near:?}?"));
        let expected = match known.as_slice() {
            [] => "none, for there are none".to_owned(),
            [only] => only.to_string(),
            [first @ .., last] if first.len() < 20 => format!("{} or {last}", first.join(", ")),
            many => format!("one of the {} there are", many.len()),
        };
        self.error_hint(span, found, expected, hint);
    }

    /// A table's entries, of which each must be one of `allowed`.
    pub(super) fn section<'a>(
        &mut self,
        table: &'a DeTable<'a>,
        span: Span,
        what: &str,
        allowed: &[&str],
    ) -> Section<'a> {
        let entries: Vec<_> = entries_in(table).collect();
        for entry in entries.iter().filter(|entry| !allowed.contains(&entry.name)) {
            let found = format!("unknown key {:?} in {what}", entry.name);
            self.unknown(entry.key_span.clone(), found, entry.name, allowed.iter().copied());
        }
        Section { what: what.to_owned(), span, entries }
    }

    /// The same for an entry that must be a table.
    pub(super) fn section_at<'a>(&mut self, entry: &Entry<'a>, what: &str, allowed: &[&str]) -> Option<Section<'a>> {
        let table = self.table(entry)?;
        Some(self.section(table, entry.key_span.clone(), what, allowed))
    }

    pub(super) fn required<'a>(&mut self, section: &Section<'a>, key: &str, expected: &str) -> Option<Entry<'a>> {
        let entry = section.entry(key);
        if entry.is_none() {
            self.error(section.span.clone(), format!("{} has no {key}", section.what), expected);
        }
        entry
    }

    /// A whole number in a range.
    pub(super) fn integer(&mut self, entry: &Entry<'_>, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let number = match entry.value.get_ref() {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let found = format!("{} is {}", entry.name, describe(entry.value.get_ref()));
            let expected = format!("a whole number from {} to {}", range.start(), range.end());
            self.error(entry.span.clone(), found, expected);
        }
        number
    }

    /// Whether an entry says yes.
    pub(super) fn boolean(&mut self, entry: &Entry<'_>) -> Option<bool> {
        let DeValue::Boolean(yes) = entry.value.get_ref() else {
            let found = format!("{} is {}", entry.name, describe(entry.value.get_ref()));
            self.error(entry.span.clone(), found, "true or false");
            return None;
        };
        Some(*yes)
    }

    /// The entries of an entry that must be a table whose names are free.
    pub(super) fn entries<'a>(&mut self, entry: &Entry<'a>) -> Vec<Entry<'a>> {
        self.table(entry).into_iter().flat_map(entries_in).collect()
    }

    /// The same for an entry of a section; none if it is absent.
    pub(super) fn entries_of<'a>(&mut self, section: &Section<'a>, key: &str) -> Vec<Entry<'a>> {
        section.entry(key).map(|entry| self.entries(&entry)).unwrap_or_default()
    }

    pub(super) fn table<'a>(&mut self, entry: &Entry<'a>) -> Option<&'a DeTable<'a>> {
        match entry.value.get_ref() {
            DeValue::Table(table) => Some(table),
            other => self.mismatch(entry, other, "a table"),
        }
    }

    pub(super) fn string(&mut self, entry: &Entry<'_>) -> Option<String> {
        match entry.value.get_ref() {
            DeValue::String(text) => Some(text.clone().into_owned()),
            other => self.mismatch(entry, other, "a string"),
        }
    }

    /// The entries of an array, each under its array's name.
    pub(super) fn array<'a>(&mut self, entry: &Entry<'a>) -> Vec<Entry<'a>> {
        let DeValue::Array(array) = entry.value.get_ref() else {
            self.mismatch::<()>(entry, entry.value.get_ref(), "an array");
            return Vec::new();
        };
        let item = |value: &'a Spanned<DeValue<'a>>| Entry {
            name: entry.name,
            key_span: value.span(),
            span: value.span(),
            value,
        };
        array.iter().map(item).collect()
    }

    /// A type, with a hint where it is SQL's word for one.
    pub(super) fn kind(&mut self, text: &str, span: &Span) -> Option<ColumnType> {
        let lower = text.trim().to_ascii_lowercase();
        let error = match lower.parse() {
            Ok(kind) => return Some(kind),
            Err(error) => error,
        };
        let word = lower.split('(').next().unwrap_or("").trim();
        let unknown = if matches!(error, ColumnTypeError::Unknown(_)) { "unknown type" } else { "type" };
        let (expected, hint) = match error {
            ColumnTypeError::Unknown(_) => {
                let names = headwater_protocol::Type::ALL.map(headwater_protocol::Type::name);
                let near = type_of_sql(word).or_else(|| closest(word, names));
                (names.join(", "), near.map(|near| format!("did you mean {near:?}?")))
            }
            ColumnTypeError::Limited(_) => {
                (format!("{word:?}"), Some("only decimal takes (precision,scale)".to_owned()))
            }
            ColumnTypeError::Range(_) => ("precision 1 to 1000 and scale 0 to the precision".to_owned(), None),
        };
        self.error_hint(span.clone(), format!("{unknown} {text:?}"), expected, hint);
        None
    }

    pub(super) fn limit<'s>(
        &mut self,
        of: &str,
        what: &str,
        mut spans: impl ExactSizeIterator<Item = &'s Span>,
        max: usize,
    ) {
        let actual = spans.len();
        if let Some(first_beyond) = spans.nth(max) {
            self.error(first_beyond.clone(), format!("{of} has {actual} {what}"), format!("at most {max}"));
        }
    }

    fn mismatch<T>(&mut self, entry: &Entry<'_>, value: &DeValue<'_>, expected: &str) -> Option<T> {
        self.error(entry.span.clone(), format!("{} is {}", entry.name, describe(value)), expected);
        None
    }
}

fn entries_in<'a>(table: &'a DeTable<'a>) -> impl Iterator<Item = Entry<'a>> {
    table.iter().map(|(key, value)| {
        let name: &Cow<'_, str> = key.get_ref();
        Entry { name: name.as_ref(), key_span: key.span(), span: value.span(), value }
    })
}

/// A value, short, as an error shows it: `the string "x"`.
pub fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {text:?}"),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => format!("{value}"),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
