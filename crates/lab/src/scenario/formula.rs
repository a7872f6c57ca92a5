//! Bounds of generators: whole numbers and parameters, added, subtracted and multiplied.

use crate::value::Value;

/// `branches * accounts - 1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formula {
    /// Summed up, each with whether it is subtracted.
    terms: Vec<(bool, Vec<Factor>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Factor {
    Number(i64),
    Parameter(String),
}

impl Formula {
    pub(super) fn number(number: i64) -> Formula {
        Formula { terms: vec![(false, vec![Factor::Number(number)])] }
    }

    /// Reads it; an error says what is wrong.
    pub(super) fn parse(text: &str) -> Option<Formula> {
        let mut terms = vec![(false, Vec::new())];
        let mut rest = text.trim_start();
        loop {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let factor = match word.bytes().next()? {
                b'0'..=b'9' => Factor::Number(word.parse().ok()?),
                _ => Factor::Parameter(word.to_owned()),
            };
            terms.last_mut()?.1.push(factor);
            let after = after.trim_start();
            let Some(operator) = after.chars().next() else { return Some(Formula { terms }) };
            match operator {
                '*' => {}
                '+' | '-' => terms.push((operator == '-', Vec::new())),
                _ => return None,
            }
            rest = after[1..].trim_start();
        }
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().flat_map(|(_, factors)| factors).filter_map(|factor| match factor {
            Factor::Parameter(name) => Some(name.as_str()),
            Factor::Number(_) => None,
        })
    }

    /// Its value with these parameters; none where one is no whole number, or the value is beyond 64 bits.
    pub(super) fn value(&self, parameters: &[(String, Value)]) -> Option<i64> {
        let mut sum = 0i64;
        for (is_subtracted, factors) in &self.terms {
            let mut product = 1i64;
            for factor in factors {
                let number = match factor {
                    Factor::Number(number) => *number,
                    Factor::Parameter(name) => match parameters.iter().find(|(known, _)| known == name)?.1 {
                        Value::Integer(number) => number,
                        _ => return None,
                    },
                };
                product = product.checked_mul(number)?;
            }
            sum = if *is_subtracted { sum.checked_sub(product)? } else { sum.checked_add(product)? };
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_bind_more_than_sums() {
        let parameters = [("a".to_owned(), Value::Integer(7)), ("t".to_owned(), Value::Text("x".to_owned()))];
        let value = |text| Formula::parse(text).map(|formula| formula.value(&parameters));
        assert_eq!(value("2 * a + 3*a - 1"), Some(Some(34)));
        assert_eq!(value("a"), Some(Some(7)));
        assert_eq!(value("9223372036854775807 + a"), Some(None), "beyond 64 bits");
        assert_eq!(value("t"), Some(None), "no number");
        assert_eq!(value("b"), Some(None), "unknown");
        for wrong in ["", "a +", "* a", "a a", "a / 2", "(a)", "9223372036854775808", "1x", "a é"] {
            assert_eq!(value(wrong), None, "{wrong}");
        }
    }
}
