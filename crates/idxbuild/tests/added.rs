//! Rows older than a column: they have what SQLite makes of the column's default, which is not what it makes of it in a new row.

use std::collections::BTreeSet;

use headwater_idxbuild::{Builder, Options, build};
use rusqlite::Connection;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const DEFAULTS: [&str; 33] = [
    "1e3",
    "1e15",
    "1e16",
    "1.0e-5",
    "1e400",
    "-1e400",
    "9e999",
    "1e22",
    "1E2",
    "-1e3",
    "1.10",
    ".5",
    "5.",
    "-0.0",
    "9223372036854775808",
    "-9223372036854775808",
    "100000000000000000000",
    "12345678901234567890.5",
    "+7",
    "0x10",
    "-0x10",
    "true",
    "FALSE",
    "word",
    "\"word\"",
    "'1.10'",
    "x'312e30'",
    "NULL",
    "(1.10)",
    "(-(5.0))",
    "(CAST(1.10 AS TEXT))",
    "(1e3 /* ( */)",
    "(1e3 -- (\n)",
];
const TYPES: [&str; 8] = ["", "TEXT", "VARCHAR(9)", "INTEGER", "REAL", "NUMERIC", "BLOB", "\"my text\""];

/// Each default in a column of each type, in each encoding: the index built here says of the old row what the table says.
#[test]
fn an_old_row_has_what_sqlite_makes_of_a_default() -> Outcome {
    for (encoding, strict) in [("UTF-8", false), ("UTF-16le", false), ("UTF-16be", false), ("UTF-8", true)] {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("x.db");
        let connection = Connection::open(&path)?;
        connection.execute_batch(&format!("PRAGMA encoding = '{encoding}'; PRAGMA synchronous = OFF; BEGIN"))?;
        let types: &[&str] = if strict { &["TEXT", "INT", "REAL", "BLOB", "ANY"] } else { &TYPES };
        let mut indexes = BTreeSet::new();
        for default in DEFAULTS {
            for declared in types {
                let number = indexes.len();
                connection.execute_batch(&format!(
                    "CREATE TABLE t{number}(a INT) {}; INSERT INTO t{number} VALUES (1)",
                    if strict { "STRICT" } else { "" }
                ))?;
                let added = format!("ALTER TABLE t{number} ADD COLUMN v {declared} DEFAULT {default}");
                match connection.execute_batch(&added) {
                    Ok(()) => {}
                    // A strict type does not take every default.
                    Err(_) if strict => {
                        connection.execute_batch(&format!("DROP TABLE t{number}"))?;
                        continue;
                    }
                    Err(error) => return Err(format!("{added}: {error}").into()),
                }
                connection.execute_batch(&format!("CREATE INDEX i{number} ON t{number}(v, a)"))?;
                indexes.insert((number, *declared, default));
            }
        }
        connection.execute_batch("COMMIT")?;
        drop(connection);
        let report = build(&path, &Options::default())?;
        let by_sqlite = report.indexes.iter().find(|index| !matches!(index.by, Builder::Headwater { .. }));
        assert!(by_sqlite.is_none(), "{by_sqlite:?}");
        let connection = Connection::open(&path)?;
        let fault: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        assert_eq!(fault, "ok", "{encoding}");
        for (number, declared, default) in indexes {
            let read = |how: &str| -> rusqlite::Result<(String, String)> {
                let sql = format!("SELECT typeof(v), quote(v) FROM t{number} {how} WHERE v IS v ORDER BY v");
                connection.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
            };
            let (by_index, by_table) = (read(&format!("INDEXED BY i{number}"))?, read("NOT INDEXED")?);
            assert_eq!(by_index, by_table, "{declared} DEFAULT {default} in {encoding}");
        }
    }
    Ok(())
}
