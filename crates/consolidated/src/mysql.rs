//! MariaDB, whose rows the gateway serves. It can't be synced yet.
//!
//! ```text
//! results   queries, their columns and rows       link    the driver, blocking
//!   values  what the types become                 error   what the server's codes mean
//!   sql     parameters by their places
//! ```
//!
//! Sessions speak SQL as the other databases do: `"` quotes names, a backslash is a backslash, `||` joins texts. Their time zone is UTC, so a
//! `TIMESTAMP` is the instant that it is. Statements are prepared, and values travel in binary.
//!
//! | MariaDB | becomes |
//! |---|---|
//! | `TINYINT(1)`, which `BOOLEAN` is | bool; a number other than 0 and 1 stays one |
//! | other whole numbers, `YEAR`, `BIT` | int; above 2^63 - 1 a value is a decimal |
//! | `FLOAT`, `DOUBLE` | real; a `FLOAT` is the number that its shortest text means |
//! | `DECIMAL` | decimal, to its last digit |
//! | `CHAR`, `VARCHAR`, `TEXT`, `ENUM`, `SET`, `JSON`, `UUID`, `INET6` | text |
//! | `BINARY`, `VARBINARY`, `BLOB`, geometries | bytes |
//! | `DATE`, `DATETIME`, `TIMESTAMP` | date, timestamp, timestamptz; a date that there is not (`0000-00-00`) is a text |
//! | `TIME` | time; what is no time of day (negative, 24 hours and more) is a text |
//!
//! *Caveats.* Texts are compared by the collation of their column. MySQL is not MariaDB, and refused. Whoever may write files (the privilege FILE)
//! or call functions that write past transactions is not kept from it by a read-only transaction: give the gateway a user who may `SELECT` alone.

mod error;
mod link;
mod results;
mod sql;
mod values;

use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};

pub use results::placeholder;

use crate::Error;
use crate::results::{Placeholder, QueryBackend, QueryConnection};
use link::Link;
use results::MariaDbConnection;

/// From the look-up of its name to the end of authentication.
const CONNECT_TIME_OUT: Duration = Duration::from_secs(10);
/// After which silence a peer is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Statements that a connection keeps prepared.
const STATEMENTS_MAX: usize = 100;

/// A MariaDB database.
///
/// ```no_run
/// # fn main() -> Result<(), headwater_consolidated::Error> {
/// use headwater_consolidated::mysql::MariaDb;
/// use headwater_consolidated::results::{QueryBackend, ReadOptions};
///
/// let database = MariaDb::new("mariadb://reader:secret@localhost/shop")?;
/// let mut connection = database.connect_for_queries()?;
/// let columns = connection.columns("SELECT version()", &ReadOptions::default())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MariaDb {
    opts: Opts,
    address: String,
}

impl MariaDb {
    /// Reads `mariadb://user:password@host:port/database?option=value` or `mysql://...`. TLS is asked for by the driver's options:
    /// `require_ssl=true`, and `verify_ca=false`, `verify_identity=false` where less is to be checked. Does not connect.
    pub fn new(url: &str) -> Result<MariaDb, Error> {
        // The text may hold a password, so it is not repeated.
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let opts = Opts::from_url(&format!("mysql://{rest}")).map_err(|error| unusable(&error.to_string()))?;
        let database = opts.db_name().ok_or_else(|| unusable("it names no database"))?;
        let user = opts.user().ok_or_else(|| unusable("it names no user"))?;
        let address = format!("mariadb://{user}@{}:{}/{database}", opts.ip_or_hostname(), opts.tcp_port());
        // The way that the URL names is taken, and no other.
        let by_socket = opts.socket().is_some();
        let opts = OptsBuilder::from_opts(opts)
            .prefer_socket(by_socket)
            .tcp_keepalive(Some(KEEP_ALIVE))
            .stmt_cache_size(STATEMENTS_MAX)
            .into();
        Ok(MariaDb { opts, address })
    }
}

impl QueryBackend for MariaDb {
    fn connect_for_queries(&self) -> Result<Box<dyn QueryConnection>, Error> {
        let link = Link::connect(&self.opts, &self.address, CONNECT_TIME_OUT)?;
        Ok(Box::new(MariaDbConnection::begin(link, &self.address)?))
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn placeholder(&self) -> Placeholder {
        placeholder
    }
}

/// Never shows the password.
impl std::fmt::Debug for MariaDb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MariaDb").field("address", &self.address).finish_non_exhaustive()
    }
}

fn unusable(why: &str) -> Error {
    Error::Setup {
        what: format!("the database's address can't be used: {why}"),
        mend: "expected mariadb://user:password@host:port/database".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        let database = MariaDb::new("mysql://me:hunter42@db:3307/shop?require_ssl=true").expect("an address");
        assert_eq!(database.address(), "mariadb://me@db:3307/shop");
        assert!(!format!("{database:?}").contains("hunter42"));
        for (url, why) in [
            ("mariadb://me:hunter42@db", "it names no database"),
            ("mariadb://db/shop", "it names no user"),
            ("mariadb://me:hunter42@db/shop?speed=9", "speed"),
            ("hunter42", "URL"),
        ] {
            let error = MariaDb::new(url).expect_err(url).to_string();
            assert!(error.contains(why) && !error.contains("hunter42"), "{error}");
        }
    }
}
