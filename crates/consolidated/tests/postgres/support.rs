//! A database of its own for each test, and downloads read back.

use headwater_consolidated::backend::Changes;
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::rows::Echo;
use headwater_consolidated::{Backend, Connection, Error, Mode, Plan, RowsWriter, TablePlan};
use headwater_model::tracking::{self, Kin, TrackedTable};
use headwater_protocol::message::{RowOp, RowsReader};
use headwater_protocol::row::read_row;
use headwater_protocol::{Kind, Row, Value};

/// A fresh database in the cluster that the tests share.
pub(crate) struct Database {
    pub(crate) url: String,
    backend: Postgres,
}

impl Database {
    /// Makes one, with these tables in it.
    pub(crate) fn with(tables: &str) -> Database {
        let url = headwater_testkit::Postgres::shared()
            .and_then(headwater_testkit::Postgres::create_database)
            .expect("a database");
        let backend = Postgres::new(&url, Settings::default()).expect("a backend");
        let database = Database { url, backend };
        database.sql(tables);
        database
    }

    /// Runs statements of the application's; the last one's rows as text, NULL as `NULL`.
    pub(crate) fn sql(&self, statements: &str) -> Vec<Vec<String>> {
        let rows = headwater_testkit::sql(&self.url, statements).expect(statements);
        rows.into_iter().map(|row| row.into_iter().map(|v| v.unwrap_or_else(|| "NULL".into())).collect()).collect()
    }

    pub(crate) fn connect(&self) -> Box<dyn Connection> {
        self.backend.connect().expect("a connection")
    }

    /// A connection made on a thread of its own, for tests that run inside a task.
    pub(crate) fn connect_elsewhere(&self) -> Box<dyn Connection> {
        let backend = self.backend.clone();
        std::thread::spawn(move || backend.connect()).join().expect("the thread ends").expect("a connection")
    }

    /// Installs the tracking of the model's tables.
    pub(crate) fn track(&self, plan: &Plan) {
        self.sql(
            "CREATE SCHEMA IF NOT EXISTS headwater; CREATE TABLE IF NOT EXISTS headwater.table_change \
                  (table_name text NOT NULL, transaction xid8 NOT NULL, PRIMARY KEY (table_name, transaction))",
        );
        for table in &plan.tables {
            let kin = Kin::new(&plan.model, &table.table);
            let tracked = TrackedTable { kin: &kin, declared: &[], unique: &[] };
            let statements = tracking::postgres::install(&tracked);
            self.sql(&format!("BEGIN; {}; COMMIT", statements.join(";\n")));
        }
    }

    /// A watermark of now.
    pub(crate) fn watermark(&self) -> Vec<u8> {
        let mut connection = self.connect();
        connection.begin(Mode::Download).expect("begin");
        connection.watermark().expect("a watermark")
    }
}

/// A model of this text.
pub(crate) fn plan(model: &str) -> Plan {
    let text = format!("name = \"m\"\nversion = 1\n{model}");
    Plan::new(headwater_model::parse::parse("test.toml", &text).expect("a model"))
}

/// What a download of one table was.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Downloaded {
    pub(crate) upserts: Vec<Row>,
    pub(crate) deletes: Vec<Row>,
}

impl Downloaded {
    /// Sorted, rows as text, for comparing.
    pub(crate) fn shown(&self) -> (Vec<String>, Vec<String>) {
        let shown = |rows: &[Row]| {
            let mut rows: Vec<String> = rows.iter().map(|row| show(row)).collect();
            rows.sort();
            rows
        };
        (shown(&self.upserts), shown(&self.deletes))
    }
}

/// A row as short text.
pub(crate) fn show(row: &[Value]) -> String {
    let value = |value: &Value| match value {
        Value::Int(number) => number.to_string(),
        Value::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Null => "NULL".to_owned(),
        other => format!("{other:?}"),
    };
    row.iter().map(value).collect::<Vec<_>>().join(" ")
}

/// Collects what `write` writes.
pub(crate) fn collect(
    table: &TablePlan,
    write: impl FnOnce(&mut RowsWriter<'_, '_>) -> Result<(), Error>,
) -> Result<Downloaded, Error> {
    let echo = Echo::default();
    let mut frames = Vec::new();
    let mut sink = |frame| {
        frames.push(frame);
        Ok(())
    };
    let mut writer = RowsWriter::new(table, &echo, &mut sink);
    write(&mut writer)?;
    writer.finish()?;
    let mut downloaded = Downloaded::default();
    for frame in frames.iter().filter(|frame| frame.kind == Kind::Rows) {
        let payload = frame.payload(1 << 30)?;
        let mut rows = RowsReader::new(&payload);
        while let Some(op) = rows.next_op()? {
            match op {
                RowOp::Upsert => downloaded.upserts.push(read_row(rows.row(), &table.types, 1 << 30, None)?),
                RowOp::Delete | RowOp::Leave => {
                    downloaded.deletes.push(read_row(rows.row(), &table.key_types, 1 << 30, None)?);
                }
            }
        }
    }
    Ok(downloaded)
}

/// All rows of these partitions.
pub(crate) fn whole(connection: &mut dyn Connection, table: &TablePlan, partitions: &[Row]) -> Downloaded {
    connection.begin(Mode::Download).expect("begin");
    let read = collect(table, |out| connection.read_whole(table, partitions, out)).expect("a download");
    connection.rollback().expect("rollback");
    read
}

/// What changed since, and the watermark of now.
pub(crate) fn changes(
    connection: &mut dyn Connection,
    table: &TablePlan,
    partitions: &[Row],
    wanted: &[Row],
    since: &[u8],
) -> (Downloaded, Vec<u8>) {
    connection.begin(Mode::Download).expect("begin");
    assert!(connection.accepts_watermark(since).expect("an answer"), "the watermark is one of this database");
    let changes = Changes { table, partitions, wanted, since, own: None };
    let read = collect(table, |out| connection.read_changes(&changes, out)).expect("a download");
    let watermark = connection.watermark().expect("a watermark");
    connection.rollback().expect("rollback");
    (read, watermark)
}
