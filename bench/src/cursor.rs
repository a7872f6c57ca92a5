//! Remote cursors: what full messages are worth, how near the packer comes to the best that can be set, and psql beside them.
//!
//! ```text
//! full       a million rows in full messages, against one record a message
//! psql       the automatic packer, against psql that fetches a thousand rows at a time
//! automatic  the automatic packer, against the best of fixed settings
//! slow       the first row, and the longest wait for a row of a consumer that takes its time, against one record a message
//! ```
//!
//! A client is `headwater query run --cursor`, a program of its own as psql is one, and both print the rows to nowhere; but for `slow`, where the
//! client library is used. Servers of all settings run all the while; what is compared takes turns.
#![allow(clippy::print_stdout)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_cursor::{Connection, Credentials, Cursor, Options, Server};
use headwater_protocol::cursor::Question;

use crate::figures::{figure, ratio_of};
use crate::gateway::stage::{Central, Served};
use crate::speed::{Turns, median};
use crate::tpcb::headwater;

const QUERY: &str = "-- public = true\n-- rows_max = 1000000000\n-- bytes_max = 1000000000000\n\
    SELECT id, name, amount, day FROM reading";
const FEW: &str = "-- public = true\nSELECT id, name, amount, day FROM reading LIMIT 2000";
/// How often the first row is waited for in a turn.
const FIRSTS: usize = 51;
/// And how often the slow consumer begins anew.
pub(crate) const PASSES: usize = 5;
/// What the server may send it before it waits: small enough that messages are waited for.
pub(crate) const SLOW_WINDOW_BYTES: u64 = 64 << 10;
const SQL: &str = "SELECT id, name, amount, day FROM reading";
/// Settings that are tried: what OpenEdge had and has, and larger ones.
const FIXED: [(&str, &str); 5] = [
    ("1024/16", "message_size = 1024\nrecords = 16\nfill = 0"),
    ("8192/64", "message_size = 8192\nrecords = 64"),
    ("32600/32766", "message_size = 32600\nrecords = 32766\ndelay_first = true"),
    ("65536/32766", "message_size = 65536\nrecords = 32766\ndelay_first = true"),
    ("262144/32766", "message_size = 262144\nrecords = 32766\ndelay_first = true"),
];
const PARTS: [&str; 4] = ["full", "psql", "automatic", "slow"];
const ONE: &str = "records = 1";
const FULL: &str = "delay_first = true";

/// How large it is.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CursorArguments {
    /// How often each side of a comparison takes its turn.
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// Rows of the result.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Rows that the slow consumer takes, and how many microseconds it takes for each.
    #[arg(long, default_value_t = 5_000)]
    slow_rows: u64,
    #[arg(long, default_value_t = 100)]
    slow_us: u64,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_parser = PARTS)]
    only: Vec<String>,
}

/// Measures.
pub(crate) fn measure(arguments: &CursorArguments) -> Result<()> {
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let central = Central::start()?;
    central.sql(&format!(
        "CREATE TABLE reading AS SELECT i AS id, 'reading of ' || i % 1000 AS name, (i % 100000) / 100.0 AS amount, \
         date '2026-01-01' + (i % 365)::int AS day FROM generate_series(1::bigint, {}) AS i",
        arguments.rows
    ))?;
    central.sql("VACUUM ANALYZE reading")?;
    let bench = Bench { arguments, central: &central };
    for name in PARTS.into_iter().filter(|name| wanted(name)) {
        eprintln!("cursor: {name}");
        match name {
            "full" => bench.full()?,
            "psql" => bench.psql()?,
            "automatic" => bench.automatic()?,
            _ => bench.slow()?,
        }
    }
    Ok(())
}

struct Bench<'a> {
    arguments: &'a CursorArguments,
    central: &'a Central,
}

impl Bench<'_> {
    /// A server whose messages are packed so.
    fn serve(&self, packing: &str) -> Result<Served> {
        Served::start(
            &self.central.url,
            &[("readings", QUERY), ("few", FEW)],
            &format!("\n[gateway.cursor]\n{packing}\n"),
        )
    }

    /// Rows a second that the program takes of a server.
    fn rate(&self, served: &Served) -> Result<f64> {
        let mut command = Command::new(headwater()?);
        command.args(["query", "run", "readings", "--cursor", "--format", "csv", "--server"]);
        command.arg(format!("http://{}", served.place));
        self.timed(command)
    }

    fn timed(&self, mut command: Command) -> Result<f64> {
        let begin = Instant::now();
        let status = command.stdout(Stdio::null()).status().context("starting a client")?;
        ensure!(status.success(), "{command:?} failed");
        Ok(self.arguments.rows as f64 / begin.elapsed().as_secs_f64())
    }

    /// Both give the same rows, but for psql's head and how it writes them.
    fn check(&self, served: &Served) -> Result<()> {
        let mut command = Command::new(headwater()?);
        command.args(["query", "run", "readings", "--cursor", "--format", "csv", "--server"]);
        let out = command.arg(format!("http://{}", served.place)).output()?;
        let lines = out.stdout.split(|byte| *byte == b'\n').count() as u64;
        ensure!(out.status.success() && lines == self.arguments.rows + 2, "{lines} lines came of the cursor");
        Ok(())
    }

    fn compare(
        &self,
        name: &str,
        [ours_name, theirs_name]: [&str; 2],
        ours: impl Fn() -> Result<f64>,
        theirs: impl Fn() -> Result<f64>,
    ) -> Result<()> {
        let mut turns = Turns::default();
        for turn in 0..self.arguments.repetitions {
            turns.take(turn, &ours, &theirs)?;
        }
        println!("rate cursor.{ours_name} {:.0}", turns.median(0));
        println!("rate cursor.{theirs_name} {:.0}", turns.median(1));
        turns.tell(name, |[ours, theirs]| ours / theirs);
        Ok(())
    }

    fn full(&self) -> Result<()> {
        let (full, one) = (self.serve(FULL)?, self.serve(ONE)?);
        self.check(&full)?;
        let rates = ["full_rows_per_s", "one_record_rows_per_s"];
        self.compare("cursor.full_vs_one_record", rates, || self.rate(&full), || self.rate(&one))
    }

    fn psql(&self) -> Result<()> {
        let served = self.serve("")?;
        let psql = || {
            let mut command = Command::new("psql");
            command.args(["-q", "-X", "-A", "-t", "-F", ",", "-v", "FETCH_COUNT=1000", "-c", SQL]);
            command.arg(&self.central.url);
            self.timed(command)
        };
        let rates = ["rows_per_s", "psql_rows_per_s"];
        self.compare("cursor.vs_psql", rates, || self.rate(&served), psql)
    }

    /// Each turn has them all; the best is the one with the best median.
    fn automatic(&self) -> Result<()> {
        let automatic = self.serve("")?;
        let fixed = FIXED.map(|(name, packing)| self.serve(packing).map(|served| (name, served)));
        let fixed = fixed.into_iter().collect::<Result<Vec<_>>>()?;
        let (mut ours, mut theirs) = (Vec::new(), vec![Vec::new(); fixed.len()]);
        for _ in 0..self.arguments.repetitions {
            ours.push(self.rate(&automatic)?);
            for ((_, served), rates) in fixed.iter().zip(&mut theirs) {
                rates.push(self.rate(served)?);
            }
        }
        println!("rate cursor.automatic_rows_per_s {:.0}", median(&ours));
        for ((name, _), rates) in fixed.iter().zip(&theirs) {
            println!("rate cursor.fixed_{}_rows_per_s {:.0}", name.replace('/', "_"), median(rates));
        }
        let best = theirs.iter().max_by(|one, other| median(one).total_cmp(&median(other))).context("settings")?;
        figure("cursor.automatic_vs_best_fixed", ratio_of(&ours, best));
        Ok(())
    }

    fn slow(&self) -> Result<()> {
        let (automatic, one) = (self.serve("")?, self.serve(ONE)?);
        let mut taken: [Vec<[f64; 2]>; 2] = [Vec::new(), Vec::new()];
        // Medians of many: a first row is there in a millisecond.
        for _ in 0..self.arguments.repetitions {
            for (served, taken) in [&automatic, &one].into_iter().zip(&mut taken) {
                taken.push(self.consume(served)?);
            }
        }
        for (place, name) in ["first_row", "longest_gap"].into_iter().enumerate() {
            let [ours, theirs] = taken.each_ref().map(|turns| turns.iter().map(|turn| turn[place]).collect::<Vec<_>>());
            println!("rate cursor.{name}_us {:.0}", median(&ours) * 1e6);
            println!("rate cursor.one_record_{name}_us {:.0}", median(&theirs) * 1e6);
            figure(&format!("cursor.{name}_vs_one_record"), ratio_of(&ours, &theirs));
        }
        Ok(())
    }

    /// Seconds until the first row, and the longest wait for a row of a consumer that takes its time for each: medians of some cursors, as one
    /// wait of many is whatever else the machine does.
    fn consume(&self, served: &Served) -> Result<[f64; 2]> {
        let url = format!("http://{}", served.place);
        let connection = Connection::open(&Server { url, credentials: Credentials::Nothing, ca_file: None })?;
        let options = Options { window_bytes: SLOW_WINDOW_BYTES, kept_bytes: 0 };
        let open = || connection.open_cursor(Question::Named("readings".to_owned(), Vec::new()), options);
        let mut firsts = Vec::new();
        for _ in 0..FIRSTS {
            let begin = Instant::now();
            let mut few = connection.open_cursor(Question::Named("few".to_owned(), Vec::new()), options)?;
            few.next_row()?.context("there are rows")?;
            firsts.push(begin.elapsed().as_secs_f64());
            // Read to its end, so that the server keeps its connection to the database.
            while few.next_row()?.is_some() {}
        }
        let (rows, work) = (self.arguments.slow_rows, Duration::from_micros(self.arguments.slow_us));
        let longest = (0..PASSES).map(|_| longest_gap(&mut open()?, rows, work)).collect::<Result<Vec<_>>>()?;
        Ok([median(&firsts), median(&longest)])
    }
}

/// The longest wait for a row of one pass over so many, in seconds; the consumer's own time for a row is no part of it.
pub(crate) fn longest_gap(cursor: &mut Cursor, rows: u64, work: Duration) -> Result<f64> {
    cursor.next_row()?;
    let mut longest = Duration::ZERO;
    for _ in 0..rows {
        std::thread::sleep(work);
        let begin = Instant::now();
        cursor.next_row()?.context("there are more")?;
        longest = longest.max(begin.elapsed());
    }
    Ok(longest.as_secs_f64())
}
