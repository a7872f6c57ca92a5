//! The keys of a file: one secret or public key, or a JWK Set. Each has one algorithm.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::Value;
use spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};

use crate::token::KEY_BYTES_MIN;

/// The most keys in a set.
const KEYS_MAX: usize = 100;
/// The fewest bytes in the modulus of an RSA key: 2,048 bits (RFC 7518, 3.3).
const MODULUS_BYTES_MIN: usize = 256;
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
const P_256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P_384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");

/// A key that signatures are held against.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) kid: Option<String>,
    /// The one algorithm that it is for.
    pub(super) algorithm: Algorithm,
    pub(super) decoding: DecodingKey,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({:?}, {:?}, ...)", self.kid, self.algorithm)
    }
}

/// The key of a file with one: PEM is a public key, anything else a secret.
pub(super) fn one(content: &[u8]) -> Result<Key, String> {
    if content.windows(10).any(|bytes| bytes == b"-----BEGIN") {
        return public(content);
    }
    let end = content.iter().rposition(|byte| !byte.is_ascii_whitespace()).map_or(0, |last| last + 1);
    let secret = &content[..end];
    if secret.len() < KEY_BYTES_MIN {
        return Err(format!(
            "has a secret of {} bytes, expected at least {KEY_BYTES_MIN}, or a public key in PEM",
            secret.len()
        ));
    }
    Ok(Key { kid: None, algorithm: Algorithm::HS256, decoding: DecodingKey::from_secret(secret) })
}

fn public(content: &[u8]) -> Result<Key, String> {
    const EXPECTED: &str = "expected a public key (BEGIN PUBLIC KEY; `openssl pkey -pubout` writes it)";
    let der = SubjectPublicKeyInfoDer::from_pem_slice(content).map_err(|_| format!("has no public key, {EXPECTED}"))?;
    let info = SubjectPublicKeyInfoRef::try_from(der.as_ref());
    let info = info.map_err(|_| format!("has a public key that can't be read, {EXPECTED}"))?;
    let bits = info.subject_public_key.as_bytes().unwrap_or_default();
    let (algorithm, decoding) = match (info.algorithm.oid, info.algorithm.parameters_oid().ok()) {
        (RSA, _) if bits.len() <= MODULUS_BYTES_MIN => return Err("has an RSA key of less than 2048 bits".into()),
        (RSA, _) => (Algorithm::RS256, DecodingKey::from_rsa_der(bits)),
        (EC, Some(P_256)) => (Algorithm::ES256, DecodingKey::from_ec_der(bits)),
        (EC, Some(P_384)) => (Algorithm::ES384, DecodingKey::from_ec_der(bits)),
        (ED25519, _) => (Algorithm::EdDSA, DecodingKey::from_ed_der(bits)),
        (other, _) => {
            return Err(format!("has a public key of kind {other}, expected RSA, EC on P-256 or P-384, or Ed25519"));
        }
    };
    Ok(Key { kid: None, algorithm, decoding })
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    #[serde(flatten)]
    members: BTreeMap<String, Value>,
}

/// The keys of a JWK Set. Those that can't be used are left out (RFC 7517, 5), with the reason.
pub(super) fn set(content: &[u8]) -> Result<(Vec<Key>, Vec<String>), String> {
    let set: Set = serde_json::from_slice(content)
        .map_err(|error| format!("is no JWK Set ({error}), expected {{\"keys\": [...]}}"))?;
    if set.keys.len() > KEYS_MAX {
        return Err(format!("has {} keys, expected at most {KEYS_MAX}", set.keys.len()));
    }
    let (mut keys, mut left_out) = (Vec::new(), Vec::new());
    for value in set.keys {
        let named = value.get("kid").map_or_else(|| "without a kid".to_owned(), Value::to_string);
        let jwk = serde_json::from_value::<Jwk>(value).map_err(|error| error.to_string());
        match jwk.and_then(of_set) {
            Ok(key) => keys.push(key),
            Err(fault) => left_out.push(format!("key {named}: {fault}")),
        }
    }
    if keys.is_empty() {
        let why = if left_out.is_empty() { "it is empty".to_owned() } else { left_out.join("; ") };
        return Err(format!("has no key that can be used: {why}"));
    }
    Ok((keys, left_out))
}

fn of_set(jwk: Jwk) -> Result<Key, String> {
    if jwk.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
        return Err("it is not for signatures".into());
    }
    if jwk.key_ops.as_ref().is_some_and(|operations| !operations.iter().any(|operation| operation == "verify")) {
        return Err("its key_ops lack verify".into());
    }
    if jwk.members.contains_key("d") {
        return Err("it is a private key; only the public part belongs here".into());
    }
    let (possible, decoding) = decoding(&jwk)?;
    let algorithm = match &jwk.alg {
        None => possible[0],
        Some(alg) => *possible
            .iter()
            .find(|algorithm| format!("{algorithm:?}") == *alg)
            .ok_or_else(|| format!("its algorithm {alg:?} is not one of {possible:?}"))?,
    };
    Ok(Key { kid: jwk.kid, algorithm, decoding })
}

/// The algorithms that a key could be for, the usual one first, and the key itself.
fn decoding(jwk: &Jwk) -> Result<(&'static [Algorithm], DecodingKey), String> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let bytes = |name: &str| {
        let text = jwk.members.get(name).and_then(Value::as_str);
        text.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()).ok_or_else(|| format!("its {name:?} can't be read"))
    };
    let point = |length: usize| {
        let (x, y) = (bytes("x")?, bytes("y")?);
        let is_sound = x.len() == length && y.len() == length;
        is_sound.then(|| [&[4], x.as_slice(), &y].concat()).ok_or_else(|| "its point is not on its curve".to_owned())
    };
    match (jwk.kty.as_str(), jwk.members.get("crv").and_then(Value::as_str)) {
        ("RSA", _) => {
            let (n, e) = (bytes("n")?, bytes("e")?);
            if n.len() < MODULUS_BYTES_MIN {
                return Err("it has less than 2048 bits".into());
            }
            Ok((&[RS256, RS384, RS512, PS256, PS384, PS512], DecodingKey::from_rsa_raw_components(&n, &e)))
        }
        ("EC", Some("P-256")) => Ok((&[ES256], DecodingKey::from_ec_der(&point(32)?))),
        ("EC", Some("P-384")) => Ok((&[ES384], DecodingKey::from_ec_der(&point(48)?))),
        ("OKP", Some("Ed25519")) => Ok((&[EdDSA], DecodingKey::from_ed_der(&bytes("x")?))),
        ("oct", _) => Err("it is a secret, which belongs into jwt_key_file".into()),
        (kty, curve) => Err(format!("its kind {kty:?} {} is not known here", curve.unwrap_or_default())),
    }
}
