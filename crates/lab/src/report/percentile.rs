//! Response times by percentile.

use crate::harness::Histogram;
use crate::results::CellSummary;

use super::axis::{Axis, along};
use super::chart::{Chart, Line, Point};
use super::palette::LINES_MAX;
use super::sweep::line;
use super::units::Unit;
use super::view::{Figure, Table, View, millis};

/// Points of a curve.
const POINTS: u32 = 160;
/// What tables show, as parts of 1.
const SHOWN: [(f64, &str); 6] =
    [(0.5, "p50 ms"), (0.9, "p90 ms"), (0.99, "p99 ms"), (0.999, "p99.9 ms"), (0.9999, "p99.99 ms"), (1.0, "max ms")];

/// The curves of all cells with a run that is done, at most so many in a figure as can be told apart.
pub(super) fn figures(view: &View<'_>, prefix: &str) -> Vec<Figure> {
    let done: Vec<&CellSummary> = view.cells.iter().filter(|cell| !cell.response.is_empty()).collect();
    let figure = |(number, cells): (usize, &[&CellSummary])| figure(view, cells, format!("{prefix}-{number}"));
    done.chunks(LINES_MAX).enumerate().map(figure).collect()
}

fn figure(view: &View<'_>, cells: &[&CellSummary], id: String) -> Figure {
    let curve = |(number, cell): (usize, &&CellSummary)| line(number, &name(view, cell), vec![curve(&cell.response)]);
    let lines: Vec<Line> = cells.iter().enumerate().map(curve).collect();
    let points = || lines.iter().flat_map(|line| &line.parts).flatten();
    let operations = cells.iter().map(|cell| cell.response.len()).max().unwrap_or(0);
    let chart = Chart {
        x: Axis::percentiles(operations),
        y: Axis::measured("response time", Unit::Time, points().map(|point| point.y)),
        right: None,
        lines: lines.clone(),
        failed: Vec::new(),
    };
    let row = |cell: &&CellSummary| {
        let times = SHOWN.map(|(part, _)| millis(cell.response.quantile(part).as_nanos() as f64));
        [vec![name(view, cell), cell.response.len().to_string()], times.to_vec()].concat()
    };
    let head = ["cell", "operations"].into_iter().chain(SHOWN.map(|(_, name)| name)).map(str::to_owned).collect();
    let numbers: Vec<String> = cells.iter().map(|cell| cell.cell.to_string()).collect();
    let title = format!("Response times by percentile: cell{} {}", plural(cells.len()), numbers.join(", "));
    let notes = vec![
        "How long all but the slowest part of the operations took, counted from the intended start; all runs together."
            .to_owned(),
    ];
    Figure { id, title, notes, chart, table: Table { head, rows: cells.iter().map(row).collect(), names: 1 } }
}

fn name(view: &View<'_>, cell: &CellSummary) -> String {
    format!("{}: {}", cell.cell, view.name_of(cell))
}

/// The ending of a noun.
pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// From the fastest to the slowest operation, which is where the last percentile that so many operations tell is.
pub(super) fn curve(histogram: &Histogram) -> Vec<Point> {
    let end = along(1.0 - 1.0 / histogram.len().max(2) as f64);
    let at = |step: u32| {
        let nines = end * f64::from(step) / f64::from(POINTS);
        let part = if step == POINTS { 1.0 } else { 1.0 - 10f64.powf(-nines) };
        Point::new(nines, histogram.quantile(part).as_nanos() as f64)
    };
    let points: Vec<Point> = (0..=POINTS).map(at).collect();
    // Where it is level, its ends say all.
    let is_level = |place: usize| {
        let around = place.checked_sub(1).and_then(|before| points.get(before)).zip(points.get(place + 1));
        around.is_some_and(|(before, after)| before.y >= after.y)
    };
    (0..points.len()).filter(|place| !is_level(*place)).map(|place| points[place]).collect()
}
