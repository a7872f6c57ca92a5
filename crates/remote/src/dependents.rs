//! Changes that refer to a change that is set aside: sending them would only have them refused for their foreign key.
//!
//! They are set aside with it, under a code of their own, and wake with it: nobody has to know what refers to what.

use headwater_model::Reference;
use headwater_model::sql::quote;
use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::params;

use crate::cut::set_aside_mark;
use crate::error::{Error, While};
use crate::local::{Local, from_wire};
use crate::plan::{Plan, TablePlan};
use crate::rows::{Pending, Rows};

/// Sets aside the open changes that refer to one that is, and those that refer to these.
pub(crate) fn mark(rows: &Rows<'_>, plan: &Plan, now: &str) -> Result<(), Error> {
    if !rows.any("SELECT 1 FROM \"hw_set_aside\" WHERE \"in_place\"")? {
        return Ok(());
    }
    loop {
        let mut found = 0;
        for table in plan.tracked() {
            for reference in &table.references {
                found += mark_by(rows, plan, table, reference, now)?;
            }
        }
        if found == 0 {
            return Ok(());
        }
    }
}

fn mark_by(rows: &Rows<'_>, plan: &Plan, table: &TablePlan, reference: &Reference, now: &str) -> Result<usize, Error> {
    let Some(condition) = condition(plan, table, reference) else {
        return Ok(0);
    };
    let sql = table.sql.changes_where(&format!("l.\"aside\" = 0 AND {condition}"));
    let mut select = rows.prepare(&sql)?;
    let found = select.query_map([], |row| Pending::read(table, row)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.while_doing("looking for what refers to changes set aside")?;
    for pending in &found {
        set_aside_mark(rows.connection, table, &pending.key, RefusalCode::Dependent as u16)?;
        rows.note_aside(table, pending, &refusal(&plan.model.tables[reference.table].name), true, now)?;
    }
    Ok(found.len())
}

fn refusal(parent: &str) -> Refusal {
    let message = format!("it refers to a row of table {parent:?} that is set aside, and goes up with that");
    Refusal { code: RefusalCode::Dependent, message }
}

/// Which table has the change set aside that the pending change of this key refers to.
pub(crate) fn parent<'p>(
    rows: &Rows<'_>,
    plan: &'p Plan,
    table: &TablePlan,
    key: &[Local],
) -> Result<Option<&'p str>, Error> {
    let by_key: Vec<String> =
        table.keys("k_").iter().zip(1..).map(|(name, place)| format!("l.{name} = ?{place}")).collect();
    for reference in &table.references {
        let Some(condition) = condition(plan, table, reference) else {
            continue;
        };
        let sql = table.sql.changes_where(&format!("{} AND {condition}", by_key.join(" AND ")));
        let exists = rows.prepare(&sql)?.exists(rusqlite::params_from_iter(key));
        if exists.while_doing("looking for what a change refers to")? {
            return Ok(Some(&plan.model.tables[reference.table].name));
        }
    }
    Ok(None)
}

/// Changes that were refused for a foreign key to a row that is set aside: they wake with it.
pub(crate) fn name(rows: &Rows<'_>, plan: &Plan) -> Result<(), Error> {
    let sql = "SELECT \"table\", \"key\" FROM \"hw_set_aside\" WHERE \"in_place\" AND \"code\" = ?";
    let mut select = rows.prepare(sql)?;
    let found = select.query_map([RefusalCode::ForeignKey as u16], |row| Ok((row.get(0)?, row.get(1)?)));
    let found: Vec<(u32, Vec<u8>)> = found.and_then(Iterator::collect).while_doing("reading what is set aside")?;
    for (number, key) in found {
        let Some(table) = plan.table(number) else {
            continue;
        };
        let key_row = from_wire(&rows.key_of_bytes(table, &key)?);
        if let Some(parent) = parent(rows, plan, table, &key_row)? {
            let Refusal { code, message } = refusal(parent);
            set_aside_mark(rows.connection, table, &key_row, code as u16)?;
            let sql = "UPDATE \"hw_set_aside\" SET \"code\" = ?, \"reason\" = ?, \"message\" = ? \
                       WHERE \"table\" = ? AND \"key\" = ? AND \"in_place\" = 1";
            let row = params![code as u16, code.name(), message, number, key];
            rows.prepare(sql)?.execute(row).while_doing("naming a dependent change")?;
        }
    }
    Ok(())
}

/// A condition on a pending change (`l` in the log, `r` the row): the row that it refers to is there only by a change set aside.
fn condition(plan: &Plan, table: &TablePlan, reference: &Reference) -> Option<String> {
    let parent = plan.tables.get(reference.table).filter(|parent| parent.is_tracked())?;
    let column = |table: &TablePlan, place: usize| table.table.columns.get(place).map(|c| c.name.clone());
    let join: Vec<String> =
        parent.keys("").iter().zip(parent.keys("k_")).map(|(own, logged)| format!("p.{own} = pl.{logged}")).collect();
    let mut same = Vec::new();
    let mut is_new = vec!["pl.\"existed\" = 0".to_owned()];
    for (&own, &target) in reference.columns.iter().zip(&reference.target) {
        let (own, name) = (column(table, own)?, column(parent, target)?);
        same.push(format!("p.{} = r.{}", quote(&name), quote(&own)));
        if !parent.table.key.contains(&target) {
            is_new.push(format!("p.{} IS NOT pl.{}", quote(&name), quote(&format!("o_{name}"))));
        }
    }
    Some(format!(
        "EXISTS (SELECT 1 FROM {} AS pl JOIN {} AS p ON {} WHERE pl.\"upload\" = 0 AND pl.\"aside\" <> 0 AND {} AND ({}))",
        parent.log(),
        parent.name(),
        join.join(" AND "),
        same.join(" AND "),
        is_new.join(" OR ")
    ))
}
