//! Memory: the server's process stays under 150 MB while 20 readers that take nothing each have a download of a million rows waiting,
//! and under a bound of its own while six remotes upload a row of 60 MB each at once, and change it.
//!
//! The readers are as slow as can be: none takes a byte until all 20 downloads have been read from the database, which also shows
//! that no worker waits for a client (there are 8). Then they take everything. The values are random, so that nothing packs them:
//! what waits is several times what the server may use, and would show.
//!
//! `HEADWATER_MEMORY_ROWS` sets another number of rows. That the test can fail shows
//! `HEADWATER_SERVER_SPOOL_MEMORY_BYTES=1000000000 HEADWATER_SERVER_SPOOL_MEMORY_BYTES_TOTAL=4000000000`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater_protocol::message::{Hello, RowsReader, Watermarks};
use headwater_protocol::row::read_row;
use headwater_protocol::{Decoder, Frame, Kind as FrameKind, Type};
use headwater_remote::http::Credentials;
use headwater_remote::{Remote, SyncOptions};
use headwater_testkit::process::{Child, headwater_binary};
use headwater_tests::{KINDS, Kind, World};

const READERS: u8 = 20;
const MEMORY_BYTES_MAX: u64 = 150_000_000;
/// Nothing here takes as long.
const PATIENCE: Duration = Duration::from_mins(5);

const MODEL: &str = r#"
name = "narrow"
version = 1
[tables.narrow]
key = ["id"]
conflict = "consolidated_wins"
[tables.narrow.columns]
id = "int not null"
value = "uuid"
"#;

#[test]
fn twenty_slow_readers_of_a_million_rows_each() -> Result<()> {
    let rows: u64 = std::env::var("HEADWATER_MEMORY_ROWS").map_or(Ok(1_000_000), |rows| rows.parse())?;
    let schema = format!(
        "CREATE TABLE narrow (id bigint PRIMARY KEY, value uuid);
         INSERT INTO narrow SELECT i, gen_random_uuid() FROM generate_series(1, {rows}) AS i;"
    );
    let world = World::unserved(Kind::Postgres, &schema, MODEL, &["ann"])?;
    let (mut server, address) = serve(&world, MODEL)?;
    let readers = (0..READERS).map(|number| ask(&world, address, number)).collect::<Result<Vec<_>>>()?;

    let spooled = wait_until_spooled(address, &mut server)?;
    let bytes_each = spooled / u64::from(READERS);
    // Some of it lies in the system's buffers of the connection.
    assert!(bytes_each + (1 << 20) >= rows * 16, "each download waits whole: {bytes_each} bytes of {rows} rows");
    if rows >= 1_000_000 {
        assert!(spooled > 2 * MEMORY_BYTES_MAX, "{spooled} bytes would show in memory");
    }
    let mut threads = Vec::new();
    for reader in readers {
        threads.push(std::thread::spawn(move || take(reader)));
    }
    for thread in threads {
        let taken = thread.join().expect("no panic")?;
        assert_eq!(taken, rows, "every row of every download, and its END");
    }
    let peak = peak_memory(server.id())?;
    eprintln!("{READERS} readers of {rows} rows: {spooled} bytes waited, the server's peak memory was {peak} bytes");
    assert!(peak < MEMORY_BYTES_MAX, "the server took {peak} bytes, expected less than {MEMORY_BYTES_MAX}");
    // What each reader has taken is kept for a second, should its end have been lost.
    let mut last = serde_json::Value::Null;
    let is_freed = headwater_testkit::wait_until(PATIENCE, || {
        last = ready(address).unwrap_or_default();
        last["spool_file_bytes"] == 0 && last["spool_memory_bytes"] == 0
    });
    ensure!(is_freed, "not all is freed: {last}");
    Ok(())
}

const UPLOADERS: usize = 6;
const LARGE_ROW_BYTES: usize = 60_000_000;
/// As docs/server.md says; 512 MB were measured.
const LARGE_MEMORY_BYTES_MAX: u64 = 640_000_000;

const FILES: &str = r#"
name = "files"
version = 1
[tables.file]
key = ["id"]
conflict = "consolidated_wins"
[tables.file.columns]
id = "int not null"
note = "text"
body = "bytes"
"#;

#[test]
fn six_uploads_of_a_large_row_each() -> Result<()> {
    for kind in KINDS {
        let bytes = if kind == Kind::Postgres { "bytea" } else { "BLOB" };
        let schema = format!("CREATE TABLE file (id BIGINT NOT NULL PRIMARY KEY, note TEXT, body {bytes})");
        let world = World::unserved(kind, &schema, FILES, &["ann"])?;
        let (server, address) = serve(&world, FILES)?;
        let change = |sql: &str| -> Result<()> {
            std::thread::scope(|scope| {
                let sync = |number: usize| {
                    let name = format!("remote{number}");
                    world.edit(&name, &sql.replace("NUMBER", &number.to_string()))?;
                    let mut options = SyncOptions::new(Credentials::Token(world.token("ann")?));
                    // What others have uploaded meanwhile is not what this is about.
                    options.config.wants_download = false;
                    let report = Remote::open(world.path(&name))?.sync(&mut options)?;
                    ensure!((report.changes_up, report.refused) == (1, 0), "{report:?}");
                    Ok(())
                };
                let syncs: Vec<_> = (0..UPLOADERS).map(|number| scope.spawn(move || sync(number))).collect();
                syncs.into_iter().try_for_each(|sync| sync.join().expect("no panic"))
            })
        };
        for number in 0..UPLOADERS {
            world.remote_at(&format!("remote{number}"), "ann", &format!("http://{address}"))?;
        }
        change(&format!("INSERT INTO file VALUES (NUMBER, 'a', randomblob({LARGE_ROW_BYTES}))"))?;
        let inserted = peak_memory(server.id())?;
        change(&format!("UPDATE file SET body = randomblob({LARGE_ROW_BYTES})"))?;
        let peak = peak_memory(server.id())?;
        eprintln!("{kind:?}: {UPLOADERS} uploads of a row of 60 MB: {inserted} bytes inserted, {peak} bytes updated");
        assert_eq!(
            world.central.rows("SELECT count(*), sum(length(body)) FROM file")?[0][1].as_deref(),
            Some("360000000")
        );
        assert!(peak < LARGE_MEMORY_BYTES_MAX, "{kind:?}: {peak} bytes, expected less than {LARGE_MEMORY_BYTES_MAX}");
    }
    Ok(())
}

/// The real program, with its usual options, but for how long it keeps downloads that were taken.
fn serve(world: &World, model_text: &str) -> Result<(Child, SocketAddr)> {
    let config = world.path("headwater").with_extension("toml");
    let model = world.path("model").with_extension("toml");
    std::fs::write(&model, model_text)?;
    let text = format!("models = ['{}']\n[database]\nurl = '{}'\n", model.display(), world.central.url());
    std::fs::write(&config, text)?;
    let mut command = Command::new(headwater_binary()?);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(&config).env("HEADWATER_SERVER_KEPT_MS", "1000");
    let mut server = Child::spawn("headwater serve", &mut command)?;
    let line = server.wait_for_line("listening on http://", PATIENCE)?;
    let address = line.trim().rsplit('/').next().context("an address")?.parse()?;
    Ok((server, address))
}

/// Asks for a first download, and takes nothing of the answer.
fn ask(world: &World, address: SocketAddr, number: u8) -> Result<TcpStream> {
    let hello = Hello {
        remote_id: [number + 1; 16],
        secret: [number + 1; 32],
        model: world.plan.model.name.clone(),
        model_version: world.plan.model.version,
        fingerprint: world.plan.fingerprint,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 0,
        download_applied: [0; 16],
        has_upload: false,
        wants_download: true,
        takes_chunks: false,
        knows_leaving: false,
        uploads: Vec::new(),
        frozen: None,
        watermarks: Watermarks::default(),
    };
    let mut body = hello.to_frame().to_bytes();
    Frame::new(FrameKind::End, Vec::new()).write(&mut body);
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (token, length) = (world.token("ann")?, body.len());
    // HTTP/1.0, so that the answer is its frames and nothing else, to the connection's end.
    let head = format!(
        "POST /v1/sync HTTP/1.0\r\nHost: headwater\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)?;
    Ok(stream)
}

fn ready(address: SocketAddr) -> Result<serde_json::Value> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /ready HTTP/1.0\r\nHost: headwater\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("a body")?;
    Ok(serde_json::from_str(body)?)
}

/// Waits until every download is read and no worker is busy; the bytes that wait in spools.
fn wait_until_spooled(address: SocketAddr, server: &mut Child) -> Result<u64> {
    let mut last = serde_json::Value::Null;
    let done = headwater_testkit::wait_until(PATIENCE, || {
        last = ready(address).unwrap_or_default();
        last["load"]["sending"] == READERS && last["load"]["workers_busy"] == 0
    });
    ensure!(done, "not all downloads were read: {last}, {}", server.stderr());
    let bytes = |name: &str| last[name].as_u64().context("a count");
    Ok(bytes("spool_memory_bytes")? + bytes("spool_file_bytes")?)
}

/// Takes the whole answer; how many rows it had.
fn take(mut stream: TcpStream) -> Result<u64> {
    let mut buffer = vec![0; 64 * 1024];
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    ensure!(head.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&head));
    let mut decoder = Decoder::new(1 << 24);
    let (mut rows, mut last) = (0, None);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        decoder.push(&buffer[..count]);
        while let Some(frame) = decoder.next_frame()? {
            if frame.kind == FrameKind::Rows {
                rows += count_rows(&frame)?;
            }
            last = Some(frame.kind);
        }
    }
    ensure!(last == Some(FrameKind::End), "the answer ends with {last:?}");
    Ok(rows)
}

fn count_rows(frame: &Frame) -> Result<u64> {
    let payload = frame.payload(1 << 24)?;
    let mut reader = RowsReader::new(&payload);
    let mut rows = 0;
    while reader.next_op()?.is_some() {
        read_row(reader.row(), &[Type::Int, Type::Uuid], 1 << 16, None)?;
        rows += 1;
    }
    Ok(rows)
}

/// The most memory that a process ever had, from `/proc/ID/status` (proc(5)).
fn peak_memory(process: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: u64 = line.trim().strip_suffix("kB").context("no kB")?.trim().parse()?;
    Ok(kilobytes * 1024)
}
