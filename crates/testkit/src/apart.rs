//! Tests that need a piece of the machine to themselves: they run a second time in a namespace of their own (namespaces(7)), which goes
//! with them.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use anyhow::{Context, Result, ensure};

const MARK: &str = "HEADWATER_APART";

/// Whether this process has a namespace of its own, of the kind that an option of unshare(1) names. If not, the test of this name has
/// been run by one that has, to its end.
pub fn is_apart(test: &str, kind: &str) -> Result<bool> {
    if std::env::var_os(MARK).is_some() {
        return Ok(true);
    }
    let mut unshare = Command::new("unshare");
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        unshare.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    unshare.arg(kind).arg(std::env::current_exe()?).args(["--exact", test, "--nocapture"]).env(MARK, "1");
    let output = unshare.output().context("unshare: it belongs to util-linux")?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.contains("1 passed"), "apart ({kind}): {said}");
    pass_on(&said);
    Ok(false)
}

/// Prints again what a test that ran in a process of its own has counted.
fn pass_on(said: &str) {
    for line in said.lines().filter_map(|line| line.find("tally: ").map(|place| &line[place..])) {
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}
