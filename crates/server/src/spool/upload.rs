//! The spool of an upload: filled frame by frame, then read by place. Of an upload that comes in pieces it is filled byte by byte, and
//! where its frames lie is found out when they have all come ([`UploadSpool::index`]).

use std::io;

use headwater_bufferpool::Spool;
use headwater_consolidated::Error;
use headwater_consolidated::upload::UploadSource;
use headwater_protocol::server::{PiecesReader, RequestError};
use headwater_protocol::{Frame, Limits, frame};

use super::{Spools, of_disk};

/// Bytes that are read at a time.
const READ_BYTES: u64 = 256 * 1024;
/// Bytes of a frame by which its size is known.
const BEGINNING_BYTES: u64 = 16;

/// An upload's frames.
#[derive(Debug)]
pub(crate) struct UploadSpool {
    spool: Spool,
    /// Where each frame lies.
    places: Vec<(u64, u32)>,
    /// What could not be spooled without waiting for the disk.
    pending: Vec<u8>,
    spools: Spools,
}

impl UploadSpool {
    pub(crate) fn new(spools: &Spools) -> UploadSpool {
        UploadSpool { spool: spools.upload(), places: Vec::new(), pending: Vec::new(), spools: spools.clone() }
    }

    /// Adds a frame. Where [`UploadSpool::wants_flush`] then holds, [`UploadSpool::flush`] must follow.
    pub(crate) fn push(&mut self, frame: &Frame) {
        self.places.push((self.bytes(), frame.wire_bytes() as u32));
        self.append(&frame.to_bytes());
    }

    /// Adds bytes of frames, as [`UploadSpool::push`] does.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        // What fails here fails again where it may wait.
        let done = if self.pending.is_empty() { self.spool.try_append(bytes).unwrap_or(0) } else { 0 };
        self.pending.extend_from_slice(&bytes[done..]);
    }

    /// Whether something waits for the disk.
    pub(crate) fn wants_flush(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Has what waits spooled. Blocks. After an error the upload is worth nothing.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.spools.spare().append(&self.spool, &pending).map_err(|error| of_disk(&error))
    }

    /// Gives up all that it has, and its room with it.
    pub(crate) fn empty(&mut self) {
        *self = UploadSpool::new(&self.spools);
    }

    /// Bytes of all frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.spool.end() + self.pending.len() as u64
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
                    let bytes = self.read(read, READ_BYTES)?;
                    read += bytes.len() as u64;
                    reader.push(&bytes);
                }
                Ok(None) => break reader.finish(),
                Err(error) => break Err(error),
            }
        };
        if found.is_err() {
            self.spool.truncate(sound).map_err(|error| of_disk(&error))?;
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

    /// Bytes from this position on: so many, or as many as there are.
    fn read(&self, position: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length.min(self.spool.end().saturating_sub(position)) as usize];
        let read = self.spool.read(position, &mut bytes).map_err(|error| of_disk(&error))?;
        bytes.truncate(read);
        Ok(bytes)
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

#[cfg(test)]
mod tests {
    use headwater_bufferpool::{Config, Floors, Pool};
    use headwater_protocol::Kind;

    use super::*;

    fn frames(count: u8) -> Vec<Frame> {
        (0..count).map(|number| Frame::new(Kind::Changes, vec![number; 100 + usize::from(number)])).collect()
    }

    fn spools(memory: u64, budget: u64, overflow: u64) -> Spools {
        let config = Config { block_bytes: 512, budget_bytes: budget, floors: Floors::default(), ..Config::default() };
        Spools::new(
            Pool::new(&Config { overflow_bytes_max: overflow, ..config }).expect("a pool"),
            crate::Config { spool_memory_bytes: memory, ..crate::Config::default() }.into(),
        )
    }

    fn filled(spools: &Spools) -> io::Result<UploadSpool> {
        let mut spool = UploadSpool::new(spools);
        for frame in frames(50) {
            spool.push(&frame);
            if spool.wants_flush() {
                spool.flush()?;
            }
        }
        Ok(spool)
    }

    #[test]
    fn frames_are_read_by_place_wherever_they_lie() {
        let total: u64 = frames(50).iter().map(|frame| frame.wire_bytes() as u64).sum();
        for (memory, budget, in_file) in [
            (1 << 20, 1 << 20, false),
            (1_024, 1 << 20, true),
            (0, 1 << 20, true),
            (1 << 20, 2_048, true),
            (0, 512, true),
        ] {
            let spools = spools(memory, budget, u64::MAX);
            let mut spool = filled(&spools).expect("room");
            assert_eq!(spool.bytes(), total);
            assert_eq!(spool.frames(), 50);
            for index in (0..50).rev().chain(0..50) {
                assert_eq!(&spool.frame(index).expect("a frame"), &frames(50)[index]);
            }
            assert!(spool.frame(50).is_err());
            let (memory, file) = spools.used();
            assert!(memory <= budget && (file > 0) == in_file && memory + file >= total, "{memory} {file}");
            drop(spool);
            assert_eq!(spools.used(), (0, 0));
        }
    }

    #[test]
    fn a_full_disk_is_an_error_that_frees_everything() {
        let spools = spools(1 << 20, 2_048, 2_048);
        let error = filled(&spools).expect_err("no room");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("overflow_bytes_max"), "{error}");
        assert_eq!(spools.used(), (0, 0));
    }
}
