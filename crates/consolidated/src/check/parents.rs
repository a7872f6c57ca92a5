//! Tables whose rows are changed by statements on other tables (PostgreSQL).

use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::base_table;

use super::{Finding, Severity};
use crate::postgres::parts::{self, OuterParent};
use crate::{Connection, Dialect, Error, Plan};

/// A warning for each table above a tracked table, or above a part of it, that is not below the tracked table itself. A statement on such a
/// table fires no trigger of the tracked one, which comes whole at each sync.
pub fn outer_parents(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    if connection.dialect() != Dialect::Postgres {
        return Ok(findings);
    }
    for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
        let own = base_table(table);
        for found in parts::outer_parents(connection, &Kin::new(&plan.model, table).lineage)? {
            findings.push(Finding {
                severity: Severity::Warning,
                code: "parent_not_followed",
                table: Some(table.name.clone()),
                column: None,
                message: message(&found, &own),
                mend: format!(
                    "`{}`, or put {} into the model instead of the table; nothing has to be done where the table is small",
                    found.mend(),
                    found.parent
                ),
            });
        }
    }
    Ok(findings)
}

fn message(found: &OuterParent, own: &str) -> String {
    let (part, parent) = (found.part.qualified(), &found.parent);
    let part = if part == own { "it".to_owned() } else { format!("{part}, a part of it,") };
    let is = if found.part.is_partition { "is a partition of" } else { "inherits from" };
    format!("{part} {is} {parent}: changes made through {parent} are not noted, and the table comes whole at each sync")
}
