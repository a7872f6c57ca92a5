//! `headwater lab run --agents` and `headwater lab agent`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use headwater_testkit::proxy::Direction;
use headwater_testkit::{Child, FaultProxy, Plan, wait_until};
use rusqlite::Connection;

use super::{Database, Place, consolidated};

/// Long for what takes moments: the machine may be busy.
const SOON: Duration = Duration::from_secs(90);
const KEY: &str = "correct horse";

/// Who conducts, once it listens, and where.
fn conductor(place: &Place, options: &[&str]) -> (Child, String) {
    conductor_with(place, options, |command| command)
}

fn conductor_with(place: &Place, options: &[&str], with: impl FnOnce(&mut Command) -> &mut Command) -> (Child, String) {
    let always = ["run", "x.toml", "--listen", "127.0.0.1:0", "--key", KEY, "--results", "x.lab"];
    let mut command = place.command(&[&always[..], options].concat());
    let mut conductor = Child::spawn("conductor", with(&mut command)).expect("the program");
    let line = conductor.wait_for_line("headwater lab agent --join ", SOON).expect("it waits for agents");
    let at = line.split("--join ").nth(1).and_then(|rest| rest.split(' ').next()).expect("where").to_owned();
    (conductor, at)
}

fn agent(place: &Place, at: &str, name: &str, options: &[&str]) -> Child {
    let always = ["agent", "--join", at, "--key", KEY, "--name", name];
    Child::spawn(name, &mut place.command(&[&always[..], options].concat())).expect("the program")
}

fn code(child: &mut Child) -> Option<i32> {
    child.wait(SOON).unwrap_or_else(|error| panic!("{error}: {}", child.stderr())).code()
}

fn number(results: &Connection, sql: &str) -> i64 {
    results.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

const SYNCS: &str = "name = \"syncs\"
scenario = { name = \"sync\", kind = [\"upload-updates\", \"download-inserts\"], rows = 4 }
load.clients = 7
stop.iterations = 21
";

#[test]
fn syncs_of_two_agents_go_in_the_same_sets() {
    let place = Place::new(SYNCS);
    for target in consolidated(&place) {
        let url = target.address();
        let (mut conductor, at) = conductor(&place, &["--agents", "2", "--target", &url]);
        let mut agents = ["anna", "bert"].map(|name| agent(&place, &at, name, &[]));
        assert_eq!(code(&mut conductor), Some(0), "{}", conductor.stderr());
        for agent in &mut agents {
            assert_eq!(code(agent), Some(0), "{}", agent.stderr());
            assert!(agent.stderr().contains("2 runs, and no more to come"), "{}", agent.stderr());
        }
        let clients = |agent: &Child| [3, 4].map(|count| agent.stderr().matches(&format!("{count} clients")).count());
        let (anna, bert) = (clients(&agents[0]), clients(&agents[1]));
        assert!([anna, bert] == [[2, 0], [0, 2]] || [bert, anna] == [[2, 0], [0, 2]], "{anna:?} {bert:?}");
        let results = Connection::open(place.path("x.lab")).expect("results");
        let runs = "SELECT count(*) FROM run WHERE state = 'done' AND operations = 21 AND sets = 3 AND errors = 0";
        assert_eq!(number(&results, runs), 2, "{}", conductor.stderr());
        for (clock, each) in [("response", 21), ("service", 21), ("start", 21), ("clock", 6)] {
            let counted = format!("SELECT sum(count) FROM bucket WHERE clock = '{clock}'");
            assert_eq!(number(&results, &counted), 2 * each, "{clock}");
        }
        let named = "SELECT count(*) FROM environment WHERE key LIKE 'agent _ name' AND value IN ('anna', 'bert')";
        assert_eq!(number(&results, named), 2);
        let joined = "SELECT count(*) FROM sync WHERE server_began_ns < ended_ns AND began_ns < server_ended_ns";
        assert_eq!(number(&results, joined), 42, "each sync of all agents has its four stamps");
        assert_eq!(number(&results, "SELECT count(DISTINCT client) FROM sync"), 7);
        // The first start of a set is at 0, and none is before it.
        assert_eq!(number(&results, "SELECT min(up_to_ns) FROM bucket WHERE clock = 'start'"), 0);
        assert_eq!(target.tables(), 0, "all is cleaned up");
        std::fs::remove_file(place.path("x.lab")).expect("results");
    }
}

/// What verify asks for is counted at the agents.
#[test]
fn transactions_of_agents_are_verified() {
    let place = Place::new("name = \"t\"\nscenario.name = \"tpcb\"\nload.clients = 4\nstop.iterations = 103\n");
    for target in super::targets(&place).iter().filter(|target| !matches!(target, Database::Sqlite(_))) {
        let url = target.address();
        let (mut conductor, at) = conductor(&place, &["--agents", "2", "--target", &url]);
        let mut agents = ["anna", "bert"].map(|name| agent(&place, &at, name, &["--target", &url]));
        assert_eq!(code(&mut conductor), Some(0), "{}", conductor.stderr());
        assert!(agents.iter_mut().all(|agent| code(agent) == Some(0)));
        let results = Connection::open(place.path("x.lab")).expect("results");
        assert_eq!(number(&results, "SELECT sum(operations) FROM run WHERE state = 'done'"), 103);
        assert_eq!(target.tables(), 0);
        std::fs::remove_file(place.path("x.lab")).expect("results");
    }
}

#[test]
fn requests_of_agents_come_at_the_rate_of_all() {
    let place = Place::new(
        "name = \"r\"\nscenario = { name = \"http\", hit_ratio = 0.5 }\ntarget.url = \"origin:\"\n\
         load = { clients = 6, arrival = \"constant\", rate = 60 }\nstop = { warmup = \"1s\", duration = \"2s\" }\n",
    );
    let (mut conductor, at) = conductor(&place, &["--agents", "3"]);
    let mut agents = ["anna", "bert", "carl"].map(|name| agent(&place, &at, name, &[]));
    assert_eq!(code(&mut conductor), Some(0), "{}", conductor.stderr());
    assert!(agents.iter_mut().all(|agent| code(agent) == Some(0)));
    let results = Connection::open(place.path("x.lab")).expect("results");
    // All arrivals are done or counted as dropped: a busy machine changes nothing of that.
    let came = number(&results, "SELECT operations + errors + dropped FROM run WHERE state = 'done'");
    assert!((117..=121).contains(&came), "{came} of 120");
}

/// Messages of one agent are under way for nearly half a second, each way; its clients begin with all others nevertheless.
#[test]
fn a_gate_holds_agents_together_that_are_far_apart() {
    let place = Place::new(&SYNCS.replace("[\"upload-updates\", \"download-inserts\"]", "\"upload-inserts\""));
    let (mut conductor, at) = conductor(&place, &["--agents", "2", "--target", "sqlite:scratch.db"]);
    let proxy = FaultProxy::start(&at).expect("a proxy");
    let delay = Duration::from_millis(400);
    proxy.script(move |_| Plan::clean().delay(Direction::Up, delay).delay(Direction::Down, delay));
    let mut far = agent(&place, &proxy.address().to_string(), "far", &[]);
    let mut near = agent(&place, &at, "near", &[]);
    assert_eq!(code(&mut conductor), Some(0), "{}", conductor.stderr());
    assert_eq!((code(&mut far), code(&mut near)), (Some(0), Some(0)));
    let results = Connection::open(place.path("x.lab")).expect("results");
    let count = |bound: &str| {
        number(&results, &format!("SELECT coalesce(sum(count), 0) FROM bucket WHERE clock = 'start' {bound}"))
    };
    assert_eq!(count(""), 21);
    // Half of them, were they told to begin at once; none, but where the machine stands still.
    assert!(count("AND up_to_ns > 200000000") < 7, "{} began late", count("AND up_to_ns > 200000000"));
}

#[test]
fn an_agent_that_is_lost_ends_the_run_and_nothing_stays_behind() {
    let place = Place::new(&SYNCS.replace("iterations = 21", "duration = \"10m\""));
    let [target, _] = consolidated(&place);
    let url = target.address();
    let (mut conductor, at) = conductor(&place, &["--agents", "2", "--target", &url]);
    let mut agents = ["anna", "bert"].map(|name| agent(&place, &at, name, &[]));
    for agent in &mut agents {
        agent.wait_for_line(" clients", SOON).expect("its part begins");
    }
    std::thread::sleep(Duration::from_secs(2));
    agents[0].kill().expect("killed");
    assert_eq!(code(&mut conductor), Some(3), "{}", conductor.stderr());
    let said = conductor.stderr();
    assert!(said.contains("(anna) is gone"), "{said}");
    assert_eq!(target.tables(), 0, "{said}");
    assert_eq!(code(&mut agents[1]), Some(0), "the other is told that no run follows: {}", agents[1].stderr());
}

#[test]
fn an_agent_whose_conductor_is_killed_ends() {
    let place = Place::new(&SYNCS.replace("iterations = 21", "duration = \"10m\""));
    let folder = place.folder.path().to_owned();
    let options = ["--agents", "1", "--target", "sqlite:scratch.db"];
    let (mut conductor, at) = conductor_with(&place, &options, |command| command.env("TMPDIR", &folder));
    let mut agent = agent(&place, &at, "anna", &[]);
    agent.wait_for_line(" clients", SOON).expect("its part begins");
    assert_eq!(servers(&folder), 1, "{}", conductor.stderr());
    conductor.kill().expect("killed");
    assert_eq!(code(&mut agent), Some(3), "{}", agent.stderr());
    assert!(agent.stderr().contains("is gone"), "{}", agent.stderr());
    assert!(wait_until(SOON, || servers(&folder) == 0), "its server ends as well");
}

/// How many servers run by a configuration in this folder.
fn servers(folder: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").expect("Linux").flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let words: Vec<String> = lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect();
    let folder = folder.to_string_lossy();
    words.iter().filter(|words| words.contains("\0serve\0") && words.contains(&*folder)).count()
}

#[test]
fn strangers_are_not_let_in() {
    let place = Place::new(SYNCS);
    let (mut conductor, at) = conductor(&place, &["--agents", "1", "--target", "sqlite:scratch.db"]);
    let said = place.run(&["agent", "--join", &at, "--key", "another key"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("not let in: the key is another one"), "{said:?}");
    // Who speaks otherwise, announces too much, or says nothing at all.
    let mut silent = Vec::new();
    for text in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], b""] {
        let mut stream = std::net::TcpStream::connect(&at).expect("it listens");
        std::io::Write::write_all(&mut stream, text).expect("sent");
        silent.push(stream);
    }
    let mut agent = agent(&place, &at, "anna", &[]);
    assert_eq!(code(&mut conductor), Some(0), "{}", conductor.stderr());
    assert_eq!(code(&mut agent), Some(0), "{}", agent.stderr());
}

#[test]
fn a_run_that_waits_for_agents_can_be_stopped() {
    let place = Place::new(SYNCS);
    let (mut conductor, _) = conductor(&place, &["--agents", "1", "--target", "sqlite:scratch.db"]);
    conductor.terminate().expect("told");
    assert_eq!(code(&mut conductor), Some(1), "{}", conductor.stderr());
    assert!(conductor.stderr().contains("interrupted before all agents had joined"), "{}", conductor.stderr());
    assert!(!place.path("x.lab").exists(), "nothing was measured");
}

#[test]
fn what_is_wrong_with_agents_is_told_before_any_is_waited_for() {
    let place = Place::new(SYNCS);
    let crew = |count| ["run", "x.toml", "--target", "sqlite:s.db", "--results", "x.lab", "--agents", count];
    for (options, code, expected) in [
        (&crew("8")[..], 2, "load.clients = 7 is less than one for each of 8 agents"),
        (&["run", "x.toml", "--target", "sqlite:s.db", "--listen", "127.0.0.1:0"], 2, "--agents"),
        (&["agent", "--join", "127.0.0.1:1"], 2, "--key-file FILE, or HEADWATER_LAB_KEY"),
        (&["agent", "--join", "127.0.0.1:1", "--key", "short"], 2, "the key is too short"),
        (&["agent", "--join", "127.0.0.1:1", "--key", KEY, "--patience", "0"], 3, "nobody conducts at 127.0.0.1:1"),
    ] {
        let said = place.run(options);
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.err.contains(expected), "{expected}: {said:?}");
        assert!(!place.path("x.lab").exists(), "a file without a run is not left");
    }
    std::fs::write(
        place.path("x.toml"),
        "name = \"t\"\nscenario.name = \"tpcb\"\nload.clients = 4\nstop.iterations = 9\n",
    )
    .expect("written");
    let said = place.run(&crew("2"));
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("agents can't reach a file of SQLite"), "{said:?}");
}
