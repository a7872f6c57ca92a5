//! Results of queries of the application's own, row by row: what the gateway serves.
//!
//! [`QueryConnection::read`] runs one statement in a read-only transaction of its own and hands on what comes of it. Values are borrowed
//! from the driver's buffers, and no more rows are in memory than it has read.
//!
//! These traits are all that queries need of a database: one that can't be synced can have its rows served.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_model::sql::Syntax;
use headwater_protocol::{Type, Value, ValueRef};

use crate::Error;
use crate::watch::{Marked, Outlook, Watched};

/// A database in which queries are run.
pub trait QueryBackend: Send + Sync + 'static {
    /// Opens a connection to run queries with.
    fn connect_for_queries(&self) -> Result<Box<dyn QueryConnection>, Error>;

    /// Opens a connection for SQL that clients send. Where the database knows no roles it reads the application's tables and nothing else;
    /// elsewhere the role decides ([`QueryConnection::readable_secrets`]). `value_bytes_max`: no value has more, where that can be said.
    fn connect_for_client_sql(&self, _value_bytes_max: u64) -> Result<Box<dyn QueryConnection>, Error> {
        self.connect_for_queries()
    }

    /// The database's address without its password, for people.
    fn address(&self) -> String;

    /// How its SQL spells a parameter.
    fn placeholder(&self) -> Placeholder;

    /// Whose SQL it takes: what is a comment or a text in it.
    fn syntax(&self) -> Syntax {
        Syntax::Any
    }
}

/// A parameter of a query in SQL, by its number from 1 and the type of its values: `?1`, or a cast of it where the database can't tell types.
pub type Placeholder = fn(usize, Type) -> String;

/// A connection that runs queries. All calls block.
pub trait QueryConnection: Send {
    /// What columns a query of the application's own gives, without running it.
    fn columns(&mut self, sql: &str, options: &ReadOptions) -> Result<Vec<ResultColumn>, Error>;

    /// Runs a query of the application's own, with parameters `?1`, `?2`, ..., in a read-only transaction of its own, and hands its rows on as
    /// they come. After it, whatever it gave, [`QueryConnection::rollback`].
    fn read(
        &mut self,
        sql: &str,
        parameters: &[Value],
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Error>;

    /// Rolls back; harmless where no transaction is open.
    fn rollback(&mut self) -> Result<(), Error>;

    /// What is to be known of a query to tell whether its result may have changed ([`crate::watch`]); `None`: that can't be told. Not inside
    /// a transaction.
    fn watch(&mut self, _sql: &str) -> Result<Option<Watched>, Error> {
        Ok(None)
    }

    /// What is known of a watched query's tables now, and whether they have changed `since` an earlier mark. Not inside a transaction.
    fn marked(&mut self, _watched: &Watched, _since: Option<&str>) -> Result<Marked, Error> {
        Ok(Marked::Altered)
    }

    /// Those of Headwater's own tables which hold secrets (accounts, the key of tokens, what remotes prove themselves by) that SQL of this
    /// connection's can read, whatever role it takes on. Not inside a transaction.
    fn readable_secrets(&mut self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// How this connection finds what a watched query reads, and what it may read of it; `None`: that can't be told. Not inside a transaction.
    fn outlook(&mut self, _watched: &Watched) -> Result<Option<Outlook>, Error> {
        Ok(None)
    }

    /// Whether the database has closed it while it was not used. It costs a round trip on MariaDB, and none elsewhere.
    fn is_gone(&mut self) -> bool {
        false
    }

    /// Whether it holds so much memory that it is better closed than kept.
    fn is_worn(&self) -> bool {
        false
    }

    /// What the connection's role lacks, as SQL that gives it, before queries of tracked tables can be watched; empty where nothing is tracked.
    fn lacks_for_watching(&mut self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// What ends a statement that this connection runs, from another thread; `None` where nothing does.
    fn canceller(&self) -> Option<Canceller>;
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultColumn {
    /// Its name.
    pub name: String,
    /// The type of its values; `None`: the database can't tell (an expression in SQLite). In SQLite a value may be of another all the same.
    pub kind: Option<Type>,
    /// The database's name for its type, `numeric(10,2)` where a decimal has a bound of its digits; empty where it has none (an expression in
    /// SQLite).
    pub declared: String,
}

/// Takes a result.
pub trait ResultSink {
    /// The columns, before any row.
    fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), Error>;

    /// A row: a value for each column. An error ends the reading, which gives it.
    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error>;
}

/// How to read.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// How long the statement may take, the sink's time included; zero: for ever.
    pub time_out: Duration,
    /// Columns whose type is known better than the database says.
    pub types: BTreeMap<String, Type>,
}

/// Ends what a connection is running now, from another thread; harmless where it runs nothing.
pub type Canceller = Box<dyn Fn() + Send + Sync>;
