//! Tokens of an identity provider: JWT (RFC 7519) signed by somebody else, held against a key or a set of keys in a file.
//!
//! ```text
//! header  {"alg":"RS256","kid":"2026-11"}   kid -> key -> the key's one algorithm; nothing in the token chooses it
//! claims  {"iss":...,"aud":...,"sub":"anna","exp":...,"nbf":...}
//! ```
//!
//! The rules are those of RFC 8725: a key has one algorithm and takes no other (so neither `none`, nor a public key used as an HMAC
//! secret); a token names the audience that the server expects, and a token that was made for an audience is refused where none is
//! expected; `exp` must be there; a header that demands an extension (`crit`) is refused; keys and addresses that a token's header
//! carries are never used.
//!
//! *Caveats.* A token can't be taken back before it expires, save by disabling an account of its user's name. The provider's keys
//! are never fetched: something else writes the file.

mod file;
mod keys;

use std::path::PathBuf;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Validation, decode};
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use self::file::KeyFile;
use self::keys::Key;
use crate::{Secret, USER_BYTES_MAX};

/// The most bytes in a token that is looked at: providers put groups and more into theirs.
const JWT_BYTES_MAX: usize = 8 * 1024;
/// How far the clocks of provider and server may differ.
const LEEWAY_S: f64 = 60.0;

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file with one key: a secret for HS256, or a public key in PEM.
    Key(PathBuf),
    /// A file with a JWK Set (RFC 7517).
    Set(PathBuf),
}

/// Which tokens are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtSettings {
    /// Where the keys are.
    pub source: KeySource,
    /// What `aud` must hold; unset: the token has no `aud`.
    pub audience: Option<String>,
    /// What `iss` must be; unset: anything.
    pub issuer: Option<String>,
    /// The claim that names the user.
    pub user_claim: String,
}

/// Why keys can't be read.
#[derive(Debug, Error)]
pub enum JwtError {
    /// The file.
    #[error("the file of {option}, {}, can't be read", path.display())]
    File {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// What is in it.
    #[error("the file of {option}, {}, {fault}", path.display())]
    Content {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what is expected.
        fault: String,
    },
}

/// Why a token is not good: for the server's log, not for its bearer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No JWT, or too large.
    #[error("it is no JWT of at most {JWT_BYTES_MAX} bytes")]
    Form,
    /// An extension that must be understood.
    #[error("its header demands extensions (crit)")]
    Critical,
    /// No such key.
    #[error("there is no key {0}")]
    UnknownKey(String),
    /// Not the key's algorithm.
    #[error("its algorithm is {actual:?}, expected the key's, {expected}")]
    Algorithm {
        /// The token's.
        actual: String,
        /// The key's.
        expected: String,
    },
    /// The signature, or claims that can't be read.
    #[error("its signature is not the key's, or its claims can't be read")]
    Signature,
    /// It is over.
    #[error("it has expired")]
    Expired,
    /// A claim that is missing, or not what is expected.
    #[error("its claim {claim:?} is {actual}, expected {expected}")]
    Claim {
        /// Which.
        claim: String,
        /// What it is.
        actual: String,
        /// What it should be.
        expected: String,
    },
}

/// Verifies the tokens of an identity provider.
#[derive(Debug)]
pub struct Jwt {
    settings: JwtSettings,
    file: KeyFile,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl Jwt {
    /// Reads the keys. The file is read again whenever it has changed.
    pub fn new(settings: JwtSettings) -> Result<Jwt, JwtError> {
        let file = KeyFile::open(settings.source.clone())?;
        Ok(Jwt { settings, file })
    }

    /// The user that a token names, if it is good at `now`. May read the file, so it belongs on a thread that may block.
    pub fn verify(&self, token: &Secret, now: SystemTime) -> Result<String, Refusal> {
        let token = token.expose();
        let header = header(token)?;
        let keys = self.file.keys();
        let key = self.choose(&keys, &header)?;
        let claims = signed_claims(token, key)?;
        self.check(&claims, seconds(now))?;
        self.user(&claims)
    }

    /// The key that the token names, if its algorithm is the token's too.
    fn choose<'a>(&self, keys: &'a [Key], header: &Header) -> Result<&'a Key, Refusal> {
        let is_alone = keys.len() == 1;
        let fits = |key: &&Key| match (&self.settings.source, &header.kid) {
            (KeySource::Key(_), _) => true,
            (KeySource::Set(_), Some(kid)) => key.kid.as_ref() == Some(kid),
            (KeySource::Set(_), None) => is_alone,
        };
        let fitting: Vec<&Key> = keys.iter().filter(fits).collect();
        let Some(first) = fitting.first() else {
            let name = header.kid.as_ref().map(|kid| format!("{kid:?}"));
            return Err(Refusal::UnknownKey(name.unwrap_or_else(|| "without a kid, and there are several".into())));
        };
        let same = fitting.iter().find(|key| format!("{:?}", key.algorithm) == header.alg);
        same.copied().ok_or_else(|| Refusal::Algorithm {
            actual: header.alg.clone(),
            expected: format!("{:?}", first.algorithm),
        })
    }

    fn check(&self, claims: &Map<String, Value>, now: f64) -> Result<(), Refusal> {
        let expires = time(claims, "exp")?.ok_or_else(|| wrong(claims, "exp", "a time"))?;
        if expires + LEEWAY_S <= now {
            return Err(Refusal::Expired);
        }
        if time(claims, "nbf")?.is_some_and(|begins| begins - LEEWAY_S > now) {
            return Err(wrong(claims, "nbf", "a time that has come"));
        }
        if let Some(issuer) = &self.settings.issuer
            && claims.get("iss").and_then(Value::as_str) != Some(issuer)
        {
            return Err(wrong(claims, "iss", &format!("{issuer:?} (jwt_issuer)")));
        }
        match (&self.settings.audience, claims.get("aud")) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(wrong(claims, "aud", "none: jwt_audience is not set")),
            (Some(audience), Some(Value::String(one))) if one == audience => Ok(()),
            (Some(audience), Some(Value::Array(many))) if many.iter().any(|one| one == audience) => Ok(()),
            (Some(audience), _) => Err(wrong(claims, "aud", &format!("{audience:?} (jwt_audience)"))),
        }
    }

    fn user(&self, claims: &Map<String, Value>) -> Result<String, Refusal> {
        let claim = &self.settings.user_claim;
        let is_name =
            |user: &&str| !user.is_empty() && user.len() <= USER_BYTES_MAX && !user.chars().any(char::is_control);
        let user = claims.get(claim).and_then(Value::as_str).filter(is_name);
        user.map(str::to_owned).ok_or_else(|| wrong(claims, claim, "a user's name (jwt_user_claim)"))
    }
}

fn header(token: &str) -> Result<Header, Refusal> {
    if token.len() > JWT_BYTES_MAX || token.bytes().filter(|byte| *byte == b'.').count() != 2 {
        return Err(Refusal::Form);
    }
    let (header, _) = token.split_once('.').ok_or(Refusal::Form)?;
    let header = URL_SAFE_NO_PAD.decode(header).map_err(|_| Refusal::Form)?;
    let header: Header = serde_json::from_slice(&header).map_err(|_| Refusal::Form)?;
    if header.crit.is_some() { Err(Refusal::Critical) } else { Ok(header) }
}

/// The claims, once the signature is the key's under the key's own algorithm. They are judged by the caller.
fn signed_claims(token: &str, key: &Key) -> Result<Map<String, Value>, Refusal> {
    let mut validation = Validation::new(key.algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let decoded = decode::<Map<String, Value>>(token, &key.decoding, &validation);
    Ok(decoded.map_err(|_| Refusal::Signature)?.claims)
}

/// A NumericDate; one that is something else is refused.
fn time(claims: &Map<String, Value>, claim: &str) -> Result<Option<f64>, Refusal> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    value.as_f64().map(Some).ok_or_else(|| wrong(claims, claim, "a time"))
}

fn wrong(claims: &Map<String, Value>, claim: &str, expected: &str) -> Refusal {
    let actual =
        claims.get(claim).map_or_else(|| "missing".to_owned(), |value| value.to_string().chars().take(200).collect());
    Refusal::Claim { claim: claim.to_owned(), actual, expected: expected.to_owned() }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests;
