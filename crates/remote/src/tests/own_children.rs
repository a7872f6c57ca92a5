//! Tables of the application's own whose foreign keys refer to tables of the model.

use headwater_protocol::Value;
use headwater_protocol::message::{Outcome, Refusal, RefusalCode};

use super::support::{Fixture, row, shop};
use crate::{Choice, PendingChoice};

const TABLES: &str = "CREATE TABLE photo (id INTEGER PRIMARY KEY, item INTEGER REFERENCES item ON DELETE CASCADE);
    CREATE TABLE tag (photo INTEGER REFERENCES photo (id) ON DELETE CASCADE, word TEXT, PRIMARY KEY (photo, word)) WITHOUT ROWID;
    CREATE TABLE draft (id INTEGER PRIMARY KEY, item INTEGER REFERENCES item (id) ON DELETE SET NULL);
    INSERT INTO photo VALUES (1, 1), (2, 2), (3, 3); INSERT INTO tag VALUES (1, 'a'), (2, 'b');
    INSERT INTO draft VALUES (1, 1), (2, 2), (3, NULL);";

fn north() -> [Value; 1] {
    [Value::text("north")]
}

fn items(tables: &str) -> Fixture {
    let f = Fixture::new(&shop());
    let rows = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,nut,$3.00")];
    f.download(f.down().whole("item", &north()).rows("item", &rows).whole("kind", &[]).whole("part", &[]));
    f.sql(tables);
    f
}

fn own(f: &Fixture) -> [Vec<String>; 3] {
    ["SELECT id, item FROM photo", "SELECT word FROM tag", "SELECT id, item FROM draft"].map(|sql| f.rows(sql))
}

#[test]
fn own_rows_go_with_a_row_that_is_deleted() {
    for is_whole in [false, true] {
        let f = items(TABLES);
        let rows = [row("2,north,saw,$2.50"), row("3,north,nut,$3.00")];
        let changed = f.down().rows("item", &rows).delete("item", &[row("1")]);
        f.download(if is_whole { f.down().whole("item", &north()).rows("item", &rows) } else { changed });
        let expected = [vec!["2|2", "3|3"], vec!["b"], vec!["1|NULL", "2|2", "3|NULL"]];
        assert_eq!(own(&f), expected, "whole: {is_whole}");
        assert_eq!(f.cut(), None);
        f.check();
    }
}

/// What referred to nothing before, what leaves the remote, and what is only held, is not deleted.
#[test]
fn own_rows_stay_where_nothing_is_deleted() {
    let f = items(TABLES);
    f.sql("PRAGMA foreign_keys = OFF; INSERT INTO photo VALUES (9, 99)");
    f.download(f.down().delete("item", &[row("3")]));
    assert_eq!(f.rows("SELECT id FROM photo"), ["1", "2", "9"]);
    f.download(f.down().left("item", &north()));
    assert_eq!(f.rows("SELECT count(*) FROM item"), ["0"]);
    assert_eq!(f.rows("SELECT id FROM photo"), ["1", "2", "9"]);
    let orphans = f.remote.status().expect("a status").orphans;
    let orphans: Vec<_> = orphans.iter().map(|it| (it.table.as_str(), it.parent.as_str(), it.rows)).collect();
    assert_eq!(orphans, [("draft", "item", 2), ("photo", "item", 3)]);

    let f = items(TABLES);
    // A row of the application's own takes the place of one that came.
    f.sql("CREATE UNIQUE INDEX by_price ON item (price)");
    let down = f.down().whole("item", &north());
    f.download(down.rows("item", &[row("1,north,axe,$2.00"), row("2,north,saw,$2.00"), row("3,north,nut,$3.00")]));
    assert_eq!(f.held(), 1);
    assert_eq!(
        (f.rows("SELECT count(*) FROM photo"), f.rows("SELECT count(*) FROM tag")),
        (vec!["3".into()], vec!["2".into()])
    );
}

/// A row that refers to one which is not here yet is held meanwhile, and not in its table.
#[test]
fn own_rows_wait_for_a_row_that_is_held() {
    let f = items("");
    f.download(f.down().rows("kind", &[row("1,tool")]).rows("part", &[row("7,1,0")]));
    f.sql("CREATE TABLE visit (id INTEGER PRIMARY KEY, part INTEGER REFERENCES part ON DELETE CASCADE); INSERT INTO visit VALUES (1, 7)");
    f.download(f.down().rows("part", &[row("7,5,0")]));
    assert_eq!((f.held(), f.rows("SELECT * FROM part")), (1, Vec::new()));
    assert_eq!(f.rows("SELECT part FROM visit"), ["7"]);
    f.download(f.down().rows("kind", &[row("5,nail")]));
    assert_eq!((f.held(), f.rows("SELECT * FROM part")), (0, vec!["7|5|0".to_owned()]));
    f.check();
    f.download(f.down().delete("part", &[row("7")]));
    assert_eq!(f.rows("SELECT part FROM visit"), Vec::<String>::new());
}

/// A row was on the list of held rows alone, and is deleted there: what referred to it goes then.
#[test]
fn own_rows_go_with_a_row_that_is_held_no_more() {
    let f = items("");
    f.download(f.down().rows("kind", &[row("1,tool")]).rows("part", &[row("7,1,0")]));
    f.sql("CREATE TABLE visit (id INTEGER PRIMARY KEY, part INTEGER REFERENCES part ON DELETE CASCADE); INSERT INTO visit VALUES (1, 7)");
    f.download(f.down().rows("part", &[row("7,5,0")]));
    assert_eq!((f.held(), f.rows("SELECT part FROM visit")), (1, vec!["7".to_owned()]));
    f.download(f.down().delete("part", &[row("7")]));
    assert_eq!((f.held(), f.rows("SELECT part FROM visit")), (0, Vec::new()));
}

/// A change is given up, and its row goes by that: rows of the application's own go along, or don't let it go.
#[test]
fn own_rows_go_with_a_change_that_is_given_up() {
    let insert = "INSERT INTO item VALUES (9, 'north', 'new', '9.00'); INSERT INTO photo VALUES (9, 9); INSERT INTO tag VALUES (9, 'n')";
    for is_pending in [false, true] {
        let mut f = items(TABLES);
        f.sql(insert);
        if !is_pending {
            f.cut().expect("an upload");
            let refusal = Refusal { code: RefusalCode::Trigger, message: "no".to_owned() };
            f.receipt(vec![(0, Outcome::Refused(refusal))]);
        }
        f.sql("CREATE TABLE loan (item INTEGER REFERENCES item); INSERT INTO loan VALUES (9)");
        let mut give_up = || {
            if is_pending { f.remote.drop_pending(&PendingChoice::All) } else { f.remote.drop_set_aside(&Choice::All) }
        };
        let error = give_up().expect_err("a row of its own refers to it").to_string();
        assert!(error.contains("a row of table \"loan\", which is the application's own"), "{error}");
        let application = &f.application;
        application.execute("DELETE FROM loan", []).expect("deleted");
        assert_eq!(give_up().expect("given up"), 1);
        assert_eq!(f.rows("SELECT id FROM item ORDER BY id"), ["1", "2", "3"], "pending {is_pending}");
        assert_eq!(
            (f.rows("SELECT id FROM photo"), f.rows("SELECT word FROM tag")),
            (vec!["1".into(), "2".into(), "3".into()], vec!["a".into(), "b".into()])
        );
        f.check();
    }
}

#[test]
fn own_rows_that_restrict_hold_a_deletion() {
    for (restricts, is_whole) in [("ON DELETE RESTRICT", false), ("", false), ("", true)] {
        let f = items(&format!(
            "CREATE TABLE loan (id INTEGER PRIMARY KEY, item INTEGER NOT NULL REFERENCES item {restricts}); INSERT INTO loan VALUES (5, 1)"
        ));
        let applied = f.download(if is_whole {
            f.down().whole("item", &north()).rows("item", &[row("3,north,nut,$3.00")])
        } else {
            f.down().delete("item", &[row("1"), row("2")])
        });
        assert_eq!((applied.not_stored, f.held()), (1, 1), "{restricts}");
        let why = f.remote.held(9).expect("a list").remove(0).why.unwrap_or_default();
        assert!(why.contains("a row of table \"loan\" refers to it"), "{why}");
        assert_eq!((f.rows("SELECT id FROM item ORDER BY id"), f.cut()), (vec!["1".to_owned(), "3".to_owned()], None));
        f.sql("DELETE FROM loan");
        f.download(f.down());
        assert_eq!((f.rows("SELECT id FROM item"), f.held()), (vec!["3".to_owned()], 0), "tried again");
        f.check();
    }
}

/// A foreign key that fits nothing, and an action that is refused, end no sync.
#[test]
fn what_cant_be_carried_out_stops_nothing() {
    let f = items(
        "CREATE TABLE odd (id INTEGER PRIMARY KEY, item INTEGER REFERENCES item (nowhere) ON DELETE CASCADE);
         CREATE TABLE need (id INTEGER PRIMARY KEY, item INTEGER NOT NULL REFERENCES item ON DELETE SET NULL);
         PRAGMA foreign_keys = OFF; INSERT INTO odd VALUES (1, 1); INSERT INTO need VALUES (1, 1)",
    );
    f.download(f.down().delete("item", &[row("1")]));
    assert_eq!(f.rows("SELECT id FROM item ORDER BY id"), ["2", "3"]);
    assert_eq!(
        (f.rows("SELECT item FROM need"), f.rows("SELECT item FROM odd")),
        (vec!["1".to_owned()], vec!["1".to_owned()])
    );
}
