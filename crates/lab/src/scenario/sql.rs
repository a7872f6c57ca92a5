//! Scripts cut into statements, and statements with the parameters of the database's own kind.

use std::collections::HashMap;
use std::ops::Range;

use headwater_model::sql::{parameters, with_parameters};

use super::Database;

/// The statements of a script: cut at semicolons outside quotes, dollar quotes and comments; without what is only comment.
///
/// *Caveats.* The body of a trigger or of a function in the SQL standard's form is cut too: such things belong into `prepare`, which is
/// sent as it is.
pub(super) fn statements(script: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    // Whether the statement so far is more than blanks and comments.
    let mut has_text = false;
    while let Some(first) = script[at..].chars().next() {
        let rest = &script[at..];
        if first == ';' {
            found.extend(has_text.then(|| script[start..at].trim().to_owned()));
            (start, has_text) = (at + 1, false);
        }
        has_text |= !is_comment(rest) && !first.is_whitespace() && first != ';';
        at += piece(rest, first);
    }
    found.extend(has_text.then(|| script[start..].trim().to_owned()));
    found
}

fn is_comment(rest: &str) -> bool {
    rest.starts_with("--") || rest.starts_with("/*")
}

/// The length of what the text begins with: something quoted, a comment, a word, else one character.
fn piece(rest: &str, first: char) -> usize {
    match first {
        '\'' | '"' | '`' => until(rest, 1, &first.to_string()),
        '-' if is_comment(rest) => until(rest, 2, "\n"),
        '/' if is_comment(rest) => until(rest, 2, "*/"),
        '$' => dollar_tag(rest).map_or(1, |tag| until(rest, tag.len(), tag)),
        other if other.is_alphanumeric() || other == '_' => {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        }
        other => other.len_utf8(),
    }
}

/// The row of an INSERT: the parentheses after VALUES.
fn row(sql: &str) -> Option<Range<usize>> {
    let (mut at, mut depth, mut start) = (0, 0u32, None);
    let mut is_after_values = false;
    while let Some(first) = sql[at..].chars().next() {
        let rest = &sql[at..];
        let length = piece(rest, first);
        match first {
            '(' => {
                if depth == 0 && is_after_values {
                    start = Some(at);
                }
                depth += 1;
            }
            ')' => {
                depth = depth.checked_sub(1)?;
                if let (0, Some(start)) = (depth, start) {
                    return Some(start..at + 1);
                }
            }
            _ => {}
        }
        if depth == 0 && !first.is_whitespace() && !is_comment(rest) {
            is_after_values = rest[..length].eq_ignore_ascii_case("values");
        }
        at += length;
    }
    None
}

/// The length up to and with `end`, looked for from `from`; all of it where there is none.
fn until(rest: &str, from: usize, end: &str) -> usize {
    rest[from..].find(end).map_or(rest.len(), |found| from + found + end.len())
}

/// The tag that begins dollar-quoted text: `$$`, `$name$`; `$1` begins none.
fn dollar_tag(rest: &str) -> Option<&str> {
    let end = rest[1..].find('$')? + 2;
    let inside = &rest[1..end - 1];
    let is_name =
        inside.chars().all(|c| c.is_alphanumeric() || c == '_') && !inside.starts_with(|c: char| c.is_ascii_digit());
    is_name.then_some(&rest[..end])
}

/// The names of `:name`, each once, in their order; an error is a parameter of another form.
pub(super) fn names(sql: &str) -> Result<Vec<&str>, &str> {
    let mut names = Vec::new();
    for parameter in parameters(sql) {
        let name = parameter.name.strip_prefix(':').ok_or(parameter.name)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// A statement ready for a database: `$1`, `?` or `?1` for each name, and which value goes where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    /// For each parameter the place of its value.
    pub(crate) places: Vec<usize>,
}

/// A statement cut at its names: a piece, a value, a piece, ..., a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pieces: Vec<String>,
    places: Vec<usize>,
}

impl Template {
    /// Names that are not among `known` stay as they are; reading a scenario has refused them.
    pub(crate) fn new(sql: &str, known: &[&str]) -> Template {
        let mut places = Vec::new();
        // No statement has a NUL in it.
        let cut = with_parameters(sql, |parameter| {
            let place = known.iter().position(|name| parameter.strip_prefix(':') == Some(name));
            places.extend(place);
            place.map_or_else(|| parameter.to_owned(), |_| "\0".to_owned())
        });
        Template { pieces: cut.split('\0').map(str::to_owned).collect(), places }
    }

    /// The statement with its row so many times, the value at place p of the n-th row from place `of_row(n, p)`; none where it has no row.
    pub(crate) fn with_rows(
        sql: &str,
        known: &[&str],
        count: usize,
        of_row: impl Fn(usize, usize) -> usize,
    ) -> Option<Template> {
        let row = row(sql)?;
        let [mut all, one, end] =
            [&sql[..row.start], &sql[row.clone()], &sql[row.end..]].map(|part| Template::new(part, known));
        for number in 0..count {
            if number > 0 {
                all.append(&Template { pieces: vec![", ".to_owned()], places: Vec::new() }, |place| place);
            }
            all.append(&one, |place| of_row(number, place));
        }
        all.append(&end, |place| place);
        Some(all)
    }

    fn append(&mut self, other: &Template, place: impl Fn(usize) -> usize) {
        let mut pieces = other.pieces.iter();
        if let (Some(last), Some(first)) = (self.pieces.last_mut(), pieces.next()) {
            last.push_str(first);
        }
        self.pieces.extend(pieces.cloned());
        self.places.extend(other.places.iter().map(|of| place(*of)));
    }

    /// As the database prepares it.
    pub(crate) fn prepared(&self, database: Database) -> Statement {
        match database {
            Database::Postgresql => self.numbered('$'),
            // Its marks have no numbers: each has a value of its own.
            Database::Mariadb => Statement { sql: self.filled(|_| "?".to_owned()), places: self.places.clone() },
            Database::Sqlite => self.numbered('?'),
        }
    }

    /// With numbers, `mark` before each; what has one place has one number.
    fn numbered(&self, mark: char) -> Statement {
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        let mut places = Vec::new();
        let sql = self.filled(|place| {
            let number = *numbers.entry(place).or_insert_with(|| {
                places.push(place);
                places.len()
            });
            format!("{mark}{number}")
        });
        Statement { sql, places }
    }

    /// With what stands for the value of each place.
    pub(crate) fn filled(&self, mut value: impl FnMut(usize) -> String) -> String {
        let mut pieces = self.pieces.iter();
        let mut text = pieces.next().cloned().unwrap_or_default();
        for (place, piece) in self.places.iter().zip(pieces) {
            text.push_str(&value(*place));
            text.push_str(piece);
        }
        text
    }
}

/// Whether there is a row that can be repeated.
pub(super) fn has_row(sql: &str) -> bool {
    row(sql).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_cut_at_their_own_semicolons() {
        let script =
            "-- first; not a cut\nSELECT ';', \"a;b\"; /* ; */ ;\n\nDO $x$ BEGIN; END $x$;SELECT $1;\n-- the end;\n";
        let cut = statements(script);
        assert_eq!(cut.len(), 3, "{cut:?}");
        assert!(cut[0].ends_with("SELECT ';', \"a;b\""));
        assert_eq!(cut[1..], ["DO $x$ BEGIN; END $x$", "SELECT $1"]);
        assert_eq!(statements("SELECT 'é'"), ["SELECT 'é'"]);
        assert_eq!(statements("SELECT 'open; for ever").len(), 1);
        assert!(statements(" ;; -- nothing\n").is_empty());
    }

    #[test]
    fn names_become_numbers_and_one_name_one_number() {
        let sql = "UPDATE t SET a = a + :delta, b = ':delta', c = :delta::int WHERE id = :aid";
        assert_eq!(names(sql), Ok(vec!["delta", "aid"]));
        let template = Template::new(sql, &["aid", "delta"]);
        let statement = template.numbered('$');
        assert_eq!(statement.sql, "UPDATE t SET a = a + $1, b = ':delta', c = $1::int WHERE id = $2");
        assert_eq!(statement.places, [1, 0]);
        let statement = template.prepared(Database::Mariadb);
        assert_eq!(statement.sql, "UPDATE t SET a = a + ?, b = ':delta', c = ?::int WHERE id = ?");
        assert_eq!(statement.places, [1, 1, 0]);
        assert_eq!(names("SELECT $1"), Err("$1"));
        let filled = template.filled(|place| ["7", "1"][place].to_owned());
        assert_eq!(filled, "UPDATE t SET a = a + 1, b = ':delta', c = 1::int WHERE id = 7");
    }

    #[test]
    fn the_row_of_an_insert_is_repeated() {
        let sql = "INSERT INTO t (\"values (\", b) VALUES (:a, f(:b, ')')) -- (:c)\n ON CONFLICT (b) DO NOTHING";
        let rows = Template::with_rows(sql, &["a", "b"], 2, |row, place| row * 2 + place).expect("a row");
        let statement = rows.numbered('?');
        let expected = "INSERT INTO t (\"values (\", b) VALUES (?1, f(?2, ')')), (?3, f(?4, ')')) -- (:c)\n ON CONFLICT (b) DO NOTHING";
        assert_eq!((statement.sql.as_str(), statement.places.as_slice()), (expected, &[0, 1, 2, 3][..]));
        for without in ["INSERT INTO t SELECT :a", "UPDATE t SET values = (1)", "VALUES (1", ")", "VALUES 1 (2)"] {
            assert!(!has_row(without), "{without}");
        }
    }
}
