//! `headwater query run NAME --cursor`: rows of a server, printed as they come.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
use clap::Args;
use headwater_consolidated::results::ResultColumn;
use headwater_cursor::{Connection, Credentials, Options, Server, ValueRef};
use headwater_gateway::format::{Column, Encoder, Format, texts_fit};
use headwater_gateway::query::text_of;
use headwater_protocol::cursor::Question;
use headwater_remote::http::Credentials as Shown;

use super::run::RunArgs;
use crate::Done;
use crate::commands::remote::Login;
use crate::exit::{Exit, OrUsage as _, usage};
use crate::output::{Output, counted, printable};

/// Where the rows come from, if not from here.
#[derive(Debug, Args)]
pub(super) struct CursorArgs {
    /// Open a cursor at a server, and print rows as they come; the configuration is not read.
    #[arg(long, requires = "server")]
    pub(super) cursor: bool,
    /// The server's address.
    #[arg(long, value_name = "URL", env = "HEADWATER_SERVER")]
    server: Option<String>,
    /// NAME is SQL, for a server that runs its clients'.
    #[arg(long, requires = "cursor")]
    sql: bool,
    /// What stands for the next ? of the SQL, as a text; may be given several times.
    #[arg(long = "value", value_name = "VALUE", requires = "sql", allow_hyphen_values = true)]
    values: Vec<String>,
    #[command(flatten)]
    login: Login,
}

/// Prints the rows of a cursor.
pub(super) fn run(args: &RunArgs, output: &Output) -> Done {
    let cursor = &args.cursor;
    let url = cursor.server.clone().context("clap has seen to it that there is a server")?;
    let credentials = match cursor.login.credentials_if_any(args.user.as_deref().unwrap_or_default())? {
        None => Credentials::Nothing,
        Some(Shown::Token(token)) => Credentials::Token(token),
        Some(Shown::Password { user, password }) => Credentials::Password { user, password },
    };
    let question = match (cursor.sql, args.arguments.is_empty()) {
        (true, true) => Question::Sql(args.name.clone(), cursor.values.clone()),
        (true, false) => {
            return Err(usage("SQL takes no NAME=VALUE: write ? for each value, and give them by --value"));
        }
        (false, _) => Question::Named(args.name.clone(), args.arguments.clone()),
    };
    let format = args.format(output)?;
    let server = Server { url, credentials, ca_file: cursor.login.ca().cloned() };
    let connection = Connection::open(&server)?;
    let mut rows = connection.open_cursor(question, Options::default())?;
    let told = rows.columns()?;
    let columns = told.iter().map(|column| ResultColumn {
        name: column.name.clone(),
        kind: column.kind,
        declared: column.declared.clone(),
    });
    let columns: Vec<ResultColumn> = columns.collect();
    let mut printer = Printer::begin(format, &columns);
    let (mut count, mut failed) = (0_usize, Ok(()));
    // A message at a time: what has come is seen, and no row waits for the next.
    while failed.is_ok()
        && rows.next_rows(|values| {
            count += 1;
            if failed.is_ok() {
                failed = printer.row(values);
            }
        })?
    {
        printer.flush()?;
    }
    failed.and_then(|()| printer.end()).or_usage(|| "the rows can't be printed so".to_owned())?;
    printer.flush()?;
    if format.is_none() {
        output.note(counted(count, "row"));
    }
    Ok(Exit::Done)
}

/// Prints rows in a form, or as lines of texts.
enum Printer {
    Form(Encoder),
    Lines(Lines),
}

/// Lines of texts, and what a fault in them is told by.
struct Lines {
    names: Vec<String>,
    rows: u64,
    out: String,
}

impl Printer {
    fn begin(format: Option<Format>, columns: &[ResultColumn]) -> Printer {
        match format {
            Some(format) => Printer::Form(Encoder::begin(format, columns.iter().map(Column::from).collect())),
            None => {
                let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
                let heads: Vec<String> = names.iter().map(|name| printable(name)).collect();
                Printer::Lines(Lines { out: heads.join("\t") + "\n", rows: 0, names })
            }
        }
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<()> {
        match self {
            Printer::Form(encoder) => encoder.row(values)?,
            Printer::Lines(Lines { names, rows, out }) => {
                *rows += 1;
                texts_fit(names.iter().map(String::as_str), values, *rows)?;
                for (place, value) in values.iter().enumerate() {
                    if place > 0 {
                        out.push('\t');
                    }
                    out.push_str(&printable(&text_of(&value.to_value())));
                }
                out.push('\n');
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match self {
            Printer::Form(encoder) => Ok(encoder.end(None)?),
            Printer::Lines(_) => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match self {
            Printer::Form(encoder) => out.write_all(&encoder.take()),
            Printer::Lines(lines) => out.write_all(std::mem::take(&mut lines.out).as_bytes()),
        }
        .context("writing rows")?;
        // A terminal's own buffer would hold a line back.
        if std::io::stdout().is_terminal() { out.flush().context("writing rows") } else { Ok(()) }
    }
}
