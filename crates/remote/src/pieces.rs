//! The frozen upload's bytes, piece by piece: packed as they are sent, from where the server stands.

use headwater_protocol::Frame;
use headwater_protocol::frame::HEADER_BYTES;
use rusqlite::Connection;

use crate::cut::frozen_frame;
use crate::error::{Error, While};

/// Above so many bytes, before they are packed, an upload goes in pieces: what proxies let through, with room for HELLO.
pub(crate) const LARGE_BYTES: u64 = 900_000;

/// How many bytes the frozen upload has, before they are packed.
pub(crate) fn frozen_bytes(connection: &Connection) -> Result<u64, Error> {
    let sql = "SELECT coalesce(sum(length(\"payload\")), 0) FROM \"hw_upload\" \
               WHERE \"upload\" = (SELECT \"frozen\" FROM \"hw_state\") AND \"frame\" > 0";
    let bytes = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).while_doing("measuring the upload")?;
    Ok(bytes as u64)
}

/// The most bytes that the frozen upload's frames may take on their way.
pub(crate) fn announced_bytes(connection: &Connection) -> Result<u64, Error> {
    let sql =
        "SELECT count(*) FROM \"hw_upload\" WHERE \"upload\" = (SELECT \"frozen\" FROM \"hw_state\") AND \"frame\" > 0";
    let frames = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).while_doing("measuring the upload")?;
    Ok(frozen_bytes(connection)? + frames as u64 * HEADER_BYTES as u64)
}

/// Where the last piece ended. At most one frame and one piece are in memory.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// The frame that is next, where it begins in the upload, and how it travels once it is packed.
    number: i64,
    start: u64,
    packed: Option<Vec<u8>>,
}

impl Default for Pieces {
    fn default() -> Self {
        Pieces { number: 1, start: 0, packed: None }
    }
}

impl Pieces {
    /// The bytes from `offset` on, at most so many; and whether they are the last.
    pub(crate) fn piece(
        &mut self,
        connection: &Connection,
        offset: u64,
        bytes_max: usize,
    ) -> Result<(Vec<u8>, bool), Error> {
        if offset < self.start {
            *self = Pieces::default();
        }
        let mut piece = Vec::new();
        while piece.len() < bytes_max {
            if self.packed.is_none() {
                let Some((kind, payload)) = frozen_frame(connection, self.number)? else {
                    return Ok((piece, true));
                };
                self.packed = Some(Frame::packed(kind, payload).to_bytes());
            }
            let packed = self.packed.as_deref().unwrap_or_default();
            let from = (offset + piece.len() as u64).saturating_sub(self.start).min(packed.len() as u64) as usize;
            let until = packed.len().min(from + bytes_max - piece.len());
            piece.extend_from_slice(&packed[from..until]);
            if until == packed.len() {
                self.start += packed.len() as u64;
                self.number += 1;
                self.packed = None;
            }
        }
        Ok((piece, false))
    }
}

#[cfg(test)]
mod tests {
    use headwater_protocol::Type;

    use super::*;
    use crate::tests::support::{Fixture, model, table};

    #[test]
    fn pieces_of_any_size_from_any_offset_make_the_same_upload() {
        let f = Fixture::new(&model(vec![table("doc", &[("id", Type::Int), ("body", Type::Bytes)])]));
        f.sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400) \
             INSERT INTO doc SELECT i, randomblob(1000) FROM n",
        );
        f.cut().expect("an upload");
        let connection = &f.remote.database.connection;
        let (all, is_last) = Pieces::default().piece(connection, 0, usize::MAX / 2).expect("sound");
        assert!(is_last && all.len() > 400_000 && all.len() as u64 <= announced_bytes(connection).expect("sound"));
        for bytes_max in [1_000, 65_536, 99_999] {
            let (mut pieces, mut sent) = (Pieces::default(), Vec::new());
            loop {
                let (piece, is_last) = pieces.piece(connection, sent.len() as u64, bytes_max).expect("sound");
                assert!(piece.len() == bytes_max || is_last);
                sent.extend(piece);
                if is_last {
                    break;
                }
            }
            assert!(sent == all, "in pieces of {bytes_max}");
            // Back to where a server stands that had less, and past the end.
            let (piece, _) = pieces.piece(connection, 70_001, 10).expect("sound");
            assert!(piece == all[70_001..70_011]);
            assert_eq!(pieces.piece(connection, all.len() as u64, 10).expect("sound"), (Vec::new(), true));
        }
    }
}
