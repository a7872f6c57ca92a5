//! `headwater doctor`: nothing is found where all is well, and each planted fault is found under its name.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::time::{Duration, Instant};

use headwater_testkit::deployment::{NOTES, NOTES_MODEL, Serving};
use headwater_testkit::postgres::{Builder, sql};
use headwater_testkit::{Deployment, Postgres, free_port};
use rusqlite::Connection;
use serde_json::Value;

/// Named queries, and cursors of them.
const CURSORS: &str = "[gateway]\nqueries = \"queries\"\n[gateway.cursor]\n";

/// A deployment and its server, which has the address that the configuration says.
struct Stage {
    server: Option<Serving>,
    deployment: Deployment,
    database: String,
    address: String,
}

impl Deref for Stage {
    type Target = Deployment;

    fn deref(&self) -> &Deployment {
        &self.deployment
    }
}

impl Stage {
    fn new(database: Option<String>) -> Stage {
        let deployment = Deployment::new(env!("CARGO_BIN_EXE_headwater"));
        let database = database.unwrap_or_else(|| {
            let file = deployment.path("central.db");
            Connection::open(&file).and_then(|connection| connection.execute_batch(NOTES)).expect("a database");
            "sqlite:central.db".to_owned()
        });
        let address = format!("127.0.0.1:{}", free_port().expect("a port"));
        let mut stage = Stage { deployment, database, server: None, address };
        stage.write("notes-1.toml", NOTES_MODEL);
        stage.configure("");
        stage.ok(&["track"]);
        stage.add_user("anna");
        let server = stage.serve(&[]);
        stage.address.clone_from(&server.address);
        stage.server = Some(server);
        stage.configure("");
        stage
    }

    /// Starts the server anew with more options, which stay in the configuration.
    fn serve_with(&mut self, options: &str) {
        self.server = None;
        std::fs::create_dir_all(self.path("queries")).expect("a folder");
        self.write("queries/notes.sql", "-- public = true\nSELECT id FROM note");
        self.configure(options);
        let server = self.serve(&[]);
        self.address.clone_from(&server.address);
        self.server = Some(server);
        self.configure(options);
    }

    /// Writes the configuration, with more options of the server.
    fn configure(&self, options: &str) {
        let text = format!(
            "models = [\"notes-1.toml\"]\n[database]\nurl = \"{}\"\n[server]\nlisten = \"{}\"\n{options}\n",
            self.database, self.address
        );
        self.write("headwater.toml", &text);
    }

    /// The codes of what is found, errors and warnings apart. The exit code says whether there is an error.
    fn doctor(&self, arguments: &[&str]) -> (Vec<String>, Vec<String>) {
        // The machine of the test may have a small disk.
        let said = self.run(&[&["doctor", "--json", "--free-mib", "1"], arguments].concat());
        let told: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        let findings = told["findings"].as_array().expect("a list");
        let codes = |severity: &str| {
            let those = findings.iter().filter(|finding| finding["severity"] == severity);
            let codes: BTreeSet<_> =
                those.map(|finding| finding["code"].as_str().expect("a code").to_owned()).collect();
            codes.into_iter().collect::<Vec<_>>()
        };
        for finding in findings {
            assert!(finding["what"].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
            assert!(finding["mend"].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
        let (errors, warnings) = (codes("error"), codes("warning"));
        assert_eq!(said.code, Some(i32::from(!errors.is_empty())), "{said:?}");
        (errors, warnings)
    }

    fn assert_sound(&self, arguments: &[&str]) {
        assert_eq!(self.doctor(arguments), (vec![], vec![]), "{}", self.run(&["doctor"]).out);
    }

    fn assert_error(&self, arguments: &[&str], code: &str) {
        assert_eq!(self.doctor(arguments), (vec![code.to_owned()], vec![]), "{}", self.run(&["doctor"]).out);
    }

    fn assert_warning(&self, arguments: &[&str], code: &str) {
        assert_eq!(self.doctor(arguments), (vec![], vec![code.to_owned()]), "{}", self.run(&["doctor"]).out);
    }
}

#[test]
fn the_server_side() {
    let mut stage = Stage::new(None);
    stage.assert_sound(&[]);
    let url = format!("http://{}", stage.address);
    stage.assert_sound(&["--url", &url]);

    stage.configure("workres = 3");
    assert_eq!(stage.doctor(&[]).0, ["configuration"]);
    stage.configure("workers = 100_000");
    assert_eq!(stage.doctor(&[]).0, ["configuration"]);
    stage.configure("jwks_file = \"none.json\"");
    stage.assert_error(&[], "configuration");
    stage.configure("");
    stage.assert_error(&["--config", "nowhere.toml"], "configuration");

    stage.write("notes-1.toml", "name = 3");
    stage.assert_error(&[], "model");
    stage.write("notes-1.toml", NOTES_MODEL);

    // A disk that has less space than anybody could have.
    let out = stage.run(&["doctor", "--json", "--free-mib", "1000000000000"]).out;
    assert!(out.contains("disk_space") && out.contains("spool"), "{out}");

    // So is the one of the pool's overflow file, which may be another.
    stage.configure("[pool]\noverflow_folder = \"spill\"");
    stage.assert_error(&[], "configuration");
    std::fs::create_dir(stage.path("spill")).expect("a folder");
    stage.assert_sound(&[]);
    let out = stage.run(&["doctor", "--json", "--free-mib", "1000000000000"]).out;
    assert!(out.contains("the disk of the pool's overflow_folder") && out.contains("spill"), "{out}");
    stage.configure("");

    // What `serve` would refuse beside syncs.
    stage.serve_with(CURSORS);
    stage.assert_sound(&[]);
    for faulty in [
        &format!("{CURSORS}cursors_max = 0")[..],
        &format!("{CURSORS}sql = true"),
        &CURSORS.replace("queries\"", "elsewhere\""),
        &format!("{CURSORS}[pool]\nmemory_bytes = 65536"),
        "[pool]\nmemory_bytes = 65536",
        "[admin]\nlisten = \"192.0.2.1:1\"",
    ] {
        stage.configure(faulty);
        stage.assert_error(&[], "configuration");
    }
    stage.serve_with("");

    let secret = stage.path("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").expect("written");
    let mode =
        |mode| std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("set");
    stage.configure("jwt_key_file = \"secret\"");
    mode(0o644);
    stage.assert_warning(&[], "secret_readable");
    mode(0o600);
    stage.assert_sound(&[]);
    stage.configure("");

    // The database: not there, not tracked, in another journal mode.
    stage.assert_error(&["--database", "sqlite:elsewhere.db"], "database_unreachable");
    assert!(!stage.path("elsewhere.db").exists(), "nothing is made");
    stage.server = None;
    stage.assert_error(&[], "not_running");
    stage.assert_sound(&["--not-running"]);
    let file = Connection::open(stage.path("central.db")).expect("a file");
    file.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(())).expect("set");
    stage.assert_error(&["--not-running"], "journal_mode");
    let mode: String = file.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("a mode");
    assert_eq!(mode, "delete", "nothing is changed");
    stage.ok(&["check"]);
    stage.assert_sound(&["--not-running"]);
    stage.ok(&["untrack"]);
    assert!(!stage.doctor(&["--not-running"]).0.is_empty(), "a table that is not tracked");

    // Somebody else at the address.
    let stranger = proxy(stage.address.parse().expect("an address"), Fault::Stranger);
    stage.address = stranger.to_string();
    stage.configure("");
    assert!(stage.doctor(&[]).0.contains(&"not_headwater".to_owned()));
}

#[test]
fn certificates() {
    let stage = Stage::new(None);
    let write = |name: &str, made: &[String]| stage.write(name, &made.concat());
    let make = |name: &str, ends: i64| {
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now").as_secs() as i64;
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs((now + ends * 86_400) as u64);
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = parameters.self_signed(&key).expect("signed");
        (certificate.pem(), key.serialize_pem())
    };
    // What runs has no TLS: only the files are looked at.
    stage.configure("tls_certificate = \"chain.pem\"\ntls_key = \"key.pem\"");
    let set = |chain: &[String], key: &str| {
        write("chain.pem", chain);
        write("key.pem", &[key.to_owned()]);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(stage.path("key.pem"), mode).expect("set");
    };
    let (good, key) = make("good.example", 90);
    set(std::slice::from_ref(&good), &key);
    stage.assert_sound(&[]);
    let (old, old_key) = make("old.example", -2);
    set(std::slice::from_ref(&old), &old_key);
    stage.assert_error(&[], "certificate_expired");
    let (soon, soon_key) = make("soon.example", 5);
    set(std::slice::from_ref(&soon), &soon_key);
    stage.assert_warning(&[], "certificate_ends");
    set(&[good.clone(), make("other.example", 90).0], &key);
    stage.assert_error(&[], "certificate_chain");
    set(&[good], &soon_key);
    stage.assert_error(&[], "configuration");
}

/// What stands between remotes and the server.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Stranger,
    SmallBodies,
    Buffers,
    Compresses,
    NeverUpgrades,
}

/// A proxy that passes one request a connection on, with a fault.
fn proxy(to: SocketAddr, fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || pass(client, to, fault).ok());
        }
    });
    address
}

fn pass(mut client: TcpStream, to: SocketAddr, fault: Fault) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte)? == 1 {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).replacen("\r\n", "\r\nconnection: close\r\n", 1);
    if fault == Fault::Stranger {
        return client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello");
    }
    if fault == Fault::SmallBodies && head.starts_with("PUT") {
        return client.write_all(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    // What is between two hops alone is not passed on: so nginx does unless it is told otherwise.
    let is_left_out = |line: &str| fault == Fault::NeverUpgrades && line.to_ascii_lowercase().starts_with("upgrade:");
    let head: String = head.split_inclusive("\r\n").filter(|line| !is_left_out(line)).collect();
    let mut server = TcpStream::connect(to)?;
    server.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    if fault == Fault::Buffers || fault == Fault::Compresses {
        server.read_to_end(&mut answer)?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let coded = text.replacen("\r\n", "\r\ncontent-encoding: br\r\n", 1);
        return client.write_all(if fault == Fault::Buffers { &answer } else { coded.as_bytes() });
    }
    std::io::copy(&mut server, &mut client).map(drop)
}

#[test]
fn the_way_to_the_server() {
    let mut stage = Stage::new(None);
    let server: SocketAddr = stage.address.parse().expect("an address");
    let url = |fault| format!("http://{}", proxy(server, fault));
    stage.assert_sound(&["--url", &url(Fault::NeverUpgrades)]);
    stage.assert_sound(&["--url", &url(Fault::None)]);
    stage.assert_error(&["--url", &url(Fault::Stranger)], "url_not_headwater");
    stage.assert_warning(&["--url", &url(Fault::SmallBodies)], "url_bodies");
    stage.assert_warning(&["--url", &url(Fault::Buffers)], "url_buffered");
    let compressed = stage.doctor(&["--url", &url(Fault::Compresses)]).1;
    assert!(compressed.contains(&"url_compressed".to_owned()), "{compressed:?}");
    let nobody = format!("http://127.0.0.1:{}", free_port().expect("a port"));
    stage.assert_error(&["--url", &nobody], "url_unreachable");
    // Cursors are looked for where the server has them.
    stage.serve_with(CURSORS);
    stage.assert_sound(&["--url", &format!("http://{server}")]);
    stage.assert_sound(&["--url", &url(Fault::None)]);
    stage.assert_warning(&["--url", &url(Fault::NeverUpgrades)], "url_cursors");
    // Where nothing is synced there are no uploads.
    let text = std::fs::read_to_string(stage.path("headwater.toml")).expect("written");
    std::fs::write(stage.path("headwater.toml"), text.replace("models = [\"notes-1.toml\"]", "models = []"))
        .expect("written");
    stage.assert_sound(&["--url", &url(Fault::SmallBodies)]);
    stage.assert_error(&["--url", &nobody], "url_unreachable");
}

#[test]
fn a_remote() {
    let stage = Stage::new(None);
    let url = format!("http://{}", stage.address);
    let create = ["remote", "create", "anna.db", "--server", &url, "--user", "anna"];
    stage.ok(&create);
    let look = ["--remote", "anna.db"];
    let edit = |sql: &str| {
        Connection::open(stage.path("anna.db")).and_then(|connection| connection.execute_batch(sql)).expect(sql);
    };
    edit("UPDATE hw_state SET last_sync = NULL");
    stage.assert_warning(&look, "never_synced");
    stage.ok(&["remote", "sync", "anna.db"]);
    stage.assert_sound(&look);
    edit("UPDATE hw_state SET last_sync = '2020-01-01 00:00:00+00'");
    stage.assert_warning(&look, "synced_long_ago");
    stage.ok(&["remote", "sync", "anna.db"]);

    // A change that the database refuses.
    let central = Connection::open(stage.path("central.db")).expect("a file");
    let refuse = "CREATE TRIGGER no BEFORE INSERT ON note WHEN new.id = 'x' BEGIN SELECT raise(ABORT, 'no'); END";
    central.execute_batch(refuse).expect("a trigger");
    edit("INSERT INTO note VALUES ('x', 'refused')");
    stage.run(&["remote", "sync", "anna.db"]);
    stage.assert_warning(&look, "set_aside");
    stage.ok(&["remote", "drop", "anna.db", "--all"]);
    stage.assert_sound(&look);

    let trigger: String = Connection::open(stage.path("anna.db"))
        .and_then(|file| {
            let sql = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'hw%' LIMIT 1";
            file.query_row(sql, [], |row| row.get(0))
        })
        .expect("a trigger");
    edit(&format!("DROP TRIGGER \"{trigger}\""));
    stage.assert_error(&look, "remote_untracked");
    stage.assert_error(&look, "remote_untracked");
    stage.ok(&["remote", "status", "anna.db"]);
    stage.assert_sound(&look);

    // An index that has lost an entry, as after a write that did not reach the disk.
    edit("CREATE INDEX body ON note (body)");
    edit(
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = 'CREATE INDEX body ON note (id)' WHERE name = 'body'",
    );
    stage.assert_error(&look, "remote_damaged");
    stage.assert_error(&["--remote", "headwater.toml"], "remote_unreadable");
    stage.assert_error(&["--remote", "central.db"], "remote_unreadable");
    stage.assert_error(&["--remote", "nowhere.db"], "remote_unreadable");
    assert!(!stage.path("nowhere.db").exists());
}

#[test]
fn postgres() {
    let cluster: Postgres = Builder::default().fsync(true).start().expect("PostgreSQL");
    let database = cluster.create_database().expect("a database");
    sql(&database, NOTES).expect("tables");
    let stage = Stage::new(Some(database.clone()));
    stage.assert_sound(&[]);

    let set = |change: &str, name: &str, value: &str| {
        sql(&database, change).expect(change);
        sql(&database, "SELECT pg_reload_conf()").expect("reloaded");
        let deadline = Instant::now() + Duration::from_mins(1);
        while sql(&database, &format!("SHOW {name}")).expect("shown")[0][0].as_deref() != Some(value) {
            assert!(Instant::now() < deadline, "{change}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for name in ["fsync", "full_page_writes", "synchronous_commit"] {
        set(&format!("ALTER SYSTEM SET {name} = off"), name, "off");
        stage.assert_error(&[], "not_durable");
        set(&format!("ALTER SYSTEM SET {name} = on"), name, "on");
    }
    stage.assert_sound(&[]);

    stage.configure("workers = 300");
    stage.assert_error(&[], "max_connections");
    // A number that is found is less by itself, as the server has it.
    for options in ["workers_max = 300", "database_connections = 300"] {
        stage.configure(options);
        stage.assert_warning(&[], "workers_share");
    }
    // Queries and cursors have connections of their own.
    std::fs::create_dir(stage.path("queries")).expect("a folder");
    stage.configure(CURSORS);
    stage.assert_sound(&[]);
    for more in [format!("{CURSORS}cursors_max = 400"), CURSORS.replace("queries\"", "queries\"\nexecutions_max = 400")]
    {
        stage.configure(&more);
        stage.assert_error(&[], "max_connections");
    }
    stage.configure("");

    let prepare = "BEGIN; UPDATE note SET body = 'two'; PREPARE TRANSACTION 'forgotten'";
    for statement in prepare.split("; ").collect::<Vec<_>>().chunks(3) {
        sql(&database, &statement.join("; ")).expect("prepared");
    }
    stage.assert_warning(&["--open-seconds", "0"], "open_transaction");
    stage.assert_sound(&["--open-seconds", "3600"]);
    sql(&database, "ROLLBACK PREPARED 'forgotten'").expect("rolled back");

    cluster.lose_standby().expect("a standby that is away");
    let waiting = std::thread::spawn({
        let database = database.clone();
        move || sql(&database, "UPDATE note SET body = 'three'")
    });
    let found = || stage.doctor(&[]) == (vec!["commits_wait".to_owned()], vec![]);
    assert!(headwater_testkit::wait_until(Duration::from_mins(1), found), "{}", stage.run(&["doctor"]).out);
    let out = stage.run(&["doctor", "--free-mib", "1"]).out;
    assert!(out.contains("synchronous_standby_names is 'away'"), "{out}");
    cluster.find_standby().expect("the standby");
    waiting.join().expect("no panic").expect("committed");
    stage.assert_sound(&[]);

    sql(&database, "SELECT pg_create_physical_replication_slot('gone', true)").expect("a slot");
    stage.assert_warning(&[], "slot_unused");
    sql(&database, "SELECT pg_drop_replication_slot('gone')").expect("dropped");

    sql(&database, "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA headwater TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA headwater TO reader; GRANT SELECT ON note TO reader").expect("a role");
    let (before, after) = database.split_once('@').expect("a user");
    let reader = format!("{}://reader@{after}", before.split_once("://").expect("a scheme").0);
    let found = stage.doctor(&["--database", &reader]).0;
    assert!(found.contains(&"privilege".to_owned()), "{found:?}");
    let said = stage.run(&["check", "--database", &reader]);
    assert_eq!(said.code, Some(1), "{said:?}");
    for privilege in ["INSERT", "UPDATE", "DELETE"] {
        let line = format!("error: note: the server's role may not {privilege}");
        assert!(said.out.contains(&line), "{line}: {}", said.out);
    }
    assert!(!said.out.contains("may not SELECT"), "{}", said.out);

    let grant = "`GRANT SELECT ON headwater.tracked TO reader`";
    for table in ["refresh", "tracked"] {
        sql(&database, &format!("REVOKE SELECT ON headwater.{table} FROM reader")).expect("revoked");
    }
    let said = [&["check"][..], &["doctor"]].map(|command| stage.run(&[command, &["--database", &reader]].concat()));
    assert!(said.iter().all(|said| said.code == Some(1) && said.out.contains(grant)), "{said:?}");
    assert!(said.iter().all(|said| said.out.contains("`GRANT SELECT ON headwater.refresh TO reader`")), "{said:?}");
    sql(&database, "GRANT SELECT ON ALL TABLES IN SCHEMA headwater TO reader").expect("granted");

    several_versions(&stage, &database, &reader);
    a_role_that_may_not_read_the_accounts(&stage, &database);
    a_part_of_another_owner(&cluster);
    cluster.stop().expect("stopped");
    assert!(stage.doctor(&[]).0.contains(&"database_unreachable".to_owned()));
}

/// Two versions of a model have the same findings, and they are there once. A server that starts enables triggers as they were made.
fn several_versions(stage: &Stage, database: &str, reader: &str) {
    stage.write("notes-2.toml", &NOTES_MODEL.replace("version = 1", "version = 2"));
    let text = "models = [\"notes-1.toml\", \"notes-2.toml\"]\n[server]\nlisten = \"127.0.0.1:0\"\n[database]\nurl = ";
    stage.write("two.toml", &format!("{text}\"{database}\"\n"));
    let findings = |arguments: &[&str]| {
        let said = stage.run(&[arguments, &["--json", "--config", "two.toml"]].concat());
        let told: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        told["findings"].as_array().expect("a list").clone()
    };
    let of = |findings: &[Value], code: &str| findings.iter().filter(|finding| finding["code"] == code).count();
    let missing = findings(&["doctor", "--not-running", "--database", reader]);
    let insert = missing.iter().filter(|finding| finding["what"] == "note: the server's role may not INSERT");
    assert_eq!(insert.count(), 1, "{missing:?}");

    sql(database, "ALTER TABLE note DISABLE TRIGGER ALL").expect("disabled");
    assert_eq!(of(&findings(&["doctor", "--not-running"]), "not_tracked"), 1);
    let found = findings(&["check"]);
    assert_eq!((of(&found, "not_tracked"), found[0]["models"].as_array().map(Vec::len)), (1, Some(2)), "{found:?}");
    let said = stage.run(&["check", "--config", "two.toml"]);
    assert!(said.out.contains("error: notes version 1, 2: note: change tracking"), "{said:?}");
    let said = stage.run(&["serve", "--config", "two.toml"]);
    assert!(said.code != Some(0) && said.err.contains("headwater track"), "a load may still be running: {said:?}");
    sql(database, "ALTER TABLE note ENABLE TRIGGER ALL").expect("enabled");
    assert_eq!(of(&findings(&["check"]), "not_tracked"), 1);
    drop(stage.serve(&["--config", "two.toml"]));
    assert_eq!(
        findings(&["check"]),
        Vec::<Value>::new(),
        "the server has enabled them, and nothing is left to be done"
    );
}

/// `check`, `doctor` and `track` report a part on which the server's role can't create triggers, and `track` creates them after the fix.
fn a_part_of_another_owner(cluster: &Postgres) {
    let database = cluster.create_database().expect("a database");
    let name = database.rsplit('/').next().expect("a name");
    sql(&database, &format!("CREATE ROLE keeper LOGIN; ALTER DATABASE {name} OWNER TO keeper")).expect("a role");
    let keeper = database.replace("postgres@", "keeper@");
    sql(&keeper, NOTES).expect("tables");
    let stage = Stage::new(Some(keeper));
    assert_eq!(stage.doctor(&["--not-running"]).0, Vec::<String>::new());
    sql(&database, "CREATE TABLE more (PRIMARY KEY (id)) INHERITS (note)").expect("an heir");
    let fix = "ALTER TABLE \"public\".\"more\" OWNER TO keeper";
    assert_eq!(stage.doctor(&["--not-running"]).0, ["part_not_tracked"]);
    for command in ["check", "track"] {
        let said = stage.run(&[command]);
        assert!(said.code != Some(0) && format!("{}{}", said.out, said.err).contains(fix), "{said:?}");
        assert!(!said.out.contains("tracked already"), "{said:?}");
    }
    sql(&database, fix).expect("fixed");
    stage.ok(&["track"]);
    assert_eq!(stage.doctor(&["--not-running"]).0, Vec::<String>::new());
    let triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'more'::regclass AND tgname LIKE 'headwater%'";
    assert_eq!(sql(&database, triggers).expect("counted")[0][0].as_deref(), Some("5"));
}

/// Of a server that syncs nothing: whoever is asked who they are is looked up by a role that may have no right to.
fn a_role_that_may_not_read_the_accounts(stage: &Stage, database: &str) {
    sql(database, "CREATE ROLE \"own reader\" LOGIN; GRANT SELECT ON note TO \"own reader\"").expect("a role");
    let reader = database.replace("postgres@", "own%20reader@");
    let text = format!("[database]\nurl = \"{reader}\"\n[gateway]\nqueries = \"queries\"\n");
    std::fs::write(stage.path("alone.toml"), text).expect("written");
    std::fs::create_dir_all(stage.path("queries")).expect("a folder");
    let query = |head: &str| {
        std::fs::write(stage.path("queries/q.sql"), format!("{head}SELECT id FROM note")).expect("written");
    };
    let look = ["--config", "alone.toml", "--not-running"];
    query("-- public = true\n");
    stage.assert_sound(&look);
    query("");
    // One after the other, as they are told.
    for _ in 0..2 {
        stage.assert_error(&look, "privilege");
        let out = stage.run(&["doctor", "--json", look[0], look[1], look[2]]).out;
        let said: Value = serde_json::from_str(&out).expect("JSON");
        let grants = said["findings"][0]["mend"].as_str().expect("a mend").trim_matches('`').to_owned();
        assert!(
            grants.contains("GRANT SELECT ON headwater.account, headwater.identity, headwater.note TO "),
            "{grants}"
        );
        let first = grants.split("; ").next().expect("a grant");
        sql(database, first).expect(first);
    }
    stage.assert_sound(&look);
    query("-- publix = true\n");
    stage.assert_error(&look, "configuration");
}
