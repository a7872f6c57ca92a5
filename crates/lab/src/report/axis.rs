//! Axes: where a value lies, and which ticks there are.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::units::Unit;

/// About how many ticks an axis has.
const TICKS: f64 = 5.0;
/// From this ratio of the largest to the least on, an axis is logarithmic.
const WIDE: f64 = 30.0;
/// The same for values that were chosen: who doubles them wants them at equal distances.
const WIDE_CHOSEN: f64 = 8.0;
/// How wide a letter of a label is, as a part of the axis.
const LETTER: f64 = 0.022;
/// The same where another axis to the right may take its room.
const LETTER_BESIDE: f64 = 0.031;

/// An axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// What is along it.
    pub(super) name: String,
    /// Of its values.
    pub(super) unit: Unit,
    /// At its beginning; above 0 where it is logarithmic.
    pub(super) low: f64,
    /// At its end.
    pub(super) high: f64,
    is_logarithmic: bool,
    /// Values with their labels.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Of what was measured: from 0, or logarithmic where values are far apart; ticks are 1, 2 or 5 of some power of ten apart.
    pub(super) fn measured(name: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Axis {
        Axis::with_ends(name, unit, values, std::iter::empty())
    }

    /// The same with room for the ends of intervals. They may be far from the values, and don't make an axis logarithmic.
    pub(super) fn with_ends(
        name: &str,
        unit: Unit,
        values: impl Iterator<Item = f64>,
        ends: impl Iterator<Item = f64>,
    ) -> Axis {
        let (least, most) = extent(values);
        let (low, high) = extent(ends.filter(|end| *end > 0.0).chain([least, most]));
        if least > 0.0 && most / least >= WIDE {
            return Axis::logarithmic(name, unit, low.max(least / WIDE), high);
        }
        let most = high;
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most / TICKS);
        let count = (most / step - 1e-9).ceil().max(1.0) as usize;
        let ticks = (0..=count).map(|place| place as f64 * step);
        let ticks = ticks.map(|value| (value, unit.label(value))).collect();
        Axis { name: name.to_owned(), unit, low: 0.0, high: count as f64 * step, is_logarithmic: false, ticks }
    }

    /// From 1, 2 or 5 times a power of ten to another; of the ticks between, the powers alone where there are many.
    fn logarithmic(name: &str, unit: Unit, least: f64, most: f64) -> Axis {
        // Numbers have no more powers of ten than that.
        let power = |of: f64| of.log10().clamp(-330.0, 330.0);
        let (from, to) = (power(least).floor() as i32, power(most).ceil() as i32);
        let round: Vec<f64> =
            (from..=to).flat_map(|power| [1.0, 2.0, 5.0].map(|one| one * 10f64.powi(power))).collect();
        let low = round.iter().copied().filter(|tick| *tick <= least).fold(least.min(round[0]), f64::max);
        let high = round.iter().copied().filter(|tick| *tick >= most).fold(f64::INFINITY, f64::min);
        let high = if high.is_finite() { high } else { most };
        let every = if high / low <= 400.0 { 1 } else { 3 * ((to - from) as usize / 8 + 1) };
        let ticks = round.into_iter().step_by(every).filter(|tick| (low..=high).contains(tick));
        let ticks = ticks.map(|value| (value, unit.label(value))).collect();
        Axis { name: name.to_owned(), unit, low, high, is_logarithmic: true, ticks }
    }

    /// Of values that were chosen: the ticks are they, as far as there is room.
    pub(super) fn chosen(name: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Axis {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (least, most) = extent(values.iter().copied());
        let is_logarithmic = least > 0.0 && most / least >= WIDE_CHOSEN;
        // Some room on both sides, for markers and the ends of intervals.
        let (low, high) = match (is_logarithmic, most > least) {
            (true, _) => (least / (most / least).powf(0.04), most * (most / least).powf(0.04)),
            (false, true) => (least - (most - least) * 0.04, most + (most - least) * 0.04),
            (false, false) => (least - least.abs().max(1.0) * 0.5, most + most.abs().max(1.0) * 0.5),
        };
        let mut axis = Axis { name: name.to_owned(), unit, low, high, is_logarithmic, ticks: Vec::new() };
        axis.ticks = axis.roomy(values.into_iter().map(|value| (value, unit.label(value))).collect(), LETTER_BESIDE);
        axis
    }

    /// The axis on the other side for values that are so many times as large, with round ticks of its own.
    pub(super) fn scaled(&self, name: &str, factor: f64) -> Axis {
        let (low, high) = (self.low * factor, self.high * factor);
        let ticks = if self.is_logarithmic {
            Axis::logarithmic(name, Unit::Number, low, high).ticks
        } else {
            Axis::measured(name, Unit::Number, [high].into_iter()).ticks
        };
        let ticks = ticks.into_iter().filter(|(tick, _)| (low..=high * 1.000_001).contains(tick)).collect();
        Axis { name: name.to_owned(), unit: Unit::Number, low, high, ticks, ..*self }
    }

    /// Of percentiles, as far as so many operations tell: [`along`] says where one lies.
    pub(super) fn percentiles(operations: u64) -> Axis {
        let end = (operations.max(10) as f64).log10();
        let nines = (0..=end.floor() as usize).map(|nines| match nines {
            0 => "0".to_owned(),
            1 => "90".to_owned(),
            2 => "99".to_owned(),
            _ => format!("99.{}", "9".repeat(nines - 2)),
        });
        let mut ticks: Vec<(f64, String)> = nines.enumerate().map(|(nines, label)| (nines as f64, label)).collect();
        ticks.insert(1, (along(0.5), "50".to_owned()));
        let name = "percentile".to_owned();
        let mut axis = Axis { name, unit: Unit::Nines, low: 0.0, high: end, is_logarithmic: false, ticks: Vec::new() };
        axis.ticks = axis.roomy(ticks, LETTER);
        axis
    }

    /// The ticks for which there is room, from the first on; the last is kept rather than the one before.
    fn roomy(&self, ticks: Vec<(f64, String)>, letter: f64) -> Vec<(f64, String)> {
        let is_apart = |one: &(f64, String), other: &(f64, String)| {
            let letters = (one.1.chars().count() + other.1.chars().count()) as f64 / 2.0 + 0.5;
            (self.place(other.0) - self.place(one.0)).abs() >= letters * letter
        };
        let last = ticks.last().cloned();
        let mut kept: Vec<(f64, String)> = Vec::new();
        for tick in ticks {
            if kept.last().is_none_or(|before| is_apart(before, &tick)) {
                kept.push(tick);
            }
        }
        if let Some(last) = last.filter(|last| kept.last().is_some_and(|kept| kept.0 < last.0)) {
            if kept.len() > 1 {
                kept.pop();
            }
            kept.push(last);
        }
        kept
    }

    /// Where a value lies, from 0 to 1; at an end where it is beyond.
    pub(super) fn place(&self, value: f64) -> f64 {
        let of = |value: f64| if self.is_logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let (low, high) = (of(self.low), of(self.high));
        if high > low { ((of(value) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 }
    }

    /// The label of a tick.
    pub(super) fn label(&self, value: f64) -> String {
        self.ticks
            .iter()
            .find(|(tick, _)| tick.total_cmp(&value).is_eq())
            .map_or_else(String::new, |(_, label)| label.clone())
    }

    /// The letters of the longest label.
    pub(super) fn letters(&self) -> usize {
        self.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(1)
    }
}

/// Where a percentile, as a part of 1, lies on the axis of percentiles: each further nine is as far away as the one before, as the plots of
/// HdrHistogram have it.
pub(super) fn along(part: f64) -> f64 {
    -(1.0 - part).log10()
}

/// The least and the largest; 0 and 0 of none.
fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values = values.filter(|value| value.is_finite());
    let (least, most) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
    if least <= most { (least, most) } else { (0.0, 0.0) }
}

/// The least of 1, 2 and 5 times a power of ten that is as much.
fn step(at_least: f64) -> f64 {
    let power = 10f64.powf(at_least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|one| one * power)
        .find(|step| *step >= at_least * 0.999_999)
        .unwrap_or(10.0 * power)
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.place(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.label(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn measured_values_have_round_ticks() {
        let axis = Axis::measured("", Unit::Number, [830.0, 412.0].into_iter());
        assert_eq!(labels(&axis), ["0", "200", "400", "600", "800", "1,000"]);
        let axis = Axis::measured("", Unit::Time, [1.3e6, 0.9e6].into_iter());
        assert_eq!(labels(&axis), ["0", "500 µs", "1 ms", "1.5 ms"]);
        let axis = Axis::measured("", Unit::Time, [80e3, 4e6].into_iter());
        assert_eq!(labels(&axis), ["50 µs", "100 µs", "200 µs", "500 µs", "1 ms", "2 ms", "5 ms"]);
        assert_eq!(labels(&Axis::measured("", Unit::Number, [].into_iter())), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    }

    #[test]
    fn every_value_is_on_its_axis() {
        for values in [vec![3.0], vec![0.0], vec![0.001, 77.0], vec![1.0, 1e9], vec![0.0, 1e12], vec![999.0, 1000.0]] {
            for axis in [
                Axis::measured("", Unit::Number, values.iter().copied()),
                Axis::chosen("", Unit::Number, values.iter().copied()),
            ] {
                for value in &values {
                    assert!(axis.low <= *value && *value <= axis.high, "{value} {axis:?}");
                }
                assert!(axis.low < axis.high && (1..=12).contains(&axis.ticks.len()), "{axis:?}");
            }
        }
    }

    #[test]
    fn chosen_values_are_the_ticks_as_far_as_there_is_room() {
        let axis = Axis::chosen("", Unit::Number, [1.0, 2.0, 4.0, 8.0, 16.0].into_iter());
        assert_eq!(labels(&axis), ["1", "2", "4", "8", "16"]);
        assert!((axis.place(4.0) - 0.5).abs() < 1e-9, "doubled values are at equal distances");
        let axis = Axis::chosen("", Unit::Number, (1..=100).map(f64::from));
        assert!(axis.ticks.len() < 20 && labels(&axis).contains(&"1") && labels(&axis).contains(&"100"), "{axis:?}");
    }

    #[test]
    fn percentiles_are_told_as_far_as_there_are_operations() {
        assert_eq!(labels(&Axis::percentiles(20_000)), ["0", "50", "90", "99", "99.9", "99.99"]);
        assert_eq!(labels(&Axis::percentiles(5)), ["0", "50", "90"]);
        let all = ["0", "50", "90", "99", "99.9", "99.99", "99.999", "99.9999"];
        assert_eq!(labels(&Axis::percentiles(2_000_000)), all);
        assert!(Axis::percentiles(u64::MAX).ticks.len() < 12);
        assert!((along(0.999) - 3.0).abs() < 1e-9);
    }
}
