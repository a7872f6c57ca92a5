//! `headwater lab tables`: two tables held against each other.

use anyhow::{Context as _, Result};
use clap::Args;
use headwater_lab::tables::{Comparison, Difference, Kind, Side, compare};
use serde_json::{Value, json};

use crate::Done;
use crate::exit::Exit;
use crate::output::{Output, counted, printable, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater lab tables postgres://me@primary/shop postgres://me@replica/shop --table orders
  headwater lab tables postgres://me@localhost/shop mariadb://me:secret@localhost/shop --table public.orders --with orders
  headwater lab tables sqlite:before.db sqlite:after.db --table orders --limit 5 --json

Rows are known by the primary key, which both must have or neither: without one whole rows are compared, and counted. Values are compared, not how \
a database writes them (docs/lab.md). Each table is read by one statement, first one and then the other: while somebody writes, what \
differs may be on its way. Exit code 1: they differ.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TablesArgs {
    /// A database: postgres://..., mariadb://... or sqlite:FILE.
    #[arg(value_name = "FIRST")]
    first: String,
    /// Another one, or the same.
    #[arg(value_name = "SECOND")]
    second: String,
    /// The table; of a server's, the schema (of MariaDB the database) may stand before it and a dot.
    #[arg(long, value_name = "TABLE")]
    table: String,
    /// What the table is called in SECOND, if something else.
    #[arg(long, value_name = "TABLE")]
    with: Option<String>,
    /// How many differences to show; all are counted.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: usize,
}

/// Compares, and tells what was found.
pub(super) fn run(args: &TablesArgs, output: &Output) -> Done {
    let first = Side::new(&args.first, &args.table)?;
    let second = Side::new(&args.second, args.with.as_deref().unwrap_or(&args.table))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the lab could not be started")?;
    let bar = output.progress("reading both tables");
    let found = runtime.block_on(compare(&first, &second, args.limit, &mut |rows| bar.set_position(rows)));
    bar.finish_and_clear();
    let found = found?;
    output.answer(&as_json(&found), |output| show(&found, output))?;
    Ok(if found.is_equal() { Exit::Done } else { Exit::Found })
}

fn show(found: &Comparison, output: &Output) -> Result<()> {
    for (which, columns) in [("first", &found.columns_of_first), ("second", &found.columns_of_second)] {
        if !columns.is_empty() {
            output.line(format!("only the {which} has: {}", printable(&columns.join(", "))))?;
        }
    }
    if !found.columns_as_text.is_empty() {
        output.line(format!("of unlike types, compared as text: {}", printable(&found.columns_as_text.join(", "))))?;
    }
    let head = ["rows of first", "of second", "only in first", "only in second", "different"];
    let counts = [found.first_rows, found.second_rows, found.only_first, found.only_second, found.different];
    output.table(&head, [counts.into_iter().map(thousands).collect()])?;
    let rows = found.differences.iter().flat_map(lines);
    output.table(&["row", "", "column", "first", "second"], rows)?;
    let hidden = found.only_first + found.only_second + found.different - found.differences.len() as u64;
    if hidden > 0 {
        output.note(format!("{} more; --limit shows them", counted(hidden as usize, "row")));
    }
    if found.is_equal() {
        let by = if found.key.is_empty() { "all their columns".to_owned() } else { found.key.join(", ") };
        output.note(format!("no difference in {}, by {by}", counted(found.columns.len(), "column")));
    }
    Ok(())
}

/// A row's lines: one a column that differs.
fn lines(difference: &Difference) -> Vec<Vec<String>> {
    let key: Vec<String> =
        difference.key.iter().map(|(name, value)| format!("{name} {}", shown(value.as_ref()))).collect();
    let line = |what: &str, column: &str, first: String, second: String| {
        vec![key.join(", "), what.to_owned(), column.to_owned(), first, second]
    };
    match difference.kind {
        Kind::OnlyFirst => vec![line("only in first", "", String::new(), String::new())],
        Kind::OnlySecond => vec![line("only in second", "", String::new(), String::new())],
        Kind::Different => {
            let of = |(column, first, second): &(String, Option<String>, Option<String>)| {
                line("different", column, shown(first.as_ref()), shown(second.as_ref()))
            };
            difference.columns.iter().map(of).collect()
        }
    }
}

/// A value; what would fill the screen is cut.
fn shown(value: Option<&String>) -> String {
    const MOST: usize = 60;
    let Some(value) = value else { return "NULL".to_owned() };
    match value.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}... ({})", &value[..end], counted(value.chars().count(), "character")),
        None => value.clone(),
    }
}

fn as_json(found: &Comparison) -> Value {
    let difference = |difference: &Difference| {
        let key: serde_json::Map<_, _> =
            difference.key.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let column = |(name, first, second): &(String, Option<String>, Option<String>)| json!({ "column": name, "first": first, "second": second });
        let kind = match difference.kind {
            Kind::OnlyFirst => "only_first",
            Kind::OnlySecond => "only_second",
            Kind::Different => "different",
        };
        json!({ "kind": kind, "key": key, "columns": difference.columns.iter().map(column).collect::<Vec<_>>() })
    };
    json!({
        "is_equal": found.is_equal(), "key": found.key, "columns": found.columns,
        "columns_of_first": found.columns_of_first, "columns_of_second": found.columns_of_second, "columns_as_text": found.columns_as_text,
        "first_rows": found.first_rows, "second_rows": found.second_rows,
        "only_first": found.only_first, "only_second": found.only_second, "different": found.different,
        "differences": found.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}
