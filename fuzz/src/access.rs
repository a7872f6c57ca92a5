//! What comes with a request before anybody is known, and the addresses of databases.

use std::time::{Duration, SystemTime};

use headwater_access::{Credentials, Secret, Tokens, claimed_user};
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::results::QueryBackend as _;

/// An `Authorization` header: what is read from it is said by the header that is made of it.
pub fn credentials(data: &[u8]) {
    let Ok(header) = std::str::from_utf8(data) else { return };
    let Ok(read) = Credentials::from_header(header) else { return };
    let again = Credentials::from_header(read.to_header().expose()).expect("our own header");
    assert_eq!(said(&again), said(&read));
}

fn said(credentials: &Credentials) -> (&str, &str) {
    match credentials {
        Credentials::Password { user, password } => (user, password.expose()),
        Credentials::Token(token) => ("", token.expose()),
    }
}

/// A token: nobody makes one up.
pub fn token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let tokens = Tokens::new(&[0x5a; 32]).expect("a key of 32 bytes");
    let _ = claimed_user(text);
    assert!(tokens.verify(&Secret::new(text), now).is_err(), "a token that was not issued is good: {text:?}");
}

/// The address of a PostgreSQL database: it is refused, or shown without what may be a password.
pub fn database_url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Files that it names would be opened.
    if text.contains("sslrootcert") {
        return;
    }
    match Postgres::new(text, Settings::default()) {
        Ok(database) => assert!(database.address().starts_with("postgres://")),
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal says why"),
    }
}
