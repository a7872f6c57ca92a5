//! Real data, on both databases: a year of flights and all that belongs to them go down, random edits on both sides go both
//! ways, and in the end the remote is its part of the consolidated database to the last digit.
//!
//! What `diff` can't know is in a ledger: the edits of rows that one side alone edited. They must stand, at the end, as they
//! were made; lost on both sides they would be no difference. And `diff` must be able to find one: a digit is planted.

mod edits;

use anyhow::{Context, Result, ensure};
use flights::{Counts, MODEL, Selection, load_postgres, load_sqlite};
use headwater::diff::Report;
use headwater_remote::{Remote, SyncReport};
use headwater_tests::{Central, Kind, World, read_model};
use rusqlite::Connection;

use edits::{Editor, Side};

/// How often both sides edit, and sync.
const ROUNDS: usize = 3;
/// How many edits each side makes in a round.
const EDITS: usize = 1500;
/// What the edits are drawn by, unless HEADWATER_SEED is another number.
const SEED: u64 = 336_776;

#[test]
fn all_flights_go_from_sqlite_and_back() -> Result<()> {
    whole_year(Kind::Sqlite)
}

#[test]
fn all_flights_go_from_postgres_and_back() -> Result<()> {
    whole_year(Kind::Postgres)
}

fn whole_year(kind: Kind) -> Result<()> {
    let world = world(kind)?;
    let mut remote = world.remote("all", "all")?;
    let report = world.sync(&mut remote)?;
    assert_eq!(report.rows_down, 336_776 + 26_115 + 3322 + 1458 + 16 + edits::SPARE_AIRLINES, "{report:?}");
    let large = report.large.context("a large download says what comes")?;
    let is_about = |said: u64, came: u64| (came / 2..=came * 2).contains(&said);
    ensure!(
        is_about(large.rows.unwrap_or(0), report.rows_down) && is_about(large.bytes, report.bytes_down),
        "{report:?}"
    );
    no_difference(&world)?;

    let seed = std::env::var("HEADWATER_SEED").ok().map_or(Ok(SEED), |text| text.parse())?;
    edit_and_sync(&world, &mut remote, seed).with_context(|| format!("HEADWATER_SEED={seed}"))?;
    a_lost_digit_is_found(&world)
}

/// The whole year, and a user who sees all of it. Every table may be edited on both sides here.
fn world(kind: Kind) -> Result<World> {
    let folder = tempfile::tempdir()?;
    let (central, counts) = load(kind, folder.path())?;
    assert_eq!(counts.of("flights"), 336_776);
    central.execute("INSERT INTO member VALUES ('all', 'EWR'), ('all', 'JFK'), ('all', 'LGA')")?;
    central.execute(&edits::spare_airlines())?;
    let model = MODEL.replace("direction = \"download\"", "direction = \"both\"\nconflict = \"remote_wins\"");
    let mut world = World::over(central, folder, read_model(&model)?, &["all"])?;
    world.start_server()?;
    Ok(world)
}

fn load(kind: Kind, folder: &std::path::Path) -> Result<(Central, Counts)> {
    match kind {
        Kind::Sqlite => {
            let path = folder.join("central.db");
            let counts = load_sqlite(&path, Selection::default())?;
            Ok((Central::Sqlite(path), counts))
        }
        Kind::Postgres => {
            let url = headwater_testkit::Postgres::shared()?.create_database()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let counts = runtime.block_on(load_postgres(&url, Selection::default()))?;
            Ok((Central::Postgres(url), counts))
        }
    }
}

fn edit_and_sync(world: &World, remote: &mut Remote, seed: u64) -> Result<()> {
    let mut editor = Editor::new(seed, |sql| world.rows("all", sql))?;
    let mut conflicts = 0;
    for round in 0..ROUNDS {
        let here = editor.edits(Side::Remote, EDITS);
        let there = editor.edits(Side::Consolidated, EDITS);
        world.edit("all", &transaction(&here))?;
        world.central.execute(&transaction(&there))?;
        let report = world.sync(remote)?;
        conflicts += report.conflicts;
        moved_both_ways(&report).with_context(|| format!("round {round}: {report:?}"))?;
    }
    ensure!(conflicts > 0, "both sides edited some rows, and nothing conflicted");
    no_difference(world)?;
    let file = Connection::open(world.path("all"))?;
    let mut edits = 0;
    for stands in editor.ledger() {
        let is_so: bool = file.query_row(&stands, [], |row| row.get(0))?;
        ensure!(is_so, "an edit is lost: {stands} is not so");
        edits += 1;
    }
    ensure!(edits > EDITS, "only {edits} edits are in the ledger");
    let quiet = world.sync(remote)?;
    ensure!((quiet.changes_up, quiet.rows_down, quiet.deletions_down) == (0, 0, 0), "{quiet:?}");
    Ok(())
}

fn transaction(statements: &[String]) -> String {
    format!("BEGIN;\n{};\nCOMMIT;", statements.join(";\n"))
}

fn moved_both_ways(report: &SyncReport) -> Result<()> {
    let few = EDITS as u64 / 4;
    ensure!(report.changes_up > few && report.rows_down > few && report.deletions_down > 0, "too little moved");
    ensure!((report.refused, report.displaced, report.held, report.not_stored) == (0, 0, 0, 0), "not all went through");
    Ok(())
}

fn no_difference(world: &World) -> Result<()> {
    let report = world.diff("all")?;
    ensure!(report.is_equal(false), "{}", serde_json::to_string(&report)?);
    ensure!(report.tables.iter().all(|table| table.remote_rows > 0), "a table is empty: {report:?}");
    Ok(())
}

/// Rows that differ in each table that has some: missing, extra, different.
fn differences(report: &Report) -> Vec<(&str, u64, u64, u64)> {
    let found = report.tables.iter().filter(|table| table.differences() > 0);
    found.map(|table| (table.table.as_str(), table.missing, table.extra, table.different)).collect()
}

/// The last digit of a REAL, of an INT and of a timestamp.
fn a_lost_digit_is_found(world: &World) -> Result<()> {
    let rows = world.rows("all", "SELECT CAST(faa AS text), lat FROM airports WHERE lat > 0 ORDER BY faa LIMIT 1")?;
    let [Some(airport), Some(lat)] = rows.first().context("no airports")?.as_slice() else {
        anyhow::bail!("NULL: {rows:?}");
    };
    let other = f64::from_bits(lat.parse::<f64>()?.to_bits() ^ 1);
    world.edit("all", &format!("UPDATE airports SET lat = {other:?} WHERE faa = '{airport}'"))?;
    let one = "SELECT time_hour, carrier, flight FROM flights WHERE air_time > 0 ORDER BY 1, 2, 3 LIMIT 1";
    world.edit(
        "all",
        &format!("UPDATE flights SET air_time = air_time + 1 WHERE (time_hour, carrier, flight) = ({one})"),
    )?;
    let one = "SELECT origin, time_hour FROM weather WHERE length(time_hour) = 20 ORDER BY 1, 2 LIMIT 1";
    let later = "substr(time_hour, 1, 19) || '.000001Z'";
    world.edit("all", &format!("UPDATE weather SET time_hour = {later} WHERE (origin, time_hour) = ({one})"))?;
    let report = world.diff("all")?;
    let mut found = differences(&report);
    found.sort_unstable();
    assert_eq!(found, [("airports", 0, 0, 1), ("flights", 0, 0, 1), ("weather", 1, 1, 0)]);
    Ok(())
}
