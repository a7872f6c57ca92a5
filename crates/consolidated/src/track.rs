//! Installing and removing change tracking.
//!
//! What a table's tracking consists of is generated (`headwater_model::tracking`); here is decided what of it is missing. A table whose
//! tracking is replaced may have missed changes. In PostgreSQL such a table comes whole to remotes. In SQLite, and where the table was
//! untracked meanwhile, a new incarnation begins: remotes start afresh. Both keep their pending changes. Tracking a table for the first time does not: no remote has seen anything of it. Nor does tracking that is as it was made, by an
//! older build or before a column was widened: it is brought up to date where it is.

use headwater_model::tracking::{self, Kin, TrackedTable, UniqueIndex};
pub(crate) use headwater_model::tracking::{base_name, tracked_name};
use headwater_model::{Lineage, Table};
use headwater_protocol::Value;
use sha2::{Digest, Sha256};

use crate::catalogue::{Catalogue, CatalogueTable, Tracking};
use crate::system::{self, bytes, dialect_sql};
use crate::{Connection, Dialect, Error, Mode, Plan, postgres, sqlite};

/// The SQL that [`track`] would run now, in order.
pub fn plan_tracking(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    let mut statements = Vec::new();
    if system::is_installed(connection)? {
        statements.extend(system::missing_columns(connection)?);
    } else {
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
    // What was done to tables before is not taken for what is done here.
    match connection.dialect() {
        Dialect::Sqlite => sqlite::identity::look(connection)?,
        Dialect::Postgres => postgres::table_identity::settle_all(connection, plan)?,
    }
    let steps = missing(connection, plan)?;
    for step in &steps {
        for statement in &step.statements {
            connection.batch(statement)?;
        }
        if let Some(cause) = step.repair.cause() {
            postgres::refresh::append(connection, &step.kin, cause)?;
        }
        remember(connection, step)?;
    }
    if connection.dialect() == Dialect::Postgres {
        postgres::parts::make_due(connection, plan)?;
    }
    if steps.iter().any(|step| step.repair == Repair::Replace) {
        system::renew_incarnation(connection)?;
    }
    match connection.dialect() {
        Dialect::Sqlite => sqlite::identity::record(connection)?,
        Dialect::Postgres => {
            postgres::table_identity::record(connection, &steps.iter().map(|step| &step.kin).collect::<Vec<_>>())?;
        }
    }
    Ok(steps.into_iter().flat_map(|step| step.statements).collect())
}

/// The SQL that [`untrack`] would run.
pub fn plan_untracking(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    if !system::is_installed(connection)? {
        return Ok(Vec::new());
    }
    let dialect = connection.dialect();
    Ok(plan.model.tables.iter().flat_map(|table| uninstall(dialect, &Kin::new(&plan.model, table))).collect())
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
        let name = tracked_name(&table.lineage());
        if connection.dialect() == Dialect::Postgres {
            connection.batch(&postgres::parts::forget_all(&name))?;
            connection.batch(&postgres::table_identity::forget(&name))?;
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
                functions.push(postgres::table_identity::forget(&name));
                functions
            }
        });
        statements.push(format!("DROP TABLE IF EXISTS {side_table}"));
    }
    Ok(statements)
}

/// How long ago a remote has synced whose version is in use.
const LATELY_DAYS: u32 = 30;

/// Versions that none of these models is and that remotes have used in the last 30 days: another configuration may serve them. A line for
/// each.
pub fn used_lately(connection: &mut dyn Connection, plans: &[Plan]) -> Result<Vec<String>, Error> {
    if !system::is_installed(connection)? {
        return Ok(Vec::new());
    }
    let since = match connection.dialect() {
        Dialect::Sqlite => format!("strftime('%Y-%m-%d %H:%M:%f', 'now', '-{LATELY_DAYS} days')"),
        Dialect::Postgres => format!("clock_timestamp() - interval '{LATELY_DAYS} days'"),
    };
    let sql = format!(
        "SELECT model, model_version, count(*), CAST(max(last_sync_at) AS text) FROM {{hw}}remote WHERE last_sync_at > {since} \
         GROUP BY model, model_version ORDER BY model, model_version"
    );
    let rows = connection.query(&dialect_sql(connection.dialect(), &sql), &[])?;
    let of = |row: &headwater_protocol::Row| {
        (
            crate::catalogue::text(row, 0),
            crate::catalogue::integer(row, 1),
            crate::catalogue::integer(row, 2),
            crate::catalogue::text(row, 3),
        )
    };
    let is_served = |name: &str, version: i64| {
        plans.iter().any(|plan| plan.model.name == name && i64::from(plan.model.version) == version)
    };
    let used = rows.iter().map(of).filter(|(name, version, ..)| !is_served(name, *version));
    Ok(used
        .map(|(name, version, count, last)| {
            format!("model {name:?} version {version}: {count} remotes, the last on {last}")
        })
        .collect())
}

/// Removes the tracking that no table of these models uses: that of a version which has retired. Remotes of the others go on. To
/// track it again begins a new incarnation.
pub fn untrack_unused(connection: &mut dyn Connection, plans: &[Plan]) -> Result<Vec<String>, Error> {
    connection.begin(Mode::Upload)?;
    let removed = untrack_unused_inside(connection, plans);
    crate::finish(connection, removed)
}

fn untrack_unused_inside(connection: &mut dyn Connection, plans: &[Plan]) -> Result<Vec<String>, Error> {
    let statements = plan_untracking_unused(connection, plans)?;
    for (name, _) in unused(connection, plans)? {
        forget_tracked(connection, &name)?;
    }
    statements.iter().try_for_each(|statement| connection.batch(statement))?;
    Ok(statements)
}

/// What is tracked, by name and side table, and used by none of these models.
fn unused(connection: &mut dyn Connection, plans: &[Plan]) -> Result<Vec<(String, String)>, Error> {
    if !system::is_installed(connection)? {
        return Ok(Vec::new());
    }
    let tables = plans.iter().flat_map(|plan| &plan.tables).filter(|table| table.table.is_tracked());
    let used: Vec<String> = tables.map(|table| tracked_name(&table.lineage())).collect();
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
struct Step<'p> {
    table_name: String,
    side_table: String,
    statements: Vec<String>,
    hash: Vec<u8>,
    repair: Repair,
    kin: Kin<'p>,
}

/// How a table's tracking is made what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Repair {
    /// There is none yet, and no remote has seen anything of the table.
    Install,
    /// It has noted all changes until now, as an older build made it or with narrower columns: what remotes have seen stays seen. With a
    /// reason, its side table begins anew, and the table comes afresh.
    InPlace(Option<String>),
    /// Triggers are off, or enabled in another way than they were made: they are enabled, and the table comes afresh.
    Enable,
    /// PostgreSQL: a part of it is missing or was changed, this is which. All of it is made anew, and the table comes afresh.
    Renew(String),
    /// It may have missed something: all of it is made anew, and the incarnation too.
    Replace,
}

impl Repair {
    /// The statements before those that install.
    fn before(&self, dialect: Dialect, kin: &Kin<'_>) -> Vec<String> {
        match self {
            Repair::Install | Repair::InPlace(None) | Repair::Enable => Vec::new(),
            Repair::InPlace(Some(_)) => {
                vec![format!("DROP TABLE IF EXISTS {}", tracking::postgres::side_table(&kin.lineage))]
            }
            Repair::Renew(_) | Repair::Replace => uninstall(dialect, kin),
        }
    }

    /// Why the table comes afresh; `None`: it does not, or everything does.
    fn cause(&self) -> Option<&str> {
        match self {
            Repair::InPlace(cause) => cause.as_deref(),
            Repair::Enable => Some(postgres::trigger_states::CAUSE),
            Repair::Renew(cause) => Some(cause),
            Repair::Install | Repair::Replace => None,
        }
    }
}

/// `is_recorded`: the table is tracked, or has been.
fn repair(
    connection: &mut dyn Connection,
    kin: &Kin<'_>,
    state: &Tracking,
    is_recorded: bool,
) -> Result<Repair, Error> {
    let is_postgres = connection.dialect() == Dialect::Postgres;
    Ok(match state {
        Tracking::Disabled(_) if postgres::sides::has_columns(connection, &kin.lineage)? => Repair::Enable,
        Tracking::Broken(what) if is_postgres && is_installed(connection, &kin.lineage)? => Repair::Renew(what.clone()),
        Tracking::Absent if !is_recorded => Repair::Install,
        Tracking::Retyped(what) if is_postgres => Repair::InPlace(Some(what.clone())),
        Tracking::Complete if is_postgres && postgres::sides::has_columns(connection, &kin.lineage)? => {
            let unequal = postgres::sides::unequal(connection, &kin.lineage)?;
            Repair::InPlace(unequal.map(|column| format!("the collation of column {} was changed", column.column)))
        }
        _ => Repair::Replace,
    })
}

/// Whether a table was tracked until something happened to its tracking, and not untracked.
fn is_installed(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<bool, Error> {
    let sql = "SELECT count(*) FROM {hw}tracked WHERE table_name = ?1 AND installed_hash IS NOT NULL";
    let sql = dialect_sql(connection.dialect(), sql);
    let rows = connection.query(&sql, &[Value::text(tracked_name(lineage))])?;
    Ok(rows.first().is_some_and(|row| crate::catalogue::integer(row, 0) > 0))
}

/// Whether a side table has columns that are narrower than they should be.
fn is_narrow(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<bool, Error> {
    match connection.dialect() {
        Dialect::Sqlite => Ok(false),
        Dialect::Postgres => Ok(!postgres::sides::differences(connection, &kin.lineage)?.is_empty()),
    }
}

/// The statements for the parts of a table.
fn of_parts(connection: &mut dyn Connection, kin: &Kin<'_>, repair: &Repair) -> Result<Vec<String>, Error> {
    match (connection.dialect(), repair) {
        (Dialect::Sqlite, _) => Ok(Vec::new()),
        (_, Repair::InPlace(_) | Repair::Enable) => postgres::parts::rearm(connection, &kin.lineage),
        (_, Repair::Install | Repair::Renew(_) | Repair::Replace) => postgres::parts::install(connection, &kin.lineage),
    }
}

/// The tables whose tracking is not as it should be.
fn missing<'p>(connection: &mut dyn Connection, plan: &'p Plan) -> Result<Vec<Step<'p>>, Error> {
    let catalogue = connection.catalogue()?;
    let mut steps = Vec::new();
    for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
        let found = catalogue_table(&catalogue, table).ok_or_else(|| Error::Setup {
            what: format!("the database has no table {}", table.name),
            mend: "run `headwater check` to see what else differs from the model".into(),
        })?;
        let kin = Kin::new(&plan.model, table);
        if let Some(what) = crate::check::obstacle(&kin, found) {
            let what = format!("changes of table {} can't be followed: {what}", table.name);
            return Err(Error::Setup { what, mend: "run `headwater check` for what mends it".into() });
        }
        let definition = definition(connection, &kin, found)?;
        let recorded = recorded_hash(connection, &kin.lineage)?;
        let state = state(connection, &kin)?;
        let is_narrow = is_narrow(connection, &kin)?;
        let is_current = recorded.as_ref() == Some(&definition.hash) && !is_narrow;
        if state == Tracking::Complete && is_current {
            continue;
        }
        let repair = repair(connection, &kin, &state, recorded.is_some())?;
        let mut statements = repair.before(connection.dialect(), &kin);
        if repair != Repair::Enable || !is_current {
            statements.extend(definition.statements);
            statements.extend(of_parts(connection, &kin, &repair)?);
        }
        if repair == Repair::Enable {
            statements.extend(postgres::trigger_states::enable(connection, &kin)?);
        }
        steps.push(Step {
            table_name: tracked_name(&kin.lineage),
            side_table: definition.side_table,
            statements,
            hash: definition.hash,
            repair,
            kin,
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
    kin: &Kin<'_>,
    found: &CatalogueTable,
) -> Result<Definition, Error> {
    let table = kin.table();
    let declared = declared(table, found)?;
    let dialect = connection.dialect();
    let unique = match dialect {
        Dialect::Sqlite => sqlite::unique_indexes(connection, &table.name)?,
        Dialect::Postgres => found.unique.iter().map(|columns| plain_index(columns)).collect(),
    };
    let tracked = TrackedTable { kin, declared: &declared, unique: &unique };
    let (side_table, statements) = match dialect {
        Dialect::Sqlite => (tracking::sqlite::side_table(&kin.lineage), tracking::sqlite::install(&tracked)),
        Dialect::Postgres => (tracking::postgres::side_table(&kin.lineage), tracking::postgres::install(&tracked)),
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
pub fn state(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Tracking, Error> {
    match connection.dialect() {
        Dialect::Sqlite => sqlite::tracking(connection, kin),
        Dialect::Postgres => postgres::tracking(connection, kin),
    }
}

fn uninstall(dialect: Dialect, kin: &Kin<'_>) -> Vec<String> {
    match dialect {
        Dialect::Sqlite => tracking::sqlite::uninstall(kin),
        Dialect::Postgres => tracking::postgres::uninstall(kin),
    }
}

/// The table of the catalogue that the model means.
pub(crate) fn catalogue_table<'c>(catalogue: &'c Catalogue, table: &Table) -> Option<&'c CatalogueTable> {
    let default = |schema: &Option<String>| schema.clone().filter(|schema| schema != "public");
    let mut found = catalogue.tables.iter().chain(&catalogue.partitions);
    found.find(|found| found.name == table.name && default(&found.schema) == default(&table.schema))
}

/// The hash of the tracking that was installed for a table; `None`: none was, or Headwater's own tables are missing.
pub(crate) fn recorded_hash(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<Option<Vec<u8>>, Error> {
    if !system::is_installed(connection)? {
        return Ok(None);
    }
    let sql = dialect_sql(connection.dialect(), "SELECT definition_hash FROM {hw}tracked WHERE table_name = ?1");
    let rows = connection.query(&sql, &[Value::text(tracked_name(lineage))])?;
    rows.first().map(|row| bytes(row.first(), "definition_hash")).transpose()
}

fn remember(connection: &mut dyn Connection, step: &Step<'_>) -> Result<(), Error> {
    let installed = match connection.dialect() {
        Dialect::Sqlite => sqlite::installed_hash(connection, &step.kin)?,
        Dialect::Postgres => postgres::installed_hash(connection, &step.kin)?,
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
    connection.execute(&dialect_sql(connection.dialect(), sql), &values)?;
    if connection.dialect() == Dialect::Postgres {
        let sql = "UPDATE headwater.tracked SET installed_at = clock_timestamp() WHERE table_name = ?1";
        connection.execute(sql, &[Value::text(step.table_name.as_str())])?;
    }
    Ok(())
}
