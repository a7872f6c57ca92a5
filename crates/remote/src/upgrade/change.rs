//! The change of a file from one version to another, inside the transaction that applies the new version's first download.
//!
//! A table that differs is made anew. It comes whole, so only rows with pending changes are carried over (of a table that only goes up,
//! all): the row, its first old image and what is noted of it get the new columns. What nobody here knows yet, the values of columns
//! that are new, comes down with the row ([`crate::apply`]); where the row does not come, and a column may not be NULL, the change is set
//! aside in its place until the application gives a value.
//!
//! Where the application has triggers on the table, all other rows are carried over too, without firing them: of the download that follows they
//! see what differs ([`crate::apply`]), as they do of any table that comes whole.

use std::cell::Cell;

use headwater_model::Direction;
use headwater_model::remote_sql;
use headwater_model::sql::quote;
use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::{Connection, OptionalExtension, params};

use super::convert::{Converter, Fresh};
use super::own::{self, Own};
use super::{Change, Fate, refused};
use crate::apply::without_change;
use crate::cut::log_change;
use crate::error::{Error, While};
use crate::key_ranges;
use crate::local::{Local, from_wire, to_wire};
use crate::plan::{Plan, TablePlan, decoded};
use crate::rows::{Pending, Placed, Rows};
use crate::schema;
use crate::state::State;
use crate::unfit;
use crate::unsent::IS_UNSENT;
use crate::untracked::{self, Doubt};

/// The tables in which a row of `hw_...` belongs to one of the model.
const NUMBERED: [&str; 6] = ["hw_watermark", "hw_held", "hw_set_aside", "hw_conflict", "hw_key_range", "hw_tracking"];

/// What keeps a file from the new version.
pub(crate) fn check(connection: &Connection, old: &Plan, change: &Change) -> Result<(), Error> {
    let state = State::read(connection)?;
    if state.fingerprint != old.fingerprint {
        return Err(refused("the file's model has been changed meanwhile: try again".to_owned()));
    }
    if state.frozen.is_some() {
        return Err(refused("an upload is on its way under the old version: sync first".to_owned()));
    }
    let doubts = untracked::doubts(connection, old)?;
    for (table, fate) in old.tables.iter().zip(&change.fates) {
        let name = &table.table.name;
        let goes_down = |number: u32| change.plan.table(number).is_some_and(|table| !table.is_tracked());
        match fate {
            Fate::Same(_) => continue,
            Fate::Remade(number) if goes_down(*number) => no_pending(connection, table, "is only downloaded in")?,
            Fate::Remade(_) | Fate::Extended { .. } => {}
            Fate::Gone => {
                no_pending(connection, table, "is not in")?;
                if let Some(child) = own::referrer(connection, old, table)? {
                    return Err(refused(format!(
                        "table {name:?} is not in the new version, and {child:?}, a table of the application's own, refers to it: drop that first"
                    )));
                }
            }
        }
        if doubts.get(table.number as usize).is_some_and(|doubt| *doubt != Doubt::None) {
            return Err(refused(format!(
                "change tracking of table {name:?} was off, and what was changed meanwhile is known after a sync under version {}: \
                 serve that once more",
                old.model.version
            )));
        }
        if let Some(index) = unfit::look(connection, table).while_doing("checking the indexes of a table")? {
            return Err(refused(format!("table {name:?} can't be changed: {}", unfit::why(&index))));
        }
        if let Some(column) = own::column(connection, table)? {
            return Err(refused(format!(
                "table {name:?} has a column {column:?} of the application's own, whose values would be lost: keep them in another table"
            )));
        }
    }
    for table in change.added() {
        if schema::exists(connection, &table.table.name)? {
            return Err(refused(format!(
                "the file has a table {:?} of the application's own, and the new version has one of that name: rename it first",
                table.table.name
            )));
        }
    }
    Ok(())
}

/// Changes of a table that the new version does not take must have gone up.
fn no_pending(connection: &Connection, table: &TablePlan, what: &str) -> Result<(), Error> {
    if !table.is_tracked() {
        return Ok(());
    }
    let nothing = crate::cut::is_nothing_condition(table);
    let sql = format!("SELECT count(*) FROM {} AS l WHERE NOT {nothing}", table.log());
    let in_log: i64 = connection.query_row(&sql, [], |row| row.get(0)).while_doing("counting changes")?;
    let sql = "SELECT count(*) FROM \"hw_set_aside\" WHERE \"table\" = ? AND NOT \"in_place\"";
    let aside: i64 = connection.query_row(sql, [table.number], |row| row.get(0)).while_doing("counting changes")?;
    if in_log + aside == 0 {
        return Ok(());
    }
    Err(refused(format!(
        "table {:?} {what} the new version, and {} of its changes wait here: sync under the old one, or make its rows as they were; \
         retry or drop those set aside",
        table.table.name,
        in_log + aside
    )))
}

/// Makes the file one of the new version, whose uniques the plan learns. Gives by new table number what the rows of tables made anew
/// have no values for.
pub(crate) fn run(
    connection: &Connection,
    old: &Plan,
    change: &mut Change,
    now: &str,
) -> Result<Vec<Option<Fresh>>, Error> {
    // The triggers that are made again below would hide that others, or none, were there.
    schema::refresh_meanwhile(connection, old)?;
    check(connection, old, change)?;
    let broken = own::broken(connection)?;
    let rows = Rows::new(connection);
    drop_triggers(connection)?;
    extend(connection, old, change)?;
    let kept = take_apart(&rows, old, change)?;
    for table in &change.plan.tables {
        if !schema::exists(connection, &table.table.name)? {
            let sql = remote_sql::create_table_and_log(&change.plan.model, &table.table);
            connection.execute_batch(&sql).while_doing("creating the tables of the model")?;
        }
    }
    let gone = old.tables.iter().zip(&change.fates).filter(|(_, fate)| **fate == Fate::Gone);
    gone.map(|(table, _)| table).try_for_each(|table| key_ranges::keep(connection, table))?;
    renumber(connection, change)?;
    change.added().try_for_each(|table| key_ranges::give_back(connection, table))?;
    let sql = "CREATE TEMP TABLE IF NOT EXISTS \"hw_absent\" (\"table\" INTEGER, \"key\" BLOB, PRIMARY KEY (\"table\", \"key\")) \
               WITHOUT ROWID; DELETE FROM temp.\"hw_absent\"";
    connection.execute_batch(sql).while_doing("changing the version")?;
    let mut fresh = vec![None; change.plan.tables.len()];
    for (before, fate) in old.tables.iter().zip(&change.fates) {
        if let Fate::Extended { number, .. } = *fate {
            let remaking = Remaking::new(&rows, before, &change.plan.tables[number as usize], now)?;
            fresh[number as usize] = Some(remaking.extend()?);
        }
    }
    for kept in &kept {
        let table = &change.plan.tables[kept.number as usize];
        fresh[kept.number as usize] = Some(Remaking::new(&rows, kept.old, table, now)?.run(!kept.triggers.is_empty())?);
        own::again(connection, table, &kept.indexes)?;
        own::again(connection, table, &kept.triggers)?;
    }
    finish(connection, change)?;
    if let Some((name, why)) =
        own::broken(connection)?.into_iter().find(|(name, _)| !broken.iter().any(|(n, _)| n == name))
    {
        return Err(refused(format!(
            "{name:?}, or a trigger of the application's on it, does not fit the new version ({why}): drop it first"
        )));
    }
    Ok(fresh)
}

/// A table that is made anew, and what the application has made on it.
struct Kept<'p> {
    old: &'p TablePlan,
    number: u32,
    indexes: Vec<Own>,
    triggers: Vec<Own>,
}

/// Headwater's own: they name tables by number.
fn drop_triggers(connection: &Connection) -> Result<(), Error> {
    let drop = || -> rusqlite::Result<()> {
        let sql = "SELECT type, name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'hw\\_%' ESCAPE '\\' \
                   OR type = 'view' AND (name = 'hw_next_key' OR name LIKE 'hw\\_made\\_%' ESCAPE '\\')";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found: Vec<(String, String)> =
            connection.prepare(sql)?.query_map([], read)?.collect::<rusqlite::Result<_>>()?;
        found.iter().try_for_each(|(kind, name)| connection.execute_batch(&format!("DROP {kind} {}", quote(name))))
    };
    drop().while_doing("changing the version")
}

/// Gives tables that stay their further columns, and their logs. Pending changes have NULL there until their rows come.
fn extend(connection: &Connection, old: &Plan, change: &Change) -> Result<(), Error> {
    for (table, fate) in old.tables.iter().zip(&change.fates) {
        let Fate::Extended { number, before } = *fate else { continue };
        if !schema::exists(connection, &table.table.name)? {
            continue;
        }
        let new = change.plan.table(number).map(|new| new.table.columns.as_slice()).unwrap_or_default();
        for column in new.iter().skip(before as usize) {
            let add = |to: &str, what: &str| {
                let sql = format!("ALTER TABLE {to} ADD COLUMN {what}");
                connection.execute_batch(&sql).while_doing("changing the version")
            };
            add(&table.name(), &format!("{} {}", quote(&column.name), remote_sql::declared_type(column.kind)))?;
            if table.is_tracked() {
                add(&table.log(), &quote(&format!("o_{}", column.name)))?;
            }
        }
    }
    Ok(())
}

/// Keeps what is pending in tables that are made anew, and drops them and those that go.
fn take_apart<'p>(rows: &Rows<'_>, old: &'p Plan, change: &Change) -> Result<Vec<Kept<'p>>, Error> {
    let mut kept = Vec::new();
    for (table, fate) in old.tables.iter().zip(&change.fates) {
        if let Fate::Same(_) | Fate::Extended { .. } = fate {
            continue;
        }
        if let Fate::Remade(number) = *fate {
            let count = table.types.len();
            if table.is_tracked() {
                rows.keep(&kept_name("hw_kept", table), 3 + 2 * count, &table.sql.changes_where("1 = 1"))?;
            }
            let (indexes, triggers) =
                (own::on(rows.connection, table, "index")?, own::on(rows.connection, table, "trigger")?);
            let is_upload = change.plan.table(number).is_some_and(|new| new.table.direction == Direction::Upload);
            let others = if is_upload { None } else { (!triggers.is_empty()).then(|| without_change(table, "1 = 1")) };
            if is_upload || others.is_some() {
                let condition = others.map(|condition| format!(" WHERE {condition}")).unwrap_or_default();
                rows.keep(&kept_name("hw_all", table), count, &(every_row(table) + &condition))?;
            }
            kept.push(Kept { old: table, number, indexes, triggers });
        }
        let log = if table.is_tracked() { format!("DROP TABLE {};", table.log()) } else { String::new() };
        rows.connection
            .execute_batch(&format!("{log} DROP TABLE {}", table.name()))
            .while_doing("changing the version")?;
    }
    Ok(kept)
}

fn every_row(table: &TablePlan) -> String {
    let names: Vec<String> = table.names().map(quote).collect();
    format!("SELECT {} FROM {}", names.join(", "), table.name())
}

fn kept_name(name: &str, table: &TablePlan) -> String {
    quote(&format!("{name}_{}", table.number))
}

/// Gives what is kept by table number the new numbers. Held rows of what is made anew come again.
fn renumber(connection: &Connection, change: &Change) -> Result<(), Error> {
    let mut statements = Vec::new();
    for name in NUMBERED {
        statements.push(format!("UPDATE \"{name}\" SET \"table\" = -1 - \"table\""));
        for (number, fate) in change.fates.iter().enumerate() {
            let (is_kept, to) = match fate {
                Fate::Same(to) | Fate::Extended { number: to, .. } => (true, *to),
                Fate::Remade(to) => (!matches!(name, "hw_watermark" | "hw_held" | "hw_tracking"), *to),
                Fate::Gone => (false, 0),
            };
            let here = format!("WHERE \"table\" = -1 - {number}");
            statements.push(match (is_kept, name) {
                (true, _) => format!("UPDATE \"{name}\" SET \"table\" = {to} {here}"),
                // For people, by name.
                (false, "hw_conflict") => format!("UPDATE \"{name}\" SET \"is_open\" = 0 {here}"),
                (false, _) => format!("DELETE FROM \"{name}\" {here}"),
            });
        }
    }
    connection.execute_batch(&statements.join(";\n")).while_doing("changing the version")
}

/// Triggers, the view of the next keys, and the file's own word for what it is.
fn finish(connection: &Connection, change: &mut Change) -> Result<(), Error> {
    schema::learn_uniques(connection, &mut change.plan)?;
    schema::complete(connection, &change.plan)?;
    let Plan { model, fingerprint, .. } = &change.plan;
    let sql = "UPDATE \"hw_state\" SET \"model\" = ?, \"fingerprint\" = ?";
    let values = params![model.to_json(), *fingerprint as i64];
    connection.execute(sql, values).while_doing("changing the version").map(drop)
}

/// Brings what is kept of one table into its new form.
struct Remaking<'a> {
    rows: &'a Rows<'a>,
    old: &'a TablePlan,
    table: &'a TablePlan,
    converter: Converter<'a>,
    now: &'a str,
    /// Changes that are on the list now.
    listed: Cell<u64>,
    /// Changes of columns that go.
    left_out: Cell<u64>,
}

impl<'a> Remaking<'a> {
    fn new(rows: &'a Rows<'a>, old: &'a TablePlan, table: &'a TablePlan, now: &'a str) -> Result<Remaking<'a>, Error> {
        let before = old.table.columns.iter().map(|column| (column.name.as_str(), column.kind));
        let converter = Converter::new(rows, before, table)?;
        Ok(Remaking { rows, old, table, converter, now, listed: Cell::new(0), left_out: Cell::new(0) })
    }
}

impl Remaking<'_> {
    /// Of a table that keeps its rows.
    fn extend(self) -> Result<Fresh, Error> {
        self.notes()?;
        self.held()?;
        self.converter.finish()
    }

    /// Rewrites the rows that are held beside pending changes.
    fn held(&self) -> Result<(), Error> {
        let sql = "SELECT \"key\", \"image\" FROM \"hw_held\" WHERE \"table\" = ? AND \"image\" IS NOT NULL";
        let mut select = self.rows.prepare(sql)?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found = select.query_map([self.table.number], read).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found: Vec<(Vec<u8>, Vec<u8>)> = found.while_doing("reading held rows")?;
        for (key, image) in found {
            let image = self.made(Some(image))?.map(|row| self.rewritten(&row)).transpose()?;
            let sql = "UPDATE \"hw_held\" SET \"image\" = ? WHERE \"table\" = ? AND \"key\" = ?";
            let values = params![image, self.table.number, key];
            self.rows.prepare(sql)?.execute(values).while_doing("rewriting held rows")?;
        }
        Ok(())
    }

    /// `has_triggers`: the application has triggers on the table.
    fn run(self, has_triggers: bool) -> Result<Fresh, Error> {
        self.notes()?;
        if self.table.table.direction == Direction::Upload {
            self.each(
                &kept_name("hw_all", self.old),
                &|row| {
                    let row = (0..self.old.types.len())
                        .map(|index| Local::read(row, 1 + index))
                        .collect::<Result<Vec<_>, _>>()?;
                    Ok(Pending { aside: 0, old: Some(row.clone()), key: self.old.key_of(&row), new: Some(row) })
                },
                &|pending| self.change(pending),
            )?;
        }
        if self.old.is_tracked() {
            let read = |row: &rusqlite::Row<'_>| Pending::read_from(self.old, row, 1);
            self.each(&kept_name("hw_kept", self.old), &read, &|pending| self.change(pending))?;
        }
        if has_triggers && self.table.table.direction != Direction::Upload {
            self.carry_over()?;
        }
        if self.old.table.direction == Direction::Upload && self.table.table.direction == Direction::Both {
            self.unsent()?;
        }
        let (listed, left_out) = (self.listed.get(), self.left_out.get());
        Ok(Fresh { listed, left_out, is_made_anew: true, ..self.converter.finish()? })
    }

    /// Rows without a pending change, as far as the table takes them: they stand there until they come, or go.
    fn carry_over(&self) -> Result<(), Error> {
        let read =
            |row: &rusqlite::Row<'_>| (0..self.old.types.len()).map(|index| Local::read(row, 1 + index)).collect();
        self.each(&kept_name("hw_all", self.old), &read, &|row: &Vec<Local>| {
            self.rows.upsert(self.table, &self.converter.image(row)?).map(drop)
        })
    }

    /// Goes through a temporary table, and drops it.
    fn each<T>(
        &self,
        name: &str,
        read: &dyn Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
        each: &dyn Fn(&T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let next = format!("SELECT rowid, * FROM temp.{name} WHERE rowid > ? ORDER BY rowid LIMIT 1");
        let mut after = 0i64;
        loop {
            let found = self.rows.prepare(&next)?.query_row([after], |row| Ok((row.get(0)?, read(row)?))).optional();
            let Some((rowid, found)) = found.while_doing("reading pending changes")? else { break };
            after = rowid;
            each(&found)?;
        }
        self.rows.execute(&format!("DROP TABLE temp.{name}"), &[]).map(drop)
    }

    /// Makes a row and its pending change again.
    fn change(&self, pending: &Pending) -> Result<(), Error> {
        let image = |row: &Option<Vec<Local>>| row.as_ref().map(|row| self.converter.image(row)).transpose();
        let change = Pending {
            aside: pending.aside,
            old: image(&pending.old)?,
            new: image(&pending.new)?,
            key: pending.key.clone(),
        };
        self.list_what_goes(pending.old.as_deref(), pending.new.as_deref(), &pending.key)?;
        let placed = match &change.new {
            Some(row) => self.rows.upsert(self.table, row)?,
            None => Placed::Done,
        };
        let why = match placed {
            Placed::Done if change.is_nothing() => return Ok(()),
            Placed::Done => {
                log_change(self.rows, self.table, &change.key, change.old.as_deref(), change.aside)?;
                let key = self.table.key_bytes(&to_wire(&change.key, &self.table.key_types));
                let sql = "INSERT OR REPLACE INTO temp.\"hw_absent\" (\"table\", \"key\") VALUES (?, ?)";
                let mut insert = self.rows.prepare(sql)?;
                return insert.execute(params![self.table.number, key]).while_doing("changing the version").map(drop);
            }
            Placed::InTheWay => "another row has a value of it that must be unique".to_owned(),
            Placed::Refused(why) => why,
        };
        let message = format!("the table of the new version does not take it: {why}");
        self.listed.set(self.listed.get() + 1);
        self.rows.note_aside(self.table, &change, &Refusal { code: RefusalCode::Data, message }, false, self.now)?;
        let text = |row: &Option<Vec<Local>>| row.as_ref().map(|row| self.converter.readable(row));
        self.rows.show_as_made(&[text(&pending.old), text(&pending.new)])
    }

    /// Rows that may not have gone up ([`crate::unsent`]) are not among those that the table is left with until it comes down. They stand as
    /// changes set aside: one that comes down as it is has gone up.
    fn unsent(&self) -> Result<(), Error> {
        let sql = format!(
            "SELECT \"id\", \"new\" FROM \"hw_set_aside\" WHERE \"table\" = ?1 AND \"code\" = ?2 AND {IS_UNSENT} AND \"id\" > ?3 \
             ORDER BY \"id\" LIMIT 1"
        );
        let (code, mut after) = (RefusalCode::Untracked as i64, 0i64);
        loop {
            let values = params![self.table.number, code, after];
            let found = self.rows.prepare(&sql)?.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional();
            let Some((id, image)): Option<(i64, Vec<u8>)> = found.while_doing("reading what is set aside")? else {
                return Ok(());
            };
            after = id;
            let row = from_wire(&decoded(&self.table.types, &image)?);
            let key = self.table.key_of(&row);
            if self.rows.pending(self.table, &key)?.is_some() || self.rows.upsert(self.table, &row)? != Placed::Done {
                continue;
            }
            log_change(self.rows, self.table, &key, None, code)?;
            let stands = "UPDATE \"hw_set_aside\" SET \"in_place\" = 1 WHERE \"id\" = ?";
            self.rows.prepare(stands)?.execute([id]).while_doing("rewriting what is set aside")?;
        }
    }

    /// Rewrites the images of changes set aside.
    fn notes(&self) -> Result<(), Error> {
        let mut after = 0i64;
        loop {
            let sql = "SELECT \"id\", \"in_place\", \"old\", \"new\" FROM \"hw_set_aside\" WHERE \"table\" = ? AND \"id\" > ? \
                       ORDER BY \"id\" LIMIT 1";
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, bool>(1)?, [row.get(2)?, row.get(3)?]));
            let found = self.rows.prepare(sql)?.query_row(params![self.table.number, after], read).optional();
            let Some((id, in_place, [old, new])) = found.while_doing("reading what is set aside")? else {
                return Ok(());
            };
            after = id;
            let (old, new) = (self.made(old)?, self.made(new)?);
            let bytes = |row: &Option<Vec<Local>>| row.as_ref().map(|row| self.rewritten(row)).transpose();
            let sql = "UPDATE \"hw_set_aside\" SET \"old\" = ?, \"new\" = ? WHERE \"id\" = ?";
            let values = params![bytes(&old)?, bytes(&new)?, id];
            self.rows.prepare(sql)?.execute(values).while_doing("rewriting what is set aside")?;
            // One that stands where it is comes with the pending changes.
            if let Some(new) = new.filter(|_| !in_place) {
                self.list_what_goes(old.as_deref(), Some(&new), &self.old.key_of(&new))?;
            }
        }
    }

    fn made(&self, image: Option<Vec<u8>>) -> Result<Option<Vec<Local>>, Error> {
        image.map(|bytes| Ok(from_wire(&decoded(&self.old.types, &bytes)?))).transpose()
    }

    fn rewritten(&self, made: &[Local]) -> Result<Vec<u8>, Error> {
        let row = self.converter.image(made)?;
        Ok(self.table.row_bytes(&to_wire(&row, &self.table.types)))
    }

    /// What a change made of columns that go with the old version goes nowhere any more: only the list has it. The change's own line there
    /// ends when it is sent, or the row is changed once more.
    fn list_what_goes(&self, old: Option<&[Local]>, new: Option<&[Local]>, key: &[Local]) -> Result<(), Error> {
        let Some(gone) = self.converter.what_goes(old, new) else { return Ok(()) };
        self.left_out.set(self.left_out.get() + 1);
        self.rows.note_gone(self.table, key, RefusalCode::Data, &gone, self.now)
    }
}
