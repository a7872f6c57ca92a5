//! Numbers as axes and tables show them.

use crate::results::thousands;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Things, or what has no unit.
    Number,
    /// Nanoseconds.
    Time,
    /// How many nines: [`super::axis::along`].
    Nines,
}

impl Unit {
    /// To three digits, with its unit.
    pub(super) fn label(self, value: f64) -> String {
        match self {
            Unit::Number => number(value),
            Unit::Time => time(value),
            Unit::Nines => percentile(value),
        }
    }
}

/// Text without the characters that XML can't have.
pub(super) fn printable(text: &str) -> String {
    let is_none = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    text.replace(|letter| is_none(letter) || matches!(letter, '\u{fffe}' | '\u{ffff}'), "\u{fffd}")
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e9 => format!("{} G", digits(value / 1e9)),
        size if size >= 1e6 => format!("{} M", digits(value / 1e6)),
        size if size >= 1e3 => format!("{}{}", if value < 0.0 { "-" } else { "" }, thousands(size.round() as u64)),
        _ => digits(value),
    }
}

fn time(nanos: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let unit = units.into_iter().find(|(size, _)| nanos.abs() >= *size * 0.9995);
    match unit {
        _ if nanos == 0.0 => "0".to_owned(),
        Some((size, name)) => format!("{} {name}", digits(nanos / size)),
        None => format!("{} ns", digits(nanos)),
    }
}

fn percentile(nines: f64) -> String {
    let text = format!("{:.4}", (1.0 - 10f64.powf(-nines)) * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Three digits, without zeros at their end.
fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let places = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_fits() {
        let times = [0.0, 5.0, 250e3, 1e6, 1.5e6, 123_456_789.0, 999_999.9, 1e9, 90e9].map(time);
        assert_eq!(times, ["0", "5 ns", "250 µs", "1 ms", "1.5 ms", "123 ms", "1 ms", "1 s", "90 s"]);
    }

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [0.0, 0.05, 2.5, 12.34, 999.0, 1000.0, 12_345.6, 2e6, -1500.0].map(number);
        assert_eq!(numbers, ["0", "0.05", "2.5", "12.3", "999", "1,000", "12,346", "2 M", "-1,500"]);
    }
}
