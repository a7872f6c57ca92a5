//! What may happen in a history beside writes, syncs, faults of the network and servers that go and come. Each kind has a name, so that a run
//! can have it or leave it out:
//!
//! ```text
//! HEADWATER_HISTORY_EVENTS=all              every kind (the default)
//! HEADWATER_HISTORY_EVENTS=none             none
//! HEADWATER_HISTORY_EVENTS=truncate,held    these
//! HEADWATER_HISTORY_EVENTS=-held,-members   all but these
//! ```

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use headwater_tests::Kind;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// Memberships come, go, are written anew.
    Members,
    /// Changes set aside are retried or dropped.
    Aside,
    /// The application at the remote writes while a download is applied.
    Writers,
    /// Decimals are computed with, at either side.
    Decimals,
    /// Rows made at remotes take keys of a range.
    Ranges,
    /// A table is emptied and loaded again, by TRUNCATE or DELETE.
    Truncate,
    /// `ALTER COLUMN ... TYPE ... USING`: the table is written anew, the values stay.
    Retype,
    /// `ALTER COLUMN ... TYPE ... USING`: the values change, and no trigger fires.
    Recompute,
    /// A column is widened: int to bigint, a key among them.
    Widen,
    /// A column is dropped and added again.
    DropAdd,
    /// Two columns exchange their names.
    Exchange,
    /// A new table is renamed into the place of another.
    Swap,
    /// Two tracked tables exchange their names.
    Twins,
    /// The labels of an enum exchange their names.
    Labels,
    /// VACUUM FULL, CLUSTER, REINDEX, ANALYZE; VACUUM and REINDEX of SQLite.
    Rewrite,
    /// Columns with defaults come, NOT NULL, defaults, comments, statistics, rights: harmless.
    Harmless,
    /// Parts of a partitioned table are detached and attached.
    Parts,
    /// Triggers are switched off and on.
    TriggersOff,
    /// Triggers are dropped and made again as they were.
    Remake,
    /// The relation that a membership query reads is rewritten or replaced.
    MembersRewritten,
    /// Headwater's side tables are repacked.
    SideTables,
    /// SQLite's twelve steps of ALTER.
    TwelveSteps,
    /// DDL is open while a sync begins, and commits when the sync waits for it.
    Open,
    /// DDL runs while a download waits between its snapshot and its first read.
    Held,
    /// The database is put back from a copy, in the same cluster.
    Restore,
    /// The same while a sync is at work.
    RestoreInSync,
    /// A cluster of its own is put back from a backup: a failover with loss.
    Failover,
    /// Keys, partitions and references of types to which different bytes are equal.
    Equality,
    /// Numbers of which the changes are added up (`sum`).
    Counters,
    /// A trigger of the application leaves a role, a search path, an encoding, a lock in its session.
    Session,
    /// A trigger of the application raises any error.
    Raise,
    /// Remotes have triggers, tables, indexes and columns of the application's own.
    Application,
    /// The application at a remote makes a table of the model anew.
    Migration,
}

const ALL: [(&str, Event); 33] = [
    ("members", Event::Members),
    ("aside", Event::Aside),
    ("writers", Event::Writers),
    ("decimals", Event::Decimals),
    ("ranges", Event::Ranges),
    ("truncate", Event::Truncate),
    ("retype", Event::Retype),
    ("recompute", Event::Recompute),
    ("widen", Event::Widen),
    ("drop_add", Event::DropAdd),
    ("exchange", Event::Exchange),
    ("swap", Event::Swap),
    ("twins", Event::Twins),
    ("labels", Event::Labels),
    ("rewrite", Event::Rewrite),
    ("harmless", Event::Harmless),
    ("parts", Event::Parts),
    ("triggers_off", Event::TriggersOff),
    ("remake", Event::Remake),
    ("members_rewritten", Event::MembersRewritten),
    ("side_tables", Event::SideTables),
    ("twelve_steps", Event::TwelveSteps),
    ("open", Event::Open),
    ("held", Event::Held),
    ("restore", Event::Restore),
    ("restore_in_sync", Event::RestoreInSync),
    ("failover", Event::Failover),
    ("equality", Event::Equality),
    ("counters", Event::Counters),
    ("session", Event::Session),
    ("raise", Event::Raise),
    ("application", Event::Application),
    ("migration", Event::Migration),
];

/// Which kinds there can be at all at a database of this kind.
fn exists(event: Event, kind: Kind) -> bool {
    match event {
        Event::Retype
        | Event::Recompute
        | Event::Widen
        | Event::Labels
        | Event::Parts
        | Event::TriggersOff
        | Event::SideTables
        | Event::Held
        | Event::Failover
        | Event::Session => kind == Kind::Postgres,
        Event::TwelveSteps => kind == Kind::Sqlite,
        _ => true,
    }
}

/// The kinds of one run.
#[derive(Clone, Debug)]
pub(crate) struct Events(BTreeSet<Event>);

impl Events {
    /// What `HEADWATER_HISTORY_EVENTS` says, or all.
    pub(crate) fn read(kind: Kind) -> Result<Events> {
        Events::parse(kind, std::env::var("HEADWATER_HISTORY_EVENTS").ok().as_deref())
    }

    fn parse(kind: Kind, text: Option<&str>) -> Result<Events> {
        let mut chosen: BTreeSet<Event> = BTreeSet::new();
        let text = text.unwrap_or_default();
        if text.is_empty() || text.starts_with(['+', '-']) {
            chosen.extend(ALL.map(|(_, event)| event));
        }
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word {
                "all" => chosen.extend(ALL.map(|(_, event)| event)),
                "none" => chosen.clear(),
                _ => {
                    let name = word.trim_start_matches(['+', '-']);
                    let known = ALL.iter().find(|(known, ..)| *known == name);
                    let (_, event) = known.with_context(|| format!("HEADWATER_HISTORY_EVENTS has {word:?}"))?;
                    if word.starts_with('-') {
                        chosen.remove(event)
                    } else {
                        chosen.insert(*event)
                    };
                }
            }
        }
        Ok(Events(chosen.into_iter().filter(|event| exists(*event, kind)).collect()))
    }

    pub(crate) fn none() -> Events {
        Events(BTreeSet::new())
    }

    pub(crate) fn has(&self, event: Event) -> bool {
        self.0.contains(&event)
    }

    /// Those of these that are on.
    pub(crate) fn of(&self, events: &[Event]) -> Vec<Event> {
        events.iter().copied().filter(|event| self.has(*event)).collect()
    }
}

/// An event's name.
pub(crate) fn name(event: Event) -> &'static str {
    ALL.iter().find(|(_, known)| *known == event).map_or("?", |(name, ..)| name)
}

#[test]
fn events_are_chosen_by_name() -> Result<()> {
    let chosen = |text| Events::parse(Kind::Postgres, text);
    assert!(chosen(None)?.has(Event::Members) && chosen(Some("all"))?.has(Event::Swap));
    assert_eq!(chosen(Some("truncate,held"))?.0, BTreeSet::from([Event::Truncate, Event::Held]));
    let changed = chosen(Some("-members,+swap"))?;
    assert!(changed.has(Event::Swap) && !changed.has(Event::Members) && changed.has(Event::Truncate));
    assert!(chosen(Some("none"))?.0.is_empty());
    assert!(chosen(Some("swop")).is_err());
    assert!(!chosen(Some("all"))?.has(Event::TwelveSteps), "SQLite's alone");
    assert!(ALL.iter().all(|(name, event)| name == &self::name(*event)));
    Ok(())
}
