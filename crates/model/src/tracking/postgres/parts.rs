//! The tables below a tracked one: partitions, their partitions, tables that inherit.
//!
//! A trigger for statements fires on the table that a statement names, so each *part* has the four of its own; they call the same
//! function. What replicates writes rows: a partition has the tracked table's trigger for rows by itself, a table that inherits gets
//! one here. Parts come and go without a trigger that could tell, so `headwater.part` keeps those that are known, and each download
//! compares ([`list`]):
//!
//! | state | |
//! |---|---|
//! | `armed` | it has its triggers; its rows are still to be noted |
//! | `tracked` | all is done |
//! | `late` | others were writing to it, so it has no triggers yet: when it gets them the whole table is sent again |
//! | `left` | it is a part no more and its rows are noted as deleted; its triggers are still to be dropped |
//!
//! A part that was detached can still be read, so its rows are noted as deleted. Of one that was dropped nobody knows any more what
//! was in it: the table is sent again to whoever has not seen that transaction ([`super::refresh`]).

use super::kin::all_below;
use super::notes::{Images, Notes, Pair};
use super::{
    KEYS_REPEAT, Kin, base_table, events, function, own_name, row_trigger, side_table, statement_triggers, table_id,
    trigger_name,
};
use crate::Lineage;
use crate::sql::{literal, quote};
use crate::tracking::tracked_name;

/// How long a part is waited for before the download goes on without: whoever writes to it meanwhile waits too.
const LOCK_TIME_OUT: &str = "200ms";
/// How long until the next attempt.
const PAUSE: &str = "10 s";

/// A part of a tracked table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Whether it is a partition; otherwise it inherits.
    pub is_partition: bool,
}

impl Part {
    /// Schema and name, in quotes.
    pub fn qualified(&self) -> String {
        format!("{}.{}", quote(&self.schema), quote(&self.name))
    }
}

/// The statements that give a part its triggers. It is locked against writers, so what they wrote before can be read afterwards.
pub fn arm(lineage: &Lineage<'_>, part: &Part) -> Vec<String> {
    let on = part.qualified();
    let mut statements = vec![format!("LOCK TABLE ONLY {on} IN SHARE ROW EXCLUSIVE MODE")];
    let argument = if part.is_partition { "" } else { KEYS_REPEAT };
    statements.extend(statement_triggers(lineage, &on, argument, |name| of_table(name, lineage)));
    if !part.is_partition {
        statements.extend(row_trigger(lineage, &on, &of_table(super::ROW_TRIGGER, lineage)));
        // A statement on the table itself may have rows of several that inherit, with the same key.
        let named = |name: &str| quote(&trigger_name(name, lineage));
        statements.extend(statement_triggers(lineage, &base_table(lineage.table()), KEYS_REPEAT, named));
    }
    statements
}

/// The statements that take a part's triggers away.
pub fn disarm(lineage: &Lineage<'_>, part: &Part) -> Vec<String> {
    let on = part.qualified();
    events().map(|(name, _)| format!("DROP TRIGGER IF EXISTS {} ON {on}", of_table(name, lineage))).collect()
}

/// The statement that limits how long a part is waited for, in a transaction.
pub fn limit_wait() -> String {
    format!("SET LOCAL lock_timeout = '{LOCK_TIME_OUT}'")
}

/// Holds the parents of a part's rows, as the triggers do before they note rows.
pub fn hold(lineage: &Lineage<'_>, part: &Part) -> Vec<String> {
    super::kin::lock_statements(lineage, &super::kin::links(lineage, &[&only(part)]))
}

/// Notes the rows of a part that is new, and all below them. One that was written through the tracked table is known: a row whose last
/// writer is the transaction on record is left out, unless it was a part before of which nobody knew what was in it.
pub fn note(kin: &Kin<'_>, part: &Part) -> Vec<String> {
    let notes = Notes::new(&kin.lineage);
    let place = |pair: &Pair| {
        let is_own = kin.lineage.parents().is_empty() || !pair.partition;
        format!(
            "o.{} = {}",
            pair.side,
            if is_own { format!("t.{}", pair.base) } else { format!("hw_in.{}", pair.side) }
        )
    };
    let joined = notes.pairs.iter().map(place).collect::<Vec<_>>().join(" AND ");
    let lies = notes.lies("t").replacen(" WHERE ", " AND ", 1);
    let own = format!(
        "{} SELECT {}{}, pg_current_xact_id(), NULL::boolean FROM ONLY {} AS t{} LEFT JOIN {} AS o ON {joined} \
         WHERE (o.version IS NULL OR o.deleted IS NOT NULL OR o.version::xid <> t.xmin \
         OR EXISTS (SELECT 1 FROM headwater.refresh r WHERE r.table_name = {} AND o.version < r.transaction)){lies} {}",
        notes.insert(),
        distinct(part),
        notes.values("t"),
        part.qualified(),
        notes.join("t", Images::New),
        side_table(&kin.lineage),
        literal(&tracked_name(&kin.lineage)),
        notes.conflict(),
    );
    std::iter::once(own).chain(all_below(kin, distinct(part), &only(part), "NULL::boolean")).collect()
}

/// Notes the rows of a part that is none any more, and all below them, as deleted.
pub fn bury(kin: &Kin<'_>, part: &Part) -> Vec<String> {
    let own = Notes::new(&kin.lineage).of_rows(distinct(part), &only(part), Images::Old);
    std::iter::once(own).chain(all_below(kin, distinct(part), &only(part), "true")).collect()
}

fn only(part: &Part) -> String {
    format!("ONLY {}", part.qualified())
}

/// The same for rows that are on record as living, written since they were noted as deleted, say: taken for known, they would be left
/// out when the part comes back.
pub fn bury_rest(kin: &Kin<'_>, part: &Part) -> String {
    let notes = Notes::new(&kin.lineage);
    format!(
        "{} SELECT {}{}, pg_current_xact_id(), true FROM ONLY {} AS t{}{} ON CONFLICT ({}) DO UPDATE \
         SET version = EXCLUDED.version, deleted = EXCLUDED.deleted WHERE s.deleted IS NOT TRUE",
        notes.insert(),
        distinct(part),
        notes.values("t"),
        part.qualified(),
        notes.join("t", Images::Old),
        notes.lies("t"),
        notes.keys
    )
}

/// What a part of this name is in the record: as installed with its table.
pub fn record(tracked_name: &str, part: &Part) -> String {
    format!(
        "INSERT INTO headwater.part (table_name, part, state) VALUES ({}, {}::regclass, 'tracked')",
        literal(tracked_name),
        literal(&part.qualified())
    )
}

/// The parts that these tables have, each with the name under which it is tracked: table name, schema, name, whether a partition.
pub fn found(tables: &[(String, Lineage<'_>)]) -> String {
    format!(
        "{} SELECT f.table_name, n.nspname::text, c.relname::text, c.relispartition FROM found f \
         JOIN pg_catalog.pg_class c ON c.oid = f.id JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace ORDER BY 1, 2, 3",
        tree(tables)
    )
}

/// The parts with which something is to be done: table name, part, whether it is one, its state (empty: unknown), whether its time
/// has come, schema, name (NULL: there is no such table any more), whether a partition, how many of its triggers are as they should
/// be, whether a subscription writes to it.
pub fn list(tables: &[(String, Lineage<'_>)]) -> String {
    let names: Vec<String> = tables.iter().map(|(name, _)| literal(name)).collect();
    let functions: Vec<String> = tables
        .iter()
        .map(|(name, table)| format!("({}, to_regproc({}))", literal(name), literal(&function(table))))
        .collect();
    format!(
        "{}, known AS (SELECT * FROM headwater.part WHERE table_name IN ({})), caller(table_name, id) AS (VALUES {}) \
         SELECT coalesce(f.table_name, p.table_name), coalesce(f.id, p.part)::int8, f.id IS NOT NULL, coalesce(p.state, ''), \
         coalesce(p.tried_at < clock_timestamp() - interval '{PAUSE}', true), n.nspname::text, c.relname::text, c.relispartition, \
         (SELECT count(*) FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND t.tgfoid = r.id AND t.tgenabled = 'A' \
         AND t.tgtype & 1 = 0), \
         EXISTS (SELECT 1 FROM pg_catalog.pg_subscription_rel s WHERE s.srrelid = c.oid) \
         FROM found f FULL JOIN known p ON p.table_name = f.table_name AND p.part = f.id \
         JOIN caller r ON r.table_name = coalesce(f.table_name, p.table_name) \
         LEFT JOIN pg_catalog.pg_class c ON c.oid = coalesce(f.id, p.part) AND c.relkind IN ('r', 'p') \
         LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE f.id IS NULL OR p.state IS DISTINCT FROM 'tracked' ORDER BY f.id IS NOT NULL, 1, 2",
        tree(tables),
        names.join(", "),
        functions.join(", ")
    )
}

/// The parts of these tables that have no triggers yet, and on which this role can't make them: table name, part, schema, name, whether a
/// partition, this role, what it lacks (`part`, `schema` or `table`), and whose the part is to be, or whose the table is.
pub fn out_of_reach(tables: &[(String, Lineage<'_>)]) -> String {
    format!(
        "{} SELECT f.table_name, c.oid::int8, n.nspname::text, c.relname::text, c.relispartition, quote_ident(current_user), l.lack, \
         quote_ident(CASE WHEN l.lack = 'table' OR pg_has_role(a.relowner, 'USAGE') THEN pg_get_userbyid(a.relowner) ELSE current_user END) \
         FROM found f JOIN root r ON r.table_name = f.table_name JOIN pg_catalog.pg_class a ON a.oid = r.id \
         JOIN pg_catalog.pg_class c ON c.oid = f.id JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         CROSS JOIN LATERAL (SELECT CASE WHEN NOT pg_has_role(c.relowner, 'USAGE') THEN 'part' \
         WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'schema' \
         WHEN NOT c.relispartition AND NOT pg_has_role(a.relowner, 'USAGE') THEN 'table' END) AS l(lack) \
         WHERE l.lack IS NOT NULL AND NOT EXISTS (SELECT FROM headwater.part p \
         WHERE p.table_name = f.table_name AND p.part = f.id AND p.state IN ('armed', 'tracked')) ORDER BY 1, 3, 4",
        tree(tables)
    )
}

/// The tables above these tables or above parts of them that are not below the table themselves: a statement on such a table fires no
/// trigger for statements of the part. Table name, the part's schema, name, whether a partition, the schema and name of the table above it.
pub fn outer_parents(tables: &[(String, Lineage<'_>)]) -> String {
    format!(
        "{}, inner_table AS (SELECT * FROM root UNION SELECT * FROM below) \
         SELECT t.table_name, n.nspname::text, c.relname::text, c.relispartition, an.nspname::text, a.relname::text \
         FROM (SELECT * FROM root UNION SELECT * FROM found) t JOIN pg_catalog.pg_inherits i ON i.inhrelid = t.id \
         JOIN pg_catalog.pg_class c ON c.oid = t.id JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_catalog.pg_class a ON a.oid = i.inhparent JOIN pg_catalog.pg_namespace an ON an.oid = a.relnamespace \
         WHERE NOT EXISTS (SELECT FROM inner_table b WHERE b.table_name = t.table_name AND b.id = i.inhparent) ORDER BY 1, 2, 3, 5, 6",
        tree(tables)
    )
}

/// Only a partition's keys can't repeat.
fn distinct(part: &Part) -> &'static str {
    if part.is_partition { "" } else { "DISTINCT " }
}

/// How many triggers of statements a part has.
pub fn statement_trigger_count() -> usize {
    super::STATEMENT_TRIGGERS.len()
}

/// One being detached concurrently is a part no more.
fn tree(tables: &[(String, Lineage<'_>)]) -> String {
    let roots: Vec<String> = tables
        .iter()
        .map(|(name, table)| format!("({}, {})", literal(name), table_id(&literal(&base_table(table.table())))))
        .collect();
    format!(
        "WITH RECURSIVE root(table_name, id) AS (VALUES {}), below(table_name, id) AS (\
         SELECT r.table_name, i.inhrelid FROM root r JOIN pg_catalog.pg_inherits i ON i.inhparent = r.id AND NOT i.inhdetachpending \
         UNION \
         SELECT b.table_name, i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.id AND NOT i.inhdetachpending), \
         found AS (SELECT b.table_name, b.id FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.id \
         WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't')",
        roots.join(", ")
    )
}

/// A part may be one of several tables, or tracked itself: its triggers are named by the table.
fn of_table(name: &str, lineage: &Lineage<'_>) -> String {
    quote(&own_name(&format!("{name}_of_"), lineage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parts_triggers_are_named_by_the_table() {
        let model = "name = \"m\"\nversion = 1\n[tables.log]\nkey = [\"id\"]\ncolumns = { id = \"int not null\" }";
        let model = crate::parse::parse("m.toml", model).expect("a model");
        let log = &Lineage::new(&model, model.table("log").expect("log"));
        let part = Part { schema: "old".into(), name: "log 1".into(), is_partition: true };
        let armed = arm(log, &part).join("\n");
        assert!(armed.contains("\"headwater_insert_of_log\" AFTER INSERT ON \"old\".\"log 1\""), "{armed}");
        assert!(!armed.contains("FOR EACH ROW"), "{armed}");
        let heir = Part { is_partition: false, ..part };
        assert!(arm(log, &heir).join("\n").contains("ENABLE REPLICA TRIGGER \"headwater_row_of_log\""));
        assert_eq!(disarm(log, &heir).len(), 5);
        assert!(arm(log, &heir).join("\n").contains("ON \"public\".\"log\" REFERENCING NEW TABLE AS hw_new FOR EACH STATEMENT EXECUTE FUNCTION headwater.\"track_log\"('keys repeat')"));
    }
}
