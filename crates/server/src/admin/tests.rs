use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use headwater_knobs::{Knob, Range, Value};

use super::*;

/// A knob, listening.
async fn start(listen: &str) -> Result<(Handle, Live<u64>), AdminError> {
    let live = Live::new(5);
    let (read, set) = (live.clone(), live.clone());
    let knob = Knob {
        name: "a.b",
        effect: "nothing",
        default: Value::Whole(5),
        range: Range::Whole { least: 1, most: 9 },
        is_option: true,
        read: Box::new(move || Value::Whole(*read.now())),
        set: Box::new(move |value| {
            set.put(value.whole());
            Ok(())
        }),
    };
    let (listen, token) = (listen.parse().expect("an address"), TokenDigest::of("secret"));
    let admin = Admin { listen, token, knobs: Knobs::new(vec![knob]), config: "headwater.toml".into() };
    Ok((admin.start().await?, live))
}

/// Status and body.
async fn ask(handle: &Handle, head: &str, token: &str, body: &str) -> (u16, serde_json::Value) {
    let address = handle.local_addr();
    let length = body.len();
    let text = format!(
        "{head} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {token}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let asking = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(text.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    });
    let answer = asking.await.expect("no panic");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    (status, serde_json::from_str(body).unwrap_or_default())
}

#[tokio::test]
async fn knobs_are_shown_and_set_by_who_has_the_token() {
    let (handle, live) = start("127.0.0.1:0").await.expect("it listens");
    let (get, post, good) = ("GET /v1/knobs", "POST /v1/knobs", "Bearer secret");
    let set = r#"{"who": "anna", "set": [["a.b", "7"]]}"#;
    for token in ["", "Bearer ", "Bearer Secret", "Basic secret", "secret"] {
        let (status, said) = ask(&handle, post, token, set).await;
        assert_eq!((status, &said["code"], *live.now()), (401, &json!("unauthenticated"), 5), "{token}");
        assert_eq!(ask(&handle, get, token, "").await.0, 401);
    }
    let (status, said) = ask(&handle, get, good, "").await;
    assert_eq!((status, &said["config"], &said["knobs"][0]["value"]), (200, &json!("headwater.toml"), &json!(5)));
    let (status, said) = ask(&handle, post, good, set).await;
    let change = json!([{ "name": "a.b", "from": 5, "to": 7, "is_option": true }]);
    assert_eq!((status, &said["changed"], *live.now()), (200, &change, 7));
    for (body, status, code) in [
        (r#"{"set": [["a.c", "7"]]}"#, 422, "unknown"),
        (r#"{"set": [["a.b", "10"]]}"#, 422, "out_of_range"),
        (r#"{"set": [["a.b", "8"], ["a.b", "9"]]}"#, 422, "twice"),
        (r#"{"put": []}"#, 400, "malformed"),
        ("", 400, "malformed"),
    ] {
        let said = ask(&handle, post, good, body).await;
        assert_eq!((said.0, &said.1["code"]), (status, &json!(code)), "{body}");
    }
    let long = format!(r#"{{"set": [["a.b", "{}"]]}}"#, "9".repeat(REQUEST_BYTES_MAX));
    assert_eq!(ask(&handle, post, good, &long).await.0, 413);
    assert_eq!((ask(&handle, "GET /ready", good, "").await.0, *live.now()), (404, 7));
    handle.shutdown().await;
}

#[tokio::test]
async fn no_other_machine_reaches_it() {
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7341"] {
        let error = start(listen).await.expect_err("refused");
        assert!(matches!(error, AdminError::NotLoopback(_)), "{error}");
        assert!(error.to_string().contains(&format!("[admin] listen is {listen}")), "{error}");
    }
    let (first, _) = start("127.0.0.1:0").await.expect("it listens");
    let error = start(&first.local_addr().to_string()).await.expect_err("it is taken");
    assert!(error.to_string().contains("another server on this machine may have it"), "{error}");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let (handle, live) = start("127.0.0.1:0").await.expect("it listens");
    let address = handle.local_addr();
    let head = format!(
        "POST /v1/knobs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer secret\r\nContent-Length: 100\r\n\r\n{{"
    );
    let asking = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(std::time::Duration::from_mins(1))).expect("set");
        stream.write_all(head.as_bytes()).expect("sent");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("an answer");
        status
    });
    assert_eq!(&asking.await.expect("no panic"), b"HTTP/1.1 408");
    assert_eq!(*live.now(), 5);
}
