//! A model made ready for one remote: for each table its types and the SQL of every step, worked out once.

use headwater_model::remote_sql::{Unique, enforced_references, log_name};
use headwater_model::sql::quote;
use headwater_model::{Direction, Lineage, Model, Reference, Table};
use headwater_protocol::message::TableHeader;
use headwater_protocol::{Row, Type, Value};

use crate::error::Error;

/// A model made ready.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) model: Model,
    /// As it was when the file's tables were made: a later Headwater may write the same model in other words.
    pub(crate) fingerprint: u64,
    pub(crate) tables: Vec<TablePlan>,
    /// The file's `PRAGMA schema_version` before its tables and triggers were looked at the last time.
    pub(crate) schema_version: Option<i64>,
}

/// A table made ready.
#[derive(Debug)]
pub(crate) struct TablePlan {
    pub(crate) number: u32,
    pub(crate) table: Table,
    pub(crate) header: TableHeader,
    pub(crate) types: Vec<Type>,
    pub(crate) key_types: Vec<Type>,
    pub(crate) partition_types: Vec<Type>,
    /// Places of the partition's columns; none where it is taken from another table.
    pub(crate) partition: Vec<usize>,
    /// The table from which it takes its partition, if it does: its number, and the places of the columns that refer to it, in the order
    /// of its key.
    pub(crate) parent: Option<(u32, Vec<usize>)>,
    /// Numbers of the tables that take their partition from this one, directly or not.
    pub(crate) below: Vec<u32>,
    /// The foreign keys that the remote enforces.
    pub(crate) references: Vec<Reference>,
    /// Whether another table refers to this one.
    pub(crate) is_parent: bool,
    /// Unique indexes beside the key: the model's, and those that the application made.
    pub(crate) uniques: Vec<Unique>,
    pub(crate) sql: Statements,
}

/// The SQL of a table's steps. Parameters are a row's columns in model order, or the key's columns in key order.
#[derive(Debug)]
pub(crate) struct Statements {
    /// Row: stores it, whether its key exists or not; what stands there just so is not written.
    pub(crate) upsert: String,
    /// Row: stores it where its key does not exist.
    pub(crate) insert: String,
    /// Row: makes the stored row of its key like it; the key stays.
    pub(crate) update: String,
    /// Key: deletes its row.
    pub(crate) delete: String,
    /// Key: gives its row.
    pub(crate) select: String,
    /// Row: rows that stand in its way, by unique index; gives their keys. One statement for each of [`TablePlan::uniques`].
    pub(crate) in_the_way: Vec<String>,
    /// How the log is read: existed, aside, old image, whether there is a row, the row.
    changes: String,
    /// Key: its open change.
    pub(crate) pending: String,
    /// Every open change that is not set aside, in key order.
    pub(crate) open: String,
    /// Key: forgets its open change.
    pub(crate) forget: String,
    /// Row: makes it the old image of its key's open change.
    pub(crate) set_old: String,
}

impl Plan {
    pub(crate) fn new(model: Model) -> Plan {
        let numbers = 0..model.tables.len();
        let tables = numbers.map(|number| TablePlan::new(&model, number)).collect();
        Plan { fingerprint: model.fingerprint(), model, tables, schema_version: None }
    }

    /// A plan of a model as a server gives it: without the references that a remote does not enforce, under the fingerprint of the whole.
    pub(crate) fn served(model: &Model) -> Result<Plan, Error> {
        let whole = Model::from_json(&model.to_json()).map_err(|error| Error::Model(error.to_string()))?;
        let fingerprint = whole.fingerprint();
        let kept = Model { unenforced: model.unenforced.clone(), ..whole }.enforced();
        Ok(Plan { fingerprint, ..Plan::new(kept) })
    }

    pub(crate) fn table(&self, number: u32) -> Option<&TablePlan> {
        self.tables.get(number as usize)
    }

    /// The table that a table takes its partition from.
    pub(crate) fn parent(&self, table: &TablePlan) -> Option<&TablePlan> {
        self.table(table.parent.as_ref()?.0)
    }

    /// A table by its name; the error names those there are.
    pub(crate) fn table_named(&self, name: &str) -> Result<&TablePlan, Error> {
        self.tables.iter().find(|table| table.table.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.tables.iter().map(|table| table.table.name.as_str()).collect();
            Error::Configuration { what: format!("the remote has no table {name:?}; it has {}", names.join(", ")) }
        })
    }

    /// The tables whose local changes are logged.
    pub(crate) fn tracked(&self) -> impl Iterator<Item = &TablePlan> {
        self.tables.iter().filter(|table| table.is_tracked())
    }
}

impl TablePlan {
    fn new(model: &Model, number: usize) -> TablePlan {
        let table = model.tables[number].clone();
        let columns: Vec<(String, Type)> = table.columns.iter().map(|c| (c.name.clone(), c.kind.base)).collect();
        let header = TableHeader { table: number as u32, name: table.name.clone(), columns, key: table.key.clone() };
        let uniques = Unique::of_model(&table);
        let sql = Statements::new(&table, &uniques);
        let is_parent = model
            .tables
            .iter()
            .any(|child| enforced_references(model, child).iter().any(|reference| reference.table == number));
        let lineage = Lineage::new(model, &table);
        TablePlan {
            number: number as u32,
            types: table.columns.iter().map(|c| c.kind.base).collect(),
            key_types: header.key_types(),
            partition_types: lineage.root().partition_columns().map(|c| c.kind.base).collect(),
            parent: parent_of(&lineage, model),
            below: Lineage::tables_below(model, &table).filter_map(|below| number_of(model, below)).collect(),
            partition: table.partition.iter().flat_map(|p| &p.columns).copied().collect(),
            references: enforced_references(model, &table).into_iter().cloned().collect(),
            is_parent,
            uniques,
            sql,
            header,
            table,
        }
    }

    /// Takes note of the unique indexes that the application made.
    pub(crate) fn set_own_uniques(&mut self, own: Vec<Unique>) {
        self.uniques = Unique::of_model(&self.table);
        self.uniques.extend(own);
        self.sql.in_the_way = self.uniques.iter().map(|unique| in_the_way(&self.table, unique)).collect();
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.table.direction != Direction::Download
    }

    /// The table's name as SQL.
    pub(crate) fn name(&self) -> String {
        quote(&self.table.name)
    }

    /// A query that gives a row if there is any. It reads no index: one of the application's may have a collation that only the application has.
    pub(crate) fn any_row(&self) -> String {
        format!("SELECT 1 FROM {} NOT INDEXED LIMIT 1", self.name())
    }

    /// The log's name as SQL.
    pub(crate) fn log(&self) -> String {
        quote(&log_name(&self.table))
    }

    /// The key of a row.
    pub(crate) fn key_of<T: Clone>(&self, row: &[T]) -> Vec<T> {
        self.table.key.iter().filter_map(|&place| row.get(place).cloned()).collect()
    }

    /// A key as bytes.
    pub(crate) fn key_bytes(&self, key: &[Value]) -> Vec<u8> {
        encoded(&self.key_types, key)
    }

    /// A row as bytes.
    pub(crate) fn row_bytes(&self, row: &[Value]) -> Vec<u8> {
        encoded(&self.types, row)
    }

    /// What identifies a partition, as bytes.
    pub(crate) fn partition_bytes(&self, values: &[Value]) -> Vec<u8> {
        encoded(&self.partition_types, values)
    }

    /// The names of the columns.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.table.columns.iter().map(|column| column.name.as_str())
    }

    /// The names of the key's columns.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = &str> {
        self.table.key_columns().map(|column| column.name.as_str())
    }

    /// The names of the columns that are not of the key.
    pub(crate) fn others(&self) -> impl Iterator<Item = &str> {
        self.names().enumerate().filter(|(place, _)| !self.table.key.contains(place)).map(|(_, name)| name)
    }

    /// A condition on the row of a key, whose values are the parameters.
    pub(crate) fn by_key(&self) -> String {
        and(self.keys("").iter().zip(1..).map(|(key, place)| format!("{key} = ?{place}")))
    }

    /// The names of the key's columns, each after `prefix`, as SQL.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        keys(&self.table, prefix)
    }
}

fn number_of(model: &Model, table: &Table) -> Option<u32> {
    model.tables.iter().position(|other| other.name == table.name).map(|place| place as u32)
}

fn parent_of(lineage: &Lineage<'_>, model: &Model) -> Option<(u32, Vec<usize>)> {
    let parent = number_of(model, lineage.parents().first()?)?;
    let place = |column: &headwater_model::Column| lineage.table().columns.iter().position(|own| own == column);
    Some((parent, lineage.link(0).into_iter().filter_map(|(column, _)| place(column)).collect()))
}

fn encoded(types: &[Type], row: &[Value]) -> Vec<u8> {
    let mut out = Vec::new();
    headwater_protocol::row::put_row(&mut out, types, row);
    out
}

/// A row in the model's order from wire bytes that we stored ourselves.
pub(crate) fn decoded(types: &[Type], bytes: &[u8]) -> Result<Row, headwater_protocol::DecodeError> {
    let mut reader = headwater_protocol::wire::Reader::new(bytes);
    let row = headwater_protocol::row::read_row(&mut reader, types, usize::MAX, None)?;
    reader.finish("stored row")?;
    Ok(row)
}

impl Statements {
    fn new(table: &Table, uniques: &[Unique]) -> Statements {
        let (own, log) = (quote(&table.name), quote(&log_name(table)));
        let names: Vec<String> = table.columns.iter().map(|column| quote(&column.name)).collect();
        let others: Vec<usize> = (0..names.len()).filter(|place| !table.key.contains(place)).collect();
        let parameters: Vec<String> = (1..=names.len()).map(|number| format!("?{number}")).collect();
        let by_key = and(keys(table, "").iter().zip(1..).map(|(key, number)| format!("{key} = ?{number}")));
        let by_log_key = and(keys(table, "k_").iter().zip(1..).map(|(key, number)| format!("{key} = ?{number}")));
        let by_change = and(keys(table, "k_").iter().zip(1..).map(|(key, number)| format!("l.{key} = ?{number}")));
        let by_row_key = and(table.key.iter().map(|&place| format!("{} = ?{}", names[place], place + 1)));
        let by_row_log_key =
            and(table.key.iter().zip(keys(table, "k_")).map(|(&place, key)| format!("{key} = ?{}", place + 1)));
        let all = names.join(", ");
        let set = list(others.iter().map(|&place| format!("{0} = excluded.{0}", names[place])));
        let of = |row: &str| others.iter().map(|&place| format!("{row}.{}", names[place])).collect::<Vec<_>>();
        let action = if set.is_empty() {
            "NOTHING".to_owned()
        } else {
            format!("UPDATE SET {set} WHERE NOT ({})", same_values(&of(&own), &of("excluded")))
        };
        let insert = format!("INSERT INTO {own} ({all}) VALUES ({})", parameters.join(", "));
        let assign =
            |prefix: &str| {
                list(others.iter().map(|&place| {
                    format!("{} = ?{}", quote(&format!("{prefix}{}", table.columns[place].name)), place + 1)
                }))
            };
        let changes = changes(table, &own, &log);
        let in_order = list(keys(table, "k_").iter().map(|key| format!("l.{key}")));
        Statements {
            upsert: format!("{insert} ON CONFLICT ({}) DO {action}", keys(table, "").join(", ")),
            insert,
            update: format!("UPDATE {own} SET {} WHERE {by_row_key}", assign("")),
            delete: format!("DELETE FROM {own} WHERE {by_key}"),
            select: format!("SELECT {all} FROM {own} WHERE {by_key}"),
            in_the_way: uniques.iter().map(|unique| in_the_way(table, unique)).collect(),
            pending: format!("{changes} WHERE l.\"upload\" = 0 AND {by_change}"),
            open: format!("{changes} WHERE l.\"upload\" = 0 AND l.\"aside\" = 0 ORDER BY {in_order}"),
            changes,
            forget: format!("DELETE FROM {log} WHERE \"upload\" = 0 AND {by_log_key}"),
            set_old: format!("UPDATE {log} SET {} WHERE \"upload\" = 0 AND {by_row_log_key}", assign("o_")),
        }
    }

    /// Open changes that meet a condition on the log `l` and the row `r`.
    pub(crate) fn changes_where(&self, condition: &str) -> String {
        format!("{} WHERE l.\"upload\" = 0 AND {condition}", self.changes)
    }
}

fn changes(table: &Table, own: &str, log: &str) -> String {
    let old = list(table.columns.iter().enumerate().map(|(place, column)| {
        let prefix = if table.key.contains(&place) { "k_" } else { "o_" };
        format!("l.{}", quote(&format!("{prefix}{}", column.name)))
    }));
    let join = and(keys(table, "").iter().zip(keys(table, "k_")).map(|(own, logged)| format!("r.{own} = l.{logged}")));
    let present = keys(table, "").first().map(|key| format!("r.{key} IS NOT NULL")).unwrap_or_default();
    let row = list(table.columns.iter().map(|column| format!("r.{}", quote(&column.name))));
    format!("SELECT l.\"existed\", l.\"aside\", {old}, {present}, {row} FROM {log} AS l LEFT JOIN {own} AS r ON {join}")
}

fn in_the_way(table: &Table, unique: &Unique) -> String {
    let parameter = |name: &str| {
        let place = table.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name));
        place.map_or_else(|| "NULL".to_owned(), |place| format!("?{}", place + 1))
    };
    let own = quote(&table.name);
    let same = and(table.key.iter().map(|&place| {
        let name = &table.columns[place].name;
        format!("{own}.{} = ?{}", quote(name), place + 1)
    }));
    format!(
        "SELECT {} FROM {own} WHERE {} AND NOT ({same})",
        keys(table, "").join(", "),
        unique.collides(table, &parameter)
    )
}

fn keys(table: &Table, prefix: &str) -> Vec<String> {
    table.key_columns().map(|column| quote(&format!("{prefix}{}", column.name))).collect()
}

/// A condition: these values are those, of the same storage classes. By row values, for SQLite takes no expression that is a thousand deep.
pub(crate) fn same_values(one: &[String], other: &[String]) -> String {
    if one.is_empty() {
        return "1".to_owned();
    }
    let kinds = |values: &[String]| list(values.iter().map(|value| format!("typeof({value})")));
    format!("({}) IS ({}) AND ({}) IS ({})", one.join(", "), other.join(", "), kinds(one), kinds(other))
}

fn and(conditions: impl Iterator<Item = String>) -> String {
    conditions.collect::<Vec<_>>().join(" AND ")
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
