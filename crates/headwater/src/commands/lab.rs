//! `headwater lab`: experiments on databases.

mod check;

use clap::{Args, Subcommand};

use crate::Done;
use crate::output::Output;

/// The arguments.
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Say what an experiment would run, or what is wrong with its file
    Check(check::CheckArgs),
}

/// Does what is asked.
pub fn run(args: &LabArgs, output: &Output) -> Done {
    match &args.command {
        LabCommand::Check(args) => check::run(args, output),
    }
}
