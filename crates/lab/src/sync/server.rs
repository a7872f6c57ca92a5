//! The server under test: `headwater serve` as a process of its own, so that what it takes is known apart from the lab.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Child;

use tempfile::TempDir;

use super::kind::SyncSettings;
use super::{affinity, purchase};
use crate::harness::{Class, Failure};
use crate::serve;

/// How much of the end of its log is looked at.
const LAST_BYTES: u64 = 4096;
/// How many letters of a line are told.
const SAID_MAX: usize = 500;

/// A server that runs; dropped, it is ended.
pub(super) struct Server {
    process: Child,
    /// Host and port.
    pub(super) place: String,
    folder: TempDir,
}

impl Server {
    /// Starts one on the database of this address, and returns when it listens. Blocks for that long.
    pub(super) fn start(
        program: &Path,
        (database, host): (&str, IpAddr),
        settings: SyncSettings,
    ) -> Result<Server, Failure> {
        let failed = |what: String| Failure::new(Class::Other, format!("the server could not be started: {what}"));
        let folder = tempfile::tempdir().map_err(|error| failed(error.to_string()))?;
        let (config, said) = (folder.path().join("headwater.toml"), folder.path().join("said"));
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        let written = write("headwater.toml", "models = [\"lab_purchase.toml\"]\n")
            .and_then(|()| write("lab_purchase.toml", &purchase::model(settings.detects_conflicts)))
            .and_then(|()| std::fs::File::create(&said));
        let said_to = written.map_err(|error| failed(error.to_string()))?;
        Server::run((program, &config), (database, host), settings, folder, said_to)
    }

    /// Starts one by this configuration; the database and what the settings say go before what it has.
    pub(super) fn own(
        program: &Path,
        config: &Path,
        database: &str,
        settings: SyncSettings,
    ) -> Result<Server, Failure> {
        let failed =
            |error: std::io::Error| Failure::new(Class::Other, format!("the server could not be started: {error}"));
        let folder = tempfile::tempdir().map_err(failed)?;
        let said_to = std::fs::File::create(folder.path().join("said")).map_err(failed)?;
        let here = Ipv4Addr::LOCALHOST.into();
        Server::run((program, config), (database, here), settings, folder, said_to)
    }

    fn run(
        (program, config): (&Path, &Path),
        (database, host): (&str, IpAddr),
        settings: SyncSettings,
        folder: TempDir,
        said_to: std::fs::File,
    ) -> Result<Server, Failure> {
        let failed = |what: String| Failure::new(Class::Other, format!("the server could not be started: {what}"));
        let said = folder.path().join("said");
        let mut command = serve::command(program, config, SocketAddr::from((host, 0)));
        command.args(["--workers", &settings.workers.to_string(), "--uploaders", &settings.uploaders.to_string()]);
        command.args(["--backlog", &settings.backlog.to_string()]);
        command.args(["--set", &format!("receiving_max={}", settings.receiving_max)]);
        command.args(["--set", &format!("connections_max={}", settings.connections_max)]);
        // One line a sync, as it writes otherwise, but that with the stamps.
        command.args(["--log-json", "--log", "warn,headwater::stamps=debug"]);
        command.env("HEADWATER_DATABASE", database).stderr(said_to);
        let process = match settings.server_cpus {
            None => command.spawn(),
            Some(cpus) => affinity::confined(cpus, || command.spawn())
                .map_err(|why| Failure::usage(format!("scenario.server_cpus = {cpus}: {why}")))?,
        };
        let process = process.map_err(|error| failed(error.to_string()))?;
        let mut server = Server { process, place: String::new(), folder };
        let line = serve::first_line(&mut server.process).map_err(|error| failed(error.to_string()))?;
        let Some(place) = serve::place(&line) else {
            let said = std::fs::read_to_string(said).unwrap_or_default();
            let is_tls = line.contains("https://");
            let tls = if is_tls { "it serves by TLS, which a remote in memory does not speak" } else { "" };
            return Err(failed(format!("{}{tls}", said.trim())));
        };
        place.clone_into(&mut server.place);
        Ok(server)
    }

    /// What it logs.
    pub(super) fn log(&self) -> PathBuf {
        self.folder.path().join("said")
    }

    /// How it has ended, with the last that it said; none: it runs.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok().flatten()?;
        let said = last_said(&self.log()).map(|said| format!(", and said last: {said}")).unwrap_or_default();
        Some(format!("the server that the lab had started has ended ({status}){said}"))
    }

    /// Its process.
    pub(super) fn id(&self) -> i32 {
        self.process.id() as i32
    }
}

/// The last line of a log that is of no sync.
fn last_said(log: &Path) -> Option<String> {
    let mut file = std::fs::File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES))).ok()?;
    let mut end = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut end).ok()?;
    let end = String::from_utf8_lossy(&end);
    let said = end.lines().rev().map(str::trim).find(|line| !line.is_empty() && !line.contains("headwater::stamps"))?;
    Some(said.chars().take(SAID_MAX).collect())
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended by itself is no longer there to be ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
