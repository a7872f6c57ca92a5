//! The data arrive whole and typed in both databases, and mean the same there.

use std::process::Command;

use anyhow::Result;
use flights::tables::{TABLES, Table};
use flights::{Counts, Selection, load_postgres, load_sqlite};
use headwater_testkit::{Postgres, sql};
use rusqlite::Connection;
use tempfile::TempDir;

const WHOLE: [(&str, u64); 6] =
    [("airlines", 16), ("airports", 1458), ("planes", 3322), ("weather", 26_115), ("flights", 336_776), ("member", 0)];
const JANUARY: [(&str, u64); 6] =
    [("airlines", 16), ("airports", 1458), ("planes", 3322), ("weather", 2226), ("flights", 27_004), ("member", 0)];

fn sqlite_file(selection: Selection) -> Result<(TempDir, Connection, Counts)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("flights.db");
    let counts = load_sqlite(&path, selection)?;
    let database = Connection::open(path)?;
    database.pragma_update(None, "foreign_keys", true)?;
    Ok((folder, database, counts))
}

fn in_sqlite(database: &Connection, query: &str) -> Result<String> {
    Ok(database.query_row(query, [], |row| row.get(0))?)
}

fn in_postgres(url: &str, query: &str) -> Result<String> {
    let cell = sql(url, query)?.into_iter().flatten().flatten().next();
    Ok(cell.unwrap_or_default())
}

/// Counts of rows and of NULLs, and sums or extremes of each column: the same text from both databases.
fn fingerprint(table: &Table) -> String {
    let columns = table.columns.iter().map(|(name, kind)| {
        let amount = match kind {
            flights::tables::Kind::Int => format!("sum({name})"),
            // Exact sums of fractions would depend on the order: the digits that every order agrees on.
            flights::tables::Kind::Real => format!("CAST(round(sum({name})) AS bigint)"),
            flights::tables::Kind::Text => format!("min({name}) || max({name}) || sum(length({name}))"),
            flights::tables::Kind::Time => format!("count(DISTINCT {name})"),
        };
        format!("count({name}) || ' ' || {amount}")
    });
    let columns: Vec<String> = columns.collect();
    format!("SELECT count(*) || ': ' || {} FROM {}", columns.join(" || ', ' || "), table.name)
}

#[tokio::test]
async fn the_whole_year_is_the_same_in_both_databases() -> Result<()> {
    let (_folder, database, counts) = sqlite_file(Selection::default())?;
    assert_eq!(counts.iter().collect::<Vec<_>>(), WHOLE);
    let url = Postgres::shared()?.create_database()?;
    let counts = load_postgres(&url, Selection::default()).await?;
    assert_eq!(counts.iter().collect::<Vec<_>>(), WHOLE);
    for (table, (name, rows)) in TABLES.iter().zip(WHOLE) {
        let count = format!("SELECT CAST(count(*) AS text) FROM {name}");
        assert_eq!(in_sqlite(&database, &count)?, rows.to_string());
        assert_eq!(in_postgres(&url, &count)?, rows.to_string());
        if rows > 0 {
            assert_eq!(in_sqlite(&database, &fingerprint(table))?, in_postgres(&url, &fingerprint(table))?, "{name}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn one_month_is_a_part_of_the_year() -> Result<()> {
    let january = Selection { month: Some(1) };
    let (_folder, database, counts) = sqlite_file(january)?;
    assert_eq!(counts.iter().collect::<Vec<_>>(), JANUARY);
    assert_eq!(in_sqlite(&database, "SELECT group_concat(DISTINCT month) FROM flights")?, "1");
    let url = Postgres::shared()?.create_database()?;
    assert_eq!(load_postgres(&url, january).await?.iter().collect::<Vec<_>>(), JANUARY);
    Ok(())
}

#[test]
fn sqlite_keeps_types_times_and_nulls() -> Result<()> {
    let (_folder, database, _) = sqlite_file(Selection { month: Some(1) })?;
    for (query, expected) in [
        ("SELECT group_concat(DISTINCT typeof(time_hour)) FROM flights", "text"),
        ("SELECT group_concat(DISTINCT typeof(flight)) FROM flights", "integer"),
        ("SELECT group_concat(DISTINCT typeof(temp)) FROM weather", "real"),
        ("SELECT group_concat(DISTINCT typeof(wind_gust)) FROM weather WHERE wind_gust IS NULL", "null"),
        ("SELECT min(time_hour) FROM flights", "2013-01-01 10:00:00Z"),
        ("SELECT group_concat(DISTINCT length(time_hour)) FROM weather", "20"),
        ("SELECT CAST(count(*) AS text) FROM flights WHERE 'NA' IN (carrier, tailnum, origin, dest)", "0"),
        ("SELECT CAST(count(*) AS text) FROM flights WHERE dep_time IS NULL", "521"),
        ("SELECT type FROM pragma_table_info('flights') WHERE name = 'time_hour'", "TIMESTAMPTZ_TEXT"),
    ] {
        assert_eq!(in_sqlite(&database, query)?, expected, "{query}");
    }
    Ok(())
}

#[tokio::test]
async fn what_the_schema_forbids_is_refused() -> Result<()> {
    let january = Selection { month: Some(1) };
    let (_folder, database, _) = sqlite_file(january)?;
    let url = Postgres::shared()?.create_database()?;
    load_postgres(&url, january).await?;
    for change in [
        "UPDATE flights SET carrier = '??' WHERE flight = 1545",
        "UPDATE flights SET origin = '???' WHERE flight = 1545",
        "UPDATE flights SET origin = NULL WHERE flight = 1545",
        "UPDATE weather SET origin = '???'",
        "DELETE FROM airports WHERE faa = 'JFK'",
        "INSERT INTO member (user_name, origin) VALUES ('ann', NULL)",
        "INSERT INTO member (user_name, origin) VALUES ('ann', 'JFK'), ('ann', 'JFK')",
    ] {
        assert!(database.execute(change, []).is_err(), "SQLite took {change}");
        assert!(sql(&url, change).is_err(), "PostgreSQL took {change}");
    }
    for change in ["UPDATE flights SET dest = '???', tailnum = '?' WHERE flight = 1545", "DELETE FROM planes"] {
        assert!(database.execute(change, [])? > 0, "the data break these references: {change}");
        sql(&url, change)?;
    }
    Ok(())
}

#[test]
fn a_database_that_has_the_tables_is_left_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("flights.db");
    Connection::open(&path)?.execute_batch("CREATE TABLE flights (id); INSERT INTO flights VALUES (1)")?;
    let error = format!("{:#}", load_sqlite(&path, Selection::default()).expect_err("it has a table flights"));
    assert!(error.contains("flights.db") && error.contains("already exists"), "{error}");
    let tables = "SELECT group_concat(name) FROM sqlite_schema WHERE type = 'table'";
    assert_eq!(in_sqlite(&Connection::open(&path)?, tables)?, "flights");
    Ok(())
}

#[test]
fn the_program_loads_and_refuses_in_clear_words() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flights"));
        command.arg("load").args(arguments).current_dir(&folder).output()
    };
    let output = program(&["--to", "sqlite:f.db", "--month", "2"])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("24951"));
    assert!(folder.path().join("f.db").exists());
    for (arguments, said) in [
        (["--to", "flights.db", "--month", "1"], "sqlite:PATH"),
        (["--to", "sqlite:g.db", "--month", "13"], "1..=12"),
        (["--to", "postgres://127.0.0.1:1/x", "--month", "1"], "connecting to PostgreSQL"),
    ] {
        let output = program(&arguments)?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{arguments:?}: {error}");
    }
    Ok(())
}
