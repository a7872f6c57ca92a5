//! Peak memory of a process (Linux: `VmHWM`), and a remote in a process of its own, so that its memory is not the server's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use headwater_remote::http::Credentials;
use headwater_remote::{Remote, SyncOptions};

/// How this program is asked to be a remote.
#[derive(clap::Args, Debug)]
pub(crate) struct RemoteArguments {
    /// The remote's file.
    file: PathBuf,
    /// The server's token.
    token: String,
}

/// Syncs once and prints the peak of this process.
pub(crate) fn be_remote(arguments: &RemoteArguments) -> Result<u64> {
    let mut remote = Remote::open(&arguments.file)?;
    remote.sync(&mut SyncOptions::new(Credentials::Token(arguments.token.clone())))?;
    peak_bytes()
}

/// Syncs a remote's file from a process of its own; gives that process's peak.
pub(crate) fn sync_apart(file: &Path, token: &str) -> Result<u64> {
    let output = Command::new(std::env::current_exe()?).arg("remote").arg(file).arg(token).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the remote's process failed: {}", String::from_utf8_lossy(&output.stderr));
    text.trim().parse().with_context(|| format!("{text:?} is no number of bytes"))
}

/// Forgets this process's peak so far.
pub(crate) fn reset_peak() -> Result<()> {
    std::fs::write("/proc/self/clear_refs", "5").context("resetting the peak of memory")
}

/// The most memory that this process has held since the last reset.
pub(crate) fn peak_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("/proc/self/status has no VmHWM")?;
    let kilobytes = line.trim().trim_end_matches(" kB");
    Ok(kilobytes.parse::<u64>().with_context(|| format!("{line:?} is no number of kB"))? * 1024)
}
