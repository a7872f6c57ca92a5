//! A published curve, to be drawn beside what was measured: a table as CSV.

use std::path::Path;

use crate::error::Error;

use super::palette::LINES_MAX;
use super::units::Unit;
use super::view::Table;

/// A table that somebody published: the swept value in its first column, curves in the others. Columns of text say which curve a number
/// belongs to; lines that begin with `#` are none of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The file's name.
    pub(super) name: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Curves to be drawn.
pub(super) struct Shown {
    pub(super) curves: Vec<Curve>,
    /// The largest value of those that are scaled.
    pub(super) scaled_peak: f64,
    /// What is not drawn.
    pub(super) notes: Vec<String>,
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curve {
    pub(super) name: String,
    /// In the order of the swept value.
    pub(super) points: Vec<(f64, f64)>,
    /// Whether it has another unit than operations a second.
    pub(super) is_scaled: bool,
}

impl Published {
    /// Reads a table from its file.
    pub fn read(path: &Path) -> Result<Published, Error> {
        let file = std::fs::File::open(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        let refuse = |why: String| Error::Usage(format!("{} is no table of curves: {why}", path.display()));
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(file);
        let head: Vec<String> = match reader.headers() {
            Ok(head) => head.iter().map(str::to_owned).collect(),
            Err(error) => return Err(refuse(error.to_string())),
        };
        let mut rows = Vec::new();
        for row in reader.records() {
            let row = row.map_err(|error| refuse(error.to_string()))?;
            rows.push(row.iter().map(str::to_owned).collect());
        }
        if head.len() < 2 || rows.is_empty() {
            let found = format!("{} columns and {} rows", head.len(), rows.len());
            return Err(refuse(format!("{found}, expected a head, the swept value and at least one curve")));
        }
        Ok(Published { name, head, rows })
    }

    /// The name of the swept value.
    pub(super) fn along(&self) -> &str {
        &self.head[0]
    }

    /// As it is.
    pub(super) fn table(&self) -> Table {
        let names = (0..self.head.len()).take_while(|column| !self.is_number(*column)).count().max(1);
        Table { head: self.head.clone(), rows: self.rows.clone(), names }
    }

    /// The curves against a swept value of this unit, or why there are none.
    pub(super) fn curves(&self, unit: Unit) -> Result<Shown, String> {
        let refuse = |why: &str| Err(format!("{} is not drawn: its first column, {}, {why}.", self.name, self.along()));
        if !self.is_number(0) {
            return refuse("is no number");
        }
        let Some(factor) = factor(self.along(), unit) else {
            return refuse("is no time: its name would end with _s, _ms or _us");
        };
        let (numbers, texts): (Vec<usize>, Vec<usize>) =
            (1..self.head.len()).partition(|column| self.is_number(*column));
        let mut curves: Vec<Curve> = Vec::new();
        for row in &self.rows {
            for column in &numbers {
                let (Some(x), Some(y)) = (parsed(&row[0]), parsed(&row[*column])) else { continue };
                let words = texts.iter().map(|text| row[*text].as_str()).chain([self.head[*column].as_str()]);
                let name = words.collect::<Vec<_>>().join(" ");
                let is_scaled = !is_rate(&self.head[*column]);
                match curves.iter_mut().find(|curve| curve.name == name) {
                    Some(curve) => curve.points.push((x * factor, y)),
                    None => curves.push(Curve { name, points: vec![(x * factor, y)], is_scaled }),
                }
            }
        }
        let mut notes = Vec::new();
        if curves.len() > LINES_MAX {
            notes.push(format!("{} has {} curves; the first {LINES_MAX} are drawn.", self.name, curves.len()));
            curves.truncate(LINES_MAX);
        }
        for curve in &mut curves {
            curve.points.sort_by(|one, other| one.0.total_cmp(&other.0));
        }
        let scaled = curves.iter().filter(|curve| curve.is_scaled).flat_map(|curve| &curve.points);
        let scaled_peak = scaled.map(|(_, y)| *y).fold(0.0, f64::max);
        Ok(Shown { curves, scaled_peak, notes })
    }

    fn is_number(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().map(|row| row[column].as_str()).filter(|cell| !cell.is_empty()).peekable();
        cells.peek().is_some() && cells.all(|cell| parsed(cell).is_some())
    }
}

fn parsed(cell: &str) -> Option<f64> {
    cell.parse().ok().filter(|number: &f64| number.is_finite())
}

/// What a value of the first column is to be multiplied by.
fn factor(column: &str, unit: Unit) -> Option<f64> {
    if unit != Unit::Time {
        return Some(1.0);
    }
    [("_us", 1e3), ("_ms", 1e6), ("_s", 1e9)].into_iter().find(|(end, _)| column.ends_with(end)).map(|(_, nanos)| nanos)
}

/// Whether a column has operations a second, as we do.
fn is_rate(column: &str) -> bool {
    ["ops_per_s", "operations_per_s", "ops/s", "operations/s"].iter().any(|end| column.ends_with(end))
}
