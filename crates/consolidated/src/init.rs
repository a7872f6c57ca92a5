//! A first model from what the database has: every table that can travel, with what was left out and why.

mod secrets;

use headwater_model::validate::{Violation, name_fault, violations};
use headwater_model::{COLUMNS_MAX, Column, ConflictRule, Direction, Model, OnDelete, Reference, Table};

use crate::catalogue::{Catalogue, CatalogueColumn, CatalogueTable};

/// A first model, and what it leaves out.
#[derive(Clone, Debug)]
pub struct FirstModel {
    /// The model: every table that has a key, every column whose type can travel; nothing partitioned, the consolidated row wins.
    pub model: Model,
    /// What can't be in it: `(table, what and why)`.
    pub left_out: Vec<(String, String)>,
    /// What could be in it, and is left out until a person has looked: it seems to be no remote's business.
    pub doubtful: Doubtful,
}

/// What could be in a model, and why it is left out.
#[derive(Clone, Debug, Default)]
pub struct Doubtful {
    /// Tables.
    pub tables: Vec<(Table, &'static str)>,
    /// Columns of tables that are in the model, by the table's name.
    pub columns: Vec<(String, Column, &'static str)>,
}

/// Makes a first model of this name. Tables keep the catalogue's order, parents first.
pub fn first_model(name: &str, catalogue: &Catalogue) -> FirstModel {
    let mut left_out = Vec::new();
    let mut usable: Vec<&CatalogueTable> = Vec::new();
    let mut private: Vec<(&CatalogueTable, &'static str)> = Vec::new();
    // The default schema's tables come first: of two with one name theirs is taken.
    let mut found: Vec<&CatalogueTable> = catalogue.tables.iter().collect();
    found.sort_by_key(|table| table.schema.as_deref().is_some_and(|schema| schema != "public"));
    for table in found {
        if let Some(reason) = unusable(table, &usable) {
            left_out.push((table.name.clone(), reason));
        } else if let Some(why) = why_private(table) {
            private.push((table, why));
        } else {
            usable.push(table);
        }
    }
    let mut doubtful = Doubtful::default();
    let model = loop {
        let ordered = parents_first(&usable);
        let (mut found, mut columns) = (Vec::new(), Vec::new());
        let mut tables: Vec<Table> =
            ordered.iter().map(|table| first_table(table, &mut found, Some(&mut columns))).collect();
        for (place, found) in ordered.iter().enumerate() {
            tables[place].references = references(&tables, &tables[place], found, &ordered);
        }
        let model = model_of(name, tables);
        // What makes one table impossible leaves the others as they are.
        let wrong = violations(&model).into_iter().find_map(|violation| match violation {
            Violation::Table { table, what } => Some((table, what)),
            _ => None,
        });
        match wrong.filter(|(table, _)| usable.iter().any(|usable| usable.name == *table)) {
            Some((table, what)) => {
                usable.retain(|usable| usable.name != table);
                left_out.push((table, what));
            }
            None => {
                doubtful.columns = columns;
                for (table, why) in &private {
                    let mut first = first_table(table, &mut Vec::new(), None);
                    first.references = references(&model.tables, &first, table, &ordered);
                    doubtful.tables.push((first, why));
                }
                left_out.extend(found);
                break model;
            }
        }
    };
    FirstModel { model, left_out, doubtful }
}

fn model_of(name: &str, tables: Vec<Table>) -> Model {
    Model {
        name: name.to_owned(),
        version: 1,
        on_error: headwater_model::OnError::default(),
        values: Vec::new(),
        partitions: Vec::new(),
        tables,
        unenforced: Vec::new(),
    }
}

/// Why a table is better left out until a person has looked: its own name says so, or that of a column without which it can't travel.
fn why_private(table: &CatalogueTable) -> Option<&'static str> {
    let key = || table.columns.iter().filter(|column| table.primary_key.contains(&column.name));
    secrets::of_table(&table.name).or_else(|| {
        key().any(|column| secrets::of_column(column).is_some()).then_some("has a key that looks like a secret")
    })
}

/// Why a table can't be in the model beside those that are.
fn unusable(table: &CatalogueTable, others: &[&CatalogueTable]) -> Option<String> {
    let key = || table.columns.iter().filter(|column| table.primary_key.contains(&column.name));
    let is_ours = |name: &str| name.starts_with("hw_");
    let fault = |name: &str| name_fault(name).map(|fault| format!("its name {name:?} {fault}"));
    if table.primary_key.is_empty() {
        Some("it has no primary key".to_owned())
    } else if let Some(why) = fault(&table.name).or_else(|| table.schema.as_deref().and_then(fault)) {
        Some(why)
    } else if table.columns.len() > COLUMNS_MAX {
        Some(format!(
            "it has {} columns, and at most {COLUMNS_MAX} can travel: take a part of them into the model by hand",
            table.columns.len()
        ))
    } else if let Some(why) = key().find_map(|column| not_travelling(table, column)) {
        Some(format!("of its key, {why}"))
    } else if let Some(column) = key().find(|column| column.kind.is_none()) {
        Some(format!("its key column `{}` is of type `{}`, which can't travel", column.name, column.declared))
    } else if let Some(column) = key().find(|column| column.nullable) {
        Some(format!("its key column `{}` may be NULL: declare it NOT NULL", column.name))
    } else if let Some((column, equality)) = key().find_map(|column| Some((column, column.equality.as_ref()?))) {
        Some(format!("its key column `{}` is compared in another way at a remote: {equality}", column.name))
    } else if is_ours(&table.name) || table.columns.iter().any(|column| is_ours(&column.name)) {
        Some("names that begin with `hw_` are Headwater's own at a remote".to_owned())
    } else {
        let twin = others.iter().find(|other| other.name.eq_ignore_ascii_case(&table.name))?;
        let schema = twin.schema.as_deref().unwrap_or("public");
        Some(format!("a remote has no schemas, and table `{}` of schema `{schema}` is in the model already", twin.name))
    }
}

/// `doubtful`: takes the columns that look like secrets; `None`: they stay.
fn first_table(
    found: &CatalogueTable,
    left_out: &mut Vec<(String, String)>,
    mut doubtful: Option<&mut Vec<(String, Column, &'static str)>>,
) -> Table {
    let mut columns = Vec::new();
    for column in &found.columns {
        let why = not_travelling(found, column);
        let (Some(kind), None) = (column.kind, &why) else {
            left_out.push((found.name.clone(), why.unwrap_or_default()));
            continue;
        };
        let travelling = Column { name: column.name.clone(), kind, nullable: column.nullable };
        match (&mut doubtful, secrets::of_column(column)) {
            (Some(doubtful), Some(why)) => doubtful.push((found.name.clone(), travelling, why)),
            _ => columns.push(travelling),
        }
    }
    let places = |names: &[String]| -> Option<Vec<usize>> {
        names.iter().map(|name| columns.iter().position(|column| column.name == *name)).collect()
    };
    Table {
        key_range: None,
        shared: false,
        scripts: Vec::new(),
        schema: found.schema.clone(),
        name: found.name.clone(),
        key: places(&found.primary_key).unwrap_or_default(),
        unique: found.unique.iter().filter_map(|names| places(names)).collect(),
        partition: None,
        direction: Direction::Both,
        conflict: ConflictRule::ConsolidatedWins,
        sum: Vec::new(),
        references: Vec::new(),
        columns,
    }
}

/// Why a column can't be in the model.
fn not_travelling(table: &CatalogueTable, column: &CatalogueColumn) -> Option<String> {
    let name = &column.name;
    let twin = table
        .columns
        .iter()
        .take_while(|other| other.name != *name)
        .find(|other| other.name.eq_ignore_ascii_case(name));
    if let Some(fault) = name_fault(name) {
        Some(format!("column {name:?}: its name {fault}"))
    } else if let Some(twin) = twin {
        Some(format!("column `{name}`: a remote does not tell it from `{}`", twin.name))
    } else if column.generated {
        Some(format!("column `{name}`: the database makes its value"))
    } else if column.kind.is_none() {
        Some(format!("column `{name}`: type `{}` can't travel", column.declared))
    } else {
        None
    }
}

/// The tables with those they refer to before them; cycles keep the catalogue's order.
fn parents_first<'a>(tables: &[&'a CatalogueTable]) -> Vec<&'a CatalogueTable> {
    let mut ordered: Vec<&CatalogueTable> = Vec::with_capacity(tables.len());
    let mut waiting = tables.to_vec();
    while !waiting.is_empty() {
        let is_ready = |table: &&CatalogueTable| {
            table.references.iter().all(|reference| {
                reference.table == table.name || !waiting.iter().any(|other| other.name == reference.table)
            })
        };
        let next = waiting.iter().position(is_ready).unwrap_or(0);
        ordered.push(waiting.remove(next));
    }
    ordered
}

fn references(tables: &[Table], own: &Table, found: &CatalogueTable, ordered: &[&CatalogueTable]) -> Vec<Reference> {
    let places = |table: &Table, names: &[String]| -> Option<Vec<usize>> {
        names.iter().map(|name| table.columns.iter().position(|column| column.name == *name)).collect()
    };
    let one = |reference: &crate::catalogue::CatalogueReference| {
        let there =
            ordered.iter().position(|table| table.name == reference.table && table.schema == reference.schema)?;
        let on_delete = match reference.on_delete.as_str() {
            "cascade" => OnDelete::Cascade,
            "set null" => OnDelete::SetNull,
            _ => OnDelete::NoAction,
        };
        Some(Reference {
            columns: places(own, &reference.columns)?,
            table: there,
            target: places(&tables[there], &reference.target)?,
            on_delete,
        })
    };
    found.references.iter().filter_map(one).collect()
}
