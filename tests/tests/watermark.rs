//! The watermark test: nothing that commits late is missed, and nothing is sent again and again.
//!
//! Writers hold transactions open for 0 to 5 seconds and commit in random order (some roll back), one transaction is open for the
//! whole test, one in another database of the cluster, and one is prepared; remotes sync all the while. In the end every remote
//! equals the database, and the rows that were sent are at most twice the rows that were changed.
//!
//! The same test fails with the watermark that most people would write, "version greater than the last one seen": that is the proof
//! that it can. `HEADWATER_WATERMARK_SECONDS` makes it longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater_consolidated::backend::{Changes, Inserted};
use headwater_consolidated::catalogue::Catalogue;
use headwater_consolidated::{Backend, Connection, Dialect, Error, Mode, RowsWriter, TablePlan};
use headwater_protocol::wire::Write as _;
use headwater_protocol::{Row, Value};
use headwater_remote::Remote;
use headwater_testkit::{Postgres, Random};
use headwater_tests::{Central, World, read_model};
use tokio_postgres::{Client, NoTls};

const MODEL: &str = r#"
name = "late"
version = 1
[partitions.area]
columns = { area = "int" }
members = "SELECT area FROM member WHERE user_name = :s.user"
[tables.event]
key = ["id"]
partition = "area"
columns = { id = "int not null", area = "int not null", text = "text" }
[tables.setting]
key = ["id"]
columns = { id = "int not null", value = "int" }
"#;

const SCHEMA: &str = "
    CREATE TABLE member (user_name text, area int, PRIMARY KEY (user_name, area));
    CREATE TABLE event (id bigint PRIMARY KEY, area int NOT NULL, text text);
    CREATE TABLE setting (id bigint PRIMARY KEY, value int);
    INSERT INTO member SELECT 'ann', n FROM generate_series(0, 2) n;
    INSERT INTO member VALUES ('bob', 1);";

const WRITERS: u64 = 8;
const REMOTES: [(&str, &str); 3] = [("one", "ann"), ("two", "ann"), ("three", "bob")];

/// How long writers go on, and for how long a transaction is held at most.
struct Pace {
    total: Duration,
    hold_max: Duration,
}

/// A database with writers of every unpleasant kind, and remotes of it.
struct Late {
    cluster: Postgres,
    world: World,
    /// Rows changed by committed transactions.
    changed: AtomicU64,
    seed: u64,
}

impl Late {
    fn new(seed: u64) -> Result<Late> {
        let cluster = Postgres::builder().max_prepared_transactions(4).start()?;
        let central = Central::Postgres(cluster.create_database()?);
        central.execute(SCHEMA)?;
        let world = World::over(central, tempfile::tempdir()?, read_model(MODEL)?, &["ann", "bob"])?;
        Ok(Late { cluster, world, changed: AtomicU64::new(0), seed })
    }

    /// Writers and remotes side by side; gives the rows that each remote was sent, its first sync aside.
    fn run(&mut self, backend: Arc<dyn Backend>, pace: &Pace) -> Result<Vec<u64>> {
        self.world.start_server_over(backend)?;
        let mut remotes: Vec<Remote> =
            REMOTES.iter().map(|(name, user)| self.world.remote(name, user)).collect::<Result<_>>()?;
        for (remote, (_, user)) in remotes.iter_mut().zip(REMOTES) {
            self.world.sync_as(remote, user)?;
        }
        let end = Instant::now() + pace.total;
        let this = &*self;
        let sent: Vec<Result<u64>> = std::thread::scope(|scope| {
            let writers = scope.spawn(|| this.write_all(pace, end));
            let syncing: Vec<_> = remotes
                .iter_mut()
                .zip(REMOTES)
                .map(|(remote, (_, user))| scope.spawn(move || this.sync_on(remote, user, end)))
                .collect();
            let sent = syncing.into_iter().map(|thread| thread.join().expect("a remote's thread panicked")).collect();
            writers.join().expect("the writers' thread panicked").map(|()| sent)
        })?;
        let sent = sent.into_iter().collect::<Result<Vec<u64>>>()?;
        let last = remotes.iter_mut().zip(REMOTES).map(|(remote, (_, user))| this.sync_on(remote, user, end));
        let last = last.collect::<Result<Vec<u64>>>()?;
        Ok(sent.iter().zip(last).map(|(sent, last)| sent + last).collect())
    }

    /// Syncs at least once, and again until the end.
    fn sync_on(&self, remote: &mut Remote, user: &str, end: Instant) -> Result<u64> {
        let mut rows = 0;
        loop {
            let report = self.world.sync_as(remote, user)?;
            rows += report.rows_down + report.deletions_down;
            if Instant::now() >= end {
                return Ok(rows);
            }
        }
    }

    fn write_all(&self, pace: &Pace, end: Instant) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let url = self.world.central.url();
            let elsewhere = self.cluster.url("postgres");
            let (open, other, prepared) = (connect(&url).await?, connect(&elsewhere).await?, connect(&url).await?);
            open.batch_execute("BEGIN; INSERT INTO event VALUES (-1, 1, 'open all the while')").await?;
            other.batch_execute("BEGIN; CREATE TABLE elsewhere (id int)").await?;
            prepared
                .batch_execute("BEGIN; INSERT INTO event VALUES (-2, 1, 'prepared'); PREPARE TRANSACTION 'late'")
                .await?;
            let writers = (0..WRITERS).map(|writer| self.write(writer, pace, end));
            futures_util::future::try_join_all(writers).await?;
            prepared.batch_execute("COMMIT PREPARED 'late'").await?;
            open.batch_execute("COMMIT").await?;
            other.batch_execute("ROLLBACK").await?;
            self.changed.fetch_add(2, Ordering::Relaxed);
            Ok(())
        })
    }

    /// One writer: a transaction after the other, most of them short.
    async fn write(&self, writer: u64, pace: &Pace, end: Instant) -> Result<()> {
        let client = connect(&self.world.central.url()).await?;
        let mut random = Random::seeded(self.seed ^ writer);
        for transaction in 0.. {
            if Instant::now() >= end {
                break;
            }
            client.batch_execute("BEGIN").await?;
            let mut changed = 0;
            for _ in 0..=random.below(4) {
                changed += client.execute(&statement(writer, transaction, &mut random), &[]).await?;
            }
            let held = if random.chance(70) { pace.hold_max / 50 } else { pace.hold_max };
            tokio::time::sleep(held.mul_f64(random.below(1_000) as f64 / 1_000.0)).await;
            if random.chance(10) {
                client.batch_execute("ROLLBACK").await?;
            } else {
                client.batch_execute("COMMIT").await?;
                self.changed.fetch_add(changed, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Whether every remote equals its part of the database.
    fn are_equal(&self) -> Result<bool> {
        REMOTES.iter().try_fold(true, |equal, (name, _)| Ok(equal && self.world.diff(name)?.is_equal(false)))
    }
}

/// A change of rows that are this writer's alone, so that no writer waits for another.
fn statement(writer: u64, transaction: u64, random: &mut Random) -> String {
    let mine = |number: u64| number * WRITERS + writer;
    let (id, area) = (mine(random.below(200)), random.below(3));
    match random.below(10) {
        0..5 => {
            format!(
                "INSERT INTO event VALUES ({}, {area}, 'text {transaction}') ON CONFLICT DO NOTHING",
                mine(transaction)
            )
        }
        5..7 => format!("UPDATE event SET text = 'changed {transaction}' WHERE id = {id}"),
        7 => format!("UPDATE event SET area = {area} WHERE id = {id}"),
        8 => format!("DELETE FROM event WHERE id = {id}"),
        _ => format!("INSERT INTO setting VALUES ({id}, 1) ON CONFLICT (id) DO UPDATE SET value = setting.value + 1"),
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn seed() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

#[test]
fn what_commits_late_is_not_missed_and_nothing_is_sent_again_and_again() -> Result<()> {
    let seconds = match std::env::var("HEADWATER_WATERMARK_SECONDS") {
        Ok(seconds) => seconds.parse()?,
        Err(_) => 15,
    };
    let mut late = Late::new(seed()?)?;
    let pace = Pace { total: Duration::from_secs(seconds), hold_max: Duration::from_secs(5) };
    let backend = late.world.central.backend()?;
    let sent = late.run(backend, &pace)?;
    let changed = late.changed.load(Ordering::Relaxed);
    for (name, _) in REMOTES {
        let diff = late.world.diff(name)?;
        ensure!(diff.is_equal(false), "seed {}: {name} differs: {diff:#?}", late.seed);
    }
    ensure!(changed > 50, "only {changed} rows were changed");
    for (rows, (name, _)) in sent.iter().zip(REMOTES) {
        ensure!(*rows <= 2 * changed, "seed {}: {rows} rows were sent to {name}, {changed} changed", late.seed);
    }
    Ok(())
}

#[test]
fn the_watermark_that_most_would_write_misses_rows() -> Result<()> {
    let mut late = Late::new(seed()?)?;
    let pace = Pace { total: Duration::from_secs(3), hold_max: Duration::from_secs(1) };
    let backend = Arc::new(Naive(late.world.central.backend()?));
    late.run(backend, &pace).context("a run with the naive watermark")?;
    ensure!(!late.are_equal()?, "seed {}: this test can't tell a watermark that misses rows", late.seed);
    Ok(())
}

/// A database whose watermark is the greatest version that a download saw.
struct Naive(Arc<dyn Backend>);

struct NaiveConnection(Box<dyn Connection>);

impl Backend for Naive {
    fn connect(&self) -> Result<Box<dyn Connection>, Error> {
        Ok(Box::new(NaiveConnection(self.0.connect()?)))
    }
    fn dialect(&self) -> Dialect {
        self.0.dialect()
    }
    fn address(&self) -> String {
        self.0.address()
    }
}

impl Connection for NaiveConnection {
    /// In the form of a real one: everything up to the greatest version was seen, and nothing was open.
    fn watermark(&mut self) -> Result<Vec<u8>, Error> {
        let sql = "SELECT coalesce(max(version::text::bigint), 0) FROM (SELECT version FROM headwater.side_event \
                   UNION ALL SELECT version FROM headwater.side_setting) AS s";
        let rows = self.0.query(sql, &[])?;
        let Some(Value::Int(greatest)) = rows.first().and_then(|row| row.first()) else {
            return Err(Error::Database { context: "the greatest version".into(), detail: format!("{rows:?}") });
        };
        let mut bytes = vec![1];
        bytes.put_varint(*greatest as u64 + 1);
        bytes.put_varint(0);
        Ok(bytes)
    }

    fn dialect(&self) -> Dialect {
        self.0.dialect()
    }
    fn begin(&mut self, mode: Mode) -> Result<(), Error> {
        self.0.begin(mode)
    }
    fn commit(&mut self) -> Result<(), Error> {
        self.0.commit()
    }
    fn rollback(&mut self) -> Result<(), Error> {
        self.0.rollback()
    }
    fn savepoint(&mut self) -> Result<(), Error> {
        self.0.savepoint()
    }
    fn rollback_to_savepoint(&mut self) -> Result<(), Error> {
        self.0.rollback_to_savepoint()
    }
    fn release_savepoint(&mut self) -> Result<(), Error> {
        self.0.release_savepoint()
    }
    fn query(&mut self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, Error> {
        self.0.query(sql, parameters)
    }
    fn execute(&mut self, sql: &str, parameters: &[Value]) -> Result<u64, Error> {
        self.0.execute(sql, parameters)
    }
    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        self.0.batch(sql)
    }
    fn fetch(&mut self, table: &TablePlan, keys: &[Row], lock: bool) -> Result<Vec<Row>, Error> {
        self.0.fetch(table, keys, lock)
    }
    fn insert(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        self.0.insert(table, rows)
    }
    fn update(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<u64, Error> {
        self.0.update(table, rows)
    }
    fn delete(&mut self, table: &TablePlan, keys: &[&Row]) -> Result<u64, Error> {
        self.0.delete(table, keys)
    }
    fn check_deferred(&mut self) -> Result<(), Error> {
        self.0.check_deferred()
    }
    fn set_actor(&mut self, user: &str, remote_id: &[u8; 16]) -> Result<(), Error> {
        self.0.set_actor(user, remote_id)
    }
    fn own_mark(&mut self) -> Result<Vec<u8>, Error> {
        self.0.own_mark()
    }
    fn accepts_watermark(&mut self, watermark: &[u8]) -> Result<bool, Error> {
        self.0.accepts_watermark(watermark)
    }
    fn read_whole(&mut self, table: &TablePlan, partitions: &[Row], out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        self.0.read_whole(table, partitions, out)
    }
    fn read_changes(&mut self, changes: &Changes<'_>, out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        self.0.read_changes(changes, out)
    }
    fn catalogue(&mut self) -> Result<Catalogue, Error> {
        self.0.catalogue()
    }
}
