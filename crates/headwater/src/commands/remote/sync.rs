//! `headwater remote sync`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use headwater_remote::{Config, LargeDownload, Phase, Progress, Remote, Setback, SyncOptions, SyncReport, Times};
use serde_json::{Value, json};

use super::Login;
use crate::Done;
use crate::commands::token::duration;
use crate::exit::Exit;
use crate::output::{Output, Unit, about_bytes, counted, thousands};

const EXAMPLES: &str = "\
Examples:
  headwater remote sync anna.db
  HEADWATER_TOKEN=$(headwater token van-7) headwater remote sync van.db --json
  headwater remote sync anna.db --upload-only --give-up-after 1m
  headwater remote sync anna.db --server https://new.example.com    # the server has moved

What can't be done now is tried again by itself. Whenever a sync ends, and however, nothing is lost: sync again.";

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SyncArgs {
    /// The remote's SQLite file.
    file: PathBuf,
    /// Sync with the server at this address; from now on, once it has answered as the remote's.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Send changes, and bring nothing down.
    #[arg(long)]
    upload_only: bool,
    /// How often in a row an attempt may fail before the sync does. The count begins again where an attempt brings a transfer further than
    /// all before it, and where an upload is given up: its download has as many attempts.
    #[arg(long, value_name = "COUNT", default_value_t = Config::default().attempts_max)]
    attempts: u32,
    /// Begin no further attempt after this time, and wait no longer for a server that sends nothing but signs of life: a number and s, m, h or d; 10m, unless given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    give_up_after: Option<Duration>,
    /// End with exit code 1 if a change met a conflict or was set aside.
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    login: Login,
}

impl SyncArgs {
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

/// Synchronizes.
pub(super) fn run(args: &SyncArgs, output: &Output) -> Done {
    let mut remote = Remote::open(&args.file)?;
    let mut options = SyncOptions::new(args.login.credentials(&remote.user()?)?);
    options.server.clone_from(&args.server);
    options.ca_file.clone_from(&args.login.ca);
    options.config.wants_download = !args.upload_only;
    options.config.attempts_max = args.attempts;
    if let Some(limit) = args.give_up_after {
        (options.config.elapsed_max, options.config.answer_max) = (limit, limit);
    }
    let bar = output.progress("");
    let mut shown = None;
    let mut progress = |progress: Progress| {
        let part = (progress.phase, progress.total.is_some());
        if shown.replace(part) != Some(part) {
            output.restart(&bar, words(progress.phase), unit(progress.phase), progress.total);
        }
        if let Some(total) = progress.total {
            bar.set_length(total);
        }
        bar.set_position(progress.done);
    };
    options.progress = Some(&mut progress);
    let mut large = |large: &LargeDownload| bar.suspend(|| announce(large, &args.file, output));
    options.large = Some(&mut large);
    let mut waiting = Waiting::default();
    let mut setback = |setback: &Setback| bar.suspend(|| waiting.tell(setback, output));
    options.setback = Some(&mut setback);
    let done = remote.sync(&mut options);
    bar.finish_and_clear();
    let report = match done {
        // The session's own words don't know where it went.
        Err(error) if error.code() == "network" => {
            let kept = remote.status().map_or_else(|_| "the server".to_owned(), |status| status.server);
            let hint = match &args.server {
                Some(server) if *server != kept => format!(
                    "no sync with {server}: does it run, and is its address right? The remote's server still is {kept}, and nothing is lost"
                ),
                _ => format!(
                    "no sync with {kept}: does it run, and is its address right (--server changes it)? Nothing is lost: sync again"
                ),
            };
            return Err(anyhow::Error::new(error).context(hint));
        }
        done => done?,
    };
    output.answer(&as_json(&report), |output| show(&report, output))?;
    let is_found = report.conflicts + report.set_aside() > 0;
    Ok(if (args.exit_code && is_found) || report.upload_refused.is_some() { Exit::Found } else { Exit::Done })
}

/// What is said of attempts that failed: not each, where many do for the same reason.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    reason: String,
    said: Option<Instant>,
}

impl Waiting {
    /// A shorter wait is not worth a word.
    const LEAST: Duration = Duration::from_millis(200);
    /// How often the same is said again.
    const AGAIN: Duration = Duration::from_secs(10);

    pub(super) fn tell(&mut self, setback: &Setback, output: &Output) {
        let is_said = self.reason == setback.reason && self.said.is_some_and(|said| said.elapsed() < Waiting::AGAIN);
        if is_said || setback.wait < Waiting::LEAST {
            return;
        }
        self.said = Some(Instant::now());
        self.reason.clone_from(&setback.reason);
        let Setback { failures, reason, wait } = setback;
        let text = format!("attempt {failures} failed ({reason}); the next is in {:.1} s", wait.as_secs_f64());
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        output.announce(&text, &json!({ "failures": failures, "reason": reason, "wait_ms": wait_ms }));
    }
}

/// Says what a large download needs, before it takes it.
pub(super) fn announce(large: &LargeDownload, file: &Path, output: &Output) {
    let rows = large.rows.map_or_else(String::new, |rows| format!("about {} rows, ", thousands(rows)));
    let (bytes, disk) = (about_bytes(large.bytes), about_bytes(large.disk_bytes));
    let free = large
        .free_bytes
        .map_or_else(|| "nobody knows how much is".to_owned(), |free| format!("{} are", about_bytes(free)));
    let text = if large.is_more {
        format!("more comes than was estimated: {bytes} until now; it needs at least {disk} of disk, {free} free")
    } else {
        format!(
            "a large download begins: {rows}{bytes}; it needs about {disk} of disk while it is applied, {free} free"
        )
    };
    output.announce(&text, &large_json(large));
    if !large.fits() {
        let text = format!(
            "the disk of {} may get full: make room. Nothing is lost if it does: sync again then, and it goes on where it stopped",
            file.display()
        );
        output.warn(&text, &large_json(large));
    }
}

fn large_json(large: &LargeDownload) -> Value {
    json!({
        "rows": large.rows, "bytes": large.bytes, "disk_bytes": large.disk_bytes, "free_bytes": large.free_bytes,
        "is_more": large.is_more,
    })
}

fn words(phase: Phase) -> &'static str {
    match phase {
        Phase::Cut => "finding local changes",
        Phase::Send => "sending",
        Phase::Receive => "receiving",
        Phase::Apply => "applying",
        Phase::Wait => "waiting to try again",
    }
}

fn unit(phase: Phase) -> Unit {
    match phase {
        Phase::Apply => Unit::Rows,
        Phase::Send | Phase::Receive => Unit::Bytes,
        Phase::Cut | Phase::Wait => Unit::None,
    }
}

pub(super) fn show(report: &SyncReport, output: &Output) -> Result<()> {
    let up = [report.changes_up, report.conflicts, report.refused, report.bytes_up].map(thousands);
    output.line(format!(
        "up    {} changes, {} conflicts, {} refused and set aside, {} bytes",
        up[0], up[1], up[2], up[3]
    ))?;
    let down = [report.rows_down, report.deletions_down, report.held, report.bytes_down].map(thousands);
    output.line(format!("down  {} rows, {} deletions, {} held, {} bytes", down[0], down[1], down[2], down[3]))?;
    let notes = [
        (report.displaced > 0, format!("{} local changes stood in the way and are set aside", report.displaced)),
        (
            report.left_out > 0,
            format!(
                "{} local changes were of columns that the new version does not have: what they made of those is set aside \
                 (headwater remote log FILE --set-aside)",
                report.left_out
            ),
        ),
        (
            report.not_stored > 0,
            format!(
                "{} rows that came down are held: the file does not take them (headwater remote log FILE --held)",
                report.not_stored
            ),
        ),
        (
            report.untracked > 0,
            format!(
                "{} rows differ since change tracking was off here, and are set aside as untracked",
                report.untracked
            ),
        ),
        (
            report.perhaps_unsent > 0,
            format!(
                "{} rows of tables that only go up may have been written while change tracking was off here, and are set aside as untracked: \
                 `headwater remote log FILE --set-aside` lists them, `headwater remote retry FILE --table TABLE` sends them, `headwater remote \
                 drop FILE --table TABLE` takes them off the list",
                thousands(report.perhaps_unsent)
            ),
        ),
        (report.new_remote_id, NEW_REMOTE_ID.to_owned()),
        (report.restarted, "the consolidated database is another than before: everything came down afresh".to_owned()),
        (
            report.afresh > 0,
            format!(
                "{} came down afresh; the server's log names the cause{}",
                counted(report.afresh as usize, "table"),
                if report.afresh == 1 { "" } else { " of each" }
            ),
        ),
        (report.lost.is_some(), lost(report)),
        (report.upload_refused.is_some(), refused_whole(report)),
        (report.failures > 0, format!("{} attempts failed and were repeated", report.failures)),
    ];
    for (_, note) in notes.iter().filter(|(is_so, _)| *is_so) {
        output.line(format!("      {note}"))?;
    }
    output.line(format!("took  {:.3} s", report.times.total.as_secs_f64()))
}

/// A file may be a copy or an old backup, or the database: two were exchanged for each other, say. A remote can't tell which.
const NEW_REMOTE_ID: &str = "the consolidated database has other uploads on record under this remote ID than this file: one of the two is a copy, was \
                             restored from a backup, or was exchanged for another meanwhile. The file goes on under a new remote ID";

fn refused_whole(report: &SyncReport) -> String {
    const LINES_MAX: usize = 6;
    let why: Vec<&str> = report.upload_refused.iter().flat_map(|why| why.lines()).collect();
    let shown = why.iter().take(LINES_MAX).copied().collect::<Vec<_>>().join("\n        ");
    let more = if why.len() > LINES_MAX { "\n        ..." } else { "" };
    let (what, advice) = if report.upload_failed {
        (
            "the server failed at the upload, and nothing of it was applied",
            "its changes are pending and go up with the next sync: an administrator has to fix what the server's log names. Only where that is \
             one of the rows, change it or give it up",
        )
    } else {
        (
            "the upload was refused whole, and nothing of it applied",
            "fix what is named, in the rows or at the consolidated database, and sync again, or give the changes up",
        )
    };
    format!(
        "{what}: {shown}{more}\n      {advice} (`headwater remote log FILE --pending`, `headwater remote drop FILE --pending`)"
    )
}

fn lost(report: &SyncReport) -> String {
    let (first, last) = report.lost.unwrap_or_default();
    let kept = thousands(report.lost_changes);
    let (uploads, whose) = if first == last {
        (format!("upload {first}"), "its")
    } else {
        (format!("uploads {first} to {last}"), "their")
    };
    format!(
        "the consolidated database has lost {uploads}. {kept} of {whose} changes {}; `headwater remote retry FILE --all` sends {} again",
        if report.lost_changes == 1 { "is set aside" } else { "are set aside" },
        if report.lost_changes == 1 { "it" } else { "them" },
    )
}

pub(super) fn as_json(report: &SyncReport) -> Value {
    json!({
        "changes_up": report.changes_up, "conflicts": report.conflicts, "refused": report.refused,
        "rows_down": report.rows_down, "deletions_down": report.deletions_down, "held": report.held,
        "set_aside": report.set_aside(), "displaced": report.displaced, "left_out": report.left_out, "not_stored": report.not_stored, "untracked": report.untracked,
        "perhaps_unsent": report.perhaps_unsent, "afresh": report.afresh,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down, "requests": report.requests, "failures": report.failures,
        "new_remote_id": report.new_remote_id, "restarted": report.restarted, "lost": report.lost,
        "lost_changes": report.lost_changes,
        "upload_refused": report.upload_refused, "upload_failed": report.upload_failed, "large_download": report.large.as_ref().map(large_json),
        "times_ms": times(&report.times),
    })
}

fn times(times: &Times) -> Value {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    json!({
        "cut": ms(times.cut), "send": ms(times.send), "receive": ms(times.receive), "receipt": ms(times.receipt),
        "stage": ms(times.stage), "apply": ms(times.apply), "wait": ms(times.wait), "total": ms(times.total),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_fails_at_an_upload_has_nobody_drop_good_changes() {
        let why = Some("table \"item\" does not fit".to_owned());
        let failed = SyncReport { upload_refused: why.clone(), upload_failed: true, ..SyncReport::default() };
        let refused = SyncReport { upload_refused: why, ..SyncReport::default() };
        let (failed, refused) = (refused_whole(&failed), refused_whole(&refused));
        assert!(
            failed.contains("item") && failed.contains("the server's log") && failed.contains("Only where"),
            "{failed}"
        );
        assert!(refused.contains("item") && !refused.contains("the server's log"), "{refused}");
    }
}
