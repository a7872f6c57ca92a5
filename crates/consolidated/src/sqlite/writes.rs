//! Rows inserted and updated one by one, whatever is stored.
//!
//! SQLite refuses a statement that gives a generated column a value, so such columns are left out: the file computes them, and the
//! row comes down as it is stored.

use std::sync::Arc;

use headwater_model::Table;
use headwater_model::sql::quote;
use headwater_protocol::stored::Scratch;
use headwater_protocol::{Row, Value};

use super::connection::SqliteConnection;
use super::error::sort_of_rows;
use super::statements::equal;
use super::values::{bind, check_storable};
use crate::backend::Inserted;
use crate::catalogue::{integer, text};
use crate::{Connection as _, Error, TablePlan};

/// The generated columns of a table (its name), stored or not.
const GENERATED_SQL: &str = "SELECT name FROM pragma_table_xinfo(?1) WHERE hidden IN (2, 3)";

/// The statements that write rows of a table, as the schema has it in one version.
#[derive(Debug)]
pub(super) struct Writes {
    /// The version of the schema of which that is true.
    schema: i64,
    /// [`Writes::inserted`]; nothing where the key exists.
    insert: String,
    /// [`Writes::set`], then the key; empty if there is nothing to set.
    update: String,
    /// Places of the columns that are not generated.
    inserted: Vec<usize>,
    /// Those of them that are not of the key.
    set: Vec<usize>,
}

impl Writes {
    fn new(schema: i64, table: &Table, generated: &[String]) -> Writes {
        let name = quote(&table.name);
        let is_generated = |place: &usize| {
            let column = &table.columns[*place].name;
            generated.iter().any(|generated| generated.eq_ignore_ascii_case(column))
        };
        let inserted: Vec<usize> = (0..table.columns.len()).filter(|place| !is_generated(place)).collect();
        let set: Vec<usize> = inserted.iter().copied().filter(|place| !table.key.contains(place)).collect();
        let column = |place: &usize| quote(&table.columns[*place].name);
        let key: Vec<String> = table.key.iter().map(column).collect();
        let columns: Vec<String> = inserted.iter().map(column).collect();
        let values: Vec<String> = (1..=columns.len()).map(|parameter| format!("?{parameter}")).collect();
        let assign: Vec<String> =
            set.iter().zip(1..).map(|(place, parameter)| format!("{} = ?{parameter}", column(place))).collect();
        Writes {
            schema,
            insert: format!(
                "INSERT INTO {name} ({}) VALUES ({}) ON CONFLICT ({}) DO NOTHING",
                columns.join(", "),
                values.join(", "),
                key.join(", ")
            ),
            update: if assign.is_empty() {
                String::new()
            } else {
                format!("UPDATE {name} SET {} WHERE {}", assign.join(", "), equal(&key, assign.len() + 1))
            },
            inserted,
            set,
        }
    }
}

impl SqliteConnection {
    /// The statements that write rows of a table.
    fn writes(&mut self, plan: &TablePlan) -> Result<Arc<Writes>, Error> {
        let rows = self.query("PRAGMA schema_version", &[])?;
        let schema = rows.first().map_or(0, |row| integer(row, 0));
        if let Some(known) = self.known_writes(plan).filter(|known| known.schema == schema) {
            return Ok(known);
        }
        let found = self.query(GENERATED_SQL, &[Value::text(plan.table.name.as_str())])?;
        let generated: Vec<String> = found.iter().map(|row| text(row, 0)).collect();
        let writes = Arc::new(Writes::new(schema, &plan.table, &generated));
        self.note_writes(plan, Arc::clone(&writes));
        Ok(writes)
    }

    pub(super) fn insert_rows(&mut self, plan: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        let (sql, fetch) = (self.writes(plan)?, self.table_sql(plan));
        let mut statement = self.prepare_for_rows(&sql.insert, &fetch.fetch)?;
        let mut scratch = Scratch::default();
        let mut inserted = Vec::with_capacity(rows.len());
        for row in rows {
            check_storable(plan, row)?;
            for (index, place) in sql.inserted.iter().enumerate() {
                bind(&mut statement, index + 1, row[*place].as_ref(), &mut scratch)?;
            }
            if statement.raw_execute().map_err(|error| sort_of_rows(error, &sql.insert))? == 1 {
                inserted.push(plan.key_of(row));
            }
        }
        Ok(if inserted.len() == rows.len() { Inserted::All } else { Inserted::Keys(inserted) })
    }

    pub(super) fn update_rows(&mut self, plan: &TablePlan, rows: &[&Row]) -> Result<u64, Error> {
        let (sql, fetch) = (self.writes(plan)?, self.table_sql(plan));
        if sql.update.is_empty() {
            return Ok(rows.len() as u64);
        }
        let mut statement = self.prepare_for_rows(&sql.update, &fetch.fetch)?;
        let mut scratch = Scratch::default();
        let mut updated = 0;
        for row in rows {
            check_storable(plan, row)?;
            for (index, place) in sql.set.iter().chain(&plan.table.key).enumerate() {
                bind(&mut statement, index + 1, row[*place].as_ref(), &mut scratch)?;
            }
            updated += statement.raw_execute().map_err(|error| sort_of_rows(error, &sql.update))? as u64;
        }
        Ok(updated)
    }
}
