//! A pooler between: in session mode all is well, and a mode that shares sessions is found out before anything is done.

use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::results::QueryBackend as _;
use headwater_consolidated::{Backend as _, Connection, Error, Mode};
use headwater_protocol::Value;
use headwater_testkit::PgBouncer;

use crate::support::Database;

fn port(database: &Database) -> u16 {
    let after = database.url.rsplit_once(':').map(|(_, after)| after).expect("a port");
    after.split_once('/').and_then(|(port, _)| port.parse().ok()).expect("a port")
}

fn backend(url: &str) -> Postgres {
    Postgres::new(url, Settings::default()).expect("an address")
}

/// That it is the setup's fault, and says what.
fn assert_told(result: Result<impl Sized, Error>) {
    match result {
        Err(Error::Setup { what, mend }) => {
            assert!(what.contains("a pooler in transaction mode"), "{what}");
            assert!(mend.contains("pool_mode = session"), "{mend}");
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("a pooler that shares sessions is taken for a database"),
    }
}

#[test]
fn a_pooler_that_shares_sessions_is_refused() {
    let database = Database::with("CREATE TABLE t (id int)");
    for (mode, sessions) in [("transaction", 1), ("transaction", 2), ("transaction", 20), ("statement", 2)] {
        let pooler = PgBouncer::start(port(&database), mode, sessions).expect("a pooler");
        let backend = backend(&pooler.url(&database.url));
        assert_told(backend.connect());
        assert_told(backend.connect_for_queries());
        assert_told(backend.connect_for_client_sql(1 << 20));
    }
}

#[test]
fn a_pooler_in_session_mode_serves_several_connections() {
    let database = Database::with("CREATE TABLE t (id int PRIMARY KEY)");
    let pooler = PgBouncer::start(port(&database), "session", 4).expect("a pooler");
    let (one, other) = (backend(&pooler.url(&database.url)), backend(&pooler.url(&database.url)));
    let mut connections =
        [one.connect().expect("connected"), other.connect().expect("connected"), one.connect().expect("connected")];
    for round in 0..3 {
        for (place, connection) in connections.iter_mut().enumerate() {
            let id = Value::Int(round * 10 + place as i64);
            connection.query("SELECT count(*) FROM t", &[]).expect("outside of a transaction");
            connection.open(Mode::Upload, ("anna", &[1; 16]), &[]).expect("begun");
            connection.execute("INSERT INTO t VALUES (?1)", &[id]).expect("inserted");
            connection.commit().expect("committed");
            connection.open(Mode::Download, ("anna", &[1; 16]), &[]).expect("begun");
            connection.query("SELECT current_setting('TimeZone')", &[]).expect("in a download");
            connection.rollback().expect("rolled back");
        }
    }
    assert_eq!(database.sql("SELECT count(*) FROM t"), [["9"]]);
    // What proves a session costs nothing where there is no pooler.
    let beginning = |connection: &mut dyn Connection| {
        connection.begin(Mode::Upload).expect("begun");
        let open =
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";
        let shown = database.sql(open);
        connection.rollback().expect("rolled back");
        shown[0][0].clone()
    };
    assert!(beginning(&mut *connections[0]).contains("; SHOW headwater.session_"));
    assert!(!beginning(&mut *database.connect()).contains("SHOW"));
    // One that has no session to spare for a second look.
    let pooler = PgBouncer::start(port(&database), "session", 1).expect("a pooler");
    let mut alone = backend(&pooler.url(&database.url)).connect().expect("connected");
    assert_eq!(alone.query("SELECT 1", &[]).expect("rows"), [[Value::Int(1)]]);
}

/// The pooler changes its mode under a server that runs: whatever other servers have prepared under the names of this one's statements is
/// never run by it.
#[test]
fn what_others_have_prepared_is_never_run() {
    let database =
        Database::with("CREATE TABLE mine (x int); INSERT INTO mine VALUES (0); CREATE TABLE stolen (x int)");
    let mut pooler = PgBouncer::start(port(&database), "session", 2).expect("a pooler");
    let backend = backend(&pooler.url(&database.url));
    drop(backend.connect().expect("a session of its own"));
    pooler.restart("transaction", 2).expect("another mode");
    // Nobody else is there, so that it is given the same session each time.
    let mut connection = backend.connect().expect("by luck");
    let update = "UPDATE mine SET x = x + 1";
    assert_eq!(connection.execute(update, &[]).expect("by luck"), 1);
    connection.begin(Mode::Upload).expect("by luck");
    connection.execute(update, &[]).expect("by luck");
    connection.commit().expect("by luck");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let client = |url: &str| {
        let (url, connected) = (url.to_owned(), std::time::Instant::now());
        let (client, driver) =
            runtime.block_on(tokio_postgres::connect(&url, tokio_postgres::NoTls)).expect("connected");
        assert!(connected.elapsed().as_secs() < 60);
        runtime.spawn(driver);
        client
    };
    let url = pooler.url(&database.url);
    let (first, second) = (client(&url), client(&url));
    // One takes the session that this server had; the other prepares on the second one what it would run under each name.
    runtime.block_on(first.batch_execute("BEGIN")).expect("begun");
    let prepared = "DO $$BEGIN FOR n IN 0..2000 LOOP EXECUTE format('PREPARE s%s AS INSERT INTO stolen VALUES (1)', n); END LOOP; END$$";
    runtime.block_on(second.batch_execute(prepared)).expect("prepared");
    assert_told(connection.execute(update, &[]));
    assert_told(connection.query(update, &[]));
    assert_told(connection.begin(Mode::Upload));
    connection.rollback().expect("rolled back");
    assert_told(connection.open(Mode::Upload, ("anna", &[1; 16]), &[]));
    connection.rollback().expect("rolled back");
    assert_told(connection.open(Mode::Download, ("anna", &[1; 16]), &[]));
    connection.rollback().expect("rolled back");
    assert_eq!(database.sql("SELECT (SELECT x FROM mine), (SELECT count(*) FROM stolen)"), [["2", "0"]]);
}
