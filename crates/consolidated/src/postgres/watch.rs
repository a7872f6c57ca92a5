//! What a query depends on, and whether that has changed.
//!
//! The query is made a temporary view, in a transaction that is rolled back: the view's rule has each table, view and function of it, by number
//! and for sure, where a plan has only what the planner found to be of use. Tables of views are found in the views' own rules.

use std::collections::BTreeSet;

use headwater_model::sql::{literal, moments, with_parameters};
use headwater_protocol::Value;

use super::connection::PostgresConnection;
use super::snapshot::{HIERARCHY_SQL, TRIGGERS_SQL};
use super::watermark::Watermark;
use crate::catalogue::{integer, text};
use crate::results::QueryConnection as _;
use crate::watch::{Marked, Watched};
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

/// What a rule names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) relations: BTreeSet<u32>,
    pub(super) functions: BTreeSet<u32>,
    pub(super) is_strange: bool,
}

impl Named {
    /// Of a rule as the catalogue has it, `{QUERY :commandType 1 ... :relid 16385 ...}`.
    pub(super) fn read(rule: &str) -> Named {
        let mut named = Named { is_strange: STRANGE.iter().any(|what| rule.contains(what)), ..Named::default() };
        let mut words = rule.split([' ', '(', ')', '}']);
        while let Some(word) = words.next() {
            match word {
                // Only a text that is read gets another type so.
                ":resulttype" => named.is_strange |= words.next().is_some_and(|kind| TIMES.contains(&kind)),
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
        let Some(Named { relations, functions, .. }) = self.depends_on()? else { return Ok(None) };
        // From here on no table can be altered; what a trigger becomes after this is seen by the state.
        let (names, relations) = (self.tables_of(&relations)?, numbers(&relations));
        let sql = names.as_deref().map(|names| marking_sql(names, &relations));
        let Some(sql) = sql.filter(|_| functions.is_empty() || !self.has_strange(&functions)) else { return Ok(None) };
        let rows = self.query(&sql, &[Value::Null, Value::Null, Value::Null])?;
        let state = rows.first().map(|row| text(row, 2)).unwrap_or_default();
        let are_tracked = self.are_tracked(&relations)?;
        Ok(are_tracked.then_some(Watched { sql, state }))
    }

    /// Relations and functions, those of views included; `None`: something else than those counts too.
    fn depends_on(&mut self) -> Result<Option<Named>, Error> {
        const RULES_SQL: &str = "SELECT c.oid::int8, c.relkind::text, r.ev_action::text FROM pg_catalog.pg_class c \
             LEFT JOIN pg_catalog.pg_rewrite r ON r.ev_class = c.oid AND r.ev_type = '1' WHERE c.oid = ANY (?1::text::oid[])";
        let own = self.query("SELECT 'pg_temp.headwater_watched'::regclass::oid::int8", &[])?;
        let own = own.first().map(|row| integer(row, 0) as u32).unwrap_or_default();
        let (mut known, mut next) = (BTreeSet::new(), BTreeSet::from([own]));
        let mut functions = BTreeSet::new();
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
                functions.extend(named.functions);
                next.extend(named.relations.difference(&known));
            }
            if known.len() + next.len() > RELATIONS_MAX {
                return Ok(None);
            }
        }
        known.remove(&own);
        Ok(Some(Named { relations: known, functions, is_strange: false }))
    }

    /// How the tables among these relations are named where their changes are noted; `None`: one is nothing of which that is known.
    fn tables_of(&mut self, relations: &BTreeSet<u32>) -> Result<Option<Vec<String>>, Error> {
        const TABLES_SQL: &str = "SELECT CASE n.nspname WHEN 'public' THEN c.relname ELSE n.nspname || '.' || c.relname END::text, \
             c.relpersistence = 'p' AND NOT c.relhassubclass AND NOT c.relispartition AND NOT c.relrowsecurity AND NOT c.relhasrules \
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

/// Gives the snapshot, whether it is a standby's, the state of the database (its timeline changes when it is put back to an earlier time, or
/// promoted) and of these tables and views, and whether the tables have changed. Parameters: the
/// end of what was seen before, what was open below it, and the first that was not seen.
fn marking_sql(tables: &[String], relations: &str) -> String {
    let names: Vec<String> = tables.iter().map(|name| literal(name)).collect();
    format!(
        "SELECT pg_current_snapshot()::text, pg_is_in_recovery(), \
         concat_ws('/', (SELECT encode(i.incarnation, 'hex') FROM headwater.identity i), \
         (SELECT timeline_id FROM pg_control_checkpoint()), ({TRIGGERS_SQL}), ({HIERARCHY_SQL}), \
         (SELECT string_agg(concat_ws('.', c.oid, c.xmin, c.relfilenode, (SELECT string_agg(r.xmin::text, ',' ORDER BY r.oid) \
         FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid), (SELECT string_agg(a.xmin::text, ',' ORDER BY a.attnum) \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)), ';' ORDER BY c.oid) \
         FROM pg_catalog.pg_class c WHERE c.oid IN ({relations}))), \
         EXISTS (SELECT FROM headwater.table_change t WHERE t.table_name IN ({}) AND t.transaction >= ?1::text::xid8) \
         OR EXISTS (SELECT FROM headwater.table_change t WHERE t.table_name IN ({}) AND t.transaction = ANY (?2::text::xid8[])) \
         OR EXISTS (SELECT FROM headwater.table_change t WHERE t.table_name = '' AND t.transaction > ?3::text::xid8)",
        names.join(", "),
        names.join(", "),
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
