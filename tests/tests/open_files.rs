//! A server whose limit of open files is lower than its crowd: it says so when it starts, takes as many connections as it can serve, tells
//! the others to come back, and is never left without a file for a sync that it has begun.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_remote::{CreateOptions, Remote, SyncOptions, http::Credentials};
use headwater_testkit::{Child, headwater_binary, wait_until};
use headwater_tests::ledger::{Audit, Ledger, MODEL, Operation, converged, schema};
use headwater_tests::{Central, Kind, World, read_model};

const LONG: Duration = Duration::from_mins(1);
const ANN: &str = "ann";
/// What the limit leaves for connections: the rest of 160 files, halved, without 64 for the server and 3 connections of SQLite.
const CONNECTIONS: u64 = (160 - 64 - 3 * 4) / 2;
const CROWD: usize = 300;
const REMOTES: usize = 60;

/// A server as a process, started by a shell that has set its limit so.
struct Stage {
    world: World,
    server: Child,
    address: SocketAddr,
}

impl Stage {
    fn new(limit: &str) -> Result<Stage> {
        let folder = tempfile::tempdir()?;
        let central = Central::Sqlite(folder.path().join("central.db"));
        central.execute(&schema(Kind::Sqlite))?;
        std::fs::write(folder.path().join("model.toml"), MODEL)?;
        let configuration = format!("models = [\"model.toml\"]\n[database]\nurl = \"{}\"\n", central.url());
        std::fs::write(folder.path().join("headwater.toml"), configuration)?;
        let world = World::over(central, folder, read_model(MODEL)?, &[ANN])?;
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit} && exec \"$@\""), "sh"]).arg(headwater_binary()?);
        command.arg("--config").arg(world.folder.path().join("headwater.toml"));
        // Every spool wants a file.
        command.args(["serve", "--listen", "127.0.0.1:0", "--workers", "2", "--set", "spool_memory_bytes=0"]);
        let mut server = Child::spawn("the server", &mut command)?;
        let line = server.wait_for_line("listening on", LONG)?;
        let address = line.split("http://").nth(1).context("an address")?.trim().parse()?;
        Ok(Stage { world, server, address })
    }

    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(LONG))?;
        Ok(stream)
    }

    /// What the server says of itself, to one that it has taken.
    fn ready(stream: &mut TcpStream) -> Result<serde_json::Value> {
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: test\r\n\r\n")?;
        let answer = read_answer(stream)?;
        let body = answer.split("\r\n\r\n").nth(1).context("a body")?;
        serde_json::from_str(body).with_context(|| answer.clone())
    }

    /// A whole life of a remote, from its creation to the sync that brings its row, however often it is told to come back.
    fn sync_one(&self, number: usize) -> Result<Operation> {
        let name = format!("remote {number}");
        let options = CreateOptions::new(format!("http://{}", self.address), ANN);
        let mut remote = Remote::create(self.world.path(&name), &self.world.plan.model.public(), &options)?;
        let mut options = SyncOptions::new(Credentials::Token(self.world.token(ANN)?));
        options.config.attempts_max = 1_000;
        remote.sync(&mut options)?;
        let id = format!("of-{number}");
        let operation = Operation { op: "insert", mark: Some(format!("made as {id}")), id };
        self.world.edit(&name, &operation.sql())?;
        remote.sync(&mut options)?;
        Ok(operation)
    }

    /// No connection was ever tried to be taken in vain, and no file opened.
    fn ran_out_of_nothing(&self) -> Result<()> {
        let said = self.server.stdout() + &self.server.stderr();
        for sign in ["accepting a connection failed", "Too many open files", "files are open, more are not allowed"] {
            ensure!(!said.contains(sign), "{sign}: {said}");
        }
        Ok(())
    }
}

/// A head, and the body that it announces; what has come where the connection ends before.
fn read_answer(stream: &mut TcpStream) -> Result<String> {
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if let (Some(end), Some(length)) = (text.find("\r\n\r\n"), length)
            && answer.len() >= end + 4 + length
        {
            return Ok(text);
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(text),
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            // Closed while it was still being spoken to.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(text),
            Err(error) => return Err(error).context("nothing came of a connection, not even its end"),
        }
    }
}

#[test]
fn a_crowd_above_the_limit_of_open_files_is_served_in_the_end() -> Result<()> {
    let mut stage = Stage::new("-n 160")?;
    let warning = stage.server.wait_for_line("the limit of open files is 160", LONG)?;
    for what in ["connections_max = 2000", &format!("{CONNECTIONS} connections"), "ulimit -n 2", "LimitNOFILE=2"] {
        ensure!(warning.contains(what), "{what}: {warning}");
    }
    // A crowd that connects, asks, and stays.
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let mut stream = stage.connect()?;
        let _ = stream.write_all(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n");
        crowd.push(stream);
    }
    let answers: Vec<String> = crowd.iter_mut().map(read_answer).collect::<Result<_>>()?;
    let begin = |text: &str| answers.iter().filter(|answer| answer.starts_with(text)).count() as u64;
    let (taken, told) = (begin("HTTP/1.1 200 "), begin("HTTP/1.1 503 "));
    ensure!(taken == CONNECTIONS, "{taken} were taken, expected {CONNECTIONS}");
    ensure!(told >= 32, "{told} were told to come back");
    let with_time = answers.iter().filter(|answer| answer.contains("retry-after: ")).count() as u64;
    ensure!(with_time == told, "{with_time} of {told} were told when");
    let silent = answers.iter().filter(|answer| answer.is_empty()).count() as u64;
    ensure!(taken + told + silent == CROWD as u64, "{taken} taken, {told} told, {silent} closed");

    let ready = Stage::ready(&mut crowd[0])?;
    ensure!(ready["connections_max"] == CONNECTIONS && ready["connections"] == CONNECTIONS, "{ready}");
    // Remotes come while no place is free; most of the crowd goes, and each gets its turn.
    let synced = std::thread::scope(|scope| {
        let stage = &stage;
        let remotes: Vec<_> = (0..REMOTES).map(|number| scope.spawn(move || stage.sync_one(number))).collect();
        let told = || stage.server.stderr().matches("a connection is turned away").count() > CROWD;
        let were_told = wait_until(LONG, told);
        crowd.truncate(10);
        let synced: Result<Vec<Operation>> =
            remotes.into_iter().map(|remote| remote.join().expect("a remote's thread panicked")).collect();
        ensure!(were_told, "no remote was turned away");
        synced
    })?;
    let mut ledger = Ledger::default();
    for operation in synced {
        ledger.note(operation);
    }
    ledger.acknowledge();
    let audit = Audit::read(&stage.world.central)?;
    ledger.check(&audit)?;
    audit.has_nothing_beside(&[&ledger])?;
    stage.ran_out_of_nothing()?;
    // And whoever comes now is served at once.
    let mut remote = Remote::open(stage.world.path("remote 0"))?;
    stage.world.sync(&mut remote)?;
    converged(&stage.world, "remote 0")
}

/// With so few that the database's connections take them all, it does not start.
#[test]
fn a_limit_that_leaves_nothing_is_refused() -> Result<()> {
    let refused = Stage::new("-n 80").err().context("it starts")?;
    let said = format!("{refused:#}");
    for words in ["the limit of open files is 80", "expected at least 84", "ulimit -n 84", "lower workers_max"] {
        ensure!(said.contains(words), "no {words:?} in {said}");
    }
    Ok(())
}

#[test]
fn a_soft_limit_is_raised_to_the_hard_one() -> Result<()> {
    let stage = Stage::new("-Sn 120")?;
    let mut crowd: Vec<TcpStream> = (0..CROWD).map(|_| stage.connect()).collect::<Result<_>>()?;
    for stream in &mut crowd {
        let ready = Stage::ready(stream)?;
        ensure!(ready["connections_max"] == 2_000, "{ready}");
    }
    ensure!(!stage.server.stderr().contains("the limit of open files"), "{}", stage.server.stderr());
    stage.ran_out_of_nothing()
}
