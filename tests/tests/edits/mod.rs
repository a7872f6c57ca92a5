//! Random edits of the flights' tables, the same statements for SQLite and PostgreSQL, drawn by a seed.
//!
//! The rows of each table are dealt to three hands: those that only the remote edits, those that only the consolidated database
//! does, and a few that both do, again and again. What the first two hands did last is in the ledger.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// Airlines that no flight refers to, so that they can be deleted.
pub(crate) const SPARE_AIRLINES: u64 = 60;

/// Makes them.
pub(crate) fn spare_airlines() -> String {
    let rows: Vec<_> = (0..SPARE_AIRLINES).map(|number| format!("('s{number:02}', 'Spare {number}')")).collect();
    format!("INSERT INTO airlines VALUES {}", rows.join(", "))
}

/// Who edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Remote,
    Consolidated,
}

/// A literal, as both databases read it.
type Literal = String;

/// The values of a row's key.
type Key = Vec<Literal>;

/// A row to insert: its key, other columns, and their values.
type NewRow = (Key, &'static str, Vec<Literal>);

/// What the columns that were edited hold; none for a row that is gone.
type State = Option<BTreeMap<String, Literal>>;

#[derive(Clone, Copy)]
enum Kind {
    Int,
    Real,
    Text,
}

struct Table {
    name: &'static str,
    key: &'static [&'static str],
    /// Which rows may be edited.
    rows: &'static str,
    /// Columns that are updated, outside the key.
    columns: &'static [(&'static str, Kind)],
    /// Of a thousand edits.
    share: u64,
    insert: fn(&mut Random, u64) -> NewRow,
}

use Kind::{Int, Real, Text};

const TABLES: [Table; 5] = [
    Table {
        name: "flights",
        key: &["time_hour", "carrier", "flight"],
        rows: "true",
        columns: &[("dep_delay", Int), ("arr_delay", Int), ("air_time", Int), ("tailnum", Text), ("dest", Text)],
        share: 500,
        insert: |random, number| {
            let key = vec![random.time(), random.one_of(&["'UA'", "'B6'", "'DL'"]), (50_000 + number).to_string()];
            (key, "origin, dest, distance", vec![random.origin(), random.text(), random.int()])
        },
    },
    Table {
        name: "weather",
        key: &["origin", "time_hour"],
        rows: "true",
        columns: &[("temp", Real), ("humid", Real), ("wind_gust", Real), ("wind_dir", Int), ("pressure", Real)],
        share: 250,
        insert: |random, _| (vec![random.origin(), random.time()], "temp, wind_dir", vec![random.real(), random.int()]),
    },
    Table {
        name: "planes",
        key: &["tailnum"],
        rows: "true",
        columns: &[("year", Int), ("model", Text), ("seats", Int), ("speed", Int), ("engine", Text)],
        share: 120,
        insert: |random, number| (vec![format!("'new {number}'")], "year, model", vec![random.int(), random.text()]),
    },
    Table {
        name: "airports",
        key: &["faa"],
        rows: "faa NOT IN ('EWR', 'JFK', 'LGA')",
        columns: &[("name", Text), ("lat", Real), ("lon", Real), ("alt", Int), ("tzone", Text)],
        share: 100,
        insert: |random, number| (vec![format!("'new {number}'")], "name, lat", vec![random.text(), random.real()]),
    },
    Table {
        name: "airlines",
        key: &["carrier"],
        rows: "carrier LIKE 's__'",
        columns: &[("name", Text)],
        share: 30,
        insert: |random, number| (vec![format!("'new {number}'")], "name", vec![random.text()]),
    },
];

/// The rows of a table that may still be edited, by hand.
#[derive(Default)]
struct Rows {
    remote: Vec<Key>,
    consolidated: Vec<Key>,
    both: Vec<Key>,
}

/// Draws edits, and remembers those that must stand.
pub(crate) struct Editor {
    random: Random,
    rows: Vec<Rows>,
    inserted: u64,
    /// By table and key: what must be so.
    ledger: BTreeMap<(&'static str, Key), State>,
}

impl Editor {
    /// Deals the rows that are there, read by `query`.
    pub(crate) fn new(seed: u64, query: impl Fn(&str) -> Result<Vec<Vec<Option<String>>>>) -> Result<Editor> {
        let mut random = Random(seed);
        let mut rows = Vec::new();
        for table in &TABLES {
            let key = table.key.join(", ");
            let found = query(&format!("SELECT {key} FROM {} WHERE {} ORDER BY {key}", table.name, table.rows))?;
            rows.push(deal(table, found, &mut random)?);
        }
        Ok(Editor { random, rows, inserted: 0, ledger: BTreeMap::new() })
    }

    /// This many statements, for one side.
    pub(crate) fn edits(&mut self, side: Side, count: usize) -> Vec<String> {
        (0..count).map(|_| self.edit(side)).collect()
    }

    /// Queries that give 1 each, if every edit that must stand does.
    pub(crate) fn ledger(&self) -> impl Iterator<Item = String> + '_ {
        self.ledger.iter().map(|((name, key), state)| {
            let table = TABLES.iter().find(|table| table.name == *name);
            let key = table.map_or_else(String::new, |table| condition(table.key, key));
            let values = state.iter().flatten().map(|(column, value)| format!(" AND {column} IS {value}"));
            let (expected, values) = (u8::from(state.is_some()), values.collect::<String>());
            format!("SELECT count(*) = {expected} FROM {name} WHERE {key}{values}")
        })
    }

    fn edit(&mut self, side: Side) -> String {
        let mut drawn = self.random.below(1000);
        let place = TABLES.iter().position(|table| {
            let is_it = drawn < table.share;
            drawn = drawn.saturating_sub(table.share);
            is_it
        });
        let place = place.expect("the shares make a thousand");
        let table = &TABLES[place];
        let what = self.random.below(100);
        if what < 15 {
            return self.insert(table, place, side);
        }
        let is_shared = self.random.below(100) < 20;
        let rows = &mut self.rows[place];
        let hand = match side {
            _ if is_shared => &mut rows.both,
            Side::Remote => &mut rows.remote,
            Side::Consolidated => &mut rows.consolidated,
        };
        if hand.is_empty() {
            return self.insert(table, place, side);
        }
        let chosen = self.random.below(hand.len() as u64) as usize;
        if what < 25 {
            let key = if is_shared { hand[chosen].clone() } else { hand.swap_remove(chosen) };
            return self.delete(table, key, is_shared);
        }
        let key = hand[chosen].clone();
        if what < 30 && table.name == "flights" && !is_shared {
            hand.swap_remove(chosen);
            return self.change_key(table, key);
        }
        self.update(table, key, is_shared)
    }

    fn insert(&mut self, table: &'static Table, place: usize, side: Side) -> String {
        self.inserted += 1;
        let (key, columns, values) = (table.insert)(&mut self.random, self.inserted);
        let hand = match side {
            Side::Remote => &mut self.rows[place].remote,
            Side::Consolidated => &mut self.rows[place].consolidated,
        };
        hand.push(key.clone());
        let set = columns.split(", ").map(ToOwned::to_owned).zip(values.iter().cloned()).collect();
        let sql = format!(
            "INSERT INTO {} ({}, {columns}) VALUES ({}, {})",
            table.name,
            table.key.join(", "),
            key.join(", "),
            values.join(", ")
        );
        self.ledger.insert((table.name, key), Some(set));
        sql
    }

    fn delete(&mut self, table: &'static Table, key: Key, is_shared: bool) -> String {
        let sql = format!("DELETE FROM {} WHERE {}", table.name, condition(table.key, &key));
        if !is_shared {
            self.ledger.insert((table.name, key), None);
        }
        sql
    }

    fn update(&mut self, table: &'static Table, key: Key, is_shared: bool) -> String {
        let (column, kind) = table.columns[self.random.below(table.columns.len() as u64) as usize];
        let mut set = vec![(column, self.random.value(kind))];
        if table.name == "flights" && self.random.below(100) < 5 {
            set.push(("origin", self.random.origin())); // moves to another partition, which the remote has too
        }
        let sets: Vec<_> = set.iter().map(|(column, value)| format!("{column} = {value}")).collect();
        let sql = format!("UPDATE {} SET {} WHERE {}", table.name, sets.join(", "), condition(table.key, &key));
        if !is_shared {
            let known = self.ledger.entry((table.name, key)).or_default().get_or_insert_default();
            known.extend(set.into_iter().map(|(column, value)| (column.to_owned(), value)));
        }
        sql
    }

    /// Another flight number; the row is edited no more.
    fn change_key(&mut self, table: &'static Table, key: Key) -> String {
        self.inserted += 1;
        let number = (50_000 + self.inserted).to_string();
        let sql = format!("UPDATE flights SET flight = {number} WHERE {}", condition(table.key, &key));
        let mut new = key.clone();
        new[2] = number;
        let known = self.ledger.insert((table.name, key), None).flatten();
        self.ledger.insert((table.name, new), Some(known.unwrap_or_default()));
        sql
    }
}

fn deal(table: &Table, found: Vec<Vec<Option<String>>>, random: &mut Random) -> Result<Rows> {
    let both_max = if table.name == "airlines" { 6 } else { 150 };
    let mut rows = Rows::default();
    for row in found {
        let cells = row.into_iter().collect::<Option<Vec<String>>>().context("NULL in a key")?;
        let literal = |(name, cell): (&&str, String)| if *name == "flight" { cell } else { format!("'{cell}'") };
        let key: Key = table.key.iter().zip(cells).map(literal).collect();
        match random.below(3) {
            0 if rows.both.len() < both_max => rows.both.push(key),
            1 => rows.remote.push(key),
            _ => rows.consolidated.push(key),
        }
    }
    Ok(rows)
}

fn condition(columns: &[&str], key: &[Literal]) -> String {
    let parts: Vec<_> = columns.iter().zip(key).map(|(column, value)| format!("{column} = {value}")).collect();
    parts.join(" AND ")
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn value(&mut self, kind: Kind) -> Literal {
        if self.below(8) == 0 {
            return "NULL".to_owned();
        }
        match kind {
            Int => self.int(),
            Real => self.real(),
            Text => self.text(),
        }
    }

    /// Of any length, to the ends of 64 bits.
    fn int(&mut self) -> Literal {
        let shift = self.below(64);
        ((self.next() as i64) >> shift).max(i64::MIN + 1).to_string()
    }

    /// All digits of a double, and small and large ones.
    fn real(&mut self) -> Literal {
        let fraction = self.next() as f64 / u64::MAX as f64;
        let exponent = self.below(40) as i32 - 20;
        format!("{:e}", (fraction - 0.5) * 10f64.powi(exponent))
    }

    fn text(&mut self) -> Literal {
        let number = self.below(1_000_000);
        self.one_of(&["''", "'it''s'", "'Zürich ☃'", "'a\nb'"]).replace("it", &number.to_string())
    }

    fn origin(&mut self) -> Literal {
        self.one_of(&["'EWR'", "'JFK'", "'LGA'"])
    }

    /// To the microsecond, in a year that the data don't have.
    fn time(&mut self) -> Literal {
        let (month, day, hour, second) = (self.below(12) + 1, self.below(28) + 1, self.below(24), self.below(60));
        let fraction = if self.below(2) == 0 { String::new() } else { format!(".{:06}", self.below(1_000_000)) };
        format!("'2014-{month:02}-{day:02} {hour:02}:00:{second:02}{fraction}Z'")
    }

    fn one_of(&mut self, choices: &[&str]) -> Literal {
        choices[self.below(choices.len() as u64) as usize].to_owned()
    }
}
