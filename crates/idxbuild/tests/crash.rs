//! kill -9 at any point: after SQLite's own recovery all indexes are the old ones, or all are the new ones.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use headwater_idxbuild::{Options, build};
use headwater_testkit::random::Random;
use rusqlite::Connection;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// In the child: the file that it rebuilds.
const FILE: &str = "HEADWATER_IDXBUILD_FILE";
const KILLS: u64 = 40;

fn make(path: &Path, journal: &str) -> Outcome {
    let connection = Connection::open(path)?;
    connection.execute_batch(&format!(
        "PRAGMA journal_mode = {journal}; PRAGMA synchronous = OFF;
         CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);
         CREATE INDEX t_b ON t(b);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 8000)
           INSERT INTO t SELECT i, i * 7919 % 10007, hex(i * 31337 % 65521) || hex(zeroblob(20)) FROM n;"
    ))?;
    Ok(())
}

fn options() -> Options {
    let mut options = Options::default();
    options.indexes.push("t_b".to_owned());
    options.create.extend(["CREATE INDEX t_a ON t(a)", "CREATE INDEX t_ab ON t(a DESC, b)"].map(str::to_owned));
    options.memory = Some(1 << 20);
    options.sort_block = Some(32 << 10);
    options
}

/// Not a test of its own: what the child does.
#[test]
fn child() -> Outcome {
    if let Some(path) = std::env::var_os(FILE) {
        build(Path::new(&path), &options())?;
    }
    Ok(())
}

/// How many indexes there are after the child was killed; the file must be sound.
fn after(path: &Path) -> Outcome<i64> {
    let connection = Connection::open(path)?;
    let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    let rows: i64 =
        connection.query_row("SELECT count(*) FROM t INDEXED BY t_b WHERE b >= ''", [], |row| row.get(0))?;
    assert_eq!((sound.as_str(), rows), ("ok", 8000));
    Ok(connection.query_row("SELECT count(*) FROM sqlite_schema WHERE type = 'index'", [], |row| row.get(0))?)
}

fn killed(journal: &str) -> Outcome {
    let folder = tempfile::tempdir()?;
    let (whole, path) = (folder.path().join("whole.db"), folder.path().join("x.db"));
    make(&whole, journal)?;
    let run = || {
        Command::new(std::env::current_exe()?).args(["--exact", "child"]).env(FILE, &path).stdout(Stdio::null()).spawn()
    };
    std::fs::copy(&whole, &path)?;
    let start = Instant::now();
    assert!(run()?.wait()?.success(), "{journal}: it is possible");
    let takes = start.elapsed();
    assert_eq!(after(&path)?, 3);
    let mut random = Random::seeded(1);
    let (mut old, mut new, mut kills) = (0, 0, 0);
    // Spread over all of it, and a little beyond: machines are not always as fast.
    for turn in 0..KILLS {
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let _ = std::fs::remove_file(folder.path().join(format!("x.db{suffix}")));
        }
        std::fs::copy(&whole, &path)?;
        let mut child = run()?;
        let within = takes.mul_f64((turn as f64 + random.below(1000) as f64 / 1000.0) * 1.2 / KILLS as f64);
        std::thread::sleep(within.max(Duration::from_micros(100)));
        child.kill()?;
        kills += u64::from(child.wait()?.signal() == Some(9));
        match after(&path)? {
            1 => old += 1,
            3 => new += 1,
            other => return Err(format!("{journal}, turn {turn}: {other} indexes").into()),
        }
    }
    eprintln!("{journal}: killed {kills} times; {old} times the old indexes, {new} times the new ones");
    assert!(kills > 0 && old > 0, "{journal}: {kills} kills, {old} old");
    Ok(())
}

#[test]
fn killed_with_a_rollback_journal() -> Outcome {
    killed("DELETE")
}

#[test]
fn killed_with_a_log() -> Outcome {
    killed("WAL")
}
