//! Merging: many sorted runs as one, by a tree of losers (Knuth, The Art of Computer Programming 3, 5.4.1).

use std::sync::mpsc::Receiver;

use crate::block::{prefix, write_entry};
use crate::error::Error;
use crate::temporary::DiskRun;
use crate::varint;

/// Sorted keys, each with its length before it.
#[derive(Debug)]
pub(crate) enum Run {
    /// In memory.
    Memory(Vec<u8>),
    /// In temporary files.
    Disk(DiskRun),
}

impl Run {
    /// How many bytes it takes.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Run::Memory(bytes) => bytes.len() as u64,
            Run::Disk(run) => run.length(),
        }
    }

    /// Whether it is in temporary files.
    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self, Run::Disk(_))
    }

    /// What it takes in memory.
    pub(crate) fn in_memory(&self) -> usize {
        match self {
            Run::Memory(bytes) => bytes.len(),
            Run::Disk(_) => 0,
        }
    }
}

/// Where more of a run comes from.
enum More {
    Nothing,
    Disk { run: DiskRun, at: u64, buffer: usize },
    Thread(Receiver<Vec<u8>>),
}

/// A place in a run: its current key.
pub(crate) struct Cursor {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    more: More,
}

impl Cursor {
    /// Before the first key of a run, which is read through a buffer of so many bytes where it is on disk.
    pub(crate) fn new(run: Run, buffer: usize) -> Cursor {
        let (bytes, more) = match run {
            Run::Memory(bytes) => (bytes, More::Nothing),
            Run::Disk(run) => (Vec::new(), More::Disk { run, at: 0, buffer }),
        };
        Cursor { bytes, start: 0, end: 0, more }
    }

    /// Before the first key of those that another thread merges: whole keys at a time.
    pub(crate) fn of_thread(receiver: Receiver<Vec<u8>>) -> Cursor {
        Cursor { bytes: Vec::new(), start: 0, end: 0, more: More::Thread(receiver) }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Goes to the next key; false where there is none.
    #[inline]
    fn advance(&mut self) -> Result<bool, Error> {
        loop {
            let rest = &self.bytes[self.end..];
            if let Some((length, head)) = varint::read(rest)
                && length <= (rest.len() - head) as u64
            {
                self.start = self.end + head;
                self.end = self.start + length as usize;
                return Ok(true);
            }
            if !self.refill()? {
                return Ok(false);
            }
        }
    }

    #[cold]
    fn refill(&mut self) -> Result<bool, Error> {
        match &mut self.more {
            More::Nothing => Ok(false),
            More::Thread(receiver) => {
                self.bytes = receiver.recv().unwrap_or_default();
                self.end = 0;
                Ok(!self.bytes.is_empty())
            }
            More::Disk { run, at, buffer } => {
                self.bytes.drain(..self.end);
                self.end = 0;
                let kept = self.bytes.len();
                // A key longer than the buffer makes it grow.
                let amount = (*buffer).max(kept);
                self.bytes.resize(kept + amount, 0);
                let read = run.read(*at, &mut self.bytes[kept..])?;
                self.bytes.truncate(kept + read);
                *at += read as u64;
                Ok(read > 0)
            }
        }
    }
}

/// The keys of several runs in order.
pub(crate) struct Merge {
    cursors: Vec<Cursor>,
    /// The first bytes of each cursor's key.
    prefixes: Vec<u64>,
    ended: Vec<bool>,
    /// The winner, then the loser of each match.
    tree: Vec<usize>,
    has_begun: bool,
}

impl Merge {
    /// Before the first key.
    pub(crate) fn new(cursors: Vec<Cursor>) -> Merge {
        let count = cursors.len();
        Merge { cursors, prefixes: vec![0; count], ended: vec![false; count], tree: vec![0; count], has_begun: false }
    }

    /// The next key; `None` after the last one.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, Error> {
        if self.has_begun {
            let winner = self.tree[0];
            self.advance(winner)?;
            self.replay(winner);
        } else {
            self.begin()?;
        }
        let Some(&winner) = self.tree.first() else { return Ok(None) };
        Ok((!self.ended[winner]).then(|| self.cursors[winner].key()))
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.has_begun = true;
        let count = self.cursors.len();
        if count == 0 {
            // As if there were one run without keys.
            self.cursors.push(Cursor::new(Run::Memory(Vec::new()), 0));
            (self.prefixes, self.ended, self.tree) = (vec![0], vec![true], vec![0]);
            return Ok(());
        }
        for cursor in 0..count {
            self.advance(cursor)?;
        }
        // Each match from the leaves up; a node without a player yet lets the first one wait there.
        let mut waiting: Vec<Option<usize>> = vec![None; count];
        for cursor in 0..count {
            let mut player = cursor;
            let mut node = usize::midpoint(count, cursor);
            loop {
                if node == 0 {
                    self.tree[0] = player;
                    break;
                }
                let Some(other) = waiting[node].take() else {
                    waiting[node] = Some(player);
                    break;
                };
                let (winner, loser) = if self.is_before(other, player) { (other, player) } else { (player, other) };
                self.tree[node] = loser;
                player = winner;
                node /= 2;
            }
        }
        Ok(())
    }

    #[inline]
    fn advance(&mut self, cursor: usize) -> Result<(), Error> {
        if self.ended[cursor] {
            return Ok(());
        }
        if self.cursors[cursor].advance()? {
            self.prefixes[cursor] = prefix(self.cursors[cursor].key());
        } else {
            self.ended[cursor] = true;
        }
        Ok(())
    }

    #[inline]
    fn replay(&mut self, cursor: usize) {
        let mut player = cursor;
        let mut node = usize::midpoint(self.cursors.len(), cursor);
        while node > 0 {
            if self.is_before(self.tree[node], player) {
                std::mem::swap(&mut self.tree[node], &mut player);
            }
            node /= 2;
        }
        self.tree[0] = player;
    }

    #[inline]
    fn is_before(&self, a: usize, b: usize) -> bool {
        if self.ended[a] || self.ended[b] {
            return !self.ended[a];
        }
        match self.prefixes[a].cmp(&self.prefixes[b]) {
            std::cmp::Ordering::Equal => self.cursors[a].key() < self.cursors[b].key(),
            order => order.is_lt(),
        }
    }

    /// Gives all keys, in pieces of whole keys of about so many bytes.
    pub(crate) fn pieces(
        &mut self,
        size: usize,
        mut give: impl FnMut(Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut piece = Vec::with_capacity(size);
        while let Some(key) = self.next()? {
            if piece.len() + key.len() + 9 > size && !piece.is_empty() {
                give(std::mem::replace(&mut piece, Vec::with_capacity(size)))?;
            }
            write_entry(&mut piece, key);
        }
        if piece.is_empty() { Ok(()) } else { give(piece) }
    }
}
