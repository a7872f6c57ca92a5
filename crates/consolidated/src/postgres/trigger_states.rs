//! Triggers of change tracking that are not enabled as they were made.
//!
//! `ALTER TABLE ... DISABLE TRIGGER USER` switches tracking off. `ENABLE TRIGGER USER` then enables the triggers for ordinary sessions only
//! (`O`), and tracking needs `A` (always), or `R` (replica) for the trigger of rows. `pg_restore --disable-triggers` runs the same two
//! statements. Nothing but the state has changed, so the triggers get it back where they are, and the table comes whole to every remote
//! that has not seen that transaction.
//!
//! Downloads do this by themselves ([`enable_again`]) once no trigger is off. A trigger that is off may be off on purpose, for a load that
//! is still running: only `track` enables it.

use headwater_model::sql::{literal, quote};
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::{base_table, function_name, table_id};
use headwater_protocol::Row;

use super::{refresh, table_identity};
use crate::catalogue::{Tracking, text};
use crate::{Connection, Error, Mode, Plan};

/// The cause on record of a table whose triggers got their state back.
pub(crate) const CAUSE: &str = "triggers of change tracking were switched off";

/// A trigger on a tracked table or on a part of it, in another state than it was made in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Altered {
    /// The schema and the name of its table, in quotes.
    on: String,
    name: String,
    /// `O`, `D`, `R` or `A`, as `pg_trigger.tgenabled` has it.
    state: String,
    wanted: String,
}

impl Altered {
    fn read(row: &Row) -> Altered {
        Altered { on: text(row, 0), name: text(row, 1), state: text(row, 2), wanted: text(row, 3) }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.state == "D"
    }

    /// What a person reads.
    pub(super) fn described(&self) -> String {
        let Altered { on, name, .. } = self;
        if self.is_off() {
            format!("trigger {name} on {on} is off")
        } else {
            format!("trigger {name} on {on} is not enabled as it was made")
        }
    }

    fn enable(&self) -> String {
        let state = if self.wanted == "R" { "REPLICA" } else { "ALWAYS" };
        format!("ALTER TABLE ONLY {} ENABLE {state} TRIGGER {}", self.on, quote(&self.name))
    }
}

/// The triggers of a table and its parts that are in another state than they were made in. Bits of `tgtype`: 1 is a trigger of rows, 2 is
/// BEFORE.
pub(crate) fn altered(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Vec<Altered>, Error> {
    let sql = format!(
        "WITH RECURSIVE tree(id) AS (SELECT {} UNION \
         SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.id AND NOT i.inhdetachpending) \
         SELECT format('%I.%I', n.nspname, c.relname), g.tgname::text, g.tgenabled::text, w.state FROM tree t \
         JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.id AND NOT g.tgisinternal \
         JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid AND p.proname = {} AND p.pronamespace = to_regnamespace('headwater') \
         CROSS JOIN LATERAL (SELECT CASE WHEN g.tgtype & 3 = 1 THEN 'R' ELSE 'A' END) AS w(state) \
         JOIN pg_catalog.pg_class c ON c.oid = t.id JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE g.tgenabled::text <> w.state ORDER BY n.nspname, c.relname, g.tgname",
        table_id(&literal(&base_table(kin.table()))),
        literal(&function_name(&kin.lineage)),
    );
    Ok(connection.query(&sql, &[])?.iter().map(Altered::read).collect())
}

/// The statements that give the triggers the state that they were made in.
pub(crate) fn enable(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Vec<String>, Error> {
    Ok(altered(connection, kin)?.iter().map(Altered::enable).collect())
}

/// Gives the triggers of all tables their state back where none is off, and has those tables come whole. Gives whether there were any. No
/// transaction is open. Where it can't be done (the server's role does not own the table, or others write to it for too long), all stays
/// as it was.
pub(crate) fn enable_again(connection: &mut dyn Connection, plan: &Plan) -> Result<bool, Error> {
    connection.begin(Mode::Upload)?;
    let enabled = enable_inside(connection, plan);
    match crate::finish(connection, enabled) {
        Err(error @ Error::Retry { broken: true, .. }) => Err(error),
        Err(error) => {
            tracing::warn!(%error, mend = "run `headwater track`", "triggers of change tracking can't be enabled again");
            Ok(false)
        }
        Ok(count) => Ok(count > 0),
    }
}

fn enable_inside(connection: &mut dyn Connection, plan: &Plan) -> Result<usize, Error> {
    connection.batch(&headwater_model::tracking::postgres::parts::limit_wait())?;
    // What was done to tables before is not taken for what is done here; and one server does this at a time.
    table_identity::settle_all(connection, plan)?;
    let mut enabled = Vec::new();
    for table in plan.model.tables.iter().filter(|table| table.is_tracked()) {
        let kin = Kin::new(&plan.model, table);
        let is_disabled = matches!(super::tracking(connection, &kin)?, Tracking::Disabled(_));
        let altered = if is_disabled { altered(connection, &kin)? } else { Vec::new() };
        if altered.is_empty() || altered.iter().any(Altered::is_off) {
            continue;
        }
        for trigger in &altered {
            connection.batch(&trigger.enable())?;
        }
        refresh::append(connection, &kin, CAUSE)?;
        enabled.push(kin);
    }
    table_identity::record(connection, &enabled.iter().collect::<Vec<_>>())?;
    Ok(enabled.len())
}
