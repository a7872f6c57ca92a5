//! The spool of an upload: filled frame by frame, then read by place. Of an upload that comes in pieces it is filled byte by byte, and
//! where its frames lie is found out when they have all come ([`UploadSpool::index`]).

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use headwater_consolidated::Error;
use headwater_consolidated::upload::UploadSource;
use headwater_protocol::server::{PiecesReader, RequestError};
use headwater_protocol::{Frame, Limits, frame};

use super::{Budget, SpoolFile};

/// Bytes that are collected before they are written to the file.
const WRITE_BYTES: usize = 256 * 1024;
/// Bytes of a frame by which its size is known.
const BEGINNING_BYTES: u64 = 16;

/// An upload's frames.
#[derive(Debug)]
pub(crate) struct UploadSpool {
    budget: Arc<Budget>,
    /// Where each frame lies: in the file below `file_bytes`, then in the buffer.
    places: Vec<(u64, u32)>,
    buffer: Vec<u8>,
    /// What the buffer has taken of the budget; less than its length when there was no more.
    memory_taken: u64,
    file: Option<SpoolFile>,
    file_bytes: u64,
}

impl UploadSpool {
    pub(crate) fn new(budget: Arc<Budget>) -> UploadSpool {
        UploadSpool { budget, places: Vec::new(), buffer: Vec::new(), memory_taken: 0, file: None, file_bytes: 0 }
    }

    /// Adds a frame, in memory. Where [`UploadSpool::wants_flush`] then holds, [`UploadSpool::flush`] must follow.
    pub(crate) fn push(&mut self, frame: &Frame) {
        let length = frame.wire_bytes();
        self.places.push((self.bytes(), length as u32));
        frame.write(&mut self.buffer);
        self.take_memory(length as u64);
    }

    /// Adds bytes of frames, as [`UploadSpool::push`] does.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.take_memory(bytes.len() as u64);
    }

    fn take_memory(&mut self, bytes: u64) {
        if self.budget.memory.take(bytes) {
            self.memory_taken += bytes;
        }
    }

    /// Whether there is enough in memory to be written, where little is to stay there.
    pub(crate) fn is_full(&self) -> bool {
        self.wants_flush() || self.buffer.len() >= WRITE_BYTES
    }

    /// Whether what lies in memory must go to the file.
    pub(crate) fn wants_flush(&self) -> bool {
        let limit = if self.file.is_some() { WRITE_BYTES as u64 } else { self.budget.spool_memory_bytes };
        let length = self.buffer.len() as u64;
        length > limit.min(self.memory_taken)
    }

    /// Writes what lies in memory to the file. Blocks.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let bytes = self.buffer.len() as u64;
        if bytes == 0 {
            return Ok(());
        }
        let file = match self.file.take() {
            Some(file) => file,
            None => self.budget.create_file()?,
        };
        let file = self.file.insert(file);
        self.budget.take_file_room(bytes)?;
        // Counted before it is written: what a failed write leaves behind is given back with the rest.
        let start = self.file_bytes;
        self.file_bytes += bytes;
        file.write_all_at(&self.buffer, start)?;
        self.buffer = Vec::new();
        self.budget.memory.give_back(std::mem::take(&mut self.memory_taken));
        Ok(())
    }

    /// Bytes of all frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.file_bytes + self.buffer.len() as u64
    }

    /// Finds the frames in the bytes that came, and gives the upload's digest. Blocks. After an error only whole and sound frames are
    /// left; what comes goes on from there.
    pub(crate) fn index(&mut self, limits: Limits) -> io::Result<Result<[u8; 32], RequestError>> {
        self.places.clear();
        let mut reader = PiecesReader::new(limits);
        let (mut read, mut sound) = (0, 0);
        let found = loop {
            match reader.poll() {
                Ok(Some(frame)) => {
                    self.places.push((sound, frame.wire_bytes() as u32));
                    sound += frame.wire_bytes() as u64;
                }
                Ok(None) if read < self.bytes() => {
                    let bytes = self.read(read, WRITE_BYTES as u64)?;
                    read += bytes.len() as u64;
                    reader.push(&bytes);
                }
                Ok(None) => break reader.finish(),
                Err(error) => break Err(error),
            }
        };
        if found.is_err() {
            self.truncate(sound)?;
        }
        Ok(found)
    }

    /// The largest frame, as it travels or uncompressed, as far as there are frames: what reading them takes of memory. Blocks.
    pub(crate) fn largest_frame(&self) -> io::Result<u64> {
        let (mut position, mut largest) = (0, 0);
        while let Some((wire, plain)) = frame::announced_bytes(&self.read(position, BEGINNING_BYTES)?) {
            largest = largest.max(wire).max(plain);
            position += wire;
        }
        Ok(largest)
    }

    /// Bytes from this position on: so many, or as many as lie together.
    fn read(&self, position: u64, length: u64) -> io::Result<Vec<u8>> {
        match (&self.file, position.checked_sub(self.file_bytes)) {
            (Some(file), None) => {
                let mut bytes = vec![0; (self.file_bytes - position).min(length) as usize];
                file.read_exact_at(&mut bytes, position)?;
                Ok(bytes)
            }
            (_, start) => {
                let rest = self.buffer.get(start.unwrap_or(0) as usize..).unwrap_or_default();
                Ok(rest[..rest.len().min(length as usize)].to_vec())
            }
        }
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        let in_memory = bytes.saturating_sub(self.file_bytes);
        self.buffer.truncate(in_memory as usize);
        let freed = self.memory_taken.saturating_sub(in_memory);
        self.memory_taken -= freed;
        self.budget.memory.give_back(freed);
        if bytes < self.file_bytes {
            if let Some(file) = &self.file {
                file.set_len(bytes)?;
            }
            self.budget.files.give_back(self.file_bytes - bytes);
            self.file_bytes = bytes;
        }
        Ok(())
    }
}

impl UploadSource for UploadSpool {
    fn frames(&self) -> usize {
        self.places.len()
    }

    fn frame(&mut self, index: usize) -> Result<Frame, Error> {
        let missing =
            || Error::Database { context: "reading a spooled upload".into(), detail: format!("no frame {index}") };
        let (offset, length) = *self.places.get(index).ok_or_else(missing)?;
        let bytes = self.read(offset, u64::from(length))?;
        if bytes.len() != length as usize {
            return Err(missing());
        }
        Ok(Frame::from_bytes(bytes)?)
    }
}

impl Drop for UploadSpool {
    fn drop(&mut self) {
        self.budget.memory.give_back(self.memory_taken);
        self.budget.files.give_back(self.file_bytes);
    }
}

#[cfg(test)]
mod tests {
    use headwater_protocol::Kind;

    use super::*;
    use crate::Config;

    fn frames(count: u8) -> Vec<Frame> {
        (0..count).map(|number| Frame::new(Kind::Changes, vec![number; 100 + usize::from(number)])).collect()
    }

    fn filled(config: &Config) -> (Arc<Budget>, io::Result<UploadSpool>) {
        let budget = Budget::new(config, usize::MAX);
        let mut spool = UploadSpool::new(Arc::clone(&budget));
        for frame in frames(50) {
            spool.push(&frame);
            if spool.wants_flush()
                && let Err(error) = spool.flush()
            {
                return (budget, Err(error));
            }
        }
        (budget, Ok(spool))
    }

    #[test]
    fn frames_are_read_by_place_wherever_they_lie() {
        let all = Config::default();
        let total: u64 = frames(50).iter().map(|frame| frame.wire_bytes() as u64).sum();
        for (config, in_file) in [
            (all.clone(), false),
            (Config { spool_memory_bytes: 1_000, ..all.clone() }, true),
            (Config { spool_memory_bytes: 0, ..all.clone() }, true),
            (Config { spool_memory_bytes_total: 1_000, ..all.clone() }, true),
            (Config { spool_memory_bytes_total: 0, ..all.clone() }, true),
        ] {
            let (budget, spool) = filled(&config);
            let mut spool = spool.expect("room");
            assert_eq!((spool.file.is_some(), spool.bytes()), (in_file, total));
            assert_eq!(spool.frames(), 50);
            for index in (0..50).rev().chain(0..50) {
                assert_eq!(&spool.frame(index).expect("a frame"), &frames(50)[index]);
            }
            assert!(spool.frame(50).is_err());
            let (memory, file) = budget.used();
            assert_eq!(memory + file, total, "each byte is counted once");
            drop(spool);
            assert_eq!(budget.used(), (0, 0));
        }
    }

    #[test]
    fn a_full_disk_is_an_error_that_frees_everything() {
        let config = Config { spool_memory_bytes: 1_000, spool_file_bytes_total: 2_000, ..Config::default() };
        let (budget, spool) = filled(&config);
        assert!(spool.is_ok(), "what follows the first 1000 bytes is collected before it is written");
        drop(spool);
        let config = Config { spool_file_bytes_total: 900, ..config };
        let (second, spool) = filled(&config);
        assert_eq!(spool.expect_err("no room").kind(), io::ErrorKind::StorageFull);
        assert_eq!((budget.used(), second.used()), ((0, 0), (0, 0)));
    }
}
