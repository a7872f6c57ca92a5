//! Takes the answer to the question for a ready file out of bytes that come in arbitrary pieces.
//!
//! ```text
//! [WELCOME READY_FILE WATERMARKS] END
//! ```
//!
//! A HEARTBEAT may stand before any frame; an ERROR may too, and ends the answer. END alone says that there is none: the remote begins with
//! an ordinary download.

use super::answer::AnswerError;
use crate::frame::{Decoder, Kind};
use crate::limits::{Limits, Meter};
use crate::message::{ReadyFile, ServerError, Watermarks, Welcome};
use crate::wire::nothing;

/// What came.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadyAnswer {
    /// There is a file. The watermarks say what has been seen once it is the remote's.
    File(Welcome, ReadyFile, Watermarks),
    /// There is none.
    None,
    /// The server says why it can't tell.
    ServerError(ServerError),
}

/// Reads one such answer.
#[derive(Debug)]
pub struct ReadyReader {
    decoder: Decoder,
    meter: Meter,
    welcome: Option<Welcome>,
    file: Option<ReadyFile>,
    watermarks: Option<Watermarks>,
    answer: Option<ReadyAnswer>,
}

impl ReadyReader {
    /// A reader that takes no more than this.
    pub fn new(limits: Limits) -> ReadyReader {
        ReadyReader {
            decoder: Decoder::new(limits.frame_bytes_max),
            meter: Meter::new(limits),
            welcome: None,
            file: None,
            watermarks: None,
            answer: None,
        }
    }

    /// Takes bytes that came.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), AnswerError> {
        self.decoder.push(bytes);
        while let Some(frame) = self.decoder.next_frame()? {
            let payload = self.meter.payload(&frame)?;
            let is_over = self.answer.is_some();
            match (frame.kind, &self.welcome, &self.file, &self.watermarks) {
                (actual, ..) if is_over => return Err(AnswerError::Order { actual, expected: "nothing more" }),
                (Kind::Heartbeat, ..) => nothing(&payload, "heartbeat")?,
                (Kind::Error, ..) => self.answer = Some(ReadyAnswer::ServerError(ServerError::from_payload(&payload)?)),
                (Kind::Welcome, None, ..) => self.welcome = Some(Welcome::from_payload(&payload)?),
                (Kind::ReadyFile, Some(_), None, _) => self.file = Some(ReadyFile::from_payload(&payload)?),
                (Kind::Watermarks, _, Some(_), None) => self.watermarks = Some(Watermarks::from_payload(&payload)?),
                (Kind::End, None, ..) => {
                    nothing(&payload, "end")?;
                    self.answer = Some(ReadyAnswer::None);
                }
                (Kind::End, Some(welcome), Some(file), Some(watermarks)) => {
                    nothing(&payload, "end")?;
                    self.answer = Some(ReadyAnswer::File(*welcome, *file, watermarks.clone()));
                }
                (actual, ..) => {
                    return Err(AnswerError::Order {
                        actual,
                        expected: "WELCOME, READY_FILE, WATERMARKS, END in this order",
                    });
                }
            }
        }
        Ok(())
    }

    /// The answer, once the bytes have ended.
    pub fn finish(self) -> Result<ReadyAnswer, AnswerError> {
        self.answer.filter(|_| self.decoder.is_at_boundary()).ok_or(AnswerError::Truncated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use crate::message::{ErrorCode, WatermarkEntry};

    fn welcome() -> Welcome {
        Welcome { incarnation: [1; 16], note: [2; 16], ..Welcome::default() }
    }

    fn file() -> ReadyFile {
        ReadyFile { id: [3; 16], digest: [4; 32], bytes: 8192, rows: 7, kept_s: 60 }
    }

    fn watermarks() -> Watermarks {
        let entries = vec![WatermarkEntry { table: 0, partition: Vec::new(), mark: 0 }];
        Watermarks { marks: vec![vec![5]], entries }
    }

    fn end() -> Frame {
        Frame::new(Kind::End, Vec::new())
    }

    fn read(frames: &[Frame], piece: usize) -> Result<ReadyAnswer, AnswerError> {
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
        let mut reader = ReadyReader::new(Limits::ANSWER);
        bytes.chunks(piece).try_for_each(|piece| reader.push(piece))?;
        reader.finish()
    }

    #[test]
    fn an_answer_is_read_in_pieces_of_any_size() {
        let beat = Frame::new(Kind::Heartbeat, Vec::new());
        let (welcome, file, marks) = (welcome(), file(), watermarks());
        let frames = [beat.clone(), welcome.to_frame(), beat, file.to_frame(), marks.to_frame(), end()];
        for piece in [1, 7, 1000] {
            assert_eq!(read(&frames, piece), Ok(ReadyAnswer::File(welcome, file, marks.clone())));
            assert_eq!(read(&[end()], piece), Ok(ReadyAnswer::None));
        }
        let busy = ServerError { code: ErrorCode::Overloaded, retry_after_ms: 9, message: String::new() };
        assert_eq!(read(&[busy.to_frame()], 5), Ok(ReadyAnswer::ServerError(busy)));
    }

    #[test]
    fn what_is_not_whole_or_in_order_is_refused() {
        let (welcome, file, marks) = (welcome().to_frame(), file().to_frame(), watermarks().to_frame());
        let order = |frames: &[Frame]| matches!(read(frames, 1000), Err(AnswerError::Order { .. }));
        assert!(order(std::slice::from_ref(&file)), "a file before the welcome");
        assert!(order(&[welcome.clone(), marks.clone()]), "watermarks of no file");
        assert!(order(&[welcome.clone(), end()]), "a welcome to nothing");
        assert!(order(&[welcome.clone(), file.clone(), end()]), "a file without watermarks");
        assert!(order(&[welcome.clone(), file.clone(), file.clone()]), "two files");
        assert!(order(&[welcome.clone(), end(), end()]), "more after the end");
        assert_eq!(read(&[welcome.clone(), file.clone(), marks.clone()], 9), Err(AnswerError::Truncated));
        let mut cut: Vec<u8> = [welcome, file, marks, end()].iter().flat_map(Frame::to_bytes).collect();
        cut.pop();
        let mut reader = ReadyReader::new(Limits::ANSWER);
        reader.push(&cut).expect("all that came is in order");
        assert_eq!(reader.finish(), Err(AnswerError::Truncated));
    }
}
