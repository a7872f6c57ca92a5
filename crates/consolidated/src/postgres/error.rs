//! What PostgreSQL's errors mean: sorted by SQLSTATE, never by text, which depends on the server's language.
//!
//! | SQLSTATE | becomes |
//! |---|---|
//! | any code that application code raises (`RAISE`, and its like in other languages) | the row is refused |
//! | 23xxx, 22xxx, 54xxx, 44000, 42804, 42501 by a row's policy, P0xxx, codes that PostgreSQL doesn't know, and most others inside a function of the application's | the row is refused |
//! | 26000, 42P05, 42704 of the session's marker | the setup: a pooler in transaction mode |
//! | 55P03 of `NOWAIT` in a statement of ours | a sync of this remote is running |
//! | 40P01 of the deadlock detector, 57014 and 55P03 of a time-out or a cancellation, 53100, 53200, 53300, 58030, 40001 outside of functions, a cached plan that no longer fits | try again |
//! | 57P0x, 25006 (the primary became a standby) and 08xxx outside of functions, 0A000 of a transaction that is to write on a standby, 25P0x, a closed connection | try again on another connection |
//! | other 40xxx, 53xxx, 55P03, 55006, 58xxx; 08xxx and 25006 inside a function of the application's; XX000 | in doubt: try again; where it stays, the row is refused |
//! | 28xxx, 3D000, 42501 of a missing grant, a missing table or column, 42P10 of a missing key | the setup; of a table of the model, see [`super::grants`] |
//! | the rest | a defect, or the user's SQL |

use headwater_protocol::message::{Refusal, RefusalCode};
use tokio_postgres::error::{DbError, SqlState};

use super::pooler::{MARKER, shared};
use crate::Error;

/// The code of every error of the classes that PostgreSQL itself raises; another class comes from the application's own triggers.
const OWN_CLASSES: [&str; 43] = [
    "00", "01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "20", "21", "22", "23", "24", "25", "26",
    "27", "28", "2B", "2D", "2F", "34", "38", "39", "3B", "3D", "3F", "40", "42", "44", "53", "54", "55", "57", "58",
    "72", "F0", "HV", "P0", "XX",
];

/// What an error of the driver means.
pub(super) fn convert(context: &str, error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(error) => from_server(context, error),
        None if error.is_closed() => Error::Retry { detail: format!("{context}: {}", chain(error)), broken: true },
        None => Error::Database { context: context.to_owned(), detail: chain(error) },
    }
}

/// What an error while connecting means: here nothing of a transaction is lost yet, and the user's setup may be wrong.
pub(super) fn connecting(address: &str, error: &tokio_postgres::Error) -> Error {
    let detail = chain(error);
    let code = error.code().map(SqlState::code).unwrap_or_default();
    let mend = match code.get(..2) {
        Some("28") => "check user and password in the database's URL, and the server's pg_hba.conf",
        Some("3D") => "create the database, or name another in the database's URL",
        _ if detail.contains("TLS") => "check sslmode and sslrootcert in the database's URL",
        _ => return Error::Retry { detail: format!("connecting to {address}: {detail}"), broken: true },
    };
    Error::Setup { what: format!("can't connect to {address}: {detail}"), mend: mend.into() }
}

/// The errors of a `NOWAIT` in a statement of ours.
pub(super) fn is_not_available(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        // A lock time-out has the same code, but is found by the routine that handles interrupts.
        *error.code() == SqlState::LOCK_NOT_AVAILABLE && error.routine() != Some("ProcessInterrupts")
    })
}

fn from_server(context: &str, error: &DbError) -> Error {
    let code = error.code().code();
    let class = code.get(..2).unwrap_or_default();
    let retry = |broken| Error::Retry { detail: format!("{context}: {}", text(error)), broken };
    if is_raised(error) {
        let refusal = refusal(error, class).unwrap_or_else(|| refused_by(RefusalCode::Trigger, BY_TRIGGER, error));
        return Error::Refused { refusal, detail: text(error) };
    }
    let is_inside = is_in_application_function(error);
    // The marker of the session is not there, or a statement of ours, or somebody else has one under its name.
    if (code == "42704" && error.message().contains(MARKER))
        || (matches!(code, "26000" | "42P05") && error.where_().is_none())
    {
        return shared(&format!("{context}: {}", text(error)));
    }
    match code {
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25P04" => retry(true),
        "25006" if !is_inside => retry(true),
        // "cannot set transaction read-write mode during recovery": the same, where a transaction begins.
        "0A000" if !is_inside && error.routine() == Some("call_bool_check_hook") => retry(true),
        _ if class == "08" && !is_inside => retry(true),
        _ if is_circumstance(error) => retry(false),
        "40001" if !is_inside => retry(false),
        "55P03" | "55006" | "57014" | "25006" | "XX000" => in_doubt(error),
        _ if matches!(class, "08" | "40" | "53" | "58") => in_doubt(error),
        // "cached plan must not change result type": the table was altered; the statements have been forgotten.
        "0A000" if error.routine() == Some("RevalidateCachedQuery") => retry(false),
        "42501" if is_missing_grant(error) => {
            let mend = "grant it to the user of the database's URL, or run Headwater as the owner of the tables";
            Error::Setup { what: format!("{context}: {}", text(error)), mend: mend.into() }
        }
        // A tracked table that lost its side table, or a model that names what isn't there.
        "42P01" | "42703" | "42883" | "3F000" if !is_inside => Error::Setup {
            what: format!("{context}: {}", text(error)),
            mend: "`headwater check` says what differs; `headwater track` installs what is missing of change tracking"
                .into(),
        },
        "42P10" | "55000" if is_arbiter(error) => Error::Setup {
            what: format!("{context}: {}", text(error)),
            mend: "give the table a primary key (not deferrable) of the model's key columns".into(),
        },
        _ => match refusal(error, class) {
            Some(refusal) => Error::Refused { refusal, detail: text(error) },
            None => Error::Database { context: context.to_owned(), detail: text(error) },
        },
    }
}

/// What a row is refused with whose reason is the application's code.
const BY_TRIGGER: &str = "a trigger of the database";

/// Raised on purpose by code of the application's: the row is at fault, whatever SQLSTATE it gives. Headwater's own functions don't count.
fn is_raised(error: &DbError) -> bool {
    // The innermost place comes first.
    let place = error.where_().and_then(|place| place.lines().next());
    let is_raise = error.routine() == Some("exec_stmt_raise")
        || matches!(error.file(), Some("plpy_elog.c" | "plperl.c" | "plperl.xs" | "pltcl.c"));
    is_raise && place.is_none_or(|place| !place.contains("headwater."))
}

/// What has nothing to do with the row: it says so by where in the server it comes from, or by its code alone.
fn is_circumstance(error: &DbError) -> bool {
    match error.code().code() {
        "40P01" => error.routine() == Some("DeadLockReport"),
        // A time-out, or a cancellation.
        "57014" | "55P03" => error.routine() == Some("ProcessInterrupts"),
        // A full disk, no memory, no connection, a disk that fails.
        "53100" | "53200" | "53300" | "58030" => true,
        _ => false,
    }
}

/// It may pass, or it may be the row's.
fn in_doubt(error: &DbError) -> Error {
    let refusal = refused_by(RefusalCode::Trigger, "the database fails at it, again and again", error);
    Error::InDoubt { refusal, detail: text(error) }
}

/// "permission denied for table", unlike "new row violates row-level security policy".
fn is_missing_grant(error: &DbError) -> bool {
    matches!(error.routine(), Some("aclcheck_error" | "aclcheck_error_type" | "aclcheck_error_col"))
}

/// What an error says of the table that the statement works on, rather than of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableFault {
    /// A grant is missing.
    Denied,
    /// A relation, a column or a type is not as the statement has it.
    Misfit,
    /// The key has no unique index.
    Keyless,
    /// The key's constraint is deferrable.
    Deferrable,
}

/// The fault of a table that an error tells of. Errors inside the application's functions and of a pooler tell of none.
pub(super) fn table_fault(error: &tokio_postgres::Error) -> Option<TableFault> {
    let error = error.as_db_error().filter(|error| !is_raised(error))?;
    match error.code().code() {
        "42501" if is_missing_grant(error) => Some(TableFault::Denied),
        "42P10" if is_arbiter(error) => Some(TableFault::Keyless),
        "55000" if is_arbiter(error) => Some(TableFault::Deferrable),
        "42P01" | "42703" | "42883" | "3F000" | "42804" | "42846" | "42809" | "428C9"
            if !is_in_application_function(error) =>
        {
            Some(TableFault::Misfit)
        }
        _ => None,
    }
}

/// ON CONFLICT that finds no unique index for the key, or one that is deferrable.
fn is_arbiter(error: &DbError) -> bool {
    matches!(
        error.routine(),
        Some("infer_arbiter_indexes" | "ExecCheckIndexConstraints" | "check_exclusion_or_unique_constraint")
    )
}

/// Raised inside a function (a trigger's, as a rule) that is not Headwater's.
fn is_in_application_function(error: &DbError) -> bool {
    error.where_().is_some_and(|place| !place.contains("headwater."))
}

fn refusal(error: &DbError, class: &str) -> Option<Refusal> {
    let (code, what) = match (class, error.code().code()) {
        (_, "23505") => (RefusalCode::Unique, "unique constraint"),
        (_, "23503") => (RefusalCode::ForeignKey, "foreign key"),
        (_, "23502") => (RefusalCode::NotNull, "not null"),
        (_, "23514") if error.routine() == Some("ExecFindPartition") => {
            (RefusalCode::Check, "no partition of the table takes the row")
        }
        (_, "23514" | "44000") => (RefusalCode::Check, "check constraint"),
        ("23", _) => (RefusalCode::Constraint, "constraint"),
        (_, "22012") => (RefusalCode::Data, "a division by zero"),
        (_, "22001") => (RefusalCode::Data, "a text that is too long for the column's type"),
        (_, "22003") => (RefusalCode::Data, "a number beyond what the column's type holds"),
        (_, "22007" | "22008") => (RefusalCode::Data, "a date or time that the column's type does not have"),
        (_, "22P02") => (
            RefusalCode::Data,
            "a text that the column's type does not read: no label of its enum, no JSON, or the like",
        ),
        ("22", _) | (_, "42804") => (RefusalCode::Data, "a value that the column can't hold"),
        ("54", _) => (RefusalCode::Data, "a value that is too large for the database"),
        (_, "42501") => (RefusalCode::Policy, "a policy of the database"),
        ("P0" | "09" | "27" | "38", _) => (RefusalCode::Trigger, BY_TRIGGER),
        // Whatever the application's own code stumbles over; a defect of the server is no row's fault.
        _ if class != "XX" && is_in_application_function(error) => (RefusalCode::Trigger, BY_TRIGGER),
        _ if !OWN_CLASSES.contains(&class) => (RefusalCode::Trigger, BY_TRIGGER),
        _ => return None,
    };
    Some(refused_by(code, what, error))
}

fn refused_by(code: RefusalCode, what: &str, error: &DbError) -> Refusal {
    let message = match (error.constraint(), error.column()) {
        (Some(constraint), _) => format!("{what} {constraint:?}"),
        (None, Some(column)) => format!("{what}: column {column:?}"),
        (None, None) => what.to_owned(),
    };
    Refusal { code, message }
}

/// The server's whole text, for the log.
fn text(error: &DbError) -> String {
    let mut text = format!("{} (SQLSTATE {})", error.message(), error.code().code());
    for part in [error.detail(), error.hint(), error.where_()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(part);
    }
    text
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
