//! One remote whose every operation is counted, for tests that break something and look whether the next sync puts it right.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater_remote::{Remote, SyncOptions, http::Credentials};
use headwater_testkit::Random;
use tempfile::TempDir;

use crate::ledger::{Audit, Ledger, MODEL, Operation, schema};
use crate::tally::tally;
use crate::{Central, Kind, World, read_model};

/// The remote, and its user.
pub const NAME: &str = "one";

/// A remote and the consolidated database, with what was done at each.
pub struct Stage {
    /// Both, and a server.
    pub world: World,
    /// What the remote did.
    pub ours: Ledger,
    /// What the application at the consolidated database did.
    theirs: Ledger,
    /// Bytes of each new row beside its mark, which no database packs.
    pub padding: usize,
    next: u64,
    /// How many syncs there were, and how long the slowest took that put something right.
    syncs: AtomicU64,
    sync_us: u64,
    heal_ms_max: u64,
}

impl Stage {
    /// After a first sync, on a database of its own.
    pub fn new(kind: Kind) -> Result<Stage> {
        Stage::with(World::unserved(kind, &schema(kind), MODEL, &[NAME])?)
    }

    /// The same on this empty PostgreSQL database.
    pub fn on(central: Central) -> Result<Stage> {
        Stage::over(Kind::Postgres, central, tempfile::tempdir()?)
    }

    /// The same on this empty database of this kind, with the remote in this folder.
    pub fn over(kind: Kind, central: Central, folder: TempDir) -> Result<Stage> {
        central.execute(&schema(kind))?;
        Stage::with(World::over(central, folder, read_model(MODEL)?, &[NAME])?)
    }

    /// In the world's folder lies a configuration for servers that are processes.
    fn with(mut world: World) -> Result<Stage> {
        world.start_server()?;
        std::fs::write(world.folder.path().join("model.toml"), MODEL)?;
        let configuration = format!("models = [\"model.toml\"]\n[database]\nurl = \"{}\"\n", world.central.url());
        std::fs::write(world.folder.path().join("headwater.toml"), configuration)?;
        let mut remote = world.remote(NAME, NAME)?;
        world.sync(&mut remote)?;
        Ok(Stage {
            world,
            ours: Ledger::default(),
            theirs: Ledger::default(),
            padding: 0,
            next: 0,
            syncs: AtomicU64::new(1),
            sync_us: 0,
            heal_ms_max: 0,
        })
    }

    fn insert(&mut self, whose: &str) -> Operation {
        self.next += 1;
        let id = format!("{whose}-{}", self.next);
        let mut random = Random::seeded(self.next);
        let padding: Vec<u8> = (0..self.padding / 2).map(|_| random.bits() as u8).collect();
        let padding = hex::encode(padding);
        Operation { op: "insert", mark: Some(format!("made as {id}{padding}")), id }
    }

    /// New rows at both ends.
    pub fn edit(&mut self) -> Result<()> {
        let ours: Vec<Operation> = (0..3).map(|_| self.insert("ours")).collect();
        let theirs: Vec<Operation> = (0..2).map(|_| self.insert("theirs")).collect();
        self.world.edit(NAME, &joined(&ours))?;
        for operation in ours {
            self.ours.note(operation);
        }
        self.at_the_database(theirs)
    }

    /// The application takes away the rows that came from the remote: one that is applied again would come back.
    pub fn consume(&mut self) -> Result<()> {
        let came = self.world.central.rows("SELECT id FROM entry WHERE id LIKE 'ours-%'")?;
        let came = came.into_iter().flatten().flatten();
        self.at_the_database(came.map(|id| Operation { op: "delete", id, mark: None }).collect())
    }

    fn at_the_database(&mut self, operations: Vec<Operation>) -> Result<()> {
        self.world.central.execute(&joined(&operations))?;
        for operation in operations {
            self.theirs.note(operation);
        }
        self.theirs.acknowledge();
        Ok(())
    }

    /// One sync in this process, of so many attempts.
    pub fn sync(&self, attempts_max: u32) -> Result<(), headwater_remote::Error> {
        self.sync_patiently(attempts_max, Duration::from_secs(30))
    }

    /// The same, with so much patience for a server that says nothing.
    pub fn sync_patiently(&self, attempts_max: u32, idle_max: Duration) -> Result<(), headwater_remote::Error> {
        self.syncs.fetch_add(1, Relaxed);
        let token = self.world.token(NAME).expect("a token");
        let mut options = SyncOptions::new(Credentials::Token(token));
        options.config.attempts_max = attempts_max;
        options.config.backoff_min = Duration::from_millis(5);
        options.config.idle_max = idle_max;
        Remote::open(self.world.path(NAME))?.sync(&mut options).map(drop)
    }

    /// Where the remote finds its server from now on.
    pub fn point_at(&self, url: &str) -> Result<()> {
        Ok(Remote::open(self.world.path(NAME))?.set_server(url, NAME)?)
    }

    /// One sync that nothing disturbs puts everything right.
    pub fn heal(&mut self) -> Result<()> {
        self.consume()?;
        self.check().context("before it heals")?;
        // What was broken may still be at work at the server, and a cluster just risen refuses: then it is told to come back.
        let began = Instant::now();
        self.sync(100).context("a sync that nothing disturbs")?;
        self.sync_us = began.elapsed().as_micros() as u64;
        self.heal_ms_max = self.heal_ms_max.max(self.sync_us / 1_000);
        self.ours.acknowledge();
        self.check()
    }

    /// How long the last sync took that put something right.
    pub fn sync_us(&self) -> u64 {
        self.sync_us
    }

    /// Says what was done, beside so many of these faults.
    pub fn tally(&self, faults: &str, count: u64) {
        tally(&[(faults, count), ("syncs", self.syncs.load(Relaxed)), ("heal_ms_max", self.heal_ms_max)]);
    }

    /// Holds the ledgers against what was applied.
    pub fn check(&self) -> Result<()> {
        let audit = Audit::read(&self.world.central)?;
        self.ours.check(&audit)?;
        self.theirs.check(&audit)?;
        audit.has_nothing_beside(&[&self.ours, &self.theirs])
    }
}

fn joined(operations: &[Operation]) -> String {
    let sql: Vec<String> = operations.iter().map(Operation::sql).collect();
    format!("BEGIN; {}; COMMIT", sql.join("; "))
}
