//! A real nginx or HAProxy in front of servers, by the configurations in `docs/deploy`.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{Child, free_port, wait_until};

/// Which proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
}

/// Both.
pub const FRONTS: [Front; 2] = [Front::Nginx, Front::Haproxy];

/// A running proxy; it goes with its value.
pub struct Proxied {
    port: u16,
    _child: Child,
    _folder: TempDir,
}

impl Front {
    /// Starts it in front of two servers. `change` may change the configuration, time-outs say.
    pub fn start(self, servers: [SocketAddr; 2], change: impl FnOnce(String) -> String) -> Result<Proxied> {
        let folder = tempfile::tempdir()?;
        let port = free_port()?;
        let (name, program) = match self {
            Front::Nginx => ("nginx.conf", "nginx"),
            Front::Haproxy => ("haproxy.cfg", "haproxy"),
        };
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/deploy")).join(name);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let text = text
            .replace("127.0.0.1:7340", &format!("127.0.0.1:{port}"))
            .replace("127.0.0.1:7341", &servers[0].to_string())
            .replace("127.0.0.1:7342", &servers[1].to_string());
        let config = folder.path().join(name);
        std::fs::File::create(&config)?.write_all(change(text).as_bytes())?;
        let program = find(program)?;
        let mut command = Command::new(program);
        match self {
            Front::Nginx => {
                let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                    .map(|what| format!("{what}_temp_path {}/{what};", folder.path().display()));
                // nginx is started by hand here: where it writes is said beside its configuration.
                let text = std::fs::read_to_string(&config)?.replacen(
                    "http {",
                    &format!("http {{ access_log off; {}", paths.concat()),
                    1,
                );
                std::fs::write(&config, text)?;
                // One process: workers would outlive a master that is killed.
                let own = format!(
                    "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;",
                    folder.path().display()
                );
                command.arg("-p").arg(folder.path()).arg("-c").arg(&config).args(["-g", &own]);
            }
            Front::Haproxy => {
                command.arg("-db").arg("-f").arg(&config);
            }
        }
        let mut child = Child::spawn(name, &mut command)?;
        let is_up = wait_until(Duration::from_secs(30), || TcpStream::connect(("127.0.0.1", port)).is_ok());
        if !is_up || !child.is_running()? {
            bail!("{name} did not start: {}", child.stderr());
        }
        Ok(Proxied { port, _child: child, _folder: folder })
    }
}

impl Proxied {
    /// Where remotes find it.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Debian has them where a user's path does not lead.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = folders.map(|folder| folder.join(program)).find(|path| path.is_file());
    found.with_context(|| format!("{program} is missing: run `make setup`"))
}
