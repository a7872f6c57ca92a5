//! A database that queries are run in: all that their tests need.

use std::sync::Arc;

use headwater_consolidated::mysql::MariaDb;
use headwater_consolidated::results::{Placeholder, QueryBackend};
use headwater_consolidated::{Dialect, QueryConnection};

use super::database::Database;

/// Which database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MariaDb,
}

/// A fresh, empty database.
pub(crate) struct Queried {
    pub(crate) kind: Kind,
    backend: Arc<dyn QueryBackend>,
    /// Runs SQL as an application does.
    run: Box<dyn Fn(&str) + Send + Sync>,
}

impl Queried {
    pub(crate) fn of(database: Database) -> Queried {
        let kind = match database.dialect() {
            Dialect::Sqlite => Kind::Sqlite,
            Dialect::Postgres => Kind::Postgres,
        };
        let backend = Arc::clone(&database.backend) as _;
        Queried { kind, backend, run: Box::new(move |sql| database.application(sql)) }
    }

    pub(crate) fn mariadb() -> Queried {
        let server = headwater_testkit::MariaDb::shared().expect("a server");
        let name = server.create_database().expect("a database");
        let backend = MariaDb::new(&server.url(&name)).expect("an address");
        let words = [("{int}", "BIGINT"), ("{decimal}", "DECIMAL(10,2)"), ("{bytes}", "BLOB"), ("{real}", "DOUBLE")];
        let run = move |sql: &str| {
            let sql = words.iter().fold(sql.to_owned(), |sql, (word, spelled)| sql.replace(word, spelled));
            server.sql(&name, &sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        };
        Queried { kind: Kind::MariaDb, backend: Arc::new(backend), run: Box::new(run) }
    }

    pub(crate) fn connect(&self) -> Box<dyn QueryConnection> {
        self.backend.connect_for_queries().expect("a connection")
    }

    pub(crate) fn placeholder(&self) -> Placeholder {
        self.backend.placeholder()
    }

    /// Runs SQL as the application does, with the database's words for `{int}`, `{decimal}` and others.
    pub(crate) fn application(&self, sql: &str) {
        (self.run)(sql);
    }
}
