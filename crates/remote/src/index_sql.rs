//! Reads the text of indexes and triggers that an application made.
//!
//! SQLite's catalogue names an index's columns, but of an expression it has only the statement's text, and of a trigger all but the table.
//! The text is SQLite's own (it accepted it once), so it need not be checked, only cut in the right places: quotes, comments and parentheses
//! are minded.

/// The terms between the parentheses, and the condition of a partial index.
///
/// `CREATE UNIQUE INDEX i ON t (a, lower(b) DESC) WHERE c > 0` gives `a`, `lower(b)` and `c > 0`.
pub(crate) fn terms(sql: &str) -> Option<(Vec<String>, Option<String>)> {
    let open = find(sql, 0, '(')?;
    let mut terms = Vec::new();
    let mut start = open + 1;
    loop {
        let end = [find(sql, start, ','), find(sql, start, ')')].into_iter().flatten().min()?;
        terms.push(without_order(sql.get(start..end)?.trim()).to_owned());
        start = end + 1;
        if sql[end..].starts_with(')') {
            break;
        }
    }
    let rest = sql.get(start..)?.trim();
    let filter = rest.get(..5).filter(|word| word.eq_ignore_ascii_case("where")).map(|_| rest[5..].trim().to_owned());
    Some((terms, filter))
}

/// The words of a statement, in small letters, without what stands in quotes and comments.
pub(crate) fn words(sql: &str) -> Vec<String> {
    let (mut bare, mut place) = (String::new(), 0);
    while let Some(c) = sql.get(place..).and_then(|rest| rest.chars().next()) {
        let next = past(sql, place, c).unwrap_or(sql.len());
        bare.push(if next == place + c.len_utf8() && (c.is_alphanumeric() || c == '_') { c } else { ' ' });
        place = next;
    }
    bare.split_whitespace().map(str::to_lowercase).collect()
}

/// The tables and views to which the statements of a trigger write, in small letters.
pub(crate) fn written(sql: &str) -> Vec<String> {
    let words = words_and_names(sql);
    let mut written = Vec::new();
    for (place, word) in words.iter().enumerate() {
        let next = |count: usize| words.get(place + count).map(String::as_str);
        let named = match (word.as_str(), next(1)) {
            ("delete", Some("from")) => next(2),
            ("update", Some("or")) => next(3),
            ("into" | "update", name) => name,
            _ => None,
        };
        written.extend(named.map(str::to_owned));
    }
    written
}

/// The words of a statement and what stands in its quotes, in small letters.
fn words_and_names(sql: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    // The quote that ended just before.
    let mut quote = None;
    let (mut word, mut place) = (String::new(), 0);
    while let Some(c) = sql.get(place..).and_then(|rest| rest.chars().next()) {
        let next = past(sql, place, c).unwrap_or(sql.len());
        let part = &sql[place..next];
        let is_quoted = matches!(c, '\'' | '"' | '`' | '[');
        if is_quoted || !(c.is_alphanumeric() || matches!(c, '_' | '$')) {
            found.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
        } else {
            word.push(c.to_ascii_lowercase());
        }
        if is_quoted {
            let name = part.get(1..part.len().saturating_sub(1)).unwrap_or_default().to_ascii_lowercase();
            match found.last_mut().filter(|_| quote == Some(c) && c != '[') {
                // A quote that is doubled ends one quotation and begins another.
                Some(last) => {
                    last.push(c);
                    last.push_str(&name);
                }
                None => found.push(name),
            }
        }
        quote = is_quoted.then_some(c);
        place = next;
    }
    found.extend(Some(word).filter(|word| !word.is_empty()));
    found
}

/// Whether a statement may name a column: its name stands there as a word or in quotes.
pub(crate) fn names(sql: &str, column: &str) -> bool {
    let (column, mut place) = (column.to_lowercase(), 0);
    let mut word = String::new();
    while let Some(c) = sql.get(place..).and_then(|rest| rest.chars().next()) {
        let next = past(sql, place, c).unwrap_or(sql.len());
        let part = &sql[place..next];
        let is_quoted = part.len() > c.len_utf8() && !part.starts_with("--") && !part.starts_with("/*");
        if !is_quoted && (c.is_alphanumeric() || matches!(c, '_' | '$')) {
            word.push(c);
            place = next;
            continue;
        }
        if word.to_lowercase() == column {
            return true;
        }
        word.clear();
        if is_quoted && is_quotation(part, c, &column) {
            return true;
        }
        place = next;
    }
    word.to_lowercase() == column
}

/// A doubled quote begins another quotation for [`past`]: what stands on one side of it is enough.
fn is_quotation(part: &str, quote: char, column: &str) -> bool {
    let inner = part.get(1..part.len().saturating_sub(1)).unwrap_or_default().to_lowercase();
    inner == column || !inner.is_empty() && column.contains(quote) && column.split(quote).any(|side| side == inner)
}

fn without_order(term: &str) -> &str {
    let cut = |word: &str| {
        let start = term.len().checked_sub(word.len() + 1)?;
        let (head, tail) = (term.get(..start)?, term.get(start..)?);
        (tail.trim_start().eq_ignore_ascii_case(word) && tail.starts_with(char::is_whitespace)).then(|| head.trim_end())
    };
    cut("asc").or_else(|| cut("desc")).unwrap_or(term)
}

/// The first `mark` at or after `start` that stands outside of quotes, comments and parentheses opened since.
fn find(sql: &str, start: usize, mark: char) -> Option<usize> {
    let mut depth = 0u32;
    let mut place = start;
    while let Some(c) = sql.get(place..)?.chars().next() {
        if c == mark && depth == 0 {
            return Some(place);
        }
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        place = past(sql, place, c)?;
    }
    None
}

/// Where the quotation, comment or character at `place` ends.
fn past(sql: &str, place: usize, c: char) -> Option<usize> {
    let rest = sql.get(place..)?;
    let until = |end: &str, from: usize| rest.get(from..)?.find(end).map(|found| place + from + found + end.len());
    match c {
        '\'' | '"' | '`' => until(&c.to_string(), 1),
        '[' => until("]", 1),
        '-' if rest.starts_with("--") => Some(until("\n", 2).unwrap_or(sql.len())),
        '/' if rest.starts_with("/*") => until("*/", 2),
        _ => Some(place + c.len_utf8()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(sql: &str) -> (Vec<String>, Option<String>) {
        terms(sql).expect(sql)
    }

    #[test]
    fn terms_are_cut_where_sqlite_cuts_them() {
        let strings = |terms: &[&str]| terms.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        assert_eq!(cut("CREATE UNIQUE INDEX i ON t (a, b)"), (strings(&["a", "b"]), None));
        assert_eq!(
            cut("CREATE UNIQUE INDEX \"i(\" ON \"t\"(coalesce(a, ')'), lower(b) DESC)where c > 0"),
            (strings(&["coalesce(a, ')')", "lower(b)"]), Some("c > 0".to_owned()))
        );
        assert_eq!(
            cut("CREATE UNIQUE INDEX i ON t (a /* , */ || 'it''s', [x,y] asc -- )\n)"),
            (strings(&["a /* , */ || 'it''s'", "[x,y] asc -- )"]), None)
        );
    }

    #[test]
    fn words_are_those_outside_of_quotes_and_comments() {
        let sql = "CREATE TABLE \"on conflict\"(a/*on*/UNIQUE ON--x\n CONFLICT Replace,[b c]) -- on";
        assert_eq!(words(sql), ["create", "table", "a", "unique", "on", "conflict", "replace"]);
        assert_eq!(words("a 'b"), ["a"]);
    }

    #[test]
    fn columns_are_found_as_words_and_in_quotes() {
        let sql = "CREATE UNIQUE INDEX i ON t (lower(Memo) || \"my col\" || [a,b] || `c` || 'd' /* e */ || \"f\"\"g\" || Größe$1) -- h";
        for column in ["memo", "MY COL", "a,b", "c", "d", "f\"g", "GRÖSSE$1".replace("SS", "ß").as_str(), "t"] {
            assert!(names(sql, column), "{column}");
        }
        for column in ["e", "h", "mem", "emo", "col", "größe"] {
            assert!(!names(sql, column), "{column}");
        }
        assert!(names("a + memo", "memo") && !names("", "memo"));
    }

    #[test]
    fn tables_that_a_trigger_writes_to_are_found() {
        let sql = "CREATE TRIGGER x AFTER UPDATE OF n ON line WHEN NEW.n > 0 BEGIN UPDATE OR IGNORE \"My Stock\" SET n = (SELECT n FROM kind); \
                   DELETE/* a */FROM [a b] WHERE id = OLD.id; INSERT OR REPLACE INTO 'log' VALUES ('into '' other') ON CONFLICT DO UPDATE SET n = 1; \
                   REPLACE INTO \"a\"\"b\" SELECT 1; update Plain set a = 1 -- update this\n; END";
        let tables = written(sql);
        for table in ["my stock", "a b", "log", "a\"b", "plain"] {
            assert!(tables.iter().any(|found| found == table), "{table}: {tables:?}");
        }
        for other in ["line", "kind", "this", "other", "a", "b"] {
            assert!(!tables.iter().any(|found| found == other), "{other}: {tables:?}");
        }
        assert!(written("UPDATE").is_empty() && written("").is_empty() && written("insert into \"a").len() == 1);
    }

    #[test]
    fn what_is_no_index_gives_nothing() {
        for sql in ["", "CREATE UNIQUE INDEX i ON t", "(a", "(a, 'b)", "("] {
            assert_eq!(terms(sql), None, "{sql}");
        }
    }
}
