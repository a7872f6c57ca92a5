//! Shared partitions: built once by the server, in chunks that a real Squid keeps, got by real remotes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use headwater_remote::{Phase, Progress, Remote, SyncOptions, SyncReport, http::Credentials};
use headwater_server::Config;
use headwater_testkit::proxy::{Cut, Direction, Plan};
use headwater_testkit::{FaultProxy, Random, Squid};
use headwater_tests::{KINDS, Kind, World};

/// What every row has, in plain text.
const MARKER: &str = "plain-marker";
const ROWS: u32 = 9_000;

const MODEL: &str = r#"
name = "shared"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE login = :s.user"
[tables.item]
key = ["id"]
partition = "region"
shared = true
columns = { id = "int not null", region = "text", body = "bytes", note = "text" }
"#;

/// Rows that do not pack: two megabytes in `s`, few in `w`.
fn schema(kind: Kind) -> String {
    let hashes: Vec<String> =
        (0..12).map(|place| format!("decode(md5(i::text || '{place}' || random()::text), 'hex')")).collect();
    let (bytes, random, series) = match kind {
        Kind::Sqlite => (
            "BLOB",
            "randomblob(200)".to_owned(),
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < COUNT)",
        ),
        Kind::Postgres => ("bytea", hashes.join(" || "), "WITH n(i) AS (SELECT generate_series(1, COUNT))"),
    };
    let series = series.replace("COUNT", &ROWS.to_string());
    format!(
        "CREATE TABLE member (login text, region text);
         INSERT INTO member VALUES ('ann', 's'), ('ben', 's'), ('cleo', 'w');
         CREATE TABLE item (id integer NOT NULL PRIMARY KEY, region text, body {bytes}, note text);
         {series} INSERT INTO item SELECT i, CASE WHEN i % 100 = 0 THEN 'w' ELSE 's' END, {random}, '{MARKER}' FROM n"
    )
}

fn world(kind: Kind, change: impl FnOnce(&mut Config)) -> Result<World> {
    let mut world = World::unserved(kind, &schema(kind), MODEL, &["ann", "ben", "cleo"])?;
    change(&mut world.config);
    world.start_server()?;
    Ok(world)
}

/// What a server answers to a GET, head and all.
fn get(address: SocketAddr, path: &str) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: headwater\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// A number of `/ready`.
fn ready(address: SocketAddr, name: &str) -> Result<u64> {
    let answer = String::from_utf8(get(address, "/ready")?)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    serde_json::from_str::<serde_json::Value>(body)?[name].as_u64().with_context(|| format!("no {name} in {body}"))
}

fn sync_with(
    world: &World,
    remote: &mut Remote,
    user: &str,
    change: impl FnOnce(&mut SyncOptions<'_>),
) -> Result<SyncReport> {
    let mut options = SyncOptions::new(Credentials::Token(world.token(user)?));
    change(&mut options);
    Ok(remote.sync(&mut options)?)
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// A dozen remotes at once: one query, each chunk asked for at the server once or twice, and a cache in which nothing can be read.
#[test]
fn many_remotes_take_one_partition_through_squid() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, |_| {})?;
        let squid = Squid::in_front_of(world.address()?)?;
        let names: Vec<String> = (0..12).map(|number| format!("r{number}")).collect();
        std::thread::scope(|scope| {
            let (world, squid) = (&world, &squid);
            let sync = |name: &String| -> Result<()> {
                let mut remote =
                    world.remote_at(name, if name.ends_with('1') { "ben" } else { "ann" }, &squid.url())?;
                let report = world.sync(&mut remote)?;
                ensure!(
                    (report.rows_down, report.failures, report.requests) == (u64::from(ROWS / 100 * 99), 0, 1),
                    "{report:?}"
                );
                Ok(())
            };
            let all: Vec<_> = names.iter().map(|name| scope.spawn(move || sync(name))).collect();
            all.into_iter().try_for_each(|one| one.join().expect("no panic"))
        })
        .with_context(|| format!("{kind:?}"))?;
        for name in &names {
            ensure!(world.diff(name)?.is_equal(false), "{kind:?}: {name} differs");
        }
        let (builds, requests) =
            (ready(world.address()?, "shared_builds")?, ready(world.address()?, "chunk_requests")?);
        let answers = squid.answers("/v1/chunk/");
        let chunks = answers.len() as u64 / 12;
        ensure!(builds == 1, "{kind:?}: built {builds} times");
        ensure!(chunks >= 3 && answers.len() as u64 == chunks * 12, "{kind:?}: {answers:?}");
        ensure!(
            (chunks..=2 * chunks).contains(&requests),
            "{kind:?}: {requests} requests for {chunks} chunks: {answers:?}"
        );
        let cached = squid.cached()?;
        ensure!(cached.len() as u64 > 1_900_000, "{kind:?}: {} bytes on the cache's disk", cached.len());
        ensure!(!contains(&cached, MARKER), "{kind:?}: the cache can be read");
        // The test could tell: without chunks the rows pass as they are.
        let proxy = FaultProxy::start(world.address()?)?;
        proxy.record(true);
        let mut plain = world.remote_at("plain", "ann", &format!("http://{}", proxy.address()))?;
        sync_with(&world, &mut plain, "ann", |options| options.config.takes_chunks = false)?;
        let passed = proxy
            .connections()
            .into_iter()
            .filter_map(|traffic| traffic.recorded)
            .any(|(_, down)| contains(&down, MARKER));
        ensure!(passed, "{kind:?}: frames are packed, and nothing is shown by what the cache has");
    }
    Ok(())
}

/// What changes while and after a partition is built is topped up; what leaves it goes.
#[test]
fn what_changes_meanwhile_arrives() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, |_| {})?;
        let mut random = Random::seeded(7);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let writing = scope.spawn(|| -> Result<()> {
                while !stop.load(Ordering::Relaxed) {
                    let (id, other) = (random.below(u64::from(ROWS)), random.below(u64::from(ROWS)));
                    world.central.execute(&match random.below(4) {
                        0 => format!("DELETE FROM item WHERE id = {id}"),
                        1 => format!("UPDATE item SET region = 'w' WHERE id = {id}; UPDATE item SET region = 's' WHERE id = {other}"),
                        2 => format!("INSERT INTO item VALUES ({id} + 100000, 's', NULL, 'new') ON CONFLICT DO NOTHING"),
                        _ => format!("UPDATE item SET note = 'n{other}' WHERE id = {id}"),
                    })?;
                }
                Ok(())
            });
            for number in 0..6 {
                let mut remote = world.remote(&format!("r{number}"), "ann")?;
                ensure!(world.sync(&mut remote)?.failures == 0, "{kind:?}");
            }
            stop.store(true, Ordering::Relaxed);
            writing.join().expect("no panic")
        })?;
        ensure!(ready(world.address()?, "shared_builds")? == 1, "{kind:?}: the others were topped up");
        // A new one, from what was built before all of that; and those that have seen some of it.
        world.sync(&mut world.remote("late", "ben")?)?;
        ensure!(ready(world.address()?, "shared_builds")? == 1, "{kind:?}");
        ensure!(world.diff("late")?.is_equal(false), "{kind:?}: {:?}", world.diff("late")?);
        for number in 0..6 {
            let name = format!("r{number}");
            world.sync(&mut Remote::open(world.path(&name))?)?;
            ensure!(world.diff(&name)?.is_equal(false), "{kind:?}, {name}: {:?}", world.diff(&name)?);
        }
    }
    Ok(())
}

/// Chunks that are not to be had, for whatever reason: the sync ends well all the same, by asking again.
#[test]
fn chunks_that_are_not_to_be_had_are_done_without() -> Result<()> {
    for kind in KINDS {
        let mut world = world(kind, |_| {})?;
        // Another server, or one that was started anew, has none of them.
        let elsewhere = world.start_another_server(None)?;
        // A cache that gives other bytes, one that breaks off, one that answers nothing.
        let proxy = |plan: Plan| -> Result<FaultProxy> {
            let proxy = FaultProxy::start(elsewhere)?;
            proxy.script(move |_| plan.clone());
            Ok(proxy)
        };
        let damaging = proxy(Plan::clean().flip(Direction::Down, 100_000))?;
        let breaking = proxy(Plan::clean().cut(Direction::Down, 100_000, Cut::Reset))?;
        let cases =
            [("elsewhere", elsewhere, 0), ("damaging", damaging.address(), 0), ("breaking", breaking.address(), 2)];
        for (name, address, failures) in cases {
            world.config.chunk_url = Some(format!("http://{address}/"));
            world.start_server()?;
            if name != "elsewhere" {
                for proxy in [&damaging, &breaking] {
                    proxy.set_target(world.address()?)?;
                }
            }
            let mut remote = world.remote(name, "ann")?;
            let report = sync_with(&world, &mut remote, "ann", |options| {
                options.config.backoff_min = std::time::Duration::from_millis(1);
            })?;
            ensure!((report.requests, report.failures) == (2, failures), "{kind:?}, {name}: {report:?}");
            ensure!(report.rows_down == u64::from(ROWS / 100 * 99), "{kind:?}, {name}: {report:?}");
            ensure!(world.diff(name)?.is_equal(false), "{kind:?}, {name}");
            ensure!(
                world.rows(name, "SELECT count(*) FROM hw_staged")? == [[Some("0".to_owned())]],
                "{kind:?}, {name}"
            );
        }
    }
    Ok(())
}

/// They are gone before the remote gets them; a later sync has them built anew.
#[test]
fn chunks_that_have_expired_are_done_without() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, |config| config.shared_ms = 1)?;
        let mut remote = world.remote("one", "ann")?;
        let report = world.sync(&mut remote)?;
        ensure!(report.requests == 2, "{kind:?}: {report:?}");
        ensure!(world.diff("one")?.is_equal(false), "{kind:?}");
        world.sync(&mut world.remote("two", "ann")?)?;
        ensure!(ready(world.address()?, "shared_builds")? == 2, "{kind:?}");
    }
    Ok(())
}

/// The sync ends among the chunks: the next gets those that are missing, and no other.
#[test]
fn what_has_come_of_chunks_is_not_asked_for_again() -> Result<()> {
    for kind in KINDS {
        let world = world(kind, |_| {})?;
        let mut remote = world.remote("one", "ann")?;
        let cancel = AtomicBool::new(false);
        let mut watch = |progress: Progress| {
            let is_midway = progress.phase == Phase::Receive && progress.done > 1_000_000;
            cancel.fetch_or(is_midway, Ordering::Relaxed);
        };
        let mut options = SyncOptions::new(Credentials::Token(world.token("ann")?));
        options.progress = Some(&mut watch);
        options.cancel = Some(&cancel);
        let stopped = remote.sync(&mut options);
        ensure!(stopped.is_err(), "{kind:?}: {stopped:?}");
        drop(remote);
        let asked = ready(world.address()?, "chunk_requests")?;
        let staged = world.rows("one", "SELECT count(*) FROM hw_staged WHERE frame < 0")?;
        ensure!(asked >= 2 && staged == [[Some(asked.to_string())]], "{kind:?}: {asked} came, {staged:?} are kept");
        ensure!(
            world.rows("one", "SELECT count(*) FROM item")? == [[Some("0".to_owned())]],
            "{kind:?}: all or nothing"
        );
        let mut remote = Remote::open(world.path("one"))?;
        let report = world.sync(&mut remote)?;
        let again = ready(world.address()?, "chunk_requests")? - asked;
        ensure!(report.rows_down == u64::from(ROWS / 100 * 99), "{kind:?}: {report:?}");
        ensure!(again > 0 && report.bytes_down < 1_500_000, "{kind:?}: {again} asked for, {report:?}");
        ensure!(world.diff("one")?.is_equal(false), "{kind:?}");
        // A further remote gets all of them.
        world.sync(&mut world.remote("two", "ann")?)?;
        let all = ready(world.address()?, "chunk_requests")? - asked - again;
        ensure!(asked + again == all, "{kind:?}: {asked} and {again} of {all}");
    }
    Ok(())
}

/// Whoever asks gets bytes that say nothing; whoever guesses gets nothing.
#[test]
fn a_chunk_says_nothing_to_a_stranger() -> Result<()> {
    let world = world(Kind::Sqlite, |_| {})?;
    let proxy = FaultProxy::start(world.address()?)?;
    proxy.record(true);
    let mut remote = world.remote_at("one", "ann", &format!("http://{}", proxy.address()))?;
    world.sync(&mut remote)?;
    let requests: Vec<Vec<u8>> =
        proxy.connections().into_iter().filter_map(|traffic| Some(traffic.recorded?.0)).collect();
    let text = String::from_utf8_lossy(&requests.concat()).into_owned();
    let paths: Vec<&str> = text
        .split("GET ")
        .skip(1)
        .filter_map(|rest| rest.split(' ').next())
        .filter(|path| path.starts_with("/v1/chunk/"))
        .collect();
    ensure!(paths.len() >= 3, "{paths:?}");
    for request in text.split("GET /v1/chunk/").skip(1) {
        let head = request.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase();
        ensure!(
            !head.contains("authorization") && !head.contains("headwater-"),
            "a chunk's request says who asks: {head}"
        );
    }
    let answer = get(world.address()?, paths[0])?;
    let head = String::from_utf8_lossy(&answer[..400]).to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200") && head.contains("cache-control: public, immutable, max-age=1"), "{head}");
    ensure!(head.contains("etag: \"") && !contains(&answer, MARKER), "{head}");
    let guessed = get(world.address()?, "/v1/chunk/00112233445566778899aabbccddeeff")?;
    ensure!(
        guessed.starts_with(b"HTTP/1.1 404") && contains(&guessed, "no-store"),
        "{}",
        String::from_utf8_lossy(&guessed)
    );
    ensure!(get(world.address()?, "/v1/chunk/..%2Fx")?.starts_with(b"HTTP/1.1 404"));
    // Who is no member gets his own, and asks for none of these.
    let asked = ready(world.address()?, "chunk_requests")?;
    let mut other = world.remote("other", "cleo")?;
    ensure!(world.sync(&mut other)?.rows_down == u64::from(ROWS / 100));
    ensure!(ready(world.address()?, "chunk_requests")? == asked, "few rows are no chunks");
    Ok(())
}

/// Pending changes in a partition that comes whole, in chunks, end as they do without.
#[test]
fn pending_changes_end_as_without_chunks() -> Result<()> {
    for kind in KINDS {
        let mut ends = Vec::new();
        for takes_chunks in [true, false] {
            let world = world(kind, |_| {})?;
            world.sync(&mut world.remote("builder", "ben")?)?;
            let mut remote = world.remote("one", "ann")?;
            world.sync(&mut remote)?;
            world.edit(
                "one",
                "UPDATE item SET note = 'mine' WHERE id IN (1, 2); DELETE FROM item WHERE id = 3; \
                 INSERT INTO item VALUES (-1, 's', x'', 'mine')",
            )?;
            world.central.execute(
                "UPDATE item SET note = 'theirs' WHERE id IN (2, 3, 4); DELETE FROM item WHERE id = 5; \
                 UPDATE item SET region = 'w' WHERE id = 6",
            )?;
            remote.reset()?;
            let report = sync_with(&world, &mut remote, "ann", |options| options.config.takes_chunks = takes_chunks)?;
            ensure!(world.diff("one")?.is_equal(false), "{kind:?}: {:?}", world.diff("one")?);
            let rows = world.rows("one", "SELECT id, note FROM item WHERE id < 8 ORDER BY id")?;
            ends.push((report.conflicts, report.refused, report.displaced, report.held, rows));
            ensure!(ready(world.address()?, "shared_builds")? == 1, "{kind:?}: it was built before all of this");
        }
        ensure!(ends[0] == ends[1] && ends[0].0 == 2, "{kind:?}: {ends:?}");
    }
    Ok(())
}
