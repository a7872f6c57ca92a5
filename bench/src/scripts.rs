//! Uploads whose rows are fetched and written by scripts, row by row, near the database and far from it.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_remote::Remote;
use headwater_testkit::proxy::Direction;
use headwater_testkit::{FaultProxy, Plan, Postgres};
use headwater_tests::{Central, World, read_model};

use crate::figures::rate;

/// How large it is.
#[derive(clap::Args, Debug)]
pub(crate) struct ScriptsArguments {
    /// Rows of each upload.
    #[arg(long, default_value_t = 10_000)]
    rows: u64,
    /// How often all is measured.
    #[arg(long, default_value_t = 5)]
    repetitions: u32,
    /// Hold back what the database says for so long.
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
}

const MODEL: &str = r#"
name = "items"
version = 1
[tables.item]
key = ["id"]
columns = { id = "int not null", name = "text" }
scripts = { upload_fetch = "fetch", upload_insert = "insert", upload_update = "update", upload_delete = "delete" }
"#;

fn script(file: &str) -> &'static str {
    match file {
        "fetch" => "SELECT id, name FROM item WHERE id = :r.id",
        "insert" => "INSERT INTO item VALUES (:r.id, :r.name, now())",
        "update" => "UPDATE item SET name = :r.name, updated_at = now() WHERE id = :r.id",
        _ => "DELETE FROM item WHERE id = :o.id",
    }
}

/// Measures.
pub(crate) fn measure(arguments: &ScriptsArguments) -> Result<()> {
    let postgres = Postgres::builder().fsync(true).start()?;
    let url = postgres.create_database()?;
    let central = Central::Postgres(url.clone());
    central.execute("CREATE TABLE item (id bigint PRIMARY KEY, name text, updated_at timestamptz)")?;
    let mut model = read_model(MODEL)?;
    model.load_scripts(|file| anyhow::Ok(script(file).to_owned()))?;
    let mut world = World::over(central, tempfile::tempdir()?, model, &["ann"])?;
    let (before, rest) = url.split_once('@').context("a user")?;
    let (address, name) = rest.split_once('/').context("a database's name")?;
    let proxy = FaultProxy::start(address)?;
    let far = Central::Postgres(format!("{before}@{}/{name}", proxy.address()));
    if arguments.delay_ms > 0 {
        let delay = Duration::from_millis(arguments.delay_ms);
        proxy.script(move |_| Plan::clean().delay(Direction::Down, delay));
        world.start_server_over(&far.backend()?)?;
    } else {
        world.start_server()?;
    }
    let mut remote = world.remote("one", "ann")?;
    world.sync(&mut remote)?;
    let rows = arguments.rows;
    let series = format!("WITH RECURSIVE s(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM s WHERE n < {rows})");
    let steps = [
        ("insert", format!("{series} INSERT INTO item SELECT n, 'item ' || n FROM s")),
        ("update", "UPDATE item SET name = name || '!'".to_owned()),
        ("delete", "DELETE FROM item".to_owned()),
    ];
    let mut times = [const { Vec::new() }; 3];
    for turn in 0..arguments.repetitions {
        for ((what, sql), times) in steps.iter().zip(&mut times) {
            world.edit("one", sql)?;
            times.push(upload(&world, &mut remote, rows)?);
            eprintln!("{what} {turn}: {:.3?}", times.last());
        }
    }
    for ((what, _), times) in steps.iter().zip(&times) {
        println!("rate speed.script_{what}_rows_per_s {:.0}", rate(rows, times));
    }
    Ok(())
}

fn upload(world: &World, remote: &mut Remote, rows: u64) -> Result<Duration> {
    let begin = Instant::now();
    let report = world.sync(remote)?;
    ensure!(report.changes_up == rows && report.refused == 0, "{report:?}");
    Ok(begin.elapsed())
}
