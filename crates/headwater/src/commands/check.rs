//! `headwater check`: the model against the database.

use clap::Args;
use headwater_consolidated::Plan;
use headwater_consolidated::check::{Finding, Severity, check, privileges};
use serde_json::json;

use crate::Done;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{Output, counted};

const EXAMPLES: &str = "\
Examples:
  headwater check
  headwater check --json | jq '.findings[] | select(.severity == \"error\")'

Exit code 1 where there is an error; warnings alone are 0.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {}

/// Checks, and tells what was found.
pub fn run(_: &CheckArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let plans = config.plans()?;
    let mut connection = config.database.connect()?;
    let mut findings = Vec::new();
    for plan in &plans {
        let mut found = check(&mut *connection, plan)?;
        found.extend(privileges(&mut *connection, plan)?);
        found.sort_by_key(|finding| finding.severity);
        findings.extend(found.into_iter().map(|finding| (plan, finding)));
    }
    let errors = findings.iter().filter(|(_, finding)| finding.severity == Severity::Error).count();
    let answer = json!({ "errors": errors, "findings": findings.iter().map(as_json).collect::<Vec<_>>() });
    output.answer(&answer, |output| {
        for (plan, finding) in &findings {
            output.line(format!("{}: {}{}{}", word(finding), title(plan, &plans), place(finding), finding.message))?;
            output.line(format!("    {}", finding.mend))?;
        }
        let warnings = findings.len() - errors;
        output.line(match (errors, warnings) {
            (0, 0) => {
                let tables = plans.iter().map(|plan| plan.tables.len()).sum();
                format!("as the model says, and tracked: {}", counted(tables, "table"))
            }
            _ => format!("{}, {}", counted(errors, "error"), counted(warnings, "warning")),
        })
    })?;
    Ok(if errors == 0 { Exit::Done } else { Exit::Found })
}

fn word(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

/// Where it was found, before what.
pub(super) fn place(finding: &Finding) -> String {
    match (&finding.table, &finding.column) {
        (Some(table), Some(column)) => format!("{table}.{column}: "),
        (Some(table), None) => format!("{table}: "),
        _ => String::new(),
    }
}

/// Which model, where there are several.
pub(super) fn title(plan: &Plan, plans: &[Plan]) -> String {
    if plans.len() == 1 { String::new() } else { format!("{} version {}: ", plan.model.name, plan.model.version) }
}

fn as_json((plan, finding): &(&Plan, Finding)) -> serde_json::Value {
    json!({
        "model": plan.model.name, "version": plan.model.version,
        "severity": word(finding), "code": finding.code, "table": finding.table, "column": finding.column,
        "message": finding.message, "mend": finding.mend,
    })
}
