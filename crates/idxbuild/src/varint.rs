//! SQLite's variable-length integers: seven bits a byte, the first ones first, and a ninth byte with eight
//! (<https://sqlite.org/fileformat2.html#varint>).

/// The number at the beginning of these bytes, and how many it takes; `None` where they end too early.
#[inline]
pub(crate) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    let mut number = u64::from(first & 0x7F);
    for place in 1..8 {
        let byte = *bytes.get(place)?;
        number = number << 7 | u64::from(byte & 0x7F);
        if byte < 0x80 {
            return Some((number, place + 1));
        }
    }
    Some((number << 8 | u64::from(*bytes.get(8)?), 9))
}

/// Appends a number.
#[inline]
pub(crate) fn write(out: &mut Vec<u8>, number: u64) {
    if number < 0x80 {
        out.push(number as u8);
        return;
    }
    let length = length(number);
    if length == 9 {
        let high = number >> 8;
        out.extend((0..8).map(|place| (high >> (7 * (7 - place))) as u8 | 0x80));
        out.push(number as u8);
        return;
    }
    for place in (1..length).rev() {
        out.push((number >> (7 * place)) as u8 | 0x80);
    }
    out.push(number as u8 & 0x7F);
}

/// How many bytes a number takes.
#[inline]
pub(crate) fn length(number: u64) -> usize {
    let bits = 64 - (number | 1).leading_zeros() as usize;
    bits.div_ceil(7).min(9)
}

#[cfg(test)]
mod tests {
    use super::{length, read, write};

    #[test]
    fn a_number_comes_back_at_every_length() {
        for bits in 0..64 {
            for number in [1_u64 << bits, (1 << bits) - 1, u64::MAX >> bits] {
                let mut bytes = Vec::new();
                write(&mut bytes, number);
                assert_eq!(read(&bytes), Some((number, bytes.len())), "{number}");
                assert_eq!(length(number), bytes.len(), "{number}");
                assert_eq!(read(&bytes[..bytes.len() - 1]), None, "{number} cut off");
            }
        }
    }
}
