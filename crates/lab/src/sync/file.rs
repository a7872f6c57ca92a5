//! A real remote: a file of SQLite, as applications have it. What it uploads was written to its table, what it downloads is in it
//! afterwards, with all that this takes.
//!
//! *Caveats.* A remote blocks, so each has a thread while it syncs. It has the machine's own network and no other, and takes its rows as
//! fast as the file does.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headwater_model::Model;
use headwater_protocol::Decimal;
use headwater_protocol::message::ChangeOp;
use headwater_remote::http::Credentials;
use headwater_remote::{CreateOptions, Error, Remote, SyncOptions, SyncReport};
use rusqlite::{Connection, params};

use super::kind::Standing;
use super::memory::{Pace, Synced};
use super::purchase::TextRow;
use crate::harness::{Class, Failure};

/// What a purchase is made with.
const INSERT: &str = "INSERT INTO lab_purchase (emp_id, purch_id, cust_id, cost, order_date, notes) \
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
/// All purchases.
const ALL: &str =
    "SELECT emp_id, purch_id, cust_id, cost, order_date, notes FROM lab_purchase ORDER BY emp_id, purch_id";

/// A remote with a file.
pub(super) struct FileRemote {
    path: PathBuf,
    token: String,
    /// On loan to the thread that syncs.
    remote: Arc<Mutex<Remote>>,
    /// Why the last write to the table failed: told by the next sync, which has nothing to send then.
    unwritten: Option<Failure>,
}

impl FileRemote {
    /// Makes the file; the model's tables are empty.
    pub(super) async fn create(
        path: PathBuf,
        model: Model,
        (place, user, token): (&str, String, String),
    ) -> Result<FileRemote, Failure> {
        let (file, options) = (path.clone(), CreateOptions::new(format!("http://{place}"), user));
        let remote = blocking(move || Remote::create(&file, &model, &options).map_err(|error| failed(&error))).await?;
        Ok(FileRemote { path, token, remote: Arc::new(Mutex::new(remote)), unwritten: None })
    }

    /// Writes this change of its own rows to the table, as an application does.
    pub(super) fn write(&mut self, op: ChangeOp, rows: impl Iterator<Item = TextRow>) {
        self.unwritten = write(&self.path, op, rows).err().map(|error| of_the_file(&error));
    }

    /// Syncs. Dropped before its end, the sync is cancelled at its next safe point.
    pub(super) async fn sync(&mut self, pace: Pace) -> Result<Synced, Failure> {
        if let Some(failure) = self.unwritten.take() {
            return Err(failure);
        }
        let (remote, token) = (self.remote.clone(), self.token.clone());
        let cancel = Cancel::default();
        let is_cancelled = cancel.0.clone();
        let report = blocking(move || {
            let mut options = SyncOptions::new(Credentials::Token(token));
            options.config = pace.config();
            options.cancel = Some(&is_cancelled);
            remote.lock().unwrap_or_else(PoisonError::into_inner).sync(&mut options).map_err(|error| failed(&error))
        });
        let SyncReport { changes_up, conflicts, refused, rows_down, deletions_down, bytes_down, .. } = report.await?;
        Ok(Synced {
            upserts: rows_down,
            deletes: deletions_down,
            changes: changes_up,
            contested: conflicts + refused,
            bytes_in: bytes_down,
            ..Synced::default()
        })
    }

    /// What of the file's rows is not as it should be; the rows expected come in the order of their keys.
    pub(super) async fn fault(&self, standing: Standing, expected: Vec<TextRow>) -> Result<Option<String>, Failure> {
        let path = self.path.clone();
        let expected = if standing.are_there { expected } else { Vec::new() };
        blocking(move || difference(&path, &expected).map_err(|error| of_the_file(&error))).await
    }
}

/// Ends a sync that nobody waits for any more.
#[derive(Default)]
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn write(path: &PathBuf, op: ChangeOp, rows: impl Iterator<Item = TextRow>) -> rusqlite::Result<()> {
    let mut connection = Connection::open(path)?;
    let transaction = connection.transaction()?;
    for row in rows {
        let TextRow { employee, number, customer, cost, ordered, notes } = row;
        match op {
            ChangeOp::Insert => transaction
                .prepare_cached(INSERT)?
                .execute(params![employee, number, customer, cost, ordered, notes])?,
            ChangeOp::Update => transaction
                .prepare_cached("UPDATE lab_purchase SET cost = ?3 WHERE emp_id = ?1 AND purch_id = ?2")?
                .execute(params![employee, number, cost])?,
            ChangeOp::Delete => transaction
                .prepare_cached("DELETE FROM lab_purchase WHERE emp_id = ?1 AND purch_id = ?2")?
                .execute(params![employee, number])?,
        };
    }
    transaction.commit()
}

fn difference(path: &PathBuf, expected: &[TextRow]) -> rusqlite::Result<Option<String>> {
    let connection = Connection::open(path)?;
    let mut statement = connection.prepare(ALL)?;
    let mut rows = statement.query([])?;
    let mut expected = expected.iter();
    while let Some(row) = rows.next()? {
        let actual = TextRow {
            employee: row.get(0)?,
            number: row.get(1)?,
            customer: row.get(2)?,
            cost: row.get(3)?,
            ordered: row.get(4)?,
            notes: row.get(5)?,
        };
        match expected.next() {
            Some(row) if is_same(&actual, row) => {}
            Some(row) => return Ok(Some(format!("its file has {actual:?}, expected {row:?}"))),
            None => return Ok(Some(format!("its file has {actual:?} besides"))),
        }
    }
    Ok(expected.next().map(|row| format!("its file lacks {row:?}")))
}

/// Whether they are the same, whatever zeros follow.
fn is_same(one: &TextRow, other: &TextRow) -> bool {
    let cost = |row: &TextRow| Decimal::parse(&row.cost);
    let is_cost = matches!((cost(one), cost(other)), (Some(one), Some(other)) if one.as_ref().same(&other.as_ref()));
    is_cost && TextRow { cost: String::new(), ..one.clone() } == TextRow { cost: String::new(), ..other.clone() }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|defect| Err(Failure::new(Class::Other, defect.to_string())))
}

fn failed(error: &Error) -> Failure {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    // Each request has a connection of its own: none is left to be of no use.
    Failure::new(Class::Code(error.code().to_owned()), format!("{error}{cause}"))
}

fn of_the_file(error: &rusqlite::Error) -> Failure {
    Failure::new(Class::Other, format!("a remote's file: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_of_a_file_is_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("remote.db");
        let connection = Connection::open(&path).expect("a file");
        let columns = "emp_id, purch_id, cust_id, cost, order_date, notes";
        connection.execute_batch(&format!("CREATE TABLE lab_purchase ({columns})")).expect("a table");
        let rows = || (1..=3).map(|number| TextRow::of(7, number, false, 64));
        write(&path, ChangeOp::Insert, rows()).expect("written");
        let expected: Vec<_> = rows().collect();
        let seen = || difference(&path, &expected).expect("read").unwrap_or_default();
        assert_eq!(seen(), "");
        connection.execute("UPDATE lab_purchase SET cost = rtrim(cost, '0')", []).expect("updated");
        assert_eq!(seen(), "", "the same cost");
        for (sql, back, what) in [
            ("SET cost = '5' WHERE purch_id = 2", "SET cost = '123456789.12' WHERE purch_id = 2", "expected"),
            ("SET notes = 'other' WHERE purch_id = 1", "SET notes = ?1 WHERE purch_id = 1", "expected"),
            ("SET purch_id = 9 WHERE purch_id = 3", "SET purch_id = 3 WHERE purch_id = 9", "expected"),
        ] {
            connection.execute(&format!("UPDATE lab_purchase {sql}"), []).expect("updated");
            assert!(seen().contains(what), "{sql}: {}", seen());
            let notes = [&expected[0].notes];
            let parameters: &[&dyn rusqlite::ToSql] = if back.contains("?1") { &[&notes[0]] } else { &[] };
            connection.execute(&format!("UPDATE lab_purchase {back}"), parameters).expect("updated");
            assert_eq!(seen(), "");
        }
        assert!(difference(&path, &expected[..2]).expect("read").is_some_and(|what| what.ends_with("besides")));
        write(&path, ChangeOp::Delete, rows().skip(2)).expect("deleted");
        assert!(seen().starts_with("its file lacks"), "{}", seen());
    }
}
