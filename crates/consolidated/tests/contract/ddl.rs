//! What is done to tables beside a download: it never reads what was altered after its snapshot.
//!
//! A download stands still between its snapshot and its first read, since the query of its first memberships reads table `gate`, which the
//! test has locked.

use std::time::{Duration, Instant};

use headwater_consolidated::download::ready;
use headwater_consolidated::{Connection, Error, Plan, track};
use headwater_protocol::Value;

use super::database::{Database, plan};
use super::replica::{Replica, Synced};

const TABLES: &str = "
    CREATE TABLE gate (region text NOT NULL);
    INSERT INTO gate VALUES ('north');
    CREATE TABLE member (user_name text NOT NULL, region text NOT NULL);
    INSERT INTO member VALUES ('ben', 'north');
    CREATE VIEW membership AS SELECT user_name, region FROM member;
    CREATE TABLE area (region text PRIMARY KEY);
    CREATE TABLE price (id bigint PRIMARY KEY, region text, amount bigint);
    CREATE TABLE doc (id bigint PRIMARY KEY, region text, extra bigint);
    CREATE TABLE page (id bigint PRIMARY KEY, doc bigint REFERENCES doc, note text);
    CREATE TABLE log (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id);
    CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (0) TO (100);
    CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM (100) TO (200);
    CREATE TABLE log_3 (id bigint PRIMARY KEY, note text);
    INSERT INTO log_3 VALUES (201, 'c'), (202, 'c');
    CREATE TABLE old (id bigint PRIMARY KEY, note text);
    CREATE TABLE older (PRIMARY KEY (id)) INHERITS (old);
    CREATE TABLE last (id bigint PRIMARY KEY, note text);
    INSERT INTO price SELECT n, 'north', n FROM generate_series(1, 20) n;
    INSERT INTO doc SELECT n, 'north' FROM generate_series(1, 5) n;
    INSERT INTO page SELECT n, n % 5 + 1, 'a' FROM generate_series(1, 10) n;
    INSERT INTO log SELECT n, 'a' FROM generate_series(90, 110) n;
    INSERT INTO old VALUES (1, 'a');
    INSERT INTO older VALUES (2, 'a'), (3, 'a');
    INSERT INTO last VALUES (1, 'a')";

const MODEL: &str = r#"
    name = "ddl"
    version = 1

    [partitions.gate]
    columns = { region = "text" }
    members = "SELECT region FROM gate"

    [partitions.region]
    columns = { region = "text" }
    members = "SELECT region FROM membership WHERE user_name = :s.user"

    [tables.area]
    key = ["region"]
    partition = "gate"
    columns = { region = "text not null" }

    [tables.price]
    key = ["id"]
    partition = "region"
    shared = true
    columns = { id = "int not null", region = "text", amount = "int" }

    [tables.doc]
    key = ["id"]
    partition = "region"
    columns = { id = "int not null", region = "text" }

    [tables.page]
    key = ["id"]
    partition = { through = "doc" }
    references = [{ columns = ["doc"], table = "doc" }]
    columns = { id = "int not null", doc = "int", note = "text" }

    [tables.log]
    key = ["id"]
    columns = { id = "int not null", note = "text" }

    [tables.old]
    key = ["id"]
    columns = { id = "int not null", note = "text" }

    [tables.last]
    key = ["id"]
    columns = { id = "int not null", note = "text" }
"#;

/// What an application does, and what it does after the download.
struct Event {
    name: &'static str,
    beside: &'static str,
    afterwards: &'static str,
}

const fn event(name: &'static str, beside: &'static str) -> Event {
    Event { name, beside, afterwards: "" }
}

/// None of them changes what a remote is to have in the end.
const EVENTS: &[Event] = &[
    event("rewritten", "ALTER TABLE price ALTER COLUMN amount TYPE bigint USING amount + 0"),
    event(
        "a column with a volatile default",
        "ALTER TABLE doc ADD COLUMN IF NOT EXISTS r double precision DEFAULT random()",
    ),
    event(
        "emptied and loaded",
        "CREATE TEMP TABLE p AS SELECT * FROM price; TRUNCATE price; INSERT INTO price SELECT * FROM p; DROP TABLE p",
    ),
    event("a parent rewritten", "ALTER TABLE doc ALTER COLUMN extra TYPE bigint USING extra + 1"),
    Event {
        name: "detached, and attached afterwards",
        beside: "ALTER TABLE log DETACH PARTITION log_1",
        afterwards: "ALTER TABLE log ATTACH PARTITION log_1 FOR VALUES FROM (0) TO (100)",
    },
    event(
        "detached and attached",
        "ALTER TABLE log DETACH PARTITION log_2; ALTER TABLE log ATTACH PARTITION log_2 FOR VALUES FROM (100) TO (200)",
    ),
    Event {
        name: "attached, and detached afterwards",
        beside: "ALTER TABLE log ATTACH PARTITION log_3 FOR VALUES FROM (200) TO (300)",
        afterwards: "ALTER TABLE log DETACH PARTITION log_3",
    },
    Event {
        name: "inherits no more, and again",
        beside: "ALTER TABLE older NO INHERIT old",
        afterwards: "ALTER TABLE older INHERIT old",
    },
    event("a partition rewritten", "TRUNCATE log_1; INSERT INTO log_1 SELECT n, 'b' FROM generate_series(90, 99) n"),
    event("members emptied and loaded", "TRUNCATE member; INSERT INTO member VALUES ('ben', 'north')"),
    event("members rewritten", "ALTER TABLE member ADD COLUMN r double precision DEFAULT random()"),
    event(
        "members replaced",
        "CREATE TABLE member_new AS SELECT * FROM member; DROP VIEW membership; ALTER TABLE member RENAME TO member_old; \
         ALTER TABLE member_new RENAME TO member; CREATE VIEW membership AS SELECT user_name, region FROM member; DROP TABLE member_old",
    ),
    event(
        "members' view replaced",
        "CREATE TABLE IF NOT EXISTS others (LIKE member); TRUNCATE others; INSERT INTO others SELECT * FROM member; \
         CREATE OR REPLACE VIEW membership AS SELECT user_name, region FROM others",
    ),
    event(
        "a side table made anew",
        "ALTER TABLE headwater.\"side_price@region\" SET UNLOGGED; ALTER TABLE headwater.\"side_price@region\" SET LOGGED",
    ),
    event(
        "a table replaced by its copy",
        "ALTER TABLE headwater.refresh SET UNLOGGED; ALTER TABLE headwater.refresh SET LOGGED",
    ),
];

/// So that a download of what has changed reads every table.
const CHANGES: &str = "UPDATE price SET amount = amount + 1 WHERE id < 6; UPDATE doc SET region = region; UPDATE page SET note = note || 'x'; \
     UPDATE log SET note = note || 'x'; UPDATE old SET note = note || 'x'; UPDATE last SET note = note || 'x'";

fn stocked(database: &Database) -> Plan {
    database.application(TABLES);
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

/// Syncs until nothing comes in between, as a server does.
fn sync(replica: &mut Replica, connection: &mut dyn Connection, plan: &Plan) -> Synced {
    for _ in 0..5 {
        match replica.try_sync(connection, plan) {
            Err(Error::Retry { broken: false, .. }) => {}
            other => return other.expect("the sync goes well"),
        }
    }
    panic!("tables do not come to rest");
}

/// A connection that has prepared the statements of a download: preparing them would wait for locks before the snapshot.
fn used(database: &Database, plan: &Plan) -> Box<dyn Connection> {
    let mut connection = database.connect();
    Replica::new("ben").try_sync(&mut *connection, plan).expect("synced");
    connection
}

/// Waits until somebody waits for a lock in this database, or `is_over`.
fn until_waiting(database: &Database, is_over: impl Fn() -> bool) {
    let waits = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.datname = current_database() AND d.oid = l.database \
                 WHERE NOT l.granted";
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_over() && database.number(waits) == 0 {
        assert!(Instant::now() < deadline, "nobody waits");
        std::thread::yield_now();
    }
}

/// A remote that has synced, or is new.
fn remote(database: &Database, plan: &Plan, is_new: bool) -> Replica {
    if is_new {
        return Replica::new("ben");
    }
    let replica = Replica::synced(database, plan, "ben");
    database.application(CHANGES);
    replica
}

fn check(database: &Database, plan: &Plan, replica: &mut Replica, event: &Event) {
    if event.afterwards.is_empty() {
        replica.assert_equals_fresh(database, plan);
    } else {
        database.application(event.afterwards);
        sync(replica, &mut *database.connect(), plan);
        replica.assert_equals_fresh(database, plan);
    }
}

/// The application's transaction is open when the download takes its snapshot, and ends when the download waits for it.
fn open_at_the_snapshot(database: &Database, is_new: bool) {
    let plan = stocked(database);
    for event in EVENTS {
        eprintln!("{}", event.name);
        let mut replica = remote(database, &plan, is_new);
        let mut connection = used(database, &plan);
        let mut application = database.connect();
        application.batch(&format!("BEGIN; {}", event.beside)).expect(event.name);
        std::thread::scope(|scope| {
            let (replica, plan) = (&mut replica, &plan);
            let syncing = scope.spawn(move || sync(replica, &mut *connection, plan));
            until_waiting(database, || syncing.is_finished());
            application.batch("COMMIT").expect(event.name);
        });
        check(database, &plan, &mut replica, event);
    }
}

/// The application's transaction begins and ends between the download's snapshot and its first read.
fn between_snapshot_and_read(database: &Database, is_new: bool) {
    let plan = stocked(database);
    for event in EVENTS {
        eprintln!("{}", event.name);
        let mut replica = remote(database, &plan, is_new);
        let mut connection = used(database, &plan);
        let mut gate = database.connect();
        gate.batch("BEGIN; LOCK TABLE gate").expect("locked");
        std::thread::scope(|scope| {
            let (replica, plan) = (&mut replica, &plan);
            let syncing = scope.spawn(move || sync(replica, &mut *connection, plan));
            until_waiting(database, || syncing.is_finished());
            database.application(&format!("BEGIN; {}; COMMIT", event.beside));
            gate.batch("COMMIT").expect("let through");
        });
        check(database, &plan, &mut replica, event);
    }
}

pub(crate) fn an_open_alteration_loses_no_changes(database: &Database) {
    open_at_the_snapshot(database, false);
}

pub(crate) fn an_open_alteration_loses_no_row_of_a_new_remote(database: &Database) {
    open_at_the_snapshot(database, true);
}

pub(crate) fn an_alteration_behind_the_snapshot_loses_no_changes(database: &Database) {
    between_snapshot_and_read(database, false);
}

pub(crate) fn an_alteration_behind_the_snapshot_loses_no_row_of_a_new_remote(database: &Database) {
    between_snapshot_and_read(database, true);
}

/// A part is away just when its table is read, and back before the download ends.
pub(crate) fn a_part_that_is_away_for_a_moment_is_not_missed(database: &Database) {
    let plan = stocked(database);
    let mut replica = Replica::new("ben");
    let mut connection = used(database, &plan);
    let (mut gate, mut last) = (database.connect(), database.connect());
    gate.batch("BEGIN; LOCK TABLE gate").expect("locked");
    std::thread::scope(|scope| {
        let (replica, plan) = (&mut replica, &plan);
        let syncing = scope.spawn(move || sync(replica, &mut *connection, plan));
        until_waiting(database, || syncing.is_finished());
        last.batch("BEGIN; LOCK TABLE last").expect("locked");
        database.application("ALTER TABLE log DETACH PARTITION log_1");
        gate.batch("COMMIT").expect("let through");
        let reads = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'last'::regclass";
        let deadline = Instant::now() + Duration::from_secs(30);
        while database.number(reads) == 0 {
            assert!(Instant::now() < deadline && !syncing.is_finished(), "it does not come to the last table");
            std::thread::yield_now();
        }
        database.application("ALTER TABLE log ATTACH PARTITION log_1 FOR VALUES FROM (0) TO (100)");
        last.batch("COMMIT").expect("let through");
    });
    replica.assert_equals_fresh(database, &plan);
}

/// What is built for others while a table is altered is not handed out.
pub(crate) fn a_shared_partition_is_not_built_of_an_altered_table(database: &Database) {
    let plan = stocked(database);
    let mut first = Replica { memory: Some(super::shared::Memory::default()), ..Replica::new("ben") };
    let mut second = Replica { memory: first.memory.clone(), ..Replica::new("ben") };
    let (mut connection, mut gate) = (used(database, &plan), database.connect());
    gate.batch("BEGIN; LOCK TABLE gate").expect("locked");
    std::thread::scope(|scope| {
        let (first, plan) = (&mut first, &plan);
        let syncing = scope.spawn(move || sync(first, &mut *connection, plan));
        until_waiting(database, || syncing.is_finished());
        database.application("ALTER TABLE price ALTER COLUMN amount TYPE bigint USING amount + 0");
        gate.batch("COMMIT").expect("let through");
    });
    second.sync(database, &plan);
    assert_eq!(second.table(&plan, "price").len(), 20);
    first.assert_equals_fresh(database, &plan);
}

/// A file for new remotes, made while tables are altered between its snapshot and its first read, lacks nothing that their next sync does not bring.
pub(crate) fn a_ready_file_is_not_made_of_an_altered_table(database: &Database) {
    let plan = stocked(database);
    let partitions = vec![vec![vec![Value::text("north")]]; 2];
    let write = |connection: &mut dyn Connection, frames: &mut Vec<_>| {
        frames.clear();
        ready::write_partitions(connection, &plan, &partitions, &mut |frame| {
            frames.push(frame);
            Ok(())
        })
    };
    for event in EVENTS {
        eprintln!("{}", event.name);
        let mut frames = Vec::new();
        let mut connection = database.connect();
        write(&mut *connection, &mut frames).expect("written, and its statements prepared");
        let mut gate = database.connect();
        gate.batch("BEGIN; LOCK TABLE area").expect("locked");
        let seen = std::thread::scope(|scope| {
            let frames = &mut frames;
            let writing = scope.spawn(move || {
                let written = (0..5).map(|_| write(&mut *connection, frames));
                written.into_iter().find(|written| !matches!(written, Err(Error::Retry { broken: false, .. })))
            });
            until_waiting(database, || writing.is_finished());
            database.application(&format!("BEGIN; {}; COMMIT", event.beside));
            gate.batch("COMMIT").expect("let through");
            let written = writing.join().expect("no panic").expect("tables come to rest");
            written.expect("the file is made").1
        });
        let mut replica = Replica::new("ben");
        replica.apply(&plan, &frames);
        replica.watermarks = seen;
        sync(&mut replica, &mut *database.connect(), &plan);
        check(database, &plan, &mut replica, event);
    }
}
