//! Downloads that can be resumed: kept by their unguessable ID for the user and the remote that asked, until the remote syncs again, or
//! for a while after the client has gone.
//!
//! While a client takes a download it is kept beside (one that gets larger than all that may be kept is not kept any more). Those whose clients have gone are bounded in number and bytes:
//! where a bound is passed, the one that was left first is given up. Whoever asks for it is told `gone`, and begins again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headwater_knobs::Live;
use tokio::time::Instant;

use crate::Config;
use crate::spool::download::{Reader, Writer};

/// All of a server's.
#[derive(Debug)]
pub(crate) struct Downloads {
    kept: Mutex<HashMap<[u8; 16], Kept>>,
    config: Live<Config>,
}

#[derive(Debug)]
struct Kept {
    user: String,
    remote_id: [u8; 16],
    spool: Writer,
    /// When the last client left.
    left_at: Option<Instant>,
}

impl Downloads {
    pub(crate) fn new(config: Live<Config>) -> Downloads {
        Downloads { kept: Mutex::default(), config }
    }

    fn kept_for(&self) -> Duration {
        Duration::from_millis(self.config.now().kept_ms)
    }

    /// Keeps what is pushed from here on. Gives for how many seconds after the client has gone; 0: not at all.
    pub(crate) fn keep(&self, id: [u8; 16], user: &str, remote_id: [u8; 16], spool: &Writer) -> u32 {
        let seconds = u32::try_from(self.kept_for().as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        if seconds > 0 {
            spool.keep(self.config.now().kept_bytes_max);
            let kept = Kept { user: user.to_owned(), remote_id, spool: spool.clone(), left_at: None };
            self.lock().insert(id, kept);
        }
        seconds
    }

    /// The rest of a download, for whom it was read.
    pub(crate) fn resume(
        &self,
        id: &[u8; 16],
        user: &str,
        remote_id: &[u8; 16],
        offset: u64,
    ) -> Option<(Writer, Reader)> {
        let mut all = self.lock();
        let kept = all.get_mut(id).filter(|kept| kept.user == user && kept.remote_id == *remote_id)?;
        let ends = kept.spool.resume(offset)?;
        kept.left_at = None;
        Some(ends)
    }

    /// A client has gone, or has taken everything: it may not have got the last of it.
    pub(crate) fn left(&self, remote_id: &[u8; 16]) {
        let mut all = self.lock();
        for kept in all.values_mut().filter(|kept| kept.remote_id == *remote_id && kept.spool.has_no_reader()) {
            kept.left_at.get_or_insert_with(Instant::now);
        }
        while let Some(id) = self.first_too_many(&all) {
            if let Some(kept) = all.remove(&id) {
                kept.spool.give_up();
            }
        }
    }

    /// The remote, which has shown its secret, has begun another sync: what it was sent before is of no more use.
    pub(crate) fn forget(&self, remote_id: &[u8; 16]) {
        self.give_up(|kept| kept.remote_id == *remote_id);
    }

    /// What goes into this spool has ended with an error, or because nobody takes it: there is nothing to resume.
    pub(crate) fn failed(&self, spool: &Writer) {
        self.give_up(|kept| kept.spool.is_same(spool));
    }

    /// Gives up what nobody has asked for in time.
    pub(crate) fn expire(&self) {
        let kept_for = self.kept_for();
        self.give_up(|kept| kept.left_at.is_some_and(|left_at| left_at.elapsed() >= kept_for));
    }

    fn give_up(&self, is_useless: impl Fn(&Kept) -> bool) {
        for (_, kept) in self.lock().extract_if(|_, kept| is_useless(kept)) {
            kept.spool.give_up();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// The first that was left, where those that were left are too many.
    fn first_too_many(&self, all: &HashMap<[u8; 16], Kept>) -> Option<[u8; 16]> {
        let left = || all.iter().filter_map(|(id, kept)| Some((*id, kept, kept.left_at?)));
        let sum = |(number, bytes), (_, kept, _): (_, &Kept, _)| (number + 1, bytes + kept.spool.held());
        let (number, bytes) = left().fold((0, 0), sum);
        let config = self.config.now();
        let is_too_many = number > config.kept_downloads_max || bytes > config.kept_bytes_max;
        is_too_many.then(|| left().min_by_key(|(_, _, left_at)| *left_at).map(|(id, _, _)| id))?
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
