//! The frame around payloads: XML, in pieces as they come.
//!
//! ```text
//! <frontier version="3.42" xmlversion="1.0">
//!  <transaction payloads="1">
//!   <payload type="frontier_request" version="1" encoding="BLOBzip5">
//!    <data>BASE64, lines of 76</data>
//!    <quality error="0" md5="..." records="3" full_size="82"/>
//!   </payload>
//!  </transaction>
//! </frontier>
//! ```
//!
//! All of it is ASCII, and `md5` is over the bytes that the base64 carries; a signed answer has `sig` in its place ([`Signer`]). An error of
//! one payload is in its `quality`, one of the whole a `global_error`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use md5::{Digest, Md5};
use sha2::Sha256;

use super::request::Encoding;
use super::signature::Signer;

/// What the answer says it comes from: clients look at `xmlversion` alone.
const BEGIN: &str = "<?xml version=\"1.0\" encoding=\"US-ASCII\"?>\n\
                     <!DOCTYPE frontier SYSTEM \"http://frontier.fnal.gov/frontier.dtd\">\n\
                     <frontier version=\"3.42\" xmlversion=\"1.0\">\n";
const END: &str = "</frontier>\n";
/// Bytes that make a line of 76 characters.
const LINE_BYTES: usize = 57;

/// How a payload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality<'a> {
    /// Well.
    Good {
        /// Rows, the header aside.
        records: u64,
        /// Bytes before compression, the header included.
        full_size: u64,
    },
    /// With an error; what has come of it before is worth nothing.
    Error(&'a str),
}

/// An answer that is being written.
pub struct Answer {
    out: String,
    data: Option<Data>,
    signing: Option<Signing>,
}

/// Who signs, and the part of the URL that is signed with each payload.
struct Signing {
    signer: Arc<Signer>,
    part: String,
}

/// The data of the payload that is open.
struct Data {
    packer: Packer,
    sum: Sum,
    /// Fewer bytes than make a line.
    rest: Vec<u8>,
    has_lines: bool,
    /// Nothing has come yet.
    is_new: bool,
}

/// What is made of the bytes that the base64 carries.
enum Sum {
    Md5(Md5),
    Signed(Sha256, Arc<Signer>),
}

enum Packer {
    Plain,
    Zip(ZlibEncoder<Vec<u8>>),
}

impl Answer {
    /// Begins an answer of so many payloads.
    pub fn begin(payloads: usize) -> Answer {
        let mut out = BEGIN.to_owned();
        let _ = writeln!(out, " <transaction payloads=\"{payloads}\">");
        Answer { out, data: None, signing: None }
    }

    /// Has the payloads signed, each with this part of the URL ([`Request::signed_part`](super::Request::signed_part)).
    #[must_use]
    pub fn signed(self, signer: Arc<Signer>, part: String) -> Answer {
        Answer { signing: Some(Signing { signer, part }), ..self }
    }

    /// An answer that is an error of the whole request.
    pub fn global_error(message: &str) -> String {
        format!("{BEGIN} <global_error msg=\"{}\"/>\n{END}", escaped(message))
    }

    /// Begins a payload: the name that was asked for, and the encoding in which it comes.
    pub fn begin_payload(&mut self, name: &str, encoding: Encoding) {
        let (name, shown) = (escaped(name), encoding.name());
        let _ = write!(self.out, "  <payload type=\"{name}\" version=\"1\" encoding=\"{shown}\">\n   <data>");
        let packer = match encoding {
            Encoding::Zip { level, .. } => Packer::Zip(ZlibEncoder::new(Vec::new(), Compression::new(level))),
            Encoding::Blob | Encoding::Pem => Packer::Plain,
        };
        let sum = match &self.signing {
            Some(Signing { signer, part }) => Sum::Signed(Sha256::new_with_prefix(part), Arc::clone(signer)),
            None => Sum::Md5(Md5::new()),
        };
        self.data = Some(Data { packer, sum, rest: Vec::new(), has_lines: false, is_new: true });
    }

    /// Tells a client that waits that the query is still running. Before any data of the payload.
    pub fn keep_alive(&mut self) {
        self.out.push_str("\n   <keepalive />");
    }

    /// Adds to the payload's data.
    pub fn data(&mut self, bytes: &[u8]) {
        if let Some(data) = &mut self.data {
            data.push(bytes, &mut self.out);
        }
    }

    /// Ends the payload.
    pub fn end_payload(&mut self, quality: Quality<'_>) {
        let Some(mut data) = self.data.take() else { return };
        if data.is_new && matches!(quality, Quality::Error(_)) {
            data.packer = Packer::Plain; // nothing at all, and not the compressed form of nothing
        }
        let sum = data.finish(&mut self.out);
        let _ = match quality {
            Quality::Good { records, full_size } => write!(
                self.out,
                "</data>\n   <quality error=\"0\" {sum} records=\"{records}\" full_size=\"{full_size}\"/>\n"
            ),
            Quality::Error(message) => {
                let message = escaped(message);
                write!(self.out, "</data>\n   <quality error=\"1\" message=\"{message}\" {sum} full_size=\"0\"/>\n")
            }
        };
        self.out.push_str("  </payload>\n");
    }

    /// Ends the answer, with an error of the whole where one came after its beginning.
    pub fn end(&mut self, error: Option<&str>) {
        self.out.push_str(" </transaction>\n");
        if let Some(message) = error {
            let _ = writeln!(self.out, " <global_error msg=\"{}\"/>", escaped(message));
        }
        self.out.push_str(END);
    }

    /// Bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.out.len()
    }

    /// What has been written since it was taken last: ASCII.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }
}

impl Data {
    fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.is_new = false;
        match &mut self.packer {
            Packer::Plain => self.carry(bytes, out),
            Packer::Zip(encoder) => {
                // A vector takes whatever it is given.
                let _ = encoder.write_all(bytes);
                let packed = std::mem::take(encoder.get_mut());
                self.carry(&packed, out);
            }
        }
    }

    fn carry(&mut self, bytes: &[u8], out: &mut String) {
        match &mut self.sum {
            Sum::Md5(md5) => md5.update(bytes),
            Sum::Signed(sha256, _) => sha256.update(bytes),
        }
        self.rest.extend(bytes);
        let whole = self.rest.len() - self.rest.len() % LINE_BYTES;
        for line in self.rest[..whole].chunks(LINE_BYTES) {
            write_line(line, &mut self.has_lines, out);
        }
        self.rest.drain(..whole);
    }

    /// Writes what is left; gives the digest or the signature, as an attribute.
    fn finish(mut self, out: &mut String) -> String {
        if let Packer::Zip(encoder) = std::mem::replace(&mut self.packer, Packer::Plain) {
            let packed = encoder.finish().unwrap_or_default();
            self.carry(&packed, out);
        }
        if !self.rest.is_empty() {
            write_line(&self.rest, &mut self.has_lines, out);
        }
        match self.sum {
            Sum::Md5(md5) => format!("md5=\"{}\"", hex::encode(md5.finalize())),
            Sum::Signed(sha256, signer) => {
                format!("sig=\"{}\"", STANDARD.encode(signer.sign(&sha256.finalize().into())))
            }
        }
    }
}

fn write_line(bytes: &[u8], has_lines: &mut bool, out: &mut String) {
    if std::mem::replace(has_lines, true) {
        out.push('\n');
    }
    STANDARD.encode_string(bytes, out);
}

/// A text in an attribute: ASCII, with references for what is more or means something there. What XML can't hold at all is a question mark.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            ' '..='~' => out.push(letter),
            '\t' | '\n' | '\r' => {
                let _ = write!(out, "&#{};", letter as u32);
            }
            _ if letter.is_control() || matches!(letter as u32, 0xfffe | 0xffff) => out.push('?'),
            _ => {
                let _ = write!(out, "&#{};", letter as u32);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::frontier::payload::example;

    const ZIP5: Encoding = Encoding::Zip { level: 5, is_named: true };

    fn framed(encoding: Encoding, pieces: &[&[u8]], quality: Quality<'_>) -> String {
        let mut answer = Answer::begin(1);
        answer.begin_payload("frontier_request", encoding);
        for piece in pieces {
            answer.data(piece);
        }
        answer.end_payload(quality);
        answer.end(None);
        answer.take()
    }

    const BASE64: &str = "eF5jY2BgYPJ0YQNSXH6hvk6uQRqGBpogLoufo68riMER5hjk7OEYZMQO4jEagkjWxJyCjESI\n\
                          gFEbhDYGkQzsAL1zCfc=";

    fn inflated(base64: &str) -> (String, Vec<u8>) {
        let packed = STANDARD.decode(base64.replace('\n', "")).expect("base64");
        let mut bytes = Vec::new();
        flate2::read::ZlibDecoder::new(&*packed).read_to_end(&mut bytes).expect("zlib");
        (hex::encode(Md5::digest(&packed)), bytes)
    }

    /// The verified example of the reference, at level 5: the frame byte for byte, and in it what inflates to the example. (Which of the many
    /// forms of it a compressor chooses is its own: that of the servlet's is another than ours.)
    #[test]
    fn the_verified_example() {
        let mut rows = example();
        let bytes = rows.take();
        let (records, full_size) = rows.size();
        let good = Quality::Good { records, full_size };
        let written = framed(ZIP5, &[&bytes], good);
        let between = |from: &str, to: &str| {
            written.split(from).nth(1).and_then(|rest| rest.split(to).next()).map(ToOwned::to_owned).expect(from)
        };
        let (data, md5) = (between("<data>", "</data>"), between("md5=\"", "\""));
        let frame = format!(
            "<?xml version=\"1.0\" encoding=\"US-ASCII\"?>
<!DOCTYPE frontier SYSTEM \"http://frontier.fnal.gov/frontier.dtd\">
<frontier version=\"3.42\" xmlversion=\"1.0\">
 <transaction payloads=\"1\">
  <payload type=\"frontier_request\" version=\"1\" encoding=\"BLOBzip5\">
   <data>{data}</data>
   <quality error=\"0\" md5=\"{md5}\" records=\"3\" full_size=\"82\"/>
  </payload>
 </transaction>
</frontier>
"
        );
        assert_eq!(written, frame);
        assert_eq!(inflated(&data), (md5, bytes.clone()));
        assert_eq!(inflated(BASE64), ("6bef20ba03967bd7de155229fb69107a".to_owned(), bytes.clone()));
        let plain = framed(Encoding::Blob, &[&bytes[..10], &bytes[10..]], good);
        assert!(plain.contains("md5=\"dd25677dcd5b4435553a4ba0234f55b6\""), "{plain}");
    }

    /// However it is cut into pieces, the same comes out, in lines of 76.
    #[test]
    fn pieces_don_t_show() {
        let bytes: Vec<u8> = (0..1_000_u32).map(|number| (number * 7) as u8).collect();
        let good = Quality::Good { records: 1, full_size: 1_000 };
        for encoding in [Encoding::Blob, ZIP5] {
            let whole = framed(encoding, &[&bytes], good);
            let data = whole.split("<data>").nth(1).and_then(|rest| rest.split("</data>").next()).expect("data");
            let lines: Vec<&str> = data.split('\n').collect();
            assert!(lines[..lines.len() - 1].iter().all(|line| line.len() == 76), "{data}");
            if encoding == Encoding::Blob {
                for size in [1, 56, 57, 58, 999] {
                    assert_eq!(framed(encoding, &bytes.chunks(size).collect::<Vec<_>>(), good), whole, "{size}");
                }
            }
        }
    }

    #[test]
    fn errors_are_ascii_and_keep_the_frame() {
        let text = framed(ZIP5, &[], Quality::Error("no \"t\" < & größer\u{0}\n"));
        assert!(text.is_ascii());
        assert!(text.contains("message=\"no &quot;t&quot; &lt; &amp; gr&#246;&#223;er?&#10;\" md5="), "{text}");
        assert!(text.contains("full_size=\"0\""), "{text}");
        let whole = Answer::global_error("nothing");
        assert!(whole.contains("\n <global_error msg=\"nothing\"/>\n</frontier>\n"), "{whole}");
    }

    /// The query was slow, then it failed: the frame is still one that clients read.
    #[test]
    fn a_slow_query_that_fails() {
        let mut answer = Answer::begin(1);
        answer.begin_payload("frontier_request", Encoding::Blob);
        answer.keep_alive();
        answer.keep_alive();
        let first = answer.take();
        assert!(first.ends_with("<data>\n   <keepalive />\n   <keepalive />"), "{first}");
        answer.data(b"part");
        answer.end_payload(Quality::Error("gone"));
        answer.end(Some("gone"));
        let rest = answer.take();
        assert!(rest.starts_with("cGFydA==</data>\n   <quality error=\"1\""), "{rest}");
        assert!(rest.ends_with(" </transaction>\n <global_error msg=\"gone\"/>\n</frontier>\n"), "{rest}");
    }
}
