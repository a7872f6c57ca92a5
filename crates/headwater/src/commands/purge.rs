//! `headwater purge`: old changes forgotten.

use std::time::Duration;

use clap::Args;
use headwater_consolidated::system::{self, PurgeRequest};
use serde_json::json;

use super::token::duration;
use crate::Done;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{Output, counted};

const EXAMPLES: &str = "\
Examples:
  headwater purge                      what is older than 30 days
  headwater purge --older-than 90d

A server does so by itself (`purge_days`). Remotes that have not synced for longer start afresh, with their pending changes
kept. Ages are those of the notes that servers take, and each purge: nothing goes before the first of them is old enough.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PurgeArgs {
    /// What is older: a number and s, m, h or d.
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = duration)]
    older_than: Duration,
}

/// Purges.
pub fn run(args: &PurgeArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let mut connection = config.connect_installed()?;
    system::take_note(&mut *connection)?;
    let request = PurgeRequest { older_than: args.older_than, step: Duration::ZERO };
    let purged = system::purge(&mut *connection, &request, &mut || true)?;
    let answer = json!({ "rows": purged.rows, "horizon_moved": purged.has_moved });
    output.answer(&answer, |output| {
        output.line(match purged.rows {
            0 => "nothing was old enough".to_owned(),
            rows => format!("purged from the side tables: {}", counted(rows as usize, "row")),
        })
    })?;
    Ok(Exit::Done)
}
