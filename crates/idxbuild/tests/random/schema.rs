//! Databases made at random: all types of values, keys that overflow, collations, orders, rows older than their columns.

use headwater_testkit::random::Random;
use rusqlite::Connection;
use rusqlite::types::Value;

/// A database, as statements and rows.
pub(crate) struct Made {
    /// What makes an empty file ready: page size, encoding, journal.
    pub(crate) pragmas: String,
    /// The tables.
    pub(crate) tables: Vec<Table>,
}

/// A table with its indexes.
pub(crate) struct Table {
    name: String,
    create: String,
    /// Columns that are added when a part of the rows is there.
    added: Vec<String>,
    /// Names of the columns that take values, those added last.
    columns: Vec<String>,
    has_rowid: bool,
    rows: usize,
    /// CREATE INDEX statements.
    pub(crate) indexes: Vec<String>,
}

const TYPES: [&str; 9] = ["", "INTEGER", "TEXT", "REAL", "BLOB", "NUMERIC", "VARCHAR(10)", "DOUBLE", "INT"];
const COLLATIONS: [&str; 4] = ["", " COLLATE NOCASE", " COLLATE RTRIM", " COLLATE BINARY"];
/// Old rows have some of them by their own text, others by their value.
const DEFAULTS: [&str; 52] = [
    "",
    "7",
    "+7",
    "-7",
    "0",
    "-0",
    "007",
    "0x1F",
    "-0x1f",
    "0x7fffffffffffffff",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "100000000000000000000",
    "12345678901234567890.5",
    "3.0",
    "-1.5",
    "1.10",
    ".5",
    "5.",
    "-0.0",
    "0.1",
    "1e3",
    "-1e3",
    "1E2",
    "1e15",
    "1e16",
    "1e22",
    "1.0e-5",
    "1e400",
    "-1e400",
    "9e999",
    "'seven'",
    "'12'",
    "' 1.50 '",
    "'1e3'",
    "''",
    "'it''s'",
    "seven",
    "\"seven\"",
    "x'00ff'",
    "x''",
    "X'3132'",
    "NULL",
    "true",
    "FALSE",
    "(7)",
    "(1.10)",
    "(- 1e3)",
    "('a' /* ) */)",
    "(+ 5.)",
    "(CAST('1.10' AS NUMERIC))",
];

fn pick<'a>(random: &mut Random, from: &[&'a str]) -> &'a str {
    random.pick(from).copied().unwrap_or_default()
}

impl Made {
    /// The database of a seed.
    pub(crate) fn of(random: &mut Random, rows_max: u64) -> Made {
        let size = pick(random, &["512", "1024", "4096", "4096", "8192", "65536"]);
        let encoding = pick(random, &["UTF-8", "UTF-8", "UTF-16le", "UTF-16be"]);
        let journal = pick(random, &["DELETE", "WAL", "TRUNCATE"]);
        let vacuum = if random.chance(5) { "PRAGMA auto_vacuum = FULL;" } else { "" };
        let pragmas = format!(
            "PRAGMA page_size = {size}; {vacuum} PRAGMA encoding = '{encoding}'; PRAGMA journal_mode = {journal}; PRAGMA synchronous = OFF;"
        );
        let tables = (0..=random.below(2)).map(|number| table(random, number, rows_max)).collect();
        Made { pragmas, tables }
    }

    /// Makes the file, without the indexes where `indexes` is false.
    pub(crate) fn write(&self, connection: &Connection, random: &mut Random, indexes: bool) -> rusqlite::Result<()> {
        connection.execute_batch(&self.pragmas)?;
        connection.execute_batch("BEGIN")?;
        for table in &self.tables {
            table.write(connection, random, indexes)?;
        }
        if random.chance(40) {
            // Something for the free list.
            connection.execute_batch(
                "CREATE TABLE gone(x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) \
                 INSERT INTO gone SELECT randomblob(200) FROM n; DROP TABLE gone;",
            )?;
        }
        connection.execute_batch("COMMIT")
    }
}

fn table(random: &mut Random, number: u64, rows_max: u64) -> Table {
    let name = format!("t{number}");
    let has_rowid = !random.chance(7);
    let mut columns = Vec::new();
    let mut parts = Vec::new();
    let alias = has_rowid && random.chance(60);
    if alias {
        parts.push("id INTEGER PRIMARY KEY".to_owned());
    } else if !has_rowid {
        parts.push("id PRIMARY KEY".to_owned());
        columns.push("id".to_owned());
    }
    for column in 0..=random.below(5) {
        let column = format!("c{column}");
        parts.push(format!("{column} {}{}", pick(random, &TYPES), pick(random, &COLLATIONS)));
        columns.push(column);
    }
    let mut keys = columns.clone();
    if random.chance(25) {
        let kind = pick(random, &["STORED", "VIRTUAL"]);
        parts.insert(
            random.below(parts.len() as u64 + 1) as usize,
            format!("g AS (coalesce({}, 1) || 'x') {kind}", columns[0]),
        );
        keys.push("g".to_owned());
    }
    if random.chance(20) {
        parts.push(format!("UNIQUE ({})", columns.join(", ")));
    }
    let mut added = Vec::new();
    for column in 0..random.below(3) {
        let column = format!("a{column}");
        let default = pick(random, &DEFAULTS);
        let default = if default.is_empty() { String::new() } else { format!(" DEFAULT {default}") };
        let other = pick(random, &["", "", "", " NOT NULL", " CHECK (1)", " COLLATE NOCASE"]);
        let other = if other == " NOT NULL" && matches!(default.as_str(), "" | " DEFAULT NULL") { "" } else { other };
        added.push(format!("{column} {}{default}{other}", pick(random, &TYPES)));
        keys.push(column.clone());
        columns.push(column);
    }
    if alias {
        keys.push("id".to_owned());
    }
    let without = if has_rowid { "" } else { " WITHOUT ROWID" };
    let create = format!("CREATE TABLE {name}({}){without}", parts.join(", "));
    // Most are small; a few have trees of three levels.
    let rows_max = if random.chance(10) { rows_max * 5 } else { rows_max };
    let rows = random.below(rows_max) as usize;
    let indexes = (0..=random.below(4)).map(|index| self::index(random, &name, index, &keys)).collect();
    Table { name, create, added, columns, has_rowid, rows, indexes }
}

fn index(random: &mut Random, table: &str, number: u64, keys: &[String]) -> String {
    let mut columns = Vec::new();
    for _ in 0..=random.below(3) {
        let column = &keys[random.below(keys.len() as u64) as usize];
        let order = pick(random, &["", " DESC", " ASC"]);
        columns.push(match random.below(20) {
            0 => format!("length({column}){order}"),
            _ => format!("{column}{}{order}", pick(random, &COLLATIONS)),
        });
    }
    let unique = if random.chance(10) { "UNIQUE " } else { "" };
    let part = if random.chance(5) { format!(" WHERE {} NOT NULL", keys[0]) } else { String::new() };
    format!("CREATE {unique}INDEX {table}_i{number} ON {table}({}){part}", columns.join(", "))
}

impl Table {
    fn write(&self, connection: &Connection, random: &mut Random, indexes: bool) -> rusqlite::Result<()> {
        connection.execute_batch(&self.create)?;
        let early = self.columns.len() - self.added.len();
        let old_rows = random.below(self.rows as u64 + 1) as usize;
        self.insert(connection, random, &self.columns[..early], old_rows)?;
        for added in &self.added {
            connection.execute_batch(&format!("ALTER TABLE {} ADD COLUMN {added}", self.name))?;
        }
        self.insert(connection, random, &self.columns, self.rows - old_rows)?;
        if random.chance(30) {
            connection.execute_batch(&format!("DELETE FROM {} WHERE random() % 3 = 0", self.name))?;
        }
        for index in self.indexes.iter().filter(|_| indexes) {
            // UNIQUE may not be possible.
            let _ = connection.execute_batch(index);
        }
        Ok(())
    }

    fn insert(
        &self,
        connection: &Connection,
        random: &mut Random,
        columns: &[String],
        rows: usize,
    ) -> rusqlite::Result<()> {
        let mut names = columns.to_vec();
        let wide = self.has_rowid && random.chance(30);
        if wide {
            names.push("rowid".to_owned());
        }
        let marks = vec!["?"; names.len()].join(", ");
        let sql = format!("INSERT OR IGNORE INTO {}({}) VALUES ({marks})", self.name, names.join(", "));
        let mut insert = connection.prepare(&sql)?;
        for _ in 0..rows {
            let mut values: Vec<Value> = columns.iter().map(|_| value(random)).collect();
            if wide {
                values.push(Value::Integer(random.bits() as i64 >> random.below(64)));
            }
            insert.execute(rusqlite::params_from_iter(values))?;
        }
        Ok(())
    }
}

/// Any value: often one that others have too.
fn value(random: &mut Random) -> Value {
    match random.below(14) {
        0 => Value::Null,
        1 | 2 => Value::Integer(random.below(10) as i64),
        3 => Value::Integer(random.bits() as i64 >> random.below(64)),
        4 => Value::Real((random.bits() as i64 >> random.below(64)) as f64 / 4.0),
        5 => Value::Real(f64::from_bits(random.bits())),
        6 => Value::Real([0.0, -0.0, 1.0, 9e15, f64::INFINITY, -9.223_372_036_854_776e18][random.below(6) as usize]),
        7..=10 => Value::Text(text(random)),
        11 => Value::Text(text(random).repeat(1 + random.below(200) as usize)),
        12 => Value::Blob((0..random.below(12)).map(|_| random.bits() as u8 & 0x81).collect()),
        _ => {
            let length = if random.chance(10) { 20_000 } else { 800 };
            Value::Blob((0..random.below(length)).map(|_| random.bits() as u8).collect())
        }
    }
}

fn text(random: &mut Random) -> String {
    let letters = ["a", "A", "b", "B", " ", "é", "É", "z", "1", "7", ".", "\u{10348}", "\u{FFFD}", "_", "\0"];
    // A NUL seldom: SQLite builds such an index itself under NOCASE.
    let length = random.below(6);
    let known = if random.below(2000) == 0 { 15 } else { 14 };
    (0..length).map(|_| letters[random.below(known) as usize]).collect()
}
