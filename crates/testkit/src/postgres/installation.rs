//! Which PostgreSQL of this machine is used, as which user, and a cluster ready to copy.
//!
//! `initdb` takes a second or more; copying what it made takes a tenth. So one is kept under `target/tmp` for each version
//! of PostgreSQL, built once under a file lock, and copied for each cluster.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::process::profile_folder;

/// The oldest version that Headwater supports.
const OLDEST: u32 = 15;

/// Counted up when the options of `initdb` change, so that kept clusters are made anew.
const LAYOUT: u32 = 1;

/// PostgreSQL's programs, and the user that may run them.
#[derive(Clone, Debug)]
pub(super) struct Installation {
    programs: PathBuf,
    version: String,
    /// User and group to become, where we are root (PostgreSQL refuses to run as root).
    owner: Option<(u32, u32)>,
}

impl Installation {
    /// The newest PostgreSQL of this machine; `HEADWATER_POSTGRES_BIN` names the folder of another.
    pub(super) fn find() -> Result<Self> {
        let owner = owner()?;
        let mut found: Vec<(u32, String, PathBuf)> = Vec::new();
        for programs in candidates() {
            let Some(version) = version_of(&programs) else { continue };
            let digits = version.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            found.push((digits.parse().unwrap_or(0), version, programs));
        }
        found.sort();
        let (major, version, programs) =
            found.pop().context("no PostgreSQL server found on this machine: `make setup` installs it")?;
        ensure!(
            major >= OLDEST,
            "PostgreSQL {version} in {} is too old, {OLDEST} is needed: `make setup` installs it",
            programs.display()
        );
        Ok(Self { programs, version, owner })
    }

    pub(super) fn programs(&self) -> &Path {
        &self.programs
    }

    /// Lets the command run as the cluster's owner.
    pub(super) fn as_owner(&self, command: &mut Command) {
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
    }

    /// A folder of its own in this one (or the temporary directory), which belongs to the cluster's owner.
    pub(super) fn folder(&self, place: Option<&Path>) -> Result<TempDir> {
        let place = place.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let folder = tempfile::Builder::new().prefix("headwater-pg-").tempdir_in(place)?;
        self.give(folder.path())?;
        Ok(folder)
    }

    /// Makes a file or folder of ours the cluster's owner's.
    pub(super) fn give(&self, path: &Path) -> Result<()> {
        if let Some((user, group)) = self.owner {
            chown(path, Some(user), Some(group)).with_context(|| format!("giving {} away", path.display()))?;
        }
        Ok(())
    }

    /// Copies a fresh cluster to `data`, which must not exist.
    pub(super) fn copy_cluster(&self, data: &Path) -> Result<()> {
        let kept = profile_folder()?.parent().unwrap_or(Path::new(".")).join("tmp");
        std::fs::create_dir_all(&kept).with_context(|| format!("creating {}", kept.display()))?;
        let template = kept.join(format!("postgres-{}-{LAYOUT}", self.version));
        {
            let lock = kept.join("postgres.lock");
            let lock = File::create(&lock).with_context(|| format!("opening {}", lock.display()))?;
            lock.lock().context("waiting for the lock on the kept clusters")?;
            if !template.exists() {
                self.make_template(&template)?;
            }
        }
        self.copy_as_owner(&template, data)
    }

    /// We read, the owner writes: all files are its own from the beginning, also when the copy is broken off.
    pub(super) fn copy_as_owner(&self, from: &Path, to: &Path) -> Result<()> {
        let mut reading =
            Command::new("tar").arg("-C").arg(from).args(["-cf", "-", "."]).stdout(Stdio::piped()).spawn()?;
        let mut writing = Command::new("sh");
        writing.arg("-c").arg(r#"umask 077 && mkdir "$1" && tar -C "$1" -xf -"#).arg("sh").arg(to).current_dir("/");
        if let Some(archive) = reading.stdout.take() {
            writing.stdin(archive);
        }
        self.as_owner(&mut writing);
        let written = run(&mut writing);
        drop(writing); // its end of the pipe, on which the reader would wait for ever
        let read = reading.wait()?;
        written?;
        ensure!(read.success(), "tar could not read {} ({read})", from.display());
        Ok(())
    }

    /// Made in the temporary directory, which the owner can reach for sure, then renamed into place when whole.
    fn make_template(&self, template: &Path) -> Result<()> {
        let folder = self.folder(None)?;
        let data = folder.path().join("data");
        let mut initdb = Command::new(self.programs.join("initdb"));
        initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]);
        initdb.arg("-D").arg(&data).current_dir(folder.path());
        self.as_owner(&mut initdb);
        run(&mut initdb)?;
        let partial = template.with_extension("partial");
        if partial.exists() {
            std::fs::remove_dir_all(&partial)?;
        }
        copy(&data, &partial)?;
        Ok(std::fs::rename(&partial, template)?)
    }
}

fn candidates() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("HEADWATER_POSTGRES_BIN") {
        return vec![PathBuf::from(named)];
    }
    let mut folders = Vec::new();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        folders.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        folders.extend(versions.flatten().map(|entry| entry.path().join("bin")));
    }
    folders
}

/// The version of the server in this folder, as `15.14`; none where there is no whole installation.
fn version_of(programs: &Path) -> Option<String> {
    if !programs.join("initdb").is_file() {
        return None;
    }
    let output = Command::new(programs.join("postgres")).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().nth(2).map(str::to_owned)
}

/// The user that runs PostgreSQL in root's place; none where we are not root.
fn owner() -> Result<Option<(u32, u32)>> {
    if std::fs::metadata("/proc/self").context("reading /proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    let entry = |name: &str| {
        let fields: Vec<&str> =
            users.lines().map(|line| line.split(':').collect()).find(|f: &Vec<&str>| f.first() == Some(&name))?;
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    let owner = entry("postgres").or_else(|| entry("nobody"));
    Ok(Some(owner.context(
        "PostgreSQL can't run as root, and there is neither a user postgres nor nobody: `make setup` makes it",
    )?))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("-a").arg(from).arg(to))
}

pub(super) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    ensure!(
        output.status.success(),
        "{program} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
