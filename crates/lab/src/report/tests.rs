//! Reports of recorded samples.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bottleneck::{Bottleneck, Verdict};
use crate::campaign::Seen;
use crate::experiment::Experiment;
use crate::harness::{Attempts, Class, Counted, Ended, Histogram, Measured, Outcome, RunFailure, Second, Tally, Work};
use crate::plan::Plan;
use crate::results::{Campaign, CellTable, Estimate, RunRecord, Writer};
use crate::sampling::Sampled;

use super::axis::along;
use super::chart::Point;
use super::published::Published;
use super::sweep::{self, Sweep, sweeps};
use super::units::Unit;
use super::view::View;
use super::{html, percentile, timeline};

const HEAD: &str = "name = \"sample\"\nabout = \"what it shows\"\nstop.duration = \"2s\"\nscenario.name = \"tpcb\"\n";

/// Results in a folder of their own.
struct Sample {
    folder: tempfile::TempDir,
}

impl Sample {
    /// Of the experiment that begins as all do, and each run as `outcome` has it by its cell and repetition, from 0.
    fn new(rest: &str, outcome: impl Fn(usize, usize) -> Option<Outcome>) -> Sample {
        let sample = Sample { folder: tempfile::tempdir().expect("a folder") };
        let text = format!("{HEAD}{rest}");
        let nothing = |_: &str| Err("no such file".to_owned());
        let experiment = Experiment::parse("x.toml", &text, &nothing).unwrap_or_else(|errors| panic!("{errors:#?}"));
        let plan = Plan::new(&experiment, 7);
        let writer = Writer::create(&sample.path(), &experiment, &plan).expect("made");
        writer.environment(&[("host memory".to_owned(), "640 kB".to_owned())]).expect("kept");
        for run in &plan.runs {
            let Some(outcome) = outcome(run.cell, run.repetition) else { continue };
            let started = writer.now().expect("a time");
            let record = RunRecord {
                run: *run,
                started,
                outcome: &outcome,
                seen: Some(&seen()),
                client_cpu_ns: None,
                steal_percent: None,
            };
            writer.run(&record).expect("kept");
        }
        writer.end("done").expect("kept");
        sample
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("sample.lab")
    }

    fn sql(&self, sql: &str) {
        rusqlite::Connection::open(self.path()).and_then(|c| c.execute_batch(sql)).expect(sql);
    }

    fn campaign(&self) -> Campaign {
        Campaign::open(&self.path()).expect("results")
    }

    fn page(&self) -> String {
        html(&[self.campaign()], None).expect("a report")
    }

    fn sweeps(&self) -> Vec<Sweep> {
        let campaign = self.campaign();
        sweeps(&campaign.summary().expect("cells"), &campaign.varied().expect("keys"))
    }
}

/// A run of two seconds in which so many operations took these microseconds each.
fn ran(times: &[(u64, u64)]) -> Outcome {
    let mut response = Histogram::default();
    for (micros, count) in times {
        response.record_many(micros * 1000, *count);
    }
    let operations = response.len();
    let series = vec![second(0, operations / 2, 0), second(1, operations - operations / 2, 0)];
    let measured = Measured {
        from: tokio::time::Instant::now(),
        ended: Ended::Duration,
        warmup: Duration::ZERO,
        is_steady: None,
        elapsed: Duration::from_secs(2),
        sets: None,
        operations,
        service: response.clone(),
        response,
        errors: BTreeMap::new(),
        attempts: Attempts::default(),
        late: 0,
        dropped: 0,
        longest_queue: 0,
        series,
        tally: Tally { done: operations, failed: 0 },
        agents: None,
    };
    Outcome { measured: Some(measured), failure: None, left_behind: None }
}

/// Locks, with markup in the evidence.
fn seen() -> Seen {
    let sampled =
        Sampled { machine: Vec::new(), processes: Vec::new(), waits: Err("not asked".to_owned()), server: None };
    let evidence = "85 % of the clients in: SELECT '<b>'".to_owned();
    let verdict = Verdict { bottleneck: Bottleneck::Locks, evidence };
    Seen { verdict, processors: None, sampled, syncs: Vec::new(), shares: [None; 2], behind: None }
}

fn second(second: u64, operations: u64, errors: u64) -> Second {
    let response = Duration::from_millis(1);
    Second {
        second,
        operations,
        errors,
        response_p50: response,
        response_p99: response,
        response_max: response,
        response_mean: response,
        work: Work { queries: operations, rows_read: 3 * operations, updates: 2, deletes: 1, inserts: 4 },
    }
}

fn names(sweep: &Sweep) -> Vec<&str> {
    sweep.groups.iter().map(|group| group.name.as_str()).collect()
}

#[test]
fn swept_numbers_are_found_with_a_line_for_each_combination() {
    let sample = Sample::new(
        "load.clients = [4, 1, 2]\nload.think = [\"500us\", \"2ms\"]\ntarget.setup = [\"SELECT 1\", \"SELECT 2\"]",
        |_, _| Some(ran(&[(100, 10)])),
    );
    let sweeps = sample.sweeps();
    let keys: Vec<_> = sweeps.iter().map(|sweep| (sweep.key.as_str(), sweep.unit, sweep.groups.len())).collect();
    assert_eq!(keys, [("load.clients", Unit::Number, 4), ("load.think", Unit::Time, 6)]);
    assert_eq!(names(&sweeps[0])[1], "load.think = 500µs, target.setup = SELECT 2");
    let values: Vec<f64> = sweeps[0].groups[0].points.iter().map(|(value, _)| *value).collect();
    assert_eq!(values, [1.0, 2.0, 4.0], "in the order of the values");
    let values: Vec<f64> = sweeps[1].groups[0].points.iter().map(|(value, _)| *value).collect();
    assert_eq!(values, [500e3, 2e6]);
}

#[test]
fn numbers_that_go_together_are_swept_once_and_words_never() {
    let sample = Sample::new(
        "load.clients = [1, 2]\nload.arrival = \"poisson\"\nload.rate = [100, 200]\nzip = [[\"load.clients\", \"load.rate\"]]",
        |_, _| Some(ran(&[(100, 10)])),
    );
    let sweeps = sample.sweeps();
    assert_eq!((sweeps.len(), &sweeps[0].together), (1, &vec!["load.rate".to_owned()]));
    assert_eq!(names(&sweeps[0]), ["tpcb"], "one line, named by the scenario");
    assert_eq!(Sample::new("load.arrival = [\"closed\"]", |_, _| None).sweeps(), []);
    assert_eq!(sweep::number("SELECT 1s"), None);
    assert_eq!(sweep::number("NaN"), None);
}

#[test]
fn more_combinations_than_can_be_told_apart_are_said() {
    let list: Vec<String> = (1..=9).map(|number| format!("\"SELECT {number}\"")).collect();
    let rest = format!("load.clients = [1, 2]\ntarget.setup = [{}]", list.join(", "));
    let sample = Sample::new(&rest, |_, _| Some(ran(&[(100, 10)])));
    let campaign = sample.campaign();
    let view = View::of(&campaign).expect("read");
    let figures = sweep::figures(&view, &sample.sweeps()[0], "c1", None);
    for figure in &figures {
        assert_eq!((figure.chart.lines.len(), figure.table.rows.len()), (8, 18), "{}", figure.title);
        let said = figure.notes.join(" ");
        assert!(said.contains("There are 9 combinations; the first 8 are drawn"), "{said}");
    }
    let percentiles = percentile::figures(&view, "c1");
    let drawn: Vec<usize> = percentiles.iter().map(|figure| figure.chart.lines.len()).collect();
    assert_eq!(drawn, [8, 8, 2], "every cell has its curve");
}

#[test]
fn points_are_means_of_the_runs_with_their_own_intervals() {
    // Rates of 100, 110 and 120 a second; medians of 1, 2 and 4 ms, 99th percentiles of 10, 20 and 60.
    let runs = [(200, 1000, 10_000), (220, 2000, 20_000), (240, 4000, 60_000)];
    let sample = Sample::new("repetitions = 3\nload.clients = [1, 2]", |_, repetition| {
        let (operations, median, slow) = runs[repetition];
        Some(ran(&[(median, operations - 10), (slow, 10)]))
    });
    let campaign = sample.campaign();
    let view = View::of(&campaign).expect("read");
    let figures = sweep::figures(&view, &sample.sweeps()[0], "c1", None);
    for (figure, values) in figures.iter().zip([[100.0, 110.0, 120.0], [1e6, 2e6, 4e6], [10e6, 20e6, 60e6]]) {
        let Estimate { mean, half } = Estimate::of(&values);
        let half = half.expect("three runs");
        for Point { x, y, half: drawn } in figure.chart.lines[0].parts.iter().flatten() {
            // Histograms have three digits.
            assert!((y / mean - 1.0).abs() < 2e-3, "{}: {y} at {x}, not {mean}", figure.title);
            let drawn = drawn.expect("an interval");
            assert!((drawn / half - 1.0).abs() < 2e-3, "{}: {drawn} at {x}, not {half}", figure.title);
        }
        let svg = figure.chart.svg().0;
        assert_eq!(svg.matches("stroke-width=\"3\"").count(), 2 * 3, "two bars with their ends: {svg}");
    }
    let against = figures[3].chart.lines[0].parts[0][0];
    assert!((against.x - 110.0).abs() < 1e-9 && (against.y / 30e6 - 1.0).abs() < 2e-3, "{against:?}");
}

#[test]
fn percentiles_are_those_of_the_operations() {
    let mut histogram = Histogram::default();
    (1..=100_000).for_each(|micros| histogram.record(Duration::from_micros(micros)));
    let curve = percentile::curve(&histogram);
    for part in [0.5, 0.9, 0.99, 0.999, 0.9999] {
        let after = curve.iter().position(|point| point.x >= along(part)).expect("on the curve");
        let expected = part * 100_000e3;
        let (low, high) = (curve[after - 1].y, curve[after].y);
        assert!(low <= expected * 1.001 && expected <= high * 1.001, "{part}: {low} to {high}, not {expected}");
    }
    assert!((curve[0].y / 1e3 - 1.0).abs() < 2e-3, "from the fastest: {:?}", curve[0]);
    let last = curve[curve.len() - 1];
    assert!((last.x - 5.0).abs() < 1e-6 && (last.y / 100_000e3 - 1.0).abs() < 2e-3, "to the slowest: {last:?}");
    assert!(curve.is_sorted_by(|one, other| one.x < other.x && one.y <= other.y));
}

#[test]
fn what_limited_a_cell_is_told_with_its_evidence() {
    let page = Sample::new("load.clients = [1, 2]\n", |_, _| Some(ran(&[(100, 10)]))).page();
    assert!(page.contains("What limited each cell"), "{page}");
    assert_eq!(page.matches("85 % of the clients in: SELECT").count(), 2, "one a cell");
    assert!(!page.contains("<b>"), "it is text");
}

#[test]
fn the_summary_is_the_table_of_show() {
    let sample = Sample::new("repetitions = 2\nload.clients = [1, 2]", |cell, repetition| {
        Some(ran(&[(100 * (cell as u64 + 1), 90 + repetition as u64), (5000, 3)]))
    });
    let campaign = sample.campaign();
    let shown = CellTable::of(&campaign.summary().expect("cells"), &campaign.varied().expect("keys"));
    assert_eq!(shown.rows.len(), 2);
    let page = sample.page();
    for row in shown.rows {
        let cells: Vec<String> = row.iter().map(|cell| format!(">{cell}</td>")).collect();
        let is_there = page.lines().any(|line| {
            line.matches("</td>").count() == cells.len() && cells.iter().all(|cell| line.contains(cell.as_str()))
        });
        assert!(is_there, "{row:?} is not in the page");
    }
}

#[test]
fn runs_that_are_not_counted_are_told_and_drawn() {
    let sample = Sample::new("repetitions = 4\nload.clients = [1, 2]", |cell, repetition| {
        let failure = match (cell, repetition) {
            (1, 1) => Some(RunFailure::Verify(vec!["a row too many".to_owned()])),
            (1, 2) => Some(RunFailure::Interrupted),
            (1, 3) => return None,
            _ => None,
        };
        Some(Outcome { failure, ..ran(&[(100, 10)]) })
    });
    let page = sample.page();
    let said = "8 planned (2 cells, 4 times each): 5 done, 1 failed, 1 interrupted, 1 never begun";
    assert!(page.contains(said), "{page}");
    assert!(page.contains("Runs that are not counted") && page.contains("verify: a row too many"), "{page}");
    assert!(page.contains("it was interrupted"), "{page}");
    assert!(page.contains("run 2 (failed)") && page.contains("run 3 (interrupted)"), "their timelines are drawn");
    let campaign = sample.campaign();
    assert_eq!(View::of(&campaign).expect("read").summary().rows[1][2], "1", "one run is in the mean");
}

#[test]
fn runs_that_were_not_steady_are_told() {
    let sample =
        Sample::new("repetitions = 3\nstop.steady_within = \"1m\"\nload.clients = [1, 2]", |cell, repetition| {
            let mut outcome = ran(&[(100, 10)]);
            let measured = outcome.measured.as_mut().expect("it ran");
            measured.is_steady = Some(cell == 0 || repetition == 0);
            Some(outcome)
        });
    let page = sample.page();
    let said = "2 of 3 runs not steady within 60s: their rate or response times still changed when measuring began";
    assert!(page.contains("Not steady") && page.matches(said).count() == 1, "{page}");
    let steady = Sample::new("stop.steady_within = \"1m\"", |_, _| Some(ran(&[(100, 10)]))).page();
    assert!(!steady.contains("Not steady"), "{steady}");
}

#[test]
fn a_campaign_without_runs_has_a_report_too() {
    let page = Sample::new("load.clients = [1, 2]", |_, _| None).page();
    assert!(page.contains("0 done, 0 failed, 0 interrupted, 2 never begun"), "{page}");
    well_formed(&page);
}

#[test]
fn timelines_have_every_second() {
    let sample = Sample::new("", |_, _| {
        let mut outcome = ran(&[(100, 10)]);
        let measured = outcome.measured.as_mut().expect("it ran");
        measured.elapsed = Duration::from_millis(5750);
        measured.series = vec![second(0, 100, 0), second(1, 0, 3), second(4, 80, 2), second(5, 60, 0)];
        measured.errors.insert(Class::TimeOut, Counted { count: 5, example: "too late".to_owned() });
        Some(outcome)
    });
    let campaign = sample.campaign();
    let view = View::of(&campaign).expect("read");
    let figures = timeline::figures(&view, "c1");
    let rates: Vec<f64> = figures[0].chart.lines[0].parts[0].iter().map(|point| point.y).collect();
    assert_eq!(rates, [100.0, 0.0, 0.0, 0.0, 80.0, 80.0], "stalls are 0, and the last 750 ms are a part of a second");
    assert_eq!(figures[0].chart.failed, [(1.0, 0.0), (4.0, 80.0)]);
    let parts: Vec<usize> = figures[1].chart.lines[0].parts.iter().map(Vec::len).collect();
    assert_eq!(parts, [1, 2], "no percentile where nothing succeeded");
    let page = sample.page();
    assert!(page.contains("operations failed") && page.contains("too late"), "{page}");
}

#[test]
fn a_short_last_second_counts_to_the_one_before() {
    let sample = Sample::new("", |_, _| {
        let mut outcome = ran(&[(100, 10)]);
        let measured = outcome.measured.as_mut().expect("it ran");
        measured.elapsed = Duration::from_millis(2250);
        measured.series = vec![second(0, 100, 0), second(1, 95, 0), second(2, 30, 1)];
        Some(outcome)
    });
    let campaign = sample.campaign();
    let view = View::of(&campaign).expect("read");
    let chart = &timeline::figures(&view, "c1")[0].chart;
    let rates: Vec<f64> = chart.lines[0].parts[0].iter().map(|point| point.y).collect();
    assert_eq!((rates, chart.failed.as_slice()), (vec![100.0, 100.0], &[(1.0, 100.0)][..]));
}

#[test]
fn what_comes_from_files_is_text() {
    let bad = "</title></pre><script>alert(\"1\")</script>&amp;\u{1}";
    let sample = Sample::new("repetitions = 2\nload.clients = [1, 2]", |_, repetition| {
        let failure = (repetition == 1).then(|| RunFailure::Lost(bad.to_owned()));
        let mut outcome = Outcome { failure, ..ran(&[(100, 10)]) };
        let measured = outcome.measured.as_mut().expect("it ran");
        measured.errors.insert(Class::Code(bad.to_owned()), Counted { count: 1, example: bad.to_owned() });
        Some(outcome)
    });
    let text = format!("'{bad}'");
    sample.sql(&format!(
        "UPDATE campaign SET name = {text}, about = {text}, file = {text}, specification = {text}, started = {text}, \
         ended = {text}, state = {text}; \
         UPDATE environment SET key = {text}, value = {text}; UPDATE cell SET scenario = {text}; \
         UPDATE cell_value SET key = key || {text} WHERE is_varied; UPDATE run SET state = {text} WHERE repetition = 2"
    ));
    let csv = sample.folder.path().join("<b>.csv");
    std::fs::write(&csv, format!("clients,\"<i>{}\",kind\n1,2,<u>\n2,4,<u>\n", bad.replace('"', "\"\"")))
        .expect("written");
    let page = html(&[sample.campaign()], Some(&Published::read(&csv).expect("a table"))).expect("a report");
    for markup in ["<script", "<b>", "<i>", "<u>", "\u{1}"] {
        assert!(!page.contains(markup), "{markup}");
    }
    assert!(page.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;amp;\u{fffd}"), "{page}");
    assert_eq!(page.matches("</pre>").count(), 1);
    well_formed(&page);
}

#[test]
fn a_report_needs_nothing_else_and_is_the_same_again() {
    let sample = Sample::new("repetitions = 2\nload.clients = [1, 2]", |_, repetition| {
        Some(ran(&[(100, 10 + repetition as u64)]))
    });
    let page = sample.page();
    for outside in ["src=", "http:", "https:", "url(", "@import", "<link", "<script", "<img"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
    assert_eq!(page, sample.page());
    let (plots, titles) = (page.matches("<svg class=\"plot\"").count(), page.matches("<title id=").count());
    assert_eq!((plots, titles, page.matches("<desc id=").count()), (9, 9, 9), "four, one, and two for each cell");
    well_formed(&page);
    let two = html(&[sample.campaign(), sample.campaign()], None).expect("a report");
    assert!(two.contains("<a href=\"#c2\">sample</a>") && two.contains("<section id=\"c2\">"), "{two}");
    let mut ids: Vec<&str> = two.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "each name once");
}

fn published(text: &str) -> Published {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("paper.csv");
    std::fs::write(&path, text).expect("written");
    Published::read(&path).expect("a table")
}

#[test]
fn published_curves_are_drawn_beside_ours_with_the_maxima_at_one_height() {
    let sample = Sample::new("load.clients = [1, 2]", |cell, _| Some(ran(&[(100, 1000 * (cell as u64 + 1))])));
    let campaign = sample.campaign();
    let view = View::of(&campaign).expect("read");
    let table = published("# as printed\nclients,delete_s,ours_ops_per_s\n2,50,700\n1,80,600\n4,,1\n");
    let figure = &sweep::figures(&view, &sample.sweeps()[0], "c1", Some(&table))[0];
    let [ours, scaled, plain] = figure.chart.lines.as_slice() else { panic!("{:?}", figure.chart.lines) };
    assert_eq!((scaled.name.as_str(), scaled.is_right), ("delete_s (published, scaled)", true));
    assert_eq!((plain.name.as_str(), plain.is_right), ("ours_ops_per_s (published)", false));
    assert_eq!(scaled.parts, [[Point::new(1.0, 80.0), Point::new(2.0, 50.0)]]);
    let right = figure.chart.right.as_ref().expect("an axis of its own");
    let height = figure.chart.y.place(ours.parts[0][1].y);
    assert!((right.place(80.0) - height).abs() < 1e-9, "1,000 operations/s are as high as 80 s");
    assert!(figure.chart.svg().0.contains("published, scaled"));
    assert!(figure.notes.concat().contains("against clients"), "{:?}", figure.notes);
}

#[test]
fn what_the_server_finds_is_a_level_across_the_fixed_numbers() {
    let sample = Sample::new("load.clients = [4, 1, 2]", |cell, _| Some(ran(&[(100, 10 * (cell as u64 + 1))])));
    sample.sql("UPDATE cell_value SET key = 'scenario.workers' WHERE key = 'load.clients'");
    sample.sql("UPDATE cell_value SET value = '0' WHERE key = 'scenario.workers' AND value = '4'");
    let campaign = sample.campaign();
    let view = View::of(&campaign).expect("read");
    let sweep = &sample.sweeps()[0];
    let rate = &sweep::figures(&view, sweep, "x", None)[0].chart;
    let lines: Vec<_> =
        rate.lines.iter().map(|line| (line.name.as_str(), line.parts[0].len(), line.look.is_dashed)).collect();
    assert_eq!(lines, [("tpcb", 2, false), ("tpcb (found)", 2, true)]);
    let level = &rate.lines[1].parts[0];
    assert_eq!((level[0].x, level[1].x, level[0].y), (1.0, 2.0, level[1].y));
    assert!(rate.x.low > 0.0, "0 is no number of workers: {:?}", rate.x);
}

#[test]
fn a_published_curve_is_drawn_once_where_its_swept_value_is() {
    let sample =
        Sample::new("scenario.branches = [1, 10]\nload.think = [\"1ms\", \"5ms\"]", |_, _| Some(ran(&[(100, 1000)])));
    let figure_of = |table: &str| {
        let page = html(&[sample.campaign()], Some(&published(table))).expect("a report");
        assert!(page.contains("<h2>Published: paper.csv</h2>"), "the table is there in any case");
        let (before, _) = page.split_once("The published curves are against")?;
        assert_eq!(page.matches("The published curves are against").count(), 1);
        before.rsplit_once("<figure id=\"")?.1.split_once('"').map(|(id, _)| id.to_owned())
    };
    assert_eq!(figure_of("think_ms,a_s\n1,2\n").as_deref(), Some("c1-1-rate"));
    assert_eq!(figure_of("branches,a_s\n1,2\n").as_deref(), Some("c1-0-rate"));
    assert_eq!(figure_of("workers,a_s\n1,2\n").as_deref(), Some("c1-0-rate"), "the first where none has its name");
    assert_eq!(figure_of("action,a_s\ndelete,2\n"), None);
}

#[test]
fn nonsense_in_a_file_does_no_harm() {
    let sample = Sample::new("load.clients = [1, 2, 3]", |_, _| Some(ran(&[(1, 5), (1_000_000, 5)])));
    sample.sql(
        "UPDATE cell_value SET value = '1e308' WHERE cell = 2 AND key = 'load.clients'; \
         UPDATE cell_value SET value = '5e-324' WHERE cell = 3 AND key = 'load.clients'; \
         UPDATE run SET elapsed_ns = 9223372036854775807 WHERE cell = 1; UPDATE run SET elapsed_ns = -5 WHERE cell = 2; \
         INSERT INTO second VALUES (1, -1, 5, 5, -1, -1, -1, -1, -1, 0, 0, 0, 0), (2, 9223372036854775807, 5, 5, 9, 9, 9, 9, 0, 0, 0, 0, 0); \
         UPDATE run SET elapsed_ns = 1, operations = 9223372036854775807 WHERE cell = 3",
    );
    let table = published("clients,a,b_ops_per_s\n0,1e308,-1\n-1e308,5e-324,0\n");
    well_formed(&html(&[sample.campaign()], Some(&table)).expect("a report"));
}

#[test]
fn published_tables_with_words_are_read_too() {
    let shown = |table: &Published, unit| table.curves(unit).map(|shown| shown.curves);
    let table = published("clients,action,total_s\n1000,delete,546\n20,delete,569\n1000,insert,438\n");
    let curves = shown(&table, Unit::Number).expect("numbers");
    let told: Vec<_> = curves.iter().map(|curve| (curve.name.as_str(), curve.points.as_slice())).collect();
    let delete = [(20.0, 569.0), (1000.0, 546.0)];
    assert_eq!(told, [("delete total_s", &delete[..]), ("insert total_s", &[(1000.0, 438.0)][..])]);
    let why = shown(&published("action,x_s\ndelete,1\n"), Unit::Number).expect_err("words");
    assert_eq!(why, "paper.csv is not drawn: its first column, action, is no number.");
    let delays = published("delay_ms,x_s\n500,1\n");
    assert_eq!(shown(&delays, Unit::Time).expect("times")[0].points, [(500e6, 1.0)]);
    assert!(shown(&table, Unit::Time).is_err());
}

/// Elements end in the order in which they began, and what is between them is text.
fn well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page;
    while let Some((text, tag)) = rest.split_once('<') {
        check_text(text);
        // No value of an attribute holds `>`: it is escaped.
        let (tag, after) = tag.split_once('>').expect("a tag ends");
        assert!(!tag.contains('<') && tag.matches('"').count() % 2 == 0, "{tag}");
        rest = after;
        let name = tag.split([' ', '/', '\n']).find(|word| !word.is_empty()).expect("a name");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "after {open:?}");
        } else if !tag.ends_with('/') && name != "meta" && name != "!DOCTYPE" {
            open.push(name);
        }
    }
    assert!(open.is_empty() && page.contains("</html>"), "{open:?}");
}

fn check_text(text: &str) {
    for after in text.split('&').skip(1) {
        let entities = ["amp;", "lt;", "gt;", "quot;", "apos;", "#39;"];
        assert!(entities.iter().any(|entity| after.starts_with(entity)), "&{after}");
    }
    assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n' && letter != '\t'), "{text:?}");
}

#[test]
fn each_plot_is_a_file_that_needs_no_page() {
    let rest = "load.clients = [1, 2]\ntarget.setup = [\"SELECT '<&>'\", \"SELECT 2\"]";
    let sample = Sample::new(rest, |_, _| Some(ran(&[(100, 10)])));
    let campaigns = [sample.campaign(), sample.campaign()];
    let plots = super::plots(&campaigns, None, "own").expect("plots");
    let page = html(&campaigns, None).expect("a report");
    assert_eq!(plots.len(), page.matches("<figure ").count(), "all of the report's");
    let names: std::collections::BTreeSet<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), plots.len(), "none replaces another");
    assert!(names.contains("own-0-rate") && names.contains("own-2-0-rate"), "{names:?}");
    for (name, svg) in &plots {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{name}: {error}\n{svg}"));
        let words: Vec<&str> = document
            .descendants()
            .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
            .filter_map(|node| node.text())
            .collect();
        let title = document.descendants().find(|node| node.tag_name().name() == "title").and_then(|node| node.text());
        assert!(words.first() == title.as_ref() && title.is_some(), "{name}: {words:?}");
        assert!(!svg.contains("href"), "{name}");
    }
    let (_, rate) = plots.iter().find(|(name, _)| name == "own-0-rate").expect("a plot of rates");
    assert!(
        rate.contains("target.setup = SELECT &#39;&lt;&amp;&gt;&#39;</text>"),
        "the legend names the lines: {rate}"
    );
}

#[test]
fn a_second_in_which_nothing_ended_is_in_an_evaluators_file() {
    let sample = Sample::new("", |_, _| Some(ran(&[(500, 100)])));
    sample.sql("DELETE FROM second WHERE second = 0");
    let mut written = Vec::new();
    sample.campaign().export_evaluator(None, &mut written).expect("written");
    let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<EvaluatorResults name="sample">
  <Stats label="cell 1, repetition 1, second 0" time="0" users="1" avgResponseTime="0.000" queries="0" queriesPerSecond="0" rowsRead="0" updates="0" deletes="0" inserts="0" interval="1"/>
  <Stats label="cell 1, repetition 1, second 1" time="1" users="1" avgResponseTime="1.000" queries="50" queriesPerSecond="50" rowsRead="150" updates="2" deletes="1" inserts="4" interval="1"/>
</EvaluatorResults>
"#;
    assert_eq!(String::from_utf8(written).expect("text"), expected);
}
