//! How near the gateway comes to what does each of its parts alone: Squid to hits, `COPY` to bulk, the database's driver to Frontier.
//!
//! ```text
//! load         a cheap generator: requests over kept connections, bodies read and not looked at
//! stage        `headwater serve` with a gateway and nothing else, a process of its own; whose processor time is whose
//! hits         answers that are kept, against Squid's; 304 against our own
//! bulk         many rows as CSV, Arrow and Frontier, against `COPY` and the driver; 150 clients of large payloads against 20
//! cold         a thousand clients and one query that nobody has asked yet
//! compression  the level that is found, against fixed ones, by lines of three speeds
//! datasette    the same query from the same SQLite file by Datasette
//! ```
//!
//! What is compared takes turns, there and back. A line `figure NAME VALUE LOW HIGH` is the median of the turns' ratios with its interval.
#![allow(clippy::print_stdout)]

mod bulk;
mod cold;
mod compression;
mod datasette;
mod hits;
mod load;
pub(crate) mod stage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::speed::Turns;

/// How large it is.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct GatewayArguments {
    /// How often each side of a comparison takes its turn.
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// Seconds of each turn of small requests.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Clients of small requests.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Rows of a large result in CSV and Arrow.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Rows of a large Frontier payload.
    #[arg(long, default_value_t = 1_000_000)]
    frontier_rows: u64,
    /// Clients that ask for large Frontier payloads at once, and how many they ask for in a turn.
    #[arg(long, default_value_t = 150)]
    crowd: usize,
    /// Clients that ask for a cold query at once.
    #[arg(long, default_value_t = 1_000)]
    cold_clients: usize,
    /// The program `datasette`.
    #[arg(long, env = "DATASETTE", default_value = "datasette")]
    datasette: PathBuf,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_parser = ["hit", "revalidation", "clients", "bulk", "cold", "compression", "datasette", "frontier"])]
    only: Vec<String>,
}

/// Measures.
pub(crate) fn measure(arguments: &GatewayArguments) -> Result<()> {
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    if wanted("datasette") {
        datasette::is_there(&arguments.datasette)?;
    }
    let central = stage::Central::start()?;
    type Part = fn(&GatewayArguments, &stage::Central) -> Result<()>;
    let parts: [(&str, Part); 8] = [
        ("hit", hits::against_squid),
        ("revalidation", hits::revalidation),
        ("bulk", bulk::against_copy),
        ("cold", cold::together),
        ("compression", compression::found),
        ("datasette", datasette::against_datasette),
        ("frontier", bulk::frontier_rows),
        ("clients", bulk::clients),
    ];
    for (name, part) in parts.into_iter().filter(|(name, _)| wanted(name)) {
        eprintln!("gateway: {name}");
        part(arguments, &central)?;
    }
    Ok(())
}

/// Both sides of a comparison, rates in turns: says the medians, then the first against the second as a figure.
fn compare(
    arguments: &GatewayArguments,
    figure: &str,
    [ours_name, theirs_name]: [&str; 2],
    ours: impl Fn() -> Result<f64>,
    theirs: impl Fn() -> Result<f64>,
) -> Result<()> {
    let mut turns = Turns::default();
    for turn in 0..arguments.repetitions {
        turns.take(turn, &ours, &theirs)?;
    }
    println!("rate gateway.{ours_name} {:.0}", turns.median(0));
    println!("rate gateway.{theirs_name} {:.0}", turns.median(1));
    turns.tell(figure, |[ours, theirs]| ours / theirs);
    Ok(())
}

impl GatewayArguments {
    fn turn(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}
