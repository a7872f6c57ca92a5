//! `headwater serve` as a process of its own, so that what it takes is known apart from the lab.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What starts one by this configuration; it says nothing but where it listens.
pub(crate) fn command(program: &Path, config: &Path, at: SocketAddr) -> Command {
    let mut command = Command::new(program);
    // Nothing but what is written here decides how it runs.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HEADWATER_")) {
        command.env_remove(name);
    }
    command.arg("--config").arg(config).args(["serve", "--listen", &at.to_string()]);
    // It ends with the lab, however that ends.
    command.arg("--until-input-ends");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The one line that it says when it listens; empty: it has ended. Blocks until then.
pub(crate) fn first_line(process: &mut Child) -> std::io::Result<String> {
    let mut line = String::new();
    if let Some(out) = process.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    Ok(line)
}

/// The host and port in that line; none: it serves by TLS, or not at all.
pub(crate) fn place(line: &str) -> Option<&str> {
    line.trim().strip_prefix("listening on http://")
}
