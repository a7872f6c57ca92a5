//! Starting and stopping.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use headwater_consolidated::sqlite::Sqlite;
use headwater_protocol::message::ErrorCode;
use headwater_server::{Config, Server, Stopped};

use crate::support::{Client, PATIENCE, Stand, anna, config, head, plan};

#[test]
fn a_stopping_server_lets_running_syncs_end_and_takes_no_more() {
    let mut stand = Stand::start(config());
    let held = stand.hold();
    let mut running = stand.post(&stand.upload(1, &[(1, "one")]));
    stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
    // A connection that is in the midst of a request, so that it stays open.
    let mut open = Client::connect(stand.address);
    let body = stand.download(2);
    open.send(&head("POST", "/v1/sync", Some(&anna()), Some(body.len() as u64)));
    stand.wait_until("it being received", |ready| ready["load"]["receiving"] == 1);
    let mut late = Client::connect(stand.address);
    late.send(&head("GET", "/health", None, Some(0)));
    assert_eq!(late.answer().status, 200);

    let handle = stand.handle.take().expect("a server");
    let stopping = stand.runtime.spawn(handle.shutdown());
    assert!(late.is_closed(), "a connection without a request is closed");
    let address = stand.address;
    assert!(
        headwater_testkit::wait_until(PATIENCE, || TcpStream::connect(address).is_err()),
        "nobody listens any more"
    );
    assert!(!stopping.is_finished());
    open.send(&body);
    drop(held);
    assert!(open.answer().is_complete(), "it was let in before");
    assert!(running.answer().is_complete());
    let stopped = stand.runtime.block_on(stopping).expect("no panic");
    assert_eq!(stopped, Stopped { syncs_cut: 0 });
    assert_eq!(stand.items(), 1);
}

#[test]
fn what_has_not_ended_in_time_is_cut() {
    let mut stand = Stand::start(Config { shutdown_ms_max: 50, ..config() });
    let held = stand.hold();
    let mut running = stand.post(&stand.upload(1, &[(1, "one")]));
    stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
    let handle = stand.handle.take().expect("a server");
    assert_eq!(stand.runtime.block_on(handle.shutdown()), Stopped { syncs_cut: 1 });
    assert!(!running.answer().whole);
    drop(held);
    assert_eq!(stand.items(), 0, "the upload had not begun");
}

#[test]
fn a_sync_on_an_open_connection_of_a_stopping_server_is_refused() {
    let mut stand = Stand::start(config());
    let held = stand.hold();
    let mut running = stand.post(&stand.upload(1, &[(1, "one")]));
    stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
    // Its head is half sent when the server is asked to stop.
    let mut half = Client::connect(stand.address);
    let request = head("POST", "/v1/sync", Some(&anna()), Some(10));
    half.send(&request[..40]);
    stand.wait_until("three connections", |ready| ready["connections"].as_u64() >= Some(3));
    let handle = stand.handle.take().expect("a server");
    let stopping = stand.runtime.spawn(handle.shutdown());
    let address = stand.address;
    assert!(headwater_testkit::wait_until(PATIENCE, || TcpStream::connect(address).is_err()));
    half.send(&request[40..]);
    half.send(&[0; 10]);
    let mut first = [0; 1];
    // hyper may close it instead: nothing of it had been read as a request.
    if half.stream.peek(&mut first).is_ok_and(|length| length == 1) {
        half.answer().expect_error(503, ErrorCode::ShuttingDown);
    }
    drop(held);
    assert!(running.answer().is_complete());
    stand.runtime.block_on(stopping).expect("no panic");
}

#[test]
fn the_address_of_a_stopped_server_is_free_at_once() {
    let mut listen = config().listen;
    listen.set_port(headwater_testkit::free_port().expect("a port"));
    let mut stand = Stand::start(Config { listen, ..config() });
    for round in 0..50 {
        let handle = stand.handle.take().expect("a server");
        stand.runtime.block_on(handle.shutdown());
        let config = Config { listen, ..config() };
        let backend = std::sync::Arc::new(headwater_consolidated::sqlite::Sqlite::new(stand.file()));
        let started = stand.runtime.block_on(Server::start(config, backend, vec![plan()]));
        stand.handle = Some(started.unwrap_or_else(|error| panic!("round {round}: {error}")));
    }
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let stand = Stand::start(config());
    let backend = std::sync::Arc::new(headwater_consolidated::sqlite::Sqlite::new(stand.file()));
    let config = Config { listen: stand.address, ..config() };
    let error = stand.runtime.block_on(Server::start(config, backend, Vec::new())).expect_err("in use");
    assert_eq!(
        error.to_string(),
        format!("can't listen on {}: expected a free local address in `listen`", stand.address)
    );
}

#[test]
fn five_hundred_that_come_at_once_need_not_knock_twice() {
    let stand = Stand::start(config());
    // A server that stands still: only the kernel takes connections.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let backend = Arc::new(Sqlite::new(stand.file()));
    let server = runtime.block_on(Server::start(config(), backend, vec![plan()])).expect("a server");
    let allowed =
        std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok().and_then(|text| text.trim().parse().ok());
    // Who is not let in knocks again after a second.
    let connect = |_| TcpStream::connect_timeout(&server.local_addr(), Duration::from_millis(900));
    let waiting: Result<Vec<TcpStream>, _> = (0..allowed.unwrap_or(128).min(500)).map(connect).collect();
    waiting.expect("room for all");
    runtime.block_on(server.shutdown());
}
