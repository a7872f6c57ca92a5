//! What the server's role may not do with the model's tables and with Headwater's own (PostgreSQL).

use headwater_model::sql::literal;
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::base_table;
use headwater_model::{Direction, Table};
use headwater_protocol::Value;

use super::{Finding, Severity};
use crate::catalogue::text;
use crate::postgres::grants::{may, may_use_schema};
use crate::postgres::own_grants::{self, Lack};
use crate::postgres::parts;
use crate::{Connection, Dialect, Error, Plan};

/// A finding for each privilege on a table of the model, or on one of Headwater's own, that the connection's role lacks, and for each one
/// that the owner of the functions of change tracking lacks. A right on each of the columns of the model's table is as good as one on the
/// table. SQLite has no privileges.
///
/// They are not part of [`check`](super::check): a server works without those on the model's tables, and sets aside or leaves out what it
/// may not do.
pub fn privileges(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<Finding>, Error> {
    let mut findings: Vec<Finding> = Vec::new();
    if connection.dialect() != Dialect::Postgres {
        return Ok(findings);
    }
    for table in &plan.model.tables {
        if let Some(lack) = on_schema(connection, table)? {
            let message =
                format!("the server's role may not use {}, and so none of its tables", lack.on.to_lowercase());
            add(&mut findings, Some(&table.name), message, &lack);
        }
        findings.extend(on_table(connection, table)?);
    }
    let lacked = own_grants::lacked_by_server(connection, &plan.model)?;
    for lack in &lacked {
        let message = format!("the server's role lacks {} on {}", lack.privilege, lack.on);
        add(&mut findings, None, message, lack);
    }
    for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
        for lack in own_grants::lacked_by_function(connection, &Kin::new(&plan.model, table))? {
            let message = format!(
                "role {}, with whose rights changes of the table are noted, lacks {} on {}",
                lack.role, lack.privilege, lack.on
            );
            add(&mut findings, Some(&table.name), message, &lack);
        }
    }
    if lacked.is_empty() {
        findings.extend(parts_out_of_reach(connection, plan)?);
    }
    Ok(findings)
}

/// A finding for each part of a tracked table on which the connection's role can't make triggers (PostgreSQL).
pub fn parts_out_of_reach(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    if connection.dialect() != Dialect::Postgres || !crate::system::is_installed(connection)? {
        return Ok(findings);
    }
    for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
        for found in parts::out_of_reach(connection, &Kin::new(&plan.model, table).lineage)? {
            findings.push(Finding {
                severity: Severity::Error,
                code: "part_not_tracked",
                table: Some(table.name.clone()),
                column: None,
                message: format!(
                    "{}, a part of the table, has no triggers, and {}: changes made directly to it are not noted, and the table comes whole \
                     at each sync",
                    found.part.qualified(),
                    found.why
                ),
                mend: format!("`{}`, or run `headwater track` as a role that owns the table and the part", found.mend),
            });
        }
    }
    Ok(findings)
}

/// Two findings never call for the same grant.
fn add(findings: &mut Vec<Finding>, table: Option<&str>, message: String, lack: &Lack) {
    let finding = finding(table, message, lack);
    if !findings.iter().any(|known| known.mend == finding.mend) {
        findings.push(finding);
    }
}

/// The privilege on a table's schema, if the role lacks it.
fn on_schema(connection: &mut dyn Connection, table: &Table) -> Result<Option<Lack>, Error> {
    let schema = literal(table.schema.as_deref().unwrap_or("public"));
    let sql =
        format!("SELECT {}, quote_ident(current_user), format('SCHEMA %I', {schema}::text)", may_use_schema(table));
    let rows = connection.query(&sql, &[])?;
    let row = rows.first().filter(|row| row.first() == Some(&Value::Bool(false)));
    Ok(row.map(|row| Lack { role: text(row, 1), privilege: "USAGE".to_owned(), on: text(row, 2) }))
}

/// The privileges on a table of the model.
fn on_table(connection: &mut dyn Connection, table: &Table) -> Result<Vec<Finding>, Error> {
    let needed = match table.direction {
        Direction::Download => &["SELECT"][..],
        _ => &["SELECT", "INSERT", "UPDATE", "DELETE"],
    };
    let mut findings = Vec::new();
    for privilege in needed {
        let rows = connection.query(&lacks(table, privilege), &[])?;
        let Some(row) = rows.first().filter(|row| row.first() == Some(&Value::Bool(true))) else { continue };
        let lack = Lack { role: text(row, 1), privilege: (*privilege).to_owned(), on: text(row, 2) };
        findings.push(finding(Some(&table.name), format!("the server's role may not {privilege}"), &lack));
    }
    Ok(findings)
}

/// Whether the table is there and the role lacks the privilege; the role's name, and the table's.
fn lacks(table: &Table, privilege: &str) -> String {
    let is_needed = |place: usize| match privilege {
        "DELETE" => false,
        "UPDATE" => !table.key.contains(&place),
        _ => true,
    };
    let needed = table.columns.iter().enumerate().filter(|(place, _)| is_needed(*place));
    let needed: Vec<&str> = needed.map(|(_, column)| column.name.as_str()).collect();
    let schema = table.schema.as_deref().unwrap_or("public");
    format!(
        "SELECT coalesce(NOT {}, false), quote_ident(current_user), format('%I.%I', {}::text, {}::text)",
        may(privilege, &base_table(table), &needed),
        literal(schema),
        literal(&table.name)
    )
}

fn finding(table: Option<&str>, message: String, lack: &Lack) -> Finding {
    Finding {
        severity: Severity::Error,
        code: "privilege",
        table: table.map(str::to_owned),
        column: None,
        message,
        mend: format!("`{}`", lack.grant()),
    }
}
