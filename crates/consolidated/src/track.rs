//! Installing and removing change tracking.

use crate::{Connection, Error, Plan};

/// The SQL that [`track`] would run now, Headwater's own tables aside.
pub fn plan_tracking(_connection: &mut dyn Connection, _plan: &Plan) -> Result<Vec<String>, Error> {
    Err(Error::Setup { what: "tracking is not built yet".into(), mend: "wait".into() })
}

/// Makes Headwater's own tables and the tracking of the model's; harmless where all is there. Gives what was run.
pub fn track(_connection: &mut dyn Connection, _plan: &Plan) -> Result<Vec<String>, Error> {
    Err(Error::Setup { what: "tracking is not built yet".into(), mend: "wait".into() })
}

/// The SQL that [`untrack`] would run.
pub fn plan_untracking(_connection: &mut dyn Connection, _plan: &Plan) -> Result<Vec<String>, Error> {
    Err(Error::Setup { what: "tracking is not built yet".into(), mend: "wait".into() })
}

/// Removes the tracking of the model's tables. Headwater's own tables stay: they know the remotes.
pub fn untrack(_connection: &mut dyn Connection, _plan: &Plan) -> Result<Vec<String>, Error> {
    Err(Error::Setup { what: "tracking is not built yet".into(), mend: "wait".into() })
}
