//! A mark is good only for what it was made of: names, types, rights, and a database that has lost nothing since.

use headwater_consolidated::postgres::{Postgres, Settings};
use headwater_consolidated::watch::{Marked, Watched};
use headwater_consolidated::{Backend as _, Connection, track};
use headwater_testkit::postgres::sql;

use super::database::{Database, plan};

const MODEL: &str =
    "name = \"m\"\nversion = 1\n[tables.t]\nkey = [\"id\"]\ncolumns = { id = \"int not null\", mood = \"text\" }";

fn backend(url: &str) -> Postgres {
    Postgres::new(url, Settings::default()).expect("an address")
}

/// A query, and the mark under which it was read.
struct Watch {
    query: String,
    watched: Watched,
    mark: String,
}

impl Watch {
    fn new(connection: &mut dyn Connection, query: &str) -> Watch {
        let watched =
            connection.watch(query).expect("looked into").unwrap_or_else(|| panic!("{query} can't be watched"));
        let Marked::Changed(mark) = connection.marked(&watched, None).expect("a mark") else { panic!("no first mark") };
        Watch { query: query.to_owned(), watched, mark }
    }

    /// Whether the mark is still good, also once the query has been looked into again.
    fn is_good(&self, connection: &mut dyn Connection) -> bool {
        match connection.marked(&self.watched, Some(&self.mark)).expect("a mark") {
            Marked::Unchanged(_) => true,
            Marked::Changed(_) => false,
            Marked::Altered => {
                let Some(watched) = connection.watch(&self.query).expect("looked into") else { return false };
                matches!(connection.marked(&watched, Some(&self.mark)).expect("a mark"), Marked::Unchanged(_))
            }
        }
    }
}

pub(crate) fn what_names_types_and_rights_mean_is_part_of_a_mark(database: &Database) {
    let role = format!("reader_{}", std::process::id());
    database.application(&format!(
        "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TYPE pair AS (a int, b mood); CREATE DOMAIN moods AS mood[]; \
         CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, mood mood, pair pair, many moods); CREATE SCHEMA app; CREATE SCHEMA early; \
         CREATE TABLE app.t (LIKE public.t INCLUDING ALL); CREATE VIEW app.seen AS SELECT id, mood FROM app.t; \
         CREATE ROLE {role}; CREATE ROLE {role}_of; GRANT {role} TO {role}_of; GRANT SELECT ON ALL TABLES IN SCHEMA app TO {role}; \
         GRANT USAGE ON SCHEMA app, headwater TO {role}, {role}_of",
    ).replace(", headwater TO", " TO"));
    let model = MODEL.replace("[tables.t]", "[tables.t]\nschema = \"app\"");
    track::track(&mut *database.connect(), &plan(&MODEL.replace("name = \"m\"", "name = \"p\""))).expect("tracked");
    track::track(&mut *database.connect(), &plan(&model)).expect("tracked");
    database.application(&format!(
        "GRANT USAGE ON SCHEMA headwater TO {role}_of; GRANT SELECT ON headwater.table_change, headwater.identity TO {role}_of; \
         GRANT {role}_of TO postgres"
    ));
    let path = "SET search_path = early, public, app";
    let as_role = format!("SET ROLE {role}_of");
    for (event, setting, query, change) in [
        ("a label", "", "SELECT id, mood FROM t", "ALTER TYPE mood RENAME VALUE 'sad' TO 'sorry'"),
        ("a label in a composite type", "", "SELECT pair FROM t", "ALTER TYPE mood RENAME VALUE 'sorry' TO 'sad'"),
        ("a label below a domain", "", "SELECT many FROM t", "ALTER TYPE mood RENAME VALUE 'sad' TO 'sorry'"),
        (
            "a constant of the query",
            "",
            "SELECT id, 'glad'::mood AS m FROM t",
            "ALTER TYPE mood RENAME VALUE 'glad' TO 'gay'",
        ),
        ("an attribute", "", "SELECT to_jsonb(pair) AS p FROM t", "ALTER TYPE pair RENAME ATTRIBUTE b TO c"),
        (
            "a schema renamed into place",
            "",
            "SELECT id FROM app.t",
            "CREATE SCHEMA made; CREATE TABLE made.t (LIKE app.t INCLUDING ALL); ALTER SCHEMA app RENAME TO was; \
             ALTER SCHEMA made RENAME TO app",
        ),
        ("a table earlier in the path", path, "SELECT id FROM t", "CREATE TABLE early.t (LIKE public.t INCLUDING ALL)"),
        (
            "a function of the same name",
            "",
            "SELECT upper(mood::text) AS u FROM public.t",
            "CREATE FUNCTION upper(int) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT 'x'$$",
        ),
        ("a role's membership", as_role.as_str(), "SELECT id FROM was.seen", &format!("REVOKE {role} FROM {role}_of")),
    ] {
        let mut connection = database.connect();
        connection.batch(if setting.is_empty() { "SELECT 1" } else { setting }).expect(event);
        let watch = Watch::new(&mut *connection, query);
        assert!(watch.is_good(&mut *connection), "{event}: before");
        let outlook = connection.outlook(&watch.watched).expect("told").expect("a primary");
        database.application(change);
        assert!(!watch.is_good(&mut *connection), "{event}");
        // What SQL of clients goes by, which another role runs.
        let now = connection.outlook(&watch.watched).expect("told").expect("a primary");
        assert_eq!(now.rights != outlook.rights, event == "a role's membership", "{event}");
        let are_names = ["a table earlier in the path", "a function of the same name"].contains(&event);
        assert_eq!(now.names != outlook.names, are_names, "{event}");
    }
}

pub(crate) fn a_mark_of_another_life_of_the_database_is_good_for_nothing() {
    let cluster = headwater_testkit::Postgres::builder().start().expect("a cluster");
    let url = cluster.create_database().expect("a database");
    let name = url.rsplit('/').next().unwrap_or_default().split('?').next().unwrap_or_default().to_owned();
    sql(&url, "CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, mood text)").expect("a table");
    track::track(&mut *backend(&url).connect().expect("a connection"), &plan(MODEL)).expect("tracked");
    sql(&url, "INSERT INTO t VALUES (1, 'a')").expect("a row");
    let maintenance = cluster.url("postgres");
    sql(&maintenance, &format!("CREATE DATABASE copy TEMPLATE {name}")).expect("a copy");
    let watch = Watch::new(&mut *backend(&url).connect().expect("a connection"), "SELECT * FROM t");
    assert!(watch.is_good(&mut *backend(&url).connect().expect("a connection")));

    sql(&maintenance, &format!("ALTER DATABASE {name} RENAME TO was; ")).expect("renamed");
    sql(&maintenance, &format!("ALTER DATABASE copy RENAME TO {name}")).expect("renamed");
    assert!(!watch.is_good(&mut *backend(&url).connect().expect("a connection")), "a copy renamed into place");

    // One process is killed: the server starts its processes anew, and what was not written is lost.
    let watch = Watch::new(&mut *backend(&url).connect().expect("a connection"), "SELECT * FROM t");
    let mut dying = backend(&url).connect().expect("a connection");
    let pid = dying.query("SELECT pg_backend_pid()::int8", &[]).expect("a number");
    let Some(headwater_protocol::Value::Int(pid)) = pid[0].first() else { panic!("{pid:?}") };
    let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill");
    assert!(killed.success());
    let mut next = again(&url);
    assert!(!watch.is_good(&mut *next), "a process was killed");

    let watch = Watch::new(&mut *next, "SELECT * FROM t");
    drop(next);
    cluster.kill().expect("killed");
    cluster.restart().expect("started");
    assert!(!watch.is_good(&mut *again(&url)), "the server was killed");
}

/// A connection once the server takes one again.
fn again(url: &str) -> Box<dyn Connection> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    loop {
        let is_there = backend(url).connect().and_then(|mut connection| {
            connection.query("SELECT 1 FROM t", &[])?;
            Ok(connection)
        });
        match is_there {
            Ok(connection) => return connection,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A file that was put in the place of another has its own state, whatever its counts are.
pub(crate) fn a_mark_of_another_file_is_good_for_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let open = || headwater_consolidated::sqlite::Sqlite::new(at("c.db")).connect().expect("a connection");
    std::fs::write(at("c.db"), "").expect("a file");
    open().batch("CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, mood TEXT)").expect("a table");
    track::track(&mut *open(), &plan(MODEL)).expect("tracked");
    open().batch(&format!("VACUUM INTO '{}'", at("backup.db").display())).expect("a backup");
    let schema = |connection: &mut dyn Connection| connection.query("PRAGMA schema_version", &[]).expect("a number");
    let was = schema(&mut *open());
    open().batch("INSERT INTO t VALUES (1, 'lost')").expect("a row");
    let watch = Watch::new(&mut *open(), "SELECT * FROM t");
    for rest in ["c.db-wal", "c.db-shm"] {
        let _ = std::fs::remove_file(at(rest));
    }
    std::fs::rename(at("backup.db"), at("c.db")).expect("moved");
    let headwater_protocol::Value::Int(was) = was[0][0] else { panic!("{was:?}") };
    open().batch(&format!("PRAGMA schema_version = {was}; INSERT INTO t VALUES (1, 'another')")).expect("a row");
    assert!(!watch.is_good(&mut *open()));
}
