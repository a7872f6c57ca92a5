//! `headwater lab selftest`: servers that do nothing, some of them slower or standing still for a second, and whether the lab says so.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use headwater_lab::campaign::Campaign;
use headwater_lab::experiment::Experiment;
use headwater_lab::null::{self, Behaviour};
use headwater_lab::plan::Plan;
use headwater_lab::results::{self, CellSummary, Comparison, Measure, Verdict, Writer};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::Done;
use crate::exit::Exit;
use crate::output::{Output, thousands};

pub(super) const EXAMPLES: &str = "\
Examples:
  headwater lab selftest
  headwater lab selftest --json

It takes half a minute and no database: servers that do nothing are measured, one of them standing still for 1.2 seconds, one a tenth slower.
Exit code 1: something was not found. On a machine with other work a tenth may drown in it; try again when it is quiet.";

/// What is smaller, in per cent, is no difference: the servers keep their delays of twenty milliseconds to one.
const TOLERANCE: f64 = 2.0;
/// Where all that is random comes from.
const SEED: u64 = 1;

/// How long a server stands still: a hundredth of five seconds' arrivals wait for a second at least where none is forgotten.
const STALL: Duration = Duration::from_millis(1200);

/// One thing that the lab must see.
struct Check {
    what: &'static str,
    found: String,
    is_ok: bool,
}

/// Runs all.
pub(super) fn run(output: &Output) -> Done {
    let place = Place::new()?;
    let mut checks = Vec::new();
    for (doing, check) in
        [("the lab's own limit", limit as fn(&Place) -> Result<Vec<Check>>), ("a stall", stall), ("arms", arms)]
    {
        output.note(format!("measuring {doing}"));
        checks.extend(check(&place)?);
    }
    let answer: Vec<_> =
        checks.iter().map(|check| json!({ "check": check.what, "found": check.found, "ok": check.is_ok })).collect();
    output.answer(&answer, |output| {
        let word = |is_ok| if is_ok { "ok" } else { "FAILED" }.to_owned();
        let row = |check: &Check| vec![word(check.is_ok), check.what.to_owned(), check.found.clone()];
        output.table(&["", "check", "found"], checks.iter().map(row))
    })?;
    Ok(if checks.iter().all(|check| check.is_ok) { Exit::Done } else { Exit::Found })
}

/// How much one thread of the lab does where the server does nothing: what comes near it in a run was the lab's own limit.
fn limit(place: &Place) -> Result<Vec<Check>> {
    let server = Server::start(Behaviour::default())?;
    let campaign = place.campaign(&format!(
        "name = \"limit\"\nscenario.name = \"read_simple\"\nload = {{ clients = 32, threads = 1 }}\ntarget.url = {:?}\nstop = {{ warmup = \"500ms\", duration = \"3s\" }}",
        server.url()
    ))?;
    let cells = campaign.summary()?;
    let rate = cells.first().map_or(0.0, |cell| cell.rate.mean);
    let limit = cells.first().and_then(|cell| cell.bottleneck.clone());
    let (bottleneck, evidence) = limit.unwrap_or(("nothing".to_owned(), "nothing was measured".to_owned()));
    let found = format!("{} operations a second; limited by {bottleneck}: {evidence}", thousands(rate as u64));
    Ok(vec![Check { what: "a server that does nothing: one thread's limit", found, is_ok: rate > 0.0 }])
}

/// Who comes while a server stands still is counted in an open loop.
fn stall(place: &Place) -> Result<Vec<Check>> {
    let behaviour = Behaviour { stall: Some((Duration::from_secs(1), STALL)), ..Behaviour::default() };
    let measure = |load: &str| -> Result<Duration> {
        let server = Server::start(behaviour)?;
        let campaign = place.campaign(&format!(
            "name = \"stall\"\nscenario.name = \"read_simple\"\nload = {{ clients = 4, {load} }}\ntarget.url = {:?}\nstop.duration = \"5s\"",
            server.url()
        ))?;
        Ok(campaign.summary()?.first().map(|cell: &CellSummary| cell.response.quantile(0.99)).unwrap_or_default())
    };
    let open = measure("arrival = \"constant\", rate = 200")?;
    let closed = measure("think = \"1us\"")?;
    let found = format!("p99 {open:.2?} in an open loop; {closed:.2?} in a closed one, which does not see it");
    Ok(vec![Check { what: "a stall of 1.2 seconds in five", found, is_ok: open >= Duration::from_secs(1) }])
}

/// Equal servers, and one that is a tenth slower.
fn arms(place: &Place) -> Result<Vec<Check>> {
    let start = |millis| Server::start(Behaviour { delay: Duration::from_millis(millis), stall: None });
    let servers = [start(20)?, start(20)?, start(22)?];
    let urls = servers.each_ref().map(Server::url);
    let campaign = place.campaign(&format!(
        "name = \"arms\"\nrepetitions = 10\norder = \"abba\"\nscenario.name = \"read_simple\"\nload.clients = 4\ntarget.url = {urls:?}\nstop.duration = \"500ms\""
    ))?;
    let comparison = Comparison::between(&campaign, &["target.url".to_owned()], TOLERANCE)?;
    let [equal, slower] = &comparison.cells[..] else { anyhow::bail!("not all arms could be measured") };
    let verdict = |cell: &results::ComparedCell, measure| {
        cell.measures.iter().find(|compared| compared.measure == measure).map(|compared| compared.verdict)
    };
    let say = |cell: &results::ComparedCell| -> String {
        let change = |compared: &results::Compared| {
            let percent =
                compared.ratio.map_or("?".to_owned(), |ratio| format!("{:+.1} %", (ratio.mean - 1.0) * 100.0));
            format!("{} {percent} {}", compared.measure.name(), compared.verdict.name())
        };
        cell.measures.iter().map(change).collect::<Vec<_>>().join(", ")
    };
    let is_equal =
        [Measure::Rate, Measure::ResponseP50].map(|it| verdict(equal, it)) == [Some(Verdict::NoDifference); 2];
    let is_slower = [Measure::Rate, Measure::ResponseP50].map(|it| verdict(slower, it)) == [Some(Verdict::Worse); 2];
    Ok(vec![
        Check { what: "two equal servers", found: say(equal), is_ok: is_equal },
        Check { what: "a server that is a tenth slower", found: say(slower), is_ok: is_slower },
    ])
}

/// A folder for results, removed at the end.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Result<Place> {
        Ok(Place { folder: tempfile::tempdir().context("a folder for the results could not be made")? })
    }

    /// Runs an experiment.
    fn campaign(&self, text: &str) -> Result<results::Campaign> {
        let no_files = |name: &str| Err(format!("there is no {name}"));
        let experiment = Experiment::parse("selftest.toml", text, &no_files).map_err(headwater_lab::Error::Spec)?;
        let plan = Plan::new(&experiment, SEED);
        let path = self.folder.path().join(format!("{}.lab", uuid::Uuid::new_v4()));
        let writer = Writer::create(&path, &experiment, &plan)?;
        let campaign = Campaign::new(&experiment, &plan, None, Path::new(""))?;
        let (_never, interrupt) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("the lab could not be started")?;
        runtime.block_on(campaign.run(&writer, &interrupt, &mut |_| {}))?;
        drop(writer);
        Ok(results::Campaign::open(&path)?)
    }
}

/// A server that does nothing, in a process of its own: its processor time is not the lab's. It ends with this one.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(behaviour: Behaviour) -> Result<Server> {
        let program = std::env::current_exe().context("the program's own file is not known")?;
        let mut command = Command::new(program);
        command.args(["lab", "null-server", "--delay", &behaviour.delay.as_millis().to_string()]);
        if let Some((after, span)) = behaviour.stall {
            let [after, span] = [after, span].map(|time| time.as_millis().to_string());
            command.args(["--stall-after", &after, "--stall", &span]);
        }
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = started.context("a server that does nothing could not be started")?;
        let mut line = String::new();
        let told = process.stdout.take().context("it has no output")?;
        BufReader::new(told).read_line(&mut line).context("it did not say its port")?;
        let port = line.trim().parse().with_context(|| format!("it said {line:?} for its port"))?;
        Ok(Server { process, port })
    }

    fn url(&self) -> String {
        format!("postgres://lab@127.0.0.1:{}/null", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const NULL_SERVER_EXAMPLES: &str = "\
Examples:
  headwater lab null-server                                            # says its port, and serves until its input ends
  headwater lab null-server --delay 20 --stall-after 1000 --stall 1000";

/// How the server behaves.
#[derive(Debug, Args)]
#[command(after_help = NULL_SERVER_EXAMPLES)]
pub(super) struct NullServerArgs {
    /// How long each statement takes.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    delay: u64,
    /// When it stands still, after the first statement.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    stall_after: u64,
    /// For how long.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    stall: u64,
}

/// Says its port on standard output, and serves until its standard input ends.
pub(super) fn null_server(args: &NullServerArgs) -> Done {
    let millis = Duration::from_millis;
    let stall = (args.stall > 0).then(|| (millis(args.stall_after), millis(args.stall)));
    let behaviour = Behaviour { delay: millis(args.delay), stall };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the server can't start")?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let mut out = std::io::stdout();
        writeln!(out, "{}", listener.local_addr()?.port())?;
        out.flush()?;
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        tokio::select! {
            served = null::serve(listener, behaviour) => served?,
            _ = ended => {}
        }
        anyhow::Ok(())
    })?;
    Ok(Exit::Done)
}
