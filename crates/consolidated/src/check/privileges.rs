//! What the server's role may not do with the model's tables (PostgreSQL).

use headwater_model::tracking::postgres::base_table;
use headwater_model::{Direction, Table};
use headwater_protocol::Value;

use super::{Finding, Severity};
use crate::postgres::grants::may;
use crate::{Connection, Dialect, Error, Plan};

/// A finding for each privilege on a table of the model that the connection's role lacks. A right on each of the columns is as good as one on
/// the table. SQLite has no privileges.
///
/// They are not part of [`check`](super::check): a server works without them, and sets aside or leaves out what it may not do.
pub fn privileges(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    if connection.dialect() != Dialect::Postgres {
        return Ok(findings);
    }
    for table in &plan.model.tables {
        let needed = match table.direction {
            Direction::Download => &["SELECT"][..],
            _ => &["SELECT", "INSERT", "UPDATE", "DELETE"],
        };
        for privilege in needed {
            let rows = connection.query(&lacks(table, privilege), &[])?;
            if rows.first().and_then(|row| row.first()) == Some(&Value::Bool(true)) {
                findings.push(finding(table, privilege));
            }
        }
    }
    Ok(findings)
}

/// Whether the table is there and the role lacks the privilege.
fn lacks(table: &Table, privilege: &str) -> String {
    let is_needed = |place: usize| match privilege {
        "DELETE" => false,
        "UPDATE" => !table.key.contains(&place),
        _ => true,
    };
    let needed = table.columns.iter().enumerate().filter(|(place, _)| is_needed(*place));
    let needed: Vec<&str> = needed.map(|(_, column)| column.name.as_str()).collect();
    format!("SELECT coalesce(NOT {}, false)", may(privilege, &base_table(table), &needed))
}

fn finding(table: &Table, privilege: &str) -> Finding {
    let schema = table.schema.as_deref().unwrap_or("public");
    Finding {
        severity: Severity::Error,
        code: "privilege",
        table: Some(table.name.clone()),
        column: None,
        message: format!("the server's role may not {privilege}"),
        mend: format!("`GRANT {privilege} ON {schema}.{} TO ROLE`, the one of `url` under [database]", table.name),
    }
}
