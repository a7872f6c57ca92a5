//! The rows of the demo's tables, from what the commands say as JSON.

use serde_json::Value;

use super::Person;
use super::show::thousands;

pub(super) const FIRST_SYNC: [&str; 9] =
    ["remote", "partition", "airlines", "airports", "planes", "weather", "flights", "bytes down", "seconds"];

pub(super) fn first_sync(person: &Person, report: &Value, status: &Value) -> Vec<String> {
    let tables = status.get("tables").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let rows = |name: &str| {
        let table = tables.iter().find(|table| table.get("name").and_then(Value::as_str) == Some(name));
        thousands(table.map_or(0, |table| number(table, "rows")))
    };
    let mut cells = vec![person.file(), person.origin.to_owned()];
    cells.extend(["airlines", "airports", "planes", "weather", "flights"].map(rows));
    cells.extend([thousands(number(report, "bytes_down")), seconds(report)]);
    cells
}

pub(super) const LATER_SYNC: [&str; 9] =
    ["remote", "changes up", "conflicts", "set aside", "rows down", "deletions", "bytes up", "bytes down", "seconds"];

pub(super) fn later_sync(person: &Person, report: &Value) -> Vec<String> {
    let fields = ["changes_up", "conflicts", "refused", "rows_down", "deletions_down", "bytes_up", "bytes_down"];
    let mut cells = vec![person.file()];
    cells.extend(fields.map(|field| thousands(number(report, field))));
    cells.push(seconds(report));
    cells
}

pub(super) const CONFLICTS: [&str; 8] = ["user", "row", "column", "old", "uploaded", "stored", "result", "winner"];

/// A line for each column in which the images of a conflict differ.
pub(super) fn conflict(conflict: &Value) -> Vec<Vec<String>> {
    let images = ["old", "uploaded", "stored", "result"].map(|name| conflict.get(name).unwrap_or(&Value::Null));
    let columns = images.iter().find_map(|image| image.as_object()).into_iter().flat_map(|image| image.keys());
    let line = |column: &String| {
        let cells = images.map(|image| image.get(column).map_or_else(|| "(no row)".to_owned(), text));
        let is_same = cells.iter().all(|cell| Some(cell) == cells.first());
        (!is_same).then(|| {
            let mut line = vec![field(conflict, "user"), row_name(conflict), column.clone()];
            line.extend(cells);
            line.push(field(conflict, "outcome"));
            line
        })
    };
    columns.filter_map(line).collect()
}

pub(super) const SET_ASIDE: [&str; 4] = ["row", "origin", "reason", "message"];

pub(super) fn set_aside(change: &Value) -> Vec<String> {
    let origin = change.get("new").map_or_else(String::new, |new| field(new, "origin"));
    vec![row_name(change), origin, field(change, "reason"), field(change, "message")]
}

pub(super) const DIFF: [&str; 8] =
    ["remote", "rows here", "rows there", "missing", "extra", "different", "aside", "so it is"];

/// All tables of a remote in one line.
pub(super) fn diff(person: &Person, report: &Value) -> Vec<String> {
    let tables = report.get("tables").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let sum = |name: &str| tables.iter().map(|table| number(table, name)).sum::<u64>();
    let differences = sum("missing") + sum("extra") + sum("different");
    let verdict = match (differences, differences == sum("pending")) {
        (0, _) => "equal",
        (_, true) => "equal but for the row set aside",
        _ => "DIFFERENT",
    };
    let fields = ["remote_rows", "consolidated_rows", "missing", "extra", "different", "pending"];
    let mut cells = vec![person.file()];
    cells.extend(fields.map(|field| thousands(sum(field))));
    cells.push(verdict.to_owned());
    cells
}

/// A number of a report; 0 where it has none.
pub(super) fn number(report: &Value, name: &str) -> u64 {
    report.get(name).and_then(Value::as_u64).unwrap_or(0)
}

fn seconds(report: &Value) -> String {
    let total = report.get("times_ms").and_then(|times| times.get("total")).and_then(Value::as_f64);
    format!("{:.2}", total.unwrap_or(0.0) / 1e3)
}

fn field(value: &Value, name: &str) -> String {
    value.get(name).map_or_else(String::new, text)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// `UA 1124` of flights, `weather JFK`: enough within this demo, whose rows are all of one hour.
fn row_name(change: &Value) -> String {
    let part = |name: &str| change.get("key").map_or_else(String::new, |key| field(key, name));
    match change.get("table").and_then(Value::as_str) {
        Some("flights") => format!("{} {}", part("carrier"), part("flight")),
        table => format!("{} {}", table.unwrap_or_default(), part("origin")),
    }
}
