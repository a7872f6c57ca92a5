//! `flights sql`: runs SQL on a SQLite file, as any program might, for machines that have no `sqlite3`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

/// Runs one statement; prints the rows that it gives, or how many it changed.
#[expect(clippy::print_stdout, reason = "the command's result")]
pub(crate) fn run(file: &Path, sql: &str) -> Result<()> {
    anyhow::ensure!(file.exists(), "there is no file {}", file.display());
    let database = Connection::open(file).with_context(|| format!("opening {}", file.display()))?;
    database.busy_timeout(Duration::from_secs(30))?;
    database.pragma_update(None, "foreign_keys", true)?;
    let mut statement = database.prepare(sql)?;
    if statement.column_count() == 0 {
        println!("rows changed: {}", statement.execute([])?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(statement.column_names());
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let cells = (0..columns).map(|place| Ok(text(row.get_ref(place)?))).collect::<rusqlite::Result<Vec<_>>>()?;
        table.add_row(cells);
    }
    println!("{table}");
    Ok(())
}

fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => format!("({} bytes)", bytes.len()),
    }
}
