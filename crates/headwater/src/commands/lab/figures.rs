//! `headwater lab figures`: figures that a file lists, measured and held against their targets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use headwater_lab::experiment::Experiment;
use headwater_lab::figures::{Figure, Figures, How, Measure, Measured, printed};
use headwater_lab::results::Campaign;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::run::{any_seed, carry_out, interrupt};
use crate::Done;
use crate::exit::{Exit, usage};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater lab figures --list                                        # nothing is run
  headwater lab figures lab
  headwater lab figures --file own.toml --target postgres://me@localhost/scratch

A line for each: figure NAME VALUE (LOW to HIGH) target OP NUMBER ok, or short, or failed where there is no value. What was measured
several times is a median with its interval, and ok where that reaches the target. Exit code 1: not all are ok.
The file says what is run: experiments, or programs that print such figures (docs/lab.md).";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct FiguresArgs {
    /// Only figures whose names begin with one of these, as in GROUP.NAME; all of a group, or one.
    #[arg(value_name = "GROUP")]
    only: Vec<String>,
    /// The list.
    #[arg(long, value_name = "FILE", default_value = "lab/figures.toml")]
    file: PathBuf,
    /// The database of experiments, instead of their own; programs have it in HEADWATER_LAB_TARGET.
    #[arg(long, value_name = "URL", env = "HEADWATER_LAB_TARGET", hide_env_values = true)]
    target: Option<String>,
    /// Keep the results of experiments in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Name the figures and their targets, and run nothing.
    #[arg(long)]
    list: bool,
}

/// A figure with its value; none where it could not be measured.
struct Found<'f> {
    figure: &'f Figure,
    value: Option<Measured>,
}

impl Found<'_> {
    fn state(&self) -> &'static str {
        match self.value {
            None => "failed",
            Some(value) if self.figure.target.holds(&value) => "ok",
            Some(_) => "short",
        }
    }
}

/// Measures.
pub(super) fn run(args: &FiguresArgs, output: &Output) -> Done {
    let list = Figures::open(&args.file)?;
    let chosen = chosen(&list, &args.only)?;
    if args.list {
        return show_list(&list, &chosen, output);
    }
    let scratch = tempfile::tempdir().context("a folder for the results could not be made")?;
    let place = Place {
        folder: args.file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        results: args.keep.as_deref().unwrap_or(scratch.path()),
        target: args.target.as_deref(),
        interrupt: interrupt()?,
    };
    std::fs::create_dir_all(place.results).with_context(|| format!("{} can't be made", place.results.display()))?;
    let mut found = Vec::new();
    for (number, measure) in list.measures.iter().enumerate() {
        let figures: Vec<_> = chosen.iter().copied().filter(|figure| figure.measure == number).collect();
        if figures.is_empty() {
            continue;
        }
        let values = place.values(measure, &figures, output).unwrap_or_else(|error| {
            output.note(format!("{} could not be measured: {error:#}", measure.name));
            BTreeMap::new()
        });
        let figures = figures.into_iter().map(|figure| Found { figure, value: values.get(&figure.name).copied() });
        for one in figures {
            if !output.is_json() {
                output.line(line(&one))?;
            }
            found.push(one);
        }
        if *place.interrupt.borrow() {
            bail!("interrupted");
        }
    }
    if output.is_json() {
        output.answer(&json!(found.iter().map(as_json).collect::<Vec<_>>()), |_| Ok(()))?;
    }
    Ok(if found.iter().all(|one| one.state() == "ok") { Exit::Done } else { Exit::Found })
}

fn chosen<'f>(list: &'f Figures, only: &[String]) -> Result<Vec<&'f Figure>> {
    let is = |figure: &Figure, word: &String| figure.name == *word || figure.group() == word;
    if let Some(word) = only.iter().find(|word| !list.figures.iter().any(|figure| is(figure, word))) {
        return Err(usage(format!(
            "no figure and no group is called {word:?}; there are {}",
            list.groups().join(", ")
        )));
    }
    Ok(list.figures.iter().filter(|figure| only.is_empty() || only.iter().any(|word| is(figure, word))).collect())
}

fn show_list(list: &Figures, chosen: &[&Figure], output: &Output) -> Done {
    let how = |figure: &Figure| match list.measures.get(figure.measure).map(|measure| &measure.how) {
        Some(How::Experiment(file)) => file.clone(),
        Some(How::Command(words)) => words.join(" "),
        None => String::new(),
    };
    let one = |figure: &&Figure| json!({ "name": figure.name, "about": figure.about, "target": figure.target.to_string(), "by": how(figure) });
    output.answer(&json!(chosen.iter().map(one).collect::<Vec<_>>()), |output| {
        let row =
            |figure: &&Figure| vec![figure.name.clone(), figure.target.to_string(), figure.about.clone(), how(figure)];
        output.table(&["figure", "target", "what it says", "by"], chosen.iter().map(row))
    })?;
    Ok(Exit::Done)
}

fn line(Found { figure, value }: &Found<'_>) -> String {
    let text = value.map_or("-".to_owned(), |value| format!("{value}"));
    let state = Found { figure, value: *value }.state();
    format!("figure {} {text} target {} {state}", figure.name, figure.target)
}

fn as_json(found: &Found<'_>) -> Value {
    let Found { figure, value } = found;
    let of = |one: fn(&Measured) -> f64| value.as_ref().map(one);
    json!({ "name": figure.name, "value": of(|one| one.value), "low": of(|one| one.low), "high": of(|one| one.high), "target": figure.target.to_string(), "state": found.state() })
}

/// The median of what each group's repetitions gave, of the group that is furthest from the target.
fn measured(figure: &Figure, numbers: Vec<(f64, String)>) -> Option<Measured> {
    let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (number, group) in numbers {
        groups.entry(group).or_default().push(number);
    }
    let all: Option<Vec<_>> = groups.values().map(|values| Measured::of(values)).collect();
    figure.target.worst(all?)
}

/// Where measures are run.
struct Place<'p> {
    folder: &'p Path,
    results: &'p Path,
    target: Option<&'p str>,
    interrupt: watch::Receiver<bool>,
}

impl Place<'_> {
    fn values(&self, measure: &Measure, figures: &[&Figure], output: &Output) -> Result<BTreeMap<String, Measured>> {
        match &measure.how {
            How::Experiment(file) => self.experiment(&measure.name, file, figures, output),
            How::Command(words) => self.command(words),
        }
    }

    fn experiment(
        &self,
        name: &str,
        file: &str,
        figures: &[&Figure],
        output: &Output,
    ) -> Result<BTreeMap<String, Measured>> {
        let experiment = Experiment::open(&self.folder.join(file))?;
        let path = self.results.join(format!("{name}.lab"));
        let seed = experiment.seed.unwrap_or_else(any_seed);
        let ended = carry_out(&experiment, seed, self.target, &path, &self.interrupt, output)?;
        ensure!(ended.failed == 0 && !ended.is_interrupted, "not all of its runs were done");
        let campaign = Campaign::open(&path)?;
        let mut values = BTreeMap::new();
        for figure in figures {
            let sql = figure.value.as_deref().context("the figure has no value")?;
            // Each by itself: its neighbours have their own values.
            match campaign.numbers(sql).map(|numbers| measured(figure, numbers)) {
                Ok(Some(value)) => {
                    values.insert(figure.name.clone(), value);
                }
                Ok(None) => {
                    output.note(format!("{} has no value: not all that its query gives is finite", figure.name));
                }
                Err(error) => output.note(format!("{} has no value: {:#}", figure.name, anyhow::Error::from(error))),
            }
        }
        Ok(values)
    }

    /// What the program tells beside its figures goes where our own notes go.
    fn command(&self, words: &[String]) -> Result<BTreeMap<String, Measured>> {
        let [program, arguments @ ..] = words else { bail!("there is no program") };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder).stdout(Stdio::piped());
        command.env("HEADWATER", std::env::current_exe().context("this program is not found")?);
        if let Some(target) = self.target {
            command.env("HEADWATER_LAB_TARGET", target);
        }
        let done = command.spawn().and_then(std::process::Child::wait_with_output);
        let done = done.with_context(|| format!("{program} could not be run"))?;
        ensure!(done.status.success(), "{program} ended with {}", done.status);
        Ok(printed(&String::from_utf8_lossy(&done.stdout)))
    }
}
