//! The built program from `init` to `diff`, on both databases: what README promises, in its order.

use std::ops::Deref;

use headwater_testkit::Deployment;
use headwater_testkit::deployment::Serving;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use serde_json::Value;

const TABLES: &str = "
CREATE TABLE member (user_name TEXT NOT NULL, region TEXT NOT NULL, PRIMARY KEY (user_name, region));
CREATE TABLE customer (id BIGINT PRIMARY KEY NOT NULL, name TEXT NOT NULL, city TEXT, region TEXT NOT NULL);
CREATE TABLE invoice (id BIGINT PRIMARY KEY NOT NULL, customer_id BIGINT REFERENCES customer (id) ON DELETE CASCADE, amount BIGINT);
INSERT INTO member VALUES ('anna', 'north'), ('bo', 'north'), ('bo', 'south');
INSERT INTO customer VALUES (1, 'Ada', 'Bergen', 'north'), (2, 'Ben', NULL, 'south'), (3, 'Cleo', 'Oslo', 'north');
INSERT INTO invoice VALUES (1, 1, 100), (2, 2, 200), (3, 3, 300);";

const PARTITION: &str = r#"[partitions.region]
columns = { region = "text" }
members = "SELECT region FROM member WHERE user_name = :s.user"

"#;

/// A deployment, its consolidated database and a server on it.
struct Stage {
    server: Option<Serving>,
    deployment: Deployment,
    database: String,
}

impl Deref for Stage {
    type Target = Deployment;

    fn deref(&self) -> &Deployment {
        &self.deployment
    }
}

impl Stage {
    fn sqlite() -> Stage {
        let deployment = Deployment::new(env!("CARGO_BIN_EXE_headwater"));
        let database = format!("sqlite:{}", deployment.path("central.db").display());
        Stage { deployment, database, server: None }
    }

    fn postgres() -> Stage {
        let cluster = headwater_testkit::Postgres::shared().expect("PostgreSQL");
        let database = cluster.create_database().expect("a database");
        Stage { deployment: Deployment::new(env!("CARGO_BIN_EXE_headwater")), database, server: None }
    }

    /// Runs SQL at the consolidated database, as an application would.
    fn central(&self, sql: &str) {
        match self.database.strip_prefix("sqlite:") {
            Some(path) => Connection::open(path).expect("a file").execute_batch(sql).expect(sql),
            None => drop(headwater_testkit::postgres::sql(&self.database, sql).expect(sql)),
        }
    }

    /// Runs SQL at a remote, as an application would.
    fn remote(&self, file: &str, sql: &str) {
        Connection::open(self.path(file)).expect("a file").execute_batch(sql).expect(sql);
    }

    /// How many rows a remote has of a table.
    fn count(&self, file: &str, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        Connection::open(self.path(file)).expect("a file").query_row(&sql, [], |row| row.get(0)).expect("a number")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let said = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said:?}"))
    }

    /// Starts the server; its address.
    fn serve(&mut self, options: &[&str]) -> String {
        let server = self.deployment.serve(&[&["--listen", "127.0.0.1:0"], options].concat());
        let url = server.url.clone();
        self.server = Some(server);
        url
    }

    /// Asks the server to stop, and waits until it has.
    fn stop(&mut self) {
        self.server.take().expect("a server").stop();
    }

    fn sync(&self, file: &str) -> Value {
        serde_json::from_str(&self.ok(&["remote", "sync", file, "--json"])).expect("JSON")
    }

    fn assert_equal(&self, file: &str) {
        self.ok(&["diff", file]);
    }

    fn assert_equal_but_set_aside(&self, file: &str) {
        self.ok(&["diff", file, "--ignore-pending"]);
    }

    /// `init`, the model edited as a person would, `track`, `check`, users.
    fn prepare(&self) {
        self.central(TABLES);
        self.ok(&["init", "--database", &self.database, "--name", "shop"]);
        let file = self.path("models/shop-1.toml");
        let model = std::fs::read_to_string(&file).expect("written");
        let model = model
            .replace("[tables.member]\n", &format!("{PARTITION}[tables.member]\n"))
            .replace("[tables.customer]\n", "[tables.customer]\npartition = \"region\"\n")
            .replace("[tables.invoice]\n", "[tables.invoice]\npartition = { through = \"customer\" }\n");
        std::fs::write(&file, model).expect("written");
        assert_eq!(self.run(&["check"]).code, Some(1), "nothing is tracked yet");
        let sql = self.ok(&["track", "--dry-run"]);
        assert!(sql.contains("CREATE"), "{sql}");
        assert_eq!(self.run(&["check"]).code, Some(1), "a dry run does nothing");
        self.ok(&["track"]);
        self.ok(&["check"]);
        self.add_user("anna");
        self.add_user("bo");
    }
}

/// The whole story.
fn story(mut stage: Stage) {
    stage.prepare();
    let url = stage.serve(&[]);
    let tls =
        stage.run(&["remote", "create", "anna.db", "--server", &url.replace("http:", "https:"), "--user", "anna"]);
    assert!(tls.code == Some(3) && tls.err.contains("begins with http://"), "{tls:?}");
    for user in ["anna", "bo"] {
        stage.ok(&["remote", "create", &format!("{user}.db"), "--server", &url, "--user", user]);
        stage.sync(&format!("{user}.db"));
        stage.assert_equal(&format!("{user}.db"));
    }
    let status = stage.json(&["remote", "status", "anna.db"]);
    let customers = status["tables"].as_array().expect("tables").iter().find(|table| table["name"] == "customer");
    assert_eq!(customers.expect("customer")["rows"].as_u64(), Some(2), "those of the north");

    // Edits on three sides, a conflict among them: both change the same row.
    stage.remote(
        "anna.db",
        "UPDATE customer SET city = 'Voss' WHERE id = 1; INSERT INTO customer VALUES (10, 'Dan', NULL, 'north')",
    );
    stage.remote("bo.db", "DELETE FROM customer WHERE id = 2");
    stage.central("UPDATE customer SET city = 'Molde' WHERE id = 1; UPDATE customer SET region = 'south' WHERE id = 3");
    assert_eq!(stage.json(&["remote", "log", "anna.db"])["pending"].as_array().map(Vec::len), Some(2));
    let pending = stage.run(&["diff", "anna.db"]);
    assert!(pending.code == Some(1) && pending.out.contains("not uploaded yet"), "{pending:?}");
    let report = stage.sync("anna.db");
    assert_eq!((report["changes_up"].as_u64(), report["conflicts"].as_u64()), (Some(2), Some(1)), "{report}");
    stage.sync("bo.db");
    stage.sync("anna.db");
    stage.assert_equal("anna.db");
    stage.assert_equal("bo.db");
    assert_eq!(
        (stage.count("anna.db", "invoice"), stage.count("bo.db", "invoice")),
        (1, 2),
        "invoices go with customers"
    );
    let conflicts = stage.json(&["conflicts"]);
    assert_eq!((&conflicts[0]["uploaded"]["city"], &conflicts[0]["stored"]["city"]), (&"Voss".into(), &"Molde".into()));
    assert_eq!(conflicts[0]["outcome"], "consolidated");
    assert!(stage.ok(&["conflicts"]).contains("Molde") && stage.run(&["conflicts", "--exit-code"]).code == Some(1));
    assert!(stage.ok(&["remote", "log", "anna.db", "--conflicts"]).contains("Voss"));
    conflict_without_its_result(&stage);

    // A row outside the user's partitions is set aside, and the rest goes on.
    stage.remote("anna.db", "INSERT INTO customer VALUES (11, 'Eve', NULL, 'south'), (12, 'Fay', NULL, 'north')");
    let report = stage.sync("anna.db");
    assert_eq!((report["changes_up"].as_u64(), report["refused"].as_u64()), (Some(2), Some(1)), "{report}");
    assert_eq!(stage.run(&["remote", "status", "anna.db", "--exit-code"]).code, Some(1));
    assert!(stage.ok(&["remote", "log", "anna.db", "--set-aside"]).contains("customer"));
    let aside = stage.run(&["diff", "anna.db"]);
    assert!(aside.code == Some(1) && aside.out.contains("set aside"), "{aside:?}");
    stage.assert_equal_but_set_aside("anna.db");

    stage.remote("anna.db", "INSERT INTO customer VALUES (13, 'Gil', NULL, 'north')");
    assert_eq!(stage.run(&["remote", "drop", "anna.db", "--pending"]).code, Some(2), "which?");
    let gil = ["remote", "drop", "anna.db", "--pending", "--table", "customer", "--key", r#"{"id":13}"#];
    assert_eq!(stage.json(&gil)["dropped"].as_u64(), Some(1));
    assert_eq!(stage.run(&gil).code, Some(2), "it waits no more");
    stage.assert_equal_but_set_aside("anna.db");

    // A row that a trigger of the application's refuses is held, named with its reason, and stored when the trigger is gone.
    stage.remote(
        "anna.db",
        "CREATE TRIGGER app BEFORE INSERT ON customer WHEN NEW.id = 77 BEGIN SELECT RAISE(ABORT, 'not in this shop'); END",
    );
    stage.central("INSERT INTO customer VALUES (77, 'Hal', NULL, 'north')");
    stage.sync("anna.db");
    let held = &stage.json(&["remote", "log", "anna.db", "--held"])["held"];
    assert_eq!(
        (held[0]["key"]["id"].as_u64(), held[0]["why"].as_str()),
        (Some(77), Some("not in this shop")),
        "{held}"
    );
    assert!(stage.ok(&["remote", "log", "anna.db"]).contains("not in this shop"));
    assert!(stage.ok(&["remote", "status", "anna.db"]).contains("log FILE --held"));
    stage.remote("anna.db", "DROP TRIGGER app");
    stage.sync("anna.db");
    assert_eq!(stage.json(&["remote", "log", "anna.db", "--held"])["held"].as_array().map(Vec::len), Some(0));
    stage.assert_equal_but_set_aside("anna.db");

    written_untracked(&stage);
    membership_left_out(&stage);

    // Wrong passwords, tokens, disabled users; and a loss that was planted.
    let wrong = stage.command(&["remote", "sync", "bo.db"]).env("HEADWATER_PASSWORD", "guess").output().expect("runs");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let token = stage.ok(&["token", "bo", "--for", "10m"]);
    let mut for_another = stage.command(&["remote", "create", "other.db", "--server", &url, "--user", "anna"]);
    let for_another = for_another.env("HEADWATER_TOKEN", token.trim()).output().expect("runs");
    assert!(for_another.status.code() == Some(2) && !stage.path("other.db").exists(), "bo's token: {for_another:?}");
    let mut with_token = stage.command(&["remote", "sync", "bo.db"]);
    assert!(with_token.env("HEADWATER_TOKEN", token.trim()).status().expect("runs").success());
    stage.central("UPDATE customer SET name = 'Fai' WHERE id = 12");
    assert_eq!(stage.run(&["diff", "bo.db"]).code, Some(1));

    stage.stop();
    check_log(&stage.log());
    without_a_server(&stage);
    purge(&stage);
    stage.ok(&["untrack"]);
    assert_eq!(stage.run(&["serve"]).code, Some(2), "a database that is not tracked is not served");
}

/// As long as the result of a conflict has not come down, none is shown.
fn conflict_without_its_result(stage: &Stage) {
    let listed = || stage.ok(&["remote", "log", "anna.db", "--conflicts"]);
    let has_result = |text: &str| text.lines().any(|line| line.contains("ours") && line.contains("result"));
    assert!(has_result(&listed()), "{}", listed());
    stage.remote("anna.db", "UPDATE hw_conflict SET is_open = 1");
    let open = listed();
    assert!(open.contains("has not come down yet") && open.contains("Voss") && !has_result(&open), "{open}");
    stage.remote("anna.db", "UPDATE hw_conflict SET is_open = 0");
}

/// What was written while change tracking was off is set aside, and the exit code says so if it is asked to.
fn written_untracked(stage: &Stage) {
    let write = "INSERT INTO customer VALUES (15, 'Jo', NULL, 'north')";
    stage.remote("anna.db", &format!("DROP TRIGGER hw_insert_customer; DROP TRIGGER hw_inserted_customer; {write}"));
    let found = stage.run(&["remote", "sync", "anna.db", "--exit-code"]);
    assert!(found.code == Some(1) && found.out.contains("set aside as untracked"), "{found:?}");
    assert_eq!(stage.run(&["remote", "sync", "anna.db", "--exit-code"]).code, Some(0), "once");
    stage.assert_equal_but_set_aside("anna.db");
    // Where nothing shows it, a person may ask for the comparison.
    let quiet = Connection::open(stage.path("anna.db")).expect("the file");
    quiet.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).expect("switched off");
    quiet.execute("UPDATE customer SET city = 'Bodo' WHERE id = 12", []).expect("written");
    drop(quiet);
    assert_eq!(stage.run(&["remote", "sync", "anna.db", "--exit-code"]).code, Some(0), "nobody knows");
    assert_eq!(stage.json(&["remote", "compare", "anna.db"])["tables"], 3);
    let found = stage.run(&["remote", "sync", "anna.db", "--exit-code"]);
    assert!(found.code == Some(1) && found.out.contains("set aside as untracked"), "{found:?}");
    let list = &stage.json(&["remote", "log", "anna.db", "--set-aside"])["set_aside"];
    let listed = list.as_array().and_then(|list| list.iter().find(|change| change["key"]["id"] == 12));
    let number = listed.expect("the row is on the list")["number"].to_string();
    stage.ok(&["remote", "drop", "anna.db", &number]);
    stage.assert_equal_but_set_aside("anna.db");
}

/// A membership that can't travel is named, and is no difference.
fn membership_left_out(stage: &Stage) {
    let large = "x".repeat(5_000);
    stage.central(&format!(
        "INSERT INTO member VALUES ('anna', '{large}'); INSERT INTO customer VALUES (20, 'Kim', NULL, '{large}')"
    ));
    let found = stage.ok(&["diff", "anna.db", "--table", "customer", "--ignore-pending"]);
    let told = "a membership in partition \"region\" is left out, as downloads do: the partition's value is larger than can travel";
    assert!(found.contains(told), "{found}");
    stage.central("DELETE FROM member WHERE region LIKE 'xxx%'; DELETE FROM customer WHERE id = 20");
}

/// What could not be sent is listed as on its way, and is not given up before it is known whether it has arrived.
fn without_a_server(stage: &Stage) {
    stage.remote("bo.db", "INSERT INTO customer VALUES (14, 'Ida', NULL, 'south')");
    let gone = stage.run(&["remote", "sync", "bo.db", "--attempts", "1"]);
    assert_eq!(gone.code, Some(3), "{gone:?}");
    let gone = stage.run(&["remote", "sync", "bo.db", "--attempts", "2"]);
    assert!(gone.code == Some(3) && gone.err.contains("attempt 1 failed (connection: "), "{gone:?}");
    let gone = stage.run(&["remote", "sync", "bo.db", "--attempts", "2", "--json"]);
    let first: Value =
        gone.err.lines().next().and_then(|line| serde_json::from_str(line).ok()).expect("a line of JSON");
    assert!(first["about"]["failures"] == 1 && first["about"]["wait_ms"].as_u64() > Some(100), "{first}");
    assert!(stage.ok(&["remote", "log", "bo.db", "--pending"]).contains("on its way"));
    let pending = &stage.json(&["remote", "log", "bo.db", "--pending"])["pending"];
    assert!(pending[0]["key"]["id"] == 14 && pending[0]["is_on_its_way"] == true, "{pending}");
    let dropped = stage.run(&["remote", "drop", "bo.db", "--pending", "--all"]);
    assert!(dropped.code == Some(2) && dropped.err.contains("headwater remote upgrade"), "{dropped:?}");
}

/// What is old enough goes, once; each purge takes the note by which a later one knows.
fn purge(stage: &Stage) {
    assert_eq!(stage.json(&["purge"])["rows"].as_u64(), Some(0), "nothing is 30 days old");
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while stage.json(&["purge", "--older-than", "1s"])["rows"].as_u64() == Some(0) {
        assert!(std::time::Instant::now() < deadline, "nothing was purged");
    }
    assert!(stage.ok(&["purge", "--older-than", "366d"]).contains("nothing was old enough"));
    assert_eq!(stage.run(&["purge", "--older-than", "often"]).code, Some(2));
}

/// One line a sync, that a program can read: who, what came of it, how long each phase took. No secret in it.
fn check_log(log: &str) {
    // Warnings to whoever starts it come before the log.
    let lines = log.lines().filter(|line| !line.starts_with("warning: "));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect(line)).collect();
    let syncs: Vec<_> = lines.iter().filter(|line| line["target"] == "headwater::sync").collect();
    // Two first syncs, three after the edits, one that was refused in part, two of a row that is held, three to find what
    // was written untracked and two after that, three of a comparison, one by token.
    assert_eq!(syncs.len(), 17, "{log}");
    for sync in &syncs {
        assert!(sync["outcome"] == "ok" && ["anna", "bo"].contains(&sync["user"].as_str().unwrap_or("")), "{sync}");
        for phase in ["receive_ms", "wait_ms", "greet_ms", "upload_ms", "download_ms", "send_ms"] {
            assert!(sync[phase].is_u64(), "{phase}: {sync}");
        }
    }
    assert_eq!(syncs.iter().filter_map(|sync| sync["conflicts"].as_u64()).sum::<u64>(), 1, "{log}");
    assert!(!log.contains("hunter42") && !log.contains("guess"));
}

#[test]
fn sqlite_from_init_to_diff() {
    story(Stage::sqlite());
}

#[test]
fn postgres_from_init_to_diff() {
    story(Stage::postgres());
}

/// TLS from PEM files, and remotes that trust exactly this certificate.
#[test]
fn over_tls_to_whom_the_certificate_is_known() {
    let mut stage = Stage::sqlite();
    stage.prepare();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(stage.path("chain.pem"), made.cert.pem()).expect("written");
    std::fs::write(stage.path("key.pem"), made.signing_key.serialize_pem()).expect("written");
    let url = stage.serve(&["--set", "tls_certificate=chain.pem", "--set", "tls_key=key.pem"]);
    assert!(url.starts_with("https://"), "{url}");
    let create = ["remote", "create", "anna.db", "--server", &url, "--user", "anna"];
    let stranger = stage.run(&create);
    assert_eq!(stranger.code, Some(3), "{stranger:?}");
    assert!(stranger.err.to_lowercase().contains("certificate"), "{stranger:?}");
    let plain =
        stage.run(&["remote", "create", "anna.db", "--server", &url.replace("https:", "http:"), "--user", "anna"]);
    assert!(plain.code == Some(3) && plain.err.contains("begins with https://"), "{plain:?}");
    stage.ok(&[&create[..], &["--ca", "chain.pem"]].concat());
    stage.ok(&["remote", "sync", "anna.db", "--ca", "chain.pem"]);
    stage.assert_equal("anna.db");
    stage.stop();
}

/// The first certificate that one makes (`openssl req -x509`) is an authority's, which no client takes for a server's.
#[test]
fn an_authoritys_certificate_is_named_as_such() {
    let mut stage = Stage::sqlite();
    stage.prepare();
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    std::fs::write(stage.path("chain.pem"), params.self_signed(&key).expect("a certificate").pem()).expect("written");
    std::fs::write(stage.path("key.pem"), key.serialize_pem()).expect("written");
    let url = stage.serve(&["--set", "tls_certificate=chain.pem", "--set", "tls_key=key.pem"]);
    let said = stage.run(&["remote", "create", "anna.db", "--server", &url, "--user", "anna", "--ca", "chain.pem"]);
    assert!(said.code == Some(3) && said.err.contains("basicConstraints=critical,CA:FALSE"), "{said:?}");
    let said = stage.run(&["doctor", "--url", &url, "--ca", "chain.pem"]);
    assert!(said.code == Some(1) && said.out.contains("basicConstraints=critical,CA:FALSE"), "{said:?}");
}

/// The address on the command line takes the place of the file's once a server there has greeted the remote, and not before.
fn another_address(mut stage: Stage) {
    stage.prepare();
    let url = stage.serve(&[]);
    stage.ok(&["remote", "create", "anna.db", "--server", &url, "--user", "anna"]);
    let kept = |stage: &Stage| stage.json(&["remote", "status", "anna.db"])["server"].as_str().map(ToOwned::to_owned);
    let nobody = ["remote", "sync", "anna.db", "--attempts", "1", "--server"];
    let said = stage.run(&[&nobody[..], &["http://127.0.0.1:1"]].concat());
    assert!(said.code == Some(3) && said.err.contains("http://127.0.0.1:1") && said.err.contains(&url), "{said:?}");
    let beside = format!("{url}/elsewhere");
    let said = stage.run(&[&nobody[..], &[&beside]].concat());
    assert_ne!(said.code, Some(0), "nothing is served there: {said:?}");
    let other = url.replace("127.0.0.1", "localhost");
    let mut stranger = stage.command(&[&nobody[..], &[&other]].concat());
    let stranger = stranger.env("HEADWATER_PASSWORD", "guess").output().expect("the program runs");
    assert_eq!(stranger.status.code(), Some(2), "{stranger:?}");
    assert_eq!(kept(&stage), Some(url), "nobody has taken the remote as his own");
    stage.ok(&["remote", "sync", "anna.db"]);

    stage.ok(&["remote", "sync", "anna.db", "--upload-only", "--server", &other]);
    stage.remote("anna.db", "INSERT INTO customer VALUES (10, 'Dan', NULL, 'north')");
    stage.ok(&["remote", "sync", "anna.db", "--upload-only", "--server", &other]);
    assert_eq!(kept(&stage).as_ref(), Some(&other));
    stage.sync("anna.db");
    stage.assert_equal("anna.db");
}

#[test]
fn an_address_is_kept_when_a_server_there_has_answered() {
    another_address(Stage::sqlite());
    another_address(Stage::postgres());
}

/// A server that has no room for uploads says what to do, and so does a remote that waits for it.
#[test]
fn no_room_to_spool_is_said() {
    let mut stage = Stage::sqlite();
    stage.prepare();
    let least = ["upload", "download", "answer", "chunk"].map(|class| format!("pool.{class}_bytes_min=0"));
    let mut options = vec!["--set", "pool.memory_bytes=0", "--set", "pool.overflow_bytes_max=0"];
    options.extend(least.iter().flat_map(|option| ["--set", option.as_str()]));
    let url = stage.serve(&options);
    stage.ok(&["remote", "create", "anna.db", "--server", &url, "--user", "anna"]);
    stage.remote("anna.db", "INSERT INTO customer VALUES (10, 'Dan', NULL, 'north')");
    let said = stage.run(&["remote", "sync", "anna.db", "--attempts", "2", "--give-up-after", "1s"]);
    assert!(said.code == Some(3) && said.err.contains("no room left to spool"), "{said:?}");
    assert!(stage.log().contains("WARN") && stage.log().contains("overflow_bytes_max"));
    stage.stop();
    let url = stage.serve(&[]);
    stage.ok(&["remote", "sync", "anna.db", "--server", &url]);
    stage.assert_equal("anna.db");
}

/// A commit waits for a standby that is away, and the server goes on sending signs of life.
#[test]
fn a_sync_is_given_up_while_the_server_waits() {
    let cluster = headwater_testkit::Postgres::start().expect("PostgreSQL");
    let database = cluster.create_database().expect("a database");
    let mut stage = Stage { deployment: Deployment::new(env!("CARGO_BIN_EXE_headwater")), database, server: None };
    stage.prepare();
    let url = stage.serve(&["--set", "commit_wait_ms=86400000", "--set", "heartbeat_ms=100"]);
    stage.ok(&["remote", "create", "anna.db", "--server", &url, "--user", "anna"]);
    stage.sync("anna.db");
    stage.remote("anna.db", "INSERT INTO customer VALUES (10, 'Dan', NULL, 'north')");
    cluster.lose_standby().expect("a standby that is away");
    let said = stage.run(&["remote", "sync", "anna.db", "--give-up-after", "2s"]);
    assert!(said.code == Some(3) && said.err.contains("the server had not answered"), "{said:?}");
    cluster.find_standby().expect("the standby");
    stage.sync("anna.db");
    stage.assert_equal("anna.db");
}

/// The first remote of some partitions is made without rows, the next ones with those of a ready file, and what has changed since.
fn ready_files(mut stage: Stage) {
    stage.prepare();
    stage.central("INSERT INTO member VALUES ('cid', 'north')");
    stage.add_user("cid");
    let url = stage.serve(&["--set", "ready_bytes_min=0"]);
    let create = |stage: &Stage, file: &str, user: &str| {
        stage.json(&["remote", "create", file, "--server", &url, "--user", user])["ready_file_rows"].clone()
    };
    assert_eq!(create(&stage, "anna.db", "anna"), Value::Null);
    assert_eq!(stage.count("anna.db", "customer"), 0);
    assert_eq!(create(&stage, "bo.db", "bo"), Value::Null, "of other partitions");
    let rows = create(&stage, "cid.db", "cid");
    assert!(rows.as_u64().is_some_and(|rows| rows >= 4), "{rows}");
    assert_eq!((stage.count("cid.db", "customer"), stage.count("cid.db", "invoice")), (2, 2));
    stage.assert_equal("cid.db");
    stage.central("INSERT INTO customer VALUES (20, 'Eve', NULL, 'north')");
    assert_eq!(create(&stage, "more.db", "anna"), rows, "the same file");
    assert_eq!(stage.count("more.db", "customer"), 3, "what has changed since has come too");
    stage.assert_equal("more.db");
    let said = stage.ok(&["remote", "create", "last.db", "--server", &url, "--user", "anna"]);
    assert!(said.contains("rows of a ready file"), "{said}");
    for file in ["anna.db", "cid.db"] {
        stage.sync(file);
        stage.assert_equal(file);
    }
    let log = stage.log();
    assert!(log.contains("a ready file was made") && log.matches("a ready file goes out").count() == 3, "{log}");
}

#[test]
fn new_remotes_begin_with_ready_files() {
    ready_files(Stage::sqlite());
    ready_files(Stage::postgres());
}

/// Rows that wait, that are set aside and that are held: what a comparison counts, and what it leaves out if so asked.
fn compared(mut stage: Stage) {
    stage.prepare();
    let url = stage.serve(&[]);
    stage.ok(&["remote", "create", "anna.db", "--server", &url, "--user", "anna"]);
    stage.sync("anna.db");
    stage.remote("anna.db", "INSERT INTO customer VALUES (11, 'Eve', NULL, 'south')");
    assert_eq!(stage.sync("anna.db")["refused"].as_u64(), Some(1), "outside the user's partitions");
    stage.remote(
        "anna.db",
        "INSERT INTO customer VALUES (13, 'Gil', NULL, 'north'); \
         CREATE TRIGGER app BEFORE INSERT ON customer WHEN NEW.id = 77 BEGIN SELECT RAISE(ABORT, 'not here'); END",
    );
    let differ = |arguments: &[&str], code: i32, words: &[&str]| {
        let said = stage.run(&[&["diff", "anna.db"], arguments].concat());
        assert_eq!(said.code, Some(code), "{said:?}");
        for word in words {
            assert!(said.out.contains(word), "no {word:?} in {}", said.out);
        }
    };
    let marked = ["id=11   (local change set aside)", "id=13   (local change not uploaded yet)"];
    differ(&[], 1, &marked);
    differ(&[], 1, &["2 differences: 2 in rows changed here (not uploaded yet or set aside), 0 in others"]);
    differ(&["--ignore-pending"], 0, &marked);
    differ(
        &["--ignore-pending"],
        0,
        &["but for 2 differences in rows changed here (not uploaded yet or set aside), left out, the remote equals"],
    );

    stage.central("INSERT INTO customer VALUES (77, 'Hal', NULL, 'north')");
    stage.remote("anna.db", "UPDATE customer SET name = 'Gill' WHERE id = 13");
    stage.sync("anna.db");
    assert_eq!(stage.json(&["remote", "status", "anna.db"])["held"].as_u64(), Some(1));
    differ(
        &[],
        1,
        &["missing    id=77\n", "2 differences: 1 in rows changed here (not uploaded yet or set aside), 1 in others"],
    );
    differ(
        &["--ignore-pending"],
        1,
        &["1 difference; left out: 1 in rows changed here (not uploaded yet or set aside)"],
    );
}

#[test]
fn a_comparison_says_what_it_counts_and_what_it_leaves_out() {
    compared(Stage::sqlite());
    compared(Stage::postgres());
}
