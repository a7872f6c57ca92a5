//! Counting downloads together: syncs that end while one count is being committed share the next commit.
//!
//! ```text
//! worker 1   counts itself ───────commit──────── ┐ tells 2 and 3, whom it took along
//! worker 2         waits ─────────────────────── ┤
//! worker 3           waits ...                   └ or counts itself and who has come since
//! ```
//!
//! Nobody waits for others to come: who finds nobody counting counts at once.
//!
//! *Caveats.* At most [`TOGETHER_MAX`] in one statement; the next takes those that are left.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use headwater_consolidated::system::{Count, Tally};

use crate::failure::Failure;

/// The most syncs in one commit.
const TOGETHER_MAX: usize = 64;

/// Syncs that are to be counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    waiting: VecDeque<(u64, Tally)>,
    done: HashMap<u64, Told>,
    is_counting: bool,
}

#[derive(Debug)]
enum Told {
    /// What became of it.
    Counted(Count),
    /// Whoever took it along failed: it is to be counted once more.
    Again(Tally),
}

/// Whoever counts, and whom it has taken along.
struct Counting<'c> {
    counts: &'c Counts,
    own: u64,
    batch: Vec<(u64, Tally)>,
}

impl Counts {
    /// Counts a download, with others that are ready. `run` counts some, in their order, in one commit; a failure of it is told to this sync
    /// alone.
    pub(crate) fn count(
        &self,
        tally: Tally,
        mut run: impl FnMut(&[Tally]) -> Result<Vec<Count>, Failure>,
    ) -> Result<Count, Failure> {
        let mut state = self.lock();
        let ticket = state.next;
        state.next += 1;
        state.waiting.push_back((ticket, tally));
        loop {
            match state.done.remove(&ticket) {
                Some(Told::Counted(counted)) => return Ok(counted),
                Some(Told::Again(tally)) => state.waiting.push_back((ticket, tally)),
                None => {}
            }
            if state.is_counting {
                state = self.told.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_counting = true;
            let some = state.waiting.len().min(TOGETHER_MAX);
            let batch: Vec<_> = state.waiting.drain(..some).collect();
            drop(state);
            let counting = Counting { counts: self, own: ticket, batch };
            let tallies: Vec<Tally> = counting.batch.iter().map(|(_, tally)| tally.clone()).collect();
            let counted = run(&tallies);
            counting.end(counted)?;
            state = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counting<'_> {
    /// Tells everybody; a failure only whoever counted.
    fn end(mut self, counted: Result<Vec<Count>, Failure>) -> Result<(), Failure> {
        // A failure is told by the drop.
        let mut counted = counted?.into_iter();
        let batch = std::mem::take(&mut self.batch);
        let told = batch.into_iter().map(|(ticket, _)| (ticket, Told::Counted(counted.next().unwrap_or(Count::Busy))));
        self.counts.lock().done.extend(told);
        Ok(())
    }
}

impl Drop for Counting<'_> {
    /// Whom it has not told are counted by another; after a panic too nobody waits for ever.
    fn drop(&mut self) {
        let others = std::mem::take(&mut self.batch).into_iter().filter(|(ticket, _)| *ticket != self.own);
        let others: Vec<_> = others.map(|(ticket, tally)| (ticket, Told::Again(tally))).collect();
        let mut state = self.counts.lock();
        if !others.is_empty() || std::thread::panicking() {
            state.waiting.retain(|(ticket, _)| *ticket != self.own);
        }
        state.done.extend(others);
        state.is_counting = false;
        drop(state);
        self.counts.told.notify_all();
    }
}

#[cfg(test)]
mod tests;
