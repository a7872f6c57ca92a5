//! Which processes are meant.

use std::path::Path;

use crate::harness::Failure;
use crate::target::{Session, Target};

/// How a process is found; with all that it has started it counts as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Find {
    /// It listens on this port of TCP.
    Port(u16),
    /// Its ID is in this file.
    PidFile(String),
    /// Its command has this name; there may be several.
    Command(String),
}

impl std::fmt::Display for Find {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Find::Port(port) => write!(f, "a process that listens on port {port}"),
            Find::PidFile(file) => write!(f, "the process of {file}"),
            Find::Command(name) => write!(f, "a process whose command is {name:?}"),
        }
    }
}

impl Find {
    /// The IDs of the uppermost processes that are meant; an error says what was looked for and not found.
    pub(crate) fn roots(&self, folder: &Path) -> Result<Vec<i32>, String> {
        super::system::roots(self, folder)
    }
}

/// The root of a database's processes, if they are on this machine.
pub(crate) async fn database(target: &Target, session: &mut Session) -> Result<Option<i32>, Failure> {
    if target.is_blocking() {
        return Ok(None);
    }
    let sql = "SELECT pid, extract(epoch FROM backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    let rows = session.rows(sql, 1).await?;
    let values: Vec<&str> = rows.iter().flatten().map(|(_, value)| value.as_str()).collect();
    let [pid, start] = values[..] else { return Ok(None) };
    let (Ok(pid), Ok(start)) = (pid.parse(), start.parse()) else { return Ok(None) };
    Ok(super::system::parent_of(pid, start))
}
