//! The types of a side table's columns.
//!
//! Each is the widest of its kind, so that a column of the application's can be widened without a word to Headwater: `bigint` for
//! integers, `text` for `varchar`, and other types without their limits (`numeric`, `timestamp`, `bpchar` for `char(n)`). A domain counts as
//! what it is made of. Types whose width can't change stay what they are, enums and UUIDs among them: a join with the table would not use
//! its index otherwise. An `int` key's index is used with a `bigint` beside it, and a `varchar` one's with a `text`.

use super::notes::{pairs, sides as side_columns};
use super::{base_table, dollar_quoted, side_table, table_id, unquoted};
use crate::Lineage;
use crate::sql::literal;

/// The widest type of the kind of a type, given its OID as an expression, as SQL spells it. A subquery.
fn wide(oid: &str) -> String {
    format!(
        "(WITH RECURSIVE base(id, of, kind) AS (SELECT t.oid, t.typbasetype, t.typtype FROM pg_catalog.pg_type t WHERE t.oid = {oid} \
         UNION ALL SELECT t.oid, t.typbasetype, t.typtype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.of WHERE b.kind = 'd') \
         SELECT CASE WHEN id IN (21, 23) THEN 'bigint' WHEN id = 1043 THEN 'text' ELSE pg_catalog.format_type(id, -1) END \
         FROM base WHERE kind <> 'd')"
    )
}

/// A collation by its OID as an expression; an empty text where there is none. A subquery.
fn collation(oid: &str) -> String {
    format!(
        "coalesce((SELECT format(' COLLATE %I.%I', n.nspname, l.collname) FROM pg_catalog.pg_collation l \
         JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = {oid}), '')"
    )
}

/// A query of the side table's columns that are not what their table's columns call for: name, the type that it should have, the type that
/// it has, whether the two are of one kind, and whether their collations call different values equal. No rows where there is no side table.
pub fn differences(lineage: &Lineage<'_>) -> String {
    let own = lineage.table().key.len();
    let columns: Vec<String> = pairs(lineage)
        .iter()
        .enumerate()
        .map(|(place, pair)| {
            // The key's columns come first; the partition's others are those of the table that has them.
            let table = if place < own { lineage.table() } else { lineage.root() };
            let [side, base] = [&pair.side, &pair.base].map(|name| literal(&unquoted(name)));
            format!("({side}, {}, {base})", literal(&base_table(table)))
        })
        .collect();
    format!(
        "SELECT c.name, c.wanted, c.found, c.kind || c.place = c.wanted, c.equals_otherwise FROM (\
         SELECT w.side AS name, {} || {} AS wanted, pg_catalog.format_type(s.atttypid, s.atttypmod) || {} AS found, {} AS kind, {} AS place, \
         s.attcollation <> b.attcollation AND EXISTS (SELECT FROM pg_catalog.pg_collation l \
         WHERE l.oid IN (s.attcollation, b.attcollation) AND NOT l.collisdeterministic) AS equals_otherwise \
         FROM (VALUES {}) AS w(side, base, name) \
         JOIN pg_catalog.pg_attribute b ON b.attrelid = {} AND b.attname = w.name AND NOT b.attisdropped \
         JOIN pg_catalog.pg_attribute s ON s.attrelid = to_regclass({}) AND s.attname = w.side AND NOT s.attisdropped) AS c \
         WHERE c.wanted <> c.found ORDER BY c.name",
        wide("b.atttypid"),
        collation("b.attcollation"),
        collation("s.attcollation"),
        wide("s.atttypid"),
        collation("b.attcollation"),
        columns.join(", "),
        table_id("w.base"),
        literal(&side_table(lineage)),
    )
}

/// A query that says whether the side table has the columns that it should have.
pub fn has_columns(lineage: &Lineage<'_>) -> String {
    format!("SELECT {}", columns_are(lineage, "=").0)
}

/// Whether the names of the side table's columns are those that they should be (`=`) or not (`<>`), and whether there is one, as
/// expressions.
pub(super) fn columns_are(lineage: &Lineage<'_>, operator: &str) -> (String, String) {
    let names: Vec<String> = side_columns(lineage).iter().map(|side| literal(&unquoted(side))).collect();
    let side = literal(&side_table(lineage));
    let are = format!(
        "ARRAY[{}, 'version', 'deleted'] {operator} (SELECT array_agg(attname::text ORDER BY attnum) FROM pg_catalog.pg_attribute \
         WHERE attrelid = to_regclass({side}) AND attnum > 0 AND NOT attisdropped)",
        names.join(", ")
    );
    (are, format!("to_regclass({side}) IS NOT NULL"))
}

/// The statement that gives the side table's columns these types.
pub(super) fn widen(lineage: &Lineage<'_>) -> String {
    let side = side_table(lineage);
    let body = format!(
        " DECLARE\n  hw_column record;\nBEGIN\n  FOR hw_column IN {} LOOP\n    \
         EXECUTE format('ALTER TABLE %s ALTER COLUMN %I TYPE %s', {}, hw_column.name, hw_column.wanted);\n  END LOOP;\nEND ",
        differences(lineage),
        literal(&side),
    );
    format!("DO {}", dollar_quoted(&body))
}
