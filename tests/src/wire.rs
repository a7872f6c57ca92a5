//! Frames as they went over a line, within HTTP's heads and chunks. A chunk may hold several frames, and a frame may be divided among chunks.

use headwater_protocol::{Decoder, Frame};

/// A frame, and where it lay in the stream: from its first byte to past its last.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its first byte's offset.
    pub start: u64,
    /// The offset past its last byte.
    pub end: u64,
    /// The frame.
    pub frame: Frame,
}

/// The whole frames in one direction of a connection, in order. What is no frame is passed over.
pub fn frames(stream: &[u8]) -> Vec<Placed> {
    let bodies = Bodies::of(stream);
    let (mut found, mut place) = (Vec::new(), 0);
    while let Some(rest) = bodies.bytes.get(place..).filter(|rest| rest.len() >= 12) {
        let mut decoder = Decoder::new(64 << 20);
        decoder.push(rest);
        match decoder.next_frame() {
            Ok(Some(frame)) => {
                let end = place + frame.wire_bytes();
                found.push(Placed { start: bodies.offset(place), end: bodies.offset(end - 1) + 1, frame });
                place = end;
            }
            _ => place += 1,
        }
    }
    found
}

/// What the messages of a stream carry, and where each piece of it lay.
#[derive(Debug, Default)]
struct Bodies {
    bytes: Vec<u8>,
    /// Where a piece begins in `bytes`, and in the stream.
    pieces: Vec<(usize, usize)>,
}

impl Bodies {
    fn of(stream: &[u8]) -> Bodies {
        let (mut bodies, mut place) = (Bodies::default(), 0);
        while let Some(after) = end_of(stream, place, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&stream[place..after]).to_ascii_lowercase();
            place = if head.contains("\r\ntransfer-encoding: chunked\r\n") {
                bodies.take_chunks(stream, after)
            } else {
                let length =
                    head.split("\r\ncontent-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
                bodies.take(stream, after, length.unwrap_or(0))
            };
        }
        bodies
    }

    /// Takes chunks until the last, or as far as they came; gives where that ends.
    fn take_chunks(&mut self, stream: &[u8], mut place: usize) -> usize {
        while let Some(after) = end_of(stream, place, b"\r\n") {
            let line = String::from_utf8_lossy(&stream[place..after - 2]);
            let Ok(length) = usize::from_str_radix(&line, 16) else { return stream.len() };
            // A line ends each chunk; after the last no trailers are expected.
            place = self.take(stream, after, length) + 2;
            if length == 0 {
                break;
            }
        }
        place
    }

    fn take(&mut self, stream: &[u8], start: usize, length: usize) -> usize {
        let end = start.saturating_add(length).min(stream.len());
        self.pieces.push((self.bytes.len(), start));
        self.bytes.extend_from_slice(&stream[start..end]);
        end
    }

    fn offset(&self, place: usize) -> u64 {
        let piece = self.pieces.partition_point(|(start, _)| *start <= place) - 1;
        let (start, offset) = self.pieces[piece];
        (offset + place - start) as u64
    }
}

/// Where the first such bytes from a place on end.
fn end_of(stream: &[u8], place: usize, what: &[u8]) -> Option<usize> {
    let found = stream.get(place..)?.windows(what.len()).position(|window| window == what)?;
    Some(place + found + what.len())
}

#[cfg(test)]
mod tests {
    use headwater_protocol::{Frame, Kind};

    use super::frames;

    #[test]
    fn frames_are_found_though_chunks_divide_and_join_them() {
        let kinds = [Kind::Heartbeat, Kind::End, Kind::Heartbeat];
        let bytes = kinds.map(|kind| Frame::new(kind, b"payload".to_vec()).to_bytes());
        let (first, last) = bytes[1].split_at(5);
        let mut stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in [[&bytes[0], first].concat(), [last, &bytes[2]].concat(), Vec::new()] {
            stream.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            stream.extend_from_slice(&chunk);
            stream.extend_from_slice(b"\r\n");
        }
        stream.extend_from_slice(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes[0].len()).as_bytes());
        stream.extend_from_slice(&bytes[0]);
        let found = frames(&stream);
        let kinds: Vec<Kind> = found.iter().map(|placed| placed.frame.kind).collect();
        assert_eq!(kinds, [Kind::Heartbeat, Kind::End, Kind::Heartbeat, Kind::Heartbeat]);
        for (placed, bytes) in found.iter().zip([&bytes[0], &bytes[1], &bytes[2], &bytes[0]]) {
            assert_eq!(stream[placed.start as usize], bytes[0]);
            assert_eq!(stream[placed.end as usize - 1], bytes[bytes.len() - 1]);
        }
        // The second frame ends in the second chunk, behind its line.
        assert!(found[1].end - found[1].start > bytes[1].len() as u64);
        assert_eq!(frames(&stream[..stream.len() - 1]).len(), 3);
    }
}
