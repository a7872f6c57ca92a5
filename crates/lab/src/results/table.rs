//! Cells as a table for people: what `lab show` and reports have in common.

use std::time::Duration;

use super::summary::{CellSummary, Estimate};
use crate::harness::Traffic;
use crate::http::settings;
use crate::sync::kind;

/// What cells of requests have more; bytes are of a request.
const HTTP: [&str; 7] = ["failed %", "Mbit/s", "received B", "body B", "content B", "body %", "hits %"];

/// What cells of syncs have more.
const SYNC: [&str; 9] =
    ["mean ms", "mean/set", "max/set", "rows/s", "active", "server %", "database %", "refusals", "retries"];

/// What cells with a replica have more.
const REPLICA: [&str; 4] = ["lag p50 ms", "lag p99 ms", "lag max ms", "drained ms"];

/// Cells as text, a row for each.
#[derive(Clone, Debug, PartialEq)]
pub struct CellTable {
    /// The names of the columns.
    pub head: Vec<String>,
    /// As many texts each; `-` where nothing is known.
    pub rows: Vec<Vec<String>>,
    /// How many columns at the beginning say which cell it is. The others are numbers.
    pub columns_of_cell: usize,
}

impl CellTable {
    /// Of these cells, which differ in these keys.
    pub fn of(cells: &[CellSummary], varied: &[String]) -> CellTable {
        let is_open = cells.iter().any(|cell| cell.value("load.arrival") != "closed");
        let mut head = vec!["cell"];
        head.extend(varied.iter().map(String::as_str));
        head.extend(["runs", "ops/s", "+-", "p50 ms", "p95 ms", "p99 ms", "max ms", "errors"]);
        if is_open {
            head.extend(["service p99", "late", "dropped", "longest queue"]);
        }
        let is_sync = cells.iter().any(|cell| cell.scenario == kind::NAME);
        if is_sync {
            head.extend(SYNC);
        }
        let is_http = cells.iter().any(|cell| cell.scenario == settings::NAME);
        if is_http {
            head.extend(HTTP);
        }
        let is_replicated = cells.iter().any(|cell| !cell.lag.is_empty());
        if is_replicated {
            head.extend(REPLICA);
        }
        let head: Vec<String> = head.into_iter().map(str::to_owned).collect();
        let rows = cells
            .iter()
            .map(|cell| row(cell, varied, [is_open, is_sync, is_http, is_replicated], head.len()))
            .collect();
        CellTable { head, rows, columns_of_cell: 1 + varied.len() }
    }
}

fn row(
    cell: &CellSummary,
    varied: &[String],
    [is_open, is_sync, is_http, is_replicated]: [bool; 4],
    columns: usize,
) -> Vec<String> {
    let mut row = vec![cell.cell.to_string()];
    row.extend(varied.iter().map(|key| cell.value(key).to_owned()));
    row.push(cell.runs_done.to_string());
    if cell.runs_done == 0 {
        row.resize(columns, "-".to_owned());
        return row;
    }
    row.push(format!("{:.1}", cell.rate.mean));
    row.push(cell.rate.half.map_or("-".to_owned(), |half| format!("{half:.1}")));
    row.extend([0.5, 0.95, 0.99].map(|part| millis(cell.response.quantile(part))));
    row.extend([millis(cell.response.max()), thousands(cell.errors)]);
    if is_open {
        row.push(millis(cell.service.quantile(0.99)));
        row.extend([cell.late, cell.dropped, cell.longest_queue].map(thousands));
    }
    if is_sync {
        row.extend(syncs(cell));
    }
    if is_http {
        row.extend(requests(cell));
    }
    if is_replicated {
        row.extend(replica(cell));
    }
    row
}

/// What the columns of [`SYNC`] say.
fn syncs(cell: &CellSummary) -> [String; 9] {
    let rows: f64 = cell.value("scenario.rows").parse().unwrap_or(0.0);
    let (mean, max) = (cell.service.mean(), cell.service.max());
    // Little's law: so many are at it on average.
    let active = mean.as_secs_f64() * cell.rate.mean;
    let of_set = |time: Duration| match cell.set_mean.as_secs_f64() {
        0.0 => "-".to_owned(),
        set => format!("{:.2}", time.as_secs_f64() / set),
    };
    // What was not sampled has no share.
    let share = |part: Estimate| if part.mean > 0.0 { format!("{:.0}", part.mean) } else { "-".to_owned() };
    [
        millis(mean),
        of_set(mean),
        of_set(max),
        format!("{:.0}", cell.rate.mean * rows),
        format!("{active:.1}"),
        share(cell.server_percent),
        share(cell.database_percent),
        thousands(cell.refusals),
        thousands(cell.retries),
    ]
}

/// What the columns of [`REPLICA`] say.
fn replica(cell: &CellSummary) -> [String; 4] {
    if cell.lag.is_empty() {
        return ["-"; 4].map(str::to_owned);
    }
    let [p50, p99] = [0.5, 0.99].map(|part| millis(cell.lag.quantile(part)));
    [p50, p99, millis(cell.lag.max()), format!("{:.3}", cell.drained_ns.mean / 1e6)]
}

/// What the columns of [`HTTP`] say.
fn requests(cell: &CellSummary) -> [String; 7] {
    let each = |bytes: u64| thousands(bytes.checked_div(cell.operations).unwrap_or(0));
    let percent = |percent: Option<f64>| percent.map_or("-".to_owned(), |percent| format!("{percent:.1}"));
    let Traffic { received_bytes, body_bytes, content_bytes, .. } = cell.traffic;
    [
        format!("{:.2}", cell.failed_percent()),
        format!("{:.1}", cell.received_per_s.mean * 8.0 / 1e6),
        each(received_bytes),
        each(body_bytes),
        each(content_bytes),
        percent(cell.payload_percent()),
        percent(cell.hit_percent()),
    ]
}

fn millis(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

/// A number with its thousands apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
