//! The program `headwater`, run as a user runs it: commands that end, and the server.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Every user's password in this demo.
pub(super) const PASSWORD: &str = "headwater";

/// How long the server may take to stop before it is killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// The program, and the folder it runs in.
pub(super) struct Headwater {
    program: PathBuf,
    folder: PathBuf,
    is_interrupted: Arc<AtomicBool>,
}

impl Headwater {
    /// The one in the folder of the program that runs now.
    pub(super) fn beside_this_program(folder: &Path, is_interrupted: Arc<AtomicBool>) -> Result<Headwater> {
        let this = std::env::current_exe().context("asking where this program lies")?;
        let program = this.with_file_name(format!("headwater{}", std::env::consts::EXE_SUFFIX));
        ensure!(program.exists(), "{} is missing; `make demo` builds it", program.display());
        Ok(Headwater { program, folder: folder.to_owned(), is_interrupted })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn folder_of_programs(&self) -> Result<PathBuf> {
        Ok(self.program.parent().context("the program has no folder")?.to_owned())
    }

    /// Where a failure left its traces.
    pub(super) fn where_to_look(&self) -> String {
        format!("see {} and the databases beside it", self.folder.join("server.log").display())
    }

    /// The last line that a command says.
    pub(super) fn answer(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments)?.output()?;
        check(&output, arguments, &[0])?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.trim_end().lines().last().unwrap_or_default().to_owned())
    }

    /// What a command says as JSON.
    pub(super) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let (value, is_so) = self.json_and_whether(arguments)?;
        ensure!(is_so, "`headwater {}` ended with exit code 1: {value}", arguments.join(" "));
        Ok(value)
    }

    /// What a command says as JSON, and whether it ended with 0 rather than 1 (something was found).
    pub(super) fn json_and_whether(&self, arguments: &[&str]) -> Result<(Value, bool)> {
        let output = self.command(arguments)?.arg("--json").output()?;
        check(&output, arguments, &[0, 1])?;
        let value = serde_json::from_slice(&output.stdout);
        let value = value.with_context(|| format!("`headwater {} --json` gave no JSON", arguments.join(" ")))?;
        Ok((value, output.status.success()))
    }

    pub(super) fn add_user(&self, user: &str) -> Result<()> {
        let arguments = ["user", "add", user, "--password-stdin"];
        let mut child = self.command(&arguments)?.stdin(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().context("the program has no standard input")?;
        writeln!(input, "{PASSWORD}")?;
        drop(input);
        check(&child.wait_with_output()?, &arguments, &[0])
    }

    /// Starts the server, and waits until it listens.
    pub(super) fn serve(&self) -> Result<Server> {
        let log = self.folder.join("server.log");
        let mut command = self.command(&["serve"])?;
        let mut child = command.stderr(std::fs::File::create(&log)?).spawn()?;
        let out = child.stdout.take().context("the server has no standard output")?;
        let mut server = Server { url: String::new(), child: Some(child) };
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        match line.trim().strip_prefix("listening on ") {
            Some(url) => url.clone_into(&mut server.url),
            None => bail!("the server did not start:\n{}", std::fs::read_to_string(&log)?.trim_end()),
        }
        Ok(server)
    }

    /// The user's own settings for Headwater would be in the way.
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        ensure!(!self.is_interrupted.load(Ordering::Relaxed), "interrupted");
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HEADWATER_")) {
            command.env_remove(name);
        }
        command.args(arguments).current_dir(&self.folder).env("HEADWATER_PASSWORD", PASSWORD);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

fn check(output: &Output, arguments: &[&str], codes: &[i32]) -> Result<()> {
    let is_expected = output.status.code().is_some_and(|code| codes.contains(&code));
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).trim_end().to_owned());
    ensure!(is_expected, "`headwater {}` failed ({}):\n{}", arguments.join(" "), output.status, said.join("\n").trim());
    Ok(())
}

/// A server that runs; dropped, it is killed.
pub(super) struct Server {
    /// Where it listens.
    pub(super) url: String,
    child: Option<Child>,
}

impl Server {
    /// Asks it to stop, and waits until it has.
    pub(super) fn stop(mut self) -> Result<()> {
        let child = self.child.as_mut().context("the server has stopped already")?;
        let asked = Command::new("kill").arg(child.id().to_string()).status().context("asking the server to stop")?;
        ensure!(asked.success(), "the server could not be asked to stop: kill ended with {asked}");
        let deadline = Instant::now() + STOP_TIME_MAX;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < deadline, "the server did not stop within {} s", STOP_TIME_MAX.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        };
        self.child = None;
        ensure!(status.success(), "the server ended with {status}; see server.log");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Something else has failed, and is told; whether this does changes nothing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
