//! What becomes of the measures as a number is swept.

use std::collections::BTreeMap;

use crate::http::settings;
use crate::results::{CellSummary, Estimate};

use super::axis::Axis;
use super::chart::{Chart, Line, Look, Point};
use super::palette::LINES_MAX;
use super::published::{Published, Shown};
use super::units::Unit;
use super::view::{Figure, Table, View, millis, named};

/// The key whose value 0 has the server find a number.
const WORKERS: &str = "scenario.workers";

/// A number that varies, and the lines against it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sweep {
    pub(super) key: String,
    /// Numbers that go with it (`zip`): each of its values has one of theirs.
    pub(super) together: Vec<String>,
    pub(super) unit: Unit,
    /// One for each combination of what varies besides, by the order of the cells.
    pub(super) groups: Vec<Group>,
}

/// The cells of a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    pub(super) name: String,
    /// The swept value, and the place of the cell: in the order of the values.
    pub(super) points: Vec<(f64, usize)>,
}

/// A number or a time (in nanoseconds), as results write it.
pub(super) fn number(text: &str) -> Option<(f64, Unit)> {
    if let Ok(number) = text.parse::<f64>() {
        return number.is_finite().then_some((number, Unit::Number));
    }
    // `s` comes last: the others end with it.
    let units = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (digits, nanos) = units.into_iter().find_map(|(unit, nanos)| Some((text.strip_suffix(unit)?, nanos)))?;
    digits.parse::<f64>().ok().filter(|number| number.is_finite()).map(|number| (number * nanos, Unit::Time))
}

/// Every number that varies, once, with its lines. Cells without a run that is done are in none.
pub(super) fn sweeps(cells: &[CellSummary], varied: &[String]) -> Vec<Sweep> {
    let numeric: Vec<(&String, Unit)> = varied.iter().filter_map(|key| Some((key, unit(cells, key)?))).collect();
    let mut sweeps: Vec<Sweep> = Vec::new();
    for (key, unit) in &numeric {
        if sweeps.iter().any(|sweep| sweep.together.contains(key)) {
            continue;
        }
        let goes_along = |other: &&String| *other != *key && is_decided(cells, key, other);
        let together: Vec<String> =
            numeric.iter().map(|(other, _)| *other).filter(goes_along).map(ToString::to_string).collect();
        let others = varied.iter().filter(|other| *other != *key && !together.contains(other));
        let others: Vec<&str> = others.map(String::as_str).collect();
        let groups = groups(cells, key, &others);
        sweeps.push(Sweep { key: (*key).clone(), together, unit: *unit, groups });
    }
    sweeps
}

/// That of the key's values, where all are numbers of one unit and not all the same.
fn unit(cells: &[CellSummary], key: &str) -> Option<Unit> {
    let numbers: Vec<(f64, Unit)> = cells.iter().map(|cell| number(cell.value(key))).collect::<Option<_>>()?;
    let (first, unit) = *numbers.first()?;
    let is_swept = numbers.iter().any(|(number, _)| number.total_cmp(&first).is_ne());
    (is_swept && numbers.iter().all(|(_, other)| *other == unit)).then_some(unit)
}

/// Whether each value of a key has one value of another.
fn is_decided(cells: &[CellSummary], key: &str, other: &str) -> bool {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    cells.iter().all(|cell| *seen.entry(cell.value(key)).or_insert_with(|| cell.value(other)) == cell.value(other))
}

fn groups(cells: &[CellSummary], key: &str, others: &[&str]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (place, cell) in cells.iter().enumerate().filter(|(_, cell)| cell.runs_done > 0) {
        let Some((value, _)) = number(cell.value(key)) else { continue };
        let name = named(cell, others.iter().copied());
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.points.push((value, place)),
            None => groups.push(Group { name, points: vec![(value, place)] }),
        }
    }
    for group in &mut groups {
        group.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    groups
}

/// A measure of a cell.
struct Measure {
    id: &'static str,
    title: &'static str,
    axis: &'static str,
    unit: Unit,
    whose: Whose,
    of: fn(&CellSummary) -> Estimate,
}

/// The cells that have a measure.
#[derive(Clone, Copy)]
enum Whose {
    All,
    Requests,
    Replicated,
}

impl Whose {
    fn has(self, cell: &CellSummary) -> bool {
        match self {
            Whose::All => true,
            Whose::Requests => cell.scenario == settings::NAME,
            Whose::Replicated => !cell.lag.is_empty(),
        }
    }
}

const MEASURES: [Measure; 10] = [
    Measure {
        id: "rate",
        title: "Throughput",
        axis: "operations/s",
        unit: Unit::Number,
        whose: Whose::All,
        of: |cell| cell.rate,
    },
    Measure {
        id: "p50",
        title: "Median response time",
        axis: "median",
        unit: Unit::Time,
        whose: Whose::All,
        of: |cell| cell.response_p50_ns,
    },
    Measure {
        id: "p99",
        title: "99th percentile of the response times",
        axis: "99th percentile",
        unit: Unit::Time,
        whose: Whose::All,
        of: |cell| cell.response_p99_ns,
    },
    Measure {
        id: "received",
        title: "What clients receive",
        axis: "bytes/s",
        unit: Unit::Number,
        whose: Whose::Requests,
        of: |cell| cell.received_per_s,
    },
    Measure {
        id: "payload",
        title: "Bodies in % of their content",
        axis: "%",
        unit: Unit::Number,
        whose: Whose::Requests,
        of: |cell| Estimate { mean: cell.payload_percent().unwrap_or_default(), half: None },
    },
    Measure {
        id: "failed",
        title: "Requests that failed",
        axis: "%",
        unit: Unit::Number,
        whose: Whose::Requests,
        of: |cell| Estimate { mean: cell.failed_percent(), half: None },
    },
    Measure {
        id: "processors",
        title: "Processors of the lab's machine that are busy",
        axis: "processors",
        unit: Unit::Number,
        whose: Whose::Requests,
        of: |cell| cell.busy_processors,
    },
    Measure {
        id: "load",
        title: "Load of the lab's machine",
        axis: "load average",
        unit: Unit::Number,
        whose: Whose::Requests,
        of: |cell| cell.load,
    },
    Measure {
        id: "lag",
        title: "99th percentile of how far the replica is behind",
        axis: "lag",
        unit: Unit::Time,
        whose: Whose::Replicated,
        of: |cell| cell.lag_p99_ns,
    },
    Measure {
        id: "drained",
        title: "From the end of the clients until the replica has all",
        axis: "until drained",
        unit: Unit::Time,
        whose: Whose::Replicated,
        of: |cell| cell.drained_ns,
    },
];

/// The figures of a sweep. `prefix`: of their names on the page.
pub(super) fn figures(view: &View<'_>, sweep: &Sweep, prefix: &str, published: Option<&Published>) -> Vec<Figure> {
    let table = table(view, sweep);
    let mut figures: Vec<Figure> = MEASURES
        .iter()
        .filter(|measure| view.cells.iter().any(|cell| measure.whose.has(cell)))
        .map(|measure| {
            let mut notes = vec!["Means of the runs, with their 95 % intervals.".to_owned()];
            notes.extend(left_out(view, sweep));
            let chart = measured(view, sweep, measure);
            let title = format!("{} against {}", measure.title, sweep.key);
            Figure { id: format!("{prefix}-{}", measure.id), title, notes, chart, table: table.clone() }
        })
        .collect();
    if let (Some(published), Some(rate)) = (published, figures.first_mut()) {
        with_published(rate, sweep, published);
    }
    figures.push(against(view, sweep, prefix, table));
    figures
}

/// What isn't drawn, in words.
fn left_out(view: &View<'_>, sweep: &Sweep) -> Vec<String> {
    let mut said = Vec::new();
    if sweep.groups.len() > LINES_MAX {
        let all = sweep.groups.len();
        said.push(format!("There are {all} combinations; the first {LINES_MAX} are drawn, the table has all."));
    }
    let undone = view.cells.iter().filter(|cell| cell.runs_done == 0).map(|cell| cell.cell.to_string());
    let undone: Vec<String> = undone.collect();
    if !undone.is_empty() {
        said.push(format!("Cells without a run that is done are not drawn: {}.", undone.join(", ")));
    }
    said
}

impl Sweep {
    fn axis(&self, more: impl Iterator<Item = f64>) -> Axis {
        let name = match self.together.as_slice() {
            [] => self.key.clone(),
            together => format!("{} (with {})", self.key, together.join(", ")),
        };
        Axis::chosen(&name, self.unit, self.values().chain(more))
    }

    /// Where its points are.
    fn values(&self) -> impl Iterator<Item = f64> {
        let points = self.groups.iter().flat_map(|group| &group.points);
        points.map(|(value, _)| *value).filter(|value| !self.is_found(*value))
    }

    /// Whether a value is none: `workers = 0` has the server find a number, which is a level across the others.
    fn is_found(&self, value: f64) -> bool {
        self.key == WORKERS && value == 0.0
    }

    fn drawn(&self) -> impl Iterator<Item = (usize, &Group)> {
        self.groups.iter().take(LINES_MAX).enumerate()
    }
}

fn measured(view: &View<'_>, sweep: &Sweep, measure: &Measure) -> Chart {
    let point = |(value, place): &(f64, usize)| {
        let Estimate { mean, half } = (measure.of)(&view.cells[*place]);
        Point { x: *value, y: mean, half }
    };
    let chosen = |group: &Group| group.points.iter().filter(|(value, _)| !sweep.is_found(*value)).map(point).collect();
    let mut lines: Vec<Line> =
        sweep.drawn().map(|(number, group)| line(number, &group.name, vec![chosen(group)])).collect();
    let (least, most) =
        sweep.values().fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)));
    for (number, group) in sweep.drawn() {
        let found = group.points.iter().find(|(value, _)| sweep.is_found(*value)).map(point);
        lines.extend(found.map(|found| level(number, &group.name, found.y, [least, most])));
    }
    let y = Axis::with_ends(measure.axis, measure.unit, means(&lines), ends(&lines));
    Chart { x: sweep.axis(std::iter::empty()), y, right: None, lines, failed: Vec::new() }
}

fn means(lines: &[Line]) -> impl Iterator<Item = f64> {
    lines.iter().flat_map(|line| &line.parts).flatten().map(|point| point.y)
}

/// Those of the intervals.
fn ends(lines: &[Line]) -> impl Iterator<Item = f64> {
    let points = lines.iter().flat_map(|line| &line.parts).flatten();
    points.filter_map(|point| Some((point.y, point.half?))).flat_map(|(mean, half)| [mean - half, mean + half])
}

pub(super) fn line(number: usize, name: &str, parts: Vec<Vec<Point>>) -> Line {
    Line { name: name.to_owned(), look: Look { number, is_dashed: false }, parts, is_right: false }
}

/// What the server comes to by itself, beside what it does with fixed numbers from the least to the most.
fn level(number: usize, name: &str, y: f64, ends: [f64; 2]) -> Line {
    let look = Look { number, is_dashed: true };
    Line {
        name: format!("{name} (found)"),
        look,
        parts: vec![ends.map(|x| Point::new(x, y)).to_vec()],
        is_right: false,
    }
}

/// Throughput against latency.
fn against(view: &View<'_>, sweep: &Sweep, prefix: &str, table: Table) -> Figure {
    let point = |(_, place): &(f64, usize)| {
        let cell = &view.cells[*place];
        Point::new(cell.rate.mean, cell.response_p99_ns.mean)
    };
    let lines: Vec<Line> = sweep
        .drawn()
        .map(|(number, group)| line(number, &group.name, vec![group.points.iter().map(point).collect()]))
        .collect();
    let points = || lines.iter().flat_map(|line| &line.parts).flatten();
    let chart = Chart {
        x: Axis::measured("operations/s", Unit::Number, points().map(|point| point.x)),
        y: Axis::measured("99th percentile", Unit::Time, points().map(|point| point.y)),
        right: None,
        lines: lines.clone(),
        failed: Vec::new(),
    };
    let mut notes = vec![format!("Each point is a cell; lines follow {} from the least to the most.", sweep.key)];
    notes.extend(left_out(view, sweep));
    let title = format!("Response time against throughput, along {}", sweep.key);
    Figure { id: format!("{prefix}-against"), title, notes, chart, table }
}

/// The numbers of all four figures.
fn table(view: &View<'_>, sweep: &Sweep) -> Table {
    let mut head = vec!["line".to_owned(), sweep.key.clone()];
    head.extend(["runs", "ops/s", "±", "p50 ms", "±", "p99 ms", "±"].map(str::to_owned));
    let half = |half: Option<f64>, text: fn(f64) -> String| half.map_or("-".to_owned(), text);
    let rate = |rate: f64| format!("{rate:.1}");
    let row = |group: &Group, place: usize| {
        let cell = &view.cells[place];
        let mut row = vec![group.name.clone(), cell.value(&sweep.key).to_owned(), cell.runs_done.to_string()];
        row.extend([rate(cell.rate.mean), half(cell.rate.half, rate)]);
        for times in [cell.response_p50_ns, cell.response_p99_ns] {
            row.extend([millis(times.mean), half(times.half, millis)]);
        }
        row
    };
    let rows = sweep.groups.iter().flat_map(|group| group.points.iter().map(move |(_, place)| row(group, *place)));
    Table { head, rows: rows.collect(), names: 2 }
}

/// Draws the published curves beside ours.
fn with_published(figure: &mut Figure, sweep: &Sweep, published: &Published) {
    let shown = match published.curves(sweep.unit) {
        Ok(shown) => shown,
        Err(why) => return figure.notes.push(why),
    };
    let chart = &mut figure.chart;
    let ours = chart.lines.len();
    let peak = means(&chart.lines).fold(0.0, f64::max);
    let Shown { curves, scaled_peak, notes } = shown;
    figure.notes.push(format!("The published curves are against {}.", published.along()));
    figure.notes.extend(notes);
    let factor = if peak > 0.0 && scaled_peak > 0.0 { scaled_peak / peak } else { 1.0 };
    for (place, curve) in curves.iter().enumerate() {
        let points = curve.points.iter().map(|(x, y)| Point::new(*x, *y)).collect();
        let name = if curve.is_scaled { "published, scaled" } else { "published" };
        chart.lines.push(Line {
            name: format!("{} ({name})", curve.name),
            look: Look { number: ours + place, is_dashed: true },
            parts: vec![points],
            is_right: curve.is_scaled,
        });
    }
    let scaled = |line: &Line| if line.is_right { factor } else { 1.0 };
    let values =
        chart.lines.iter().flat_map(|line| line.parts.iter().flatten().map(move |point| point.y / scaled(line)));
    chart.y = Axis::with_ends(&chart.y.name, chart.y.unit, values, ends(&chart.lines));
    chart.x = sweep.axis(curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x));
    chart.right = curves.iter().any(|curve| curve.is_scaled).then(|| chart.y.scaled("published, scaled", factor));
}

/// Whether a published table with such a first column has the same swept value.
pub(super) fn is_about(sweep: &Sweep, column: &str) -> bool {
    let unit = ["_us", "_ms", "_s"].into_iter().find_map(|unit| column.strip_suffix(unit));
    let column = unit.filter(|_| sweep.unit == Unit::Time).unwrap_or(column);
    sweep.key == column || sweep.key.rsplit('.').next() == Some(column)
}
