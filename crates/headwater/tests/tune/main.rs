//! `headwater tune`: a server's knobs, changed while it works, by the built binary.

mod packing;
mod saving;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use headwater_testkit::deployment::{NOTES, NOTES_MODEL, Said, Serving};
use headwater_testkit::{Deployment, free_port};
use rusqlite::Connection;
use serde_json::{Value, json};

/// As a person would have it.
const CONFIG: &str = "# Notes of a small shop.\nmodels = [\"notes-1.toml\"]\n\n[database]\nurl = \"sqlite:central.db\"\n\n\
    [server]\nlisten = \"127.0.0.1:0\"\nworkers = 2 # two cores\n# The answers:\n[gateway]\nqueries = \"queries\"\n\n\
    [pool]\npolicy = \"lru\"\nskips = 0\nalternate_bytes = 2000000\nalternate = [\"query notes\"]\n\n\
    [admin]\nlisten = \"127.0.0.1:0\"\n# The end.\n";

const PATIENCE: Duration = Duration::from_mins(1);

/// A deployment in which `olga` tunes.
struct Stage(Deployment);

impl Deref for Stage {
    type Target = Deployment;

    fn deref(&self) -> &Deployment {
        &self.0
    }
}

impl Stage {
    fn new() -> Stage {
        let stage = Stage(Deployment::new(env!("CARGO_BIN_EXE_headwater")).with("USER", "olga"));
        let file = Connection::open(stage.path("central.db")).expect("a file");
        file.execute_batch(NOTES).expect("tables");
        stage.write("notes-1.toml", NOTES_MODEL);
        std::fs::create_dir(stage.path("queries")).expect("a folder");
        stage.write("queries/notes.sql", "-- public = true\nSELECT id, body FROM note");
        stage.write("headwater.toml", CONFIG);
        stage.ok(&["track"]);
        stage.add_user("anna");
        stage
    }

    /// What the log says of changes: name, from, to, who.
    fn logged(&self) -> Vec<[String; 4]> {
        let log = self.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let changes = lines.filter(|line| line["message"] == "a knob was changed");
        changes
            .map(|line| ["name", "from", "to", "who"].map(|field| line[field].as_str().unwrap_or_default().to_owned()))
            .collect()
    }
}

/// `GET /ready`.
fn readiness(server: &Serving) -> Value {
    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    let request = format!("GET /ready HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
        .split_once("\r\n\r\n")
        .and_then(|(_, body)| serde_json::from_str(body).ok())
        .unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn knobs_change_while_remotes_sync_and_stay_when_they_are_saved() {
    let stage = Stage::new();
    let server = stage.serve(&[]);
    let url = &server.url;
    for file in ["a.db", "b.db"] {
        stage.ok(&["remote", "create", file, "--server", url, "--user", "anna"]);
    }
    let (is_done, syncs) = (AtomicBool::new(false), AtomicUsize::new(0));
    let wait_for_more = || {
        let (before, began) = (syncs.load(Ordering::Relaxed), Instant::now());
        while syncs.load(Ordering::Relaxed) < before + 2 {
            assert!(began.elapsed() < PATIENCE, "nothing syncs any more");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::thread::scope(|scope| {
        for file in ["a.db", "b.db"] {
            let (stage, is_done, syncs) = (&stage, &is_done, &syncs);
            scope.spawn(move || {
                for number in 0.. {
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                    let sql = format!("INSERT INTO note VALUES ('{file}{number}', 'a text')");
                    Connection::open(stage.path(file)).and_then(|remote| remote.execute_batch(&sql)).expect("written");
                    stage.ok(&["remote", "sync", file]);
                    syncs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_for_more();
        let out =
            stage.ok(&["tune", "pool.skips=100", "server.workers=7", "server.backlog=3", "gateway.compression=1"]);
        assert_eq!(
            out,
            "server.workers: 2 -> 7\nserver.backlog: 200 -> 3\npool.skips: 0 -> 100\ngateway.compression: auto -> 1\n"
        );
        let ready = readiness(&server);
        assert_eq!((&ready["load"]["workers"], &ready["load"]["backlog"]), (&json!(7), &json!(3)));
        for pool in ["main", "alternate"] {
            assert_eq!((&ready["pool"][pool]["policy"], &ready["pool"][pool]["skips"]), (&json!("lru"), &json!(100)));
        }
        wait_for_more();
        stage.ok(&["tune", "server.workers=1"]);
        assert_eq!(readiness(&server)["load"]["workers"], 1);
        wait_for_more();
        is_done.store(true, Ordering::Relaxed);
    });
    let expected = [
        ["server.workers", "2", "7", "olga"],
        ["server.backlog", "200", "3", "olga"],
        ["pool.skips", "0", "100", "olga"],
        ["gateway.compression", "auto", "1", "olga"],
        ["server.workers", "7", "1", "olga"],
    ];
    assert_eq!(stage.logged(), expected.map(|line| line.map(ToOwned::to_owned)));
    assert_eq!(stage.read("headwater.toml"), CONFIG, "nothing is saved unless it is asked for");

    std::fs::set_permissions(stage.path("headwater.toml"), PermissionsExt::from_mode(0o640)).expect("set");
    let out = stage.ok(&["tune", "pool.memory_bytes=100000000", "--save"]);
    assert!(
        out.starts_with("pool.memory_bytes: 134217728 -> 100000000\nsaved in ") && out.contains("headwater.toml"),
        "{out}"
    );
    let memory = CONFIG.replace("[\"query notes\"]\n", "[\"query notes\"]\nmemory_bytes = 100000000\n");
    assert_eq!(stage.read("headwater.toml"), memory, "that one alone");
    let out = stage.ok(&["tune", "--save"]);
    assert!(
        out.contains("server.workers, server.backlog, pool.memory_bytes, pool.skips, gateway.compression"),
        "{out}"
    );
    let all = memory
        .replace("workers = 2 # two", "workers = 1 # two")
        .replace("# two cores\n", "# two cores\nbacklog = 3\n")
        .replace("skips = 0", "skips = 100")
        .replace("queries = \"queries\"\n", "queries = \"queries\"\ncompression = 1\n");
    assert_eq!(stage.read("headwater.toml"), all);
    let mode = std::fs::metadata(stage.path("headwater.toml")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640, "its mode stays");
    server.stop();
    assert!(!stage.path("headwater.admin").exists(), "the token goes with its server");

    let server = stage.serve(&[]);
    let ready = readiness(&server);
    let main = &ready["pool"]["main"];
    assert_eq!(
        (&ready["load"]["workers"], &main["skips"], &main["memory_bytes_max"]),
        (&json!(1), &json!(100), &json!(100_000_000))
    );
    assert_eq!(stage.ok(&["tune", "--save"]), "nothing was changed since the server started\n");
    server.stop();
}

#[test]
fn every_knob_is_in_the_documentation() {
    let stage = Stage::new();
    let config = CONFIG.replace("policy = \"lru\"\nskips = 0\n", "").replace("workers = 2 ", "");
    stage.write("headwater.toml", &format!("{config}[gateway.cursor]\n"));
    let _server = stage.serve(&[]);
    let told: Value = serde_json::from_str(&stage.ok(&["tune", "--json"])).expect("JSON");
    let knobs = told["knobs"].as_array().expect("a list");
    let page = include_str!("../../../../docs/tuning.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let expected: Vec<String> = knobs
        .iter()
        .map(|knob| {
            let [default, range, effect] = ["default", "range", "effect"].map(|field| text(&knob[field]));
            format!("| `{}` | {default} | {range} | {effect} |", text(&knob["name"]))
        })
        .collect();
    assert!(knobs.len() > 50, "{told}");
    assert!(rows == expected, "docs/tuning.md has other rows, expected\n{}", expected.join("\n"));
    // For people: all of them, or a section, or one.
    let lines = |arguments: &[&str]| stage.ok(&[&["tune"], arguments].concat()).lines().count();
    assert_eq!(
        (lines(&[]), lines(&["gateway", "log"]), lines(&["pool.skips"])),
        (knobs.len() + 2, 8 + 4 + 6 + 1 + 2, 3)
    );
    let of_pool = serde_json::from_str::<Value>(&stage.ok(&["tune", "pool", "--json"])).expect("JSON");
    assert_eq!(of_pool["knobs"].as_array().map(Vec::len), Some(9));
}

#[test]
fn what_is_wrong_is_told_and_changes_nothing() {
    let stage = Stage::new();
    stage.refused(&["tune"], 3, "there is no");
    let server = stage.serve(&[]);
    let before = stage.ok(&["tune", "--json"]);
    for (arguments, words) in [
        (&["pool.skip=1"][..], "there is no knob \"pool.skip\": did you mean pool.skips?"),
        (&["pool.skip"], "there is no knob and no section \"pool.skip\": did you mean pool.skips?"),
        (&["pool.skips=2147483648"], "pool.skips is \"2147483648\", expected 0 to 2147483647"),
        (&["pool.skips=-1"], "pool.skips is \"-1\", expected 0 to 2147483647"),
        (&["pool.skips=1", "server.workers=1001"], "server.workers is \"1001\", expected 0 to 1000"),
        (&["pool.skips=1", "pool.memory_bytes=1000"], "pool.memory_bytes can't be 1000 now"),
        (
            &["pool.skips=1", "gateway.sending_bytes_max=1000"],
            "[gateway] held_bytes_max is 4194304, and sending_bytes_max 1000",
        ),
        (
            &["pool.memory_bytes=67108864", "gateway.held_bytes_max=60000000"],
            "[gateway] held_bytes_max is 60000000, and [pool]",
        ),
        (&["pool.skips=1", "pool.skips=2"], "pool.skips is set twice"),
        (&["pool.skips=1", "log=wran"], "log is \"wran\", expected a level"),
        (&["pool.skips=1", "log="], "log is \"\", expected a level"),
        (&["pool.skips="], "pool.skips is \"\", expected 0 to 2147483647"),
        (&["gateway.packing.recrods=1"], "did you mean gateway.packing.records?"),
        (&["gateway.packing.skips=1"], "did you mean pool.skips?"),
        (&["server.pack"], "did you mean server.packing?"),
        (&["pol"], "did you mean pool?"),
        (&["log=debug", "--save"], "log is no option of the configuration file"),
        (&["pool.policy=mru"], "expected s3fifo or lru"),
        (&["pool.skips", "--save"], "--save takes pool.skips=VALUE"),
        (&["pool.skips", "server.workers=1"], "pool.skips is to be shown"),
        (&["server.listen=127.0.0.1:1"], "there is no knob \"server.listen\""),
    ] {
        stage.refused(&[&["tune"], arguments].concat(), 2, words);
    }
    assert_eq!(stage.ok(&["tune", "--json"]), before);
    assert_eq!(stage.logged(), Vec::<[String; 4]>::new());

    // A file that would not start a server is not written.
    stage.ok(&["tune", "pool.alternate_bytes=0"]);
    stage.refused(&["tune", "--save"], 2, "it is set, but not saved");
    assert_eq!(stage.read("headwater.toml"), CONFIG);
    stage.ok(&["tune", "pool.alternate_bytes=2000000"]);

    // What is logged changes too, and leaves no change out.
    for change in ["log=warn", "server.workers=4", "log=off", "server.workers=2", "log=info"] {
        stage.ok(&["tune", change]);
    }
    let changes: Vec<_> = stage.logged().into_iter().map(|[name, from, to, _]| format!("{name} {from} {to}")).collect();
    assert_eq!(
        changes,
        [
            "pool.alternate_bytes 2000000 0",
            "pool.alternate_bytes 0 2000000",
            "log info warn",
            "server.workers 2 4",
            "log warn off",
            "server.workers 4 2",
            "log off info",
        ]
    );
    // Without a name in the environment it is the one that the system has for the process.
    let unnamed = Said::of(stage.command(&["tune", "server.backlog=9"]).env("USER", "").env_remove("LOGNAME"));
    assert_eq!(unnamed.code, Some(0), "{unnamed:?}");
    let who = Said::of(Command::new("id").arg("-un").stdout(Stdio::piped())).out;
    assert_eq!(
        stage.logged().last().map(|[name, .., who]| [name.clone(), who.clone()]),
        Some(["server.backlog".into(), who.trim().into()])
    );
    server.stop();
}

#[test]
fn a_token_lets_in_and_nothing_else_does() {
    let stage = Stage::new();
    let server = stage.serve(&[]);
    let file = stage.path("headwater.admin");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    let text = stage.read("headwater.admin");
    let token =
        text.lines().find_map(|line| line.strip_prefix("token = ")).expect("a token").trim_matches('"').to_owned();
    let wrong = text.replace(&token, &"0".repeat(64));
    stage.write("wrong", &wrong);
    stage.refused(
        &["tune", "--token-file", "wrong"],
        2,
        "the token is not the one of this server's administration listener",
    );
    stage.ok(&["tune", "--token-file", "headwater.admin"]);
    assert!(!stage.log().contains(&token) && stage.log().contains("a wrong token, or none"));
    // The server's own listener has no knobs.
    let address = text.lines().find_map(|line| line.strip_prefix("address = ")).expect("an address");
    stage.write("public", &text.replace(address, &format!("\"{}\"", server.address)));
    stage.refused(&["tune", "--token-file", "public"], 2, "something else answers");
    server.stop();
    // One that was killed leaves its file, and nobody answers there.
    let server = stage.serve(&[]);
    let left = stage.read("headwater.admin");
    drop(server);
    stage.write("headwater.admin", &left);
    stage.refused(&["tune"], 3, "no server listens for administration at");
    stage.serve(&[]).stop();

    // A token of one's own choice.
    let port = free_port().expect("a port");
    let listen = format!("admin.listen=127.0.0.1:{port}");
    let chosen = "a-token-of-my-own-choice";
    let with = |command: &mut Command| {
        Said::of(
            command.env("HEADWATER_ADMIN_TOKEN", chosen).env("HEADWATER_ADMIN_LISTEN", format!("127.0.0.1:{port}")),
        )
    };
    let mut child = stage
        .command(&["serve", "--set", &listen])
        .env("HEADWATER_ADMIN_TOKEN", chosen)
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it speaks");
    assert!(!file.exists(), "whoever has chosen it knows it");
    let done = with(&mut stage.command(&["tune", "pool.skips=9"]));
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!((done.code, done.out.as_str()), (Some(0), "pool.skips: 0 -> 9\n"), "{done:?}");
    let short = Said::of(stage.command(&["tune"]).env("HEADWATER_ADMIN_TOKEN", "short"));
    assert!(short.code == Some(2) && short.err.contains("expected 16 letters or more"), "{short:?}");
}

#[test]
fn servers_on_one_machine_are_not_taken_for_one_another() {
    let (stage, other) = (Stage::new(), Stage::new());
    // Without the section there is none, and no option of it.
    let without = CONFIG.split("[admin]").next().expect("all before");
    stage.write("without.toml", without);
    stage.refused(&["tune", "--config", "without.toml"], 2, "without.toml has no [admin]");
    stage.refused(
        &["serve", "--config", "without.toml", "--set", "admin.listen=127.0.0.1:0"],
        2,
        "there is no [admin]",
    );
    stage.refused(
        &["serve", "--set", "admin.listen=0.0.0.0:7341"],
        2,
        "[admin] listen is 0.0.0.0:7341, expected an address of this machine alone",
    );
    stage.refused(&["serve", "--set", "admin.token=secret"], 2, "there is no option token");
    stage.refused(&["serve", "--set", "admin.token_file=headwater.toml"], 2, "it is no token file of a server");

    let server = stage.serve(&[]);
    let address = stage.read("headwater.admin");
    let address =
        address.lines().find_map(|line| line.strip_prefix("address = ")).expect("one").trim_matches('"').to_owned();
    // A second one of the same configuration would take its token file, or its address.
    stage.refused(&["serve"], 2, "give this one its own by [admin] token_file");
    let taken = format!("admin.listen={address}");
    stage.refused(&["serve", "--set", &taken], 2, "another server on this machine may have it");
    let second = stage.serve(&["--set", "admin.token_file=second.admin"]);
    stage.ok(&["tune", "pool.skips=5", "--token-file", "second.admin"]);
    assert_eq!(
        (readiness(&server)["pool"]["main"]["skips"].as_u64(), readiness(&second)["pool"]["main"]["skips"].as_u64()),
        (Some(0), Some(5))
    );
    // One of another configuration is not meant.
    other.write("headwater.admin", &stage.read("headwater.admin"));
    other.refused(&["tune", "pool.skips=6"], 2, "was started by");
    assert_eq!(readiness(&server)["pool"]["main"]["skips"], 0);
    second.stop();
    server.stop();
}
