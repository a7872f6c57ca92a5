//! Connections for SQL that clients send: what they can read of Headwater's own, and whether they see what others see.

use std::sync::Arc;
use std::time::Duration;

use headwater_consolidated::mysql::MariaDb;
use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::{Backend as _, Dialect, QueryBackend, QueryConnection, QueryPool, system};

use super::database::Database;
use super::results::read;

fn of(backend: &dyn QueryBackend) -> Box<dyn QueryConnection> {
    backend.connect_for_client_sql(1 << 20).expect("a connection")
}

pub(crate) fn two_connections_of_one_role_see_the_same(database: &Database) {
    const QUERY: &str = "SELECT id FROM customer";
    database.standard();
    let mut one = database.connect();
    let watched = one.watch(QUERY).expect("looked into").expect("it can be watched");
    let seen = one.outlook(&watched).expect("told");
    assert!(seen.is_some());
    assert_eq!(one.outlook(&watched).expect("told"), seen);
    assert_eq!(database.connect().outlook(&watched).expect("told"), seen);
    let backend: Arc<dyn QueryBackend> = Arc::clone(&database.backend) as _;
    assert_eq!(of(&*backend).outlook(&watched).expect("told"), seen);
    let other = match database.dialect() {
        Dialect::Sqlite => Database::sqlite(),
        Dialect::Postgres => Database::postgres(),
    };
    other.standard();
    let watched = other.connect().watch(QUERY).expect("looked into").expect("it can be watched");
    assert_ne!(other.connect().outlook(&watched).expect("told"), seen);
}

/// What a new role of this name can read of Headwater's own tables, once it has these privileges too.
fn postgres_role(name: &str, grants: &str) -> Vec<String> {
    let server = headwater_testkit::Postgres::shared().expect("a server");
    let url = server.create_database().expect("a database");
    let database = |url: &str| Postgres::new(url, Settings::default()).expect("an address");
    let mut connection = database(&url).connect().expect("a connection");
    system::install(&mut *connection).expect("installed");
    let made = format!("CREATE ROLE {name} LOGIN; CREATE TABLE t (id int); GRANT SELECT ON t TO {name}");
    connection.batch(&format!("{made}; {}", grants.replace("WHO", name))).expect(grants);
    let role = database(&url.replace("postgres://postgres@", &format!("postgres://{name}@")));
    of(&role).readable_secrets().expect("told")
}

#[test]
fn what_a_role_of_postgres_can_read_is_told() {
    const ALL: [&str; 4] = [
        "headwater.account",
        "headwater.identity",
        "headwater.remote",
        "the files of the server, those of other databases too",
    ];
    let unique = std::process::id();
    for (number, (grants, expected)) in [
        ("", &[][..]),
        ("GRANT USAGE ON SCHEMA headwater TO WHO; GRANT SELECT ON headwater.table_change TO WHO", &[]),
        ("GRANT SELECT ON headwater.account TO WHO", &ALL[..1]),
        ("GRANT SELECT (password_hash) ON headwater.account TO WHO", &ALL[..1]),
        ("GRANT SELECT ON headwater.remote TO public", &ALL[2..3]),
        ("ALTER ROLE WHO SUPERUSER", &ALL),
        ("GRANT pg_read_all_data TO WHO", &ALL[..3]),
        ("GRANT pg_read_server_files TO WHO", &ALL[3..]),
        // By `set_config('role', 'postgres', false)`.
        ("ALTER ROLE WHO NOINHERIT; GRANT postgres TO WHO", &ALL),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(postgres_role(&format!("client_{unique}_{number}"), grants), expected, "{grants}");
    }
}

/// The driver keeps a buffer as large as the largest row.
#[test]
fn a_connection_of_postgres_that_has_read_a_huge_row_is_closed() {
    let url = headwater_testkit::Postgres::shared()
        .and_then(headwater_testkit::Postgres::create_database)
        .expect("a database");
    let database = Postgres::new(&url, Settings::default()).expect("an address");
    let pool = QueryPool::for_queries(Arc::new(database), 1);
    for (bytes, idle) in [(1 << 20, 1), (16 << 20, 0), (1 << 20, 1)] {
        let mut connection = pool.checkout(Duration::ZERO).expect("one");
        let found = read(&mut *connection, &format!("SELECT repeat('x', {bytes}) AS x"), &[]).expect("a row");
        assert_eq!(found.rows.len(), 1);
        drop(connection);
        let stats = pool.stats();
        assert_eq!((stats.open, stats.idle, stats.reconnections), (idle, idle, 0), "{bytes} bytes");
    }
}

#[test]
fn what_a_user_of_mariadb_can_read_is_told() {
    let server = headwater_testkit::MariaDb::shared().expect("a server");
    let name = server.create_database().expect("a database");
    let tables = "CREATE TABLE t (id int); CREATE TABLE headwater_account (user_name text, password_hash text)";
    server.sql(&name, tables).expect("tables");
    for (number, (grants, is_readable)) in [
        ("GRANT SELECT ON t TO WHO", false),
        ("GRANT INSERT ON headwater_account TO WHO", false),
        ("GRANT SELECT ON headwater_account TO WHO", true),
        ("GRANT SELECT (password_hash) ON headwater_account TO WHO", true),
        ("GRANT SELECT ON *.* TO WHO", true),
    ]
    .into_iter()
    .enumerate()
    {
        let user = format!("client_{name}_{number}");
        let grant = grants.replace("WHO", &user);
        let made = format!("CREATE USER {user} IDENTIFIED BY 'secret'; GRANT SELECT ON t TO {user}; {grant}");
        server.sql(&name, &made).expect("granted");
        let url = format!("mariadb://{user}:secret@127.0.0.1:{}/{name}", server.port());
        let readable = of(&MariaDb::new(&url).expect("an address")).readable_secrets().expect("told");
        let expected = if is_readable { vec![format!("{name}.headwater_account")] } else { Vec::new() };
        assert_eq!(readable, expected, "{grants}");
        server.sql("", &format!("DROP USER {user}")).expect("dropped");
    }
    let user = format!("reads_{name}");
    server.sql("", &format!("CREATE USER {user} IDENTIFIED BY 'secret'; GRANT FILE ON *.* TO {user}")).expect("made");
    server.sql("", &format!("GRANT SELECT ON {name}.t TO {user}")).expect("granted");
    let url = format!("mariadb://{user}:secret@127.0.0.1:{}/{name}", server.port());
    let readable = of(&MariaDb::new(&url).expect("an address")).readable_secrets().expect("told");
    assert_eq!(readable, ["the files of the server, by the privilege FILE"]);
    server.sql("", &format!("DROP USER {user}")).expect("dropped");
}

/// Locks that a statement takes for its session would keep others away for as long as the pool keeps the connection.
#[test]
fn locks_of_a_session_end_with_the_statement_that_took_them() {
    let server = headwater_testkit::Postgres::shared().expect("a server");
    let url = server.create_database().expect("a database");
    let database = Postgres::new(&url, Settings::default()).expect("an address");
    let mut connection = of(&database);
    let held = || {
        let sql = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711";
        !headwater_testkit::sql(&url, sql).expect("asked").is_empty()
    };
    let taken = "SELECT pg_advisory_lock(4711)::text, count(*) FROM pg_locks WHERE locktype = 'advisory'";
    for (sql, is_good) in
        [(taken, true), ("SELECT pg_advisory_lock(4711)::text, 1 / (i - 9) FROM generate_series(1, 9) i", false)]
    {
        assert_eq!(read(&mut *connection, sql, &[]).is_ok(), is_good, "{sql}");
        // The next answer comes behind the end of the transaction before it.
        read(&mut *connection, "SELECT 1", &[]).expect("it goes on");
        assert!(!held(), "{sql}");
    }
    let server = headwater_testkit::MariaDb::shared().expect("a server");
    let name = server.create_database().expect("a database");
    let mut connection = of(&MariaDb::new(&server.url(&name)).expect("an address"));
    let lock = format!("SELECT GET_LOCK('{name}', 1) AS locked");
    assert_eq!(read(&mut *connection, &lock, &[]).expect("a row").rows, [[headwater_protocol::Value::Int(1)]]);
    assert_eq!(server.sql("", &format!("SELECT IS_FREE_LOCK('{name}')")).expect("asked"), ["1"]);
}

/// What one client's SQL leaves in its session would come to the next one's.
#[test]
fn nothing_of_a_session_of_mariadb_comes_to_the_next_statement() {
    use headwater_protocol::Value;
    let server = headwater_testkit::MariaDb::shared().expect("a server");
    let name = server.create_database().expect("a database");
    let mut connection = of(&MariaDb::new(&server.url(&name)).expect("an address"));
    let mut ask = |sql: &str| read(&mut *connection, sql, &[]).expect(sql).rows;
    let usual = "SELECT @@sql_mode, @@time_zone, @@character_set_client, DATABASE(), \"x\" FROM (SELECT 1 AS \"x\") t";
    let before = ask(usual);
    for (leaves, finds, nothing) in [
        ("SELECT @who := 'anna' AS x", "SELECT @who AS x", Value::Null),
        ("SELECT LAST_INSERT_ID(7) AS x", "SELECT LAST_INSERT_ID() AS x", Value::Int(0)),
        (
            "SELECT SQL_CALC_FOUND_ROWS 1 AS x UNION SELECT 2 UNION SELECT 3 LIMIT 1",
            "SELECT FOUND_ROWS() <> 3 AS x",
            Value::Int(1),
        ),
    ] {
        ask(leaves);
        assert_eq!(ask(finds), [[nothing]], "{leaves}");
    }
    assert_eq!(ask(usual), before, "it is set up anew");
}

#[test]
fn connections_that_mariadb_has_closed_are_not_handed_out() {
    let server = headwater_testkit::MariaDb::shared().expect("a server");
    let name = server.create_database().expect("a database");
    let pool = QueryPool::for_queries(Arc::new(MariaDb::new(&server.url(&name)).expect("an address")), 2);
    let checkout = || pool.checkout(Duration::from_mins(1)).expect("a connection");
    drop([checkout(), checkout()]);
    let open = format!("SELECT id FROM information_schema.processlist WHERE db = '{name}'");
    for id in server.sql("", &open).expect("told") {
        server.sql("", &format!("KILL {id}")).expect("ended");
    }
    while !server.sql("", &open).expect("told").is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    // It is looked at only what has not been used for a moment.
    std::thread::sleep(Duration::from_millis(60));
    for mut connection in [checkout(), checkout()] {
        read(&mut *connection, "SELECT 1", &[]).expect("a connection that is there");
    }
    assert_eq!((pool.stats().open, pool.stats().reconnections), (2, 2));
}
