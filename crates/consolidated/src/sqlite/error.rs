//! What SQLite's errors mean.

use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::ErrorCode;
use rusqlite::ffi;

use crate::Error;

/// Sorts an error. `context` says what was being done; it matters only for defects.
pub(super) fn sort(error: rusqlite::Error, context: &str) -> Error {
    let detail = error.to_string();
    let rusqlite::Error::SqliteFailure(cause, message) = error else {
        return Error::Database { context: context.to_owned(), detail };
    };
    match cause.code {
        ErrorCode::ConstraintViolation => refused(cause.extended_code, message.as_deref(), detail),
        ErrorCode::TooBig | ErrorCode::TypeMismatch => {
            refusal(RefusalCode::Data, "a value is too big or of a type that its column doesn't take", detail)
        }
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::DiskFull
        | ErrorCode::OutOfMemory
        | ErrorCode::OperationInterrupted
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::SchemaChanged => Error::Retry { detail, broken: false },
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
            Error::Retry { detail: format!("{context}: {detail}"), broken: true }
        }
        _ => Error::Database { context: context.to_owned(), detail },
    }
}

fn refused(extended: i32, message: Option<&str>, detail: String) -> Error {
    // "UNIQUE constraint failed: t.a, t.b": names of the schema, never a value. A trigger's text is the application's own.
    let named = message.and_then(|text| text.split_once(" constraint failed: ")).map_or("", |(_, name)| name);
    let (code, text) = match extended {
        ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_ROWID => {
            (RefusalCode::Unique, format!("unique constraint: {named}"))
        }
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => (RefusalCode::ForeignKey, "a foreign key".to_owned()),
        ffi::SQLITE_CONSTRAINT_NOTNULL => (RefusalCode::NotNull, format!("not null: {named}")),
        ffi::SQLITE_CONSTRAINT_CHECK => (RefusalCode::Check, format!("check constraint: {named}")),
        ffi::SQLITE_CONSTRAINT_TRIGGER => {
            (RefusalCode::Trigger, "a trigger of the database refused the row".to_owned())
        }
        ffi::SQLITE_CONSTRAINT_DATATYPE => (RefusalCode::Data, "a value is not of its column's type".to_owned()),
        _ => (RefusalCode::Constraint, "a constraint".to_owned()),
    };
    refusal(code, &text, detail)
}

/// A refusal; `detail` stays in the server's log.
pub(super) fn refusal(code: RefusalCode, message: &str, detail: String) -> Error {
    Error::Refused { refusal: Refusal { code, message: message.to_owned() }, detail }
}
