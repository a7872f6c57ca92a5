//! What MariaDB's errors mean: sorted by its numbers and SQLSTATE, never by text.
//!
//! | number, SQLSTATE | becomes |
//! |---|---|
//! | 1317 (cancelled), 1969 (its time is over), 1205, 1213 (locks), 1021, 1037, 1041, 1114 (no room), 1226, 1461 (a limit of the server's) | try again |
//! | 08xxx, 1053 (shutting down), 1927 (the connection was killed), a closed connection | try again on another connection |
//! | 21xxx, 22xxx, 42xxx, 45xxx, 1792 (it writes), whatever is said of a statement as it is prepared | the query's own fault |
//! | while connecting: 1044, 1045, 1049, 1130, 1698, TLS | the setup |
//! | the rest | a defect, or something that only the log can tell |

use mysql_async::{DriverError, Error as Failure, IoError, ServerError};

use super::sql::line;
use crate::Error;

/// What mends it where TLS is not as the address has it.
const TLS: &str = "check require_ssl and ssl_ca in the database's URL, and the server's certificate";

/// What is being done with a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Preparing,
    Running,
}

/// What an error of the driver means. `sql`: the query as it was written.
pub(super) fn convert(doing: Doing, sql: &str, failure: &Failure) -> Error {
    let context = if doing == Doing::Preparing { "preparing a query" } else { "running a query" };
    match failure {
        Failure::Server(server) => of_server(doing, context, sql, server),
        // Only of SQL that names a parameter where ours names none.
        Failure::Driver(DriverError::MixedParams | DriverError::Params(_)) => {
            Error::Sql { detail: failure.to_string(), line: None, is_statement: true }
        }
        _ => Error::Retry { detail: format!("{context}: {}", text(failure)), broken: true },
    }
}

fn of_server(doing: Doing, context: &str, sql: &str, server: &ServerError) -> Error {
    let detail = format!("{context}: {server}");
    match (server.code, server.state.get(..2).unwrap_or_default()) {
        (1053 | 1927, _) | (_, "08") => Error::Retry { detail, broken: true },
        (1021 | 1037 | 1041 | 1114 | 1205 | 1213 | 1226 | 1317 | 1461 | 1969, _) => {
            Error::Retry { detail, broken: false }
        }
        // No table, no column, no function, no grant; a full-text search says of its words that they are no SQL (1064).
        (1792 | 1054 | 1109 | 1142 | 1143 | 1146 | 1305 | 1370, _) => own(sql, server, true),
        (_, "21" | "22" | "42" | "45") => own(sql, server, doing == Doing::Preparing),
        _ if doing == Doing::Preparing => own(sql, server, true),
        _ => Error::Database { context: context.to_owned(), detail: server.to_string() },
    }
}

fn own(sql: &str, server: &ServerError, is_statement: bool) -> Error {
    Error::Sql { detail: server.message.clone(), line: line(sql, &server.message), is_statement }
}

/// What an error while connecting means: the user's setup may be wrong.
pub(super) fn connecting(address: &str, failure: &Failure) -> Error {
    let mend = match failure {
        Failure::Server(server) => match server.code {
            1045 | 1698 => "check user and password in the database's URL",
            1044 => "GRANT SELECT on the database to the user of its URL",
            1049 => "create the database, or name another in the database's URL",
            1130 => "let the user in from this machine: CREATE USER 'name'@'host'",
            _ => "",
        },
        Failure::Driver(DriverError::NoClientSslFlagFromServer) | Failure::Io(IoError::Tls(_)) => TLS,
        Failure::Io(IoError::Io(error)) if matches!(error.get_ref(), Some(cause) if cause.is::<rustls::Error>()) => TLS,
        _ => "",
    };
    let detail = text(failure);
    if mend.is_empty() {
        return Error::Retry { detail: format!("connecting to {address}: {detail}"), broken: true };
    }
    Error::Setup { what: format!("can't connect to {address}: {detail}"), mend: mend.into() }
}

fn text(failure: &Failure) -> String {
    match failure {
        Failure::Io(IoError::Io(error)) => error.to_string(),
        Failure::Server(server) => server.to_string(),
        other => other.to_string(),
    }
}
