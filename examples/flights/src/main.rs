//! The example's program: loads the flights into a database, and shows Headwater at work on them.

mod demo;
mod sql;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use flights::{Counts, Selection, load_postgres, load_sqlite};
use tokio::signal::unix::{SignalKind, signal};

/// Real data to try Headwater with: every flight that left New York City in 2013
#[derive(Parser)]
#[command(name = "flights")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// See Headwater work: a server, three remotes, edits on both sides, conflicts
    #[command(after_help = "Examples:\n  flights demo\n  flights demo --folder /tmp/demo --port 8000")]
    Demo {
        /// Where its databases go; made anew at each run
        #[arg(long, default_value = "demo")]
        folder: PathBuf,
        /// Where the server listens; another port if it is taken
        #[arg(long, default_value_t = 7340)]
        port: u16,
    },
    /// Run one SQL statement on a SQLite file, as any program may
    #[command(after_help = "Example:\n  flights sql ann.db \"SELECT count(*) FROM flights\"")]
    Sql {
        /// The file
        file: PathBuf,
        /// The statement
        sql: String,
    },
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
        Command::Demo { folder, port } => play(folder, port).await?,
        Command::Sql { file, sql } => sql::run(&file, &sql)?,
        Command::Load { to, month } => print(&load(&to, Selection { month }).await?),
    }
    Ok(())
}

/// The demo ends at its next step once a signal has come, so that its server is stopped by its own hand.
async fn play(folder: PathBuf, port: u16) -> Result<()> {
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let mut terminate = signal(SignalKind::terminate())?;
    let story = {
        let is_interrupted = Arc::clone(&is_interrupted);
        tokio::task::spawn_blocking(move || demo::run(&folder, port, is_interrupted))
    };
    let watch = tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        is_interrupted.store(true, Ordering::Relaxed);
    });
    let done = story.await?;
    watch.abort();
    done
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
