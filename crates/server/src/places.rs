//! Places that are taken and given back, as many as there are now; who finds none waits in order.
//!
//! Small syncs do not wait for large ones: where all places are taken, and fewer than a quarter of them (one at least) by small syncs, a
//! small one has a place beyond them. So a few huge syncs, which may take minutes, hold up nobody but each other.
//!
//! Whoever waits may leave at any moment; a place that was on its way to one who has left goes to the next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// How much a sync is expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    Large,
}

/// The places. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Mutex<Queue>>);

/// A place; dropped, it goes to the next.
#[derive(Debug)]
pub(crate) struct Place {
    /// None: it has been taken back.
    queue: Option<Arc<Mutex<Queue>>>,
    size: Size,
}

#[derive(Debug)]
struct Queue {
    limit: usize,
    /// Whether small ones may have places beyond the limit.
    has_lane: bool,
    busy: usize,
    busy_small: usize,
    /// By size, in order, each with its number.
    small: VecDeque<Waiting>,
    large: VecDeque<Waiting>,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    sender: oneshot::Sender<Place>,
}

/// How many places small ones may have beyond so many.
pub(crate) fn lane(limit: usize) -> usize {
    (limit / 4).max(1)
}

/// Workers that need so many connections: one is for accounts, and small syncs may be a quarter more.
pub(crate) fn workers_within(connections: usize) -> usize {
    (connections.saturating_sub(1) * 4 / 5).max(1)
}

impl Places {
    /// So many; `has_lane`: small ones may have some beyond.
    pub(crate) fn new(limit: usize, has_lane: bool) -> Places {
        let (small, large) = (VecDeque::new(), VecDeque::new());
        let queue = Queue { limit, has_lane, busy: 0, busy_small: 0, small, large, arrivals: 0 };
        Places(Arc::new(Mutex::new(queue)))
    }

    /// A place, as soon as there is one.
    pub(crate) async fn take(&self, size: Size) -> Place {
        let waiting = {
            let mut queue = lock(&self.0);
            let (sender, waiting) = oneshot::channel();
            let number = queue.arrivals;
            queue.arrivals += 1;
            queue.of(size).push_back(Waiting { number, sender });
            grant(&self.0, queue);
            waiting
        };
        waiting.await.expect("whoever waits is kept until there is a place")
    }

    /// From now on there are so many; those that are taken beyond stay so until they are given back.
    pub(crate) fn set_limit(&self, limit: usize) {
        let has_lane = lock(&self.0).has_lane;
        self.set(limit, has_lane);
    }

    /// The same, and whether small ones may have places beyond.
    pub(crate) fn set(&self, limit: usize, has_lane: bool) {
        let mut queue = lock(&self.0);
        (queue.limit, queue.has_lane) = (limit, has_lane);
        grant(&self.0, queue);
    }

    /// How many are taken.
    pub(crate) fn busy(&self) -> usize {
        lock(&self.0).busy
    }

    /// Whether somebody who came now would have one at once.
    pub(crate) fn is_free(&self) -> bool {
        let queue = lock(&self.0);
        queue.busy < queue.limit
    }
}

impl Queue {
    fn of(&mut self, size: Size) -> &mut VecDeque<Waiting> {
        match size {
            Size::Small => &mut self.small,
            Size::Large => &mut self.large,
        }
    }

    /// Who is next, if there is a place.
    fn next(&mut self) -> Option<(Size, oneshot::Sender<Place>)> {
        let is_free = self.busy < self.limit;
        let is_lane_free = self.has_lane && self.busy_small < lane(self.limit);
        let first = |queue: &VecDeque<Waiting>| queue.front().map(|waiting| waiting.number);
        let size = match (first(&self.small), first(&self.large)) {
            (Some(small), Some(large)) if is_free && large < small => Size::Large,
            (Some(_), _) if is_free || is_lane_free => Size::Small,
            (_, Some(_)) if is_free => Size::Large,
            _ => return None,
        };
        self.of(size).pop_front().map(|waiting| (size, waiting.sender))
    }

    fn count(&mut self, size: Size, change: isize) {
        self.busy = self.busy.saturating_add_signed(change);
        if size == Size::Small {
            self.busy_small = self.busy_small.saturating_add_signed(change);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(shared) = self.queue.take() else { return };
        let mut queue = lock(&shared);
        queue.count(self.size, -1);
        grant(&shared, queue);
    }
}

/// Gives places away for as long as there are some and somebody waits.
fn grant(shared: &Arc<Mutex<Queue>>, mut queue: MutexGuard<'_, Queue>) {
    while let Some((size, sender)) = queue.next() {
        queue.count(size, 1);
        if let Err(mut place) = sender.send(Place { queue: Some(Arc::clone(shared)), size }) {
            // Nobody waits there any more. Given back by its drop, it would ask for the lock that is held here.
            place.queue = None;
            queue.count(size, -1);
        }
    }
}

fn lock(queue: &Arc<Mutex<Queue>>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    async fn waits(places: &Places, size: Size) -> bool {
        tokio::time::timeout(Duration::ZERO, places.take(size)).await.is_err()
    }

    #[tokio::test]
    async fn there_are_as_many_as_were_said() {
        let places = Places::new(2, false);
        let first = places.take(Size::Small).await;
        let second = places.take(Size::Large).await;
        assert!(!places.is_free() && waits(&places, Size::Small).await && waits(&places, Size::Large).await);
        drop(first);
        assert!(places.is_free() && !waits(&places, Size::Large).await);
        places.set_limit(1);
        assert!(waits(&places, Size::Small).await, "one that is taken stays taken");
        drop(second);
        assert!(!waits(&places, Size::Small).await);
        assert_eq!(places.busy(), 0, "those that have waited in vain hold none");
    }

    #[tokio::test]
    async fn who_comes_first_goes_first_and_who_left_is_passed_over() {
        let places = Places::new(1, false);
        let held = places.take(Size::Small).await;
        let (mut large, mut small) = (pin!(places.take(Size::Large)), pin!(places.take(Size::Small)));
        {
            let mut gone = Box::pin(places.take(Size::Large));
            assert!(poll(gone.as_mut()).is_pending());
            assert!(poll(large.as_mut()).is_pending() && poll(small.as_mut()).is_pending());
        }
        drop(held);
        assert!(poll(small.as_mut()).is_pending(), "the large one came before");
        let place = large.await;
        drop(place);
        drop(small.await);
        assert_eq!(places.busy(), 0);
    }

    #[tokio::test]
    async fn a_place_on_its_way_to_one_who_leaves_goes_to_the_next() {
        let places = Places::new(1, false);
        let held = places.take(Size::Small).await;
        let mut leaves = Box::pin(places.take(Size::Small));
        let mut stays = Box::pin(places.take(Size::Small));
        assert!(poll(leaves.as_mut()).is_pending() && poll(stays.as_mut()).is_pending());
        drop(held);
        // It has been given the place, and does not know it yet.
        drop(leaves);
        assert!(poll(stays.as_mut()).is_ready());
    }

    #[tokio::test]
    async fn small_ones_do_not_wait_for_large_ones() {
        let places = Places::new(4, true);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(places.take(Size::Large).await);
        }
        assert!(waits(&places, Size::Large).await);
        let beyond = tokio::time::timeout(Duration::ZERO, places.take(Size::Small)).await.expect("a place beyond");
        assert!(waits(&places, Size::Small).await, "a quarter of four is one");
        drop(beyond);
        assert!(!waits(&places, Size::Small).await);
        held.clear();
        for _ in 0..4 {
            held.push(places.take(Size::Small).await);
        }
        assert!(waits(&places, Size::Small).await, "small ones wait for small ones");
    }
}
