//! The beginning of a download, held back: until it goes, the download can be read again, and how large it gets is not known.
//!
//! ```text
//! it ends within 1 MiB:  DOWNLOAD (rows and bytes as they are)   what was held, WATERMARKS
//! more comes:            DOWNLOAD (as they are expected to be)   what was held, the rest as it is read
//! ```
//!
//! The expectation is made on another connection of the pool, if one is free just then, while the worker reads on; only at
//! [`HELD_BYTES_MAX`] it waits for it, `estimate_ms_max` since the beginning at most. Nothing depends on it.

use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use headwater_consolidated::Error;
use headwater_consolidated::download::{self, DownloadRequest, Estimate};
use headwater_consolidated::rows::Echo;
use headwater_protocol::Frame;
use headwater_protocol::frame::HEADER_BYTES;
use headwater_protocol::message::Download;

use crate::chunks::Elsewhere;
use crate::spool::download::PushError;
use crate::work::{Stop, Work};

/// A download of more bytes is a large one: its size is expected rather than known.
const LARGE_BYTES_MIN: usize = 1 << 20;
/// Bytes that are held back at most; and one frame.
const HELD_BYTES_MAX: usize = 3 << 20;
/// Downloads of fewer bytes are not kept for a client that has gone: they come again.
const KEPT_BYTES_MIN: u64 = 64 * 1024;

/// A download on its way to the spool.
pub(crate) struct Beginning<'w> {
    work: &'w Work,
    request: &'w DownloadRequest<'w>,
    /// What comes after DOWNLOAD.
    key_ranges: Vec<Frame>,
    /// `None` once it has gone.
    held: Option<Held>,
}

/// What is held back.
#[derive(Default)]
struct Held {
    frames: Vec<Frame>,
    bytes: usize,
    /// Where the size is told that a large download is expected to have, and until when; what nobody can tell is told as `None`.
    expected: Option<(Receiver<Option<Estimate>>, Instant)>,
}

impl Held {
    /// What is expected, once that is told or will not be.
    fn expected(&self) -> Option<Estimate> {
        let (told, until) = self.expected.as_ref()?;
        let told = match told.try_recv() {
            Err(TryRecvError::Empty) if self.bytes <= HELD_BYTES_MAX => return None,
            Err(TryRecvError::Empty) => told.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
            told => told.ok(),
        };
        // What has come already is more than it was expected to be: it is not known.
        Some(told.flatten().filter(|expected| expected.bytes > self.bytes as u64).unwrap_or_default())
    }
}

impl<'w> Beginning<'w> {
    pub(crate) fn new(work: &'w Work, request: &'w DownloadRequest<'w>, key_ranges: Vec<Frame>) -> Beginning<'w> {
        Beginning { work, request, key_ranges, held: Some(Held::default()) }
    }

    /// Forgets what is held: it is read again.
    pub(crate) fn restart(&mut self) {
        if let Some(held) = &mut self.held {
            *held = Held::default();
        }
    }

    /// Whether it has gone to the spool.
    pub(crate) fn has_gone(&self) -> bool {
        self.held.is_none()
    }

    /// The next frame that was read.
    pub(crate) fn push(&mut self, frame: Frame) -> Result<(), Error> {
        let Some(held) = &mut self.held else {
            return self.work.writer.push(&frame).map_err(spool);
        };
        held.bytes += frame.wire_bytes();
        held.frames.push(frame);
        if held.bytes > LARGE_BYTES_MIN && held.expected.is_none() {
            let limit = Duration::from_millis(self.work.shared.config.now().estimate_ms_max);
            held.expected = Some((expect(self.work, self.request, limit), Instant::now() + limit));
        }
        match held.expected() {
            Some(expected) => self.release(expected, true).map_err(spool),
            None => Ok(()),
        }
    }

    /// All has been read, so many rows; `last`: the frame before END.
    pub(crate) fn end(&mut self, rows: u64, last: &Frame) -> Result<(), Stop> {
        if let Some(held) = &self.held {
            let around = self.key_ranges.iter().chain([last]).map(Frame::wire_bytes).sum::<usize>() + HEADER_BYTES;
            let bytes = (held.bytes + around) as u64;
            self.release(Estimate { rows, bytes }, bytes > KEPT_BYTES_MIN)?;
        }
        self.work.push(last)
    }

    fn release(&mut self, size: Estimate, is_kept: bool) -> Result<(), PushError> {
        let frames = self.held.take().unwrap_or_default().frames;
        let Work { shared, user, hello, writer, .. } = self.work;
        let id = uuid::Uuid::new_v4().into_bytes();
        let resumable_s = if is_kept { shared.downloads.keep(id, user, hello.remote_id, writer) } else { 0 };
        writer.push(&Download { id, resumable_s, rows: size.rows, bytes: size.bytes }.to_frame())?;
        self.key_ranges.iter().chain(&frames).try_for_each(|frame| writer.push(frame))
    }
}

/// How large it will be. In a thread of its own: the worker is in the midst of a read, and whatever keeps the other connection must not
/// keep the download.
fn expect(work: &Work, request: &DownloadRequest<'_>, limit: Duration) -> Receiver<Option<Estimate>> {
    let (tell, told) = mpsc::channel();
    if limit.is_zero() {
        return told;
    }
    let (pool, plan) = (work.shared.pool.clone(), work.plan.clone());
    let (user, watermarks) = (request.user.to_owned(), request.watermarks.clone());
    let (remote_id, restart, own) = (request.remote_id, request.restart, request.own.to_vec());
    let takes_chunks = request.snapshots.is_some();
    let task = work.shared.estimates.enter();
    let estimate = move || {
        let _task = task;
        let mut connection = pool.checkout_free()?.ok()?;
        let request = DownloadRequest {
            plan: &plan,
            user: &user,
            remote_id,
            watermarks: &watermarks,
            restart,
            life: None,
            own: &own,
            echo: &Echo::default(),
            conflicted: &[],
            refresh: &[],
            extended: &[],
            packing: None,
            snapshots: takes_chunks.then_some(&Elsewhere),
            keeps_marks: false,
            tells_leaving: false,
        };
        let estimated = download::estimate(&mut *connection, &request, limit);
        let estimated = connection.note(estimated);
        estimated.inspect_err(|error| tracing::debug!(%error, "how large a download gets is not known")).ok()
    };
    // Without a thread it is not told either.
    let _ = std::thread::Builder::new().name("estimate".to_owned()).spawn(move || tell.send(estimate()));
    told
}

fn spool(error: PushError) -> Error {
    match error {
        PushError::Left => Error::Spool(std::io::ErrorKind::BrokenPipe.into()),
        PushError::Io(error) => Error::Spool(error),
    }
}
