//! The five tables and `member`: columns, keys, references, and the schema that each database gets from them.
//!
//! | kind | SQLite | PostgreSQL |
//! |---|---|---|
//! | int | `BIGINT` | `bigint` |
//! | real | `DOUBLE` | `double precision` |
//! | text | `TEXT` | `text` |
//! | time | `TIMESTAMPTZ_TEXT` (text `YYYY-MM-DD HH:MM:SSZ`) | `timestamptz` |
//!
//! # Caveats
//! Two references of the original data are not declared, as the data break them: a flight's plane and its destination.

use std::fmt::Write as _;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A 64-bit integer.
    Int,
    /// A 64-bit floating-point number.
    Real,
    /// Text.
    Text,
    /// A point in time.
    Time,
}

/// A table: its name is that of its file.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its columns, in the file's order.
    pub columns: &'static [(&'static str, Kind)],
    /// Its primary key.
    pub key: &'static [&'static str],
    /// Each column that refers to a table, and that table's key column.
    pub references: &'static [(&'static str, &'static str, &'static str)],
    /// True where a row belongs to a month (column `month`).
    pub by_month: bool,
    /// The file's content; none for a table that starts empty.
    pub(crate) data: Option<&'static [u8]>,
}

use Kind::{Int, Real, Text, Time};

/// All tables, those that others refer to first.
pub const TABLES: [Table; 6] = [AIRLINES, AIRPORTS, PLANES, WEATHER, FLIGHTS, MEMBER];

/// The airlines.
pub const AIRLINES: Table = Table {
    name: "airlines",
    columns: &[("carrier", Text), ("name", Text)],
    key: &["carrier"],
    references: &[],
    by_month: false,
    data: Some(include_bytes!("../data/airlines.csv.gz")),
};

/// The airports of the United States.
pub const AIRPORTS: Table = Table {
    name: "airports",
    columns: &[
        ("faa", Text),
        ("name", Text),
        ("lat", Real),
        ("lon", Real),
        ("alt", Int),
        ("tz", Int),
        ("dst", Text),
        ("tzone", Text),
    ],
    key: &["faa"],
    references: &[],
    by_month: false,
    data: Some(include_bytes!("../data/airports.csv.gz")),
};

/// The planes that are registered in the United States.
pub const PLANES: Table = Table {
    name: "planes",
    columns: &[
        ("tailnum", Text),
        ("year", Int),
        ("type", Text),
        ("manufacturer", Text),
        ("model", Text),
        ("engines", Int),
        ("seats", Int),
        ("speed", Int),
        ("engine", Text),
    ],
    key: &["tailnum"],
    references: &[],
    by_month: false,
    data: Some(include_bytes!("../data/planes.csv.gz")),
};

/// The weather at the three origins, by hour.
pub const WEATHER: Table = Table {
    name: "weather",
    columns: &[
        ("origin", Text),
        ("year", Int),
        ("month", Int),
        ("day", Int),
        ("hour", Int),
        ("temp", Real),
        ("dewp", Real),
        ("humid", Real),
        ("wind_dir", Int),
        ("wind_speed", Real),
        ("wind_gust", Real),
        ("precip", Real),
        ("pressure", Real),
        ("visib", Real),
        ("time_hour", Time),
    ],
    key: &["origin", "time_hour"],
    references: &[("origin", "airports", "faa")],
    by_month: true,
    data: Some(include_bytes!("../data/weather.csv.gz")),
};

/// The flights.
pub const FLIGHTS: Table = Table {
    name: "flights",
    columns: &[
        ("year", Int),
        ("month", Int),
        ("day", Int),
        ("dep_time", Int),
        ("sched_dep_time", Int),
        ("dep_delay", Int),
        ("arr_time", Int),
        ("sched_arr_time", Int),
        ("arr_delay", Int),
        ("carrier", Text),
        ("flight", Int),
        ("tailnum", Text),
        ("origin", Text),
        ("dest", Text),
        ("air_time", Int),
        ("distance", Int),
        ("hour", Int),
        ("minute", Int),
        ("time_hour", Time),
    ],
    key: &["time_hour", "carrier", "flight"],
    references: &[("carrier", "airlines", "carrier"), ("origin", "airports", "faa")],
    by_month: true,
    data: Some(include_bytes!("../data/flights.csv.gz")),
};

/// Which user is a member of which origin's partition.
pub const MEMBER: Table = Table {
    name: "member",
    columns: &[("user_name", Text), ("origin", Text)],
    key: &["user_name", "origin"],
    references: &[],
    by_month: false,
    data: None,
};

/// A database that the example can be loaded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// SQLite, with type names from which Headwater knows what a text holds.
    Sqlite,
    /// PostgreSQL.
    Postgres,
}

impl Database {
    fn type_of(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (Self::Sqlite, Int) => "BIGINT",
            (Self::Sqlite, Real) => "DOUBLE",
            (Self::Sqlite, Text) => "TEXT",
            (Self::Sqlite, Time) => "TIMESTAMPTZ_TEXT",
            (Self::Postgres, Int) => "bigint",
            (Self::Postgres, Real) => "double precision",
            (Self::Postgres, Text) => "text",
            (Self::Postgres, Time) => "timestamptz",
        }
    }
}

impl Table {
    /// The statement that makes this table.
    ///
    /// ```
    /// use flights::tables::{AIRLINES, Database};
    /// let schema = AIRLINES.schema(Database::Sqlite);
    /// assert!(schema.contains("carrier TEXT NOT NULL"));
    /// assert!(schema.contains("PRIMARY KEY (carrier)"));
    /// ```
    pub fn schema(&self, database: Database) -> String {
        let mut lines: Vec<String> = Vec::new();
        for (name, kind) in self.columns {
            let required = if self.is_required(name) { " NOT NULL" } else { "" };
            lines.push(format!("{name} {}{required}", database.type_of(*kind)));
        }
        lines.push(format!("PRIMARY KEY ({})", self.key.join(", ")));
        for (column, table, target) in self.references {
            lines.push(format!("FOREIGN KEY ({column}) REFERENCES {table} ({target})"));
        }
        format!("CREATE TABLE {} (\n    {}\n);\n", self.name, lines.join(",\n    "))
    }

    /// True for a column that is never NULL: those of the key, and those that refer to a table.
    pub fn is_required(&self, column: &str) -> bool {
        self.key.contains(&column) || self.references.iter().any(|(referring, ..)| *referring == column)
    }

    /// The names of all columns, separated by commas.
    pub fn column_list(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}

/// The statements that make all tables.
pub fn schema(database: Database) -> String {
    TABLES.iter().fold(String::new(), |mut all, table| {
        let _ = write!(all, "{}", table.schema(database)); // writing to a string can't fail
        all
    })
}
