//! What the database's sessions do, the lab's or those of the server of syncs: run, or wait, and for what.

use std::collections::BTreeMap;

use crate::harness::Failure;
use crate::target::Session;

/// Each so many looks it is asked who blocks whom: the database stops its locks for a moment to tell.
pub(super) const BLOCKERS_EVERY: u32 = 10;
/// Statements and blockers that are kept of a run, the most frequent.
const KEPT: usize = 100;

/// What one session is at.
pub(super) type Key = (String, String, String, String);

/// One look.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// State, type of the wait, event, statement; how many sessions.
    sessions: Vec<(Key, u64)>,
    /// The statement that waits, and the one that it waits for; how often.
    blocked: Vec<((String, String), u64)>,
    /// Whether it was asked who blocks whom.
    has_blocked: bool,
}

/// Sessions by what they were at, over a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    /// How many looks there were.
    pub looks: u64,
    /// The most frequent first; those of idle sessions are without their statement.
    pub waits: Vec<Wait>,
    /// How many of the looks asked who blocks whom.
    pub looks_at_blockers: u64,
    /// The most frequent first.
    pub blocked: Vec<Blocked>,
}

/// What sessions were at.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// `active`, `idle`, `idle in transaction`, ...
    pub state: String,
    /// `Lock`, `LWLock`, `IO`, `Client`, ...; empty: it runs, or is ready to.
    pub kind: String,
    /// `transactionid`, `WALSync`, ...; empty as before.
    pub event: String,
    /// The statement's beginning, of active ones.
    pub statement: String,
    /// How many were seen at it, over all looks.
    pub seen: u64,
}

/// Who waited for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocked {
    /// What waits.
    pub statement: String,
    /// What the session that it waits for did last.
    pub behind: String,
    /// How many were seen so.
    pub seen: u64,
}

/// Whose sessions are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The lab's own.
    Labs,
    /// Those of a server of syncs: all of the database's but the lab's.
    Servers,
}

/// Asks once.
pub(super) async fn look(session: &mut Session, whose: Whose, with_blockers: bool) -> Result<Seen, Failure> {
    let text =
        |row: &[(String, String)], place: usize| row.get(place).map_or(String::new(), |(_, value)| value.clone());
    let count = |row: &[(String, String)], place: usize| text(row, place).parse().unwrap_or(0);
    let Some((sessions, blockers)) = session.watching(whose) else { return Ok(Seen::default()) };
    let rows = session.rows(&sessions, usize::MAX).await?;
    let of = |row: &Vec<(String, String)>| ((text(row, 0), text(row, 1), text(row, 2), text(row, 3)), count(row, 4));
    let mut seen = Seen { sessions: rows.iter().map(of).collect(), blocked: Vec::new(), has_blocked: with_blockers };
    if with_blockers {
        let rows = session.rows(&blockers, usize::MAX).await?;
        seen.blocked = rows.iter().map(|row| ((text(row, 0), text(row, 1)), count(row, 2))).collect();
    }
    Ok(seen)
}

/// All looks of a run together. An error says why they tell nothing.
pub(super) fn add_up(all: impl Iterator<Item = Seen>) -> Result<Waits, String> {
    let (mut sessions, mut blocked) = (BTreeMap::new(), BTreeMap::new());
    let mut waits = Waits::default();
    for seen in all {
        waits.looks += 1;
        waits.looks_at_blockers += u64::from(seen.has_blocked);
        for (key, count) in seen.sessions {
            *sessions.entry(key).or_insert(0) += count;
        }
        for (key, count) in seen.blocked {
            *blocked.entry(key).or_insert(0) += count;
        }
    }
    if waits.looks == 0 {
        return Err("the run was too short to be sampled".to_owned());
    }
    if sessions.is_empty() {
        return Err("the database shows no session of theirs; is there a pooler between?".to_owned());
    }
    let wait = |((state, kind, event, statement), seen)| Wait { state, kind, event, statement, seen };
    waits.waits = sessions.into_iter().map(wait).collect();
    waits.waits.sort_by_key(|wait| std::cmp::Reverse(wait.seen));
    waits.blocked =
        blocked.into_iter().map(|((statement, behind), seen)| Blocked { statement, behind, seen }).collect();
    waits.blocked.sort_by_key(|blocked| std::cmp::Reverse(blocked.seen));
    waits.blocked.truncate(KEPT);
    let rest = waits.waits.split_off(KEPT.min(waits.waits.len()));
    waits.waits.extend(without_statements(rest));
    Ok(waits)
}

/// Those of one state and wait together.
fn without_statements(waits: Vec<Wait>) -> impl Iterator<Item = Wait> {
    let mut sums = BTreeMap::new();
    for Wait { state, kind, event, seen, .. } in waits {
        *sums.entry((state, kind, event)).or_insert(0) += seen;
    }
    sums.into_iter().map(|((state, kind, event), seen)| Wait { state, kind, event, statement: String::new(), seen })
}
