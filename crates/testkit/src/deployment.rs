//! A deployment in a folder, in which the built program is run as a person or a script runs it.
//!
//! ```no_run
//! use headwater_testkit::Deployment;
//! # fn main() {
//! let deployment = Deployment::new("target/debug/headwater"); // env!("CARGO_BIN_EXE_headwater") in a test
//! deployment.write("headwater.toml", "models = []\n[database]\nurl = \"sqlite:central.db\"\n");
//! deployment.ok(&["track"]);
//! let server = deployment.serve(&["--listen", "127.0.0.1:0"]);
//! deployment.refused(&["remote", "create", "a.db", "--server", &server.url, "--user", "nobody"], 2, "password");
//! # }
//! ```
//!
//! *Caveats.* What goes wrong panics, with all that the command has said: it is for tests.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

/// The password of all of its users.
const PASSWORD: &str = "hunter42";
/// Where a server's log goes.
const LOG: &str = "server.log";

/// A table for tests to which any will do.
pub const NOTES: &str =
    "CREATE TABLE note (id text NOT NULL PRIMARY KEY, body text); INSERT INTO note VALUES ('a', 'one');";

/// Its model.
pub const NOTES_MODEL: &str = r#"
name = "notes"
version = 1
[tables.note]
conflict = "remote_wins"
key = ["id"]
[tables.note.columns]
id = "text not null"
body = "text"
"#;

/// A folder with configuration, models and databases.
#[derive(Debug)]
pub struct Deployment {
    program: PathBuf,
    folder: TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

/// What a command answered.
#[derive(Debug)]
pub struct Said {
    /// Its exit code; none: it was killed.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub out: String,
    /// And to standard error.
    pub err: String,
}

/// A server that runs; killed when it is dropped.
#[derive(Debug)]
pub struct Serving {
    child: Child,
    /// Where remotes find it.
    pub url: String,
    /// Its host and port.
    pub address: String,
    /// It may have more to say.
    _out: BufReader<ChildStdout>,
}

impl Deployment {
    /// An empty folder for this program.
    pub fn new(program: impl Into<PathBuf>) -> Deployment {
        Deployment { program: program.into(), folder: tempfile::tempdir().expect("a folder"), variables: Vec::new() }
    }

    /// Whatever runs here has this variable.
    #[must_use]
    pub fn with(mut self, variable: &'static str, value: &'static str) -> Deployment {
        self.variables.push((variable, value));
        self
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    /// Reads a file; one that is not there is empty.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A command that was not started. Of the test's own environment it has nothing of Headwater's, and not who has called `sudo`.
    /// Its temporary files are in the deployment's folder: those of others are none of its business.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HEADWATER_")) {
            command.env_remove(name);
        }
        command.current_dir(self.folder.path()).args(arguments);
        command.env("HEADWATER_PASSWORD", PASSWORD).env_remove("SUDO_USER").env("TMPDIR", self.folder.path());
        command.envs(self.variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command.
    pub fn run(&self, arguments: &[&str]) -> Said {
        Said::of(&mut self.command(arguments))
    }

    /// What a command that must go well wrote to standard output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}\n{}", self.log());
        said.out
    }

    /// Runs a command that must end with this exit code, in these words.
    pub fn refused(&self, arguments: &[&str], code: i32, words: &str) {
        let said = self.run(arguments);
        assert!(said.code == Some(code) && said.err.contains(words), "{arguments:?}: no {words:?}, {code} in {said:?}");
    }

    /// Adds a user.
    pub fn add_user(&self, user: &str) {
        let mut add = self.command(&["user", "add", user, "--password-stdin"]);
        let mut child = add.stdin(Stdio::piped()).spawn().expect("the program starts");
        let mut input = child.stdin.take().expect("piped");
        writeln!(input, "{PASSWORD}").expect("read");
        drop(input);
        let done = child.wait_with_output().expect("it ends");
        assert!(done.status.success(), "{user}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Starts a server, with these arguments more.
    pub fn serve(&self, arguments: &[&str]) -> Serving {
        self.serve_with(arguments, &[])
    }

    /// The same with these variables. What it logs goes to a file.
    pub fn serve_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Serving {
        let all = [&["serve", "--log-json", "--set", "password_checks=1"], arguments].concat();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path(LOG)).expect("a log");
        let mut command = self.command(&all);
        let mut child = command.envs(variables.iter().copied()).stderr(log).spawn().expect("the server starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("it speaks");
        let url = line.trim().strip_prefix("listening on ").and_then(|url| Some((url, url.split_once("://")?.1)));
        let (url, address) = url.unwrap_or_else(|| panic!("{line:?}: {}", self.log()));
        Serving { child, url: url.to_owned(), address: address.to_owned(), _out: out }
    }

    /// What servers have logged so far.
    pub fn log(&self) -> String {
        self.read(LOG)
    }
}

impl Said {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Said {
        let done = command.output().expect("the program runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Said { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
    }
}

impl Serving {
    /// Asks it to stop, and sees that it ends well.
    pub fn stop(mut self) {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(asked.success());
        assert_eq!(self.child.wait().expect("it ends").code(), Some(0));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // One that has ended is waited for alone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
