//! Why somebody is not let in.

use thiserror::Error;

/// Why somebody is not let in, or could not be judged.
#[derive(Debug, Error)]
pub enum Error {
    /// No credentials, or wrong ones: which of them, and whether the user exists, is not said.
    #[error("no valid credentials; log in with user and password, or ask for a new token")]
    Unauthenticated,
    /// A token that neither Headwater nor the identity provider made; its bearer is told no more than with [`Error::Unauthenticated`].
    #[error("no valid credentials; log in with user and password, or ask for a new token")]
    RefusedToken(#[source] crate::Refusal),
    /// The token was good, but has expired.
    #[error("the token has expired; ask for a new one")]
    TokenExpired,
    /// The credentials are right, but the user is disabled.
    #[error("the user {user:?} is disabled")]
    Disabled {
        /// The user.
        user: String,
    },
    /// Too many at once.
    #[error("too many logins at once; come back later")]
    Overloaded,
    /// The accounts can't be read.
    #[error("the accounts can't be read")]
    Database(#[from] headwater_consolidated::Error),
    /// A password that can't be one.
    #[error("the password has {actual} bytes, expected 1 to {}", crate::PASSWORD_BYTES_MAX)]
    PasswordLength {
        /// Its length.
        actual: usize,
    },
    /// A stored hash that can't be read, or a hash that can't be made.
    #[error("the password hash can't be read or made; `headwater user add` makes a new one")]
    Hash(#[source] argon2::password_hash::Error),
    /// The key for tokens is too short.
    #[error("the key for tokens has {actual} bytes, expected at least {}", crate::token::KEY_BYTES_MIN)]
    KeyLength {
        /// Its length.
        actual: usize,
    },
    /// A token could not be made.
    #[error("the token could not be signed")]
    Sign,
}
