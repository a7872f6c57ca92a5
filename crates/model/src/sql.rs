//! What all generated SQL shares.

/// An identifier, quoted for both SQL dialects.
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Identifiers, quoted and joined by commas.
pub fn quote_list<'a>(identifiers: impl IntoIterator<Item = &'a str>) -> String {
    identifiers.into_iter().map(quote).collect::<Vec<_>>().join(", ")
}
