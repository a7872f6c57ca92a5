//! Bristlecone's own files, read as experiments: a Benchmark's `.properties`, an Evaluator's `.xml`.
//!
//! They are written anew in our own form, which is what is run and what results keep. What goes wrong there is told at the line that it
//! comes from. What has no counterpart here is an error, or named in what the experiment says of itself, but never left out in silence.

mod evaluator;
mod properties;

use std::fmt::Write as _;
use std::path::Path;

use crate::reading::SpecError;

/// An experiment in our own form, and which line of the file each of its lines comes from.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    pub(crate) text: String,
    origins: Vec<usize>,
}

impl Translation {
    fn line(&mut self, origin: usize, key: &str, value: &str) {
        let _ = writeln!(self.text, "{key} = {value}");
        self.origins.push(origin);
    }

    /// Errors of the text, at the places of the file.
    pub(crate) fn placed(&self, mut errors: Vec<SpecError>) -> Vec<SpecError> {
        for error in &mut errors {
            error.line = error.line.checked_sub(1).and_then(|line| self.origins.get(line)).copied().unwrap_or(1);
            error.column = 1;
        }
        errors
    }
}

/// The experiment of one of Bristlecone's files; none: it is none.
pub(crate) fn translation(
    file: &str,
    text: &str,
    files: &dyn Fn(&str) -> Result<String, String>,
) -> Option<Result<Translation, Vec<SpecError>>> {
    let path = Path::new(file);
    let faults = Faults { file, all: Vec::new() };
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or("bristlecone");
    match path.extension()?.to_str()? {
        "properties" => Some(properties::translate(name, text, files, faults)),
        "xml" => Some(evaluator::translate(name, text, faults)),
        _ => None,
    }
}

/// What is wrong with a file.
struct Faults<'f> {
    file: &'f str,
    all: Vec<SpecError>,
}

impl Faults<'_> {
    fn add(&mut self, line: usize, found: impl Into<String>, expected: impl Into<String>) {
        let (file, found, expected) = (self.file.to_owned(), found.into(), expected.into());
        self.all.push(SpecError { file, line, column: 1, found, expected, hint: None });
    }

    fn end(mut self, translation: Translation) -> Result<Translation, Vec<SpecError>> {
        self.all.sort_by_key(|fault| fault.line);
        if self.all.is_empty() { Ok(translation) } else { Err(self.all) }
    }
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// One value as it is, several as a list.
fn list(values: &[String]) -> String {
    if let [only] = values { only.clone() } else { format!("[{}]", values.join(", ")) }
}

/// A name that an experiment may have.
fn plain(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let name: String = name.chars().map(plain).take(100).collect();
    if name.is_empty() { "bristlecone".to_owned() } else { name }
}

/// The addresses of Java's that we know.
const JDBC: &str = "jdbc:postgresql://..., jdbc:mysql://..., jdbc:mariadb://... or jdbc:sqlite:FILE";

/// Our address for one of Java's.
fn address(jdbc: &str, user: Option<&str>, password: Option<&str>) -> Option<String> {
    if let Some(file) = jdbc.strip_prefix("jdbc:sqlite:") {
        return Some(format!("sqlite:{file}"));
    }
    let schemes = [
        ("jdbc:postgresql://", "postgres"),
        ("jdbc:mysql://", "mysql"),
        ("jdbc:mysql:thin://", "mysql"),
        ("jdbc:mariadb://", "mariadb"),
    ];
    let of = |(theirs, ours): (&str, &'static str)| jdbc.strip_prefix(theirs).map(|place| (ours, place));
    let (scheme, place) = schemes.into_iter().find_map(of)?;
    let escaped = |text: &str| -> String {
        let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        text.bytes()
            .map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
            .collect()
    };
    let password = password.map(|password| format!(":{}", escaped(password))).unwrap_or_default();
    Some(match user {
        Some(user) => format!("{scheme}://{}{password}@{place}", escaped(user)),
        None => format!("{scheme}://{place}"),
    })
}
