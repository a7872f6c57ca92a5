//! Rows that make way for others by their unique values, and stay where they are: none of them goes for it, or what the application's triggers
//! and foreign keys do with rows that are deleted would be done too.

use headwater_model::remote_sql::{Term, Unique};
use headwater_model::sql::quote;
use headwater_protocol::Type;

use crate::error::Error;
use crate::local::Local;
use crate::plan::TablePlan;
use crate::rows::{Placed, Rows};

/// Gives a row values of its unique columns that no other has, until it is stored again: random ones of the column's type, so that what a
/// trigger adds up stays a sum; or NULL, where a constraint refuses those. `None`: there is no such row, or each column of a unique index is
/// of the key, or one by which the row has its place.
pub(crate) fn free(rows: &Rows<'_>, table: &TablePlan, key: &[Local]) -> Result<Option<Placed>, Error> {
    let Some(places) = places(table) else { return Ok(None) };
    let is_nullable = places.iter().any(|place| table.table.columns[*place].nullable);
    let (freed, count) = match run(rows, table, &places, false, key)? {
        (Placed::Refused(_), _) if is_nullable => run(rows, table, &places, true, key)?,
        ran => ran,
    };
    Ok(Some(freed).filter(|freed| *freed != Placed::Done || count > 0))
}

fn run(
    rows: &Rows<'_>,
    table: &TablePlan,
    places: &[usize],
    as_null: bool,
    key: &[Local],
) -> Result<(Placed, usize), Error> {
    let set = places.iter().map(|place| {
        let column = &table.table.columns[*place];
        let value = if as_null && column.nullable { "NULL" } else { random(column.kind.base) };
        format!("{} = {value}", quote(&column.name))
    });
    let set = set.collect::<Vec<_>>().join(", ");
    rows.run(table, &format!("UPDATE {} SET {set} WHERE {}", table.name(), table.by_key()), key)
}

/// The columns that make way, if each unique index has one.
fn places(table: &TablePlan) -> Option<Vec<usize>> {
    let is_fixed = |place: usize| {
        let leads_up = table.parent.iter().any(|(_, columns)| columns.contains(&place));
        leads_up || table.table.key.contains(&place) || table.partition.contains(&place)
    };
    let of = |unique: &Unique| -> Vec<usize> {
        let names = unique.terms.iter().flat_map(|term| match term {
            Term::Column(name, _) => std::slice::from_ref(name),
            Term::Expression(_, names) => names,
        });
        let place =
            |name: &String| table.table.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name));
        names.filter_map(place).filter(|place| !is_fixed(*place)).collect()
    };
    let mut places = Vec::new();
    for unique in table.uniques.iter().filter(|unique| !has_the_key(table, unique)) {
        let of = of(unique);
        if of.is_empty() {
            return None;
        }
        places.extend(of);
    }
    places.sort_unstable();
    places.dedup();
    Some(places).filter(|places| !places.is_empty())
}

/// With the whole key in it, no other row is in the way.
fn has_the_key(table: &TablePlan, unique: &Unique) -> bool {
    let is_in = |name: &str| {
        unique.terms.iter().any(|term| matches!(term, Term::Column(own, _) if own.eq_ignore_ascii_case(name)))
    };
    table.table.key_columns().all(|column| is_in(&column.name))
}

/// An expression of a value that nobody has.
fn random(kind: Type) -> &'static str {
    match kind {
        Type::Int | Type::Bool => "-1099511627776 - abs(random() % 1099511627776)",
        Type::Real => "-1099511627776.0 - abs(random() % 1099511627776)",
        Type::Decimal => "'-' || (1099511627776 + abs(random() % 1099511627776))",
        Type::Bytes => "randomblob(16)",
        _ => "lower(hex(randomblob(16)))",
    }
}
