//! Scripts: SQL of the user's own that takes the place of a generated step.
//!
//! A script's text lies in a file of its own, beside the model's; [`Model::load_scripts`] has it read by whoever may read files. It never
//! leaves the server. What it asks for by name is found here, and every word that is none of the known ones is told.
//!
//! ```
//! use headwater_model::script::Step;
//!
//! let mut model = headwater_model::parse::parse("m.toml", r#"
//!     name = "shop"
//!     version = 1
//!     [tables.item]
//!     key = ["id"]
//!     columns = { id = "int not null", name = "text" }
//!     scripts = { upload_insert = "item_insert.sql" }
//! "#).expect("a model");
//! model.load_scripts(|_| Ok::<_, ()>("INSERT INTO item VALUES (:r.id, :r.nmae);".to_owned())).expect("read");
//! let table = &model.tables[0];
//! assert_eq!(table.script(Step::UploadInsert).map(|script| script.file.as_str()), Some("item_insert.sql"));
//! assert_eq!(table.script_faults()[0].1, "has the parameter :r.nmae, but the table has no column \"nmae\"");
//! ```

use serde::{Deserialize, Serialize};

use crate::{Model, Table, sql};

/// What a script takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Makes a row that a remote has inserted.
    UploadInsert,
    /// Makes a row like a remote's.
    UploadUpdate,
    /// Makes a deletion of a remote's.
    UploadDelete,
    /// Finds the row that is stored under a key.
    UploadFetch,
    /// Finds the rows that a remote has not seen.
    DownloadCursor,
    /// Finds the keys of the rows whose deletion a remote has not seen.
    DownloadDeleteCursor,
    /// Decides what becomes of a row that was changed on both sides.
    ResolveConflict,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 7] = [
        Step::UploadInsert,
        Step::UploadUpdate,
        Step::UploadDelete,
        Step::UploadFetch,
        Step::DownloadCursor,
        Step::DownloadDeleteCursor,
        Step::ResolveConflict,
    ];

    /// Its name in the model file.
    pub fn name(self) -> &'static str {
        match self {
            Step::UploadInsert => "upload_insert",
            Step::UploadUpdate => "upload_update",
            Step::UploadDelete => "upload_delete",
            Step::UploadFetch => "upload_fetch",
            Step::DownloadCursor => "download_cursor",
            Step::DownloadDeleteCursor => "download_delete_cursor",
            Step::ResolveConflict => "resolve_conflict",
        }
    }

    /// Whether it belongs to downloads.
    pub fn is_download(self) -> bool {
        matches!(self, Step::DownloadCursor | Step::DownloadDeleteCursor)
    }

    /// Whether it changes rows; the others only find some.
    fn is_change(self) -> bool {
        matches!(self, Step::UploadInsert | Step::UploadUpdate | Step::UploadDelete)
    }

    /// The images of a row that it may ask for.
    fn images(self) -> &'static [Image] {
        match self {
            Step::UploadInsert | Step::UploadFetch => &[Image::New],
            Step::UploadUpdate => &[Image::New, Image::Old],
            Step::UploadDelete => &[Image::Old],
            Step::DownloadCursor | Step::DownloadDeleteCursor => &[],
            Step::ResolveConflict => &[Image::New, Image::Old, Image::Stored],
        }
    }
}

/// One script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// What it takes the place of.
    pub step: Step,
    /// Its file, as the model names it.
    pub file: String,
    /// Its text, without a semicolon at the end; empty until it is loaded.
    pub sql: String,
}

/// An image of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Image {
    /// `:r.column`: as the remote has made it.
    New,
    /// `:o.column`: as the remote had it before.
    Old,
    /// `:c.column`: as it is stored.
    Stored,
}

/// What a parameter stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parameter {
    /// A column (by its place) of an image.
    Column(Image, usize),
    /// `:s.user`.
    User,
    /// `:s.remote_id`, as the text of a UUID.
    RemoteId,
    /// `:s.last_download`.
    LastDownload,
}

impl Model {
    /// Has the text of every script read; `read` is given the file's name as the model has it. Values of the user's own stand in the
    /// text afterwards, as the queries that give them.
    pub fn load_scripts<E>(&mut self, mut read: impl FnMut(&str) -> Result<String, E>) -> Result<(), E> {
        let Model { values, tables, .. } = self;
        for script in tables.iter_mut().flat_map(|table| &mut table.scripts) {
            let text = read(&script.file)?;
            script.sql = sql::with_parameters(sql::without_last_semicolon(&text), |name| {
                let own = column_name(name, ":u.").and_then(|own| values.iter().find(|(known, _)| *known == own));
                // The query may end in a comment.
                own.map_or_else(|| name.to_owned(), |(_, query)| format!("(\n{query}\n)"))
            });
        }
        Ok(())
    }
}

impl Table {
    /// The script of a step.
    pub fn script(&self, step: Step) -> Option<&Script> {
        self.scripts.iter().find(|script| script.step == step)
    }

    /// Whether any step of an upload has a script.
    pub fn is_uploaded_by_scripts(&self) -> bool {
        self.scripts.iter().any(|script| !script.step.is_download())
    }

    /// What a parameter of a step stands for, by its name with the mark; otherwise what is wrong with it.
    pub fn script_parameter(&self, step: Step, name: &str) -> Result<Parameter, String> {
        let unknown = || format!("has the parameter {name}, expected {}", expected(step));
        let (kind, column) = name.strip_prefix(':').and_then(|name| name.split_once('.')).ok_or_else(unknown)?;
        let image = match (kind, column) {
            ("s", "user") => return Ok(Parameter::User),
            ("s", "remote_id") => return Ok(Parameter::RemoteId),
            ("s", "last_download") if step.is_download() => return Ok(Parameter::LastDownload),
            ("r", _) => Image::New,
            ("o", _) => Image::Old,
            ("c", _) => Image::Stored,
            _ => return Err(unknown()),
        };
        if !step.images().contains(&image) {
            return Err(unknown());
        }
        let column = unquoted(column);
        let place = self
            .columns
            .iter()
            .position(|known| known.name == column)
            .ok_or_else(|| format!("has the parameter {name}, but the table has no column {column:?}"))?;
        if step == Step::UploadFetch && !self.key.contains(&place) {
            return Err(format!("has the parameter {name}, but only the columns of the key are known to it"));
        }
        Ok(Parameter::Column(image, place))
    }

    /// What is wrong with the table's scripts, as far as their text alone tells.
    pub fn script_faults(&self) -> Vec<(Step, String)> {
        let mut faults = Vec::new();
        for script in &self.scripts {
            if sql::is_nothing(&script.sql) {
                faults.push((script.step, "is empty".to_owned()));
            }
            if sql::is_several_statements(&script.sql) {
                faults.push((script.step, "has several statements, expected one".to_owned()));
            }
            faults.extend(statement_fault(script).map(|fault| (script.step, fault)));
            for parameter in sql::parameters(&script.sql) {
                let fault = self.script_parameter(script.step, parameter.name).err();
                faults.extend(fault.map(|fault| (script.step, fault)));
            }
        }
        faults.dedup();
        faults
    }
}

/// A script runs within the transaction of a sync: one that ended it would leave half an upload behind.
fn statement_fault(script: &Script) -> Option<String> {
    const FINDS: [&str; 3] = ["SELECT", "WITH", "VALUES"];
    const CHANGES: [&str; 5] = ["INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"];
    let is_one = |known: &[&str], word: &str| known.iter().any(|known| known.eq_ignore_ascii_case(word));
    let first = sql::words(&script.sql).next()?;
    if script.step.is_change() {
        let is_welcome = is_one(&FINDS, first) || is_one(&CHANGES, first) || is_one(&["CALL"], first);
        return (!is_welcome).then(|| {
            format!(
                "begins with {first}, expected INSERT, UPDATE, DELETE, MERGE, REPLACE, SELECT, WITH, VALUES or CALL"
            )
        });
    }
    if !is_one(&FINDS, first) {
        return Some(format!("begins with {first}, expected SELECT, WITH or VALUES"));
    }
    // Not REPLACE, which is a function as well; a statement can begin with it only.
    let change = sql::words(&script.sql).find(|word| is_one(&CHANGES[..4], word))?;
    Some(format!("has the word {change}, but may only read (a name that is spelled so goes in double quotes)"))
}

/// What stands behind the mark of a parameter that has it, without its quotes.
fn column_name(parameter: &str, mark: &str) -> Option<String> {
    parameter.strip_prefix(mark).map(unquoted)
}

fn unquoted(name: &str) -> String {
    match name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => name.to_owned(),
    }
}

fn expected(step: Step) -> &'static str {
    match step {
        Step::UploadInsert => ":r.COLUMN, :s.user, :s.remote_id or a :u.NAME of [values]",
        Step::UploadFetch => ":r.COLUMN of the key, :s.user, :s.remote_id or a :u.NAME of [values]",
        Step::UploadUpdate => ":r.COLUMN, :o.COLUMN, :s.user, :s.remote_id or a :u.NAME of [values]",
        Step::UploadDelete => ":o.COLUMN, :s.user, :s.remote_id or a :u.NAME of [values]",
        Step::DownloadCursor | Step::DownloadDeleteCursor => {
            ":s.last_download, :s.user, :s.remote_id or a :u.NAME of [values]"
        }
        Step::ResolveConflict => ":r.COLUMN, :o.COLUMN, :c.COLUMN, :s.user, :s.remote_id or a :u.NAME of [values]",
    }
}
