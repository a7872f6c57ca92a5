//! Loading into SQLite: one transaction, one prepared statement a table.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Transaction};

use crate::records::{self, NULL};
use crate::tables::{Database, Kind, TABLES, Table, schema};
use crate::{Counts, Selection};

/// Makes the tables in this database file (which may be new) and fills them; all or nothing.
///
/// ```
/// # fn main() -> anyhow::Result<()> {
/// let folder = tempfile::tempdir()?;
/// let february = flights::Selection { month: Some(2) };
/// let counts = flights::load_sqlite(folder.path().join("flights.db"), february)?;
/// assert_eq!(counts.of("flights"), 24_951);
/// # Ok(())
/// # }
/// ```
pub fn load_sqlite(path: impl AsRef<Path>, selection: Selection) -> Result<Counts> {
    let path = path.as_ref();
    load(path, selection).with_context(|| format!("loading into {}", path.display()))
}

fn load(path: &Path, selection: Selection) -> Result<Counts> {
    let mut database = Connection::open(path)?;
    database.busy_timeout(Duration::from_secs(30))?;
    database.pragma_update(None, "journal_mode", "wal")?;
    database.pragma_update(None, "foreign_keys", true)?;
    let transaction = database.transaction()?;
    transaction.execute_batch(&schema(Database::Sqlite)).context("making the tables")?;
    let mut counts = Counts::default();
    for table in &TABLES {
        counts.add(table.name, fill(&transaction, table, selection)?);
    }
    transaction.commit()?;
    Ok(counts)
}

fn fill(transaction: &Transaction<'_>, table: &Table, selection: Selection) -> Result<u64> {
    let places = vec!["?"; table.columns.len()].join(", ");
    let sql = format!("INSERT INTO {} ({}) VALUES ({places})", table.name, table.column_list());
    let mut insert = transaction.prepare(&sql)?;
    let mut time = String::new();
    records::for_each(table, selection, |record| {
        ensure!(record.len() == table.columns.len(), "{} fields, expected {}", record.len(), table.columns.len());
        for (index, (field, (name, kind))) in record.iter().zip(table.columns).enumerate() {
            let value = value(field, *kind, &mut time).with_context(|| format!("column {name}"))?;
            insert.raw_bind_parameter(index + 1, ToSqlOutput::Borrowed(value))?;
        }
        insert.raw_execute()?;
        Ok(())
    })
}

/// A field as SQLite stores it; a time is written to the buffer first.
fn value<'a>(field: &'a [u8], kind: Kind, time: &'a mut String) -> Result<ValueRef<'a>> {
    if field == NULL.as_bytes() {
        return Ok(ValueRef::Null);
    }
    let text = std::str::from_utf8(field)?;
    Ok(match kind {
        Kind::Int => ValueRef::Integer(text.parse().with_context(|| format!("{text:?} is no integer"))?),
        Kind::Real => ValueRef::Real(text.parse().with_context(|| format!("{text:?} is no number"))?),
        Kind::Text => ValueRef::Text(field),
        Kind::Time => {
            let Some((date, hour)) = text.split_once('T').filter(|(_, hour)| hour.ends_with('Z')) else {
                bail!("{text:?} is no time as 2013-01-01T05:00:00Z");
            };
            time.clear();
            time.extend([date, " ", hour]);
            ValueRef::Text(time.as_bytes())
        }
    })
}
