//! A throw-away Squid: a real cache on a loopback port, gone with its value. As a forward proxy it keeps what it gets in memory; in front of
//! a server, by the configuration in `docs/deploy`, on a disk too.
//!
//! # Caveats
//! - It is for this machine alone, one process.
//! - A test process that is killed (SIGKILL) leaves it, as it leaves nginx and HAProxy.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::front::find;
use crate::{Child, free_port, wait_until};

/// A running Squid.
pub struct Squid {
    port: u16,
    folder: TempDir,
    child: Child,
}

impl Squid {
    /// Starts a forward proxy, and returns when it listens.
    pub fn start() -> Result<Squid> {
        let (folder, port) = (folder()?, free_port()?);
        let text = format!(
            "http_port 127.0.0.1:{port}\n\
             http_access allow all\n\
             cache_mem 256 MB\n\
             maximum_object_size 64 MB\n\
             maximum_object_size_in_memory 64 MB\n\
             shutdown_lifetime 0 seconds\n"
        );
        Squid::run(folder, port, &text)
    }

    /// Starts one in front of a server, by `docs/deploy/squid.conf`.
    pub fn in_front_of(server: SocketAddr) -> Result<Squid> {
        Squid::by_file("squid.conf", server, "")
    }

    /// The same in front of a server's named queries, by `docs/deploy/squid-gateway.conf`.
    pub fn in_front_of_queries(server: SocketAddr) -> Result<Squid> {
        Squid::by_file("squid-gateway.conf", server, "")
    }

    /// The same with more lines of configuration.
    pub fn in_front_of_queries_with(server: SocketAddr, more: &str) -> Result<Squid> {
        Squid::by_file("squid-gateway.conf", server, more)
    }

    /// The same without its log of requests, for measurements: [`Squid::answers`] has nothing to say then.
    pub fn in_front_of_queries_unlogged(server: SocketAddr) -> Result<Squid> {
        Squid::by_file("squid-gateway.conf", server, "access_log none\n")
    }

    fn by_file(name: &str, server: SocketAddr, more: &str) -> Result<Squid> {
        let (folder, port) = (folder()?, free_port()?);
        let path = format!("{}/../../docs/deploy/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let text = text
            .replace("http_port 127.0.0.1:7340", &format!("http_port 127.0.0.1:{port}"))
            .replace("127.0.0.1 parent 7341", &format!("{} parent {}", server.ip(), server.port()))
            // Thousands of folders take longer to be made than most tests.
            .replace(" 4096 16 256", " 4096 2 16")
            .replace("/var/spool/squid", &folder.path().join("cache").display().to_string())
            .replace("shutdown_lifetime 3", "shutdown_lifetime 0");
        Squid::run(folder, port, &format!("{text}{more}"))
    }

    fn run(folder: TempDir, port: u16, text: &str) -> Result<Squid> {
        let (config, at) = (folder.path().join("squid.conf"), folder.path().display());
        let log =
            if text.contains("access_log") { String::new() } else { format!("access_log stdio:{at}/access.log\n") };
        let own = format!(
            "{log}visible_hostname squid.test\n\
             pid_filename {at}/pid\n\
             cache_log {at}/cache.log\n\
             coredump_dir {at}\n\
             memory_cache_shared off\n\
             pinger_enable off\n\
             netdb_filename none\n"
        );
        std::fs::write(&config, format!("{text}{own}"))?;
        if text.contains("cache_dir") {
            let made = Command::new(find("squid")?).arg("-N").arg("-z").arg("-f").arg(&config).output()?;
            ensure!(made.status.success(), "squid made no cache: {}", String::from_utf8_lossy(&made.stderr));
        }
        // -N: one process, which ends with its child.
        let mut command = Command::new(find("squid")?);
        let mut child = Child::spawn("squid", command.arg("-N").arg("-f").arg(&config))?;
        let is_up = wait_until(Duration::from_secs(30), || TcpStream::connect(("127.0.0.1", port)).is_ok());
        if !is_up || !child.is_running()? {
            let log = std::fs::read_to_string(folder.path().join("cache.log")).unwrap_or_default();
            bail!("squid did not start: {}{log}", child.stderr());
        }
        Ok(Squid { port, folder, child })
    }

    /// Bytes of all files that it keeps.
    pub fn cached(&self) -> Result<Vec<u8>> {
        let (mut folders, mut bytes) = (vec![self.folder.path().join("cache")], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                } else {
                    bytes.extend(std::fs::read(entry.path())?);
                }
            }
        }
        Ok(bytes)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it says of each request for a URL with this in it, in the order of their ends: `TCP_MISS/200`, `TCP_MEM_HIT/200`, ...
    pub fn answers(&self, part: &str) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        let lines = log.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let of_part = lines.filter(|words| words.get(6).is_some_and(|url| url.contains(part)));
        of_part.filter_map(|words| words.get(3).map(|answer| (*answer).to_owned())).collect()
    }
}

fn folder() -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("headwater-squid-").tempdir()?;
    // Started by root, it goes on as a user of its own, and writes here all the same.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777))?;
    Ok(folder)
}
