//! Files that stay open: chunks of shared partitions, and ready files. So many may be.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use crate::admission::{Counted, Gauge};

/// Where they are made, and how many are open.
#[derive(Debug)]
pub(crate) struct Files {
    folder: Option<PathBuf>,
    open: Gauge,
    open_max: usize,
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
        Arc::new(Files { folder, open: Gauge::default(), open_max })
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
        let place = self.open.try_enter(self.open_max).ok_or_else(|| {
            let text =
                format!("{} files are open, more are not allowed (the process's limit of open files)", self.open_max);
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
