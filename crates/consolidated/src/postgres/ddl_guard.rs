//! Whether the relations that a download has read stayed as its snapshot had them.
//!
//! A snapshot protects rows, not tables. A table that is rewritten, emptied, replaced or gets another partition after the snapshot is read
//! as it is now, with rows that the snapshot can't see, so it reads as empty. No error says so. Therefore a download ends like this:
//!
//! ```text
//! snapshot S    relations that this transaction has locked: what it read     (pg_locks)
//!               state of each by S                                           ([`state_sql`])
//! ROLLBACK
//! snapshot T    state of the same relations by T
//! ```
//!
//! PostgreSQL locks a relation before it reads it and keeps the lock until the transaction ends, so `pg_locks` names each relation: parts,
//! parents, side tables, Headwater's own tables, and whatever a membership query reads through views, functions and policies. A change
//! that a read can have met is committed before T. The two states then differ, since each consists of the `xmin` of catalogue rows, and the
//! download is thrown away.
//!
//! *Caveats.* Some harmless changes count too (VACUUM FULL, GRANT). A function that a membership query calls may be replaced unseen.

use std::collections::BTreeMap;

use headwater_protocol::{Row, Value};

use super::connection::PostgresConnection;
use crate::catalogue::{integer, text};
use crate::results::QueryConnection as _;
use crate::{Connection as _, Error};

/// The least number that a relation of a user's has.
const FIRST_OWN_OID: u32 = 16_384;

/// The state of each relation that this transaction has locked. Indexes aside: they can be built anew at any time.
fn read_sql() -> String {
    format!(
        "WITH relation AS (SELECT DISTINCT l.relation AS id FROM pg_catalog.pg_locks l \
         WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= {FIRST_OWN_OID} \
         AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())) {} \
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') OR c.oid IS NULL AND pg_index_has_property(r.id, 'clusterable') IS NULL",
        state_sql()
    )
}

/// The same of the relations `?1`.
fn again_sql() -> String {
    format!("WITH relation AS (SELECT unnest(?1::text::oid[]) AS id) {}", state_sql())
}

/// Number, name (NULL: the snapshot does not have it), state.
fn state_sql() -> String {
    "SELECT r.id::int8, c.oid::regclass::text, concat_ws(' ', c.xmin, c.relfilenode, n.xmin, \
     (SELECT string_agg(concat(w.oid, ':', w.xmin), ',' ORDER BY w.oid) FROM pg_catalog.pg_rewrite w WHERE w.ev_class = c.oid), '/', \
     (SELECT string_agg(concat(i.inhrelid, ':', i.xmin), ',' ORDER BY i.inhrelid) FROM pg_catalog.pg_inherits i \
      WHERE i.inhparent = c.oid)) \
     FROM relation r \
     LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) ON c.oid = r.id"
        .to_owned()
}

/// States by number, with the names.
fn states(rows: &[Row]) -> BTreeMap<i64, (String, String)> {
    rows.iter().map(|row| (integer(row, 0), (text(row, 1), text(row, 2)))).collect()
}

impl PostgresConnection {
    /// Ends a download's transaction; the name of a relation that was altered under it.
    pub(super) fn end_guarded(&mut self) -> Result<Option<String>, Error> {
        let read = self.query(&read_sql(), &[]);
        self.rollback()?;
        let read = states(&read?);
        let numbers: Vec<String> = read.keys().map(i64::to_string).collect();
        let again = states(&self.query(&again_sql(), &[Value::text(format!("{{{}}}", numbers.join(",")))])?);
        // One without a name was made after the snapshot.
        let altered = read.iter().find(|(number, state)| state.0.is_empty() || again.get(number) != Some(state));
        Ok(altered.map(|(number, (name, _))| match again.get(number) {
            Some((now, _)) if name.is_empty() => now.clone(),
            _ => name.clone(),
        }))
    }
}
