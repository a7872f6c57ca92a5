//! Why a request came to nothing: what the client is told, and what only the log may know.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use headwater_consolidated::{Error as DatabaseError, Waiting};
use headwater_protocol::DecodeError;
use headwater_protocol::message::{ErrorCode, ServerError};
use headwater_protocol::server::RequestError;

/// The media type of frames.
pub(crate) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/vnd.headwater.sync");

/// A failure of one request.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: ErrorCode,
    pub(crate) retry_after: Duration,
    /// For the client's people. Says nothing that the user may not know.
    pub(crate) message: String,
    /// For the log: the database's own words, say.
    pub(crate) detail: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Failure {
        Failure { code, retry_after: Duration::ZERO, message: message.into(), detail: None }
    }

    pub(crate) fn after(self, retry_after: Duration) -> Failure {
        Failure { retry_after, ..self }
    }

    pub(crate) fn with_detail(self, detail: impl Into<String>) -> Failure {
        Failure { detail: Some(detail.into()), ..self }
    }

    pub(crate) fn internal(detail: impl Into<String>) -> Failure {
        Failure::new(ErrorCode::Internal, "the server failed; its log says more").with_detail(detail)
    }

    pub(crate) fn shutting_down() -> Failure {
        Failure::new(ErrorCode::ShuttingDown, "the server is going down").after(Duration::from_secs(5))
    }

    /// The spool could not take or give what it should.
    pub(crate) fn spool(error: &std::io::Error) -> Failure {
        let failure = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::FileTooLarge => {
                tracing::warn!(
                    %error,
                    "a sync finds no room to be spooled, and comes again: make room on the disk of [pool] overflow_folder, or raise \
                     [pool] overflow_bytes_max, whichever it is"
                );
                let message = "the server has no room left to spool this sync; it was not finished";
                // When to come back, the pace of the server says (`Admission::paced`).
                Failure::new(ErrorCode::Overloaded, message)
            }
            _ => Failure::internal("the spool failed"),
        };
        failure.with_detail(error.to_string())
    }

    /// The ERROR frame's content.
    pub(crate) fn to_server_error(&self) -> ServerError {
        let retry_after_ms = u32::try_from(self.retry_after.as_millis()).unwrap_or(u32::MAX);
        ServerError { code: self.code, retry_after_ms, message: self.message.clone() }
    }

    fn status(&self) -> StatusCode {
        match self.code {
            ErrorCode::Malformed | ErrorCode::Damaged | ErrorCode::UnsupportedVersion => StatusCode::BAD_REQUEST,
            ErrorCode::Unauthenticated => StatusCode::UNAUTHORIZED,
            ErrorCode::Forbidden => StatusCode::FORBIDDEN,
            ErrorCode::ModelUnknown | ErrorCode::TicketUnknown => StatusCode::NOT_FOUND,
            ErrorCode::ModelChanged => StatusCode::CONFLICT,
            ErrorCode::Gone => StatusCode::GONE,
            ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorCode::Timeout => StatusCode::REQUEST_TIMEOUT,
            ErrorCode::Overloaded
            | ErrorCode::ShuttingDown
            | ErrorCode::DatabaseUnavailable
            | ErrorCode::RemoteBusy => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The answer where the body has frames: one ERROR frame.
    pub(crate) fn to_frame_response(&self) -> Response {
        let frame = self.to_server_error().to_frame().to_bytes();
        let mut response = (self.status(), Body::from(frame)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        self.add_headers(&mut response);
        response
    }

    /// The answer where the body is JSON.
    pub(crate) fn to_json_response(&self) -> Response {
        let body = serde_json::json!({ "error": self.code.name(), "message": self.message });
        let mut response = (self.status(), axum::Json(body)).into_response();
        self.add_headers(&mut response);
        response
    }

    fn add_headers(&self, response: &mut Response) {
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.code == ErrorCode::Unauthenticated {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"headwater\""));
            headers.append(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"headwater\", charset=\"UTF-8\""),
            );
        }
        if !self.retry_after.is_zero() {
            // Whole seconds, rounded up: a client that only reads the header comes no earlier.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after.as_millis().div_ceil(1000) as u64));
        }
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        match &error {
            DatabaseError::Retry { .. } | DatabaseError::InDoubt { .. } => {
                let message = "the consolidated database can't be reached, or could not do it now";
                Failure::new(ErrorCode::DatabaseUnavailable, message)
                    .after(Duration::from_secs(5))
                    .with_detail(error.to_string())
            }
            DatabaseError::RemoteBusy => Failure::remote_busy(),
            DatabaseError::OtherLife => {
                let message = "the consolidated database was restarted, restored or replaced during the sync";
                Failure::new(ErrorCode::DatabaseUnavailable, message).after(Duration::from_secs(1))
            }
            DatabaseError::UploadRefused { message } => {
                let first = message.lines().next().unwrap_or_default();
                Failure::new(ErrorCode::UploadRefused, message.as_str()).with_detail(first)
            }
            DatabaseError::Decode(decode) => decode_failure(decode),
            DatabaseError::Spool(error) => Failure::spool(error),
            DatabaseError::Setup { .. } => {
                let message =
                    "the consolidated database is not set up as the model says; `headwater check` there says more";
                Failure::new(ErrorCode::Internal, message).with_detail(error.to_string())
            }
            DatabaseError::Misfit { table, .. } => {
                let message = format!(
                    "table {table:?} of the consolidated database does not fit the model; `headwater check` there says more"
                );
                Failure::new(ErrorCode::Internal, message).with_detail(error.to_string())
            }
            DatabaseError::Untracked { table, .. } => {
                let message = format!(
                    "changes of table {table:?} are not tracked at the consolidated database; `headwater check` there says more"
                );
                Failure::new(ErrorCode::Internal, message).with_detail(error.to_string())
            }
            DatabaseError::Refused { .. }
            | DatabaseError::Database { .. }
            | DatabaseError::Sql { .. }
            | DatabaseError::Column { .. }
            | DatabaseError::Parameter { .. }
            | DatabaseError::ValueTooLarge { .. } => Failure::internal(error.to_string()),
        }
    }
}

impl Failure {
    /// Commits at the database do not end. What they wait for, only the log and `/ready` say.
    pub(crate) fn commits_wait(waiting: &Waiting) -> Failure {
        let message = "commits at the consolidated database do not end now; nothing is lost, and the next sync finds out what became of this one";
        Failure::new(ErrorCode::DatabaseUnavailable, message).after(Duration::from_secs(10)).with_detail(&waiting.what)
    }

    pub(crate) fn remote_busy() -> Failure {
        Failure::new(ErrorCode::RemoteBusy, "a sync of this remote is running").after(Duration::from_secs(1))
    }
}

/// Rows that can't be read only show when the upload is applied: frames and digest were right.
fn decode_failure(error: &DecodeError) -> Failure {
    let code = match error {
        DecodeError::TooLarge { .. } => ErrorCode::TooLarge,
        _ => ErrorCode::Malformed,
    };
    Failure::new(code, format!("the upload can't be read: {error}"))
}

impl From<&RequestError> for Failure {
    fn from(error: &RequestError) -> Self {
        let option = match error {
            RequestError::Decode(DecodeError::TooLarge { field: "number of frames", .. }) => " (upload_frames_max)",
            RequestError::Decode(DecodeError::TooLarge { field: "total size", .. }) => " (upload_bytes_max)",
            _ => "",
        };
        Failure::new(error.code(), format!("{error}{option}"))
    }
}

impl From<headwater_access::Error> for Failure {
    fn from(error: headwater_access::Error) -> Self {
        use headwater_access::Error as Access;
        match error {
            Access::Unauthenticated | Access::TokenExpired => {
                Failure::new(ErrorCode::Unauthenticated, error.to_string())
            }
            Access::RefusedToken(ref refusal) => {
                Failure::new(ErrorCode::Unauthenticated, error.to_string()).with_detail(format!("the token: {refusal}"))
            }
            Access::Disabled { .. } => Failure::new(ErrorCode::Forbidden, error.to_string()),
            Access::Overloaded => Failure::new(ErrorCode::Overloaded, error.to_string()).after(Duration::from_secs(1)),
            Access::Database(error) => error.into(),
            other => Failure::internal(other.to_string()),
        }
    }
}
