//! Making a ready file.

use std::io;
use std::path::Path;

use headwater_model::Model;
use headwater_protocol::Frame;
use rusqlite::Connection;

use crate::apply;
use crate::database::Database;
use crate::error::{Error, While};
use crate::plan::Plan;
use crate::schema;
use crate::state::State;

/// Bytes of a page, as SQLite makes them.
const PAGE_BYTES: u64 = 4096;

/// Makes a file at this path that has what a remote of this model has when it has applied these frames (WELCOME, DOWNLOAD, rows,
/// WATERMARKS; `None`: the end), but no identity. The file must not be there; after an error, what is there is of no use. It gets no larger
/// than `bytes_max`.
pub fn build(
    path: &Path,
    model: &Model,
    bytes_max: u64,
    frames: &mut dyn FnMut() -> io::Result<Option<Frame>>,
) -> Result<(), Error> {
    let plan = Plan::served(model)?;
    let database = Database::create_scratch(path)?;
    let pages = i64::try_from(bytes_max / PAGE_BYTES).unwrap_or(i64::MAX);
    let limited = database.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
    limited.while_doing("limiting the file")?;
    database.write("making a ready file", |connection| {
        schema::create(connection, &plan)?;
        nobody(&plan).insert(connection)
    })?;
    let mut next = |_: &Connection| {
        frames().map_err(|error| Error::Unexpected { what: format!("the frames can't be read: {error}") })
    };
    apply::apply(&database, &plan, "", &mut next, &mut |_| Ok(())).map(drop)
}

/// The state of a remote that is nobody's, and has neither seen nor sent anything.
pub(crate) fn nobody(plan: &Plan) -> State {
    State {
        remote_id: [0; 16],
        secret: [0; 32],
        server: String::new(),
        user: String::new(),
        model: plan.model.to_json(),
        fingerprint: plan.fingerprint,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 0,
        download_applied: [0; 16],
        frozen: None,
        is_staged: false,
        last_sync: None,
        cut_bytes_max: crate::cut::UPLOAD_BYTES_MAX,
        is_adopted: false,
        upload_refused: None,
        upload_used: 0,
    }
}
