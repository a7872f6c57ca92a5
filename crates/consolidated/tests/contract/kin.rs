//! Tables that take their partition from the row that a foreign key refers to: order lines from their order, orders from their shop.
//!
//! `HEADWATER_KIN_SEED` repeats a run of the random writes, `HEADWATER_KIN_SCHEMAS` makes it longer.

use headwater_consolidated::{Dialect, Plan, track};
use headwater_protocol::Row;
use headwater_testkit::Random;

use super::database::{Database, plan};
use super::replica::Replica;
use super::values::{NULL, int, text};

pub(crate) const MODEL: &str = r#"
    name = "kin"
    version = 1

    [partitions.region]
    columns = { region = "text" }
    members = "SELECT region FROM member WHERE user_name = :s.user"

    [tables.line]
    key = ["orders", "no"]
    partition = { through = "orders" }
    conflict = "merge(remote)"
    references = [{ columns = ["orders"], table = "orders", on_delete = "cascade" }]
    columns = { orders = "int not null", no = "int not null", note = "text" }

    [tables.tag]
    key = ["id"]
    partition = { through = "orders", by = ["second"] }
    references = [{ columns = ["first"], table = "orders" }, { columns = ["second"], table = "orders" }]
    columns = { id = "int not null", first = "int", second = "int" }

    [tables.orders]
    key = ["id"]
    partition = { through = "shop" }
    references = [{ columns = ["shop"], table = "shop", on_delete = "cascade" }]
    columns = { id = "int not null", shop = "int", note = "text" }

    [tables.shop]
    key = ["id"]
    partition = "region"
    columns = { id = "int not null", region = "text", note = "text" }
"#;

/// The tables; `action`: what follows the references of lines and orders.
pub(crate) fn tables(action: &str) -> String {
    format!(
        "CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region)); \
         INSERT INTO member VALUES ('anna', 'north'), ('anna', 'south'), ('ben', 'north'); \
         CREATE TABLE shop (id {{int}} NOT NULL PRIMARY KEY, region text, note text); \
         CREATE TABLE orders (id {{int}} NOT NULL PRIMARY KEY, shop {{int}} REFERENCES shop (id){action}, note text); \
         CREATE TABLE line (orders {{int}} NOT NULL REFERENCES orders (id){action}, no {{int}} NOT NULL, note text, \
         PRIMARY KEY (orders, no)); \
         CREATE TABLE tag (id {{int}} NOT NULL PRIMARY KEY, first {{int}}, second {{int}}); \
         CREATE INDEX tag_second ON tag (second); CREATE INDEX orders_shop ON orders (shop)"
    )
}

pub(crate) fn made(database: &Database, action: &str) -> Plan {
    database.application(&tables(action));
    let plan = plan(MODEL);
    track::track(&mut *database.connect(), &plan).expect("tracked");
    plan
}

const CASCADE: &str = " ON DELETE CASCADE ON UPDATE CASCADE";

/// Shop 1 in the north, 2 in the south, 3 in the east; each with an order of its number, that with a line and a tag.
pub(crate) fn stocked(database: &Database) -> Plan {
    let plan = made(database, CASCADE);
    database.application(
        "INSERT INTO shop VALUES (1, 'north', 'n'), (2, 'south', 's'), (3, 'east', 'e'); \
         INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'); \
         INSERT INTO line VALUES (1, 1, 'x'), (2, 1, 'y'), (3, 1, 'z'); \
         INSERT INTO tag VALUES (1, NULL, 1), (2, 1, 2), (3, 1, 3), (4, 1, NULL)",
    );
    plan
}

pub(crate) fn what_moves_takes_along_what_is_below_it(database: &Database) {
    let plan = stocked(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    let mut ben = Replica::synced(database, &plan, "ben");
    assert_eq!(anna.table(&plan, "line").len(), 2);
    assert_eq!(ben.table(&plan, "tag"), [vec![int(1), NULL, int(1)]]);
    // The shop, an order, a line and a tag by themselves; each one step.
    let mut check = |statement: &str, (of_anna, of_ben): (usize, usize)| {
        database.application(statement);
        let synced = anna.sync(database, &plan);
        let held_on = synced.deletes.iter().filter(|(table, key)| {
            synced.upserts.iter().any(|(other, row)| other == table && row[..key.len()] == key[..])
        });
        assert_eq!(held_on.count(), 0, "what lives on in another partition of hers is not deleted: {statement}");
        ben.sync(database, &plan);
        anna.assert_equals_fresh(database, &plan);
        ben.assert_equals_fresh(database, &plan);
        assert_eq!((anna.table(&plan, "line").len(), ben.table(&plan, "line").len()), (of_anna, of_ben), "{statement}");
        assert_eq!(anna.sync(database, &plan).count(), 0, "nothing is sent twice: {statement}");
    };
    check("UPDATE shop SET region = 'south' WHERE id = 1", (2, 0));
    check("UPDATE shop SET region = 'north' WHERE id = 1", (2, 1));
    check("UPDATE orders SET shop = 3 WHERE id = 2", (1, 1));
    check("UPDATE orders SET shop = 1 WHERE id = 3", (2, 2));
    check("UPDATE line SET orders = 2, no = 5 WHERE orders = 3", (1, 1));
    check("UPDATE tag SET second = 1 WHERE id = 4", (1, 1));
    check("UPDATE tag SET second = NULL WHERE id = 1", (1, 1));
    check("UPDATE shop SET id = 9, region = 'south' WHERE id = 1", (1, 0));
    check("UPDATE shop SET region = NULL WHERE id = 9", (0, 0));
    check("UPDATE shop SET region = 'north' WHERE id = 9", (1, 1));
    check("DELETE FROM shop WHERE id = 9", (0, 0));
}

/// A change of a parent that moves nothing sends nothing below it.
pub(crate) fn what_stays_where_it_is_is_not_sent(database: &Database) {
    let plan = stocked(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    database.application(
        "UPDATE shop SET note = 'new', region = region; UPDATE orders SET note = 'new'; \
         INSERT INTO shop VALUES (1, 'north', 'again') ON CONFLICT (id) DO UPDATE SET note = excluded.note",
    );
    let synced = anna.sync(database, &plan);
    assert_eq!((synced.upserts.len(), synced.deletes.len()), (4, 0), "{:?}", synced.upserts);
}

pub(crate) fn uploads_go_by_the_parent_as_it_is_stored(database: &Database) {
    let plan = stocked(database);
    let mut ben = Replica::synced(database, &plan, "ben");
    let line = |order: i64, no: i64, note: &str| vec![int(order), int(no), text(note)];
    ben.insert(&plan, "line", line(1, 2, "mine"));
    ben.insert(&plan, "line", line(2, 2, "of anna"));
    ben.insert(&plan, "line", line(3, 2, "of nobody here"));
    ben.insert(&plan, "line", line(77, 2, "of none"));
    ben.update(&plan, "tag", vec![int(1), NULL, int(2)]);
    ben.insert(&plan, "tag", vec![int(9), int(1), NULL]);
    let synced = ben.sync(database, &plan);
    assert_eq!(
        synced.refusals(),
        [(1, "foreign_key"), (2, "foreign_key"), (3, "foreign_key"), (4, "foreign_key"), (5, "partition")]
    );
    let messages = synced.outcomes().iter().filter_map(|(ordinal, outcome)| match outcome {
        headwater_protocol::message::Outcome::Refused(refusal) if *ordinal < 4 => Some(&refusal.message),
        _ => None,
    });
    let messages: std::collections::BTreeSet<_> = messages.collect();
    assert_eq!(messages.len(), 1, "there or not, the same words: {messages:?}");
    assert_eq!(database.number("SELECT count(*) FROM line WHERE no = 2"), 1);
    assert_eq!(database.number("SELECT count(*) FROM tag WHERE second = 1"), 1);
    // A stored row that is another's, claimed by a parent of one's own; and one that was moved away meanwhile.
    let mut ben = Replica::synced(database, &plan, "ben");
    ben.insert(&plan, "tag", vec![int(2), NULL, int(1)]);
    ben.update(&plan, "line", line(1, 1, "changed"));
    ben.delete(&plan, "line", &line(1, 2, "mine"));
    database.application("UPDATE shop SET region = 'south' WHERE id = 1");
    let synced = ben.sync(database, &plan);
    assert_eq!(synced.refusals().len(), 3, "{:?}", synced.outcomes());
    assert!(synced.refusals().iter().all(|(_, code)| *code == "partition" || *code == "foreign_key"));
    assert_eq!(database.number("SELECT count(*) FROM line WHERE note IN ('x', 'mine')"), 2);
    assert_eq!(database.number("SELECT count(*) FROM tag WHERE id = 2 AND second = 2"), 1);
    assert_eq!(
        ben.table(&plan, "line").len() + ben.table(&plan, "tag").len(),
        1,
        "what he claims stays with him alone"
    );
}

/// Parents that come, move or are refused in the same upload decide about their children in it.
pub(crate) fn uploads_go_by_the_parent_as_they_leave_it(database: &Database) {
    let plan = stocked(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    let line = |order: i64, no: i64| vec![int(order), int(no), text("new")];
    anna.insert(&plan, "shop", vec![int(10), text("south"), NULL]);
    anna.insert(&plan, "shop", vec![int(11), text("east"), NULL]);
    anna.update(&plan, "shop", vec![int(1), text("south"), text("n")]);
    anna.insert(&plan, "orders", vec![int(10), int(10), NULL]);
    anna.insert(&plan, "orders", vec![int(11), int(11), NULL]);
    anna.insert(&plan, "orders", vec![int(12), int(1), NULL]);
    anna.update(&plan, "orders", vec![int(2), int(10), text("b")]);
    anna.insert(&plan, "line", line(10, 1));
    anna.insert(&plan, "line", line(11, 1));
    anna.insert(&plan, "line", line(12, 1));
    anna.insert(&plan, "line", line(2, 2));
    let synced = anna.sync(database, &plan);
    assert_eq!(synced.refusals(), [(1, "partition"), (4, "foreign_key"), (8, "foreign_key")]);
    assert_eq!(database.number("SELECT count(*) FROM line WHERE note = 'new'"), 3);
    let mut anna = Replica::synced(database, &plan, "anna");
    anna.assert_equals_fresh(database, &plan);
    // Children go with their parents, and one that leaves a deleted parent survives.
    anna.delete(&plan, "shop", &vec![int(1), text("south"), text("n")]);
    anna.delete(&plan, "orders", &vec![int(1), int(1), text("a")]);
    anna.update(&plan, "orders", vec![int(12), int(2), NULL]);
    anna.delete(&plan, "line", &vec![int(1), int(1), text("x")]);
    assert_eq!(anna.sync(database, &plan).outcomes(), []);
    assert_eq!(database.number("SELECT count(*) FROM orders WHERE id IN (1, 12)"), 1);
    Replica::synced(database, &plan, "anna").assert_equals_fresh(database, &plan);
}

pub(crate) fn leaving_and_joining(database: &Database) {
    let plan = stocked(database);
    let mut ben = Replica::synced(database, &plan, "ben");
    database.application(
        "DELETE FROM member WHERE user_name = 'ben'; INSERT INTO member VALUES ('ben', 'south'); \
         UPDATE shop SET region = 'south' WHERE id = 3; DELETE FROM orders WHERE id = 1",
    );
    ben.sync(database, &plan);
    ben.assert_equals_fresh(database, &plan);
    assert_eq!(ben.table(&plan, "line").len(), 2);
}

/// One transaction writes below a row, the other moves it: whichever comes first.
pub(crate) fn a_child_written_while_its_parent_moves_is_not_missed(database: &Database) {
    let plan = stocked(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    let mut ben = Replica::synced(database, &plan, "ben");
    let writes = ["INSERT INTO orders VALUES (10, 1, 'new')", "INSERT INTO line VALUES (1, 9, 'new')"];
    let moves = ["UPDATE shop SET region = 'south' WHERE id = 1", "UPDATE shop SET region = 'north' WHERE id = 1"];
    for (write, moving) in writes.into_iter().zip(moves) {
        for (first, second) in [(write, moving), (moving, write)] {
            let mut one = database.connect();
            one.batch(&format!("BEGIN; {first}")).expect(first);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| database.application(second));
                // It waits for the first, or is through.
                let waits = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.datname = current_database() WHERE NOT l.granted";
                let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
                while !other.is_finished() && database.number(waits) == 0 {
                    assert!(std::time::Instant::now() < deadline, "{second} neither waits nor ends");
                    std::thread::yield_now();
                }
                one.batch("COMMIT").expect("committed");
            });
            for remote in [&mut anna, &mut ben] {
                remote.sync(database, &plan);
                remote.assert_equals_fresh(database, &plan);
            }
            database.application("DELETE FROM orders WHERE id = 10; DELETE FROM line WHERE no = 9; UPDATE shop SET note = 'x', region = region");
            for remote in [&mut anna, &mut ben] {
                remote.sync(database, &plan);
            }
            database.application(if moving.contains("south") { moves[1] } else { moves[0] });
            for remote in [&mut anna, &mut ben] {
                remote.sync(database, &plan);
                remote.assert_equals_fresh(database, &plan);
            }
        }
    }
}

/// A transaction that can't see what was written since its snapshot has all of it sent again.
pub(crate) fn a_move_that_sees_an_old_snapshot_sends_everything_below(database: &Database) {
    let plan = stocked(database);
    let mut anna = Replica::synced(database, &plan, "anna");
    let mut mover = database.connect();
    mover.batch("BEGIN ISOLATION LEVEL REPEATABLE READ").expect("begun");
    mover.query("SELECT count(*) FROM shop", &[]).expect("a snapshot");
    database.application("INSERT INTO orders VALUES (10, 1, 'new'); INSERT INTO line VALUES (10, 1, 'new')");
    mover.batch("UPDATE shop SET region = 'south' WHERE id = 1; COMMIT").expect("moved");
    anna.sync(database, &plan);
    anna.assert_equals_fresh(database, &plan);
    assert_eq!(anna.table(&plan, "line").len(), 3);
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Whatever is written, by whatever statements and under whatever foreign keys: a remote that has synced all the while holds what one
/// holds that reads everything anew.
pub(crate) fn whatever_is_written_arrives(make: &dyn Fn() -> Database) {
    let seeds = match setting("HEADWATER_KIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("HEADWATER_KIN_SCHEMAS").unwrap_or(4),
    };
    for seed in seeds {
        let mut random = Random::seeded(seed);
        let database = make();
        let deferrable = " ON DELETE NO ACTION DEFERRABLE INITIALLY DEFERRED";
        let actions = [CASCADE, " ON DELETE SET NULL ON UPDATE CASCADE", deferrable, " ON DELETE SET DEFAULT"];
        let action = actions[(seed % 4) as usize];
        let plan = made(&database, action);
        let mut remotes = [Replica::synced(&database, &plan, "anna"), Replica::synced(&database, &plan, "ben")];
        let mut history = Vec::new();
        for step in 0..60 {
            let sql = write(&mut random, database.dialect());
            let mut connection = database.connect();
            let done = connection.batch(&sql);
            if done.is_err() {
                let _ = connection.batch("ROLLBACK");
            }
            history.push(format!("{sql}; -- {}", if done.is_ok() { "done" } else { "refused" }));
            for remote in &mut remotes {
                if random.chance(40) || step == 59 {
                    remote.sync(&database, &plan);
                    let fresh = Replica::synced(&database, &plan, &remote.user);
                    let rows = |replica: &Replica| -> Vec<(&str, Vec<Row>)> {
                        ["shop", "orders", "line", "tag"].map(|table| (table, replica.table(&plan, table))).to_vec()
                    };
                    assert_eq!(
                        rows(remote),
                        rows(&fresh),
                        "{} of seed {seed} with{action}, again with HEADWATER_KIN_SEED={seed}:\n{}",
                        remote.user,
                        history.join("\n")
                    );
                }
            }
        }
    }
}

/// A statement or transaction of the application's; the database may refuse it.
fn write(random: &mut Random, dialect: Dialect) -> String {
    let region = |random: &mut Random| ["'north'", "'south'", "'east'", "NULL"][random.below(4) as usize];
    let (shop, order, other, no, tag) =
        (1 + random.below(4), 1 + random.below(7), 1 + random.below(7), 1 + random.below(3), 1 + random.below(6));
    let (here, there, note) = (region(random), region(random), random.below(100));
    let one = match random.below(22) {
        0..=2 => format!("INSERT INTO shop VALUES ({shop}, {here}, '{note}')"),
        3 | 4 => format!("UPDATE shop SET region = {here} WHERE id = {shop}"),
        5 => format!("UPDATE shop SET region = CASE WHEN id > {shop} THEN {here} ELSE {there} END"),
        6 => format!("UPDATE shop SET id = {}, region = {here} WHERE id = {shop}", 1 + random.below(4)),
        7 => format!("DELETE FROM shop WHERE id = {shop}"),
        8..=10 => format!("INSERT INTO orders VALUES ({order}, {shop}, '{note}'), ({other}, {shop}, '{note}')"),
        11 => format!("UPDATE orders SET shop = {shop} WHERE id IN ({order}, {other})"),
        12 => format!("UPDATE orders SET id = {other}, shop = {shop} WHERE id = {order}"),
        13 => format!("DELETE FROM orders WHERE id IN ({order}, {other})"),
        14 | 15 => format!("INSERT INTO line VALUES ({order}, {no}, '{note}'), ({other}, {no}, '{note}')"),
        16 => format!("UPDATE line SET orders = {order}, note = '{note}' WHERE orders = {other}"),
        17 => format!("INSERT INTO tag VALUES ({tag}, {other}, {order})"),
        18 => format!("UPDATE tag SET second = {order} WHERE id = {tag}"),
        19 => format!(
            "INSERT INTO shop VALUES ({shop}, {here}, '{note}') \
             ON CONFLICT (id) DO UPDATE SET region = excluded.region, note = excluded.note"
        ),
        20 => format!(
            "BEGIN; DELETE FROM shop WHERE id = {shop}; INSERT INTO shop VALUES ({shop}, {here}, '{note}'); \
             UPDATE orders SET shop = {shop} WHERE id = {order}; COMMIT"
        ),
        _ => format!("DELETE FROM line WHERE orders = {order}"),
    };
    match (dialect, random.below(10)) {
        (Dialect::Sqlite, 0) => format!("INSERT OR REPLACE INTO shop VALUES ({shop}, {here}, '{note}')"),
        (Dialect::Sqlite, 1) => format!("INSERT OR REPLACE INTO orders VALUES ({order}, {shop}, '{note}')"),
        (Dialect::Sqlite, 2) => format!("UPDATE OR REPLACE orders SET id = {other} WHERE id = {order}"),
        (Dialect::Sqlite, 3 | 4) => format!("PRAGMA foreign_keys = OFF; {one}"),
        (Dialect::Sqlite, 5) => {
            format!("PRAGMA recursive_triggers = ON; REPLACE INTO shop VALUES ({shop}, {here}, 'r')")
        }
        (Dialect::Postgres, 0) => format!(
            "WITH gone AS (DELETE FROM line WHERE orders = {order}), moved AS (UPDATE shop SET region = {here} WHERE id = {shop}), \
             left_ AS (UPDATE orders SET shop = NULL WHERE id = {other}) DELETE FROM tag WHERE second = {order}"
        ),
        (Dialect::Postgres, 1) => format!(
            "WITH moved AS (UPDATE shop SET region = {here} WHERE id = {shop}), gone AS (DELETE FROM tag WHERE second = {order}) \
             DELETE FROM orders WHERE id = {order}"
        ),
        (Dialect::Postgres, 2) => {
            let table = ["shop", "orders", "line", "tag"][random.below(4) as usize];
            format!("TRUNCATE {table} CASCADE")
        }
        (Dialect::Postgres, 3) => format!(
            "MERGE INTO orders o USING (VALUES ({order}), ({other})) AS v(id) ON o.id = v.id \
             WHEN MATCHED THEN UPDATE SET shop = {shop} WHEN NOT MATCHED THEN INSERT VALUES (v.id, {shop}, 'm')"
        ),
        (Dialect::Postgres, 4 | 5) => format!("SET session_replication_role = replica; {one}"),
        _ => one,
    }
}
