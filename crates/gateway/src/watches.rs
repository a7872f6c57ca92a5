//! Which queries can be watched, and what they read last.
//!
//! What a query depends on is looked into once, and again once something of that was altered ([`headwater_consolidated::watch`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headwater_consolidated::watch::{Marked, Watched};
use headwater_consolidated::{Error, QueryConnection};

/// A query that can't be watched is looked into again after so long: its tables may be tracked by then.
const AGAIN: Duration = Duration::from_mins(1);
/// Of so many queries it is known; of those asked longest ago it is forgotten.
const QUERIES_MAX: usize = 1_000;

/// When a query is looked into, which costs more than many a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looking {
    AtOnce,
    /// It may never be asked again: not before it is.
    TheSecondTime,
}

/// What is known of queries, by their SQL.
#[derive(Default)]
pub(crate) struct Watches(Mutex<HashMap<String, Known>>);

struct Known {
    asked: Instant,
    /// `None`: it was asked once.
    looked: Option<Looked>,
}

#[derive(Clone)]
struct Looked {
    watched: Option<Arc<Watched>>,
    at: Instant,
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mark of what a query reads from now on, and whether that is what it read at the `known` one. `None`: it can't be watched, or is not
    /// yet.
    pub(crate) fn mark(
        &self,
        connection: &mut dyn QueryConnection,
        (sql, looking): (&str, Looking),
        known: Option<&str>,
    ) -> Result<Option<(String, bool)>, Error> {
        const LOOKS: usize = 2; // altered all the while, it goes without
        for _ in 0..LOOKS {
            let Some(watched) = self.watched(connection, sql, looking)? else { return Ok(None) };
            match connection.marked(&watched, known)? {
                Marked::Unchanged(mark) => return Ok(Some((mark, true))),
                Marked::Changed(mark) => return Ok(Some((mark, false))),
                Marked::Altered => self.forget(sql),
            }
        }
        Ok(None)
    }

    /// What was found of a query, if it can be watched.
    pub(crate) fn known(&self, sql: &str) -> Option<Arc<Watched>> {
        self.lock().get(sql)?.looked.as_ref()?.watched.clone()
    }

    fn watched(
        &self,
        connection: &mut dyn QueryConnection,
        sql: &str,
        looking: Looking,
    ) -> Result<Option<Arc<Watched>>, Error> {
        match self.ask(sql) {
            (false, _) if looking == Looking::TheSecondTime => return Ok(None),
            (_, Some(looked)) if looked.watched.is_some() || looked.at.elapsed() < AGAIN => return Ok(looked.watched),
            _ => {}
        }
        let watched = connection.watch(sql)?.map(Arc::new);
        if let Some(known) = self.lock().get_mut(sql) {
            known.looked = Some(Looked { watched: watched.clone(), at: Instant::now() });
        }
        Ok(watched)
    }

    /// Whether it was asked before, and what was found when it was looked into, if it was.
    fn ask(&self, sql: &str) -> (bool, Option<Looked>) {
        let known = &mut *self.lock();
        let asked = Instant::now();
        if let Some(known) = known.get_mut(sql) {
            known.asked = asked;
            return (true, known.looked.clone());
        }
        if known.len() >= QUERIES_MAX
            && let Some(oldest) = known.iter().min_by_key(|(_, known)| known.asked).map(|(sql, _)| sql.clone())
        {
            known.remove(&oldest);
        }
        known.insert(sql.to_owned(), Known { asked, looked: None });
        (false, None)
    }

    /// What was found is so no more.
    fn forget(&self, sql: &str) {
        if let Some(known) = self.lock().get_mut(sql) {
            known.looked = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_asked_longest_ago_are_forgotten() {
        let watches = Watches::default();
        for number in 0..=QUERIES_MAX {
            assert!(!watches.ask(&number.to_string()).0);
            assert!(watches.ask("0").0, "asked again and again");
        }
        assert_eq!(watches.lock().len(), QUERIES_MAX);
        assert!(!watches.ask("1").0);
    }
}
