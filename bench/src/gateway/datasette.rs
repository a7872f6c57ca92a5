//! The same query from the same SQLite file by Datasette and by the gateway, run for each request.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_testkit::{Child, free_port, wait_until};

use super::load::{self, Load};
use super::stage::{Central, Served, metered};
use super::{GatewayArguments, compare};

const TABLE: &str =
    "CREATE TABLE flight (id INTEGER PRIMARY KEY NOT NULL, origin TEXT NOT NULL, delay INTEGER, fare TEXT NOT NULL);
CREATE INDEX flight_origin ON flight (origin);
WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 29999)
INSERT INTO flight SELECT n, printf('%05d', n / 3), n % 60, printf('%d.%02d', n % 500, n % 100) FROM n";
const SQL: &str = "SELECT id, delay, fare FROM flight WHERE origin = :origin ORDER BY id";
const HEAD: &str = "-- public = true\n-- [parameters]\n-- origin = { type = \"text\", length_max = 5 }\n";

/// An error where the program is missing says how it is installed.
pub(super) fn is_there(program: &Path) -> Result<()> {
    let told = Command::new(program).arg("--version").output();
    let told = told.with_context(|| {
        format!(
            "{} can't be run: python3 -m venv datasette && datasette/bin/pip install datasette, and name it by \
             --datasette datasette/bin/datasette (or DATASETTE)",
            program.display()
        )
    })?;
    ensure!(told.status.success(), "{} --version: {}", program.display(), String::from_utf8_lossy(&told.stderr));
    eprint!("{}", String::from_utf8_lossy(&told.stdout));
    Ok(())
}

/// Requests a second, each client for rows of its own: none waits for what another has asked.
pub(super) fn against_datasette(arguments: &GatewayArguments, _central: &Central) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("flights.db");
    rusqlite::Connection::open(&file)?.execute_batch(TABLE)?;
    let served = Served::start(
        &format!("sqlite:{}", file.display()),
        &[("flights", &format!("{HEAD}{SQL}"))],
        "cache = false\n",
    )?;
    let metadata = folder.path().join("metadata.json");
    let queries = serde_json::json!({ "databases": { "flights": { "queries": { "canned": { "sql": SQL } } } } });
    std::fs::write(&metadata, queries.to_string())?;
    let port = free_port()?;
    let mut command = Command::new(&arguments.datasette);
    command.arg("serve").arg(&file).arg("--metadata").arg(&metadata);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--setting", "default_cache_ttl", "0"]);
    let child = Child::spawn("datasette", &mut command)?;
    let its = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let is_up = wait_until(Duration::from_secs(30), || std::net::TcpStream::connect(its).is_ok());
    ensure!(is_up, "datasette did not start: {}", child.stderr());

    let requests = |path: &str| -> Vec<Vec<u8>> {
        (0..arguments.clients).map(|n| load::request(&format!("{path}origin={n:05}"), "")).collect()
    };
    let ours = requests("/q/flights.json?");
    let theirs = requests("/flights/canned.json?_shape=array&");
    for (place, request) in [(served.place, &ours[0]), (its, &theirs[0])] {
        let answer = load::get(place, request)?;
        let told = String::from_utf8_lossy(&answer.tail).into_owned();
        ensure!(answer.status == 200 && told.contains("2.02"), "{}: {told}", answer.head);
    }
    let turn = |name: &str, place, id, requests: &[Vec<u8>]| {
        let load = metered(name, id, || load::again(place, requests, 200, arguments.turn()));
        load.map(|Load { requests, seconds, .. }| requests as f64 / seconds)
    };
    compare(
        arguments,
        "gateway.datasette_ratio",
        ["sqlite_per_s", "datasette_per_s"],
        || turn("gateway", served.place, served.id(), &ours),
        || turn("datasette", its, child.id(), &theirs),
    )
}
