//! A plot of what is no campaign: curves by name, drawn as those of the report are.

use super::axis::Axis;
use super::chart::{Chart, Line, Look, Point};
use super::palette::LINES_MAX;
use super::picture::picture;
use super::units::Unit;
use super::view::{Figure, Table};

/// Curves on two axes, which begin at 0; one whose values are far apart is logarithmic.
///
/// ```
/// use headwater_lab::report::{Curve, Plot};
///
/// let measured = Curve { name: "skips 0".into(), points: vec![(1.0, 5.0), (6.0, 4.0)], is_published: false };
/// let plot = Plot { title: "Reads".into(), x: "users".into(), y: "reads/s".into(), curves: vec![measured] };
/// assert!(plot.svg().starts_with("<svg"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// What is along the axes.
    pub x: String,
    /// Upwards.
    pub y: String,
    /// At most eight: so many can be told apart. Others are left out.
    pub curves: Vec<Curve>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// In the legend.
    pub name: String,
    /// In their order along the axis.
    pub points: Vec<(f64, f64)>,
    /// Whether somebody else has published it: with hollow markers.
    pub is_published: bool,
}

impl Plot {
    /// The document: an SVG that needs no page.
    pub fn svg(&self) -> String {
        let curves = self.curves.iter().take(LINES_MAX).enumerate();
        let lines: Vec<Line> = curves
            .map(|(number, curve)| Line {
                name: curve.name.clone(),
                look: Look { number, is_dashed: curve.is_published },
                parts: vec![curve.points.iter().map(|(x, y)| Point::new(*x, *y)).collect()],
                is_right: false,
            })
            .collect();
        let points = || lines.iter().flat_map(|line| &line.parts).flatten();
        let x = Axis::measured(&self.x, Unit::Number, points().map(|point| point.x).chain([0.0]));
        let y = Axis::measured(&self.y, Unit::Number, points().map(|point| point.y).chain([0.0]));
        let chart = Chart { x, y, right: None, lines, failed: Vec::new() };
        let table = Table { head: Vec::new(), rows: Vec::new(), names: 0 };
        picture(&Figure { id: String::new(), title: self.title.clone(), notes: Vec::new(), chart, table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_named_and_more_than_can_be_told_apart_are_left_out() {
        let curve = |number: u32| Curve {
            name: format!("curve {number}"),
            points: vec![(1.0, 2.0), (3.0, f64::from(number))],
            is_published: number == 1,
        };
        let plot = Plot {
            title: "A <title>".into(),
            x: "users".into(),
            y: "reads".into(),
            curves: (0..9).map(curve).collect(),
        };
        let svg = plot.svg();
        assert!(svg.contains("A &lt;title&gt;") && svg.contains("curve 7") && !svg.contains("curve 8"), "{svg}");
        assert_eq!(svg, plot.svg(), "the same curves give the same bytes");
    }
}
