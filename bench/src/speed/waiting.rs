//! What a client costs that has sent its HELLO and waits for a worker: the memory of the server's process, with thousands that wait.
#![allow(clippy::print_stdout)]

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use procfs::process::Process;

use super::world::{Which, World};
use crate::figures::figure;

/// How often the memory is looked at before it is taken to have stopped growing.
const LOOKS: u32 = 50;

/// Clients that wait, by plain HTTP here and by TLS in a process of its own, which trusts the server's certificate.
pub(crate) fn waiting(world: &mut World) -> Result<()> {
    if world.certificate().is_some() {
        println!("rate speed.waiting_client_tls_kib {:.3}", each_kib(world)?);
        return Ok(());
    }
    figure("speed.waiting_client_kib", each_kib(world)?);
    let folder = tempfile::tempdir()?;
    let certificate = folder.path().join("certificate.pem");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["speed", "--only", "waiting", "--repetitions", "1", "--rows", "1"]);
    command.args([
        "--clients",
        &world.arguments.clients.to_string(),
        "--waiting",
        &world.arguments.waiting.to_string(),
    ]);
    command.arg("--certificate").arg(&certificate).env("SSL_CERT_FILE", &certificate).stdin(Stdio::null());
    let done = command.status().context("the same by TLS could not be started")?;
    ensure!(done.success(), "the same by TLS ended with {done}");
    Ok(())
}

/// KiB of the server's memory for each of them.
fn each_kib(world: &mut World) -> Result<f64> {
    let count = world.arguments.waiting;
    let mut remotes = (0..count).map(|_| world.remote(Which::Small, 0)).collect::<Result<Vec<_>>>()?;
    // Whatever a server has once it has served some does not count.
    world.sync_few(&mut remotes[..count.min(100)])?;
    let mut each = Vec::new();
    for turn in 0..world.arguments.repetitions.min(3) {
        let before = world.server_rss()?;
        let most = world.with_all_waiting(&mut remotes)?;
        each.push((most.saturating_sub(before)) as f64 / 1024.0 / count as f64);
        eprintln!(
            "waiting {turn}: {:.1} MB before, {:.1} with {count} that wait",
            before as f64 / 1e6,
            most as f64 / 1e6
        );
    }
    // Later turns are told on stderr alone: they find memory that the first has left behind.
    each.first().copied().context("there was no turn")
}

impl World {
    fn server_rss(&self) -> Result<u64> {
        Ok(Process::new(self.server_id())?.stat()?.rss * procfs::page_size())
    }

    fn sync_few(&self, remotes: &mut [headwater_lab::sync::memory::MemoryRemote]) -> Result<()> {
        let local = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for remote in remotes {
            local.block_on(self.sync_small(remote))?;
        }
        Ok(())
    }

    /// Has all sync while the database lets none through, looks at the server's memory once all wait, and lets them through: each must have
    /// done its sync in the end.
    fn with_all_waiting(&self, remotes: &mut [headwater_lab::sync::memory::MemoryRemote]) -> Result<u64> {
        let (count, workers) = (remotes.len(), self.arguments.workers);
        self.sql("BEGIN; LOCK TABLE small_member")?;
        let local = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let done = local.block_on(async {
            let syncs: FuturesUnordered<_> = remotes.iter_mut().map(|remote| self.sync_small(remote)).collect();
            let looks = async {
                while self.connections()? < count {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                let mut most = 0;
                for _ in 0..LOOKS {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    most = most.max(self.server_rss()?);
                }
                self.client.batch_execute("ROLLBACK").await?;
                anyhow::Ok(most)
            };
            let (all, most) = tokio::join!(syncs.collect::<Vec<_>>(), looks);
            let done = all.into_iter().flatten().count();
            ensure!(done == count, "{done} of {count} clients have synced, {workers} workers");
            most
        })?;
        Ok(done)
    }

    /// Sockets of the server.
    fn connections(&self) -> Result<usize> {
        Ok(Process::new(self.server_id())?.fd_count()?)
    }
}
