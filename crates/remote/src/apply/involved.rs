//! Which rows of a table can't simply be stored: those with a pending change, a held row or an open conflict.
//!
//! They are few, and a download may be large, so their keys are kept in memory: what is not among them has nothing in its way. Kept is a
//! hash of what SQLite may take for the same key. Two keys with the same one cost a look at the database, and nothing else.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use headwater_protocol::stored::Stored;

use crate::error::{Error, While};
use crate::local::{Local, from_wire, stored};
use crate::plan::TablePlan;
use crate::rows::Rows;

/// How many keys are kept; with more, each row of the table is looked up.
const KEYS_MAX: usize = 10_000;

/// The keys of such rows.
#[derive(Debug, Default)]
pub(super) struct Involved(HashSet<u64>);

impl Involved {
    /// Reads them; `None`: there are too many.
    pub(super) fn read(rows: &Rows<'_>, table: &TablePlan) -> Result<Option<Involved>, Error> {
        let mut involved = Involved::default();
        if table.is_tracked() {
            let sql = format!("SELECT {} FROM {} LIMIT {}", table.keys("k_").join(", "), table.log(), KEYS_MAX + 1);
            let mut select = rows.prepare(&sql)?;
            let mut found = select.raw_query();
            while let Some(row) = found.next().while_doing("reading the log")? {
                let mut sum = KeySum::default();
                for place in 0..table.key_types.len() {
                    sum.add(place, stored(row.get_ref(place).while_doing("reading the log")?));
                }
                involved.0.insert(sum.0);
            }
        }
        let sql = format!(
            "SELECT \"key\" FROM \"hw_held\" WHERE \"table\" = ?1 \
             UNION ALL SELECT \"key\" FROM \"hw_conflict\" WHERE \"table\" = ?1 AND \"is_open\" = 1 LIMIT {}",
            KEYS_MAX + 1
        );
        let mut select = rows.prepare(&sql)?;
        let mut found = select.query([table.number]).while_doing("reading held rows")?;
        while let Some(row) = found.next().while_doing("reading held rows")? {
            let key: Vec<u8> = row.get(0).while_doing("reading held rows")?;
            involved.insert(&from_wire(&rows.key_of_bytes(table, &key)?));
        }
        Ok(Some(involved).filter(|involved| involved.0.len() <= KEYS_MAX))
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this may be the key of one of them.
    pub(super) fn may_have(&self, key: &KeySum) -> bool {
        self.0.contains(&key.0)
    }

    /// Adds a key.
    pub(super) fn insert(&mut self, key: &[Local]) {
        let mut sum = KeySum::default();
        for (place, value) in key.iter().enumerate() {
            sum.add(place, value.stored());
        }
        self.0.insert(sum.0);
    }

    /// Whether there are too many by now.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() > KEYS_MAX
    }
}

/// The hash of a key, whose values may come in any order.
#[derive(Debug, Default)]
pub(super) struct KeySum(u64);

impl KeySum {
    /// Adds the value at this place of the key. Numbers, and text that a column may make numbers of, are hashed by what they come to.
    pub(super) fn add(&mut self, place: usize, value: Stored<'_>) {
        let number = match value {
            Stored::Integer(number) => Some(number as f64),
            Stored::Real(real) => Some(real),
            Stored::Text(text) => std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok()),
            Stored::Null | Stored::Blob(_) => None,
        };
        let mut hasher = DefaultHasher::new();
        place.hash(&mut hasher);
        match (number, value) {
            // Zero has two forms.
            (Some(number), _) => (number + 0.0).to_bits().hash(&mut hasher),
            (None, Stored::Text(bytes) | Stored::Blob(bytes)) => bytes.hash(&mut hasher),
            (None, _) => {}
        }
        self.0 ^= hasher.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(values: &[Stored<'_>]) -> u64 {
        let mut sum = KeySum::default();
        for (place, value) in values.iter().enumerate().rev() {
            sum.add(place, *value);
        }
        sum.0
    }

    /// What SQLite may compare as equal, after a column's affinity, has the same hash.
    #[test]
    fn equal_keys_have_one_hash() {
        let five = sum(&[Stored::Integer(5)]);
        for same in
            [Stored::Real(5.0), Stored::Text(b"5"), Stored::Text(b" 5.0 "), Stored::Text(b"+5"), Stored::Text(b"0.5e1")]
        {
            assert_eq!(sum(&[same]), five, "{same:?}");
        }
        assert_eq!(sum(&[Stored::Real(-0.0)]), sum(&[Stored::Integer(0)]));
        let last = i64::MAX.to_string();
        assert_eq!(sum(&[Stored::Integer(i64::MAX)]), sum(&[Stored::Text(last.as_bytes())]));
        for other in [Stored::Integer(6), Stored::Null, Stored::Text(b"5a"), Stored::Blob(b"5")] {
            assert_ne!(sum(&[other]), five, "{other:?}");
        }
    }

    #[test]
    fn the_place_of_a_value_counts() {
        assert_ne!(sum(&[Stored::Integer(1), Stored::Integer(2)]), sum(&[Stored::Integer(2), Stored::Integer(1)]));
        assert_ne!(sum(&[Stored::Integer(1), Stored::Integer(1)]), sum(&[Stored::Integer(2), Stored::Integer(2)]));
    }
}
