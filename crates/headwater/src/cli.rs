//! The arguments: what all commands share. Each command's own are in its file.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::commands::{
    check, completions, conflicts, diff, doctor, idxbuild, init, lab, purge, query, remote, serve, token, track, tune,
    user,
};

const EXAMPLES: &str = "\
Getting started:
  headwater init --database postgres://me@localhost/shop   write headwater.toml and a model
  headwater track                                          note changes from now on
  headwater check                                          is all as it should be?
  headwater user add anna
  headwater serve

  headwater remote create anna.db --server http://127.0.0.1:7340 --user anna
  headwater remote sync anna.db

Exit codes: 0 done, 1 differences or faults found, 2 usage or configuration, 3 something could not be reached, or not \
be done now, 4 a damaged file, or a defect.";

/// One SQL database at the head, any number of SQLite copies downstream.
#[derive(Debug, Parser)]
#[command(name = "headwater", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What all commands share.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What all commands share.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The configuration file.
    #[arg(long, short, global = true, value_name = "FILE", default_value = "headwater.toml", env = "HEADWATER_CONFIG")]
    pub config: PathBuf,
    /// The consolidated database, instead of the configuration's: sqlite:FILE or postgres://...
    #[arg(long, global = true, value_name = "URL", env = "HEADWATER_DATABASE", hide_env_values = true)]
    pub database: Option<String>,
    /// Answer in JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to log, to stderr: error, warn, info, debug, trace, or by part (`headwater_server=debug,info`).
    #[arg(long, global = true, value_name = "FILTER", env = "HEADWATER_LOG", value_parser = log_filter)]
    pub log: Option<LogFilter>,
    /// Log in JSON, one object a line.
    #[arg(long, global = true, env = "HEADWATER_LOG_JSON", value_parser = BoolishValueParser::new())]
    pub log_json: bool,
}

/// What to log, sound as it was given.
#[derive(Clone, Debug)]
pub struct LogFilter(String);

impl LogFilter {
    /// As it was given.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// A part without a level would log all of it, and of `wran` nothing at all.
pub(crate) fn log_filter(text: &str) -> Result<LogFilter, String> {
    let is_known = |part: &str| part.is_empty() || part.contains('=') || part.parse::<LevelFilter>().is_ok();
    let unknown = text.split(',').map(str::trim).find(|part| !text.contains('[') && !is_known(part));
    if unknown.is_none() && EnvFilter::try_new(text).is_ok() {
        return Ok(LogFilter(text.to_owned()));
    }
    let which = unknown.map(|part| format!("{part:?} is no level; ")).unwrap_or_default();
    Err(format!(
        "{which}--log and HEADWATER_LOG take off, error, warn, info, debug or trace, or parts with such a level: headwater_server=debug,info"
    ))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Look at a database, and write headwater.toml with a first model
    Init(init::InitArgs),
    /// Install change tracking in the consolidated database
    Track(track::TrackArgs),
    /// Remove change tracking from the consolidated database
    Untrack(track::UntrackArgs),
    /// Hold the model against the consolidated database
    Check(check::CheckArgs),
    /// Say what is wrong with a deployment, and how to mend it
    Doctor(doctor::DoctorArgs),
    /// Serve remotes, until a signal comes
    Serve(serve::ServeArgs),
    /// Show what can be changed while a server runs, and change it
    Tune(tune::TuneArgs),
    /// SQLite files as remotes: create, sync, status, log
    Remote(remote::RemoteArgs),
    /// Users who may sync
    User(user::UserArgs),
    /// Make a token for a user or a program
    Token(token::TokenArgs),
    /// Forget old changes, so that what tracking keeps does not grow
    Purge(purge::PurgeArgs),
    /// Compare a remote with its part of the consolidated database
    Diff(diff::DiffArgs),
    /// Named queries: check them, run one here
    Query(query::QueryArgs),
    /// Conflicts that uploads met, with both images and the outcome
    Conflicts(conflicts::ConflictsArgs),
    /// Measure: experiments on databases, servers of syncs and URLs
    Lab(lab::LabArgs),
    /// Rebuild the indexes of a SQLite database in parallel, or create some
    Idxbuild(idxbuild::IdxbuildArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// What is logged unless something else is asked for.
    pub(crate) fn usual_log(&self) -> &'static str {
        if matches!(self, Command::Serve(_)) { "info" } else { "warn" }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        fn look(command: &clap::Command, path: &str) {
            let is_group = command.get_subcommands().next().is_some();
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(is_group || examples.contains("headwater "), "{path} shows no example");
            for subcommand in command.get_subcommands() {
                look(subcommand, &format!("{path} {}", subcommand.get_name()));
            }
        }
        look(&Cli::command(), "headwater");
    }
}
