//! Columns of a table, and the one spelling in which the values of two databases are compared.
//!
//! | class | PostgreSQL | MariaDB | SQLite, by its declared type | spelt |
//! |---|---|---|---|---|
//! | exact | whole numbers, numeric, boolean | whole numbers, decimal, bit, year | INT, anything numeric | digits without outer zeros; `t` is 1 |
//! | real | float4, float8 | float, double | REAL, FLOA, DOUB | the shortest digits of the same double |
//! | bytes | bytea | binary, blob | BLOB, or none | themselves |
//! | time | dates and times | dates and times | DATE, TIME | `2024-05-01 10:00:00.5`, in UTC |
//! | text | all else | all else | CHAR, CLOB, TEXT | themselves |
//!
//! SQLite's types bind nobody: of a column there the other side's class counts. An exact number beside a real one is a real one. Other pairs are
//! compared as the texts that the databases give. *Caveat.* MariaDB writes a `float` with six digits, and so it is compared.

use headwater_model::sql::{literal, quote};

use crate::harness::Failure;
use crate::scenario::Database;
use crate::target::Session;

/// What a session begins with, so that times are in UTC and have one form.
pub(super) fn setup(database: Database) -> Option<&'static str> {
    match database {
        Database::Postgresql => {
            Some("SET TIME ZONE 'UTC'; SET datestyle = 'ISO'; SET bytea_output = 'hex'; SET extra_float_digits = 1")
        }
        Database::Mariadb => Some("SET time_zone = '+00:00'"),
        Database::Sqlite => None,
    }
}

/// What a column's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Exact,
    Real,
    Bytes,
    Time,
    Text,
}

/// A column.
#[derive(Clone, Debug)]
pub(super) struct Column {
    name: String,
    class: Class,
    /// Its value in the database's SQL.
    value: String,
    /// Its place in the primary key.
    key: Option<i64>,
}

/// A table's columns.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    database: Database,
    pub(super) columns: Vec<Column>,
}

impl Layout {
    /// Reads a table's columns; none where there is no such table.
    pub(super) async fn read(session: &mut Session, database: Database, table: &str) -> Result<Layout, Failure> {
        let rows = session.rows(&catalog(database, table), usize::MAX).await?;
        let column = |row: Vec<(String, String)>| {
            let mut values = row.into_iter().map(|(_, value)| value);
            let (name, kind) = (values.next()?, values.next()?);
            let key = values.next()?.parse().ok().filter(|place| *place >= 0);
            let class = class(database, &kind);
            let quoted = quote(&name);
            let value = match (database, class) {
                // A `char(5)` has no blanks at its end then, as in MariaDB.
                (Database::Postgresql, Class::Text) => format!("{quoted}::text"),
                (Database::Mariadb, Class::Exact) if kind == "bit" => format!("{quoted} + 0"),
                _ => quoted,
            };
            Some(Column { name, class, value, key })
        };
        Ok(Layout { database, columns: rows.into_iter().filter_map(column).collect() })
    }

    fn key(&self) -> Vec<String> {
        let mut key: Vec<_> = self.columns.iter().filter_map(|column| Some((column.key?, &column.name))).collect();
        key.sort_unstable();
        key.into_iter().map(|(_, name)| name.clone()).collect()
    }
}

/// The query for a table's columns: name, type, and place in the primary key or -1.
fn catalog(database: Database, table: &str) -> String {
    match database {
        Database::Postgresql => format!(
            "SELECT attname, CASE WHEN typname IN ('float4', 'float8', 'bytea', 'money') THEN typname ELSE typcategory::text END, \
             coalesce(array_position((SELECT indkey::int2[] FROM pg_index WHERE indrelid = attrelid AND indisprimary), attnum), -1) \
             FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid \
             WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            literal(&path(database, table))
        ),
        Database::Mariadb => {
            let (schema, table) = match table.split_once('.') {
                Some((schema, table)) => (literal(schema), table),
                None => ("database()".to_owned(), table),
            };
            format!(
                "SELECT c.column_name, c.data_type, coalesce(k.ordinal_position, -1) FROM information_schema.columns c \
                 LEFT JOIN information_schema.key_column_usage k ON k.table_schema = c.table_schema AND k.table_name = c.table_name \
                 AND k.column_name = c.column_name AND k.constraint_name = 'PRIMARY' \
                 WHERE c.table_schema = {schema} AND c.table_name = {} ORDER BY c.ordinal_position",
                literal(table)
            )
        }
        Database::Sqlite => format!(
            "SELECT name, upper(type), CASE pk WHEN 0 THEN -1 ELSE pk END FROM pragma_table_xinfo({}) WHERE hidden <> 1 ORDER BY cid",
            literal(table)
        ),
    }
}

/// A table's name in SQL: of servers with its schema before a dot.
fn path(database: Database, table: &str) -> String {
    match table.split_once('.') {
        Some((schema, table)) if database != Database::Sqlite => format!("{}.{}", quote(schema), quote(table)),
        _ => quote(table),
    }
}

fn class(database: Database, kind: &str) -> Class {
    match database {
        Database::Postgresql => match kind {
            "N" | "B" => Class::Exact,
            "float4" | "float8" => Class::Real,
            "bytea" => Class::Bytes,
            "D" => Class::Time,
            _ => Class::Text,
        },
        Database::Mariadb => match kind {
            "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "decimal" | "bit" | "year" => Class::Exact,
            "float" | "double" => Class::Real,
            "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => Class::Bytes,
            "date" | "datetime" | "timestamp" | "time" => Class::Time,
            _ => Class::Text,
        },
        // https://www.sqlite.org/datatype3.html, section 3.1; dates and times are ours.
        Database::Sqlite => {
            let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
            match kind {
                _ if has(&["INT"]) => Class::Exact,
                _ if has(&["CHAR", "CLOB", "TEXT"]) => Class::Text,
                _ if kind.is_empty() || has(&["BLOB"]) => Class::Bytes,
                _ if has(&["REAL", "FLOA", "DOUB"]) => Class::Real,
                _ if has(&["DATE", "TIME"]) => Class::Time,
                _ => Class::Exact,
            }
        }
    }
}

/// The columns that two tables have in common.
#[derive(Debug)]
pub(super) struct Pair {
    databases: [Database; 2],
    columns: Vec<Common>,
    /// Places of the key's columns; all of them where there is no key.
    key: Vec<usize>,
    pub(super) has_key: bool,
    pub(super) only: [Vec<String>; 2],
}

#[derive(Debug)]
struct Common {
    name: String,
    /// `None`: compared as text.
    class: Option<Class>,
    values: [String; 2],
}

impl Pair {
    /// Pairs the columns by their names, in the first's order.
    pub(super) fn of(first: Layout, second: &Layout) -> Result<Pair, String> {
        let keys = [first.key(), second.key()];
        let listed = |key: &[String]| if key.is_empty() { "none".to_owned() } else { key.join(", ") };
        let sorted = |key: &[String]| {
            let mut key = key.to_vec();
            key.sort_unstable();
            key
        };
        if sorted(&keys[0]) != sorted(&keys[1]) {
            return Err(format!("the first's primary key is {}, the second's {}", listed(&keys[0]), listed(&keys[1])));
        }
        let missing = |of: &Layout, from: &Layout| {
            let is_there = |name: &str| from.columns.iter().any(|column| column.name == name);
            of.columns.iter().map(|column| column.name.clone()).filter(|name| !is_there(name)).collect::<Vec<_>>()
        };
        let only = [missing(&first, second), missing(second, &first)];
        let databases = [first.database, second.database];
        let common = |one: Column| {
            let other = second.columns.iter().find(|column| column.name == one.name)?;
            let class = together((databases[0], one.class), (databases[1], other.class));
            Some(Common { class, values: [one.value, other.value.clone()], name: one.name })
        };
        let columns: Vec<Common> = first.columns.into_iter().filter_map(common).collect();
        if columns.is_empty() {
            return Err("they have no column in common".to_owned());
        }
        let place = |name: &String| columns.iter().position(|column| column.name == *name);
        let mut key: Vec<usize> = keys[0].iter().filter_map(place).collect();
        let has_key = !key.is_empty();
        if !has_key {
            key = (0..columns.len()).collect();
        }
        Ok(Pair { databases, columns, key, has_key, only })
    }

    /// The query for the rows of one of the two.
    pub(super) fn query(&self, table: &str, is_first: bool) -> String {
        let side = usize::from(!is_first);
        let values: Vec<&str> = self.columns.iter().map(|column| column.values[side].as_str()).collect();
        format!("SELECT {} FROM {}", values.join(", "), path(self.databases[side], table))
    }

    /// A row in the one spelling.
    pub(super) fn spelt(&self, row: Vec<Option<Vec<u8>>>, is_first: bool) -> Vec<Option<Vec<u8>>> {
        let database = self.databases[usize::from(!is_first)];
        let spell = |(column, value): (&Common, Option<Vec<u8>>)| match column.class {
            Some(class) => value.map(|value| spelt(value, class, database)),
            None => value,
        };
        self.columns.iter().zip(row).map(spell).collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    pub(super) fn as_text(&self) -> Vec<String> {
        let unlike = self.columns.iter().filter(|column| column.class.is_none());
        unlike.map(|column| column.name.clone()).collect()
    }

    pub(super) fn key(&self) -> &[usize] {
        &self.key
    }

    /// A spelt value as people read it.
    pub(super) fn shown(&self, place: usize, value: &[u8]) -> String {
        match std::str::from_utf8(value) {
            Ok(text) if self.columns[place].class != Some(Class::Bytes) => text.to_owned(),
            _ => format!("x'{}'", hex::encode(value)),
        }
    }
}

/// As what two columns are compared.
fn together(first: (Database, Class), second: (Database, Class)) -> Option<Class> {
    match (first, second) {
        ((_, one), (_, other)) if one == other => Some(one),
        ((_, Class::Exact | Class::Real), (_, Class::Exact | Class::Real)) => Some(Class::Real),
        ((Database::Sqlite, _), (Database::Sqlite, _)) => None,
        ((Database::Sqlite, _), (_, class)) | ((_, class), (Database::Sqlite, _)) => Some(class),
        _ => None,
    }
}

/// A value in the one spelling. What is not of its class stays as it is.
fn spelt(value: Vec<u8>, class: Class, database: Database) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(&value) else { return value };
    let spelt = match (class, database) {
        (Class::Exact, _) => exact(text),
        (Class::Real, _) => real(text),
        (Class::Time, _) => Some(time(text)),
        (Class::Bytes, Database::Postgresql) => {
            return text.strip_prefix("\\x").and_then(|digits| hex::decode(digits).ok()).unwrap_or(value);
        }
        (Class::Bytes | Class::Text, _) => None,
    };
    spelt.map_or(value, String::into_bytes)
}

/// Digits without outer zeros.
fn exact(text: &str) -> Option<String> {
    let text = match text {
        "t" => "1",
        "f" => "0",
        text => text,
    };
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if digits.is_empty() || !is_number(whole) || !is_number(fraction) {
        // SQLite has large ones as `1e300`.
        return text
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
            .and_then(|number| exact(&number.to_string()));
    }
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    Some(match (whole, fraction) {
        ("", "") => "0".to_owned(),
        ("", fraction) => format!("{sign}0.{fraction}"),
        (whole, "") => format!("{sign}{whole}"),
        (whole, fraction) => format!("{sign}{whole}.{fraction}"),
    })
}

/// The shortest digits of the double; both zeros are one.
fn real(text: &str) -> Option<String> {
    let number: f64 = match text {
        "t" => 1.0,
        "f" => 0.0,
        text => text.parse().ok()?,
    };
    Some(if number == 0.0 { "0".to_owned() } else { number.to_string() })
}

/// Without `T`, zone and zeros at the end of a fraction.
fn time(text: &str) -> String {
    let text = ["+00:00", "+00", "Z"].iter().find_map(|zone| text.strip_suffix(zone)).unwrap_or(text);
    let text = match text.split_once('T') {
        Some((date, time)) if date.ends_with(|last: char| last.is_ascii_digit()) => format!("{date} {time}"),
        _ => text.to_owned(),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, class: Class, key: Option<i64>) -> Column {
        Column { name: name.to_owned(), class, value: quote(name), key }
    }

    #[test]
    fn numbers_have_one_spelling() {
        let cases = [
            ("007", "7"),
            ("-0.50", "-0.5"),
            ("t", "1"),
            ("0.000", "0"),
            ("-0", "0"),
            ("1e3", "1000"),
            ("12.", "12"),
            (".5", "0.5"),
            ("100", "100"),
            ("123456789012345678901234567890.10", "123456789012345678901234567890.1"),
        ];
        for (text, is) in cases {
            assert_eq!(exact(text).as_deref(), Some(is), "{text}");
        }
        for text in ["", "-", "NaN", "1.2.3", "one", "1e999"] {
            assert_eq!(exact(text), None, "{text}");
        }
        for (text, is) in [("1.50", "1.5"), ("1e3", "1000"), ("-0.0", "0"), ("NaN", "NaN"), ("f", "0")] {
            assert_eq!(real(text).as_deref(), Some(is), "{text}");
        }
    }

    #[test]
    fn times_have_one_spelling() {
        let same = ["2024-05-01T10:00:00.500Z", "2024-05-01 10:00:00.5+00", "2024-05-01 10:00:00.500000"];
        for text in same {
            assert_eq!(time(text), "2024-05-01 10:00:00.5", "{text}");
        }
        assert_eq!(time("10:20:00"), "10:20:00", "a zero that is none of a fraction");
        assert_eq!(time("2024-05-10"), "2024-05-10");
    }

    #[test]
    fn bytes_are_themselves_and_what_is_of_no_class_stays() {
        assert_eq!(spelt(b"\\x00ff".to_vec(), Class::Bytes, Database::Postgresql), [0, 255]);
        assert_eq!(spelt(b"\\x00ff".to_vec(), Class::Bytes, Database::Sqlite), b"\\x00ff");
        assert_eq!(spelt(b"many".to_vec(), Class::Exact, Database::Sqlite), b"many");
        assert_eq!(spelt(b"1.0".to_vec(), Class::Text, Database::Mariadb), b"1.0");
    }

    #[test]
    fn a_pair_has_what_both_have() {
        let layout = |database, columns: &[Column]| Layout { database, columns: columns.to_vec() };
        let (id, a, b) =
            (column("id", Class::Exact, Some(1)), column("a", Class::Time, None), column("b", Class::Text, None));
        let first = layout(Database::Postgresql, &[id.clone(), a.clone(), b]);
        let second =
            layout(Database::Sqlite, &[column("a", Class::Text, None), id.clone(), column("c", Class::Bytes, None)]);
        let pair = Pair::of(first.clone(), &second).expect("a pair");
        assert_eq!(pair.names(), ["id", "a"]);
        assert_eq!(pair.only, [vec!["b".to_owned()], vec!["c".to_owned()]]);
        assert_eq!((pair.key(), pair.has_key), (&[0][..], true));
        assert_eq!(pair.columns[1].class, Some(Class::Time), "SQLite's types bind nobody");
        let other = layout(Database::Mariadb, &[id, column("a", Class::Bytes, None)]);
        assert_eq!(Pair::of(first.clone(), &other).expect("a pair").as_text(), ["a"]);
        let keyless = layout(Database::Mariadb, &[a]);
        let why = Pair::of(first, &keyless).expect_err("no pair");
        assert_eq!(why, "the first's primary key is id, the second's none");
        let pair = Pair::of(keyless.clone(), &keyless).expect("a pair");
        assert_eq!((pair.key(), pair.has_key), (&[0][..], false));
    }
}
