//! The collations that SQLite itself has, as bytes whose order is the collation's (<https://sqlite.org/datatype3.html#collation>).

use std::borrow::Cow;

use crate::header::Encoding;

/// How texts compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collation {
    /// Byte by byte, in the database's encoding.
    Binary,
    /// A to Z as a to z, in UTF-8.
    NoCase,
    /// Without spaces at the end, in UTF-8.
    RTrim,
}

impl Collation {
    /// The collation of this name, where SQLite's own is known here.
    pub(crate) fn named(name: &str) -> Option<Collation> {
        match name.to_ascii_uppercase().as_str() {
            "BINARY" => Some(Collation::Binary),
            "NOCASE" => Some(Collation::NoCase),
            "RTRIM" => Some(Collation::RTrim),
            _ => None,
        }
    }

    /// A text as it compares, byte by byte; an error says what of it only SQLite can judge.
    pub(crate) fn fold(self, text: &[u8], encoding: Encoding) -> Result<Cow<'_, [u8]>, &'static str> {
        if self == Collation::Binary {
            return Ok(Cow::Borrowed(text));
        }
        let mut text = utf8(text, encoding)?;
        if self == Collation::NoCase {
            if text.contains(&0) {
                return Err("a text with a NUL under NOCASE");
            }
            if text.iter().any(u8::is_ascii_uppercase) {
                text.to_mut().make_ascii_lowercase();
            }
            return Ok(text);
        }
        let length = text.len() - text.iter().rev().take_while(|&&byte| byte == b' ').count();
        Ok(match text {
            Cow::Borrowed(text) => Cow::Borrowed(&text[..length]),
            Cow::Owned(mut text) => {
                text.truncate(length);
                Cow::Owned(text)
            }
        })
    }
}

fn utf8(text: &[u8], encoding: Encoding) -> Result<Cow<'_, [u8]>, &'static str> {
    let unit: fn([u8; 2]) -> u16 = match encoding {
        Encoding::Utf8 => return Ok(Cow::Borrowed(text)),
        Encoding::Utf16Le => u16::from_le_bytes,
        Encoding::Utf16Be => u16::from_be_bytes,
    };
    let (pairs, rest) = text.as_chunks::<2>();
    let decoded: Result<String, _> = char::decode_utf16(pairs.iter().map(|&pair| unit(pair))).collect();
    match decoded {
        Ok(decoded) if rest.is_empty() => Ok(Cow::Owned(decoded.into_bytes())),
        _ => Err("a text that is no UTF-16"),
    }
}
