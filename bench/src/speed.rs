//! How near sync comes to its database: many remotes in memory against a bare loop of the same statements, in the same run.
//!
//! ```text
//! postgres   fsync on, throw-away
//! server     `headwater serve`, a process of its own, with three models over the same database
//! here       remotes in memory, the bare loops, and a count of whose processor time is whose
//! ```
//!
//! What is compared takes turns, there and back. The bare loop's number of connections is chosen in turns of its own, before those that
//! are compared. A line `figure NAME VALUE LOW HIGH` is the median of the turns' ratios with its interval.
#![allow(clippy::print_stdout)]

pub(crate) mod bare;
mod bulk;
mod overflow;
mod small;
mod tracking;
mod waiting;
mod world;

use std::time::Duration;

use anyhow::Result;

use crate::figures::{figure, measured};

/// How large it is.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SpeedArguments {
    /// Clients that sync at once.
    #[arg(long, default_value_t = 200)]
    pub(crate) clients: usize,
    /// Rows of each sync.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) rows: i64,
    /// How often each side of a comparison takes its turn.
    #[arg(long, default_value_t = 5)]
    pub(crate) repetitions: usize,
    /// Workers of the server, all of which may apply uploads.
    #[arg(long, default_value_t = 4)]
    pub(crate) workers: usize,
    /// Numbers of connections of which the bare loop's best is taken.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,8")]
    pub(crate) connections: Vec<usize>,
    /// Seconds of each turn of empty syncs.
    #[arg(long, default_value_t = 5)]
    pub(crate) seconds: u64,
    /// Empty syncs that are under way at a time.
    #[arg(long, default_value_t = 64)]
    pub(crate) at_once: usize,
    /// Clients that wait for a worker while the server's memory is looked at.
    #[arg(long, default_value_t = 5_000)]
    pub(crate) waiting: usize,
    /// The server's certificate, with `key.pem` beside it: clients speak TLS.
    #[arg(long, hide = true)]
    pub(crate) certificate: Option<std::path::PathBuf>,
    /// Options of the server's pool, as NAME=VALUE.
    #[arg(long)]
    pub(crate) pool: Vec<String>,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_parser = ["first", "later", "upload", "conflict", "tracking", "empty", "rows", "waiting", "overflow"])]
    pub(crate) only: Vec<String>,
    /// Have the server's process and the database's told on stderr, and wait so many seconds before each part: for a profile.
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_s: u64,
}

/// Measures.
pub(crate) fn measure(arguments: &SpeedArguments) -> Result<()> {
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let mut world = world::World::start(arguments)?;
    type Part = fn(&mut world::World) -> Result<()>;
    let parts: [(&str, Part); 9] = [
        ("waiting", waiting::waiting),
        ("empty", small::empty),
        ("first", bulk::first_downloads),
        ("later", bulk::later_downloads),
        ("upload", bulk::uploads),
        ("conflict", bulk::conflict_cost),
        ("tracking", tracking::tracked_writes),
        ("rows", small::intercept),
        ("overflow", overflow::overflow),
    ];
    for (name, part) in parts.into_iter().filter(|(name, _)| wanted(name)) {
        eprintln!("{name}: {}", world.processes());
        std::thread::sleep(Duration::from_secs(arguments.pause_s));
        part(&mut world)?;
    }
    Ok(())
}

/// What took turns with each other: seconds, a pair of each turn.
#[derive(Default)]
pub(crate) struct Turns(Vec<[f64; 2]>);

impl Turns {
    /// Has both sides run, the one first whose turn it is.
    pub(crate) fn take(
        &mut self,
        turn: usize,
        ours: impl FnOnce() -> Result<f64>,
        bare: impl FnOnce() -> Result<f64>,
    ) -> Result<()> {
        let pair = if turn.is_multiple_of(2) {
            let bare = bare()?;
            [ours()?, bare]
        } else {
            let ours = ours()?;
            [ours, bare()?]
        };
        self.0.push(pair);
        Ok(())
    }

    /// Says the figure: what the second took against the first, or the other way round.
    pub(crate) fn tell(&self, name: &str, of: impl Fn([f64; 2]) -> f64) {
        tell(name, &self.0.iter().map(|pair| of(*pair)).collect::<Vec<_>>());
    }

    /// Of one side.
    pub(crate) fn median(&self, side: usize) -> f64 {
        median(&self.0.iter().map(|pair| pair[side]).collect::<Vec<_>>())
    }
}

/// Says a figure: the median of its turns, and the interval that they give.
pub(crate) fn tell(name: &str, values: &[f64]) {
    figure(name, measured(values));
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
