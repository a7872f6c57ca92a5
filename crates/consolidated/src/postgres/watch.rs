//! What a query depends on, and whether that has changed.
//!
//! The query is made a temporary view, in a transaction that is rolled back: the view's rule has each table, view and function of it, by number
//! and for sure, where a plan has only what the planner found to be of use. Tables of views are found in the views' own rules.
//!
//! The state under which a mark is good has everything else that an answer comes from:
//!
//! | part of the state | changes with |
//! |---|---|
//! | system identifier, database, timeline, incarnation | a restore, a promotion, a copy renamed into place |
//! | start of the server, reset of its statistics | a crash that may have lost commits of `synchronous_commit = off`; a crash of one process resets the statistics too |
//! | search path, relations, functions and operators of the same names | names that would be resolved otherwise now |
//! | relations, their schemas, columns and rules | DDL |
//! | types of the columns and of the query: enums, composite types, domains | `ALTER TYPE` |
//! | privileges of the role and of the owners of views | `REVOKE`, also from a role of which it is a member |
//!
//! *Caveats.* Casts, collations and text search configurations that are made later are not looked for.

use std::collections::BTreeSet;

use headwater_model::sql::{literal, moments, with_parameters};
use headwater_protocol::Value;

use super::connection::PostgresConnection;
use super::snapshot::{HIERARCHY_SQL, TRIGGERS_SQL};
use super::watermark::Watermark;
use crate::catalogue::{integer, text};
use crate::results::QueryConnection as _;
use crate::watch::{Marked, Outlook, Watched};
use crate::{Connection as _, Error, Mode};

/// Relations that one query may depend on; more are not looked into.
const RELATIONS_MAX: usize = 200;
/// Functions of PostgreSQL's own that are not immutable only by settings that every connection of ours has alike.
const LIKE_IMMUTABLE: &str = "'date_trunc', 'date_part', 'extract', 'timezone', 'to_char', 'date', 'timestamp', 'timestamptz', 'concat', \
    'concat_ws', 'format', 'timestamptz_pl_interval', 'timestamptz_mi_interval', 'interval_pl_timestamptz', 'date_eq_timestamptz', \
    'date_lt_timestamptz', 'date_le_timestamptz', 'date_gt_timestamptz', 'date_ge_timestamptz', 'timestamptz_eq_date', \
    'timestamptz_lt_date', 'timestamptz_le_date', 'timestamptz_gt_date', 'timestamptz_ge_date', 'array_to_string', 'string_agg', \
    'json_agg', 'jsonb_agg', 'to_json', 'to_jsonb', 'row_to_json', 'json_build_object', 'jsonb_build_object', 'json_build_array', \
    'jsonb_build_array', 'json_object_agg', 'jsonb_object_agg'";
/// Expressions of a rule whose value is not only that of what is in them.
const STRANGE: [&str; 6] =
    ["{SQLVALUEFUNCTION", "{NEXTVALUEEXPR", "{CURRENTOFEXPR", "{TABLESAMPLECLAUSE", "{ROWMARKCLAUSE", "{XMLEXPR"];
/// Texts that are read as dates and times may say `now`.
const TIMES: [&str; 5] = ["1082", "1083", "1114", "1184", "1266"];

/// Objects that are not PostgreSQL's own have numbers from here on.
const FIRST_OWN: u32 = 16_384;
/// Types that one query may depend on.
const TYPES_MAX: usize = 1_000;

/// What a rule names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) relations: BTreeSet<u32>,
    pub(super) functions: BTreeSet<u32>,
    operators: BTreeSet<u32>,
    /// That are not PostgreSQL's own.
    types: BTreeSet<u32>,
    pub(super) is_strange: bool,
}

impl Named {
    /// Of a rule as the catalogue has it, `{QUERY :commandType 1 ... :relid 16385 ...}`.
    pub(super) fn read(rule: &str) -> Named {
        let mut named = Named { is_strange: STRANGE.iter().any(|what| rule.contains(what)), ..Named::default() };
        let mut words = rule.split([' ', '(', ')', '}']);
        while let Some(word) = words.next() {
            match word {
                ":consttype" | ":vartype" | ":paramtype" | ":funcresulttype" | ":opresulttype" | ":aggtype"
                | ":wintype" | ":casetype" | ":coalescetype" | ":minmaxtype" | ":array_typeid" | ":row_typeid" => {
                    named.types.extend(number(words.next()).filter(|kind| *kind >= FIRST_OWN));
                }
                // Only a text that is read gets another type so.
                ":resulttype" => {
                    let kind = words.next();
                    named.is_strange |= kind.is_some_and(|kind| TIMES.contains(&kind));
                    named.types.extend(number(kind).filter(|kind| *kind >= FIRST_OWN));
                }
                ":opno" => named.operators.extend(number(words.next())),
                ":relid" => named.relations.extend(number(words.next())),
                ":funcid" | ":opfuncid" | ":aggfnoid" | ":winfnoid" => named.functions.extend(number(words.next())),
                _ => {}
            }
        }
        named
    }
}

fn number(word: Option<&str>) -> Option<u32> {
    word.and_then(|word| word.parse().ok()).filter(|number| *number != 0)
}

impl PostgresConnection {
    /// What is to be known of a query to watch it; `None`: it can't be. Its parameters count as NULLs.
    pub(super) fn watch_query(&mut self, sql: &str) -> Result<Option<Watched>, Error> {
        // A view keeps the moment at which it was made: no rule tells that it was `now`.
        if !moments(sql).is_empty() {
            return Ok(None);
        }
        self.begin(Mode::Upload)?;
        let watched = self.look_into(sql);
        self.rollback()?;
        match watched {
            // It may not make views, say; or the view can't be made of it.
            Err(error) if !matches!(error, Error::Retry { broken: true, .. }) => {
                tracing::debug!(%error, "a query can't be looked into");
                Ok(None)
            }
            watched => watched,
        }
    }

    /// What its role must be granted before it can watch; nothing where no table is tracked.
    pub(super) fn missing_grants(&mut self) -> Result<Vec<String>, Error> {
        let sql = "SELECT format(g.what, quote_ident(current_user))::text FROM pg_catalog.pg_namespace n \
             JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'table_change' \
             JOIN pg_catalog.pg_class i ON i.relnamespace = n.oid AND i.relname = 'identity' \
             CROSS JOIN LATERAL (VALUES \
             (has_database_privilege(current_database(), 'TEMPORARY'), \
              'GRANT TEMPORARY ON DATABASE ' || replace(quote_ident(current_database()), '%', '%%') || ' TO %s'), \
             (has_schema_privilege(n.oid, 'USAGE'), 'GRANT USAGE ON SCHEMA headwater TO %s'), \
             (has_table_privilege(c.oid, 'SELECT'), 'GRANT SELECT ON headwater.table_change TO %s'), \
             (has_column_privilege(i.oid, 'incarnation', 'SELECT'), 'GRANT SELECT (incarnation) ON headwater.identity TO %s') \
             ) AS g(has, what) WHERE n.nspname = 'headwater' AND NOT g.has";
        Ok(self.query(sql, &[])?.iter().map(|row| text(row, 0)).collect())
    }

    fn look_into(&mut self, sql: &str) -> Result<Option<Watched>, Error> {
        let plain = with_parameters(sql, |name| if name.starts_with('?') { "NULL".into() } else { name.to_owned() });
        self.batch("SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '5s'")?;
        // The text may be a stranger's. Prepared, it is one statement or an error; a batch would run what stands behind a `;` too.
        let view = format!("CREATE TEMPORARY VIEW headwater_watched AS SELECT FROM (\n{plain}\n) AS q");
        let made = self.run(async |client| client.execute(view.as_str(), &[]).await);
        made.map_err(|failure| self.failure("looking into a query", &failure))?;
        let Some(named) = self.depends_on()? else { return Ok(None) };
        let Some(types) = self.types_below(&named)? else { return Ok(None) };
        let Named { relations, functions, operators, .. } = named;
        // From here on no table can be altered; what a trigger becomes after this is seen by the state.
        let used_names = self.names_of([&relations, &functions, &operators])?;
        let (tables, relations) = (self.tables_of(&relations)?, numbers(&relations));
        let reads = Reads { relations: &relations, types: &types, names: &used_names };
        let sql = tables.as_deref().map(|tables| marking_sql(tables, &reads));
        let Some(sql) = sql.filter(|_| functions.is_empty() || !self.has_strange(&functions)) else { return Ok(None) };
        let rows = self.query(&sql, &[Value::Null, Value::Null, Value::Null])?;
        let state = rows.first().map(|row| text(row, 2)).unwrap_or_default();
        let are_tracked = self.are_tracked(&relations)?;
        let mut watched = Watched { sql, state, outlook_sql: outlook_sql(&reads), names: None };
        watched.names = self.outlook_of(&watched)?.map(|outlook| outlook.names);
        Ok(are_tracked.then_some(watched))
    }

    /// The types of the query and of its tables' columns that are not PostgreSQL's own, and those of which they consist; `None`: too many.
    fn types_below(&mut self, named: &Named) -> Result<Option<String>, Error> {
        const TYPES_SQL: &str = "WITH RECURSIVE used (id) AS ( \
             SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY (?1::text::oid[]) AND a.attnum > 0 AND NOT a.attisdropped \
             UNION SELECT unnest(?2::text::oid[]) \
             UNION SELECT p.id FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.id CROSS JOIN LATERAL ( \
                 SELECT t.typelem UNION ALL SELECT t.typbasetype \
                 UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 \
                 UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid) AS p (id) \
             WHERE t.oid >= 16384) \
             SELECT id::int8 FROM used WHERE id >= 16384 ORDER BY id";
        let parameters = [&named.relations, &named.types].map(|oids| Value::text(format!("{{{}}}", numbers(oids))));
        let rows = self.query(TYPES_SQL, &parameters)?;
        let types: BTreeSet<u32> = rows.iter().map(|row| integer(row, 0) as u32).collect();
        Ok((types.len() <= TYPES_MAX).then(|| numbers(&types)))
    }

    /// The names of relations, functions and operators.
    fn names_of(
        &mut self,
        [relations, functions, operators]: [&BTreeSet<u32>; 3],
    ) -> Result<Vec<(String, String)>, Error> {
        const NAMES_SQL: &str = "SELECT DISTINCT * FROM (SELECT 'relation', c.relname::text FROM pg_catalog.pg_class c \
             WHERE c.oid = ANY (?1::text::oid[]) \
             UNION ALL SELECT 'function', p.proname::text FROM pg_catalog.pg_proc p WHERE p.oid = ANY (?2::text::oid[]) \
             UNION ALL SELECT 'operator', o.oprname::text FROM pg_catalog.pg_operator o WHERE o.oid = ANY (?3::text::oid[])) n ORDER BY 1, 2";
        let parameters = [relations, functions, operators].map(|oids| Value::text(format!("{{{}}}", numbers(oids))));
        Ok(self.query(NAMES_SQL, &parameters)?.iter().map(|row| (text(row, 0), text(row, 1))).collect())
    }

    /// How this connection finds what a watched query reads, and what its role may read of it.
    pub(super) fn outlook_of(&mut self, watched: &Watched) -> Result<Option<Outlook>, Error> {
        let rows = self.query(&watched.outlook_sql, &[])?;
        let primary = rows.first().filter(|row| row.first() == Some(&Value::Bool(false)));
        Ok(primary.map(|row| Outlook { names: text(row, 1), rights: text(row, 2) }))
    }

    /// Relations and functions, those of views included; `None`: something else than those counts too.
    fn depends_on(&mut self) -> Result<Option<Named>, Error> {
        const RULES_SQL: &str = "SELECT c.oid::int8, c.relkind::text, r.ev_action::text FROM pg_catalog.pg_class c \
             LEFT JOIN pg_catalog.pg_rewrite r ON r.ev_class = c.oid AND r.ev_type = '1' WHERE c.oid = ANY (?1::text::oid[])";
        let own = self.query("SELECT 'pg_temp.headwater_watched'::regclass::oid::int8", &[])?;
        let own = own.first().map(|row| integer(row, 0) as u32).unwrap_or_default();
        let (mut known, mut next) = (BTreeSet::new(), BTreeSet::from([own]));
        let mut all = Named::default();
        while !next.is_empty() {
            let rows = self.query(RULES_SQL, &[Value::text(format!("{{{}}}", numbers(&next)))])?;
            known.append(&mut next);
            for row in &rows {
                let named = match text(row, 1).as_str() {
                    "r" => Named::default(),
                    "v" => Named::read(&text(row, 2)),
                    // A materialized view, a foreign table, a partitioned one: changes come to those unnoted.
                    _ => return Ok(None),
                };
                if named.is_strange {
                    return Ok(None);
                }
                all.functions.extend(named.functions);
                all.operators.extend(named.operators);
                all.types.extend(named.types);
                next.extend(named.relations.difference(&known));
            }
            if known.len() + next.len() > RELATIONS_MAX {
                return Ok(None);
            }
        }
        known.remove(&own);
        Ok(Some(Named { relations: known, ..all }))
    }

    /// How the tables among these relations are named where their changes are noted; `None`: one is nothing of which that is known.
    fn tables_of(&mut self, relations: &BTreeSet<u32>) -> Result<Option<Vec<String>>, Error> {
        const TABLES_SQL: &str = "SELECT CASE n.nspname WHEN 'public' THEN c.relname ELSE n.nspname || '.' || c.relname END::text, \
             c.relpersistence = 'p' AND NOT c.relhassubclass AND NOT c.relrowsecurity AND NOT c.relhasrules \
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid) \
             AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'headwater') \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind = 'r' AND c.oid = ANY (?1::text::oid[])";
        let rows = self.query(TABLES_SQL, &[Value::text(format!("{{{}}}", numbers(relations)))])?;
        let name = |row: &Vec<Value>| (row.get(1) == Some(&Value::Bool(true))).then(|| text(row, 0));
        let names: Option<Vec<String>> = rows.iter().map(name).collect();
        // Without a table there is nothing to be asked.
        Ok(names.filter(|names| !names.is_empty()))
    }

    /// Whether one of these functions may give another value for the same arguments, or is not PostgreSQL's own.
    fn has_strange(&mut self, functions: &BTreeSet<u32>) -> bool {
        let sql = format!(
            "SELECT count(*) FROM pg_catalog.pg_proc p WHERE p.oid = ANY (?1::text::oid[]) \
             AND (p.pronamespace <> 'pg_catalog'::regnamespace OR p.provolatile = 'v' \
             OR p.provolatile = 's' AND p.proname NOT IN ({LIKE_IMMUTABLE}))"
        );
        let rows = self.query(&sql, &[Value::text(format!("{{{}}}", numbers(functions)))]);
        rows.map_or(true, |rows| rows.first().is_none_or(|row| integer(row, 0) != 0))
    }

    /// Whether all tables among these relations have the triggers that note changes of statements.
    fn are_tracked(&mut self, relations: &str) -> Result<bool, Error> {
        let sql = "SELECT count(*) FROM pg_catalog.pg_class c WHERE c.relkind = 'r' AND c.oid = ANY (?1::text::oid[]) \
                   AND (SELECT count(DISTINCT t.tgtype) FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid \
                   WHERE t.tgrelid = c.oid AND t.tgenabled = 'A' AND t.tgname LIKE 'headwater\\_%' AND t.tgtype & 1 = 0 \
                   AND p.pronamespace = 'headwater'::regnamespace AND p.prosrc LIKE '%headwater.table_change%') < 4";
        let rows = self.query(sql, &[Value::text(format!("{{{relations}}}"))])?;
        Ok(rows.first().is_some_and(|row| integer(row, 0) == 0))
    }

    /// What is known of a watched query's tables now.
    pub(super) fn mark_of(&mut self, watched: &Watched, since: Option<&str>) -> Result<Marked, Error> {
        let seen = since.and_then(|mark| watched.seen(mark));
        let known = seen.and_then(|seen| Watermark::from_bytes(&seen).ok());
        let parameters = match &known {
            Some(known) => {
                let open: Vec<String> = known.open.iter().map(u64::to_string).collect();
                let texts = [known.end.to_string(), format!("{{{}}}", open.join(",")), known.seen_below().to_string()];
                texts.map(Value::text)
            }
            None => [Value::Null, Value::Null, Value::Null],
        };
        let rows = self.query(&watched.sql, &parameters)?;
        let Some(row) = rows.first().filter(|row| text(row, 2) == watched.state) else { return Ok(Marked::Altered) };
        let in_recovery = row.get(1) == Some(&Value::Bool(true));
        let Some(now) = Watermark::from_snapshot(&text(row, 0), in_recovery) else { return Ok(Marked::Altered) };
        let mark = watched.mark(&now.to_bytes());
        let has_changed = known.is_none() || row.get(3) != Some(&Value::Bool(false));
        Ok(if has_changed { Marked::Changed(mark) } else { Marked::Unchanged(mark) })
    }
}

fn numbers(oids: &BTreeSet<u32>) -> String {
    oids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// What a query reads.
struct Reads<'r> {
    /// Numbers, between commas.
    relations: &'r str,
    types: &'r str,
    /// Of relations, functions and operators: of which it is, and the name.
    names: &'r [(String, String)],
}

/// A condition: one of these, which may be none.
fn is_in(column: &str, numbers: &str) -> String {
    if numbers.is_empty() { "false".to_owned() } else { format!("{column} IN ({numbers})") }
}

/// One value that is another where names would be resolved otherwise: the schemas that are searched, and what there has a name of something
/// that the query reads.
fn names_sql(reads: &Reads<'_>) -> String {
    let same_name = |kind: &str, catalogue: &str, name: &str, schema: &str| {
        let names: Vec<String> =
            reads.names.iter().filter(|(of, _)| of == kind).map(|(_, name)| literal(name)).collect();
        if names.is_empty() {
            return "''".to_owned();
        }
        format!(
            "(SELECT string_agg(o.oid::text, ',' ORDER BY o.oid) FROM pg_catalog.{catalogue} o JOIN pg_catalog.pg_namespace n \
             ON n.oid = o.{schema} WHERE o.{name} IN ({}) AND n.nspname = ANY (current_schemas(false)))",
            names.join(", ")
        )
    };
    format!(
        "concat_ws('/', current_schemas(false)::text, {}, {}, {})",
        same_name("relation", "pg_class", "relname", "relnamespace"),
        same_name("function", "pg_proc", "proname", "pronamespace"),
        same_name("operator", "pg_operator", "oprname", "oprnamespace"),
    )
}

/// One value that is another where the role may read something else.
fn rights_sql(reads: &Reads<'_>) -> String {
    format!(
        "(SELECT concat_ws('/', current_user, string_agg(concat_ws('.', c.oid, has_schema_privilege(c.relnamespace, 'USAGE'), \
         has_table_privilege(c.oid, 'SELECT'), has_any_column_privilege(c.oid, 'SELECT'), (SELECT string_agg(concat_ws('.', w.relowner, \
         has_table_privilege(w.relowner, c.oid, 'SELECT'), has_any_column_privilege(w.relowner, c.oid, 'SELECT'), \
         has_schema_privilege(w.relowner, c.relnamespace, 'USAGE')), ',' ORDER BY w.relowner) \
         FROM (SELECT DISTINCT v.relowner FROM pg_catalog.pg_class v WHERE v.relkind = 'v' AND v.oid IN ({0})) AS w)), ';' ORDER BY c.oid)) \
         FROM pg_catalog.pg_class c WHERE c.oid IN ({0}))",
        reads.relations
    )
}

/// Which database this is, and since when it has lost nothing: after a crash, also of one process alone, the statistics begin anew.
const LIFE_SQL: &str = "concat_ws('/', (SELECT system_identifier FROM pg_control_system()), \
    (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database()), (SELECT timeline_id FROM pg_control_checkpoint()), \
    extract(epoch FROM pg_postmaster_start_time()), extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()))";

/// Gives whether it is a standby, and of a connection, how names are found and what may be read.
fn outlook_sql(reads: &Reads<'_>) -> String {
    let (names, rights) = (names_sql(reads), rights_sql(reads));
    format!("SELECT pg_is_in_recovery(), concat_ws('/', {LIFE_SQL}, {names}), {rights}")
}

/// Gives the snapshot, whether it is a standby's, the state of the database and of what the query reads, and whether the tables have changed.
/// Parameters: the end of what was seen before, what was open below it, and the first that was not seen.
fn marking_sql(tables: &[String], reads: &Reads<'_>) -> String {
    let tables: Vec<String> = tables.iter().map(|name| literal(name)).collect();
    let (tables, relations) = (tables.join(", "), reads.relations);
    let (names, rights) = (names_sql(reads), rights_sql(reads));
    let types = is_in("t.oid", reads.types);
    format!(
        "SELECT pg_current_snapshot()::text, pg_is_in_recovery(), \
         concat_ws('/', (SELECT encode(i.incarnation, 'hex') FROM headwater.identity i), {LIFE_SQL}, {names}, {rights}, \
         ({TRIGGERS_SQL}), ({HIERARCHY_SQL}), \
         (SELECT string_agg(concat_ws('.', c.oid, c.xmin, c.relfilenode, n.nspname, n.xmin, \
         (SELECT string_agg(r.xmin::text, ',' ORDER BY r.oid) \
         FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid), (SELECT string_agg(a.xmin::text, ',' ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)), ';' ORDER BY c.oid) \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({relations})), \
         (SELECT string_agg(concat_ws('.', t.oid, t.xmin, (SELECT string_agg(concat_ws('.', e.oid, e.xmin), ',' ORDER BY e.oid) \
         FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid), (SELECT string_agg(a.xmin::text, ',' ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)), ';' ORDER BY t.oid) \
         FROM pg_catalog.pg_type t WHERE {types})), \
         EXISTS (SELECT FROM headwater.table_change t WHERE t.table_name IN ({tables}) AND t.transaction >= ?1::text::xid8) \
         OR EXISTS (SELECT FROM headwater.table_change t WHERE t.table_name IN ({tables}) AND t.transaction = ANY (?2::text::xid8[])) \
         OR EXISTS (SELECT FROM headwater.table_change t WHERE t.table_name = '' AND t.transaction > ?3::text::xid8)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_what_it_is_about() {
        let rule = "({QUERY :rtable ({RANGETBLENTRY :rtekind 0 :relid 16385 :relkind r}) :targetList ({TARGETENTRY :expr \
                    {OPEXPR :opno 96 :opfuncid 65 :args ({FUNCEXPR :funcid 1299 :args <>} {AGGREF :aggfnoid 2147})}})})";
        let named = Named::read(rule);
        assert_eq!(named.relations, BTreeSet::from([16_385]));
        assert_eq!(named.functions, BTreeSet::from([65, 1_299, 2_147]));
        assert!(!named.is_strange);
        assert!(Named::read("{SQLVALUEFUNCTION :op 3}").is_strange);
        assert!(Named::read("{COERCEVIAIO :arg {VAR} :resulttype 1082 :x}").is_strange);
        assert!(!Named::read("{COERCEVIAIO :arg {VAR} :resulttype 25 :x}").is_strange);
    }
}
