//! What a report says, before it is drawn: figures with their numbers.

use crate::error::Error;
use crate::harness::Second;
use crate::results::{Campaign, CellSummary, CellTable, Estimate, Fit, RunRow, SyncRow};

use super::chart::{Chart, Line};

/// A campaign, read whole.
pub(super) struct View<'c> {
    pub(super) campaign: &'c Campaign,
    /// In the order of the experiment.
    pub(super) cells: Vec<CellSummary>,
    /// The keys in which they differ.
    pub(super) varied: Vec<String>,
    /// In the order in which they were made, whatever became of them.
    pub(super) runs: Vec<Run>,
    /// What syncs take by their rows, where these vary.
    pub(super) fits: Vec<Fit>,
    pub(super) environment: Vec<(String, String)>,
    /// Cell, class, how many, what the first said.
    pub(super) errors: Vec<(u64, String, u64, String)>,
}

/// A run, second by second.
pub(super) struct Run {
    pub(super) row: RunRow,
    pub(super) seconds: Vec<Second>,
    /// Of a run of syncs.
    pub(super) syncs: Vec<SyncRow>,
}

/// A chart with what is said about it.
pub(super) struct Figure {
    /// Once on the page.
    pub(super) id: String,
    pub(super) title: String,
    /// How it is to be read, and what is not in it.
    pub(super) notes: Vec<String>,
    pub(super) chart: Chart,
    pub(super) table: Table,
}

/// Numbers as text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// How many columns at the beginning say what a row is about.
    pub(super) names: usize,
}

impl<'c> View<'c> {
    /// Reads all of it.
    pub(super) fn of(campaign: &'c Campaign) -> Result<View<'c>, Error> {
        let run = |row: RunRow| Ok(Run { seconds: campaign.seconds(row.id)?, syncs: campaign.syncs(row.id)?, row });
        Ok(View {
            campaign,
            cells: campaign.summary()?,
            varied: campaign.varied()?,
            runs: campaign.runs()?.into_iter().map(run).collect::<Result<_, Error>>()?,
            fits: campaign.fits()?,
            environment: campaign.environment()?,
            errors: campaign.errors()?,
        })
    }

    /// How many runs ended so: done, failed, interrupted.
    pub(super) fn count(&self, state: &str) -> usize {
        self.runs.iter().filter(|run| run.row.state == state).count()
    }

    /// The table of `lab show`.
    pub(super) fn summary(&self) -> Table {
        let CellTable { head, rows, columns_of_cell } = CellTable::of(&self.cells, &self.varied);
        let head = head.into_iter().map(|name| if name == "+-" { "± (95 %)".to_owned() } else { name }).collect();
        Table { head, rows, names: columns_of_cell }
    }

    /// What limited each cell, as far as that is known.
    pub(super) fn limits(&self) -> Table {
        let row = |cell: &CellSummary| {
            let (bottleneck, evidence) = cell.bottleneck.clone()?;
            Some(vec![cell.cell.to_string(), self.name_of(cell), bottleneck, evidence])
        };
        let head = ["cell", "with", "limited by", "evidence"].map(str::to_owned).to_vec();
        Table { head, rows: self.cells.iter().filter_map(row).collect(), names: 4 }
    }

    /// Where measuring began before a steady state was found.
    pub(super) fn unsteady(&self) -> Table {
        let row = |cell: &CellSummary| Some(vec![cell.cell.to_string(), self.name_of(cell), cell.unsteadiness()?]);
        let head = ["cell", "with", "found"].map(str::to_owned).to_vec();
        Table { head, rows: self.cells.iter().filter_map(row).collect(), names: 3 }
    }

    /// The lines through what syncs take against their rows.
    pub(super) fn lines(&self) -> Table {
        let columns = |estimate: &Estimate, places: usize| {
            let half = estimate.half.map_or("-".to_owned(), |half| format!("{half:.places$}"));
            [format!("{:.places$}", estimate.mean), half]
        };
        let row = |fit: &Fit| {
            let values: Vec<String> = fit.values.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            let numbers = [columns(&fit.sync_ms, 3), columns(&fit.row_ms, 5)].concat();
            [vec![values.join(", ")], numbers, vec![fit.runs.to_string()]].concat()
        };
        let head = ["with", "ms a sync", "± (95 %)", "ms a row", "± (95 %)", "runs"].map(str::to_owned).to_vec();
        Table { head, rows: self.fits.iter().map(row).collect(), names: 1 }
    }

    /// The runs that are in no number of the summary, with their reason.
    pub(super) fn not_counted(&self) -> Table {
        let others = self.runs.iter().filter(|run| run.row.state != "done");
        let row = |run: &Run| {
            let RunRow { cell, repetition, state, detail, operations, .. } = &run.row;
            let why = detail.clone().unwrap_or_else(|| "no more is known".to_owned());
            vec![cell.to_string(), repetition.to_string(), state.clone(), why, operations.to_string()]
        };
        let head = ["cell", "repetition", "state", "why", "operations"].map(str::to_owned).to_vec();
        Table { head, rows: others.map(row).collect(), names: 4 }
    }

    /// The values in which a cell differs from others, or its scenario where there are none.
    pub(super) fn name_of(&self, cell: &CellSummary) -> String {
        named(cell, self.varied.iter().map(String::as_str))
    }
}

/// A cell's values of these keys, or its scenario where there are none.
pub(super) fn named<'k>(cell: &CellSummary, keys: impl Iterator<Item = &'k str>) -> String {
    let values: Vec<String> = keys.map(|key| format!("{key} = {}", cell.value(key))).collect();
    if values.is_empty() { cell.scenario.clone() } else { values.join(", ") }
}

/// Nanoseconds in milliseconds, as `lab show` has them.
pub(super) fn millis(nanos: f64) -> String {
    format!("{:.3}", nanos / 1e6)
}

impl Figure {
    /// What the chart shows, in words, for those who can't see it.
    pub(super) fn described(&self) -> String {
        let Chart { x, y, lines, failed, .. } = &self.chart;
        let lines = lines.iter().map(|line| self.line_described(line));
        let failures = (!failed.is_empty()).then(|| format!("Operations failed in {} seconds.", failed.len()));
        let axes = format!("{} against {}.", y.name, x.name);
        [axes].into_iter().chain(lines).chain(failures).collect::<Vec<_>>().join(" ")
    }

    fn line_described(&self, line: &Line) -> String {
        let Chart { x, y, right, .. } = &self.chart;
        let unit = right.as_ref().filter(|_| line.is_right).unwrap_or(y).unit;
        let points: Vec<_> = line.parts.iter().flatten().collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return format!("{}: nothing.", line.name);
        };
        let at = |point: &super::chart::Point| format!("{} at {}", unit.label(point.y), x.unit.label(point.x));
        let most = points.iter().max_by(|one, other| one.y.total_cmp(&other.y)).unwrap_or(last);
        format!("{}: {} first, {} last, {} at most.", line.name, at(first), at(last), at(most))
    }
}
