//! `headwater query run` holds answers against the limits of their heads.

use super::{Stage, get, postgres};

const MANY: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) SELECT i FROM n";
/// All pairs of many.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) \
                       SELECT count(*) AS n FROM n AS a, n AS b WHERE a.i + b.i = -1";

fn limits_hold(url: &str) {
    let stage = Stage::new(url);
    stage.query("rows.sql", &format!("-- rows_max = 2499\n{MANY}"));
    stage.query("enough.sql", &format!("-- rows_max = 2500\n{MANY}"));
    stage.query("bytes.sql", &format!("-- bytes_max = 1000\n{MANY}"));
    stage.query("slow.sql", &format!("-- time_out_s = 0.1\n{ENDLESS}"));
    stage.query(
        "paged.sql",
        &format!("-- rows_max = 1000\n-- page_rows = 1000\n-- page_by = {{ i = \"int\" }}\n{MANY}"),
    );
    for (query, words) in [
        ("rows", "the answer has more than 2499 rows (rows_max of the query)"),
        ("bytes", "the answer has more than 1000 bytes (bytes_max of the query)"),
        ("slow", "the query took longer than 100ms (time_out_s of the query)"),
    ] {
        for format in ["table", "json", "csv", "ndjson", "arrow"] {
            let done = stage.command(&["query", "run", query, "--format", format]).output().expect("it runs");
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.code() == Some(2) && said.contains(words), "{query} as {format}: {said}");
        }
    }
    for query in ["enough", "paged"] {
        let csv = stage.ok(&["query", "run", query, "--format", "csv"]);
        assert_eq!(csv.lines().count(), 2501, "{query}");
        stage.ok(&["query", "run", query]);
    }
}

#[test]
fn sqlite_limits_hold_without_a_server() {
    limits_hold("sqlite:HERE/central.db");
}

#[test]
fn postgres_limits_hold_without_a_server() {
    limits_hold(&postgres());
}

/// What a page would be refused for is told here too, in every form; and what it may be refused for one day.
fn keys_of_pages_hold(url: &str) {
    let stage = Stage::new(url);
    let query = |name: &str, rows: &str| {
        let head = "-- page_by = { k = \"int\" }\n-- page_rows = 2\n";
        stage.query(
            &format!("{name}.sql"),
            &format!("{head}WITH r(k, v) AS (VALUES {rows}) SELECT v, k FROM r ORDER BY v DESC"),
        );
    };
    query("twice", "(4, 1), (2, 2), (1, 3), (2, 4)");
    query("empty", "(1, 1), (2, 2), (3, 3), (NULL, 4)");
    query("within", "(3, 1), (1, 2), (2, 3), (1, 4)");
    query("whole", "(3, 1), (1, 2), (2, 3), (4, 4), (5, 5)");
    for (query, words) in [
        ("twice", "two rows have the key k = 2, at the end of a page: add a column to page_by that tells them apart"),
        ("empty", "a row has NULL in k, and no page begins behind that"),
    ] {
        for format in ["table", "json", "csv", "ndjson", "arrow"] {
            let done = stage.command(&["query", "run", query, "--format", format]).output().expect("it runs");
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.code() == Some(2) && said.contains(words), "{query} as {format}: {said}");
        }
    }
    let (code, csv, said) = stage.run(&["query", "run", "whole", "--format", "csv"]);
    assert_eq!(
        (code, &*csv, &*said),
        (Some(0), "v,k\r\n2,1\r\n3,2\r\n1,3\r\n4,4\r\n5,5\r\n", ""),
        "in the order of pages"
    );
    let words = "two rows have the key k = 1: where a page ends between them, it is an error";
    for format in [&["--format", "csv"][..], &[], &["--json"]] {
        let (code, out, said) = stage.run(&[&["query", "run", "within"], format].concat());
        assert!(code == Some(0) && said.contains("warning") && said.contains(words), "{out}{said}");
    }
}

#[test]
fn keys_of_pages_hold_without_a_server() {
    keys_of_pages_hold("sqlite:HERE/central.db");
    keys_of_pages_hold(&postgres());
}

#[test]
fn who_asks_is_said_by_an_argument() {
    let stage = Stage::new("sqlite:HERE/central.db");
    stage.query("own.sql", "SELECT :s.user AS asks");
    let (code, _, said) = stage.run(&["query", "run", "own"]);
    assert!(
        code == Some(2) && said.contains("own asks who asks (:s.user): say as whom it is run by --user NAME"),
        "{said}"
    );
    let csv = |user: &str| stage.ok(&["query", "run", "own", "--user", user, "--format", "csv"]);
    assert_eq!((csv("anna").as_str(), csv("").as_str()), ("asks\r\nanna\r\n", "asks\r\n\"\"\r\n"));
}

/// What the database alone can tell is told with the line of the key that says otherwise.
#[test]
fn what_check_finds_wrong_with_a_head_has_its_line() {
    let stage = Stage::new("sqlite:HERE/central.db");
    let title = "-- title = \"a\"\n";
    stage
        .query("paged.sql", &format!("{title}-- [page_by]\n-- id = \"int\"\n-- day = \"date\"\nSELECT id FROM flight"));
    stage.query("typed.sql", &format!("{title}-- [types]\n-- id = \"int\"\n-- day = \"date\"\nSELECT id FROM flight"));
    stage.query("fresh.sql", &format!("{title}-- freshness = \"SELECT nothing FROM flight\"\nSELECT id FROM flight"));
    let (code, said, _) = stage.run(&["query", "check"]);
    assert_eq!(code, Some(1), "{said}");
    for expected in [
        "paged.sql:4: page_by has the column \"day\", which the query does not give",
        "typed.sql:4: types has the column \"day\", which the query does not give",
        "fresh.sql:2: freshness: ",
    ] {
        assert!(said.contains(expected), "{said}");
    }
}

/// A text that PostgreSQL reads as the time is told by its line; that is no fault, and elsewhere it is a text.
#[test]
fn a_text_that_is_the_time_is_a_warning() {
    let url = postgres();
    for (url, is_told) in [(url.as_str(), true), ("sqlite:HERE/central.db", false)] {
        let stage = Stage::new(url);
        stage.query("old.sql", "-- title = \"a\"\nSELECT id FROM flight\nWHERE origin = 'Today' -- not 'now'\n");
        stage.query(
            "fresh.sql",
            "-- title = \"a\"\n-- freshness = \"SELECT max(id) FROM flight WHERE origin < 'now'\"\nSELECT id FROM flight",
        );
        stage.query("text.sql", "SELECT id FROM flight WHERE origin LIKE '%now%' OR origin = 'snow'");
        let said = stage.ok(&["query", "check"]);
        for expected in [
            "old.sql:3: 'Today' is read when the statement is prepared",
            "fresh.sql:2: 'now' is read when",
            "write now() or current_date",
        ] {
            assert_eq!(said.contains(expected), is_told, "{said}");
        }
        assert_eq!(said.matches("warning: ").count(), if is_told { 2 } else { 0 }, "{said}");
        let json: serde_json::Value = serde_json::from_str(&stage.ok(&["query", "check", "--json"])).expect("JSON");
        assert_eq!(json["warnings"].as_array().map(Vec::len), Some(if is_told { 2 } else { 0 }), "{json}");
        assert_eq!(json["faults"], serde_json::json!([]));
    }
}

/// In SQLite any number is less than any text.
#[test]
fn a_decimal_is_compared_with_an_expression_in_sqlite() {
    let mut stage = Stage::new("sqlite:HERE/central.db");
    let head = "-- public = true\n-- [parameters]\n-- d = { type = \"decimal\", default = \"20.00\" }\n";
    stage.query("dear.sql", &format!("{head}SELECT id FROM flight WHERE fare * 2 > :d ORDER BY id"));
    stage.query("same.sql", &format!("{head}SELECT id FROM flight WHERE CAST(fare AS NUMERIC) = :d ORDER BY id"));
    let run = |query: &str, d: &str| {
        stage.ok(&["query", "run", query, &format!("d={d}"), "--format", "csv"]).replace("\r\n", " ")
    };
    for (query, d, expected) in [
        ("dear", "20", "id 1 "),
        ("dear", "19.97", "id 1 3 "),
        ("dear", "-0.1", "id 1 3 "),
        ("dear", "21", "id "),
        ("same", "10.5", "id 1 "),
        ("same", "9.990", "id 3 "),
        ("same", "9", "id "),
        ("same", "123456789012345678901234567890", "id "),
    ] {
        assert_eq!(run(query, d), expected, "{query} {d}");
    }
    let address = stage.serve();
    let (head, _) = get(&address, "/q/dear.csv?d=%2B19.970", "");
    assert!(head.starts_with("http/1.1 308") && head.contains("dear.csv?d=19.97\r\n"), "{head}");
    let (head, body) = get(&address, "/q/dear.csv?d=19.97", "");
    assert_eq!(body, "id\r\n1\r\n3\r\n", "{head}");
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    assert!(get(&address, "/q/dear.csv?d=19.97", &format!("If-None-Match: {tag}\r\n")).0.starts_with("http/1.1 304"));
    assert_eq!(get(&address, "/q/dear.csv", "").1, "id\r\n1\r\n", "its default");
}
