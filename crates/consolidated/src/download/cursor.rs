//! Tables whose changes are found by the user's own scripts, by a time that the application keeps in them.
//!
//! The watermark of such a table is a time: the earliest start of any transaction that was open before the snapshot was taken, so that
//! whatever a transaction wrote that the snapshot has not seen bears a time from then on, if it bears that of its own beginning or a
//! later one. It is a whole second, and a second early: times that the application keeps in whole seconds are found too, and so is a
//! transaction whose beginning PostgreSQL has not shown yet. Rows changed in that second may come twice.
//!
//! | field | bytes |
//! |---|---|
//! | format | 1 byte, `T` |
//! | time | 8 bytes, little-endian: microseconds since 1970 |

use std::collections::HashSet;

use headwater_model::script::{Script, Step};
use headwater_protocol::message::WatermarkEntry;
use headwater_protocol::{Row, Value};

use super::{Download, partition_key, write_row};
use crate::rows::RowsWriter;
use crate::scripts::{Actor, Given, LONG_AGO, Prepared};
use crate::{Connection, Error, Plan, TablePlan};

const FORMAT: u8 = b'T';
const SECOND: i64 = 1_000_000;

/// The time in a watermark; `None`: it is one of transactions.
pub(super) fn time_of(mark: &[u8]) -> Option<i64> {
    let (&FORMAT, rest) = mark.split_first()? else { return None };
    Some(i64::from_le_bytes(rest.try_into().ok()?))
}

fn mark_of(time: i64) -> Vec<u8> {
    [&[FORMAT][..], &time.to_le_bytes()].concat()
}

/// The time that tables with a cursor will have been read at; to be asked before the snapshot is taken. `None`: no table has one, or
/// it can't be told now.
pub(super) fn read_time(connection: &mut dyn Connection, plan: &Plan) -> Result<Option<i64>, Error> {
    if plan.tables.iter().all(|table| table.table.script(Step::DownloadCursor).is_none()) {
        return Ok(None);
    }
    Ok(connection.earliest_start()?.map(|start| (start.div_euclid(SECOND) - 1) * SECOND))
}

/// Which rows of a cursor are wanted: those that are newer than a time, in some partitions.
pub(super) struct Wanted<'r> {
    pub(super) since: i64,
    pub(super) partitions: &'r [Row],
}

/// The stored rows of these keys: as the table's script finds them, if it has one.
pub(super) fn fetch(
    connection: &mut dyn Connection,
    actor: &Actor,
    table: &TablePlan,
    keys: &[Row],
) -> Result<Vec<Row>, Error> {
    let Some(script) = table.table.script(Step::UploadFetch) else { return connection.fetch(table, keys, false) };
    let prepared = Prepared::new(connection.dialect(), table, script, false)?;
    let image = |key: &Row| {
        let mut image = vec![Value::Null; table.types.len()];
        for (place, value) in table.table.key.iter().zip(key) {
            image[*place] = value.clone();
        }
        image
    };
    let images: Vec<Row> = keys.iter().map(image).collect();
    let all = images.iter().map(|image| Given { new: Some(image), ..Given::default() });
    Ok(prepared.row_of_each(connection, actor, all)?.into_iter().flatten().collect())
}

impl Download<'_, '_> {
    /// What is to be sent of a table with a cursor.
    pub(super) fn read_by_cursor(
        connection: &mut dyn Connection,
        actor: &Actor,
        table: &TablePlan,
        cursor: &Script,
        wanted: &[Wanted<'_>],
        rows: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        let dialect = connection.dialect();
        if let Some(script) = table.table.script(Step::DownloadDeleteCursor) {
            let deletes = Prepared::new(dialect, table, script, false)?;
            for wanted in wanted.iter().filter(|wanted| wanted.since > LONG_AGO) {
                let given = Given { last_download: wanted.since, ..Given::default() };
                deletes.each(connection, actor, &given, &table.key_types, &mut |key| {
                    write_row(rows.delete(), &key);
                    rows.end_row(true)
                })?;
            }
        }
        let upserts = Prepared::new(dialect, table, cursor, false)?;
        for wanted in wanted {
            let partitions: HashSet<Vec<u8>> =
                wanted.partitions.iter().filter_map(|partition| table.partition_key(partition)).collect();
            let given = Given { last_download: wanted.since, ..Given::default() };
            upserts.each(connection, actor, &given, &table.types, &mut |row| {
                if !table.partition_of(&row).is_some_and(|partition| partitions.contains(&partition)) {
                    return Ok(());
                }
                write_row(rows.upsert(), &row);
                rows.end_row(true)
            })?;
        }
        Ok(())
    }

    /// Notes what will have been seen of a table with a cursor: up to now, or where that can't be told up to where it was.
    pub(super) fn remember_time(&mut self, table: &TablePlan, wanted: &[Wanted<'_>]) -> Result<(), Error> {
        for Wanted { since, partitions } in wanted {
            let mark = self.mark_place(mark_of(self.time.unwrap_or(*since)));
            for row in *partitions {
                let partition = partition_key(table, row)?;
                self.seen.entries.push(WatermarkEntry { table: table.number, partition, mark });
            }
        }
        Ok(())
    }

    fn mark_place(&mut self, mark: Vec<u8>) -> u32 {
        let place = self.seen.marks.iter().position(|known| *known == mark).unwrap_or_else(|| {
            self.seen.marks.push(mark);
            self.seen.marks.len() - 1
        });
        place as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_from_a_snapshot() {
        assert_eq!(time_of(&mark_of(-5)), Some(-5));
        for other in [&[][..], b"T", b"T1234567", b"T123456789", &[1, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(time_of(other), None);
        }
    }
}
