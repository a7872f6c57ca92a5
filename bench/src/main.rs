//! What `make bench` runs for the figures of [`lab/figures.toml`](../../lab/figures.toml) that are no experiments: sync against the bare limit
//! in the same run, the lab against pgbench, the gateway against Squid and Datasette, cursors against psql, and what a pilot predicts against what is.
//!
//! Everything runs on a throw-away PostgreSQL (fsync on) on this machine, over the table Purchase of MLBench. What is compared takes
//! turns, at least five times each; a figure is the median of the turns' ratios, because machines are shared and noisy. A result is a
//! line `figure NAME VALUE LOW HIGH`, the median and its interval; the bare rates (medians too) stand beside it as `rate NAME VALUE`. What goes on is told on stderr.
#![allow(clippy::print_stdout)]

mod bare;
mod cursor;
mod embedded;
mod figures;
mod gate;
mod gateway;
mod generator;
mod hosts;
mod layouts;
mod lock;
mod memory;
mod newcomer;
mod prediction;
mod purchase;
mod readprobe;
mod rebuild;
mod scripts;
mod shared;
mod speed;
mod tpcb;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measure the figures of sync on this machine, or those of a part.
#[derive(Parser, Debug)]
#[command(after_help = "Example: cargo run --release -p headwater-bench -- --rows 100000 --only download")]
struct Arguments {
    /// Rows of the first download.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Uploads of a thousand inserts each, all repetitions together.
    #[arg(long, default_value_t = 1_000)]
    uploads: u64,
    /// Inserts of the one large upload; in steps of ten thousand.
    #[arg(long, default_value_t = 1_000_000)]
    many: u64,
    /// Rows updated by each side of the comparison of conflict detection.
    #[arg(long, default_value_t = 20_000)]
    updates: u64,
    /// How often each side of a comparison takes its turn.
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// Only these figures: space, memory, download, upload, many, conflict.
    #[arg(long, value_delimiter = ',', value_parser = ["space", "memory", "download", "upload", "many", "conflict"])]
    only: Vec<String>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// Be the remote whose memory is measured.
    #[command(hide = true)]
    Remote(memory::RemoteArguments),
    /// TPC-B by the lab and by pgbench, in turns
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- tpcb --seconds 5")]
    Tpcb(tpcb::TpcbArguments),
    /// Rows that the lab's remotes in memory read and check on one core
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- generator --rows 50000")]
    Generator(generator::GeneratorArguments),
    /// How far the lab's pilot is off
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- prediction --for 200 --repetitions 2")]
    Prediction(prediction::PredictionArguments),
    /// How near sync comes to the database itself, with many clients
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- speed --clients 50 --only first,empty")]
    Speed(speed::SpeedArguments),
    /// New remotes, from the command to a usable file
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- newcomer --rows 20000 --repetitions 3")]
    Newcomer(newcomer::NewcomerArguments),
    /// How close together clients of two agents begin
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- gate --clients 100 --delay-ms 50")]
    Gate(gate::GateArguments),
    /// Uploads of tables whose rows are written by scripts
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- scripts --rows 2000 --delay-ms 1")]
    Scripts(scripts::ScriptsArguments),
    /// Uploads into a consolidated database that is a SQLite file
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- embedded --rows 100000")]
    Embedded(embedded::EmbeddedArguments),
    /// Ways to track changes in PostgreSQL: what each takes of writes, of downloads and of the disk
    #[command(
        after_help = "Example: cargo run --release -p headwater-bench -- layouts --partitions 5 --batches 10 --repetitions 3"
    )]
    Layouts(layouts::LayoutsArguments),
    /// How long a download holds a remote's write lock
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- lock --rows 20000 --repetitions 3")]
    Lock(lock::LockArguments),
    /// How often a shared partition is read for many remotes, and its chunks asked for, behind Squid
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- shared --remotes 100 --files 5")]
    Shared(shared::SharedArguments),
    /// Records read from memory by many users, in process and by cursors: what skips and the packer's knobs are worth
    #[command(
        after_help = "Example: cargo run --release -p headwater-bench -- readprobe --seconds 0.2 --cursor-seconds 0.2 --users 1,6,46 --only process,cursors"
    )]
    Readprobe(readprobe::ReadprobeArguments),
    /// Indexes of a SQLite file rebuilt, against SQLite's own REINDEX and CREATE INDEX
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- rebuild --rows 500000 --only one,bars")]
    Rebuild(rebuild::RebuildArguments),
    /// The gateway against Squid, COPY, Datasette and the database's driver
    #[command(
        after_help = "Example: cargo run --release -p headwater-bench -- gateway --only hit,cold --repetitions 3"
    )]
    Gateway(gateway::GatewayArguments),
    /// Remote cursors: full messages, psql, the automatic packer, a slow consumer
    #[command(after_help = "Example: cargo run --release -p headwater-bench -- cursor --only full --repetitions 3")]
    Cursor(cursor::CursorArguments),
}

fn main() -> Result<ExitCode> {
    if std::env::var_os(newcomer::AS_COMMAND).is_some() {
        return Ok(headwater::run());
    }
    let arguments = Arguments::parse();
    match &arguments.part {
        Some(Part::Remote(remote)) => println!("{}", memory::be_remote(remote)?),
        Some(Part::Tpcb(arguments)) => tpcb::measure(arguments)?,
        Some(Part::Readprobe(arguments)) => readprobe::measure(arguments)?,
        Some(Part::Rebuild(arguments)) => rebuild::measure(arguments)?,
        Some(Part::Generator(arguments)) => generator::measure(arguments)?,
        Some(Part::Prediction(arguments)) => prediction::measure(arguments)?,
        Some(Part::Newcomer(arguments)) => newcomer::measure(arguments)?,
        Some(Part::Gate(arguments)) => gate::measure(arguments)?,
        Some(Part::Speed(arguments)) => speed::measure(arguments)?,
        Some(Part::Scripts(arguments)) => scripts::measure(arguments)?,
        Some(Part::Embedded(arguments)) => embedded::measure(arguments)?,
        Some(Part::Layouts(arguments)) => layouts::measure(arguments)?,
        Some(Part::Lock(arguments)) => lock::measure(arguments)?,
        Some(Part::Shared(arguments)) => shared::measure(arguments)?,
        Some(Part::Gateway(arguments)) => gateway::measure(arguments)?,
        Some(Part::Cursor(arguments)) => cursor::measure(arguments)?,
        None => sync(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the figures of sync.
fn sync(arguments: &Arguments) -> Result<()> {
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let bench = figures::Bench::start(arguments.repetitions)?;
    if ["space", "memory", "download"].into_iter().any(wanted) {
        bench.fill(arguments.rows)?;
        bench.tracking_space()?;
        bench.wire_bytes()?;
    }
    if wanted("memory") {
        bench.memory()?;
    }
    if wanted("download") {
        bench.download()?;
    }
    if wanted("upload") {
        bench.upload(arguments.uploads)?;
    }
    if wanted("many") {
        bench.upload_many(arguments.many)?;
    }
    if wanted("conflict") {
        bench.conflict_cost(arguments.updates)?;
    }
    if wanted("space") {
        bench.tracking_space_updated(arguments.rows)?;
    }
    Ok(())
}
