//! What the application's own triggers write while a download is applied: pending changes like any other.

use headwater_model::{ConflictRule, Direction, KeyRangeRule, Side};
use headwater_protocol::message::{ConflictEnd, Outcome, Refusal, RefusalCode};
use headwater_protocol::{Type, Value};
use rusqlite::Connection;

use super::support::{Fixture, model, query, row, shop, table};
use crate::rows::Rows;
use crate::{Choice, PendingChoice, untracked};

/// `doc (id, title, edits)`, rows 1 to 3 of which came down, and then these triggers.
fn docs(rule: ConflictRule, triggers: &str) -> Fixture {
    let mut doc = table("doc", &[("id", Type::Int), ("title", Type::Text), ("edits", Type::Int)]);
    doc.conflict = rule;
    let f = Fixture::new(&model(vec![doc, table("note", &[("id", Type::Int), ("text", Type::Text)])]));
    let first = [row("1,one,0"), row("2,two,0"), row("3,three,0")];
    f.download(f.down().whole("doc", &[]).rows("doc", &first).whole("note", &[]));
    f.sql(triggers);
    f
}

const COUNT: &str = "CREATE TRIGGER app_count AFTER UPDATE OF title ON doc BEGIN \
                     UPDATE doc SET edits = edits + 1 WHERE id = NEW.id; END;";

#[test]
fn what_a_trigger_writes_to_the_row_that_came_goes_up_from_it() {
    for name in ["app_count", "\"HWapp\""] {
        let f = docs(ConflictRule::ConsolidatedWins, &COUNT.replace("app_count", name));
        let applied = f.download(f.down().rows("doc", &[row("2,new,5")]));
        assert_eq!((applied.held, applied.set_aside, applied.not_stored), (0, 0, 0));
        assert_eq!(f.rows("SELECT * FROM doc WHERE id = 2"), ["2|new|6"]);
        assert_eq!(f.remote.status().expect("a status").pending, 1);
        assert_eq!(f.cut_changes(), ["doc: 2,new,5 -> 2,new,6"], "not a conflict: the old image is what came");
        f.receipt(Vec::new());
        // What was uploaded does not come back; nothing more is pending.
        f.download(f.down());
        assert_eq!(f.cut(), None);
        f.check();
    }
}

/// To other rows of the table, rows that come in the same download before or after it, new rows, and deletions; of other tables too.
#[test]
fn what_a_trigger_writes_to_other_rows_is_pending() {
    let triggers = "CREATE TRIGGER app AFTER UPDATE ON doc WHEN NEW.title = 'go' BEGIN \
                    UPDATE doc SET edits = 9 WHERE id IN (1, 3); DELETE FROM doc WHERE id = 4; \
                    INSERT INTO doc VALUES (20, 'made', 0); INSERT INTO note VALUES (7, 'made'); END;";
    let f = docs(ConflictRule::ConsolidatedWins, triggers);
    let came = [row("4,four,0"), row("1,uno,0"), row("2,go,0"), row("3,tre,0")];
    let applied = f.download(f.down().rows("doc", &came));
    assert_eq!(applied.held, 1, "row 3 came after it had been written to");
    let rows = ["1|uno|9", "2|go|0", "3|three|9", "20|made|0"];
    assert_eq!(f.rows("SELECT * FROM doc"), rows);
    let sent = [
        "doc: 1,uno,0 -> 1,uno,9",
        "doc: 3,three,0 -> 3,three,9",
        "doc: 4,four,0 -> -",
        "doc: - -> 20,made,0",
        "note: - -> 7,made",
    ];
    assert_eq!(f.cut_changes(), sent);
    f.receipt(vec![(1, Outcome::Conflict(ConflictEnd::Consolidated))]);
    f.download(f.down());
    assert_eq!(f.rows("SELECT * FROM doc WHERE id = 3"), ["3|tre|0"], "its conflict was judged as any other");
    assert_eq!(f.cut(), None);
    f.check();
}

#[test]
fn a_row_that_a_trigger_brings_back_goes_up_again() {
    let triggers = "CREATE TRIGGER app AFTER DELETE ON doc WHEN OLD.id = 1 BEGIN \
                    INSERT INTO doc VALUES (1, 'back', 1); UPDATE doc SET edits = 7 WHERE id = 3; END;";
    let f = docs(ConflictRule::ConsolidatedWins, triggers);
    f.download(f.down().delete("doc", &[row("1"), row("2")]));
    assert_eq!(f.cut_changes(), ["doc: - -> 1,back,1", "doc: 3,three,0 -> 3,three,7"]);
    f.receipt(Vec::new());
    f.check();
}

/// Everything comes again: triggers see the row that is gone, the one that is new and the one that differs.
#[test]
fn a_table_that_comes_whole_goes_up_as_far_as_triggers_wrote() {
    let triggers = "CREATE TRIGGER app_gone AFTER DELETE ON doc BEGIN UPDATE doc SET edits = edits + 1 WHERE id = 2; END; \
                    CREATE TRIGGER app_came AFTER INSERT ON doc BEGIN UPDATE doc SET edits = 30 WHERE id = NEW.id; END;";
    let f = docs(ConflictRule::ConsolidatedWins, triggers);
    f.remote.database.write("a test", crate::state::State::forget_seen).expect("forgotten");
    f.download(f.down().whole("doc", &[]).rows("doc", &[row("2,two,5"), row("3,three,0"), row("4,four,0")]));
    assert_eq!(f.rows("SELECT * FROM doc"), ["2|two|6", "3|three|0", "4|four|30"]);
    assert_eq!(f.cut_changes(), ["doc: 2,two,5 -> 2,two,6", "doc: 4,four,0 -> 4,four,30"]);
    f.check();
}

#[test]
fn a_pending_change_that_a_row_meets_stays_what_it_is() {
    let f = docs(ConflictRule::Merge(Side::Remote), COUNT);
    f.application.execute_batch("DROP TRIGGER app_count; UPDATE doc SET edits = 50 WHERE id = 1").expect("written");
    f.sql(COUNT);
    f.download(f.down().rows("doc", &[row("1,uno,0")]));
    assert_eq!(f.cut_changes(), ["doc: 1,uno,0 -> 1,uno,51"], "merged, and then counted");
    f.receipt(vec![(0, Outcome::Refused(Refusal { code: RefusalCode::Check, message: String::new() }))]);
    assert_eq!(f.set_aside(), [r#"doc {"id":1} check in place"#]);
    f.remote_drop();
    assert_eq!(f.rows("SELECT * FROM doc WHERE id = 1"), ["1|uno|0"], "the title did not change: nothing is counted");
    assert_eq!(f.pending(), Vec::<String>::new());
    f.check();
}

impl Fixture {
    fn remote_drop(&self) {
        let mut remote = crate::Remote::open(self.remote.path()).expect("the remote opens");
        remote.drop_set_aside(&Choice::All).expect("dropped");
    }
}

/// A held row that finds its place at last, and rows that step aside for one another.
#[test]
fn rows_that_move_about_are_pending_only_where_a_trigger_wrote() {
    let f = Fixture::new(&shop());
    let north = [Value::text("north")];
    let rows = [row("1,north,axe,$1"), row("2,north,saw,$2"), row("3,north,hoe,$3")];
    f.download(f.down().whole("item", &north).rows("item", &rows).whole("kind", &[]).whole("part", &[]));
    f.sql(
        "CREATE TRIGGER app AFTER UPDATE ON item WHEN NEW.id = 2 BEGIN UPDATE item SET price = '9' WHERE id = 2; END",
    );
    let swapped = [row("1,north,saw,$1"), row("2,north,hoe,$2"), row("3,north,axe,$3")];
    let applied = f.download(f.down().rows("item", &swapped));
    assert_eq!((applied.held, applied.set_aside, applied.not_stored), (0, 0, 0));
    assert_eq!(f.rows("SELECT id, name FROM item ORDER BY id"), ["1|saw", "2|hoe", "3|axe"]);
    assert_eq!(f.cut_changes(), ["item: 2,north,hoe,2 -> 2,north,hoe,9"], "the trigger saw an update");
    f.receipt(Vec::new());
    f.download(f.down().rows("item", &[row("2,north,hoe,$4")]));
    assert_eq!(f.cut_changes(), ["item: 2,north,hoe,4 -> 2,north,hoe,9"]);
    f.receipt(Vec::new());
    f.check();
}

/// Seats in a row, each with a child that a trigger deletes by hand: whoever passes a seat on stays.
fn seats(is_nullable: bool) -> Fixture {
    let mut seat = table("seat", &[("id", Type::Int), ("pos", Type::Int), ("name", Type::Text)]);
    seat.columns[1].nullable = is_nullable;
    seat.unique = vec![vec![1]];
    let f = Fixture::new(&model(vec![seat, table("kid", &[("id", Type::Int), ("seat", Type::Int)])]));
    f.download(all_seats(f.down(), &["1,1,a", "2,2,b", "3,3,c"]));
    f.sql(
        "CREATE TABLE seen (what); CREATE TRIGGER app_gone AFTER DELETE ON seat BEGIN DELETE FROM kid WHERE seat = OLD.id; \
         INSERT INTO seen VALUES ('gone ' || OLD.id); END; \
         CREATE TABLE total (pos); INSERT INTO total VALUES (6); CREATE TRIGGER app_sum AFTER UPDATE ON seat BEGIN \
         UPDATE total SET pos = pos + NEW.pos - OLD.pos; END;",
    );
    f
}

fn all_seats(down: super::support::Down, seats: &[&str]) -> super::support::Down {
    let seats: Vec<_> = seats.iter().map(|seat| row(seat)).collect();
    down.whole("seat", &[]).rows("seat", &seats).whole("kid", &[]).rows("kid", &[row("1,1"), row("2,2"), row("3,3")])
}

#[test]
fn who_passes_a_unique_value_on_is_not_deleted() {
    for is_nullable in [true, false] {
        for comes_whole in [false, true] {
            let f = seats(is_nullable);
            let swapped = ["1,2,a", "2,3,b", "3,1,c"];
            let down = if comes_whole {
                f.remote.database.write("a test", crate::state::State::forget_seen).expect("forgotten");
                all_seats(f.down(), &swapped)
            } else {
                f.down().rows("seat", &swapped.map(row))
            };
            f.download(down);
            assert_eq!(f.rows("SELECT * FROM seat ORDER BY id"), ["1|2|a", "2|3|b", "3|1|c"]);
            assert_eq!(
                (f.rows("SELECT * FROM seen"), f.rows("SELECT count(*) FROM kid")),
                (Vec::new(), vec!["3".to_owned()])
            );
            assert_eq!(
                (f.rows("SELECT pos FROM total"), f.cut(), f.set_aside()),
                (vec!["6".to_owned()], None, Vec::new())
            );
            f.check();
        }
    }
}

/// An edit that waits has the value that comes: it is set aside, and its row is as it came, without having been deleted.
#[test]
fn whose_edit_is_set_aside_for_a_unique_value_is_not_deleted() {
    for comes_too in [false, true] {
        let f = seats(false);
        f.sql("UPDATE seat SET pos = 7, name = 'mine' WHERE id = 1");
        let down = f.down().rows("seat", &[row("2,7,b")]);
        f.download(if comes_too { down.rows("seat", &[row("1,2,a")]) } else { down });
        assert_eq!(
            f.rows("SELECT * FROM seat WHERE id < 3 ORDER BY id"),
            [if comes_too { "1|2|a" } else { "1|1|a" }, "2|7|b"]
        );
        assert_eq!(
            (f.rows("SELECT * FROM seen"), f.rows("SELECT count(*) FROM kid")),
            (Vec::new(), vec!["3".to_owned()])
        );
        assert_eq!((f.cut(), f.set_aside()), (None, vec![r#"seat {"id":1} unique out"#.to_owned()]));
        f.check();
    }
}

/// A row that made way, and is deleted or keeps no place after all, goes.
#[test]
fn who_made_way_and_does_not_come_goes() {
    let f = seats(true);
    f.download(f.down().rows("seat", &[row("2,1,b")]).delete("seat", &[row("1")]));
    assert_eq!(f.rows("SELECT * FROM seat ORDER BY id"), ["2|1|b", "3|3|c"]);
    assert_eq!(
        (f.rows("SELECT * FROM seen"), f.cut_changes()),
        (vec!["gone 1".to_owned()], vec!["kid: 1,1 -> -".to_owned()])
    );
    f.receipt(Vec::new());
    // The value of seat 3 went to another, and nothing is said of seat 3: it is held.
    f.download(f.down().rows("seat", &[row("2,3,b")]));
    assert_eq!((f.rows("SELECT * FROM seat ORDER BY id"), f.held()), (vec!["2|3|b".to_owned()], 1));
    f.check();
}

/// A trigger that names a column fires where that column differs.
#[test]
fn a_trigger_on_a_column_sees_that_column_alone() {
    let f = docs(ConflictRule::ConsolidatedWins, COUNT);
    f.download(f.down().rows("doc", &[row("1,one,5"), row("2,deux,6")]));
    assert_eq!(f.rows("SELECT * FROM doc"), ["1|one|5", "2|deux|7", "3|three|0"]);
    f.remote.database.write("a test", crate::state::State::forget_seen).expect("forgotten");
    f.download(
        f.down().whole("doc", &[]).rows("doc", &[row("1,one,8"), row("2,deux,6"), row("3,three,0")]).whole("note", &[]),
    );
    assert_eq!(f.rows("SELECT * FROM doc"), ["1|one|8", "2|deux|7", "3|three|0"]);
    f.check();
}

/// Triggers that leave a row out, or refuse it: what came is held, nothing is pending, and the download goes on.
#[test]
fn what_a_trigger_leaves_out_is_held() {
    for raise in ["RAISE(IGNORE)", "RAISE(ABORT, 'no')"] {
        let triggers = format!(
            "CREATE TRIGGER app_stored BEFORE UPDATE ON doc WHEN OLD.id = 1 BEGIN SELECT {raise}; END; \
             CREATE TRIGGER app_gone BEFORE DELETE ON doc WHEN OLD.id = 2 BEGIN SELECT {raise}; END; \
             CREATE TRIGGER app_new BEFORE INSERT ON doc WHEN NEW.id = 5 BEGIN SELECT {raise}; END"
        );
        let f = docs(ConflictRule::ConsolidatedWins, &triggers);
        let down = f.down().rows("doc", &[row("1,uno,0"), row("5,five,0"), row("6,six,0")]).delete("doc", &[row("2")]);
        assert_eq!(f.download(down).not_stored, 3, "{raise}");
        assert_eq!(f.rows("SELECT id, title FROM doc"), ["1|one", "2|two", "3|three", "6|six"], "{raise}");
        assert_eq!((f.cut(), f.held()), (None, 3), "{raise}");
        let gone = f.remote.held(9).expect("a list").into_iter().find(|held| held.row.is_none()).expect("the deletion");
        let why = if raise.contains("no") { "the row can't be deleted here: no" } else { "a trigger keeps the row" };
        assert_eq!((gone.key.as_str(), gone.why.as_deref()), (r#"{"id":2}"#, Some(why)));
        f.sql("DROP TRIGGER app_stored; DROP TRIGGER app_gone; DROP TRIGGER app_new");
        f.download(f.down());
        assert_eq!(f.rows("SELECT id, title FROM doc"), ["1|uno", "3|three", "5|five", "6|six"], "{raise}");
        assert_eq!((f.cut(), f.held()), (None, 0), "{raise}");
        f.check();
    }
}

/// A trigger that rolls everything back: nothing of the download takes place, and nothing is stored after it. Without the trigger all comes.
#[test]
fn a_trigger_that_ends_the_transaction_ends_the_download() {
    let rollbacks = [
        "BEFORE UPDATE ON doc WHEN NEW.title = 'end' BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "AFTER DELETE ON doc WHEN OLD.id = 3 BEGIN INSERT OR ROLLBACK INTO note VALUES (9, 'there'); END",
        "BEFORE INSERT ON doc WHEN NEW.id = 5 BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "BEFORE DELETE ON doc WHEN OLD.id = 3 BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
    ];
    for trigger in rollbacks {
        let f = docs(ConflictRule::ConsolidatedWins, "INSERT INTO note VALUES (9, 'mine')");
        f.sql(&format!("UPDATE doc SET edits = 7 WHERE id = 2; CREATE TRIGGER app {trigger}"));
        let before = (f.rows("SELECT * FROM doc"), f.pending());
        let down = || {
            let came = [row("4,four,0"), row("1,end,0"), row("5,five,0"), row("6,six,0")];
            f.down().rows("doc", &came).delete("doc", &[row("3")]).rows("note", &[row("8,last")])
        };
        for _ in 0..2 {
            let error = f.try_download(down()).expect_err("the transaction is gone");
            assert_eq!(error.code(), "rolled_back", "{trigger}: {error}");
            assert!(error.to_string().contains("table \"doc\""), "{error}");
            assert_eq!((f.rows("SELECT * FROM doc"), f.pending()), before, "{trigger}");
            assert_eq!((f.rows("SELECT id FROM note"), f.held()), (vec!["9".to_owned()], 0), "{trigger}");
        }
        f.sql("DROP TRIGGER app");
        f.download(down());
        assert_eq!(f.rows("SELECT id, title FROM doc"), ["1|end", "2|two", "4|four", "5|five", "6|six"], "{trigger}");
        assert_eq!((f.pending(), f.rows("SELECT id FROM note")), (before.1, vec!["8".to_owned(), "9".to_owned()]));
        f.check();
    }
}

/// The same for changes that are given up.
#[test]
fn a_trigger_that_ends_the_transaction_ends_a_choice() {
    let mut f = docs(ConflictRule::ConsolidatedWins, "UPDATE doc SET edits = 1");
    let trigger = "CREATE TRIGGER app BEFORE UPDATE ON doc WHEN NEW.id = 2 BEGIN SELECT RAISE(ROLLBACK, 'no'); END";
    f.sql(trigger);
    let pending = f.pending();
    for _ in 0..2 {
        let error = f.remote.drop_pending(&PendingChoice::All).expect_err("the transaction is gone");
        assert_eq!((error.code(), f.pending()), ("rolled_back", pending.clone()), "{error}");
    }
    f.sql("DROP TRIGGER app");
    f.cut();
    let refused = || Outcome::Refused(Refusal { code: RefusalCode::Unique, message: String::new() });
    f.receipt((0..3).map(|number| (number, refused())).collect());
    let (aside, rows) = (f.set_aside(), f.rows("SELECT * FROM doc"));
    f.sql(trigger);
    let error = f.remote.drop_set_aside(&Choice::All).expect_err("the transaction is gone");
    assert_eq!((error.code(), f.set_aside(), f.rows("SELECT * FROM doc")), ("rolled_back", aside, rows), "{error}");
    f.sql("DROP TRIGGER app");
    assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("given up"), 3);
    assert_eq!(f.rows("SELECT edits FROM doc"), ["0", "0", "0"]);
    f.check();
}

/// Whatever rolls a transaction back, and whoever does not notice: nothing of its work commits.
#[test]
fn nothing_commits_after_a_rollback() {
    let f = docs(ConflictRule::ConsolidatedWins, "");
    let work = |connection: &Connection| {
        connection.execute_batch("ROLLBACK").expect("rolled back");
        let error = connection.execute("INSERT INTO note VALUES (1, 'stray')", []).expect_err("not on its own");
        assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::ConstraintViolation));
        Ok(())
    };
    f.remote.database.write("a test", work).expect_err("there is nothing to commit");
    assert_eq!(f.rows("SELECT count(*) FROM note"), ["0"]);
    f.remote.database.write("a test", |connection| Rows::new(connection).set_applying(None)).expect("the next one");
    f.check();
}

#[test]
fn keys_of_others_come_and_a_triggers_own_key_is_used_once() {
    let mut item = table("item", &[("id", Type::Int), ("of", Type::Int)]);
    item.key_range = Some(KeyRangeRule { size: 10, from: 1000 });
    let mut f = Fixture::new(&model(vec![item]));
    f.sql("INSERT INTO hw_key_range VALUES (0, 1000, 1009, 1000)");
    f.sql(
        "CREATE TRIGGER app AFTER INSERT ON item WHEN NEW.of IS NULL BEGIN \
         INSERT INTO item SELECT key, NEW.id FROM hw_next_key WHERE \"table\" = 'item'; END",
    );
    f.download(f.down().whole("item", &[]).rows("item", &[row("2000,-"), row("2001,-")]));
    assert_eq!(f.cut_changes(), ["item: - -> 1000,2000", "item: - -> 1001,2001"]);
    f.receipt(Vec::new());
    assert_eq!(f.rows("SELECT key FROM hw_next_key"), ["1002"]);
    f.reopen();
    assert!(f.application.execute("INSERT INTO item VALUES (5000, 1)", []).is_err(), "not in a range");
    f.check();
}

/// Nothing of a table that only comes down can be pending: what a trigger writes there stays until the row comes again.
#[test]
fn a_table_that_only_comes_down_has_no_log() {
    let mut price = table("price", &[("id", Type::Int), ("amount", Type::Int)]);
    price.direction = Direction::Download;
    let f = Fixture::new(&model(vec![price]));
    f.sql("CREATE TRIGGER app AFTER INSERT ON price BEGIN UPDATE price SET amount = 0 WHERE id = NEW.id; END");
    f.download(f.down().whole("price", &[]).rows("price", &[row("1,5")]));
    assert_eq!(f.rows("SELECT * FROM price"), ["1|0"]);
    f.download(f.down().rows("price", &[row("1,6")]));
    assert_eq!(f.rows("SELECT * FROM price"), ["1|6"]);
    assert_eq!(f.cut(), None);
    f.check();
}

/// The table comes whole, to be compared: its rows go for that, whatever a trigger says, and those that were made here are found.
#[test]
fn a_trigger_that_keeps_rows_stops_no_comparison() {
    for how in ["ABORT, 'no'", "FAIL, 'no'", "IGNORE"] {
        let keep = format!("CREATE TRIGGER app BEFORE DELETE ON doc BEGIN SELECT RAISE({how}); END");
        let mut f = docs(ConflictRule::ConsolidatedWins, &keep);
        for name in
            f.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'doc' AND name LIKE 'hw%'")
        {
            f.sql(&format!("DROP TRIGGER {name}"));
        }
        f.sql("INSERT INTO doc VALUES (9, 'untracked', 0)");
        f.reopen();
        f.download(f.down().holds("doc", &[]));
        assert!(untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
        f.download(f.down().whole("doc", &[]).rows("doc", &[row("1,one,0"), row("2,two,0"), row("3,three,0")]));
        assert_eq!(f.rows("SELECT * FROM doc"), ["1|one|0", "2|two|0", "3|three|0", "9|untracked|0"], "{how}");
        assert_eq!(f.set_aside(), [r#"doc {"id":9} untracked in place"#], "{how}");
        assert_eq!(f.rows("SELECT count(*) FROM sqlite_schema WHERE name = 'app'"), ["1"]);
        assert!(
            f.application.execute_batch("BEGIN; DELETE FROM doc WHERE id = 1; ROLLBACK").is_err() || how == "IGNORE"
        );
        f.check();
    }
}

/// What came is merged into a pending change, and would be all that there is; but a trigger has its own word.
#[test]
fn what_a_trigger_makes_of_a_merged_row_is_not_lost() {
    let rule = ConflictRule::Merge(Side::Consolidated);
    let shout = "CREATE TRIGGER app AFTER UPDATE OF title ON doc BEGIN UPDATE doc SET title = upper(title) WHERE id = NEW.id; END";
    let ignore =
        "CREATE TRIGGER app BEFORE UPDATE OF title ON doc WHEN NEW.title = 'uno' BEGIN SELECT RAISE(IGNORE); END";
    for (trigger, came, there, sent) in [
        (shout, "1,uno,7", "1|UNO|7", "doc: 1,uno,7 -> 1,UNO,7"),
        (shout, "1,uno,0", "1|UNO|7", "doc: 1,uno,0 -> 1,UNO,7"),
        (ignore, "1,uno,7", "1|one|7", "doc: 1,one,0 -> 1,one,7"),
        (ignore, "1,uno,0", "1|one|7", "doc: 1,one,0 -> 1,one,7"),
    ] {
        let f = docs(rule, trigger);
        f.sql("UPDATE doc SET edits = 7 WHERE id = 1");
        f.download(f.down().rows("doc", &[row(came)]));
        assert_eq!(f.rows("SELECT * FROM doc WHERE id = 1"), [there], "{trigger} {came}");
        assert_eq!(f.held(), u64::from(trigger == ignore), "what is left out is held: {came}");
        assert_eq!(f.cut_changes(), [sent], "{trigger} {came}");
        f.check();
    }
}

#[test]
fn a_trigger_can_sit_downloads_out() {
    let f = docs(
        ConflictRule::ConsolidatedWins,
        &COUNT.replace("BEGIN", "WHEN NOT EXISTS (SELECT 1 FROM hw_applying) BEGIN"),
    );
    f.download(f.down().rows("doc", &[row("2,new,5")]));
    assert_eq!((f.rows("SELECT * FROM doc WHERE id = 2"), f.cut()), (vec!["2|new|5".to_owned()], None));
    let other = Connection::open(f.remote.path()).expect("another connection");
    other.execute("UPDATE doc SET title = 'x' WHERE id = 2", []).expect("written");
    assert_eq!(query(&other, "SELECT edits FROM doc WHERE id = 2"), ["6"]);
    f.check();
}

/// A row that a trigger leaves out is held. The row that stands there instead loses its parent: it goes, and what is held stays.
#[test]
fn what_is_held_is_not_replaced_by_what_stood_there() {
    let f = Fixture::new(&shop());
    let down = f.down().whole("kind", &[]).rows("kind", &[row("1,tool")]);
    f.download(down.whole("part", &[]).rows("part", &[row("1,1,1")]));
    f.sql("CREATE TRIGGER own BEFORE UPDATE ON part BEGIN SELECT RAISE(IGNORE); END");
    f.download(f.down().rows("part", &[row("1,-,2")]).delete("kind", &[row("1")]));
    assert_eq!((f.rows("SELECT * FROM part"), f.held()), (Vec::new(), 1));
    f.sql("DROP TRIGGER own");
    f.download(f.down());
    assert_eq!((f.rows("SELECT id, no FROM part"), f.held()), (vec!["1|2".to_owned()], 0));
    f.check();
}

/// A row that a trigger writes to refers to a row that is not here.
#[test]
fn a_row_without_its_parent_waits_whatever_a_trigger_wrote() {
    let f = Fixture::new(&shop());
    f.sql("CREATE TRIGGER own AFTER INSERT ON part BEGIN UPDATE part SET no = 99 WHERE id = NEW.id; END");
    f.download(f.down().whole("kind", &[]).whole("part", &[]).rows("part", &[row("1,1,1")]));
    let held = f.remote.held(9).expect("a list");
    assert_eq!(held[0].row.as_deref(), Some(r#"{"id":1,"item":1,"no":1}"#));
    f.download(f.down().rows("kind", &[row("1,tool")]));
    assert_eq!((f.rows("SELECT * FROM part"), f.held()), (vec!["1|1|99".to_owned()], 0));
    f.check();
}
