//! Objects of the application's that don't work on our connection, or with a row: that table's rows wait, and the others go on.

use headwater_protocol::Type;
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use super::support::{Fixture, model, row, table};

/// Two tables, of which the first has objects of the application's on it.
fn docs() -> Fixture {
    let doc = table("doc", &[("id", Type::Int), ("title", Type::Text), ("body", Type::Text)]);
    let f = Fixture::new(&model(vec![doc, table("note", &[("id", Type::Int), ("text", Type::Text)])]));
    let rows = [row("1,one,a"), row("2,two,b"), row("3,three,c")];
    f.download(f.down().whole("doc", &[]).rows("doc", &rows).whole("note", &[]).rows("note", &[row("1,a")]));
    let upper = |context: &rusqlite::functions::Context<'_>| Ok(context.get::<String>(0)?.to_uppercase());
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    f.application.create_scalar_function("app_upper", 1, flags, upper).expect("a function");
    f.application.create_collation("app_order", Ord::cmp).expect("a collation");
    f
}

/// What is in the way of every row: the objects, what undoes them, and a word of the reason.
const ALL_ROWS: [(&str, &str, &str); 5] = [
    (
        "CREATE TRIGGER app AFTER INSERT ON doc BEGIN INSERT INTO note VALUES (NEW.id, app_upper(NEW.title)); END;
         CREATE TRIGGER app_2 AFTER UPDATE ON doc BEGIN UPDATE note SET text = app_upper(NEW.title) WHERE id = NEW.id; END;
         CREATE TRIGGER app_3 AFTER DELETE ON doc BEGIN DELETE FROM note WHERE text = app_upper(OLD.title); END;
         CREATE INDEX other ON doc (body)",
        "DROP TRIGGER app; DROP TRIGGER app_2; DROP TRIGGER app_3",
        "app_upper (the application's own on table \"doc\": trigger \"app\", trigger \"app_2\", trigger \"app_3\")",
    ),
    ("CREATE INDEX app ON doc (title COLLATE app_order)", "DROP INDEX app", "app_order (the application's own on table \"doc\": index \"app\")"),
    ("CREATE INDEX app ON doc (app_upper(title))", "DROP INDEX app", "app_upper() (the application's own on table \"doc\": index \"app\")"),
    (
        "CREATE TABLE gone (id); CREATE TRIGGER app BEFORE INSERT ON doc BEGIN INSERT INTO gone VALUES (1); END;
         CREATE TRIGGER app_2 BEFORE UPDATE ON doc BEGIN INSERT INTO gone VALUES (1); END;
         CREATE TRIGGER app_3 BEFORE DELETE ON doc BEGIN INSERT INTO gone VALUES (1); END; DROP TABLE gone",
        "DROP TRIGGER app; DROP TRIGGER app_2; DROP TRIGGER app_3",
        "main.gone (the application's own on table \"doc\": trigger \"app\", trigger \"app_2\", trigger \"app_3\")",
    ),
    (
        "CREATE TRIGGER app BEFORE INSERT ON doc BEGIN SELECT abs(-9223372036854775807 - 1); END;
         CREATE TRIGGER app_2 BEFORE UPDATE ON doc BEGIN SELECT abs(-9223372036854775807 - 1); END;
         CREATE TRIGGER app_3 BEFORE DELETE ON doc BEGIN SELECT abs(-9223372036854775807 - 1); END",
        "DROP TRIGGER app; DROP TRIGGER app_2; DROP TRIGGER app_3",
        "integer overflow",
    ),
];

fn docs_here(f: &Fixture) -> Vec<String> {
    // What reads no index of the application's.
    f.rows("SELECT id, title FROM doc NOT INDEXED ORDER BY id")
}

/// A unique index is asked besides which rows are in the way of others.
#[test]
fn a_unique_index_that_does_not_work_holds_its_table_alone() {
    for index in [
        "CREATE UNIQUE INDEX app ON doc (title COLLATE app_order)",
        "CREATE UNIQUE INDEX app ON doc (app_upper(title))",
        "CREATE UNIQUE INDEX app ON doc (title) WHERE app_upper(body) <> 'X'",
        "ALTER TABLE doc ADD COLUMN own TEXT COLLATE app_order; CREATE UNIQUE INDEX app ON doc (own)",
    ] {
        let mut f = docs();
        f.sql(index);
        f.reopen();
        let rows = [row("1,uno,a"), row("2,two,b"), row("4,four,d")];
        let whole = |f: &Fixture| f.down().whole("doc", &[]).rows("doc", &rows).holds("note", &[]);
        // It is compared first, as after each new unique index; then as ever.
        f.download(f.down().rows("doc", &[row("1,uno,a")]).delete("doc", &[row("3")]).rows("note", &[row("2,b")]));
        assert_eq!(f.rows("SELECT id FROM note"), ["1", "2"], "{index}");
        assert!(crate::untracked::ask(&f.remote.database, &f.remote.plan).expect("asked"), "{index}");
        f.download(whole(&f).rows("note", &[row("3,c")]));
        f.download(f.down().holds("doc", &[]).rows("note", &[row("4,d")]));
        assert_eq!(f.rows("SELECT id FROM note"), ["1", "2", "3", "4"], "{index}: other tables go on");
        let whys: Vec<String> = f.remote.held(9).expect("a list").into_iter().filter_map(|held| held.why).collect();
        assert!(!whys.is_empty() && whys.iter().all(|why| why.contains("index \"app\"")), "{index}: {whys:?}");
        f.sql("DROP INDEX app");
        f.reopen();
        f.download(whole(&f));
        f.download(whole(&f));
        assert_eq!((docs_here(&f), f.held()), (["1|uno", "2|two", "4|four"].map(str::to_owned).to_vec(), 0), "{index}");
    }
}

#[test]
fn an_object_that_does_not_work_holds_its_table_alone() {
    for is_whole in [false, true] {
        for (objects, undo, word) in ALL_ROWS {
            let f = docs();
            f.sql(objects);
            let down = || {
                let rows = [row("1,uno,a"), row("2,two,b"), row("4,four,d")];
                let down = f.down();
                let down = if is_whole {
                    down.whole("doc", &[]).rows("doc", &rows)
                } else {
                    down.rows("doc", &rows).delete("doc", &[row("3")])
                };
                down.rows("note", &[row("2,b")])
            };
            let applied = f.download(down());
            assert_eq!(f.rows("SELECT id FROM note WHERE text = 'b'"), ["2"], "{objects}");
            let waits = if is_whole { 3 } else { 4 };
            assert!(
                (3..=4).contains(&f.held()) && applied.not_stored >= waits - 1,
                "{objects}: {} {applied:?}",
                f.held()
            );
            assert_eq!(docs_here(&f), ["1|one", "2|two", "3|three"], "{objects}");
            let whys: Vec<String> = f.remote.held(9).expect("a list").into_iter().filter_map(|held| held.why).collect();
            assert!(whys.iter().all(|why| why.contains(word)), "{objects}: {whys:?}");
            assert_eq!(f.cut(), None, "nothing was written here");
            // Once it is mended, all that waits comes.
            f.sql(undo);
            f.download(f.down());
            assert_eq!(
                (docs_here(&f), f.held()),
                (["1|uno", "2|two", "4|four"].map(str::to_owned).to_vec(), 0),
                "{objects}"
            );
            assert_eq!(f.cut(), None, "{objects}");
            f.check();
        }
    }
}

/// An index that can't be computed of one row, and a full-text table that has lost count: that row waits alone.
#[test]
fn a_row_that_does_not_work_with_an_object_waits_alone() {
    let f = docs();
    f.sql("CREATE INDEX app ON doc (json_extract(body, '$.a')) WHERE id > 100");
    f.download(f.down().rows("doc", &[row("101,x,not json"), row("102,y,-"), row("4,four,d")]));
    assert_eq!(
        (f.rows("SELECT id FROM doc ORDER BY id"), f.held()),
        (["1", "2", "3", "4", "102"].map(str::to_owned).to_vec(), 1)
    );
    let why = f.remote.held(9).expect("a list").remove(0).why.expect("a reason");
    assert!(why.contains("malformed JSON") && why.contains("index \"app\""), "{why}");
    f.sql("DROP INDEX app");
    f.download(f.down());
    assert_eq!((f.rows("SELECT count(*) FROM doc"), f.held()), (vec!["6".to_owned()], 0));

    let f = docs();
    f.sql(
        "CREATE VIRTUAL TABLE words USING fts5(title, content = doc, content_rowid = id);
         CREATE TRIGGER app AFTER UPDATE ON doc BEGIN
             INSERT INTO words (words, rowid, title) VALUES ('delete', OLD.id, OLD.title);
             INSERT INTO words (rowid, title) VALUES (NEW.id, NEW.title); END",
    );
    f.download(f.down().rows("doc", &[row("1,uno,a")]).rows("note", &[row("2,b")]));
    assert_eq!(f.rows("SELECT id FROM note"), ["1", "2"], "the other table goes on");
    let why = f.remote.held(9).expect("a list").into_iter().next().and_then(|held| held.why);
    assert!(why.is_none_or(|why| why.contains("virtual table")), "it is named, if SQLite has noticed");
    f.sql("INSERT INTO words (words) VALUES ('rebuild')");
    f.download(f.down());
    assert_eq!((f.rows("SELECT title FROM doc WHERE id = 1"), f.held()), (vec!["uno".to_owned()], 0));
    f.check();
}

/// The functions that every SQLite has today, and that ours needs for that reason.
#[test]
fn math_functions_are_there() {
    let connection = Connection::open_in_memory().expect("a database");
    let root: f64 = connection.query_row("SELECT sqrt(2.25) + pi() - pi()", [], |row| row.get(0)).expect("functions");
    assert!((root - 1.5).abs() < 1e-9);
}

/// A NOCASE and a lower() that know more letters than ours, as builds of SQLite with ICU have them.
fn redefine(f: &Fixture) {
    let lower = |context: &rusqlite::functions::Context<'_>| {
        Ok(context.get::<Option<String>>(0)?.map(|text| text.to_lowercase()))
    };
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    f.application.create_scalar_function("lower", 1, flags, lower).expect("a function");
    let no_case = |one: &str, other: &str| one.to_lowercase().cmp(&other.to_lowercase());
    f.application.create_collation("NOCASE", no_case).expect("a collation");
}

const REDEFINED: [&str; 4] = [
    "CREATE INDEX app ON doc (title COLLATE NOCASE)",
    "CREATE INDEX app ON doc (lower(title), id)",
    "CREATE UNIQUE INDEX app ON doc (body) WHERE lower(title) = 'äpfel'",
    "ALTER TABLE doc ADD COLUMN small AS (lower(title)); CREATE INDEX app ON doc (small)",
];

const FOREIGN: [&str; 6] = ["11,Äpfel,d", "12,Zebra,e", "13,äpfel,f", "14,Öl,g", "15,zoo,h", "16,öbst,i"];

#[test]
fn an_index_of_a_function_that_the_application_redefines_is_not_damaged() {
    for index in REDEFINED {
        let f = docs();
        f.download(f.down().rows("doc", &FOREIGN.map(row)));
        redefine(&f);
        f.sql(index);
        let down = f.down().rows("doc", &[row("14,Übung,g"), row("17,Ähre,j")]).delete("doc", &[row("11")]);
        let applied = f.download(down.rows("note", &[row("2,b")]));
        assert_eq!((f.held(), applied.not_stored), (3, 3), "{index}");
        assert_eq!(f.rows("SELECT id FROM note"), ["1", "2"], "the other table goes on");
        for held in f.remote.held(9).expect("a list") {
            let why = held.why.expect("a reason");
            assert!(why.contains("index \"app\" does not fit the rows here"), "{index}: {why}");
        }
        f.check();
        f.sql("DROP INDEX app");
        f.download(f.down());
        assert_eq!(f.rows("SELECT id, title FROM doc WHERE id IN (11, 14, 17)"), ["14|Übung", "17|Ähre"], "{index}");
        assert_eq!((f.held(), f.cut()), (0, None), "{index}");
        f.check();
    }
}

/// It fitted when it was made, and the application has written to it since: the first entry that is not found tells.
#[test]
fn an_index_that_does_not_fit_any_more_stops_its_table_alone() {
    for index in [
        "CREATE INDEX app ON doc (title COLLATE NOCASE)",
        "CREATE INDEX app ON doc (title COLLATE NOCASE) WHERE id > 1",
    ] {
        let f = docs();
        redefine(&f);
        f.sql(index);
        f.download(f.down().rows("doc", &[row("4,four,d")]));
        assert_eq!((f.held(), f.rows("SELECT checked > 0 FROM hw_tracking")[0].as_str()), (0, "1"), "{index}");
        for row in FOREIGN {
            let (id, rest) = row.split_once(',').expect("a key");
            f.sql(&format!("INSERT INTO doc VALUES ({id}, '{}')", rest.replace(',', "', '")));
        }
        f.upload_all();
        let gone: Vec<_> = (11..17).map(|id| row(&id.to_string())).collect();
        f.download(f.down().delete("doc", &gone).rows("note", &[row("2,b")]));
        assert_eq!(f.rows("SELECT id FROM note"), ["1", "2"], "{index}");
        assert!(f.held() > 0, "{index}");
        f.download(f.down().rows("doc", &[row("18,last,z")]));
        assert!(
            f.rows("SELECT 1 FROM doc NOT INDEXED WHERE id = 18").is_empty(),
            "{index}: nothing is written any more"
        );
        f.sql("DROP INDEX app");
        f.download(f.down());
        assert_eq!(
            (f.rows("SELECT id FROM doc"), f.held()),
            (["1", "2", "3", "4", "18"].map(str::to_owned).to_vec(), 0)
        );
        f.check();
    }
}

/// Once for each version of the schema, and only what may depend on such; ahead of the write lock where the file is opened or synced.
#[test]
fn an_index_that_fits_is_checked_once() {
    let mut f = docs();
    f.sql("CREATE INDEX app ON doc (lower(title)); CREATE INDEX plain ON note (text)");
    let checked =
        |f: &Fixture| f.rows("SELECT checked IS (SELECT schema_version FROM pragma_schema_version) FROM hw_tracking");
    for (sql, came) in [("SELECT 1", "1,Ähre,a"), ("CREATE TABLE other (id)", "1,Öl,a")] {
        f.sql(sql);
        assert_eq!(checked(&f), ["0", "0"], "{sql}");
        f.download(f.down().rows("doc", &[row(came)]).rows("note", &[row("2,b")]));
        assert_eq!((checked(&f), f.held()), (["1", "0"].map(str::to_owned).to_vec(), 0), "{sql}");
    }
    f.sql("DROP TABLE other");
    f.reopen();
    assert_eq!(checked(&f), ["1", "0"]);
    f.check();
}
