//! The program under test as a process: found, started, watched, and gone when the test is.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

/// How often a condition is looked at while waiting for it.
const POLL: Duration = Duration::from_millis(10);

/// Waits until the condition holds; false when it did not within the time.
///
/// ```
/// use std::time::Duration;
/// assert!(headwater_testkit::wait_until(Duration::from_secs(1), || true));
/// ```
pub fn wait_until(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// The built `headwater`: `HEADWATER_BIN`, or the one beside this test's own binary.
pub fn headwater_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("HEADWATER_BIN").map(PathBuf::from) {
        ensure!(path.is_file(), "HEADWATER_BIN is {}, which is not a file", path.display());
        return Ok(path);
    }
    let path = profile_folder()?.join(format!("headwater{}", std::env::consts::EXE_SUFFIX));
    ensure!(
        path.is_file(),
        "{} is not built: `make test` builds it, `cargo build -p headwater` too, HEADWATER_BIN names another",
        path.display()
    );
    Ok(path)
}

/// The folder of this build's binaries, as `target/debug`.
pub(crate) fn profile_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this test's own binary")?;
    let folder = own.parent().context("this test's binary lies in no folder")?;
    let nested = folder.file_name().is_some_and(|name| name == "deps" || name == "examples");
    Ok(if nested { folder.parent().unwrap_or(folder) } else { folder }.to_path_buf())
}

/// A process of the test's. What it prints goes to files; dropped, it is killed and waited for.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    folder: TempDir,
}

impl Child {
    /// Starts the command without input. The name stands in errors.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("headwater-child-").tempdir()?;
        let process = command
            .stdin(Stdio::null())
            .stdout(File::create(folder.path().join("stdout"))?)
            .stderr(File::create(folder.path().join("stderr"))?)
            .spawn()
            .with_context(|| format!("starting {name} ({})", command.get_program().display()))?;
        Ok(Self { name: name.to_owned(), process, folder })
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it has printed to its standard output so far.
    pub fn stdout(&self) -> String {
        read_lossy(&self.folder.path().join("stdout"))
    }

    /// What it has printed to its standard error so far.
    pub fn stderr(&self) -> String {
        read_lossy(&self.folder.path().join("stderr"))
    }

    /// Waits until a line with this text is printed (to either), and gives that line; an error when the process ends
    /// before, or the time is over.
    pub fn wait_for_line(&mut self, text: &str, within: Duration) -> Result<String> {
        let deadline = Instant::now() + within;
        loop {
            let ended = self.process.try_wait()?;
            for output in [self.stdout(), self.stderr()] {
                // A last line without its end may be half written: it counts only once the process has ended.
                let lines = output.split_inclusive('\n').filter(|line| ended.is_some() || line.ends_with('\n'));
                if let Some(line) = lines.map(str::trim_end).find(|line| line.contains(text)) {
                    return Ok(line.to_owned());
                }
            }
            if let Some(status) = ended {
                bail!("{} ended ({status}) without printing {text:?}; it printed:\n{}", self.name, self.stderr());
            }
            if Instant::now() >= deadline {
                bail!("{} did not print {text:?} within {within:?}; it printed:\n{}", self.name, self.stderr());
            }
            std::thread::sleep(POLL);
        }
    }

    /// True while the process has not ended.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_none())
    }

    /// Asks it to end (SIGTERM), as an operator would.
    pub fn terminate(&self) -> Result<()> {
        signal("TERM", &[self.id()])
    }

    /// Has it stand still (SIGSTOP): its connections stay, and nothing comes of them.
    pub fn stand_still(&self) -> Result<()> {
        signal("STOP", &[self.id()])
    }

    /// Has it go on (SIGCONT).
    pub fn go_on(&self) -> Result<()> {
        signal("CONT", &[self.id()])
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.process.kill().with_context(|| format!("killing {}", self.name))?;
        Ok(self.process.wait()?)
    }

    /// Waits for its end; an error with what it printed when the time is over.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let mut status = None;
        wait_until(within, || {
            status = self.process.try_wait().transpose();
            status.is_some()
        });
        let status = status.transpose()?;
        status.with_context(|| format!("{} still runs after {within:?}; it printed:\n{}", self.name, self.stderr()))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- {} printed ---\n{}{}", self.name, self.stdout(), self.stderr());
        }
    }
}

/// Sends a signal by name. The shell's own `kill` does it, as the system call would need unsafe code.
pub(crate) fn signal(name: &str, processes: &[u32]) -> Result<()> {
    let list: Vec<String> = processes.iter().map(u32::to_string).collect();
    let output = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", list.join(" "))).output()?;
    ensure!(output.status.success(), "sending {name} to {list:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// True while the process runs; one that has ended and was not waited for counts as gone.
pub(crate) fn is_alive(process: u32) -> bool {
    status_of(process).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// True while the process is neither stopped nor gone.
pub(crate) fn is_running(process: u32) -> bool {
    status_of(process).is_some_and(|(state, _)| !matches!(state, 'T' | 't' | 'Z' | 'X'))
}

/// The children of a process that it has not waited for.
pub(crate) fn children_of(process: u32) -> Result<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").context("listing /proc")?;
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    Ok(ids.filter(|id| status_of(*id).is_some_and(|(_, parent)| parent == process)).collect())
}

/// State letter and parent of a process, from `/proc/ID/stat` (proc(5)); none when it is gone.
fn status_of(process: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The command stands in parentheses and may hold any character: what follows the last one is fixed.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
