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
/// Letters of a name that have room in a line of the legend.
const LETTERS: usize = 50;

/// The document.
pub(super) fn picture(figure: &Figure) -> String {
    let (plot, _) = figure.chart.svg();
    let legend = legend(figure);
    let (top, below) = (LINE + MARGIN, LINE + MARGIN + HEIGHT);
    let rows = legend.iter().map(|(_, name)| name.len() as u32).sum::<u32>();
    let height = below + rows * LINE + MARGIN;
    let title = escape(&figure.title);
    let mut entries = String::new();
    let mut y = below;
    for (swatch, name) in &legend {
        let _ = writeln!(
            entries,
            "<svg x=\"{MARGIN}\" y=\"{y}\" width=\"120\" height=\"40\" viewBox=\"0 0 120 40\">{swatch}</svg>"
        );
        for row in name {
            let _ = writeln!(entries, "{}", text(MARGIN + 140, y + 30, row));
            y += LINE;
        }
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

/// What each line looks like, and its name, in rows.
fn legend(figure: &Figure) -> Vec<(String, Vec<String>)> {
    let lines = figure.chart.lines.iter().map(|line| (line.look.swatch(), rows_of(&line.name)));
    let failed =
        (!figure.chart.failed.is_empty()).then(|| (chart::swatch_of_failures(), vec!["operations failed".to_owned()]));
    lines.chain(failed).collect()
}

/// The words of a name in rows that have room; a word that has none stands in one of its own.
fn rows_of(name: &str) -> Vec<String> {
    let mut rows = vec![String::new()];
    for word in name.replace("scenario.", "").split(' ') {
        let row = rows.len() - 1;
        if rows[row].is_empty() {
            rows[row].push_str(word);
        } else if rows[row].chars().count() + 1 + word.chars().count() <= LETTERS {
            rows[row].push(' ');
            rows[row].push_str(word);
        } else {
            rows.push(word.to_owned());
        }
    }
    rows
}

pub(super) fn text(x: u32, y: u32, words: &str) -> String {
    format!("<text class=\"word\" x=\"{x}\" y=\"{y}\">{}</text>", escape(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_stand_in_rows() {
        let name = "scenario.payload_bytes = 30000, scenario.compression = 5, target.url = gateway:postgres://me@localhost/scratch";
        let rows = rows_of(name);
        assert!(rows.iter().all(|row| row.chars().count() <= LETTERS), "{rows:?}");
        assert_eq!(rows.join(" "), name.replace("scenario.", ""));
        assert_eq!((rows_of("one two"), rows_of("")), (vec!["one two".to_owned()], vec![String::new()]));
        assert_eq!(rows_of(&format!("a {} b", "x".repeat(60))).len(), 3);
    }
}
