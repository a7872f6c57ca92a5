//! What the server's role may not do with the model's tables (PostgreSQL).

use headwater_model::sql::literal;
use headwater_model::tracking::postgres::base_table;
use headwater_model::{Direction, Table};
use headwater_protocol::Value;

use super::{Finding, Severity};
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
    let id = format!("to_regclass({})", literal(&base_table(table)));
    let by_columns = match privilege {
        "DELETE" => "false".to_owned(),
        _ => {
            let is_needed = |place: &usize| privilege != "UPDATE" || !table.key.contains(place);
            let names = table.columns.iter().enumerate().filter(|(place, _)| is_needed(place));
            let names: Vec<String> = names.map(|(_, column)| literal(&column.name)).collect();
            format!(
                "coalesce((SELECT bool_and(has_column_privilege(a.attrelid, a.attnum, '{privilege}')) FROM pg_catalog.pg_attribute a \
                 WHERE a.attrelid = {id} AND a.attname::text = ANY (ARRAY[{}]::text[])), false)",
                names.join(", ")
            )
        }
    };
    format!("SELECT coalesce(NOT has_table_privilege({id}, '{privilege}') AND NOT {by_columns}, false)")
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
