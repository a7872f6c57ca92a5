//! To whom a request of HTTP/1 is addressed (RFC 9112, 3.2).
//!
//! A request of HTTP/1.1 names one host; one of HTTP/1.0 may name one. What names two, or what is no host, may be another's request to whoever
//! stands before this server: it is refused, and its connection closed. Which host is named makes no difference here. So is what names two users
//! (`Authorization`): whoever stands before this server may have let another in than the first.
//!
//! | on the wire | answer |
//! |---|---|
//! | HTTP/1.1 without `Host`, two of them, or `Host: a b` | 400 here |
//! | `Authorization` twice | 400 here, of HTTP/2 too |
//! | `GET http://a/ HTTP/1.1` with another `Host` | as `GET /`: that of the URL counts, and neither is looked at |
//! | two lengths that differ, a length and chunks of HTTP/1.0, an encoding that is not `chunked` at last | 400 by hyper |
//! | a length and chunks | the chunks count, and the connection is closed behind the answer, by hyper |
//! | a header that goes on in the next line, a space before a colon | 400 by hyper |
//! | lines that end without a carriage return | taken in a head, refused among chunks, by hyper |

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

/// Passes a request on that is addressed as it must be; otherwise 400.
pub(crate) async fn addressed(request: Request, next: Next) -> Response {
    match fault(request.version(), request.headers()) {
        None => next.run(request).await,
        Some(what) => refusal(what),
    }
}

fn fault(version: Version, headers: &HeaderMap) -> Option<&'static str> {
    if headers.get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
        return Some("a request has one Authorization, and this one has several");
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if version == Version::HTTP_11 => Some("a request of HTTP/1.1 has a Host, and this one has none"),
        (Some(_), Some(_)) => Some("a request has one Host, and this one has several"),
        (Some(host), None) if !is_host(host) => {
            Some("its Host is neither a name nor an address, with a port or without")
        }
        _ => None,
    }
}

/// A host and perhaps a port; empty where a URL has none.
fn is_host(value: &HeaderValue) -> bool {
    let Ok(authority) = Authority::try_from(value.as_bytes()) else { return value.is_empty() };
    let port = authority.as_str().strip_prefix(authority.host());
    port.is_some_and(|port| port.is_empty() || port.starts_with(':') && port[1..].bytes().all(|b| b.is_ascii_digit()))
}

/// Where the next request would begin is not sure: there is none.
fn refusal(what: &str) -> Response {
    let body = serde_json::json!({ "error": "malformed", "message": what });
    let headers = [(header::CONNECTION, "close"), (header::CACHE_CONTROL, "no-store")];
    (StatusCode::BAD_REQUEST, headers, axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_and_no_more() {
        let fault_of = |shown: &[&'static str]| {
            let shown = shown.iter().map(|shown| (header::AUTHORIZATION, HeaderValue::from_static(shown)));
            let host = (header::HOST, HeaderValue::from_static("a"));
            let headers: HeaderMap = shown.chain([host]).collect();
            [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2].map(|version| fault(version, &headers).is_some())
        };
        assert_eq!(fault_of(&[]), [false; 3]);
        assert_eq!(fault_of(&["Bearer a"]), [false; 3]);
        assert_eq!(fault_of(&["Bearer a", "Bearer a"]), [true; 3]);
        assert_eq!(fault_of(&["Bearer a", "Basic b"]), [true; 3]);
    }

    #[test]
    fn one_host_and_no_more() {
        let is_fine = |version, hosts: &[&'static str]| {
            let hosts = hosts.iter().map(|host| (header::HOST, HeaderValue::from_static(host)));
            fault(version, &hosts.collect()).is_none()
        };
        let (one, zero, two) = (Version::HTTP_11, Version::HTTP_10, Version::HTTP_2);
        for host in ["a", "a.example:7340", "127.0.0.1", "[::1]:80", "xn--bcher-kva.example", ""] {
            assert!(is_fine(one, &[host]) && is_fine(zero, &[host]), "{host:?}");
        }
        for host in ["a b", "a/b", "user@a", "a:x", "[::1"] {
            assert!(!is_fine(one, &[host]) && !is_fine(zero, &[host]), "{host:?}");
        }
        assert!(!is_fine(one, &[]) && is_fine(zero, &[]) && is_fine(two, &[]));
        for version in [zero, one, two] {
            assert!(!is_fine(version, &["a", "b"]) && !is_fine(version, &["a", "a"]));
        }
    }
}
