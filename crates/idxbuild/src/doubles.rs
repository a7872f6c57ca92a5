//! Keys that are not unique, as an error names them: each once, with its rows. Those of an index that SQLite builds are found by a query,
//! because SQLite names columns and no keys.

use rusqlite::{Connection, OptionalExtension as _, Row};

use crate::catalog::quoted;
use crate::error::{Error, sqlite};
use crate::header::Encoding;
use crate::record::Value;
use crate::text;

/// How many are named.
const NAMED_MAX: usize = 10;

/// Keys that stand in several rows: all are counted, the first are named.
#[derive(Debug, Default)]
pub(crate) struct Doubles {
    keys: u64,
    named: Vec<String>,
}

impl Doubles {
    /// One more key, of so many rows. If it is named, its values are asked for, and the first and the last of its rows' rowids, where they
    /// have some.
    pub(crate) fn add<E>(
        &mut self,
        rows: u64,
        values_and_rowids: impl FnOnce() -> Result<(Vec<String>, Option<(i64, i64)>), E>,
    ) -> Result<(), E> {
        self.keys += 1;
        if self.named.len() < NAMED_MAX {
            let (values, rowids) = values_and_rowids()?;
            let between = if rows > 2 { "..., " } else { "" };
            let rowids = rowids.map(|(first, last)| format!(" (rowids {first}, {between}{last})")).unwrap_or_default();
            self.named.push(format!("({}) in {rows} rows{rowids}", values.join(", ")));
        }
        Ok(())
    }

    /// What is wrong with the index, if there are any.
    pub(crate) fn fault(self, index: &str) -> Option<Error> {
        let Doubles { keys: count, named: keys } = self;
        (count > 0).then(|| Error::NotUnique { index: index.to_owned(), count, keys })
    }
}

/// A column of an index, as SQL.
#[derive(Debug, PartialEq)]
struct Term {
    /// Its value, compared as the index does.
    key: String,
    /// The same with its direction.
    order: String,
}

/// Those of an index that SQLite could not build, by its statement or the schema.
pub(crate) fn found(connection: &Connection, table: &str, index: &str, create: Option<&str>) -> Result<Doubles, Error> {
    let failed = sqlite("looking for keys that are not unique");
    let stored = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?1";
    let stored: Option<String> =
        connection.query_row(stored, [index], |row| row.get(0)).optional().map_err(&failed)?.flatten();
    let (terms, part) = match create.or(stored.as_deref()).and_then(parts) {
        Some(parts) => parts,
        None => (terms(connection, index)?, String::new()),
    };
    let joined = |text: fn(&Term) -> String, by: &str| terms.iter().map(text).collect::<Vec<_>>().join(by);
    let keys = joined(|term| term.key.clone(), ", ");
    let rowid = rowid(connection, table)?;
    let ends = rowid.map_or("NULL, NULL".to_owned(), |rowid| format!("min({rowid}), max({rowid})"));
    let table = quoted(table);
    // Not by the index that is to be built: it may lack rows, and SQLite holds its keys for unique.
    // Nor by the order of a table WITHOUT ROWID, if that is the index: hence the plus.
    let sql = format!(
        "SELECT count(*), {ends}, {keys} FROM {table} NOT INDEXED {part} GROUP BY {} HAVING count(*) > 1 AND {} ORDER BY {}",
        joined(|term| format!("+({})", term.key), ", "),
        joined(|term| format!("({}) IS NOT NULL", term.key), " AND "),
        joined(|term| term.order.clone(), ", ")
    );
    let first =
        rowid.map(|rowid| connection.prepare(&format!("SELECT {keys} FROM {table} NOT INDEXED WHERE {rowid} = ?1")));
    let mut first = first.transpose().map_err(&failed)?;
    let mut select = connection.prepare(&sql).map_err(&failed)?;
    let mut rows = select.query([]).map_err(&failed)?;
    let mut doubles = Doubles::default();
    while let Some(row) = rows.next().map_err(&failed)? {
        let count: i64 = row.get(0).map_err(&failed)?;
        let named = doubles.add(count.cast_unsigned(), || {
            let rowids = row.get::<_, Option<i64>>(1)?.zip(row.get(2)?);
            let values = match (&mut first, rowids) {
                // The group's own values may be those of any of its rows.
                (Some(first), Some((rowid, _))) => first.query_row([rowid], |row| values(row, 0, terms.len()))?,
                _ => values(row, 3, terms.len())?,
            };
            Ok::<_, rusqlite::Error>((values, rowids))
        });
        named.map_err(&failed)?;
    }
    Ok(doubles)
}

/// So many values of a row, from this place on, as SQL.
fn values(row: &Row<'_>, from: usize, count: usize) -> rusqlite::Result<Vec<String>> {
    (from..from + count)
        .map(|place| row.get_ref(place).map(|value: Value<'_>| text::literal(value, Encoding::Utf8)))
        .collect()
}

/// What the rowid of a table is called; `None` where it has none, or all its names are columns.
pub(crate) fn rowid(connection: &Connection, table: &str) -> Result<Option<&'static str>, Error> {
    let failed = sqlite("reading the schema");
    let without = "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE";
    if connection.query_row(without, [table], |row| row.get(0)).optional().map_err(&failed)? != Some(false) {
        return Ok(None);
    }
    let mut select = connection.prepare("SELECT lower(name) FROM pragma_table_xinfo(?1)").map_err(&failed)?;
    let columns = select.query_map([table], |row| row.get(0)).map_err(&failed)?;
    let columns: Vec<String> = columns.collect::<Result<_, _>>().map_err(&failed)?;
    Ok(["rowid", "oid", "_rowid_"].into_iter().find(|name| !columns.iter().any(|column| column == name)))
}

/// The columns of an index that a constraint made: it has no statement.
fn terms(connection: &Connection, index: &str) -> Result<Vec<Term>, Error> {
    let failed = sqlite("reading the schema");
    let sql = "SELECT name, coll, \"desc\" FROM pragma_index_xinfo(?1) WHERE key ORDER BY seqno";
    let mut select = connection.prepare(sql).map_err(&failed)?;
    let term = |row: &Row<'_>| {
        let key = format!("{} COLLATE {}", quoted(&row.get::<_, String>(0)?), quoted(&row.get::<_, String>(1)?));
        Ok(Term { order: format!("{key}{}", if row.get(2)? { " DESC" } else { "" }), key })
    };
    let terms = select.query_map([index], term).map_err(&failed)?;
    terms.collect::<Result<_, _>>().map_err(&failed)
}

/// What stands in the parentheses of CREATE INDEX, column by column, and what comes after them.
fn parts(sql: &str) -> Option<(Vec<Term>, String)> {
    let sql = without_comments(sql);
    let (mut terms, mut begun, mut depth) = (Vec::new(), 0, 0);
    let mut quote = None;
    for (at, char) in sql.char_indices() {
        let was_quoted = quote.is_some();
        quote = quote_behind(quote, char);
        match char {
            _ if was_quoted || quote.is_some() => {}
            '(' => {
                depth += 1;
                if depth == 1 {
                    begun = at + 1;
                }
            }
            ',' if depth == 1 => {
                terms.push(term(&sql[begun..at]));
                begun = at + 1;
            }
            ')' => {
                depth -= 1;
                if depth == 0 {
                    terms.push(term(&sql[begun..at]));
                    return Some((terms, sql[at + 1..].to_owned()));
                }
            }
            _ => {}
        }
    }
    None
}

/// By which character what is quoted behind this one ends.
fn quote_behind(quote: Option<char>, char: char) -> Option<char> {
    match (quote, char) {
        (Some(end), _) if char == end => None,
        (None, '\'' | '"' | '`') => Some(char),
        (None, '[') => Some(']'),
        (quote, _) => quote,
    }
}

/// SQL with a blank in the place of each comment.
fn without_comments(sql: &str) -> String {
    let (mut without, mut rest, mut quote) = (String::new(), sql, None);
    while let Some(char) = rest.chars().next() {
        let end = [("--", "\n"), ("/*", "*/")].into_iter().find(|(begin, _)| rest.starts_with(begin));
        let length = match end {
            Some((begin, end)) if quote.is_none() => {
                without.push(' ');
                rest[begin.len()..].find(end).map_or(rest.len(), |at| begin.len() + at + end.len())
            }
            _ => {
                quote = quote_behind(quote, char);
                without.push(char);
                char.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    without
}

fn term(column: &str) -> Term {
    let order = column.trim();
    let cut = |word: &str| {
        let at = order.len().checked_sub(word.len())?;
        let is_word = order.get(at..)?.eq_ignore_ascii_case(word) && order[..at].ends_with(char::is_whitespace);
        is_word.then(|| order[..at].trim_end().to_owned())
    };
    let key = cut("ASC").or_else(|| cut("DESC")).unwrap_or_else(|| order.to_owned());
    Term { key, order: order.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn a_statement_is_taken_apart() {
        let sql = "CREATE UNIQUE INDEX \"i(\" /* it's (one) */ ON t(lower(a, ')'), [b,c] COLLATE NOCASE desc , -- two)\n basc) WHERE a > (1)";
        let (terms, rest) = parts(sql).expect("an index");
        let keys: Vec<_> = terms.iter().map(|term| term.key.as_str()).collect();
        assert_eq!(keys, ["lower(a, ')')", "[b,c] COLLATE NOCASE", "basc"]);
        let orders: Vec<_> = terms.iter().map(|term| term.order.as_str()).collect();
        assert_eq!(orders, ["lower(a, ')')", "[b,c] COLLATE NOCASE desc", "basc"]);
        assert_eq!(rest, " WHERE a > (1)");
    }
}
