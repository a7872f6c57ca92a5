//! A first model from what the database has: every table that can travel, with what was left out and why.

use headwater_model::{Column, ConflictRule, Direction, Model, OnDelete, Reference, Table};

use crate::catalogue::{Catalogue, CatalogueColumn, CatalogueTable};

/// A first model, and what it leaves out.
#[derive(Clone, Debug)]
pub struct FirstModel {
    /// The model: every table that has a key, every column whose type can travel; nothing partitioned, the consolidated row wins.
    pub model: Model,
    /// What is not in it: `(table, what and why)`.
    pub left_out: Vec<(String, String)>,
}

/// Makes a first model of this name. Tables keep the catalogue's order, parents first.
pub fn first_model(name: &str, catalogue: &Catalogue) -> FirstModel {
    let mut left_out = Vec::new();
    let mut usable: Vec<&CatalogueTable> = Vec::new();
    // The default schema's tables come first: of two with one name theirs is taken.
    let mut found: Vec<&CatalogueTable> = catalogue.tables.iter().collect();
    found.sort_by_key(|table| table.schema.as_deref().is_some_and(|schema| schema != "public"));
    for table in found {
        if let Some(reason) = unusable(table, &usable) {
            left_out.push((table.name.clone(), reason));
        } else {
            usable.push(table);
        }
    }
    let ordered = parents_first(&usable);
    let mut tables: Vec<Table> = ordered.iter().map(|table| first_table(table, &mut left_out)).collect();
    for (place, found) in ordered.iter().enumerate() {
        tables[place].references = references(&tables, place, found, &ordered);
    }
    FirstModel {
        model: Model {
            name: name.to_owned(),
            version: 1,
            on_error: headwater_model::OnError::default(),
            values: Vec::new(),
            partitions: Vec::new(),
            tables,
            unenforced: Vec::new(),
        },
        left_out,
    }
}

/// Why a table can't be in the model beside those that are.
fn unusable(table: &CatalogueTable, others: &[&CatalogueTable]) -> Option<String> {
    let key = || table.columns.iter().filter(|column| table.primary_key.contains(&column.name));
    let is_ours = |name: &str| name.starts_with("hw_");
    if table.primary_key.is_empty() {
        Some("it has no primary key".to_owned())
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

fn first_table(found: &CatalogueTable, left_out: &mut Vec<(String, String)>) -> Table {
    let mut columns = Vec::new();
    for column in &found.columns {
        match travelling(column) {
            Ok(column) => columns.push(column),
            Err(reason) => left_out.push((found.name.clone(), reason)),
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

fn travelling(column: &CatalogueColumn) -> Result<Column, String> {
    match column.kind {
        Some(_) if column.generated => Err(format!("column `{}`: the database makes its value", column.name)),
        Some(kind) => Ok(Column { name: column.name.clone(), kind, nullable: column.nullable }),
        None => Err(format!("column `{}`: type `{}` can't travel", column.name, column.declared)),
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

fn references(tables: &[Table], place: usize, found: &CatalogueTable, ordered: &[&CatalogueTable]) -> Vec<Reference> {
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
            columns: places(&tables[place], &reference.columns)?,
            table: there,
            target: places(&tables[there], &reference.target)?,
            on_delete,
        })
    };
    found.references.iter().filter_map(one).collect()
}
