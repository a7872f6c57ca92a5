//! From credentials to a user: passwords and tokens held against the accounts.
//!
//! ```text
//! Basic  -> account (cached a few seconds) -> argon2id in the pool of checks -> disabled? -> User
//! Bearer -> signature, expiry              -> account (cached)               -> disabled? -> User
//!       \-> an identity provider's (`jwt`)  -> account, if there is one        -> disabled? -> User
//! ```
//!
//! The accounts lie in the consolidated database, so any server knows them; each server keeps what it read for a few seconds, the key of tokens too,
//! which is how long a disabled user may still come in, or a token of a database that was replaced. One connection at a time is used to read accounts, beside those of the workers.
//! Before the first account is made there may be no table of them: nobody is known then. A table that was there and is gone is another matter (a
//! backup is being put back, say), and so is one that can't be read: who asks is not judged by that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use headwater_consolidated::{Connection, Error as DatabaseError, Pool, system};
use tokio::sync::Semaphore;

use crate::{Credentials, Error, Jwt, PasswordChecks, Refusal, Secret, Tokens, USER_BYTES_MAX};

/// Accounts kept in memory; the names of unknown users among them, so that guessing costs the database little.
const ACCOUNTS_CACHED_MAX: usize = 10_000;

/// A user who has proven who they are, and may sync.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    name: String,
    /// When the account was made; `None`: an identity provider knows the user, and there is no account.
    account: Option<String>,
}

impl User {
    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What authentication may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Password checks that run at a time; each takes a core for about 20 ms, and 19 MiB.
    pub password_checks: usize,
    /// Password checks that wait; beyond, [`Error::Overloaded`].
    pub password_checks_waiting: usize,
    /// How long an account is kept after it was read.
    pub account_cache: Duration,
    /// How long to wait for a connection to read accounts with.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            password_checks: 2,
            password_checks_waiting: 100,
            account_cache: Duration::from_secs(5),
            patience: Duration::from_secs(10),
        }
    }
}

/// Authenticates users of one consolidated database.
#[derive(Debug)]
pub struct Access {
    /// `None`: there are no accounts.
    pool: Option<Pool>,
    settings: Settings,
    checks: PasswordChecks,
    reading: Arc<Semaphore>,
    /// Whether the tables of accounts have been seen.
    has_tables: Arc<AtomicBool>,
    /// As good as the accounts that are kept: the database may be another by then.
    tokens: tokio::sync::Mutex<Option<(Instant, Tokens)>>,
    jwt: Option<Arc<Jwt>>,
    cache: Mutex<HashMap<String, Kept>>,
}

#[derive(Clone)]
struct Kept {
    account: Option<system::Account>,
    read_at: Instant,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept(...)")
    }
}

impl Access {
    /// Authentication by the accounts of this database.
    pub fn new(pool: Pool, settings: Settings) -> Access {
        Access::of(Some(pool), settings)
    }

    /// Where there are no accounts: whom an identity provider knows is let in, and nobody else.
    pub fn without_accounts(settings: Settings) -> Access {
        Access::of(None, settings)
    }

    fn of(pool: Option<Pool>, settings: Settings) -> Access {
        Access {
            pool,
            settings,
            checks: PasswordChecks::new(settings.password_checks, settings.password_checks_waiting),
            reading: Arc::new(Semaphore::new(1)),
            has_tables: Arc::default(),
            tokens: tokio::sync::Mutex::default(),
            jwt: None,
            cache: Mutex::default(),
        }
    }

    /// The same, and the tokens of an identity provider are good too. Their users need no account.
    #[must_use]
    pub fn with_jwt(self, jwt: Jwt) -> Access {
        Access { jwt: Some(Arc::new(jwt)), ..self }
    }

    /// The user that these credentials prove. An unknown user and a wrong password give the same error after the same time.
    pub async fn authenticate(&self, credentials: Credentials) -> Result<User, Error> {
        match credentials {
            Credentials::Password { user, password } => {
                let account = self.account(&user).await?;
                let stored = account.as_ref().map(|account| account.password_hash.clone());
                if !self.checks.verify(password, stored).await? {
                    return Err(Error::Unauthenticated);
                }
                admit(account)
            }
            Credentials::Token(token) => {
                let own = match self.pool {
                    Some(_) => self.tokens().await.and_then(|tokens| tokens.verify(&token, SystemTime::now())),
                    None => Err(Error::Unauthenticated),
                };
                match (own, &self.jwt) {
                    (Err(Error::Unauthenticated), Some(jwt)) => self.provided(Arc::clone(jwt), token).await,
                    (named, _) => {
                        let named = named?;
                        let account = self.account(&named.user).await?;
                        admit(account.filter(|account| named.is_of(account)))
                    }
                }
            }
        }
    }

    /// The user of an identity provider's token. Who has no account is known to the provider.
    async fn provided(&self, jwt: Arc<Jwt>, token: Secret) -> Result<User, Error> {
        let verifying = tokio::task::spawn_blocking(move || jwt.verify(&token, SystemTime::now()));
        let name = match verifying.await.map_err(|_| Error::Unauthenticated)? {
            Ok(name) => name,
            Err(Refusal::Expired) => return Err(Error::TokenExpired),
            Err(refusal) => return Err(Error::RefusedToken(refusal)),
        };
        match self.account(&name).await? {
            None => Ok(User { name, account: None }),
            account => admit(account),
        }
    }

    /// A token for a user that any server of this database takes until `ttl` has passed or the user is disabled.
    pub async fn issue(&self, user: &User, ttl: Duration) -> Result<Secret, Error> {
        self.tokens().await?.issue_for(user.name(), user.account.as_deref(), ttl, SystemTime::now())
    }

    /// Whether the database answers: a statement that needs nothing of it, on the connection that reads accounts.
    pub async fn probe(&self) -> Result<(), Error> {
        self.read(|connection| connection.query("SELECT 1", &[]).map(|_| ())).await
    }

    /// The key of the consolidated database, by which its servers know what one of them has sealed; `None`: there are no accounts, and no such
    /// key.
    pub async fn database_key(&self) -> Result<Option<[u8; 32]>, Error> {
        if self.pool.is_none() {
            return Ok(None);
        }
        let identity = self.read(|connection| system::identity(connection)).await?;
        Ok(Some(identity.token_key))
    }

    async fn tokens(&self) -> Result<Tokens, Error> {
        let mut kept = self.tokens.lock().await;
        if let Some((_, tokens)) = kept.as_ref().filter(|(read_at, _)| read_at.elapsed() < self.settings.account_cache)
        {
            return Ok(tokens.clone());
        }
        let identity = self.read_if_there(system::identity).await?.ok_or(Error::Unauthenticated)?;
        let tokens = Tokens::new(&identity.token_key)?;
        *kept = Some((Instant::now(), tokens.clone()));
        Ok(tokens)
    }

    async fn account(&self, user: &str) -> Result<Option<system::Account>, Error> {
        if self.pool.is_none() || user.len() > USER_BYTES_MAX || user.contains('\0') {
            return Ok(None);
        }
        if let Some(kept) = self.cached(user) {
            return Ok(kept.account);
        }
        let name = user.to_owned();
        let account = self.read_if_there(move |connection| system::find_account(connection, &name)).await?.flatten();
        self.keep(user, account.clone());
        Ok(account)
    }

    /// The same of what the tables of accounts say; `None`: they have not been made yet.
    async fn read_if_there<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut dyn Connection) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<Option<T>, Error> {
        let has_tables = Arc::clone(&self.has_tables);
        let read = move |connection: &mut dyn Connection| match read(connection) {
            Ok(found) => {
                has_tables.store(true, Ordering::Relaxed);
                Ok(Some(found))
            }
            Err(_) if !has_tables.load(Ordering::Relaxed) && matches!(system::has_accounts(connection), Ok(false)) => {
                Ok(None)
            }
            Err(error) => Err(error),
        };
        self.read(read).await
    }

    /// Runs a short read on a thread and connection of its own, one at a time.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut dyn Connection) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, Error> {
        let place = Arc::clone(&self.reading).acquire_owned().await.map_err(|_| Error::Overloaded)?;
        let (pool, patience) = (self.pool.clone().ok_or(Error::Unauthenticated)?, self.settings.patience);
        let reading = tokio::task::spawn_blocking(move || {
            let _place = place;
            let mut connection = pool.checkout(patience)?;
            let result = read(&mut *connection);
            connection.note(result)
        });
        let failed =
            |_| DatabaseError::Database { context: "reading an account".into(), detail: "the thread panicked".into() };
        Ok(reading.await.map_err(failed)??)
    }

    fn cached(&self, user: &str) -> Option<Kept> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(user).filter(|kept| kept.read_at.elapsed() < self.settings.account_cache).cloned()
    }

    fn keep(&self, user: &str, account: Option<system::Account>) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= ACCOUNTS_CACHED_MAX {
            cache.retain(|_, kept| kept.read_at.elapsed() < self.settings.account_cache);
        }
        if cache.len() >= ACCOUNTS_CACHED_MAX {
            cache.clear();
        }
        cache.insert(user.to_owned(), Kept { account, read_at: Instant::now() });
    }
}

fn admit(account: Option<system::Account>) -> Result<User, Error> {
    match account {
        None => Err(Error::Unauthenticated),
        Some(account) if account.disabled => Err(Error::Disabled { user: account.user }),
        Some(account) => Ok(User { name: account.user, account: Some(account.created_at) }),
    }
}
