//! How long a download holds a remote's write lock, and how long another writer of the file waits: a table of 150,000 rows with two further
//! indexes, all of them updated (a delta), and the same table whole again with 95 % equal rows.
//!
//! The old way stands beside it in the same run: one transaction that decodes, looks at the log and upserts row by row. The program still
//! takes it where a trigger of the application's is on a table of the model; the second remote has one, on a table without rows.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use headwater_remote::Remote;
use headwater_tests::{Kind, World};
use rusqlite::{Connection, params};

use crate::figures::{figure, measured, ratio};

/// How large it is.
#[derive(clap::Args, Debug)]
pub(crate) struct LockArguments {
    /// Rows of the table.
    #[arg(long, default_value_t = 150_000)]
    rows: u32,
    /// How often each takes its turn.
    #[arg(long, default_value_t = 5)]
    repetitions: u32,
}

const MODEL: &str = r#"
name = "stock"
version = 1
[tables.item]
key = ["id"]
conflict = "consolidated_wins"
columns = { id = "int not null", name = "text not null", place = "text not null", quantity = "int not null" }
[tables.other]
key = ["id"]
conflict = "consolidated_wins"
columns = { id = "int not null" }
"#;
const TABLES: &str = "
    CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT NOT NULL, place TEXT NOT NULL, quantity INTEGER NOT NULL);
    CREATE TABLE other (id INTEGER PRIMARY KEY);";
/// What the application has made in each remote's file.
const OWN: &str = "
    CREATE INDEX own_name ON item (name);
    CREATE INDEX own_place ON item (place, quantity);
    CREATE TABLE own_note (written INTEGER);
    INSERT INTO own_note VALUES (0);";
/// With it the program goes the old way.
const OLD_WAY: &str = "CREATE TRIGGER own_other AFTER DELETE ON other BEGIN UPDATE own_note SET written = 0; END";
/// Of every so many rows one differs when the table comes whole.
const DIFFERENT: u32 = 20;
/// How often a writer that waits tries again, and how long it rests after it has written.
const STEP: Duration = Duration::from_millis(1);

/// What another writer met.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    longest: Duration,
    /// All that was longer than a writer alone waits.
    held: Duration,
}

/// Measures.
pub(crate) fn measure(arguments: &LockArguments) -> Result<()> {
    let world = World::new(Kind::Sqlite, TABLES, MODEL, &["ann"])?;
    world.central.execute(&numbers(
        arguments.rows,
        "INSERT INTO item SELECT i, 'name ' || i, 'place ' || (i % 1000), i FROM n",
    ))?;
    let mut remotes = ["before", "now"].map(|name| prepared(&world, name));
    let [Ok(before), Ok(now)] = &mut remotes else {
        return Err(remotes.into_iter().find_map(Result::err).context("a remote could not be made")?);
    };
    let layout = world.path("now");
    let (mut deltas, mut wholes, mut bare) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()], Vec::new());
    // The first turn warms up.
    for turn in 0..=arguments.repetitions {
        let update = |rows: &str| {
            format!("UPDATE item SET name = 'name {turn} ' || ((id * 7919) % 1000003), quantity = quantity + 1 {rows}")
        };
        world.central.execute(&update(""))?;
        let delta = [&mut *before, &mut *now].map(|remote| download(&world, remote, arguments.rows));
        world.central.execute(&update(&format!("WHERE id % {DIFFERENT} = {}", turn % DIFFERENT)))?;
        let whole = [&mut *before, &mut *now].map(|remote| {
            remote.reset()?;
            download(&world, remote, arguments.rows)
        });
        let row_by_row = upsert(&layout, arguments.rows)?;
        for (which, (delta, whole)) in delta.into_iter().zip(whole).enumerate() {
            let (delta, whole) = (delta?, whole?);
            let way = ["the old way", "now"][which];
            eprintln!("turn {turn}, {way}: delta {delta:.3?}, whole {whole:.3?}; bare {row_by_row:.3?}");
            if turn > 0 {
                deltas[which].push(delta);
                wholes[which].push(whole);
            }
        }
        if turn > 0 {
            bare.push(row_by_row);
        }
    }
    tell(arguments.rows, &deltas, &wholes, &bare);
    Ok(())
}

fn tell(rows: u32, [before, now]: &[Vec<Waits>; 2], [whole_before, whole_now]: &[Vec<Waits>; 2], bare: &[Duration]) {
    let longest = |waits: &[Waits]| waits.iter().map(|one| one.longest).collect::<Vec<_>>();
    let held = |waits: &[Waits]| waits.iter().map(|one| one.held).collect::<Vec<_>>();
    let ms =
        |times: &[Duration]| measured(&times.iter().map(|time| time.as_secs_f64() * 1e3).collect::<Vec<_>>()).value;
    for (name, waits) in [("delta_old", before), ("delta", now), ("whole_old", whole_before), ("whole", whole_now)] {
        println!("rate remote.lock_{name}_ms {:.1}", ms(&held(waits)));
        println!("rate remote.longest_wait_{name}_ms {:.1}", ms(&longest(waits)));
    }
    println!("rate remote.bare_row_by_row_ms {:.1}", ms(bare));
    let per_100k: Vec<f64> = now.iter().map(|one| one.held.as_secs_f64() * 1e3 * 100_000.0 / f64::from(rows)).collect();
    figure("remote.lock_ms_per_100k_rows", measured(&per_100k));
    figure("remote.writer_wait_vs_old", ratio(&longest(now), &longest(before)));
    figure("remote.lock_equal_vs_old", ratio(&held(whole_now), &held(whole_before)));
}

/// SQL over the numbers from 1 on, as `n(i)`.
fn numbers(count: u32, sql: &str) -> String {
    let (into, select) = sql.split_once(" SELECT ").unwrap_or(("", sql));
    format!("{into} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT {select}")
}

/// A remote that has synchronized once, with the application's indexes.
fn prepared(world: &World, name: &str) -> Result<Remote> {
    let mut remote = world.remote(name, "ann")?;
    world.sync(&mut remote)?;
    world.edit(name, OWN)?;
    if name == "before" {
        world.edit(name, OLD_WAY)?;
    }
    Ok(remote)
}

/// A sync that brings these rows, beside another writer.
fn download(world: &World, remote: &mut Remote, rows: u32) -> Result<Waits> {
    let path = remote.path().to_owned();
    let (report, waits) = beside_a_writer(&path, || world.sync_as(remote, "ann"))?;
    ensure!(report.rows_down == u64::from(rows), "{} rows came down, expected {rows}", report.rows_down);
    Ok(waits)
}

/// Does some work while an application writes to the file all the time; gives how long that had to wait.
fn beside_a_writer<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<(T, Waits)> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(path, &is_done));
        let done = work();
        is_done.store(true, Ordering::Relaxed);
        let waits = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
        Ok((done?, waits?))
    })
}

fn write_until(path: &Path, is_done: &AtomicBool) -> Result<Waits> {
    let mut connection = Connection::open(path)?;
    // SQLite's own pauses grow to a tenth of a second, which would be measured too.
    connection.busy_handler(Some(|_| {
        thread::sleep(STEP);
        true
    }))?;
    let mut waits = Waits::default();
    while !is_done.load(Ordering::Relaxed) {
        let begin = Instant::now();
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let waited = begin.elapsed();
        connection.execute_batch("UPDATE own_note SET written = written + 1; COMMIT")?;
        waits.longest = waits.longest.max(waited);
        if waited > 2 * STEP {
            waits.held += waited;
        }
        thread::sleep(STEP);
    }
    Ok(waits)
}

/// Bare SQLite: as many rows, which are in memory already, upserted row by row in one transaction into the same table with the same indexes.
fn upsert(layout: &Path, rows: u32) -> Result<Duration> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bare.db");
    let mut bare = Connection::open(&path)?;
    bare.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    bare.execute_batch("PRAGMA synchronous = normal; PRAGMA cache_size = -16384")?;
    bare.execute_batch(&format!("{TABLES}{OWN}"))?;
    bare.execute("ATTACH ?1 AS remote", [layout.to_string_lossy()])?;
    bare.execute_batch("INSERT INTO item SELECT * FROM remote.item; DETACH remote")?;
    let values: Vec<(u32, String)> =
        (1..=rows).map(|id| (id, format!("name of {}", u64::from(id) * 7919 % 1_000_003))).collect();
    let begin = Instant::now();
    let transaction = bare.transaction()?;
    {
        let mut upsert = transaction.prepare(
            "INSERT INTO item VALUES (?1, ?2, 'place ' || (?1 % 1000), ?1 + 1000) ON CONFLICT (id) DO UPDATE SET name = excluded.name, \
             place = excluded.place, quantity = excluded.quantity",
        )?;
        for (id, name) in &values {
            upsert.execute(params![id, name])?;
        }
    }
    transaction.commit()?;
    Ok(begin.elapsed())
}
