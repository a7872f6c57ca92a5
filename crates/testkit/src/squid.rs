//! A throw-away Squid: a real cache in memory, on a loopback port, gone with its value.
//!
//! # Caveats
//! - It is a forward proxy for this machine alone, one process, without a cache on a disk.
//! - A test process that is killed (SIGKILL) leaves it, as it leaves nginx and HAProxy.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::front::find;
use crate::{Child, free_port, wait_until};

/// A running Squid.
pub struct Squid {
    port: u16,
    folder: TempDir,
    _child: Child,
}

impl Squid {
    /// Starts one, and returns when it listens.
    pub fn start() -> Result<Squid> {
        let (folder, port) = (tempfile::Builder::new().prefix("headwater-squid-").tempdir()?, free_port()?);
        // Started by root, it goes on as a user of its own, and writes here all the same.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777))?;
        let config = folder.path().join("squid.conf");
        let at = folder.path().display();
        let text = format!(
            "http_port 127.0.0.1:{port}\n\
             http_access allow all\n\
             visible_hostname squid.test\n\
             pid_filename {at}/pid\n\
             access_log stdio:{at}/access.log\n\
             cache_log {at}/cache.log\n\
             coredump_dir {at}\n\
             cache_mem 256 MB\n\
             maximum_object_size 64 MB\n\
             maximum_object_size_in_memory 64 MB\n\
             memory_cache_shared off\n\
             pinger_enable off\n\
             netdb_filename none\n\
             shutdown_lifetime 0 seconds\n"
        );
        std::fs::write(&config, text)?;
        // -N: one process, which ends with its child.
        let mut command = Command::new(find("squid")?);
        let mut child = Child::spawn("squid", command.arg("-N").arg("-f").arg(&config))?;
        let is_up = wait_until(Duration::from_secs(30), || TcpStream::connect(("127.0.0.1", port)).is_ok());
        if !is_up || !child.is_running()? {
            let log = std::fs::read_to_string(folder.path().join("cache.log")).unwrap_or_default();
            bail!("squid did not start: {}{log}", child.stderr());
        }
        Ok(Squid { port, folder, _child: child })
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
