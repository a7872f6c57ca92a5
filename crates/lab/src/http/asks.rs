//! What clients ask for where that is more than one thing: paths and SQL, drawn by Zipf's law.
//!
//! ```
//! use headwater_lab::http::asks::{Ask, Asks, expand};
//!
//! assert_eq!(expand("/q/{a,b}?day={1..2}").unwrap(), ["/q/a?day=1", "/q/a?day=2", "/q/b?day=1", "/q/b?day=2"]);
//! let asks = Asks::parse("/q/day.csv?day={1..31}\nselect count(*) from flights where day = {1..31}", 1.0).unwrap();
//! assert_eq!(asks.len(), 62);
//! let most_wanted = asks.of_rank(0);
//! assert!(matches!(most_wanted, Ask::Path(_) | Ask::Sql(_)));
//! ```
//!
//! *Caveats.* Which of them is the most wanted is the same in all runs: an order by chance, so that templates and values mix. A brace can't
//! stand for itself.

use crate::random::Random;
use crate::scenario::Zipf;

/// The most that one set of templates may come to.
pub const ASKS_MAX: usize = 100_000;
/// The largest exponent.
pub const EXPONENT_MAX: f64 = 10.0;
/// The order of what is wanted is drawn from this.
const SEED: u64 = 0x5A69_7066;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A path with its query string.
    Path(String),
    /// SQL, for a server of the Frontier protocol.
    Sql(String),
}

/// All of them, the most wanted first.
#[derive(Clone, Debug, PartialEq)]
pub struct Asks {
    ranked: Vec<Ask>,
    law: Zipf,
}

impl Asks {
    /// Reads templates, one a line; those that begin with `/` are paths, with `select` SQL. An error says what is wrong with which.
    pub fn parse(templates: &str, exponent: f64) -> Result<Asks, String> {
        let mut ranked = Vec::new();
        for line in templates.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let is_sql = line.get(..6).is_some_and(|word| word.eq_ignore_ascii_case("select"));
            if !is_sql && !line.starts_with('/') {
                return Err(format!(
                    "ask for {line:?}, only for paths that begin with / and for SQL that begins with select"
                ));
            }
            let expanded = expand(line)?;
            if ranked.len() + expanded.len() > ASKS_MAX {
                return Err(format!("ask for more than {ASKS_MAX} things"));
            }
            ranked.extend(expanded.into_iter().map(if is_sql { Ask::Sql } else { Ask::Path }));
        }
        if ranked.is_empty() {
            return Err("ask for nothing".to_owned());
        }
        Random::seeded(SEED).shuffle(&mut ranked);
        let law = Zipf::new(ranked.len() as u64, exponent);
        Ok(Asks { ranked, law })
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.ranked.len()
    }

    /// Whether one of them is a path.
    pub fn has_path(&self) -> bool {
        self.ranked.iter().any(|ask| matches!(ask, Ask::Path(_)))
    }

    /// The rank of the next that is wanted, from 0.
    pub fn rank(&self, random: &mut Random) -> usize {
        self.law.next(random) as usize - 1
    }

    /// The one of this rank; the least wanted where there are not as many.
    pub fn of_rank(&self, rank: usize) -> &Ask {
        &self.ranked[rank.min(self.ranked.len() - 1)]
    }
}

/// What a template stands for: each `{a,b}` for each of its words, each `{1..31}` for each of its numbers. An error says what is wrong.
pub fn expand(template: &str) -> Result<Vec<String>, String> {
    let wrong = |what: &str| Err(format!("read {template:?}: {what}"));
    let (mut all, mut rest) = (vec![String::new()], template);
    while let Some((before, after)) = rest.split_once('{') {
        let Some((inside, behind)) = after.split_once('}') else { return wrong("a brace is not closed") };
        let Some(words) = words(inside) else {
            return wrong(&format!("{{{inside}}} stands for nothing, expected {{a,b}} or {{1..31}}"));
        };
        if before.contains('}') || all.len().saturating_mul(words.len()) > ASKS_MAX {
            return wrong(&format!("a brace that is not opened, or more than {ASKS_MAX} things"));
        }
        all = all.iter().flat_map(|one| words.iter().map(move |word| [one, before, word].concat())).collect();
        rest = behind;
    }
    if rest.contains('}') {
        return wrong("a brace is not opened");
    }
    Ok(all.into_iter().map(|one| one + rest).collect())
}

fn words(inside: &str) -> Option<Vec<String>> {
    let Some((first, last)) = inside.split_once("..") else {
        let words: Vec<_> = inside.split(',').map(str::to_owned).collect();
        return words.iter().all(|word| !word.is_empty()).then_some(words);
    };
    let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
    let is_possible = first <= last && (last - first) as usize <= ASKS_MAX;
    is_possible.then(|| (first..=last).map(|number| number.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_comes_as_often_as_the_law_says() {
        // 1 + 1/2 + 1/3 + 1/4 = 25/12.
        for (exponent, expected) in [(1.0, [0.48, 0.24, 0.16, 0.12]), (0.0, [0.25; 4])] {
            let asks = Asks::parse("/{a,b,c,d}", exponent).expect("templates");
            let (mut random, mut counts, draws) = (Random::seeded(7), [0_u32; 4], 100_000);
            (0..draws).for_each(|_| counts[asks.rank(&mut random)] += 1);
            for (count, expected) in counts.iter().zip(expected) {
                let share = f64::from(*count) / f64::from(draws);
                assert!((share - expected).abs() < 0.006, "{exponent}: {counts:?}");
            }
        }
    }

    #[test]
    fn the_order_of_what_is_wanted_is_the_same_each_time_and_mixes_templates() {
        let parse = || Asks::parse("/a?x={1..50}\nselect {1..50}", 1.0).expect("templates");
        let asks = parse();
        assert_eq!(asks, parse());
        let first: Vec<_> = asks.ranked[..50].iter().filter(|ask| matches!(ask, Ask::Sql(_))).collect();
        assert!((10..=40).contains(&first.len()), "{} of the first fifty are SQL", first.len());
    }

    #[test]
    fn templates_that_stand_for_nothing_are_refused() {
        for (template, why) in [
            ("/a?x={1..", "a brace is not closed"),
            ("/a?x=1}", "a brace is not opened"),
            ("/a?x=1}{2..3}", "a brace that is not opened"),
            ("/a?x={}", "{} stands for nothing"),
            ("/a?x={a,}", "{a,} stands for nothing"),
            ("/a?x={3..1}", "{3..1} stands for nothing"),
            ("/a?x={1..200000}", "stands for nothing"),
            ("/a?x={1..1000}&y={1..1000}", "more than 100000"),
            ("/a?x={1..60000}\n/b?x={1..60000}", "more than 100000"),
            ("flights.csv", "begin with /"),
            ("drop table flights", "begin with /"),
            (" \n ", "ask for nothing"),
        ] {
            let error = Asks::parse(template, 1.0).expect_err("refused");
            assert!(error.contains(why), "{template}: {error}");
        }
    }
}
