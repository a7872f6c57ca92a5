//! SQL that clients send, and the connections that it is run on.
//!
//! They are not the server's own: its role reads the accounts and the key of tokens. On SQLite they read the application's tables alone; elsewhere
//! a role of its own decides, and SQL whose role can read such secrets is not run. The role is looked at again every few seconds: the tables may
//! have been made meanwhile, or more may have been granted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use headwater_consolidated::{Error, QueryConnection, QueryPool};
use headwater_model::sql::with_parameters_in;

use crate::fault::Fault;

/// For how long it is good that a role could read no secrets.
const CHECKED_FOR: Duration = Duration::from_secs(5);

/// The database as SQL of clients sees it. Clones share its connections.
#[derive(Clone, Debug)]
pub struct ClientSql {
    pool: QueryPool,
    reads_accounts: bool,
    checked: Arc<Mutex<Option<Instant>>>,
}

impl ClientSql {
    /// Runs it on connections of this pool. `reads_accounts`: whoever runs the server wants it run though its role can read Headwater's own
    /// tables.
    pub fn new(pool: QueryPool, reads_accounts: bool) -> ClientSql {
        ClientSql { pool, reads_accounts, checked: Arc::default() }
    }

    pub(crate) fn pool(&self) -> &QueryPool {
        &self.pool
    }

    /// The SQL with its `?` numbered (`?1`), and how many there are. What the database takes for a comment or a text has none.
    pub(crate) fn numbered(&self, sql: &str) -> (String, usize) {
        let mut number = 0;
        let sql = with_parameters_in(sql, self.pool.syntax(), |name| {
            if name != "?" {
                return name.to_owned();
            }
            number += 1;
            format!("?{number}")
        });
        (sql, number)
    }

    /// [`Error::Setup`] where the role of a connection of the pool can read what it must not.
    pub(crate) fn check(&self, connection: &mut dyn QueryConnection) -> Result<(), Error> {
        let is_good = |checked: &Option<Instant>| checked.is_some_and(|at| at.elapsed() < CHECKED_FOR);
        if self.reads_accounts || is_good(&self.checked.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let readable = connection.readable_secrets()?;
        if readable.is_empty() {
            *self.checked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            return Ok(());
        }
        let mend = "give it a role that can't read them ([gateway.frontier] url)".to_owned();
        Err(Error::Setup { what: format!("SQL of clients could read {}", readable.join(", ")), mend })
    }
}

/// What is wrong with SQL, or values, that have a NUL: one database reads the SQL before it alone.
pub(crate) fn nul_fault(sql: &str, values: &[String]) -> Option<Fault> {
    let what = match values.iter().position(|value| value.contains('\0')) {
        _ if sql.contains('\0') => "the SQL".to_owned(),
        Some(place) => format!("value {}", place + 1),
        None => return None,
    };
    Some(Fault::arguments(format!("{what} has a character that no database takes (NUL)")))
}
