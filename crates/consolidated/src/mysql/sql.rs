//! SQL as the driver takes it: parameters by their places.
//!
//! The driver looks for names of parameters too (`:name`), and takes a backslash in a text for the beginning of an escape, which it is not in
//! our sessions. So that it sees none where none is, comments become blanks, and a text with a backslash is written by its bytes.

use std::fmt::Write as _;

/// The statement with `?` for its parameters `?1`, `?2`, ..., and which of them stands where, from 0. Its lines stay as they are.
pub(super) fn positional(sql: &str) -> (String, Vec<usize>) {
    let (mut out, mut places) = (String::with_capacity(sql.len()), Vec::new());
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\'' | '"' | '`' => quoted(rest, first),
            // `5--3` is 8.
            '-' if rest.starts_with("--") && !rest[2..].starts_with(|next: char| !next.is_ascii_whitespace()) => {
                rest.find('\n').unwrap_or(rest.len())
            }
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") && !is_run(rest) => rest[2..].find("*/").map_or(rest.len(), |end| end + 4),
            '?' => 1 + rest[1..].find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len() - 1),
            letter => letter.len_utf8(),
        };
        let (piece, behind) = rest.split_at(length);
        match first {
            '\'' if piece.contains('\\') => by_bytes(&mut out, piece),
            '?' => {
                let number: usize = piece[1..].parse().unwrap_or(places.len() + 1);
                places.push(number.saturating_sub(1));
                out.push('?');
            }
            '-' | '#' | '/' if length > 1 => {
                out.push(' ');
                out.extend(piece.chars().filter(|letter| *letter == '\n'));
            }
            _ => out.push_str(piece),
        }
        rest = behind;
    }
    (out, places)
}

/// The length of what is quoted, its marks with it; a mark that is doubled stands for one.
fn quoted(rest: &str, mark: char) -> usize {
    let mut end = 0;
    while rest[end..].starts_with(mark) {
        end = rest[end + 1..].find(mark).map_or(rest.len(), |found| end + found + 2);
    }
    end
}

/// Whether a comment begins here that MariaDB runs: `/*! ... */`, `/*M! ... */`.
fn is_run(comment: &str) -> bool {
    comment.starts_with("/*!") || comment.starts_with("/*M!")
}

/// A text in quotes as hex digits.
fn by_bytes(out: &mut String, quoted: &str) {
    let inside = quoted.get(1..quoted.len() - 1).unwrap_or_default().replace("''", "'");
    out.push_str("_utf8mb4 X'");
    for byte in inside.bytes() {
        let _ = write!(out, "{byte:02x}");
    }
    out.push('\'');
    // Its lines stay.
    out.extend(inside.chars().filter(|letter| *letter == '\n'));
}

/// Whether a statement without comments is one that reads: some others give rows as well, and a read-only transaction lets them
/// (`OPTIMIZE TABLE`).
pub(super) fn begins_as_query(sql: &str) -> bool {
    let sql = sql.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '(');
    let word = sql.split(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or_default();
    ["SELECT", "WITH", "VALUES", "SHOW", "EXPLAIN", "DESCRIBE", "DESC"]
        .iter()
        .any(|verb| verb.eq_ignore_ascii_case(word))
}

/// In which line of it, from 0, an error is: as the server says, or where what it names stands first.
pub(super) fn line(sql: &str, message: &str) -> Option<usize> {
    if let Some((_, number)) = message.rsplit_once(" at line ") {
        return number.trim().parse::<usize>().ok()?.checked_sub(1);
    }
    let named = message.split('\'').nth(1)?;
    let word = named.rsplit('.').next().filter(|word| !word.is_empty())?;
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
    let (found, _) = sql
        .match_indices(word)
        .find(|(place, _)| !sql[..*place].ends_with(is_part) && !sql[place + word.len()..].starts_with(is_part))?;
    Some(sql[..found].matches('\n').count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_places_and_nothing_else_changes() {
        for (sql, expected, places) in [
            ("SELECT ?2, ?1, ?2", "SELECT ?, ?, ?", &[1, 0, 1][..]),
            ("SELECT ?, ?", "SELECT ?, ?", &[0, 1]),
            ("SELECT '?1', \"?2\", `a?3`, 'it''s ?4', ?10", "SELECT '?1', \"?2\", `a?3`, 'it''s ?4', ?", &[9]),
            ("SELECT 1 -- it's ?1\n, ?1 # :no\n/* :x\n' */, 3", "SELECT 1  \n, ?  \n \n, 3", &[0]),
            ("SELECT 4 - -1 / 2, /*! 5, ?2, */ ?1", "SELECT 4 - -1 / 2, /*! 5, ?, */ ?", &[1, 0]),
            (r"SELECT '\', ':x', 'a''\'", r"SELECT _utf8mb4 X'5c', ':x', _utf8mb4 X'61275c'", &[]),
            ("SELECT 5--?1, 5-- ?1\n-3--", "SELECT 5--?, 5 \n-3 ", &[0]),
            ("SELECT 'open ?1", "SELECT 'open ?1", &[]),
        ] {
            assert_eq!(positional(sql), (expected.to_owned(), places.to_vec()), "{sql}");
            assert_eq!(expected.matches('\n').count(), sql.matches('\n').count());
        }
    }

    #[test]
    fn an_error_is_in_the_line_that_is_told_or_that_has_what_is_named() {
        let sql = "SELECT id,\n  absent_id,\n  absent\nFROM flight";
        assert_eq!(line(sql, "You have an error in your SQL syntax; ... near 'x' at line 3"), Some(2));
        assert_eq!(line(sql, "Unknown column 'absent' in 'field list'"), Some(2));
        assert_eq!(line(sql, "Table 'shop.flight' doesn't exist"), Some(3));
        assert_eq!(line(sql, "Division by 0"), None);
        assert_eq!(line(sql, "Unknown column 'nowhere' in 'field list'"), None);
    }
}
