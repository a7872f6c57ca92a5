//! Stopped at every point: the remote and the server killed before each of their system calls that write, one after the other, and the
//! server's connection to PostgreSQL cut after every so many bytes. Each time everything heals with one more sync, and every operation
//! is applied exactly once.
//!
//! A point is the n-th call of a kind, and strace kills there (SIGKILL, as the call is entered): there are no hooks in the program. n
//! grows until a sync runs clean.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use headwater_consolidated::Backend;
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{Child, FaultProxy, Plan, free_port, headwater_binary};
use headwater_tests::ledger::converged;
use headwater_tests::stage::{NAME, Stage};
use headwater_tests::{Central, KINDS, Kind, World};

const LONG: Duration = Duration::from_mins(1);
const SIGKILL: i32 = 9;
/// The calls by which a process changes what others see.
const CALLS: [&str; 7] = ["pwrite64", "fdatasync", "ftruncate", "unlink", "sendto", "write", "writev"];
/// How many bytes lie between two cuts of a connection.
const CUT_EVERY: u64 = 293;
/// The cuts are shared out to so many stages at once: most of the time is spent waiting for a new connection.
const CUT_PARTS: u64 = 6;

/// strace's arguments to kill at the n-th call of this kind (in the thread that comes to it first).
fn kill_at(call: &str, number: usize) -> [String; 7] {
    let inject = format!("inject={call}:signal=SIGKILL:when={number}");
    ["-f", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject].map(str::to_owned)
}

/// Runs `attempt` for each point of each call, until it says twice in a row that it ran clean. (Once may be chance: threads share
/// their work differently each time.) Each call has a stage of its own, and all are swept at once: most of the time is spent waiting.
fn sweep(kind: Kind, attempt: impl Fn(&mut Stage, &str, usize) -> Result<bool> + Sync) -> Result<u64> {
    let of_call = |call: &str| {
        let mut stage = Stage::new(kind)?;
        let (mut points, mut clean) = (0, 0);
        for number in 1.. {
            ensure!(number < 10_000, "{call}: no end of it");
            let ran_clean =
                attempt(&mut stage, call, number).with_context(|| format!("killed at {call} number {number}"))?;
            clean = if ran_clean { clean + 1 } else { 0 };
            if clean == 2 {
                break;
            }
            points += u64::from(!ran_clean);
        }
        stage.tally("kills", points);
        converged(&stage.world, NAME)?;
        Ok(points)
    };
    std::thread::scope(|scope| {
        let sweeps = CALLS.map(|call| scope.spawn(move || of_call(call)));
        sweeps.into_iter().map(|sweep| sweep.join().map_err(|_| anyhow!("a sweep panicked"))?).sum()
    })
}

#[test]
fn the_remote_is_killed_at_every_call() -> Result<()> {
    let points = sweep(Kind::Sqlite, |stage, call, number| {
        stage.edit()?;
        let mut command = Command::new("strace");
        // -D: the process that is started is the program itself, and strace watches from beside it.
        command.args(["-D", "-qqq"]).args(kill_at(call, number)).arg(headwater_binary()?);
        command.args(["remote", "sync"]).arg(stage.world.path(NAME));
        command.env("HEADWATER_TOKEN", stage.world.token(NAME)?);
        let mut sync = Child::spawn("the remote", &mut command).context("strace: `make setup` installs it")?;
        let status = sync.wait(LONG)?;
        ensure!(status.success() || status.signal() == Some(SIGKILL), "{status}: {}", sync.stderr());
        if status.success() {
            stage.ours.acknowledge();
        }
        stage.heal()?;
        Ok(status.success())
    })?;
    ensure!(points >= 20, "only {points} points");
    Ok(())
}

/// A server that listens, with strace attached since then: what it does to start is over.
struct Doomed {
    strace: Child,
    server: u32,
    address: String,
}

impl Doomed {
    fn start(world: &World, call: &str, number: usize) -> Result<Doomed> {
        // Whoever attaches must be an ancestor, unless it is root: the shell that started the server becomes strace.
        // The server's ID is noted before it is the server, so before it listens.
        let script = r#"note=$1; shift
            sh -c 'echo $$ >"$0"; exec "$HEADWATER" --config headwater.toml serve --no-check --listen "$LISTEN"' "$note" &
            until [ -e "$note.go" ]; do sleep 0.01; done; exec strace "$@" -p $!"#;
        let address = format!("127.0.0.1:{}", free_port()?);
        let notes = tempfile::tempdir_in(world.folder.path())?;
        let note = notes.path().join("server");
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&note).args(kill_at(call, number)).current_dir(world.folder.path());
        command.env("HEADWATER", headwater_binary()?).env("LISTEN", &address);
        let mut strace = Child::spawn("the server", &mut command)?;
        strace.wait_for_line("listening", LONG)?;
        let server = std::fs::read_to_string(&note)?.trim().parse()?;
        std::fs::write(note.with_extension("go"), "")?;
        strace.wait_for_line("attached", LONG).context("strace: `make setup` installs it")?;
        Ok(Doomed { strace, server, address })
    }

    fn is_alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.server)).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, state)| !state.trim_start().starts_with(['Z', 'X']))
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.server.to_string()]).output();
        let _ = self.strace.wait(LONG);
    }
}

fn server_killed(kind: Kind) -> Result<u64> {
    sweep(kind, |stage, call, number| {
        let clean = stage.world.server_url()?;
        stage.edit()?;
        let server = Doomed::start(&stage.world, call, number)?;
        stage.point_at(&format!("http://{}", server.address))?;
        let synced = stage.sync(1).is_ok();
        if synced {
            stage.ours.acknowledge();
        }
        let ran_clean = synced && server.is_alive();
        drop(server);
        stage.point_at(&clean)?;
        stage.heal()?;
        Ok(ran_clean)
    })
}

#[test]
fn the_server_is_killed_at_every_call() -> Result<()> {
    for kind in KINDS {
        let points = server_killed(kind).with_context(|| format!("{kind:?}"))?;
        ensure!(points >= 10, "{kind:?}: only {points} points");
    }
    Ok(())
}

/// Where a connection is cut after the commit was sent and before its answer came, nobody knows whether it was done.
#[test]
fn the_connection_to_postgresql_is_cut_everywhere() -> Result<()> {
    let parts = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..CUT_PARTS).map(|part| scope.spawn(move || cut_in_part(part))).collect();
        parts.into_iter().map(|part| part.join().map_err(|_| anyhow!("a part panicked"))?).collect::<Result<Vec<_>>>()
    })?;
    let (points, faults) = parts.iter().fold((0, 0), |sum, (points, faults)| (sum.0 + points, sum.1 + faults));
    ensure!(points >= 100, "only {points} points");
    ensure!(faults >= points / 2, "hardly any connection was cut: {faults} of {points}");
    Ok(())
}

/// Cuts at every [`CUT_PARTS`]th point from this one on; gives how many those were, and how often a connection was cut.
fn cut_in_part(nth: u64) -> Result<(u64, u64)> {
    let mut stage = Stage::new(Kind::Postgres)?;
    let Central::Postgres(url) = &stage.world.central else { unreachable!("a PostgreSQL world") };
    let address: tokio_postgres::Config = url.parse()?;
    let port = *address.get_ports().first().context("a port")?;
    let proxy = FaultProxy::start(("127.0.0.1", port))?;
    let through = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.address().port()));
    ensure!(through != *url, "the proxy is not in {url}");
    let backend: Arc<dyn Backend> = Arc::new(Postgres::new(&through, Settings::default())?);
    stage.world.start_server_over(&backend)?;
    stage.point_at(&stage.world.server_url()?)?;
    stage.edit()?;
    let before = proxy.counters();
    stage.sync(1)?;
    stage.ours.acknowledge();
    let whole = proxy.counters();
    let mut points = 0;
    for (direction, bytes) in [(Direction::Up, whole.up - before.up), (Direction::Down, whole.down - before.down)] {
        // A connection that is opened anew carries more than one that was there.
        for at in (nth * CUT_EVERY..bytes + 4_000).step_by((CUT_PARTS * CUT_EVERY) as usize) {
            stage.edit()?;
            proxy.cut_all();
            let cut = if points % 2 == 0 { Cut::Reset } else { Cut::Fin };
            // Those too by which the server tries again.
            proxy.script(move |_| Plan::clean().cut(direction, at, cut));
            let broken = stage.sync(1);
            if broken.is_ok() {
                stage.ours.acknowledge();
            }
            proxy.go_clean();
            stage.heal().with_context(|| format!("cut {direction:?} after {at} bytes: {broken:?}"))?;
            points += 1;
        }
    }
    stage.tally("cuts", proxy.counters().faults);
    converged(&stage.world, NAME)?;
    Ok((points, proxy.counters().faults))
}
