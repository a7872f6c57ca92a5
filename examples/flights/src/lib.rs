//! The example's data: every flight that left New York City in 2013, loaded into SQLite or PostgreSQL.
//!
//! The files lie in `data/` and are part of the program. What the tables look like is said once, in [`mod@tables`], and the
//! schema of each database is made from it. A further table, `member`, holds which user may see which origin; it is empty
//! at first, and `model.toml` asks it.
//!
//! # Caveats
//! - Loading makes the tables: it refuses a database that already has them.
//! - PostgreSQL is reached without TLS.

mod postgres;
mod records;
mod sqlite;
pub mod tables;

use std::fmt;

pub use postgres::load_postgres;
pub use sqlite::load_sqlite;

/// The model of this example, as a file of the user's.
pub const MODEL: &str = include_str!("../model.toml");

/// Which rows are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Flights and weather of this month (1 to 12) alone; of the whole year without one. The other tables are whole always.
    pub month: Option<u8>,
}

/// How many rows each table got, in the order they were loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    /// The rows of this table; 0 for one that the example doesn't have.
    pub fn of(&self, table: &str) -> u64 {
        self.0.iter().find(|(name, _)| *name == table).map_or(0, |(_, count)| *count)
    }

    /// Tables and rows, in the order they were loaded.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().copied()
    }

    fn add(&mut self, table: &'static str, rows: u64) {
        self.0.push((table, rows));
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (table, rows)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{table} {rows}")?;
        }
        Ok(())
    }
}
