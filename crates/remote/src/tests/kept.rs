//! What goes from here, or is given up, takes nothing along that is only here, and is no change of anybody's.

use headwater_model::{Direction, OnDelete, Reference};
use headwater_protocol::message::{Outcome, Refusal, RefusalCode};
use headwater_protocol::{Type, Value};

use super::support::{Fixture, model, row, table};
use crate::{Choice, Error, PendingChoice, untracked};

/// Shop 1 has come down, and is referred to by these visits.
fn visited(direction: Direction) -> Fixture {
    let mut visit = table("visit", &[("id", Type::Int), ("shop", Type::Int), ("text", Type::Text)]);
    visit.direction = direction;
    visit.references = vec![Reference { columns: vec![1], table: 0, target: vec![0], on_delete: OnDelete::NoAction }];
    let f = Fixture::new(&model(vec![table("shop", &[("id", Type::Int), ("name", Type::Text)]), visit]));
    f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a")]));
    f
}

/// Sends what waits; the first change of it is refused.
fn refuse(f: &Fixture, code: RefusalCode) {
    f.cut();
    f.receipt(vec![(0, Outcome::Refused(Refusal { code, message: "no".to_owned() }))]);
}

/// The shop's change is refused, and then the shop is deleted.
fn only_the_change_is_left(f: &Fixture) {
    f.sql("UPDATE shop SET name = 'A' WHERE id = 1");
    refuse(f, RefusalCode::Check);
    f.download(f.down().delete("shop", &[row("1")]));
}

fn drop_tracking(f: &Fixture, table: &str) {
    let names =
        format!("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}' AND name LIKE 'hw%'");
    for name in f.rows(&names) {
        f.sql(&format!("DROP TRIGGER {name}"));
    }
}

/// What was written to shop 1 without tracking gives way to this name, and only the list has it.
fn lose_to(f: &mut Fixture, name: &str) {
    let came = [row(&format!("1,{name}"))];
    drop_tracking(f, "shop");
    f.sql("UPDATE shop SET name = 'mine'");
    f.reopen();
    f.download(f.down().rows("shop", &came));
    assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
    f.download(f.down().whole("shop", &[]).rows("shop", &came));
    f.download(f.down().holds("shop", &[]));
    assert_eq!(f.set_aside(), [r#"shop {"id":1} untracked out"#]);
}

/// An application writes a row as it was. Such a row goes like any other: its entry in the log does not say that it was deleted here.
#[test]
fn a_row_that_was_written_as_it_was_is_not_taken_for_deleted() {
    for direction in [Direction::Upload, Direction::Both] {
        let f = visited(direction);
        f.sql("INSERT INTO visit VALUES (5, 1, 'x')");
        f.upload_all();
        f.sql("UPDATE visit SET text = text");
        f.download(f.down().delete("shop", &[row("1")]));
        assert_eq!(f.rows("SELECT * FROM visit"), [""; 0]);
        assert_eq!(f.held(), u64::from(direction == Direction::Both));
        assert_eq!(f.cut_changes(), [""; 0], "{direction:?}");
        f.check();
    }
}

#[test]
fn nor_is_one_that_goes_with_what_is_dropped() {
    let mut f = visited(Direction::Upload);
    f.sql("INSERT INTO visit VALUES (5, 1, 'x')");
    f.upload_all();
    only_the_change_is_left(&f);
    f.sql("UPDATE visit SET text = text");
    assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("dropped"), 1);
    assert_eq!(f.rows("SELECT id FROM shop UNION ALL SELECT id FROM visit"), [""; 0]);
    assert_eq!(f.cut_changes(), [""; 0]);
    f.check();
}

/// An index of the application's own lets only one of two rows in.
#[test]
fn nor_is_one_that_steps_aside() {
    let mut f = visited(Direction::Upload);
    f.sql("CREATE UNIQUE INDEX own ON shop (name)");
    f.reopen();
    f.sql("UPDATE shop SET name = name");
    f.download(f.down().rows("shop", &[row("2,a")]));
    assert_eq!((f.rows("SELECT id FROM shop"), f.held()), (vec!["2".to_owned()], 1));
    assert_eq!(f.cut_changes(), [""; 0]);
    f.check();
}

/// Nobody has listed it yet, so it is listed before it goes.
#[test]
fn what_was_written_untracked_is_listed_before_what_it_refers_to_is_dropped() {
    for is_refused in [true, false] {
        let mut f = visited(Direction::Upload);
        f.sql("INSERT INTO shop VALUES (2, 'b')");
        if is_refused {
            refuse(&f, RefusalCode::Check);
        }
        drop_tracking(&f, "visit");
        f.sql("INSERT INTO visit VALUES (5, 2, 'untracked')");
        let dropped =
            if is_refused { f.remote.drop_set_aside(&Choice::All) } else { f.remote.drop_pending(&PendingChoice::All) };
        assert_eq!(dropped.expect("dropped"), 1);
        assert_eq!(f.rows("SELECT id FROM visit"), [""; 0]);
        assert_eq!(f.set_aside(), [r#"visit {"id":5} untracked out"#], "{is_refused}");
        f.check();
    }
}

/// Nobody knows yet whether it has gone up: refused, it would be on the list without its row.
#[test]
fn what_is_on_its_way_does_not_go_with_what_is_dropped() {
    let mut f = visited(Direction::Upload);
    only_the_change_is_left(&f);
    f.sql("INSERT INTO visit VALUES (5, 1, 'x')");
    f.cut();
    match f.remote.drop_set_aside(&Choice::All) {
        Err(Error::Configuration { what }) => assert!(what.contains("not known yet: sync first"), "{what}"),
        other => panic!("{other:?}"),
    }
    refuse(&f, RefusalCode::ForeignKey);
    assert_eq!(f.rows("SELECT * FROM visit"), ["5|1|x"]);
    assert_eq!(f.set_aside(), [r#"visit {"id":5} foreign_key in place"#, r#"shop {"id":1} check in place"#]);
    assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("dropped"), 2);
    f.check();
}

/// The shop has not left: it is held beside another that has its name here.
#[test]
fn what_has_gone_up_waits_for_what_is_only_held() {
    let mut f = visited(Direction::Upload);
    f.sql("INSERT INTO visit VALUES (5, 1, 'x')");
    f.upload_all();
    f.sql("CREATE UNIQUE INDEX own ON shop (name)");
    f.reopen();
    f.download(f.down().rows("shop", &[row("2,a")]));
    assert_eq!((f.rows("SELECT id FROM visit"), f.held()), (vec![], 2));
    f.download(f.down().rows("shop", &[row("2,b")]));
    assert_eq!((f.rows("SELECT * FROM visit"), f.held()), (vec!["5|1|x".to_owned()], 0));
    f.check();
}

/// Visits refer to visits too: none waits for one that has gone.
#[test]
fn what_has_gone_up_goes_with_its_own_kind() {
    let columns = [("id", Type::Int), ("shop", Type::Int), ("after", Type::Int)];
    let mut visit = table("visit", &columns);
    visit.direction = Direction::Upload;
    let refers =
        |place, table| Reference { columns: vec![place], table, target: vec![0], on_delete: OnDelete::NoAction };
    visit.references = vec![refers(1, 0), refers(2, 1)];
    let f = Fixture::new(&model(vec![table("shop", &[("id", Type::Int), ("name", Type::Text)]), visit]));
    f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a")]));
    f.sql("INSERT INTO visit VALUES (9, 1, NULL), (8, NULL, 9), (7, NULL, 8), (6, NULL, NULL)");
    f.upload_all();
    f.download(f.down().delete("shop", &[row("1")]));
    assert_eq!((f.rows("SELECT id FROM visit"), f.held()), (vec!["6".to_owned()], 0));
    f.check();
}

/// A shop was written without tracking, has been compared, and is mended before what others changed meanwhile has come.
#[test]
fn what_is_mended_while_its_table_is_in_doubt_is_not_dropped() {
    let mut f = visited(Direction::Upload);
    drop_tracking(&f, "shop");
    f.sql("UPDATE shop SET name = 'untracked'");
    f.reopen();
    f.download(f.down().holds("shop", &[]));
    assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
    f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a")]));
    f.sql("UPDATE shop SET name = 'mended'");
    let number = f.remote.set_aside(1).expect("a list")[0].number;
    match f.remote.drop_set_aside(&Choice::Numbers(vec![number])) {
        Err(Error::Configuration { what }) => assert!(what.contains("not known yet: sync first"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("none of them"), 0);
    assert_eq!(f.rows("SELECT * FROM shop"), ["1|mended"]);
    f.download(f.down().holds("shop", &[]));
    assert_eq!(f.cut_changes(), ["shop: 1,a -> 1,mended"], "it counts as pending now");
    f.check();
}

/// A trigger of the application's has kept the newest row out. It comes when the retried change is given up, not the one that stood here.
#[test]
fn retry_keeps_the_newest_row() {
    let mut f = visited(Direction::Upload);
    lose_to(&mut f, "theirs");
    f.sql("CREATE TRIGGER app BEFORE UPDATE ON shop WHEN NEW.name = 'newest' BEGIN SELECT RAISE(ABORT, 'no'); END");
    f.download(f.down().rows("shop", &[row("1,newest")]));
    assert_eq!((f.rows("SELECT * FROM shop"), f.held()), (vec!["1|theirs".to_owned()], 1));
    assert_eq!(f.remote.retry(&Choice::All).expect("retried").changes, 1);
    f.sql("DROP TRIGGER app");
    f.remote.drop_pending(&PendingChoice::All).expect("given up");
    assert_eq!((f.rows("SELECT * FROM shop"), f.held()), (vec!["1|newest".to_owned()], 0));
    f.check();
}

/// Visits refer to shops by name. The name that stood here would be gone with the retried change.
#[test]
fn retry_takes_along_nothing() {
    let mut visit = table("visit", &[("id", Type::Int), ("shop", Type::Text)]);
    visit.direction = Direction::Upload;
    visit.references = vec![Reference { columns: vec![1], table: 0, target: vec![1], on_delete: OnDelete::NoAction }];
    let mut shop = table("shop", &[("id", Type::Int), ("name", Type::Text)]);
    shop.unique = vec![vec![1]];
    let mut f = Fixture::new(&model(vec![shop, visit]));
    f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a")]));
    lose_to(&mut f, "theirs");
    f.sql("INSERT INTO visit VALUES (5, 'theirs')");
    f.upload_all();
    let retried = f.remote.retry(&Choice::All).expect("as far as can be");
    assert_eq!(retried.changes, 0);
    assert!(retried.left[0].contains("a row of table \"visit\" refers to its row"), "{:?}", retried.left);
    match f.remote.retry(&Choice::Numbers(vec![f.remote.set_aside(9).expect("a list")[0].number])) {
        Err(Error::Configuration { what }) => assert!(what.contains("refers to its row"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!((f.rows("SELECT id FROM visit"), f.set_aside().len()), (vec!["5".to_owned()], 1));
    f.check();
}

/// What an application writes while the table is on its way, to be compared, and what comes is the same: the row was not deleted here.
#[test]
fn what_comes_as_it_was_written_is_not_taken_for_deleted() {
    let same = "UPDATE shop SET name = name; UPDATE shop SET name = 'b' WHERE id = 1; INSERT INTO shop VALUES (9, 'i')";
    for writes in [same.to_owned(), format!("UPDATE shop SET name = 'x' WHERE id = 1; {same}")] {
        let mut f = visited(Direction::Upload);
        f.download(f.down().rows("shop", &[row("2,z")]));
        drop_tracking(&f, "shop");
        f.sql("INSERT INTO shop VALUES (3, 'untracked')");
        f.reopen();
        f.download(f.down().holds("shop", &[]));
        assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
        f.sql(&writes);
        f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,b"), row("2,z"), row("9,i")]));
        assert_eq!(f.rows("SELECT * FROM shop"), ["1|b", "2|z", "3|untracked", "9|i"], "{writes}");
        f.check();
    }
}

/// What was written without tracking, and then with it as it stood, has an entry in the log by which nothing has changed.
#[test]
fn what_was_written_untracked_and_then_as_it_was_is_listed() {
    for comes_first in [true, false] {
        let mut f = visited(Direction::Upload);
        drop_tracking(&f, "shop");
        f.sql("UPDATE shop SET name = 'untracked'; INSERT INTO shop VALUES (9, 'made here')");
        f.reopen();
        let touch = "UPDATE shop SET name = name";
        if comes_first {
            f.sql(touch);
            f.download(f.down().rows("shop", &[row("1,theirs")]));
            assert_eq!(f.set_aside(), [r#"shop {"id":1} untracked out"#]);
            continue;
        }
        f.download(f.down().holds("shop", &[]));
        assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
        f.sql(touch);
        f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a")]));
        let mut listed = f.set_aside();
        listed.sort();
        assert_eq!(listed, [r#"shop {"id":1} untracked in place"#, r#"shop {"id":9} untracked in place"#]);
        assert_eq!(f.rows("SELECT * FROM shop"), ["1|untracked", "9|made here"]);
        f.check();
    }
}

/// A change of the same row is on its way, and refused after all: what stood there meanwhile never was the consolidated row.
#[test]
fn retry_waits_for_what_is_on_its_way() {
    let mut f = visited(Direction::Upload);
    lose_to(&mut f, "theirs");
    f.sql("UPDATE shop SET name = 'on its way'");
    f.cut();
    let number = f.remote.set_aside(1).expect("a list")[0].number;
    match f.remote.retry(&Choice::Numbers(vec![number])) {
        Err(Error::Configuration { what }) => assert!(what.ends_with("is not known: sync first"), "{what}"),
        other => panic!("{other:?}"),
    }
    let retried = f.remote.retry(&Choice::All).expect("none of them");
    assert_eq!((retried.changes, retried.left.len()), (0, 1));
    refuse(&f, RefusalCode::Check);
    assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("dropped"), 2);
    assert_eq!((f.rows("SELECT * FROM shop"), f.held()), (vec!["1|theirs".to_owned()], 0));
    f.check();
}

/// The same where its entry in the log is that of a change that was refused, and taken back.
#[test]
fn nor_is_it_lost_for_what_was_refused_and_taken_back() {
    for comes_first in [true, false] {
        let mut f = visited(Direction::Upload);
        drop_tracking(&f, "shop");
        f.sql("UPDATE shop SET name = 'untracked'");
        f.reopen();
        f.sql("UPDATE shop SET name = 'refused'");
        refuse(&f, RefusalCode::Check);
        let take_back = "UPDATE shop SET name = 'untracked'";
        if comes_first {
            f.sql(take_back);
            f.download(f.down().rows("shop", &[row("1,theirs")]));
            assert_eq!(f.set_aside(), [r#"shop {"id":1} untracked out"#]);
            continue;
        }
        f.download(f.down().holds("shop", &[]));
        assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
        f.sql(take_back);
        f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a")]));
        assert_eq!(f.set_aside(), [r#"shop {"id":1} untracked in place"#]);
        assert_eq!(f.rows("SELECT * FROM shop"), ["1|untracked"]);
        f.check();
    }
}

/// What it refers to comes with the fresh start, and is only held; then it goes. Whether this row has gone up there nobody ever learns.
#[test]
fn what_a_fresh_start_takes_along_is_listed_though_it_may_come_back() {
    let mut f = visited(Direction::Upload);
    f.sql("INSERT INTO visit VALUES (5, 1, 'x')");
    f.upload_all();
    f.sql("CREATE UNIQUE INDEX own ON shop (name)");
    f.reopen();
    f.remote.reset().expect("reset");
    f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a"), row("2,a")]));
    assert_eq!(f.rows("SELECT id FROM shop UNION ALL SELECT id FROM visit"), ["2"]);
    f.download(f.down().delete("shop", &[row("1")]));
    assert_eq!((f.set_aside(), f.held()), (vec![r#"visit {"id":5} foreign_key out"#.to_owned()], 0));
    f.check();
}

/// An upload that had a receipt is lost, and a later change of its row had been refused. Dropped, that would take the lost one along.
#[test]
fn what_is_lost_below_a_refused_change_is_listed() {
    let mut f = visited(Direction::Upload);
    f.sql("UPDATE shop SET name = 'b'");
    f.upload_all();
    f.sql("UPDATE shop SET name = 'c'");
    refuse(&f, RefusalCode::Check);
    assert_eq!(f.rewind(0), 1);
    assert_eq!(f.set_aside(), [r#"shop {"id":1} lost out"#, r#"shop {"id":1} check in place"#]);
    let refused = f.remote.set_aside(2).expect("a list").pop().expect("a change");
    assert_eq!(refused.old.as_deref(), Some(r#"{"id":1,"name":"a"}"#), "what a drop brings back");
    f.remote.drop_set_aside(&Choice::Numbers(vec![refused.number])).expect("dropped");
    assert_eq!(f.rows("SELECT name FROM shop"), ["a"]);
    assert_eq!(f.remote.retry(&Choice::All).expect("made again").changes, 1);
    assert_eq!(f.cut_changes(), ["shop: 1,a -> 1,b"], "what was acknowledged can be made again");
    f.check();
}

/// The later change took the lost one back: the row is as the database has it again, and only the lost one is on the list.
#[test]
fn a_refused_change_that_undid_what_is_lost_is_none() {
    let mut f = visited(Direction::Upload);
    f.sql("UPDATE shop SET name = 'b'");
    f.upload_all();
    f.sql("UPDATE shop SET name = 'a'");
    refuse(&f, RefusalCode::Check);
    assert_eq!(f.rewind(0), 1);
    assert_eq!(f.set_aside(), [r#"shop {"id":1} lost out"#]);
    assert_eq!(f.cut(), None, "nothing has changed");
    assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("dropped"), 1);
    assert_eq!(f.rows("SELECT name FROM shop"), ["a"]);
    f.check();
}

/// Deleted here without tracking, as the comparison of the table found. Then the remote starts afresh, before the third download.
#[test]
fn a_listed_deletion_outlives_a_fresh_start() {
    for direction in [Direction::Both, Direction::Upload] {
        let mut f = visited(direction);
        drop_tracking(&f, "shop");
        f.sql("DELETE FROM shop");
        f.reopen();
        f.download(f.down().holds("shop", &[]));
        assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
        f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a")]));
        assert_eq!(f.set_aside(), [r#"shop {"id":1} untracked in place"#]);
        f.remote.reset().expect("reset");
        f.download(f.down().whole("shop", &[]).rows("shop", &[row("1,a")]));
        assert_eq!(f.rows("SELECT * FROM shop"), ["1|a"]);
        assert_eq!(f.set_aside(), [r#"shop {"id":1} untracked out"#], "who deleted it can still say so");
        assert_eq!(f.remote.retry(&Choice::All).expect("made again").changes, 1);
        assert_eq!(f.cut_changes(), ["shop: 1,a -> -"]);
        f.check();
    }
}

/// A row that was written as it was, in a partition that is left.
#[test]
fn nothing_is_listed_for_a_row_that_was_written_as_it_was() {
    let f = Fixture::new(&super::support::shop());
    let north = [Value::text("north")];
    let axe = [row("1,north,axe,$1.00")];
    f.download(f.down().whole("item", &north).rows("item", &axe).whole("kind", &[]).whole("part", &[]));
    f.sql("UPDATE item SET name = name");
    f.download(f.down().left("item", &north));
    assert_eq!((f.set_aside(), f.rows("SELECT * FROM item")), (Vec::new(), Vec::new()));
    assert_eq!((f.cut(), f.held()), (None, 0));
    f.check();
}

/// A row of a table that only goes up is on its way when its table's tracking is found gone, and refused then.
#[test]
fn what_is_on_its_way_is_not_listed_twice() {
    let mut f = visited(Direction::Upload);
    f.sql("INSERT INTO visit VALUES (5, 1, 'x'), (6, 1, 'y')");
    f.cut();
    drop_tracking(&f, "visit");
    assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("none"), 0);
    assert_eq!(f.set_aside(), [r#"visit {"id":6} untracked out"#, r#"visit {"id":5} untracked out"#]);
    refuse(&f, RefusalCode::Check);
    assert_eq!(f.set_aside(), [r#"visit {"id":5} check in place"#, r#"visit {"id":6} untracked out"#]);
    f.check();
}
