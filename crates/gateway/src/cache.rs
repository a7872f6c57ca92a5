//! Answers that are kept, within a bound in bytes, and one execution for all who want the same thing at once.
//!
//! ```text
//! request -> key -> kept and fresh ............................ given
//!                -> somebody is at it ......................... waited for
//!                -> nobody is: this one is, and tells the others
//! ```
//!
//! An answer is known by its content: asked for again and found the same, it keeps its tag and the time at which it was made first. Answers to
//! different questions that have the same content share its bytes.
//!
//! *Caveats.* Of answers that had to leave, the times of some thousands are remembered, and none from before the start: there, the same content has
//! another time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::watch;

use crate::packing::Coded;
use crate::tag::{self, Question};

/// What identifies an answer: query, form, arguments, and the user where it is personal.
pub(crate) type Key = Arc<str>;

/// What an entry takes beside its content, about.
const ENTRY_BYTES: usize = 512;
/// Failures that are remembered; beyond, all are forgotten.
const FAILURES_MAX: usize = 1_000;
/// Answers that had to leave, whose times are remembered; beyond, all are forgotten.
const TIMES_MAX: usize = 4_096;

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) body: Bytes,
    /// The same, compressed.
    pub(crate) coded: Coded,
    /// With its quotes ([`crate::tag`]).
    pub(crate) tag: String,
    /// A digest of the body.
    pub(crate) content: String,
    /// What tells whether it may have changed, as it was before it was made.
    pub(crate) mark: Option<String>,
    /// Where the next page is.
    pub(crate) next: Option<String>,
    /// When this content was there first.
    pub(crate) modified: SystemTime,
    /// When it was found to be the content last.
    pub(crate) checked: Instant,
}

/// What an execution has made.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) body: Bytes,
    pub(crate) mark: Option<String>,
    /// What was asked, where there is a mark.
    pub(crate) question: Option<Question>,
    pub(crate) next: Option<String>,
}

/// How an execution ended, for all who wait for it.
pub(crate) type Shared<E> = Option<Result<Arc<Kept>, E>>;

/// Kept answers and executions under way; `E` is how an execution fails.
pub(crate) struct Cache<E> {
    bytes_max: usize,
    inner: Mutex<Inner<E>>,
}

struct Inner<E> {
    kept: HashMap<Key, (Arc<Kept>, u64)>,
    /// By their digests.
    contents: HashMap<String, Content>,
    failures: HashMap<Key, (E, Instant)>,
    /// By digests of their keys: what content answers had that had to leave, and since when.
    times: HashMap<String, (String, SystemTime)>,
    bytes: usize,
    /// Counts uses: the least recently used goes first.
    clock: u64,
    running: HashMap<Key, Weak<watch::Sender<Shared<E>>>>,
}

/// What one or more of the answers that are kept hold.
struct Content {
    body: Bytes,
    coded: Coded,
    answers: usize,
}

/// What is to be done for a request.
pub(crate) enum Place<E> {
    /// It is the first: whoever holds this executes, and tells all who have subscribed.
    First(Arc<watch::Sender<Shared<E>>>),
    /// It waits for the first. Where the first is gone without a word, it asks again.
    Wait(watch::Receiver<Shared<E>>),
}

impl<E: Clone> Cache<E> {
    /// A cache of so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Cache<E> {
        let (kept, contents, failures, times) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let inner = Inner { kept, contents, failures, times, bytes: 0, clock: 0, running: HashMap::new() };
        Cache { bytes_max, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<E>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept, however old.
    pub(crate) fn kept(&self, key: &Key) -> Option<Arc<Kept>> {
        let inner = &mut *self.lock();
        inner.clock += 1;
        let (kept, used) = inner.kept.get_mut(key)?;
        *used = inner.clock;
        Some(Arc::clone(kept))
    }

    /// Whether somebody is at it.
    pub(crate) fn place(&self, key: &Key) -> Place<E> {
        let inner = &mut *self.lock();
        if let Some(running) = inner.running.get(key).and_then(Weak::upgrade) {
            return Place::Wait(running.subscribe());
        }
        let tell = Arc::new(watch::channel(None).0);
        inner.running.insert(Arc::clone(key), Arc::downgrade(&tell));
        Place::First(tell)
    }

    /// The first is through.
    pub(crate) fn leave(&self, key: &Key) {
        self.lock().running.remove(key);
    }

    /// The first gives up if nobody waits for it any more; whether it does.
    pub(crate) fn give_up(&self, key: &Key, tell: &watch::Sender<Shared<E>>) -> bool {
        let inner = &mut *self.lock();
        let is_alone = tell.receiver_count() == 0;
        if is_alone {
            inner.running.remove(key);
        }
        is_alone
    }

    /// What is kept was found to be so still, at this mark, for this question; gives it as it is kept now.
    pub(crate) fn renew(&self, key: &Key, kept: &Kept, mark: Option<String>, question: Option<Question>) -> Arc<Kept> {
        let made = Made { body: kept.body.clone(), mark, question, next: kept.next.clone() };
        self.keep(key, made, (Instant::now(), SystemTime::now()))
    }

    /// Keeps an answer, in the place of what was kept before; gives it as it is kept.
    pub(crate) fn keep(&self, key: &Key, made: Made, now: (Instant, SystemTime)) -> Arc<Kept> {
        let Made { body, mark, question, next } = made;
        let content = tag::digest(&body);
        let tag = tag::strong(&content, question.as_ref().zip(mark.as_deref()), now.1);
        let inner = &mut *self.lock();
        let modified = inner.since(key, &content).unwrap_or(now.1);
        // Before the former answer leaves, whose it may be too.
        let (body, coded) = inner.enter(&content, body);
        inner.take_out(key);
        let has_room = ENTRY_BYTES + bytes_of(&body) <= self.bytes_max;
        let kept = Arc::new(Kept { body, coded, tag, content, mark, next, modified, checked: now.0 });
        inner.clock += 1;
        inner.bytes += ENTRY_BYTES;
        inner.kept.insert(Arc::clone(key), (Arc::clone(&kept), inner.clock));
        if !has_room {
            inner.evict(key);
        }
        while inner.bytes > self.bytes_max {
            let Some(oldest) = inner.kept.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| Arc::clone(key))
            else {
                break;
            };
            inner.evict(&oldest);
        }
        kept
    }

    /// Remembers how an execution failed, until then.
    pub(crate) fn keep_failure(&self, key: &Key, failure: E, until: Instant) {
        let inner = &mut *self.lock();
        if inner.failures.len() >= FAILURES_MAX {
            inner.failures.clear();
        }
        inner.failures.insert(Arc::clone(key), (failure, until));
    }

    /// How it failed a moment ago, if that is remembered.
    pub(crate) fn failure(&self, key: &Key, now: Instant) -> Option<E> {
        let inner = &mut *self.lock();
        let (failure, until) = inner.failures.get(key)?;
        if *until > now {
            return Some(failure.clone());
        }
        inner.failures.remove(key);
        None
    }

    /// Answers that are kept, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.kept.len(), inner.bytes)
    }
}

/// A time as `Last-Modified` has it, once it is told from every other.
pub(crate) fn last_modified(modified: SystemTime) -> Option<String> {
    let is_sure = SystemTime::now().duration_since(modified).is_ok_and(|since| since >= Duration::from_secs(1));
    is_sure.then(|| httpdate::fmt_http_date(modified))
}

#[cfg(test)]
impl<E> Cache<E> {
    pub(crate) fn waiters(&self) -> usize {
        let inner = self.inner.lock().expect("no panic");
        inner.running.values().filter_map(Weak::upgrade).map(|tell| tell.receiver_count()).sum()
    }
}

impl<E> Inner<E> {
    /// One more answer has this content: the bytes that all of them share.
    fn enter(&mut self, content: &str, body: Bytes) -> (Bytes, Coded) {
        if let Some(shared) = self.contents.get_mut(content) {
            shared.answers += 1;
            return (shared.body.clone(), shared.coded.clone());
        }
        self.bytes += bytes_of(&body);
        let coded = Coded::default();
        let shared = Content { body: body.clone(), coded: coded.clone(), answers: 1 };
        self.contents.insert(content.to_owned(), shared);
        (body, coded)
    }

    /// Since when a question's answer has this content, as far as is known. What is remembered of one that had to leave is forgotten: whatever
    /// comes now takes its place.
    fn since(&mut self, key: &Key, content: &str) -> Option<SystemTime> {
        let left = self.times.remove(&tag::digest(key.as_bytes()));
        let kept = self.kept.get(key).map(|(kept, _)| (kept.content.clone(), kept.modified));
        let (before, since) = kept.or(left)?;
        (before == content).then_some(since)
    }

    /// Takes an answer out for want of room.
    fn evict(&mut self, key: &Key) {
        if let Some((kept, _)) = self.kept.get(key) {
            if self.times.len() >= TIMES_MAX {
                self.times.clear();
            }
            self.times.insert(tag::digest(key.as_bytes()), (kept.content.clone(), kept.modified));
        }
        self.take_out(key);
    }

    fn take_out(&mut self, key: &Key) {
        let Some((kept, _)) = self.kept.remove(key) else { return };
        self.bytes -= ENTRY_BYTES;
        let Some(shared) = self.contents.get_mut(&kept.content) else { return };
        shared.answers -= 1;
        if shared.answers == 0 {
            self.contents.remove(&kept.content);
            self.bytes -= bytes_of(&kept.body);
        }
    }
}

impl Kept {
    /// Something that is not kept: of now, without a tag.
    pub(crate) fn unkept(body: Bytes) -> Kept {
        Kept {
            body,
            coded: Coded::default(),
            tag: String::new(),
            content: String::new(),
            mark: None,
            next: None,
            modified: SystemTime::now(),
            checked: Instant::now(),
        }
    }

    /// What `Last-Modified` says; nothing within a second of the change: the time has whole seconds, and another content of the same second must
    /// not be taken for this one (RFC 9110, 8.8.2.2).
    pub(crate) fn last_modified(&self) -> Option<String> {
        last_modified(self.modified)
    }

    /// How long ago it was seen to be so.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.checked)
    }
}

/// What a content takes at most, about: its compressed forms are smaller than it is, and clients of one kind want the same one.
fn bytes_of(body: &Bytes) -> usize {
    2 * body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Arc::from(name)
    }

    fn keep(cache: &Cache<()>, name: &str, body: &str) -> Arc<Kept> {
        let made = Made { body: Bytes::from(body.to_owned()), ..Made::default() };
        cache.keep(&key(name), made, (Instant::now(), SystemTime::now()))
    }

    #[test]
    fn the_same_content_keeps_its_tag_and_its_time() {
        let cache = Cache::new(1 << 20);
        let first = keep(&cache, "a", "one");
        let again = keep(&cache, "a", "one");
        assert_eq!((&again.tag, again.modified), (&first.tag, first.modified));
        assert!(again.checked >= first.checked && again.tag.starts_with('"') && again.tag.len() == 34);
        assert_eq!(again.last_modified(), None, "another content may come within this second");
        let other = keep(&cache, "a", "two");
        assert!(other.tag != first.tag && other.modified >= first.modified);
        assert_eq!(cache.size(), (1, 6 + ENTRY_BYTES));
    }

    #[test]
    fn the_same_content_has_its_time_though_it_had_to_leave() {
        let cache = Cache::new(ENTRY_BYTES + 6);
        let first = keep(&cache, "a", "one");
        keep(&cache, "b", "one");
        assert!(cache.kept(&key("a")).is_none(), "it had to leave");
        assert_eq!(keep(&cache, "a", "one").modified, first.modified);
        let other = keep(&cache, "a", "two");
        keep(&cache, "b", "one");
        assert!(other.modified > first.modified);
        assert_eq!(keep(&cache, "a", "two").modified, other.modified);
        keep(&cache, "b", "one");
        assert!(keep(&cache, "a", "one").modified > other.modified, "it was another meanwhile");
        for number in 0..3 * TIMES_MAX {
            keep(&cache, &number.to_string(), "one");
            assert!(cache.lock().times.len() <= TIMES_MAX);
        }
    }

    #[test]
    fn answers_with_the_same_content_share_its_bytes() {
        let cache = Cache::new(1 << 20);
        let [one, other] = ["a", "b"].map(|name| keep(&cache, name, "0123456789"));
        assert_eq!(one.body.as_ptr(), other.body.as_ptr());
        assert_eq!(cache.size(), (2, 20 + 2 * ENTRY_BYTES));
        keep(&cache, "a", "another");
        assert_eq!(cache.size(), (2, 20 + 14 + 2 * ENTRY_BYTES), "the other has it still");
        keep(&cache, "b", "another");
        assert_eq!(cache.size(), (2, 14 + 2 * ENTRY_BYTES));
        let small: Cache<()> = Cache::new(3 * ENTRY_BYTES);
        for _ in 0..10 {
            keep(&small, "a", &"x".repeat(4_000));
            keep(&small, "b", "y");
        }
        assert_eq!(small.size(), (1, 2 + ENTRY_BYTES), "what has no room is counted nowhere");
    }

    #[test]
    fn a_failure_is_remembered_for_a_while() {
        let cache: Cache<&str> = Cache::new(1 << 20);
        let now = Instant::now();
        cache.keep_failure(&key("a"), "failed", now + Duration::from_secs(10));
        assert_eq!(cache.failure(&key("a"), now + Duration::from_secs(9)), Some("failed"));
        assert_eq!(cache.failure(&key("b"), now), None);
        assert_eq!(cache.failure(&key("a"), now + Duration::from_secs(10)), None);
        for number in 0..3 * FAILURES_MAX {
            cache.keep_failure(&key(&number.to_string()), "failed", now);
        }
        assert!(cache.lock().failures.len() <= FAILURES_MAX);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let cache = Cache::new(3 * (ENTRY_BYTES + 20));
        for name in ["a", "b", "c"] {
            keep(&cache, name, "0123456789");
        }
        assert!(cache.kept(&key("a")).is_some());
        keep(&cache, "d", "0123456789");
        let there = ["a", "b", "c", "d"].map(|name| cache.kept(&key(name)).is_some());
        assert_eq!(there, [true, false, true, true]);
        keep(&cache, "e", &"x".repeat(4_000));
        assert!(cache.kept(&key("e")).is_none(), "more than there is room for");
        assert_eq!(cache.size().0, 3);
    }

    #[tokio::test]
    async fn one_executes_and_the_others_wait() {
        let cache: Cache<&str> = Cache::new(1 << 20);
        let Place::First(tell) = cache.place(&key("a")) else { panic!("nobody is at it") };
        let Place::Wait(mut told) = cache.place(&key("a")) else { panic!("somebody is at it") };
        assert!(matches!(cache.place(&key("b")), Place::First(_)), "another thing");
        assert!(!cache.give_up(&key("a"), &tell), "somebody waits");
        tell.send_replace(Some(Err("failed")));
        told.wait_for(Option::is_some).await.expect("it was told");
        assert!(matches!(*told.borrow(), Some(Err("failed"))));
        cache.leave(&key("a"));
        let Place::First(gone) = cache.place(&key("a")) else { panic!("it is through") };
        let Place::Wait(mut told) = cache.place(&key("a")) else { panic!("somebody is at it") };
        drop(gone);
        assert!(told.changed().await.is_err(), "the first is gone without a word");
        let Place::First(last) = cache.place(&key("a")) else { panic!("another takes its place") };
        assert!(cache.give_up(&key("a"), &last), "nobody waits");
    }
}
