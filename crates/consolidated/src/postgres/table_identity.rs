//! What a tracked table is, beyond its name and the text of its triggers.
//!
//! PostgreSQL fires no trigger when a table is put back from a dump, when two tables or columns exchange their names, when a column is
//! converted, when a label of an enum is renamed or an attribute of a composite type dropped, or when triggers are switched off and on. Rows then are others than remotes hold, and no
//! side table tells. So `headwater.table_identity` keeps what the catalogue says of each tracked table, and each download compares:
//!
//! ```text
//! the download's snapshot   one mark of all tables of the model ([`mark_sql`]), which comes with the download's beginning
//! where it is new           in a transaction of its own ([`settle`]): the state of each table against the one on record
//!                             harmless    the record is brought up to date
//!                             afresh      the table and those below it come whole to every remote (`headwater.refresh`), then the same
//!                           and the download begins again
//! ```
//!
//! A state is a set of named facts (`column area` = `3 25`); [`verdict`] says which differences matter. A table without a record gets
//! one, as do installations of builds that had none.
//!
//! *Caveats.* What happened before the first record is unknown. An unlogged table that a crash empties, and that is made logged before a
//! download comes by, leaves nothing that could be compared.

mod verdict;

use std::collections::BTreeMap;

use headwater_model::Table;
use headwater_model::sql::literal;
use headwater_model::tracking::Kin;
use headwater_model::tracking::postgres::function_name;
use headwater_protocol::Value;

use self::verdict::{State, judge, to_record};
use super::refresh;
use crate::catalogue::text;
use crate::track::tracked_name;
use crate::{Connection, Error, Mode, Plan};

/// "headiden" as a number: the advisory lock of those who judge and record.
const LOCK_SQL: &str = "SELECT pg_advisory_xact_lock(x'686561646964656e'::bigint)";

/// The table, for `track` and for servers that find an older installation.
pub(crate) const TABLE_SQL: &str = "CREATE TABLE IF NOT EXISTS headwater.table_identity (
        table_name text PRIMARY KEY,
        state text NOT NULL
    )";

/// The tables whose changes downloads read.
fn tracked(plan: &Plan) -> Vec<Kin<'_>> {
    plan.model.tables.iter().filter(|table| table.is_tracked()).map(|table| Kin::new(&plan.model, table)).collect()
}

fn schema_of(table: &Table) -> &str {
    table.schema.as_deref().unwrap_or("public")
}

/// One value that is another whenever anything changed of which a state consists, or by which a statement is made, of any table of a model.
/// `None`: it has no tables.
pub(super) fn mark_sql(plan: &Plan) -> Option<String> {
    roots(plan).map(|root| {
        format!(
            "WITH RECURSIVE {root}, tree(id) AS (SELECT id FROM root WHERE relhassubclass UNION \
             SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.id), \
             field AS MATERIALIZED (SELECT a.h, a.atttypid AS kind FROM root r CROSS JOIN LATERAL (\
             SELECT hashint8extended((a.attrelid::int8 << 16) | a.attnum, a.xmin::text::int8 + CASE WHEN a.attgenerated <> '' THEN \
             (SELECT d.xmin::text::int8 << 32 FROM pg_catalog.pg_attrdef d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum) \
             ELSE 0 END) AS h, a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = r.id AND a.attnum > 0 OFFSET 0) a), \
             kind(id) AS (SELECT f.kind FROM field f WHERE f.kind >= {FIRST_OWN_TYPE} UNION \
             SELECT x.id FROM kind k CROSS JOIN LATERAL ({INSIDE_SQL}) x(id) WHERE x.id >= {FIRST_OWN_TYPE}), \
             called AS MATERIALIZED (SELECT g.oid, g.xmin, g.tgfoid FROM pg_catalog.pg_trigger g WHERE g.tgname LIKE '%headwater%') \
             SELECT count(*) || ':' || coalesce(sum(x.h), 0), {NAMED} FROM (\
             SELECT hashint8extended(c.name, (c.relfilenode::int8 << 9) | (ascii(c.relpersistence::text) << 1) | c.is_picked::int) \
             FROM root c \
             UNION ALL SELECT hashint8extended((i.inhrelid::int8 << 32) | i.inhparent::int8, i.xmin::text::int8) \
             FROM pg_catalog.pg_inherits i WHERE i.inhrelid = ANY (ARRAY(SELECT id FROM root UNION ALL SELECT id FROM tree)) \
             UNION ALL SELECT c.h FROM tree t CROSS JOIN LATERAL (\
             SELECT hashint8extended(c.oid::int8, (c.relfilenode::int8 << 8) | ascii(c.relpersistence::text)) AS h \
             FROM pg_catalog.pg_class c WHERE c.oid = t.id OFFSET 0) c \
             UNION ALL SELECT h FROM field \
             UNION ALL SELECT a.h FROM kind k CROSS JOIN LATERAL (\
             SELECT hashint8extended((a.attrelid::int8 << 16) | a.attnum, a.xmin::text::int8) AS h FROM pg_catalog.pg_type t \
             JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 WHERE t.oid = k.id OFFSET 0) a \
             UNION ALL SELECT hashint8extended(g.oid::int8, g.xmin::text::int8) FROM called g \
             UNION ALL SELECT hashint8extended(p.oid::int8, p.xmin::text::int8) FROM pg_catalog.pg_proc p \
             WHERE p.oid = ANY (ARRAY(SELECT tgfoid FROM called)) \
             UNION ALL SELECT hashint8extended(e.oid::int8, e.xmin::text::int8) FROM pg_catalog.pg_enum e \
             UNION ALL SELECT hashint8extended(y.oid::int8, y.xmin::text::int8 + ({IS_MEMBER_SQL})::int::int8 * (1::int8 << 33)) \
             FROM pg_catalog.pg_policy y) x(h)"
        )
    })
}

/// The second value of [`mark_sql`] by itself.
pub(super) fn named_sql(plan: &Plan) -> Option<String> {
    roots(plan).map(|root| format!("WITH {root} SELECT {NAMED}"))
}

/// One value that is another whenever a name is another table's, or a trigger of ours is switched off or on.
const NAMED: &str = "(SELECT coalesce(sum(y.h), 0)::text FROM (SELECT name FROM root UNION ALL SELECT g.h FROM root CROSS JOIN LATERAL (\
     SELECT hashint8extended(g.oid::int8, ascii(g.tgenabled::text)) AS h FROM pg_catalog.pg_trigger g \
     WHERE g.tgrelid = root.id AND g.tgname LIKE '%headwater%' OFFSET 0) g) y(h))";

/// Whether a policy `y` names a role with whose rights the server's role acts, and so applies to it. One for everybody names none.
const IS_MEMBER_SQL: &str =
    "y.polroles <> '{0}' AND EXISTS (SELECT FROM unnest(y.polroles) AS o(id) WHERE pg_has_role(o.id, 'USAGE'))";

/// Types that are not PostgreSQL's own have numbers from here on.
const FIRST_OWN_TYPE: u32 = 16_384;

/// The types of which the type `k.id` consists: a domain's, an array's, a range's, those of the attributes of a composite type.
const INSIDE_SQL: &str = "SELECT x.id FROM pg_catalog.pg_type t CROSS JOIN LATERAL (\
     SELECT t.typbasetype UNION ALL SELECT t.typelem \
     UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped \
     UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid) AS x(id) \
     WHERE t.oid = k.id AND x.id <> 0 OFFSET 0";

/// The tables of a model by their names, as `root`.
fn roots(plan: &Plan) -> Option<String> {
    let words = |table: &Table| format!("({}, {})", literal(schema_of(table)), literal(&table.name));
    let names: Vec<String> = plan.model.tables.iter().map(words).collect();
    // The functions keep the planner from reading whole catalogues where an index finds the few rows.
    (!names.is_empty()).then(|| {
        format!(
            "root AS MATERIALIZED (\
             SELECT hashtextextended(m.schema || '.' || m.name, c.oid::int8) AS name, c.oid AS id, c.relfilenode, c.relpersistence, c.relhassubclass, row_security_active(c.oid) AS is_picked \
             FROM (VALUES {}) AS m(schema, name) CROSS JOIN LATERAL (SELECT c.* FROM pg_catalog.pg_class c WHERE c.relname = m.name \
             AND c.relnamespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = m.schema) OFFSET 0) c)",
            names.join(", ")
        )
    })
}

/// Table, fact, value: the states of these tables.
fn states_sql(tables: &[&Kin<'_>]) -> String {
    let model = |kin: &&Kin<'_>| {
        let (lineage, table) = (&kin.lineage, kin.table());
        let words = [&tracked_name(lineage), schema_of(table), &table.name, &function_name(lineage)];
        format!("({})", words.map(literal).join(", "))
    };
    let model: Vec<String> = tables.iter().map(model).collect();
    format!(
        "WITH RECURSIVE model(name, schema, relation, function) AS (VALUES {}), \
         root AS (SELECT m.name, m.function, c.oid AS id FROM model m JOIN pg_catalog.pg_namespace n ON n.nspname = m.schema \
         JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = m.relation), \
         tree(name, id) AS (SELECT name, id FROM root UNION SELECT t.name, i.inhrelid FROM tree t \
         JOIN pg_catalog.pg_inherits i ON i.inhparent = t.id AND NOT i.inhdetachpending), \
         field AS (SELECT r.name, r.id, a.attname, a.attnum, a.atttypid, a.xmin, a.attgenerated, a.attacl FROM root r \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = r.id AND a.attnum > 0 AND NOT a.attisdropped), \
         kind(name, attname, id) AS (SELECT name, attname, atttypid FROM field UNION \
         SELECT k.name, k.attname, x.id FROM kind k CROSS JOIN LATERAL ({INSIDE_SQL}) AS x(id)), \
         called AS (SELECT t.name, g.tgrelid, g.tgname, g.oid, g.xmin, g.tgfoid FROM tree t JOIN root r ON r.name = t.name \
         JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.id AND g.tgname LIKE '%headwater%' \
         JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid AND p.proname = r.function) \
         SELECT name, 'table', id::text FROM root \
         UNION ALL SELECT t.name, 'file ' || c.oid, c.relfilenode::text FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.id \
         UNION ALL SELECT t.name, 'persistence ' || c.oid, c.relpersistence::text FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.id \
         UNION ALL SELECT t.name, 'part ' || i.inhrelid, string_agg(concat(i.inhparent, ':', i.xmin), ' ' ORDER BY i.inhparent) \
         FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.id AND NOT i.inhdetachpending GROUP BY t.name, i.inhrelid \
         UNION ALL SELECT t.name, concat('parent ', i.inhrelid, ' ', i.inhparent), i.xmin::text FROM tree t \
         JOIN pg_catalog.pg_inherits i ON i.inhrelid = t.id \
         WHERE NOT EXISTS (SELECT FROM tree o WHERE o.name = t.name AND o.id = i.inhparent) \
         UNION ALL SELECT name, 'column ' || attname, concat_ws(' ', attnum, atttypid) FROM field \
         UNION ALL SELECT name, 'touched ' || attname, concat_ws(' ', f.xmin, d.xmin) FROM field f \
         LEFT JOIN pg_catalog.pg_attrdef d ON f.attgenerated <> '' AND d.adrelid = f.id AND d.adnum = f.attnum \
         UNION ALL SELECT name, 'rights ' || attname, attacl::text FROM field WHERE attacl IS NOT NULL \
         UNION ALL SELECT k.name, concat('composite ', t.oid, ' ', k.attname), \
         coalesce(string_agg(concat(a.attnum, ':', a.atttypid), ' ' ORDER BY a.attnum), '') \
         FROM kind k JOIN pg_catalog.pg_type t ON t.oid = k.id AND t.typrelid <> 0 \
         LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped \
         GROUP BY k.name, k.attname, t.oid \
         UNION ALL SELECT k.name, concat('label ', e.oid, ' ', k.attname), e.enumlabel::text FROM kind k \
         JOIN pg_catalog.pg_enum e ON e.enumtypid = k.id \
         UNION ALL SELECT name, concat('trigger ', tgrelid, ' ', tgname), concat(oid, ':', xmin) FROM called \
         UNION ALL SELECT DISTINCT t.name, 'function', concat(p.oid, ':', p.xmin) FROM called t \
         JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid \
         UNION ALL SELECT r.name, 'security ' || current_user, concat_ws(' ', row_security_active(r.id), \
         (SELECT string_agg(concat(y.oid, ':', y.xmin, CASE WHEN {IS_MEMBER_SQL} THEN ':member' END), ',' ORDER BY y.oid) FROM pg_catalog.pg_policy y \
         WHERE y.polrelid = r.id AND row_security_active(r.id))) FROM root r",
        model.join(", ")
    )
}

fn states(connection: &mut dyn Connection, tables: &[&Kin<'_>]) -> Result<BTreeMap<String, State>, Error> {
    let mut states: BTreeMap<String, State> = BTreeMap::new();
    if tables.is_empty() {
        return Ok(states);
    }
    for row in connection.query(&states_sql(tables), &[])? {
        states.entry(text(&row, 0)).or_default().insert(text(&row, 1), text(&row, 2));
    }
    Ok(states)
}

fn recorded(connection: &mut dyn Connection, name: &str) -> Result<Option<State>, Error> {
    let sql = "SELECT state FROM headwater.table_identity WHERE table_name = ?1";
    let rows = connection.query(sql, &[Value::text(name)])?;
    let unreadable = |error: serde_json::Error| Error::Database {
        context: format!("reading what table {name} was in headwater.table_identity"),
        detail: error.to_string(),
    };
    rows.first().map(|row| serde_json::from_str(&text(row, 0)).map_err(unreadable)).transpose()
}

fn write(connection: &mut dyn Connection, name: &str, state: &State) -> Result<(), Error> {
    let sql = "INSERT INTO headwater.table_identity (table_name, state) VALUES (?1, ?2) \
               ON CONFLICT (table_name) DO UPDATE SET state = EXCLUDED.state";
    let state = serde_json::to_string(state).expect("a map of texts is JSON");
    connection.execute(sql, &[Value::text(name), Value::text(state)]).map(drop)
}

/// Compares all tables of a model with what is on record, has those come afresh of which changes went by unseen, and records them. No
/// transaction is open. A standby can't be written to, and its primary is what servers write to.
pub(crate) fn settle(connection: &mut dyn Connection, plan: &Plan) -> Result<(), Error> {
    let rows = connection.query("SELECT pg_is_in_recovery(), to_regclass('headwater.table_identity') IS NULL", &[])?;
    let Some([Value::Bool(false), Value::Bool(is_missing)]) = rows.first().map(Vec::as_slice) else { return Ok(()) };
    if *is_missing {
        // An older build installed the rest.
        connection.batch(TABLE_SQL).map_err(|error| Error::Setup {
            what: format!("table headwater.table_identity is missing, and can't be made: {error}"),
            mend: "run `headwater track`".to_owned(),
        })?;
    }
    connection.begin(Mode::Upload)?;
    let settled = settle_all(connection, plan);
    crate::finish(connection, settled)
}

/// The same in a transaction that is open.
pub(crate) fn settle_all(connection: &mut dyn Connection, plan: &Plan) -> Result<(), Error> {
    let tables = tracked(plan);
    settle_inside(connection, &tables.iter().collect::<Vec<_>>())
}

/// The same for some tables.
pub(super) fn settle_inside(connection: &mut dyn Connection, tables: &[&Kin<'_>]) -> Result<(), Error> {
    connection.query(LOCK_SQL, &[])?;
    let mut states = states(connection, tables)?;
    for kin in tables {
        let name = tracked_name(&kin.lineage);
        // A table that is not there is somebody else's to report.
        let Some(now) = states.remove(&name) else { continue };
        let columns = columns_of(kin);
        let Some(before) = recorded(connection, &name)? else {
            write(connection, &name, &to_record(now, None, &columns))?;
            continue;
        };
        let (cause, kept) = judge(&before, now, &columns);
        if let Some(cause) = cause {
            refresh::append(connection, kin, &cause)?;
        }
        if kept != before {
            write(connection, &name, &kept)?;
        }
    }
    Ok(())
}

/// Records tables as they are, in the transaction that has made their tracking or a part of it.
pub(crate) fn record(connection: &mut dyn Connection, tables: &[&Kin<'_>]) -> Result<(), Error> {
    let mut states = states(connection, tables)?;
    for kin in tables {
        let name = tracked_name(&kin.lineage);
        let Some(now) = states.remove(&name) else { continue };
        let before = recorded(connection, &name)?;
        write(connection, &name, &to_record(now, before.as_ref(), &columns_of(kin)))?;
    }
    Ok(())
}

fn columns_of<'m>(kin: &Kin<'m>) -> Vec<&'m str> {
    kin.table().columns.iter().map(|column| column.name.as_str()).collect()
}

/// Whether records are kept: an older build may have installed the rest.
pub(super) fn has_records(connection: &mut dyn Connection) -> Result<bool, Error> {
    let rows = connection.query("SELECT to_regclass('headwater.table_identity') IS NOT NULL", &[])?;
    Ok(rows.first().and_then(|row| row.first()) == Some(&Value::Bool(true)))
}

/// The statement that forgets a table that is tracked no more.
pub(crate) fn forget(tracked_name: &str) -> String {
    format!(
        "DO $headwater_forget$ BEGIN IF to_regclass('headwater.table_identity') IS NOT NULL THEN \
         DELETE FROM headwater.table_identity WHERE table_name = {}; END IF; END $headwater_forget$",
        literal(tracked_name)
    )
}
