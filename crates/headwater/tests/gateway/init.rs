//! `headwater init --gateway`, on every database.

use super::{Stage, TABLES, get, postgres};

/// A folder with nothing in it.
fn empty() -> Stage {
    Stage { folder: tempfile::tempdir().expect("a folder"), server: None }
}

/// From an address to an answer: what is written needs no edit but who may ask.
fn from_address_to_answer(stage: &mut Stage, url: &str) {
    let said = stage.ok(&["init", "--gateway", "--database", url]);
    assert!(said.contains("queries/first.sql are written") && said.contains("headwater query check"), "{said}");
    let checked = stage.ok(&["query", "check"]);
    assert!(checked.contains("rows? int") && checked.contains("1 query, as the database takes them"), "{checked}");
    let rows = stage.ok(&["query", "run", "first", "rows=2", "--format", "csv"]);
    assert_eq!(rows.lines().count(), 3, "{rows}");
    let query = std::fs::read_to_string(stage.path("queries/first.sql")).expect("written");
    assert!(query.contains("SELECT * FROM \"flight\" LIMIT :rows"), "{query}");
    let again = stage.run(&["init", "--gateway", "--database", url]);
    assert!(again.0 == Some(2) && again.2.contains("--force writes over it"), "{again:?}");
    let address = stage.serve();
    let (head, _) = get(&address, "/q/first.csv?rows=1", "");
    assert!(head.starts_with("http/1.1 401"), "the database's rows are not anybody's: {head}");
    stage.stop();
    stage.query("first.sql", &query.replace("-- # public", "-- public"));
    let address = stage.serve();
    let (head, body) = get(&address, "/q/first.csv?rows=1", "");
    assert!(head.starts_with("http/1.1 200") && body.lines().count() == 2, "{head}\n{body}");
}

#[test]
fn sqlite_gets_a_first_query() {
    let mut stage = empty();
    stage.sql(TABLES);
    from_address_to_answer(&mut stage, "sqlite:central.db");
    let text = std::fs::read_to_string(stage.path("headwater.toml")).expect("written");
    assert!(text.contains("url = \"sqlite:central.db\"") && !text.contains("models"), "{text}");
}

#[test]
fn postgres_gets_a_first_query() {
    let url = postgres();
    headwater_testkit::sql(&url, &TABLES.replace("DECIMAL_TEXT", "numeric")).expect("tables");
    from_address_to_answer(&mut empty(), &url);
}

#[test]
fn mariadb_gets_a_first_query() {
    let (_, url, _) = super::mariadb::shared();
    from_address_to_answer(&mut empty(), &url);
}

/// Nothing to read, or nothing that can be given as it is: the query is one of no table.
#[test]
fn a_database_without_a_table_that_can_be_read_gets_one_too() {
    let stage = empty();
    stage.sql("PRAGMA user_version = 1");
    stage.ok(&["init", "--gateway", "--database", "sqlite:central.db"]);
    assert_eq!(stage.ok(&["query", "run", "first", "--format", "csv"]), "greeting\r\nhello\r\n");
    stage.ok(&["query", "check"]);
    let odd = empty();
    odd.sql("CREATE TABLE \"a\nb\" (x); CREATE TABLE \"quo\"\"te :x\" (y)");
    odd.ok(&["init", "--gateway", "--database", "sqlite:central.db"]);
    odd.ok(&["query", "check"]);
    odd.sql("DROP TABLE \"a\nb\"");
    odd.ok(&["init", "--gateway", "--force", "--database", "sqlite:central.db"]);
    let query = std::fs::read_to_string(odd.path("queries/first.sql")).expect("written");
    assert!(query.contains("\"quo\"\"te :x\""), "{query}");
    odd.ok(&["query", "check"]);
    let said = odd.run(&["init", "--gateway", "--name", "x", "--database", "sqlite:central.db"]);
    assert!(said.0 == Some(2) && said.2.contains("--name"), "{said:?}");
}
