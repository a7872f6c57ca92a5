//! What only the application's own SQLite knows: its collations and functions. The rest is built.

use std::path::PathBuf;

use headwater_idxbuild::{Builder, Built, Error, Options, build};
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
