//! The consolidated database by its address.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use headwater_consolidated::mysql::MariaDb;
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::results::Placeholder;
use headwater_consolidated::sqlite::Sqlite;
use headwater_consolidated::{Backend, Connection, QueryBackend, QueryConnection};
use headwater_model::sql::Syntax;

use crate::exit::usage;

/// Where the consolidated database is.
#[derive(Clone)]
pub enum Address {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// What libpq takes; may have a password in it.
    Postgres(String),
    /// What the driver takes; may have a password in it. Queries are run there, and nothing is synced.
    MariaDb(String),
}

impl Address {
    /// Reads `sqlite:FILE` (relative to `folder`), `postgres://...`, `host=... dbname=...`, `mariadb://...` or `mysql://...`.
    pub fn parse(text: &str, folder: &Path) -> Result<Address> {
        if let Some(file) = text.strip_prefix("sqlite:") {
            let file = file.strip_prefix("//").unwrap_or(file);
            if file.is_empty() {
                return Err(usage("the database's address names no file, expected sqlite:FILE"));
            }
            return Ok(Address::Sqlite(folder.join(file)));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") || text.contains("host=") {
            return Ok(Address::Postgres(text.to_owned()));
        }
        if text.starts_with("mariadb://") || text.starts_with("mysql://") {
            return Ok(Address::MariaDb(text.to_owned()));
        }
        // Perhaps it has a password in it: only the scheme is shown.
        let scheme = text.split_once(':').map_or("no scheme", |(scheme, _)| scheme);
        Err(usage(format!(
            "the database's address has {scheme:?}, expected sqlite:FILE, postgres://user@host/database or mariadb://user@host/database; set url under [database] or --database"
        )))
    }

    /// What syncs; nothing is connected yet. An error where the database can't be synced.
    pub fn backend(&self) -> Result<Arc<dyn Backend>> {
        Ok(match self {
            Address::Sqlite(path) => Arc::new(Sqlite::new(path)),
            Address::Postgres(text) => Arc::new(postgres(text)?),
            Address::MariaDb(_) => return Err(never_synced()),
        })
    }

    /// A connection.
    pub fn connect(&self) -> Result<Box<dyn Connection>> {
        let backend = self.backend()?;
        backend
            .connect()
            .with_context(|| format!("the consolidated database {} could not be opened", backend.address()))
    }

    /// What named queries are run by; nothing is connected yet.
    pub fn query_backend(&self) -> Result<Arc<dyn QueryBackend>> {
        Ok(match self {
            Address::MariaDb(text) => Arc::new(MariaDb::new(text)?),
            _ => self.backend()?,
        })
    }

    /// Whose SQL it speaks.
    pub fn syntax(&self) -> Syntax {
        match self {
            Address::Sqlite(_) => Syntax::Sqlite,
            Address::Postgres(_) => Syntax::Postgres,
            Address::MariaDb(_) => Syntax::MariaDb,
        }
    }

    /// Whether it can be synced.
    pub fn can_sync(&self) -> bool {
        !matches!(self, Address::MariaDb(_))
    }

    /// A connection for named queries, and how their parameters are spelled.
    pub fn connect_for_queries(&self) -> Result<(Box<dyn QueryConnection>, Placeholder)> {
        let backend = self.query_backend()?;
        let connection = backend
            .connect_for_queries()
            .with_context(|| format!("the database {} could not be opened", backend.address()))?;
        Ok((connection, backend.placeholder()))
    }

    /// The name by which people know the database: the file's or the database's.
    pub fn name(&self) -> String {
        match self {
            Address::Sqlite(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Address::Postgres(text) => postgres(text)
                .ok()
                .and_then(|postgres| postgres.address().rsplit_once('/').map(|(_, name)| name.to_owned()))
                .unwrap_or_default(),
            Address::MariaDb(text) => MariaDb::new(text)
                .ok()
                .and_then(|mariadb| mariadb.address().rsplit_once('/').map(|(_, name)| name.to_owned()))
                .unwrap_or_default(),
        }
    }
}

/// What is said where MariaDB is to be synced.
pub(crate) fn never_synced() -> anyhow::Error {
    usage(
        "MariaDB can't be synced yet, and has no tables of Headwater's: named queries alone are served from it ([gateway], without models)",
    )
}

/// PostgreSQL with the usual time-outs.
pub(crate) fn postgres(text: &str) -> Result<Postgres> {
    Ok(Postgres::new(text, Settings::default())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart_and_passwords_not_shown() {
        let parse = |text: &str| Address::parse(text, Path::new("/shop"));
        let file = |text: &str| match parse(text) {
            Ok(Address::Sqlite(path)) => path.display().to_string(),
            _ => "no file".to_owned(),
        };
        assert_eq!(file("sqlite:central.db"), "/shop/central.db");
        assert_eq!(file("sqlite:/else/central.db"), "/else/central.db");
        assert_eq!(file("sqlite:///else/central.db"), "/else/central.db");
        assert!(matches!(parse("postgresql://a@b/c"), Ok(Address::Postgres(_))));
        assert!(matches!(parse("host=b dbname=c"), Ok(Address::Postgres(_))));
        let mariadb = parse("mysql://me:hunter42@b/c").expect("an address");
        let error = mariadb.backend().err().expect("it can't be synced").to_string();
        assert!(error.contains("named queries alone") && !error.contains("hunter42"), "{error}");
        assert!(mariadb.query_backend().is_ok() && mariadb.name() == "c");
        for text in ["sqlite:", "central.db", "mysq://me:hunter42@b/c", "hunter42"] {
            let error = parse(text).err().map(|error| error.to_string()).expect("refused");
            assert!(!error.contains("hunter42"), "{error}");
        }
        assert_eq!(parse("sqlite:central.db").expect("valid").name(), "central");
        assert_eq!(parse("postgres://me@localhost/shop?sslmode=disable").expect("valid").name(), "shop");
    }
}
