//! Changes that are made just as they came: which tables keep rows so, and the statements.
//!
//! A row need not be read again where it is known to be stored as it was sent. That is so where nothing but the statement has a say (no
//! triggers but Headwater's, no conflict clause in the table's definition that would take other rows away, texts kept byte for byte) and no
//! column's affinity changes a value (<https://www.sqlite.org/datatype3.html>, section 3). Where a foreign key of another table hands
//! deletions (or updates) on to its rows, rows change that nobody has sent: deletions (or updates) of such a table are not trusted. The
//! writer's lock is held from the look on, so what was found stays true until the commit.

use std::sync::Arc;

use headwater_protocol::message::ChangeOp;
use headwater_protocol::stored::Scratch;
use headwater_protocol::{Type, Value, ValueRef};

use super::connection::SqliteConnection;
use super::error::sort_of_rows;
use super::values::bind;
use crate::backend::EncodedChanges;
use crate::catalogue::{integer, text};
use crate::{Connection as _, Error, TablePlan};

/// Whether a table (its name) leaves changes alone.
const LEAVES_ALONE_SQL: &str = "
    SELECT 1 FROM sqlite_schema t JOIN pragma_encoding e
    WHERE t.type = 'table' AND t.name = ?1 COLLATE NOCASE AND t.sql NOT LIKE '%conflict%' AND t.sql NOT LIKE 'create virtual%'
        AND e.encoding = 'UTF-8' AND NOT EXISTS (
        SELECT 1 FROM sqlite_schema r WHERE r.type = 'trigger' AND (r.tbl_name LIKE 'headwater\\_%' ESCAPE '\\'
            OR r.tbl_name = ?1 COLLATE NOCASE AND r.name NOT LIKE 'headwater\\_%' ESCAPE '\\'))";
/// Whether foreign keys that refer to a table (its name) hand deletions on to other rows, and whether updates.
const HANDS_ON_SQL: &str = "
    SELECT coalesce(max(f.on_delete NOT IN ('NO ACTION', 'RESTRICT')), 0), coalesce(max(f.on_update NOT IN ('NO ACTION', 'RESTRICT')), 0)
    FROM sqlite_schema s JOIN pragma_foreign_key_list(s.name) f
    WHERE s.type = 'table' AND f.\"table\" = ?1 COLLATE NOCASE";
const COLUMNS_SQL: &str = "SELECT name, type, hidden FROM pragma_table_xinfo(?1)";

/// What a table does with rows.
#[derive(Debug)]
pub(super) struct Keeps {
    /// The version of the schema of which that is true.
    schema: i64,
    /// In the model's order; `None`: it may change them.
    columns: Option<Vec<Affinity>>,
    /// Updates leave nothing else than they say.
    updates: bool,
    /// The same of deletions.
    deletes: bool,
}

impl Keeps {
    fn takes(&self, op: ChangeOp) -> bool {
        self.columns.is_some()
            && match op {
                ChangeOp::Insert => true,
                ChangeOp::Update => self.updates,
                ChangeOp::Delete => self.deletes,
            }
    }
}

/// What a column does with values that are not of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Affinity {
    Integer,
    Text,
    Blob,
    Real,
    Numeric,
}

impl Affinity {
    /// Of a declared type, by the five rules in their order.
    pub(super) fn of(declared: &str) -> Affinity {
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

    /// Whether texts that look like numbers become numbers.
    pub(super) fn is_numeric(self) -> bool {
        matches!(self, Affinity::Integer | Affinity::Real | Affinity::Numeric)
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
    /// Whether a table keeps rows as they are when they are changed so, as long as this transaction lasts.
    pub(super) fn keeps_plain(&mut self, plan: &TablePlan, op: ChangeOp) -> Result<bool, Error> {
        let rows = self.query("PRAGMA schema_version", &[])?;
        let schema = rows.first().map_or(0, |row| integer(row, 0));
        if let Some(known) = self.known_keeps(plan).filter(|known| known.schema == schema) {
            return Ok(known.takes(op));
        }
        let handed_on = self.query(HANDS_ON_SQL, &[Value::text(plan.table.name.as_str())])?;
        let leaves = |place| handed_on.first().is_some_and(|row| integer(row, place) == 0);
        let has_more_than_key = plan.table.key.len() < plan.table.columns.len();
        let keeps = Keeps {
            schema,
            columns: self.affinities(plan)?,
            updates: leaves(1) && has_more_than_key,
            deletes: leaves(0),
        };
        let takes = keeps.takes(op);
        self.note_keeps(plan, Arc::new(keeps));
        Ok(takes)
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

    /// Makes all changes, or says why not, and leaves it to the savepoint to take back what was done; `false`: not all of them, or they would not
    /// all be stored as they are.
    pub(super) fn change_encoded(
        &mut self,
        plan: &TablePlan,
        changes: EncodedChanges<'_>,
        compares: bool,
    ) -> Result<bool, Error> {
        let Some(keeps) = self.known_keeps(plan).filter(|keeps| keeps.takes(changes.op())) else { return Ok(false) };
        let Some(affinities) = &keeps.columns else { return Ok(false) };
        if !are_kept(affinities, plan, changes)? {
            return Ok(false);
        }
        let table_sql = self.table_sql(plan);
        let sql = match (changes.op(), compares) {
            (ChangeOp::Insert, _) => &table_sql.insert_or_fail,
            (ChangeOp::Update, true) => &table_sql.update_same,
            (ChangeOp::Update, false) => &table_sql.update_any,
            (ChangeOp::Delete, true) => &table_sql.delete_same,
            (ChangeOp::Delete, false) => &table_sql.delete_any,
        };
        let (key, columns) = (&plan.table.key, plan.types.len());
        let (mut statement, mut scratch, mut all) =
            (self.prepare_for_rows(sql, &table_sql.fetch)?, Scratch::default(), true);
        changes.read(&plan.types, |change| {
            if !all {
                return Ok(());
            }
            for (place, value) in change.old.iter().enumerate().filter(|(place, _)| compares || key.contains(place)) {
                bind(&mut statement, place + 1, *value, &mut scratch)?;
            }
            let is_insert = change.old.is_empty();
            let set = change.new.iter().enumerate().filter(|(place, _)| is_insert || !key.contains(place));
            for (parameter, (_, value)) in (if is_insert { 1 } else { columns + 1 }..).zip(set) {
                bind(&mut statement, parameter, *value, &mut scratch)?;
            }
            all = statement.raw_execute().map_err(|error| sort_of_rows(error, sql))? == 1;
            Ok::<_, Error>(())
        })?;
        Ok(all)
    }
}

/// Whether all values are stored, and found stored, as they are.
fn are_kept(affinities: &[Affinity], plan: &TablePlan, changes: EncodedChanges<'_>) -> Result<bool, Error> {
    let mut are_kept = true;
    let keep = |image: &[ValueRef<'_>]| affinities.iter().zip(image).all(|(affinity, value)| affinity.keeps(*value));
    changes.read(&plan.types, |change| {
        are_kept = are_kept && keep(change.old) && keep(change.new);
        Ok::<_, Error>(())
    })?;
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
