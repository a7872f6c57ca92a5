//! The tables of a history as the test sees them: how they are made at the consolidated database, and which rows a user's remote has.

use headwater_tests::Kind;

use crate::domains::Compare;

pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A column of the model.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// At the consolidated database, `NOT NULL` and the like included.
    pub(crate) sql: String,
    pub(crate) compare: Compare,
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: String,
    /// Those of the key come first.
    pub(crate) columns: Vec<Column>,
    /// How many columns its key has.
    pub(crate) key: usize,
    /// What follows the columns where it is made: constraints, with their comma.
    pub(crate) constraints: String,
    /// Which rows the user `{user}` gets; empty: all.
    pub(crate) visible: String,
    /// Tables whose rows refer to it, in the order in which they can be filled.
    pub(crate) below: Vec<String>,
}

impl Shape {
    pub(crate) fn quoted(&self) -> String {
        quote(&self.name)
    }

    /// The statement that makes it, under this name.
    pub(crate) fn create(&self, name: &str) -> String {
        let columns: Vec<String> =
            self.columns.iter().map(|column| format!("{} {}", quote(&column.name), column.sql)).collect();
        let key: Vec<String> = self.columns[..self.key].iter().map(|column| quote(&column.name)).collect();
        format!(
            "CREATE TABLE {} ({}, PRIMARY KEY ({}){})",
            quote(name),
            columns.join(", "),
            key.join(", "),
            self.constraints
        )
    }

    /// Its columns, for lists.
    pub(crate) fn names(&self) -> String {
        self.columns.iter().map(|column| quote(&column.name)).collect::<Vec<_>>().join(", ")
    }

    /// The query at the consolidated database of what a user's remote has.
    pub(crate) fn at_the_head(&self, kind: Kind, user: &str) -> String {
        let columns: Vec<String> = self.columns.iter().map(|column| at_the_head(column, kind)).collect();
        let visible = self.visible.replace("{user}", &literal(user));
        let condition = if visible.is_empty() { String::new() } else { format!(" WHERE {visible}") };
        format!("SELECT {} FROM {}{condition}", columns.join(", "), self.quoted())
    }

    /// The query at the remote of all that it has.
    pub(crate) fn at_the_remote(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(in_sqlite).collect();
        format!("SELECT {} FROM {}", columns.join(", "), self.quoted())
    }
}

fn at_the_head(column: &Column, kind: Kind) -> String {
    let name = quote(&column.name);
    match (kind, column.compare) {
        (Kind::Sqlite, _) => in_sqlite(column),
        (Kind::Postgres, Compare::Bool) => format!("{name}::int::text"),
        (Kind::Postgres, Compare::Bytes) => format!("encode({name}, 'hex')"),
        (Kind::Postgres, Compare::Zoned) => {
            format!("to_char({name} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || 'Z'")
        }
        // A cast of char(n) to text would take its blanks away.
        (Kind::Postgres, _) => name,
    }
}

fn in_sqlite(column: &Column) -> String {
    let name = quote(&column.name);
    match column.compare {
        Compare::Bytes => format!("iif({name} IS NULL, NULL, lower(hex({name})))"),
        Compare::Class => format!("quote({name})"),
        _ => format!("CAST({name} AS TEXT)"),
    }
}

/// A value as it is compared: spellings of one number are one.
pub(crate) fn comparable(value: Option<String>, compare: Compare) -> Option<String> {
    let value = value?;
    if compare != Compare::Real {
        return Some(value);
    }
    let number = if value == "-zero" { Ok(0.0) } else { value.parse::<f64>() };
    Some(number.map_or(value, |number| format!("{}", if number == 0.0 { 0.0 } else { number })))
}
