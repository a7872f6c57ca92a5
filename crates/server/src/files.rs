//! Files that stay open: chunks of shared partitions, and ready files. So many may be.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::admission::{Counted, Gauge};

/// Where they are made, and how many are open.
#[derive(Debug)]
pub(crate) struct Files {
    folder: Option<PathBuf>,
    open: Gauge,
    open_max: AtomicUsize,
}

/// An open file, one of so many that may be.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    _open: Counted,
}

impl Files {
    /// `folder`: unset, the system's own.
    pub(crate) fn new(folder: Option<PathBuf>, open_max: usize) -> Arc<Files> {
        Arc::new(Files { folder, open: Gauge::default(), open_max: AtomicUsize::new(open_max) })
    }

    /// From now on so many may be open; those that are stay.
    pub(crate) fn set_open_max(&self, open_max: usize) {
        self.open_max.store(open_max, Ordering::Relaxed);
    }

    /// How many are open.
    pub(crate) fn open(&self) -> usize {
        self.open.count()
    }

    /// A temporary file without a name.
    pub(crate) fn create(&self) -> io::Result<OpenFile> {
        self.hold(|| match &self.folder {
            Some(folder) => tempfile::tempfile_in(folder),
            None => tempfile::tempfile(),
        })
    }

    /// Opens a file that is to stay open, or says that too many are.
    pub(crate) fn hold(&self, open: impl FnOnce() -> io::Result<File>) -> io::Result<OpenFile> {
        let open_max = self.open_max.load(Ordering::Relaxed);
        let place = self.open.try_enter(open_max).ok_or_else(|| {
            let text = format!("{open_max} files are open, more are not allowed (the process's limit of open files)");
            io::Error::new(io::ErrorKind::StorageFull, text)
        })?;
        Ok(OpenFile { file: open()?, _open: place })
    }
}

impl Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}
