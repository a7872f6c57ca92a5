//! Uploads that come in pieces: their bytes wait under a ticket until the sync that they belong to.
//!
//! A ticket is for one upload of one remote: it is found by user, remote ID and digest, so that whoever asks again, from another process
//! or after anything that broke, gets the same ticket and goes on where the server stands. Its bytes stay after a sync has used them,
//! until the remote's next sync shows that the receipt has come; a sync that found no place, or whose answer was lost, has them again.
//!
//! | bound | what happens |
//! |---|---|
//! | `piece_bytes`, the bytes announced | the piece is refused (`too_large`) |
//! | `tickets_max`, `tickets_per_user_max`, `tickets_bytes_max` | `overloaded`: come back |
//! | `ticket_ms` without a piece or a sync | it is forgotten, its bytes are freed |
//! | another upload of the remote's | the same |
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
    held: Mutex<HashMap<[u8; 16], Held>>,
    config: Live<Config>,
}

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
        let of_user = all.values().filter(|held| held.upload.user == upload.user).count();
        if all.len() >= config.tickets_max || of_user >= config.tickets_per_user_max {
            let message = format!("{} uploads in pieces are on their way, {of_user} of this user", all.len());
            return Err(Failure::new(ErrorCode::Overloaded, message).after(RETRY_AFTER));
        }
        let ticket = uuid::Uuid::new_v4().into_bytes();
        let spool = Arc::new(tokio::sync::Mutex::new(UploadSpool::new(&self.spools)));
        let held = Held { upload: upload.clone(), announced, bytes: 0, used_at: Instant::now(), spool };
        all.insert(ticket, held);
        Ok((ticket, 0))
    }

    /// The bytes under a user's ticket, with room for so many more.
    pub(crate) fn add(&self, ticket: &[u8; 16], user: &str, bytes: u64) -> Result<Spool, Failure> {
        let mut all = self.lock();
        let others: u64 = all.iter().filter(|(other, _)| *other != ticket).map(|(_, held)| held.bytes).sum();
        let held = all.get_mut(ticket).filter(|held| held.upload.user == user).ok_or_else(unknown)?;
        let spool = Arc::clone(&held.spool).try_lock_owned().map_err(|_| Failure::remote_busy())?;
        held.used_at = Instant::now();
        let (sum, announced) = (spool.bytes() + bytes, held.announced);
        if sum > announced {
            let message = format!("the upload was announced with {announced} bytes, and has {sum} at least");
            return Err(Failure::new(ErrorCode::TooLarge, message));
        }
        if others + sum > self.config.now().tickets_bytes_max {
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
        if spool.bytes() != ticket.bytes {
            let message = format!("the ticket has {} bytes, expected {}", spool.bytes(), ticket.bytes);
            return Err(Failure::new(ErrorCode::TicketUnknown, message));
        }
        Ok(spool)
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
        self.lock().retain(|_, held| held.used_at.elapsed() < held_for || held.spool.try_lock().is_err());
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown() -> Failure {
    let message = "the ticket is not known here, or not any more, or is another's: ask for one, and send what it lacks";
    Failure::new(ErrorCode::TicketUnknown, message)
}
