//! A rebuild against SQLite's own REINDEX at its best setting.
//!
//! ```text
//! cargo bench -p headwater-idxbuild                      5,000,000 rows, 5 turns, a gigabyte and a half of disk
//! cargo bench -p headwater-idxbuild -- 500000 3 all      fewer rows and turns; all, memory, one, within: only these figures
//! ```
//!
//! One table of five million rows with five indexes: two of integers, a text of 32 characters, two columns together, random integers of 64
//! bits. Both rebuild the same file in turns; a line `figure NAME VALUE LOW HIGH` is the median of the turns' ratios with its least and
//! greatest. SQLite's best setting is found first, by trying PRAGMA threads and cache_size. `within` creates the five in a transaction that has written to
//! the table, as a remote's first download does, by a connection like that one's.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use headwater_idxbuild::{Options, PhaseUsage, Report, build, build_within};
use rusqlite::Connection;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const TABLE: &str =
    "CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b INTEGER, c TEXT, d INTEGER, e TEXT, r INTEGER)";
const INDEXES: [&str; 5] = ["i_a ON t(a)", "i_b ON t(b)", "i_c ON t(c)", "i_de ON t(d, e)", "i_r ON t(r)"];
/// What is tried: threads that help to sort, and KiB of pages in memory.
const SETTINGS: [(u32, u32); 6] = [(0, 2_000), (2, 2_000), (0, 262_144), (2, 262_144), (0, 2_097_152), (2, 2_097_152)];

fn main() -> Outcome {
    let mut rows = 5_000_000;
    let mut turns = 5;
    let mut wanted = Vec::new();
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (place, argument) in given.iter().enumerate() {
        match (place, argument.parse()) {
            (0, Ok(number)) => rows = number,
            (1, Ok(number)) => turns = number as usize,
            _ => wanted.push(argument.as_str()),
        }
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bench.db");
    make(&path, rows)?;
    let parts = [("all", None, None), ("memory", None, Some(64 << 20)), ("one", Some("i_c"), None)];
    let mut best = BTreeMap::new();
    for (name, index, memory) in parts {
        if wanted.is_empty() || wanted.contains(&name) {
            let setting = match best.get(&index) {
                Some(&setting) => setting,
                None => best_setting(&path, index),
            };
            best.insert(index, setting);
            compare(&path, name, index, memory, (turns, setting))?;
        }
    }
    if wanted.is_empty() || wanted.contains(&"within") {
        compare_within(&path, turns)?;
    }
    Ok(())
}

fn make(path: &Path, rows: u64) -> Outcome {
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
) -> Outcome {
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
fn compare_within(path: &Path, turns: usize) -> Outcome {
    let connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA cache_size = -16384")?;
    let drop_all: String =
        INDEXES.map(|index| format!("DROP INDEX {};", &index[..index.find(' ').unwrap_or(0)])).concat();
    let create: Vec<String> = INDEXES.map(|index| format!("CREATE INDEX {index}")).into();
    let mut options = Options::default();
    options.create.clone_from(&create);
    // What a remote allows.
    options.memory = Some(64 << 20);
    let written = |indexes: &dyn Fn() -> Outcome| -> Outcome<f64> {
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

fn reindex(path: &Path, index: Option<&str>, (threads, cache_kib): (u32, u32), at_most: Duration) -> Outcome<Duration> {
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
