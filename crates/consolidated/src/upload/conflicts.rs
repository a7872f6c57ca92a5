//! Puts conflicts on record.

use headwater_protocol::message::ConflictEnd;
use headwater_protocol::{Row, Value};

use super::UploadRequest;
use super::batch::Conflict;
use crate::images::{image, key_image};
use crate::system::dialect_sql;
use crate::{Connection, Error, TablePlan};

const COLUMNS: &str =
    "remote_id, user_name, table_name, row_key, old_image, uploaded_image, stored_image, outcome, result_image";
const COLUMN_COUNT: usize = 9;
/// Rows of one INSERT; few enough that the statements for fewer rows, which differ, are few.
const ROWS_AT_ONCE: usize = 20;

/// Writes the records of conflicts.
pub(super) fn write(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    conflicts: &[Conflict],
) -> Result<(), Error> {
    for some in conflicts.chunks(ROWS_AT_ONCE) {
        let rows: Vec<String> = (0..some.len()).map(placeholders).collect();
        let sql = format!("INSERT INTO {{hw}}conflict ({COLUMNS}) VALUES {}", rows.join(", "));
        let values: Vec<Value> = some.iter().flat_map(|conflict| record(request, conflict)).collect();
        connection.execute(&dialect_sql(connection.dialect(), &sql), &values)?;
    }
    Ok(())
}

fn placeholders(row: usize) -> String {
    let places: Vec<String> = (1..=COLUMN_COUNT).map(|column| format!("?{}", row * COLUMN_COUNT + column)).collect();
    format!("({})", places.join(", "))
}

fn record(request: &UploadRequest<'_>, conflict: &Conflict) -> [Value; COLUMN_COUNT] {
    let table = &request.plan.tables[conflict.table];
    [
        Value::Bytes(request.remote_id.to_vec()),
        Value::text(request.user),
        Value::text(table.table.name.as_str()),
        Value::text(key_image(table, &conflict.key)),
        text_of(table, conflict.old.as_ref()),
        text_of(table, conflict.uploaded.as_ref()),
        text_of(table, conflict.stored.as_ref()),
        Value::text(end_name(conflict.end)),
        text_of(table, conflict.result.as_ref()),
    ]
}

fn text_of(table: &TablePlan, row: Option<&Row>) -> Value {
    row.map_or(Value::Null, |row| Value::text(image(table, row)))
}

fn end_name(end: ConflictEnd) -> &'static str {
    match end {
        ConflictEnd::Consolidated => "consolidated",
        ConflictEnd::Remote => "remote",
        ConflictEnd::Merged => "merged",
    }
}
