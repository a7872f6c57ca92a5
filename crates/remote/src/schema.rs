//! The tables and triggers of a remote: made once, and kept as they must be whenever the file is opened.

use headwater_model::remote_sql::{self, KeyTraits, Term, Trigger, Unique};
use headwater_model::sql::quote;
use rusqlite::{Connection, OptionalExtension, params};

use crate::adopt;
use crate::database::Database;
use crate::error::{Error, While};
use crate::gone;
use crate::index_sql;
use crate::key_ranges;
use crate::missing;
use crate::older;
use crate::plan::{Plan, TablePlan};
use crate::state::State;
use crate::unfit;
use crate::untracked::{self, Gap};

/// Makes every table of the model that is not there, its log, and what Headwater itself keeps.
pub(crate) fn create(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    for table in &plan.tables {
        if exists(connection, &table.table.name)? {
            adopt::adopt(connection, table)?;
            continue;
        }
        let sql = remote_sql::create_table_and_log(&plan.model, &table.table);
        connection.execute_batch(&sql).while_doing("creating the tables of the model")?;
    }
    connection.execute_batch(remote_sql::system_tables()).while_doing("creating Headwater's own tables")?;
    complete(connection, plan)
}

/// Makes what goes with the tables of the model: the view of the next keys, and the triggers.
pub(crate) fn complete(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    connection
        .execute_batch(&remote_sql::next_key_view(&plan.model))
        .while_doing("creating the view of the next keys")?;
    plan.tables.iter().try_for_each(|table| create_triggers(connection, table))?;
    gone::own_parents::record(connection, plan)
}

/// Whether the file has a table of this name.
pub(crate) fn exists(connection: &Connection, name: &str) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type IN ('table', 'view') AND lower(name) = lower(?)";
    connection.prepare_cached(sql).and_then(|mut select| select.exists([name])).while_doing("reading the catalogue")
}

/// Looks for unique indexes that the application made, makes the triggers anew where they are not as they must be, and passes over keys
/// of the ranges that are taken.
pub(crate) fn refresh(database: &Database, plan: &mut Plan) -> Result<(), Error> {
    let connection = &database.connection;
    missing::make_again(database, plan)?;
    older::put_right(database)?;
    plan.schema_version = Some(schema_version(connection)?);
    learn_uniques(connection, plan)?;
    let have_changed = gone::own_parents::have_changed(connection, plan)?;
    let see_to_parents = |step: fn(&Connection, &Plan) -> Result<(), Error>| {
        let checked = |connection: &Connection| is_of(connection, plan).and_then(|()| step(connection, plan));
        if have_changed { database.write("looking at the application's tables", checked) } else { Ok(()) }
    };
    see_to_parents(gone::own_parents::set_aside)?;
    for table in &plan.tables {
        if !has_triggers(connection, table).while_doing("reading the catalogue")? {
            tracing::info!(table = table.table.name, "change tracking is made anew");
            database.write("making change tracking anew", |connection| {
                is_of(connection, plan)?;
                if exists(connection, &table.table.name)? {
                    doubt(connection, plan, table)?;
                } else {
                    gone::make_again(connection, plan, table)?;
                }
                create_triggers(connection, table)
            })?;
        }
    }
    see_to_parents(gone::own_parents::record)?;
    plan.tables.iter().try_for_each(|table| unfit::check_ahead(database, table))?;
    key_ranges::pass_taken_alone(database, plan)
}

/// Whether the file's model is still the one that was read.
fn is_of(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    if State::read(connection)?.fingerprint == plan.fingerprint {
        return Ok(());
    }
    Err(Error::Configuration { what: "the file's model has been changed meanwhile: open it again".to_owned() })
}

/// The same inside the transaction of a sync that is under way, for tables that the application has made anew, or taken the triggers from,
/// since it began. [`Error::Configuration`] names one that it has dropped: what is about to happen was asked for when it was there.
pub(crate) fn refresh_meanwhile(connection: &Connection, plan: &Plan) -> Result<(), Error> {
    if plan.schema_version == Some(schema_version(connection)?) {
        return Ok(());
    }
    gone::own_parents::set_aside(connection, plan)?;
    for table in &plan.tables {
        let name = &table.table.name;
        if !exists(connection, name)? {
            let what =
                format!("table {name:?} of the model has been dropped, or renamed, while a sync ran: sync again");
            return Err(Error::Configuration { what });
        }
        if doubt(connection, plan, table)? {
            create_triggers(connection, table)?;
        }
    }
    gone::own_parents::record(connection, plan)
}

/// Another one whenever any table, index or trigger has been made, changed or dropped.
fn schema_version(connection: &Connection) -> Result<i64, Error> {
    let select = connection.prepare_cached("PRAGMA schema_version");
    select.and_then(|mut select| select.query_row([], |row| row.get(0))).while_doing("reading the catalogue")
}

/// Puts a table in doubt of which changes may not have been logged; whether there may be such.
fn doubt(connection: &Connection, plan: &Plan, table: &TablePlan) -> Result<bool, Error> {
    gone::refuse_view(connection, table)?;
    let uniques = understood(connection, table, false).while_doing("reading the catalogue")?;
    let earlier = understood(connection, table, true).while_doing("reading the catalogue")?;
    let Some(gap) = untracked::doubt(connection, table, &uniques, &earlier)? else { return Ok(false) };
    if gap == Gap::Triggers {
        refuse_made_anew(connection, table)?;
        if untracked::has_none(connection, table)? || untracked::is_rebuilt(connection, table)? {
            gone::take_over(connection, plan, table)?;
        }
        gone::cascade::set_aside(connection, plan, &table.table.name)?;
    }
    let why = match gap {
        Gap::Triggers => "change tracking was gone",
        Gap::Index => "a unique index is new, and rows may have been replaced through it",
    };
    tracing::warn!(table = table.table.name, "{why}: {}", untracked::what_follows(table));
    Ok(true)
}

/// The application may have made the table anew, as SQLite has it done for most changes of a table: then it must be as one that is adopted.
fn refuse_made_anew(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    let Some(why) = adopt::obstacle(connection, table)? else { return Ok(()) };
    let name = &table.table.name;
    Err(Error::Configuration {
        what: format!(
            "table {name:?} of the model has been made anew, and can't be synchronized so: {why}; nothing is lost: mend it"
        ),
    })
}

/// Takes note of the unique indexes that the application has made.
pub(crate) fn learn_uniques(connection: &Connection, plan: &mut Plan) -> Result<(), Error> {
    for table in &mut plan.tables {
        let found = own_uniques(connection, table, false).while_doing("reading the catalogue")?;
        for (index, _) in found.iter().filter(|(_, unique)| unique.is_none()) {
            tracing::warn!(index, "a unique index is not understood: rows replaced through it are not tracked");
        }
        table.set_own_uniques(found.into_iter().filter_map(|(_, unique)| unique).collect());
    }
    Ok(())
}

/// The tables whose change tracking is not as it must be.
pub(crate) fn untracked(connection: &Connection, plan: &mut Plan) -> Result<Vec<String>, Error> {
    missing::name(connection, plan)?;
    learn_uniques(connection, plan)?;
    let mut names = Vec::new();
    for table in &plan.tables {
        if !has_triggers(connection, table).while_doing("reading the catalogue")? {
            names.push(table.table.name.clone());
        }
    }
    Ok(names)
}

/// Whether a program other than ours has triggers on tables of the model.
pub(crate) fn has_own_triggers(connection: &Connection, plan: &Plan) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE AND name NOT LIKE 'hw\\_%' ESCAPE '\\'";
    let mut select = connection.prepare_cached(sql).while_doing("reading the catalogue")?;
    for table in &plan.tables {
        if select.exists([&table.table.name]).while_doing("reading the catalogue")? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the triggers of a table anew, without those that it needs no more: they would keep the application from dropping columns.
fn create_triggers(connection: &Connection, table: &TablePlan) -> Result<(), Error> {
    let wanted = wanted(connection, table).while_doing("reading the catalogue")?;
    let mut names = made(connection, table).while_doing("reading the catalogue")?;
    // Those on a table that was renamed, and has another in its place now, have the same names.
    names.extend(wanted.iter().map(|trigger| trigger.name.clone()));
    for name in names {
        let drop = format!("DROP TRIGGER IF EXISTS {}", quote(&name));
        connection.execute_batch(&drop).while_doing("creating the triggers")?;
    }
    if let Some((name, sql)) = lacks_whole_index(connection, table).while_doing("reading the catalogue")? {
        let sql = format!("DROP INDEX IF EXISTS {}; {sql}", quote(&name));
        connection.execute_batch(&sql).while_doing("creating the index against writes to parts of a value")?;
    }
    for trigger in wanted {
        connection.execute_batch(&trigger.sql).while_doing("creating the triggers")?;
    }
    untracked::put_in_order(connection, table)?;
    untracked::record(connection, table)
}

/// The triggers that a table is to have, as it stands in the file.
fn wanted(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Vec<Trigger>> {
    let mut uniques = Unique::of_model(&table.table);
    uniques.extend(understood(connection, table, false)?);
    let key = key_traits(connection, table)?;
    Ok(remote_sql::triggers(table.number as usize, &table.table, &uniques, key))
}

/// AUTOINCREMENT stands nowhere but behind a key. SQLite takes NULL in a primary key that is neither the rowid, which has no index, nor declared NOT NULL.
fn key_traits(connection: &Connection, table: &TablePlan) -> rusqlite::Result<KeyTraits> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE origin = 'pk') \
               AND EXISTS (SELECT 1 FROM pragma_table_xinfo(?1) WHERE pk > 0 AND \"notnull\" = 0)";
    let may_be_null = connection.prepare_cached(sql)?.query_row([&table.table.name], |row| row.get(0))?;
    let sql = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE";
    let sql: Option<String> =
        connection.prepare_cached(sql)?.query_row([&table.table.name], |row| row.get(0)).optional()?;
    let is_autoincrement = index_sql::words(&sql.unwrap_or_default()).iter().any(|word| word == "autoincrement");
    Ok(KeyTraits { may_be_null, is_autoincrement })
}

fn has_triggers(connection: &Connection, table: &TablePlan) -> rusqlite::Result<bool> {
    let sql =
        "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name = ? AND tbl_name = ? COLLATE NOCASE AND sql = ?";
    let mut select = connection.prepare_cached(sql)?;
    let wanted = wanted(connection, table)?;
    for trigger in &wanted {
        if !select.exists(params![trigger.name, table.table.name, trigger.sql])? {
            return Ok(false);
        }
    }
    Ok(made(connection, table)?.len() == wanted.len()
        && lacks_whole_index(connection, table)?.is_none()
        && untracked::is_in_order(connection, table)?
        && !is_told_late(connection, table)?)
}

/// Whether triggers of the application's on new rows fire before ours, as the newest does. Where `AUTOINCREMENT` chooses the keys, only ours tells
/// the key of a row that comes behind others of its statement.
fn is_told_late(connection: &Connection, table: &TablePlan) -> rusqlite::Result<bool> {
    if !key_traits(connection, table)?.is_autoincrement {
        return Ok(false);
    }
    let sql = "SELECT 1 FROM sqlite_schema AS own, sqlite_schema AS t WHERE own.type = 'trigger' AND t.type = 'trigger' AND own.name = ?1 \
               AND t.tbl_name = ?2 COLLATE NOCASE AND t.name NOT LIKE 'hw\\_%' ESCAPE '\\' AND t.rowid > own.rowid";
    let inserted = remote_sql::inserted_name(&table.table);
    connection.prepare_cached(sql)?.exists([&inserted, &table.table.name])
}

/// The index that keeps programs from writing to parts of a value, where the table needs it and does not have it.
fn lacks_whole_index(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Option<(String, String)>> {
    let Some((name, sql)) = remote_sql::whole_index(&table.table) else { return Ok(None) };
    let has_rowids = "SELECT 1 FROM pragma_table_list(?) WHERE schema = 'main' AND wr = 0";
    if !connection.prepare_cached(has_rowids)?.exists([&table.table.name])? {
        return Ok(None);
    }
    let is_there =
        "SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = ? AND tbl_name = ? COLLATE NOCASE AND sql = ?";
    let is_there = connection.prepare_cached(is_there)?.exists(params![name, table.table.name, sql])?;
    Ok((!is_there).then_some((name, sql)))
}

/// The names of the triggers that a table has of us.
fn made(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name = ? AND tbl_name = ? COLLATE NOCASE";
    let mut select = connection.prepare_cached(sql)?;
    let mut made = remote_sql::trigger_names(&table.table);
    let mut exists = |name: &String| select.exists(params![name, table.table.name]);
    let is_there = made.iter().map(&mut exists).collect::<rusqlite::Result<Vec<_>>>()?;
    let mut is_there = is_there.into_iter();
    made.retain(|_| is_there.next() == Some(true));
    Ok(made)
}

/// The unique indexes that the application made on a table and that are understood. `names_all`: expressions name every column of the
/// table, as in earlier builds, and not only those that stand in them.
fn understood(connection: &Connection, table: &TablePlan, names_all: bool) -> rusqlite::Result<Vec<Unique>> {
    Ok(own_uniques(connection, table, names_all)?.into_iter().filter_map(|(_, unique)| unique).collect())
}

/// The unique indexes that the application made on a table, by name. `None`: one that is not understood.
fn own_uniques(
    connection: &Connection,
    table: &TablePlan,
    names_all: bool,
) -> rusqlite::Result<Vec<(String, Option<Unique>)>> {
    let sql = "SELECT i.name, s.sql FROM pragma_index_list(?) i JOIN sqlite_schema s ON s.type = 'index' AND s.name = i.name \
               WHERE i.\"unique\" = 1 AND i.origin = 'c' ORDER BY i.name";
    let mut select = connection.prepare_cached(sql)?;
    let found = select.query_map([&table.table.name], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let found: Vec<(String, String)> = found.collect::<Result<_, _>>()?;
    let columns = column_names(connection, table)?;
    let understand = |(name, sql): (String, String)| {
        let used: Vec<String> =
            columns.iter().filter(|column| names_all || index_sql::names(&sql, column)).cloned().collect();
        let unique = own_unique(connection, &name, &sql, &used)?;
        Ok((name, unique))
    };
    found.into_iter().map(understand).collect()
}

fn own_unique(connection: &Connection, name: &str, sql: &str, columns: &[String]) -> rusqlite::Result<Option<Unique>> {
    let Some((texts, filter)) = index_sql::terms(sql) else {
        return Ok(None);
    };
    let mut select =
        connection.prepare_cached("SELECT cid, name, coll FROM pragma_index_xinfo(?) WHERE key = 1 ORDER BY seqno")?;
    let mut rows = select.query([name])?;
    let mut terms = Vec::new();
    while let Some(row) = rows.next()? {
        let (place, column, collation): (i64, Option<String>, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let collation = Some(collation).filter(|collation| collation != "BINARY");
        terms.push(match (place, column, texts.get(terms.len())) {
            (0.., Some(column), _) => Term::Column(column, collation),
            (_, _, Some(text)) => Term::Expression(text.clone(), columns.to_vec()),
            _ => return Ok(None),
        });
    }
    Ok(Some(Unique { terms, filter }))
}

fn column_names(connection: &Connection, table: &TablePlan) -> rusqlite::Result<Vec<String>> {
    let mut select = connection.prepare_cached("SELECT name FROM pragma_table_xinfo(?)")?;
    let names = select.query_map([&table.table.name], |row| row.get(0))?;
    names.collect()
}
