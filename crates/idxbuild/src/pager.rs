//! Pages as SQLite's pager has them: what was written in this transaction too. They go through its journal like any other.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use crate::error::{Error, corrupt, sqlite};
use crate::file::ReadPages;
use crate::header::Layout;

/// A connection, for one thread at a time, and its pager, by the virtual table `sqlite_dbpage`.
pub(crate) struct Pager<'c>(Mutex<Held<'c>>);

/// A connection, ours or lent.
pub(crate) enum Held<'c> {
    Own(Connection),
    Lent(Lent<'c>),
}

/// A connection that goes from thread to thread, though its owner did not give it away.
pub(crate) struct Lent<'c>(&'c Connection);

// SAFETY: it lies in the pager's mutex, so one thread at a time uses it, which is what SQLite asks for; its owner has lent it for as long
// as the pager lives, and its owner's thread is in `build_within` all the while, where it goes through the mutex like the others.
#[allow(unsafe_code)]
unsafe impl Send for Lent<'_> {}

impl Deref for Held<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match self {
            Held::Own(connection) => connection,
            Held::Lent(lent) => lent.0,
        }
    }
}

impl<'c> Pager<'c> {
    /// Takes a connection over.
    pub(crate) fn new(connection: Connection) -> Pager<'static> {
        Pager(Mutex::new(Held::Own(connection)))
    }

    /// Uses one that is in a transaction, which goes on afterwards.
    pub(crate) fn lent(connection: &'c Connection) -> Pager<'c> {
        Pager(Mutex::new(Held::Lent(Lent(connection))))
    }

    /// Whether the connection was lent: then the file lacks what its transaction has written.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(*self.connection(), Held::Lent(_))
    }

    /// Whether this SQLite was built with what is needed.
    pub(crate) fn has_pages(&self) -> bool {
        let there = "SELECT 1 FROM pragma_module_list WHERE name = 'sqlite_dbpage'";
        self.connection().query_row(there, [], |_| Ok(())).is_ok()
    }

    /// The connection, while no other thread has it.
    pub(crate) fn connection(&self) -> MutexGuard<'_, Held<'c>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes pages; the file grows by those that are beyond its end.
    pub(crate) fn write(&self, pages: &[u32], bytes: &[u8], page_size: usize) -> Result<(), Error> {
        let failed = sqlite("writing a page of an index");
        let connection = self.connection();
        let mut insert =
            connection.prepare_cached("INSERT INTO sqlite_dbpage(pgno, data) VALUES (?1, ?2)").map_err(&failed)?;
        for (page, bytes) in pages.iter().zip(bytes.chunks(page_size)) {
            insert.execute((page, bytes)).map_err(&failed)?;
        }
        Ok(())
    }

    /// Has SQLite note a page in its journal.
    pub(crate) fn touch(&self, page: u32, page_size: usize) -> Result<(), Error> {
        let mut bytes = vec![0; page_size];
        self.read(page, &mut bytes, page_size)?;
        self.write(&[page], &bytes, page_size)
    }

    /// Makes SQLite forget what it knows of these pages beside their bytes (how many cells they have, and of which kind): it does when they are
    /// rolled back.
    pub(crate) fn forget(&self, pages: &[u32], page_size: usize) -> Result<(), Error> {
        let failed = sqlite("writing a page of an index");
        let run = |sql| self.connection().execute_batch(sql).map_err(&failed);
        run("SAVEPOINT headwater_forget")?;
        for &page in pages {
            self.write(&[page], &vec![0; page_size], page_size)?;
        }
        run("ROLLBACK TO headwater_forget; RELEASE headwater_forget")
    }

    /// Reads consecutive pages.
    pub(crate) fn read(&self, first: u32, into: &mut [u8], page_size: usize) -> Result<(), Error> {
        let failed = sqlite("reading a page");
        let connection = self.connection();
        let mut select =
            connection.prepare_cached("SELECT data FROM sqlite_dbpage WHERE pgno = ?1").map_err(&failed)?;
        for (page, into) in (first..).zip(into.chunks_mut(page_size)) {
            let mut rows = select.query([page]).map_err(&failed)?;
            let row = rows.next().map_err(&failed)?.ok_or_else(|| corrupt(page, "there is no such page"))?;
            match row.get_ref(0).map_err(&failed)?.as_blob() {
                Ok(bytes) if bytes.len() == into.len() => into.copy_from_slice(bytes),
                _ => return Err(corrupt(page, "a page of another size")),
            }
        }
        Ok(())
    }

    /// Makes SQLite read the size of the database from page 1 again: it does when a savepoint ends.
    pub(crate) fn note_size(&self) -> Result<(), Error> {
        let note = "SAVEPOINT headwater_size; RELEASE headwater_size";
        self.connection().execute_batch(note).map_err(sqlite("noting the size of the file"))
    }
}

/// The pager's pages, for whoever reads pages.
pub(crate) struct PagerPages<'p, 'c> {
    /// The pager.
    pub(crate) pager: &'p Pager<'c>,
    /// The sizes as they are now.
    pub(crate) layout: Layout,
}

impl ReadPages for PagerPages<'_, '_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn read(&self, first: u32, into: &mut [u8]) -> Result<(), Error> {
        self.pager.read(first, into, self.layout.page_size)
    }
}
