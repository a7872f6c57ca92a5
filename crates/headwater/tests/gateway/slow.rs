//! Clients that are slow, or say nothing: they cost little, are closed in time, and others are served all the while.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use headwater_testkit::wait_until;

use super::{Stage, TABLES, get};

const PATIENCE: Duration = Duration::from_mins(2);

/// A server with these options, of a few rows, of an answer that is held, and of one that is sent as it comes.
fn serve(options: &[&str]) -> (Stage, String) {
    serve_for("5", options)
}

/// The same where an answer may take so many seconds.
fn serve_for(time_out_s: &str, options: &[&str]) -> (Stage, String) {
    headwater_server::raise_open_files();
    let mut stage = Stage::alone("sqlite:HERE/central.db");
    stage.sql(TABLES);
    let head = "-- public = true\n-- max_age_s = 1000\n-- time_out_s = 5\n-- [parameters]\n-- n = { type = \"int\" }\n";
    let head = head.replace("time_out_s = 5", &format!("time_out_s = {time_out_s}"));
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n) SELECT i, 'padding of a row' AS x FROM n";
    stage.query("many.sql", &format!("{head}{many}"));
    let options: Vec<&str> = options.iter().flat_map(|option| ["--set", option]).collect();
    let address = stage.serve_with(&options, &[]);
    (stage, address)
}

/// Rows of which there is an answer of three megabytes, which is held and kept, and of one of thirty.
const HELD: &str = "/q/many.csv?n=120000";
const STREAMED: &str = "/q/many.csv?n=990000";

pub(super) fn ask(address: &str, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {target} HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
    stream
}

fn is_served(address: &str) {
    let (head, body) = get(address, "/q/flights.csv?origin=EWR", "");
    assert!(head.starts_with("http/1.1 200") && body == "id,delay,fare\r\n3,7,9.99\r\n", "{head}\n{body}");
}

/// Connections that the server has, beside the one that asks.
pub(super) fn connections(address: &str) -> usize {
    let (_, body) = get(address, "/ready", "");
    let ready: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    ready["connections"].as_u64().and_then(|count| usize::try_from(count).ok()).expect("a number") - 1
}

/// Bytes of memory that the server has taken.
pub(super) fn memory(stage: &Stage) -> u64 {
    let process = stage.server.as_ref().expect("it runs").id();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

/// Whether the server has closed it; nothing more is expected from it.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let read = stream.read(&mut [0; 4_096]);
    stream.set_nonblocking(false).expect("a socket");
    match read {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// One answer, of a connection that stays open.
fn answered(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    let end = b"3,7,9.99\r\n";
    while !answer.ends_with(end) {
        let mut some = [0; 4_096];
        let count = stream.read(&mut some).expect("an answer");
        assert!(count > 0, "it is closed: {}", String::from_utf8_lossy(&answer));
        answer.extend(&some[..count]);
    }
}

#[test]
fn a_thousand_idle_connections_cost_little_and_others_are_served() {
    const CLIENTS: usize = 1_000;
    const EACH_BYTES_MAX: u64 = 64 << 10;
    let (stage, address) = serve(&["head_ms_max=600000"]);
    is_served(&address);
    let before = memory(&stage);
    let mut idle: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut stream = ask(&address, "/q/flights.csv?origin=EWR");
            answered(&mut stream);
            stream
        })
        .collect();
    assert_eq!(connections(&address), CLIENTS);
    is_served(&address);
    let grown = memory(&stage).saturating_sub(before);
    assert!(grown < CLIENTS as u64 * EACH_BYTES_MAX, "{grown} bytes");
    // Each of them is taken up where it was left.
    for stream in idle.iter_mut().step_by(100) {
        write!(stream, "GET /q/flights.csv?origin=EWR HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
        answered(stream);
    }
    drop(idle);
    assert!(wait_until(PATIENCE, || connections(&address) == 0), "their places are free");
}

#[test]
fn idle_connections_are_closed_in_time() {
    let (_stage, address) = serve(&["head_ms_max=1000"]);
    let mut idle: Vec<TcpStream> = (0..1_000)
        .map(|_| {
            let mut stream = ask(&address, "/q/flights.csv?origin=EWR");
            answered(&mut stream);
            stream
        })
        .collect();
    let mut silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&address).expect("a connection")).collect();
    assert!(wait_until(PATIENCE, || {
        is_served(&address);
        connections(&address) == 0
    }));
    for stream in idle.iter_mut().chain(&mut silent) {
        assert!(is_closed(stream));
    }
}

/// Each sends a byte now and then, of a head that never ends.
#[test]
fn heads_that_come_byte_by_byte_are_cut_off_in_time() {
    let (_stage, address) = serve(&["head_ms_max=1000"]);
    let mut slow: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).expect("a connection")).collect();
    let head =
        b"GET /q/flights.csv?origin=EWR HTTP/1.1\r\nHost: test\r\nX-Long: ".iter().chain(std::iter::repeat(&b'x'));
    let mut bytes = head.copied();
    let ended = wait_until(PATIENCE, || {
        let byte = [bytes.next().expect("endless")];
        slow.retain_mut(|stream| stream.write_all(&byte).is_ok() && !is_closed(stream));
        is_served(&address);
        slow.is_empty()
    });
    assert!(ended, "{} are open still", slow.len());
    assert!(wait_until(PATIENCE, || connections(&address) == 0));
}

#[test]
fn a_body_that_never_comes_holds_nothing() {
    let (_stage, address) = serve(&["head_ms_max=1000"]);
    let mut waiting: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).expect("a connection");
            write!(stream, "GET /q/flights.csv?origin=EWR HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n")
                .expect("sent");
            answered(&mut stream);
            stream
        })
        .collect();
    assert!(wait_until(PATIENCE, || connections(&address) == 0));
    assert!(waiting.iter_mut().all(is_closed));
}

/// What is held is there once for all of them.
#[test]
fn clients_that_take_nothing_share_what_is_held_and_are_cut_off() {
    const CLIENTS: usize = 200;
    const BYTES_MAX: u64 = 100 << 20;
    let (stage, address) = serve(&["idle_ms_max=2000"]);
    let (_, body) = get(&address, HELD, "");
    let before = memory(&stage);
    let stuck: Vec<TcpStream> = (0..CLIENTS).map(|_| ask(&address, HELD)).collect();
    let mut grown = 0;
    assert!(wait_until(PATIENCE, || {
        is_served(&address);
        grown = grown.max(memory(&stage).saturating_sub(before));
        connections(&address) == 0
    }));
    assert!(grown < BYTES_MAX && BYTES_MAX < (CLIENTS * body.len()) as u64, "{grown} bytes");
    drop(stuck);
}

/// They would keep all places for ten minutes, though they take something all the while.
#[test]
fn others_get_the_places_of_clients_that_take_an_answer_too_slowly() {
    let options = ["gateway.waiting_s_max=100", "gateway.executions_max=2"];
    let (_stage, address) = serve_for("600", &options);
    let mut slow: Vec<TcpStream> =
        (0..2).map(|number| ask(&address, &format!("/q/many.csv?n={}", 990_000 + number))).collect();
    let mut take =
        || slow.iter_mut().filter_map(|stream| stream.read(&mut [0; 16]).ok()).filter(|bytes| *bytes > 0).count();
    assert_eq!(take(), 2, "they have all begun");
    let other = std::thread::spawn(move || get(&address, "/q/many.csv?n=3", ""));
    assert!(wait_until(PATIENCE, || {
        take();
        other.is_finished()
    }));
    let (head, body) = other.join().expect("no panic");
    assert!(head.starts_with("http/1.1 200") && body.lines().count() == 4, "{head}");
}

/// They take a little now and then, and keep the places to execute in for as long as a query may take; no more of an answer is in memory than some pieces.
#[test]
fn clients_that_take_an_answer_slowly_as_it_comes_are_cut_off() {
    const BYTES_MAX: u64 = 100 << 20;
    let (stage, address) = serve(&[]);
    is_served(&address);
    let before = memory(&stage);
    let mut slow: Vec<TcpStream> = (0..4).map(|_| ask(&address, STREAMED)).collect();
    let mut take =
        || slow.iter_mut().filter_map(|stream| stream.read(&mut [0; 1_024]).ok()).filter(|bytes| *bytes > 0).count();
    assert_eq!(take(), 4, "they have all begun");
    let (head, body) = get(&address, "/q/many.csv?n=3", "");
    assert!(head.starts_with("http/1.1 200") && body.lines().count() == 4, "it gets the place of one of them: {head}");
    let mut grown = 0;
    assert!(wait_until(PATIENCE, || {
        take();
        grown = grown.max(memory(&stage).saturating_sub(before));
        connections(&address) == 0
    }));
    assert!(grown < BYTES_MAX, "{grown} bytes");
}
