//! `headwater lab pilot`: what a few clients say of many.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use headwater_lab::experiment::Experiment;
use headwater_lab::pilot::{Curve, Pilot, Prediction, Predictions, advice};
use headwater_lab::results::{Campaign, usual_name};
use serde_json::json;

use super::run::{With, any_seed, carry_out_with, interrupt};
use super::system::SystemArgs;
use crate::Done;
use crate::cli::Global;
use crate::exit::Exit;
use crate::output::{Output, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater lab pilot --target postgres://me@localhost/scratch --for 5000
  headwater lab pilot --target postgres://me@localhost/scratch --rows 20 --kind upload-updates,download-inserts
  headwater lab pilot --target postgres://me@localhost/scratch --workers 2,6 --check
  headwater --config copy/headwater.toml lab pilot --own --for 2000 --rows 20
  headwater --config copy/headwater.toml lab pilot --own --for 2000 --server https://hub.example --workers 6

A few clients sync with a server that the lab starts, on a table Purchase with the rows of all that are asked for; the time of many follows from
when each of the few was done. With --own they are remotes of your users, of your model, on your database (take a copy): each gets all that it may have, or
sends rows that it got back as they are. With --check as many as are asked for sync as well, and the prediction is held against them.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PilotArgs {
    /// The consolidated database: a PostgreSQL for scratch, or sqlite:FILE.
    #[arg(
        long,
        value_name = "URL",
        env = "HEADWATER_LAB_TARGET",
        hide_env_values = true,
        required_unless_present = "own"
    )]
    target: Option<String>,
    /// Sync with a system of your own, as its configuration has it (--config): server, model, scripts and a copy of its data.
    #[arg(long)]
    own: bool,
    #[command(flatten)]
    system: SystemArgs,
    /// For how many clients at once it is asked what would be.
    #[arg(long = "for", value_name = "CLIENTS", default_value_t = 1_000)]
    expected: usize,
    /// How many clients sync.
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    clients: usize,
    /// The server's workers, one number after the other.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "2,4,6", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    workers: Vec<u16>,
    /// What syncs do (docs/lab.md): otherwise download-inserts, upload-updates, upload-deletes and upload-inserts; with --own, first-download and upload.
    #[arg(long = "kind", value_name = "KINDS", value_delimiter = ',')]
    kinds: Vec<String>,
    /// Changes of each sync.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    rows: usize,
    /// Seconds that each run is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    time: f64,
    /// How often each is run.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    repetitions: usize,
    /// Have as many clients sync as are asked for, and hold the prediction against that.
    #[arg(long)]
    check: bool,
    /// The file for the results; must not exist. Otherwise `pilot` with the time.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Where all that is random comes from.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.1..=3_600.0).contains(&seconds) { Ok(seconds) } else { Err("0.1 to 3600 seconds are possible".to_owned()) }
}

/// Tries, and predicts.
pub(super) fn run(args: &PilotArgs, global: &Global, output: &Output) -> Done {
    let mut workers: Vec<usize> = args.workers.iter().map(|workers| usize::from(*workers)).collect();
    workers.sort_unstable();
    workers.dedup();
    if !args.own {
        args.system.refuse("--own")?;
    }
    let pilot = Pilot {
        clients: args.clients,
        expected: args.expected,
        workers,
        kinds: if args.kinds.is_empty() { usual_kinds(args.own) } else { args.kinds.clone() },
        rows: args.rows,
        time: Duration::from_secs_f64(args.time),
        repetitions: args.repetitions,
        is_checked: args.check,
        is_own: args.own,
        is_served: args.system.has_server(),
    };
    let text = pilot.specification()?;
    let none = |name: &str| Err(format!("{name} is no part of a pilot"));
    let experiment = Experiment::parse("pilot", &text, &none).map_err(headwater_lab::Error::Spec)?;
    let seed = args.seed.unwrap_or_else(any_seed);
    let path = args.results.clone().unwrap_or_else(|| usual_name(&experiment));
    let own = if args.own { Some(args.system.read(global)?) } else { None };
    let target = own.as_ref().map(|own| own.address.clone()).or_else(|| args.target.clone());
    let ended = carry_out_with(
        With { own, ..With::default() },
        &experiment,
        (seed, target.as_deref()),
        &path,
        &interrupt()?,
        output,
    )?;
    if ended.is_interrupted || ended.failed > 0 {
        let why = if ended.is_interrupted { "it was interrupted" } else { "a run failed" };
        let kept = path.display();
        output.note(format!("nothing is predicted: {why}; what was measured is kept: headwater lab show {kept}"));
        return Ok(Exit::Found);
    }
    let predictions = Predictions::of(&pilot, &Campaign::open(&path)?)?;
    output.answer(&as_json(&predictions), |output| tell(&predictions, output))?;
    output.note(format!("headwater lab report {}", path.display()));
    Ok(Exit::Done)
}

fn usual_kinds(is_own: bool) -> Vec<String> {
    let own = ["first-download", "upload"];
    let purchase = ["download-inserts", "upload-updates", "upload-deletes", "upload-inserts"];
    (if is_own { &own[..] } else { &purchase[..] }).iter().map(|kind| (*kind).to_owned()).collect()
}

fn tell(predictions: &Predictions, output: &Output) -> Result<()> {
    let Predictions { clients, expected, all, curves, .. } = predictions;
    output.line(format!("{} clients at once, as {clients} say:", thousands(*expected as u64)))?;
    output.line("")?;
    let is_checked = all.iter().any(|prediction| prediction.actual.is_some());
    let mut head = vec![
        "kind",
        "workers",
        "syncs/s",
        "ms a sync",
        "all done, s",
        "95 %",
        "by curve, s",
        "average, s",
        "an hour",
        "a day",
    ];
    if is_checked {
        head.extend(["was, s", "off"]);
    }
    output.table(&head, all.iter().map(|prediction| row(prediction, is_checked)))?;
    output.line("")?;
    for Curve { kind, law } in curves {
        let peak = law
            .peak()
            .map_or("more workers are always better".to_owned(), |peak| format!("best with {peak:.0} workers"));
        output.line(format!(
            "{kind}: one worker would do {:.0} a second; {:.1} % of the work is done by one at a time; {peak}",
            law.alone,
            law.contention * 100.0,
        ))?;
    }
    output.line("")?;
    for sentence in advice(predictions) {
        output.line(format!("- {sentence}"))?;
    }
    if let Some(error) = predictions.worst_error_percent() {
        output.line("")?;
        output.line(format!("The worst prediction of when all are done is off by {error:.1} %."))?;
    }
    Ok(())
}

fn row(prediction: &Prediction, is_checked: bool) -> Vec<String> {
    let Prediction { kind, workers, rate, single_ms, all_ended_s, average_s, by_curve_s, actual } = prediction;
    let mut row = vec![
        kind.clone(),
        workers.to_string(),
        format!("{rate:.1}"),
        format!("{single_ms:.1}"),
        format!("{:.2}", all_ended_s.middle),
        format!("{:.2} to {:.2}", all_ended_s.low, all_ended_s.high),
        by_curve_s.map_or(String::new(), |time| format!("{time:.2}")),
        format!("{average_s:.2}"),
        thousands(prediction.an_hour() as u64),
        thousands((prediction.an_hour() * 24.0) as u64),
    ];
    if is_checked {
        row.push(actual.map_or(String::new(), |actual| format!("{:.2}", actual.all_ended_s)));
        row.push(prediction.error_percent().map_or(String::new(), |error| format!("{error:+.1} %")));
    }
    row
}

fn as_json(predictions: &Predictions) -> serde_json::Value {
    let prediction = |prediction: &Prediction| {
        let Prediction { kind, workers, rate, single_ms, all_ended_s, average_s, by_curve_s, actual } = prediction;
        json!({
            "kind": kind, "workers": workers, "syncs_per_s": rate, "single_ms": single_ms,
            "all_ended_s": all_ended_s.middle, "all_ended_s_low": all_ended_s.low, "all_ended_s_high": all_ended_s.high,
            "longest_s": all_ended_s.middle, "average_s": average_s, "by_curve_s": by_curve_s,
            "syncs_per_hour": prediction.an_hour(), "syncs_per_day": prediction.an_hour() * 24.0,
            "actual_all_ended_s": actual.map(|actual| actual.all_ended_s), "actual_average_s": actual.map(|actual| actual.average_s),
            "error_percent": prediction.error_percent(),
        })
    };
    let curve = |Curve { kind, law }: &Curve| json!({ "kind": kind, "alone_per_s": law.alone, "contention": law.contention, "coherence": law.coherence, "peak_workers": law.peak() });
    json!({
        "clients": predictions.clients, "for": predictions.expected,
        "predictions": predictions.all.iter().map(prediction).collect::<Vec<_>>(),
        "curves": predictions.curves.iter().map(curve).collect::<Vec<_>>(),
        "advice": advice(predictions),
        "worst_error_percent": predictions.worst_error_percent(),
    })
}
