//! How many rows the lab's remotes in memory can read and check on one core: one answer of a real server, recorded, and read again and
//! again from a socket by a thread whose processor time is counted.
#![allow(clippy::print_stdout)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use headwater_access::Tokens;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, system, track};
use headwater_lab::peer::Peer;
use headwater_lab::sync::memory::{Identity, MemoryRemote, Pace, Synced};
use headwater_lab::sync::purchase::{self, Purchases};
use headwater_protocol::ValueRef;
use headwater_protocol::message::{ChangeOp, RowOp};
use headwater_server::{Config, Server};
use procfs::process::Process;
use tokio::runtime::Builder;

use crate::figures::{figure, ratio_of};

/// How large it is.
#[derive(clap::Args, Debug)]
pub(crate) struct GeneratorArguments {
    /// Rows of the answer.
    #[arg(long, default_value_t = 200_000)]
    rows: i64,
    /// How often it is read.
    #[arg(long, default_value_t = 9)]
    turns: usize,
}

/// How many rows of the stock are made by one statement.
const STOCK_ROWS: i64 = 1_000;

/// Measures.
pub(crate) fn measure(arguments: &GeneratorArguments) -> Result<()> {
    let rows = arguments.rows;
    ensure!((1..=purchase::ROWS_MAX).contains(&rows), "--rows is {rows}, expected 1 to {}", purchase::ROWS_MAX);
    let plan = purchase::plan(true);
    let purchases = Purchases::new(&plan, purchase::NOTES_BYTES);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("central.db");
    std::fs::File::create(&path)?;
    let backend: Arc<dyn Backend> = Arc::new(Sqlite::new(path));
    let mut connection = backend.connect()?;
    connection.batch(&purchase::tables_sql(false))?;
    connection.batch("INSERT INTO lab_member VALUES ('one', 1)")?;
    track::track(&mut *connection, &plan)?;
    for first in (1..=rows).step_by(STOCK_ROWS as usize) {
        connection.batch(&purchase::stock_sql(1, first..(first + STOCK_ROWS).min(rows + 1), purchase::NOTES_BYTES))?;
    }
    connection.batch(&purchase::all_sql(purchase::Whose::Clients(1), ChangeOp::Insert, false))?;
    system::add_account(&mut *connection, "one", "no password fits this")?;
    let tokens = Tokens::new(&system::identity(&mut *connection)?.token_key)?;
    let token = tokens.issue("one", Duration::from_hours(1), SystemTime::now())?.expose().to_owned();
    let serving = tokio::runtime::Runtime::new()?;
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
    let server = serving.block_on(Server::start(config, backend, vec![plan.clone()]))?;
    let replay = Peer::at(replayed(server.local_addr())?.to_string());

    let identity = Identity {
        server: replay,
        user: "one".to_owned(),
        token,
        model: (plan.model.name.clone(), plan.model.version, plan.fingerprint),
        remote_id: [1; 16],
        secret: [2; 32],
    };
    let expected = (1..=rows).fold(0u64, |sum, number| sum.wrapping_add(purchase::mark(1, number)));
    let mut seconds = Vec::new();
    // The first is the recording.
    for turn in 0..=arguments.turns {
        let before = own_time()?;
        let synced = sync(identity.clone(), &purchases)?;
        let took = own_time()?.saturating_sub(before);
        ensure!((synced.upserts, synced.sum) == (rows as u64, expected), "the rows are others: {synced:?}");
        if turn > 0 {
            seconds.push(took.as_secs_f64());
        }
    }
    let all = vec![rows as f64; seconds.len()];
    figure("lab.generator_rows_per_s", ratio_of(&all, &seconds));
    Ok(())
}

/// A remote that has nothing syncs on this thread.
fn sync(identity: Identity, purchases: &Purchases) -> Result<Synced> {
    let mut check = |_, op, row: &[ValueRef<'_>]| match (op, purchases.check(row, false)) {
        (RowOp::Upsert, Some((employee, number))) => Ok(purchase::mark(employee, number)),
        _ => Err(format!("{row:?}")),
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let synced = runtime.block_on(MemoryRemote::new(identity).sync(Pace::default(), &mut check));
    synced.map_err(|failure| anyhow::anyhow!("{failure}"))
}

/// Processor time of this thread.
fn own_time() -> Result<Duration> {
    let times = Process::myself()?.task_main_thread()?.schedstat().context("the kernel counts no thread's time")?;
    Ok(Duration::from_nanos(times.sum_exec_runtime))
}

/// Somebody before the server who passes the first request on, and gives its answer to all that come later.
fn replayed(server: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let place = listener.local_addr()?;
    let recorded = Mutex::new(Vec::new());
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
            // A client that went away says so itself.
            let _ = answer(client, server, &mut recorded);
        }
    });
    Ok(place)
}

fn answer(mut client: TcpStream, server: SocketAddr, recorded: &mut Vec<u8>) -> std::io::Result<()> {
    let request = request(&mut client)?;
    if recorded.is_empty() {
        let mut server = TcpStream::connect(server)?;
        // So that the answer ends with the connection.
        let request = [b"POST /v1/sync HTTP/1.1\r\nconnection: close\r\n", after_the_first_line(&request)].concat();
        server.write_all(&request)?;
        server.read_to_end(recorded)?;
    }
    client.write_all(recorded)
}

fn after_the_first_line(request: &[u8]) -> &[u8] {
    let end = request.windows(2).position(|two| two == b"\r\n").map_or(0, |end| end + 2);
    &request[end..]
}

/// A request, to the end of its body.
fn request(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = client.read(&mut piece)?;
        request.extend_from_slice(&piece[..count]);
        let head = request.windows(4).position(|four| four == b"\r\n\r\n").map(|end| end + 4);
        let whole = head.map(|head| head + content_length(&request[..head]));
        if count == 0 || whole.is_some_and(|whole| request.len() >= whole) {
            return Ok(request);
        }
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_lowercase();
    head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0)
}
