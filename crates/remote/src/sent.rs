//! What was uploaded lately, in case the consolidated database loses it ([`crate::lost`]).
//!
//! The frames of the last uploads stay in `hw_upload` after their receipts, which `hw_sent` has, until newer ones need the room.
//!
//! *Caveats.* An upload that is larger than [`KEPT_BYTES_MAX`] is not kept, and the oldest make way for newer ones.

use headwater_protocol::message::Receipt;
use rusqlite::{Connection, params};

use crate::cut::forget_frames;
use crate::error::{Error, While};
use crate::pieces::frozen_bytes;

/// How many bytes of frames are kept.
const KEPT_BYTES_MAX: i64 = 1 << 20;
/// How many uploads are kept, however small.
const KEPT_UPLOADS_MAX: i64 = 200;

/// Keeps the upload whose receipt is being applied, inside that transaction: its frames stay where they were frozen.
pub(crate) fn keep(connection: &Connection, sequence: u64, receipt: &Receipt) -> Result<(), Error> {
    let receipt = receipt.to_payload();
    let bytes = frozen_bytes(connection)? as i64 + receipt.len() as i64;
    if bytes > KEPT_BYTES_MAX {
        return forget_frames(connection, sequence);
    }
    let keep = || -> rusqlite::Result<()> {
        let sql = "INSERT INTO \"hw_sent\" (\"upload\", \"bytes\", \"receipt\") VALUES (?, ?, ?)";
        connection.prepare_cached(sql)?.execute(params![sequence as i64, bytes, receipt])?;
        make_room(connection, sequence)
    };
    keep().while_doing("keeping what was sent")
}

/// Forgets the oldest uploads beyond what is kept.
fn make_room(connection: &Connection, newest: u64) -> rusqlite::Result<()> {
    let sql = "SELECT \"upload\", \"bytes\" FROM \"hw_sent\" ORDER BY \"upload\" DESC";
    let mut uploads = connection.prepare_cached(sql)?;
    let (mut rows, mut bytes) = (uploads.query([])?, 0);
    while let Some(row) = rows.next()? {
        let upload: i64 = row.get(0)?;
        bytes += row.get::<_, i64>(1)?;
        if bytes > KEPT_BYTES_MAX || upload <= newest as i64 - KEPT_UPLOADS_MAX {
            connection.prepare_cached("DELETE FROM \"hw_sent\" WHERE \"upload\" <= ?")?.execute([upload])?;
            connection.prepare_cached("DELETE FROM \"hw_upload\" WHERE \"upload\" <= ?")?.execute([upload])?;
            break;
        }
    }
    Ok(())
}
