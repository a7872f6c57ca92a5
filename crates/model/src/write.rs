//! A model as a file: what `headwater init` writes, with comments.
//!
//! Everything is written out, defaults too, so that the file shows what may be said. `parse` reads the same model back.
//!
//! ```
//! # let text = "name='x'\nversion=1\n[tables.t]\nkey=['a']\ncolumns={a='int not null'}";
//! # let model = headwater_model::parse::parse("x", text).unwrap();
//! use headwater_model::write::{Comments, to_toml};
//! let text = to_toml(&model, &Comments::default());
//! assert_eq!(headwater_model::parse::parse("model.toml", &text), Ok(model));
//! ```
//!
//! *Caveats.* The tables of a model that was not read from a file may be in another order after they are read back: parents first.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::{Column, ConflictRule, Direction, Model, OnDelete, OnError, Partition, Reference, Side, Table};

/// What to say in the file beside the model; each may have several lines.
#[derive(Clone, Debug, Default)]
pub struct Comments {
    /// At the top.
    pub head: String,
    /// Above partitions, by name.
    pub partitions: BTreeMap<String, String>,
    /// Above tables, by name.
    pub tables: BTreeMap<String, String>,
    /// Above columns, by names of table and column.
    pub columns: BTreeMap<(String, String), String>,
    /// Columns that are written as comments after those of their table, by its name, each with why.
    pub columns_left_out: Vec<(String, Column, String)>,
    /// Tables that are written as comments after the others, each with why. Their references count the model's tables.
    pub tables_left_out: Vec<(Table, String)>,
    /// At the end.
    pub tail: String,
}

/// The model's file.
pub fn to_toml(model: &Model, comments: &Comments) -> String {
    let mut file = File(String::new());
    file.comment(&comments.head);
    file.line(format_args!("name = {}", string(&model.name)));
    file.line(format_args!("version = {}", model.version));
    if model.on_error == OnError::Reject {
        file.line(format_args!("on_error = \"reject\""));
    }
    if !model.values.is_empty() {
        file.line(format_args!(""));
        file.line(format_args!("[values]"));
        for (name, query) in &model.values {
            file.line(format_args!("{} = {}", key(name), text(query)));
        }
    }
    for partition in &model.partitions {
        file.line(format_args!(""));
        file.comment(comments.partitions.get(&partition.name).map_or("", String::as_str));
        file.partition(partition);
    }
    for table in &model.tables {
        file.line(format_args!(""));
        file.comment(comments.tables.get(&table.name).map_or("", String::as_str));
        file.table(model, table, comments);
    }
    for (table, why) in &comments.tables_left_out {
        let mut block = File(String::new());
        block.table(model, table, &Comments::default());
        file.line(format_args!(""));
        file.comment(why);
        file.comment(&block.0);
    }
    if !comments.tail.is_empty() {
        file.line(format_args!(""));
        file.comment(&comments.tail);
    }
    file.0
}

struct File(String);

impl File {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a String takes any text");
    }

    fn comment(&mut self, text: &str) {
        for line in text.lines() {
            // A comment may hold no control character but the tab.
            let line: String = line.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
            self.line(format_args!("{}", format!("# {line}").trim_end()));
        }
    }

    fn partition(&mut self, partition: &Partition) {
        let columns = partition.columns.iter().map(|(name, kind)| format!("{} = \"{kind}\"", key(name)));
        self.line(format_args!("[partitions.{}]", key(&partition.name)));
        self.line(format_args!("columns = {{ {} }}", columns.collect::<Vec<_>>().join(", ")));
        self.line(format_args!("members = {}", text(&partition.members)));
    }

    fn table(&mut self, model: &Model, table: &Table, comments: &Comments) {
        self.line(format_args!("[tables.{}]", key(&table.name)));
        if let Some(schema) = &table.schema {
            self.line(format_args!("schema = {}", string(schema)));
        }
        self.line(format_args!("direction = \"{}\"", table.direction));
        self.line(format_args!("conflict = {}", conflict(table)));
        self.line(format_args!("key = {}", names(table, &table.key)));
        if let Some(rule) = table.key_range {
            self.line(format_args!("key_range = {{ size = {}, from = {} }}", rule.size, rule.from));
        }
        self.table_partition(model, table);
        if table.shared {
            self.line(format_args!("shared = true"));
        }
        self.references(model, table);
        if !table.unique.is_empty() {
            let unique: Vec<_> = table.unique.iter().map(|columns| names(table, columns)).collect();
            self.line(format_args!("unique = [{}]", unique.join(", ")));
        }
        if !table.scripts.is_empty() {
            let files = table.scripts.iter().map(|script| format!("{} = {}", script.step.name(), string(&script.file)));
            self.line(format_args!("scripts = {{ {} }}", files.collect::<Vec<_>>().join(", ")));
        }
        self.line(format_args!(""));
        self.line(format_args!("[tables.{}.columns]", key(&table.name)));
        for column in &table.columns {
            let place = (table.name.clone(), column.name.clone());
            self.comment(comments.columns.get(&place).map_or("", String::as_str));
            self.line(format_args!("{} = \"{}\"", key(&column.name), column_type(column)));
        }
        for (_, column, why) in comments.columns_left_out.iter().filter(|(name, ..)| *name == table.name) {
            self.comment(why);
            self.comment(&format!("{} = \"{}\"", key(&column.name), column_type(column)));
        }
    }

    fn table_partition(&mut self, model: &Model, table: &Table) {
        let Some(place) = &table.partition else {
            return;
        };
        let Some(partition) = model.partitions.get(place.partition) else {
            return;
        };
        if let Some(reference) = table.through() {
            self.through(model, table, reference);
            return;
        }
        let same = partition.columns.iter().map(|(name, _)| name).eq(table.partition_columns().map(|c| &c.name));
        let name = string(&partition.name);
        if same {
            self.line(format_args!("partition = {name}"));
        } else {
            self.line(format_args!("partition = {{ name = {name}, columns = {} }}", names(table, &place.columns)));
        }
    }

    fn through(&mut self, model: &Model, table: &Table, reference: &Reference) {
        let Some(parent) = model.tables.get(reference.table) else {
            return;
        };
        let is_only = table.references.iter().filter(|other| other.table == reference.table).count() == 1;
        let by = if is_only { String::new() } else { format!(", by = {}", names(table, &reference.columns)) };
        self.line(format_args!("partition = {{ through = {}{by} }}", string(&parent.name)));
    }

    fn references(&mut self, model: &Model, table: &Table) {
        if table.references.is_empty() {
            return;
        }
        self.line(format_args!("references = ["));
        for reference in &table.references {
            if let Some(line) = reference_line(model, table, reference) {
                self.line(format_args!("    {line},"));
            }
        }
        self.line(format_args!("]"));
    }
}

fn reference_line(model: &Model, table: &Table, reference: &Reference) -> Option<String> {
    let parent = model.tables.get(reference.table)?;
    let (columns, target) = (names(table, &reference.columns), names(parent, &reference.target));
    let on_delete = match reference.on_delete {
        OnDelete::NoAction => "",
        OnDelete::Cascade => ", on_delete = \"cascade\"",
        OnDelete::SetNull => ", on_delete = \"set null\"",
    };
    Some(format!("{{ columns = {columns}, table = {}, target = {target}{on_delete} }}", string(&parent.name)))
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Direction::Both => "both",
            Direction::Download => "download",
            Direction::Upload => "upload",
        })
    }
}

fn conflict(table: &Table) -> String {
    let side = |side| if side == Side::Consolidated { "consolidated" } else { "remote" };
    string(&match table.conflict {
        ConflictRule::Off => "off".to_owned(),
        ConflictRule::ConsolidatedWins => "consolidated_wins".to_owned(),
        ConflictRule::RemoteWins => "remote_wins".to_owned(),
        ConflictRule::NewerWins(place) => {
            format!("newer_wins({})", table.columns.get(place).map_or("", |column| column.name.as_str()))
        }
        ConflictRule::Merge(named) if table.sum.is_empty() => format!("merge({})", side(named)),
        ConflictRule::Merge(named) => {
            return format!("{{ merge = {}, sum = {} }}", string(side(named)), names(table, &table.sum));
        }
    })
}

fn column_type(column: &Column) -> String {
    format!("{}{}", column.kind, if column.nullable { "" } else { " not null" })
}

fn names(table: &Table, places: &[usize]) -> String {
    let names = places.iter().filter_map(|&place| table.columns.get(place)).map(|column| string(&column.name));
    format!("[{}]", names.collect::<Vec<_>>().join(", "))
}

/// A key: bare where TOML allows it.
fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare { name.to_owned() } else { string(name) }
}

/// A string on one line.
fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        escape(&mut out, c);
    }
    out.push('"');
    out
}

/// A string that keeps its lines.
fn text(text: &str) -> String {
    if !text.contains('\n') {
        return string(text);
    }
    let mut out = String::from("\"\"\"\n");
    for c in text.chars() {
        if c == '\n' { out.push(c) } else { escape(&mut out, c) }
    }
    out.push_str("\"\"\"");
    out
}

fn escape(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\t' => out.push_str("\\t"),
        c if c.is_control() => write!(out, "\\u{:04X}", u32::from(c)).expect("a String takes any text"),
        c => out.push(c),
    }
}
