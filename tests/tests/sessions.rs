//! What an application at a remote may rely on while the network breaks and two servers take turns, checked in every state of the remote that
//! can be observed (before, between and after syncs, and by a reader of its own while they run):
//!
//! - monotonic reads: a row never goes back to an earlier version, nor does one that is gone return;
//! - read your writes: what the remote wrote stays as it wrote it;
//! - whole transactions: money that is only ever moved is all there, at every moment;
//! - in the end, each row that was ever committed is there, and nothing else.
//!
//! `HEADWATER_SESSION_SEED` repeats a run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater_remote::{Remote, SyncOptions, http::Credentials};
use headwater_testkit::proxy::{Chaos, Cut, Fault};
use headwater_testkit::{FaultProxy, Random};
use headwater_tests::tally::tally;
use headwater_tests::{KINDS, Kind, World, sqlite_rows};

const NAMES: [&str; 2] = ["a", "b"];
const ROUNDS: u64 = 60;
const ACCOUNTS: u64 = 8;
const MONEY: u64 = 800;
/// A row's number once it is gone for good.
const GONE: u64 = u64::MAX;

const SCHEMA: &str = "
    CREATE TABLE counter (id int NOT NULL PRIMARY KEY, n int NOT NULL);
    CREATE TABLE own (id int NOT NULL PRIMARY KEY, owner text NOT NULL, n int NOT NULL, touched int);
    CREATE TABLE bank (id int NOT NULL PRIMARY KEY, amount int NOT NULL);";

const MODEL: &str = "
name = \"sessions\"
version = 1
[tables.counter]
direction = \"download\"
key = [\"id\"]
columns = { id = \"int not null\", n = \"int not null\" }
[tables.own]
key = [\"id\"]
conflict = \"merge(remote)\"
columns = { id = \"int not null\", owner = \"text not null\", n = \"int not null\", touched = \"int\" }
[tables.bank]
direction = \"download\"
key = [\"id\"]
columns = { id = \"int not null\", amount = \"int not null\" }
";

/// What was read of a remote: rows by table and key, with the number that only ever grows, and the bank's whole money.
#[derive(Clone, Debug, Default)]
struct Seen {
    numbers: BTreeMap<String, u64>,
    money: u64,
}

impl Seen {
    /// In one statement, so in one state of the file.
    fn read(file: &Path) -> Result<Seen> {
        let sql = "SELECT 'counter ' || id, n FROM counter UNION ALL SELECT 'own ' || owner || ' ' || id, n FROM own
            UNION ALL SELECT 'money', sum(amount) FROM bank";
        let mut seen = Seen::default();
        for row in sqlite_rows(file, sql)? {
            let [Some(what), number] = &row[..] else { anyhow::bail!("{row:?}") };
            let number = number.as_deref().unwrap_or("0").parse()?;
            if what == "money" {
                seen.money = number;
            } else {
                seen.numbers.insert(what.clone(), number);
            }
        }
        Ok(seen)
    }
}

/// Holds each state against those before it.
#[derive(Debug, Default)]
struct Checker {
    latest: BTreeMap<String, u64>,
    states: u64,
}

impl Checker {
    /// `owner`: whose remote it is; `wrote`: what it wrote, by its rows.
    fn check(&mut self, owner: &str, seen: &Seen, wrote: &BTreeMap<u64, u64>) -> Result<()> {
        self.states += 1;
        ensure!(seen.money == 0 || seen.money == MONEY, "the bank has {} of {MONEY}", seen.money);
        for (what, latest) in &mut self.latest {
            match seen.numbers.get(what) {
                None => *latest = GONE,
                Some(number) => {
                    ensure!(*latest != GONE, "{what} was gone, and is back");
                    ensure!(number >= latest, "{what} went back from {latest} to {number}");
                    *latest = *number;
                }
            }
        }
        for (what, number) in &seen.numbers {
            self.latest.entry(what.clone()).or_insert(*number);
        }
        for (id, number) in wrote {
            let now = seen.numbers.get(&format!("own {owner} {id}"));
            ensure!(now == Some(number), "{owner} wrote {number} into its row {id}, and reads {now:?}");
        }
        Ok(())
    }
}

struct Site {
    name: &'static str,
    remote: Remote,
    wrote: BTreeMap<u64, u64>,
    checker: Checker,
}

struct Stage {
    world: World,
    proxies: [FaultProxy; 2],
    sites: Vec<Site>,
    random: Random,
    next: u64,
    syncs: u64,
    failed: u64,
}

impl Stage {
    fn new(kind: Kind, seed: u64) -> Result<Stage> {
        let mut world = World::unserved(kind, SCHEMA, MODEL, &NAMES)?;
        for id in 0..ACCOUNTS {
            world.central.execute(&format!("INSERT INTO bank VALUES ({id}, {})", MONEY / ACCOUNTS))?;
        }
        let servers = [world.start_another_server(None)?, world.start_another_server(None)?];
        let proxies = [FaultProxy::start(servers[0])?, FaultProxy::start(servers[1])?];
        let kinds = vec![Fault::Cut(Cut::Reset), Fault::Cut(Cut::Fin), Fault::Flip, Fault::BlackHole, Fault::Delay];
        for (place, proxy) in proxies.iter().enumerate() {
            proxy.random(seed + place as u64, Chaos { faulty_percent: 60, offset_max: 1_000, kinds: kinds.clone() });
        }
        let url = format!("http://{}", proxies[0].address());
        let site = |name: &&'static str| -> Result<Site> {
            let remote = world.remote_at(name, name, &url)?;
            Ok(Site { name, remote, wrote: BTreeMap::new(), checker: Checker::default() })
        };
        let sites = NAMES.iter().map(site).collect::<Result<_>>()?;
        Ok(Stage { world, proxies, sites, random: Random::seeded(seed), next: 0, syncs: 0, failed: 0 })
    }

    /// The application at the consolidated database counts, makes rows and takes them away, moves money, and touches rows of the remotes.
    fn write_centrally(&mut self) -> Result<()> {
        self.next += 1;
        let (from, amount) = (self.random.below(ACCOUNTS), self.random.below(20));
        let to = (from + 1 + self.random.below(ACCOUNTS - 1)) % ACCOUNTS;
        let (counted, gone) = (self.random.below(self.next), self.random.below(self.next));
        self.world.central.execute(&format!(
            "BEGIN; UPDATE bank SET amount = amount - {amount} WHERE id = {from};
             UPDATE counter SET n = n + 1 WHERE id % 3 = {counted} % 3;
             UPDATE own SET touched = {counted} WHERE id % 4 = {counted} % 4;
             DELETE FROM counter WHERE id = {gone} AND id % 5 = 0;
             INSERT INTO counter VALUES ({}, 1);
             UPDATE bank SET amount = amount + {amount} WHERE id = {to}; COMMIT",
            self.next
        ))
    }

    fn write_at(&mut self, place: usize) -> Result<()> {
        let site = &mut self.sites[place];
        let id = self.random.below(10) * NAMES.len() as u64 + place as u64;
        let number = site.wrote.get(&id).copied().unwrap_or(0) + 1;
        let sql =
            format!("INSERT INTO own VALUES ({id}, '{}', 1, 0) ON CONFLICT (id) DO UPDATE SET n = {number}", site.name);
        self.world.edit(site.name, &sql)?;
        site.wrote.insert(id, number);
        Ok(())
    }

    /// A sync through either server. A reader looks all the while, and at each of its steps somebody looks too.
    fn sync(&mut self, place: usize, attempts_max: u32) -> Result<bool> {
        let through = self.random.below(2) as usize;
        let url = format!("http://{}", self.proxies[through].address());
        let site = &mut self.sites[place];
        let token = self.world.token(site.name)?;
        let file = self.world.path(site.name);
        site.remote.set_server(&url, site.name)?;
        let mut options = SyncOptions::new(Credentials::Token(token));
        options.config.attempts_max = attempts_max;
        options.config.backoff_min = Duration::from_millis(5);
        options.config.idle_max = Duration::from_millis(if attempts_max == 1 { 300 } else { 30_000 });
        let Site { name, remote, wrote, checker } = site;
        let checker = Mutex::new(checker);
        let look = || -> Result<()> {
            // Read in the order in which it is checked.
            let mut checker = checker.lock().unwrap_or_else(PoisonError::into_inner);
            checker.check(name, &Seen::read(&file)?, wrote)
        };
        let over = AtomicBool::new(false);
        let mut seen = Ok(());
        let mut at_each_step = |_| {
            if seen.is_ok() {
                seen = look();
            }
        };
        options.progress = Some(&mut at_each_step);
        let synced = std::thread::scope(|scope| {
            let reader = scope.spawn(|| -> Result<()> {
                while !over.load(Ordering::Relaxed) {
                    look()?;
                    // The lock is not fair: the sync's own looks have their turn.
                    std::thread::sleep(Duration::from_millis(1));
                }
                look()
            });
            let synced = remote.sync(&mut options).map(drop);
            over.store(true, Ordering::Relaxed);
            reader.join().expect("the reader does not panic").context("while it synced")?;
            anyhow::Ok(synced)
        })?;
        seen.context("at a step of a sync")?;
        self.syncs += 1;
        self.failed += u64::from(synced.is_err());
        if attempts_max > 1 {
            synced.as_ref().map_err(|error| anyhow::anyhow!("a sync that nothing disturbs: {error:?}"))?;
        }
        Ok(synced.is_ok())
    }

    /// Everything that is committed at the consolidated database is there, and nothing else.
    fn check_end(&self) -> Result<()> {
        for site in &self.sites {
            let diff = self.world.diff(site.name)?;
            ensure!(diff.is_equal(false), "{} differs: {diff:#?}", site.name);
            for (id, number) in &site.wrote {
                let stored = self.world.central.rows(&format!("SELECT n FROM own WHERE id = {id}"))?;
                ensure!(stored == [[Some(number.to_string())]], "{} wrote {number} into {id}: {stored:?}", site.name);
            }
        }
        Ok(())
    }
}

fn run(kind: Kind, seed: u64) -> Result<()> {
    let mut stage = Stage::new(kind, seed)?;
    for _ in 0..ROUNDS {
        stage.write_centrally()?;
        let place = stage.random.below(NAMES.len() as u64) as usize;
        stage.write_at(place)?;
        stage.sync(place, 1)?;
    }
    for proxy in &stage.proxies {
        proxy.go_clean();
    }
    // Twice: what one brings up in the first round, the other takes down in the second.
    for place in [0, 1, 0, 1] {
        stage.sync(place, 100)?;
    }
    stage.check_end()?;
    let states = stage.sites.iter().map(|site| site.checker.states).sum();
    tally(&[("syncs", stage.syncs), ("failed", stage.failed), ("states", states)]);
    ensure!(stage.failed >= ROUNDS / 10, "only {} syncs of {} failed", stage.failed, stage.syncs);
    ensure!(states > 2 * stage.syncs, "hardly any state was seen between: {states} of {} syncs", stage.syncs);
    Ok(())
}

#[test]
fn sessions_keep_what_they_promise() -> Result<()> {
    let seed = match std::env::var("HEADWATER_SESSION_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    KINDS
        .into_iter()
        .try_for_each(|kind| run(kind, seed).with_context(|| format!("{kind:?} with HEADWATER_SESSION_SEED={seed}")))
}

/// Each of the checks finds what it is there for.
#[test]
fn what_sessions_must_not_see_is_noticed() -> Result<()> {
    let seen = |rows: &[(&str, u64)], money| Seen {
        numbers: rows.iter().map(|(what, number)| ((*what).to_owned(), *number)).collect(),
        money,
    };
    let wrote = BTreeMap::from([(4, 2)]);
    let fine = seen(&[("counter 1", 5), ("own a 4", 2)], MONEY);
    for (bad, words) in [
        (seen(&[("counter 1", 4), ("own a 4", 2)], MONEY), "went back from 5 to 4"),
        (seen(&[("counter 1", 5), ("own a 4", 1)], MONEY), "went back from 2 to 1"),
        (seen(&[("counter 1", 5), ("own a 4", 3)], MONEY), "wrote 2 into its row 4"),
        (seen(&[("counter 1", 5)], MONEY), "reads None"),
        (seen(&[("counter 1", 5), ("own a 4", 2)], MONEY - 1), "the bank has"),
    ] {
        let mut checker = Checker::default();
        checker.check("a", &fine, &wrote)?;
        let error = checker.check("a", &bad, &wrote).expect_err(words).to_string();
        ensure!(error.contains(words), "{error}, expected {words}");
    }
    let mut checker = Checker::default();
    checker.check("a", &seen(&[("counter 1", 5)], MONEY), &BTreeMap::new())?;
    checker.check("a", &seen(&[], MONEY), &BTreeMap::new())?;
    let error = checker.check("a", &seen(&[("counter 1", 5)], MONEY), &BTreeMap::new()).expect_err("it is back");
    ensure!(error.to_string().contains("is back"), "{error}");
    Ok(())
}
