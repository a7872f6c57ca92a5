//! Rows that are inserted just as they came: which tables keep them so, and the insert.
//!
//! A row need not be read again where it is known to be stored as it was sent. That is so where nothing but the insert has a say (no triggers
//! but Headwater's, no conflict clause in the table's definition that would take other rows away, texts kept byte for byte) and no
//! column's affinity changes a value (<https://www.sqlite.org/datatype3.html>, section 3). The writer's lock is held from the look on, so
//! what was found stays true until the commit.

use std::sync::Arc;

use headwater_protocol::row::Cell;
use headwater_protocol::stored::Scratch;
use headwater_protocol::{Type, Value, ValueRef};

use super::connection::SqliteConnection;
use super::error::sort;
use super::values::bind;
use crate::backend::EncodedRows;
use crate::catalogue::{integer, text};
use crate::{Connection as _, Error, TablePlan};

/// Whether a table (its name) leaves inserts alone.
const LEAVES_ALONE_SQL: &str = "
    SELECT 1 FROM sqlite_schema t JOIN pragma_encoding e
    WHERE t.type = 'table' AND t.name = ?1 COLLATE NOCASE AND t.sql NOT LIKE '%conflict%' AND t.sql NOT LIKE 'create virtual%'
        AND e.encoding = 'UTF-8' AND NOT EXISTS (
        SELECT 1 FROM sqlite_schema r WHERE r.type = 'trigger' AND (r.tbl_name LIKE 'headwater\\_%' ESCAPE '\\'
            OR r.tbl_name = ?1 COLLATE NOCASE AND r.name NOT LIKE 'headwater\\_%' ESCAPE '\\'))";
const COLUMNS_SQL: &str = "SELECT name, type, hidden FROM pragma_table_xinfo(?1)";

/// What a table does with rows.
#[derive(Debug)]
pub(super) struct Keeps {
    /// The version of the schema of which that is true.
    schema: i64,
    /// In the model's order; `None`: it may change them.
    columns: Option<Vec<Affinity>>,
}

/// What a column does with values that are not of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Affinity {
    Integer,
    Text,
    Blob,
    Real,
    Numeric,
}

impl Affinity {
    /// Of a declared type, by the five rules in their order.
    fn of(declared: &str) -> Affinity {
        let upper = declared.to_ascii_uppercase();
        let has = |words: &[&str]| words.iter().any(|word| upper.contains(word));
        if has(&["INT"]) {
            Affinity::Integer
        } else if has(&["CHAR", "CLOB", "TEXT"]) {
            Affinity::Text
        } else if has(&["BLOB"]) || upper.is_empty() {
            Affinity::Blob
        } else if has(&["REAL", "FLOA", "DOUB"]) {
            Affinity::Real
        } else {
            Affinity::Numeric
        }
    }

    /// Whether a value is stored as it is.
    fn keeps(self, value: ValueRef<'_>) -> bool {
        let Some(kind) = value.kind() else { return true };
        // None of these is spelled like a number.
        let is_no_number =
            matches!(kind, Type::Date | Type::Time | Type::Timestamp | Type::Timestamptz | Type::Uuid | Type::Bytes);
        is_no_number
            || match self {
                Affinity::Blob => true,
                Affinity::Integer | Affinity::Numeric => matches!(kind, Type::Int | Type::Bool),
                Affinity::Real => kind == Type::Real,
                Affinity::Text => matches!(kind, Type::Text | Type::Json | Type::Decimal),
            }
    }
}

impl SqliteConnection {
    /// Whether a table keeps rows as they are, as long as this transaction lasts.
    pub(super) fn keeps_plain(&mut self, plan: &TablePlan) -> Result<bool, Error> {
        let rows = self.query("PRAGMA schema_version", &[])?;
        let schema = rows.first().map_or(0, |row| integer(row, 0));
        if let Some(known) = self.known_keeps(plan).filter(|known| known.schema == schema) {
            return Ok(known.columns.is_some());
        }
        let keeps = Keeps { schema, columns: self.affinities(plan)? };
        let is_kept = keeps.columns.is_some();
        self.note_keeps(plan, Arc::new(keeps));
        Ok(is_kept)
    }

    fn affinities(&mut self, plan: &TablePlan) -> Result<Option<Vec<Affinity>>, Error> {
        let name = [Value::text(plan.table.name.as_str())];
        if self.query(LEAVES_ALONE_SQL, &name)?.is_empty() {
            return Ok(None);
        }
        let found = self.query(COLUMNS_SQL, &name)?;
        let affinity = |column: &headwater_model::Column| {
            let row = found.iter().find(|row| text(row, 0).eq_ignore_ascii_case(&column.name))?;
            (integer(row, 2) == 0).then(|| Affinity::of(&text(row, 1)))
        };
        Ok(plan.table.columns.iter().map(affinity).collect())
    }

    /// Inserts all rows, or says why not, and leaves it to the savepoint to take back what was done; `false`: nothing was done, they would not all
    /// be stored as they are.
    pub(super) fn insert_encoded(&mut self, plan: &TablePlan, rows: EncodedRows<'_>) -> Result<bool, Error> {
        let Some(keeps) = self.known_keeps(plan) else { return Ok(false) };
        let Some(affinities) = &keeps.columns else { return Ok(false) };
        if !are_kept(affinities, plan, rows)? {
            return Ok(false);
        }
        let sql = self.table_sql(plan);
        let mut statement = self.prepare(&sql.insert_or_fail)?;
        let mut scratch = Scratch::default();
        rows.read(
            &plan.types,
            |row| {
                let mut place = 0;
                while let Some(Cell::Value(value)) = row.next_cell()? {
                    place += 1;
                    bind(&mut statement, place, value, &mut scratch)?;
                }
                statement.raw_execute().map(drop).map_err(|error| sort(error, &sql.insert_or_fail))
            },
            |_| {},
        )?;
        Ok(true)
    }
}

fn are_kept(affinities: &[Affinity], plan: &TablePlan, rows: EncodedRows<'_>) -> Result<bool, Error> {
    let mut are_kept = true;
    rows.read(
        &plan.types,
        |row| {
            for affinity in affinities {
                are_kept &= matches!(row.next_cell()?, Some(Cell::Value(value)) if affinity.keeps(value));
            }
            Ok::<_, Error>(())
        },
        |_| {},
    )?;
    Ok(are_kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinities_are_those_of_the_five_rules() {
        for (declared, expected) in [
            ("INTEGER", Affinity::Integer),
            ("charint", Affinity::Integer),
            ("varchar(9)", Affinity::Text),
            ("DECIMAL_TEXT(9,2)", Affinity::Text),
            ("blob", Affinity::Blob),
            ("", Affinity::Blob),
            ("double precision", Affinity::Real),
            ("DECIMAL(9,2)", Affinity::Numeric),
            ("timestamp", Affinity::Numeric),
        ] {
            assert_eq!(Affinity::of(declared), expected, "{declared}");
        }
    }
}
