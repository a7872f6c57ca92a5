//! A file from one version of its model to the next, with downloads made by hand: what is pending in it, and where it may be stopped.

use headwater_model::Model;
use headwater_protocol::Type;
use headwater_protocol::message::{Outcome, Refusal, RefusalCode};

use super::support::{Down, Fixture, NOW, model, query, row, table};
use crate::Error;
use crate::database::crash;
use crate::upgrade::{Change, Fate};

/// A column has a name of SQLite's own.
fn one() -> Model {
    let mut item = table("item", &[("id", Type::Int), ("name", Type::Text), ("rowid", Type::Int)]);
    item.unique = vec![vec![1]];
    model(vec![item, table("kind", &[("id", Type::Int), ("name", Type::Text)])])
}

/// Items have further columns, one of which may not be NULL; every table has another number.
fn two() -> Model {
    let columns =
        [("id", Type::Int), ("grade", Type::Int), ("name", Type::Text), ("rowid", Type::Int), ("price", Type::Int)];
    let mut item = table("item", &columns);
    item.unique = vec![vec![2]];
    item.columns[1].nullable = false;
    let kind = table("kind", &[("id", Type::Int), ("name", Type::Text)]);
    Model { version: 2, ..model(vec![table("tag", &[("id", Type::Text)]), kind, item]) }
}

/// A remote of the first version with rows, and pending changes of every kind, set aside and held.
fn prepared() -> Fixture {
    let f = Fixture::new(&one());
    f.download(
        f.down()
            .whole("item", &[])
            .rows("item", &["1,a,1", "2,b,2", "3,c,3", "4,d,4", "5,e,5"].map(row))
            .whole("kind", &[])
            .rows("kind", &["1,x", "2,y"].map(row)),
    );
    f.sql("UPDATE item SET name = 'refused' WHERE id = 4; UPDATE kind SET name = 'refused' WHERE id = 2");
    f.cut();
    let refused = || Outcome::Refused(Refusal { code: RefusalCode::Check, message: "no".to_owned() });
    f.receipt(vec![(0, refused()), (1, refused())]);
    // Another row takes the name of a pending insert, which only the list has then.
    f.sql("INSERT INTO item VALUES (20, 'taken', 0)");
    f.download(
        f.down()
            .whole("item", &[])
            .rows("item", &["1,a,1", "2,b,2", "3,c,3", "4,theirs,40", "5,e,5", "6,taken,6"].map(row))
            .whole("kind", &[])
            .rows("kind", &["1,x", "2,theirs"].map(row)),
    );
    f.sql(
        "UPDATE item SET rowid = 10 WHERE id = 1; DELETE FROM item WHERE id = 2; UPDATE item SET rowid = 30 WHERE id = 3;
         INSERT INTO item VALUES (10, 'mine', 1), (11, 'known', 2); UPDATE kind SET name = 'mine' WHERE id = 1",
    );
    assert_eq!((f.held(), f.set_aside().len()), (2, 3), "{:?}", f.set_aside());
    f
}

/// What comes down under the second version: 3 is deleted, 11 is what was inserted here too.
fn down(change: &Change) -> Down {
    let headers = change.plan.tables.iter().map(|table| table.header.clone()).collect();
    Down::new(headers)
        .whole("item", &[])
        .rows(
            "item",
            &["1,7,a,1,100", "2,7,b,2,200", "4,7,theirs,40,400", "5,7,e,5,500", "6,7,taken,6,600", "11,8,known,2,900"]
                .map(row),
        )
        .whole("tag", &[])
        .rows("tag", &[row("t")])
}

/// Changes the version; stopped after `frames` of the download's.
fn upgrade(f: &mut Fixture, frames: usize) -> Result<(), Error> {
    upgrade_by(f, frames, down)
}

fn upgrade_by(f: &mut Fixture, frames: usize, down: fn(&Change) -> Down) -> Result<(), Error> {
    upgrade_to(f, &two(), frames, down)
}

fn upgrade_to(f: &mut Fixture, model: &Model, frames: usize, down: fn(&Change) -> Down) -> Result<(), Error> {
    let mut change = Change::new(&f.remote.plan, model)?;
    let mut stage = down(&change).finish().into_iter();
    let mut left = frames;
    let mut watch = |_| {
        left = left.checked_sub(1).ok_or(Error::Cancelled)?;
        Ok(())
    };
    let crate::Remote { database, plan, .. } = &f.remote;
    crate::apply::apply_change(database, plan, &mut change, NOW, &mut |_| Ok(stage.next()), &mut watch)?;
    f.remote.plan = change.plan;
    Ok(())
}

/// All that is in a file.
fn everything(f: &Fixture) -> Vec<String> {
    let connection = &f.remote.database.connection;
    let mut all = query(connection, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name");
    for name in query(connection, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name") {
        let mut rows = query(connection, &format!("SELECT * FROM \"{name}\""));
        rows.sort();
        all.extend(rows.into_iter().map(|row| format!("{name}: {row}")));
    }
    // The secret and the ID are random, and so is the name of a cut, which is frame -1.
    let is_name = |line: &str| line.starts_with("hw_upload: ") && line.contains("|-1|");
    all.retain(|line| !line.starts_with("hw_state") && !is_name(line));
    all
}

#[test]
fn pending_changes_take_what_they_did_not_know() {
    let mut f = prepared();
    upgrade(&mut f, usize::MAX).expect("the version changes");
    f.check();
    assert_eq!(
        f.rows("SELECT id, grade, name, rowid, price FROM item ORDER BY id"),
        [
            "1|7|a|10|100",
            "3|0|c|30|NULL",
            "4|7|refused|4|400",
            "5|7|e|5|500",
            "6|7|taken|6|600",
            "10|0|mine|1|NULL",
            "11|8|known|2|900",
        ]
    );
    assert_eq!(
        f.set_aside(),
        [
            "item {\"id\":10} not_null in place",
            "item {\"id\":3} not_null in place",
            "item {\"id\":20} unique out",
            "kind {\"id\":2} check in place",
            "item {\"id\":4} check in place",
        ]
    );
    // The value that was missing is given, and what was set aside goes as it is: with images of the new columns.
    f.sql("UPDATE item SET grade = 5, price = 50 WHERE id = 10");
    f.remote.retry(&crate::Choice::Table("kind".to_owned())).expect("retried");
    assert_eq!(
        f.cut_changes(),
        [
            "kind: 1,x -> 1,mine",
            "kind: 2,y -> 2,refused",
            "item: 1,7,a,1,100 -> 1,7,a,10,100",
            "item: 2,7,b,2,200 -> -",
            "item: - -> 10,5,mine,1,50",
        ]
    );
    f.upload_all();
    f.remote.drop_set_aside(&crate::Choice::Table("item".to_owned())).expect("dropped");
    assert_eq!(
        f.rows("SELECT id, grade, name, rowid, price FROM item WHERE id IN (3, 4, 20)"),
        ["4|7|theirs|40|400"],
        "the rows that came down meanwhile, or that they are deleted"
    );
}

#[test]
fn stopped_anywhere_it_is_one_version_or_the_other() {
    let mut whole = prepared();
    let before = everything(&whole);
    upgrade(&mut whole, usize::MAX).expect("the version changes");
    let after = everything(&whole);
    for steps in 0.. {
        let mut f = prepared();
        crash::after(Some(steps));
        let done = upgrade(&mut f, usize::MAX);
        crash::after(None);
        f.reopen();
        f.check();
        let (found, version) = (everything(&f), f.remote.model().version);
        assert!(version == 1 && found == before || version == 2 && found == after, "after {steps} steps: {done:?}");
        if done.is_ok() {
            assert!(steps >= 3, "before, in and after the transaction");
            break;
        }
    }
    for frames in 0..8 {
        let mut f = prepared();
        let error = upgrade(&mut f, frames).expect_err("cancelled");
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert_eq!(everything(&f), before, "after {frames} frames");
        upgrade(&mut f, usize::MAX).expect("the version changes");
        assert_eq!(everything(&f), after, "after {frames} frames, again");
    }
}

/// An application that opened the file before goes on with what the file is now.
#[test]
fn a_file_that_was_open_meanwhile_is_read_again() {
    let mut f = prepared();
    let mut other = crate::Remote::open(f.remote.path()).expect("opened beside");
    upgrade(&mut f, usize::MAX).expect("the version changes");
    other.reread().expect("read again");
    assert_eq!((other.model().version, other.plan.tables.len()), (2, 3));
    let mut stale = Fixture::new(&one());
    std::mem::swap(&mut stale.remote.plan, &mut other.plan);
    let refused = crate::schema::refresh(&f.remote.database, &mut other.plan).expect_err("another model's triggers");
    assert!(refused.to_string().contains("open it again"), "{refused}");
    assert_eq!(f.rows("SELECT count(*) FROM hw_tracking"), ["3"]);
}

/// It is deleted there too, or in none of the remote's partitions any more: given up, the deletion leaves nothing behind.
#[test]
fn a_deletion_whose_row_does_not_come_brings_nothing_back() {
    let mut f = Fixture::new(&one());
    f.download(f.down().whole("item", &[]).rows("item", &[row("1,a,1"), row("2,b,2")]));
    f.sql("DELETE FROM item WHERE id = 2");
    upgrade_by(&mut f, usize::MAX, |change| {
        let headers = change.plan.tables.iter().map(|table| table.header.clone()).collect();
        Down::new(headers).whole("item", &[]).rows("item", &[row("1,7,a,1,100")])
    })
    .expect("the version changes");
    assert_eq!(f.held(), 1);
    assert_eq!(f.remote.drop_pending(&crate::PendingChoice::All).expect("given up"), 1);
    assert_eq!(f.rows("SELECT id FROM item"), ["1"]);
    assert_eq!(f.held(), 0);
}

/// The application makes a table anew while the download of the new version is on its way: its triggers go along, so what it writes then is
/// in no log. A table that stays as it is is compared after the change, as after any other sync.
#[test]
fn a_table_made_anew_during_the_download_is_compared() {
    let mut f = Fixture::new(&one());
    let kinds = ["1,x", "2,y", "3,z"].map(row);
    f.download(f.down().whole("item", &[]).rows("item", &[row("1,a,1")]).whole("kind", &[]).rows("kind", &kinds));
    f.sql(
        "DROP TABLE kind; CREATE TABLE kind (id INTEGER NOT NULL PRIMARY KEY, name TEXT);
           INSERT INTO kind VALUES (1, 'mine'), (2, 'mine too'), (3, 'z'), (4, 'new')",
    );
    upgrade_by(&mut f, usize::MAX, |change| {
        let headers = change.plan.tables.iter().map(|table| table.header.clone()).collect();
        let down = Down::new(headers).whole("item", &[]).rows("item", &[row("1,7,a,1,100")]).whole("tag", &[]);
        down.holds("kind", &[]).rows("kind", &[row("1,theirs")])
    })
    .expect("the version changes");
    assert_eq!(f.set_aside(), [r#"kind {"id":1} untracked out"#], "what a row that came has replaced");
    assert!(crate::untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"), "the table is to be compared");
    f.download(f.down().whole("kind", &[]).rows("kind", &["1,theirs", "2,y", "3,z"].map(row)));
    let mut aside = f.set_aside();
    aside.sort();
    let expected = [
        r#"kind {"id":1} untracked out"#,
        r#"kind {"id":2} untracked in place"#,
        r#"kind {"id":4} untracked in place"#,
    ];
    assert_eq!(aside, expected);
    assert_eq!(f.rows("SELECT * FROM kind"), ["1|theirs", "2|mine too", "3|z", "4|new"]);
    f.check();
}

/// One that is made anew by the change would come whole over what was written untracked, and one that is dropped would lack its rows for
/// good: the version does not change until a sync has seen to it.
#[test]
fn what_would_be_overwritten_or_missing_keeps_the_old_version() {
    for (sql, says) in [
        (
            "DROP TABLE item; CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT UNIQUE, rowid INTEGER)",
            "was off",
        ),
        ("DROP TABLE kind", "dropped"),
        ("DROP TABLE item", "dropped"),
        ("DROP TABLE kind; CREATE TABLE kind (id INTEGER NOT NULL PRIMARY KEY)", "mend it"),
    ] {
        let mut f = Fixture::new(&one());
        f.download(
            f.down().whole("item", &[]).rows("item", &[row("1,a,1")]).whole("kind", &[]).rows("kind", &[row("1,x")]),
        );
        f.sql(sql);
        let before = everything(&f);
        let error = upgrade(&mut f, usize::MAX).expect_err(sql).to_string();
        assert!(error.contains(says), "{sql}: {error}");
        assert_eq!(everything(&f), before, "{sql}");
        if !sql.contains("CREATE") {
            f.reopen();
            assert_eq!(f.rows("SELECT count(*) FROM hw_watermark"), ["1"], "the table comes whole: {sql}");
            upgrade(&mut f, usize::MAX).expect("the version changes");
        }
        assert_eq!(f.remote.model().version, 1 + u32::from(!sql.contains("CREATE")));
    }
}

/// An index would be made again by our NOCASE, where the application looks by its own.
#[test]
fn an_index_that_does_not_fit_keeps_the_old_version() {
    let mut f = Fixture::new(&one());
    let rows = ["1,Äpfel,1", "2,Zebra,1", "3,äther,1", "4,Öl,1", "5,öbst,1"].map(row);
    f.download(f.down().whole("item", &[]).rows("item", &rows).whole("kind", &[]));
    let no_case = |one: &str, other: &str| one.to_lowercase().cmp(&other.to_lowercase());
    f.application.create_collation("NOCASE", no_case).expect("a collation");
    f.sql("CREATE INDEX app ON item (name COLLATE NOCASE)");
    let error = upgrade(&mut f, usize::MAX).expect_err("it does not fit").to_string();
    assert!(error.contains("table \"item\" can't be changed: index \"app\" does not fit"), "{error}");
    f.check();
    f.sql("DROP INDEX app");
    upgrade(&mut f, usize::MAX).expect("the version changes");
    f.check();
}

/// Items and kinds have further columns that may be NULL.
fn three() -> Model {
    let mut model = one();
    for table in &mut model.tables {
        // The first one is a key.
        let more = self::table("more", &[("id", Type::Int), ("price", Type::Int), ("size", Type::Int)]);
        table.columns.extend(more.columns.into_iter().skip(1));
    }
    Model { version: 3, ..model }
}

/// What comes of tables that are held: rows with a value in a new column, those that are theirs meanwhile, and a stranger's.
fn down_of_three(change: &Change) -> Down {
    let headers = change.plan.tables.iter().map(|table| table.header.clone()).collect();
    Down::new(headers)
        .holds("item", &[])
        .rows("item", &["1,a,1,100,-", "2,b,2,-,200", "4,theirs,40,400,401", "5,e,5,500,-"].map(row))
        .holds("kind", &[])
        .rows("kind", &[row("2,theirs,2,-")])
}

#[test]
fn a_table_with_further_nullable_columns_keeps_its_rows() {
    let mut f = prepared();
    upgrade_to(&mut f, &three(), usize::MAX, down_of_three).expect("the version changes");
    f.check();
    assert_eq!(
        f.rows("SELECT * FROM item ORDER BY id"),
        [
            "1|a|10|100|NULL",
            "3|c|30|NULL|NULL",
            "4|refused|4|400|401",
            "5|e|5|500|NULL",
            "6|taken|6|NULL|NULL",
            "10|mine|1|NULL|NULL",
            "11|known|2|NULL|NULL",
        ]
    );
    assert_eq!(f.rows("SELECT * FROM kind"), ["1|mine|NULL|NULL", "2|refused|2|NULL"]);
    assert_eq!((f.held(), f.set_aside().len()), (2, 3), "as before: {:?}", f.set_aside());
    f.remote.retry(&crate::Choice::Table("kind".to_owned())).expect("retried");
    assert_eq!(
        f.cut_changes(),
        [
            "item: 1,a,1,100,NULL -> 1,a,10,100,NULL",
            "item: 2,b,2,NULL,200 -> -",
            "item: 3,c,3,NULL,NULL -> 3,c,30,NULL,NULL",
            "item: - -> 10,mine,1,NULL,NULL",
            "item: - -> 11,known,2,NULL,NULL",
            "kind: 1,x,NULL,NULL -> 1,mine,NULL,NULL",
            "kind: 2,y,2,NULL -> 2,refused,2,NULL",
        ],
        "no change says anything of what it did not know"
    );
    f.upload_all();
    f.remote.drop_set_aside(&crate::Choice::Table("item".to_owned())).expect("dropped");
    assert_eq!(f.rows("SELECT * FROM item WHERE id = 4"), ["4|theirs|40|400|401"]);
}

/// A server that does not know of new columns sends the tables whole.
#[test]
fn a_table_with_further_columns_may_come_whole() {
    let mut f = prepared();
    let down = |change: &Change| {
        let headers = change.plan.tables.iter().map(|table| table.header.clone()).collect();
        let items = ["1,a,1,100,-", "2,b,2,-,200", "3,c,3,-,-", "4,theirs,40,400,401", "6,taken,6,-,-"].map(row);
        let kinds = ["1,x,-,-", "2,theirs,2,-"].map(row);
        Down::new(headers).whole("item", &[]).rows("item", &items).whole("kind", &[]).rows("kind", &kinds)
    };
    upgrade_to(&mut f, &three(), usize::MAX, down).expect("the version changes");
    f.check();
    let expected =
        ["1|10|100|NULL", "3|30|NULL|NULL", "4|4|400|401", "6|6|NULL|NULL", "10|1|NULL|NULL", "11|2|NULL|NULL"];
    assert_eq!(f.rows("SELECT id, rowid, price, size FROM item ORDER BY id"), expected, "5 is gone there");
}

/// A watermark is kept for what it says, and the columns stand beside it; of a table that is another it is left out.
#[test]
fn what_was_seen_is_told_with_the_columns_that_were_not() {
    use headwater_protocol::message::{ExtendedMark, WATERMARK_BYTES_MAX, WatermarkEntry, Watermarks};
    let f = Fixture::new(&one());
    let entry = |table, mark| WatermarkEntry { table, partition: Vec::new(), mark };
    let seen = Watermarks { marks: vec![b"mark".to_vec()], entries: vec![entry(0, 0), entry(1, 0)] };
    let change = Change::new(&f.remote.plan, &three()).expect("a change");
    let told = change.watermarks(seen.clone());
    let extended = |place| ExtendedMark { columns: vec![place, place + 1], sealed: b"mark".to_vec() }.to_bytes();
    assert_eq!(told.marks, [b"mark".to_vec(), extended(3), extended(2)]);
    assert_eq!(told.entries, [entry(0, 1), entry(1, 2)]);
    assert_ne!(change.staged_under(), change.plan.fingerprint, "what comes is no whole table to those who expect one");
    let large = Watermarks { marks: vec![vec![3; WATERMARK_BYTES_MAX]], ..seen };
    assert_eq!(change.watermarks(large).entries, [], "no room for the columns");

    let mut not_null = three();
    not_null.tables[0].columns[3].nullable = false;
    let mut between = three();
    between.tables[0].columns.swap(2, 3);
    let mut unique = three();
    unique.tables[0].unique = vec![vec![1], vec![3]];
    for model in [not_null, between, unique] {
        let change = Change::new(&f.remote.plan, &model).expect("a change");
        assert!(matches!(change.fates[..], [Fate::Remade(0), Fate::Extended { number: 1, before: 2 }]), "{change:?}");
    }
}

#[test]
fn stopped_anywhere_a_table_has_its_further_columns_or_not() {
    let mut whole = prepared();
    let before = everything(&whole);
    upgrade_to(&mut whole, &three(), usize::MAX, down_of_three).expect("the version changes");
    let after = everything(&whole);
    for steps in 0.. {
        let mut f = prepared();
        crash::after(Some(steps));
        let done = upgrade_to(&mut f, &three(), usize::MAX, down_of_three);
        crash::after(None);
        f.reopen();
        f.check();
        let (found, version) = (everything(&f), f.remote.model().version);
        assert!(version == 1 && found == before || version == 3 && found == after, "after {steps} steps: {done:?}");
        if done.is_ok() {
            assert!(steps >= 3, "before, in and after the transaction");
            break;
        }
    }
}

/// A table that is made anew: triggers that keep a stock and a full-text table see the rows that differ, come and go, and none twice.
#[test]
fn triggers_see_of_a_new_version_what_differs() {
    for is_pending in [false, true] {
        let mut f = Fixture::new(&one());
        let down_before = f.down().whole("item", &[]).rows("item", &["1,a,1", "2,b,2", "3,c,3"].map(row));
        f.download(down_before.whole("kind", &[]));
        f.sql(
            "CREATE TABLE seen (what); CREATE VIRTUAL TABLE words USING fts5(name, content = item, content_rowid = id);
             INSERT INTO words (rowid, name) SELECT id, name FROM item;
             CREATE TRIGGER app_0 BEFORE INSERT ON item BEGIN INSERT INTO seen VALUES ('before insert ' || NEW.id); END;
             CREATE TRIGGER app_1 AFTER INSERT ON item BEGIN INSERT INTO seen VALUES ('insert ' || NEW.id);
                 INSERT INTO words (rowid, name) VALUES (NEW.id, NEW.name); END;
             CREATE TRIGGER app_2 AFTER UPDATE ON item BEGIN INSERT INTO seen VALUES ('update ' || NEW.id);
                 INSERT INTO words (words, rowid, name) VALUES ('delete', OLD.id, OLD.name);
                 INSERT INTO words (rowid, name) VALUES (NEW.id, NEW.name); END;
             CREATE TRIGGER app_3 AFTER DELETE ON item BEGIN INSERT INTO seen VALUES ('delete ' || OLD.id);
                 INSERT INTO words (words, rowid, name) VALUES ('delete', OLD.id, OLD.name); END;",
        );
        if is_pending {
            f.sql("UPDATE item SET rowid = 10 WHERE id = 1; DELETE FROM seen");
        }
        let down = |change: &Change| {
            let headers = change.plan.tables.iter().map(|table| table.header.clone()).collect();
            let rows = ["1,7,a,1,100", "2,7,bee,2,200", "5,7,e,5,500"].map(row);
            Down::new(headers).whole("item", &[]).rows("item", &rows).whole("tag", &[])
        };
        upgrade_by(&mut f, usize::MAX, down).expect("the new version");
        let seen = ["update 1", "update 2", "before insert 5", "insert 5", "delete 3"];
        assert_eq!(f.rows("SELECT what FROM seen ORDER BY rowid"), seen, "{is_pending}");
        let first = if is_pending { "1|7|a|10|100" } else { "1|7|a|1|100" };
        assert_eq!(f.rows("SELECT * FROM item"), [first, "2|7|bee|2|200", "5|7|e|5|500"]);
        f.sql("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)");
        assert_eq!(f.rows("SELECT rowid FROM words WHERE words MATCH 'bee'"), ["2"]);
        assert_eq!(f.pending().len(), usize::from(is_pending));
        f.check();
    }
}

/// Rows of partitions that are the remote's no more under the new version go, and triggers see that.
#[test]
fn rows_of_other_partitions_go_with_the_old_version() {
    let mut f = Fixture::new(&one());
    let first = f.down().whole("item", &[]).rows("item", &["1,a,1", "2,b,2"].map(row));
    f.download(first.whole("kind", &[]));
    f.sql(
        "CREATE TABLE seen (what); CREATE TRIGGER app AFTER DELETE ON item BEGIN INSERT INTO seen VALUES (OLD.id); END",
    );
    let down = |change: &Change| {
        let headers = change.plan.tables.iter().map(|table| table.header.clone()).collect();
        Down::new(headers).whole("tag", &[])
    };
    upgrade_by(&mut f, usize::MAX, down).expect("the new version");
    assert_eq!(
        (f.rows("SELECT id FROM item"), f.rows("SELECT what FROM seen")),
        (Vec::new(), vec!["1".into(), "2".into()])
    );
    f.check();
}
