//! Clients that are slow, stop, or vanish: no worker waits for them, and what they held is freed.

use std::io::Read as _;
use std::net::Shutdown;

use headwater_protocol::message::ErrorCode;
use headwater_server::Config;
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{FaultProxy, Plan};

use crate::support::{Client, Stand, anna, config, head};

/// More than the sockets' buffers take, so that a client that doesn't read is felt.
const ROWS: u64 = 300_000;

#[test]
fn a_slow_reader_keeps_no_worker_and_gets_everything_in_the_end() {
    let stand = Stand::start(Config { workers: 1, uploaders: 1, ..config() });
    stand.fill(ROWS);
    let mut slow = stand.post(&stand.download(1));
    let ready = stand.wait_until("the worker given back", |ready| {
        ready["load"]["sending"] == 1 && ready["load"]["workers_busy"] == 0
    });
    assert!(ready["spool_file_bytes"].as_u64() > Some(1_000_000), "{ready}");
    assert!(ready["spool_memory_bytes"].as_u64() <= Some((1 << 20) + (16 << 10)), "{ready}");
    assert!(stand.sync(&stand.upload(2, &[(-1, "one")])).is_complete(), "the only worker is free");
    let answer = slow.answer();
    assert!(answer.is_complete());
    assert_eq!(answer.rows(), ROWS);
    stand.wait_until_idle();
}

#[test]
fn a_reader_that_takes_nothing_is_cut() {
    let stand = Stand::start(Config { idle_ms_max: 200, ..config() });
    stand.fill(ROWS);
    let mut stopped = stand.post(&stand.download(1));
    assert_eq!(stopped.head().0, 200);
    stand.wait_until_idle();
    let mut body = Vec::new();
    while let Some(chunk) = stopped.chunk().filter(|chunk| !chunk.is_empty()) {
        body.extend(chunk);
    }
    assert!(!body.windows(12).any(|window| window == crate::support::end().to_bytes()), "no END for who was cut");
}

#[test]
fn a_reader_that_goes_frees_everything() {
    let stand = Stand::start(config());
    stand.fill(ROWS);
    for _ in 0..3 {
        let mut client = stand.post(&stand.download(1));
        assert_eq!(client.head().0, 200);
        drop(client);
        stand.wait_until_idle();
    }
}

#[test]
fn a_client_that_goes_while_it_waits_gives_its_place_up() {
    let stand = Stand::start(Config { workers: 1, uploaders: 1, ..config() });
    let held = stand.hold();
    let mut first = stand.post(&stand.upload(1, &[(1, "one")]));
    stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
    let second = stand.post(&stand.upload(2, &[(2, "two")]));
    stand.wait_until("one that waits", |ready| ready["load"]["waiting"] == 1);
    drop(second);
    stand.wait_until("its place given up", |ready| ready["load"]["waiting"] == 0 && ready["syncs"] == 1);
    drop(held);
    assert!(first.answer().is_complete());
    stand.wait_until_idle();
    assert_eq!(stand.items(), 1, "nobody waited for the second upload, so it was not begun");
}

#[test]
fn a_body_that_stops_coming_is_given_up() {
    let stand = Stand::start(Config { idle_ms_max: 100, ..config() });
    let body = stand.upload(1, &[(1, "one")]);
    let mut client = Client::connect(stand.address);
    client.send(&head("POST", "/v1/sync", Some(&anna()), Some(body.len() as u64)));
    client.send(&body[..body.len() - 20]);
    client.answer().expect_error(408, ErrorCode::Timeout);
    stand.wait_until_idle();
    assert_eq!(stand.items(), 0);
}

#[test]
fn an_upload_that_is_still_coming_holds_no_worker() {
    let stand = Stand::start(Config { workers: 1, uploaders: 1, backlog: 0, ..config() });
    let body = stand.upload(1, &[(1, "one")]);
    let mut slow = Client::connect(stand.address);
    slow.send(&head("POST", "/v1/sync", Some(&anna()), Some(body.len() as u64)));
    slow.send(&body[..body.len() - 1]);
    let ready = stand.wait_until("it being received", |ready| ready["load"]["receiving"] == 1);
    assert_eq!(ready["load"]["workers_busy"], 0, "{ready}");
    assert!(stand.sync(&stand.upload(2, &[(2, "two")])).is_complete(), "the one worker is free");
    slow.send(&body[body.len() - 1..]);
    assert!(slow.answer().is_complete());
    assert_eq!(stand.items(), 2);
}

#[test]
fn a_body_that_breaks_off_applies_nothing() {
    let stand = Stand::start(config());
    let proxy = FaultProxy::start(stand.address).expect("a proxy");
    let body = stand.upload(1, &[(1, "one")]);
    let head = head("POST", "/v1/sync", Some(&anna()), Some(body.len() as u64));
    for (length, cut) in [(head.len() + 30, Cut::Reset), (head.len() + body.len() - 1, Cut::Fin)] {
        proxy.next([Plan::clean().cut(Direction::Up, length as u64, cut)]);
        let mut client = Client::connect(proxy.address());
        client.send(&head);
        client.send(&body);
        let mut rest = Vec::new();
        let _ = client.stream.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    stand.wait_until_idle();
    assert_eq!(stand.items(), 0);
}

#[test]
fn a_client_that_says_half_of_what_it_should_is_closed() {
    let stand = Stand::start(Config { head_ms_max: 100, ..config() });
    for said in ["", "POST /v1/sy", "POST /v1/sync HTTP/1.1\r\nHost: headwater\r\n", "PRI * HTTP/2.0\r\n"] {
        let mut client = Client::connect(stand.address);
        client.send(said.as_bytes());
        assert!(client.is_closed(), "{said:?}");
    }
    // One that has said everything, and then nothing.
    let mut client = Client::connect(stand.address);
    client.send(&head("GET", "/health", None, Some(0)));
    assert_eq!(client.answer().status, 200);
    assert!(client.is_closed());
}

#[test]
fn an_answer_is_whole_although_the_client_has_closed_its_side() {
    let stand = Stand::start(config());
    stand.fill(100);
    // Only what is asked of HTTP/1.0 clients: this one promises to send nothing more.
    let mut client = stand.post(&stand.download(1));
    client.stream.shutdown(Shutdown::Write).expect("shut down");
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    stand.wait_until_idle();
}
