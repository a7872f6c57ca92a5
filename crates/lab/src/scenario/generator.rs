//! Generators of values: described in a scenario, resolved with a cell's parameters, drawn from a client's own sequence.
//!
//! | generator | draws |
//! |---|---|
//! | `{ uniform = [1, "rows"] }` | a whole number, both ends with the same chance as all between |
//! | `{ zipf = [1, "rows"], exponent = 1.1 }` | a whole number, the k-th of them in proportion to k^-exponent |
//! | `{ sequence = 1 }` | 1, 2, 3, ... over all clients of the run, none twice; each client takes every n-th |
//! | `{ real = [0.0, 1.0] }` | a number from the first up to, not with, the second |
//! | `{ text = 64 }` | letters |
//! | `{ blob = 64 }` | bytes |
//! | `{ pick = ["a", "b"] }` | one of them |

use super::formula::Formula;
use crate::random::Random;
use crate::value::Value;

/// The longest text of a generator in letters, and the longest blob in bytes.
const LENGTH_MAX: i64 = 16 << 20;

/// A generator as a scenario describes it.
#[derive(Clone, Debug, PartialEq)]
pub enum Generator {
    /// All with the same chance.
    Uniform(Formula, Formula),
    /// Small ones more often; the exponent.
    Zipf(Formula, Formula, f64),
    /// One after the other.
    Sequence(Formula),
    /// Numbers that are not whole.
    Real(f64, f64),
    /// So many letters.
    Text(Formula),
    /// So many bytes.
    Blob(Formula),
    /// One of these.
    Pick(Vec<Value>),
}

/// A generator with its numbers, for one client.
#[derive(Clone, Debug)]
pub enum Draw {
    /// The lowest, and how many there are.
    Uniform(i64, u64),
    /// The lowest, and the ranks.
    Zipf(i64, Zipf),
    /// The next, and the step to the one after it.
    Sequence(i64, i64),
    /// The lowest, and the width.
    Real(f64, f64),
    /// How many letters.
    Text(usize),
    /// How many bytes.
    Blob(usize),
    /// One of these.
    Pick(Vec<Value>),
}

impl Generator {
    pub(super) fn formulas(&self) -> Vec<&Formula> {
        match self {
            Generator::Uniform(low, high) | Generator::Zipf(low, high, _) => vec![low, high],
            Generator::Sequence(one) | Generator::Text(one) | Generator::Blob(one) => vec![one],
            Generator::Real(..) | Generator::Pick(_) => Vec::new(),
        }
    }

    /// With these parameters, for one client of so many; an error says why that is not possible.
    pub fn resolve(&self, parameters: &[(String, Value)], client: usize, clients: usize) -> Result<Draw, String> {
        let number =
            |formula: &Formula| formula.value(parameters).ok_or("a bound is no whole number of 64 bits".to_owned());
        let span = |low: &Formula, high: &Formula| {
            let (low, high) = (number(low)?, number(high)?);
            let width = high.checked_sub(low).filter(|width| *width >= 0);
            Ok::<_, String>((low, width.ok_or_else(|| format!("there is no number from {low} to {high}"))? as u64 + 1))
        };
        Ok(match self {
            Generator::Uniform(low, high) => span(low, high).map(|(low, count)| Draw::Uniform(low, count))?,
            Generator::Zipf(low, high, exponent) => {
                span(low, high).map(|(low, count)| Draw::Zipf(low, Zipf::new(count, *exponent)))?
            }
            Generator::Sequence(from) => Draw::Sequence(number(from)?.wrapping_add(client as i64), clients as i64),
            Generator::Real(low, high) => Draw::Real(*low, high - low),
            Generator::Text(length) => match number(length)? {
                length @ 0..=LENGTH_MAX => Draw::Text(length as usize),
                length => return Err(format!("a text of {length} letters; there may be {LENGTH_MAX}")),
            },
            Generator::Blob(length) => match number(length)? {
                length @ 0..=LENGTH_MAX => Draw::Blob(length as usize),
                length => return Err(format!("a blob of {length} bytes; there may be {LENGTH_MAX}")),
            },
            Generator::Pick(values) => Draw::Pick(values.clone()),
        })
    }
}

impl Draw {
    /// The next value.
    pub fn next(&mut self, random: &mut Random) -> Value {
        match self {
            Draw::Uniform(low, count) => Value::Integer(low.wrapping_add(random.below(*count) as i64)),
            Draw::Zipf(low, ranks) => Value::Integer(low.wrapping_add(ranks.next(random) as i64 - 1)),
            Draw::Sequence(next, step) => {
                let value = *next;
                *next = next.wrapping_add(*step);
                Value::Integer(value)
            }
            Draw::Real(low, width) => Value::Real(*low + *width * random.fraction()),
            Draw::Text(length) => Value::Text(letters(*length, random)),
            Draw::Blob(length) => Value::Bytes(bytes(*length, random)),
            Draw::Pick(values) => {
                let chosen = values.get(random.below(values.len() as u64) as usize);
                chosen.cloned().unwrap_or(Value::Text(String::new()))
            }
        }
    }
}

fn letters(length: usize, random: &mut Random) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyzABCDEF";
    let mut text = String::with_capacity(length);
    while text.len() < length {
        // Twelve letters of five bits in each number.
        let mut bits = random.bits();
        for _ in 0..12.min(length - text.len()) {
            text.push(char::from(LETTERS[(bits & 31) as usize]));
            bits >>= 5;
        }
    }
    text
}

fn bytes(length: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let rest = 8.min(length - bytes.len());
        bytes.extend_from_slice(&random.bits().to_le_bytes()[..rest]);
    }
    bytes
}

/// Ranks from 1 to n, rank k in proportion to k^-exponent, in constant time and memory: rejection-inversion (Hörmann, Derflinger:
/// Rejection-inversion to generate variates from monotone discrete distributions, 1996).
#[derive(Clone, Debug, PartialEq)]
pub struct Zipf {
    count: f64,
    exponent: f64,
    /// The integral of the hat up to the first rank and up to the last.
    low: f64,
    high: f64,
    /// A draw this near to its rank is accepted without a further look.
    near: f64,
}

impl Zipf {
    pub(crate) fn new(count: u64, exponent: f64) -> Zipf {
        let count = count as f64;
        let mut zipf = Zipf { count, exponent, low: 0.0, high: 0.0, near: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(count + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    fn integral(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { x.ln() } else { (x.powf(power) - 1.0) / power }
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { area.exp() } else { (area * power + 1.0).max(0.0).powf(1.0 / power) }
    }

    pub(crate) fn next(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.high + random.fraction() * (self.low - self.high);
            let x = self.inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.count);
            if rank - x <= self.near || area >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Formula {
        Formula::parse(text).expect("a formula")
    }

    fn integers(generator: &Generator, count: usize) -> Vec<i64> {
        let mut draw = generator.resolve(&[("n".to_owned(), Value::Integer(10))], 0, 1).expect("possible");
        let mut random = Random::seeded(3);
        let next = |_| match draw.next(&mut random) {
            Value::Integer(number) => number,
            other => panic!("{other:?}"),
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn a_uniform_draw_takes_both_ends() {
        let drawn = integers(&Generator::Uniform(number("1"), number("n")), 1000);
        assert_eq!(drawn.iter().min(), Some(&1));
        assert_eq!(drawn.iter().max(), Some(&10));
    }

    #[test]
    fn zipf_draws_each_rank_as_often_as_it_should() {
        for exponent in [0.0, 0.5, 1.0, 1.1, 2.0] {
            let drawn = integers(&Generator::Zipf(number("1"), number("n"), exponent), 200_000);
            let total: f64 = (1..=10).map(|k| f64::from(k).powf(-exponent)).sum();
            for rank in 1..=10 {
                let expected = f64::from(rank).powf(-exponent) / total;
                let found = drawn.iter().filter(|k| **k == i64::from(rank)).count() as f64 / 200_000.0;
                assert!((found - expected).abs() < 0.005, "exponent {exponent}, rank {rank}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn zipf_of_one_rank_is_that_rank() {
        assert!(integers(&Generator::Zipf(number("5"), number("5"), 1.1), 100).iter().all(|rank| *rank == 5));
    }

    #[test]
    fn a_sequence_gives_no_number_to_two_clients() {
        let mut all = Vec::new();
        for client in 0..3 {
            let mut draw = Generator::Sequence(number("100")).resolve(&[], client, 3).expect("possible");
            all.extend((0..4).map(|_| draw.next(&mut Random::seeded(0)).to_string()));
        }
        all.sort_unstable();
        assert_eq!(all, (100..112).map(|n| n.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn texts_are_as_long_as_asked_and_bounds_that_cannot_be_are_told() {
        let mut draw = Generator::Text(number("30")).resolve(&[], 0, 1).expect("possible");
        assert_eq!(draw.next(&mut Random::seeded(0)).to_string().len(), 30);
        let mut draw = Generator::Blob(number("30")).resolve(&[], 0, 1).expect("possible");
        assert!(matches!(draw.next(&mut Random::seeded(0)), Value::Bytes(bytes) if bytes.len() == 30));
        let wrong = Generator::Uniform(number("3"), number("2")).resolve(&[], 0, 1);
        assert_eq!(wrong.expect_err("impossible"), "there is no number from 3 to 2");
        assert!(Generator::Text(number("999999999999")).resolve(&[], 0, 1).is_err());
    }
}
