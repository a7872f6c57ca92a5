//! A campaign's file while it runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, params, params_from_iter};
use tokio::time::Instant;

use super::{APPLICATION_ID, ResultsError, VERSION};
use crate::campaign::Seen;
use crate::error::Error;
use crate::experiment::{Cell, Experiment};
use crate::harness::{Ended, Histogram, Measured, Outcome, RunFailure, Traffic, Work};
use crate::plan::{Plan, Run};
use crate::sampling::Sampled;
use crate::sync::{PHASES, Stamped};

/// Writes one campaign. Each call is one durable transaction: after an error the file has all that was written before.
pub struct Writer {
    connection: Connection,
    path: PathBuf,
}

/// A name for the file of a campaign that begins now: `NAME-20260131T120000Z.lab`, or `NAME-20260131T120000Z-2.lab` where that is there.
pub fn usual_name(experiment: &Experiment) -> PathBuf {
    let now = Connection::open_in_memory().and_then(|clock| {
        clock.query_row("SELECT strftime('%Y%m%dT%H%M%SZ', 'now')", [], |row| row.get::<_, String>(0))
    });
    let name = format!("{}-{}", experiment.name, now.unwrap_or_default());
    let names = (1..).map(|number| match number {
        1 => PathBuf::from(format!("{name}.lab")),
        number => PathBuf::from(format!("{name}-{number}.lab")),
    });
    names.into_iter().find(|path| !path.exists()).unwrap_or_default()
}

/// What is kept of a run beside its outcome.
#[derive(Clone, Debug)]
pub struct RunRecord<'r> {
    /// Which.
    pub run: Run,
    /// When it began, as [`Writer::now`] says it.
    pub started: String,
    /// What became of it.
    pub outcome: &'r Outcome,
    /// What was seen beside it, if it was measured.
    pub seen: Option<&'r Seen>,
    /// The processor time that the lab itself took.
    pub client_cpu_ns: Option<u64>,
    /// Of the machine's time that its host kept for others.
    pub steal_percent: Option<f64>,
}

impl Writer {
    /// Begins a file; refuses one that exists.
    pub fn create(path: &Path, experiment: &Experiment, plan: &Plan) -> Result<Writer, Error> {
        if path.exists() {
            let what = "the file exists; results are never overwritten, name another by --results";
            return Err(ResultsError::usage(path, what, None).into());
        }
        let connection = Connection::open(path)
            .map_err(|source| ResultsError::usage(path, "the file can't be made", Some(source)))?;
        let writer = Writer { connection, path: path.to_owned() };
        match writer.begin(experiment, plan) {
            Ok(()) => Ok(writer),
            Err(source) => {
                let error = writer.error(source);
                // Nothing is in it, and another try may have its name.
                drop(writer);
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn begin(&self, experiment: &Experiment, plan: &Plan) -> rusqlite::Result<()> {
        let transaction = self.connection.unchecked_transaction()?;
        transaction.execute_batch(include_str!("schema.sql"))?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.execute(
            "INSERT INTO campaign (name, about, file, specification, seed, repetitions, runs, started, state) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), 'running')",
            params![
                experiment.name,
                experiment.about,
                experiment.file,
                experiment.text,
                plan.seed as i64,
                experiment.repetitions as i64,
                plan.runs.len() as i64,
            ],
        )?;
        for (place, cell) in experiment.cells.iter().enumerate() {
            let scenario = experiment.scenarios.get(cell.scenario).map(|scenario| scenario.name.as_str());
            let id = place as i64 + 1;
            transaction.execute("INSERT INTO cell VALUES (?1, ?2)", params![id, scenario])?;
            for (position, (key, value, is_varied)) in values(cell).into_iter().enumerate() {
                let row = params![id, position as i64, key, value, is_varied];
                transaction.execute("INSERT INTO cell_value VALUES (?1, ?2, ?3, ?4, ?5)", row)?;
            }
        }
        transaction.commit()
    }

    /// Keeps what is known of the machine and the targets.
    pub fn environment(&self, facts: &[(String, String)]) -> Result<(), Error> {
        self.write(|connection| {
            for (key, value) in facts {
                connection.execute("INSERT OR REPLACE INTO environment VALUES (?1, ?2)", params![key, value])?;
            }
            Ok(())
        })
    }

    /// The time as files have it.
    pub fn now(&self) -> Result<String, Error> {
        let now = self.connection.query_row("SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')", [], |row| row.get(0));
        now.map_err(|source| self.error(source))
    }

    /// Keeps a run.
    pub fn run(&self, record: &RunRecord<'_>) -> Result<(), Error> {
        self.write(|connection| {
            let failure = record.outcome.failure.as_ref();
            let state = match failure {
                None => "done",
                Some(RunFailure::Interrupted) => "interrupted",
                Some(_) => "failed",
            };
            let measured = record.outcome.measured.as_ref();
            let sets = measured.and_then(|measured| measured.sets.as_ref());
            let behind = record.seen.and_then(|seen| seen.behind.as_ref());
            let of = |count: fn(&Measured) -> u64| measured.map_or(0, count) as i64;
            connection.execute(
                "INSERT INTO run (cell, repetition, started, state, detail, ended_by, elapsed_ns, operations, errors, late, dropped, \
                 longest_queue, client_cpu_ns, steal_percent, processors, bottleneck, evidence, sets, sets_ns, warmup_ns, is_steady, \
                 refusals, retries, replica_drained_ns, server_percent, database_percent) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26)",
                params![
                    record.run.cell as i64 + 1,
                    record.run.repetition as i64 + 1,
                    record.started,
                    state,
                    failure.map(ToString::to_string),
                    measured.map(|measured| ended_by(&measured.ended)),
                    of(|measured| measured.elapsed.as_nanos() as u64),
                    of(|measured| measured.operations),
                    of(|measured| measured.errors.values().map(|counted| counted.count).sum()),
                    of(|measured| measured.late),
                    of(|measured| measured.dropped),
                    of(|measured| measured.longest_queue),
                    record.client_cpu_ns.map(|nanos| nanos as i64),
                    record.steal_percent,
                    record.seen.and_then(|seen| seen.processors),
                    record.seen.map(|seen| seen.verdict.bottleneck.to_string()),
                    record.seen.map(|seen| seen.verdict.evidence.as_str()),
                    sets.map(|sets| sets.count() as i64),
                    sets.map(|sets| sets.time().as_nanos() as i64),
                    of(|measured| measured.warmup.as_nanos() as u64),
                    measured.and_then(|measured| measured.is_steady),
                    of(|measured| measured.attempts.refusals),
                    of(|measured| measured.attempts.retries),
                    behind.and_then(|behind| behind.drained).map(|time| time.as_nanos() as i64),
                    record.seen.and_then(|seen| seen.shares[0]),
                    record.seen.and_then(|seen| seen.shares[1]),
                ],
            )?;
            let id = connection.last_insert_rowid();
            record.seen.map_or(Ok(()), |seen| samples(connection, id, &seen.sampled))?;
            behind.map_or(Ok(()), |behind| buckets(connection, id, "replica", &behind.lags))?;
            if let Some((seen, measured)) = record.seen.zip(measured) {
                syncs(connection, id, &seen.syncs, measured.from)?;
            }
            measured.map_or(Ok(()), |measured| details(connection, id, measured))
        })
    }

    /// Says that no run follows: `done`, `interrupted`, `failed`.
    pub fn end(&self, state: &str) -> Result<(), Error> {
        self.write(|connection| {
            let sql = "UPDATE campaign SET state = ?1, ended = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')";
            connection.execute(sql, [state]).map(|_| ())
        })
    }

    /// Removes the file where no run is in it, so that another try may have its name. Whether it did.
    pub fn discard_if_empty(self) -> bool {
        let runs = self.runs();
        let Writer { connection, path } = self;
        drop(connection);
        runs == Some(0) && std::fs::remove_file(path).is_ok()
    }

    /// How many runs are in it; none: it can't be read.
    fn runs(&self) -> Option<i64> {
        self.connection.query_row("SELECT count(*) FROM run", [], |row| row.get(0)).ok()
    }

    fn write(&self, write: impl FnOnce(&Connection) -> rusqlite::Result<()>) -> Result<(), Error> {
        let done = self.connection.unchecked_transaction().and_then(|transaction| {
            write(&transaction)?;
            transaction.commit()
        });
        done.map_err(|source| self.error(source))
    }

    fn error(&self, source: rusqlite::Error) -> Error {
        let what = match self.runs() {
            Some(runs) if runs > 0 => "the file can't be written; what was written before is kept",
            _ => "the file can't be written, and no run is in it",
        };
        ResultsError::new(&self.path, what, Some(source)).into()
    }
}

fn ended_by(ended: &Ended) -> &'static str {
    match ended {
        Ended::Iterations => "iterations",
        Ended::Duration => "duration",
        Ended::Interval => "interval",
        Ended::Interrupted => "interrupted",
        Ended::Lost(_) => "lost",
    }
}

/// A cell's values, those that vary first.
fn values(cell: &Cell) -> Vec<(String, String, bool)> {
    let varied = cell.varied.iter().map(|(key, value)| (key.clone(), value.clone(), true));
    let parameters = cell.parameters.iter().map(|(name, value)| (format!("scenario.{name}"), value.to_string(), false));
    let mut all: Vec<(String, String, bool)> = varied.collect();
    let settings = cell.settings().into_iter().map(|(key, value)| (key, value, false));
    for value in settings.chain(parameters) {
        if !all.iter().any(|(known, ..)| *known == value.0) {
            all.push(value);
        }
    }
    all
}

fn details(connection: &Connection, run: i64, measured: &Measured) -> rusqlite::Result<()> {
    let mut insert = connection.prepare("INSERT INTO error VALUES (?1, ?2, ?3, ?4)")?;
    for (class, counted) in &measured.errors {
        insert.execute(params![run, class.to_string(), counted.count as i64, counted.example])?;
    }
    let mut insert =
        connection.prepare("INSERT INTO second VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)")?;
    let traffic = measured.attempts.traffic;
    if traffic != Traffic::default() {
        let Traffic { sent_bytes, received_bytes, body_bytes, content_bytes, hits, misses } = traffic;
        let all = [sent_bytes, received_bytes, body_bytes, content_bytes, hits, misses].map(|number| number as i64);
        let row = [run].into_iter().chain(all);
        connection.execute("INSERT INTO traffic VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)", params_from_iter(row))?;
    }
    for second in &measured.series {
        let times = [second.response_p50, second.response_p99, second.response_max, second.response_mean];
        let times = times.map(|time| time.as_nanos() as i64);
        let Work { queries, rows_read, updates, deletes, inserts } = second.work;
        let counts = [second.second, second.operations, second.errors].map(|number| number as i64);
        let work = [queries, updates, deletes, inserts, rows_read].map(|number| number as i64);
        let row = [run].into_iter().chain(counts).chain(times).chain(work);
        insert.execute(params_from_iter(row))?;
    }
    buckets(connection, run, "service", &measured.service)?;
    buckets(connection, run, "response", &measured.response)?;
    let Some(sets) = &measured.sets else { return Ok(()) };
    buckets(connection, run, "start", &sets.starts)?;
    buckets(connection, run, "clock", &sets.clocks)
}

fn samples(connection: &Connection, run: i64, sampled: &Sampled) -> rusqlite::Result<()> {
    let nanos = |time: Duration| time.as_nanos() as i64;
    let mut insert =
        connection.prepare("INSERT INTO machine VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)")?;
    for sample in &sampled.machine {
        let times = [sample.at, sample.span, sample.busy, sample.idle, sample.waiting, sample.disk].map(nanos);
        let bytes = [sample.received_bytes, sample.sent_bytes, sample.read_bytes, sample.written_bytes];
        let numbers = times.into_iter().chain(bytes.map(|bytes| bytes as i64)).map(rusqlite::types::Value::from);
        let row = [run.into()].into_iter().chain(numbers).chain([sample.load.into()]);
        insert.execute(params_from_iter(row))?;
    }
    let mut insert = connection
        .prepare("INSERT INTO process VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)")?;
    for (name, sample) in sampled.processes.iter().flat_map(|(name, all)| all.iter().map(move |one| (name, one))) {
        let times = [sample.at, sample.span, sample.cpu, sample.ready].map(nanos);
        let counts = [
            sample.rss,
            sample.threads,
            sample.voluntary_switches,
            sample.involuntary_switches,
            sample.read_calls,
            sample.write_calls,
            sample.read_bytes,
            sample.written_bytes,
        ];
        let numbers = times.into_iter().chain(counts.map(|count| count as i64)).map(rusqlite::types::Value::from);
        insert.execute(params_from_iter([run.into(), name.clone().into()].into_iter().chain(numbers)))?;
    }
    if let Some(load) = &sampled.server {
        let row = params![run, load.receiving, load.waiting, load.workers_busy, load.uploaders_busy, load.sending];
        connection.execute("INSERT INTO server_load VALUES (?1, ?2, ?3, ?4, ?5, ?6)", row)?;
    }
    let Ok(waits) = &sampled.waits else { return Ok(()) };
    let mut insert = connection.prepare("INSERT INTO wait VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    for wait in &waits.waits {
        let sessions = wait.seen as f64 / waits.looks as f64;
        insert.execute(params![run, wait.state, wait.kind, wait.event, wait.statement, sessions])?;
    }
    let mut insert = connection.prepare("INSERT INTO blocked VALUES (?1, ?2, ?3, ?4)")?;
    for blocked in &waits.blocked {
        let sessions = blocked.seen as f64 / waits.looks_at_blockers as f64;
        insert.execute(params![run, blocked.statement, blocked.behind, sessions])?;
    }
    Ok(())
}

/// Each sync that was measured, by the moment at which measuring began.
fn syncs(connection: &Connection, run: i64, syncs: &[Stamped], from: Instant) -> rusqlite::Result<()> {
    let mut insert =
        connection.prepare("INSERT INTO sync VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)")?;
    let nanos = |moment: Instant| moment.saturating_duration_since(from).as_nanos() as i64;
    for Stamped { client, began, ended, refusals, served } in syncs {
        let own = [run, *client as i64 + 1, nanos(*began), nanos(*ended), *refusals as i64].map(Some);
        let mut theirs = [None; 2 + PHASES.len()];
        if let Some(served) = served {
            let phases = served.phases.iter().map(|phase| phase.as_nanos() as i64);
            let all = [nanos(served.began), nanos(served.ended)].into_iter().chain(phases);
            theirs.iter_mut().zip(all).for_each(|(column, value)| *column = Some(value));
        }
        insert.execute(params_from_iter(own.into_iter().chain(theirs)))?;
    }
    Ok(())
}

fn buckets(connection: &Connection, run: i64, clock: &str, histogram: &Histogram) -> rusqlite::Result<()> {
    let mut insert = connection.prepare("INSERT INTO bucket VALUES (?1, ?2, ?3, ?4)")?;
    for (up_to, count) in histogram.buckets() {
        insert.execute(params![run, clock, up_to as i64, count as i64])?;
    }
    Ok(())
}
