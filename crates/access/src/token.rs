//! Bearer tokens: JWT (RFC 7519) signed by HMAC-SHA-256 with a key that lies in the consolidated database, so that every server on
//! it verifies what any of them issued.
//!
//! ```text
//! {"alg":"HS256","typ":"JWT"}.{"iss":"headwater","sub":"anna","acc":"2026-01-31 12:00:00.000Z","iat":1700000000,"exp":1700000900}.signature
//! ```
//!
//! `acc` is when the account was made: a token of a user who was removed is none of a new user of the same name. One without it, from before tokens
//! had it, is good for an account that is no younger than the token.
//!
//! *Caveats.* A token says who its bearer is and nothing more; whether that user may still sync is asked of the accounts each time.
//! A token can't be taken back before it expires, except by disabling its user.

use std::time::{Duration, SystemTime};

use headwater_consolidated::system::Account;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};

use crate::{Error, Secret};

/// The fewest bytes in a key (RFC 7518, 3.2: no shorter than the hash).
pub(crate) const KEY_BYTES_MIN: usize = 32;
/// The most bytes in a token that is looked at.
pub(crate) const TOKEN_BYTES_MAX: usize = 4 * 1024;
const ISSUER: &str = "headwater";
/// How far a server's clock and the database's may be apart.
const CLOCKS_APART_S: u64 = 300;

/// Issues and verifies tokens under one key.
#[derive(Clone)]
pub struct Tokens {
    encoding: EncodingKey,
    decoding: DecodingKey,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    acc: Option<String>,
    iat: u64,
    exp: u64,
}

/// Whom a token of the right key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The user.
    pub user: String,
    account: Option<String>,
    issued_s: u64,
}

impl Named {
    /// Whether it was issued for this account, and not for one of the same name before it.
    pub fn is_of(&self, account: &Account) -> bool {
        match &self.account {
            Some(created_at) => *created_at == account.created_at,
            None => self.issued_s + CLOCKS_APART_S >= account.created_s,
        }
    }
}

impl Tokens {
    /// Tokens under this key of at least 32 bytes.
    pub fn new(key: &[u8]) -> Result<Tokens, Error> {
        if key.len() < KEY_BYTES_MIN {
            return Err(Error::KeyLength { actual: key.len() });
        }
        Ok(Tokens { encoding: EncodingKey::from_secret(key), decoding: DecodingKey::from_secret(key) })
    }

    /// A token for this user that expires `ttl` after `now`, for whatever account of that name there is now.
    pub fn issue(&self, user: &str, ttl: Duration, now: SystemTime) -> Result<Secret, Error> {
        self.issue_for(user, None, ttl, now)
    }

    /// The same for the account that was made then ([`Account::created_at`]).
    pub fn issue_for(
        &self,
        user: &str,
        created_at: Option<&str>,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<Secret, Error> {
        let iat = seconds(now);
        let exp = iat.saturating_add(ttl.as_secs());
        let claims =
            Claims { iss: ISSUER.to_owned(), sub: user.to_owned(), acc: created_at.map(str::to_owned), iat, exp };
        encode(&Header::new(Algorithm::HS256), &claims, &self.encoding).map(Secret::new).map_err(|_| Error::Sign)
    }

    /// Whom a token names, if it is one of this key's and has not expired at `now`.
    pub fn verify(&self, token: &Secret, now: SystemTime) -> Result<Named, Error> {
        if token.expose().len() > TOKEN_BYTES_MAX {
            return Err(Error::Unauthenticated);
        }
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_issuer(&[ISSUER]);
        validation.set_required_spec_claims(&["iss", "sub", "exp"]);
        // The time is the caller's, so that tests need no clock.
        validation.validate_exp = false;
        let claims =
            decode::<Claims>(token.expose(), &self.decoding, &validation).map_err(|_| Error::Unauthenticated)?.claims;
        if claims.exp <= seconds(now) {
            return Err(Error::TokenExpired);
        }
        Ok(Named { user: claims.sub, account: claims.acc, issued_s: claims.iat })
    }
}

/// The user that a token names, if it is one of Headwater's; whether it is good only the server can tell. For asking whether a user
/// has taken the wrong one.
pub fn claimed_user(token: &str) -> Option<String> {
    let mut validation = Validation::new(Algorithm::HS256);
    validation.insecure_disable_signature_validation();
    validation.set_issuer(&[ISSUER]);
    validation.set_required_spec_claims(&["iss", "sub"]);
    validation.validate_exp = false;
    Some(decode::<Claims>(token, &DecodingKey::from_secret(&[]), &validation).ok()?.claims.sub)
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens(...)")
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    #[test]
    fn a_token_names_its_user_to_whoever_looks() {
        let token = Tokens::new(&[7; 32]).and_then(|tokens| tokens.issue("anna", START, at(0))).expect("a token");
        assert_eq!(claimed_user(token.expose()).as_deref(), Some("anna"));
        assert_eq!(claimed_user("nonsense"), None);
    }

    const START: Duration = Duration::from_secs(1_700_000_000);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + START + Duration::from_secs(seconds)
    }

    #[test]
    fn a_token_is_good_on_any_server_of_the_database_until_it_expires() {
        let (one, other) = (Tokens::new(&[7; 32]).expect("it works"), Tokens::new(&[7; 32]).expect("it works"));
        let token = one.issue("anna", Duration::from_mins(1), at(0)).expect("it works");
        assert_eq!(other.verify(&token, at(59)).expect("it works").user, "anna");
        assert!(matches!(other.verify(&token, at(60)), Err(Error::TokenExpired)));
        let stranger = Tokens::new(&[8; 32]).expect("it works");
        assert!(matches!(stranger.verify(&token, at(0)), Err(Error::Unauthenticated)));
    }

    #[test]
    fn no_forged_token_verifies() {
        let tokens = Tokens::new(&[7; 32]).expect("it works");
        let token = tokens.issue("anna", Duration::from_mins(1), at(0)).expect("it works");
        let parts: Vec<&str> = token.expose().split('.').collect();
        let other_user = |payload: &str| URL_SAFE_NO_PAD.encode(payload);
        let claims = other_user(r#"{"iss":"headwater","sub":"root","iat":1700000000,"exp":1800000000}"#);
        let unsigned = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
        let forged = [
            format!("{}.{claims}.{}", parts[0], parts[2]),
            format!("{unsigned}.{claims}."),
            format!("{unsigned}.{claims}.{}", parts[2]),
            format!("{}.{}.", parts[0], parts[1]),
            format!("{}.{}", parts[0], parts[1]),
            String::new(),
            "..".to_owned(),
            "x".repeat(TOKEN_BYTES_MAX + 1),
        ];
        for token in forged {
            assert!(matches!(tokens.verify(&Secret::new(&token), at(0)), Err(Error::Unauthenticated)), "{token}");
        }
        assert!(tokens.verify(&token, at(0)).is_ok());
    }

    #[test]
    fn a_short_key_is_refused_and_no_key_is_printed() {
        assert!(matches!(Tokens::new(&[0; 31]), Err(Error::KeyLength { actual: 31 })));
        assert_eq!(format!("{:?}", Tokens::new(&[65; 32]).expect("it works")), "Tokens(...)");
    }
}
