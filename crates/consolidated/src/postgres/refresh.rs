//! Tables that come whole to every remote that has not seen a transaction: `headwater_model::tracking::postgres::refresh` has the form of
//! the table that says so, here is what servers write to it and read from it.

use headwater_model::sql::literal;
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::refresh;
use headwater_protocol::Value;

use super::own_grants;
use crate::catalogue::text;
use crate::track::tracked_name;
use crate::{Connection, Error};

/// What an older build has instead: one row a table.
const APPEND_TO_OLD_SQL: &str = "INSERT INTO headwater.refresh (table_name, transaction, incarnation) \
    SELECT ?1, pg_current_xact_id(), incarnation FROM headwater.identity ON CONFLICT (table_name) \
    DO UPDATE SET transaction = EXCLUDED.transaction, incarnation = EXCLUDED.incarnation";

/// Deletes rows that say nothing more: those of other incarnations, and those before which a newer row sees everything.
const FOLD_SQL: &str = "DELETE FROM headwater.refresh_event r USING headwater.identity i \
    WHERE r.incarnation <> i.incarnation OR EXISTS (SELECT 1 FROM headwater.refresh_event n \
    WHERE n.table_name = r.table_name AND n.incarnation = r.incarnation AND n.seen_below > r.transaction)";

/// How long after a table came whole `check` warns of it, in days.
pub(crate) const WARNED_DAYS: u32 = 7;

/// How many causes of a table are looked at.
const CAUSES_MAX: u32 = 100;

/// Why a table comes whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refreshed {
    /// When the newest cause was written, in UTC.
    pub(crate) at: String,
    pub(crate) cause: String,
}

/// The table, and those that take their partition from it, come whole to every remote that has not seen this transaction, which is the one
/// that is open.
pub(crate) fn append(connection: &mut dyn Connection, kin: &Kin<'_>, cause: &str) -> Result<(), Error> {
    let names: Vec<String> = std::iter::once(&kin.lineage).chain(&kin.below).map(tracked_name).collect();
    for table in &names {
        tracing::info!(table, cause, "the table will come afresh to every remote");
    }
    if has_events(connection)? {
        let sql = refresh::append(names.iter().map(String::as_str), "?1");
        return connection.execute(&sql, &[Value::text(cause)]).map(drop);
    }
    names.into_iter().try_for_each(|name| connection.execute(APPEND_TO_OLD_SQL, &[Value::text(name)]).map(drop))
}

/// Whether the table is there to which new rows go, and this role may use it: a role that was granted the older table alone goes on with
/// that one, and reads the new rows through it.
pub(super) fn has_events(connection: &mut dyn Connection) -> Result<bool, Error> {
    let sql = "SELECT coalesce(has_table_privilege(e.id, 'SELECT') AND has_table_privilege(e.id, 'INSERT') \
               AND has_table_privilege(e.id, 'DELETE'), false) FROM to_regclass('headwater.refresh_event') AS e(id)";
    let rows = connection.query(sql, &[])?;
    Ok(rows.first().and_then(|row| row.first()) == Some(&Value::Bool(true)))
}

/// A query of `columns` of the rows `r` that say something: no newer row sees everything before them.
pub(super) fn unseen_sql(columns: &str) -> String {
    format!(
        "SELECT {columns} FROM headwater.refresh r JOIN headwater.identity i ON i.incarnation = r.incarnation \
         LEFT JOIN (SELECT DISTINCT ON (e.table_name, e.incarnation) e.table_name, e.incarnation, e.seen_below \
         FROM headwater.refresh_event e ORDER BY e.table_name, e.incarnation, e.seen_below DESC) n \
         ON n.table_name = r.table_name AND n.incarnation = r.incarnation \
         WHERE n.seen_below IS NULL OR r.transaction >= n.seen_below"
    )
}

/// Keeps the table small.
pub(crate) fn fold(connection: &mut dyn Connection) -> Result<(), Error> {
    if has_events(connection)? { connection.execute(FOLD_SQL, &[]).map(drop) } else { Ok(()) }
}

/// Deletes rows of transactions below a horizon: a remote that has not seen them starts afresh anyway.
pub(crate) fn purge(connection: &mut dyn Connection, below: u64) -> Result<(), Error> {
    if !has_events(connection)? {
        return Ok(());
    }
    let sql = "DELETE FROM headwater.refresh_event WHERE transaction < ?1::text::xid8";
    connection.execute(sql, &[Value::text(below.to_string())]).map(drop)
}

/// The newest cause for which a table comes whole that comes again as long as the application writes in the same way: of the last
/// [`WARNED_DAYS`], and since `track` last changed the table's tracking. A table that was altered or restored comes whole once, and has none,
/// and a privilege that was missing and is there now is no cause any more.
pub(crate) fn recurring(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Option<Refreshed>, Error> {
    if !has_events(connection)? {
        return Ok(None);
    }
    let sql = format!(
        "SELECT to_char(max(r.at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), r.cause \
         FROM headwater.refresh_event r JOIN headwater.identity i ON i.incarnation = r.incarnation \
         WHERE r.table_name = ?1 AND (starts_with(r.cause, {}) OR starts_with(r.cause, {})) \
         AND r.at > clock_timestamp() - interval '{WARNED_DAYS} days' AND r.at > coalesce((SELECT t.installed_at \
         FROM headwater.tracked t WHERE t.table_name = ?1), '-infinity') GROUP BY r.cause ORDER BY max(r.at) DESC LIMIT {CAUSES_MAX}",
        literal(refresh::NOT_NOTED),
        literal(refresh::OLDER_SNAPSHOT),
    );
    for row in connection.query(&sql, &[Value::text(tracked_name(&kin.lineage))])? {
        let refreshed = Refreshed { at: text(&row, 0), cause: text(&row, 1) };
        if !lacked_a_privilege(&refreshed.cause) || !own_grants::is_granted(connection, kin, &refreshed.cause)? {
            return Ok(Some(refreshed));
        }
    }
    Ok(None)
}

/// Whether a row could not be noted for want of a privilege.
pub(crate) fn lacked_a_privilege(cause: &str) -> bool {
    cause.strip_prefix(refresh::NOT_NOTED).is_some_and(|rest| rest.starts_with(" (42501)"))
}
