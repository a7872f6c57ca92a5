//! A disk with a bad place: the beginning of a file can be read, and what stands there can't. Nobody knows whether such a file is damaged.

#![cfg(unix)]
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use headwater_diskfaults::FileFault;
use rusqlite::{Connection, Error, ffi};

/// Where the bad place begins.
const BAD_FROM: i64 = 8192;

static METHODS: AtomicPtr<ffi::sqlite3_io_methods> = AtomicPtr::new(ptr::null_mut());

/// SQLite's own read, but for the bad place.
unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, into: *mut c_void, count: c_int, offset: i64) -> c_int {
    if offset + i64::from(count) > BAD_FROM {
        return ffi::SQLITE_IOERR_READ;
    }
    // SAFETY: the methods were those of this file, and are never freed.
    unsafe { (*METHODS.load(Ordering::SeqCst)).xRead.expect("a read")(file, into, count, offset) }
}

/// Opens a file as SQLite does; a database has a bad place.
unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's own way to files is never taken away, and a file that it has opened has methods.
    unsafe {
        let own = ffi::sqlite3_vfs_find(c"unix".as_ptr());
        let done = (*own).xOpen.expect("an open")(own, name, file, flags, out);
        if done == ffi::SQLITE_OK && flags & ffi::SQLITE_OPEN_MAIN_DB != 0 {
            METHODS.store((*file).pMethods.cast_mut(), Ordering::SeqCst);
            let mut methods = *(*file).pMethods;
            methods.xRead = Some(read);
            (*file).pMethods = Box::leak(Box::new(methods));
        }
        done
    }
}

/// From here on, each database that is opened has a bad place.
fn spoil() {
    // SAFETY: the way that is registered is a copy of SQLite's own but for its name and `xOpen`, and is never freed.
    unsafe {
        let mut way = *ffi::sqlite3_vfs_find(c"unix".as_ptr());
        way.zName = c"bad_place".as_ptr();
        way.pNext = ptr::null_mut();
        way.xOpen = Some(open);
        assert_eq!(ffi::sqlite3_vfs_register(Box::leak(Box::new(way)), 1), ffi::SQLITE_OK);
    }
}

#[test]
fn a_file_with_a_place_that_can_not_be_read_is_not_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.db");
    let connection = Connection::open(&path).expect("a file");
    connection
        .execute_batch("CREATE TABLE item (text TEXT); INSERT INTO item VALUES (hex(randomblob(20000)));")
        .expect("a table of some pages");
    connection.close().expect("closed");
    spoil();
    let error = Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), None);
    let fault = FileFault::of(&path, &error).expect("a fault");
    assert!(matches!(&fault, FileFault::Unchecked { why, .. } if why == "reads of it fail"), "{fault}");
}
