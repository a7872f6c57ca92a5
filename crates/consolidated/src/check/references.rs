//! Foreign keys whose columns the database compares in another way than by bytes, as a remote does.
//!
//! A child `'ABC'` has the parent `'abc'` in a `citext` column, and none at a remote: there the row would be held for ever, and an insert
//! refused. So a remote does not enforce such a reference; what breaks it is set aside when it goes up.

use headwater_model::{Model, Reference, Table};
use headwater_protocol::Type;

use super::{Finding, Severity};
use crate::catalogue::{Catalogue, CatalogueColumn, CatalogueTable};
use crate::track::catalogue_table;

/// The references that a remote can't enforce, by the places of table and reference in the model.
pub fn unenforced(model: &Model, catalogue: &Catalogue) -> Vec<(usize, usize)> {
    let places = model.tables.iter().enumerate();
    let references =
        places.flat_map(|(number, table)| (0..table.references.len()).map(move |place| (number, table, place)));
    references
        .filter(|(_, table, place)| why(model, catalogue, table, &table.references[*place]).is_some())
        .map(|(number, _, place)| (number, place))
        .collect()
}

pub(super) fn check(model: &Model, catalogue: &Catalogue) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in &model.tables {
        for reference in &table.references {
            let Some(why) = why(model, catalogue, table, reference) else { continue };
            findings.push(finding(model, table, reference, &why));
        }
    }
    findings
}

fn finding(model: &Model, table: &Table, reference: &Reference, why: &str) -> Finding {
    let columns: Vec<&str> =
        reference.columns.iter().filter_map(|place| Some(table.columns.get(*place)?.name.as_str())).collect();
    let parent = model.tables.get(reference.table).map_or("", |parent| parent.name.as_str());
    let what = format!(
        "the foreign key ({}) to {parent} is compared in another way here than at a remote ({why})",
        columns.join(", ")
    );
    let is_through = table.through() == Some(reference);
    let (severity, message, mend) = if is_through {
        (
            Severity::Error,
            format!("{what}: a remote would not find the row from which the table takes its partition"),
            "use columns whose equality is that of their bytes, or give the table partition columns of its own",
        )
    } else {
        (
            Severity::Warning,
            format!("{what}: new remotes do not enforce it, and rows that break it are set aside when they go up"),
            "nothing has to be done; remotes that were made before enforce it by bytes until they are made anew",
        )
    };
    let (table, column) = (Some(table.name.clone()), columns.first().map(|name| (*name).to_owned()));
    Finding { severity, code: "reference_equality", table, column, message, mend: mend.to_owned() }
}

/// What makes values of a reference's columns equal whose bytes differ.
fn why(model: &Model, catalogue: &Catalogue, table: &Table, reference: &Reference) -> Option<String> {
    let parent = model.tables.get(reference.table)?;
    let (found, above) = (catalogue_table(catalogue, table)?, catalogue_table(catalogue, parent)?);
    reference.columns.iter().zip(&reference.target).find_map(|(own, target)| {
        let (own, target) = (column(table, found, *own)?, column(parent, above, *target)?);
        if is_spelled_alike(own, target) {
            return None;
        }
        target.spellings.clone().or_else(|| own.spellings.clone())
    })
}

fn column<'c>(table: &Table, found: &'c CatalogueTable, place: usize) -> Option<&'c CatalogueColumn> {
    let name = &table.columns.get(place)?.name;
    found.columns.iter().find(|column| column.name == *name)
}

/// A decimal of one scale has one spelling.
fn is_spelled_alike(own: &CatalogueColumn, target: &CatalogueColumn) -> bool {
    let is_scaled = |column: &CatalogueColumn| {
        column.kind.is_some_and(|kind| kind.base == Type::Decimal && kind.precision.is_some())
    };
    is_scaled(own) && own.declared.starts_with("numeric(") && own.declared == target.declared
}
