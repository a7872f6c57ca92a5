//! A table of the model as this database has it, and the statements that work on sets of its rows.
//!
//! Rows go in as one array a column (`unnest`), so a statement is prepared once whatever the number of rows. A value whose type has
//! no codec goes in as text and is cast, and comes out by `::text`.

use std::fmt::Write as _;

use headwater_model::Table;
use headwater_model::sql::quote;
use headwater_model::tracking::postgres::{base_table, side_columns, side_table};
use headwater_protocol::{Row, Type, Value};

use super::codec::Codec;
use crate::{Error, TablePlan};

/// The columns of a table (`$1`: its qualified name): name, type, the base type of a domain, generated, identity.
pub(super) const COLUMNS_SQL: &str = "
    SELECT a.attname::text, quote_ident(n.nspname) || '.' || quote_ident(t.typname),
           (WITH RECURSIVE base(oid, typtype, next) AS (
                SELECT t.oid, t.typtype, t.typbasetype
                UNION ALL SELECT d.oid, d.typtype, d.typbasetype FROM base JOIN pg_catalog.pg_type d ON d.oid = base.next
                WHERE base.typtype = 'd')
            SELECT base.oid FROM base WHERE base.typtype <> 'd'),
           a.attgenerated <> '', a.attidentity = 'a'
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    WHERE a.attrelid = to_regclass(?1) AND a.attnum > 0 AND NOT a.attisdropped";

const BPCHAR: u32 = 1042;

/// A table as the database has it.
#[derive(Debug)]
pub(super) struct Shape {
    base: String,
    side: String,
    /// The columns of the side table that stand for columns of this one: place here, name there.
    side_columns: Vec<(usize, String)>,
    /// In the model's order.
    pub(super) columns: Vec<Column>,
    /// Places of the key's columns.
    pub(super) key: Vec<usize>,
    /// Places of the partition's columns.
    pub(super) partition: Vec<usize>,
}

/// A column as the database has it.
#[derive(Debug)]
pub(super) struct Column {
    /// Its name.
    pub(super) name: String,
    /// How its values are spelled.
    pub(super) codec: Codec,
    /// Read by `::text`.
    is_read_as_text: bool,
    /// The type that parameters are cast to.
    cast: Option<String>,
    /// The database makes its value.
    is_generated: bool,
    /// GENERATED ALWAYS AS IDENTITY: taken from an insert by OVERRIDING SYSTEM VALUE, never updated.
    is_identity: bool,
}

/// What a statement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Fetch,
    FetchLock,
    /// A row whose key exists is left out.
    Insert,
    /// A row whose key exists refuses all of them. ON CONFLICT costs a third more.
    InsertNew,
    Update,
    Delete,
    Whole,
    Changes,
}

impl Verb {
    /// How many there are.
    pub(super) const COUNT: usize = 8;
}

impl Shape {
    /// Joins the model's table with the rows of [`COLUMNS_SQL`].
    pub(super) fn new(plan: &TablePlan, found: &[Row]) -> Result<Shape, Error> {
        let table = &plan.table;
        if found.is_empty() {
            return Err(missing(format!("table {} is not in the database", base_table(table))));
        }
        let column = |column: &headwater_model::Column| {
            let row = found.iter().find(|row| row.first() == Some(&Value::text(column.name.as_str())));
            let row =
                row.ok_or_else(|| missing(format!("table {} has no column {:?}", base_table(table), column.name)))?;
            read_column(table, &column.name, column.kind.base, row)
        };
        Ok(Shape {
            base: base_table(table),
            side: side_table(table),
            side_columns: side_columns(table),
            columns: table.columns.iter().map(column).collect::<Result<_, _>>()?,
            key: table.key.clone(),
            partition: table.partition.iter().flat_map(|p| p.columns.clone()).collect(),
        })
    }

    /// The columns that an insert writes.
    pub(super) fn inserted(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|place| !self.columns[*place].is_generated).collect()
    }

    /// The columns that an update's parameters hold: the key's, and those that it sets.
    pub(super) fn updated(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|place| self.key.contains(place) || self.is_set(*place)).collect()
    }

    /// Whether an update sets any column.
    pub(super) fn sets_any(&self) -> bool {
        (0..self.columns.len()).any(|place| self.is_set(place))
    }

    fn is_set(&self, place: usize) -> bool {
        let column = &self.columns[place];
        !self.key.contains(&place) && !column.is_generated && !column.is_identity
    }

    /// The statement's SQL.
    pub(super) fn sql(&self, verb: Verb) -> String {
        match verb {
            Verb::Fetch => self.fetch(false),
            Verb::FetchLock => self.fetch(true),
            Verb::Insert => self.insert(true),
            Verb::InsertNew => self.insert(false),
            Verb::Update => self.update(),
            Verb::Delete => {
                format!(
                    "DELETE FROM {} AS b USING {} WHERE {}",
                    self.base,
                    self.unnest(&self.key, 1, "u"),
                    self.is_key("b", "u")
                )
            }
            Verb::Whole => self.whole(),
            Verb::Changes => self.changes(),
        }
    }

    fn fetch(&self, lock: bool) -> String {
        let (base, keys) = (&self.base, self.unnest(&self.key, 1, "u"));
        let mut sql = format!("SELECT {} FROM {base} AS b JOIN {keys} ON {}", self.read_all(), self.is_key("b", "u"));
        if lock {
            // Sorted first, then locked: in key order.
            let order = list(&self.key, |place| format!("b.{}", self.columns[place].quoted()));
            let _ = write!(sql, " ORDER BY {order} FOR UPDATE OF b");
        }
        sql
    }

    fn insert(&self, is_careful: bool) -> String {
        let columns = self.inserted();
        let key = list(&self.key, |place| self.columns[place].quoted());
        let conflict = if is_careful { format!(" ON CONFLICT ({key}) DO NOTHING") } else { String::new() };
        let overriding = if self.columns.iter().any(|c| c.is_identity) { " OVERRIDING SYSTEM VALUE" } else { "" };
        format!(
            "INSERT INTO {} AS b ({}){overriding} SELECT {} FROM {}{conflict} RETURNING {}",
            self.base,
            list(&columns, |place| self.columns[place].quoted()),
            list(&columns, |place| self.columns[place].written(place, "u")),
            self.unnest(&columns, 1, "u"),
            list(&self.key, |place| self.columns[place].read(&format!("b.{}", self.columns[place].quoted()))),
        )
    }

    fn update(&self) -> String {
        let columns = self.updated();
        let set: Vec<usize> = columns.iter().copied().filter(|place| self.is_set(*place)).collect();
        let assign =
            |place: usize| format!("{} = {}", self.columns[place].quoted(), self.columns[place].written(place, "u"));
        format!(
            "UPDATE {} AS b SET {} FROM {} WHERE {}",
            self.base,
            list(&set, assign),
            self.unnest(&columns, 1, "u"),
            self.is_key("b", "u")
        )
    }

    /// Parameters: the partitions.
    fn whole(&self) -> String {
        let sql = format!("SELECT {} FROM {} AS b", self.read_all(), self.base);
        match self.partition.as_slice() {
            [] => sql,
            [place] => {
                let column = &self.columns[*place];
                let cast = column.cast.as_ref().map(|cast| format!("::{cast}[]")).unwrap_or_default();
                format!("{sql} WHERE b.{} = ANY($1::{}[]{cast})", column.quoted(), column.codec.parameter().0)
            }
            places => format!("{sql} WHERE {}", self.is_among(places, 1)),
        }
    }

    /// Parameters: the partitions, the watermark's end and its transactions, our own, the wanted partitions.
    ///
    /// What a watermark has not seen is what came after its end, and what was open then: two looks into the index. What becomes of
    /// a row that was touched is read from the table itself, so it does not matter in what order a transaction's triggers noted it.
    fn changes(&self) -> String {
        let places = &self.partition;
        let (end, open, own) = (places.len() + 1, places.len() + 2, places.len() + 3);
        let side = |version: &str| {
            let side = &self.side;
            if places.is_empty() {
                return format!("SELECT t.* FROM {side} AS t WHERE t.version {version}");
            }
            let is_in = list_with(places, " AND ", |place| {
                format!("t.{} = {}", self.side_column(place), self.columns[place].written(place, "u"))
            });
            format!(
                "SELECT t.* FROM {} JOIN {side} AS t ON {is_in} AND t.version {version}",
                self.unnest(places, 1, "u")
            )
        };
        let key = self.columns[self.key[0]].quoted();
        let lives = match places.as_slice() {
            [] => format!("b.{key} IS NOT NULL"),
            _ => format!("({}) IS TRUE", list_with(places, " AND ", |place| self.same_side(place))),
        };
        let elsewhere = match places.as_slice() {
            [] => String::new(),
            _ => format!(" WHERE {lives} OR ({}) IS NOT TRUE", self.is_among(places, own + 1)),
        };
        let columns = list(&(0..self.columns.len()).collect::<Vec<_>>(), |place| {
            let column = &self.columns[place];
            let name = column.quoted();
            let value = if self.key.contains(&place) {
                format!("coalesce(b.{name}, s.{})", self.side_column(place))
            } else {
                format!("b.{name}")
            };
            column.read(&value)
        });
        format!(
            "SELECT s.version = ${own}::xid8, {lives}, {columns} FROM ({} UNION ALL {}) AS s LEFT JOIN {} AS b ON {}{elsewhere}",
            side(&format!(">= ${end}::xid8")),
            side(&format!("= ANY(${open}::xid8[])")),
            self.base,
            list_with(&self.key, " AND ", |place| self.same_side(place)),
        )
    }

    fn same_side(&self, place: usize) -> String {
        format!("b.{} = s.{}", self.columns[place].quoted(), self.side_column(place))
    }

    /// The name in the side table, in quotes, of a column of the key or the partition.
    fn side_column(&self, place: usize) -> &str {
        let found = self.side_columns.iter().find(|(of, _)| *of == place);
        found
            .map_or_else(|| unreachable!("column {place} is neither of the key nor of the partition"), |(_, name)| name)
    }

    fn read_all(&self) -> String {
        self.columns.iter().map(|c| c.read(&format!("b.{}", c.quoted()))).collect::<Vec<_>>().join(", ")
    }

    fn is_key(&self, left: &str, right: &str) -> String {
        self.equal(&self.key, left, right)
    }

    /// `left` is a table, `right` an unnested parameter.
    fn equal(&self, places: &[usize], left: &str, right: &str) -> String {
        list_with(places, " AND ", |place| {
            let column = &self.columns[place];
            format!("{left}.{} = {}", column.quoted(), column.written(place, right))
        })
    }

    fn is_among(&self, places: &[usize], first: usize) -> String {
        format!(
            "({}) IN (SELECT {} FROM {})",
            list(places, |place| format!("b.{}", self.columns[place].quoted())),
            list(places, |place| self.columns[place].written(place, "w")),
            self.unnest(places, first, "w")
        )
    }

    /// Parameters from `$first` on, an array for each column, as the table `alias` with columns `c<place>`.
    fn unnest(&self, places: &[usize], first: usize, alias: &str) -> String {
        let mut parameter = first;
        let arrays = list(places, |place| {
            parameter += 1;
            format!("${}::{}[]", parameter - 1, self.columns[place].codec.parameter().0)
        });
        format!("unnest({arrays}) AS {alias}({})", list(places, |place| format!("c{place}")))
    }
}

impl Column {
    fn quoted(&self) -> String {
        quote(&self.name)
    }

    fn read(&self, value: &str) -> String {
        if self.is_read_as_text { format!("{value}::text") } else { value.to_owned() }
    }

    fn written(&self, place: usize, alias: &str) -> String {
        match &self.cast {
            Some(cast) => format!("{alias}.c{place}::{cast}"),
            None => format!("{alias}.c{place}"),
        }
    }
}

fn read_column(table: &Table, name: &str, kind: Type, row: &[Value]) -> Result<Column, Error> {
    let (Some(Value::Text(declared)), Some(Value::Int(oid)), Some(generated), Some(identity)) =
        (row.get(1), row.get(2), row.get(3), row.get(4))
    else {
        return Err(Error::Database {
            context: "reading the catalogue".into(),
            detail: format!("column {name:?}: {row:?}"),
        });
    };
    let declared = String::from_utf8_lossy(declared).into_owned();
    let oid = *oid as u32;
    let (codec, is_read_as_text) = match Codec::of(oid) {
        Some(codec) if codec.kind() == kind => (codec, false),
        _ if kind == Type::Text => (Codec::Text, true),
        _ => {
            let what = format!(
                "column {name:?} of table {} is {declared}, but {} in the model",
                base_table(table),
                kind.name()
            );
            return Err(missing(what));
        }
    };
    // Blanks at the end count in text, not in bpchar: compared as its own type.
    let cast = (is_read_as_text || oid == BPCHAR).then_some(declared);
    let (is_generated, is_identity) = (*generated == Value::Bool(true), *identity == Value::Bool(true));
    Ok(Column { name: name.to_owned(), codec, is_read_as_text, cast, is_generated, is_identity })
}

fn missing(what: String) -> Error {
    Error::Setup { what, mend: "run `headwater check` and change the model or the table".into() }
}

fn list(places: &[usize], item: impl FnMut(usize) -> String) -> String {
    list_with(places, ", ", item)
}

fn list_with(places: &[usize], separator: &str, item: impl FnMut(usize) -> String) -> String {
    places.iter().copied().map(item).collect::<Vec<_>>().join(separator)
}
