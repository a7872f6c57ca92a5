//! `headwater lab show`: results as tables.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use headwater_lab::results::{Campaign, CellSummary, CellTable, Fit};
use serde_json::json;

use crate::Done;
use crate::exit::Exit;
use crate::output::{Output, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater lab show tpcb-clients-20260131T120000Z.lab
  headwater lab show tpcb.lab --environment

Rates are means over the runs of a cell with half of their 95 % interval; times are of all its runs together, in milliseconds,
from when an operation should have begun. `headwater lab export` gives more of them.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ShowArgs {
    /// The results.
    #[arg(value_name = "FILE")]
    results: PathBuf,
    /// The machine and the targets too.
    #[arg(long)]
    environment: bool,
}

/// Shows.
pub(super) fn run(args: &ShowArgs, output: &Output) -> Done {
    let campaign = Campaign::open(&args.results)?;
    if output.is_json() {
        let cells: Vec<_> = campaign.summary()?.iter().map(as_json).collect();
        let fits: Vec<_> = campaign.fits()?.iter().map(fit_as_json).collect();
        let all = json!({ "name": campaign.name, "state": campaign.state, "cells": cells, "fits": fits });
        output.answer(&all, |_| Ok(()))?;
        return Ok(Exit::Done);
    }
    let Campaign { name, state, started, seed, .. } = &campaign;
    output.line(format!("{name}: {state}; started {started}, seed {seed}"))?;
    if !campaign.about.is_empty() {
        output.line(&campaign.about)?;
    }
    output.line("")?;
    tables(&campaign, output)?;
    if args.environment {
        output.line("")?;
        let facts = campaign.environment()?;
        output.table(&["environment", ""], facts.into_iter().map(|(key, value)| vec![key, value]))?;
    }
    Ok(Exit::Done)
}

/// The cells, their errors, and what failed.
pub(super) fn tables(campaign: &Campaign, output: &Output) -> Result<()> {
    let cells = campaign.summary()?;
    let CellTable { head, rows, columns_of_cell } = CellTable::of(&cells, &campaign.varied()?);
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    output.table(&head, to_the_right(rows, columns_of_cell))?;
    for fit in campaign.fits()? {
        output.line(fit.to_string())?;
    }
    for (cell, class, count, example) in campaign.errors()? {
        output.line(format!("cell {cell}: {} errors {class}: {example}", thousands(count)))?;
    }
    for cell in &cells {
        if let Some((bottleneck, evidence)) = &cell.bottleneck {
            output.line(format!("cell {}: limited by {bottleneck}: {evidence}", cell.cell))?;
        }
    }
    for cell in &cells {
        if let Some(unsteadiness) = cell.unsteadiness() {
            output.line(format!("cell {}: {unsteadiness}", cell.cell))?;
        }
    }
    for cell in &cells {
        for failure in &cell.failures {
            output.line(format!("cell {}: a run is not counted, {failure}", cell.cell))?;
        }
    }
    Ok(())
}

/// Columns from this one on, with their last characters below each other.
fn to_the_right(mut rows: Vec<Vec<String>>, from: usize) -> Vec<Vec<String>> {
    for column in from..rows.first().map_or(0, Vec::len) {
        let width = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
            *cell = format!("{cell:>width$}");
        }
    }
    rows
}

fn fit_as_json(fit: &Fit) -> serde_json::Value {
    let values: serde_json::Map<_, _> = fit.values.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    json!({
        "values": values, "runs": fit.runs,
        "sync_ms": fit.sync_ms.mean, "sync_ms_half_interval": fit.sync_ms.half,
        "row_ms": fit.row_ms.mean, "row_ms_half_interval": fit.row_ms.half,
    })
}

/// How far the replica was behind; null: there is none.
fn replica_as_json(cell: &CellSummary) -> serde_json::Value {
    if cell.lag.is_empty() {
        return serde_json::Value::Null;
    }
    let [p50, p99] = [0.5, 0.99].map(|part| cell.lag.quantile(part).as_secs_f64() * 1e3);
    json!({
        "lag_p50_ms": p50, "lag_p99_ms": p99, "lag_max_ms": cell.lag.max().as_secs_f64() * 1e3, "heartbeats": cell.lag.len(),
        "drained_ms": cell.drained_ns.mean / 1e6,
    })
}

fn as_json(cell: &CellSummary) -> serde_json::Value {
    let values: serde_json::Map<_, _> = cell.values.iter().map(|(key, value, _)| (key.clone(), json!(value))).collect();
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let of = |part: f64| json!({ "response": millis(cell.response.quantile(part)), "service": millis(cell.service.quantile(part)) });
    json!({
        "cell": cell.cell, "scenario": cell.scenario, "values": values, "runs_done": cell.runs_done, "failures": cell.failures,
        "rate": cell.rate.mean, "rate_half_interval": cell.rate.half, "operations": cell.operations, "errors": cell.errors,
        "p50_ms": of(0.5), "p99_ms": of(0.99), "late": cell.late, "dropped": cell.dropped, "longest_queue": cell.longest_queue,
        "unsteady": cell.unsteady, "replica": replica_as_json(cell),
        "refusals": cell.refusals, "retries": cell.retries,
        "failed_percent": cell.failed_percent(), "hit_percent": cell.hit_percent(), "hits": cell.traffic.hits, "misses": cell.traffic.misses,
        "sent_bytes": cell.traffic.sent_bytes, "received_bytes": cell.traffic.received_bytes, "body_bytes": cell.traffic.body_bytes,
        "content_bytes": cell.traffic.content_bytes,
        "bottleneck": cell.bottleneck.as_ref().map(|(name, _)| name), "evidence": cell.bottleneck.as_ref().map(|(_, evidence)| evidence),
    })
}
