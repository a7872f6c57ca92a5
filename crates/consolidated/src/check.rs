//! The model against the database: what `headwater check` says, and `serve` before it begins.
//!
//! Every violation is a [`Finding`] of its own with the command or edit that mends it. An *error* is something by which rows would be
//! lost, refused or never sent; a *warning* something that works but is likely not what is wanted.

mod kin;
mod parents;
mod privileges;
mod references;
mod scripts;

use headwater_model::remote_sql::declared_type;
use headwater_model::script::Step;
use headwater_model::sql::quote;
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::refresh::OLDER_SNAPSHOT;
use headwater_model::tracking::postgres::{base_table, function_name};
use headwater_model::{Direction, Model, Table};
use headwater_protocol::Type;

pub(crate) use kin::obstacle;
pub use parents::outer_parents;
pub use privileges::{parts_out_of_reach, privileges};
pub use references::unenforced;

use crate::catalogue::{Catalogue, CatalogueColumn, CatalogueTable, Tracking};
use crate::postgres::refresh::{Refreshed, WARNED_DAYS};
use crate::track::{self, catalogue_table};
use crate::{Connection, Dialect, Error, Mode, Plan, postgres, sqlite};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Rows would be lost, refused or never sent.
    Error,
    /// It works, but perhaps not as wanted.
    Warning,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// A stable name for programs.
    pub code: &'static str,
    /// The table, if it is one's.
    pub table: Option<String>,
    /// The column, if it is one's.
    pub column: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What mends it.
    pub mend: String,
}

/// Holds the model against the database.
pub fn check(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<Finding>, Error> {
    let catalogue = connection.catalogue()?;
    let mut findings = against_catalogue(&plan.model, &catalogue, connection.dialect());
    for partition in &plan.model.partitions {
        connection.begin(Mode::Download)?;
        let rows = crate::memberships::probe(connection, partition);
        connection.rollback()?;
        if let Err(error) = rows {
            findings.push(Finding {
                severity: Severity::Error,
                code: "membership_query",
                table: None,
                column: None,
                message: format!("the membership query of partition `{}` fails: {error}", partition.name),
                mend: format!("mend `members` under [partitions.{}] in the model", partition.name),
            });
        }
    }
    findings.extend(tracking_of(connection, plan, |table| catalogue_table(&catalogue, table).is_some())?);
    for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
        let kin = Kin::new(&plan.model, table);
        findings.extend(narrow_sides(connection, &kin)?);
        findings.extend(comes_afresh(connection, &kin)?);
    }
    findings.extend(outer_parents(connection, plan)?);
    findings.extend(scripts::check(connection, plan)?);
    if connection.dialect() == Dialect::Sqlite {
        for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
            findings.extend(replaced_unnoted(connection, table)?);
        }
    }
    findings.sort_by(|a, b| (a.severity, &a.table, &a.column).cmp(&(b.severity, &b.table, &b.column)));
    Ok(findings)
}

/// The part of [`check`] that a server repeats while it runs: whether changes are still noted.
pub fn check_tracking(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<Finding>, Error> {
    tracking_of(connection, plan, |_| true)
}

fn tracking_of(
    connection: &mut dyn Connection,
    plan: &Plan,
    wanted: impl Fn(&Table) -> bool,
) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for table in plan.model.tables.iter().filter(|table| table.is_tracked() && wanted(table)) {
        let kin = Kin::new(&plan.model, table);
        findings.extend(tracking(connection, &kin)?);
        if connection.dialect() == Dialect::Postgres {
            findings.extend(postgres::exposure::findings(connection, &kin)?);
        }
    }
    Ok(findings)
}

/// The part of [`check`] that needs no connection.
pub fn against_catalogue(model: &Model, catalogue: &Catalogue, dialect: Dialect) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in &model.tables {
        match catalogue_table(catalogue, table) {
            Some(found) => TableCheck { model, table, found, dialect, findings: &mut findings }.run(),
            None => findings.push(missing_table(table, catalogue)),
        }
    }
    findings.extend(references::check(model, catalogue));
    findings
}

fn missing_table(table: &Table, catalogue: &Catalogue) -> Finding {
    let elsewhere =
        catalogue.tables.iter().find(|found| found.name == table.name).and_then(|found| found.schema.as_ref());
    Finding {
        severity: Severity::Error,
        code: "table_missing",
        table: Some(table.name.clone()),
        column: None,
        message: "the database has no such table".to_owned(),
        mend: match elsewhere {
            Some(schema) => format!(
                "there is one in schema `{schema}`: write `schema = \"{schema}\"` under [tables.{}]",
                table.name
            ),
            None => "create the table, or take it out of the model; where something else has its name (a view), give the name back".to_owned(),
        },
    }
}

struct TableCheck<'a> {
    model: &'a Model,
    table: &'a Table,
    found: &'a CatalogueTable,
    dialect: Dialect,
    findings: &'a mut Vec<Finding>,
}

impl TableCheck<'_> {
    fn run(mut self) {
        let table = self.table;
        for column in &table.columns {
            match self.found.columns.iter().find(|found| found.name == column.name) {
                None => self.add(
                    Severity::Error,
                    "column_missing",
                    Some(&column.name),
                    "the table has no such column".to_owned(),
                    "add the column, or take it out of the model".to_owned(),
                ),
                Some(found) => self.column(column, found),
            }
        }
        self.columns_left_out();
        self.counters();
        self.key();
        self.references();
        self.parts();
        self.kin();
    }

    fn add(&mut self, severity: Severity, code: &'static str, column: Option<&str>, message: String, mend: String) {
        let (table, column) = (Some(self.table.name.clone()), column.map(str::to_owned));
        self.findings.push(Finding { severity, code, table, column, message, mend });
    }

    fn column(&mut self, column: &headwater_model::Column, found: &CatalogueColumn) {
        let name = Some(column.name.as_str());
        match found.kind {
            None => self.add(
                Severity::Error,
                "type_cannot_travel",
                name,
                format!("type `{}` can't travel", found.declared),
                "take the column out of the model, or change its type".to_owned(),
            ),
            Some(kind) if kind.base != column.kind.base && !self.holds_any_type() => self.add(
                Severity::Error,
                "type_differs",
                name,
                format!("the model says {}, the database `{}`, which is {kind}", column.kind, found.declared),
                format!(
                    "write `{} = \"{kind}{}\"` in the model",
                    column.name,
                    if found.nullable { "" } else { " not null" }
                ),
            ),
            Some(_) => {}
        }
        if found.nullable != column.nullable {
            let (severity, message) = if found.nullable {
                (
                    Severity::Error,
                    "the model says `not null`, but the database may hold NULL: a remote could not store it",
                )
            } else {
                (Severity::Warning, "the model allows NULL, the database does not: such rows would be set aside")
            };
            let mend = if found.nullable { "take out `not null` in the model" } else { "add `not null` in the model" };
            self.add(severity, "nullable_differs", name, message.to_owned(), mend.to_owned());
        }
        if column.kind.base == Type::Decimal && self.dialect == Dialect::Sqlite && !has_text_affinity(&found.declared) {
            self.add(
                Severity::Warning,
                "decimal_affinity",
                name,
                format!("SQLite keeps a `{}` as a floating-point number beyond 15 digits", found.declared),
                "declare the column with TEXT affinity (DECIMAL_TEXT, say) to keep decimals exactly".to_owned(),
            );
        }
    }

    /// SQLite's columns hold what they are given, so a model may read a TEXT column as a date; a value that isn't one travels as text.
    fn holds_any_type(&self) -> bool {
        self.dialect == Dialect::Sqlite
    }

    fn columns_left_out(&mut self) {
        let (table, found) = (self.table, self.found);
        if table.direction == Direction::Download {
            return;
        }
        for column in &found.columns {
            let left_out = !table.columns.iter().any(|mine| mine.name == column.name);
            if left_out && !column.nullable && !column.generated && !column.has_default {
                self.add(
                    Severity::Warning,
                    "required_column_left_out",
                    Some(&column.name),
                    "the column may not be NULL, has no default and is not in the model: rows inserted at remotes would be set aside"
                        .to_owned(),
                    "add the column to the model, give it a default, or use direction = \"download\"".to_owned(),
                );
            }
        }
    }

    /// What remotes add up must be added up exactly at the database, and in the same way.
    fn counters(&mut self) {
        let (table, found) = (self.table, self.found);
        for column in table.sum.iter().filter_map(|place| table.columns.get(*place)) {
            let Some(found) = found.columns.iter().find(|found| found.name == column.name) else { continue };
            let is_exact = found.kind.is_some_and(|kind| match (self.dialect, column.kind.base) {
                (Dialect::Sqlite, Type::Decimal) => {
                    let is_short = column.kind.precision.is_some_and(|(precision, _)| precision <= 15);
                    kind.base == Type::Decimal && (is_short || has_text_affinity(&found.declared))
                }
                _ => kind == column.kind,
            });
            if !is_exact {
                self.add(
                    Severity::Error,
                    "counter_type",
                    Some(&column.name),
                    format!("the counter is {} in the model, and `{}` in the database", column.kind, found.declared),
                    format!("make the column {}, or take it out of `sum`", column.kind),
                );
            }
        }
    }

    fn key(&mut self) {
        let (table, found) = (self.table, self.found);
        let mut key: Vec<&str> = table.key_columns().map(|column| column.name.as_str()).collect();
        key.sort_unstable();
        let sorted = |columns: &[String]| {
            let mut columns: Vec<String> = columns.to_vec();
            columns.sort_unstable();
            columns
        };
        let is_unique = std::iter::once(&found.primary_key).chain(&found.unique).any(|columns| sorted(columns) == key);
        if !is_unique {
            self.add(
                Severity::Error,
                "key_not_unique",
                None,
                format!("the key ({}) has no primary key or unique constraint in the database", key.join(", ")),
                "make it the primary key, or a unique constraint over columns that are NOT NULL".to_owned(),
            );
        }
        for column in table.key_columns() {
            let Some(found) = found.columns.iter().find(|found| found.name == column.name) else { continue };
            if let Some(equality) = &found.equality {
                self.add(
                    Severity::Error,
                    "key_equality",
                    Some(&column.name),
                    format!("keys are compared in another way at a remote than here: {equality}"),
                    "use a column whose equality is that of its bytes as the key".to_owned(),
                );
            }
        }
        self.deferrable_key();
        self.key_affinity();
        self.integer_key();
        self.partition_columns();
    }

    /// PostgreSQL's `ON CONFLICT` takes no deferrable constraint, whatever other index the key has.
    fn deferrable_key(&mut self) {
        let (table, found) = (self.table, self.found);
        if table.direction == Direction::Download || table.is_uploaded_by_scripts() {
            return;
        }
        let is_key = |columns: &[String]| {
            columns.len() == table.key.len() && table.key_columns().all(|column| columns.contains(&column.name))
        };
        let Some(key) = found.deferrable.iter().find(|key| is_key(&key.columns)) else { return };
        let columns: Vec<String> = key.columns.iter().map(|column| quote(column)).collect();
        let kind = if key.is_primary { "PRIMARY KEY" } else { "UNIQUE" };
        self.add(
            Severity::Error,
            "key_deferrable",
            None,
            format!(
                "constraint {:?} of the key is deferrable: the server can't insert rows, which are set aside",
                key.name
            ),
            format!(
                "make it immediate: `ALTER TABLE {} DROP CONSTRAINT {}, ADD {kind} ({})`",
                base_table(table),
                quote(&key.name),
                columns.join(", ")
            ),
        );
    }

    /// A remote keeps a key as it is written; where the file would store another value, the row is refused.
    fn key_affinity(&mut self) {
        let (table, found) = (self.table, self.found);
        let columns =
            table.key_columns().filter(|column| !matches!(column.kind.base, Type::Int | Type::Bool | Type::Real));
        if self.dialect != Dialect::Sqlite || table.direction == Direction::Download {
            return;
        }
        for column in columns {
            let Some(found) = found.columns.iter().find(|found| found.name == column.name) else { continue };
            if sqlite::makes_numbers(&found.declared) {
                self.add(
                    Severity::Warning,
                    "key_affinity",
                    Some(&column.name),
                    format!(
                        "a `{}` stores a key that looks like a number as another value ('7.0' as 7): such rows of remotes are set aside",
                        found.declared
                    ),
                    format!(
                        "declare the column {}, or have remotes write such keys as the database stores them",
                        declared_type(column.kind)
                    ),
                );
            }
        }
    }

    /// One partition may have several spellings, which a remote holds as several.
    fn partition_columns(&mut self) {
        let (table, found) = (self.table, self.found);
        let by_script = table.script(Step::DownloadCursor).is_some();
        for column in table.partition_columns() {
            let Some(found) = found.columns.iter().find(|found| found.name == column.name) else { continue };
            let Some(why) = &found.spellings else { continue };
            let place = table.partition.as_ref().and_then(|own| self.model.partitions.get(own.partition));
            let partition = place.map_or("", |partition| partition.name.as_str());
            let has_none = found.declared == "json";
            let (severity, message, mend) = match (has_none, by_script) {
                (true, _) => (
                    Severity::Error,
                    format!("a value of partition `{partition}` can't be compared: type json has no equality"),
                    "use a text or jsonb column as the partition column",
                ),
                (false, true) => (
                    Severity::Error,
                    format!(
                        "partition `{partition}` is compared in another way here than at a remote ({why}): rows that the table's \
                         download_cursor returns would be missing at remotes"
                    ),
                    "use a column whose equality is that of its bytes as the partition column, or take out `download_cursor`",
                ),
                (false, false) => (
                    Severity::Warning,
                    format!(
                        "values of partition `{partition}`, and its memberships, are equal in several spellings ({why}): each sync asks \
                         the database once more"
                    ),
                    "nothing has to be done; a column whose equality is that of its bytes saves that",
                ),
            };
            self.add(severity, "partition_equality", Some(&column.name), message, mend.to_owned());
        }
    }

    /// Two remotes that make rows offline would choose the same numbers.
    fn integer_key(&mut self) {
        let table = self.table;
        let mut key = table.key_columns();
        if let (Some(column), None) = (key.next(), key.next())
            && column.kind.base == Type::Int
            && table.direction != Direction::Download
            && table.key_range.is_none()
        {
            let name = column.name.clone();
            self.add(
                Severity::Warning,
                "integer_key",
                Some(&name),
                "remotes that insert rows offline may choose the same numbers; the second insert is a conflict"
                    .to_owned(),
                "set `key_range` for the table, use a UUID, or let one place alone insert into it".to_owned(),
            );
        }
    }

    fn references(&mut self) {
        let (table, found) = (self.table, self.found);
        for reference in &found.references {
            let is_in_model = table.references.iter().any(|mine| {
                self.model.tables.get(mine.table).is_some_and(|there| there.name == reference.table)
                    && mine
                        .columns
                        .iter()
                        .filter_map(|&place| table.columns.get(place))
                        .map(|c| &c.name)
                        .eq(&reference.columns)
            });
            let travels = reference.columns.iter().all(|name| table.columns.iter().any(|column| column.name == *name));
            if !is_in_model && travels && table.direction != Direction::Download {
                self.add(
                    Severity::Warning,
                    "reference_not_enforced",
                    None,
                    format!(
                        "the foreign key ({}) to {} is not in the model: a remote would not enforce it, and rows that break it are set aside",
                        reference.columns.join(", "),
                        reference.table
                    ),
                    format!("add it to `references` under [tables.{}], if `{}` is in the model", table.name, reference.table),
                );
            }
        }
    }

    /// Partitions and tables that inherit are followed, but not everywhere.
    fn parts(&mut self) {
        if self.found.has_heirs {
            self.add(
                Severity::Warning,
                "key_across_heirs",
                None,
                "tables inherit from it, and no constraint keeps one key from being in several of them: a remote would hold one of such rows"
                    .to_owned(),
                "keep the keys apart, or make it a partitioned table".to_owned(),
            );
        }
        if self.found.has_foreign_parts && self.table.is_tracked() {
            self.add(
                Severity::Warning,
                "foreign_parts_not_tracked",
                None,
                "a part of the table is on a foreign server: rows written to that part directly, or there, would never reach a remote"
                    .to_owned(),
                "write to the table itself only, or take it out of the model".to_owned(),
            );
        }
    }
}

/// `REPLACE` deletes rows by each unique index, and fires no trigger for them unless `recursive_triggers` is on. Tracking finds those rows
/// by their columns, and can't by an expression.
fn replaced_unnoted(connection: &mut dyn Connection, table: &Table) -> Result<Vec<Finding>, Error> {
    let finding = |index: String| {
        Finding {
        severity: Severity::Warning,
        code: "replace_not_tracked",
        table: Some(table.name.clone()),
        column: None,
        message: format!(
            "unique index {index:?} is on an expression: a row that REPLACE deletes by it is not tracked, and would stay at remotes"
        ),
        mend: "set PRAGMA recursive_triggers = ON on each connection that uses REPLACE, or index a generated column instead".to_owned(),
    }
    };
    Ok(sqlite::unnoted_indexes(connection, &table.name)?.into_iter().map(finding).collect())
}

fn tracking(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Option<Finding>, Error> {
    let message = match track::state(connection, kin)? {
        Tracking::Complete => return Ok(None),
        Tracking::Absent => "changes of the table are not tracked".to_owned(),
        Tracking::Broken(what) | Tracking::Retyped(what) | Tracking::Disabled(what) => {
            format!("change tracking is not as it should be: {what}")
        }
    };
    Ok(Some(Finding {
        severity: Severity::Error,
        code: "not_tracked",
        table: Some(kin.table().name.clone()),
        column: None,
        message,
        mend: "run `headwater track`".to_owned(),
    }))
}

/// Columns of the side table that an older build made, or whose collation was another then.
fn narrow_sides(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Vec<Finding>, Error> {
    if connection.dialect() != Dialect::Postgres {
        return Ok(Vec::new());
    }
    let narrow = postgres::sides::differences(connection, &kin.lineage)?.into_iter().filter(|found| found.is_narrow);
    let finding = |postgres::sides::Difference { column, wanted, found, equals_otherwise, .. }| {
        let (why, mend) = if equals_otherwise {
            (
                "under which other values are equal: the table comes whole at each sync",
                "run `headwater track`: the table comes whole once more",
            )
        } else {
            ("which takes every value of that kind", "run `headwater track`: what remotes have seen stays seen")
        };
        Finding {
            severity: Severity::Warning,
            code: "side_table_narrow",
            table: Some(kin.table().name.clone()),
            column: None,
            message: format!("column {column} of its side table is {found}; it should be {wanted}, {why}"),
            mend: mend.to_owned(),
        }
    };
    Ok(narrow.map(finding).collect())
}

/// Changes that could not be noted are no error: the table comes whole instead. That costs each time, so people are told why.
fn comes_afresh(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Option<Finding>, Error> {
    if connection.dialect() != Dialect::Postgres || !crate::system::is_installed(connection)? {
        return Ok(None);
    }
    let Some(Refreshed { at, cause }) = postgres::refresh::recurring(connection, kin)? else { return Ok(None) };
    let mend = if postgres::refresh::lacked_a_privilege(&cause) {
        mend_by_grants(connection, kin)?
    } else {
        format!("{}; this warning ends {WARNED_DAYS} days after the last such change", mend_of(&cause))
    };
    Ok(Some(Finding {
        severity: Severity::Warning,
        code: "comes_afresh",
        table: Some(kin.table().name.clone()),
        column: None,
        mend,
        message: format!(
            "the table comes whole to remotes after changes that can't be noted one by one, the last at {at} UTC: {cause}"
        ),
    }))
}

/// The owner of the table's function lacks a privilege.
fn mend_by_grants(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<String, Error> {
    let lacked = postgres::own_grants::lacked_by_function(connection, kin)?;
    let grants: Vec<String> = lacked.iter().map(postgres::own_grants::Lack::grant).collect();
    Ok(if grants.is_empty() {
        format!(
            "GRANT the owner of function headwater.{} what the cause names; this warning ends {WARNED_DAYS} days after the last such change",
            function_name(&kin.lineage)
        )
    } else {
        format!("`{}`; this warning ends with the grant", grants.join("; "))
    })
}

/// What the application does about a cause for which a table comes whole. The SQLSTATE is in it.
fn mend_of(cause: &str) -> &'static str {
    let is_of = |classes: &[&str]| classes.iter().any(|class| cause.contains(&format!("({class}")));
    if cause.starts_with(OLDER_SNAPSHOT) {
        "move such rows in READ COMMITTED transactions"
    } else if is_of(&["22", "54"]) {
        "write a shorter value into the key or partition column"
    } else if is_of(&["23"]) {
        "write no NULL into the key columns"
    } else if is_of(&["42804"]) {
        "give the table the key and partition columns that the model says; where it has them, a session that was open when the type of a column \
         changed has made one more change, and there is nothing to mend"
    } else {
        "give the table the key and partition columns that the model says"
    }
}

/// SQLite's rule, <https://www.sqlite.org/datatype3.html#determination_of_column_affinity>: INT first, then CHAR, CLOB, TEXT.
fn has_text_affinity(declared: &str) -> bool {
    let declared = declared.to_ascii_uppercase();
    !declared.contains("INT") && ["CHAR", "CLOB", "TEXT"].iter().any(|word| declared.contains(word))
}
