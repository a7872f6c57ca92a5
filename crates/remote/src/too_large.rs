//! An upload that is not taken, in pieces or not: by a server with lower limits, by a proxy that takes no pieces, by a server that can't
//! read a row of it.
//!
//! What is cut is halved until it passes; what then still is refused is a single change. It is tried once more (the limit is 0 then: a
//! length that was damaged on the way is answered as too large as well), and set aside. The limit found is kept and
//! doubles with each upload that passes.

use headwater_protocol::message::{ErrorCode, Refusal, RefusalCode, ServerError};

use crate::cut;
use crate::database::Database;
use crate::error::Error;
use crate::pieces::frozen_bytes;
use crate::plan::Plan;
use crate::receipt;
use crate::state::State;

/// Thaws the frozen upload and halves what the next may hold, or sets its only change aside; whether it did that.
pub(crate) fn cut_smaller(
    database: &Database,
    plan: &Plan,
    error: &ServerError,
    is_given_up: bool,
    now: &str,
) -> Result<bool, Error> {
    database.write("cutting an upload smaller", |connection| {
        let state = State::read(connection)?;
        let Some(end) = state.frozen else {
            return Err(Error::damaged("an upload is to be cut smaller, but none is on its way"));
        };
        if end.changes == 1 && state.cut_bytes_max == 0 {
            let code = if error.code == ErrorCode::TooLarge { RefusalCode::RowTooLarge } else { RefusalCode::Data };
            let refusal = Refusal { code, message: error.message.clone() };
            cut::use_number_up(connection, end.sequence, is_given_up)?;
            receipt::refuse_alone(connection, plan, &end, refusal, now)?;
            return Ok(true);
        }
        let bytes = frozen_bytes(connection)?;
        cut::thaw(connection, plan, is_given_up)?;
        // A single large change may have taken it far beyond what it was to hold.
        let half = (bytes.min(state.cut_bytes_max) / 2).max(1);
        State::set_cut_bytes_max(connection, if end.changes == 1 { 0 } else { half })?;
        tracing::info!(bytes, code = error.code.name(), "an upload is not taken; it is cut smaller");
        Ok(false)
    })
}
