//! Did you mean: the nearest of the words that would have been right.

/// The candidate nearest to a word, if one is near enough to be meant.
///
/// ```
/// use headwater_model::parse::closest;
/// assert_eq!(closest("conflic", ["conflict", "columns"]), Some("conflict"));
/// assert_eq!(closest("Flights", ["airlines", "flights"]), Some("flights"));
/// assert_eq!(closest("planes", ["weather"]), None);
/// ```
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    let near = |candidate: &'a str| (distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate);
    let best = candidates
        .into_iter()
        .map(near)
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance);
    best.map(|(_, candidate)| candidate)
}

/// What the reader of a TOML file says is wrong with a value, in a line, and in words of TOML's own in the place of Rust's types.
///
/// ```
/// use headwater_model::parse::in_plain_words;
/// assert_eq!(
///     in_plain_words("invalid type: string \"x\", expected u32\nin `rows_max`\n"),
///     "invalid type: string \"x\", expected a whole number, 0 to 4294967295 in `rows_max`"
/// );
/// ```
pub fn in_plain_words(message: &str) -> String {
    const WORDS: [(&str, &str); 12] = [
        ("expected usize", "expected a whole number, 0 or more"),
        ("expected u64", "expected a whole number, 0 or more"),
        ("expected u32", "expected a whole number, 0 to 4294967295"),
        ("expected u16", "expected a whole number, 0 to 65535"),
        ("expected i64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected a table"),
        ("invalid type: map", "invalid type: table"),
        ("invalid type: sequence", "invalid type: list"),
        ("expected path string", "expected a path, as a string"),
    ];
    let mut text = message.trim_end().replace('\n', " ");
    // `expected struct Head`: whatever the type is called, it is a table.
    while let Some(place) = text.find("expected struct ") {
        let rest = &text[place + "expected struct ".len()..];
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len());
        text = format!("{}expected a table{}", &text[..place], &rest[end..]);
    }
    WORDS.iter().fold(text, |text, (rust, plain)| text.replace(rust, plain))
}

/// The type of the model that a SQL type's name stands for.
pub(super) fn type_of_sql(word: &str) -> Option<&'static str> {
    Some(match word {
        "integer" | "bigint" | "smallint" | "int2" | "int4" | "int8" | "serial" | "bigserial" => "int",
        "varchar" | "char" | "character" | "character varying" | "string" | "clob" | "citext" => "text",
        "float" | "double" | "double precision" | "float4" | "float8" => "real",
        "numeric" | "number" | "money" => "decimal",
        "boolean" => "bool",
        "blob" | "bytea" | "binary" | "varbinary" => "bytes",
        "datetime" | "timestamp without time zone" => "timestamp",
        "timestamp with time zone" => "timestamptz",
        "jsonb" => "json",
        _ => return None,
    })
}

/// How many characters must be inserted, removed, replaced or swapped with their neighbour to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}
