//! Answers that are kept, in the buffer pool, and one execution for all who want the same thing at once.
//!
//! ```text
//! request -> key -> kept and fresh ............................ given
//!                -> somebody is at it ......................... waited for
//!                -> nobody is: this one is, and tells the others
//! ```
//!
//! An answer is known by its content: asked for again and found the same, it keeps its tag and the time at which it was made first. Answers to
//! different questions that have the same content share its bytes. What is known of an answer is here; its bytes are in the pool, and an answer of
//! which some have had to go is kept no more.
//!
//! *Caveats.* Of answers that had to leave, the times of some thousands are remembered, and none from before the start: there, the same content has
//! another time.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use headwater_bufferpool::Pool;
use tokio::sync::watch;

use crate::held::{Body, Stored};
use crate::packing::Coded;
use crate::tag::{self, Question};

/// What identifies an answer: query, form, arguments, and the user where it is personal.
pub(crate) type Key = Arc<str>;

/// Answers that are kept; each takes some five hundred bytes beside its content.
const KEPT_MAX: usize = 32_768;
/// Failures that are remembered; beyond, all are forgotten.
const FAILURES_MAX: usize = 1_000;
/// Answers that had to leave, whose times are remembered; beyond, all are forgotten.
const TIMES_MAX: usize = 4_096;

/// An answer, whole, whose bytes stay as long as this does.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) body: Body,
    about: Arc<About>,
}

/// What is known of an answer.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// Its bytes, compressed.
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
    /// Where its bytes are; `None`: it is kept nowhere.
    stored: Option<Arc<Stored>>,
}

impl Deref for Kept {
    type Target = About;

    fn deref(&self) -> &About {
        &self.about
    }
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

/// An execution, for all who wait for it.
#[derive(Debug)]
pub(crate) struct Executing<E> {
    /// Since when it reads the database, at the earliest; `None`: it has not begun to.
    pub(crate) begun: Option<Instant>,
    /// How it ended.
    pub(crate) ended: Option<Result<Kept, E>>,
}

impl<E> Executing<E> {
    const NEW: Executing<E> = Executing { begun: None, ended: None };

    /// From now on it reads the database.
    pub(crate) fn begins(tell: &watch::Sender<Executing<E>>) {
        // No news for who waits.
        tell.send_if_modified(|told| {
            told.begun.get_or_insert_with(Instant::now);
            false
        });
    }

    /// Whether it is an answer to who came then and takes one that is so old.
    pub(crate) fn is_for(&self, came: Instant, max_age: Duration) -> bool {
        self.begun.is_none_or(|begun| came <= begun + max_age)
    }
}

/// Kept answers and executions under way; `E` is how an execution fails.
pub(crate) struct Cache<E> {
    inner: Mutex<Inner<E>>,
}

struct Inner<E> {
    kept: HashMap<Key, (Arc<About>, u64)>,
    /// By the time of their last use, which counts uses: the least recently used goes first.
    uses: BTreeMap<u64, Key>,
    /// By their digests.
    contents: HashMap<String, Content>,
    failures: HashMap<Key, (E, Instant)>,
    /// By digests of their keys: what content answers had that had to leave, and since when.
    times: HashMap<String, (String, SystemTime)>,
    clock: u64,
    running: HashMap<Key, Weak<watch::Sender<Executing<E>>>>,
}

/// What one or more of the answers that are kept hold.
struct Content {
    stored: Arc<Stored>,
    coded: Coded,
    answers: usize,
}

/// What is to be done for a request.
pub(crate) enum Place<E> {
    /// It is the first: whoever holds this executes, and tells all who have subscribed.
    First(Arc<watch::Sender<Executing<E>>>),
    /// It waits for the first. Where the first is gone without a word, it asks again.
    Wait(watch::Receiver<Executing<E>>),
}

impl<E: Clone> Cache<E> {
    pub(crate) fn new() -> Cache<E> {
        let (kept, contents, failures, times) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let inner = Inner { kept, uses: BTreeMap::new(), contents, failures, times, clock: 0, running: HashMap::new() };
        Cache { inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<E>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept, however old.
    pub(crate) fn kept(&self, key: &Key) -> Option<Kept> {
        let about = self.lock().used(key)?;
        let stored = about.stored.clone()?;
        match stored.get() {
            Some(body) => Some(Kept { body, about }),
            None => {
                let inner = &mut *self.lock();
                if inner.kept.get(key).is_some_and(|(there, _)| Arc::ptr_eq(there, &about)) {
                    inner.evict(key);
                }
                None
            }
        }
    }

    /// Whether somebody is at it.
    pub(crate) fn place(&self, key: &Key) -> Place<E> {
        let inner = &mut *self.lock();
        if let Some(running) = inner.running.get(key).and_then(Weak::upgrade) {
            return Place::Wait(running.subscribe());
        }
        let tell = Arc::new(watch::channel(Executing::NEW).0);
        inner.running.insert(Arc::clone(key), Arc::downgrade(&tell));
        Place::First(tell)
    }

    /// The first is through.
    pub(crate) fn leave(&self, key: &Key) {
        self.lock().running.remove(key);
    }

    /// The first gives up if nobody waits for it any more; whether it does.
    pub(crate) fn give_up(&self, key: &Key, tell: &watch::Sender<Executing<E>>) -> bool {
        let inner = &mut *self.lock();
        let is_alone = tell.receiver_count() == 0;
        if is_alone {
            inner.running.remove(key);
        }
        is_alone
    }

    /// What is kept was found to be so still, at this mark, for this question; gives it as it is kept now.
    pub(crate) fn renew(&self, key: &Key, kept: &Kept, mark: Option<String>, question: Option<&Question>) -> Kept {
        let now = (Instant::now(), SystemTime::now());
        let tag = tag::strong(&kept.content, question.zip(mark.as_deref()), now.1);
        let about = Arc::new(About { tag, mark, checked: now.0, ..About::clone(&kept.about) });
        let inner = &mut *self.lock();
        if let Some((there, _)) = inner.kept.get_mut(key).filter(|(there, _)| Arc::ptr_eq(there, &kept.about)) {
            *there = Arc::clone(&about);
        }
        Kept { body: kept.body.clone(), about }
    }

    /// Keeps an answer in the pool, in the place of what was kept before; gives it as it is kept. Without a pool, or room in it, it is not kept.
    pub(crate) fn keep(&self, key: &Key, made: Made, pool: Option<&Pool>, now: (Instant, SystemTime)) -> Kept {
        let Made { body, mark, question, next } = made;
        let content = tag::digest(&body);
        let tag = tag::strong(&content, question.as_ref().zip(mark.as_deref()), now.1);
        let shared = self.lock().contents.get(&content).map(|there| (Arc::clone(&there.stored), there.coded.clone()));
        let shared = shared.and_then(|(stored, coded)| Some((stored.get()?, stored, coded)));
        // Without the lock: others' blocks may have to be written for it.
        let stored = shared.or_else(|| {
            let (stored, body) = Stored::put(pool?, &body)?;
            Some((body, Arc::new(stored), Coded::in_pool(pool?.clone())))
        });
        let inner = &mut *self.lock();
        let modified = inner.since(key, &content).unwrap_or(now.1);
        let about = |coded, stored| {
            Arc::new(About { coded, tag, content: content.clone(), mark, next, modified, checked: now.0, stored })
        };
        let Some((body, stored, coded)) = stored else {
            inner.take_out(key);
            inner.remember(key, content.clone(), modified);
            return Kept { body: body.into(), about: about(Coded::default(), None) };
        };
        // Before the former answer leaves, whose it may be too.
        inner.enter(&content, &stored, &coded);
        inner.take_out(key);
        let about = about(coded, Some(stored));
        inner.put_in(key, Arc::clone(&about));
        Kept { body, about }
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

    /// Answers that are kept, and their bytes; some may have gone from the pool.
    pub(crate) fn size(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.kept.len(), inner.contents.values().map(|content| content.stored.bytes()).sum())
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
    /// What is known of an answer that is used.
    fn used(&mut self, key: &Key) -> Option<Arc<About>> {
        self.clock += 1;
        let (about, used) = self.kept.get_mut(key)?;
        let key = self.uses.remove(&std::mem::replace(used, self.clock))?;
        self.uses.insert(self.clock, key);
        Some(Arc::clone(about))
    }

    fn put_in(&mut self, key: &Key, about: Arc<About>) {
        self.clock += 1;
        self.kept.insert(Arc::clone(key), (about, self.clock));
        self.uses.insert(self.clock, Arc::clone(key));
        while self.kept.len() > KEPT_MAX
            && let Some((_, oldest)) = self.uses.first_key_value()
        {
            let oldest = Arc::clone(oldest);
            self.evict(&oldest);
        }
    }

    /// One more answer has this content, which lies there.
    fn enter(&mut self, content: &str, stored: &Arc<Stored>, coded: &Coded) {
        match self.contents.get_mut(content).filter(|there| Arc::ptr_eq(&there.stored, stored)) {
            Some(shared) => shared.answers += 1,
            None => {
                // What was there has gone from the pool, or came meanwhile.
                let content_of = Content { stored: Arc::clone(stored), coded: coded.clone(), answers: 1 };
                self.contents.insert(content.to_owned(), content_of);
            }
        }
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
        if let Some((about, _)) = self.kept.get(key) {
            let (content, modified) = (about.content.clone(), about.modified);
            self.remember(key, content, modified);
        }
        self.take_out(key);
    }

    /// Remembers since when the answer that is not kept has this content.
    fn remember(&mut self, key: &Key, content: String, modified: SystemTime) {
        if self.times.len() >= TIMES_MAX {
            self.times.clear();
        }
        self.times.insert(tag::digest(key.as_bytes()), (content, modified));
    }

    fn take_out(&mut self, key: &Key) {
        let Some((about, used)) = self.kept.remove(key) else { return };
        self.uses.remove(&used);
        let is_its = |shared: &&mut Content| about.stored.as_ref().is_some_and(|own| Arc::ptr_eq(own, &shared.stored));
        let Some(shared) = self.contents.get_mut(&about.content).filter(is_its) else { return };
        shared.answers -= 1;
        if shared.answers == 0 {
            self.contents.remove(&about.content);
        }
    }
}

impl About {
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

#[cfg(test)]
mod tests {
    use headwater_bufferpool::{Config, Floors};

    use super::*;

    const BLOCK: u64 = 512;

    fn pool(blocks: u64) -> Pool {
        let config = Config { budget_bytes: blocks * BLOCK, block_bytes: BLOCK as usize, ..Config::default() };
        Pool::new(&Config { floors: Floors::default(), ..config }).expect("a pool")
    }

    fn key(name: &str) -> Key {
        Arc::from(name)
    }

    fn keep(cache: &Cache<()>, pool: &Pool, name: &str, body: &str) -> Kept {
        let made = Made { body: Bytes::from(body.to_owned()), ..Made::default() };
        cache.keep(&key(name), made, Some(pool), (Instant::now(), SystemTime::now()))
    }

    fn text(kept: &Kept) -> String {
        String::from_utf8(kept.body.pieces().flatten().collect()).expect("UTF-8")
    }

    #[test]
    fn the_same_content_keeps_its_tag_and_its_time() {
        let (cache, pool) = (Cache::new(), pool(8));
        let first = keep(&cache, &pool, "a", "one");
        let again = keep(&cache, &pool, "a", "one");
        assert_eq!((&again.tag, again.modified), (&first.tag, first.modified));
        assert!(again.checked >= first.checked && again.tag.starts_with('"') && again.tag.len() == 34);
        assert_eq!(again.last_modified(), None, "another content may come within this second");
        let other = keep(&cache, &pool, "a", "two");
        assert!(other.tag != first.tag && other.modified >= first.modified);
        assert_eq!((cache.size(), text(&other), text(&first).as_str()), ((1, 3), "two".to_owned(), "one"));
    }

    #[test]
    fn the_same_content_has_its_time_though_it_had_to_leave() {
        let (cache, pool) = (Cache::new(), pool(4));
        let wash_out = || {
            for number in 0..8 {
                drop(keep(&cache, &pool, "large", &format!("{number}").repeat(3 * BLOCK as usize)));
            }
            assert!(cache.kept(&key("a")).is_none(), "it had to leave");
        };
        let first = keep(&cache, &pool, "a", "one").modified;
        wash_out();
        assert_eq!(keep(&cache, &pool, "a", "one").modified, first);
        let other = keep(&cache, &pool, "a", "two").modified;
        wash_out();
        assert!(other > first);
        assert_eq!(keep(&cache, &pool, "a", "two").modified, other);
        wash_out();
        assert!(keep(&cache, &pool, "a", "one").modified > other, "it was another meanwhile");
        for number in 0..3 * TIMES_MAX {
            let made = Made { body: Bytes::from_static(b"one"), ..Made::default() };
            cache.keep(&key(&number.to_string()), made, None, (Instant::now(), SystemTime::now()));
            assert!(cache.lock().times.len() <= TIMES_MAX);
        }
    }

    #[test]
    fn answers_with_the_same_content_share_its_bytes() {
        let (cache, pool) = (Cache::new(), pool(8));
        let long = "0123456789".repeat(100);
        for name in ["a", "b"] {
            keep(&cache, &pool, name, &long);
        }
        assert_eq!((cache.size(), pool.blocks()), ((2, 1_000), 2));
        keep(&cache, &pool, "a", "another");
        assert_eq!((cache.size(), pool.blocks()), ((2, 1_007), 3), "the other has it still");
        keep(&cache, &pool, "b", "another");
        assert_eq!((cache.size(), pool.blocks()), ((2, 7), 1));
    }

    #[test]
    fn what_has_no_room_is_given_and_not_kept() {
        let (cache, pool) = (Cache::new(), pool(4));
        let large = "x".repeat(4 * BLOCK as usize + 1);
        let kept = keep(&cache, &pool, "a", &large);
        assert!(text(&kept) == large && cache.kept(&key("a")).is_none() && cache.size() == (0, 0));
        let made = Made { body: Bytes::from_static(b"one"), ..Made::default() };
        let kept = cache.keep(&key("b"), made, None, (Instant::now(), SystemTime::now()));
        assert!(text(&kept) == "one" && cache.kept(&key("b")).is_none(), "there is no pool");
    }

    #[test]
    fn what_has_gone_from_the_pool_is_kept_no_more_and_who_sends_it_has_it_still() {
        let (cache, pool) = (Cache::new(), pool(4));
        let body = |number: usize| format!("{number}").repeat(2 * BLOCK as usize);
        let sent = keep(&cache, &pool, "0", &body(0));
        for number in 1..9 {
            keep(&cache, &pool, &number.to_string(), &body(number));
        }
        let there: Vec<bool> = (0..9).map(|number| cache.kept(&key(&number.to_string())).is_some()).collect();
        assert_eq!(there.iter().filter(|there| **there).count(), 2, "{there:?}");
        assert!(there[0] && text(&sent) == body(0), "somebody sends it");
        assert_eq!(cache.size().0, 2, "the others are forgotten");
        // The same content again, for another question.
        let again = keep(&cache, &pool, "again", &body(0));
        assert_eq!((text(&again), cache.size().1), (body(0), 2 * 2 * BLOCK as usize));
    }

    #[test]
    fn a_failure_is_remembered_for_a_while() {
        let cache: Cache<&str> = Cache::new();
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
    fn of_too_many_the_least_recently_used_goes_first() {
        let (cache, pool) = (Cache::new(), pool(4));
        for number in 0..KEPT_MAX {
            keep(&cache, &pool, &number.to_string(), "the same");
        }
        assert!(cache.kept(&key("0")).is_some());
        keep(&cache, &pool, "more", "the same");
        let there = ["0", "1", "2", "more"].map(|name| cache.kept(&key(name)).is_some());
        assert_eq!((there, cache.size()), ([true, false, true, true], (KEPT_MAX, 8)));
    }

    #[tokio::test]
    async fn one_executes_and_the_others_wait() {
        let cache: Cache<&str> = Cache::new();
        let Place::First(tell) = cache.place(&key("a")) else { panic!("nobody is at it") };
        let Place::Wait(mut told) = cache.place(&key("a")) else { panic!("somebody is at it") };
        assert!(matches!(cache.place(&key("b")), Place::First(_)), "another thing");
        assert!(!cache.give_up(&key("a"), &tell), "somebody waits");
        let came = Instant::now();
        assert!(told.borrow().is_for(came, Duration::ZERO), "it has not begun to read");
        Executing::begins(&tell);
        assert!(told.borrow().is_for(came, Duration::ZERO), "it began after that");
        let later = Instant::now() + Duration::from_secs(9);
        assert!(!told.borrow().is_for(later, Duration::ZERO), "it began before that");
        assert!(told.borrow().is_for(later, Duration::from_secs(10)), "and was not too old then");
        tell.send_modify(|told| told.ended = Some(Err("failed")));
        told.wait_for(|told| told.ended.is_some()).await.expect("it was told");
        assert!(matches!(told.borrow().ended, Some(Err("failed"))));
        cache.leave(&key("a"));
        let Place::First(gone) = cache.place(&key("a")) else { panic!("it is through") };
        let Place::Wait(mut told) = cache.place(&key("a")) else { panic!("somebody is at it") };
        drop(gone);
        assert!(told.changed().await.is_err(), "the first is gone without a word");
        let Place::First(last) = cache.place(&key("a")) else { panic!("another takes its place") };
        assert!(cache.give_up(&key("a"), &last), "nobody waits");
    }
}
