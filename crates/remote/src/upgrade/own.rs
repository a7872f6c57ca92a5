//! What the application has made beside the model's tables: its indexes, triggers and views go on, or the change does not take place.

use headwater_model::sql::quote;
use rusqlite::{Connection, params};

use super::refused;
use crate::error::{Error, While};
use crate::plan::{Plan, TablePlan};

/// An index or a trigger of the application's.
pub(crate) struct Own {
    pub(crate) name: String,
    pub(crate) sql: String,
}

/// The application's indexes or triggers on a table (`kind`).
pub(crate) fn on(connection: &Connection, table: &TablePlan, kind: &str) -> Result<Vec<Own>, Error> {
    let sql = "SELECT name, sql FROM sqlite_schema WHERE type = ? AND tbl_name = ? COLLATE NOCASE AND sql IS NOT NULL \
               AND name NOT LIKE 'hw\\_%' ESCAPE '\\' ORDER BY name";
    let read = || -> rusqlite::Result<Vec<Own>> {
        let mut select = connection.prepare(sql)?;
        let found =
            select.query_map(params![kind, table.table.name], |row| Ok(Own { name: row.get(0)?, sql: row.get(1)? }))?;
        found.collect()
    };
    read().while_doing("reading the catalogue")
}

/// Makes them again.
pub(super) fn again(connection: &Connection, table: &TablePlan, own: &[Own]) -> Result<(), Error> {
    for Own { name, sql } in own {
        connection.execute_batch(sql).map_err(|error| {
            refused(format!(
                "{name:?}, which the application has made on table {:?}, does not fit the new version ({error}): drop it first",
                table.table.name
            ))
        })?;
    }
    Ok(())
}

/// A column of a table that the model does not have: its values would be lost when the table comes whole.
pub(super) fn column(connection: &Connection, table: &TablePlan) -> Result<Option<String>, Error> {
    let read = || -> rusqlite::Result<Vec<String>> {
        let mut select = connection.prepare("SELECT name FROM pragma_table_xinfo(?)")?;
        select.query_map([&table.table.name], |row| row.get(0))?.collect()
    };
    let found = read().while_doing("reading the catalogue")?;
    Ok(found.into_iter().find(|name| table.table.column(name).is_none()))
}

/// A table of the application's that refers to one by a foreign key: without it, nothing could be written there.
pub(super) fn referrer(connection: &Connection, plan: &Plan, table: &TablePlan) -> Result<Option<String>, Error> {
    let sql = "SELECT DISTINCT m.name FROM sqlite_schema m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table' \
               AND f.\"table\" = ? COLLATE NOCASE ORDER BY m.name";
    let read = || -> rusqlite::Result<Vec<String>> {
        let mut select = connection.prepare(sql)?;
        select.query_map([&table.table.name], |row| row.get(0))?.collect()
    };
    let found = read().while_doing("reading the catalogue")?;
    Ok(found.into_iter().find(|name| plan.model.table(name).is_none()))
}

/// The views that can't be read, and the tables that can't be written to for what a trigger says.
pub(super) fn broken(connection: &Connection) -> Result<Vec<(String, String)>, Error> {
    let sql = "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
               AND name NOT LIKE 'hw\\_%' ESCAPE '\\' ORDER BY name";
    let read = || -> rusqlite::Result<Vec<(String, String)>> {
        let mut select = connection.prepare(sql)?;
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    let mut broken = Vec::new();
    for (kind, name) in read().while_doing("reading the catalogue")? {
        let quoted = quote(&name);
        let statements = match kind.as_str() {
            "view" => vec![format!("SELECT * FROM {quoted}")],
            _ => {
                let update = connection
                    .query_row("SELECT name FROM pragma_table_info(?) LIMIT 1", [&name], |row| row.get::<_, String>(0))
                    .map(|column| format!("UPDATE {quoted} SET {0} = {0}", quote(&column)));
                let mut all = vec![format!("INSERT INTO {quoted} DEFAULT VALUES"), format!("DELETE FROM {quoted}")];
                all.extend(update);
                all
            }
        };
        let failed = statements.iter().find_map(|sql| connection.prepare(sql).err());
        broken.extend(failed.map(|error| (name, error.to_string())));
    }
    Ok(broken)
}
