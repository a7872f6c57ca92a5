//! `headwater lab`, through the built program.

#[path = "lab/agents.rs"]
mod agents;
#[path = "lab/common.rs"]
mod common;
#[path = "lab/elsewhere.rs"]
mod elsewhere;
#[path = "lab/ending.rs"]
mod ending;
#[path = "lab/evaluator.rs"]
mod evaluator;
#[path = "lab/files.rs"]
mod files;
#[path = "lab/https.rs"]
mod https;
#[path = "lab/live.rs"]
mod live;
#[path = "lab/machine.rs"]
mod machine;
#[path = "lab/pilot.rs"]
mod pilot;
#[path = "lab/replica.rs"]
mod replica;
#[path = "lab/stamps.rs"]
mod stamps;
#[path = "lab/tables.rs"]
mod tables;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use headwater_testkit::mariadb::{self, MariaDb};
use headwater_testkit::proxy::{Direction, FaultProxy, Plan as Faults};
use headwater_testkit::{Postgres, free_port, wait_until};
use serde_json::Value;

/// A folder with an experiment, and the program run in it.
struct Place {
    folder: tempfile::TempDir,
}

/// What the program said.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    fn new(experiment: &str) -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a folder") };
        std::fs::write(place.path("x.toml"), experiment).expect("written");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the scenario of [`OWN`] with more at its end.
    fn scenario(&self, rest: &str) {
        self.scenario_text(&format!("{OWN}{rest}"));
    }

    fn scenario_text(&self, text: &str) {
        std::fs::write(self.path("s.toml"), text).expect("written");
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HEADWATER_")) {
            command.env_remove(name);
        }
        command.current_dir(self.folder.path()).arg("lab").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let done = self.command(arguments).output().expect("the program runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Said { code: done.status.code().expect("not killed"), out: text(done.stdout), err: text(done.stderr) }
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let said = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }
}

const SWEEP: &str = "name = \"sweep\"
repetitions = 3
scenario.name = \"tpcb\"
load.clients = [1, 2]
scenario.branches = [1, 10]
stop = { warmup = \"1s\", duration = \"10s\" }
";

#[test]
fn check_tells_the_cells_and_how_long_they_take() {
    let place = Place::new(SWEEP);
    let said = place.run(&["check", "x.toml"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(said.out.lines().count(), 2 + 4 + 1, "a head, four cells, a summary: {}", said.out);
    assert!(said.out.ends_with("4 cells, 3 times each: 12 runs; 2 min 12 s, preparation aside\n"), "{}", said.out);
    let cells = place.json(&["check", "x.toml"]);
    assert_eq!((&cells["runs"], &cells["expected_seconds"]), (&12.into(), &132.0.into()));
    assert_eq!(cells["cells"][3]["varied"]["scenario.branches"], "10");
}

#[test]
fn what_is_wrong_is_told_with_its_line_before_anything_is_run() {
    let place = Place::new(&SWEEP.replace("clients", "client").replace("10s", "10 parsecs"));
    let said = place.run(&["check", "x.toml"]);
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    assert!(said.err.contains("x.toml:4:6: unknown key \"client\" in [load]"), "{said:?}");
    assert!(said.err.contains("did you mean \"clients\"?"), "{said:?}");
    assert!(said.err.contains("x.toml:6:36: duration is the string \"10 parsecs\""), "both are told: {said:?}");
    let said = place.run(&["check", "none.toml"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("none.toml could not be read"), "{said:?}");
}

/// The databases that tests run on.
fn targets(place: &Place) -> [Database; 3] {
    let [postgres, sqlite] = consolidated(place);
    let server = MariaDb::shared().expect("a server");
    let name = server.create_database().expect("a database");
    [postgres, Database::MariaDb(server, name), sqlite]
}

/// Those that syncs run on.
fn consolidated(place: &Place) -> [Database; 2] {
    let url = Postgres::shared().and_then(Postgres::create_database).expect("a database");
    [Database::Postgres(url), Database::Sqlite(place.path("scratch.db"))]
}

enum Database {
    Postgres(String),
    MariaDb(&'static MariaDb, String),
    Sqlite(PathBuf),
}

impl Database {
    fn address(&self) -> String {
        match self {
            Database::Postgres(url) => url.clone(),
            Database::MariaDb(server, name) => server.url(name),
            Database::Sqlite(path) => format!("sqlite:{}", path.display()),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Database::Postgres(_) => "postgres",
            Database::MariaDb(..) => "mariadb",
            Database::Sqlite(_) => "sqlite",
        }
    }

    /// Runs SQL, and gives the first value of the last result, if there is one.
    fn sql(&self, sql: &str) -> Option<String> {
        match self {
            Database::Postgres(url) => headwater_testkit::sql(url, sql).expect(sql).first()?.first()?.clone(),
            Database::MariaDb(server, name) => {
                server.sql(name, sql).expect(sql).last()?.split('\t').next().map(str::to_owned)
            }
            Database::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).expect("a file");
                connection.busy_timeout(Duration::from_secs(30)).expect("set");
                let (all, last) = sql.rsplit_once(';').unwrap_or(("", sql));
                connection.execute_batch(all).expect(sql);
                let read = |row: &rusqlite::Row<'_>| row.get::<_, rusqlite::types::Value>(0);
                match connection.query_row(last, [], read).ok()? {
                    rusqlite::types::Value::Integer(number) => Some(number.to_string()),
                    rusqlite::types::Value::Text(text) => Some(text),
                    _ => None,
                }
            }
        }
    }

    /// How many tables there are.
    fn tables(&self) -> u32 {
        let count = match self {
            Database::Postgres(_) => self.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"),
            Database::MariaDb(..) => {
                self.sql("SELECT count(*) FROM information_schema.tables WHERE table_schema = database()")
            }
            // One that does not exist has none; to look must not make it.
            Database::Sqlite(path) if !path.exists() => return 0,
            Database::Sqlite(_) => self.sql("SELECT count(*) FROM sqlite_master"),
        };
        count.and_then(|count| count.parse().ok()).expect("a count")
    }
}

const BUILT_IN: &str = "name = \"built-in\"
repetitions = 2
zip = [[\"scenario.name\", \"load.clients\"]]
scenario.name = [\"read_simple\", \"write_simple\", \"tpcb\"]
load.clients = [1, 3, 2]
stop = { warmup = \"20ms\", iterations = 60 }
";

#[test]
fn built_in_scenarios_run_on_all_databases_and_leave_nothing() {
    let place = Place::new(BUILT_IN);
    for target in targets(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file, "--seed", "5"]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.err.contains("3 cells, 2 times each: 6 runs") && said.err.contains("seed 5"), "{said:?}");
        assert!(said.out.contains("write_simple"), "{said:?}");
        assert_eq!(target.tables(), 0);
        if let Database::Sqlite(path) = &target {
            assert!(!path.exists(), "a file that the lab made is removed");
        }
        let shown = place.json(&["show", &file]);
        assert_eq!(shown["state"], "done");
        for cell in shown["cells"].as_array().expect("cells") {
            assert_eq!((&cell["runs_done"], &cell["operations"], &cell["errors"]), (&2.into(), &120.into(), &0.into()));
            assert!(cell["p99_ms"]["response"].as_f64() >= cell["p50_ms"]["response"].as_f64(), "{cell}");
            assert!(cell["rate"].as_f64().is_some_and(|rate| rate > 0.0), "{cell}");
        }
        let runs = place.run(&["export", &file, "--rows", "runs"]);
        assert_eq!((runs.code, runs.out.lines().count()), (0, 1 + 6), "{runs:?}");
        assert!(runs.out.starts_with("cell,scenario,scenario.name,load.clients,"), "{}", runs.out);
        let all = place.json(&["export", &file, "--rows", "seconds", "--format", "json"]);
        let operations = all["seconds"].as_array().expect("seconds").iter().map(|second| second["operations"].as_i64());
        assert_eq!(operations.sum::<Option<i64>>(), Some(360));
        assert!(all["environment"]["target 1 version"].is_string(), "{}", all["environment"]);
        let again = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(again.code, 2, "{again:?}");
        assert!(again.err.contains("never overwritten"), "{again:?}");
    }
}

/// The built-in scenarios, small.
const SMALL: [(&str, &str); 15] = [
    ("read_simple", "rows = 100, selectrows = [1, 7, 100], bytes = 10"),
    ("read_simple_large", "rows = 9"),
    ("read_scaling_aggregates", "rows = 300, selectrows = 50"),
    ("read_scaling_inverted_keys", "rows = 307, step = 10, selectrows = 50"),
    ("write_simple", "width = 0, bytes = 10"),
    ("write_complex", "rows = 100, selectrows = 20"),
    ("read_write", "rows = 100, selectrows = 20, operations = 3"),
    ("deadlock", "rows = 1000, operations = 3, delay_ms = 1"),
    ("prepared_write", "writes = 25, batch = [1, 10]"),
    ("statement_batching", "inserts = 25, batch = 10"),
    ("batch_load", "rows = 25, batch = 10, bytes = 5, by = [\"one\", \"joined\", \"rows\", \"bulk\"]"),
    ("tpcb", "accounts = 100, query_percent = 50"),
    ("mixed", "size = 20, inserts = 50, updates = 50, deletes = 30"),
    ("mixed", "size = 20, updates = 10, heavy = 0, medium = 100"),
    ("mixed", "size = 20, updates = 10, heavy = 0, light = 100"),
];

/// Not one test is of what a disk does. MariaDB's gaps between keys, locked unless told otherwise, would have `mixed` end in deadlocks.
const FAST: &str = "setup_postgresql = \"SET synchronous_commit = off\", setup_sqlite = \"PRAGMA synchronous = OFF\", \
                    setup_mariadb = \"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED\"";

#[test]
fn each_built_in_scenario_does_what_its_verify_holds() {
    let place = Place::new("");
    let each_on = |target: &Database| {
        let (address, experiment) = (target.address(), format!("{}.toml", target.name()));
        for (number, (scenario, parameters)) in SMALL.iter().enumerate() {
            let text = format!(
                "name = \"small\"\nseed = 1\nscenario = {{ name = \"{scenario}\", {parameters} }}\n\
                 target = {{ {FAST} }}\nload.clients = 3\nstop.iterations = 30\n"
            );
            std::fs::write(place.path(&experiment), text).expect("written");
            let file = format!("{}-{number}.lab", target.name());
            let said = place.run(&["run", &experiment, "--target", &address, "--results", &file]);
            assert_eq!(said.code, 0, "{scenario} {parameters}: {said:?}");
            for cell in place.json(&["show", &file])["cells"].as_array().expect("cells") {
                let done = (&cell["runs_done"], &cell["operations"], &cell["errors"]);
                assert_eq!(done, (&1.into(), &30.into(), &0.into()), "{scenario} on {}: {cell}", target.name());
            }
            assert_eq!(target.tables(), 0, "{scenario}");
        }
    };
    std::thread::scope(|scope| {
        for target in targets(&place) {
            let each_on = &each_on;
            scope.spawn(move || each_on(&target));
        }
    });
}

/// A fault of a built-in scenario: what of which file is replaced, and what verify finds then.
const FAULTS: [(&str, &str, &str, &str, &str); 16] = [
    ("read_simple", "scenario.toml", ":selectrows - 1\"", ":selectrows\"", "each read gave all its rows"),
    ("read_simple", "prepare.sql", "WHERE id < :rows", "WHERE id < :rows - 1", "no row came or went"),
    (
        "read_simple_large",
        "scenario.toml",
        "lab_large_b b\"",
        "lab_large_b b WHERE b.id > 1\"",
        "the square of the rows",
    ),
    ("read_scaling_aggregates", "prepare.sql", "id, id, :payload", "id, id / 2, :payload", "each count was right"),
    ("read_scaling_inverted_keys", "prepare.sql", "/ :step) +", "/ :step + 1) +", "each read gave all"),
    ("write_simple", "scenario.toml", "text = \"width\"", "text = 5", "each insert that was acknowledged"),
    ("write_complex", "update.sql", "changes + 1", "changes + 2", "was made once"),
    ("write_complex", "update.sql", "avg(", "1 + avg(", "to an average of neighbours"),
    (
        "read_write",
        "both.sql",
        "VALUES (:id, 0, :inserted)",
        "SELECT :id, 0, :inserted WHERE :id % 2 = 0",
        "as a whole",
    ),
    ("read_write", "both.sql", "AND :low +", "AND :low - 1 +", "each sum was over all its rows"),
    ("deadlock", "scenario.toml", "id = :id\"", "id = :id AND id > 50\"", "as a whole"),
    ("prepared_write", "scenario.toml", "repeat = \"writes\"", "repeat = \"writes - 1\"", "as a whole"),
    ("statement_batching", "scenario.toml", "repeat = \"inserts\"", "repeat = \"inserts + 1\"", "as a whole"),
    ("batch_load", "scenario.toml", "repeat = \"rows\"", "repeat = \"rows - 1\"", "as a whole"),
    ("tpcb", "transaction.sql", "bbalance + :delta", "bbalance - :delta", "have the same sum"),
    ("mixed", "update.sql", "changes + 1", "changes", "what was acknowledged was made"),
];

#[test]
fn verify_finds_faults_of_built_in_scenarios() {
    let place = Place::new("");
    let [_, mariadb, _] = targets(&place);
    let built_in = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/scenarios"));
    for (number, (scenario, file, what, instead, expected)) in FAULTS.into_iter().enumerate() {
        let own = place.path(&format!("own-{number}"));
        std::fs::create_dir(&own).expect("a folder");
        for entry in std::fs::read_dir(built_in.join(scenario)).expect("the scenario's files") {
            let entry = entry.expect("an entry");
            let mut text = std::fs::read_to_string(entry.path()).expect("read");
            // MariaDB makes some tables in its own way.
            if entry.file_name() == file || (file == "prepare.sql" && entry.file_name() == "prepare-mariadb.sql") {
                assert!(text.contains(what), "{scenario}: {text}");
                text = text.replacen(what, instead, 1);
            }
            std::fs::write(own.join(entry.file_name()), text).expect("written");
        }
        let small = SMALL.iter().find(|(name, _)| *name == scenario).expect("one for each").1;
        let text = format!(
            "name = \"fault\"\nseed = 1\nscenario = {{ file = \"own-{number}/scenario.toml\", {small} }}\n\
             target = {{ {FAST} }}\nstop.iterations = 30\n"
        );
        std::fs::write(place.path("x.toml"), text).expect("written");
        for target in [mariadb.address(), "sqlite:t.db".to_owned()] {
            let file = format!("{number}-{}.lab", &target[..5]);
            let said = place.run(&["run", "x.toml", "--target", &target, "--results", &file]);
            assert_eq!(said.code, 1, "{scenario}, {instead}: {said:?}");
            assert!(
                said.out.contains("failed: verify: not so: ") && said.out.contains(expected),
                "{scenario}: {said:?}"
            );
        }
    }
}

#[test]
fn a_deadlock_is_rolled_back_and_counted() {
    let text = "name = \"deadlock\"\nseed = 1\nload.clients = 4\nstop.iterations = 40\n\
                target.setup_postgresql = \"SET deadlock_timeout = '5ms'; SET synchronous_commit = off\"\n\
                scenario = { name = \"deadlock\", rows = 2, operations = 6, delay_ms = 1 }\n";
    let place = Place::new(text);
    for (target, class) in targets(&place).into_iter().zip(["40P01", "40001/1213"]) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "errors are a result: {said:?}");
        assert!(said.out.contains(&format!("errors {class}: ")), "{said:?}");
        let cell = &place.json(&["show", &file])["cells"][0];
        assert_eq!(cell["operations"].as_i64().unwrap_or(0) + cell["errors"].as_i64().unwrap_or(0), 40, "{cell}");
    }
}

#[test]
fn an_open_loop_has_as_many_arrivals_as_asked() {
    let text = "name = \"open\"\nscenario.name = \"write_simple\"\nstop.iterations = 200\n\
                load = { arrival = [\"constant\", \"poisson\"], rate = 1000, clients = 2 }\n";
    let place = Place::new(text);
    for target in targets(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.out.contains("longest queue"), "{said:?}");
        for cell in place.json(&["show", &file])["cells"].as_array().expect("cells") {
            assert_eq!((&cell["operations"], &cell["dropped"]), (&200.into(), &0.into()), "{cell}");
        }
    }
}

#[test]
fn what_limits_a_cell_is_shown_and_kept() {
    let text = "name = \"limits\"\nscenario.name = \"read_simple\"\nstop.duration = \"2s\"\nload = { clients = 2, think = \"50ms\" }\n\
                [sample.process.myself]\npid_file = \"own.pid\"\n";
    let place = Place::new(text);
    let missing = place.run(&["run", "x.toml", "--target", "sqlite:x.db"]);
    assert_eq!(missing.code, 2, "{missing:?}");
    assert!(missing.err.contains("sample.process.myself: own.pid"), "{missing:?}");
    std::fs::write(place.path("own.pid"), std::process::id().to_string()).expect("written");
    for target in targets(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.err.contains("limited by: client"), "{said:?}");
        assert!(said.out.contains("cell 1: limited by client: clients think for "), "{said:?}");
        let cell = &place.json(&["show", &file])["cells"][0];
        assert_eq!(cell["bottleneck"], "client");
        let exported = place.json(&["export", &file, "--format", "json"]);
        assert!(
            exported["cells"][0]["operations_per_cpu_second"].as_f64().is_some_and(|rate| rate > 0.0),
            "{exported}"
        );
        let results = rusqlite::Connection::open(place.path(&file)).expect("a file of SQLite");
        let count = |sql: &str| results.query_row(sql, [], |row| row.get::<_, i64>(0)).expect(sql);
        let names = if matches!(target, Database::Sqlite(_)) { 2 } else { 3 };
        assert_eq!(
            count("SELECT count(DISTINCT name) FROM process"),
            names,
            "lab, myself, and a database that is a process"
        );
        assert!(count("SELECT min(at_ns) FROM machine") > 0);
        assert_eq!(count("SELECT count(*) > 0 FROM wait"), names - 2, "SQLite does not tell");
        assert_eq!(count("SELECT count(*) FROM process WHERE span_ns <= 0 OR rss_bytes <= 0 OR threads <= 0"), 0);
    }
}

#[test]
fn arms_of_one_campaign_are_compared_round_by_round() {
    let text = "name = \"arms\"\nrepetitions = 4\norder = \"abba\"\nscenario.name = \"read_simple\"\nscenario.rows = [10, 20]\n\
                stop.iterations = 50\nload.think = [\"1us\", \"20ms\"]\n";
    let place = Place::new(text);
    let said = place.run(&["run", "x.toml", "--target", "sqlite:x.db", "--results", "x.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    let said = place.run(&["compare", "x.lab", "--between", "load.think"]);
    assert_eq!(said.code, 1, "it thinks, so that its rate is worse: {said:?}");
    assert!(said.out.contains("load.think from 1µs to 20ms") && said.out.contains("worse"), "{said:?}");
    let compared = place.json(&["compare", "x.lab", "--between", "load.think"]);
    let cells = compared["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 2, "one for each number of rows");
    for cell in cells {
        let rate = &cell["measures"][0];
        assert_eq!((rate["measure"].as_str(), rate["verdict"].as_str()), (Some("ops/s"), Some("worse")), "{cell}");
        assert!(rate["difference"]["mean"].as_f64().is_some_and(|mean| mean < 0.0), "{cell}");
    }
    let unknown = place.run(&["compare", "x.lab", "--between", "load.clients"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.err.contains("keys in which they do: scenario.rows, load.think"), "{unknown:?}");
    let neither = place.run(&["compare", "x.lab"]);
    assert_eq!(neither.code, 2, "{neither:?}");
}

#[test]
fn tables_that_exist_are_not_touched() {
    let place = Place::new(BUILT_IN);
    for target in targets(&place) {
        target.sql(
            "CREATE TABLE pgbench_accounts (mine TEXT); INSERT INTO pgbench_accounts VALUES ('precious'); SELECT 1",
        );
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", "x.lab"]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains("\"tpcb\" already: pgbench_accounts. They are not touched"), "{said:?}");
        assert_eq!(target.sql("SELECT mine FROM pgbench_accounts").as_deref(), Some("precious"));
        assert_eq!(target.tables(), 1, "nothing was run, nor prepared");
        assert!(!place.path("x.lab").exists(), "no results of nothing");
    }
}

/// An experiment with a scenario of its own, whose `rest` is after its table `t (id, n)`.
fn own(rest: &str) -> Place {
    let place = Place::new("name = \"own\"\nscenario.file = \"s.toml\"\nload.clients = 2\nstop.iterations = 50\n");
    place.scenario(rest);
    place
}

const OWN: &str = "name = \"own\"
tables = [\"t\"]
[prepare]
sql = \"CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)\"
[[transaction]]
sql = \"INSERT INTO t VALUES (:id, 1)\"
values.id = { sequence = 1 }
";

#[test]
fn what_verify_finds_fails_the_run() {
    let place =
        own("[[verify]]\nwhat = \"there are no rows\"\nsql = \"SELECT count(*) AS found FROM t HAVING count(*) > 0\"");
    for target in targets(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.out.contains("failed: verify: not so: there are no rows (found = 50)"), "{said:?}");
        assert_eq!(target.tables(), 0);
        let runs = place.json(&["export", &file, "--rows", "runs", "--format", "json"]);
        assert_eq!(runs["runs"][0]["operations"], 50, "what was measured is kept: {runs}");
        assert_eq!(place.json(&["show", &file])["cells"][0]["runs_done"], 0, "and is in no mean");
    }
}

#[test]
fn a_preparation_that_fails_leaves_nothing() {
    let broken =
        [("; SELECT nonsense FROM t\"", "nonsense"), ("; COMMIT; SELECT 1\"", "the script ends the transaction")];
    for (more, expected) in broken {
        let place = own("");
        place.scenario_text(&OWN.replace("n BIGINT)\"", &format!("n BIGINT){more}")));
        for target in targets(&place) {
            let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", "x.lab"]);
            if matches!(target, Database::MariaDb(..)) && more.contains("COMMIT") {
                assert_eq!((said.code, target.tables()), (0, 0), "each CREATE commits there: {said:?}");
            } else {
                assert_eq!(said.code, 2, "{said:?}");
                assert!(said.err.contains("prepare: ") && said.err.contains(expected), "{said:?}");
            }
            assert_eq!(target.tables(), 0, "{}: {more}", target.name());
            std::fs::remove_file(place.path("x.lab")).expect("the failed run is kept");
        }
    }
}

#[test]
fn what_the_database_refuses_is_counted_by_its_code() {
    let place = own("");
    place.scenario_text(&OWN.replace("sequence = 1", "uniform = [1, 10]"));
    for (target, code) in targets(&place).into_iter().zip(["23505", "23000/1062", "SQLITE_CONSTRAINT"]) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "errors are a result: {said:?}");
        assert!(said.out.contains(&format!("errors {code}: ")), "{said:?}");
        let cell = &place.json(&["show", &file])["cells"][0];
        let (done, errors) = (cell["operations"].as_i64().unwrap_or(0), cell["errors"].as_i64().unwrap_or(0));
        assert!(done <= 10 && done + errors == 50, "{cell}");
    }
}

#[test]
fn an_interrupt_cleans_up_and_keeps_what_was_measured() {
    let place =
        Place::new("name = \"long\"\nscenario.name = \"write_simple\"\nload.clients = 2\nstop.duration = \"1h\"\n");
    for target in targets(&place) {
        let file = format!("{}.lab", target.name());
        let mut command = place.command(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        let mut child = headwater_testkit::Child::spawn("headwater lab", &mut command).expect("started");
        let has_rows = || {
            let is_there = match &target {
                Database::MariaDb(..) => target.sql(
                    "SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = 'lab_write'",
                ),
                Database::Postgres(_) => target.sql("SELECT count(*) FROM pg_tables WHERE tablename = 'lab_write'"),
                Database::Sqlite(path) if !path.exists() => None,
                Database::Sqlite(_) => target.sql("SELECT count(*) FROM sqlite_master WHERE name = 'lab_write'"),
            };
            is_there.as_deref() == Some("1")
                && target.sql("SELECT CASE WHEN count(*) > 5 THEN 1 ELSE 0 END FROM lab_write").as_deref() == Some("1")
        };
        assert!(wait_until(Duration::from_mins(1), has_rows), "no rows came: {}", child.stderr());
        let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
        assert!(killed.success());
        let status = child.wait(Duration::from_mins(1)).expect("it ends");
        assert_eq!(status.code(), Some(1), "{}", child.stderr());
        assert!(child.stderr().contains("interrupted; what was measured is kept"), "{}", child.stderr());
        assert_eq!(target.tables(), 0);
        let runs = place.json(&["export", &file, "--rows", "runs", "--format", "json"]);
        assert_eq!((&runs["state"], &runs["runs"][0]["state"]), (&"interrupted".into(), &"interrupted".into()));
        assert!(runs["runs"][0]["operations"].as_i64() > Some(5), "{runs}");
    }
}

#[test]
fn a_database_that_dies_ends_the_campaign_and_what_was_measured_is_kept() {
    let place = Place::new(
        "name = \"dies\"\nrepetitions = 5\nscenario.name = \"write_simple\"\nstop.duration = \"1h\"\nload.timeout = \"500ms\"\n",
    );
    let cluster = Postgres::start().expect("a cluster");
    let target = Database::Postgres(cluster.create_database().expect("a database"));
    let mut command = place.command(&["run", "x.toml", "--target", &target.address(), "--results", "x.lab"]);
    let mut child = headwater_testkit::Child::spawn("headwater lab", &mut command).expect("started");
    let has_rows = || {
        target.sql("SELECT count(*) FROM pg_tables WHERE tablename = 'lab_write'").as_deref() == Some("1")
            && target.sql("SELECT CASE WHEN count(*) > 5 THEN 1 ELSE 0 END FROM lab_write").as_deref() == Some("1")
    };
    assert!(wait_until(Duration::from_mins(1), has_rows), "no rows came: {}", child.stderr());
    cluster.kill().expect("killed");
    let status = child.wait(Duration::from_mins(1)).expect("it ends");
    assert_eq!(status.code(), Some(3), "{}", child.stderr());
    let said = child.stderr();
    assert!(said.contains("the target was lost") && said.contains("lab_write could not be dropped"), "{said}");
    assert!(said.contains("what was measured is kept"), "{said}");
    let runs = place.json(&["export", "x.lab", "--rows", "runs", "--format", "json"]);
    assert_eq!(runs["state"], "failed");
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "no further run was tried: {runs}");
    assert!(runs["runs"][0]["operations"].as_i64() > Some(5), "{runs}");
}

#[test]
fn a_target_that_cannot_be_used_is_told_before_anything_is_run() {
    let place = Place::new(BUILT_IN);
    let url = Postgres::shared().and_then(Postgres::create_database).expect("a database");
    let closed = format!("postgres://postgres@127.0.0.1:{}/x", free_port().expect("a port"));
    let (server, _) = url.rsplit_once('/').expect("a URL");
    std::fs::write(place.path("no.db"), "this is no database, as anyone can see who looks at its first bytes")
        .expect("written");
    let closed_mariadb = format!("mariadb://me@127.0.0.1:{}/x", free_port().expect("a port"));
    let mariadb = MariaDb::shared().expect("a server");
    let name = mariadb.create_database().expect("a database");
    let stranger = mariadb.url(&name).replace(mariadb::USER.1, "hunter42");
    mariadb.sql("", "CREATE USER 'guest'@'%' IDENTIFIED BY 'hunter42'").expect("made");
    let guest = stranger.replace(mariadb::USER.0, "guest");
    for (target, code, expected) in [
        (closed_mariadb.as_str(), 3, "refused (os error 111); start the server, or mend host and port of the address"),
        (&mariadb.url("not_there"), 2, "'not_there'; CREATE DATABASE not_there first, or take another"),
        (&stranger, 2, "Access denied for user 'tester'"),
        (&stranger, 2, "; mend user and password of the address"),
        (&guest, 2, &format!("; GRANT ALL ON {name}.* TO the user, or take another database")),
        ("mysql://me:hunter42@b", 2, "it names no database"),
        ("mysql://b/c", 2, "it names no user"),
        ("mariadb://me:hunter42@b/c?createDB=true", 2, "Unknown connection URL parameter `createDB'"),
        (closed.as_str(), 3, "refused"),
        (&format!("{server}/not_there"), 2, "not_there"),
        ("sqlite:nowhere/x.db", 2, "nowhere/x.db"),
        ("sqlite:no.db", 2, "not a database"),
        ("sqlite:", 2, "names no file"),
        ("oracle://me:hunter42@b/c", 2, "expected sqlite:FILE, postgres://user@host/database or mariadb://"),
    ] {
        let said = place.run(&["run", "x.toml", "--target", target, "--results", "x.lab"]);
        assert_eq!(said.code, code, "{target}: {said:?}");
        assert!(said.err.contains(expected) && !said.err.contains("hunter42"), "{target}: {said:?}");
        assert!(!place.path("x.lab").exists(), "{target}: no results of nothing");
    }
    let said = place.run(&["run", "x.toml"]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("no target.url"), "{said:?}");
    let said = place.run(&["run", "x.toml", "--target", &url, "--results", "nowhere/x.lab"]);
    assert_eq!(said.code, 2, "{said:?}");
}

#[test]
fn passwords_are_in_no_output_and_in_no_results() {
    let place = Place::new("");
    let Database::Postgres(url) = &targets(&place)[0] else { panic!("the first is PostgreSQL") };
    let secret = url.replace("postgres@", "postgres:hunter42@");
    let text = format!(
        "name = \"x\"\nscenario.name = \"read_simple\"\ntarget.url = [\"{secret}\", \"{url}\"]\nstop.iterations = 5\n"
    );
    std::fs::write(place.path("x.toml"), text).expect("written");
    let said = place.run(&["run", "x.toml", "--results", "x.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    let shown = place.run(&["show", "x.lab", "--environment"]);
    let results = std::fs::read(place.path("x.lab")).expect("results");
    for text in [said.out, said.err, shown.out, String::from_utf8_lossy(&results).into_owned()] {
        assert!(!text.contains("hunter42"), "{text}");
    }
}

#[test]
fn results_that_are_none_are_refused() {
    let place = Place::new("");
    place.run(&["check", "x.toml"]);
    rusqlite::Connection::open(place.path("other.db"))
        .and_then(|c| c.execute_batch("CREATE TABLE t (a)"))
        .expect("made");
    for (file, expected) in [("none.lab", "no such file"), ("other.db", "no results"), ("x.toml", "no results")] {
        for command in [&["show", file][..], &["export", file], &["compare", file, file], &["report", file]] {
            let said = place.run(command);
            assert_eq!(said.code, 2, "{file}: {said:?}");
            assert!(said.err.contains(expected) || file == "x.toml", "{file}: {said:?}");
        }
    }
}

/// Three runs of 50 inserts for each of two numbers of clients, kept as `a.lab`.
fn campaign() -> Place {
    let place = own("");
    let experiment =
        std::fs::read_to_string(place.path("x.toml")).expect("read").replace("clients = 2", "clients = [1, 2]");
    std::fs::write(place.path("x.toml"), format!("repetitions = 3\n{experiment}")).expect("written");
    let said = place.run(&["run", "x.toml", "--target", "sqlite:t.db", "--results", "a.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    place
}

#[test]
fn a_report_is_one_page_with_the_numbers_of_show() {
    let place = campaign();
    changed(&place, "b.lab", "UPDATE run SET state = 'failed', detail = 'it <broke>' WHERE id = 2");
    std::fs::write(place.path("paper.csv"), "clients,insert_s\n1,50\n2,40\n").expect("written");
    let said = place.run(&["report", "a.lab"]);
    assert_eq!((said.code, said.out.as_str()), (0, "a.html\n"), "{said:?}");
    let page = std::fs::read_to_string(place.path("a.html")).expect("a page");
    for part in ["Summary", "Against load.clients", "Percentiles", "Timelines", "Environment", "Experiment"] {
        assert!(page.contains(&format!("<h2>{part}</h2>")), "{part}");
    }
    let shown = place.run(&["show", "a.lab"]);
    let rows =
        shown.out.lines().filter(|line| line.split_whitespace().next().is_some_and(|cell| cell.parse() == Ok(1u8)));
    let row: Vec<&str> = rows.flat_map(str::split_whitespace).collect();
    assert_eq!(row.len(), 10, "{shown:?}");
    let line = page.lines().find(|line| line.starts_with("<tr><td>1</td>")).expect("the first cell");
    let cells: Vec<&str> = line.split("</td>").filter_map(|cell| Some(cell.rsplit_once('>')?.1)).collect();
    assert_eq!(cells[..row.len()], row[..], "{line}");

    let said = place.run(&["report", "a.lab", "--out", "again.html", "--plots", "pictures"]);
    assert_eq!(said.code, 0, "{said:?}");
    let drawn = std::fs::read_dir(place.path("pictures")).expect("a folder").count();
    assert_eq!(drawn, page.matches("<figure ").count());
    assert!(std::fs::read_to_string(place.path("pictures/a-0-rate.svg")).expect("a plot").starts_with("<svg xmlns="));
    let said = place.run(&["report", "a.lab", "--out", "third.html", "--plots", "a.html"]);
    assert!(said.code == 2 && said.err.contains("the folder a.html can't be made"), "{said:?}");
    let said = place.run(&["report", "b.lab", "a.lab", "--published", "paper.csv", "--out", "-"]);
    assert!(said.code == 0 && said.out.starts_with("<!DOCTYPE html>") && said.err.is_empty(), "{}", said.err);
    assert!(said.out.contains("5 done, 1 failed") && said.out.contains("it &lt;broke&gt;"), "{}", said.out);
    assert!(said.out.contains("insert_s (published, scaled)") && said.out.contains("href=\"#c2\""), "{}", said.out);
}

#[test]
fn a_report_overwrites_nothing_unless_told_to() {
    let place = campaign();
    std::fs::write(place.path("a.html"), "precious").expect("written");
    let said = place.run(&["report", "a.lab"]);
    assert!(said.code == 2 && said.err.contains("a.html exists; --force replaces it"), "{said:?}");
    assert_eq!(std::fs::read_to_string(place.path("a.html")).expect("a page"), "precious");
    assert_eq!(place.json(&["report", "a.lab", "--force"])["report"], "a.html");
    assert!(std::fs::read_to_string(place.path("a.html")).expect("a page").ends_with("</html>\n"));
    let said = place.run(&["report", "a.lab", "--out", "./a.lab", "--force"]);
    assert!(said.code == 2 && said.err.contains("can't be the report"), "{said:?}");
    assert_eq!(place.run(&["show", "a.lab"]).code, 0, "the results are as they were");
    let said = place.run(&["report", "a.lab", "--out", "nowhere/a.html"]);
    assert!(said.code == 2 && said.err.contains("nowhere/a.html can't be made"), "{said:?}");
    for (published, expected) in
        [("none.csv", "none.csv could not be read"), ("x.toml", "x.toml is no table of curves")]
    {
        let said = place.run(&["report", "a.lab", "--out", "-", "--published", published]);
        assert!(said.code == 2 && said.err.contains(expected), "{published}: {said:?}");
    }
    changed(&place, "version.lab", "PRAGMA user_version = 9");
    for command in ["show", "report"] {
        let said = place.run(&[command, "version.lab"]);
        assert!(said.code == 2 && said.err.contains("the file has version 9"), "{said:?}");
    }
}

/// Copies `a.lab` and changes what it says.
fn changed(place: &Place, name: &str, sql: &str) {
    std::fs::copy(place.path("a.lab"), place.path(name)).expect("copied");
    rusqlite::Connection::open(place.path(name)).and_then(|c| c.execute_batch(sql)).expect("changed");
}

#[test]
fn two_campaigns_are_compared_cell_by_cell() {
    let place = campaign();
    let said = place.run(&["compare", "a.lab", "a.lab"]);
    assert_eq!((said.code, said.out.matches("no difference").count()), (0, 6), "{said:?}");

    // Operations take a hundred thousand times as long with two clients: far more than runs on a busy machine scatter.
    changed(
        &place,
        "slow.lab",
        "UPDATE run SET elapsed_ns = elapsed_ns * 100000 WHERE cell = 2; \
         CREATE TABLE b AS SELECT run, clock, up_to_ns * 100000 AS up_to_ns, count FROM bucket; \
         DELETE FROM bucket WHERE run IN (SELECT id FROM run WHERE cell = 2); \
         INSERT INTO bucket SELECT * FROM b WHERE run IN (SELECT id FROM run WHERE cell = 2); DROP TABLE b",
    );
    let said = place.run(&["compare", "a.lab", "slow.lab"]);
    assert_eq!((said.code, said.out.matches("worse").count()), (1, 3), "{said:?}");
    let answer = place.json(&["compare", "slow.lab", "a.lab"]);
    let verdicts = |cell: usize| -> Vec<&str> {
        let measures = answer["cells"][cell]["measures"].as_array().expect("measures");
        measures.iter().filter_map(|measure| measure["verdict"].as_str()).collect()
    };
    assert_eq!((verdicts(0), verdicts(1)), (vec!["no difference"; 3], vec!["better"; 3]), "{answer}");
    assert_eq!(answer["cells"][1]["values"]["load.clients"], "2", "{answer}");
    let said = place.run(&["compare", "a.lab", "slow.lab", "--tolerance", "1000"]);
    assert!(said.code == 1 && place.run(&["compare", "a.lab", "slow.lab", "--tolerance", "-1"]).code == 2, "{said:?}");
}

#[test]
fn unlike_campaigns_are_not_compared_unless_told_to() {
    let place = campaign();
    changed(&place, "machine.lab", "UPDATE environment SET value = '640 kB' WHERE key = 'host memory'");
    let said = place.run(&["compare", "a.lab", "machine.lab"]);
    assert!(said.code == 2 && said.err.contains("now 640 kB") && said.err.contains("--any-environment"), "{said:?}");
    assert_eq!(place.run(&["compare", "a.lab", "machine.lab", "--any-environment"]).code, 0);
    changed(&place, "day.lab", "UPDATE environment SET value = '9.99' WHERE key = 'host load average before'");
    assert_eq!(place.run(&["compare", "a.lab", "day.lab"]).code, 0, "that differs from day to day");

    changed(&place, "clients.lab", "UPDATE cell_value SET value = '8' WHERE cell = 2 AND key = 'load.clients'");
    let said = place.run(&["compare", "a.lab", "clients.lab"]);
    assert!(said.code == 2 && said.err.contains("load.clients is 2, there 8"), "{said:?}");
    let said = place.run(&["compare", "a.lab", "clients.lab", "--any-specification"]);
    assert_eq!((said.code, said.out.matches("no difference").count()), (0, 3), "the cell that both have: {said:?}");
    changed(&place, "none.lab", "UPDATE cell_value SET value = '9' WHERE key = 'load.clients'");
    let said = place.run(&["compare", "a.lab", "none.lab", "--any-specification"]);
    assert!(said.code == 2 && said.err.contains("no cell in common"), "{said:?}");
    changed(&place, "one.lab", "UPDATE run SET state = 'failed' WHERE repetition > 1");
    let said = place.run(&["compare", "a.lab", "one.lab"]);
    assert_eq!((said.code, said.out.matches("unknown").count()), (0, 6), "one run tells nothing: {said:?}");
}

/// A list with an experiment that has fifty operations, and a program that prints one figure of two.
const FIGURES: &str = "[measure.own]
experiment = \"x.toml\"
[measure.said]
command = [\"sh\", \"-c\", \"echo figure b.said 2.5; echo rate b.silent 1; echo $HEADWATER_LAB_TARGET >&2\"]
[measure.dead]
command = [\"false\"]
[[figure]]
name = \"a.operations\"
about = \"how many there were\"
measure = \"own\"
value = \"SELECT sum(operations) FROM run\"
target = \">= 50\"
[[figure]]
name = \"a.nothing\"
measure = \"own\"
value = \"SELECT NULL\"
target = \">= 1\"
[[figure]]
name = \"a.more\"
measure = \"own\"
value = \"SELECT sum(operations) FROM run\"
target = \">= 50.5\"
[[figure]]
name = \"a.groups\"
measure = \"own\"
value = \"VALUES (1, 7), (3, 7), (2, 7), (9, 'y'), (NULL, 'z')\"
target = \">= 2.5\"
[[figure]]
name = \"b.said\"
measure = \"said\"
target = \"<= 2.5\"
[[figure]]
name = \"b.silent\"
measure = \"said\"
target = \"<= 1\"
[[figure]]
name = \"c.dead\"
measure = \"dead\"
target = \"<= 1\"
";

#[test]
fn figures_are_held_against_their_targets() {
    let place = own("");
    let list = |text: &str| std::fs::write(place.path("f.toml"), text).expect("written");
    list(FIGURES);
    let figures =
        |more: &[&str]| place.run(&[&["figures", "--file", "f.toml", "--target", "sqlite:t.db"], more].concat());
    let said = figures(&[]);
    let told: Vec<&str> = said.out.lines().collect();
    let expected = [
        "figure a.operations 50 target >= 50 ok",
        "figure a.nothing - target >= 1 failed",
        "figure a.more 50 target >= 50.5 short",
        "figure a.groups 2 (1 to 3) target >= 2.5 ok",
        "figure b.said 2.5 target <= 2.5 ok",
        "figure b.silent - target <= 1 failed",
        "figure c.dead - target <= 1 failed",
    ];
    assert_eq!((said.code, told), (1, expected.to_vec()), "{said:?}");
    assert!(
        said.err.contains("a.nothing has no value: ") && said.err.contains("the query gives no number"),
        "{said:?}"
    );
    assert!(said.err.contains("dead could not be measured: false ended with exit status: 1"), "{said:?}");
    assert!(said.err.contains("sqlite:t.db"), "programs know the target: {said:?}");
    let kept = figures(&["a.operations", "b.said", "--keep", "kept"]);
    assert_eq!((kept.code, kept.out.lines().count()), (0, 2), "{kept:?}");
    assert_eq!(place.run(&["show", "kept/own.lab"]).code, 0, "the results are kept");
    let json = place.json(&["figures", "--file", "f.toml", "b"]);
    assert_eq!((&json[0]["state"], &json[1]["value"]), (&Value::from("ok"), &Value::Null), "{json}");

    let listed = place.json(&["figures", "--file", "f.toml", "--list", "a"]);
    assert_eq!(listed[0]["by"], "x.toml", "{listed}");
    let unknown = figures(&["d"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.err.contains("no figure and no group is called \"d\"; there are a, b, c"), "{unknown:?}");
    list(&FIGURES.replace("SELECT sum(operations)", "SELECT nothing"));
    let wrong = figures(&["a"]);
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(wrong.err.contains("a.operations has no value: ") && wrong.err.contains("nothing"), "{wrong:?}");
    list("[[figures]]");
    assert_eq!(figures(&[]).code, 2);
}

#[test]
fn bristlecones_own_files_are_run() {
    let place = Place::new("");
    let write = |name: &str, text: &str| std::fs::write(place.path(name), text).expect("written");
    write(
        "reads.properties",
        "scenario=com.continuent.bristlecone.benchmark.scenarios.ReadSimpleScenario\ninclude=one.properties\n\
         threads=1|2\nbound=iterations\niterations=20\ndatarows=100\n",
    );
    write("one.properties", "url=jdbc:sqlite:reads.db\n");
    let mixed = "<EvaluatorConfiguration name=\"mixed\" testDuration=\"1\"><Database url=\"jdbc:sqlite:mixed.db\"/>\
         <TableGroup size=\"20\"><ThreadGroup threadCount=\"2\" updates=\"20\" inserts=\"20\"/></TableGroup></EvaluatorConfiguration>";
    write("mixed.xml", mixed);
    let (server, (user, password)) = (MariaDb::shared().expect("a server"), mariadb::USER);
    let name = server.create_database().expect("a database");
    let of_mysql = format!("jdbc:mysql://127.0.0.1:{}/{name}\" user=\"{user}\" password=\"{password}", server.port());
    write("mysql.xml", &mixed.replace("jdbc:sqlite:mixed.db", &of_mysql));
    for (file, cells) in [("reads.properties", 2), ("mixed.xml", 1), ("mysql.xml", 1)] {
        let results = format!("{file}.lab");
        let said = place.run(&["run", file, "--results", &results]);
        assert_eq!(said.code, 0, "{said:?}");
        let shown = place.json(&["show", &results]);
        assert_eq!(shown["cells"].as_array().expect("cells").len(), cells, "{shown}");
        assert!(shown["cells"][0]["operations"].as_u64() >= Some(20), "{shown}");
    }
    write("one.properties", "url=jdbc:oracle://db\n");
    let wrong = place.run(&["check", "reads.properties"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.err.contains("reads.properties:2:1: url is \"jdbc:oracle://db\""), "{wrong:?}");
}

const KINDS: &str = "[\"download-inserts\", \"download-updates\", \"download-deletes\", \"upload-updates\", \"upload-deletes\", \"upload-inserts\"]";

/// An experiment of syncs: what goes into the scenario, and into the load.
fn syncs(scenario: &str, rest: &str) -> String {
    format!("name = \"syncs\"\nscenario = {{ name = \"sync\", rows = 20, {scenario} }}\n{rest}\nstop.iterations = 6\n")
}

#[test]
fn each_kind_of_sync_runs_on_both_databases_and_leaves_nothing() {
    let place = Place::new(&syncs(&format!("kind = {KINDS}, workers = 2"), "load.clients = 3"));
    for target in consolidated(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.out.contains("rows/s") && said.out.contains("active"), "{said:?}");
        assert_eq!(target.tables(), 0);
        match &target {
            Database::Sqlite(path) => assert!(!path.exists(), "a file that the lab made is removed"),
            Database::MariaDb(..) => panic!("syncs do not run there"),
            Database::Postgres(_) => {
                let left = target.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'headwater'");
                assert_eq!(left.as_deref(), Some("0"));
            }
        }
        for cell in place.json(&["show", &file])["cells"].as_array().expect("cells") {
            let done = (&cell["runs_done"], &cell["operations"], &cell["errors"]);
            assert_eq!(done, (&1.into(), &6.into(), &0.into()), "{cell}");
        }
        let results = rusqlite::Connection::open(place.path(&file)).expect("a file of SQLite");
        let count = |sql: &str| results.query_row(sql, [], |row| row.get::<_, i64>(0)).expect(sql);
        assert_eq!(count("SELECT count(*) FROM run WHERE sets = 2 AND sets_ns > 0 AND sets_ns < elapsed_ns"), 6);
    }
}

/// How often what is planted must show: other work on the machine may limit a run just as well.
const TRIES: u32 = 3;

/// Runs syncs until what limits them is as expected, and gives the evidence.
fn limit_of_syncs(expected: &str, target: &str, scenario: &str, clients: u32) -> String {
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let place = Place::new(&format!(
            "name = \"limits\"\nscenario = {{ name = \"sync\", {scenario} }}\nload.clients = {clients}\nstop.iterations = {clients}\n"
        ));
        let said = place.run(&["run", "x.toml", "--target", target, "--results", "x.lab"]);
        assert_eq!(said.code, 0, "{said:?}");
        let cell = &place.json(&["show", "x.lab"])["cells"][0];
        let evidence = cell["evidence"].as_str().expect("evidence").to_owned();
        if cell["bottleneck"] == expected {
            return evidence;
        }
        seen.push(format!("{}: {evidence}", cell["bottleneck"]));
    }
    panic!("{expected} was planted, and named was:\n{}", seen.join("\n"));
}

#[test]
fn what_limits_syncs_is_named() {
    // A commit takes 20 ms, a word to the database and back 20 ms.
    let cluster = Postgres::builder().slow_disk(Duration::from_millis(20)).start().expect("a cluster");
    let proxy = FaultProxy::start(("127.0.0.1", cluster.port())).expect("a proxy");
    proxy.script(|_| Faults::clean().delay(Direction::Down, Duration::from_millis(20)));
    let near = || cluster.create_database().expect("a database");
    let far = near().replace(&cluster.port().to_string(), &proxy.address().port().to_string());
    let uploads = "kind = \"upload-inserts\"";
    let few = format!("{uploads}, rows = 20, workers = 2");
    let evidence = limit_of_syncs("workers", &far, &few, 40);
    assert!(evidence.contains(" of 2 workers are busy while "), "{evidence}");
    let evidence = limit_of_syncs("workers", &far, &format!("{few}, uploaders = 1"), 20);
    assert!(evidence.contains(" of 1 uploaders are busy while "), "{evidence}");
    let evidence = limit_of_syncs("disk", &near(), &format!("{uploads}, rows = 1, workers = 4, database_cpus = 1"), 60);
    assert!(evidence.contains("of the workers wait for it"), "{evidence}");
    let evidence = limit_of_syncs("link", &near(), &format!("{uploads}, rows = 20, link_bits_per_s = 10_000"), 4);
    assert!(evidence.contains("the clients' links are slow"), "{evidence}");
    limit_of_syncs("client", &near(), "rows = 20, row_us = 100_000", 4);
    let no_disk = "kind = \"download-inserts\", rows = 20_000, server_cpus = 1";
    let evidence = limit_of_syncs("server", "sqlite:x.db", no_disk, 6);
    assert!(
        evidence.starts_with("of 1 processors that it may use, the server, where SQLite works, has "),
        "{evidence}"
    );
}

#[test]
fn processors_that_there_are_not_are_refused() {
    let place = Place::new("");
    for (key, why) in [
        ("server_cpus = 1_000", "scenario.server_cpus = 1000: there are "),
        ("database_cpus = 1_000", "scenario.database_cpus = 1000: there are "),
        ("database_cpus = 1", "scenario.database_cpus = 1: SQLite works in the server; write server_cpus"),
    ] {
        std::fs::write(place.path("x.toml"), syncs(key, "load.clients = 3")).expect("written");
        let file = format!("{key}.lab");
        let said = place.run(&["run", "x.toml", "--target", "sqlite:s.db", "--results", &file]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains(why), "{said:?}");
        assert!(!place.path("s.db").exists());
    }
}

#[test]
fn clients_that_are_slow_get_every_row_too() {
    let speed = "link_bits_per_s = 1_000_000, link_delay_ms = 5, link_loss_permille = 20, row_us = 200";
    let place = Place::new(&syncs(&format!("kind = {KINDS}, {speed}"), "load.clients = 3"));
    for target in consolidated(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "{said:?}");
    }
}

#[test]
fn refusals_of_a_full_backlog_are_counted_and_lose_nothing() {
    let refusing = "workers = 1, backlog = [0, 200], retry_delay_ms = 1";
    let kinds = "kind = [\"download-updates\", \"upload-inserts\"]";
    let place = Place::new(&syncs(&format!("{kinds}, {refusing}"), "load.clients = 12"));
    for target in consolidated(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.out.contains("refusals") && said.out.contains("retries"), "{said:?}");
        let results = rusqlite::Connection::open(place.path(&file)).expect("a file of SQLite");
        let of = |backlog: &str| {
            let sql = "SELECT sum(refusals), sum(retries) FROM run JOIN cell_value USING (cell) \
                       WHERE key = 'scenario.backlog' AND value = ?1";
            let counts = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
            results.query_row(sql, [backlog], counts).expect(sql)
        };
        let (refusals, retries) = of("0");
        assert!(refusals > 0 && retries >= refusals, "{refusals} refusals, {retries} retries");
        assert_eq!(of("200"), (0, 0));
    }
}

#[test]
fn uploads_are_right_with_conflicts_off() {
    let kinds = "kind = [\"upload-updates\", \"upload-deletes\", \"upload-inserts\"]";
    let place = Place::new(&syncs(&format!("{kinds}, conflicts = [\"detected\", \"off\"]"), "load.clients = 3"));
    for target in consolidated(&place) {
        let file = format!("{}.lab", target.name());
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", &file]);
        assert_eq!(said.code, 0, "{said:?}");
    }
}

#[test]
fn what_a_sync_takes_is_a_line_of_its_rows() {
    let place = Place::new(
        "name = \"rows\"\nrepetitions = 2\nscenario = { name = \"sync\", rows = [5, 50], kind = [\"download-updates\", \
         \"upload-updates\"] }\nload.clients = 3\nstop.iterations = 3\n",
    );
    let said = place.run(&["run", "x.toml", "--target", "sqlite:t.db", "--results", "x.lab"]);
    assert_eq!(said.code, 0, "{said:?}");
    for kind in ["download-updates", "upload-updates"] {
        let line =
            said.out.lines().find(|line| line.starts_with(&format!("scenario.kind = {kind}, over scenario.rows: ")));
        let line = line.unwrap_or_else(|| panic!("{said:?}"));
        assert!(line.contains(" ms a sync and ") && line.ends_with(" ms a row (95 %, 4 runs)"), "{line}");
    }
    let shown = place.json(&["show", "x.lab"]);
    let fits = shown["fits"].as_array().expect("fits");
    assert!(fits.len() == 2 && fits.iter().all(|fit| fit["row_ms_half_interval"].is_number()), "{shown}");
    // With two numbers of rows it goes through the middle of the runs at each, weighed as the line weighs them.
    let results = rusqlite::Connection::open(place.path("x.lab")).expect("a file of SQLite");
    let middle = "SELECT sum(1 / ms) / sum(1 / ms / ms) FROM (SELECT cell, sets_ns / 1e6 / operations AS ms FROM run) \
                  JOIN cell_value kind USING (cell) JOIN cell_value rows USING (cell) \
                  WHERE kind.key = 'scenario.kind' AND kind.value = ?1 AND rows.key = 'scenario.rows' AND rows.value = ?2";
    for fit in fits {
        let kind = fit["values"]["scenario.kind"].as_str().expect("a kind");
        let (sync, row) = (fit["sync_ms"].as_f64().expect("a time"), fit["row_ms"].as_f64().expect("a time"));
        for rows in [5, 50] {
            let of = (kind, rows.to_string());
            let expected: f64 = results.query_row(middle, of, |row| row.get(0)).expect(middle);
            let found = sync + row * f64::from(rows);
            assert!((found - expected).abs() < 1e-6 * expected, "{kind} {rows}: {found}, expected {expected}");
        }
    }
    assert_eq!(place.run(&["report", "x.lab"]).code, 0);
    let page = std::fs::read_to_string(place.path("x.html")).expect("a report");
    assert!(page.contains("What a sync takes, as a line of its rows"));
}

/// A database in which updates of one purchase are made in this way, as soon as the table is there.
fn planted(update: &str) -> Database {
    let url = Postgres::shared().and_then(Postgres::create_database).expect("a database");
    let database = Database::Postgres(url);
    database.sql(&format!(
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF OLD.emp_id = 2 AND OLD.purch_id = 7 THEN {update}; END IF; RETURN NEW; END $$; \
         CREATE FUNCTION plant() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'lose') AND to_regclass('lab_purchase') IS NOT NULL THEN \
             CREATE TRIGGER lose BEFORE UPDATE ON lab_purchase FOR EACH ROW EXECUTE FUNCTION lose(); END IF; END $$; \
         CREATE EVENT TRIGGER plant ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION plant()"
    ));
    database
}

#[test]
fn a_row_that_gets_lost_fails_the_run() {
    for (kind, update, expected) in [
        // The database does not make it, so that it does not come down.
        ("download-updates", "RETURN NULL", "client 2 had 19 rows and 0 deletions"),
        // It makes more than that.
        (
            "upload-updates",
            "UPDATE lab_purchase SET cost = 1 WHERE emp_id = 5 AND purch_id = 1",
            "as they must be of those who don't sync (emp_id = 5, purch_id = 1, fault = missing or wrong)",
        ),
        // It says that it is made, and keeps what was there.
        (
            "upload-updates",
            "RETURN OLD",
            "as they must be after a set (emp_id = 2, purch_id = 7, fault = missing or wrong)",
        ),
    ] {
        let place = Place::new(&syncs(&format!("kind = \"{kind}\", others = 2"), "load.clients = 3"));
        let target = planted(update);
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", "x.lab"]);
        assert_eq!(said.code, 1, "{kind}: {said:?}");
        assert!(said.out.contains("failed: verify: ") && said.out.contains(expected), "{kind}: {said:?}");
        assert_eq!(target.tables(), 0, "{kind}");
    }
}

#[test]
fn what_syncs_can_not_be_is_told_at_its_line() {
    for (scenario, rest, expected) in [
        (
            "kind = \"download\"",
            "",
            "x.toml:2:47: scenario \"sync\" can't be of the kind \"download\", only download-inserts",
        ),
        ("workers = [4, 1_001]", "", "x.toml:2:54: scenario \"sync\" can't have workers = 1001, only 0 to 1000"),
        ("workers = 2, uploaders = 3", "", "x.toml:2:65: scenario \"sync\" can't have 3 uploaders among 2 workers"),
        (
            "link_bits_per_s = 299",
            "",
            "x.toml:2:58: scenario \"sync\" can't have a link of 299 bits a second, only 300",
        ),
        ("notes_bytes = 0", "", "can't have notes_bytes = 0, only 1 to 1000000"),
        ("link_loss_permille = 501", "", "can't have link_loss_permille = 501, only 0 to 500"),
        ("link_delay_ms = -1", "", "x.toml:2:56: scenario \"sync\" can't have link_delay_ms = -1, only 0 to 2000"),
        ("conflicts = \"off\"", "", "x.toml:2:52: scenario \"sync\" can't have conflicts off in a download"),
        ("conflicts = \"on\"", "", "x.toml:2:52: scenario \"sync\" can't have conflicts = \"on\", only detected, off"),
        ("backlog = -1", "", "x.toml:2:50: scenario \"sync\" can't have backlog = -1, only 0 to 1000000"),
        (
            "retry_delay_ms = 300_001",
            "",
            "x.toml:2:57: scenario \"sync\" can't have retry_delay_ms = 300001, only 0 to",
        ),
        ("row_us = \"1ms\"", "", "x.toml:2:49: row_us is the string \"1ms\", expected a whole number"),
        ("worker = 4", "", "x.toml:2:40: unknown parameter \"worker\" of scenario \"sync\""),
        (
            "remotes = \"files\"",
            "load.clients = 501",
            "x.toml:3:16: 501 clients with remotes = \"files\", expected at most 500",
        ),
        ("workers = 4", "target.url = \"mariadb://me@db/x\"", "x.toml:3:14: syncs take PostgreSQL or SQLite"),
        ("workers = 4", "target.url = \"oracle://x\"", "x.toml:3:14: the target's address has \"oracle\""),
        ("workers = 4", "load.think = \"1s\"", "x.toml:3:14: load.think with scenario \"sync\""),
        ("workers = 4", "load = { arrival = \"constant\", rate = 3 }", "load.arrival with scenario \"sync\""),
        ("workers = 4", "target.setup = \"SELECT 1\"", "x.toml:3:16: target.setup with scenario \"sync\""),
    ] {
        let said = Place::new(&syncs(scenario, rest)).run(&["check", "x.toml"]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains(expected), "{expected}: {said:?}");
    }
}

#[test]
fn a_database_that_is_in_use_is_no_place_for_syncs() {
    let place = Place::new(&syncs("workers = 1", ""));
    for target in consolidated(&place) {
        target.sql("CREATE TABLE mine (id INTEGER); SELECT 1");
        if let Database::Postgres(_) = &target {
            target.sql("CREATE SCHEMA headwater");
        }
        let said = place.run(&["run", "x.toml", "--target", &target.address(), "--results", "x.lab"]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains("They are not touched"), "{said:?}");
        assert_eq!(target.tables(), 1);
    }
}
