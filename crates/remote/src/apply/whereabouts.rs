//! In which partition a row lay before this download, by what the consolidated database had said.
//!
//! Of most tables the row itself tells. A table that takes its partition from another has its rows where their parents are, and by the
//! time its own partitions come whole or are left, those have changed already, or have pending changes of which the consolidated database
//! knows nothing. So for each table from which others take their partition a temporary one keeps, by key, where rows lay that are not so
//! in the table itself (NULL: in no partition):
//!
//! | a parent | where it lay |
//! |---|---|
//! | has a held row | where that lies |
//! | else has a pending change | where its old image lies |
//! | is changed or deleted by this download | where it lay until then |
//! | any other | where it lies |

use std::fmt::Write as _;

use headwater_model::sql::quote;
use headwater_protocol::Value;
use rusqlite::params_from_iter;

use super::Apply;
use crate::error::{Error, While};
use crate::local::{Local, from_wire, to_wire};
use crate::plan::{Plan, TablePlan};
use crate::rows::Rows;

/// Makes and fills the temporary tables. Parents come first: where their children lay depends on them.
pub(super) fn remember_pending(rows: &Rows<'_>, plan: &Plan) -> Result<(), Error> {
    for table in plan.tables.iter().filter(|table| !table.below.is_empty()) {
        let (name, keys, values) =
            (kept(table), columns("k", table.key_types.len()), columns("p", table.partition_types.len()));
        let sql = format!(
            "CREATE TEMP TABLE IF NOT EXISTS {name} ({keys}, {values}, PRIMARY KEY ({keys})) WITHOUT ROWID; DELETE FROM temp.{name}",
        );
        rows.connection.execute_batch(&sql).while_doing("beginning to apply a download")?;
        let mut after = Vec::new();
        loop {
            let held = rows.held_keys(table, &after, 100)?;
            let Some(last) = held.last() else { break };
            after.clone_from(last);
            for key in held {
                let image = rows.held(table, &key)?.flatten().map(|row| from_wire(&row));
                keep_image(rows, plan, table, &from_wire(&rows.key_of_bytes(table, &key)?), image.as_deref())?;
            }
        }
        if table.is_tracked() {
            for (key, old) in pending(rows, table)? {
                keep_image(rows, plan, table, &key, old.as_deref())?;
            }
        }
    }
    Ok(())
}

type Changed = (Vec<Local>, Option<Vec<Local>>);

/// The keys of all pending changes, each with its old image.
fn pending(rows: &Rows<'_>, table: &TablePlan) -> Result<Vec<Changed>, Error> {
    let mut select = rows.prepare(&table.sql.changes_where("1 = 1"))?;
    let read =
        |row: &rusqlite::Row<'_>| crate::rows::Pending::read(table, row).map(|pending| (pending.key, pending.old));
    let found = select.query_map([], read);
    found.and_then(Iterator::collect).while_doing("reading the log")
}

fn keep_image(
    rows: &Rows<'_>,
    plan: &Plan,
    table: &TablePlan,
    key: &[Local],
    image: Option<&[Local]>,
) -> Result<(), Error> {
    let lay = match image {
        Some(image) => partition_of(rows, plan, table, image)?,
        None => vec![Local::Null; table.partition_types.len()],
    };
    let values: Vec<&Local> = key.iter().chain(&lay).collect();
    let places: Vec<&str> = values.iter().map(|_| "?").collect();
    let sql = format!("INSERT OR IGNORE INTO temp.{} VALUES ({})", kept(table), places.join(", "));
    rows.prepare(&sql)?.execute(params_from_iter(values)).while_doing("noting where a row lay").map(drop)
}

/// The values of the partition that an image lies in, of which the consolidated database spoke before this download.
pub(super) fn partition_of(
    rows: &Rows<'_>,
    plan: &Plan,
    table: &TablePlan,
    image: &[Local],
) -> Result<Vec<Local>, Error> {
    let Some((_, through)) = &table.parent else {
        return Ok(table.partition.iter().filter_map(|place| image.get(*place).cloned()).collect());
    };
    let parameter = |place: usize| {
        let index = through.iter().position(|of| *of == place).map_or(0, |index| index + 1);
        format!("?{index}")
    };
    let sql = format!("SELECT {}", values(plan, table, &parameter).join(", "));
    let link: Vec<&Local> = through.iter().filter_map(|place| image.get(*place)).collect();
    let count = table.partition_types.len();
    let read = |row: &rusqlite::Row<'_>| (0..count).map(|index| Local::read(row, index)).collect();
    rows.prepare(&sql)?.query_row(params_from_iter(link), read).while_doing("looking where a row lay")
}

/// The values of the partition that a row lay in, as SQL; `column` gives its columns.
pub(super) fn values(plan: &Plan, table: &TablePlan, column: &dyn Fn(usize) -> String) -> Vec<String> {
    if table.parent.is_none() {
        return table.partition.iter().map(|place| column(*place)).collect();
    }
    let mut from = "(SELECT 1) AS one".to_owned();
    let mut known = Vec::new();
    let (mut at, mut level) = (table, 0);
    while let Some((parent, through)) = &at.parent
        && let Some(parent) = plan.table(*parent)
    {
        let own: Vec<String> = through
            .iter()
            .map(|place| {
                if level == 0 { column(*place) } else { format!("r{level}.{}", quote(&at.table.columns[*place].name)) }
            })
            .collect();
        level += 1;
        let lay = own.iter().enumerate().map(|(index, own)| format!("w{level}.k{index} = {own}"));
        let is = parent.keys("").into_iter().zip(&own).map(|(key, own)| format!("r{level}.{key} = {own}"));
        let _ = write!(
            from,
            " LEFT JOIN temp.{} AS w{level} ON {} LEFT JOIN {} AS r{level} ON w{level}.k0 IS NULL AND {}",
            kept(parent),
            lay.collect::<Vec<_>>().join(" AND "),
            parent.name(),
            is.collect::<Vec<_>>().join(" AND ")
        );
        known.push(level);
        at = parent;
    }
    let value = |(index, place): (usize, &usize)| {
        let kept = known.iter().fold(String::new(), |mut kept, level| {
            let _ = write!(kept, " WHEN w{level}.k0 IS NOT NULL THEN w{level}.p{index}");
            kept
        });
        let own = format!("r{level}.{}", quote(&at.table.columns[*place].name));
        format!("(SELECT CASE{kept} ELSE {own} END FROM {from})")
    };
    at.partition.iter().enumerate().map(value).collect()
}

/// The temporary table of a table.
fn kept(table: &TablePlan) -> String {
    format!("\"hw_lay_{}\"", table.number)
}

fn columns(prefix: &str, count: usize) -> String {
    (0..count).map(|index| format!("{prefix}{index}")).collect::<Vec<_>>().join(", ")
}

impl Apply<'_> {
    /// Notes where rows lie that are about to change or go: those that meet a condition on the table, with these parameters.
    pub(super) fn remember_rows(&self, table: &TablePlan, condition: &str, parameters: &[Local]) -> Result<(), Error> {
        if table.below.is_empty() {
            return Ok(());
        }
        let own = table.name();
        let column = |place: usize| format!("{own}.{}", quote(&table.table.columns[place].name));
        let read = table.table.key.iter().map(|place| column(*place)).chain(values(self.plan, table, &column));
        let sql = format!(
            "INSERT OR IGNORE INTO temp.{} SELECT {} FROM {own} WHERE {condition}",
            kept(table),
            read.collect::<Vec<_>>().join(", ")
        );
        self.rows.execute(&sql, parameters).map(drop)
    }

    /// The same for the row of a key.
    pub(super) fn remember_row(&self, table: &TablePlan, key: &[Local]) -> Result<(), Error> {
        if table.below.is_empty() {
            return Ok(());
        }
        self.remember_rows(table, &table.by_key(), key)
    }

    /// Whether what takes its partition from a table has anything here that could be left behind.
    pub(super) fn has_below(&self, table: &TablePlan) -> Result<bool, Error> {
        for below in table.below.iter().filter_map(|number| self.plan.table(*number)) {
            if self.rows.has_any(below)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a row as it came down last is not to be put back: it lay in a partition that is left, or was below a row that is gone.
    pub(super) fn has_no_place(&self, table: &TablePlan, row: &[Value]) -> Result<bool, Error> {
        let lay = partition_of(&self.rows, self.plan, table, &from_wire(row))?;
        if let Some((parent, through)) = &table.parent
            && let Some(parent) = self.plan.table(*parent)
            && lay.contains(&Local::Null)
        {
            let key: Vec<Value> = through.iter().filter_map(|place| row.get(*place).cloned()).collect();
            return Ok(!self.is_at_the_head(parent, &key)?);
        }
        let partition = table.partition_bytes(&to_wire(&lay, &table.partition_types));
        Ok(self.left.contains(&(table.number, partition)))
    }

    /// Whether the consolidated database has a row, by what has come down until now.
    pub(super) fn is_at_the_head(&self, table: &TablePlan, key: &[Value]) -> Result<bool, Error> {
        if let Some(held) = self.rows.held(table, &table.key_bytes(key))? {
            return Ok(held.is_some());
        }
        let key = from_wire(key);
        match self.rows.pending(table, &key)?.filter(|pending| !pending.is_nothing()) {
            Some(pending) => Ok(pending.old.is_some()),
            None => Ok(self.rows.select(table, &key)?.is_some()),
        }
    }

    /// Whether an image lay in the partition with these values.
    pub(super) fn lay_in(&self, table: &TablePlan, image: &[Value], partition: &[Value]) -> Result<bool, Error> {
        let lay = partition_of(&self.rows, self.plan, table, &from_wire(image))?;
        Ok(to_wire(&lay, &table.partition_types) == partition)
    }
}
