//! Uploads that lie on disk while they wait: a pool with a third of their bytes, against one that has room for all.
#![allow(clippy::print_stdout)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use headwater_lab::sync::memory::{MemoryRemote, Synced};
use headwater_protocol::message::ChangeOp;
use serde_json::Value;

use super::bulk::put;
use super::world::{Which, World};
use super::{SpeedArguments, Turns};
use crate::figures::figure;

/// All clients upload at once, and most of them wait for a worker.
pub(crate) fn overflow(world: &mut World) -> Result<()> {
    let mut large = world.remotes(Which::Detecting)?;
    world.sync_all(&mut large, false)?;
    let mut first = world.sent + 1;
    let rows = world.arguments.rows;
    let (_, all) = inserts(world, &mut large, first)?;
    let bytes: u64 = all.iter().map(|one| one.bytes_out).sum();
    let mut pool = vec![format!("memory_bytes={}", bytes / 3), "block_bytes=4096".to_owned()];
    pool.extend(["upload", "download", "answer", "chunk"].map(|class| format!("{class}_bytes_min=0")));
    let mut other = World::start(&SpeedArguments { pool, ..world.arguments.clone() })?;
    let mut small = other.remotes(Which::Detecting)?;
    other.sync_all(&mut small, false)?;
    inserts(&other, &mut small, first)?;
    let (world, other) = (&*world, &other);
    let (mut turns, mut most, before) = (Turns::default(), 0, written(&pool_of(other)?)?);
    for turn in 0..world.arguments.repetitions {
        first += rows;
        let ours = || {
            let (seconds, used) = while_looking_at(other, || Ok(inserts(other, &mut small, first)?.0))?;
            most = most.max(used);
            Ok(seconds)
        };
        turns.take(turn, ours, || Ok(inserts(world, &mut large, first)?.0))?;
        eprintln!("overflow {turn}: {:.3?}", turns.0[turn]);
    }
    let written = written(&pool_of(other)?)? - before;
    ensure!(
        written > bytes * world.arguments.repetitions as u64 / 3,
        "{written} bytes of {bytes} each time went to the file: it is no overflow that is measured"
    );
    ensure!(self::written(&pool_of(world)?)? == 0, "the other side wrote to its file too");
    println!("rate pool.overflow_uploads_bytes {bytes}");
    println!("rate pool.overflow_written_bytes {}", written / world.arguments.repetitions as u64);
    turns.tell("pool.overflow_vs_memory", |[overflowing, in_memory]| in_memory / overflowing);
    figure("pool.overflow_memory_share", most as f64 / (bytes / 3) as f64);
    world.sql(&format!("DELETE FROM purchase WHERE purch_id > {}", world.sent))?;
    world.vacuum()
}

fn inserts(world: &World, remotes: &mut [MemoryRemote], first: i64) -> Result<(f64, Vec<Synced>)> {
    put(world, Which::Detecting, remotes, ChangeOp::Insert, (first, false));
    world.sync_all(remotes, false)
}

/// Beside what something gives, the most bytes that the pool had meanwhile.
fn while_looking_at<T>(world: &World, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                let pool = pool_of(world)?;
                most = most.max(pool["memory_bytes"].as_u64().context("no memory_bytes")?);
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(most)
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        let most: Result<u64> = looking.join().expect("no panic");
        Ok((done?, most?))
    })
}

/// The pool's part of `/ready`.
fn pool_of(world: &World) -> Result<Value> {
    let mut stream = TcpStream::connect(&world.place)?;
    stream.write_all(b"GET /ready HTTP/1.0\r\nHost: headwater\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    Ok(serde_json::from_str::<Value>(body)?["pool"]["main"].clone())
}

fn written(pool: &Value) -> Result<u64> {
    pool["overflow"]["written_bytes"].as_u64().context("no written_bytes in /ready")
}
