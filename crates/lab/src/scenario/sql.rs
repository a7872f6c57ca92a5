//! Scripts cut into statements, and statements with the parameters of the database's own kind.

use headwater_model::sql::{parameters, with_parameters};

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
        let is_comment = rest.starts_with("--") || rest.starts_with("/*");
        if first == ';' {
            found.extend(has_text.then(|| script[start..at].trim().to_owned()));
            (start, has_text) = (at + 1, false);
        }
        has_text |= !is_comment && !first.is_whitespace() && first != ';';
        at += match first {
            '\'' | '"' | '`' => until(rest, 1, &first.to_string()),
            '-' if is_comment => until(rest, 2, "\n"),
            '/' if is_comment => until(rest, 2, "*/"),
            '$' => dollar_tag(rest).map_or(1, |tag| until(rest, tag.len(), tag)),
            other => other.len_utf8(),
        };
    }
    found.extend(has_text.then(|| script[start..].trim().to_owned()));
    found
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

/// A statement ready for a database: `$1` or `?1` for each name, and which value goes where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    /// For each parameter the place of its value.
    pub(crate) places: Vec<usize>,
}

impl Statement {
    /// `mark` is what stands before a parameter's number. Names that are not among `known` stay as they are; reading a scenario has
    /// refused them.
    pub(crate) fn new(sql: &str, mark: char, known: &[&str]) -> Statement {
        let mut places = Vec::new();
        let sql = with_parameters(sql, |parameter| {
            let Some(place) = known.iter().position(|name| parameter.strip_prefix(':') == Some(name)) else {
                return parameter.to_owned();
            };
            let number = places.iter().position(|known| *known == place).unwrap_or_else(|| {
                places.push(place);
                places.len() - 1
            });
            format!("{mark}{}", number + 1)
        });
        Statement { sql, places }
    }
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
        let statement = Statement::new(sql, '$', &["aid", "delta"]);
        assert_eq!(statement.sql, "UPDATE t SET a = a + $1, b = ':delta', c = $1::int WHERE id = $2");
        assert_eq!(statement.places, [1, 0]);
        assert_eq!(names("SELECT $1"), Err("$1"));
    }
}
