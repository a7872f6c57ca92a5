//! Content codings: which a client wants, and bytes in it (RFC 9110, 8.4 and 12.5.3).
//!
//! Of those that are wanted as much zstd goes first, which costs least, then brotli, which is smaller than gzip.

use std::io::Write;

use axum::http::{HeaderMap, header};
use brotli::CompressorWriter;
use flate2::Compression as Level;
use flate2::write::GzEncoder;

/// How far back brotli looks, as a power of two: as far as every client of it does.
const BROTLI_WINDOW: u32 = 22;
/// What brotli works in.
const BROTLI_BUFFER_BYTES: usize = 16 << 10;

/// How an answer's bytes are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Identity,
    Gzip,
    Brotli,
    Zstd,
}

impl Coding {
    /// Those that compress.
    pub(crate) const PACKED: [Coding; 3] = [Coding::Gzip, Coding::Brotli, Coding::Zstd];

    /// Its name in `Content-Encoding`, if it has one there.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Coding::Identity => None,
            Coding::Gzip => Some("gzip"),
            Coding::Brotli => Some("br"),
            Coding::Zstd => Some("zstd"),
        }
    }

    /// What a request's `Accept-Encoding` wants most; without one, the bytes as they are.
    pub(crate) fn wanted(headers: &HeaderMap) -> Coding {
        let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let ranges: Vec<(String, f32)> = values.flat_map(|value| value.split(',')).map(range).collect();
        let quality = |name: &str| {
            let named = ranges.iter().find(|(range, _)| range == name);
            named.or_else(|| ranges.iter().find(|(range, _)| range == "*")).map_or(0.0, |(_, quality)| *quality)
        };
        let identity = ranges.iter().find(|(range, _)| range == "identity").map_or(0.0, |(_, quality)| *quality);
        let best = [Coding::Zstd, Coding::Brotli, Coding::Gzip]
            .into_iter()
            .map(|coding| (coding, coding.name().map_or(0.0, quality)))
            .reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.filter(|(_, quality)| *quality > 0.0 && *quality >= identity)
            .map_or(Coding::Identity, |(coding, _)| coding)
    }

    /// These bytes in this coding, at a level of 1 to 9.
    pub(crate) fn encode(self, level: u32, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut encoder = Encoder::new(self, level)?;
        encoder.write(body)?;
        encoder.finish()
    }

    /// Its place among those that compress; `None`: it is none of them.
    pub(crate) fn place(self) -> Option<usize> {
        Coding::PACKED.iter().position(|coding| *coding == self)
    }
}

/// Compresses bytes that come one after the other.
pub(crate) enum Encoder {
    Plain(Vec<u8>),
    Gzip(GzEncoder<Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    pub(crate) fn new(coding: Coding, level: u32) -> std::io::Result<Encoder> {
        Ok(match coding {
            Coding::Identity => Encoder::Plain(Vec::new()),
            Coding::Gzip => Encoder::Gzip(GzEncoder::new(Vec::new(), Level::new(level))),
            Coding::Brotli => {
                Encoder::Brotli(Box::new(CompressorWriter::new(Vec::new(), BROTLI_BUFFER_BYTES, level, BROTLI_WINDOW)))
            }
            Coding::Zstd => Encoder::Zstd(zstd::stream::write::Encoder::new(Vec::new(), level.cast_signed())?),
        })
    }

    /// Takes more.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Encoder::Plain(out) => out.write_all(bytes),
            Encoder::Gzip(encoder) => encoder.write_all(bytes),
            Encoder::Brotli(encoder) => encoder.write_all(bytes),
            Encoder::Zstd(encoder) => encoder.write_all(bytes),
        }
    }

    /// What has come out since it was taken last.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(match self {
            Encoder::Plain(out) => out,
            Encoder::Gzip(encoder) => encoder.get_mut(),
            Encoder::Brotli(encoder) => encoder.get_mut(),
            Encoder::Zstd(encoder) => encoder.get_mut(),
        })
    }

    /// What is left, and the end.
    pub(crate) fn finish(self) -> std::io::Result<Vec<u8>> {
        match self {
            Encoder::Plain(out) => Ok(out),
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Brotli(encoder) => Ok(encoder.into_inner()),
            Encoder::Zstd(encoder) => encoder.finish(),
        }
    }
}

/// `gzip;q=0.5`: a name, and how much it is wanted.
fn range(text: &str) -> (String, f32) {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0);
    (name, quality)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_a_client_wants() {
        for (accept, expected) in [
            (None, Coding::Identity),
            (Some("gzip, deflate, br, zstd"), Coding::Zstd),
            (Some("gzip"), Coding::Gzip),
            (Some("GZIP;q=1, zstd;q=0.5"), Coding::Gzip),
            (Some("zstd;q=0, *"), Coding::Brotli),
            (Some("*"), Coding::Zstd),
            (Some("identity, gzip;q=0.5"), Coding::Identity),
            (Some("br"), Coding::Brotli),
            (Some("gzip, deflate, br"), Coding::Brotli),
            (Some("br;q=0.5, gzip"), Coding::Gzip),
            (Some("br;q=0, zstd;q=0, *"), Coding::Gzip),
            (Some("deflate"), Coding::Identity),
            (Some(""), Coding::Identity),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(header::ACCEPT_ENCODING, accept.parse().expect("a value"));
            }
            assert_eq!(Coding::wanted(&headers), expected, "{accept:?}");
        }
    }

    /// However it is cut into pieces, and at every level.
    #[test]
    fn what_comes_out_is_what_went_in() {
        let body = "row of some data\r\n".repeat(10_000).into_bytes();
        for (coding, level) in Coding::PACKED.into_iter().flat_map(|coding| [1, 5, 9].map(|level| (coding, level))) {
            let whole = coding.encode(level, &body).expect("memory");
            let mut encoder = Encoder::new(coding, level).expect("an encoder");
            let mut pieces = Vec::new();
            for piece in body.chunks(999) {
                encoder.write(piece).expect("memory");
                pieces.extend(encoder.take());
            }
            pieces.extend(encoder.finish().expect("memory"));
            for packed in [whole, pieces] {
                let mut plain = Vec::new();
                let read = match coding {
                    Coding::Identity => panic!("it compresses nothing"),
                    Coding::Gzip => flate2::read::GzDecoder::new(&*packed).read_to_end(&mut plain),
                    Coding::Brotli => brotli::Decompressor::new(&*packed, 4_096).read_to_end(&mut plain),
                    Coding::Zstd => zstd::stream::copy_decode(&*packed, &mut plain).map(|()| 0),
                };
                assert!(read.is_ok() && plain == body && packed.len() < body.len() / 10, "{coding:?} {level}");
            }
        }
    }
}
