//! The end of an execution that nobody wants any more.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headwater_consolidated::results::Canceller;

/// How long after it was told to end an execution is told again, at first and at the most.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// Ends an execution in the database, for as long as it is one: the connection is somebody else's afterwards.
pub(crate) struct Cancel {
    canceller: Option<Canceller>,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    is_cancelled: bool,
    is_over: bool,
}

impl Cancel {
    pub(crate) fn new(canceller: Option<Canceller>) -> Cancel {
        Cancel { canceller, state: Mutex::default(), ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the database until the execution has ended, and blocks for as long: told before it has begun the statement, it ends nothing. The
    /// connection is held while it is told.
    pub(crate) fn cancel(&self) {
        let Some(canceller) = &self.canceller else { return };
        let (mut state, mut pause) = (self.lock(), AGAIN);
        while !state.is_over {
            state.is_cancelled = true;
            canceller();
            state = self.ended.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
            pause = AGAIN_MAX.min(pause * 2);
        }
    }

    /// From now on nothing is cancelled; whether something was.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.lock();
        state.is_over = true;
        self.ended.notify_all();
        state.is_cancelled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_execution_is_told_to_end_until_it_has() {
        let (tell, told) = channel();
        let cancel = Arc::new(Cancel::new(Some(Box::new(move || tell.send(()).expect("somebody listens")))));
        let cancelling = std::thread::spawn({
            let cancel = Arc::clone(&cancel);
            move || cancel.cancel()
        });
        // The first came before the statement had begun.
        for _ in 0..3 {
            told.recv_timeout(Duration::from_mins(1)).expect("it is told again");
        }
        assert!(cancel.end(), "the connection may hear of it later still");
        cancelling.join().expect("no panic");
        while told.try_recv().is_ok() {}
        cancel.cancel();
        assert!(told.try_recv().is_err(), "the connection is somebody else's");
    }
}
