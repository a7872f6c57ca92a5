//! A remote's file.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use headwater_remote::{Error, FileFault, Status, examine, leftovers};

use super::{DoctorArgs, Findings, files};
use crate::output::about_bytes;

/// Days without a sync after which it is told; a server forgets deletions after some weeks (`purge_days`).
const DAYS_MAX: u64 = 14;
/// A write-ahead log beyond this is held by a reader that does not end.
const WAL_MIB_MAX: u64 = 256;

pub(super) fn look(file: &Path, args: &DoctorArgs, findings: &mut Findings) {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    files::space(folder, "the remote", args.free_mib, findings);
    files::network(file, findings);
    for left in leftovers(file) {
        let what = format!("{} ({}) was left beside it", left.path.display(), about_bytes(left.bytes));
        findings.warning("leftover", what, left.advice);
    }
    let examined = match examine(file) {
        Ok(examined) => examined,
        Err(error @ (Error::DiskFull { .. } | Error::Beside { .. } | Error::File { .. })) => {
            let mend = match &error {
                Error::File { fault: FileFault::ReadOnly { .. }, .. } => {
                    "make the file and its folder writable for this user (`mount`, `ls -l`): reading it needs the files beside it too"
                }
                _ => {
                    "keep the file as it is; mend the disk, or move the file with those beside it to another, and run this again"
                }
            };
            return findings.error(error.code(), format!("{}: {}", file.display(), chain(&error)), mend);
        }
        Err(error) => {
            let mend = "give the path of a file that `headwater remote create` made, in a folder where this user may write; only if \
                        it is damaged: take it from a backup, or create it anew and load what it had pending by hand";
            return findings.error("remote_unreadable", format!("{}: {error}", chain(&error)), mend);
        }
    };
    if !examined.faults.is_empty() {
        findings.error(
            "remote_damaged",
            format!("the file is damaged: {}", examined.faults.join("; ")),
            "save a copy, then `.recover` of the sqlite3 shell gets out what it can; sync into a file made anew",
        );
    }
    if !examined.untracked.is_empty() {
        findings.error(
            "remote_untracked",
            format!("changes of {} are not tracked as they must be", examined.untracked.join(", ")),
            format!(
                "`headwater remote status {}` puts that in order; changes made meanwhile show in `headwater diff`",
                file.display()
            ),
        );
    }
    state(file, &examined.status, findings);
}

fn state(file: &Path, status: &Status, findings: &mut Findings) {
    let file = file.display();
    if status.set_aside > 0 {
        findings.warning(
            "set_aside",
            format!("{} changes are set aside: they stay here until somebody decides", status.set_aside),
            format!("`headwater remote log {file} --set-aside` says why; then change the rows, or `headwater remote retry` or `drop`"),
        );
    }
    match &status.last_sync {
        None => findings.warning("never_synced", "it has never been synced", format!("`headwater remote sync {file}`")),
        Some(time) if days_since(time).is_some_and(|days| days > DAYS_MAX) => findings.warning(
            "synced_long_ago",
            format!("it was synced last at {time}: {DAYS_MAX} days and more ago, with {} changes pending", status.pending),
            format!("`headwater remote sync {file}`; after purge_days it must start afresh, which takes as long as a first sync"),
        ),
        Some(_) => {}
    }
    let wal = PathBuf::from(format!("{file}-wal"));
    if std::fs::metadata(&wal).is_ok_and(|wal| wal.len() >> 20 > WAL_MIB_MAX) {
        findings.warning(
            "wal_grows",
            format!("{} has more than {WAL_MIB_MAX} MiB", wal.display()),
            "some program keeps a read transaction open: end it",
        );
    }
}

/// Whole days since a time as records for people have it, `2026-11-21 23:48:41...`; by the calendar's days alone.
fn days_since(time: &str) -> Option<u64> {
    let mut parts = time.get(..10)?.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    // Days from civil, as in Howard Hinnant's "chrono-compatible low-level date algorithms".
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400) * 365 + year.rem_euclid(400) / 4 - year.rem_euclid(400) / 100;
    let then = era * 146_097 + of_era + (153 * month + 2) / 5 + day - 1 - 719_468;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs() / 86_400;
    now.checked_sub(u64::try_from(then).ok()?)
}

pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::days_since;

    #[test]
    fn days_are_counted_from_the_text() {
        let (old, older) = (days_since("2000-03-01 00:00:00"), days_since("1999-02-28 23:59:59.5+00"));
        assert_eq!(older.zip(old).map(|(older, old)| older - old), Some(367));
        assert_eq!(days_since("soon"), None);
        assert_eq!(days_since("9999-01-01 00:00:00"), None);
    }
}
