//! TPC-B on PostgreSQL by `headwater lab` and by `pgbench`: the same tables, transaction and clients, in turns.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_testkit::Postgres;
use procfs::process::Process;
use rusqlite::{Connection, OpenFlags};

use crate::figures::{figure, ratio_of};

/// What both are told.
#[derive(clap::Args, Debug)]
pub(crate) struct TpcbArguments {
    /// Clients, and branches.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// Threads of each of the two programs.
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Seconds of each turn.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// How often each takes its turn.
    #[arg(long, default_value_t = 5)]
    turns: usize,
}

/// What a turn came to.
#[derive(Clone, Copy)]
struct Turn {
    /// Transactions a second.
    rate: f64,
    /// Of the program's own processor time, for each transaction.
    cpu: Duration,
}

/// Measures. Commits don't wait for the disk, whose moods would be most of what is seen.
pub(crate) fn measure(arguments: &TpcbArguments) -> Result<()> {
    let postgres = Postgres::builder()
        .fsync(true)
        .set("synchronous_commit", "off")
        .set("shared_buffers", "1GB")
        .set("max_wal_size", "8GB")
        .start()?;
    let (ours, theirs) = (postgres.create_database()?, postgres.create_database()?);
    run(Command::new("pgbench").args(["-q", "-i", "-s", &arguments.clients.to_string(), &theirs]))?;
    let place = tempfile::tempdir()?;
    let mut turns: [Vec<Turn>; 2] = Default::default();
    for turn in 0..2 * arguments.turns {
        // There and back, so that what goes on beside falls on both.
        let is_lab = (turn / 2 + turn) % 2 == 0;
        let [lab, pgbench] = &mut turns;
        if is_lab {
            lab.push(by_lab(arguments, &ours, &place.path().join(format!("{turn}.lab")))?);
        } else {
            pgbench.push(by_pgbench(arguments, &theirs)?);
        }
        eprintln!("turn {} of {}", turn + 1, 2 * arguments.turns);
    }
    let rates = turns.each_ref().map(|turns| turns.iter().map(|turn| turn.rate).collect::<Vec<_>>());
    let costs = turns.each_ref().map(|turns| turns.iter().map(|turn| turn.cpu.as_secs_f64() * 1e6).collect::<Vec<_>>());
    for (name, [lab, pgbench]) in [("per_s", &rates), ("cpu_us", &costs)] {
        println!("rate lab.tpcb_{name} {lab:.1?}");
        println!("rate lab.pgbench_{name} {pgbench:.1?}");
    }
    figure("lab.tpcb_vs_pgbench", ratio_of(&rates[0], &rates[1]));
    figure("lab.tpcb_cpu_vs_pgbench", ratio_of(&costs[0], &costs[1]));
    Ok(())
}

fn by_lab(arguments: &TpcbArguments, url: &str, results: &Path) -> Result<Turn> {
    let TpcbArguments { clients, threads, seconds, .. } = arguments;
    let experiment = results.with_extension("toml");
    let text = format!(
        "name = \"tpcb\"\nscenario = {{ name = \"tpcb\", branches = {clients} }}\nload = {{ clients = {clients}, threads = {threads} }}\n\
         stop = {{ warmup = \"1s\", duration = \"{seconds}s\" }}\nsample = {{ waits = false }}\n"
    );
    std::fs::write(&experiment, text)?;
    run(Command::new(headwater()?).args(["lab", "run", "--target", url, "--results"]).arg(results).arg(&experiment))?;
    let results = Connection::open_with_flags(results, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let sql = "SELECT operations * 1e9 / elapsed_ns, (SELECT sum(cpu_ns) * 1.0 / sum(span_ns) FROM process WHERE name = 'lab') \
               FROM run WHERE state = 'done' AND errors = 0";
    let row = results.query_row(sql, [], |row| Ok((row.get::<_, f64>(0)?, row.get::<_, f64>(1)?)));
    let (rate, processors) = row.context("the run has no result")?;
    Ok(Turn { rate, cpu: Duration::from_secs_f64(processors / rate) })
}

fn by_pgbench(arguments: &TpcbArguments, url: &str) -> Result<Turn> {
    let TpcbArguments { clients, threads, seconds, .. } = arguments;
    let before = of_children()?;
    let options =
        [("-c", clients), ("-j", threads), ("-T", seconds)].map(|(name, value)| [name.to_owned(), value.to_string()]);
    let said = run(Command::new("pgbench").args(["-n", "-M", "prepared"]).args(options.as_flattened()).arg(url))?;
    let cpu = of_children()?.saturating_sub(before);
    let number = |begin: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(begin));
        let word = line.and_then(|rest| rest.split([' ', '/']).next()).and_then(|word| word.parse::<f64>().ok());
        word.with_context(|| format!("pgbench told no {begin:?}: {said}"))
    };
    let transactions = number("number of transactions actually processed: ")?;
    Ok(Turn { rate: number("tps = ")?, cpu: cpu.div_f64(transactions) })
}

/// Processor time of the programs that we have waited for.
fn of_children() -> Result<Duration> {
    let stat = Process::myself()?.stat()?;
    Ok(Duration::from_secs_f64((stat.cutime + stat.cstime) as f64 / procfs::ticks_per_second() as f64))
}

pub(crate) fn headwater() -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("headwater");
    let path = std::env::var_os("HEADWATER").map_or(beside, PathBuf::from);
    ensure!(path.is_file(), "{} is missing: cargo build --release -p headwater", path.display());
    Ok(path)
}

pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{} could not be run", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}
