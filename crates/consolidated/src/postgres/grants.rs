//! A table that can't be used: the server's role lacks a grant on it, or it does not fit the model any more (its key has no unique index, a
//! column was dropped, the table itself). Its changes are set aside, it is left out of downloads, and all else goes on.
//!
//! A statement that fails so ends its transaction. An upload goes back to its savepoint, as for any row that is refused. A download is tried
//! again, and from then on each download asks first which tables can be read, until all of them can.
//!
//! *Caveats.* What a look at the table itself does not show (a policy that reads another table, a side table of another form) ends each download
//! with an error that names the table. So does a fault outside of an upload's savepoint.

use std::sync::atomic::Ordering;

use headwater_model::Table;
use headwater_model::sql::literal;
use headwater_model::tracking::postgres::{base_table, side_table, table_id};
use headwater_protocol::Value;
use headwater_protocol::message::{Refusal, RefusalCode};

use super::connection::PostgresConnection;
use crate::{Connection as _, Error, Mode, TablePlan};

const MEND: &str = "grant it to the user of the database's URL, or run Headwater as the owner of the tables";
const FIT: &str = "give the table the columns of the model and a primary key (not deferrable) of its key; `headwater check` says what differs, \
                   `headwater track` installs what is missing of change tracking";

impl PostgresConnection {
    /// What it means that a statement on a table lacks a grant.
    pub(super) fn denied(&mut self, plan: &TablePlan, what: String) -> Error {
        let table = &plan.table.name;
        match self.state.mode {
            Some(Mode::Upload) => {
                tracing::warn!(table, what, mend = MEND, "a privilege is missing: changes of this table are set aside");
                let message = format!("privilege: the server may not make this change of table {table}");
                Error::Refused { refusal: Refusal { code: RefusalCode::Policy, message }, detail: what }
            }
            Some(Mode::Download) if self.leaves_out() => retry(table, &what),
            _ => Error::Setup { what, mend: MEND.to_owned() },
        }
    }

    /// What it means that a table does not fit the model.
    pub(super) fn misfit(&mut self, plan: &TablePlan, what: String) -> Error {
        self.unfit(plan, what, "does not fit the model")
    }

    /// The same of a table whose key's constraint is deferrable.
    pub(super) fn deferrable(&mut self, plan: &TablePlan, what: String) -> Error {
        self.unfit(plan, what, "has a deferrable key, by which no row can be inserted")
    }

    fn unfit(&mut self, plan: &TablePlan, what: String, fault: &str) -> Error {
        let table = &plan.table.name;
        match self.state.mode {
            Some(Mode::Upload) if self.state.savepoint => {
                tracing::warn!(
                    table,
                    what,
                    mend = FIT,
                    "a table does not fit the model: changes of this table are set aside"
                );
                let message = format!(
                    "setup: table {table} of the consolidated database {fault}; \
                     `headwater check` there says what to fix, the row is not at fault"
                );
                Error::Refused { refusal: Refusal { code: RefusalCode::Policy, message }, detail: what }
            }
            Some(Mode::Download) if self.leaves_out() => retry(table, &what),
            _ => Error::Misfit { table: table.clone(), what, mend: FIT.to_owned() },
        }
    }

    /// Whether downloads ask from now on which tables can be read. A fault elsewhere, in a policy's table say, is found by no look at the
    /// tables.
    fn leaves_out(&self) -> bool {
        !self.is_found_readable && !self.lacks_tables.swap(true, Ordering::Relaxed)
    }

    /// Of each of these tables, whether downloads leave it out.
    pub(super) fn which_are_withheld(&mut self, plans: &[&TablePlan]) -> Result<Vec<bool>, Error> {
        self.is_found_readable = false;
        if plans.is_empty() || !self.lacks_tables.load(Ordering::Relaxed) {
            return Ok(vec![false; plans.len()]);
        }
        let may_read: Vec<String> = plans.iter().map(|plan| may_read(plan)).collect();
        let rows = self.query(&format!("SELECT {}", may_read.join(", ")), &[])?;
        let row = rows.first().map(Vec::as_slice).unwrap_or_default();
        let mut withheld: Vec<bool> =
            (0..plans.len()).map(|place| row.get(place) != Some(&Value::Bool(true))).collect();
        for (plan, is_withheld) in plans.iter().zip(&mut withheld) {
            let table = &plan.table.name;
            // First, since a table or a column that is not there lacks its grants too.
            if let Err(Error::Setup { what, .. }) = self.read_shape(plan) {
                tracing::warn!(table, what, mend = FIT, "a table does not fit the model: it is left out of downloads");
                *is_withheld = true;
            } else if *is_withheld {
                tracing::warn!(table, mend = MEND, "a privilege is missing: this table is left out of downloads");
            }
        }
        if !withheld.contains(&true) {
            self.lacks_tables.store(false, Ordering::Relaxed);
            self.is_found_readable = true;
        }
        Ok(withheld)
    }
}

fn retry(table: &str, what: &str) -> Error {
    Error::Retry { detail: format!("table {table} will be left out of downloads: {what}"), broken: false }
}

/// Whether a table, those it takes its partition from, and its side table may be read.
fn may_read(plan: &TablePlan) -> String {
    let mut tests = Vec::new();
    let own = plan.table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>();
    tests.push(format!("coalesce({}, false)", may("SELECT", &base_table(&plan.table), &own)));
    for parent in &plan.parents {
        let id = table_id(&literal(&base_table(parent)));
        tests.push(format!("coalesce(has_any_column_privilege({id}, 'SELECT'), false)"));
    }
    for table in std::iter::once(&plan.table).chain(&plan.parents) {
        tests.push(format!("coalesce({}, false)", may_use_schema(table)));
    }
    if plan.table.is_tracked() {
        let side = literal(&side_table(&plan.lineage()));
        tests.push(format!("coalesce(has_table_privilege(to_regclass({side}), 'SELECT'), false)"));
    }
    tests.join(" AND ")
}

/// Whether the role may use the schema of a table; NULL where there is no such schema.
pub(crate) fn may_use_schema(table: &Table) -> String {
    let schema = literal(table.schema.as_deref().unwrap_or("public"));
    format!("(SELECT has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_namespace n WHERE n.nspname = {schema})")
}

/// Whether the role has a privilege on a table or on all of these columns of it; NULL where there is no such table.
pub(crate) fn may(privilege: &str, table: &str, columns: &[&str]) -> String {
    let id = table_id(&literal(table));
    let columns: Vec<String> = columns.iter().map(|column| literal(column)).collect();
    format!(
        "(has_table_privilege({id}, '{privilege}') OR coalesce((SELECT bool_and(has_column_privilege(a.attrelid, a.attnum, '{privilege}')) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = {id} AND a.attname::text = ANY (ARRAY[{}]::text[])), false))",
        columns.join(", ")
    )
}
