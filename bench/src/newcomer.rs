//! How long a new remote takes from the command to a usable file, against the bare loop that copies the same rows into one.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_model::remote_sql;
use headwater_testkit::Postgres;
use headwater_tests::{Central, World, read_model};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::figures::{figure, rate, ratio, remove};
use crate::{bare, purchase};

/// Says that this process is to be the command line `headwater`: the program then starts as that does.
pub(crate) const AS_COMMAND: &str = "HEADWATER_BENCH_AS_COMMAND";

/// How large it is.
#[derive(clap::Args, Debug)]
pub(crate) struct NewcomerArguments {
    /// Rows of each remote.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// How often each takes its turn.
    #[arg(long, default_value_t = 7)]
    repetitions: u32,
}

/// Who wants the rows of an employee: the first takes the ordinary way, the second has the file made, the third is given it.
const USERS: [&str; 3] = ["first", "second", "third"];

struct Newcomers {
    _postgres: Postgres,
    world: World,
    runtime: Runtime,
    client: Client,
}

/// Measures.
pub(crate) fn measure(arguments: &NewcomerArguments) -> Result<()> {
    let newcomers = Newcomers::start(arguments)?;
    let layout = remote_sql::create_table(&newcomers.world.plan.model, &newcomers.world.plan.tables[0].table);
    let (mut bare_times, mut fresh, mut cached) = (Vec::new(), Vec::new(), Vec::new());
    for employee in 1..=arguments.repetitions {
        let file = newcomers.world.folder.path().join("bare.db");
        let (time, rows) = newcomers.runtime.block_on(bare::download(&newcomers.client, employee, &layout, &file))?;
        ensure!(rows == arguments.rows, "the bare loop copied {rows} rows");
        remove(&file)?;
        bare_times.push(time);
        let [first, second, third] = USERS.map(|user| newcomers.create(user, employee, arguments.rows));
        let ((first, first_ready), (_, second_ready), (third, third_ready)) = (first?, second?, third?);
        ensure!(!first_ready && second_ready && third_ready, "{first_ready} {second_ready} {third_ready}");
        eprintln!("new remote {employee}: bare {time:?}, not cached {first:?}, cached {third:?}");
        fresh.push(first);
        cached.push(third);
    }
    println!("rate speed.bare_rows_per_s {:.0}", rate(arguments.rows, &bare_times));
    println!("rate speed.new_remote_rows_per_s {:.0}", rate(arguments.rows, &fresh));
    println!("rate speed.new_remote_cached_rows_per_s {:.0}", rate(arguments.rows, &cached));
    figure("speed.new_remote", ratio(&fresh, &bare_times));
    figure("speed.new_remote_cached", ratio(&cached, &bare_times));
    Ok(())
}

impl Newcomers {
    fn start(arguments: &NewcomerArguments) -> Result<Newcomers> {
        let postgres =
            Postgres::builder().fsync(true).set("shared_buffers", "1GB").set("max_wal_size", "8GB").start()?;
        let url = postgres.create_database()?;
        let runtime = Runtime::new()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, NoTls))?;
        runtime.spawn(connection);
        let run = |sql: &str| runtime.block_on(client.batch_execute(sql));
        run(purchase::TABLES)?;
        let mut names = Vec::new();
        for employee in 1..=arguments.repetitions {
            for user in USERS {
                run(&format!("INSERT INTO member VALUES ('{user}{employee}', {employee})"))?;
                names.push(format!("{user}{employee}"));
            }
        }
        let users: Vec<&str> = names.iter().map(String::as_str).collect();
        let central = Central::Postgres(url.clone());
        let mut world = World::over(central, tempfile::tempdir()?, read_model(purchase::MODEL)?, &users)?;
        for employee in 1..=arguments.repetitions {
            eprintln!("filling the table with {} rows of employee {employee}", arguments.rows);
            for first in (1..=arguments.rows).step_by(10_000) {
                let some = (arguments.rows - first + 1).min(10_000);
                run(&format!("INSERT INTO purchase {}", purchase::rows_sql(employee, first, some)))?;
            }
        }
        run("VACUUM ANALYZE purchase")?;
        world.start_server()?;
        Ok(Newcomers { _postgres: postgres, world, runtime, client })
    }

    /// A new remote of this user by the commands, `create` and, where that brought no rows, `sync`; how long they took, and whether it was
    /// made of a ready file.
    fn create(&self, user: &str, employee: u32, rows: u64) -> Result<(Duration, bool)> {
        let (user, server) = (format!("{user}{employee}"), self.world.server_url()?);
        let (path, token) = (self.world.path(&user), self.world.token(&user)?);
        let begin = Instant::now();
        let said = headwater(&token, &["remote", "create", &text(&path)?, "--server", &server, "--user", &user])?;
        let (is_ready, created) = (said.contains("ready file"), begin.elapsed());
        let mut synced = String::new();
        if !is_ready {
            synced = headwater(&token, &["remote", "sync", &text(&path)?, "--json"])?;
        }
        let took = begin.elapsed();
        let parts: Vec<&str> = synced.lines().skip_while(|line| !line.contains("times_ms")).map(str::trim).collect();
        eprintln!("{user}: create {created:?}, sync {:?} {}", took.saturating_sub(created), parts.concat());
        let held = headwater_tests::sqlite_rows(&path, "SELECT count(*) FROM purchase")?;
        ensure!(held == [[Some(rows.to_string())]], "{user} holds {held:?}");
        remove(&path)?;
        remove(&PathBuf::from(format!("{}-sync", path.display())))?;
        Ok((took, is_ready))
    }
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).context("a path of letters")
}

/// Runs the command line in a process of its own; what it says.
fn headwater(token: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).env(AS_COMMAND, "1").env("HEADWATER_TOKEN", token);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "headwater {arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}
