//! What a remote has, compared with the consolidated database's own rows for its user: by queries of the test's own, through the databases' own
//! drivers, and not by `headwater diff`.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use headwater_remote::Remote;
use headwater_tests::{World, sqlite_rows_of_each};

use crate::domains::Compare;
use crate::schema::Schema;
use crate::shape::{Column, Shape, comparable};

const LISTED: usize = 12;

type Row = Vec<Option<String>>;

/// The rows that a remote lacks or has too many, one a line. With `is_settled`, nothing is excused; otherwise what is pending, set aside or held is.
pub(crate) fn differences(
    world: &World,
    schema: &Schema,
    (name, user, remote): (&str, &str, &Remote),
    is_settled: bool,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let all = if is_settled { Vec::new() } else { excused(remote)? };
    let shapes = schema.shapes();
    let here = shapes.iter().map(Shape::at_the_remote).collect::<Vec<_>>();
    let there = shapes.iter().map(|shape| shape.at_the_head(schema.kind, user)).collect::<Vec<_>>();
    let here = sqlite_rows_of_each(&world.path(name), &here)?;
    let there = world.central.rows_of_each(&there)?;
    ensure!(here.len() == shapes.len() && there.len() == shapes.len(), "each query gives rows");
    for ((shape, here), there) in shapes.into_iter().zip(here).zip(there) {
        let its = all.iter().filter(|(table, _)| *table == shape.name);
        let excused = its.map(|(_, key)| key_of(&shape, key)).collect::<Result<BTreeSet<Row>>>()?;
        let (here, there) = (rows(here, &shape), rows(there, &shape));
        let key = |row: &Row| row[..shape.key].to_vec();
        let differing = here.symmetric_difference(&there).filter(|row| !excused.contains(&key(row)));
        found.extend(differing.map(|row| {
            let what = if here.contains(row) { "only at the remote" } else { "only at the head" };
            format!("{}: {what}: {row:?}", shape.name)
        }));
    }
    let beyond = found.len().saturating_sub(LISTED);
    found.truncate(LISTED);
    found.extend((beyond > 0).then(|| format!("and {beyond} more")));
    Ok(found)
}

fn rows(rows: Vec<Row>, shape: &Shape) -> BTreeSet<Row> {
    let row = |row: Row| {
        row.into_iter().zip(&shape.columns).map(|(value, column)| comparable(value, column.compare)).collect()
    };
    rows.into_iter().map(row).collect()
}

/// Tables and keys of rows that may differ.
fn excused(remote: &Remote) -> Result<Vec<(String, String)>> {
    let pending = remote.pending(10_000)?.into_iter().map(|change| (change.table, change.key));
    let aside = remote.set_aside(10_000)?.into_iter().map(|change| (change.table, change.key));
    let held = remote.held(10_000)?.into_iter().map(|row| (row.table, row.key));
    Ok(pending.chain(aside).chain(held).collect())
}

fn key_of(shape: &Shape, json: &str) -> Result<Row> {
    let key: serde_json::Value = serde_json::from_str(json).with_context(|| format!("the key {json}"))?;
    let value = |column: &Column| {
        let value = &key[column.name.as_str()];
        let text = match (value, column.compare) {
            (serde_json::Value::Null, _) => return None,
            (serde_json::Value::String(text), Compare::Bytes) => {
                text.trim_start_matches("x'").trim_end_matches('\'').to_owned()
            }
            (serde_json::Value::String(text), Compare::Class) if text.starts_with("x'") => text.to_uppercase(),
            (serde_json::Value::String(text), Compare::Class) => crate::shape::literal(text),
            (serde_json::Value::String(text), _) => text.clone(),
            (other, _) => other.to_string(),
        };
        comparable(Some(text), column.compare)
    };
    Ok(shape.columns[..shape.key].iter().map(value).collect())
}
