//! A scenario's transactions with a cell's parameters, and what a client draws of them before an operation's time begins.
//!
//! ```text
//! values   fixed (parameters, constants) | the transaction's | a step's, one repetition | the next repetition | ...
//!          `------------- shared -------------------------'  ^ base of an act
//! acts     execute statement 3 at base 7, execute statement 3 at base 9, send this text, pause
//! ```

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use crate::harness::Work;
use crate::random::Random;
use crate::scenario::{Database, Draw, Generator, Resolved, Scenario, Sending, Statement, Step, Template, Transaction};
use crate::value::Value;

/// A scenario's transactions.
pub(super) struct Kinds {
    all: Vec<Kind>,
    /// Of all kinds, to be prepared.
    pub(super) statements: Vec<Statement>,
    /// The names of all kinds' steps.
    pub(super) steps: Vec<String>,
    /// What one repetition of each does, without the rows it reads.
    works: Vec<Work>,
    database: Database,
}

/// One of them.
struct Kind {
    /// A draw below this chooses it, unless it chooses one before.
    weight_up_to: u64,
    begin: Option<String>,
    /// How many values are shared by its steps.
    shared: usize,
    parts: Vec<Part>,
}

/// A step with its numbers.
struct Part {
    /// Its place among the steps of all kinds.
    step: usize,
    numbers: Resolved,
    /// The statements of a whole batch, and those of what is left over.
    whole: Range<usize>,
    rest: Range<usize>,
    /// What is sent as text.
    templates: Vec<Template>,
}

/// What a client draws from, and what it has drawn last.
pub(super) struct Operation {
    random: Random,
    /// How many values are fixed.
    fixed: usize,
    values: Vec<Value>,
    /// For each kind its own draws, then those of each step.
    draws: Vec<(Vec<Draw>, Vec<Vec<Draw>>)>,
    kind: usize,
    acts: Vec<Act>,
    /// How often each step is executed: its place among all, and the count.
    executed: Vec<(usize, u64)>,
}

/// What is done at once.
pub(super) enum Act {
    /// This statement, with the draws that begin there.
    Execute { statement: usize, base: usize },
    /// This statement so many times, with the draws that begin there and every `own` further.
    Bulk { statement: usize, base: usize, own: usize, count: usize },
    /// This text.
    Send(String),
    /// Nothing, for so long.
    Pause(Duration),
}

impl Kinds {
    /// An error says what is not possible with these parameters.
    pub(super) fn new(scenario: &Scenario, fixed: &[(String, Value)], database: Database) -> Result<Kinds, String> {
        let mut kinds =
            Kinds { all: Vec::new(), statements: Vec::new(), steps: Vec::new(), works: Vec::new(), database };
        let mut weight_up_to = 0;
        for transaction in &scenario.transactions {
            weight_up_to += transaction.weighs(fixed)?;
            let names = fixed.iter().map(|(name, _)| name).chain(transaction.values.iter().map(|(name, _)| name));
            let shared: Vec<&str> = names.map(String::as_str).collect();
            let parts =
                transaction.steps.iter().map(|step| kinds.part(step, fixed, &shared)).collect::<Result<_, _>>()?;
            let begin = transaction.begin.of(database).clone();
            kinds.all.push(Kind { weight_up_to, begin, shared: shared.len(), parts });
        }
        Ok(kinds)
    }

    fn part(&mut self, step: &Step, fixed: &[(String, Value)], shared: &[&str]) -> Result<Part, String> {
        let numbers = step.resolve(fixed)?;
        let own: Vec<&str> = step.values.iter().map(|(name, _)| name.as_str()).collect();
        let known = [shared, &own].concat();
        let of_row = |row, place| if place < shared.len() { place } else { place + row * own.len() };
        let sql = step.statements.of(self.database);
        let templates = |count: usize| -> Vec<Template> {
            let with_rows = |sql: &String| Template::with_rows(sql, &known, count, of_row);
            match numbers.sending {
                _ if count == 0 => Vec::new(),
                Sending::Rows => sql.iter().filter_map(with_rows).collect(),
                Sending::One | Sending::Joined | Sending::Bulk => {
                    sql.iter().map(|sql| Template::new(sql, &known)).collect()
                }
            }
        };
        // What is executed as often as there is left needs no statement of its own for that.
        let left = if numbers.sending == Sending::Bulk { 0 } else { numbers.repeat % numbers.batch };
        let (mut whole, rest) = (templates(numbers.batch), templates(left));
        let is_text = numbers.sending == Sending::Joined;
        let database = self.database;
        let mut prepare = |templates: &[Template]| {
            let start = self.statements.len();
            self.statements.extend(templates.iter().filter(|_| !is_text).map(|template| template.prepared(database)));
            start..self.statements.len()
        };
        let (prepared, prepared_rest) = (prepare(&whole), prepare(&rest));
        whole.truncate(if is_text { whole.len() } else { 0 });
        self.steps.push(step.name.clone());
        let mut work = Work::default();
        for sql in sql {
            work += work_of(sql);
        }
        self.works.push(work);
        Ok(Part { step: self.steps.len() - 1, numbers, whole: prepared, rest: prepared_rest, templates: whole })
    }

    /// Draws the next.
    pub(super) fn draw(&self, operation: &mut Operation) {
        let Operation { random, fixed, values, draws, kind: chosen, acts, executed } = operation;
        values.truncate(*fixed);
        acts.clear();
        executed.clear();
        let number = random.below(self.all.last().map_or(0, |last| last.weight_up_to));
        *chosen = self.all.iter().position(|kind| number < kind.weight_up_to).unwrap_or(0);
        let (Some(kind), Some((own, of_steps))) = (self.all.get(*chosen), draws.get_mut(*chosen)) else { return };
        values.extend(own.iter_mut().map(|draw| draw.next(random)));
        for (part, draws) in kind.parts.iter().zip(of_steps) {
            let Resolved { chance, repeat, batch, pause, sending } = part.numbers;
            if chance < 100 && random.below(100) >= chance {
                continue;
            }
            executed.push((part.step, repeat as u64));
            let mut left = repeat;
            while left > 0 {
                let count = left.min(batch);
                left -= count;
                let base = values.len();
                for _ in 0..count {
                    values.extend(draws.iter_mut().map(|draw| draw.next(random)));
                }
                if sending == Sending::Bulk {
                    let own = draws.len();
                    let bulk = |statement| Act::Bulk { statement, base, own, count };
                    acts.extend(part.whole.clone().map(bulk));
                } else if part.templates.is_empty() {
                    let statements = if count == batch { &part.whole } else { &part.rest };
                    acts.extend(statements.clone().map(|statement| Act::Execute { statement, base }));
                } else {
                    let bases = (0..count).map(|number| base + number * draws.len());
                    acts.push(Act::Send(self.joined(part, kind.shared, values, bases)));
                    values.truncate(base);
                }
                acts.extend((!pause.is_zero()).then_some(Act::Pause(pause)));
            }
        }
    }

    fn joined(&self, part: &Part, shared: usize, values: &[Value], bases: impl Iterator<Item = usize>) -> String {
        let mut text = String::new();
        for base in bases {
            for template in &part.templates {
                text.push_str(&template.filled(|place| values[at(place, shared, base)].literal(self.database)));
                text.push_str(";\n");
            }
        }
        text
    }

    /// What begins the operation, and must be committed at its end.
    pub(super) fn begin(&self, operation: &Operation) -> Option<&str> {
        self.all[operation.kind].begin.as_deref()
    }

    /// What the operation's statements do, without the rows they read.
    pub(super) fn work(&self, operation: &Operation) -> Work {
        let mut all = Work::default();
        for (step, count) in operation.executed() {
            let Work { queries, updates, deletes, inserts, .. } = self.works[*step];
            all += Work {
                queries: queries * count,
                updates: updates * count,
                deletes: deletes * count,
                inserts: inserts * count,
                rows_read: 0,
            };
        }
        all
    }

    /// The values of a statement, in the order of its parameters.
    pub(super) fn values<'o>(&self, operation: &'o Operation, statement: usize, base: usize) -> Vec<&'o Value> {
        let shared = self.all[operation.kind].shared;
        self.statements[statement].places.iter().map(|place| &operation.values[at(*place, shared, base)]).collect()
    }
}

/// What a statement does, by its first word behind comments; nothing, if that is none that reads or writes rows.
fn work_of(sql: &str) -> Work {
    let mut rest = sql.trim_start();
    while let Some(end) = match rest.get(..2) {
        Some("--") => Some("\n"),
        Some("/*") => Some("*/"),
        _ => None,
    } {
        rest = rest.split_once(end).map_or("", |(_, behind)| behind).trim_start();
    }
    let first: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
    let mut work = Work::default();
    match first.to_ascii_uppercase().as_str() {
        "SELECT" | "VALUES" | "WITH" => work.queries = 1,
        "UPDATE" => work.updates = 1,
        "DELETE" => work.deletes = 1,
        "INSERT" => work.inserts = 1,
        _ => {}
    }
    work
}

/// Where the value of a place is.
fn at(place: usize, shared: usize, base: usize) -> usize {
    if place < shared { place } else { base + place - shared }
}

impl Operation {
    /// For one client of so many.
    pub(super) fn new(
        scenario: &Scenario,
        fixed: &[(String, Value)],
        random: Random,
        client: (usize, usize),
    ) -> Operation {
        // All could be resolved when the experiment was read.
        let draws = |values: &[(String, Generator)]| -> Vec<Draw> {
            values.iter().filter_map(|(_, generator)| generator.resolve(fixed, client.0, client.1).ok()).collect()
        };
        let of_steps = |transaction: &Transaction| transaction.steps.iter().map(|step| draws(&step.values)).collect();
        let all = scenario.transactions.iter();
        Operation {
            random,
            fixed: fixed.len(),
            values: fixed.iter().map(|(_, value)| value.clone()).collect(),
            draws: all.map(|transaction| (draws(&transaction.values), of_steps(transaction))).collect(),
            kind: 0,
            acts: Vec::new(),
            executed: Vec::new(),
        }
    }

    pub(super) fn acts(&self) -> &[Act] {
        &self.acts
    }

    /// How often each step is executed: its place among all, and the count.
    pub(super) fn executed(&self) -> &[(usize, u64)] {
        &self.executed
    }
}
