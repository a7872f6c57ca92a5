//! `headwater lab compare`: two campaigns beside each other, or arms of one.

use std::path::PathBuf;

use clap::Args;
use headwater_lab::results::{Campaign, Compared, ComparedCell, Comparison, Estimate, Ratio};
use serde_json::{Value, json};

use crate::Done;
use crate::exit::{Exit, usage};
use crate::output::Output;

/// The column of differences, which arms of one campaign have.
const DIFFERENCE: usize = 4;

const EXAMPLES: &str = "\
Examples:
  headwater lab compare before.lab after.lab
  headwater lab compare before.lab after.lab --tolerance 5            # what is less than 5 % does not count
  headwater lab compare laptop.lab server.lab --any-environment
  headwater lab compare pooler.lab --between target.url               # arms of one campaign, round by round

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
    #[arg(value_name = "SECOND", required_unless_present = "between")]
    second: Option<PathBuf>,
    /// Compare the cells of FIRST that differ in this key alone, each with the first of them; may be given again for keys that are zipped.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["second", "any_environment"])]
    between: Vec<String>,
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
    let first = Campaign::open(&args.first)?;
    let comparison = match &args.second {
        Some(second) => Comparison::of(&first, &Campaign::open(second)?, args.tolerance)?,
        None => between(&first, args)?,
    };
    refuse(&comparison.specification, args.any_specification, "specifications", "--any-specification")?;
    refuse(&comparison.environment, args.any_environment, "environments", "--any-environment")?;
    if comparison.cells.is_empty() {
        let keys = args.between.join(" and ");
        return Err(usage(match args.second {
            Some(_) => "the two have no cell in common".to_owned(),
            None => format!("no two cells differ in {keys} alone; name the keys that are zipped with it too"),
        }));
    }
    output.answer(&as_json(&comparison), |output| show(&comparison, output))?;
    Ok(if comparison.has_regressed() { Exit::Found } else { Exit::Done })
}

fn between(campaign: &Campaign, args: &CompareArgs) -> anyhow::Result<Comparison> {
    let varied = campaign.varied()?;
    if let Some(key) = args.between.iter().find(|key| !varied.contains(key)) {
        let known = if varied.is_empty() { "none is a list".to_owned() } else { varied.join(", ") };
        return Err(usage(format!(
            "--between {key}: no cells of the campaign differ in it; keys in which they do: {known}"
        )));
    }
    Ok(Comparison::between(campaign, &args.between, args.tolerance)?)
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
        let value = |(key, value): &(String, String)| match cell.first.iter().find(|(known, _)| known == key) {
            Some((_, first)) if first != value => format!("{key} from {first} to {value}"),
            _ => format!("{key} {value}"),
        };
        let values: Vec<String> = cell.values.iter().map(value).collect();
        let name = if values.is_empty() { cell.scenario.clone() } else { values.join(", ") };
        let half = |it: Estimate| it.half.map_or(String::new(), |half| format!(" +- {half:.3}"));
        vec![
            name,
            compared.measure.name().to_owned(),
            format!("{:.3}", compared.first.mean),
            format!("{:.3}", compared.second.mean),
            compared.difference.map_or("-".to_owned(), |it| format!("{:+.3}{}", it.mean, half(it))),
            compared.ratio.map_or("-".to_owned(), change),
            compared.verdict.name().to_owned(),
        ]
    };
    let rows = comparison.cells.iter().flat_map(|cell| cell.measures.iter().map(move |compared| row(cell, compared)));
    let mut rows: Vec<Vec<String>> = rows.collect();
    let mut head = vec!["cell", "", "first", "second", "difference", "change", ""];
    if comparison.cells.iter().flat_map(|cell| &cell.measures).all(|compared| compared.difference.is_none()) {
        head.remove(DIFFERENCE);
        for row in &mut rows {
            row.remove(DIFFERENCE);
        }
    }
    output.table(&head, rows)
}

/// In per cent, with the interval.
fn change(ratio: Ratio) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    format!("{:+.1} % ({:+.1} to {:+.1})", percent(ratio.mean), percent(ratio.low), percent(ratio.high))
}

fn as_json(comparison: &Comparison) -> Value {
    let measure = |compared: &Compared| {
        let ratio = compared.ratio.map(|ratio| json!({ "mean": ratio.mean, "low": ratio.low, "high": ratio.high }));
        let difference = compared.difference.map(|it| json!({ "mean": it.mean, "half_interval": it.half }));
        json!({
            "difference": difference, "measure": compared.measure.name(), "first": compared.first.mean, "second": compared.second.mean, "ratio": ratio,
            "verdict": compared.verdict.name(),
        })
    };
    let cell = |cell: &ComparedCell| {
        let values: serde_json::Map<_, _> =
            cell.values.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let measures: Vec<_> = cell.measures.iter().map(measure).collect();
        let first: serde_json::Map<_, _> = cell.first.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        json!({ "scenario": cell.scenario, "values": values, "first": first, "measures": measures })
    };
    json!({
        "specification": comparison.specification, "environment": comparison.environment,
        "cells": comparison.cells.iter().map(cell).collect::<Vec<_>>(),
    })
}
