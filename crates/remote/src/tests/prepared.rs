//! What is done of a download before the write lock: nothing of the result is different, and what is equal is not written.

use headwater_protocol::{Type, Value};

use super::support::{Down, Fixture, NOW, model, query, row, shop, table};
use crate::apply::{Applied, apply, apply_prepared, prepare};
use crate::stage::Stage;

/// Applies a download with what can be prepared of it, `between` its preparation and its lock. Gives also how many rows were written under the lock.
fn download(f: &Fixture, down: Down, between: impl FnOnce(&Fixture)) -> (Applied, u64, bool) {
    let (database, plan) = (&f.remote.database, &f.remote.plan);
    let mut stage = Stage::default();
    for frame in down.finish() {
        if stage.push(frame).expect("staged") {
            stage.spill(database).expect("staged");
        }
    }
    stage.complete(database).expect("staged");
    let prepared = prepare(database, plan, &mut stage.look()).expect("prepared");
    let is_prepared = prepared.is_some();
    between(f);
    let before = database.connection.total_changes();
    let applied = apply_prepared(database, plan, prepared, NOW, &mut stage.frames(), &mut |_| Ok(())).expect("applied");
    (applied, database.connection.total_changes() - before, is_prepared)
}

fn rows_of(first: i64, last: i64, body: &str) -> Vec<Vec<Value>> {
    (first..=last).map(|id| row(&format!("{id},t,{body}"))).collect()
}

fn docs(rows: i64) -> Fixture {
    let doc = table("doc", &[("id", Type::Int), ("title", Type::Text), ("body", Type::Text)]);
    let f = Fixture::new(&model(vec![doc]));
    f.sql("CREATE INDEX own ON doc (body)");
    f.download(f.down().whole("doc", &[]).rows("doc", &rows_of(1, rows, "b")));
    f
}

#[test]
fn rows_that_are_equal_are_not_written() {
    let f = docs(4_000);
    let mut rows = rows_of(1, 3_800, "b");
    rows.extend(rows_of(3_801, 4_000, "new"));
    rows.reverse();
    let (applied, written, is_prepared) = download(&f, f.down().whole("doc", &[]).rows("doc", &rows), |_| {});
    assert!(is_prepared && written < 500, "{written} of 4,000 rows were written");
    assert_eq!((applied.rows, applied.afresh), (4_000, 1));
    assert_eq!(f.rows("SELECT body, count(*) FROM doc GROUP BY body"), ["b|3800", "new|200"]);
    // What does not come goes.
    let (_, written, _) = download(&f, f.down().whole("doc", &[]).rows("doc", &rows_of(1, 3_000, "b")), |_| {});
    assert!((1_000..1_100).contains(&written), "{written} rows were written");
    assert_eq!(f.rows("SELECT count(*) FROM doc"), ["3000"]);
    f.check();
}

/// With a busy timeout and BEGIN IMMEDIATE, as the docs say.
#[test]
fn an_application_that_writes_meanwhile_has_no_error() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let f = docs(5_000);
    let (path, is_done) = (f.remote.path().to_owned(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let application = rusqlite::Connection::open(&path)?;
            application.busy_timeout(std::time::Duration::from_secs(5))?;
            let mut written = 0;
            while !is_done.load(Ordering::Relaxed) {
                application.execute_batch(
                    "BEGIN IMMEDIATE; SELECT count(*) FROM doc WHERE id < 100; UPDATE doc SET title = 'mine' WHERE id = 7; COMMIT",
                )?;
                written += 1;
            }
            Ok::<u32, rusqlite::Error>(written)
        });
        for turn in 0..20 {
            let down = if turn % 2 == 0 { f.down().whole("doc", &[]) } else { f.down().holds("doc", &[]) };
            download(&f, down.rows("doc", &rows_of(1, 5_000, &format!("turn {turn}"))), |_| {});
        }
        is_done.store(true, Ordering::Relaxed);
        let written = writer.join().expect("the writer ends").expect("no error");
        assert!(written > 20, "only {written} transactions");
    });
    assert_eq!(f.rows("SELECT DISTINCT body FROM doc WHERE id <> 7"), ["turn 19"]);
    assert_eq!(f.rows("SELECT title FROM doc WHERE id = 7"), ["mine"]);
}

/// On a table with two further indexes, in random order. `HEADWATER_LOCK_ROWS=60000` with `--nocapture` shows how long the lock is held.
#[test]
fn the_lock_is_held_for_what_must_be_written() {
    let count = std::env::var("HEADWATER_LOCK_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(2_000);
    let f = docs(count);
    f.sql("CREATE INDEX other ON doc (title, body)");
    let mut mixed = rows_of(1, count, "x");
    for place in 0..mixed.len() {
        mixed.swap(place, (place * 7_919) % count as usize);
    }
    let half = |body: &str| {
        let mut rows = mixed.clone();
        for row in &mut rows {
            row[2] = Value::text(body);
        }
        rows
    };
    for turn in 0..3 {
        let body = format!("turn {turn}");
        for is_prepared in [false, true] {
            let body = format!("{body} {is_prepared}");
            let down = f.down().holds("doc", &[]).rows("doc", &half(&body));
            eprintln!("all changed, prepared {is_prepared}: {:?}", locked(&f, down, is_prepared));
            let mut rows = half(&body);
            rows.iter_mut()
                .filter(|row| matches!(row[0], Value::Int(id) if id % 20 == 0))
                .for_each(|row| row[2] = Value::text("y"));
            let down = f.down().whole("doc", &[]).rows("doc", &rows);
            eprintln!("95 % equal, prepared {is_prepared}: {:?}", locked(&f, down, is_prepared));
            let changed = f.rows("SELECT count(*) FROM doc WHERE body = 'y'");
            assert_eq!(changed, [(count / 20).to_string()]);
        }
    }
}

/// How long a download's transaction takes.
fn locked(f: &Fixture, down: Down, is_prepared: bool) -> std::time::Duration {
    let (database, plan) = (&f.remote.database, &f.remote.plan);
    let mut stage = Stage::default();
    for frame in down.finish() {
        if stage.push(frame).expect("staged") {
            stage.spill(database).expect("staged");
        }
    }
    stage.complete(database).expect("staged");
    let prepared = if is_prepared { prepare(database, plan, &mut stage.look()).expect("prepared") } else { None };
    let began = std::time::Instant::now();
    apply_prepared(database, plan, prepared, NOW, &mut stage.frames(), &mut |_| Ok(())).expect("applied");
    began.elapsed()
}

/// Another program writes once the download is prepared: each kind of row, in each way.
#[test]
fn what_is_written_meanwhile_is_judged_with_the_lock() {
    let f = docs(6);
    let down = |f: &Fixture| {
        let rows = ["1,t,b", "2,t,b", "3,t,new", "4,t,new", "7,t,b"].map(row);
        f.down().whole("doc", &[]).rows("doc", &rows)
    };
    let (_, _, is_prepared) = download(&f, down(&f), |f| {
        f.sql(
            "UPDATE doc SET title = 'mine' WHERE id IN (1, 3); DELETE FROM doc WHERE id IN (2, 4); \
             UPDATE doc SET title = 'mine' WHERE id = 5; INSERT INTO doc VALUES (7, 'mine', 'b'), (8, 'mine', 'b')",
        );
    });
    assert!(is_prepared);
    assert_eq!(f.rows("SELECT * FROM doc"), ["1|mine|b", "3|mine|b", "5|mine|b", "7|mine|b", "8|mine|b"]);
    let changes = [
        "doc: 1,t,b -> 1,mine,b",
        "doc: 2,t,b -> -",
        "doc: 3,t,b -> 3,mine,b",
        "doc: 4,t,b -> -",
        "doc: 5,t,b -> 5,mine,b",
        "doc: - -> 7,mine,b",
        "doc: - -> 8,mine,b",
    ];
    assert_eq!(
        f.rows("SELECT hex(\"key\"), \"image\" IS NULL FROM hw_held ORDER BY 1").len(),
        4,
        "3, 4 and 7 came, 5 is gone"
    );
    assert_eq!(f.cut_changes(), changes);
    f.check();
}

/// A table made anew, or a trigger that is dropped, leaves no trace in the log.
#[test]
fn where_the_schema_has_changed_nothing_of_it_is_used() {
    let f = docs(100);
    let (_, written, is_prepared) = download(&f, f.down().whole("doc", &[]).rows("doc", &rows_of(1, 100, "b")), |f| {
        f.sql("CREATE TABLE other (id INTEGER)");
    });
    assert!(is_prepared && written >= 200, "{written}: all rows go, and come again");
    assert_eq!(f.rows("SELECT count(*) FROM doc"), ["100"]);
}

/// Deletions come before rows: the row that is to be stored anew is gone by then.
#[test]
fn a_row_that_is_deleted_first_is_stored_again() {
    for of_it_all in [false, true] {
        let f = docs(6);
        let rows = if of_it_all { rows_of(1, 6, "b") } else { rows_of(3, 4, "b") };
        let down = if of_it_all { f.down().whole("doc", &[]) } else { f.down().holds("doc", &[]) };
        let down = down.delete("doc", &["3", "5"].map(row)).rows("doc", &rows);
        let (applied, _, is_prepared) = download(&f, down, |f| f.sql("UPDATE doc SET title = title WHERE id = 4"));
        assert!(is_prepared);
        assert_eq!((applied.rows, applied.deletions), (rows.len() as u64, 2));
        let expected = if of_it_all { "1,2,3,4,5,6" } else { "1,2,3,4,6" };
        assert_eq!(f.rows("SELECT group_concat(id) FROM doc"), [expected]);
        f.check();
    }
}

/// More than a batch of rows have a change in the log, and the first takes a unique value from the last, whose change is set aside.
#[test]
fn a_row_whose_change_is_set_aside_by_another_is_stored_all_the_same() {
    let f = Fixture::new(&shop());
    let north = [Value::text("north")];
    let items = |first: &str, price: u32| -> Vec<_> {
        let name = |id: u32| if id == 1 { first.to_owned() } else { format!("n{id}") };
        (1..=600).map(|id| row(&format!("{id},north,{},${price}", name(id)))).collect()
    };
    f.download(f.down().whole("item", &north).rows("item", &items("n1", 1)));
    f.sql("UPDATE item SET price = price; UPDATE item SET name = 'a' WHERE id = 600");
    let (_, _, is_prepared) = download(&f, f.down().holds("item", &north).rows("item", &items("a", 2)), |_| {});
    assert!(is_prepared);
    assert_eq!(f.rows("SELECT price, count(*) FROM item GROUP BY price"), ["2|600"]);
    assert_eq!(f.rows("SELECT name FROM item WHERE id IN (1, 600)"), ["a", "n600"]);
    assert_eq!(f.set_aside().len(), 1);
    f.check();
}

/// The application moves a row into a partition that is left, and the one that it lay in comes whole, with the row as it was.
#[test]
fn a_row_that_steps_aside_and_came_as_it_was_stays() {
    let f = Fixture::new(&shop());
    let (north, south) = ([Value::text("north")], [Value::text("south")]);
    let items = ["1,south,n1,$1", "2,south,n2,$1"].map(row);
    let down = f.down().whole("item", &north).rows("item", &[row("3,north,n3,$1")]);
    f.download(down.whole("item", &south).rows("item", &items));
    let down = f.down().left("item", &north).whole("item", &south).rows("item", &items);
    let (_, _, is_prepared) = download(&f, down, |f| f.sql("UPDATE item SET region = 'north' WHERE id = 1"));
    assert!(is_prepared);
    assert_eq!(f.rows("SELECT * FROM item"), ["1|south|n1|1", "2|south|n2|1"]);
    assert_eq!((f.set_aside().len(), f.held()), (1, 0));
    f.check();
}

/// The application makes a trigger just before the comparison begins.
#[test]
fn a_trigger_that_is_made_just_before_is_seen() {
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};

    let mut f = docs(6);
    let path = f.remote.path().to_owned();
    let mut is_made = false;
    let make = move |context: AuthContext<'_>| {
        if matches!(context.action, AuthAction::Transaction { operation: TransactionOperation::Begin }) && !is_made {
            is_made = true;
            let application = rusqlite::Connection::open(&path).expect("opened");
            let trigger = "CREATE TRIGGER own AFTER UPDATE ON doc BEGIN SELECT 1; END";
            application.execute_batch(trigger).expect("a trigger");
        }
        Authorization::Allow
    };
    f.remote.database.connection.authorizer(Some(make)).expect("watched");
    let (_, _, is_prepared) = download(&f, f.down().holds("doc", &[]).rows("doc", &rows_of(1, 6, "new")), |_| {});
    assert_eq!(f.rows("SELECT count(*) FROM sqlite_schema WHERE name = 'own' AND type = 'trigger'"), ["1"]);
    assert!(!is_prepared, "with a trigger of the application's nothing is prepared");
    assert_eq!(f.rows("SELECT DISTINCT body FROM doc"), ["new"]);
}

/// The application makes its trigger while the download waits for the lock.
#[test]
fn a_trigger_that_is_made_while_the_lock_is_waited_for_fires() {
    for has_pending in [false, true] {
        let f = docs(10);
        if has_pending {
            f.sql("UPDATE doc SET title = 'mine' WHERE id = 7");
        }
        f.sql("CREATE TABLE seen (id INTEGER)");
        let path = f.remote.path().to_owned();
        let (holds, held) = std::sync::mpsc::channel();
        let application = std::thread::spawn(move || {
            let application = rusqlite::Connection::open(path).expect("opened");
            let begin =
                "BEGIN IMMEDIATE; CREATE TRIGGER sees AFTER INSERT ON doc BEGIN INSERT INTO seen VALUES (new.id); END";
            application.execute_batch(begin).expect("begun");
            holds.send(()).expect("somebody waits");
            std::thread::sleep(std::time::Duration::from_millis(300));
            application.execute_batch("COMMIT").expect("committed");
        });
        held.recv().expect("the lock is held");
        download(&f, f.down().holds("doc", &[]).rows("doc", &rows_of(11, 13, "b")), |_| {});
        application.join().expect("committed");
        assert_eq!(f.rows("SELECT id FROM seen"), ["11", "12", "13"], "{has_pending}");
    }
}

/// Everything that a file says, but for numbers and times.
fn everything(f: &Fixture) -> Vec<Vec<String>> {
    let all = [
        "SELECT * FROM item ORDER BY id",
        "SELECT * FROM part ORDER BY id",
        "SELECT * FROM kind ORDER BY id",
        "SELECT * FROM hw_held ORDER BY 1, 2",
        "SELECT \"table\", \"key\", code, in_place, old, new FROM hw_set_aside ORDER BY 1, 2, 3, 4, 5, 6",
    ];
    // (The log may have a row that was written as it was: nobody's change.)
    all.iter().map(|sql| query(&f.application, sql)).chain([f.pending()]).collect()
}

/// Random numbers, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn edits(&mut self) -> String {
        let mut sql = String::new();
        for _ in 0..self.below(5) {
            let (id, name) = (1 + self.below(12), self.below(20));
            let statement = match self.below(6) {
                0 => format!("UPDATE OR IGNORE item SET name = 'n{name}' WHERE id = {id};"),
                1 => format!("DELETE FROM item WHERE id = {id};"),
                2 => format!("INSERT OR IGNORE INTO item VALUES ({id}, 'north', 'n{name}', '1');"),
                3 => format!("UPDATE part SET no = {name} WHERE id = {id};"),
                4 => format!("UPDATE kind SET name = 'k{name}' WHERE id = {id};"),
                _ => format!("DELETE FROM part WHERE id = {id};"),
            };
            sql.push_str(&statement);
        }
        sql
    }

    /// A state of the consolidated database: items of the north, kinds, and parts of kinds that there are.
    fn state(&mut self) -> [Vec<String>; 3] {
        let mut names: Vec<u64> = (0..12).collect();
        for place in (1..names.len()).rev() {
            names.swap(place, self.below(place as u64 + 1) as usize);
        }
        let items =
            (1..=12).filter(|_| self.below(4) > 0).map(|id| format!("{id},north,n{},$1", names[id - 1])).collect();
        let kinds: Vec<usize> = (1..=8).filter(|_| self.below(4) > 0).collect();
        let parts = (1..=12).filter(|_| !kinds.is_empty() && self.below(4) > 0);
        let parts: Vec<usize> = parts.collect();
        let parts = parts.into_iter().map(|id| format!("{id},{},{}", kinds[id % kinds.len()], self.below(3))).collect();
        [items, kinds.iter().map(|id| format!("{id},k")).collect(), parts]
    }

    fn down(&mut self, f: &Fixture, before: Option<&[Vec<String>; 3]>, state: &[Vec<String>; 3]) -> Down {
        let mut down = f.down();
        let north = [Value::text("north")];
        for (place, name) in ["item", "kind", "part"].into_iter().enumerate() {
            let partition = if place == 0 { &north[..] } else { &[] };
            let is_delta = before.is_some() && self.below(2) == 0;
            let mut rows: Vec<_> = state[place]
                .iter()
                .filter(|text| !is_delta || before.is_some_and(|before| !before[place].contains(text)))
                .collect();
            if self.below(2) == 0 {
                rows.reverse();
            }
            down = if is_delta { down.holds(name, partition) } else { down.whole(name, partition) };
            if is_delta && let Some(before) = before {
                let id = |text: &String| text.split(',').next().map(str::to_owned);
                let is_gone = |text: &&String| !state[place].iter().any(|now| id(now) == id(text));
                let gone: Vec<_> = before[place].iter().filter(is_gone).filter_map(id).map(|id| row(&id)).collect();
                down = down.delete(name, &gone);
            }
            let rows: Vec<_> = rows.into_iter().map(|text| row(text)).collect();
            for some in rows.chunks(5) {
                down = down.rows(name, some);
            }
        }
        down
    }
}

/// The same downloads, edits before them and edits in between: prepared or not, the file says the same.
#[test]
fn prepared_or_not_the_file_is_the_same() {
    let mut prepared = 0;
    for seed in 0..60 {
        let files = [Fixture::new(&shop()), Fixture::new(&shop())];
        let mut before: Option<[Vec<String>; 3]> = None;
        let mut dice = Dice(seed);
        for _ in 0..4 {
            let state = dice.state();
            let (edits, between, at) = (dice.edits(), dice.edits(), dice.0);
            for f in &files {
                f.sql(&edits);
            }
            let mut down = |f: &Fixture| {
                dice.0 = at;
                dice.down(f, before.as_ref(), &state)
            };
            let first = down(&files[0]);
            prepared += u32::from(download(&files[0], first, |f| f.sql(&between)).2);
            let second = down(&files[1]);
            files[1].sql(&between);
            let mut frames = second.finish().into_iter();
            let (database, plan) = (&files[1].remote.database, &files[1].remote.plan);
            apply(database, plan, NOW, &mut |_| Ok(frames.next()), &mut |_| Ok(())).expect("applied");
            let [one, other] = [everything(&files[0]), everything(&files[1])];
            assert_eq!(one, other, "seed {seed}");
            files[0].check();
            before = Some(state);
        }
    }
    assert!(prepared > 100, "only {prepared} were prepared");
}
