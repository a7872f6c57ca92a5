//! Queries of the application's own: types, limits, and what is not allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_consolidated::results::{ReadOptions, ResultColumn, ResultSink};
use headwater_consolidated::{Error, QueryConnection};
use headwater_protocol::{Decimal, Row, Type, Value, ValueRef};

use super::database::Database;
use super::queried::{Kind, Queried};

/// Keeps what comes; after so many rows it has enough.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) columns: Vec<ResultColumn>,
    pub(crate) rows: Vec<Row>,
    enough: usize,
}

impl ResultSink for Kept {
    fn begin(&mut self, columns: &[ResultColumn]) -> Result<(), Error> {
        self.columns = columns.to_vec();
        Ok(())
    }

    fn row(&mut self, values: &[ValueRef<'_>]) -> Result<(), Error> {
        if self.rows.len() == self.enough {
            return Err(Error::Database { context: "the sink".to_owned(), detail: "has enough".to_owned() });
        }
        self.rows.push(values.iter().map(ValueRef::to_value).collect());
        Ok(())
    }
}

pub(crate) fn read_with(
    connection: &mut dyn QueryConnection,
    sql: &str,
    parameters: &[Value],
    options: &ReadOptions,
    enough: usize,
) -> Result<Kept, Error> {
    let mut kept = Kept { columns: Vec::new(), rows: Vec::new(), enough };
    let read = connection.read(sql, parameters, options, &mut kept);
    connection.rollback().expect("rolled back");
    read.map(|()| kept)
}

pub(crate) fn read(connection: &mut dyn QueryConnection, sql: &str, parameters: &[Value]) -> Result<Kept, Error> {
    read_with(connection, sql, parameters, &ReadOptions::default(), usize::MAX)
}

/// Numbers from 1 to 3,000,000, and a query that goes through all pairs of them.
pub(crate) const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) \
                       SELECT count(*) FROM n AS a, n AS b WHERE a.i + b.i = -1";

/// A column that is gone is missing whatever is asked; words that are no question of a full-text search are who asks's.
pub(crate) fn what_is_wrong_is_the_statement_or_its_values(database: &Queried) {
    let (setup, search) = match database.kind {
        Kind::Sqlite => ("CREATE VIRTUAL TABLE words USING fts5(body)", "SELECT body FROM words WHERE words MATCH ?1"),
        Kind::Postgres => (
            "CREATE TABLE words (body text)",
            "SELECT body FROM words WHERE to_tsvector(body) @@ to_tsquery(CAST(?1 AS text))",
        ),
        Kind::MariaDb => (
            "CREATE TABLE words (body TEXT, FULLTEXT (body)) ENGINE=InnoDB",
            "SELECT body FROM words WHERE MATCH (body) AGAINST (?1 IN BOOLEAN MODE)",
        ),
    };
    database.application(&format!(
        "{setup}; INSERT INTO words VALUES ('a fox'); CREATE TABLE t (id {{int}}, late {{int}})"
    ));
    let mut connection = database.connect();
    let mut is_statement = |sql: &str, values: &[Value]| match read(&mut *connection, sql, values) {
        Ok(_) => None,
        Err(Error::Sql { is_statement, .. }) => Some(is_statement),
        Err(error) => panic!("{sql}: {error:?}"),
    };
    assert_eq!(is_statement(search, &[Value::text("fox")]), None);
    assert_eq!(is_statement(search, &[Value::text("((( \"fox +")]), Some(false), "the words");
    let columns = "SELECT id, late FROM t";
    assert_eq!(is_statement(columns, &[]), None);
    for (change, wrong) in [
        ("ALTER TABLE t RENAME COLUMN late TO later", Some(true)),
        ("ALTER TABLE t RENAME COLUMN later TO late", None),
        ("DROP TABLE t", Some(true)),
    ] {
        database.application(change);
        for _ in 0..2 {
            assert_eq!(is_statement(columns, &[]), wrong, "{change}");
        }
    }
}

/// Statements are kept prepared, with the columns that they gave then.
pub(crate) fn a_table_that_was_altered_is_read_as_it_is(database: &Queried) {
    database.application("CREATE TABLE t (id {int} PRIMARY KEY, note TEXT); INSERT INTO t VALUES (1, 'a')");
    let mut connection = database.connect();
    let mut names = |sql: &str| {
        let found = read(&mut *connection, sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error}"));
        let names: Vec<String> = found.columns.iter().map(|column| column.name.clone()).collect();
        (names.join(","), found.rows)
    };
    let (all, none) = ("SELECT * FROM t", "SELECT * FROM t WHERE id = 0");
    for (change, columns, row) in [
        ("SELECT 1", "id,note", vec![Value::Int(1), Value::text("a")]),
        ("ALTER TABLE t ADD COLUMN more {int}", "id,note,more", vec![Value::Int(1), Value::text("a"), Value::Null]),
        ("ALTER TABLE t DROP COLUMN note", "id,more", vec![Value::Int(1), Value::Null]),
        ("ALTER TABLE t RENAME COLUMN more TO less", "id,less", vec![Value::Int(1), Value::Null]),
    ] {
        if change != "SELECT 1" {
            database.application(change);
        }
        assert_eq!(names(all), (columns.to_owned(), vec![row.into_iter().collect()]), "{change}");
        assert_eq!(names(none), (columns.to_owned(), Vec::new()), "{change}");
    }
    if database.kind != Kind::Sqlite {
        let types = if database.kind == Kind::Postgres { "ALTER COLUMN less TYPE text" } else { "MODIFY less TEXT" };
        database.application(&format!("ALTER TABLE t {types}; UPDATE t SET less = 'x'"));
        assert_eq!(names(all).1, [[Value::Int(1), Value::text("x")].into_iter().collect::<Row>()]);
    }
}

pub(crate) fn values_and_types_of_any_query(database: &Queried) {
    database.application(
        "CREATE TABLE t (id {int} PRIMARY KEY, note TEXT, price {decimal}, data {bytes}, part {real}, day DATE);
         INSERT INTO t VALUES (1, 'a', '1.50', NULL, 2.5, '2013-01-31'), (2, NULL, NULL, NULL, NULL, NULL)",
    );
    let mut connection = database.connect();
    let sql = "SELECT id, note, price, data, part, day, ?1 AS given FROM t WHERE id >= ?2 ORDER BY id";
    let sql = sql.replace("?1", &database.placeholder()(1, Type::Text));
    let found = read(&mut *connection, &sql, &[Value::text("x"), Value::Int(1)]).expect("rows");
    let kinds: Vec<Option<Type>> = found.columns.iter().map(|column| column.kind).collect();
    let expected = [Type::Int, Type::Text, Type::Decimal, Type::Bytes, Type::Real, Type::Date].map(Some);
    assert_eq!(kinds[..6], expected);
    let given = (database.kind != Kind::Sqlite).then_some(Type::Text);
    assert_eq!(kinds[6], given, "SQLite knows nothing of expressions");
    assert_eq!(found.columns[6].name, "given");
    let price = Value::Decimal(Decimal::parse("1.50").expect("a decimal"));
    let day = headwater_protocol::text::parse_date("2013-01-31").map(Value::Date).expect("a date");
    let first =
        vec![Value::Int(1), Value::text("a"), price.clone(), Value::Null, Value::Real(2.5), day, Value::text("x")];
    let nothing = || Value::Null;
    let second = vec![Value::Int(2), nothing(), nothing(), nothing(), nothing(), nothing(), Value::text("x")];
    assert_eq!(found.rows, [first, second]);
    let columns = connection.columns(&sql, &ReadOptions::default()).expect("columns");
    // MariaDB knows a parameter's type once it has a value.
    assert_eq!((columns.len(), &columns[..6]), (7, &found.columns[..6]));

    let types = BTreeMap::from([("price".to_owned(), Type::Decimal), ("id".to_owned(), Type::Text)]);
    let options = ReadOptions { types, ..ReadOptions::default() };
    let text = "SELECT '1.50' AS price, id FROM t WHERE id = 1";
    let found = read_with(&mut *connection, text, &[], &options, usize::MAX).expect("rows");
    assert_eq!((found.columns[0].kind, &found.rows[0][0]), (Some(Type::Decimal), &price), "the file knows better");

    if database.kind == Kind::Postgres {
        let sql =
            "SELECT 1.5::numeric(10,2) AS a, 1::numeric(5) AS b, 1::numeric(3,-2) AS c, 1.5::numeric AS d, 1 AS e";
        let found = read(&mut *connection, sql, &[]).expect("a row");
        let declared: Vec<&str> = found.columns.iter().map(|column| column.declared.as_str()).collect();
        assert_eq!(declared, ["numeric(10,2)", "numeric(5,0)", "numeric(3,-2)", "numeric", "int4"]);
    }
}

pub(crate) fn parameters_of_every_type_are_what_they_are(database: &Queried) {
    database.application(
        "CREATE TABLE t (id {int} PRIMARY KEY, price {decimal}, part {real}, day DATE);
         INSERT INTO t VALUES (1, '1.50', 2.5, '2013-01-31'), (2, '2.50', 0.1, '2013-02-01')",
    );
    let mut connection = database.connect();
    let date = |text| headwater_protocol::text::parse_date(text).map(Value::Date).expect("a date");
    let decimal = |text| Value::Decimal(Decimal::parse(text).expect("a decimal"));
    for (condition, kind, value) in [
        ("id = ?1", Type::Int, Value::Int(2)),
        ("price > ?1", Type::Decimal, decimal("1.50")),
        ("part < ?1", Type::Real, Value::Real(0.2)),
        ("day > ?1", Type::Date, date("2013-01-31")),
        ("?1 AND id = 2", Type::Bool, Value::Bool(true)),
        ("id = 2 OR 'a''; DROP TABLE t; --' = ?1", Type::Text, Value::text("'; DROP TABLE t; --")),
    ] {
        // SQLite compares decimals as texts.
        let condition = condition.replace("?1", &database.placeholder()(1, kind));
        let found = read(&mut *connection, &format!("SELECT id FROM t WHERE {condition}"), &[value]).expect(&condition);
        assert_eq!(found.rows, [[Value::Int(2)]], "{condition}");
    }
}

/// SQLite takes any number for less than any text; the others compare numbers.
pub(crate) fn decimals_are_compared_with_expressions_as_numbers(database: &Queried) {
    database.application(
        "CREATE TABLE t (id {int} PRIMARY KEY, price {decimal}, part {real});
         INSERT INTO t VALUES (1, '-2.50', -2.5), (2, '0.00', 0), (3, '0.10', 0.1), (4, '2.50', 2.5), (5, '1000000.00', 1e20)",
    );
    let mut connection = database.connect();
    let mut ids = |condition: &str, decimal: Option<&str>| {
        let condition = condition.replace("?1", &database.placeholder()(1, Type::Decimal));
        let value = decimal.map_or(Value::Null, |text| Value::Decimal(Decimal::parse(text).expect(text)));
        let sql = format!("SELECT id FROM t WHERE {condition} ORDER BY id");
        let found = read(&mut *connection, &sql, &[value]).expect(&condition);
        found.rows.into_iter().flatten().collect::<Vec<Value>>()
    };
    for (condition, decimal, expected) in [
        ("price * 2 > ?1", "4.9", &[4, 5][..]),
        ("price * 2 = ?1", "5", &[4]),
        ("abs(price) = ?1", "2.5", &[1, 4]),
        ("abs(price) > ?1", "2", &[1, 4, 5]),
        ("-price < ?1", "-2.4", &[4, 5]),
        ("price + 0 = ?1", "0", &[2]),
        ("price / 1 = ?1", "0.1", &[3]),
        ("part * 1 > ?1", "0.0001", &[3, 4, 5]),
        ("part * 1 < ?1", "9223372036854775807", &[1, 2, 3, 4]),
        ("?1 + 1 = 3.5", "2.5", &[1, 2, 3, 4, 5]),
    ] {
        let expected: Vec<Value> = expected.iter().copied().map(Value::Int).collect();
        assert_eq!(ids(condition, Some(decimal)), expected, "{condition} {decimal}");
        assert_eq!(ids(condition, None), [], "{condition}: nothing is known of NULL");
    }
    let sum = "(SELECT sum(price) FROM t) > ?1";
    assert_eq!(ids(sum, Some("1000000")).len(), 5);
    assert_eq!(ids(sum, Some("1000000.1")).len(), 0);
}

/// In SQLite: by itself, and beside columns of each affinity: a text finds the text that it is.
pub(crate) fn a_decimal_is_a_number_of_the_same_text(database: &Database) {
    database.application("CREATE TABLE t (as_number NUMERIC, as_text TEXT, as_it_is)");
    let mut connection = database.connect();
    let mut first = |sql: &str, value: &Value| {
        read(&mut *connection, sql, std::slice::from_ref(value)).expect(sql).rows.into_iter().flatten().collect()
    };
    for (text, class) in [
        ("0", "integer"),
        ("-0", "text"),
        ("42", "integer"),
        ("-42", "integer"),
        ("9223372036854775807", "integer"),
        ("-9223372036854775808", "integer"),
        ("9223372036854775808", "text"),
        ("100000000000000000000", "text"),
        ("123456789012345678901234567890", "text"),
        ("0.1", "real"),
        ("-2.5", "real"),
        ("2.50", "text"),
        ("0.0001", "real"),
        ("0.000001", "text"),
        ("1234567890.12345", "real"),
        ("0.1234567890123456789", "text"),
        ("NaN", "text"),
        ("Infinity", "text"),
        ("-Infinity", "text"),
    ] {
        let value = Value::Decimal(Decimal::parse(text).expect(text));
        let found: Vec<Value> = first("SELECT typeof(?1), CAST(?1 AS TEXT)", &value);
        assert_eq!(found, [Value::text(class), Value::text(text)], "{text}");
        database.application(&format!("DELETE FROM t; INSERT INTO t VALUES ('{text}', '{text}', '{text}')"));
        let found: Vec<Value> = first(
            "SELECT as_number = ?1, as_text = ?1, as_text IN (?1), as_it_is = CAST(?1 AS TEXT), as_text || '' = CAST(?1 AS TEXT) FROM t",
            &value,
        );
        assert_eq!(found, vec![Value::Int(1); 5], "{text}");
        if !text.ends_with(['y', 'N']) {
            database.application(&format!("UPDATE t SET as_it_is = {text}"));
            let found: Vec<Value> =
                first("SELECT as_it_is = CAST(?1 AS NUMERIC), as_it_is + 0 = CAST(?1 AS REAL) FROM t", &value);
            let is_short = text.len() < 19;
            assert_eq!(found[0], Value::Int(1), "{text}");
            assert!(!is_short || found[1] == Value::Int(1), "{text}");
        }
    }
}

/// A statement that is kept prepared has the moment at which it was.
pub(crate) fn what_says_now_is_read_for_each_run(database: &Database) {
    let mut connection = database.connect();
    for text in ["'now'", "E'NOW'", "$$now$$", "'no'\n'w'"] {
        let sql = format!("SELECT {text}::timestamptz AS at, clock_timestamp() AS clock");
        let mut before = None;
        for _ in 0..3 {
            let found = read(&mut *connection, &sql, &[]).expect("a row").rows;
            let [Value::Timestamptz(at), Value::Timestamptz(clock)] = found[0][..] else { panic!("{found:?}") };
            assert!(before.is_none_or(|before| before <= at) && at <= clock, "{text}: {at} is before {before:?}");
            before = Some(clock);
        }
    }
}

pub(crate) fn a_query_that_writes_is_refused(database: &Queried) {
    database.application("CREATE TABLE t (id {int} PRIMARY KEY)");
    let mut connection = database.connect();
    for sql in ["DELETE FROM t RETURNING id", "INSERT INTO t VALUES (1) RETURNING id", "CREATE TABLE u (id INT)"] {
        assert!(read(&mut *connection, sql, &[]).is_err(), "{sql}");
        assert!(connection.columns(sql, &ReadOptions::default()).is_err(), "{sql}");
    }
    if database.kind == Kind::Postgres {
        for (sql, what) in [
            ("UPDATE t SET id = id WHERE id = CAST(?1 AS bigint) RETURNING id", "UPDATE of table \"t\""),
            ("WITH d AS (DELETE FROM t RETURNING id) SELECT 1 AS one", "DELETE of table \"t\""),
            ("WITH d AS (INSERT INTO t VALUES (1) RETURNING id) SELECT d.id FROM d, t", "INSERT of table \"t\""),
            ("SELECT id FROM (SELECT id FROM t FOR UPDATE) AS locked", "FOR UPDATE"),
        ] {
            let told = connection.columns(sql, &ReadOptions::default()).expect_err(sql).to_string();
            assert!(told.contains(what), "{sql}: {told}");
        }
        for sql in ["SHOW work_mem", "SELECT id FROM t WHERE id = CAST(?1 AS bigint) -- all", "VALUES (1)", "TABLE t;"]
        {
            connection.columns(sql, &ReadOptions::default()).expect(sql);
        }
    }
    let count = read(&mut *connection, "SELECT count(*) FROM t", &[]).expect("a number");
    assert_eq!(count.rows, [[Value::Int(0)]]);
    let wrong = read(&mut *connection, "SELECT nothing FROM t", &[]).map(|_| ()).expect_err("no such column");
    assert!(wrong.to_string().contains("nothing"), "{wrong}");
    assert_eq!(read(&mut *connection, "SELECT count(*) FROM t", &[]).expect("it goes on").rows.len(), 1);
}

pub(crate) fn a_query_ends_when_it_must(database: &Queried) {
    let mut connection = database.connect();
    let options = ReadOptions { time_out: Duration::from_millis(50), ..ReadOptions::default() };
    let late = read_with(&mut *connection, ENDLESS, &[], &options, usize::MAX);
    assert!(matches!(late.map(|_| ()), Err(Error::Retry { broken: false, .. })));
    assert_eq!(read(&mut *connection, "SELECT 1", &[]).expect("it goes on").rows.len(), 1);

    // Cancelled again and again, until it is under way.
    let canceller = connection.canceller().expect("all can");
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while is_done.recv_timeout(Duration::from_millis(20)).is_err() {
                canceller();
            }
        });
        let ended = read(&mut *connection, ENDLESS, &[]);
        done.send(()).expect("somebody cancels");
        assert!(matches!(ended.map(|_| ()), Err(Error::Retry { broken: false, .. })));
    });
    assert_eq!(read(&mut *connection, "SELECT 1", &[]).expect("it goes on").rows.len(), 1);

    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT i FROM n";
    let enough = read_with(&mut *connection, many, &[], &ReadOptions::default(), 10);
    assert!(enough.map(|_| ()).expect_err("the sink has enough").to_string().contains("the sink"));
    assert_eq!(read(&mut *connection, many, &[]).expect("it goes on").rows.len(), 1_000);
}
