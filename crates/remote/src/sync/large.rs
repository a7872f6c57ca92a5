//! What a download that does not stay in memory needs of the disk, told before any of it goes to the file.
//!
//! ```text
//! the file               the frames, then rows in their place       about the rows
//! the write-ahead log    every page that is written, once           about the rows again, and pages of rows that are replaced
//! a file that is filled                 the frames, then rows in their place; what the frames took, in the journal
//! ```
//!
//! How large rows are is known by the frames that have come: uncompressed, a row takes about as much there as in SQLite. *Caveats.*
//! The server estimates all that comes by some of it, and rows may be of very different sizes: when half as much again has come, that is told.
//! So it is where chunks are named after the first frames have gone to the file: nobody counts them before.
//! Indexes are reckoned with one beside the key; every further one, and triggers of the application's own, take more.

use super::Sync;

/// A row that is replaced has at most its page written to the write-ahead log.
const PAGE_BYTES: u64 = 4096;

/// A download that does not stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeDownload {
    /// Rows and deletions, about; `None`: not known.
    pub rows: Option<u64>,
    /// Bytes that come over the network, about, those among them that had come before.
    pub bytes: u64,
    /// Bytes of disk that the file and its write-ahead log need while it is staged and applied, about, beside what they take now. Part of
    /// it is free again when the sync has ended.
    pub disk_bytes: u64,
    /// Bytes that are free on the file's disk; `None`: not known.
    pub free_bytes: Option<u64>,
    /// Whether it has been told before, and more has come since than was estimated: so much at least.
    pub is_more: bool,
}

impl LargeDownload {
    /// Whether there is room, as far as that is known.
    pub fn fits(&self) -> bool {
        self.free_bytes.is_none_or(|free| free >= self.disk_bytes)
    }
}

impl Sync<'_, '_, '_> {
    /// Part of the download has come: tells of it, unless its size is not known.
    pub(super) fn announce(&mut self) {
        if let Some((download, came)) = self.stage.download().filter(|(download, _)| download.bytes > 0) {
            // DOWNLOAD does not count chunks. Those of a partition that is topped up are named before the rows that come in frames.
            self.tell_large(download.rows, download.bytes.max(came).saturating_add(self.stage.chunk_bytes()));
        }
    }

    /// All of it has come: tells of it if some of it is in the file, and nobody could before.
    pub(super) fn announce_whole(&mut self) {
        if let Some((download, came)) = self.stage.download().filter(|_| self.stage.file_bytes() > 0) {
            self.tell_large(download.rows, came + self.stage.chunk_bytes());
        }
    }

    /// Its chunks are about to be got, and lie in the file until they are applied.
    pub(super) fn announce_chunks(&mut self) {
        if let Some((download, came)) = self.stage.download() {
            self.tell_large(download.rows, came + self.stage.chunk_bytes());
        }
    }

    fn tell_large(&mut self, rows: u64, bytes: u64) {
        if self.report.large.is_some_and(|told| bytes / 3 <= told.bytes / 2) {
            return;
        }
        let database = &self.remote.database;
        let (used_bytes, unused_bytes) = database.bytes();
        let plain = self.stage.plain_bytes(bytes);
        let added = if self.fills() { plain.saturating_add(bytes.saturating_mul(2)) } else { plain.saturating_mul(3) };
        let added = added.saturating_sub(unused_bytes);
        let replaced = plain.saturating_add(used_bytes.min(rows.saturating_mul(PAGE_BYTES)));
        let disk_bytes = added.max(replaced).saturating_sub(self.stage.file_bytes());
        let free_bytes = free_bytes(self.remote.path());
        let (rows, is_more) = (Some(rows).filter(|rows| *rows > 0), self.report.large.is_some());
        let large = LargeDownload { rows, bytes, disk_bytes, free_bytes, is_more };
        self.report.large = Some(large);
        if let Some(tell) = &mut self.options.large {
            tell(&large);
        }
    }
}

/// What is free on the disk of a file.
#[cfg(unix)]
fn free_bytes(path: &std::path::Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_path: &std::path::Path) -> Option<u64> {
    None
}
