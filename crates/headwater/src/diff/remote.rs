//! A remote's file, read as any SQLite program would.

use std::path::Path;

use anyhow::{Context as _, Result};
use headwater_model::sql::quote;
use headwater_model::{Direction, Model, Table};
use headwater_protocol::Type;
use headwater_protocol::row::read_row;
use headwater_protocol::stored::{Scratch, Stored, encode};
use headwater_protocol::wire::Reader;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _};

use super::sqlite::{columns, failed, open_snapshot, read};
use super::value::Value;
use super::{Pending, Source};

/// A remote's file, in one snapshot.
pub struct RemoteFile {
    file: Connection,
    /// The user that it synchronizes as.
    pub user: String,
    /// Its remote ID, as a UUID's text.
    pub remote_id: String,
    /// Its model, in the public form.
    pub model: Model,
    /// The fingerprint of the model as the server has it, which may have references that the remote does not enforce.
    pub fingerprint: u64,
}

impl RemoteFile {
    /// Opens a file that `headwater remote create` made.
    pub fn open(path: &Path) -> Result<RemoteFile> {
        if path.metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            anyhow::bail!("there is no file {}; `headwater remote create` makes a remote", path.display());
        }
        let file = open_snapshot(path)?;
        let failed = |error| failed(path, error);
        let no_remote = || format!("{} is no remote; `headwater remote create` makes one from a model", path.display());
        let state = "SELECT 1 FROM sqlite_schema WHERE name = 'hw_state'";
        let exists: Option<i64> = file.query_row(state, [], |row| row.get(0)).optional().map_err(failed)?;
        exists.with_context(no_remote)?;
        let state = "SELECT \"user\", \"remote_id\", \"model\", \"fingerprint\" FROM \"hw_state\"";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, i64>(3)?));
        let (user, id, model, fingerprint): (String, Vec<u8>, String, i64) = file
            .query_row(state, [], read)
            .map_err(failed)
            .with_context(|| format!("the state of {}", path.display()))?;
        let id = uuid::Uuid::from_slice(&id).with_context(|| format!("the remote ID in {}", path.display()))?;
        let remote_id = id.to_string();
        let model = Model::from_json(&model).with_context(|| format!("the model in {}", path.display()))?;
        Ok(RemoteFile { file, user, remote_id, model, fingerprint: fingerprint.cast_unsigned() })
    }

    fn failed(&self, error: rusqlite::Error) -> anyhow::Error {
        failed(Path::new(self.file.path().unwrap_or_default()), error)
    }

    /// The columns, by their places, that make texts of numbers although a head may have a number there: files of older versions declare
    /// `TIMESTAMP_TEXT` where new ones declare `TIMESTAMP_BLOB`.
    pub(super) fn text_columns(&self, table: &Table) -> Result<Vec<usize>> {
        let mut places = Vec::new();
        for (place, column) in table.columns.iter().enumerate() {
            if matches!(column.kind.base, Type::Text | Type::Decimal) {
                continue;
            }
            let metadata = self.file.column_metadata(Some("main"), table.name.as_str(), column.name.as_str());
            let (declared, ..) = metadata.map_err(|error| self.failed(error))?;
            let declared = declared.map(|declared| declared.to_string_lossy().to_ascii_uppercase()).unwrap_or_default();
            let is_text =
                ["CHAR", "CLOB", "TEXT"].iter().any(|word| declared.contains(word)) && !declared.contains("INT");
            places.extend(is_text.then_some(place));
        }
        Ok(places)
    }

    /// Makes of the numbers in these columns what the file makes of them.
    pub(super) fn keep_as_texts(&self, row: &mut [Value], places: &[usize]) -> Result<()> {
        for place in places {
            let Some(value) = row.get_mut(*place) else { continue };
            let text: String = match value {
                Value::Int(number) => number.to_string(),
                Value::Real(bits) => {
                    self.file.query_row("SELECT CAST(?1 AS TEXT)", [f64::from_bits(*bits)], |row| row.get(0))?
                }
                _ => continue,
            };
            *value = Value::Text(text.into_bytes());
        }
        Ok(())
    }

    /// Calls `each` with the key of every row that has a local change not yet received by the server, or set aside.
    pub(super) fn pending(&self, table: &Table, each: &mut dyn FnMut(Vec<Value>, Pending) -> Result<()>) -> Result<()> {
        if table.direction == Direction::Download {
            return Ok(());
        }
        if table.direction == Direction::Upload {
            self.perhaps_unsent(table, each)?;
        }
        let keys: Vec<_> = table.key_columns().map(|column| quote(&format!("k_{}", column.name))).collect();
        let log = quote(&format!("hw_log_{}", table.name));
        let sql = format!("SELECT \"aside\", {} FROM {log} ORDER BY \"upload\" DESC", keys.join(", "));
        let failed = |error| self.failed(error);
        let mut statement = self.file.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let pending = if row.get::<_, i64>(0)? == 0 { Pending::Waiting } else { Pending::SetAside };
            let value = |(place, column): (usize, &headwater_model::Column)| {
                Ok::<_, rusqlite::Error>(Value::from_sqlite(row.get_ref(place + 1)?, column.kind.base))
            };
            each(table.key_columns().enumerate().map(value).collect::<Result<_, _>>()?, pending)?;
        }
        Ok(())
    }

    /// Rows of a table that only goes up may be on the list without a change in the log: nobody knows whether they have gone up.
    fn perhaps_unsent(&self, table: &Table, each: &mut dyn FnMut(Vec<Value>, Pending) -> Result<()>) -> Result<()> {
        let types: Vec<Type> = table.key_columns().map(|column| column.kind.base).collect();
        let sql = "SELECT \"key\" FROM \"hw_set_aside\" WHERE \"name\" = ? AND \"in_place\" = 0";
        let failed = |error| self.failed(error);
        let mut statement = self.file.prepare(sql).map_err(failed)?;
        let mut notes = statement.query([&table.name]).map_err(failed)?;
        while let Some(note) = notes.next().map_err(failed)? {
            let key = read_row(&mut Reader::new(note.get_ref(0)?.as_blob()?), &types, usize::MAX, None)?;
            let value = |(value, base): (&headwater_protocol::Value, &Type)| {
                let mut scratch = Scratch::default();
                let stored = match encode(value.as_ref(), &mut scratch) {
                    Stored::Null => ValueRef::Null,
                    Stored::Integer(number) => ValueRef::Integer(number),
                    Stored::Real(real) => ValueRef::Real(real),
                    Stored::Text(text) => ValueRef::Text(text),
                    Stored::Blob(bytes) => ValueRef::Blob(bytes),
                };
                Value::from_sqlite(stored, *base)
            };
            each(key.iter().zip(&types).map(value).collect(), Pending::SetAside)?;
        }
        Ok(())
    }
}

impl Source for RemoteFile {
    fn rows(&mut self, table: &Table, each: &mut dyn FnMut(Vec<Value>) -> Result<()>) -> Result<()> {
        let sql = format!("SELECT {} FROM {} AS t", columns(table), quote(&table.name));
        read(&self.file, table, &sql, [], each)
    }
}
