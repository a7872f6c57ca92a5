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

/// What is known of queries, by their SQL.
#[derive(Default)]
pub(crate) struct Watches(Mutex<HashMap<String, Looked>>);

struct Looked {
    watched: Option<Arc<Watched>>,
    at: Instant,
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Looked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mark of what a query reads from now on, and whether that is what it read at the `known` one. `None`: it can't be watched.
    pub(crate) fn mark(
        &self,
        connection: &mut dyn QueryConnection,
        sql: &str,
        known: Option<&str>,
    ) -> Result<Option<(String, bool)>, Error> {
        const LOOKS: usize = 2; // altered all the while, it goes without
        for _ in 0..LOOKS {
            let Some(watched) = self.watched(connection, sql)? else { return Ok(None) };
            match connection.marked(&watched, known)? {
                Marked::Unchanged(mark) => return Ok(Some((mark, true))),
                Marked::Changed(mark) => return Ok(Some((mark, false))),
                Marked::Altered => self.lock().remove(sql),
            };
        }
        Ok(None)
    }

    fn watched(&self, connection: &mut dyn QueryConnection, sql: &str) -> Result<Option<Arc<Watched>>, Error> {
        if let Some(looked) = self.lock().get(sql)
            && (looked.watched.is_some() || looked.at.elapsed() < AGAIN)
        {
            return Ok(looked.watched.clone());
        }
        let watched = connection.watch(sql)?.map(Arc::new);
        self.lock().insert(sql.to_owned(), Looked { watched: watched.clone(), at: Instant::now() });
        Ok(watched)
    }
}
