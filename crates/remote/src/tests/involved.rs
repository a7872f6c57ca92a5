//! A large download into a table of which a few rows have changes: those are looked at, and the others simply stored.

use headwater_protocol::Row;
use headwater_protocol::Type;
use headwater_protocol::message::{ConflictEnd, Outcome};
use rusqlite::StatementStatus;

use super::support::{Fixture, model, row, table};

const ROWS: i64 = 500;

fn docs() -> Fixture {
    let f = Fixture::new(&model(vec![table("doc", &[("id", Type::Int), ("title", Type::Text), ("body", Type::Text)])]));
    f.download(f.down().whole("doc", &[]).rows("doc", &all("old")));
    f
}

fn all(title: &str) -> Vec<Row> {
    (1..=ROWS).map(|id| row(&format!("{id},{title},b"))).collect()
}

/// How often a pending change was looked for.
fn looked_up(f: &Fixture) -> i32 {
    let sql = &f.remote.plan.table(0).expect("a table").sql.pending;
    let statement = f.remote.database.connection.prepare_cached(sql).expect("a statement");
    statement.reset_status(StatementStatus::Run)
}

#[test]
fn few_changes_keep_a_large_download_no_longer() {
    let f = docs();
    // One conflict that is open, one change that is set aside by nobody, one deletion.
    f.sql("UPDATE doc SET title = 'lost' WHERE id = 3");
    f.cut();
    f.receipt(vec![(0, Outcome::Conflict(ConflictEnd::Consolidated))]);
    f.sql("UPDATE doc SET title = 'ours' WHERE id = 7; DELETE FROM doc WHERE id = 9; INSERT INTO doc VALUES (1000, 'n', 'n')");
    looked_up(&f);
    f.download(f.down().rows("doc", &all("new")));
    let looked_up = looked_up(&f);
    assert!((2..20).contains(&looked_up), "{looked_up} of {ROWS} rows were looked up");
    assert_eq!(f.held(), 2);
    assert_eq!(f.rows("SELECT is_open, result_text FROM hw_conflict"), [r#"0|{"id":3,"title":"new","body":"b"}"#]);
    assert_eq!(f.rows("SELECT id, title FROM doc WHERE title <> 'new'"), ["7|ours", "1000|n"]);
    assert_eq!(f.rows("SELECT count(*) FROM doc WHERE title = 'new'"), [(ROWS - 2).to_string()]);
    assert_eq!(f.cut_changes(), ["doc: 7,old,b -> 7,ours,b", "doc: 9,old,b -> -", "doc: - -> 1000,n,n"]);
    f.receipt((0..2).map(|change| (change, Outcome::Conflict(ConflictEnd::Consolidated))).collect());
    f.download(f.down());
    assert_eq!(f.rows("SELECT count(*) FROM doc WHERE title = 'new'"), [ROWS.to_string()]);
    f.check();
}

/// What the table does not take is held; when it comes again in the same download, that is what counts.
#[test]
fn a_row_that_was_held_a_moment_ago() {
    let f = docs();
    f.sql("ALTER TABLE doc ADD COLUMN own INTEGER CHECK (title <> 'bad')");
    let applied = f.download(f.down().rows("doc", &[row("5,bad,b"), row("6,new,b"), row("5,good,b")]));
    assert_eq!(applied.not_stored, 1);
    assert_eq!(f.held(), 0);
    assert_eq!(f.rows("SELECT id, title FROM doc WHERE title <> 'old'"), ["5|good", "6|new"]);
    f.download(f.down());
    assert_eq!(f.rows("SELECT id, title FROM doc WHERE title <> 'old'"), ["5|good", "6|new"]);
    f.check();
}
