//! Many remotes that take one shared partition through a real Squid: how often is it read, and how often is a chunk asked for at the server?
//!
//! Some are real remotes with files, held against the database afterwards. The others speak the same protocol and get the same chunks, check that
//! each is the one that was named and opens, and keep nothing: a thousand files of a hundred thousand rows would be a measurement of SQLite.
#![allow(clippy::print_stdout)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use headwater_protocol::client::{AnswerEvent, AnswerReader, Expected};
use headwater_protocol::message::{Hello, Snapshot, Watermarks};
use headwater_protocol::{Frame, Kind as FrameKind, Limits, chunk};
use headwater_testkit::{Random, Squid};
use headwater_tests::{Kind, World};

use crate::figures::figure;
use crate::purchase;

/// How many, of what.
#[derive(clap::Args, Debug)]
pub(crate) struct SharedArguments {
    /// Remotes, all in all.
    #[arg(long, default_value_t = 1_000)]
    remotes: u64,
    /// Of them, those with files.
    #[arg(long, default_value_t = 20)]
    files: u64,
    /// At a time.
    #[arg(long, default_value_t = 100)]
    clients: u64,
    /// Rows of the partition.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
}

/// Measures both figures.
pub(crate) fn measure(arguments: &SharedArguments) -> Result<()> {
    let mut world = serve(arguments)?;
    let squid = Squid::in_front_of(world.address()?)?;
    let before = scans(&world)?;
    eprintln!("{} remotes take {} rows", arguments.remotes, arguments.rows);
    take_all(arguments, &world, &squid)?;
    let (builds, requests) = (ready(&world, "shared_builds")?, ready(&world, "chunk_requests")?);
    let answers = squid.answers("/v1/chunk/").len() as u64;
    let chunks = answers / arguments.remotes;
    ensure!(chunks > 1 && answers == chunks * arguments.remotes, "{answers} answers for {} remotes", arguments.remotes);
    println!("rate speed.shared_chunks {chunks}");
    println!("rate speed.shared_builds {builds}");
    // Whoever is connected tells the statistics in his own time, and at his end at the latest.
    world.stop_server();
    figure("speed.shared_queries", (scans(&world)? - before) as f64);
    figure("speed.shared_chunk_requests", requests as f64 / chunks as f64);
    for number in 0..arguments.files {
        ensure!(world.diff(&format!("r{number}"))?.is_equal(false), "remote {number} is not what the database has");
    }
    Ok(())
}

fn serve(arguments: &SharedArguments) -> Result<World> {
    let model = purchase::MODEL.replace("partition = \"employee\"", "partition = \"employee\"\nshared = true");
    let rows = purchase::rows_sql(1, 1, arguments.rows);
    let schema = format!("{} INSERT INTO member VALUES ('ann', 1); INSERT INTO purchase {rows}", purchase::TABLES);
    let mut world = World::unserved(Kind::Postgres, &schema, &model, &["ann"])?;
    world.central.execute("ANALYZE purchase")?;
    let clients = usize::try_from(arguments.clients)?;
    (world.config.backlog, world.config.receiving_max) = (clients, clients);
    world.start_server()?;
    Ok(world)
}

/// All remotes, so many at a time.
fn take_all(arguments: &SharedArguments, world: &World, squid: &Squid) -> Result<()> {
    let next = AtomicU64::new(0);
    let (url, token) = (squid.url(), world.token("ann")?);
    let address: SocketAddr = url.trim_start_matches("http://").parse()?;
    let client = || -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= arguments.remotes {
                return Ok(());
            }
            let rows = if number < arguments.files {
                world.sync(&mut world.remote_at(&format!("r{number}"), "ann", &url)?)?.rows_down
            } else {
                take(address, &hello(world, number), &token).with_context(|| format!("remote {number}"))?
            };
            ensure!(rows == arguments.rows, "remote {number} took {rows} rows, expected {}", arguments.rows);
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..arguments.clients).map(|_| scope.spawn(client)).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client ends"))
    })
}

fn hello(world: &World, number: u64) -> Hello {
    let mut random = Random::seeded(number);
    let mut remote_id = [0; 16];
    remote_id[..8].copy_from_slice(&random.bits().to_le_bytes());
    remote_id[8..].copy_from_slice(&random.bits().to_le_bytes());
    Hello {
        remote_id,
        secret: [7; 32],
        model: world.plan.model.name.clone(),
        model_version: world.plan.model.version,
        fingerprint: world.plan.fingerprint,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 0,
        download_applied: [0; 16],
        has_upload: false,
        wants_download: true,
        takes_chunks: true,
        knows_leaving: false,
        uploads: Vec::new(),
        frozen: None,
        watermarks: Watermarks::default(),
    }
}

/// One first download without a file: how many rows it had, all of them in chunks.
fn take(address: SocketAddr, hello: &Hello, token: &str) -> Result<u64> {
    let mut body = hello.to_frame().to_bytes();
    Frame::new(FrameKind::End, Vec::new()).write(&mut body);
    let head = format!(
        "POST /v1/sync HTTP/1.0\r\nHost: headwater\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/vnd.headwater.sync\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut rows = 0;
    for snapshot in snapshots(&ask(address, &[head.as_bytes(), &body].concat())?)? {
        rows += snapshot.rows;
        for (place, named) in (0..).zip(&snapshot.chunks) {
            let id = u128::from_be_bytes(named.id);
            let head = format!("GET /v1/chunk/{id:032x} HTTP/1.0\r\nHost: headwater\r\n\r\n");
            let opened = chunk::open_named(&snapshot.key, place, named, ask(address, head.as_bytes())?);
            let frames = chunk::frames(&opened.context("a chunk is not the one that was named")?)?;
            ensure!(frames.iter().any(|frame| frame.kind == FrameKind::Rows), "a chunk without rows");
        }
    }
    Ok(rows)
}

/// The snapshots that a whole answer names.
fn snapshots(answer: &[u8]) -> Result<Vec<Snapshot>> {
    let expected = Expected { receipt: false, download: true, chunks: true };
    let mut reader = AnswerReader::new(Limits::ANSWER, expected);
    reader.push(answer);
    let mut found = Vec::new();
    while let Some(event) = reader.poll()? {
        match event {
            AnswerEvent::Frame(frame) if frame.kind == FrameKind::Snapshot => {
                found.push(Snapshot::from_payload(&frame.payload(Limits::ANSWER.frame_bytes_max)?)?);
            }
            AnswerEvent::ServerError(error) => bail!("the server answered {}: {}", error.code.name(), error.message),
            _ => {}
        }
    }
    reader.finish()?;
    Ok(found)
}

/// The body of an answer, read to the connection's end.
fn ask(address: SocketAddr, request: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("the answer has no head")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    ensure!(head.split_whitespace().nth(1) == Some("200"), "the answer is {head}");
    Ok(answer.split_off(end + 4))
}

/// A number of `/ready`.
fn ready(world: &World, name: &str) -> Result<u64> {
    let body = ask(world.address()?, b"GET /ready HTTP/1.0\r\nHost: headwater\r\n\r\n")?;
    serde_json::from_slice::<serde_json::Value>(&body)?[name].as_u64().with_context(|| format!("no {name} in /ready"))
}

/// How often the table was read, as PostgreSQL counts.
fn scans(world: &World) -> Result<u64> {
    let rows = world.central.rows(
        "SELECT pg_stat_clear_snapshot(), seq_scan + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = 'purchase'",
    )?;
    let count =
        rows.first().and_then(|row| row.get(1)?.as_deref()).context("PostgreSQL has no statistics of the table")?;
    Ok(count.parse()?)
}
