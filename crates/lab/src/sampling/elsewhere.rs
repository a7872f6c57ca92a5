//! Systems other than Linux: nothing is known of processes and the machine.

use std::path::Path;

use super::Find;
use super::counters::{Machine, Process, Spent};

pub(super) type All = Vec<()>;

pub(super) fn processes() -> All {
    Vec::new()
}

pub(super) fn own(_: &All) -> Option<Process> {
    None
}

pub(super) fn of_tree(_: &All, _: &[i32]) -> Option<Process> {
    None
}

pub(super) fn machine() -> Option<Machine> {
    None
}

pub(crate) fn spent() -> Option<Spent> {
    None
}

pub(super) fn roots(find: &Find, _: &Path) -> Result<Vec<i32>, String> {
    Err(format!("{find} can't be looked for on this system, only on Linux"))
}

pub(super) fn parent_of(_: i32, _: f64) -> Option<i32> {
    None
}

pub(super) fn began_at(_: i32, _: f64) -> bool {
    false
}
