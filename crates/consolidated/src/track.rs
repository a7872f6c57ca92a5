//! Installing and removing change tracking.
//!
//! What a table's tracking consists of is generated (`headwater_model::tracking`); here is decided what of it is missing. A table whose
//! tracking is replaced may have missed changes, so that begins a new incarnation: remotes start afresh, with their pending changes
//! kept. Tracking a table for the first time does not: no remote has seen anything of it.

use headwater_model::Table;
use headwater_model::tracking::{self, TrackedTable, UniqueIndex};
use headwater_protocol::Value;
use sha2::{Digest, Sha256};

use crate::catalogue::{Catalogue, CatalogueTable, Tracking};
use crate::system::{self, bytes, dialect_sql};
use crate::{Connection, Dialect, Error, Mode, Plan, postgres, sqlite};

/// The SQL that [`track`] would run now, in order.
pub fn plan_tracking(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    let mut statements = Vec::new();
    if !system::is_installed(connection)? {
        statements.extend(system::table_statements(connection.dialect()));
    }
    statements.extend(missing(connection, plan)?.into_iter().flat_map(|step| step.statements));
    Ok(statements)
}

/// Makes Headwater's own tables and the tracking of the model's; harmless where all is there. Gives what was run, Headwater's own
/// tables aside.
pub fn track(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    system::install(connection)?;
    connection.begin(Mode::Upload)?;
    let tracked = track_inside(connection, plan);
    let statements = crate::finish(connection, tracked)?;
    connection.adopt_parts(plan)?;
    Ok(statements)
}

fn track_inside(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    let steps = missing(connection, plan)?;
    for step in &steps {
        for statement in &step.statements {
            connection.batch(statement)?;
        }
        remember(connection, step)?;
    }
    if steps.iter().any(|step| step.replaces) {
        system::renew_incarnation(connection)?;
    }
    Ok(steps.into_iter().flat_map(|step| step.statements).collect())
}

/// The SQL that [`untrack`] would run.
pub fn plan_untracking(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    if !system::is_installed(connection)? {
        return Ok(Vec::new());
    }
    let dialect = connection.dialect();
    Ok(plan.tables.iter().flat_map(|table| uninstall(dialect, &table.table)).collect())
}

/// Removes the tracking of the model's tables. Headwater's own tables stay: they know the remotes.
pub fn untrack(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    let statements = plan_untracking(connection, plan)?;
    if statements.is_empty() {
        return Ok(statements);
    }
    connection.begin(Mode::Upload)?;
    let removed = untrack_inside(connection, plan, &statements);
    crate::finish(connection, removed)?;
    Ok(statements)
}

fn untrack_inside(connection: &mut dyn Connection, plan: &Plan, statements: &[String]) -> Result<(), Error> {
    for statement in statements {
        connection.batch(statement)?;
    }
    for table in &plan.tables {
        let name = tracked_name(&table.table);
        if connection.dialect() == Dialect::Postgres {
            connection.batch(&postgres::parts::forget_all(&name))?;
        }
        forget_tracked(connection, &name)?;
    }
    system::renew_incarnation(connection)
}

/// The SQL that [`untrack_unused`] would run.
pub fn plan_untracking_unused(connection: &mut dyn Connection, plans: &[Plan]) -> Result<Vec<String>, Error> {
    let mut statements = Vec::new();
    for (name, side_table) in unused(connection, plans)? {
        statements.extend(match connection.dialect() {
            Dialect::Sqlite => sqlite::triggers_into(connection, &side_table)?,
            Dialect::Postgres => {
                let mut functions = postgres::functions_into(connection, &side_table)?;
                functions.push(postgres::parts::forget_all(&name));
                functions
            }
        });
        statements.push(format!("DROP TABLE IF EXISTS {side_table}"));
    }
    Ok(statements)
}

/// Removes the tracking that no table of these models uses: that of a version which has retired. Remotes of the others go on. To
/// track it again begins a new incarnation.
pub fn untrack_unused(connection: &mut dyn Connection, plans: &[Plan]) -> Result<Vec<String>, Error> {
    let statements = plan_untracking_unused(connection, plans)?;
    if statements.is_empty() {
        return Ok(statements);
    }
    connection.begin(Mode::Upload)?;
    let removed = (|| {
        for (name, _) in unused(connection, plans)? {
            forget_tracked(connection, &name)?;
        }
        statements.iter().try_for_each(|statement| connection.batch(statement))
    })();
    crate::finish(connection, removed)?;
    Ok(statements)
}

/// What is tracked, by name and side table, and used by none of these models.
fn unused(connection: &mut dyn Connection, plans: &[Plan]) -> Result<Vec<(String, String)>, Error> {
    if !system::is_installed(connection)? {
        return Ok(Vec::new());
    }
    let tables = plans.iter().flat_map(|plan| &plan.tables).map(|table| &table.table);
    let used: Vec<String> = tables.filter(|table| table.is_tracked()).map(tracked_name).collect();
    let sql = "SELECT table_name, side_table FROM {hw}tracked WHERE installed_hash IS NOT NULL ORDER BY table_name";
    let rows = connection.query(&dialect_sql(connection.dialect(), sql), &[])?;
    let found = rows.iter().map(|row| (crate::catalogue::text(row, 0), crate::catalogue::text(row, 1)));
    Ok(found.filter(|(name, _)| !used.contains(name)).collect())
}

/// The record stays, without a hash: what happens until the table is tracked again is missed, so that will begin a new incarnation.
fn forget_tracked(connection: &mut dyn Connection, name: &str) -> Result<(), Error> {
    let sql = "UPDATE {hw}tracked SET definition_hash = ?2, installed_hash = NULL WHERE table_name = ?1";
    let sql = dialect_sql(connection.dialect(), sql);
    connection.execute(&sql, &[Value::text(name), Value::Bytes(Vec::new())]).map(drop)
}

/// What is to be done for one table.
struct Step {
    table_name: String,
    side_table: String,
    statements: Vec<String>,
    hash: Vec<u8>,
    /// Whether there was tracking before that may have missed something.
    replaces: bool,
    table: Table,
}

/// The tables whose tracking is not as it should be.
fn missing(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<Step>, Error> {
    let catalogue = connection.catalogue()?;
    let mut steps = Vec::new();
    for table in plan.tables.iter().map(|table| &table.table).filter(|table| table.is_tracked()) {
        let found = catalogue_table(&catalogue, table).ok_or_else(|| Error::Setup {
            what: format!("the database has no table {}", table.name),
            mend: "run `headwater check` to see what else differs from the model".into(),
        })?;
        let definition = definition(connection, table, found)?;
        let recorded = recorded_hash(connection, table)?;
        let state = state(connection, table)?;
        let is_current = state == Tracking::Complete && recorded.as_ref() == Some(&definition.hash);
        if is_current {
            continue;
        }
        let replaces = recorded.is_some() || state != Tracking::Absent;
        let mut statements = if replaces { uninstall(connection.dialect(), table) } else { Vec::new() };
        statements.extend(definition.statements);
        if connection.dialect() == Dialect::Postgres {
            statements.extend(postgres::parts::install(connection, table)?);
        }
        steps.push(Step {
            table_name: tracked_name(table),
            side_table: definition.side_table,
            statements,
            hash: definition.hash,
            replaces,
            table: table.clone(),
        });
    }
    Ok(steps)
}

/// The tracking that a table should have.
pub(crate) struct Definition {
    side_table: String,
    statements: Vec<String>,
    pub(crate) hash: Vec<u8>,
}

/// What the tracking of a table is to be.
pub(crate) fn definition(
    connection: &mut dyn Connection,
    table: &Table,
    found: &CatalogueTable,
) -> Result<Definition, Error> {
    let declared = declared(table, found)?;
    let dialect = connection.dialect();
    let unique = match dialect {
        Dialect::Sqlite => sqlite::unique_indexes(connection, &table.name)?,
        Dialect::Postgres => found.unique.iter().map(|columns| plain_index(columns)).collect(),
    };
    let tracked = TrackedTable { table, declared: &declared, unique: &unique };
    let (side_table, statements) = match dialect {
        Dialect::Sqlite => (tracking::sqlite::side_table(table), tracking::sqlite::install(&tracked)),
        Dialect::Postgres => (tracking::postgres::side_table(table), tracking::postgres::install(&tracked)),
    };
    let mut hash = Sha256::new();
    for statement in &statements {
        hash.update(statement.as_bytes());
        hash.update([0]);
    }
    Ok(Definition { side_table, statements, hash: hash.finalize().to_vec() })
}

fn declared(table: &Table, found: &CatalogueTable) -> Result<Vec<String>, Error> {
    let type_of = |column: &headwater_model::Column| {
        let there = found.columns.iter().find(|there| there.name == column.name);
        there.map(|there| there.declared.clone()).ok_or_else(|| Error::Setup {
            what: format!("table {} has no column {}", table.name, column.name),
            mend: "run `headwater check` to see what else differs from the model".into(),
        })
    };
    table.columns.iter().map(type_of).collect()
}

fn plain_index(columns: &[String]) -> UniqueIndex {
    UniqueIndex { columns: columns.iter().map(|column| (column.clone(), None)).collect() }
}

/// The state of a table's tracking.
pub fn state(connection: &mut dyn Connection, table: &Table) -> Result<Tracking, Error> {
    match connection.dialect() {
        Dialect::Sqlite => sqlite::tracking(connection, table),
        Dialect::Postgres => postgres::tracking(connection, table),
    }
}

fn uninstall(dialect: Dialect, table: &Table) -> Vec<String> {
    match dialect {
        Dialect::Sqlite => tracking::sqlite::uninstall(table),
        Dialect::Postgres => tracking::postgres::uninstall(table),
    }
}

/// The table of the catalogue that the model means.
pub(crate) fn catalogue_table<'c>(catalogue: &'c Catalogue, table: &Table) -> Option<&'c CatalogueTable> {
    let default = |schema: &Option<String>| schema.clone().filter(|schema| schema != "public");
    catalogue.tables.iter().find(|found| found.name == table.name && default(&found.schema) == default(&table.schema))
}

/// How a table is named in `tracked`: each layout by itself.
pub(crate) fn tracked_name(table: &Table) -> String {
    base_name(table) + &tracking::layout(table)
}

/// How a table is named whatever its layout.
pub(crate) fn base_name(table: &Table) -> String {
    match table.schema.as_deref().filter(|schema| *schema != "public") {
        Some(schema) => format!("{schema}.{}", table.name),
        None => table.name.clone(),
    }
}

/// The hash of the tracking that was installed for a table; `None`: none was, or Headwater's own tables are missing.
pub(crate) fn recorded_hash(connection: &mut dyn Connection, table: &Table) -> Result<Option<Vec<u8>>, Error> {
    if !system::is_installed(connection)? {
        return Ok(None);
    }
    let sql = dialect_sql(connection.dialect(), "SELECT definition_hash FROM {hw}tracked WHERE table_name = ?1");
    let rows = connection.query(&sql, &[Value::text(tracked_name(table))])?;
    rows.first().map(|row| bytes(row.first(), "definition_hash")).transpose()
}

fn remember(connection: &mut dyn Connection, step: &Step) -> Result<(), Error> {
    let installed = match connection.dialect() {
        Dialect::Sqlite => sqlite::installed_hash(connection, &step.table)?,
        Dialect::Postgres => postgres::installed_hash(connection, &step.table)?,
    };
    let sql = "INSERT INTO {hw}tracked (table_name, side_table, definition_hash, installed_hash) VALUES (?1, ?2, ?3, ?4) \
               ON CONFLICT (table_name) DO UPDATE SET side_table = excluded.side_table, \
               definition_hash = excluded.definition_hash, installed_hash = excluded.installed_hash";
    let values = [
        Value::text(step.table_name.as_str()),
        Value::text(step.side_table.as_str()),
        Value::Bytes(step.hash.clone()),
        Value::Bytes(installed),
    ];
    connection.execute(&dialect_sql(connection.dialect(), sql), &values).map(|_| ())
}
