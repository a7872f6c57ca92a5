//! Tables of the model that the application has dropped or renamed.

use headwater_protocol::Value;
use headwater_protocol::message::{Outcome, Refusal, RefusalCode};

use super::support::{Fixture, row, shop};
use crate::{Choice, Error, Remote};

fn items() -> Fixture {
    let f = Fixture::new(&shop());
    let rows = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00")];
    f.download(
        f.down().whole("item", &[Value::text("north")]).rows("item", &rows).whole("kind", &[]).whole("part", &[]),
    );
    f
}

#[test]
fn a_dropped_table_comes_again_and_nothing_is_deleted_by_it() {
    let mut f = items();
    f.sql("UPDATE item SET price = '9.00' WHERE id = 1; INSERT INTO kind VALUES (5, 'new'); DROP TABLE item");
    f.reopen();
    assert_eq!(f.rows("SELECT count(*) FROM item"), ["0"]);
    assert_eq!(f.rows("SELECT \"table\" FROM hw_watermark"), ["1", "2"], "it comes whole");
    let old = r#"{"id":1,"region":"north","name":"axe","price":"1.00"}"#;
    let list = f.remote.set_aside(9).expect("a list");
    assert_eq!((list.len(), list[0].reason.as_str(), list[0].old.as_deref()), (1, "gone", Some(old)));
    let left = f.remote.retry(&Choice::All).expect("none can be made again").left;
    assert!(left.len() == 1 && left[0].contains("make it once more"), "{left:?}");
    assert_eq!(f.cut_changes(), ["kind: - -> 5,new"], "the other tables' changes are as they were");
    f.receipt(Vec::new());
    let rows = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00")];
    f.download(f.down().whole("item", &[Value::text("north")]).rows("item", &rows));
    assert_eq!(f.rows("SELECT id, price FROM item"), ["1|1.00", "2|2.00"]);
    f.sql("UPDATE item SET price = '3.00' WHERE id = 2");
    assert_eq!(f.cut_changes(), ["item: 2,north,saw,2.00 -> 2,north,saw,3.00"], "it is tracked");
    f.check();
}

/// The upload that was on its way goes on, whatever becomes of it.
#[test]
fn an_upload_on_its_way_outlives_the_table() {
    for is_thawed in [true, false] {
        let mut f = items();
        f.sql("UPDATE item SET price = '9.00' WHERE id = 1; INSERT INTO item VALUES (3, 'north', 'hoe', '3.00'); DELETE FROM item WHERE id = 2");
        let sent = f.cut_changes();
        f.sql("DROP TABLE item");
        f.reopen();
        assert_eq!(f.rows("SELECT id, price FROM item"), ["1|9.00", "3|3.00"]);
        if is_thawed {
            let thaw = |connection: &_| crate::cut::thaw(connection, &f.remote.plan, false);
            f.remote.database.write("thawing", thaw).expect("thawed");
            assert_eq!(f.cut_changes(), sent, "and nothing else");
        } else {
            f.receipt(vec![(0, Outcome::Refused(Refusal { code: RefusalCode::Check, message: String::new() }))]);
            assert_eq!(f.set_aside(), [r#"item {"id":1} check in place"#]);
            assert_eq!(f.cut(), None);
        }
        f.check();
    }
}

#[test]
fn a_change_set_aside_outlives_the_table() {
    let mut f = items();
    f.sql("UPDATE item SET price = '9.00' WHERE id = 1");
    f.cut();
    f.receipt(vec![(0, Outcome::Refused(Refusal { code: RefusalCode::Check, message: String::new() }))]);
    f.sql("DROP TABLE item");
    f.reopen();
    assert_eq!((f.set_aside(), f.cut()), (vec![r#"item {"id":1} check out"#.to_owned()], None));
    f.download(f.down().whole("item", &[Value::text("north")]).rows("item", &[row("1,north,axe,$1.00")]));
    f.remote.retry(&Choice::All).expect("sent again");
    assert_eq!(f.cut_changes(), ["item: 1,north,axe,1.00 -> 1,north,axe,9.00"]);
    f.check();
}

#[test]
fn a_renamed_table_is_named_and_has_all_its_changes_when_it_is_back() {
    let mut f = items();
    f.sql("UPDATE item SET price = '9.00' WHERE id = 1; ALTER TABLE item RENAME TO \"my items\"");
    let error = Remote::open(f.remote.path()).expect_err("the table is gone").to_string();
    assert!(error.contains(r#"rename it back (ALTER TABLE "my items" RENAME TO "item")"#), "{error}");
    f.sql("UPDATE \"my items\" SET price = '8.00' WHERE id = 2; ALTER TABLE \"my items\" RENAME TO item");
    f.reopen();
    assert!(
        crate::untracked::doubts(&f.remote.database.connection, &f.remote.plan)
            .expect("read")
            .iter()
            .all(|d| *d == crate::untracked::Doubt::None)
    );
    assert_eq!(
        f.cut_changes(),
        ["item: 1,north,axe,1.00 -> 1,north,axe,9.00", "item: 2,north,saw,2.00 -> 2,north,saw,8.00"]
    );
    f.check();
}

/// The application renames a table, and puts a view that shows its rows in its place.
#[test]
fn a_view_in_the_place_of_a_table_is_named_and_nothing_is_lost() {
    let mut f = items();
    f.sql("UPDATE item SET price = '9.00' WHERE id = 1; ALTER TABLE item RENAME TO item_data; CREATE VIEW item AS SELECT * FROM item_data");
    let error = Remote::open(f.remote.path()).expect_err("the table is gone").to_string();
    assert!(error.contains("\"item\" of the model is a view now") && error.contains("nothing is lost"), "{error}");
    assert!(error.contains(r#"(ALTER TABLE "item_data" RENAME TO "item")"#), "{error}");
    f.sql("UPDATE item_data SET price = '8.00' WHERE id = 2; DROP VIEW item; ALTER TABLE item_data RENAME TO item");
    f.reopen();
    assert_eq!(
        f.cut_changes(),
        ["item: 1,north,axe,1.00 -> 1,north,axe,9.00", "item: 2,north,saw,2.00 -> 2,north,saw,8.00"]
    );
    f.check();

    // A view of another table's rows, in the place of one that was dropped.
    let f = items();
    f.sql("DROP TABLE kind; CREATE VIEW kind AS SELECT id, name FROM item");
    let error = Remote::open(f.remote.path()).expect_err("a view").to_string();
    assert!(error.contains(r#"drop the view (DROP VIEW "kind")"#), "{error}");
}

/// A reference whose columns the consolidated database compares in another way than by bytes is not made here.
#[test]
fn a_reference_of_another_equality_is_not_enforced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remote.db");
    let mut model = shop();
    model.unenforced = vec![(2, 0)];
    let options = crate::CreateOptions::new("http://127.0.0.1:1", "ann");
    let remote = Remote::create(&path, &model, &options).expect("a remote");
    assert_eq!(remote.plan.fingerprint, shop().fingerprint(), "it is a remote of the same model");
    let count =
        |sql: &str| -> i64 { remote.database.connection.query_row(sql, [], |row| row.get(0)).expect("a count") };
    let references = "SELECT count(*) FROM pragma_foreign_key_list('part')";
    assert_eq!(count(references), 0);
    drop(Remote::open(&path).expect("it opens"));
    // Made again it is as it was.
    remote.database.connection.execute_batch("DROP TABLE part").expect("dropped");
    let again = Remote::open(&path).expect("it opens");
    assert_eq!((count(references), again.plan.fingerprint), (0, shop().fingerprint()));
}

/// A file of an older layout: what it lacks is not looked for.
#[test]
fn a_file_of_another_layout_is_named() {
    let f = Fixture::new(&shop());
    f.sql("ALTER TABLE hw_state DROP COLUMN upload_refused; UPDATE hw_state SET format = 1");
    let error = Remote::open(f.remote.path()).expect_err("another layout");
    assert!(matches!(error, Error::Layout { actual: 1, .. }), "{error}");
    assert!(error.to_string().contains("sync it once more with the version that made it"), "{error}");
}

/// A table that is dropped and made anew while a sync is on its way: what was written to it meanwhile is in no log.
#[test]
fn what_is_written_to_a_table_made_anew_during_a_sync_is_not_overwritten_in_silence() {
    let f = items();
    f.sql(ANEW);
    f.sql("INSERT INTO item VALUES (1, 'north', 'axe', '1.50'), (2, 'north', 'saw', '2.50')");
    let applied = f.download(f.down().holds("item", &[Value::text("north")]).rows("item", &[row("1,north,axe,$1.10")]));
    assert_eq!(applied.untracked, 1);
    assert_eq!(f.set_aside(), [r#"item {"id":1} untracked out"#]);
    assert!(crate::untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"), "the table comes whole");
    f.sql("INSERT INTO item VALUES (9, 'north', 'adze', '9.00')");
    assert_eq!(f.cut_changes(), ["item: - -> 9,north,adze,9.00"], "it is tracked again");
    f.check();
}

const ANEW: &str =
    "DROP TABLE item; CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, region TEXT, name TEXT UNIQUE, price TEXT);";

/// Rows with a pending change that are not in a table that was made anew: nobody asked to have them deleted for everybody.
#[test]
fn a_table_made_anew_deletes_nothing_and_tells_what_it_lacks() {
    for is_meanwhile in [false, true] {
        let mut f = items();
        f.sql("UPDATE item SET price = '9.00' WHERE id = 1; INSERT INTO item VALUES (3, 'north', 'hoe', '3.00')");
        f.sql(ANEW);
        if !is_meanwhile {
            f.reopen();
        }
        assert_eq!(f.cut_changes(), Vec::<String>::new());
        assert_eq!(f.set_aside(), [r#"item {"id":3} gone out"#, r#"item {"id":1} gone in place"#]);
        f.download(f.down().holds("item", &[Value::text("north")]));
        assert!(crate::untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"));
        let rows = [row("1,north,axe,$1.00"), row("2,north,saw,$2.00")];
        f.download(f.down().whole("item", &[Value::text("north")]).rows("item", &rows));
        f.download(f.down().holds("item", &[Value::text("north")]));
        let expected =
            [r#"item {"id":2} untracked in place"#, r#"item {"id":3} gone out"#, r#"item {"id":1} gone in place"#];
        assert_eq!(f.set_aside(), expected);
        assert_eq!(f.cut(), None, "nothing is deleted by itself");
        if is_meanwhile {
            assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("given up"), 3);
            assert_eq!(f.rows("SELECT id, price FROM item"), ["1|1.00", "2|2.00"]);
            assert_eq!(f.cut(), None);
        } else {
            assert_eq!(f.remote.retry(&Choice::All).expect("sent").changes, 2);
            assert_eq!(f.cut_changes(), ["item: 1,north,axe,1.00 -> -", "item: 2,north,saw,2.00 -> -"]);
        }
        f.check();
    }
}

/// What is made again in it goes up as a change of the row that was there.
#[test]
fn a_row_made_again_in_a_table_made_anew_is_pending() {
    let mut f = items();
    f.sql("UPDATE item SET price = '9.00' WHERE id = 1");
    f.sql(ANEW);
    f.reopen();
    f.sql("INSERT INTO item VALUES (1, 'north', 'axe', '8.00')");
    assert_eq!(f.cut_changes(), ["item: 1,north,axe,1.00 -> 1,north,axe,8.00"]);
    f.receipt(Vec::new());
    assert_eq!(f.set_aside(), Vec::<String>::new());
    f.check();
}

/// An upload was on its way when the table was made anew, and comes back: it says what it said.
#[test]
fn an_upload_on_its_way_outlives_a_table_made_anew() {
    let mut f = items();
    f.sql("UPDATE item SET price = '9.00' WHERE id = 1; INSERT INTO item VALUES (3, 'north', 'hoe', '3.00')");
    let sent = f.cut_changes();
    f.sql("UPDATE item SET price = '9.50' WHERE id = 1");
    f.sql(ANEW);
    f.reopen();
    assert_eq!(f.rows("SELECT id, price FROM item"), ["3|3.00"]);
    assert_eq!(f.set_aside(), [r#"item {"id":1} gone in place"#]);
    let thaw = |connection: &_| crate::cut::thaw(connection, &f.remote.plan, false);
    f.remote.database.write("thawing", thaw).expect("thawed");
    assert_eq!(f.cut_changes(), sent[1..], "and nothing else");
    f.check();
}
