//! `headwater track` and `untrack`: change tracking in the consolidated database.

use clap::Args;
use headwater_consolidated::{Plan, track as tracking};

use crate::Done;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{Output, counted};

const EXAMPLES: &str = "\
Examples:
  headwater track --dry-run > track.sql    see the SQL first
  headwater track
  headwater untrack";

/// The arguments of both.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TrackArgs {
    /// Show the SQL and run nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Installs change tracking.
pub fn track(args: &TrackArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let plan = Plan::new(config.model()?);
    let mut connection = config.database.connect()?;
    let statements = if args.dry_run {
        tracking::plan_tracking(&mut *connection, &plan)?
    } else {
        tracking::track(&mut *connection, &plan)?
    };
    let done = format!("tracked: {}", counted(plan.tables.len(), "table"));
    tell(args, output, &statements, "every table is tracked already", &done)
}

/// Removes it.
pub fn untrack(args: &TrackArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let plan = Plan::new(config.model()?);
    let mut connection = config.database.connect()?;
    let statements = if args.dry_run {
        tracking::plan_untracking(&mut *connection, &plan)?
    } else {
        tracking::untrack(&mut *connection, &plan)?
    };
    let done =
        format!("no longer tracked: {}; remotes start afresh when they are again", counted(plan.tables.len(), "table"));
    tell(args, output, &statements, "no table was tracked", &done)
}

fn tell(args: &TrackArgs, output: &Output, statements: &[String], nothing: &str, done: &str) -> Done {
    let answer = serde_json::json!({ "dry_run": args.dry_run, "statements": statements });
    output.answer(&answer, |output| {
        if statements.is_empty() {
            return output.line(format!("{}{nothing}", if args.dry_run { "-- " } else { "" }));
        }
        if !args.dry_run {
            return output.line(format!("{done} ({})", counted(statements.len(), "statement")));
        }
        for statement in statements {
            let statement = statement.trim_end();
            output.line(format!("{statement}{}\n", if statement.ends_with(';') { "" } else { ";" }))?;
        }
        Ok(())
    })?;
    Ok(Exit::Done)
}
