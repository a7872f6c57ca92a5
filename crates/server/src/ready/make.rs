//! Making a ready file: the frames are read by a worker into a temporary file, then applied without one.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_consolidated::download::{DownloadSummary, ready};
use headwater_consolidated::{Error, Plan, system};
use headwater_protocol::message::{Download, Watermarks, Welcome};
use headwater_protocol::{Frame, Row};
use tokio::sync::watch;

use super::packed::Packed;
use super::{BadLuck, BuildReady, Key, Ready};
use crate::places::Size;
use crate::state::Shared;

/// How much larger a file may be than what is kept of it: more than SQLite files are usually pressed.
const PLAIN_MAX: u64 = 4;

/// What is to be made.
pub(super) struct Making {
    pub(super) shared: Arc<Shared>,
    pub(super) plan: Arc<Plan>,
    pub(super) key: Key,
    pub(super) partitions: Vec<Vec<Row>>,
    /// Dropped when it has ended.
    pub(super) tell: watch::Sender<()>,
}

/// What was read.
struct Frames {
    file: File,
    summary: DownloadSummary,
    seen: Watermarks,
    note: [u8; 16],
}

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Database(#[from] Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the file could not be made: {0}")]
    Build(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Fault {
    /// Whether the next that asks may have better luck: the database could not do it now, or the disk had no room.
    fn may_pass(&self) -> bool {
        match self {
            Fault::Database(Error::Retry { .. }) => true,
            Fault::Database(Error::Spool(error)) | Fault::Io(error) => {
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Fault::Database(_) | Fault::Build(_) => false,
        }
    }
}

impl Making {
    /// Makes it, and says so to whoever waits; without one they take the ordinary way.
    pub(super) async fn run(self) {
        let task = self.shared.estimates.enter();
        let permits = self.shared.admission.permits(false, Size::Large).await;
        let (shared, key) = (Arc::clone(&self.shared), self.key);
        let making = tokio::task::spawn_blocking(move || {
            let _task = task;
            let read = self.read();
            drop(permits);
            let made = read.and_then(|frames| frames.map_or(Ok(None), |frames| self.apply(frames).map(Some)));
            (made, self.tell)
        });
        let (made, tell) = match making.await {
            Ok((made, tell)) => (made, Some(tell)),
            Err(error) => (Err(Fault::Io(io::Error::other(error))), None),
        };
        let made = made.or_else(|error| {
            tracing::warn!(%error, "a ready file could not be made; remotes come down the ordinary way");
            if error.may_pass() { Err(BadLuck) } else { Ok(None) }
        });
        shared.ready_files.made(key, made);
        drop(tell);
    }

    /// Reads the frames; `None`: they are too few for a file to be worth it.
    fn read(&self) -> Result<Option<Frames>, Fault> {
        let files = &self.shared.ready_files;
        let patience = Duration::from_millis(self.shared.config.now().connect_ms_max);
        let mut connection = self.shared.pool.checkout(patience)?;
        let mut out = BufWriter::new(self.file()?);
        let mut bytes = 0;
        let mut sink = |frame: Frame| {
            bytes += frame.wire_bytes() as u64;
            if bytes > files.bytes_max() {
                return Err(Error::Spool(io::Error::new(io::ErrorKind::FileTooLarge, "more than ready_bytes_max")));
            }
            if self.shared.is_stopping() {
                return Err(Error::Spool(io::Error::other("the server is going down")));
            }
            let frame = frame.to_bytes();
            out.write_all(&(frame.len() as u64).to_le_bytes())
                .and_then(|()| out.write_all(&frame))
                .map_err(Error::Spool)
        };
        let read = ready::write_partitions(&mut *connection, &self.plan, &self.partitions, &mut sink);
        // It is there as long as all is that the snapshot before it saw.
        let read = read.and_then(|read| system::take_note(&mut *connection).map(|note| (read, note)));
        let ((summary, seen), note) = connection.note(read)?;
        let bytes_min = files.bytes_min();
        if bytes < bytes_min {
            tracing::info!(bytes, bytes_min, "no ready file is made: a download is as fast (ready_bytes_min)");
            return Ok(None);
        }
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(Some(Frames { file, summary, seen, note }))
    }

    fn file(&self) -> io::Result<File> {
        match &self.shared.ready_files.folder {
            Some(folder) => tempfile::tempfile_in(folder),
            None => tempfile::tempfile(),
        }
    }

    /// Applies them to an empty file, which loses its name then.
    fn apply(&self, frames: Frames) -> Result<Ready, Fault> {
        let began = Instant::now();
        let files = &self.shared.ready_files;
        let none = || Fault::Io(io::Error::other("nothing makes ready files here"));
        let build: &BuildReady = files.builder().ok_or_else(none)?;
        let mut named = tempfile::Builder::new();
        named.prefix(super::READY_FOLDER);
        let folder = match &files.folder {
            Some(folder) => named.tempdir_in(folder)?,
            None => named.tempdir()?,
        };
        let path = folder.path().join("ready.db");
        let Frames { file, summary, seen, note } = frames;
        let mut frames = around(file, &seen);
        let done = build(&path, &self.plan.model.public(), PLAIN_MAX * files.bytes_max(), &mut frames);
        if let Err(error) = done {
            // SQLite does not say that the disk takes no further file.
            self.file()?;
            return Err(Fault::Build(error));
        }
        let (file, digest) = Packed::of(&File::open(&path)?, self.shared.files.create()?)?;
        let ready =
            Ready { key: self.key, fingerprint: self.plan.fingerprint, file, digest, rows: summary.rows, seen, note };
        let (rows, model, ms) = (ready.rows, &self.plan.model.name, began.elapsed().as_millis() as u64);
        let (bytes, kept) = (ready.file.bytes(), ready.file.kept());
        tracing::info!(model, version = self.plan.model.version, rows, bytes, kept, ms, "a ready file was made");
        Ok(ready)
    }
}

/// The frames of a download as a remote has them, whose marks say nothing.
fn around(file: File, seen: &Watermarks) -> impl FnMut() -> io::Result<Option<Frame>> + use<> {
    let welcome = Welcome::default();
    let download = Download { id: [0; 16], resumable_s: 0, rows: 0, bytes: 0 };
    let mut before = vec![download.to_frame(), welcome.to_frame()];
    let marks = vec![Vec::new(); seen.marks.len()];
    let mut last = Some(Watermarks { marks, entries: seen.entries.clone() }.to_frame());
    let mut file = BufReader::new(file);
    move || {
        if let Some(frame) = before.pop() {
            return Ok(Some(frame));
        }
        let mut length = [0; 8];
        if file.read(&mut length[..1])? == 0 {
            return Ok(last.take());
        }
        file.read_exact(&mut length[1..])?;
        let mut bytes = vec![0; u64::from_le_bytes(length) as usize];
        file.read_exact(&mut bytes)?;
        Frame::from_bytes(bytes).map(Some).map_err(io::Error::other)
    }
}
