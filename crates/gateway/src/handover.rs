//! Pieces from a thread to a task: a bounded queue whose one end blocks and whose other waits.
//!
//! The thread reads from a database whose driver has a runtime of its own on it, where a channel of tokio's must not block. It waits until
//! there is room, the other end is gone, or its time is over; the task waits until there is something.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// How many pieces wait to be taken.
const PIECES_MAX: usize = 4;

struct Shared<T> {
    state: Mutex<State<T>>,
    has_room: Condvar,
    has_more: Notify,
}

struct State<T> {
    pieces: VecDeque<T>,
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
}

/// Both ends of a queue.
pub(crate) fn handover<T>() -> (Giver<T>, Taker<T>) {
    let state = State { pieces: VecDeque::new(), giver_is_gone: false, taker_is_gone: false };
    let shared = Arc::new(Shared { state: Mutex::new(state), has_room: Condvar::new(), has_more: Notify::new() });
    (Giver(Arc::clone(&shared)), Taker(shared))
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Giver<T> {
    /// Gives a piece, once there is room for it; at `deadline` it is not waited for any longer.
    pub(crate) fn give(&self, piece: T, deadline: Option<Instant>) -> Result<(), NotTaken> {
        let mut state = self.0.lock();
        while state.pieces.len() >= PIECES_MAX && !state.taker_is_gone {
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return Err(NotTaken::TooLate),
                Some(left) => self.0.has_room.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.0.has_room.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        if state.taker_is_gone {
            return Err(NotTaken::Gone);
        }
        state.pieces.push_back(piece);
        drop(state);
        self.0.has_more.notify_one();
        Ok(())
    }

    /// Gives the last piece, whether there is room or not.
    pub(crate) fn give_last(self, piece: T) {
        self.0.lock().pieces.push_back(piece);
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
                if let Some(piece) = state.pieces.pop_front() {
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
                giver.give(number, None).expect("somebody takes");
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
            giver.give(number, soon()).expect("there is room");
        }
        assert_eq!(giver.give(9, soon()), Err(NotTaken::TooLate));
        let gone = std::thread::spawn(move || giver.give(9, None));
        drop(taker);
        assert_eq!(gone.join().expect("no panic"), Err(NotTaken::Gone));
    }

    /// A thread that has a runtime of its own, as a database's driver does.
    #[tokio::test]
    async fn it_blocks_inside_a_runtime_too() {
        let (giver, mut taker) = handover();
        let giving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async { (0..50).try_for_each(|number| giver.give(number, None)) })
        });
        for number in 0..50 {
            assert_eq!(taker.take().await, Some(number));
        }
        assert_eq!(taker.take().await, None);
        assert_eq!(giving.join().expect("no panic"), Ok(()));
    }
}
