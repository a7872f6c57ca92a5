//! Everything at once, and all of it on: shared partitions in chunks, ready files for new remotes, a backlog with no room, workers that are
//! found; a server that is killed (SIGKILL) again and again, and answers that are cut off; writers that commit late or not at all; two users whose data carry markers,
//! one of whom loses a membership in the midst of it.
//!
//! When all is quiet every remote equals its part of the database, every operation was applied exactly once, and nothing that one user was
//! sent, and nothing in the files of their remotes, holds the other's marker, or one that came into the partition after they had left it. Each
//! feature must have been used: chunks and ready files fetched, syncs sent away.
//!
//! `HEADWATER_EVERYTHING_SECONDS` makes it longer, `HEADWATER_EVERYTHING_SEED` repeats a run (as far as the moments of a machine can be
//! repeated).

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater_remote::http::{Credentials, Server};
use headwater_remote::{CreateOptions, Remote, SyncOptions};
use headwater_testkit::proxy::{Cut, Direction, Plan};
use headwater_testkit::{Child, FaultProxy, Random, free_port, headwater_binary};
use headwater_tests::ledger::{Audit, Ledger, Operation, audit, converged};
use headwater_tests::tally::tally;
use headwater_tests::{Central, Kind, World};
use tokio_postgres::NoTls;

const MODEL: &str = r#"
name = "everything"
version = 1
[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE user_name = :s.user"
[tables.entry]
key = ["id"]
partition = "region"
shared = true
conflict = "consolidated_wins"
columns = { id = "text not null", region = "text not null", mark = "text", body = "text" }
"#;

fn schema(kind: Kind) -> String {
    let tables = "CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
        CREATE TABLE entry (id text NOT NULL PRIMARY KEY, region text NOT NULL, mark text, body text);";
    format!("{tables}\n{}", audit(kind))
}

const LONG: Duration = Duration::from_mins(2);
const USERS: [&str; 2] = ["ann", "bob"];
/// Remotes of each user that live from the beginning to the end.
const OLD: u64 = 2;
const WRITERS: u64 = 4;
/// Rows of each partition at the beginning: more than 64 KiB, below which nothing is shared.
const ROWS: u64 = 400;

/// The markers of a run, each the value of a partition column or in what is written.
struct Marks {
    /// Each user's own partition.
    own: [String; 2],
    /// In what comes into the partition `lent` after bob has left it.
    late: String,
}

impl Marks {
    fn new(random: &mut Random) -> Marks {
        let mut mark = |what: &str| format!("{what}-{:016x}", random.bits());
        Marks { own: [mark("anns"), mark("bobs")], late: mark("late") }
    }

    /// What a user must never be sent.
    fn forbidden(&self, user: usize) -> Vec<&str> {
        if user == 0 { vec![&self.own[1]] } else { vec![&self.own[0], &self.late] }
    }
}

/// The world, the server as a process that is killed, and a proxy for each user that keeps all that passes.
struct Stage {
    world: World,
    port: u16,
    proxies: [FaultProxy; 2],
    marks: Marks,
    /// Bob has lost his membership in `lent`.
    revoked: AtomicBool,
    /// New remotes that began with a ready file.
    taken: AtomicU64,
    end: Instant,
    seed: u64,
}

/// What a run leaves.
struct Done {
    /// Of the old remotes and the application.
    ledgers: Vec<Ledger>,
    /// Whose each is, and its name.
    remotes: Vec<(usize, String)>,
    kills: u64,
}

impl Stage {
    fn new(kind: Kind, seed: u64) -> Result<Stage> {
        let world = World::unserved(kind, &schema(kind), MODEL, &USERS)?;
        std::fs::write(world.folder.path().join("model.toml"), MODEL)?;
        let configuration = format!("models = [\"model.toml\"]\n[database]\nurl = \"{}\"\n", world.central.url());
        std::fs::write(world.folder.path().join("headwater.toml"), configuration)?;
        let mut random = Random::seeded(seed);
        let marks = Marks::new(&mut random);
        let [ann, bob] = &marks.own;
        world.central.execute(&format!(
            "INSERT INTO member VALUES ('ann', '{ann}'), ('bob', '{bob}'), ('ann', 'common'), ('bob', 'common'), \
             ('ann', 'lent'), ('bob', 'lent')"
        ))?;
        for region in [ann, bob, "common", "lent"] {
            let mut row = |number: u64| {
                let body = hex::encode((0..200).map(|_| random.bits() as u8).collect::<Vec<_>>());
                format!("('old-{region}-{number}', '{region}', 'old', '{body}')")
            };
            let rows: Vec<String> = (0..ROWS).map(&mut row).collect();
            world.central.execute(&format!("INSERT INTO entry VALUES {}", rows.join(", ")))?;
        }
        world.central.execute("DELETE FROM audit")?;
        let port = free_port()?;
        let proxies = [FaultProxy::start(("127.0.0.1", port))?, FaultProxy::start(("127.0.0.1", port))?];
        for (proxy, salt) in proxies.iter().zip([0xa, 0xb]) {
            proxy.record(true);
            let mut random = Random::seeded(seed ^ salt);
            proxy.script(move |_| {
                let after = random.chance(10).then(|| 1 + random.below(700));
                after.map_or_else(Plan::clean, |after| Plan::clean().cut(Direction::Down, after, Cut::Reset))
            });
        }
        let (revoked, taken) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Stage { world, port, proxies, marks, revoked, taken, end: Instant::now() + seconds()?, seed })
    }

    /// Little of everything that makes clients wait, so that there is always somebody who is sent away.
    fn serve(&self) -> Result<Child> {
        let mut command = Command::new(headwater_binary()?);
        command.arg("--config").arg(self.world.folder.path().join("headwater.toml"));
        command.args(["serve", "--no-check", "--backlog", "0", "--listen"]).arg(format!("127.0.0.1:{}", self.port));
        for option in ["workers_max=2", "receiving_max=2", "ready_bytes_min=0", "ready_ms_max=3000", "shared_ms=700"] {
            command.args(["--set", option]);
        }
        let mut server = Child::spawn("the server", &mut command)?;
        server.wait_for_line("listening", LONG)?;
        Ok(server)
    }

    /// Kills the server and starts another, until the end; gives the last one and how many died.
    fn kill_and_kill(&self) -> Result<(Child, u64)> {
        let (mut random, mut kills) = (Random::seeded(self.seed ^ 0xdead), 0);
        let mut server = self.serve()?;
        loop {
            let pause = Duration::from_millis(300 + random.below(2_000));
            if Instant::now() + pause >= self.end {
                return Ok((server, kills));
            }
            std::thread::sleep(pause);
            server.kill()?;
            kills += 1;
            server = self.serve()?;
        }
    }

    fn url(&self, user: usize) -> String {
        format!("http://{}", self.proxies[user].address())
    }

    /// Syncs until it ends well, however often the server dies, has no place or is cut off.
    fn sync(&self, user: usize, remote: &mut Remote) -> Result<u64> {
        let mut options = SyncOptions::new(Credentials::Token(self.world.token(USERS[user])?));
        options.config.attempts_max = 10_000;
        options.config.backoff_min = Duration::from_millis(5);
        options.config.backoff_max = Duration::from_millis(200);
        let report = remote.sync(&mut options)?;
        Ok(report.rows_down + report.deletions_down + report.changes_up)
    }

    /// The same with time between the attempts, in which the application takes away what came: a receipt that was lost is asked for late.
    fn sync_by_and_by(&self, user: usize, remote: &mut Remote) -> Result<()> {
        let deadline = Instant::now() + LONG;
        let mut options = SyncOptions::new(Credentials::Token(self.world.token(USERS[user])?));
        options.config.attempts_max = 1;
        while let Err(error) = remote.sync(&mut options) {
            ensure!(Instant::now() < deadline, "no sync ended well: {error}");
            std::thread::sleep(Duration::from_millis(250));
        }
        Ok(())
    }

    /// Makes a remote as `headwater remote create` does.
    fn create(&self, user: usize, name: &str) -> Result<Remote> {
        let (url, token) = (self.url(user), self.world.token(USERS[user])?);
        let server = Server { url: url.clone(), credentials: Credentials::Token(token), ca_file: None };
        let options = CreateOptions::new(url, USERS[user]);
        let model = self.world.plan.model.public();
        let (remote, began_with) = Remote::create_from(self.world.path(name), &model, &options, &server)?;
        self.taken.fetch_add(u64::from(began_with.is_some()), Ordering::Relaxed);
        Ok(remote)
    }

    /// A remote that edits offline and syncs until the end.
    fn live(&self, user: usize, number: u64) -> Result<Ledger> {
        let name = format!("{}{number}", USERS[user]);
        let mut remote = self.create(user, &name)?;
        let (mut ledger, mut next) = (Ledger::default(), 0);
        while Instant::now() < self.end {
            let mut sql = Vec::new();
            for _ in 0..3 {
                next += 1;
                let (id, region) =
                    (format!("r{name}-{next}"), if next % 3 == 0 { "common" } else { &self.marks.own[user] });
                let mark = format!("made by {} as {next}", self.marks.own[user]);
                sql.push(format!("INSERT INTO entry VALUES ('{id}', '{region}', 'made as {id}', '')"));
                ledger.note(Operation { op: "insert", mark: Some(format!("made as {id}")), id });
                if let Some(id) = changeable(&name, next) {
                    sql.push(format!("UPDATE entry SET mark = '{mark}' WHERE id = '{id}'"));
                    ledger.note(Operation { op: "update", mark: Some(mark), id });
                }
            }
            self.world.edit(&name, &format!("BEGIN; {}; COMMIT", sql.join("; ")))?;
            self.sync_by_and_by(user, &mut remote)?;
            ledger.acknowledge();
        }
        Ok(ledger)
    }

    /// New remotes, one after the other, as long as there is time, and until one began with a ready file; gives their names.
    fn renew(&self, user: usize, number: u64) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let has_time = || Instant::now() < self.end;
        let is_slow = || self.taken.load(Ordering::Relaxed) == 0 && Instant::now() < self.end + LONG;
        while has_time() || is_slow() {
            let name = format!("{}-new-{number}-{}", USERS[user], names.len());
            let mut remote = self.create(user, &name)?;
            self.sync(user, &mut remote)?;
            names.push(name);
        }
        Ok(names)
    }

    /// The application at the database: transactions that are held open, and committed or not.
    fn write(&self, writer: u64) -> Result<Ledger> {
        let connection = Writer::connect(&self.world.central)?;
        let (mut random, mut ledger, mut next) = (Random::seeded(self.seed ^ writer), Ledger::default(), 0);
        while Instant::now() < self.end {
            connection.execute("BEGIN")?;
            let is_revoked = self.revoked.load(Ordering::Acquire);
            let mut done = Vec::new();
            for _ in 0..=random.below(4) {
                next += 1;
                let region = [&*self.marks.own[0], &self.marks.own[1], "common", "lent"][random.below(4) as usize];
                let id = format!("w{writer}-{next}");
                let mark =
                    if is_revoked && region == "lent" { format!("{} {id}", self.marks.late) } else { id.clone() };
                done.push((
                    format!("INSERT INTO entry VALUES ('{id}', '{region}', '{mark}', '')"),
                    Operation { op: "insert", mark: Some(mark), id },
                ));
            }
            if writer == 0 {
                done.extend(consumed(&self.world.central)?);
            }
            for (sql, _) in &done {
                connection.execute(sql)?;
            }
            let held_ms = if random.chance(70) { 20 } else { connection.held_ms_max() };
            std::thread::sleep(Duration::from_millis(random.below(held_ms)));
            if random.chance(10) {
                connection.execute("ROLLBACK")?;
            } else {
                connection.execute("COMMIT")?;
                for (_, operation) in done {
                    ledger.note(operation);
                }
            }
            // Outside a transaction too, so that others have their turn.
            std::thread::sleep(Duration::from_millis(20 + random.below(60)));
        }
        ledger.acknowledge();
        Ok(ledger)
    }

    /// Everything side by side; in the midst of it bob loses his membership.
    fn run(&self) -> Result<Done> {
        let (server, ledgers, new, kills) = std::thread::scope(|scope| {
            let killing = scope.spawn(|| self.kill_and_kill());
            let each = || (0..USERS.len()).flat_map(|user| (0..OLD).map(move |number| (user, number)));
            let living: Vec<_> = each().map(|(user, number)| scope.spawn(move || self.live(user, number))).collect();
            let renewing: Vec<_> =
                each().map(|(user, number)| (user, scope.spawn(move || self.renew(user, number)))).collect();
            let writing: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || self.write(writer))).collect();
            std::thread::sleep(self.end.saturating_duration_since(Instant::now()) / 2);
            self.world.central.execute("DELETE FROM member WHERE user_name = 'bob' AND region = 'lent'")?;
            self.revoked.store(true, Ordering::Release);
            let ledgers = living.into_iter().chain(writing).map(|thread| thread.join().expect("no panic"));
            let ledgers: Vec<Ledger> = ledgers.collect::<Result<_>>()?;
            let mut new = Vec::new();
            for (user, thread) in renewing {
                new.extend(thread.join().expect("no panic")?.into_iter().map(|name| (user, name)));
            }
            let (server, kills) = killing.join().expect("no panic")?;
            anyhow::Ok((server, ledgers, new, kills))
        })?;
        let old =
            (0..USERS.len()).flat_map(|user| (0..OLD).map(move |number| (user, format!("{}{number}", USERS[user]))));
        let remotes: Vec<(usize, String)> = old.chain(new).collect();
        self.settle(&remotes)?;
        drop(server);
        Ok(Done { ledgers, remotes, kills })
    }

    /// Syncs of all remotes that nothing disturbs, until nothing moves.
    fn settle(&self, remotes: &[(usize, String)]) -> Result<()> {
        for _ in 0..4 {
            let mut moved = 0;
            for (user, name) in remotes {
                moved += self.sync(*user, &mut Remote::open(self.world.path(name))?)?;
            }
            if moved == 0 {
                return Ok(());
            }
        }
        anyhow::bail!("rows still move although nobody writes")
    }

    /// Nothing of what a user was sent, or has on disk, is another's.
    fn check_isolation(&self, remotes: &[(usize, String)]) -> Result<()> {
        for (user, proxy) in self.proxies.iter().enumerate() {
            let came: Vec<u8> = proxy
                .connections()
                .into_iter()
                .filter_map(|traffic| traffic.recorded)
                .flat_map(|(_, down)| down)
                .collect();
            for mark in self.marks.forbidden(user) {
                ensure!(!holds(&came, mark), "{} was sent {mark}", USERS[user]);
            }
            // The search can tell: ready files travel as they are.
            ensure!(holds(&came, &self.marks.own[user]), "no ready file of {} was found in what came", USERS[user]);
        }
        for (user, name) in remotes {
            let path = self.world.path(name);
            let mut bytes = std::fs::read(&path)?;
            bytes.extend(std::fs::read(path.with_extension("db-wal")).unwrap_or_default());
            for mark in self.marks.forbidden(*user) {
                ensure!(!holds(&bytes, mark), "{name} has {mark}");
            }
            ensure!(holds(&bytes, &self.marks.own[*user]), "{name} has nothing of its own");
        }
        Ok(())
    }

    /// How often a text stands in what went up, or came down.
    fn count(&self, is_up: bool, text: &str) -> u64 {
        let recorded = self.proxies.iter().flat_map(FaultProxy::connections).filter_map(|traffic| traffic.recorded);
        let bytes = recorded.map(|(up, down)| if is_up { up } else { down });
        bytes.map(|bytes| bytes.windows(text.len()).filter(|window| *window == text.as_bytes()).count() as u64).sum()
    }

    /// Every feature was used.
    fn check_use(&self, kills: u64, remotes: u64) -> Result<()> {
        let (chunks, taken) = (self.count(true, "GET /v1/chunk/"), self.taken.load(Ordering::Relaxed));
        let sent_away = self.count(false, "HTTP/1.1 503 ");
        tally(&[
            ("kills", kills),
            ("remotes", remotes),
            ("chunks", chunks),
            ("ready_files", taken),
            ("sent_away", sent_away),
        ]);
        ensure!(kills >= 3, "the server was killed {kills} times");
        ensure!(chunks > 0, "no chunk was fetched");
        ensure!(taken > 0, "no remote of {remotes} began with a ready file");
        ensure!(sent_away > 0, "nobody was sent away");
        Ok(())
    }
}

/// A row that the remote made some time before in its user's own partition, and that nobody else changes.
fn changeable(name: &str, next: u64) -> Option<String> {
    let before = next.checked_sub(12)?;
    (before % 2 == 1 && before % 3 != 0).then(|| format!("r{name}-{before}"))
}

/// What came from remotes and has an even number is taken away, as from a queue: applied again it would come back.
fn consumed(central: &Central) -> Result<Vec<(String, Operation)>> {
    let sql =
        "SELECT id FROM entry WHERE id LIKE 'r%' AND substr(id, length(id)) IN ('0', '2', '4', '6', '8') LIMIT 20";
    let ids = central.rows(sql)?.into_iter().flatten().flatten();
    let delete =
        |id: String| (format!("DELETE FROM entry WHERE id = '{id}'"), Operation { op: "delete", id, mark: None });
    Ok(ids.map(delete).collect())
}

fn holds(bytes: &[u8], mark: &str) -> bool {
    let (first, mark) = (mark.as_bytes()[0], mark.as_bytes());
    let mut rest = bytes;
    while let Some(place) = rest.iter().position(|byte| *byte == first) {
        if rest[place..].starts_with(mark) {
            return true;
        }
        rest = &rest[place + 1..];
    }
    false
}

/// A connection of the application's, whose transactions may stay open.
enum Writer {
    Sqlite(rusqlite::Connection),
    Postgres(tokio::runtime::Runtime, tokio_postgres::Client),
}

impl Writer {
    fn connect(central: &Central) -> Result<Writer> {
        match central {
            Central::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path)?;
                connection.busy_timeout(LONG)?;
                Ok(Writer::Sqlite(connection))
            }
            Central::Postgres(url) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
                runtime.spawn(connection);
                Ok(Writer::Postgres(runtime, client))
            }
        }
    }

    fn execute(&self, sql: &str) -> Result<()> {
        match self {
            Writer::Sqlite(connection) => {
                connection.execute_batch(if sql == "BEGIN" { "BEGIN IMMEDIATE" } else { sql }).map_err(Into::into)
            }
            Writer::Postgres(runtime, client) => runtime.block_on(client.batch_execute(sql)).map_err(Into::into),
        }
    }

    /// A file has one writer at a time, and the others wait.
    fn held_ms_max(&self) -> u64 {
        match self {
            Writer::Sqlite(_) => 50,
            Writer::Postgres(..) => 2_000,
        }
    }
}

fn seconds() -> Result<Duration> {
    let seconds = std::env::var("HEADWATER_EVERYTHING_SECONDS").map_or(Ok(12), |seconds| seconds.parse())?;
    Ok(Duration::from_secs(seconds))
}

fn everything(kind: Kind) -> Result<()> {
    let seed = match std::env::var("HEADWATER_EVERYTHING_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    let stage = Stage::new(kind, seed)?;
    let checked = || -> Result<()> {
        let Done { ledgers, remotes, kills } = stage.run()?;
        let audit = Audit::read(&stage.world.central)?;
        ledgers.iter().try_for_each(|ledger| ledger.check(&audit))?;
        audit.has_nothing_beside(&ledgers.iter().collect::<Vec<_>>())?;
        remotes.iter().try_for_each(|(_, name)| converged(&stage.world, name))?;
        stage.check_isolation(&remotes)?;
        stage.check_use(kills, remotes.len() as u64)
    };
    checked().with_context(|| format!("{kind:?} with HEADWATER_EVERYTHING_SEED={seed}"))
}

#[test]
fn everything_at_once_on_sqlite() -> Result<()> {
    everything(Kind::Sqlite)
}

#[test]
fn everything_at_once_on_postgresql() -> Result<()> {
    everything(Kind::Postgres)
}
