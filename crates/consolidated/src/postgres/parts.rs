//! Following the tables below the tracked ones: `headwater_model::tracking::postgres::parts` has the SQL, here is what is done when.
//!
//! [`have_changed`] is asked in each download's snapshot, and costs nothing where the catalogue's rows of who is below whom are those
//! of the last time. [`adopt`] works in short transactions, one step each, so that it can stop anywhere and any server goes on from
//! there; an advisory lock keeps servers from doing the same twice. What can't be had now (somebody writes to the part for hours) is
//! put off, and downloads go on. A part on which the server's role can't make triggers is out of reach until a person mends that: the
//! table comes whole at each sync, and `check` names the part.
//!
//! A part that was away between two downloads, and is back, is seen by [`super::table_identity`]; one that comes or goes beside a download by
//! [`super::ddl_guard`].
//!
//! A table, or a part of it, may also be a partition of a table that is not below it, or inherit from one. A statement on that other table
//! fires no trigger for statements of the part ([`outer_parents`]). The table comes whole at each sync then, and once more when that ends,
//! which [`super::table_identity`] sees.
//!
//! *Caveats.* Parts on foreign servers are not followed.

use headwater_model::Lineage;
use headwater_model::sql::quote;
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::parts::{self, Part};
use headwater_model::tracking::postgres::refresh::NOT_NOTED;
use headwater_protocol::{Row, Value};

use super::{refresh, table_identity};
use crate::catalogue::{integer, text};
use crate::track::tracked_name;
use crate::{Connection, Error, Mode, Plan};

/// Steps of one [`adopt`]; more parts than that are not made between two downloads.
const STEPS_MAX: usize = 100_000;

/// "headpart" as a number: the advisory lock of those who follow parts.
const LOCK_SQL: &str = "SELECT pg_advisory_xact_lock(x'6865616470617274'::bigint)";

/// A part with which something is to be done.
struct Found {
    table_name: String,
    oid: i64,
    /// Whether it is a part now.
    is_there: bool,
    state: State,
    /// Whether the time has come for another attempt.
    is_due: bool,
    /// `None`: there is no such table any more.
    part: Option<Part>,
    /// Its triggers for statements that are there, call our function, and fire always.
    triggers: usize,
    is_replicated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Armed,
    Tracked,
    Late,
    Left,
}

/// What is next for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It gets its triggers.
    Arm,
    /// Its rows are noted.
    Note,
    /// Its rows are noted as deleted.
    Bury,
    /// The table is sent again: what was in it is unknown.
    Forget,
    /// Its triggers are dropped.
    Disarm,
}

impl Found {
    fn read(row: &Row) -> Found {
        let is_true = |place: usize| row.get(place) == Some(&Value::Bool(true));
        let name = text(row, 6);
        let state = match text(row, 3).as_str() {
            "armed" => State::Armed,
            "tracked" => State::Tracked,
            "late" => State::Late,
            "left" => State::Left,
            _ => State::Unknown,
        };
        Found {
            table_name: text(row, 0),
            oid: integer(row, 1),
            is_there: is_true(2),
            state,
            is_due: is_true(4),
            part: (!name.is_empty()).then(|| Part { schema: text(row, 5), name, is_partition: is_true(7) }),
            triggers: integer(row, 8) as usize,
            is_replicated: is_true(9),
        }
    }

    /// What is to be done now.
    fn step(&self) -> Option<Step> {
        match (self.is_there, self.state) {
            (true, State::Tracked) => None,
            (true, State::Armed) => Some(Step::Note),
            (true, State::Late) => self.is_due.then_some(Step::Arm),
            (true, State::Unknown | State::Left) => Some(Step::Arm),
            (false, State::Left) => self.is_due.then_some(Step::Disarm),
            (false, State::Armed | State::Tracked) if self.is_legible() => Some(Step::Bury),
            (false, _) => Some(Step::Forget),
        }
    }

    /// What a person is told of it: one that was dropped has no name.
    fn described(&self) -> String {
        match &self.part {
            Some(part) => format!("{}, which was a part of it", part.qualified()),
            None => format!("a part of it that was dropped (OID {})", self.oid),
        }
    }

    /// Whether what is in it now, with what was noted since it is a part no more, is all that was in it.
    fn is_legible(&self) -> bool {
        self.part.is_some() && self.triggers == parts::statement_trigger_count() && !self.is_replicated
    }
}

/// The tables that downloads read, each with the name under which it is tracked.
fn tables(plan: &Plan) -> Vec<(String, Lineage<'_>)> {
    let tables = plan.model.tables.iter().filter(|table| table.is_tracked());
    let lineages = tables.map(|table| Lineage::new(&plan.model, table));
    lineages.map(|lineage| (tracked_name(&lineage), lineage)).collect()
}

/// What has to be followed, as the database sees it now; those that wait for another attempt among them.
fn list(connection: &mut dyn Connection, tables: &[(String, Lineage<'_>)]) -> Result<Vec<Found>, Error> {
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    Ok(connection.query(&parts::list(tables), &[])?.iter().map(Found::read).collect())
}

/// Whether something is to be done about parts now, and whether anything is left for later.
pub(super) fn have_changed(connection: &mut dyn Connection, plan: &Plan) -> Result<(bool, bool), Error> {
    let found = list(connection, &tables(plan))?;
    Ok((found.iter().any(|found| found.step().is_some()), !found.is_empty()))
}

/// A part on which the server's role can't make triggers: what is written to it directly is not noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutOfReach {
    table_name: String,
    oid: i64,
    pub(crate) part: Part,
    /// What the server's role lacks.
    pub(crate) why: String,
    /// The statement that mends it.
    pub(crate) mend: String,
}

impl OutOfReach {
    fn read(row: &Row) -> OutOfReach {
        let part =
            Part { schema: text(row, 2), name: text(row, 3), is_partition: row.get(4) == Some(&Value::Bool(true)) };
        let (role, missing, owner) = (text(row, 5), text(row, 6), text(row, 7));
        let (why, mend) = match missing.as_str() {
            "part" => ("does not own it", format!("ALTER TABLE {} OWNER TO {owner}", part.qualified())),
            "schema" => ("may not use its schema", format!("GRANT USAGE ON SCHEMA {} TO {role}", quote(&part.schema))),
            _ => ("does not own the table above it", format!("GRANT {owner} TO {role}")),
        };
        let why = format!("role {role} {why}");
        OutOfReach { table_name: text(row, 0), oid: integer(row, 1), part, why, mend }
    }
}

fn list_out_of_reach(
    connection: &mut dyn Connection,
    tables: &[(String, Lineage<'_>)],
) -> Result<Vec<OutOfReach>, Error> {
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    Ok(connection.query(&parts::out_of_reach(tables), &[])?.iter().map(OutOfReach::read).collect())
}

/// The parts of a table that are out of reach.
pub(crate) fn out_of_reach(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<Vec<OutOfReach>, Error> {
    list_out_of_reach(connection, &[(tracked_name(lineage), lineage.clone())])
}

/// A table that is above a tracked table or a part of it, and not below the table itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OuterParent {
    table_name: String,
    /// The table itself, or the part.
    pub(crate) part: Part,
    /// Schema and name, in quotes.
    pub(crate) parent: String,
}

impl OuterParent {
    fn read(row: &Row) -> OuterParent {
        let part =
            Part { schema: text(row, 1), name: text(row, 2), is_partition: row.get(3) == Some(&Value::Bool(true)) };
        let parent = format!("{}.{}", quote(&text(row, 4)), quote(&text(row, 5)));
        OuterParent { table_name: text(row, 0), part, parent }
    }

    /// The statement after which only statements on the table and its parts change their rows.
    pub(crate) fn mend(&self) -> String {
        let (parent, part) = (&self.parent, self.part.qualified());
        if self.part.is_partition {
            format!("ALTER TABLE {parent} DETACH PARTITION {part}")
        } else {
            format!("ALTER TABLE {part} NO INHERIT {parent}")
        }
    }
}

fn list_outer_parents(
    connection: &mut dyn Connection,
    tables: &[(String, Lineage<'_>)],
) -> Result<Vec<OuterParent>, Error> {
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    Ok(connection.query(&parts::outer_parents(tables), &[])?.iter().map(OuterParent::read).collect())
}

/// The tables above a table or its parts that are not below the table.
pub(crate) fn outer_parents(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<Vec<OuterParent>, Error> {
    list_outer_parents(connection, &[(tracked_name(lineage), lineage.clone())])
}

/// The tables that have a part out of reach, and those that take their partition from such a table.
pub(super) fn unfollowed_tables(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    let found = list_out_of_reach(connection, &tables(plan))?;
    Ok(with_those_below(plan, found.iter().map(|found| found.table_name.as_str())))
}

/// The tables of which rows are changed by statements on other tables, and those that take their partition from such a table.
pub(super) fn tables_below_others(connection: &mut dyn Connection, plan: &Plan) -> Result<Vec<String>, Error> {
    let found = list_outer_parents(connection, &tables(plan))?;
    Ok(with_those_below(plan, found.iter().map(|found| found.table_name.as_str())))
}

fn with_those_below<'n>(plan: &Plan, found: impl Iterator<Item = &'n str>) -> Vec<String> {
    let (tables, mut names) = (tables(plan), Vec::new());
    for found in found {
        let Some((_, lineage)) = tables.iter().find(|(name, _)| *name == found) else { continue };
        let kin = Kin::new(&plan.model, lineage.table());
        names.extend(std::iter::once(&kin.lineage).chain(&kin.below).map(tracked_name));
    }
    names.sort();
    names.dedup();
    names
}

/// Parts that were put off are tried at once.
pub(crate) fn make_due(connection: &mut dyn Connection, plan: &Plan) -> Result<(), Error> {
    let sql = "UPDATE headwater.part SET tried_at = NULL WHERE table_name = ?1 AND state = 'late'";
    tables(plan).iter().try_for_each(|(name, _)| connection.execute(sql, &[Value::text(name.as_str())]).map(drop))
}

/// Does what there is to do; no transaction is open.
pub(super) fn adopt(connection: &mut dyn Connection, plan: &Plan) -> Result<(), Error> {
    let tables = tables(plan);
    for _ in 0..STEPS_MAX {
        connection.begin(Mode::Upload)?;
        let next = locked(connection, &tables);
        let next = match next {
            Ok(Some(next)) => next,
            other => return crate::finish(connection, other).map(|_| ()),
        };
        let (found, step) = &next;
        let Some((_, lineage)) = tables.iter().find(|(name, _)| *name == found.table_name) else {
            return connection.rollback();
        };
        let kin = Kin::new(&plan.model, lineage.table());
        let done = run(connection, &kin, found, *step);
        match crate::finish(connection, done) {
            Err(error) if is_unnotable(*step, &error) => send_anew(connection, &kin, found, *step, &error)?,
            Err(error) if is_worth_waiting(*step, &error) => put_off(connection, &tables, &next, &error)?,
            other => other?,
        }
        tracing::info!(table = found.table_name, part = ?found.part, ?step, "a part of a tracked table came or went");
    }
    Ok(())
}

/// The next step, with the others kept out.
fn locked(connection: &mut dyn Connection, tables: &[(String, Lineage<'_>)]) -> Result<Option<(Found, Step)>, Error> {
    connection.query(LOCK_SQL, &[])?;
    let found = list(connection, tables)?;
    Ok(found.into_iter().find_map(|found| found.step().map(|step| (found, step))))
}

fn run(connection: &mut dyn Connection, kin: &Kin<'_>, found: &Found, step: Step) -> Result<(), Error> {
    match (step, &found.part) {
        (Step::Arm, Some(part)) => {
            connection.batch(&parts::limit_wait())?;
            // Where a part inherits, the table's own triggers are made again.
            let is_recorded = !part.is_partition && table_identity::has_records(connection)?;
            if is_recorded {
                table_identity::settle_inside(connection, &[kin])?;
            }
            parts::arm(&kin.lineage, part).iter().try_for_each(|statement| connection.batch(statement))?;
            if is_recorded {
                table_identity::record(connection, &[kin])?;
            }
            if found.state == State::Left {
                // Its triggers noted what was written to it while it was none.
                write(connection, &parts::bury_rest(kin, part))?;
            }
            if found.state == State::Late {
                // It was read and written meanwhile.
                let cause = format!("{} was written to while it was a part without triggers", part.qualified());
                refresh::append(connection, kin, &cause)?;
                return remember(connection, found, "tracked");
            }
            remember(connection, found, "armed")
        }
        (Step::Note, Some(part)) => {
            // Whoever moves their parents meanwhile waits, or is waited for.
            parts::hold(&kin.lineage, part).iter().try_for_each(|sql| write(connection, sql))?;
            parts::note(kin, part).iter().try_for_each(|sql| write(connection, sql))?;
            remember(connection, found, "tracked")
        }
        (Step::Bury, Some(part)) => {
            parts::hold(&kin.lineage, part).iter().try_for_each(|sql| write(connection, sql))?;
            parts::bury(kin, part).iter().try_for_each(|sql| write(connection, sql))?;
            remember(connection, found, "left")
        }
        (Step::Forget, part) => {
            refresh::append(connection, kin, &format!("it is unknown which rows were in {}", found.described()))?;
            // Without triggers of ours it may be any table: a loaded dump has its own numbers.
            if part.is_some() && found.triggers > 0 {
                remember(connection, found, "left")
            } else {
                forget(connection, found)
            }
        }
        (Step::Disarm, part) => {
            if let Some(part) = part.as_ref().filter(|_| found.triggers > 0) {
                connection.batch(&parts::limit_wait())?;
                parts::disarm(&kin.lineage, part).iter().try_for_each(|statement| connection.batch(statement))?;
                write(connection, &parts::bury_rest(kin, part))?;
            }
            forget(connection, found)
        }
        (Step::Arm | Step::Note | Step::Bury, None) => forget(connection, found),
    }
}

/// A part may be large.
fn write(connection: &mut dyn Connection, sql: &str) -> Result<(), Error> {
    connection.batch("SET LOCAL statement_timeout = 0")?;
    connection.execute(sql, &[]).map(|_| ())
}

/// Whether downloads can go on without this step.
fn is_worth_waiting(step: Step, error: &Error) -> bool {
    matches!(step, Step::Arm | Step::Disarm) && !matches!(error, Error::Retry { broken: true, .. })
}

/// Whether a part has a row that does not fit into the side table.
fn is_unnotable(step: Step, error: &Error) -> bool {
    matches!(step, Step::Note | Step::Bury) && matches!(error, Error::Refused { .. })
}

/// As the triggers do with such a row. No transaction is open.
fn send_anew(
    connection: &mut dyn Connection,
    kin: &Kin<'_>,
    found: &Found,
    step: Step,
    error: &Error,
) -> Result<(), Error> {
    connection.begin(Mode::Upload)?;
    let cause = format!("{NOT_NOTED}: rows of {}: {error}", found.described());
    let done = refresh::append(connection, kin, &cause)
        .and_then(|()| remember(connection, found, if step == Step::Note { "tracked" } else { "left" }));
    crate::finish(connection, done)
}

fn put_off(
    connection: &mut dyn Connection,
    tables: &[(String, Lineage<'_>)],
    (found, step): &(Found, Step),
    error: &Error,
) -> Result<(), Error> {
    let is_out_of_reach = list_out_of_reach(connection, tables)?.iter().any(|part| part.oid == found.oid);
    let what = match step {
        Step::Disarm => "its triggers could not be dropped",
        _ if is_out_of_reach => {
            "the whole table is sent at each sync; `headwater check` has the statement that mends it"
        }
        _ => "rows written to it directly are missed until it has triggers, and then the whole table is sent again",
    };
    tracing::warn!(table = found.table_name, part = ?found.part, %error, "a part of a tracked table is put off: {what}");
    remember(connection, found, if *step == Step::Disarm { "left" } else { "late" })
}

fn remember(connection: &mut dyn Connection, found: &Found, state: &str) -> Result<(), Error> {
    let sql = "INSERT INTO headwater.part (table_name, part, state, tried_at) \
               VALUES (?1, ?2::bigint::oid, ?3, CASE WHEN ?3 IN ('late', 'left') AND ?4 THEN clock_timestamp() END) \
               ON CONFLICT (table_name, part) DO UPDATE SET state = EXCLUDED.state, tried_at = EXCLUDED.tried_at";
    // What has just left is disarmed at once.
    let is_attempt = state == "late" || found.state == State::Left;
    let values =
        [Value::text(found.table_name.as_str()), Value::Int(found.oid), Value::text(state), Value::Bool(is_attempt)];
    connection.execute(sql, &values).map(|_| ())
}

fn forget(connection: &mut dyn Connection, found: &Found) -> Result<(), Error> {
    let sql = "DELETE FROM headwater.part WHERE table_name = ?1 AND part = ?2::bigint::oid";
    connection.execute(sql, &[Value::text(found.table_name.as_str()), Value::Int(found.oid)]).map(|_| ())
}

/// The statements that track the parts that a table has when it is tracked itself.
pub(crate) fn install(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<Vec<String>, Error> {
    let name = tracked_name(lineage);
    let rows = connection.query(&parts::found(&[(name.clone(), lineage.clone())]), &[])?;
    let mut statements = vec![forget_all(&name)];
    for row in &rows {
        let part = read_part(row);
        statements.extend(parts::arm(lineage, &part));
        statements.push(parts::record(&name, &part));
    }
    Ok(statements)
}

/// The statements that give the parts that a table has the triggers that they should have. What is still to be done about them stays so.
pub(crate) fn rearm(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<Vec<String>, Error> {
    let rows = connection.query(&parts::found(&[(tracked_name(lineage), lineage.clone())]), &[])?;
    Ok(rows.iter().flat_map(|row| parts::arm(lineage, &read_part(row))).collect())
}

fn read_part(row: &Row) -> Part {
    Part { schema: text(row, 1), name: text(row, 2), is_partition: row.get(3) == Some(&Value::Bool(true)) }
}

/// The statement that forgets a table's parts.
pub(crate) fn forget_all(tracked_name: &str) -> String {
    format!("DELETE FROM headwater.part WHERE table_name = {}", headwater_model::sql::literal(tracked_name))
}
