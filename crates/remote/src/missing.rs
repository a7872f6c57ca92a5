//! Tables of Headwater's own that a program has dropped: they are made again, or named where something is lost with them.
//!
//! | what was dropped | what becomes of it |
//! |---|---|
//! | the log of a table | is made again. The table is in doubt ([`crate::untracked`]): the next syncs find what the log had |
//! | `hw_tracking` | is made again, and every table is in doubt |
//! | what has been seen (`hw_watermark`, `hw_mark`), what is held (`hw_held`) | is made again, and every table comes whole |
//! | `hw_applying`, `hw_staged`, `hw_conflict`, `hw_key_range`, `hw_parent`, indexes, the view of the next keys | is made again |
//! | what was sent, lost or set aside (`hw_upload`, `hw_sent`, `hw_lost`, `hw_set_aside`) | is an error that names it |

use std::ops::ControlFlow;

use headwater_model::remote_sql::{self, create_log, log_name};
use rusqlite::Connection;

use crate::cut::{frozen_changes, log_change};
use crate::database::Database;
use crate::error::{Error, While};
use crate::local::from_wire;
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;
use crate::state::State;
use crate::untracked;

const DOING: &str = "making Headwater's own tables again";
/// Nothing but these tables has what is in them.
const IRREPLACEABLE: [&str; 4] = ["hw_upload", "hw_sent", "hw_lost", "hw_set_aside"];
/// Files of earlier builds do not have these.
const LATER: [&str; 3] = ["hw_key_range_gone", "hw_leaving", "hw_parent"];
/// What comes down again if it comes whole.
const SEEN: [&str; 3] = ["hw_mark", "hw_watermark", "hw_held"];

/// Makes what is missing again.
pub(crate) fn make_again(database: &Database, plan: &Plan) -> Result<(), Error> {
    if find(&database.connection, plan)?.is_empty() {
        return Ok(());
    }
    database.write(DOING, |connection| {
        let missing = find(connection, plan)?;
        refuse(&missing)?;
        for name in missing.iter().map(Missing::name).filter(|name| !LATER.contains(&name.as_str())) {
            tracing::warn!(name, "a table of Headwater's own was dropped: it is made again");
        }
        let (system, logs): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|missing| matches!(missing, Missing::System { .. }));
        make_system(connection, plan, &system)?;
        logs.iter().try_for_each(|missing| match missing {
            Missing::Log(table) => make_log(connection, plan, table),
            Missing::System { .. } => Ok(()),
        })
    })
}

/// An error that names what is missing and can't be read, where the file is only read. Files of earlier builds lack other things.
pub(crate) fn name(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    let missing = find(connection, plan)?;
    refuse(&missing)?;
    let is_read = |missing: &&Missing<'_>| match missing {
        Missing::System { name, sql } => sql.contains("CREATE TABLE") && !LATER.contains(name),
        Missing::Log(_) => true,
    };
    match missing.iter().find(is_read) {
        None => Ok(()),
        Some(first) => Err(Error::Configuration {
            what: format!(
                "{}, of Headwater's own, has been dropped: `headwater remote sync` makes it again",
                first.name()
            ),
        }),
    }
}

/// Something that is not in the file.
enum Missing<'p> {
    System { name: &'static str, sql: String },
    Log(&'p TablePlan),
}

impl Missing<'_> {
    fn name(&self) -> String {
        match self {
            Missing::System { name, .. } => (*name).to_owned(),
            Missing::Log(table) => log_name(&table.table),
        }
    }
}

fn find<'p>(connection: &Connection, plan: &'p Plan) -> Result<Vec<Missing<'p>>, Error> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = ? COLLATE NOCASE AND type <> 'trigger'";
    let mut select = connection.prepare_cached(sql).while_doing("reading the catalogue")?;
    let mut missing = Vec::new();
    for statement in remote_sql::system_tables().split_inclusive(";\n") {
        let Some(name) = statement.split('"').nth(1) else { continue };
        if !select.exists([name]).while_doing("reading the catalogue")? {
            missing.push(Missing::System { name, sql: statement.to_owned() });
        }
    }
    let view = remote_sql::next_key_view(&plan.model);
    if !view.is_empty() && !select.exists(["hw_next_key"]).while_doing("reading the catalogue")? {
        missing.push(Missing::System { name: "hw_next_key", sql: view });
    }
    for table in plan.tracked() {
        if !select.exists([log_name(&table.table)]).while_doing("reading the catalogue")? {
            missing.push(Missing::Log(table));
        }
    }
    Ok(missing)
}

fn refuse(missing: &[Missing<'_>]) -> Result<(), Error> {
    let names = missing.iter().filter_map(|missing| match missing {
        Missing::System { name, .. } if IRREPLACEABLE.contains(name) => Some(*name),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(Error::damaged(format!(
        "{}, of Headwater's own, has been dropped, and nothing else has what was in it",
        names.join(", ")
    )))
}

fn make_system(connection: &Connection, plan: &Plan, missing: &[Missing<'_>]) -> Result<(), Error> {
    let is_missing = |names: &[&str]| missing.iter().any(|missing| names.contains(&missing.name().as_str()));
    let (is_seen_gone, is_tracking_gone, is_stage_gone) =
        (is_missing(&SEEN), is_missing(&["hw_tracking"]), is_missing(&["hw_staged"]));
    for one in missing {
        if let Missing::System { sql, .. } = one {
            connection.execute_batch(sql).while_doing(DOING)?;
        }
    }
    if is_seen_gone {
        State::forget_seen(connection)?;
    }
    if is_tracking_gone {
        for table in &plan.tables {
            untracked::record(connection, table)?;
            untracked::begin(connection, table)?;
        }
    }
    if is_stage_gone {
        State::set_staged(connection, false)?;
    }
    Ok(())
}

/// The upload on its way has its changes still; what else the log had is found by comparing. Changes set aside in it stand on the list
/// alone now.
fn make_log(connection: &Connection, plan: &Plan, table: &TablePlan) -> Result<(), Error> {
    connection.execute_batch(&create_log(&table.table)).while_doing(DOING)?;
    let rows = Rows::new(connection);
    frozen_changes(connection, plan, &mut |of, change| {
        if let Some(row) = change.new.as_ref().or(change.old.as_ref()).filter(|_| of.number == table.number) {
            let old = change.old.as_ref().map(|old| from_wire(old));
            log_change(&rows, table, &table.key_of(&from_wire(row)), old.as_deref(), 0)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let sql = format!("UPDATE {} SET \"upload\" = (SELECT \"frozen\" FROM \"hw_state\")", table.log());
    connection.execute(&sql, []).while_doing(DOING)?;
    let sql = "UPDATE \"hw_set_aside\" SET \"in_place\" = 0 WHERE \"table\" = ?";
    connection.execute(sql, [table.number]).while_doing(DOING)?;
    tracing::warn!(table = table.table.name, "the log of a table was dropped: {}", untracked::what_follows(table));
    untracked::begin(connection, table)
}
