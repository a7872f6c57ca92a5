//! What SQLite does to rows that refer to a table while the application drops it, with `PRAGMA foreign_keys = ON`.

use headwater_model::{OnDelete, Reference};
use headwater_protocol::Type;

use super::support::{Fixture, model, row, table};
use crate::{Choice, PendingChoice, Remote};

/// Invoices and calls of customers, and lines of invoices: what goes with a customer, and what only loses it.
fn customers() -> Fixture {
    let refers = |table, on_delete| vec![Reference { columns: vec![1], table, target: vec![0], on_delete }];
    let columns = |parent| [("id", Type::Int), (parent, Type::Int), ("text", Type::Text)];
    let customer = table("customer", &[("id", Type::Int), ("name", Type::Text)]);
    let [mut invoice, mut line, mut call] = [("invoice", "customer"), ("line", "invoice"), ("call", "customer")]
        .map(|(name, to)| table(name, &columns(to)));
    invoice.references = refers(0, OnDelete::Cascade);
    line.references = refers(1, OnDelete::Cascade);
    call.references = refers(0, OnDelete::SetNull);
    let f = Fixture::new(&model(vec![customer, invoice, line, call]));
    f.download(
        f.down()
            .whole("customer", &[])
            .rows("customer", &[row("1,ann"), row("2,bob")])
            .whole("invoice", &[])
            .rows("invoice", &[row("10,1,a"), row("11,2,b"), row("12,-,c")])
            .whole("line", &[])
            .rows("line", &[row("100,10,x"), row("101,-,y")])
            .whole("call", &[])
            .rows("call", &[row("7,1,hello"), row("8,-,none")]),
    );
    f
}

/// The twelve steps with foreign keys left on, as a migration does them.
const REBUILD: &str = "BEGIN; CREATE TABLE customer_new (id INTEGER NOT NULL PRIMARY KEY, name TEXT, note TEXT); \
     INSERT INTO customer_new (id, name) SELECT id, name FROM customer; DROP TABLE customer; \
     ALTER TABLE customer_new RENAME TO customer; COMMIT";

const GONE: [&str; 4] = [
    r#"line {"id":100} gone in place"#,
    r#"call {"id":7} gone in place"#,
    r#"invoice {"id":11} gone in place"#,
    r#"invoice {"id":10} gone in place"#,
];

fn came_again(f: &Fixture) {
    f.download(f.down().whole("customer", &[]).rows("customer", &[row("1,ann"), row("2,bob")]));
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn what_went_with_a_table_that_is_dropped_or_rebuilt_is_not_sent() {
    for (change, is_meanwhile) in [("DROP TABLE customer", false), (REBUILD, false), (REBUILD, true)] {
        let mut f = customers();
        f.sql("UPDATE invoice SET text = 'edited' WHERE id = 12; DELETE FROM line WHERE id = 101");
        f.sql(change);
        assert_eq!(
            f.rows("SELECT (SELECT count(*) FROM invoice), (SELECT count(*) FROM call WHERE customer = 1)"),
            ["1|0"]
        );
        if !is_meanwhile {
            f.reopen();
        }
        let own = ["invoice: 12,NULL,c -> 12,NULL,edited", "line: 101,NULL,y -> -"];
        assert_eq!(f.cut_changes(), own, "{change}: what the application asked for is sent");
        assert_eq!(sorted(f.set_aside()), sorted(GONE.map(str::to_owned).to_vec()));
        f.receipt(Vec::new());
        came_again(&f);
        assert_eq!(f.cut(), None, "{change}");
        assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("brought back"), 4);
        assert_eq!(f.rows("SELECT * FROM invoice"), ["10|1|a", "11|2|b", "12|NULL|edited"]);
        assert_eq!(f.rows("SELECT * FROM line"), ["100|10|x"]);
        assert_eq!(f.rows("SELECT * FROM call"), ["7|1|hello", "8|NULL|none"]);
        assert_eq!(f.cut(), None, "{change}");
        f.check();
    }
}

#[test]
fn what_went_with_a_table_is_sent_if_somebody_says_so() {
    let mut f = customers();
    f.sql(REBUILD);
    f.reopen();
    came_again(&f);
    let first = f.remote.retry(&Choice::All).expect("nothing to be sent that nobody has seen");
    assert_eq!((first.changes, first.left.len(), f.cut()), (0, 4, None));
    assert!(first.left[0].contains("set aside just now") && first.left[0].contains("retry again"), "{:?}", first.left);
    assert_eq!(f.remote.retry(&Choice::All).expect("sent").changes, 4);
    let sent =
        ["invoice: 10,1,a -> -", "invoice: 11,2,b -> -", "line: 100,10,x -> -", "call: 7,1,hello -> 7,NULL,hello"];
    assert_eq!(f.cut_changes(), sent);
    f.check();
}

/// Rows of three tables are gone with their tables, and those of a fourth are gone with the second.
#[test]
fn tables_that_go_together_send_nothing() {
    let mut f = customers();
    f.sql("DROP TABLE customer; DROP TABLE invoice; DROP TABLE call");
    f.reopen();
    assert_eq!(f.cut(), None);
    let down = f.down().whole("customer", &[]).rows("customer", &[row("1,ann"), row("2,bob")]);
    f.download(down.whole("invoice", &[]).rows("invoice", &[row("10,1,a")]).whole("call", &[]));
    assert_eq!(f.cut(), None);
    f.remote.drop_set_aside(&Choice::Table("line".to_owned())).expect("brought back");
    assert_eq!(f.rows("SELECT * FROM line"), ["100|10|x", "101|NULL|y"]);
    assert_eq!(f.remote.drop_pending(&PendingChoice::All).expect("nothing"), 0);
    f.check();
}

/// A foreign key that only the file has.
#[test]
fn a_foreign_key_of_the_applications_own_counts() {
    let tables = [
        table("kind", &[("id", Type::Int), ("name", Type::Text)]),
        table("part", &[("id", Type::Int), ("kind", Type::Int)]),
    ];
    let mut f = Fixture::new(&model(tables.to_vec()));
    f.sql(
        "DROP TABLE part; CREATE TABLE part (id INTEGER PRIMARY KEY, kind INTEGER REFERENCES kind ON DELETE CASCADE)",
    );
    f.reopen();
    f.download(f.down().whole("kind", &[]).rows("kind", &[row("1,a")]).whole("part", &[]).rows("part", &[row("5,1")]));
    f.sql("DROP TABLE kind");
    f.reopen();
    assert_eq!((f.cut(), f.set_aside()), (None, vec![r#"part {"id":5} gone in place"#.to_owned()]));
    f.check();
}

/// A migration that renames the table first: SQLite changes the references to it, and they go with the old name.
#[test]
fn a_table_that_is_renamed_before_it_is_rebuilt_sends_nothing() {
    let mut f = customers();
    f.sql(
        "ALTER TABLE customer RENAME TO customer_old; CREATE TABLE customer (id INTEGER NOT NULL PRIMARY KEY, name TEXT); \
         INSERT INTO customer SELECT * FROM customer_old; DROP TABLE customer_old",
    );
    f.reopen();
    assert_eq!((f.cut(), sorted(f.set_aside())), (None, sorted(GONE.map(str::to_owned).to_vec())));
}

/// Items and notes of the model, whose rows refer to albums, which are the application's own, as pages are, which refer to shelves.
fn albums() -> Fixture {
    let tables = [
        table("item", &[("id", Type::Int), ("album", Type::Int), ("name", Type::Text)]),
        table("note", &[("id", Type::Int), ("item", Type::Int)]),
        table("stock", &[("id", Type::Int), ("count", Type::Int)]),
        table("tag", &[("id", Type::Int), ("name", Type::Text)]),
    ];
    let mut f = Fixture::new(&model(tables.to_vec()));
    f.sql(
        "CREATE TABLE shelf (id INTEGER PRIMARY KEY); CREATE TABLE album (id INTEGER PRIMARY KEY, shelf INTEGER REFERENCES shelf ON DELETE CASCADE); \
         DROP TABLE item; CREATE TABLE item (id INTEGER PRIMARY KEY, album INTEGER DEFAULT 3 REFERENCES Album ON DELETE CASCADE, name TEXT); \
         DROP TABLE note; CREATE TABLE note (id INTEGER PRIMARY KEY, item INTEGER REFERENCES item ON DELETE SET NULL); \
         INSERT INTO shelf VALUES (9); INSERT INTO album VALUES (1, 9), (2, 9), (3, NULL)",
    );
    f.reopen();
    f.download(
        f.down()
            .whole("item", &[])
            .rows("item", &[row("10,1,a"), row("11,2,b"), row("12,-,c"), row("13,-,d")])
            .whole("note", &[])
            .rows("note", &[row("100,10"), row("101,-")])
            .whole("stock", &[])
            .rows("stock", &[row("1,5")])
            .whole("tag", &[])
            .rows("tag", &[row("1,x")]),
    );
    f
}

fn nothing_in_doubt(f: &Fixture) {
    let doubts = crate::untracked::doubts(&f.remote.database.connection, &f.remote.plan).expect("read");
    assert!(doubts.iter().all(|doubt| *doubt == crate::untracked::Doubt::None), "{doubts:?}");
}

const WENT_WITH_ALBUMS: [&str; 3] =
    [r#"item {"id":10} gone in place"#, r#"item {"id":11} gone in place"#, r#"note {"id":100} gone in place"#];

const ANEW: &str =
    "CREATE TABLE album (id INTEGER PRIMARY KEY, shelf INTEGER REFERENCES shelf ON DELETE CASCADE, name TEXT);";

#[test]
fn what_went_with_a_table_of_the_applications_own_is_not_sent() {
    let rebuilt = format!(
        "CREATE TABLE x AS SELECT * FROM album; DROP TABLE album; {ANEW} INSERT INTO album (id, shelf) SELECT id, shelf FROM x"
    );
    let renamed = format!(
        "ALTER TABLE album RENAME TO x; {ANEW} INSERT INTO album (id, shelf) SELECT id, shelf FROM x; DROP TABLE x"
    );
    let changes = [
        ("dropped", "DROP TABLE album", false),
        ("rebuilt", rebuilt.as_str(), false),
        ("meanwhile", rebuilt.as_str(), true),
        ("renamed first", renamed.as_str(), false),
        ("the table above", "DROP TABLE shelf", false),
    ];
    for (name, change, is_meanwhile) in changes {
        let mut f = albums();
        f.sql("DELETE FROM item WHERE id = 12; UPDATE item SET name = 'edited' WHERE id = 13");
        f.sql(change);
        f.sql("VACUUM");
        assert_eq!(f.rows("SELECT group_concat(id) FROM item"), ["13"], "{name}");
        if !is_meanwhile {
            f.reopen();
        }
        assert_eq!(f.cut_changes(), ["item: 12,NULL,c -> -", "item: 13,NULL,d -> 13,NULL,edited"], "{name}");
        f.receipt(Vec::new());
        assert_eq!(sorted(f.set_aside()), WENT_WITH_ALBUMS, "{name}");
        f.reopen();
        assert_eq!((f.cut(), sorted(f.set_aside()).len()), (None, 3), "{name}");
        nothing_in_doubt(&f);
        // With foreign keys on, nothing can be written to the table while one to which it refers is not there.
        if matches!(name, "rebuilt" | "meanwhile") {
            f.sql("DELETE FROM item WHERE id = 13");
            assert_eq!(f.cut_changes(), ["item: 13,NULL,edited -> -"], "{name}: what comes after it is sent");
            f.receipt(Vec::new());
        }
        assert_eq!(f.remote.drop_set_aside(&Choice::All).expect("brought back"), 3, "{name}");
        assert_eq!(f.rows("SELECT * FROM item WHERE id < 12"), ["10|1|a", "11|2|b"], "{name}");
        assert_eq!(f.rows("SELECT * FROM note"), ["100|10", "101|NULL"], "{name}");
    }
}

/// What is done to such a table otherwise, or what happened before it was known, sets nothing aside.
#[test]
fn a_table_of_the_applications_own_that_stays_sets_nothing_aside() {
    let changes = [
        "ALTER TABLE album RENAME TO record",
        "ALTER TABLE album ADD COLUMN note TEXT; CREATE INDEX album_note ON album (note)",
        "CREATE TABLE other (id INTEGER PRIMARY KEY); DROP TABLE other",
        "DROP TABLE hw_parent",
        "VACUUM",
        // No foreign key says what is to happen.
        "CREATE TABLE plain (id INTEGER PRIMARY KEY); CREATE TABLE child (plain INTEGER REFERENCES plain); DROP TABLE plain; DROP TABLE child",
    ];
    for change in changes {
        let mut f = albums();
        f.sql("DELETE FROM item WHERE id = 10");
        f.sql(change);
        f.reopen();
        f.reopen();
        assert_eq!(f.cut_changes(), ["item: 10,1,a -> -", "note: 100,10 -> 100,NULL"], "{change}");
        assert_eq!(f.set_aside(), Vec::<String>::new(), "{change}");
        nothing_in_doubt(&f);
        f.check();
    }
    let f = albums();
    assert_eq!(f.rows("SELECT name FROM hw_parent WHERE name <> ''"), ["album", "shelf"]);
    let version = f.rows("PRAGMA schema_version");
    drop(Remote::open(f.remote.path()).expect("it opens"));
    assert_eq!(f.rows("PRAGMA schema_version"), version, "nothing is made anew where nothing has changed");
}

/// Triggers of the application's, fired by what SQLite did, write to further tables.
#[test]
fn what_triggers_wrote_while_a_table_was_dropped_is_not_sent() {
    let cascade = "CREATE TRIGGER app_1 AFTER DELETE ON item BEGIN UPDATE stock SET count = count + 1; END; \
                   CREATE TRIGGER app_2 AFTER UPDATE ON stock WHEN NEW.count > 6 BEGIN INSERT INTO \"tag\" VALUES (NEW.count, 'many'); END";
    for (name, change) in [("own", "DROP TABLE album"), ("model", "PRAGMA foreign_keys = ON; DROP TABLE item")] {
        let mut f = albums();
        f.sql(cascade);
        if name == "model" {
            f.sql(
                "CREATE TABLE picture (id INTEGER PRIMARY KEY, item INTEGER REFERENCES item ON DELETE CASCADE); \
                   CREATE TRIGGER app_3 AFTER DELETE ON picture BEGIN UPDATE stock SET count = count + 1; END; \
                   INSERT INTO picture VALUES (1, 10), (2, 11)",
            );
        }
        f.sql("UPDATE note SET id = 102 WHERE id = 101");
        f.sql(change);
        assert_eq!(f.rows("SELECT (SELECT count FROM stock), (SELECT count(*) FROM tag)"), ["7|2"], "{name}");
        f.reopen();
        assert_eq!(f.cut_changes(), ["note: 101,NULL -> -", "note: - -> 102,NULL"], "{name}: no trigger writes to it");
        f.receipt(Vec::new());
        let aside = f.set_aside();
        for change in [r#"stock {"id":1} gone in place"#, r#"tag {"id":7} gone in place"#] {
            assert!(aside.iter().any(|found| found == change), "{name}: {change}: {aside:?}");
        }
        f.remote.drop_set_aside(&Choice::Table("stock".to_owned())).expect("taken back");
        f.remote.drop_set_aside(&Choice::Table("tag".to_owned())).expect("taken back");
        assert_eq!(f.rows("SELECT (SELECT count FROM stock), (SELECT count(*) FROM tag)"), ["5|1"], "{name}");
    }
}

#[test]
fn a_reference_that_got_its_default_is_not_sent() {
    let mut f = albums();
    f.sql(
        "DROP TABLE item; CREATE TABLE item (id INTEGER PRIMARY KEY, album INTEGER DEFAULT 3 REFERENCES album ON DELETE SET DEFAULT \
         DEFERRABLE INITIALLY DEFERRED, name TEXT)",
    );
    f.reopen();
    f.download(f.down().whole("item", &[]).rows("item", &[row("10,1,a"), row("13,-,d")]));
    f.sql("UPDATE item SET name = 'edited' WHERE id = 13; PRAGMA foreign_keys = ON");
    f.sql("BEGIN; DROP TABLE album; CREATE TABLE album (id INTEGER PRIMARY KEY); INSERT INTO album VALUES (1), (2), (3); COMMIT");
    assert_eq!(f.rows("SELECT album FROM item WHERE id = 10"), ["3"]);
    f.reopen();
    assert!(f.set_aside().contains(&r#"item {"id":10} gone in place"#.to_owned()));
    f.remote.drop_set_aside(&Choice::All).expect("brought back");
    assert_eq!(f.rows("SELECT album FROM item WHERE id = 10"), ["1"]);
}

/// A column of the application's own refers to its table.
#[test]
fn a_row_that_went_for_a_column_of_the_applications_own_is_not_sent() {
    let mut f = albums();
    f.sql("ALTER TABLE stock ADD COLUMN album INTEGER REFERENCES album ON DELETE CASCADE");
    f.reopen();
    f.sql("UPDATE stock SET album = 2; DROP TABLE album");
    assert_eq!(f.rows("SELECT count(*) FROM stock"), ["0"]);
    f.reopen();
    assert!(f.cut().is_none() && f.set_aside().contains(&r#"stock {"id":1} gone in place"#.to_owned()));
    f.check();
}

/// What one migration drops together: the table, the one with the trigger, and the trigger.
#[test]
fn what_triggers_wrote_that_went_with_the_tables_is_not_sent() {
    let own = "CREATE TABLE dept (id INTEGER PRIMARY KEY); CREATE TABLE team (id INTEGER PRIMARY KEY, dept INTEGER REFERENCES dept ON DELETE CASCADE); \
               INSERT INTO dept VALUES (1); INSERT INTO team VALUES (1, 1), (2, 1); \
               CREATE TRIGGER app AFTER DELETE ON team BEGIN UPDATE stock SET count = count + 1; END;";
    let on_model = "CREATE TRIGGER app AFTER DELETE ON item BEGIN UPDATE stock SET count = count + 1; END;";
    let item = "CREATE TABLE item_new (id INTEGER PRIMARY KEY, album INTEGER, name TEXT); INSERT INTO item_new SELECT * FROM item;";
    let both = format!("{item} DROP TABLE album; {ANEW} DROP TABLE item; ALTER TABLE item_new RENAME TO item");
    let migrations = [
        (own, "DROP TABLE dept; DROP TABLE team"),
        (
            own,
            "DROP TABLE dept; CREATE TABLE dept (id INTEGER PRIMARY KEY); DROP TABLE team; CREATE TABLE team (id INTEGER PRIMARY KEY)",
        ),
        (on_model, both.as_str()),
    ];
    for (triggers, migration) in migrations {
        for is_meanwhile in [false, true] {
            let mut f = albums();
            f.sql(triggers);
            f.reopen();
            f.sql(migration);
            assert_eq!(f.rows("SELECT count FROM stock"), ["7"], "{migration}");
            if !is_meanwhile {
                f.reopen();
            }
            assert!(!f.cut_changes().iter().any(|change| change.starts_with("stock")), "{migration}");
            assert!(f.set_aside().contains(&r#"stock {"id":1} gone in place"#.to_owned()), "{migration}");
        }
    }
}

/// A column of the application's own loses its reference: nothing but its triggers shows it.
#[test]
fn what_a_trigger_on_a_column_of_the_applications_own_wrote_is_not_sent() {
    for action in ["SET NULL", "SET DEFAULT", "CASCADE"] {
        let mut f = albums();
        f.sql(&format!(
            "ALTER TABLE tag ADD COLUMN album INTEGER REFERENCES album ON DELETE {action}; UPDATE tag SET album = 2; \
             CREATE TRIGGER app_u AFTER UPDATE ON tag BEGIN UPDATE stock SET count = count + 1; END; \
             CREATE TRIGGER app_d AFTER DELETE ON tag BEGIN UPDATE stock SET count = count + 1; END;"
        ));
        f.upload_all();
        f.reopen();
        f.sql(&format!("CREATE TABLE x AS SELECT * FROM album; DROP TABLE album; {ANEW} INSERT INTO album (id, shelf) SELECT id, shelf FROM x"));
        assert_eq!(f.rows("SELECT count FROM stock"), ["6"], "{action}");
        f.reopen();
        assert!(!f.cut_changes().iter().any(|change| change.starts_with("stock")), "{action}");
        assert!(f.set_aside().contains(&r#"stock {"id":1} gone in place"#.to_owned()), "{action}: {:?}", f.set_aside());
    }
}
