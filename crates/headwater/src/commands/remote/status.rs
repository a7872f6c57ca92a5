//! `headwater remote status`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use headwater_remote::{Leftover, Remote, Status, leftovers};
use serde_json::{Value, json};

use super::leftover_text;
use crate::Done;
use crate::commands::remote_text;
use crate::exit::Exit;
use crate::output::{Output, printable, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater remote status anna.db
  headwater remote status anna.db --json | jq .pending
  headwater remote status anna.db --exit-code || headwater remote log anna.db --set-aside

Opening a remote also puts its change tracking in order after the application made a unique index of its own.";

const HELD: &str = " (`headwater remote log FILE --held` lists them)";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StatusArgs {
    /// The remote's SQLite file.
    file: PathBuf,
    /// End with exit code 1 if changes are set aside.
    #[arg(long)]
    exit_code: bool,
}

impl StatusArgs {
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

/// Tells how it stands.
pub(super) fn run(args: &StatusArgs, output: &Output) -> Done {
    let status = Remote::open(&args.file)?.status()?;
    let left = leftovers(&args.file);
    let of_left = |left: &Leftover| json!({ "file": left.path, "bytes": left.bytes, "mend": left.advice });
    let mut answer = as_json(&status);
    answer["leftovers"] = left.iter().map(of_left).collect();
    output.answer(&answer, |output| {
        show(&status, output)?;
        left.iter().try_for_each(|left| output.line(printable(&leftover_text(left))))
    })?;
    Ok(if args.exit_code && status.set_aside > 0 { Exit::Found } else { Exit::Done })
}

fn show(status: &Status, output: &Output) -> Result<()> {
    let (model, version) = &status.model;
    let lines = [
        ("remote", remote_text(status.remote_id)),
        ("user", status.user.clone()),
        ("server", status.server.clone()),
        ("model", format!("{model} version {version}")),
        ("last sync", status.last_sync.clone().unwrap_or_else(|| "never".to_owned())),
        (
            "uploads",
            format!(
                "{} acknowledged{}",
                status.upload_sequence,
                if status.is_frozen { ", one on its way" } else { "" }
            ),
        ),
        ("pending", format!("{}{}", thousands(status.pending), refused(status))),
        ("set aside", thousands(status.set_aside)),
        ("held", format!("{}{}", thousands(status.held), if status.held > 0 { HELD } else { "" })),
    ];
    for (name, value) in lines {
        output.line(printable(&format!("{name:<10} {value}")))?;
    }
    for orphans in &status.orphans {
        let (table, parent, rows) = (&orphans.table, &orphans.parent, thousands(orphans.rows));
        output.line(printable(&format!(
            "orphans    {rows} in table {table:?} refer to rows of {parent:?} that are not there"
        )))?;
    }
    let rows = status.tables.iter().map(|t| vec![t.name.clone(), thousands(t.rows), thousands(t.pending)]);
    output.table(&["table", "rows", "pending"], rows)
}

fn refused(status: &Status) -> String {
    let why = status.upload_refused.as_ref().and_then(|why| why.lines().next());
    why.map_or_else(String::new, |why| format!(" (last sync: {why}; `headwater remote log FILE --pending` lists them)"))
}

fn as_json(status: &Status) -> Value {
    let table = |t: &headwater_remote::TableStatus| json!({ "name": t.name, "rows": t.rows, "pending": t.pending });
    let orphans = |o: &headwater_remote::Orphans| json!({ "table": o.table, "parent": o.parent, "rows": o.rows });
    json!({
        "remote": remote_text(status.remote_id), "user": status.user, "server": status.server,
        "model": status.model.0, "version": status.model.1, "last_sync": status.last_sync,
        "upload_sequence": status.upload_sequence, "is_frozen": status.is_frozen, "upload_refused": status.upload_refused, "pending": status.pending,
        "set_aside": status.set_aside, "held": status.held,
        "tables": status.tables.iter().map(table).collect::<Vec<_>>(),
        "orphans": status.orphans.iter().map(orphans).collect::<Vec<_>>(),
    })
}
