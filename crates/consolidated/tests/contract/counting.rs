//! A connection that counts what it is asked for, and does what a test wants on the way.

use headwater_consolidated::backend::{Changes, EncodedChanges, Gaps, Inserted};
use headwater_consolidated::catalogue::Catalogue;
use headwater_consolidated::results::{Canceller, QueryConnection, ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Connection, Dialect, Error, Mode, Plan, RowsWriter, TablePlan};
use headwater_protocol::message::{ChangeOp, Refusal, RefusalCode};
use headwater_protocol::{Row, Value};
use std::collections::HashMap;

/// Counts statements on the application's tables, and goings back to the savepoint.
pub(crate) struct Counting<'a> {
    inner: Box<dyn Connection>,
    pub(crate) statements: usize,
    pub(crate) taken_back: usize,
    updates: usize,
    /// Called before each update, with its number from 1 on.
    pub(crate) before_update: Option<Box<dyn FnMut(usize) + Send + 'a>>,
    /// How many commits are refused from now on.
    pub(crate) commits_refused: usize,
    /// Changes may go straight from their frames, as the database says; otherwise none does.
    pub(crate) allows_plain: bool,
    /// How many changes did, by kind: some of them may have been taken back.
    pub(crate) plain: HashMap<u8, usize>,
}

impl<'a> Counting<'a> {
    pub(crate) fn new(inner: Box<dyn Connection>) -> Counting<'a> {
        Counting {
            inner,
            statements: 0,
            taken_back: 0,
            updates: 0,
            before_update: None,
            commits_refused: 0,
            allows_plain: false,
            plain: HashMap::new(),
        }
    }
}

impl QueryConnection for Counting<'_> {
    fn columns(&mut self, sql: &str, options: &ReadOptions) -> Result<Vec<ResultColumn>, Error> {
        self.inner.columns(sql, options)
    }

    fn read(
        &mut self,
        sql: &str,
        parameters: &[Value],
        options: &ReadOptions,
        sink: &mut dyn ResultSink,
    ) -> Result<(), Error> {
        self.inner.read(sql, parameters, options, sink)
    }

    fn rollback(&mut self) -> Result<(), Error> {
        self.inner.rollback()
    }

    fn canceller(&self) -> Option<Canceller> {
        self.inner.canceller()
    }
}

impl Connection for Counting<'_> {
    fn fetch(&mut self, table: &TablePlan, keys: &[Row], lock: bool) -> Result<Vec<Row>, Error> {
        self.statements += 1;
        self.inner.fetch(table, keys, lock)
    }
    fn insert(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        self.statements += 1;
        self.inner.insert(table, rows)
    }
    fn insert_new(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        self.statements += 1;
        self.inner.insert_new(table, rows)
    }
    fn update(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<u64, Error> {
        self.statements += 1;
        self.updates += 1;
        if let Some(before) = &mut self.before_update {
            before(self.updates);
        }
        self.inner.update(table, rows)
    }
    fn take_moved(&mut self) -> Vec<Row> {
        self.inner.take_moved()
    }
    fn note_again(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
        self.statements += 1;
        self.inner.note_again(table, rows)
    }
    fn delete(&mut self, table: &TablePlan, keys: &[&Row]) -> Result<u64, Error> {
        self.statements += 1;
        self.inner.delete(table, keys)
    }
    fn takes_plain(&mut self, table: &TablePlan, op: ChangeOp) -> Result<bool, Error> {
        Ok(self.allows_plain && self.inner.takes_plain(table, op)?)
    }
    fn change_plain(&mut self, table: &TablePlan, changes: EncodedChanges<'_>, compares: bool) -> Result<bool, Error> {
        let made = self.inner.change_plain(table, changes, compares)?;
        *self.plain.entry(changes.op() as u8).or_default() += if made { changes.count() } else { 0 };
        Ok(made)
    }
    fn stayed_plain(&mut self, tables: &[&TablePlan]) -> Result<bool, Error> {
        self.inner.stayed_plain(tables)
    }
    fn rollback_to_savepoint(&mut self) -> Result<(), Error> {
        self.taken_back += 1;
        self.inner.rollback_to_savepoint()
    }

    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }
    fn begin(&mut self, mode: Mode) -> Result<(), Error> {
        self.inner.begin(mode)
    }
    fn commit(&mut self) -> Result<(), Error> {
        if let Some(left) = self.commits_refused.checked_sub(1) {
            self.commits_refused = left;
            let refusal = Refusal { code: RefusalCode::Trigger, message: "refused by the test".to_owned() };
            return Err(Error::Refused { refusal, detail: "refused by the test".to_owned() });
        }
        self.inner.commit()
    }
    fn savepoint(&mut self) -> Result<(), Error> {
        self.inner.savepoint()
    }
    fn release_savepoint(&mut self) -> Result<(), Error> {
        self.inner.release_savepoint()
    }
    fn query(&mut self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, Error> {
        self.inner.query(sql, parameters)
    }
    fn execute(&mut self, sql: &str, parameters: &[Value]) -> Result<u64, Error> {
        self.inner.execute(sql, parameters)
    }
    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        self.inner.batch(sql)
    }
    fn check_deferred(&mut self) -> Result<(), Error> {
        self.inner.check_deferred()
    }
    fn set_actor(&mut self, user: &str, remote_id: &[u8; 16]) -> Result<(), Error> {
        self.inner.set_actor(user, remote_id)
    }
    fn own_mark(&mut self) -> Result<Vec<u8>, Error> {
        self.inner.own_mark()
    }
    fn watermark(&mut self) -> Result<Vec<u8>, Error> {
        self.inner.watermark()
    }
    fn accepts_watermark(&mut self, watermark: &[u8]) -> Result<bool, Error> {
        self.inner.accepts_watermark(watermark)
    }
    fn gaps(&mut self, watermark: &[u8]) -> Result<Gaps, Error> {
        self.inner.gaps(watermark)
    }
    fn parts_have_changed(&mut self, plan: &Plan) -> Result<bool, Error> {
        self.inner.parts_have_changed(plan)
    }
    fn tracking_query(&self, plan: &Plan) -> Option<headwater_consolidated::backend::Query> {
        self.inner.tracking_query(plan)
    }
    fn tracking_mark(&mut self, plan: &Plan) -> Result<Option<String>, Error> {
        self.inner.tracking_mark(plan)
    }
    fn settle_tables(&mut self, plan: &Plan) -> Result<(), Error> {
        self.inner.settle_tables(plan)
    }
    fn always_whole(&self, plan: &Plan) -> Vec<String> {
        self.inner.always_whole(plan)
    }
    fn end_download(&mut self) -> Result<Option<String>, Error> {
        self.inner.end_download()
    }
    fn whole_tracking(&mut self) -> &mut HashMap<u64, String> {
        self.inner.whole_tracking()
    }
    fn adopt_parts(&mut self, plan: &Plan) -> Result<(), Error> {
        self.inner.adopt_parts(plan)
    }
    fn read_whole(&mut self, table: &TablePlan, partitions: &[Row], out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        self.inner.read_whole(table, partitions, out)
    }
    fn read_changes(&mut self, changes: &Changes<'_>, out: &mut RowsWriter<'_, '_>) -> Result<(), Error> {
        self.inner.read_changes(changes, out)
    }
    fn partitions_below(&mut self, table: &TablePlan, parents: &[Row], lock: bool) -> Result<Vec<(Row, Row)>, Error> {
        self.inner.partitions_below(table, parents, lock)
    }
    fn catalogue(&mut self) -> Result<Catalogue, Error> {
        self.inner.catalogue()
    }
}
