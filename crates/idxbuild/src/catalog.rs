//! What the schema says: tables, their indexes, and which of these are left to SQLite, and why.

use rusqlite::{Connection, OptionalExtension as _};

use crate::collation::Collation;
use crate::error::{Error, sqlite};
use crate::header::{Encoding, Header};
use crate::job::{IndexJob, TableJob};
use crate::key::{Affinity, KeyColumn, OwnValue, Source};

/// An index as the schema has it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Its name.
    pub(crate) name: String,
    /// Its table's name.
    pub(crate) table: String,
    /// How it is built here, or why SQLite must build it.
    pub(crate) job: Result<IndexJob, String>,
}

/// The name in SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// All indexes of the main database: the tables WITHOUT ROWID first, each of which is its primary key's index, then the others by table.
pub(crate) fn indexes(connection: &Connection, header: &Header) -> Result<Vec<Found>, Error> {
    let failed = sqlite("reading the schema");
    let all = "SELECT name, tbl_name, rootpage FROM sqlite_schema WHERE type = 'index' ORDER BY tbl_name, rowid";
    let mut select = connection.prepare(all).map_err(&failed)?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).map_err(&failed)?;
    let rows: Vec<(String, String, u32)> = rows.collect::<Result<_, _>>().map_err(&failed)?;
    let mut found = keys_of_tables(connection)?;
    for (name, table, root) in rows {
        let job = job(connection, header, &table, &name, root)?;
        found.push(Found { name, table, job });
    }
    Ok(found)
}

/// The primary keys of tables WITHOUT ROWID, which the schema has no row of.
fn keys_of_tables(connection: &Connection) -> Result<Vec<Found>, Error> {
    let failed = sqlite("reading the schema");
    let all = "SELECT i.name, l.name FROM pragma_table_list AS l, pragma_index_list(l.name, 'main') AS i \
               WHERE l.schema = 'main' AND l.wr AND l.type IN ('table', 'shadow') AND i.origin = 'pk' ORDER BY l.name";
    let mut select = connection.prepare(all).map_err(&failed)?;
    let why = || Err("it is its table itself, which is WITHOUT ROWID".to_owned());
    let key = |row: &rusqlite::Row<'_>| Ok(Found { name: row.get(0)?, table: row.get(1)?, job: why() });
    let rows = select.query_map([], key).map_err(&failed)?;
    rows.collect::<Result<_, _>>().map_err(&failed)
}

/// The table of this name, without indexes.
pub(crate) fn table(connection: &Connection, name: &str) -> Result<TableJob, Error> {
    let sql = "SELECT name, rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    let table = |row: &rusqlite::Row<'_>| Ok(TableJob { name: row.get(0)?, root: row.get(1)?, indexes: Vec::new() });
    connection.query_row(sql, [name], table).map_err(sqlite("reading the schema"))
}

/// The roots of all B-trees, each with whether it is an index's (or a table's without rowids, which has an index's form).
pub(crate) fn roots(connection: &Connection) -> Result<Vec<(u32, bool)>, Error> {
    let failed = sqlite("reading the schema");
    let all = "SELECT s.rootpage, s.type = 'index' OR coalesce(l.wr, 0) FROM sqlite_schema AS s \
               LEFT JOIN pragma_table_list AS l ON l.schema = 'main' AND l.name = s.name AND s.type = 'table' \
               WHERE s.rootpage > 0";
    let mut select = connection.prepare(all).map_err(&failed)?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(&failed)?;
    rows.collect::<Result<_, _>>().map_err(&failed)
}

/// Why SQLite builds every index of this database, if it does.
pub(crate) fn doubt_of_all(header: &Header, has_pages: bool) -> Option<String> {
    if !has_pages {
        Some("this SQLite was built without SQLITE_ENABLE_DBPAGE_VTAB".to_owned())
    } else if header.moves_pages {
        Some("the database has auto-vacuum".to_owned())
    } else if header.schema_format != 4 {
        Some(format!("the schema has format {}", header.schema_format))
    } else if header.layout.usable != header.layout.page_size {
        Some("bytes of each page are reserved, as for encryption".to_owned())
    } else {
        None
    }
}

/// A column of a table.
struct Column {
    name: String,
    declared: String,
    default: Option<String>,
    hidden: u32,
    is_rowid: bool,
}

/// How an index is built here, or why not.
pub(crate) fn job(
    connection: &Connection,
    header: &Header,
    table: &str,
    name: &str,
    root: u32,
) -> Result<Result<IndexJob, String>, Error> {
    let failed = sqlite("reading the schema");
    let kind = connection
        .query_row(
            "SELECT type, wr, strict FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE",
            [table],
            |row| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?, row.get::<_, bool>(2)?)),
        )
        .optional()
        .map_err(&failed)?;
    let is_strict = match kind {
        Some((_, true, _)) => return Ok(Err("its table is WITHOUT ROWID".to_owned())),
        Some((kind, _, is_strict)) if kind == "table" || kind == "shadow" => is_strict,
        _ => return Ok(Err("it is not on an ordinary table".to_owned())),
    };
    let (is_unique, is_partial) = connection
        .query_row("SELECT \"unique\", partial FROM pragma_index_list(?1) WHERE name = ?2", [table, name], |row| {
            Ok((row.get::<_, bool>(0)?, row.get::<_, bool>(1)?))
        })
        .map_err(&failed)?;
    if is_partial {
        return Ok(Err("it is partial".to_owned()));
    }
    let columns = table_columns(connection, table)?;
    let keys = "SELECT cid, \"desc\", coll FROM pragma_index_xinfo(?1) WHERE key ORDER BY seqno";
    let mut select = connection.prepare(keys).map_err(&failed)?;
    let keys = select
        .query_map([name], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?, row.get::<_, String>(2)?)))
        .map_err(&failed)?;
    let mut job = IndexJob { name: name.to_owned(), root, is_unique, columns: Vec::new(), encoding: header.encoding };
    for key in keys {
        let (column, descending, collation) = key.map_err(&failed)?;
        let Some(collation) = Collation::named(&collation) else {
            return Ok(Err(format!("the collation {collation} is not known here")));
        };
        let (source, affinity) = match column {
            -1 => (Source::Rowid, Affinity::Numeric),
            -2 => return Ok(Err("it is on an expression".to_owned())),
            column => match stored(&columns, column as usize, is_strict, header.encoding)? {
                Some(stored) => stored,
                None => return Ok(Err("it is on a generated column that is not stored".to_owned())),
            },
        };
        let name = columns.get(column as usize).map(|column| column.name.clone()).unwrap_or_default();
        job.columns.push(KeyColumn { name, source, affinity, collation, descending });
    }
    Ok(Ok(job))
}

fn table_columns(connection: &Connection, table: &str) -> Result<Vec<Column>, Error> {
    let failed = sqlite("reading the schema");
    // A primary key without an index of its own is the rowid.
    let sql = "SELECT name, type, dflt_value, hidden, pk > 0 AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE origin = 'pk') \
               FROM pragma_table_xinfo(?1) ORDER BY cid";
    let mut select = connection.prepare(sql).map_err(&failed)?;
    let column = |row: &rusqlite::Row<'_>| {
        Ok(Column {
            name: row.get(0)?,
            declared: row.get(1)?,
            default: row.get(2)?,
            hidden: row.get(3)?,
            is_rowid: row.get(4)?,
        })
    };
    let rows = select.query_map([table], column).map_err(&failed)?;
    rows.collect::<Result<_, _>>().map_err(&failed)
}

/// Where a column is stored; `None` of one that is computed whenever it is read.
fn stored(
    columns: &[Column],
    index: usize,
    is_strict: bool,
    encoding: Encoding,
) -> Result<Option<(Source, Affinity)>, Error> {
    const VIRTUAL: u32 = 2;
    let Some(column) = columns.get(index).filter(|column| column.hidden != VIRTUAL) else { return Ok(None) };
    if column.is_rowid {
        return Ok(Some((Source::Rowid, Affinity::Numeric)));
    }
    let place = columns[..index].iter().filter(|column| column.hidden != VIRTUAL).count();
    let missing = match (&column.default, column.hidden) {
        (None, 0) => Some(OwnValue::Null),
        (Some(default), 0) => constant(default, &column.declared, is_strict, encoding)?,
        _ => None,
    };
    Ok(Some((Source::Stored { place, missing }, Affinity::of(&column.declared, is_strict))))
}

/// What rows have that were written before a column with this default was added; `None` where it can't have been added to rows. SQLite says it
/// itself, of a row that is as old: such a row has `'1.10'` where the default is `1.10` and the column is one of texts, a new one `'1.1'`.
fn constant(default: &str, declared: &str, is_strict: bool, encoding: Encoding) -> Result<Option<OwnValue>, Error> {
    let strict = if is_strict { "STRICT" } else { "" };
    let failed = sqlite("finding a column's default");
    let connection = Connection::open_in_memory().map_err(&failed)?;
    let encoding = encoding.name();
    connection
        .execute_batch(&format!(
            "PRAGMA encoding = '{encoding}'; CREATE TABLE d(x INTEGER) {strict}; INSERT INTO d VALUES (1)"
        ))
        .map_err(&failed)?;
    // Its parentheses, if it had some, are not in the schema's text of it. A comment may end it.
    let add =
        |default: &str| connection.execute_batch(&format!("ALTER TABLE d ADD COLUMN c {declared} DEFAULT {default}"));
    if add(&format!("{default}\n")).is_err() && add(&format!("({default}\n)")).is_err() {
        return Ok(None);
    }
    let old = format!("SELECT {} FROM d", as_stored("c"));
    connection.query_row(&old, [], |row| own_value(row, 0)).map(Some).map_err(&failed)
}

/// What [`own_value`] reads of a column.
pub(crate) fn as_stored(column: &str) -> String {
    format!("typeof({column}), CAST({column} AS BLOB), {column}")
}

/// A value as the database stores it, from three columns of a query.
pub(crate) fn own_value(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<OwnValue> {
    let bytes = || row.get::<_, Option<Vec<u8>>>(at + 1).map(Option::unwrap_or_default);
    Ok(match row.get::<_, String>(at)?.as_str() {
        "integer" => OwnValue::Integer(row.get(at + 2)?),
        "real" => OwnValue::Real(row.get(at + 2)?),
        "text" => OwnValue::Text(bytes()?),
        "blob" => OwnValue::Blob(bytes()?),
        _ => OwnValue::Null,
    })
}
