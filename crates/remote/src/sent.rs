//! What was uploaded lately, in case the consolidated database loses it ([`crate::lost`]).
//!
//! The frames of the last uploads stay in `hw_upload` after their receipts, which `hw_sent` has, until newer ones need the room.
//!
//! Which uploads they were is said in each HELLO ([`newest`]): another file of this remote ID may have used their numbers.
//!
//! *Caveats.* Of an upload that is larger than [`KEPT_BYTES_MAX`] number and digest are kept alone, and the oldest make way for newer ones.

use headwater_protocol::message::{AppliedUpload, Receipt, UPLOADS_NAMED_MAX, UploadEnd};
use rusqlite::{Connection, params};

use crate::cut::forget_frames;
use crate::error::{Error, While};
use crate::pieces::frozen_bytes;

/// How many bytes of frames are kept.
const KEPT_BYTES_MAX: i64 = 1 << 20;
/// How many uploads are kept, however small.
const KEPT_UPLOADS_MAX: i64 = 200;

/// Keeps the upload whose receipt is being applied, inside that transaction: its frames stay where they were frozen.
pub(crate) fn keep(connection: &Connection, end: &UploadEnd, receipt: &Receipt) -> Result<(), Error> {
    let mut receipt = receipt.to_payload();
    let mut bytes = frozen_bytes(connection)? as i64 + receipt.len() as i64;
    if bytes > KEPT_BYTES_MAX {
        forget_frames(connection, end.sequence)?;
        (receipt, bytes) = (Vec::new(), 0);
    }
    let keep = || -> rusqlite::Result<()> {
        let sql = "INSERT INTO \"hw_sent\" (\"upload\", \"bytes\", \"receipt\", \"digest\") VALUES (?, ?, ?, ?)";
        connection.prepare_cached(sql)?.execute(params![end.sequence as i64, bytes, receipt, end.digest])?;
        make_room(connection, end.sequence)
    };
    keep().while_doing("keeping what was sent")
}

/// The last uploads that have a receipt, newest first. (Of those that an earlier version of Headwater kept, the digests are not known.)
pub(crate) fn newest(connection: &Connection) -> Result<Vec<AppliedUpload>, Error> {
    let sql =
        "SELECT \"upload\", \"digest\" FROM \"hw_sent\" WHERE \"digest\" IS NOT NULL ORDER BY \"upload\" DESC LIMIT ?";
    let read = |row: &rusqlite::Row<'_>| Ok(AppliedUpload::new(row.get::<_, i64>(0)? as u64, &row.get(1)?));
    let uploads = || -> rusqlite::Result<Vec<AppliedUpload>> {
        connection.prepare_cached(sql)?.query_map([UPLOADS_NAMED_MAX as i64], read)?.collect()
    };
    uploads().while_doing("reading which uploads were sent")
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
