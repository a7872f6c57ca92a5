//! Requests that two readers may take for different ones: by plain sockets, one after another on a connection.

use crate::support::{Client, Stand, config};

/// What a second reader would take for a request of its own.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

/// The statuses of all that is answered until the server closes the connection or has answered a last request for `/health`.
fn statuses(stand: &Stand, sent: &str) -> Vec<u16> {
    let mut client = Client::connect(stand.address);
    client.send(format!("{sent}GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes());
    let mut answered = Vec::new();
    while !client.has_ended() {
        answered.push(client.answer_or_empty().status);
    }
    answered
}

#[test]
fn a_request_names_one_host() {
    let stand = Stand::start(config());
    for (sent, expected) in [
        ("GET /health HTTP/1.1\r\nHost: a\r\n\r\n", &[200, 200][..]),
        ("GET /health HTTP/1.1\r\nHost: [::1]:7340\r\n\r\n", &[200, 200]),
        ("GET /health HTTP/1.1\r\n\r\n", &[400]),
        ("GET /nothing HTTP/1.1\r\n\r\n", &[400]),
        ("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", &[400]),
        ("GET /health HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", &[400]),
        ("GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", &[400]),
        ("GET /health HTTP/1.1\r\nHost: b@a\r\n\r\n", &[400]),
        ("GET /health HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", &[400]),
        ("GET /health HTTP/1.0\r\n\r\n", &[200]),
        // The URL's own host counts, and neither says where the request goes.
        ("GET http://b/health HTTP/1.1\r\nHost: a\r\n\r\n", &[200, 200]),
        ("GET http://b/health HTTP/1.1\r\n\r\n", &[400]),
    ] {
        assert_eq!(statuses(&stand, sent), expected, "{sent:?}");
    }
}

#[test]
fn a_request_ends_in_one_place() {
    let stand = Stand::start(config());
    let post = "POST /health HTTP/1.1\r\nHost: a\r\n";
    let length = HIDDEN.len();
    for (sent, expected) in [
        // Twice the same length is one; two are none.
        (format!("{post}Content-Length: {length}\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"), &[405, 200][..]),
        (format!("{post}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"), &[400]),
        (format!("{post}Content-Length: {length}, 0\r\n\r\n{HIDDEN}"), &[400]),
        (format!("{post}Content-Length: +{length}\r\n\r\n{HIDDEN}"), &[400]),
        (format!("{post}Content-Length : {length}\r\n\r\n{HIDDEN}"), &[400]),
        // Chunks go before a length, whichever comes first, and the connection is over: RFC 9112, 6.3.
        (format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"), &[405]),
        (format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{HIDDEN}"), &[405]),
        // What is no encoding of HTTP/1.1, or does not end in chunks, says no length.
        (format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{HIDDEN}"), &[400]),
        (format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{HIDDEN}"), &[400]),
        (format!("{post}Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n{HIDDEN}"), &[400]),
        (format!("POST /health HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"), &[400]),
        // A header does not go on in the next line, and nothing stands before the first.
        (format!("{post}X: a\r\n Content-Length: {length}\r\n\r\n{HIDDEN}"), &[400]),
        (format!("POST /health HTTP/1.1\r\n Host: a\r\n\r\n{HIDDEN}"), &[400]),
        // Nor does a carriage return alone end it.
        (format!("{post}X: a\rContent-Length: {length}\r\n\r\n{HIDDEN}"), &[400]),
        (format!("{post}X: a\0b\r\n\r\n"), &[400]),
        // A line feed alone does (RFC 9112, 2.2), in the head; with the same meaning to all who take it.
        ("GET /health HTTP/1.1\nHost: a\n\n".to_owned(), &[200, 200]),
    ] {
        assert_eq!(statuses(&stand, &sent), expected, "{sent:?}");
    }
}

/// Chunks whose ends are not those of RFC 9112, 7.1: nothing behind them is read.
#[test]
fn chunks_that_are_none_end_the_connection() {
    let stand = Stand::start(config());
    let post = "POST /v1/sync HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for chunks in [
        "0\n\n",
        "0\r\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5;x\nhello\r\n0\r\n\r\n",
        "-1\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n",
    ] {
        let answered = statuses(&stand, &format!("{post}{chunks}{HIDDEN}"));
        assert!(answered.len() <= 1 && !answered.contains(&200), "{chunks:?}: {answered:?}");
    }
}
