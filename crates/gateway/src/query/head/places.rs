//! In which line of a head each of its keys stands.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

/// The lines of keys, by their paths: `page_by`, `parameters.month`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::query) struct Places(BTreeMap<String, usize>);

impl Places {
    /// Those of a text of TOML; of one that is none, none.
    pub(super) fn of(toml: &str) -> Places {
        let mut places = Places::default();
        if let Ok(table) = DeTable::parse(toml) {
            places.add(toml, "", table.get_ref());
        }
        places
    }

    fn add(&mut self, toml: &str, before: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = format!("{before}{}", key.get_ref());
            self.0.insert(path.clone(), line_of(toml, key.span().start));
            if let DeValue::Table(below) = value.get_ref() {
                self.add(toml, &format!("{path}."), below);
            }
        }
    }

    /// The line of a key; of one that is not there, the first.
    pub(in crate::query) fn line(&self, path: &str) -> usize {
        self.0.get(path).copied().unwrap_or(1)
    }
}

/// The line, from 1, of a place in a text.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}
