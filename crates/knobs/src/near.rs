//! Which name may have been meant.

/// The one of these names that may have been meant by another: with a few letters changed in the same section, or in a section of that one;
/// else the same in another section; else one of the same section, or any where there is none, that begins with such a word; else any, by its whole
/// name or its last part, with a few letters changed.
///
/// ```
/// use headwater_knobs::nearest;
///
/// let names = ["server.packing.records", "gateway.cursor.records", "pool.skips"];
/// assert_eq!(nearest("gateway.cursor.recods", names), Some("gateway.cursor.records"));
/// assert_eq!(nearest("gateway.records", names), Some("gateway.cursor.records"));
/// assert_eq!(nearest("skips", names), Some("pool.skips"));
/// assert_eq!(nearest("pool.memry", ["pool.skips", "pool.memory_bytes"]), Some("pool.memory_bytes"));
/// assert_eq!(nearest("weather", names), None);
/// ```
pub fn nearest<'n>(name: &str, names: impl IntoIterator<Item = &'n str, IntoIter: Clone>) -> Option<&'n str> {
    let names = names.into_iter();
    let (section, last) = split(name);
    let within = names.clone().filter(|other| {
        let of = split(other).0;
        of == section || of.strip_prefix(section).is_some_and(|inner| inner.starts_with('.'))
    });
    // What stands in the section itself goes before what stands deeper.
    let by_last = |other: &&str| (distance(split(other).1, last), split(other).0 != section);
    let alike = names.clone().filter(|other| split(other).1 == last).min_by_key(|other| distance(other, name));
    let by_name = |other: &&str| distance(other, name).min(distance(split(other).1, name));
    let in_section = within.min_by_key(by_last).filter(|found| is_near(distance(split(found).1, last), last));
    let begun = names
        .clone()
        .filter(|other| section.is_empty() || split(other).0 == section)
        .filter_map(|other| Some((beginning(split(other).1, last)?, other)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other);
    in_section.or(alike).or(begun).or_else(|| names.min_by_key(by_name).filter(|found| is_near(by_name(found), name)))
}

/// What has fewer letters is the beginning of nothing.
const BEGINNING_MIN: usize = 3;

/// The section, which may be none, and the last part.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

fn is_near(distance: usize, name: &str) -> bool {
    distance <= (name.chars().count() / 3).max(1)
}

/// How far a word is from the first words of a name (`memry` from `memory_bytes`), where it is near; a few letters begin too many.
fn beginning(name: &str, word: &str) -> Option<usize> {
    let ends = name.match_indices('_').map(|(end, _)| end);
    let nearest = ends.map(|end| distance(&name[..end], word)).min()?;
    (word.chars().count() >= BEGINNING_MIN && is_near(nearest, word)).then_some(nearest)
}

/// Letters to be changed, added or left out to make one word of the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().take(100).collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (place, there) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *there);
            diagonal = row[place + 1];
            row[place + 1] = replaced.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 12] = [
        "server.backlog",
        "server.packing.records",
        "server.packing.fill",
        "pool.skips",
        "gateway.waiting_max",
        "gateway.packing.records",
        "gateway.cursor.records",
        "gateway.cursor.fill",
        "log",
        "pool.memory_bytes",
        "pool.upload_bytes_min",
        "server.idle_ms_max",
    ];

    #[test]
    fn the_same_section_goes_first() {
        for (name, meant) in [
            ("gateway.packing.record", "gateway.packing.records"),
            ("gateway.cursor.recrods", "gateway.cursor.records"),
            // A letter more of another section's is nearer.
            ("gateway.cursor.fil", "gateway.cursor.fill"),
            ("server.pakcing.records", "server.packing.records"),
            ("server.fill", "server.packing.fill"),
            ("gateway.fill", "gateway.cursor.fill"),
            ("pol.skips", "pool.skips"),
            ("skip", "pool.skips"),
            ("gateway.pakcing.records", "gateway.packing.records"),
            ("gateway.packing.skips", "pool.skips"),
            ("logs", "log"),
            ("server.skips", "pool.skips"),
            ("pool.memry", "pool.memory_bytes"),
            ("memory", "pool.memory_bytes"),
            ("pool.uplod_bytes", "pool.upload_bytes_min"),
            ("server.idle", "server.idle_ms_max"),
        ] {
            assert_eq!(nearest(name, NAMES), Some(meant), "{name}");
        }
        for name in ["weather", "", ".", "server.weather"] {
            assert_eq!(nearest(name, NAMES), None, "{name:?}");
        }
    }
}
