//! Scenarios: what clients do, as SQL. Built-in ones are files like a user's own (`scenarios/`, beside this crate's sources).
//!
//! ```text
//! tables       what prepare creates; must not exist before, is dropped afterwards
//! parameters   with their defaults; an experiment may set or sweep them
//! prepare      a script, one transaction
//! transactions weighted; statements with :name, drawn anew each time by the generators of `values`
//! verify       queries of which each row is a fault
//! ```
//!
//! ```
//! use headwater_lab::scenario::Scenario;
//!
//! let scenario = Scenario::built_in("tpcb").expect("there is one");
//! assert_eq!(scenario.transactions[0].statements.len(), 5);
//! assert_eq!(scenario.parameters[0].0, "branches");
//! ```

mod formula;
mod generator;
mod read;
mod sql;

use crate::value::Value;

pub use generator::{Draw, Generator};
pub(crate) use read::scalar;
pub(crate) use sql::Statement;

/// The built-in scenarios' files.
const BUILT_IN: [(&str, &[(&str, &str)]); 3] = [
    (
        "read_simple",
        &[
            ("scenario.toml", include_str!("../scenarios/read_simple/scenario.toml")),
            ("prepare.sql", include_str!("../scenarios/read_simple/prepare.sql")),
        ],
    ),
    (
        "write_simple",
        &[
            ("scenario.toml", include_str!("../scenarios/write_simple/scenario.toml")),
            ("prepare.sql", include_str!("../scenarios/write_simple/prepare.sql")),
            ("verify.sql", include_str!("../scenarios/write_simple/verify.sql")),
        ],
    ),
    (
        "tpcb",
        &[
            ("scenario.toml", include_str!("../scenarios/tpcb/scenario.toml")),
            ("prepare.sql", include_str!("../scenarios/tpcb/prepare.sql")),
            ("transaction.sql", include_str!("../scenarios/tpcb/transaction.sql")),
            ("verify.sql", include_str!("../scenarios/tpcb/verify.sql")),
        ],
    ),
];

/// The names of the built-in scenarios.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// What clients do.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The tables that `prepare` creates.
    pub tables: Vec<String>,
    /// What an experiment may set, with the value otherwise.
    pub parameters: Vec<(String, Value)>,
    /// Values drawn once a run.
    pub constants: Vec<(String, Generator)>,
    /// The script that makes tables and rows.
    pub prepare: Option<String>,
    /// What clients choose from, by weight.
    pub transactions: Vec<Transaction>,
    /// What must hold afterwards.
    pub checks: Vec<Check>,
}

/// One kind of transaction.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// Its name.
    pub name: String,
    /// How often it is chosen, against the weights of the others.
    pub weight: u32,
    /// What begins it; none: each statement is a transaction of its own.
    pub begin: Option<String>,
    /// Its statements, with `:name` for values, constants and parameters.
    pub statements: Vec<String>,
    /// Values drawn anew for each execution.
    pub values: Vec<(String, Generator)>,
}

/// A query that gives a row for each fault.
#[derive(Clone, Debug)]
pub struct Check {
    /// What holds when it gives none.
    pub what: String,
    /// The query; `:done` and `:failed` are how many transactions were committed, and how many failed or were given up.
    pub sql: String,
}

/// What verify may ask for beside parameters.
pub(crate) const DONE: &str = "done";
/// The other of them.
pub(crate) const FAILED: &str = "failed";

impl Scenario {
    /// The built-in scenario of this name.
    pub fn built_in(name: &str) -> Option<Scenario> {
        let (_, files) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        let file = |wanted: &str| files.iter().find(|(name, _)| *name == wanted).map(|(_, text)| (*text).to_owned());
        let text = file("scenario.toml").unwrap_or_default();
        let read = |wanted: &str| file(wanted).ok_or_else(|| "no such file".to_owned());
        match Scenario::parse(&format!("{name}/scenario.toml"), &text, &read) {
            Ok(scenario) => Some(scenario),
            Err(errors) => panic!("the built-in scenario {name} is not valid: {errors:?}"),
        }
    }
}
