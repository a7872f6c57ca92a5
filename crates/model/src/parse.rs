//! The model file: TOML in, a checked [`Model`] out, or everything that is wrong with it at once.
//!
//! ```
//! let model = headwater_model::parse::parse(
//!     "flights.toml",
//!     r#"
//!     name = "flights"
//!     version = 1
//!
//!     [partitions.origin]
//!     columns = { origin = "text" }
//!     members = "SELECT origin FROM member WHERE user_name = :s.user"
//!
//!     [tables.flights]
//!     key = ["time_hour", "carrier", "flight"]
//!     partition = "origin"
//!     conflict = "merge(consolidated)"
//!
//!     [tables.flights.columns]
//!     time_hour = "timestamptz not null"
//!     carrier = "text not null"
//!     flight = "int not null"
//!     origin = "text not null"
//!     dep_delay = "real"
//!     "#,
//! )
//! .expect("a valid model");
//! assert_eq!(model.tables[0].key, [0, 1, 2]);
//!
//! let errors = headwater_model::parse::parse("x.toml", "name = \"x\"\nversoin = 1\n").unwrap_err();
//! assert!(errors[0].to_string().starts_with("x.toml:"));
//! ```
//!
//! Reading goes in three rounds over the file's tree, each of which needs what the one before it found: names and columns; keys,
//! partitions, rules; references, and what takes its partition through one. Then tables are put in order, parents first.
//!
//! *Caveats.* A file that is no TOML is told so and looked at no further. Names are compared as they are written; only two that
//! differ by letter case alone are refused, because SQLite takes them for one.

mod error;
mod hint;
mod reader;
mod table;

use toml::de::{DeTable, DeValue};

use crate::validate::{name_fault, through_fault};
use crate::{
    COLUMNS_MAX, Model, OnError, PARTITIONS_MAX, Partition, TABLES_MAX, TablePartition, VALUES_MAX, order, sql,
};

pub use error::ModelError;
pub use hint::{closest, in_plain_words};
pub use reader::describe;

use reader::{Entry, Reader, Section, Span};
use table::{Draft, Through};

/// What a membership query, or that of a value, may ask for.
const PARAMETERS: [&str; 2] = ["s.user", "s.remote_id"];

/// Reads a model file; `file_name` is only for the errors, which come in the file's order.
pub fn parse(file_name: &str, text: &str) -> Result<Model, Vec<ModelError>> {
    let mut reader = Reader::new(file_name, text);
    let (tree, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let message = error.message().trim().replace('\n', ", ");
        let (found, expected) = message.split_once(", expected ").unwrap_or((&message, "TOML"));
        reader.error(error.span().unwrap_or(0..0), format!("the file is not TOML: {found}"), expected);
    }
    let model = if reader.is_clean() { read_model(&mut reader, tree.get_ref()) } else { None };
    reader.finish(model)
}

fn read_model(reader: &mut Reader<'_>, tree: &DeTable<'_>) -> Option<Model> {
    let section =
        reader.section(tree, 0..0, "the model", &["name", "version", "on_error", "values", "partitions", "tables"]);
    let name = reader.required(&section, "name", "name = \"...\"").and_then(|entry| {
        let name = reader.string(&entry)?;
        reader.name("model", &name, &entry.span);
        Some(name)
    });
    let version = reader.required(&section, "version", "version = 1").and_then(|entry| read_version(reader, &entry));
    let on_error = section.entry("on_error").map(|entry| read_on_error(reader, &entry)).unwrap_or_default();
    let values = read_values(reader, &section);
    let partitions = read_partitions(reader, &section);
    let tables = read_tables(reader, &section, &partitions);
    Some(Model { name: name?, version: version?, on_error, values, partitions, tables, unenforced: Vec::new() })
}

fn read_version(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Option<u32> {
    let number = match entry.value.get_ref() {
        DeValue::Integer(number) => u32::from_str_radix(number.as_str(), number.radix()).ok().filter(|n| *n > 0),
        _ => None,
    };
    if number.is_none() {
        let found = format!("version is {}", reader::describe(entry.value.get_ref()));
        reader.error(entry.span.clone(), found, "a whole number from 1 to 4294967295");
    }
    number
}

fn read_on_error(reader: &mut Reader<'_>, entry: &Entry<'_>) -> OnError {
    match reader.string(entry).as_deref() {
        Some("set_aside") | None => OnError::SetAside,
        Some("reject") => OnError::Reject,
        Some(other) => {
            reader.error(entry.span.clone(), format!("on_error is {other:?}"), "\"set_aside\" or \"reject\"");
            OnError::SetAside
        }
    }
}

fn read_values(reader: &mut Reader<'_>, model: &Section<'_>) -> Vec<(String, String)> {
    let entries = reader.entries_of(model, "values");
    reader.names("value", &entries);
    reader.limit("the model", "values", entries.iter().map(|entry| &entry.span), VALUES_MAX);
    let read = |entry: &Entry<'_>| {
        let query = reader.string(entry)?;
        check_query(reader, entry.name, &query, &entry.span, "a SELECT of one value");
        Some((entry.name.to_owned(), query))
    };
    entries.iter().filter_map(read).collect()
}

fn read_partitions(reader: &mut Reader<'_>, model: &Section<'_>) -> Vec<Partition> {
    let entries = reader.entries_of(model, "partitions");
    reader.names("partition", &entries);
    reader.limit("the model", "partitions", entries.iter().map(|entry| &entry.span), PARTITIONS_MAX);
    entries.iter().map(|entry| read_partition(reader, entry)).collect()
}

/// Always gives a partition, so that the tables that name it are checked against as much as is known.
fn read_partition(reader: &mut Reader<'_>, entry: &Entry<'_>) -> Partition {
    let what = format!("partition {:?}", entry.name);
    let mut partition = Partition { name: entry.name.to_owned(), columns: Vec::new(), members: String::new() };
    let Some(section) = reader.section_at(entry, &what, &["columns", "members"]) else {
        return partition;
    };
    if let Some(columns) = reader.required(&section, "columns", "columns = { region = \"text\" }") {
        let columns = reader.entries(&columns);
        reader.names("column", &columns);
        reader.limit(&what, "columns", columns.iter().map(|entry| &entry.span), COLUMNS_MAX);
        if columns.is_empty() {
            reader.error(section.span.clone(), format!("{what} has no columns"), "at least one");
        }
        for column in columns {
            let kind = reader.string(&column).and_then(|text| reader.kind(&text, &column.span));
            partition.columns.extend(kind.map(|kind| (column.name.to_owned(), kind)));
        }
    }
    let expected = "members = \"SELECT ... WHERE user_name = :s.user\"";
    if let Some(members) = reader.required(&section, "members", expected)
        && let Some(query) = reader.string(&members)
    {
        check_query(
            reader,
            "members",
            &query,
            &members.span,
            "a SELECT that gives a row for each membership of :s.user",
        );
        partition.members = query;
    }
    partition
}

fn check_query(reader: &mut Reader<'_>, name: &str, query: &str, span: &Span, expected: &str) {
    if query.trim().is_empty() {
        reader.error(span.clone(), format!("{name} is empty"), expected);
    }
    for parameter in sql::parameters(query) {
        if !parameter.name.strip_prefix(':').is_some_and(|name| PARAMETERS.contains(&name)) {
            let found = format!("{name} has the parameter {}", parameter.name);
            reader.error(span.clone(), found, ":s.user or :s.remote_id");
        }
    }
    if sql::is_several_statements(query) {
        reader.error(span.clone(), format!("{name} has a semicolon"), "one SELECT without a semicolon");
    }
}

fn read_tables(reader: &mut Reader<'_>, model: &Section<'_>, partitions: &[Partition]) -> Vec<crate::Table> {
    let entries = reader.entries_of(model, "tables");
    reader.names("table", &entries);
    reader.limit("the model", "tables", entries.iter().map(|entry| &entry.span), TABLES_MAX);
    if entries.is_empty() {
        reader.error(model.span.clone(), "the model has no tables", "[tables.NAME] with columns and a key");
    }
    let drafts: Vec<_> = entries.iter().map(|entry| Draft::read(reader, entry)).collect();
    let mut tables: Vec<_> = drafts.iter().map(|draft| draft.resolve(reader, partitions)).collect();
    let references: Vec<_> = drafts.iter().map(|draft| draft.references(reader, &tables)).collect();
    for (table, references) in tables.iter_mut().zip(references) {
        table.references = references;
    }
    let throughs: Vec<_> =
        drafts.iter().zip(&tables).map(|(draft, table)| draft.through(reader, &table.references, &tables)).collect();
    resolve_throughs(reader, &mut tables, &throughs);
    drafts.iter().zip(&tables).for_each(|(draft, table)| draft.check_sum(reader, table));
    order::sort(&mut tables);
    tables
}

/// Gives tables that take their partition from another the way of partitioning that it has.
fn resolve_throughs(reader: &mut Reader<'_>, tables: &mut [crate::Table], throughs: &[Option<Through>]) {
    let parent = |table: usize, tables: &[crate::Table]| {
        throughs[table].as_ref().map(|through| tables[table].references[through.reference].table)
    };
    for (place, through) in throughs.iter().enumerate() {
        let Some(through) = through else { continue };
        let mut root = place;
        for _ in 0..tables.len() {
            root = parent(root, tables).unwrap_or(root);
        }
        let name = &tables[place].name;
        if parent(root, tables).is_some() {
            let found = format!("table {name:?} takes its partition from itself, by way of others or not");
            reader.error(through.span.clone(), found, "a table that has a partition of its own at the end");
        } else if let Some(partition) = tables[root].partition.as_ref().map(|partition| partition.partition) {
            let through = Some(through.reference);
            tables[place].partition = Some(TablePartition { partition, columns: Vec::new(), through });
        } else {
            let found = format!("table {name:?} takes its partition from {:?}, which has none", tables[root].name);
            reader.error(through.span.clone(), found, format!("partition = ... under [tables.{}]", tables[root].name));
        }
    }
    for (place, through) in throughs.iter().enumerate() {
        if let Some(through) = through
            && let Some(fault) = through_fault(tables, &tables[place])
        {
            reader.error(
                through.span.clone(),
                format!("table {:?}: {}", tables[place].name, fault.found),
                fault.expected,
            );
        }
    }
}

impl Reader<'_> {
    /// Checks the names of partitions, tables or columns: usable, and distinct in a remote.
    fn names(&mut self, what: &str, entries: &[Entry<'_>]) {
        let mut seen = std::collections::HashMap::new();
        for entry in entries {
            self.name(what, entry.name, &entry.key_span);
            if let Some(first) = seen.insert(entry.name.to_ascii_lowercase(), entry.name) {
                let found = format!("{what} {:?} has the name of {what} {first:?} in other case", entry.name);
                self.error(entry.key_span.clone(), found, "names that differ by more than case, which SQLite ignores");
            }
        }
    }

    fn name(&mut self, what: &str, name: &str, span: &Span) {
        if let Some(fault) = name_fault(name) {
            self.error(span.clone(), format!("{what} name {name:?} {fault}"), "another name");
        }
    }
}
