//! A campaign's file, read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Row};

use super::{APPLICATION_ID, ResultsError, VERSION};
use crate::error::Error;
use crate::harness::{Histogram, Second, Traffic, Work};
use crate::sync::PHASES;

/// A campaign from its file.
#[derive(Debug)]
pub struct Campaign {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    /// The experiment's name.
    pub name: String,
    /// What it is to show.
    pub about: String,
    /// Where all that is random came from.
    pub seed: u64,
    /// Of each cell.
    pub repetitions: u64,
    /// That were planned.
    pub runs_planned: u64,
    /// UTC.
    pub started: String,
    /// UTC; none where the lab was killed, or still runs.
    pub ended: Option<String>,
    /// `running` (or killed), `done`, `interrupted`, `failed`.
    pub state: String,
    /// The experiment's file.
    pub file: String,
    /// The experiment as it was written, passwords left out.
    pub specification: String,
}

/// A run, without its histograms.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunRow {
    pub(crate) id: i64,
    pub(crate) cell: i64,
    pub(crate) repetition: i64,
    pub(crate) state: String,
    pub(crate) detail: Option<String>,
    pub(crate) elapsed_ns: i64,
    /// The time of its sets, where operations were done in sets.
    pub(crate) sets_ns: Option<i64>,
    pub(crate) operations: i64,
    pub(crate) errors: i64,
    pub(crate) late: i64,
    pub(crate) dropped: i64,
    pub(crate) longest_queue: i64,
    pub(crate) refusals: i64,
    pub(crate) retries: i64,
    pub(crate) processors: Option<f64>,
    pub(crate) bottleneck: Option<String>,
    pub(crate) evidence: Option<String>,
    pub(crate) is_steady: Option<bool>,
    pub(crate) traffic: Traffic,
    /// Processors of the machine that were busy, and its load, on average; none: nothing was sampled.
    pub(crate) machine: Option<(f64, f64)>,
    /// How many.
    pub(crate) sets: Option<i64>,
    /// Of all processors' time in sets.
    pub(crate) server_percent: Option<f64>,
    pub(crate) database_percent: Option<f64>,
    /// Until all showed at the replica.
    pub(crate) drained_ns: Option<i64>,
}

/// A sync, in nanoseconds from the end of the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncRow {
    pub(crate) client: i64,
    pub(crate) began_ns: i64,
    pub(crate) ended_ns: i64,
    /// At the server: its begin, its end, and how long each phase took; none: the server has said nothing of it.
    pub(crate) served: Option<(i64, i64, [i64; PHASES.len()])>,
}

impl RunRow {
    /// Operations a second.
    pub(crate) fn rate(&self) -> f64 {
        let time = self.sets_ns.unwrap_or(self.elapsed_ns);
        if time > 0 { self.operations as f64 * 1e9 / time as f64 } else { 0.0 }
    }
}

impl Campaign {
    /// Opens results to read them.
    pub fn open(path: &Path) -> Result<Campaign, Error> {
        let refuse = |what: &str| Err(ResultsError::usage(path, what, None).into());
        let sqlite = |source: rusqlite::Error| ResultsError::usage(path, "the file can't be read", Some(source));
        if !path.is_file() {
            return refuse("there is no such file");
        }
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(sqlite)?;
        let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        if number("application_id").map_err(sqlite)? != APPLICATION_ID {
            return refuse("the file is no results of `headwater lab run`");
        }
        let version = number("user_version").map_err(sqlite)?;
        if version != VERSION {
            return refuse(&format!("the file has version {version}, this program reads {VERSION}"));
        }
        let sql =
            "SELECT name, about, seed, repetitions, runs, started, ended, state, file, specification FROM campaign";
        let row = connection.query_row(sql, [], |row| {
            let text = |place| row.get::<_, String>(place);
            let count = |place| row.get::<_, i64>(place).map(|number| number as u64);
            let counts = (count(2)?, count(3)?, count(4)?);
            Ok((text(0)?, text(1)?, counts, text(5)?, row.get(6)?, text(7)?, text(8)?, text(9)?))
        });
        let (name, about, counts, started, ended, state, file, specification) = row.map_err(sqlite)?;
        let (seed, repetitions, runs_planned) = counts;
        let path = path.to_owned();
        let campaign = Campaign {
            connection,
            path,
            name,
            about,
            seed,
            repetitions,
            runs_planned,
            started,
            ended,
            state,
            file,
            specification,
        };
        Ok(campaign)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The numbers that a query gives, a row each, and in its second column, where it has one, what they are of. At least one; NULL is none.
    pub fn numbers(&self, sql: &str) -> Result<Vec<(f64, String)>, Error> {
        let wrong = |what: &str, source| Error::from(ResultsError::usage(&self.path, what, source));
        let numbers = self.connection.prepare(sql).and_then(|mut statement| {
            let has_group = statement.column_count() > 1;
            let group = |row: &Row<'_>| if has_group { row.get(1).map(shown) } else { Ok(String::new()) };
            let rows = statement.query_map([], |row| Ok((row.get::<_, Option<f64>>(0)?, group(row)?)))?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        let numbers = numbers.map_err(|source| wrong("the query can't be answered", Some(source)))?;
        let numbers: Vec<_> = numbers.into_iter().filter_map(|(number, group)| Some((number?, group))).collect();
        if numbers.is_empty() { Err(wrong("the query gives no number", None)) } else { Ok(numbers) }
    }

    /// The machine and the targets.
    pub fn environment(&self) -> Result<Vec<(String, String)>, Error> {
        self.rows("SELECT key, value FROM environment ORDER BY key", |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// Errors of all runs: cell, class, how many, and what the first said.
    pub fn errors(&self) -> Result<Vec<(u64, String, u64, String)>, Error> {
        let sql = "SELECT cell, class, sum(count), min(example) FROM error JOIN run ON run.id = error.run \
                   GROUP BY cell, class ORDER BY cell, class";
        self.rows(sql, |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?, row.get::<_, i64>(2)? as u64, row.get(3)?)))
    }

    /// The keys in which cells differ, in the experiment's order.
    pub fn varied(&self) -> Result<Vec<String>, Error> {
        let sql = "SELECT key FROM cell_value WHERE is_varied GROUP BY key ORDER BY min(position)";
        self.rows(sql, |row| row.get(0))
    }

    pub(crate) fn cells(&self) -> Result<Vec<(i64, String)>, Error> {
        self.rows("SELECT id, scenario FROM cell ORDER BY id", |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// All values of a cell: key, value, whether it varies.
    pub(crate) fn values(&self, cell: i64) -> Result<Vec<(String, String, bool)>, Error> {
        let sql = format!("SELECT key, value, is_varied FROM cell_value WHERE cell = {cell} ORDER BY position");
        self.rows(&sql, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
    }

    pub(crate) fn runs(&self) -> Result<Vec<RunRow>, Error> {
        let sql = "SELECT id, cell, state, detail, elapsed_ns, operations, errors, late, dropped, longest_queue, repetition, processors, \
                   bottleneck, evidence, sets_ns, is_steady, refusals, retries, coalesce(sent_bytes, 0), coalesce(received_bytes, 0), \
 coalesce(body_bytes, 0), coalesce(content_bytes, 0), coalesce(hits, 0), coalesce(misses, 0), busy, load, replica_drained_ns, sets, server_percent, database_percent \
 FROM run LEFT JOIN traffic ON traffic.run = run.id \
 LEFT JOIN (SELECT run AS of, sum(busy_ns) * 1.0 / sum(span_ns) AS busy, avg(load) AS load FROM machine GROUP BY run) ON of = id \
 ORDER BY id";
        self.rows(sql, |row| {
            let count = |place| row.get::<_, i64>(place).map(|number| number as u64);
            Ok(RunRow {
                id: row.get(0)?,
                cell: row.get(1)?,
                state: row.get(2)?,
                detail: row.get(3)?,
                elapsed_ns: row.get(4)?,
                operations: row.get(5)?,
                errors: row.get(6)?,
                late: row.get(7)?,
                dropped: row.get(8)?,
                longest_queue: row.get(9)?,
                repetition: row.get(10)?,
                processors: row.get(11)?,
                bottleneck: row.get(12)?,
                evidence: row.get(13)?,
                sets_ns: row.get(14)?,
                is_steady: row.get(15)?,
                refusals: row.get(16)?,
                retries: row.get(17)?,
                traffic: Traffic {
                    sent_bytes: count(18)?,
                    received_bytes: count(19)?,
                    body_bytes: count(20)?,
                    content_bytes: count(21)?,
                    hits: count(22)?,
                    misses: count(23)?,
                },
                machine: row.get::<_, Option<f64>>(24)?.zip(row.get(25)?),
                drained_ns: row.get(26)?,
                sets: row.get(27)?,
                server_percent: row.get(28)?,
                database_percent: row.get(29)?,
            })
        })
    }

    /// The seconds of a run in which operations ended.
    pub(crate) fn seconds(&self, run: i64) -> Result<Vec<Second>, Error> {
        let sql = format!(
            "SELECT second, operations, errors, response_p50_ns, response_p99_ns, response_max_ns, response_mean_ns, \
             queries, updates, deletes, inserts, rows_read FROM second WHERE run = {run} ORDER BY second"
        );
        self.rows(&sql, |row| {
            let count = |place| row.get::<_, i64>(place).map(|number| number as u64);
            let time = |place| count(place).map(Duration::from_nanos);
            Ok(Second {
                second: count(0)?,
                operations: count(1)?,
                errors: count(2)?,
                response_p50: time(3)?,
                response_p99: time(4)?,
                response_max: time(5)?,
                response_mean: time(6)?,
                work: Work {
                    queries: count(7)?,
                    updates: count(8)?,
                    deletes: count(9)?,
                    inserts: count(10)?,
                    rows_read: count(11)?,
                },
            })
        })
    }

    /// The syncs of a run, by client.
    pub(crate) fn syncs(&self, run: i64) -> Result<Vec<SyncRow>, Error> {
        let sql = format!(
            "SELECT client, began_ns, ended_ns, server_began_ns, server_ended_ns, receive_ns, wait_ns, greet_ns, upload_ns, download_ns, \
             send_ns FROM sync WHERE run = {run} ORDER BY client, began_ns"
        );
        self.rows(&sql, |row| {
            let served = match (row.get(3)?, row.get(4)?) {
                (Some(began), Some(ended)) => {
                    let mut phases = [0; PHASES.len()];
                    for (place, phase) in phases.iter_mut().enumerate() {
                        *phase = row.get(5 + place)?;
                    }
                    Some((began, ended, phases))
                }
                _ => None,
            };
            Ok(SyncRow { client: row.get(0)?, began_ns: row.get(1)?, ended_ns: row.get(2)?, served })
        })
    }

    /// Adds a run's histogram to another.
    pub(crate) fn add_buckets(&self, run: i64, clock: &str, into: &mut Histogram) -> Result<(), Error> {
        let sql = format!("SELECT up_to_ns, count FROM bucket WHERE run = {run} AND clock = '{clock}'");
        for (up_to, count) in self.rows(&sql, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))? {
            into.record_many(up_to as u64, count as u64);
        }
        Ok(())
    }

    pub(crate) fn rows<T>(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let rows = self.connection.prepare(sql).and_then(|mut statement| statement.query_map([], read)?.collect());
        rows.map_err(|source| ResultsError::new(&self.path, "the file can't be read", Some(source)).into())
    }
}

/// What numbers are of, be it a name or a number.
fn shown(group: Value) -> String {
    match group {
        Value::Text(text) => text,
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Null | Value::Blob(_) => String::new(),
    }
}
