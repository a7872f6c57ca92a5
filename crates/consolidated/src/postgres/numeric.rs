//! `numeric` in PostgreSQL's binary form, to and from packed decimals, without text in between.
//!
//! The form: four big-endian 16-bit numbers (count of groups, weight of the first group, sign, digits after the point), then the
//! groups, each four decimal digits as a number. `-12.5000` is `0002 0000 4000 0004 000c 1388`: groups 12 and 5000, the first worth
//! 10000^0. Groups of zeros at either end are left out; the digits after the point are shown as often as the fourth number says.

use headwater_protocol::decimal::{DecimalPacker, DecimalRef, Parts};

/// The most digits before the point that PostgreSQL takes.
const WHOLE_DIGITS_MAX: usize = 131_072;
/// The most digits after it.
const SCALE_MAX: usize = 16_383;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xc000;
const INFINITY: u16 = 0xd000;
const NEGATIVE_INFINITY: u16 = 0xf000;

/// Reads the binary form; `None` if it is none.
pub(super) fn decode<'a>(raw: &[u8], packer: &'a mut DecimalPacker) -> Option<DecimalRef<'a>> {
    let (header, groups) = raw.split_at_checked(8)?;
    let field = |place: usize| u16::from_be_bytes([header[place], header[place + 1]]);
    let (count, weight, sign, scale) = (field(0), field(2) as i16, field(4), usize::from(field(6)));
    match sign {
        NAN => return Some(DecimalRef::NAN),
        INFINITY => return Some(DecimalRef::INFINITY),
        NEGATIVE_INFINITY => return Some(DecimalRef::NEGATIVE_INFINITY),
        0 | NEGATIVE => {}
        _ => return None,
    }
    if groups.len() != usize::from(count) * 2 || scale > SCALE_MAX {
        return None;
    }
    let groups = Groups { groups, weight: i32::from(weight) };
    if groups.groups.chunks_exact(2).any(|pair| u16::from_be_bytes([pair[0], pair[1]]) > 9999) {
        return None;
    }
    let mut top = groups.weight.max(0);
    while top > 0 && groups.worth(top) == 0 {
        top -= 1;
    }
    let first = groups.worth(top);
    let first_digits = 1 + usize::from(first > 9) + usize::from(first > 99) + usize::from(first > 999);
    packer.begin(sign == NEGATIVE, first_digits + top as usize * 4 + scale, scale);
    packer.push_digits(first, first_digits);
    for exponent in (0..top).rev() {
        packer.push_digits(groups.worth(exponent), 4);
    }
    for exponent in 0..scale.div_ceil(4) {
        let group = groups.worth(-1 - exponent as i32);
        match scale - exponent * 4 {
            left @ 1..=3 => packer.push_digits(group / [1, 1000, 100, 10][left], left),
            _ => packer.push_digits(group, 4),
        }
    }
    Some(packer.finish())
}

struct Groups<'a> {
    groups: &'a [u8],
    weight: i32,
}

impl Groups<'_> {
    /// The group that counts 10000 to this power.
    fn worth(&self, exponent: i32) -> u16 {
        let place = usize::try_from(self.weight - exponent).ok();
        let pair = place.and_then(|place| self.groups.get(place * 2..place * 2 + 2));
        pair.map_or(0, |pair| u16::from_be_bytes([pair[0], pair[1]]))
    }
}

/// Appends the binary form; `false` if PostgreSQL has no number of so many digits.
pub(super) fn encode(decimal: DecimalRef<'_>, out: &mut Vec<u8>) -> bool {
    let (negative, count, scale, packed) = match decimal.parts() {
        Parts::NaN => return put_header(out, 0, 0, NAN, 0),
        Parts::Infinity(false) => return put_header(out, 0, 0, INFINITY, 0),
        Parts::Infinity(true) => return put_header(out, 0, 0, NEGATIVE_INFINITY, 0),
        Parts::Number { negative, count, scale, packed } => (negative, count, scale, packed),
    };
    let whole = count - scale;
    if whole > WHOLE_DIGITS_MAX || scale > SCALE_MAX {
        return false;
    }
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    let body = out.len();
    let digit = |place: usize| {
        let byte = packed[place / 2];
        u16::from(if place.is_multiple_of(2) { byte >> 4 } else { byte & 15 })
    };
    let mut weight = whole.div_ceil(4) as i32 - 1;
    let mut place = 0;
    let mut length = if whole.is_multiple_of(4) { 4 } else { whole % 4 };
    while place < count {
        let end = (place + length).min(count);
        let mut group = (place..end).fold(0, |group, place| group * 10 + digit(place));
        if place >= whole {
            group *= [1, 1000, 100, 10, 1][end - place]; // the last group is filled up with zeros
        }
        (place, length) = (end, 4);
        if group == 0 && out.len() == body {
            weight -= 1; // leading zeros are left out
        } else {
            out.extend_from_slice(&group.to_be_bytes());
        }
    }
    while out.len() > body && out.ends_with(&[0, 0]) {
        out.truncate(out.len() - 2);
    }
    let groups = (out.len() - body) / 2;
    let (weight, negative) = if groups == 0 { (0, false) } else { (weight, negative) };
    let header = [groups as u16, weight as i16 as u16, if negative { NEGATIVE } else { 0 }, scale as u16];
    for (place, field) in header.iter().enumerate() {
        out[start + place * 2..][..2].copy_from_slice(&field.to_be_bytes());
    }
    true
}

fn put_header(out: &mut Vec<u8>, count: u16, weight: u16, sign: u16, scale: u16) -> bool {
    for field in [count, weight, sign, scale] {
        out.extend_from_slice(&field.to_be_bytes());
    }
    true
}

#[cfg(test)]
mod tests {
    use headwater_protocol::decimal::Decimal;
    use proptest::prelude::*;

    use super::*;

    fn encoded(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(encode(Decimal::parse(text).expect(text).as_ref(), &mut out), "{text}");
        out
    }

    fn decoded(raw: &[u8]) -> Option<String> {
        decode(raw, &mut DecimalPacker::default()).map(|decimal| decimal.to_string())
    }

    #[test]
    fn the_example_of_the_module() {
        assert_eq!(encoded("-12.5000"), [0, 2, 0, 0, 0x40, 0, 0, 4, 0, 12, 0x13, 0x88]);
        assert_eq!(decoded(&encoded("-12.5000")).as_deref(), Some("-12.5000"));
    }

    #[test]
    fn edges_round_trip() {
        for text in [
            "0",
            "0.000",
            "10000",
            "100000000",
            "0.0001",
            "0.00001",
            "9999.9999",
            "10000.00010",
            "1",
            "NaN",
            "Infinity",
            "-Infinity",
        ] {
            assert_eq!(decoded(&encoded(text)).as_deref(), Some(text));
        }
        assert_eq!(decoded(&encoded("-0.0")).as_deref(), Some("0.0"), "PostgreSQL has no negative zero");
        let long = "9".repeat(60) + "." + &"1".repeat(60);
        assert_eq!(decoded(&encoded(&long)), Some(long));
    }

    #[test]
    fn what_the_server_can_not_hold_is_refused() {
        let refused = |text: &str| !encode(Decimal::parse(text).expect("a decimal").as_ref(), &mut Vec::new());
        assert!(refused(&"1".repeat(131_073)) && !refused(&"1".repeat(131_072)));
        assert!(refused(&format!("0.{}", "1".repeat(16_384))) && !refused(&format!("0.{}", "1".repeat(16_383))));
    }

    #[test]
    fn bad_forms_are_refused() {
        assert_eq!(decoded(&[]), None);
        assert_eq!(decoded(&[0, 1, 0, 0, 0, 0, 0, 0]), None, "a group is missing");
        assert_eq!(decoded(&[0, 1, 0, 0, 0, 0, 0, 0, 0x27, 0x10]), None, "a group of 10000");
        assert_eq!(decoded(&[0, 0, 0, 0, 0x12, 0, 0, 0]), None, "an unknown sign");
        assert_eq!(decoded(&[0, 0, 0, 0, 0, 0, 0x40, 0]), None, "a scale above the limit");
        assert_eq!(
            decoded(&[0, 1, 0x7f, 0xff, 0, 0, 0, 0, 0, 1]).map(|t| t.len()),
            Some(131_069),
            "the greatest weight"
        );
        assert_eq!(decoded(&[0, 1, 0x80, 0, 0, 0, 0, 2, 0, 1]).as_deref(), Some("0.00"), "the least weight");
    }

    proptest! {
        #[test]
        fn every_decimal_round_trips(text in "(0|-?[1-9][0-9]{0,70}|-?0\\.[0-9]{0,30}[1-9]|-?[1-9][0-9]{0,40}\\.[0-9]{1,40})") {
            prop_assert_eq!(decoded(&encoded(&text)), Some(text));
        }

        #[test]
        fn any_bytes_are_read_or_refused(raw in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = decoded(&raw);
        }
    }
}
