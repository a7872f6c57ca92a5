//! Tags of answers (RFC 9110, 8.8.3), and what a client's tag says of an answer that is kept nowhere any more.
//!
//! | tag | of |
//! |---|---|
//! | `"CONTENT"` | an answer of which nothing but its content is known |
//! | `"CONTENT.QUESTION.DAY.MARK"` | one of which something tells, for less, whether it may have changed |
//! | `W/"QUESTION.DAY.MARK"` | such a one that was sent as it came, before its content was known |
//!
//! CONTENT is a digest of the bytes, QUESTION one of what was asked, the SQL included. MARK is what told, before the answer was made, in which state its
//! tables were, and DAY when that was. A coding stands behind them (`-gzip5`), as other bytes have another tag.
//!
//! *Caveats.* Tags are not sealed: who makes one up is himself told that nothing has changed. A mark is believed for a day or two: a database
//! whose files are put back to an earlier state, and that then changes as often as the lost one had, is not told from that by its marks alone.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};

use crate::coding::Coding;

/// A longer mark is not told: many transactions were open then.
const MARK_BYTES_MAX: usize = 400;
/// For how many days a mark is believed after that of the tag.
const DAYS_MAX: u64 = 1;

/// A digest, in as many bytes as tags have of it.
pub(crate) fn digest(bytes: impl AsRef<[u8]>) -> String {
    hex::encode(&Sha256::digest(bytes)[..16])
}

/// The tag of this content, and of what was asked and told where that is known.
pub(crate) fn strong(content: &str, made: Option<(&str, &str)>, now: SystemTime) -> String {
    match made.and_then(|(question, mark)| marked(question, mark, now)) {
        Some(marked) => format!("\"{content}.{marked}\""),
        None => format!("\"{content}\""),
    }
}

/// The tag of what is sent as it comes; none where the mark has no room in it.
pub(crate) fn weak(question: &str, mark: &str, now: SystemTime) -> Option<String> {
    Some(format!("W/\"{}\"", marked(question, mark, now)?))
}

fn marked(question: &str, mark: &str, now: SystemTime) -> Option<String> {
    let has_room = mark.len() <= MARK_BYTES_MAX && mark.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'/');
    has_room.then(|| format!("{question}.{}.{mark}", day(now)))
}

fn day(now: SystemTime) -> u64 {
    const DAY: Duration = Duration::from_hours(24);
    now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY.as_secs())
}

/// A tag in its parts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts<'t> {
    content: Option<&'t str>,
    /// QUESTION, DAY and MARK.
    made: Option<[&'t str; 3]>,
    coding: Option<&'t str>,
}

impl Parts<'_> {
    /// Of a tag without `W/`; `None`: it is none of ours.
    fn read(tag: &str) -> Option<Parts<'_>> {
        let inner = tag.strip_prefix('"')?.strip_suffix('"')?;
        let (inner, coding) = inner.split_once('-').map_or((inner, None), |(inner, coding)| (inner, Some(coding)));
        let parts: Vec<&str> = inner.split('.').collect();
        let (content, made) = match *parts.as_slice() {
            [content] => (Some(content), None),
            [content, question, day, mark] => (Some(content), Some([question, day, mark])),
            [question, day, mark] => (None, Some([question, day, mark])),
            _ => return None,
        };
        Some(Parts { content, made, coding })
    }

    /// Whether who wants this coding takes it, at whichever level.
    fn is_for(&self, wanted: Coding) -> bool {
        let Some(coding) = self.coding else { return true };
        let level = wanted.name().and_then(|name| coding.strip_prefix(name));
        level.is_some_and(|level| matches!(level.as_bytes(), [b'1'..=b'9']))
    }
}

/// Whether both are of the same content.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    let content = |tag| Parts::read(tag).and_then(|parts| parts.content);
    content(one).is_some_and(|content_of_one| content(other) == Some(content_of_one))
}

/// The tags by which a client says what it has.
fn given(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn without_weak(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag)
}

/// The tag by which the client has this content already, in a form that it takes (RFC 9110, 13.1.2): as it is, or in the coding that it wants.
pub(crate) fn known(headers: &HeaderMap, tag: &str, wanted: Coding) -> Option<String> {
    let is_it = |given: &&str| {
        *given == "*" || is_same(given, tag) && Parts::read(given).is_some_and(|parts| parts.is_for(wanted))
    };
    let found = given(headers).map(without_weak).find(is_it)?;
    Some(if found == "*" { tag } else { found }.to_owned())
}

/// What a client has of a question's answers, however long ago that was: its tag, and the mark in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Had {
    pub(crate) tag: String,
    pub(crate) mark: String,
}

/// What the client has of this question; `None`: nothing by which that could be told from what is there now.
pub(crate) fn had(
    headers: &HeaderMap,
    question: impl FnOnce() -> String,
    wanted: Coding,
    now: SystemTime,
) -> Option<Had> {
    let mut marked = given(headers)
        .filter_map(|tag| Some((tag, Parts::read(without_weak(tag))?)))
        .filter_map(|(tag, parts)| {
            let made = parts.made.filter(|_| parts.is_for(wanted))?;
            Some((tag, made))
        })
        .peekable();
    marked.peek()?;
    let (question, today) = (question(), day(now));
    let is_of_late = |day: &str| day.parse().is_ok_and(|day: u64| day <= today && today - day <= DAYS_MAX);
    let is_short = |mark: &str| mark.len() <= MARK_BYTES_MAX;
    let (tag, [_, _, mark]) =
        marked.find(|(_, [asked, day, mark])| *asked == question && is_of_late(day) && is_short(mark))?;
    Some(Had { tag: tag.to_owned(), mark: mark.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);
    const QUESTION: &str = "aaaa";
    const MARK: &str = "0a0b/ffff";

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY + Duration::from_hours(23)
    }

    fn headers(tags: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::IF_NONE_MATCH, tags.parse().expect("a header's value"))])
    }

    fn mark_of(tags: &str, wanted: Coding, now: SystemTime) -> Option<String> {
        had(&headers(tags), || QUESTION.to_owned(), wanted, now).map(|had| had.mark)
    }

    #[test]
    fn a_tag_says_what_is_known() {
        assert_eq!(strong("c0", None, now()), "\"c0\"");
        assert_eq!(strong("c0", Some((QUESTION, MARK)), now()), "\"c0.aaaa.20000.0a0b/ffff\"");
        assert_eq!(weak(QUESTION, MARK, now()).as_deref(), Some("W/\"aaaa.20000.0a0b/ffff\""));
        for unfit in ["0".repeat(MARK_BYTES_MAX + 1).as_str(), "a\"b", "a.b", "a,b"] {
            assert_eq!(
                (strong("c0", Some((QUESTION, unfit)), now()).as_str(), weak(QUESTION, unfit, now())),
                ("\"c0\"", None)
            );
        }
    }

    #[test]
    fn content_is_the_same_whatever_was_told_when_it_was_made() {
        let later = strong("c0", Some((QUESTION, "0c")), now());
        for (tags, wanted, expected) in [
            ("\"c0\"", Coding::Identity, Some("\"c0\"")),
            ("\"x\", W/\"c0.aaaa.20000.0a\"", Coding::Identity, Some("\"c0.aaaa.20000.0a\"")),
            ("\"c0.aaaa.20000.0a-gzip5\"", Coding::Gzip, Some("\"c0.aaaa.20000.0a-gzip5\"")),
            ("\"c0-gzip5\"", Coding::Brotli, None),
            ("\"c0-gzip5\"", Coding::Identity, None),
            ("\"c0-gzip55\"", Coding::Gzip, None),
            ("W/\"aaaa.20000.0c\"", Coding::Identity, None),
            ("\"c1.aaaa.20000.0c\"", Coding::Identity, None),
            ("*", Coding::Gzip, Some(later.as_str())),
            ("c0", Coding::Identity, None),
            ("\"", Coding::Identity, None),
        ] {
            assert_eq!(known(&headers(tags), &later, wanted).as_deref(), expected, "{tags}");
        }
    }

    #[test]
    fn a_mark_is_of_one_question_and_of_late() {
        let tag = strong("c0", Some((QUESTION, MARK)), now());
        let gzipped = tag.replace("ffff\"", "ffff-gzip1\"");
        let some = Some(MARK.to_owned());
        assert_eq!(mark_of(&tag, Coding::Brotli, now()), some);
        assert_eq!(mark_of(&format!("\"c9\", {gzipped}"), Coding::Gzip, now()), some);
        assert_eq!(mark_of("W/\"aaaa.20000.0a0b/ffff\"", Coding::Gzip, now()), some);
        assert_eq!(mark_of(&gzipped, Coding::Identity, now()), None, "not in a form that it takes");
        assert_eq!(mark_of(&tag.replace("aaaa", "bbbb"), Coding::Identity, now()), None, "of another question");
        assert_eq!(mark_of(&tag, Coding::Identity, now() + DAY), some);
        assert_eq!(mark_of(&tag, Coding::Identity, now() + 2 * DAY), None, "too old");
        assert_eq!(mark_of(&tag, Coding::Identity, now() - DAY), None, "of tomorrow");
        for strange in ["*", "\"c0\"", "\"a.b\"", "\"c0.aaaa.x.0a\"", "\"c0.aaaa.-1.0a\"", "\"1.2.3.4.5\"", ""] {
            assert_eq!(mark_of(strange, Coding::Identity, now()), None, "{strange}");
        }
    }
}
