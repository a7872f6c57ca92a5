//! Indexes of the application's on tables that are empty and come whole: they are built when the rows are there, which takes a fraction of
//! the time and packs them tightly. All in the download's transaction: whoever looks sees them as they were, or with all rows.
//!
//! Only such as can't fail to be built, and that nothing depends on meanwhile: not unique, over columns alone, without a condition, by SQLite's own
//! collations. What is unique finds the rows that stand in each other's way while they are stored, so its index is kept as it goes; the
//! model's unique constraints are parts of their tables.

use headwater_idxbuild::{Options, Report, build_within};
use headwater_model::Direction;
use headwater_model::sql::quote;
use rusqlite::Connection;

use crate::error::{Error, While};
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;

/// So many rows are worth being read once for all indexes, by several threads; fewer are done in a moment by SQLite alone.
const TOGETHER_ROWS: u64 = if cfg!(test) { 1_000 } else { 100_000 };
/// What that may take of the memory.
const MEMORY_BYTES: u64 = 64 << 20;

/// The statements that make dropped indexes again.
#[derive(Debug, Default)]
pub(super) struct Later(Vec<String>);

impl Later {
    /// Drops such indexes on tables that have no rows.
    pub(super) fn of_empty_tables(rows: &Rows<'_>, plan: &Plan) -> Result<Later, Error> {
        let mut later = Later::default();
        for table in plan.tables.iter().filter(|table| table.table.direction != Direction::Upload) {
            if !rows.any(&table.any_row())? {
                later.drop_of(rows.connection, table).while_doing("putting indexes off")?;
            }
        }
        Ok(later)
    }

    fn build_together(&self, connection: &Connection) -> Result<Report, headwater_idxbuild::Error> {
        let mut options = Options::default();
        options.create.clone_from(&self.0);
        options.memory = Some(MEMORY_BYTES);
        build_within(connection, &options)
    }

    fn drop_of(&mut self, connection: &Connection, table: &TablePlan) -> rusqlite::Result<()> {
        let sql = "SELECT i.name, s.sql FROM pragma_index_list(?) AS i JOIN sqlite_schema AS s ON s.type = 'index' AND s.name = i.name \
                   WHERE i.origin = 'c' AND i.\"unique\" = 0 AND i.partial = 0 AND NOT EXISTS (SELECT 1 FROM pragma_index_xinfo(i.name) \
                   WHERE key = 1 AND (cid < -1 OR upper(coll) NOT IN ('BINARY', 'NOCASE', 'RTRIM'))) ORDER BY i.name";
        let mut select = connection.prepare(sql)?;
        let found = select.query_map([&table.table.name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let found: Vec<(String, String)> = found.collect::<Result<_, _>>()?;
        for (name, sql) in found {
            connection.execute_batch(&format!("DROP INDEX {}", quote(&name)))?;
            self.0.push(sql);
        }
        Ok(())
    }

    /// Makes them again, after so many rows.
    pub(super) fn build(self, connection: &Connection, rows: u64) -> Result<(), Error> {
        if rows >= TOGETHER_ROWS && !self.0.is_empty() {
            match self.build_together(connection) {
                Ok(_) => return Ok(()),
                // A disk that is full may have ended the transaction: there are no rows then.
                Err(error) if connection.is_autocommit() => return Err(ended(error)),
                // The transaction is as it was before.
                Err(error) => tracing::debug!(%error, "SQLite builds the indexes"),
            }
        }
        self.0.iter().try_for_each(|sql| connection.execute_batch(sql)).while_doing("building indexes")
    }
}

/// Why SQLite has given the transaction up.
fn ended(error: headwater_idxbuild::Error) -> Error {
    let doing = "building indexes";
    match error {
        headwater_idxbuild::Error::Sqlite { source, .. }
        | headwater_idxbuild::Error::Unwritable { source, .. }
        | headwater_idxbuild::Error::Malformed { source, .. } => Error::of_sqlite(doing, source),
        _ => Error::DiskFull { doing },
    }
}

#[cfg(test)]
mod tests {
    use headwater_idxbuild::Builder;
    use rusqlite::Connection;

    use super::{Error, Later, TOGETHER_ROWS};

    const ROWS: &str = "BEGIN; CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL);
        INSERT INTO item WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 2000)
        SELECT value, 'name ' || (value % 100), value * 0.5 FROM n";

    #[test]
    fn the_indexes_of_a_table_are_built_together() {
        let connection = Connection::open_in_memory().expect("opened");
        connection.execute_batch(ROWS).expect("filled");
        let later = Later(vec![
            "CREATE INDEX by_name ON item (name COLLATE NOCASE DESC)".to_owned(),
            "CREATE INDEX by_price ON item (price, name)".to_owned(),
        ]);
        let report = later.build_together(&connection).expect("built");
        let by: Vec<&Builder> = report.indexes.iter().map(|index| &index.by).collect();
        assert_eq!(by, [&Builder::Headwater { keys: 2000 }; 2]);
        let found = "SELECT count(*) FROM item INDEXED BY by_name WHERE name = 'NAME 7' COLLATE NOCASE";
        assert_eq!(connection.query_row(found, [], |row| row.get::<_, i64>(0)).expect("asked"), 20);
    }

    #[test]
    fn a_disk_that_gets_full_meanwhile_is_told_as_full() {
        let connection = Connection::open_in_memory().expect("opened");
        connection.execute_batch(ROWS).expect("filled");
        let pages: u32 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).expect("a number");
        connection.pragma_update(None, "max_page_count", pages + 2).expect("set");
        let later = Later(vec!["CREATE INDEX by_name ON item (name)".to_owned()]);
        let failed = later.build(&connection, TOGETHER_ROWS).expect_err("there is no room");
        assert!(matches!(failed, Error::DiskFull { .. }), "{failed:?}");
    }
}
