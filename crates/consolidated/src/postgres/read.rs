//! Downloads: whole partitions, and what changed in them, from the driver's buffers straight into frames.

use std::pin::pin;

use futures_util::TryStreamExt;
use headwater_protocol::Row;
use tokio_postgres::{Client, Statement};

use super::bound::Bound;
use super::codec::Scratch;
use super::connection::PostgresConnection;
use super::raw;
use super::shape::{Shape, Verb};
use super::watermark::Watermark;
use crate::backend::{Changes, Reading};
use crate::{Error, RowsWriter, TablePlan};

/// So many rows of a table are counted, in some tens of milliseconds.
const COUNTED_MAX: u64 = 500_000;

/// What ends a stream of rows early.
pub(super) enum Stop {
    Server(tokio_postgres::Error),
    Own(Error),
}

impl From<tokio_postgres::Error> for Stop {
    fn from(failure: tokio_postgres::Error) -> Stop {
        Stop::Server(failure)
    }
}

impl PostgresConnection {
    pub(super) fn read_whole_rows(
        &mut self,
        plan: &TablePlan,
        partitions: &[Row],
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        let (shape, statement) = self.table(plan, Verb::Whole)?;
        if !shape.partition.is_empty() && partitions.is_empty() {
            return Ok(());
        }
        self.look_up_by_index(false)?;
        let streamed = self.write_rows(&shape, &statement, partitions, out);
        self.settle(plan, streamed)
    }

    /// The same for the rows with a value in one of these columns.
    pub(super) fn read_valued_rows(
        &mut self,
        plan: &TablePlan,
        partitions: &[Row],
        columns: &[u32],
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        let (shape, _) = self.table(plan, Verb::Whole)?;
        self.look_up_by_index(false)?;
        let statement = self.prepare(&shape.valued(columns))?;
        let streamed = self.write_rows(&shape, &statement, partitions, out);
        self.settle(plan, streamed)
    }

    /// The same for some of the rows.
    pub(super) fn read_some_rows(
        &mut self,
        plan: &TablePlan,
        partitions: &[Row],
        rows_max: u32,
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        let (shape, _) = self.table(plan, Verb::Whole)?;
        let statement = self.prepare(&format!("{} LIMIT {rows_max}", shape.sql(Verb::Whole)))?;
        let streamed = self.write_rows(&shape, &statement, partitions, out);
        self.settle(plan, streamed)
    }

    fn write_rows(
        &mut self,
        shape: &Shape,
        statement: &Statement,
        partitions: &[Row],
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        let bound = partition_arrays(shape, partitions)?;
        self.stream("reading a table", statement, &bound, |row, scratch| {
            let mut writer = out.upsert();
            for (place, column) in shape.columns.iter().enumerate() {
                writer.push(column.decode(raw::bytes(row, place)?, scratch)?);
            }
            writer.finish();
            out.end_row(false)
        })
    }

    /// About how many rows there are: as many as were counted, or where they are too many for that, as many as the planner expects.
    pub(super) fn count_rows(&mut self, reading: &Reading<'_>) -> Result<u64, Error> {
        let (Reading::Whole(plan, _) | Reading::Changes(Changes { table: plan, .. })) = reading;
        let (shape, _) = self.table(plan, Verb::Whole)?;
        let (sql, bound) = match reading {
            Reading::Whole(_, partitions) => (shape.whole_rows(), partition_arrays(&shape, partitions)?),
            Reading::Changes(changes) => {
                let mut bound = change_parameters(&shape, changes)?;
                bound.truncate(shape.partition.len() + 3);
                (shape.changed_rows(), bound)
            }
        };
        let counted =
            self.told(&format!("SELECT count(*)::text FROM ({sql} LIMIT {COUNTED_MAX}) AS counted"), &bound)?;
        let counted = counted.parse().unwrap_or(0);
        if counted < COUNTED_MAX {
            return Ok(counted);
        }
        let planned = self.told(&format!("EXPLAIN (FORMAT JSON) {sql}"), &bound)?;
        let planned: serde_json::Value = serde_json::from_str(&planned).unwrap_or_default();
        Ok(planned[0]["Plan"]["Plan Rows"].as_f64().map_or(counted, |rows| (rows as u64).max(counted)))
    }

    /// The text that a statement gives.
    pub(super) fn told(&mut self, sql: &str, bound: &[Bound]) -> Result<String, Error> {
        let statement = self.prepare(sql)?;
        let mut text = String::new();
        self.stream("counting rows", &statement, bound, |row, _| {
            text = String::from_utf8_lossy(raw::bytes(row, 0)?.unwrap_or_default()).into_owned();
            Ok(())
        })?;
        Ok(text)
    }

    /// Whether there is a row in the side tables that [`PostgresConnection::read_changed_rows`] would look at, of each of these: one
    /// statement.
    pub(super) fn which_have_changed(&mut self, all: &[Changes<'_>]) -> Result<Vec<bool>, Error> {
        let (mut looks, mut bound) = (Vec::new(), Vec::new());
        for changes in all {
            let (shape, _) = self.table(changes.table, Verb::Changes)?;
            looks.push(format!("EXISTS ({})", shape.changed(bound.len() + 1)));
            bound.extend(seen_parameters(&shape, changes)?);
        }
        self.look_up_by_index(true)?;
        let sql = format!("SELECT {}", looks.join(", "));
        let statement = self.kept(&sql)?;
        let mut found = vec![true; all.len()];
        let looked = self.stream("looking for changes", &statement, &bound, |row, _| {
            for (place, found) in found.iter_mut().enumerate() {
                *found = raw::bytes(row, place)? == Some(&[1]);
            }
            Ok(())
        });
        if looked.is_err() {
            // A table may have been altered.
            self.forget(&sql, all.iter().map(|changes| changes.table));
        }
        looked.map(|()| found)
    }

    pub(super) fn read_changed_rows(
        &mut self,
        changes: &Changes<'_>,
        out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        let plan = changes.table;
        let verb = if changes.own.is_some() && out.leaves_own_out() { Verb::ChangesOfOthers } else { Verb::Changes };
        let (shape, statement) = self.table(plan, verb)?;
        if !shape.partition.is_empty() && changes.partitions.is_empty() {
            return Ok(());
        }
        self.look_up_by_index(true)?;
        let streamed = change_parameters(&shape, changes).and_then(|bound| {
            self.stream("reading changes", &statement, &bound, |row, scratch| {
                let is_true = |field| raw::bytes(row, field).map(|bytes| bytes == Some(&[1]));
                let (own, lives, is_there) = (is_true(0)?, is_true(1)?, is_true(2)?);
                if lives {
                    let mut writer = out.upsert();
                    for (place, column) in shape.columns.iter().enumerate() {
                        writer.push(column.decode(raw::bytes(row, place + 3)?, scratch)?);
                    }
                    writer.finish();
                } else {
                    let mut writer = if is_there { out.leave() } else { out.delete() };
                    for place in &shape.key {
                        writer.push(shape.columns[*place].decode(raw::bytes(row, place + 3)?, scratch)?);
                    }
                    writer.finish();
                }
                out.end_row(own)
            })
        });
        self.settle(plan, streamed)
    }

    pub(super) fn partitions_below_rows(
        &mut self,
        plan: &TablePlan,
        parents: &[Row],
        lock: bool,
    ) -> Result<Vec<(Row, Row)>, Error> {
        if parents.is_empty() {
            return Ok(Vec::new());
        }
        let (shape, statement) =
            self.table(plan, if lock { Verb::PartitionsBelowLock } else { Verb::PartitionsBelow })?;
        let keys = shape.link().enumerate();
        let keys = keys.map(|(field, place)| shape.columns[place].bound(parents.iter().map(|key| key.get(field))));
        let mut found = Vec::new();
        let streamed = keys.collect::<Result<Vec<_>, _>>().and_then(|bound| {
            self.stream("finding partitions", &statement, &bound, |row, scratch| {
                let number = raw::bytes(row, 0)?.and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes);
                let key = number.and_then(|number| parents.get(usize::try_from(number).ok()?.checked_sub(1)?));
                let mut partition = Row::with_capacity(shape.partition.len());
                for (place, of) in shape.partition.iter().enumerate() {
                    partition.push(of.column.decode(raw::bytes(row, place + 1)?, scratch)?.to_value());
                }
                found.extend(key.map(|key| (key.clone(), partition)));
                Ok(())
            })
        });
        self.settle(plan, streamed).map(|()| found)
    }

    /// Whether equal partitions may have different bytes.
    pub(super) fn has_spelled(&mut self, plan: &TablePlan) -> Result<bool, Error> {
        Ok(!plan.partition_types.is_empty() && self.shape(plan)?.has_spelled_partitions())
    }

    /// For each partition, the place of the first that is equal. A value of another type than its column's is equal to none.
    pub(super) fn classes(&mut self, plan: &TablePlan, partitions: &[Row]) -> Result<Vec<usize>, Error> {
        let shape = self.shape(plan)?;
        let statement = self.kept(&shape.partition_classes())?;
        let is_typed =
            |row: &Row| row.iter().zip(&plan.partition_types).all(|(value, kind)| value.as_ref().kind() == Some(*kind));
        let (places, typed): (Vec<usize>, Vec<Row>) = partitions
            .iter()
            .enumerate()
            .filter(|(_, row)| is_typed(row))
            .map(|(place, row)| (place, row.clone()))
            .unzip();
        let mut classes: Vec<usize> = (0..partitions.len()).collect();
        let mut next = places.iter();
        let streamed = partition_arrays(&shape, &typed).and_then(|bound| {
            self.stream("comparing partitions", &statement, &bound, |row, _| {
                let number = raw::bytes(row, 0)?.and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes);
                let first = number.and_then(|number| places.get(usize::try_from(number).ok()?.checked_sub(1)?));
                let own = next.next().and_then(|place| classes.get_mut(*place));
                let (Some(first), Some(own)) = (first, own) else {
                    return Err(raw::unreadable("n", "not the number of a partition"));
                };
                *own = *first;
                Ok(())
            })
        });
        self.settle(plan, streamed).map(|()| classes)
    }

    /// How rows spell their partitions.
    pub(super) fn read_spellings(&mut self, reading: &Reading<'_>) -> Result<Vec<Row>, Error> {
        let (Reading::Whole(plan, _) | Reading::Changes(Changes { table: plan, .. })) = reading;
        let shape = self.shape(plan)?;
        let (sql, bound) = match reading {
            Reading::Whole(_, partitions) => (shape.spellings(), partition_arrays(&shape, partitions)?),
            Reading::Changes(changes) => {
                let mut bound = seen_parameters(&shape, changes)?;
                bound.extend(partition_arrays(&shape, changes.wanted)?);
                (shape.changed_spellings(), bound)
            }
        };
        let statement = self.kept(&sql)?;
        let mut found = Vec::new();
        let streamed = self.stream("looking for the spellings of partitions", &statement, &bound, |row, scratch| {
            let mut partition = Row::with_capacity(shape.partition.len());
            for (place, of) in shape.partition.iter().enumerate() {
                partition.push(of.column.decode(raw::bytes(row, place)?, scratch)?.to_value());
            }
            found.push(partition);
            Ok(())
        });
        self.settle(plan, streamed).map(|()| found)
    }

    /// Runs a statement and gives its rows to `each` as they come; no more of them are in memory than the driver has read.
    pub(super) fn stream(
        &mut self,
        context: &str,
        statement: &Statement,
        bound: &[Bound],
        each: impl FnMut(&tokio_postgres::Row, &mut Scratch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.stream_raw(statement, bound, each).map_err(|stop| match stop {
            Stop::Server(failure) => self.failure(context, &failure),
            Stop::Own(error) => error,
        })
    }

    /// The same, with what ended it as it came.
    pub(super) fn stream_raw(
        &mut self,
        statement: &Statement,
        bound: &[Bound],
        mut each: impl FnMut(&tokio_postgres::Row, &mut Scratch) -> Result<(), Error>,
    ) -> Result<(), Stop> {
        let begin = self.guard.as_ref().filter(|_| self.state.mode.is_none()).map(|_| self.guarded("BEGIN"));
        if let Some(begin) = &begin {
            self.queued.sql([begin, ";"]);
        }
        let queued = self.take_queued();
        let scratch = &mut self.scratch;
        self.link.run(async |client: &Client| {
            let streamed = async {
                let rows = queued.before(client, client.query_raw(statement, bound)).await;
                let mut rows = pin!(rows.map_err(Stop::Server)?);
                while let Some(row) = rows.try_next().await.map_err(Stop::Server)? {
                    each(&row, scratch).map_err(Stop::Own)?;
                }
                Ok(())
            };
            let streamed = streamed.await;
            if begin.is_some() {
                client.batch_execute("COMMIT").await.map_err(Stop::Server)?;
            }
            streamed
        })
    }
}

fn partition_arrays(shape: &Shape, partitions: &[Row]) -> Result<Vec<Bound>, Error> {
    let columns = shape.partition.iter().enumerate();
    columns.map(|(field, of)| of.column.bound(partitions.iter().map(|partition| partition.get(field)))).collect()
}

/// The first of them, which say what the remote has not seen.
fn seen_parameters(shape: &Shape, changes: &Changes<'_>) -> Result<Vec<Bound>, Error> {
    let watermark = Watermark::from_bytes(changes.since)?;
    let mut bound = partition_arrays(shape, changes.partitions)?;
    bound.push(Bound::transaction(Some(watermark.end)));
    bound.push(Bound::transactions(&watermark.open));
    Ok(bound)
}

fn change_parameters(shape: &Shape, changes: &Changes<'_>) -> Result<Vec<Bound>, Error> {
    let own = changes.own.and_then(|mark| mark.try_into().ok()).map(u64::from_be_bytes);
    let mut bound = seen_parameters(shape, changes)?;
    bound.push(Bound::transaction(own));
    bound.extend(partition_arrays(shape, changes.wanted)?);
    Ok(bound)
}
