//! Syncs with a server that runs already.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use headwater_testkit::Child;

use super::pilot::shop;
use super::{Database, Place, Said, consolidated};

const SOON: Duration = Duration::from_mins(1);

const OURS: &str = "name = \"ours\"
scenario = { name = \"own\", kind = [\"first-download\", \"upload\"], rows = 2 }
load.clients = 3
stop.iterations = 9
";

/// The server of a shop, and its port.
fn serve(place: &Place, options: &[&str]) -> (Child, u16) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.current_dir(place.folder.path()).args(["serve", "--listen", "127.0.0.1:0", "--workers", "3"]);
    let mut server = Child::spawn("server", command.args(options).stdin(Stdio::null())).expect("the program");
    let line = server.wait_for_line("listening on ", SOON).expect("it listens");
    let port = line.rsplit(':').next().and_then(|port| port.trim().parse().ok()).expect("a port");
    (server, port)
}

fn run(place: &Place, url: &str, more: &[&str]) -> Said {
    let results = place.path("x.lab");
    let _ = std::fs::remove_file(&results);
    let mut command = place.command(&[&["run", "x.toml", "--server", url, "--results", "x.lab"], more].concat());
    let done = command.env("SSL_CERT_FILE", place.path("root.pem")).output().expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Said { code: done.status.code().expect("not killed"), out: text(done.stdout), err: text(done.stderr) }
}

#[test]
fn a_server_that_runs_already_is_synced_with_and_goes_on() {
    for of_target in 0..2 {
        let place = Place::new(OURS);
        let target = consolidated(&place).into_iter().nth(of_target).expect("two databases");
        if let Database::Sqlite(path) = &target {
            std::fs::File::create(path).expect("a file");
        }
        shop(&place, &target);
        let (mut server, port) = serve(&place, &[]);
        let url = format!("http://127.0.0.1:{port}");
        let said = run(&place, &url, &[]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(server.is_running().expect("known"), "it is somebody else's, and goes on");
        // Six first syncs before the runs; nine that are measured in each; of each upload one that takes it back.
        let synced = server
            .stderr()
            .lines()
            .filter(|line| line.contains("outcome=\"ok\"") || line.contains("outcome=ok"))
            .count();
        assert_eq!(synced, 6 + 9 + 18, "{}", server.stderr());
        let shown = place.json(&["show", "x.lab"]);
        let done: Vec<_> = (0..2).map(|cell| &shown["cells"][cell]["operations"]).collect();
        assert_eq!(done, [9, 9], "{shown}");
        let prefix = if of_target == 0 { "headwater." } else { "headwater_" };
        assert_eq!(target.sql(&format!("SELECT count(*) FROM {prefix}remote")).as_deref(), Some("0"));
        let piloted = place.json(&[
            "pilot",
            "--own",
            "--server",
            &url,
            "--workers",
            "3",
            "--clients",
            "9",
            "--for",
            "20",
            "--time",
            "0.2",
            "--rows",
            "1",
            "--repetitions",
            "2",
            "--kind",
            "first-download",
            "--results",
            "p.lab",
        ]);
        assert_eq!(piloted["predictions"].as_array().map(Vec::len), Some(1), "{piloted}");
    }
}

#[test]
fn a_server_of_https_is_synced_with() {
    let place = Place::new(OURS);
    let target = Database::Sqlite(place.path("own.db"));
    std::fs::File::create(place.path("own.db")).expect("a file");
    shop(&place, &target);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(place.path("root.pem"), made.cert.pem()).expect("written");
    std::fs::write(place.path("key.pem"), made.signing_key.serialize_pem()).expect("written");
    let (_server, port) = serve(&place, &["--set", "tls_certificate=root.pem", "--set", "tls_key=key.pem"]);
    let said = run(&place, &format!("https://localhost:{port}"), &[]);
    assert_eq!(said.code, 0, "{said:?}");
    let said = run(&place, &format!("https://127.0.0.1:{port}"), &[]);
    assert_eq!(said.code, 3, "a certificate of another name: {said:?}");
    assert!(said.err.contains("TLS to 127.0.0.1"), "{said:?}");
}

#[test]
fn what_is_wrong_with_a_server_that_runs_is_told() {
    let place = Place::new(OURS);
    let target = Database::Sqlite(place.path("own.db"));
    std::fs::File::create(place.path("own.db")).expect("a file");
    shop(&place, &target);
    let (_server, port) = serve(&place, &[]);
    let url = format!("http://127.0.0.1:{port}");
    let of_scenario = |rest: &str| {
        let text = OURS.replace("rows = 2", &format!("rows = 2, {rest}"));
        std::fs::write(place.path("x.toml"), text).expect("written");
    };
    of_scenario("workers = 3");
    let said = run(&place, &url, &[]);
    assert_eq!(said.code, 0, "so many it has: {said:?}");
    for (scenario, url, code, expected) in [
        ("workers = 3", "127.0.0.1:80", 2, "--server has \"no scheme\", expected http://HOST:PORT"),
        ("workers = 3", "http://127.0.0.1:1", 3, "127.0.0.1:1: "),
        ("workers = 2", &url, 2, "has 3 workers, and scenario.workers (--workers) says 2: give 3"),
        ("workers = 3, backlog = 7", &url, 2, "scenario.backlog with --server: the server runs already"),
    ] {
        of_scenario(scenario);
        let said = run(&place, url, &[]);
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.err.contains(expected), "{expected}: {said:?}");
    }
    of_scenario("workers = 3");
    let said = run(&place, &url, &["--agents", "2", "--key", "x"]);
    assert!(said.code == 2 && said.err.contains("is tried by one process alone"), "{said:?}");
    std::fs::write(place.path("x.toml"), super::SWEEP).expect("written");
    let said = run(&place, &url, &["--target", "sqlite:x.db"]);
    assert!(said.code == 2 && said.err.contains("--server is of a system of one's own"), "{said:?}");
    // Something else answers there.
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let place_of_other = other.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in other.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        }
    });
    std::fs::write(place.path("x.toml"), OURS).expect("written");
    let said = run(&place, &format!("http://{place_of_other}"), &[]);
    assert!(said.code == 2 && said.err.contains("is no Headwater server"), "{said:?}");
    assert_eq!(target.sql("SELECT count(*) FROM headwater_remote").as_deref(), Some("0"));
}
