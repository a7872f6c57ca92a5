//! A plot as a file of its own: one SVG that needs no page, with its title above and its legend below.

use std::fmt::Write as _;

use super::chart::{self, HEIGHT, WIDTH};
use super::html::escape;
use super::palette;
use super::view::Figure;

/// The height of a line of text.
const LINE: u32 = 52;
/// Left of everything.
const MARGIN: u32 = 24;

/// The document.
pub(super) fn picture(figure: &Figure) -> String {
    let (plot, _) = figure.chart.svg();
    let legend = legend(figure);
    let (top, below) = (LINE + MARGIN, LINE + MARGIN + HEIGHT);
    let height = below + legend.len() as u32 * LINE + MARGIN;
    let title = escape(&figure.title);
    let mut entries = String::new();
    for (place, (swatch, name)) in legend.iter().enumerate() {
        let y = below + place as u32 * LINE;
        let _ = writeln!(
            entries,
            "<svg x=\"{MARGIN}\" y=\"{y}\" width=\"120\" height=\"40\" viewBox=\"0 0 120 40\">{swatch}</svg>\n{}",
            text(MARGIN + 140, y + 30, name)
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{title}</title>\n\
         <desc>{}</desc>\n<style>\n.panel {{ fill: {} }}\n.word {{ font: 30px sans-serif; fill: {} }}\n{}</style>\n\
         <rect class=\"panel\" width=\"{WIDTH}\" height=\"{height}\"/>\n{}\n\
         <svg y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">{plot}</svg>\n{entries}</svg>\n",
        escape(&figure.described()),
        palette::PANEL.light(),
        palette::TEXT.light(),
        palette::rules_of_a_picture(),
        text(MARGIN, LINE, &figure.title),
    )
}

/// What each line looks like, and its name.
fn legend(figure: &Figure) -> Vec<(String, String)> {
    let lines = figure.chart.lines.iter().map(|line| (line.look.swatch(), line.name.clone()));
    let failed =
        (!figure.chart.failed.is_empty()).then(|| (chart::swatch_of_failures(), "operations failed".to_owned()));
    lines.chain(failed).collect()
}

fn text(x: u32, y: u32, words: &str) -> String {
    format!("<text class=\"word\" x=\"{x}\" y=\"{y}\">{}</text>", escape(words))
}
