//! Named queries: a file of SQL with a head that says what it may be asked.
//!
//! ```sql
//! -- title = "Flights from an airport in one month"
//! -- max_age_s = 300                       # caches may keep the answer for so long
//! -- public = true                         # anybody may ask; without it: whoever the server knows
//! -- [parameters]
//! -- origin = { type = "text", length_max = 3 }
//! -- month = { type = "int", min = 1, max = 12, default = 1 }
//! SELECT flight, dest, dep_delay FROM flights WHERE origin = :origin AND month = :month ORDER BY id
//! ```
//!
//! The head is the lines from the first on that begin with `--`; what is behind that is TOML. The query is one statement; its parameters are
//! `:name`, and `:s.user` is who asks: the answer is then that user's alone. The file's name, without `.sql`, is the query's.

mod arguments;
mod head;
mod pages;
mod values;

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_model::sql::{Syntax, parameters_in};
use headwater_protocol::{Type, Value};

pub use arguments::{ArgumentError, Arguments};
pub use pages::Keys;
pub use values::text_of;

/// A query that has a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// By which it is asked for.
    pub name: String,
    /// What it is, for people; empty if the file does not say.
    pub title: String,
    /// Who may ask.
    pub who: Who,
    /// How fresh answers must be.
    pub freshness: Freshness,
    /// What an answer may take.
    pub limits: QueryLimits,
    /// In the order of the file.
    pub parameters: Vec<Parameter>,
    /// How its rows are given in pages; `None`: all at once.
    pub page: Option<Page>,
    /// Columns whose type the file says, in the place of the database's.
    pub types: BTreeMap<String, Type>,
    /// The SQL, with its parameters as they stand in the file.
    pub sql: String,
    /// The line of the file in which the SQL begins.
    pub line: usize,
    places: head::Places,
    syntax: Syntax,
}

/// Who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Anybody.
    Public,
    /// Whoever the server knows.
    Known,
    /// These users.
    Users(Vec<String>),
}

/// How fresh answers must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// For how long caches may keep an answer without asking.
    pub max_age_s: u32,
    /// For how much longer they may give it while they ask.
    pub stale_while_revalidate_s: u32,
    /// For how much longer they may give it where asking fails.
    pub stale_if_error_s: u32,
    /// A query that tells, for less than the query itself, whether an answer may have changed: what it gives is compared with what it gave
    /// before the answer was made.
    pub sql: Option<String>,
}

/// Rows in pages, by key: a page is the rows behind the last of the one before, so what is inserted or deleted meanwhile moves no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Columns of the result that order its rows, no two of which have the same values, and none NULL.
    pub by: Vec<(String, Type)>,
    /// Rows of a page.
    pub rows: u64,
}

/// What the arguments that say where a page begins start with: `after.id=17`.
pub const AFTER: &str = "after.";

/// What an answer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryLimits {
    /// Rows.
    pub rows_max: u64,
    /// Bytes, before compression.
    pub bytes_max: u64,
    /// Bytes of a row's values, where they have a bound of their own.
    pub row_bytes_max: u64,
    /// How long the database may take.
    pub time_out: Duration,
}

impl Default for QueryLimits {
    fn default() -> QueryLimits {
        QueryLimits {
            rows_max: 1_000_000,
            bytes_max: 1 << 30,
            row_bytes_max: u64::MAX,
            time_out: Duration::from_secs(30),
        }
    }
}

/// A parameter of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Without its colon.
    pub name: String,
    /// What values it takes.
    pub kind: Type,
    /// Which it has where a request names none; `None`: a request must.
    pub default: Option<Value>,
    /// The least and the greatest value.
    pub range: [Option<Value>; 2],
    /// The most characters of a text.
    pub length_max: usize,
    /// The only values that it takes; empty: all.
    pub values: Vec<Value>,
}

/// What is wrong with a query's file: `flights.sql:3: ...`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {text}")]
pub struct QueryError {
    /// The file, as it was named.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What is wrong, and what was expected.
    pub text: String,
}

impl Query {
    /// Reads a query's file. All faults of the head that can be told from one another are told.
    ///
    /// ```
    /// use headwater_gateway::query::Query;
    ///
    /// let query = Query::parse("day.sql", "-- [parameters]\n-- day = { type = \"date\" }\nSELECT a FROM t WHERE d = :day").unwrap();
    /// assert_eq!((query.name.as_str(), query.parameters[0].name.as_str()), ("day", "day"));
    ///
    /// let wrong = Query::parse("day.sql", "SELECT a FROM t WHERE d = :day").unwrap_err();
    /// assert_eq!(wrong[0].to_string(), "day.sql:1: :day is not among [parameters] of the head");
    /// ```
    pub fn parse(file: &str, text: &str) -> Result<Query, Vec<QueryError>> {
        Query::parse_in(Syntax::Any, file, text)
    }

    /// The same of a query in the SQL of one database: `#` begins a comment in MariaDB's.
    pub fn parse_in(syntax: Syntax, file: &str, text: &str) -> Result<Query, Vec<QueryError>> {
        head::parse(syntax, file, text)
    }

    /// The line of the file in which a key of the head stands: `freshness`, `types.delay`; of one that is not there, the first.
    pub fn line_of(&self, path: &str) -> usize {
        self.places.line(path)
    }

    /// Whether the answer depends on who asks.
    pub fn is_personal(&self) -> bool {
        let asks = |sql: &str| parameters_in(sql, self.syntax).iter().any(|parameter| parameter.name == USER);
        asks(&self.sql) || self.freshness.sql.as_deref().is_some_and(asks)
    }
}

/// Who asks, in a query's SQL.
pub const USER: &str = ":s.user";

#[cfg(test)]
mod tests;
