//! `headwater lab run`: an experiment, run and kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use console::Term;
use headwater_lab::campaign::{Campaign, Ended, Event};
use headwater_lab::experiment::{Cell, Experiment};
use headwater_lab::harness::{Outcome, Progress};
use headwater_lab::plan::{Expected, Plan, Run};
use headwater_lab::results::{self, Writer, usual_name};
use headwater_lab::sync::Own;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::agent::CrewArgs;
use super::check::{span, summary};
use super::live::Live;
use super::show;
use super::system::SystemArgs;
use crate::Done;
use crate::cli::Global;
use crate::exit::Exit;
use crate::output::{Output, Unit, is_colourful, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater lab run lab/tpcb.toml --target postgres://me@localhost/scratch
  headwater lab run lab/tpcb.toml --target sqlite:scratch.db --results tpcb.lab
  headwater lab run lab/open-loop.toml --seed 7 --live
  headwater --config copy/headwater.toml lab run ours.toml --server http://hub:8080     # its scenario is own

Tables that exist are never touched; those that a scenario makes are dropped afterwards. Results go to a file of their own
(`headwater lab show FILE`), run by run: Ctrl-C ends cleanly and keeps what was measured.
Exit code 1 where a run failed, its verify for instance, or somebody stopped it.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RunArgs {
    /// The experiment (docs/lab.md).
    #[arg(value_name = "FILE")]
    experiment: PathBuf,
    /// The database, instead of the experiment's: postgres://..., mariadb://... or sqlite:FILE.
    #[arg(long, value_name = "URL", env = "HEADWATER_LAB_TARGET", hide_env_values = true)]
    target: Option<String>,
    /// Where what is written at the target comes to be read, instead of the experiment's target.replica_url: how far it is behind is measured.
    #[arg(long, value_name = "URL", env = "HEADWATER_LAB_REPLICA", hide_env_values = true)]
    replica: Option<String>,
    /// The file for the results; must not exist. Otherwise the experiment's name with the time.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Where all that is random comes from, instead of the experiment's seed.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Draw throughput and response times in the terminal, second by second.
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    crew: CrewArgs,
    #[command(flatten)]
    system: SystemArgs,
}

/// Runs.
pub(super) fn run(args: &RunArgs, global: &Global, output: &Output) -> Done {
    let experiment = Experiment::open(&args.experiment)?;
    let own = if experiment.is_of_own() {
        Some(args.system.read(global)?)
    } else {
        args.system.refuse("scenario \"own\"")?;
        None
    };
    let target = own.as_ref().map(|own| own.address.clone()).or_else(|| args.target.clone());
    let seed = args.seed.or(experiment.seed).unwrap_or_else(any_seed);
    let path = args.results.clone().unwrap_or_else(|| usual_name(&experiment));
    let with = With { own, crew: Some(&args.crew), replica: args.replica.as_deref(), is_live: args.live };
    let ended = carry_out_with(with, &experiment, (seed, target.as_deref()), &path, &interrupt()?, output)?;
    tell(&ended, &path, seed, output)?;
    Ok(if ended.failed == 0 && !ended.is_interrupted { Exit::Done } else { Exit::Found })
}

/// A seed for what has none.
pub(super) fn any_seed() -> u64 {
    (uuid::Uuid::new_v4().as_u128() >> 76) as u64
}

/// Runs an experiment, says how it goes, and keeps what it measures.
pub(super) fn carry_out(
    experiment: &Experiment,
    seed: u64,
    target: Option<&str>,
    path: &Path,
    interrupt: &watch::Receiver<bool>,
    output: &Output,
) -> Result<Ended> {
    carry_out_with(With::default(), experiment, (seed, target), path, interrupt, output)
}

/// Whose system is tried, who has the clients, and what is drawn.
#[derive(Default)]
pub(super) struct With<'w> {
    /// A system of one's own.
    pub(super) own: Option<Own>,
    /// Agents; none: this process.
    pub(super) crew: Option<&'w CrewArgs>,
    /// Of the target; none: the experiment's.
    pub(super) replica: Option<&'w str>,
    /// Whether there are charts in the terminal.
    pub(super) is_live: bool,
}

/// The same, with these.
pub(super) fn carry_out_with(
    With { own, crew, replica, is_live }: With<'_>,
    experiment: &Experiment,
    (seed, target): (u64, Option<&str>),
    path: &Path,
    interrupt: &watch::Receiver<bool>,
    output: &Output,
) -> Result<Ended> {
    let plan = Plan::new(experiment, seed);
    let program = std::env::current_exe().context("this program's own file could not be found")?;
    let campaign = Campaign::new(experiment, &plan, target, Path::new(""))?.served_by(program).with_own(own);
    let campaign = campaign.with_replica(replica)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the lab could not be started")?;
    campaign.refuse_results(path)?;
    let writer = Writer::create(path, experiment, &plan)?;
    output.note(format!("{}; seed {seed}; results in {}", summary(experiment), path.display()));
    let mut teller = Teller::new(experiment, &plan, is_live, output);
    let ended = runtime.block_on(async {
        let agents = match crew {
            Some(crew) => crew.gather(&campaign, interrupt, output).await?,
            None => None,
        };
        let campaign = campaign.driven_by(agents)?;
        anyhow::Ok(campaign.run(&writer, interrupt, &mut |event| teller.tell(&event)).await?)
    });
    teller.bar.finish_and_clear();
    ended.inspect_err(|_| {
        if !writer.discard_if_empty() {
            output.note(format!("what was measured is kept: headwater lab export {} --rows runs", path.display()));
        }
    })
}

fn tell(ended: &Ended, path: &Path, seed: u64, output: &Output) -> Result<()> {
    let Ended { done, failed, is_interrupted } = ended;
    let answer = json!({
        "results": path, "seed": seed, "done": done, "failed": failed, "interrupted": is_interrupted,
    });
    output.answer(&answer, |output| {
        show::tables(&results::Campaign::open(path)?, output)?;
        if *is_interrupted {
            // A run that was interrupted is in no cell's mean, and so not in what show says.
            output.note(format!(
                "interrupted; what was measured is kept: headwater lab export {} --rows runs",
                path.display()
            ));
        }
        output.note(format!("headwater lab show {}", path.display()));
        Ok(())
    })
}

/// Becomes true with the first signal; the second ends the program. On a thread of its own: the lab's may be at work in SQLite.
pub(super) fn interrupt() -> Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("signals could not be listened to")?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        let listen = |kind| signal(kind).context("signals could not be listened to");
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?)
    };
    let listen = move || {
        runtime.block_on(async {
            for times in 0..2 {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if times == 0 {
                    sender.send_replace(true);
                }
            }
        });
        // Whoever insists gets it, and cleans up by hand.
        std::process::exit(Exit::Found as i32);
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).context("signals could not be listened to")?;
    Ok(receiver)
}

/// Says where a campaign is.
struct Teller<'t> {
    experiment: &'t Experiment,
    output: &'t Output,
    bar: ProgressBar,
    /// What comes after the run that is on; none: nobody knows.
    left: Option<Duration>,
    title: String,
    /// Operations of the last second that is over.
    rate: u64,
    live: Option<Live>,
}

impl<'t> Teller<'t> {
    fn new(experiment: &'t Experiment, plan: &Plan, is_live: bool, output: &'t Output) -> Teller<'t> {
        let bar = output.progress("preparing");
        output.restart(&bar, "preparing", Unit::None, None);
        let expected = Expected::of(experiment);
        debug_assert_eq!(plan.runs.len(), experiment.cells.len() * experiment.repetitions);
        let left = (!expected.is_open_ended).then_some(expected.time);
        let can_draw = !bar.is_hidden();
        if is_live && !can_draw {
            output.note("--live draws in a terminal, which standard error is not: going on without");
        }
        let live = (is_live && can_draw).then(|| Live::new(is_colourful(&std::io::stderr())));
        if live.is_some()
            && let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}  {elapsed}{msg}")
        {
            bar.set_style(style);
        }
        Teller { experiment, output, bar, left, title: String::new(), rate: 0, live }
    }

    fn cell(&self, run: Run) -> Option<&'t Cell> {
        self.experiment.cells.get(run.cell)
    }

    fn tell(&mut self, event: &Event<'_>) {
        match event {
            Event::Begun { number, of, run } => {
                let cell = self.cell(*run);
                let expected = cell.map(|cell| Expected::of_cell(cell).time).unwrap_or_default();
                self.left = self.left.map(|left| left.saturating_sub(expected));
                let varied = cell.map(|cell| &cell.varied[..]).unwrap_or_default();
                let varied: Vec<_> = varied.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                self.title = format!("run {number} of {of}  {}", varied.join(", "));
                self.rate = 0;
                if let Some(live) = &mut self.live {
                    live.restart();
                }
                self.say("preparing");
            }
            Event::Progress(progress) => {
                self.rate = progress.seconds.last().map_or(self.rate, |second| second.operations);
                if let Some(live) = &mut self.live {
                    live.add(&progress.seconds);
                }
                self.say(&self.line(progress));
            }
            Event::Ended(_, outcome, verdict) => {
                let limit = verdict.map(|verdict| format!("  limited by: {}", verdict.bottleneck)).unwrap_or_default();
                let line = format!("{}  {}{limit}", self.title.trim_end(), result(outcome));
                self.bar.suspend(|| self.output.note(line));
            }
        }
    }

    /// Where the run is, and its charts below.
    fn say(&self, line: &str) {
        let line = format!("{}  {line}", self.title);
        let Some(charts) = &self.live else { return self.bar.set_message(line) };
        self.bar.set_prefix(line);
        self.bar.set_message(charts.draw(usize::from(Term::stderr().size().1)));
    }

    fn line(&self, progress: &Progress) -> String {
        let Progress { elapsed, is_warmup, total, response_p99, errors, .. } = progress;
        let own = total.map(|total| total.saturating_sub(*elapsed));
        let left = own.zip(self.left).map(|(own, later)| format!("  {} left", span(own + later)));
        let left = left.unwrap_or_default();
        if *is_warmup {
            return format!("warming up{left}");
        }
        format!("{}/s  p99 {:.3} ms  {errors} errors{left}", thousands(self.rate), millis(*response_p99))
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A run's outcome in a line.
fn result(outcome: &Outcome) -> String {
    let measured = outcome.measured.as_ref().map(|measured| {
        let errors: u64 = measured.errors.values().map(|counted| counted.count).sum();
        let (rate, p99) = (measured.throughput(), millis(measured.response.quantile(0.99)));
        let steadiness = if measured.is_steady == Some(false) { "  not steady" } else { "" };
        format!("{rate:.1}/s  p99 {p99:.3} ms  {errors} errors{steadiness}")
    });
    match (&outcome.failure, measured) {
        (None, measured) => measured.unwrap_or_default(),
        (Some(failure), None) => failure.to_string(),
        (Some(failure), Some(measured)) => format!("{measured}  FAILED: {failure}"),
    }
}
