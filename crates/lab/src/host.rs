//! The machine that the lab runs on: what it is, and how much of its time was taken.
//!
//! *Caveats.* Read from `/proc`: elsewhere than on Linux little is known.

use std::path::Path;
use std::process::Command;

use crate::sampling::{Spent, spent};

/// What the machine is: `host ...` and `lab ...`.
pub(crate) fn describe(folder: &Path) -> Vec<(String, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cpus, memory, load) = (read("/proc/cpuinfo"), read("/proc/meminfo"), read("/proc/loadavg"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let facts = [
        ("host cpu", field(&cpus, "model name")),
        ("host processors", Some(processors.to_string())),
        ("host memory", field(&memory, "MemTotal")),
        ("host kernel", Some(read("/proc/sys/kernel/osrelease").trim().to_owned())),
        ("host load average before", load.split_whitespace().next().map(str::to_owned)),
        ("lab version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("lab build", Some(if cfg!(debug_assertions) { "debug: slow, not for figures" } else { "release" }.to_owned())),
        ("lab commit", commit(folder)),
    ];
    let known = facts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    known.filter(|(_, value)| !value.is_empty()).collect()
}

/// Opens as many files as this process may: each client has a connection. What it starts may do so too. Where that is refused, connections
/// fail and say so.
#[cfg(unix)]
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

#[cfg(not(unix))]
pub(crate) fn raise_open_files() {}

/// The commit of the repository that the experiment lies in, and whether its files differ from it.
fn commit(folder: &Path) -> Option<String> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let described =
        Command::new("git").current_dir(folder).args(["describe", "--always", "--dirty", "--abbrev=40"]).output();
    let described = described.ok().filter(|output| output.status.success())?;
    String::from_utf8(described.stdout).ok().map(|text| text.trim().to_owned())
}

/// How much time has been taken since a beginning.
pub(crate) struct Usage {
    began: Option<Spent>,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        Usage { began: spent() }
    }

    /// Processor time of this process since then.
    pub(crate) fn client_cpu_ns(&self) -> Option<u64> {
        Some(spent()?.own.saturating_sub(self.began?.own).as_nanos() as u64)
    }

    /// Per cent of the machine's time since then that its host kept for others.
    pub(crate) fn steal_percent(&self) -> Option<f64> {
        let (now, began) = (spent()?, self.began?);
        let passed = now.all.checked_sub(began.all).filter(|passed| !passed.is_zero())?;
        Some(now.stolen.saturating_sub(began.stolen).as_secs_f64() * 100.0 / passed.as_secs_f64())
    }
}
