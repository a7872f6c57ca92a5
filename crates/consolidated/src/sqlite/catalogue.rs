//! What a SQLite file has: read by its pragmas, so that any spelling of a schema is understood.

use headwater_model::ColumnType;
use headwater_model::sql::quote;
use headwater_model::tracking::sqlite::{side_name, triggers};
use headwater_model::tracking::{Kin, UniqueIndex, tracked_name};
use headwater_protocol::{Row, Type, Value};
use sha2::{Digest, Sha256};

use super::connection::SqliteConnection;
use super::equality;
use crate::catalogue::{Catalogue, CatalogueColumn, CatalogueReference, CatalogueTable, Tracking, integer, text};
use crate::{Connection, Error};

/// Reads the catalogue.
pub(super) fn read(connection: &mut SqliteConnection) -> Result<Catalogue, Error> {
    let sql = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' \
               AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'headwater\\_%' ESCAPE '\\' ORDER BY name";
    let names: Vec<String> = connection.query(sql, &[])?.iter().map(|row| text(row, 0)).collect();
    let tables = names.into_iter().map(|name| table(connection, name)).collect::<Result<_, Error>>()?;
    Ok(Catalogue { tables, ..Catalogue::default() })
}

fn table(connection: &mut SqliteConnection, name: String) -> Result<CatalogueTable, Error> {
    let parameter = [Value::text(name.as_str())];
    let sql = "SELECT name, type, \"notnull\", dflt_value IS NOT NULL, pk, hidden FROM pragma_table_xinfo(?1)";
    let rows = connection.query(sql, &parameter)?;
    let mut key: Vec<(i64, String)> =
        rows.iter().filter(|row| integer(row, 4) > 0).map(|row| (integer(row, 4), text(row, 0))).collect();
    key.sort_unstable();
    let indexes = indexes(connection, &name)?;
    // A rowid's alias can't be NULL, whatever is declared, nor can any key of a table without rowid.
    let whole_key = whole_key(connection, &name, &key, &rows)?;
    let visible = rows.iter().filter(|row| integer(row, 5) != 1);
    let mut columns: Vec<CatalogueColumn> = visible.map(|row| column(row, &indexes, whole_key)).collect();
    for column in &mut columns {
        if let Some(kind) = column.kind {
            column.spellings = equality::spellings(connection, &name, &column.name, kind.base)?;
        }
    }
    let primary_key: Vec<String> = key.into_iter().map(|(_, name)| name).collect();
    let names = |index: &Index| index.columns.iter().map(|(name, _)| name.clone()).collect();
    let whole = || indexes.iter().filter(|index| !index.partial && !index.expression);
    let unique = whole().filter(|index| index.kind == IndexKind::Unique).map(names).collect();
    // An integer key has no index of its own: the table is one.
    let indexes = whole().map(names).chain([primary_key.clone()]).collect();
    let references = references(connection, &name)?;
    Ok(CatalogueTable {
        schema: None,
        name,
        columns,
        primary_key,
        unique,
        deferrable: Vec::new(),
        indexes,
        references,
        has_heirs: false,
        has_foreign_parts: false,
    })
}

/// Whether the primary key's columns can't be NULL although they may be declared without NOT NULL.
fn whole_key(
    connection: &mut dyn Connection,
    table: &str,
    key: &[(i64, String)],
    columns: &[Row],
) -> Result<bool, Error> {
    let sql = "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?1";
    let without_rowid = connection.query(sql, &[Value::text(table)])?.first().is_some_and(|row| integer(row, 0) == 1);
    let is_alias = match key {
        [(_, name)] => columns.iter().any(|row| text(row, 0) == *name && text(row, 1).eq_ignore_ascii_case("integer")),
        _ => false,
    };
    Ok(without_rowid || is_alias)
}

fn column(row: &Row, indexes: &[Index], whole_key: bool) -> CatalogueColumn {
    let (name, declared) = (text(row, 0), text(row, 1));
    let is_key = integer(row, 4) > 0;
    let kind = column_type(&declared);
    let collation = indexes
        .iter()
        .filter(|index| index.kind == IndexKind::Primary || index.kind == IndexKind::Unique && !index.partial)
        .flat_map(|index| &index.columns)
        .find(|(column, collation)| *column == name && !collation.eq_ignore_ascii_case("binary"));
    let equality = match (kind.map(|kind| kind.base), collation) {
        (_, Some((_, collation))) => Some(format!("collation {collation}")),
        (Some(Type::Real), None) => Some("floating-point numbers".to_owned()),
        _ => None,
    };
    CatalogueColumn {
        nullable: integer(row, 2) == 0 && !(is_key && whole_key),
        generated: integer(row, 5) > 1,
        has_default: integer(row, 3) != 0 || (is_key && whole_key && kind.is_some_and(|kind| kind.base == Type::Int)),
        name,
        declared,
        kind,
        equality,
        spellings: None,
    }
}

/// The model's type for a declared one: by name, and else as SQLite takes it itself. Headwater's own spellings (`DECIMAL_TEXT`) keep
/// their values in TEXT columns.
pub(super) fn column_type(declared: &str) -> Option<ColumnType> {
    let upper = declared.to_ascii_uppercase();
    let (name, arguments) = upper.split_once('(').map_or((upper.as_str(), None), |(name, rest)| (name, Some(rest)));
    let name = name.trim().trim_end_matches("_TEXT").trim_end_matches("_BLOB");
    let base = match name {
        "BOOL" | "BOOLEAN" => Type::Bool,
        "DECIMAL" | "NUMERIC" => return Some(decimal(arguments)),
        "DATE" => Type::Date,
        "TIME" => Type::Time,
        "DATETIME" | "TIMESTAMP" => Type::Timestamp,
        "TIMESTAMPTZ" | "TIMESTAMP WITH TIME ZONE" => Type::Timestamptz,
        "UUID" => Type::Uuid,
        "JSON" | "JSONB" => Type::Json,
        _ if name.contains("INT") => Type::Int,
        _ if ["CHAR", "CLOB", "TEXT"].iter().any(|word| name.contains(word)) => Type::Text,
        _ if name.contains("BLOB") || matches!(name, "BYTEA" | "BINARY" | "VARBINARY") => Type::Bytes,
        _ if ["REAL", "FLOA", "DOUB"].iter().any(|word| name.contains(word)) => Type::Real,
        _ => return None,
    };
    Some(ColumnType::plain(base))
}

fn decimal(arguments: Option<&str>) -> ColumnType {
    let limits = arguments.and_then(|arguments| {
        let (precision, scale) =
            arguments.trim_end_matches(')').split_once(',').unwrap_or((arguments.trim_end_matches(')'), "0"));
        let (precision, scale) = (precision.trim().parse().ok()?, scale.trim().parse().ok()?);
        (precision > 0 && scale <= precision).then_some((precision, scale))
    });
    ColumnType { base: Type::Decimal, precision: limits }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IndexKind {
    Primary,
    Unique,
    Plain,
}

/// An index.
struct Index {
    kind: IndexKind,
    partial: bool,
    /// Whether one of its columns is an expression.
    expression: bool,
    /// Columns and their collations.
    columns: Vec<(String, String)>,
}

fn indexes(connection: &mut dyn Connection, table: &str) -> Result<Vec<Index>, Error> {
    let sql = "SELECT name, origin = 'pk', partial, \"unique\" FROM pragma_index_list(?1) ORDER BY name";
    let found = connection.query(sql, &[Value::text(table)])?;
    let mut indexes = Vec::new();
    for row in &found {
        let sql = "SELECT name, coll FROM pragma_index_xinfo(?1) WHERE key ORDER BY seqno";
        let columns = connection.query(sql, &[row.first().cloned().unwrap_or(Value::Null)])?;
        indexes.push(Index {
            kind: match (integer(row, 1) != 0, integer(row, 3) != 0) {
                (true, _) => IndexKind::Primary,
                (false, true) => IndexKind::Unique,
                (false, false) => IndexKind::Plain,
            },
            partial: integer(row, 2) != 0,
            expression: columns.iter().any(|column| column.first().is_none_or(Value::is_null)),
            columns: columns.iter().map(|column| (text(column, 0), text(column, 1))).collect(),
        });
    }
    Ok(indexes)
}

/// The unique indexes through which `REPLACE` deletes rows; one on an expression is left out.
pub(crate) fn unique_indexes(connection: &mut dyn Connection, table: &str) -> Result<Vec<UniqueIndex>, Error> {
    let indexes =
        indexes(connection, table)?.into_iter().filter(|index| index.kind != IndexKind::Plain && !index.expression);
    let collation = |name: String| (!name.eq_ignore_ascii_case("binary")).then_some(name);
    let unique = |index: Index| UniqueIndex {
        columns: index.columns.into_iter().map(|(column, name)| (column, collation(name))).collect(),
    };
    Ok(indexes.map(unique).collect())
}

/// The unique indexes on an expression: rows that `REPLACE` deletes through one of them are not noted where `recursive_triggers` is off.
pub(crate) fn unnoted_indexes(connection: &mut dyn Connection, table: &str) -> Result<Vec<String>, Error> {
    let sql = "SELECT l.name FROM pragma_index_list(?1) l WHERE l.\"unique\" \
               AND EXISTS (SELECT 1 FROM pragma_index_xinfo(l.name) x WHERE x.key AND x.name IS NULL AND x.cid = -2) ORDER BY l.name";
    Ok(connection.query(sql, &[Value::text(table)])?.iter().map(|row| text(row, 0)).collect())
}

fn references(connection: &mut dyn Connection, table: &str) -> Result<Vec<CatalogueReference>, Error> {
    let sql = "SELECT id, \"table\", \"from\", \"to\", on_delete FROM pragma_foreign_key_list(?1) ORDER BY id, seq";
    let rows = connection.query(sql, &[Value::text(table)])?;
    let mut references: Vec<(i64, CatalogueReference)> = Vec::new();
    for row in &rows {
        let id = integer(row, 0);
        if references.last().is_none_or(|(last, _)| *last != id) {
            let (target, on_delete) = (Vec::new(), text(row, 4).to_ascii_lowercase());
            let reference =
                CatalogueReference { columns: Vec::new(), schema: None, table: text(row, 1), target, on_delete };
            references.push((id, reference));
        }
        if let Some((_, reference)) = references.last_mut() {
            reference.columns.push(text(row, 2));
            reference.target.extend(row.get(3).filter(|to| !to.is_null()).map(|_| text(row, 3)));
        }
    }
    let mut found: Vec<CatalogueReference> = references.into_iter().map(|(_, reference)| reference).collect();
    for reference in &mut found {
        as_declared(connection, reference)?;
    }
    for reference in found.iter_mut().filter(|reference| reference.target.is_empty()) {
        // Without columns, the parent's primary key is meant.
        let sql = "SELECT name FROM pragma_table_xinfo(?1) WHERE pk > 0 ORDER BY pk";
        let key = connection.query(sql, &[Value::text(reference.table.as_str())])?;
        reference.target = key.iter().map(|row| text(row, 0)).collect();
    }
    // Later ones have smaller numbers.
    found.reverse();
    Ok(found)
}

/// Spells the names in a reference as their table does: a foreign key may write them in other case.
fn as_declared(connection: &mut dyn Connection, reference: &mut CatalogueReference) -> Result<(), Error> {
    let sql = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE";
    let found = connection.query(sql, &[Value::text(reference.table.as_str())])?;
    // Without it the foreign key refers to nothing, and is named as it stands.
    let Some(table) = found.first() else { return Ok(()) };
    reference.table = text(table, 0);
    for column in &mut reference.target {
        let sql = "SELECT name FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE";
        let names = [Value::text(reference.table.as_str()), Value::text(column.as_str())];
        if let Some(found) = connection.query(sql, &names)?.first() {
            *column = text(found, 0);
        }
    }
    Ok(())
}

/// The state of a table's tracking.
pub(crate) fn tracking(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Tracking, Error> {
    let recorded = if crate::system::is_installed(connection)? {
        let sql = "SELECT installed_hash FROM headwater_tracked WHERE table_name = ?1 AND installed_hash IS NOT NULL";
        connection.query(sql, &[Value::text(tracked_name(&kin.lineage))])?.first().and_then(|row| row.first().cloned())
    } else {
        None
    };
    let objects = objects(connection, kin)?;
    let (there, expected) = (objects.iter().filter(|row| text(row, 0) == "trigger").count(), triggers(kin).len());
    Ok(match recorded {
        None if there == 0 => Tracking::Absent,
        None => Tracking::Broken("its triggers are there, but not on record".to_owned()),
        Some(Value::Bytes(hash)) if hash == hash_of(&objects) => Tracking::Complete,
        Some(_) if there < expected => Tracking::Broken(format!("{there} of {expected} triggers are there")),
        Some(_) => Tracking::Broken("a trigger or the side table has been changed".to_owned()),
    })
}

/// The hash of a table's tracking as it is installed.
pub(crate) fn installed_hash(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Vec<u8>, Error> {
    Ok(hash_of(&objects(connection, kin)?))
}

/// Triggers of a table that are ours and of this layout, its side table and that one's index: type, name, SQL.
fn objects(connection: &mut dyn Connection, kin: &Kin<'_>) -> Result<Vec<Row>, Error> {
    let triggers = triggers(kin);
    let places: Vec<String> = (3..triggers.len() + 3).map(|place| format!("?{place}")).collect();
    let sql = format!(
        "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND \
         (type = 'trigger' AND tbl_name = ?1 AND name IN ({}) OR tbl_name = ?2) ORDER BY type, name",
        places.join(", ")
    );
    let names = [kin.table().name.clone(), side_name(&kin.lineage)].into_iter().chain(triggers);
    connection.query(&sql, &names.map(Value::text).collect::<Vec<_>>())
}

/// The statements that drop the triggers which write to a side table.
pub(crate) fn triggers_into(connection: &mut dyn Connection, side_table: &str) -> Result<Vec<String>, Error> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'headwater\\_%' ESCAPE '\\' AND instr(sql, ?1) > 0 \
               ORDER BY name";
    let found = connection.query(sql, &[Value::text(side_table)])?;
    Ok(found.iter().map(|row| format!("DROP TRIGGER IF EXISTS {}", quote(&text(row, 0)))).collect())
}

fn hash_of(objects: &[Row]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for value in objects.iter().flatten() {
        if let Value::Text(bytes) = value {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
    }
    hash.finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_types_are_understood() {
        let read = |declared: &str| column_type(declared).map(|kind| kind.to_string());
        for (declared, expected) in [
            ("INTEGER", "int"),
            ("unsigned big int", "int"),
            ("VARCHAR(64)", "text"),
            ("TEXT", "text"),
            ("Decimal(30, 6)", "decimal(30,6)"),
            ("DECIMAL_TEXT(30,6)", "decimal(30,6)"),
            ("NUMERIC", "decimal"),
            ("DATE_TEXT", "date"),
            ("TIMESTAMP_BLOB", "timestamp"),
            ("timestamptz_text", "timestamptz"),
            ("TIMESTAMP", "timestamp"),
            ("DOUBLE PRECISION", "real"),
            ("BLOB", "bytes"),
            ("UUID_TEXT", "uuid"),
            ("JSON", "json"),
            ("boolean", "bool"),
        ] {
            assert_eq!(read(declared).as_deref(), Some(expected), "{declared}");
        }
        for declared in ["", "GEOMETRY", "STRING"] {
            assert_eq!(read(declared), None, "{declared}");
        }
    }
}
