//! Uploads into a consolidated database that is a SQLite file, against inserts by an application into the same tracked table; what the
//! application has inserted on its way down; and uploads that update and delete.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use headwater_remote::Remote;
use headwater_tests::{Central, Kind, World};
use rusqlite::{Connection, params};

use crate::figures::{figure, rate, ratio};
use crate::purchase::{MODEL, SQLITE_TABLE};

/// How large it is.
#[derive(clap::Args, Debug)]
pub(crate) struct EmbeddedArguments {
    /// Rows of each upload, and of each transaction of the bare loop.
    #[arg(long, default_value_t = 10_000)]
    rows: u32,
    /// How often each takes its turn.
    #[arg(long, default_value_t = 5)]
    repetitions: u32,
}

const MEMBERS: &str = "CREATE TABLE member (user_name TEXT NOT NULL, emp_id INTEGER NOT NULL, PRIMARY KEY (user_name, emp_id)); \
    INSERT INTO member VALUES ('ann', 1), ('ann', 2)";
/// Whose rows are uploaded, and inserted by the bare loop.
const UPLOADED: u32 = 1;
const BARE: u32 = 2;

/// Measures.
pub(crate) fn measure(arguments: &EmbeddedArguments) -> Result<()> {
    let world = World::new(Kind::Sqlite, &format!("{SQLITE_TABLE}{MEMBERS}"), MODEL, &["ann"])?;
    let Central::Sqlite(path) = &world.central else { bail!("it is no file") };
    let mut bare = open(path)?;
    let mut remote = world.remote("one", "ann")?;
    world.sync(&mut remote)?;
    let rows = u64::from(arguments.rows);
    let (mut uploads, mut inserts, mut downloads) = (Vec::new(), Vec::new(), Vec::new());
    let (mut updates, mut deletes) = (Vec::new(), Vec::new());
    // The first turn warms up.
    for turn in 0..=arguments.repetitions {
        let first = turn * arguments.rows;
        insert(&mut open(&world.path("one"))?, UPLOADED, first, arguments.rows)?;
        let upload = sync(&world, &mut remote, (rows, 0))?;
        let bare_insert = insert(&mut bare, BARE, first, arguments.rows)?;
        let download = sync(&world, &mut remote, (0, rows))?;
        let own = format!("emp_id = {UPLOADED} AND purch_id >= {first}");
        let mut upload_after = |sql: &str| -> Result<Duration> {
            open(&world.path("one"))?.execute(sql, [])?;
            sync(&world, &mut remote, (rows, 0))
        };
        let update = upload_after(&format!("UPDATE purchase SET cost = '1.500000' WHERE {own}"))?;
        // They come again, so that every turn finds as many rows.
        let delete = upload_after(&format!("DELETE FROM purchase WHERE {own}"))?;
        insert(&mut open(&world.path("one"))?, UPLOADED, first, arguments.rows)?;
        sync(&world, &mut remote, (rows, 0))?;
        eprintln!(
            "turn {turn}: up {upload:.3?}, bare {bare_insert:.3?}, down {download:.3?}, {update:.3?}, {delete:.3?}"
        );
        if turn > 0 {
            uploads.push(upload);
            inserts.push(bare_insert);
            downloads.push(download);
            updates.push(update);
            deletes.push(delete);
        }
    }
    println!("rate speed.sqlite_upload_rows_per_s {:.0}", rate(rows, &uploads));
    println!("rate speed.sqlite_update_rows_per_s {:.0}", rate(rows, &updates));
    println!("rate speed.sqlite_delete_rows_per_s {:.0}", rate(rows, &deletes));
    println!("rate speed.sqlite_bare_rows_per_s {:.0}", rate(rows, &inserts));
    println!("rate speed.sqlite_download_rows_per_s {:.0}", rate(rows, &downloads));
    figure("speed.sqlite_upload", ratio(&inserts, &uploads));
    Ok(())
}

/// As an application would, with the server's durability.
fn open(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

fn insert(connection: &mut Connection, employee: u32, first: u32, rows: u32) -> Result<Duration> {
    let begin = Instant::now();
    let transaction = connection.transaction()?;
    let mut statement = transaction.prepare_cached("INSERT INTO purchase VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    for number in first..first + rows {
        let cost = format!("{}.120000", 123_456_789 + u64::from(number));
        let date = format!("2005-01-01 {:02}:{:02}:{:02}", number / 3600 % 24, number / 60 % 60, number % 60);
        let notes = format!("{:032x}{:032x}", number.wrapping_mul(2_654_435_761), number.wrapping_mul(40_503));
        statement.execute(params![employee, number, number % 1000, cost, date, notes])?;
    }
    drop(statement);
    transaction.commit()?;
    Ok(begin.elapsed())
}

/// A sync in which so many changes go up, and rows come down.
fn sync(world: &World, remote: &mut Remote, expected: (u64, u64)) -> Result<Duration> {
    let begin = Instant::now();
    let report = world.sync(remote)?;
    ensure!((report.changes_up, report.rows_down) == expected && report.refused == 0, "{report:?}");
    Ok(begin.elapsed())
}
