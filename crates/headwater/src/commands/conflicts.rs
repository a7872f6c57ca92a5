//! `headwater conflicts`: what uploads met, with both images and the outcome.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use headwater_consolidated::system::{ConflictQuery, ConflictRecord, conflicts};
use serde_json::{Value, json};

use super::{image, remote_text};
use crate::Done;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::{Exit, usage};
use crate::output::{Output, printable};

const EXAMPLES: &str = "\
Examples:
  headwater conflicts --limit 5
  headwater conflicts --table flights --json | jq '.[].outcome'
  headwater conflicts --exit-code || echo 'somebody should look'

Of each conflict: the row on which the remote made its change (old), what it made of it (uploaded), what stood in the
consolidated database by then (stored), and what stands there now (result).";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConflictsArgs {
    /// Of this table only.
    #[arg(long)]
    table: Option<String>,
    /// Of this remote ID only.
    #[arg(long, value_name = "ID")]
    remote: Option<uuid::Uuid>,
    /// At most so many, the newest first.
    #[arg(long, default_value_t = 20)]
    limit: u32,
    /// Only those before the one with this number (for pages).
    #[arg(long, value_name = "NUMBER")]
    before: Option<i64>,
    /// End with exit code 1 if there are any.
    #[arg(long)]
    exit_code: bool,
}

/// Lists them.
pub fn run(args: &ConflictsArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let mut connection = config.connect_installed()?;
    let query = ConflictQuery {
        table: args.table.clone(),
        remote_id: args.remote.map(uuid::Uuid::into_bytes),
        before: args.before,
        limit: args.limit,
    };
    let found = conflicts(&mut *connection, &query)?;
    if let Some(table) = args.table.as_ref().filter(|_| found.is_empty()) {
        known_table(&config, table)?;
    }
    output.answer(&found.iter().map(as_json).collect::<Vec<_>>(), |output| {
        if found.is_empty() {
            return output.line("no conflicts");
        }
        found.iter().try_for_each(|conflict| show(conflict, output))
    })?;
    Ok(if args.exit_code && !found.is_empty() { Exit::Found } else { Exit::Done })
}

/// There are no conflicts of a table: because it has none, or because no model has it? (A model that has retired may have had it.)
fn known_table(config: &Config, table: &str) -> Result<()> {
    let plans = config.plans()?;
    let names: BTreeSet<&str> =
        plans.iter().flat_map(|plan| plan.model.tables.iter().map(|t| t.name.as_str())).collect();
    if names.contains(table) {
        return Ok(());
    }
    let names: Vec<&str> = names.into_iter().collect();
    Err(usage(format!("no model has a table {table:?}; there are {}", names.join(", "))))
}

fn as_json(conflict: &ConflictRecord) -> Value {
    json!({
        "id": conflict.id, "at": conflict.at, "remote": remote_text(conflict.remote_id), "user": conflict.user,
        "table": conflict.table, "key": image(Some(&conflict.key)), "old": image(conflict.old.as_deref()),
        "uploaded": image(conflict.uploaded.as_deref()), "stored": image(conflict.stored.as_deref()),
        "outcome": conflict.outcome, "result": image(conflict.result.as_deref()),
    })
}

/// Whose row is stored now. What `merge` and `resolve_conflict` make is neither side's.
pub(super) fn ended(outcome: &str) -> String {
    match outcome {
        "remote" | "consolidated" => format!("{outcome} wins"),
        _ => outcome.to_owned(),
    }
}

fn show(conflict: &ConflictRecord, output: &Output) -> Result<()> {
    let remote = remote_text(conflict.remote_id);
    output.line(printable(&format!(
        "#{} {} {} {}: {} (user {}, remote {remote})",
        conflict.id,
        conflict.at,
        conflict.table,
        conflict.key,
        ended(&conflict.outcome),
        conflict.user
    )))?;
    let images =
        [&conflict.old, &conflict.uploaded, &conflict.stored, &conflict.result].map(|text| image(text.as_deref()));
    show_images(&["old", "uploaded", "stored", "result"], &images, output)
}

/// Images side by side, the columns in which they differ.
pub(crate) fn show_images<const N: usize>(names: &[&str; N], images: &[Value; N], output: &Output) -> Result<()> {
    let columns: Vec<&String> = images.iter().filter_map(Value::as_object).flat_map(|image| image.keys()).collect();
    let mut seen = std::collections::HashSet::new();
    let cell = |image: &Value, column: &str| match image {
        Value::Null => "(no row)".to_owned(),
        image => image.get(column).map_or_else(String::new, short),
    };
    let rows = columns.into_iter().filter(|column| seen.insert(column.as_str())).filter_map(|column| {
        let cells: Vec<String> = images.iter().map(|image| cell(image, column)).collect();
        let is_same = cells.iter().all(|cell| Some(cell) == cells.first());
        (!is_same).then(|| std::iter::once(column.clone()).chain(cells).collect())
    });
    let head: Vec<&str> = std::iter::once("column").chain(names.iter().copied()).collect();
    output.table(&head, rows)
}

/// A value as a cell has it: text without its quotes, and not all of a long one.
fn short(value: &Value) -> String {
    const CHARACTERS_MAX: usize = 60;
    let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::ended;

    #[test]
    fn what_is_made_of_both_rows_is_neither_sides() {
        assert_eq!(["remote", "consolidated", "merged"].map(ended), ["remote wins", "consolidated wins", "merged"]);
    }
}
