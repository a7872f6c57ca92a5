//! `headwater lab export`: results for other programs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use headwater_lab::Error;
use headwater_lab::results::{Campaign, Format, Rows};

use super::show;
use crate::Done;
use crate::exit::Exit;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater lab export tpcb.lab > cells.csv
  headwater lab export tpcb.lab --rows seconds --format json | jq '.seconds[].operations'
  headwater lab export mixed.lab --format xml --run 3 > results.xml

The file itself is SQLite, with its schema in docs/lab.md: sqlite3 tpcb.lab 'SELECT * FROM run'.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportArgs {
    /// The results.
    #[arg(value_name = "FILE")]
    results: PathBuf,
    /// In which form; text is the table that show prints, xml is that of the results of Bristlecone's Evaluator, one run's seconds.
    #[arg(long, value_enum, default_value = "csv")]
    format: FormatName,
    /// A line for each of these: cells with their runs put together, runs, or seconds of runs; cells unless
    /// given, and not with xml.
    #[arg(long, value_enum)]
    rows: Option<RowsName>,
    /// With xml, which run, from 1 in the order in which they were made; otherwise the only one.
    #[arg(long, value_name = "NUMBER", conflicts_with = "rows")]
    run: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Csv,
    Json,
    Xml,
    Text,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RowsName {
    Cells,
    Runs,
    Seconds,
}

/// Exports.
pub(super) fn run(args: &ExportArgs, output: &Output) -> Done {
    let campaign = Campaign::open(&args.results)?;
    if matches!(args.format, FormatName::Text) {
        if args.run.is_some() || matches!(args.rows, Some(RowsName::Runs | RowsName::Seconds)) {
            return Err(Error::Usage(
                "--format text has the cells, as show has them; leave --rows and --run out".to_owned(),
            )
            .into());
        }
        show::tables(&campaign, output)?;
        return Ok(Exit::Done);
    }
    let out = &mut std::io::stdout().lock();
    let format = match args.format {
        FormatName::Csv | FormatName::Text => Format::Csv,
        FormatName::Json => Format::Json,
        FormatName::Xml if args.rows.is_some() => {
            return Err(Error::Usage("--format xml has the seconds of a run, and no --rows".to_owned()).into());
        }
        FormatName::Xml => {
            campaign.export_evaluator(args.run, out)?;
            return Ok(Exit::Done);
        }
    };
    if args.run.is_some() {
        return Err(Error::Usage("--run goes with --format xml".to_owned()).into());
    }
    let rows = match args.rows {
        None | Some(RowsName::Cells) => Rows::Cells,
        Some(RowsName::Runs) => Rows::Runs,
        Some(RowsName::Seconds) => Rows::Seconds,
    };
    campaign.export(rows, format, out)?;
    Ok(Exit::Done)
}
