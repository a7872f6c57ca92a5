//! `headwater tune`: what can be changed while a server runs.

mod client;
mod save;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use headwater_knobs::nearest;
use serde_json::json;

use self::client::{Client, Shown};
use self::save::Saving;
use crate::Done;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::{Exit, usage};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater tune                                     every knob: its value, default, range and effect
  headwater tune pool server.workers                 those of [pool], and one
  headwater tune server.workers=8 server.backlog=50  set at once, all of them or none
  headwater tune pool.policy=lru pool.skips=100 --save
  headwater tune --save                              write what was changed since the start into the configuration file
  headwater tune --json | jq '.knobs[] | select(.value != .default) | .name'

The server runs on this machine, by the same configuration file, which has an [admin] section (docs/tuning.md). A token that was chosen
comes from HEADWATER_ADMIN_TOKEN.

Exit codes: 0 done, 2 no such knob, out of range, refused, another token, no [admin] or a file that is not to be saved, 3 no server there, or \
the file could not be written (what was to be set is set then).";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TuneArgs {
    /// A knob or a section to show, or NAME=VALUE to set one; nothing: show all.
    #[arg(value_name = "NAME[=VALUE]")]
    knobs: Vec<String>,
    /// Write what was set into the configuration file, comments and order kept; with nothing set, all that was changed since the start.
    #[arg(long)]
    save: bool,
    /// The token file of the server, instead of the configuration's: where several servers run by one configuration.
    #[arg(long, value_name = "FILE", env = "HEADWATER_ADMIN_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked<'a> {
    Show(Vec<&'a str>),
    Set(Vec<(&'a str, &'a str)>),
}

impl TuneArgs {
    fn asked(&self) -> Result<Asked<'_>> {
        let (set, shown): (Vec<&str>, Vec<&str>) =
            self.knobs.iter().map(String::as_str).partition(|text| text.contains('='));
        if set.is_empty() {
            return Ok(Asked::Show(shown));
        }
        if let Some(name) = shown.first() {
            return Err(usage(format!(
                "{name} is to be shown and others to be set, expected NAME=VALUE for all, or for none"
            )));
        }
        let pairs = set.into_iter().filter_map(|text| text.split_once('='));
        Ok(Asked::Set(pairs.map(|(name, value)| (name.trim(), value.trim())).collect()))
    }
}

/// Shows, or sets.
pub fn run(args: &TuneArgs, global: &Global, output: &Output) -> Done {
    let asked = args.asked()?;
    let config = Config::read(global)?;
    let client = Client::of(&config, args.token_file.as_deref())?;
    match asked {
        Asked::Show(names) if !args.save => show(&client, &names, output)?,
        Asked::Show(names) => {
            if let Some(name) = names.first() {
                return Err(usage(format!(
                    "--save takes {name}=VALUE, or nothing: then all that was changed since the start is saved"
                )));
            }
            save_changed(&client, Saving::begin(&config, global)?, output)?;
        }
        Asked::Set(wanted) => {
            let saving = if args.save { Some(Saving::begin(&config, global)?) } else { None };
            set(&client, &wanted, saving, output)?;
        }
    }
    Ok(Exit::Done)
}

fn show(client: &Client, names: &[&str], output: &Output) -> Result<()> {
    let mut told = client.knobs()?;
    for name in names {
        if !told.knobs.iter().any(|knob| knob.is(name)) {
            let near = nearest(name, told.names());
            let hint =
                near.map_or_else(|| "`headwater tune` lists them".to_owned(), |near| format!("did you mean {near}?"));
            return Err(usage(format!("there is no knob and no section {name:?}: {hint}")));
        }
    }
    told.knobs.retain(|knob| names.is_empty() || names.iter().any(|name| knob.is(name)));
    output.answer(&told, |output| {
        let rows = told.knobs.iter().map(|knob| {
            let Shown { name, value, default, range, effect, .. } = knob;
            vec![name.clone(), text(value), text(default), range.clone(), effect.clone()]
        });
        output.table(&["knob", "value", "default", "range", "effect"], rows)
    })
}

fn set(client: &Client, wanted: &[(&str, &str)], saving: Option<Saving>, output: &Output) -> Result<()> {
    if saving.is_some() {
        // Before anything is changed.
        let told = client.knobs()?;
        let is_lost = |name: &&str| told.knobs.iter().any(|knob| knob.name == **name && !knob.is_option);
        if let Some(name) = wanted.iter().map(|(name, _)| *name).find(is_lost) {
            return Err(usage(format!(
                "{name} is no option of the configuration file: it can't be saved; set it without --save"
            )));
        }
    }
    let changed = client.change(wanted)?;
    let saved = match saving {
        None => None,
        Some(saving) => {
            let names: BTreeSet<&str> =
                changed.iter().map(|change| change.name.as_str()).chain(wanted.iter().map(|(name, _)| *name)).collect();
            let told = client.knobs()?;
            let chosen = told.knobs.iter().filter(|knob| names.contains(knob.name.as_str()) && knob.is_option);
            Some(saving.write(chosen)?)
        }
    };
    let answer = json!({ "changed": changed, "saved": saved });
    output.answer(&answer, |output| {
        for change in &changed {
            output.line(format!("{}: {} -> {}", change.name, text(&change.from), text(&change.to)))?;
        }
        if changed.is_empty() {
            output.line("nothing has changed: it was so before")?;
        }
        saved.as_ref().map_or(Ok(()), |file| output.line(format!("saved in {file}")))
    })
}

fn save_changed(client: &Client, saving: Saving, output: &Output) -> Result<()> {
    let told = client.knobs()?;
    let changed: Vec<&Shown> = told.knobs.iter().filter(|knob| knob.is_option && knob.value != knob.at_start).collect();
    let saved = if changed.is_empty() { None } else { Some(saving.write(changed.iter().copied())?) };
    let names: Vec<&str> = changed.iter().map(|knob| knob.name.as_str()).collect();
    output.answer(&json!({ "changed": [], "saved": saved, "names": names }), |output| match &saved {
        None => output.line("nothing was changed since the server started"),
        Some(file) => output.line(format!("saved in {file}: {}", names.join(", "))),
    })
}

/// A value as it is set.
fn text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(knobs: &[&str]) -> TuneArgs {
        TuneArgs { knobs: knobs.iter().map(|text| (*text).to_owned()).collect(), save: false, token_file: None }
    }

    #[test]
    fn names_are_shown_and_values_are_set() {
        assert_eq!(args(&[]).asked().expect("all"), Asked::Show(vec![]));
        assert_eq!(args(&["pool", "log"]).asked().expect("two"), Asked::Show(vec!["pool", "log"]));
        let set = args(&["log=headwater_server=debug,info", "a.b = 1"]);
        assert_eq!(set.asked().expect("two"), Asked::Set(vec![("log", "headwater_server=debug,info"), ("a.b", "1")]));
        let said = args(&["pool", "a.b=1"]).asked().expect_err("mixed").to_string();
        assert!(said.contains("pool is to be shown and others to be set"), "{said}");
    }
}
