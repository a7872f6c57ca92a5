//! One history, from its first sync to the last.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use headwater_consolidated::{check, track};
use headwater_remote::Remote;
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{FaultProxy, Plan, Postgres, Random, wait_until};
use headwater_tests::{Central, Kind, World, read_model};
use tokio_postgres::error::DbError;

use crate::events::{Event, Events};
use crate::happen::give_up;
use crate::mirror;
use crate::predict::Judged;
use crate::restore::Copies;
use crate::schema::{GRANTS, Schema, Side, Wanted};
use crate::stock::Ledger;
use crate::window::{self, How, Outcome, Window};

pub(crate) const REMOTES: usize = 5;
const WRITES_MIN: u64 = 200;
const SYNCS_MIN: u64 = 20;
const FAULTS_MIN: u64 = 3;
/// An answer's head has fewer.
const ANSWER_HEAD_BYTES_MAX: u64 = 400;
/// All that the bank has.
const MONEY: &str = "400";
/// How often a schema is drawn that `check` does not take.
const DRAWN_MAX: u32 = 20;

/// A remote.
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) remote: Remote,
    /// The judged changes of the upload that is frozen and not applied yet.
    pub(crate) frozen: Option<Vec<Judged>>,
    /// The database was put back since its last sync: nothing is predicted.
    pub(crate) is_unsure: bool,
    /// The database was put back since its last upload. Numbers of uploads that were lost are not used again, so the next one skips some.
    pub(crate) skips: bool,
    /// The application has made things of its own in the file ([`crate::application`]).
    pub(crate) has_application: bool,
}

pub(crate) struct History {
    pub(crate) world: World,
    pub(crate) schema: Schema,
    pub(crate) events: Events,
    servers: [SocketAddr; 2],
    proxies: [FaultProxy; 2],
    pub(crate) sites: Vec<Site>,
    pub(crate) random: Random,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// Copies of the database; taken out while one is put back.
    pub(crate) copies: Option<Copies>,
    /// What the counters have to come to.
    pub(crate) ledger: Ledger,
    story: Vec<String>,
    /// Numbers what needs a name of its own.
    pub(crate) number: u64,
    /// A bug to be planted: the model takes every change for one without a conflict.
    pub(crate) forgets_conflicts: bool,
}

impl History {
    pub(crate) fn begin(kind: Kind, seed: u64, events: &Events) -> Result<History> {
        let mut random = Random::seeded(seed);
        let (mut world, schema, copies) = begin_world(kind, &mut random, events)?;
        // A client that fell silent is not waited for long.
        world.config.idle_ms_max = 400;
        let servers = [world.start_another_server(None)?, world.start_another_server(None)?];
        let proxies = [FaultProxy::start(servers[0])?, FaultProxy::start(servers[1])?];
        let url = format!("http://{}", proxies[0].address());
        let site = |place: usize| -> Result<Site> {
            let name = format!("u{place}");
            let remote = world.remote_at(&name, &name, &url)?;
            Ok(Site { name, remote, frozen: None, is_unsure: false, skips: false, has_application: false })
        };
        let sites = (0..REMOTES).map(site).collect::<Result<_>>()?;
        let story = vec![format!(
            "{:?}; things: key {}, partition {}, reference {}{}, value {}",
            schema.rule,
            schema.key.name,
            schema.partition.name,
            schema.reference.name,
            if schema.has_reference { "" } else { " (not at remotes)" },
            schema.value.name
        )];
        Ok(History {
            world,
            schema,
            events: events.clone(),
            servers,
            proxies,
            sites,
            random,
            counts: BTreeMap::from([("histories", 1)]),
            copies: Some(copies),
            ledger: Ledger::new(),
            story,
            number: 0,
            forgets_conflicts: false,
        })
    }

    /// What has happened, a line each.
    pub(crate) fn told(&self) -> String {
        self.story.join("\n")
    }

    pub(crate) fn tell(&mut self, line: String) {
        self.story.push(line);
    }

    pub(crate) fn count(&mut self, name: &'static str, count: u64) {
        *self.counts.entry(name).or_insert(0) += count;
    }

    fn counted(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Leaves nothing in the cluster.
    pub(crate) fn remove(&mut self) -> Result<()> {
        for server in self.servers {
            self.world.stop_another_server(server);
        }
        self.copies.as_ref().map_or(Ok(()), |copies| copies.remove(&self.world.central))
    }

    pub(crate) fn run(&mut self) -> Result<()> {
        self.begin_applications()?;
        for place in 0..REMOTES {
            self.sync(place, false, Window::Nothing)?;
        }
        while self.counted("writes") < WRITES_MIN
            || self.counted("syncs") < SYNCS_MIN
            || self.counted("cuts") + self.counted("restarts") < FAULTS_MIN
        {
            let place = self.random.below(REMOTES as u64) as usize;
            match self.random.below(100) {
                0..54 => self.write_at(place)?,
                54..76 => self.write_centrally()?,
                76..90 => {
                    let is_faulty = self.random.chance(30);
                    self.sync(place, is_faulty, Window::Nothing)?;
                }
                90..99 => self.happen(place)?,
                _ => self.replace_server()?,
            }
        }
        self.settle()?;
        self.add_up()?;
        (0..REMOTES).try_for_each(|place| self.check(place).with_context(|| self.sites[place].name.clone()))
    }

    fn write_at(&mut self, place: usize) -> Result<()> {
        if self.events.has(Event::Counters) && self.random.chance(10) {
            return self.count_at(Some(place));
        }
        let is_replace = self.random.chance(5);
        let sql = if is_replace {
            self.schema.replace(&mut self.random)
        } else {
            self.schema.write(&mut self.random, Side::Remote)
        };
        // What the remote's own constraints refuse is nobody's loss.
        let name = self.sites[place].name.clone();
        if self.world.edit(&name, &format!("BEGIN; {sql}; COMMIT")).is_ok() {
            self.count("writes", 1);
            self.tell(format!("{name} writes {sql}"));
        }
        Ok(())
    }

    fn write_centrally(&mut self) -> Result<()> {
        if self.events.has(Event::Counters) && self.random.chance(10) {
            return self.count_at(None);
        }
        let sql = if self.random.chance(20) {
            self.schema.administer(&mut self.random)
        } else {
            self.schema.write(&mut self.random, Side::Head)
        };
        self.at_the_head(&sql)
    }

    /// The application's own constraints may refuse it; tracking must not.
    pub(crate) fn at_the_head(&mut self, sql: &str) -> Result<()> {
        match self.world.central.execute(&format!("BEGIN; {sql}; COMMIT")) {
            Ok(()) => {
                self.count("writes", 1);
                self.tell(format!("the head writes {sql}"));
            }
            Err(error) => {
                let function = error.chain().find_map(|cause| cause.downcast_ref::<DbError>()?.where_());
                let text = format!("{error:#} {}", function.unwrap_or_default());
                ensure!(!text.contains("headwater"), "tracking fails a statement: {text}");
            }
        }
        Ok(())
    }

    /// One of the servers goes, letting its syncs end, and another comes in its place.
    fn replace_server(&mut self) -> Result<()> {
        let place = self.random.below(2) as usize;
        self.world.stop_another_server(self.servers[place]);
        self.servers[place] = self.world.start_another_server(None)?;
        self.proxies[place].set_target(self.servers[place])?;
        self.count("restarts", 1);
        self.tell("another server".to_owned());
        Ok(())
    }

    fn fault(&mut self) -> Plan {
        let after = self.random.below(1_500);
        let direction = if self.random.chance(50) { Direction::Up } else { Direction::Down };
        self.count("cuts", 1);
        match self.random.below(8) {
            0..3 => Plan::clean().cut(direction, after, Cut::Reset),
            3..5 => Plan::clean().cut(direction, after, Cut::Fin),
            // (A length that is damaged on the way up, or the head of an answer, has the upload cut smaller: of parts the model knows
            // nothing. See `faults`.)
            5 | 6 => Plan::clean().flip(Direction::Down, ANSWER_HEAD_BYTES_MAX + after),
            _ => Plan::clean().black_hole(direction, after),
        }
    }

    /// A sync of one remote through one of the servers, with this in its midst, and what the model says of it.
    pub(crate) fn sync(&mut self, place: usize, is_faulty: bool, window: Window<'_>) -> Result<()> {
        let through = self.random.below(2) as usize;
        if is_faulty {
            let plan = self.fault();
            self.proxies[through].next([plan]);
        }
        let is_plain = matches!(window, Window::Nothing);
        let puts_back = matches!(window, Window::Restored(_));
        let before = self.before(place)?;
        let url = format!("http://{}", self.proxies[through].address());
        let site = &mut self.sites[place];
        site.remote.set_server(&url, &site.name)?;
        let how = How {
            token: self.world.token(&site.name)?,
            attempts_max: if is_faulty { 1 } else { 8 },
            idle_max: if is_faulty { Duration::from_millis(300) } else { Duration::from_secs(30) },
        };
        let Outcome { synced, told } = window::sync(&self.world.central, &mut site.remote, &how, window)?;
        let name = site.name.clone();
        self.proxies[through].go_clean();
        self.count("syncs", 1);
        self.tell(format!("{name} syncs {told}"));
        let is_whole = match &synced {
            Ok(report) => {
                self.count("conflicts", report.conflicts);
                self.count("refused", report.refused);
                self.count("afresh", u64::from(report.restarted));
                true
            }
            Err(error) if is_faulty => {
                no_damage(error)?;
                self.count("failures", 1);
                self.tell(format!("  fails: {error}: {:?}", std::error::Error::source(&error)));
                // A server may still be at it.
                self.wait_for_servers()?;
                false
            }
            Err(error) => {
                self.tell(format!("  fails: {error}: {:?}", std::error::Error::source(&error)));
                no_damage(error)?;
                self.sites[place].is_unsure = true;
                self.operate(place, &how).with_context(|| format!("after {error:?}"))?
            }
        };
        if puts_back {
            self.is_put_back();
        }
        if self.sites[place].is_unsure {
            let site = &mut self.sites[place];
            site.is_unsure = !is_whole || puts_back || site.remote.status()?.is_frozen;
            site.frozen = None;
        } else {
            self.predict(place, before)?;
        }
        let money = self.world.rows(&name, "SELECT coalesce(sum(amount), 400) FROM bank")?;
        ensure!(money == [[Some(MONEY.to_owned())]], "the bank of {name} has {money:?}");
        match (is_whole, is_plain) {
            (true, true) => self.mirrors(place, false),
            // What was done in the midst may come with the next.
            (true, false) => self.sync(place, false, Window::Nothing),
            _ => Ok(()),
        }
    }

    /// What an operator does when syncs fail: `track`, and the remote tries once more.
    fn operate(&mut self, place: usize, how: &How) -> Result<bool> {
        self.count("operated", 1);
        self.track()?;
        let site = &mut self.sites[place];
        let outcome = window::sync(&self.world.central, &mut site.remote, how, Window::Nothing)?;
        outcome.synced.context("a sync that nothing disturbs")?;
        self.tell(format!("{} syncs after `track`", self.sites[place].name));
        Ok(true)
    }

    pub(crate) fn track(&mut self) -> Result<()> {
        let done = track::track(&mut *self.world.central.backend()?.connect()?, &self.world.plan).context("`track`")?;
        self.tell(format!("the operator runs `track`: {} statements", done.len()));
        Ok(())
    }

    /// After a database was put back, what the judged table has is nothing to go by until a remote has synced.
    pub(crate) fn is_put_back(&mut self) {
        self.ledger.close();
        for site in &mut self.sites {
            site.is_unsure = true;
            site.skips = true;
            site.frozen = None;
        }
    }

    /// The remote has what the database has for its user.
    fn mirrors(&mut self, place: usize, is_settled: bool) -> Result<()> {
        let site = &self.sites[place];
        let found = mirror::differences(&self.world, &self.schema, (&site.name, &site.name, &site.remote), is_settled)?;
        self.count("compared", 1);
        let site = &self.sites[place];
        ensure!(found.is_empty(), "{} differs after a sync:\n{}", site.name, found.join("\n"));
        self.agrees(place, is_settled)
    }

    fn wait_for_servers(&self) -> Result<()> {
        for server in self.servers {
            ensure!(wait_until(Duration::from_mins(1), || is_idle(server).unwrap_or(false)), "{server} stays busy");
        }
        Ok(())
    }

    /// Syncs in turn until nothing moves; then what is set aside is given up.
    fn settle(&mut self) -> Result<()> {
        self.tell("nobody writes any more".to_owned());
        for _ in 0..4 {
            self.until_quiet()?;
            let mut dropped = 0;
            for site in &mut self.sites {
                self.ledger.close_if_set_aside(&site.remote)?;
                dropped += give_up(&mut site.remote)?.unwrap_or(0);
            }
            if dropped == 0 {
                return Ok(());
            }
            self.tell(format!("{dropped} changes set aside are dropped"));
        }
        self.until_quiet()
    }

    fn until_quiet(&mut self) -> Result<()> {
        for _ in 0..8 {
            let mut moved = 0;
            for place in 0..REMOTES {
                let before = self.uploads(place)?;
                self.sync(place, false, Window::Nothing)?;
                moved += self.uploads(place)?.abs_diff(before);
                let status = self.sites[place].remote.status()?;
                moved += status.pending + u64::from(status.is_frozen);
            }
            if moved == 0 {
                return Ok(());
            }
        }
        bail!("after eight rounds of syncs without edits something still moves")
    }

    fn check(&mut self, place: usize) -> Result<()> {
        self.mirrors(place, true)?;
        let site = &self.sites[place];
        let status = site.remote.status()?;
        let waits = (status.pending, status.set_aside, status.held, status.is_frozen);
        ensure!(waits == (0, 0, 0, false), "{status:?}, held: {:?}", site.remote.held(10)?);
        let diff = self.world.diff(&site.name)?;
        ensure!(diff.is_equal(false), "diff: {}", serde_json::to_string(&diff)?);
        for pragma in ["integrity_check", "foreign_key_check"] {
            let found = self.world.rows(&site.name, &format!("PRAGMA {pragma}"))?;
            ensure!(found.is_empty() || found == [[Some("ok".to_owned())]], "{pragma}: {found:?}");
        }
        Ok(())
    }
}

/// A database with a schema that `check` takes, and where it is copied.
fn begin_world(kind: Kind, random: &mut Random, events: &Events) -> Result<(World, Schema, Copies)> {
    let wanted = Wanted {
        equalities: events.has(Event::Equality),
        decimals: events.has(Event::Decimals),
        ranges: events.has(Event::Ranges),
    };
    let users: Vec<String> = (0..REMOTES).map(|user| format!("u{user}")).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let own_cluster = events.has(Event::Failover) && random.chance(5);
    for _ in 0..DRAWN_MAX {
        let mut schema = Schema::draw(random, kind, wanted);
        for has_reference in [true, false] {
            schema.has_reference = has_reference;
            let (central, copies, folder) = place(kind, own_cluster)?;
            central.execute(&schema.sql(random, REMOTES))?;
            let Ok(model) = read_model(&schema.model()) else { continue };
            let world = World::over(central, folder, model, &users)?;
            let findings = check::check(&mut *world.central.backend()?.connect()?, &world.plan)?;
            if events.has(Event::Session) && kind == Kind::Postgres {
                world.central.execute(GRANTS)?;
            }
            if findings.iter().all(|finding| finding.severity != check::Severity::Error) {
                return Ok((world, schema, copies));
            }
            copies.remove(&world.central)?;
        }
    }
    bail!("`check` took none of {DRAWN_MAX} schemas")
}

fn place(kind: Kind, own_cluster: bool) -> Result<(Central, Copies, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    Ok(match kind {
        Kind::Sqlite => (Central::Sqlite(folder.path().join("central.db")), Copies::File(None), folder),
        Kind::Postgres if own_cluster => {
            let cluster = Postgres::start()?;
            let central = Central::Postgres(cluster.create_database()?);
            (central, Copies::Cluster(Box::new(cluster), None), folder)
        }
        Kind::Postgres => {
            let shared = Postgres::shared()?;
            let copies = Copies::Database { admin: shared.url("postgres"), has_copy: false, number: 0 };
            (Central::Postgres(shared.create_database()?), copies, folder)
        }
    })
}

/// A fault may end a sync in any way but these.
fn no_damage(error: &headwater_remote::Error) -> Result<()> {
    use headwater_remote::Error;
    ensure!(!matches!(error, Error::Damaged { .. } | Error::Sqlite { .. }), "{error:?}");
    Ok(())
}

fn is_idle(server: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect(server)?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains("\"syncs\":0"))
}
