//! Password hashes: argon2id with the parameters that OWASP recommends (19 MiB, 2 passes, 1 lane), kept as PHC strings.
//!
//! A check takes about 20 ms of a core and 19 MiB, so checks run in a pool of their own with a bounded queue: a storm of logins
//! slows logins down, and neither fills the memory nor keeps syncs from their cores. A check of an unknown user costs the same as
//! one of a known user, against a hash that no password has, so that time doesn't tell who exists.

use std::sync::{Arc, LazyLock};

use argon2::password_hash::{self, PasswordHasher, PasswordVerifier, phc::PasswordHash};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::{Error, Secret};

/// The most bytes in a password.
pub const PASSWORD_BYTES_MAX: usize = 1024;
/// The most memory that a stored hash may ask for, in KiB: what a database says is held against a limit too.
const MEMORY_KIB_MAX: u32 = 1024 * 1024;

/// The hash of a password, for the accounts. Blocks for about 20 ms.
pub fn hash_password(password: &Secret) -> Result<String, Error> {
    if password.expose().is_empty() || password.expose().len() > PASSWORD_BYTES_MAX {
        return Err(Error::PasswordLength { actual: password.expose().len() });
    }
    hasher().hash_password(password.expose().as_bytes()).map(|hash| hash.to_string()).map_err(Error::Hash)
}

/// Whether this is the password of the stored hash; never, but after the same time, if there is none. Blocks for about 20 ms.
pub fn verify_password(password: &Secret, stored: Option<&str>) -> Result<bool, Error> {
    static NOBODY: LazyLock<Result<String, password_hash::Error>> = LazyLock::new(|| {
        let mut password = [0; 32];
        getrandom::fill(&mut password).map_err(|_| password_hash::Error::Crypto)?;
        hasher().hash_password(&password).map(|hash| hash.to_string())
    });
    if password.expose().len() > PASSWORD_BYTES_MAX {
        return Ok(false);
    }
    let phc = match stored {
        Some(stored) => stored,
        None => NOBODY.as_deref().map_err(|error| Error::Hash(*error))?,
    };
    let parsed = PasswordHash::new(phc).map_err(|error| Error::Hash(error.into()))?;
    let params = Params::try_from(&parsed).map_err(Error::Hash)?;
    if params.m_cost() > MEMORY_KIB_MAX {
        return Err(Error::Hash(password_hash::Error::ParamsInvalid));
    }
    match hasher().verify_password(password.expose().as_bytes(), &parsed) {
        Ok(()) => Ok(stored.is_some()),
        Err(password_hash::Error::PasswordInvalid) => Ok(false),
        Err(error) => Err(Error::Hash(error)),
    }
}

fn hasher() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::DEFAULT)
}

/// Password checks, a few at a time.
#[derive(Clone, Debug)]
pub struct PasswordChecks {
    running: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

impl PasswordChecks {
    /// At most `running` checks at a time, and `waiting` more that wait; beyond, [`Error::Overloaded`].
    pub fn new(running: usize, waiting: usize) -> PasswordChecks {
        let places = running.saturating_add(waiting).min(Semaphore::MAX_PERMITS);
        PasswordChecks { running: Arc::new(Semaphore::new(running)), places: Arc::new(Semaphore::new(places)) }
    }

    /// [`verify_password`] on a thread of its own. The place is held until the check has really ended, also if the caller has gone.
    pub async fn verify(&self, password: Secret, stored: Option<String>) -> Result<bool, Error> {
        let place = self.place()?;
        let running = Arc::clone(&self.running).acquire_owned().await.map_err(|_| Error::Overloaded)?;
        let check = tokio::task::spawn_blocking(move || {
            let _held = (place, running);
            verify_password(&password, stored.as_deref())
        });
        check.await.map_err(|_| Error::Hash(password_hash::Error::Internal))?
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits | TryAcquireError::Closed => Error::Overloaded,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{PasswordChecks, hash_password, verify_password};
    use crate::{Error, Secret};

    #[test]
    fn only_the_password_verifies() {
        let stored = hash_password(&Secret::new("correct horse")).expect("it works");
        assert!(stored.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{stored}");
        assert!(verify_password(&Secret::new("correct horse"), Some(&stored)).expect("it works"));
        assert!(!verify_password(&Secret::new("correct horsf"), Some(&stored)).expect("it works"));
        assert!(!verify_password(&Secret::new(""), Some(&stored)).expect("it works"));
        assert!(!verify_password(&Secret::new("correct horse"), None).expect("it works"));
        assert_ne!(
            stored,
            hash_password(&Secret::new("correct horse")).expect("it works"),
            "each hash has a salt of its own"
        );
    }

    #[test]
    fn what_no_password_hash_is_gives_an_error() {
        for stored in ["", "plain", "$argon2id$v=19$m=4294967295,t=2,p=1$c29tZXNhbHQ$aGFzaGhhc2hoYXNo", "$md5$x"] {
            assert!(matches!(verify_password(&Secret::new("x"), Some(stored)), Err(Error::Hash(_))), "{stored}");
        }
        let long = Secret::new("x".repeat(1025));
        assert!(matches!(hash_password(&long), Err(Error::PasswordLength { actual: 1025 })));
        assert!(matches!(hash_password(&Secret::new("")), Err(Error::PasswordLength { actual: 0 })));
        assert!(!verify_password(&long, None).expect("it works"));
    }

    #[tokio::test]
    async fn beyond_the_queue_a_check_is_refused_at_once() {
        let checks = PasswordChecks::new(1, 1);
        let place = (checks.place().expect("it works"), checks.place().expect("it works"));
        let refused = checks.verify(Secret::new("x"), None).await;
        assert!(matches!(refused, Err(Error::Overloaded)), "{refused:?}");
        drop(place);
        assert!(!checks.verify(Secret::new("x"), None).await.expect("it works"));
    }

    #[tokio::test]
    async fn a_check_that_nobody_waits_for_any_more_gives_its_place_back() {
        let checks = PasswordChecks::new(1, 0);
        let abandoned = checks.verify(Secret::new("x"), None);
        let aborted = tokio::time::timeout(std::time::Duration::ZERO, abandoned).await;
        assert!(aborted.is_err());
        let place = checks.places.acquire().await.expect("it works");
        drop(place);
        assert!(!checks.verify(Secret::new("x"), None).await.expect("it works"));
    }
}
