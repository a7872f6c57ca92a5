//! Tables that the application made, before the file was a remote or in place of one of ours.

use headwater_model::Model;
use headwater_protocol::Type;
use rusqlite::Connection;

use super::support::{Fixture, model, table};
use crate::{CreateOptions, Remote};

/// A remote in a file that had these tables.
fn adopting(model: &Model, sql: &str) -> Fixture {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remote.db");
    let application = Connection::open(&path).expect("the application's connection");
    application.pragma_update(None, "foreign_keys", true).expect("pragma");
    application.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let options = CreateOptions { adopt: true, ..CreateOptions::new("http://127.0.0.1:1", "ann") };
    let remote = Remote::create(&path, model, &options).expect("a remote");
    Fixture { folder, remote, application }
}

fn refused(f: &Fixture, sql: &str) -> String {
    f.application.execute_batch(sql).expect_err(sql).to_string()
}

/// A table with a key of this kind, in the model and in the file.
fn keyed(kind: Type, declared: &str) -> Fixture {
    let item = model(vec![table("item", &[("id", kind), ("name", Type::Text)])]);
    adopting(&item, &format!("CREATE TABLE item (name TEXT, id {declared})"))
}

#[test]
fn a_key_that_is_null_is_refused() {
    for (kind, declared) in [(Type::Text, "TEXT PRIMARY KEY"), (Type::Int, "INTEGER PRIMARY KEY DESC")] {
        let f = keyed(kind, declared);
        f.sql("INSERT INTO item (id, name) VALUES (7, 'seven')");
        for sql in [
            "INSERT INTO item (name) VALUES ('x')",
            "INSERT OR IGNORE INTO item (id, name) VALUES (NULL, 'x')",
            "REPLACE INTO item (id, name) VALUES (NULL, 'x')",
            "UPDATE item SET id = NULL",
        ] {
            let why = refused(&f, sql);
            assert!(why.contains("headwater: the key of table item may not be NULL"), "{declared}: {sql}: {why}");
        }
        assert_eq!(f.cut_changes(), ["item: - -> 7,seven"]);
        f.check();
    }
}

#[test]
fn a_row_without_a_key_can_be_given_one_or_deleted() {
    for (kind, declared) in [(Type::Text, "TEXT PRIMARY KEY"), (Type::Int, "INTEGER PRIMARY KEY DESC")] {
        let mut f = keyed(kind, declared);
        f.download(f.down().whole("item", &[]).rows("item", &[]));
        // An earlier build took them.
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'trigger'";
        f.rows(sql).iter().for_each(|name| f.sql(&format!("DROP TRIGGER {name}")));
        f.sql("INSERT INTO item (id, name) VALUES (NULL, 'a'), (NULL, 'b'), (NULL, 'c'); DELETE FROM hw_tracking");
        f.reopen();
        f.sql("UPDATE item SET name = 'bb' WHERE name = 'b'; UPDATE item SET id = 5 WHERE name = 'bb'");
        f.sql("DELETE FROM item WHERE name = 'a'; CREATE UNIQUE INDEX own ON item (name)");
        f.reopen();
        f.sql("REPLACE INTO item (id, name) VALUES (6, 'c')");
        assert_eq!(f.cut_changes(), ["item: - -> 5,bb", "item: - -> 6,c"], "{declared}");
        assert_eq!(f.rows("SELECT id, name FROM item ORDER BY id"), ["5|bb", "6|c"], "{declared}");
        f.check();
    }
}

/// What SQLite itself refuses, leaves out or chooses stays so.
#[test]
fn a_key_that_cant_be_null_is_left_to_sqlite() {
    let f = keyed(Type::Text, "TEXT NOT NULL PRIMARY KEY");
    f.sql("INSERT OR IGNORE INTO item (id, name) VALUES (NULL, 'x')");
    assert!(refused(&f, "INSERT INTO item (id, name) VALUES (NULL, 'x')").contains("NOT NULL constraint failed"));
    let f = keyed(Type::Int, "INTEGER PRIMARY KEY");
    f.sql("INSERT INTO item (id, name) VALUES (NULL, 'x')");
    assert_eq!(f.cut_changes(), ["item: - -> 1,x"]);
    let f = keyed(Type::Text, "TEXT PRIMARY KEY) WITHOUT ROWID; CREATE TABLE other (id");
    f.sql("INSERT OR IGNORE INTO item (id) VALUES (NULL)");
    assert_eq!(f.cut(), None);
}

/// Writes to a part of a value fire no trigger.
#[test]
fn incremental_writes_to_a_value_are_refused() {
    let columns = [("id", Type::Int), ("data", Type::Bytes)];
    let models = |key: Type| model(vec![table("item", &[("id", key), ("data", Type::Bytes)])]);
    let fixtures = [
        (Fixture::new(&models(Type::Int)), "created"),
        (adopting(&models(Type::Int), "CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB, extra)"), "adopted"),
        (
            adopting(&models(Type::Text), "CREATE TABLE item (id TEXT NOT NULL PRIMARY KEY, data BLOB)"),
            "adopted, text key",
        ),
    ];
    for (mut f, what) in fixtures {
        f.sql("INSERT INTO item (id, data) VALUES (1, x'0102')");
        f.upload_all();
        let open =
            |f: &Fixture, is_read_only| f.application.blob_open("main", "item", "data", 1, is_read_only).map(drop);
        let refused = |f: &Fixture| {
            let error = open(f, false).expect_err(what).to_string();
            assert!(error.contains("cannot open indexed column for writing"), "{what}: {error}");
        };
        refused(&f);
        open(&f, true).expect("reading");
        // An earlier build made none.
        f.sql("DROP INDEX hw_whole_item");
        open(&f, false).expect("nothing refuses it");
        f.reopen();
        refused(&f);
        assert!(!crate::untracked::any(&f.remote.database.connection, &f.remote.plan).expect("read"), "{what}");
        f.check();
    }
    let f = adopting(
        &model(vec![table("item", &columns)]),
        "CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB) WITHOUT ROWID",
    );
    assert_eq!(
        f.rows("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'hw_whole%'"),
        ["0"],
        "SQLite refuses them itself"
    );
}

/// The old table is renamed first, and kept.
#[test]
fn a_table_made_anew_beside_the_renamed_one_is_tracked() {
    let mut f = keyed(Type::Int, "INTEGER PRIMARY KEY");
    f.sql("INSERT INTO item (id, name) VALUES (1, 'a')");
    f.upload_all();
    f.sql(
        "ALTER TABLE item RENAME TO item_old; CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT); \
           INSERT INTO item SELECT id, name FROM item_old",
    );
    f.reopen();
    f.reopen();
    assert!(crate::untracked::any(&f.remote.database.connection, &f.remote.plan).expect("read"));
    let ours =
        "SELECT DISTINCT tbl_name FROM sqlite_schema WHERE name LIKE 'hw\\_%' ESCAPE '\\' AND tbl_name LIKE 'item%'";
    assert_eq!(f.rows(ours), ["item"]);
    f.sql("UPDATE item_old SET name = 'x'; DROP TABLE item_old; UPDATE item SET name = 'b'");
    assert_eq!(f.cut_changes(), ["item: 1,a -> 1,b"]);
    f.check();
}

/// An AFTER INSERT trigger that is newer than ours runs first, and updates its own row: only what was logged before tells that it is new.
#[test]
fn an_insert_with_autoincrement_and_a_stamp_is_an_insert() {
    let columns = [("id", Type::Int), ("name", Type::Text)];
    let stamp =
        "CREATE TRIGGER stamp AFTER INSERT ON item BEGIN UPDATE item SET name = name || '!' WHERE id = NEW.id; END";
    let declared =
        ["Item (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT)", "item (id INTEGER PRIMARY KEY, name TEXT)"];
    for table_sql in declared {
        let is_sequence = table_sql.contains("AUTOINCREMENT");
        let mut f = adopting(&model(vec![table("item", &columns)]), &format!("CREATE TABLE {table_sql}"));
        f.sql(stamp);
        f.sql("INSERT INTO item (name) VALUES ('a'), ('b'), ('c')");
        assert_eq!(f.cut_changes(), ["item: - -> 1,a!", "item: - -> 2,b!", "item: - -> 3,c!"]);
        f.receipt(Vec::new());
        f.sql("DELETE FROM item WHERE id > 1");
        f.upload_all();
        f.sql("INSERT INTO item (name) VALUES ('d'), ('e')");
        let expected =
            if is_sequence { ["item: - -> 4,d!", "item: - -> 5,e!"] } else { ["item: - -> 2,d!", "item: - -> 3,e!"] };
        assert_eq!(f.cut_changes(), expected);
        f.receipt(Vec::new());
        f.sql("DELETE FROM item; INSERT INTO item (name) VALUES ('f')");
        f.reopen();
        let last = if is_sequence { "item: - -> 6,f!" } else { "item: 1,a! -> 1,f!" };
        assert!(f.cut_changes().contains(&last.to_owned()), "{:?}", f.upload());
        f.check();
    }
}

/// From the next look at the file on, change tracking is told of each new row before the application's triggers are.
#[test]
fn a_trigger_that_deletes_earlier_rows_of_its_statement_hides_no_insert() {
    let columns = [("id", Type::Int), ("name", Type::Text)];
    let triggers = "CREATE TRIGGER app AFTER INSERT ON item WHEN NEW.name = 'gone' BEGIN DELETE FROM item WHERE id = NEW.id; END; \
         CREATE TRIGGER app_key AFTER INSERT ON item WHEN NEW.name = 'low' BEGIN UPDATE item SET id = -NEW.id WHERE id = NEW.id; END; \
         CREATE TRIGGER app_stamp AFTER INSERT ON item BEGIN UPDATE item SET name = name || '!' WHERE id = NEW.id; END";
    let sql = "CREATE TABLE item (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT)";
    let mut f = adopting(&model(vec![table("item", &columns)]), sql);
    f.sql(triggers);
    f.reopen();
    assert!(!crate::untracked::any(&f.remote.database.connection, &f.remote.plan).expect("read"));
    let version = f.rows("PRAGMA schema_version");
    f.reopen();
    assert_eq!(f.rows("PRAGMA schema_version"), version, "once is enough");
    f.sql("VACUUM");
    f.reopen();
    f.sql("INSERT INTO item (name) VALUES ('gone'), ('b'), ('c')");
    assert_eq!(f.cut_changes(), ["item: - -> 2,b!", "item: - -> 3,c!"]);
    f.receipt(Vec::new());
    f.sql("INSERT INTO item (name) VALUES ('low'), ('low'), ('f')");
    assert_eq!(f.cut_changes(), ["item: - -> -5,low!", "item: - -> -4,low!", "item: - -> 6,f!"]);
    f.check();
}

/// The sequence goes with the table's name.
#[test]
fn autoincrement_goes_on_in_a_table_that_was_renamed_and_back() {
    let columns = [("id", Type::Int), ("name", Type::Text)];
    let sql = "CREATE TABLE item (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT); INSERT INTO item VALUES (9, 'x'); DELETE FROM item";
    let mut f = adopting(&model(vec![table("item", &columns)]), sql);
    f.sql("CREATE TRIGGER stamp AFTER INSERT ON item BEGIN UPDATE item SET name = 'stamp' WHERE id = NEW.id; END");
    f.sql("ALTER TABLE item RENAME TO other; ALTER TABLE other RENAME TO item");
    f.reopen();
    assert!(!crate::untracked::any(&f.remote.database.connection, &f.remote.plan).expect("read"));
    f.sql("INSERT INTO item (name) VALUES ('a')");
    assert_eq!(f.cut_changes(), ["item: - -> 10,stamp"]);
    f.check();
}
