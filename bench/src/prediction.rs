//! How far `headwater lab pilot` is off: twenty clients say what a thousand would be, who then sync as well.
#![allow(clippy::print_stdout)]

use std::process::Command;

use anyhow::{Context, Result};
use headwater_testkit::Postgres;

use crate::figures::figure;
use crate::tpcb::{headwater, run};

/// What the pilot is told.
#[derive(clap::Args, Debug)]
pub(crate) struct PredictionArguments {
    /// Clients of the pilot.
    #[arg(long, default_value_t = 20)]
    clients: u32,
    /// Clients that are predicted, and then tried.
    #[arg(long = "for", default_value_t = 1_000)]
    expected: u32,
    /// The server's workers, one number after the other.
    #[arg(long, default_value = "2,5")]
    workers: String,
    /// How often each cell is run.
    #[arg(long, default_value_t = 3)]
    repetitions: u32,
}

/// Measures: of all kinds of syncs and numbers of workers the prediction that is furthest from what was.
pub(crate) fn measure(arguments: &PredictionArguments) -> Result<()> {
    let postgres = Postgres::builder().fsync(true).set("max_wal_size", "8GB").set("shared_buffers", "1GB").start()?;
    let place = tempfile::tempdir()?;
    let PredictionArguments { clients, expected, workers, repetitions } = arguments;
    let mut pilot = Command::new(headwater()?);
    pilot.args(["lab", "pilot", "--check", "--json", "--workers", workers, "--target", &postgres.create_database()?]);
    pilot.args(["--clients", &clients.to_string(), "--for", &expected.to_string()]);
    pilot.args(["--repetitions", &repetitions.to_string(), "--results"]).arg(place.path().join("pilot.lab"));
    let said: serde_json::Value = serde_json::from_str(&run(&mut pilot)?)?;
    for prediction in said["predictions"].as_array().context("the pilot predicts nothing")? {
        let [workers, predicted, actual, error] =
            ["workers", "all_ended_s", "actual_all_ended_s", "error_percent"].map(|name| &prediction[name]);
        let kind = prediction["kind"].as_str().unwrap_or_default();
        println!("{kind} with {workers} workers: {predicted} s predicted, {actual} s in fact, {error} %");
    }
    figure("lab.prediction_error", said["worst_error_percent"].as_f64().context("nothing was checked")?);
    Ok(())
}
