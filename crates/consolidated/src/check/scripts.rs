//! The user's scripts: their parameters, whether the database takes them, what they give, and whether it tells what they depend on.

use headwater_model::script::{Parameter, Script, Step};

use super::{Finding, Severity};
use crate::scripts::{Prepared, positional};
use crate::{Connection, Dialect, Error, Mode, Plan, TablePlan};

/// What is wrong with the scripts.
pub(super) fn check(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for table in &plan.tables {
        let faults = table.table.script_faults();
        for (step, fault) in &faults {
            findings.push(finding(table, *step, "script_parameters", fault));
        }
        for script in table.table.scripts.iter().filter(|script| faults.iter().all(|(step, _)| *step != script.step)) {
            let fault = against_database(connection, table, script)?;
            findings.extend(fault.map(|(code, fault)| finding(table, script.step, code, &fault)));
        }
    }
    findings.extend(hidden_transactions(connection, plan)?);
    Ok(findings)
}

fn finding(table: &TablePlan, step: Step, code: &'static str, fault: &str) -> Finding {
    let file = table.table.script(step).map(|script| script.file.clone()).unwrap_or_default();
    Finding {
        severity: Severity::Error,
        code,
        table: Some(table.table.name.clone()),
        column: None,
        message: format!("script {} {fault}", step.name()),
        mend: format!("mend {file}; docs/scripts.md has an example of each"),
    }
}

fn against_database(
    connection: &mut dyn Connection,
    table: &TablePlan,
    script: &Script,
) -> Result<Option<(&'static str, String)>, Error> {
    let lock = script.step == Step::UploadFetch;
    let prepared = Prepared::new(connection.dialect(), table, script, lock)?;
    connection.begin(Mode::Upload)?;
    let described = prepared.describe(connection);
    connection.rollback()?;
    let columns = match described {
        Ok(columns) => columns,
        Err(error @ (Error::Database { .. } | Error::Setup { .. } | Error::Refused { .. })) => {
            return Ok(Some(("script_unprepared", format!("is not taken by the database: {error}"))));
        }
        Err(error) => return Err(error),
    };
    let names = |places: &mut dyn Iterator<Item = &headwater_model::Column>| -> Vec<String> {
        places.map(|column| column.name.clone()).collect()
    };
    let expected = match script.step {
        Step::UploadInsert | Step::UploadUpdate | Step::UploadDelete => return Ok(None),
        Step::DownloadDeleteCursor => names(&mut table.table.key_columns()),
        _ => names(&mut table.table.columns.iter()),
    };
    // Whatever they are called, as many are needed; but those that are called as columns must be in their places.
    let is_misplaced = |(place, name): (usize, &String)| expected[place] != *name && expected.contains(name);
    if columns.len() == expected.len() && !columns.iter().enumerate().any(is_misplaced) {
        return Ok(None);
    }
    let what = format!("gives the columns {}, expected {}", columns.join(", "), expected.join(", "));
    Ok(Some(("script_columns", what)))
}

/// Whether a time of the application's can be relied on: the transactions of all roles must be seen.
fn hidden_transactions(connection: &mut dyn Connection, plan: &Plan) -> Result<Option<Finding>, Error> {
    let dialect = connection.dialect();
    let asks_for_time = |table: &TablePlan| {
        let parameters = table.table.scripts.iter().filter_map(|script| positional(dialect, &table.table, script).ok());
        parameters.flat_map(|(_, parameters)| parameters).any(|parameter| parameter == Parameter::LastDownload)
    };
    let Some(table) = plan.tables.iter().find(|table| asks_for_time(table)) else { return Ok(None) };
    if dialect != Dialect::Postgres {
        return Ok(None);
    }
    let rows =
        connection.query("SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), current_user::text", &[])?;
    let row = rows.first();
    if row.and_then(|row| row.first()) == Some(&headwater_protocol::Value::Bool(true)) {
        return Ok(None);
    }
    let role = row.map(|row| crate::catalogue::text(row, 1)).unwrap_or_default();
    Ok(Some(Finding {
        severity: Severity::Error,
        code: "transactions_hidden",
        table: Some(table.table.name.clone()),
        column: None,
        message:
            "a script asks for :s.last_download, which depends on the transactions of other roles: they can't be seen"
                .to_owned(),
        mend: format!("GRANT pg_read_all_stats TO {}", headwater_model::sql::quote(&role)),
    }))
}
