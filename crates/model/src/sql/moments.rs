//! Texts in a query for PostgreSQL that are another moment each time they are read: `'now'`, `'today'`, `'tomorrow'`, `'yesterday'`.
//!
//! ```text
//! SELECT id FROM flight WHERE day < 'today'      read once, when the statement is prepared: that day for as long as it is kept
//! SELECT id FROM flight WHERE day < current_date  read whenever it is run
//! ```
//!
//! A text is read so wherever it becomes a date or a time, beside a column of dates too, and PostgreSQL takes these words in any letters, among
//! clocks, time zones, brackets and other marks (<https://www.postgresql.org/docs/current/datatype-datetime.html>, special values). What it
//! becomes is not to be told from the SQL alone, so each text that has such a word is found.
//!
//! *Caveats.* Of a text whose characters are written by their codes (`E'\156ow'`, `U&'...'`) it is not looked which they are: it is found.

use std::ops::Range;

use super::{Piece, Pieces, Syntax, dollar_tag};

const WORDS: [&str; 4] = ["now", "today", "tomorrow", "yesterday"];
/// What may stand beside them in a moment.
const BESIDE: [&str; 8] = ["allballs", "am", "at", "on", "pm", "t", "utc", "z"];

/// A text that is another moment each time it is read, or may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Where it stands, in bytes.
    pub place: Range<usize>,
    /// It has nothing in it but what a moment is made of, so it is hardly meant as another text.
    pub is_plain: bool,
}

/// A text of the query, as far as it has been read.
struct Text {
    place: Range<usize>,
    content: String,
    has_escapes: bool,
    has_codes: bool,
}

/// The texts of a query for PostgreSQL that are another moment each time they are read, or may be.
///
/// ```
/// use headwater_model::sql::moments;
///
/// let query = "SELECT 'nowhere', \"now\" FROM t WHERE day < 'Today' -- not 'now'";
/// let found: Vec<&str> = moments(query).into_iter().map(|moment| &query[moment.place]).collect();
/// assert_eq!(found, ["'Today'"]);
/// ```
pub fn moments(query: &str) -> Vec<Moment> {
    let mut pieces = Pieces { query, at: 0, syntax: Syntax::Postgres, brackets: 0 };
    let mut texts: Vec<Text> = Vec::new();
    while let Some((piece, place)) = pieces.next_piece() {
        if piece != Piece::Other {
            continue;
        }
        match query[place.clone()].as_bytes() {
            [b'\'', ..] => match texts.last_mut().and_then(|text| Some((between(text, query, place.start)?, text))) {
                Some((between, text)) => {
                    text.content.push_str(between);
                    text.add(query, place);
                }
                None => texts.push(Text::new(query, place, false)),
            },
            [b'e' | b'E', b'\'', ..] => texts.push(Text::new(query, place, true)),
            [b'$', ..] => texts.extend(dollar_quoted(query, place)),
            _ => {}
        }
    }
    texts
        .into_iter()
        .filter(|text| text.has_codes || is_moment(&text.content))
        .map(|text| Moment { is_plain: is_plain(&text.content), place: text.place })
        .collect()
}

/// Whether a text has a word for a moment that is another one each time.
///
/// ```
/// use headwater_model::sql::is_moment;
///
/// assert!(is_moment(" Today 12:00") && !is_moment("nowhere") && !is_moment("2013-01-31"));
/// ```
pub fn is_moment(text: &str) -> bool {
    words(text).any(|word| WORDS.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

fn is_plain(text: &str) -> bool {
    let is_known = |word: &str| WORDS.iter().chain(&BESIDE).any(|known| known.eq_ignore_ascii_case(word));
    is_moment(text)
        && words(text).all(is_known)
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c.is_ascii_whitespace() || "+,-.:()[]{}".contains(c))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty())
}

impl Text {
    fn new(query: &str, place: Range<usize>, has_escapes: bool) -> Text {
        let before = &query.as_bytes()[..place.start];
        let has_codes = matches!(before, [.., b'u' | b'U', b'&']);
        let mut text = Text { place: place.start..place.start, content: String::new(), has_escapes, has_codes };
        let quote = if has_escapes { place.start + 1 } else { place.start };
        text.add(query, quote..place.end);
        text
    }

    /// Adds what stands between these quotes.
    fn add(&mut self, query: &str, place: Range<usize>) {
        self.place.end = place.end;
        let inside = query.get(place.start + 1..place.end).unwrap_or_default();
        let inside = inside.strip_suffix('\'').unwrap_or(inside);
        if !self.has_escapes {
            return self.content.push_str(inside);
        }
        let mut letters = inside.chars();
        while let Some(letter) = letters.next() {
            let escaped = if letter == '\\' { letters.next() } else { None };
            self.has_codes |= escaped.is_some_and(|escaped| "01234567xuU".contains(escaped));
            self.content.push(match escaped {
                Some('b' | 'f' | 'n' | 'r' | 't') => ' ',
                Some(escaped) => escaped,
                None => letter,
            });
        }
    }
}

/// What belongs to a text between its end until now and the next quote, where that goes on with it: a quote that is doubled, or a line's end.
fn between<'q>(text: &Text, query: &'q str, next: usize) -> Option<&'q str> {
    let between = &query[text.place.end..next];
    let goes_on =
        between.contains('\n') && between.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with("--"));
    match between {
        "" => Some("'"),
        _ if goes_on => Some(""),
        _ => None,
    }
}

fn dollar_quoted(query: &str, place: Range<usize>) -> Option<Text> {
    let tag = dollar_tag(&query[place.clone()])?;
    let inside = query[place.clone()].strip_prefix(tag)?;
    let content = inside.strip_suffix(tag).unwrap_or(inside).to_owned();
    Some(Text { place, content, has_escapes: false, has_codes: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that are found, and those of them that are plain.
    fn found(query: &str) -> (Vec<&str>, usize) {
        let moments = moments(query);
        let plain = moments.iter().filter(|moment| moment.is_plain).count();
        (moments.into_iter().map(|moment| &query[moment.place]).collect(), plain)
    }

    #[test]
    fn moments_are_found_however_they_are_written() {
        for text in [
            "'now'",
            "' NOW '",
            "'today 12:00'",
            "'12:00 Today'",
            "'today12:00'",
            "'tomorrow at 12:00 UTC'",
            "'yesterday'",
            "'[today, tomorrow)'",
            "'{now,today}'",
            "E'now'",
            "e'\\tnow'",
            "E'n\\ow'",
            "$$now$$",
            "$day$ tomorrow $day$",
            "'to'\n  'day'",
            "'to' -- and\n\n -- so on\n'day'",
        ] {
            for query in [
                format!("SELECT {text}::timestamptz"),
                format!("SELECT date {text}"),
                format!("SELECT a FROM t WHERE a[1:2] = 'x' AND day<{text} /* 'now' /* */ 'now' */ AND b = $1"),
                text.to_owned(),
            ] {
                assert_eq!(found(&query), (vec![text], 1), "{query}");
            }
        }
    }

    #[test]
    fn what_may_be_a_moment_is_found_and_is_not_plain() {
        for text in [
            "'now America/New_York'",
            "'it is now'",
            "'%now%'",
            "'don''t now'",
            "E'\\156ow'",
            "E'\\x6eow'",
            "E'\\u006eow'",
            "'now",
        ] {
            let query = format!("SELECT 1 AS now, {text}");
            let plain = usize::from(text == "'now");
            assert_eq!(found(&query), (vec![text], plain), "{query}");
        }
        assert_eq!(found("SELECT U&'\\006eow'").0.len(), 1);
    }

    #[test]
    fn other_texts_are_no_moments() {
        for query in [
            "SELECT now(), current_date",
            "SELECT 'nowhere', 'know', 'todays', 'snow', ''",
            "SELECT \"now\", now, $1, ?1 -- 'now'",
            "/* 'today' */ SELECT 'a' 'no' || 'w'",
            "SELECT 'no', 'w'",
            "SELECT E'a\\'', 'b', E'n\\now 0', E'\\\\ 12'",
            "SELECT '2013-01-31'::date",
            "SELECT $$a$$, $x",
            "SELECT '",
            "SELECT E'",
        ] {
            assert_eq!(found(query), (Vec::new(), 0), "{query}");
        }
    }
}
