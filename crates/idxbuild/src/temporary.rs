//! Temporary files: runs that find no room in memory, in one or more directories, each of which may have a limit.

use std::fs::File;
use std::io::{ErrorKind, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::error::Error;
use crate::options::TempDir;

/// The directories, and what lies in each.
#[derive(Debug)]
pub(crate) struct Places {
    places: Vec<Place>,
    /// Files that are open.
    files: AtomicUsize,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    limit: Option<u64>,
    used: AtomicU64,
}

impl Places {
    /// These directories, in the order in which they are filled.
    pub(crate) fn new(directories: &[TempDir]) -> Arc<Places> {
        let place = |directory: &TempDir| Place {
            path: directory.path.clone(),
            limit: directory.limit,
            used: AtomicU64::new(0),
        };
        Arc::new(Places { places: directories.iter().map(place).collect(), files: AtomicUsize::new(0) })
    }

    /// How many files are open.
    pub(crate) fn files(&self) -> usize {
        self.files.load(Ordering::Relaxed)
    }

    /// Takes room in a directory, if its limit leaves any.
    fn take(&self, place: usize, bytes: u64) -> bool {
        let place = &self.places[place];
        let used = place.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let has_room = place.limit.is_none_or(|limit| used <= limit);
        if !has_room {
            place.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        has_room
    }

    fn give(&self, place: usize, bytes: u64) {
        self.places[place].used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn full(&self, bytes: u64) -> Error {
        let place = |place: &Place| {
            let used = place.used.load(Ordering::Relaxed);
            let limit = place.limit.map_or_else(|| "its disk".to_owned(), |limit| limit.to_string());
            format!("{} has {used} bytes of {limit}", place.path.display())
        };
        Error::NoTemporarySpace { bytes, places: self.places.iter().map(place).collect::<Vec<_>>().join(", ") }
    }
}

/// A run on disk: one piece after another, each in a file without a name. Its room is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct DiskRun {
    pieces: Vec<Piece>,
    places: Arc<Places>,
}

#[derive(Debug)]
struct Piece {
    place: usize,
    file: File,
    length: u64,
}

impl Drop for DiskRun {
    fn drop(&mut self) {
        for piece in &self.pieces {
            self.places.give(piece.place, piece.length);
        }
        self.places.files.fetch_sub(self.pieces.len(), Ordering::Relaxed);
    }
}

impl DiskRun {
    /// An empty one.
    pub(crate) fn new(places: &Arc<Places>) -> DiskRun {
        DiskRun { pieces: Vec::new(), places: Arc::clone(places) }
    }

    /// Appends bytes, in the first directory that has room for them.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let amount = bytes.len() as u64;
        let first = self.pieces.last().map_or(0, |piece| piece.place);
        for place in (first..self.places.places.len()).chain(0..first) {
            if !self.places.take(place, amount) {
                continue;
            }
            match self.write(place, bytes) {
                Ok(()) => return Ok(()),
                Err(source) => {
                    self.places.give(place, amount);
                    if !matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
                        return Err(Error::Temporary { path: self.places.places[place].path.clone(), source });
                    }
                }
            }
        }
        Err(self.places.full(amount))
    }

    fn write(&mut self, place: usize, bytes: &[u8]) -> std::io::Result<()> {
        if self.pieces.last().is_none_or(|piece| piece.place != place) {
            let file = tempfile::tempfile_in(&self.places.places[place].path)?;
            self.pieces.push(Piece { place, file, length: 0 });
            self.places.files.fetch_add(1, Ordering::Relaxed);
        }
        let Some(piece) = self.pieces.last_mut() else { return Ok(()) };
        // What a full disk took of earlier bytes does not count.
        piece.file.seek(SeekFrom::Start(piece.length))?;
        piece.file.write_all(bytes)?;
        piece.length += bytes.len() as u64;
        Ok(())
    }

    /// How long it is.
    pub(crate) fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.length).sum()
    }

    /// Reads at a place, as much as the buffer takes or the piece there has; 0 at the end.
    pub(crate) fn read(&mut self, mut at: u64, into: &mut [u8]) -> Result<usize, Error> {
        let places = &self.places.places;
        for piece in &mut self.pieces {
            if at < piece.length {
                let amount = into.len().min((piece.length - at) as usize);
                let read = piece
                    .file
                    .seek(SeekFrom::Start(at))
                    .and_then(|_| std::io::Read::read_exact(&mut piece.file, &mut into[..amount]));
                read.map_err(|source| Error::Temporary { path: places[piece.place].path.clone(), source })?;
                return Ok(amount);
            }
            at -= piece.length;
        }
        Ok(0)
    }
}
