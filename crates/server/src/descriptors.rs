//! How many files the process may have open (`RLIMIT_NOFILE`), and how they are shared out, so that none is ever asked for in vain.
//!
//! | for | how many |
//! |---|---|
//! | the database | [`Config::database_connections`], and those of what is joined: one each on PostgreSQL, on SQLite up to four |
//! | the server itself, and who is turned away | [`OWN`] |
//! | connections of clients | `connections_max`, at most the rest but for its half, or for [`FILES_KEPT`] where that is fewer |
//! | chunks, ready files | what is left; where all are open, no more are made |
//!
//! What connections carry lies in the buffer pool, which has one file for all.

use headwater_consolidated::Dialect;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Config;

/// Connections that are answered with 503 at a time, as no more are taken.
pub(crate) const TURNED_AWAY_MAX: usize = 32;
/// What the server itself has open, with room to spare: standard streams, runtime, listener, the pool's overflow file, a ready file in the
/// making, a purge.
const OWN: usize = 32 + TURNED_AWAY_MAX;
/// Files that are kept from connections, where the limit leaves twice as many.
const FILES_KEPT: usize = 256;
/// Connections that are taken, and files that are opened, whatever the limit is.
const LEAST: usize = 4;

/// The most files that a connection to a database has open: SQLite's file, its log, its index, a temporary file.
pub(crate) const CONNECTION_FILES_MAX: usize = 4;

/// How many files so many connections to such a database have open.
pub(crate) fn database_files(dialect: Dialect, connections: usize) -> usize {
    match dialect {
        Dialect::Sqlite => CONNECTION_FILES_MAX * connections,
        Dialect::Postgres => connections,
    }
}

/// How many files this process may have open; `None`: any number.
pub(crate) fn open_files_limit() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// How the process's open files are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// How many the process may have open; `None`: any number.
    limit: Option<usize>,
    /// How many the options may come to want.
    needed: usize,
    /// How many the server must have.
    least: usize,
    /// Connections of clients: `connections_max`, or fewer.
    pub(crate) connections_max: usize,
    /// Files of chunks, and ready files.
    pub(crate) files_max: usize,
}

impl Descriptors {
    /// By this process's limit as it is now. `database_files`: those of its connections to the database.
    pub(crate) fn here(config: &Config, database_files: usize) -> Descriptors {
        Descriptors::within(open_files_limit(), config, database_files)
    }

    /// By this limit; `None`: any number.
    pub(crate) fn within(limit: Option<usize>, config: &Config, database_files: usize) -> Descriptors {
        let fixed = OWN + database_files;
        let least = fixed + 2 * LEAST;
        let needed = fixed + config.connections_max + FILES_KEPT.min(config.connections_max);
        let rest = limit.map_or(usize::MAX, |limit| limit.saturating_sub(fixed).max(2 * LEAST));
        let connections_max = config.connections_max.min(rest - (rest / 2).min(FILES_KEPT));
        Descriptors { limit, needed, least, connections_max, files_max: rest - connections_max }
    }

    /// The limit, and how many there must be at least, where it is so low that nothing works for long: a connection could not be accepted
    /// because the database's are open.
    pub(crate) fn too_few(&self) -> Option<(usize, usize)> {
        self.limit.filter(|limit| *limit < self.least).map(|limit| (limit, self.least))
    }

    /// Says in the log where the limit is too low, and what mends it.
    pub(crate) fn warn(&self, config: &Config) {
        let Some(limit) = self.limit.filter(|limit| *limit < self.needed) else { return };
        let Descriptors { needed, connections_max, files_max, .. } = *self;
        tracing::warn!(
            limit,
            needed,
            connections = connections_max,
            files = files_max,
            "the limit of open files is {limit}, and connections_max = {} with what they bring may want {needed}: {connections_max} \
             connections are taken at a time, others are told to come back; raise the limit (`ulimit -n {needed}`, \
             `LimitNOFILE={needed}` in the systemd unit), or lower connections_max",
            config.connections_max
        );
    }
}

/// Lets this process open as many files as the system allows it: raises the soft limit to the hard one. Where that is refused the limit
/// stays as it is, and [`crate::Server`] goes by it.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, ?limit, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limit: Option<usize>, config: &Config, dialect: Dialect) -> Descriptors {
        Descriptors::within(limit, config, database_files(dialect, config.database_connections()))
    }

    fn within(limit: usize, config: &Config) -> (usize, usize) {
        let Descriptors { connections_max, files_max, .. } = of(Some(limit), config, Dialect::Postgres);
        (connections_max, files_max)
    }

    #[test]
    fn a_limit_that_is_high_enough_changes_nothing() {
        let config = Config::default();
        let needed = of(None, &config, Dialect::Postgres).needed;
        assert_eq!(needed, 64 + 41 + 2_000 + 256);
        assert_eq!(of(None, &config, Dialect::Sqlite).connections_max, 2_000);
        assert_eq!(within(needed, &config), (2_000, 256));
    }

    #[test]
    fn what_a_low_limit_leaves_is_shared_between_connections_and_their_files() {
        let config = Config { workers: 4, ..Config::default() };
        let fixed = 64 + 5;
        assert_eq!(within(fixed + 101, &config), (51, 50));
        assert_eq!(within(fixed + 2_100, &config), (1_844, 256));
        assert_eq!(within(fixed + 4_001, &config), (2_000, 2_001));
        let many = Config { connections_max: 20_000, ..config.clone() };
        assert_eq!(within(fixed + 20_000, &many), (20_000 - FILES_KEPT, FILES_KEPT));
        let too_few = |limit| of(Some(limit), &config, Dialect::Postgres).too_few();
        assert_eq!(too_few(fixed + 8), None);
        assert_eq!(within(fixed + 8, &config), (LEAST, LEAST));
        assert_eq!(too_few(fixed + 7), Some((fixed + 7, fixed + 8)), "the server does not start");
        let sqlite = of(Some(fixed + 101), &config, Dialect::Sqlite);
        assert_eq!((sqlite.connections_max, sqlite.files_max), (43, 43));
    }
}
