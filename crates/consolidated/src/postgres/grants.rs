//! A table that the server's role may not use: its changes are set aside, it is left out of downloads, and all else goes on.
//!
//! A statement that fails for want of a grant ends its transaction. An upload goes back to its savepoint, as for any row that is refused. A
//! download is tried again, and from then on each download asks first which tables the role may read, until it may read all of them.

use std::sync::atomic::Ordering;

use headwater_model::sql::literal;
use headwater_model::tracking::postgres::{base_table, side_table};
use headwater_protocol::Value;
use headwater_protocol::message::{Refusal, RefusalCode};

use super::connection::PostgresConnection;
use crate::{Connection as _, Error, Mode, TablePlan};

const MEND: &str = "grant it to the user of the database's URL, or run Headwater as the owner of the tables";

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
            // A grant that is missing elsewhere, in a policy's table say, is found by no look at the tables.
            Some(Mode::Download) if !self.is_found_readable && !self.lacks_grants.swap(true, Ordering::Relaxed) => {
                Error::Retry { detail: format!("table {table} will be left out of downloads: {what}"), broken: false }
            }
            _ => Error::Setup { what, mend: MEND.to_owned() },
        }
    }

    /// Of each of these tables, whether downloads leave it out.
    pub(super) fn which_are_withheld(&mut self, plans: &[&TablePlan]) -> Result<Vec<bool>, Error> {
        self.is_found_readable = false;
        if plans.is_empty() || !self.lacks_grants.load(Ordering::Relaxed) {
            return Ok(vec![false; plans.len()]);
        }
        let may_read: Vec<String> = plans.iter().map(|plan| may_read(plan)).collect();
        let rows = self.query(&format!("SELECT {}", may_read.join(", ")), &[])?;
        let row = rows.first().map(Vec::as_slice).unwrap_or_default();
        let withheld: Vec<bool> = (0..plans.len()).map(|place| row.get(place) != Some(&Value::Bool(true))).collect();
        for (plan, _) in plans.iter().zip(&withheld).filter(|(_, is_withheld)| **is_withheld) {
            tracing::warn!(
                table = plan.table.name,
                mend = MEND,
                "a privilege is missing: this table is left out of downloads"
            );
        }
        if !withheld.contains(&true) {
            self.lacks_grants.store(false, Ordering::Relaxed);
            self.is_found_readable = true;
        }
        Ok(withheld)
    }
}

/// Whether a table, those it takes its partition from, and its side table may be read.
fn may_read(plan: &TablePlan) -> String {
    let mut tests = Vec::new();
    let own = plan.table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>();
    tests.push(format!("coalesce({}, false)", may("SELECT", &base_table(&plan.table), &own)));
    for parent in &plan.parents {
        tests.push(format!(
            "coalesce(has_any_column_privilege(to_regclass({}), 'SELECT'), false)",
            literal(&base_table(parent))
        ));
    }
    if plan.table.is_tracked() {
        let side = literal(&side_table(&plan.lineage()));
        tests.push(format!("coalesce(has_table_privilege(to_regclass({side}), 'SELECT'), false)"));
    }
    tests.join(" AND ")
}

/// Whether the role has a privilege on a table or on all of these columns of it; NULL where there is no such table.
pub(crate) fn may(privilege: &str, table: &str, columns: &[&str]) -> String {
    let id = format!("to_regclass({})", literal(table));
    let columns: Vec<String> = columns.iter().map(|column| literal(column)).collect();
    format!(
        "(has_table_privilege({id}, '{privilege}') OR coalesce((SELECT bool_and(has_column_privilege(a.attrelid, a.attnum, '{privilege}')) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = {id} AND a.attname::text = ANY (ARRAY[{}]::text[])), false))",
        columns.join(", ")
    )
}
