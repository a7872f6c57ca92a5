//! Tables held against each other, in databases of three kinds.

use serde_json::{Value, json};

use super::{Database, Place, targets};

/// The same three rows, as each database has them.
fn fill(database: &Database) {
    let sql = match database {
        Database::Postgres(_) => {
            "CREATE TABLE goods (id bigint PRIMARY KEY, price numeric(12, 4), weight double precision, is_sold boolean, data bytea, \
             name text, at timestamptz, day date);
             INSERT INTO goods VALUES (1, 12.5000, 0.1, true, '\\x00ff', 'caf\u{e9}', '2024-05-01 12:00:00.5+02', '2024-05-01'),
             (2, NULL, 1e100, false, '', '', NULL, NULL), (10, -7, -0.0, NULL, NULL, 'NULL', '1999-12-31 23:59:59Z', '0044-03-15')"
        }
        Database::MariaDb(..) => {
            "CREATE TABLE goods (id bigint PRIMARY KEY, price decimal(10, 2), weight double, is_sold boolean, data varbinary(10), \
             name varchar(100), at datetime(6), day date) CHARACTER SET utf8mb4;
             INSERT INTO goods VALUES (10, -7, 0, NULL, NULL, 'NULL', '1999-12-31 23:59:59', '0044-03-15'),
             (1, 12.50, 0.1, true, x'00ff', 'caf\u{e9}', '2024-05-01 10:00:00.5', '2024-05-01'), (2, NULL, 1e100, false, '', '', NULL, NULL)"
        }
        Database::Sqlite(_) => {
            "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, price TEXT, weight REAL, is_sold INTEGER, data BLOB, at TEXT, day TEXT);
             INSERT INTO goods VALUES (1, 'caf\u{e9}', '12.5', 0.1, 1, x'00ff', '2024-05-01T10:00:00.500000Z', '2024-05-01'),
             (2, '', NULL, 1e100, 0, x'', NULL, NULL), (10, 'NULL', '-7.0', 0.0, NULL, NULL, '1999-12-31 23:59:59', '0044-03-15')"
        }
    };
    execute(database, sql);
}

fn execute(database: &Database, sql: &str) {
    match database {
        Database::Postgres(url) => drop(headwater_testkit::sql(url, sql).expect("done")),
        Database::MariaDb(server, name) => drop(server.sql(name, sql).expect("done")),
        Database::Sqlite(path) => {
            rusqlite::Connection::open(path).and_then(|file| file.execute_batch(sql)).expect("done");
        }
    }
}

/// What is found between two databases, and the exit code.
fn found(place: &Place, first: &Database, second: &Database, more: &[&str]) -> (i32, Value) {
    let (first, second) = (first.address(), second.address());
    let arguments = [&["tables", &first, &second, "--json", "--table", "goods"], more].concat();
    let said = place.run(&arguments);
    let answer = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    (said.code, answer)
}

#[test]
fn equal_rows_are_equal_wherever_they_are() {
    let place = Place::new("");
    let databases = targets(&place);
    databases.iter().for_each(fill);
    for first in &databases {
        for second in &databases {
            let names = format!("{} and {}", first.name(), second.name());
            let (code, answer) = found(&place, first, second, &[]);
            assert_eq!((code, &answer["is_equal"]), (0, &json!(true)), "{names}: {answer}");
            assert_eq!((&answer["first_rows"], &answer["second_rows"]), (&json!(3), &json!(3)), "{names}: {answer}");
            assert_eq!(
                (&answer["key"], answer["columns"].as_array().map(Vec::len)),
                (&json!(["id"]), Some(8)),
                "{names}"
            );
        }
    }
}

#[test]
fn each_difference_is_told_with_its_row() {
    let place = Place::new("");
    let databases = targets(&place);
    databases.iter().for_each(fill);
    for second in &databases {
        execute(second, "UPDATE goods SET weight = 0.10000000000000002, name = NULL WHERE id = 1");
        execute(second, "DELETE FROM goods WHERE id = 2");
        execute(second, "INSERT INTO goods (id, name) VALUES (3, 'new')");
        for first in databases.iter().filter(|first| !std::ptr::eq(*first, second)) {
            let names = format!("{} and {}", first.name(), second.name());
            execute(first, "DROP TABLE goods");
            fill(first);
            let (code, answer) = found(&place, first, second, &[]);
            assert_eq!(code, 1, "{names}: {answer}");
            let counts = ["only_first", "only_second", "different"].map(|count| answer[count].as_u64());
            assert_eq!(counts, [Some(1), Some(1), Some(1)], "{names}: {answer}");
            let told = answer["differences"].as_array().expect("a list");
            let of = |kind: &str| told.iter().find(|told| told["kind"] == kind).expect("told");
            assert_eq!(of("only_first")["key"], json!({ "id": "2" }), "{names}");
            assert_eq!(of("only_second")["key"], json!({ "id": "3" }), "{names}");
            let mut columns = of("different")["columns"].as_array().expect("a list").clone();
            columns.sort_by_key(|column| column["column"].to_string());
            let name = json!({ "column": "name", "first": "caf\u{e9}", "second": null });
            let weight = json!({ "column": "weight", "first": "0.1", "second": "0.10000000000000002" });
            assert_eq!(columns, [name, weight], "{names}");
            let (code, answer) = found(&place, first, second, &["--limit", "1"]);
            assert_eq!((code, answer["differences"].as_array().map(Vec::len)), (1, Some(1)), "{names}: {answer}");
        }
    }
    let said =
        place.run(&["tables", &databases[0].address(), &databases[2].address(), "--table", "goods", "--limit", "2"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("only in first") && said.err.contains("1 row more; --limit shows them"), "{said:?}");
}

#[test]
fn rows_without_a_key_are_counted_and_columns_of_one_side_are_told() {
    let place = Place::new("");
    let databases = targets(&place);
    for database in &databases {
        execute(
            database,
            "CREATE TABLE goods (a int, b varchar(10)); INSERT INTO goods VALUES (1, 'x'), (1, 'x'), (NULL, 'y')",
        );
        execute(database, "CREATE TABLE sold (a int, c varchar(10)); INSERT INTO sold VALUES (1, 'x')");
    }
    for first in &databases {
        for second in &databases {
            let names = format!("{} and {}", first.name(), second.name());
            let (code, answer) = found(&place, first, second, &[]);
            assert_eq!((code, &answer["key"]), (0, &json!([])), "{names}: {answer}");
            let (code, answer) = found(&place, first, second, &["--with", "sold"]);
            assert_eq!((code, &answer["columns"]), (1, &json!(["a"])), "{names}: {answer}");
            assert_eq!(
                (&answer["columns_of_first"], &answer["columns_of_second"]),
                (&json!(["b"]), &json!(["c"])),
                "{names}"
            );
            assert_eq!(answer["only_first"], 2, "one of the two 1 and the NULL: {names}: {answer}");
        }
    }
}

#[test]
fn what_can_not_be_compared_is_said() {
    let place = Place::new("");
    let databases = targets(&place);
    execute(&databases[0], "CREATE TABLE goods (id int PRIMARY KEY, a int)");
    execute(&databases[1], "CREATE TABLE goods (a int PRIMARY KEY, id int)");
    let [postgres, mariadb, sqlite] = databases.map(|database| database.address());
    let cases = [
        ([&postgres, &mariadb], "goods", 2, "the first's primary key is id, the second's a"),
        ([&postgres, &postgres], "bads", 2, "there is no table bads at"),
        ([&postgres, &sqlite], "goods", 2, "there is no file"),
        ([&postgres, &"ftp://x".to_owned()], "goods", 2, "has \"ftp\""),
        ([&"postgres://nobody@127.0.0.1:1/x".to_owned(), &postgres], "goods", 3, "connecting to"),
    ];
    for ([first, second], table, code, why) in cases {
        let said = place.run(&["tables", first, second, "--table", table]);
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.err.contains(why), "{why}: {said:?}");
    }
}
