//! Through the proxies that people have: a real nginx and a real HAProxy in front of two servers, by the configurations in docs/deploy.

use std::time::Duration;

use anyhow::{Context as _, Result};
use headwater_testkit::{FRONTS, Front, Proxied, free_port};
use headwater_tests::{Central, Kind, World};

const SCHEMA: &str = "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, body TEXT);";
const MODEL: &str = "name = \"notes\"\nversion = 1\n[tables.note]\nkey = [\"id\"]\n[tables.note.columns]\nid = \"text not null\"\n\
    body = \"text\"\n";

/// Random text, which does not pack: as many rows of 2,000 bytes.
fn rows(prefix: &str, count: u32) -> String {
    format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
         INSERT INTO note SELECT '{prefix}' || i, hex(randomblob(1000)) FROM n"
    )
}

struct Fronted {
    world: World,
    servers: [std::net::SocketAddr; 2],
    proxied: Proxied,
}

fn behind(front: Front, kind: Kind, heartbeat_ms: u64, change: impl FnOnce(String) -> String) -> Result<Fronted> {
    let mut world = World::unserved(kind, SCHEMA, MODEL, &["ann"])?;
    world.config.heartbeat_ms = heartbeat_ms;
    let servers = [world.start_another_server(Some(free_port()?))?, world.start_another_server(Some(free_port()?))?];
    let proxied = front.start(servers, change)?;
    Ok(Fronted { world, servers, proxied })
}

#[test]
fn large_syncs_pass_the_default_limits() -> Result<()> {
    for front in FRONTS {
        let Fronted { world, proxied, .. } = behind(front, Kind::Postgres, 5_000, |text| text)?;
        let mut one = world.remote_at("one", "ann", &proxied.url())?;
        world.sync(&mut one)?;
        world.edit("one", &rows("a", 2_500))?;
        let report = world.sync(&mut one).with_context(|| format!("{front:?}"))?;
        assert_eq!((report.changes_up, report.refused, report.failures), (2_500, 0, 0), "{front:?}");
        let numbers = one.status()?.upload_sequence;
        assert_eq!(numbers, 1, "{front:?}: an upload of 5 MB goes in pieces, under one number");
        // Few changes, but large ones: the limit is met in the midst of a body that did not ask first.
        world.edit(
            "one",
            "INSERT INTO note SELECT 'large' || value, hex(randomblob(400000)) FROM json_each('[1, 2, 3]')",
        )?;
        assert_eq!(world.sync(&mut one)?.refused, 0, "{front:?}");
        let mut two = world.remote_at("two", "ann", &proxied.url())?;
        assert_eq!(world.sync(&mut two)?.rows_down, 2_503, "{front:?}");
        assert!(world.diff("one")?.is_equal(false) && world.diff("two")?.is_equal(false), "{front:?}");
    }
    Ok(())
}

/// Each request meets another server: pieces are of no use, and a large upload is cut smaller as far as the proxy asks.
#[test]
fn large_syncs_pass_without_affinity_too() -> Result<()> {
    for front in FRONTS {
        let by_turns = |text: String| match front {
            Front::Nginx => text.replace("hash $http_headwater_remote_id consistent;", ""),
            Front::Haproxy => text.replace("balance hdr(Headwater-Remote-Id)", "balance roundrobin"),
        };
        let Fronted { world, proxied, .. } = behind(front, Kind::Sqlite, 5_000, by_turns)?;
        let mut one = world.remote_at("one", "ann", &proxied.url())?;
        world.sync(&mut one)?;
        world.edit("one", &rows("a", 2_500))?;
        let report = world.sync(&mut one).with_context(|| format!("{front:?}"))?;
        assert_eq!((report.changes_up, report.refused), (2_500, 0), "{front:?}");
        assert!(world.diff("one")?.is_equal(false), "{front:?}");
    }
    Ok(())
}

/// A sync waits for the database longer than the proxy waits for a byte: heartbeats keep it.
#[test]
fn heartbeats_outlast_the_proxys_patience() -> Result<()> {
    for front in FRONTS {
        let impatient = |text: String| match front {
            Front::Nginx => text.replace("proxy_pass", "proxy_read_timeout 2s; proxy_send_timeout 2s; proxy_pass"),
            Front::Haproxy => text.replace("50000", "2000"),
        };
        let Fronted { world, proxied, .. } = behind(front, Kind::Postgres, 200, impatient)?;
        let mut one = world.remote_at("one", "ann", &proxied.url())?;
        world.sync(&mut one)?;
        world.edit("one", "INSERT INTO note VALUES ('x', 'waits')")?;
        let Central::Postgres(url) = &world.central else { unreachable!("it is PostgreSQL") };
        let url = url.clone();
        let (locked, is_locked) = std::sync::mpsc::channel();
        let blocker = std::thread::spawn(move || -> Result<()> {
            let mut client = postgres_client(&url)?;
            client("BEGIN; LOCK TABLE note IN ACCESS EXCLUSIVE MODE")?;
            locked.send(())?;
            std::thread::sleep(Duration::from_secs(6));
            client("COMMIT")
        });
        is_locked.recv()?;
        let report = world.sync(&mut one).with_context(|| format!("{front:?}"))?;
        blocker.join().expect("the blocker ends")?;
        assert_eq!((report.changes_up, report.failures), (1, 0), "{front:?}");
    }
    Ok(())
}

/// A connection that stays open between statements.
fn postgres_client(url: &str) -> Result<impl FnMut(&str) -> Result<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (client, connection) = runtime.block_on(tokio_postgres::connect(url, tokio_postgres::NoTls))?;
    runtime.spawn(connection);
    Ok(move |sql: &str| Ok(runtime.block_on(client.batch_execute(sql))?))
}

/// Servers go and come back one after the other, as when a new version is rolled out; syncs go on.
#[test]
fn servers_are_replaced_one_by_one() -> Result<()> {
    for front in FRONTS {
        let Fronted { mut world, servers, proxied } = behind(front, Kind::Sqlite, 5_000, |text| text)?;
        let mut one = world.remote_at("one", "ann", &proxied.url())?;
        for round in 0..6 {
            let server = servers[round % 2];
            world.stop_another_server(server);
            world.edit("one", &rows(&format!("r{round}-"), 50))?;
            let report = world.sync(&mut one).with_context(|| format!("{front:?}, round {round}"))?;
            assert_eq!((report.changes_up, report.refused), (50, 0), "{front:?}, round {round}");
            world.start_another_server(Some(server.port()))?;
        }
        assert!(world.diff("one")?.is_equal(false), "{front:?}");
        assert_eq!(world.central.rows("SELECT count(*) FROM note")?, [[Some("300".to_owned())]]);
    }
    Ok(())
}
