//! Uploads that the consolidated database has lost.

use headwater_model::{ColumnType, ConflictRule, Side};
use headwater_protocol::message::{ConflictEnd, Outcome, Refusal, RefusalCode};
use headwater_protocol::{Type, Value};

use super::support::{Fixture, model, row, shop, table};

fn north() -> [Value; 1] {
    [Value::text("north")]
}

/// A remote with four items, which then were changed in two uploads: 1 twice, 2 deleted, 3 once, 4 not at all, 5 made.
fn uploaded() -> Fixture {
    let f = Fixture::new(&shop());
    let first =
        [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    f.download(f.down().whole("item", &north()).rows("item", &first).whole("kind", &[]).whole("part", &[]));
    f.sql("UPDATE item SET price = '1.10' WHERE id = 1; DELETE FROM item WHERE id = 2");
    f.upload_all();
    f.sql("UPDATE item SET price = '1.20' WHERE id = 1; UPDATE item SET price = '3.10' WHERE id = 3");
    f.sql("INSERT INTO item VALUES (5, 'north', 'adze', '5.00')");
    f.upload_all();
    f
}

#[test]
fn what_the_file_still_has_of_lost_uploads_is_set_aside() {
    let f = uploaded();
    assert_eq!(f.rewind(0), 4);
    let change = |op, id, old: &str, new: &str| {
        let image = |rest: &str| match rest {
            "-" => "-".to_owned(),
            rest => format!(r#"{{"id":{id},"region":"north",{rest}}}"#),
        };
        format!("item {op} {} -> {} aside", image(old), image(new))
    };
    let all = [
        change("Update", 1, r#""name":"axe","price":"1.00""#, r#""name":"axe","price":"1.20""#),
        change("Delete", 2, r#""name":"saw","price":"2.00""#, "-"),
        change("Update", 3, r#""name":"hoe","price":"3.00""#, r#""name":"hoe","price":"3.10""#),
        change("Insert", 5, "-", r#""name":"adze","price":"5.00""#),
    ];
    assert_eq!(f.pending(), all, "each key's changes are one");
    assert_eq!(f.cut(), None, "nothing is sent by itself");
    let lost = f.remote.lost(10).expect("a list");
    assert_eq!((lost.len(), lost[0].first, lost[0].last, lost[0].changes), (1, 1, 2, 4));
    let message = &f.remote.set_aside(10).expect("a list")[0].message;
    assert!(message.contains("lost upload"), "{message}");

    // The database as it was before: what is set aside stays where it is.
    let first =
        [row("1,north,axe,$1.00"), row("2,north,saw,$2.00"), row("3,north,hoe,$3.00"), row("4,north,awl,$4.00")];
    f.download(f.down().whole("item", &north()).rows("item", &first).whole("kind", &[]).whole("part", &[]));
    assert_eq!(f.pending(), all);
    assert_eq!((f.held(), f.set_aside().len()), (0, 4));
    assert_eq!(f.rows("SELECT id, price FROM item"), ["1|1.20", "3|3.10", "4|4.00", "5|5.00"]);
    // Another local change of a key sends both as one.
    f.sql("UPDATE item SET price = '5.50' WHERE id = 5");
    assert_eq!(f.cut_changes(), ["item: - -> 5,north,adze,5.50"]);
    let number = f.remote.state().expect("a state").frozen.expect("an upload").sequence;
    assert_eq!(number, 3, "no number is used twice");
    f.receipt(Vec::new());
    assert_eq!(f.set_aside().len(), 3);
    f.check();
}

/// What was sent names plain types: a decimal with digits given is one of another type, whose values go through a table of their own.
#[test]
fn lost_uploads_of_decimals_with_digits_are_read() {
    let mut model = shop();
    model.tables[0].columns[3].kind = ColumnType::decimal(10, 2);
    let f = Fixture::new(&model);
    f.download(f.down().whole("item", &north()).whole("kind", &[]).whole("part", &[]));
    f.sql("INSERT INTO item VALUES (5, 'north', 'adze', '5.00'); INSERT INTO kind VALUES (1, 'Tools')");
    f.upload_all();
    f.sql("UPDATE item SET price = '5.50' WHERE id = 5");
    f.upload_all();
    assert_eq!(f.rewind(0), 2);
    assert_eq!(f.set_aside().len(), 2);
    f.sql("UPDATE item SET name = 'big adze' WHERE id = 5");
    assert_eq!(f.cut_changes(), ["item: - -> 5,north,big adze,5.50"]);
}

#[test]
fn only_the_uploads_after_the_last_that_is_there_are_lost() {
    let f = uploaded();
    assert_eq!(f.rewind(1), 3);
    let each = [3, 5, 1].map(|id| format!(r#"item {{"id":{id}}} lost in place"#));
    let aside = f.set_aside();
    assert!(aside.len() == 3 && each.iter().all(|one| aside.contains(one)), "{aside:?}");
    assert_eq!(f.remote.status().expect("a status").upload_sequence, 1);
    assert_eq!(f.rewind(1), 0, "nothing more is lost");
    assert_eq!(f.remote.lost(10).expect("a list").len(), 1);
}

#[test]
fn pending_changes_of_lost_rows_go_up_with_them() {
    let f = uploaded();
    f.sql("UPDATE item SET name = 'big axe' WHERE id = 1; INSERT INTO item VALUES (2, 'north', 'new saw', '2.50')");
    f.sql("DELETE FROM item WHERE id = 5");
    f.cut().expect("an upload on its way");
    f.sql("UPDATE item SET name = 'huge axe' WHERE id = 1");
    assert_eq!(f.rewind(0), 4);
    assert_eq!(f.set_aside(), [r#"item {"id":3} lost in place"#]);
    assert_eq!(
        f.cut_changes(),
        ["item: 1,north,axe,1.00 -> 1,north,huge axe,1.20", "item: 2,north,saw,2.00 -> 2,north,new saw,2.50"],
        "with the first old image; the row that was made and deleted again is no change"
    );
}

#[test]
fn a_row_that_came_down_since_is_not_taken_for_ours() {
    let f = uploaded();
    f.download(f.down().rows("item", &[row("3,north,hoe,$9.00")]).delete("item", &[row("5")]));
    assert_eq!(f.rewind(0), 4);
    let mut aside = f.set_aside();
    aside.sort();
    let expected = [
        r#"item {"id":1} lost in place"#,
        r#"item {"id":2} lost in place"#,
        r#"item {"id":3} lost out"#,
        r#"item {"id":5} lost out"#,
    ];
    assert_eq!(aside, expected, "only the list has them");
    assert_eq!(f.pending().len(), 2);
}

#[test]
fn what_the_database_never_had_is_not_lost() {
    let f = Fixture::new(&shop());
    f.download(
        f.down()
            .whole("item", &north())
            .rows("item", &[row("1,north,axe,$1.00")])
            .whole("kind", &[])
            .whole("part", &[]),
    );
    f.sql("UPDATE item SET price = '1.10' WHERE id = 1; INSERT INTO item VALUES (2, 'north', 'saw', '2.00')");
    f.sql("INSERT INTO item VALUES (3, 'north', 'hoe', '3.00')");
    f.cut().expect("an upload");
    let refusal = Refusal { code: RefusalCode::Check, message: "no".to_owned() };
    f.receipt(vec![(0, Outcome::Conflict(ConflictEnd::Consolidated)), (2, Outcome::Refused(refusal))]);
    f.download(f.down().rows("item", &[row("1,north,axe,$8.00")]));
    assert_eq!(f.rewind(0), 1);
    let mut aside = f.set_aside();
    aside.sort();
    assert_eq!(aside, [r#"item {"id":2} lost in place"#, r#"item {"id":3} check in place"#]);
}

/// A mebibyte of uploads is kept, the newest; a larger one is named by its number alone. Under a new remote ID none is.
#[test]
fn what_is_kept_has_a_limit() {
    let f = Fixture::new(&model(vec![table("doc", &[("id", Type::Int), ("body", Type::Bytes)])]));
    for id in 0..8 {
        f.sql(&format!("INSERT INTO doc VALUES ({id}, randomblob(300000))"));
        f.upload_all();
    }
    let kept = |f: &Fixture| f.rows("SELECT DISTINCT upload FROM hw_sent JOIN hw_upload USING (upload) ORDER BY 1");
    assert_eq!(kept(&f), ["6", "7", "8"]);
    f.sql("INSERT INTO doc SELECT 100 + value, randomblob(300000) FROM json_each('[1, 2, 3, 4]')");
    f.upload_all();
    assert_eq!(kept(&f), ["6", "7", "8"], "the large one is not");
    assert_eq!(named(&f), [9, 8, 7, 6], "which it was is");
    for id in 10..400 {
        f.sql(&format!("UPDATE doc SET body = x'{id:04}' WHERE id = 1"));
        f.upload_all();
    }
    assert_eq!(kept(&f).len(), 200);
    assert_eq!(named(&f), [399, 398, 397, 396, 395, 394, 393, 392]);
    assert_eq!(f.rewind(3), 1);
    let lost = &f.remote.lost(10).expect("a list")[0];
    assert_eq!((lost.first, lost.last, lost.changes), (4, 399, 1));

    f.sql("INSERT INTO doc VALUES (1000, NULL)");
    f.upload_all();
    assert!(!kept(&f).is_empty());
    let identity = |connection: &_| crate::state::State::set_identity(connection, [5; 16], [6; 32]);
    f.remote.database.write("taking a new ID", identity).expect("a new ID");
    assert!(kept(&f).is_empty() && named(&f).is_empty());
}

/// The numbers that HELLO names.
fn named(f: &Fixture) -> Vec<u64> {
    let uploads = crate::sent::newest(&f.remote.database.connection).expect("the file is sound");
    uploads.iter().map(|upload| upload.sequence).collect()
}

/// Outcomes name changes by their place in the whole upload, those of a table that the model has no more with them.
#[test]
fn changes_of_a_table_that_is_gone_are_counted() {
    let mut f = uploaded();
    f.sql("UPDATE item SET price = '4.10' WHERE id = 4; INSERT INTO kind VALUES (1, 'tool'), (2, 'toy')");
    f.cut().expect("an upload");
    f.receipt(vec![(0, Outcome::Conflict(ConflictEnd::Consolidated))]);
    f.remote.plan.tables[0].table.name = "elsewhere".to_owned();
    assert_eq!(f.rewind(2), 2);
    assert_eq!(f.set_aside(), [r#"kind {"id":2} lost in place"#, r#"kind {"id":1} lost in place"#]);
}

/// What a file made before has kept, and what it has on its way, is where it is looked for now.
#[test]
fn a_file_that_copied_what_it_kept_is_put_right() {
    let f = uploaded();
    f.sql("INSERT INTO kind VALUES (1, 'tool')");
    f.cut().expect("an upload");
    let frozen = f.upload();
    f.sql(
        "CREATE TABLE old (upload INTEGER NOT NULL, frame INTEGER NOT NULL, kind INTEGER NOT NULL, payload BLOB NOT NULL, \
         PRIMARY KEY (upload, frame)); \
         INSERT INTO old SELECT upload, 0, 3, receipt FROM hw_sent; \
         INSERT INTO old SELECT hw_upload.* FROM hw_upload JOIN hw_sent USING (upload) WHERE frame > 0; \
         CREATE TABLE old_upload (frame INTEGER PRIMARY KEY, kind INTEGER NOT NULL, payload BLOB NOT NULL); \
         INSERT INTO old_upload SELECT frame, kind, payload FROM hw_upload WHERE upload = 3 AND frame > 0; \
         DROP TABLE hw_upload; DROP TABLE hw_sent; \
         ALTER TABLE old RENAME TO hw_sent; ALTER TABLE old_upload RENAME TO hw_upload",
    );
    crate::older::put_right(&f.remote.database).expect("a file of today");
    assert_eq!(f.upload(), frozen);
    assert_eq!(f.rows("SELECT upload, bytes > 0 FROM hw_sent"), ["1|1", "2|1"]);
    assert_eq!(named(&f), [0; 0], "their digests are not known");
    assert_eq!(f.rows("SELECT upload FROM hw_upload WHERE frame = 0"), ["3"], "whether it has strays is not known");
    f.receipt(Vec::new());
    assert_eq!(named(&f), [3]);
    assert_eq!(f.rewind(0), 5);
}

/// A file that has the frames where they are, without their digests.
#[test]
fn a_file_that_kept_no_digests_is_put_right() {
    let f = uploaded();
    f.sql("ALTER TABLE hw_sent DROP COLUMN digest");
    crate::older::put_right(&f.remote.database).expect("a file of today");
    assert_eq!((named(&f).len(), f.rows("SELECT upload FROM hw_sent")), (0, vec!["1".to_owned(), "2".to_owned()]));
    assert_eq!(f.rewind(0), 4);
}

/// What others changed between a lost change and the next, of a table whose changes are merged, is nobody's change here.
#[test]
fn what_others_changed_between_is_not_sent_as_ours() {
    for is_uploaded in [false, true] {
        let mut model = shop();
        model.tables[0].conflict = ConflictRule::Merge(Side::Remote);
        let f = Fixture::new(&model);
        let whole = |rows| f.down().whole("item", &north()).rows("item", rows).whole("kind", &[]).whole("part", &[]);
        let first = [row("1,north,axe,$1.00")];
        f.download(whole(&first));
        f.sql("UPDATE item SET name = 'ax' WHERE id = 1");
        f.upload_all();
        f.download(f.down().rows("item", &[row("1,north,ax,$9.00")]));
        f.sql("UPDATE item SET name = 'big ax' WHERE id = 1");
        if is_uploaded {
            f.upload_all();
        }
        assert_eq!(f.rewind(0), 1);
        f.download(whole(&first));
        if is_uploaded {
            let mut remote = crate::Remote::open(f.remote.path()).expect("the remote opens");
            remote.retry(&crate::Choice::All).expect("sent again");
        }
        assert_eq!(f.cut_changes(), ["item: 1,north,axe,1.00 -> 1,north,big ax,1.00"], "{is_uploaded}");
        f.check();
    }
}
