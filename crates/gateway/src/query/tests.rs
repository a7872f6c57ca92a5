//! Files that are right, files that are wrong, and what requests make of them.

use headwater_consolidated::{postgres, sqlite};
use headwater_protocol::Value;

use super::*;

const FLIGHTS: &str = r#"-- title = "Flights from an airport"
-- public = true
-- max_age_s = 300
-- [parameters]
-- origin = { type = "text", length_max = 3 }
-- month = { type = "int", min = 1, max = 12, default = 1 }
-- kind = { type = "text", values = ["all", "late"], default = "all" }
-- since = { type = "date", default = "2013-01-01" }
-- [types]
-- delay = "decimal"
SELECT flight, ':not' AS delay FROM flights -- :nor.this
WHERE origin = :origin AND month = :month AND (:kind = 'all' OR late) AND day >= :since AND o = :origin;
"#;

fn flights() -> Query {
    Query::parse("queries/flights.sql", FLIGHTS).expect("a query")
}

fn arguments(pairs: &[(&str, &str)]) -> Result<Arguments, ArgumentError> {
    flights().arguments(pairs.iter().copied())
}

#[test]
fn a_file_as_it_should_be() {
    let query = flights();
    assert_eq!(
        (query.name.as_str(), query.title.as_str(), &query.who),
        ("flights", "Flights from an airport", &Who::Public)
    );
    assert_eq!(query.freshness, Freshness { max_age_s: 300, ..Freshness::default() });
    assert_eq!(query.limits, QueryLimits::default());
    let names: Vec<&str> = query.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["origin", "month", "kind", "since"], "in the file's order");
    assert_eq!(query.types["delay"], Type::Decimal);
    assert!(query.sql.starts_with("SELECT") && query.sql.ends_with(":origin") && !query.is_personal());
    let (sql, values) = query.statement(&arguments(&[("origin", "JFK")]).expect("arguments"), "", sqlite::placeholder);
    assert!(sql.contains("':not' AS delay FROM flights -- :nor.this\nWHERE origin = ?1 AND month = ?2"), "{sql}");
    assert!(sql.ends_with("AND day >= ?4 AND o = ?1"), "{sql}");
    assert_eq!(values[..3], [Value::text("JFK"), Value::Int(1), Value::text("all")]);
    let (sql, _) = query.statement(&arguments(&[("origin", "JFK")]).expect("arguments"), "", postgres::placeholder);
    assert!(sql.contains("month = CAST(?2 AS bigint)") && sql.ends_with("o = CAST(?1 AS text)"), "{sql}");
    let own = Query::parse("own.sql", "SELECT * FROM t WHERE owner = :s.user").expect("without a head");
    assert!(own.is_personal() && own.who == Who::Known);
    let none = own.arguments([]).expect("none");
    assert_eq!(
        own.statement(&none, "ann", sqlite::placeholder),
        ("SELECT * FROM t WHERE owner = ?1".to_owned(), vec![Value::text("ann")])
    );
}

#[test]
fn like_values_have_one_form() {
    let canonical = |pairs: &[(&str, &str)]| arguments(pairs).expect("arguments").canonical().to_owned();
    let expected = "origin=JFK&month=7";
    for pairs in [
        &[("origin", "JFK"), ("month", "7")][..],
        &[("month", "07"), ("origin", "JFK")],
        &[("month", "+7"), ("kind", "all"), ("origin", "JFK"), ("since", "2013-01-01 00:00:00")],
    ] {
        assert_eq!(canonical(pairs), expected, "{pairs:?}");
    }
    assert_eq!(canonical(&[("origin", "ä b"), ("since", "2013-02-01")]), "origin=%C3%A4%20b&since=2013-02-01");
    let (_, values) =
        flights().statement(&arguments(&[("origin", "ä b")]).expect("arguments"), "", sqlite::placeholder);
    assert_eq!(values[0], Value::text("ä b"));
}

#[test]
fn arguments_that_are_none() {
    for (pairs, expected) in [
        (&[][..], "parameter origin is missing, expected a value of type text"),
        (&[("origin", "JFK"), ("origin", "JFK")], "parameter origin is given more than once"),
        (&[("orgin", "JFK")], "there is no parameter orgin; did you mean origin?"),
        (&[("x", "1")], "there is no parameter x, expected one of origin, month, kind, since"),
        (&[("origin", "LONG")], "parameter origin has 4 characters, expected at most 3"),
        (&[("month", "13")], "parameter month is 13, expected at most 12"),
        (&[("month", "0")], "parameter month is 0, expected at least 1"),
        (&[("month", "1 OR 1=1")], "parameter month is \"1 OR 1=1\", expected a value of type int"),
        (&[("month", "9223372036854775808")], "expected a value of type int"),
        (&[("kind", "some")], "parameter kind is some, expected one of all, late"),
        (&[("since", "2013-02-30")], "expected a value of type date"),
        (&[("origin", "a\0")], "(NUL)"),
    ] {
        let said = arguments(pairs).expect_err("refused").to_string();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn decimals_and_json_are_judged_exactly() {
    let text = "-- [parameters]\n-- d = { type = \"decimal\", min = \"-1.5\", max = \"2\" }\n-- j = { type = \"json\", default = \"{}\" }\nSELECT :d, :j";
    let query = Query::parse("d.sql", text).expect("a query");
    for (value, is_taken) in [
        ("2", true),
        ("2.000", true),
        ("2.0000000000000000000000000001", false),
        ("1.9999999999999999999999999999", true),
        ("-1.5", true),
        ("-1.50000000000000000001", false),
        ("-0", true),
        ("10", false),
    ] {
        assert_eq!(query.arguments([("d", value)]).is_ok(), is_taken, "{value}");
    }
    for (value, is_taken) in [("[1]", true), ("{", false), (r#""\u0000""#, false)] {
        assert_eq!(query.arguments([("d", "0"), ("j", value)]).is_ok(), is_taken, "{value}");
    }
}

/// However its numbers are spelled, one question has one URL, and that URL is taken.
#[test]
fn numbers_that_are_equal_have_one_url() {
    let text = "-- page_by = { r = \"real\" }\n-- [parameters]\n-- r = { type = \"real\", min = 0, default = 1.0 }\n\
                -- d = { type = \"decimal\", values = [\"2.50\", \"3\"], default = \"2.50\" }\nSELECT :r AS r, :d AS d";
    let query = Query::parse("d.sql", text).expect("a query");
    let canonical = |pairs: &[(&str, &str)]| {
        let arguments = query.arguments(pairs.iter().copied());
        arguments.map(|arguments| arguments.canonical().to_owned()).map_err(|error| error.to_string())
    };
    for (pairs, expected) in [
        (&[("r", "1e300")][..], "r=1e300"),
        (&[("r", &format!("1{}", "0".repeat(300)))], "r=1e300"),
        (&[("r", "INF"), ("after.r", "infinity")], "r=Infinity&after.r=Infinity"),
        (&[("r", "-0"), ("d", "2.5")], "r=0"),
        (&[("r", "1e0"), ("d", "+03.0")], "d=3"),
        (&[("r", "0.50"), ("after.r", "-0")], "r=0.5&after.r=0"),
        (&[("r", ".5"), ("d", "3."), ("after.r", "5.")], "r=0.5&d=3&after.r=5"),
        (&[("r", "5."), ("d", "25.e-1")], "r=5"),
    ] {
        assert_eq!(canonical(pairs).as_deref(), Ok(expected));
    }
    for beyond in ["1e400", "-1e400", "1e-400"] {
        let said = canonical(&[("r", beyond)]).expect_err("no double");
        assert_eq!(
            said,
            format!(
                "parameter r is \"{beyond}\", expected a value of type real (2.5, 1e300, Infinity, -Infinity or NaN)"
            )
        );
    }
    let first = query.arguments([]).expect("defaults");
    for key in [-0.0, 1e300, f64::INFINITY, f64::NAN] {
        let next = query.after(&first, vec![Value::Real(key)]).canonical().to_owned();
        let (name, value) = next.split_once('=').expect("an argument");
        assert_eq!(canonical(&[(name, value)]), Ok(next.clone()), "the link to the next page is its URL");
    }
}

/// A head that is not at the very top is a head all the same: what it forbids is not to be overlooked.
#[test]
fn blank_lines_and_marks_hide_no_head() {
    for text in [
        "\u{feff}-- users = [\"ann\"]\nSELECT 1 AS a",
        "\n\n  -- users = [\"ann\"]\nSELECT 1 AS a",
        "-- title = \"t\"\n\n-- users = [\"ann\"]\n\nSELECT 1 AS a",
    ] {
        let query = Query::parse("q.sql", text).expect("a query");
        assert_eq!(query.who, Who::Users(vec!["ann".to_owned()]), "{text:?}");
        assert_eq!((query.sql.as_str(), query.line), ("SELECT 1 AS a", text.lines().count()), "{text:?}");
    }
}

#[test]
fn a_number_that_is_too_large_is_told_with_the_largest() {
    for number in ["9223372036854775807", "4294967296"] {
        let said = Query::parse("q.sql", &format!("-- max_age_s = {number}\nSELECT 1")).expect_err("too large");
        let expected = format!("q.sql:1: invalid value: integer `{number}`, expected a whole number, 0 to 4294967295");
        assert_eq!(said[0].to_string(), expected);
    }
}

#[test]
fn faults_of_a_file_have_their_lines() {
    let faults = |name: &str, text: &str| -> Vec<String> {
        let errors = Query::parse(name, text).expect_err("faults");
        errors.iter().map(ToString::to_string).collect()
    };
    for (text, expected) in [
        ("-- max_age = 3\nSELECT 1", "q.sql:1: unknown field `max_age`"),
        ("-- title = \"a\"\n-- public = yes\nSELECT 1", "q.sql:2: "),
        ("-- public = true\n-- users = [\"a\"]\nSELECT 1", "q.sql:2: public = true, and users"),
        ("-- public = true\nSELECT :s.user", "q.sql:1: public = true, and the query asks for :s.user"),
        ("-- title = \"a\"\n", "q.sql:1: there is no query below the head"),
        ("SELECT 1\nWHERE :month = 1", "q.sql:2: :month is not among [parameters] of the head"),
        (
            "-- [parameters]\n-- month = { type = \"int\" }\nSELECT :mont",
            "q.sql:3: :mont is not among [parameters] of the head; did you mean :month?",
        ),
        ("-- [parameters]\n-- month = { type = \"int\" }\nSELECT 1", "q.sql:2: parameter month is not in the query"),
        ("SELECT $1", "q.sql:1: $1 has no name, expected :name"),
        (
            "-- [parameters]\n-- a = { type = \"integer\" }\nSELECT :a",
            "q.sql:2: parameter a has the type \"integer\", expected one of bool, int,",
        ),
        ("-- [parameters]\n-- a = { type = \"bytes\" }\nSELECT :a", "q.sql:2: parameter a has the type bytes"),
        (
            "-- [parameters]\n-- a = { type = \"int\", min = \"x\" }\nSELECT :a",
            "q.sql:2: parameter a: min is \"x\", expected a value of type int",
        ),
        (
            "-- [parameters]\n-- a = { type = \"int\", max = 3, default = 4 }\nSELECT :a",
            "q.sql:2: parameter a: the default is 4, expected at most 3",
        ),
        ("-- [parameters]\n-- a = { typ = \"int\" }\nSELECT :a", "q.sql:2: parameter a: unknown field `typ`"),
        ("-- [parameters.a]\n-- type = \"int\"\n-- most = 3\nSELECT :a", "q.sql:1: parameter a: unknown field `most`"),
        ("-- [types]\n-- a = \"number\"\nSELECT 1 AS a", "q.sql:2: column a has the type \"number\""),
        ("-- time_out_s = -1\nSELECT 1", "q.sql:1: time_out_s is below zero"),
        ("-- time_out_s = 0\nSELECT 1", "q.sql:1: time_out_s is 0"),
        ("-- freshness = \"SELECT :a\"\nSELECT 1", "q.sql:1: freshness has :a, which is not among [parameters]"),
        ("-- title = \"a\"\n-- rows_max = 0\nSELECT 1", "q.sql:2: rows_max is 0"),
        (
            "-- [parameters]\n-- a = { type = \"int\", min = 3, max = 2 }\nSELECT :a",
            "q.sql:2: parameter a takes no value: min is 3",
        ),
        (
            "-- [parameters]\n-- a = { type = \"int\", length_max = 2 }\nSELECT :a",
            "q.sql:2: parameter a has length_max",
        ),
        (
            "-- [parameters]\n-- a = { type = \"text\", min = \"b\" }\nSELECT :a",
            "q.sql:2: parameter a has min or max, which are for numbers, dates and times",
        ),
        (
            "-- title = \"a\"\n-- [parameters]\n-- title = { type = \"text\", max = \"b\" }\nSELECT :title",
            "q.sql:3: parameter title has min or max",
        ),
        ("-- title = \"a\"\n-- page_by = { id = \"bytes\" }\nSELECT 1", "q.sql:2: page_by id has the type \"bytes\""),
        (
            "-- title = \"a\"\n-- [page_by]\n-- day = \"date\"\n-- id = 3\nSELECT 1",
            "q.sql:4: page_by id has the type \"3\"",
        ),
        ("-- [types]\n-- \"a b\" = \"int\"\n-- c = \"x\"\nSELECT 1", "q.sql:3: column c has the type \"x\""),
        (
            "-- rows_max = \"many\"\nSELECT 1",
            "q.sql:1: invalid type: string \"many\", expected a whole number, 0 or more",
        ),
        ("-- title = \"a\"\n-- users = []\nSELECT 1", "q.sql:2: users is empty, so that nobody may ask"),
        ("-- users = [\"ann\", \"\"]\nSELECT 1", "q.sql:1: users has an empty name"),
        (
            "-- title = \"a\"\n-- [parameters]\n-- a = { type = \"int\", values = [] }\nSELECT :a",
            "q.sql:3: parameter a takes no value: values is empty",
        ),
        ("-- title = \"a\"\n-- page_rows = 10\nSELECT 1", "q.sql:2: page_rows, and no page_by"),
        ("-- title = \"a\"\n-- page_by = {}\nSELECT 1", "q.sql:2: page_by is empty, expected columns"),
        (
            "-- page_by = { a = \"int\" }\n-- rows_max = 5\n-- page_rows = 6\nSELECT 1 AS a",
            "q.sql:3: page_rows is 6, and rows_max 5: a whole page would be an error",
        ),
        ("-- rows_max = 5\n-- page_by = { a = \"int\" }\nSELECT 1 AS a", "q.sql:2: page_rows is 1000, and rows_max 5"),
        ("-- rows_max = -1\nSELECT 1", "q.sql:1: invalid value: integer `-1`, expected a whole number, 0 or more"),
        ("-- page_by = [\"id\"]\nSELECT 1", "q.sql:1: invalid type: list, expected a table"),
        ("-- time_out_s = \"x\"\nSELECT 1", "q.sql:1: invalid type: string \"x\", expected a number"),
        (
            "-- [parameters]\n-- a = \"int\"\nSELECT :a",
            "q.sql:2: parameter a: invalid type: string \"int\", expected a table",
        ),
        (
            "-- [parameters]\n-- a = { type = \"text\", length_max = \"x\" }\nSELECT :a",
            "q.sql:2: parameter a: invalid type: string \"x\", expected a whole number, 0 or more in `length_max`",
        ),
    ] {
        let found = faults("q.sql", text);
        assert!(found.iter().any(|fault| fault.starts_with(expected)), "{text}: {found:?}");
    }
    let offered = faults("q.sql", "-- [parameters]\n-- a = { type = \"bytess\" }\nSELECT :a");
    assert!(!offered[0].contains("bytes,") && !offered[0].contains("mean"), "no URL holds bytes: {offered:?}");
    let offered = faults("q.sql", "-- page_by = { a = \"jso\" }\nSELECT 1 AS a");
    assert!(!offered[0].contains("json"), "no order has JSON: {offered:?}");
    assert!(faults("a b.sql", "SELECT 1")[0].contains("can't be called \"a b\""));
    let all = faults("q.sql", "-- [parameters]\n-- a = { type = \"int\" }\n-- b = { type = \"x\" }\nSELECT :c");
    assert_eq!(all.len(), 4, "all of them at once: {all:?}");
}
