//! Updates and deletions that go straight from their frames: they end as they would by the way of all others, whatever is among them.
//!
//! `HEADWATER_PLAIN_SEED` repeats a run.

use std::sync::atomic::{AtomicBool, Ordering};

use headwater_consolidated::system::{ConflictQuery, conflicts};
use headwater_consolidated::{Plan, track};
use headwater_protocol::message::{Change, ChangeOp};
use headwater_protocol::{Row, Value};
use headwater_testkit::Random;

use super::counting::Counting;
use super::database::{Database, plan};
use super::replica::{Replica, Synced, find};
use super::values::{NULL, decimal, int, text};

const TABLES: &str = "
    CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
    INSERT INTO member VALUES ('anna', 'north'), ('anna', 'south'), ('carl', 'west'), ('carl', 'north'), ('carl', 'south');
    CREATE TABLE item (
        id {int} NOT NULL PRIMARY KEY, region text, note text, price {decimal}, ratio {real}, code text UNIQUE
    );
    CREATE TABLE entry (name text NOT NULL, number {int} NOT NULL, changed {int}, PRIMARY KEY (name, number));";

fn model(rule: &str) -> String {
    format!(
        "name = \"both\"\nversion = 1\n[partitions.region]\ncolumns = {{ region = \"text\" }}\n\
         members = \"SELECT region FROM member WHERE user_name = :s.user\"\n\
         [tables.item]\nkey = [\"id\"]\npartition = \"region\"\nunique = [[\"code\"]]\nconflict = \"{rule}\"\n\
         columns = {{ id = \"int not null\", region = \"text\", note = \"text\", price = \"decimal\", ratio = \"real\", \
         code = \"text\" }}\n\
         [tables.entry]\nkey = [\"name\", \"number\"]\nconflict = \"{}\"\n\
         columns = {{ name = \"text not null\", number = \"int not null\", changed = \"int\" }}\n",
        if rule == "off" { "off" } else { "remote_wins" },
    )
}

fn made(database: &Database, rule: &str) -> Plan {
    database.application(TABLES);
    let plan = plan(&model(rule));
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

fn item(id: i64, region: &str, note: &str) -> Row {
    vec![int(id), text(region), text(note), decimal("1.50"), Value::Real(0.5), NULL]
}

/// Rows that another remote has put there, half of them in each of anna's regions.
fn filled(database: &Database, plan: &Plan, count: i64) {
    let mut remote = Replica::synced(database, plan, "carl");
    for id in 0..count {
        remote.insert(plan, "item", item(id, if id % 2 == 0 { "north" } else { "south" }, "first"));
        remote.insert(plan, "entry", vec![text("e"), int(id), int(0)]);
    }
    remote.sync(database, plan);
}

/// Syncs over a connection that lets changes go straight; gives how many updates and deletions did, and how many statements all else took.
fn straight(database: &Database, plan: &Plan, remote: &mut Replica) -> (Synced, [usize; 2], usize) {
    let mut counting = Counting::new(database.connect());
    counting.allows_plain = true;
    let synced = remote.try_sync(&mut counting, plan).expect("synced");
    let made = |op: ChangeOp| counting.plain.get(&(op as u8)).copied().unwrap_or(0);
    (synced, [made(ChangeOp::Update), made(ChangeOp::Delete)], counting.statements)
}

pub(crate) fn updates_and_deletions_go_straight_and_do_not_come_back(database: &Database) {
    for rule in ["merge(remote)", "off"] {
        if rule == "off" {
            database.application("DROP TABLE member; DROP TABLE item; DROP TABLE entry");
        }
        let plan = made(database, rule);
        filled(database, &plan, 60);
        let mut remote = Replica::synced(database, &plan, "anna");
        for id in 0..60 {
            remote.update(&plan, "item", item(id, if id % 2 == 0 { "north" } else { "south" }, "second"));
            remote.update(&plan, "entry", vec![text("e"), int(id), int(1)]);
        }
        let (synced, made, statements) = straight(database, &plan, &mut remote);
        assert_eq!((made, statements, synced.count()), ([120, 0], 0, 0), "{rule}");
        assert_eq!(synced.uploaded.map(|uploaded| uploaded.counts.updated), Some(120));
        assert!(synced.marks.is_empty());
        for id in 0..60 {
            remote.delete(&plan, "item", &item(id, if id % 2 == 0 { "north" } else { "south" }, "second"));
            remote.delete(&plan, "entry", &vec![text("e"), int(id), int(1)]);
        }
        let (synced, made, statements) = straight(database, &plan, &mut remote);
        assert_eq!((made, statements, synced.count()), ([0, 120], 0, 0), "{rule}");
        assert_eq!(synced.uploaded.map(|uploaded| uploaded.counts.deleted), Some(120));
        assert_eq!(database.number("SELECT (SELECT count(*) FROM item) + (SELECT count(*) FROM entry)"), 0);
        remote.assert_equals_fresh(database, &plan);
    }
}

pub(crate) fn among_other_changes_they_do_not_come_back_either(database: &Database) {
    let plan = made(database, "merge(remote)");
    filled(database, &plan, 140);
    let mut remote = Replica::synced(database, &plan, "anna");
    for id in 0..70 {
        remote.update(&plan, "item", item(id, if id % 2 == 0 { "north" } else { "south" }, "second"));
    }
    // One that has to be judged.
    remote.update(&plan, "item", item(70, "south", "moved"));
    for id in 77..140 {
        remote.delete(&plan, "item", &item(id, if id % 2 == 0 { "north" } else { "south" }, "first"));
    }
    let (synced, [updates, deletes], statements) = straight(database, &plan, &mut remote);
    assert_eq!(synced.count(), 0, "{:?} {:?}", synced.upserts, synced.deletes);
    assert_eq!(synced.uploaded.map(|u| (u.counts.updated, u.counts.deleted)), Some((71, 63)));
    // The frames have seven changes each, and one has both kinds.
    assert_eq!((updates, deletes), (70, 57));
    assert!(statements > 0);
    remote.assert_equals_fresh(database, &plan);
}

/// Deletions that take other rows along, of a table of which nothing else was uploaded than what went straight.
pub(crate) fn what_a_cascade_takes_along_is_sent(database: &Database) {
    database.application(
        "CREATE TABLE parent (id {int} NOT NULL PRIMARY KEY, code {int} UNIQUE);
         CREATE TABLE child (
             id {int} NOT NULL PRIMARY KEY, parent {int} REFERENCES parent (id) ON DELETE CASCADE,
             code {int} REFERENCES parent (code) ON UPDATE CASCADE ON DELETE SET NULL
         );",
    );
    let model = "name = \"cascade\"\nversion = 1\n\
        [tables.parent]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", code = \"int\" }\n\
        [tables.child]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", parent = \"int\", code = \"int\" }\n";
    let plan = plan(model);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    let mut remote = Replica::synced(database, &plan, "anna");
    for id in 0..120 {
        remote.insert(&plan, "parent", vec![int(id), int(id)]);
        remote.insert(&plan, "child", vec![int(id), int(id), NULL]);
        remote.insert(&plan, "child", vec![int(id + 1_000), NULL, int(id)]);
    }
    straight(database, &plan, &mut remote);
    for id in 0..60 {
        remote.update(&plan, "parent", vec![int(id), int(id + 500)]);
        remote.insert(&plan, "child", vec![int(id + 2_000), int(id + 60), NULL]);
    }
    let (synced, ..) = straight(database, &plan, &mut remote);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (60, 0), "children follow the code");
    remote.assert_equals_fresh(database, &plan);
    for id in 60..120 {
        remote.delete(&plan, "parent", &vec![int(id), int(id)]);
        remote.insert(&plan, "child", vec![int(id + 3_000), int(id - 60), NULL]);
    }
    let (synced, ..) = straight(database, &plan, &mut remote);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (60, 120), "children go, or lose the code");
    assert!(synced.outcomes().is_empty(), "{:?}", synced.outcomes());
    remote.assert_equals_fresh(database, &plan);
}

pub(crate) fn a_strangers_row_does_not_come_over(database: &Database) {
    let plan = made(database, "off");
    database.application("INSERT INTO item VALUES (1000, 'west', 'theirs', '1.50', 0.5, NULL)");
    filled(database, &plan, 60);
    let mut remote = Replica::synced(database, &plan, "anna");
    let stranger = item(1_000, "west", "theirs");
    let number = find(&plan, "item").number;
    for id in 0..55 {
        remote.update(&plan, "item", item(id, if id % 2 == 0 { "north" } else { "south" }, "second"));
    }
    remote.pending.push((number, Change { old: Some(stranger.clone()), new: Some(item(1_000, "north", "theirs")) }));
    let (synced, ..) = straight(database, &plan, &mut remote);
    assert_eq!(synced.refusals(), [(55, "partition")]);
    remote.update(&plan, "item", item(1, "south", "third"));
    for row in &remote.table(&plan, "item")[2..58] {
        remote.delete(&plan, "item", row);
    }
    remote.pending.push((number, Change { old: Some(stranger), new: None }));
    let (synced, ..) = straight(database, &plan, &mut remote);
    assert_eq!(synced.refusals(), [(57, "partition")]);
    assert_eq!(database.number("SELECT count(*) FROM item WHERE region = 'west'"), 1);
}

/// Another's write that is not committed when the upload comes.
pub(crate) fn a_row_that_another_is_writing_is_judged_as_it_is_left(database: &Database) {
    let plan = made(database, "consolidated_wins");
    filled(database, &plan, 60);
    for (write, is_deletion, expected) in [
        ("UPDATE item SET note = 'theirs' WHERE id = 7", false, (59, 0, 1)),
        ("UPDATE item SET note = 'theirs again' WHERE id = 9", true, (0, 59, 1)),
        ("ROLLBACK; BEGIN", false, (60, 0, 0)),
    ] {
        let mut remote = Replica::synced(database, &plan, "anna");
        for row in remote.table(&plan, "item") {
            if is_deletion {
                remote.delete(&plan, "item", &row);
            } else {
                let mut new = row;
                new[2] = text(write);
                remote.update(&plan, "item", new);
            }
        }
        let mut other = database.connect();
        other.batch("BEGIN; SELECT * FROM item WHERE id IN (7, 9) FOR UPDATE").expect("locked");
        let locks = if write.starts_with("ROLLBACK") { "UPDATE item SET note = 'undone' WHERE id = 7" } else { write };
        other.batch(locks).expect("written");
        let uploaded = uploaded_meanwhile(database, &plan, &remote, || {
            other.batch(if write.starts_with("ROLLBACK") { "ROLLBACK" } else { "COMMIT" }).expect("ended");
        });
        let counts = uploaded.counts;
        assert_eq!((counts.updated, counts.deleted, counts.conflicts), expected, "{write}");
        if write.starts_with("UPDATE") {
            assert_eq!(database.number("SELECT count(*) FROM item WHERE note LIKE 'theirs%'"), 1, "{write}");
        }
        if is_deletion {
            database.application("DELETE FROM item; DELETE FROM entry");
            filled(database, &plan, 60);
        }
    }
}

/// An upload that waits for a lock, while `then` is done.
fn uploaded_meanwhile(
    database: &Database,
    plan: &Plan,
    remote: &Replica,
    then: impl FnOnce(),
) -> headwater_consolidated::upload::Uploaded {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let uploading = scope.spawn(|| {
            let mut counting = Counting::new(database.connect());
            counting.allows_plain = true;
            let uploaded = remote.upload_only(&mut counting, plan);
            done.store(true, Ordering::Release);
            assert!(!counting.plain.is_empty(), "nothing went straight");
            uploaded
        });
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while database.number(waiting) == 0 && !done.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(!done.load(Ordering::Acquire), "the upload waits for the other's write");
        then();
        uploading.join().expect("no panic").expect("applied")
    })
}

const RULES: [&str; 6] =
    ["off", "consolidated_wins", "remote_wins", "newer_wins(price)", "merge(consolidated)", "merge(remote)"];
const ITEMS: i64 = 120;

pub(crate) fn what_goes_straight_ends_as_by_the_way_of_all_others(database: &dyn Fn() -> Database) {
    let (mut went, mut missed) = ([0, 0, 0], 0);
    let seeds = match std::env::var("HEADWATER_PLAIN_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).expect("a number"),
        Err(_) => 0..RULES.len() as u64 * 2,
    };
    for seed in seeds {
        let rule = RULES[seed as usize % RULES.len()];
        let sides = [database(), database()];
        let plan = sides.each_ref().map(|database| made(database, rule))[0].clone();
        let mut random = Random::seeded(seed);
        let start: Vec<Row> = (0..ITEMS).map(|id| random_item(&mut random, id)).collect();
        let mut remotes = sides.each_ref().map(|database| {
            let mut carl = Replica::synced(database, &plan, "carl");
            for row in &start {
                carl.insert(&plan, "item", row.clone());
            }
            for number in 0..60 {
                carl.insert(&plan, "entry", vec![text("e"), int(number), int(0)]);
            }
            carl.sync(database, &plan);
            Replica::new("anna")
        });
        remotes[1] = remotes[0].clone();
        for (remote, database) in remotes.iter_mut().zip(&sides) {
            remote.sync(database, &plan);
            remote.batch_rows = 20;
        }
        let mut connections = sides.each_ref().map(|database| Counting::new(database.connect()));
        connections[0].allows_plain = true;
        for upload in 0..4 {
            let others = others_write(&mut random);
            for database in &sides {
                database.application(&others);
            }
            let pending = changes(&mut random, &plan, &remotes[0]);
            let told = format!("HEADWATER_PLAIN_SEED={seed}, {rule}, upload {upload}");
            let ends = std::array::from_fn(|side| {
                for (table, change) in pending.clone() {
                    remotes[side].send(&plan.tables[table], change);
                }
                let synced = remotes[side].try_sync(&mut connections[side], &plan).expect(&told);
                end(&sides[side], &plan, &remotes[side], &synced)
            });
            let [one, other]: [Vec<String>; 2] = ends;
            // Without a look at what is stored, a batch also writes rows that are already as they are to be: it counts them, and they
            // need not come down. What is a batch is not the same on both sides.
            let left_out = if rule == "off" { BATCH_BY_BATCH } else { 0 };
            for (one, other) in one.iter().zip(&other).skip(left_out) {
                assert_eq!(one, other, "{told}");
            }
        }
        for (went, op) in went.iter_mut().zip([ChangeOp::Insert, ChangeOp::Update, ChangeOp::Delete]) {
            *went += connections[0].plain.get(&(op as u8)).copied().unwrap_or(0);
        }
        missed += connections[0].taken_back;
        assert!(connections[1].plain.is_empty());
    }
    assert!(went.iter().all(|went| *went > 0) && missed > 0, "{went:?} went straight, {missed} were taken back");
}

/// So many of what [`end`] gives depend on what is a batch, where conflicts are not looked for.
const BATCH_BY_BATCH: usize = 2;

/// Everything that an upload has come to.
fn end(database: &Database, plan: &Plan, remote: &Replica, synced: &Synced) -> Vec<String> {
    let uploaded = synced.uploaded.as_ref().expect("there was an upload");
    let query = ConflictQuery { limit: 10_000, ..ConflictQuery::default() };
    let records = conflicts(&mut *database.connect(), &query).expect("listed").into_iter();
    let mut recorded: Vec<String> =
        records.map(|r| format!("{:?}", (r.table, r.key, r.old, r.uploaded, r.stored, r.outcome, r.result))).collect();
    recorded.sort_unstable();
    let sorted = |rows: &[(u32, Row)]| {
        let mut rows: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        rows.sort_unstable();
        rows.join("\n")
    };
    let stored = ["SELECT * FROM item ORDER BY id", "SELECT * FROM entry ORDER BY name, number"];
    let mut end = vec![
        format!("{:?}", uploaded.counts),
        format!("sent {}", sorted(&synced.upserts)),
        format!("{:?}", uploaded.receipt),
        format!("conflicted {}", sorted(&uploaded.conflicted)),
        format!("deleted {}", sorted(&synced.deletes)),
        format!("held {:?}{:?}", remote.table(plan, "item"), remote.table(plan, "entry")),
        recorded.join("\n"),
    ];
    end.extend(stored.map(|sql| format!("{:?}", database.rows(sql))));
    end
}

fn random_item(random: &mut Random, id: i64) -> Row {
    let of = |random: &mut Random, all: &[Value]| random.pick(all).cloned().unwrap_or(NULL);
    let region = of(random, &[text("north"), text("north"), text("south"), text("south"), text("west")]);
    let note = of(random, &[text("a"), text("A"), text("a "), text("\u{e9}"), text(""), NULL]);
    let price = of(random, &[decimal("1"), decimal("1.5"), decimal("1.50"), decimal("-0.25"), NULL]);
    let ratio = of(random, &[Value::Real(0.0), Value::Real(-0.0), Value::Real(f64::NAN), Value::Real(0.1), NULL]);
    let code = if random.chance(70) { NULL } else { text(&format!("c{id}")) };
    vec![int(id), region, note, price, ratio, code]
}

fn others_write(random: &mut Random) -> String {
    let mut statements = vec!["SELECT 1".to_owned()];
    for _ in 0..random.below(4) {
        let (id, other) = (random.below(ITEMS as u64), random.below(60));
        statements.push(match random.below(5) {
            0 => format!("DELETE FROM item WHERE id = {id}"),
            1 => format!("UPDATE item SET region = 'west' WHERE id = {id}"),
            2 => format!("UPDATE item SET note = 'A', price = '2.5' WHERE id = {id}"),
            3 => format!("UPDATE item SET ratio = 0.0 WHERE id = {id}"),
            _ => format!("UPDATE entry SET changed = 7 WHERE number = {other}"),
        });
    }
    statements.join(";")
}

/// What a remote sends: stretches of changes of one kind, with some here and there that must not go straight.
fn changes(random: &mut Random, plan: &Plan, remote: &Replica) -> Vec<(usize, Change)> {
    let (items, entries) = (find(plan, "item").number as usize, find(plan, "entry").number as usize);
    let mut held = remote.table(plan, "item");
    let mut changes = Vec::new();
    let oddities = if random.chance(50) { 1 } else { 8 };
    for _ in 0..6 {
        let kind = random.below(5);
        for _ in 0..14 {
            let is_odd = random.chance(oddities);
            let place = random.below(held.len().max(1) as u64) as usize;
            if kind == 0 || held.is_empty() {
                let id = if is_odd { random.below(ITEMS as u64) as i64 } else { 1_000 + random.below(1 << 40) as i64 };
                let mut row = random_item(random, id);
                row[1] = text(if is_odd { "west" } else { "north" });
                changes.push((items, Change { old: None, new: Some(row) }));
                continue;
            }
            let mut old = if is_odd && random.chance(30) { held[place].clone() } else { held.swap_remove(place) };
            let Some(Value::Int(id)) = old.first().cloned() else { panic!("{old:?} has an ID") };
            let mut new = random_item(random, id);
            new[1] = old[1].clone();
            if is_odd {
                match random.below(7) {
                    0 => new[1] = text("south"),
                    1 => new[1] = text("west"),
                    2 => (old[1], new[1]) = (text("west"), text("north")),
                    3 => old[2] = text("never"),
                    4 => new.clone_from(&old),
                    5 => new[5] = text("c1"),
                    _ => (old[0], new[0]) = (int(id + 5_000), int(id + 5_000)),
                }
            }
            changes.push((items, Change { old: Some(old), new: (kind < 4).then_some(new) }));
        }
    }
    // The same keys again and again, one after the other.
    for _ in 0..30 {
        let Some(row) = random.pick(&remote.table(plan, "entry")).cloned() else { break };
        let mut new = row.clone();
        new[2] = int(random.below(9) as i64);
        changes.push((entries, Change { old: Some(row), new: random.chance(85).then_some(new) }));
    }
    changes
}
