//! `headwater lab`: experiments on databases.

mod agent;
mod check;
mod compare;
mod export;
mod figures;
mod live;
mod pilot;
mod report;
mod run;
mod selftest;
mod show;
mod system;
mod tables;

use clap::{Args, Subcommand};

use crate::Done;
use crate::cli::Global;
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
    /// Run an experiment, and keep what it measures
    Run(run::RunArgs),
    /// Have clients of a run that is conducted elsewhere
    Agent(agent::AgentArgs),
    /// Results as tables
    Show(show::ShowArgs),
    /// What two campaigns say of each other: better, worse, or no difference
    Compare(compare::CompareArgs),
    /// Results as one HTML file with plots
    Report(report::ReportArgs),
    /// Results for other programs
    Export(export::ExportArgs),
    /// How two tables differ, row by row, in whichever databases they are
    Tables(tables::TablesArgs),
    /// Try with a few clients, and predict many
    Pilot(pilot::PilotArgs),
    /// Measure figures that a file lists, and hold them against their targets
    Figures(figures::FiguresArgs),
    /// See that the lab finds what is planted, and how much it can do on this machine
    #[command(after_help = selftest::EXAMPLES)]
    Selftest,
    #[command(hide = true)]
    NullServer(selftest::NullServerArgs),
}

/// Does what is asked.
pub fn run(args: &LabArgs, global: &Global, output: &Output) -> Done {
    match &args.command {
        LabCommand::Check(args) => check::run(args, output),
        LabCommand::Run(args) => run::run(args, global, output),
        LabCommand::Agent(args) => agent::run(args, output),
        LabCommand::Show(args) => show::run(args, output),
        LabCommand::Compare(args) => compare::run(args, output),
        LabCommand::Report(args) => report::run(args, output),
        LabCommand::Export(args) => export::run(args, output),
        LabCommand::Tables(args) => tables::run(args, output),
        LabCommand::Pilot(args) => pilot::run(args, global, output),
        LabCommand::Figures(args) => figures::run(args, output),
        LabCommand::Selftest => selftest::run(output),
        LabCommand::NullServer(args) => selftest::null_server(args),
    }
}
