//! Tags of answers (RFC 9110, 8.8.3), and what a client's tag says of an answer that is kept nowhere any more.
//!
//! | tag | of |
//! |---|---|
//! | `"CONTENT"` | an answer of which nothing but its content is known |
//! | `"CONTENT.SEAL.DAY.MARK"` | one of which something tells, for less, whether it may have changed |
//! | `W/"SEAL.DAY.MARK"` | such a one that was sent as it came, before its content was known |
//!
//! CONTENT is a digest of the bytes, MARK what told, before the answer was made, in which state its tables were, and DAY when that was. SEAL is a
//! MAC of these and of what was asked, the SQL included, under a key of the database's: a cache takes the tag of a 304 for that of its own answer, so nobody
//! may make one up. A coding stands behind them (`-gzip5`), as other bytes have another tag.
//!
//! *Caveats.* A mark is believed for a day or two: a database whose files are put back to an earlier state, and that then changes as often as
//! the lost one had, is not told from that by its marks alone.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, header};
use hmac::{Hmac, KeyInit as _, Mac as _};
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

/// What is asked, all of it that an answer comes from, and the key by which it is sealed.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) key: [u8; 32],
}

/// The key is that of tokens and of watermarks too; what is sealed there begins otherwise.
const PURPOSE: &str = "headwater tag";

impl Question {
    fn mac(&self, content: &str, day: &str, mark: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.update(format!("{PURPOSE}\0{content}\0{day}\0{mark}\0{}", self.text).as_bytes());
        mac
    }

    fn seal(&self, content: &str, day: &str, mark: &str) -> String {
        hex::encode(&self.mac(content, day, mark).finalize().into_bytes()[..16])
    }

    /// Whether a tag was made for this question, by who has the key.
    fn has_sealed(&self, parts: &Parts<'_>) -> bool {
        let Some([seal, day, mark]) = parts.made else { return false };
        let Some(seal) = hex::decode(seal).ok().filter(|seal| seal.len() == 16) else { return false };
        self.mac(parts.content.unwrap_or_default(), day, mark).verify_truncated_left(&seal).is_ok()
    }
}

/// The tag of this content, and of what was asked and told where that is known.
pub(crate) fn strong(content: &str, made: Option<(&Question, &str)>, now: SystemTime) -> String {
    match made.and_then(|(question, mark)| marked(content, question, mark, now)) {
        Some(marked) => format!("\"{content}.{marked}\""),
        None => format!("\"{content}\""),
    }
}

/// The tag of what is sent as it comes; none where the mark has no room in it.
pub(crate) fn weak(question: &Question, mark: &str, now: SystemTime) -> Option<String> {
    Some(format!("W/\"{}\"", marked("", question, mark, now)?))
}

fn marked(content: &str, question: &Question, mark: &str, now: SystemTime) -> Option<String> {
    let has_room = mark.len() <= MARK_BYTES_MAX && mark.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'/');
    let day = day(now).to_string();
    has_room.then(|| format!("{}.{day}.{mark}", question.seal(content, &day, mark)))
}

fn day(now: SystemTime) -> u64 {
    const DAY: Duration = Duration::from_hours(24);
    now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY.as_secs())
}

/// A tag in its parts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts<'t> {
    content: Option<&'t str>,
    /// SEAL, DAY and MARK.
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
            [content, seal, day, mark] => (Some(content), Some([seal, day, mark])),
            [seal, day, mark] => (None, Some([seal, day, mark])),
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
/// `question` is asked for where a tag is of more than its content.
pub(crate) fn known(
    headers: &HeaderMap,
    tag: &str,
    wanted: Coding,
    question: impl Fn() -> Option<Question>,
) -> Option<String> {
    let is_it = |given: &&str| {
        let is_ours = |parts: Parts<'_>| {
            parts.is_for(wanted)
                && (parts.made.is_none() || question().is_some_and(|question| question.has_sealed(&parts)))
        };
        *given == "*" || is_same(given, tag) && Parts::read(given).is_some_and(is_ours)
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
    question: impl FnOnce() -> Question,
    wanted: Coding,
    now: SystemTime,
) -> Option<Had> {
    let parts = |tag| Some((tag, Parts::read(without_weak(tag)).filter(|parts| parts.is_for(wanted))?));
    let mut marked = given(headers).filter_map(parts).filter(|(_, parts)| parts.made.is_some()).peekable();
    marked.peek()?;
    let (question, today) = (question(), day(now));
    let is_of_late = |day: &str| day.parse().is_ok_and(|day: u64| day <= today && today - day <= DAYS_MAX);
    let (tag, mark) = marked.find_map(|(tag, parts)| {
        let [_, day, mark] = parts.made?;
        (is_of_late(day) && question.has_sealed(&parts)).then_some((tag, mark))
    })?;
    Some(Had { tag: tag.to_owned(), mark: mark.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);
    const SEAL: &str = "00000000000000000000000000000000";
    const MARK: &str = "0a0b/ffff";

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY + Duration::from_hours(23)
    }

    fn headers(tags: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::IF_NONE_MATCH, tags.parse().expect("a header's value"))])
    }

    fn question(text: &str) -> Question {
        Question { text: text.to_owned(), key: [7; 32] }
    }

    fn mark_of(tags: &str, wanted: Coding, now: SystemTime) -> Option<String> {
        had(&headers(tags), || question("one"), wanted, now).map(|had| had.mark)
    }

    #[test]
    fn a_tag_says_what_is_known() {
        let one = question("one");
        assert_eq!(strong("c0", None, now()), "\"c0\"");
        let seal = one.seal("c0", "20000", MARK);
        assert_eq!(strong("c0", Some((&one, MARK)), now()), format!("\"c0.{seal}.20000.0a0b/ffff\""));
        let seal = one.seal("", "20000", MARK);
        assert_eq!(weak(&one, MARK, now()), Some(format!("W/\"{seal}.20000.0a0b/ffff\"")));
        for unfit in ["0".repeat(MARK_BYTES_MAX + 1).as_str(), "a\"b", "a.b", "a,b"] {
            let tags = (strong("c0", Some((&one, unfit)), now()), weak(&one, unfit, now()));
            assert_eq!(tags, ("\"c0\"".to_owned(), None));
        }
    }

    #[test]
    fn content_is_the_same_whatever_was_told_when_it_was_made() {
        let (one, later) = (question("one"), strong("c0", Some((&question("one"), "0c")), now()));
        let earlier = strong("c0", Some((&one, "0a")), now());
        let gzipped = earlier.replace("0a\"", "0a-gzip5\"");
        for (tags, wanted, expected) in [
            ("\"c0\"", Coding::Identity, Some("\"c0\"")),
            (&format!("\"x\", W/{earlier}"), Coding::Identity, Some(&*earlier)),
            (&gzipped, Coding::Gzip, Some(&*gzipped)),
            ("\"c0-gzip5\"", Coding::Brotli, None),
            ("\"c0-gzip5\"", Coding::Identity, None),
            ("\"c0-gzip55\"", Coding::Gzip, None),
            (&weak(&one, "0c", now()).expect("room"), Coding::Identity, None),
            (&earlier.replace("c0", "c1"), Coding::Identity, None),
            (&format!("\"c0.{SEAL}.20000.0a\""), Coding::Identity, None),
            (&earlier.replace("20000", "20001"), Coding::Identity, None),
            (&earlier.replace(".0a", ".ff"), Coding::Identity, None),
            ("*", Coding::Gzip, Some(later.as_str())),
            ("c0", Coding::Identity, None),
            ("\"", Coding::Identity, None),
        ] {
            let found = known(&headers(tags), &later, wanted, || Some(one.clone()));
            assert_eq!(found.as_deref(), expected, "{tags}");
        }
        assert_eq!(known(&headers(&earlier), &later, Coding::Identity, || Some(question("other"))), None);
    }

    #[test]
    fn a_mark_is_of_one_question_and_of_late() {
        let tag = strong("c0", Some((&question("one"), MARK)), now());
        let gzipped = tag.replace("ffff\"", "ffff-gzip1\"");
        let some = Some(MARK.to_owned());
        assert_eq!(mark_of(&tag, Coding::Brotli, now()), some);
        assert_eq!(mark_of(&format!("\"c9\", {gzipped}"), Coding::Gzip, now()), some);
        assert_eq!(mark_of(&weak(&question("one"), MARK, now()).expect("room"), Coding::Gzip, now()), some);
        assert_eq!(mark_of(&gzipped, Coding::Identity, now()), None, "not in a form that it takes");
        assert_eq!(mark_of(&strong("c0", Some((&question("other"), MARK)), now()), Coding::Identity, now()), None);
        let others = Question { key: [8; 32], ..question("one") };
        assert_eq!(mark_of(&strong("c0", Some((&others, MARK)), now()), Coding::Identity, now()), None, "another key");
        for (part, made_up) in [("c0", "c1"), ("20000", "19999"), ("0a0b", "0a0c")] {
            assert_eq!(mark_of(&tag.replace(part, made_up), Coding::Identity, now()), None, "{made_up} is made up");
        }
        assert_eq!(mark_of(&tag, Coding::Identity, now() + DAY), some);
        assert_eq!(mark_of(&tag, Coding::Identity, now() + 2 * DAY), None, "too old");
        assert_eq!(mark_of(&tag, Coding::Identity, now() - DAY), None, "of tomorrow");
        for strange in ["*", "\"c0\"", "\"a.b\"", "\"c0.aaaa.x.0a\"", "\"c0.aaaa.-1.0a\"", "\"1.2.3.4.5\"", ""] {
            assert_eq!(mark_of(strange, Coding::Identity, now()), None, "{strange}");
        }
    }
}
