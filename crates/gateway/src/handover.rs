//! Pieces from a thread to a task: a bounded queue whose one end blocks and whose other waits.
//!
//! The thread reads from a database whose driver has a runtime of its own on it, where a channel of tokio's must not block. It waits until
//! there is room, the other end is gone, or its time is over; the task waits until there is something.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How many pieces wait to be taken.
const PIECES_MAX: usize = 4;
/// And how many bytes of them; a piece that has more waits alone.
const BYTES_MAX: usize = 1 << 20;
/// How long who gives waits before it looks again whether to wait any longer.
const LOOK: Duration = Duration::from_millis(250);

struct Shared<T> {
    state: Mutex<State<T>>,
    has_room: Condvar,
    has_more: Notify,
}

struct State<T> {
    /// Each with its bytes.
    pieces: VecDeque<(T, usize)>,
    bytes: usize,
    giver_is_gone: bool,
    taker_is_gone: bool,
}

/// The end that blocks.
pub(crate) struct Giver<T>(Arc<Shared<T>>);

/// The end that waits.
pub(crate) struct Taker<T>(Arc<Shared<T>>);

/// Why a piece was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// Nobody takes any more.
    Gone,
    /// The time is over.
    TooLate,
    /// Whoever takes is too slow.
    TooSlow,
}

/// Both ends of a queue.
pub(crate) fn handover<T>() -> (Giver<T>, Taker<T>) {
    let state = State { pieces: VecDeque::new(), bytes: 0, giver_is_gone: false, taker_is_gone: false };
    let shared = Arc::new(Shared { state: Mutex::new(state), has_room: Condvar::new(), has_more: Notify::new() });
    (Giver(Arc::clone(&shared)), Taker(shared))
}

impl<T> State<T> {
    fn has_room(&self, bytes: usize) -> bool {
        self.pieces.is_empty() || (self.pieces.len() < PIECES_MAX && self.bytes.saturating_add(bytes) <= BYTES_MAX)
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Giver<T> {
    /// Gives a piece of so many bytes, once there is room for it; at `deadline` it is not waited for any longer.
    pub(crate) fn give(&self, piece: T, bytes: usize, deadline: Option<Instant>) -> Result<(), NotTaken> {
        self.give_unless(piece, bytes, deadline, |_| false)
    }

    /// The same, and it is not waited for any longer where this says so, which is told every now and then for how long it has been since.
    pub(crate) fn give_unless(
        &self,
        piece: T,
        bytes: usize,
        deadline: Option<Instant>,
        mut is_hopeless: impl FnMut(Duration) -> bool,
    ) -> Result<(), NotTaken> {
        let mut state = self.0.lock();
        while !state.has_room(bytes) && !state.taker_is_gone {
            let began = Instant::now();
            let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(began));
            if left.is_zero() {
                return Err(NotTaken::TooLate);
            }
            state = self.0.has_room.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
            if is_hopeless(began.elapsed()) {
                return Err(NotTaken::TooSlow);
            }
        }
        if state.taker_is_gone {
            return Err(NotTaken::Gone);
        }
        state.pieces.push_back((piece, bytes));
        state.bytes += bytes;
        drop(state);
        self.0.has_more.notify_one();
        Ok(())
    }

    /// Gives the last piece, whether there is room or not.
    pub(crate) fn give_last(self, piece: T) {
        self.0.lock().pieces.push_back((piece, 0));
    }

    /// Whether nobody takes any more.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.0.lock().taker_is_gone
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        self.0.lock().giver_is_gone = true;
        self.0.has_more.notify_one();
    }
}

impl<T> Taker<T> {
    /// The next piece; `None` once the other end is gone, and nothing is left.
    pub(crate) async fn take(&mut self) -> Option<T> {
        loop {
            {
                let mut state = self.0.lock();
                if let Some((piece, bytes)) = state.pieces.pop_front() {
                    state.bytes -= bytes;
                    self.0.has_room.notify_one();
                    return Some(piece);
                }
                if state.giver_is_gone {
                    return None;
                }
            }
            // What comes in between has left a permit.
            self.0.has_more.notified().await;
        }
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        self.0.lock().taker_is_gone = true;
        self.0.has_room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn pieces_come_in_their_order_and_then_the_end() {
        let (giver, mut taker) = handover();
        let giving = std::thread::spawn(move || {
            for number in 0..100 {
                giver.give(number, 1, None).expect("somebody takes");
            }
            giver.give_last(100);
        });
        for number in 0..=100 {
            assert_eq!(taker.take().await, Some(number));
        }
        assert_eq!(taker.take().await, None);
        giving.join().expect("no panic");
    }

    #[test]
    fn who_gives_waits_for_room_no_longer_than_it_must() {
        let (giver, taker) = handover();
        let soon = || Some(Instant::now() + Duration::from_millis(20));
        for number in 0..PIECES_MAX {
            giver.give(number, 1, soon()).expect("there is room");
        }
        assert_eq!(giver.give(9, 1, soon()), Err(NotTaken::TooLate));
        assert_eq!(giver.give_unless(9, 1, None, |_| true), Err(NotTaken::TooSlow));
        let gone = std::thread::spawn(move || giver.give(9, 1, None));
        drop(taker);
        assert_eq!(gone.join().expect("no panic"), Err(NotTaken::Gone));
    }

    #[tokio::test]
    async fn a_piece_of_many_bytes_waits_alone() {
        let (giver, mut taker) = handover();
        let soon = || Some(Instant::now() + Duration::from_millis(20));
        giver.give(0, 10 * BYTES_MAX, soon()).expect("nothing else waits");
        assert_eq!(giver.give(1, 1, soon()), Err(NotTaken::TooLate));
        assert_eq!(taker.take().await, Some(0));
        giver.give(2, BYTES_MAX - 1, soon()).expect("there is room");
        giver.give(3, 1, soon()).expect("and for this one");
        assert_eq!(giver.give(4, 1, soon()), Err(NotTaken::TooLate), "they have as many as may wait");
        assert_eq!((taker.take().await, taker.take().await), (Some(2), Some(3)));
    }

    /// A thread that has a runtime of its own, as a database's driver does.
    #[tokio::test]
    async fn it_blocks_inside_a_runtime_too() {
        let (giver, mut taker) = handover();
        let giving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async { (0..50).try_for_each(|number| giver.give(number, 1, None)) })
        });
        for number in 0..50 {
            assert_eq!(taker.take().await, Some(number));
        }
        assert_eq!(taker.take().await, None);
        assert_eq!(giving.join().expect("no panic"), Ok(()));
    }
}
