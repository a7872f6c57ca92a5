//! `headwater completions`: what a shell completes.

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use crate::Done;
use crate::cli::Cli;
use crate::exit::Exit;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater completions bash > ~/.local/share/bash-completion/completions/headwater
  headwater completions zsh > ~/.zfunc/_headwater
  headwater completions fish > ~/.config/fish/completions/headwater.fish";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints the completions.
pub fn run(args: &CompletionsArgs, output: &Output) -> Done {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "headwater", &mut script);
    output.line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Done)
}
