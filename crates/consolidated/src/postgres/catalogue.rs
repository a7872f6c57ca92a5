//! What a PostgreSQL database has: its catalogue, read for all tables by one query each for columns, indexes and foreign keys.
//!
//! The state of a table's tracking is a hash over the triggers, their function and the side table as `track` left them, in the words
//! of the catalogue's own columns: they stay the same from one version of PostgreSQL to the next, where a definition printed as SQL
//! may not.

use std::collections::HashMap;

use headwater_model::tracking::postgres::{base_table, function_name, side_table, table_id, triggers};
use headwater_model::tracking::{Kin, tracked_name};
use headwater_model::{ColumnType, Lineage};
use headwater_protocol::{Row, Type, Value};
use sha2::{Digest, Sha256};

use super::codec::Codec;
use super::{sides, trigger_states};
use crate::catalogue::{
    Catalogue, CatalogueColumn, CatalogueReference, CatalogueTable, DeferrableKey, Tracking, integer, text,
};
use crate::{Connection, Error};

/// Ordinary and partitioned tables of the application, partitions too.
const TABLES_SQL: &str = "
    SELECT c.oid, n.nspname::text, c.relname::text,
           c.relkind = 'r' AND EXISTS (SELECT 1 FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
           EXISTS (WITH RECURSIVE below(id) AS (
                       SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid
                       UNION SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.id)
                   SELECT 1 FROM below b JOIN pg_catalog.pg_class f ON f.oid = b.id WHERE f.relkind = 'f'),
           c.relispartition
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'headwater') AND n.nspname NOT LIKE 'pg\\_%'
    ORDER BY n.nspname, c.relname";

/// Table, column, declared type, base type behind domains, its schema, name and kind, NULL, generated, default, collation that is
/// not that of bytes, precision and scale of a number.
const COLUMNS_SQL: &str = "
    WITH RECURSIVE base(oid, root, modifier, nullable, has_default) AS (
        SELECT t.oid, t.oid, -1, NOT t.typnotnull, t.typdefault IS NOT NULL FROM pg_catalog.pg_type t
        UNION ALL
        SELECT base.oid, d.typbasetype, d.typtypmod, base.nullable AND NOT b.typnotnull, base.has_default OR b.typdefault IS NOT NULL
        FROM base JOIN pg_catalog.pg_type d ON d.oid = base.root AND d.typtype = 'd'
        JOIN pg_catalog.pg_type b ON b.oid = d.typbasetype)
    SELECT a.attrelid, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), t.oid, tn.nspname::text, t.typname::text,
           t.typtype::text, base.nullable AND NOT a.attnotnull, a.attgenerated <> '',
           a.atthasdef AND a.attgenerated = '' OR a.attidentity <> '' OR base.has_default,
           CASE WHEN NOT l.collisdeterministic THEN l.collname::text END,
           CASE WHEN base.modifier <> -1 THEN base.modifier ELSE a.atttypmod END
    FROM pg_catalog.pg_attribute a
    JOIN base ON base.oid = a.atttypid
    JOIN pg_catalog.pg_type t ON t.oid = base.root AND t.typtype <> 'd'
    JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')
    LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
    WHERE a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum";

/// Table, index, whether it is the primary key, column, whether it is unique, whether its constraint is deferrable, name: indexes over
/// whole columns of every row.
const INDEXES_SQL: &str = "
    SELECT i.indrelid, i.indexrelid, i.indisprimary, a.attname::text, i.indisunique, NOT i.indimmediate, x.relname::text
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
    ORDER BY i.indrelid, i.indexrelid, k.place";

/// Table, constraint, column, schema and table referred to, its column, what a deletion does.
const REFERENCES_SQL: &str = "
    SELECT r.conrelid, r.oid, a.attname::text, n.nspname::text, p.relname::text, b.attname::text, r.confdeltype::text
    FROM pg_catalog.pg_constraint r
    CROSS JOIN LATERAL unnest(r.conkey, r.confkey) WITH ORDINALITY AS k(mine, there, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = r.conrelid AND a.attnum = k.mine
    JOIN pg_catalog.pg_class p ON p.oid = r.confrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace
    JOIN pg_catalog.pg_attribute b ON b.attrelid = r.confrelid AND b.attnum = k.there
    WHERE r.contype = 'f'
    ORDER BY r.conrelid, r.oid, k.place";

/// Of a table `?1`, its side table `?2` and its function `?3`: whether it is a trigger, and what it consists of. A trigger is described with
/// the state that it is made in, whatever state it is in now ([`trigger_states`]).
const OBJECTS_SQL: &str = "
    SELECT true, concat_ws(' ', t.tgname, t.tgtype, CASE WHEN t.tgtype & 3 = 1 THEN 'R' ELSE 'A' END, t.tgoldtable, t.tgnewtable,
                           n.nspname, p.proname, p.prosecdef, p.proconfig, p.prosrc)
    FROM pg_catalog.pg_trigger t
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE t.tgrelid = {table} AND n.nspname = 'headwater' AND p.proname = ?3 AND NOT t.tgisinternal
    UNION ALL
    SELECT false, concat_ws(' ', a.attnum, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull)
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = to_regclass(?2) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT false, concat_ws(' ', i.indisunique, i.indisvalid, i.indkey)
    FROM pg_catalog.pg_index i WHERE i.indrelid = to_regclass(?2)";

/// Of a table tracked as `?1` by function `?2`, the parts that are said to be tracked with fewer than `?3` triggers.
const BROKEN_PARTS_SQL: &str = "
    SELECT p.part::regclass::text FROM headwater.part p
    WHERE p.table_name = ?1 AND p.state = 'tracked'
      AND EXISTS (SELECT 1 FROM pg_catalog.pg_inherits i WHERE i.inhrelid = p.part)
      AND (SELECT count(*) FROM pg_catalog.pg_trigger t
           JOIN pg_catalog.pg_proc f ON f.oid = t.tgfoid AND f.pronamespace = 'headwater'::regnamespace
           WHERE t.tgrelid = p.part AND f.proname = ?2 AND t.tgname NOT LIKE '~%') < ?3";

/// Reads the catalogue.
pub(super) fn read(connection: &mut dyn Connection) -> Result<Catalogue, Error> {
    let mut columns = by_table(connection.query(COLUMNS_SQL, &[])?);
    let mut indexes = by_table(connection.query(INDEXES_SQL, &[])?);
    let mut references = by_table(connection.query(REFERENCES_SQL, &[])?);
    let mut catalogue = Catalogue::default();
    for found in connection.query(TABLES_SQL, &[])? {
        let (oid, schema, name) = (integer(&found, 0), text(&found, 1), text(&found, 2));
        let indexes = indexes.remove(&oid).unwrap_or_default();
        let (primary_key, unique) = keys(&indexes);
        let place = if is_true(&found, 5) { &mut catalogue.partitions } else { &mut catalogue.tables };
        place.push(CatalogueTable {
            schema: beside_public(schema),
            name,
            columns: columns.remove(&oid).unwrap_or_default().iter().map(column).collect(),
            primary_key,
            unique,
            deferrable: deferrable(&indexes),
            indexes: by_index(&indexes).map(|(_, columns)| columns).collect(),
            references: foreign_keys(&references.remove(&oid).unwrap_or_default()),
            has_heirs: is_true(&found, 3),
            has_foreign_parts: is_true(&found, 4),
        });
    }
    Ok(catalogue)
}

/// The hash of a table's tracking as it is installed.
pub(crate) fn installed_hash(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Vec<u8>, Error> {
    Ok(hash_of(&objects(connection, &kin.lineage)?))
}

fn by_table(rows: Vec<Row>) -> HashMap<i64, Vec<Row>> {
    let mut tables: HashMap<i64, Vec<Row>> = HashMap::new();
    for row in rows {
        tables.entry(integer(&row, 0)).or_default().push(row);
    }
    tables
}

fn beside_public(schema: String) -> Option<String> {
    (schema != "public").then_some(schema)
}

fn column(row: &Row) -> CatalogueColumn {
    let oid = integer(row, 3) as u32;
    let of_the_system = text(row, 4) == "pg_catalog";
    let base = Base { oid, name: text(row, 5), of_the_system, is_enum: text(row, 6) == "e" };
    let kind = base.kind(integer(row, 11));
    let equality = match row.get(10) {
        Some(Value::Text(_)) => Some(format!("collation {}", text(row, 10))),
        _ => base.equality(kind),
    };
    CatalogueColumn {
        name: text(row, 1),
        declared: text(row, 2),
        kind,
        nullable: is_true(row, 7),
        generated: is_true(row, 8),
        has_default: is_true(row, 9),
        spellings: equality.clone(),
        equality,
    }
}

/// The type of a column, behind its domains.
struct Base {
    oid: u32,
    name: String,
    of_the_system: bool,
    is_enum: bool,
}

impl Base {
    /// The model's type. One without a codec travels as its text, if that means the same everywhere.
    fn kind(&self, modifier: i64) -> Option<ColumnType> {
        match Codec::of(self.oid).map(Codec::kind) {
            Some(Type::Decimal) => Some(ColumnType { base: Type::Decimal, precision: precision(modifier) }),
            Some(base) => Some(ColumnType::plain(base)),
            None if self.is_of_this_database() => None,
            None => Some(ColumnType::plain(Type::Text)),
        }
    }

    /// Numbers of objects and transactions, and what only the server may write.
    fn is_of_this_database(&self) -> bool {
        let name = self.name.as_str();
        self.of_the_system
            && (name.starts_with("reg")
                || name.starts_with("pg_")
                || matches!(name, "xid" | "xid8" | "cid" | "tid" | "refcursor" | "money"))
    }

    /// What makes values equal whose bytes differ.
    fn equality(&self, kind: Option<ColumnType>) -> Option<String> {
        const BPCHAR: u32 = 1042;
        let why = match (Codec::of(self.oid), kind) {
            (_, None) => return None,
            (Some(_), Some(kind)) if kind.base == Type::Real => "floating-point numbers",
            (Some(_), Some(kind)) if kind.base == Type::Json => "JSON",
            (Some(_), Some(kind))
                if kind.base == Type::Decimal && kind.precision.is_none_or(|(_, scale)| scale > 0) =>
            {
                "1.5 and 1.50 are one number"
            }
            _ if self.oid == BPCHAR => "blanks at the end don't count",
            (Some(_), _) => return None,
            (None, _) if self.is_enum => return None,
            (None, _) => return Some(format!("values of type `{}` have several spellings", self.name)),
        };
        Some(why.to_owned())
    }
}

/// A `numeric(precision, scale)`'s modifier; a negative scale has no place in the model.
fn precision(modifier: i64) -> Option<(u16, u16)> {
    let packed = u32::try_from(modifier.checked_sub(4)?).ok()?;
    let (precision, scale) = ((packed >> 16) as u16, (packed & 0x7FF) as u16);
    (precision > 0 && scale <= precision).then_some((precision, scale))
}

/// The primary key, and the other unique indexes.
fn keys(rows: &[Row]) -> (Vec<String>, Vec<Vec<String>>) {
    let (mut primary_key, mut unique) = (Vec::new(), Vec::new());
    for (first, columns) in by_index(rows).filter(|(first, _)| is_true(first, 4)) {
        if is_true(first, 2) {
            primary_key = columns;
        } else {
            unique.push(columns);
        }
    }
    (primary_key, unique)
}

fn deferrable(rows: &[Row]) -> Vec<DeferrableKey> {
    let found = by_index(rows).filter(|(first, _)| is_true(first, 4) && is_true(first, 5));
    let key = |(first, columns): (&Row, Vec<String>)| DeferrableKey {
        name: text(first, 6),
        columns,
        is_primary: is_true(first, 2),
    };
    found.map(key).collect()
}

/// The first row of each index, and its columns.
fn by_index(rows: &[Row]) -> impl Iterator<Item = (&Row, Vec<String>)> {
    let indexes = rows.chunk_by(|a, b| integer(a, 1) == integer(b, 1));
    indexes.filter_map(|index| Some((index.first()?, index.iter().map(|row| text(row, 3)).collect())))
}

fn foreign_keys(rows: &[Row]) -> Vec<CatalogueReference> {
    let constraints = rows.chunk_by(|a, b| integer(a, 1) == integer(b, 1));
    let reference = |rows: &[Row]| {
        let first = rows.first()?;
        Some(CatalogueReference {
            columns: rows.iter().map(|row| text(row, 2)).collect(),
            schema: beside_public(text(first, 3)),
            table: text(first, 4),
            target: rows.iter().map(|row| text(row, 5)).collect(),
            on_delete: match text(first, 6).as_str() {
                "r" => "restrict",
                "c" => "cascade",
                "n" => "set null",
                "d" => "set default",
                _ => "no action",
            }
            .to_owned(),
        })
    };
    constraints.filter_map(reference).collect()
}

/// The state of a table's tracking.
pub(crate) fn tracking(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Tracking, Error> {
    let recorded = if crate::system::is_installed(connection)? {
        let sql = "SELECT installed_hash FROM headwater.tracked WHERE table_name = ?1 AND installed_hash IS NOT NULL";
        connection.query(sql, &[Value::text(tracked_name(&kin.lineage))])?.first().and_then(|row| row.first().cloned())
    } else {
        None
    };
    let objects = objects(connection, &kin.lineage)?;
    let there = objects.iter().filter(|row| is_true(row, 0)).count();
    let expected = triggers(kin).count();
    Ok(match recorded {
        None if there == 0 => Tracking::Absent,
        None => Tracking::Broken("its triggers are there, but not on record".to_owned()),
        Some(Value::Bytes(hash)) if hash == hash_of(&objects) => {
            for part in [tracking_of_parts, tracking_of_sides] {
                match part(connection, kin)? {
                    Tracking::Complete => {}
                    broken => return Ok(broken),
                }
            }
            tracking_of_states(connection, kin)?
        }
        Some(_) if there < expected => Tracking::Broken(format!("{there} of {expected} triggers are there")),
        Some(_) => Tracking::Broken("a trigger, its function or the side table has been changed".to_owned()),
    })
}

/// Whether triggers are off, or enabled in another way than they were made.
fn tracking_of_states(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Tracking, Error> {
    let altered = trigger_states::altered(connection, kin)?;
    Ok(altered.first().map_or(Tracking::Complete, |trigger| Tracking::Disabled(trigger.described())))
}

fn tracking_of_parts(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Tracking, Error> {
    let count = triggers(kin).filter(|(name, _)| !name.starts_with('~')).count() as i64;
    let values = [Value::text(tracked_name(&kin.lineage)), Value::text(function_name(&kin.lineage)), Value::Int(count)];
    let parts = connection.query(BROKEN_PARTS_SQL, &values)?;
    Ok(parts.first().map_or(Tracking::Complete, |part| {
        Tracking::Broken(format!("triggers of {}, a part of it, are missing", text(part, 0)))
    }))
}

/// A column of the side table that is only narrower than it should be serves until a wider value comes, and then the table comes afresh.
fn tracking_of_sides(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Tracking, Error> {
    let differences = sides::differences(connection, &kin.lineage)?;
    let retyped = differences.into_iter().find(|difference| !difference.is_narrow);
    Ok(retyped.map_or(Tracking::Complete, |sides::Difference { column, wanted, found, .. }| {
        Tracking::Retyped(format!(
            "column {column} of its side table is {found}, and the table's own column now calls for {wanted}"
        ))
    }))
}

fn objects(connection: &mut dyn Connection, lineage: &Lineage<'_>) -> Result<Vec<Row>, Error> {
    let names = [base_table(lineage.table()), side_table(lineage), function_name(lineage)];
    connection.query(&OBJECTS_SQL.replace("{table}", &table_id("?1")), &names.map(Value::text))
}

/// The statements that drop the functions which write to a side table, with the triggers that call them.
pub(crate) fn functions_into(connection: &mut dyn Connection, side_table: &str) -> Result<Vec<String>, Error> {
    let sql = "SELECT p.proname::text FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'headwater'::regnamespace \
               AND position(?1 IN p.prosrc) > 0 ORDER BY 1";
    let found = connection.query(sql, &[Value::text(side_table)])?;
    let drop = |row: &Row| {
        let name = headwater_model::sql::quote(&text(row, 0));
        format!("DROP FUNCTION IF EXISTS headwater.{name}() CASCADE")
    };
    Ok(found.iter().map(drop).collect())
}

fn hash_of(objects: &[Row]) -> Vec<u8> {
    let mut parts: Vec<String> = objects.iter().map(|row| text(row, 1)).collect();
    parts.sort_unstable();
    let mut hash = Sha256::new();
    for part in &parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

fn is_true(row: &Row, place: usize) -> bool {
    matches!(row.get(place), Some(Value::Bool(true)))
}
