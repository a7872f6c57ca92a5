//! Workers, backlog, and what happens when there is no more of them.

use headwater_protocol::Kind;
use headwater_protocol::message::ErrorCode;
use headwater_server::Config;

use crate::support::{Client, Stand, anna, bytes, config, end, frames, head};

fn one_worker(backlog: usize) -> Config {
    Config { workers: 1, uploaders: 1, backlog, ..config() }
}

/// A request whose body never comes.
fn ask(stand: &Stand) -> Client {
    let mut client = Client::connect(stand.address);
    client.send(&head("POST", "/v1/sync", Some(&anna()), Some(1000)));
    client
}

fn refused(mut client: Client) {
    let answer = client.answer();
    let error = answer.expect_error(503, ErrorCode::Overloaded);
    assert!((190..=126_000).contains(&error.retry_after_ms), "{}", error.retry_after_ms);
    let seconds: u32 = answer.header("retry-after").expect("a header").parse().expect("seconds");
    assert_eq!(seconds, error.retry_after_ms.div_ceil(1000));
}

#[test]
fn with_backlog_0_a_sync_is_refused_at_once_when_no_worker_is_free() {
    let stand = Stand::start(one_worker(0));
    let held = stand.hold();
    let mut first = stand.post(&stand.upload(1, &[(1, "one")]));
    stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
    refused(ask(&stand));
    drop(held);
    assert!(first.answer().is_complete());
    stand.wait_until_idle();
    assert!(stand.sync(&stand.download(2)).is_complete());
}

#[test]
fn a_small_sync_has_a_worker_where_large_ones_have_taken_all() {
    let found = Config { workers: 0, uploaders: 0, workers_max: 1, ..config() };
    for (config, expected) in [(found, 2), (one_worker(9), 1)] {
        let stand = Stand::start(config);
        let held = stand.hold();
        // First downloads may be of any size.
        let mut first = stand.post(&stand.download(1));
        stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
        let mut large = stand.post(&stand.download(2));
        stand.wait_until("the second one waits", |ready| ready["load"]["waiting"] == 1);
        let mut hello = stand.hello(3);
        hello.wants_download = false;
        let mut small = stand.post(&bytes(&[hello.to_frame(), end()]));
        let waiting = 3 - expected;
        stand.wait_until("the small one", |ready| {
            (&ready["load"]["workers_busy"], &ready["load"]["waiting"]) == (&expected.into(), &waiting.into())
        });
        drop(held);
        assert!([&mut first, &mut large, &mut small].into_iter().all(|client| client.answer().is_complete()));
        stand.wait_until_idle();
    }
}

#[test]
fn the_backlog_waits_hears_heartbeats_and_is_worked_off() {
    let stand = Stand::start(Config { heartbeat_ms: 20, ..one_worker(1) });
    let held = stand.hold();
    let mut first = stand.post(&stand.upload(1, &[(1, "one")]));
    stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
    let mut second = stand.post(&stand.upload(2, &[(2, "two")]));
    // It is received, its answer's head is there, and heartbeats come although nothing else can.
    assert_eq!(second.head().0, 200);
    for _ in 0..3 {
        let chunk = second.chunk().expect("a heartbeat");
        assert!(frames(&chunk).iter().all(|frame| frame.kind == Kind::Heartbeat));
    }
    assert_eq!(stand.ready()["load"]["waiting"], 1);
    refused(ask(&stand));
    drop(held);
    assert!(first.answer().is_complete());
    let mut rest = Vec::new();
    while let Some(chunk) = second.chunk().filter(|chunk| !chunk.is_empty()) {
        rest.extend(chunk);
    }
    assert_eq!(frames(&rest).last().map(|frame| frame.kind), Some(Kind::End));
    assert_eq!(stand.items(), 2);
    stand.wait_until_idle();
}

#[test]
fn places_to_receive_in_are_limited_and_given_back() {
    let stand = Stand::start(Config { receiving_max: 2, ..config() });
    let receiving = [ask(&stand), ask(&stand)];
    stand.wait_until("two being received", |ready| ready["load"]["receiving"] == 2);
    refused(ask(&stand));
    drop(receiving);
    stand.wait_until_idle();
    assert!(stand.sync(&stand.download(1)).is_complete());
}

#[test]
fn senders_that_send_nothing_more_keep_nobody_out() {
    let stand = Stand::start(Config { connections_max: 12, ..config() });
    let receiving: Vec<_> = (0..10).map(|_| ask(&stand)).collect();
    let ready = stand.wait_until("all being received", |ready| ready["load"]["receiving"] == 10);
    assert_eq!(ready["load"]["receiving_max"], 12, "as many as connections: the default");
    assert!(stand.sync(&stand.download(1)).is_complete());
    drop(receiving);
    stand.wait_until_idle();
}

#[test]
fn a_second_sync_of_the_same_remote_is_told_so_at_once() {
    let stand = Stand::start(config());
    let held = stand.hold();
    let mut first = stand.post(&stand.upload(1, &[(1, "one")]));
    stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
    let second = stand.sync(&stand.download(1));
    assert_eq!((second.status, second.error().code), (200, ErrorCode::RemoteBusy));
    drop(held);
    assert!(first.answer().is_complete());
    assert!(stand.sync(&stand.download(1)).is_complete());
}

#[test]
fn who_waits_too_long_for_a_worker_is_told_to_come_back() {
    let stand = Stand::start(Config { wait_ms_max: 50, ..one_worker(5) });
    let held = stand.hold();
    let mut first = stand.post(&stand.upload(1, &[(1, "one")]));
    stand.wait_until("the worker at work", |ready| ready["load"]["workers_busy"] == 1);
    let second = stand.sync(&stand.download(2));
    assert_eq!((second.status, second.error().code), (200, ErrorCode::Overloaded));
    drop(held);
    assert!(first.answer().is_complete());
}

#[test]
fn connections_beyond_the_limit_are_told_to_come_back_and_closed() {
    let stand = Stand::start(Config { connections_max: 2, ..config() });
    let mut open = [Client::connect(stand.address), Client::connect(stand.address)];
    for client in &mut open {
        client.send(&head("GET", "/health", None, Some(0)));
        assert_eq!(client.answer().status, 200);
    }
    refused(ask(&stand));
    let body = stand.upload(1, &[(1, "one")]);
    let mut whole = stand.post(&body);
    let answer = whole.answer();
    answer.expect_error(503, ErrorCode::Overloaded);
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(whole.is_closed());
    let health = stand.get("/health", None);
    assert_eq!((health.status, health.json()["error"].as_str()), (503, Some("overloaded")));
    assert!(Client::connect(stand.address).is_closed(), "who says nothing");
    drop(open);
    // The places are free as soon as the server has seen the connections go.
    let freed = headwater_testkit::wait_until(crate::support::PATIENCE, || stand.get("/health", None).status == 200);
    assert!(freed);
}
