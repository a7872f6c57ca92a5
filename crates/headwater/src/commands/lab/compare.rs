//! `headwater lab compare`: two campaigns beside each other.

use std::path::PathBuf;

use clap::Args;
use headwater_lab::results::{Campaign, Compared, ComparedCell, Comparison, Ratio};
use serde_json::{Value, json};

use crate::Done;
use crate::exit::{Exit, usage};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater lab compare before.lab after.lab
  headwater lab compare before.lab after.lab --tolerance 5            # what is less than 5 % does not count
  headwater lab compare laptop.lab server.lab --any-environment

Each cell of the second is better or worse than the same cell of the first, or there is no difference that the runs could tell from
chance. It takes two runs of each cell at least, and finds more with more of them (`repetitions`). Exit code 1: something is worse.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CompareArgs {
    /// The results to compare with.
    #[arg(value_name = "FIRST")]
    first: PathBuf,
    /// The results that are better or worse.
    #[arg(value_name = "SECOND")]
    second: PathBuf,
    /// A difference that is smaller, in per cent, is none.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    tolerance: f64,
    /// Compare the cells that both have, though there are others.
    #[arg(long)]
    any_specification: bool,
    /// Compare though the machines, the databases or the programs differ.
    #[arg(long)]
    any_environment: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim_end_matches('%').parse().map_err(|_| "expected per cent: 5, 2.5".to_owned())?;
    if (0.0..=1000.0).contains(&number) { Ok(number) } else { Err("expected 0 to 1,000 per cent".to_owned()) }
}

/// Compares.
pub(super) fn run(args: &CompareArgs, output: &Output) -> Done {
    let (first, second) = (Campaign::open(&args.first)?, Campaign::open(&args.second)?);
    let comparison = Comparison::of(&first, &second, args.tolerance)?;
    refuse(&comparison.specification, args.any_specification, "specifications", "--any-specification")?;
    refuse(&comparison.environment, args.any_environment, "environments", "--any-environment")?;
    if comparison.cells.is_empty() {
        return Err(usage("the two have no cell in common"));
    }
    output.answer(&as_json(&comparison), |output| show(&comparison, output))?;
    Ok(if comparison.has_regressed() { Exit::Found } else { Exit::Done })
}

fn refuse(unlike: &[String], is_allowed: bool, what: &str, option: &str) -> Result<(), anyhow::Error> {
    if unlike.is_empty() || is_allowed {
        return Ok(());
    }
    let list: Vec<String> = unlike.iter().map(|what| format!("\n  {what}")).collect();
    Err(usage(format!("the {what} are unlike; {option} compares all the same:{}", list.concat())))
}

fn show(comparison: &Comparison, output: &Output) -> anyhow::Result<()> {
    for what in comparison.specification.iter().chain(&comparison.environment) {
        output.line(format!("unlike: {what}"))?;
    }
    let row = |cell: &ComparedCell, compared: &Compared| {
        let values: Vec<String> = cell.values.iter().map(|(key, value)| format!("{key} {value}")).collect();
        let name = if values.is_empty() { cell.scenario.clone() } else { values.join(", ") };
        vec![
            name,
            compared.measure.name().to_owned(),
            format!("{:.3}", compared.first.mean),
            format!("{:.3}", compared.second.mean),
            compared.ratio.map_or("-".to_owned(), change),
            compared.verdict.name().to_owned(),
        ]
    };
    let rows = comparison.cells.iter().flat_map(|cell| cell.measures.iter().map(move |compared| row(cell, compared)));
    output.table(&["cell", "", "first", "second", "change", ""], rows.collect::<Vec<_>>())
}

/// In per cent, with the interval.
fn change(ratio: Ratio) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    format!("{:+.1} % ({:+.1} to {:+.1})", percent(ratio.mean), percent(ratio.low), percent(ratio.high))
}

fn as_json(comparison: &Comparison) -> Value {
    let measure = |compared: &Compared| {
        let ratio = compared.ratio.map(|ratio| json!({ "mean": ratio.mean, "low": ratio.low, "high": ratio.high }));
        json!({
            "measure": compared.measure.name(), "first": compared.first.mean, "second": compared.second.mean, "ratio": ratio,
            "verdict": compared.verdict.name(),
        })
    };
    let cell = |cell: &ComparedCell| {
        let values: serde_json::Map<_, _> =
            cell.values.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let measures: Vec<_> = cell.measures.iter().map(measure).collect();
        json!({ "scenario": cell.scenario, "values": values, "measures": measures })
    };
    json!({
        "specification": comparison.specification, "environment": comparison.environment,
        "cells": comparison.cells.iter().map(cell).collect::<Vec<_>>(),
    })
}
