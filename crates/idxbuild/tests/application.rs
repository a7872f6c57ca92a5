//! What only the application's own SQLite knows: its collations and functions. The rest is built.

use std::path::PathBuf;

use headwater_idxbuild::{Builder, Built, Error, Fault, Options, build};
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

struct Place(tempfile::TempDir);

impl Place {
    /// A file that the application has made.
    fn new(schema: &str) -> Outcome<Place> {
        let place = Place(tempfile::tempdir()?);
        place.application()?.execute_batch(schema)?;
        Ok(place)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("x.db")
    }

    fn application(&self) -> Outcome<Connection> {
        let connection = Connection::open(self.file())?;
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        connection.create_scalar_function("f", 1, flags, |call| Ok(call.get::<i64>(0)? * 2))?;
        connection.create_collation("DE", |a, b| a.to_lowercase().cmp(&b.to_lowercase()))?;
        Ok(connection)
    }

    fn built(&self, create: &[&str]) -> Result<Vec<Built>, Error> {
        let mut options = Options::default();
        options.create = create.iter().map(|&sql| sql.to_owned()).collect();
        Ok(build(&self.file(), &options)?.indexes)
    }

    /// The application goes on with the file, and finds no fault.
    fn check(&self) -> Outcome {
        let fault: String = self.application()?.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        assert_eq!(fault, "ok");
        Ok(())
    }
}

#[test]
fn what_only_the_application_can_build_stays_as_it_was() -> Outcome {
    let place = Place::new(
        "CREATE TABLE t(a INTEGER, b TEXT); INSERT INTO t VALUES (2, 'b'), (1, 'a');
         CREATE INDEX on_a ON t(a); CREATE INDEX by_f ON t(f(a)); CREATE INDEX where_f ON t(a) WHERE f(a) > 2;
         CREATE INDEX by_de ON t(b COLLATE DE); CREATE INDEX plain ON t(a + 1);",
    )?;
    let built = place.built(&[])?;
    let by = |name: &str| built.iter().find(|built| built.index == name).map(|built| &built.by);
    assert_eq!(by("on_a"), Some(&Builder::Headwater { keys: 2 }));
    assert!(matches!(by("plain"), Some(Builder::Sqlite { .. })), "{built:?}");
    for (name, lacks) in [
        ("by_f", "unknown function: f()"),
        ("where_f", "unknown function: f()"),
        ("by_de", "no such collation sequence: DE"),
    ] {
        let Some(Builder::Nobody { why }) = by(name) else { return Err(format!("{name}: {:?}", by(name)).into()) };
        assert!(why.ends_with(lacks), "{name}: {why}");
    }
    place.check()
}

#[test]
fn an_index_is_created_on_a_table_that_has_what_only_the_application_knows() -> Outcome {
    let place = Place::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, a UNIQUE, b TEXT COLLATE DE UNIQUE, c CHECK (f(c) > 0), g AS (f(a)));
         INSERT INTO t(a, b, c) VALUES (3, 'x', 1), (1, 'y', 2), (2, 'z', 1);
         CREATE INDEX by_f ON t(f(a)); CREATE INDEX by_de ON t(b);
         CREATE TABLE w(k TEXT COLLATE DE PRIMARY KEY, v) WITHOUT ROWID; INSERT INTO w VALUES ('k', 1), ('l', 2);",
    )?;
    let by_sqlite = |why: &str| Builder::Sqlite { why: why.to_owned() };
    for (sql, by) in [
        ("CREATE UNIQUE INDEX new_a ON t(a DESC)", Builder::Headwater { keys: 3 }),
        ("CREATE INDEX new_c ON t(c, a, id)", Builder::Headwater { keys: 3 }),
        ("CREATE INDEX new_b ON t(b COLLATE NOCASE)", Builder::Headwater { keys: 3 }),
        ("CREATE INDEX new_expression ON t(a + 1)", by_sqlite("it is on an expression")),
    ] {
        let built = place.built(&[sql])?;
        assert_eq!((built.len(), &built[0].by), (1, &by), "{sql}");
        place.check()?;
    }
    let least: i64 =
        place.application()?.query_row("SELECT a FROM t INDEXED BY new_c WHERE c = 1", [], |row| row.get(0))?;
    assert_eq!(least, 2, "rows with 1 in c are in the order of a");
    Ok(())
}

#[test]
fn what_an_index_lacks_here_is_named() -> Outcome {
    let place = Place::new(
        "CREATE TABLE t(a, b TEXT COLLATE DE, g AS (f(a))); INSERT INTO t(a, b) VALUES (1, 'x'); CREATE INDEX by_f ON t(f(a));
         CREATE TABLE w(k TEXT COLLATE DE PRIMARY KEY, v) WITHOUT ROWID; INSERT INTO w VALUES ('k', 1), ('l', 2);
         CREATE VIEW seen AS SELECT f(a) AS fa FROM t;",
    )?;
    let before = std::fs::read(place.file())?;
    for (sql, lacks) in [
        ("CREATE INDEX new ON t(b)", "no such collation sequence: DE"),
        ("CREATE INDEX new ON t(a COLLATE FR)", "no such collation sequence: FR"),
        ("CREATE INDEX new ON t(f(a))", "no such function: f"),
        ("CREATE INDEX new ON t(a) WHERE f(a) > 1", "no such function: f"),
        ("CREATE INDEX new ON t(g)", "unknown function: f()"),
        ("CREATE INDEX new ON w(v)", "no such collation sequence: DE"),
    ] {
        let refused = place.built(&[sql]).expect_err("it can't be built here");
        assert!(matches!(refused, Error::OfApplication { .. }), "{sql}: {refused:?}");
        assert!(refused.to_string().contains(lacks) && refused.fault() == Fault::Request, "{sql}: {refused}");
    }
    // One that is there stays: its name is taken, whoever can build it.
    for sql in ["CREATE INDEX by_f ON t(a)", "CREATE INDEX seen ON t(a)", "CREATE INDEX w ON t(a)"] {
        let refused = place.built(&[sql]).expect_err("there is one");
        assert!(matches!(refused, Error::NotAnIndex { source: Some(_), .. }), "{sql}: {refused:?}");
    }
    assert!(before == std::fs::read(place.file())?, "the file has changed");
    Ok(())
}
