//! Changes that are made just as they came: which tables keep rows so, and the statements.
//!
//! A row need not be read again where it is known to be stored as it was sent. That is so where nothing but the statement has a say, and
//! each value lies in its type without being rounded, cut or filled up:
//!
//! - The table is one of its own: no part of another, no rules, no policies.
//! - Its triggers are Headwater's, or those by which PostgreSQL checks foreign keys; so are those on Headwater's own tables, which the upload
//!   writes too.
//! - No default, check or index calls a function or operator that PostgreSQL did not come with: it might write.
//! - An index says that its key is unique: a statement changes as many rows as it is given then, or fewer.
//!
//! For updates the key must have one spelling for each value, since it stays as it is stored, and every other column must be set. Where a
//! foreign key of another table hands deletions (or updates) on to its rows, rows change that nobody has sent: deletions (or updates) of
//! such a table are not trusted.
//!
//! [`KEEPS_SQL`] asks for all that, and for the types. It is asked before the first change of a connection, and at the end of each
//! transaction: from the change on, the lock that it takes keeps all of it as it is, and so does one on the table of remotes.
//!
//! *Caveats.* Functions of extensions count as others, and columns with domains are not looked into: such tables are read again.

use std::sync::Arc;

use headwater_model::tracking::postgres::{base_table, table_id};
use headwater_protocol::decimal::Parts;
use headwater_protocol::message::ChangeOp;
use headwater_protocol::{DecodeError, Row, Value, ValueRef};
use tokio_postgres::Client;

use super::bound::{Array, Bound};
use super::codec::Codec;
use super::connection::PostgresConnection;
use super::shape::{Column, Shape, Verb};
use crate::backend::{EncodedChange, EncodedChanges};
use crate::{Connection as _, Error, TablePlan};

/// The number of the transaction, and of each of some tables (a JSON array of names), if it keeps rows as they are, a JSON array:
///
/// - its columns, each with name, type, modifier of the type, and whether its collation calls other texts equal
/// - the columns of each unique index
/// - whether deletions, and whether updates, are handed on to other rows
///
/// All of it by index, however many tables the database has (foreign keys are found by the triggers that they put onto the table that they
/// refer to): it is asked in every such upload.
const KEEPS_SQL: &str = "
    SELECT pg_current_xact_id(), w.name, (SELECT json_build_array((
        SELECT json_agg(json_build_array(a.attname, a.atttypid::int8, a.atttypmod, EXISTS (SELECT FROM pg_catalog.pg_collation l
            WHERE l.oid = a.attcollation AND NOT l.collisdeterministic)) ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        HAVING NOT bool_or((SELECT t.typtype = 'd' FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid))), (
        SELECT json_agg(ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) ORDER BY i.indexrelid)
        FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
            AND i.indpred IS NULL AND i.indexprs IS NULL),
        f.deletes, f.updates)::text
        FROM pg_catalog.pg_class c CROSS JOIN LATERAL (
            SELECT coalesce(bool_or(k.confdeltype NOT IN ('a', 'r')), false) AS deletes,
                coalesce(bool_or(k.confupdtype NOT IN ('a', 'r')), false) AS updates
            FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_constraint k ON k.oid = t.tgconstraint
            WHERE t.tgrelid = c.oid AND k.contype = 'f' AND k.confrelid = c.oid) f
        WHERE c.oid = {table}
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
    /// Updates leave nothing else than they say.
    updates: bool,
    /// The same of deletions.
    deletes: bool,
}

/// A column as [`KEEPS_SQL`] tells of it: name, type, modifier of the type, and whether its collation calls other texts equal.
type Found = (String, u32, i32, bool);

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
        Keeps::of(said, shape).unwrap_or(Keeps { said: None, columns: Vec::new(), updates: false, deletes: false })
    }

    fn of(said: Option<String>, shape: &Shape) -> Option<Keeps> {
        let (found, unique, hands_deletes_on, hands_updates_on): (Vec<Found>, Vec<Vec<String>>, bool, bool) =
            serde_json::from_str(said.as_deref()?).ok()?;
        let found = |column: &Column| found.iter().find(|(name, ..)| *name == column.name);
        let keep = |column: &Column| {
            let (_, oid, modifier, _) = found(column)?;
            let is_plain = column.cast.is_none() && !column.is_generated && Codec::of(*oid) == Some(column.codec);
            Keep::of(*oid, *modifier).filter(|_| is_plain)
        };
        let columns = shape.columns.iter().map(keep).collect::<Option<Vec<_>>>()?;
        let is_of_key = |name: &String| shape.key.iter().any(|place| shape.columns[*place].name == *name);
        let is_key_unique = unique.iter().any(|columns| columns.iter().all(is_of_key));
        let has_spellings = |place: &usize| {
            let column = &shape.columns[*place];
            column.codec == Codec::Float8
                || columns[*place] == Keep::Decimals
                || found(column).is_none_or(|found| found.3)
        };
        let sets_all = shape.sets_any() && shape.updated().len() == columns.len();
        let updates = !hands_updates_on && sets_all && !shape.key.iter().any(has_spellings);
        is_key_unique.then_some(Keeps { said, columns, updates, deletes: !hands_deletes_on })
    }

    fn takes(&self, op: ChangeOp) -> bool {
        self.said.is_some()
            && match op {
                ChangeOp::Insert => true,
                ChangeOp::Update => self.updates,
                ChangeOp::Delete => self.deletes,
            }
    }

    /// Columns of images as parameters; `None` if a value can't be one, or one that is to be stored would not be stored as it is.
    fn columns(
        &self,
        shape: &Shape,
        plan: &TablePlan,
        changes: EncodedChanges<'_>,
        places: &[(Image, usize)],
    ) -> Result<Option<Vec<Bound>>, DecodeError> {
        let parameter = |(image, place): &(Image, usize)| Parameter {
            image: *image,
            place: *place,
            codec: shape.columns[*place].codec,
            keep: match image {
                // Only compared; but a key stays as it is stored.
                Image::Old if !shape.key.contains(place) => Keep::All,
                _ => self.columns[*place],
            },
            array: Array::of(shape.columns[*place].codec, changes.count()),
        };
        let mut parameters: Vec<Parameter> = places.iter().map(parameter).collect();
        let mut are_kept = true;
        changes.read(&plan.types, |change| {
            are_kept = are_kept && parameters.iter_mut().all(|parameter| parameter.push(&change));
            Ok::<_, DecodeError>(())
        })?;
        Ok(are_kept.then(|| parameters.into_iter().map(|parameter| parameter.array.bound()).collect()))
    }
}

/// An image of a change.
#[derive(Clone, Copy, Debug)]
enum Image {
    Old,
    New,
}

/// A column of one image of many changes.
struct Parameter {
    image: Image,
    place: usize,
    codec: Codec,
    keep: Keep,
    array: Array,
}

impl Parameter {
    /// Takes the value of one change; `false`: it can't be a parameter, or would not be stored as it is.
    fn push(&mut self, change: &EncodedChange<'_, '_>) -> bool {
        let value = match self.image {
            Image::Old => change.old[self.place],
            Image::New => change.new[self.place],
        };
        self.keep.keeps(value) && self.array.push(self.codec, value).is_ok()
    }
}

/// The statement that makes changes, and the columns that are its parameters.
fn statement(shape: &Shape, op: ChangeOp, compares: bool) -> (Verb, Vec<(Image, usize)>) {
    let old = |places: Vec<usize>| places.into_iter().map(|place| (Image::Old, place));
    let new = |places: Vec<usize>| places.into_iter().map(|place| (Image::New, place));
    match (op, compares) {
        (ChangeOp::Insert, _) => (Verb::InsertPlain, new(shape.inserted()).collect()),
        (ChangeOp::Update, true) => (Verb::UpdateSame, old(shape.all()).chain(new(shape.set())).collect()),
        (ChangeOp::Update, false) => (Verb::Update, new(shape.updated()).collect()),
        (ChangeOp::Delete, true) => (Verb::DeleteSame, old(shape.all()).collect()),
        (ChangeOp::Delete, false) => (Verb::Delete, old(shape.key.clone()).collect()),
    }
}

impl PostgresConnection {
    /// Whether a table keeps rows as they are when they are changed so.
    pub(super) fn keeps_plain(&mut self, plan: &TablePlan, op: ChangeOp) -> Result<bool, Error> {
        if let Some(keeps) = self.known_keeps(plan) {
            return Ok(keeps.takes(op));
        }
        // A table that does not fit is found where a change of it is tried.
        let shape = match self.read_shape(plan) {
            Err(Error::Setup { .. }) => return Ok(false),
            shape => shape?,
        };
        let said = self.said(&[plan])?.pop().flatten();
        let keeps = Arc::new(Keeps::read(said, &shape));
        self.note_keeps(plan, Some(keeps.clone()));
        Ok(keeps.takes(op))
    }

    /// Makes all changes, or says why not; `false`: not all of them, or they would not all be stored as they are.
    pub(super) fn change_encoded(
        &mut self,
        plan: &TablePlan,
        changes: EncodedChanges<'_>,
        compares: bool,
    ) -> Result<bool, Error> {
        let Some(keeps) = self.known_keeps(plan).filter(|keeps| keeps.takes(changes.op())) else { return Ok(false) };
        let (verb, places) = statement(&*self.shape(plan)?, changes.op(), compares);
        let (shape, statement) = self.table(plan, verb)?;
        let Some(bound) = keeps.columns(&shape, plan, changes, &places)? else { return Ok(false) };
        let done = self.run(async |client: &Client| client.execute_raw(&statement, &bound).await);
        let made = done.map_err(|failure| self.failure("making changes as they came", &failure));
        Ok(self.settle(plan, made)? == changes.count() as u64)
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
        let rows = self.query(&KEEPS_SQL.replace("{table}", &table_id("w.name")), &[Value::text(asked)])?;
        if let Some(Value::Int(number)) = rows.first().and_then(|row| row.first()) {
            self.state.number = Some(*number);
        }
        let text = |row: &Row, place: usize| crate::system::optional_text(row.get(place));
        let of =
            |name: &String| rows.iter().find(|row| text(row, 1).as_ref() == Some(name)).and_then(|row| text(row, 2));
        Ok(names.iter().map(of).collect())
    }
}
