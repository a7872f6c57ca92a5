//! Spools: uploads and downloads on their way, so that no worker waits for a client.
//!
//! An [`UploadSpool`] is filled while a request arrives and read by place when its upload is applied; a download's spool is filled by
//! a worker and drained at the client's speed while it is still being filled ([`download`]). Both lie in memory up to a limit of their
//! own and one for all together, then in a temporary file without a name, which is gone with the process that made it.
//!
//! *Caveats.* The memory limit counts the frames' bytes, not what the allocator adds. A spool that has gone to its file may hold one
//! more frame in memory on its way there.

pub(crate) mod download;
mod upload;

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use upload::UploadSpool;

use crate::Config;
use crate::admission::{Counted, Gauge};

/// What all spools share: their limits and what they use of them.
#[derive(Debug)]
pub(crate) struct Budget {
    memory: Meter,
    files: Meter,
    /// Bytes in memory of one spool.
    spool_memory_bytes: u64,
    folder: Option<PathBuf>,
    open: Gauge,
    open_max: usize,
}

/// An open file, one of so many that may be.
#[derive(Debug)]
pub(crate) struct SpoolFile {
    file: File,
    _open: Counted,
}

impl Deref for SpoolFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// A number of bytes with a limit.
#[derive(Debug)]
pub(crate) struct Meter {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    /// `open_max`: files that may be open.
    pub(crate) fn new(config: &Config, open_max: usize) -> Arc<Budget> {
        Arc::new(Budget {
            memory: Meter::new(config.spool_memory_bytes_total),
            files: Meter::new(config.spool_file_bytes_total),
            spool_memory_bytes: config.spool_memory_bytes,
            folder: config.spool_folder.clone(),
            open: Gauge::default(),
            open_max,
        })
    }

    /// Bytes in memory, bytes in files.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.memory.used(), self.files.used())
    }

    /// Files that are open.
    pub(crate) fn files_open(&self) -> usize {
        self.open.count()
    }

    pub(crate) fn create_file(&self) -> io::Result<SpoolFile> {
        self.hold_file(|| match &self.folder {
            Some(folder) => tempfile::tempfile_in(folder),
            None => tempfile::tempfile(),
        })
    }

    /// Opens a file that is to stay open, or says that too many are.
    pub(crate) fn hold_file(&self, open: impl FnOnce() -> io::Result<File>) -> io::Result<SpoolFile> {
        let place = self.open.try_enter(self.open_max).ok_or_else(|| {
            let text =
                format!("{} files are open, more are not allowed (the process's limit of open files)", self.open_max);
            io::Error::new(io::ErrorKind::StorageFull, text)
        })?;
        Ok(SpoolFile { file: open()?, _open: place })
    }

    /// Takes room in the files, or says that there is none.
    pub(crate) fn take_file_room(&self, bytes: u64) -> io::Result<()> {
        if self.files.take(bytes) {
            return Ok(());
        }
        let limit = self.files.limit;
        let text = format!(
            "the spools' files have no room for {bytes} bytes more, the limit is {limit} (spool_file_bytes_total)"
        );
        Err(io::Error::new(io::ErrorKind::StorageFull, text))
    }

    /// Gives room in the files back.
    pub(crate) fn give_file_room_back(&self, bytes: u64) {
        self.files.give_back(bytes);
    }
}

impl Meter {
    pub(crate) fn new(limit: u64) -> Meter {
        Meter { used: AtomicU64::new(0), limit }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes so many bytes; whether they were there.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "a spool gave back {bytes} bytes of {before}");
    }
}
