//! `readprobe`: users that read records of a table in memory, each as fast as it can, as OpenEdge's readprobe does.
//!
//! ```text
//! process  threads that find records in a buffer pool: what its locks cost, and what skips are worth
//! step     the same, while skips change in the middle
//! ```
//!
//! *Caveats.* Users share the machine's processors. With two of them, more users than two show what waiting for each other costs, not how anything scales.

mod process;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use headwater_lab::report::Plot;

const PARTS: [&str; 2] = ["process", "step"];
/// The small table, and the big one: 256 KB and 80 MB.
const TABLES: [&str; 2] = ["small", "big"];
/// Bytes of a record, about.
const RECORD: usize = 128;
/// Up to so many users the slides go; their figures are compared at as many.
const SLIDES_USERS: usize = 46;

/// How many, and for how long.
#[derive(clap::Args, Debug)]
pub(crate) struct ReadprobeArguments {
    /// Users at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 6, 11, 16, 21, 26, 31, 36, 41, 46, 100, 250])]
    users: Vec<usize>,
    /// Seconds of each turn.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Turns of each.
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Seconds of the run in which skips go from 0 to 100; 0: none.
    #[arg(long, default_value_t = 8.0)]
    step_seconds: f64,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_parser = PARTS)]
    only: Vec<String>,
    /// Only these tables.
    #[arg(long, value_delimiter = ',', value_parser = TABLES)]
    tables: Vec<String>,
    /// Where the plots go; unset: none are drawn.
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

/// Measures, tells and draws.
pub(crate) fn measure(arguments: &ReadprobeArguments) -> Result<()> {
    let wanted = |part: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == part);
    if wanted("process") {
        arguments.draw(process::measure(arguments)?)?;
    }
    if wanted("step") && arguments.step_seconds > 0.0 {
        arguments.draw(vec![("step".to_owned(), process::step(arguments)?)])?;
    }
    Ok(())
}

impl ReadprobeArguments {
    /// The tables that are read.
    fn tables(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let is_wanted = |name: &str| self.tables.is_empty() || self.tables.iter().any(|only| only == name);
        TABLES.into_iter().enumerate().filter(move |(_, name)| is_wanted(name))
    }

    /// The most users at a time.
    fn most(&self) -> usize {
        self.users.iter().copied().max().unwrap_or(1)
    }

    /// As many users as the slides have at most, or the nearest that there are.
    fn slides_users(&self) -> usize {
        self.users.iter().copied().filter(|users| *users <= SLIDES_USERS).max().unwrap_or(self.most())
    }

    fn draw(&self, plots: Vec<(String, Plot)>) -> Result<()> {
        let Some(folder) = &self.plots else { return Ok(()) };
        for (name, plot) in plots {
            let path = folder.join(format!("readprobe-{name}.svg"));
            std::fs::write(&path, plot.svg()).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Processor time of a process, its own and the system's, in seconds.
fn spent(process: u32) -> Result<(f64, f64)> {
    let stat = procfs::process::Process::new(process.cast_signed()).and_then(|process| process.stat());
    let stat = stat.with_context(|| format!("what process {process} has spent"))?;
    let ticks = procfs::ticks_per_second() as f64;
    Ok((stat.utime as f64 / ticks, stat.stime as f64 / ticks))
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}
