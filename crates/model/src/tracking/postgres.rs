//! Change tracking in PostgreSQL.
//!
//! A side table has the key's columns, the partition's that are not among them, `version` (the transaction that changed the row
//! last, `xid8`) and `deleted` (true: a tombstone; NULL: a live row, which so takes no room). For table `purchase` with key
//! `(emp_id, purch_id)`, partitioned by `emp_id`:
//!
//! ```text
//! headwater.side_purchase (key_emp_id, key_purch_id, version, deleted)
//!     unique index (key_emp_id, key_purch_id)       finds the row to note a change in
//!     index        (key_emp_id, version)            finds what a watermark has not seen; versions repeat, so it is deduplicated
//! headwater.track_purchase()                        called by five triggers of the table
//! ```
//!
//! Four triggers fire once a statement, over all its rows, so COPY, MERGE, upserts and cascades cost one statement more; also under
//! `session_replication_role = replica`. The fifth fires for each row, in sessions of that role only: what applies a logical
//! subscription writes rows without statements. A session of an application under that role notes its rows twice, which comes to the
//! same. The function runs with its owner's rights and a fixed search path: the application's roles need no grant. An update notes
//! the keys and partitions before and after it in one statement, grouped: a row that stays is live, a pair that is gone is a
//! tombstone. The tables below a partitioned or inherited one have triggers of their own, see [`parts`].
//!
//! What a side row says of `deleted` is only a help for purging: triggers of the application that change the table again run in
//! between, so a download looks at the table itself for what became of a key.
//!
//! *Caveats.* TRUNCATE inside a REPEATABLE READ transaction notes the rows of
//! its snapshot: one that was committed between the snapshot and the lock is emptied without a tombstone. An unlogged table that a
//! crash empties leaves none either.

pub mod parts;

use sha2::{Digest, Sha256};

use super::{TrackedTable, layout};
use crate::sql::{literal, quote};
use crate::{Column, Table};

/// PostgreSQL cuts longer names.
const NAME_BYTES: usize = 63;

/// The version of what [`install`] makes; it stands in the function's comment.
const FORMAT: u32 = 2;

/// The triggers of statements: name, when, the transition tables that their statements read.
const STATEMENT_TRIGGERS: [(&str, &str, &str); 4] = [
    ("headwater_insert", "AFTER INSERT", " REFERENCING NEW TABLE AS hw_new"),
    ("headwater_update", "AFTER UPDATE", " REFERENCING OLD TABLE AS hw_old NEW TABLE AS hw_new"),
    ("headwater_delete", "AFTER DELETE", " REFERENCING OLD TABLE AS hw_old"),
    ("headwater_truncate", "BEFORE TRUNCATE", ""),
];

/// The trigger for each row; enabled where a session replicates, and there alone.
const ROW_TRIGGER: &str = "headwater_row";

/// The triggers that a tracked table has: name, and the state that the catalogue says they are in.
pub fn triggers(table: &Table) -> impl Iterator<Item = (String, &'static str)> {
    events().map(|(name, state)| (trigger_name(name, table), state))
}

/// The same before the layout is in the name.
fn events() -> impl Iterator<Item = (&'static str, &'static str)> {
    STATEMENT_TRIGGERS.iter().map(|(name, _, _)| (*name, "A")).chain([(ROW_TRIGGER, "R")])
}

fn trigger_name(name: &str, table: &Table) -> String {
    limited(&format!("{name}{}", layout(table)))
}

/// The table itself, schema and quotes included.
pub fn base_table(table: &Table) -> String {
    format!("{}.{}", quote(schema(table)), quote(&table.name))
}

/// The side table, schema and quotes included.
pub fn side_table(table: &Table) -> String {
    format!("headwater.{}", quote(&side_name(table)))
}

/// The name of the side table, in schema `headwater`, of a table.
pub fn side_name(table: &Table) -> String {
    own_name("side_", table)
}

/// The side table's columns that hold the key, in quotes and key order.
pub fn key_columns(table: &Table) -> Vec<String> {
    table.key_columns().map(|column| side_column("key_", column)).collect()
}

/// The side table's columns that hold the partition, in quotes and the partition's order. A column of the key stands there once.
pub fn partition_columns(table: &Table) -> Vec<String> {
    pairs(table).into_iter().filter(|pair| pair.partition).map(|pair| pair.side).collect()
}

/// The side table's columns that stand for columns of the table: their place there, and the name here in quotes. The key's come first.
pub fn side_columns(table: &Table) -> Vec<(usize, String)> {
    pairs(table).into_iter().map(|pair| (pair.place, pair.side)).collect()
}

/// The comment that the function of this body has if nobody changed it.
pub fn function_comment(body: &str) -> String {
    format!("headwater {FORMAT} {}", hex(&Sha256::digest(body.as_bytes())))
}

/// The statements that install the tracking of a table; harmless where it is installed. Schema `headwater` must be there. They
/// belong in one transaction, and wait for the transactions that are writing to the table.
pub fn install(tracked: &TrackedTable<'_>) -> Vec<String> {
    let table = tracked.table;
    let (base, side) = (base_table(table), side_table(table));
    let index = |prefix: &str| quote(&own_name(prefix, table));
    let key_index = index("side_key_");
    let keys = sides(table);
    let mut partition = partition_columns(table);
    partition.push("version".into());
    let mut statements = vec![layout_check(table), create_side_table(table)];
    statements.extend(keys.iter().map(|key| format!("ALTER TABLE {side} ALTER COLUMN {key} SET NOT NULL")));
    statements.extend([
        format!("ALTER TABLE {side} ALTER COLUMN version SET NOT NULL"),
        format!("CREATE UNIQUE INDEX IF NOT EXISTS {key_index} ON {side} ({})", keys.join(", ")),
        // A publication for all tables would otherwise refuse the triggers' updates.
        format!("ALTER TABLE {side} REPLICA IDENTITY USING INDEX {key_index}"),
        format!("CREATE INDEX IF NOT EXISTS {} ON {side} ({})", index("side_version_"), partition.join(", ")),
    ]);
    statements.extend(create_function(table));
    statements.extend(statement_triggers(table, &base, "", |name| quote(&trigger_name(name, table))));
    // A partitioned table's leaves get this one of themselves, those made later too.
    statements.extend(row_trigger(table, &base, &quote(&trigger_name(ROW_TRIGGER, table))));
    statements
}

/// What a trigger's function is told where rows of a statement may have the same key: of tables that inherit from one another several
/// may hold it.
const KEYS_REPEAT: &str = "'keys repeat'";

/// The triggers of statements on a table or a part of it, `on`.
fn statement_triggers(table: &Table, on: &str, argument: &str, named: impl Fn(&str) -> String) -> Vec<String> {
    let function = function(table);
    let make = |(name, when, tables): &(&str, &str, &str)| {
        let name = named(name);
        [
            format!(
                "CREATE OR REPLACE TRIGGER {name} {when} ON {on}{tables} FOR EACH STATEMENT EXECUTE FUNCTION {function}({argument})"
            ),
            format!("ALTER TABLE {on} ENABLE ALWAYS TRIGGER {name}"),
        ]
    };
    STATEMENT_TRIGGERS.iter().flat_map(make).collect()
}

fn row_trigger(table: &Table, on: &str, name: &str) -> [String; 2] {
    [
        format!(
            "CREATE OR REPLACE TRIGGER {name} AFTER INSERT OR UPDATE OR DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION {}()",
            function(table)
        ),
        format!("ALTER TABLE {on} ENABLE REPLICA TRIGGER {name}"),
    ]
}

/// The statements that remove the tracking of a table; harmless where there is none.
pub fn uninstall(table: &Table) -> Vec<String> {
    let base = base_table(table);
    let triggers = triggers(table).map(|(name, _)| format!("DROP TRIGGER IF EXISTS {} ON {base}", quote(&name)));
    let rest = [
        // With what calls it, in the parts.
        format!("DROP FUNCTION IF EXISTS {}() CASCADE", function(table)),
        format!("DROP TABLE IF EXISTS {}", side_table(table)),
    ];
    triggers.chain(rest).collect()
}

/// A column of the base table that the side table has too.
struct Pair {
    place: usize,
    base: String,
    side: String,
    partition: bool,
}

/// The key's columns, then the partition's others.
fn pairs(table: &Table) -> Vec<Pair> {
    let partition: Vec<usize> = table.partition.iter().flat_map(|p| p.columns.clone()).collect();
    let others = partition.iter().filter(|place| !table.key.contains(place));
    let pair = |place: &usize| {
        let column = table.columns.get(*place)?;
        let prefix = if table.key.contains(place) { "key_" } else { "partition_" };
        let is_partition = partition.contains(place);
        Some(Pair {
            place: *place,
            base: quote(&column.name),
            side: side_column(prefix, column),
            partition: is_partition,
        })
    };
    table.key.iter().chain(others).filter_map(pair).collect()
}

fn sides(table: &Table) -> Vec<String> {
    pairs(table).into_iter().map(|pair| pair.side).collect()
}

fn side_column(prefix: &str, column: &Column) -> String {
    quote(&limited(&format!("{prefix}{}", column.name)))
}

/// Fails where a side table was made for another key or other partition columns: to replace the function would break the
/// application's writes.
fn layout_check(table: &Table) -> String {
    let (side, name) = (side_table(table), base_table(table));
    let names: Vec<String> = pairs(table).iter().map(|pair| literal(&unquoted(&pair.side))).collect();
    let what = literal(&format!(
        "the tracking of {name} was installed for another key or partition: run `headwater untrack`, then `headwater track`"
    ));
    let check = format!(
        " BEGIN\n  IF to_regclass({}) IS NOT NULL AND ARRAY[{}, 'version', 'deleted'] <> (\n    \
         SELECT array_agg(attname::text ORDER BY attnum) FROM pg_catalog.pg_attribute\n    \
         WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped) THEN\n    \
         RAISE EXCEPTION USING MESSAGE = {what};\n  END IF;\nEND ",
        literal(&side),
        names.join(", "),
        literal(&side),
    );
    format!("DO {}", dollar_quoted(&check))
}

/// By a query, so that each column has the type and collation of the one that it stands for.
fn create_side_table(table: &Table) -> String {
    let columns: Vec<String> = pairs(table).iter().map(|pair| format!("{} AS {}", pair.base, pair.side)).collect();
    format!(
        "CREATE TABLE IF NOT EXISTS {} AS\n  SELECT {}, NULL::xid8 AS version, NULL::boolean AS deleted\n  FROM {} WITH NO DATA",
        side_table(table),
        columns.join(", "),
        base_table(table)
    )
}

fn create_function(table: &Table) -> [String; 3] {
    let (function, body) = (function(table), function_body(table));
    [
        format!(
            "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER\n  \
             SET search_path = pg_catalog, pg_temp AS {}",
            dollar_quoted(&body)
        ),
        format!("REVOKE ALL ON FUNCTION {function}() FROM PUBLIC"),
        format!("COMMENT ON FUNCTION {function}() IS {}", literal(&function_comment(&body))),
    ]
}

fn function_body(table: &Table) -> String {
    let notes = Notes::new(table);
    let pairs = pairs(table);
    let bases = pairs.iter().map(|pair| pair.base.as_str()).collect::<Vec<_>>().join(", ");
    let both = format!(
        "{}\n    SELECT {}, pg_current_xact_id(), nullif(bool_and(t.hw_gone), false)\n    \
         FROM (SELECT {bases}, false AS hw_gone FROM hw_new UNION ALL SELECT {bases}, true FROM hw_old) AS t{}\n    \
         GROUP BY {}\n    {}",
        notes.insert(),
        of(&pairs, "t"),
        notes.lies("t"),
        of(&pairs, "t"),
        notes.conflict()
    );
    // The table may be a part of the one that is tracked: its rows only.
    let emptied = notes.of_rows("DISTINCT ", "\0", "true");
    let (before, after) = emptied.split_once('\0').unwrap_or((&emptied, ""));
    let emptied = format!("EXECUTE {} || TG_RELID::regclass || {}", literal(before), literal(after));
    format!(
        "\nBEGIN\n  IF TG_LEVEL = 'ROW' THEN\n{}  ELSIF TG_OP = 'INSERT' THEN\n{}  ELSIF TG_OP = 'UPDATE' THEN\n    \
         {both};\n  ELSIF TG_OP = 'DELETE' THEN\n{}  ELSE\n    {emptied};\n  END IF;\n  RETURN NULL;\nEND\n",
        notes.of_one_row(),
        notes.of_statement("hw_new", "NULL::boolean"),
        notes.of_statement("hw_old", "true"),
    )
}

/// The statements that note rows in a side table.
struct Notes {
    side: String,
    pairs: Vec<Pair>,
    keys: String,
}

impl Notes {
    fn new(table: &Table) -> Notes {
        Notes { side: side_table(table), pairs: pairs(table), keys: sides(table).join(", ") }
    }

    fn insert(&self) -> String {
        format!("INSERT INTO {} AS s ({}, version, deleted)", self.side, self.keys)
    }

    /// A row that this transaction has noted already stays as it is.
    fn conflict(&self) -> String {
        format!(
            "ON CONFLICT ({}) DO UPDATE SET version = EXCLUDED.version, deleted = EXCLUDED.deleted\n      \
             WHERE s.version <> EXCLUDED.version OR s.deleted IS DISTINCT FROM EXCLUDED.deleted",
            self.keys
        )
    }

    /// That a row lies in a partition at all.
    fn lies(&self, alias: &str) -> String {
        let columns = self.pairs.iter().filter(|pair| pair.partition);
        let tests: Vec<String> = columns.map(|pair| format!("{alias}.{} IS NOT NULL", pair.base)).collect();
        if tests.is_empty() { String::new() } else { format!(" WHERE {}", tests.join(" AND ")) }
    }

    /// Notes the rows of a statement. To look for keys that repeat costs as much as a fifth of a large statement, so it is done where
    /// they can.
    fn of_statement(&self, from: &str, deleted: &str) -> String {
        format!(
            "    IF TG_NARGS = 0 THEN\n    {};\n    ELSE\n    {};\n    END IF;\n",
            self.of_rows("", from, deleted),
            self.of_rows("DISTINCT ", from, deleted)
        )
    }

    /// Notes the rows of a table.
    fn of_rows(&self, distinct: &str, from: &str, deleted: &str) -> String {
        format!(
            "{}\n    SELECT {distinct}{}, pg_current_xact_id(), {deleted} FROM {from} AS t{}\n    {}",
            self.insert(),
            of(&self.pairs, "t"),
            self.lies("t"),
            self.conflict()
        )
    }

    /// Notes the row of a trigger for each row: the old image where key or partition are others then, and the new one.
    fn of_one_row(&self) -> String {
        let note = |condition: &str, image: &str, deleted: &str| {
            format!(
                "    IF {condition} THEN\n      {}\n      SELECT {}, pg_current_xact_id(), {deleted}{}\n      {};\n    END IF;\n",
                self.insert(),
                of(&self.pairs, image),
                self.lies(image),
                self.conflict()
            )
        };
        let moved = format!("ROW({}) IS DISTINCT FROM ROW({})", of(&self.pairs, "OLD"), of(&self.pairs, "NEW"));
        note(&format!("TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND {moved}"), "OLD", "true")
            + &note("TG_OP <> 'DELETE'", "NEW", "NULL")
    }
}

/// The columns of the base table that the side table has too.
fn of(pairs: &[Pair], alias: &str) -> String {
    pairs.iter().map(|pair| format!("{alias}.{}", pair.base)).collect::<Vec<_>>().join(", ")
}

fn function(table: &Table) -> String {
    format!("headwater.{}", quote(&function_name(table)))
}

/// The name of the function, in schema `headwater`, that tracks a table.
pub fn function_name(table: &Table) -> String {
    own_name("track_", table)
}

fn schema(table: &Table) -> &str {
    table.schema.as_deref().unwrap_or("public")
}

/// A name of ours for a table in this layout; that of a table outside `public` has its schema in it.
fn own_name(prefix: &str, table: &Table) -> String {
    let (schema, layout, table) = (schema(table), layout(table), &table.name);
    if schema == "public" && !table.contains('.') {
        return limited(&format!("{prefix}{table}{layout}"));
    }
    let name = format!("{prefix}{schema}.{table}{layout}");
    // A dot in either part could be the one between them.
    if schema.contains('.') || table.contains('.') {
        hashed(&name, &format!("{prefix}{schema}\0{table}{layout}"))
    } else {
        limited(&name)
    }
}

/// Text between dollar marks that are not in it.
fn dollar_quoted(text: &str) -> String {
    let mut mark = "$headwater$".to_owned();
    while text.contains(&mark) {
        mark.insert(1, 'x');
    }
    format!("{mark}{text}{mark}")
}

fn limited(name: &str) -> String {
    if name.len() <= NAME_BYTES { name.to_owned() } else { hashed(name, name) }
}

/// As much of the name as fits before eight digits of a hash.
fn hashed(name: &str, of: &str) -> String {
    let digits = hex(&Sha256::digest(of.as_bytes()));
    let cut = name.floor_char_boundary(name.len().min(NAME_BYTES - 9));
    format!("{}~{}", &name[..cut], &digits[..8])
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unquoted(quoted: &str) -> String {
    quoted[1..quoted.len() - 1].replace("\"\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(schema: &str, name: &str, by: &str) -> String {
        let partitioned =
            if by.is_empty() { String::new() } else { format!("partition = {{ name = \"p\", columns = [{by:?}] }}\n") };
        let text = format!(
            "name = \"m\"\nversion = 1\n[partitions.p]\ncolumns = {{ v = \"text\" }}\nmembers = \"SELECT 1\"\n\
             [tables.{name:?}]\nschema = {schema:?}\nkey = [\"id\"]\n{partitioned}[tables.{name:?}.columns]\n\
             id = \"int not null\"\nr = \"text not null\"\n\"r@\" = \"text not null\"\n"
        );
        side_name(&crate::parse::parse("m.toml", &text).expect("a model").tables[0])
    }

    #[test]
    fn own_names_fit_and_differ() {
        assert_eq!(named("public", "purchase", ""), "side_purchase");
        assert_eq!(named("shop", "purchase", ""), "side_shop.purchase");
        assert_eq!(named("public", "purchase", "r"), "side_purchase@r");
        assert_ne!(named("a.b", "c", ""), named("a", "b.c", ""));
        assert_ne!(named("a", "b", ""), named("public", "a.b", ""));
        assert_ne!(named("public", "purchase@r", ""), named("public", "purchase", "r"));
        assert_ne!(named("public", "purchase@", "r"), named("public", "purchase", "r@"));
        let long = |last: &str| named("public", &("ü".repeat(31) + last), "");
        assert!(long("a").len() <= NAME_BYTES && long("a") != long("b"));
        let long = |by: &str| named("public", &"u".repeat(60), by);
        assert!(long("r").len() <= NAME_BYTES && long("r") != long("") && long("r") != long("r@"));
    }

    #[test]
    fn text_that_looks_like_its_marks_stays_inside() {
        assert_eq!(dollar_quoted("a $headwater$ b"), "$xheadwater$a $headwater$ b$xheadwater$");
    }
}
