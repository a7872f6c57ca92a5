//! Users of a server, who read records by remote cursors.
//!
//! Each user is a thread with a connection of its own and one cursor on it, which goes over the table again and again. The server is `headwater serve` over a
//! SQLite file: the small table lies in the cache of each of its connections, so that the packer's own cost is most of what is seen, and the big one in the
//! system's memory. All arms are one server, whose knobs `headwater tune` sets before each turn. A turn begins once every user has read some messages, so that
//! opening is no part of it.
//!
//! *Caveats.* The users are this process, and take processor time of the server's. Rows of cursors don't pass through the server's buffer pool: its
//! skips are set in one arm because the slides have it.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use headwater_cursor::{Connection, Credentials, Cursor, Error, Options, Server, ValueRef};
use headwater_lab::report::{Curve, Plot};
use headwater_protocol::cursor::Question;
use procfs::process::Process;
use tempfile::TempDir;

use super::calls::{Calls, Counting};
use super::{RECORD, ReadprobeArguments, TABLES, median, seconds, spent};
use crate::gateway::stage::Served;

/// Records of the tables.
const RECORDS: [u64; 2] = [2_048, 640_000];
/// How often a cursor goes over its table, so that a turn never sees its end.
const PASSES: [u64; 2] = [100_000, 1_000];
/// Two full messages: one is read while the other comes.
const WINDOW_BYTES: u64 = 128 << 10;
/// Rows of each user before a turn: after so many the automatic packer's messages are full.
const BEFORE: u64 = 1_000;
/// Within which all of them have come.
const BEGINS_WITHIN: Duration = Duration::from_mins(1);
/// How long one that found no room waits.
const COME_BACK: Duration = Duration::from_millis(20);
/// What the slides print, and where: above the first arm after the baseline, and above the last (openedge-readprobe-gains.csv).
const PUBLISHED: [(f64, f64); 3] = [(0.0, 0.0), (1.0, 32.0), (4.0, 212.0)];

/// How messages are packed, and the pool's skips.
pub(super) struct Arm {
    pub(super) name: &'static str,
    message_size: u32,
    records: &'static str,
    priority: u32,
    fill: u32,
    skips: u32,
}

/// What OpenEdge had by default, with its larger message: one of 1,024 bytes is full with eight records, whatever `records` says.
const BASELINE: Arm = Arm { name: "baseline", message_size: 8_192, records: "16", priority: 0, fill: 0, skips: 0 };

/// The slides' arms, between the two ends.
pub(super) const ARMS: [Arm; 7] = [
    Arm { name: "one record", records: "1", ..BASELINE },
    BASELINE,
    Arm { name: "records", records: "64", ..BASELINE },
    Arm { name: "priority", priority: 64, ..BASELINE },
    Arm { name: "both", records: "64", priority: 64, ..BASELINE },
    Arm { name: "both with skips", records: "64", priority: 64, skips: 100, ..BASELINE },
    Arm { name: "automatic", message_size: 65_536, records: "automatic", priority: 64, fill: 100, skips: 0 },
];
/// Where the slides' arms are among them.
const SLIDES: std::ops::Range<usize> = 1..6;

/// A server with both tables.
pub(super) struct Stand {
    served: Served,
    server: Server,
    _folder: TempDir,
}

/// What one turn came to.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    rows: f64,
    messages: f64,
    seconds: f64,
    /// The server's processor time in the system and outside of it, in seconds.
    system: f64,
    own: f64,
    /// Times that a thread of the server gave its processor away.
    switches: f64,
}

/// The turns of a table, an arm and a number of users.
struct Cell {
    table: usize,
    arm: usize,
    users: usize,
    turns: Vec<Turn>,
    /// System calls, and the rows that they were counted with.
    calls: Option<(Calls, f64)>,
}

/// What all users of a turn have read.
#[derive(Default)]
pub(super) struct Read {
    rows: AtomicU64,
    messages: AtomicU64,
    is_over: AtomicBool,
}

/// Measures and tells; the plots by name.
pub(super) fn measure(arguments: &ReadprobeArguments, stand: &Stand, are_counted: bool) -> Result<Vec<(String, Plot)>> {
    let mut cells = Vec::new();
    for (table, name) in arguments.tables() {
        for (number, users) in arguments.users.iter().copied().enumerate() {
            eprintln!("readprobe: cursors, {name} table, {users} users ({} of {})", number + 1, arguments.users.len());
            let mut turns = ARMS.map(|_| Vec::new());
            for _ in 0..arguments.repetitions {
                for (arm, turns) in ARMS.iter().zip(&mut turns) {
                    stand.set(arm)?;
                    turns.push(stand.turn(table, users, |read| stand.watch(read, arguments))?);
                }
            }
            for (arm, turns) in turns.into_iter().enumerate() {
                let is_counted = are_counted && arguments.is_counted(users);
                let counted = is_counted.then(|| stand.counted(table, users, arm, arguments)).transpose()?;
                let cell = Cell { table, arm, users, turns, calls: counted };
                cell.tell();
                cells.push(cell);
            }
        }
    }
    let plots = arguments.tables().flat_map(|(table, name)| {
        [
            (format!("cursors-{name}-rate"), rates(&cells, table)),
            (format!("network-{name}"), gains(&cells, table, arguments)),
        ]
    });
    Ok(plots.collect())
}

impl Stand {
    pub(super) fn start(arguments: &ReadprobeArguments) -> Result<Stand> {
        eprintln!("readprobe: tables are made");
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("records.db");
        let tables: Vec<(usize, &str)> = arguments.tables().collect();
        make(&file, &tables)?;
        let queries: Vec<(&str, String)> = tables.iter().map(|(table, name)| (*name, query(*table, name))).collect();
        let queries: Vec<(&str, &str)> = queries.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let options =
            "\n[gateway.cursor]\ncursors_max = 400\n\n[pool]\npolicy = \"lru\"\n\n[admin]\nlisten = \"127.0.0.1:0\"\n";
        let running = Served::start(&format!("sqlite:{}", file.display()), &queries, options)?;
        let url = format!("http://{}", running.place);
        let server = Server { url, credentials: Credentials::Nothing, ca_file: None };
        Ok(Stand { served: running, server, _folder: folder })
    }

    /// Sets the knobs of the running server.
    pub(super) fn set(&self, arm: &Arm) -> Result<()> {
        let Arm { message_size, records, priority, fill, skips, .. } = arm;
        self.served.tune(&[
            format!("gateway.cursor.message_size={message_size}"),
            format!("gateway.cursor.records={records}"),
            format!("gateway.cursor.priority={priority}"),
            format!("gateway.cursor.fill={fill}"),
            format!("pool.skips={skips}"),
        ])
    }

    /// A cursor of a table.
    pub(super) fn open(&self, table: usize, window_bytes: u64) -> Result<Cursor, Error> {
        open(&Connection::open(&self.server)?, table, window_bytes)
    }

    /// So many users read while this goes on; it begins when they all do.
    pub(super) fn turn<T>(&self, table: usize, users: usize, of: impl FnOnce(&Read) -> Result<T>) -> Result<T> {
        let read = Read::default();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            for _ in 0..users {
                let (read, tell) = (&read, tell.clone());
                scope.spawn(move || {
                    if let Err(error) = self.read(table, read, &tell) {
                        // Where nobody listens any more, it was told by another.
                        let _ = tell.send(Err(error));
                    }
                });
            }
            let came = begun(&told, users).and_then(|()| of(&read));
            read.is_over.store(true, Ordering::Relaxed);
            let came = came?;
            told.try_iter().collect::<Result<()>>()?;
            Ok(came)
        })
    }

    /// Reads records until it is over. `tell`: told once, after the first of them.
    fn read(&self, table: usize, all: &Read, tell: &Sender<Result<()>>) -> Result<()> {
        let connection = Connection::open(&self.server)?;
        let mut before = 0;
        while !all.is_over.load(Ordering::Relaxed) {
            let mut cursor = open(&connection, table, WINDOW_BYTES)?;
            while !all.is_over.load(Ordering::Relaxed) {
                let rows = match next(&mut cursor) {
                    Ok(0) => bail!("a cursor has ended, which goes over its table {} times", PASSES[table]),
                    Ok(rows) => rows,
                    // Those of the turn before have left no place yet.
                    Err(error) if error.code() == "overloaded" => {
                        std::thread::sleep(COME_BACK);
                        break;
                    }
                    Err(error) => return Err(error.into()),
                };
                all.rows.fetch_add(rows, Ordering::Relaxed);
                all.messages.fetch_add(1, Ordering::Relaxed);
                if before < BEFORE && before + rows >= BEFORE {
                    tell.send(Ok(()))?;
                }
                before += rows;
            }
        }
        Ok(())
    }

    /// What is read in the time of a turn.
    fn watch(&self, read: &Read, arguments: &ReadprobeArguments) -> Result<Turn> {
        let before = self.look(read, Instant::now())?;
        let began = Instant::now();
        std::thread::sleep(seconds(arguments.cursor_seconds));
        let after = self.look(read, began)?;
        Ok(Turn {
            rows: after.rows - before.rows,
            messages: after.messages - before.messages,
            seconds: after.seconds,
            system: after.system - before.system,
            own: after.own - before.own,
            switches: after.switches - before.switches,
        })
    }

    /// How far everything is.
    fn look(&self, read: &Read, since: Instant) -> Result<Turn> {
        let [rows, messages] = [&read.rows, &read.messages].map(|count| count.load(Ordering::Relaxed) as f64);
        let seconds = since.elapsed().as_secs_f64();
        let (own, system) = spent(self.served.id())?;
        Ok(Turn { rows, messages, seconds, system, own, switches: switches(self.served.id())? })
    }

    /// The server's system calls in a turn of their own, and its rows.
    fn counted(&self, table: usize, users: usize, arm: usize, arguments: &ReadprobeArguments) -> Result<(Calls, f64)> {
        self.set(&ARMS[arm])?;
        self.turn(table, users, |read| {
            let counting = Counting::start(self.served.id())?;
            let before = read.rows.load(Ordering::Relaxed);
            std::thread::sleep(seconds(arguments.cursor_seconds));
            let after = read.rows.load(Ordering::Relaxed);
            Ok((counting.stop()?, (after - before) as f64))
        })
    }
}

/// Waits until all of them have told.
fn begun(told: &Receiver<Result<()>>, users: usize) -> Result<()> {
    let until = Instant::now() + BEGINS_WITHIN;
    for number in 0..users {
        let left = until.saturating_duration_since(Instant::now());
        told.recv_timeout(left).with_context(|| format!("{number} of {users} users have begun in time"))??;
    }
    Ok(())
}

fn open(connection: &Connection, table: usize, window_bytes: u64) -> Result<Cursor, Error> {
    let question = Question::Named(TABLES[table].to_owned(), Vec::new());
    connection.open_cursor(question, Options { window_bytes, kept_bytes: 0 })
}

/// Reads the next message; its rows, each of which is looked at.
fn next(cursor: &mut Cursor) -> Result<u64, Error> {
    let mut rows = 0;
    cursor.next_rows(|values| {
        let [ValueRef::Int(id), ValueRef::Int(code), .., ValueRef::Text(note)] = values else {
            panic!("it is another record: {values:?}");
        };
        assert_eq!(id % 1_000, *code, "it is another record");
        black_box(note.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        rows += 1;
    })?;
    Ok(rows)
}

/// Tables whose records have 128 bytes in a message.
fn make(file: &std::path::Path, tables: &[(usize, &str)]) -> Result<()> {
    let connection = rusqlite::Connection::open(file)?;
    connection.execute_batch("PRAGMA journal_mode = WAL")?;
    for (table, name) in tables {
        let (records, note) = (RECORDS[*table], RECORD - 32);
        connection.execute_batch(&format!(
            "CREATE TABLE {name}(id INTEGER PRIMARY KEY, code INTEGER, name TEXT, note TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {records})
             INSERT INTO {name} SELECT i, i % 1000, printf('record %016d', i), printf('%.{note}c', char(97 + i % 26)) FROM n"
        ))?;
    }
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    Ok(())
}

fn query(table: usize, name: &str) -> String {
    format!(
        "-- public = true\n-- rows_max = 1000000000000\n-- bytes_max = 1000000000000000\n\
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})\n\
         SELECT id, code, name, note FROM n CROSS JOIN {name}",
        PASSES[table]
    )
}

/// How often the threads of a process have given their processors away.
fn switches(process: u32) -> Result<f64> {
    let tasks = Process::new(process.cast_signed())?.tasks()?;
    // One that has ended meanwhile is none any more.
    let statuses = tasks.flatten().filter_map(|task| task.status().ok());
    Ok(statuses.filter_map(|status| status.voluntary_ctxt_switches).sum::<u64>() as f64)
}

impl Cell {
    fn rate(&self) -> f64 {
        median(self.turns.iter().map(|turn| turn.rows / turn.seconds).collect())
    }

    fn tell(&self) {
        // Processor time is counted in hundredths of a second: all turns together.
        let sum = |of: fn(&Turn) -> f64| self.turns.iter().map(of).sum::<f64>();
        let rows = sum(|turn| turn.rows);
        let calls = self.calls.map(|(calls, rows)| format!(", system calls {}", calls.of_each(rows)));
        println!(
            "row cursors {} {} users {}: {:.0} rows/s, {:.1} rows a message, of a row {:.3} us of system and {:.3} us of own time, {:.4} switches{}",
            TABLES[self.table],
            ARMS[self.arm].name,
            self.users,
            self.rate(),
            rows / sum(|turn| turn.messages),
            sum(|turn| turn.system) / rows * 1e6,
            sum(|turn| turn.own) / rows * 1e6,
            sum(|turn| turn.switches) / rows,
            calls.unwrap_or_default(),
        );
    }
}

/// Rows a second against users, a curve for each arm.
fn rates(cells: &[Cell], table: usize) -> Plot {
    let curves = ARMS.iter().enumerate().map(|(arm, Arm { name, .. })| {
        let own = cells.iter().filter(|cell| (cell.table, cell.arm) == (table, arm));
        let points = own.map(|cell| (cell.users as f64, cell.rate())).collect();
        Curve { name: (*name).to_owned(), points, is_published: false }
    });
    let title = format!("Records read by cursors from the {} table", TABLES[table]);
    Plot { title, x: "users".into(), y: "rows/s".into(), curves: curves.collect() }
}

/// What each of the slides' arms gains over the baseline.
fn gains(cells: &[Cell], table: usize, arguments: &ReadprobeArguments) -> Plot {
    let mut users: Vec<usize> = arguments.users.iter().copied().filter(|users| arguments.is_counted(*users)).collect();
    users.sort_unstable();
    users.dedup();
    let mut curves: Vec<Curve> = users
        .into_iter()
        .map(|users| {
            let rate = |arm: usize| {
                let cell = cells.iter().find(|cell| (cell.table, cell.arm, cell.users) == (table, arm, users));
                cell.map_or(0.0, Cell::rate)
            };
            let gain = |arm: usize| ((arm - SLIDES.start) as f64, (rate(arm) / rate(SLIDES.start) - 1.0) * 100.0);
            let name = if users == 1 { "one user".to_owned() } else { format!("{users} users") };
            Curve { name, points: SLIDES.map(gain).collect(), is_published: false }
        })
        .collect();
    let name = "slides, their first and their last label".to_owned();
    curves.push(Curve { name, points: PUBLISHED.into(), is_published: true });
    let title = format!("Rows more by the packer's knobs, {} table", TABLES[table]);
    let x = "0: baseline, 1: records, 2: priority, 3: both, 4: both with skips".to_owned();
    Plot { title, x, y: "over the baseline, per cent".into(), curves }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_over_the_baseline_of_as_many_users() {
        let turn = |rows: f64| Turn { rows, messages: 1.0, seconds: 2.0, ..Turn::default() };
        let cell =
            |arm: usize, users: usize, rows: f64| Cell { table: 0, arm, users, turns: vec![turn(rows)], calls: None };
        let cells: Vec<Cell> = (0..ARMS.len())
            .flat_map(|arm| [cell(arm, 1, 100.0 * (arm + 1) as f64), cell(arm, 2, 1_000.0 + arm as f64)])
            .collect();
        let line = <Line as clap::Parser>::parse_from(["readprobe", "--users", "2,1", "--tables", "small"]);
        let plot = gains(&cells, 0, &line.arguments);
        let names: Vec<&str> = plot.curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["one user", "2 users", "slides, their first and their last label"]);
        assert_eq!(plot.curves[0].points, [(0.0, 0.0), (1.0, 50.0), (2.0, 100.0), (3.0, 150.0), (4.0, 200.0)]);
        assert_eq!(rates(&cells, 0).curves[6].points, [(1.0, 350.0), (2.0, 503.0)]);
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ReadprobeArguments,
    }

    #[test]
    fn records_are_as_large_as_those_in_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("records.db");
        make(&file, &[(0, "small")]).expect("made");
        let connection = rusqlite::Connection::open(&file).expect("a file");
        let sql = "SELECT count(*), max(length(name) + length(note)) FROM small";
        let told: (i64, i64) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("a row");
        assert_eq!(told, (RECORDS[0].cast_signed(), RECORD as i64 - 32 + 23));
        assert!(query(1, "big").contains("CROSS JOIN big"));
    }
}
