//! The reads of a download, and of the rows that others take their partition from.

use std::collections::HashSet;

use headwater_model::sql::quote;
use headwater_protocol::stored::{Scratch, Stored};
use headwater_protocol::{Row, Value};

use super::connection::{SqliteConnection, read_own_mark, read_watermark};
use super::equality::PartitionEquality;
use super::error::sort;
use super::values::{bind_all, plain, stored, typed, typed_row};
use crate::backend::{Changes, Reading};
use crate::{Error, RowsWriter, TablePlan};

/// Writes partitions from the table itself.
pub(super) fn whole(
    connection: &mut SqliteConnection,
    table: &TablePlan,
    partitions: &[Row],
    out: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let sql = connection.table_sql(table);
    put_rows(connection, &sql.whole, (table, partitions), out)
}

/// Writes the rows of partitions with a value in one of these columns.
pub(super) fn valued(
    connection: &mut SqliteConnection,
    table: &TablePlan,
    partitions: &[Row],
    columns: &[u32],
    out: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let name = |place: &u32| quote(&table.table.columns[*place as usize].name);
    let has_value = columns.iter().map(|place| format!("b.{} IS NOT NULL", name(place))).collect::<Vec<_>>();
    let filter = if table.partition_types.is_empty() { "WHERE" } else { "AND" };
    let sql = format!("{} {filter} ({})", connection.table_sql(table).unordered, has_value.join(" OR "));
    put_rows(connection, &sql, (table, partitions), out)
}

fn put_rows(
    connection: &mut SqliteConnection,
    sql: &str,
    (table, partitions): (&TablePlan, &[Row]),
    out: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let mut statement = connection.prepare(sql)?;
    let mut scratch = Scratch::default();
    for partition in each_of(table, partitions, &[Row::new()]) {
        bind_all(&mut statement, partition, &mut scratch)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(|error| sort(error, sql))? {
            put_row(table, row, 0, &mut scratch, out)?;
            out.end_row(false)?;
        }
    }
    Ok(())
}

/// Writes some rows of partitions.
pub(super) fn some(
    connection: &mut SqliteConnection,
    table: &TablePlan,
    partitions: &[Row],
    rows_max: u32,
    out: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let sql = connection.table_sql(table);
    let mut statement = connection.prepare(&sql.some)?;
    let mut scratch = Scratch::default();
    let mut left = i64::from(rows_max);
    for partition in each_of(table, partitions, &[Row::new()]) {
        if left == 0 {
            return Ok(());
        }
        bind_all(&mut statement, partition.iter().chain([&Value::Int(left)]), &mut scratch)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(|error| sort(error, &sql.some))? {
            put_row(table, row, 0, &mut scratch, out)?;
            out.end_row(false)?;
            left -= 1;
        }
    }
    Ok(())
}

/// Counts the rows of partitions, or what others have changed in them.
pub(super) fn count(connection: &mut SqliteConnection, reading: &Reading<'_>) -> Result<u64, Error> {
    let (table, partitions, more) = match reading {
        Reading::Whole(table, partitions) => (*table, *partitions, Vec::new()),
        Reading::Changes(changes) => {
            let (before, after) = changes.own.and_then(read_own_mark).unwrap_or_default();
            let since = read_watermark(changes.since).unwrap_or_default();
            (changes.table, changes.partitions, [since, before, after].map(Value::Int).to_vec())
        }
    };
    let noted = match reading {
        Reading::Changes(changes) => noted_partitions(connection, changes, more.first())?,
        Reading::Whole(..) => None,
    };
    let partitions = noted.as_deref().unwrap_or(partitions);
    let sql = connection.table_sql(table);
    let sql = if more.is_empty() { &sql.count } else { &sql.count_changes };
    let mut statement = connection.prepare(sql)?;
    let mut scratch = Scratch::default();
    let mut counted = 0;
    for partition in each_of(table, partitions, &[Row::new()]) {
        bind_all(&mut statement, partition.iter().chain(&more), &mut scratch)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(|error| sort(error, sql))? {
            counted += u64::try_from(integer(row, 0)?).unwrap_or(0);
        }
    }
    Ok(counted)
}

/// The partitions to go through; `all`, where the table has none.
fn each_of<'r>(table: &TablePlan, partitions: &'r [Row], all: &'r [Row]) -> &'r [Row] {
    if table.partition_types.is_empty() { all } else { partitions }
}

/// Writes what the side table says has changed, as it is now.
pub(super) fn changes(
    connection: &mut SqliteConnection,
    changes: &Changes<'_>,
    out: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let table = changes.table;
    let since = read_watermark(changes.since).ok_or_else(|| Error::Database {
        context: format!("reading the changes of {}", table.table.name),
        detail: "a watermark of another form".into(),
    })?;
    let own = changes.own.and_then(read_own_mark);
    let equality = PartitionEquality::read(connection, table)?;
    let wanted = Wanted { keys: changes.wanted.iter().map(|row| equality.canonical(row)).collect(), equality };
    let noted = noted_partitions(connection, changes, Some(&Value::Int(since)))?;
    let partitions = noted.as_deref().unwrap_or(changes.partitions);
    let sql = connection.table_sql(table);
    let (sql, versions) = match own.filter(|_| out.leaves_own_out()) {
        Some((before, after)) => (&sql.changes_of_others, vec![since, before, after]),
        None => (&sql.changes, vec![since]),
    };
    let versions: Row = versions.into_iter().map(Value::Int).collect();
    let mut statement = connection.prepare(sql)?;
    let mut scratch = Scratch::default();
    for partition in each_of(table, partitions, &[Row::new()]) {
        bind_all(&mut statement, partition.iter().chain(&versions), &mut scratch)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(|error| sort(error, sql))? {
            let version = integer(row, 2)?;
            let is_own = own.is_some_and(|(before, after)| before < version && version <= after);
            put_change(table, row, &wanted, &mut scratch, out, is_own)?;
        }
    }
    Ok(())
}

/// The partitions that the remote holds.
struct Wanted {
    keys: HashSet<Vec<u8>>,
    equality: PartitionEquality,
}

impl Wanted {
    fn has(&self, partition: &[Value]) -> bool {
        self.keys.contains(&self.equality.canonical(partition))
    }
}

/// The partitions as the side table spells them, which compares bytes; `None`: as they are.
fn noted_partitions(
    connection: &mut SqliteConnection,
    changes: &Changes<'_>,
    since: Option<&Value>,
) -> Result<Option<Vec<Row>>, Error> {
    let equality = PartitionEquality::read(connection, changes.table)?;
    if !equality.has_spellings() {
        return Ok(None);
    }
    let sql = connection.table_sql(changes.table);
    // As they are stored: a side table's columns make no number of a text.
    let noted = read_spellings(connection, &sql.noted_spellings, since, &mut |row| {
        (0..changes.table.partition_types.len()).map(|place| plain(row, place)).collect()
    })?;
    Ok(Some(equality.among(noted, changes.partitions)))
}

/// How the rows that are read spell their partitions.
pub(super) fn spellings(connection: &mut SqliteConnection, reading: &Reading<'_>) -> Result<Vec<Row>, Error> {
    match reading {
        Reading::Whole(table, partitions) => {
            let sql = connection.table_sql(table);
            let (mut found, mut scratch) = (Vec::new(), Scratch::default());
            let mut read = |row: &rusqlite::Row<'_>| typed_row(row, 0, &table.partition_types, &mut scratch);
            for partition in *partitions {
                found.extend(read_spellings(connection, &sql.spellings, partition, &mut read)?);
            }
            Ok(found)
        }
        Reading::Changes(changes) => {
            let equality = PartitionEquality::read(connection, changes.table)?;
            let sql = connection.table_sql(changes.table);
            let since = Value::Int(read_watermark(changes.since).unwrap_or_default());
            let mut scratch = Scratch::default();
            let types = &changes.table.partition_types;
            let mut read = |row: &rusqlite::Row<'_>| typed_row(row, 0, types, &mut scratch);
            let found = read_spellings(connection, &sql.changed_spellings, [&since], &mut read)?;
            Ok(equality.among(found, changes.wanted))
        }
    }
}

fn read_spellings<'v>(
    connection: &SqliteConnection,
    sql: &str,
    parameters: impl IntoIterator<Item = &'v Value>,
    read: &mut dyn FnMut(&rusqlite::Row<'_>) -> Result<Row, Error>,
) -> Result<Vec<Row>, Error> {
    let mut statement = connection.prepare(sql)?;
    bind_all(&mut statement, parameters, &mut Scratch::default())?;
    let (mut found, mut rows) = (Vec::new(), statement.raw_query());
    while let Some(row) = rows.next().map_err(|error| sort(error, sql))? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// Places of a row of changes: lives here, lives, version, then the key and the columns.
const KEY_PLACE: usize = 3;

fn put_change(
    table: &TablePlan,
    row: &rusqlite::Row<'_>,
    wanted: &Wanted,
    scratch: &mut Scratch,
    out: &mut RowsWriter<'_, '_>,
    is_own: bool,
) -> Result<(), Error> {
    let columns = KEY_PLACE + table.key_types.len();
    if integer(row, 0)? != 0 {
        put_row(table, row, columns, scratch, out)?;
        return out.end_row(is_own);
    }
    let lives = integer(row, 1)? != 0;
    if lives {
        let values = typed_row(row, columns + table.types.len(), &table.partition_types, scratch)?;
        // It lives on in another partition that the remote holds, whose own side row sends it.
        if wanted.has(&values) {
            return Ok(());
        }
    }
    let mut writer = if lives { out.leave() } else { out.delete() };
    for (index, kind) in table.key_types.iter().enumerate() {
        writer.push(typed(row, KEY_PLACE + index, *kind, scratch)?);
    }
    writer.finish();
    out.end_row(is_own)
}

/// The partitions of what refers to rows with these keys, of those that are there.
pub(super) fn partitions_below(
    connection: &mut SqliteConnection,
    table: &TablePlan,
    parents: &[Row],
) -> Result<Vec<(Row, Row)>, Error> {
    let sql = connection.table_sql(table);
    let mut statement = connection.prepare(&sql.partition)?;
    let mut scratch = Scratch::default();
    let mut found = Vec::with_capacity(parents.len());
    for key in parents {
        bind_all(&mut statement, key, &mut scratch)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(|error| sort(error, &sql.partition))? {
            found.push((key.clone(), typed_row(row, 0, &table.partition_types, &mut scratch)?));
        }
    }
    Ok(found)
}

fn put_row(
    table: &TablePlan,
    row: &rusqlite::Row<'_>,
    first: usize,
    scratch: &mut Scratch,
    out: &mut RowsWriter<'_, '_>,
) -> Result<(), Error> {
    let mut writer = out.upsert();
    for (index, kind) in table.types.iter().enumerate() {
        writer.push(typed(row, first + index, *kind, scratch)?);
    }
    writer.finish();
    Ok(())
}

fn integer(row: &rusqlite::Row<'_>, place: usize) -> Result<i64, Error> {
    match stored(row, place)? {
        Stored::Integer(number) => Ok(number),
        other => Err(Error::Database {
            context: "reading a side table".into(),
            detail: format!("{other:?} where a whole number was expected"),
        }),
    }
}
