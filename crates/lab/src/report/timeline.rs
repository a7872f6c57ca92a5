//! Runs second by second.

use crate::harness::Second;
use crate::results::{CellSummary, thousands};

use super::axis::Axis;
use super::chart::{Chart, Line, Point};
use super::palette::LINES_MAX;
use super::percentile::plural;
use super::sweep::line;
use super::units::Unit;
use super::view::{Figure, Run, Table, View, millis};

/// A run longer than this many seconds has only those seconds drawn in which operations ended.
const SECONDS_MAX: u64 = 1_000_000;

/// The timelines of all runs that measured anything, those that failed too: of each cell the throughput and the response times, with at most
/// so many runs in a figure as can be told apart.
pub(super) fn figures(view: &View<'_>, prefix: &str) -> Vec<Figure> {
    let mut figures = Vec::new();
    for cell in &view.cells {
        let runs = view.runs.iter().filter(|run| run.row.cell == cell.cell as i64 && !run.seconds.is_empty());
        let runs: Vec<&Run> = runs.collect();
        for (number, runs) in runs.chunks(LINES_MAX).enumerate() {
            figures.extend(pair(view, cell, runs, &format!("{prefix}-{}-{number}", cell.cell)));
        }
    }
    figures
}

fn pair(view: &View<'_>, cell: &CellSummary, runs: &[&Run], id: &str) -> [Figure; 2] {
    let of = format!("cell {} ({}), {} run{}", cell.cell, view.name_of(cell), runs.len(), plural(runs.len()));
    let table = table(runs);
    let failed = |of: fn(&Run) -> Vec<(u64, f64)>| -> Vec<(f64, f64)> {
        runs.iter().flat_map(|run| of(run)).map(|(second, value)| (second as f64, value)).collect()
    };
    let figure = |id: String, title: &str, chart: Chart| {
        let mut notes = vec!["headwater lab export --rows seconds has every second.".to_owned()];
        if !chart.failed.is_empty() {
            notes.insert(0, "A cross: operations failed in that second.".to_owned());
        }
        Figure { id, title: format!("{title}: {of}"), notes, chart, table: table.clone() }
    };
    let rates = lines(runs, |run| vec![rates(run)]);
    let rates = chart(rates, "operations/s", Unit::Number, failed(failures_by_rate));
    let times = chart(lines(runs, times), "99th percentile", Unit::Time, failed(failures_by_time));
    [
        figure(format!("{id}-rate"), "Throughput by second", rates),
        figure(format!("{id}-p99"), "99th percentile by second", times),
    ]
}

fn lines(runs: &[&Run], of: impl Fn(&Run) -> Vec<Vec<Point>>) -> Vec<Line> {
    let name = |run: &Run| match run.row.state.as_str() {
        "done" => format!("run {}", run.row.repetition),
        state => format!("run {} ({state})", run.row.repetition),
    };
    runs.iter().enumerate().map(|(number, run)| line(number, &name(run), of(run))).collect()
}

fn chart(lines: Vec<Line>, axis: &str, unit: Unit, failed: Vec<(f64, f64)>) -> Chart {
    let points = || lines.iter().flat_map(|line| &line.parts).flatten();
    let mut x = Axis::measured("seconds since the warm-up", Unit::Number, points().map(|point| point.x).chain([0.0]));
    x.ticks.retain(|(second, _)| second.fract().abs() < 1e-9);
    let values = points().map(|point| point.y).chain(failed.iter().map(|(_, y)| *y));
    let y = Axis::measured(axis, unit, values);
    Chart { x, y, right: None, lines, failed }
}

/// Operations a second. A second in which none ended has 0. The last one is short: with less than half of its length it counts to the one
/// before, otherwise its operations are those of a whole second at that rate.
pub(super) fn rates(run: &Run) -> Vec<Point> {
    let elapsed = run.row.elapsed_ns.max(0) as f64 / 1e9;
    let recorded = run.seconds.last().map_or(0, |second| second.second.saturating_add(1));
    let whole = elapsed.floor() as u64;
    let count = recorded.max(if elapsed > whole as f64 { whole + 1 } else { whole });
    let operations = |second: &Second| Point::new(second.second as f64, second.operations as f64);
    if count > SECONDS_MAX {
        return run.seconds.iter().map(operations).collect();
    }
    let mut points: Vec<Point> = (0..count).map(|second| Point::new(second as f64, 0.0)).collect();
    for second in &run.seconds {
        if let Some(point) = points.get_mut(second.second as usize) {
            *point = operations(second);
        }
    }
    let last_length = elapsed - (count.saturating_sub(1)) as f64;
    if let Some(last) = points.pop() {
        match points.last_mut() {
            Some(before) if last_length < 0.5 => before.y = (before.y + last.y) / (1.0 + last_length.max(0.0)),
            _ => points.push(Point::new(last.x, last.y / if last_length > 0.0 { last_length.min(1.0) } else { 1.0 })),
        }
    }
    points
}

/// The 99th percentiles; a second in which no operation succeeded breaks the line.
fn times(run: &Run) -> Vec<Vec<Point>> {
    let mut parts: Vec<Vec<Point>> = Vec::new();
    let mut before = None;
    for second in run.seconds.iter().filter(|second| second.operations > 0) {
        let point = Point::new(second.second as f64, second.response_p99.as_nanos() as f64);
        match parts.last_mut() {
            Some(part) if before.and_then(|before: u64| before.checked_add(1)) == Some(second.second) => {
                part.push(point);
            }
            _ => parts.push(vec![point]),
        }
        before = Some(second.second);
    }
    parts
}

fn failures_by_rate(run: &Run) -> Vec<(u64, f64)> {
    let rates = rates(run);
    let at = |second: u64| {
        // What the last second had may be with the one before.
        let point = rates.iter().rev().find(|point| point.x <= second as f64);
        point.map_or((second, 0.0), |point| (point.x as u64, point.y))
    };
    run.seconds.iter().filter(|second| second.errors > 0).map(|second| at(second.second)).collect()
}

fn failures_by_time(run: &Run) -> Vec<(u64, f64)> {
    let failed = run.seconds.iter().filter(|second| second.errors > 0);
    failed.map(|second| (second.second, second.response_p99.as_nanos() as f64)).collect()
}

fn table(runs: &[&Run]) -> Table {
    let head = [
        "run",
        "state",
        "seconds",
        "operations",
        "ops/s",
        "least",
        "median",
        "most",
        "highest p99 ms",
        "errors",
        "in seconds",
    ];
    let row = |run: &&Run| {
        let mut by_second: Vec<f64> = rates(run).iter().map(|point| point.y).collect();
        by_second.sort_by(f64::total_cmp);
        let rate = |rate: Option<&f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
        let slowest = run.seconds.iter().map(|second| second.response_p99).max().unwrap_or_default();
        let failed = run.seconds.iter().filter(|second| second.errors > 0).count();
        vec![
            run.row.repetition.to_string(),
            run.row.state.clone(),
            format!("{:.1}", run.row.elapsed_ns as f64 / 1e9),
            thousands(run.row.operations.max(0) as u64),
            format!("{:.1}", run.row.rate()),
            rate(by_second.first()),
            rate(by_second.get(by_second.len() / 2)),
            rate(by_second.last()),
            millis(slowest.as_nanos() as f64),
            thousands(run.row.errors.max(0) as u64),
            failed.to_string(),
        ]
    };
    Table { head: head.map(str::to_owned).to_vec(), rows: runs.iter().map(row).collect(), names: 2 }
}
