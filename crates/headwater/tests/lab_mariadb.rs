//! `headwater lab` on MariaDB, where each CREATE commits by itself, through the built program.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use headwater_testkit::{Child, MariaDb, wait_until};

/// A folder with an experiment, and a database.
struct Place {
    folder: tempfile::TempDir,
    server: &'static MariaDb,
    database: String,
}

/// How the program ended, and what it said.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    text: String,
}

impl Place {
    /// An experiment of two clients with a scenario that makes the tables `t` and `u` by this script.
    fn new(prepare: &str, transaction: &str) -> Place {
        let server = MariaDb::shared().expect("a server");
        let database = server.create_database().expect("a database");
        let place = Place { folder: tempfile::tempdir().expect("a folder"), server, database };
        let experiment = format!(
            "name = \"own\"\nscenario.file = \"s.toml\"\nload.clients = 2\nstop.iterations = 10\ntarget.url = \"{}\"\n\
             target.setup_mariadb = \"SET innodb_lock_wait_timeout = 1\"\n",
            server.url(&place.database)
        );
        std::fs::write(place.path("x.toml"), experiment).expect("written");
        let scenario = format!(
            "name = \"own\"\ntables = [\"t\", \"u\"]\nprepare.sql = \"{prepare}\"\n[[transaction]]\n{transaction}\n"
        );
        std::fs::write(place.path("s.toml"), scenario).expect("written");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        command.env_remove("HEADWATER_LAB_TARGET").current_dir(self.folder.path());
        command.args(["lab", "run", "x.toml", "--results", "x.lab"]);
        command
    }

    fn run(&self) -> Said {
        let done = self.command().output().expect("the program runs");
        let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        Said { code: done.status.code(), text }
    }

    /// Runs it until its first table is there and the script rests, and gives it a signal.
    fn run_until(&self, signal: &str) -> Said {
        let mut child = Child::spawn("headwater lab", &mut self.command()).expect("started");
        let is_resting = || {
            let resting = "SELECT 1 FROM information_schema.processlist WHERE db = database() AND state = 'User sleep'";
            self.tables().contains(&"t".to_owned()) && !self.sql(resting).is_empty()
        };
        assert!(wait_until(Duration::from_mins(1), is_resting), "{}", child.stderr());
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        let status = child.wait(Duration::from_mins(1)).expect("it ends");
        Said { code: status.code(), text: child.stderr() }
    }

    fn sql(&self, sql: &str) -> Vec<String> {
        self.server.sql(&self.database, sql).expect(sql)
    }

    fn tables(&self) -> Vec<String> {
        self.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = database() ORDER BY 1")
    }
}

const INSERT: &str = "sql = \"INSERT INTO t VALUES (:id)\"\nvalues.id = { sequence = 1 }";
const SLOW: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY); SELECT sleep(600); CREATE TABLE u (id BIGINT)";

#[test]
fn what_a_killed_run_has_left_is_named_with_what_drops_it() {
    let place = Place::new(SLOW, INSERT);
    place.run_until("-KILL");
    std::fs::remove_file(place.path("x.lab")).expect("results were begun");
    let said = place.run();
    assert_eq!(said.code, Some(2), "{said:?}");
    let (_, drop) = said.text.split_once("A run that was killed has left them: ").unwrap_or_else(|| panic!("{said:?}"));
    let (t, marker) = (&place.tables()[1], &place.tables()[0]);
    assert_eq!((t.as_str(), drop.trim_end()), ("t", format!("DROP TABLE t, u, {marker}").as_str()), "{said:?}");
    place.sql(&drop.trim_end().replace("TABLE", "TABLE IF EXISTS"));
    assert!(place.tables().is_empty());
}

#[test]
fn a_preparation_that_is_interrupted_leaves_nothing() {
    let place = Place::new(SLOW, INSERT);
    let said = place.run_until("-INT");
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.text.contains("interrupted"), "{said:?}");
    assert!(place.tables().is_empty(), "{:?}", place.tables());
    let running = "SELECT info FROM information_schema.processlist WHERE db = database() AND state = 'User sleep'";
    assert!(place.sql(running).is_empty(), "its session has ended");
}

#[test]
fn a_table_that_another_makes_meanwhile_stays() {
    // As if somebody else had made it between the look and the script.
    let place =
        Place::new("CREATE TABLE t (id BIGINT); CREATE TABLE u (id BIGINT); CREATE TABLE u (id BIGINT)", INSERT);
    let said = place.run();
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.text.contains("prepare: Table 'u' already exists; u stays as it is"), "{said:?}");
    assert_eq!(place.tables(), ["u"]);
}

#[test]
fn a_lock_that_is_waited_for_too_long_is_told_as_such() {
    let place = Place::new(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT); INSERT INTO t VALUES (1, 0); CREATE TABLE u (id BIGINT)",
        "sql = \"UPDATE t SET n = n + 1 WHERE id = 1; SELECT sleep(1.5)\"",
    );
    let said = place.run();
    assert_eq!(said.code, Some(0), "errors are a result: {said:?}");
    assert!(said.text.contains("errors HY000/1205: "), "{said:?}");
    assert!(said.text.contains("Lock wait timeout exceeded"), "{said:?}");
    assert!(place.tables().is_empty());
}

#[test]
fn a_server_that_dies_ends_the_campaign() {
    let server = MariaDb::start().expect("a server of its own");
    let name = server.create_database().expect("a database");
    let place = Place::new("CREATE TABLE t (id BIGINT PRIMARY KEY); CREATE TABLE u (id BIGINT)", INSERT);
    let text = std::fs::read_to_string(place.path("x.toml")).expect("read");
    let text = text.replace(&place.server.url(&place.database), &server.url(&name)).replace("stop.iterations = 10", "");
    std::fs::write(place.path("x.toml"), format!("{text}stop.duration = \"1h\"\nload.timeout = \"500ms\"\n"))
        .expect("written");
    let mut child = Child::spawn("headwater lab", &mut place.command()).expect("started");
    let has_rows = || server.sql(&name, "SELECT id FROM t").is_ok_and(|rows| rows.len() > 5);
    assert!(wait_until(Duration::from_mins(1), has_rows), "no rows came: {}", child.stderr());
    server.kill().expect("killed");
    let status = child.wait(Duration::from_mins(1)).expect("it ends");
    assert_eq!(status.code(), Some(3), "{}", child.stderr());
    let said = child.stderr();
    assert!(said.contains("the target was lost") && said.contains("t, u could not be dropped"), "{said}");
    assert!(said.contains("start the server, or mend host and port"), "{said}");
}

#[test]
fn syncs_are_refused() {
    let place = Place::new(SLOW, INSERT);
    let text = format!(
        "name = \"s\"\nscenario.name = \"sync\"\ntarget.url = \"{}\"\nstop.iterations = 5\n",
        place.server.url("x")
    );
    std::fs::write(place.path("x.toml"), text).expect("written");
    let said = place.run();
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.text.contains("MariaDB is no consolidated database"), "{said:?}");
}

#[test]
fn a_preparation_may_make_more_rows_than_recursions_have_by_themselves() {
    let rows =
        "WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 3000) SELECT id FROM ids";
    let place =
        Place::new(&format!("CREATE TABLE t (id BIGINT); INSERT INTO t {rows}; CREATE TABLE u (id BIGINT)"), INSERT);
    let text = std::fs::read_to_string(place.path("s.toml")).expect("read");
    let verify =
        "[[verify]]\nwhat = \"all are there\"\nsql = \"SELECT count(*) AS found FROM t HAVING count(*) <> 3010\"\n";
    std::fs::write(place.path("s.toml"), text + verify).expect("written");
    let said = place.run();
    assert_eq!(said.code, Some(0), "{said:?}");
}
