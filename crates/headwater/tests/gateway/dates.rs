//! Dates and times of all of PostgreSQL's years, in every form: exact, or refused by the column's name.

use super::{Stage, TABLES, get, postgres};
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Date32Type, Int64Type, TimestampMicrosecondType};
use arrow_ipc::reader::StreamReader;

/// As PostgreSQL writes them, and as they come (docs/types.md).
const DATES: [(&str, &str); 8] = [
    ("12000-01-01", "+12000-01-01"),
    ("10000-01-01", "+10000-01-01"),
    ("9999-12-31", "9999-12-31"),
    ("0001-01-01", "0001-01-01"),
    ("0001-12-31 BC", "0000-12-31"),
    ("0044-03-15 BC", "-0043-03-15"),
    ("4714-11-24 BC", "-4713-11-24"),
    ("5874897-12-31", "+5874897-12-31"),
];
const TIMES: [(&str, &str); 4] = [
    ("12000-01-01 12:30:00.000001", "+12000-01-01 12:30:00.000001"),
    ("0044-03-15 12:00:00 BC", "-0043-03-15 12:00:00"),
    ("4714-11-24 00:00:00 BC", "-4713-11-24 00:00:00"),
    ("294247-01-10 04:00:54.775806", "+294247-01-10 04:00:54.775806"),
];
/// What Arrow has no room for, and the text of it.
const NONE: [(&str, &str); 6] = [
    ("'infinity'::date", "infinity"),
    ("'-infinity'::date", "-infinity"),
    ("'infinity'::timestamptz", "infinity"),
    ("'-infinity'::timestamp", "-infinity"),
    // The last that PostgreSQL has: 64 bits of microseconds since 1970 don't hold it.
    ("'294276-12-31 23:59:59.999999'::timestamp", "+294276-12-31 23:59:59.999999"),
    ("'294276-12-31 23:59:59.999999+00'::timestamptz", "+294276-12-31 23:59:59.999999Z"),
];

fn stage() -> Stage {
    let url = postgres();
    headwater_testkit::sql(&url, &TABLES.replace("DECIMAL_TEXT", "numeric")).expect("tables");
    Stage::alone(&url)
}

/// A row of all of them, each with what PostgreSQL counts since 1970, and the names and texts of its values.
fn all_years() -> (String, Vec<(String, String)>) {
    let (mut columns, mut expected) = (Vec::new(), Vec::new());
    for (place, (date, text)) in DATES.iter().enumerate() {
        columns.push(format!("DATE '{date}' AS d{place}, (DATE '{date}' - DATE '1970-01-01')::bigint AS nd{place}"));
        expected.push((format!("d{place}"), (*text).to_owned()));
    }
    for (place, (time, text)) in TIMES.iter().enumerate() {
        let micros = format!("(extract(epoch FROM TIMESTAMP '{time}') * 1000000)::bigint");
        columns.push(format!("TIMESTAMP '{time}' AS t{place}, {micros} AS nt{place}"));
        columns.push(format!("TIMESTAMP '{time}' AT TIME ZONE 'UTC' AS z{place}, {micros} AS nz{place}"));
        expected.push((format!("t{place}"), (*text).to_owned()));
        expected.push((format!("z{place}"), format!("{text}Z")));
    }
    (format!("-- public = true\nSELECT {}", columns.join(", ")), expected)
}

fn whole(batch: &RecordBatch, column: &str) -> i64 {
    batch.column_by_name(column).expect(column).as_primitive::<Int64Type>().value(0)
}

#[test]
fn every_year_comes_as_it_is_in_every_form() {
    let mut stage = stage();
    let (sql, expected) = all_years();
    stage.query("years.sql", &sql);
    let done = stage.command(&["query", "run", "years", "--format", "arrow"]).output().expect("it runs");
    let batch = StreamReader::try_new(&*done.stdout, None).expect("a schema").next().expect("one").expect("a batch");
    for (column, _) in &expected {
        let values = batch.column_by_name(column).expect(column);
        let found = match column.as_bytes()[0] {
            b'd' => i64::from(values.as_primitive::<Date32Type>().value(0)),
            _ => values.as_primitive::<TimestampMicrosecondType>().value(0),
        };
        assert_eq!(found, whole(&batch, &format!("n{column}")), "{column}");
    }

    let address = stage.serve();
    let (_, csv) = get(&address, "/q/years.csv", "");
    let (names, values) = csv.trim_end().split_once("\r\n").expect("a row");
    let pairs: Vec<(&str, &str)> = names.split(',').zip(values.split(',')).collect();
    for form in ["json", "ndjson"] {
        let (head, body) = get(&address, &format!("/q/years.{form}"), "");
        assert!(head.starts_with("http/1.1 200"), "{head}");
        for (column, text) in &expected {
            assert!(body.contains(&format!("\"{column}\":\"{text}\"")), "{column} in {body}");
            assert!(pairs.contains(&(column.as_str(), text.as_str())), "{column} in {csv}");
        }
    }
    let (_, body) = get(&address, "/q/years.arrays.json", "");
    assert!(body.contains("[\"+12000-01-01\",3663382,"), "{body}");
}

#[test]
fn what_a_form_has_no_room_for_is_refused_by_its_column() {
    let mut stage = stage();
    for (place, (value, _)) in NONE.iter().enumerate() {
        stage.query(&format!("none{place}.sql"), &format!("-- public = true\nSELECT {value} AS never"));
    }
    let address = stage.serve();
    for (place, (value, text)) in NONE.iter().enumerate() {
        let ask = |form: &str| get(&address, &format!("/q/none{place}.{form}"), "");
        assert_eq!(ask("csv").1, format!("never\r\n{text}\r\n"));
        assert_eq!(ask("ndjson").1, format!("{{\"never\":\"{text}\"}}\n"));
        let (head, body) = ask("arrow");
        assert!(head.starts_with("http/1.1 422"), "{value}: {head}");
        let said: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let said = said["message"].as_str().expect("a message");
        assert!(said.starts_with("column \"never\" has in row 1 the ") && said.contains(text), "{said}");
    }
}

#[test]
fn every_year_may_be_asked_for_and_led_to() {
    let mut stage = stage();
    let head = "-- public = true\n-- [parameters]\n-- day = { type = \"date\" }\n-- at = { type = \"timestamptz\" }\n";
    stage.query("given.sql", &format!("{head}SELECT :day AS day, :at AS at, :day > DATE '5000-01-01' AS late"));
    let days = ["infinity", "12000-01-01", "0044-03-15 BC", "-infinity", "2013-01-31"];
    let days = days.map(|day| format!("(DATE '{day}')")).join(", ");
    let pages = "-- public = true\n-- page_by = { day = \"date\" }\n-- page_rows = 1\n";
    stage.query("pages.sql", &format!("{pages}SELECT day FROM (VALUES {days}) AS v(day)"));
    let address = stage.serve();
    for (day, at, body) in [
        ("%2B12000-01-01", "-0043-03-15%2012%3A00%3A00Z", "+12000-01-01,-0043-03-15 12:00:00Z,true"),
        ("-0043-03-15", "%2B12000-01-01%2012%3A00%3A00Z", "-0043-03-15,+12000-01-01 12:00:00Z,false"),
        ("-infinity", "infinity", "-infinity,infinity,false"),
    ] {
        let (head, found) = get(&address, &format!("/q/given.csv?day={day}&at={at}"), "");
        assert!(head.starts_with("http/1.1 200"), "{head}\n{found}");
        assert_eq!(found, format!("day,at,late\r\n{body}\r\n"));
    }
    let (head, body) = get(&address, "/q/given.csv?day=12000-01-01&at=infinity", "");
    assert!(head.starts_with("http/1.1 400") && body.contains("expected a value of type date"), "{head}\n{body}");
    // PostgreSQL's last year is 5874897, and a timestamp's first day 4714-11-24 BC.
    for (day, at) in [("%2B6000000-01-01", "infinity"), ("2013-01-31", "-5000-01-01%2000%3A00%3A00Z")] {
        let (head, body) = get(&address, &format!("/q/given.csv?day={day}&at={at}"), "");
        assert!(head.starts_with("http/1.1 400") && body.contains("outside 4714-11-24 BC to"), "{head}\n{body}");
    }
    let (mut target, mut found) = ("/q/pages.json".to_owned(), Vec::new());
    while !target.is_empty() {
        let page: serde_json::Value = serde_json::from_str(&get(&address, &target, "").1).expect("JSON");
        found.push(page["rows"][0]["day"].as_str().expect("a day").to_owned());
        page["next"].as_str().unwrap_or_default().clone_into(&mut target);
    }
    assert_eq!(found, ["-infinity", "-0043-03-15", "2013-01-31", "+12000-01-01", "infinity"]);
}
