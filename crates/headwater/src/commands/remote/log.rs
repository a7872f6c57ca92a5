//! `headwater remote log`: what waits, what was refused, what met a conflict.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use headwater_protocol::message::ChangeOp;
use headwater_remote::{Conflict, HeldRow, LostUploads, PendingChange, Remote, SetAside};
use serde_json::{Value, json};

use crate::Done;
use crate::commands::conflicts::{ended, show_images};
use crate::commands::image;
use crate::exit::Exit;
use crate::output::{Output, printable, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater remote log anna.db
  headwater remote log anna.db --set-aside --json | jq '.set_aside[].message'
  headwater remote log anna.db --conflicts --limit 3
  headwater remote log anna.db --held      # rows that the file does not take, and why";

/// Why a row is held that its table would take.
const BESIDE: &str = "a change of the same row is pending";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(super) struct LogArgs {
    /// The remote's SQLite file.
    file: PathBuf,
    /// Changes that wait to be sent, those on their way marked, and why the last upload was refused whole, if it was.
    #[arg(long)]
    pending: bool,
    /// Changes that were refused, with the reason, and uploads that the consolidated database has lost.
    #[arg(long)]
    set_aside: bool,
    /// Rows that came down and are held, with the reason.
    #[arg(long)]
    held: bool,
    /// Conflicts that uploads met, with both images and how they ended.
    #[arg(long)]
    conflicts: bool,
    /// At most so many of each.
    #[arg(long, default_value_t = 20)]
    limit: usize,
}

impl LogArgs {
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

/// Lists what is asked for; all of it if nothing is.
pub(super) fn run(args: &LogArgs, output: &Output) -> Done {
    let remote = Remote::open(&args.file)?;
    let all = !(args.pending || args.set_aside || args.held || args.conflicts);
    let pending = if all || args.pending { Some(remote.pending(args.limit)?) } else { None };
    let set_aside = if all || args.set_aside { Some(remote.set_aside(args.limit)?) } else { None };
    let held = if all || args.held { Some(remote.held(args.limit)?) } else { None };
    let conflicts = if all || args.conflicts { Some(remote.conflicts(args.limit)?) } else { None };
    let refused = if all || args.pending { Some(remote.upload_refused()?) } else { None };
    let losses = if all || args.set_aside { Some(remote.lost(args.limit)?) } else { None };
    let mut answer = serde_json::Map::new();
    let mut list =
        |name: &str, items: Option<Vec<Value>>| items.map(|items| answer.insert(name.to_owned(), items.into()));
    list("pending", pending.as_ref().map(|items| items.iter().map(pending_json).collect()));
    list("upload_refused", refused.as_ref().map(|lines| lines.iter().cloned().map(Value::from).collect()));
    list("set_aside", set_aside.as_ref().map(|items| items.iter().map(set_aside_json).collect()));
    list("held", held.as_ref().map(|items| items.iter().map(held_json).collect()));
    list("conflicts", conflicts.as_ref().map(|items| items.iter().map(conflict_json).collect()));
    list("lost", losses.as_ref().map(|items| items.iter().map(lost_json).collect()));
    output.answer(&answer, |output| {
        show("changes that wait to be sent", pending.as_deref(), output, show_pending)?;
        if let Some(lines @ [_, ..]) = refused.as_deref() {
            show("why the last upload was refused whole", Some(lines), output, |line, output| {
                output.line(printable(&format!("  {line}")))
            })?;
        }
        show("changes set aside", set_aside.as_deref(), output, show_set_aside)?;
        show("rows that came down and are held", held.as_deref(), output, show_held)?;
        show("conflicts", conflicts.as_deref(), output, show_conflict)?;
        show("uploads that the consolidated database has lost", losses.as_deref(), output, show_lost)
    })?;
    Ok(Exit::Done)
}

fn show<T>(title: &str, items: Option<&[T]>, output: &Output, one: impl Fn(&T, &Output) -> Result<()>) -> Result<()> {
    match items {
        None => Ok(()),
        Some([]) => output.line(format!("no {title}")),
        Some(items) => {
            output.line(format!("{title}:"))?;
            items.iter().try_for_each(|item| one(item, output))
        }
    }
}

fn operation(op: ChangeOp) -> &'static str {
    match op {
        ChangeOp::Insert => "insert",
        ChangeOp::Update => "update",
        ChangeOp::Delete => "delete",
    }
}

fn show_pending(change: &PendingChange, output: &Output) -> Result<()> {
    let state = match change {
        PendingChange { is_on_its_way: true, .. } => "   (on its way: whether it has arrived is not known yet)",
        PendingChange { is_set_aside: true, .. } => "   (set aside: not sent by itself)",
        _ => "",
    };
    output.line(printable(&format!("  {} {} {}{state}", operation(change.op), change.table, change.key)))?;
    if let (Some(old), Some(new)) = (&change.old, &change.new) {
        let (old, new) = (image(Some(old)), image(Some(new)));
        for (column, value) in new.as_object().into_iter().flatten() {
            let before = old.get(column).unwrap_or(&Value::Null);
            if before != value {
                output.line(printable(&format!("      {column}: {before} -> {value}")))?;
            }
        }
    }
    Ok(())
}

fn show_set_aside(change: &SetAside, output: &Output) -> Result<()> {
    output.line(printable(&format!(
        "  {} {} {} {}: {} ({})",
        change.number, change.time, change.table, change.key, change.reason, change.message
    )))?;
    let row = |image: &Option<String>| image.as_deref().map_or_else(|| "(no row)".to_owned(), shortened);
    output.line(printable(&format!("      old {}", row(&change.old))))?;
    if change.reason == "gone" && !change.is_in_place {
        return output.line("      new (not known: it went with the table)");
    }
    output.line(printable(&format!("      new {}", row(&change.new))))?;
    if change.is_perhaps_unsent {
        output.line("      the row stays as it is: retry sends it as an insert, drop only takes it off the list")
    } else if change.is_in_place {
        Ok(())
    } else {
        output.line("      the row has changed since: only this list has the change")
    }
}

/// A person looks at it; `--json` has all of it.
fn shortened(image: &str) -> String {
    const CHARACTERS_MAX: usize = 2_000;
    match image.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}... ({} bytes; --json has all)", &image[..end], thousands(image.len() as u64)),
        None => image.to_owned(),
    }
}

fn show_held(held: &HeldRow, output: &Output) -> Result<()> {
    let why = held.why.as_deref().unwrap_or(BESIDE);
    output.line(printable(&format!("  {} {}: {why}", held.table, held.key)))?;
    let row = held.row.as_deref().map_or_else(|| "(deleted)".to_owned(), shortened);
    output.line(printable(&format!("      row {row}")))
}

fn show_conflict(conflict: &Conflict, output: &Output) -> Result<()> {
    let open = match conflict {
        Conflict { is_open: true, .. } => ", its result has not come down yet",
        Conflict { is_untold: true, .. } => ", and nothing of this table comes down to show the row",
        _ => "",
    };
    let head = format!("  {} {} {}: {}{open}", conflict.time, conflict.table, conflict.key, ended(&conflict.end));
    output.line(printable(&head))?;
    let [old, ours, result] = [&conflict.old, &conflict.ours, &conflict.result].map(|text| image(text.as_deref()));
    if conflict.is_untold || conflict.is_open {
        return show_images(&["old", "ours"], &[old, ours], output);
    }
    show_images(&["old", "ours", "result"], &[old, ours, result], output)
}

fn show_lost(lost: &LostUploads, output: &Output) -> Result<()> {
    let LostUploads { time, first, last, changes } = lost;
    output.line(format!("  {time} uploads {first} to {last}; {changes} of their changes were still here"))
}

fn held_json(held: &HeldRow) -> Value {
    json!({
        "table": held.table, "key": image(Some(&held.key)), "row": image(held.row.as_deref()),
        "why": held.why.as_deref().unwrap_or(BESIDE), "is_beside_pending": held.why.is_none(),
    })
}

fn lost_json(lost: &LostUploads) -> Value {
    json!({ "time": lost.time, "first": lost.first, "last": lost.last, "changes": lost.changes })
}

fn pending_json(change: &PendingChange) -> Value {
    json!({
        "table": change.table, "op": operation(change.op), "key": image(Some(&change.key)),
        "old": image(change.old.as_deref()), "new": image(change.new.as_deref()), "is_set_aside": change.is_set_aside,
        "is_on_its_way": change.is_on_its_way,
    })
}

fn set_aside_json(change: &SetAside) -> Value {
    json!({
        "number": change.number, "time": change.time, "table": change.table, "key": image(Some(&change.key)), "reason": change.reason,
        "message": change.message, "is_in_place": change.is_in_place,
        "is_perhaps_unsent": change.is_perhaps_unsent, "old": image(change.old.as_deref()),
        "new": image(change.new.as_deref()),
    })
}

fn conflict_json(conflict: &Conflict) -> Value {
    json!({
        "time": conflict.time, "upload": conflict.upload, "table": conflict.table, "key": image(Some(&conflict.key)),
        "old": image(conflict.old.as_deref()), "ours": image(conflict.ours.as_deref()), "end": conflict.end,
        "result": image(conflict.result.as_deref()), "is_open": conflict.is_open, "is_untold": conflict.is_untold,
    })
}
