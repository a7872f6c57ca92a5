//! The SQL of one table, made once.

use headwater_model::sql::quote;
use headwater_model::tracking::sqlite as tracking;

use crate::TablePlan;

/// The statements of a table. Parameters are the values in the order that each says.
#[derive(Debug)]
pub(super) struct TableSql {
    /// Key -> the columns.
    pub(super) fetch: String,
    /// Columns; nothing where the key exists.
    pub(super) insert: String,
    /// Columns that are not of the key, then the key; empty if the key is all there is.
    pub(super) update: String,
    /// Key.
    pub(super) delete: String,
    /// Partition -> the columns, in key order.
    pub(super) whole: String,
    /// Partition, version -> whether the row lives there, whether it lives at all, version, key, the columns.
    pub(super) changes: String,
}

impl TableSql {
    pub(super) fn new(plan: &TablePlan) -> TableSql {
        let table = &plan.table;
        let name = quote(&table.name);
        let columns: Vec<String> = table.columns.iter().map(|column| quote(&column.name)).collect();
        let key: Vec<String> = table.key_columns().map(|column| quote(&column.name)).collect();
        let partition: Vec<String> = table.partition_columns().map(|column| quote(&column.name)).collect();
        let set: Vec<String> = (0..columns.len())
            .filter(|place| !table.key.contains(place))
            .zip(1..)
            .map(|(place, parameter)| format!("{} = ?{parameter}", columns[place]))
            .collect();
        let list = columns.join(", ");
        let values: Vec<String> = (1..=columns.len()).map(|parameter| format!("?{parameter}")).collect();
        TableSql {
            fetch: format!("SELECT {list} FROM {name} WHERE {}", equal(&key, 1)),
            insert: format!(
                "INSERT INTO {name} ({list}) VALUES ({}) ON CONFLICT ({}) DO NOTHING",
                values.join(", "),
                key.join(", ")
            ),
            update: if set.is_empty() {
                String::new()
            } else {
                format!("UPDATE {name} SET {} WHERE {}", set.join(", "), equal(&key, set.len() + 1))
            },
            delete: format!("DELETE FROM {name} WHERE {}", equal(&key, 1)),
            whole: format!("SELECT {list} FROM {name}{} ORDER BY {}", filter(&partition), key.join(", ")),
            changes: changes(plan, &name, &columns),
        }
    }
}

fn changes(plan: &TablePlan, name: &str, columns: &[String]) -> String {
    let table = &plan.table;
    let side_key: Vec<String> = tracking::key_columns(table);
    let side_partition: Vec<String> = tracking::partition_columns(table);
    let base = |column: &str| format!("b.{column}");
    let key: Vec<String> = table.key_columns().map(|column| base(&quote(&column.name))).collect();
    let partition: Vec<String> = table.partition_columns().map(|column| base(&quote(&column.name))).collect();
    let joined: Vec<String> = key.iter().zip(&side_key).map(|(base, side)| format!("{base} = s.{side}")).collect();
    let lives = key.first().map_or_else(|| "0".to_owned(), |key| format!("{key} IS NOT NULL"));
    let here: Vec<String> =
        partition.iter().zip(&side_partition).map(|(base, side)| format!("{base} IS s.{side}")).collect();
    let here = std::iter::once(lives.clone()).chain(here).collect::<Vec<_>>().join(" AND ");
    let mut filters: Vec<String> = (1..).zip(&side_partition).map(|(p, side)| format!("s.{side} = ?{p}")).collect();
    filters.push(format!("s.version > ?{}", side_partition.len() + 1));
    format!(
        "SELECT {here}, {lives}, s.version, {}, {} FROM {} s LEFT JOIN {name} b ON {} WHERE {}",
        side_key.iter().map(|side| format!("s.{side}")).collect::<Vec<_>>().join(", "),
        columns.iter().map(|column| base(column)).collect::<Vec<_>>().join(", "),
        tracking::side_table(table),
        joined.join(" AND "),
        filters.join(" AND "),
    )
}

fn equal(columns: &[String], first: usize) -> String {
    (first..).zip(columns).map(|(p, column)| format!("{column} = ?{p}")).collect::<Vec<_>>().join(" AND ")
}

fn filter(columns: &[String]) -> String {
    if columns.is_empty() { String::new() } else { format!(" WHERE {}", equal(columns, 1)) }
}
