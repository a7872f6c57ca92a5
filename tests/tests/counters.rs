//! Random runs with counters: three remotes and a head take from the same rows, while answers are lost, requests are cut, processes are
//! killed and files are copied; refused changes are retried and dropped. In the end the head is the start and all deltas, and every remote
//! equals it.
//!
//! Each run has rows and remotes of its own, drawn from its seed. `HEADWATER_COUNTER_RUNS=2000` says how many there are,
//! `HEADWATER_COUNTER_SEED` which is the first.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Choice, PendingChoice, Remote, SyncOptions};
use headwater_testkit::proxy::{Cut, Direction};
use headwater_testkit::{FaultProxy, Plan, Postgres, Random, headwater_binary};
use headwater_tests::backup::copy_file;
use headwater_tests::tally::tally;
use headwater_tests::{Central, Kind, World, read_model};
use serde_json::Value;
use tempfile::TempDir;

const USER: &str = "ann";
const REMOTES: usize = 3;
/// With those that are copied.
const FILES_MAX: usize = 5;
const ITEMS: i64 = 3;
const STEPS: std::ops::Range<u64> = 20..45;
/// What a row begins with.
const QTY: i64 = 20;
const CENTS: i64 = 1_000_000;
/// The head refuses rows with more.
const QTY_MAX: i64 = 40;
/// Of so many runs one has the program itself killed.
const KILL_EVERY: u64 = 25;
const SETTLE_MAX: u32 = 20;

const MODEL: &str = r#"
name = "counters"
version = 1
[tables.item]
key = ["id"]
conflict = { merge = "consolidated", sum = ["qty", "price"] }
columns = { id = "int not null", note = "text", qty = "int not null", price = "decimal(12,2) not null" }
"#;

fn schema(kind: Kind) -> String {
    let (id, price) = match kind {
        Kind::Sqlite => ("INTEGER", "DECIMAL_TEXT(12,2)"),
        Kind::Postgres => ("bigint", "numeric(12,2)"),
    };
    format!(
        "CREATE TABLE item (id {id} NOT NULL PRIMARY KEY, note text, \
         qty {id} NOT NULL CHECK (qty BETWEEN 0 AND {QTY_MAX}), price {price} NOT NULL)"
    )
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// What is added to a row, or what stands in it: a number, and cents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    qty: i64,
    cents: i64,
}

impl Amount {
    fn add(&mut self, other: Amount) {
        self.qty += other.qty;
        self.cents += other.cents;
    }

    fn less(self, other: Amount) -> Amount {
        Amount { qty: self.qty - other.qty, cents: self.cents - other.cents }
    }

    /// Of a row as JSON or as texts.
    fn read(qty: &str, price: &str) -> Result<Amount> {
        let price: f64 = price.parse().with_context(|| format!("the price {price:?}"))?;
        let qty = qty.parse().with_context(|| format!("the quantity {qty:?}"))?;
        Ok(Amount { qty, cents: (price * 100.0).round() as i64 })
    }

    fn of_json(row: &str) -> Result<(i64, Amount)> {
        let row: Value = serde_json::from_str(row)?;
        let text = |name: &str| row[name].as_str().map_or_else(|| row[name].to_string(), str::to_owned);
        Ok((text("id").parse()?, Amount::read(&text("qty"), &text("price"))?))
    }
}

/// A remote's file.
struct File {
    name: String,
    /// Who made the row last stands in its note, so that no two files send the same bytes.
    edits: u64,
}

/// One run.
struct Run<'w> {
    world: &'w World,
    proxy: &'w FaultProxy,
    kind: Kind,
    seed: u64,
    random: Random,
    files: Vec<File>,
    /// What each row should come to.
    expected: BTreeMap<i64, Amount>,
    story: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
}

/// What a remote has not settled.
#[derive(Clone, Copy)]
struct Open {
    pending: u64,
    set_aside: u64,
    is_frozen: bool,
}

impl Open {
    fn is_nothing(self) -> bool {
        self.pending + self.set_aside == 0 && !self.is_frozen
    }
}

impl<'w> Run<'w> {
    fn begin(world: &'w World, proxy: &'w FaultProxy, kind: Kind, seed: u64) -> Result<Run<'w>> {
        let first = (seed % 1_000_000) as i64 * 100;
        let start = Amount { qty: QTY, cents: CENTS };
        let expected: BTreeMap<i64, Amount> = (first..first + ITEMS).map(|id| (id, start)).collect();
        let rows: Vec<String> =
            expected.keys().map(|id| format!("({id}, 'new', {QTY}, '{}.00')", CENTS / 100)).collect();
        world.central.execute(&format!("INSERT INTO item VALUES {}", rows.join(", ")))?;
        let files = (0..REMOTES).map(|number| File { name: format!("run-{seed}-{number}"), edits: 0 }).collect();
        let run = Run {
            world,
            proxy,
            kind,
            seed,
            random: Random::seeded(seed),
            files,
            expected,
            story: Vec::new(),
            counts: BTreeMap::new(),
        };
        for place in 0..REMOTES {
            let url = format!("http://{}", proxy.address());
            world.remote_at(&run.files[place].name, USER, &url)?;
            run.sync(place, 20)??;
        }
        Ok(run)
    }

    fn told(&self) -> String {
        format!("{:?}, HEADWATER_COUNTER_SEED={}\n{}", self.kind, self.seed, self.story.join("\n"))
    }

    fn tell(&mut self, what: &'static str, text: &str) {
        *self.counts.entry(what).or_default() += 1;
        self.story.push(format!("{what}: {text}"));
    }

    /// A process of its own each time: whatever was in memory is gone.
    fn open(&self, place: usize) -> Result<Remote> {
        Ok(Remote::open(self.world.path(&self.files[place].name))?)
    }

    fn sync(&self, place: usize, attempts_max: u32) -> Result<Result<(), headwater_remote::Error>> {
        let mut options = SyncOptions::new(Credentials::Token(self.world.token(USER)?));
        options.config.attempts_max = attempts_max;
        options.config.backoff_min = Duration::from_millis(2);
        options.config.backoff_max = Duration::from_millis(50);
        Ok(self.open(place)?.sync(&mut options).map(drop))
    }

    fn open_work(&self, place: usize) -> Result<Open> {
        let status = self.open(place)?.status()?;
        Ok(Open { pending: status.pending, set_aside: status.set_aside, is_frozen: status.is_frozen })
    }

    fn step(&mut self) -> Result<()> {
        let place = self.random.below(self.files.len() as u64) as usize;
        match self.random.below(100) {
            0..44 => self.edit(place),
            44..54 => {
                self.edit_at_the_head();
                Ok(())
            }
            54..70 => self.sync_with(place, None),
            70..84 => {
                let bytes = self.random.below(500);
                self.sync_with(place, Some((Direction::Down, bytes)))
            }
            84..88 => {
                let bytes = self.random.below(1_200);
                self.sync_with(place, Some((Direction::Up, bytes)))
            }
            88..94 => self.retry(place),
            94..96 => self.drop_set_aside(place),
            96..98 => self.drop_pending(place),
            _ => self.copy(place),
        }
    }

    /// What is taken, or brought: seldom so much that the head refuses it.
    fn delta(&mut self) -> Amount {
        let qty = if self.random.chance(70) { self.random.below(7) as i64 - 4 } else { 0 };
        let much = if self.random.chance(12) { 25 } else { 0 };
        Amount { qty: qty - much, cents: self.random.below(100_000) as i64 - 50_000 }
    }

    fn item(&mut self) -> i64 {
        let ids: Vec<i64> = self.expected.keys().copied().collect();
        *self.random.pick(&ids).expect("there are rows")
    }

    fn expect(&mut self, id: i64, delta: Amount) {
        self.expected.entry(id).or_default().add(delta);
    }

    fn edit(&mut self, place: usize) -> Result<()> {
        let (id, delta) = (self.item(), self.delta());
        let file = &mut self.files[place];
        file.edits += 1;
        let (name, note) = (file.name.clone(), format!("{} edit {}", file.name, file.edits));
        let cents = delta.cents as f64 / 100.0;
        self.world.edit(
            &name,
            &format!(
                "UPDATE item SET note = '{note}', qty = qty + {}, price = printf('%.2f', price + {cents:.2}) WHERE id = {id}",
                delta.qty
            ),
        )?;
        self.expect(id, delta);
        self.tell("edits", &format!("{name}: {id} {delta:?}"));
        Ok(())
    }

    fn edit_at_the_head(&mut self) {
        let (id, delta) = (self.item(), self.delta());
        let cents = delta.cents as f64 / 100.0;
        let price = match self.kind {
            Kind::Sqlite => format!("printf('%.2f', price + {cents:.2})"),
            Kind::Postgres => format!("price + {cents:.2}"),
        };
        let sql = format!("UPDATE item SET qty = qty + {}, price = {price} WHERE id = {id}", delta.qty);
        let done = self.world.central.execute(&sql);
        if done.is_ok() {
            self.expect(id, delta);
        }
        self.tell("edits_at_the_head", &format!("{id} {delta:?}: {}", done.is_ok()));
    }

    fn sync_with(&mut self, place: usize, cut: Option<(Direction, u64)>) -> Result<()> {
        if let Some((direction, bytes)) = cut {
            let how = if bytes % 2 == 0 { Cut::Reset } else { Cut::Fin };
            self.proxy.next([Plan::clean().cut(direction, bytes, how)]);
        }
        let done = self.sync(place, 1)?;
        // It may have ended before it came to the cut.
        self.proxy.go_clean();
        let name = self.files[place].name.clone();
        let what = if cut.is_some() { "broken_syncs" } else { "syncs" };
        self.tell(what, &format!("{name} {cut:?}: {:?}", done.as_ref().map_err(headwater_remote::Error::code)));
        let is_expected = done.as_ref().map_or_else(headwater_remote::Error::is_retryable, |()| true);
        ensure!(is_expected, "{name}: {done:?}");
        Ok(())
    }

    fn retry(&mut self, place: usize) -> Result<()> {
        let retried = self.open(place)?.retry(&Choice::All)?;
        if retried.changes > 0 {
            let name = self.files[place].name.clone();
            self.tell("retried", &format!("{name}: {retried:?}"));
        }
        Ok(())
    }

    /// What is given up was never added at the head.
    fn drop_set_aside(&mut self, place: usize) -> Result<()> {
        let mut remote = self.open(place)?;
        let listed = remote.set_aside(usize::MAX >> 1)?;
        let mut given_up = Vec::new();
        for note in &listed {
            // Whether this was added nobody can tell the remote; the upload was.
            if note.reason == "unanswered" {
                continue;
            }
            given_up.push(difference(note.old.as_deref(), note.new.as_deref())?);
        }
        let dropped = remote.drop_set_aside(&Choice::All)?;
        ensure!(dropped == listed.len() as u64, "{dropped} dropped of {listed:?}");
        self.give_up(place, "dropped", given_up);
        Ok(())
    }

    fn drop_pending(&mut self, place: usize) -> Result<()> {
        let mut remote = self.open(place)?;
        if remote.status()?.is_frozen {
            ensure!(remote.drop_pending(&PendingChoice::All).is_err(), "an upload on its way was dropped");
            return Ok(());
        }
        let listed = remote.pending(usize::MAX >> 1)?;
        let listed: Vec<_> = listed.into_iter().filter(|change| !change.is_set_aside).collect();
        let given_up = listed
            .iter()
            .map(|change| difference(change.old.as_deref(), change.new.as_deref()))
            .collect::<Result<Vec<_>>>()?;
        let dropped = remote.drop_pending(&PendingChoice::All)?;
        ensure!(dropped == listed.len() as u64, "{dropped} dropped of {listed:?}");
        self.give_up(place, "dropped_pending", given_up);
        Ok(())
    }

    fn give_up(&mut self, place: usize, what: &'static str, given_up: Vec<(i64, Amount)>) {
        if given_up.is_empty() {
            return;
        }
        let name = self.files[place].name.clone();
        self.tell(what, &format!("{name}: {given_up:?}"));
        for (id, delta) in given_up {
            self.expect(id, Amount::default().less(delta));
        }
    }

    /// Somebody takes the file to another machine. A copy's pending changes would be made twice by whoever made them, so there are none;
    /// of an upload on its way each file has the same.
    fn copy(&mut self, place: usize) -> Result<()> {
        if self.files.len() == FILES_MAX {
            return Ok(());
        }
        let open = self.open_work(place)?;
        let may_be = open.is_nothing() || (open.is_frozen && open.set_aside == 0 && self.is_sure_to_be_taken(place)?);
        if !may_be {
            return Ok(());
        }
        let (from, to) = (self.files[place].name.clone(), format!("run-{}-{}", self.seed, self.files.len()));
        copy_file(&self.world.path(&from), &self.world.path(&to))?;
        self.files.push(File { name: to.clone(), edits: 0 });
        self.tell("copies", &format!("{from} to {to}, an upload is on its way: {}", open.is_frozen));
        Ok(())
    }

    /// Nothing is pending but what is on its way, and of that no change may be refused: it would be set aside in both files.
    fn is_sure_to_be_taken(&self, place: usize) -> Result<bool> {
        for change in self.open(place)?.pending(usize::MAX >> 1)? {
            let (_, amount) = difference(change.old.as_deref(), change.new.as_deref())?;
            if !change.is_on_its_way || amount.qty != 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The program itself syncs, and is killed before its n-th write to the file.
    fn kill(&mut self, place: usize) -> Result<()> {
        self.edit(place)?;
        let (name, number) = (self.files[place].name.clone(), 1 + self.random.below(12));
        let mut command = Command::new("strace");
        command.args(["-f", "-qqq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e"]);
        command.arg(format!("inject=pwrite64:signal=SIGKILL:when={number}")).arg(headwater_binary()?);
        command.args(["remote", "sync", "--attempts", "1"]).arg(self.world.path(&name));
        let output = command.env("HEADWATER_TOKEN", self.world.token(USER)?).output();
        let status = output.context("strace: `make setup` installs it")?.status;
        self.tell("kills", &format!("{name} at write {number}: {status}"));
        Ok(())
    }

    /// Nothing disturbs any more: everything goes up, and what is refused is given up.
    fn settle(&mut self) -> Result<()> {
        for _ in 0..SETTLE_MAX {
            let mut is_settled = true;
            for place in 0..self.files.len() {
                self.sync(place, 50)??;
                let open = self.open_work(place)?;
                if open.set_aside > 0 {
                    self.drop_set_aside(place)?;
                }
                is_settled &= open.is_nothing();
            }
            if is_settled {
                break;
            }
        }
        // What the last one sent comes down to the others.
        for place in 0..self.files.len() {
            self.sync(place, 50)??;
            ensure!(self.open_work(place)?.is_nothing(), "{} is not settled", self.files[place].name);
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let ids: Vec<String> = self.expected.keys().map(ToString::to_string).collect();
        let sql = format!("SELECT id, note, qty, price FROM item WHERE id IN ({}) ORDER BY id", ids.join(", "));
        let rows = self.world.central.rows(&sql)?;
        let read = |row: &Vec<Option<String>>| -> Result<(i64, Amount)> {
            let cell = |place: usize| row.get(place).and_then(Option::as_deref).unwrap_or_default();
            Ok((cell(0).parse()?, Amount::read(cell(2), cell(3))?))
        };
        let head = rows.iter().map(read).collect::<Result<BTreeMap<_, _>>>()?;
        ensure!(head == self.expected, "the head has {head:?}, expected {:?}", self.expected);
        for file in &self.files {
            let there = self.world.rows(&file.name, &sql)?;
            let amounts = there.iter().map(read).collect::<Result<BTreeMap<_, _>>>()?;
            let notes = |rows: &[Vec<Option<String>>]| rows.iter().map(|row| row[1].clone()).collect::<Vec<_>>();
            ensure!(amounts == head && notes(&there) == notes(&rows), "{} has {there:?}, the head {rows:?}", file.name);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        for _ in 0..STEPS.start + self.random.below(STEPS.end - STEPS.start) {
            self.step()?;
        }
        if self.seed.is_multiple_of(KILL_EVERY) {
            for place in 0..REMOTES {
                self.kill(place)?;
            }
        }
        self.settle()?;
        self.check()
    }

    /// The next run has nothing of this one.
    fn end(self) -> Result<()> {
        for file in &self.files {
            for suffix in ["", "-wal", "-shm", "-sync"] {
                let path = format!("{}{suffix}", self.world.path(&file.name).display());
                let _ = std::fs::remove_file(path);
            }
        }
        self.world.central.execute("DELETE FROM item")
    }
}

/// What a change adds to its row, by the images of a list.
fn difference(old: Option<&str>, new: Option<&str>) -> Result<(i64, Amount)> {
    let (id, old) = Amount::of_json(old.context("no row is inserted here")?)?;
    let (_, new) = Amount::of_json(new.context("no row is deleted here")?)?;
    Ok((id, new.less(old)))
}

/// Nothing here waits for a disk, where the system has a file system in memory.
fn in_memory() -> Result<TempDir> {
    Ok(TempDir::new_in("/dev/shm").or_else(|_| tempfile::tempdir())?)
}

fn runs(kind: Kind, default: u64) -> Result<()> {
    let folder = in_memory()?;
    let central = match kind {
        Kind::Sqlite => Central::Sqlite(folder.path().join("central.db")),
        Kind::Postgres => Central::Postgres(Postgres::shared()?.create_database()?),
    };
    central.execute(&schema(kind))?;
    let mut world = World::over(central, folder, read_model(MODEL)?, &[USER])?;
    world.start_server()?;
    let proxy = FaultProxy::start(world.address()?)?;
    let first = variable("HEADWATER_COUNTER_SEED").unwrap_or(1);
    let mut sum = BTreeMap::new();
    for seed in first..first + variable("HEADWATER_COUNTER_RUNS").unwrap_or(default) {
        let mut run = Run::begin(&world, &proxy, kind, seed)?;
        let done = run.run();
        done.with_context(|| run.told())?;
        for (name, count) in &run.counts {
            *sum.entry(*name).or_insert(0) += count;
        }
        run.end()?;
    }
    tally(&sum.iter().map(|(name, count)| (*name, *count)).collect::<Vec<_>>());
    ensure!(sum.get("broken_syncs").is_some_and(|count| *count > 0), "nothing was broken: {sum:?}");
    Ok(())
}

#[test]
fn the_head_is_the_start_and_all_deltas_on_sqlite() -> Result<()> {
    runs(Kind::Sqlite, 60)
}

#[test]
fn the_head_is_the_start_and_all_deltas_on_postgresql() -> Result<()> {
    runs(Kind::Postgres, 20)
}
