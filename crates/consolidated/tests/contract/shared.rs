//! Shared partitions: read once, and topped up to what each download's own snapshot has.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use headwater_consolidated::Dialect;
use headwater_consolidated::download::{Build, Built, Found, Kept, Snapshots};
use headwater_protocol::chunk::Key;
use headwater_protocol::message::{ChunkRef, Snapshot};
use headwater_protocol::{Frame, Value};
use headwater_testkit::Random;

use super::database::{Database, plan};
use super::replica::Replica;
use super::values::{order, text};

/// What servers keep, in memory: a snapshot has one chunk, which lies here by its ID.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    kept: HashMap<(u32, Vec<u8>), Arc<Kept>>,
    building: Vec<(u32, Vec<u8>)>,
    chunks: BTreeMap<[u8; 16], Vec<Frame>>,
    builds: u64,
    handed_out: u64,
    waits: u64,
}

#[derive(Debug)]
struct InMemory {
    memory: Memory,
    place: (u32, Vec<u8>),
    frames: Vec<Frame>,
    snapshot: Option<Snapshot>,
}

impl Memory {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().expect("no panic"))
    }

    pub(crate) fn frames(&self, snapshot: &Snapshot) -> Vec<Frame> {
        self.with(|state| snapshot.chunks.iter().flat_map(|chunk| state.chunks[&chunk.id].clone()).collect())
    }

    fn forget(&self) {
        self.with(|state| state.kept.clear());
    }

    /// Partitions built so far, and snapshots handed out that another sync had built.
    fn counts(&self) -> (u64, u64) {
        self.with(|state| (state.builds, state.handed_out))
    }
}

impl Snapshots for Memory {
    fn find(&self, table: u32, partition: &[u8]) -> Found {
        let place = (table, partition.to_vec());
        self.with(|state| match state.kept.get(&place) {
            Some(kept) => {
                state.handed_out += 1;
                Found::Kept(Arc::clone(kept))
            }
            None if state.building.contains(&place) => Found::Busy,
            None => {
                state.building.push(place.clone());
                Found::Build(Box::new(InMemory { memory: self.clone(), place, frames: Vec::new(), snapshot: None }))
            }
        })
    }

    fn wait(&self, _table: u32, _partition: &[u8]) -> bool {
        self.with(|state| state.waits += 1);
        false
    }

    fn give_up(&self, table: u32, partition: &[u8], _kept: &Kept) {
        self.with(|state| state.kept.remove(&(table, partition.to_vec())));
    }
}

impl Build for InMemory {
    fn push(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    fn finish(&mut self, rows: u64) -> Built {
        let id = *uuid::Uuid::new_v4().as_bytes();
        let ((table, partition), frames) = (self.place.clone(), std::mem::take(&mut self.frames));
        self.memory.with(|state| state.chunks.insert(id, frames));
        let chunks = vec![ChunkRef { id, bytes: 0, digest: [0; 32] }];
        let snapshot = Snapshot { table, partition, url: String::new(), key: Key::new([0; 32]), rows, chunks };
        self.snapshot = Some(snapshot.clone());
        Built::Chunks(snapshot)
    }

    fn publish(self: Box<Self>, watermark: Vec<u8>, note: [u8; 16]) {
        let snapshot = self.snapshot.clone().expect("it is finished first");
        self.memory.with(|state| {
            state.builds += 1;
            state.kept.insert(self.place.clone(), Arc::new(Kept { snapshot, watermark, note }));
        });
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.memory.with(|state| state.building.retain(|place| *place != self.place));
    }
}

/// The standard tables, with orders and their lines shared; customers too, which are not partitioned.
fn shared(model: &str) -> String {
    ["customer", "orders", "line"].into_iter().fold(model.to_owned(), |model, table| {
        model.replace(&format!("[tables.{table}]\n"), &format!("[tables.{table}]\n    shared = true\n"))
    })
}

fn taking(user: &str, memory: &Memory) -> Replica {
    Replica { memory: Some(memory.clone()), ..Replica::new(user) }
}

pub(crate) fn a_partition_is_read_once_and_topped_up(database: &Database) {
    let plan = database.standard_with(shared);
    let memory = Memory::default();
    database.application(
        "INSERT INTO orders VALUES (1, 'north', 'a'), (2, 'north', 'b'), (3, 'north', 'c'), (4, 'south', 'd')",
    );
    let mut first = taking("ben", &memory);
    first.sync(database, &plan);
    first.assert_equals_fresh(database, &plan);
    let (builds, _) = memory.counts();
    database.application(
        "UPDATE orders SET note = 'new' WHERE id = 1; DELETE FROM orders WHERE id = 2; \
         UPDATE orders SET region = 'east' WHERE id = 3; INSERT INTO orders VALUES (5, 'north', 'e'); \
         UPDATE orders SET region = 'north' WHERE id = 4; INSERT INTO customer VALUES (1, 'a', 'x', 1)",
    );
    for user in ["ben", "anna", "ben"] {
        let mut other = taking(user, &memory);
        other.sync(database, &plan);
        other.assert_equals_fresh(database, &plan);
    }
    let (after, handed_out) = memory.counts();
    assert_eq!(after, builds + 2, "anna alone needed south, of two tables");
    assert!(handed_out >= 9, "the others took what was there: {handed_out}");
    assert_eq!(first.sync(database, &plan).marks, [], "what it has seen is known");
    first.assert_equals_fresh(database, &plan);
}

/// A row is where the remote has seen it, and was elsewhere when the other partition was built.
pub(crate) fn a_row_that_had_moved_before_stays_where_it_is(database: &Database) {
    let plan = database.standard_with(shared);
    let memory = Memory::default();
    database.application(
        "INSERT INTO orders VALUES (1, 'north', 'was north'); INSERT INTO line VALUES (1, 1, 'north', '1'); \
         DELETE FROM member WHERE user_name = 'anna' AND region = 'north'",
    );
    taking("ben", &memory).sync(database, &plan);
    database.application(
        "UPDATE orders SET region = 'south', note = 'is south' WHERE id = 1; UPDATE line SET region = 'south', amount = '2'",
    );
    let mut anna = taking("anna", &memory);
    anna.sync(database, &plan);
    assert_eq!(anna.table(&plan, "orders"), [order(1, "south", "is south")]);
    database.application("INSERT INTO member VALUES ('anna', 'north')");
    let (builds, _) = memory.counts();
    anna.sync(database, &plan);
    assert_eq!(memory.counts().0, builds, "north was built before");
    assert_eq!(anna.table(&plan, "orders"), [order(1, "south", "is south")]);
    anna.assert_equals_fresh(database, &plan);
}

/// Its row is sent with the conflict, and again with the partition that has just become the remote's.
pub(crate) fn a_conflict_in_a_partition_that_comes_whole_ends_as_it_is_now(database: &Database) {
    let plan = database.standard_with(shared);
    let memory = Memory::default();
    database.application("INSERT INTO orders VALUES (1, 'north', 'old'), (2, 'south', 'x')");
    taking("ben", &memory).sync(database, &plan);
    let mut anna = taking("anna", &Memory::default());
    anna.sync(database, &plan);
    anna.update(&plan, "orders", order(1, "north", "anna's"));
    database.application("UPDATE orders SET note = 'now' WHERE id = 1");
    anna.memory = Some(memory.clone());
    // It comes whole: the remote has lost what it had seen.
    anna.watermarks.entries.clear();
    let (_, before) = memory.counts();
    anna.sync(database, &plan);
    assert!(memory.counts().1 > before, "north came in a chunk");
    assert_eq!(anna.table(&plan, "orders"), [order(1, "north", "now"), order(2, "south", "x")]);
    anna.assert_equals_fresh(database, &plan);
}

/// The consolidated database was put back to before the note: what was built is of a time that never was.
pub(crate) fn what_another_life_of_the_database_built_is_given_up(database: &Database) {
    let plan = database.standard_with(shared);
    let memory = Memory::default();
    database.application("INSERT INTO orders VALUES (1, 'north', 'lost')");
    taking("ben", &memory).sync(database, &plan);
    let (builds, _) = memory.counts();
    let notes = if database.dialect() == Dialect::Sqlite { "headwater_note" } else { "headwater.note" };
    let first = database.number(&format!("SELECT min(number) FROM {notes}"));
    database.application(&format!("DELETE FROM {notes} WHERE number > {first}"));
    let mut other = taking("ben", &memory);
    other.sync(database, &plan);
    other.assert_equals_fresh(database, &plan);
    assert_eq!(memory.counts().0, builds * 2, "all of it is built anew");
}

/// What is purged can't be topped up any more.
pub(crate) fn what_is_older_than_the_horizon_is_given_up(database: &Database) {
    let plan = database.standard_with(shared);
    let memory = Memory::default();
    database.application("INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'north', 'y')");
    taking("ben", &memory).sync(database, &plan);
    let (builds, _) = memory.counts();
    database.application("DELETE FROM orders WHERE id = 1");
    let mut connection = database.connect();
    headwater_consolidated::system::take_note(&mut *connection).expect("noted");
    let (older_than, step) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
    let request = headwater_consolidated::system::PurgeRequest { older_than, step };
    let purged = headwater_consolidated::system::purge(&mut *connection, &request, &mut || true).expect("purged");
    assert!(purged.has_moved, "the horizon is behind what was built");
    let mut other = taking("ben", &memory);
    other.sync(database, &plan);
    other.assert_equals_fresh(database, &plan);
    assert_eq!(memory.counts().0, builds * 2, "all of it is built anew");
}

/// A build takes too long: the partition comes as ever.
pub(crate) fn who_does_not_wait_any_longer_reads_it_himself(database: &Database) {
    let plan = database.standard_with(shared);
    let memory = Memory::default();
    database.application("INSERT INTO orders VALUES (1, 'north', 'x')");
    let number = super::replica::find(&plan, "orders").number;
    let north = super::replica::find(&plan, "orders").partition_key(&[text("north")]).expect("a partition");
    let Found::Build(unfinished) = memory.find(number, &north) else { panic!("it is to be built") };
    let mut ben = taking("ben", &memory);
    ben.sync(database, &plan);
    ben.assert_equals_fresh(database, &plan);
    assert_eq!(memory.with(|state| state.waits), 1);
    drop(unfinished);
    assert!(memory.with(|state| !state.kept.contains_key(&(number, north))), "he has not built it");
}

/// A transaction that is open while a partition is built, and commits afterwards.
pub(crate) fn a_transaction_open_at_the_build_is_not_missed(database: &Database) {
    let plan = database.standard_with(shared);
    let memory = Memory::default();
    database.application("INSERT INTO orders VALUES (1, 'north', 'old'), (2, 'north', 'goes')");
    let mut late = database.connect();
    late.batch("BEGIN").expect("begun");
    late.batch("UPDATE orders SET note = 'late' WHERE id = 1; DELETE FROM orders WHERE id = 2").expect("written");
    taking("ben", &memory).sync(database, &plan);
    database.application("INSERT INTO orders VALUES (3, 'north', 'new')");
    let mut before = taking("ben", &memory);
    before.sync(database, &plan);
    before.assert_equals_fresh(database, &plan);
    late.batch("COMMIT").expect("committed");
    for remote in [&mut before, &mut taking("ben", &memory)] {
        remote.sync(database, &plan);
        remote.assert_equals_fresh(database, &plan);
        assert_eq!(remote.table(&plan, "orders"), [order(1, "north", "late"), order(3, "north", "new")]);
    }
    assert_eq!(memory.with(|state| state.kept.len()), 3, "all of it built once");
}

/// Rows that the database picks by user are nobody else's.
pub(crate) fn row_security_keeps_a_table_from_being_shared(database: &Database) {
    let plan = database.standard_with(shared);
    let role = format!("app_{}", uuid::Uuid::new_v4().simple());
    database.application(&format!(
        "INSERT INTO orders VALUES (1, 'north', 'anna'), (2, 'north', 'ben'); \
         CREATE ROLE {role}; GRANT ALL ON SCHEMA public, headwater TO {role}; \
         GRANT ALL ON ALL TABLES IN SCHEMA public, headwater TO {role}; \
         GRANT ALL ON ALL SEQUENCES IN SCHEMA headwater TO {role}; \
         ALTER TABLE orders ENABLE ROW LEVEL SECURITY; \
         CREATE POLICY own ON orders USING (note = current_setting('headwater.user', true))"
    ));
    let memory = Memory::default();
    for user in ["anna", "ben"] {
        let mut connection = database.connect();
        connection.batch(&format!("SET ROLE {role}")).expect("the role");
        let mut remote = taking(user, &memory);
        remote.try_sync(&mut *connection, &plan).expect("synced");
        assert_eq!(remote.table(&plan, "orders").iter().map(|row| row[2].clone()).collect::<Vec<_>>(), [text(user)]);
    }
    let orders = super::replica::find(&plan, "orders").number;
    assert!(memory.with(|state| state.kept.keys().all(|(table, _)| *table != orders)), "orders were not built");
    assert!(memory.counts().0 > 0, "other tables were");
    database.application(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

const REGIONS: [&str; 3] = ["north", "south", "west"];
const USERS: [&str; 3] = ["anna", "ben", "cleo"];

/// Whatever is written before, between and after builds, whoever joins and leaves what: a remote that takes chunks holds what one holds
/// that reads all tables.
pub(crate) fn whatever_is_written_a_remote_with_chunks_holds_the_same(database: &Database) {
    let setting = |name| std::env::var(name).ok().and_then(|number: String| number.parse().ok());
    let (seed, rounds) =
        (setting("HEADWATER_SHARED_SEED").unwrap_or(1), setting("HEADWATER_SHARED_ROUNDS").unwrap_or(120));
    let mut random = Random::seeded(seed);
    let plan = database.standard_with(|model| {
        let (head, line) = model.split_once("[tables.line]\n").expect("lines");
        let line = line.replacen("partition = \"region\"", "partition = { through = \"orders\" }", 1);
        shared(&format!("{head}[tables.line]\n{line}"))
    });
    let memory = Memory::default();
    let mut remotes: Vec<Replica> = (0..4).map(|place| taking(USERS[place % 3], &memory)).collect();
    database.application("INSERT INTO orders VALUES (1000, 'north', 'late')");
    let mut late = (database.dialect() == Dialect::Postgres).then(|| database.connect());
    let mut is_late = false;
    for round in 0..rounds {
        for _ in 0..random.below(4) {
            database.application(&write(&mut random));
        }
        if let Some(late) = &mut late {
            if is_late {
                late.batch("COMMIT").expect("committed");
            } else {
                late.batch("BEGIN").expect("begun");
                // A row that nobody else writes: it must not wait.
                let note = random.below(100);
                late.batch(&format!(
                    "UPDATE orders SET note = 'late {note}', region = '{}' WHERE id = 1000",
                    REGIONS[note as usize % 3]
                ))
                .expect("written");
            }
            is_late = !is_late;
        }
        if random.chance(10) {
            memory.forget();
        }
        let place = random.below(remotes.len() as u64) as usize;
        if random.chance(25) {
            remotes[place] = taking(&remotes[place].user, &memory);
        }
        let remote = &mut remotes[place];
        remote.sync(database, &plan);
        let fresh = Replica::synced(database, &plan, &remote.user);
        assert_eq!(
            remote.rows, fresh.rows,
            "{} in round {round}, again with HEADWATER_SHARED_SEED={seed}",
            remote.user
        );
    }
    let (builds, handed_out) = memory.counts();
    assert!(builds > 10 && handed_out > 10, "{builds} built, {handed_out} handed out");
}

fn write(random: &mut Random) -> String {
    let region = |random: &mut Random| REGIONS[random.below(3) as usize];
    let user = |random: &mut Random| USERS[random.below(3) as usize];
    let (id, note) = (random.below(12), random.below(1000));
    match random.below(12) {
        0..3 => format!("INSERT INTO orders VALUES ({id}, '{}', 'n{note}') ON CONFLICT DO NOTHING", region(random)),
        3 => format!("UPDATE orders SET note = 'n{note}' WHERE id = {id}"),
        4..7 => format!("UPDATE orders SET region = '{}', note = 'm{note}' WHERE id = {id}", region(random)),
        7 => format!("DELETE FROM line WHERE order_id = {id}; DELETE FROM orders WHERE id = {id}"),
        8 => format!(
            "INSERT INTO line SELECT id, {}, region, {note} FROM orders WHERE id = {id} ON CONFLICT DO NOTHING",
            random.below(3)
        ),
        9 => format!("INSERT INTO member VALUES ('{}', '{}') ON CONFLICT DO NOTHING", user(random), region(random)),
        10 => format!("DELETE FROM member WHERE user_name = '{}' AND region = '{}'", user(random), region(random)),
        _ => format!(
            "INSERT INTO customer VALUES ({id}, 'c{id}', 'x', {note}) ON CONFLICT DO NOTHING; DELETE FROM customer WHERE id = {}",
            random.below(12)
        ),
    }
}

/// Only what the user is a member of is looked for.
pub(crate) fn what_is_not_the_users_is_neither_built_nor_handed_out(database: &Database) {
    let plan = database.standard_with(shared);
    let memory = Memory::default();
    database.application("INSERT INTO orders VALUES (1, 'north', 'x'), (2, 'south', 'secret')");
    taking("anna", &memory).sync(database, &plan);
    let (_, handed_out) = memory.counts();
    let mut ben = taking("ben", &memory);
    ben.sync(database, &plan);
    assert_eq!(memory.counts().1, handed_out + 3, "customers, and north of orders and lines");
    assert_eq!(ben.table(&plan, "orders"), [order(1, "north", "x")]);
    let mut nobody = taking("nobody", &memory);
    nobody.sync(database, &plan);
    assert_eq!(memory.counts().1, handed_out + 4, "customers alone");
    assert!(nobody.rows.values().all(|row| !row.contains(&Value::text("secret"))));
}

/// A remote that takes none gets none.
pub(crate) fn who_takes_no_chunks_gets_rows(database: &Database) {
    let plan = database.standard_with(shared);
    database.application("INSERT INTO orders VALUES (1, 'north', 'x')");
    let ben = Replica::synced(database, &plan, "ben");
    assert_eq!(ben.table(&plan, "orders"), [order(1, "north", "x")]);
    let unshared = self::plan(super::database::MODEL);
    assert_eq!(unshared.fingerprint, plan.fingerprint, "remotes need not know what is shared");
}
