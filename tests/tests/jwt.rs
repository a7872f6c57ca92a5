//! Users of an identity provider sync with its tokens, on both databases, while its keys are rotated under the running server.

use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headwater_consolidated::system;
use headwater_remote::http::{Credentials, Server, fetch_model};
use headwater_remote::{Remote, SyncOptions};
use headwater_testkit::headwater_binary;
use headwater_tests::{KINDS, Kind, World};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PublicKeyData as _};
use serde_json::{Value, json};

const HERE: &str = "headwater";

const SCHEMA: &str = "CREATE TABLE note (id text NOT NULL PRIMARY KEY, owner text NOT NULL, body text);
    INSERT INTO note VALUES ('a', 'ann', 'of ann'), ('z', 'auth0|zed', 'of zed');";

const MODEL: &str = r#"
name = "notes"
version = 1
[partitions.owner]
columns = { owner = "text" }
members = "SELECT :s.user"
[tables.note]
conflict = "remote_wins"
key = ["id"]
partition = "owner"
[tables.note.columns]
id = "text not null"
owner = "text not null"
body = "text"
"#;

struct Provider {
    pair: KeyPair,
    kid: &'static str,
}

impl Provider {
    fn new(kid: &'static str) -> Result<Provider> {
        Ok(Provider { pair: KeyPair::generate()?, kid })
    }

    fn jwk(&self) -> Value {
        let point = self.pair.der_bytes();
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.kid,
            "x": text(&point[1..33]), "y": text(&point[33..]),
        })
    }

    fn token(&self, user: &str, audience: &str) -> Result<String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let claims = json!({
            "iss": "https://id.example", "aud": [audience], "sub": "00u1", "email": user, "iat": now, "exp": now + 3600,
        });
        let header = Header { kid: Some(self.kid.into()), ..Header::new(Algorithm::ES256) };
        Ok(encode(&header, &claims, &EncodingKey::from_ec_der(&self.pair.serialize_der()))?)
    }
}

/// Syncs with a token; gives the code of what went wrong.
fn sync(remote: &mut Remote, token: String) -> Result<(), String> {
    let mut options = SyncOptions::new(Credentials::Token(token));
    remote.sync(&mut options).map(|_| ()).map_err(|error| error.code().to_owned())
}

#[test]
fn users_of_an_identity_provider_sync_with_its_tokens() -> Result<()> {
    for kind in KINDS {
        story(kind).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// A server that takes the provider's tokens, and the file of its keys.
fn provided(kind: Kind, provider: &Provider) -> Result<(World, PathBuf)> {
    let mut world = World::unserved(kind, SCHEMA, MODEL, &["ann"])?;
    let file = world.folder.path().join("keys.json");
    std::fs::write(&file, json!({ "keys": [provider.jwk()] }).to_string())?;
    world.config.jwks_file = Some(file.clone());
    world.config.jwt_audience = Some(HERE.into());
    world.config.jwt_issuer = Some("https://id.example".into());
    world.config.jwt_user_claim = "email".into();
    world.config.account_cache_ms = 0;
    world.start_server()?;
    Ok((world, file))
}

fn story(kind: Kind) -> Result<()> {
    let (old, new) = (Provider::new("old")?, Provider::new("new")?);
    let (mut world, file) = provided(kind, &old)?;
    let write = |keys: &[Value]| -> Result<()> {
        let next = file.with_extension("next");
        std::fs::write(&next, json!({ "keys": keys }).to_string())?;
        Ok(std::fs::rename(&next, &file)?)
    };

    // Who has an account, and who is known to the provider alone: both ways.
    let (mut ann, mut zed) = (world.remote("ann", "ann")?, world.remote("zed", "auth0|zed")?);
    assert_eq!(sync(&mut ann, old.token("ann", HERE)?), Ok(()));
    assert_eq!(sync(&mut zed, old.token("auth0|zed", HERE)?), Ok(()));
    world
        .edit("zed", "INSERT INTO note VALUES ('z2', 'auth0|zed', 'made offline'), ('a2', 'ann', 'not his to make')")?;
    assert_eq!(sync(&mut zed, old.token("auth0|zed", HERE)?), Ok(()));
    let ids = world.central.rows("SELECT id FROM note ORDER BY id")?;
    assert_eq!(ids, [["a"], ["z"], ["z2"]].map(|row| row.map(|id| Some(id.to_owned())).to_vec()), "his own rows alone");
    assert_eq!(sync(&mut ann, world.token("ann")?), Ok(()), "Headwater's own tokens are good beside them");

    // Who the provider says it is need not be whom the remote is made for.
    let zeds = Credentials::Token(old.token("auth0|zed", HERE)?);
    let server = Server { url: world.server_url()?, credentials: zeds, ca_file: None };
    let error = fetch_model(&server, "ann", None).expect_err("ann's rows would be zed's");
    ensure!(error.code() == "forbidden" && error.to_string().contains("auth0|zed"), "{error}");
    assert_eq!(fetch_model(&server, "auth0|zed", None)?.name, world.plan.model.name);

    // Keys are rotated while the server runs.
    let refused = || Err("unauthenticated".to_owned());
    assert_eq!(sync(&mut ann, new.token("ann", HERE)?), refused());
    write(&[old.jwk(), new.jwk()])?;
    assert_eq!(sync(&mut ann, new.token("ann", HERE)?), Ok(()));
    assert_eq!(sync(&mut ann, old.token("ann", HERE)?), Ok(()));
    write(&[new.jwk()])?;
    assert_eq!(sync(&mut ann, old.token("ann", HERE)?), refused());

    // Tokens for somebody else, and a user who is disabled here.
    assert_eq!(sync(&mut ann, new.token("ann", "payroll")?), refused());
    system::set_account_disabled(&mut *world.central.backend()?.connect()?, "ann", true)?;
    assert_eq!(sync(&mut ann, new.token("ann", HERE)?), Err("forbidden".into()));
    assert_eq!(sync(&mut zed, new.token("auth0|zed", HERE)?), Ok(()));

    // A server without the file takes none of them.
    world.stop_server();
    world.config.jwks_file = None;
    (world.config.jwt_audience, world.config.jwt_issuer) = (None, None);
    world.start_server()?;
    let mut other = world.remote("other", "auth0|zed")?;
    assert_eq!(sync(&mut other, new.token("auth0|zed", HERE)?), refused());
    Ok(())
}

#[test]
fn a_remote_takes_nobody_elses_token() -> Result<()> {
    for kind in KINDS {
        somebody_elses_token(kind).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

fn text(rows: Vec<Vec<Option<String>>>) -> String {
    rows.into_iter().flatten().flatten().collect()
}

/// Which user a provider's token names, the command can't read: the claim is the server's to choose.
fn somebody_elses_token(kind: Kind) -> Result<()> {
    const OTHER: &str = "auth0|Zoë";
    let provider = Provider::new("key")?;
    let (world, _) = provided(kind, &provider)?;
    world.central.execute(&format!("INSERT INTO note VALUES ('o', '{OTHER}', 'of another')"))?;
    let url = world.server_url()?;
    let run = |user: &str, arguments: &[&str]| -> Result<(Option<i32>, String)> {
        let mut command = Command::new(headwater_binary()?);
        command.current_dir(world.folder.path()).args(arguments);
        let done = command.env("HEADWATER_TOKEN", provider.token(user, HERE)?).output()?;
        Ok((done.status.code(), String::from_utf8([done.stdout, done.stderr].concat())?))
    };
    let refused = |arguments: &[&str]| -> Result<()> {
        let (code, said) = run(OTHER, arguments)?;
        let words = format!("the token belongs to user {OTHER:?}, this remote to user \"ann\"");
        ensure!(code == Some(2) && said.contains(&words), "{arguments:?}: {code:?}: {said}");
        Ok(())
    };
    let create = ["remote", "create", "ann.db", "--server", &url, "--user", "ann"];
    refused(&create)?;
    assert_eq!(run("ann", &create)?.0, Some(0), "it was not made, so it can be made now");
    refused(&["remote", "sync", "ann.db"])?;
    assert_eq!(run("ann", &["remote", "sync", "ann.db"])?.0, Some(0));

    // What waits goes with the request, then by a ticket: nothing of it is anywhere, and nothing of the remote is touched.
    const IDS: &str = "SELECT id FROM note ORDER BY id";
    let centre = || Ok::<_, anyhow::Error>(text(world.central.rows(IDS)?));
    let hers = || Ok::<_, anyhow::Error>(text(world.rows("ann", IDS)?));
    for (sql, at_ann, after) in [
        ("INSERT INTO note VALUES ('b', 'ann', 'small')", "ab", "aboz"),
        ("INSERT INTO note VALUES ('c', 'ann', hex(randomblob(1000000)))", "abc", "abcoz"),
    ] {
        let before = centre()?;
        world.edit("ann", sql)?;
        refused(&["remote", "sync", "ann.db"])?;
        refused(&["remote", "upgrade", "ann.db"])?;
        assert_eq!(centre()?, before);
        assert_eq!(hers()?, at_ann);
        let (code, said) = run("ann", &["remote", "sync", "ann.db"])?;
        ensure!(code == Some(0) && said.contains("up    1 changes, 0 conflicts, 0 refused"), "{code:?}: {said}");
        assert_eq!(centre()?, after);
    }
    ensure!(world.diff("ann")?.is_equal(false), "they are equal");

    // A program that means it gives the file to another user.
    let mut remote = Remote::open(world.path("ann"))?;
    remote.set_server(&url, OTHER)?;
    assert_eq!(sync(&mut remote, provider.token("ann", HERE)?), Err("forbidden".into()), "it is not hers any more");
    assert_eq!(sync(&mut remote, provider.token(OTHER, HERE)?), Ok(()));
    assert_eq!(hers()?, "o");
    Ok(())
}
