//! Tables of Headwater's own that a program has dropped.

use headwater_protocol::Value;
use headwater_protocol::message::{Outcome, Refusal, RefusalCode};

use super::support::{Fixture, row, shop};
use crate::untracked::{self, Doubt};
use crate::{Error, Remote};

fn north() -> [Value; 1] {
    [Value::text("north")]
}

const ROWS: [&str; 2] = ["1,north,axe,$1.00", "2,north,saw,$2.00"];

fn items() -> Fixture {
    let f = Fixture::new(&shop());
    f.download(f.down().whole("item", &north()).rows("item", &ROWS.map(row)).whole("kind", &[]).whole("part", &[]));
    f
}

fn doubts(f: &Fixture) -> Vec<Doubt> {
    untracked::doubts(&f.remote.database.connection, &f.remote.plan).expect("read")
}

/// SQLite finds a table that another program has made again as soon as it has read anything.
fn look(f: &Fixture) {
    f.rows("SELECT count(*) FROM item");
}

/// The downloads that end the doubt about items.
fn compare(f: &Fixture, rows: &[&str]) {
    let rows: Vec<_> = rows.iter().map(|text| row(text)).collect();
    f.download(f.down().holds("item", &north()));
    assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
    f.download(f.down().whole("item", &north()).rows("item", &rows));
    f.download(f.down().holds("item", &north()));
    assert!(doubts(f).iter().all(|doubt| *doubt == Doubt::None));
}

#[test]
fn a_log_that_was_dropped_is_made_again_and_its_changes_are_found() {
    let mut f = items();
    f.sql("UPDATE item SET price = '1.50' WHERE id = 1; INSERT INTO kind VALUES (1, 'tool'); DROP TABLE hw_log_item");
    let error = crate::examine(f.remote.path()).expect_err("no log").to_string();
    assert!(error.contains("hw_log_item") && error.contains("headwater remote sync"), "{error}");
    f.reopen();
    assert_eq!(doubts(&f), [Doubt::Since, Doubt::None, Doubt::None]);
    look(&f);
    f.sql("UPDATE item SET price = '2.50' WHERE id = 2");
    assert_eq!(f.cut_changes(), ["item: 2,north,saw,2.00 -> 2,north,saw,2.50", "kind: - -> 1,tool"]);
    f.receipt(Vec::new());
    compare(&f, &[ROWS[0], "2,north,saw,$2.50"]);
    assert_eq!(f.set_aside(), [r#"item {"id":1} untracked in place"#]);
    assert_eq!(f.rows("SELECT id, price FROM item"), ["1|1.50", "2|2.50"]);
    f.check();
}

/// Its upload is on its way, and part of it is refused; another change is set aside.
#[test]
fn a_log_is_dropped_while_its_changes_are_on_their_way() {
    let refused = || Outcome::Refused(Refusal { code: RefusalCode::Check, message: String::new() });
    let mut f = items();
    f.sql("UPDATE item SET price = '1.50' WHERE id = 1");
    f.cut();
    f.receipt(vec![(0, refused())]);
    f.sql("UPDATE item SET price = '2.50' WHERE id = 2");
    f.cut();
    f.sql("DROP TABLE hw_log_item");
    f.reopen();
    f.receipt(vec![(0, refused())]);
    compare(&f, &ROWS);
    let mut aside = f.set_aside();
    aside.sort();
    let expected =
        [r#"item {"id":1} check out"#, r#"item {"id":1} untracked in place"#, r#"item {"id":2} check in place"#];
    assert_eq!(aside, expected);
    assert_eq!(f.rows("SELECT id, price FROM item"), ["1|1.50", "2|2.50"]);
    assert_eq!(f.cut(), None);
    f.check();
}

#[test]
fn what_can_be_made_again_is_made_again() {
    for name in ["hw_applying", "hw_staged", "hw_conflict", "hw_key_range", "hw_key_range_gone", "hw_parent"] {
        let mut f = items();
        f.sql(&format!("UPDATE item SET price = '1.50' WHERE id = 1; DROP TABLE {name}"));
        f.reopen();
        assert!(doubts(&f).iter().all(|doubt| *doubt == Doubt::None), "{name}");
        look(&f);
        f.sql("UPDATE item SET price = '2.50' WHERE id = 2");
        assert_eq!(f.cut_changes().len(), 2, "{name}");
        f.receipt(Vec::new());
        f.download(f.down().holds("item", &north()));
        f.check();
    }
    for name in ["hw_mark", "hw_watermark", "hw_held"] {
        let mut f = items();
        f.sql(&format!("UPDATE item SET price = '1.50' WHERE id = 1; DROP TABLE {name}"));
        f.reopen();
        assert_eq!(f.rows("SELECT count(*) FROM hw_watermark"), ["0"], "{name}: all comes whole");
        f.download(f.down().whole("item", &north()).rows("item", &ROWS.map(row)).whole("kind", &[]).whole("part", &[]));
        assert_eq!(f.cut_changes(), ["item: 1,north,axe,1.00 -> 1,north,axe,1.50"], "{name}");
    }
    let mut f = items();
    f.sql("DROP INDEX hw_set_aside_in_place; DROP TABLE hw_tracking");
    f.reopen();
    assert!(doubts(&f).iter().all(|doubt| *doubt == Doubt::Since));
    assert_eq!(f.rows("SELECT count(*) FROM sqlite_schema WHERE name = 'hw_set_aside_in_place'"), ["1"]);
}

#[test]
fn what_nothing_else_has_is_named() {
    for name in ["hw_upload", "hw_sent", "hw_lost", "hw_set_aside"] {
        let f = items();
        f.sql(&format!("DROP TABLE {name}"));
        let error = Remote::open(f.remote.path()).expect_err(name);
        assert!(matches!(&error, Error::Damaged { .. }) && error.to_string().contains(name), "{error}");
    }
}
