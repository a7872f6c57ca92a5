//! Whether an answer comes from a cache, as its head says.

use hyper::HeaderMap;
use hyper::header::AGE;

/// What caches say of an answer.
///
/// `Cache-Status` (RFC 9211) goes before `X-Cache`, which has no standard but says more than `Age`: that an answer has one means
/// that it was in a cache, and that it has none means nothing.
///
/// ```
/// use headwater_lab::http::told::is_hit;
/// use hyper::HeaderMap;
///
/// let head = |name: &'static str, value: &'static str| HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
/// assert_eq!(is_hit(&head("x-cache", "HIT from squid.example")), Some(true));
/// assert_eq!(is_hit(&head("x-cache", "MISS from near, HIT from far")), Some(true));
/// assert_eq!(is_hit(&head("x-cache", "TCP_MISS")), Some(false));
/// assert_eq!(is_hit(&head("cache-status", "origin; fwd=uri-miss, near; hit; ttl=30")), Some(true));
/// assert_eq!(is_hit(&head("cache-status", "near; fwd=uri-miss; detail=hit")), Some(false));
/// assert_eq!(is_hit(&head("age", "12")), Some(true));
/// assert_eq!(is_hit(&head("server", "nginx")), None, "no cache says anything");
/// ```
pub fn is_hit(head: &HeaderMap) -> Option<bool> {
    let members = |name: &str| -> Vec<String> {
        let values = head.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(|member| member.trim().to_ascii_lowercase()).collect()
    };
    let status = members("cache-status");
    if !status.is_empty() {
        let is_hit = |member: &String| member.split(';').skip(1).any(|what| matches!(what.trim(), "hit" | "hit=?1"));
        return Some(status.iter().any(is_hit));
    }
    let told = members("x-cache");
    if !told.is_empty() {
        let is_hit = |member: &String| member.split_whitespace().next().is_some_and(|word| word.contains("hit"));
        return Some(told.iter().any(is_hit));
    }
    head.contains_key(AGE).then_some(true)
}
