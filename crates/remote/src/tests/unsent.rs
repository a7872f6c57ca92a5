//! Tables that only go up, written while their change tracking was gone.

use headwater_model::{Direction, Model, OnDelete, Reference, Table, TablePartition};
use headwater_protocol::Type;
use headwater_protocol::message::{ConflictEnd, Outcome, Refusal, RefusalCode};

use super::support::{Down, Fixture, NOW, model, row, shop, table};
use crate::stage::Stage;
use crate::upgrade::Change;
use crate::{Choice, PendingChoice, unsent, untracked};

fn visits(direction: Direction) -> Model {
    let mut visit = table("visit", &[("id", Type::Int), ("text", Type::Text)]);
    visit.direction = direction;
    model(vec![table("note", &[("id", Type::Int)]), visit])
}

/// Visits 1 and 2 have gone up, and 3 waits.
fn fixture() -> Fixture {
    let f = Fixture::new(&visits(Direction::Upload));
    f.download(f.down().whole("note", &[]));
    f.sql("INSERT INTO visit VALUES (1, 'a'), (2, 'b')");
    f.upload_all();
    f.sql("INSERT INTO visit VALUES (3, 'c')");
    f
}

fn untracked_write(f: &mut Fixture, sql: &str) {
    for name in f.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'visit'") {
        f.sql(&format!("DROP TRIGGER {name}"));
    }
    f.sql(sql);
    f.reopen();
}

fn list(f: &Fixture) -> u64 {
    unsent::list(&f.remote.database, &f.remote.plan, NOW).expect("listed")
}

fn aside(f: &Fixture) -> Vec<String> {
    let mut list = f.set_aside();
    list.sort();
    list
}

fn out(keys: &[i64]) -> Vec<String> {
    keys.iter().map(|key| format!(r#"visit {{"id":{key}}} untracked out"#)).collect()
}

#[test]
fn what_has_no_pending_change_is_listed_and_stays_as_it_is() {
    let mut f = fixture();
    untracked_write(&mut f, "UPDATE visit SET text = 'A' WHERE id = 1; INSERT INTO visit VALUES (9, 'i')");
    f.sql("UPDATE visit SET text = text WHERE id = 9");
    assert_eq!((list(&f), list(&f)), (3, 0), "3 goes up by itself, and that 9 was written as it was says nothing");
    assert_eq!(aside(&f), out(&[1, 2, 9]));
    let listed = f.remote.set_aside(9).expect("a list");
    assert!(listed.iter().all(|it| it.is_perhaps_unsent && it.old.is_none() && it.new.is_some()), "{listed:?}");
    assert_eq!(f.rows("SELECT * FROM visit"), ["1|A", "2|b", "3|c", "9|i"]);
    assert_eq!(f.cut_changes(), ["visit: - -> 3,c"], "nothing is sent that nobody asked for");
    f.receipt(Vec::new());

    // A row that has gone up and is changed is an update of what has gone up.
    f.sql("UPDATE visit SET text = 'B' WHERE id = 2; UPDATE visit SET text = text WHERE id = 9");
    assert_eq!(f.cut_changes(), ["visit: 2,b -> 2,B"]);
    f.receipt(Vec::new());
    assert_eq!(aside(&f), out(&[1, 9]), "one that was written as it was is listed still");

    assert_eq!(f.remote.retry(&Choice::Table("visit".to_owned())).expect("both").left, [""; 0]);
    assert_eq!(f.cut_changes(), ["visit: - -> 1,A", "visit: - -> 9,i"]);
    f.receipt(Vec::new());
    assert_eq!((aside(&f).len(), f.held(), f.cut()), (0, 0, None));
    f.check();
}

#[test]
fn a_table_made_anew_is_listed() {
    let mut f = fixture();
    f.sql(
        "BEGIN; CREATE TABLE other (id INTEGER PRIMARY KEY, text TEXT); INSERT INTO other SELECT * FROM visit; \
         INSERT INTO other VALUES (9, 'i'); DROP TABLE visit; ALTER TABLE other RENAME TO visit; COMMIT",
    );
    f.reopen();
    assert_eq!(list(&f), 3);
    assert_eq!(aside(&f), out(&[1, 2, 9]));
    assert_eq!(f.cut_changes(), ["visit: - -> 3,c"]);
    f.check();
}

/// The list has a row as it stands, not as it stood when tracking was gone before.
#[test]
fn what_is_written_untracked_again_is_listed_as_it_is_now() {
    let mut f = fixture();
    untracked_write(&mut f, "INSERT INTO visit VALUES (9, 'i')");
    assert_eq!(list(&f), 3);
    untracked_write(&mut f, "UPDATE visit SET text = 'I' WHERE id = 9; DELETE FROM visit WHERE id = 2");
    let left = f.remote.retry(&Choice::All).expect("none can be sent").left;
    assert!(left.len() == 3 && left.iter().all(|why| why.contains("sync first")), "{left:?}");
    assert_eq!(list(&f), 1, "the one that differs from what is listed");
    f.remote.retry(&Choice::Table("visit".to_owned())).expect("all can be sent");
    let sent = ["visit: - -> 1,a", "visit: - -> 2,b", "visit: - -> 3,c", "visit: - -> 9,I"];
    assert_eq!(f.cut_changes(), sent, "that 2 was deleted is not known");
    f.check();
}

#[test]
fn what_is_given_up_stays() {
    let mut f = fixture();
    untracked_write(&mut f, "INSERT INTO visit VALUES (8, 'h'), (9, 'i')");
    list(&f);
    let number = |f: &Fixture, id: i64| {
        let found = f.remote.set_aside(9).expect("a list").into_iter().find(|it| it.key == format!(r#"{{"id":{id}}}"#));
        Choice::Numbers(vec![found.expect("it is listed").number])
    };
    f.remote.drop_set_aside(&number(&f, 1)).expect("off the list");
    f.remote.retry(&number(&f, 2)).expect("pending");
    f.remote.drop_pending(&PendingChoice::Table("visit".to_owned())).expect("given up, and 3 with it");
    f.remote.retry(&number(&f, 9)).expect("pending");
    assert_eq!(f.cut_changes(), ["visit: - -> 9,i"]);
    f.receipt(vec![(0, Outcome::Refused(Refusal { code: RefusalCode::Check, message: String::new() }))]);
    f.remote.drop_set_aside(&number(&f, 9)).expect("given up");
    assert_eq!(f.rows("SELECT * FROM visit"), ["1|a", "2|b", "8|h", "9|i"]);
    assert_eq!((aside(&f), f.cut()), (out(&[8]), None));
    f.check();
}

/// Nothing comes down that would close a conflict, or bring the row that won.
#[test]
fn a_conflict_is_closed_and_leaves_the_row() {
    let mut visit = table("visit", &[("id", Type::Int), ("region", Type::Text)]);
    visit.partition = Some(TablePartition { partition: 0, columns: vec![1], through: None });
    let mut step = table("step", &[("id", Type::Int), ("visit", Type::Int)]);
    step.references = vec![Reference { columns: vec![1], table: 0, target: vec![0], on_delete: OnDelete::NoAction }];
    step.partition = Some(TablePartition { partition: 0, columns: Vec::new(), through: Some(0) });
    let mut shop = shop();
    shop.tables = [visit, step].map(|table| Table { direction: Direction::Upload, ..table }).to_vec();
    let f = Fixture::new(&shop);
    f.sql("INSERT INTO visit VALUES (1, 'a'), (2, 'b'); INSERT INTO step VALUES (10, 1)");
    f.cut();
    f.receipt(vec![
        (0, Outcome::Conflict(ConflictEnd::Consolidated)),
        (1, Outcome::Conflict(ConflictEnd::Remote)),
        (2, Outcome::Conflict(ConflictEnd::Consolidated)),
    ]);
    f.download(f.down());
    assert_eq!(f.rows("SELECT * FROM visit"), ["1|a", "2|b"], "they have gone up, whatever won");
    assert_eq!(f.rows("SELECT * FROM step"), ["10|1"]);
    let known: Vec<_> = f.remote.conflicts(9).expect("a list").into_iter().rev().collect();
    assert!(known.iter().all(|it| !it.is_open), "{known:?}");
    assert_eq!(known.iter().map(|it| it.is_untold).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!((&known[0].result, &known[1].result), (&None, &known[1].ours));
    assert_eq!(f.held(), 0);
    f.check();
}

/// Tracking goes while a sync runs, and the table is in doubt when its download comes.
#[test]
fn no_download_ends_the_doubt() {
    let mut f = fixture();
    f.upload_all();
    untracked_write(&mut f, "INSERT INTO visit VALUES (9, 'i')");
    for is_restart in [false, true] {
        if is_restart {
            f.remote.reset().expect("forgotten");
        }
        f.download(f.down().whole("note", &[]));
        assert!(!untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"), "nothing of it comes");
        assert_eq!(aside(&f), out(&[]));
    }
    assert_eq!(list(&f), 4);
}

/// The table comes down from now on: what comes as it is has gone up, and nothing else goes from the file.
#[test]
fn they_stand_set_aside_where_the_table_comes_down_too() {
    let mut f = fixture();
    f.upload_all();
    untracked_write(&mut f, "UPDATE visit SET text = 'A' WHERE id = 1; INSERT INTO visit VALUES (9, 'i'), (10, 'j')");
    list(&f);
    f.sql("UPDATE visit SET text = 'J' WHERE id = 10");
    let mut change = Change::new(&f.remote.plan, &Model { version: 2, ..visits(Direction::Both) }).expect("it fits");
    let down = Down::new(change.plan.tables.iter().map(|table| table.header.clone()).collect()).holds("note", &[]);
    let mut stage = Stage::default();
    for frame in down.whole("visit", &[]).rows("visit", &["1,a", "2,b", "3,c"].map(row)).finish() {
        stage.push(frame).expect("staged");
    }
    let (database, plan) = (&f.remote.database, &f.remote.plan);
    crate::apply::apply_change(database, plan, &mut change, NOW, &mut stage.frames(), &mut |_| Ok(()))
        .expect("applied");
    f.remote.plan = change.plan;

    let place = |id: i64| format!(r#"visit {{"id":{id}}} untracked in place"#);
    let changed = out(&[10]).concat();
    assert_eq!(
        aside(&f),
        [changed, place(1), place(9)],
        "2 and 3 have come, and what was changed since goes up by itself"
    );
    assert_eq!(f.rows("SELECT * FROM visit"), ["1|A", "2|b", "3|c", "9|i", "10|J"]);
    assert_eq!(f.cut_changes(), ["visit: 10,j -> 10,J"]);
    f.receipt(Vec::new());
    assert_eq!(f.remote.retry(&Choice::All).expect("both").changes, 2);
    assert_eq!(f.cut_changes(), ["visit: - -> 1,A", "visit: - -> 9,i"]);
    f.check();
}
