//! A remote in a temporary folder, an application's connection to it, and downloads made by hand.

use headwater_model::{Column, ColumnType, ConflictRule, Direction, Model, OnDelete, Reference, Table, TablePartition};
use headwater_protocol::message::{
    Change, Download, Outcome, PartitionAction, PartitionMark, Receipt, RowOp, TableHeader, UploadEnd, WatermarkEntry,
    Watermarks, Welcome,
};
use headwater_protocol::row::put_row;
use headwater_protocol::wire::Reader;
use headwater_protocol::{Frame, Kind, Row, Type, Value};
use rusqlite::Connection;

use crate::apply::Applied;
use crate::cut::frozen_frame;
use crate::stage::Stage;
use crate::{CreateOptions, Error, Remote};

pub(crate) const NOW: &str = "2026-01-02 03:04:05Z";

pub(crate) fn column(name: &str, kind: Type) -> Column {
    Column { name: name.to_owned(), kind: ColumnType::plain(kind), nullable: true }
}

/// A table whose first column is the key, with the rule `consolidated_wins`.
pub(crate) fn table(name: &str, columns: &[(&str, Type)]) -> Table {
    let mut columns: Vec<Column> = columns.iter().map(|(name, kind)| column(name, *kind)).collect();
    columns[0].nullable = false;
    Table {
        schema: None,
        name: name.to_owned(),
        columns,
        key: vec![0],
        partition: None,
        direction: Direction::Both,
        conflict: ConflictRule::ConsolidatedWins,
        sum: Vec::new(),
        references: Vec::new(),
        unique: Vec::new(),
        key_range: None,
        shared: false,
        scripts: Vec::new(),
    }
}

pub(crate) fn model(tables: Vec<Table>) -> Model {
    Model {
        name: "test".to_owned(),
        version: 1,
        on_error: headwater_model::OnError::default(),
        values: Vec::new(),
        partitions: Vec::new(),
        tables,
        unenforced: Vec::new(),
    }
}

/// Items with a unique name in a way of partitioning by region, and parts that refer to items.
pub(crate) fn shop() -> Model {
    let mut item =
        table("item", &[("id", Type::Int), ("region", Type::Text), ("name", Type::Text), ("price", Type::Decimal)]);
    item.unique = vec![vec![2]];
    item.partition = Some(TablePartition { partition: 0, columns: vec![1], through: None });
    let mut part = table("part", &[("id", Type::Int), ("item", Type::Int), ("no", Type::Int)]);
    part.references = vec![Reference { columns: vec![1], table: 2, target: vec![0], on_delete: OnDelete::NoAction }];
    let kind = table("kind", &[("id", Type::Int), ("name", Type::Text)]);
    let mut model = model(vec![item, part, kind]);
    let column = ("region".to_owned(), ColumnType::plain(Type::Text));
    model.partitions =
        vec![headwater_model::Partition { name: "region".to_owned(), columns: vec![column], members: String::new() }];
    // Parents stand before children.
    model.tables.swap(1, 2);
    model.tables[2].references[0].table = 1;
    model
}

/// A remote, and the application beside it.
pub(crate) struct Fixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) remote: Remote,
    pub(crate) application: Connection,
}

impl Fixture {
    pub(crate) fn new(model: &Model) -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("remote.db");
        let remote = Remote::create(&path, model, &CreateOptions::new("http://127.0.0.1:1", "ann")).expect("a remote");
        let application = Connection::open(&path).expect("the application's connection");
        application.pragma_update(None, "foreign_keys", true).expect("pragma");
        let fixture = Fixture { folder, remote, application };
        fixture.hurry();
        fixture
    }

    /// Closes the remote and opens it again, as after a crash.
    pub(crate) fn reopen(&mut self) {
        let path = self.remote.path().to_owned();
        self.remote = Remote::open(path).expect("the remote opens");
        self.hurry();
    }

    /// The machine does not lose power in these tests.
    fn hurry(&self) {
        for connection in [&self.remote.database.connection, &self.application] {
            connection.pragma_update(None, "synchronous", "off").expect("pragma");
        }
    }

    /// Runs SQL as the application.
    pub(crate) fn sql(&self, sql: &str) {
        self.application.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Rows of a query, each as text with `|` between its columns.
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        query(&self.application, sql)
    }

    pub(crate) fn cut(&self) -> Option<UploadEnd> {
        crate::cut::cut(&self.remote.database, &self.remote.plan, NOW).expect("the upload is cut").end
    }

    /// The frozen upload, as `op old -> new` lines.
    pub(crate) fn upload(&self) -> Vec<String> {
        changes(&self.remote).into_iter().map(|(table, change)| show(&table, &change)).collect()
    }

    /// Cuts and shows the upload.
    pub(crate) fn cut_changes(&self) -> Vec<String> {
        self.cut();
        self.upload()
    }

    /// Applies a receipt with these outcomes.
    pub(crate) fn receipt(&self, outcomes: Vec<(u64, Outcome)>) {
        let end = self.remote.state().expect("a state").frozen.expect("a frozen upload");
        let receipt = Receipt { sequence: end.sequence, changes: end.changes, outcomes };
        crate::receipt::apply(&self.remote.database, &self.remote.plan, &receipt, NOW).expect("the receipt is applied");
    }

    /// Cuts, and has everything applied.
    pub(crate) fn upload_all(&self) {
        if self.cut().is_some() {
            self.receipt(Vec::new());
        }
    }

    /// The consolidated database turns out to have uploads up to `to` only. Gives how many lost changes were found.
    pub(crate) fn rewind(&self, to: u64) -> u64 {
        let Remote { database, plan, .. } = &self.remote;
        let rewind = |connection: &_| crate::lost::rewind(connection, plan, to, NOW);
        database.write("going back", rewind).expect("the remote goes back")
    }

    pub(crate) fn download(&self, down: Down) -> Applied {
        self.try_download(down).expect("the download is applied")
    }

    pub(crate) fn try_download(&self, down: Down) -> Result<Applied, Error> {
        let mut stage = Stage::default();
        for frame in down.finish() {
            if stage.push(frame)? {
                stage.spill(&self.remote.database)?;
            }
        }
        stage.complete(&self.remote.database)?;
        let mut frames = stage.frames();
        crate::apply::apply(&self.remote.database, &self.remote.plan, NOW, &mut frames, &mut |_| Ok(()))
    }

    pub(crate) fn header(&self, table: &str) -> TableHeader {
        let plan = self.remote.plan.tables.iter().find(|plan| plan.table.name == table);
        plan.unwrap_or_else(|| panic!("no table {table}")).header.clone()
    }

    pub(crate) fn down(&self) -> Down {
        let headers = self.remote.plan.tables.iter().map(|plan| plan.header.clone()).collect();
        Down::new(headers)
    }

    /// Set aside: table, key, code, whether in place.
    pub(crate) fn set_aside(&self) -> Vec<String> {
        let list = self.remote.set_aside(100).expect("a list");
        list.iter()
            .map(|s| format!("{} {} {} {}", s.table, s.key, s.reason, if s.is_in_place { "in place" } else { "out" }))
            .collect()
    }

    pub(crate) fn held(&self) -> u64 {
        self.remote.status().expect("a status").held
    }

    pub(crate) fn pending(&self) -> Vec<String> {
        let list = self.remote.pending(1000).expect("a list");
        let aside = |is: bool| if is { " aside" } else { "" };
        list.iter()
            .map(|p| {
                format!(
                    "{} {:?} {} -> {}{}",
                    p.table,
                    p.op,
                    text(p.old.as_ref()),
                    text(p.new.as_ref()),
                    aside(p.is_set_aside)
                )
            })
            .collect()
    }

    /// Nothing that only a transaction may see is left behind, the file is sound, and foreign keys hold.
    pub(crate) fn check(&self) {
        assert_eq!(self.rows("SELECT count(*) FROM hw_applying"), ["0"], "change tracking is on");
        assert_eq!(self.rows("PRAGMA integrity_check"), ["ok"]);
        assert_eq!(self.rows("PRAGMA foreign_key_check"), Vec::<String>::new());
    }
}

fn text(row: Option<&String>) -> &str {
    row.map_or("-", String::as_str)
}

pub(crate) fn query(connection: &Connection, sql: &str) -> Vec<String> {
    let mut select = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let count = select.column_count();
    let rows = select.query_map([], |row| {
        let cells = (0..count).map(|index| match row.get_ref(index)? {
            rusqlite::types::ValueRef::Null => Ok("NULL".to_owned()),
            rusqlite::types::ValueRef::Integer(number) => Ok(number.to_string()),
            rusqlite::types::ValueRef::Real(real) => Ok(format!("{real:?}")),
            rusqlite::types::ValueRef::Text(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            rusqlite::types::ValueRef::Blob(bytes) => Ok(format!("x'{}'", hex::encode(bytes))),
        });
        Ok(cells.collect::<rusqlite::Result<Vec<_>>>()?.join("|"))
    });
    rows.and_then(Iterator::collect).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The frozen upload's changes, each with its table's name.
pub(crate) fn changes(remote: &Remote) -> Vec<(String, Change)> {
    let mut changes = Vec::new();
    let mut header = None;
    for number in 1.. {
        let Some((kind, payload)) = frozen_frame(&remote.database.connection, number).expect("a frame") else {
            break;
        };
        if kind == Kind::Table {
            header = Some(TableHeader::from_payload(&payload).expect("a header"));
            continue;
        }
        let header = header.as_ref().expect("a table before its changes");
        let mut reader = Reader::new(&payload);
        while !reader.is_empty() {
            changes
                .push((header.name.clone(), Change::read(&mut reader, &header.types(), usize::MAX).expect("a change")));
        }
    }
    changes
}

fn show(table: &str, change: &Change) -> String {
    let row = |row: &Option<Row>| {
        row.as_ref().map_or("-".to_owned(), |row| row.iter().map(cell).collect::<Vec<_>>().join(","))
    };
    format!("{table}: {} -> {}", row(&change.old), row(&change.new))
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
        Value::Decimal(decimal) => decimal.to_string(),
        other => format!("{other:?}"),
    }
}

/// A download made by hand.
pub(crate) struct Down {
    headers: Vec<TableHeader>,
    welcome: Welcome,
    frames: Vec<Frame>,
    entries: Vec<WatermarkEntry>,
}

impl Down {
    pub(crate) fn new(headers: Vec<TableHeader>) -> Down {
        let welcome = Welcome { incarnation: [1; 16], note: [2; 16], ..Welcome::default() };
        Down { headers, welcome, frames: Vec::new(), entries: Vec::new() }
    }

    fn header(&self, table: &str) -> TableHeader {
        self.headers.iter().find(|header| header.name == table).unwrap_or_else(|| panic!("no table {table}")).clone()
    }

    /// A partition that comes whole (`partition` empty: a table that is not partitioned).
    pub(crate) fn whole(self, table: &str, partition: &[Value]) -> Down {
        self.mark(table, partition, PartitionAction::Whole)
    }

    pub(crate) fn left(self, table: &str, partition: &[Value]) -> Down {
        self.mark(table, partition, PartitionAction::Left)
    }

    /// A partition of which only what has changed comes.
    pub(crate) fn holds(mut self, table: &str, partition: &[Value]) -> Down {
        self = self.whole(table, partition);
        self.frames.pop();
        self
    }

    fn mark(mut self, table: &str, partition: &[Value], action: PartitionAction) -> Down {
        let number = self.header(table).table;
        let mut key = Vec::new();
        let types: Vec<Type> = partition.iter().map(|value| value.as_ref().kind().expect("not null")).collect();
        put_row(&mut key, &types, partition);
        if action == PartitionAction::Whole {
            self.entries.push(WatermarkEntry { table: number, partition: key.clone(), mark: 0 });
        }
        self.frames.push(PartitionMark { table: number, action, partition: key }.to_frame());
        self
    }

    pub(crate) fn rows(mut self, table: &str, rows: &[Row]) -> Down {
        let header = self.header(table);
        let mut payload = Vec::new();
        for row in rows {
            payload.push(RowOp::Upsert as u8);
            put_row(&mut payload, &header.types(), row);
        }
        self.frames.extend([header.to_frame(), Frame::packed(Kind::Rows, payload)]);
        self
    }

    pub(crate) fn delete(self, table: &str, keys: &[Row]) -> Down {
        self.go(RowOp::Delete, table, keys)
    }

    pub(crate) fn leave(self, table: &str, keys: &[Row]) -> Down {
        self.go(RowOp::Leave, table, keys)
    }

    fn go(mut self, op: RowOp, table: &str, keys: &[Row]) -> Down {
        let header = self.header(table);
        let mut payload = Vec::new();
        for key in keys {
            payload.push(op as u8);
            put_row(&mut payload, &header.key_types(), key);
        }
        self.frames.extend([header.to_frame(), Frame::packed(Kind::Rows, payload)]);
        self
    }

    pub(crate) fn finish(self) -> Vec<Frame> {
        let download = Download { id: [7; 16], resumable_s: 0, rows: 0, bytes: 0 };
        let watermarks = Watermarks { marks: vec![b"mark".to_vec()], entries: self.entries };
        let mut frames = vec![self.welcome.to_frame(), download.to_frame()];
        frames.extend(self.frames);
        frames.push(watermarks.to_frame());
        frames
    }
}

/// A row of integers and texts: `int` where it parses, `-` is NULL.
pub(crate) fn row(text: &str) -> Row {
    text.split(',')
        .map(|cell| match cell.parse() {
            Ok(number) => Value::Int(number),
            Err(_) if cell == "-" => Value::Null,
            Err(_) => cell
                .strip_prefix('$')
                .and_then(headwater_protocol::Decimal::parse)
                .map_or_else(|| Value::text(cell), Value::Decimal),
        })
        .collect()
}
