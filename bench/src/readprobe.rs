//! `readprobe`: users that read records of a table in memory, each as fast as it can, as OpenEdge's readprobe does.
//!
//! ```text
//! process  threads that find records in a buffer pool: what its locks cost, and what skips are worth
//! step     the same, while skips change in the middle
//! cursors  users of a server, who read records by remote cursors: what the packer's knobs are worth
//! slow     the longest wait for a row of a consumer that takes its time
//! calls    system calls, counted by perf
//! ```
//!
//! *Caveats.* Users, server and database share the machine's processors. With two of them, more users than two show what waiting for each other costs,
//! not how anything scales.
#![allow(clippy::print_stdout)]

mod calls;
mod cursors;
mod process;
mod slow;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use headwater_lab::report::Plot;

const PARTS: [&str; 4] = ["process", "step", "cursors", "slow"];
/// The small table, and the big one: 256 KB and 80 MB.
const TABLES: [&str; 2] = ["small", "big"];
/// Bytes of a record, about.
const RECORD: usize = 128;
/// Up to so many users the slides go; their figures are compared at as many.
const SLIDES_USERS: usize = 46;

/// How many, and for how long.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReadprobeArguments {
    /// Users at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 6, 11, 16, 21, 26, 31, 36, 41, 46, 100, 250])]
    users: Vec<usize>,
    /// Seconds of each turn in process.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Seconds of each turn by cursors.
    #[arg(long, default_value_t = 1.0)]
    cursor_seconds: f64,
    /// Turns of each.
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Seconds of the run in which skips go from 0 to 100; 0: none.
    #[arg(long, default_value_t = 8.0)]
    step_seconds: f64,
    /// Rows that the slow consumer takes, and how many microseconds it takes for each.
    #[arg(long, default_value_t = 5_000)]
    slow_rows: u64,
    #[arg(long, default_value_t = 100)]
    slow_us: u64,
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
    let are_calls_counted = (wanted("process") || wanted("cursors")) && calls::are_counted();
    if wanted("process") {
        arguments.draw(process::measure(arguments, are_calls_counted)?)?;
    }
    if wanted("step") && arguments.step_seconds > 0.0 {
        arguments.draw(vec![("step".to_owned(), process::step(arguments)?)])?;
    }
    if !wanted("cursors") && !wanted("slow") {
        return Ok(());
    }
    let stand = cursors::Stand::start(arguments)?;
    if wanted("cursors") {
        arguments.draw(cursors::measure(arguments, &stand, are_calls_counted)?)?;
    }
    if wanted("slow") {
        slow::measure(arguments, &stand)?;
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

    /// Whether system calls of so many users are counted, in a turn of its own.
    fn is_counted(&self, users: usize) -> bool {
        users == self.most() || users == self.slides_users() || self.users.iter().all(|other| *other >= users)
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ReadprobeArguments,
    }

    fn arguments(line: &[&str]) -> ReadprobeArguments {
        Line::parse_from([&["readprobe"], line].concat()).arguments
    }

    #[test]
    fn the_users_whose_calls_are_counted() {
        let usual = arguments(&[]);
        let counted: Vec<usize> = usual.users.iter().copied().filter(|users| usual.is_counted(*users)).collect();
        assert_eq!((counted, usual.slides_users()), (vec![1, 46, 250], 46));
        let many = arguments(&["--users", "100,250"]);
        assert_eq!((many.slides_users(), many.tables().count()), (250, 2));
        assert_eq!(arguments(&["--tables", "big"]).tables().collect::<Vec<_>>(), [(1, "big")]);
    }
}
