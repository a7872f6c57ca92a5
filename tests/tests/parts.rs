//! Partitioned tables, tables that inherit, and tables that a logical subscription writes: whatever way a row comes, goes or changes
//! there, remotes end with what the database has, and what did not change is not sent again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_remote::Remote;
use headwater_testkit::{Postgres, free_port, sql};
use headwater_tests::{Central, Kind, World, read_model};

/// `log` is partitioned by day, one of its partitions again by hour, another has its columns in another order; from `item` inherit
/// `tool` and `book`.
const SCHEMA: &str = "
    CREATE TABLE log (id int, day int, area text, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
    CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (1) TO (2);
    CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM (2) TO (3) PARTITION BY HASH (id);
    CREATE TABLE log_2a PARTITION OF log_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE log_2b PARTITION OF log_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    CREATE TABLE log_3 (note text, area text, gone text, day int NOT NULL, id int NOT NULL, PRIMARY KEY (id, day));
    ALTER TABLE log_3 DROP COLUMN gone;
    ALTER TABLE log ATTACH PARTITION log_3 FOR VALUES FROM (3) TO (4);
    CREATE TABLE item (id int PRIMARY KEY, area text, note text);
    CREATE TABLE tool (weight int) INHERITS (item);
    CREATE TABLE book (pages int, PRIMARY KEY (id)) INHERITS (item);
    INSERT INTO log SELECT n, 1 + n % 3, CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, 'old' FROM generate_series(1, 60) n;
    INSERT INTO item SELECT n, 'odd', 'old' FROM generate_series(1, 10) n;
    INSERT INTO tool SELECT n, 'even', 'old', 5 FROM generate_series(11, 20) n;
    INSERT INTO book SELECT n, 'odd', 'old', 100 FROM generate_series(21, 30) n;";

const MODEL: &str = r#"
name = "parts"
version = 1
[partitions.area]
columns = { area = "text" }
members = "SELECT 'odd' UNION ALL SELECT 'even' WHERE :s.user = 'all'"
[tables.log]
key = ["id", "day"]
partition = "area"
columns = { id = "int not null", day = "int not null", area = "text", note = "text" }
[tables.item]
key = ["id"]
columns = { id = "int not null", area = "text", note = "text" }
"#;

/// A database with remotes: one of all, one of the odd ones.
struct Followed {
    world: World,
    all: Remote,
    odd: Remote,
}

impl Followed {
    fn new() -> Result<Followed> {
        Followed::of(World::new(Kind::Postgres, SCHEMA, MODEL, &["all", "odd"])?)
    }

    fn of(world: World) -> Result<Followed> {
        let (all, odd) = (world.remote("all", "all")?, world.remote("odd", "odd")?);
        let mut followed = Followed { world, all, odd };
        followed.sync()?;
        Ok(followed)
    }

    /// Syncs both; what came down to the one of all: rows and deletions.
    fn sync(&mut self) -> Result<(u64, u64)> {
        self.world.sync(&mut self.odd)?;
        let report = self.world.sync(&mut self.all)?;
        ensure!(!report.restarted, "an incarnation began");
        Ok((report.rows_down, report.deletions_down))
    }

    /// Runs the application's statements; `expected` rows and deletions come of them, once, and then both are as the database.
    fn check(&mut self, statements: &str, expected: (u64, u64)) -> Result<()> {
        self.world.central.execute(statements)?;
        self.arrives(expected).with_context(|| statements.to_owned())
    }

    fn arrives(&mut self, expected: (u64, u64)) -> Result<()> {
        let came = self.sync()?;
        self.is_equal()?;
        ensure!(came == expected, "{came:?} came, expected {expected:?}");
        let again = self.sync()?;
        ensure!(again == (0, 0), "{again:?} came again");
        Ok(())
    }

    fn is_equal(&self) -> Result<()> {
        for name in ["all", "odd"] {
            let diff = self.world.diff(name)?;
            ensure!(diff.is_equal(false), "{name} differs: {diff:?}");
        }
        Ok(())
    }

    fn states(&self) -> Result<Vec<String>> {
        let rows = self.world.central.rows("SELECT part::regclass || ' ' || state FROM headwater.part ORDER BY 1")?;
        Ok(rows.into_iter().flatten().flatten().collect())
    }
}

#[test]
fn rows_written_to_a_partition_directly() -> Result<()> {
    let mut followed = Followed::new()?;
    followed.check("INSERT INTO log_1 VALUES (100, 1, 'odd', 'new')", (1, 0))?;
    followed.check(
        "INSERT INTO log_3 (id, day, area, note) VALUES (101, 3, 'odd', 'new'), (102, 3, 'even', 'new')",
        (2, 0),
    )?;
    followed.check("COPY log_3 (id, day, area, note) FROM PROGRAM 'printf \"103\\t3\\teven\\tcopied\\n\"'", (1, 0))?;
    followed.check("UPDATE log_3 SET note = 'changed' WHERE id IN (101, 102)", (2, 0))?;
    followed.check("UPDATE log_3 SET id = 104 WHERE id = 101", (1, 1))?;
    followed.check("UPDATE log_3 SET area = 'even' WHERE id = 104", (1, 0))?;
    followed.check("DELETE FROM log_3 WHERE id > 100", (0, 3))?;
    followed.check("INSERT INTO log_2 VALUES (110, 2, 'odd', 'to the middle')", (1, 0))?;
    followed.check("UPDATE log_2 SET id = id + 1 WHERE id = 110", (1, 1))?;
    followed.check("UPDATE log_2a SET note = 'a'; UPDATE log_2b SET note = 'b'", (21, 0))?;
    followed.check("TRUNCATE log_2a", (0, count(&followed, "log", "day = 2", "a")?))?;
    followed.check("TRUNCATE log_2", (0, count(&followed, "log", "day = 2", "b")?))?;
    followed.check("BEGIN; TRUNCATE log_1; INSERT INTO log_1 VALUES (100, 1, 'odd', 'again'); COMMIT", (1, 20))?;
    followed.check("UPDATE log SET day = 2 WHERE id = 100", (1, 1))?;
    followed.check("DELETE FROM log", (0, 21))
}

/// How many rows of a table a remote holds that carry this note.
fn count(followed: &Followed, table: &str, condition: &str, note: &str) -> Result<u64> {
    let rows =
        followed.world.rows("all", &format!("SELECT count(*) FROM {table} WHERE {condition} AND note = '{note}'"))?;
    rows.first().and_then(|row| row.first()?.as_ref()?.parse().ok()).context("a number")
}

#[test]
fn rows_of_tables_that_inherit() -> Result<()> {
    let mut followed = Followed::new()?;
    followed.check(
        "INSERT INTO tool VALUES (100, 'odd', 'new', 1); INSERT INTO book VALUES (101, 'odd', 'new', 1)",
        (2, 0),
    )?;
    followed.check("UPDATE tool SET note = 'changed'; UPDATE book SET id = 102 WHERE id = 101", (12, 1))?;
    followed.check("UPDATE item SET note = 'through the parent' WHERE id IN (1, 11, 21)", (3, 0))?;
    followed.check("DELETE FROM ONLY item WHERE id = 1; DELETE FROM book WHERE id = 102", (0, 2))?;
    followed.check("TRUNCATE ONLY tool", (0, 11))?;
    followed
        .check(
            "CREATE TABLE disc (id int, tracks int) INHERITS (item); INSERT INTO disc VALUES (200, 12, 'odd', 'new')",
            (0, 0),
        )
        .map_or_else(|_| Ok(()), |()| anyhow::bail!("a statement that is wrong ran"))?;
    followed.check(
        "CREATE TABLE disc (tracks int) INHERITS (item); INSERT INTO disc VALUES (200, 'odd', 'new', 12)",
        (1, 0),
    )?;
    followed.check("UPDATE disc SET note = 'changed'", (1, 0))?;
    // One key in two tables that inherit: no statement of the application's may fail of that.
    followed.world.central.execute(
        "INSERT INTO disc VALUES (300, 'odd', 'a', 1), (300, 'odd', 'b', 2); DELETE FROM item WHERE id = 300",
    )?;
    followed.arrives((0, 1))?;
    followed.check("ALTER TABLE disc NO INHERIT item", (0, 1))?;
    followed.check("INSERT INTO disc VALUES (400, 'odd', 'elsewhere', 1)", (0, 0))?;
    followed.check("ALTER TABLE disc INHERIT item", (2, 0))?;
    followed.check("TRUNCATE item", (0, 21))
}

#[test]
fn partitions_that_come_later() -> Result<()> {
    let mut followed = Followed::new()?;
    // Rows that came through the table are not sent twice, those that came past it are sent at all.
    followed.check(
        "CREATE TABLE log_4 PARTITION OF log FOR VALUES FROM (4) TO (5); INSERT INTO log VALUES (100, 4, 'odd', 'new')",
        (1, 0),
    )?;
    followed.check("UPDATE log_4 SET note = 'changed'", (1, 0))?;
    followed.check(
        "CREATE TABLE log_5 PARTITION OF log FOR VALUES FROM (5) TO (6); INSERT INTO log_5 VALUES (101, 5, 'odd', 'new');
         INSERT INTO log VALUES (102, 5, 'even', 'new'); UPDATE log_5 SET note = 'changed' WHERE id = 102",
        (2, 0),
    )?;
    followed.check("DELETE FROM log_5 WHERE id = 102", (0, 1))?;
    // One with rows, and a whole tree.
    followed.check(
        "CREATE TABLE log_6 (LIKE log INCLUDING ALL); INSERT INTO log_6 SELECT n, 6, 'even', 'before' FROM generate_series(1, 30) n;
         ALTER TABLE log ATTACH PARTITION log_6 FOR VALUES FROM (6) TO (7)",
        (30, 0),
    )?;
    followed.check(
        "CREATE TABLE log_7 (LIKE log INCLUDING ALL) PARTITION BY HASH (id);
         CREATE TABLE log_7a PARTITION OF log_7 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
         INSERT INTO log_7 SELECT n, 7, 'odd', 'before' FROM generate_series(1, 30) n;
         ALTER TABLE log ATTACH PARTITION log_7 FOR VALUES FROM (7) TO (8)",
        (30, 0),
    )?;
    followed.check("UPDATE log_7a SET note = 'after' WHERE id <= 3; TRUNCATE log_6", (3, 30))?;
    // None of this went over all of it again, and check has nothing to say.
    assert!(followed.states()?.iter().all(|state| state.ends_with(" tracked")), "{:?}", followed.states()?);
    let mut connection = followed.world.central.backend()?.connect()?;
    let findings = headwater_consolidated::check::check(&mut *connection, &followed.world.plan)?;
    assert!(findings.iter().all(|finding| !finding.code.contains("track")), "{findings:?}");
    followed.world.central.execute("ALTER TABLE log_7a DISABLE TRIGGER ALL")?;
    let findings = headwater_consolidated::check::check(&mut *connection, &followed.world.plan)?;
    assert!(findings.iter().any(|finding| finding.message.contains("log_7a")), "{findings:?}");
    Ok(())
}

#[test]
fn partitions_that_leave() -> Result<()> {
    let mut followed = Followed::new()?;
    followed.check("INSERT INTO log_1 VALUES (100, 1, 'odd', 'new')", (1, 0))?;
    // Detached, it can still be read: what was in it when it left goes, whatever became of it since. (Ten keys that nobody has are
    // sent with them: the triggers were still there.)
    followed.check(
        "ALTER TABLE log DETACH PARTITION log_1; DELETE FROM log_1 WHERE id > 30; UPDATE log_1 SET id = id + 1000",
        (0, 31),
    )?;
    followed
        .check("UPDATE log_1 SET note = 'elsewhere'; INSERT INTO log_1 VALUES (500, 1, 'odd', 'elsewhere')", (0, 0))?;
    assert_eq!(
        followed
            .world
            .central
            .rows("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'log_1'::regclass AND tgname LIKE 'headwater%'")?,
        [[Some("0".to_owned())]],
        "it is left alone"
    );
    followed.check("ALTER TABLE log ATTACH PARTITION log_1 FOR VALUES FROM (1) TO (2)", (11, 0))?;
    followed.check("TRUNCATE log_1", (0, 11))?;
    followed.check("ALTER TABLE log DETACH PARTITION log_2 CONCURRENTLY", (0, 20))?;
    // Moved rows were there all the time.
    followed.check(
        "BEGIN; ALTER TABLE log DETACH PARTITION log_3; INSERT INTO log_1 (id, day, area, note)
        SELECT id, 1, area, note FROM log_3; COMMIT",
        (20, 20),
    )?;
    // Of one that is dropped nobody knows what was in it.
    followed.check("INSERT INTO item VALUES (500, 'odd', 'new'); DROP TABLE log_1", (1, 0))?;
    assert!(followed.states()?.iter().all(|state| !state.starts_with("log")), "{:?}", followed.states()?);
    Ok(())
}

/// A part that comes back brings rows that were noted as living, here or where they are no more.
#[test]
fn partitions_that_come_back() -> Result<()> {
    let mut followed = Followed::new()?;
    followed.check("INSERT INTO log VALUES (100, 1, 'odd', 'noted')", (1, 0))?;
    let attach = "ALTER TABLE log ATTACH PARTITION log_1 FOR VALUES FROM (1) TO (2)";
    // Its triggers can't be dropped while somebody reads it, so they go on noting.
    let reader = Session::new(&followed)?;
    followed.world.central.execute("ALTER TABLE log DETACH PARTITION log_1")?;
    reader.run("BEGIN; SELECT count(*) FROM log_1")?;
    followed.arrives((0, 21))?;
    ensure!(followed.states()?.contains(&"log_1 left".to_owned()), "{:?}", followed.states()?);
    followed.check("UPDATE log_1 SET note = 'apart' WHERE id IN (3, 6)", (0, 2))?;
    reader.run("COMMIT")?;
    followed.check(attach, (21, 0))?;
    // The same, with the triggers dropped in the end.
    followed.world.central.execute("ALTER TABLE log DETACH PARTITION log_1")?;
    reader.run("BEGIN; SELECT count(*) FROM log_1")?;
    followed.arrives((0, 21))?;
    followed.check("UPDATE log_1 SET note = 'apart again' WHERE id IN (3, 6)", (0, 2))?;
    reader.run("COMMIT")?;
    followed.world.central.execute("UPDATE headwater.part SET tried_at = tried_at - interval '1 hour'")?;
    followed.arrives((0, 2))?;
    ensure!(!followed.states()?.iter().any(|state| state.starts_with("log_1 ")), "{:?}", followed.states()?);
    followed.check(attach, (21, 0))?;
    // One whose triggers somebody has dropped: nobody knows what was in it.
    followed.check("UPDATE log_1 SET note = 'noted'", (21, 0))?;
    followed.check("ALTER TABLE log DETACH PARTITION log_1; DROP TRIGGER \"headwater_update_of_log@area\" ON log_1; DROP TRIGGER \"headwater_insert_of_log@area\" ON log_1;
         DROP TRIGGER \"headwater_delete_of_log@area\" ON log_1; DROP TRIGGER \"headwater_truncate_of_log@area\" ON log_1", (40, 0))?;
    followed.check(attach, (21, 0))
}

/// A session of somebody else's.
struct Session {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
}

impl Session {
    fn new(followed: &Followed) -> Result<Session> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (client, connection) =
            runtime.block_on(tokio_postgres::connect(&followed.world.central.url(), tokio_postgres::NoTls))?;
        runtime.spawn(connection);
        Ok(Session { runtime, client })
    }

    fn run(&self, statements: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(statements))?)
    }
}

/// Of a table that lost a part the other remotes' rows come once, to whoever comes when.
#[test]
fn a_dropped_partition_is_sent_once_to_each() -> Result<()> {
    let mut followed = Followed::new()?;
    // A transaction that stays open is no reason to send it again and again.
    let url = followed.world.central.url();
    let runtime = tokio::runtime::Runtime::new()?;
    let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, tokio_postgres::NoTls))?;
    let driver = runtime.spawn(connection);
    runtime.block_on(client.batch_execute("BEGIN; INSERT INTO item VALUES (900, 'odd', 'late')"))?;
    followed.check("DROP TABLE log_3", (40, 0))?;
    runtime.block_on(client.batch_execute("COMMIT"))?;
    drop(client);
    runtime.block_on(driver)??;
    followed.arrives((1, 0))
}

/// Somebody writes to a new partition for long: downloads go on, and nothing is missing in the end.
#[test]
fn a_partition_that_is_busy_is_put_off() -> Result<()> {
    let mut followed = Followed::new()?;
    followed.world.central.execute("CREATE TABLE log_4 PARTITION OF log FOR VALUES FROM (4) TO (5)")?;
    followed.world.central.execute("INSERT INTO log_4 VALUES (101, 4, 'odd', 'past'), (102, 4, 'odd', 'past')")?;
    let url = followed.world.central.url();
    let runtime = tokio::runtime::Runtime::new()?;
    let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, tokio_postgres::NoTls))?;
    let driver = runtime.spawn(connection);
    runtime.block_on(client.batch_execute("BEGIN; INSERT INTO log_4 VALUES (103, 4, 'odd', 'loading')"))?;
    followed.world.central.execute("INSERT INTO log VALUES (104, 4, 'odd', 'through')")?;
    assert_eq!(followed.sync()?, (1, 0), "what is noted comes");
    assert!(followed.states()?.contains(&"log_4 late".to_owned()), "{:?}", followed.states()?);
    followed
        .world
        .central
        .execute("DELETE FROM log_4 WHERE id = 104; UPDATE log_1 SET note = 'still tracked' WHERE id = 3")?;
    assert_eq!(followed.sync()?, (1, 0));
    runtime.block_on(client.batch_execute("COMMIT"))?;
    drop(client);
    runtime.block_on(driver)??;
    followed.world.central.execute("UPDATE headwater.part SET tried_at = tried_at - interval '1 hour'")?;
    followed.arrives((63, 0))?;
    assert!(followed.states()?.contains(&"log_4 tracked".to_owned()), "{:?}", followed.states()?);
    Ok(())
}

/// Two tracked tables over one part, which is tracked itself. Statements on one of the two fire no triggers of the others, so these come whole.
#[test]
fn a_part_of_several_tables() -> Result<()> {
    let schema = "CREATE TABLE a (id int PRIMARY KEY, note text); CREATE TABLE b (id int PRIMARY KEY, note text);
                  CREATE TABLE shared (PRIMARY KEY (id)) INHERITS (a, b)";
    let tables = ["a", "b", "shared"].map(|name| {
        format!("[tables.{name}]\nkey = [\"id\"]\ncolumns = {{ id = \"int not null\", note = \"text\" }}\n")
    });
    let model = format!("name = \"several\"\nversion = 1\n{}", tables.join(""));
    let mut followed = Followed::of(World::new(Kind::Postgres, schema, &model, &["all", "odd"])?)?;
    let mut all_equal = |statements: &str| -> Result<()> {
        followed.world.central.execute(statements)?;
        followed.sync()?;
        followed.is_equal().with_context(|| statements.to_owned())
    };
    all_equal("INSERT INTO shared VALUES (1, 'x'), (2, 'x'), (9, 'x'); INSERT INTO a VALUES (3, 'x')")?;
    all_equal("UPDATE shared SET note = 'y'; DELETE FROM ONLY a")?;
    all_equal("UPDATE a SET note = 'through a' WHERE id = 1; DELETE FROM b WHERE id = 9")?;
    all_equal("ALTER TABLE shared NO INHERIT b")?;
    let mut connection = followed.world.central.backend()?.connect()?;
    let findings = headwater_consolidated::check::check(&mut *connection, &followed.world.plan)?;
    let warned = findings.iter().filter(|finding| finding.code == "parent_not_followed");
    assert_eq!(warned.filter_map(|finding| finding.table.as_deref()).collect::<Vec<_>>(), ["shared"]);
    drop(connection);
    let mut followed = followed;
    followed.world.central.execute("UPDATE a SET note = 'through a' WHERE id = 2; ALTER TABLE shared NO INHERIT a")?;
    followed.sync()?;
    followed.check("TRUNCATE shared", (0, 2))
}

/// A subscription applies rows one by one, without statements.
#[test]
fn a_logical_subscription_writes() -> Result<()> {
    let cluster = Postgres::builder().wal_level("logical").start()?;
    let (source, url) = (cluster.create_database()?, cluster.create_database()?);
    let schema = format!("{SCHEMA} ALTER TABLE book REPLICA IDENTITY FULL; ALTER TABLE tool REPLICA IDENTITY FULL;");
    sql(&source, &schema)?;
    sql(&url, &schema)?;
    let central = Central::Postgres(url.clone());
    let mut followed = {
        let mut world = World::over(central, tempfile::tempdir()?, read_model(MODEL)?, &["all", "odd"])?;
        world.start_server()?;
        Followed::of(world)?
    };
    // By partitions as they are; within one cluster the slot has to be made first.
    let subscribe = format!(
        "CREATE SUBSCRIPTION feed CONNECTION '{source}' PUBLICATION feed WITH (create_slot = false, slot_name = 'feed', copy_data = false)"
    );
    sql(&source, "CREATE PUBLICATION feed FOR ALL TABLES")?;
    sql(&source, "SELECT pg_create_logical_replication_slot('feed', 'pgoutput')")?;
    sql(&url, &subscribe)?;
    let applied = |followed: &mut Followed, statements: &str, expected: (u64, u64)| -> Result<()> {
        sql(&source, statements)?;
        caught_up(&source, &url)?;
        followed.arrives(expected).with_context(|| statements.to_owned())
    };
    applied(
        &mut followed,
        "INSERT INTO log VALUES (100, 1, 'odd', 'fed'), (101, 2, 'even', 'fed'), (102, 3, 'odd', 'fed')",
        (3, 0),
    )?;
    applied(&mut followed, "UPDATE log SET note = 'changed' WHERE id >= 100", (3, 0))?;
    applied(&mut followed, "UPDATE log SET day = 2 WHERE id = 100; UPDATE log SET id = 110 WHERE id = 101", (2, 2))?;
    applied(&mut followed, "UPDATE log SET area = 'even' WHERE id = 102", (1, 0))?;
    applied(&mut followed, "DELETE FROM log WHERE id >= 100", (0, 3))?;
    applied(
        &mut followed,
        "INSERT INTO item VALUES (100, 'odd', 'fed'); INSERT INTO tool VALUES (101, 'odd', 'fed', 1); INSERT INTO book VALUES (102, 'odd', 'fed', 1)",
        (3, 0),
    )?;
    applied(
        &mut followed,
        "UPDATE item SET note = 'changed' WHERE id >= 100; DELETE FROM item WHERE id = 101",
        (2, 1),
    )?;
    applied(&mut followed, "TRUNCATE log_1", (0, 20))?;
    // A partition made later, at both ends.
    let later = "CREATE TABLE log_4 PARTITION OF log FOR VALUES FROM (4) TO (5)";
    sql(&url, later)?;
    sql(&source, later)?;
    sql(&url, "ALTER SUBSCRIPTION feed REFRESH PUBLICATION WITH (copy_data = false)")?;
    applied(&mut followed, "INSERT INTO log VALUES (200, 4, 'odd', 'fed')", (1, 0))?;
    applied(&mut followed, "UPDATE log SET note = 'changed' WHERE id = 200", (1, 0))?;
    // What is detached here and goes on being fed can't be trusted: the table comes anew.
    sql(&url, "ALTER TABLE log DETACH PARTITION log_3")?;
    applied(&mut followed, "DELETE FROM log WHERE day = 3 AND id < 30", (21, 0))?;
    sql(
        &url,
        "ALTER SUBSCRIPTION feed DISABLE; ALTER SUBSCRIPTION feed SET (slot_name = NONE); DROP SUBSCRIPTION feed",
    )?;
    Ok(())
}

/// Rows that are published under the table's own name are put into its partitions here; those that were there before are copied.
#[test]
fn a_subscription_that_begins_with_a_copy() -> Result<()> {
    let publisher = Postgres::builder().wal_level("logical").start()?;
    let source = publisher.create_database()?;
    sql(&source, SCHEMA)?;
    sql(&source, "CREATE PUBLICATION feed FOR TABLE log WITH (publish_via_partition_root)")?;
    let tables = SCHEMA.split_once("INSERT INTO").map_or(SCHEMA, |(tables, _)| tables);
    let mut followed = Followed::of(World::new(Kind::Postgres, tables, MODEL, &["all", "odd"])?)?;
    let url = followed.world.central.url();
    sql(&url, &format!("CREATE SUBSCRIPTION feed CONNECTION '{source}' PUBLICATION feed"))?;
    let deadline = Instant::now() + Duration::from_mins(2);
    while !followed.world.central.rows("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'")?.is_empty() {
        ensure!(Instant::now() < deadline, "the table was not copied");
        std::thread::sleep(Duration::from_millis(20));
    }
    followed.arrives((60, 0))?;
    let applied = |followed: &mut Followed, statements: &str, expected: (u64, u64)| -> Result<()> {
        sql(&source, statements)?;
        caught_up(&source, &url)?;
        followed.arrives(expected).with_context(|| statements.to_owned())
    };
    applied(&mut followed, "INSERT INTO log VALUES (100, 1, 'odd', 'fed'), (101, 2, 'odd', 'fed')", (2, 0))?;
    applied(&mut followed, "UPDATE log SET day = 3, area = 'even' WHERE id = 100", (1, 1))?;
    applied(&mut followed, "UPDATE log SET note = 'b' WHERE day = 2; DELETE FROM log WHERE day = 1", (21, 20))?;
    applied(&mut followed, "TRUNCATE log", (0, 42))?;
    sql(&url, "DROP SUBSCRIPTION feed")?;
    Ok(())
}

/// In a database that a dump was loaded into parts have other numbers; that is no reason to miss anything.
#[test]
fn parts_in_a_loaded_dump() -> Result<()> {
    let cluster = Postgres::builder().start()?;
    let url = cluster.create_database()?;
    sql(&url, SCHEMA)?;
    let mut followed = {
        let mut world = World::over(Central::Postgres(url), tempfile::tempdir()?, read_model(MODEL)?, &["all", "odd"])?;
        world.config.listen.set_port(free_port()?);
        world.start_server()?;
        Followed::of(world)?
    };
    followed.check("UPDATE log_1 SET note = 'before'; DROP TABLE log_2", (40, 0))?;
    let dump = followed.world.folder.path().join("dump.sql");
    cluster.dump("test_0", &dump)?;
    followed.world.stop_server();
    let elsewhere = Postgres::builder().start()?;
    sql(&elsewhere.url("postgres"), "SELECT pg_current_xact_id()")?;
    followed.world.central = Central::Postgres(elsewhere.load(&dump)?);
    followed.world.start_server()?;
    followed.world.central.execute("INSERT INTO log_3 (id, day, area, note) VALUES (101, 3, 'odd', 'past')")?;
    for remote in [&mut followed.odd, &mut followed.all] {
        let report = followed.world.sync(remote)?;
        ensure!(report.restarted, "{report:?}");
    }
    followed.is_equal()?;
    followed.sync()?;
    ensure!(followed.sync()? == (0, 0), "sent again");
    followed.check("UPDATE log_3 SET note = 'after' WHERE id = 101; DELETE FROM log_1 WHERE id = 3", (1, 1))?;
    followed.check("INSERT INTO tool VALUES (300, 'odd', 'after', 1)", (1, 0))?;
    let states = followed.states()?;
    ensure!(states.len() == 4 && states.iter().all(|state| state.ends_with(" tracked")), "{states:?}");
    Ok(())
}

/// Waits until the subscriber has applied what the publisher has written.
fn caught_up(source: &str, subscriber: &str) -> Result<()> {
    let written = sql(source, "SELECT pg_current_wal_lsn()")?;
    let written = written.first().and_then(|row| row.first()?.clone()).context("a position")?;
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let applied = sql(
            source,
            &format!("SELECT coalesce(bool_and(confirmed_flush_lsn >= '{written}'), false) FROM pg_replication_slots"),
        )?;
        if applied.first().and_then(|row| row.first()?.as_deref()) == Some("t") {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the subscription at {subscriber} has not caught up");
        std::thread::sleep(Duration::from_millis(20));
    }
}
