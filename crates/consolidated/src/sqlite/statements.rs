//! The SQL of one table, made once.

use headwater_model::Table;
use headwater_model::sql::quote;
use headwater_model::tracking::sqlite as tracking;
use headwater_protocol::Type;

use crate::TablePlan;

/// The statements of a table. Parameters are the values in the order that each says.
#[derive(Debug)]
pub(super) struct TableSql {
    /// Key -> the columns.
    pub(super) fetch: String,
    /// Columns; where it fails, what it has done so far stays, and is for a savepoint to take back. So SQLite has no journal of its own to keep
    /// for it, which costs more than the insert where triggers write too.
    pub(super) insert_or_fail: String,
    /// All columns of the old image, then of the new one those that are not of the key, of a row that is the same as the old image; empty
    /// if the key is all there is. Where it fails, the same.
    pub(super) update_same: String,
    /// The same, whatever the row has beside its key.
    pub(super) update_any: String,
    /// Key.
    pub(super) delete: String,
    /// All columns, of a row that is the same.
    pub(super) delete_same: String,
    /// The same, whatever the row has beside its key.
    pub(super) delete_any: String,
    /// Partition -> the columns, in key order.
    pub(super) whole: String,
    /// The same rows as they come.
    pub(super) unordered: String,
    /// Partition, how many -> the columns of some rows.
    pub(super) some: String,
    /// Partition -> how many rows.
    pub(super) count: String,
    /// Partition, version, versions of our own (above the first, up to the second) -> how many rows others have changed.
    pub(super) count_changes: String,
    /// Partition, version -> whether the row lives there, whether it lives at all, version, key, the columns, the partition where it lives.
    pub(super) changes: String,
    /// The same, without versions of our own (above the first, up to the second) after the version.
    pub(super) changes_of_others: String,
    /// Partition -> the spellings of the rows in it.
    pub(super) spellings: String,
    /// Version -> the spellings of the partitions in which rows lie that have changed since.
    pub(super) changed_spellings: String,
    /// Version -> the spellings under which changes since are noted.
    pub(super) noted_spellings: String,
    /// Key, then the columns that decide where a row is and are not of the key: notes it there.
    pub(super) note_again: String,
    /// Key of the parent -> the partition of what refers to it; empty where rows have their own.
    pub(super) partition: String,
}

impl TableSql {
    pub(super) fn new(plan: &TablePlan) -> TableSql {
        let table = &plan.table;
        let name = quote(&table.name);
        let columns: Vec<String> = table.columns.iter().map(|column| quote(&column.name)).collect();
        let key: Vec<String> = table.key_columns().map(|column| quote(&column.name)).collect();
        let lineage = plan.lineage();
        let of = |columns: &[String]| columns.iter().map(|column| format!("b.{column}")).collect::<Vec<_>>();
        let key_only: Vec<usize> = table.key.clone();
        let whole: Vec<usize> = (0..columns.len()).collect();
        let list = columns.join(", ");
        let partition = lineage.partition(0, "b");
        let from = format!("FROM {name} b{}{}", lineage.up(0, "b", "JOIN", &named), filter(&partition));
        let values: Vec<String> = (1..=columns.len()).map(|parameter| format!("?{parameter}")).collect();
        let values = values.join(", ");
        TableSql {
            fetch: format!("SELECT {list} FROM {name} WHERE {}", equal(&key, 1)),
            insert_or_fail: format!("INSERT OR FAIL INTO {name} ({list}) VALUES ({values})"),
            update_same: update_of_images(table, &name, &columns, &whole),
            update_any: update_of_images(table, &name, &columns, &key_only),
            delete: format!("DELETE FROM {name} WHERE {}", equal(&key, 1)),
            delete_same: format!("DELETE FROM {name} WHERE {}", is_same(table, &columns, &whole)),
            delete_any: format!("DELETE FROM {name} WHERE {}", is_same(table, &columns, &key_only)),
            whole: format!("SELECT {} {from} ORDER BY {}", of(&columns).join(", "), of(&key).join(", ")),
            unordered: format!("SELECT {} {from}", of(&columns).join(", ")),
            some: format!("SELECT {} {from} LIMIT ?{}", of(&columns).join(", "), partition.len() + 1),
            count: format!("SELECT count(*) {from}"),
            count_changes: format!(
                "SELECT count(*) FROM {} s WHERE {}",
                tracking::side_table(&lineage),
                changed_by_others(plan)
            ),
            changes: changes(plan, &name, &columns, &changed(plan)),
            changes_of_others: changes(plan, &name, &columns, &changed_by_others(plan)),
            spellings: format!("SELECT DISTINCT {} {from}", each_spelling(&partition)),
            changed_spellings: changed_spellings(plan, &name),
            noted_spellings: format!(
                "SELECT DISTINCT {} FROM {} s WHERE s.version > ?1",
                each_spelling(&tracking::partition_columns(&lineage)),
                tracking::side_table(&lineage)
            ),
            note_again: tracking::note_again(&lineage),
            partition: plan.parents.first().map(|parent| partition_below(plan, parent)).unwrap_or_default(),
        }
    }
}

/// `compared`: the places of columns of the old image.
fn update_of_images(table: &Table, name: &str, columns: &[String], compared: &[usize]) -> String {
    let set = (0..columns.len()).filter(|place| !table.key.contains(place)).zip(columns.len() + 1..);
    let set: Vec<String> = set.map(|(place, parameter)| format!("{} = ?{parameter}", columns[place])).collect();
    if set.is_empty() {
        return String::new();
    }
    format!("UPDATE OR FAIL {name} SET {} WHERE {}", set.join(", "), is_same(table, columns, compared))
}

/// Whether a row has the key of an image, found by its index, and is the same in these columns. Parameters: all columns of the image.
///
/// The same is what [`headwater_protocol::ValueRef::same`] calls so, or less: texts byte by byte, whatever the column's collation; and 1.0 is not
/// the integer 1, which an image of another type would be read from.
fn is_same(table: &Table, columns: &[String], compared: &[usize]) -> String {
    let key = table.key.iter().map(|place| format!("{} = ?{}", columns[*place], place + 1));
    let same = compared.iter().map(|place| {
        let (column, parameter) = (&columns[*place], place + 1);
        match table.columns[*place].kind.base {
            Type::Int | Type::Bool => format!("{column} IS ?{parameter} AND typeof({column}) <> 'real'"),
            _ => format!("{column} IS ?{parameter} COLLATE BINARY"),
        }
    });
    key.chain(same).collect::<Vec<_>>().join(" AND ")
}

fn changes(plan: &TablePlan, name: &str, columns: &[String], changed: &str) -> String {
    let table = &plan.table;
    let lineage = plan.lineage();
    let side_key: Vec<String> = tracking::key_columns(table);
    let side_partition: Vec<String> = tracking::partition_columns(&lineage);
    let base = |column: &str| format!("b.{column}");
    let key: Vec<String> = table.key_columns().map(|column| base(&quote(&column.name))).collect();
    let partition: Vec<String> = lineage.partition(0, "b");
    let joined: Vec<String> = key.iter().zip(&side_key).map(|(base, side)| format!("{base} = s.{side}")).collect();
    let lives = key.first().map_or_else(|| "0".to_owned(), |key| format!("{key} IS NOT NULL"));
    let here: Vec<String> =
        partition.iter().zip(&side_partition).map(|(base, side)| format!("{base} IS s.{side}")).collect();
    let here = std::iter::once(lives.clone()).chain(here).collect::<Vec<_>>().join(" AND ");
    let read = columns.iter().map(|column| base(column)).chain(partition).collect::<Vec<_>>();
    format!(
        "SELECT {here}, {lives}, s.version, {}, {} FROM {} s LEFT JOIN {name} b ON {}{} WHERE {changed}",
        side_key.iter().map(|side| format!("s.{side}")).collect::<Vec<_>>().join(", "),
        read.join(", "),
        tracking::side_table(&lineage),
        joined.join(" AND "),
        lineage.up(0, "b", "LEFT JOIN", &named),
    )
}

/// Values by their bytes, for DISTINCT; 7 and 7.0 are equal too.
fn each_spelling(values: &[String]) -> String {
    let exact = values.iter().map(|value| format!("{value} COLLATE BINARY"));
    exact.chain(values.iter().map(|value| format!("typeof({value})"))).collect::<Vec<_>>().join(", ")
}

fn changed_spellings(plan: &TablePlan, name: &str) -> String {
    let lineage = plan.lineage();
    let key = plan.table.key_columns().map(|column| format!("b.{}", quote(&column.name)));
    let joined = key.zip(tracking::key_columns(&plan.table)).map(|(base, side)| format!("{base} = s.{side}"));
    format!(
        "SELECT DISTINCT {} FROM {} s JOIN {name} b ON {}{} WHERE s.version > ?1",
        each_spelling(&lineage.partition(0, "b")),
        tracking::side_table(&lineage),
        joined.collect::<Vec<_>>().join(" AND "),
        lineage.up(0, "b", "JOIN", &named),
    )
}

/// Whether a row `s` of the side table tells of a partition what a watermark has not seen.
fn changed(plan: &TablePlan) -> String {
    let partition: Vec<String> = tracking::partition_columns(&plan.lineage());
    let mut filters: Vec<String> = (1..).zip(&partition).map(|(p, side)| format!("s.{side} = ?{p}")).collect();
    filters.push(format!("s.version > ?{}", partition.len() + 1));
    filters.join(" AND ")
}

/// The same, of versions that are not our own.
fn changed_by_others(plan: &TablePlan) -> String {
    let before = plan.partition_types.len() + 2;
    format!("{} AND NOT (s.version > ?{before} AND s.version <= ?{})", changed(plan), before + 1)
}

/// The partition of the row of a parent.
fn partition_below(plan: &TablePlan, parent: &Table) -> String {
    let lineage = plan.lineage().of_parent();
    let key: Vec<String> = parent.key_columns().map(|column| format!("b.{}", quote(&column.name))).collect();
    format!(
        "SELECT {} FROM {} b{} WHERE {}",
        lineage.partition(0, "b").join(", "),
        quote(&parent.name),
        lineage.up(0, "b", "JOIN", &named),
        equal(&key, 1)
    )
}

fn named(table: &Table) -> String {
    quote(&table.name)
}

pub(super) fn equal(columns: &[String], first: usize) -> String {
    (first..).zip(columns).map(|(p, column)| format!("{column} = ?{p}")).collect::<Vec<_>>().join(" AND ")
}

fn filter(columns: &[String]) -> String {
    if columns.is_empty() { String::new() } else { format!(" WHERE {}", equal(columns, 1)) }
}
