//! A table of the model as this database has it, and the statements that work on sets of its rows.
//!
//! Rows go in as one array a column (`unnest`), so a statement is prepared once whatever the number of rows. A value whose type has
//! no codec goes in as text and is cast, and comes out by `::text`.

use std::fmt::Write as _;

use headwater_model::Table;
use headwater_model::sql::{literal, quote};
use headwater_model::tracking::postgres::{
    base_table, key_columns, note_again, partition_columns, side_table, table_id,
};
use headwater_protocol::{Row, Type, Value, ValueRef};

use super::bound::Bound;
use super::codec::{Codec, Scratch};
use super::raw;
use crate::{Error, TablePlan};

/// The columns of a table (`$1`: its qualified name): name, type, the base type of a domain, generated, identity, enum, the collation
/// if that is not deterministic; and all by which [`unaltered_sql`] knows it again.
const COLUMNS_SQL: &str = "
    SELECT a.attname::text, quote_ident(n.nspname) || '.' || quote_ident(t.typname),
           (WITH RECURSIVE base(oid, typtype, next) AS (
                SELECT t.oid, t.typtype, t.typbasetype
                UNION ALL SELECT d.oid, d.typtype, d.typbasetype FROM base JOIN pg_catalog.pg_type d ON d.oid = base.next
                WHERE base.typtype = 'd')
            SELECT base.oid FROM base WHERE base.typtype <> 'd'),
           a.attgenerated <> '', a.attidentity = 'a', t.typtype = 'e',
           (SELECT quote_ident(c.collnamespace::regnamespace::text) || '.' || quote_ident(c.collname)
            FROM pg_catalog.pg_collation c WHERE c.oid = a.attcollation AND NOT c.collisdeterministic),
           concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attgenerated, a.attidentity)
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

pub(super) fn columns_sql() -> String {
    COLUMNS_SQL.replace("{table}", &table_id("?1"))
}

/// What the columns of a table were when its shape was read.
pub(super) fn described(found: &[Row]) -> String {
    found.iter().map(|row| crate::catalogue::text(row, 7)).collect::<Vec<_>>().join(",")
}

/// Whether a table's columns are what they were.
pub(super) fn unaltered_sql(table: &str, described: &str) -> String {
    format!(
        "(SELECT coalesce(string_agg(concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attgenerated, a.attidentity), ',' \
         ORDER BY a.attnum), '') = {} FROM pg_catalog.pg_attribute a \
         WHERE a.attrelid = {} AND a.attnum > 0 AND NOT a.attisdropped)",
        literal(described),
        table_id(&literal(table))
    )
}

const BPCHAR: u32 = 1042;

/// Stands for a relation.
const ROWS: &str = "{rows}";

/// A table as the database has it.
#[derive(Debug)]
pub(super) struct Shape {
    base: String,
    side: String,
    /// The statement that notes rows, with [`ROWS`] for where they come from.
    noting: String,
    /// The side table's columns of the key, in its order.
    side_key: Vec<String>,
    /// In the model's order.
    pub(super) columns: Vec<Column>,
    /// Places of the key's columns.
    pub(super) key: Vec<usize>,
    /// The partition's columns.
    pub(super) partition: Vec<PartitionColumn>,
    /// Places of the columns that decide in which partition a row is: the partition's own, or those that refer to its parent.
    pub(super) deciding: Vec<usize>,
    /// [`TablePlan::noted`].
    pub(super) noted: Vec<usize>,
    /// Joins a row `b` with the tables from which it takes its partition; those that must be there, and otherwise.
    up: String,
    up_left: String,
    /// The parent, and joins from it on.
    parent: Option<Parent>,
}

/// A column of the partition.
#[derive(Debug)]
pub(super) struct PartitionColumn {
    /// What it is, of the row `b`.
    value: String,
    /// Its name in the side table, in quotes.
    side: String,
    pub(super) column: Column,
}

/// The table whose rows give theirs their partition.
#[derive(Debug)]
struct Parent {
    /// Places of the columns that refer to it, and its key's columns `p`.
    link: Vec<(usize, String)>,
    /// It as `p`, with the tables above.
    from: String,
    /// The partition's columns there.
    values: Vec<String>,
    /// The names of all of them.
    tables: Vec<String>,
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
    pub(super) cast: Option<String>,
    /// The database makes its value.
    pub(super) is_generated: bool,
    /// GENERATED ALWAYS AS IDENTITY: taken from an insert by OVERRIDING SYSTEM VALUE, never updated.
    is_identity: bool,
    /// Which values are equal.
    equality: Equality,
}

/// Which values of a column the database calls equal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Equality {
    /// Those with the same bytes.
    Bytes,
    /// Others too, by their type.
    Type,
    /// Others too, by this collation.
    Collation(String),
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
    /// The same without telling which.
    InsertPlain,
    Update,
    /// Rows that are the same as their old images.
    UpdateSame,
    Delete,
    /// Rows that are the same as their old images.
    DeleteSame,
    Whole,
    Changes,
    /// The same without what we have changed ourselves.
    ChangesOfOthers,
    PartitionsBelow,
    PartitionsBelowLock,
    /// Rows as a remote has them, noted as changed where they say that they lie.
    NoteAgain,
}

impl Verb {
    /// How many there are.
    pub(super) const COUNT: usize = 15;
}

impl Shape {
    /// Joins the model's table with the rows of [`columns_sql`]; `root`: those of the table that has the partition's columns.
    pub(super) fn new(plan: &TablePlan, found: &[Row], root: &[Row]) -> Result<Shape, Error> {
        let (table, lineage) = (&plan.table, plan.lineage());
        let columns: Vec<Column> =
            table.columns.iter().map(|column| find_column(table, column, found)).collect::<Result<_, _>>()?;
        let values = lineage.partition(0, "b").into_iter().zip(partition_columns(&lineage));
        let partition = lineage.root().partition_columns().zip(values).map(|(column, (value, side))| {
            Ok(PartitionColumn { value, side, column: find_column(lineage.root(), column, root)? })
        });
        let parent = plan.parents.first().map(|parent| {
            let above = lineage.of_parent();
            let key = parent.key_columns().map(|column| format!("p.{}", quote(&column.name)));
            Parent {
                link: plan.through.iter().copied().zip(key).collect(),
                from: format!("{} AS p{}", base_table(parent), above.up(0, "p", "JOIN", &base_table)),
                values: above.partition(0, "p"),
                tables: std::iter::once("p".to_owned()).chain(above.joined_up(0)).collect(),
            }
        });
        Ok(Shape {
            base: base_table(table),
            side: side_table(&lineage),
            noting: note_again(&lineage, ROWS),
            side_key: key_columns(table),
            key: table.key.clone(),
            partition: partition.collect::<Result<_, Error>>()?,
            deciding: plan.deciding().to_vec(),
            noted: plan.noted(),
            up: lineage.up(0, "b", "JOIN", &base_table),
            up_left: lineage.up(0, "b", "LEFT JOIN", &base_table),
            parent,
            columns,
        })
    }

    /// Places of the columns that refer to the parent, in the order of its key.
    pub(super) fn link(&self) -> impl Iterator<Item = usize> {
        self.parent.iter().flat_map(|parent| &parent.link).map(|(place, _)| *place)
    }

    /// The columns that an insert writes.
    pub(super) fn inserted(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|place| !self.columns[*place].is_generated).collect()
    }

    /// All columns.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.columns.len()).collect()
    }

    /// The columns that an update's parameters hold: the key's, and those that it sets.
    pub(super) fn updated(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|place| self.key.contains(place) || self.is_set(*place)).collect()
    }

    /// The columns that an update sets.
    pub(super) fn set(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|place| self.is_set(*place)).collect()
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
            Verb::Insert => format!("{} {}", self.insert(true), self.returning()),
            Verb::InsertNew => format!("{} {}", self.insert(false), self.returning()),
            Verb::InsertPlain => self.insert(false),
            Verb::Update if self.deciding.is_empty() => self.update(),
            Verb::Update => format!("{} {}", self.update(), self.returning()),
            Verb::UpdateSame => self.update_same(),
            Verb::Delete => {
                format!("DELETE FROM {} AS b USING {} WHERE {}", self.base, self.unnest(&self.key), self.is_key())
            }
            Verb::DeleteSame => {
                let old = self.unnest(&self.all());
                format!("DELETE FROM {} AS b USING {old} WHERE {} AND {}", self.base, self.is_key(), self.is_same())
            }
            Verb::Whole => self.whole(),
            Verb::Changes => self.changes(&self.changed(1)),
            Verb::ChangesOfOthers => self.changes(&self.changed_by_others()),
            Verb::PartitionsBelow => self.partitions_below(false),
            Verb::PartitionsBelowLock => self.partitions_below(true),
            Verb::NoteAgain => self.note_again(),
        }
    }

    fn fetch(&self, lock: bool) -> String {
        let (base, keys) = (&self.base, self.unnest(&self.key));
        let mut sql = format!("SELECT {} FROM {base} AS b JOIN {keys} ON {}", self.read_all(), self.is_key());
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
            "INSERT INTO {} AS b ({}){overriding} SELECT {} FROM {}{conflict}",
            self.base,
            list(&columns, |place| self.columns[place].quoted()),
            list(&columns, |place| self.columns[place].written(place, "u")),
            self.unnest(&columns),
        )
    }

    /// The columns that [`Shape::returning`] gives: the key's, and those that decide where the row is.
    pub(super) fn returned(&self) -> Vec<usize> {
        self.key.iter().chain(&self.deciding).copied().collect()
    }

    fn note_again(&self) -> String {
        let named =
            |place: usize| format!("{} AS {}", self.columns[place].written(place, "u"), self.columns[place].quoted());
        let rows = format!("(SELECT {} FROM {})", list(&self.noted, named), self.unnest(&self.noted));
        self.noting.replace(ROWS, &rows)
    }

    /// A trigger of the application may store a row elsewhere than it was sent.
    fn returning(&self) -> String {
        let read = |place: usize| self.columns[place].read(&format!("b.{}", self.columns[place].quoted()));
        format!("RETURNING {}", list(&self.returned(), read))
    }

    fn update(&self) -> String {
        let (columns, set) = (self.updated(), self.set());
        let assign =
            |place: usize| format!("{} = {}", self.columns[place].quoted(), self.columns[place].written(place, "u"));
        format!(
            "UPDATE {} AS b SET {} FROM {} WHERE {}",
            self.base,
            list(&set, assign),
            self.unnest(&columns),
            self.is_key()
        )
    }

    /// Parameters: all columns of the old images, then the columns that are set of the new ones. Of columns that are written as they are.
    fn update_same(&self) -> String {
        let (old, set) = (self.all(), self.set());
        let of = |place: usize| format!("{}[]", self.columns[place].codec.parameter().0);
        let arrays =
            (1..).zip(old.iter().chain(&set)).map(|(number, place): (usize, _)| format!("${number}::{}", of(*place)));
        format!(
            "UPDATE {} AS b SET {} FROM unnest({}) AS u({}, {}) WHERE {} AND {}",
            self.base,
            list(&set, |place| format!("{} = u.n{place}", self.columns[place].quoted())),
            arrays.collect::<Vec<_>>().join(", "),
            list(&old, |place| format!("c{place}")),
            list(&set, |place| format!("n{place}")),
            self.is_key(),
            self.is_same(),
        )
    }

    /// Whether a row `b` is the same as a parameter `u`, as the judging of conflicts has it: PostgreSQL too calls NaN equal to NaN, -0.0 to
    /// 0.0 and 1.50 to 1.5. Texts are compared byte by byte, whatever their collation is.
    fn is_same(&self) -> String {
        list_with(&self.all(), " AND ", |place| {
            let column = &self.columns[place];
            let (stored, given) = (format!("b.{}", column.quoted()), format!("u.c{place}"));
            match column.codec {
                Codec::Text => format!("{stored} COLLATE \"C\" IS NOT DISTINCT FROM {given}"),
                Codec::Json => format!("{stored}::text COLLATE \"C\" IS NOT DISTINCT FROM {given}::text"),
                _ => format!("{stored} IS NOT DISTINCT FROM {given}"),
            }
        })
    }

    /// Parameters: the partitions.
    fn whole(&self) -> String {
        format!("SELECT {} {}", self.read_all(), self.whole_source())
    }

    /// The same for the rows with a value in one of these columns.
    pub(super) fn valued(&self, columns: &[u32]) -> String {
        let columns = columns.iter().map(|place| format!("b.{} IS NOT NULL", self.columns[*place as usize].quoted()));
        let filter = if self.partition.is_empty() { "WHERE" } else { "AND" };
        format!("{} {filter} ({})", self.whole(), columns.collect::<Vec<_>>().join(" OR "))
    }

    /// The same rows without a column.
    pub(super) fn whole_rows(&self) -> String {
        format!("SELECT {}", self.whole_source())
    }

    fn whole_source(&self) -> String {
        let from = format!("FROM {} AS b{}", self.base, self.up);
        match self.partition.as_slice() {
            [] => from,
            [PartitionColumn { value, column, .. }] => {
                let cast = column.cast.as_ref().map(|cast| format!("::{cast}[]")).unwrap_or_default();
                format!("{from} WHERE {value} = ANY($1::{}[]{cast})", column.codec.parameter().0)
            }
            _ => format!("{from} WHERE {}", self.is_among(1)),
        }
    }

    /// Parameters: the partitions, the watermark's end and its transactions, our own, the wanted partitions.
    ///
    /// What becomes of a row that was touched is read from the table itself, so it does not matter in what order a transaction's
    /// triggers noted it.
    fn changes(&self, changed: &str) -> String {
        let partition = &self.partition;
        let own = partition.len() + 3;
        let same_key = self.key.iter().zip(&self.side_key);
        let same_key = same_key.map(|(place, side)| format!("b.{} = s.{side}", self.columns[*place].quoted()));
        let is_there = format!("b.{} IS NOT NULL", self.columns[self.key[0]].quoted());
        let lives = match partition.as_slice() {
            [] => is_there.clone(),
            _ => {
                // The key is joined: what is left to compare is where the row is now.
                let here = partition.iter().map(|of| format!("{} = s.{}", of.value, of.side));
                format!("({}) IS TRUE", here.collect::<Vec<_>>().join(" AND "))
            }
        };
        let elsewhere = match partition.as_slice() {
            [] => String::new(),
            _ => format!(" WHERE {lives} OR ({}) IS NOT TRUE", self.is_among(own + 1)),
        };
        let columns = list(&self.all(), |place| {
            let column = &self.columns[place];
            let name = column.quoted();
            let value = match self.key.iter().position(|key| *key == place) {
                Some(index) => format!("coalesce(b.{name}, s.{})", self.side_key[index]),
                None => format!("b.{name}"),
            };
            column.read(&value)
        });
        format!(
            "SELECT s.version = ${own}::xid8, {lives}, {is_there}, {columns} FROM ({changed}) AS s LEFT JOIN {} AS b ON {}{}{elsewhere}",
            self.base,
            same_key.collect::<Vec<_>>().join(" AND "),
            self.up_left,
        )
    }

    /// The rows of the side table that others have changed. Parameters: the first of those of [`Shape::changes`], up to our own.
    pub(super) fn changed_rows(&self) -> String {
        let own = self.partition.len() + 3;
        format!("SELECT FROM ({}) AS s WHERE s.version IS DISTINCT FROM ${own}::xid8", self.changed(1))
    }

    /// What a watermark has not seen is what came after its end, and what was open then: two looks into the index.
    /// Parameters from `$first` on: the partitions, the watermark's end and its transactions.
    pub(super) fn changed(&self, first: usize) -> String {
        let (end, open) = (first + self.partition.len(), first + self.partition.len() + 1);
        let after = self.noted(first, None, &format!(">= ${end}::xid8"));
        format!("{after} UNION ALL {}", self.noted_by(first, open))
    }

    /// The same without what our own transaction has changed, which is looked past rather than read. Parameters: those of
    /// [`Shape::changes`].
    fn changed_by_others(&self) -> String {
        let (end, open, own) = (self.partition.len() + 1, self.partition.len() + 2, self.partition.len() + 3);
        let before_own = self.noted(1, None, &format!(">= ${end}::xid8 AND t.version < ${own}::xid8"));
        let after_own = self.noted(1, None, &format!("> ${own}::xid8 AND t.version >= ${end}::xid8"));
        format!("{before_own} UNION ALL {after_own} UNION ALL {}", self.noted_by(1, open))
    }

    /// Rows of the side table that the transactions `$open` have noted.
    fn noted_by(&self, first: usize, open: usize) -> String {
        self.noted(first, Some(format!("unnest(${open}::xid8[]) AS o(version)")), "= o.version")
    }

    /// Rows of the side table of the partitions from `$first` on, with versions like this, or like this for each of `versions`.
    ///
    /// `OFFSET 0` has each of them looked up by all columns of the index. A plan that was made while the table was small joins otherwise, and
    /// goes on to read what all partitions have had since the watermark, for each of them.
    fn noted(&self, first: usize, versions: Option<String>, version: &str) -> String {
        let partition = &self.partition;
        let partitions = (!partition.is_empty()).then(|| self.partitions(first, "u"));
        let each = partitions.into_iter().chain(versions).collect::<Vec<_>>().join(" CROSS JOIN ");
        let here = partition.iter().enumerate();
        let here = here.map(|(place, of)| format!("t.{} = {} AND ", of.side, of.column.written(place, "u")));
        let rows = format!("SELECT t.* FROM {} AS t WHERE {}t.version {version}", self.side, here.collect::<String>());
        match each.as_str() {
            "" => rows,
            _ => format!("SELECT t.* FROM {each} CROSS JOIN LATERAL ({rows} OFFSET 0) AS t"),
        }
    }

    /// Parameters: keys of the parent. Gives the number of each that is there, from 1, and the partition of what refers to it.
    fn partitions_below(&self, lock: bool) -> String {
        let Some(parent) = &self.parent else { return String::new() };
        let places: Vec<usize> = self.link().collect();
        let arrays = (1..).zip(&places).map(|(parameter, place): (usize, _)| {
            format!("${parameter}::{}[]", self.columns[*place].codec.parameter().0)
        });
        let on =
            parent.link.iter().map(|(place, key)| format!("{key} = {}", self.columns[*place].written(*place, "u")));
        let values = parent.values.iter().zip(&self.partition).map(|(value, of)| of.column.read(value));
        format!(
            "SELECT u.n, {} FROM unnest({}) WITH ORDINALITY AS u({}, n) JOIN {} ON {}{}",
            values.collect::<Vec<_>>().join(", "),
            arrays.collect::<Vec<_>>().join(", "),
            list(&places, |place| format!("c{place}")),
            // The parent is tied to the key, and what is above it to the parent.
            if parent.tables.len() == 1 { parent.from.clone() } else { format!("({})", parent.from) },
            on.collect::<Vec<_>>().join(" AND "),
            if lock { format!(" FOR KEY SHARE OF {}", parent.tables.join(", ")) } else { String::new() },
        )
    }

    /// Whether the database calls partitions equal whose bytes differ.
    pub(super) fn has_spelled_partitions(&self) -> bool {
        self.partition.iter().any(|of| of.column.equality != Equality::Bytes)
    }

    /// Parameters: partitions. Gives for each of them, in their order, the number of the first that is equal to it, from 1.
    pub(super) fn partition_classes(&self) -> String {
        let values = self.partition.iter().enumerate().map(|(place, of)| {
            let collation = match &of.column.equality {
                Equality::Collation(name) => format!(" COLLATE {name}"),
                Equality::Bytes | Equality::Type => String::new(),
            };
            format!("{}{collation}", of.column.written(place, "u"))
        });
        let arrays = (1..).zip(&self.partition);
        let arrays = arrays.map(|(number, of)| format!("${number}::{}[]", of.column.codec.parameter().0));
        let names: Vec<String> = (0..self.partition.len()).map(|place| format!("c{place}")).collect();
        format!(
            "SELECT min(u.n) OVER (PARTITION BY {}) FROM unnest({}) WITH ORDINALITY AS u({}, n) ORDER BY u.n",
            values.collect::<Vec<_>>().join(", "),
            arrays.collect::<Vec<_>>().join(", "),
            names.join(", ")
        )
    }

    /// Parameters: partitions. Gives how the rows in them spell their partitions.
    pub(super) fn spellings(&self) -> String {
        self.each_spelling(&self.whole_source())
    }

    /// Parameters: the first of those of [`Shape::changes`], and the wanted partitions. Gives how the rows that have changed and lie in these
    /// spell their partitions.
    pub(super) fn changed_spellings(&self) -> String {
        let same_key = self.key.iter().zip(&self.side_key);
        let same_key = same_key.map(|(place, side)| format!("b.{} = s.{side}", self.columns[*place].quoted()));
        self.each_spelling(&format!(
            "FROM ({}) AS s JOIN {} AS b ON {}{} WHERE {}",
            self.changed(1),
            self.base,
            same_key.collect::<Vec<_>>().join(" AND "),
            self.up,
            self.is_among(self.partition.len() + 3),
        ))
    }

    /// The partitions of some rows, each spelling once: DISTINCT would give one of those that are equal.
    fn each_spelling(&self, source: &str) -> String {
        let (first, spelled): (Vec<String>, Vec<String>) = self
            .partition
            .iter()
            .map(|of| {
                (format!("(array_agg({}))[1]", of.column.read(&of.value)), format!("{}::text COLLATE \"C\"", of.value))
            })
            .unzip();
        format!("SELECT {} {source} GROUP BY {}", first.join(", "), spelled.join(", "))
    }

    fn read_all(&self) -> String {
        self.columns.iter().map(|c| c.read(&format!("b.{}", c.quoted()))).collect::<Vec<_>>().join(", ")
    }

    /// Whether the key of a row `b` is that of a parameter `u`.
    fn is_key(&self) -> String {
        list_with(&self.key, " AND ", |place| {
            let column = &self.columns[place];
            format!("b.{} = {}", column.quoted(), column.written(place, "u"))
        })
    }

    fn is_among(&self, first: usize) -> String {
        let values: Vec<&str> = self.partition.iter().map(|of| of.value.as_str()).collect();
        let wanted = self.partition.iter().enumerate().map(|(place, of)| of.column.written(place, "w"));
        format!(
            "({}) IN (SELECT {} FROM {})",
            values.join(", "),
            wanted.collect::<Vec<_>>().join(", "),
            self.partitions(first, "w")
        )
    }

    /// Partitions as parameters from `$first` on, as the table `alias` with columns `c0`, `c1`, ...
    fn partitions(&self, first: usize, alias: &str) -> String {
        let arrays = (first..).zip(&self.partition);
        let arrays = arrays.map(|(number, of)| format!("${number}::{}[]", of.column.codec.parameter().0));
        let names: Vec<String> = (0..self.partition.len()).map(|place| format!("c{place}")).collect();
        format!("unnest({}) AS {alias}({})", arrays.collect::<Vec<_>>().join(", "), names.join(", "))
    }

    /// Parameters, an array for each column, as the table `u` with columns `c<place>`.
    fn unnest(&self, places: &[usize]) -> String {
        let arrays = (1..).zip(places);
        let arrays = arrays
            .map(|(number, place): (usize, _)| format!("${number}::{}[]", self.columns[*place].codec.parameter().0));
        format!("unnest({}) AS u({})", arrays.collect::<Vec<_>>().join(", "), list(places, |place| format!("c{place}")))
    }
}

impl Column {
    /// A value of each of some rows, as a parameter.
    pub(super) fn bound<'r>(&self, values: impl ExactSizeIterator<Item = Option<&'r Value>>) -> Result<Bound, Error> {
        Bound::column(&self.name, self.codec, values)
    }

    /// A value of a result.
    pub(super) fn decode<'a>(&self, raw: Option<&'a [u8]>, scratch: &'a mut Scratch) -> Result<ValueRef<'a>, Error> {
        let Some(raw) = raw else { return Ok(ValueRef::Null) };
        let value = self.codec.decode(raw, scratch);
        value.ok_or_else(|| raw::unreadable(&self.name, "not of the column's type"))
    }

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

fn find_column(table: &Table, column: &headwater_model::Column, found: &[Row]) -> Result<Column, Error> {
    if found.is_empty() {
        return Err(missing(format!("table {} is not in the database", base_table(table))));
    }
    let row = found.iter().find(|row| row.first() == Some(&Value::text(column.name.as_str())));
    let row = row.ok_or_else(|| missing(format!("table {} has no column {:?}", base_table(table), column.name)))?;
    read_column(table, &column.name, column.kind.base, row)
}

fn read_column(table: &Table, name: &str, kind: Type, row: &[Value]) -> Result<Column, Error> {
    let (Some(Value::Text(declared)), Some(Value::Int(oid)), Some(generated), Some(identity), Some(is_enum)) =
        (row.get(1), row.get(2), row.get(3), row.get(4), row.get(5))
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
    let is_by_type = oid == BPCHAR
        || is_read_as_text && *is_enum != Value::Bool(true)
        || matches!(kind, Type::Real | Type::Decimal | Type::Json);
    let equality = match crate::system::optional_text(row.get(6)) {
        Some(collation) => Equality::Collation(collation),
        None if is_by_type => Equality::Type,
        None => Equality::Bytes,
    };
    let name = name.to_owned();
    Ok(Column { name, codec, is_read_as_text, cast, is_generated, is_identity, equality })
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
