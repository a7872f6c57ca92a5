//! Every limit of the server, in one place: the `[server]` table of headwater.toml.
//!
//! | what is full | what happens |
//! |---|---|
//! | `connections_max`, or the process's limit of open files | a new connection is answered by 503 with `Retry-After`, and closed; beyond 32 of those, closed at once |
//! | the limit of open files, by chunks and ready files | those are not made |
//! | `receiving_max`, `backlog` | 503 with `Retry-After` and an ERROR frame `overloaded`, judged from the request's head |
//! | `frame_bytes_max`, by the large frames being worked on | the next waits for its turn, as for a worker |
//! | `upload_bytes_max`, `upload_frames_max`, `frame_bytes_max` | 413 and `too_large`, before anything is reserved |
//! | `spool_memory_bytes`, or the [pool's](headwater_bufferpool) memory | the spool goes on in the pool's overflow file |
//! | that file (`[pool] overflow_bytes_max`), or the disk | the sync that needs more ends with `overloaded` |
//! | `piece_bytes` | that piece is refused: 413 and `too_large` |
//! | `tickets_max`, `tickets_per_user_max`, `tickets_bytes_max` | that upload in pieces is told `overloaded`; what has come of it stays |
//! | `kept_downloads_max`, `kept_bytes_max` | the download that was left first can't be resumed any more |
//! | `shared_bytes_max` | chunks that are not handed out any more go; then that partition is read for each remote |
//! | `ready_bytes_max` | the ready file that was given longest ago goes; new remotes take the ordinary way |
//! | `password_checks_waiting` | that login is told `overloaded` |
//! | a time | see each; everything that the request held is freed |
//!
//! Times are in milliseconds, sizes in bytes. Options that are left out have their defaults:
//!
//! ```
//! let config: headwater_server::Config = serde_json::from_str(r#"{"workers": 16, "uploaders": 8}"#).unwrap();
//! assert!(config.validate().is_ok());
//! assert_eq!(config.backlog, headwater_server::Config::default().backlog);
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use headwater_access::{JwtSettings, KeySource};
use headwater_protocol::Limits;
use headwater_protocol::message::CHUNK_URL_BYTES_MAX;
use headwater_protocol::packer::OutOfRange;
use serde::Deserialize;
use thiserror::Error;

use crate::packing::FramePacking;
use crate::places::{lane, workers_within};

/// The server's options.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where to listen. Port 0: any free one.
    pub listen: SocketAddr,
    /// PEM file with the certificate chain; with `tls_key` it turns TLS on.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    pub tls_key: Option<PathBuf>,

    /// Syncs that use the consolidated database at a time. Depends on the database alone: clients are never waited for. 0: as many as the
    /// database is found to take without a queue of its own; small syncs may be up to a quarter more.
    pub workers: usize,
    /// Of them, those that may apply an upload; as many as there are workers where this is more. 0: as many as are found to be right.
    pub uploaders: usize,
    /// Where the number of workers is found: not more than that. Servers on one PostgreSQL have fewer, so that all together leave a
    /// fifth of its `max_connections` to others.
    pub workers_max: usize,
    /// Syncs received whole that may wait for a worker before new ones are refused; 0: a sync is refused at once when no worker is
    /// free. Those that were being received by then still wait.
    pub backlog: usize,
    /// Syncs whose requests are still arriving. 0: as many as connections may be: a slow line takes nobody else's place.
    pub receiving_max: usize,
    /// Connections of clients. Fewer where the process may not open as many files, which the log says.
    pub connections_max: usize,
    /// Connections of the consolidated database; 0: one for each worker that there may be, and one more, which reads accounts and answers
    /// `/ready`.
    pub database_connections: usize,

    /// Bytes of one upload, uncompressed or as it travels, whichever is more.
    pub upload_bytes_max: u64,
    /// Frames of one upload.
    pub upload_frames_max: u64,
    /// Bytes of one frame that a remote sends, uncompressed or as it travels: a change has to fit, with the row as it was and as it is.
    /// Within a request 16 MiB at most, whatever is set; larger ones come in pieces. Also the bytes of all large frames (above
    /// 4 MiB) that are worked on at a time.
    pub frame_bytes_max: usize,
    /// Rows that are judged and written by one statement.
    pub batch_rows: usize,

    /// Bytes of one upload or download in the pool's memory (`[pool]`); beyond, it goes on in the pool's overflow file.
    pub spool_memory_bytes: u64,
    /// Where temporary files go, the overflow file too unless `[pool]` says otherwise; unset: the system's own place (`TMPDIR`). A place on
    /// disk keeps memory free.
    pub spool_folder: Option<PathBuf>,

    /// Bytes of one piece of an upload that comes in pieces: as many as proxies let through.
    pub piece_bytes: u64,
    /// Uploads in pieces that may be on their way.
    pub tickets_max: usize,
    /// Of them, those of one user.
    pub tickets_per_user_max: usize,
    /// Bytes of all of them.
    pub tickets_bytes_max: u64,
    /// How long an upload in pieces waits for its next piece, or for its sync.
    pub ticket_ms: u64,
    /// How long a download whose client has gone can be resumed; 0: not at all. Those of less than 64 KiB always come again.
    pub kept_ms: u64,
    /// Downloads that are kept for clients that have gone.
    pub kept_downloads_max: usize,
    /// Bytes of them; a larger download can't be resumed.
    pub kept_bytes_max: u64,

    /// For how long a shared partition that was built is handed out; its chunks are there for twice as long.
    pub shared_ms: u64,
    /// Bytes of all chunks, on disk (`spool_folder`).
    pub shared_bytes_max: u64,
    /// How long a sync waits for a shared partition that another builds, before it reads it itself.
    pub shared_wait_ms_max: u64,
    /// Where remotes get chunks, if not where they sync: the address of a cache or CDN in front of this server.
    pub chunk_url: Option<String>,
    /// Bytes of the ready files that are kept for new remotes, on disk (`spool_folder`); 0: none are made. A larger file is not kept.
    pub ready_bytes_max: u64,
    /// Downloads of fewer bytes of frames are not worth a ready file.
    pub ready_bytes_min: u64,
    /// How long a ready file is given to new remotes, which download what has changed since. As long it is remembered who asked for one: it
    /// is made when a second remote wants the same partitions.
    pub ready_ms_max: u64,

    /// How often a waiting client is told that the server still works.
    pub heartbeat_ms: u64,
    /// How long a client may take for TLS and for a request's head; idle connections are closed after it too.
    pub head_ms_max: u64,
    /// How long a client may neither send nor take a byte that the server waits for.
    pub idle_ms_max: u64,
    /// After how long without any traffic a connection is probed (TCP keep-alive).
    pub keep_alive_ms: u64,
    /// How long a sync may wait for a worker.
    pub wait_ms_max: u64,
    /// How long to wait for a connection of the database.
    pub connect_ms_max: u64,
    /// How long a commit may wait for a synchronous standby (PostgreSQL) before the sync leaves it. From then on uploads are refused
    /// until commits end again.
    pub commit_wait_ms: u64,
    /// How long a large download may take to find out how large it is, before it begins. 0: it doesn't try.
    pub estimate_ms_max: u64,
    /// How often a part of a sync that the database could not do now is tried again.
    pub retries: u32,
    /// The wait before the first of them; it doubles each time.
    pub retry_ms: u64,
    /// How often time and snapshot are noted in the database.
    pub note_ms: u64,
    /// After how many days changes are purged from the side tables: a remote that has not synced for longer starts afresh. 0: never.
    pub purge_days: u64,
    /// How long running syncs may take to end when the server is asked to stop.
    pub shutdown_ms_max: u64,

    /// How long a token from `/v1/token` is good.
    pub token_ms: u64,
    /// Password checks at a time; each takes a core for about 20 ms, and 19 MiB.
    pub password_checks: usize,
    /// Password checks that wait.
    pub password_checks_waiting: usize,
    /// How long the server trusts what it read of an account: a disabled user may come in as long.
    pub account_cache_ms: u64,
    /// File with the key of an identity provider's tokens: a secret for HS256, or a public key in PEM.
    pub jwt_key_file: Option<PathBuf>,
    /// File with the keys of an identity provider, a JWK Set; instead of `jwt_key_file`.
    pub jwks_file: Option<PathBuf>,
    /// What such a token's `aud` must hold; unset: tokens with an `aud` are refused.
    pub jwt_audience: Option<String>,
    /// What such a token's `iss` must be; unset: anything.
    pub jwt_issuer: Option<String>,
    /// The claim of such a token that names the user.
    pub jwt_user_claim: String,

    /// How full the frames of downloads get.
    pub packing: FramePacking,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 7340)),
            tls_certificate: None,
            tls_key: None,
            workers: 0,
            uploaders: 0,
            workers_max: 32,
            backlog: 200,
            receiving_max: 0,
            connections_max: 2_000,
            database_connections: 0,
            upload_bytes_max: Limits::REQUEST.total_bytes_max,
            upload_frames_max: Limits::REQUEST.frames_max,
            frame_bytes_max: Limits::PIECES.frame_bytes_max,
            batch_rows: 2_000,
            spool_memory_bytes: 1 << 20,
            spool_folder: None,
            piece_bytes: 1_000_000,
            tickets_max: 1_000,
            tickets_per_user_max: 100,
            tickets_bytes_max: 16 << 30,
            ticket_ms: 600_000,
            kept_ms: 120_000,
            kept_downloads_max: 1_000,
            kept_bytes_max: 4 << 30,
            shared_ms: 600_000,
            shared_bytes_max: 4 << 30,
            shared_wait_ms_max: 10_000,
            chunk_url: None,
            ready_bytes_max: 1 << 30,
            ready_bytes_min: 256 << 10,
            ready_ms_max: 3_600_000,
            heartbeat_ms: 5_000,
            head_ms_max: 20_000,
            idle_ms_max: 60_000,
            keep_alive_ms: 30_000,
            wait_ms_max: 300_000,
            connect_ms_max: 10_000,
            commit_wait_ms: 10_000,
            estimate_ms_max: 2_000,
            retries: 4,
            retry_ms: 50,
            note_ms: 300_000,
            purge_days: 30,
            shutdown_ms_max: 30_000,
            token_ms: 900_000,
            password_checks: 2,
            password_checks_waiting: 100,
            account_cache_ms: 5_000,
            jwt_key_file: None,
            jwks_file: None,
            jwt_audience: None,
            jwt_issuer: None,
            jwt_user_claim: "sub".into(),
            packing: FramePacking::default(),
        }
    }
}

/// An option that can't be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A number out of its range.
    #[error("[server] {option} is {actual}, expected {expected}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        actual: u64,
        /// What it may be.
        expected: String,
    },
    /// One of the two TLS files without the other.
    #[error("[server] {missing} is not set, expected beside {given}: TLS needs both")]
    HalfTls {
        /// The option that is set.
        given: &'static str,
        /// The option that is not.
        missing: &'static str,
    },
    /// Options that say where the same thing is twice, or how without where.
    #[error("[server] {fault}")]
    Jwt {
        /// What is wrong, and what is expected.
        fault: String,
    },
    /// An address that is none.
    #[error(
        "[server] chunk_url is {actual:?}, expected http://HOST or https://HOST, of at most {CHUNK_URL_BYTES_MAX} bytes"
    )]
    ChunkUrl {
        /// What is set.
        actual: String,
    },
    /// How full frames get.
    #[error("[server.packing] {0}")]
    Packing(#[from] OutOfRange),
    /// A folder that isn't one.
    #[error("[server] spool_folder {} is no folder that can be written to", folder.display())]
    SpoolFolder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl Config {
    /// Checks each option by itself and against the others.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_numbers()?;
        self.packing.check()?;
        self.validate_chunk_url()?;
        self.validate_jwt()?;
        self.validate_files()
    }

    /// The options that are numbers.
    pub(crate) fn validate_numbers(&self) -> Result<(), ConfigError> {
        let connections_min = self.workers.max(1) as u64 + 1;
        let connections = (self.database_connections != 0).then_some((
            "database_connections",
            self.database_connections as u64,
            connections_min,
            10_000,
        ));
        for (option, actual, least, most) in self.numbers().into_iter().chain(connections) {
            if !(least..=most).contains(&actual) {
                return Err(ConfigError::OutOfRange { option, actual, expected: format!("{least} to {most}") });
            }
        }
        Ok(())
    }

    /// Syncs that may be arriving.
    pub(crate) fn receiving_most(&self) -> usize {
        if self.receiving_max == 0 { self.connections_max } else { self.receiving_max }
    }

    /// Options that are numbers within bounds, whatever the others are: name, value, the least, the most.
    pub(crate) fn numbers(&self) -> Vec<(&'static str, u64, u64, u64)> {
        const MANY: u64 = 1_000_000;
        const DAY_MS: u64 = 24 * 3600 * 1000;
        vec![
            ("workers", self.workers as u64, 0, 1_000),
            ("uploaders", self.uploaders as u64, 0, 1_000),
            ("workers_max", self.workers_max as u64, 1, 1_000),
            ("backlog", self.backlog as u64, 0, MANY),
            ("receiving_max", self.receiving_max as u64, 0, MANY),
            ("connections_max", self.connections_max as u64, 1, MANY),
            ("upload_bytes_max", self.upload_bytes_max, 1024, 1 << 40),
            ("upload_frames_max", self.upload_frames_max, 4, 1 << 24),
            ("frame_bytes_max", self.frame_bytes_max as u64, 1024, 1 << 30),
            ("batch_rows", self.batch_rows as u64, 1, 100_000),
            ("spool_memory_bytes", self.spool_memory_bytes, 0, 1 << 40),
            ("piece_bytes", self.piece_bytes, 1024, 1 << 30),
            ("tickets_max", self.tickets_max as u64, 1, MANY),
            ("tickets_per_user_max", self.tickets_per_user_max as u64, 1, MANY),
            ("tickets_bytes_max", self.tickets_bytes_max, 1024, 1 << 40),
            ("ticket_ms", self.ticket_ms, 1, DAY_MS),
            ("kept_ms", self.kept_ms, 0, DAY_MS),
            ("kept_downloads_max", self.kept_downloads_max as u64, 0, MANY),
            ("kept_bytes_max", self.kept_bytes_max, 0, 1 << 40),
            ("shared_ms", self.shared_ms, 1, DAY_MS / 4),
            ("shared_bytes_max", self.shared_bytes_max, 0, 1 << 40),
            ("shared_wait_ms_max", self.shared_wait_ms_max, 0, DAY_MS),
            ("ready_bytes_max", self.ready_bytes_max, 0, 1 << 40),
            ("ready_bytes_min", self.ready_bytes_min, 0, 1 << 40),
            ("ready_ms_max", self.ready_ms_max, 1_000, DAY_MS),
            ("heartbeat_ms", self.heartbeat_ms, 1, DAY_MS),
            ("head_ms_max", self.head_ms_max, 1, DAY_MS),
            ("idle_ms_max", self.idle_ms_max, 1, DAY_MS),
            ("keep_alive_ms", self.keep_alive_ms, 1_000, DAY_MS),
            ("wait_ms_max", self.wait_ms_max, 1, DAY_MS),
            ("connect_ms_max", self.connect_ms_max, 1, DAY_MS),
            ("commit_wait_ms", self.commit_wait_ms, 100, DAY_MS),
            ("estimate_ms_max", self.estimate_ms_max, 0, DAY_MS),
            ("retries", u64::from(self.retries), 0, 20),
            ("retry_ms", self.retry_ms, 0, 60_000),
            ("note_ms", self.note_ms, 1_000, DAY_MS),
            ("purge_days", self.purge_days, 0, 36_500),
            ("shutdown_ms_max", self.shutdown_ms_max, 0, DAY_MS),
            ("token_ms", self.token_ms, 1_000, 365 * DAY_MS),
            ("password_checks", self.password_checks as u64, 1, 1_000),
            ("password_checks_waiting", self.password_checks_waiting as u64, 0, MANY),
            ("account_cache_ms", self.account_cache_ms, 0, DAY_MS),
        ]
    }

    fn validate_chunk_url(&self) -> Result<(), ConfigError> {
        let Some(url) = &self.chunk_url else { return Ok(()) };
        let is_address = url.starts_with("http://") || url.starts_with("https://");
        if is_address && url.len() <= CHUNK_URL_BYTES_MAX {
            Ok(())
        } else {
            Err(ConfigError::ChunkUrl { actual: url.clone() })
        }
    }

    fn validate_jwt(&self) -> Result<(), ConfigError> {
        let fault = |fault: String| Err(ConfigError::Jwt { fault });
        let set = [("jwt_audience", &self.jwt_audience), ("jwt_issuer", &self.jwt_issuer)];
        match (&self.jwt_key_file, &self.jwks_file) {
            (Some(_), Some(_)) => return fault("jwt_key_file and jwks_file are both set, expected one of them".into()),
            (None, None) => {
                if let Some((option, _)) = set.iter().find(|(_, value)| value.is_some()) {
                    return fault(format!("{option} is set, expected jwt_key_file or jwks_file beside it"));
                }
            }
            _ => {}
        }
        let empty = set.iter().find(|(_, value)| value.as_deref() == Some("")).map(|(option, _)| *option);
        match empty.or_else(|| self.jwt_user_claim.is_empty().then_some("jwt_user_claim")) {
            Some(option) => fault(format!("{option} is empty, expected text")),
            None => Ok(()),
        }
    }

    /// How tokens of an identity provider are verified, if they are.
    pub fn jwt(&self) -> Option<JwtSettings> {
        let source = match (&self.jwt_key_file, &self.jwks_file) {
            (Some(file), _) => KeySource::Key(file.clone()),
            (None, Some(file)) => KeySource::Set(file.clone()),
            (None, None) => return None,
        };
        let (audience, issuer) = (self.jwt_audience.clone(), self.jwt_issuer.clone());
        Some(JwtSettings { source, audience, issuer, user_claim: self.jwt_user_claim.clone() })
    }

    fn validate_files(&self) -> Result<(), ConfigError> {
        match (&self.tls_certificate, &self.tls_key) {
            (Some(_), None) => return Err(ConfigError::HalfTls { given: "tls_certificate", missing: "tls_key" }),
            (None, Some(_)) => return Err(ConfigError::HalfTls { given: "tls_key", missing: "tls_certificate" }),
            _ => {}
        }
        if let Some(folder) = &self.spool_folder {
            let spoiled = |source| ConfigError::SpoolFolder { folder: folder.clone(), source };
            tempfile::tempfile_in(folder).map_err(spoiled)?;
        }
        Ok(())
    }

    /// Connections of the database: as set, or one more than workers.
    pub fn database_connections(&self) -> usize {
        match (self.database_connections, self.workers) {
            (0, 0) => self.workers_max + lane(self.workers_max) + 1,
            (0, workers) => workers + 1,
            (connections, _) => connections,
        }
    }

    /// Workers at most, each with a connection.
    pub(crate) fn workers_most(&self) -> usize {
        match (self.workers, self.database_connections) {
            (0, 0) => self.workers_max,
            // One reads accounts, and small syncs may be a quarter more.
            (0, connections) => self.workers_max.min(workers_within(connections)),
            (workers, _) => workers,
        }
    }

    /// Of what comes within a request, and waits in memory until its frame is whole.
    pub(crate) fn request_limits(&self) -> Limits {
        let frame_bytes_max = self.frame_bytes_max.min(Limits::REQUEST.frame_bytes_max);
        Limits { frame_bytes_max, ..self.pieces_limits() }
    }

    /// Of what comes in pieces, and waits on the disk.
    pub(crate) fn pieces_limits(&self) -> Limits {
        Limits {
            frame_bytes_max: self.frame_bytes_max,
            total_bytes_max: self.upload_bytes_max,
            frames_max: self.upload_frames_max,
        }
    }

    pub(crate) fn commit_wait(&self) -> Duration {
        Duration::from_millis(self.commit_wait_ms)
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    pub(crate) fn head_limit(&self) -> Duration {
        Duration::from_millis(self.head_ms_max)
    }

    pub(crate) fn idle_limit(&self) -> Duration {
        Duration::from_millis(self.idle_ms_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_an_empty_table_means_them() {
        let config: Config = serde_json::from_str("{}").expect("defaults");
        assert_eq!(config, Config::default());
        config.validate().expect("valid");
        assert_eq!((config.database_connections(), config.workers_most()), (32 + 8 + 1, 32));
        let fixed = Config { workers: 7, ..Config::default() };
        assert_eq!((fixed.database_connections(), fixed.workers_most()), (8, 7));
        let few = Config { database_connections: 6, ..Config::default() };
        assert_eq!((few.database_connections(), few.workers_most()), (6, 4));
    }

    #[test]
    fn every_option_is_in_the_documentation() {
        let page = include_str!("../../../docs/server.md");
        // serde tells all that there are.
        let told = serde_json::from_str::<Config>(r#"{"none": 1}"#).expect_err("no option").to_string();
        let (_, expected) = told.split_once("expected").expect("a list of options");
        let options: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        assert!(options.len() > 25, "{told}");
        for option in &options {
            assert!(page.contains(&format!("| `{option}` |")), "docs/server.md lacks {option}");
        }
        assert_eq!(page.lines().filter(|line| line.starts_with("| `")).count(), options.len());
    }

    #[test]
    fn an_error_names_option_value_and_range() {
        let text = |config: Config| config.validate().expect_err("invalid").to_string();
        let default = Config::default();
        assert_eq!(text(Config { workers: 1001, ..default.clone() }), "[server] workers is 1001, expected 0 to 1000");
        assert_eq!(text(Config { workers_max: 0, ..default.clone() }), "[server] workers_max is 0, expected 1 to 1000");
        let few = Config { workers: 8, database_connections: 8, ..default.clone() };
        assert_eq!(text(few), "[server] database_connections is 8, expected 9 to 10000");
        let half = Config { tls_key: Some("key.pem".into()), ..default.clone() };
        assert_eq!(text(half), "[server] tls_certificate is not set, expected beside tls_key: TLS needs both");
        let both = Config { jwt_key_file: Some("k".into()), jwks_file: Some("s".into()), ..default.clone() };
        assert_eq!(text(both), "[server] jwt_key_file and jwks_file are both set, expected one of them");
        let alone = Config { jwt_issuer: Some("i".into()), ..default.clone() };
        assert_eq!(text(alone), "[server] jwt_issuer is set, expected jwt_key_file or jwks_file beside it");
        let empty = Config { jwks_file: Some("s".into()), jwt_user_claim: String::new(), ..default.clone() };
        assert_eq!(text(empty), "[server] jwt_user_claim is empty, expected text");
        let folder = Config { spool_folder: Some("/nowhere/at/all".into()), ..default };
        assert_eq!(text(folder), "[server] spool_folder /nowhere/at/all is no folder that can be written to");
    }

    #[test]
    fn an_unknown_option_is_refused() {
        let error = serde_json::from_str::<Config>(r#"{"worker": 3}"#).expect_err("unknown");
        assert!(error.to_string().contains("unknown field `worker`"), "{error}");
    }
}
