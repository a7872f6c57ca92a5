//! What a test of faults did, said in one line that `scripts/torture` adds up.

use std::io::Write as _;

/// Prints `tally: syncs=12 kills=3`. A name that ends in `_max` is the greatest of all, the others are sums.
pub fn tally(counts: &[(&str, u64)]) {
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name}={count}")).collect();
    // A test whose output nobody takes has done its work all the same.
    let _ = writeln!(std::io::stdout(), "tally: {}", counts.join(" "));
}
