//! Values as SQL, for messages.

use std::fmt::Write as _;

use crate::header::Encoding;
use crate::record::Value;

/// Characters or bytes of a value that a message shows.
const SHOWN_MAX: usize = 40;

/// A value as SQL writes it, cut where it is long.
pub(crate) fn literal(value: Value<'_>, encoding: Encoding) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => format!("{number:?}"),
        Value::Text(bytes) => {
            let text = decoded(bytes, encoding);
            let shown: String = text.chars().take(SHOWN_MAX).collect();
            let more = if shown.len() < text.len() { "..." } else { "" };
            format!("'{}{more}'", shown.replace('\'', "''"))
        }
        Value::Blob(bytes) => {
            let mut text = "x'".to_owned();
            for byte in bytes.iter().take(SHOWN_MAX) {
                let _ = write!(text, "{byte:02x}");
            }
            text + if bytes.len() > SHOWN_MAX { "...'" } else { "'" }
        }
    }
}

fn decoded(bytes: &[u8], encoding: Encoding) -> String {
    let unit: fn([u8; 2]) -> u16 = match encoding {
        Encoding::Utf8 => return String::from_utf8_lossy(bytes).into_owned(),
        Encoding::Utf16Le => u16::from_le_bytes,
        Encoding::Utf16Be => u16::from_be_bytes,
    };
    let (pairs, _) = bytes.as_chunks::<2>();
    char::decode_utf16(pairs.iter().map(|&pair| unit(pair))).map(|char| char.unwrap_or('\u{FFFD}')).collect()
}
