//! The built program, as a person or a script meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rusqlite::Connection;
use serde_json::Value;

/// A folder with a consolidated database in SQLite, and the program run in it.
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
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a folder") };
        place.sql(
            "central.db",
            "CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
             CREATE TABLE bill (id TEXT PRIMARY KEY NOT NULL, customer INTEGER NOT NULL REFERENCES customer (id) ON DELETE CASCADE,
               amount DECIMAL_TEXT(12,2));
             CREATE TABLE scratch (note TEXT);
             INSERT INTO customer VALUES (1, 'Anna', 'Bergen'), (2, 'Bo', NULL);",
        );
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn sql(&self, file: &str, sql: &str) {
        Connection::open(self.path(file)).expect("a SQLite file").execute_batch(sql).expect(sql);
    }

    fn run(&self, arguments: &[&str]) -> Said {
        self.run_with(arguments, &[], "")
    }

    fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)], input: &str) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HEADWATER_")) {
            command.env_remove(name);
        }
        command.current_dir(self.folder.path()).args(arguments).envs(variables.iter().copied());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.expect("the program starts");
        // A program that does not read its input has closed it by now, perhaps.
        let _ = std::io::Write::write_all(&mut child.stdin.take().expect("piped"), input.as_bytes());
        let done = child.wait_with_output().expect("the program ends");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Said { code: done.status.code().expect("not killed"), out: text(done.stdout), err: text(done.stderr) }
    }

    fn init(&self) -> Said {
        self.run(&["init", "--database", "sqlite:central.db", "--name", "shop"])
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let said = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }
}

#[test]
fn init_writes_a_configuration_and_a_model_that_work() {
    let place = Place::new();
    let said = place.init();
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("scratch") && said.out.contains("no primary key"), "{said:?}");
    let model = std::fs::read_to_string(place.path("models/shop-1.toml")).expect("written");
    let read = headwater_model::parse::parse("shop", &model).expect("valid");
    assert_eq!(read.tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["customer", "bill"]);
    assert_eq!(read.tables[1].references.len(), 1);
    let config = std::fs::read_to_string(place.path("headwater.toml")).expect("written");
    assert!(config.contains("url = \"sqlite:central.db\""), "{config}");
    let again = place.init();
    assert_eq!(again.code, 2);
    assert!(again.err.contains("--force"), "{again:?}");
}

/// What looks as if it were no remote's business stands in the model as comments; what can't travel keeps nothing else from it.
#[test]
fn init_leaves_secrets_and_what_cannot_travel_out_of_the_model() {
    let place = Place::new();
    let wide: Vec<String> = (0..1200).map(|number| format!("c{number} TEXT")).collect();
    let sql = format!(
        "CREATE TABLE users (id INTEGER NOT NULL PRIMARY KEY, name TEXT, pass_crypt TEXT NOT NULL, \"resetToken\" TEXT UNIQUE, token_count INTEGER);
         CREATE TABLE oauth_nonces (id INTEGER NOT NULL PRIMARY KEY, user_id INTEGER REFERENCES users (id), nonce TEXT);
         CREATE TABLE flyway_schema_history (installed_rank INTEGER NOT NULL PRIMARY KEY, script TEXT);
         CREATE TABLE invitation (token TEXT NOT NULL PRIMARY KEY, user_id INTEGER REFERENCES users (id));
         CREATE TABLE post (id INTEGER NOT NULL PRIMARY KEY, invitation TEXT REFERENCES invitation (token), text TEXT);
         CREATE TABLE \"two\nlines\" (id INTEGER NOT NULL PRIMARY KEY);
         CREATE TABLE lines (id INTEGER NOT NULL PRIMARY KEY, \"a\nb\" TEXT, hw_mine TEXT);
         CREATE TABLE wide (id INTEGER NOT NULL PRIMARY KEY, {});",
        wide.join(", ")
    );
    place.sql("central.db", &sql);
    let said = place.init();
    assert_eq!(said.code, 0, "{said:?}");
    let told = [
        "users: column `pass_crypt` looks like a secret",
        "users: column `resetToken` looks like a secret",
        "oauth_nonces: the table looks as if it held secrets",
        "flyway_schema_history: the table is the bookkeeping",
        "invitation: the table has a key that looks like a secret",
        "lines: its name",
        "wide: it has 1201 columns",
    ];
    for told in told {
        assert!(said.out.contains(told), "{told}: {said:?}");
    }
    let text = std::fs::read_to_string(place.path("models/shop-1.toml")).expect("written");
    let model = headwater_model::parse::parse("shop", &text).expect("valid");
    let names: Vec<&str> = model.tables.iter().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["customer", "bill", "post", "users"], "{text}");
    let users = model.table("users").expect("users");
    let columns: Vec<&str> = users.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!((columns, users.unique.len()), (vec!["id", "name", "token_count"], 0));
    assert!(model.table("post").is_some_and(|post| post.references.is_empty()));
    // Whoever takes the # away has the table and the column.
    let taken: String = text.lines().fold(String::new(), |all, line| {
        let line = match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with("pass_crypt = ") => rest,
            _ => line,
        };
        all + line + "\n"
    });
    let start = taken.find("# [tables.oauth_nonces]").expect("a comment");
    let (before, after) = taken.split_at(start);
    let (block, rest) = after.split_once("\n\n").expect("an end");
    let block: String =
        block.lines().map(|line| line.trim_start_matches("# ").trim_start_matches('#').to_owned() + "\n").collect();
    let model = headwater_model::parse::parse("shop", &format!("{before}{block}\n{rest}")).expect("valid");
    assert!(model.table("users").is_some_and(|users| users.column("pass_crypt").is_some()));
    assert!(model.table("oauth_nonces").is_some_and(|nonces| nonces.references.len() == 1));
    place.run(&["track"]);
    let checked = place.run(&["check"]);
    assert!(checked.out.contains("pass_crypt"), "check says what a remote can't fill: {checked:?}");
}

#[test]
fn every_option_in_the_written_configuration_is_an_option() {
    let place = Place::new();
    place.init();
    let config = std::fs::read_to_string(place.path("headwater.toml")).expect("written");
    let options: String = config
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| {
            line.split_once(" = ").is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        })
        .filter(|line| !line.starts_with("tls_"))
        .fold(String::new(), |all, line| all + line + "\n");
    assert!(options.contains("backlog"), "{options}");
    std::fs::write(place.path("headwater.toml"), config + &options).expect("written");
    let early = place.run(&["user", "list"]);
    assert!(early.code == 2 && early.err.contains("headwater track"), "the configuration is sound: {early:?}");
    assert_eq!(place.run(&["user", "add", "anna", "--password-stdin"]).code, 2, "an empty password");
    assert_eq!(place.run_with(&["user", "add", "anna", "--password-stdin"], &[], "secret\n").code, 0);
}

#[test]
fn users_are_added_listed_and_disabled_and_get_tokens() {
    let place = Place::new();
    place.init();
    let add = |name: &str| place.run_with(&["user", "add", name, "--password-stdin"], &[], "hunter42\n");
    assert_eq!(add("anna").code, 0);
    assert!(add("anna").err.contains("already"));
    assert!(add("a:b").err.contains("colon"));
    let token = place.run(&["token", "anna", "--for", "1h"]);
    assert_eq!((token.code, token.out.matches('.').count()), (0, 2), "{token:?}");
    assert_eq!(place.run(&["token", "bo"]).code, 2);
    assert_eq!(place.run(&["token", "anna", "--for", "1y"]).code, 2);
    assert_eq!(place.run(&["user", "disable", "anna"]).code, 0);
    assert!(place.run(&["token", "anna"]).err.contains("disabled"));
    let users = place.json(&["user", "list"]);
    assert_eq!((users[0]["user"].as_str(), users[0]["disabled"].as_bool()), (Some("anna"), Some(true)));
    assert!(!users.to_string().contains("argon2"), "hashes stay in the database");
    assert_eq!(place.run(&["user", "enable", "anna"]).code, 0);
    assert_eq!(place.run(&["user", "enable", "bo"]).code, 2);
    assert!(place.run(&["user", "list"]).out.contains("enabled"));
}

#[test]
fn passwords_and_tokens_come_from_the_environment() {
    let place = Place::new();
    place.init();
    let user = |what: &str, password: &str| {
        place.run_with(&["user", what, "anna"], &[("HEADWATER_PASSWORD", password)], "").code
    };
    assert_eq!((user("add", ""), user("add", "hunter42"), user("password", "another42")), (2, 0, 0));
    let without = place.run(&["user", "add", "bo"]);
    assert!(without.code == 2 && without.err.contains("HEADWATER_PASSWORD"), "{without:?}");
    let create = ["remote", "create", "anna.db", "--server", "http://127.0.0.1:1", "--user", "anna"];
    for (token, odd) in [("ab\ncd", r"'\n'"), ("ab cd", "' '"), ("ab\u{e9}", "'\u{e9}'")] {
        let said = place.run_with(&create, &[("HEADWATER_TOKEN", token)], "");
        assert!(said.code == 2 && said.err.contains(&format!("the token has {odd} in it")), "{said:?}");
    }
}

/// What the central file keeps of an account's password is another text after `user password`, and gone after `user remove`.
#[test]
fn a_password_is_changed_and_a_user_removed() {
    let place = Place::new();
    place.init();
    let with =
        |what: &str, name: &str, line: &str| place.run_with(&["user", what, name, "--password-stdin"], &[], line).code;
    assert_eq!(with("add", "anna", "hunter42\n"), 0);
    let hash = || {
        let central = rusqlite::Connection::open(place.path("central.db")).expect("the central file");
        let sql = "SELECT password_hash FROM headwater_account WHERE user_name = 'anna'";
        central.query_row(sql, [], |row| row.get::<_, String>(0)).expect("anna")
    };
    let before = hash();
    assert_eq!(with("password", "anna", "another42\n"), 0);
    assert_ne!(hash(), before);
    assert_eq!(with("password", "anna", "\n"), 2, "an empty one");
    assert_eq!(with("password", "bo", "another42\n"), 2);
    assert_eq!(place.run(&["user", "remove", "anna"]).code, 0);
    assert!(place.run(&["user", "remove", "anna"]).err.contains("no user"));
    assert!(place.run(&["token", "anna"]).err.contains("anna"));
}

#[test]
fn faults_end_with_the_code_that_tells_whose_they_are() {
    let place = Place::new();
    let absent = place.run(&["check"]);
    assert_eq!(absent.code, 2);
    assert!(absent.err.contains("headwater init") && absent.err.contains("because: "), "{absent:?}");
    place.init();
    let unreachable = place.run(&["user", "list", "--database", "postgres://me@127.0.0.1:1/shop"]);
    assert_eq!(unreachable.code, 3, "{unreachable:?}");
    let secret = place.run(&["user", "list", "--database", "postgres://me:hunter42@127.0.0.1:1/shop"]);
    assert!(!secret.err.contains("hunter42"), "{secret:?}");
    let model = std::fs::read_to_string(place.path("models/shop-1.toml")).expect("written");
    std::fs::write(place.path("models/shop-1.toml"), model.replace("conflict =", "conflic =")).expect("written");
    let faulty = place.run(&["check"]);
    assert_eq!(faulty.code, 2);
    assert!(faulty.err.contains("2 faults") && faulty.err.contains("did you mean \"conflict\"?"), "{faulty:?}");
    let error: Value = serde_json::from_str(&place.run(&["check", "--json"]).err).expect("errors as JSON");
    assert_eq!(error["exit"].as_u64(), Some(2));
    assert_eq!(place.run(&["chekc"]).code, 2);
    assert_eq!(place.run(&["diff", "absent.db"]).code, 2);
}

#[test]
fn mistakes_of_files_and_names_say_what_is_wrong() {
    let place = Place::new();
    place.init();
    std::fs::write(place.path("text.db"), "This is no database, though it is longer than the head of one. ".repeat(9))
        .expect("written");
    std::fs::create_dir(place.path("folder")).expect("made");
    let create = |file: &str| {
        place.run(&[
            "remote",
            "create",
            file,
            "--server",
            "http://127.0.0.1:1",
            "--user",
            "anna",
            "--model",
            "models/shop-1.toml",
        ])
    };
    for (said, what) in [
        (create("nofolder/n.db"), "there is no folder nofolder"),
        (create("folder"), "folder is a folder"),
        (create("text.db"), "text.db is not a SQLite file"),
        (place.run(&["remote", "status", "text.db"]), "text.db is not a SQLite file"),
        (place.run(&["remote", "sync", "text.db"]), "text.db"),
    ] {
        assert!(said.code == 2 && said.err.contains(what), "{what}: {said:?}");
    }
    // What is no remote stays as it is, to the byte: an empty file, and an application's own.
    std::fs::write(place.path("empty.db"), "").expect("written");
    let own = rusqlite::Connection::open(place.path("own.db")).expect("a file");
    own.execute_batch("CREATE TABLE note (id INTEGER PRIMARY KEY)").expect("a table");
    drop(own);
    for file in ["empty.db", "own.db"] {
        let before = std::fs::read(place.path(file)).expect("read");
        for command in [&["remote", "status", file][..], &["remote", "upgrade", file], &["remote", "log", file]]
            .into_iter()
            .chain([&["remote", "reset", file][..], &["remote", "retry", file, "--all"], &["remote", "sync", file]])
            .chain([&["diff", file][..], &["remote", "drop", file, "--all"], &["doctor", "--remote", file]])
            .chain([&["remote", "compare", file][..]])
        {
            let said = place.run(command);
            let is_said = said.err.contains(&format!("{file} is no remote")) || said.out.contains("is no remote");
            assert!(said.code == if command[0] == "doctor" { 1 } else { 2 } && is_said, "{command:?}: {said:?}");
            assert!(std::fs::read(place.path(file)).expect("read") == before, "{command:?} changed {file}");
        }
        assert!(!place.path(&format!("{file}-wal")).exists(), "{file}");
    }
    let help = place.run(&["remote", "sync", "--help"]);
    assert!(help.out.contains("[default: 8]"), "{help:?}");
    for command in ["status", "upgrade", "log", "reset", "compare", "sync"] {
        let said = place.run(&["remote", command, "absent.db"]);
        assert!(said.code == 2 && said.err.contains("there is no file absent.db; `headwater"), "{command}: {said:?}");
    }
    assert!(!place.path("absent.db").exists());
    let text = [("HEADWATER_DATABASE", "sqlite:text.db")];
    for command in [&["check"][..], &["track"], &["user", "list"], &["serve"]] {
        let said = place.run_with(command, &text, "");
        assert!(
            said.code == 2 && said.err.contains("text.db is no SQLite file: give the path"),
            "{command:?}: {said:?}"
        );
    }
    assert_eq!(place.run(&["track"]).code, 0);
    assert_eq!(place.run(&["conflicts", "--table", "bill"]).code, 0);
    let unknown = place.run(&["conflicts", "--table", "bills"]);
    assert!(unknown.code == 2 && unknown.err.contains("bill, customer"), "{unknown:?}");
    assert_eq!(create("anna.db").code, 0);
    let unknown = place.run(&["remote", "retry", "anna.db", "--table", "bills"]);
    assert!(unknown.code == 2 && unknown.err.contains("customer"), "{unknown:?}");

    for value in ["nonsense=[", "wran", "headwater_server=loud", "info,wran"] {
        let said = place.run_with(&["remote", "status", "anna.db"], &[("HEADWATER_LOG", value)], "");
        let names = ["HEADWATER_LOG", value, "headwater_server=debug"];
        assert!(said.code == 2 && names.iter().all(|name| said.err.contains(name)), "{value}: {said:?}");
    }
    for value in ["", "off", "WARN", "headwater_server=debug,info", "[sync{user=anna}]=debug", "3"] {
        let said = place.run_with(&["remote", "status", "anna.db"], &[("HEADWATER_LOG", value)], "");
        assert_eq!(said.code, 0, "{value}: {said:?}");
    }

    for (value, code) in [("1", 0), ("yes", 0), ("on", 0), ("0", 0), ("no", 0), ("off", 0), ("true", 0), ("maybe", 2)] {
        assert_eq!(
            place.run_with(&["remote", "status", "anna.db"], &[("HEADWATER_LOG_JSON", value)], "").code,
            code,
            "{value}"
        );
    }
}

#[test]
fn completions_name_the_commands() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let said = place.run(&["completions", shell]);
        assert!(said.code == 0 && said.out.contains("conflicts"), "{shell}");
    }
}

#[test]
fn diff_finds_what_is_planted() {
    let place = Place::new();
    place.init();
    // The table without a key would be in the way of nothing, and the rest is made as a remote is, by hand.
    let model = model(&place.path("models/shop-1.toml"));
    place.sql("remote.db", headwater_model::remote_sql::system_tables());
    place.sql("remote.db", &headwater_model::remote_sql::create_tables(&model));
    place.sql("remote.db", "INSERT INTO customer VALUES (1, 'Anna', 'Bergen'), (2, 'Bo', NULL)");
    let state =
        "INSERT INTO hw_state (one, format, remote_id, secret, server, user, model, fingerprint, incarnation, note,
                 download_applied) VALUES (1, 1, zeroblob(16), '', '', 'anna', ?1, ?2, '', '', '')";
    Connection::open(place.path("remote.db"))
        .expect("a file")
        .execute(state, (model.to_json(), model.fingerprint() as i64))
        .expect("the state");

    let equal = place.run(&["diff", "remote.db"]);
    assert!(equal.code == 0 && equal.out.contains("equals"), "{equal:?}");
    place.sql("remote.db", "UPDATE customer SET name = 'Anne' WHERE id = 1");
    let different = place.run(&["diff", "remote.db"]);
    assert_eq!(different.code, 1);
    assert!(different.out.contains("name: \"Anne\" here, \"Anna\" there"), "{different:?}");
    let report = place.json(&["diff", "remote.db"]);
    assert_eq!(report["tables"][0]["differences"][0]["columns"][0]["remote"], "Anne");
    assert_eq!(place.run(&["diff", "remote.db", "--table", "bill"]).code, 0);
    assert_eq!(place.run(&["diff", "remote.db", "--table", "bil"]).code, 2);
    let text = std::fs::read_to_string(place.path("models/shop-1.toml")).expect("written");
    std::fs::write(place.path("models/shop-1.toml"), text.replace("version = 1", "version = 2")).expect("written");
    assert!(place.run(&["diff", "remote.db"]).err.contains("version 1"), "another model");
}

fn model(file: &Path) -> headwater_model::Model {
    headwater_model::parse::parse("shop", &std::fs::read_to_string(file).expect("written")).expect("valid")
}
