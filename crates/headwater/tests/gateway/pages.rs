//! Pages lose no row in silence: what would is told, by `query check` where it can be known, else by the answer.

use super::{Stage, get, postgres};

const HEAD: &str = "-- public = true\n-- page_rows = 2\n";

fn unfit_keys_are_told_by_file_and_line(url: &str) {
    let stage = Stage::new(url);
    let texts = |page: &str| format!("{HEAD}-- page_by = {page}\nSELECT id, origin, delay FROM flight");
    stage.query("typed.sql", &texts("{ id = \"date\" }"));
    stage.query("second.sql", &texts("{ id = \"int\", origin = \"uuid\" }"));
    stage.query("absent.sql", &texts("{ day = \"date\" }"));
    stage.query("shown.sql", &format!("{HEAD}-- page_by = {{ id = \"json\" }}\nSELECT id FROM flight"));
    stage.query("alone.sql", "-- page_rows = 2\nSELECT id FROM flight");
    stage.query("nobody.sql", "-- users = []\nSELECT id FROM flight");
    let (code, said, _) = stage.run(&["query", "check"]);
    assert_eq!(code, Some(1), "{said}");
    let faults = [
        "typed.sql:3: page_by has \"id\" as date, and the query gives int: expected id = \"int\"",
        "second.sql:3: page_by has \"origin\" as uuid, and the query gives text: expected origin = \"text\"",
        "absent.sql:3: page_by has the column \"day\", which the query does not give",
        "shown.sql:3: page_by id has the type \"json\", expected one of",
        "alone.sql:1: page_rows, and no page_by",
        "nobody.sql:1: users is empty, so that nobody may ask",
    ];
    let (code, _, refused) = stage.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(2), "it does not start: {refused}");
    for fault in faults {
        assert!(said.contains(fault), "no {fault:?} in {said}");
        assert!(refused.contains(fault), "no {fault:?} in {refused}");
    }
}

#[test]
fn unfit_keys_of_pages_are_told_by_file_and_line() {
    unfit_keys_are_told_by_file_and_line("sqlite:HERE/central.db");
    unfit_keys_are_told_by_file_and_line(&postgres());
}

/// All rows, from page to page; or what the page says that is none.
pub(super) fn followed(address: &str, query: &str) -> Result<String, String> {
    let (mut target, mut rows) = (format!("/q/{query}.csv"), String::new());
    while !target.is_empty() {
        let (head, body) = get(address, &target, "");
        if !head.starts_with("http/1.1 200") {
            return Err(format!("{} {body}", &head["http/1.1 ".len().."http/1.1 200".len()]));
        }
        rows += body.split_once("\r\n").expect("names").1;
        let next = head.lines().find_map(|line| line.strip_prefix("link: <")?.strip_suffix(">; rel=\"next\""));
        next.unwrap_or_default().clone_into(&mut target);
    }
    Ok(rows.replace("\r\n", " "))
}

fn lost_rows_are_told(url: &str) {
    let mut stage = Stage::new(url);
    let page = |by: &str, rows: &str| {
        format!("{HEAD}-- page_by = {{ {by} }}\nWITH r(k, v) AS (VALUES {rows}) SELECT k, v FROM r")
    };
    stage.query("whole.sql", &page("k = \"int\"", "(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)"));
    stage.query("twice.sql", &page("k = \"int\"", "(1, 1), (2, 2), (2, 3), (4, 4)"));
    stage.query("both.sql", &page("k = \"int\", v = \"int\"", "(1, 1), (2, 2), (2, 3), (2, 4), (4, 4)"));
    stage.query("within.sql", &page("k = \"int\"", "(1, 1), (1, 2), (2, 3), (3, 4)"));
    stage.query("empty.sql", &page("k = \"int\"", "(1, 1), (2, 2), (NULL, 3)"));
    stage.query("later.sql", &page("k = \"int\", v = \"int\"", "(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (NULL, 6)"));
    stage.query("full.sql", &page("k = \"int\"", "(1, 1), (2, 2), (3, 3), (4, 4), (NULL, 5)"));
    let address = stage.serve();
    assert_eq!(followed(&address, "whole").as_deref(), Ok("1,1 2,2 3,3 4,4 5,5 "));
    assert_eq!(followed(&address, "both").as_deref(), Ok("1,1 2,2 2,3 2,4 4,4 "));
    assert_eq!(followed(&address, "within").as_deref(), Ok("1,1 1,2 2,3 3,4 "), "no page ends between them");
    for (query, words) in [
        ("twice", "two rows have the key k = 2, at the end of a page: add a column to page_by that tells them apart"),
        ("empty", "a row has NULL in k, and no page begins behind that"),
        ("later", "a row has NULL in k, and no page begins behind that"),
        ("full", "a row has NULL in k, and no page begins behind that"),
    ] {
        let said = followed(&address, query).expect_err("a row would be in no page");
        assert!(said.starts_with("500 ") && said.contains(words), "{said}");
        assert!(said.contains(&format!("(page_by of {query}.sql)")), "{said}");
    }
}

#[test]
fn rows_that_would_be_in_no_page_are_told() {
    lost_rows_are_told("sqlite:HERE/central.db");
    lost_rows_are_told(&postgres());
}
