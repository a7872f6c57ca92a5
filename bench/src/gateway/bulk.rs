//! Large answers that are not kept: CSV and Arrow against `COPY` through psql, a Frontier payload against the database's driver, and payloads for
//! a crowd against those for a few.
#![allow(clippy::print_stdout)]

use std::io::Write as _;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use futures_util::TryStreamExt as _;

use super::load::{self, Answer, Load};
use super::stage::{Central, Served, metered};
use super::{GatewayArguments, compare};
use crate::figures::figure;
use crate::purchase;
use crate::speed::Turns;

const BULK_SQL: &str = "SELECT emp_id, purch_id, cust_id, cost, order_date, notes FROM purchase WHERE emp_id = 1";
/// Limits that nothing here reaches.
const FRONTIER: &str = "held_bytes_max = 4194304\nwaiting_max = 1000\n\n[gateway.frontier]\nname = \"Frontier\"\nallowed = [\"127.0.0.1\"]\n\
                        rows_max = 100000000\nbytes_max = 100000000000\nrow_bytes_max = 100000000000\ntime_out_s = 600\nreads_accounts = true\n";
/// Bytes of a payload's rows, and of each of them: from the least to the most of the published payloads.
const PAYLOAD_BYTES: [u64; 5] = [1_300_000, 3_000_000, 6_000_000, 11_300_000, 22_600_000];
const PAYLOAD_ROW_BYTES: u64 = 1_000;
/// The clients against which the crowd is held.
const FEW: usize = 20;

fn fill(central: &Central, rows: u64) -> Result<()> {
    central.sql("DROP TABLE IF EXISTS purchase, member")?;
    central.sql(purchase::TABLES)?;
    central.sql(&format!("INSERT INTO purchase {}", purchase::rows_sql(1, 1, rows)))?;
    central.sql("VACUUM ANALYZE purchase")
}

/// The same rows as CSV and as Arrow by the gateway, and as CSV by psql; each is run for every request.
pub(super) fn against_copy(arguments: &GatewayArguments, central: &Central) -> Result<()> {
    fill(central, arguments.rows)?;
    let text = format!("-- public = true\n-- rows_max = 100000000\n{BULK_SQL}");
    let served = Served::start(&central.url, &[("bulk", &text)], "")?;
    let csv = load::get(served.place, &load::request("/q/bulk.csv", ""))?;
    ensure!(csv.status == 200 && csv.lines == arguments.rows + 1, "{} lines of CSV: {}", csv.lines, csv.head);
    println!("rate gateway.csv_bytes {}", csv.bytes);
    ensure!(copy(central, Stdio::piped())? == arguments.rows, "COPY gives other rows");
    let ours = |name: &str| {
        let request = load::request(&format!("/q/bulk.{name}"), "");
        let load = metered(name, served.id(), || load::once(served.place, vec![request], 1, |_| true))?;
        ensure!(load.failed == 0, "{name} failed");
        Ok(arguments.rows as f64 / load.seconds)
    };
    let theirs = || {
        let begin = Instant::now();
        copy(central, Stdio::null())?;
        Ok(arguments.rows as f64 / begin.elapsed().as_secs_f64())
    };
    for form in ["csv", "arrow"] {
        let rates = [format!("{form}_rows_per_s"), format!("copy_beside_{form}_rows_per_s")];
        let rates = rates.each_ref().map(String::as_str);
        compare(arguments, &format!("gateway.{form}_vs_copy"), rates, || ours(form), theirs)?;
    }
    Ok(())
}

/// Lines that `COPY` gives through psql.
fn copy(central: &Central, out: Stdio) -> Result<u64> {
    let mut command = Command::new("psql");
    command.args(["-q", "-X", "-c", &format!("COPY ({BULK_SQL}) TO STDOUT (FORMAT csv)"), &central.url]);
    let done = command.stdout(out).spawn().context("running psql (apt-get install postgresql-client)")?;
    let done = done.wait_with_output()?;
    ensure!(done.status.success(), "psql failed");
    Ok(done.stdout.split(|byte| *byte == b'\n').count() as u64 - 1)
}

/// A request of the Frontier protocol.
fn frontier(sql: &str) -> Result<Vec<u8>> {
    let mut zipped = ZlibEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(sql.as_bytes())?;
    let p1 = STANDARD.encode(zipped.finish()?).replace('+', ".").replace('/', "-").replace('=', "_");
    let target = format!("/Frontier/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOB&p1={p1}");
    Ok(load::request(&target, "X-Frontier-Id: headwater-bench\r\n"))
}

/// The answer is whole, and has no error.
fn is_good(answer: &Answer) -> bool {
    let tail = String::from_utf8_lossy(&answer.tail);
    tail.trim_end().ends_with("</frontier>") && tail.contains("quality error=\"0\"")
}

/// One client and one large payload, against the driver that the gateway itself reads with.
pub(super) fn frontier_rows(arguments: &GatewayArguments, central: &Central) -> Result<()> {
    let rows = arguments.frontier_rows;
    fill(central, rows)?;
    let served = Served::start(&central.url, &[], FRONTIER)?;
    let request = frontier(BULK_SQL)?;
    let ours = || {
        let load = metered("frontier", served.id(), || load::once(served.place, vec![request.clone()], 1, is_good))?;
        ensure!(load.failed == 0, "the payload failed");
        Ok(rows as f64 / load.seconds)
    };
    let theirs = || {
        let begin = Instant::now();
        let count = central.runtime.block_on(async {
            let mut answer = pin!(central.client.query_raw(BULK_SQL, std::iter::empty::<i32>()).await?);
            let mut count = 0;
            while answer.try_next().await?.is_some() {
                count += 1;
            }
            anyhow::Ok(count)
        })?;
        ensure!(count == rows, "the driver gave {count} rows");
        Ok(rows as f64 / begin.elapsed().as_secs_f64())
    };
    let rates = ["frontier_rows_per_s", "driver_rows_per_s"];
    compare(arguments, "gateway.frontier_rows", rates, ours, theirs)
}

/// A crowd at once and a few, for the same number of payloads, no two of them of the same statement.
pub(super) fn clients(arguments: &GatewayArguments, central: &Central) -> Result<()> {
    let most = PAYLOAD_BYTES.iter().max().copied().unwrap_or_default() / PAYLOAD_ROW_BYTES;
    central.sql(&format!(
        "DROP TABLE IF EXISTS payload; CREATE TABLE payload (id integer PRIMARY KEY, content text NOT NULL);
         INSERT INTO payload SELECT n, (SELECT string_agg(md5((n * 100 + part)::text), '') FROM generate_series(1, {}) AS part)
         FROM generate_series(1, {most}) AS n",
        PAYLOAD_ROW_BYTES / 32
    ))?;
    central.sql("VACUUM ANALYZE payload")?;
    let served = Served::start(&central.url, &[], FRONTIER)?;
    let turn = |turn: usize, clients: usize| -> Result<Load> {
        let requests = (0..arguments.crowd).zip(PAYLOAD_BYTES.iter().cycle()).map(|(number, bytes)| {
            let rows = bytes / PAYLOAD_ROW_BYTES;
            frontier(&format!("SELECT id, content FROM payload WHERE id <= {rows} AND {turn}{number} > -{clients}"))
        });
        let requests = requests.collect::<Result<_>>()?;
        metered(&format!("{clients} clients"), served.id(), || load::once(served.place, requests, clients, is_good))
    };
    let (mut turns, mut failed) = (Turns::default(), 0);
    let mb_per_s = |load: Load| load.bytes as f64 / 1e6 / load.seconds;
    for number in 0..arguments.repetitions.min(3) {
        let crowd = || {
            let load = turn(number, arguments.crowd)?;
            failed += load.failed;
            Ok(mb_per_s(load))
        };
        turns.take(number, crowd, || turn(number, FEW).map(mb_per_s))?;
    }
    println!("rate gateway.clients_150_mb_per_s {:.0}", turns.median(0));
    println!("rate gateway.clients_20_mb_per_s {:.0}", turns.median(1));
    figure("gateway.clients_150_failed", failed as f64);
    turns.tell("gateway.clients_150_throughput", |[crowd, few]| crowd / few);
    Ok(())
}
