//! The parts of a transaction: statements that are repeated, left out by chance, and sent one by one or many at once.
//!
//! ```text
//! repeat = 5, batch = 2
//! one      S  S  S  S  S           each prepared, each with an answer
//! joined   S;S  S;S  S             the text of so many in one message
//! rows     SS  SS  S               one INSERT with so many rows in its VALUES
//! bulk     S*2 S*2 S*1             one prepared INSERT, and the values of so many executions
//! ```

use std::time::Duration;

use super::database::ByDatabase;
use super::formula::Formula;
use super::generator::Generator;
use crate::value::Value;

/// How often a step may be repeated.
const REPEAT_MAX: i64 = 100_000;
/// How many values of repetitions may go into one statement: SQLite has room for 32,766, PostgreSQL for 65,535.
const VALUES_MAX: usize = 30_000;
/// The longest pause.
const PAUSE_MS_MAX: i64 = 3_600_000;

/// Statements of a transaction.
#[derive(Clone, Debug)]
pub struct Step {
    /// By which verify asks how often it was executed: `:name`.
    pub name: String,
    /// With `:name` for values, constants and parameters.
    pub statements: ByDatabase<Vec<String>>,
    /// Values drawn anew for each repetition.
    pub values: Vec<(String, Generator)>,
    /// Of a hundred transactions, how many have it.
    pub chance: Formula,
    /// How often it is executed.
    pub repeat: Formula,
    /// How repetitions are sent.
    pub send: Send,
    /// How many are sent at once; none: all.
    pub batch: Option<Formula>,
    /// Milliseconds of rest after each message.
    pub pause_ms: Formula,
}

/// How repetitions are sent: always alike, or as a parameter says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// Always so.
    Fixed(Sending),
    /// As the text parameter of this name says.
    Parameter(String),
}

/// How repetitions are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Each statement by itself, prepared.
    One,
    /// Several in one message, as text.
    Joined,
    /// As rows of one statement's VALUES, prepared.
    Rows,
    /// The statement prepared, with the values of several executions in one message, or without waiting for the answers between.
    Bulk,
}

/// A step with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Of a hundred transactions, how many have it.
    pub chance: u64,
    /// How often it is executed.
    pub repeat: usize,
    /// How repetitions are sent.
    pub sending: Sending,
    /// How many are sent at once.
    pub batch: usize,
    /// The rest after each message.
    pub pause: Duration,
}

impl Sending {
    pub(super) const WORDS: [&str; 4] = ["one", "joined", "rows", "bulk"];

    pub(super) fn parse(word: &str) -> Option<Sending> {
        let place = Sending::WORDS.iter().position(|known| *known == word)?;
        [Sending::One, Sending::Joined, Sending::Rows, Sending::Bulk].get(place).copied()
    }
}

impl Step {
    /// With these parameters; an error says why that is not possible.
    pub fn resolve(&self, parameters: &[(String, Value)]) -> Result<Resolved, String> {
        let number = |what: &str, formula: &Formula, least: i64, most: i64| {
            let number = formula.value(parameters).ok_or_else(|| format!("{what} is no whole number of 64 bits"))?;
            let is_possible = (least..=most).contains(&number);
            is_possible.then_some(number).ok_or_else(|| format!("{what} is {number}, it may be {least} to {most}"))
        };
        let repeat = number("repeat", &self.repeat, 0, REPEAT_MAX)?;
        let batch = self.batch.as_ref().map_or(Ok(repeat.max(1)), |batch| number("batch", batch, 1, REPEAT_MAX))?;
        let sending = match &self.send {
            Send::Fixed(sending) => *sending,
            Send::Parameter(name) => {
                let word = parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.to_string());
                let word = word.unwrap_or_default();
                Sending::parse(&word).ok_or_else(|| format!("send is {word:?}, it may be one, joined, rows or bulk"))?
            }
        };
        let batch = batch.min(repeat.max(1));
        let values = self.values.len() * batch as usize;
        if sending == Sending::Rows && values > VALUES_MAX {
            return Err(format!("{values} values in one statement, there may be {VALUES_MAX}"));
        }
        Ok(Resolved {
            chance: number("chance", &self.chance, 0, 100)? as u64,
            repeat: repeat as usize,
            sending,
            batch: if sending == Sending::One { 1 } else { batch as usize },
            pause: Duration::from_millis(number("pause_ms", &self.pause_ms, 0, PAUSE_MS_MAX)? as u64),
        })
    }
}
