//! `headwater remote retry`, `drop`, `reset` and `compare`: what to do about changes set aside, or waiting in vain, starting afresh, and
//! changes that no trigger saw.

use std::path::{Path, PathBuf};

use clap::Args;
use headwater_remote::{Choice, PendingChoice, Remote, Retried};
use serde_json::json;

use crate::Done;
use crate::exit::{Exit, usage};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  headwater remote log anna.db --set-aside     # shows their numbers and the reasons
  headwater remote retry anna.db --all         # send them again as they are
  headwater remote drop anna.db 3 4            # give these up: the consolidated rows come back";

const DROP_EXAMPLES: &str = "\
Examples:
  headwater remote log anna.db --set-aside     # shows their numbers and the reasons
  headwater remote drop anna.db 3 4            # give these up: the consolidated rows come back
  headwater remote drop anna.db --pending --table orders --key '{\"id\":7}'   # one that waits to be sent, as log --pending shows it
  headwater remote drop anna.db --pending --all";

/// The arguments of `retry`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AsideArgs {
    /// The remote's SQLite file.
    file: PathBuf,
    /// Numbers of the changes, as `headwater remote log FILE --set-aside` shows them.
    #[arg(value_name = "NUMBER")]
    numbers: Vec<i64>,
    /// All of them.
    #[arg(long, conflicts_with_all = ["numbers", "table"])]
    all: bool,
    /// Those of this table.
    #[arg(long, conflicts_with = "numbers")]
    table: Option<String>,
}

impl AsideArgs {
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    fn choice(&self) -> anyhow::Result<Choice> {
        match &self.table {
            Some(table) => Ok(Choice::Table(table.clone())),
            None if self.all => Ok(Choice::All),
            None if self.numbers.is_empty() => Err(usage("which changes? Give their numbers, --table or --all")),
            None => Ok(Choice::Numbers(self.numbers.clone())),
        }
    }
}

/// The arguments of `drop`.
#[derive(Debug, Args)]
#[command(after_help = DROP_EXAMPLES)]
pub(super) struct DropArgs {
    #[command(flatten)]
    which: AsideArgs,
    /// Changes that wait to be sent, rather than those set aside.
    #[arg(long, conflicts_with = "numbers")]
    pending: bool,
    /// The one of this key, as `headwater remote log FILE --pending` shows it.
    #[arg(long, requires = "table", requires = "pending")]
    key: Option<String>,
}

impl DropArgs {
    pub(super) fn file(&self) -> &Path {
        self.which.file()
    }

    fn pending_choice(&self) -> anyhow::Result<PendingChoice> {
        match (&self.which.table, &self.key) {
            (Some(table), Some(key)) => Ok(PendingChoice::Key { table: table.clone(), key: key.clone() }),
            (Some(table), None) => Ok(PendingChoice::Table(table.clone())),
            (None, _) if self.which.all => Ok(PendingChoice::All),
            (None, _) => Err(usage("which changes? Give --table, with --key for one of them, or --all")),
        }
    }
}

/// The arguments of `reset`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  headwater remote reset anna.db && headwater remote sync anna.db

Everything comes down again at the next sync. Changes that wait and changes set aside stay as they are.")]
pub(super) struct ResetArgs {
    /// The remote's SQLite file.
    file: PathBuf,
}

impl ResetArgs {
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

/// The arguments of `compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  headwater remote compare anna.db && headwater remote sync anna.db

For a program that wrote to the file with triggers switched off. Rows that differ from the consolidated database and have no change
that waits are set aside as `untracked`: `headwater remote log anna.db` lists them, `retry` sends them, `drop` takes them back.")]
pub(super) struct CompareArgs {
    /// The remote's SQLite file.
    file: PathBuf,
}

impl CompareArgs {
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

/// Marks changes to be sent again.
pub(super) fn retry(args: &AsideArgs, output: &Output) -> Done {
    let choice = args.choice()?;
    let Retried { changes, left } = Remote::open(&args.file)?.retry(&choice)?;
    output.answer(&json!({ "retried": changes, "left": left }), |output| {
        let file = args.file.display();
        output.line(format!("{changes} to be sent again by the next sync (headwater remote sync {file})"))?;
        left.iter().try_for_each(|why| output.line(format!("      {why}")))?;
        if left.is_empty() {
            Ok(())
        } else {
            output.line("      (`headwater remote drop` with its number gives one up)")
        }
    })?;
    Ok(if left.is_empty() { Exit::Done } else { Exit::Found })
}

/// Gives changes up.
pub(super) fn give_up(args: &DropArgs, output: &Output) -> Done {
    let count = if args.pending {
        let choice = args.pending_choice()?;
        Remote::open(&args.which.file)?.drop_pending(&choice)?
    } else {
        let choice = args.which.choice()?;
        Remote::open(&args.which.file)?.drop_set_aside(&choice)?
    };
    output.answer(&json!({ "dropped": count }), |output| output.line(format!("{count} dropped")))?;
    Ok(Exit::Done)
}

/// Starts afresh.
pub(super) fn reset(args: &ResetArgs, output: &Output) -> Done {
    Remote::open(&args.file)?.reset()?;
    output.answer(&json!({ "reset": true }), |output| {
        output.line(format!("everything comes down again (headwater remote sync {})", args.file.display()))
    })?;
    Ok(Exit::Done)
}

/// Asks for a comparison.
pub(super) fn compare(args: &CompareArgs, output: &Output) -> Done {
    let tables = Remote::open(&args.file)?.compare()?;
    output.answer(&json!({ "tables": tables }), |output| {
        output.line(format!("the next sync compares {tables} tables (headwater remote sync {})", args.file.display()))
    })?;
    Ok(Exit::Done)
}
