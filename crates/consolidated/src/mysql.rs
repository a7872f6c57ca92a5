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
//! Whoever wants TLS says so in the address: `require_ssl=true`, by the authorities that browsers know, or `ssl_ca=FILE`, by those of a PEM file and
//! no others. The name in the certificate is checked with it.
//!
//! *Caveats.* Texts are compared by the collation of their column. MySQL is not MariaDB, and refused. Whoever may write files (the privilege FILE)
//! or call functions that write past transactions is not kept from it by a read-only transaction: give the gateway a user who may `SELECT` alone.

mod error;
mod link;
mod results;
mod sql;
mod values;

use std::path::{Path, PathBuf};
use std::time::Duration;

use headwater_model::sql::Syntax;
use mysql_async::{Opts, OptsBuilder, SslOpts};

pub use results::placeholder;

use crate::Error;
use crate::address::{authorities, percent_decoded};
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
    /// Reads `mariadb://user:password@host:port/database?option=value` or `mysql://...`. TLS is asked for by
    /// `require_ssl=true` or `ssl_ca=FILE`, whose certificates are read here; `verify_ca=false` takes any certificate. Does not connect.
    pub fn new(url: &str) -> Result<MariaDb, Error> {
        // The text may hold a password, so it is not repeated.
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (rest, authority) = take_authority(rest)?;
        let opts = Opts::from_url(&format!("mysql://{rest}")).map_err(|error| unusable(&error.to_string()))?;
        let database = opts.db_name().ok_or_else(|| unusable("it names no database"))?;
        let user = opts.user().ok_or_else(|| unusable("it names no user"))?;
        let address = format!("mariadb://{user}@{}:{}/{database}", opts.ip_or_hostname(), opts.tcp_port());
        let tls = tls(&opts, authority.as_deref())?;
        // The way that the URL names is taken, and no other.
        let by_socket = opts.socket().is_some();
        let opts = OptsBuilder::from_opts(opts)
            .prefer_socket(by_socket)
            .tcp_keepalive(Some(KEEP_ALIVE))
            .stmt_cache_size(STATEMENTS_MAX)
            .ssl_opts(tls)
            .into();
        Ok(MariaDb { opts, address })
    }
}

impl QueryBackend for MariaDb {
    fn connect_for_queries(&self) -> Result<Box<dyn QueryConnection>, Error> {
        let link = Link::connect(&self.opts, &self.address, CONNECT_TIME_OUT)?;
        Ok(Box::new(MariaDbConnection::begin(link, &self.address)?))
    }

    fn connect_for_client_sql(&self, _value_bytes_max: u64) -> Result<Box<dyn QueryConnection>, Error> {
        let link = Link::connect(&self.opts, &self.address, CONNECT_TIME_OUT)?;
        Ok(Box::new(MariaDbConnection::begin(link, &self.address)?))
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn placeholder(&self) -> Placeholder {
        placeholder
    }

    fn syntax(&self) -> Syntax {
        Syntax::MariaDb
    }
}

/// Never shows the password.
impl std::fmt::Debug for MariaDb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MariaDb").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The address without `ssl_ca=FILE`, and the file. Whoever names one wants TLS.
fn take_authority(address: &str) -> Result<(String, Option<PathBuf>), Error> {
    let (base, options) = address.split_once('?').unwrap_or((address, ""));
    let value = options.split('&').find_map(|option| option.strip_prefix("ssl_ca="));
    let Some(value) = value else { return Ok((address.to_owned(), None)) };
    let file = percent_decoded(value).map_err(unusable)?;
    let mut others: Vec<&str> = options.split('&').filter(|option| !option.starts_with("ssl_ca=")).collect();
    if !others.iter().any(|option| option.starts_with("require_ssl=")) {
        others.push("require_ssl=true");
    }
    Ok((format!("{base}?{}", others.join("&")), Some(PathBuf::from(file))))
}

/// TLS as the address asks for it, by the certificates of this file alone where there is one; `None`: no TLS.
fn tls(opts: &Opts, authority: Option<&Path>) -> Result<Option<SslOpts>, Error> {
    let tls = match (opts.ssl_opts(), authority) {
        (Some(tls), _) => tls.clone(),
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(unusable("it has ssl_ca and require_ssl=false, expected one of them")),
    };
    // The driver looks for the name's fault in the text of the error, where it is not any more.
    if tls.skip_domain_validation() && !tls.accept_invalid_certs() {
        return Err(unusable(
            "verify_identity=false can't be had: name the host as its certificate does, or set verify_ca=false",
        ));
    }
    let Some(file) = authority else { return Ok(Some(tls)) };
    let found = authorities(file).map_err(|why| Error::Setup {
        what: format!("TLS to the database can't be set up: ssl_ca {}: {why}", file.display()),
        mend: "set ssl_ca in the database's URL to a PEM file with the authority's certificate".into(),
    })?;
    let roots = found.iter().map(|certificate| certificate.to_vec().into()).collect();
    Ok(Some(tls.with_root_certs(roots).with_disable_built_in_roots(true)))
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
            ("mariadb://me:hunter42@db/shop?ssl_ca=%2", "two hexadecimal digits"),
            ("mariadb://me:hunter42@db/shop?ssl_ca=%2Fnowhere%2Fca.pem", "ssl_ca /nowhere/ca.pem: "),
            ("mariadb://me:hunter42@db/shop?require_ssl=false&ssl_ca=ca.pem", "expected one of them"),
            ("mariadb://me:hunter42@db/shop?require_ssl=true&verify_identity=false", "verify_identity=false can't"),
            ("hunter42", "URL"),
        ] {
            let error = MariaDb::new(url).expect_err(url).to_string();
            assert!(error.contains(why) && !error.contains("hunter42"), "{error}");
        }
    }
}
