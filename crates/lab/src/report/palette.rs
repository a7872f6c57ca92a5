//! The colours, light and dark.
//!
//! Each set was searched for the largest least distance (CIELAB) between any two of its colours, as seen with full colour vision and with
//! each of the three kinds of dichromacy (Machado and others, 2009), at no less than 3 to 1 of contrast with the panel (WCAG 2.2, 1.4.11).
//! Lines differ in their markers besides. A plot is written with the light colours; the style sheet puts the dark ones in their place.

use std::fmt::Write as _;

use plotters::style::RGBColor;

/// How many lines a plot has at most: so many can be told apart.
pub(super) const LINES_MAX: usize = 8;

/// A colour, light and dark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ink {
    light: (u8, u8, u8),
    dark: (u8, u8, u8),
}

/// What is behind a plot.
pub(super) const PANEL: Ink = Ink { light: (0xff, 0xff, 0xff), dark: (0x17, 0x1a, 0x1e) };
/// Text and axes.
pub(super) const TEXT: Ink = Ink { light: (0x22, 0x26, 0x2b), dark: (0xe2, 0xe5, 0xe9) };
/// The lines of the grid.
pub(super) const GRID: Ink = Ink { light: (0xdd, 0xdf, 0xe2), dark: (0x35, 0x3a, 0x41) };
/// Where operations failed.
pub(super) const FAILED: Ink = Ink { light: (0xb8, 0x00, 0x20), dark: (0xff, 0x8a, 0x80) };

const LINES: [Ink; LINES_MAX] = [
    Ink { light: (0x00, 0x32, 0xf3), dark: (0x2d, 0x6f, 0xff) },
    Ink { light: (0xc7, 0x82, 0x00), dark: (0xf2, 0xdc, 0x5b) },
    Ink { light: (0x29, 0x83, 0x6b), dark: (0x11, 0xf6, 0xa6) },
    Ink { light: (0xc2, 0x2f, 0xa3), dark: (0xe8, 0xa0, 0xce) },
    Ink { light: (0x11, 0x95, 0xff), dark: (0xc8, 0xa2, 0xff) },
    Ink { light: (0x88, 0x45, 0x06), dark: (0xf5, 0x67, 0x3a) },
    Ink { light: (0x4e, 0x16, 0x53), dark: (0x79, 0x8d, 0x76) },
    Ink { light: (0x00, 0x2b, 0x14), dark: (0xff, 0xff, 0xfe) },
];

/// The colour of a line; after the last comes the first again.
pub(super) fn line(number: usize) -> Ink {
    LINES[number % LINES_MAX]
}

impl Ink {
    /// The light one, as text.
    pub(super) fn light(self) -> String {
        hex(self.light)
    }

    /// As plots are written.
    pub(super) fn color(self) -> RGBColor {
        let (red, green, blue) = self.light;
        RGBColor(red, green, blue)
    }
}

fn hex((red, green, blue): (u8, u8, u8)) -> String {
    // As plotters writes colours: rules are found by the text of the attribute.
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// Rules that put the dark colours in the place of the light ones, on screens that are dark.
pub(super) fn rules() -> String {
    let mut rules = String::from("@media screen and (prefers-color-scheme: dark) {\n");
    for ink in LINES.into_iter().chain([TEXT, GRID, FAILED]) {
        let (light, dark) = (hex(ink.light), hex(ink.dark));
        for what in ["stroke", "fill"] {
            let _ = writeln!(rules, "  svg [{what}=\"{light}\"] {{ {what}: {dark} }}");
        }
    }
    rules.push_str("}\n");
    rules
}

/// The same where there is no page around a plot: of its panel and its words too.
pub(super) fn rules_of_a_picture() -> String {
    let own = format!("  .panel {{ fill: {} }}\n  .word {{ fill: {} }}\n}}\n", hex(PANEL.dark), hex(TEXT.dark));
    rules().trim_end_matches("}\n").to_owned() + &own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance((red, green, blue): (u8, u8, u8)) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    fn contrast(one: (u8, u8, u8), other: (u8, u8, u8)) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn every_colour_stands_out_from_the_panel() {
        let css = include_str!("report.css");
        assert!(css.contains(&hex(PANEL.light).to_lowercase()) && css.contains(&hex(PANEL.dark).to_lowercase()));
        for (ink, least) in LINES.into_iter().map(|ink| (ink, 3.0)).chain([(TEXT, 7.0), (FAILED, 4.5)]) {
            for (color, panel) in [(ink.light, PANEL.light), (ink.dark, PANEL.dark)] {
                assert!(contrast(color, panel) >= least, "{}: {}", hex(color), contrast(color, panel));
            }
        }
    }

    #[test]
    fn no_colour_stands_for_two() {
        let all: Vec<_> = LINES.into_iter().chain([TEXT, GRID, FAILED]).map(|ink| ink.light).collect();
        for (place, color) in all.iter().enumerate() {
            assert!(!all[place + 1..].contains(color), "{color:?}");
        }
    }
}
