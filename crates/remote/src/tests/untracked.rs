//! Writes while the application had dropped the triggers of change tracking.

use headwater_model::{ConflictRule, Direction, Side, TablePartition};
use headwater_protocol::message::{Outcome, Refusal, RefusalCode};
use headwater_protocol::{Row, Type, Value};
use rusqlite::config::DbConfig;

use super::support::{Down, Fixture, model, row, shop, table};
use crate::state::read_watermarks;
use crate::{Choice, untracked};

fn north() -> [Value; 1] {
    [Value::text("north")]
}

/// Drops what tracks a table, writes, and opens the file again.
fn untracked_write(f: &mut Fixture, table: &str, sql: &str) {
    drop_tracking(f, table);
    f.sql(sql);
    f.reopen();
}

fn drop_tracking(f: &Fixture, table: &str) {
    let names =
        format!("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}' AND name LIKE 'hw%'");
    for name in f.rows(&names) {
        f.sql(&format!("DROP TRIGGER {name}"));
    }
}

fn ask(f: &Fixture) -> bool {
    untracked::ask(&f.remote.database, &f.remote.plan).expect("asked")
}

/// Of each partition that the next request names: whether its mark is nobody's.
fn asked_whole(f: &Fixture) -> Vec<bool> {
    let connection = &f.remote.database.connection;
    let mut seen = read_watermarks(connection).expect("read");
    untracked::ask_whole(connection, &f.remote.plan, &mut seen).expect("asked");
    seen.entries
        .iter()
        .filter(|entry| entry.table == 0)
        .map(|entry| seen.marks[entry.mark as usize].is_empty())
        .collect()
}

/// Set aside, in the order of their keys.
fn aside(f: &Fixture) -> Vec<String> {
    let mut list = f.set_aside();
    list.sort();
    list
}

fn items() -> Fixture {
    let f = Fixture::new(&shop());
    let first =
        [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    f.download(f.down().whole("item", &north()).rows("item", &first).whole("kind", &[]).whole("part", &[]));
    f
}

#[test]
fn columns_may_have_names_of_sqlites_own() {
    let columns = [("id", Type::Text), ("rowid", Type::Text), ("hw", Type::Text)];
    let mut f = Fixture::new(&model(vec![table("item", &columns)]));
    let came = ["a,z,1", "b,y,2", "c,x,3"].map(row);
    f.download(f.down().whole("item", &[]).rows("item", &came));
    untracked_write(
        &mut f,
        "item",
        "UPDATE item SET rowid = 'w' WHERE id = 'a'; UPDATE item SET hw = '4' WHERE id = 'b'",
    );
    assert!(ask(&f));
    let applied = f.download(f.down().whole("item", &[]).rows("item", &came));
    assert_eq!(applied.untracked, 2);
    assert_eq!(f.rows("SELECT id, \"rowid\", hw FROM item ORDER BY id"), ["a|w|1", "b|y|4", "c|x|3"]);
}

#[test]
fn what_was_written_untracked_is_set_aside_where_it_stands() {
    let mut f = items();
    let sql = "UPDATE item SET price = '1.50' WHERE id = 1; DELETE FROM item WHERE id = 2; \
               UPDATE item SET price = '3.50' WHERE id = 3; INSERT INTO item VALUES (9, 'north', 'adze', '9.00')";
    untracked_write(&mut f, "item", sql);
    assert_eq!(f.cut(), None, "nothing is in the log");
    f.sql("UPDATE item SET price = '4.50' WHERE id = 4");
    assert_eq!(f.cut_changes(), ["item: 4,north,awl,4.00 -> 4,north,awl,4.50"], "tracking is back");
    f.receipt(Vec::new());

    // First what changed at the consolidated database comes: of that nobody knows whether it was changed here too.
    let changed = [row("3,north,hoe,$3.10"), row("5,north,bit,$5.00")];
    let applied = f.download(f.down().holds("item", &north()).rows("item", &changed));
    assert_eq!(applied.untracked, 1);
    assert_eq!(aside(&f), [r#"item {"id":3} untracked out"#]);
    assert!(ask(&f));
    assert_eq!(asked_whole(&f), [true], "the table comes whole");
    assert!(!ask(&f), "once");

    let now = [
        row("1,north,axe,$1.00"),
        row("2,north,saw,$2.00"),
        row("3,north,hoe,$3.10"),
        row("4,north,awl,$4.50"),
        row("5,north,bit,$5.00"),
    ];
    let applied = f.download(f.down().whole("item", &north()).rows("item", &now));
    assert_eq!(applied.untracked, 3);
    let expected = [
        r#"item {"id":1} untracked in place"#,
        r#"item {"id":2} untracked in place"#,
        r#"item {"id":3} untracked out"#,
        r#"item {"id":9} untracked in place"#,
    ];
    assert_eq!(aside(&f), expected);
    let rows = ["1|1.50", "3|3.10", "4|4.50", "5|5.00", "9|9.00"];
    assert_eq!(f.rows("SELECT id, price FROM item"), rows, "everything stands as it was written");
    assert_eq!(f.cut(), None, "nothing is sent by itself");
    let refused = f.remote.retry(&Choice::All).expect("none can be made again yet").left;
    assert!(refused.len() == 4 && refused.iter().all(|why| why.contains("sync first")), "{refused:?}");
    f.remote.drop_set_aside(&Choice::All).expect("the list begins anew");
    f.check();
}

/// What changed at the consolidated database between the two downloads comes with a third.
#[test]
fn what_changed_in_between_is_not_taken_for_changed_here() {
    let mut f = items();
    let sql = "UPDATE item SET price = price || '5' WHERE id < 4; DELETE FROM item WHERE id = 4; INSERT INTO item VALUES (9, 'north', 'adze', '9.00')";
    untracked_write(&mut f, "item", sql);
    f.download(f.down().holds("item", &north()));
    assert!(ask(&f));
    let now = [row("1,north,axe,$1.00"), row("2,north,saw,$2.50"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.50")];
    assert_eq!(f.download(f.down().whole("item", &north()).rows("item", &now)).untracked, 5);
    assert!(ask(&f) && asked_whole(&f) == [false]);
    f.sql("UPDATE item SET name = 'spade' WHERE id = 2");
    assert_eq!(f.cut(), None, "not before it is known what it is");

    let between = f.down().holds("item", &north()).rows("item", &[now[1].clone(), now[3].clone()]);
    f.download(between.delete("item", &[row("3")]));
    assert!(!ask(&f));
    let expected = [
        r#"item {"id":1} untracked in place"#,
        r#"item {"id":2} untracked out"#,
        r#"item {"id":3} untracked out"#,
        r#"item {"id":9} untracked in place"#,
    ];
    assert_eq!(aside(&f), expected, "the deletion has given way");
    let rows = ["1|axe|1.005", "2|saw|2.50", "4|awl|4.50", "9|adze|9.00"];
    assert_eq!(f.rows("SELECT id, name, price FROM item"), rows);
    f.check();

    assert_eq!(f.remote.retry(&Choice::All).expect("all can be sent").left, [""; 0]);
    let sent = [
        "item: 1,north,axe,1.00 -> 1,north,axe,1.005",
        "item: - -> 2,north,spade,2.005",
        "item: 3,NULL,NULL,NULL -> 3,north,hoe,3.005",
        "item: - -> 9,north,adze,9.00",
    ];
    assert_eq!(f.cut_changes(), sent, "a conflict, unless the rows are the same");
    let refusal = Refusal { code: RefusalCode::Check, message: String::new() };
    f.receipt((1..3).map(|ordinal| (ordinal, Outcome::Refused(refusal.clone()))).collect());
    f.remote.drop_set_aside(&Choice::All).expect("given up");
    let rows = ["1|axe|1.005", "2|saw|2.50", "4|awl|4.50", "9|adze|9.00"];
    assert_eq!(f.rows("SELECT id, name, price FROM item"), rows, "they are the consolidated rows again");
    f.check();
}

#[test]
fn they_are_sent_when_asked() {
    let mut f = items();
    let sql = "UPDATE item SET price = '1.50' WHERE id = 1; DELETE FROM item WHERE id = 2; \
               UPDATE item SET price = '3.50' WHERE id = 3; INSERT INTO item VALUES (9, 'north', 'adze', '9.00')";
    untracked_write(&mut f, "item", sql);
    f.download(f.down().holds("item", &north()).rows("item", &[row("3,north,hoe,$3.10")]));
    assert!(ask(&f));
    let now = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.10"), row("4,north,awl,$4.00")];
    f.download(f.down().whole("item", &north()).rows("item", &now));
    assert!(ask(&f));
    f.download(f.down().holds("item", &north()));
    // A later download of the table brings nothing up again.
    assert_eq!(f.download(f.down().whole("item", &north()).rows("item", &now)).untracked, 0);
    assert_eq!(
        (aside(&f).len(), f.rows("SELECT count(*) FROM temp.sqlite_schema WHERE name LIKE 'hw_before%'")[0].as_str()),
        (4, "0")
    );

    f.remote.retry(&Choice::All).expect("they can be sent");
    let sent = [
        "item: 1,north,axe,1.00 -> 1,north,axe,1.50",
        "item: 2,north,saw,2.00 -> -",
        "item: - -> 3,north,hoe,3.50",
        "item: - -> 9,north,adze,9.00",
    ];
    assert_eq!(f.cut_changes(), sent);
    f.receipt(Vec::new());
    assert!(aside(&f).is_empty());
    f.check();
}

#[test]
fn giving_it_up_makes_the_rows_what_the_consolidated_database_has() {
    let mut f = items();
    let sql = "UPDATE item SET name = 'x' WHERE id = 1; UPDATE item SET price = '0' WHERE id = 2; DELETE FROM item WHERE id = 3; \
               INSERT INTO item VALUES (9, 'north', 'adze', '9.00')";
    untracked_write(&mut f, "item", sql);
    f.download(f.down().holds("item", &north()));
    assert!(ask(&f));
    let now = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    f.download(f.down().whole("item", &north()).rows("item", &now));
    assert_eq!(aside(&f).len(), 4);
    f.remote.drop_set_aside(&Choice::All).expect("dropped");
    assert_eq!(f.rows("SELECT id, name, price FROM item"), ["1|axe|1.00", "2|saw|2.00", "3|hoe|3.00", "4|awl|4.00"]);
    assert_eq!(f.cut(), None);
    f.check();
}

/// The consolidated database sends the table whole at once, for a reason of its own.
#[test]
fn a_table_that_comes_whole_at_once_is_compared_at_once() {
    let mut f = items();
    let sql = "UPDATE item SET price = '1.50' WHERE id = 1; DELETE FROM item WHERE id = 2; \
               INSERT INTO item VALUES (9, 'north', 'adze', '9.00')";
    untracked_write(&mut f, "item", sql);
    let now = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    let south = [Value::text("south")];
    let down = f.down().whole("item", &south).whole("item", &north()).rows("item", &[row("8,south,key,$8.00")]);
    assert_eq!(f.download(down.rows("item", &now)).untracked, 2);
    let named = [r#"item {"id":1} untracked out"#, r#"item {"id":9} untracked in place"#];
    assert_eq!(aside(&f), named, "who has changed or deleted a row is not known");
    assert_eq!(f.rows("SELECT id, price FROM item"), ["1|1.00", "2|2.00", "3|3.00", "4|4.00", "8|8.00", "9|9.00"]);
    assert!(ask(&f), "perhaps not all partitions came");
    let down = f.down().whole("item", &south).rows("item", &[row("8,south,key,$8.00")]).whole("item", &north());
    assert_eq!(f.download(down.rows("item", &now)).untracked, 0, "all of it is on the list");
    assert!(ask(&f));
    f.download(f.down().holds("item", &south).holds("item", &north()));
    assert!(!ask(&f));
    assert_eq!(aside(&f), named);
    f.check();
}

/// A change that is set aside takes what the consolidated row has in other columns. The table comes afresh after tracking was off: that
/// the row is another than before is not what somebody wrote here then, and the list keeps the change as it stands.
#[test]
fn a_change_set_aside_is_merged_though_tracking_was_off() {
    let mut model = shop();
    model.tables[0].conflict = ConflictRule::Merge(Side::Consolidated);
    let mut f = Fixture::new(&model);
    let whole = |f: &Fixture, first| {
        f.down().whole("item", &north()).rows("item", &[row(first)]).whole("kind", &[]).whole("part", &[])
    };
    f.download(whole(&f, "1,north,axe,$1.00"));
    f.sql("UPDATE item SET name = 'bad' WHERE id = 1");
    f.cut();
    f.receipt(vec![(0, Outcome::Refused(Refusal { code: RefusalCode::Check, message: "no".to_owned() }))]);
    f.remote.reset().expect("starting afresh");
    drop_tracking(&f, "item");
    f.reopen();
    f.download(whole(&f, "1,north,axe,$2.00"));
    assert_eq!(f.rows("SELECT * FROM item"), ["1|north|bad|2.00"]);
    assert_eq!(f.rows("SELECT in_place, reason FROM hw_set_aside"), ["1|check"]);
    assert!(f.cut_changes().is_empty(), "nobody has mended it");
    assert_eq!(f.rows("SELECT in_place, reason FROM hw_set_aside"), ["1|check"]);
    f.check();
    f.download(f.down().rows("item", &[row("1,north,bad,$3.00")]));
    assert_eq!(f.rows("SELECT * FROM item"), ["1|north|bad|3.00"], "another made the same change");
    assert!(f.rows("SELECT 1 FROM hw_set_aside").is_empty() && f.cut_changes().is_empty());
    f.check();
}

/// Whatever left it so: a mark without an entry on the list would keep every later change of the row here.
#[test]
fn a_mark_without_an_entry_on_the_list_goes() {
    let f = items();
    f.sql("UPDATE item SET name = 'bad' WHERE id = 1");
    f.cut();
    f.receipt(vec![(0, Outcome::Refused(Refusal { code: RefusalCode::Check, message: "no".to_owned() }))]);
    f.sql("DELETE FROM hw_set_aside");
    assert_eq!(f.cut_changes(), ["item: 1,north,axe,1.00 -> 1,north,bad,1.00"]);
}

/// A trigger of the application's leaves a row out without a word, as long as a table is compared too.
#[test]
fn what_a_trigger_leaves_out_of_a_comparison_is_held() {
    let mut f = items();
    let all = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    untracked_write(&mut f, "item", "UPDATE item SET name = 'mine' WHERE id = 3");
    f.sql("CREATE TRIGGER own BEFORE UPDATE ON item WHEN new.id IN (2, 3) BEGIN SELECT RAISE(IGNORE); END");
    assert!(ask(&f));
    f.download(f.down().whole("item", &north()).rows("item", &all));
    let held = |f: &Fixture| f.remote.held(10).expect("a list").len();
    assert_eq!(held(&f), 1, "{:?} {:?}", f.rows("SELECT * FROM item"), aside(&f));
    assert_eq!(aside(&f), [r#"item {"id":3} untracked in place"#], "what was written meanwhile");
    f.sql("DROP TRIGGER own");
    f.remote.drop_set_aside(&crate::Choice::All).expect("given up");
    f.download(f.down());
    assert_eq!(
        (held(&f), f.rows("SELECT name FROM item ORDER BY id")),
        (0, ["axe", "saw", "hoe", "awl"].map(str::to_owned).to_vec())
    );
    f.check();
}

/// The shop of [`items`], with parts that lie where their item does.
fn items_and_parts() -> Fixture {
    let mut shop = shop();
    let part = shop.tables.iter_mut().find(|table| table.name == "part").expect("parts");
    part.references[0].table = 0;
    part.partition = Some(TablePartition { partition: 0, columns: Vec::new(), through: Some(0) });
    let f = Fixture::new(&shop);
    f.download(all(&f).whole("kind", &[]));
    f
}

const SOUTH: [&str; 3] = ["2,south,saw,$2.00", "3,south,hoe,$3.00", "4,south,awl,$4.00"];

/// All that the consolidated database has.
fn all(f: &Fixture) -> Down {
    let south = [Value::text("south")];
    let down = f.down().whole("item", &south).rows("item", &SOUTH.map(row)).whole("item", &north());
    let down = down.rows("item", &[row("1,north,axe,$1.00")]);
    down.whole("part", &south).rows("part", &[row("20,2,1")]).whole("part", &north()).rows("part", &[row("10,1,1")])
}

fn unchanged(f: &Fixture) -> Down {
    let south = [Value::text("south")];
    f.down().holds("item", &south).holds("item", &north()).holds("part", &south).holds("part", &north())
}

/// The membership that brought a partition ends: which of its rows were changed here nobody knows.
#[test]
fn a_partition_that_is_left_is_listed() {
    let south = [Value::text("south")];
    let left = |f: &Fixture| f.down().left("item", &south).left("part", &south);
    let listed = [
        r#"item {"id":2} untracked out"#,
        r#"item {"id":3} partition out"#,
        r#"item {"id":4} untracked out"#,
        r#"item {"id":9} untracked out"#,
        r#"part {"id":20} untracked out"#,
        r#"part {"id":90} untracked out"#,
    ];
    for is_whole in [false, true] {
        let mut f = items_and_parts();
        let sql = "UPDATE item SET name = name || '!' WHERE id IN (2, 4); INSERT INTO item VALUES (9, 'south', 'adze', '9.00'); \
                   INSERT INTO part VALUES (90, 9, 1)";
        f.sql("UPDATE item SET name = 'pending' WHERE id = 3");
        drop_tracking(&f, "part");
        untracked_write(&mut f, "item", sql);
        if is_whole {
            f.download(unchanged(&f).rows("item", &[row("4,south,awl,$4.50")]));
            assert!(ask(&f));
        }
        let down = left(&f).whole("item", &north()).rows("item", &[row("1,north,axe,$1.00")]);
        let down = down.whole("part", &north()).rows("part", &[row("10,1,1")]);
        f.download(if is_whole { down } else { left(&f).holds("item", &north()).holds("part", &north()) });
        let mut expected = listed.to_vec();
        if is_whole {
            // What stood here until it was replaced, and what came then: nobody knows any more that it did.
            expected.insert(2, listed[2]);
        }
        assert_eq!(aside(&f), expected, "{is_whole}");
        assert_eq!(f.rows("SELECT id, name FROM item UNION ALL SELECT id, 'part' FROM part"), ["1|axe", "10|part"]);
        assert_eq!(f.cut(), None, "{is_whole}");
        let written = f.rows("SELECT key_text FROM hw_set_aside WHERE new_text LIKE '%!%' ORDER BY 1");
        assert_eq!(written, [r#"{"id":2}"#, r#"{"id":4}"#], "{is_whole}: the list has the rows as they were written");
        f.check();
    }
}

/// Rows that lie in none of the remote's partitions never come, so that nothing shows them to differ.
#[test]
fn rows_outside_any_partition_were_made_here() {
    for is_restart in [false, true] {
        let mut f = items_and_parts();
        let sql = "INSERT INTO item VALUES (9, 'nowhere', 'adze', '9.00'); INSERT INTO part VALUES (90, 9, 1); \
                   UPDATE item SET region = 'nowhere' WHERE id = 2";
        drop_tracking(&f, "part");
        untracked_write(&mut f, "item", sql);
        if is_restart {
            f.remote.reset().expect("forgotten");
        } else {
            f.download(unchanged(&f));
            assert!(ask(&f));
        }
        f.download(all(&f));
        let two = if is_restart { "out" } else { "in place" };
        let expected = [
            format!(r#"item {{"id":2}} untracked {two}"#),
            r#"item {"id":9} untracked in place"#.to_owned(),
            r#"part {"id":90} untracked in place"#.to_owned(),
        ];
        assert_eq!(aside(&f), expected, "{is_restart}");
        assert_eq!(f.rows("SELECT id FROM item WHERE region = 'nowhere' AND id > 2"), ["9"]);
        assert_eq!(f.rows("SELECT id FROM part"), ["10", "20", "90"]);
        assert_eq!(f.cut(), None, "nothing is sent by itself");
        f.check();

        // Nor does a later restart drop them.
        f.download(f.down());
        f.remote.reset().expect("forgotten");
        f.download(all(&f));
        assert_eq!(aside(&f), expected, "{is_restart}");
        f.check();
    }
}

/// A partition comes for the first time. What stands there had not come down, and stays until the table is compared, whatever else comes.
#[test]
fn what_stands_in_a_partition_that_is_joined_stays() {
    let east = [Value::text("east")];
    for (is_whole, is_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut f = items_and_parts();
        let sql = "UPDATE item SET region = 'east', name = 'moved' WHERE id = 2; \
                   INSERT INTO item VALUES (9, 'east', 'adze', '9.00'), (8, 'east', 'key', '8.00'), (7, 'east', 'nut', '7.00')";
        untracked_write(&mut f, "item", sql);
        let theirs = [row("7,east,nut,$7.00"), row("8,east,theirs,$8.00")];
        let south = [Value::text("south")];
        let mut items = f.down();
        if is_first {
            items = items.whole("item", &east);
        }
        if is_whole {
            items = items.whole("item", &south).whole("item", &north());
        } else {
            items = items.holds("item", &south).holds("item", &north());
        }
        if !is_first {
            items = items.whole("item", &east);
        }
        if is_whole {
            items = items.rows("item", &SOUTH.map(row)).rows("item", &[row("1,north,axe,$1.00")]);
        }
        let parts = |down: Down| down.holds("part", &south).holds("part", &north());
        f.download(parts(items.rows("item", &theirs).whole("part", &east)));
        let there = f.rows("SELECT id FROM item UNION ALL SELECT id FROM part ORDER BY 1");
        assert_eq!(there, ["1", "2", "3", "4", "7", "8", "9", "10", "20"], "{is_whole} {is_first}");
        assert!(ask(&f));
        let items = f.down().whole("item", &south).whole("item", &east).whole("item", &north());
        let items = items.rows("item", &SOUTH.map(row)).rows("item", &[row("1,north,axe,$1.00")]).rows("item", &theirs);
        let parts = |down: Down| down.whole("part", &south).whole("part", &north()).whole("part", &east);
        f.download(parts(items).rows("part", &[row("10,1,1"), row("20,2,1")]));
        let two = if is_whole { "out" } else { "in place" };
        let expected = [
            format!(r#"item {{"id":2}} untracked {two}"#),
            r#"item {"id":8} untracked out"#.to_owned(),
            r#"item {"id":9} untracked in place"#.to_owned(),
        ];
        assert_eq!(aside(&f), expected, "{is_whole} {is_first}");
        assert_eq!(f.rows("SELECT id FROM item UNION ALL SELECT id FROM part ORDER BY 1"), there);
        f.check();
    }
}

/// A row of it has the unique value of one that was here, which steps aside until its own deletion comes. What is below that has lost its
/// parent only for now, and is not swept with what has lost it for good.
#[test]
fn what_is_below_a_row_that_steps_aside_for_a_joined_one_is_listed() {
    let (south, east) = ([Value::text("south")], [Value::text("east")]);
    for is_gone in [true, false] {
        let mut f = items_and_parts();
        untracked_write(&mut f, "part", "UPDATE part SET no = 2 WHERE id = 20; INSERT INTO part VALUES (90, 2, 1)");
        let items = f.down().whole("item", &east).rows("item", &[row("7,east,saw,$7.00")]);
        let items = items.holds("item", &south).holds("item", &north());
        let parts = |items: Down| items.whole("part", &east).holds("part", &south).holds("part", &north());
        if is_gone {
            f.download(parts(items.delete("item", &[row("2")])).delete("part", &[row("20")]));
        } else {
            f.download(parts(items.rows("item", &[row("2,south,file,$2.00")])));
        }
        let there = f.rows("SELECT id FROM item UNION ALL SELECT id FROM part ORDER BY 1");
        assert!(ask(&f));
        let parts = f.down().whole("part", &south).whole("part", &east).whole("part", &north());
        let came = if is_gone { vec![row("10,1,1")] } else { vec![row("10,1,1"), row("20,2,1")] };
        f.download(parts.rows("part", &came));
        let how = if is_gone { "out" } else { "in place" };
        let expected = [20, 90].map(|id| format!(r#"part {{"id":{id}}} untracked {how}"#));
        assert_eq!(aside(&f), expected, "{is_gone}");
        let expected =
            if is_gone { &["1", "3", "4", "7", "10"][..] } else { &["1", "2", "3", "4", "7", "10", "20", "90"] };
        assert_eq!(there, expected, "{is_gone}");
        assert_eq!(f.rows("SELECT id FROM item UNION ALL SELECT id FROM part ORDER BY 1"), there, "{is_gone}");
        f.check();
    }
}

/// It comes with the download that is compared: who made the row that differs there nobody knows, and what is below it stays too.
#[test]
fn a_partition_that_is_joined_while_the_table_is_compared() {
    let (south, east) = ([Value::text("south")], [Value::text("east")]);
    let mut f = items_and_parts();
    let sql = "UPDATE item SET name = name || '!' WHERE id IN (1, 3); UPDATE item SET region = 'east' WHERE id = 2; \
               INSERT INTO item VALUES (8, 'east', 'key', '8.00'), (9, 'east', 'adze', '9.00')";
    untracked_write(&mut f, "item", sql);
    f.download(unchanged(&f));
    assert!(ask(&f));
    let items = f.down().whole("item", &south).whole("item", &east).whole("item", &north());
    let came = [
        row("1,north,axe,$1.00"),
        row("2,south,saw,$2.00"),
        row("3,east,hoe,$3.00"),
        row("4,south,awl,$4.00"),
        row("7,east,nut,$7.00"),
        row("8,east,theirs,$8.00"),
    ];
    let parts = items.rows("item", &came).whole("part", &east).whole("part", &south).whole("part", &north());
    f.download(parts.rows("part", &[row("10,1,1"), row("20,2,1")]));
    let expected = [
        r#"item {"id":1} untracked in place"#,
        r#"item {"id":2} untracked in place"#,
        r#"item {"id":3} untracked out"#,
        r#"item {"id":8} untracked out"#,
        r#"item {"id":9} untracked in place"#,
    ];
    assert_eq!(aside(&f), expected);
    let rows =
        ["1|north|axe!", "2|east|saw", "3|east|hoe", "4|south|awl", "7|east|nut", "8|east|theirs", "9|east|adze"];
    assert_eq!(f.rows("SELECT id, region, name FROM item ORDER BY id"), rows);
    assert_eq!(f.rows("SELECT id FROM part"), ["10", "20"]);
    f.check();
}

/// An index that the application made on a table without rows or changes, one that the triggers know, and one that is gone.
#[test]
fn tracking_that_is_only_out_of_date_raises_no_doubt() {
    let mut f = items();
    f.sql("CREATE UNIQUE INDEX empty ON kind (name)");
    f.sql("CREATE UNIQUE INDEX own ON item (name); CREATE INDEX not_unique ON item (price)");
    f.reopen();
    f.reopen();
    assert!(!ask(&f), "the model has the first, and nothing is replaced through the other");
    f.sql("DROP INDEX own; CREATE UNIQUE INDEX again ON kind (name); INSERT INTO kind VALUES (1, 'hand')");
    f.reopen();
    assert!(!ask(&f));
    f.sql("DROP INDEX empty; DROP INDEX again");
    f.reopen();
    assert!(!ask(&f));
    let down = f.down();
    f.download(down);
    f.check();
}

/// `REPLACE` through a unique index that no trigger knows yet deletes rows without a trace.
#[test]
fn a_row_replaced_through_a_new_unique_index_is_found() {
    let now = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    for index in ["(price)", "(region, price)", "(lower(price))", "(price) WHERE id > 1"] {
        let mut f = items();
        f.sql(&format!("CREATE UNIQUE INDEX own ON item {index}"));
        f.sql("REPLACE INTO item VALUES (9, 'north', 'adze', '2.00'); UPDATE item SET price = '9.00' WHERE id = 9");
        f.reopen();
        assert_eq!(f.cut_changes(), ["item: - -> 9,north,adze,9.00"], "{index}");
        f.receipt(Vec::new());
        f.download(f.down().holds("item", &north()));
        assert!(ask(&f), "{index}");
        let nine = [row("9,north,adze,$9.00")];
        f.download(f.down().whole("item", &north()).rows("item", &now).rows("item", &nine));
        assert_eq!(aside(&f), [r#"item {"id":2} untracked in place"#], "{index}");
        f.download(f.down().holds("item", &north()));
        assert!(!ask(&f));
        f.remote.retry(&Choice::All).expect("sent");
        assert_eq!(f.cut_changes(), ["item: 2,north,saw,2.00 -> -"], "{index}");
        f.receipt(Vec::new());
        f.reopen();
        assert!(!ask(&f), "it is known now");
        f.check();
    }
}

/// The row that has replaced it still has the value: nothing else can stand beside it.
#[test]
fn a_row_replaced_through_a_new_unique_index_is_held_where_it_does_not_fit() {
    let mut f = items();
    f.sql("CREATE UNIQUE INDEX own ON item (price); REPLACE INTO item VALUES (9, 'north', 'adze', '2.00')");
    f.upload_all();
    f.reopen();
    f.download(f.down().holds("item", &north()));
    assert!(ask(&f));
    let now = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    let nine = [row("9,north,adze,$2.00")];
    f.download(f.down().whole("item", &north()).rows("item", &now).rows("item", &nine));
    f.download(f.down().holds("item", &north()));
    let held = f.remote.held(10).expect("a list");
    assert_eq!(held.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), [r#"{"id":2}"#]);
    f.check();
}

/// Each index is known by all that it says: another over one of its columns, or without its condition, is new.
#[test]
fn a_unique_index_beside_a_similar_one_is_new() {
    for (known, new) in
        [("(price, region)", "(price)"), ("(price) WHERE id > 1", "(price)"), ("(price)", "(price COLLATE NOCASE)")]
    {
        let mut f = items();
        f.sql("DELETE FROM kind; INSERT INTO item VALUES (5, 'south', 'bit', '1.01')");
        f.sql(&format!("CREATE UNIQUE INDEX known ON item {known}"));
        f.reopen();
        f.download(f.down().holds("item", &north()));
        assert!(ask(&f), "{known}");
        f.sql("UPDATE hw_tracking SET doubt = 0");
        f.reopen();
        assert!(!ask(&f), "{known}");
        f.sql(&format!("CREATE UNIQUE INDEX new ON item {new}"));
        f.reopen();
        assert!(ask(&f), "{known}, then {new}");
    }
}

#[test]
fn a_unique_index_that_is_made_while_a_sync_runs_is_new() {
    let f = items();
    f.sql("CREATE UNIQUE INDEX own ON item (price); REPLACE INTO item VALUES (9, 'north', 'adze', '2.00')");
    f.download(f.down().holds("item", &north()));
    assert!(ask(&f));
    f.sql("REPLACE INTO item VALUES (8, 'north', 'key', '3.00')");
    assert!(f.cut_changes().contains(&"item: 3,north,hoe,3.00 -> -".to_owned()), "{:?}", f.upload());
}

/// SQLite's own steps for changes of a table, by a tool that puts the triggers back as they were.
fn rebuild(f: &Fixture, filled_by: &str) {
    let triggers = f.rows("SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'item' ORDER BY rowid");
    let sql = f.rows("SELECT sql FROM sqlite_schema WHERE name = 'item'")[0].replacen("\"item\"", "new_item", 1);
    f.sql(&format!(
        "PRAGMA foreign_keys = off; BEGIN; {sql}; {filled_by}; DROP TABLE item; ALTER TABLE new_item RENAME TO item"
    ));
    for sql in &triggers {
        f.sql(sql);
    }
    f.sql("COMMIT; PRAGMA foreign_keys = on");
}

#[test]
fn a_table_made_anew_with_its_triggers_is_compared() {
    for is_vacuumed in [false, true] {
        let mut f = items();
        f.sql("UPDATE item SET price = '3.50' WHERE id = 3");
        rebuild(&f, "INSERT INTO new_item SELECT id, region, upper(name), price FROM item WHERE id <> 4");
        if is_vacuumed {
            f.sql("VACUUM");
        }
        f.sql("UPDATE item SET price = '2.50' WHERE id = 2");
        f.reopen();
        f.reopen();
        let expected = ["item: 2,north,SAW,2.00 -> 2,north,SAW,2.50", "item: 3,north,hoe,3.00 -> 3,north,HOE,3.50"];
        assert_eq!(f.cut_changes(), expected, "what was pending, and what was tracked since");
        f.receipt(Vec::new());
        f.download(f.down().holds("item", &north()));
        assert!(ask(&f));
        let now =
            [row("1,north,axe,$1.00"), row("2,north,SAW,$2.50"), row("3,north,HOE,$3.50"), row("4,north,awl,$4.00")];
        f.download(f.down().whole("item", &north()).rows("item", &now));
        f.download(f.down().holds("item", &north()));
        assert_eq!(aside(&f), [r#"item {"id":1} untracked in place"#, r#"item {"id":4} untracked in place"#]);
        f.reopen();
        f.sql("UPDATE item SET price = '9' WHERE id = 2; VACUUM");
        f.reopen();
        assert!(!ask(&f), "once");
        assert_eq!(f.cut_changes(), ["item: 2,north,SAW,2.50 -> 2,north,SAW,9"]);
        f.check();
    }
}

/// Rows with a pending change that were not taken along are not deleted for everybody.
#[test]
fn a_table_made_anew_with_its_triggers_deletes_nothing() {
    let mut f = items();
    f.sql("UPDATE item SET price = '3.50' WHERE id = 3");
    rebuild(&f, "INSERT INTO new_item SELECT * FROM item WHERE id <> 3");
    f.reopen();
    assert_eq!(f.cut(), None);
    assert_eq!(aside(&f), [r#"item {"id":3} gone in place"#]);
    f.check();
}

/// Only the triggers are new.
#[test]
fn triggers_made_again_as_they_were_are_noticed() {
    for table in ["item", "kind"] {
        let mut f = items();
        let read = format!("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}'");
        let triggers = f.rows(&read);
        drop_tracking(&f, table);
        for trigger in triggers {
            f.sql(trigger.split_once('|').expect("two columns").1);
        }
        f.reopen();
        assert!(ask(&f), "{table}");
    }
}

/// What leaves the order as it is: changes of a table by ALTER, VACUUM, an index, a file of an earlier build without the marker.
#[test]
fn a_table_that_was_not_made_anew_raises_no_doubt() {
    let mut f = items();
    for sql in [
        "ALTER TABLE item ADD COLUMN extra; ALTER TABLE item DROP COLUMN extra",
        "VACUUM",
        "ALTER TABLE item RENAME TO other; ALTER TABLE other RENAME TO item",
        "CREATE INDEX own ON item (price); CREATE TRIGGER own_trigger AFTER INSERT ON item BEGIN SELECT 1; END",
        "DROP VIEW hw_made_item",
        "REINDEX; ANALYZE",
        "VACUUM",
    ] {
        f.sql(sql);
        f.reopen();
        assert!(!ask(&f), "{sql}");
    }
    // An earlier build made a table again that was dropped, and left the log in front of it.
    f.sql("UPDATE item SET price = '1.50' WHERE id = 1");
    rebuild(&f, "INSERT INTO new_item SELECT * FROM item");
    f.sql("DROP VIEW hw_made_item; INSERT INTO kind VALUES (1, 'tool')");
    f.reopen();
    assert!(!ask(&f));
    assert_eq!(
        f.cut_changes(),
        ["kind: - -> 1,tool", "item: 1,north,axe,1.00 -> 1,north,axe,1.50"]
            .map(str::to_owned)
            .into_iter()
            .rev()
            .collect::<Vec<_>>()
    );
    f.reopen();
    assert!(!ask(&f));
    f.check();
}

/// Rows of a table that only comes down can't be pending: they give way, and are on the list.
#[test]
fn a_table_that_only_comes_down() {
    let mut only = table("price", &[("id", Type::Int), ("amount", Type::Decimal)]);
    only.direction = Direction::Download;
    let mut f = Fixture::new(&model(vec![only]));
    let rows = [row("1,$1.00"), row("2,$2.00")];
    f.download(f.down().whole("price", &[]).rows("price", &rows));
    untracked_write(
        &mut f,
        "price",
        "UPDATE price SET amount = '0.01' WHERE id = 1; UPDATE price SET amount = '2' WHERE id = 2",
    );
    f.download(f.down());
    assert!(ask(&f));
    f.download(f.down().whole("price", &[]).rows("price", &rows));
    assert_eq!(f.rows("SELECT * FROM price"), ["1|1.00", "2|2.00"]);
    assert_eq!(aside(&f), [r#"price {"id":1} untracked out"#], "the same number is no difference");
    let left = f.remote.retry(&Choice::All).expect("said").left;
    assert!(left.len() == 1 && left[0].contains("only comes down"), "{left:?}");
    f.check();
}

/// Nor can they stand in a partition that comes for the first time.
#[test]
fn a_partition_that_is_joined_and_only_comes_down() {
    let east = [Value::text("east")];
    let mut shop = shop();
    shop.tables[0].direction = Direction::Download;
    let mut f = Fixture::new(&shop);
    f.download(f.down().whole("item", &north()).rows("item", &[row("1,north,axe,$1.00")]));
    let sql = "UPDATE item SET region = 'east' WHERE id = 1; INSERT INTO item VALUES (9, 'east', 'adze', '9.00')";
    untracked_write(&mut f, "item", sql);
    let seven = [row("7,east,nut,$7.00")];
    f.download(f.down().holds("item", &north()).whole("item", &east).rows("item", &seven));
    assert!(ask(&f));
    let down = f.down().whole("item", &north()).whole("item", &east).rows("item", &[row("1,north,axe,$1.00")]);
    f.download(down.rows("item", &seven));
    assert_eq!(aside(&f), [r#"item {"id":1} untracked out"#, r#"item {"id":9} untracked out"#]);
    assert_eq!(f.rows("SELECT id, region FROM item"), ["1|north", "7|east"]);
    f.check();
}

const SHOUT: &str =
    "CREATE TRIGGER own AFTER INSERT ON item BEGIN UPDATE item SET name = upper(name) WHERE id = NEW.id; END";

/// A trigger of the application's writes to a row that comes while its table is compared. What the consolidated database has is what came.
#[test]
fn giving_it_up_makes_the_rows_what_came_whatever_a_trigger_wrote() {
    let mut f = items();
    untracked_write(&mut f, "item", "DELETE FROM item WHERE id = 2; UPDATE item SET price = '3.50' WHERE id = 3");
    f.download(f.down().holds("item", &north()));
    assert!(ask(&f));
    f.sql(SHOUT);
    let now = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    f.download(f.down().whole("item", &north()).rows("item", &now));
    assert_eq!(aside(&f), [r#"item {"id":2} untracked in place"#, r#"item {"id":3} untracked in place"#]);
    f.sql("DROP TRIGGER own");
    f.remote.drop_set_aside(&Choice::All).expect("dropped");
    assert_eq!(f.rows("SELECT id, name, price FROM item"), ["1|axe|1.00", "2|saw|2.00", "3|hoe|3.00", "4|awl|4.00"]);
    assert_eq!(f.cut(), None);
    f.check();
}

/// Downloads until the table has been compared, with this trigger on it.
fn compared_with(f: &mut Fixture, trigger: &str, now: &[Row]) {
    f.download(f.down().holds("item", &north()));
    assert!(ask(f));
    f.sql(trigger);
    f.download(f.down().whole("item", &north()).rows("item", now));
    assert!(ask(f));
    f.download(f.down().holds("item", &north()));
    assert!(!ask(f));
}

/// Nothing was untracked there: what a trigger wrote is pending, from what came, in the row that came and in others.
#[test]
fn what_triggers_write_while_a_table_is_compared_is_pending() {
    let mut f = items();
    untracked_write(&mut f, "item", "UPDATE item SET name = 'SAW' WHERE id = 2");
    let trigger = "CREATE TRIGGER own AFTER UPDATE ON item WHEN NEW.id = 2 AND NEW.name = 'saw' BEGIN \
                   UPDATE item SET name = 'SAW' WHERE id = 2; UPDATE item SET price = '9' WHERE id IN (1, 3); \
                   DELETE FROM item WHERE id = 4; INSERT INTO item VALUES (8, 'north', 'made', '8'); END";
    let now = [row("1,north,axe,$1.00"), row("4,north,awl,$4.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00")];
    compared_with(&mut f, trigger, &now);
    assert_eq!(aside(&f), [r#"item {"id":2} untracked in place"#], "it was so here, and not there");
    let rows = ["1|axe|9", "2|SAW|2.00", "3|hoe|3.00", "8|made|8"];
    assert_eq!(f.rows("SELECT id, name, price FROM item"), rows);
    let sent = ["item: 1,north,axe,1.00 -> 1,north,axe,9", "item: 4,north,awl,4.00 -> -", "item: - -> 8,north,made,8"];
    assert_eq!(f.cut_changes(), sent);
    f.receipt(Vec::new());
    f.remote.retry(&Choice::All).expect("sent");
    assert_eq!(f.cut_changes(), ["item: 2,north,saw,2.00 -> 2,north,SAW,2.00"]);
    f.check();
}

/// What was written here is put back, and a trigger writes to that row and to others.
#[test]
fn what_triggers_make_of_what_is_put_back_is_on_the_list() {
    let mut f = items();
    untracked_write(&mut f, "item", "UPDATE item SET price = '3.50' WHERE id = 3");
    let trigger = "CREATE TRIGGER own AFTER UPDATE ON item WHEN NEW.price = '3.50' BEGIN \
                   UPDATE item SET name = 'stamped' WHERE id = NEW.id; UPDATE item SET price = '9' WHERE id = 1; END";
    let now = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    compared_with(&mut f, trigger, &now);
    assert_eq!(aside(&f), [r#"item {"id":3} untracked in place"#]);
    assert_eq!(f.cut_changes(), ["item: 1,north,axe,1.00 -> 1,north,axe,9"], "nobody has mended the other");
    f.receipt(Vec::new());
    f.remote.retry(&Choice::All).expect("sent");
    assert_eq!(f.cut_changes(), ["item: 3,north,hoe,3.00 -> 3,north,stamped,3.50"]);
    f.check();
}

/// A row that came, and was held or stepped aside after a trigger had written to it, is held as it came.
#[test]
fn what_is_held_of_a_table_that_is_compared_is_what_came() {
    let mut f = items_and_parts();
    untracked_write(&mut f, "part", "DELETE FROM part WHERE id = 20");
    f.download(unchanged(&f));
    assert!(ask(&f));
    f.sql("CREATE TRIGGER own AFTER INSERT ON part BEGIN UPDATE part SET no = 99 WHERE id = NEW.id; END");
    let south = [Value::text("south")];
    let parts = f.down().whole("part", &south).rows("part", &[row("20,2,1"), row("21,7,1")]);
    f.download(parts.whole("part", &north()).rows("part", &[row("10,1,1")]));
    let held = f.remote.held(9).expect("a list");
    let shown: Vec<_> = held.iter().map(|held| held.row.clone().unwrap_or_default()).collect();
    assert_eq!(shown, [r#"{"id":21,"item":7,"no":1}"#]);
    assert_eq!(aside(&f), [r#"part {"id":20} untracked in place"#], "the other is not stored before its item is here");
    f.check();
}

/// A connection that has triggers switched off leaves no trace in the file: whoever knows of it asks for a comparison.
#[test]
fn writes_without_triggers_are_found_by_a_comparison() {
    let mut f = items();
    f.application.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).expect("switched off");
    f.sql("UPDATE item SET name = 'ours' WHERE id = 1; DELETE FROM item WHERE id = 2; INSERT INTO item VALUES (9, 'north', 'new', '9.00')");
    f.application.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, true).expect("switched on");
    f.sql("UPDATE item SET name = 'seen' WHERE id = 3");
    f.reopen();
    assert!(!ask(&f), "nothing shows it");
    assert_eq!(f.cut_changes().len(), 1, "what the triggers saw");
    f.receipt(Vec::new());
    assert_eq!(f.remote.compare().expect("asked"), 3, "all of them go both ways");
    f.download(f.down().holds("item", &north()).holds("kind", &[]).holds("part", &[]));
    assert!(ask(&f));
    let all = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,seen,$3.00"), row("4,north,awl,$4.00")];
    f.download(f.down().whole("item", &north()).rows("item", &all).whole("kind", &[]).whole("part", &[]));
    assert_eq!(
        aside(&f),
        [
            r#"item {"id":1} untracked in place"#,
            r#"item {"id":2} untracked in place"#,
            r#"item {"id":9} untracked in place"#
        ]
    );
    assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("dropped"), 3);
    assert_eq!(f.rows("SELECT id, name FROM item ORDER BY id"), ["1|axe", "2|saw", "3|seen", "4|awl"]);
    f.check();
}

/// A table that only comes down has no list of changes: it comes whole.
#[test]
fn a_comparison_brings_tables_whole_that_only_come_down() {
    let mut model = super::support::shop();
    model.tables[1].direction = Direction::Download;
    let mut f = Fixture::new(&model);
    let whole = |f: &Fixture| f.down().whole("kind", &[]).rows("kind", &[row("1,tool"), row("2,toy")]);
    f.download(whole(&f).whole("item", &north()).whole("part", &[]));
    f.application.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).expect("switched off");
    f.sql(
        "UPDATE kind SET name = 'mine' WHERE id = 1; DELETE FROM kind WHERE id = 2; INSERT INTO kind VALUES (9, 'new')",
    );
    assert_eq!(f.remote.compare().expect("asked"), 3);
    assert!(
        !f.rows("SELECT \"table\" FROM hw_watermark").contains(&"1".to_owned()),
        "the next sync asks for all of it"
    );
    f.download(whole(&f).holds("item", &north()).holds("part", &[]));
    assert_eq!(f.rows("SELECT * FROM kind"), ["1|tool", "2|toy"]);
    f.check();
}
