//! Keys that a column's affinity would change.
//!
//! A remote tells rows apart by the bytes of their keys, and keeps a key as it was written. Where the file would store another value, the
//! row would come down as a second one, so such a key is refused before anything is stored:
//!
//! | declared | a remote's key | the file stores |
//! |---|---|---|
//! | DATETIME | the text `'1767225600'` | the integer 1767225600 |
//! | DATETIME | the real 800.0 | the integer 800 |
//! | DECIMAL(10,2) | the text `'7.50'` | the real 7.5 |
//! | TEXT, in the model a `date` | the integer 5 | the text `'5'` |
//!
//! SQLite itself says what it would store: a temporary table has a column of each affinity.

use headwater_protocol::message::RefusalCode;
use headwater_protocol::stored::{Scratch, Stored, decode, encode};
use headwater_protocol::{Row, Type, Value};

use super::connection::SqliteConnection;
use super::equality;
use super::error::{refusal, sort};
use super::plain::Affinity;
use super::values::{bind, stored};
use crate::keys::write_so;
use crate::{Error, TablePlan};

/// The table in which values take the form that a column would give them.
pub(super) const FORMS: &str = "
    CREATE TEMP TABLE headwater_key_form (as_text TEXT, as_real REAL, as_numeric NUMERIC);
    INSERT INTO temp.headwater_key_form DEFAULT VALUES";
/// The most characters of a value in a message.
const SHOWN_MAX: usize = 100;

/// Refuses new rows if one of them has a key that the table would not store as it is.
pub(super) fn check(connection: &SqliteConnection, table: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
    for place in &table.table.key {
        let Some(column) = table.table.columns.get(*place) else { continue };
        let affinity = equality::affinity(connection, &table.table.name, &column.name)?;
        for value in rows.iter().filter_map(|row| row.get(*place)) {
            if let Some(form) = other_form(connection, affinity, value, column.kind.base)? {
                let given = described(encode(value.as_ref(), &mut Scratch::default()));
                let text = write_so(&column.name, &given, &form);
                return Err(refusal(RefusalCode::Data, &text, format!("affinity of table {}", table.table.name)));
            }
        }
    }
    Ok(())
}

/// What is stored instead of a value, if it would come back as another.
fn other_form(
    connection: &SqliteConnection,
    affinity: Affinity,
    value: &Value,
    kind: Type,
) -> Result<Option<String>, Error> {
    let given = &mut Scratch::default();
    let sql = match (affinity, encode(value.as_ref(), given)) {
        (Affinity::Text, Stored::Integer(_) | Stored::Real(_)) => {
            "UPDATE temp.headwater_key_form SET as_text = ?1 RETURNING as_text"
        }
        (Affinity::Integer | Affinity::Numeric, Stored::Text(_) | Stored::Real(_)) => {
            "UPDATE temp.headwater_key_form SET as_numeric = ?1 RETURNING as_numeric"
        }
        (Affinity::Real, Stored::Text(_) | Stored::Integer(_)) => {
            "UPDATE temp.headwater_key_form SET as_real = ?1 RETURNING as_real"
        }
        _ => return Ok(None),
    };
    let mut statement = connection.prepare(sql)?;
    bind(&mut statement, 1, value.as_ref(), given)?;
    let mut rows = statement.raw_query();
    let Some(row) = rows.next().map_err(|error| sort(error, sql))? else { return Ok(None) };
    let form = stored(row, 0)?;
    let is_same = decode(form, kind, given).to_value() == *value;
    Ok((!is_same).then(|| described(form)))
}

fn described(stored: Stored<'_>) -> String {
    let shown = match stored {
        Stored::Null => "NULL".to_owned(),
        Stored::Integer(number) => format!("the integer {number}"),
        Stored::Real(real) => format!("the real {real:?}"),
        Stored::Text(text) => format!("the text '{}", String::from_utf8_lossy(text)),
        Stored::Blob(bytes) => format!("{} bytes", bytes.len()),
    };
    let end = if matches!(stored, Stored::Text(_)) { "'" } else { "" };
    shown.chars().take(SHOWN_MAX).chain(end.chars()).collect()
}
