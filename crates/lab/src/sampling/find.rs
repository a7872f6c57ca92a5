//! Which processes are meant.

use std::path::Path;

use crate::harness::Failure;
use crate::target::{Session, Target, mariadb, postgres};

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
    let sql = match target {
        Target::Postgres(_) => postgres::PROCESS,
        Target::MariaDb(_) => mariadb::PROCESS,
        Target::Sqlite { .. } => return Ok(None),
    };
    let rows = session.rows(sql, 1).await?;
    let values: Vec<&str> = rows.iter().flatten().map(|(_, value)| value.as_str()).collect();
    let [process, start] = values[..] else { return Ok(None) };
    let Ok(start) = start.parse() else { return Ok(None) };
    if let Target::Postgres(_) = target {
        let Ok(pid) = process.parse() else { return Ok(None) };
        return Ok(super::system::parent_of(pid, start));
    }
    // The file may be on another machine, or not for our eyes; who listens on that port here is not always it either.
    let by_file = Find::PidFile(process.to_owned()).roots(Path::new(""));
    let by_port = |_| target.port().map_or(Ok(Vec::new()), |port| Find::Port(port).roots(Path::new("")));
    let found = by_file.or_else(by_port).unwrap_or_default();
    Ok(found.into_iter().find(|pid| super::system::began_at(*pid, start)))
}
