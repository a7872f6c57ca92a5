//! What may change the rows that remotes are to have without a row being written: a crash, and row security.
//!
//! - A crash empties an **unlogged** table. No trigger fires, and the catalogue stays as it was. Such tables are refused.
//! - **Row security** decides by policies which rows the server's role sees. A policy that reads the row and who syncs alone gives another
//!   answer only where the row is written, which is noted. One that reads a table of grants, the clock, or anything else may answer anew at any
//!   time: the table comes whole at each sync, and `check` says so. Where policies are altered, or row security is switched on or off, the
//!   table comes afresh ([`super::table_identity`]).
//!
//! The settings of the server's role and database may change, too: only `headwater.user` and `headwater.remote_id` belong to who syncs.
//!
//! *Caveats.* A function of the application's counts as reading more unless it is immutable.

use headwater_model::Lineage;
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::{base_table, table_id};
use headwater_protocol::Value;

use super::watch::Named;
use crate::catalogue::{integer, text};
use crate::check::{Finding, Severity};
use crate::{Connection, Error};

/// The tables in the tree of `?1` that are unlogged.
const UNLOGGED_SQL: &str = "WITH RECURSIVE tree(id) AS (SELECT {table} UNION \
    SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.id) \
    SELECT c.oid::regclass::text FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.id WHERE c.relpersistence = 'u' ORDER BY 1 LIMIT 1";

/// The policies of table `?1` that decide what this role sees: name, and the condition as the catalogue keeps it.
const POLICIES_SQL: &str = "SELECT y.polname::text, y.polqual::text, pg_get_expr(y.polqual, y.polrelid) FROM pg_catalog.pg_policy y \
    WHERE y.polrelid = {table} AND y.polcmd IN ('r', '*') AND y.polqual IS NOT NULL AND row_security_active(y.polrelid) \
    AND (y.polroles = '{0}' OR EXISTS (SELECT FROM unnest(y.polroles) AS r(id) WHERE pg_has_role(current_user, r.id, 'USAGE'))) \
    ORDER BY 1";

/// How many of the functions `?1` may answer otherwise for the same arguments.
const CHANGING_SQL: &str =
    "SELECT count(*) FROM pg_catalog.pg_proc p WHERE p.oid = ANY (?1::text::oid[]) AND p.provolatile <> 'i'";

/// `current_setting(text)` and `current_setting(text, boolean)`.
const CURRENT_SETTING: [u32; 2] = [2077, 3294];

/// How PostgreSQL prints a call that reads a setting in which the server says for whom it reads. In a text of the policy's the quotes would be
/// doubled.
const SETTINGS_OF_USERS: [&str; 2] = ["current_setting('headwater.user'", "current_setting('headwater.remote_id'"];

/// `current_user` and its like, from here on in PostgreSQL's list of such words; those before it read the clock.
const FIRST_WORD_OF_USERS: u32 = 9;

/// A statement about the table `?1`.
fn of_table(sql: &str) -> String {
    sql.replace("{table}", &table_id("?1"))
}

/// What `check` says of a table.
pub(crate) fn findings(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Vec<Finding>, Error> {
    let table = Some(kin.table().name.clone());
    let mut findings = Vec::new();
    let unlogged = connection.query(&of_table(UNLOGGED_SQL), &[Value::text(base_table(kin.table()))])?;
    if let Some(name) = unlogged.first().map(|row| text(row, 0)) {
        findings.push(Finding {
            severity: Severity::Error,
            code: "unlogged_table",
            table: table.clone(),
            column: None,
            message: format!("{name} is unlogged: a crash empties it, and nothing tells that to remotes"),
            mend: format!("run `ALTER TABLE {name} SET LOGGED`"),
        });
    }
    if let Some((name, policy)) = policy_that_reads_more(connection, &kin.lineage)? {
        findings.push(Finding {
            severity: Severity::Warning,
            code: "policy_reads_more",
            table,
            column: None,
            message: format!(
                "policy {policy:?} on {name} reads more than the row and the user, so its answer may change without a note: the table \
                 comes whole at each sync"
            ),
            mend: "compare columns with current_setting('headwater.user') in the policy, or give the table a partition and memberships"
                .to_owned(),
        });
    }
    Ok(findings)
}

/// A policy by which rows of a table may appear and disappear without being written, and the table that has it: itself, or one from which
/// its rows take their partition.
pub(super) fn policy_that_reads_more(
    connection: &mut dyn Connection,
    lineage: &Lineage<'_>,
) -> Result<Option<(String, String)>, Error> {
    for table in std::iter::once(lineage.table()).chain(lineage.parents().iter().copied()) {
        let name = base_table(table);
        for row in connection.query(&of_table(POLICIES_SQL), &[Value::text(name.as_str())])? {
            if reads_more(connection, &text(&row, 1), &text(&row, 2))? {
                return Ok(Some((name, text(&row, 0))));
            }
        }
    }
    Ok(None)
}

/// `condition` as the catalogue keeps it, and as PostgreSQL prints it.
fn reads_more(connection: &mut dyn Connection, condition: &str, printed: &str) -> Result<bool, Error> {
    let mut named = Named::read(&without_users(condition));
    if named.is_strange || !named.relations.is_empty() || reads_other_settings(condition, printed) {
        return Ok(true);
    }
    named.functions.retain(|function| !CURRENT_SETTING.contains(function));
    if named.functions.is_empty() {
        return Ok(false);
    }
    let functions: Vec<String> = named.functions.iter().map(u32::to_string).collect();
    let rows = connection.query(CHANGING_SQL, &[Value::text(format!("{{{}}}", functions.join(",")))])?;
    Ok(rows.first().is_none_or(|row| integer(row, 0) != 0))
}

/// Whether a condition reads a setting that does not say for whom the server reads.
fn reads_other_settings(condition: &str, printed: &str) -> bool {
    let reads = CURRENT_SETTING.iter().map(|function| condition.matches(&format!(":funcid {function} ")).count());
    let reads_of_users = SETTINGS_OF_USERS.iter().map(|call| printed.matches(call).count());
    reads.sum::<usize>() != reads_of_users.sum::<usize>()
}

/// A condition without the words that name roles and databases: they stay the same as long as the server's role does.
fn without_users(condition: &str) -> String {
    const WORD: &str = "{SQLVALUEFUNCTION :op ";
    let mut parts = condition.split(WORD);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let number = part.split(' ').next().and_then(|number| number.parse::<u32>().ok());
        let is_user = number.is_some_and(|number| number >= FIRST_WORD_OF_USERS);
        kept.push_str(if is_user { "{USER " } else { WORD });
        kept.push_str(part);
    }
    kept
}
