//! Which indexes are built, by whom; and room in the schema for those that are new.

use std::collections::BTreeMap;

use rusqlite::Connection;

use crate::by_sqlite::BySqlite;
use crate::catalog::{self, Found};
use crate::error::{Error, of_application, sqlite};
use crate::header::Header;
use crate::job::{IndexJob, TableJob};
use crate::options::Options;
use crate::pager::Pager;

/// What is built, by whom.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Here.
    pub(crate) tables: Vec<TableJob>,
    /// By SQLite.
    pub(crate) by_sqlite: Vec<BySqlite>,
    /// The roots of indexes that are new: empty pages.
    pub(crate) new_roots: Vec<u32>,
}

/// Sorts out what the options ask for. Indexes in `doubts` are left to SQLite.
pub(crate) fn plan(
    pager: &Pager<'_>,
    header: &Header,
    options: &Options,
    doubts: &BTreeMap<String, String>,
) -> Result<Plan, Error> {
    let doubt_of_all = catalog::doubt_of_all(header, pager.has_pages());
    let connection = pager.connection();
    let mut plan = Plan::default();
    for found in wanted(&connection, header, options)? {
        let why = doubts.get(&found.name).or(doubt_of_all.as_ref()).cloned();
        match (found.job, why) {
            (Ok(job), None) => plan.add(&connection, &found.table, job)?,
            (Err(why), _) | (Ok(_), Some(why)) => {
                plan.by_sqlite.push(BySqlite { name: found.name, table: found.table, why, create: None });
            }
        }
    }
    for sql in &options.create {
        let new = New::read(&connection, header, sql)?;
        let Some(new) = new else { continue };
        let why = doubts.get(&new.found.name).or(doubt_of_all.as_ref()).cloned();
        match (new.found.job.clone(), why) {
            (Ok(mut job), None) => {
                job.root = new.enter(&connection, plan.new_roots.len())?;
                plan.new_roots.push(job.root);
                plan.add(&connection, &new.found.table, job)?;
            }
            (Err(why), _) | (Ok(_), Some(why)) => {
                // As SQLite has understood it: one statement.
                let create = Some(new.sql);
                plan.by_sqlite.push(BySqlite { name: new.found.name, table: new.found.table, why, create });
            }
        }
    }
    Ok(plan)
}

impl Plan {
    fn add(&mut self, connection: &Connection, table: &str, job: IndexJob) -> Result<(), Error> {
        if let Some(of_table) = self.tables.iter_mut().find(|of_table| of_table.name.eq_ignore_ascii_case(table)) {
            of_table.indexes.push(job);
            return Ok(());
        }
        let mut of_table = catalog::table(connection, table)?;
        of_table.indexes.push(job);
        self.tables.push(of_table);
        Ok(())
    }
}

/// The indexes that are to be rebuilt.
fn wanted(connection: &Connection, header: &Header, options: &Options) -> Result<Vec<Found>, Error> {
    let all = catalog::indexes(connection, header)?;
    if options.indexes.is_empty() {
        return Ok(if options.create.is_empty() { all } else { Vec::new() });
    }
    let is = |found: &Found, name: &String| found.name.eq_ignore_ascii_case(name);
    if let Some(name) = options.indexes.iter().find(|name| !all.iter().any(|found| is(found, name))) {
        let there = all.into_iter().map(|found| found.name).collect();
        return Err(Error::NoSuchIndex { name: name.clone(), there });
    }
    Ok(all.into_iter().filter(|found| options.indexes.iter().any(|name| is(found, name))).collect())
}

/// An index that is to be created.
struct New {
    found: Found,
    sql: String,
}

impl New {
    /// What SQLite makes of the statement, in an empty copy of the schema; `None` where there is such an index and it may be.
    fn read(connection: &Connection, header: &Header, sql: &str) -> Result<Option<New>, Error> {
        let bad = || Error::NotAnIndex { sql: sql.to_owned(), source: None };
        let copy = empty_copy(connection, header)?;
        let count =
            |copy: &Connection| copy.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
        let failed = sqlite("reading the schema");
        let before = count(&copy).map_err(&failed)?;
        copy.execute_batch(sql).map_err(|source| {
            of_application(sql, &source)
                .unwrap_or_else(|| Error::NotAnIndex { sql: sql.to_owned(), source: Some(source) })
        })?;
        let after = count(&copy).map_err(&failed)?;
        let newest = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid DESC LIMIT 1";
        let row = |row: &rusqlite::Row<'_>| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, String>(2)?,
                row.get::<_, Option<String>>(3)?,
            ))
        };
        if after == before {
            return if sql.to_ascii_uppercase().contains("EXISTS") { Ok(None) } else { Err(bad()) };
        }
        if after != before + 1 {
            return Err(bad());
        }
        let (kind, name, table, sql) = copy.query_row(newest, [], row).map_err(&failed)?;
        let Some(sql) = sql.filter(|_| kind == "index") else { return Err(bad()) };
        let job = catalog::job(&copy, header, &table, &name, 0)?;
        Ok(Some(New { found: Found { name, table, job }, sql }))
    }

    /// Enters the index into the schema.
    fn enter(&self, connection: &Connection, number: usize) -> Result<u32, Error> {
        let Found { name, table, .. } = self.found.clone();
        let entry = Entry { kind: "index".to_owned(), name, table, sql: self.sql.clone(), is_without_rowid: false };
        entry.enter(connection, number).map_err(sqlite("entering an index into the schema"))
    }
}

/// The same schema without rows. What needs the application's own functions or collations SQLite refuses to make, but not to read.
fn empty_copy(connection: &Connection, header: &Header) -> Result<Connection, Error> {
    let failed = sqlite("copying the schema");
    let copy = Connection::open_in_memory().map_err(&failed)?;
    let encoding = header.encoding.name();
    copy.execute_batch(&format!("PRAGMA encoding = '{encoding}'; PRAGMA writable_schema = ON")).map_err(&failed)?;
    let all = "SELECT s.type, s.name, s.tbl_name, s.sql, coalesce(l.wr, 0) FROM sqlite_schema AS s \
               LEFT JOIN pragma_table_list AS l ON l.schema = 'main' AND l.name = s.name AND s.type = 'table' \
               WHERE s.sql NOT NULL AND s.type IN ('table', 'index', 'view') AND (s.rootpage > 0 OR s.type = 'view') \
               AND s.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY s.type DESC, s.rowid";
    let mut select = connection.prepare(all).map_err(&failed)?;
    let mut rows = select.query([]).map_err(&failed)?;
    let mut entered = 0;
    while let Some(row) = rows.next().map_err(&failed)? {
        let entry = Entry::of(row).map_err(&failed)?;
        if copy.execute_batch(&entry.sql).is_err() {
            entry.enter(&copy, entered).map_err(&failed)?;
            entered += 1;
        }
    }
    copy.execute_batch("PRAGMA writable_schema = RESET").map_err(&failed)?;
    Ok(copy)
}

/// A row of the schema.
struct Entry {
    kind: String,
    name: String,
    table: String,
    sql: String,
    /// Whether it is a table whose tree is an index's.
    is_without_rowid: bool,
}

impl Entry {
    fn of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Entry> {
        Ok(Entry {
            kind: row.get(0)?,
            name: row.get(1)?,
            table: row.get(2)?,
            sql: row.get(3)?,
            is_without_rowid: row.get(4)?,
        })
    }

    /// Enters it with an empty page as its root, which SQLite gives to a table that then becomes what this is.
    fn enter(&self, connection: &Connection, number: usize) -> rusqlite::Result<u32> {
        let place = format!("headwater_place_{number}");
        let columns = if self.is_without_rowid { "(x PRIMARY KEY) WITHOUT ROWID" } else { "(x)" };
        connection.execute_batch(&format!("CREATE TABLE {place}{columns}"))?;
        let sql =
            "UPDATE sqlite_schema SET type = ?1, name = ?2, tbl_name = ?3, sql = ?4 WHERE name = ?5 RETURNING rootpage";
        connection.query_row(sql, (&self.kind, &self.name, &self.table, &self.sql, place), |row| row.get(0))
    }
}
