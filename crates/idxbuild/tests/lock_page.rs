//! Files beyond a gibibyte: the page that SQLite locks by is never used.

use std::path::Path;

use headwater_idxbuild::{Options, build};
use rusqlite::Connection;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const PAGE: i64 = 4096;
/// The page with byte 0x40000000.
const LOCK_PAGE: i64 = 0x4000_0000 / PAGE + 1;

/// A table, and so many bytes of others that the file ends a few pages before the lock page.
fn make(path: &Path) -> Outcome {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; CREATE TABLE filler(x);
         CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
           INSERT INTO t SELECT i, i * 7919 % 10007, hex(zeroblob(20)) || i FROM n;",
    )?;
    loop {
        let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
        let missing = LOCK_PAGE - 50 - pages;
        if missing <= 0 {
            return Ok(());
        }
        connection.execute("INSERT INTO filler VALUES (zeroblob(?1))", [missing.min(200_000) * (PAGE - 4)])?;
    }
}

#[test]
fn an_index_across_the_lock_page_leaves_it_out() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("large.db");
    make(&path)?;
    let mut options = Options::default();
    options.create.extend(["CREATE INDEX t_a ON t(a, b)", "CREATE INDEX t_b ON t(b)"].map(str::to_owned));
    for turn in 0..2 {
        build(&path, &options)?;
        let connection = Connection::open(&path)?;
        let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        assert_eq!(sound, "ok", "turn {turn}");
        let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
        assert!(pages > LOCK_PAGE + 100, "{pages} pages: the index is on both sides");
        // The second turn rebuilds what lies on both sides.
        options = Options::default();
    }
    Ok(())
}
