//! The command line of Headwater: a file for each command in [`commands`], what they share beside it.
//!
//! ```text
//! main -> cli (arguments) -> commands::* -> consolidated | access | server | remote | diff
//!                               |
//!              config (headwater.toml)   output (tables, JSON, progress)   exit (codes, errors)
//! ```
//!
//! The binary is a thin shell around [`run`]; [`diff`] is of use to other programs too.

mod admin;
pub mod cli;
pub mod commands;
pub mod config;
pub mod database;
pub mod diff;
pub mod exit;
mod logging;
pub mod output;
mod pool;
pub mod ready;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};
use crate::exit::Exit;
use crate::output::Output;

/// Runs the command line of this process: the whole program.
pub fn run() -> ExitCode {
    outlive_large_files();
    let cli = Cli::parse();
    let output = Output::new(cli.global.json);
    let logging = logging::start(&cli);
    let done = match &cli.command {
        Command::Init(args) => commands::init::run(args, &cli.global, &output),
        Command::Track(args) => commands::track::track(args, &cli.global, &output),
        Command::Untrack(args) => commands::track::untrack(args, &cli.global, &output),
        Command::Check(args) => commands::check::run(args, &cli.global, &output),
        Command::Doctor(args) => commands::doctor::run(args, &cli.global, &output),
        Command::Serve(args) => commands::serve::run(args, &cli.global, &output, &logging),
        Command::Tune(args) => commands::tune::run(args, &cli.global, &output),
        Command::Remote(args) => commands::remote::run(args, &output),
        Command::User(args) => commands::user::run(args, &cli.global, &output),
        Command::Token(args) => commands::token::run(args, &cli.global, &output),
        Command::Purge(args) => commands::purge::run(args, &cli.global, &output),
        Command::Query(args) => commands::query::run(args, &cli.global, &output),
        Command::Diff(args) => commands::diff::run(args, &cli.global, &output),
        Command::Lab(args) => commands::lab::run(args, &cli.global, &output),
        Command::Conflicts(args) => commands::conflicts::run(args, &cli.global, &output),
        Command::Idxbuild(args) => commands::idxbuild::run(args, &output),
        Command::Completions(args) => commands::completions::run(args, &output),
    };
    let exit = done.unwrap_or_else(|error| exit::tell(&error, &output));
    ExitCode::from(exit as u8)
}

/// A write beyond the limit on the size of files (`ulimit -f`) fails like others then; it would be the end of the process.
#[allow(unsafe_code)]
fn outlive_large_files() {
    // SAFETY: no handler of ours runs, the signal is only ignored; nothing else in the process has to do with it.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// What every command gives.
pub type Done = anyhow::Result<Exit>;
