//! What SQLite did to the rows that refer to a table while the application dropped it.
//!
//! With `PRAGMA foreign_keys = ON`, `DROP TABLE` deletes the rows of the table first, and so carries out `ON DELETE CASCADE` and
//! `ON DELETE SET NULL`. The triggers of change tracking log both as if the application had asked for them:
//!
//! ```text
//! DROP TABLE customer      the log of "invoice": row 7 is deleted     (CASCADE)   -> set aside
//!                          the log of "line": row 70 is deleted       (CASCADE)   -> set aside, as it referred to invoice 7
//!                          the log of "call": customer of 9 is NULL   (SET NULL)  -> set aside
//! ```
//!
//! *Caveats.* The log does not say who deleted a row: a deletion that the application made itself before it dropped the table is set aside
//! too. A row that had not gone up is gone with its table's other rows, and no list has it.

use headwater_model::sql::quote;
use headwater_protocol::message::RefusalCode;
use rusqlite::{Connection, params};

use super::refusal;
use crate::cut::set_aside_mark;
use crate::error::{Error, While};
use crate::plan::{Plan, TablePlan};
use crate::remote::now;
use crate::rows::{Pending, Rows};
use crate::schema;

/// Columns of a table that refer to another table: of the child and of the parent, in pairs.
type Pairs = Vec<(usize, usize)>;

/// Sets aside the open deletions and set-NULLs of rows that referred to a table, which the application has dropped, and to rows that went
/// with these. Returns their number.
pub(crate) fn set_aside(connection: &Connection, plan: &Plan, dropped: &TablePlan) -> Result<u64, Error> {
    let rows = Rows::new(connection);
    let mut count = set_children_aside(&rows, plan, dropped, dropped)?;
    let mut reached = vec![dropped.number];
    let mut next = children(connection, plan, dropped)?;
    while let Some(parent) = next.pop() {
        if !reached.contains(&parent.number) {
            reached.push(parent.number);
            next.extend(children(connection, plan, parent)?);
        }
    }
    loop {
        let mut found = 0;
        for parent in reached.iter().skip(1).filter_map(|number| plan.table(*number)) {
            found += set_children_aside(&rows, plan, parent, dropped)?;
        }
        count += found;
        if found == 0 {
            break;
        }
    }
    if count > 0 {
        tracing::warn!(
            table = dropped.table.name,
            changes = count,
            "the table was dropped, and rows that referred to it are gone or refer to nothing: that is set aside, and not sent"
        );
    }
    Ok(count)
}

fn children<'p>(connection: &Connection, plan: &'p Plan, parent: &TablePlan) -> Result<Vec<&'p TablePlan>, Error> {
    let mut children = Vec::new();
    for child in plan.tracked().filter(|child| child.number != parent.number) {
        if has_log(connection, child)? && !references(connection, plan, child, parent)?.is_empty() {
            children.push(child);
        }
    }
    Ok(children)
}

fn set_children_aside(rows: &Rows<'_>, plan: &Plan, parent: &TablePlan, dropped: &TablePlan) -> Result<u64, Error> {
    let mut count = 0;
    for child in children(rows.connection, plan, parent)? {
        for pairs in references(rows.connection, plan, child, parent)? {
            let went_too = if parent.number == dropped.number { None } else { Some(parent) };
            if let Some(condition) = condition(child, &pairs, went_too) {
                count += set_changes_aside(rows, child, &condition, dropped)?;
            }
        }
    }
    Ok(count)
}

fn set_changes_aside(rows: &Rows<'_>, child: &TablePlan, condition: &str, dropped: &TablePlan) -> Result<u64, Error> {
    let mut select = rows.prepare(&child.sql.changes_where(condition))?;
    let found = select.query_map([], |row| Pending::read(child, row)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.while_doing("reading the log")?;
    for pending in &found {
        let what = if pending.new.is_some() { "its reference is NULL" } else { "the row is gone" };
        let message = format!(
            "{what}, perhaps because the application dropped table {:?}, to whose rows it referred: `drop` brings the row back, `retry` \
             sends the change",
            dropped.table.name
        );
        set_aside_mark(rows.connection, child, &pending.key, RefusalCode::Gone as u16)?;
        rows.note_aside(child, pending, &refusal(&message), true, &now())?;
    }
    Ok(found.len() as u64)
}

/// A condition on changes (`l` in the log, `r` the row): a row that referred to the parent is gone, or its reference is NULL. `went_too`: the
/// row that it referred to is among those that are set aside.
fn condition(child: &TablePlan, pairs: &[(usize, usize)], went_too: Option<&TablePlan>) -> Option<String> {
    let own = |place: usize| quote(&child.table.columns[place].name);
    let key = child.keys("").into_iter().next()?;
    let mut all = vec!["l.\"aside\" = 0 AND l.\"existed\" = 1".to_owned()];
    all.extend(pairs.iter().map(|(from, _)| format!("{} IS NOT NULL", logged(child, *from, "l"))));
    let nulled: Vec<String> = pairs.iter().map(|(from, _)| format!("r.{} IS NULL", own(*from))).collect();
    let is_gone = format!("r.{key} IS NULL");
    all.push(if nulled.is_empty() { is_gone } else { format!("({is_gone} OR ({}))", nulled.join(" AND ")) });
    if let Some(parent) = went_too {
        let same =
            pairs.iter().map(|(from, to)| format!("{} = +{}", logged(parent, *to, "pl"), logged(child, *from, "l")));
        let join = parent.keys("").into_iter().zip(parent.keys("k_")).map(|(own, key)| format!("p.{own} = pl.{key}"));
        all.push(format!(
            "EXISTS (SELECT 1 FROM {} AS pl WHERE pl.\"upload\" = 0 AND pl.\"aside\" = {} AND {} \
             AND NOT EXISTS (SELECT 1 FROM {} AS p WHERE {}))",
            parent.log(),
            RefusalCode::Gone as u16,
            same.chain(["1 = 1".to_owned()]).collect::<Vec<_>>().join(" AND "),
            parent.name(),
            join.collect::<Vec<_>>().join(" AND ")
        ));
    }
    Some(all.join(" AND "))
}

fn logged(table: &TablePlan, place: usize, log: &str) -> String {
    let prefix = if table.table.key.contains(&place) { "k_" } else { "o_" };
    format!("{log}.{}", quote(&format!("{prefix}{}", table.table.columns[place].name)))
}

fn has_log(connection: &Connection, table: &TablePlan) -> Result<bool, Error> {
    let log = headwater_model::remote_sql::log_name(&table.table);
    Ok(schema::exists(connection, &table.table.name)? && schema::exists(connection, &log)?)
}

/// The references of a table to another: the model's, and the foreign keys that the table has, which may be the application's.
fn references(
    connection: &Connection,
    plan: &Plan,
    child: &TablePlan,
    parent: &TablePlan,
) -> Result<Vec<Pairs>, Error> {
    let of_model = plan.model.tables[child.number as usize].references.iter();
    let of_model = of_model.filter(|reference| reference.table == parent.number as usize);
    let mut found: Vec<Pairs> = of_model
        .map(|reference| reference.columns.iter().copied().zip(reference.target.iter().copied()).collect())
        .collect();
    found.extend(foreign_keys(connection, child, parent).while_doing("reading the catalogue")?);
    for pairs in &mut found {
        pairs.sort_unstable();
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn foreign_keys(connection: &Connection, child: &TablePlan, parent: &TablePlan) -> rusqlite::Result<Vec<Pairs>> {
    let sql = "SELECT id, seq, \"from\", \"to\" FROM pragma_foreign_key_list(?1) WHERE \"table\" = ?2 COLLATE NOCASE \
               AND on_delete IN ('CASCADE', 'SET NULL', 'SET DEFAULT') ORDER BY id, seq";
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query(params![child.table.name, parent.table.name])?;
    let place_of = |table: &TablePlan, name: &str| {
        table.table.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    };
    let (mut found, mut last) = (Vec::<Pairs>::new(), None);
    while let Some(row) = rows.next()? {
        let (id, place): (i64, usize) = (row.get(0)?, row.get::<_, i64>(1)? as usize);
        if last.replace(id) != Some(id) {
            found.push(Pairs::new());
        }
        let from = place_of(child, &row.get::<_, String>(2)?);
        // No name stands for the key of the parent.
        let to = match row.get::<_, Option<String>>(3)? {
            Some(name) => place_of(parent, &name),
            None => parent.table.key.get(place).copied(),
        };
        if let (Some(pairs), Some(from), Some(to)) = (found.last_mut(), from, to) {
            pairs.push((from, to));
        }
    }
    Ok(found)
}
