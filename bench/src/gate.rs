//! How close together clients begin that are at two agents, some way off: processes of this machine, or hosts of their own
//! ([`crate::hosts`]).
#![allow(clippy::print_stdout)]

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use headwater_testkit::Child;
use headwater_testkit::proxy::{Direction, FaultProxy, Plan};
use rusqlite::Connection;

use crate::figures::figure;
use crate::hosts::{HERE, Hosts};
use crate::tpcb::headwater;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_mins(15);

/// How far off, and who.
#[derive(clap::Args, Debug)]
pub(crate) struct GateArguments {
    /// Clients of both agents together.
    #[arg(long, default_value_t = 1_000)]
    clients: u32,
    /// How long what one agent says takes to who conducts, and back again, in milliseconds each.
    #[arg(long, default_value_t = 10)]
    delay_ms: u64,
    /// Sets.
    #[arg(long, default_value_t = 5)]
    sets: u32,
    /// Give each agent a network namespace of its own, reached by virtual Ethernet (as root; takes the networks 10.77.1.0 and 10.77.2.0)
    #[arg(long)]
    namespaces: bool,
}

/// Measures: of all sets the longest time from the first client's start to the last one's.
pub(crate) fn measure(arguments: &GateArguments) -> Result<()> {
    let GateArguments { clients, delay_ms, sets, namespaces } = arguments;
    let hosts = if *namespaces { Some(Hosts::make()?) } else { None };
    let here = if *namespaces { HERE } else { Ipv4Addr::LOCALHOST };
    let place = tempfile::tempdir()?;
    let file = |name: &str| place.path().join(name);
    std::fs::write(
        file("gate.toml"),
        format!(
            "name = \"gate\"\ntarget.url = \"sqlite:gate.db\"\nload.clients = {clients}\nload.timeout = \"5m\"\n\
             stop.iterations = {}\n\
             scenario = {{ name = \"sync\", kind = \"upload-inserts\", rows = 1, backlog = {clients}, receiving_max = {clients} }}\n",
            clients * sets
        ),
    )?;
    let command = |host: Option<usize>, arguments: &[&str]| -> Result<Command> {
        let mut command = match (&hosts, host) {
            (Some(hosts), Some(host)) => hosts.command(host, &headwater()?),
            _ => Command::new(headwater()?),
        };
        command.current_dir(place.path()).stdin(Stdio::null()).arg("lab").args(arguments);
        command.env("HEADWATER_LAB_KEY", "of this measurement alone").env_remove("HEADWATER_LAB_TARGET");
        Ok(command)
    };
    let listen = format!("{here}:0");
    let conduct = ["run", "gate.toml", "--agents", "2", "--listen", &listen, "--results", "gate.lab"];
    let mut conductor = Child::spawn("conductor", &mut command(None, &conduct)?)?;
    let line = conductor.wait_for_line("--join ", PATIENCE)?;
    let at = line.split("--join ").nth(1).and_then(|at| at.split(' ').next()).context("nobody conducts")?;
    let mut agents = Vec::new();
    for (host, name) in ["first", "second"].into_iter().enumerate() {
        let delay = Duration::from_millis(*delay_ms);
        let plan = Plan::clean().delay(Direction::Up, delay).delay(Direction::Down, delay);
        let proxy = FaultProxy::start_at(here.into(), at)?;
        proxy.script(move |_| plan.clone());
        let join = proxy.address().to_string();
        let agent = Child::spawn(name, &mut command(Some(host), &["agent", "--join", &join, "--name", name])?)?;
        agents.push((agent, proxy));
    }
    let ended = conductor.wait(PATIENCE)?;
    anyhow::ensure!(ended.success(), "{}", conductor.stderr());
    let results = Connection::open(file("gate.lab"))?;
    let spread = |part: f64| -> Result<f64> {
        let sql = "SELECT up_to_ns / 1e6 FROM (SELECT up_to_ns, sum(count) OVER (ORDER BY up_to_ns) AS upto, \
                   sum(count) OVER () AS of_all FROM bucket WHERE clock = 'start') WHERE upto >= ?1 * of_all ORDER BY 1";
        Ok(results.query_row(sql, [part], |row| row.get(0))?)
    };
    println!("half began within {:.1} ms, 99 of 100 within {:.1} ms", spread(0.5)?, spread(0.99)?);
    figure("lab.agents_gate_spread_ms", spread(1.0)?);
    Ok(())
}
