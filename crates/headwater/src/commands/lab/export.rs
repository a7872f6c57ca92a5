//! `headwater lab export`: results for other programs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use headwater_lab::results::{Campaign, Format, Rows};

use crate::Done;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  headwater lab export tpcb.lab > cells.csv
  headwater lab export tpcb.lab --rows seconds --format json | jq '.seconds[].operations'

The file itself is SQLite, with its schema in docs/lab.md: sqlite3 tpcb.lab 'SELECT * FROM run'.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportArgs {
    /// The results.
    #[arg(value_name = "FILE")]
    results: PathBuf,
    /// In which form.
    #[arg(long, value_enum, default_value = "csv")]
    format: FormatName,
    /// A line for each of these: cells with their runs put together, runs, or seconds of runs.
    #[arg(long, value_enum, default_value = "cells")]
    rows: RowsName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Csv,
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RowsName {
    Cells,
    Runs,
    Seconds,
}

/// Exports.
pub(super) fn run(args: &ExportArgs) -> Done {
    let campaign = Campaign::open(&args.results)?;
    let format = match args.format {
        FormatName::Csv => Format::Csv,
        FormatName::Json => Format::Json,
    };
    let rows = match args.rows {
        RowsName::Cells => Rows::Cells,
        RowsName::Runs => Rows::Runs,
        RowsName::Seconds => Rows::Seconds,
    };
    campaign.export(rows, format, &mut std::io::stdout().lock())?;
    Ok(Exit::Done)
}
