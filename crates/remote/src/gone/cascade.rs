//! What SQLite did to other rows while the application dropped a table, one of the model or of its own ([`super::own_parents`]).
//!
//! With `PRAGMA foreign_keys = ON`, `DROP TABLE` deletes the rows of the table first, and so carries out `ON DELETE CASCADE`,
//! `ON DELETE SET NULL` and `ON DELETE SET DEFAULT`. The triggers of change tracking log that as if the application had asked for it:
//!
//! ```text
//! DROP TABLE customer      the log of "invoice": row 7 is deleted       (CASCADE)     -> set aside
//!                          the log of "line": row 70 is deleted         (CASCADE)     -> set aside, as it referred to invoice 7
//!                          the log of "call": customer of 9 is NULL     (SET NULL)    -> set aside
//!                          the log of "stock": row 3 is counted up      (a trigger of the application's on "line")
//!                                                                                     -> every open change of "stock" is set aside
//! ```
//!
//! *Caveats.* The log does not say who deleted a row: a deletion that the application made itself before it dropped the table is set aside
//! too, and so are its edits of tables to which triggers may have written. Which tables these are is read in the triggers' text; a trigger
//! that writes through a view writes to the tables that this view's own triggers name. A row that had not gone up is gone with its table's
//! other rows, and no list has it.

use std::collections::HashSet;

use headwater_model::sql::quote;
use headwater_protocol::message::RefusalCode;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::{own_parents, refusal};
use crate::cut::set_aside_mark;
use crate::error::{Error, While};
use crate::index_sql;
use crate::plan::{Plan, TablePlan};
use crate::remote::now;
use crate::rows::{Pending, Rows};
use crate::schema;
use crate::untracked;

/// What of the file's schema brings changes of one table to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ways {
    pub(super) links: Vec<Link>,
    /// Tables and views with triggers of the application's, each with one to which these write; in small letters.
    written: Vec<(String, String)>,
}

impl Ways {
    /// The names that a table has now to which these ways led: SQLite changes the references to a table that is renamed.
    pub(super) fn renamed(&self, name: &str, now: &Ways) -> Vec<String> {
        let to = self.links.iter().filter(|link| link.parent.eq_ignore_ascii_case(name));
        let same = |old: &Link, new: &Link| {
            old.child == new.child && old.columns == new.columns && !new.parent.eq_ignore_ascii_case(name)
        };
        to.flat_map(|old| now.links.iter().filter(move |new| same(old, new)))
            .map(|new| new.parent.to_ascii_lowercase())
            .collect()
    }
}

/// A reference of a table's rows to those of another, which SQLite carries out, or which the model has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    child: String,
    pub(super) parent: String,
    /// Columns of the child and of the parent, in pairs. `None`: the parent's key has as many columns, and this is the next.
    columns: Vec<(String, Option<String>)>,
    deletes: bool,
    /// The children get their columns' defaults.
    sets_default: bool,
}

/// What is known of a drop.
struct Drop<'c> {
    rows: Rows<'c>,
    plan: &'c Plan,
    /// The table that the application has dropped.
    name: &'c str,
    /// As they are, and as they were when the file was last looked at: a migration may have dropped some since.
    ways: Ways,
}

/// Sets aside what SQLite, and triggers of the application's, may have done to rows of other tables while the application dropped this one.
/// Returns the number of the changes.
pub(crate) fn set_aside(connection: &Connection, plan: &Plan, dropped: &str) -> Result<u64, Error> {
    let mut ways = ways(connection).while_doing("reading the catalogue")?;
    let before = own_parents::ways_before(connection)?;
    ways.links.extend(of_model(plan).into_iter().chain(before.links));
    ways.written.extend(before.written);
    let drop = Drop { rows: Rows::new(connection), plan, name: dropped, ways };
    let count = drop.set_aside()?;
    if count > 0 {
        tracing::warn!(
            table = dropped,
            changes = count,
            "the table was dropped, and rows of other tables were perhaps deleted or changed by that: this is set aside, and not sent"
        );
    }
    Ok(count)
}

impl Drop<'_> {
    fn set_aside(&self) -> Result<u64, Error> {
        let reached = self.reached()?;
        let (mut count, mut has_triggers_fired) = (0, HashSet::new());
        loop {
            let mut found = 0;
            for link in &self.ways.links {
                let Some((child, condition)) = self.condition(link, &reached)? else { continue };
                let what = |pending: &Pending| match pending.new {
                    None => "the row is gone",
                    Some(_) if link.sets_default => "its reference is the default",
                    Some(_) => "its reference is NULL",
                };
                let message = "to whose rows it referred: `drop` brings the row back, `retry` sends the change";
                let changes = self.set_changes_aside(child, &condition, &what, message)?;
                if changes > 0 {
                    has_triggers_fired.insert(link.child.to_ascii_lowercase());
                }
                found += changes;
            }
            count += found;
            if found == 0 {
                break;
            }
        }
        // Own tables have no log that would tell whether rows of theirs went, own columns are in none, and a table that is made anew itself may
        // have them again.
        let own = self
            .ways
            .links
            .iter()
            .filter(|link| reached.contains(&link.parent.to_ascii_lowercase()) && !self.is_dropped(&link.child));
        for link in own {
            if self.tells_nothing(link)? {
                has_triggers_fired.insert(link.child.to_ascii_lowercase());
            }
        }
        Ok(count + self.set_written_aside(has_triggers_fired)?)
    }

    /// Whether no log would have what became of the children.
    fn tells_nothing(&self, link: &Link) -> Result<bool, Error> {
        let Some(child) = self.of_model(&link.child) else { return Ok(true) };
        let connection = self.rows.connection;
        Ok(link.columns.iter().any(|(from, _)| place_of(child, from).is_none())
            || untracked::is_in_doubt(connection, child)?
            || untracked::is_rebuilt(connection, child)?
            || !schema::exists(connection, &child.table.name)?)
    }

    fn is_dropped(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case(self.name)
    }

    fn of_model(&self, name: &str) -> Option<&TablePlan> {
        self.plan.tables.iter().find(|table| table.table.name.eq_ignore_ascii_case(name))
    }

    /// A table of the model that is there and has a log.
    fn logged(&self, name: &str) -> Result<Option<&TablePlan>, Error> {
        let Some(table) = self.of_model(name).filter(|table| table.is_tracked()) else { return Ok(None) };
        let log = headwater_model::remote_sql::log_name(&table.table);
        let connection = self.rows.connection;
        Ok((schema::exists(connection, &table.table.name)? && schema::exists(connection, &log)?).then_some(table))
    }

    /// The table and those whose rows may have been deleted with its own, in small letters.
    fn reached(&self) -> Result<HashSet<String>, Error> {
        let mut reached = HashSet::from([self.name.to_ascii_lowercase()]);
        let mut next = vec![self.name.to_ascii_lowercase()];
        while let Some(parent) = next.pop() {
            for link in self.ways.links.iter().filter(|link| link.parent.to_ascii_lowercase() == parent) {
                let is_followed = match self.of_model(&link.child) {
                    Some(_) => self.logged(&link.child)?.is_some(),
                    None => link.deletes,
                };
                if is_followed && reached.insert(link.child.to_ascii_lowercase()) {
                    next.push(link.child.to_ascii_lowercase());
                }
            }
        }
        Ok(reached)
    }

    /// The table, and a condition on its changes (`l` in the log, `r` the row): a row that referred to the link's parent is gone, or its
    /// reference is NULL or the default.
    fn condition(&self, link: &Link, reached: &HashSet<String>) -> Result<Option<(&TablePlan, String)>, Error> {
        if !reached.contains(&link.parent.to_ascii_lowercase())
            || self.is_dropped(&link.child)
            || link.child.eq_ignore_ascii_case(&link.parent)
        {
            return Ok(None);
        }
        let Some(child) = self.logged(&link.child)? else { return Ok(None) };
        let Some(key) = child.keys("").into_iter().next() else { return Ok(None) };
        let mut all = vec!["l.\"aside\" = 0 AND l.\"existed\" = 1".to_owned()];
        let is_gone = format!("r.{key} IS NULL");
        let from: Option<Vec<usize>> = link.columns.iter().map(|(from, _)| place_of(child, from)).collect();
        // A column of the application's own is in no log: only deletions are.
        let Some(from) = from else {
            all.push(is_gone);
            return Ok(link.deletes.then(|| (child, all.join(" AND "))));
        };
        all.extend(from.iter().map(|place| format!("{} IS NOT NULL", logged(child, *place, "l"))));
        let mut changed = Vec::new();
        for place in &from {
            let name = &child.table.columns[*place].name;
            let default = if link.sets_default { default_of(self.rows.connection, child, name)? } else { None };
            changed.push(format!("r.{} IS ({}\n)", quote(name), default.unwrap_or_else(|| "NULL".to_owned())));
        }
        all.push(format!("({is_gone} OR ({}))", changed.join(" AND ")));
        // What is known of the rows of an own table is that they may have gone.
        let parent = self.of_model(&link.parent).filter(|parent| !self.is_dropped(&parent.table.name));
        if let Some(parent) = parent {
            let to = link.columns.iter().enumerate().map(|(place, (_, to))| match to {
                Some(name) => place_of(parent, name),
                None => parent.table.key.get(place).copied(),
            });
            let Some(to) = to.collect::<Option<Vec<_>>>() else { return Ok(None) };
            all.push(went_too(child, parent, from.into_iter().zip(to)));
        }
        Ok(Some((child, all.join(" AND "))))
    }

    /// Sets open changes aside. `what`: what became of the row; `why`: what the table that was dropped has to do with it.
    fn set_changes_aside(
        &self,
        table: &TablePlan,
        condition: &str,
        what: &dyn Fn(&Pending) -> &'static str,
        why: &str,
    ) -> Result<u64, Error> {
        let mut select = self.rows.prepare(&table.sql.changes_where(condition))?;
        let found =
            select.query_map([], |row| Pending::read(table, row)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found = found.while_doing("reading the log")?;
        for pending in &found {
            let message =
                format!("{}, perhaps because the application dropped table {:?}, {why}", what(pending), self.name);
            set_aside_mark(self.rows.connection, table, &pending.key, RefusalCode::Gone as u16)?;
            self.rows.note_aside(table, pending, &refusal(&message), true, &now())?;
        }
        Ok(found.len() as u64)
    }

    /// Sets aside the open changes of tables to which triggers may have written that these tables' changes have fired.
    fn set_written_aside(&self, fired_on: HashSet<String>) -> Result<u64, Error> {
        let (mut seen, mut next, mut count) = (fired_on.clone(), Vec::from_iter(fired_on), 0);
        while let Some(name) = next.pop() {
            let written = self.ways.written.iter().filter(|(table, _)| *table == name);
            let mut reached: Vec<String> = written.map(|(_, written)| written.clone()).collect();
            for name in &reached {
                if let Some(table) = self.logged(name)? {
                    let what = |_: &Pending| "written by a trigger";
                    let why = "whose rows others referred to: `drop` takes the change back, `retry` sends it";
                    count += self.set_changes_aside(table, "l.\"aside\" = 0", &what, why)?;
                }
            }
            let below =
                self.ways.links.iter().filter(|link| reached.iter().any(|name| link.parent.eq_ignore_ascii_case(name)));
            let below: Vec<String> = below.map(|link| link.child.to_ascii_lowercase()).collect();
            for name in &below {
                if let Some(table) = self.logged(name)? {
                    let what = |_: &Pending| "changed with the row to which it refers";
                    let why =
                        "at which a trigger wrote to that row's table: `drop` takes the change back, `retry` sends it";
                    count += self.set_changes_aside(table, "l.\"aside\" = 0", &what, why)?;
                }
            }
            reached.extend(below);
            next.extend(reached.into_iter().filter(|name| seen.insert(name.clone())));
        }
        Ok(count)
    }
}

/// The ways of the file as it is.
pub(super) fn ways(connection: &Connection) -> rusqlite::Result<Ways> {
    let sql = "SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' AND name NOT LIKE 'hw\\_%' ESCAPE '\\'";
    let mut select = connection.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let triggers: Vec<(String, String)> = select.query_map([], read)?.collect::<Result<_, _>>()?;
    let of_trigger = |(table, sql): &(String, String)| {
        let table = table.to_ascii_lowercase();
        index_sql::written(sql).into_iter().map(|written| (table.clone(), written)).collect::<Vec<_>>()
    };
    let mut written: Vec<(String, String)> = triggers.iter().flat_map(of_trigger).collect();
    written.sort();
    written.dedup();
    Ok(Ways { links: of_file(connection)?, written })
}

/// The condition that the row to which a change of `child` referred is gone too, and set aside for that.
fn went_too(child: &TablePlan, parent: &TablePlan, pairs: impl Iterator<Item = (usize, usize)>) -> String {
    let same = pairs.map(|(from, to)| format!("{} = +{}", logged(parent, to, "pl"), logged(child, from, "l")));
    let join = parent.keys("").into_iter().zip(parent.keys("k_")).map(|(own, key)| format!("p.{own} = pl.{key}"));
    format!(
        "EXISTS (SELECT 1 FROM {} AS pl WHERE pl.\"upload\" = 0 AND pl.\"aside\" = {} AND {} \
         AND NOT EXISTS (SELECT 1 FROM {} AS p WHERE {}))",
        parent.log(),
        RefusalCode::Gone as u16,
        same.chain(["1 = 1".to_owned()]).collect::<Vec<_>>().join(" AND "),
        parent.name(),
        join.collect::<Vec<_>>().join(" AND ")
    )
}

fn logged(table: &TablePlan, place: usize, log: &str) -> String {
    let prefix = if table.table.key.contains(&place) { "k_" } else { "o_" };
    format!("{log}.{}", quote(&format!("{prefix}{}", table.table.columns[place].name)))
}

fn place_of(table: &TablePlan, name: &str) -> Option<usize> {
    table.table.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
}

/// A column's default as SQL.
fn default_of(connection: &Connection, table: &TablePlan, column: &str) -> Result<Option<String>, Error> {
    let sql = "SELECT dflt_value FROM pragma_table_xinfo(?) WHERE name = ? COLLATE NOCASE";
    let select = connection.prepare_cached(sql);
    let found = select.and_then(|mut select| select.query_row([&table.table.name, column], |row| row.get(0)));
    found.while_doing("reading the catalogue")
}

/// The references of the model: a migration that renames a table before it drops it takes those of the file with it.
fn of_model(plan: &Plan) -> Vec<Link> {
    let name = |number: usize, place: usize| plan.tables[number].table.columns[place].name.clone();
    let tables = plan.model.tables.iter().enumerate();
    let of_table = |(number, table): (usize, &headwater_model::Table)| {
        let links = table.references.iter().map(|reference| Link {
            child: table.name.clone(),
            parent: plan.tables[reference.table].table.name.clone(),
            columns: std::iter::zip(&reference.columns, &reference.target)
                .map(|(from, to)| (name(number, *from), Some(name(reference.table, *to))))
                .collect(),
            deletes: true,
            sets_default: false,
        });
        links.collect::<Vec<_>>()
    };
    tables.flat_map(of_table).collect()
}

/// The foreign keys that the file's tables have, and that change rows when others are deleted.
fn of_file(connection: &Connection) -> rusqlite::Result<Vec<Link>> {
    let sql = "SELECT m.name, f.\"table\", f.\"from\", f.\"to\", f.on_delete, f.seq FROM sqlite_schema m, pragma_foreign_key_list(m.name) f \
               WHERE m.type = 'table' AND f.on_delete IN ('CASCADE', 'SET NULL', 'SET DEFAULT') ORDER BY m.name, f.id, f.seq";
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query([])?;
    let mut links: Vec<Link> = Vec::new();
    while let Some(row) = rows.next()? {
        let column = (row.get(2)?, row.get(3)?);
        match links.last_mut() {
            Some(last) if row.get::<_, i64>(5)? > 0 => last.columns.push(column),
            _ => {
                let action: String = row.get(4)?;
                let (deletes, sets_default) = (action == "CASCADE", action == "SET DEFAULT");
                links.push(Link {
                    child: row.get(0)?,
                    parent: row.get(1)?,
                    columns: vec![column],
                    deletes,
                    sets_default,
                });
            }
        }
    }
    Ok(links)
}
