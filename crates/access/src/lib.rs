//! Who may: passwords, tokens and the accounts behind them.
//!
//! [`Access`] turns the [`Credentials`] of a request into a [`User`]. Below it: [`hash_password`] and [`PasswordChecks`] (argon2id in
//! a bounded pool), [`Tokens`] (JWT under a key of the consolidated database), [`Jwt`] (those of an identity provider).
//!
//! *Caveats.* What a user may do with which row is not asked here: the upload engine judges it, row by row and in the upload's own
//! transaction, by the model's directions and the memberships.

mod access;
mod credentials;
mod error;
mod jwt;
mod password;
mod secret;
mod token;

pub use access::{Access, Settings, User};
pub use credentials::{Credentials, USER_BYTES_MAX};
pub use error::Error;
pub use jwt::{Jwt, JwtError, JwtSettings, KeySource, Refusal};
pub use password::{PASSWORD_BYTES_MAX, PasswordChecks, hash_password, verify_password};
pub use secret::Secret;
pub use token::{Named, Tokens, claimed_user};
