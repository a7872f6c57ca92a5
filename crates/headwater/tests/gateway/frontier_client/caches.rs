//! What caches between a client and the gateway go by.

use std::time::Duration;

use headwater_lab::frontier::{Answer, AnswerError, ID, ID_HEADER, Request};

use super::super::get;
use super::{Gateway, SQL, length, path, status};

impl Gateway {
    /// `Last-Modified` of an answer, which is there once the content is a second old.
    fn modified(&self, path: &str) -> String {
        for _ in 0..300 {
            let (head, _) = self.exchange(&format!("GET {path}"), &format!("{ID_HEADER}: {ID}\r\n"));
            let mut fields = head.lines().filter_map(|line| line.split_once(": "));
            if let Some((_, modified)) = fields.find(|(name, _)| name.eq_ignore_ascii_case("last-modified")) {
                return modified.to_owned();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("no Last-Modified of {path}");
    }

    fn since(&self, path: &str, time: &str) -> (String, String) {
        self.raw(path, &format!("If-Modified-Since: {time}\r\n"))
    }
}

#[test]
fn only_the_very_time_is_answered_not_modified() {
    for gateway in Gateway::both() {
        let path = path(&Request::new(SQL));
        let modified = gateway.modified(&path);
        let (head, body) = gateway.since(&path, &modified);
        assert!(status(&head) == "304" && body.is_empty(), "{head}\n{body}");
        assert!(head.contains("cache-control: max-age=604800"), "{head}");
        assert!(head.contains(&format!("last-modified: {}", modified.to_ascii_lowercase())), "{head}");
        // `Wed, 25 Nov 2026 12:51:52 GMT`, a second on, and times that are surely later and earlier.
        let second: u32 = modified[23..25].parse().expect("seconds");
        let next = format!("{}{:02} GMT", &modified[..23], (second + 1) % 60);
        for other in [next.as_str(), "Fri, 01 Jan 2100 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 GMT", "yesterday"] {
            let (head, body) = gateway.since(&path, other);
            assert_eq!(status(&head), "200", "{other} is not {modified}");
            assert_eq!(Answer::parse(body.as_bytes(), "BLOB").map(|answer| answer.records), Ok(3), "{other}");
        }
        gateway.sql("INSERT INTO t VALUES (4, 'four')");
        let (head, body) = gateway.since(&path, &modified);
        assert_eq!(status(&head), "200", "it has changed");
        assert_eq!(Answer::parse(body.as_bytes(), "BLOB").map(|answer| answer.records), Ok(4));
    }
}

#[test]
fn what_is_kept_is_not_modified_without_a_look_at_the_database() {
    for gateway in Gateway::both_with("kept_s = 600\n") {
        let path = path(&Request::new(SQL));
        let modified = gateway.modified(&path);
        gateway.sql("DROP TABLE t");
        assert_eq!(status(&gateway.since(&path, &modified).0), "304");
        let other = gateway.ask(&Request::new("select id from t"));
        assert!(matches!(other, Err(AnswerError::Payload(_))), "the table is gone: {other:?}");
    }
}

#[test]
fn head_is_answered_by_the_head_of_a_global_error() {
    for gateway in Gateway::both() {
        let path = path(&Request::new(SQL));
        let headers = format!("{ID_HEADER}: {ID}\r\nContent-Length: 0\r\n");
        let (head, body) = gateway.send(&format!("HEAD {path}"), &headers);
        assert!(status(&head) == "200" && body.is_empty(), "{head}\n{body}");
        assert!(head.contains("content-type: text/xml;charset=us-ascii") && head.contains("max-age=0"), "{head}");
        // What is said of POST has as many letters.
        let (_, error) = gateway.send(&format!("POST {path}"), &headers);
        assert!(matches!(Answer::parse(error.as_bytes(), "BLOB"), Err(AnswerError::Global(_))), "{error}");
        assert_eq!(length(&head), Some(error.len()));
    }
}

#[test]
fn an_error_that_no_cache_is_to_keep_is_broken_off() {
    let options = "X-Frontier-Opts: DontCacheErrors\r\n";
    for gateway in Gateway::both() {
        let good = path(&Request::new(SQL));
        let of_the_whole = good.replace("frontier_request:1", "frontier_request:2");
        for wrong in [path(&Request::new("select absent from t")), path(&Request::file("absent")), of_the_whole] {
            let (head, whole) = gateway.raw(&wrong, "");
            assert_eq!((status(&head), length(&head)), ("200", Some(whole.len())), "{wrong}");
            let (head, cut) = gateway.raw(&wrong, options);
            assert_eq!((status(&head), length(&head)), ("200", Some(whole.len())), "{wrong}");
            assert!(cut.len() < whole.len(), "{wrong}: {cut}");
            assert!(matches!(Answer::parse(cut.as_bytes(), "BLOB"), Err(AnswerError::Frame(_))), "{wrong}: {cut}");
        }
        let (_, body) = gateway.raw(&good, options);
        assert_eq!(Answer::parse(body.as_bytes(), "BLOB").map(|answer| answer.records), Ok(3), "it is no error");
    }
    // Behind a head that is gone as well.
    let gateway = Gateway::postgres();
    let (_, cut) =
        gateway.raw(&path(&Request::new("select 1 / (id - 1) as x from t, (select pg_sleep(5.5)) as s")), options);
    assert!(cut.contains("<keepalive />"), "{cut}");
    assert!(matches!(Answer::parse(cut.as_bytes(), "BLOB"), Err(AnswerError::Frame(_))), "{cut}");
}

/// Its end is the connection's, wherever that ends.
#[test]
fn a_large_answer_is_kept_by_no_cache_of_http_1_0() {
    let gateway = Gateway::postgres_with("", &["--set", "gateway.held_bytes_max=65536"]);
    let request = Request::new("select repeat('x', 1000) as x from generate_series(1, 1000)");
    let (head, body) = gateway.raw(&path(&request), "");
    assert!(length(&head).is_none() && head.contains("cache-control: no-store"), "{head}");
    assert_eq!(Answer::to(&request, body.as_bytes()).map(|answer| answer.records), Ok(1000));
    let (head, _) = get(&gateway.address, &path(&request), &format!("{ID_HEADER}: {ID}\r\n"));
    assert!(head.contains("transfer-encoding: chunked") && head.contains("cache-control: max-age=604800"), "{head}");
}
