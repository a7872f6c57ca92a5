//! Where the time of syncs goes: those of one set, each from its begin at the client to its end, phase by phase.

use crate::results::{CellSummary, SyncRow};
use crate::sync::PHASES;

use super::axis::Axis;
use super::chart::{Chart, Point};
use super::palette::LINES_MAX;
use super::sweep::line;
use super::units::Unit;
use super::view::{Figure, Run, Table, View, millis};

/// More syncs than can be told apart are not drawn.
const DRAWN_MAX: usize = 60;

/// What the parts of a sync are called: on its way to the server, the server's phases, and on its way back.
const PARTS: [&str; LINES_MAX] =
    ["to the server", "received", "waits for a worker", "greeted", "upload", "download", "sent", "at the client"];

/// Of each cell one figure: the last set of its last run that has stamps.
pub(super) fn figures(view: &View<'_>, prefix: &str) -> Vec<Figure> {
    let of = |cell: &CellSummary| {
        let mut runs = view.runs.iter().rev().filter(|run| run.row.cell == cell.cell as i64);
        let run = runs.find(|run| run.syncs.iter().any(|sync| sync.served.is_some()))?;
        Some(figure(view, cell, run, format!("{prefix}-{}", cell.cell)))
    };
    view.cells.iter().filter_map(of).collect()
}

fn figure(view: &View<'_>, cell: &CellSummary, run: &Run, id: String) -> Figure {
    let set = last_set(&run.syncs);
    let first = set.iter().map(|sync| sync.began_ns).min().unwrap_or_default();
    let step = set.len().div_ceil(DRAWN_MAX).max(1);
    let mut parts: [Vec<Vec<Point>>; LINES_MAX] = Default::default();
    for (place, sync) in set.iter().enumerate().step_by(step) {
        for (part, (from, to)) in parts.iter_mut().zip(spans(sync)) {
            let at = |nanos: i64| Point::new((nanos - first).max(0) as f64, place as f64 + 1.0);
            if to > from {
                part.push(vec![at(from), at(to)]);
            }
        }
    }
    let ends = set.iter().map(|sync| (sync.ended_ns - first).max(0) as f64);
    let x = Axis::measured("since the set's first began", Unit::Time, ends.chain([0.0]));
    let y = Axis::measured("sync, by its begin", Unit::Number, [0.0, set.len() as f64].into_iter());
    let lines = parts.into_iter().enumerate().map(|(number, parts)| line(number, PARTS[number], parts)).collect();
    let mut notes = vec![
        "Each line across is a sync; what lies between its parts is the server's, from one phase to the next."
            .to_owned(),
    ];
    if step > 1 {
        notes.push(format!("One of {step} syncs is drawn; the table is of all."));
    }
    let title = format!("Sync by sync: cell {} ({}), run {}", cell.cell, view.name_of(cell), run.row.repetition);
    let chart = Chart { x, y, right: None, lines, failed: Vec::new() };
    Figure { id, title, notes, chart, table: table(&run.syncs) }
}

/// Of each client the last one, by their begin.
fn last_set(syncs: &[SyncRow]) -> Vec<&SyncRow> {
    let mut last = std::collections::BTreeMap::new();
    for sync in syncs {
        let known = last.entry(sync.client).or_insert(sync);
        if sync.began_ns > known.began_ns {
            *known = sync;
        }
    }
    let mut set: Vec<_> = last.into_values().collect();
    set.sort_by_key(|sync| sync.began_ns);
    set
}

/// From when to when each part was; of a sync without the server's stamps nothing.
fn spans(sync: &SyncRow) -> [(i64, i64); LINES_MAX] {
    let mut spans = [(0, 0); LINES_MAX];
    let Some((began, ended, phases)) = sync.served else { return spans };
    spans[0] = (sync.began_ns, began);
    let mut at = began;
    for (span, phase) in spans[1..].iter_mut().zip(&phases[..PHASES.len() - 1]) {
        *span = (at, at + phase);
        at += phase;
    }
    // What is sent is sent at the end, whatever was between.
    let sending = phases[PHASES.len() - 1];
    spans[LINES_MAX - 2] = ((ended - sending).max(at), ended);
    spans[LINES_MAX - 1] = (ended, sync.ended_ns);
    spans
}

/// What each part takes, over all syncs of the run.
fn table(syncs: &[SyncRow]) -> Table {
    let served: Vec<&SyncRow> = syncs.iter().filter(|sync| sync.served.is_some()).collect();
    let whole: i64 = served.iter().map(|sync| sync.ended_ns - sync.began_ns).sum();
    let all: Vec<_> = served.iter().map(|sync| spans(sync)).collect();
    let row = |(number, name): (usize, &&str)| {
        let mut times: Vec<i64> = all.iter().map(|spans| (spans[number].1 - spans[number].0).max(0)).collect();
        times.sort_unstable();
        let sum: i64 = times.iter().sum();
        let at = |part: f64| times.get(((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1)));
        let millis_of = |nanos: Option<&i64>| nanos.map_or("-".to_owned(), |nanos| millis(*nanos as f64));
        vec![
            (*name).to_owned(),
            format!("{:.1}", sum as f64 * 100.0 / whole.max(1) as f64),
            millis(sum as f64 / times.len().max(1) as f64),
            millis_of(at(0.5)),
            millis_of(at(0.99)),
            millis_of(times.last()),
        ]
    };
    let head = ["part", "% of clients' time", "mean ms", "p50 ms", "p99 ms", "max ms"];
    let rows = PARTS.iter().enumerate().map(row).collect();
    Table { head: head.map(str::to_owned).to_vec(), rows, names: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_within_the_sync() {
        let phases = [1, 20, 3, 0, 40, 2];
        let sync = SyncRow { client: 1, began_ns: 100, ended_ns: 200, served: Some((110, 190, phases)) };
        let expected = [(100, 110), (110, 111), (111, 131), (131, 134), (134, 134), (134, 174), (188, 190), (190, 200)];
        assert_eq!(spans(&sync), expected);
        let shares: Vec<_> = table(std::slice::from_ref(&sync)).rows.into_iter().map(|row| row[1].clone()).collect();
        assert_eq!(shares, ["10.0", "1.0", "20.0", "3.0", "0.0", "40.0", "2.0", "10.0"]);
        let unknown = SyncRow { served: None, ..sync };
        assert_eq!(spans(&unknown), [(0, 0); LINES_MAX]);
    }

    #[test]
    fn a_set_has_the_last_sync_of_each_client() {
        let sync = |client, began_ns| SyncRow { client, began_ns, ended_ns: began_ns + 1, served: None };
        let all = [sync(2, 5), sync(1, 6), sync(1, 30), sync(2, 20)];
        let began: Vec<_> = last_set(&all).iter().map(|sync| sync.began_ns).collect();
        assert_eq!(began, [20, 30]);
    }
}
