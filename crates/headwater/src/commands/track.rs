//! `headwater track` and `untrack`: change tracking in the consolidated database.

use std::collections::BTreeSet;

use clap::Args;
use headwater_consolidated::check::{self, Finding};
use headwater_consolidated::{Connection, Error, Plan, track as tracking};

use crate::Done;
use crate::cli::Global;
use crate::commands::check::{each_once, place};
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{Output, counted};

const EXAMPLES: &str = "\
Examples:
  headwater track --dry-run > track.sql    see the SQL first
  headwater track
  headwater untrack
  headwater untrack --unused               a version has retired: what was tracked for it alone goes";

/// The arguments of `track`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TrackArgs {
    /// Show the SQL and run nothing.
    #[arg(long)]
    dry_run: bool,
}

/// The arguments of `untrack`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UntrackArgs {
    /// Show the SQL and run nothing.
    #[arg(long)]
    dry_run: bool,
    /// Only what no model of the configuration uses: what was tracked for a version that has retired.
    #[arg(long)]
    unused: bool,
    /// With --unused: also where remotes of another version have synced in the last 30 days.
    #[arg(long, requires = "unused")]
    force: bool,
}

/// Installs change tracking.
pub fn track(args: &TrackArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let plans = config.plans()?;
    let statements = for_each(&config, &plans, if args.dry_run { tracking::plan_tracking } else { tracking::track })?;
    let done = format!("tracked: {}", counted(tables(&plans), "table"));
    let missing = parts_out_of_reach(&config, &plans)?;
    let nothing = if missing.is_empty() { "every table is tracked already" } else { "nothing was to be done" };
    tell(args.dry_run, output, &statements, nothing, &done)?;
    for (_, finding) in each_once(&mut *config.database.connect()?, &plans, check::outer_parents)? {
        let text = format!("{}{}; {}", place(&finding), finding.message, finding.mend);
        output.warn(&text, &serde_json::json!({ "warning": finding.code, "table": finding.table }));
    }
    let Some(first) = missing.first() else { return Ok(Exit::Done) };
    let what = missing.iter().map(|finding| format!("{}{}", place(finding), finding.message)).collect::<Vec<_>>();
    Err(anyhow::Error::new(Error::Setup { what: what.join("; "), mend: first.mend.clone() }))
}

/// Parts of tables on which this role could not make triggers.
fn parts_out_of_reach(config: &Config, plans: &[Plan]) -> anyhow::Result<Vec<Finding>> {
    let mut connection = config.database.connect()?;
    let found = each_once(&mut *connection, plans, check::parts_out_of_reach)?;
    Ok(found.into_iter().map(|(_, finding)| finding).collect())
}

/// Removes it.
pub fn untrack(args: &UntrackArgs, global: &Global, output: &Output) -> Done {
    let config = Config::read(global)?;
    let plans = config.plans()?;
    if args.unused {
        let mut connection = config.database.connect()?;
        let used =
            if args.dry_run || args.force { Vec::new() } else { tracking::used_lately(&mut *connection, &plans)? };
        if !used.is_empty() {
            return Err(anyhow::Error::new(Error::Setup {
                what: format!(
                    "remotes of versions that this configuration does not have still sync ({})",
                    used.join("; ")
                ),
                mend: "add those versions to the configuration, or give --force where nobody serves them any more"
                    .to_owned(),
            }));
        }
        let work = if args.dry_run { tracking::plan_untracking_unused } else { tracking::untrack_unused };
        let statements = work(&mut *connection, &plans)?;
        return tell(
            args.dry_run,
            output,
            &statements,
            "nothing is tracked that is not used",
            "what nobody uses is gone",
        );
    }
    let statements =
        for_each(&config, &plans, if args.dry_run { tracking::plan_untracking } else { tracking::untrack })?;
    let done =
        format!("no longer tracked: {}; remotes start afresh when they are again", counted(tables(&plans), "table"));
    tell(args.dry_run, output, &statements, "no table was tracked", &done)
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

fn tell(dry_run: bool, output: &Output, statements: &[String], nothing: &str, done: &str) -> Done {
    let answer = serde_json::json!({ "dry_run": dry_run, "statements": statements });
    output.answer(&answer, |output| {
        if statements.is_empty() {
            return output.line(format!("{}{nothing}", if dry_run { "-- " } else { "" }));
        }
        if !dry_run {
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
