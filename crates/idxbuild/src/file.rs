//! Pages of the database file, read by several threads at once through the file that SQLite itself has open.
//!
//! A descriptor of our own would not do: closing it would drop the locks that SQLite holds (fcntl(2): "as soon as a process closes any
//! file descriptor referring to a file, it loses its locks on it").

use std::ffi::c_void;
use std::marker::PhantomData;

use rusqlite::ffi;

use crate::error::{Error, corrupt};
use crate::header::Layout;
use crate::pager::Pager;

/// What gives pages: the file during the scan, the pager for what has been written.
pub(crate) trait ReadPages: Sync {
    /// The size of its pages, and how many there are.
    fn layout(&self) -> &Layout;

    /// Reads as many pages as the buffer takes, the first of this number.
    fn read(&self, first: u32, into: &mut [u8]) -> Result<(), Error>;
}

/// The main file of a pager's connection, as it lies on the disk; it borrows the pager.
pub(crate) struct MainFile<'p> {
    file: *mut ffi::sqlite3_file,
    layout: Layout,
    pager: PhantomData<&'p ()>,
}

// SAFETY: the one thing done with the pointer is `xRead`, which is pread(2) with a place of its own (or, on other systems, its
// equivalent); SQLite's own threads and connections share files in the same way. No memory map is in use: `mmap_size` is 0.
#[allow(unsafe_code)]
unsafe impl Send for MainFile<'_> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for MainFile<'_> {}

impl<'p> MainFile<'p> {
    /// The file of the main database. It lives as long as the connection, which the pager has.
    #[allow(unsafe_code)]
    pub(crate) fn of(pager: &'p Pager<'_>, layout: Layout) -> Result<MainFile<'p>, Error> {
        let connection = pager.connection();
        let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
        // SAFETY: the handle is that of an open connection, the name ends in a NUL, and SQLITE_FCNTL_FILE_POINTER writes one pointer.
        let code = unsafe {
            ffi::sqlite3_file_control(
                connection.handle(),
                c"main".as_ptr(),
                ffi::SQLITE_FCNTL_FILE_POINTER,
                (&raw mut file).cast::<c_void>(),
            )
        };
        if code != ffi::SQLITE_OK || file.is_null() {
            return Err(failed(code));
        }
        Ok(MainFile { file, layout, pager: PhantomData })
    }
}

impl ReadPages for MainFile<'_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    #[allow(unsafe_code)]
    fn read(&self, first: u32, into: &mut [u8]) -> Result<(), Error> {
        if first == 0 || into.len() > i32::MAX as usize {
            return Err(corrupt(first, "no such page"));
        }
        let place = i64::from(first - 1) * self.layout.page_size as i64;
        // SAFETY: the file is open (its connection is borrowed), its methods are SQLite's, and the buffer is as long as said.
        let code = unsafe {
            let methods = (*self.file).pMethods;
            let read = methods.as_ref().and_then(|methods| methods.xRead);
            read.map_or(ffi::SQLITE_IOERR, |read| {
                read(self.file, into.as_mut_ptr().cast::<c_void>(), into.len() as i32, place)
            })
        };
        match code {
            ffi::SQLITE_OK => Ok(()),
            ffi::SQLITE_IOERR_SHORT_READ => Err(corrupt(first, "the file ends before this page does")),
            _ => Err(failed(code)),
        }
    }
}

fn failed(code: i32) -> Error {
    Error::Sqlite { doing: "reading the file", source: rusqlite::Error::SqliteFailure(ffi::Error::new(code), None) }
}
