//! Watermarks: nothing missing, nothing again and again, whatever is open meanwhile.

use headwater_consolidated::backend::Changes;
use headwater_consolidated::rows::Echo;
use headwater_consolidated::{Connection, Mode, Plan, RowsWriter};
use headwater_protocol::Value;

use crate::support::{Database, changes, collect, plan};

const MODEL: &str = "[tables.t]\nkey = [\"id\"]\n[tables.t.columns]\nid = \"int not null\"\nx = \"int\"";

fn tracked() -> (Database, Plan) {
    let database = Database::with(
        "CREATE TABLE t (id int PRIMARY KEY, x int); INSERT INTO t SELECT n, 0 FROM generate_series(1, 9) n",
    );
    let plan = plan(MODEL);
    database.track(&plan);
    (database, plan)
}

/// A remote: the rows that the next download brings, and its watermark.
struct Remote<'a> {
    connection: Box<dyn Connection>,
    plan: &'a Plan,
    seen: Vec<u8>,
}

impl<'a> Remote<'a> {
    fn new(database: &Database, plan: &'a Plan) -> Remote<'a> {
        Remote { connection: database.connect(), plan, seen: database.watermark() }
    }

    fn download(&mut self) -> Vec<String> {
        let (read, watermark) = changes(&mut *self.connection, &self.plan.tables[0], &[], &[], &self.seen);
        self.seen = watermark;
        read.shown().0
    }
}

/// A transaction of the application's that has changed a row and goes on.
fn open(database: &Database, id: i64, x: i64) -> Box<dyn Connection> {
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    connection.execute("UPDATE t SET x = ?2 WHERE id = ?1", &[Value::Int(id), Value::Int(x)]).expect("updated");
    connection
}

#[test]
fn a_transaction_that_commits_late_holds_back_only_its_own_rows() {
    let (database, plan) = tracked();
    let mut remote = Remote::new(&database, &plan);
    let mut early = open(&database, 1, 10);
    let mut late = open(&database, 2, 20);
    database.sql("UPDATE t SET x = 30 WHERE id = 3");
    assert_eq!(remote.download(), ["3 30"]);
    late.commit().expect("committed");
    assert_eq!(remote.download(), ["2 20"], "began before what has been seen");
    database.sql("UPDATE t SET x = 40 WHERE id = 4");
    for expected in [vec!["4 40"], vec![], vec![]] {
        assert_eq!(remote.download(), expected, "nothing is sent again while a transaction is open");
    }
    early.commit().expect("committed");
    assert_eq!(remote.download(), ["1 10"]);
    assert_eq!(remote.download(), [""; 0]);
}

#[test]
fn subtransactions_rollbacks_and_rows_changed_twice() {
    let (database, plan) = tracked();
    let mut remote = Remote::new(&database, &plan);
    let mut writer = open(&database, 1, 10);
    writer.savepoint().expect("a savepoint");
    writer.execute("UPDATE t SET x = 11 WHERE id IN (1, 2)", &[]).expect("updated");
    assert_eq!(remote.download(), [""; 0]);
    writer.rollback_to_savepoint().expect("undone");
    writer.execute("UPDATE t SET x = 12 WHERE id = 3", &[]).expect("updated");
    writer.commit().expect("committed");
    assert_eq!(remote.download(), ["1 10", "3 12"]);
    let mut undone = open(&database, 4, 40);
    assert_eq!(remote.download(), [""; 0]);
    undone.rollback().expect("rolled back");
    assert_eq!(remote.download(), [""; 0]);
}

#[test]
fn what_a_prepared_transaction_and_another_database_hold_open_costs_nothing() {
    let (database, plan) = tracked();
    let other = Database::with("CREATE TABLE elsewhere (id int)");
    let mut far = other.connect();
    far.begin(Mode::Upload).expect("begin");
    far.execute("INSERT INTO elsewhere VALUES (1)", &[]).expect("inserted");
    let name = database.url.rsplit('/').next().expect("a name").to_owned();
    database.sql(&format!("BEGIN; UPDATE t SET x = 10 WHERE id = 1; PREPARE TRANSACTION '{name}'"));
    let mut remote = Remote::new(&database, &plan);
    for round in 1..=3 {
        database.sql(&format!("UPDATE t SET x = {round} WHERE id = 2"));
        assert_eq!(remote.download(), [format!("2 {round}")]);
        assert_eq!(remote.download(), [""; 0]);
    }
    assert!(remote.seen.len() < 16, "{} bytes", remote.seen.len());
    database.sql(&format!("COMMIT PREPARED '{name}'"));
    assert_eq!(remote.download(), ["1 10"]);
    far.commit().expect("committed");
    assert_eq!(remote.download(), [""; 0]);
}

#[test]
fn our_own_upload_is_told_from_others() {
    let (database, plan) = tracked();
    let since = database.watermark();
    let table = &plan.tables[0];
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    connection
        .update(table, &[&vec![Value::Int(1), Value::Int(10)], &vec![Value::Int(2), Value::Int(20)]])
        .expect("updated");
    let own = connection.own_mark().expect("a mark");
    connection.commit().expect("committed");
    database.sql("UPDATE t SET x = 21 WHERE id = 2");
    let mut echo = Echo::default();
    for (id, x) in [(1, 10), (2, 20)] {
        echo.extend([echo.marker().stored(table, &[Value::Int(id), Value::Int(x)])]);
    }
    connection.begin(Mode::Download).expect("begin");
    let changes = Changes { table, partitions: &[], wanted: &[], since: &since, own: Some(&own) };
    let mut rows = 0;
    let mut sink = |_| Ok(());
    let mut writer = RowsWriter::new(table, &echo, &mut sink);
    connection.read_changes(&changes, &mut writer).expect("read");
    rows += writer.finish().expect("finished");
    assert_eq!(rows, 1, "row 1 is just as uploaded; row 2 was changed since");
    let all = collect(table, |out| connection.read_changes(&Changes { own: None, ..changes }, out)).expect("read");
    assert_eq!(all.shown().0, ["1 10", "2 21"]);
}

#[test]
fn only_watermarks_of_the_past_are_accepted() {
    let (database, plan) = tracked();
    let mut connection = database.connect();
    let now = database.watermark();
    connection.begin(Mode::Download).expect("begin");
    let mut accepts = |watermark: &[u8]| connection.accepts_watermark(watermark).expect("an answer");
    assert!(accepts(&now));
    let mut future = now.clone();
    future[2] += 1; // the second byte of the end: 128 transactions on
    assert!(!accepts(&future));
    assert!(!accepts(&[]) && !accepts(&now[..now.len() - 1]) && !accepts(b"700:701:"));
    let changes = Changes { table: &plan.tables[0], partitions: &[], wanted: &[], since: &[9], own: None };
    assert!(collect(&plan.tables[0], |out| connection.read_changes(&changes, out)).is_err());
}

/// How many entries of the side table's indexes have been read, by sessions that have ended.
fn entries_read(database: &Database) -> u64 {
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while database.sql(others)[0][0] != "0" {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let read = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname LIKE 'side_%'";
    database.sql(read)[0][0].parse().expect("a number")
}

#[test]
fn a_plan_made_while_little_had_changed_reads_no_other_partition() {
    let database = Database::with("CREATE TABLE t (id int PRIMARY KEY, x int)");
    let partition = "[partitions.part]\ncolumns = { x = \"int\" }\nmembers = \"SELECT 1\"\n";
    let partitioned = MODEL.replace("key = [\"id\"]", "key = [\"id\"]\npartition = \"part\"");
    let plan = plan(&format!("{partition}{partitioned}"));
    database.track(&plan);
    let since = database.watermark();
    let before = entries_read(&database);
    // Plans are made once, for any parameters.
    database.sql(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database()); END $$",
    );
    let mut connection = database.connect();
    let mut echo = Echo::default();
    echo.add_whole(&plan.tables[0]);
    let mut sync = |id: i64| {
        connection.begin(Mode::Upload).expect("begin");
        connection.insert(&plan.tables[0], &[&vec![Value::Int(-id), Value::Int(1)]]).expect("inserted");
        let own = connection.own_mark().expect("a mark");
        connection.commit().expect("committed");
        connection.begin(Mode::Download).expect("begin");
        let (table, partitions) = (&plan.tables[0], &[vec![Value::Int(1)]]);
        let changes = Changes { table, partitions, wanted: partitions, since: &since, own: Some(&own) };
        let mut sink = |_| Ok(());
        connection.read_changes(&changes, &mut RowsWriter::new(table, &echo, &mut sink)).expect("read");
        connection.rollback().expect("rollback");
    };
    database.sql("INSERT INTO t SELECT n, 2 + n % 20 FROM generate_series(1, 1000) n; ANALYZE");
    sync(1);
    database.sql("INSERT INTO t SELECT n, 2 + n % 100 FROM generate_series(1001, 20000) n");
    sync(2);
    drop(connection);
    let read = entries_read(&database) - before;
    assert!(read < 100, "{read} entries");
}
