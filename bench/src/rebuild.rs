//! A rebuild of indexes against SQLite's own REINDEX at its best setting.
//!
//! ```text
//! all      five indexes         memory   the same with 64 MB for keys        one      one index, of texts
//! within   the five created in a transaction that has written to the table, as a remote's first download does, by a connection like its
//! bars     where the time goes: REINDEX, half the memory, old indexes kept until then, none before
//! ```
//!
//! One table of five million rows with five indexes: two of integers, a text of 32 characters, two columns together, random integers of 64
//! bits; 870 MB. SQLite's best setting is found first, by trying PRAGMA threads and cache_size.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use headwater_idxbuild::{Options, Phase, PhaseUsage, Report, build, build_within};
use headwater_lab::report::Bars;
use rusqlite::Connection;

/// How large it is.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RebuildArguments {
    /// Rows of the table.
    #[arg(long, default_value_t = 5_000_000)]
    rows: u64,
    /// How often each side of a comparison takes its turn.
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_parser = ["all", "memory", "one", "within", "bars"])]
    only: Vec<String>,
    /// Where the bars are drawn, as idxbuild-phases.svg.
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

const TABLE: &str =
    "CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b INTEGER, c TEXT, d INTEGER, e TEXT, r INTEGER)";
const INDEXES: [&str; 5] = ["i_a ON t(a)", "i_b ON t(b)", "i_c ON t(c)", "i_de ON t(d, e)", "i_r ON t(r)"];
/// What a remote allows for keys, and the figure of little memory.
const MEMORY_BYTES: u64 = 64 << 20;
/// What is tried: threads that help to sort, and KiB of pages in memory.
const SETTINGS: [(u32, u32); 6] = [(0, 2_000), (2, 2_000), (0, 262_144), (2, 262_144), (0, 2_097_152), (2, 2_097_152)];

/// Measures the parts that are wanted.
pub(crate) fn measure(arguments: &RebuildArguments) -> Result<()> {
    let wanted = |part: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == part);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bench.db");
    make(&path, arguments.rows)?;
    let parts = [("all", None, None), ("memory", None, Some(MEMORY_BYTES)), ("one", Some("i_c"), None)];
    let mut best = BTreeMap::new();
    let mut setting_of = |index| *best.entry(index).or_insert_with(|| best_setting(&path, index));
    for (name, index, memory) in parts.into_iter().filter(|(name, ..)| wanted(name)) {
        compare(&path, name, index, memory, (arguments.repetitions, setting_of(index)))?;
    }
    if wanted("bars") {
        let bars = bars(&path, setting_of(None))?;
        if let Some(folder) = &arguments.plots {
            let path = folder.join("idxbuild-phases.svg");
            std::fs::write(&path, bars.svg()).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    if wanted("within") {
        compare_within(&path, arguments.repetitions)?;
    }
    Ok(())
}

fn make(path: &Path, rows: u64) -> Result<()> {
    let connection = Connection::open(path)?;
    connection.execute_batch(&format!("PRAGMA synchronous = OFF; BEGIN; {TABLE}"))?;
    let mut insert = connection.prepare("INSERT INTO t(a, b, c, d, e, r) VALUES (?, ?, ?, ?, ?, ?)")?;
    let mut state = 1_u64;
    let mut next = move || {
        // SplitMix64: Steele, Lea, Flood, 2014.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    for _ in 0..rows {
        let text = format!("{:016x}{:016x}", next(), next());
        let name = format!("name{:06}", next() % 100_000);
        let numbers = ((next() % rows) as i64, (next() % 1000) as i64, (next() % 100) as i64, next() as i64);
        insert.execute((numbers.0, numbers.1, text, numbers.2, name, numbers.3))?;
    }
    drop(insert);
    for index in INDEXES {
        connection.execute_batch(&format!("CREATE INDEX {index}"))?;
    }
    connection.execute_batch("COMMIT")?;
    Ok(())
}

/// The fastest of the settings.
fn best_setting(path: &Path, index: Option<&str>) -> (u32, u32) {
    let mut best = (Duration::MAX, SETTINGS[0]);
    for setting in SETTINGS {
        // A setting that has taken longer than the best one is given up.
        let took = reindex(path, index, setting, best.0);
        let of = index.unwrap_or("all");
        let told = took.as_ref().map_or("slower".to_owned(), |took| format!("{:.2} s", took.as_secs_f64()));
        eprintln!("REINDEX {of}, threads {} and {} KiB: {told}", setting.0, setting.1);
        best = best.min((took.unwrap_or(Duration::MAX), setting));
    }
    best.1
}

fn compare(
    path: &Path,
    name: &str,
    index: Option<&str>,
    memory: Option<u64>,
    (turns, best): (usize, (u32, u32)),
) -> Result<()> {
    let mut options = Options::default();
    options.indexes.extend(index.map(str::to_owned));
    options.memory = memory;
    let mut times = Vec::new();
    for _ in 0..turns {
        let bare = reindex(path, index, best, Duration::MAX)?.as_secs_f64();
        let start = Instant::now();
        let report = build(path, &options)?;
        let took = start.elapsed().as_secs_f64();
        eprintln!("{name}: REINDEX {bare:.2} s, idxbuild {took:.2} s{}", phases(&report));
        times.push((took, bare));
    }
    told(name, "reindex", &times);
    Ok(())
}

/// The figure of turns that took us and SQLite so many seconds.
fn told(name: &str, other: &str, times: &[(f64, f64)]) {
    let sorted = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = times.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (ratios, middle) = (sorted(|(ours, theirs)| theirs / ours), times.len() / 2);
    println!("figure idxbuild.{name}_vs_{other} {:.3} {:.3} {:.3}", ratios[middle], ratios[0], ratios[times.len() - 1]);
    println!("rate idxbuild.{name}_s {:.3}", sorted(|(ours, _)| *ours)[middle]);
    println!("rate idxbuild.{name}_{other}_s {:.3}", sorted(|(_, theirs)| *theirs)[middle]);
}

/// Creates all indexes within a transaction, SQLite's way and ours.
fn compare_within(path: &Path, turns: usize) -> Result<()> {
    let connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA cache_size = -16384")?;
    let (drop_all, create) = (drop_all(), create_all());
    let mut options = Options::default();
    options.create.clone_from(&create);
    options.memory = Some(MEMORY_BYTES);
    let written = |indexes: &dyn Fn() -> Result<()>| -> Result<f64> {
        connection.execute_batch(&drop_all)?;
        connection.execute_batch("BEGIN IMMEDIATE; UPDATE t SET a = a + 1 WHERE id % 1000 = 0")?;
        let start = Instant::now();
        indexes()?;
        connection.execute_batch("COMMIT")?;
        Ok(start.elapsed().as_secs_f64())
    };
    let mut times = Vec::new();
    for _ in 0..turns {
        let bare = written(&|| Ok(connection.execute_batch(&create.join(";"))?))?;
        let took = written(&|| {
            eprintln!("within: {}", phases(&build_within(&connection, &options)?));
            Ok(())
        })?;
        eprintln!("within: CREATE INDEX {bare:.2} s, idxbuild {took:.2} s");
        times.push((took, bare));
    }
    told("within", "create", &times);
    Ok(())
}

fn reindex(path: &Path, index: Option<&str>, (threads, cache_kib): (u32, u32), at_most: Duration) -> Result<Duration> {
    let start = Instant::now();
    let mut connection = Connection::open(path)?;
    connection.progress_handler(100_000, Some(move || start.elapsed() > at_most))?;
    connection.execute_batch(&format!("PRAGMA threads = {threads}; PRAGMA cache_size = -{cache_kib};"))?;
    connection.execute_batch(&format!("REINDEX {}", index.unwrap_or_default()))?;
    drop(connection);
    Ok(start.elapsed())
}

/// Each phase's elapsed and processor time.
fn phases(report: &Report) -> String {
    let phase = |usage: &PhaseUsage| {
        format!("; {} {:.2} ({:.2})", usage.phase.name(), usage.elapsed.as_secs_f64(), usage.cpu.as_secs_f64())
    };
    report.phases().iter().map(phase).collect()
}

/// What the bars consist of, and which phases each is: those that go on together are one.
const PARTS: [(&str, &[Phase]); 7] = [
    ("SQLite", &[Phase::Sqlite]),
    ("old indexes' pages found", &[Phase::IndexScan]),
    ("table read, keys made and sorted", &[Phase::DataScan, Phase::Spill]),
    ("merged, indexes' pages filled and written", &[Phase::Merge, Phase::Insert, Phase::Write]),
    ("verified", &[Phase::Verify]),
    ("committed", &[Phase::Commit]),
    ("beside these", &[]),
];

/// Where the time goes, way by way.
fn bars(path: &Path, best: (u32, u32)) -> Result<Bars> {
    let sqlite = reindex(path, None, best, Duration::MAX)?.as_secs_f64();
    let mut bars = vec![("REINDEX".to_owned(), vec![sqlite, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])];
    let keys: u64 = std::fs::metadata(path)?.len() / 2;
    let mut options = Options::default();
    options.memory = Some(keys / 2);
    bars.push((
        format!("idxbuild with {} MB for keys, half of what they take", keys >> 21),
        parts(&build(path, &options)?),
    ));
    bars.push(("idxbuild, into the old indexes' pages".to_owned(), parts(&build(path, &Options::default())?)));
    let connection = Connection::open(path)?;
    connection.execute_batch(&drop_all())?;
    drop(connection);
    let mut options = Options::default();
    options.create = create_all();
    bars.push(("idxbuild, no index there before".to_owned(), parts(&build(path, &options)?)));
    for (name, parts) in &bars {
        println!("rate idxbuild.bar {:.3} s, {name}: {parts:.2?}", parts.iter().sum::<f64>());
    }
    let parts = PARTS.map(|(name, _)| name.to_owned()).into();
    Ok(Bars { title: "Five indexes of a table".to_owned(), unit: "s".to_owned(), parts, bars })
}

/// How long some thread was in each part.
fn parts(report: &Report) -> Vec<f64> {
    let mut lengths: Vec<f64> = PARTS.iter().map(|(_, phases)| covered(report, phases)).collect();
    let all: f64 = lengths.iter().sum();
    *lengths.last_mut().expect("there are parts") = (report.elapsed.as_secs_f64() - all).max(0.0);
    lengths
}

/// How much time the spans of these phases cover together.
fn covered(report: &Report, phases: &[Phase]) -> f64 {
    let mut spans: Vec<_> = report.spans.iter().filter(|span| phases.contains(&span.phase)).collect();
    spans.sort_by_key(|span| span.start);
    let (mut covered, mut until) = (Duration::ZERO, Duration::ZERO);
    for span in spans {
        covered += span.end.saturating_sub(span.start.max(until));
        until = until.max(span.end);
    }
    covered.as_secs_f64()
}

fn drop_all() -> String {
    INDEXES.map(|index| format!("DROP INDEX {};", index.split(' ').next().unwrap_or_default())).concat()
}

fn create_all() -> Vec<String> {
    INDEXES.map(|index| format!("CREATE INDEX {index}")).into()
}
