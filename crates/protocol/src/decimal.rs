//! Decimal numbers of any length, in the form in which they travel.
//!
//! Packed bytes: varint h (0 NaN, 1 Infinity, 2 -Infinity, else `3 + digits * 2 + negative`), then, for numbers, varint scale and
//! the digits, two a byte, high half first, a last odd half 0. `-12.50` has 4 digits, scale 2: `0c 02 12 50`. The digits before the
//! point number at least one, and only that one may be a leading zero; trailing zeros after the point are kept, so a decimal comes
//! out as it went in, and two spellings of one number are [`DecimalRef::same`].

use std::fmt;

use crate::wire::{DecodeError, Reader, Write};

/// The most digits that a decimal may have.
pub const DIGITS_MAX: usize = 200_000;

const NAN: u64 = 0;
const INFINITY: u64 = 1;
const NEGATIVE_INFINITY: u64 = 2;
const NUMBER: u64 = 3;

/// A decimal that owns its packed bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decimal(Vec<u8>);

/// A decimal that borrows its packed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecimalRef<'a>(&'a [u8]);

impl Decimal {
    /// Reads canonical text: an optional `-`, digits (no needless leading zero), optionally `.` and digits; `NaN`, `Infinity`,
    /// `-Infinity`. `None` for anything else, and beyond [`DIGITS_MAX`].
    pub fn parse(text: &str) -> Option<Decimal> {
        match text {
            "NaN" => return Some(Decimal(vec![NAN as u8])),
            "Infinity" => return Some(Decimal(vec![INFINITY as u8])),
            "-Infinity" => return Some(Decimal(vec![NEGATIVE_INFINITY as u8])),
            _ => {}
        }
        let (negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = match unsigned.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (unsigned, ""),
        };
        let digits = || whole.bytes().chain(fraction.bytes());
        let count = whole.len() + fraction.len();
        let needless_zero = whole.len() > 1 && whole.starts_with('0');
        if whole.is_empty() || needless_zero || count > DIGITS_MAX || !digits().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Some(Decimal::from_digits(negative, fraction.len(), count, digits().map(|b| b - b'0')))
    }

    /// Packs `count` digits (0 to 9), the last `scale` of them after the point.
    pub fn from_digits(negative: bool, scale: usize, count: usize, digits: impl Iterator<Item = u8>) -> Decimal {
        let mut packed = Vec::with_capacity(count.div_ceil(2) + 4);
        packed.put_varint(NUMBER + count as u64 * 2 + u64::from(negative));
        packed.put_varint(scale as u64);
        let mut high = None;
        for digit in digits {
            match high.take() {
                None => high = Some(digit << 4),
                Some(half) => packed.push(half | digit),
            }
        }
        packed.extend(high);
        Decimal(packed)
    }

    /// The decimal, borrowed.
    pub fn as_ref(&self) -> DecimalRef<'_> {
        DecimalRef(&self.0)
    }
}

/// Packs decimals one after another into a buffer that is used again, so that nothing is allocated for each.
///
/// ```
/// let mut packer = headwater_protocol::decimal::DecimalPacker::default();
/// packer.begin(true, 4, 2);
/// packer.push_digits(12, 2);
/// packer.push_digits(50, 2);
/// assert_eq!(packer.finish().to_string(), "-12.50");
/// ```
#[derive(Debug, Default)]
pub struct DecimalPacker {
    packed: Vec<u8>,
    /// Digits not yet in `packed`, the last in the low half of the low byte.
    waiting: u64,
    /// How many there are; below 2 between calls.
    waiting_count: usize,
    /// How many digits are still to come.
    missing: usize,
}

impl DecimalPacker {
    /// Begins a decimal of `count` digits, the last `scale` of them after the point; `scale` must be below `count`, and the first
    /// digit 0 only if it is the only one before the point.
    pub fn begin(&mut self, negative: bool, count: usize, scale: usize) {
        assert!(scale < count && count <= DIGITS_MAX, "a decimal of {count} digits, {scale} after the point");
        self.packed.clear();
        self.packed.put_varint(NUMBER + count as u64 * 2 + u64::from(negative));
        self.packed.put_varint(scale as u64);
        self.waiting_count = 0;
        self.missing = count;
    }

    /// Appends `count` (at most 4) digits: those of `number`, with zeros in front.
    pub fn push_digits(&mut self, number: u16, count: usize) {
        let digits = [number / 1000 % 10, number / 100 % 10, number / 10 % 10, number % 10];
        for digit in &digits[4 - count..] {
            self.waiting = self.waiting << 4 | u64::from(*digit);
        }
        self.waiting_count += count;
        self.missing = self.missing.checked_sub(count).expect("no more digits are pushed than were announced");
        while self.waiting_count >= 2 {
            self.waiting_count -= 2;
            self.packed.push((self.waiting >> (self.waiting_count * 4)) as u8);
        }
    }

    /// Ends the decimal, which lives until the next one begins.
    pub fn finish(&mut self) -> DecimalRef<'_> {
        assert_eq!(self.missing, 0, "all digits that were announced are pushed");
        if self.waiting_count == 1 {
            self.packed.push((self.waiting << 4) as u8);
            self.waiting_count = 0;
        }
        DecimalRef(&self.packed)
    }
}

/// A decimal taken apart.
#[derive(Clone, Copy, Debug)]
pub enum Parts<'a> {
    /// Not a number.
    NaN,
    /// Positive or, if true, negative infinity.
    Infinity(bool),
    /// A number.
    Number {
        /// Whether it has a minus sign.
        negative: bool,
        /// How many digits there are.
        count: usize,
        /// How many of them stand after the point; fewer than `count`.
        scale: usize,
        /// The digits, two a byte.
        packed: &'a [u8],
    },
}

impl<'a> DecimalRef<'a> {
    /// Not a number.
    pub const NAN: DecimalRef<'static> = DecimalRef(&[NAN as u8]);
    /// Positive infinity.
    pub const INFINITY: DecimalRef<'static> = DecimalRef(&[INFINITY as u8]);
    /// Negative infinity.
    pub const NEGATIVE_INFINITY: DecimalRef<'static> = DecimalRef(&[NEGATIVE_INFINITY as u8]);

    /// Reads one decimal from the front.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let whole = reader.rest();
        let header = reader.varint("decimal digits")?;
        if header >= NUMBER {
            let count = (header - NUMBER) / 2;
            if count > DIGITS_MAX as u64 {
                return Err(DecodeError::TooLarge { field: "decimal digits", actual: count, limit: DIGITS_MAX as u64 });
            }
            let count = count as usize;
            let scale = reader.varint("decimal scale")?;
            if scale >= count as u64 {
                return Err(DecodeError::Undefined { field: "decimal scale", actual: scale });
            }
            let packed = reader.take(count.div_ceil(2), "decimal digits")?;
            check_digits(packed, count, scale as usize)?;
        }
        Ok(DecimalRef(&whole[..whole.len() - reader.rest().len()]))
    }

    /// The packed bytes.
    pub fn packed(&self) -> &'a [u8] {
        self.0
    }

    /// The same decimal, owned.
    pub fn to_owned(&self) -> Decimal {
        Decimal(self.0.to_vec())
    }

    /// The decimal taken apart.
    pub fn parts(&self) -> Parts<'a> {
        let mut reader = Reader::new(self.0);
        let read = |reader: &mut Reader<'a>| reader.varint("").expect("a decimal is checked when it is made");
        match read(&mut reader) {
            NAN => Parts::NaN,
            INFINITY => Parts::Infinity(false),
            NEGATIVE_INFINITY => Parts::Infinity(true),
            header => {
                let scale = read(&mut reader) as usize;
                let count = ((header - NUMBER) / 2) as usize;
                Parts::Number { negative: (header - NUMBER) % 2 == 1, count, scale, packed: reader.rest() }
            }
        }
    }

    /// Appends the canonical text.
    pub fn write_text(&self, out: &mut String) {
        match self.parts() {
            Parts::NaN => out.push_str("NaN"),
            Parts::Infinity(negative) => out.push_str(if negative { "-Infinity" } else { "Infinity" }),
            Parts::Number { negative, count, scale, packed } => {
                if negative {
                    out.push('-');
                }
                for place in 0..count {
                    if place == count - scale {
                        out.push('.');
                    }
                    out.push(char::from(b'0' + digit(packed, place)));
                }
            }
        }
    }

    /// Whether two decimals are the same number: `1.50` is `1.5`, `-0` is `0`, NaN is NaN.
    pub fn same(&self, other: &DecimalRef<'_>) -> bool {
        self.0 == other.0 || self.key() == other.key()
    }

    /// What identifies the number: kind and sign, how many digits stand before the point, the digits without outer zeros.
    fn key(&self) -> (u8, usize, Vec<u8>) {
        match self.parts() {
            Parts::NaN => (2, 0, Vec::new()),
            Parts::Infinity(negative) => (3 + u8::from(negative), 0, Vec::new()),
            Parts::Number { negative, count, scale, packed } => {
                let all: Vec<u8> = (0..count).map(|place| digit(packed, place)).collect();
                let end = all.iter().rposition(|d| *d != 0).map_or(0, |last| (last + 1).max(count - scale));
                let start = all.iter().position(|d| *d != 0).map_or(end, |first| first.min(count - scale));
                let whole = (count - scale).saturating_sub(start);
                (u8::from(negative && end > 0), if end == 0 { 0 } else { whole }, all[start..end].to_vec())
            }
        }
    }
}

impl fmt::Display for DecimalRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write_text(&mut text);
        f.pad(&text)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

pub(crate) fn digit(packed: &[u8], place: usize) -> u8 {
    let byte = packed[place / 2];
    if place.is_multiple_of(2) { byte >> 4 } else { byte & 15 }
}

fn check_digits(packed: &[u8], count: usize, scale: usize) -> Result<(), DecodeError> {
    let bad = packed.iter().find(|byte| **byte >> 4 > 9 || **byte & 15 > 9);
    let padding = if count % 2 == 1 { packed.last().map(|byte| byte & 15) } else { None };
    let needless_zero = count - scale > 1 && digit(packed, 0) == 0;
    match (bad, padding) {
        (Some(byte), _) => Err(DecodeError::Undefined { field: "decimal digits", actual: u64::from(*byte) }),
        (None, Some(1..)) => Err(DecodeError::Undefined { field: "decimal padding", actual: 1 }),
        _ if needless_zero => Err(DecodeError::Undefined { field: "decimal leading zero", actual: 0 }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_other_text_is_refused() {
        for text in ["0", "-0", "0.0", "-12.50", "7", "12345678901234567890.00", "NaN", "Infinity", "-Infinity"] {
            let decimal = Decimal::parse(text).expect(text);
            assert_eq!(decimal.to_string(), text);
            let mut reader = Reader::new(&decimal.0);
            assert_eq!(DecimalRef::read(&mut reader), Ok(decimal.as_ref()));
            assert_eq!(reader.finish("decimal"), Ok(()));
        }
        for text in ["", "-", "1.", ".5", "1e5", "01", "+1", "1.2.3", " 1", "nan", "٣"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
        assert_eq!(Decimal::parse("-12.50").map(|d| d.0), Some(vec![0x0c, 0x02, 0x12, 0x50]));
    }

    #[test]
    fn packing_by_groups_is_as_parsing() {
        let mut packer = DecimalPacker::default();
        let mut pack = |groups: &[(u16, usize)], negative, scale| {
            packer.begin(negative, groups.iter().map(|g| g.1).sum(), scale);
            for (number, count) in groups {
                packer.push_digits(*number, *count);
            }
            packer.finish().to_string()
        };
        assert_eq!(pack(&[(1, 1), (2345, 4), (67, 2), (890, 4), (5, 1)], false, 5), "1234567.08905");
        assert_eq!(pack(&[(0, 1), (0, 4), (7, 3)], true, 7), "-0.0000007");
        assert_eq!(pack(&[(9, 1)], false, 0), "9");
        assert_eq!(DecimalRef::NAN.to_string() + &DecimalRef::NEGATIVE_INFINITY.to_string(), "NaN-Infinity");
        packer.begin(false, 2, 1);
        packer.push_digits(15, 2);
        assert_eq!(packer.finish().to_owned(), Decimal::parse("1.5").expect("a decimal"));
    }

    #[test]
    fn spellings_of_one_number_are_the_same() {
        let same = |a, b| Decimal::parse(a).expect(a).as_ref().same(&Decimal::parse(b).expect(b).as_ref());
        assert!(
            same("1.50", "1.5")
                && same("-0", "0.000")
                && same("10", "10.0")
                && same("0.5", "0.500")
                && same("NaN", "NaN")
        );
        assert!(!same("1.5", "-1.5") && !same("10", "1") && !same("0.1", "0.01") && !same("100", "10"));
        assert!(!same("Infinity", "-Infinity") && !same("NaN", "0") && !same("0.05", "0.5") && !same("5", "0.5"));
    }

    #[test]
    fn bad_packed_forms_are_refused() {
        let read = |bytes: &[u8]| DecimalRef::read(&mut Reader::new(bytes)).map(|d| d.to_string());
        assert!(read(&[0x05, 0x00, 0x1a]).is_err(), "a digit above 9");
        assert!(read(&[0x05, 0x00, 0x11]).is_err(), "padding that is not zero");
        assert!(read(&[0x05, 0x01, 0x10]).is_err(), "no digit before the point");
        assert!(read(&[0x07, 0x00, 0x01]).is_err(), "a needless leading zero");
        assert!(read(&[0xff, 0xff, 0xff, 0xff, 0x0f]).is_err(), "more digits than allowed");
        assert_eq!(read(&[0x05, 0x00, 0x10]), Ok("1".to_owned()));
    }
}
