//! All knobs of a program, and changes to them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use thiserror::Error;

use crate::near::nearest;
use crate::value::{Range, Value};

/// The most values that one change may name.
const NAMED_MAX: usize = 1_000;

/// Reads a knob.
pub type Read = Box<dyn Fn() -> Value + Send + Sync>;
/// Sets a knob; why not, in words. After an error it is as it was.
pub type Set = Box<dyn Fn(&Value) -> Result<(), String> + Send + Sync>;
/// What must hold of all values together: what is wrong, and what mends it.
pub type Rule = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// One value that can be changed while the program runs.
pub struct Knob {
    /// As in the configuration file: `pool.skips` is `skips` under `[pool]`.
    pub name: &'static str,
    /// What it does, in a few words.
    pub effect: &'static str,
    /// What it is where nothing is said.
    pub default: Value,
    /// What it may be.
    pub range: Range,
    /// Whether it is an option of the configuration file: else it can't be saved.
    pub is_option: bool,
    /// As it is now.
    pub read: Read,
    /// Changes it.
    pub set: Set,
}

/// A knob as it is now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// Its name.
    pub name: &'static str,
    /// What it is now.
    pub value: Value,
    /// What it was when the program started.
    pub at_start: Value,
    /// What it is where nothing is said.
    pub default: Value,
    /// What it may be, in words.
    pub range: String,
    /// What it does.
    pub effect: &'static str,
    /// Whether it can be saved.
    pub is_option: bool,
}

/// What a change has changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The knob.
    pub name: &'static str,
    /// What it was.
    pub from: Value,
    /// What it is.
    pub to: Value,
    /// Whether it can be saved.
    pub is_option: bool,
}

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// There is none of the name.
    #[error("there is no knob {name:?}{}", hint(near.as_deref()))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        near: Option<String>,
    },
    /// It is named twice.
    #[error("{name} is set twice, expected once")]
    Twice {
        /// The knob.
        name: String,
    },
    /// It can't be this.
    #[error("{name} is {actual:?}, expected {expected}")]
    OutOfRange {
        /// The knob.
        name: String,
        /// What it was to be.
        actual: String,
        /// What it may be.
        expected: String,
    },
    /// It can't be this now, or beside the others.
    #[error("{name} can't be {actual} now: {why}")]
    Refused {
        /// The knob.
        name: String,
        /// What it was to be.
        actual: String,
        /// Why not.
        why: String,
    },
    /// The same as the inner one, but what was set before it is not all as it was.
    #[error("{fault}; what was set before it could not be put back: {}", left.join(", "))]
    Left {
        /// Why not all was set.
        fault: Box<Fault>,
        /// The knobs, and what they are.
        left: Vec<String>,
    },
    /// What was asked for does not go together.
    #[error("{why}")]
    Apart {
        /// What does not, and what mends it.
        why: String,
    },
    /// So many at once are a mistake.
    #[error("{actual} values are set at once, expected at most {NAMED_MAX}")]
    TooMany {
        /// How many.
        actual: usize,
    },
}

fn hint(near: Option<&str>) -> String {
    near.map_or_else(|| "; `headwater tune` lists them".to_owned(), |near| format!(": did you mean {near}?"))
}

/// All of a program's.
#[derive(Debug)]
pub struct Knobs {
    all: Vec<Knob>,
    at_start: Vec<Value>,
    rules: Rules,
    /// One change at a time.
    changing: Mutex<()>,
}

struct Rules(Vec<Rule>);

impl Knobs {
    /// These, in this order. No two have the same name.
    pub fn new(all: Vec<Knob>) -> Knobs {
        let names: BTreeSet<&str> = all.iter().map(|knob| knob.name).collect();
        assert_eq!(names.len(), all.len(), "two knobs have one name");
        let at_start = all.iter().map(|knob| (knob.read)()).collect();
        Knobs { all, at_start, rules: Rules(Vec::new()), changing: Mutex::default() }
    }

    /// The same, and what must hold of them together after each change.
    #[must_use]
    pub fn with_rule(mut self, rule: Rule) -> Knobs {
        self.rules.0.push(rule);
        self
    }

    /// All of them, as they are now.
    pub fn shown(&self) -> Vec<Shown> {
        let shown = |(knob, at_start): (&Knob, &Value)| Shown {
            name: knob.name,
            value: (knob.read)(),
            at_start: at_start.clone(),
            default: knob.default.clone(),
            range: knob.range.to_string(),
            effect: knob.effect,
            is_option: knob.is_option,
        };
        self.all.iter().zip(&self.at_start).map(shown).collect()
    }

    /// Sets these, one after the other; all of them, or none. What has changed, that which changed along with them too.
    pub fn change(&self, wanted: &[(String, String)]) -> Result<Vec<Change>, Fault> {
        let wanted = self.understood(wanted)?;
        let _alone = self.alone();
        let before = self.values();
        for (knob, value) in &wanted {
            if let Err(why) = (knob.set)(value) {
                let fault = Fault::Refused { name: knob.name.to_owned(), actual: value.to_string(), why };
                return Err(self.undone(&before, fault));
            }
        }
        if let Some(why) = self.rules.0.iter().find_map(|rule| rule().err()) {
            return Err(self.undone(&before, Fault::Apart { why }));
        }
        let changed = self.all.iter().zip(before).zip(self.values()).filter(|((_, before), now)| before != now);
        let change = |((knob, from), to): ((&Knob, Value), Value)| Change {
            name: knob.name,
            from,
            to,
            is_option: knob.is_option,
        };
        Ok(changed.map(change).collect())
    }

    /// The knobs of these names, with values that they may have; nothing is changed yet.
    fn understood<'k>(&'k self, wanted: &[(String, String)]) -> Result<Vec<(&'k Knob, Value)>, Fault> {
        if wanted.len() > NAMED_MAX {
            return Err(Fault::TooMany { actual: wanted.len() });
        }
        let mut seen = BTreeSet::new();
        let understood = wanted.iter().map(|(name, text)| {
            let knob = self.find(name)?;
            if !seen.insert(knob.name) {
                return Err(Fault::Twice { name: name.clone() });
            }
            let expected = || {
                let expected = format!("{}{}", knob.range, knob.range.plainly(knob.name, text));
                Fault::OutOfRange { name: name.clone(), actual: text.clone(), expected }
            };
            Ok((knob, knob.range.read(text).ok_or_else(expected)?))
        });
        understood.collect()
    }

    fn find(&self, name: &str) -> Result<&Knob, Fault> {
        self.all.iter().find(|knob| knob.name == name).ok_or_else(|| {
            let near = nearest(name, self.all.iter().map(|knob| knob.name));
            Fault::Unknown { name: name.to_owned(), near: near.map(ToOwned::to_owned) }
        })
    }

    /// Name, range and default of each; for [`crate::contract`].
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (&'static str, &Range, &Value)> {
        self.all.iter().map(|knob| (knob.name, &knob.range, &knob.default))
    }

    /// All as they were, whatever the order in which that goes; for [`crate::contract`].
    pub(crate) fn restore(&self, before: &[(String, String)]) {
        let values = self.understood(before).unwrap_or_default().into_iter().map(|(_, value)| value);
        self.put_back(&values.collect::<Vec<_>>());
    }

    fn values(&self) -> Vec<Value> {
        self.all.iter().map(|knob| (knob.read)()).collect()
    }

    /// Puts all back as it was before a fault; what can't be is told with it.
    fn undone(&self, before: &[Value], fault: Fault) -> Fault {
        self.put_back(before);
        let changed = self.changed_from(before).map(|(knob, _)| format!("{} is {}", knob.name, (knob.read)()));
        let left: Vec<String> = changed.collect();
        if left.is_empty() { fault } else { Fault::Left { fault: Box::new(fault), left } }
    }

    /// As before. What depends on others may need those first: so often it is tried again.
    fn put_back(&self, before: &[Value]) {
        for _ in 0..3 {
            for (knob, before) in self.changed_from(before) {
                // It was so a moment ago; what stands in its way is put back by the next round.
                let _ = (knob.set)(before);
            }
        }
    }

    /// Those that are not as before, and what they were.
    fn changed_from<'k>(&'k self, before: &'k [Value]) -> impl Iterator<Item = (&'k Knob, &'k Value)> {
        self.all.iter().zip(before).filter(|(knob, before)| (knob.read)() != **before)
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Knob {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Knob").field("name", &self.name).field("value", &(self.read)()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} rules", self.0.len())
    }
}

#[cfg(test)]
mod tests;
