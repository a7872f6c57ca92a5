//! Histories: a random schema, five remotes and two servers, two hundred writes on all sides, twenty syncs and more, of which some are cut,
//! damaged or left hanging, servers that go and come. An independent model of the conflict rules (`rules`) predicts every row of one
//! table after every upload, from what the remote's log says and what was stored; every state of a remote has the bank's whole money; and
//! when all is quiet each remote equals its part, and nothing waits.
//!
//! One thread does it all, so a seed gives the same history again: `HEADWATER_HISTORY_SEED` chooses the first, `HEADWATER_HISTORIES` how
//! many follow. (`kill` has processes that die, `faults` every byte, `crowd` everybody at once.)

mod rules;
mod schema;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use headwater_remote::{Remote, SyncOptions, http::Credentials};
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{FaultProxy, Plan, Random, wait_until};
use headwater_tests::tally::tally;
use headwater_tests::{Central, Kind, World};

use rules::{Cell, Image, judge};
use schema::{Schema, quote};

const REMOTES: usize = 5;
const WRITES_MIN: u64 = 200;
const SYNCS_MIN: u64 = 20;
const FAULTS_MIN: u64 = 3;
/// An answer's head has fewer.
const ANSWER_HEAD_BYTES_MAX: u64 = 400;
/// All that the bank has.
const MONEY: &str = "400";

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    histories: u64,
    writes: u64,
    syncs: u64,
    failures: u64,
    cuts: u64,
    restarts: u64,
    predicted: u64,
    conflicts: u64,
    refused: u64,
}

/// A change of the judged table: key, old image, new image.
type Judged = (Vec<Cell>, Image, Image);

struct Site {
    name: String,
    remote: Remote,
    /// The judged changes of the upload that is frozen and not applied yet.
    frozen: Option<Vec<Judged>>,
}

struct History {
    world: World,
    schema: Schema,
    servers: [SocketAddr; 2],
    proxies: [FaultProxy; 2],
    sites: Vec<Site>,
    random: Random,
    counts: Counts,
    /// A bug to be planted: the model takes every change for one without a conflict.
    forgets_conflicts: bool,
}

impl History {
    fn begin(kind: Kind, seed: u64) -> Result<History> {
        let mut random = Random::seeded(seed);
        let schema = Schema::draw(&mut random);
        let users: Vec<String> = (0..REMOTES).map(|user| format!("u{user}")).collect();
        let users: Vec<&str> = users.iter().map(String::as_str).collect();
        let mut world = World::unserved(kind, &schema.sql(REMOTES), &schema.model(), &users)?;
        // A client that fell silent is not waited for long.
        world.config.idle_ms_max = 1_000;
        let servers = [world.start_another_server(None)?, world.start_another_server(None)?];
        let proxies = [FaultProxy::start(servers[0])?, FaultProxy::start(servers[1])?];
        let url = format!("http://{}", proxies[0].address());
        let site = |name: &&str| -> Result<Site> {
            Ok(Site { name: (*name).to_owned(), remote: world.remote_at(name, name, &url)?, frozen: None })
        };
        let sites = users.iter().map(site).collect::<Result<_>>()?;
        let counts = Counts { histories: 1, ..Counts::default() };
        Ok(History { world, schema, servers, proxies, sites, random, counts, forgets_conflicts: false })
    }

    fn run(&mut self) -> Result<()> {
        for place in 0..REMOTES {
            self.sync(place, false)?;
        }
        while self.counts.writes < WRITES_MIN
            || self.counts.syncs < SYNCS_MIN
            || self.counts.cuts + self.counts.restarts < FAULTS_MIN
        {
            let place = self.random.below(REMOTES as u64) as usize;
            match self.random.below(100) {
                0..55 => self.write_at(place),
                55..75 => self.write_centrally(),
                75..97 => {
                    let is_faulty = self.random.chance(30);
                    self.sync(place, is_faulty)?;
                }
                _ => self.replace_server()?,
            }
        }
        self.settle()?;
        (0..REMOTES).try_for_each(|place| self.check(place).with_context(|| self.sites[place].name.clone()))
    }

    fn write_at(&mut self, place: usize) {
        let is_replace = self.random.chance(5);
        let sql = if is_replace { self.schema.replace(&mut self.random) } else { self.schema.write(&mut self.random) };
        // What the remote's own constraints refuse is nobody's loss.
        let done = self.world.edit(&self.sites[place].name, &format!("BEGIN; {sql}; COMMIT"));
        self.counts.writes += u64::from(done.is_ok());
    }

    fn write_centrally(&mut self) {
        let is_postgres = matches!(self.world.central, Central::Postgres(_));
        let sql = if self.random.chance(40) {
            self.schema.administer(&mut self.random, REMOTES as u64, is_postgres)
        } else {
            self.schema.write(&mut self.random)
        };
        let done = self.world.central.execute(&format!("BEGIN; {sql}; COMMIT"));
        self.counts.writes += u64::from(done.is_ok());
    }

    /// One of the servers goes, letting its syncs end, and another comes in its place.
    fn replace_server(&mut self) -> Result<()> {
        let place = self.random.below(2) as usize;
        self.world.stop_another_server(self.servers[place]);
        self.servers[place] = self.world.start_another_server(None)?;
        self.proxies[place].set_target(self.servers[place])?;
        self.counts.restarts += 1;
        Ok(())
    }

    fn fault(&mut self) -> Plan {
        let after = self.random.below(1_500);
        let direction = if self.random.chance(50) { Direction::Up } else { Direction::Down };
        self.counts.cuts += 1;
        match self.random.below(4) {
            0 => Plan::clean().cut(direction, after, Cut::Reset),
            1 => Plan::clean().cut(direction, after, Cut::Fin),
            // (A length that is damaged on the way up, or the head of an answer, has the upload cut smaller: of parts the model knows
            // nothing. See `faults`.)
            2 => Plan::clean().flip(Direction::Down, ANSWER_HEAD_BYTES_MAX + after),
            _ => Plan::clean().black_hole(direction, after),
        }
    }

    /// A sync of one remote through one of the servers, and what the model says of it.
    fn sync(&mut self, place: usize, is_faulty: bool) -> Result<()> {
        let through = self.random.below(2) as usize;
        if is_faulty {
            let plan = self.fault();
            self.proxies[through].next([plan]);
        }
        let before = self.stored()?;
        let pending = self.pending(place)?;
        let uploads_before = self.uploads(place)?;
        let url = format!("http://{}", self.proxies[through].address());
        let site = &mut self.sites[place];
        site.remote.set_server(&url, &site.name)?;
        let mut options = SyncOptions::new(Credentials::Token(self.world.token(&site.name)?));
        options.config.attempts_max = if is_faulty { 1 } else { 8 };
        options.config.backoff_min = Duration::from_millis(5);
        options.config.idle_max = if is_faulty { Duration::from_millis(300) } else { Duration::from_secs(30) };
        let synced = site.remote.sync(&mut options);
        self.proxies[through].go_clean();
        self.counts.syncs += 1;
        match &synced {
            Ok(report) => {
                self.counts.conflicts += report.conflicts;
                self.counts.refused += report.refused;
            }
            Err(error) if is_faulty => {
                no_damage(error);
                self.counts.failures += 1;
                // A server may still be at it.
                self.wait_for_servers()?;
            }
            Err(_) => {
                synced.context("a sync that nothing disturbs")?;
            }
        }
        self.predict(place, before, pending, uploads_before)?;
        let money = self.world.rows(&self.sites[place].name, "SELECT coalesce(sum(amount), 400) FROM bank")?;
        ensure!(money == [[Some(MONEY.to_owned())]], "the bank of {} has {money:?}", self.sites[place].name);
        Ok(())
    }

    /// Holds what is stored in the judged table against what the rules make of the changes that were applied.
    fn predict(
        &mut self,
        place: usize,
        before: BTreeMap<Vec<Cell>, Vec<Cell>>,
        pending: Vec<Judged>,
        uploads_before: u64,
    ) -> Result<()> {
        let uploads = self.uploads(place)?;
        let status = self.sites[place].remote.status()?;
        let mut waiting: Vec<Vec<Judged>> = self.sites[place].frozen.take().into_iter().collect();
        waiting.push(pending);
        let applied = (uploads - uploads_before) as usize;
        ensure!(applied <= waiting.len(), "{applied} uploads were applied, {} were waiting", waiting.len());
        let mut expected = before;
        for (key, old, new) in waiting.drain(..applied).flatten() {
            let integers: Vec<bool> = self.schema.judged_columns.iter().map(|(_, is)| *is).collect();
            let stored = expected.get(&key).cloned();
            self.counts.predicted += 1;
            let old = if self.forgets_conflicts { stored.clone() } else { old };
            match judge(self.schema.rule, &stored, &old, &new, &integers) {
                Some(row) => expected.insert(key, row),
                None => expected.remove(&key),
            };
        }
        // What is frozen is known by its number: acknowledged, it would be none.
        if status.is_frozen && uploads == status.upload_sequence {
            self.sites[place].frozen = Some(waiting.into_iter().next().context("an upload is frozen, of nothing")?);
        }
        let stored = self.stored()?;
        if stored != expected {
            let all: std::collections::BTreeSet<_> = stored.keys().chain(expected.keys()).collect();
            let differing = all.into_iter().filter(|key| stored.get(*key) != expected.get(*key));
            let lines: Vec<String> = differing
                .map(|key| format!("{key:?}: stored {:?}, expected {:?}", stored.get(key), expected.get(key)))
                .collect();
            bail!("{:?}, after a sync of {}:\n{}", self.schema.rule, self.sites[place].name, lines.join("\n"));
        }
        Ok(())
    }

    fn wait_for_servers(&self) -> Result<()> {
        for server in self.servers {
            ensure!(wait_until(Duration::from_mins(1), || is_idle(server).unwrap_or(false)), "{server} stays busy");
        }
        Ok(())
    }

    /// The judged table, by key.
    fn stored(&self) -> Result<BTreeMap<Vec<Cell>, Vec<Cell>>> {
        let columns: Vec<String> = self.schema.judged_columns.iter().map(|(name, _)| quote(name)).collect();
        let rows =
            self.world.central.rows(&format!("SELECT {} FROM {}", columns.join(", "), quote(&self.schema.judged)))?;
        Ok(rows.into_iter().map(|row| (row[..self.schema.judged_key].to_vec(), row)).collect())
    }

    /// How many uploads of a remote the database has.
    fn uploads(&self, place: usize) -> Result<u64> {
        let id = self.sites[place].remote.status()?.remote_id.map(|byte| format!("{byte:02x}")).concat();
        let sql = match &self.world.central {
            Central::Sqlite(_) => {
                format!("SELECT upload_sequence FROM headwater_remote WHERE hex(remote_id) = upper('{id}')")
            }
            Central::Postgres(_) => {
                format!("SELECT upload_sequence FROM headwater.remote WHERE encode(remote_id, 'hex') = '{id}'")
            }
        };
        let rows = self.world.central.rows(&sql)?;
        Ok(rows.first().and_then(|row| row[0].as_deref()).map_or(Ok(0), str::parse)?)
    }

    /// The judged changes that the next upload will have.
    fn pending(&self, place: usize) -> Result<Vec<Judged>> {
        let changes = self.sites[place].remote.pending(10_000)?;
        let judged = changes.into_iter().filter(|change| change.table == self.schema.judged && !change.is_on_its_way);
        judged
            .map(|change| {
                let image = |json: &Option<String>| json.as_deref().map(|json| self.cells(json)).transpose();
                let (old, new) = (image(&change.old)?, image(&change.new)?);
                let row = old.as_ref().or(new.as_ref()).context("a change of nothing")?;
                Ok((row[..self.schema.judged_key].to_vec(), old, new))
            })
            .collect()
    }

    fn cells(&self, json: &str) -> Result<Vec<Cell>> {
        let row: serde_json::Value = serde_json::from_str(json)?;
        let cell = |(name, _): &(String, bool)| match &row[name.as_str()] {
            serde_json::Value::Null => None,
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        Ok(self.schema.judged_columns.iter().map(cell).collect())
    }

    /// Syncs in turn until nothing moves.
    fn settle(&mut self) -> Result<()> {
        for _ in 0..8 {
            let mut moved = 0;
            for place in 0..REMOTES {
                let before = self.uploads(place)?;
                self.sync(place, false)?;
                moved += self.uploads(place)? - before;
                let status = self.sites[place].remote.status()?;
                moved += status.pending + u64::from(status.is_frozen);
            }
            if moved == 0 {
                return Ok(());
            }
        }
        bail!("after eight rounds of syncs without edits something still moves")
    }

    fn check(&self, place: usize) -> Result<()> {
        let site = &self.sites[place];
        let diff = self.world.diff(&site.name)?;
        let told = diff.tables.iter().map(|table| format!("{}: {:?}", table.table, table.differences));
        if !diff.is_equal(true) {
            let aside = site.remote.set_aside(100)?.into_iter().map(|a| {
                format!(
                    "set aside: {} {} {} ({}) {:?} -> {:?}",
                    a.table, a.reason, a.message, a.is_in_place, a.old, a.new
                )
            });
            let held = self.world.rows(&site.name, "SELECT \"table\", hex(\"key\"), hex(image) FROM hw_held")?;
            let family: Vec<_> = self
                .schema
                .family()
                .iter()
                .map(|table| self.world.central.rows(&format!("SELECT * FROM {table}")))
                .collect();
            let here: Vec<_> = self
                .schema
                .family()
                .iter()
                .map(|table| self.world.rows(&site.name, &format!("SELECT * FROM {table}")))
                .collect();
            bail!(
                "{}\nheld: {held:?}\ncentral: {family:?}\nhere: {here:?}",
                told.chain(aside).collect::<Vec<_>>().join("\n")
            );
        }
        let status = site.remote.status()?;
        ensure!(status.pending == 0 && !status.is_frozen, "{status:?}");
        for pragma in ["integrity_check", "foreign_key_check"] {
            let found = self.world.rows(&site.name, &format!("PRAGMA {pragma}"))?;
            ensure!(found.is_empty() || found == [[Some("ok".to_owned())]], "{pragma}: {found:?}");
        }
        Ok(())
    }
}

/// A fault may end a sync in any way but these.
fn no_damage(error: &headwater_remote::Error) {
    use headwater_remote::Error;
    assert!(!matches!(error, Error::Damaged { .. } | Error::Sqlite { .. }), "{error:?}");
}

fn is_idle(server: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect(server)?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains("\"syncs\":0"))
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs histories one after the other, and prints what they were.
fn run(kind: Kind, default: u64) -> Result<()> {
    let first = variable("HEADWATER_HISTORY_SEED")
        .map_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs()), Ok)?;
    let mut sum = Counts::default();
    for seed in first..first + variable("HEADWATER_HISTORIES").unwrap_or(default) {
        let mut history = History::begin(kind, seed)?;
        history
            .run()
            .with_context(|| format!("{kind:?}, HEADWATER_HISTORY_SEED={seed} ({:?})", history.schema.rule))?;
        let counts = history.counts;
        sum.histories += counts.histories;
        sum.writes += counts.writes;
        sum.syncs += counts.syncs;
        sum.failures += counts.failures;
        sum.cuts += counts.cuts;
        sum.restarts += counts.restarts;
        sum.predicted += counts.predicted;
        sum.conflicts += counts.conflicts;
        sum.refused += counts.refused;
    }
    tally(&[
        ("histories", sum.histories),
        ("writes", sum.writes),
        ("syncs", sum.syncs),
        ("failed", sum.failures),
        ("cuts", sum.cuts),
        ("restarts", sum.restarts),
        ("predicted", sum.predicted),
        ("conflicts", sum.conflicts),
        ("refused", sum.refused),
    ]);
    ensure!(sum.predicted > 0, "nothing was judged: {sum:?}");
    Ok(())
}

#[test]
fn histories_on_sqlite() -> Result<()> {
    run(Kind::Sqlite, 4)
}

#[test]
fn histories_on_postgresql() -> Result<()> {
    run(Kind::Postgres, 2)
}

/// A model that takes every change for one without a conflict is found out: the prediction is worth something.
#[test]
fn a_wrong_prediction_is_noticed() -> Result<()> {
    let found = (0..20).any(|seed| {
        let history = History::begin(Kind::Sqlite, seed);
        history.is_ok_and(|mut history| {
            history.forgets_conflicts = true;
            history.run().is_err_and(|error| format!("{error:#}").contains("expected"))
        })
    });
    ensure!(found, "twenty histories without a difference");
    Ok(())
}
