//! Ports for servers that must come back on the same one after a restart.
//!
//! A port that the kernel hands out (bind to 0) may be taken by any outgoing connection while the server is down. These lie
//! below the range of outgoing ports, and each is reserved by a lock on a file for as long as the test process lives, so
//! that test binaries that run at the same time don't meet.
//!
//! Whether one is free is asked by connecting to it. A listener, opened to see and closed again, could live on for a moment: a process
//! that another thread starts just then has a copy of it.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::Random;

const FIRST: u16 = 15_000;
const COUNT: u16 = 17_000;

/// The locks held until the process ends; at most one for each port of the range.
static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A TCP port of 127.0.0.1 that nobody listens on, reserved for this process.
pub fn free_port() -> Result<u16> {
    let owner = std::fs::metadata("/proc/self").context("reading /proc/self")?.uid();
    let folder = std::env::temp_dir().join(format!("headwater-ports-{owner}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = Random::seeded(now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32);
    for _ in 0..1000 {
        let port = FIRST + random.below(u64::from(COUNT)) as u16;
        let path = folder.join(port.to_string());
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        if file.try_lock().is_ok() && TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            RESERVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(file);
            return Ok(port);
        }
    }
    bail!("no free port found between {FIRST} and {}", FIRST + COUNT)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn ports_are_handed_out_once() {
        let ports: HashSet<u16> = (0..50).map(|_| super::free_port().expect("a port")).collect();
        assert_eq!(ports.len(), 50);
    }
}
