//! `headwater track` and `untrack`: change tracking in the consolidated database.

use std::collections::BTreeSet;

use clap::Args;
use headwater_consolidated::{Connection, Error, Plan, track as tracking};

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
    let plans = config.plans()?;
    let statements = for_each(&config, &plans, if args.dry_run { tracking::plan_tracking } else { tracking::track })?;
    let done = format!("tracked: {}", counted(tables(&plans), "table"));
    tell(args, output, &statements, "every table is tracked already", &done)
}

/// Removes it.
pub fn untrack(args: &TrackArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let plans = config.plans()?;
    let statements =
        for_each(&config, &plans, if args.dry_run { tracking::plan_untracking } else { tracking::untrack })?;
    let done =
        format!("no longer tracked: {}; remotes start afresh when they are again", counted(tables(&plans), "table"));
    tell(args, output, &statements, "no table was tracked", &done)
}

/// What is run, or would be, for all models; what several have in common once.
fn for_each(
    config: &Config,
    plans: &[Plan],
    work: fn(&mut dyn Connection, &Plan) -> Result<Vec<String>, Error>,
) -> anyhow::Result<Vec<String>> {
    let mut connection = config.database.connect()?;
    let mut statements = Vec::new();
    for plan in plans {
        for statement in work(&mut *connection, plan)? {
            if !statements.contains(&statement) {
                statements.push(statement);
            }
        }
    }
    Ok(statements)
}

/// How many tables the models have, by name.
fn tables(plans: &[Plan]) -> usize {
    let names = plans.iter().flat_map(|plan| &plan.tables).map(|table| (&table.table.schema, &table.table.name));
    names.collect::<BTreeSet<_>>().len()
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
