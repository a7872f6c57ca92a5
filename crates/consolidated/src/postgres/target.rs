//! Where the database is and how the way to it is secured: libpq's connection strings, URL or `key=value`.
//!
//! The driver reads them, except for what it doesn't know: `sslmode=verify-ca` and `verify-full`, and `sslrootcert`. These are taken
//! out first.
//!
//! | sslmode | TLS | the server's certificate |
//! |---|---|---|
//! | `disable` | no | |
//! | `prefer` (default) | if the server has it | not checked |
//! | `require` | yes | not checked, unless `sslrootcert` is given: then as `verify-ca` |
//! | `verify-ca` | yes | signed by a root of `sslrootcert`, or of the system |
//! | `verify-full` | yes | that, and for this host name |

use std::fmt::Write as _;
use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::Error;
use crate::address::percent_decoded;

/// A connection string, read.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// What the driver reads.
    pub(super) config: Config,
    /// How much of the server's certificate is checked.
    pub(super) verify: Verify,
    /// The file with the roots; `None`: the system's.
    pub(super) root_file: Option<PathBuf>,
}

/// How much of the server's certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verify {
    /// Nothing.
    Nothing,
    /// That a known root has signed it.
    Chain,
    /// That, and the host name.
    Full,
}

impl Target {
    /// Reads a URL (`postgres://user:password@host:port/database?option=value`) or `key=value` pairs.
    pub(super) fn parse(text: &str) -> Result<Target, Error> {
        let (rest, own) = take_own_options(text)?;
        let mut config: Config = rest.parse().map_err(|error: tokio_postgres::Error| unusable(&cause(&error)))?;
        let option = |name: &str| own.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let root_file = option("sslrootcert").filter(|file| *file != "system").map(PathBuf::from);
        let (mode, verify) = match option("sslmode") {
            None | Some("prefer" | "allow") => (SslMode::Prefer, Verify::Nothing),
            Some("disable") => (SslMode::Disable, Verify::Nothing),
            Some("require") if root_file.is_some() => (SslMode::Require, Verify::Chain),
            Some("require") => (SslMode::Require, Verify::Nothing),
            Some("verify-ca") => (SslMode::Require, Verify::Chain),
            Some("verify-full") => (SslMode::Require, Verify::Full),
            Some(other) => {
                let expected = "expected disable, prefer, require, verify-ca or verify-full";
                return Err(unusable(&format!("sslmode is {other:?}, {expected}")));
            }
        };
        config.ssl_mode(mode);
        Ok(Target { config, verify, root_file })
    }

    /// `postgres://user@host:port/database`, without the password.
    pub(super) fn address(&self) -> String {
        let mut text = "postgres://".to_owned();
        if let Some(user) = self.config.get_user() {
            let _ = write!(text, "{user}@");
        }
        let ports = self.config.get_ports();
        for (place, host) in self.config.get_hosts().iter().enumerate() {
            let port = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
            let comma = if place > 0 { "," } else { "" };
            let _ = match host {
                Host::Tcp(name) if name.contains(':') => write!(text, "{comma}[{name}]:{port}"),
                Host::Tcp(name) => write!(text, "{comma}{name}:{port}"),
                Host::Unix(path) => write!(text, "{comma}{}:{port}", path.display()),
            };
        }
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        let _ = write!(text, "/{database}");
        text
    }
}

type Options = Vec<(String, String)>;

fn is_own(key: &str) -> bool {
    matches!(key, "sslmode" | "sslrootcert")
}

fn take_own_options(text: &str) -> Result<(String, Options), Error> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let Some((base, query)) = text.split_once('?') else { return Ok((text.to_owned(), Vec::new())) };
        let mut own = Vec::new();
        let mut rest = Vec::new();
        for part in query.split('&') {
            match part.split_once('=') {
                Some((key, value)) if is_own(key) => {
                    own.push((key.to_owned(), percent_decoded(value).map_err(unusable)?));
                }
                _ => rest.push(part),
            }
        }
        let mark = if rest.is_empty() { "" } else { "?" };
        return Ok((format!("{base}{mark}{}", rest.join("&")), own));
    }
    take_own_pairs(text)
}

/// `key = value` pairs, separated by spaces; values may stand in single quotes, with backslashes before `'` and `\`.
fn take_own_pairs(text: &str) -> Result<(String, Options), Error> {
    let mut own = Vec::new();
    let mut rest = String::new();
    let mut left = text.trim();
    while !left.is_empty() {
        let Some((key, after)) = left.split_once('=') else {
            // The text may hold a password, so it is not repeated.
            return Err(unusable("it is neither a URL (postgres://...) nor key=value pairs"));
        };
        let after = after.trim_start();
        let (value, length) = read_value(after)?;
        let key = key.trim();
        if is_own(key) {
            own.push((key.to_owned(), value));
        } else {
            let _ = write!(rest, "{key}={} ", &after[..length]);
        }
        left = after[length..].trim_start();
    }
    Ok((rest, own))
}

/// A value and how many bytes it takes.
fn read_value(text: &str) -> Result<(String, usize), Error> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut characters = text.char_indices().skip(usize::from(quoted));
    while let Some((place, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, place + 1)),
            c if !quoted && c.is_whitespace() => return Ok((value, place)),
            c => value.push(c),
        }
    }
    if quoted { Err(unusable("a quote is not closed")) } else { Ok((value, text.len())) }
}

fn cause(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

fn unusable(why: &str) -> Error {
    Error::Setup {
        what: format!("the database's connection string can't be used: {why}"),
        mend: "write it as postgres://user@host:port/database".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_the_password_is_never_shown() {
        for text in [
            "postgres://ann:s3cret@db.example:6432/shop?sslmode=verify-full&connect_timeout=7&sslrootcert=%2Fetc%2Fca.pem",
            "host=db.example port = 6432 user=ann password='s3cr\\'et' dbname=shop sslmode=verify-full sslrootcert='/etc/ca.pem'",
        ] {
            let target = Target::parse(text).expect(text);
            assert_eq!(target.address(), "postgres://ann@db.example:6432/shop");
            assert_eq!(target.verify, Verify::Full);
            assert_eq!(target.root_file, Some(PathBuf::from("/etc/ca.pem")));
            assert_eq!(target.config.get_ssl_mode(), SslMode::Require);
            assert!(target.config.get_password().is_some());
        }
    }

    #[test]
    fn sslmode_is_as_libpq_has_it() {
        let read = |options: &str| {
            Target::parse(&format!("postgres://h/d{options}")).map(|t| (t.config.get_ssl_mode(), t.verify))
        };
        assert_eq!(read("").ok(), Some((SslMode::Prefer, Verify::Nothing)));
        assert_eq!(read("?sslmode=disable").ok(), Some((SslMode::Disable, Verify::Nothing)));
        assert_eq!(read("?sslmode=require").ok(), Some((SslMode::Require, Verify::Nothing)));
        assert_eq!(read("?sslmode=require&sslrootcert=a").ok(), Some((SslMode::Require, Verify::Chain)));
        assert_eq!(read("?sslmode=verify-ca&sslrootcert=system").ok(), Some((SslMode::Require, Verify::Chain)));
        assert!(read("?sslmode=verify").is_err() && read("?sslrootcert=%2").is_err());
    }

    #[test]
    fn what_is_no_connection_string_is_refused_without_repeating_it() {
        for text in ["shop s3cret", "host=a password='s3cret", "postgres://a@b/c?password=s3cret&nonsense=1"] {
            let error = Target::parse(text).expect_err(text).to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
