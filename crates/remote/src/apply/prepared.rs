//! What of a download is done before the write lock is taken: decoding, sorting by key, comparing with what is stored.
//!
//! ```text
//! no lock     rows -> temp.hw_coming_N, in key order
//!             equal to what is stored, without a change in the log -> their keys to temp.hw_equal_N, and out of hw_coming_N
//!             keys that a frame deletes -> temp.hw_deleted_N: one that comes again is not looked for among what is stored
//! write lock  marks, deletions, and rows of other tables: frame by frame, as ever
//!             a partition that comes whole: its rows go, but for those that come
//!             at the table's end: one INSERT ... SELECT of hw_coming_N; rows with a change in the log, or deleted before, one by one
//! ```
//!
//! Other programs write between the two. What they change is in the log, and has the equal row as its old image: nothing that came is missing then.
//! A row that differed and was changed since has an entry in the log, and is merged or held as ever. Where the schema has changed (a trigger
//! was dropped, a table made anew), nothing of the preparation is used.
//!
//! Only tables are prepared where a row depends on nothing but itself: none that gives its partition to another or takes it from one, is in
//! doubt, has held rows, open conflicts or triggers of the application's, or is empty.
//!
//! *Caveats.* The rows of prepared tables stand in a temporary file once more until the download is applied.

use std::collections::{BTreeMap, HashSet};

use headwater_model::sql::quote;
use headwater_protocol::message::{PartitionMark, RowOp, RowsReader, TableHeader};
use headwater_protocol::row::{Cell, RowReader, read_row};
use headwater_protocol::stored::{Scratch, encode};
use headwater_protocol::wire::Reader;
use headwater_protocol::{Kind, Limits};
use rusqlite::{CachedStatement, Connection};

use super::{Apply, Frames};
use crate::database::Database;
use crate::error::{Error, While};
use crate::local::{Bound, Local, from_wire, to_wire};
use crate::plan::{Plan, TablePlan, same_values};
use crate::rows::{Placed, Rows};
use crate::schema;
use crate::untracked::{self, Doubt};

/// How many rows that were not stored by one statement are read at a time.
const BATCH: usize = 500;

const DOING: &str = "comparing a download";

/// A download as far as it is done before the lock.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// By number: tables whose rows are in their temporary tables.
    tables: BTreeMap<u32, Coming>,
    /// For each frame of rows: the table in whose temporary table they are, and how many; `None`: none.
    frames: Vec<Option<(u32, Taken)>>,
    schema_version: i64,
}

/// Of a frame of rows, what is in a temporary table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// How many rows.
    pub(super) rows: u64,
    /// Whether the frame has deletions too.
    pub(super) has_deletions: bool,
}

/// The rows of a table.
#[derive(Debug)]
struct Coming {
    /// Whether some of them are equal to what is stored.
    has_equal: bool,
    /// Whether some are not.
    has_other: bool,
}

/// Prepares a download; `None`: there is nothing to be prepared.
pub(crate) fn prepare(database: &Database, plan: &Plan, frames: &mut Frames<'_>) -> Result<Option<Prepared>, Error> {
    let connection = &database.connection;
    connection.execute_batch("BEGIN").while_doing(DOING)?;
    let prepared = prepare_all(connection, plan, frames);
    let ended = connection.execute_batch(if prepared.is_ok() { "COMMIT" } else { "ROLLBACK" });
    let prepared = prepared?;
    ended.while_doing(DOING)?;
    Ok(Some(prepared).filter(|prepared| !prepared.tables.is_empty()))
}

fn prepare_all(connection: &Connection, plan: &Plan, frames: &mut Frames<'_>) -> Result<Prepared, Error> {
    let mut prepared = Prepared { schema_version: schema_version(connection)?, ..Prepared::default() };
    // Read with the same snapshot: a trigger that is made later is another version of the schema.
    if schema::has_own_triggers(connection, plan)? {
        return Ok(prepared);
    }
    let rows = Rows::new(connection);
    if untracked::doubts_by_download(connection, plan)?.iter().any(|doubt| *doubt != Doubt::None) {
        return Ok(prepared);
    }
    // The table whose frames come, and those whose frames have come.
    let (mut table, mut closed) = (None::<&TablePlan>, HashSet::new());
    while let Some(frame) = frames(connection)? {
        let payload = || frame.payload(Limits::ANSWER.frame_bytes_max);
        let number = match frame.kind {
            Kind::Table => TableHeader::from_payload(&payload()?)?.table,
            Kind::Partition => PartitionMark::from_payload(&payload()?)?.table,
            Kind::Rows => {
                let taken = match table.filter(|table| prepared.tables.contains_key(&table.number)) {
                    Some(table) => Some((table.number, take(&rows, table, &payload()?)?)),
                    None => None,
                };
                prepared.frames.push(taken);
                continue;
            }
            _ => continue,
        };
        if table.is_some_and(|table| table.number == number) {
            continue;
        }
        closed.extend(table.map(|table| table.number));
        table = plan.table(number);
        match table {
            // What comes in two places is stored in two.
            Some(table) if closed.contains(&table.number) => drop(prepared.tables.remove(&table.number)),
            Some(table) => prepared.begin(&rows, table)?,
            None => {}
        }
    }
    for (number, coming) in &mut prepared.tables {
        if let Some(table) = plan.table(*number) {
            coming.compare(&rows, table)?;
        }
    }
    Ok(prepared)
}

fn schema_version(connection: &Connection) -> Result<i64, Error> {
    connection.query_row("PRAGMA schema_version", [], |row| row.get(0)).while_doing(DOING)
}

fn coming(table: &TablePlan) -> String {
    quote(&format!("hw_coming_{}", table.number))
}

fn equal(table: &TablePlan) -> String {
    quote(&format!("hw_equal_{}", table.number))
}

/// The keys that a frame deletes.
fn deleted(table: &TablePlan) -> String {
    quote(&format!("hw_deleted_{}", table.number))
}

/// The columns of a temporary table, which have names of their own: `c0`, `c1` and so on.
fn columns(table: &TablePlan, prefix: &str) -> Vec<String> {
    (0..table.types.len()).map(|place| format!("{prefix}c{place}")).collect()
}

fn key_columns(table: &TablePlan, prefix: &str) -> Vec<String> {
    table.table.key.iter().map(|place| format!("{prefix}c{place}")).collect()
}

fn same(one: &[String], other: &[String]) -> String {
    one.iter().zip(other).map(|(one, other)| format!("{one} = {other}")).collect::<Vec<_>>().join(" AND ")
}

/// A condition on rows `c`: the log has a change of their key.
fn is_logged(table: &TablePlan) -> String {
    if !table.is_tracked() {
        return "0".to_owned();
    }
    let logged: Vec<String> = table.keys("k_").iter().map(|key| format!("l.{key}")).collect();
    format!("EXISTS (SELECT 1 FROM {} AS l WHERE {})", table.log(), same(&logged, &key_columns(table, "+c.")))
}

/// A condition on rows `c`: a frame of the download deletes their key, before they come.
fn is_deleted(table: &TablePlan) -> String {
    let keys = same(&key_columns(table, "d."), &key_columns(table, "c."));
    format!("EXISTS (SELECT 1 FROM temp.{} AS d WHERE {keys})", deleted(table))
}

/// A condition on rows `c`: they are stored one by one.
fn is_of_rest(table: &TablePlan) -> String {
    format!("({} OR {})", is_logged(table), is_deleted(table))
}

impl Prepared {
    /// Makes the temporary tables of a table, if it is one that is prepared.
    fn begin(&mut self, rows: &Rows<'_>, table: &TablePlan) -> Result<(), Error> {
        let number = table.number;
        let is_alone = table.parent.is_none() && table.below.is_empty();
        let has_others = || -> Result<bool, Error> {
            Ok(rows.any(&format!("SELECT 1 FROM \"hw_held\" WHERE \"table\" = {number}"))?
                || rows
                    .any(&format!("SELECT 1 FROM \"hw_conflict\" WHERE \"table\" = {number} AND \"is_open\" = 1"))?)
        };
        if !is_alone || !rows.any(&table.any_row())? || has_others()? {
            return Ok(());
        }
        let (own, key) = (columns(table, "").join(", "), key_columns(table, "").join(", "));
        for (name, columns) in [(coming(table), &own), (equal(table), &key), (deleted(table), &key)] {
            let sql = format!(
                "DROP TABLE IF EXISTS temp.{name}; CREATE TEMP TABLE {name} ({columns}, PRIMARY KEY ({key})) WITHOUT ROWID"
            );
            rows.connection.execute_batch(&sql).while_doing(DOING)?;
        }
        self.tables.insert(number, Coming { has_equal: false, has_other: false });
        Ok(())
    }

    /// The numbers of the tables.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.tables.keys().copied().collect()
    }

    /// Whether it is still what it was when it was made. (The lock is held.)
    pub(super) fn is_good(&self, connection: &Connection) -> Result<bool, Error> {
        Ok(schema_version(connection)? == self.schema_version)
    }

    /// What of a frame of rows is prepared, by its place among those frames.
    pub(super) fn taken(&self, frame: usize) -> Option<Taken> {
        let (table, taken) = self.frames.get(frame).copied().flatten()?;
        self.tables.contains_key(&table).then_some(taken)
    }

    fn has_equal(&self, table: &TablePlan) -> bool {
        self.tables.get(&table.number).is_some_and(|coming| coming.has_equal)
    }

    /// Whether the row of this key came as it is stored.
    pub(super) fn came_equal(&self, rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<bool, Error> {
        if !self.has_equal(table) {
            return Ok(false);
        }
        let by_key: Vec<String> = key_columns(table, "").iter().map(|column| format!("{column} = ?")).collect();
        let mut select =
            rows.prepare(&format!("SELECT 1 FROM temp.{} WHERE {}", equal(table), by_key.join(" AND ")))?;
        select.exists(rusqlite::params_from_iter(key)).while_doing(DOING)
    }

    /// A condition on the rows of a table: they do not come. `None`: it is not prepared.
    pub(super) fn not_coming(&self, table: &TablePlan) -> Option<String> {
        self.tables.get(&table.number)?;
        let own: Vec<String> = table.keys("").iter().map(|key| format!("+{}.{key}", table.name())).collect();
        let same = same(&key_columns(table, "c."), &own);
        let among = |name: String| format!(" AND NOT EXISTS (SELECT 1 FROM temp.{name} AS c WHERE {same})");
        Some(among(equal(table)) + &among(coming(table)))
    }

    /// A condition on keys of a table, named so: they are not those of rows that came as they are stored.
    pub(super) fn not_equal(&self, table: &TablePlan, keys: &[String]) -> Option<String> {
        // Without the affinity of the table's column, which would keep SQLite from the index of the other.
        let plain: Vec<String> = keys.iter().map(|key| format!("+{key}")).collect();
        let is_it = || same(&key_columns(table, "e."), &plain);
        self.has_equal(table)
            .then(|| format!(" AND NOT EXISTS (SELECT 1 FROM temp.{} AS e WHERE {})", equal(table), is_it()))
    }
}

/// Puts the rows of a frame into the temporary table.
fn take(rows: &Rows<'_>, table: &TablePlan, payload: &[u8]) -> Result<Taken, Error> {
    let (name, own) = (coming(table), columns(table, ""));
    let places = vec!["?"; own.len()].join(", ");
    let mut insert =
        rows.prepare(&format!("INSERT OR REPLACE INTO temp.{name} ({}) VALUES ({places})", own.join(", ")))?;
    let by_key: Vec<String> = key_columns(table, "").iter().map(|key| format!("{key} = ?")).collect();
    let gone = format!("DELETE FROM temp.{name} WHERE {}", by_key.join(" AND "));
    let (keys, places) = (key_columns(table, "").join(", "), vec!["?"; table.key_types.len()].join(", "));
    let note = format!("INSERT OR IGNORE INTO temp.{} ({keys}) VALUES ({places})", deleted(table));
    let (mut taken, mut scratch) = (Taken { rows: 0, has_deletions: false }, Scratch::default());
    let mut reader = RowsReader::new(payload);
    while let Some(op) = reader.next_op()? {
        if op == RowOp::Upsert {
            bind(table, &mut insert, reader.row(), &mut scratch)?;
            insert.raw_execute().while_doing(DOING)?;
            taken.rows += 1;
        } else {
            let key = read_row(reader.row(), &table.key_types, usize::MAX, None)?;
            let key = from_wire(&key);
            rows.execute(&gone, &key)?;
            rows.execute(&note, &key)?;
            taken.has_deletions = true;
        }
    }
    Ok(taken)
}

fn bind(
    table: &TablePlan,
    insert: &mut CachedStatement<'_>,
    reader: &mut Reader<'_>,
    scratch: &mut Scratch,
) -> Result<(), Error> {
    let mut cells = RowReader::new(reader, &table.types, usize::MAX)?;
    let mut place = 0;
    while let Some(cell) = cells.next_cell()? {
        let Cell::Value(value) = cell else {
            return Err(Error::Unexpected { what: "a downloaded row refers to an image before it".to_owned() });
        };
        place += 1;
        insert.raw_bind_parameter(place, Bound(encode(value, scratch))).while_doing(DOING)?;
    }
    Ok(())
}

impl Coming {
    /// Finds the rows that are stored as they came. (Not those that a frame deletes first: they are gone when theirs is stored.)
    fn compare(&mut self, rows: &Rows<'_>, table: &TablePlan) -> Result<(), Error> {
        let (coming, equal) = (coming(table), equal(table));
        let stored: Vec<String> = table.names().map(|name| format!("r.{}", quote(name))).collect();
        let keys: Vec<String> = table.keys("").iter().map(|key| format!("r.{key}")).collect();
        let sql = format!(
            "INSERT INTO temp.{equal} SELECT {} FROM temp.{coming} AS c CROSS JOIN {} AS r ON {} WHERE {} AND NOT {}",
            key_columns(table, "c.").join(", "),
            table.name(),
            same(&keys, &key_columns(table, "c.")),
            same_values(&stored, &columns(table, "c.")),
            is_of_rest(table),
        );
        let count = rows.execute(&sql, &[])?;
        let key = key_columns(table, "").join(", ");
        if count > 0 {
            rows.execute(&format!("DELETE FROM temp.{coming} WHERE ({key}) IN (SELECT {key} FROM temp.{equal})"), &[])?;
        }
        self.has_equal = count > 0;
        self.has_other = rows.any(&format!("SELECT 1 FROM temp.{coming}"))?;
        Ok(())
    }
}

impl<'a> Apply<'a> {
    /// Stores the prepared rows of the table whose frames have come.
    pub(super) fn store_prepared(&mut self) -> Result<(), Error> {
        self.end_taking_out()?;
        let Some(table) = self.table else { return Ok(()) };
        let has_other = |prepared: &mut Prepared| {
            prepared.tables.get_mut(&table.number).is_some_and(|coming| std::mem::take(&mut coming.has_other))
        };
        if !self.prepared.as_mut().is_some_and(has_other) {
            return Ok(());
        }
        if !self.has_displaced && self.store_at_once(table)? && !self.keep_rest(table)? {
            return Ok(());
        }
        let (own, key) = (columns(table, "c.").join(", "), key_columns(table, "").join(", "));
        let keys = vec!["?"; table.key_types.len()].join(", ");
        let select =
            |after: &str| format!("SELECT {own} FROM temp.{} AS c {after} ORDER BY {key} LIMIT {BATCH}", coming(table));
        let mut batch = self.read_prepared(&select(""), table, &[])?;
        while let Some(last) = batch.last().map(|row| table.key_of(row)) {
            for row in batch {
                self.store(table, &to_wire(&row, &table.types))?;
            }
            batch = self.read_prepared(&select(&format!("WHERE ({key}) > ({keys})")), table, &last)?;
        }
        Ok(())
    }

    /// After those are stored: leaves the others alone in the temporary table, whatever becomes of their changes when the first of them are
    /// stored. Whether there are any.
    fn keep_rest(&self, table: &TablePlan) -> Result<bool, Error> {
        let (coming, rest) = (coming(table), is_of_rest(table));
        let has_rest = self.rows.any(&format!("SELECT 1 FROM temp.{coming} AS c WHERE {rest} LIMIT 1"))?;
        if has_rest {
            self.rows.execute(&format!("DELETE FROM temp.{coming} AS c WHERE NOT {rest}"), &[])?;
        }
        Ok(has_rest)
    }

    /// Those without a change in the log, in key order, by one statement; whether they are stored. (A unique value that another row has
    /// keeps all of them out.)
    fn store_at_once(&mut self, table: &'a TablePlan) -> Result<bool, Error> {
        let names: Vec<String> = table.names().map(quote).collect();
        let others: Vec<String> = table.others().map(|name| format!("{0} = excluded.{0}", quote(name))).collect();
        let action = if others.is_empty() { "NOTHING".to_owned() } else { format!("UPDATE SET {}", others.join(", ")) };
        let sql = format!(
            "INSERT INTO {} ({}) SELECT {} FROM temp.{} AS c WHERE NOT {} ORDER BY {} ON CONFLICT ({}) DO {action}",
            table.name(),
            names.join(", "),
            columns(table, "c.").join(", "),
            coming(table),
            is_of_rest(table),
            key_columns(table, "c.").join(", "),
            table.keys("").join(", "),
        );
        if self.rows.run(table, &sql, &[])?.0 != Placed::Done {
            return Ok(false);
        }
        if !self.touched.is_whole(table) {
            let key = key_columns(table, "c.").join(", ");
            let sql = format!("SELECT {key} FROM temp.{} AS c WHERE NOT {}", coming(table), is_of_rest(table));
            let mut select = self.rows.prepare(&sql)?;
            let mut found = select.query([]).while_doing(DOING)?;
            while let Some(row) = found.next().while_doing(DOING)? {
                let key =
                    (0..table.key_types.len()).map(|place| Local::read(row, place)).collect::<Result<Vec<_>, _>>();
                let key = to_wire(&key.while_doing(DOING)?, &table.key_types);
                self.touched.row(table, &table.key_bytes(&key));
                if self.touched.is_whole(table) {
                    break;
                }
            }
        }
        Ok(true)
    }

    fn read_prepared(&self, sql: &str, table: &TablePlan, after: &[Local]) -> Result<Vec<Vec<Local>>, Error> {
        let mut select = self.rows.prepare(sql)?;
        let count = table.types.len();
        let read = |row: &rusqlite::Row<'_>| (0..count).map(|place| Local::read(row, place)).collect();
        let found = select.query_map(rusqlite::params_from_iter(after), read);
        found.and_then(Iterator::collect).while_doing(DOING)
    }
}

/// Removes the temporary tables of these tables.
pub(super) fn forget(connection: &Connection, plan: &Plan, numbers: &[u32]) {
    for table in numbers.iter().filter_map(|number| plan.table(*number)) {
        for name in [coming(table), equal(table), deleted(table)] {
            if let Err(error) = connection.execute_batch(&format!("DROP TABLE IF EXISTS temp.{name}")) {
                tracing::debug!(%error, "a temporary table stays until the file is closed");
            }
        }
    }
}
