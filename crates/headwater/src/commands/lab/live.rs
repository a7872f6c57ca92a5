//! Throughput and response times of a run, drawn in the terminal while it is on.
//!
//! A column is as many seconds as it takes to show the whole run: the mean of their rates, the highest of their percentiles. A second in which nothing ended
//! is 0, and has no percentile. A cross below marks a column with failures.

use std::fmt::Write as _;
use std::time::Duration;

use headwater_lab::harness::Second;

/// Lines of a chart.
const HEIGHT: usize = 6;
/// Room for the numbers at the left of a chart.
const AXIS: usize = 10;
/// What a line has beside axis and chart.
const MARGIN: usize = 3;
/// A terminal that is narrower gets lines that it must break.
const NARROWEST: usize = 40;
/// Eighths of a line.
const BLOCKS: [char; 9] =
    [' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];

/// What is drawn.
#[derive(Debug, Default)]
pub(super) struct Live {
    seconds: Vec<Second>,
    is_colourful: bool,
}

/// Some seconds after one another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Column {
    rate: f64,
    p99: Option<Duration>,
    has_errors: bool,
}

impl Live {
    pub(super) fn new(is_colourful: bool) -> Live {
        Live { seconds: Vec::new(), is_colourful }
    }

    /// Forgets the run before.
    pub(super) fn restart(&mut self) {
        self.seconds.clear();
    }

    pub(super) fn add(&mut self, seconds: &[Second]) {
        self.seconds.extend_from_slice(seconds);
    }

    /// The charts, for a terminal of so many columns; empty before the first second is over.
    pub(super) fn draw(&self, width: usize) -> String {
        let width = width.max(NARROWEST) - AXIS - MARGIN;
        let columns = self.columns(width);
        if columns.is_empty() {
            return String::new();
        }
        let mut text = String::new();
        let rates: Vec<_> = columns.iter().map(|column| Some(column.rate)).collect();
        self.chart(&mut text, "operations a second", "36", &rates);
        let p99: Vec<_> = columns.iter().map(|column| column.p99.map(|time| time.as_secs_f64() * 1e3)).collect();
        self.chart(&mut text, "99 % of responses within, ms", "33", &p99);
        if columns.iter().any(|column| column.has_errors) {
            let marks = columns.iter().map(|column| if column.has_errors { 'x' } else { ' ' }).collect::<String>();
            let _ = write!(text, "\n{:>AXIS$}   {}", "failures", self.painted("31", marks.trim_end()));
        }
        let last = format!("{} s", self.seconds.len());
        let _ = write!(text, "\n{:AXIS$}   0{last:>rest$}", "", rest = columns.len().max(last.len() + 1) - 1);
        text
    }

    /// The whole run in at most so many columns.
    fn columns(&self, most: usize) -> Vec<Column> {
        let each = self.seconds.len().div_ceil(most).max(1);
        let column = |seconds: &[Second]| Column {
            rate: seconds.iter().map(|second| second.operations).sum::<u64>() as f64 / seconds.len() as f64,
            p99: seconds.iter().filter(|second| second.operations > 0).map(|second| second.response_p99).max(),
            has_errors: seconds.iter().any(|second| second.errors > 0),
        };
        self.seconds.chunks(each).map(column).collect()
    }

    /// From the top to the bottom; what there is no value for stays empty.
    fn chart(&self, text: &mut String, title: &str, colour: &str, values: &[Option<f64>]) {
        let top = ceiling(values.iter().flatten().copied().fold(0.0, f64::max));
        let _ = write!(text, "\n{:AXIS$}   {title}", "");
        for line in (0..HEIGHT).rev() {
            let label = match line {
                0 => "0".to_owned(),
                line if line == HEIGHT - 1 => number(top),
                _ => String::new(),
            };
            let drawn: String = values.iter().map(|value| block(*value, top, line)).collect();
            let _ = write!(text, "\n{label:>AXIS$} \u{2502} {}", self.painted(colour, drawn.trim_end()));
        }
    }

    fn painted(&self, colour: &str, text: &str) -> String {
        if self.is_colourful { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// What a line, counted from the bottom, has of a value. What there is has an eighth at least.
fn block(value: Option<f64>, top: f64, line: usize) -> char {
    let Some(value) = value else { return ' ' };
    let eighths = (value / top * (HEIGHT * 8) as f64).round() as usize;
    let eighths = if value > 0.0 { eighths.max(1) } else { eighths };
    BLOCKS[eighths.saturating_sub(line * 8).min(8)]
}

/// The next of 1, 2, 5, 10, 20 and so on that is no less.
fn ceiling(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powi(value.log10().floor() as i32);
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

/// A round number, short enough for the axis.
fn number(value: f64) -> String {
    if value >= 1.0 {
        crate::output::thousands(value as u64)
    } else {
        format!("{value:.6}").trim_end_matches('0').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: u64, operations: u64, p99: u64, errors: u64) -> Second {
        Second { second, operations, errors, response_p99: Duration::from_millis(p99), ..Second::default() }
    }

    fn live(seconds: &[Second]) -> Live {
        let mut live = Live::new(false);
        live.add(seconds);
        live
    }

    #[test]
    fn each_second_is_a_column_as_high_as_its_rate() {
        let live = live(&[second(0, 100, 5, 0), second(1, 50, 10, 0), second(2, 0, 0, 3), second(3, 1, 1, 0)]);
        let drawn = live.draw(60);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(
            lines[1..8],
            [
                "             operations a second",
                "       100 \u{2502} \u{2588}",
                "           \u{2502} \u{2588}",
                "           \u{2502} \u{2588}",
                "           \u{2502} \u{2588}\u{2588}",
                "           \u{2502} \u{2588}\u{2588}",
                "         0 \u{2502} \u{2588}\u{2588} \u{2581}",
            ]
        );
        assert_eq!(lines[9], "        10 \u{2502}  \u{2588}", "the percentile has an axis of its own");
        assert_eq!(lines[15..], ["  failures     x", "             04 s"]);
    }

    #[test]
    fn a_long_run_is_shown_whole() {
        let seconds: Vec<_> = (0..1000).map(|at| second(at, 100 + at % 2, if at == 500 { 70 } else { 7 }, 0)).collect();
        let live = live(&seconds);
        let drawn = live.draw(80);
        assert!(drawn.lines().all(|line| line.chars().count() <= 80), "{drawn}");
        let columns = live.columns(67);
        assert_eq!((columns.len(), columns[0].rate), (67, 100.0 + 7.0 / 15.0), "the mean of fifteen seconds");
        let slow: Vec<_> = columns.iter().filter(|column| column.p99 == Some(Duration::from_millis(70))).collect();
        assert_eq!(slow.len(), 1, "the slow second is not averaged away");
        assert!(drawn.lines().last().is_some_and(|line| line.ends_with("1000 s")), "{drawn}");
    }

    #[test]
    fn nothing_is_drawn_of_nothing_and_a_run_begins_afresh() {
        let mut live = live(&[]);
        assert_eq!(live.draw(80), "");
        live.add(&[second(0, 0, 0, 0)]);
        assert!(live.draw(0).contains("operations"), "a second in which nothing ended");
        live.restart();
        assert_eq!(live.draw(80), "");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, top) in [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (1.1, 2.0), (60.0, 100.0), (4999.0, 5000.0)] {
            assert!((ceiling(value) - top).abs() < 1e-9, "{value}");
        }
        assert_eq!((number(20_000.0), number(0.05)), ("20,000".to_owned(), "0.05".to_owned()));
    }
}
