//! Stacked bars: what several ways to the same end take, part by part.

use std::fmt::Write as _;

use super::chart::WIDTH;
use super::html::escape;
use super::palette;
use super::picture::text;

/// The height of a line of text, and of a bar.
const LINE: u32 = 52;
const BAR: u32 = 60;
/// Around everything, and to the right of a bar, for its total.
const MARGIN: u32 = 24;
const TOTAL: u32 = 200;

/// Bars across, from the same beginning.
///
/// ```
/// use headwater_lab::report::Bars;
///
/// let bars = vec![("one by one".to_owned(), vec![3.0, 1.5]), ("together".to_owned(), vec![1.0, 1.5])];
/// let bars = Bars { title: "Ways".into(), unit: "s".into(), parts: vec!["read".into(), "write".into()], bars };
/// assert!(bars.svg().starts_with("<svg"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Above them.
    pub title: String,
    /// Behind each total.
    pub unit: String,
    /// What a bar consists of: eight can be told apart, further ones have the colours of the first.
    pub parts: Vec<String>,
    /// Each with its name and a length for each part.
    pub bars: Vec<(String, Vec<f64>)>,
}

impl Bars {
    /// The document: an SVG that needs no page.
    pub fn svg(&self) -> String {
        let longest = self.bars.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(f64::MIN_POSITIVE, f64::max);
        let scale = f64::from(WIDTH - 2 * MARGIN - TOTAL) / longest;
        let (mut drawn, mut y) = (String::new(), LINE + MARGIN);
        for (name, parts) in &self.bars {
            let _ = writeln!(drawn, "{}", text(MARGIN, y + LINE - 16, name));
            y += LINE;
            let mut x = f64::from(MARGIN);
            for (number, part) in parts.iter().enumerate() {
                let _ = writeln!(drawn, "{}", block(number, (x, y), (part * scale, BAR)));
                x += part * scale;
            }
            let total = format!("{:.2} {}", parts.iter().sum::<f64>(), self.unit);
            let _ = writeln!(drawn, "{}", text(x as u32 + 16, y + 42, &total));
            y += BAR + MARGIN;
        }
        for (number, name) in self.parts.iter().enumerate() {
            let _ = writeln!(drawn, "{}", block(number, (f64::from(MARGIN), y), (80.0, 36)));
            let _ = writeln!(drawn, "{}", text(MARGIN + 100, y + 30, name));
            y += LINE;
        }
        let (height, title) = (y + MARGIN, escape(&self.title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{title}</title>\n\
             <style>\n.panel {{ fill: {} }}\n.word {{ font: 30px sans-serif; fill: {} }}\n</style>\n\
             <rect class=\"panel\" width=\"{WIDTH}\" height=\"{height}\"/>\n{}\n{drawn}</svg>\n",
            palette::PANEL.light(),
            palette::TEXT.light(),
            text(MARGIN, LINE, &self.title),
        )
    }
}

fn block(number: usize, (x, y): (f64, u32), (width, height): (f64, u32)) -> String {
    let color = palette::line(number).light();
    format!("<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{color}\"/>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_and_the_longest_bar_has_the_width() {
        let bars = vec![("a < b".to_owned(), vec![1.0, 3.0]), ("short".to_owned(), vec![1.0, 0.0])];
        let parts = vec!["read".to_owned(), "write".to_owned()];
        let svg = Bars { title: "Ways".into(), unit: "s".into(), parts, bars }.svg();
        let room = f64::from(WIDTH - 2 * MARGIN - TOTAL);
        let second = format!("x=\"{:.1}\" y=\"128\" width=\"{:.1}\"", f64::from(MARGIN) + room / 4.0, room * 3.0 / 4.0);
        assert!(svg.contains(&second), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("4.00 s") && svg.contains("1.00 s"), "{svg}");
        assert_eq!(svg.matches("<rect x=").count(), 6, "four parts and two in the legend");
    }
}
