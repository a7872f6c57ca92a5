//! The shell process that owns a PostgreSQL (`supervisor.sh`), and its commands.
//!
//! The server is the shell's child, and the shell ends it as soon as the pipe from the test process closes: that happens
//! however the test process ends, a kill included, and needs no clean-up code to run in it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result};

use super::installation::Installation;
use crate::process::{children_of, is_alive, is_running, signal, wait_until};

/// How long the server may take to stop.
const STOP: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(super) struct Supervisor {
    shell: std::process::Child,
    commands: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The server's process ID while it should be running.
    server: Option<u32>,
}

impl Supervisor {
    /// Starts the shell as the cluster's owner, in a process group of its own so that Ctrl-C and time-outs of the test
    /// don't end it before it has cleaned up. No server runs yet.
    pub(super) fn start(installation: &Installation, cluster: &Path) -> Result<Self> {
        let log = cluster.join("log");
        let errors = std::fs::OpenOptions::new().append(true).create(true).open(&log)?;
        installation.give(&log)?;
        let script = cluster.join("supervisor.sh");
        std::fs::write(&script, include_str!("supervisor.sh"))?;
        let mut command = Command::new("sh");
        command.arg(&script).arg(installation.programs()).arg(cluster).current_dir("/").process_group(0);
        installation.as_owner(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut shell = command.spawn().context("starting the shell that keeps PostgreSQL")?;
        let commands = shell.stdin.take();
        let (sender, answers) = channel();
        if let Some(output) = shell.stdout.take() {
            std::thread::spawn(move || {
                BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        Ok(Self { shell, commands, answers, server: None })
    }

    /// Starts the server, after stopping one that runs.
    pub(super) fn start_server(&mut self) -> Result<()> {
        let answer = self.ask("start")?;
        self.server = Some(answer.parse().with_context(|| format!("a process ID expected, not {answer:?}"))?);
        Ok(())
    }

    /// Stops the server in PostgreSQL's "fast" way: transactions are rolled back, everything is written.
    pub(super) fn stop_server(&mut self) -> Result<()> {
        self.ask("stop INT")?;
        self.server = None;
        Ok(())
    }

    /// Kills the server and all its processes (SIGKILL), none of which can react. Back when all are gone.
    pub(super) fn kill_server(&mut self) -> Result<()> {
        let Some(server) = self.server else { return Ok(()) };
        self.ask("freeze")?; // so that it starts no further process while its children are looked up
        let children = standing_family(server)?;
        let list: Vec<String> = children.iter().map(u32::to_string).collect();
        self.ask(&format!("kill {}", list.join(" ")))?;
        self.server = None;
        let gone = wait_until(STOP, || children.iter().all(|child| !is_alive(*child)));
        anyhow::ensure!(gone, "processes of PostgreSQL survived SIGKILL: {list:?}");
        Ok(())
    }

    /// Has the server and all its processes stand still (SIGSTOP).
    pub(super) fn stand_still(&self) -> Result<()> {
        let server = self.server.context("no server runs")?;
        signal("STOP", &[server])?;
        signal("STOP", &standing_family(server)?)
    }

    /// Has them go on (SIGCONT). The server is the last, as it would take up those that end: a signal finds none of them gone.
    pub(super) fn go_on(&self) -> Result<()> {
        let server = self.server.context("no server runs")?;
        let mut family = children_of(server)?;
        family.push(server);
        signal("CONT", &family)
    }

    /// True while the server's main process runs.
    pub(super) fn is_server_alive(&self) -> bool {
        self.server.is_some_and(is_alive)
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        let input = self.commands.as_mut().context("the shell that keeps PostgreSQL was told to end")?;
        writeln!(input, "{command}").with_context(|| format!("telling PostgreSQL's shell to {command:?}"))?;
        self.answers
            .recv_timeout(STOP)
            .with_context(|| format!("PostgreSQL's shell did not answer {command:?} within {STOP:?}"))
    }
}

/// The children of a server that was told to stand still, once it does: until then it may start further ones, and take up those that end.
fn standing_family(server: u32) -> Result<Vec<u32>> {
    anyhow::ensure!(wait_until(STOP, || !is_running(server)), "PostgreSQL went on after SIGSTOP");
    children_of(server)
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.commands = None; // the end of its input: it stops the server and removes the folder
        let _ = self.shell.wait();
    }
}
