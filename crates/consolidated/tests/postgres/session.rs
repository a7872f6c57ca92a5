//! Connecting, statements, transactions, and what errors become.

use std::sync::Arc;
use std::time::Duration;

use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::{Backend, Error, Mode, Pool, system};
use headwater_protocol::decimal::Decimal;
use headwater_protocol::message::RefusalCode;
use headwater_protocol::value::POSITIVE_INFINITY;
use headwater_protocol::{Type, Value};

use crate::support::Database;

#[test]
fn a_query_gives_values_of_the_databases_own_types() {
    let database = Database::with("CREATE TYPE mood AS ENUM ('calm'); CREATE DOMAIN score AS int");
    let mut connection = database.connect();
    let sql = "SELECT true, 1::int2, 2::int4, 3::int8, 4::oid, 1.5::float4, 'NaN'::float8, -12.50::numeric, 'a'::text, 'b'::char(2), \
               '\\x00ff'::bytea, '1969-12-31'::date, '24:00'::time, '1970-01-01 00:00:01'::timestamp, 'infinity'::timestamptz, \
               '00000000-0000-0000-0000-000000000001'::uuid, '{\"a\": 1}'::json, '[1]'::jsonb, 'calm'::mood, 5::score, NULL::int, \
               '7'::xid8, pg_notify('x', 'y')";
    let rows = connection.query(sql, &[]).expect("rows");
    let uuid = {
        let mut bytes = [0; 16];
        bytes[15] = 1;
        bytes
    };
    let expected = [
        Value::Bool(true),
        Value::Int(1),
        Value::Int(2),
        Value::Int(3),
        Value::Int(4),
        Value::Real(1.5),
        Value::Null,
        Value::Decimal(Decimal::parse("-12.50").expect("a decimal")),
        Value::text("a"),
        Value::text("b "),
        Value::Bytes(vec![0, 255]),
        Value::Date(-1),
        Value::Time(86_400_000_000),
        Value::Timestamp(1_000_000),
        Value::Timestamptz(POSITIVE_INFINITY),
        Value::Uuid(uuid),
        Value::Json(b"{\"a\": 1}".to_vec()),
        Value::Json(b"[1]".to_vec()),
        Value::text("calm"),
        Value::Int(5),
        Value::Null,
        Value::Int(7),
        Value::Null,
    ];
    for (place, (value, expected)) in rows[0].iter().zip(&expected).enumerate() {
        match (place, value) {
            (6, Value::Real(number)) => assert!(number.is_nan()),
            _ => assert_eq!(value, expected, "column {place}"),
        }
    }
    let point = connection.query("SELECT point(1, 2)", &[]).expect_err("no value of ours").to_string();
    assert!(point.contains("cast it to text"), "{point}");
}

#[test]
fn parameters_fit_whatever_the_statement_wants() {
    let database = Database::with(
        "CREATE TABLE t (i int2, n numeric, f float4, d date, b bytea, u uuid, j jsonb, x text, z timestamptz)",
    );
    let mut connection = database.connect();
    let values = [
        Value::Int(1),
        Value::Int(2),
        Value::Real(0.1),
        Value::Date(-719_529),
        Value::Bytes(vec![1]),
        Value::Uuid([7; 16]),
        Value::Json(b"{}".to_vec()),
        Value::Int(5),
        Value::Timestamptz(-62_167_219_200_000_001),
    ];
    let insert = "INSERT INTO t SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE '?1' <> 'x' -- ?9";
    assert_eq!(connection.execute(insert, &values).expect("inserted"), 1);
    let row = database.sql("SELECT i, n, f, d, b, u, j, x, z AT TIME ZONE 'UTC' FROM t");
    let expected = [
        "1",
        "2",
        "0.1",
        "0002-12-31 BC",
        "\\x01",
        "07070707-0707-0707-0707-070707070707",
        "{}",
        "5",
        "0002-12-31 23:59:59.999999 BC",
    ];
    assert_eq!(row[0], expected);
    let rows = connection.query("SELECT ?2::text, ?1::int", &[Value::Int(1), Value::Null]).expect("rows");
    assert_eq!(rows, [vec![Value::Null, Value::Int(1)]]);
    assert!(connection.query("SELECT ?1, ?2", &[Value::Int(1)]).is_err(), "a parameter is missing");
}

#[test]
fn refusals_name_the_rule_and_keep_the_values_to_the_log() {
    let database = Database::with(
        "CREATE TABLE parent (id int PRIMARY KEY);
         CREATE TABLE t (id int PRIMARY KEY, name text NOT NULL CONSTRAINT short CHECK (length(name) < 20), code varchar(3) UNIQUE,
                         parent int REFERENCES parent);
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.name = 'raise' THEN RAISE EXCEPTION 'secret %', NEW.name; END IF;
             IF NEW.name = 'named' THEN RAISE EXCEPTION 'secret %', NEW.name USING CONSTRAINT = 'no_stock'; END IF;
             IF NEW.name = 'zero' THEN NEW.id := 1 / length(NEW.code); END IF;
             IF NEW.name = 'own' THEN RAISE EXCEPTION 'secret' USING ERRCODE = 'AB123'; END IF;
             IF NEW.name = 'broken' THEN PERFORM missing_function(); END IF;
             RETURN NEW; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse();
         INSERT INTO t VALUES (0, 'zero', 'abc', NULL)",
    );
    let mut connection = database.connect();
    let mut refused = |values: &str| match connection.execute(&format!("INSERT INTO t VALUES ({values})"), &[]) {
        Err(Error::Refused { refusal, detail }) => {
            assert!(!refusal.message.contains("secret"), "{}", refusal.message);
            assert!(detail.contains("SQLSTATE"), "{detail}");
            (refusal.code, refusal.message)
        }
        other => panic!("{values}: {other:?}"),
    };
    assert_eq!(refused("0, 'secret', NULL, NULL"), (RefusalCode::Unique, "unique constraint \"t_pkey\"".into()));
    assert_eq!(refused("1, 'secret', 'abc', NULL"), (RefusalCode::Unique, "unique constraint \"t_code_key\"".into()));
    assert_eq!(refused("1, 'secret', NULL, 9").0, RefusalCode::ForeignKey);
    assert_eq!(refused("1, NULL, NULL, NULL"), (RefusalCode::NotNull, "not null: column \"name\"".into()));
    assert_eq!(
        refused("1, 'secret secret secret secret', NULL, NULL"),
        (RefusalCode::Check, "check constraint \"short\"".into())
    );
    assert_eq!(refused("1, 'a', 'secret', NULL").0, RefusalCode::Data);
    assert_eq!(refused("1, 'raise', NULL, NULL").0, RefusalCode::Trigger);
    let named = "a trigger of the database \"no_stock\"".to_owned();
    assert_eq!(refused("1, 'named', NULL, NULL"), (RefusalCode::Trigger, named));
    assert_eq!(refused("1, 'zero', '', NULL"), (RefusalCode::Data, "a division by zero".into()));
    assert_eq!(refused("1, 'own', NULL, NULL").0, RefusalCode::Trigger);
    assert_eq!(refused("1, 'broken', NULL, NULL").0, RefusalCode::Trigger);
    assert!(matches!(connection.query("SELECT * FROM nowhere", &[]), Err(Error::Setup { .. })));
    assert!(matches!(connection.query("SELEC", &[]), Err(Error::Database { .. })));
    connection.begin(Mode::Download).expect("begin");
    let failed = connection.query("SELECT 1 / 0", &[]);
    assert!(matches!(failed, Err(Error::Database { .. })), "a download has no rows to refuse: {failed:?}");
}

#[test]
fn a_policy_refuses_a_row_and_a_missing_grant_is_the_setup() {
    let database = Database::with(
        "CREATE TABLE t (id int); CREATE TABLE closed (id int); CREATE ROLE app LOGIN; GRANT ALL ON t TO app;
         ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (id < 10)",
    );
    let url = database.url.replace("postgres@", "app@");
    let mut connection = Postgres::new(&url, Settings::default()).expect("a backend").connect().expect("a connection");
    assert_eq!(connection.execute("INSERT INTO t VALUES (9)", &[]).expect("allowed"), 1);
    let refused = connection.execute("INSERT INTO t VALUES (10)", &[]).expect_err("refused");
    assert_eq!(refused.refusal().map(|r| r.code), Some(RefusalCode::Policy));
    assert!(matches!(connection.execute("INSERT INTO closed VALUES (10)", &[]), Err(Error::Setup { .. })));
    database.sql("DROP OWNED BY app; DROP ROLE app");
}

#[test]
fn a_download_that_cannot_begin_leaves_nothing_open() {
    let database = Database::with("");
    let mut connection = database.connect();
    system::install(&mut *connection).expect("installed");
    connection.begin(Mode::Download).expect("begin");
    let now = connection.watermark().expect("a watermark");
    connection.gaps(&now).expect("from here on the horizon is read with each beginning");
    connection.rollback().expect("rolled back");
    connection.begin(Mode::Download).expect("what it asks for is prepared");
    connection.rollback().expect("rolled back");
    database.sql("ALTER TABLE headwater.horizon RENAME TO elsewhere");
    connection.begin(Mode::Download).expect_err("there is no horizon");
    database.sql("ALTER TABLE headwater.elsewhere RENAME TO horizon");
    connection.rollback().expect("rolled back");
    connection.begin(Mode::Download).expect("nothing is left of the attempt before");
    connection.gaps(&now).expect("told");
}

#[test]
fn savepoints_move_and_undo() {
    let database = Database::with("CREATE TABLE t (id int PRIMARY KEY)");
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    connection.execute("INSERT INTO t VALUES (1)", &[]).expect("inserted");
    connection.savepoint().expect("a savepoint");
    connection.execute("INSERT INTO t VALUES (2)", &[]).expect("inserted");
    connection.savepoint().expect("moved");
    connection.execute("INSERT INTO t VALUES (3)", &[]).expect("inserted");
    connection.execute("INSERT INTO t VALUES (3)", &[]).expect_err("twice");
    connection.rollback_to_savepoint().expect("undone");
    connection.execute("INSERT INTO t VALUES (4)", &[]).expect("inserted");
    connection.rollback_to_savepoint().expect("undone again: the savepoint stays");
    connection.execute("INSERT INTO t VALUES (5)", &[]).expect("inserted");
    connection.release_savepoint().expect("released");
    connection.commit().expect("committed");
    assert_eq!(database.sql("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t"), [["1 2 5"]]);
    connection.rollback().expect("harmless where no transaction is open");
}

#[test]
fn a_failed_transaction_is_never_said_to_be_committed() {
    let database = Database::with("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)");
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    connection.query("SELECT 1 / 0", &[]).expect_err("fails");
    assert!(connection.commit().is_err());
    connection.begin(Mode::Upload).expect("begin");
    connection.execute("INSERT INTO t VALUES (1), (1)", &[]).expect("not checked yet");
    let refused = connection.check_deferred().expect_err("checked");
    assert_eq!(refused.refusal().map(|r| r.code), Some(RefusalCode::Unique));
    connection.rollback().expect("rolled back");
    connection.begin(Mode::Upload).expect("begin");
    connection.execute("INSERT INTO t VALUES (1), (1)", &[]).expect("not checked yet");
    assert_eq!(connection.commit().expect_err("checked").refusal().map(|r| r.code), Some(RefusalCode::Unique));
    assert_eq!(connection.query("SELECT count(*) FROM t", &[]).expect("usable"), [[Value::Int(0)]]);
}

#[test]
fn a_remotes_row_is_not_waited_for_and_other_locks_not_for_ever() {
    let database = Database::with("CREATE TABLE t (id int); INSERT INTO t VALUES (1)");
    let mut first = database.connect();
    first.begin(Mode::Upload).expect("begin");
    first.query("SELECT id FROM t FOR UPDATE", &[]).expect("locked");
    let settings = Settings { lock_time_out: Duration::from_millis(50), ..Settings::default() };
    let mut second = Postgres::new(&database.url, settings).expect("a backend").connect().expect("a connection");
    second.begin(Mode::Upload).expect("begin");
    let busy = second.query("SELECT id FROM t WHERE id = ?1 FOR UPDATE NOWAIT", &[Value::Int(1)]);
    assert!(matches!(busy, Err(Error::RemoteBusy)), "{busy:?}");
    second.rollback().expect("rolled back");
    let waited = second.execute("UPDATE t SET id = 2", &[]);
    assert!(matches!(waited, Err(Error::Retry { broken: false, .. })), "{waited:?}");
    let settings = Settings { statement_time_out: Duration::from_millis(50), ..Settings::default() };
    let mut third = Postgres::new(&database.url, settings).expect("a backend").connect().expect("a connection");
    let slow = third.query("SELECT pg_sleep(60)", &[]);
    assert!(matches!(slow, Err(Error::Retry { broken: false, .. })), "{slow:?}");
}

#[test]
fn a_lost_connection_is_told_from_everything_else() {
    let database = Database::with("");
    let mut connection = database.connect();
    let rows = connection.query("SELECT pg_backend_pid()", &[]).expect("a process");
    let Value::Int(process) = rows[0][0] else { panic!("{rows:?}") };
    database.sql(&format!("SELECT pg_terminate_backend({process}, 10000)"));
    let lost = connection.begin(Mode::Upload).expect_err("lost");
    assert!(lost.is_broken(), "{lost}");
    let settings = Settings { idle_in_transaction_time_out: Duration::from_millis(50), ..Settings::default() };
    let mut idle = Postgres::new(&database.url, settings).expect("a backend").connect().expect("a connection");
    idle.begin(Mode::Upload).expect("begin");
    while database.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()",
    ) != [["0"]]
    {
        std::thread::yield_now();
    }
    assert!(idle.execute("SELECT 1", &[]).expect_err("ended by the server").is_broken());
}

#[test]
fn what_can_not_be_reached_or_entered_says_why() {
    let database = Database::with("");
    let connect = |url: &str| Postgres::new(url, Settings::default()).and_then(|backend| backend.connect()).map(|_| ());
    let nobody = headwater_testkit::free_port().expect("a port");
    assert!(matches!(connect(&format!("postgres://postgres@127.0.0.1:{nobody}/x")), Err(Error::Retry { .. })));
    let absent = connect(&format!("{}_absent", database.url));
    assert!(matches!(absent, Err(Error::Setup { .. })), "{absent:?}");
    let unencrypted = connect(&format!("{}?sslmode=require", database.url));
    assert!(matches!(unencrypted, Err(Error::Setup { .. })), "{unencrypted:?}");
    assert!(connect(&format!("{}?sslmode=verify-full&sslrootcert=/nowhere", database.url)).is_err());
}

#[test]
fn any_thread_may_hold_a_connection() {
    let database = Database::with("");
    let mut connection = database.connect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (rows, connection) = runtime.block_on(async move {
        let blocking = tokio::task::spawn_blocking(move || (connection.query("SELECT 1", &[]), connection));
        let (rows, connection) = blocking.await.expect("the thread ends");
        drop(database.connect_elsewhere()); // dropped inside a task
        (rows, connection)
    });
    assert_eq!(rows.expect("rows"), [[Value::Int(1)]]);
    std::thread::spawn(move || drop(connection)).join().expect("the thread ends");
}

#[test]
fn the_session_is_set_for_exact_text_and_known_to_the_server() {
    let database = Database::with("");
    let mut connection = database.connect();
    connection.begin(Mode::Upload).expect("begin");
    connection.set_actor("ann", &[0xab; 16]).expect("set");
    let sql = "SELECT current_setting('TimeZone'), left(current_setting('application_name'), 10), current_setting('headwater.user'), \
               current_setting('headwater.remote_id'), '1e-7'::float8::text";
    let rows = connection.query(sql, &[]).expect("rows");
    let expected = ["UTC", "headwater-", "ann", "abababab-abab-abab-abab-abababababab", "1e-07"].map(Value::text);
    assert_eq!(rows[0], expected);
    connection.commit().expect("committed");
    let after = connection.query("SELECT current_setting('headwater.user', true)", &[]).expect("rows");
    assert_eq!(after, [[Value::text("")]], "forgotten with its transaction");
    assert_eq!(after[0][0].as_ref().kind(), Some(Type::Text));
}

#[test]
fn connections_that_the_server_has_closed_are_not_handed_out() {
    let database = Database::with("");
    let backend = Postgres::new(&database.url, Settings::default()).expect("a backend");
    let pool = Pool::new(Arc::new(backend), 3);
    let checkout = || pool.checkout(Duration::from_mins(1)).expect("a connection");
    drop([0, 1, 2].map(|_| checkout()));
    assert_eq!(pool.stats().idle, 3);
    // As a restart does, or a limit of idle sessions.
    let others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    database.sql(&format!("SELECT pg_terminate_backend(pid, 60000) {others}"));
    // It is looked at only what has not been used for a moment.
    std::thread::sleep(Duration::from_millis(60));
    for mut connection in [0, 1, 2].map(|_| checkout()) {
        connection.query("SELECT 1", &[]).expect("a connection that is there");
    }
    assert_eq!((pool.stats().open, pool.stats().reconnections), (3, 3));
}
