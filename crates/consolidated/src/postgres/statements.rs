//! Statements that are kept prepared.
//!
//! Those on a table are prepared once, when they are first needed, and kept by model and table; those of the engines' own SQL by their
//! text. After an error that is not a row's refusal, a table's statements are forgotten: it may have been altered. Where they are of an earlier
//! transaction the error can be retried. What an altered table takes without an error (a column that was generated, and is no more) is found
//! when an upload commits: the columns of each table are compared with what they were.

use std::collections::HashMap;
use std::sync::Arc;

use headwater_model::sql::with_parameters;
use headwater_model::tracking::postgres::base_table;
use headwater_protocol::Value;
use tokio_postgres::Statement;

use super::bound::Bound;
use super::connection::PostgresConnection;
use super::error::{self, TableFault};
use super::plain::Keeps;
use super::shape::{Shape, Verb, columns_sql, described, unaltered_sql};
use crate::{Connection, Error, Mode, TablePlan};

/// The most statements of the engines' own SQL that are kept; beyond them, all are forgotten and prepared again.
const QUERIES_MAX: usize = 500;

/// What the error says by which a transaction ends that has gone by an outdated shape.
pub(super) const ALTERED: &str = "headwater: a table was altered";

/// What a connection has prepared.
#[derive(Default)]
pub(super) struct Statements {
    tables: HashMap<(u64, u32), Table>,
    queries: HashMap<String, Statement>,
}

/// What is known of a table, and its statements as far as they have been needed.
struct Table {
    shape: Arc<Shape>,
    /// The table's name, and [`described`].
    described: (String, String),
    statements: [Option<Statement>; Verb::COUNT],
    /// An insert ON CONFLICT has found a unique index, not deferrable, of the key: one without it will be refused a second row.
    is_key_unique: bool,
    /// What it makes of changes that are made as they came; `None`: nobody has asked.
    plain: Option<Arc<Keeps>>,
}

impl PostgresConnection {
    /// A table's shape and one of its statements.
    pub(super) fn table(&mut self, plan: &TablePlan, verb: Verb) -> Result<(Arc<Shape>, Statement), Error> {
        self.table_fault = None;
        let (name, shape) = ((plan.fingerprint, plan.number), self.shape(plan)?);
        if let Some(statement) = self.statements.tables.get(&name).and_then(|t| t.statements[verb as usize].as_ref()) {
            return Ok((shape, statement.clone()));
        }
        let prepared = self.prepare(&shape.sql(verb));
        let statement = self.settle(plan, prepared)?;
        if let Some(table) = self.statements.tables.get_mut(&name) {
            table.statements[verb as usize] = Some(statement.clone());
        }
        Ok((shape, statement))
    }

    /// A table's shape.
    pub(super) fn shape(&mut self, plan: &TablePlan) -> Result<Arc<Shape>, Error> {
        self.read_shape(plan).map_err(|error| match error {
            Error::Setup { what, .. } => self.misfit(plan, what),
            other => other,
        })
    }

    /// A table's shape; [`Error::Setup`] where the table does not fit the model.
    pub(super) fn read_shape(&mut self, plan: &TablePlan) -> Result<Arc<Shape>, Error> {
        let name = (plan.fingerprint, plan.number);
        if !self.statements.tables.contains_key(&name) {
            let mut columns = |table| self.query(&columns_sql(), &[Value::text(base_table(table))]);
            let found = columns(&plan.table)?;
            let root = plan.parents.last().map(columns).transpose()?;
            let shape = Arc::new(Shape::new(plan, &found, root.as_ref().unwrap_or(&found))?);
            let (statements, described) = (std::array::from_fn(|_| None), (base_table(&plan.table), described(&found)));
            self.statements
                .tables
                .insert(name, Table { shape, described, statements, is_key_unique: false, plain: None });
            self.state.read_shapes.insert(name);
        }
        self.state.used_shapes.insert(name);
        Ok(self.statements.tables[&name].shape.clone())
    }

    /// Whether a plain insert may be trusted with the table's key.
    pub(super) fn is_key_unique(&self, plan: &TablePlan) -> bool {
        self.statements.tables.get(&(plan.fingerprint, plan.number)).is_some_and(|table| table.is_key_unique)
    }

    /// What is known of how the table keeps rows that are changed as they came.
    pub(super) fn known_keeps(&self, plan: &TablePlan) -> Option<Arc<Keeps>> {
        self.statements.tables.get(&(plan.fingerprint, plan.number))?.plain.clone()
    }

    pub(super) fn note_keeps(&mut self, plan: &TablePlan, keeps: Option<Arc<Keeps>>) {
        if let Some(table) = self.statements.tables.get_mut(&(plan.fingerprint, plan.number)) {
            table.plain = keeps;
        }
    }

    pub(super) fn note_key_is_unique(&mut self, plan: &TablePlan) {
        if let Some(table) = self.statements.tables.get_mut(&(plan.fingerprint, plan.number)) {
            table.is_key_unique = true;
        }
    }

    /// Looks at the result of a statement on a table.
    pub(super) fn settle<T>(&mut self, plan: &TablePlan, result: Result<T, Error>) -> Result<T, Error> {
        let name = (plan.fingerprint, plan.number);
        let is_old = self.statements.tables.contains_key(&name) && !self.state.read_shapes.contains(&name);
        let result = result.map_err(|error| match (error, self.table_fault.take()) {
            (Error::Setup { what, .. }, Some(TableFault::Denied)) => self.denied(plan, what),
            (Error::Setup { what, .. }, Some(TableFault::Keyless)) => self.misfit(plan, what),
            (Error::Setup { what, .. }, Some(TableFault::Deferrable)) => self.deferrable(plan, what),
            (Error::Setup { what: detail, .. } | Error::Database { detail, .. }, Some(TableFault::Misfit))
                if !is_old =>
            {
                self.misfit(plan, detail)
            }
            (other, _) => other,
        });
        if let Err(error) = &result {
            self.state.failed = self.state.mode.is_some();
            if error.refusal().is_none() {
                self.statements.tables.remove(&name);
                if is_old && matches!(error, Error::Database { .. } | Error::Setup { .. }) {
                    return Err(Error::Retry {
                        detail: format!("the table may have been altered: {error}"),
                        broken: false,
                    });
                }
            }
        }
        result
    }

    /// What commits only where the tables whose shapes this transaction has gone by are what they were.
    pub(super) fn commit_sql(&self) -> String {
        let used = self.state.used_shapes.iter().filter_map(|name| self.statements.tables.get(name));
        let unaltered: Vec<String> = used.map(|table| unaltered_sql(&table.described.0, &table.described.1)).collect();
        if self.state.mode != Some(Mode::Upload) || unaltered.is_empty() {
            return "COMMIT".to_owned();
        }
        // Not a constant, which would be looked at whatever the condition.
        format!("SELECT CASE WHEN {} THEN 1 ELSE concat('{ALTERED}')::int END; COMMIT", unaltered.join(" AND "))
    }

    pub(super) fn prepare(&mut self, sql: &str) -> Result<Statement, Error> {
        // By itself, so that its error is told from that of what waits.
        self.send_queued()?;
        let prepared = self.run_steps_alone(async |client| client.prepare(sql).await);
        prepared.map_err(|failure| match self.failure("preparing a statement", &failure) {
            // The statement itself does not fit, so no row is to blame.
            Error::Refused { detail, .. } => Error::Database { context: format!("preparing {sql:?}"), detail },
            other => other,
        })
    }

    /// The prepared form of the engines' own SQL.
    pub(super) fn kept(&mut self, sql: &str) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.queries.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.prepare(&numbered(sql))?;
        self.keep(sql, &statement);
        Ok(statement)
    }

    /// The prepared form, if it is kept.
    pub(super) fn known(&self, sql: &str) -> Option<Statement> {
        self.statements.queries.get(sql).cloned()
    }

    /// Keeps a prepared form.
    pub(super) fn keep(&mut self, sql: &str, statement: &Statement) {
        if self.statements.queries.len() >= QUERIES_MAX {
            self.statements.queries.clear();
        }
        self.statements.queries.insert(sql.to_owned(), statement.clone());
    }

    /// Has what is known of a model's tables read anew.
    pub(super) fn forget_tables(&mut self, fingerprint: u64) {
        self.statements.tables.retain(|(model, _), _| *model != fingerprint);
    }

    /// Has it prepared anew when it is needed next, and what is known of these tables read anew.
    pub(super) fn forget<'p>(&mut self, sql: &str, tables: impl Iterator<Item = &'p TablePlan>) {
        self.statements.queries.remove(sql);
        for plan in tables {
            self.statements.tables.remove(&(plan.fingerprint, plan.number));
        }
    }

    /// The prepared form of the engines' own SQL, and its parameters.
    pub(super) fn bind(&mut self, sql: &str, parameters: &[Value]) -> Result<(Statement, Vec<Bound>), Error> {
        let statement = self.kept(sql)?;
        let bound = bound(sql, &statement, parameters)?;
        Ok((statement, bound))
    }

    /// What a statement of the engines' own SQL failed of.
    pub(super) fn query_failure(&mut self, sql: &str, failure: &tokio_postgres::Error) -> Error {
        let is_remote_busy = sql.contains("NOWAIT") && error::is_not_available(failure);
        self.statements.queries.remove(sql);
        let converted = self.failure(&format!("running {sql:?}"), failure);
        if is_remote_busy { Error::RemoteBusy } else { converted }
    }
}

/// The parameters of a statement in the form that it takes.
pub(super) fn bound(sql: &str, statement: &Statement, parameters: &[Value]) -> Result<Vec<Bound>, Error> {
    let kinds = statement.params();
    if kinds.len() > parameters.len() {
        let detail = format!("{} parameters for {sql:?}, expected {}", parameters.len(), kinds.len());
        return Err(Error::Database { context: "binding parameters".into(), detail });
    }
    Ok(parameters.iter().zip(kinds).map(|(value, kind)| Bound::value(value, kind)).collect())
}

/// A statement with the parameters `$1`, `$2`, ...
pub(super) fn numbered(sql: &str) -> String {
    with_parameters(sql, |name| match name.strip_prefix('?') {
        Some(number) if !number.is_empty() => format!("${number}"),
        _ => name.to_owned(),
    })
}
