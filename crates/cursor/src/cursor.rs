//! One cursor: rows in their order, and back over those that are kept.

use std::collections::VecDeque;
use std::sync::Arc;

use headwater_protocol::cursor::{Batch, BatchRows, Column};
use headwater_protocol::{Row, ValueRef};

use crate::Error;
use crate::connection::{Next, Options, Shared};

/// Rows of a query. Dropped, the query is ended in the database.
pub struct Cursor {
    shared: Arc<Shared>,
    number: u64,
    options: Options,
    columns: Option<Arc<[Column]>>,
    /// Messages that are kept, each with the number of its first row: the one that is read, those before it, and behind it those that were
    /// gone back over.
    kept: VecDeque<(u64, Batch)>,
    /// The message that is read, among them; and how far: bytes and rows.
    current: usize,
    place: (usize, u64),
    /// Bytes of the messages before it.
    bytes_behind: usize,
    /// Rows fetched, and of them those that were consumed.
    fetched: u64,
    consumed: u64,
    has_ended: bool,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("number", &self.number).field("row", &self.row()).finish_non_exhaustive()
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.shared.close(self.number);
    }
}

impl Cursor {
    pub(crate) fn new(shared: Arc<Shared>, number: u64, options: Options) -> Cursor {
        Cursor {
            shared,
            number,
            options,
            columns: None,
            kept: VecDeque::new(),
            current: 0,
            place: (0, 0),
            bytes_behind: 0,
            fetched: 0,
            consumed: 0,
            has_ended: false,
        }
    }

    /// Its columns; waits until they are known.
    pub fn columns(&mut self) -> Result<Arc<[Column]>, Error> {
        while self.columns.is_none() {
            self.fetch()?;
        }
        Ok(self.columns.clone().unwrap_or_default())
    }

    /// The number of the row that [`Cursor::next_row`] gives next, counted from 0.
    pub fn row(&self) -> u64 {
        self.kept.get(self.current).map_or(self.fetched, |(first, _)| first + self.place.1)
    }

    /// The next row; `None`: there are no more. After an error there are none.
    pub fn next_row(&mut self) -> Result<Option<Row>, Error> {
        let mut row = None;
        self.read(1, |values| {
            row = Some(values.iter().map(ValueRef::to_value).collect());
        })?;
        Ok(row)
    }

    /// Hands the next rows to `each`, those that are left of a message, without copying what is in them; whether there were any. Waits for a
    /// message where none is left.
    pub fn next_rows(&mut self, each: impl FnMut(&[ValueRef<'_>])) -> Result<bool, Error> {
        self.read(u64::MAX, each)
    }

    fn read(&mut self, most: u64, mut each: impl FnMut(&[ValueRef<'_>])) -> Result<bool, Error> {
        loop {
            if let Some((_, batch)) = self.kept.get(self.current) {
                let (mut rows, mut values, mut count) = (BatchRows::at(batch, self.place), Vec::new(), 0);
                while count < most && rows.next_row(&mut values).map_err(misled)? {
                    each(&values);
                    count += 1;
                }
                self.place = rows.place(batch);
                if count > 0 {
                    return Ok(true);
                }
                self.leave();
            } else if !self.fetch()? {
                return Ok(false);
            }
        }
    }

    /// The message that was read is at its end: the next one is read. What it took may come anew, once.
    fn leave(&mut self) {
        let Some((first, batch)) = self.kept.get(self.current) else { return };
        let (bytes, end) = (batch.bytes(), first + batch.len());
        (self.current, self.place) = (self.current + 1, (0, 0));
        self.bytes_behind += bytes;
        while self.bytes_behind > self.options.kept_bytes
            && let Some((_, oldest)) = self.kept.pop_front_if(|_| self.current > 0)
        {
            self.bytes_behind -= oldest.bytes();
            self.current -= 1;
        }
        // Not anew where it was gone back over.
        if end > self.consumed {
            self.consumed = end;
            self.shared.consumed(self.number, bytes);
        }
    }

    /// Takes what comes next; whether there is more.
    fn fetch(&mut self) -> Result<bool, Error> {
        if self.has_ended {
            return Ok(false);
        }
        match self.shared.next(self.number)? {
            Next::Columns(columns) => self.columns = Some(columns),
            Next::Batch(batch) => {
                let first = self.fetched;
                self.fetched += batch.len();
                self.kept.push_back((first, batch));
            }
            Next::End => self.has_ended = true,
        }
        Ok(true)
    }

    /// Goes to a row that is kept: back over rows that were read, or on again to the first that was not. Rows before that are kept up to
    /// [`Options::kept_bytes`], beside those of the message that is read.
    pub fn seek(&mut self, row: u64) -> Result<(), Error> {
        let first = self.kept.front().map_or(self.fetched, |(first, _)| *first);
        if row < first || row > self.fetched {
            return Err(Error::NotKept { row, first, last: self.fetched });
        }
        let holds = |(first, batch): &(u64, Batch)| (*first..first + batch.len()).contains(&row);
        self.current = self.kept.iter().position(holds).unwrap_or(self.kept.len());
        self.bytes_behind = self.kept.iter().take(self.current).map(|(_, batch)| batch.bytes()).sum();
        self.place = (0, 0);
        if let Some((first, batch)) = self.kept.get(self.current) {
            let (mut rows, mut values) = (batch.rows(), Vec::new());
            for _ in *first..row {
                rows.next_row(&mut values).map_err(misled)?;
            }
            self.place = rows.place(batch);
        }
        Ok(())
    }
}

fn misled(error: headwater_protocol::DecodeError) -> Error {
    Error::Misled(error.into())
}
