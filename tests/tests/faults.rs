//! The network between remote and server broken at every frame boundary and at random bytes, both ways: every operation is applied
//! exactly once, and the next sync over a clean network puts everything right.
//!
//! Where the frames of a sync end is read from the bytes as they pass.
//! `HEADWATER_FAULTS_SEED` repeats the random part.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater_protocol::Kind as FrameKind;
use headwater_remote::http::Credentials;
use headwater_remote::{Remote, SyncOptions};
use headwater_testkit::proxy::{Cut, Direction, Fault};
use headwater_testkit::{FaultProxy, Plan, Random};
use headwater_tests::ledger::{Audit, Ledger, MODEL, Operation, converged, schema};
use headwater_tests::tally::tally;
use headwater_tests::wire::{Placed, frames};
use headwater_tests::{KINDS, Kind, World};

const NAME: &str = "one";
const RANDOM_ROUNDS: u64 = 60;
/// Rows that the remote inserts in a round: enough for two frames of changes.
const INSERTS: u64 = 600;

/// After so long without a byte the remote gives up, where it shall (in a black hole), and where it shall not.
const SOON: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_mins(1);

struct Stage {
    world: World,
    proxy: FaultProxy,
    remote: Remote,
    /// What the remote did, and what the application at the consolidated database did.
    ours: Ledger,
    theirs: Ledger,
    next: u64,
}

impl Stage {
    fn new(kind: Kind) -> Result<Stage> {
        let world = World::new(kind, &schema(kind), MODEL, &[NAME])?;
        let proxy = FaultProxy::start(world.address()?)?;
        let mut remote = world.remote(NAME, NAME)?;
        // What the operations refer to.
        world.sync(&mut remote)?;
        remote.set_server(&format!("http://{}", proxy.address()), NAME)?;
        Ok(Stage { world, proxy, remote, ours: Ledger::default(), theirs: Ledger::default(), next: 0 })
    }

    fn sync(&mut self, attempts_max: u32, idle_max: Duration) -> Result<(), headwater_remote::Error> {
        let token = self.world.token(NAME).expect("a token");
        let mut options = SyncOptions::new(Credentials::Token(token));
        options.config.attempts_max = attempts_max;
        options.config.backoff_min = Duration::from_millis(5);
        options.config.idle_max = idle_max;
        self.remote.sync(&mut options).map(drop)
    }

    /// As much to do as in every other round, at both ends.
    fn edit(&mut self) -> Result<()> {
        let ours: Vec<Operation> = (0..INSERTS).map(|_| self.insert("ours")).collect();
        self.world.edit(NAME, &joined(&ours))?;
        let theirs: Vec<Operation> = (0..20).map(|_| self.insert("them")).collect();
        self.world.central.execute(&joined(&theirs))?;
        for operation in ours {
            self.ours.note(operation);
        }
        for operation in theirs {
            self.theirs.note(operation);
        }
        Ok(())
    }

    fn insert(&mut self, whose: &str) -> Operation {
        self.next += 1;
        let id = format!("{whose}-{:09}", self.next);
        Operation {
            op: "insert",
            mark: Some(format!("made as {id}, and a hundred bytes more: {}", "x".repeat(100))),
            id,
        }
    }

    /// The application takes away every row that came from the remote: one that is applied again would come back.
    fn consume(&mut self) -> Result<()> {
        let ids = self.world.central.rows("SELECT id FROM entry WHERE id LIKE 'ours-%'")?;
        let ids: Vec<String> = ids.into_iter().flatten().flatten().collect();
        // A sync that broke may still be applied: only what was seen is taken.
        let list: Vec<String> = ids.iter().map(|id| format!("'{id}'")).collect();
        if !list.is_empty() {
            self.world.central.execute(&format!("DELETE FROM entry WHERE id IN ({})", list.join(", ")))?;
        }
        for id in ids {
            self.theirs.note(Operation { op: "delete", id, mark: None });
        }
        Ok(())
    }

    /// A sync that the plan breaks, then one over a clean network; gives the bytes of both.
    fn round(&mut self, plan: Plan) -> Result<(Bytes, Bytes)> {
        self.round_with_patience(plan, LATE)
    }

    fn round_with_patience(&mut self, plan: Plan, idle_max: Duration) -> Result<(Bytes, Bytes)> {
        self.edit()?;
        self.proxy.record(true);
        let before = self.proxy.connections().len();
        self.proxy.next([plan]);
        let broken = self.sync(1, idle_max);
        self.consume()?;
        self.settle(before, &broken)
    }

    /// The sync over a clean network after one that broke; gives the bytes of both.
    fn settle(&mut self, before: usize, broken: &Result<(), headwater_remote::Error>) -> Result<(Bytes, Bytes)> {
        self.proxy.go_clean();
        let middle = self.proxy.connections().len();
        // The broken one may still be running at the server: then it is told to come back.
        self.sync(100, LATE).with_context(|| format!("a sync over a clean network, after {broken:?}"))?;
        self.ours.acknowledge();
        self.theirs.acknowledge();
        Ok((self.bytes(before)?, self.bytes(middle)?))
    }

    fn bytes(&self, connection: usize) -> Result<Bytes> {
        let traffic = self.proxy.connections().into_iter().nth(connection).context("no connection was made")?;
        let (up, down) = traffic.recorded.context("the connection was not recorded")?;
        Ok(Bytes { up, down })
    }

    fn check(&self) -> Result<()> {
        let audit = Audit::read(&self.world.central)?;
        self.ours.check(&audit)?;
        self.theirs.check(&audit)?;
        audit.has_nothing_beside(&[&self.ours, &self.theirs])?;
        converged(&self.world, NAME)
    }
}

fn joined(operations: &[Operation]) -> String {
    let sql: Vec<String> = operations.iter().map(Operation::sql).collect();
    format!("BEGIN; {}; COMMIT", sql.join("; "))
}

/// What passed over one connection.
struct Bytes {
    up: Vec<u8>,
    down: Vec<u8>,
}

impl Bytes {
    fn of(&self, direction: Direction) -> &[u8] {
        if direction == Direction::Up { &self.up } else { &self.down }
    }
}

/// How long HTTP's head is.
fn head(bytes: &[u8]) -> Result<u64> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("HTTP's head has no end")?;
    Ok(end as u64 + 4)
}

fn in_the_heads(kind: Kind) -> Result<()> {
    let mut stage = Stage::new(kind)?;
    let (clean, _) = stage.round(Plan::clean())?;
    for direction in [Direction::Up, Direction::Down] {
        let end = head(clean.of(direction))?;
        for at in [0, 1, end / 2, end - 1, end] {
            for cut in [Cut::Reset, Cut::Fin] {
                let (broken, _) = stage.round(Plan::clean().cut(direction, at, cut))?;
                ensure!(broken.of(direction).len() as u64 == at, "cut elsewhere than at {at} {direction:?}");
            }
        }
    }
    stage.check()
}

#[test]
fn cut_in_the_heads_of_http() -> Result<()> {
    for kind in KINDS {
        in_the_heads(kind).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// Cuts the answer within the receipt: the server has applied the upload, and the remote can't know. Before it tries again, the
/// application takes away what came, and `meanwhile` is done to the consolidated database.
fn receipt_lost(kind: Kind, cut: Cut, meanwhile: &str) -> Result<Stage> {
    let mut stage = Stage::new(kind)?;
    stage.round(Plan::clean())?;
    let (clean, _) = stage.round(Plan::clean())?;
    let receipt = frames(&clean.down).into_iter().find(|placed| placed.frame.kind == FrameKind::Receipt);
    let Placed { start, end, .. } = receipt.context("the answer has no receipt")?;
    // Past the lines of HTTP's chunks, should they divide the answer otherwise this time, and before the frame's end.
    let at = (start + 10).min(end - 1);

    stage.edit()?;
    let before = stage.proxy.connections().len();
    stage.proxy.next([Plan::clean().cut(Direction::Down, at, cut)]);
    let broken = stage.sync(1, LATE);
    ensure!(broken.is_err(), "the receipt was lost, and the remote says all is well");
    ensure!(stage.remote.status()?.pending > 0, "without a receipt the remote holds its changes for sent");
    let mut all = stage.ours.clone();
    all.acknowledge();
    all.check(&Audit::read(&stage.world.central)?).context("when the receipt was lost")?;
    stage.consume()?;
    stage.world.central.execute(meanwhile)?;
    stage.settle(before, &broken)?;
    Ok(stage)
}

#[test]
fn a_lost_receipt_is_given_again() -> Result<()> {
    for kind in KINDS {
        for cut in [Cut::Reset, Cut::Fin] {
            let checked = receipt_lost(kind, cut, "").and_then(|stage| stage.check());
            checked.with_context(|| format!("{kind:?}, {cut:?}"))?;
        }
    }
    Ok(())
}

/// The proof that the ledger can fail: a consolidated database that forgets the number of what it applied applies it again.
#[test]
fn an_upload_applied_again_is_caught() -> Result<()> {
    for kind in KINDS {
        let table = if kind == Kind::Sqlite { "headwater_remote" } else { "headwater.remote" };
        let forget = format!("UPDATE {table} SET upload_sequence = upload_sequence - 1");
        let stage = receipt_lost(kind, Cut::Reset, &forget).with_context(|| format!("{kind:?}"))?;
        let found = stage.check().expect_err("an upload was applied twice").to_string();
        ensure!(found.contains("applied 2 times"), "{kind:?}: {found}");
    }
    Ok(())
}

/// A network that stalls again and again, but never for as long as the remote waits: no sync fails.
fn stalling(kind: Kind) -> Result<()> {
    let mut stage = Stage::new(kind)?;
    stage.proxy.record(true);
    for direction in [Direction::Up, Direction::Down] {
        let late = Plan::clean().delay(direction, Duration::from_millis(100));
        let slow = Plan::clean().throttle(direction, 200_000);
        for (plan, fault) in [(late, Fault::Delay), (slow, Fault::Throttle)] {
            stage.edit()?;
            stage.proxy.next([plan]);
            stage.sync(1, LATE).with_context(|| format!("{fault:?} {direction:?}"))?;
            let faults = stage.proxy.connections().pop().context("no connection was made")?.faults;
            ensure!(faults == [fault], "{fault:?} was asked for, and this happened: {faults:?}");
            stage.ours.acknowledge();
            stage.theirs.acknowledge();
            stage.check()?;
        }
    }
    Ok(())
}

#[test]
fn stalls_within_the_time_limit_break_nothing() -> Result<()> {
    for kind in KINDS {
        stalling(kind).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// Where so many frames have passed: behind the head of HTTP where it is none.
fn behind(bytes: &[u8], number: usize) -> Option<u64> {
    match number.checked_sub(1) {
        None => head(bytes).ok(),
        Some(last) => frames(bytes).get(last).map(|placed| placed.end),
    }
}

fn at_every_boundary(kind: Kind) -> Result<()> {
    let mut stage = Stage::new(kind)?;
    // A first sync has other frames.
    stage.round(Plan::clean())?;
    let (clean, _) = stage.round(Plan::clean())?;
    let (mut exact, mut cuts) = (0, 0);
    for direction in [Direction::Up, Direction::Down] {
        let count = frames(clean.of(direction)).len();
        ensure!(count >= 5, "only {count} frames were found {direction:?}");
        for number in 0..=count {
            let cut = if number % 2 == 0 { Cut::Reset } else { Cut::Fin };
            let (broken, _) =
                stage.round(Plan::clean().cut_behind(direction, move |bytes| behind(bytes, number), cut))?;
            cuts += 1;
            exact += usize::from(frames(broken.of(direction)).len() == number);
        }
        stage.check()?;
    }
    let passed = stage.proxy.counters();
    tally(&[("cuts", passed.faults), ("syncs", passed.connections)]);
    ensure!(exact * 10 >= cuts * 8, "only {exact} of {cuts} cuts fell between two frames");
    Ok(())
}

#[test]
fn cut_at_every_frame_boundary() -> Result<()> {
    for kind in KINDS {
        at_every_boundary(kind).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

fn at_random(kind: Kind, seed: u64) -> Result<()> {
    let mut stage = Stage::new(kind)?;
    let mut random = Random::seeded(seed);
    let (mut whole, _) = stage.round(Plan::clean())?;
    for _ in 0..RANDOM_ROUNDS / 2 {
        let direction = if random.chance(50) { Direction::Up } else { Direction::Down };
        let at = random.below(whole.of(direction).len() as u64 + 1);
        // A flipped length may let an end wait for bytes that never come.
        let (plan, idle_max) = match random.below(10) {
            0 => (Plan::clean().black_hole(direction, at), SOON),
            1..4 => (Plan::clean().flip(direction, at), SOON),
            4..7 => (Plan::clean().cut(direction, at, Cut::Fin), LATE),
            _ => (Plan::clean().cut(direction, at, Cut::Reset), LATE),
        };
        let (_, after) = stage.round_with_patience(plan, idle_max)?;
        if after.down.len() > whole.down.len() / 2 {
            whole = after;
        }
    }
    let passed = stage.proxy.counters();
    tally(&[("cuts", passed.faults), ("syncs", passed.connections)]);
    stage.check()
}

#[test]
fn broken_at_random_bytes() -> Result<()> {
    let seed = match std::env::var("HEADWATER_FAULTS_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    for kind in KINDS {
        at_random(kind, seed).with_context(|| format!("{kind:?} with HEADWATER_FAULTS_SEED={seed}"))?;
    }
    Ok(())
}
