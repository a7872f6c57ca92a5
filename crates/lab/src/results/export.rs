//! Results for other programs.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::Estimate;
use super::read::Campaign;
use super::summary::{CellSummary, millis};
use crate::error::Error;
use crate::harness::Traffic;
use crate::http::settings;

/// In which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line of names, then a line for each.
    Csv,
    /// One object.
    Json,
}

/// A line for each of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Cells: their runs put together.
    Cells,
    /// Runs.
    Runs,
    /// Seconds.
    Seconds,
}

/// Names and values, in order.
type Line = Vec<(String, Value)>;

const RUNS: &str = "SELECT cell, repetition, started, state, detail, ended_by, elapsed_ns, sets, sets_ns, operations, errors, late, dropped, \
                    longest_queue, refusals, retries, client_cpu_ns, steal_percent, processors, bottleneck, evidence, warmup_ns, \
                    is_steady, replica_drained_ns, server_percent, database_percent, sent_bytes, received_bytes, body_bytes, content_bytes, hits, misses \
                    FROM run LEFT JOIN traffic ON traffic.run = run.id ORDER BY id";
const SECONDS: &str = "SELECT cell, repetition, second, second.operations, second.errors, response_p50_ns, response_p99_ns, \
                       response_max_ns, response_mean_ns, queries, updates, deletes, inserts, rows_read FROM second JOIN run ON run.id = second.run ORDER BY run.id, second";

impl Campaign {
    /// Writes results out.
    pub fn export(&self, rows: Rows, format: Format, out: &mut dyn Write) -> Result<(), Error> {
        let table = match rows {
            Rows::Cells => self.summary()?.iter().map(cell).collect(),
            Rows::Runs => self.table(RUNS)?,
            Rows::Seconds => self.table(SECONDS)?,
        };
        match format {
            Format::Json => self.write_json(rows, table, out),
            Format::Csv => write_csv(&table, out),
        }
        .map_err(Error::Write)
    }

    fn write_json(&self, rows: Rows, table: Vec<Line>, out: &mut dyn Write) -> std::io::Result<()> {
        let what = match rows {
            Rows::Cells => "cells",
            Rows::Runs => "runs",
            Rows::Seconds => "seconds",
        };
        let environment = self.environment().map_err(std::io::Error::other)?;
        let environment: Map<_, _> = environment.into_iter().map(|(key, value)| (key, json!(value))).collect();
        let table: Vec<Map<_, _>> = table.into_iter().map(|line| line.into_iter().collect()).collect();
        let all = json!({
            "name": self.name,
            "about": self.about,
            "seed": self.seed,
            "started": self.started,
            "state": self.state,
            "environment": environment,
            what: table,
        });
        serde_json::to_writer_pretty(&mut *out, &all)?;
        writeln!(out)
    }

    /// A query's rows, with the values of their cell before them.
    fn table(&self, sql: &str) -> Result<Vec<Line>, Error> {
        let mut cells = std::collections::HashMap::new();
        for (id, scenario) in self.cells()? {
            cells.insert(id, (scenario, self.values(id)?));
        }
        self.rows(sql, |row| {
            let mut all = Line::new();
            for (place, name) in row.as_ref().column_names().enumerate() {
                let value = match row.get::<_, rusqlite::types::Value>(place)? {
                    rusqlite::types::Value::Integer(number) => json!(number),
                    rusqlite::types::Value::Real(number) => json!(number),
                    rusqlite::types::Value::Text(text) => json!(text),
                    _ => Value::Null,
                };
                let number = value.as_i64();
                all.push((name.to_owned(), value));
                let cell = number.filter(|_| place == 0).and_then(|id| cells.get(&id));
                if let Some((scenario, values)) = cell {
                    all.push(("scenario".to_owned(), json!(scenario)));
                    all.extend(values.iter().map(|(key, value, _)| (key.clone(), json!(value))));
                }
            }
            Ok(all)
        })
    }
}

fn cell(cell: &CellSummary) -> Line {
    let mut all = Line::new();
    let mut add = |key: &str, value: Value| all.push((key.to_owned(), value));
    add("cell", json!(cell.cell));
    add("scenario", json!(cell.scenario));
    for (key, value, _) in &cell.values {
        add(key, json!(value));
    }
    let Estimate { mean, half } = cell.rate;
    add("runs_done", json!(cell.runs_done));
    add("runs_failed", json!(cell.failures.len()));
    add("operations", json!(cell.operations));
    add("rate", json!(mean));
    add("rate_half_interval", json!(half));
    for (clock, histogram) in [("service", &cell.service), ("response", &cell.response)] {
        for (name, part) in [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)] {
            add(&format!("{clock}_{name}_ms"), json!(millis(histogram.quantile(part))));
        }
        add(&format!("{clock}_max_ms"), json!(millis(histogram.max())));
        add(&format!("{clock}_mean_ms"), json!(millis(histogram.mean())));
    }
    add("response_p50_half_interval_ms", json!(cell.response_p50_ns.half.map(|nanos| nanos / 1e6)));
    add("errors", json!(cell.errors));
    add("late", json!(cell.late));
    add("dropped", json!(cell.dropped));
    add("longest_queue", json!(cell.longest_queue));
    add("refusals", json!(cell.refusals));
    add("retries", json!(cell.retries));
    if cell.scenario == settings::NAME {
        let Traffic { sent_bytes, received_bytes, body_bytes, content_bytes, hits, misses } = cell.traffic;
        for (name, number) in [
            ("sent_bytes", sent_bytes),
            ("received_bytes", received_bytes),
            ("body_bytes", body_bytes),
            ("content_bytes", content_bytes),
            ("hits", hits),
            ("misses", misses),
        ] {
            add(name, json!(number));
        }
        add("failed_percent", json!(cell.failed_percent()));
        add("hit_percent", json!(cell.hit_percent()));
    }
    if !cell.lag.is_empty() {
        for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
            add(&format!("replica_lag_{name}_ms"), json!(millis(cell.lag.quantile(part))));
        }
        add("replica_lag_max_ms", json!(millis(cell.lag.max())));
        add("replica_drained_ms", json!(cell.drained_ns.mean / 1e6));
    }
    add("operations_per_cpu_second", json!(cell.operations_per_cpu_second));
    add("bottleneck", json!(cell.bottleneck.as_ref().map(|(name, _)| name)));
    add("evidence", json!(cell.bottleneck.as_ref().map(|(_, evidence)| evidence)));
    add("unsteady", json!(cell.unsteady));
    all
}

fn write_csv(table: &[Line], out: &mut dyn Write) -> std::io::Result<()> {
    // Scenarios may have parameters of their own: every name that any line has.
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in table.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(&names)?;
    for line in table {
        let value = |name: &&str| line.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        writer.write_record(names.iter().map(|name| match value(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }))?;
    }
    writer.flush()
}
