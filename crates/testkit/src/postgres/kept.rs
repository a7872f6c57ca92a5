//! Connections that a thread keeps from one [`super::sql`] to the next: a session costs PostgreSQL far more than a small query.

use std::cell::RefCell;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use super::{Rows, read};

thread_local! {
    static KEPT: RefCell<Option<Vec<Kept>>> = const { RefCell::new(None) };
}

/// The last databases' are kept, and no more.
const KEPT_MAX: usize = 2;

/// From here on this thread, which must not be one of an async runtime, keeps the connections of [`super::sql`]. Each use begins with a
/// session as good as new.
pub fn keep_connections() {
    KEPT.with_borrow_mut(|kept| _ = kept.get_or_insert_default());
}

/// `None`: this thread keeps none.
pub(super) fn results(url: &str, statements: &str) -> Option<Result<Vec<Rows>>> {
    KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| results_by(kept, url, statements)))
}

fn results_by(all: &mut Vec<Kept>, url: &str, statements: &str) -> Result<Vec<Rows>> {
    if let Some(place) = all.iter().position(|kept| kept.url == url) {
        let kept = all.remove(place);
        // A session that was ended since it was used has not run them.
        match kept.run(statements) {
            Err(_) if kept.client.is_closed() => {}
            done => {
                all.extend(kept.renewed());
                return done;
            }
        }
    }
    let kept = Kept::connect(url)?;
    let done = kept.run(statements);
    all.extend(kept.renewed());
    let beyond = all.len().saturating_sub(KEPT_MAX);
    all.drain(..beyond);
    done
}

struct Kept {
    url: String,
    client: Client,
    runtime: Runtime,
}

impl Kept {
    fn connect(url: &str) -> Result<Kept> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(url, NoTls).await.with_context(|| format!("connecting to {url}"))?;
            tokio::spawn(connection);
            anyhow::Ok(client)
        })?;
        Ok(Kept { url: url.to_owned(), client, runtime })
    }

    fn run(&self, statements: &str) -> Result<Vec<Rows>> {
        let messages = self.runtime.block_on(self.client.simple_query(statements));
        Ok(read(messages.with_context(|| format!("running {statements:?}"))?))
    }

    /// Forgets what was set and made for the session; one that can't (it is over, or left in a transaction) is closed.
    fn renewed(self) -> Option<Kept> {
        self.run("DISCARD ALL").is_ok().then_some(self)
    }
}
