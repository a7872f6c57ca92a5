//! A disk that takes its time, on any machine: PostgreSQL is started with an `fdatasync` that waits before it calls the system's.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Builds the library that the cluster's shell looks for when it starts the server.
pub(super) fn build(cluster: &Path, delay: Duration) -> Result<()> {
    let source = cluster.join("slow_disk.c");
    std::fs::write(&source, include_str!("slow_disk.c"))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", &format!("-DDELAY_NS={}L", delay.as_nanos()), "-o"]);
    let output = compiler.arg(cluster.join("slow_disk.so")).arg(&source).arg("-ldl").output().context("cc")?;
    ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
