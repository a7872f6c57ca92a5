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
