//! The example's program: loads the flights into a database.

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use flights::{Counts, Selection, load_postgres, load_sqlite};

/// Real data to try Headwater with: every flight that left New York City in 2013
#[derive(Parser)]
#[command(name = "flights")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the tables in a database and fill them
    #[command(after_help = "Examples:\n  flights load --to sqlite:flights.db --month 1\n  \
                            flights load --to postgres://postgres@localhost/flights")]
    Load {
        /// sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE
        #[arg(long, value_name = "DATABASE")]
        to: String,
        /// Flights and weather of this month alone (1 to 12)
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=12))]
        month: Option<u8>,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Load { to, month } => print(&load(&to, Selection { month }).await?),
    }
    Ok(())
}

async fn load(to: &str, selection: Selection) -> Result<Counts> {
    if let Some(path) = to.strip_prefix("sqlite:") {
        load_sqlite(path, selection)
    } else if to.starts_with("postgres://") || to.starts_with("postgresql://") {
        load_postgres(to, selection).await
    } else {
        bail!("--to {to:?} names no database that can be loaded: give sqlite:PATH or postgres://...")
    }
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn print(counts: &Counts) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, rows) in counts.iter() {
        table.add_row([name.to_owned(), rows.to_string()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
}
