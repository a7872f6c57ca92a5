//! A throw-away PgBouncer: a real pooler on a loopback port before a PostgreSQL of this machine, gone with its value.
//!
//! # Caveats
//! - It lets everybody in, and asks for the database as `postgres`.
//! - A test process that is killed (SIGKILL) leaves it, as it leaves nginx and HAProxy.

use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::front::find;
use crate::{Child, free_port, wait_until};

/// How long it may take to start, or to end.
const START: Duration = Duration::from_secs(30);

/// A running PgBouncer.
pub struct PgBouncer {
    port: u16,
    server: u16,
    folder: TempDir,
    child: Child,
}

impl PgBouncer {
    /// Starts one before the server at this port, in a mode (`session`, `transaction`, `statement`), with so many sessions at most.
    pub fn start(server: u16, mode: &str, sessions: u32) -> Result<PgBouncer> {
        let (folder, port) = (tempfile::Builder::new().prefix("headwater-pgbouncer-").tempdir()?, free_port()?);
        let child = run(folder.path(), (port, server), mode, sessions)?;
        Ok(PgBouncer { port, server, folder, child })
    }

    /// Starts it anew at its port, in another mode.
    pub fn restart(&mut self, mode: &str, sessions: u32) -> Result<()> {
        self.child.kill()?;
        self.child = run(self.folder.path(), (self.port, self.server), mode, sessions)?;
        Ok(())
    }

    /// The address of a database behind it; `url` is the server's own.
    pub fn url(&self, url: &str) -> String {
        url.replace(&format!(":{}/", self.server), &format!(":{}/", self.port))
    }
}

fn run(folder: &Path, (port, server): (u16, u16), mode: &str, sessions: u32) -> Result<Child> {
    let (config, at) = (folder.join("pgbouncer.ini"), folder.display());
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\nadmin_users = postgres\n\
         pool_mode = {mode}\ndefault_pool_size = {sessions}\nmax_client_conn = 200\nlogfile = {at}/log\npidfile = {at}/pid\n"
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(find("pgbouncer")?);
    // It refuses to run as root.
    if std::fs::metadata("/proc/self")?.uid() == 0 {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777))?;
        command.args(["-u", "postgres"]);
    }
    let mut child = Child::spawn("pgbouncer", command.arg(&config))?;
    let is_up = wait_until(START, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    if !is_up || !child.is_running()? {
        let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
        bail!("pgbouncer did not start: {}{log}", child.stderr());
    }
    Ok(child)
}
