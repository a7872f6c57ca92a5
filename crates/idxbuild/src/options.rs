//! What a rebuild is told, and the knobs that it turns by itself where it is told nothing.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use crate::error::Error;

/// A directory for temporary files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TempDir {
    /// Where it is.
    pub path: PathBuf,
    /// How many bytes it may hold; `None` for what its disk has.
    pub limit: Option<u64>,
}

/// What to rebuild, and how. Each knob that is `None` is found automatically.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The indexes to rebuild; empty for all, unless there are some to create.
    pub indexes: Vec<String>,
    /// Indexes to create: a CREATE INDEX statement each.
    pub create: Vec<String>,
    /// Threads that read a table's pages and make the keys.
    pub threads: Option<usize>,
    /// Threads that merge one sort group.
    pub merge_threads: Option<usize>,
    /// Sort groups that a table's indexes are spread over.
    pub groups: Option<usize>,
    /// Sort groups that are merged at a time.
    pub groups_at_once: Option<usize>,
    /// Bytes of a sort block.
    pub sort_block: Option<u64>,
    /// Bytes of sorted blocks that are merged into one run when they must leave memory.
    pub merge_block: Option<u64>,
    /// Runs that are merged at a time.
    pub merge_width: Option<usize>,
    /// Bytes of keys in memory.
    pub memory: Option<u64>,
    /// Where runs go that find no room in memory, in this order; empty for the system's directory.
    pub temp_dirs: Vec<TempDir>,
    /// Whether SQLite's own integrity check is run before the end.
    pub integrity_check: bool,
    /// Is told how far it has come, by any thread.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl fmt::Debug for Options {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Options").field("indexes", &self.indexes).field("create", &self.create).finish_non_exhaustive()
    }
}

/// How far a rebuild has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub step: Step,
    /// How much of it is done.
    pub done: u64,
    /// How much there is.
    pub of: u64,
}

/// What a rebuild is doing, in this order for each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Reading the table's pages and making the keys.
    Scan,
    /// Merging the keys and writing the indexes' pages.
    Build,
    /// Reading the indexes again.
    Verify,
}

/// The knobs of a rebuild, as they were given or found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Knobs {
    /// See [`Options::threads`].
    pub threads: usize,
    /// See [`Options::merge_threads`].
    pub merge_threads: usize,
    /// See [`Options::groups`].
    pub groups: usize,
    /// See [`Options::groups_at_once`].
    pub groups_at_once: usize,
    /// See [`Options::sort_block`].
    pub sort_block: u64,
    /// See [`Options::merge_block`].
    pub merge_block: u64,
    /// See [`Options::merge_width`].
    pub merge_width: usize,
    /// See [`Options::memory`].
    pub memory: u64,
    /// See [`Options::temp_dirs`].
    pub temp_dirs: Vec<TempDir>,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Large sort blocks leave fewer runs to merge: those of 2 MiB cost a quarter more at the last merge than those of 8.
const SORT_BLOCK: (u64, u64) = (64 * KIB, 8 * MIB);
/// So many runs are merged at a time: a match more for each key costs less than writing it once more.
const MERGE_WIDTH: usize = 256;
/// What is taken where the system does not say how much memory it has left.
const MEMORY_UNKNOWN: u64 = 256 * MIB;

impl Knobs {
    /// The knobs for a table with so many indexes.
    pub(crate) fn of(options: &Options, indexes: usize) -> Result<Knobs, Error> {
        let processors = available_parallelism().map_or(1, usize::from);
        let threads = at_least_one("--threads", options.threads, processors)?;
        let groups = at_least_one("--groups", options.groups, indexes)?.min(indexes).max(1);
        let groups_at_once = at_least_one("--groups-at-once", options.groups_at_once, processors)?.min(groups);
        let merge_threads =
            at_least_one("--merge-threads", options.merge_threads, processors.div_ceil(groups_at_once))?;
        let merge_width = options.merge_width.unwrap_or(MERGE_WIDTH);
        if merge_width < 2 {
            return Err(wrong("--merge-width", &merge_width, "two runs are the least that can be merged"));
        }
        let memory = options.memory.unwrap_or_else(|| available_memory().map_or(MEMORY_UNKNOWN, |bytes| bytes / 2));
        if memory < MIB {
            return Err(wrong("--memory", &memory, "a mebibyte (1M) is the least"));
        }
        let blocks = (threads * groups) as u64;
        let sort_block = options.sort_block.unwrap_or_else(|| (memory / 4 / blocks).clamp(SORT_BLOCK.0, SORT_BLOCK.1));
        if !(KIB..=1024 * MIB).contains(&sort_block) {
            return Err(wrong("--sort-block", &sort_block, "it is from a kibibyte (1K) to a gibibyte (1G)"));
        }
        let merge_block = options.merge_block.unwrap_or((memory / 4).max(sort_block));
        if merge_block < sort_block {
            return Err(wrong("--merge-block", &merge_block, "it holds one sort block (--sort-block) at least"));
        }
        let mut temp_dirs = options.temp_dirs.clone();
        if temp_dirs.is_empty() {
            temp_dirs.push(TempDir { path: std::env::temp_dir(), limit: None });
        }
        Ok(Knobs {
            threads,
            merge_threads,
            groups,
            groups_at_once,
            sort_block,
            merge_block,
            merge_width,
            memory,
            temp_dirs,
        })
    }

    /// What runs may take of the memory, beside the sort blocks.
    pub(crate) fn for_runs(&self) -> u64 {
        self.memory.saturating_sub(self.sort_block * (self.threads * self.groups) as u64).max(self.memory / 4)
    }

    /// The buffer of one of so many runs on disk that are read at a time.
    pub(crate) fn buffer(&self, runs: usize) -> usize {
        let all = self.memory / 4 / self.groups_at_once as u64;
        (all / runs.max(1) as u64).clamp(4 * KIB, 512 * KIB) as usize
    }
}

fn at_least_one(option: &'static str, given: Option<usize>, automatic: usize) -> Result<usize, Error> {
    match given {
        Some(0) => Err(wrong(option, &0, "one is the least")),
        Some(number) if number > 1024 => Err(wrong(option, &number, "1024 is the most")),
        given => Ok(given.unwrap_or(automatic).max(1)),
    }
}

fn wrong(option: &'static str, actual: &impl ToString, expected: &'static str) -> Error {
    Error::Option { option, actual: actual.to_string(), expected }
}

/// The memory that the system has to give without swapping (proc(5)).
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * KIB)
}
