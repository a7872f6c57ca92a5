//! The rows of both sides, ordered by key in a temporary database, and walked side by side.
//!
//! The database has no name and no file of one: SQLite keeps it in memory up to its cache, then in a file that it deletes.

use anyhow::{Context as _, Result, anyhow};
use headwater_model::Table;
use rusqlite::{Connection, OptionalExtension as _, Rows};

use super::value::Value;
use super::{ColumnDifference, Difference, Kind, Pending, TableReport};

/// Both sides of one table.
pub(super) struct Merge<'t> {
    table: &'t Table,
    rows: Connection,
    buffers: (Vec<u8>, Vec<u8>),
}

type KeyAndRow = (Vec<u8>, Vec<u8>);

impl<'t> Merge<'t> {
    pub(super) fn new(table: &'t Table) -> Result<Merge<'t>> {
        let rows = Connection::open("").context("a temporary database could not be made; is there room for one?")?;
        rows.execute_batch(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16384; PRAGMA temp_store = FILE;
             CREATE TABLE remote (key BLOB NOT NULL, row BLOB NOT NULL);
             CREATE TABLE consolidated (key BLOB NOT NULL, row BLOB NOT NULL);
             CREATE TABLE pending (key BLOB PRIMARY KEY, set_aside INTEGER NOT NULL) WITHOUT ROWID;
             BEGIN;",
        )?;
        Ok(Merge { table, rows, buffers: Default::default() })
    }

    pub(super) fn add_remote(&mut self, row: &[Value]) -> Result<()> {
        self.add("INSERT INTO remote VALUES (?1, ?2)", row)
    }

    pub(super) fn add_consolidated(&mut self, row: &[Value]) -> Result<()> {
        self.add("INSERT INTO consolidated VALUES (?1, ?2)", row)
    }

    pub(super) fn add_pending(&mut self, key: &[Value], pending: Pending) -> Result<()> {
        let mut bytes = Vec::new();
        for value in key {
            value.write_key(&mut bytes);
        }
        let mut insert = self.rows.prepare_cached("INSERT OR REPLACE INTO pending VALUES (?1, ?2)")?;
        insert.execute((&bytes, pending == Pending::SetAside))?;
        Ok(())
    }

    fn add(&mut self, insert: &str, row: &[Value]) -> Result<()> {
        let (key, bytes) = &mut self.buffers;
        key.clear();
        bytes.clear();
        for value in self.table.key.iter().filter_map(|&place| row.get(place)) {
            value.write_key(key);
        }
        for value in row {
            value.write(bytes);
        }
        self.rows.prepare_cached(insert)?.execute((&*key, &*bytes))?;
        Ok(())
    }

    /// Walks both sides. With `is_complete` the remote should hold everything; else only what it holds is compared.
    pub(super) fn finish(self, is_complete: bool, details_max: usize) -> Result<TableReport> {
        let mut report = TableReport { table: self.table.name.clone(), ..TableReport::default() };
        let mut remote = self.rows.prepare("SELECT key, row FROM remote ORDER BY key")?;
        let mut consolidated = self.rows.prepare("SELECT key, row FROM consolidated ORDER BY key")?;
        let (mut remote, mut consolidated) = (remote.query([])?, consolidated.query([])?);
        let (mut ours, mut theirs) = (next(&mut remote)?, next(&mut consolidated)?);
        loop {
            let order = match (&ours, &theirs) {
                (None, None) => return Ok(report),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((ours, _)), Some((theirs, _))) => ours.cmp(theirs),
            };
            let here = if order.is_le() { ours.take() } else { None };
            let there = if order.is_ge() { theirs.take() } else { None };
            report.remote_rows += u64::from(here.is_some());
            report.consolidated_rows += u64::from(there.is_some());
            if here.is_some() {
                ours = next(&mut remote)?;
            }
            if there.is_some() {
                theirs = next(&mut consolidated)?;
            }
            if here != there && (is_complete || here.is_some()) {
                self.tell(&mut report, here, there, details_max)?;
            }
        }
    }

    fn tell(
        &self,
        report: &mut TableReport,
        ours: Option<KeyAndRow>,
        theirs: Option<KeyAndRow>,
        details_max: usize,
    ) -> Result<()> {
        let Some((key, _)) = ours.as_ref().or(theirs.as_ref()) else {
            return Ok(());
        };
        let pending = self.pending(key)?;
        report.pending += u64::from(pending.is_some());
        let kind = match (&ours, &theirs) {
            (Some(_), Some(_)) => Kind::Different,
            (Some(_), None) => Kind::Extra,
            _ => Kind::Missing,
        };
        *match kind {
            Kind::Different => &mut report.different,
            Kind::Extra => &mut report.extra,
            Kind::Missing => &mut report.missing,
        } += 1;
        if report.differences.len() < details_max {
            let ours = ours.map(|(_, row)| read_row(&row)).transpose()?;
            let theirs = theirs.map(|(_, row)| read_row(&row)).transpose()?;
            report.differences.push(self.difference(kind, pending, ours.as_deref(), theirs.as_deref()));
        }
        Ok(())
    }

    fn difference(
        &self,
        kind: Kind,
        pending: Option<Pending>,
        ours: Option<&[Value]>,
        theirs: Option<&[Value]>,
    ) -> Difference {
        let some = ours.or(theirs).unwrap_or_default();
        let value = |row: &[Value], place: usize| row.get(place).cloned().unwrap_or(Value::Null);
        let named = |place: usize| self.table.columns.get(place).map_or("", |column| column.name.as_str()).to_owned();
        let key = self.table.key.iter().map(|&place| (named(place), value(some, place))).collect();
        let columns = match (ours, theirs) {
            (Some(ours), Some(theirs)) => (0..self.table.columns.len())
                .filter(|&place| ours.get(place) != theirs.get(place))
                .map(|place| ColumnDifference {
                    column: named(place),
                    remote: value(ours, place),
                    consolidated: value(theirs, place),
                })
                .collect(),
            _ => Vec::new(),
        };
        Difference { kind, key, columns, pending }
    }

    fn pending(&self, key: &[u8]) -> Result<Option<Pending>> {
        let mut find = self.rows.prepare_cached("SELECT set_aside FROM pending WHERE key = ?1")?;
        let set_aside: Option<bool> = find.query_row([key], |row| row.get(0)).optional()?;
        Ok(set_aside.map(|is_set_aside| if is_set_aside { Pending::SetAside } else { Pending::Waiting }))
    }
}

fn next(rows: &mut Rows<'_>) -> Result<Option<KeyAndRow>> {
    Ok(rows.next()?.map(|row| Ok::<_, rusqlite::Error>((row.get(0)?, row.get(1)?))).transpose()?)
}

fn read_row(mut bytes: &[u8]) -> Result<Vec<Value>> {
    let mut row = Vec::new();
    while !bytes.is_empty() {
        let (value, rest) =
            Value::read(bytes).ok_or_else(|| anyhow!("the temporary database gave back other bytes"))?;
        row.push(value);
        bytes = rest;
    }
    Ok(row)
}
