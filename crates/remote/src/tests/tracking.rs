//! Change tracking: every way in which SQLite changes rows, with `recursive_triggers` on and off.
//!
//! Each case begins from rows that came down, runs SQL as the application, and shows the net changes that would go up.

use headwater_model::{Direction, OnDelete, Reference};
use headwater_protocol::Type;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::support::{Down, Fixture, model, query, row, table};

/// `item (id, name unique, note)`, `pair (a, b, note)` with a key of both, `tree (id, parent)` that refers to itself with a cascade,
/// `leaf (id, tree)` that refers to it with SET NULL.
pub(super) fn fixture() -> Fixture {
    let mut item = table("item", &[("id", Type::Int), ("name", Type::Text), ("note", Type::Text)]);
    item.unique = vec![vec![1]];
    let mut pair = table("pair", &[("a", Type::Text), ("b", Type::Int), ("note", Type::Text)]);
    pair.key = vec![0, 1];
    pair.columns[1].nullable = false;
    let mut tree = table("tree", &[("id", Type::Int), ("parent", Type::Int)]);
    tree.references = vec![Reference { columns: vec![1], table: 2, target: vec![0], on_delete: OnDelete::Cascade }];
    let mut leaf = table("leaf", &[("id", Type::Int), ("tree", Type::Int)]);
    leaf.references = vec![Reference { columns: vec![1], table: 2, target: vec![0], on_delete: OnDelete::SetNull }];
    let f = Fixture::new(&model(vec![item, pair, tree, leaf]));
    f.download(begin(&f));
    f
}

fn begin(f: &Fixture) -> Down {
    f.down()
        .whole("item", &[])
        .rows("item", &[row("1,a,x"), row("2,b,x"), row("3,c,x")])
        .whole("pair", &[])
        .rows("pair", &[row("p,1,x"), row("p,2,x")])
        .whole("tree", &[])
        .rows("tree", &[row("1,-"), row("2,1"), row("3,2"), row("4,-")])
        .whole("leaf", &[])
        .rows("leaf", &[row("1,3"), row("2,4")])
}

/// Runs SQL with recursive triggers off and on, and compares the upload.
fn case(sql: &str, expected: &[&str]) {
    for recursive in [false, true] {
        let f = fixture();
        f.application.pragma_update(None, "recursive_triggers", recursive).expect("pragma");
        f.sql(sql);
        let pending = f.remote.status().expect("a status").pending;
        assert_eq!(f.cut_changes(), expected, "recursive_triggers {recursive}: {sql}");
        assert_eq!(pending, expected.len() as u64, "the status counts net changes: {sql}");
        f.check();
    }
}

#[test]
fn plain_statements() {
    case("INSERT INTO item VALUES (9, 'z', NULL)", &["item: - -> 9,z,NULL"]);
    case("INSERT INTO item (name) VALUES ('z'), ('y')", &["item: - -> 4,z,NULL", "item: - -> 5,y,NULL"]);
    case("UPDATE item SET note = 'y' WHERE id < 3", &["item: 1,a,x -> 1,a,y", "item: 2,b,x -> 2,b,y"]);
    case("DELETE FROM pair", &["pair: p,1,x -> -", "pair: p,2,x -> -"]);
    case("INSERT INTO pair VALUES ('q', 1, NULL)", &["pair: - -> q,1,NULL"]);
}

#[test]
fn changes_that_cancel_out() {
    case("UPDATE item SET note = 'y'; UPDATE item SET note = 'x'", &[]);
    case("INSERT INTO item VALUES (9, 'z', NULL); DELETE FROM item WHERE id = 9", &[]);
    case("DELETE FROM item WHERE id = 1; INSERT INTO item VALUES (1, 'a', 'x')", &[]);
    case("BEGIN; DELETE FROM item; ROLLBACK", &[]);
    case("UPDATE item SET id = id + 10; UPDATE item SET id = id - 10", &[]);
    case("UPDATE pair SET a = a", &[]);
    case("INSERT OR IGNORE INTO item VALUES (1, 'other', NULL), (8, 'a', NULL)", &[]);
    case("UPDATE item SET note = NULL; UPDATE item SET note = 'x'", &[]);
}

#[test]
fn the_first_old_image_stays() {
    case("UPDATE item SET note = 'y' WHERE id = 1; UPDATE item SET note = 'z' WHERE id = 1", &["item: 1,a,x -> 1,a,z"]);
    case("DELETE FROM item WHERE id = 1; INSERT INTO item VALUES (1, 'n', 'n')", &["item: 1,a,x -> 1,n,n"]);
    case("INSERT INTO item VALUES (9, 'z', 1); UPDATE item SET note = '2' WHERE id = 9", &["item: - -> 9,z,2"]);
}

#[test]
fn insert_or_replace() {
    case("INSERT OR REPLACE INTO item VALUES (1, 'new', 'y')", &["item: 1,a,x -> 1,new,y"]);
    case("REPLACE INTO item VALUES (9, 'b', 'y')", &["item: 2,b,x -> -", "item: - -> 9,b,y"]);
    // By the key one row, by the unique name another.
    case("REPLACE INTO item VALUES (1, 'b', 'y')", &["item: 1,a,x -> 1,b,y", "item: 2,b,x -> -"]);
    case("REPLACE INTO item (name, note) VALUES ('c', 'y')", &["item: 3,c,x -> -", "item: - -> 4,c,y"]);
    case("REPLACE INTO pair VALUES ('p', 1, 'y'), ('p', 3, 'y')", &["pair: p,1,x -> p,1,y", "pair: - -> p,3,y"]);
    case("REPLACE INTO item VALUES (1, 'a', 'x')", &[]);
}

#[test]
fn update_or_replace() {
    case("UPDATE OR REPLACE item SET name = 'b' WHERE id = 1", &["item: 1,a,x -> 1,b,x", "item: 2,b,x -> -"]);
    case("UPDATE OR REPLACE item SET id = 2 WHERE id = 1", &["item: 1,a,x -> -", "item: 2,b,x -> 2,a,x"]);
    case("UPDATE OR REPLACE pair SET b = 2 WHERE b = 1", &["pair: p,1,x -> -"]);
    case("UPDATE OR IGNORE item SET name = 'b' WHERE id = 1", &[]);
}

#[test]
fn upserts() {
    case(
        "INSERT INTO item VALUES (1, 'q', 'y') ON CONFLICT (id) DO UPDATE SET note = excluded.note",
        &["item: 1,a,x -> 1,a,y"],
    );
    case(
        "INSERT INTO item (name, note) VALUES ('b', 'y') ON CONFLICT (name) DO UPDATE SET note = 'z'",
        &["item: 2,b,x -> 2,b,z"],
    );
    case("INSERT INTO item VALUES (1, 'q', 'y') ON CONFLICT DO NOTHING", &[]);
    case(
        "INSERT INTO pair VALUES ('p', 1, 'y') ON CONFLICT DO UPDATE SET b = 7",
        &["pair: p,1,x -> -", "pair: - -> p,7,x"],
    );
}

#[test]
fn keys_that_change() {
    case("UPDATE item SET id = 9 WHERE id = 1", &["item: 1,a,x -> -", "item: - -> 9,a,x"]);
    // An alias of the key.
    case("UPDATE item SET rowid = 9 WHERE id = 1", &["item: 1,a,x -> -", "item: - -> 9,a,x"]);
    case("UPDATE pair SET a = 'q', note = 'y' WHERE b = 2", &["pair: p,2,x -> -", "pair: - -> q,2,y"]);
    case(
        "UPDATE item SET id = 9 WHERE id = 1; UPDATE item SET id = 1 WHERE id = 2",
        &["item: 1,a,x -> 1,b,x", "item: 2,b,x -> -", "item: - -> 9,a,x"],
    );
}

#[test]
fn cascades() {
    case(
        "DELETE FROM tree WHERE id = 1",
        &["tree: 1,NULL -> -", "tree: 2,1 -> -", "tree: 3,2 -> -", "leaf: 1,3 -> 1,NULL"],
    );
    case("REPLACE INTO tree VALUES (4, 1)", &["tree: 4,NULL -> 4,1", "leaf: 2,4 -> 2,NULL"]);
    case(
        "DELETE FROM tree; INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2), (4, NULL)",
        &["leaf: 1,3 -> 1,NULL", "leaf: 2,4 -> 2,NULL"],
    );
}

#[test]
fn the_applications_own_triggers() {
    // They run after ours are made, change the same row again, and so would be the first to log it if ours ran after the change.
    let touch = "CREATE TRIGGER touch AFTER UPDATE ON item WHEN NEW.note IS NOT 't' BEGIN UPDATE item SET note = 't' WHERE id = NEW.id; END;";
    let born = "CREATE TRIGGER born AFTER INSERT ON item BEGIN UPDATE item SET note = 'born' WHERE id = NEW.id; END;";
    case(&format!("{touch} UPDATE item SET name = 'n' WHERE id = 1"), &["item: 1,a,x -> 1,n,t"]);
    case(&format!("{born} INSERT INTO item (name) VALUES ('n')"), &["item: - -> 4,n,born"]);
    case(&format!("{born} INSERT INTO item VALUES (20, 'n', NULL)"), &["item: - -> 20,n,born"]);
    let other =
        "CREATE TRIGGER other BEFORE DELETE ON item BEGIN INSERT INTO pair VALUES (OLD.name, OLD.id, 'del'); END;";
    case(
        &format!("{other} REPLACE INTO item VALUES (7, 'zz', 1); DELETE FROM item WHERE id = 1"),
        &["item: 1,a,x -> -", "item: - -> 7,zz,1", "pair: - -> a,1,del"],
    );
}

#[test]
fn unique_indexes_that_the_application_made() {
    let indexes = [
        "CREATE UNIQUE INDEX own ON item (note)",
        "CREATE UNIQUE INDEX own ON item (note COLLATE NOCASE)",
        "CREATE UNIQUE INDEX own ON item (lower(note) DESC) WHERE note IS NOT NULL",
        "CREATE UNIQUE INDEX own ON item (note, substr(note, 1, 1)) WHERE note LIKE 'y%'",
    ];
    for index in indexes {
        for recursive in [false, true] {
            let mut f = fixture();
            f.application.pragma_update(None, "recursive_triggers", recursive).expect("pragma");
            f.sql("UPDATE item SET note = 'y' || id");
            f.upload_all();
            f.sql(index);
            f.reopen();
            f.sql("REPLACE INTO item VALUES (10, 'j', 'y1'); UPDATE OR REPLACE item SET note = 'y2' WHERE id = 3");
            let expected = ["item: 1,a,y1 -> -", "item: 2,b,y2 -> -", "item: 3,c,y3 -> 3,c,y2", "item: - -> 10,j,y1"];
            assert_eq!(f.cut_changes(), expected, "{index}");
            f.receipt(Vec::new());
            f.sql("DROP INDEX own");
            f.reopen();
            f.sql("REPLACE INTO item VALUES (11, 'k', 'y1')");
            assert_eq!(f.cut_changes(), ["item: - -> 11,k,y1"], "{index} dropped");
        }
    }
}

#[test]
fn triggers_that_are_gone_are_made_again() {
    let mut f = fixture();
    f.sql("DROP TRIGGER hw_update_item");
    f.reopen();
    f.sql("UPDATE item SET note = 'y' WHERE id = 1");
    assert_eq!(f.cut_changes(), ["item: 1,a,x -> 1,a,y"]);
}

#[test]
fn a_table_that_only_comes_down_refuses_edits() {
    let mut only = table("only", &[("id", Type::Int), ("name", Type::Text)]);
    only.direction = Direction::Download;
    let f = Fixture::new(&model(vec![only]));
    f.download(f.down().whole("only", &[]).rows("only", &[row("1,a")]));
    for sql in [
        "INSERT INTO only VALUES (2, 'b')",
        "INSERT OR IGNORE INTO only VALUES (2, 'b')",
        "UPDATE only SET name = 'c'",
        "DELETE FROM only",
        "REPLACE INTO only VALUES (1, 'd')",
    ] {
        let error = f.application.execute_batch(sql).expect_err(sql).to_string();
        assert!(error.contains("table only only comes from the consolidated database"), "{error}");
    }
    f.download(f.down().delete("only", &[row("1")]).rows("only", &[row("2,b")]));
    assert_eq!(f.rows("SELECT * FROM only"), ["2|b"]);
    assert_eq!(f.cut(), None);
}

/// The same with SQLite's own command line as the writer: another program, another version of SQLite.
#[test]
fn another_sqlite_program_as_the_writer() {
    let f = fixture();
    let sql = "PRAGMA foreign_keys = on; REPLACE INTO item VALUES (9, 'b', 'y'); DELETE FROM tree WHERE id = 1;";
    let run = std::process::Command::new("sqlite3").arg(f.remote.path()).arg(sql).output();
    let output = run.expect("sqlite3 is not installed; `make setup` installs it");
    assert!(output.status.success(), "{output:?}");
    let expected = [
        "item: 2,b,x -> -",
        "item: - -> 9,b,y",
        "tree: 1,NULL -> -",
        "tree: 2,1 -> -",
        "tree: 3,2 -> -",
        "leaf: 1,3 -> 1,NULL",
    ];
    assert_eq!(f.cut_changes(), expected);
    assert_eq!(
        query(
            &f.application,
            "SELECT count(*) FROM hw_upload WHERE kind = 3 AND upload = (SELECT frozen FROM hw_state)"
        ),
        ["3"]
    );
}

/// The names that SQL and our own tables could be confused by.
#[test]
fn awkward_names() {
    let mut odd = table(
        "or\"der by",
        &[("upload", Type::Int), ("existed", Type::Text), ("k_upload", Type::Text), ("a'b", Type::Text)],
    );
    odd.unique = vec![vec![1, 3]];
    odd.key = vec![0, 2];
    odd.columns[2].nullable = false;
    let f = Fixture::new(&model(vec![odd]));
    f.sql("INSERT INTO \"or\"\"der by\" VALUES (1, 'e', 'k', 'q')");
    f.upload_all();
    f.sql("REPLACE INTO \"or\"\"der by\" VALUES (2, 'e', 'k', 'q')");
    assert_eq!(f.cut_changes(), ["or\"der by: 1,e,k,q -> -", "or\"der by: - -> 2,e,k,q"]);
    f.receipt(Vec::new());
    f.download(f.down().whole("or\"der by", &[]).rows("or\"der by", &[row("3,f,k,q")]));
    assert_eq!(f.rows("SELECT * FROM \"or\"\"der by\""), ["3|f|k|q"]);
    f.check();
}

/// Makes a setting of a connection.
type Setting = fn(&Connection);

/// Whatever an application or its driver sets for its connection, its writes are tracked.
#[test]
fn settings_of_a_connection_change_nothing() {
    let settings: [(&str, Setting); 11] = [
        ("foreign_keys off", |c| c.pragma_update(None, "foreign_keys", false).expect("set")),
        ("recursive_triggers", |c| c.pragma_update(None, "recursive_triggers", true).expect("set")),
        ("trusted_schema off", |c| c.pragma_update(None, "trusted_schema", false).expect("set")),
        ("legacy_alter_table", |c| c.pragma_update(None, "legacy_alter_table", true).expect("set")),
        ("ignore_check_constraints", |c| c.pragma_update(None, "ignore_check_constraints", true).expect("set")),
        ("case_sensitive_like", |c| c.execute_batch("PRAGMA case_sensitive_like = ON").expect("set")),
        ("synchronous off", |c| c.pragma_update(None, "synchronous", "off").expect("set")),
        ("defensive", |c| assert!(c.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).expect("set"))),
        ("no double quotes", |c| {
            for which in [DbConfig::SQLITE_DBCONFIG_DQS_DDL, DbConfig::SQLITE_DBCONFIG_DQS_DML] {
                c.set_db_config(which, false).expect("set");
            }
        }),
        ("views off", |c| assert!(!c.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false).expect("set"))),
        ("no fast truncation", |c| c.pragma_update(None, "secure_delete", true).expect("set")),
    ];
    let sql =
        "REPLACE INTO item VALUES (9, 'b', 'y'); UPDATE item SET note = 'z' WHERE id = 1; DELETE FROM pair WHERE b = 2";
    let expected = ["item: 1,a,x -> 1,a,z", "item: 2,b,x -> -", "item: - -> 9,b,y", "pair: p,2,x -> -"];
    for (name, set) in settings {
        let f = fixture();
        set(&f.application);
        f.sql(sql);
        assert_eq!(f.cut_changes(), expected, "{name}");
        f.check();
    }
    let f = fixture();
    let other = Connection::open_in_memory().expect("another database");
    other.execute("ATTACH ? AS shop", [f.remote.path().to_str()]).expect("attached");
    other.execute_batch(&sql.replace("item", "shop.item").replace("pair", "shop.pair")).expect("written");
    assert_eq!(f.cut_changes(), expected, "attached");
}
