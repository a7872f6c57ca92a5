//! Charts: lines on two axes, or three, written as SVG.
//!
//! A chart is drawn on twice as many points as it has on a page, since the library draws on whole ones.

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext, DualCoordChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{EmptyElement, PathElement, Polygon};
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::{Color as _, FontDesc, FontFamily, FontStyle, IntoTextStyle, ShapeStyle, TextStyle};

use super::axis::Axis;
use super::palette::{self, Ink};
use super::units::printable;

pub(super) const WIDTH: u32 = 960;
pub(super) const HEIGHT: u32 = 600;
/// The size of text; the library writes it divided by 1.24.
const FONT: f64 = 36.0;
/// About how wide a letter is.
const LETTER: u32 = 17;
/// The letters of the longest name that an axis may have.
const NAME_MAX: usize = 48;
/// How many markers a line has about, if it has more points.
const MARKERS: usize = 8;

type Failure = DrawingAreaErrorKind<std::io::Error>;
type Drawn = Result<(), Failure>;
type Plane<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;
type TwoPlanes<'a> = DualCoordChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>, Cartesian2d<Axis, Axis>>;

/// A point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// Half of its interval.
    pub(super) half: Option<f64>,
}

impl Point {
    /// Without an interval.
    pub(super) fn new(x: f64, y: f64) -> Point {
        Point { x, y, half: None }
    }
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Its colour and its marker.
    pub(super) number: usize,
    /// With hollow markers: it is published, or a level that belongs to no swept value.
    pub(super) is_dashed: bool,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) look: Look,
    /// Joined within each part, not from one to the next.
    pub(super) parts: Vec<Vec<Point>>,
    /// Whether the axis to the right is its own.
    pub(super) is_right: bool,
}

/// Lines on axes.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) right: Option<Axis>,
    pub(super) lines: Vec<Line>,
    /// Where operations failed.
    pub(super) failed: Vec<(f64, f64)>,
}

impl Chart {
    /// What an `svg` element holds, and the text of its attribute `viewBox`.
    pub(super) fn svg(&self) -> (String, String) {
        let text = svg((WIDTH, HEIGHT), |area| self.draw(area));
        (text, format!("0 0 {WIDTH} {HEIGHT}"))
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        let beside = |axis: &Axis| axis.letters() as u32 * LETTER + 80;
        let mut builder = ChartBuilder::on(area);
        builder.margin_top(24).margin_left(8).x_label_area_size(100).y_label_area_size(beside(&self.y));
        match &self.right {
            Some(right) => builder.margin_right(8).right_y_label_area_size(beside(right)),
            None => builder.margin_right(self.x.letters() as u32 * LETTER / 2 + 16),
        };
        let mut plane: Plane<'_> = builder.build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let Some(right) = &self.right else {
            self.draw_axes(&mut plane)?;
            return self.draw_lines(&mut plane);
        };
        // The area to the right goes to the second plane; before that it would be labelled for the first.
        let mut planes: TwoPlanes<'_> = plane.set_secondary_coord(self.x.clone(), right.clone());
        self.draw_axes(&mut planes)?;
        planes
            .configure_secondary_axes()
            .axis_style(shape(palette::TEXT, 2))
            .label_style(style())
            .axis_desc_style(style())
            .y_desc(named(right))
            .set_all_tick_mark_size(10)
            .draw()?;
        for line in self.lines.iter().filter(|line| line.is_right) {
            line.draw(|points, style| {
                planes.draw_secondary_series(DashedLineSeries::new(points, 16, 10, style)).map(|_| ())
            })?;
            for at in line.marked() {
                let area = planes.secondary_plotting_area();
                marker(line.look, |outline, fill| stamp(area, at, outline, fill, line.look.ink()))?;
            }
        }
        self.draw_lines(&mut planes)
    }

    fn draw_axes(&self, plane: &mut Plane<'_>) -> Drawn {
        plane
            .configure_mesh()
            .bold_line_style(shape(palette::GRID, 2))
            .axis_style(shape(palette::TEXT, 2))
            .label_style(style())
            .axis_desc_style(style())
            .x_desc(named(&self.x))
            .y_desc(named(&self.y))
            .set_all_tick_mark_size(10)
            .draw()
    }

    /// Those of the axis to the left.
    fn draw_lines(&self, plane: &mut Plane<'_>) -> Drawn {
        for line in self.lines.iter().filter(|line| !line.is_right) {
            line.draw(|points, style| {
                if line.look.is_dashed {
                    plane.draw_series(DashedLineSeries::new(points, 16, 10, style)).map(|_| ())
                } else {
                    plane.draw_series(LineSeries::new(points, style)).map(|_| ())
                }
            })?;
            line.parts
                .iter()
                .flatten()
                .try_for_each(|point| interval(plane.plotting_area(), point, line.look.ink()))?;
            for at in line.marked() {
                let area = plane.plotting_area();
                marker(line.look, |outline, fill| stamp(area, at, outline, fill, line.look.ink()))?;
            }
        }
        for at in &self.failed {
            for outline in [[(-13, -13), (13, 13)], [(-13, 13), (13, -13)]] {
                stamp(plane.plotting_area(), *at, &outline, false, palette::FAILED)?;
            }
        }
        Ok(())
    }
}

impl Look {
    fn ink(self) -> Ink {
        palette::line(self.number)
    }

    /// A short piece of a line that looks so, for a legend.
    pub(super) fn swatch(self) -> String {
        svg((120, 40), |area| {
            let ends = if self.is_dashed { vec![(4, 36), (84, 116)] } else { vec![(4, 116)] };
            for (from, to) in ends {
                area.draw(&PathElement::new(vec![(from, 20), (to, 20)], shape(self.ink(), 4)))?;
            }
            marker(self, |outline, is_filled| {
                let outline: Vec<_> = outline.iter().map(|(x, y)| (60 + x, 20 + y)).collect();
                if is_filled {
                    area.draw(&Polygon::new(outline, shape(self.ink(), 4)))
                } else {
                    area.draw(&PathElement::new(outline, shape(self.ink(), 4)))
                }
            })
        })
    }
}

/// The cross that says where operations failed, for a legend.
pub(super) fn swatch_of_failures() -> String {
    svg((120, 40), |area| {
        area.draw(&PathElement::new(vec![(51, 11), (69, 29)], shape(palette::FAILED, 4)))?;
        area.draw(&PathElement::new(vec![(51, 29), (69, 11)], shape(palette::FAILED, 4)))
    })
}

impl Line {
    fn draw(&self, mut join: impl FnMut(Vec<(f64, f64)>, ShapeStyle) -> Drawn) -> Drawn {
        for part in self.parts.iter().filter(|part| part.len() > 1) {
            join(part.iter().map(|point| (point.x, point.y)).collect(), shape(self.look.ink(), 4))?;
        }
        Ok(())
    }

    /// Where its markers are: at each point, or at some of many, not at the same ones as other lines'. What is joined to nothing has one.
    fn marked(&self) -> Vec<(f64, f64)> {
        let points: Vec<Point> = self.parts.iter().flatten().copied().collect();
        let every = (points.len() / MARKERS).max(1);
        let shift = self.look.number * every / palette::LINES_MAX;
        let some = points.iter().skip(shift).step_by(every);
        let alone = self.parts.iter().filter(|part| part.len() == 1).flatten();
        some.chain(alone).map(|point| (point.x, point.y)).collect()
    }
}

/// The outlines of a look's marker, relative to its middle, and whether they are filled.
fn marker(look: Look, mut draw: impl FnMut(&[(i32, i32)], bool) -> Drawn) -> Drawn {
    let outlines: &[&[(i32, i32)]] = match look.number % palette::LINES_MAX {
        0 => &[&[(9, 0), (6, 6), (0, 9), (-6, 6), (-9, 0), (-6, -6), (0, -9), (6, -6), (9, 0)]],
        1 => &[&[(-8, -8), (8, -8), (8, 8), (-8, 8), (-8, -8)]],
        2 => &[&[(0, -11), (10, 8), (-10, 8), (0, -11)]],
        3 => &[&[(0, -12), (12, 0), (0, 12), (-12, 0), (0, -12)]],
        4 => &[&[(0, 11), (10, -8), (-10, -8), (0, 11)]],
        5 => &[&[(-9, -9), (9, 9)], &[(-9, 9), (9, -9)]],
        6 => &[&[(-12, 0), (12, 0)], &[(0, -12), (0, 12)]],
        _ => &[&[(-12, -5), (12, -5), (12, 5), (-12, 5), (-12, -5)]],
    };
    outlines.iter().try_for_each(|outline| draw(outline, outline.len() > 2 && !look.is_dashed))
}

/// A bar from the lower to the upper end; what is beyond the axis ends there.
fn interval(area: &DrawingArea<SVGBackend<'_>, Cartesian2d<Axis, Axis>>, point: &Point, ink: Ink) -> Drawn {
    let Some(half) = point.half else { return Ok(()) };
    let (low, high) = ((point.x, point.y - half), (point.x, point.y + half));
    area.draw(&PathElement::new(vec![low, high], shape(ink, 3)))?;
    for end in [low, high] {
        area.draw(&(EmptyElement::at(end) + PathElement::new(vec![(-9, 0), (9, 0)], shape(ink, 3))))?;
    }
    Ok(())
}

/// What is along an axis, as far as there is room.
fn named(axis: &Axis) -> String {
    let name = printable(&axis.name);
    if name.chars().count() <= NAME_MAX { name } else { name.chars().take(NAME_MAX - 1).chain(['…']).collect() }
}

fn stamp(
    area: &DrawingArea<SVGBackend<'_>, Cartesian2d<Axis, Axis>>,
    at: (f64, f64),
    outline: &[(i32, i32)],
    is_filled: bool,
    ink: Ink,
) -> Drawn {
    if is_filled {
        area.draw(&(EmptyElement::at(at) + Polygon::new(outline.to_vec(), shape(ink, 4))))
    } else {
        area.draw(&(EmptyElement::at(at) + PathElement::new(outline.to_vec(), shape(ink, 4))))
    }
}

fn shape(ink: Ink, width: u32) -> ShapeStyle {
    ShapeStyle { color: ink.color().into(), filled: true, stroke_width: width }
}

fn style() -> TextStyle<'static> {
    let font = FontDesc::new(FontFamily::SansSerif, FONT, FontStyle::Normal);
    let style = font.into_text_style(&(WIDTH, HEIGHT));
    TextStyle { color: palette::TEXT.color().to_backend_color(), ..style }
}

/// What is within the `svg` element of a drawing.
fn svg(size: (u32, u32), draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn) -> String {
    let mut text = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&area).and_then(|()| area.present())
    };
    // It is written to memory, and each chart has room for its axes.
    drawn.expect("a drawing in memory can't fail");
    let inner = text.trim().strip_suffix("</svg>").and_then(|text| text.split_once('>'));
    inner.map_or_else(String::new, |(_, inner)| inner.trim().to_owned())
}
