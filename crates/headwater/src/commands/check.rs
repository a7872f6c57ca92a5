//! `headwater check`: the model against the database.

use clap::Args;
use headwater_consolidated::check::{Finding, Severity, check, privileges};
use headwater_consolidated::{Connection, Error, Plan};
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
    let findings = each_once(&mut *connection, &plans, |connection, plan| {
        let mut found = privileges(connection, plan)?;
        match check(connection, plan) {
            Ok(more) => found.extend(more),
            Err(Error::Setup { what, mend }) if !found.is_empty() => found.push(unchecked(&what, mend)),
            Err(error) => return Err(error),
        }
        found.sort_by_key(|finding| finding.severity);
        Ok(found)
    })?;
    let errors = findings.iter().filter(|(_, finding)| finding.severity == Severity::Error).count();
    let answer = json!({ "errors": errors, "findings": findings.iter().map(as_json).collect::<Vec<_>>() });
    output.answer(&answer, |output| {
        for (found_in, finding) in &findings {
            let title = title(found_in, &plans);
            output.line(format!("{}: {title}{}{}", word(finding), place(finding), finding.message))?;
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

/// Without a privilege on one of Headwater's own tables nothing more can be looked at.
fn unchecked(what: &str, mend: String) -> Finding {
    let message = format!("the rest can't be checked: {what}");
    Finding { severity: Severity::Error, code: "privilege", table: None, column: None, message, mend }
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

/// A finding, and the models in which it was found: versions of a model often have the same one.
pub(super) type Found<'p> = (Vec<&'p Plan>, Finding);

/// Checks all models. A finding of several models is there once.
pub(super) fn check_all<'p>(connection: &mut dyn Connection, plans: &'p [Plan]) -> Result<Vec<Found<'p>>, Error> {
    each_once(connection, plans, check)
}

/// What is found in all models, each finding once.
pub(super) fn each_once<'p>(
    connection: &mut dyn Connection,
    plans: &'p [Plan],
    find: impl Fn(&mut dyn Connection, &Plan) -> Result<Vec<Finding>, Error>,
) -> Result<Vec<Found<'p>>, Error> {
    let mut all: Vec<Found<'p>> = Vec::new();
    for plan in plans {
        for finding in find(connection, plan)? {
            match all.iter_mut().find(|(_, known)| *known == finding) {
                Some((found_in, _)) if found_in.last().is_some_and(|last| std::ptr::eq(*last, plan)) => {}
                Some((found_in, _)) => found_in.push(plan),
                None => all.push((vec![plan], finding)),
            }
        }
    }
    Ok(all)
}

/// Which models, where there are several.
pub(super) fn title(found_in: &[&Plan], plans: &[Plan]) -> String {
    if plans.len() == 1 {
        return String::new();
    }
    let named = found_in.iter().enumerate().map(|(place, plan)| {
        let (name, version) = (&plan.model.name, plan.model.version);
        let is_named = place > 0 && found_in[place - 1].model.name == *name;
        if is_named { version.to_string() } else { format!("{name} version {version}") }
    });
    named.collect::<Vec<_>>().join(", ") + ": "
}

fn as_json((found_in, finding): &Found<'_>) -> serde_json::Value {
    let models: Vec<_> =
        found_in.iter().map(|plan| json!({ "model": plan.model.name, "version": plan.model.version })).collect();
    let first = found_in.first().map(|plan| &plan.model);
    json!({
        "model": first.map(|model| &model.name), "version": first.map(|model| model.version), "models": models,
        "severity": word(finding), "code": finding.code, "table": finding.table, "column": finding.column,
        "message": finding.message, "mend": finding.mend,
    })
}
