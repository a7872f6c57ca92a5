//! The keys of an experiment whose values may be lists, and what a value of each must be.

use crate::reading::{Entry, Reader};
use crate::value::Value;

/// The sections, with their keys.
pub(super) const SECTIONS: [(&str, &[(&str, Kind)]); 3] = [
    (
        "target",
        &[
            ("url", Kind::Text),
            ("setup", Kind::Text),
            ("setup_postgresql", Kind::Text),
            ("setup_mariadb", Kind::Text),
            ("setup_sqlite", Kind::Text),
            ("proxy", Kind::Text),
            ("replica_url", Kind::Text),
        ],
    ),
    (
        "load",
        &[
            ("clients", Kind::Count(10_000)),
            ("arrival", Kind::Word(&["closed", "constant", "poisson"])),
            ("think", Kind::Time),
            ("ramp", Kind::Time),
            ("rate", Kind::Number(1e7)),
            ("queue_max", Kind::Count(1_000_000_000)),
            ("timeout", Kind::Time),
            ("threads", Kind::Count(1024)),
        ],
    ),
    (
        "stop",
        &[
            ("warmup", Kind::Time),
            ("steady_within", Kind::Time),
            ("iterations", Kind::Count(1_000_000_000_000)),
            ("duration", Kind::Time),
            ("interval", Kind::Number(100.0)),
            ("at_most", Kind::Time),
        ],
    ),
];

/// What a value must be.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A string.
    Text,
    /// One of these.
    Word(&'static [&'static str]),
    /// A whole number from 1 to this.
    Count(i64),
    /// A number above 0, up to this.
    Number(f64),
    /// A time.
    Time,
}

impl Kind {
    pub(super) fn read(self, reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<Value> {
        match self {
            Kind::Text => reader.string(entry).map(Value::Text),
            Kind::Word(known) => {
                let word = reader.string(entry)?;
                if !known.contains(&word.as_str()) {
                    let found = format!("{} is {word:?}", entry.name);
                    reader.unknown(&entry.span(), found, &word, known.iter().copied());
                }
                Some(Value::Text(word))
            }
            Kind::Count(most) => reader.integer(entry, 1..most + 1).map(Value::Integer),
            Kind::Number(most) => reader.number(entry, 0.0, most).map(Value::Real),
            Kind::Time => reader.duration(entry).map(Value::Time),
        }
    }
}
