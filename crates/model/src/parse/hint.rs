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
