//! The rows of both tables, ordered by key in a temporary database, and walked side by side.
//!
//! The database has no name and no file of one: SQLite keeps it in memory up to its cache, then in a file that it deletes.

use std::cmp::Ordering;

use rusqlite::{Connection, Rows};

use super::column::Pair;
use super::{Comparison, Difference, Kind};
use crate::error::Error;

pub(super) struct Merge {
    rows: Connection,
    /// Places of the key's columns.
    key: Vec<usize>,
}

type Spelt = Vec<Option<Vec<u8>>>;
type KeyAndRow = (Vec<u8>, Vec<u8>);

impl Merge {
    pub(super) fn new(pair: &Pair) -> Result<Merge, Error> {
        let rows = Connection::open("").map_err(Error::Temporary)?;
        rows.execute_batch(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16384; PRAGMA temp_store = FILE;
             CREATE TABLE first (key BLOB NOT NULL, row BLOB NOT NULL);
             CREATE TABLE second (key BLOB NOT NULL, row BLOB NOT NULL);
             BEGIN",
        )
        .map_err(Error::Temporary)?;
        Ok(Merge { rows, key: pair.key().to_vec() })
    }

    pub(super) fn add(&self, is_first: bool, row: &Spelt) -> Result<(), Error> {
        let table = if is_first { "first" } else { "second" };
        let key = packed(self.key.iter().map(|&place| &row[place]));
        let insert = self.rows.prepare_cached(&format!("INSERT INTO {table} VALUES (?1, ?2)"));
        insert.and_then(|mut insert| insert.execute((key, packed(row)))).map(|_| ()).map_err(Error::Temporary)
    }

    /// Walks both sides.
    pub(super) fn finish(self, pair: &Pair, shown: usize) -> Result<Comparison, Error> {
        let [columns_of_first, columns_of_second] = pair.only.clone();
        let columns = pair.names();
        let key =
            if pair.has_key { self.key.iter().map(|&place| columns[place].clone()).collect() } else { Vec::new() };
        let columns_as_text = pair.as_text();
        let mut found =
            Comparison { key, columns, columns_of_first, columns_of_second, columns_as_text, ..Comparison::default() };
        self.walk(pair, shown, &mut found).map_err(Error::Temporary)?;
        Ok(found)
    }

    fn walk(&self, pair: &Pair, shown: usize, found: &mut Comparison) -> rusqlite::Result<()> {
        let mut first = self.rows.prepare("SELECT key, row FROM first ORDER BY key, row")?;
        let mut second = self.rows.prepare("SELECT key, row FROM second ORDER BY key, row")?;
        let (mut first, mut second) = (first.query([])?, second.query([])?);
        let (mut one, mut other) = (next(&mut first)?, next(&mut second)?);
        loop {
            let order = match (&one, &other) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((one, _)), Some((other, _))) => one.cmp(other),
            };
            let here = if order.is_le() { one.take() } else { None };
            let there = if order.is_ge() { other.take() } else { None };
            if here.is_some() {
                found.first_rows += 1;
                one = next(&mut first)?;
            }
            if there.is_some() {
                found.second_rows += 1;
                other = next(&mut second)?;
            }
            if here != there {
                note(pair, shown, found, here, there);
            }
        }
    }
}

fn note(pair: &Pair, shown: usize, found: &mut Comparison, here: Option<KeyAndRow>, there: Option<KeyAndRow>) {
    let (kind, count) = match (&here, &there) {
        (Some(_), Some(_)) => (Kind::Different, &mut found.different),
        (Some(_), None) => (Kind::OnlyFirst, &mut found.only_first),
        _ => (Kind::OnlySecond, &mut found.only_second),
    };
    *count += 1;
    if found.differences.len() >= shown {
        return;
    }
    let [here, there] = [here, there].map(|row| row.map(|(_, row)| unpacked(&row)));
    let Some(some) = here.as_ref().or(there.as_ref()) else { return };
    let value = |row: &Spelt, place: usize| Some(pair.shown(place, row.get(place)?.as_ref()?));
    let key = pair.key().iter().map(|&place| (found.columns[place].clone(), value(some, place))).collect();
    let columns = match (&here, &there) {
        (Some(here), Some(there)) => {
            let unlike = (0..found.columns.len()).filter(|&place| here.get(place) != there.get(place));
            unlike.map(|place| (found.columns[place].clone(), value(here, place), value(there, place))).collect()
        }
        _ => Vec::new(),
    };
    found.differences.push(Difference { kind, key, columns });
}

fn next(rows: &mut Rows<'_>) -> rusqlite::Result<Option<KeyAndRow>> {
    rows.next()?.map(|row| Ok((row.get(0)?, row.get(1)?))).transpose()
}

/// Values as bytes; no two lists have the same.
fn packed<'v>(values: impl IntoIterator<Item = &'v Option<Vec<u8>>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        match value {
            None => bytes.push(0),
            Some(value) => {
                bytes.push(1);
                bytes.extend((value.len() as u64).to_be_bytes());
                bytes.extend(value);
            }
        }
    }
    bytes
}

/// What [`packed`] was given.
fn unpacked(mut bytes: &[u8]) -> Spelt {
    let mut values = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        bytes = rest;
        let value = rest
            .split_first_chunk()
            .filter(|_| *tag == 1)
            .and_then(|(length, rest)| rest.split_at_checked(u64::from_be_bytes(*length) as usize));
        values.push(value.map(|(value, rest)| {
            bytes = rest;
            value.to_vec()
        }));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let row = vec![None, Some(Vec::new()), Some(vec![0, 1, 2]), None, Some(b"x".to_vec())];
        assert_eq!(unpacked(&packed(&row)), row);
        let other = [Some(b"a".to_vec()), Some(b"b".to_vec())];
        assert_ne!(packed(&other), packed(&[Some(b"ab".to_vec()), Some(Vec::new())]));
    }
}
