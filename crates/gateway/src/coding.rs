//! Content codings: which a client wants, and an answer in it (RFC 9110, 8.4 and 12.5.3).
//!
//! Of those that are wanted as much zstd goes first, which costs least, then brotli, which is smaller than gzip. An answer that is kept is
//! compressed once in each.

use std::io::Write as _;

use axum::http::{HeaderMap, header};
use brotli::CompressorWriter;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::OnceCell;

/// Smaller answers are sent as they are: little is won.
const BYTES_MIN: usize = 1_000;
/// Compressing fewer bytes is done at once, more on a thread for it.
const AT_ONCE_BYTES: usize = 32 << 10;
const GZIP_LEVEL: u32 = 5;
const ZSTD_LEVEL: i32 = 3;
/// Of eleven: the least that is smaller than gzip.
const BROTLI_LEVEL: u32 = 4;
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

    fn encode(self, body: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Coding::Identity => Ok(body.to_vec()),
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
                encoder.write_all(body)?;
                encoder.finish()
            }
            Coding::Brotli => {
                let mut encoder = CompressorWriter::new(Vec::new(), BROTLI_BUFFER_BYTES, BROTLI_LEVEL, BROTLI_WINDOW);
                encoder.write_all(body)?;
                Ok(encoder.into_inner())
            }
            Coding::Zstd => zstd::encode_all(body, ZSTD_LEVEL),
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

/// An answer in each coding that somebody has wanted; nothing where it would be no smaller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coded {
    gzip: OnceCell<Option<Bytes>>,
    brotli: OnceCell<Option<Bytes>>,
    zstd: OnceCell<Option<Bytes>>,
}

impl Coded {
    /// The bytes in this coding, or as they are; and which it is.
    pub(crate) async fn of(&self, body: &Bytes, wanted: Coding) -> (Bytes, Coding) {
        let cell = match wanted {
            Coding::Gzip => &self.gzip,
            Coding::Brotli => &self.brotli,
            Coding::Zstd => &self.zstd,
            Coding::Identity => return (body.clone(), Coding::Identity),
        };
        if body.len() < BYTES_MIN {
            return (body.clone(), Coding::Identity);
        }
        let coded = cell.get_or_init(async || {
            let plain = body.clone();
            let encode = move || wanted.encode(&plain).ok().filter(|coded| coded.len() < plain.len()).map(Bytes::from);
            if body.len() < AT_ONCE_BYTES {
                return encode();
            }
            tokio::task::spawn_blocking(encode).await.ok().flatten()
        });
        match coded.await {
            Some(coded) => (coded.clone(), wanted),
            None => (body.clone(), Coding::Identity),
        }
    }
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

    #[tokio::test]
    async fn what_comes_out_is_what_went_in() {
        let (coded, body) = (Coded::default(), Bytes::from("row of some data\r\n".repeat(10_000)));
        let (gzip, coding) = coded.of(&body, Coding::Gzip).await;
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&*gzip).read_to_end(&mut plain).expect("gzip");
        assert!(coding == Coding::Gzip && plain == body && gzip.len() < body.len() / 10);
        let (packed, coding) = coded.of(&body, Coding::Zstd).await;
        assert!(coding == Coding::Zstd && zstd::decode_all(&*packed).expect("zstd") == body);
        let (packed, coding) = coded.of(&body, Coding::Brotli).await;
        let mut plain = Vec::new();
        brotli::Decompressor::new(&*packed, 4_096).read_to_end(&mut plain).expect("brotli");
        assert!(coding == Coding::Brotli && plain == body && packed.len() < body.len() / 10);
        let small = Bytes::from_static(b"id\r\n1\r\n");
        assert_eq!(Coded::default().of(&small, Coding::Gzip).await, (small.clone(), Coding::Identity));
    }
}
