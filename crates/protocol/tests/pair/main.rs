//! Two remotes and a server in virtual time, with loss, delay, repetition, damage and crashes out of a seed.
//!
//! What must hold, whatever happens:
//!
//! - every upload is applied at most once, and exactly once if its receipt was applied; the outcomes in both are the same
//! - once faults and writes stop, all remotes and the database agree, nothing is pending, and no upload that was applied lacks its
//!   receipt
//! - the requests of a sync are bounded; no remote gets a new ID unless its file was copied, none starts afresh unless the database
//!   was restored
//!
//! A failing run says its seed; `HEADWATER_SEEDS=100000` runs more. That the checks can fail is shown by planted defects.

mod database;
mod random;
mod remote;
mod row;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Bug, Twist, World};

fn seeds() -> u64 {
    std::env::var("HEADWATER_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

#[test]
fn nothing_is_lost_or_done_twice() {
    let worlds = all(Twist::None);
    let resumed: usize = worlds.iter().map(|world| world.resumed).sum();
    assert!(resumed > worlds.len() / 4, "downloads are resumed: {resumed}");
}

#[test]
fn a_copied_file_goes_on_under_a_new_remote_id() {
    let renamed = all(Twist::Copy).iter().any(|world| world.summaries.iter().any(|s| s.new_remote_id));
    assert!(renamed, "copies are noticed");
}

#[test]
fn a_restored_database_is_followed() {
    let restarted = all(Twist::Restore).iter().any(|world| world.summaries.iter().any(|s| s.restarted));
    assert!(restarted, "restores are noticed");
}

#[test]
fn planted_defects_are_found() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let planted = [
        (Bug::AlwaysApply, Twist::None),
        (Bug::ForgottenReceipt, Twist::None),
        (Bug::StagedAfterCut, Twist::None),
        (Bug::Recut, Twist::None),
        (Bug::EarlyWatermark, Twist::None),
        (Bug::RestTooLate, Twist::None),
        (Bug::IgnoredIncarnation, Twist::Restore),
        (Bug::KeptNumber, Twist::None),
        (Bug::ReusedNumber, Twist::None),
        (Bug::NumberAlone, Twist::Copy),
    ];
    let is_missed = |(bug, twist): &(Bug, Twist)| !(0..20_000).any(|seed| run(seed, *bug, *twist).is_err());
    let missed: Vec<_> = planted.into_iter().filter(is_missed).collect();
    std::panic::set_hook(quiet);
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Runs all seeds.
fn all(twist: Twist) -> Vec<World> {
    let seeds = 0..seeds();
    let run = |seed| run(seed, Bug::None, twist).unwrap_or_else(|what| panic!("seed {seed}, twist {twist:?}: {what}"));
    seeds.map(run).collect()
}

fn run(seed: u64, bug: Bug, twist: Twist) -> Result<World, String> {
    let run = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, bug, twist);
        world.run();
        check(&world, twist);
        world
    }));
    run.map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).unwrap_or_default(),
    })
}

fn check(world: &World, twist: Twist) {
    for (upload, commits) in &world.database.ledger {
        assert_eq!(commits.len(), 1, "applied at most once: {upload:x?}");
        let received = world.files().find_map(|file| file.receipts.get(upload));
        assert_eq!(received, commits.first(), "the receipt arrives as it was written: {upload:x?}");
    }
    for upload in world.files().flat_map(|file| file.receipts.keys()) {
        let known = world.database.ledger.contains_key(upload) || world.undone.contains(upload);
        assert!(known, "a receipt is for an upload that was applied: {upload:x?}");
    }
    assert!(world.undone.is_empty() || twist == Twist::Restore);
    for file in world.files() {
        assert_eq!(file.rows, world.database.live_rows(), "remote {:x?} agrees with the database", file.remote_id);
        assert!(file.is_quiet(), "nothing is pending at remote {:x?}", file.remote_id);
    }
}
