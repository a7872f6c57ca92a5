//! The keys' file, read again whenever it has changed: keys are rotated while the server runs.
//!
//! Each look asks the system for the file's stamp (times, size, place). A file that had just been written when it was read could
//! change once more under the same stamp, so it is read again until its stamp is a little old. A file that can't be read, half
//! written for instance, leaves the keys as they were, and the log says so once.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::keys::{self, Key};
use super::{JwtError, KeySource};

/// The most bytes in the file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// How old a stamp must be before it is trusted: file systems count time in steps of up to two seconds.
const SETTLED: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct KeyFile {
    source: KeySource,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    keys: Arc<[Key]>,
    /// Of the file when it was read last; none: it is to be read again.
    stamp: Option<Stamp>,
    /// What was wrong when it was read last.
    fault: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl KeyFile {
    pub(super) fn open(source: KeySource) -> Result<KeyFile, JwtError> {
        let (keys, stamp) = source.read()?;
        Ok(KeyFile { source, state: Mutex::new(State { keys, stamp, fault: None }) })
    }

    /// The keys as the file has them now.
    pub(super) fn keys(&self) -> Arc<[Key]> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = std::fs::metadata(self.source.path()).ok().map(|metadata| Stamp::of(&metadata));
        if stamp.is_none() || stamp != state.stamp {
            state.read_again(&self.source);
        }
        Arc::clone(&state.keys)
    }
}

impl State {
    fn read_again(&mut self, source: &KeySource) {
        match source.read() {
            Ok((keys, stamp)) => {
                if self.fault.take().is_some() {
                    tracing::info!(option = source.option(), "the keys could be read again");
                }
                (self.keys, self.stamp) = (keys, stamp);
            }
            Err(error) => {
                let fault = format!("{error:?}");
                if self.fault.as_ref() != Some(&fault) {
                    tracing::warn!(%error, "the keys could not be read again; those that were there stay good");
                }
                (self.fault, self.stamp) = (Some(fault), None);
            }
        }
    }
}

impl KeySource {
    fn option(&self) -> &'static str {
        match self {
            KeySource::Key(_) => "jwt_key_file",
            KeySource::Set(_) => "jwks_file",
        }
    }

    fn path(&self) -> &Path {
        match self {
            KeySource::Key(path) | KeySource::Set(path) => path,
        }
    }

    fn read(&self) -> Result<(Arc<[Key]>, Option<Stamp>), JwtError> {
        let (option, path) = (self.option(), self.path().to_owned());
        let (content, stamp) = read(&path).map_err(|source| JwtError::File { option, path: path.clone(), source })?;
        let keys = match self {
            _ if content.len() as u64 > FILE_BYTES_MAX => {
                Err(format!("has more than {FILE_BYTES_MAX} bytes, expected fewer"))
            }
            KeySource::Key(_) => keys::one(&content).map(|key| vec![key]),
            KeySource::Set(_) => keys::set(&content).map(|(keys, left_out)| {
                for why in left_out {
                    tracing::debug!(option, why, "a key is left out");
                }
                keys
            }),
        };
        Ok((keys.map_err(|fault| JwtError::Content { option, path, fault })?.into(), stamp))
    }
}

/// The content, and the stamp if that can be trusted.
fn read(path: &Path) -> std::io::Result<(Vec<u8>, Option<Stamp>)> {
    let file = std::fs::File::open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
    Ok((content, stamp.is_settled(SystemTime::now()).then_some(stamp)))
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Stamp {
        Stamp {
            place: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let newest = self.modified.0.max(self.changed.0);
        u64::try_from(newest).is_ok_and(|newest| Duration::from_secs(newest) + SETTLED < now)
    }
}
