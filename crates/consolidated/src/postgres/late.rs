//! Queries that read tables only while they run: by functions that PostgreSQL did not come with.
//!
//! A query in READ COMMITTED has the tables that it names locked before its snapshot is taken, so it reads none as empty that was rewritten
//! or truncated meanwhile. A function is run with the snapshot of the query, and locks what it reads after that: a table that another
//! transaction rewrote in between is empty for it. Tried on PostgreSQL 15, while `TRUNCATE t; INSERT INTO t ...` commits:
//!
//! | query | reads |
//! |---|---|
//! | `SELECT count(*) FROM t`, joins, partitions, views, functions in SQL that are inlined | the new rows |
//! | `SELECT f()`, where `f` is in PL/pgSQL and STABLE | nothing |
//! | any of them in REPEATABLE READ | nothing |
//!
//! So such a query runs in REPEATABLE READ. At its end every relation that the transaction has locked is looked up in its snapshot and in the
//! catalogue as it is now: where the file is another one, or the relation was no part or another's part, the query runs again. Rows are kept
//! back until they come to [`KEPT_BACK_BYTES`]; beyond, they are given, and the query ends with an error that can be retried.
//!
//! *Caveats.* Whether a query calls such a function is told by its text, and by the views and policies of the relations that the text names. A
//! query whose text has such a name for another reason runs in the same way.

use futures_util::TryStreamExt as _;
use headwater_protocol::Value;
use tokio_postgres::{Client, Statement};

use super::bound::Bound;
use super::connection::{PostgresConnection, State};
use super::read::Stop;
use super::results::{Reader, give};
use crate::results::{QueryConnection as _, ReadOptions, ResultColumn, ResultSink};
use crate::{Connection as _, Error, Mode};

/// So many bytes of rows are kept back until it is known that they are right.
const KEPT_BACK_BYTES: usize = 1 << 20;
/// How often a query runs again.
const ATTEMPTS_MAX: usize = 5;
/// Of so many queries it is kept whether they read late.
const QUERIES_MAX: usize = 1_000;

/// Whether a query may call a function that reads tables: one that PostgreSQL did not come with, also behind an operator, or one of PostgreSQL's
/// own that runs a query that it is given. The query's text names the function, or a relation whose view or policy calls it.
const CALLS_SQL: &str = "WITH RECURSIVE own AS (SELECT p.oid, p.proname FROM pg_catalog.pg_proc p \
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
        WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'headwater') AND p.prorettype <> 'pg_catalog.trigger'::regtype), \
    by_operator AS (SELECT o.oid, o.oprname FROM pg_catalog.pg_operator o JOIN own ON own.oid = o.oprcode), \
    reached(id) AS (SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p', 'v', 'm', 'f') \
        AND strpos(lower(?1), lower(c.relname)) > 0 \
        UNION SELECT d.refobjid FROM reached r JOIN pg_catalog.pg_rewrite w ON w.ev_class = r.id \
        JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = w.oid \
        AND d.refclassid = 'pg_catalog.pg_class'::regclass), \
    rules(class, id) AS (SELECT 'pg_catalog.pg_rewrite'::regclass, w.oid FROM reached r JOIN pg_catalog.pg_rewrite w ON w.ev_class = r.id \
        UNION ALL SELECT 'pg_catalog.pg_policy'::regclass, p.oid FROM reached r JOIN pg_catalog.pg_policy p ON p.polrelid = r.id), \
    called AS (SELECT d.refobjid AS id FROM rules JOIN pg_catalog.pg_depend d ON d.classid = rules.class AND d.objid = rules.id \
        AND d.refclassid IN ('pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass)), \
    texts(sql) AS (SELECT lower(?1) UNION ALL SELECT lower(pg_get_viewdef(r.id)) FROM reached r \
        JOIN pg_catalog.pg_class c ON c.oid = r.id AND c.relkind = 'v') \
    SELECT EXISTS (SELECT FROM own WHERE strpos(lower(?1), lower(own.proname)) > 0) \
    OR EXISTS (SELECT FROM by_operator WHERE strpos(?1, by_operator.oprname) > 0) \
    OR EXISTS (SELECT FROM called WHERE called.id IN (SELECT own.oid FROM own UNION ALL SELECT by_operator.oid FROM by_operator)) \
    OR EXISTS (SELECT FROM texts WHERE texts.sql ~ '(query|table|cursor|schema|database)_to_xml|ts_stat|ts_rewrite')";

/// Whether a relation that this transaction has locked is not what it was in its snapshot: its file, or where it stands in a hierarchy.
const ALTERED_SQL: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation \
    WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.relation >= 16384 \
    AND (c.oid IS NULL OR pg_relation_filenode(l.relation) IS DISTINCT FROM nullif(c.relfilenode, 0) \
    OR c.relispartition <> (pg_partition_root(l.relation) IS DISTINCT FROM l.relation AND pg_partition_root(l.relation) IS NOT NULL) \
    OR c.relkind = 'p' AND ARRAY(SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = l.relation ORDER BY 1) \
        IS DISTINCT FROM ARRAY(SELECT t.relid::oid FROM pg_partition_tree(l.relation) t WHERE t.level = 1 ORDER BY 1)))";

impl PostgresConnection {
    /// Whether a query may read tables only while it runs.
    pub(super) fn reads_late(&mut self, sql: &str) -> Result<bool, Error> {
        if let Some(known) = self.late.get(sql) {
            return Ok(*known);
        }
        let rows = self.query(CALLS_SQL, &[Value::text(sql)])?;
        let reads_late = rows.first().and_then(|row| row.first()) != Some(&Value::Bool(false));
        if self.late.len() >= QUERIES_MAX {
            self.late.clear();
        }
        self.late.insert(sql.to_owned(), reads_late);
        Ok(reads_late)
    }

    /// Reads, and looks at the end whether all that was read is what it was in the snapshot.
    pub(super) fn read_late(
        &mut self,
        statement: &Statement,
        bound: &[Bound],
        (columns, readers): (&[ResultColumn], &mut [Reader]),
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Stop> {
        for _ in 0..ATTEMPTS_MAX {
            let limit = options.time_out.as_millis().to_string();
            let begin = self.guarded("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
            self.queued.sql([&begin, "; SET LOCAL statement_timeout = ", &limit, ";"]);
            self.state = State { mode: Some(Mode::Download), ..State::default() };
            let (mut kept_back, mut bytes, mut largest, mut has_begun) = (Vec::new(), 0, self.row_bytes, false);
            let queued = std::mem::take(&mut self.queued);
            let read: Result<(), Stop> = self.link.run(async |client: &Client| {
                let rows = queued.before(client, client.query_raw(statement, bound)).await;
                let mut rows = std::pin::pin!(rows.map_err(Stop::Server)?);
                while let Some(row) = rows.try_next().await.map_err(Stop::Server)? {
                    largest = largest.max(row.raw_size_bytes());
                    bytes += row.raw_size_bytes();
                    kept_back.push(row);
                    if bytes > KEPT_BACK_BYTES {
                        give_all(&mut kept_back, (columns, readers), &mut has_begun, sink).map_err(Stop::Own)?;
                    }
                }
                Ok(())
            });
            self.row_bytes = largest;
            read?;
            let rows = self.query(ALTERED_SQL, &[]).map_err(Stop::Own)?;
            if rows.first().and_then(|row| row.first()) == Some(&Value::Bool(false)) {
                return give_all(&mut kept_back, (columns, readers), &mut has_begun, sink).map_err(Stop::Own);
            }
            if has_begun {
                break;
            }
            self.rollback().map_err(Stop::Own)?;
        }
        let detail = "a table that the query reads by a function was altered while it ran".to_owned();
        Err(Stop::Own(Error::Retry { detail, broken: false }))
    }
}

/// Gives rows that were kept back, behind the columns.
fn give_all(
    rows: &mut Vec<tokio_postgres::Row>,
    (columns, readers): (&[ResultColumn], &mut [Reader]),
    has_begun: &mut bool,
    sink: &mut dyn ResultSink,
) -> Result<(), Error> {
    if !std::mem::replace(has_begun, true) {
        sink.begin(columns)?;
    }
    rows.drain(..).try_for_each(|row| give(&row, readers, sink))
}
