//! Keys that are not unique: each is named once, with its rows, in the same words whoever builds the index.

use headwater_idxbuild::{Builder, Error, Options, build};
use rusqlite::Connection;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

struct Place(tempfile::TempDir);

impl Place {
    /// A table of 2,000 rows with different keys, and what these statements make of it.
    fn new(sql: &str) -> Outcome<Place> {
        let place = Place(tempfile::tempdir()?);
        let connection = Connection::open(place.file())?;
        connection.execute_batch(
            "CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
               INSERT INTO t SELECT i, i, 'text ' || i FROM n;",
        )?;
        connection.execute_batch(sql)?;
        Ok(place)
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("x.db")
    }

    /// What is said of an index that can't be; the file is as before.
    fn refused(&self, options: &Options) -> Outcome<(u64, Vec<String>, String)> {
        let before = std::fs::read(self.file())?;
        let refused = build(&self.file(), options).expect_err("several rows have one key");
        assert!(before == std::fs::read(self.file())?, "the file has changed");
        let said = refused.to_string();
        let Error::NotUnique { count, keys, .. } = refused else { return Err(refused.into()) };
        Ok((count, keys, said))
    }
}

fn create(sql: &str) -> Options {
    let mut options = Options::default();
    options.create.push(sql.to_owned());
    options
}

#[test]
fn a_key_is_named_once_with_how_many_rows_have_it() -> Outcome {
    let place = Place::new(
        "UPDATE t SET b = 'it''s' WHERE id IN (7, 1500); UPDATE t SET b = 'Many' WHERE id BETWEEN 100 AND 1299;
         UPDATE t SET b = 'maNY' WHERE id = 300; UPDATE t SET b = NULL WHERE id < 5;",
    )?;
    let (count, keys, said) = place.refused(&create("CREATE UNIQUE INDEX t_u ON t(b COLLATE NOCASE)"))?;
    assert_eq!(keys, ["('it''s') in 2 rows (rowids 7, 1500)", "('Many') in 1200 rows (rowids 100, ..., 1299)"]);
    assert_eq!(count, 2);
    assert!(said.contains("index \"t_u\" is UNIQUE, but 2 keys stand in several rows: ('it''s') in 2 rows"), "{said}");
    // The last key of all, of two columns.
    let (count, keys, said) = place.refused(&create("CREATE UNIQUE INDEX t_u ON t(id / id, lower('X'))"))?;
    assert_eq!((count, keys), (1, vec!["(1, 'x') in 2000 rows (rowids 1, ..., 2000)".to_owned()]));
    assert!(said.contains("but a key stands in several rows: (1, 'x')"), "{said}");
    Ok(())
}

/// Here, by the same index with a condition that all rows meet, and by REINDEX of one that is there already.
#[test]
fn the_same_is_said_whoever_builds_the_index() -> Outcome {
    let place = Place::new(
        "UPDATE t SET a = id / 3, b = 'B' || (id / 3) WHERE id < 600; UPDATE t SET b = 'b' || (id / 3) WHERE id < 600 AND id % 2;
         UPDATE t SET a = NULL WHERE id BETWEEN 30 AND 50;
         UPDATE t SET b = 'a long text, of which a message has room for the beginning alone' || (id / 3) WHERE id > 1995;",
    )?;
    for columns in ["a", "a DESC", "b COLLATE NOCASE", "b COLLATE NOCASE DESC, a", "a, b COLLATE NOCASE"] {
        let here = place.refused(&create(&format!("CREATE UNIQUE INDEX u ON t({columns})")))?;
        let sqlite = create(&format!("CREATE UNIQUE INDEX u ON t({columns}) /* it's all ( */ WHERE id > 0"));
        assert_eq!(place.refused(&sqlite)?, here, "{columns}");
        assert!(here.0 > 10 && here.1.len() == 10 && here.2.contains("the first 10 of them: "), "{columns}: {here:?}");
        // Unique by a stroke of the pen, as no index is that SQLite has made.
        for (part, expected) in [("", &here), ("WHERE id > 0", &here)] {
            let connection = Connection::open(place.file())?;
            connection.execute_batch(&format!(
                "DROP INDEX IF EXISTS u; CREATE INDEX u ON t({columns}) {part}; PRAGMA writable_schema = ON;
                 UPDATE sqlite_schema SET sql = replace(sql, 'CREATE INDEX', 'CREATE UNIQUE INDEX') WHERE name = 'u';"
            ))?;
            drop(connection);
            assert_eq!(&place.refused(&Options::default())?, expected, "{columns} {part}");
        }
        Connection::open(place.file())?.execute_batch("DROP INDEX u")?;
    }
    Ok(())
}

/// As a program that writes behind SQLite's back would leave it: a row is in the table alone.
#[test]
fn an_index_that_lacks_rows_is_not_asked_for_them() -> Outcome {
    let place = Place::new(
        "CREATE UNIQUE INDEX u ON t(a) WHERE id > 0;
         CREATE TABLE plain(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);
         INSERT INTO plain SELECT * FROM t; INSERT INTO plain VALUES (3000, 7, '');
         PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'plain') WHERE name = 't';
         DELETE FROM sqlite_schema WHERE name = 'plain';",
    )?;
    assert_eq!(place.refused(&Options::default())?.1, ["(7) in 2 rows (rowids 7, 3000)"]);
    Ok(())
}

#[test]
fn rows_have_names_where_the_table_has_any() -> Outcome {
    let place = Place::new(
        "CREATE TABLE w(k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID;
         INSERT INTO w VALUES ('a', 'x'), ('b', 'x'), ('c', 'x'), ('d', NULL), ('e', NULL);
         CREATE TABLE r(rowid TEXT, v TEXT); INSERT INTO r VALUES ('a', 'x'), ('b', 'X');
         CREATE TABLE all_taken(rowid TEXT, oid TEXT, _rowid_ TEXT); INSERT INTO all_taken VALUES ('a', 'x', 1), ('b', 'x', 2);",
    )?;
    for (sql, key) in [
        ("CREATE UNIQUE INDEX u ON w(v)", "('x') in 3 rows"),
        ("CREATE UNIQUE INDEX u ON r(lower(v) DESC)", "('x') in 2 rows (rowids 1, 2)"),
        ("CREATE UNIQUE INDEX u ON all_taken(oid) WHERE _rowid_ > 0", "('x') in 2 rows"),
        ("CREATE UNIQUE INDEX u ON all_taken(oid)", "('x') in 2 rows (rowids 1, 2)"),
    ] {
        assert_eq!(place.refused(&create(sql))?.1, [key], "{sql}");
    }
    Ok(())
}

#[test]
fn what_is_unique_is_built() -> Outcome {
    let place = Place::new("UPDATE t SET b = NULL WHERE id < 50")?;
    let report = build(&place.file(), &create("CREATE UNIQUE INDEX u ON t(b)"))?;
    assert_eq!(report.indexes[0].by, Builder::Headwater { keys: 2000 });
    Ok(())
}
