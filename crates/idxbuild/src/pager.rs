//! Pages as SQLite's pager has them: what was written in this transaction too. They go through its journal like any other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use crate::error::{Error, corrupt, sqlite};
use crate::file::ReadPages;
use crate::header::Layout;

/// A connection, for one thread at a time, and its pager, by the virtual table `sqlite_dbpage`.
pub(crate) struct Pager(Mutex<Connection>);

impl Pager {
    /// Takes a connection over.
    pub(crate) fn new(connection: Connection) -> Pager {
        Pager(Mutex::new(connection))
    }

    /// Whether this SQLite was built with what is needed.
    pub(crate) fn has_pages(&self) -> bool {
        let there = "SELECT 1 FROM pragma_module_list WHERE name = 'sqlite_dbpage'";
        self.connection().query_row(there, [], |_| Ok(())).is_ok()
    }

    /// The connection, while no other thread has it.
    pub(crate) fn connection(&self) -> MutexGuard<'_, Connection> {
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
pub(crate) struct PagerPages<'p> {
    /// The pager.
    pub(crate) pager: &'p Pager,
    /// The sizes as they are now.
    pub(crate) layout: Layout,
}

impl ReadPages for PagerPages<'_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn read(&self, first: u32, into: &mut [u8]) -> Result<(), Error> {
        self.pager.read(first, into, self.layout.page_size)
    }
}
