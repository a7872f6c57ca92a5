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
//! New tables come last in the catalogue, `ALTER TABLE` leaves them where they are, and `VACUUM` keeps their order.
//!
//! *Caveats.* One that is made and dropped between two looks is not known. `hw_parent` is empty after it was dropped itself.

use headwater_model::sql::literal;
use rusqlite::Connection;

use super::cascade;
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
}

impl Found {
    fn look(connection: &Connection, plan: &Plan) -> rusqlite::Result<Found> {
        let is_of_model = |name: &String| plan.tables.iter().any(|table| table.table.name.eq_ignore_ascii_case(name));
        let mut parents: Vec<String> =
            cascade::of_file(connection)?.into_iter().map(|link| link.parent.to_ascii_lowercase()).collect();
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
        let mut select = connection.prepare_cached("SELECT \"name\" FROM \"hw_parent\" ORDER BY 1")?;
        let recorded: Vec<String> = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let end = place_of("hw_parent")?.unwrap_or(i64::MAX);
        for name in recorded.iter().filter(|name| !is_of_model(name)) {
            if place_of(name)?.is_none_or(|place| place > end) {
                dropped.push(name.clone());
            }
        }
        Ok(Found { present, recorded, dropped, missing })
    }
}

/// Whether there is anything for [`settle`] to do.
pub(crate) fn have_changed(connection: &Connection, plan: &Plan) -> Result<bool, Error> {
    let found = Found::look(connection, plan).while_doing(DOING)?;
    Ok(!found.dropped.is_empty() || found.present != found.recorded)
}

/// Sets aside what went with those that were dropped, and puts on record which are there.
pub(crate) fn settle(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    let found = Found::look(connection, plan).while_doing(DOING)?;
    // One that was renamed before it was dropped has taken the references to it along.
    let renamed = found.missing.iter().filter(|name| !found.dropped.is_empty() && !found.dropped.contains(name));
    for name in found.dropped.iter().chain(renamed) {
        cascade::set_aside(connection, plan, name)?;
    }
    if found.dropped.is_empty() && found.present == found.recorded {
        return Ok(());
    }
    record(connection, &found.present)
}

fn record(connection: &Connection, names: &[String]) -> Result<(), Error> {
    let make =
        headwater_model::remote_sql::system_tables().split_inclusive(";\n").find(|sql| sql.contains("\"hw_parent\""));
    let rows = names.iter().map(|name| format!("INSERT INTO \"hw_parent\" VALUES ({});", literal(name)));
    let sql = format!("DROP TABLE IF EXISTS \"hw_parent\"; {}{}", make.unwrap_or_default(), rows.collect::<String>());
    connection.execute_batch(&sql).while_doing(DOING)
}
