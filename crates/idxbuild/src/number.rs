//! Numbers as bytes whose order is SQLite's order of numbers: integers of 64 bits and doubles compared exactly.
//!
//! Eight bytes of the largest double that is not above the number; where doubles lie further apart than integers (from 2^53 on), two
//! bytes more with the rest. Equal numbers have equal bytes, whatever their kind.

/// From here on not every integer is a double.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Appends an integer.
#[inline]
pub(crate) fn write_integer(out: &mut Vec<u8>, number: i64) {
    let near = number as f64;
    if number.unsigned_abs() < EXACT as u64 {
        out.extend_from_slice(&ordered(near).to_be_bytes());
        return;
    }
    let below = if near as i128 > i128::from(number) { near.next_down() } else { near };
    out.extend_from_slice(&ordered(below).to_be_bytes());
    out.extend_from_slice(&((i128::from(number) - below as i128) as u16).to_be_bytes());
}

/// Appends a double that is a number.
#[inline]
pub(crate) fn write_real(out: &mut Vec<u8>, number: f64) {
    // Minus nought is nought.
    let number = if number == 0.0 { 0.0 } else { number };
    out.extend_from_slice(&ordered(number).to_be_bytes());
    if number.abs() >= EXACT {
        out.extend_from_slice(&[0, 0]);
    }
}

/// A number as it comes back from its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// An integer of 64 bits, also where a double was written that is one.
    Integer(i64),
    /// Any other.
    Real(f64),
}

/// The number at the beginning of these bytes, each of which was inverted by `flip`, and how many it takes.
#[inline]
pub(crate) fn read(bytes: &[u8], flip: u8) -> (Number, usize) {
    let mut eight = [0; 8];
    for (to, from) in eight.iter_mut().zip(bytes) {
        *to = from ^ flip;
    }
    let real = disordered(u64::from_be_bytes(eight));
    if real.abs() < EXACT {
        let integer = real as i64;
        let is_integer = real.fract() == 0.0;
        return (if is_integer { Number::Integer(integer) } else { Number::Real(real) }, 8);
    }
    let rest = u16::from_be_bytes([bytes[8] ^ flip, bytes[9] ^ flip]);
    let number = if real.is_finite() { i64::try_from(real as i128 + i128::from(rest)).ok() } else { None };
    (number.map_or(Number::Real(real), Number::Integer), 10)
}

/// Whether [`read`] gives this double back as one.
pub(crate) fn comes_back(real: f64) -> bool {
    !(real.is_finite() && real.fract() == 0.0 && i64::try_from(real as i128).is_ok())
}

fn ordered(number: f64) -> u64 {
    let bits = number.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

fn disordered(bits: u64) -> f64 {
    f64::from_bits(if bits >> 63 == 1 { bits & !(1 << 63) } else { !bits })
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::{Number, comes_back, read, write_integer, write_real};

    /// Exactly, by way of integers wide enough for both.
    fn compare(a: Number, b: Number) -> Ordering {
        match (a, b) {
            (Number::Integer(a), Number::Integer(b)) => a.cmp(&b),
            (Number::Real(a), Number::Real(b)) => a.partial_cmp(&b).expect("numbers"),
            (Number::Real(_), Number::Integer(_)) => compare(b, a).reverse(),
            (Number::Integer(a), Number::Real(b)) => {
                if b.abs() > 1e20 {
                    return if b > 0.0 { Ordering::Less } else { Ordering::Greater };
                }
                let whole = b.floor();
                i128::from(a).cmp(&(whole as i128)).then(if b > whole { Ordering::Less } else { Ordering::Equal })
            }
        }
    }

    fn samples() -> Vec<Number> {
        let mut integers = vec![i64::MIN, i64::MAX, 0];
        for bits in 0..63 {
            for near in -2..=2 {
                integers.extend([(1_i64 << bits) + near, near - (1_i64 << bits)]);
            }
        }
        let reals = integers.iter().flat_map(|&i| {
            let real = i as f64;
            [real, real + 0.5, real.next_up(), real.next_down(), -real]
        });
        let edges = [f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324, -5e-324, 1e300, -1e300];
        reals.chain(edges).map(Number::Real).chain(integers.iter().copied().map(Number::Integer)).collect()
    }

    #[test]
    fn bytes_have_the_order_of_the_numbers_and_bring_them_back() {
        let samples = samples();
        let bytes = |number| {
            let mut out = Vec::new();
            match number {
                Number::Integer(integer) => write_integer(&mut out, integer),
                Number::Real(real) => write_real(&mut out, real),
            }
            out
        };
        for &a in &samples {
            let of_a = bytes(a);
            let (back, length) = read(&of_a, 0);
            assert_eq!((compare(a, back), length), (Ordering::Equal, of_a.len()), "{a:?}");
            if let Number::Real(real) = a {
                assert_eq!(matches!(back, Number::Real(_)), comes_back(real), "{a:?}");
            }
            for &b in &samples {
                assert_eq!(of_a.cmp(&bytes(b)), compare(a, b), "{a:?} {b:?}");
            }
        }
    }
}
