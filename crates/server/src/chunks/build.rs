//! A shared partition on its way into chunks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use headwater_consolidated::download::{Build, Built, Kept};
use headwater_protocol::chunk::{CHUNK_BYTES_TARGET, Key, digest, seal};
use headwater_protocol::message::{CHUNKS_MAX, ChunkRef, Snapshot, TableHeader};
use headwater_protocol::{Frame, Kind, ROW_BYTES_MAX};

use super::{Chunk, Chunks, Entry, Place, Stored};

/// Partitions of no more bytes come as ever: getting a chunk costs a request.
pub(super) const SMALL_BYTES_MAX: usize = 64 * 1024;

/// Frames of a partition being built.
#[derive(Debug)]
pub(super) struct Building {
    chunks: Arc<Chunks>,
    place: Place,
    key: Key,
    /// As long as they are few.
    small: Option<Vec<Frame>>,
    small_bytes: usize,
    /// TABLE, with which each chunk begins, and the table's name.
    head: Vec<u8>,
    table: String,
    /// The chunk being filled.
    plain: Vec<u8>,
    file: Option<Arc<Stored>>,
    sealed: Vec<(ChunkRef, u64)>,
    has_failed: bool,
    /// What is handed out when it is published.
    snapshot: Option<Snapshot>,
    /// It is known what becomes of the partition.
    is_settled: bool,
}

impl Building {
    pub(super) fn new(chunks: &Arc<Chunks>, place: Place) -> Building {
        // Three UUIDs have 366 random bits between them, from the system.
        let random = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4(), uuid::Uuid::new_v4()].map(uuid::Uuid::into_bytes);
        Building {
            chunks: Arc::clone(chunks),
            place,
            key: Key::new(digest(&random.concat())),
            small: Some(Vec::new()),
            small_bytes: 0,
            head: Vec::new(),
            table: String::new(),
            plain: Vec::new(),
            file: None,
            sealed: Vec::new(),
            has_failed: false,
            snapshot: None,
            is_settled: false,
        }
    }

    fn add(&mut self, frame: &Frame) {
        if frame.kind == Kind::Table {
            self.head = frame.to_bytes();
            let payload = frame.payload(ROW_BYTES_MAX);
            let table = payload.and_then(|payload| TableHeader::from_payload(&payload));
            self.table = table.map(|table| table.name).unwrap_or_default();
            return;
        }
        if self.plain.is_empty() {
            self.plain.extend_from_slice(&self.head);
        }
        frame.write(&mut self.plain);
        if self.plain.len() >= CHUNK_BYTES_TARGET {
            self.seal();
        }
    }

    fn seal(&mut self) {
        let plain = std::mem::take(&mut self.plain);
        if plain.is_empty() || self.has_failed {
            return;
        }
        let bytes = seal(&self.key, self.sealed.len() as u64, plain);
        let named = ChunkRef {
            id: uuid::Uuid::new_v4().into_bytes(),
            bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            digest: digest(&bytes),
        };
        let stored = self.store(&bytes).or_else(|error| {
            tracing::debug!(%error, "chunks that are not handed out any more make room");
            self.chunks.make_room();
            self.store(&bytes)
        });
        match stored {
            Ok(offset) if self.sealed.len() < CHUNKS_MAX => self.sealed.push((named, offset)),
            stored => {
                let error = stored.err().map_or_else(|| "it has too many chunks".to_owned(), |error| error.to_string());
                tracing::warn!(
                    error,
                    "a shared partition is not built: its rows come from the database for each remote"
                );
                self.has_failed = true;
                self.file = None;
            }
        }
    }

    fn store(&mut self, bytes: &[u8]) -> std::io::Result<u64> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(Arc::new(Stored::create(&self.chunks, &self.table)?)),
        };
        file.append(bytes)
    }

    /// Notes what becomes of the partition, and tells who waits.
    fn settle(&mut self, entry: Option<Entry>) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let mut state = self.chunks.lock();
        match entry {
            Some(entry) => drop(state.places.insert(self.place.clone(), entry)),
            None => drop(state.places.remove(&self.place)),
        }
        drop(state);
        self.chunks.ended.notify_all();
    }

    fn until(&self) -> Instant {
        Instant::now() + self.chunks.handed_out()
    }
}

impl Build for Building {
    fn push(&mut self, frame: Frame) {
        let Some(small) = &mut self.small else {
            if !self.has_failed {
                self.add(&frame);
            }
            return;
        };
        self.small_bytes += frame.wire_bytes();
        small.push(frame);
        if self.small_bytes > SMALL_BYTES_MAX {
            let frames = self.small.take().unwrap_or_default();
            for frame in &frames {
                self.add(frame);
            }
        }
    }

    fn finish(&mut self, rows: u64) -> Built {
        if let Some(frames) = self.small.take() {
            self.settle(Some(Entry::Nothing(self.until())));
            return Built::Small(frames);
        }
        self.seal();
        let Some(file) = self.file.take().filter(|_| !self.has_failed) else {
            self.settle(Some(Entry::Nothing(self.until())));
            return Built::Nothing;
        };
        let until = self.until() + self.chunks.handed_out();
        let mut state = self.chunks.lock();
        for (named, offset) in &self.sealed {
            let (file, ChunkRef { bytes, digest, .. }) = (Arc::clone(&file), *named);
            state.chunks.insert(named.id, Chunk { file, offset: *offset, bytes, digest, until });
        }
        drop(state);
        self.chunks.builds.fetch_add(1, Ordering::Relaxed);
        let snapshot = Snapshot {
            table: self.place.table,
            partition: self.place.partition.clone(),
            url: self.chunks.url(),
            key: self.key.clone(),
            rows,
            chunks: self.sealed.iter().map(|(named, _)| *named).collect(),
        };
        self.snapshot = Some(snapshot.clone());
        Built::Chunks(snapshot)
    }

    fn publish(mut self: Box<Self>, watermark: Vec<u8>, note: [u8; 16]) {
        let until = self.until();
        if let Some(snapshot) = self.snapshot.take() {
            let chunks = snapshot.chunks.len();
            tracing::info!(table = snapshot.table, rows = snapshot.rows, chunks, "a shared partition was built");
            self.settle(Some(Entry::Kept(Arc::new(Kept { snapshot, watermark, note }), until)));
        }
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        self.settle(None);
    }
}
