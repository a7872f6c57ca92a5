//! `headwater query`: named queries, without a server.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use headwater_consolidated::results::{Placeholder, ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Error, QueryConnection};
use headwater_gateway::format::{Column, Encoder, Format, Unfit};
use headwater_gateway::query::{Query, QueryError, Who};
use headwater_protocol::ValueRef;
use serde_json::json;

use crate::Done;
use crate::cli::Global;
use crate::config::{Config, Queries};
use crate::exit::{Exit, OrUsage as _, usage};
use crate::output::{Output, counted};

const CHECK_EXAMPLES: &str = "\
Examples:
  headwater query check
  headwater query check --json | jq '.faults[].file'

Every query of the folder ([gateway] queries) is read and prepared by the database; none is run. Exit code 1 where one has a fault.";

const RUN_EXAMPLES: &str = "\
Examples:
  headwater query run flights origin=JFK month=7
  headwater query run flights origin=JFK --format csv > flights.csv
  headwater query run flights origin=JFK --format arrow > flights.arrow
  headwater query run own --user anna

Arguments are held against the query's head, as those of a request are.";

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
    /// Run a named query here
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The query: its file's name without .sql.
    name: String,
    /// Its arguments.
    #[arg(value_name = "NAME=VALUE", value_parser = pair)]
    arguments: Vec<(String, String)>,
    /// In which form.
    #[arg(long, value_enum, default_value = "table")]
    format: Shown,
    /// Who asks, where the query has :s.user.
    #[arg(long, default_value = "")]
    user: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// For people.
    Table,
    /// One object; rows as objects.
    Json,
    /// A JSON object a line.
    Ndjson,
    /// With a line of names.
    Csv,
    /// An Arrow IPC stream.
    Arrow,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} has no =, expected NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Checks queries, or runs one.
pub fn run(args: &QueryArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    match &args.command {
        QueryCommand::Check => check(&config, output),
        QueryCommand::Run(args) => run_one(args, &config, output),
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
    let as_json = |fault: &QueryError| json!({ "file": fault.file, "line": fault.line, "message": fault.text });
    let answer = json!({
        "queries": queries.iter().map(|(_, query)| &query.name).collect::<Vec<_>>(),
        "faults": faults.iter().map(as_json).collect::<Vec<_>>(),
    });
    output.answer(&answer, |output| {
        for fault in &faults {
            output.line(format!("error: {fault}"))?;
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
            Err(Error::Sql { detail, .. }) => return Ok(fault(1, format!("freshness: {detail}"))),
            Err(error) => return Err(error).context("preparing the queries"),
        }
    }
    match connection.columns(&sql, &options(query)) {
        Ok(columns) => {
            let mut names = BTreeSet::new();
            let twice = columns.iter().find(|column| !names.insert(&column.name));
            let paged = query.page.iter().flat_map(|page| page.by.iter().map(|(name, _)| name));
            let unknown =
                query.types.keys().chain(paged).find(|name| !columns.iter().any(|column| column.name == **name));
            Ok(match (twice, unknown) {
                (Some(column), _) => {
                    fault(query.line, format!("two columns are called {:?}: name one of them by AS", column.name))
                }
                (_, Some(name)) => {
                    fault(1, format!("[types] or page_by has the column {name:?}, which the query does not give"))
                }
                _ => None,
            })
        }
        Err(Error::Sql { detail, line }) => Ok(fault(query.line + line.unwrap_or(0), detail)),
        Err(error) => Err(error).context("preparing the queries"),
    }
}

fn options(query: &Query) -> ReadOptions {
    ReadOptions { time_out: query.limits.time_out, types: query.types.clone() }
}

fn run_one(args: &RunArgs, config: &Config, output: &Output) -> Done {
    let (queries, faults) = config.queries()?;
    let found = queries.iter().map(|(_, query)| query).find(|query| query.name == args.name);
    let Some(query) = found else {
        if let Some(fault) = faults.iter().find(|fault| Path::new(&fault.file).file_stem() == Some(args.name.as_ref()))
        {
            return Err(usage(format!("{fault} (headwater query check tells all)")));
        }
        let known = queries.iter().map(|(_, query)| query.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(usage(format!("there is no query {:?}, expected one of {known}", args.name)));
    };
    let pairs = args.arguments.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let arguments = query.arguments(pairs).or_usage(|| format!("{} can't be run so", query.name))?;
    let (mut connection, placeholder) = config.database.connect_for_queries()?;
    let (sql, parameters) = query.whole_statement(&arguments, &args.user, placeholder);
    let format = match args.format {
        Shown::Table if output.is_json() => Some(Format::Json),
        Shown::Table => None,
        Shown::Json => Some(Format::Json),
        Shown::Ndjson => Some(Format::Ndjson),
        Shown::Csv => Some(Format::Csv),
        Shown::Arrow if std::io::stdout().is_terminal() => {
            return Err(usage("an Arrow stream is no text for a terminal: send it on, as --format arrow > rows.arrow"));
        }
        Shown::Arrow => Some(Format::Arrow),
    };
    let read = match format {
        Some(format) => {
            let mut written = Written { format, encoder: None, failed: None };
            let read = connection.read(&sql, &parameters, &options(query), &mut written);
            written.end(read)
        }
        None => {
            let mut rows = Rows::default();
            let read = connection.read(&sql, &parameters, &options(query), &mut rows).map_err(Into::into);
            read.and_then(|()| rows.show(output))
        }
    };
    read.with_context(|| format!("{} could not be run", query.name))?;
    Ok(Exit::Done)
}

/// A value that the form has no room for: the query can't be run so.
fn unfit(unfit: &Unfit) -> Error {
    Error::Sql { detail: unfit.to_string(), line: None }
}

/// Writes rows as they come.
struct Written {
    format: Format,
    encoder: Option<Encoder>,
    failed: Option<std::io::Error>,
}

impl Written {
    fn flush(&mut self) -> Result<(), Error> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        let done = std::io::stdout().lock().write_all(&encoder.take());
        done.map_err(|error| {
            self.failed = Some(error);
            Error::Database { context: "writing rows".to_owned(), detail: "standard output took no more".to_owned() }
        })
    }

    fn end(mut self, read: Result<(), Error>) -> Result<()> {
        let done = read.and_then(|()| {
            if let Some(encoder) = &mut self.encoder {
                encoder.end(None).map_err(|error| unfit(&error))?;
            }
            self.flush()
        });
        match self.failed {
            Some(error) => Err(anyhow!(error).context("writing rows")),
            None => Ok(done?),
        }
    }
}

impl ResultSink for Written {
    fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), Error> {
        self.encoder = Some(Encoder::begin(self.format, columns.iter().map(Column::from).collect()));
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        encoder.row(values).map_err(|error| unfit(&error))?;
        if encoder.waiting() > 1 << 16 { self.flush() } else { Ok(()) }
    }
}

/// Rows for people: the first of them.
#[derive(Default)]
struct Rows {
    names: Vec<String>,
    shown: Vec<Vec<String>>,
    more: u64,
}

/// How many are shown.
const SHOWN_MAX: usize = 1_000;

impl ResultSink for Rows {
    fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), Error> {
        self.names = columns.iter().map(|column| column.name.clone()).collect();
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        if self.shown.len() == SHOWN_MAX {
            self.more += 1;
            return Ok(());
        }
        self.shown.push(values.iter().map(|value| headwater_gateway::query::text_of(&value.to_value())).collect());
        Ok(())
    }
}

impl Rows {
    fn show(self, output: &Output) -> Result<()> {
        let head: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let count = self.shown.len() as u64 + self.more;
        output.table(&head, self.shown)?;
        let more = if self.more > 0 {
            format!(", of which the first {SHOWN_MAX} are shown (--format csv has all)")
        } else {
            String::new()
        };
        output.note(format!("{}{more}", counted(count as usize, "row")));
        Ok(())
    }
}
