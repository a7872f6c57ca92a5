//! The consolidated database: can it be reached, is it tracked, and would it keep what it acknowledged?

use std::path::Path;

use anyhow::Result;
use headwater_consolidated::check::{Severity, privileges};
use headwater_consolidated::{Connection, Dialect, Plan};
use headwater_diskfaults::FileFault;
use headwater_gateway::query::Who;
use headwater_protocol::Value;

use super::{DoctorArgs, Findings, files};
use crate::commands::check::{check_all, each_once, place, title};
use crate::config::{Config, FrontierConfig, GatewayConfig};
use crate::database::Address;

/// A commit that waits for a standby for longer is told.
const COMMIT_SECONDS: u32 = 2;

/// Connections of the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needed {
    /// Without which the server can't do its work.
    pub(super) least: usize,
    /// With as many workers as there may be.
    pub(super) all: usize,
}

/// Settings without which PostgreSQL forgets what it acknowledged, when the machine stops.
const DURABLE: [&str; 3] = ["fsync", "full_page_writes", "synchronous_commit"];

pub(super) fn look(
    config: &Config,
    plans: &[Plan],
    (needed, gateway): (Option<Needed>, Option<&GatewayConfig>),
    args: &DoctorArgs,
    findings: &mut Findings,
) {
    if let Address::Sqlite(path) = &config.database
        && !file(path, args, findings)
    {
        return;
    }
    let unreachable = "start the database, or mend `url` under [database], --database or HEADWATER_DATABASE";
    if !config.database.can_sync() {
        // Queries alone are run there: nothing else is Headwater's.
        if let Err(error) = config.database.connect_for_queries() {
            findings.error("database_unreachable", format!("{error:#}"), unreachable);
        }
        return;
    }
    let mut connection = match config.database.connect() {
        Ok(connection) => connection,
        Err(error) => return findings.error("database_unreachable", format!("{error:#}"), unreachable),
    };
    let connection = &mut *connection;
    let mut looked = vec![tracking(connection, plans, findings)];
    if connection.dialect() == Dialect::Postgres {
        looked.push(durable(connection, findings));
        looked.push(connections(connection, needed, findings));
        looked.push(open_transactions(connection, args, findings));
        looked.push(commits(connection, findings));
        looked.push(slots(connection, findings));
        looked.push(lacks_privileges(connection, plans, findings));
        if knows_users(plans, gateway) {
            looked.push(accounts(connection, findings));
        }
    }
    for error in looked.into_iter().filter_map(Result::err) {
        let what = format!("the database could not be asked: {error:#}");
        findings.error("database_failed", what, "see the database's own log");
    }
}

/// A SQLite file before it is opened as a server would; `false`: it can't be.
fn file(path: &Path, args: &DoctorArgs, findings: &mut Findings) -> bool {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mode = rusqlite::Connection::open_with_flags(path, flags)
        .and_then(|connection| connection.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0)));
    files::space(path.parent().unwrap_or(path), "the database", args.free_mib, findings);
    files::network(path, findings);
    match mode {
        Ok(mode) if mode == "wal" => true,
        Ok(mode) => {
            let what = format!(
                "the journal mode of {} is {mode}, expected wal: readers and writers wait for each other",
                path.display()
            );
            let mend =
                "`PRAGMA journal_mode = wal` (`headwater check` and `serve` set it); then run this again for the rest";
            findings.error("journal_mode", what, mend);
            false
        }
        Err(error) => {
            if let Some(fault) = FileFault::of(path, &error).filter(|fault| !fault.is_of_the_file()) {
                let mend = "mend the disk, or the rights of the file and its folder, and run this again";
                findings.error(fault.code(), fault.to_string(), mend);
                return false;
            }
            let what = format!("the database {} can't be opened: {error}", path.display());
            findings.error(
                "database_unreachable",
                what,
                "mend `url` under [database], --database or HEADWATER_DATABASE",
            );
            false
        }
    }
}

/// Headwater's own tables, and all that `headwater check` says.
fn tracking(connection: &mut dyn Connection, plans: &[Plan], findings: &mut Findings) -> Result<()> {
    for (found_in, finding) in check_all(connection, plans)? {
        let what = format!("{}{}{}", title(&found_in, plans), place(&finding), finding.message);
        match finding.severity {
            Severity::Error => findings.error(finding.code, what, finding.mend),
            Severity::Warning => findings.warning(finding.code, what, finding.mend),
        }
    }
    Ok(())
}

fn durable(connection: &mut dyn Connection, findings: &mut Findings) -> Result<()> {
    for name in DURABLE {
        if texts(connection, &format!("SELECT current_setting('{name}')"))?.concat() == ["off"] {
            let what =
                format!("{name} is off: uploads that were acknowledged can be lost when the database's machine stops");
            let mend = format!(
                "`ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()`; see also ALTER ROLE and ALTER DATABASE"
            );
            findings.error("not_durable", what, mend);
        }
    }
    Ok(())
}

/// Whether the database takes as many connections as the server needs.
fn connections(connection: &mut dyn Connection, needed: Option<Needed>, findings: &mut Findings) -> Result<()> {
    let Some(needed) = needed else { return Ok(()) };
    let sql = "SELECT (current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int)::text";
    let most: usize = texts(connection, sql)?.concat().first().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    let Needed { least, all } = needed;
    if least > most {
        findings.error(
            "max_connections",
            format!("the server would open {least} connections at least, and the database allows {most}"),
            "raise max_connections at the database, or lower [server] workers or database_connections, [gateway] executions_max, [gateway.cursor] \
             cursors_max",
        );
    } else if all > most {
        findings.warning(
            "workers_share",
            format!(
                "for so many workers the server would need {all} connections, and the database allows {most}: it goes on with fewer, its \
                 share of those"
            ),
            "raise max_connections at the database, or lower [server] workers_max or database_connections; docs/workers.md tells how servers \
             share them",
        );
    }
    Ok(())
}

fn open_transactions(connection: &mut dyn Connection, args: &DoctorArgs, findings: &mut Findings) -> Result<()> {
    let seconds = args.open_seconds;
    let open = format!(
        "SELECT pid::text, usename::text, state, floor(extract(epoch FROM now() - xact_start))::text FROM pg_stat_activity \
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start < now() - interval '{seconds} s' \
         ORDER BY xact_start LIMIT 5"
    );
    for row in texts(connection, &open)? {
        let [pid, user, state, age] = &row[..] else { continue };
        let what = format!(
            "process {pid} of {user} has had a transaction open for {age} s ({state}): it holds back purge and vacuum"
        );
        let mend = format!(
            "end it (`SELECT pg_terminate_backend({pid})`); idle_in_transaction_session_timeout ends such by itself"
        );
        findings.warning("open_transaction", what, mend);
    }
    let prepared = format!(
        "SELECT gid, floor(extract(epoch FROM now() - prepared))::text FROM pg_prepared_xacts \
         WHERE database = current_database() AND prepared < now() - interval '{seconds} s' ORDER BY prepared LIMIT 5"
    );
    for row in texts(connection, &prepared)? {
        let [name, age] = &row[..] else { continue };
        let what =
            format!("the prepared transaction {name:?} has been open for {age} s: it holds back purge and vacuum");
        findings.warning("open_transaction", what, format!("COMMIT PREPARED or ROLLBACK PREPARED '{name}'"));
    }
    Ok(())
}

/// Whether commits wait for a synchronous standby that does not answer.
fn commits(connection: &mut dyn Connection, findings: &mut Findings) -> Result<()> {
    let sql = format!(
        "SELECT count(*)::text, floor(max(extract(epoch FROM clock_timestamp() - query_start)))::bigint::text, \
         current_setting('synchronous_standby_names') FROM pg_stat_activity WHERE wait_event = 'SyncRep' \
         AND datname = current_database() AND query_start < clock_timestamp() - interval '{COMMIT_SECONDS} s' HAVING count(*) > 0"
    );
    for row in texts(connection, &sql)? {
        let [count, age, standbys] = &row[..] else { continue };
        findings.error(
            "commits_wait",
            format!(
                "{count} commits wait for a synchronous standby, the first for {age} s (wait event SyncRep; synchronous_standby_names is \
                 '{standbys}'): uploads do not end"
            ),
            "start the standby, or go on without: `ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf()`, after which a \
             failover may lose what was acknowledged",
        );
    }
    Ok(())
}

fn slots(connection: &mut dyn Connection, findings: &mut Findings) -> Result<()> {
    let sql = "SELECT slot_name::text, coalesce(pg_size_pretty(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() \
               THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, restart_lsn)), '0 bytes') \
               FROM pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL ORDER BY 1";
    for row in texts(connection, sql)? {
        let [name, held] = &row[..] else { continue };
        findings.warning(
            "slot_unused",
            format!("nobody reads the replication slot {name:?}: it keeps {held} of the write-ahead log, and will fill the disk"),
            format!("start its reader, or `SELECT pg_drop_replication_slot('{name}')`; max_slot_wal_keep_size bounds what slots keep"),
        );
    }
    Ok(())
}

/// What the server's role may do with the model's tables.
fn lacks_privileges(connection: &mut dyn Connection, plans: &[Plan], findings: &mut Findings) -> Result<()> {
    for (_, finding) in each_once(connection, plans, privileges)? {
        findings.error(finding.code, format!("{}{}", place(&finding), finding.message), finding.mend);
    }
    Ok(())
}

/// Whether anybody is let in by who they are.
fn knows_users(plans: &[Plan], gateway: Option<&GatewayConfig>) -> bool {
    let is_asked = |gateway: &GatewayConfig| {
        let lets_users_in = |frontier: &FrontierConfig| !frontier.settings.users.is_empty();
        gateway.queries.iter().any(|query| query.who != Who::Public) || gateway.frontier.iter().any(lets_users_in)
    };
    !plans.is_empty() || gateway.is_some_and(is_asked)
}

/// Whether the server's role may read the accounts, and the key of tokens, once they are there.
fn accounts(connection: &mut dyn Connection, findings: &mut Findings) -> Result<()> {
    let sql = "SELECT g.what, format('GRANT %s TO %I', g.what, current_user)::text FROM pg_catalog.pg_namespace n \
               CROSS JOIN LATERAL (SELECT 'USAGE ON SCHEMA headwater'::text WHERE NOT has_schema_privilege(n.oid, 'USAGE') \
               UNION ALL SELECT 'SELECT ON ' || string_agg('headwater.' || c.relname, ', ' ORDER BY c.relname)::text \
               FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relname IN ('account', 'identity', 'note') \
               AND NOT has_table_privilege(c.oid, 'SELECT') HAVING count(*) > 0) AS g(what) WHERE n.nspname = 'headwater'";
    let (lacks, grants): (Vec<String>, Vec<String>) = texts(connection, sql)?
        .into_iter()
        .filter_map(|row| <[String; 2]>::try_from(row).ok())
        .map(|[what, grant]| (what, grant))
        .unzip();
    if !lacks.is_empty() {
        let what = format!(
            "the server's role can't read who has an account ({} is missing): whoever shows credentials is told 503",
            lacks.join(", ")
        );
        findings.error("privilege", what, format!("`{}`", grants.join("; ")));
    }
    Ok(())
}

/// The rows of a query whose columns are text; NULL is empty.
fn texts(connection: &mut dyn Connection, sql: &str) -> Result<Vec<Vec<String>>> {
    let text = |value: Value| match value {
        Value::Text(text) => String::from_utf8_lossy(&text).into_owned(),
        _ => String::new(),
    };
    let rows = connection.query(sql, &[])?;
    Ok(rows.into_iter().map(|row| row.into_iter().map(text).collect()).collect())
}
