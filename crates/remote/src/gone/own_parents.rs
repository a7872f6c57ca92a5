//! Tables of the application's own to which rows of others refer: whether it has dropped one, or made it anew.
//!
//! With `PRAGMA foreign_keys = ON` that deletes or changes the rows which refer to it, as with a table of the model, and nobody has asked
//! for it ([`super::cascade`]).
//!
//! ```text
//! hw_parent has the names of those that were there when the file was last looked at, and stands behind all of them in the catalogue
//! one that is not there, or stands behind hw_parent      was dropped
//! ```
//!
//! Under no name it has which tables refer to which, and which triggers write where: the migration may have dropped these too.
//!
//! New tables come last in the catalogue, `ALTER TABLE` leaves them where they are, and `VACUUM` keeps their order.
//!
//! *Caveats.* One that is made and dropped between two looks is not known. `hw_parent` is empty after it was dropped itself.

use rusqlite::{Connection, OptionalExtension, params};

use super::cascade::{self, Ways};
use crate::error::{Error, While};
use crate::plan::Plan;

const DOING: &str = "looking at the tables that others refer to";

/// What the catalogue has to say of them.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Those that are there and of no model.
    present: Vec<String>,
    /// Those on record.
    recorded: Vec<String>,
    /// Those of them that were dropped, or made anew.
    dropped: Vec<String>,
    /// Names that foreign keys have, of tables that are not there.
    missing: Vec<String>,
    /// As JSON.
    ways: String,
    recorded_ways: Option<String>,
}

impl Found {
    fn look(connection: &Connection, plan: &Plan) -> rusqlite::Result<Found> {
        let is_of_model = |name: &String| plan.tables.iter().any(|table| table.table.name.eq_ignore_ascii_case(name));
        let ways = cascade::ways(connection)?;
        let mut parents: Vec<String> = ways.links.iter().map(|link| link.parent.to_ascii_lowercase()).collect();
        parents.retain(|name| !is_of_model(name));
        parents.sort();
        parents.dedup();
        let sql = "SELECT rowid FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 AND name = ? COLLATE NOCASE";
        let mut select = connection.prepare_cached(sql)?;
        let mut place_of = |name: &str| -> rusqlite::Result<Option<i64>> {
            select.query_map([name], |row| row.get(0))?.next().transpose()
        };
        let (mut present, mut missing, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
        for name in parents {
            if place_of(&name)?.is_some() { present.push(name) } else { missing.push(name) }
        }
        let mut select =
            connection.prepare_cached("SELECT \"name\" FROM \"hw_parent\" WHERE \"name\" <> '' ORDER BY 1")?;
        let recorded: Vec<String> = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let end = place_of("hw_parent")?.unwrap_or(i64::MAX);
        let recorded_ways = recorded_ways(connection)?;
        let before = read_ways(recorded_ways.as_deref());
        let mut is_older = |name: &str| place_of(name).map(|place| place.is_some_and(|place| place < end));
        for name in recorded.iter().filter(|name| !is_of_model(name)) {
            let new_names = before.renamed(name, &ways).into_iter().filter(|new| !recorded.contains(new));
            let is_renamed = new_names.map(|new| is_older(&new)).collect::<rusqlite::Result<Vec<_>>>()?.contains(&true);
            if !is_older(name)? && !is_renamed {
                dropped.push(name.clone());
            }
        }
        let ways = serde_json::to_string(&ways).unwrap_or_default();
        Ok(Found { present, recorded, dropped, missing, ways, recorded_ways })
    }
}

/// Whether any was dropped, and whether something is not on record.
pub(crate) fn have_changed(connection: &Connection, plan: &Plan) -> Result<bool, Error> {
    let found = Found::look(connection, plan).while_doing(DOING)?;
    Ok(!found.dropped.is_empty() || !found.is_on_record())
}

/// Sets aside what went with those that were dropped.
pub(crate) fn set_aside(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    let found = Found::look(connection, plan).while_doing(DOING)?;
    // One that was renamed before it was dropped has taken the references to it along.
    let renamed = found.missing.iter().filter(|name| !found.dropped.is_empty() && !found.dropped.contains(name));
    found.dropped.iter().chain(renamed).try_for_each(|name| cascade::set_aside(connection, plan, name).map(drop))
}

/// Puts on record which are there, and the ways: when what was dropped, of the model too, has been seen to.
pub(crate) fn record(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    let found = Found::look(connection, plan).while_doing(DOING)?;
    if found.dropped.is_empty() && found.is_on_record() {
        return Ok(());
    }
    found.record(connection).while_doing(DOING)
}

/// The ways when the file was last looked at.
pub(super) fn ways_before(connection: &Connection) -> Result<Ways, Error> {
    let recorded = recorded_ways(connection).while_doing(DOING)?;
    Ok(read_ways(recorded.as_deref()))
}

fn read_ways(json: Option<&str>) -> Ways {
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
}

fn recorded_ways(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let mut select = connection.prepare_cached("SELECT \"ways\" FROM \"hw_parent\" WHERE \"name\" = ''")?;
    select.query_row([], |row| row.get(0)).optional()
}

impl Found {
    fn is_on_record(&self) -> bool {
        self.present == self.recorded && self.recorded_ways.as_ref() == Some(&self.ways)
    }

    fn record(&self, connection: &Connection) -> rusqlite::Result<()> {
        if self.present != self.recorded || !self.dropped.is_empty() {
            let tables = headwater_model::remote_sql::system_tables().split_inclusive(";\n");
            let make: String = tables.filter(|sql| sql.contains("\"hw_parent\"")).collect();
            connection.execute_batch(&format!("DROP TABLE IF EXISTS \"hw_parent\"; {make}"))?;
        }
        let mut insert =
            connection.prepare("INSERT OR REPLACE INTO \"hw_parent\" (\"name\", \"ways\") VALUES (?, ?)")?;
        for name in &self.present {
            insert.execute(params![name, None::<String>])?;
        }
        insert.execute(params!["", self.ways]).map(drop)
    }
}
