//! Names and text as SQL, the same in SQLite and PostgreSQL.

mod moments;

pub use moments::{Moment, is_moment, moments};

/// An identifier in double quotes, those inside it doubled.
///
/// ```
/// assert_eq!(headwater_model::sql::quote("select"), r#""select""#);
/// assert_eq!(headwater_model::sql::quote(r#"5" disk"#), r#""5"" disk""#);
/// ```
pub fn quote(identifier: &str) -> String {
    enclose(identifier, '"')
}

/// A text literal in single quotes, those inside it doubled. Values are bound; this is for what a trigger or a catalogue says.
///
/// ```
/// assert_eq!(headwater_model::sql::literal("o'clock"), "'o''clock'");
/// ```
pub fn literal(text: &str) -> String {
    enclose(text, '\'')
}

/// Identifiers in double quotes, separated by commas.
pub fn quote_list<'a>(identifiers: impl IntoIterator<Item = &'a str>) -> String {
    identifiers.into_iter().map(quote).collect::<Vec<_>>().join(", ")
}

fn enclose(text: &str, mark: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(mark);
    for c in text.chars() {
        if c == mark {
            out.push(mark);
        }
        out.push(c);
    }
    out.push(mark);
    out
}

/// Whose SQL a query is: what is a text, a quoted name or a comment there.
///
/// | | comments | texts and names |
/// |---|---|---|
/// | `Any` | `--`, `/* */` | `'...'`, `"..."`, `E'...'`, `$tag$...$tag$` |
/// | `Sqlite` | the same | `'...'`, `"..."`, `` `...` ``, `[...]` |
/// | `Postgres` | the same, `/* */` in one another | those of `Any` |
/// | `MariaDb` | `-- ` (with a blank), `#`, `/* */` but not `/*! */`, which is run | `'...'`, `"..."`, `` `...` ``; a backslash is one |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syntax {
    /// What SQLite and PostgreSQL have in common, and PostgreSQL's texts: of a query that either may get.
    #[default]
    Any,
    /// SQLite's.
    Sqlite,
    /// PostgreSQL's.
    Postgres,
    /// MariaDB's, as our sessions speak it.
    MariaDb,
}

/// A parameter in a query, as it is written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// The parameter with its mark: `:s.user`, `$1`, `?`.
    pub name: &'a str,
    /// Where it stands, in bytes.
    pub place: std::ops::Range<usize>,
}

/// The parameters of a query, in their order: `:name` (dots belong to the name), `$1` and `?`, none of them inside text, quoted
/// names, dollar quotes or comments. `::type` is a cast, and a colon right behind what an array's slice begins with is its own: `a[1:n]` has
/// none, `a[:low: :high]` two.
///
/// ```
/// let query = "SELECT ':x', a::text FROM t WHERE u = :s.user -- :not.this";
/// let names: Vec<_> = headwater_model::sql::parameters(query).into_iter().map(|p| p.name).collect();
/// assert_eq!(names, [":s.user"]);
/// ```
pub fn parameters(query: &str) -> Vec<Parameter<'_>> {
    parameters_in(query, Syntax::Any)
}

/// The same in the SQL of one database.
///
/// ```
/// use headwater_model::sql::{Syntax, parameters_in};
///
/// let query = "SELECT a # :not.this";
/// assert!(parameters_in(query, Syntax::MariaDb).is_empty());
/// assert_eq!(parameters_in(query, Syntax::Postgres)[0].name, ":not.this", "an operator there");
/// ```
pub fn parameters_in(query: &str, syntax: Syntax) -> Vec<Parameter<'_>> {
    let mut found = Vec::new();
    let mut pieces = Pieces { query, at: 0, syntax, brackets: 0 };
    while let Some((piece, place)) = pieces.next_piece() {
        if piece == Piece::Parameter {
            found.push(Parameter { name: &query[place.clone()], place });
        }
    }
    found
}

/// The query with each parameter replaced by what `name` gives for it (asked with the mark: `:s.user`).
///
/// ```
/// let query = headwater_model::sql::with_parameters("SELECT :s.user", |_| "$1".to_owned());
/// assert_eq!(query, "SELECT $1");
/// ```
pub fn with_parameters(query: &str, name: impl FnMut(&str) -> String) -> String {
    with_parameters_in(query, Syntax::Any, name)
}

/// The same in the SQL of one database.
pub fn with_parameters_in(query: &str, syntax: Syntax, mut name: impl FnMut(&str) -> String) -> String {
    let mut out = String::with_capacity(query.len());
    let mut end = 0;
    for parameter in parameters_in(query, syntax) {
        out.push_str(&query[end..parameter.place.start]);
        out.push_str(&name(parameter.name));
        end = parameter.place.end;
    }
    out.push_str(&query[end..]);
    out
}

/// Whether there is nothing but comments.
pub(crate) fn is_nothing(query: &str) -> bool {
    let mut pieces = Pieces::of(query);
    std::iter::from_fn(|| pieces.next_piece()).all(|(_, place)| is_blank(&query[place]))
}

fn is_blank(piece: &str) -> bool {
    piece.trim().is_empty() || piece.starts_with("--") || piece.starts_with("/*")
}

/// A statement without the semicolon that ends it, and what follows.
pub(crate) fn without_last_semicolon(query: &str) -> &str {
    let mut pieces = Pieces::of(query);
    let mut end = None;
    while let Some((piece, place)) = pieces.next_piece() {
        match piece {
            Piece::Semicolon => end = end.or(Some(place.start)),
            _ if is_blank(&query[place.clone()]) => {}
            _ if end.is_some() => return query.trim(), // another statement
            _ => {}
        }
    }
    query[..end.unwrap_or(query.len())].trim()
}

/// Whether there is a semicolon outside text, quoted names and comments.
pub(crate) fn is_several_statements(query: &str) -> bool {
    let mut pieces = Pieces::of(query);
    std::iter::from_fn(|| pieces.next_piece()).any(|(piece, _)| piece == Piece::Semicolon)
}

/// Key words and unquoted names, in their order.
pub(crate) fn words(query: &str) -> impl Iterator<Item = &str> {
    let mut pieces = Pieces::of(query);
    std::iter::from_fn(move || pieces.next_piece())
        .filter(|(piece, _)| *piece == Piece::Word)
        .map(|(_, place)| &query[place])
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Parameter,
    Semicolon,
    /// A key word, an unquoted name, a number.
    Word,
    /// Text, a quoted name, a comment, a cast, or any other character.
    Other,
}

struct Pieces<'a> {
    query: &'a str,
    at: usize,
    syntax: Syntax,
    /// Brackets that are open: of arrays in PostgreSQL.
    brackets: usize,
}

impl Pieces<'_> {
    fn of(query: &str) -> Pieces<'_> {
        Pieces { query, at: 0, syntax: Syntax::Any, brackets: 0 }
    }

    /// The length of a comment that begins here.
    fn comment(&self, rest: &str) -> Option<usize> {
        let is_mariadb = self.syntax == Syntax::MariaDb;
        match rest.as_bytes() {
            // In MariaDB `5--3` is 8.
            [b'-', b'-', behind @ ..] => {
                let is_comment = !is_mariadb || behind.first().is_none_or(u8::is_ascii_whitespace);
                is_comment.then(|| until(rest, 2, "\n"))
            }
            [b'#', ..] if is_mariadb => Some(until(rest, 1, "\n")),
            [b'/', b'*', b'!', ..] | [b'/', b'*', b'M', b'!', ..] if is_mariadb => None,
            [b'/', b'*', ..] if self.syntax == Syntax::Postgres => Some(nested(rest)),
            [b'/', b'*', ..] => Some(until(rest, 2, "*/")),
            _ => None,
        }
    }

    /// The length of a text or a quoted name that begins here.
    fn quoted(&self, rest: &str) -> Option<usize> {
        let has_postgres = matches!(self.syntax, Syntax::Any | Syntax::Postgres);
        match rest.as_bytes() {
            [b'\'', ..] => Some(until(rest, 1, "'")),
            [b'"', ..] => Some(until(rest, 1, "\"")),
            [b'`', ..] if !has_postgres => Some(until(rest, 1, "`")),
            [b'[', ..] if self.syntax == Syntax::Sqlite => Some(until(rest, 1, "]")),
            // PostgreSQL's text with escapes.
            [b'e' | b'E', b'\'', ..] if has_postgres => Some(escaped(rest)),
            [b'$', ..] if has_postgres => dollar_tag(rest).map(|tag| until(rest, tag.len(), tag)),
            _ => None,
        }
    }

    fn next_piece(&mut self) -> Option<(Piece, std::ops::Range<usize>)> {
        let rest = self.query.get(self.at..)?;
        let first = rest.chars().next()?;
        if let Some(length) = self.quoted(rest).or_else(|| self.comment(rest)) {
            return Some((Piece::Other, self.passed(length)));
        }
        let (piece, length) = match first {
            ':' if rest.starts_with("::") => (Piece::Other, 2),
            ':' if self.brackets > 0 && self.is_behind_operand() => (Piece::Other, 1),
            ':' if word(rest) > 1 => (Piece::Parameter, word(rest)),
            '$' if digits(rest) > 1 => (Piece::Parameter, digits(rest)),
            '?' => (Piece::Parameter, digits(rest)),
            ';' => (Piece::Semicolon, 1),
            c if c.is_alphanumeric() || c == '_' => (Piece::Word, name(rest)),
            c => (Piece::Other, c.len_utf8()),
        };
        match first {
            '[' => self.brackets += 1,
            ']' => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        Some((piece, self.passed(length)))
    }

    /// Whether right before it a number, a name, a text or an expression ends.
    fn is_behind_operand(&self) -> bool {
        let before = self.query.get(..self.at).and_then(|before| before.chars().next_back());
        before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '"' | '\''))
    }

    /// Goes on behind a piece; where that stands.
    fn passed(&mut self, length: usize) -> std::ops::Range<usize> {
        self.at += length;
        self.at - length..self.at
    }
}

/// The length up to and with `end`, looked for from `start`; all of it where there is none.
fn until(rest: &str, start: usize, end: &str) -> usize {
    rest.get(start..).and_then(|inside| inside.find(end)).map_or(rest.len(), |found| start + found + end.len())
}

/// The length of a comment that may have others in it.
fn nested(rest: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(found) = rest[at..].find(['/', '*']) {
        at += found;
        let step = match rest.get(at..at + 2) {
            Some("/*") => {
                depth += 1;
                2
            }
            Some("*/") => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of a mark and the letters, digits, `_` and inner dots after it; 1 if no letter follows. The last part may be a quoted name
/// (`:r."odd name"`).
fn word(rest: &str) -> usize {
    let inside = rest.get(1..).unwrap_or("");
    if !inside.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return 1;
    }
    let end = inside.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.').unwrap_or(inside.len());
    let length = 1 + inside[..end].trim_end_matches('.').len();
    if !rest[length..].starts_with(".\"") {
        return length;
    }
    let mut end = length + 1;
    while rest[end..].starts_with('"') {
        end += until(&rest[end..], 1, "\""); // a doubled quote goes on
    }
    end
}

/// The tag that begins dollar-quoted text: `$$`, `$name$`.
fn dollar_tag(rest: &str) -> Option<&str> {
    let end = rest.get(1..)?.find('$')? + 2;
    let tag = rest.get(..end)?;
    let inside = &tag[1..end - 1];
    let is_name =
        !inside.starts_with(|c: char| c.is_ascii_digit()) && inside.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then_some(tag)
}

/// The length of `E'...'`, in which a backslash takes the next character along.
fn escaped(rest: &str) -> usize {
    let mut is_taken = false;
    for (at, c) in rest.char_indices().skip(2) {
        match c {
            _ if is_taken => is_taken = false,
            '\\' => is_taken = true,
            '\'' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a mark and the digits after it.
fn digits(rest: &str) -> usize {
    let inside = rest.get(1..).unwrap_or("");
    1 + inside.find(|c: char| !c.is_ascii_digit()).unwrap_or(inside.len())
}

/// The length of an unquoted name; `$` belongs to it in PostgreSQL.
fn name(rest: &str) -> usize {
    rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').unwrap_or(rest.len())
}
