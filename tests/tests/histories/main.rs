//! Histories: a random schema, five remotes and two servers, two hundred writes on all sides, twenty syncs and more, of which some are cut,
//! damaged or left hanging, servers that go and come; and events (`events`): DDL at the database at any moment, in the midst of a sync too,
//! memberships that change, databases that are put back, applications that write while a download comes, have triggers and a full-text table of
//! their own at remotes, and make tables anew there (`application`).
//!
//! An independent model of the conflict rules (`rules`) predicts every row of one table after every upload, from what the remote's log says
//! and what was stored; every state of a remote has the bank's whole money; after each sync that nothing disturbs the remote has exactly the
//! rows that the database's own queries give for its user (`mirror`), and when all is quiet nothing waits.
//!
//! One thread does it all, so a seed gives the same history again: `HEADWATER_HISTORY_SEED` chooses the first (1), `HEADWATER_HISTORIES` how
//! many follow, `HEADWATER_HISTORY_EVENTS` what may happen, `HEADWATER_HISTORY_STORY=1` tells each. (`kill` has processes that die, `faults`
//! every byte, `crowd` everybody at once.)

mod application;
mod deeds;
mod domains;
mod events;
mod happen;
mod history;
mod mirror;
mod predict;
mod restore;
mod rules;
mod schema;
mod shape;
mod stock;
mod window;
mod writes;

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context, Result, bail, ensure};
use headwater_tests::Kind;
use headwater_tests::tally::tally;

use events::Events;
use history::History;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// A test whose output nobody takes has done its work all the same.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// After so many histories it is said how many there were.
const PROGRESS: u64 = 20;

/// Runs histories one after the other, and prints what they were.
fn run(kind: Kind, default: u64) -> Result<()> {
    let first = variable("HEADWATER_HISTORY_SEED").unwrap_or(1);
    let events = Events::read(kind)?;
    let goes_on = variable("HEADWATER_HISTORY_GO_ON").is_some();
    let (mut sum, mut failed) = (BTreeMap::new(), 0);
    headwater_testkit::keep_connections();
    let count = variable("HEADWATER_HISTORIES").unwrap_or(default);
    for seed in first..first + count {
        let done = seed - first;
        if done > 0 && done.is_multiple_of(PROGRESS) {
            say(&format!("{done} of {count} histories, {failed} failed"));
        }
        let mut history = History::begin(kind, seed, &events)?;
        let ran = history.run().with_context(|| format!("{kind:?}, HEADWATER_HISTORY_SEED={seed}\n{}", history.told()));
        history.remove()?;
        if variable("HEADWATER_HISTORY_STORY").is_some() {
            say(&format!("{kind:?}, HEADWATER_HISTORY_SEED={seed}\n{}", history.told()));
        }
        for (name, count) in &history.counts {
            *sum.entry(*name).or_insert(0) += count;
        }
        match ran {
            Err(error) if goes_on => {
                failed += 1;
                say(&format!("FAILED {error:#}\n"));
            }
            Err(error) => bail!("{error:#}"),
            Ok(()) => {}
        }
    }
    tally(&sum.iter().map(|(name, count)| (*name, *count)).collect::<Vec<_>>());
    ensure!(failed == 0, "{failed} histories failed");
    ensure!(sum.get("predicted").is_some_and(|count| *count > 0), "nothing was judged: {sum:?}");
    Ok(())
}

#[test]
fn histories_on_sqlite() -> Result<()> {
    run(Kind::Sqlite, 4)
}

#[test]
fn histories_on_postgresql() -> Result<()> {
    run(Kind::Postgres, 2)
}

/// A model that takes every change for one without a conflict is found out: the prediction is worth something.
#[test]
fn a_wrong_prediction_is_noticed() -> Result<()> {
    let events = Events::none();
    let found = (0..20).any(|seed| {
        let history = History::begin(Kind::Sqlite, seed, &events);
        history.is_ok_and(|mut history| {
            history.forgets_conflicts = true;
            history.run().is_err_and(|error| format!("{error:#}").contains("expected"))
        })
    });
    ensure!(found, "twenty histories without a difference");
    Ok(())
}
