//! `headwater idxbuild`: the indexes of a SQLite database rebuilt in parallel.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use headwater_idxbuild::{Builder, Options, Progress, Report, Step, TempDir, build};
use serde_json::{Value, json};

use crate::Done;
use crate::exit::Exit;
use crate::output::{Output, Unit, about_bytes, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater idxbuild shop.db
  headwater idxbuild shop.db --index bill_customer --index bill_day
  headwater idxbuild shop.db --create 'CREATE INDEX bill_day ON bill(day DESC)' --usage
  headwater idxbuild shop.db --memory 64M --temp-dir /fast:2G --temp-dir /large

Nobody else may have the file open. The indexes are the old ones or the new ones, whatever happens meanwhile, and have been \
read again and held against their tables before it says done. What SQLite must build itself is said. Sizes are bytes, or have \
K, M, G or T behind them (powers of 1024). docs/idxbuild.md says more, and when one does not need it.

Exit codes: 0 done, 2 what was asked for can't be (no such index, keys that are not unique, no database), 3 not now (it is in use, \
there is no room), 4 the file is damaged, or what was built was wrong. Unless it is 0 the file is as it was.";

/// Columns of the drawing.
const DRAWING: usize = 72;

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct IdxbuildArgs {
    /// The SQLite database.
    file: PathBuf,
    /// Only this index; may be given several times.
    #[arg(long = "index", value_name = "INDEX")]
    indexes: Vec<String>,
    /// Create this index; may be given several times.
    #[arg(long, value_name = "SQL")]
    create: Vec<String>,
    /// Threads that read the table and make keys; automatic: one for each processor.
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// Threads that merge one sort group; automatic: the processors that groups at once leave.
    #[arg(long, value_name = "NUMBER")]
    merge_threads: Option<usize>,
    /// Sort groups that the indexes of a table are spread over; automatic: one for each index.
    #[arg(long, value_name = "NUMBER")]
    groups: Option<usize>,
    /// Sort groups that are merged at a time; automatic: one for each processor.
    #[arg(long, value_name = "NUMBER")]
    groups_at_once: Option<usize>,
    /// Size of a sort block, which one thread fills and sorts; automatic: 64K to 8M, by the memory.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    sort_block: Option<u64>,
    /// Size of sorted blocks that are merged into one run when they must leave memory; automatic: a quarter of it.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    merge_block: Option<u64>,
    /// Runs that are merged at a time; automatic: 256.
    #[arg(long, value_name = "NUMBER")]
    merge_width: Option<usize>,
    /// Memory for keys; automatic: half of what the machine has to give.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Where keys go that find no room in memory, and how much at most; may be given several times, filled in this order.
    #[arg(long = "temp-dir", value_name = "PATH[:SIZE]", value_parser = temp_dir)]
    temp_dirs: Vec<TempDir>,
    /// Run SQLite's own integrity check too, before the end; it alone takes longer than a rebuild.
    #[arg(long)]
    integrity_check: bool,
    /// Say nothing unless something fails.
    #[arg(long)]
    silent: bool,
    /// Print the knobs, what each phase took, and the phases of each group over time by thread.
    #[arg(long)]
    usage: bool,
}

/// Rebuilds, and tells what was done.
pub fn run(args: &IdxbuildArgs, output: &Output) -> Done {
    let mut options = Options::default();
    options.indexes.clone_from(&args.indexes);
    options.create.clone_from(&args.create);
    (options.threads, options.merge_threads) = (args.threads, args.merge_threads);
    (options.groups, options.groups_at_once) = (args.groups, args.groups_at_once);
    (options.sort_block, options.merge_block) = (args.sort_block, args.merge_block);
    (options.merge_width, options.memory) = (args.merge_width, args.memory);
    options.temp_dirs.clone_from(&args.temp_dirs);
    options.integrity_check = args.integrity_check;
    // Each run that leaves memory is a file.
    headwater_server::raise_open_files();
    let bar = if args.silent { indicatif::ProgressBar::hidden() } else { output.progress("opening") };
    if !bar.is_hidden() {
        options.progress = Some(progress(bar.clone()));
    }
    let report = build(&args.file, &options);
    bar.finish_and_clear();
    let report = report?;
    if !args.silent {
        output.answer(&as_json(&report), |output| show(&report, args.usage, output))?;
    }
    Ok(Exit::Done)
}

/// Moves a bar as a rebuild goes on; each step begins it anew.
fn progress(bar: indicatif::ProgressBar) -> Arc<dyn Fn(Progress) + Send + Sync> {
    let step = Mutex::new(None);
    Arc::new(move |progress: Progress| {
        let mut step = step.lock().unwrap_or_else(PoisonError::into_inner);
        if *step != Some(progress.step) {
            let doing = match progress.step {
                Step::Scan => "reading the table",
                Step::Build => "writing indexes",
                Step::Verify => "verifying",
            };
            Output::new(false).restart(&bar, doing, Unit::Share, Some(progress.of));
            *step = Some(progress.step);
        }
        bar.set_length(progress.of);
        bar.set_position(progress.done);
    })
}

fn show(report: &Report, usage: bool, output: &Output) -> anyhow::Result<()> {
    let row = |built: &headwater_idxbuild::Built| {
        let (keys, note) = match &built.by {
            Builder::Headwater { keys } => (thousands(*keys), String::new()),
            Builder::Sqlite { why } => (String::new(), format!("built by SQLite: {why}")),
            Builder::Nobody { why } => (String::new(), format!("left as it was: {why}")),
            other => (String::new(), format!("{other:?}")),
        };
        vec![built.index.clone(), built.table.clone(), keys, note]
    };
    output.table(&["index", "table", "keys", ""], report.indexes.iter().map(row))?;
    if usage {
        show_usage(report, output)?;
    }
    let check = if report.integrity_checked { "; SQLite's integrity check finds no fault" } else { "" };
    output.line(format!("done in {:.2} s, verified{check}", report.elapsed.as_secs_f64()))
}

fn show_usage(report: &Report, output: &Output) -> anyhow::Result<()> {
    for (table, knobs) in &report.tables {
        let place = |dir: &TempDir| match dir.limit {
            Some(limit) => format!("{} (at most {})", dir.path.display(), about_bytes(limit)),
            None => dir.path.display().to_string(),
        };
        let places: Vec<String> = knobs.temp_dirs.iter().map(place).collect();
        output.line(format!(
            "\n{table}: threads {}, groups {}, groups at once {}, merge threads {}, merge width {}, memory {}, sort block {}, merge block {}, temporary files in {}",
            knobs.threads,
            knobs.groups,
            knobs.groups_at_once,
            knobs.merge_threads,
            knobs.merge_width,
            about_bytes(knobs.memory),
            about_bytes(knobs.sort_block),
            about_bytes(knobs.merge_block),
            places.join(", ")
        ))?;
    }
    output.line("")?;
    let row = |usage: headwater_idxbuild::PhaseUsage| {
        vec![
            usage.phase.letter().to_string(),
            usage.phase.name().to_owned(),
            format!("{:.3}", usage.elapsed.as_secs_f64()),
            format!("{:.3}", usage.cpu.as_secs_f64()),
            about_bytes(usage.read),
            about_bytes(usage.written),
        ]
    };
    output.table(&["", "phase", "elapsed s", "cpu s", "read", "written"], report.phases().into_iter().map(row))?;
    output.line("")?;
    for line in report.drawing(DRAWING) {
        output.line(line)?;
    }
    output.line("")
}

fn as_json(report: &Report) -> Value {
    let index = |built: &headwater_idxbuild::Built| {
        let (by, keys, why) = match &built.by {
            Builder::Headwater { keys } => ("headwater", Some(*keys), None),
            Builder::Sqlite { why } => ("sqlite", None, Some(why)),
            Builder::Nobody { why } => ("nobody", None, Some(why)),
            _ => ("another", None, None),
        };
        json!({ "index": built.index, "table": built.table, "by": by, "keys": keys, "why": why })
    };
    let table = |(table, knobs): &(String, headwater_idxbuild::Knobs)| {
        json!({
            "table": table, "threads": knobs.threads, "groups": knobs.groups, "groups_at_once": knobs.groups_at_once,
            "merge_threads": knobs.merge_threads, "merge_width": knobs.merge_width, "memory": knobs.memory,
            "sort_block": knobs.sort_block, "merge_block": knobs.merge_block,
            "temp_dirs": knobs.temp_dirs.iter().map(|dir| json!({ "path": dir.path, "limit": dir.limit })).collect::<Vec<_>>(),
        })
    };
    let phase = |usage: &headwater_idxbuild::PhaseUsage| {
        json!({
            "phase": usage.phase.name(), "elapsed_s": usage.elapsed.as_secs_f64(), "cpu_s": usage.cpu.as_secs_f64(),
            "read_bytes": usage.read, "written_bytes": usage.written,
        })
    };
    let span = |span: &headwater_idxbuild::Span| {
        json!({
            "thread": span.thread, "group": span.group, "phase": span.phase.name(),
            "start_s": span.start.as_secs_f64(), "end_s": span.end.as_secs_f64(),
        })
    };
    json!({
        "indexes": report.indexes.iter().map(index).collect::<Vec<_>>(),
        "tables": report.tables.iter().map(table).collect::<Vec<_>>(),
        "phases": report.phases().iter().map(phase).collect::<Vec<_>>(),
        "spans": report.spans.iter().map(span).collect::<Vec<_>>(),
        "elapsed_s": report.elapsed.as_secs_f64(),
        "verified": true,
        "integrity_checked": report.integrity_checked,
    })
}

/// Bytes, or with K, M, G or T behind them.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: give bytes, or K, M, G or T behind a number, as in 64M");
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        Some(b'T' | b't') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A path, and a size behind the last colon where there is one.
fn temp_dir(text: &str) -> Result<TempDir, String> {
    let (path, limit) = match text.rsplit_once(':') {
        Some((path, behind)) if size(behind).is_ok() => (path, size(behind).ok()),
        _ => (text, None),
    };
    let path = PathBuf::from(path);
    if path.is_dir() { Ok(TempDir { path, limit }) } else { Err(format!("{} is no directory", path.display())) }
}

#[cfg(test)]
mod tests {
    use super::{size, temp_dir};

    #[test]
    fn sizes_have_their_letters() {
        assert_eq!(["512", "64k", "64M", "2G", "1T"].map(size), [512, 65_536, 67_108_864, 2 << 30, 1 << 40].map(Ok));
        for wrong in ["", "M", "-1", "1.5G", "64MB", "99999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_temporary_directory_may_have_a_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("a path");
        let with = temp_dir(&format!("{path}:2M")).expect("a directory");
        assert_eq!((with.path.as_path(), with.limit), (folder.path(), Some(2 << 20)));
        assert_eq!(temp_dir(path).expect("a directory").limit, None);
        assert!(temp_dir(&format!("{path}/none")).is_err());
    }
}
