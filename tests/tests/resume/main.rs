//! Transfers that break are resumed: what has arrived is not sent again, whoever was killed in between, and nothing is lost or doubled
//! where it can't be.

mod downloads;
mod tokens;
mod uploads;

use std::time::Duration;

use anyhow::{Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Remote, SyncOptions, SyncReport};
use headwater_server::Config;
use headwater_testkit::proxy::Direction;
use headwater_testkit::{FaultProxy, Random};
use headwater_tests::{Kind, World};

const SCHEMA: &str = "CREATE TABLE note (id TEXT NOT NULL PRIMARY KEY, body TEXT);";
const MODEL: &str = "name = \"notes\"\nversion = 1\n[tables.note]\nkey = [\"id\"]\nconflict = \"consolidated_wins\"\n\
    [tables.note.columns]\nid = \"text not null\"\nbody = \"text\"\n";
const LONG: Duration = Duration::from_mins(1);

/// Rows of 1,000 bytes that hardly pack.
fn rows(prefix: &str, count: u64) -> String {
    let mut random = Random::seeded(count);
    let mut letter = || char::from(b' ' + 8 + random.below(80) as u8);
    let mut row = |number| {
        let body: String = (0..1_000).map(|_| letter()).filter(|letter| *letter != '\'').collect();
        format!("('{prefix}{number:06}', '{body}')")
    };
    let values: Vec<String> = (0..count).map(&mut row).collect();
    let inserts = values.chunks(500).map(|some| format!("INSERT INTO note VALUES {};", some.join(", ")));
    format!("BEGIN; {} COMMIT;", inserts.collect::<String>())
}

struct Stage {
    world: World,
    proxy: FaultProxy,
    made: u32,
}

impl Stage {
    fn new(kind: Kind, rows_down: u64) -> Result<Stage> {
        Stage::with(kind, rows_down, |_| {})
    }

    fn with(kind: Kind, rows_down: u64, change: impl FnOnce(&mut Config)) -> Result<Stage> {
        let mut world = World::unserved(kind, SCHEMA, MODEL, &["ann"])?;
        change(&mut world.config);
        world.start_server()?;
        if rows_down > 0 {
            world.central.execute(&rows("theirs", rows_down))?;
        }
        let proxy = FaultProxy::start(world.address()?)?;
        Ok(Stage { world, proxy, made: 0 })
    }

    /// A new remote behind the proxy.
    fn remote(&mut self) -> Result<(String, Remote)> {
        self.made += 1;
        let name = format!("remote{}", self.made);
        let remote = self.world.remote_at(&name, "ann", &format!("http://{}", self.proxy.address()))?;
        Ok((name, remote))
    }

    fn sync(&self, remote: &mut Remote, attempts_max: u32) -> Result<SyncReport, headwater_remote::Error> {
        let mut options = SyncOptions::new(Credentials::Token(self.world.token("ann").expect("a token")));
        options.config.attempts_max = attempts_max;
        options.config.backoff_min = Duration::from_millis(5);
        options.config.backoff_max = Duration::from_millis(50);
        remote.sync(&mut options)
    }

    /// Bytes that went through the proxy while `work` was done, and what it gave.
    fn carried<T>(&self, direction: Direction, work: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
        let count = || {
            let counters = self.proxy.counters();
            if direction == Direction::Up { counters.up } else { counters.down }
        };
        let before = count();
        let done = work()?;
        Ok((count() - before, done))
    }

    fn is_equal(&self, name: &str) -> Result<()> {
        let report = self.world.diff(name)?;
        ensure!(report.is_equal(false), "{name} differs: {}", serde_json::to_string(&report)?);
        Ok(())
    }
}
