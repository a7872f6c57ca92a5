//! `headwater idxbuild`, as a person or a script meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rusqlite::Connection;
use serde_json::Value;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().expect("a folder"));
        let shop = Connection::open(place.file()).expect("a file");
        shop.execute_batch(
            "CREATE TABLE bill(id INTEGER PRIMARY KEY, customer INTEGER, day TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
               INSERT INTO bill SELECT i, i * 7919 % 1000, date('2026-01-01', (i * 31 % 365) || ' days') FROM n;
             CREATE INDEX bill_customer ON bill(customer, day DESC);
             CREATE INDEX bill_month ON bill(substr(day, 1, 7));",
        )
        .expect("a schema");
        place
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("shop.db")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        run(&self.file(), arguments)
    }
}

fn run(file: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.arg("idxbuild").arg(file).args(arguments).output().expect("the program runs")
}

/// The same under a limit of the shell's.
fn run_limited(limit: &str, file: &Path, arguments: &[&str]) -> Output {
    let script = format!("ulimit {limit}; exec \"$0\" idxbuild \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_headwater")]).arg(file).args(arguments);
    command.output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The stock program opens the file, finds no fault, and writes.
fn check(path: &Path) {
    let sql =
        "PRAGMA integrity_check; INSERT INTO bill(customer, day) VALUES (1, '2027-01-01'); PRAGMA integrity_check;";
    let said = Command::new("sqlite3").arg(path).arg(sql).output().expect("the sqlite3 program");
    assert_eq!((text(&said.stdout).as_str(), text(&said.stderr).as_str()), ("ok\nok\n", ""));
}

#[test]
fn it_says_who_built_what_and_the_stock_program_goes_on() {
    let place = Place::new();
    let said = place.run(&[
        "--create",
        "CREATE INDEX bill_day ON bill(day COLLATE NOCASE)",
        "--index",
        "bill_customer",
        "--index",
        "bill_month",
    ]);
    let out = text(&said.stdout);
    assert!(said.status.success(), "{out}{}", text(&said.stderr));
    let line =
        |index: &str| out.lines().find(|line| line.trim_start().starts_with(index)).unwrap_or_default().to_owned();
    assert!(line("bill_customer").contains("20,000"), "{out}");
    assert!(line("bill_day").contains("20,000"), "{out}");
    assert!(line("bill_month").contains("built by SQLite: it is on an expression"), "{out}");
    assert!(out.contains("verified"), "{out}");
    check(&place.file());
}

#[test]
fn usage_tells_knobs_phases_and_threads() {
    let place = Place::new();
    let folder = place.0.path().join("spill");
    std::fs::create_dir(&folder).expect("a folder");
    let spill = format!("{}:64M", folder.display());
    let knobs = ["--threads", "2", "--groups", "1", "--memory", "1M", "--sort-block", "4K", "--temp-dir", &spill];
    let said = place.run(&[&knobs[..], &["--usage", "--integrity-check"]].concat());
    let out = text(&said.stdout);
    for part in [
        "threads 2, groups 1",
        "memory 1.0 MB",
        "data scan, key build",
        "key insertion",
        "thread  0  ",
        "integrity check finds no fault",
    ] {
        assert!(out.contains(part), "{part} is missing: {out}{}", text(&said.stderr));
    }
    let said = place.run(&["--json"]);
    let told: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(told["indexes"].as_array().map(Vec::len), Some(2), "{told}");
    assert!(told["spans"].as_array().is_some_and(|spans| spans.len() > 3), "{told}");
    let said = place.run(&["--silent"]);
    assert_eq!((text(&said.stdout), text(&said.stderr)), (String::new(), String::new()));
}

#[test]
fn what_can_not_be_is_told_and_changes_nothing() {
    let place = Place::new();
    let before = std::fs::read(place.file()).expect("the file");
    let refused = |arguments: &[&str], code: i32, part: &str| {
        let said = place.run(arguments);
        assert_eq!(said.status.code(), Some(code), "{arguments:?}: {}", text(&said.stderr));
        assert!(text(&said.stderr).contains(part), "{arguments:?}: {}", text(&said.stderr));
    };
    refused(&["--index", "bill_dya"], 2, "there are: bill_customer, bill_month");
    refused(&["--create", "CREATE UNIQUE INDEX u ON bill(customer)"], 2, "(0) in 20 rows (rowids 1000, ..., 20000)");
    refused(&["--create", "CREATE INDEX u ON bil(customer)"], 2, "no such table");
    refused(&["--create", "DROP TABLE bill"], 2, "creates no index");
    refused(&["--memory", "1K"], 2, "--memory");
    refused(
        &["--create", "CREATE UNIQUE INDEX u ON bill(customer) WHERE id > 0"],
        2,
        "(0) in 20 rows (rowids 1000, ..., 20000)",
    );
    let escape = Connection::open(place.0.path().join("escape.db")).expect("a file");
    escape
        .execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (char(27) || '[2J'), (char(27) || '[2J')")
        .expect("rows");
    drop(escape);
    let said = run(&place.0.path().join("escape.db"), &["--create", "CREATE UNIQUE INDEX u ON t(a)"]);
    assert!(text(&said.stderr).contains("('\u{fffd}[2J') in 2 rows (rowids 1, 2)"), "{}", text(&said.stderr));
    refused(&["--temp-dir", "/none/such"], 2, "is no directory");
    let other = Connection::open(place.file()).expect("the file");
    other.execute_batch("BEGIN; SELECT count(*) FROM bill").expect("a reader");
    refused(&[], 3, "is in use");
    drop(other);
    assert!(before == std::fs::read(place.file()).expect("the file"), "the file has changed");
}

#[test]
fn a_file_that_is_damaged_empty_or_no_database_has_its_exit_code_and_stays_as_it_is() {
    let place = Place::new();
    let sound = std::fs::read(place.file()).expect("the file");
    // No page is of this kind.
    let mut damaged = sound.clone();
    damaged[4096] = 0x77;
    let torn = sound[..sound.len() / 2].to_vec();
    let other = "a text, not a database. ".repeat(400).into_bytes();
    for (bytes, code, part) in [
        (damaged, 4, "the database is damaged"),
        (torn, 4, "the database is damaged"),
        (other, 2, "can't be opened: name a SQLite database"),
        (Vec::new(), 2, "shop.db is empty: it has no tables, and so no indexes"),
    ] {
        std::fs::write(place.file(), &bytes).expect("written");
        let said = place.run(&[]);
        let err = text(&said.stderr);
        assert!(
            said.status.code() == Some(code) && err.contains(part),
            "no {part:?}, {code} in {:?} {err}",
            said.status
        );
        assert!(bytes == std::fs::read(place.file()).expect("the file"), "{part}: the file has changed");
    }
}

#[test]
fn few_open_files_are_enough_for_many_runs() {
    let place = Place::new();
    let knobs = ["--memory", "1M", "--sort-block", "1K", "--merge-block", "1K", "--merge-width", "2", "--threads", "4"];
    let knobs = [&knobs[..], &["--groups-at-once", "2", "--merge-threads", "2", "--index", "bill_customer"]].concat();
    let more = "CREATE INDEX bill_long ON bill(day, customer, id); CREATE TABLE keys AS SELECT hex(zeroblob(60)) || id AS k FROM bill; \
                CREATE INDEX keys_k ON keys(k)";
    Connection::open(place.file()).expect("the file").execute_batch(more).expect("an index");
    let said =
        run_limited("-n 64", &place.file(), &[&knobs[..], &["--index", "bill_long", "--index", "keys_k"]].concat());
    assert!(said.status.success(), "{}", text(&said.stderr));
    check(&place.file());
    // There is room for the file itself and two others.
    let said = run_limited("-n 6", &place.file(), &[&knobs[..], &["--index", "keys_k"]].concat());
    let err = text(&said.stderr);
    assert!(said.status.code() == Some(3) && err.contains("allow more open files (`ulimit -n`)"), "{said:?}");
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_the_file_is_as_it_was() {
    let place = Place::new();
    for journal in ["DELETE", "WAL"] {
        let open = Connection::open(place.file()).expect("the file");
        open.pragma_update(None, "journal_mode", journal).expect("a journal");
        drop(open);
        let before = std::fs::read(place.file()).expect("the file");
        // The file, and hardly more.
        let room = format!("-f {}", before.len() / 1024 + if journal == "WAL" { 0 } else { 8 });
        let more = [
            "--create",
            "CREATE INDEX bill_day ON bill(day, customer, id)",
            "--create",
            "CREATE INDEX bill_2 ON bill(day)",
        ];
        let more = [&more[..], &["--index", "bill_customer", "--index", "bill_month"]].concat();
        // Temporary files are smaller than that; SQLite's own are not asked for.
        let few =
            [&more[..6], &["--memory", "1M", "--sort-block", "4K", "--merge-block", "64K", "--merge-width", "64"]]
                .concat();
        for (limit, arguments, part) in
            [(room.as_str(), &more, "(`ulimit -f`), a quota"), ("-f 16", &few, "allow larger files (`ulimit -f`)")]
        {
            let said = run_limited(limit, &place.file(), arguments);
            let err = text(&said.stderr);
            assert!(said.status.code() == Some(3) && err.contains(part), "{journal} {limit}: {:?} {err}", said.status);
            assert!(
                before == std::fs::read(place.file()).expect("the file"),
                "{journal} {limit}: the file has changed"
            );
            let beside: Vec<_> = std::fs::read_dir(place.0.path())
                .expect("the folder")
                .map(|entry| entry.expect("an entry").file_name())
                .collect();
            assert_eq!(beside, ["shop.db"], "{journal} {limit}");
        }
        let said = place.run(&more[4..]);
        assert!(said.status.success(), "{}", text(&said.stderr));
    }
    check(&place.file());
}

/// More than SQLite's cache holds has been written by then, so its journal is hot.
#[test]
fn what_was_written_before_an_error_of_the_disk_is_rolled_back_at_once() {
    let place = Place::new();
    Connection::open(place.file())
        .expect("the file")
        .execute_batch(
            "PRAGMA synchronous = OFF; CREATE TABLE wide AS SELECT hex(zeroblob(600)) || id AS k FROM bill; CREATE INDEX wide_k ON wide(k)",
        )
        .expect("rows");
    let before = std::fs::read(place.file()).expect("the file");
    let more: Vec<String> = (0..5).map(|number| format!("CREATE INDEX wide_{number} ON wide(k)")).collect();
    let arguments: Vec<&str> = more.iter().flat_map(|sql| ["--create", sql.as_str()]).collect();
    let said = run_limited(&format!("-f {}", before.len() / 1024 + 1024), &place.file(), &arguments);
    assert_eq!(said.status.code(), Some(3), "{}", text(&said.stderr));
    assert!(before == std::fs::read(place.file()).expect("the file"), "the file has changed");
    assert!(!place.file().with_file_name("shop.db-journal").exists(), "a journal is left");
    check(&place.file());
}
