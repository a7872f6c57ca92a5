//! Indexes of the application's on tables that are empty and come whole: they are built when the rows are there, which takes a fraction of
//! the time and packs them tightly. All in the download's transaction: whoever looks sees them as they were, or with all rows.
//!
//! Only such as can't fail to be built, and that nothing depends on meanwhile: not unique, over columns alone, without a condition, by SQLite's own
//! collations. What is unique finds the rows that stand in each other's way while they are stored, so its index is kept as it goes; the
//! model's unique constraints are parts of their tables.

use headwater_model::Direction;
use headwater_model::sql::quote;
use rusqlite::Connection;

use crate::error::{Error, While};
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;

/// The statements that make dropped indexes again.
#[derive(Debug, Default)]
pub(super) struct Later(Vec<String>);

impl Later {
    /// Drops such indexes on tables that have no rows.
    pub(super) fn of_empty_tables(rows: &Rows<'_>, plan: &Plan) -> Result<Later, Error> {
        let mut later = Later::default();
        for table in plan.tables.iter().filter(|table| table.table.direction != Direction::Upload) {
            if !rows.any(&format!("SELECT 1 FROM {} LIMIT 1", table.name()))? {
                later.drop_of(rows.connection, table).while_doing("putting indexes off")?;
            }
        }
        Ok(later)
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

    /// Makes them again.
    pub(super) fn build(self, connection: &Connection) -> Result<(), Error> {
        self.0.iter().try_for_each(|sql| connection.execute_batch(sql)).while_doing("building indexes")
    }
}
