//! Syncs that carry little: none at all, and what a sync costs beside its rows.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use headwater_lab::sync::memory::{MemoryRemote, Upload};
use headwater_protocol::message::ChangeOp;

use super::tell;
use super::world::{Which, World};

/// Syncs of remotes that have everything, as many at a time as is wanted, one after the other.
pub(crate) fn empty(world: &mut World) -> Result<()> {
    let mut remotes = world.remotes(Which::Small)?;
    let local = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for remote in &mut remotes {
        local.block_on(world.sync_small(remote))?;
    }
    let at_once = world.arguments.at_once.clamp(1, remotes.len());
    let each = remotes.len().div_ceil(at_once);
    let (mut rates, mut cpus) = (Vec::new(), Vec::new());
    for turn in 0..world.arguments.repetitions {
        let begin = Instant::now();
        let until = begin + Duration::from_secs(world.arguments.seconds);
        let (syncs, cpu) = world.metered(|| {
            local.block_on(async {
                let lines: FuturesUnordered<_> =
                    remotes.chunks_mut(each).map(|some| again_and_again(world, some, until)).collect();
                let all = lines.collect::<Vec<_>>().await;
                all.into_iter().sum::<Result<usize>>()
            })
        })?;
        let rate = syncs as f64 / begin.elapsed().as_secs_f64();
        eprintln!("empty {turn}: {rate:.0} a second");
        rates.push(rate);
        cpus.push([cpu.server, cpu.database, cpu.generator].map(|seconds| seconds * 1e6 / syncs as f64));
    }
    for (place, who) in ["server", "database", "generator"].into_iter().enumerate() {
        let of = cpus.iter().map(|cpu| cpu[place]).collect::<Vec<_>>();
        println!("rate speed.empty_sync_{who}_cpu_us {:.1}", super::median(&of));
    }
    tell("speed.empty_syncs_per_s", &rates);
    Ok(())
}

async fn again_and_again(world: &World, remotes: &mut [MemoryRemote], until: Instant) -> Result<usize> {
    let mut syncs = 0;
    while Instant::now() < until {
        for remote in &mut *remotes {
            let synced = world.sync_small(remote).await?;
            ensure!(synced == 0, "{synced} rows came");
            syncs += 1;
        }
    }
    Ok(syncs)
}

/// The line of time a sync over rows a sync, of the same number of rows in all: uploads of inserts, and downloads of them.
pub(crate) fn intercept(world: &mut World) -> Result<()> {
    let total = world.arguments.clients as i64 * world.arguments.rows;
    let counts = [50, 100, 500, 1_000, 5_000, 10_000].into_iter().filter(|rows| *rows <= total);
    let counts: Vec<i64> = counts.collect();
    let mut intercepts = [Vec::new(), Vec::new()];
    for _ in 0..world.arguments.repetitions {
        let mut points = [Vec::new(), Vec::new()];
        for rows in &counts {
            let [up, down] = of_size(world, *rows, total / rows)?;
            points[0].push((*rows as f64, up));
            points[1].push((*rows as f64, down));
            eprintln!("{rows} rows a sync: up {up:.3} ms, down {down:.3} ms");
        }
        for (points, intercepts) in points.iter().zip(&mut intercepts) {
            intercepts.push(line(points).0);
        }
    }
    let worst: Vec<f64> = intercepts[0].iter().zip(&intercepts[1]).map(|(up, down)| up.max(*down)).collect();
    println!("rate speed.rows_intercept_up_ms {:.3}", super::median(&intercepts[0]));
    println!("rate speed.rows_intercept_down_ms {:.3}", super::median(&intercepts[1]));
    tell("speed.rows_intercept_ms", &worst);
    Ok(())
}

/// So many syncs of so many rows, shared out over the clients: milliseconds of each, up and then down at another remote of the client.
fn of_size(world: &mut World, rows: i64, syncs: i64) -> Result<[f64; 2]> {
    let clients = (syncs as usize).min(world.arguments.clients);
    let each = syncs / clients as i64;
    let mut senders = (0..clients).map(|number| world.remote(Which::Detecting, number)).collect::<Result<Vec<_>>>()?;
    let mut takers = (0..clients).map(|number| world.remote(Which::Detecting, number)).collect::<Result<Vec<_>>>()?;
    world.sync_all(&mut senders, false)?;
    world.sync_all(&mut takers, false)?;
    let (mut up, mut down) = (0.0, 0.0);
    for turn in 0..each {
        for (number, remote) in senders.iter_mut().enumerate() {
            let first = world.sent + 1 + turn * rows;
            let changes =
                (first..first + rows).map(|n| world.purchases.change(ChangeOp::Insert, number as i64 + 1, n, false));
            remote.put(Upload::of(&world.purchases.header, changes));
        }
        up += world.sync_all(&mut senders, false)?.0;
        let (seconds, all) = world.sync_all(&mut takers, false)?;
        ensure!(all.iter().all(|synced| synced.upserts as i64 == rows), "other rows came");
        down += seconds;
    }
    world.sql(&format!("DELETE FROM purchase WHERE purch_id > {}", world.sent))?;
    world.vacuum()?;
    let all = (each * clients as i64) as f64;
    Ok([up, down].map(|seconds| seconds * 1e3 / all))
}

/// Intercept and slope by least squares of relative errors: a sync of fifty rows counts as much as one of ten thousand.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let weighed = points.iter().map(|(x, y)| (1.0 / (y * y), *x, *y));
    let sum = |of: fn((f64, f64, f64)) -> f64| weighed.clone().map(of).sum::<f64>();
    let (w, wx, wy) = (sum(|p| p.0), sum(|p| p.0 * p.1), sum(|p| p.0 * p.2));
    let (wxx, wxy) = (sum(|p| p.0 * p.1 * p.1), sum(|p| p.0 * p.1 * p.2));
    let slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
    ((wy - slope * wx) / w, slope)
}

impl World {
    /// One sync of a remote of the small model; gives how many rows came.
    pub(crate) async fn sync_small(&self, remote: &mut MemoryRemote) -> Result<u64> {
        let mut check = |_, _, _: &[headwater_protocol::ValueRef<'_>]| Ok(0);
        let synced = remote.sync(headwater_lab::sync::memory::Pace::default(), &mut check).await;
        let synced = synced.map_err(|failure| anyhow::anyhow!("{failure}"))?;
        Ok(synced.upserts + synced.deletes)
    }
}
