//! Scenarios: what clients do, as SQL. Built-in ones are files like a user's own (`scenarios/`, beside this crate's sources).
//!
//! ```text
//! tables       what prepare creates; must not exist before, is dropped afterwards
//! parameters   with their defaults; an experiment may set or sweep them
//! prepare      a script, one transaction
//! transactions weighted; steps of statements with :name, drawn anew each time by the generators of `values`
//! verify       queries of which each row is a fault
//! ```
//!
//! ```
//! use headwater_lab::scenario::Scenario;
//!
//! let scenario = Scenario::built_in("tpcb").expect("there is one");
//! assert_eq!(scenario.transactions[0].steps[0].statements.sqlite.len(), 5);
//! assert_eq!(scenario.parameters[0].0, "branches");
//! ```

mod database;
mod formula;
mod generator;
mod read;
mod sql;
mod step;
#[cfg(test)]
mod tests;

use crate::http::{HttpSettings, settings};
use crate::sync::{SyncSettings, kind};
use crate::value::Value;

pub use database::{ByDatabase, Database};
pub use formula::Formula;
pub(crate) use generator::Zipf;
pub use generator::{Draw, Generator};
pub(crate) use read::scalar;
pub(crate) use sql::{Statement, Template};
pub use step::{Resolved, Send, Sending, Step};

/// A scenario's name and files.
macro_rules! files {
    ($name:literal: $($file:literal),*) => {
        ($name, &[$(($file, include_str!(concat!("../scenarios/", $name, "/", $file)))),*])
    };
}

/// The built-in scenarios' files.
const BUILT_IN: [(&str, &[(&str, &str)]); 13] = [
    files!("read_simple": "scenario.toml", "prepare.sql", "prepare-mariadb.sql"),
    files!("read_simple_large": "scenario.toml", "prepare.sql"),
    files!("read_scaling_aggregates": "scenario.toml", "look.sql", "prepare.sql"),
    files!("read_scaling_inverted_keys": "scenario.toml", "prepare.sql"),
    files!("write_simple": "scenario.toml", "prepare.sql", "prepare-mariadb.sql", "verify.sql"),
    files!("write_complex": "scenario.toml", "prepare.sql", "update.sql", "verify.sql"),
    files!("read_write": "scenario.toml", "both.sql", "prepare.sql", "verify.sql"),
    files!("deadlock": "scenario.toml", "prepare.sql", "verify.sql"),
    files!("prepared_write": "scenario.toml", "verify.sql"),
    files!("statement_batching": "scenario.toml", "verify.sql"),
    files!("batch_load": "scenario.toml", "prepare.sql", "prepare-mariadb.sql", "verify.sql"),
    files!("tpcb": "scenario.toml", "prepare.sql", "transaction.sql", "verify.sql"),
    files!("mixed": "scenario.toml", "delete.sql", "delete-mariadb.sql", "heavy.sql", "insert.sql", "medium.sql", "prepare.sql", "update.sql", "verify.sql"),
];

/// The largest weight.
const WEIGHT_MAX: i64 = 1_000_000;

/// The names of the built-in scenarios.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name).chain([kind::NAME, kind::OWN, settings::NAME])
}

/// What the operations of a scenario are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drives {
    /// Transactions, in SQL.
    Transactions,
    /// Syncs, in sets.
    Syncs,
    /// Syncs, in sets, of a system of one's own.
    Own,
    /// Requests of HTTP.
    Requests,
}

/// What clients do.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What its operations are.
    pub drives: Drives,
    /// The tables that `prepare` creates.
    pub tables: Vec<String>,
    /// What an experiment may set, with the value otherwise.
    pub parameters: Vec<(String, Value)>,
    /// Values drawn once a run.
    pub constants: Vec<(String, Generator)>,
    /// The script that makes tables and rows.
    pub prepare: Option<ByDatabase<String>>,
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
    pub weight: Formula,
    /// What begins it; none: each statement is a transaction of its own.
    pub begin: ByDatabase<Option<String>>,
    /// Values drawn anew for each execution.
    pub values: Vec<(String, Generator)>,
    /// What it does, in this order.
    pub steps: Vec<Step>,
}

/// Queries that give a row for each fault.
#[derive(Clone, Debug)]
pub struct Check {
    /// What holds when they give none.
    pub what: String,
    /// The queries; beside parameters they may have `:done`, `:failed`, `:read` and the names of steps.
    pub queries: ByDatabase<Vec<String>>,
}

/// What verify may ask for beside parameters: how many transactions were committed, ...
pub(crate) const DONE: &str = "done";
/// ... how many failed or were given up, ...
pub(crate) const FAILED: &str = "failed";
/// ... and how many rows the committed ones have read.
pub(crate) const READ: &str = "read";

impl Scenario {
    /// The built-in scenario of this name.
    pub fn built_in(name: &str) -> Option<Scenario> {
        if name == kind::NAME {
            return Some(kind::scenario());
        }
        if name == kind::OWN {
            return Some(kind::own());
        }
        if name == settings::NAME {
            return Some(settings::scenario());
        }
        let (_, files) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        let file = |wanted: &str| files.iter().find(|(name, _)| *name == wanted).map(|(_, text)| (*text).to_owned());
        let text = file("scenario.toml").unwrap_or_default();
        let read = |wanted: &str| file(wanted).ok_or_else(|| "no such file".to_owned());
        match Scenario::parse(&format!("{name}/scenario.toml"), &text, &read) {
            Ok(scenario) => Some(scenario),
            Err(errors) => panic!("the built-in scenario {name} is not valid: {errors:?}"),
        }
    }

    /// Whether it can be run with these parameters by so many clients; an error says what it can't.
    pub(crate) fn check(&self, parameters: &[(String, Value)], clients: usize) -> Result<(), String> {
        match self.drives {
            Drives::Syncs => return SyncSettings::of(parameters).map(|_| ()).map_err(|(_, why)| why),
            Drives::Own => return SyncSettings::of_own(parameters).map(|_| ()).map_err(|(_, why)| why),
            Drives::Requests => return HttpSettings::of(parameters).map(|_| ()).map_err(|(_, why)| why),
            Drives::Transactions => {}
        }
        let draw = |(name, generator): &(String, Generator)| match generator.resolve(parameters, 0, clients) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("draw its value {name}: {error}")),
        };
        self.constants.iter().try_for_each(draw)?;
        let mut weights = 0;
        for transaction in &self.transactions {
            transaction.values.iter().try_for_each(draw)?;
            for step in &transaction.steps {
                step.values.iter().try_for_each(draw)?;
                step.resolve(parameters).map_err(|error| format!("execute its step {}: {error}", step.name))?;
            }
            weights += transaction.weighs(parameters).map_err(|error| format!("choose a transaction: {error}"))?;
        }
        if weights == 0 { Err("choose a transaction: all weights are 0".to_owned()) } else { Ok(()) }
    }
}

impl Transaction {
    /// Its weight with these parameters; an error says why that is none.
    pub(crate) fn weighs(&self, parameters: &[(String, Value)]) -> Result<u64, String> {
        match self.weight.value(parameters) {
            Some(weight @ 0..=WEIGHT_MAX) => Ok(weight as u64),
            Some(weight) => Err(format!("{} weighs {weight}, it may be 0 to {WEIGHT_MAX}", self.name)),
            None => Err(format!("the weight of {} is no whole number of 64 bits", self.name)),
        }
    }
}
