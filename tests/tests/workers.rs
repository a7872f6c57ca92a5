//! Servers on one database find how many workers each may have. The only test of its program: connections of others would count.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_testkit::wait_until;
use headwater_tests::{Kind, World};

const SCHEMA: &str = "CREATE TABLE item (id text NOT NULL PRIMARY KEY, note text)";

const MODEL: &str = r#"
name = "workers"
version = 1
[tables.item]
conflict = "remote_wins"
key = ["id"]
columns = { id = "text not null", note = "text" }
"#;

/// A share is looked at every 15 seconds.
const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn servers_on_one_database_share_its_connections() -> Result<()> {
    let mut world = World::unserved(Kind::Postgres, SCHEMA, MODEL, &["ann"])?;
    world.config.workers_max = 1_000;
    world.start_server()?;
    let first = world.address()?;
    let mut alone = 0;
    ensure!(wait_until(PATIENCE, || load(first, "workers_max").is_ok_and(|most| {
        alone = most;
        most < 1_000
    })));
    let connections = world.central.rows("SHOW max_connections")?.concat().into_iter().flatten().next();
    let connections: u64 = connections.context("no number")?.parse()?;
    ensure!(alone > connections / 2, "{alone} of {connections}");
    let second = world.start_another_server(None)?;
    let both = || Ok::<_, anyhow::Error>((load(first, "workers_max")?, load(second, "workers_max")?));
    let mut seen = (0, 0);
    let is_shared = wait_until(PATIENCE, || {
        both().is_ok_and(|now| {
            seen = now;
            now.0 <= alone / 2 && now.1 <= alone / 2
        })
    });
    ensure!(is_shared, "{seen:?}, {alone} alone");
    ensure!(seen.0 + seen.1 < connections * 4 / 5 && seen.0 > alone / 4, "{seen:?} of {connections}");
    // One that is gone leaves its share to the other.
    world.stop_another_server(second);
    ensure!(wait_until(PATIENCE, || load(first, "workers_max").is_ok_and(|most| most == alone)));
    let mut remote = world.remote("ann", "ann")?;
    world.edit("ann", "INSERT INTO item VALUES ('a', 'b')")?;
    world.sync(&mut remote)?;
    ensure!(world.diff("ann")?.is_equal(false));
    Ok(())
}

/// A number of what a server says of its load.
fn load(address: SocketAddr, name: &str) -> Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.find('{').map(|begin| &answer[begin..]).context("no load")?;
    let json: serde_json::Value = serde_json::from_str(body)?;
    json["load"][name].as_u64().with_context(|| format!("no {name}: {body}"))
}
