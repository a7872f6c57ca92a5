//! A real database with planted faults: each call may fail, panic, or lose its answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use headwater_consolidated::backend::{Changes, Gaps, Inserted, Mode};
use headwater_consolidated::catalogue::Catalogue;
use headwater_consolidated::results::{
    Canceller, Placeholder, QueryBackend, QueryConnection, ReadOptions, ResultColumn, ResultSink,
};
use headwater_consolidated::{Backend, Connection, Dialect, Error, Plan, RowsWriter, TablePlan};
use headwater_protocol::{Row, Value};

/// A fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The database could not do it now.
    Busy,
    /// The connection is lost before the call.
    Lost,
    /// The connection is lost after the call did its work.
    AnswerLost,
    /// A defect.
    Panic,
}

/// The faults planted: the first that names a call strikes, once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<Vec<(&'static str, Fault)>>>);

impl Faults {
    pub(crate) fn plant(&self, faults: impl IntoIterator<Item = (&'static str, Fault)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// How many have not struck yet.
    pub(crate) fn left(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn take(&self, call: &str) -> Option<Fault> {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = faults.iter().position(|(planted, _)| *planted == call)?;
        Some(faults.remove(place).1)
    }

    fn around<T>(&self, call: &'static str, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let planted = |broken| Err(Error::Retry { detail: "planted".into(), broken });
        match self.take(call) {
            None => run(),
            Some(Fault::Busy) => planted(false),
            Some(Fault::Lost) => planted(true),
            Some(Fault::AnswerLost) => run().and_then(|_| planted(true)),
            Some(Fault::Panic) => panic!("a planted panic in {call}"),
        }
    }
}

/// A database with faults.
pub(crate) struct Faulty {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) faults: Faults,
}

impl QueryBackend for Faulty {
    fn connect_for_queries(&self) -> Result<Box<dyn QueryConnection>, Error> {
        Ok(self.connect()?)
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    fn placeholder(&self) -> Placeholder {
        self.inner.placeholder()
    }
}

impl Backend for Faulty {
    fn connect(&self) -> Result<Box<dyn Connection>, Error> {
        let inner = self.inner.connect()?;
        Ok(Box::new(FaultyConnection { inner, faults: self.faults.clone() }))
    }

    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }
}

struct FaultyConnection {
    inner: Box<dyn Connection>,
    faults: Faults,
}

impl QueryConnection for FaultyConnection {
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

impl Connection for FaultyConnection {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn begin(&mut self, mode: Mode) -> Result<(), Error> {
        let call = match mode {
            Mode::Upload => "begin upload",
            Mode::Download => "begin download",
        };
        self.faults.around(call, || self.inner.begin(mode))
    }

    fn commit(&mut self) -> Result<(), Error> {
        self.faults.around("commit", || self.inner.commit())
    }

    fn savepoint(&mut self) -> Result<(), Error> {
        self.inner.savepoint()
    }

    fn rollback_to_savepoint(&mut self) -> Result<(), Error> {
        self.inner.rollback_to_savepoint()
    }

    fn release_savepoint(&mut self) -> Result<(), Error> {
        self.inner.release_savepoint()
    }

    fn query(&mut self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, Error> {
        let call = if sql == "SELECT 1" { "probe" } else { "query" };
        self.faults.around(call, || self.inner.query(sql, parameters))
    }

    fn execute(&mut self, sql: &str, parameters: &[Value]) -> Result<u64, Error> {
        self.inner.execute(sql, parameters)
    }

    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        self.inner.batch(sql)
    }

    fn fetch(&mut self, table: &TablePlan, keys: &[Row], lock: bool) -> Result<Vec<Row>, Error> {
        self.inner.fetch(table, keys, lock)
    }

    fn insert(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        self.faults.around("insert", || self.inner.insert(table, rows))
    }

    fn update(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<u64, Error> {
        self.inner.update(table, rows)
    }

    fn take_moved(&mut self) -> Vec<Row> {
        self.inner.take_moved()
    }

    fn note_again(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<(), Error> {
        self.inner.note_again(table, rows)
    }

    fn delete(&mut self, table: &TablePlan, keys: &[&Row]) -> Result<u64, Error> {
        self.inner.delete(table, keys)
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
        self.faults.around("read", || self.inner.read_whole(table, partitions, out))
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
