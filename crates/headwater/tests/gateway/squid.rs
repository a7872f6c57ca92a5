//! A real Squid in front, by the configuration that `docs/deploy` explains.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use headwater_lab::frontier::Request;
use headwater_testkit::{Postgres, Squid, wait_until};

use super::client_sql::role;
use super::{FRONTIER, Stage, get};

mod troubles;

/// A server on PostgreSQL with some queries, and Squid before it.
struct Front {
    stage: Stage,
    server: String,
    squid: Squid,
    database: String,
}

const ID: &str = "X-Frontier-Id: client 2.10.2 10288 root(0) root\r\n";
/// `select id, name from t`.
const SEEN: &str =
    "/X/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1=eNorTs1JTS5RyEzRUchLzE1VSCvKz1UoAQBa6wfD";

impl Front {
    fn new() -> Front {
        Front::with(&[])
    }

    /// The same with these arguments of the server.
    fn with(arguments: &[&str]) -> Front {
        Front::on(Postgres::shared().expect("PostgreSQL"), arguments)
    }

    /// The same on this cluster.
    fn on(cluster: &Postgres, arguments: &[&str]) -> Front {
        let database = cluster.create_database().expect("a database");
        let mut stage = Stage::new(&database);
        let sql = "CREATE TABLE t (id int4, name text); INSERT INTO t VALUES (1, 'alpha'), (2, NULL), (3, '')";
        headwater_testkit::sql(&database, sql).expect("made");
        stage.query("kept.sql", "-- public = true\n-- max_age_s = 1000\nSELECT count(*) AS n FROM flight");
        stage.query("last.sql", "-- public = true\n-- stale_if_error_s = 1000\nSELECT max(id) AS id FROM flight");
        stage.query(
            "slow.sql",
            "-- public = true\n-- max_age_s = 1000\nSELECT pg_sleep(1)::text AS slept, pg_backend_pid() AS pid",
        );
        stage.query("own.sql", "-- max_age_s = 1000\nSELECT :s.user AS marked");
        stage.query("asleep.sql", "-- public = true\n-- time_out_s = 600\nSELECT pg_sleep(600)::text AS slept");
        stage.configure(&format!("{FRONTIER}url = {:?}\n", role(&database)));
        let server = stage.serve_with(arguments, &[]);
        let squid = Squid::in_front_of_queries(server.parse().expect("an address")).expect("Squid");
        Front { stage, server, squid, database }
    }

    /// Both started anew, with the queries that are there now.
    fn again(mut self) -> Front {
        self.stage.stop();
        self.server = self.stage.serve();
        let address = self.server.parse().expect("an address");
        Front { squid: Squid::in_front_of_queries(address).expect("Squid"), ..self }
    }

    /// The head of an answer, whatever the bytes of its body are, and how many came.
    fn squid_head(&self, target: &str, headers: &str) -> (String, usize) {
        let mut stream = TcpStream::connect(self.squid.url().trim_start_matches("http://")).expect("a connection");
        write!(stream, "GET {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n").expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        (String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase(), answer.len() - end)
    }

    /// Through Squid.
    fn get(&self, target: &str, headers: &str) -> (String, String) {
        get(self.squid.url().trim_start_matches("http://"), target, headers)
    }

    /// Waits until the server tells the time of a payload, by which Squid has something to ask.
    fn until_told(&self, target: &str) {
        let is_told = || get(&self.server, target, ID).0.contains("last-modified: ");
        assert!(wait_until(Duration::from_mins(1), is_told), "{target}");
    }

    fn sql(&self, sql: &str) {
        headwater_testkit::sql(&self.database, sql).expect(sql);
    }

    /// What Squid says of the requests for a target, once there are so many.
    fn answers(&self, target: &str, count: usize) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answers = self.squid.answers(target);
            if answers.len() >= count {
                return answers;
            }
            assert!(Instant::now() < deadline, "{answers:?}: it logs {count} of them");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn fresh_answers_are_hits_and_others_are_asked_for_again() {
    let front = Front::new();
    let (_, first) = front.get("/q/kept.csv", "");
    front.sql("INSERT INTO flight VALUES (4, 'SFO', 1, 1)");
    let (_, second) = front.get("/q/kept.csv", "");
    assert_eq!((first.as_str(), second.as_str()), ("n\r\n3\r\n", "n\r\n3\r\n"));
    let answers = front.answers("/q/kept.csv", 2);
    assert!(answers[0].contains("MISS/200") && answers[1].contains("HIT/200"), "{answers:?}");

    let (_, before) = front.get("/q/last.csv", "");
    let (head, same) = front.get("/q/last.csv", "");
    front.sql("INSERT INTO flight VALUES (5, 'SFO', 1, 1)");
    let (_, after) = front.get("/q/last.csv", "");
    assert_eq!(
        (before.as_str(), same.as_str(), after.as_str()),
        ("id\r\n4\r\n", "id\r\n4\r\n", "id\r\n5\r\n"),
        "{head}"
    );
    let answers = front.answers("/q/last.csv", 3);
    assert!(
        answers[1].contains("REFRESH_UNMODIFIED/200") && answers[2].contains("REFRESH_MODIFIED/200"),
        "{answers:?}"
    );

    // Another spelling is led to the same entry.
    let (head, _) = front.get("/q/flights.csv?origin=%4AFK", "");
    assert!(head.starts_with("http/1.1 308") && head.contains("location: /q/flights.csv?origin=jfk"), "{head}");
}

/// The lines by which Squid collapses requests of some addresses, as the configuration's comment has them, for those of this machine.
fn collapsing() -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/deploy/squid-gateway.conf");
    let text = std::fs::read_to_string(file).expect("the configuration");
    let lines = text.lines().filter_map(|line| line.strip_prefix("#   ")).map(|line| format!("{line}\n"));
    let lines = lines.collect::<String>().replace("10.0.0.0/8", "127.0.0.1");
    assert!(lines.contains("collapsed_forwarding on") && lines.contains("src 127.0.0.1"), "{lines}");
    lines
}

/// Each coding is an entry of its own, and all are kept.
#[test]
fn what_is_asked_for_in_several_codings_is_kept_in_each() {
    let front = Front::new();
    let rows = "SELECT i, 'padding of a row' AS x FROM generate_series(1, 500) AS s(i)";
    front.stage.query("coded.sql", &format!("-- public = true\n-- max_age_s = 1000\n{rows}"));
    let front = front.again();
    let ask = |coding: &str| {
        let (head, _) = front.squid_head("/q/coded.csv", &format!("Accept-Encoding: {coding}\r\n"));
        head.lines().find_map(|line| line.strip_prefix("content-encoding: ")).unwrap_or("identity").to_owned()
    };
    let codings = ["gzip", "identity", "br", "zstd", "gzip, br"];
    for _ in 0..3 {
        for coding in codings {
            let sent = ask(coding);
            assert!(coding.contains(&sent), "{coding}: {sent}");
        }
    }
    let answers = front.answers("/q/coded.csv", 3 * codings.len());
    let (first, again) = answers.split_at(codings.len());
    assert!(first.iter().all(|answer| answer.contains("MISS/200")), "{answers:?}");
    assert!(again.iter().all(|answer| answer.contains("HIT/200")), "{answers:?}");
}

/// Once here, where it is told to, once in the server: Squid collapses its clients, the server those of several Squids.
#[test]
fn all_who_ask_at_once_are_one_execution() {
    let mut front = Front::new();
    let address = front.server.parse().expect("an address");
    front.squid = Squid::in_front_of_queries_with(address, &collapsing()).expect("Squid");
    let slow = Request::new("select pg_sleep(1)::text as slept, pg_backend_pid() as pid").target();
    for (target, headers) in [("/q/slow.csv", ""), (&format!("/X/Frontier/{slow}"), ID)] {
        let ask = || front.get(target, headers).1;
        let answers: Vec<String> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|asked| asked.join().expect("no panic")).collect()
        });
        assert!(answers[0].starts_with("slept,pid\r\n") || answers[0].contains("records=\"1\""), "{answers:?}");
        let logged = front.answers(target, 8);
        let reached = logged.iter().filter(|answer| answer.starts_with("TCP_MISS")).count();
        assert_eq!(reached, 1, "{logged:?}");
        assert!(
            answers.iter().all(|answer| *answer == answers[0]),
            "one process of the database answered all: {answers:?}"
        );
    }
}

#[test]
fn answers_that_are_too_old_are_given_where_the_server_is_gone() {
    let mut front = Front::new();
    let (_, before) = front.get("/q/last.csv", "");
    // It allows nothing of the kind.
    assert!(front.get("/q/flights.csv?origin=EWR", "").0.starts_with("http/1.1 200"));
    front.stage.stop();
    // What is too old by less than a second is not too old to Squid.
    std::thread::sleep(Duration::from_secs(2));
    let (head, stale) = front.get("/q/last.csv", "");
    assert!(head.starts_with("http/1.1 200") && stale == before, "{head}: {stale}");
    for target in ["/q/flights.csv?origin=JFK", "/q/flights.csv?origin=EWR"] {
        let (head, _) = front.get(target, "");
        assert!(head.starts_with("http/1.1 50"), "{target}: {head}");
    }
}

/// The server is there, and says 503: who may have what is too old has it, by Squid or by the server, and all is served once it is back.
#[test]
fn answers_that_are_too_old_are_given_where_the_database_is_gone() {
    let cluster = Postgres::start().expect("PostgreSQL");
    let front = Front::on(&cluster, &[]);
    let short = format!("{SEEN}&ttl=short");
    // Once its time is told, Squid has something to ask by, and keeps it.
    front.until_told(&short);
    let (_, frontier) = front.get(&short, &format!("{ID}Cache-Control: max-stale=600\r\n"));
    assert!(frontier.contains("records=\"3\""), "{frontier}");
    let (_, last) = front.get("/q/last.csv", "");
    assert!(front.get("/q/flights.csv?origin=EWR", "").0.starts_with("http/1.1 200"));
    cluster.kill().expect("killed");
    std::thread::sleep(Duration::from_secs(2)); // to Squid it is too old then
    for _ in 0..2 {
        let (head, stale) = front.get(&short, ID);
        assert!(head.starts_with("http/1.1 200") && stale == frontier, "{head}: {stale}");
        let (head, stale) = front.get("/q/last.csv", "");
        assert!(head.starts_with("http/1.1 200") && stale == last, "{head}: {stale}");
        for target in ["/q/flights.csv?origin=JFK", "/q/flights.csv?origin=EWR"] {
            let (head, body) = front.get(target, "");
            assert!(head.starts_with("http/1.1 503") && head.contains("retry-after: "), "{target}: {head}: {body}");
        }
    }
    cluster.restart().expect("it starts anew");
    let is_back = || front.get("/q/flights.csv?origin=JFK", "").0.starts_with("http/1.1 200");
    assert!(wait_until(Duration::from_mins(1), is_back), "by itself");
    front.sql("INSERT INTO t VALUES (4, 'four')");
    let is_new = || front.get(&short, ID).1.contains("records=\"4\"");
    assert!(wait_until(Duration::from_mins(1), is_new), "{}", front.get(&short, ID).1);
}

#[test]
fn nothing_of_one_user_reaches_another() {
    let front = Front::new();
    let tokens = ["ann-marked-4711", "bob-marked-0815"].map(|user| {
        let mut add = front.stage.command(&["user", "add", user, "--password-stdin"]);
        let mut child = add.stdin(std::process::Stdio::piped()).spawn().expect("the program starts");
        child.stdin.take().expect("piped").write_all(b"hunter42\n").expect("read");
        assert!(child.wait().expect("it ends").success());
        (user, front.stage.ok(&["token", user]).trim().to_owned())
    });
    for _ in 0..3 {
        for (user, token) in &tokens {
            let (head, body) = front.get("/q/own.csv", &format!("Authorization: Bearer {token}\r\n"));
            assert!(head.contains("cache-control: private"), "{head}");
            assert_eq!(body, format!("marked\r\n{user}\r\n"));
        }
        let (head, body) = front.get("/q/own.csv", "");
        assert!(head.starts_with("http/1.1 401") && !body.contains("marked-"), "{head}: {body}");
    }
    let answers = front.answers("/q/own.csv", 9);
    assert!(answers.iter().all(|answer| !answer.contains("HIT")), "{answers:?}");
}

#[test]
fn frontier_answers_are_kept_and_errors_are_not() {
    let front = Front::new();
    let (head, first) = front.get(SEEN, ID);
    assert!(head.starts_with("http/1.1 200") && first.contains("records=\"3\""), "{head}: {first}");
    front.sql("DELETE FROM t WHERE id = 3");
    let (_, second) = front.get(SEEN, ID);
    assert_eq!(second, first, "for seven days");
    let answers = front.answers("/X/Frontier/type", 2);
    assert!(answers[0].contains("MISS/200") && answers[1].contains("HIT/200"), "{answers:?}");
    // Who wants it anew says so, and what comes is the same for all from then on.
    let (_, third) = front.get(SEEN, &format!("{ID}Cache-Control: max-age=0\r\n"));
    assert!(third.contains("records=\"2\""), "{third}");
    assert_eq!(front.get(SEEN, ID).1, third);

    // Its time is told when it is a second old; from then on Squid has something to ask by.
    let short = format!("{SEEN}&ttl=short");
    let mut asked = 1;
    while !front.get(&short, ID).0.contains("last-modified: ") {
        asked += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let before = front.get(&short, ID).1;
    front.sql("INSERT INTO t VALUES (7, 'seven')");
    let after = front.get(&short, ID).1;
    assert!(before.contains("records=\"2\"") && after.contains("records=\"3\""), "{after}");
    let answers = front.answers("ttl=short", asked + 2);
    let is = |place: usize, what: &str| answers[asked + place].contains(what);
    assert!(is(0, "REFRESH_UNMODIFIED/200") && is(1, "REFRESH_MODIFIED/200"), "{answers:?}");

    front.sql("ALTER TABLE t RENAME TO away");
    let other = format!("{SEEN}&freshkey=1");
    let (_, wrong) = front.get(&other, ID);
    assert!(wrong.contains("error=\"1\""), "{wrong}");
    front.sql("ALTER TABLE away RENAME TO t");
    assert!(front.get(&other, ID).1.contains("error=\"0\""), "the error was not kept");
}

/// Squid keeps no word of it, and gives what it has, where the client allows that.
#[test]
fn a_server_without_room_is_not_taken_for_an_answer() {
    const PATIENCE: Duration = Duration::from_mins(1);
    let front = Front::with(&["--set", "gateway.executions_max=1", "--set", "gateway.waiting_max=0"]);
    let (kept, other) = (format!("{SEEN}&ttl=short"), format!("{SEEN}&freshkey=1"));
    // Once its time is told, Squid has something to ask by, and keeps it.
    front.until_told(&kept);
    let (head, before) = front.get(&kept, &format!("{ID}Cache-Control: max-stale=600\r\n"));
    assert!(
        head.contains("cache-control: max-age=0, stale-if-error=600") && before.contains("records=\"3\""),
        "{head}"
    );
    let mut busy = TcpStream::connect(&front.server).expect("a connection");
    write!(busy, "GET /q/asleep.csv HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
    let is_full = || get(&front.server, &other, ID).0.starts_with("http/1.1 503");
    let sleeps = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    let is_asleep = || !headwater_testkit::sql(&front.database, sleeps).expect("asked").is_empty();
    assert!(wait_until(PATIENCE, is_asleep) && is_full(), "the one place is taken");
    for _ in 0..2 {
        let (head, refused) = front.get(&other, ID);
        assert!(head.starts_with("http/1.1 503") && head.contains("retry-after: 1"), "{head}");
        assert!(refused.contains("<global_error msg=\"0 queries wait already"), "{refused}");
        let (head, stale) = front.get(&kept, ID);
        assert!(head.starts_with("http/1.1 200") && stale == before, "{head}: {stale}");
    }
    drop(busy);
    assert!(wait_until(PATIENCE, || !is_full()), "it has room again");
    let (head, answer) = front.get(&other, ID);
    assert!(head.starts_with("http/1.1 200") && answer.contains("records=\"3\""), "{head}: {answer}");
    let answers = front.answers("freshkey=1", 3);
    assert!(answers.iter().all(|answer| answer.contains("MISS")), "{answers:?}");
}
