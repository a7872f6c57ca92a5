//! What the database keeps of a remote's uploads: number, digest and receipt of the last one, number and digest of some before.

use headwater_model::script::Step;
use headwater_protocol::message::{Change, Outcome, Receipt};
use headwater_protocol::{Value, upload as protocol};

use super::source::SourceReader;
use super::{Counts, UploadRequest, Uploaded, Verdict};
use crate::backend::Query;
use crate::rows::Echo;
use crate::system::{Cuts, History, bytes, dialect_sql, integer, lock_asked};
use crate::{Connection, Dialect, Error};

/// The last upload that was applied.
pub(super) struct Stored {
    sequence: u64,
    history: History,
    cuts: Cuts,
    receipt: Vec<u8>,
    own: Vec<u8>,
}

impl Stored {
    pub(super) fn of_protocol(&self) -> protocol::Stored {
        protocol::Stored { sequence: self.sequence, digest: self.history.digest(), cut: self.cuts.of(self.sequence) }
    }
}

/// What [`lock`] asks the database.
pub(super) fn asked(dialect: Dialect, remote_id: &[u8; 16]) -> Query {
    lock_asked(dialect, "upload_sequence, upload_digest, receipt, own_mark, upload_cuts", remote_id)
}

/// Locks the remote's row without waiting, and reads its last upload; `None` if there was none.
pub(super) fn lock(connection: &mut dyn Connection, remote_id: &[u8; 16]) -> Result<Option<Stored>, Error> {
    let Query { sql, parameters } = asked(connection.dialect(), remote_id);
    let rows = connection.query(&sql, &parameters)?;
    let Some(row) = rows.first() else {
        let what = format!("remote {} is not registered", hex::encode(remote_id));
        return Err(Error::Database { context: "applying an upload".to_owned(), detail: what });
    };
    let sequence = integer(row.first(), "upload_sequence")? as u64;
    if sequence == 0 {
        return Ok(None);
    }
    Ok(Some(Stored {
        sequence,
        history: History::read(row.get(1))?,
        cuts: Cuts::read(row.get(4))?,
        receipt: bytes(row.get(2), "receipt")?,
        own: bytes(row.get(3), "own_mark")?,
    }))
}

/// Writes the upload's number, digest and receipt beside its changes, and what the remote says of itself.
pub(super) fn keep(
    connection: &mut dyn Connection,
    request: &UploadRequest<'_>,
    uploaded: &Uploaded,
    stored: Option<&Stored>,
) -> Result<(), Error> {
    let (before, cuts, sequence) = match stored {
        Some(stored) => (stored.history.clone(), stored.cuts.clone(), stored.sequence),
        None => Default::default(),
    };
    let sql = "UPDATE {hw}remote SET upload_sequence = ?2, upload_digest = ?3, receipt = ?4, own_mark = ?5, user_name = ?6, model = ?7, \
               model_version = ?8, download_applied = ?9, upload_cuts = ?10, last_sync_at = {now} WHERE remote_id = ?1";
    let values = [
        Value::Bytes(request.remote_id.to_vec()),
        Value::Int(request.end.sequence as i64),
        Value::Bytes(before.followed_by(sequence, &request.end)),
        Value::Bytes(uploaded.receipt.to_payload()),
        Value::Bytes(uploaded.own.clone()),
        Value::text(request.user),
        Value::text(&request.plan.model.name),
        Value::Int(i64::from(request.plan.model.version)),
        Value::Bytes(request.download_applied.to_vec()),
        Value::Bytes(cuts.followed_by(request.end.sequence, request.cut)),
    ];
    connection.execute_with_next(&dialect_sql(connection.dialect(), sql), &values)
}

/// The same receipt again; what need not and what must be sent back is found from the upload, which has come again too.
pub(super) fn replay(
    request: &UploadRequest<'_>,
    reader: &mut SourceReader<'_>,
    stored: Stored,
) -> Result<Uploaded, Error> {
    let receipt = Receipt::from_payload(&stored.receipt)?;
    let (mut echo, mut conflicted) = (Echo::default(), Vec::new());
    let mut outcomes = receipt.outcomes.iter().peekable();
    while let Some(items) = reader.next()? {
        for item in items {
            let table = &request.plan.tables[item.table];
            let outcome = outcomes.next_if(|(ordinal, _)| *ordinal == item.ordinal).map(|(_, outcome)| outcome);
            let step = match item.change {
                Change { new: None, .. } => Some(Step::UploadDelete),
                Change { old: Some(_), .. } => Some(Step::UploadUpdate),
                _ => None,
            };
            let is_scripted = step.is_some_and(|step| table.table.script(step).is_some());
            let is_counted = step == Some(Step::UploadUpdate) && !table.table.sum.is_empty();
            // Of the others a version tells.
            if outcome.is_none() && !table.table.is_tracked() && (is_scripted || is_counted) {
                conflicted.push((table.number, table.key_of(item.change.image())));
            }
            match (outcome, &item.change.new) {
                (None, Some(row)) => echo.extend([echo.marker().stored(table, row)]),
                (None, None) => echo.extend([echo.marker().deleted(table, &table.key_of(item.change.image()))]),
                (Some(Outcome::Conflict(_)), _) => {
                    conflicted.push((table.number, table.key_of(item.change.image())));
                }
                (Some(Outcome::Refused(_)), _) => {}
            }
        }
    }
    Ok(Uploaded { verdict: Verdict::Replayed, receipt, echo, own: stored.own, conflicted, counts: Counts::default() })
}
