//! `headwater query`: named queries, without a server or by a cursor of one.

mod cursor;
mod run;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use headwater_consolidated::results::{Placeholder, ReadOptions, ResultColumn};
use headwater_consolidated::{Error, QueryConnection};
use headwater_gateway::query::{Query, QueryError, Who};
use headwater_model::sql::{Syntax, moments};
use serde_json::json;

use crate::Done;
use crate::cli::Global;
use crate::config::{Config, Queries};
use crate::exit::Exit;
use crate::output::{Output, counted};

const CHECK_EXAMPLES: &str = "\
Examples:
  headwater query check
  headwater query check --json | jq '.faults[].file'

Every query of the folder ([gateway] queries) is read and prepared by the database; none is run. Exit code 1 where one has a fault.";

/// The arguments.
#[derive(Debug, Args)]
pub struct QueryArgs {
    #[command(subcommand)]
    command: QueryCommand,
}

#[derive(Debug, Subcommand)]
enum QueryCommand {
    /// Have the database prepare every named query, and tell what is wrong
    #[command(after_help = CHECK_EXAMPLES)]
    Check,
    /// Run a named query here, or at a server by a cursor
    #[command(after_help = run::EXAMPLES)]
    Run(run::RunArgs),
}

/// Checks queries, or runs one.
pub fn run(args: &QueryArgs, global: &Global, output: &Output) -> Done {
    match &args.command {
        QueryCommand::Check => check(&Config::read(global)?, output),
        QueryCommand::Run(args) if args.cursor.cursor => cursor::run(args, output),
        QueryCommand::Run(args) => run::run_one(args, &Config::read(global)?, output),
    }
}

/// The named queries, and all that is wrong with them, as the database sees it too.
pub(super) fn checked(config: &Config) -> Result<Queries> {
    let (queries, mut faults) = config.queries()?;
    let (mut connection, placeholder) = config.database.connect_for_queries()?;
    for (file, query) in &queries {
        faults.extend(prepared(&mut *connection, placeholder, file, query)?);
    }
    faults.sort_by(|one, other| (&one.file, one.line).cmp(&(&other.file, other.line)));
    Ok((queries, faults))
}

fn check(config: &Config, output: &Output) -> Done {
    let (queries, faults) = checked(config)?;
    let warnings = moments_of(config, &queries);
    let as_json = |fault: &QueryError| json!({ "file": fault.file, "line": fault.line, "message": fault.text });
    let answer = json!({
        "queries": queries.iter().map(|(_, query)| &query.name).collect::<Vec<_>>(),
        "faults": faults.iter().map(as_json).collect::<Vec<_>>(),
        "warnings": warnings.iter().map(as_json).collect::<Vec<_>>(),
    });
    output.answer(&answer, |output| {
        for fault in &faults {
            output.line(format!("error: {fault}"))?;
        }
        for warning in &warnings {
            output.line(format!("warning: {warning}"))?;
        }
        let rows = queries.iter().map(|(_, query)| described(query));
        output.table(&["query", "who", "arguments", "max_age_s"], rows)?;
        match faults.len() {
            0 => {
                let count = queries.len();
                output.line(format!(
                    "{count} {}, as the database takes them",
                    if count == 1 { "query" } else { "queries" }
                ))
            }
            count => output.line(counted(count, "fault")),
        }
    })?;
    Ok(if faults.is_empty() { Exit::Done } else { Exit::Found })
}

/// Texts of queries for PostgreSQL that it reads as the time (`'now'`), each by its line.
fn moments_of(config: &Config, queries: &[(PathBuf, Query)]) -> Vec<QueryError> {
    if config.database.syntax() != Syntax::Postgres {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    for (file, query) in queries {
        let mut warn = |line, text: &str| {
            let text = format!(
                "{text} is read when the statement is prepared, so that is done for each run, and tracked tables don't tell whether \
                 the answer has changed: write now() or current_date (what is meant as a text is better a parameter)"
            );
            warnings.push(QueryError { file: file.display().to_string(), line, text });
        };
        if let Some(sql) = &query.freshness.sql {
            let line = query.line_of("freshness");
            moments(sql).into_iter().filter(|moment| moment.is_plain).for_each(|moment| warn(line, &sql[moment.place]));
        }
        for moment in moments(&query.sql).into_iter().filter(|moment| moment.is_plain) {
            let before = &query.sql[..moment.place.start];
            warn(query.line + before.matches('\n').count(), &query.sql[moment.place]);
        }
    }
    warnings
}

fn described(query: &Query) -> Vec<String> {
    let who = match &query.who {
        Who::Public => "anybody".to_owned(),
        Who::Known => "users".to_owned(),
        Who::Users(users) => users.join(", "),
    };
    let arguments = query.parameters.iter().map(|parameter| {
        let optional = if parameter.default.is_some() { "?" } else { "" };
        format!("{}{optional} {}", parameter.name, parameter.kind.name())
    });
    vec![query.name.clone(), who, arguments.collect::<Vec<_>>().join(", "), query.freshness.max_age_s.to_string()]
}

/// What the database finds wrong with a query.
pub(super) fn prepared(
    connection: &mut dyn QueryConnection,
    placeholder: Placeholder,
    file: &Path,
    query: &Query,
) -> Result<Option<QueryError>> {
    let fault = |line, text| Some(QueryError { file: file.display().to_string(), line, text });
    let (sql, freshness) = query.numbered(placeholder);
    if let Some(sql) = freshness {
        match connection.columns(&sql, &ReadOptions::default()) {
            Ok(_) => {}
            Err(Error::Sql { detail, .. } | Error::Column { detail }) => {
                return Ok(fault(query.line_of("freshness"), format!("freshness: {detail}")));
            }
            Err(error) => return Err(error).context("preparing the queries"),
        }
    }
    match connection.columns(&sql, &options(query)) {
        Ok(columns) => {
            let mut names = BTreeSet::new();
            let twice = columns.iter().find(|column| !names.insert(&column.name));
            let paged = query.page.iter().flat_map(|page| page.by.iter().map(|(name, _)| ("page_by", name)));
            let mut said = query.types.keys().map(|name| ("types", name)).chain(paged);
            let unknown = said.find(|(_, name)| !columns.iter().any(|column| column.name == **name));
            match (twice, unknown) {
                (Some(column), _) => {
                    let text = format!("two columns are called {:?}: name one of them by AS", column.name);
                    Ok(fault(query.line, text))
                }
                (_, Some((key, name))) => {
                    let line = query.line_of(&format!("{key}.{name}"));
                    Ok(fault(line, format!("{key} has the column {name:?}, which the query does not give")))
                }
                _ => {
                    let found = page_fault(connection, placeholder, query, &columns)?;
                    Ok(found.and_then(|(line, text)| fault(line, text)))
                }
            }
        }
        Err(Error::Sql { detail, line, .. }) => Ok(fault(query.line + line.unwrap_or(0), detail)),
        Err(Error::Column { detail }) => Ok(fault(query.line, detail)),
        Err(error) => Err(error).context("preparing the queries"),
    }
}

/// What is wrong with the pages of a query that is else sound, and in which line.
fn page_fault(
    connection: &mut dyn QueryConnection,
    placeholder: Placeholder,
    query: &Query,
    columns: &[ResultColumn],
) -> Result<Option<(usize, String)>> {
    let of_type = columns.iter().find_map(|column| Some((&column.name, query.page_fault(&column.name, column.kind)?)));
    if let Some((name, text)) = of_type {
        return Ok(Some((query.line_of(&format!("page_by.{name}")), text)));
    }
    let Some(sql) = query.numbered_page(placeholder) else { return Ok(None) };
    match connection.columns(&sql, &options(query)) {
        Ok(_) => Ok(None),
        Err(Error::Sql { detail, .. } | Error::Column { detail }) => {
            Ok(Some((query.line_of("page_by"), format!("page_by: the database can't take pages of it: {detail}"))))
        }
        Err(error) => Err(error).context("preparing the queries"),
    }
}

fn options(query: &Query) -> ReadOptions {
    ReadOptions { time_out: query.limits.time_out, types: query.types.clone() }
}
