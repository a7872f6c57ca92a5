//! A database to test with, and the tables that most tests use.

use std::any::Any;
use std::sync::Arc;

use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, Connection, Dialect, Plan, track};
use headwater_protocol::{Row, Value};

/// A fresh, empty database.
pub(crate) struct Database {
    pub(crate) backend: Arc<dyn Backend>,
    /// What keeps it there.
    _keep: Box<dyn Any + Send + Sync>,
}

impl Database {
    pub(crate) fn sqlite() -> Database {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("central.db");
        std::fs::write(&path, "").expect("an empty file");
        Database { backend: Arc::new(Sqlite::new(path).durable(false)), _keep: Box::new(folder) }
    }

    pub(crate) fn postgres() -> Database {
        let cluster = headwater_testkit::Postgres::shared().expect("a cluster");
        let url = cluster.create_database().expect("a database");
        let backend = Postgres::new(&url, Settings::default()).expect("an address");
        Database { backend: Arc::new(backend), _keep: Box::new(()) }
    }

    /// Of an encoding.
    pub(crate) fn postgres_in(encoding: &str) -> Database {
        let cluster = headwater_testkit::Postgres::shared().expect("a cluster");
        let options = format!("ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'");
        let url = cluster.create_database_with(&options).expect("a database");
        let backend = Postgres::new(&url, Settings::default()).expect("an address");
        Database { backend: Arc::new(backend), _keep: Box::new(()) }
    }

    pub(crate) fn postgres_without_encoding() -> Database {
        Database::postgres_in("SQL_ASCII")
    }

    pub(crate) fn postgres_in_latin() -> Database {
        Database::postgres_in("LATIN1")
    }

    /// In a cluster of its own, where nothing else is going on: transactions of other databases count as open ones too.
    pub(crate) fn postgres_alone() -> Database {
        let cluster = headwater_testkit::Postgres::builder().set("autovacuum", "off").start().expect("a cluster");
        let url = cluster.create_database().expect("a database");
        let backend = Postgres::new(&url, Settings::default()).expect("an address");
        Database { backend: Arc::new(backend), _keep: Box::new(cluster) }
    }

    pub(crate) fn connect(&self) -> Box<dyn Connection> {
        self.backend.connect().expect("a connection")
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.backend.dialect()
    }

    /// `text` with the dialect's words for `{int}`, `{decimal}` and others.
    pub(crate) fn sql(&self, text: &str) -> String {
        let words = match self.dialect() {
            Dialect::Sqlite => {
                [("{int}", "INTEGER"), ("{decimal}", "DECIMAL_TEXT"), ("{bytes}", "BLOB"), ("{real}", "REAL")]
            }
            Dialect::Postgres => {
                [("{int}", "bigint"), ("{decimal}", "numeric"), ("{bytes}", "bytea"), ("{real}", "double precision")]
            }
        };
        words.iter().fold(text.to_owned(), |text, (word, spelled)| text.replace(word, spelled))
    }

    /// Runs SQL as the application does: over a connection of its own, which knows nothing of Headwater.
    pub(crate) fn application(&self, sql: &str) {
        let mut connection = self.connect();
        connection.batch(&self.sql(sql)).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// What a query gives.
    pub(crate) fn rows(&self, sql: &str) -> Vec<Row> {
        self.connect().query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The one number that a query gives.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        match self.rows(sql).first().and_then(|row| row.first()) {
            Some(Value::Int(number)) => *number,
            other => panic!("{sql} gives {other:?}"),
        }
    }

    /// The standard tables, tracked, with members: anna of north and south, ben of north.
    pub(crate) fn standard(&self) -> Plan {
        self.standard_with(str::to_owned)
    }

    /// The standard tables with another model, made from the standard one.
    pub(crate) fn standard_with(&self, model: impl FnOnce(&str) -> String) -> Plan {
        self.application(TABLES);
        let plan = plan(&model(MODEL));
        track::track(&mut *self.connect(), &plan).expect("tracked");
        plan
    }
}

/// Reads a model.
pub(crate) fn plan(model: &str) -> Plan {
    match headwater_model::parse::parse("contract.toml", model) {
        Ok(model) => Plan::new(model),
        Err(errors) => panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}

pub(crate) const TABLES: &str = "
    CREATE TABLE member (user_name text NOT NULL, region text NOT NULL, PRIMARY KEY (user_name, region));
    INSERT INTO member VALUES ('anna', 'north'), ('anna', 'south'), ('ben', 'north');
    CREATE TABLE customer (
        id {int} NOT NULL PRIMARY KEY, code text NOT NULL UNIQUE, name text, changed {int}
    );
    CREATE TABLE orders (id {int} NOT NULL PRIMARY KEY, region text, note text);
    CREATE TABLE line (
        order_id {int} NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
        no {int} NOT NULL, region text, amount {decimal} CHECK (CAST(amount AS {real}) >= 0),
        PRIMARY KEY (order_id, no)
    );
    CREATE TABLE node (
        id {int} NOT NULL PRIMARY KEY, parent {int} REFERENCES node (id)
    );
    CREATE TABLE price (id {int} NOT NULL PRIMARY KEY, amount {decimal});
    CREATE TABLE measure (id {int} NOT NULL PRIMARY KEY, reading {real} NOT NULL);
";

pub(crate) const MODEL: &str = r#"
    name = "contract"
    version = 1

    [partitions.region]
    columns = { region = "text" }
    members = "SELECT region FROM member WHERE user_name = :s.user"

    [tables.customer]
    key = ["id"]
    unique = [["code"]]
    conflict = "consolidated_wins"
    columns = { id = "int not null", code = "text not null", name = "text", changed = "int" }

    [tables.orders]
    key = ["id"]
    partition = "region"
    conflict = "consolidated_wins"
    columns = { id = "int not null", region = "text", note = "text" }

    [tables.line]
    key = ["order_id", "no"]
    partition = "region"
    conflict = "merge(remote)"
    references = [{ columns = ["order_id"], table = "orders", on_delete = "cascade" }]
    columns = { order_id = "int not null", no = "int not null", region = "text", amount = "decimal" }

    [tables.node]
    key = ["id"]
    references = [{ columns = ["parent"], table = "node" }]
    columns = { id = "int not null", parent = "int" }

    [tables.price]
    key = ["id"]
    direction = "download"
    columns = { id = "int not null", amount = "decimal" }

    [tables.measure]
    key = ["id"]
    direction = "upload"
    columns = { id = "int not null", reading = "real not null" }
"#;
