//! Which indexes are built, by whom; and room in the schema for those that are new.

use std::collections::BTreeMap;

use rusqlite::Connection;

use crate::by_sqlite::BySqlite;
use crate::catalog::{self, Found};
use crate::error::{Error, sqlite};
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
        let bad = |source| Error::NotAnIndex { sql: sql.to_owned(), source };
        let copy = empty_copy(connection, header)?;
        let count =
            |copy: &Connection| copy.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
        let failed = sqlite("reading the schema");
        let before = count(&copy).map_err(&failed)?;
        copy.execute_batch(sql).map_err(|source| bad(Some(source)))?;
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
            return if sql.to_ascii_uppercase().contains("EXISTS") { Ok(None) } else { Err(bad(None)) };
        }
        if after != before + 1 {
            return Err(bad(None));
        }
        let (kind, name, table, sql) = copy.query_row(newest, [], row).map_err(&failed)?;
        let Some(sql) = sql.filter(|_| kind == "index") else { return Err(bad(None)) };
        let job = catalog::job(&copy, header, &table, &name, 0)?;
        Ok(Some(New { found: Found { name, table, job }, sql }))
    }

    /// Enters the index into the schema with an empty page as its root, which SQLite gives to a table that then becomes the index.
    fn enter(&self, connection: &Connection, number: usize) -> Result<u32, Error> {
        let failed = sqlite("entering an index into the schema");
        let place = format!("headwater_place_of_index_{number}");
        connection.execute_batch(&format!("CREATE TABLE {place}(x)")).map_err(&failed)?;
        let sql = "UPDATE sqlite_schema SET type = 'index', name = ?1, tbl_name = ?2, sql = ?3 WHERE name = ?4 RETURNING rootpage";
        let new = (&self.found.name, &self.found.table, &self.sql, place);
        connection.query_row(sql, new, |row| row.get(0)).map_err(&failed)
    }
}

/// The same schema without rows: tables, views and indexes as far as SQLite itself can make them here.
fn empty_copy(connection: &Connection, header: &Header) -> Result<Connection, Error> {
    let failed = sqlite("copying the schema");
    let copy = Connection::open_in_memory().map_err(&failed)?;
    let encoding = header.encoding.name();
    copy.execute_batch(&format!("PRAGMA encoding = '{encoding}'")).map_err(&failed)?;
    let all = "SELECT sql FROM sqlite_schema WHERE sql NOT NULL AND type IN ('table', 'index') AND rootpage > 0 \
               AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY type DESC, rowid";
    let mut select = connection.prepare(all).map_err(&failed)?;
    let statements = select.query_map([], |row| row.get::<_, String>(0)).map_err(&failed)?;
    for statement in statements {
        // What needs the application's own functions or collations fails here; an index on it fails then too, and says so.
        let _ = copy.execute_batch(&statement.map_err(&failed)?);
    }
    Ok(copy)
}
