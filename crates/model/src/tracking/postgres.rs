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
//! tombstone. The tables below a partitioned or inherited one have triggers of their own, see [`parts`]; what is done for tables that
//! take their partition from others is in `kin`.
//!
//! Besides, each transaction notes once that it has changed the table (`headwater.table_change`), rows without a partition included: by that
//! the gateway knows whether an answer may be another.
//!
//! What a side row says of `deleted` is only a help for purging: triggers of the application that change the table again run in
//! between, so a download looks at the table itself for what became of a key.
//!
//! *Caveats.* TRUNCATE inside a REPEATABLE READ transaction notes the rows of
//! its snapshot: one that was committed between the snapshot and the lock is emptied without a tombstone. An unlogged table that a
//! crash empties leaves none either.

mod kin;
mod notes;
pub mod parts;
pub mod refresh;
pub mod sides;

use sha2::{Digest, Sha256};

use self::notes::{Images, Notes, pairs, sides as side_columns};
use super::{Kin, TrackedTable, base_name, tracked_name};
use crate::sql::{literal, quote};
use crate::{Column, Lineage, Table};

/// PostgreSQL cuts longer names.
const NAME_BYTES: usize = 63;

/// The version of what [`install`] makes; it stands in the function's comment.
const FORMAT: u32 = 4;

/// The triggers of statements: name, when, the transition tables that their statements read.
const STATEMENT_TRIGGERS: [(&str, &str, &str); 4] = [
    ("headwater_insert", "AFTER INSERT", " REFERENCING NEW TABLE AS hw_new"),
    ("headwater_update", "AFTER UPDATE", " REFERENCING OLD TABLE AS hw_old NEW TABLE AS hw_new"),
    ("headwater_delete", "AFTER DELETE", " REFERENCING OLD TABLE AS hw_old"),
    ("headwater_truncate", "BEFORE TRUNCATE", ""),
];

/// The trigger for each row; enabled where a session replicates, and there alone.
const ROW_TRIGGER: &str = "headwater_row";

/// The further triggers of a table from which others take their partition, which see each row before it moves or goes. They come last
/// by name: what the application's own triggers make of a row is known to them.
const ROW_TRIGGERS_BEFORE: [&str; 2] = ["~headwater_move", "~headwater_delete"];

/// The triggers that a tracked table has: name, and the state that the catalogue says they are in.
pub fn triggers(kin: &Kin<'_>) -> impl Iterator<Item = (String, &'static str)> {
    let before = ROW_TRIGGERS_BEFORE.into_iter().filter(|_| !kin.below.is_empty()).map(|name| (name, "A"));
    events().chain(before).map(|(name, state)| (trigger_name(name, &kin.lineage), state))
}

/// The same before the layout is in the name.
fn events() -> impl Iterator<Item = (&'static str, &'static str)> {
    STATEMENT_TRIGGERS.iter().map(|(name, _, _)| (*name, "A")).chain([(ROW_TRIGGER, "R")])
}

fn trigger_name(name: &str, lineage: &Lineage<'_>) -> String {
    if name == ROW_TRIGGER || ROW_TRIGGERS_BEFORE.contains(&name) {
        // Each partition has a copy of these. One that is tracked itself has its own beside them, under another name.
        return own_name(&format!("{name}_of_"), lineage);
    }
    limited(&format!("{name}{}", lineage.layout()))
}

/// The table itself, schema and quotes included.
pub fn base_table(table: &Table) -> String {
    format!("{}.{}", quote(schema(table)), quote(&table.name))
}

/// SQL for the OID of a table whose name, as [`base_table`] gives it, is the value of the SQL expression `name`; NULL where there is no such table.
/// `to_regclass` raises an error where the role may not use the schema, which ends statements about other tables too.
pub fn table_id(name: &str) -> String {
    format!(
        "(SELECT hw_c.oid FROM pg_catalog.pg_class hw_c JOIN pg_catalog.pg_namespace hw_n ON hw_n.oid = hw_c.relnamespace \
         WHERE hw_n.nspname = (parse_ident({name}))[1]::name AND hw_c.relname = (parse_ident({name}))[2]::name)"
    )
}

/// The side table, schema and quotes included.
pub fn side_table(lineage: &Lineage<'_>) -> String {
    format!("headwater.{}", quote(&side_name(lineage)))
}

/// The name of the side table, in schema `headwater`, of a table.
pub fn side_name(lineage: &Lineage<'_>) -> String {
    own_name("side_", lineage)
}

/// The side table's columns that hold the key, in quotes and key order.
pub fn key_columns(table: &Table) -> Vec<String> {
    table.key_columns().map(|column| side_column("key_", column)).collect()
}

/// The side table's columns that hold the partition, in quotes and the partition's order. A column of the key stands there once.
pub fn partition_columns(lineage: &Lineage<'_>) -> Vec<String> {
    let table = lineage.table();
    let is_of_key = |column: &Column| lineage.parents().is_empty() && table.key_columns().any(|key| key == column);
    let name = |column: &Column| side_column(if is_of_key(column) { "key_" } else { "partition_" }, column);
    lineage.root().partition_columns().map(name).collect()
}

/// The comment that the function of this body has if nobody changed it.
pub fn function_comment(body: &str) -> String {
    format!("headwater {FORMAT} {}", hex(&Sha256::digest(body.as_bytes())))
}

/// The statements that install the tracking of a table; harmless where it is installed. Schema `headwater` must be there. They
/// belong in one transaction, and wait for the transactions that are writing to the table.
pub fn install(tracked: &TrackedTable<'_>) -> Vec<String> {
    let kin = tracked.kin;
    let table = kin.table();
    let (base, side) = (base_table(table), side_table(&kin.lineage));
    let index = |prefix: &str| quote(&own_name(prefix, &kin.lineage));
    let key_index = index("side_key_");
    let keys = side_columns(&kin.lineage);
    let mut partition = partition_columns(&kin.lineage);
    partition.push("version".into());
    let mut statements =
        vec![layout_check(&kin.lineage), create_side_table(&kin.lineage), self::sides::widen(&kin.lineage)];
    statements.extend(keys.iter().map(|key| format!("ALTER TABLE {side} ALTER COLUMN {key} SET NOT NULL")));
    statements.extend([
        format!("ALTER TABLE {side} ALTER COLUMN version SET NOT NULL"),
        format!("CREATE UNIQUE INDEX IF NOT EXISTS {key_index} ON {side} ({})", keys.join(", ")),
        // A publication for all tables would otherwise refuse the triggers' updates.
        format!("ALTER TABLE {side} REPLICA IDENTITY USING INDEX {key_index}"),
        format!("CREATE INDEX IF NOT EXISTS {} ON {side} ({})", index("side_version_"), partition.join(", ")),
    ]);
    statements.extend(create_function(kin));
    statements.extend(earlier_triggers(&kin.lineage, &base));
    let named = |name: &str| quote(&trigger_name(name, &kin.lineage));
    statements.extend(statement_triggers(&kin.lineage, &base, "", named));
    // A partitioned table's leaves get this one of themselves, those made later too.
    statements.extend(row_trigger(&kin.lineage, &base, &named(ROW_TRIGGER)));
    if !kin.below.is_empty() {
        statements.extend(kin::before_triggers(kin));
    }
    statements
}

/// The statements that drop triggers which earlier builds named otherwise. They lock the table against readers only where there is one.
fn earlier_triggers(lineage: &Lineage<'_>, base: &str) -> Vec<String> {
    let drop = |name: &str| {
        let earlier = limited(&format!("{name}{}", lineage.layout()));
        format!(
            "DO $headwater$ BEGIN IF EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = to_regclass({}) AND tgname = {} AND tgparentid = 0) THEN \
             DROP TRIGGER {} ON {base}; END IF; END $headwater$",
            literal(base),
            literal(&earlier),
            quote(&earlier)
        )
    };
    std::iter::once(ROW_TRIGGER).chain(ROW_TRIGGERS_BEFORE).map(drop).collect()
}

/// What a trigger's function is told where rows of a statement may have the same key: of tables that inherit from one another several
/// may hold it.
const KEYS_REPEAT: &str = "'keys repeat'";

/// The triggers of statements on a table or a part of it, `on`.
fn statement_triggers(lineage: &Lineage<'_>, on: &str, argument: &str, named: impl Fn(&str) -> String) -> Vec<String> {
    let function = function(lineage);
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

fn row_trigger(lineage: &Lineage<'_>, on: &str, name: &str) -> [String; 2] {
    [
        format!(
            "CREATE OR REPLACE TRIGGER {name} AFTER INSERT OR UPDATE OR DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION {}()",
            function(lineage)
        ),
        format!("ALTER TABLE {on} ENABLE REPLICA TRIGGER {name}"),
    ]
}

/// The statement that notes rows as changed, and as gone from where they say that they lie. `from` has their keys, and the columns that decide
/// where they are, by the names of the table.
pub fn note_again(lineage: &Lineage<'_>, from: &str) -> String {
    Notes::new(lineage).of_rows_gone(from)
}

/// The statements that remove the tracking of a table; harmless where there is none.
pub fn uninstall(kin: &Kin<'_>) -> Vec<String> {
    let base = base_table(kin.table());
    let triggers = triggers(kin).map(|(name, _)| format!("DROP TRIGGER IF EXISTS {} ON {base}", quote(&name)));
    let rest = [
        // With what calls it, in the parts.
        format!("DROP FUNCTION IF EXISTS {}() CASCADE", function(&kin.lineage)),
        format!("DROP TABLE IF EXISTS {}", side_table(&kin.lineage)),
    ];
    triggers.chain(rest).collect()
}

fn side_column(prefix: &str, column: &Column) -> String {
    quote(&limited(&format!("{prefix}{}", column.name)))
}

/// Fails where a side table was made for another key or other partition columns: to replace the function would break the
/// application's writes.
fn layout_check(lineage: &Lineage<'_>) -> String {
    let name = base_table(lineage.table());
    let what = literal(&format!(
        "the tracking of {name} was installed for another key or partition: run `headwater untrack`, then `headwater track`"
    ));
    let (differ, is_there) = self::sides::columns_are(lineage, "<>");
    let check = format!(
        " BEGIN\n  IF {is_there} AND {differ} THEN\n    RAISE EXCEPTION USING MESSAGE = {what};\n  END IF;\nEND "
    );
    format!("DO {}", dollar_quoted(&check))
}

/// By a query, so that each column has the collation of the one that it stands for, and its type to begin with.
fn create_side_table(lineage: &Lineage<'_>) -> String {
    let table = lineage.table();
    let (columns, from): (Vec<String>, String) = if lineage.parents().is_empty() {
        let columns = pairs(lineage).iter().map(|pair| format!("{} AS {}", pair.base, pair.side)).collect();
        (columns, base_table(table))
    } else {
        let keys = table.key_columns().map(|column| format!("t.{}", quote(&column.name)));
        let of = keys.chain(lineage.partition(0, "t"));
        let columns = of.zip(side_columns(lineage)).map(|(base, side)| format!("{base} AS {side}")).collect();
        (columns, format!("{} AS t{}", base_table(table), lineage.up(0, "t", "JOIN", &base_table)))
    };
    format!(
        "CREATE TABLE IF NOT EXISTS {} AS\n  SELECT {}, NULL::xid8 AS version, NULL::boolean AS deleted\n  FROM {from} WITH NO DATA",
        side_table(lineage),
        columns.join(", "),
    )
}

fn create_function(kin: &Kin<'_>) -> [String; 3] {
    let (function, body) = (function(&kin.lineage), function_body(kin));
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

/// The classes of errors that mean that a row can't be noted: what it has does not fit into the side table, or one of the tables is not
/// what it was when the table was tracked. All others are of circumstance (a deadlock, a time-out, a full disk, a cancellation), and end the
/// application's statement.
const UNNOTABLE: [&str; 5] = ["21000", "22000", "23000", "42000", "54000"];

/// A session that wrote to the table before a column was given another type goes on with PL/pgSQL's old plans, which fail each time
/// (`datatype_mismatch`). It forgets them, so that this befalls it once.
const FORGET_OLD_PLANS: &str = "IF SQLSTATE = '42804' THEN DISCARD PLANS; END IF";

/// That the table was changed is noted whatever comes of the rest. The rest is a block of its own: where a row can't be noted, all tables
/// that it would have been noted for come afresh, and the application's statement goes on.
fn function_body(kin: &Kin<'_>) -> String {
    let changed = |from: &str| changed(kin.table(), from);
    let handled: Vec<String> = UNNOTABLE.iter().map(|class| format!("SQLSTATE '{class}'")).collect();
    let names: Vec<String> = std::iter::once(&kin.lineage).chain(&kin.below).map(tracked_name).collect();
    let cause = format!("pg_catalog.concat('{} (', SQLSTATE, '): ', SQLERRM)", refresh::NOT_NOTED);
    let (was_before, row) = if kin.below.is_empty() {
        (String::new(), String::new())
    } else {
        let is_before = "IF TG_LEVEL = 'ROW' AND TG_WHEN = 'BEFORE' THEN";
        (
            format!("  {is_before}\n    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;\n    RETURN NEW;\n  END IF;\n"),
            " AND TG_WHEN = 'AFTER'".to_owned(),
        )
    };
    format!(
        "\nBEGIN\n  IF TG_LEVEL = 'ROW' OR TG_OP = 'TRUNCATE' THEN\n    IF TG_OP = 'TRUNCATE' OR TG_LEVEL = 'ROW'{row} THEN\n{}    END IF;\n  \
         ELSIF TG_OP = 'DELETE' THEN\n{}  ELSE\n{}  END IF;\n  BEGIN\n{}  EXCEPTION WHEN {} THEN\n    {FORGET_OLD_PLANS};\n    {};\n  END;\n{was_before}  \
         RETURN NULL;\nEND\n",
        changed(""),
        changed(" FROM hw_old"),
        changed(" FROM hw_new"),
        notes_body(kin),
        handled.join(" OR "),
        refresh::append(names.iter().map(String::as_str), &cause),
    )
}

/// What the triggers note.
fn notes_body(kin: &Kin<'_>) -> String {
    let lineage = &kin.lineage;
    let notes = Notes::new(lineage);
    let bases = notes.read.join(", ");
    let both = format!(
        "{}\n    SELECT {}, pg_current_xact_id(), nullif(bool_and(t.hw_gone), false)\n    \
         FROM (SELECT {bases}, false AS hw_gone FROM hw_new UNION ALL SELECT {bases}, true FROM hw_old) AS t{}{}\n    \
         GROUP BY {}\n    {}",
        notes.insert(),
        notes.values("t"),
        notes.join("t", Images::Both),
        notes.lies("t"),
        notes.values("t"),
        notes.conflict()
    );
    let held = |images: &[&str]| kin::lock(lineage, &kin::links(lineage, images));
    // The table may be a part of the one that is tracked: its rows only.
    let held_all = kin::lock_statements(lineage, &kin::links(lineage, &["\0"]));
    let held_all: String =
        held_all.iter().flat_map(|sql| ["    ".to_owned(), in_part(sql), ";\n".to_owned()]).collect();
    let emptied = in_part(&notes.of_rows("DISTINCT ", "\0", Images::Old));
    let [old_row, new_row] = ["OLD", "NEW"].map(|image| kin::lock(lineage, &kin::one_row(&notes.read, image)));
    format!(
        "{}IF TG_LEVEL = 'ROW' THEN\n{old_row}{new_row}{}{}    ELSIF TG_OP = 'INSERT' THEN\n{}{}{}    \
         ELSIF TG_OP = 'UPDATE' THEN\n{}    {both};\n    ELSIF TG_OP = 'DELETE' THEN\n{}{}    ELSE\n{held_all}    {emptied};\n{}    \
         END IF;\n",
        kin::before_row(kin),
        notes.of_one_row(),
        kin::after_row(kin),
        held(&["hw_new"]),
        notes.of_statement("hw_new", Images::New),
        kin::inserted(kin),
        held(&["hw_new", "hw_old"]),
        held(&["hw_old"]),
        notes.of_statement("hw_old", Images::Old),
        kin::emptied(kin),
    )
}

/// Notes that this transaction has changed the table, if there is a row.
fn changed(table: &Table, from: &str) -> String {
    format!(
        "    INSERT INTO headwater.table_change (table_name, transaction)\n    SELECT {}, pg_current_xact_id(){from} LIMIT 1 ON CONFLICT DO NOTHING;\n",
        literal(&base_name(table))
    )
}

/// A statement about the rows of the table that the trigger fired for, in the place of the NUL.
fn in_part(sql: &str) -> String {
    let (before, after) = sql.split_once('\0').unwrap_or((sql, ""));
    format!("EXECUTE {} || TG_RELID::regclass || {}", literal(before), literal(after))
}

fn function(lineage: &Lineage<'_>) -> String {
    format!("headwater.{}", quote(&function_name(lineage)))
}

/// The name of the function, in schema `headwater`, that tracks a table.
pub fn function_name(lineage: &Lineage<'_>) -> String {
    own_name("track_", lineage)
}

fn schema(table: &Table) -> &str {
    table.schema.as_deref().unwrap_or("public")
}

/// A name of ours for a table in this layout; that of a table outside `public` has its schema in it.
fn own_name(prefix: &str, lineage: &Lineage<'_>) -> String {
    let (schema, layout, table) = (schema(lineage.table()), lineage.layout(), &lineage.table().name);
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
        let model = crate::parse::parse("m.toml", &text).expect("a model");
        side_name(&Lineage::new(&model, &model.tables[0]))
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
