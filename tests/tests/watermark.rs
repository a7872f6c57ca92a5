//! The watermark test: nothing that commits late is missed, and nothing is sent again and again.
//!
//! Writers hold transactions open for 0 to 5 seconds and commit in random order (some roll back), one transaction is open for the
//! whole test, one in another database of the cluster, and one is prepared; remotes sync all the while, both ways. In the end every
//! remote equals the database, and the rows that were sent are at most twice the rows that were changed.
//!
//! The same test fails with the two watermarks that most people would write: "version greater than the last one seen" misses rows,
//! and "everything since the oldest open transaction" sends them again and again. That is the proof that it can.
//! `HEADWATER_WATERMARK_SECONDS` makes it longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use headwater_consolidated::backend::{Changes, Gaps, Inserted};
use headwater_consolidated::catalogue::Catalogue;
use headwater_consolidated::results::{
    Canceller, Placeholder, QueryBackend, QueryConnection, ReadOptions, ResultColumn, ResultSink,
};
use headwater_consolidated::{Backend, Connection, Dialect, Error, Mode, Plan, RowsWriter, TablePlan};
use headwater_protocol::wire::Write as _;
use headwater_protocol::{Row, Value};
use headwater_remote::Remote;
use headwater_testkit::{Postgres, Random};
use headwater_tests::{Central, Kind, World, read_model};
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
    fn run(&mut self, backend: &Arc<dyn Backend>, pace: &Pace) -> Result<Vec<u64>> {
        self.world.start_server_over(backend)?;
        let end = Instant::now() + pace.total;
        let edit = |name: &str, number, sync| self.edit(name, number, sync);
        sync_beside(&self.world, end, &edit, || self.write_all(pace, end))
    }

    /// Every fifth sync uploads a row.
    fn edit(&self, name: &str, number: u64, sync: u64) -> Result<()> {
        if sync % 5 == 4 {
            let id = 1_000_000 * (number + 1) + sync;
            self.world.edit(name, &format!("INSERT INTO event VALUES ({id}, 1, 'uploaded by {name}')"))?;
            self.changed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
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

/// Remotes that sync until the end, each with an edit before each sync, and once more when the writers have ended too; gives the rows
/// that each was sent, its first sync aside.
fn sync_beside(
    world: &World,
    end: Instant,
    edit: &(impl Fn(&str, u64, u64) -> Result<()> + Sync),
    write: impl FnOnce() -> Result<()> + Send,
) -> Result<Vec<u64>> {
    let sync = |remote: &mut Remote, user: &str| -> Result<u64> {
        let report = world.sync_as(remote, user)?;
        Ok(report.rows_down + report.deletions_down)
    };
    let mut remotes: Vec<Remote> =
        REMOTES.iter().map(|(name, user)| world.remote(name, user)).collect::<Result<_>>()?;
    for (remote, (_, user)) in remotes.iter_mut().zip(REMOTES) {
        sync(remote, user)?;
    }
    let mut sent = std::thread::scope(|scope| -> Result<Vec<u64>> {
        let writing = scope.spawn(write);
        let syncing: Vec<_> = (0..)
            .zip(remotes.iter_mut().zip(REMOTES))
            .map(|(number, (remote, (name, user)))| {
                scope.spawn(move || -> Result<u64> {
                    let (mut rows, mut syncs) = (0, 0);
                    while Instant::now() < end {
                        edit(name, number, syncs)?;
                        rows += sync(remote, user)?;
                        syncs += 1;
                    }
                    Ok(rows)
                })
            })
            .collect();
        let sent = syncing.into_iter().map(|thread| thread.join().expect("a remote's thread panicked")).collect();
        writing.join().expect("the writers' thread panicked")?;
        sent
    })?;
    for ((remote, (_, user)), sent) in remotes.iter_mut().zip(REMOTES).zip(&mut sent) {
        *sent += sync(remote, user)?;
    }
    Ok(sent)
}

/// Whether every remote equals its part of the database, and none was sent more than twice what was changed.
fn hold_to_account(world: &World, sent: &[u64], changed: u64, seed: u64) -> Result<()> {
    for ((name, _), sent) in REMOTES.iter().zip(sent) {
        let diff = world.diff(name)?;
        ensure!(diff.is_equal(false), "seed {seed}: {name} differs: {diff:#?}");
        ensure!(*sent <= 2 * changed, "seed {seed}: {sent} rows were sent to {name}, {changed} changed");
    }
    ensure!(changed > 20, "only {changed} rows were changed");
    Ok(())
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
    let sent = late.run(&backend, &pace)?;
    hold_to_account(&late.world, &sent, late.changed.load(Ordering::Relaxed), late.seed)
}

const SHORT: Pace = Pace { total: Duration::from_secs(3), hold_max: Duration::from_secs(1) };

#[test]
fn the_watermark_that_most_would_write_misses_rows() -> Result<()> {
    let mut late = Late::new(seed()?)?;
    let backend: Arc<dyn Backend> = Arc::new(Naive(late.world.central.backend()?, Watermark::Greatest));
    late.run(&backend, &SHORT).context("a run with the greatest version as the watermark")?;
    ensure!(!late.are_equal()?, "seed {}: this test can't tell a watermark that misses rows", late.seed);
    Ok(())
}

#[test]
fn the_watermark_that_waits_for_all_sends_again_and_again() -> Result<()> {
    let mut late = Late::new(seed()?)?;
    let backend: Arc<dyn Backend> = Arc::new(Naive(late.world.central.backend()?, Watermark::Oldest));
    let sent = late.run(&backend, &SHORT).context("a run with the oldest open transaction as the watermark")?;
    let changed = late.changed.load(Ordering::Relaxed);
    ensure!(late.are_equal()?, "seed {}: it should waste, not miss", late.seed);
    ensure!(
        sent.iter().all(|rows| *rows > 2 * changed),
        "seed {}: {sent:?} rows were sent, {changed} changed: this test can't tell waste",
        late.seed
    );
    Ok(())
}

/// SQLite has one writer at a time; what is open or rolled back beside a download must do no harm all the same.
#[test]
fn nothing_is_missed_beside_the_writers_of_a_file() -> Result<()> {
    let seed = seed()?;
    let schema = SCHEMA.split("INSERT").next().context("no tables")?;
    let mut world = World::unserved(Kind::Sqlite, schema, MODEL, &["ann", "bob"])?;
    world.central.execute("INSERT INTO member VALUES ('ann', 0), ('ann', 1), ('ann', 2), ('bob', 1)")?;
    world.start_server()?;
    let (changed, end) = (AtomicU64::new(0), Instant::now() + Duration::from_secs(4));
    let sent = sync_beside(&world, end, &|_, _, _| Ok(()), || {
        std::thread::scope(|scope| {
            let write = |writer| write_file(&world, writer, seed, end);
            let writers: Vec<_> = (0..4).map(|writer| scope.spawn(move || write(writer))).collect();
            writers.into_iter().try_for_each(|thread| {
                changed.fetch_add(thread.join().expect("a writer panicked")?, Ordering::Relaxed);
                Ok(())
            })
        })
    })?;
    hold_to_account(&world, &sent, changed.load(Ordering::Relaxed), seed)
}

/// One writer of the file: transactions held for up to 50 ms, some rolled back.
fn write_file(world: &World, writer: u64, seed: u64, end: Instant) -> Result<u64> {
    let Central::Sqlite(path) = &world.central else { anyhow::bail!("no file") };
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(30))?;
    let (mut random, mut changed) = (Random::seeded(seed ^ writer), 0);
    for transaction in 0.. {
        if Instant::now() >= end {
            break;
        }
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut here = 0;
        for _ in 0..=random.below(4) {
            here += connection.execute(&statement(writer, transaction, &mut random), [])? as u64;
        }
        std::thread::sleep(Duration::from_millis(random.below(50)));
        if random.chance(10) {
            connection.execute_batch("ROLLBACK")?;
        } else {
            connection.execute_batch("COMMIT")?;
            changed += here;
        }
        // Outside a transaction too, so that the others have their turn.
        std::thread::sleep(Duration::from_millis(random.below(100)));
    }
    Ok(changed)
}

/// A watermark that is none.
#[derive(Clone, Copy)]
enum Watermark {
    /// The greatest version that the download saw.
    Greatest,
    /// The oldest transaction that was open.
    Oldest,
}

/// A database that hands out such watermarks.
struct Naive(Arc<dyn Backend>, Watermark);

struct NaiveConnection(Box<dyn Connection>, Watermark);

impl QueryBackend for Naive {
    fn connect_for_queries(&self) -> Result<Box<dyn QueryConnection>, Error> {
        Ok(self.connect()?)
    }

    fn address(&self) -> String {
        self.0.address()
    }

    fn placeholder(&self) -> Placeholder {
        self.0.placeholder()
    }
}

impl Backend for Naive {
    fn connect(&self) -> Result<Box<dyn Connection>, Error> {
        Ok(Box::new(NaiveConnection(self.0.connect()?, self.1)))
    }
    fn dialect(&self) -> Dialect {
        self.0.dialect()
    }
}

impl QueryConnection for NaiveConnection {
    fn columns(&mut self, sql: &str, options: &ReadOptions) -> Result<Vec<ResultColumn>, Error> {
        self.0.columns(sql, options)
    }

    fn read(
        &mut self,
        sql: &str,
        parameters: &[Value],
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Error> {
        self.0.read(sql, parameters, options, sink)
    }

    fn rollback(&mut self) -> Result<(), Error> {
        self.0.rollback()
    }

    fn canceller(&self) -> Option<Canceller> {
        self.0.canceller()
    }
}

impl Connection for NaiveConnection {
    /// In the form of a real one: everything below a version was seen, and nothing was open.
    fn watermark(&mut self) -> Result<Vec<u8>, Error> {
        let sql = match self.1 {
            Watermark::Greatest => {
                "SELECT coalesce(max(version::text::bigint), 0) + 1 FROM (SELECT version FROM headwater.\"side_event@area\" \
                 UNION ALL SELECT version FROM headwater.side_setting) AS s"
            }
            Watermark::Oldest => "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
        };
        let rows = self.0.query(sql, &[])?;
        let Some(Value::Int(end)) = rows.first().and_then(|row| row.first()) else {
            return Err(Error::Database { context: "a naive watermark".into(), detail: format!("{rows:?}") });
        };
        let mut bytes = vec![1];
        bytes.put_varint(*end as u64);
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
    fn note_again(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
        self.0.note_again(table, rows)
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
    fn gaps(&mut self, watermark: &[u8]) -> Result<Gaps, Error> {
        self.0.gaps(watermark)
    }
    fn parts_have_changed(&mut self, plan: &Plan) -> Result<bool, Error> {
        self.0.parts_have_changed(plan)
    }
    fn tracking_query(&self, plan: &Plan) -> Option<headwater_consolidated::backend::Query> {
        self.0.tracking_query(plan)
    }
    fn tracking_mark(&mut self, plan: &Plan) -> Result<Option<String>, Error> {
        self.0.tracking_mark(plan)
    }
    fn settle_tables(&mut self, plan: &Plan) -> Result<(), Error> {
        self.0.settle_tables(plan)
    }
    fn always_whole(&self, plan: &Plan) -> Vec<String> {
        self.0.always_whole(plan)
    }
    fn end_download(&mut self) -> Result<Option<String>, Error> {
        self.0.end_download()
    }
    fn whole_tracking(&mut self) -> &mut std::collections::HashMap<u64, String> {
        self.0.whole_tracking()
    }
    fn adopt_parts(&mut self, plan: &Plan) -> Result<(), Error> {
        self.0.adopt_parts(plan)
    }
    fn read_whole(&mut self, table: &TablePlan, partitions: &[Row], out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        self.0.read_whole(table, partitions, out)
    }
    fn read_changes(&mut self, changes: &Changes<'_>, out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        self.0.read_changes(changes, out)
    }
    fn partitions_below(&mut self, table: &TablePlan, parents: &[Row], lock: bool) -> Result<Vec<(Row, Row)>, Error> {
        self.0.partitions_below(table, parents, lock)
    }
    fn catalogue(&mut self) -> Result<Catalogue, Error> {
        self.0.catalogue()
    }
}
