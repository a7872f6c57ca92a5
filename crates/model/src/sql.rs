//! Names and text as SQL, the same in SQLite and PostgreSQL.

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
