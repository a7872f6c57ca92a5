//! Staging a download: its frames wait until the last has come, in memory while they are few, else in the file. One that broke stays,
//! where its server keeps it: the rest is asked for by its ID and the bytes that are here. The fingerprint of the model under which it
//! was asked for stands before it: under another version of the model it means something else.
//!
//! Chunks that SNAPSHOT frames name stand below it, opened, by their place among all of the download: the first is frame -1. They are got when all
//! frames are in the file, one after the other, so that what is there is always a beginning of them; and are read where their SNAPSHOT stands.

use std::collections::VecDeque;

use headwater_protocol::chunk::{self, Key};
use headwater_protocol::message::{ChunkRef, Download, Snapshot};
use headwater_protocol::{Frame, Kind, Limits};
use rusqlite::{Connection, OptionalExtension, params};

use crate::database::Database;
use crate::error::{Error, While};
use crate::state::State;

/// How many bytes wait in memory before they are written to the file.
const MEMORY_BYTES_MAX: usize = 1 << 20;

/// How far into what is left we look how frames are packed.
const PACKING_FRAMES: i64 = 20;

/// The frames of a download that is coming.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    /// Frames that are not in the file.
    memory: Vec<Frame>,
    bytes: usize,
    /// Frames in the file.
    written: i64,
    /// What is to be got in chunks.
    snapshots: Vec<Snapshot>,
    /// How many chunks are in the file.
    chunks: u64,
    /// What DOWNLOAD says, once it has come.
    download: Option<Download>,
    /// Bytes that have come, from DOWNLOAD's first on.
    came: u64,
    /// Bytes of frames as they travel and uncompressed: of those that came now, and of some that were left.
    packing: (u64, u64),
    /// Of the model.
    fingerprint: u64,
    /// Whether what is in the file came under another version of the model.
    is_other: bool,
    /// What had been seen when it was asked for in this sync.
    asked: Option<Seen>,
}

/// Of what a remote has seen, as much as shows that some of it was forgotten since: another program opened the file, and made a table again
/// that the application had dropped. (Of what lies in the file, that drops it.)
#[derive(Clone, Debug)]
struct Seen {
    incarnation: [u8; 16],
    /// Tables of which something has been seen.
    tables: Vec<u32>,
}

impl Seen {
    fn read(connection: &Connection) -> Result<Seen, Error> {
        let read = || -> rusqlite::Result<Seen> {
            let incarnation = "SELECT \"incarnation\" FROM \"hw_state\"";
            let incarnation = connection.query_row(incarnation, [], |row| row.get(0))?;
            let mut tables = connection.prepare_cached("SELECT DISTINCT \"table\" FROM \"hw_watermark\"")?;
            let tables = tables.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
            Ok(Seen { incarnation, tables })
        };
        read().while_doing("reading what has been seen")
    }

    /// Whether some of it was forgotten by now. (A receipt may add to it.)
    fn is_forgotten(&self, connection: &Connection) -> Result<bool, Error> {
        let now = Seen::read(connection)?;
        Ok(now.incarnation != self.incarnation || self.tables.iter().any(|table| !now.tables.contains(table)))
    }
}

/// A chunk that is still to be got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lacking<'s> {
    /// Of the server or cache that has it; empty: where the remote syncs.
    pub(crate) url: &'s str,
    /// What opens it.
    pub(crate) key: &'s Key,
    /// Its place in its snapshot.
    pub(crate) place: u64,
    /// What it must be.
    pub(crate) named: ChunkRef,
}

/// Where the rest of a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    /// The download's ID.
    pub(crate) id: [u8; 16],
    /// Bytes that are staged, from DOWNLOAD's first on.
    pub(crate) offset: u64,
}

impl Stage {
    /// For a download under the model with this fingerprint.
    pub(crate) fn new(fingerprint: u64) -> Stage {
        Stage { fingerprint, ..Stage::default() }
    }

    /// What a sync before left in the file.
    pub(crate) fn left(connection: &Connection, fingerprint: u64) -> Result<Stage, Error> {
        let count = "SELECT coalesce(max(\"frame\"), 0) FROM \"hw_staged\"";
        let written = connection.query_row(count, [], |row| row.get(0)).while_doing("looking for a staged download")?;
        let model = "SELECT \"bytes\" FROM \"hw_staged\" WHERE \"frame\" = 0";
        let model: Option<Vec<u8>> = connection
            .query_row(model, [], |row| row.get(0))
            .optional()
            .while_doing("looking for a staged download")?;
        if written > 0 && model.as_deref() != Some(&fingerprint.to_be_bytes()[..]) {
            return Ok(Stage { written, is_other: true, ..Stage::new(fingerprint) });
        }
        // WELCOME is the first.
        let second = if written > 1 { read(connection, 2)? } else { None };
        let download = second.filter(|frame| frame.kind == Kind::Download).as_ref().map(download_of).transpose()?;
        let came = if download.is_some() { bytes(connection)? } else { 0 };
        let packing = if download.is_some() { packing(connection)? } else { (0, 0) };
        let (snapshots, chunks) = (snapshots(connection)?, chunks(connection)?);
        Ok(Stage { written, snapshots, chunks, download, came, packing, ..Stage::new(fingerprint) })
    }

    /// Notes that a download is asked for, or that all that has been seen is forgotten for the one that comes.
    pub(crate) fn ask(&mut self, connection: &Connection) -> Result<(), Error> {
        self.asked = Some(Seen::read(connection)?);
        Ok(())
    }

    /// Takes what is staged out.
    pub(crate) fn take(&mut self) -> Stage {
        let next = Stage::new(self.fingerprint);
        std::mem::replace(self, next)
    }

    /// Whether what is in the file came under another version of the model.
    pub(crate) fn is_other(&self) -> bool {
        self.is_other
    }

    /// The download that is staged, if the rest of it is to be had.
    pub(crate) fn rest(&self) -> Option<Rest> {
        let download = self.download.filter(|download| download.resumable_s > 0)?;
        Some(Rest { id: download.id, offset: self.came })
    }

    /// What DOWNLOAD says, and how many bytes have come from its first on; `None` as long as it has not.
    pub(crate) fn download(&self) -> Option<(Download, u64)> {
        self.download.map(|download| (download, self.came))
    }

    /// Bytes of it that lie in the file, frames alone.
    pub(crate) fn file_bytes(&self) -> u64 {
        if self.written == 0 { 0 } else { self.came.saturating_sub(self.bytes as u64) }
    }

    /// Bytes of all chunks that it names.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.snapshots.iter().flat_map(|snapshot| &snapshot.chunks).map(|chunk| u64::from(chunk.bytes)).sum()
    }

    /// The next chunk that it lacks.
    pub(crate) fn lacking(&self) -> Option<Lacking<'_>> {
        let mut before = self.chunks;
        for Snapshot { url, key, chunks, .. } in &self.snapshots {
            match usize::try_from(before).ok().and_then(|place| chunks.get(place)) {
                Some(named) => return Some(Lacking { url, key, place: before, named: *named }),
                None => before = before.saturating_sub(chunks.len() as u64),
            }
        }
        None
    }

    /// Puts the next chunk, opened, into the file.
    pub(crate) fn put_chunk(&mut self, database: &Database, opened: &[u8]) -> Result<(), Error> {
        let number = -(self.chunks as i64 + 1);
        database.write_lazily("staging a chunk", |connection| {
            let sql = "INSERT INTO \"hw_staged\" (\"frame\", \"bytes\") VALUES (?, ?)";
            let mut insert = connection.prepare_cached(sql).while_doing("staging a chunk")?;
            insert.execute(params![number, opened]).while_doing("staging a chunk")
        })?;
        self.chunks += 1;
        Ok(())
    }

    /// About how many bytes so many bytes of frames are uncompressed, by those that have come.
    pub(crate) fn plain_bytes(&self, bytes: u64) -> u64 {
        let (wire, plain) = self.packing;
        let bytes = u128::from(bytes) * u128::from(plain.max(wire)) / u128::from(wire.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.written == 0 && self.memory.is_empty()
    }

    /// Adds a frame; whether they are now so many that they belong into the file ([`Stage::spill`]).
    pub(crate) fn push(&mut self, frame: Frame) -> Result<bool, Error> {
        if frame.kind == Kind::Download {
            self.download = Some(download_of(&frame)?);
        }
        if frame.kind == Kind::Snapshot {
            self.snapshots.push(snapshot_of(&frame)?);
        }
        if self.download.is_some() {
            self.came += frame.wire_bytes() as u64;
        }
        self.bytes += frame.wire_bytes();
        self.packing.0 += frame.wire_bytes() as u64;
        self.packing.1 += frame.plain_bytes() as u64;
        self.memory.push(frame);
        Ok(self.bytes >= MEMORY_BYTES_MAX)
    }

    /// Puts the frames into the file.
    pub(crate) fn spill(&mut self, database: &Database) -> Result<(), Error> {
        self.write(database, false)
    }

    /// Says that all frames have come. Few frames stay in memory: they come again after a crash. Not where chunks are to be put beside them.
    pub(crate) fn complete(&mut self, database: &Database) -> Result<(), Error> {
        if self.written == 0 && self.snapshots.is_empty() { Ok(()) } else { self.write(database, true) }
    }

    /// The sync ends before all frames have come: what can be resumed is kept for the next.
    pub(crate) fn keep(&mut self, database: &Database) -> Result<(), Error> {
        if self.rest().is_none() || self.memory.is_empty() { Ok(()) } else { self.write(database, false) }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, database: &Database) -> Result<(), Error> {
        let written = self.take().written;
        if written == 0 {
            return Ok(());
        }
        database.write("dropping a staged download", |connection| {
            connection.execute("DELETE FROM \"hw_staged\"", []).while_doing("dropping a staged download")?;
            State::set_staged(connection, false)
        })
    }

    fn write(&mut self, database: &Database, is_whole: bool) -> Result<(), Error> {
        database.write_lazily("staging a download", |connection| {
            let sql = "INSERT INTO \"hw_staged\" (\"frame\", \"bytes\") VALUES (?, ?)";
            let mut insert = connection.prepare_cached(sql).while_doing("staging a download")?;
            if self.written == 0 {
                insert.execute(params![0, self.fingerprint.to_be_bytes()]).while_doing("staging a download")?;
            }
            for (frame, number) in self.memory.iter().zip(self.written + 1..) {
                insert.execute(params![number, frame.to_bytes()]).while_doing("staging a download")?;
            }
            State::set_staged(connection, is_whole)
        })?;
        self.written += self.memory.len() as i64;
        self.memory.clear();
        self.bytes = 0;
        Ok(())
    }

    /// The frames, one after the other. Those in the file are deleted there as they are read, so that the rows made of them take
    /// their place; all within the transaction of `connection`. [`Error::Unexpected`]: what had been seen when they were asked for was forgotten
    /// since, so that they are not all that is missing.
    pub(crate) fn frames(&self) -> impl FnMut(&Connection) -> Result<Option<Frame>, Error> {
        self.frames_by(take)
    }

    /// The same to look at them: they stay.
    pub(crate) fn look(&self) -> impl FnMut(&Connection) -> Result<Option<Frame>, Error> {
        self.frames_by(expect_bytes)
    }

    fn frames_by(&self, get: Get) -> impl FnMut(&Connection) -> Result<Option<Frame>, Error> {
        let (written, mut next) = (self.written, 1);
        let (mut memory, mut asked) = (self.memory.iter(), self.asked.as_ref());
        let mut chunks = Chunks { get, read: 0, left: 0, frames: VecDeque::new() };
        move |connection| {
            if let Some(asked) = asked.take()
                && asked.is_forgotten(connection)?
            {
                return Err(Error::Unexpected {
                    what: "a table was dropped while the download was on its way".to_owned(),
                });
            }
            if let Some(frame) = chunks.next(connection)? {
                return Ok(Some(frame));
            }
            if next > written {
                return Ok(memory.next().cloned());
            }
            next += 1;
            let frame = frame_of(get(connection, next - 1)?, next - 1)?;
            if frame.kind == Kind::Snapshot {
                chunks.left = snapshot_of(&frame)?.chunks.len();
            }
            Ok(Some(frame))
        }
    }
}

/// Frames out of the chunks of the SNAPSHOT that was read last.
struct Chunks {
    get: Get,
    /// How many chunks were read, and how many of this SNAPSHOT are still to be.
    read: i64,
    left: usize,
    frames: VecDeque<Frame>,
}

impl Chunks {
    fn next(&mut self, connection: &Connection) -> Result<Option<Frame>, Error> {
        while self.frames.is_empty() && self.left > 0 {
            self.read += 1;
            self.left -= 1;
            self.frames = chunk::frames(&(self.get)(connection, -self.read)?)?.into();
        }
        Ok(self.frames.pop_front())
    }
}

fn snapshot_of(frame: &Frame) -> Result<Snapshot, Error> {
    Ok(Snapshot::from_payload(&frame.payload(Limits::ANSWER.frame_bytes_max)?)?)
}

/// What the frames in the file say that is to be got in chunks.
fn snapshots(connection: &Connection) -> Result<Vec<Snapshot>, Error> {
    let find = || -> rusqlite::Result<Vec<i64>> {
        let kind = Kind::Snapshot as u8;
        let sql = "SELECT \"frame\" FROM \"hw_staged\" WHERE \"frame\" > 0 AND substr(\"bytes\", 5, 1) = ? ORDER BY \"frame\"";
        connection.prepare(sql)?.query_map([[kind]], |row| row.get(0))?.collect()
    };
    let mut found = Vec::new();
    for number in find().while_doing("looking for staged chunks")? {
        found.extend(read(connection, number)?.as_ref().map(snapshot_of).transpose()?);
    }
    Ok(found)
}

/// How many chunks are in the file.
fn chunks(connection: &Connection) -> Result<u64, Error> {
    let sql = "SELECT count(*) FROM \"hw_staged\" WHERE \"frame\" < 0";
    let count = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).while_doing("looking for staged chunks")?;
    Ok(count as u64)
}

fn download_of(frame: &Frame) -> Result<Download, Error> {
    Ok(Download::from_payload(&frame.payload(Limits::ANSWER.frame_bytes_max)?)?)
}

/// Bytes of the frames in the file, WELCOME aside.
fn bytes(connection: &Connection) -> Result<u64, Error> {
    let sql = "SELECT coalesce(sum(length(\"bytes\")), 0) FROM \"hw_staged\" WHERE \"frame\" > 1";
    let bytes = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).while_doing("measuring a staged download")?;
    Ok(bytes as u64)
}

/// How some of them are packed.
fn packing(connection: &Connection) -> Result<(u64, u64), Error> {
    let mut packing = (0, 0);
    for number in 3..=PACKING_FRAMES {
        let Some(frame) = read(connection, number)? else { break };
        packing = (packing.0 + frame.wire_bytes() as u64, packing.1 + frame.plain_bytes() as u64);
    }
    Ok(packing)
}

/// How a staged frame is got out of the file.
type Get = fn(&Connection, i64) -> Result<Vec<u8>, Error>;

fn expect_bytes(connection: &Connection, number: i64) -> Result<Vec<u8>, Error> {
    read_bytes(connection, number)?.ok_or_else(|| Error::damaged(format!("staged frame {number} is missing")))
}

fn take(connection: &Connection, number: i64) -> Result<Vec<u8>, Error> {
    let bytes = expect_bytes(connection, number)?;
    let mut delete = connection
        .prepare_cached("DELETE FROM \"hw_staged\" WHERE \"frame\" = ?")
        .while_doing("reading a staged frame")?;
    delete.execute([number]).while_doing("reading a staged frame")?;
    Ok(bytes)
}

fn read(connection: &Connection, number: i64) -> Result<Option<Frame>, Error> {
    read_bytes(connection, number)?.map(|bytes| frame_of(bytes, number)).transpose()
}

fn read_bytes(connection: &Connection, number: i64) -> Result<Option<Vec<u8>>, Error> {
    let mut select = connection
        .prepare_cached("SELECT \"bytes\" FROM \"hw_staged\" WHERE \"frame\" = ?")
        .while_doing("reading a staged frame")?;
    select.query_row([number], |row| row.get(0)).optional().while_doing("reading a staged frame")
}

fn frame_of(bytes: Vec<u8>, number: i64) -> Result<Frame, Error> {
    Frame::from_bytes(bytes).map_err(|error| Error::damaged(format!("staged frame {number}: {error}")))
}
