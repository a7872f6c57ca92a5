//! Values: their text forms, and what SQLite has of them.

use headwater_protocol::stored::{Scratch, Stored, decode, encode};
use headwater_protocol::{Decimal, Type, Value, text};

/// Dates, times and UUIDs: what is read from text is written in the form that is read as the same.
pub fn text(data: &[u8]) {
    let Ok(written) = std::str::from_utf8(data) else { return };
    again(written, text::parse_date, |out, value| text::write_date(out, *value));
    again(written, text::parse_time, |out, value| text::write_time(out, *value));
    again(written, text::parse_timestamp, |out, value| text::write_timestamp(out, *value));
    again(written, text::parse_timestamptz, |out, value| text::write_timestamptz(out, *value));
    again(written, text::parse_uuid, text::write_uuid);
    for kind in Type::ALL {
        if let Some(value) = text::coerce(&Value::text(written), kind) {
            let twice = text::coerce(&value, kind).expect("a value of the type is one of it");
            assert!(twice.same(&value), "{value:?} as {kind:?} is {twice:?}");
        }
    }
}

fn again<T: PartialEq + std::fmt::Debug>(
    given: &str,
    parse: impl Fn(&str) -> Option<T>,
    write: impl Fn(&mut String, &T),
) {
    let Some(value) = parse(given) else { return };
    let mut out = String::new();
    write(&mut out, &value);
    assert_eq!(parse(&out).as_ref(), Some(&value), "{given:?} was written as {out:?}");
}

/// Decimals: every digit is kept.
pub fn decimal(data: &[u8]) {
    let Ok(written) = std::str::from_utf8(data) else { return };
    let Some(decimal) = Decimal::parse(written) else { return };
    let out = decimal.to_string();
    assert_eq!(Decimal::parse(&out), Some(decimal), "{written:?} was written as {out:?}");
}

/// A value as SQLite has it, in a column of some type, goes through the wire's form and comes back as it was.
pub fn stored(data: &[u8]) {
    let [kind, class, rest @ ..] = data else { return };
    let kind = Type::ALL[usize::from(*kind) % Type::ALL.len()];
    let number = rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).unwrap_or_default();
    let value = match class % 5 {
        0 => Stored::Null,
        1 => Stored::Integer(number.cast_signed()),
        2 if f64::from_bits(number).is_nan() || number == (-0.0f64).to_bits() => return, // SQLite keeps neither
        2 => Stored::Real(f64::from_bits(number)),
        3 => Stored::Text(rest),
        _ => Stored::Blob(rest),
    };
    let (mut first, mut second, mut third) = Default::default();
    let wire = decode(value, kind, &mut first);
    let back = encode(wire, &mut second);
    let again = decode(back, kind, &mut third);
    assert!(again.same(&wire), "{value:?} as {kind:?} is {wire:?}, then {again:?}");
    let _: &Scratch = &third;
}
