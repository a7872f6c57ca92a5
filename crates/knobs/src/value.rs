//! What a knob may be set to.

use std::fmt;

use serde::Serialize;

/// A knob's value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// A number.
    Number(f64),
    /// Yes or no.
    Truth(bool),
    /// A word.
    Word(String),
}

/// What a knob's value may be.
#[derive(Clone, Debug)]
pub enum Range {
    /// A whole number, the bounds among them.
    Whole {
        /// The smallest.
        least: u64,
        /// The greatest.
        most: u64,
    },
    /// A number of more than zero.
    Number {
        /// The greatest.
        most: f64,
    },
    /// `true` or `false`.
    Truth,
    /// One of these.
    Words(&'static [&'static str]),
    /// A word, or a whole number, the bounds among them.
    WordOr {
        /// The word.
        word: &'static str,
        /// The smallest number.
        least: u64,
        /// The greatest.
        most: u64,
    },
    /// A text that the check takes; in words, and with examples of either kind.
    Text {
        /// Why it can't be.
        check: fn(&str) -> Result<(), String>,
        /// What it is.
        what: &'static str,
        /// Some that it may be.
        examples: &'static [&'static str],
        /// Some that it may not be.
        wrong: &'static [&'static str],
    },
}

impl Value {
    /// A whole number; that of another kind is zero. A range has been checked before.
    pub fn whole(&self) -> u64 {
        if let Value::Whole(number) = self { *number } else { 0 }
    }

    /// A number; that of another kind is zero.
    pub fn number(&self) -> f64 {
        match self {
            Value::Whole(number) => *number as f64,
            Value::Number(number) => *number,
            _ => 0.0,
        }
    }

    /// A truth; that of another kind is false.
    pub fn truth(&self) -> bool {
        matches!(self, Value::Truth(true))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Whole(number) => number.fmt(to),
            Value::Number(number) => number.fmt(to),
            Value::Truth(truth) => truth.fmt(to),
            Value::Word(word) => word.fmt(to),
        }
    }
}

impl Range {
    /// The value that a text says, if it is one of these.
    pub fn read(&self, text: &str) -> Option<Value> {
        let value = match self {
            Range::Whole { .. } => Value::Whole(whole(text)?),
            Range::Number { .. } => Value::Number(text.parse().ok()?),
            Range::Truth => Value::Truth(text.parse().ok()?),
            Range::WordOr { word, .. } if text != *word => Value::Whole(whole(text)?),
            Range::Words(_) | Range::WordOr { .. } | Range::Text { .. } => Value::Word(text.to_owned()),
        };
        self.has(&value).then_some(value)
    }

    /// Whether a value is one of these.
    pub fn has(&self, value: &Value) -> bool {
        match (self, value) {
            (Range::Whole { least, most } | Range::WordOr { least, most, .. }, Value::Whole(number)) => {
                (least..=most).contains(&number)
            }
            (Range::Number { most }, Value::Number(number)) => *number > 0.0 && number <= most,
            (Range::Words(words), Value::Word(word)) => words.contains(&word.as_str()),
            (Range::WordOr { word: only, .. }, Value::Word(word)) => only == word,
            (Range::Text { check, .. }, Value::Word(word)) => check(word).is_ok(),
            (Range::Truth, Value::Truth(_)) => true,
            _ => false,
        }
    }

    /// What is to be said of a number that is not of digits alone, where the knob of this name is one: units are not read.
    pub(crate) fn plainly(&self, name: &str, text: &str) -> &'static str {
        let is_whole = matches!(self, Range::Whole { .. } | Range::WordOr { .. });
        let is_digit = |byte: u8| byte.is_ascii_digit();
        if !is_whole || !text.bytes().any(is_digit) || text.bytes().all(is_digit) {
            return "";
        }
        match name.split(['.', '_']).find(|word| matches!(*word, "bytes" | "ms" | "s")) {
            Some("bytes") => " bytes, in digits alone, without a unit",
            Some("ms") => " milliseconds, in digits alone, without a unit",
            Some(_) => " seconds, in digits alone, without a unit",
            None => ", in digits alone",
        }
    }

    /// Some that it may be, the bounds among them.
    pub fn bounds(&self) -> Vec<String> {
        match self {
            Range::Whole { least, most } => vec![least.to_string(), most.to_string()],
            Range::Number { most } => vec!["0.5".into(), most.to_string()],
            Range::Truth => vec!["false".into(), "true".into()],
            Range::WordOr { word, least, most } => vec![least.to_string(), most.to_string(), (*word).into()],
            Range::Words(words) | Range::Text { examples: words, .. } => {
                words.iter().map(|word| (*word).into()).collect()
            }
        }
    }

    /// Some that it may not be, close to the bounds.
    pub fn beyond(&self) -> Vec<String> {
        let mut beyond: Vec<String> = match self {
            Range::Whole { least, most } => outside(*least, *most).chain(["many".into()]).collect(),
            Range::Number { most } => vec!["0".into(), "-1".into(), (most + 1.0).to_string(), "NaN".into()],
            Range::Truth => vec!["yes".into(), "1".into()],
            Range::WordOr { word, least, most } => outside(*least, *most).chain([format!("{word}s")]).collect(),
            Range::Words(words) => words.iter().map(|word| format!("{word}x")).collect(),
            Range::Text { wrong, .. } => wrong.iter().map(|word| (*word).into()).collect(),
        };
        beyond.push(String::new());
        beyond
    }
}

impl fmt::Display for Range {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Whole { least, most } => write!(to, "{least} to {most}"),
            Range::Number { most } => write!(to, "more than 0, at most {most}"),
            Range::Truth => write!(to, "true or false"),
            Range::Words(words) => write!(to, "{}", words.join(" or ")),
            Range::WordOr { word, least, most } => write!(to, "{word}, or {least} to {most}"),
            Range::Text { what, .. } => write!(to, "{what}"),
        }
    }
}

/// The whole numbers next to the bounds.
fn outside(least: u64, most: u64) -> impl Iterator<Item = String> {
    least.checked_sub(1).map(|below| below.to_string()).into_iter().chain([(u128::from(most) + 1).to_string()])
}

/// Digits alone: `+5` and `5_000` are none.
fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_takes_its_bounds_and_nothing_beyond() {
        let text = |word: &str| if word == "info" { Ok(()) } else { Err("no".to_owned()) };
        for range in [
            Range::Whole { least: 2, most: 9 },
            Range::Whole { least: 0, most: u64::MAX },
            Range::Number { most: 3_600.0 },
            Range::Truth,
            Range::Words(&["lru", "s3fifo"]),
            Range::WordOr { word: "auto", least: 0, most: 9 },
            Range::WordOr { word: "automatic", least: 1, most: 9 },
            Range::Text { check: text, what: "a level", examples: &["info"], wrong: &["inof"] },
        ] {
            for bound in range.bounds() {
                let value = range.read(&bound).unwrap_or_else(|| panic!("{range} refuses {bound}"));
                assert_eq!(value.to_string(), bound, "{range}");
            }
            for beyond in range.beyond() {
                assert_eq!(range.read(&beyond), None, "{range} takes {beyond:?}");
            }
        }
        let nine = Range::Whole { least: 2, most: 9 };
        assert_eq!(["+5", " 5", "5_0", "-5"].map(|text| nine.read(text)), [const { None }; 4]);
        assert_eq!(
            (nine.to_string(), Range::WordOr { word: "auto", least: 0, most: 9 }.to_string()),
            ("2 to 9".into(), "auto, or 0 to 9".into())
        );
    }
}
