//! Rows that are inserted just as they came: which tables keep them so, and the statement.
//!
//! A row need not be read again where it is known to be stored as it was sent. That is so where nothing but the insert has a say, and each
//! value lies in its type without being rounded, cut or filled up:
//!
//! - The table is one of its own: no part of another, no rules, no policies.
//! - Its triggers are Headwater's, or those by which PostgreSQL checks foreign keys; so are those on Headwater's own tables, which the upload
//!   writes too.
//! - No default, check or index calls a function or operator that PostgreSQL did not come with: it might write.
//!
//! [`KEEPS_SQL`] asks for all that, and for the types. It is asked before the first insert of a connection, and at the end of each
//! transaction: from the insert on, the lock that it takes keeps all of it as it is, and so does one on the table of remotes.
//!
//! *Caveats.* Functions of extensions count as others, and columns with domains are not looked into: such tables are read again.

use std::sync::Arc;

use headwater_model::tracking::postgres::base_table;
use headwater_protocol::decimal::Parts;
use headwater_protocol::message::{Refusal, RefusalCode};
use headwater_protocol::row::{Cell, RowReader};
use headwater_protocol::{DecodeError, Row, Value, ValueRef};
use tokio_postgres::Client;

use super::bound::{Array, Bound};
use super::codec::Codec;
use super::connection::PostgresConnection;
use super::shape::{Column, Shape, Verb};
use crate::backend::EncodedRows;
use crate::{Connection as _, Error, TablePlan};

/// The number of the transaction, and of each of some tables (a JSON array of names) its columns (name, type, modifier of the type) if it
/// keeps rows as they are. All of it by index, however many tables the database has: it is asked in every such upload.
const KEEPS_SQL: &str = "
    SELECT pg_current_xact_id(), w.name, (SELECT (
        SELECT json_agg(json_build_array(a.attname, a.atttypid::int8, a.atttypmod) ORDER BY a.attnum)::text
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        HAVING NOT bool_or((SELECT t.typtype = 'd' FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid)))
        FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(w.name)
        AND getdatabaseencoding() = 'UTF8' AND c.relkind = 'r' AND NOT c.relhasrules AND NOT c.relrowsecurity AND NOT c.relhassubclass
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid)
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
            WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND p.pronamespace <> 'headwater'::regnamespace)
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class h ON h.oid = t.tgrelid
            WHERE h.relnamespace = 'headwater'::regnamespace AND NOT t.tgisinternal)
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_attrdef'::regclass
            AND d.objid = ANY (ARRAY(SELECT o.oid FROM pg_catalog.pg_attrdef o WHERE o.adrelid = c.oid))
            AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass))
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_constraint'::regclass
            AND d.objid = ANY (ARRAY(SELECT o.oid FROM pg_catalog.pg_constraint o WHERE o.conrelid = c.oid))
            AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass))
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_class'::regclass
            AND d.objid = ANY (ARRAY(SELECT o.indexrelid FROM pg_catalog.pg_index o WHERE o.indrelid = c.oid))
            AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)))
    FROM json_array_elements_text(?1::json) AS w(name)";

/// What a table does with rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Keeps {
    /// What [`KEEPS_SQL`] said: as long as it says that, nothing has changed. `None`: it does not keep them.
    said: Option<String>,
    /// In the model's order.
    columns: Vec<Keep>,
}

/// Which values a column stores as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// All that its type holds.
    All,
    /// Decimals with so many digits after the point.
    Scale(usize),
    /// Decimals; one that is zero has no sign.
    Decimals,
    /// Texts of no more characters; bytes are counted.
    Bytes(usize),
}

impl Keep {
    /// Of a type and its modifier; `None`: it may store any value otherwise.
    fn of(oid: u32, modifier: i32) -> Option<Keep> {
        Some(match (Codec::of(oid)?, oid) {
            (Codec::Text, 25) => Keep::All,
            (Codec::Text, 1043) if modifier < 0 => Keep::All,
            (Codec::Text, 1043) => Keep::Bytes(usize::try_from(modifier - 4).ok()?),
            (Codec::Numeric, _) if modifier < 0 => Keep::Decimals,
            (Codec::Numeric, _) => {
                // Eleven bits, the first of them the sign.
                let scale = (modifier - 4) & 0x7ff;
                Keep::Scale((scale < 0x400).then_some(scale as usize)?)
            }
            (Codec::Time | Codec::Timestamp | Codec::Timestamptz, _) if (0..6).contains(&modifier) => return None,
            (Codec::Text | Codec::Float4 | Codec::Jsonb, _) => return None,
            _ => Keep::All,
        })
    }

    fn keeps(self, value: ValueRef<'_>) -> bool {
        match (self, value) {
            (Keep::Scale(expected), ValueRef::Decimal(decimal)) => match decimal.parts() {
                Parts::Number { scale, .. } => scale == expected && Keep::Decimals.keeps(value),
                _ => true,
            },
            (Keep::Decimals, ValueRef::Decimal(decimal)) => match decimal.parts() {
                Parts::Number { negative, packed, .. } => !negative || packed.iter().any(|byte| *byte != 0),
                _ => true,
            },
            (Keep::Bytes(most), ValueRef::Text(text)) => text.len() <= most,
            _ => true,
        }
    }
}

impl Keeps {
    fn read(said: Option<String>, shape: &Shape) -> Keeps {
        let found: Vec<(String, u32, i32)> =
            said.as_deref().and_then(|said| serde_json::from_str(said).ok()).unwrap_or_default();
        let keep = |column: &Column| {
            let (_, oid, modifier) = found.iter().find(|(name, _, _)| *name == column.name)?;
            let is_plain = column.cast.is_none() && !column.is_generated && Codec::of(*oid) == Some(column.codec);
            Keep::of(*oid, *modifier).filter(|_| is_plain)
        };
        match shape.columns.iter().map(keep).collect::<Option<Vec<_>>>() {
            Some(columns) => Keeps { said, columns },
            None => Keeps { said: None, columns: Vec::new() },
        }
    }

    /// The columns of rows as parameters; `None` if one value would not be stored as it is.
    fn columns(
        &self,
        shape: &Shape,
        plan: &TablePlan,
        rows: EncodedRows<'_>,
    ) -> Result<Option<Vec<Bound>>, DecodeError> {
        let mut arrays: Vec<Array> = shape.columns.iter().map(|column| Array::of(column.codec, rows.count())).collect();
        let mut are_kept = true;
        let push = |row: &mut RowReader<'_, '_>| {
            for ((array, column), keep) in arrays.iter_mut().zip(&shape.columns).zip(&self.columns) {
                let Some(Cell::Value(value)) = row.next_cell()? else {
                    are_kept = false;
                    continue;
                };
                are_kept = are_kept && keep.keeps(value) && array.push(column.codec, value).is_ok();
            }
            Ok::<_, DecodeError>(())
        };
        rows.read(&plan.types, push, |_| {})?;
        Ok(are_kept.then(|| arrays.into_iter().map(Array::bound).collect()))
    }
}

impl PostgresConnection {
    /// Whether a table keeps rows as they are. One whose key has not been found to be unique yet does not.
    pub(super) fn keeps_plain(&mut self, plan: &TablePlan) -> Result<bool, Error> {
        if !self.is_key_unique(plan) {
            return Ok(false);
        }
        if let Some(keeps) = self.known_keeps(plan) {
            return Ok(keeps.said.is_some());
        }
        let (shape, _) = self.table(plan, Verb::InsertPlain)?;
        let said = self.said(&[plan])?.pop().flatten();
        let keeps = Arc::new(Keeps::read(said, &shape));
        self.note_keeps(plan, Some(keeps.clone()));
        Ok(keeps.said.is_some())
    }

    /// Inserts all rows, or says why not; `false`: nothing was done, they would not all be stored as they are.
    pub(super) fn insert_encoded(&mut self, plan: &TablePlan, rows: EncodedRows<'_>) -> Result<bool, Error> {
        let (shape, statement) = self.table(plan, Verb::InsertPlain)?;
        let Some(keeps) = self.known_keeps(plan).filter(|keeps| keeps.said.is_some()) else { return Ok(false) };
        let Some(bound) = keeps.columns(&shape, plan, rows)? else { return Ok(false) };
        let done = self.run(async |client: &Client| client.execute_raw(&statement, &bound).await);
        let inserted = done.map_err(|failure| self.failure("inserting rows", &failure));
        match self.settle(plan, inserted)? {
            count if count == rows.count() as u64 => Ok(true),
            count => {
                let detail = format!("{count} of {} rows were inserted into {}", rows.count(), plan.table.name);
                Err(Error::Refused { refusal: Refusal { code: RefusalCode::Trigger, message: detail.clone() }, detail })
            }
        }
    }

    /// Whether these tables are as they were when [`PostgresConnection::keeps_plain`] looked at them; otherwise it looks again next time.
    pub(super) fn still_keep_plain(&mut self, plans: &[&TablePlan]) -> Result<bool, Error> {
        // It is written after the look, so no trigger may come onto it in between.
        self.queued.sql(["LOCK TABLE headwater.remote IN ROW EXCLUSIVE MODE;"]);
        let said = self.said(plans)?;
        let mut all = true;
        for (plan, said) in plans.iter().zip(said) {
            let known = self.known_keeps(plan);
            if known.is_none_or(|keeps| keeps.said.is_none() || keeps.said != said) {
                self.note_keeps(plan, None);
                all = false;
            }
        }
        Ok(all)
    }

    /// What [`KEEPS_SQL`] says of each.
    fn said(&mut self, plans: &[&TablePlan]) -> Result<Vec<Option<String>>, Error> {
        let names = plans.iter().map(|plan| base_table(&plan.table)).collect::<Vec<_>>();
        let asked = serde_json::to_string(&names).unwrap_or_default();
        let rows = self.query(KEEPS_SQL, &[Value::text(asked)])?;
        if let Some(Value::Int(number)) = rows.first().and_then(|row| row.first()) {
            self.state.number = Some(*number);
        }
        let text = |row: &Row, place: usize| crate::system::optional_text(row.get(place));
        let of =
            |name: &String| rows.iter().find(|row| text(row, 1).as_ref() == Some(name)).and_then(|row| text(row, 2));
        Ok(names.iter().map(of).collect())
    }
}
