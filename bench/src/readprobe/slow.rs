//! A consumer that takes its time for each row: the longest that it waits for one, alone and beside users who read as fast as they can.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use anyhow::Result;

use super::cursors::{ARMS, Stand};
use super::{ReadprobeArguments, TABLES, median};
use crate::cursor::{PASSES, SLOW_WINDOW_BYTES, longest_gap};

/// Users beside it.
const BESIDE: [usize; 2] = [0, 6];

/// Measures and tells.
pub(super) fn measure(arguments: &ReadprobeArguments, stand: &Stand) -> Result<()> {
    let work = Duration::from_micros(arguments.slow_us);
    for (table, name) in arguments.tables() {
        for users in BESIDE {
            eprintln!("readprobe: a slow consumer, {name} table, {users} users beside it");
            let mut longest = ARMS.map(|_| Vec::new());
            for _ in 0..PASSES {
                for (arm, longest) in ARMS.iter().zip(&mut longest) {
                    stand.set(arm)?;
                    longest.push(stand.turn(table, users, |_| {
                        longest_gap(&mut stand.open(table, SLOW_WINDOW_BYTES)?, arguments.slow_rows, work)
                    })?);
                }
            }
            for (arm, longest) in ARMS.iter().zip(longest) {
                println!(
                    "row slow {} {} beside {users} users: {:.3} ms is the longest wait for a row",
                    TABLES[table],
                    arm.name,
                    median(longest) * 1e3
                );
            }
        }
    }
    Ok(())
}
