//! A consolidated database in SQLite, read as it is.

use std::path::Path;

use anyhow::{Context as _, Result};
use headwater_diskfaults::FileFault;
use headwater_model::sql::{quote, with_parameters};
use headwater_model::{Model, Partition, Table};
use headwater_protocol::Type;
use rusqlite::types::Value as Stored;
use rusqlite::{Connection, OpenFlags, Params};

use super::value::Value;
use super::{CURSOR, LeftOut, MEMBERS, Source, cursor, holder, left_out};

/// A consolidated database in SQLite, in one snapshot.
pub struct SqliteDatabase {
    database: Connection,
    model: Model,
    user: String,
    remote_id: String,
}

impl SqliteDatabase {
    /// Opens the file to see what this user's remote should hold; `remote_id` is what the membership query gets.
    pub fn open(path: &Path, model: &Model, user: &str, remote_id: &str) -> Result<SqliteDatabase> {
        let database = open_snapshot(path)?;
        tell_who(&database, user, remote_id).context("who asks could not be told to the application's queries")?;
        let (user, remote_id) = (user.to_owned(), remote_id.to_owned());
        Ok(SqliteDatabase { database, model: model.clone(), user, remote_id })
    }

    /// The user's memberships that no download brings, each once, as the file has them.
    fn members_left_out(&self, partition: &Partition) -> Result<Vec<(Vec<Stored>, LeftOut)>> {
        let failed = |error| failed(Path::new(self.database.path().unwrap_or_default()), error);
        let mut parameters: Vec<&str> = Vec::new();
        let members = with_parameters(&partition.members, |name| {
            parameters.push(if name == ":s.user" { &self.user } else { &self.remote_id });
            format!("?{}", parameters.len())
        });
        let mut statement = self.database.prepare(&members).map_err(failed)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failed)?;
        let mut found: Vec<(Vec<Stored>, LeftOut)> = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let (mut stored, mut values) = (Vec::new(), Vec::new());
            for (place, (_, kind)) in partition.columns.iter().enumerate() {
                stored.push(Stored::try_from(row.get_ref(place)?)?);
                values.push(Value::from_sqlite(row.get_ref(place)?, kind.base));
            }
            if !values.contains(&Value::Null)
                && let Some(left_out) = left_out(partition, &values)
                && !found.iter().any(|(known, _)| *known == stored)
            {
                found.push((stored, left_out));
            }
        }
        Ok(found)
    }
}

impl Source for SqliteDatabase {
    fn rows(&mut self, table: &Table, each: &mut dyn FnMut(Vec<Value>) -> Result<()>) -> Result<()> {
        let mut parameters: Vec<String> = Vec::new();
        let mut spell = |value: &str, _: &str| {
            parameters.push(value.to_owned());
            format!("?{}", parameters.len())
        };
        let given = cursor(table, [&self.user, &self.remote_id], &mut spell);
        let rows = if given.is_some() { CURSOR.to_owned() } else { quote(&table.name) };
        let select = format!("SELECT {}", columns(table));
        let place = table.partition.as_ref();
        let Some(partition) = place.and_then(|place| self.model.partitions.get(place.partition)) else {
            let with = given.map_or_else(String::new, |given| format!("WITH {given} "));
            let sql = format!("{with}{select} FROM {rows} AS t");
            return read(&self.database, table, &sql, rusqlite::params_from_iter(parameters), each);
        };
        let members = with_parameters(&partition.members, |name| {
            spell(if name == ":s.user" { &self.user } else { &self.remote_id }, "text")
        });
        let names: Vec<String> = (0..partition.columns.len()).map(|place| format!("p{place}")).collect();
        let (joins, holder, alias) = holder(&self.model, table, &|table| quote(&table.name));
        let of_row = holder.partition_columns().map(|column| format!("{alias}.{}", quote(&column.name)));
        let of_row: Vec<String> = of_row.take(names.len()).collect();
        // The collation of the left one decides.
        let matches = names.iter().zip(&of_row).map(|(p, own)| format!("{own} = {MEMBERS}.{p}"));
        let mut matches = matches.collect::<Vec<_>>().join(" AND ");
        let mut parameters: Vec<Stored> = parameters.into_iter().map(Stored::from).collect();
        for (values, _) in self.members_left_out(partition)? {
            let equal = names.iter().zip(values).map(|(p, value)| {
                parameters.push(value);
                format!("{MEMBERS}.{p} COLLATE BINARY IS ?{}", parameters.len())
            });
            matches.extend([" AND NOT (", &equal.collect::<Vec<_>>().join(" AND "), ")"]);
        }
        let sql = format!(
            "WITH {MEMBERS}({}) AS ({members}\n){} {select}, {} FROM {rows} AS t{joins} WHERE EXISTS (SELECT 1 FROM {MEMBERS} WHERE {matches})",
            names.join(", "),
            given.map_or_else(String::new, |given| format!(", {given}")),
            of_row.join(", ")
        );
        let kinds = table.columns.iter().map(|column| column.kind.base);
        let kinds = kinds.chain(partition.columns.iter().map(|(_, kind)| kind.base));
        read_values(&self.database, kinds, &sql, rusqlite::params_from_iter(parameters), &mut |mut row| {
            let spelled = row.split_off(table.columns.len());
            if left_out(partition, &spelled).is_none() { each(row) } else { Ok(()) }
        })
    }

    fn left_out(&mut self, partition: &Partition) -> Result<Vec<LeftOut>> {
        Ok(self.members_left_out(partition)?.into_iter().map(|(_, left_out)| left_out).collect())
    }
}

/// As in a download: membership queries and scripts may ask the table of this name who it is.
fn tell_who(database: &Connection, user: &str, remote_id: &str) -> Result<()> {
    database.execute_batch(
        "PRAGMA query_only = 0;
         CREATE TEMP TABLE headwater_actor (single INTEGER PRIMARY KEY, user_name TEXT, remote_id BLOB)",
    )?;
    let remote_id = hex::decode(remote_id.replace('-', ""))?;
    database.execute("INSERT INTO temp.headwater_actor VALUES (1, ?1, ?2)", (user, remote_id))?;
    Ok(database.execute_batch("PRAGMA query_only = 1")?)
}

/// Opens a SQLite file that must exist, for reading, and begins its snapshot.
pub(super) fn open_snapshot(path: &Path) -> Result<Connection> {
    let failed =
        |error| failed(path, error).context(format!("{} could not be opened as a SQLite file", path.display()));
    // Not read-only: a file in WAL mode that nobody has open could then not be read.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags).map_err(failed)?;
    database.busy_timeout(std::time::Duration::from_secs(10))?;
    let begin = "PRAGMA query_only = 1; BEGIN; SELECT count(*) FROM sqlite_schema";
    database.execute_batch(begin).map_err(failed)?;
    Ok(database)
}

/// An error of SQLite's, or the fault of the disk or the file that it comes from.
pub(super) fn failed(path: &Path, error: rusqlite::Error) -> anyhow::Error {
    FileFault::of(path, &error).map_or_else(|| error.into(), anyhow::Error::from)
}

/// Runs a query that gives the columns of a table.
pub(super) fn read(
    database: &Connection,
    table: &Table,
    sql: &str,
    parameters: impl Params,
    each: &mut dyn FnMut(Vec<Value>) -> Result<()>,
) -> Result<()> {
    read_values(database, table.columns.iter().map(|column| column.kind.base), sql, parameters, each)
}

/// Runs a query that gives values of these types.
fn read_values(
    database: &Connection,
    kinds: impl Iterator<Item = Type>,
    sql: &str,
    parameters: impl Params,
    each: &mut dyn FnMut(Vec<Value>) -> Result<()>,
) -> Result<()> {
    let kinds: Vec<Type> = kinds.collect();
    let failed = |error| failed(Path::new(database.path().unwrap_or_default()), error);
    let mut statement = database.prepare(sql).map_err(failed)?;
    let mut rows = statement.query(parameters).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let value =
            |(place, kind): (usize, &Type)| Ok::<_, rusqlite::Error>(Value::from_sqlite(row.get_ref(place)?, *kind));
        each(kinds.iter().enumerate().map(value).collect::<Result<_, _>>()?)?;
    }
    Ok(())
}

/// The table's columns as SQL, in the model's order.
pub(super) fn columns(table: &Table) -> String {
    table.columns.iter().map(|column| format!("t.{}", quote(&column.name))).collect::<Vec<_>>().join(", ")
}
