//! Keys that are not unique in an index that SQLite builds: found by a query, because SQLite names columns and no keys.

use rusqlite::{Connection, OptionalExtension as _};

use crate::catalog::quoted;
use crate::error::{Error, sqlite};

/// How many are named.
pub(crate) const NAMED_MAX: usize = 10;

/// The keys of a statement or an index's schema that stand in several rows, as SQL.
pub(crate) fn named(
    connection: &Connection,
    table: &str,
    index: &str,
    create: Option<&str>,
) -> Result<Vec<String>, Error> {
    let failed = sqlite("looking for keys that are not unique");
    let stored = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?1";
    let stored: Option<String> =
        connection.query_row(stored, [index], |row| row.get(0)).optional().map_err(&failed)?.flatten();
    let (columns, part) = match create.or(stored.as_deref()).and_then(parts) {
        Some(parts) => parts,
        None => (columns(connection, index)?, String::new()),
    };
    let shown: Vec<String> = columns.iter().map(|column| format!("quote({column})")).collect();
    let present: Vec<String> = columns.iter().map(|column| format!("({column}) IS NOT NULL")).collect();
    let sql = format!(
        "SELECT concat_ws(', ', {}), count(*) FROM {} {part} GROUP BY {} HAVING count(*) > 1 AND {} LIMIT {NAMED_MAX}",
        shown.join(", "),
        quoted(table),
        columns.join(", "),
        present.join(" AND ")
    );
    let mut select = connection.prepare(&sql).map_err(&failed)?;
    let keys = select
        .query_map([], |row| Ok(format!("({}) in {} rows", row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))
        .map_err(&failed)?;
    keys.collect::<Result<_, _>>().map_err(&failed)
}

/// The columns of an index that a constraint made: it has no statement.
fn columns(connection: &Connection, index: &str) -> Result<Vec<String>, Error> {
    let failed = sqlite("reading the schema");
    let sql = "SELECT name, coll FROM pragma_index_xinfo(?1) WHERE key ORDER BY seqno";
    let mut select = connection.prepare(sql).map_err(&failed)?;
    let column = |row: &rusqlite::Row<'_>| {
        Ok(format!("{} COLLATE {}", quoted(&row.get::<_, String>(0)?), quoted(&row.get::<_, String>(1)?)))
    };
    let columns = select.query_map([index], column).map_err(&failed)?;
    columns.collect::<Result<_, _>>().map_err(&failed)
}

/// What stands in the parentheses of CREATE INDEX, column by column without ASC and DESC, and what comes after them.
fn parts(sql: &str) -> Option<(Vec<String>, String)> {
    let (mut columns, mut begun, mut depth) = (Vec::new(), 0, 0);
    let mut quote = None;
    for (at, char) in sql.char_indices() {
        match (quote, char) {
            (Some(end), _) if char == end => quote = None,
            (None, '\'' | '"' | '`') => quote = Some(char),
            (None, '[') => quote = Some(']'),
            (None, '(') => {
                depth += 1;
                if depth == 1 {
                    begun = at + 1;
                }
            }
            (None, ',') if depth == 1 => {
                columns.push(without_order(&sql[begun..at]));
                begun = at + 1;
            }
            (None, ')') => {
                depth -= 1;
                if depth == 0 {
                    columns.push(without_order(&sql[begun..at]));
                    return Some((columns, sql[at + 1..].to_owned()));
                }
            }
            _ => {}
        }
    }
    None
}

fn without_order(column: &str) -> String {
    let column = column.trim();
    let cut = |word: &str| {
        let at = column.len().checked_sub(word.len())?;
        let is_word = column.get(at..)?.eq_ignore_ascii_case(word) && column[..at].ends_with(char::is_whitespace);
        is_word.then(|| column[..at].trim_end().to_owned())
    };
    cut("ASC").or_else(|| cut("DESC")).unwrap_or_else(|| column.to_owned())
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn a_statement_is_taken_apart() {
        let sql = "CREATE UNIQUE INDEX \"i(\" ON t(lower(a, ')'), [b,c] COLLATE NOCASE desc , basc) WHERE a > (1)";
        let (columns, rest) = parts(sql).expect("an index");
        assert_eq!(columns, ["lower(a, ')')", "[b,c] COLLATE NOCASE", "basc"]);
        assert_eq!(rest, " WHERE a > (1)");
    }
}
