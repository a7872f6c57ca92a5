//! Sets of rows by key: fetched, inserted, updated, deleted, each in one statement.

use std::collections::HashSet;

use futures_util::TryStreamExt;
use headwater_protocol::row::put_row;
use headwater_protocol::{Row, Type};
use tokio_postgres::{Client, Statement};

use super::bound::Bound;
use super::connection::PostgresConnection;
use super::raw;
use super::shape::{Shape, Verb};
use crate::backend::Inserted;
use crate::{Error, TablePlan};

impl PostgresConnection {
    pub(super) fn fetch_rows(&mut self, plan: &TablePlan, keys: &[Row], lock: bool) -> Result<Vec<Row>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let verb = if lock { Verb::FetchLock } else { Verb::Fetch };
        let (shape, statement) = self.table(plan, verb)?;
        let keys: Vec<&Row> = keys.iter().collect();
        let fetched = keys_of(&shape, &keys).and_then(|bound| {
            let columns: Vec<usize> = (0..shape.columns.len()).collect();
            let rows = self.query_rows("fetching rows", &statement, &bound)?;
            self.decode(&shape, &rows, &columns)
        });
        self.settle(plan, fetched)
    }

    /// `verb`: one of the inserts.
    pub(super) fn insert_rows(&mut self, plan: &TablePlan, rows: &[&Row], verb: Verb) -> Result<Inserted, Error> {
        if rows.is_empty() {
            return Ok(Inserted::All);
        }
        let (shape, statement) = self.table(plan, verb)?;
        let inserted = columns_of(&shape, &shape.inserted(), rows).and_then(|bound| {
            let keys = self.query_rows("inserting rows", &statement, &bound)?;
            self.application_ran();
            let stored = self.decode(&shape, &keys, &shape.returned())?;
            let keys = self.keys_of_stored(plan, &shape, stored, rows);
            let is_all =
                keys.len() == rows.len() && keys.iter().zip(rows).all(|(key, row)| is_key_of(&shape, key, row));
            Ok(if is_all { Inserted::All } else { Inserted::Keys(keys) })
        });
        if verb == Verb::Insert && inserted.is_ok() {
            self.note_key_is_unique(plan);
        }
        self.settle(plan, inserted)
    }

    pub(super) fn update_rows(&mut self, plan: &TablePlan, rows: &[&Row]) -> Result<u64, Error> {
        if rows.is_empty() {
            return Ok(0);
        }
        // The statement of a table that has nothing to update has no SET, so its shape comes by another.
        let (shape, _) = self.table(plan, Verb::Fetch)?;
        if !shape.sets_any() {
            let keys: Vec<Row> = rows.iter().map(|row| plan.key_of(row)).collect();
            return Ok(self.fetch_rows(plan, &keys, false)?.len() as u64);
        }
        let (shape, statement) = self.table(plan, Verb::Update)?;
        let updated = columns_of(&shape, &shape.updated(), rows).and_then(|bound| {
            if shape.deciding.is_empty() {
                return self.count("updating rows", &statement, &bound);
            }
            let stored = self.query_rows("updating rows", &statement, &bound)?;
            self.application_ran();
            let stored = self.decode(&shape, &stored, &shape.returned())?;
            Ok(self.keys_of_stored(plan, &shape, stored, rows).len() as u64)
        });
        self.settle(plan, updated)
    }

    /// The keys of rows that were stored, given with what decides where they are ([`Shape::returned`]). Those of rows that are elsewhere than
    /// they were sent are kept for [`take_moved`](crate::Connection::take_moved).
    fn keys_of_stored(&mut self, plan: &TablePlan, shape: &Shape, stored: Vec<Row>, rows: &[&Row]) -> Vec<Row> {
        let places = shape.returned();
        self.state.moved.clear();
        if !shape.deciding.is_empty() {
            let types: Vec<Type> = places.iter().map(|place| plan.types[*place]).collect();
            let bytes = |row: &Row| {
                let mut bytes = Vec::new();
                put_row(&mut bytes, &types, row);
                bytes
            };
            let sent = |row: &&Row| bytes(&places.iter().filter_map(|place| row.get(*place).cloned()).collect());
            let sent: HashSet<Vec<u8>> = rows.iter().map(sent).collect();
            let moved = stored.iter().filter(|row| !sent.contains(&bytes(row)));
            self.state.moved.extend(moved.map(|row| row.iter().take(shape.key.len()).cloned().collect::<Row>()));
        }
        let key = |mut row: Row| {
            row.truncate(shape.key.len());
            row
        };
        stored.into_iter().map(key).collect()
    }

    pub(super) fn note_rows_again(&mut self, plan: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
        let (shape, statement) = self.table(plan, Verb::NoteAgain)?;
        let noted =
            columns_of(&shape, &shape.noted, rows).and_then(|bound| self.count("noting rows", &statement, &bound));
        self.settle(plan, noted).map(|_| ())
    }

    pub(super) fn delete_rows(&mut self, plan: &TablePlan, keys: &[&Row]) -> Result<u64, Error> {
        if keys.is_empty() {
            return Ok(0);
        }
        let (shape, statement) = self.table(plan, Verb::Delete)?;
        let deleted = keys_of(&shape, keys).and_then(|bound| self.count("deleting rows", &statement, &bound));
        self.settle(plan, deleted)
    }

    fn count(&mut self, context: &str, statement: &Statement, bound: &[Bound]) -> Result<u64, Error> {
        let done = self.run(async |client| client.execute_raw(statement, bound).await);
        self.application_ran();
        done.map_err(|failure| self.failure(context, &failure))
    }

    fn query_rows(
        &mut self,
        context: &str,
        statement: &Statement,
        bound: &[Bound],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let run = async |client: &Client| client.query_raw(statement, bound).await?.try_collect::<Vec<_>>().await;
        let rows = self.run(run);
        rows.map_err(|failure| self.failure(context, &failure))
    }

    /// The rows of a result whose columns are these of the table.
    fn decode(&mut self, shape: &Shape, rows: &[tokio_postgres::Row], columns: &[usize]) -> Result<Vec<Row>, Error> {
        let mut decode = |row: &tokio_postgres::Row| {
            let mut values = Row::with_capacity(columns.len());
            for (field, place) in columns.iter().enumerate() {
                let value = shape.columns[*place].decode(raw::bytes(row, field)?, &mut self.scratch)?;
                values.push(value.to_value());
            }
            Ok(values)
        };
        rows.iter().map(&mut decode).collect()
    }
}

fn is_key_of(shape: &Shape, key: &Row, row: &Row) -> bool {
    shape.key.iter().map(|place| row.get(*place)).eq(key.iter().map(Some))
}

/// Keys as parameters.
fn keys_of(shape: &Shape, keys: &[&Row]) -> Result<Vec<Bound>, Error> {
    let columns = shape.key.iter().enumerate();
    columns.map(|(field, place)| shape.columns[*place].bound(keys.iter().map(|key| key.get(field)))).collect()
}

/// These columns of whole rows as parameters.
fn columns_of(shape: &Shape, places: &[usize], rows: &[&Row]) -> Result<Vec<Bound>, Error> {
    places.iter().map(|place| shape.columns[*place].bound(rows.iter().map(|row| row.get(*place)))).collect()
}
