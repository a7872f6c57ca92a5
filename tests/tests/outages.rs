//! Outages: the network between all of them taken away and given back, processes that stand still with their connections open, a database
//! that takes no more connections, clocks that jump. While it lasts, syncs fail or wait; after it, one sync puts everything right.
//!
//! `HEADWATER_OUTAGES_SEED` draws the same moments again.
//!
//! The network is a namespace of its own (namespaces(7)), in which this test runs a second time: packets are lost and no peer says
//! so, unlike where a proxy closes connections.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater_access::{Secret, hash_password};
use headwater_remote::{Remote, SyncOptions, http::Credentials};
use headwater_testkit::{Child, Postgres, Random, free_port, headwater_binary, wait_until};
use headwater_tests::apart::is_apart;
use headwater_tests::ledger::converged;
use headwater_tests::session::Session;
use headwater_tests::stage::{NAME, Stage};
use headwater_tests::{Central, KINDS, Kind};

const LONG: Duration = Duration::from_mins(2);
/// The network goes until so many syncs have failed by it, on each kind of database. (Others are over before, or outlast it.)
const HIT_MIN: u64 = 4;
const OUTAGES_MAX: u64 = 200;
/// Shorter than some of what happens here, and longer than the rest.
const PATIENCE: Duration = Duration::from_millis(300);

/// As [`is_apart`], with the network there.
fn has_own_network(test: &str) -> Result<bool> {
    let is_apart = is_apart(test, "--net")?;
    if is_apart {
        loopback("up")?;
    }
    Ok(is_apart)
}

/// Everything here is on this one link.
fn loopback(state: &str) -> Result<()> {
    let done =
        Command::new("ip").args(["link", "set", "lo", state]).output().context("ip: `make setup` installs it")?;
    ensure!(done.status.success(), "ip link set lo {state}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// Runs a test that draws the moments of its outages, and names the seed where it fails.
fn seeded(test: impl FnOnce(&mut Random) -> Result<()>) -> Result<()> {
    let seed = match std::env::var("HEADWATER_OUTAGES_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    test(&mut Random::seeded(seed)).with_context(|| format!("HEADWATER_OUTAGES_SEED={seed}"))
}

/// Does something while the remote syncs; gives whether the sync ended well.
fn while_syncing(stage: &Stage, random: &mut Random, outage: impl FnOnce(&mut Random) -> Result<()>) -> Result<bool> {
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| stage.sync_patiently(1, PATIENCE).is_ok());
        std::thread::sleep(Duration::from_micros(random.below(stage.sync_us().max(1_000))));
        outage(random)?;
        Ok(sync.join().expect("a sync does not panic"))
    })
}

#[test]
fn the_network_goes_and_comes_back() -> Result<()> {
    if !has_own_network("the_network_goes_and_comes_back")? {
        return Ok(());
    }
    seeded(|random| {
        for kind in KINDS {
            let mut stage = Stage::new(kind)?;
            let (mut hit, mut outages) = (0, 0);
            while hit < HIT_MIN {
                outages += 1;
                ensure!(outages <= OUTAGES_MAX, "{kind:?}: {outages} outages, and only {hit} syncs noticed");
                stage.edit()?;
                let went_well = while_syncing(&stage, random, |random| {
                    loopback("down")?;
                    std::thread::sleep(Duration::from_millis(random.below(700)));
                    loopback("up")
                })?;
                if went_well {
                    stage.ours.acknowledge();
                }
                hit += u64::from(!went_well);
                stage.heal().with_context(|| format!("{kind:?}, outage {outages}"))?;
            }
            stage.tally("partitions", outages);
            converged(&stage.world, NAME)?;
        }
        Ok(())
    })
}

fn headwater() -> Result<Command> {
    Ok(Command::new(headwater_binary()?))
}

/// A server as a process, over the stage's database.
fn serve(stage: &Stage, headwater: &mut Command) -> Result<Child> {
    let address = format!("127.0.0.1:{}", free_port()?);
    headwater.arg("--config").arg(stage.world.folder.path().join("headwater.toml"));
    headwater.args(["serve", "--no-check", "--listen", &address]);
    let mut server = Child::spawn("the server", headwater)?;
    server.wait_for_line("listening", LONG)?;
    stage.point_at(&format!("http://{address}"))?;
    Ok(server)
}

#[test]
fn processes_that_stand_still_go_on() -> Result<()> {
    seeded(|random| {
        for kind in KINDS {
            let mut stage = Stage::new(kind)?;
            let server = serve(&stage, &mut headwater()?)?;
            for _ in 0..4 {
                stage.edit()?;
                let mut command = headwater()?;
                command
                    .args(["remote", "sync"])
                    .arg(stage.world.path(NAME))
                    .env("HEADWATER_TOKEN", stage.world.token(NAME)?);
                let mut remote = Child::spawn("the remote", &mut command)?;
                for process in [&server, &remote] {
                    std::thread::sleep(Duration::from_micros(random.below(15_000)));
                    process.stand_still()?;
                    std::thread::sleep(Duration::from_millis(random.below(300)));
                    process.go_on()?;
                }
                let status = remote.wait(LONG)?;
                ensure!(status.success(), "{kind:?}: nobody was gone, and yet: {}", remote.stderr());
                stage.ours.acknowledge();
                stage.heal()?;
            }
            stage.tally("stops", 8);
            converged(&stage.world, NAME)?;
        }
        Ok(())
    })
}

/// A database that answers nobody holds up nobody for good: who waits is told to come back, and the same sync goes through after it.
#[test]
fn a_cluster_that_stands_still_goes_on() -> Result<()> {
    seeded(|random| {
        let cluster = Postgres::start()?;
        let mut stage = Stage::on(Central::Postgres(cluster.create_database()?))?;
        for _ in 0..6 {
            stage.edit()?;
            let went_well = while_syncing(&stage, random, |random| {
                cluster.stand_still()?;
                std::thread::sleep(Duration::from_millis(random.below(400)));
                cluster.go_on()
            })?;
            if went_well {
                stage.ours.acknowledge();
            }
            stage.heal()?;
        }
        converged(&stage.world, NAME)
    })
}

/// A cluster for few connections, and a database in it that belongs to a role of its own, under which the server connects.
fn few_connections() -> Result<(Postgres, String, String)> {
    let cluster = Postgres::builder().set("max_connections", "16").start()?;
    let admin = cluster.create_database()?;
    let sql = "CREATE ROLE server LOGIN; ALTER DATABASE test_0 OWNER TO server; ALTER SCHEMA public OWNER TO server";
    headwater_testkit::sql(&admin, sql)?;
    let server = admin.replace("postgres@", "server@");
    Ok((cluster, admin, server))
}

/// Connects until nobody is let in any more.
fn use_up(url: &str) -> Result<Vec<Session>> {
    let mut taken = Vec::new();
    let refused = loop {
        match Session::open(url) {
            Ok(session) => taken.push(session),
            Err(error) => break error,
        }
    };
    let code = refused.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code().cloned());
    ensure!(code == Some(tokio_postgres::error::SqlState::TOO_MANY_CONNECTIONS), "{refused:?}");
    Ok(taken)
}

/// The status and the body of an answer.
fn get(address: &str, path: &str, token: &str) -> Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("a head")?;
    Ok((head.split(' ').nth(1).context("a status")?.to_owned(), body.to_owned()))
}

/// What `/ready` says: the status, and whether the database can be reached.
fn ready(stage: &Stage) -> Result<(String, bool)> {
    let (status, body) = get(&stage.world.address()?.to_string(), "/ready", "none")?;
    let body: serde_json::Value = serde_json::from_str(&body)?;
    Ok((status, body["database"].as_bool().context("whether the database can be reached")?))
}

/// The limit of a role, and that of the cluster: at the start of a server and under one that runs.
#[test]
fn connections_are_used_up() -> Result<()> {
    let (_cluster, admin, url) = few_connections()?;
    let mut stage = Stage::on(Central::Postgres(url.clone()))?;
    for limit in ["4", "-1"] {
        headwater_testkit::sql(&admin, &format!("ALTER ROLE server CONNECTION LIMIT {limit}"))?;
        for starts in [true, false] {
            let case = format!("limit {limit}, {}", if starts { "at the start" } else { "beside a server" });
            stage.edit()?;
            stage.world.stop_server();
            if !starts {
                // It has had its connections, and loses them.
                stage.world.start_server()?;
                stage.sync_patiently(1, LONG).err();
                let ends = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'server'";
                headwater_testkit::sql(&admin, ends)?;
            }
            let taken = use_up(&url)?;
            if starts {
                stage.world.start_server()?;
            }
            stage.point_at(&stage.world.server_url()?)?;
            ensure!(ready(&stage)? == ("503".to_owned(), false), "{case}: {:?}", ready(&stage)?);
            let error = stage.sync(1).err().with_context(|| format!("{case}: it synced"))?;
            ensure!(error.code() == "database_unavailable", "{case}: {error:?}");
            drop(taken);
            ensure!(wait_until(LONG, || ready(&stage).is_ok_and(|(status, _)| status == "200")), "{case}: ready again");
            stage.heal().with_context(|| case.clone())?;
        }
    }
    converged(&stage.world, NAME)
}

/// The program does not start where its check finds no connection, and says why; named queries are told to come back, and then answered.
#[test]
fn a_program_finds_no_connection() -> Result<()> {
    let (_cluster, _, url) = few_connections()?;
    let stage = Stage::on(Central::Postgres(url.clone()))?;
    let folder = stage.world.folder.path();
    let configuration = folder.join("headwater.toml");
    let text = std::fs::read_to_string(&configuration)? + "[gateway]\nqueries = \"queries\"\n";
    std::fs::write(&configuration, text)?;
    std::fs::create_dir(folder.join("queries"))?;
    std::fs::write(folder.join("queries/owners.sql"), "-- public = true\nSELECT id FROM owner\n")?;
    let taken = use_up(&url)?;
    let done = headwater()?.arg("--config").arg(&configuration).args(["serve", "--listen", "127.0.0.1:0"]).output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(done.status.code() == Some(3) && said.contains("could not be opened"), "{:?}: {said}", done.status);
    ensure!(said.contains("connection slots are reserved"), "{said}");
    drop(taken);
    let mut command = headwater()?;
    let server = serve(&stage, &mut command)?;
    let address = Remote::open(stage.world.path(NAME))?.status()?.server.replace("http://", "");
    let ask = || get(&address, "/q/owners.csv", &stage.world.token(NAME)?);
    let taken = use_up(&url)?;
    let (status, body) = ask()?;
    ensure!(status == "503" && body.contains("database_unavailable"), "{status}: {body}");
    drop(taken);
    ensure!(wait_until(LONG, || ask().is_ok_and(|(status, _)| status == "200")), "{:?}", ask()?);
    ensure!(ask()?.1 == "id\r\nanna\r\n", "{:?}", ask()?);
    drop(server);
    Ok(())
}

/// One connection is enough for a sync, also where a second one would find out how large the download is.
#[test]
fn one_connection_is_enough() -> Result<()> {
    let (_cluster, admin, url) = few_connections()?;
    let mut stage = Stage::on(Central::Postgres(url))?;
    stage.padding = 1_500_000;
    stage.edit()?;
    stage.world.stop_server();
    headwater_testkit::sql(&admin, "ALTER ROLE server CONNECTION LIMIT 1")?;
    stage.world.start_server()?;
    stage.point_at(&stage.world.server_url()?)?;
    let mut options = SyncOptions::new(Credentials::Token(stage.world.token(NAME)?));
    options.config.attempts_max = 20;
    let report = Remote::open(stage.world.path(NAME))?.sync(&mut options)?;
    ensure!(report.bytes_down > 1 << 20, "so much that its size is looked for: {report:?}");
    stage.ours.acknowledge();
    headwater_testkit::sql(&admin, "ALTER ROLE server CONNECTION LIMIT -1")?;
    stage.check()?;
    stage.heal()?;
    converged(&stage.world, NAME)
}

/// Has a program run by another time of day; waits stay what they are. The library alone does it: the command `faketime` fails where one
/// of its ID was killed before, and would stay beside the program, and be killed in its place.
fn by_another_clock<'c>(program: &'c mut Command, clock: &str) -> &'c mut Command {
    program.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1"); // ld.so(8) knows what $LIB is here
    program.env("FAKETIME", clock).env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
}

/// A library that is missing would be passed over with a warning.
fn clocks_can_differ() -> Result<()> {
    let year = |clock: &str| -> Result<u32> {
        let mut date = Command::new("date");
        let output = by_another_clock(date.arg("+%Y"), clock).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    ensure!(year("+9y")? > year("+0")? + 5, "no other clock for programs: `make setup` installs faketime");
    Ok(())
}

/// Servers whose clocks are years apart, and a remote's that is yet another: no clock says what anybody has seen.
#[test]
fn clocks_jump() -> Result<()> {
    clocks_can_differ()?;
    for kind in KINDS {
        let mut stage = Stage::new(kind)?;
        // A token would be over, or not yet good.
        let hash = hash_password(&Secret::new("a password"))?;
        let accounts = if kind == Kind::Sqlite { "headwater_account" } else { "headwater.account" };
        stage.world.central.execute(&format!("UPDATE {accounts} SET password_hash = '{hash}'"))?;
        for (server_clock, remote_clock) in
            [("+0", "-9y"), ("+3y", "+1d"), ("-3y", "+9y"), ("+40d", "-1d"), ("-1h", "+0")]
        {
            stage.edit()?;
            let mut server = serve(&stage, by_another_clock(&mut headwater()?, server_clock))?;
            let mut command = headwater()?;
            command.args(["remote", "sync"]).arg(stage.world.path(NAME)).env("HEADWATER_PASSWORD", "a password");
            let mut remote = Child::spawn("the remote", by_another_clock(&mut command, remote_clock))?;
            let status = remote.wait(LONG)?;
            ensure!(status.success(), "{kind:?} {server_clock} {remote_clock}: {}", remote.stderr());
            stage.ours.acknowledge();
            stage.check().with_context(|| format!("{kind:?} {server_clock} {remote_clock}"))?;
            stage.consume()?;
            // What the library shares with nobody goes with programs that end by themselves.
            server.terminate()?;
            ensure!(server.wait(LONG)?.success(), "{kind:?} {server_clock}: {}", server.stderr());
        }
        let mut server = serve(&stage, &mut headwater()?)?;
        stage.heal()?;
        server.kill()?;
        converged(&stage.world, NAME)?;
    }
    Ok(())
}
