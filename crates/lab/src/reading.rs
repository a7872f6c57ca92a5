//! TOML in, entry by entry, with every complaint kept and placed: what experiments and scenarios are read with.
//!
//! *Caveats.* A file that is no TOML is told so and looked at no further.

use std::ops::Range;
use std::time::Duration;

use headwater_model::parse::{closest, describe};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A place in a file, in bytes.
pub type Span = Range<usize>;

/// One thing that is wrong with a file.
///
/// Its text is one line: `tpcb.toml:12:7: unknown key "client" in [load], expected ...; did you mean "clients"?`
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {found}, expected {expected}{}", .hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
pub struct SpecError {
    /// The file's name, as it was given.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters, from 1.
    pub column: usize,
    /// What was found.
    pub found: String,
    /// What is expected there.
    pub expected: String,
    /// What probably mends it.
    pub hint: Option<String>,
}

/// Collects what is wrong while a file's tree is read.
pub(crate) struct Reader<'t> {
    file: &'t str,
    text: &'t str,
    errors: Vec<(usize, SpecError)>,
}

/// One `name = value`.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) key_start: usize,
    pub(crate) value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Entry<'a> {
    /// The value's place.
    pub(crate) fn span(&self) -> Span {
        self.value.span()
    }

    pub(crate) fn key_span(&self) -> Span {
        self.key_start..self.key_start + self.name.len()
    }

    fn item(&self, value: &'a Spanned<DeValue<'a>>) -> Entry<'a> {
        Entry { name: self.name, key_start: value.span().start, value }
    }

    /// The items of an array, each under the array's name; a value that is none is the only item.
    pub(crate) fn items(&self) -> Vec<Entry<'a>> {
        match self.value.get_ref() {
            DeValue::Array(array) => array.iter().map(|value| self.item(value)).collect(),
            _ => vec![*self],
        }
    }
}

/// The entries of a table.
pub(crate) fn entries<'a>(table: &'a DeTable<'a>) -> Vec<Entry<'a>> {
    table.iter().map(|(key, value)| Entry { name: key.get_ref(), key_start: key.span().start, value }).collect()
}

/// Reads a file's tree by `read`, and gives what it made, or everything that is wrong in the file's order.
pub(crate) fn read<T>(
    file: &str,
    text: &str,
    read: impl FnOnce(&mut Reader<'_>, &DeTable<'_>) -> Option<T>,
) -> Result<T, Vec<SpecError>> {
    let mut reader = Reader { file, text, errors: Vec::new() };
    let (tree, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let message = error.message().trim().replace('\n', ", ");
        let (found, expected) = message.split_once(", expected ").unwrap_or((&message, "TOML"));
        reader.error(&error.span().unwrap_or(0..0), format!("the file is not TOML: {found}"), expected);
    }
    let value = if reader.is_clean() { read(&mut reader, tree.get_ref()) } else { None };
    reader.errors.sort_by_key(|(offset, _)| *offset);
    match value {
        Some(value) if reader.errors.is_empty() => Ok(value),
        _ => Err(reader.errors.into_iter().map(|(_, error)| error).collect()),
    }
}

impl Reader<'_> {
    pub(crate) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    pub(crate) fn error(&mut self, span: &Span, found: impl Into<String>, expected: impl Into<String>) {
        self.error_hint(span, found, expected, None);
    }

    fn error_hint(&mut self, span: &Span, found: impl Into<String>, expected: impl Into<String>, hint: Option<String>) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let (file, found, expected) = (self.file.to_owned(), found.into(), expected.into());
        self.errors.push((span.start, SpecError { file, line, column, found, expected, hint }));
    }

    /// Takes the complaints of another file over, placed where it is named.
    pub(crate) fn foreign(&mut self, span: &Span, errors: Vec<SpecError>) {
        self.errors.extend(errors.into_iter().map(|error| (span.start, error)));
    }

    /// Complains of a word that is none of the known ones, and says which are.
    pub(crate) fn unknown<'c>(
        &mut self,
        span: &Span,
        found: String,
        word: &str,
        known: impl IntoIterator<Item = &'c str>,
    ) {
        let known: Vec<_> = known.into_iter().collect();
        let hint = closest(word, known.iter().copied()).map(|near| format!("did you mean {near:?}?"));
        let expected = match known.as_slice() {
            [] => "none, for there are none".to_owned(),
            [only] => (*only).to_owned(),
            [first @ .., last] => format!("{} or {last}", first.join(", ")),
        };
        self.error_hint(span, found, expected, hint);
    }

    /// Complains of the entries that are none of the allowed ones.
    pub(crate) fn allow(&mut self, entries: &[Entry<'_>], what: &str, allowed: &[&str]) {
        for entry in entries.iter().filter(|entry| !allowed.contains(&entry.name)) {
            let found = format!("unknown key {:?} in {what}", entry.name);
            self.unknown(&entry.key_span(), found, entry.name, allowed.iter().copied());
        }
    }

    /// The entries of an entry that must be a table.
    pub(crate) fn table<'a>(&mut self, entry: &Entry<'a>) -> Option<Vec<Entry<'a>>> {
        match entry.value.get_ref() {
            DeValue::Table(table) => Some(entries(table)),
            _ => self.mismatch(entry, "a table"),
        }
    }

    /// The items of an entry that must be an array.
    pub(crate) fn array<'a>(&mut self, entry: &Entry<'a>) -> Option<Vec<Entry<'a>>> {
        match entry.value.get_ref() {
            DeValue::Array(_) => Some(entry.items()),
            _ => self.mismatch(entry, "an array"),
        }
    }

    pub(crate) fn string(&mut self, entry: &Entry<'_>) -> Option<String> {
        match entry.value.get_ref() {
            DeValue::String(text) => Some(text.clone().into_owned()),
            _ => self.mismatch(entry, "a string"),
        }
    }

    /// A whole number in a range.
    pub(crate) fn integer(&mut self, entry: &Entry<'_>, range: Range<i64>) -> Option<i64> {
        let number = integer(entry.value.get_ref()).filter(|number| range.contains(number));
        let expected = if range.end == i64::MAX {
            format!("a whole number from {}", range.start)
        } else {
            format!("a whole number from {} to {}", range.start, range.end - 1)
        };
        number.or_else(|| self.mismatch(entry, &expected))
    }

    /// A number above `above` and at most `most`.
    pub(crate) fn number(&mut self, entry: &Entry<'_>, above: f64, most: f64) -> Option<f64> {
        let number = number(entry.value.get_ref()).filter(|number| *number > above && *number <= most);
        let most = if most.is_finite() { format!(" and at most {most}") } else { String::new() };
        number.or_else(|| self.mismatch(entry, &format!("a number above {above}{most}")))
    }

    /// A time: a string of a number and `us`, `ms`, `s`, `m` or `h`.
    pub(crate) fn duration(&mut self, entry: &Entry<'_>) -> Option<Duration> {
        let duration = match entry.value.get_ref() {
            DeValue::String(text) => duration(text),
            _ => None,
        };
        duration.or_else(|| self.mismatch(entry, "a time as \"10s\": a number and us, ms, s, m or h, up to 7 days"))
    }

    pub(crate) fn mismatch<T>(&mut self, entry: &Entry<'_>, expected: &str) -> Option<T> {
        self.error(&entry.span(), format!("{} is {}", entry.name, describe(entry.value.get_ref())), expected);
        None
    }
}

pub(crate) fn integer(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

pub(crate) fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(number) => number.as_str().parse().ok().filter(|number: &f64| number.is_finite()),
        value => integer(value).map(|number| number as f64),
    }
}

/// Nothing that is measured lasts longer.
const DURATION_MAX: Duration = Duration::from_hours(7 * 24);

fn duration(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = text[..end].trim().parse().ok()?;
    let unit = match &text[end..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * unit).ok().filter(|duration| *duration <= DURATION_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit_alone() {
        let read = ["10s", "1.5 ms", "250us", "2m", "1h"].map(|text| duration(text).map(|d| d.as_micros()));
        assert_eq!(read, [10_000_000, 1500, 250, 120_000_000, 3_600_000_000].map(Some));
        for wrong in ["10", "", "s", "-1s", "1d", "infs", "NaNs", "1e300h", "10 parsecs", "169h"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
