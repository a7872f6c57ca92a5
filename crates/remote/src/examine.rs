//! A remote's file looked at as a whole, without changing anything of it: for `headwater doctor`.

use std::path::Path;

use crate::error::{Error, While};
use crate::remote::Remote;
use crate::report::Status;

/// How many faults SQLite is asked for.
const FAULTS_MAX: u32 = 10;

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// What SQLite's `integrity_check` says is wrong with the file; nothing: it is sound.
    pub faults: Vec<String>,
    /// Tables whose change tracking is missing or changed: what is written to them now may never be sent.
    pub untracked: Vec<String>,
    /// How the remote stands.
    pub status: Status,
}

/// Looks at a remote's file. Reads all of it.
pub fn examine(path: impl AsRef<Path>) -> Result<Examination, Error> {
    let path = path.as_ref();
    look(path).map_err(|error| error.judged(path))
}

fn look(path: &Path) -> Result<Examination, Error> {
    let (remote, untracked) = Remote::open_to_read(path)?;
    let connection = &remote.database.connection;
    let said = connection.prepare(&format!("PRAGMA integrity_check({FAULTS_MAX})")).and_then(|mut check| {
        let lines = check.query_map([], |row| row.get::<_, String>(0))?;
        lines.collect::<Result<Vec<_>, _>>()
    });
    let faults = said.while_doing("checking the file")?.into_iter().filter(|line| line != "ok").collect();
    Ok(Examination { faults, untracked, status: remote.status()? })
}
