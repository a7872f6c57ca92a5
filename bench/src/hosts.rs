//! Two hosts on this machine: network namespaces, each with a virtual Ethernet to here. They go when they are dropped.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// How many.
const COUNT: usize = 2;

/// Where they reach this machine.
pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);

/// The hosts.
pub(crate) struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    /// Makes them. Takes root, and `ip` (Debian: iproute2).
    pub(crate) fn make() -> Result<Hosts> {
        let mut hosts = Hosts { names: Vec::new() };
        for host in 0..COUNT {
            let name = format!("headwater-{}-{host}", std::process::id());
            ip(&["netns", "add", &name])?;
            hosts.names.push(name.clone());
            let (near, far) = (near(host), format!("hwf{host}"));
            ip(&["link", "add", &near, "type", "veth", "peer", "name", &far, "netns", &name])?;
            ip(&["address", "add", &format!("{}/24", address(host, 1)), "dev", &near])?;
            ip(&["link", "set", &near, "up"])?;
            let inside = |arguments: &[&str]| ip(&[&["-n", name.as_str()], arguments].concat());
            inside(&["address", "add", &format!("{}/24", address(host, 2)), "dev", &far])?;
            inside(&["link", "set", &far, "up"])?;
            inside(&["link", "set", "lo", "up"])?;
            inside(&["route", "add", "default", "via", &address(host, 1).to_string()])?;
        }
        Ok(hosts)
    }

    /// A program that runs on one of them.
    pub(crate) fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host]]).arg(program);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (host, name) in self.names.iter().enumerate() {
            // The Ethernet would go with the namespace that its far end is in, but later.
            for arguments in [["link", "delete", &near(host)], ["netns", "delete", name]] {
                if let Err(error) = ip(&arguments) {
                    eprintln!("{error:#}");
                }
            }
        }
    }
}

/// The end of its Ethernet that is here. An interface's name has 15 letters at most.
fn near(host: usize) -> String {
    format!("hwn{host}")
}

fn address(host: usize, end: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, host as u8 + 1, end)
}

fn ip(arguments: &[&str]) -> Result<()> {
    let done = Command::new("ip").args(arguments).output().context("running ip (apt-get install iproute2)")?;
    let told = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "ip {}: {} (network namespaces take root)", arguments.join(" "), told.trim());
    Ok(())
}
