//! `headwater query run`: a named query, here and now, within the limits of its head.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, ValueEnum};
use headwater_consolidated::Error;
use headwater_consolidated::results::{ResultColumn, ResultSink};
use headwater_gateway::format::{Column, Encoder, Format, Unfit, texts_fit};
use headwater_gateway::query::{Keys, Query, QueryError, QueryLimits, text_of};
use headwater_protocol::ValueRef;
use serde_json::json;

use super::cursor::CursorArgs;
use super::options;
use crate::Done;
use crate::config::Config;
use crate::exit::{Exit, OrUsage as _, usage};
use crate::output::{Output, counted};

pub(super) const EXAMPLES: &str = "\
Examples:
  headwater query run flights origin=JFK month=7
  headwater query run flights origin=JFK --format csv > flights.csv
  headwater query run flights origin=JFK --format arrow > flights.arrow
  headwater query run own --user anna
  headwater query run flights origin=JFK --cursor --server https://sync.example.com
  headwater query run 'SELECT * FROM flight WHERE origin = ?' --sql --value JFK --cursor --server https://sync.example.com

Arguments are held against the query's head, as those of a request are, and so is the answer: exit code 2 where it has more rows or bytes, or
takes longer, than rows_max, bytes_max and time_out_s say (of a query in pages each page; all are given, in their order), and where two rows
have one key at a page's end, or one has NULL in it. With --cursor a server runs it, and rows are printed as they come, without a table's
frame.";

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The query: its file's name without .sql.
    pub(super) name: String,
    /// Its arguments.
    #[arg(value_name = "NAME=VALUE", value_parser = pair)]
    pub(super) arguments: Vec<(String, String)>,
    /// In which form.
    #[arg(long, value_enum, default_value = "table")]
    format: Shown,
    /// Who asks, where the query has :s.user; of a cursor, who is let in.
    #[arg(long)]
    pub(super) user: Option<String>,
    #[command(flatten)]
    pub(super) cursor: CursorArgs,
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

impl RunArgs {
    /// In which form rows are wanted; `None`: for people.
    pub(super) fn format(&self, output: &Output) -> Result<Option<Format>> {
        Ok(match self.format {
            Shown::Table if output.is_json() => Some(Format::Json),
            Shown::Table => None,
            Shown::Json => Some(Format::Json),
            Shown::Ndjson => Some(Format::Ndjson),
            Shown::Csv => Some(Format::Csv),
            Shown::Arrow if std::io::stdout().is_terminal() => {
                let mend = "send it on, as --format arrow > rows.arrow";
                return Err(usage(format!("an Arrow stream is no text for a terminal: {mend}")));
            }
            Shown::Arrow => Some(Format::Arrow),
        })
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} has no =, expected NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The query of a name.
fn named<'q>(name: &str, queries: &'q [(PathBuf, Query)], faults: &[QueryError]) -> Result<&'q Query> {
    if let Some((_, query)) = queries.iter().find(|(_, query)| query.name == name) {
        return Ok(query);
    }
    if let Some(fault) = faults.iter().find(|fault| Path::new(&fault.file).file_stem() == Some(name.as_ref())) {
        return Err(usage(format!("{fault} (headwater query check tells all)")));
    }
    let known = queries.iter().map(|(_, query)| query.name.as_str()).collect::<Vec<_>>().join(", ");
    Err(usage(format!("there is no query {name:?}, expected one of {known}")))
}

/// Runs it.
pub(super) fn run_one(args: &RunArgs, config: &Config, output: &Output) -> Done {
    let (queries, faults) = config.queries()?;
    let query = named(&args.name, &queries, &faults)?;
    let pairs = args.arguments.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let arguments = query.arguments(pairs).or_usage(|| format!("{} can't be run so", query.name))?;
    if query.is_personal() && args.user.is_none() {
        return Err(usage(format!("{} asks who asks (:s.user): say as whom it is run by --user NAME", query.name)));
    }
    let user = args.user.as_deref().unwrap_or_default();
    let (mut connection, placeholder) = config.database.connect_for_queries()?;
    let (sql, parameters) = query.pages_statement(&arguments, user, placeholder);
    let format = args.format(output)?;
    let (began, limit) = (Instant::now(), Limit::of(query));
    let in_time = |read: Result<(), Error>| match read {
        Err(error)
            if !matches!(error, Error::Sql { .. } | Error::Column { .. })
                && began.elapsed() >= query.limits.time_out =>
        {
            let (took, option) = (query.limits.time_out, "time_out_s of the query");
            Err(refused(format!("the query took longer than {took:?} ({option})")))
        }
        read => read,
    };
    let read = match format {
        Some(format) => {
            let mut written = Written { format, limit, encoder: None, failed: None };
            let read = connection.read(&sql, &parameters, &options(query), &mut written);
            let repeated = written.limit.repeated.take();
            written.end(in_time(read)).map(|()| repeated)
        }
        None => {
            let mut rows = Rows { limit, names: Vec::new(), shown: Vec::new(), count: 0 };
            let read = connection.read(&sql, &parameters, &options(query), &mut rows);
            let repeated = rows.limit.repeated.take();
            in_time(read).map_err(Into::into).and_then(|()| rows.show(output)).map(|()| repeated)
        }
    };
    if let Some(repeated) = read.with_context(|| format!("{} could not be run", query.name))? {
        output.warn(&repeated, &json!({ "query": query.name }));
    }
    Ok(Exit::Done)
}

/// What an answer may have, and has so far; of a query in pages, a page.
struct Limit {
    most: QueryLimits,
    page_rows: Option<u64>,
    rows: u64,
    bytes: u64,
    keys: Option<Keys>,
    /// The first key that two rows of a page have.
    repeated: Option<String>,
}

impl Limit {
    fn of(query: &Query) -> Limit {
        let page_rows = query.page.as_ref().map(|page| page.rows);
        Limit { most: query.limits, page_rows, rows: 0, bytes: 0, keys: query.keys(), repeated: None }
    }

    fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), Error> {
        let Some(keys) = &mut self.keys else { return Ok(()) };
        keys.begin(columns).map_err(refused)
    }

    /// Whether the next row is the first of another page.
    fn is_page_whole(&self) -> bool {
        self.page_rows == Some(self.rows)
    }

    /// One row more.
    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        if let Some(keys) = &mut self.keys {
            keys.row_of_all(values).map_err(|lost| refused(format!("{lost} (page_by of the query)")))?;
            let repeated = keys.repeated(values);
            self.repeated = self.repeated.take().or(repeated);
        }
        if self.is_page_whole() {
            (self.rows, self.bytes) = (0, 0);
        }
        self.rows += 1;
        if self.rows > self.most.rows_max {
            return Err(too_large(self.most.rows_max, "rows (rows_max of the query)"));
        }
        Ok(())
    }

    fn bytes(&mut self, count: usize) -> Result<(), Error> {
        self.bytes += count as u64;
        if self.bytes > self.most.bytes_max {
            return Err(too_large(self.most.bytes_max, "bytes (bytes_max of the query)"));
        }
        Ok(())
    }
}

fn too_large(most: u64, what: &str) -> Error {
    refused(format!("the answer has more than {most} {what}: ask for less"))
}

/// A value that the form has no room for.
fn unfit(unfit: &Unfit) -> Error {
    refused(unfit.to_string())
}

/// The query can't be run so.
fn refused(detail: String) -> Error {
    Error::Sql { detail, line: None, is_statement: false }
}

/// Writes rows as they come.
struct Written {
    format: Format,
    limit: Limit,
    encoder: Option<Encoder>,
    failed: Option<std::io::Error>,
}

impl Written {
    fn flush(&mut self) -> Result<(), Error> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        let piece = encoder.take();
        self.limit.bytes(piece.len())?;
        std::io::stdout().lock().write_all(&piece).map_err(|error| {
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
        self.limit.begin(columns)?;
        self.encoder = Some(Encoder::begin(self.format, columns.iter().map(Column::from).collect()));
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        if self.limit.is_page_whole() {
            self.flush()?;
        }
        self.limit.row(values)?;
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        encoder.row(values).map_err(|error| unfit(&error))?;
        if encoder.waiting() > 1 << 16 { self.flush() } else { Ok(()) }
    }
}

/// Rows for people: the first of them.
struct Rows {
    limit: Limit,
    names: Vec<String>,
    shown: Vec<Vec<String>>,
    count: u64,
}

/// How many are shown.
const SHOWN_MAX: usize = 1_000;

impl ResultSink for Rows {
    fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), Error> {
        self.names = columns.iter().map(|column| column.name.clone()).collect();
        self.limit.begin(columns)
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        self.limit.row(values)?;
        self.count += 1;
        texts_fit(self.names.iter().map(String::as_str), values, self.count).map_err(|error| unfit(&error))?;
        let texts: Vec<String> = values.iter().map(|value| text_of(&value.to_value())).collect();
        self.limit.bytes(texts.iter().map(String::len).sum())?;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(texts);
        }
        Ok(())
    }
}

impl Rows {
    fn show(self, output: &Output) -> Result<()> {
        let head: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let more = if self.count > self.shown.len() as u64 {
            format!(", of which the first {SHOWN_MAX} are shown (--format csv has all)")
        } else {
            String::new()
        };
        output.table(&head, self.shown)?;
        output.note(format!("{}{more}", counted(self.count as usize, "row")));
        Ok(())
    }
}
