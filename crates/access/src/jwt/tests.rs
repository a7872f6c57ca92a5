use std::path::Path;
use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use serde_json::json;

use super::*;

/// The time of the tests.
const NOW: u64 = 1_700_000_000;
/// An RSA key whose private part nobody has kept, and the one token that it signed: good until 900 s after [`NOW`].
const RSA_PEM: &str = include_str!("rsa.pub");
const RSA_TOKEN: &str = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6InIifQ.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJhdWQiOiJoZWFkd2F0ZXIiLCJzdWIiO\
    iJhbm5hIiwiZXhwIjoxNzAwMDAwOTAwfQ.GznfQB2DrtxpUQdsrngaE4jiYq7-GTU2ds64T_Saznx4rZUISYMxQjHigt1k13CT_l7H8ZNe-MGlQv_65J3LkR\
    _cKzOaBb_bzw56QizX0f415zoPJxFVWx5p4ZJ6L1LDNaSttDkF4XVCkLy0NcOrPJKfJqcGIOjYRxqDuER4TMIBdwHe0qn3mh-d8iN_G4cgzFo5YS72U7IiwZ\
    uE0IuNcuUQ1uQmaMBfHkDy3G8zqbj28JdYvun_6Cqgnye6_XH10SAB4-gHT8QUZKc2BYrbCgvDA2eejgnpn9jVGeppwb154dVwst4ZV6FwFq1pqRuc3h8ag6\
    1k4cxlrT0Wv9z4fw";

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
}

fn claims() -> Value {
    json!({"iss": "https://id.example", "aud": "headwater", "sub": "anna", "exp": NOW + 900})
}

/// The claims with some of them changed; null takes one away.
fn with(changes: &Value) -> Value {
    let mut claims = claims();
    let (all, changes) = (claims.as_object_mut().expect("an object"), changes.as_object().expect("an object"));
    for (name, value) in changes {
        if value.is_null() {
            all.remove(name);
        } else {
            all.insert(name.clone(), value.clone());
        }
    }
    claims
}

fn settings(source: KeySource) -> JwtSettings {
    let audience = Some("headwater".to_owned());
    JwtSettings { source, audience, issuer: Some("https://id.example".into()), user_claim: "sub".into() }
}

/// A provider that signs by ES256, with its public part as files have it.
struct Provider {
    pair: KeyPair,
    kid: String,
}

impl Provider {
    fn new(kid: &str) -> Provider {
        Provider { pair: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key"), kid: kid.into() }
    }

    fn sign(&self, claims: &Value) -> Secret {
        self.sign_as(&json!({"alg": "ES256", "kid": self.kid}), claims)
    }

    fn sign_as(&self, header: &Value, claims: &Value) -> Secret {
        let message = format!("{}.{}", part(header), part(claims));
        let key = EncodingKey::from_ec_der(&self.pair.serialize_der());
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::ES256).expect("signed");
        Secret::new(format!("{message}.{signature}"))
    }

    fn jwk(&self) -> Value {
        let point = self.pair.der_bytes();
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "kid": self.kid, "x": text(&point[1..33]), "y": text(&point[33..])})
    }
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn write_set(path: &Path, keys: &[Value]) {
    std::fs::write(path, json!({"keys": keys}).to_string()).expect("written");
}

fn verify(jwt: &Jwt, token: &Secret) -> Result<String, Refusal> {
    jwt.verify(token, now())
}

#[test]
fn a_good_token_of_each_kind_of_key_names_its_user() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, content: &[u8]| {
        std::fs::write(folder.path().join(name), content).expect("written");
        folder.path().join(name)
    };
    let provider = Provider::new("k");
    let secret = b"a secret of 32 bytes, or of more";
    let hs256 = encode(&jsonwebtoken::Header::default(), &claims(), &EncodingKey::from_secret(secret)).expect("signed");
    let set = file("set.json", json!({"keys": [provider.jwk()]}).to_string().as_bytes());
    let table = [
        (KeySource::Key(file("secret", &[secret.as_slice(), b"\n"].concat())), Secret::new(hs256)),
        (KeySource::Key(file("rsa.pem", RSA_PEM.as_bytes())), Secret::new(RSA_TOKEN)),
        (KeySource::Key(file("ec.pem", provider.pair.public_key_pem().as_bytes())), provider.sign(&claims())),
        (KeySource::Set(set), provider.sign(&claims())),
    ];
    for (source, token) in table {
        let jwt = Jwt::new(settings(source.clone())).expect("keys");
        assert_eq!(verify(&jwt, &token).as_deref(), Ok("anna"), "{source:?}");
        for other in [RSA_TOKEN, provider.sign(&claims()).expose()].into_iter().filter(|other| *other != token.expose())
        {
            let is_same_key = other.len() == token.expose().len();
            assert!(is_same_key || verify(&jwt, &Secret::new(other)).is_err(), "{source:?}");
        }
    }
}

#[test]
fn no_token_passes_under_another_algorithm_than_its_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let pem = folder.path().join("rsa.pem");
    std::fs::write(&pem, RSA_PEM).expect("written");
    let jwt = Jwt::new(settings(KeySource::Key(pem))).expect("a key");
    let hmac = |algorithm, secret: &[u8]| {
        let header = jsonwebtoken::Header::new(algorithm);
        encode(&header, &claims(), &EncodingKey::from_secret(secret)).expect("signed")
    };
    let signature = RSA_TOKEN.rsplit('.').next().expect("a signature");
    let none = |alg: &str, signature: &str| format!("{}.{}.{signature}", part(&json!({"alg": alg})), part(&claims()));
    let der = RSA_PEM.lines().filter(|line| !line.starts_with('-')).collect::<String>();
    let der = base64::engine::general_purpose::STANDARD.decode(der).expect("DER");
    let forged = [
        hmac(Algorithm::HS256, RSA_PEM.as_bytes()),
        hmac(Algorithm::HS256, RSA_PEM.trim_end().as_bytes()),
        hmac(Algorithm::HS256, &der),
        hmac(Algorithm::HS256, &der[24..]),
        hmac(Algorithm::HS512, RSA_PEM.as_bytes()),
        none("none", ""),
        none("None", ""),
        none("nOnE", signature),
        none("", ""),
        none("RS512", signature),
        none("PS256", signature),
        none("HS256", signature),
        none("ES256", signature),
    ];
    for token in forged {
        let refusal = verify(&jwt, &Secret::new(&token)).expect_err(&token);
        assert!(matches!(refusal, Refusal::Algorithm { .. }), "{refusal}: {token}");
    }
    assert_eq!(verify(&jwt, &Secret::new(none("RS256", ""))), Err(Refusal::Signature));
    assert_eq!(verify(&jwt, &Secret::new(none("RS256", signature))), Err(Refusal::Signature));
}

#[test]
fn claims_are_held_against_what_is_expected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("set.json");
    let provider = Provider::new("k");
    write_set(&path, &[provider.jwk()]);
    let jwt = Jwt::new(settings(KeySource::Set(path.clone()))).expect("keys");
    let good = [
        json!({"exp": NOW - 59}),
        json!({"exp": NOW as f64 + 0.5}),
        json!({"nbf": NOW}),
        json!({"nbf": NOW + 60}),
        json!({"aud": ["other", "headwater"]}),
        json!({"groups": ["a", "b"]}),
    ];
    for changes in good {
        assert_eq!(verify(&jwt, &provider.sign(&with(&changes))).as_deref(), Ok("anna"), "{changes}");
    }
    let bad = [
        ("exp", json!({"exp": null})),
        ("exp", json!({"exp": "1700000900"})),
        ("exp", json!({"exp": [NOW + 900]})),
        ("expired", json!({"exp": NOW - 60})),
        ("expired", json!({"exp": 0})),
        ("expired", json!({"exp": -1})),
        ("nbf", json!({"nbf": NOW + 61})),
        ("nbf", json!({"nbf": "later"})),
        ("aud", json!({"aud": null})),
        ("aud", json!({"aud": "Headwater"})),
        ("aud", json!({"aud": ["other"]})),
        ("aud", json!({"aud": []})),
        ("aud", json!({"aud": {"headwater": true}})),
        ("iss", json!({"iss": null})),
        ("iss", json!({"iss": "https://id.example/"})),
        ("iss", json!({"iss": ["https://id.example"]})),
        ("sub", json!({"sub": null})),
        ("sub", json!({"sub": ""})),
        ("sub", json!({"sub": 7})),
        ("sub", json!({"sub": "an\u{0}na"})),
        ("sub", json!({"sub": "a".repeat(257)})),
    ];
    for (at, changes) in bad {
        match verify(&jwt, &provider.sign(&with(&changes))).expect_err(at) {
            Refusal::Claim { claim, .. } => assert_eq!(claim, at, "{changes}"),
            Refusal::Expired => assert_eq!(at, "expired", "{changes}"),
            // Lists and objects where there should be none can fall through when the claims are read already.
            Refusal::Signature if changes[at].is_array() || changes[at].is_object() => {}
            other => panic!("{changes}: {other}"),
        }
    }
    // Where nothing is said of an audience, a token for somebody else's is none for this server.
    let source = KeySource::Set(path);
    let open = JwtSettings { source, audience: None, issuer: None, user_claim: "email".into() };
    let open = Jwt::new(open).expect("keys");
    let named = |changes: Value| provider.sign(&with(&changes));
    let email = "anna@shop.example";
    assert_eq!(verify(&open, &named(json!({"aud": null, "iss": null, "email": email}))).as_deref(), Ok(email));
    assert!(verify(&open, &named(json!({"email": email}))).is_err());
    assert!(verify(&open, &named(json!({"aud": null}))).is_err(), "sub is not the claim that was asked for");
}

#[test]
fn what_is_no_token_of_a_known_key_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("set.json");
    let (one, other, stranger) = (Provider::new("one"), Provider::new("other"), Provider::new("one"));
    write_set(&path, &[one.jwk(), other.jwk()]);
    let jwt = Jwt::new(settings(KeySource::Set(path))).expect("keys");
    let named = |header: Value| one.sign_as(&header, &claims());
    let good = one.sign(&claims());
    let text = good.expose().to_owned();
    let root = part(&with(&json!({"sub": "root"})));
    let [header, payload, signature] = text.split('.').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let table = [
        (named(json!({"alg": "ES256", "kid": "third"})), "no key \"third\""),
        (named(json!({"alg": "ES256"})), "there are several"),
        (named(json!({"alg": "ES256", "kid": "other"})), "signature"),
        (named(json!({"alg": "ES256", "kid": "one", "crit": ["b64"], "b64": false})), "crit"),
        (named(json!({"alg": "ES256", "kid": "one", "jwk": stranger.jwk(), "crit": []})), "crit"),
        (named(json!({"kid": "one"})), "no JWT"),
        (stranger.sign(&claims()), "signature"),
        (stranger.sign_as(&json!({"alg": "ES256", "kid": "one", "jwk": stranger.jwk()}), &claims()), "signature"),
        (one.sign(&with(&json!({"pad": "x".repeat(JWT_BYTES_MAX)}))), "no JWT"),
        (Secret::new(format!("{header}.{root}.{signature}")), "signature"),
        (Secret::new(format!("{header}.{payload}.")), "signature"),
        (Secret::new(format!("{header}.{payload}")), "no JWT"),
        (Secret::new(format!("{text}.")), "no JWT"),
        (Secret::new(String::new()), "no JWT"),
        (Secret::new(".."), "no JWT"),
    ];
    assert_eq!(verify(&jwt, &good).as_deref(), Ok("anna"));
    for (token, expected) in table {
        let refusal = verify(&jwt, &token).expect_err(token.expose()).to_string();
        assert!(refusal.contains(expected), "{refusal}: {}", token.expose());
    }
}

/// One bit of a good token flipped, anywhere: it is refused, or says the same.
#[test]
fn no_flipped_bit_goes_unnoticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("set.json");
    let provider = Provider::new("k");
    write_set(&path, &[provider.jwk()]);
    let jwt = Jwt::new(settings(KeySource::Set(path))).expect("keys");
    let token = provider.sign(&claims()).expose().to_owned();
    let at = |text: &str| text.rsplit_once('.').map(|(message, _)| message.to_owned());
    for place in 0..token.len() {
        for bit in 0..7 {
            let mut bytes = token.clone().into_bytes();
            bytes[place] ^= 1 << bit;
            let flipped = String::from_utf8(bytes).expect("ASCII");
            // The last character of a signature has bits that mean nothing; strict decoders refuse them, and so does ours.
            assert!(verify(&jwt, &Secret::new(&flipped)).is_err(), "bit {bit} of {place}: {:?}", at(&flipped));
        }
    }
}

#[test]
fn keys_are_rotated_under_a_running_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("set.json");
    let (old, new) = (Provider::new("old"), Provider::new("new"));
    write_set(&path, &[old.jwk()]);
    let jwt = Jwt::new(settings(KeySource::Set(path.clone()))).expect("keys");
    let good = |provider: &Provider| verify(&jwt, &provider.sign(&claims())).is_ok();
    assert_eq!((good(&old), good(&new)), (true, false));
    write_set(&path, &[old.jwk(), new.jwk()]);
    assert_eq!((good(&old), good(&new)), (true, true), "both while tokens of the old one are about");
    write_set(&path, &[new.jwk()]);
    assert_eq!((good(&old), good(&new)), (false, true), "a key that was taken away is good no more");
    for broken in ["", "{\"keys\": [", "{\"keys\": []}", "{\"keys\": [{\"kty\": \"oct\", \"k\": \"AAAA\"}]}"] {
        std::fs::write(&path, broken).expect("written");
        assert_eq!((good(&old), good(&new)), (false, true), "what can't be read changes nothing: {broken}");
    }
    std::fs::remove_file(&path).expect("removed");
    assert_eq!((good(&old), good(&new)), (false, true));
    // The usual way of atomic writers: another file takes the name.
    let other = folder.path().join("next.json");
    write_set(&other, &[old.jwk()]);
    std::fs::rename(&other, &path).expect("renamed");
    assert_eq!((good(&old), good(&new)), (true, false));
}

#[test]
fn a_settled_file_is_read_once_and_again_when_its_stamp_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("set.json");
    write_set(&path, &[Provider::new("a").jwk()]);
    let file = super::file::KeyFile::open(KeySource::Set(path.clone())).expect("keys");
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    // While the stamp is fresh each look reads; once it is not, the keys are the very same.
    while !std::sync::Arc::ptr_eq(&file.keys(), &file.keys()) {
        assert!(std::time::Instant::now() < deadline, "the file is read for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = file.keys();
    write_set(&path, &[Provider::new("b").jwk()]);
    assert_eq!(file.keys()[0].kid.as_deref(), Some("b"));
    assert_eq!(before[0].kid.as_deref(), Some("a"));
}

#[test]
fn keys_that_can_not_be_used_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    let fault = |content: &str, is_set: bool| {
        std::fs::write(&path, content).expect("written");
        let source = if is_set { KeySource::Set(path.clone()) } else { KeySource::Key(path.clone()) };
        Jwt::new(settings(source)).expect_err(content).to_string()
    };
    let private = Provider::new("k").pair.serialize_pem();
    let keys = [
        ("short", "secret of 5 bytes, expected at least 32"),
        ("short\n                                     ", "secret of 5 bytes"),
        (private.as_str(), "BEGIN PUBLIC KEY"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "can't be read"),
    ];
    for (content, expected) in keys {
        let fault = fault(content, false);
        assert!(fault.contains(expected) && fault.contains("jwt_key_file"), "{fault}");
    }
    let mut private = Provider::new("k").jwk();
    private["d"] = json!("AAAA");
    let jwk = |changes: Value| {
        let mut jwk = Provider::new("k").jwk();
        changes.as_object().expect("an object").iter().for_each(|(name, value)| jwk[name] = value.clone());
        jwk
    };
    let sets = [
        (private, "private"),
        (jwk(json!({"use": "enc"})), "not for signatures"),
        (jwk(json!({"key_ops": ["sign"]})), "verify"),
        (jwk(json!({"alg": "HS256"})), "HS256"),
        (jwk(json!({"alg": "none"})), "none"),
        (jwk(json!({"x": "AAAA"})), "curve"),
        (jwk(json!({"crv": "P-521"})), "P-521"),
        (json!({"kty": "oct", "k": "A".repeat(64)}), "jwt_key_file"),
        (json!({"kty": "RSA", "n": "A".repeat(300), "e": "AQAB"}), "2048 bits"),
        (json!("text"), "invalid type"),
    ];
    for (key, expected) in sets {
        let fault = fault(&json!({"keys": [key]}).to_string(), true);
        assert!(fault.contains(expected) && fault.contains("jwks_file"), "{fault}");
    }
    std::fs::remove_file(&path).expect("removed");
    assert!(matches!(Jwt::new(settings(KeySource::Set(path))), Err(JwtError::File { .. })));
}

/// Of a database that has none, MariaDB say.
#[tokio::test]
async fn without_accounts_a_providers_users_are_let_in_and_nobody_else() {
    use crate::{Access, Credentials, Error, Settings};
    let folder = tempfile::tempdir().expect("a folder");
    let (path, provider) = (folder.path().join("set.json"), Provider::new("one"));
    write_set(&path, &[provider.jwk()]);
    let later = SystemTime::now() + Duration::from_mins(15);
    let later = later.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let token = || Credentials::Token(provider.sign(&with(&json!({ "exp": later }))));
    let nobody = Access::without_accounts(Settings::default());
    assert!(matches!(nobody.authenticate(token()).await, Err(Error::Unauthenticated)));
    let access =
        Access::without_accounts(Settings::default()).with_jwt(Jwt::new(settings(KeySource::Set(path))).expect("keys"));
    assert_eq!(access.authenticate(token()).await.expect("known to the provider").name(), "anna");
    let forged = Credentials::Token(Provider::new("one").sign(&with(&json!({ "exp": later }))));
    assert!(access.authenticate(forged).await.is_err());
    let (user, password) = ("anna".to_owned(), Secret::new("secret"));
    let password = access.authenticate(Credentials::Password { user, password }).await;
    assert!(matches!(password, Err(Error::Unauthenticated)));
}
