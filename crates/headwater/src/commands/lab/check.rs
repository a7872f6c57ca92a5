//! `headwater lab check`: what an experiment would run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use headwater_lab::experiment::{Cell, Experiment};
use headwater_lab::plan::Expected;
use serde_json::{Map, json};

use crate::Done;
use crate::exit::Exit;
use crate::output::{Output, counted};

const EXAMPLES: &str = "\
Examples:
  headwater lab check lab/tpcb.toml
  headwater lab check lab/tpcb.toml --json | jq '.cells | length'

Nothing is run, and no database is connected to. What is wrong with the file is told with its line and column; exit code 2.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArgs {
    /// The experiment (docs/lab.md).
    #[arg(value_name = "FILE")]
    experiment: PathBuf,
}

/// Tells the cells.
pub(super) fn run(args: &CheckArgs, output: &Output) -> Done {
    let experiment = Experiment::open(&args.experiment)?;
    let cells: Vec<_> = experiment.cells.iter().map(|cell| as_json(&experiment, cell)).collect();
    let expected = Expected::of(&experiment);
    let answer = json!({
        "name": experiment.name,
        "repetitions": experiment.repetitions,
        "runs": experiment.cells.len() * experiment.repetitions,
        "expected_seconds": expected.time.as_secs_f64(),
        "is_open_ended": expected.is_open_ended,
        "cells": cells,
    });
    output.answer(&answer, |output| {
        let varied = experiment.cells.first().map(|cell| &cell.varied[..]).unwrap_or_default();
        let head: Vec<&str> =
            ["cell", "scenario"].into_iter().chain(varied.iter().map(|(key, _)| key.as_str())).collect();
        let row = |(place, cell): (usize, &Cell)| {
            let scenario = experiment.scenarios.get(cell.scenario).map_or("", |scenario| &scenario.name);
            let values = cell.varied.iter().map(|(_, value)| value.clone());
            [(place + 1).to_string(), scenario.to_owned()].into_iter().chain(values).collect()
        };
        output.table(&head, experiment.cells.iter().enumerate().map(row))?;
        output.line(summary(&experiment))
    })?;
    Ok(Exit::Done)
}

fn as_json(experiment: &Experiment, cell: &Cell) -> serde_json::Value {
    let varied: Map<_, _> = cell.varied.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let parameters: Map<_, _> =
        cell.parameters.iter().map(|(name, value)| (name.clone(), json!(value.to_string()))).collect();
    let scenario = experiment.scenarios.get(cell.scenario).map(|scenario| &scenario.name);
    json!({ "scenario": scenario, "varied": varied, "parameters": parameters })
}

/// How much there is to run: `4 cells, 3 times each: 12 runs, 2 minutes and 24 seconds`.
pub(super) fn summary(experiment: &Experiment) -> String {
    let cells = experiment.cells.len();
    let expected = Expected::of(experiment);
    let time = match (span(expected.time), expected.is_open_ended, expected.may_be_less) {
        (_, true, _) if expected.time.is_zero() => "for as long as their operations take".to_owned(),
        (time, true, _) => format!("{time} and as long as operations take"),
        (time, _, true) => format!("at most {time}"),
        (time, ..) => time,
    };
    let times = match experiment.repetitions {
        1 => String::new(),
        times => format!(", {times} times each: {}", counted(cells * times, "run")),
    };
    format!("{}{times}; {time}, preparation aside", counted(cells, "cell"))
}

/// A time as people say it, to the second above a minute.
pub(super) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.3} s", time.as_secs_f64()).replace(".000", ""),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
