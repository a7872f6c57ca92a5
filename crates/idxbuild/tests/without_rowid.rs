//! Tables WITHOUT ROWID: their primary key is an index as well, the table itself. SQLite rebuilds it.

use std::path::{Path, PathBuf};

use headwater_idxbuild::{Builder, Error, Options, build};
use rusqlite::Connection;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A table whose key another collation has ordered.
fn disordered(folder: &Path, keys: &str) -> Outcome<PathBuf> {
    let path = folder.join("x.db");
    let connection = Connection::open(&path)?;
    connection.execute_batch(&format!(
        "CREATE TABLE t(k TEXT COLLATE BINARY PRIMARY KEY, v) WITHOUT ROWID; INSERT INTO t(k) VALUES {keys};
         CREATE TABLE other(k PRIMARY KEY, v) WITHOUT ROWID; CREATE INDEX t_v ON t(v);
         PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, 'BINARY', 'NOCASE') WHERE name = 't';"
    ))?;
    Ok(path)
}

fn integrity(path: &Path) -> Outcome<String> {
    Ok(Connection::open(path)?.query_row("PRAGMA integrity_check", [], |row| row.get(0))?)
}

#[test]
fn the_key_of_a_table_is_rebuilt_and_told() -> Outcome {
    const KEY: &str = "sqlite_autoindex_t_1";
    for options in [&[][..], &[KEY]] {
        let folder = tempfile::tempdir()?;
        let path = disordered(folder.path(), "('a'), ('B'), ('c')")?;
        assert_ne!(integrity(&path)?, "ok");
        let mut only = Options::default();
        only.indexes.push("t_v".to_owned());
        build(&path, &only)?;
        assert_ne!(integrity(&path)?, "ok", "what was not named is not rebuilt");
        only.indexes = options.iter().map(|&name| name.to_owned()).collect();
        let report = build(&path, &only)?;
        assert_eq!(integrity(&path)?, "ok");
        let names: Vec<&str> = report.indexes.iter().map(|built| built.index.as_str()).collect();
        let all = [KEY, "sqlite_autoindex_other_1", "t_v"];
        assert!(names.contains(&KEY) && names.len() == if options.is_empty() { all.len() } else { 1 }, "{names:?}");
        let why = "it is its table itself, which is WITHOUT ROWID".to_owned();
        assert!(
            report.indexes.iter().any(|built| built.table == "t" && built.by == Builder::Sqlite { why: why.clone() })
        );
    }
    Ok(())
}

#[test]
fn keys_that_another_collation_holds_for_the_same_are_named() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = disordered(folder.path(), "('A'), ('B'), ('a')")?;
    let before = std::fs::read(&path)?;
    let refused = build(&path, &Options::default()).expect_err("two keys are the same");
    assert!(matches!(refused, Error::NotUnique { .. }), "{refused:?}");
    assert!(refused.to_string().contains("in 2 rows"), "{refused}");
    assert!(before == std::fs::read(&path)?, "the file has changed");
    Ok(())
}
