//! Processes killed at random (SIGKILL), the server, the remote, and PostgreSQL itself, while edits go on at both ends: every
//! operation is applied exactly once, no file is damaged, and everything converges without a hand's help.
//!
//! A hundred rounds; `HEADWATER_KILL_ROUNDS` makes it more, `HEADWATER_KILL_SEED` repeats a run (as far as the moments of a machine
//! can be repeated).

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater_testkit::{Child, Postgres, Random, free_port, headwater_binary};
use headwater_tests::ledger::{Audit, Ledger, MODEL, Operation, converged, schema};
use headwater_tests::tally::tally;
use headwater_tests::{Central, Kind, World, read_model};

const REMOTES: [&str; 2] = ["one", "two"];
const LONG: Duration = Duration::from_mins(1);
/// On PostgreSQL the cluster is the victim in each round of this multiple.
const CLUSTER_DIES_EVERY: u64 = 10;

/// A server and two remotes as processes, over a database that may be killed too.
struct Stage {
    world: World,
    cluster: Option<Postgres>,
    port: u16,
    server: Child,
    /// What each remote did, then what the application at the consolidated database did.
    ledgers: [Ledger; 3],
    random: Random,
    next: u64,
    /// How many syncs did not end well.
    hit: u64,
    /// When somebody dies: at some moment of what a sync took last.
    window_us: u64,
}

impl Stage {
    fn new(kind: Kind, seed: u64) -> Result<Stage> {
        let folder = tempfile::tempdir()?;
        let cluster = if kind == Kind::Postgres { Some(Postgres::start()?) } else { None };
        let central = match &cluster {
            Some(cluster) => Central::Postgres(cluster.create_database()?),
            None => Central::Sqlite(folder.path().join("central.db")),
        };
        central.execute(&schema(kind))?;
        std::fs::write(folder.path().join("model.toml"), MODEL)?;
        let configuration = format!("models = [\"model.toml\"]\n[database]\nurl = \"{}\"\n", central.url());
        std::fs::write(folder.path().join("headwater.toml"), configuration)?;
        let mut world = World::over(central, folder, read_model(MODEL)?, &REMOTES)?;
        world.start_server()?;
        for name in REMOTES {
            // What the operations refer to comes with a first sync.
            world.sync(&mut world.remote(name, name)?)?;
        }
        world.stop_server();
        let port = free_port()?;
        let server = serve(&world, port)?;
        let mut stage = Stage {
            world,
            cluster,
            port,
            server,
            ledgers: Default::default(),
            random: Random::seeded(seed),
            next: 0,
            hit: 0,
            window_us: 1,
        };
        stage.point_remotes_at_server()?;
        Ok(stage)
    }

    /// The remotes were made with another server, whose port is gone.
    fn point_remotes_at_server(&mut self) -> Result<()> {
        for name in REMOTES {
            let mut remote = headwater_remote::Remote::open(self.world.path(name))?;
            remote.set_server(&format!("http://127.0.0.1:{}", self.port), name)?;
        }
        Ok(())
    }

    fn sync(&self, name: &str) -> Result<Child> {
        let mut command = Command::new(headwater_binary()?);
        command.args(["remote", "sync"]).arg(self.world.path(name)).env("HEADWATER_TOKEN", self.world.token(name)?);
        Child::spawn(name, &mut command)
    }

    /// A few operations at each remote and at the consolidated database.
    fn edit(&mut self) -> Result<()> {
        for place in 0..3 {
            let inserts = 1 + self.random.below(30);
            let mut operations: Vec<Operation> = (0..inserts).map(|_| self.insert(place)).collect();
            operations.extend(self.change_of_an_old_row(place)?);
            if place == 2 {
                operations.extend(self.consumed()?);
            }
            let sql: Vec<String> = operations.iter().map(Operation::sql).collect();
            let sql = format!("BEGIN; {}; COMMIT", sql.join("; "));
            match REMOTES.get(place) {
                Some(name) => self.world.edit(name, &sql)?,
                None => self.world.central.execute(&sql)?,
            }
            for operation in operations {
                self.ledgers[place].note(operation);
            }
        }
        Ok(())
    }

    fn insert(&mut self, place: usize) -> Operation {
        self.next += 1;
        let id = format!("{place}-{}", self.next);
        Operation { op: "insert", mark: Some(format!("made as {id}")), id }
    }

    /// A remote changes or deletes a row that came from the consolidated database: nobody else does, and only once.
    fn change_of_an_old_row(&mut self, place: usize) -> Result<Option<Operation>> {
        let Some(name) = REMOTES.get(place) else { return Ok(None) };
        let sql = format!(
            "SELECT id FROM entry WHERE id LIKE '2-%' AND mark LIKE 'made%' AND substr(id, 3) % 2 = {place} LIMIT 1"
        );
        let Some(id) = self.world.rows(name, &sql)?.into_iter().flatten().flatten().next() else { return Ok(None) };
        self.next += 1;
        let change = if self.random.chance(50) {
            Operation { op: "update", mark: Some(format!("changed {}", self.next)), id }
        } else {
            Operation { op: "delete", id, mark: None }
        };
        Ok(Some(change))
    }

    /// The application at the consolidated database takes every other row away that came from a remote, as from a queue. An upload
    /// that was applied again after its receipt got lost would bring such a row back.
    fn consumed(&self) -> Result<Vec<Operation>> {
        let sql =
            "SELECT id FROM entry WHERE id NOT LIKE '2-%' AND substr(id, length(id)) IN ('0', '2', '4', '6', '8')";
        let ids = self.world.central.rows(sql)?.into_iter().flatten().flatten();
        Ok(ids.map(|id| Operation { op: "delete", id, mark: None }).collect())
    }

    /// Edits, syncs of both remotes, and the death of somebody in their midst. What a sync that ended well had to carry is
    /// acknowledged; of the others nothing is known.
    fn round(&mut self, number: u64) -> Result<()> {
        self.edit()?;
        let mut syncing = [self.sync(REMOTES[0])?, self.sync(REMOTES[1])?];
        std::thread::sleep(Duration::from_micros(self.random.below(self.window_us)));
        let victim = self.random.below(20);
        match &self.cluster {
            Some(cluster) if number.is_multiple_of(CLUSTER_DIES_EVERY) => {
                cluster.kill()?;
                cluster.restart()?;
            }
            _ if victim < 10 => {
                self.server.kill()?;
                self.server = serve(&self.world, self.port)?;
            }
            _ => drop(syncing[(victim % 2) as usize].kill()?),
        }
        for (sync, ledger) in syncing.iter_mut().zip(&mut self.ledgers) {
            if sync.wait(LONG)?.success() {
                ledger.acknowledge();
            } else {
                self.hit += 1;
            }
        }
        Ok(())
    }

    /// Holds the ledgers against what was applied. What the application at the consolidated database did is known from its commit on.
    fn check_ledgers(&mut self) -> Result<()> {
        self.ledgers[2].acknowledge();
        let audit = Audit::read(&self.world.central)?;
        self.ledgers.iter().try_for_each(|ledger| ledger.check(&audit))?;
        audit.has_nothing_beside(&self.ledgers.iter().collect::<Vec<_>>())
    }

    /// Syncs without faults: each must end well, and then everything done at it is acknowledged.
    fn calm(&mut self) -> Result<()> {
        self.check_ledgers().context("before the syncs without faults")?;
        for (place, name) in REMOTES.iter().enumerate() {
            let begin = Instant::now();
            let mut sync = self.sync(name)?;
            let status = sync.wait(LONG)?;
            self.window_us = begin.elapsed().as_micros() as u64 + 1;
            ensure!(status.success(), "a sync without faults failed: {}", sync.stderr());
            self.ledgers[place].acknowledge();
        }
        self.check_ledgers()
    }

    fn check_end(&mut self) -> Result<()> {
        self.calm()?;
        self.calm()?;
        REMOTES.iter().try_for_each(|name| converged(&self.world, name))?;
        ensure!(self.ledgers.iter().all(|ledger| ledger.len() > 10), "hardly anything was done");
        Ok(())
    }
}

fn serve(world: &World, port: u16) -> Result<Child> {
    let mut command = Command::new(headwater_binary()?);
    command.arg("--config").arg(world.folder.path().join("headwater.toml"));
    command.args(["serve", "--no-check", "--listen"]).arg(format!("127.0.0.1:{port}"));
    let mut server = Child::spawn("the server", &mut command)?;
    server.wait_for_line("listening", LONG)?;
    Ok(server)
}

fn run(kind: Kind, rounds: u64) -> Result<()> {
    let seed = match std::env::var("HEADWATER_KILL_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    let mut stage = Stage::new(kind, seed)?;
    let mut rounds_done = || -> Result<()> {
        stage.edit()?;
        stage.calm().context("at the beginning")?;
        for round in 1..=rounds {
            stage.round(round).with_context(|| format!("round {round}"))?;
            if round % 10 == 0 {
                stage.calm().with_context(|| format!("after round {round}"))?;
            }
        }
        ensure!(stage.hit >= rounds / 20, "only {} syncs of {rounds} rounds were hit", stage.hit);
        tally(&[("kills", rounds), ("syncs", 2 * rounds), ("failed", stage.hit)]);
        stage.check_end().context("at the end")
    };
    rounds_done().with_context(|| format!("{kind:?} with HEADWATER_KILL_SEED={seed}"))
}

fn rounds() -> Result<u64> {
    Ok(std::env::var("HEADWATER_KILL_ROUNDS").map_or(Ok(100), |rounds| rounds.parse())? / 2)
}

#[test]
fn killed_on_sqlite() -> Result<()> {
    run(Kind::Sqlite, rounds()?)
}

#[test]
fn killed_on_postgresql() -> Result<()> {
    run(Kind::Postgres, rounds()?)
}
