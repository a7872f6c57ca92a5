//! What is synchronized, and how: tables, partitions, directions, conflict rules.
//!
//! A [`Model`] is read from one TOML file (`parse`), checked as it is read, and from then on a plain value. The rest of this
//! crate turns it into SQL: the remote's schema and change tracking (`remote_sql`), and the change tracking of the
//! consolidated database (`tracking`). It knows no socket, clock, file or randomness.
//!
//! *Caveats.* The model knows nothing of the catalogue: whether its tables exist as described is `headwater check`'s question.

mod column_type;
mod lineage;
mod order;
pub mod parse;
mod public;
pub mod remote_sql;
pub mod script;
pub mod sql;
pub mod tracking;
pub mod validate;
pub mod write;

use headwater_protocol::Type;
use serde::{Deserialize, Serialize};

pub use column_type::ColumnTypeError;
pub use lineage::Lineage;
pub use public::{FromJsonError, JSON_BYTES_MAX};

/// The most tables in a model.
pub const TABLES_MAX: usize = 1_000;
/// The most columns in a table, in a partition, and the most references and unique constraints of a table. A remote reads a row and its old image
/// by one query, and SQLite gives no more than 2,000 columns.
pub const COLUMNS_MAX: usize = 990;
/// The most ways of partitioning in a model.
pub const PARTITIONS_MAX: usize = 1_000;
/// The most values of the user's own in a model.
pub const VALUES_MAX: usize = 1_000;
/// The most bytes in the name of a model, table, column or partition.
pub const NAME_BYTES_MAX: usize = 128;
/// The most digits that a decimal type may be limited to (PostgreSQL's own limit).
pub const DECIMAL_PRECISION_MAX: u16 = 1_000;

/// One version of what is synchronized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The model's name; a remote names it at each sync.
    pub name: String,
    /// The version; versions of one name live side by side.
    pub version: u32,
    /// What happens to an upload of which a row is refused. Remotes need not know.
    #[serde(default, skip_serializing_if = "OnError::is_default")]
    pub on_error: OnError,
    /// The values of the user's own that scripts may ask for, each with the query that gives it. They never leave the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<(String, String)>,
    /// The ways in which tables are partitioned.
    pub partitions: Vec<Partition>,
    /// The tables, parents before the tables that refer to them (ties in the file's order). Their places here are the table
    /// numbers on the wire.
    pub tables: Vec<Table>,
    /// References that new remotes do not enforce, by the places of table and reference: the database compares their columns in another
    /// way than by bytes. It depends on the database and is no part of the model: neither of its JSON nor of its fingerprint.
    #[serde(skip)]
    pub unenforced: Vec<(usize, usize)>,
}

/// What happens to an upload of which the consolidated database refuses a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The row's change is set aside at the remote, the rest is applied.
    #[default]
    SetAside,
    /// Nothing of the upload is applied; its changes stay pending, and the download goes on.
    Reject,
}

impl OnError {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
    fn is_default(&self) -> bool {
        *self == OnError::SetAside
    }
}

/// One way of partitioning: the values that name a partition, and who is a member of which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// The name by which tables refer to it.
    pub name: String,
    /// Names and types of the values that name one partition.
    pub columns: Vec<(String, ColumnType)>,
    /// SQL over the consolidated database that gives one row of these values for each membership of a user; its one
    /// parameter is `:s.user` (and `:s.remote_id`). Empty in the public form that remotes get.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub members: String,
}

/// One synchronized table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The schema in the consolidated database; `None` for the default one. Remotes have no schemas.
    pub schema: Option<String>,
    /// The table's name, the same at the remote.
    pub name: String,
    /// The columns that travel, in the file's order.
    pub columns: Vec<Column>,
    /// Places of the key's columns in `columns`.
    pub key: Vec<usize>,
    /// How the table is partitioned; `None`: every remote holds all of it.
    pub partition: Option<TablePartition>,
    /// Which way changes travel.
    pub direction: Direction,
    /// What happens when an uploaded change's old image is not the consolidated row.
    pub conflict: ConflictRule,
    /// Counters: places of columns of which the difference that a change makes is added up, whatever is stored. Only beside
    /// [`ConflictRule::Merge`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sum: Vec<usize>,
    /// Foreign keys to other tables of the model, enforced at the remote.
    pub references: Vec<Reference>,
    /// Unique constraints beside the key, enforced at the remote: places in `columns`.
    pub unique: Vec<Vec<usize>>,
    /// How remotes get keys for rows that they make; `None`: they make them themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_range: Option<KeyRangeRule>,
    /// Whether partitions that come whole are built once for all remotes, and served in chunks that caches keep. Remotes need not know.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// SQL of the user's own for some steps. Empty in the public form that remotes get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<script::Script>,
}

/// Ranges of integer keys that are handed to remotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRangeRule {
    /// How many keys are in a range: from 2 to [`KEY_RANGE_MAX`].
    pub size: i64,
    /// The first key ever handed out. What lies below is the consolidated database's own.
    pub from: i64,
}

/// The most keys in a range.
pub const KEY_RANGE_MAX: i64 = 1_000_000_000;
/// Where ranges begin unless the model says otherwise: far above what a sequence counts to, and within four bytes.
pub const KEY_RANGE_FROM: i64 = 1_000_000_000;

/// One column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name, the same on both sides.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: ColumnType,
    /// Whether it may be NULL at the remote.
    pub nullable: bool,
}

/// A type as the model file spells it: the wire's type and, for decimals, precision and scale (for the remote's declared type).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColumnType {
    /// The wire's type.
    pub base: Type,
    /// `(precision, scale)` of a decimal, if limited.
    pub precision: Option<(u16, u16)>,
}

/// A table's place in a way of partitioning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TablePartition {
    /// Place in [`Model::partitions`].
    pub partition: usize,
    /// Places in [`Table::columns`] of the columns that hold the partition's values, in the partition's order; none where they are
    /// those of the row that `through` refers to.
    pub columns: Vec<usize>,
    /// Place in [`Table::references`] of the foreign key by which a row takes the partition of another; `None`: it has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<usize>,
}

/// Which way a table's changes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Both ways.
    Both,
    /// To remotes only; local edits are refused by trigger.
    Download,
    /// From remotes only.
    Upload,
}

/// Which side a rule prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The consolidated database's.
    Consolidated,
    /// The remote's.
    Remote,
}

/// What happens when an uploaded change's old image is not the consolidated row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictRule {
    /// Old images are not compared; the upload is applied as it comes.
    Off,
    /// The consolidated row stays.
    ConsolidatedWins,
    /// The remote's change is made.
    RemoteWins,
    /// The image whose column (a place in [`Table::columns`]) is greater wins; equal: the greater image.
    NewerWins(usize),
    /// Column by column: one changed on one side only is taken from it; changed on both, from this side.
    Merge(Side),
}

/// A foreign key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Places in this table's columns.
    pub columns: Vec<usize>,
    /// Place of the table referred to in [`Model::tables`].
    pub table: usize,
    /// Places in that table's columns.
    pub target: Vec<usize>,
    /// `ON DELETE` at the remote.
    pub on_delete: OnDelete,
}

/// What deleting a parent does to its children at the remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDelete {
    /// The deletion is refused.
    NoAction,
    /// The children are deleted.
    Cascade,
    /// The children's columns become NULL.
    SetNull,
}

impl Model {
    /// The table with this name (letter case of ASCII apart, as in SQLite).
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name.eq_ignore_ascii_case(name))
    }
}

impl Table {
    /// The column with this name (letter case of ASCII apart, as in SQLite).
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Whether its changes at the consolidated database are noted there, for downloads to find them.
    pub fn is_tracked(&self) -> bool {
        self.direction != Direction::Upload && self.script(script::Step::DownloadCursor).is_none()
    }

    /// Why its partitions can't be built once for all remotes, if they can't.
    pub fn unshareable(&self) -> Option<&'static str> {
        if self.direction == Direction::Upload {
            return Some("nothing of it comes down");
        }
        self.script(script::Step::DownloadCursor)
            .map(|_| "its download is a script, which may give each user other rows")
    }

    /// The types of the columns, as rows travel.
    pub fn types(&self) -> Vec<Type> {
        self.columns.iter().map(|column| column.kind.base).collect()
    }

    /// The columns of the key, in key order.
    pub fn key_columns(&self) -> impl Iterator<Item = &Column> {
        self.key.iter().filter_map(|&place| self.columns.get(place))
    }

    /// The precision and scale of the counter at this place, `None` inside for an integer; `None`: no counter is there.
    pub fn counter(&self, place: usize) -> Option<Option<(u16, u16)>> {
        self.sum.contains(&place).then(|| self.columns.get(place).and_then(|column| column.kind.precision))
    }

    /// The foreign key by which a row takes the partition of another, if it does.
    pub fn through(&self) -> Option<&Reference> {
        self.partition.as_ref()?.through.and_then(|place| self.references.get(place))
    }

    /// The columns that hold the partition's values, in the partition's order; none for a table that is not partitioned, or takes its
    /// partition from another ([`Lineage`]).
    pub fn partition_columns(&self) -> impl Iterator<Item = &Column> {
        self.partition.iter().flat_map(|p| &p.columns).filter_map(|&place| self.columns.get(place))
    }
}
