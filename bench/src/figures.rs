//! What is measured, and against what.
#![allow(clippy::print_stdout)]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_consolidated::download::{self, DownloadRequest};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::system::{self, PurgeRequest};
use headwater_lab::figures::Measured;
use headwater_model::remote_sql;
use headwater_protocol::Kind;
use headwater_protocol::frame::HEADER_BYTES;
use headwater_protocol::message::Watermarks;
use headwater_remote::Remote;
use headwater_testkit::Postgres;
use headwater_tests::{Central, World, read_model};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::{bare, memory, purchase};

/// Rows of one upload.
const UPLOAD_ROWS: u64 = 1_000;
/// Of the upload of a million: its first number, above all others; rows of each statement of the bare loop; and how often it is done at most.
const MANY_FIRST: u64 = 1_000_000_000;
const MANY_ROWS: u64 = 10_000;
const MANY_REPETITIONS: usize = 3;
/// Whose rows are downloaded, inserted by the bare loop, uploaded, updated with and without conflict detection.
const DOWNLOADED: u32 = 1;
const INSERTED: u32 = 2;
const UPLOADED: u32 = 3;
const DETECTED: u32 = 4;
const UNDETECTED: u32 = 5;

/// The database, the server and the clients of a run.
pub(crate) struct Bench {
    _postgres: Postgres,
    world: World,
    /// The same tables by a model that detects no conflicts.
    without_detection: World,
    runtime: Runtime,
    client: Client,
    repetitions: usize,
}

impl Bench {
    /// Starts all of it.
    pub(crate) fn start(repetitions: usize) -> Result<Bench> {
        let postgres =
            Postgres::builder().fsync(true).set("shared_buffers", "1GB").set("max_wal_size", "8GB").start()?;
        let url = postgres.create_database()?;
        let runtime = Runtime::new()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, NoTls))?;
        runtime.spawn(connection);
        runtime.block_on(client.batch_execute(purchase::TABLES))?;
        for (user, employee) in
            [("down", DOWNLOADED), ("up", UPLOADED), ("detected", DETECTED), ("undetected", UNDETECTED)]
        {
            runtime.block_on(client.execute("INSERT INTO member VALUES ($1, $2)", &[&user, &(employee as i32)]))?;
        }
        let world = serve(&url, purchase::MODEL)?;
        let without = purchase::MODEL
            .replace("consolidated_wins", "off")
            .replace("\"purchase\"\nversion", "\"purchase_off\"\nversion");
        let without_detection = serve(&url, &without)?;
        Ok(Bench { _postgres: postgres, world, without_detection, runtime, client, repetitions })
    }

    /// Fills the tracked table with the rows that are downloaded, in transactions of ten thousand.
    pub(crate) fn fill(&self, rows: u64) -> Result<()> {
        eprintln!("filling the table with {rows} rows");
        self.insert(DOWNLOADED, rows)?;
        self.runtime.block_on(self.client.batch_execute("VACUUM ANALYZE purchase"))?;
        Ok(())
    }

    fn insert(&self, employee: u32, rows: u64) -> Result<()> {
        for first in (1..=rows).step_by(10_000) {
            let some = (rows - first + 1).min(10_000);
            let sql = format!("INSERT INTO purchase {}", purchase::rows_sql(employee, first, some));
            self.runtime.block_on(self.client.batch_execute(&sql))?;
        }
        Ok(())
    }

    /// The side table with its indexes against the table with its index.
    pub(crate) fn tracking_space(&self) -> Result<()> {
        let (table, side) = self.space()?;
        println!("rate sync.table_bytes {table}");
        println!("rate sync.side_table_bytes {side}");
        figure("sync.tracking_space", side as f64 / table as f64);
        Ok(())
    }

    /// The same when each row has been updated once, before any of it is old enough to be purged, and after all is.
    pub(crate) fn tracking_space_updated(&self, rows: u64) -> Result<()> {
        for first in (1..=rows).step_by(10_000) {
            let sql = format!(
                "UPDATE purchase SET cost = cost + 1 WHERE emp_id = {DOWNLOADED} AND purch_id >= {first} AND purch_id < {}",
                first + 10_000
            );
            self.runtime.block_on(self.client.batch_execute(&sql))?;
        }
        for (older_than, is_figure) in [(Duration::from_hours(24 * 30), true), (Duration::ZERO, false)] {
            let mut connection = self.world.central.backend()?.connect()?;
            system::take_note(&mut *connection)?;
            let begin = Instant::now();
            let purged =
                system::purge(&mut *connection, &PurgeRequest { older_than, step: Duration::ZERO }, &mut || true)?;
            eprintln!("purging what is older than {older_than:?}: {purged:?} in {:?}", begin.elapsed());
            self.runtime.block_on(self.client.batch_execute("VACUUM"))?;
            let (table, side) = self.space()?;
            if is_figure {
                figure("sync.tracking_space_updated", side as f64 / table as f64);
            } else {
                println!("rate sync.side_table_bytes_purged {side}");
            }
        }
        Ok(())
    }

    /// Bytes of the table and of the side table, with their indexes.
    fn space(&self) -> Result<(i64, i64)> {
        let sql = "SELECT pg_total_relation_size('purchase'), (SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c \
                   JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'headwater' AND c.relkind = 'r' AND c.relname LIKE 'side%')";
        let row = self.runtime.block_on(self.client.query_one(sql, &[]))?;
        let (table, side): (i64, i64) = (row.get(0), row.get(1));
        ensure!(side > 0, "no side table was found");
        Ok((table, side))
    }

    /// Bytes of frames a row before compression, headers and all.
    pub(crate) fn wire_bytes(&self) -> Result<()> {
        let backend = self.world.central.backend()?;
        let mut connection = backend.connect()?;
        let (mut bytes, mut rows_frames) = (0, 0);
        let request = DownloadRequest {
            plan: &self.world.plan,
            user: "down",
            remote_id: [0; 16],
            watermarks: &Watermarks::default(),
            restart: false,
            life: None,
            own: &[],
            echo: &Echo::default(),
            conflicted: &[],
            refresh: &[],
            extended: &[],
            packing: None,
            snapshots: None,
            keeps_marks: false,
            tells_leaving: false,
        };
        let (summary, _seen) = download::write(&mut *connection, &request, &mut |frame| {
            rows_frames += u64::from(frame.kind == Kind::Rows);
            bytes += frame.payload(1 << 30)?.len() + HEADER_BYTES;
            Ok(())
        })?;
        ensure!(summary.rows > 0 && rows_frames > 0, "no rows were downloaded");
        println!("rate sync.wire_bytes_compressed {:.1}", summary.wire_bytes as f64 / summary.rows as f64);
        figure("sync.wire_bytes", bytes as f64 / summary.rows as f64);
        Ok(())
    }

    /// The peak of the server's process (this one) and of a remote's during a first download.
    pub(crate) fn memory(&self) -> Result<()> {
        drop(self.world.remote("apart", "down")?);
        memory::reset_peak()?;
        let remote = memory::sync_apart(&self.world.path("apart"), &self.world.token("down")?)?;
        println!("rate sync.download_server_peak_bytes {}", memory::peak_bytes()?);
        println!("rate sync.download_remote_peak_bytes {remote}");
        remove(&self.world.path("apart"))
    }

    /// A first download into a remote against the bare loop; the remote's file against plain ones of the same rows.
    pub(crate) fn download(&self) -> Result<()> {
        let layout = remote_sql::create_table(&self.world.plan.model, &self.world.plan.tables[0].table);
        let (mut bare_times, mut times, mut rows) = (Vec::new(), Vec::new(), 0);
        for repetition in 0..self.repetitions {
            let file = self.world.folder.path().join("bare.db");
            let (time, count) = self.runtime.block_on(bare::download(&self.client, DOWNLOADED, &layout, &file))?;
            bare_times.push(time);
            rows = count;
            let name = format!("down{repetition}");
            let mut remote = self.world.remote(&name, "down")?;
            let begin = Instant::now();
            let report = self.world.sync_as(&mut remote, "down")?;
            drop(remote);
            checkpoint(&self.world.path(&name))?;
            times.push(begin.elapsed());
            ensure!(report.rows_down == rows, "{} rows came down, expected {rows}", report.rows_down);
            eprintln!("download {repetition}: bare {time:?}, headwater {:?}: {:?}", times[repetition], report.times);
            if repetition + 1 == self.repetitions {
                self.remote_space(&self.world.path(&name), &file)?;
            }
            remove(&file)?;
            remove(&self.world.path(&name))?;
        }
        println!("rate sync.bare_download_rows_per_s {:.0}", rate(rows, &bare_times));
        println!("rate sync.download_rows_per_s {:.0}", rate(rows, &times));
        figure("sync.download_vs_bare", ratio(&bare_times, &times));
        figure("speed.first_download", ratio(&bare_times, &times));
        Ok(())
    }

    fn remote_space(&self, remote: &Path, same_layout: &Path) -> Result<()> {
        let plain = self.world.folder.path().join("plain.db");
        self.runtime.block_on(bare::download(&self.client, DOWNLOADED, purchase::SQLITE_TABLE, &plain))?;
        let size = |path: &Path| -> Result<f64> { Ok(std::fs::metadata(path)?.len() as f64) };
        println!("rate sync.remote_bytes {}", size(remote)?);
        println!("rate sync.remote_space_against_rowid_table {:.3}", size(remote)? / size(&plain)?);
        figure("sync.remote_space", size(remote)? / size(same_layout)?);
        remove(&plain)
    }

    /// Uploads of a thousand inserts against a bare loop of the same transactions into the same tracked table.
    pub(crate) fn upload(&self, uploads: u64) -> Result<()> {
        self.runtime.block_on(self.client.batch_execute("CREATE TABLE untracked (LIKE purchase INCLUDING ALL)"))?;
        let each = (uploads / self.repetitions as u64).max(1);
        let tracked = self.runtime.block_on(bare::Upload::prepare(&self.client, "purchase", UPLOAD_ROWS))?;
        let untracked = self.runtime.block_on(bare::Upload::prepare(&self.client, "untracked", UPLOAD_ROWS))?;
        let mut remote = self.uploader()?;
        let (mut bare_times, mut untracked_times, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for repetition in 0..self.repetitions as u64 {
            let (mut bare, mut free, mut ours) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
            for upload in 0..each {
                let first = (repetition * each + upload) * UPLOAD_ROWS + 1;
                bare += self.runtime.block_on(tracked.insert(&self.client, INSERTED, first))?;
                free += self.runtime.block_on(untracked.insert(&self.client, INSERTED, first))?;
                self.write_purchases(first..first + UPLOAD_ROWS)?;
                let begin = Instant::now();
                let report = self.world.sync_as(&mut remote, "up")?;
                ours += begin.elapsed();
                ensure!(
                    report.changes_up == UPLOAD_ROWS && report.refused + report.conflicts == 0,
                    "an upload went wrong: {report:?}"
                );
                if upload + 1 == each {
                    eprintln!(
                        "upload {repetition}: bare {bare:?}, headwater {ours:?}, the last one {:?}",
                        report.times
                    );
                }
            }
            bare_times.push(bare);
            untracked_times.push(free);
            times.push(ours);
        }
        let rows = each * UPLOAD_ROWS;
        println!("rate sync.bare_upload_rows_per_s {:.0}", rate(rows, &bare_times));
        println!("rate sync.bare_untracked_rows_per_s {:.0}", rate(rows, &untracked_times));
        println!("rate sync.upload_rows_per_s {:.0}", rate(rows, &times));
        figure("sync.upload_vs_bare", ratio(&bare_times, &times));
        Ok(())
    }

    /// The remote that uploads: one for all figures, since [`Bench::write_purchases`] writes to its file.
    fn uploader(&self) -> Result<Remote> {
        let path = self.world.path("up");
        let mut remote = if path.exists() { Remote::open(&path)? } else { self.world.remote("up", "up")? };
        self.world.sync(&mut remote)?;
        Ok(remote)
    }

    /// One upload of many inserts by one remote, against one transaction of them that a loop sends.
    pub(crate) fn upload_many(&self, changes: u64) -> Result<()> {
        let bare = self.runtime.block_on(bare::Upload::prepare(&self.client, "purchase", MANY_ROWS))?;
        let mut remote = self.uploader()?;
        let (mut bare_times, mut times) = (Vec::new(), Vec::new());
        for repetition in 0..self.repetitions.min(MANY_REPETITIONS) as u64 {
            let numbers = MANY_FIRST + repetition * changes..MANY_FIRST + (repetition + 1) * changes;
            let begin = Instant::now();
            self.sql("BEGIN")?;
            let mut sent = begin.elapsed();
            for first in numbers.clone().step_by(MANY_ROWS as usize) {
                sent += self.runtime.block_on(bare.insert(&self.client, INSERTED, first))?;
            }
            let begin = Instant::now();
            self.sql("COMMIT")?;
            sent += begin.elapsed();
            self.write_purchases(numbers)?;
            let begin = Instant::now();
            let report = self.world.sync_as(&mut remote, "up")?;
            times.push(begin.elapsed());
            bare_times.push(sent);
            ensure!(
                report.changes_up == changes && report.refused + report.conflicts == 0,
                "it went wrong: {report:?}"
            );
            eprintln!(
                "upload of {changes}, {repetition}: bare {sent:?}, headwater {:?}: {:?}",
                times.last(),
                report.times
            );
            self.sql(&format!("DELETE FROM purchase WHERE purch_id >= {MANY_FIRST}"))?;
            self.sql("VACUUM ANALYZE purchase")?;
            self.world.sync(&mut remote)?;
        }
        println!("rate speed.bare_upload_million_rows_per_s {:.0}", rate(changes, &bare_times));
        figure("speed.upload_million", ratio(&bare_times, &times));
        Ok(())
    }

    fn sql(&self, sql: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }

    /// What the application does at the remote; not timed.
    fn write_purchases(&self, numbers: Range<u64>) -> Result<()> {
        let mut sqlite = bare::open(&self.world.path("up"))?;
        let transaction = sqlite.transaction()?;
        {
            let mut insert =
                transaction.prepare("INSERT INTO purchase VALUES (?1, ?2, ?3, ?4, '2005-01-01 00:00:01', ?5)")?;
            for number in numbers {
                let cost = format!("{}.120000", 123_456_789 + number);
                insert.execute((UPLOADED, number as i64, (number % 1000) as i64, cost, bare::note(number as i32)))?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// The same updates with conflict detection (none occurs) and with the rule `off`.
    pub(crate) fn conflict_cost(&self, updates: u64) -> Result<()> {
        self.insert(DETECTED, updates)?;
        self.insert(UNDETECTED, updates)?;
        let mut with = self.world.remote("detected", "detected")?;
        let mut without = self.without_detection.remote("undetected", "undetected")?;
        self.world.sync(&mut with)?;
        self.without_detection.sync(&mut without)?;
        let (mut with_times, mut without_times) = (Vec::new(), Vec::new());
        let update = "UPDATE purchase SET cost = printf('%d.120000', CAST(cost AS INTEGER) + 1)";
        for repetition in 0..=self.repetitions {
            self.world.edit("detected", update)?;
            self.without_detection.edit("undetected", update)?;
            let begin = Instant::now();
            let report = self.world.sync_as(&mut with, "detected")?;
            let with_time = begin.elapsed();
            ensure!(
                report.changes_up == updates && report.conflicts + report.refused == 0,
                "an update went wrong: {report:?}"
            );
            let begin = Instant::now();
            let report = self.without_detection.sync_as(&mut without, "undetected")?;
            let without_time = begin.elapsed();
            ensure!(
                report.changes_up == updates && report.conflicts + report.refused == 0,
                "an update went wrong: {report:?}"
            );
            eprintln!("conflict {repetition}: with detection {with_time:?}, without {without_time:?}");
            // The first turn warms caches and prepares statements.
            if repetition > 0 {
                with_times.push(with_time);
                without_times.push(without_time);
            }
        }
        println!("rate sync.updates_rows_per_s {:.0}", rate(updates, &with_times));
        println!("rate sync.updates_off_rows_per_s {:.0}", rate(updates, &without_times));
        figure("sync.conflict_cost", ratio(&with_times, &without_times));
        Ok(())
    }
}

fn serve(url: &str, model: &str) -> Result<World> {
    let users = ["down", "up", "detected", "undetected"];
    let mut world = World::over(Central::Postgres(url.to_owned()), tempfile::tempdir()?, read_model(model)?, &users)?;
    world.start_server()?;
    Ok(world)
}

/// Says a figure: a number, or the median of several with its interval.
pub(crate) fn figure(name: &str, value: impl Into<Measured>) {
    let Measured { value, low, high } = value.into();
    println!("figure {name} {value:.3} {low:.3} {high:.3}");
}

fn seconds(times: &[Duration]) -> f64 {
    let mut times: Vec<Duration> = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, Duration::as_secs_f64)
}

/// What each repetition gives: its two sides ran one after the other, on a machine as busy for one as for the other.
pub(crate) fn ratio(these: &[Duration], to_those: &[Duration]) -> Measured {
    let [times, bare] = [these, to_those].map(|times| times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>());
    ratio_of(&times, &bare)
}

/// The same of any numbers.
pub(crate) fn ratio_of(these: &[f64], to_those: &[f64]) -> Measured {
    measured(&these.iter().zip(to_those).map(|(a, b)| a / b).collect::<Vec<_>>())
}

/// What turns gave; no number where there was none.
pub(crate) fn measured(values: &[f64]) -> Measured {
    Measured::of(values).unwrap_or(f64::NAN.into())
}

/// Rows a second, by the median of the times.
pub(crate) fn rate(rows: u64, times: &[Duration]) -> f64 {
    rows as f64 / seconds(times)
}

fn checkpoint(path: &Path) -> Result<()> {
    bare::open(path)?.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").context("checkpointing")
}

/// Removes a SQLite file with what lies beside it.
pub(crate) fn remove(path: &Path) -> Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let file = PathBuf::from(format!("{}{suffix}", path.display()));
        if file.exists() {
            std::fs::remove_file(file)?;
        }
    }
    Ok(())
}
