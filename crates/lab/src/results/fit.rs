//! What a sync takes as a straight line of its rows: so much by itself, and so much for each row.
//!
//! The points are runs: the time of their sets, shared out over their syncs. Least squares, in which each point weighs as one that is wrong
//! by the same part of its time (runs scatter by so many per cent, whatever they take); intervals by Student's t.
//!
//! *Caveats.* What is no straight line shows as a wide interval, not as a bend: look at the plot.

use std::fmt;

use super::read::Campaign;
use super::student;
use super::summary::Estimate;
use crate::error::Error;
use crate::sync::kind;

/// The key whose values are the rows of a sync.
const ROWS: &str = "scenario.rows";

/// Keys with their values.
type Values = Vec<(String, String)>;
/// Rows of a sync, and the milliseconds that it takes.
type Points = Vec<(f64, f64)>;

/// A line through the runs of cells that differ in the rows of a sync alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// What these cells have where others differ: key, value.
    pub values: Vec<(String, String)>,
    /// Milliseconds of a sync, whatever its rows.
    pub sync_ms: Estimate,
    /// Milliseconds of each row.
    pub row_ms: Estimate,
    /// How many runs it goes through.
    pub runs: usize,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.values.iter().map(|(key, value)| format!("{key} = {value}, ")).collect();
        let Fit { sync_ms, row_ms, runs, .. } = self;
        let half = |estimate: &Estimate, places| format!("{:.places$}", estimate.half.unwrap_or(f64::INFINITY));
        write!(
            f,
            "{}over {ROWS}: {:.3} +- {} ms a sync and {:.5} +- {} ms a row (95 %, {runs} runs)",
            values.concat(),
            sync_ms.mean,
            half(sync_ms, 3),
            row_ms.mean,
            half(row_ms, 5),
        )
    }
}

impl Campaign {
    /// A line for each combination of what else differs; none where the rows of syncs are not varied, or fewer than three runs are done.
    pub fn fits(&self) -> Result<Vec<Fit>, Error> {
        let (varied, runs) = (self.varied()?, self.runs()?);
        if !varied.iter().any(|key| key == ROWS) {
            return Ok(Vec::new());
        }
        let mut lines: Vec<(Values, Points)> = Vec::new();
        for (cell, _) in self.cells()?.into_iter().filter(|(_, scenario)| scenario == kind::NAME) {
            let (mut values, mut rows) = (Vec::new(), None);
            for (key, value, _) in self.values(cell)? {
                if key == ROWS {
                    rows = value.parse().ok();
                } else if varied.contains(&key) {
                    values.push((key, value));
                }
            }
            let Some(rows) = rows else { continue };
            let done = runs.iter().filter(|run| run.cell == cell && run.state == "done" && run.rate() > 0.0);
            let points = done.map(|run| (rows, 1e3 / run.rate()));
            match lines.iter_mut().find(|(known, _)| *known == values) {
                Some((_, known)) => known.extend(points),
                None => lines.push((values, points.collect())),
            }
        }
        let fit = |(values, points): (Values, Points)| {
            let (sync_ms, row_ms) = line(&points)?;
            Some(Fit { values, sync_ms, row_ms, runs: points.len() })
        };
        Ok(lines.into_iter().filter_map(fit).collect())
    }
}

/// The line through points of positive heights: its height at 0, and its slope.
fn line(points: &[(f64, f64)]) -> Option<(Estimate, Estimate)> {
    let freedom = points.len().checked_sub(2).filter(|freedom| *freedom > 0)?;
    let sum = |of: fn(f64, f64) -> f64| points.iter().map(|&(x, y)| of(x, y) / (y * y)).sum::<f64>();
    let (weights, xs, ys) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|_, y| y));
    let (squares, products) = (sum(|x, _| x * x), sum(|x, y| x * y));
    let spread = weights * squares - xs * xs;
    // All at one x, but for what the numbers leave out.
    if spread <= 1e-9 * weights * squares {
        return None;
    }
    let slope = (weights * products - xs * ys) / spread;
    let height = (squares * ys - xs * products) / spread;
    let off: f64 = points.iter().map(|&(x, y)| ((y - height - slope * x) / y).powi(2)).sum();
    let t = student::two_sided(0.05, freedom);
    let half = |part: f64| Some(t * (off / freedom as f64 * part / spread).sqrt());
    Some((Estimate { mean: height, half: half(squares) }, Estimate { mean: slope, half: half(weights) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-3 * expected.abs()
    }

    #[test]
    fn a_line_is_found_with_its_intervals() {
        let exact: Vec<(f64, f64)> = [10.0, 100.0, 1_000.0].map(|x| (x, 9.0 + 0.018 * x)).to_vec();
        let (height, slope) = line(&exact).expect("a line");
        assert!(near(height.mean, 9.0) && near(slope.mean, 0.018), "{height:?} {slope:?}");
        assert!(height.half.is_some_and(|half| half < 1e-6) && slope.half.is_some_and(|half| half < 1e-9));
        // By another program.
        let (height, slope) = line(&SCATTERED).expect("a line");
        assert!(near(height.mean, HEIGHT.0) && near(height.half.unwrap_or(0.0), HEIGHT.1), "{height:?}");
        assert!(near(slope.mean, SLOPE.0) && near(slope.half.unwrap_or(0.0), SLOPE.1), "{slope:?}");
    }

    const SCATTERED: [(f64, f64); 6] =
        [(10.0, 3.1), (10.0, 3.4), (100.0, 5.2), (100.0, 4.7), (1_000.0, 21.0), (1_000.0, 24.0)];
    const HEIGHT: (f64, f64) = (3.032_600, 0.386_870);
    const SLOPE: (f64, f64) = (0.019_214, 0.002_924);

    #[test]
    fn what_tells_no_line_gives_none() {
        assert_eq!(line(&[(10.0, 1.0), (20.0, 2.0)]), None, "two runs are always on one");
        assert_eq!(line(&[(100.0, 1.0), (100.0, 2.0), (100.0, 3.0)]), None);
    }
}
