//! Triggers of the application's that write to other tables while rows leave the remote.

use headwater_model::{Model, OnDelete, Reference, TablePartition};
use headwater_protocol::{Type, Value};

use super::support::{Down, Fixture, row, shop, table};
use crate::Choice;
use crate::state::State;

/// The items of a shop, notes on items that everybody has, and the pieces of an item, which lie where it lies.
fn model() -> Model {
    let mut model = shop();
    let refers = || vec![Reference { columns: vec![1], table: 0, target: vec![0], on_delete: OnDelete::NoAction }];
    let mut piece = table("piece", &[("id", Type::Int), ("item", Type::Int)]);
    piece.references = refers();
    piece.partition = Some(TablePartition { partition: 0, columns: Vec::new(), through: Some(0) });
    let mut note = table("note", &[("id", Type::Int), ("item", Type::Int), ("text", Type::Text)]);
    note.references = refers();
    model.tables.extend([piece, note]);
    model
}

const CASCADE: &str = "CREATE TRIGGER app_cascade AFTER DELETE ON item BEGIN DELETE FROM note WHERE item = OLD.id; \
     DELETE FROM piece WHERE item = OLD.id; UPDATE kind SET name = name || '-' WHERE id = 1; END;";

fn north() -> [Value; 1] {
    [Value::text("north")]
}

fn items(triggers: &str) -> Fixture {
    let f = Fixture::new(&model());
    let south = [Value::text("south")];
    let down = f.down().whole("item", &north()).whole("item", &south);
    let down = down.rows("item", &[row("1,north,axe,$1.00"), row("2,south,saw,$2.00")]);
    let down = down.whole("kind", &[]).rows("kind", &[row("1,tool")]).whole("part", &[]).whole("piece", &north());
    let down = down.whole("piece", &south).rows("piece", &[row("1,1"), row("2,2")]).whole("note", &[]);
    f.download(down.rows("note", &[row("10,1,sharp"), row("11,1,old"), row("12,2,new")]));
    f.sql(triggers);
    f
}

fn leave(f: &Fixture) -> Down {
    let south = [Value::text("south")];
    let down = f.down().holds("item", &south).holds("piece", &south).holds("note", &[]).holds("kind", &[]);
    down.left("item", &north()).left("piece", &north())
}

const ASIDE: [&str; 3] = [
    r#"kind {"id":1} partition in place"#,
    r#"note {"id":10} partition in place"#,
    r#"note {"id":11} partition in place"#,
];

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn what_triggers_write_while_rows_leave_is_set_aside() {
    for is_restart in [false, true] {
        let mut f = items(CASCADE);
        f.sql("UPDATE note SET text = 'mine' WHERE id = 12");
        if is_restart {
            f.remote.database.write("a test", State::forget_seen).expect("forgotten");
            let south = [Value::text("south")];
            let down = f.down().whole("item", &south).rows("item", &[row("2,south,saw,$2.00")]);
            let down = down.whole("kind", &[]).rows("kind", &[row("1,tool")]).whole("part", &[]);
            let down = down.whole("piece", &south).rows("piece", &[row("2,2")]).whole("note", &[]);
            f.download(down.rows("note", &[row("10,1,sharp"), row("11,1,old"), row("12,2,new")]));
        } else {
            f.download(leave(&f));
        }
        assert_eq!(
            (f.rows("SELECT id FROM item"), f.rows("SELECT id FROM piece")),
            (vec!["2".into()], vec!["2".into()])
        );
        assert_eq!(f.rows("SELECT id FROM note"), ["12"]);
        assert_eq!(sorted(f.set_aside()), ASIDE, "restart: {is_restart}");
        assert_eq!(f.cut_changes(), ["note: 12,2,new -> 12,2,mine"], "what the application wrote is sent");
        f.receipt(Vec::new());
        let list = f.remote.set_aside(9).expect("a list");
        assert!(list[0].message.contains("a trigger wrote this while rows left the remote"), "{list:?}");
        assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("brought back"), 3);
        assert_eq!(f.rows("SELECT * FROM note"), ["10|1|sharp", "11|1|old", "12|2|mine"]);
        assert_eq!((f.rows("SELECT name FROM kind"), f.cut()), (vec!["tool".to_owned()], None));
        f.check();
    }
}

#[test]
fn it_is_sent_if_somebody_says_so() {
    let mut f = items(CASCADE);
    f.download(leave(&f));
    assert_eq!(f.remote.retry(&Choice::Table("note".to_owned())).expect("sent").changes, 2);
    assert_eq!(f.cut_changes(), ["note: 10,1,sharp -> -", "note: 11,1,old -> -"]);
    f.check();
}

/// Pieces go by a trigger, and their partition is left then, at once or after other rows have come.
#[test]
fn what_leaves_itself_is_on_no_list() {
    for comes_between in [false, true] {
        let f = items(CASCADE);
        let south = [Value::text("south")];
        let down = f.down().left("item", &north());
        let down = if comes_between { down.rows("item", &[row("2,south,saw,$2.50")]) } else { down };
        let applied = f.download(down.left("piece", &north()).holds("piece", &south).holds("item", &south));
        assert_eq!(
            (sorted(f.set_aside()), applied.set_aside),
            (ASIDE.map(str::to_owned).to_vec(), 3),
            "{comes_between}"
        );
        assert_eq!((f.cut(), f.rows("SELECT id FROM piece")), (None, vec!["2".to_owned()]));
        f.check();
    }
}

/// A row is moved to a partition that the remote does not hold, or is deleted, while others come in the same frame.
#[test]
fn a_single_row_that_leaves_is_told_from_a_deleted_one() {
    for leaves in [true, false] {
        let mut f = items(CASCADE);
        let go = |down: Down, table: &str, keys: &[Vec<Value>]| {
            if leaves { down.leave(table, keys) } else { down.delete(table, keys) }
        };
        let down = f.down().rows("item", &[row("2,south,saw,$2.50")]);
        let down = go(down, "item", &[vec![Value::Int(1)]]).rows("item", &[row("3,south,awl,$3.00")]);
        let applied = f.download(go(down, "piece", &[vec![Value::Int(1)]]));
        assert_eq!((applied.rows, applied.deletions), (2, 2));
        assert_eq!(
            (f.rows("SELECT id FROM item ORDER BY id"), f.rows("SELECT id FROM note")),
            (vec!["2".to_owned(), "3".to_owned()], vec!["12".to_owned()])
        );
        let sent = ["kind: 1,tool -> 1,tool-", "note: 10,1,sharp -> -", "note: 11,1,old -> -", "piece: 1,1 -> -"];
        if leaves {
            assert_eq!((sorted(f.set_aside()), f.cut()), (ASIDE.map(str::to_owned).to_vec(), None));
            assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("brought back"), 3);
            assert_eq!(f.rows("SELECT id FROM note"), ["10", "11", "12"]);
        } else {
            assert_eq!((f.set_aside(), sorted(f.cut_changes())), (Vec::new(), sent.map(str::to_owned).to_vec()));
        }
        f.check();
    }
}

/// Something keeps a row that leaves, at first: a trigger that can't run. Then it leaves as it would have.
#[test]
fn what_is_held_while_it_leaves_is_not_deleted_later() {
    for is_single in [false, true] {
        let f = items(
            "CREATE TABLE log (x); CREATE TRIGGER app_log AFTER DELETE ON item BEGIN INSERT INTO log VALUES (1); END; \
             CREATE TRIGGER app_cascade AFTER DELETE ON item WHEN NOT EXISTS (SELECT 1 FROM hw_leaving) \
             BEGIN DELETE FROM note WHERE item = OLD.id; END; \
             CREATE TABLE mine (item INTEGER REFERENCES item (id) ON DELETE CASCADE); INSERT INTO mine VALUES (1); DROP TABLE log",
        );
        let key = [vec![Value::Int(1)]];
        f.download(if is_single { f.down().leave("item", &key).leave("piece", &key) } else { leave(&f) });
        assert_eq!((f.rows("SELECT id FROM item"), f.held()), (vec!["1".to_owned(), "2".into()], 1));
        f.sql("DROP TRIGGER app_log");
        f.download(f.down());
        assert_eq!((f.rows("SELECT id FROM item"), f.held()), (vec!["2".to_owned()], 0));
        assert_eq!(
            (f.rows("SELECT id FROM note"), f.rows("SELECT * FROM mine")),
            (vec!["10".to_owned(), "11".into(), "12".into()], vec!["1".to_owned()])
        );
        assert_eq!((f.cut(), f.set_aside()), (None, Vec::new()));
        f.sql("DROP TABLE mine");
        f.check();
    }
}

/// The guard by the view `hw_leaving` holds for a single row too, and only while it leaves.
#[test]
fn a_trigger_asks_whether_a_single_row_leaves() {
    let f = items(
        "CREATE TRIGGER app_cascade AFTER DELETE ON item WHEN NOT EXISTS (SELECT 1 FROM hw_leaving) \
         BEGIN DELETE FROM note WHERE item = OLD.id; END;",
    );
    f.download(f.down().leave("item", &[vec![Value::Int(1)]]).leave("piece", &[vec![Value::Int(1)]]));
    assert_eq!(
        (f.rows("SELECT id FROM note"), f.set_aside()),
        (vec!["10".to_owned(), "11".into(), "12".into()], Vec::new())
    );
    f.download(f.down().delete("item", &[vec![Value::Int(2)]]).delete("piece", &[vec![Value::Int(2)]]));
    assert_eq!(
        (f.rows("SELECT id FROM note"), f.cut_changes()),
        (vec!["10".to_owned(), "11".into()], vec!["note: 12,2,new -> -".to_owned()])
    );
}

/// A change that waited to be sent, or was set aside, and whose row a trigger deletes: the list has both.
#[test]
fn an_edit_that_a_trigger_writes_over_stays_on_the_list() {
    let mut f = items(CASCADE);
    f.sql("UPDATE note SET text = 'mine' WHERE id = 10");
    f.download(leave(&f));
    let expected = [&[r#"note {"id":10} partition out"#], &ASIDE[1..]].concat();
    assert_eq!(
        sorted(f.set_aside()),
        sorted([&[ASIDE[0]], &expected[..]].concat().into_iter().map(str::to_owned).collect())
    );
    assert_eq!(f.cut(), None);
    let made = f.remote.set_aside(9).expect("a list").into_iter().find(|change| !change.is_in_place).expect("the edit");
    assert!(made.new.is_some_and(|new| new.contains("mine")));
    // What the trigger did is taken back, and the edit is made again.
    let in_place = f.remote.set_aside(9).expect("a list").into_iter().filter(|change| change.is_in_place);
    f.remote.drop_set_aside(&Choice::Numbers(in_place.map(|change| change.number).collect())).expect("dropped");
    f.remote.retry(&Choice::All).expect("made again");
    assert_eq!(f.cut_changes(), ["note: 10,1,sharp -> 10,1,mine"]);
    f.check();
}

/// What comes with the same download is written by nobody here.
#[test]
fn only_what_rows_that_leave_bring_about_is_set_aside() {
    let f = items(CASCADE);
    f.download(leave(&f).delete("item", &[row("2")]));
    let sent = ["kind: 1,tool -> 1,tool--", "piece: 2,2 -> -", "note: 12,2,new -> -"];
    assert_eq!(f.cut_changes(), sent, "item 2 was deleted there, and this is what the trigger makes of it");
    f.check();
}

/// A trigger can ask.
#[test]
fn a_trigger_can_tell_leaving_from_deleting() {
    let asks = CASCADE.replace("BEGIN", "WHEN NOT EXISTS (SELECT 1 FROM hw_leaving) BEGIN");
    let mut f = items("");
    f.sql("DROP VIEW hw_leaving");
    f.reopen();
    f.sql(&asks);
    f.download(leave(&f));
    assert_eq!((f.set_aside(), f.cut()), (Vec::new(), None));
    assert_eq!(f.rows("SELECT id FROM note"), ["10", "11", "12"]);
    f.download(f.down().delete("item", &[row("2")]));
    assert_eq!(f.rows("SELECT id FROM note"), ["10", "11"], "this one was deleted");
    f.check();
}

const COUNTED: &str = "CREATE TRIGGER app_gone AFTER DELETE ON piece WHEN NOT EXISTS (SELECT 1 FROM hw_leaving) BEGIN \
     UPDATE kind SET name = name || '!' WHERE id = 1; END; \
     CREATE TRIGGER app_deleted AFTER DELETE ON piece BEGIN UPDATE kind SET name = name || '-' WHERE id = 1; END; \
     CREATE TRIGGER app_new AFTER INSERT ON piece BEGIN UPDATE kind SET name = name || '+' WHERE id = 1; END;";

/// A piece whose item is gone at the consolidated database, where nothing holds it to its item: nobody has deleted the piece.
#[test]
fn a_row_that_is_held_for_its_parent_has_left_and_is_stored_once_it_can_be() {
    let mut f = items(COUNTED);
    let down = |f: &Fixture| f.down().holds("item", &north()).holds("piece", &north()).holds("kind", &[]);
    f.download(down(&f).delete("item", &[vec![Value::Int(1)]]));
    assert_eq!((f.rows("SELECT id FROM piece"), f.held()), (vec!["2".to_owned()], 1));
    assert_eq!(f.set_aside(), [r#"kind {"id":1} partition in place"#], "what the trigger wrote");
    assert_eq!(f.rows("SELECT name FROM kind"), ["tool-"], "and the guard kept the other from it");
    assert_eq!(f.cut(), None);
    for _ in 0..3 {
        f.download(down(&f));
        assert_eq!(
            (f.rows("SELECT name FROM kind"), f.held()),
            (vec!["tool-".to_owned()], 1),
            "no trigger sees it again"
        );
    }
    f.remote.drop_set_aside(&Choice::All).expect("taken back");
    f.download(down(&f).rows("item", &[row("1,north,axe,$1.00")]));
    assert_eq!((f.rows("SELECT id FROM piece ORDER BY id"), f.held()), (["1", "2"].map(str::to_owned).to_vec(), 0));
    assert_eq!(f.cut_changes(), ["kind: 1,tool -> 1,tool+"], "what a trigger writes for a row that comes is an edit");
    f.check();
}

/// A row that was made here makes way for one that comes: what the application had made beside it is on the list.
#[test]
fn what_goes_with_a_row_that_is_set_aside_is_on_the_list() {
    let f = items(
        "CREATE TRIGGER app_cascade AFTER DELETE ON item WHEN NOT EXISTS (SELECT 1 FROM hw_leaving) BEGIN \
         DELETE FROM note WHERE item = OLD.id; END; \
         CREATE TRIGGER app_unguarded AFTER DELETE ON item BEGIN DELETE FROM kind WHERE name = OLD.name; END;",
    );
    f.sql("INSERT INTO item VALUES (30, 'north', 'hoe', '3.00'); INSERT INTO note VALUES (50, 2, 'mine'); INSERT INTO kind VALUES (7, 'hoe')");
    f.sql("UPDATE kind SET name = 'hoe' WHERE id = 1");
    f.download(f.down().holds("item", &north()).holds("kind", &[]).rows("item", &[row("31,north,hoe,$4.00")]));
    assert_eq!(f.rows("SELECT id FROM item ORDER BY id"), ["1", "2", "31"]);
    let expected = [
        r#"item {"id":30} unique out"#,
        r#"kind {"id":1} partition in place"#,
        r#"kind {"id":1} partition out"#,
        r#"kind {"id":7} partition out"#,
    ];
    assert_eq!(sorted(f.set_aside()), expected);
    assert_eq!(f.cut_changes(), ["note: - -> 50,2,mine"], "nothing is deleted for it");
    f.check();
}
