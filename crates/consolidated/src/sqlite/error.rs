//! What SQLite's errors mean.

use headwater_protocol::message::{Refusal, RefusalCode};
use rusqlite::ErrorCode;
use rusqlite::ffi;

use crate::Error;

/// Sorts an error. `context` says what was being done; it matters only for defects.
pub(super) fn sort(error: rusqlite::Error, context: &str) -> Error {
    let detail = error.to_string();
    let (cause, message) = match error {
        // Of Headwater's own tables: an earlier version has made them, or nobody has.
        _ if is_unknown(&detail) && context.contains("headwater_") => {
            return Error::Setup {
                what: format!("{context}: {detail}"),
                mend: "run `headwater track`, which makes what is missing of Headwater's own tables".to_owned(),
            };
        }
        rusqlite::Error::MultipleStatement => return Error::Sql { detail, line: None, is_statement: true },
        rusqlite::Error::SqliteFailure(cause, message) => (cause, message),
        _ => return Error::Database { context: context.to_owned(), detail },
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
        | ErrorCode::OperationAborted
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::SchemaChanged => Error::Retry { detail, broken: false },
        ErrorCode::SystemIoFailure
        | ErrorCode::CannotOpen
        | ErrorCode::ReadOnly
        | ErrorCode::DatabaseCorrupt
        | ErrorCode::NotADatabase => Error::Retry { detail: format!("{context}: {detail}"), broken: true },
        _ => Error::Database { context: context.to_owned(), detail },
    }
}

/// The same of a statement that works on rows of an upload. What an expression of the table's stumbles over (a check, an index, a generated
/// column, a trigger: text that is no JSON, an overflow) is the row's, as its constraints are: SQLite has one code for all of it.
pub(super) fn sort_of_rows(error: rusqlite::Error, context: &str) -> Error {
    const MESSAGE: &str =
        "an expression of the table (a check, an index, a generated column, a trigger) fails with the row";
    let is_rows = matches!(&error, rusqlite::Error::SqliteFailure(cause, _)
        if cause.extended_code == ffi::SQLITE_ERROR || cause.extended_code == ffi::SQLITE_CORRUPT_VTAB);
    if is_rows { refusal(RefusalCode::Data, MESSAGE, error.to_string()) } else { sort(error, context) }
}

fn is_unknown(detail: &str) -> bool {
    ["no such column: ", "has no column named ", "no such table: headwater_"].iter().any(|text| detail.contains(text))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Kind {
        Refused(RefusalCode),
        Retry { broken: bool },
        Defect,
    }
    use Kind::{Defect, Refused, Retry};

    fn kind(code: i32) -> Kind {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("UNIQUE constraint failed: t.a".into()));
        match sort(error, "testing") {
            Error::Refused { refusal, .. } => Refused(refusal.code),
            Error::Retry { broken, .. } => Retry { broken },
            Error::Database { .. } => Defect,
            other => panic!("{other}"),
        }
    }

    /// Only what the row itself is at fault for sets it aside; what passes rolls the upload back, to be tried again.
    #[test]
    fn each_code_is_a_rows_fault_or_passes_or_is_a_defect() {
        let table = [
            (ffi::SQLITE_CONSTRAINT_UNIQUE, Refused(RefusalCode::Unique)),
            (ffi::SQLITE_CONSTRAINT_PRIMARYKEY, Refused(RefusalCode::Unique)),
            (ffi::SQLITE_CONSTRAINT_ROWID, Refused(RefusalCode::Unique)),
            (ffi::SQLITE_CONSTRAINT_FOREIGNKEY, Refused(RefusalCode::ForeignKey)),
            (ffi::SQLITE_CONSTRAINT_NOTNULL, Refused(RefusalCode::NotNull)),
            (ffi::SQLITE_CONSTRAINT_CHECK, Refused(RefusalCode::Check)),
            (ffi::SQLITE_CONSTRAINT_TRIGGER, Refused(RefusalCode::Trigger)),
            (ffi::SQLITE_CONSTRAINT_DATATYPE, Refused(RefusalCode::Data)),
            (ffi::SQLITE_CONSTRAINT_VTAB, Refused(RefusalCode::Constraint)),
            (ffi::SQLITE_CONSTRAINT_FUNCTION, Refused(RefusalCode::Constraint)),
            (ffi::SQLITE_CONSTRAINT, Refused(RefusalCode::Constraint)),
            (ffi::SQLITE_TOOBIG, Refused(RefusalCode::Data)),
            (ffi::SQLITE_MISMATCH, Refused(RefusalCode::Data)),
            (ffi::SQLITE_BUSY, Retry { broken: false }),
            (ffi::SQLITE_BUSY_SNAPSHOT, Retry { broken: false }),
            (ffi::SQLITE_BUSY_RECOVERY, Retry { broken: false }),
            (ffi::SQLITE_LOCKED, Retry { broken: false }),
            (ffi::SQLITE_FULL, Retry { broken: false }),
            (ffi::SQLITE_NOMEM, Retry { broken: false }),
            (ffi::SQLITE_INTERRUPT, Retry { broken: false }),
            (ffi::SQLITE_ABORT_ROLLBACK, Retry { broken: false }),
            (ffi::SQLITE_PROTOCOL, Retry { broken: false }),
            (ffi::SQLITE_SCHEMA, Retry { broken: false }),
            (ffi::SQLITE_IOERR_WRITE, Retry { broken: true }),
            (ffi::SQLITE_IOERR_FSYNC, Retry { broken: true }),
            (ffi::SQLITE_CANTOPEN, Retry { broken: true }),
            (ffi::SQLITE_READONLY, Retry { broken: true }),
            (ffi::SQLITE_READONLY_DBMOVED, Retry { broken: true }),
            (ffi::SQLITE_CORRUPT, Retry { broken: true }),
            (ffi::SQLITE_NOTADB, Retry { broken: true }),
            (ffi::SQLITE_ERROR, Defect),
            (ffi::SQLITE_MISUSE, Defect),
            (ffi::SQLITE_RANGE, Defect),
            (ffi::SQLITE_AUTH, Defect),
        ];
        for (code, expected) in table {
            assert_eq!(kind(code), expected, "code {code}");
        }
    }
}
