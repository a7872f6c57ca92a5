//! Consolidated databases that are put back as they were.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Result;
use headwater_testkit::{DataCopy, Postgres};
use tempfile::TempDir;

use crate::{Central, Kind};

/// Where a consolidated database lies that can be put back.
pub enum Site {
    /// A file in a folder of its own.
    File(TempDir),
    /// A cluster of its own.
    Cluster(Postgres),
}

/// A [`Site`] as it was.
pub enum Backup {
    /// A file beside it.
    File(PathBuf),
    /// All of its files.
    Cluster(DataCopy),
}

impl Site {
    /// An empty database of this kind.
    pub fn new(kind: Kind) -> Result<(Site, Central)> {
        match kind {
            Kind::Sqlite => {
                let folder = tempfile::tempdir()?;
                let path = folder.path().join("central.db");
                Ok((Site::File(folder), Central::Sqlite(path)))
            }
            Kind::Postgres => {
                let cluster = Postgres::start()?;
                let url = cluster.create_database()?;
                Ok((Site::Cluster(cluster), Central::Postgres(url)))
            }
        }
    }

    /// Makes a backup.
    pub fn back_up(&self) -> Result<Backup> {
        Ok(match self {
            Site::File(folder) => Backup::File(back_up(&folder.path().join("central.db"))?),
            Site::Cluster(cluster) => Backup::Cluster(cluster.copy_data()?),
        })
    }

    /// Puts it into its place, while the server runs.
    pub fn put_back(&self, backup: &Backup) -> Result<()> {
        match (self, backup) {
            (Site::File(folder), Backup::File(backup)) => replace(&folder.path().join("central.db"), backup),
            (Site::Cluster(cluster), Backup::Cluster(copy)) => cluster.put_back(copy),
            _ => anyhow::bail!("the backup is of another kind of database"),
        }
    }
}

/// Copies a SQLite file as it is now.
pub fn back_up(path: &Path) -> Result<PathBuf> {
    let backup = path.with_extension("backup");
    let sql = format!("VACUUM INTO '{}'", backup.display());
    rusqlite::Connection::open(path)?.execute_batch(&sql)?;
    Ok(backup)
}

/// A file is moved into the place of another, whose write-ahead log goes.
pub fn replace(path: &Path, with: &Path) -> Result<()> {
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(std::fs::rename(with, path)?)
}

/// Copies a remote's file, as a person does who takes it to another machine: what lies beside it comes along.
pub fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let connection = rusqlite::Connection::open(from)?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    std::fs::copy(from, to)?;
    Ok(())
}
