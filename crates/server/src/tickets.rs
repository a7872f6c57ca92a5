//! Uploads that come in pieces: their bytes wait under a ticket until the sync that they belong to.
//!
//! A ticket is for one upload of one remote: it is found by user, remote ID and digest, so that whoever asks again, from another process
//! or after anything that broke, gets the same ticket and goes on where the server stands. Its bytes stay after a sync has used them,
//! until the remote's next sync or a resumed download shows that the receipt has come; a sync that found no place, or whose answer was lost, has
//! them again. Once it was applied that saves no more than sending them again, so they are spare then: they go for whoever finds no room.
//!
//! | bound | what happens |
//! |---|---|
//! | `piece_bytes`, the bytes announced | the piece is refused (`too_large`) |
//! | `tickets_max`, `tickets_per_user_max`, `tickets_bytes_max` | those that were applied are forgotten, the oldest first; then `overloaded`: come back |
//! | `ticket_ms` without a piece or a sync; `kept_ms` once it was applied | it is forgotten, its bytes are freed |
//! | another upload of the remote's | the same |
//! | the pool, and its overflow file | those that were applied are emptied, the oldest first |
//!
//! *Caveats.* Pieces are not looked into: what is wrong with the frames shows when the sync comes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headwater_knobs::Live;
use headwater_protocol::message::{ErrorCode, Ticket, UploadEnd};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::Config;
use crate::failure::Failure;
use crate::spool::{Spools, UploadSpool};

/// When somebody who found no ticket is told to come back.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The upload that a ticket is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upload {
    pub(crate) user: String,
    pub(crate) remote_id: [u8; 16],
    pub(crate) digest: [u8; 32],
}

/// All of a server's.
#[derive(Debug)]
pub(crate) struct Tickets {
    spools: Spools,
    held: Mutex<All>,
    config: Live<Config>,
}

type All = HashMap<[u8; 16], Held>;

/// A ticket's bytes, for as long as somebody uses them.
pub(crate) type Spool = OwnedMutexGuard<UploadSpool>;

#[derive(Debug)]
struct Held {
    upload: Upload,
    /// The most bytes that it may get.
    announced: u64,
    /// How many it had when they were used last.
    bytes: u64,
    used_at: Instant,
    /// When it was applied, and nothing of it has come again since.
    applied_at: Option<Instant>,
    spool: Arc<tokio::sync::Mutex<UploadSpool>>,
}

impl Tickets {
    pub(crate) fn new(config: Live<Config>, spools: Spools) -> Tickets {
        Tickets { spools, held: Mutex::default(), config }
    }

    /// How long a ticket waits for its next piece, or for its sync.
    pub(crate) fn held_for(&self) -> Duration {
        Duration::from_millis(self.config.now().ticket_ms)
    }

    /// The ticket for an upload, made unless there is one, and how many bytes are there.
    pub(crate) fn ask(&self, upload: &Upload, announced: u64) -> Result<([u8; 16], u64), Failure> {
        let config = self.config.now();
        let mut all = self.lock();
        if let Some((ticket, held)) = all.iter_mut().find(|(_, held)| held.upload == *upload) {
            let spool = Arc::clone(&held.spool).try_lock_owned().map_err(|_| Failure::remote_busy())?;
            (held.used_at, held.bytes) = (Instant::now(), spool.bytes());
            return Ok((*ticket, held.bytes));
        }
        all.retain(|_, held| held.upload.user != upload.user || held.upload.remote_id != upload.remote_id);
        let of_user = |all: &All| all.values().filter(|held| held.upload.user == upload.user).count();
        while of_user(&all) >= config.tickets_per_user_max
            && forget_applied(&mut all, |_, held| held.upload.user == upload.user)
        {}
        while all.len() >= config.tickets_max && forget_applied(&mut all, |_, _| true) {}
        let of_user = of_user(&all);
        if all.len() >= config.tickets_max || of_user >= config.tickets_per_user_max {
            let message = format!("{} uploads in pieces are on their way, {of_user} of this user", all.len());
            return Err(Failure::new(ErrorCode::Overloaded, message).after(RETRY_AFTER));
        }
        let ticket = uuid::Uuid::new_v4().into_bytes();
        let spool = Arc::new(tokio::sync::Mutex::new(UploadSpool::new(&self.spools)));
        let held =
            Held { upload: upload.clone(), announced, bytes: 0, used_at: Instant::now(), applied_at: None, spool };
        all.insert(ticket, held);
        Ok((ticket, 0))
    }

    /// The bytes under a user's ticket, with room for so many more.
    pub(crate) fn add(&self, ticket: &[u8; 16], user: &str, bytes: u64) -> Result<Spool, Failure> {
        let mut all = self.lock();
        let bytes_max = self.config.now().tickets_bytes_max;
        let of_others =
            |all: &All| all.iter().filter(|(other, _)| *other != ticket).map(|(_, held)| held.bytes()).sum::<u64>();
        let has = all.get(ticket).map_or(0, Held::bytes);
        while of_others(&all) + has + bytes > bytes_max && forget_applied(&mut all, |other, _| other != ticket) {}
        let others = of_others(&all);
        let held = all.get_mut(ticket).filter(|held| held.upload.user == user).ok_or_else(unknown)?;
        let spool = Arc::clone(&held.spool).try_lock_owned().map_err(|_| Failure::remote_busy())?;
        held.used_at = Instant::now();
        self.needed(held);
        let (sum, announced) = (spool.bytes() + bytes, held.announced);
        if sum > announced {
            let message = format!("the upload was announced with {announced} bytes, and has {sum} at least");
            return Err(Failure::new(ErrorCode::TooLarge, message));
        }
        if others + sum > bytes_max {
            let message = format!("uploads in pieces have no room for {bytes} bytes more (tickets_bytes_max)");
            return Err(Failure::new(ErrorCode::Overloaded, message).after(RETRY_AFTER));
        }
        Ok(spool)
    }

    /// Notes how many bytes a ticket has now.
    pub(crate) fn added(&self, ticket: &[u8; 16], bytes: u64) {
        if let Some(held) = self.lock().get_mut(ticket) {
            (held.bytes, held.used_at) = (bytes, Instant::now());
        }
    }

    /// All bytes of the upload that a sync brings the ticket of.
    pub(crate) fn open(
        &self,
        ticket: &Ticket,
        user: &str,
        remote_id: [u8; 16],
        end: &UploadEnd,
    ) -> Result<Spool, Failure> {
        let upload = Upload { user: user.to_owned(), remote_id, digest: end.digest };
        let mut all = self.lock();
        let held = all.get_mut(&ticket.ticket).filter(|held| held.upload == upload).ok_or_else(unknown)?;
        let spool = Arc::clone(&held.spool).try_lock_owned().map_err(|_| Failure::remote_busy())?;
        (held.used_at, held.bytes) = (Instant::now(), spool.bytes());
        self.needed(held);
        if spool.bytes() != ticket.bytes {
            let message = format!("the ticket has {} bytes, expected {}", spool.bytes(), ticket.bytes);
            return Err(Failure::new(ErrorCode::TicketUnknown, message));
        }
        Ok(spool)
    }

    /// Its bytes are not spare any more, if they were.
    fn needed(&self, held: &mut Held) {
        if held.applied_at.take().is_some() {
            self.spools.spare().remove(&held.spool);
        }
    }

    /// The upload was applied, and nobody uses its bytes now.
    pub(crate) fn applied(&self, ticket: &[u8; 16]) {
        if let Some(held) = self.lock().get_mut(ticket) {
            held.applied_at = Some(Instant::now());
            self.spools.spare().add(&held.spool);
        }
    }

    /// The bytes under a ticket are worth nothing.
    pub(crate) fn forget(&self, ticket: &[u8; 16]) {
        self.lock().remove(ticket);
    }

    /// A remote syncs, with this upload or without one: others of its own are of no more use.
    pub(crate) fn keep_only(&self, remote_id: &[u8; 16], digest: Option<[u8; 32]>) {
        self.lock().retain(|_, held| held.upload.remote_id != *remote_id || Some(held.upload.digest) == digest);
    }

    /// Forgets what nobody has used in time.
    pub(crate) fn expire(&self) {
        let held_for = self.held_for();
        let kept_for = Duration::from_millis(self.config.now().kept_ms);
        let is_late = |held: &Held| {
            held.used_at.elapsed() >= held_for
                || held.applied_at.is_some_and(|applied_at| applied_at.elapsed() >= kept_for)
        };
        self.lock().retain(|_, held| !is_late(held) || held.spool.try_lock().is_err());
    }

    /// How many were not applied yet, and how many were and have their bytes still.
    pub(crate) fn count(&self) -> (usize, usize) {
        let all = self.lock();
        let (applied, on_their_way): (Vec<_>, Vec<_>) = all.values().partition(|held| held.applied_at.is_some());
        (on_their_way.len(), applied.into_iter().filter(|held| held.bytes() > 0).count())
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// How many bytes it has. Those of one that is spare may have gone.
    fn bytes(&self) -> u64 {
        self.spool.try_lock().map_or(self.bytes, |spool| spool.bytes())
    }
}

/// Forgets what was applied first of these; whether there was one.
fn forget_applied(all: &mut All, is_one: impl Fn(&[u8; 16], &Held) -> bool) -> bool {
    let applied = all.iter().filter(|(ticket, held)| is_one(ticket, held) && held.spool.try_lock().is_ok());
    let first = applied.filter_map(|(ticket, held)| Some((held.applied_at?, *ticket))).min();
    first.is_some_and(|(_, ticket)| all.remove(&ticket).is_some())
}

fn unknown() -> Failure {
    let message = "the ticket is not known here, or not any more, or is another's: ask for one, and send what it lacks";
    Failure::new(ErrorCode::TicketUnknown, message)
}
