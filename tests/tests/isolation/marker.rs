//! What marks the victim's data, and the search for it in what somebody was sent.

use headwater_protocol::{Decimal, Decoder, Frame, Row, Value};
use headwater_testkit::Random;

/// What marks the victim's data: in the value of their partition, and in every other column.
pub(crate) struct Marker {
    region: String,
    /// In keys, unique values, names and notes.
    pub(crate) secret: String,
    pub(crate) bytes: [u8; 16],
    pub(crate) digits: String,
}

impl Marker {
    pub(crate) fn new(random: &mut Random) -> Marker {
        let bytes = (u128::from(random.bits()) << 64 | u128::from(random.bits())).to_be_bytes();
        let digits = (0..20).map(|_| char::from(b'1' + random.below(9) as u8)).collect();
        Marker { region: format!("{:016x}", random.bits()), secret: format!("{:016x}", random.bits()), bytes, digits }
    }

    /// The victim's partition.
    pub(crate) fn region(&self) -> String {
        format!("region {}", self.region)
    }

    /// The victim's customer `a0`, to the last byte.
    pub(crate) fn row(&self) -> Row {
        let credit = Decimal::parse(&self.digits).map_or(Value::Null, Value::Decimal);
        let name = format!("name {}", self.secret);
        let texts = ["a0", &self.region(), "code0", &name].map(Value::text);
        texts.into_iter().chain([Value::Bytes(self.bytes.to_vec()), credit]).collect()
    }

    /// The places of the marker in an answer: as it travels, in its body, and in each frame's payload.
    pub(crate) fn found_in(&self, answer: &[u8]) -> Vec<String> {
        let mut found = self.places("as it travels", answer);
        let body = body_of(answer);
        found.extend(self.places("body", &body));
        for frame in frames_in(&body) {
            if let Ok(payload) = frame.payload(64 << 20) {
                found.extend(self.places(&format!("{:?}", frame.kind), &payload));
            }
        }
        found
    }

    fn places(&self, place: &str, bytes: &[u8]) -> Vec<String> {
        let packed: Vec<u8> =
            self.digits.as_bytes().chunks(2).map(|two| (two[0] - b'0') << 4 | (two[1] - b'0')).collect();
        let hex = hex(&self.bytes);
        let needles: [(&str, &[u8]); 6] = [
            ("region", self.region.as_bytes()),
            ("secret", self.secret.as_bytes()),
            ("bytes", &self.bytes),
            ("hexadecimal bytes", hex.as_bytes()),
            ("digits", self.digits.as_bytes()),
            ("packed digits", &packed),
        ];
        let has = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        needles.iter().filter(|(_, needle)| has(needle)).map(|(what, _)| format!("{what} {place}")).collect()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An answer's body without its head, its chunks put together: a marker may lie across two of them.
pub(crate) fn body_of(answer: &[u8]) -> Vec<u8> {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return answer.to_vec() };
    let (head, mut rest) = answer.split_at(end + 4);
    if !String::from_utf8_lossy(head).to_lowercase().contains("transfer-encoding: chunked") {
        return rest.to_vec();
    }
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let length = std::str::from_utf8(&rest[..end]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let chunk = length.filter(|length| *length > 0).and_then(|length| rest.get(end + 2..end + 2 + length));
        let Some(chunk) = chunk else { break };
        body.extend_from_slice(chunk);
        rest = rest.get(end + 4 + chunk.len()..).unwrap_or_default();
    }
    // What is cut off in the midst of a chunk is searched too.
    body.extend_from_slice(rest);
    body
}

/// Every frame in a stream, whatever stands between them.
pub(crate) fn frames_in(body: &[u8]) -> Vec<Frame> {
    let (mut frames, mut place) = (Vec::new(), 0);
    while place + 12 <= body.len() {
        let mut decoder = Decoder::new(64 << 20);
        decoder.push(&body[place..]);
        match decoder.next_frame() {
            Ok(Some(frame)) => {
                place += frame.wire_bytes();
                frames.push(frame);
            }
            _ => place += 1,
        }
    }
    frames
}
