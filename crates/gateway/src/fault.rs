//! Why a request is not answered with rows.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use headwater_access::Error as AccessError;
use headwater_consolidated::Error as DatabaseError;
use headwater_protocol::Value;

use crate::client_sql::ClientSql;
use crate::format::{Format, Unfit};

/// For how long caches, the gateway's own among them, may keep an answer that is the caller's own fault: the same request would get the same.
pub(crate) const OWN_FAULT_S: u32 = 10;

/// The most letters of what the database says of a statement that are told.
const WORDS_MAX: usize = 500;

/// Who wrote the SQL that is run, and is at fault where it is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A query's file has it; whether it was asked with arguments.
    Files { with_arguments: bool },
    /// It came with the request.
    Clients,
}

impl Whose {
    /// By where it is run, and the values that are bound.
    pub(crate) fn of(client_sql: Option<&ClientSql>, parameters: &[Value]) -> Whose {
        match client_sql {
            Some(_) => Whose::Clients,
            None => Whose::Files { with_arguments: !parameters.is_empty() },
        }
    }
}

/// Why a request is not answered with rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    /// A stable name of it.
    pub(crate) code: &'static str,
    /// For whoever asks.
    pub(crate) message: String,
    /// When to come back.
    pub(crate) retry_after: Option<Duration>,
    /// Whether an answer of before, which is too old, may be given in its place.
    pub(crate) is_servers: bool,
}

impl Fault {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Fault {
        Fault { status, code, message: message.into(), retry_after: None, is_servers: false }
    }

    /// A query, or a form of its rows, that there is not.
    pub(crate) fn unknown(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// A method other than GET and HEAD.
    pub(crate) fn method() -> Fault {
        Fault::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "expected GET or HEAD")
    }

    /// Arguments that are none.
    pub(crate) fn arguments(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::BAD_REQUEST, "arguments", message)
    }

    /// No form of rows that the request accepts.
    pub(crate) fn not_acceptable() -> Fault {
        let kinds = Format::BY_ACCEPT.map(Format::media_type).join(", ");
        let message = format!("expected one of {kinds} in Accept");
        Fault::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", message)
    }

    /// A user that may not ask this.
    pub(crate) fn forbidden() -> Fault {
        Fault::new(StatusCode::FORBIDDEN, "forbidden", "this user may not ask this query")
    }

    /// What is not done here, for whoever asks.
    pub(crate) fn refused(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// A request that was to ask for another protocol.
    pub(crate) fn upgrade_required(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
    }

    /// A connection of cursors, or one of them, that its client makes no use of.
    pub(crate) fn idle(limit: Duration) -> Fault {
        Fault::new(StatusCode::REQUEST_TIMEOUT, "idle", format!("nothing was asked or taken for {limit:?}"))
    }

    /// More cursors than a connection may have open.
    pub(crate) fn too_many_cursors(limit: usize) -> Fault {
        let message = format!("{limit} cursors are open on this connection, which is as many as it may have");
        Fault::new(StatusCode::TOO_MANY_REQUESTS, "too_many_cursors", message)
    }

    /// A cursor that its client has cancelled.
    pub(crate) fn cancelled() -> Fault {
        Fault::new(StatusCode::REQUEST_TIMEOUT, "cancelled", "the client wants no more")
    }

    /// The server takes no more.
    pub(crate) fn stopping() -> Fault {
        let fault = Fault::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping");
        Fault { retry_after: Some(Duration::from_secs(1)), is_servers: true, ..fault }
    }

    /// A client that does not speak the protocol.
    pub(crate) fn malformed(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::BAD_REQUEST, "malformed", message)
    }

    /// More than the query's limits allow.
    pub(crate) fn too_large(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::UNPROCESSABLE_ENTITY, "too_large", message)
    }

    /// A value that the wanted form has no room for.
    pub(crate) fn unfit(unfit: &Unfit) -> Fault {
        Fault::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", unfit.to_string())
    }

    /// Columns that a cursor has no room for.
    pub(crate) fn unfit_columns(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", message)
    }

    /// Too many executions already.
    pub(crate) fn overloaded(message: impl Into<String>) -> Fault {
        let fault = Fault::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
        Fault { retry_after: Some(Duration::from_secs(1)), is_servers: true, ..fault }
    }

    /// The query took longer than it may.
    pub(crate) fn timed_out(limit: Duration) -> Fault {
        let message = format!("the query took longer than {limit:?}");
        Fault { is_servers: true, ..Fault::new(StatusCode::GATEWAY_TIMEOUT, "timed_out", message) }
    }

    /// The client takes its answer too slowly, and others wait for its place.
    pub(crate) fn slow_reader(bytes_per_s: u64) -> Fault {
        let message = format!("the answer was taken at less than {bytes_per_s} bytes a second while others waited");
        Fault { is_servers: true, ..Fault::new(StatusCode::SERVICE_UNAVAILABLE, "slow_reader", message) }
    }

    /// The database did not do it; its own words stay in the log, but for what is wrong with SQL of the caller's own. `whose`: who wrote the SQL.
    pub(crate) fn database(query: &str, error: &DatabaseError, whose: Whose) -> Fault {
        if matches!(error, DatabaseError::Retry { .. }) {
            tracing::warn!(query, %error, "a query can't be run now");
            let fault =
                Fault::new(StatusCode::SERVICE_UNAVAILABLE, "database_unavailable", "the database is not there now");
            return Fault { retry_after: Some(Duration::from_secs(5)), is_servers: true, ..fault };
        }
        if let (
            DatabaseError::Sql { detail, is_statement: true, .. } | DatabaseError::Column { detail },
            Whose::Files { .. },
        ) = (error, whose)
        {
            tracing::error!(
                query,
                detail,
                "a query does not fit the database as it is: headwater query check says where"
            );
            let message = format!("the query {query} does not fit the database as it is; the server's log says why");
            let fault = Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "query", message);
            return Fault { is_servers: true, ..fault };
        }
        if let DatabaseError::Sql { detail, is_statement, .. } = error {
            tracing::warn!(query, detail, "the database can't run a query so");
            let what = match whose {
                Whose::Files { with_arguments: true } => "the query with these arguments",
                Whose::Files { with_arguments: false } => "the query on the rows as they are",
                Whose::Clients => "the statement as it was sent",
            };
            let message = match words(detail).filter(|_| *is_statement && whose == Whose::Clients) {
                Some(words) => format!("the database can't run {what}: {words}"),
                None => format!("the database can't run {what}; the server's log says why"),
            };
            return Fault::new(StatusCode::UNPROCESSABLE_ENTITY, "failed", message);
        }
        if let DatabaseError::Column { detail } = error {
            // What the statement's own words say of its type.
            return Fault::unfit_columns(detail);
        }
        if let DatabaseError::Parameter { detail } = error {
            return Fault::arguments(detail);
        }
        if let DatabaseError::ValueTooLarge { .. } = error {
            return Fault::too_large(format!("{error}: ask for less"));
        }
        tracing::error!(query, %error, "a query failed");
        let message = "the query failed; the server's log says more";
        Fault { is_servers: true, ..Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message) }
    }

    /// A query that is wrong, whatever it is asked with: its file or the database's tables are to be mended.
    pub(crate) fn query(query: &str, message: &str) -> Fault {
        tracing::error!(query, message, "a query is wrong");
        let message = format!("the query {query} is wrong: {message}");
        Fault { is_servers: true, ..Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "query", message) }
    }

    /// A defect of ours.
    pub(crate) fn internal(detail: &str) -> Fault {
        tracing::error!(detail, "a query was not run to its end");
        let message = "the server failed; its log says more";
        Fault { is_servers: true, ..Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message) }
    }

    /// The answer. `is_shared`: caches of many users may keep it.
    pub(crate) fn into_response(self, is_shared: bool) -> Response {
        let body = serde_json::json!({ "error": self.code, "message": self.message }).to_string();
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let mut response = (self.status, kind, Body::from(body)).into_response();
        // What is not acceptable to one is to another, at the same URL.
        let is_own = matches!(self.status.as_u16(), 400 | 404 | 422);
        let kept = match (is_own, is_shared) {
            (true, true) => format!("public, max-age={OWN_FAULT_S}"),
            (true, false) => format!("private, max-age={OWN_FAULT_S}"),
            (false, _) => "no-store".to_owned(),
        };
        let headers = response.headers_mut();
        set(headers, header::CACHE_CONTROL, &kept);
        set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        if let Some(wait) = self.retry_after {
            set(headers, header::RETRY_AFTER, &wait.as_secs().max(1).to_string());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"headwater\""));
            let basic = HeaderValue::from_static("Basic realm=\"headwater\", charset=\"UTF-8\"");
            headers.append(header::WWW_AUTHENTICATE, basic);
        }
        response
    }
}

/// Sets a header to a text of ours, which is ASCII.
pub(crate) fn set(headers: &mut axum::http::HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// What the database says of a statement, for whoever wrote that: without the role that runs it, which MariaDB names where a grant is missing. What
/// it says of rows (`is_statement` is false) is not told: by a view's own conditions these may be hidden.
fn words(detail: &str) -> Option<String> {
    let role = detail.split_once(" to user '").map(|(before, behind)| {
        let behind = behind.split_once("'@'").and_then(|(_, host)| host.split_once('\''));
        (before, behind.map(|(_, behind)| behind))
    });
    let (before, behind) = match role {
        None => (detail, ""),
        Some((before, Some(behind))) => (before, behind),
        Some((_, None)) => return None,
    };
    let letters = before.chars().chain(behind.chars());
    Some(letters.map(|letter| if letter.is_control() { ' ' } else { letter }).take(WORDS_MAX).collect())
}

/// What led to an error, behind one another.
fn causes(error: &dyn std::error::Error) -> String {
    let (mut told, mut next) = (Vec::new(), error.source());
    while let Some(cause) = next {
        told.push(cause.to_string());
        next = cause.source();
    }
    told.join(": ")
}

impl From<AccessError> for Fault {
    fn from(error: AccessError) -> Fault {
        match error {
            AccessError::Overloaded => Fault::overloaded(error.to_string()),
            AccessError::Unauthenticated | AccessError::TokenExpired | AccessError::RefusedToken(_) => {
                Fault::new(StatusCode::UNAUTHORIZED, "unauthenticated", error.to_string())
            }
            AccessError::Disabled { .. } => Fault::new(StatusCode::FORBIDDEN, "forbidden", error.to_string()),
            error => {
                let cause = causes(&error);
                tracing::warn!(%error, cause, "who asks could not be found out");
                let message = "who asks could not be found out now";
                let fault = Fault::new(StatusCode::SERVICE_UNAVAILABLE, "database_unavailable", message);
                Fault { retry_after: Some(Duration::from_secs(5)), is_servers: true, ..fault }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_database_cannot_run_is_told_by_whose_sql_it_is() {
        let (detail, one) = ("division by zero".to_owned(), [Value::Int(1)]);
        let error = DatabaseError::Sql { detail, line: None, is_statement: false };
        for (whose, words) in [
            (Whose::of(None, &one), "can't run the query with these arguments;"),
            (Whose::of(None, &[]), "can't run the query on the rows as they are;"),
            (Whose::Clients, "can't run the statement as it was sent;"),
        ] {
            let fault = Fault::database("q", &error, whose);
            assert_eq!((fault.status.as_u16(), fault.code), (422, "failed"), "{whose:?}");
            assert!(fault.message.contains(words) && !fault.message.contains("zero"), "{}", fault.message);
        }
    }

    #[test]
    fn what_is_wrong_with_a_statement_is_told_to_who_sent_it() {
        let said = |detail: &str, whose| {
            let error = DatabaseError::Sql { detail: detail.to_owned(), line: None, is_statement: true };
            Fault::database("q", &error, whose).message
        };
        let sent = "the database can't run the statement as it was sent";
        let typo = "syntax error at or near \"FORM\"";
        assert_eq!(said(typo, Whose::Clients), format!("{sent}: {typo}"));
        let message = said(typo, Whose::Files { with_arguments: true });
        assert!(!message.contains("FORM"), "a query's file is not of those who ask: {message}");
        let denied = "SELECT command denied to user 'reader'@'10.0.0.%' for table `shop`.`headwater_account`";
        let words = "SELECT command denied for table `shop`.`headwater_account`";
        assert_eq!(said(denied, Whose::Clients), format!("{sent}: {words}"));
        assert_eq!(said("denied to user 'reader", Whose::Clients), format!("{sent}; the server's log says why"));
        assert_eq!(said("a\u{1b}[2J\nb", Whose::Clients), format!("{sent}: a [2J b"));
        assert_eq!(said(&"ä".repeat(2_000), Whose::Clients).chars().count(), sent.len() + 2 + WORDS_MAX);
    }
}
