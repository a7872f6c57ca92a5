//! An answer being written, by a task of its own, which ends with whoever waits for it.
//!
//! ```text
//! all payloads are held, before the first pause   Told::Whole, or Told::Unchanged: the head tells length and time
//! a payload comes as it is read                   Told::Coming, then pieces: the head tells for how long it may be kept
//! a payload lets wait                             Told::Slow, <keepalive /> every 5 s, then pieces: the head tells nothing
//! there is no room now, and nothing is told yet   Told::Refused
//! ```
//!
//! No more than the payloads that the cache may hold, and some pieces, are in memory.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::Frontier;
use super::contents::{Content, Held, records};
use crate::cache::last_modified;
use crate::fault::Fault;
use crate::frontier::{Answer as Frame, Asked as Payload, Encoding, Quality, Request};
use crate::levels::Sending;
use crate::run::Running;

/// How often a client that waits is told that the query still runs.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How many bytes of a payload are put into the frame at a time: others are served in between.
const PIECE_BYTES: usize = 64 << 10;

/// What is told of an answer.
pub(super) enum Told {
    /// All of it.
    Whole(Framed),
    /// It is what the client has: of this time.
    Unchanged(String),
    /// There is none: the same request may have one a little later.
    Refused(Fault),
    /// Its beginning; a fault that comes later breaks it off.
    Coming(Bytes),
    /// Its beginning, while a payload lets wait; a fault that comes later is in the frame.
    Slow(Bytes),
    /// More of it.
    Piece(Bytes),
    /// That was all.
    End,
    /// It can't be gone on with.
    Broken,
}

/// An answer, whole.
pub(super) struct Framed {
    pub(super) body: String,
    /// When the newest of its payloads has changed, as a head says it.
    pub(super) modified: Option<String>,
    /// Whether a payload has an error.
    pub(super) is_error: bool,
}

/// Whoever waited for the answer has gone, or it was broken off.
struct Ended;

type Done = Result<(), Ended>;

/// A task; ends with whoever holds it.
pub(super) struct Abort(tokio::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What else a request's head says of how it is answered.
pub(super) struct Wishes {
    /// `If-Modified-Since`.
    pub(super) since: Option<String>,
    /// An error is not to come whole, so that no cache keeps it.
    pub(super) breaks_off: bool,
    /// Bytes a second that the client takes, where that was measured.
    pub(super) link: Option<f64>,
}

/// Begins to write the answer to a request.
pub(super) fn write(frontier: Arc<Frontier>, request: Request, wishes: Wishes) -> (mpsc::Receiver<Told>, Abort) {
    let (tell, told) = mpsc::channel(1);
    let mut frame = Frame::begin(request.payloads.len());
    if let Some(signer) = frontier.settings.signer.clone().filter(|_| request.is_signed) {
        frame = frame.signed(signer, request.signed_part.clone());
    }
    let writing = Writing {
        frontier,
        tell,
        wishes,
        frame,
        held: Vec::new(),
        begun: None,
        has_told: false,
        is_open: false,
        modified: None,
        is_error: false,
    };
    (told, Abort(tokio::spawn(async move { drop(writing.run(&request).await) })))
}

/// How an answer has begun that is not told whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    Coming,
    Slow,
}

struct Writing {
    frontier: Arc<Frontier>,
    tell: mpsc::Sender<Told>,
    wishes: Wishes,
    frame: Frame,
    /// Payloads that are not in the frame yet: while it may be told whole.
    held: Vec<(Payload, Result<Content, Fault>)>,
    begun: Option<Begun>,
    /// Its beginning has been told.
    has_told: bool,
    /// The payload at hand has been begun.
    is_open: bool,
    modified: Option<SystemTime>,
    is_error: bool,
}

impl Writing {
    async fn run(mut self, request: &Request) -> Done {
        let (mut bytes, most) = (0_usize, self.frontier.service.held_bytes_max());
        for payload in &request.payloads {
            let content = self.wait_for(payload, request).await?;
            match &content {
                Err(fault) if self.begun.is_none() && fault.retry_after.is_some() => {
                    return self.tell(Told::Refused(fault.clone())).await;
                }
                Ok(Content::Held(held)) => {
                    bytes = bytes.saturating_add(held.body.len());
                    self.modified = self.modified.max(Some(held.modified));
                }
                Ok(Content::Coming(..)) => bytes = usize::MAX,
                Err(_) => self.is_error = true,
            }
            self.held.push((payload.clone(), content));
            if self.begun.is_none() && bytes > most {
                self.begun = Some(Begun::Coming);
            }
            if self.begun.is_some() {
                self.write_held().await?;
            }
        }
        if self.begun.is_some() { self.end().await } else { self.tell_whole().await }
    }

    /// A payload's content. One that lets wait begins the answer.
    async fn wait_for(&mut self, payload: &Payload, request: &Request) -> Result<Result<Content, Fault>, Ended> {
        let frontier = Arc::clone(&self.frontier);
        let mut content = std::pin::pin!(frontier.content(payload, request.ttl));
        loop {
            tokio::select! {
                content = &mut content => return Ok(content),
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    self.begun.get_or_insert(Begun::Slow);
                    self.write_held().await?;
                    self.open(payload);
                    self.frame.keep_alive();
                    self.hand_on().await?;
                }
            }
        }
    }

    async fn tell_whole(mut self) -> Done {
        let modified = self.modified.filter(|_| !self.is_error).and_then(last_modified);
        if let Some(modified) = modified.clone().filter(|_| modified == self.wishes.since) {
            return self.tell(Told::Unchanged(modified)).await;
        }
        self.write_held().await?;
        self.frame.end(None);
        let framed = Framed { body: self.frame.take(), modified, is_error: self.is_error };
        self.tell(Told::Whole(framed)).await
    }

    /// Ends an answer whose head is gone.
    async fn end(mut self) -> Done {
        let error = Some("a payload has an error").filter(|_| self.is_error);
        // A cache that has seen the head may keep it.
        if error.is_some() && (self.wishes.breaks_off || self.begun == Some(Begun::Coming)) {
            return self.tell(Told::Broken).await;
        }
        self.frame.end(error);
        self.hand_on().await?;
        self.tell(Told::End).await
    }

    async fn write_held(&mut self) -> Done {
        for (payload, content) in std::mem::take(&mut self.held) {
            let payload = self.with_level(payload, &content);
            self.open(&payload);
            self.is_open = false;
            match content {
                Ok(Content::Held(Held { body, records, .. })) => {
                    self.write_data(&body).await?;
                    self.frame.end_payload(Quality::Good { records, full_size: body.len() as u64 });
                }
                Ok(Content::Coming(first, running)) => self.write_coming(first, running).await?,
                Err(fault) => self.frame.end_payload(Quality::Error(&fault.message)),
            }
            if self.begun.is_some() {
                self.hand_on().await?;
            }
        }
        Ok(())
    }

    /// A payload whose encoding names no level has the one that brings it there soonest. One that let wait is open already, at the protocol's.
    fn with_level(&self, mut payload: Payload, content: &Result<Content, Fault>) -> Payload {
        let Encoding::Zip { is_named: false, .. } = payload.encoding else { return payload };
        let (beginning, sending) = match content {
            Ok(Content::Held(held)) => (&held.body, Sending::Whole),
            Ok(Content::Coming(first, _)) => (first, Sending::AsItComes),
            Err(_) => return payload,
        };
        let level = self.frontier.service.packer.zlib_level(beginning, self.wishes.link, sending);
        payload.encoding = Encoding::Zip { level, is_named: false };
        payload
    }

    fn open(&mut self, payload: &Payload) {
        if !std::mem::replace(&mut self.is_open, true) {
            self.frame.begin_payload(&payload.name, payload.encoding);
        }
    }

    async fn write_coming(&mut self, first: Bytes, mut running: Running) -> Done {
        let (mut full_size, mut ends) = (0, 0);
        let mut piece: Option<Result<Bytes, Fault>> = Some(Ok(first));
        loop {
            match piece {
                Some(Ok(bytes)) => {
                    full_size += bytes.len() as u64;
                    ends += records(&bytes); // an execution hands on whole rows
                    for part in bytes.chunks(PIECE_BYTES) {
                        self.write_data(part).await?;
                        running.taken.add(part.len());
                    }
                }
                Some(Err(fault)) => return self.failed(&fault.message).await,
                None => break,
            }
            piece = running.next().await;
        }
        self.frame.end_payload(Quality::Good { records: ends.saturating_sub(1), full_size });
        Ok(())
    }

    /// A payload failed after some of its data. Who may keep the answer must see it end too early.
    async fn failed(&mut self, message: &str) -> Done {
        if self.begun == Some(Begun::Coming) {
            self.hand_on().await?;
            self.tell(Told::Broken).await?;
            return Err(Ended);
        }
        self.is_error = true;
        self.frame.end_payload(Quality::Error(message));
        Ok(())
    }

    async fn write_data(&mut self, bytes: &[u8]) -> Done {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.frame.data(piece);
            if self.begun.is_none() {
                tokio::task::yield_now().await;
            } else if self.frame.waiting() >= PIECE_BYTES {
                self.hand_on().await?;
            }
        }
        Ok(())
    }

    /// Hands on what has been written.
    async fn hand_on(&mut self) -> Done {
        let piece = Bytes::from(self.frame.take());
        if piece.is_empty() {
            return Ok(());
        }
        let is_first = !std::mem::replace(&mut self.has_told, true);
        self.tell(match self.begun {
            Some(Begun::Coming) if is_first => Told::Coming(piece),
            Some(Begun::Slow) if is_first => Told::Slow(piece),
            _ => Told::Piece(piece),
        })
        .await
    }

    async fn tell(&self, told: Told) -> Done {
        self.tell.send(told).await.map_err(|_| Ended)
    }
}
