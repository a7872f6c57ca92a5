//! The rules that every [`Model`] keeps, wherever it came from.
//!
//! `parse` checks the file's words and points at them; this checks the value: that indexes are within bounds, names can be names in
//! both databases, and limits hold. What the model can't know (whether its tables exist) is `headwater check`'s question.

use std::collections::HashSet;

use headwater_protocol::Type;

use crate::remote_sql::has_integer_key;
use crate::script::Step;
use crate::{
    COLUMNS_MAX, ConflictRule, Direction, KEY_RANGE_MAX, Lineage, Model, NAME_BYTES_MAX, OnDelete, PARTITIONS_MAX,
    Partition, TABLES_MAX, Table, TablePartition, VALUES_MAX,
};

/// A rule that a model breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A name is not usable.
    #[error("{what} {name:?} {fault}")]
    Name {
        /// What has the name.
        what: &'static str,
        /// The name.
        name: String,
        /// Why it can't be used.
        fault: NameFault,
    },
    /// Two things have one name (letter case of ASCII apart, as in SQLite).
    #[error("there are two {what}s named {name:?} (upper and lower case are one name in a remote)")]
    Twice {
        /// What has the name.
        what: &'static str,
        /// The second's name.
        name: String,
    },
    /// There are too many, or none where there must be one.
    #[error("{of} has {actual} {what}, expected {min} to {max}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// Whose they are.
        of: String,
        /// How many there are.
        actual: usize,
        /// The fewest allowed.
        min: usize,
        /// The most allowed.
        max: usize,
    },
    /// A place that is none.
    #[error("table {table:?}: {what} refers to place {actual}, expected a place below {len}")]
    Place {
        /// The table.
        table: String,
        /// What refers.
        what: &'static str,
        /// The place.
        actual: usize,
        /// How many places there are.
        len: usize,
    },
    /// Something else about a table.
    #[error("table {table:?}: {what}")]
    Table {
        /// The table.
        table: String,
        /// What is wrong.
        what: String,
    },
    /// The version is 0.
    #[error("the version is 0, expected 1 or more")]
    Version,
}

/// Why a name can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// There is none.
    #[error("is empty")]
    Empty,
    /// It is too long.
    #[error("is longer than {NAME_BYTES_MAX} bytes")]
    Long,
    /// It has characters that end or break a line, or NUL.
    #[error("has control characters")]
    Control,
    /// It begins as Headwater's own or SQLite's own do.
    #[error("begins with {0}, which is reserved")]
    Reserved(&'static str),
}

/// What is wrong with a name, if anything.
pub fn name_fault(name: &str) -> Option<NameFault> {
    if name.is_empty() {
        return Some(NameFault::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(NameFault::Long);
    }
    if name.chars().any(char::is_control) {
        return Some(NameFault::Control);
    }
    let begins = |prefix: &&str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    ["hw_", "sqlite_"].into_iter().find(begins).map(NameFault::Reserved)
}

/// The rules that this model breaks, in its own order; none for a valid one.
pub fn violations(model: &Model) -> Vec<Violation> {
    let mut found = Violations::default();
    found.name("model", &model.name);
    if model.version == 0 {
        found.0.push(Violation::Version);
    }
    found.count("partitions", "the model", model.partitions.len(), 0, PARTITIONS_MAX);
    found.count("tables", "the model", model.tables.len(), 1, TABLES_MAX);
    found.count("values", "the model", model.values.len(), 0, VALUES_MAX);
    found.distinct("value", model.values.iter().map(|(name, _)| name.as_str()));
    found.distinct("partition", model.partitions.iter().map(|p| p.name.as_str()));
    found.distinct("table", model.tables.iter().map(|t| t.name.as_str()));
    for partition in &model.partitions {
        found.partition(partition);
    }
    for table in &model.tables {
        found.table(model, table);
    }
    found.0
}

#[derive(Default)]
struct Violations(Vec<Violation>);

impl Violations {
    fn name(&mut self, what: &'static str, name: &str) {
        if let Some(fault) = name_fault(name) {
            self.0.push(Violation::Name { what, name: name.to_owned(), fault });
        }
    }

    fn distinct<'a>(&mut self, what: &'static str, names: impl Iterator<Item = &'a str>) {
        let mut seen = HashSet::new();
        for name in names {
            self.name(what, name);
            if !seen.insert(name.to_ascii_lowercase()) {
                self.0.push(Violation::Twice { what, name: name.to_owned() });
            }
        }
    }

    fn count(&mut self, what: &'static str, of: &str, actual: usize, min: usize, max: usize) {
        if actual < min || actual > max {
            self.0.push(Violation::Count { what, of: of.to_owned(), actual, min, max });
        }
    }

    fn partition(&mut self, partition: &Partition) {
        self.count("columns", &format!("partition {:?}", partition.name), partition.columns.len(), 1, COLUMNS_MAX);
        self.distinct("column", partition.columns.iter().map(|(name, _)| name.as_str()));
    }

    fn table(&mut self, model: &Model, table: &Table) {
        let of = format!("table {:?}", table.name);
        if let Some(schema) = &table.schema {
            self.name("schema", schema);
        }
        self.count("columns", &of, table.columns.len(), 1, COLUMNS_MAX);
        self.count("references", &of, table.references.len(), 0, COLUMNS_MAX);
        self.count("unique constraints", &of, table.unique.len(), 0, COLUMNS_MAX);
        self.distinct("column", table.columns.iter().map(|c| c.name.as_str()));
        self.places(table, "the key", &table.key, table.columns.len());
        if table.key_columns().any(|column| column.nullable) {
            self.wrong(table, "a column of the key is nullable");
        }
        if let Some(rule) = table.key_range
            && !(has_integer_key(table) && (2..=KEY_RANGE_MAX).contains(&rule.size))
        {
            self.wrong(table, "a key range needs a key of one integer column, and a size from 2 to 1000000000");
        }
        if let Some(why) = table.unshareable().filter(|_| table.shared) {
            self.wrong(table, &format!("it is shared, but {why}"));
        }
        for unique in &table.unique {
            self.places(table, "a unique constraint", unique, table.columns.len());
        }
        if let ConflictRule::NewerWins(place) = table.conflict {
            self.places(table, "newer_wins", &[place], table.columns.len());
        }
        self.sum(table);
        self.table_partition(model, table);
        self.references(model, table);
    }

    fn sum(&mut self, table: &Table) {
        if table.sum.is_empty() {
            return;
        }
        self.places(table, "sum", &table.sum, table.columns.len());
        if !matches!(table.conflict, ConflictRule::Merge(_)) {
            self.wrong(table, "sum stands beside a conflict rule other than merge");
        }
        for fault in table.sum.iter().filter_map(|place| sum_fault(table, *place)) {
            self.wrong(table, &fault.found);
        }
    }

    fn table_partition(&mut self, model: &Model, table: &Table) {
        let Some(place) = &table.partition else {
            return;
        };
        if place.through.is_some() {
            self.through(model, table, place);
            return;
        }
        self.places(table, "the partition", &place.columns, table.columns.len());
        let Some(partition) = model.partitions.get(place.partition) else {
            let (actual, len) = (place.partition, model.partitions.len());
            self.0.push(Violation::Place { table: table.name.clone(), what: "the partition", actual, len });
            return;
        };
        let ours = table.partition_columns().map(|column| column.kind.base);
        if !ours.eq(partition.columns.iter().map(|(_, kind)| kind.base)) {
            self.wrong(table, "the columns of the partition differ in number or type from the partition's");
        }
    }

    /// A table that takes its partition from another.
    fn through(&mut self, model: &Model, table: &Table, place: &TablePartition) {
        let Some(parent) = table.through().and_then(|reference| model.tables.get(reference.table)) else {
            let (actual, len) = (place.through.unwrap_or_default(), table.references.len());
            self.0.push(Violation::Place { table: table.name.clone(), what: "the partition's reference", actual, len });
            return;
        };
        let lineage = Lineage::new(model, table);
        if lineage.root().through().is_some() {
            self.wrong(table, "it takes its partition from itself, by way of others or not");
        } else if !place.columns.is_empty()
            || parent.partition.as_ref().is_none_or(|theirs| theirs.partition != place.partition)
        {
            self.wrong(table, "it takes its partition from a table that is not partitioned in that way");
        } else if let Some(fault) = through_fault(&model.tables, table) {
            self.wrong(table, &fault.found);
        }
    }

    fn references(&mut self, model: &Model, table: &Table) {
        for reference in &table.references {
            self.places(table, "a reference", &reference.columns, table.columns.len());
            let Some(target) = model.tables.get(reference.table) else {
                let (actual, len) = (reference.table, model.tables.len());
                self.0.push(Violation::Place { table: table.name.clone(), what: "a reference", actual, len });
                continue;
            };
            self.places(table, "a reference's target", &reference.target, target.columns.len());
            if reference.columns.len() != reference.target.len() {
                self.wrong(table, "a reference has more or fewer columns than its target");
            }
            if !is_unique(target, &reference.target) {
                self.wrong(table, "a reference's target is neither the key nor a unique constraint");
            }
        }
    }

    /// At least one place, each within bounds, none twice.
    fn places(&mut self, table: &Table, what: &'static str, places: &[usize], len: usize) {
        if places.is_empty() {
            self.wrong(table, &format!("{what} names no column"));
        }
        if let Some(&actual) = places.iter().find(|place| **place >= len) {
            self.0.push(Violation::Place { table: table.name.clone(), what, actual, len });
        }
        if places.iter().collect::<HashSet<_>>().len() < places.len() {
            self.wrong(table, &format!("{what} names a column twice"));
        }
    }

    fn wrong(&mut self, table: &Table, what: &str) {
        self.0.push(Violation::Table { table: table.name.clone(), what: what.to_owned() });
    }
}

/// Why a column can't be a counter.
pub(crate) fn sum_fault(table: &Table, place: usize) -> Option<Fault> {
    let column = table.columns.get(place)?;
    let fault = |what: &str, expected: &str| {
        Some(Fault { found: format!("sum names column {:?}, {what}", column.name), expected: expected.to_owned() })
    };
    let is_number = match column.kind.base {
        Type::Int => true,
        Type::Decimal => column.kind.precision.is_some(),
        _ => false,
    };
    if !is_number {
        return fault(&format!("which is {}", column.kind), "int or decimal(precision,scale)");
    }
    if table.key.contains(&place) {
        return fault("which is in the key", "a column outside the key");
    }
    let of_partition = table.partition.iter().flat_map(|partition| &partition.columns);
    let of_reference = table.through().into_iter().flat_map(|reference| &reference.columns);
    if of_partition.chain(of_reference).any(|other| *other == place) {
        return fault("by which the partition is found", "a column outside the partition");
    }
    None
}

/// What is wrong with something in a model, and what would be right.
pub(crate) struct Fault {
    pub(crate) found: String,
    pub(crate) expected: String,
}

/// What is wrong with the reference by which a table takes its partition.
pub(crate) fn through_fault(tables: &[Table], table: &Table) -> Option<Fault> {
    let reference = table.through()?;
    let parent = tables.get(reference.table)?;
    let fault = |found: String, expected: &str| Some(Fault { found, expected: expected.to_owned() });
    let key: HashSet<_> = parent.key.iter().collect();
    if reference.target.iter().collect::<HashSet<_>>() != key || reference.columns.len() != reference.target.len() {
        let found = format!("it takes its partition by a reference that is not to the key of {:?}", parent.name);
        return fault(found, "a reference to the key");
    }
    let kind = |table: &Table, place: usize| table.columns.get(place).map(|column| column.kind.base);
    if reference.columns.iter().zip(&reference.target).any(|(own, key)| kind(table, *own) != kind(parent, *key)) {
        let found = format!("it takes its partition from {:?} by columns of other types than its key", parent.name);
        return fault(found, "columns of the same types");
    }
    if reference.on_delete == OnDelete::SetNull {
        let found = format!("its rows would be in no partition once their row of {:?} is deleted", parent.name);
        return fault(found, "on_delete = \"cascade\", or none");
    }
    if parent.direction == Direction::Upload && table.direction != Direction::Upload {
        return fault(
            format!("it takes its partition from {:?}, which only goes up", parent.name),
            "another direction",
        );
    }
    if let Some(timed) = [table, parent].into_iter().find(|table| table.script(Step::DownloadCursor).is_some()) {
        let found =
            format!("its rows move as those of {:?} do, but {:?} has a download_cursor", parent.name, timed.name);
        return fault(found, "change tracking for both tables");
    }
    None
}

/// Whether these columns, in any order, are the table's key or one of its unique constraints: what SQLite asks of a parent.
pub(crate) fn is_unique(table: &Table, columns: &[usize]) -> bool {
    let wanted: HashSet<_> = columns.iter().collect();
    std::iter::once(&table.key).chain(&table.unique).any(|places| places.iter().collect::<HashSet<_>>() == wanted)
}
