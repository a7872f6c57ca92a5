//! What an engine needs of a database: the trait that SQLite and PostgreSQL implement, and that one contract suite tests.

use headwater_protocol::message::ChangeOp;
use headwater_protocol::row::{Cell, RowReader};
use headwater_protocol::wire::Reader;
use headwater_protocol::{DecodeError, Row, Type, Value, ValueRef};
use std::collections::HashMap;
use std::time::Duration;

use crate::commit_waits::CommitWaits;
use crate::results::{QueryBackend, QueryConnection};
use crate::{Error, Plan, RowsWriter, TablePlan};

/// Which SQL a database speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// SQLite.
    Sqlite,
    /// PostgreSQL 15 or newer.
    Postgres,
}

/// What a transaction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Writes, reading what is committed (PostgreSQL: READ COMMITTED; SQLite: BEGIN IMMEDIATE).
    Upload,
    /// Reads one snapshot and writes nothing (PostgreSQL: REPEATABLE READ READ ONLY; SQLite: a deferred read transaction whose
    /// snapshot is taken at once).
    Download,
}

/// Which rows of a set were inserted.
#[derive(Clone, Debug, PartialEq)]
pub enum Inserted {
    /// All of them.
    All,
    /// Those of these keys, in any order.
    Keys(Vec<Row>),
}

/// Changes of one kind to one table, encoded as a CHANGES frame has them. They have been read once, and are what they should be: each value
/// is of its column's type or NULL, and an update leaves the key as it is.
#[derive(Clone, Copy, Debug)]
pub struct EncodedChanges<'a> {
    op: ChangeOp,
    bytes: &'a [u8],
    count: usize,
}

/// One of [`EncodedChanges`].
#[derive(Clone, Copy, Debug)]
pub struct EncodedChange<'a, 'r> {
    /// The row as it was; empty for an insert.
    pub old: &'r [ValueRef<'a>],
    /// The row as it is to be; empty for a deletion.
    pub new: &'r [ValueRef<'a>],
    /// All of its bytes, its op among them.
    pub bytes: &'a [u8],
}

impl<'a> EncodedChanges<'a> {
    /// So many changes of this kind.
    pub fn new(op: ChangeOp, bytes: &'a [u8], count: usize) -> EncodedChanges<'a> {
        EncodedChanges { op, bytes, count }
    }

    /// What they do.
    pub fn op(&self) -> ChangeOp {
        self.op
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Reads them one by one; `types` are those of the table's columns.
    pub fn read<E: From<DecodeError>>(
        &self,
        types: &[Type],
        mut each: impl FnMut(EncodedChange<'a, '_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut reader, mut images) = (Reader::new(self.bytes), Images::default());
        while !reader.is_empty() {
            each(images.read(&mut reader, self.op, types, self.bytes.len())?)?;
        }
        Ok(())
    }
}

/// Room for the images of a change, used again for the next.
#[derive(Debug, Default)]
pub(crate) struct Images<'a> {
    old: Vec<ValueRef<'a>>,
    new: Vec<ValueRef<'a>>,
}

impl<'a> Images<'a> {
    /// Reads a change of this kind; one of another kind is an error.
    pub(crate) fn read(
        &mut self,
        reader: &mut Reader<'a>,
        op: ChangeOp,
        types: &[Type],
        value_bytes_max: usize,
    ) -> Result<EncodedChange<'a, '_>, DecodeError> {
        let before = reader.rest();
        let actual = reader.u8("change")?;
        if actual != op as u8 {
            return Err(DecodeError::Undefined { field: "change", actual: u64::from(actual) });
        }
        let Images { old, new } = self;
        old.clear();
        new.clear();
        if op != ChangeOp::Insert {
            read_image(&mut RowReader::new(reader, types, value_bytes_max)?, old, &[])?;
        }
        if op != ChangeOp::Delete {
            read_image(&mut RowReader::new(reader, types, value_bytes_max)?, new, old)?;
        }
        Ok(EncodedChange { old, new, bytes: &before[..before.len() - reader.rest().len()] })
    }
}

/// Reads a row; `before` is the image before it, to which it may refer.
fn read_image<'a>(
    row: &mut RowReader<'a, '_>,
    image: &mut Vec<ValueRef<'a>>,
    before: &[ValueRef<'a>],
) -> Result<(), DecodeError> {
    while let Some(cell) = row.next_cell()? {
        image.push(match cell {
            Cell::Value(value) => value,
            Cell::Same => {
                let same = before.get(image.len()).copied();
                same.ok_or(DecodeError::Undefined { field: "row state", actual: image.len() as u64 })?
            }
        });
    }
    Ok(())
}

/// A query with its parameters, as [`Connection::query`] takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// With parameters `?1`, `?2`, ...
    pub sql: String,
    /// Their values.
    pub parameters: Vec<Value>,
}

/// A consolidated database.
pub trait Backend: QueryBackend {
    /// Opens a connection, with its time-outs and settings in place.
    fn connect(&self) -> Result<Box<dyn Connection>, Error>;

    /// Which SQL it speaks.
    fn dialect(&self) -> Dialect;

    /// What its connections know of commits that do not end; nothing, unless a backend says otherwise.
    fn commit_waits(&self) -> CommitWaits {
        CommitWaits::default()
    }
}

/// One connection. All calls block. After an error inside a transaction, only `rollback`, or `rollback_to_savepoint` where one is
/// set, may follow.
pub trait Connection: QueryConnection {
    /// Which SQL it speaks.
    fn dialect(&self) -> Dialect;

    /// What the connection itself knows of which file it has open; empty where the database is no file.
    fn file_id(&self) -> String {
        String::new()
    }

    /// Begins a transaction.
    fn begin(&mut self, mode: Mode) -> Result<(), Error>;

    /// Begins a transaction in which this user's remote with this ID syncs ([`Connection::set_actor`]). `first` says which queries are asked
    /// before anything else in it: a database may answer them along with the beginning. After an error too it is to be rolled back.
    fn open(&mut self, mode: Mode, (user, remote_id): (&str, &[u8; 16]), _first: &[Query]) -> Result<(), Error> {
        self.begin(mode)?;
        self.set_actor(user, remote_id)
    }

    /// Commits. After an error it is unknown whether the transaction took place; the upload sequence tells.
    fn commit(&mut self) -> Result<(), Error>;

    /// Looks whether commits still wait longer than they should, for [`Backend::commit_waits`]. Outside of a transaction.
    fn look_at_commits(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Sets the savepoint (one level; set again, it moves).
    fn savepoint(&mut self) -> Result<(), Error>;

    /// Undoes everything since the savepoint, which stays set.
    fn rollback_to_savepoint(&mut self) -> Result<(), Error>;

    /// Releases the savepoint, keeping what was done since.
    fn release_savepoint(&mut self) -> Result<(), Error>;

    /// Runs one statement with parameters `?1`, `?2`, ... and gives its rows. For small results: system tables, memberships. Values
    /// come in the database's own types (no model is involved).
    fn query(&mut self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, Error>;

    /// Runs one statement like [`Connection::query`] and hands on its rows one by one.
    fn each_row(
        &mut self,
        sql: &str,
        parameters: &[Value],
        each: &mut dyn FnMut(Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.query(sql, parameters)?.into_iter().try_for_each(each)
    }

    /// Runs one statement like [`Connection::query`] with each of these parameters, in their order, and hands on the rows that it gives with
    /// each. In a transaction. The first that fails ends it, whose error it gives; a database may have been handed later ones by then.
    fn query_each(
        &mut self,
        sql: &str,
        parameters: &mut dyn Iterator<Item = Vec<Value>>,
        each: &mut dyn FnMut(Vec<Row>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for parameters in parameters {
            each(self.query(sql, &parameters)?)?;
        }
        Ok(())
    }

    /// The same for what the statement does; rows that it gives are dropped.
    fn execute_each(&mut self, sql: &str, parameters: &mut dyn Iterator<Item = Vec<Value>>) -> Result<(), Error> {
        self.query_each(sql, parameters, &mut |_| Ok(()))
    }

    /// The names of the columns that a statement gives, without running it.
    fn describe(&mut self, sql: &str) -> Result<Vec<String>, Error> {
        Err(untold(&format!("describing {sql:?}")))
    }

    /// A time (microseconds since 1970, by the clock of the database's machine) before which nothing has begun that is not committed yet;
    /// outside of a transaction, before a download's begins. `None`: it can't be told now.
    fn earliest_start(&mut self) -> Result<Option<i64>, Error> {
        Ok(None)
    }

    /// Runs one statement like [`Connection::query`]; gives the number of rows it changed.
    fn execute(&mut self, sql: &str, parameters: &[Value]) -> Result<u64, Error>;

    /// Runs one statement like [`Connection::query`], whose rows nobody wants. A database may be asked with the next call, which then gives the
    /// error; with [`Connection::commit`] too, and nothing is committed then.
    fn execute_with_next(&mut self, sql: &str, parameters: &[Value]) -> Result<(), Error> {
        self.execute(sql, parameters).map(drop)
    }

    /// Runs several statements without parameters.
    fn batch(&mut self, sql: &str) -> Result<(), Error>;

    /// The rows that exist of these keys, in any order; `lock`: held against other writers until the transaction ends (in key order,
    /// so that uploads don't deadlock one another).
    fn fetch(&mut self, table: &TablePlan, keys: &[Row], lock: bool) -> Result<Vec<Row>, Error>;

    /// [`Error::Refused`] if the database would store the key of one of these rows, which are about to be inserted, as another value.
    fn check_new_keys(&mut self, _table: &TablePlan, _rows: &[&Row]) -> Result<(), Error> {
        Ok(())
    }

    /// Inserts rows whose keys are absent; one whose key exists is left out, without an error. Any other violation is
    /// [`Error::Refused`] for the whole call.
    fn insert(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error>;

    /// Inserts rows that are most likely new, which may be cheaper: one whose key exists may refuse the whole call, with
    /// [`RefusalCode::Unique`](headwater_protocol::message::RefusalCode::Unique). Otherwise like [`Connection::insert`].
    fn insert_new(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<Inserted, Error> {
        self.insert(table, rows)
    }

    /// Whether [`Connection::change_plain`] makes changes of this kind to this table: the database stores just what it is given, and nothing
    /// else comes of it, as far as can be told.
    fn takes_plain(&mut self, _table: &TablePlan, _op: ChangeOp) -> Result<bool, Error> {
        Ok(false)
    }

    /// Makes changes straight from their encoding, all of them: inserts rows whose keys are absent; updates and deletes rows that are there
    /// and (`compares`) are the same as the old image, as [`ValueRef::same`] has it. `false`, like [`Error::Refused`]: not all of them could
    /// be made, or one of them would not be stored just as it is; what was done is to be taken back to the savepoint. What went well counts
    /// only where [`Connection::stayed_plain`] says so.
    fn change_plain(
        &mut self,
        _table: &TablePlan,
        _changes: EncodedChanges<'_>,
        _compares: bool,
    ) -> Result<bool, Error> {
        Ok(false)
    }

    /// Whether, of all that this transaction has changed by [`Connection::change_plain`] in these tables, each row was stored just as it was
    /// given, and no table was changed because of them but these and Headwater's own; asked after them.
    fn stayed_plain(&mut self, _tables: &[&TablePlan]) -> Result<bool, Error> {
        Ok(false)
    }

    /// Makes the rows of these keys like these rows (the key's columns aside). All in one statement where the database can, so that
    /// unique values may be swapped.
    fn update(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<u64, Error>;

    /// The keys of rows that the last of these inserts and updates stored elsewhere than they were sent: in another partition, in none, or
    /// below another parent, because a trigger of the application moved them. Each is given once. SQLite has no trigger that changes a
    /// row before it is stored.
    fn take_moved(&mut self) -> Vec<Row> {
        Vec::new()
    }

    /// Notes these rows of a tracked table as changed by this transaction, in the partitions where they say that they lie: whoever holds them
    /// there is told what has become of them. They may be stored otherwise, elsewhere, or not at all.
    fn note_again(&mut self, table: &TablePlan, rows: &[&Row]) -> Result<(), Error>;

    /// Deletes the rows of these keys.
    fn delete(&mut self, table: &TablePlan, keys: &[&Row]) -> Result<u64, Error>;

    /// Makes constraints that are deferred to the end of the transaction be checked now.
    fn check_deferred(&mut self) -> Result<(), Error>;

    /// The same once nothing but Headwater's own rows is to be written any more. A database may be asked with the next call, which then gives
    /// the error.
    fn check_deferred_last(&mut self) -> Result<(), Error> {
        self.savepoint()?;
        self.check_deferred()?;
        self.release_savepoint()
    }

    /// Tells the application's own triggers, policies and queries who syncs, until the transaction ends.
    fn set_actor(&mut self, user: &str, remote_id: &[u8; 16]) -> Result<(), Error>;

    /// What this transaction's changes are known by in the side tables, so that a download can tell them from others'. Valid in an
    /// upload, after its changes.
    fn own_mark(&mut self) -> Result<Vec<u8>, Error>;

    /// The watermark of a download's snapshot.
    fn watermark(&mut self) -> Result<Vec<u8>, Error>;

    /// Of each of these tables, whether it is left out of this download, because it may not be read; in a download.
    fn withheld(&mut self, tables: &[&TablePlan]) -> Result<Vec<bool>, Error> {
        Ok(vec![false; tables.len()])
    }

    /// Whether a watermark is one that this database can have handed out (form, not in the future); in a download.
    fn accepts_watermark(&mut self, watermark: &[u8]) -> Result<bool, Error>;

    /// What this database can't tell any more of the changes since a watermark that it accepts; in a download.
    fn gaps(&mut self, watermark: &[u8]) -> Result<Gaps, Error>;

    /// Ends a download's transaction. Gives the name of a relation that was altered (rewritten, replaced, attached, detached) since the
    /// download's snapshot and that it has read: what it has read is of no use then.
    fn end_download(&mut self) -> Result<Option<String>, Error> {
        self.rollback().map(|()| None)
    }

    /// Whether tables that hold rows of tracked ones (partitions, tables that inherit) have come or gone, so that
    /// [`Connection::adopt_parts`] is to be called before anything is read; in a download.
    fn parts_have_changed(&mut self, plan: &Plan) -> Result<bool, Error>;

    /// Has such tables tracked, in transactions of its own. Harmless where nothing is to be done.
    fn adopt_parts(&mut self, plan: &Plan) -> Result<(), Error>;

    /// A query that [`Connection::tracking_mark`] asks, so that it can be asked with a download's beginning.
    fn tracking_query(&self, _plan: &Plan) -> Option<Query> {
        None
    }

    /// One value that is another whenever change tracking, or the tables of a model themselves, may have been touched (triggers dropped,
    /// switched off or on, a table replaced, a column converted), in a download; `None` where none is to be had.
    fn tracking_mark(&mut self, plan: &Plan) -> Result<Option<String>, Error>;

    /// Whether the model's names still stand for the tables that [`Connection::tracking_mark`] saw in this transaction, and their triggers are
    /// switched on or off as they were. A table that the transaction has written to can't be replaced before it ends.
    fn has_same_tables(&mut self, _plan: &Plan) -> Result<bool, Error> {
        Ok(true)
    }

    /// Enables triggers of change tracking as they were made, if they are enabled in another way and none is off. Their tables come afresh. Uses
    /// a transaction of its own, and gives whether there were any.
    fn enable_triggers(&mut self, _plan: &Plan) -> Result<bool, Error> {
        Ok(false)
    }

    /// Has tables come afresh of which changes went by unseen since they were looked at last, in transactions of its own.
    fn settle_tables(&mut self, _plan: &Plan) -> Result<(), Error> {
        Ok(())
    }

    /// The names, as change tracking has them, of tables whose rows may come and go without being written (row security): they come whole
    /// each time. As [`Connection::settle_tables`] has found it.
    fn always_whole(&self, _plan: &Plan) -> Vec<String> {
        Vec::new()
    }

    /// By model's fingerprint: the [`Connection::tracking_mark`] with which its tracking was last seen to be whole.
    fn whole_tracking(&mut self) -> &mut HashMap<u64, String>;

    /// Writes every row of these partitions (all rows, if the table is not partitioned), in key order where that costs nothing.
    /// `partitions` holds the values of each; a row in none of them is never written.
    fn read_whole(&mut self, table: &TablePlan, partitions: &[Row], out: &mut RowsWriter<'_, '_>) -> Result<(), Error>;

    /// Writes what changed in these partitions since the watermark: rows that live in one of them, and deletions of keys that left
    /// one and live in none of `wanted` now. Rows last changed by the transaction with `own` as its mark are ended as own.
    fn read_changes(&mut self, changes: &Changes<'_>, out: &mut RowsWriter<'_, '_>) -> Result<(), Error>;

    /// Of each of these, whether [`Connection::read_changes`] may write anything; all in one look where the database can.
    fn may_have_changed(&mut self, changes: &[Changes<'_>]) -> Result<Vec<bool>, Error> {
        Ok(vec![true; changes.len()])
    }

    /// Makes the rest of a download's transaction hurry: a statement that takes longer than this fails, and none waits for a lock.
    fn hurry(&mut self, _limit: Duration) -> Result<(), Error> {
        Ok(())
    }

    /// About how many rows a download would read.
    fn count(&mut self, _reading: &Reading<'_>) -> Result<u64, Error> {
        Err(untold("counting rows"))
    }

    /// Writes some rows of these partitions, any, at most so many; otherwise like [`Connection::read_whole`].
    fn read_some(
        &mut self,
        _table: &TablePlan,
        _partitions: &[Row],
        _rows_max: u32,
        _out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        Err(untold("reading some rows"))
    }

    /// Writes the rows of these partitions with a value in one of these columns, given by their places; otherwise like
    /// [`Connection::read_whole`].
    fn read_valued(
        &mut self,
        _table: &TablePlan,
        _partitions: &[Row],
        _columns: &[u32],
        _out: &mut RowsWriter<'_, '_>,
    ) -> Result<(), Error> {
        Err(untold("reading rows with a value"))
    }

    /// Of a table that takes its partition from another: the partition in which rows lie that refer to the rows with these keys
    /// ([`TablePlan::parent_key`]), for each of them that is there; its values may be NULL. `lock`: they don't move before the
    /// transaction ends.
    fn partitions_below(&mut self, table: &TablePlan, parents: &[Row], lock: bool) -> Result<Vec<(Row, Row)>, Error>;

    /// Whether texts that are not UTF-8 are kept from remotes: the database holds texts of any bytes, and its own programs write other
    /// encodings.
    fn has_texts_of_any_bytes(&self) -> bool {
        false
    }

    /// Whether the database calls partitions of a table equal whose bytes differ (a collation without case, `1.0` and `1.00`).
    fn has_spelled_partitions(&mut self, _table: &TablePlan) -> Result<bool, Error> {
        Ok(false)
    }

    /// For each of these partitions of a table, the place of the first of them that the database calls equal to it.
    fn partition_classes(&mut self, table: &TablePlan, partitions: &[Row]) -> Result<Vec<usize>, Error> {
        let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
        let keys = partitions.iter().map(|row| table.partition_key(row).unwrap_or_default()).enumerate();
        Ok(keys.map(|(place, key)| *known.entry(key).or_insert(place)).collect())
    }

    /// How the rows that a download reads spell the partitions in which they lie, each spelling once. Only of a table that
    /// [has spellings](Connection::has_spelled_partitions).
    fn spellings(&mut self, _reading: &Reading<'_>) -> Result<Vec<Row>, Error> {
        Ok(Vec::new())
    }

    /// What the database has: for `init` and `check`.
    fn catalogue(&mut self) -> Result<crate::catalogue::Catalogue, Error>;
}

fn untold(context: &str) -> Error {
    Error::Database { context: context.to_owned(), detail: "it can't be told here".to_owned() }
}

/// What can't be told of the changes since a watermark: it comes whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Whether it is older than the horizon, below which tombstones are purged: nothing can be told.
    pub everything: bool,
    /// The names, as change tracking has them, of tables of which changes went by unnoted.
    pub tables: Vec<String>,
}

/// What [`Connection::read_changes`] is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Changes<'a> {
    /// The table.
    pub table: &'a TablePlan,
    /// The partitions that share the watermark. Empty for a table that is not partitioned.
    pub partitions: &'a [Row],
    /// All partitions that the remote will hold afterwards.
    pub wanted: &'a [Row],
    /// What has been seen of `partitions`.
    pub since: &'a [u8],
    /// [`Connection::own_mark`] of the upload before this download.
    pub own: Option<&'a [u8]>,
}

/// What [`Connection::count`] is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Reading<'a> {
    /// [`Connection::read_whole`]: a table, and its partitions.
    Whole(&'a TablePlan, &'a [Row]),
    /// [`Connection::read_changes`].
    Changes(&'a Changes<'a>),
}
