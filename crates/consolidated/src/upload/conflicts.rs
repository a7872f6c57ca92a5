//! Puts conflicts on record.

use headwater_protocol::Value;
use headwater_protocol::message::ConflictEnd;

use super::UploadRequest;
use super::batch::Conflict;
use crate::images::{image, key_image};
use crate::system::{dialect_sql, integer};
use crate::{Connection, Error};

const COLUMNS: [&str; 9] = [
    "remote_id",
    "user_name",
    "table_name",
    "row_key",
    "outcome",
    "old_image",
    "uploaded_image",
    "stored_image",
    "result_image",
];
/// The images are the last of them.
const IMAGES: usize = 4;
/// Rows of one INSERT; few enough that the statements for fewer rows, which differ, are few.
const ROWS_AT_ONCE: usize = 20;
/// The images of a conflict with longer values are written one by one: together they may be more than a statement can have.
const LARGE_BYTES: usize = 4 << 20;

/// Writes the records of conflicts.
pub(super) fn write(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    conflicts: &[Conflict],
) -> Result<(), Error> {
    let (large, usual): (Vec<_>, Vec<_>) = conflicts.iter().partition(|conflict| is_large(conflict));
    for some in usual.chunks(ROWS_AT_ONCE) {
        let rows: Vec<String> = (0..some.len()).map(|row| placeholders(row * COLUMNS.len(), COLUMNS.len())).collect();
        let sql = format!("INSERT INTO {{hw}}conflict ({}) VALUES {}", COLUMNS.join(", "), rows.join(", "));
        let images =
            |conflict: &Conflict| (0..IMAGES).map(|place| image_of(request, conflict, place)).collect::<Vec<_>>();
        let values: Vec<Value> =
            some.iter().flat_map(|conflict| [head(request, conflict).to_vec(), images(conflict)]).flatten().collect();
        connection.execute(&dialect_sql(connection.dialect(), &sql), &values)?;
    }
    large.into_iter().try_for_each(|conflict| write_large(connection, request, conflict))
}

fn write_large(connection: &mut dyn Connection, request: &UploadRequest<'_>, conflict: &Conflict) -> Result<(), Error> {
    let (head_columns, image_columns) = COLUMNS.split_at(COLUMNS.len() - IMAGES);
    let (columns, places) = (head_columns.join(", "), placeholders(0, head_columns.len()));
    let sql = format!("INSERT INTO {{hw}}conflict ({columns}) VALUES {places} RETURNING id");
    let made = connection.query(&dialect_sql(connection.dialect(), &sql), &head(request, conflict))?;
    let id = integer(made.first().and_then(|row| row.first()), "id")?;
    for (place, column) in image_columns.iter().enumerate() {
        let sql = format!("UPDATE {{hw}}conflict SET {column} = ?2 WHERE id = ?1");
        let values = [Value::Int(id), image_of(request, conflict, place)];
        connection.execute(&dialect_sql(connection.dialect(), &sql), &values)?;
    }
    Ok(())
}

fn is_large(conflict: &Conflict) -> bool {
    let Conflict { old, uploaded, stored, result, .. } = conflict;
    let bytes = |value: &Value| match value {
        Value::Text(bytes) | Value::Bytes(bytes) | Value::Json(bytes) => bytes.len(),
        _ => 0,
    };
    [old, uploaded, stored, result].into_iter().flatten().flatten().map(bytes).sum::<usize>() > LARGE_BYTES
}

fn placeholders(first: usize, count: usize) -> String {
    let places: Vec<String> = (1..=count).map(|column| format!("?{}", first + column)).collect();
    format!("({})", places.join(", "))
}

fn head(request: &UploadRequest<'_>, conflict: &Conflict) -> [Value; COLUMNS.len() - IMAGES] {
    let table = &request.plan.tables[conflict.table];
    [
        Value::Bytes(request.remote_id.to_vec()),
        Value::text(request.user),
        Value::text(table.table.name.as_str()),
        Value::text(key_image(table, &conflict.key)),
        Value::text(end_name(conflict.end)),
    ]
}

/// The image in one of the last columns.
fn image_of(request: &UploadRequest<'_>, conflict: &Conflict, place: usize) -> Value {
    let Conflict { old, uploaded, stored, result, .. } = conflict;
    let row = [old, uploaded, stored, result][place].as_ref();
    row.map_or(Value::Null, |row| Value::text(image(&request.plan.tables[conflict.table], row)))
}

fn end_name(end: ConflictEnd) -> &'static str {
    match end {
        ConflictEnd::Consolidated => "consolidated",
        ConflictEnd::Remote => "remote",
        ConflictEnd::Merged => "merged",
    }
}
