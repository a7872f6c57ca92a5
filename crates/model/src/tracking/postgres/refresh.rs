//! Tables that come whole to every remote that has not seen a transaction.
//!
//! Some changes have no note: a partition was dropped with its rows, a side table could not take a key. Then a row in
//! `headwater.refresh_event` names the table, the transaction and the cause. The table only ever gets new rows, and no unique index, so
//! that transactions never wait for one another here. It inherits from `headwater.refresh`, which has one row a table and is written by
//! the triggers and servers of older builds: a query of `headwater.refresh` reads both.
//!
//! `seen_below` is the first transaction that was not over when the row was written. All before it is seen by everyone who has seen
//! this row, so that an earlier row says nothing more: it is left out when rows are read, and deleted from time to time.

use crate::sql::literal;

/// How a cause begins where a row could not be noted.
pub const NOT_NOTED: &str = "a change could not be noted";

/// The cause where a REPEATABLE READ transaction moved a parent.
pub const OLDER_SNAPSHOT: &str =
    "a transaction that reads an older snapshot moved a row from which others take their partition";

/// The statement that adds a row for each of these tables (names as change tracking has them), unless this transaction has one. `cause`
/// is an expression of SQL.
pub fn append<'n>(names: impl IntoIterator<Item = &'n str>, cause: &str) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("({})", literal(name))).collect();
    format!(
        "INSERT INTO headwater.refresh_event (table_name, transaction, incarnation, cause)\n    \
         SELECT n.name, pg_current_xact_id(), i.incarnation, {cause} FROM headwater.identity AS i, (VALUES {}) AS n(name)\n    \
         WHERE NOT EXISTS (SELECT 1 FROM headwater.refresh_event AS r\n      \
         WHERE r.table_name = n.name AND r.transaction = pg_current_xact_id())",
        names.join(", ")
    )
}
