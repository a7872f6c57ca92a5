//! A remote against its part of the consolidated database: is anything missing, too much, or different?
//!
//! Sync may lose what its own codec loses, so nothing of that is used here. Each side is read through its own driver ([`Source`]):
//! the remote's file as SQLite has it, a consolidated database in SQLite likewise, PostgreSQL as text. Each value is made a
//! [`Value`], by code of this module alone, and both sides go into a temporary database that sorts them by key; then they are
//! merged. Memory is bounded whatever the tables hold.
//!
//! ```text
//! remote file  --rusqlite-->        Value --> temporary  --ordered--> merge --> missing | extra | different
//! consolidated --tokio-postgres-->  Value --> database   --by key-->
//! ```
//!
//! The part of the consolidated database is found by running the model's membership query for the user, in the same snapshot. A table
//! with a `download_cursor` is what that gives to a first download: it may leave rows out, or make them up. A membership that a download
//! leaves out (its values can't travel) is left out here too, and named in the [`Report`]; so are rows that spell their partition so. Whether
//! values can travel is the one thing that is asked of sync's code.
//!
//! *Caveats.* The two sides are read at two moments: while either is written to, differences may be changes on their way. Local
//! changes that were not uploaded yet are differences too; they are told apart as *pending*. Of a table that only goes up, the
//! remote need not hold what others uploaded, so nothing is missing there.

mod merge;
mod postgres;
mod remote;
mod sqlite;
mod value;

use anyhow::{Context as _, Result};
use headwater_model::script::Step;
use headwater_model::sql::{quote, with_parameters};
use headwater_model::{Direction, Model, Partition, Table};
use serde::Serialize;

pub use postgres::Postgres;
pub use remote::RemoteFile;
pub use sqlite::SqliteDatabase;
pub use value::Value;

use merge::Merge;

/// One side: gives the rows of a table.
pub trait Source {
    /// Calls `each` with every row of a table that belongs to the comparison; the values are in the table's order.
    fn rows(&mut self, table: &Table, each: &mut dyn FnMut(Vec<Value>) -> Result<()>) -> Result<()>;

    /// The user's memberships in a partition that no download brings; a remote has none.
    fn left_out(&mut self, _partition: &Partition) -> Result<Vec<LeftOut>> {
        Ok(Vec::new())
    }
}

/// What a download says of a partition of these values, if it leaves it out.
fn left_out(partition: &Partition, values: &[Value]) -> Option<LeftOut> {
    let values: Vec<_> = values.iter().map(Value::to_synced).collect();
    let found = headwater_consolidated::memberships::left_out(partition, &values)?;
    let partition = partition.name.clone();
    Some(LeftOut { partition, values: found.values, bytes: found.bytes, why: found.why })
}

/// The table that has the partition's columns of another's rows, which are called `t`: joins up to it, and what it is called there.
fn holder<'m>(model: &'m Model, table: &'m Table, named: &dyn Fn(&Table) -> String) -> (String, &'m Table, String) {
    let (mut joins, mut holder, mut alias) = (String::new(), table, "t".to_owned());
    while let Some(reference) =
        holder.partition.as_ref().and_then(|partition| holder.references.get(partition.through?))
        && let Some(parent) = model.tables.get(reference.table)
    {
        let above = format!("{alias}t");
        let equal = reference.columns.iter().zip(&reference.target).map(|(own, key)| {
            let (own, key) = (quote(&holder.columns[*own].name), quote(&parent.columns[*key].name));
            format!("{above}.{key} = {alias}.{own}")
        });
        let on = equal.collect::<Vec<_>>().join(" AND ");
        joins.extend([" JOIN ", &named(parent), " AS ", &above, " ON ", &on]);
        (holder, alias) = (parent, above);
    }
    (joins, holder, alias)
}

/// The rows of a table with a `download_cursor`, for a WITH clause; `spell` is given a parameter's value and its type in PostgreSQL.
fn cursor(table: &Table, who: [&str; 2], spell: &mut dyn FnMut(&str, &str) -> String) -> Option<String> {
    /// `:s.last_download` of a first download.
    const LONG_AGO: &str = "1900-01-01 00:00:00";
    let script = table.script(Step::DownloadCursor)?;
    let sql = with_parameters(&script.sql, |name| match name {
        ":s.user" => spell(who[0], "text"),
        ":s.remote_id" => spell(who[1], "text"),
        _ => spell(LONG_AGO, "timestamptz"),
    });
    let columns: Vec<String> = table.columns.iter().map(|column| quote(&column.name)).collect();
    Some(format!("{CURSOR}({}) AS (\n{sql}\n)", columns.join(", ")))
}

/// What a table's cursor is called in a query, and the partitions of the user: in SQLite they would hide a table of that name.
const CURSOR: &str = "headwater_cursor";
const MEMBERS: &str = "headwater_members";

/// What is compared, and how much of it is told.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only these tables; empty: all.
    pub tables: Vec<String>,
    /// The most differences of a table that are told with their values; all are counted.
    pub details_max: usize,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Each table.
    pub tables: Vec<TableReport>,
    /// Memberships of the user that downloads leave out, and this comparison too.
    pub left_out: Vec<LeftOut>,
}

/// A membership whose partition can't travel to a remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The partition.
    pub partition: String,
    /// The beginning of the membership's values.
    pub values: String,
    /// The bytes of the partition's key.
    pub bytes: usize,
    /// Why it can't travel.
    pub why: &'static str,
}

/// What was found in one table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TableReport {
    /// The table.
    pub table: String,
    /// Rows at the remote.
    pub remote_rows: u64,
    /// Rows in the remote's part of the consolidated database.
    pub consolidated_rows: u64,
    /// Rows that only the consolidated database has.
    pub missing: u64,
    /// Rows that only the remote has.
    pub extra: u64,
    /// Rows that both have, with other values.
    pub different: u64,
    /// How many of the differences are of rows with a local change that was not uploaded yet, or was set aside.
    pub pending: u64,
    /// The first differences, by key.
    pub differences: Vec<Difference>,
}

/// One row that is not the same on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// What is wrong with it.
    pub kind: Kind,
    /// The columns of the key and their values.
    pub key: Vec<(String, Value)>,
    /// Of a row that both have: the columns that differ.
    pub columns: Vec<ColumnDifference>,
    /// Whether there is a local change of the row.
    pub pending: Option<Pending>,
}

/// How a row is not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Only the consolidated database has it.
    Missing,
    /// Only the remote has it.
    Extra,
    /// Both have it, with other values.
    Different,
}

/// A local change that explains a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pending {
    /// It goes up with the next sync.
    Waiting,
    /// It was refused, and is not sent by itself.
    SetAside,
}

/// A column that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnDifference {
    /// Its name.
    pub column: String,
    /// The remote's value.
    pub remote: Value,
    /// The consolidated database's.
    pub consolidated: Value,
}

impl TableReport {
    /// Missing, extra and different rows together.
    pub fn differences(&self) -> u64 {
        self.missing + self.extra + self.different
    }
}

impl Report {
    /// Whether there is no difference, those of rows with pending local changes left out if so asked.
    pub fn is_equal(&self, ignore_pending: bool) -> bool {
        self.tables.iter().all(|table| table.differences() == if ignore_pending { table.pending } else { 0 })
    }
}

/// Compares a remote with its part of the consolidated database. `progress` is told the table and the rows read so far.
pub fn compare(
    model: &Model,
    remote: &mut RemoteFile,
    consolidated: &mut dyn Source,
    options: &Options,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<Report> {
    let chosen = |table: &&Table| options.tables.is_empty() || options.tables.contains(&table.name);
    let mut report = Report { tables: Vec::new(), left_out: Vec::new() };
    for partition in &model.partitions {
        report.left_out.extend(consolidated.left_out(partition)?);
    }
    for table in model.tables.iter().filter(chosen) {
        let compared = compare_table(table, remote, consolidated, options, &mut |rows| progress(&table.name, rows));
        report.tables.push(compared.with_context(|| format!("table {:?} could not be compared", table.name))?);
    }
    Ok(report)
}

fn compare_table(
    table: &Table,
    remote: &mut RemoteFile,
    consolidated: &mut dyn Source,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<TableReport> {
    let mut merge = Merge::new(table)?;
    let mut read = 0;
    let mut counted = || {
        read += 1;
        if read % 10_000 == 0 {
            progress(read);
        }
    };
    remote.rows(table, &mut |row| {
        counted();
        merge.add_remote(&row)
    })?;
    let texts = remote.text_columns(table)?;
    consolidated.rows(table, &mut |mut row| {
        counted();
        remote.keep_as_texts(&mut row, &texts)?;
        merge.add_consolidated(&row)
    })?;
    remote.pending(table, &mut |key, pending| merge.add_pending(&key, pending))?;
    merge.finish(table.direction != Direction::Upload, options.details_max)
}
