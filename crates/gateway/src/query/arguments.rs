//! What a request gives for a query's parameters: checked, typed, and in one form.

use std::cmp::Ordering;

use headwater_consolidated::results::Placeholder;
use headwater_model::parse::closest;
use headwater_model::sql::{quote, with_parameters_in};
use headwater_protocol::{Type, Value};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use thiserror::Error;

use super::values::{self, compare, described, form_of, is_same};
use super::{AFTER, Page, Parameter, Query, USER};

/// What stands in a query string as it is (RFC 3986, unreserved).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What is wrong with a request's arguments: the caller's own fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArgumentError {
    /// The query has no such parameter.
    #[error("there is no parameter {name}{hint}")]
    Unknown {
        /// The name, as it was given.
        name: String,
        /// `; did you mean ...?`, or which there are.
        hint: String,
    },
    /// It was given twice.
    #[error("parameter {0} is given more than once")]
    Twice(String),
    /// It must be given, and was not.
    #[error("parameter {0} is missing, expected a value of type {1}")]
    Missing(String, String),
    /// It is none of its values.
    #[error("parameter {name} {why}")]
    Value {
        /// The parameter.
        name: String,
        /// `is 13, expected at most 12`.
        why: String,
    },
}

/// The values of a query's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    values: Vec<Value>,
    /// The key of the last row of the page before; empty: the first page is wanted.
    after: Vec<Value>,
    /// The canonical form without that.
    first: String,
    canonical: String,
}

impl Parameter {
    /// One that takes every value of its type.
    fn plain(name: &str, kind: Type) -> Parameter {
        let range = [None, None];
        Parameter { name: name.to_owned(), kind, default: None, range, length_max: usize::MAX, values: Vec::new() }
    }

    /// Whether a value of its type is one that it takes; else why not.
    pub fn accepts(&self, value: &Value) -> Result<(), String> {
        let shown = |value: &Value| shown(&form_of(value));
        let [min, max] = &self.range;
        if let Some(min) = min.as_ref().filter(|min| compare(value, min) == Ordering::Less) {
            return Err(format!("is {}, expected at least {}", shown(value), shown(min)));
        }
        if let Some(max) = max.as_ref().filter(|max| compare(value, max) == Ordering::Greater) {
            return Err(format!("is {}, expected at most {}", shown(value), shown(max)));
        }
        if let Value::Text(bytes) | Value::Json(bytes) = value {
            let length = String::from_utf8_lossy(bytes).chars().count();
            if length > self.length_max {
                return Err(format!("has {length} characters, expected at most {}", self.length_max));
            }
        }
        if !self.values.is_empty() && !self.values.iter().any(|known| is_same(known, value)) {
            let values = self.values.iter().map(shown).collect::<Vec<_>>().join(", ");
            return Err(format!("is {}, expected one of {values}", shown(value)));
        }
        Ok(())
    }

    /// A value from a request's text.
    fn read(&self, text: &str) -> Result<Value, ArgumentError> {
        self.read_by(text, values::read)
    }

    fn read_by(&self, text: &str, read: impl FnOnce(&str, Type) -> Option<Value>) -> Result<Value, ArgumentError> {
        let wrong = |why| ArgumentError::Value { name: self.name.clone(), why };
        if text.contains('\0') {
            return Err(wrong("has a character that no database takes (NUL)".to_owned()));
        }
        let value = read(text, self.kind)
            .ok_or_else(|| wrong(format!("is {:?}, expected a value of type {}", shown(text), described(self.kind))))?;
        self.accepts(&value).map_err(wrong)?;
        Ok(value)
    }
}

impl Query {
    /// The values that a request gives, as pairs of its query string, decoded; every parameter has one. Whatever spelling the request had,
    /// like values have one [canonical form](Arguments::canonical).
    pub fn arguments<'r>(
        &self,
        given: impl IntoIterator<Item = (&'r str, &'r str)>,
    ) -> Result<Arguments, ArgumentError> {
        let mut values: Vec<Option<Value>> = vec![None; self.parameters.len()];
        let mut after: Vec<Option<Value>> = vec![None; self.page.as_ref().map_or(0, |page| page.by.len())];
        for (name, text) in given {
            if let (Some(page), Some(column)) = (&self.page, name.strip_prefix(AFTER)) {
                let place = page.by.iter().position(|(name, _)| name == column).ok_or_else(|| self.unknown(name))?;
                let value = Parameter::plain(name, page.by[place].1).read_by(text, values::read_key)?;
                if after[place].replace(value).is_some() {
                    return Err(ArgumentError::Twice(name.to_owned()));
                }
                continue;
            }
            let place = self.parameters.iter().position(|parameter| parameter.name == name);
            let place = place.ok_or_else(|| self.unknown(name))?;
            if values[place].replace(self.parameters[place].read(text)?).is_some() {
                return Err(ArgumentError::Twice(name.to_owned()));
            }
        }
        let filled = values.into_iter().zip(&self.parameters).map(|(value, parameter)| {
            let missing = || ArgumentError::Missing(parameter.name.clone(), described(parameter.kind));
            value.or_else(|| parameter.default.clone()).ok_or_else(missing)
        });
        let values: Vec<Value> = filled.collect::<Result<_, _>>()?;
        let differs = |(value, parameter): &(&Value, &Parameter)| {
            !parameter.default.as_ref().is_some_and(|default| is_same(default, value))
        };
        let pairs =
            values.iter().zip(&self.parameters).filter(differs).map(|(value, parameter)| {
                format!("{}={}", parameter.name, utf8_percent_encode(&form_of(value), ENCODED))
            });
        let canonical = pairs.collect::<Vec<_>>().join("&");
        let after = if after.iter().all(Option::is_none) {
            Vec::new()
        } else {
            let by = self.page.iter().flat_map(|page| &page.by);
            let missing =
                |(name, kind): &(String, Type)| ArgumentError::Missing(format!("{AFTER}{name}"), described(*kind));
            after.into_iter().zip(by).map(|(value, of)| value.ok_or_else(|| missing(of))).collect::<Result<_, _>>()?
        };
        let first = Arguments { values, after: Vec::new(), first: canonical.clone(), canonical };
        Ok(if after.is_empty() { first } else { self.after(&first, after) })
    }

    /// The arguments of the page behind a row with this key.
    pub fn after(&self, arguments: &Arguments, key: Vec<Value>) -> Arguments {
        let key: Vec<Value> = key.into_iter().map(values::of_key).collect();
        let by = self.page.iter().flat_map(|page| &page.by);
        let pairs = by.zip(&key).map(|((name, _), value)| {
            format!(
                "{AFTER}{}={}",
                utf8_percent_encode(name, ENCODED),
                utf8_percent_encode(&values::form_of_key(value), ENCODED)
            )
        });
        let before = Some(arguments.first.clone()).filter(|before| !before.is_empty());
        let canonical = before.into_iter().chain(pairs).collect::<Vec<_>>().join("&");
        Arguments { after: key, canonical, ..arguments.clone() }
    }

    fn unknown(&self, name: &str) -> ArgumentError {
        let known: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let hint = match closest(name, known.iter().copied()) {
            Some(near) => format!("; did you mean {near}?"),
            None if known.is_empty() => ": the query takes none".to_owned(),
            None => format!(", expected one of {}", known.join(", ")),
        };
        ArgumentError::Unknown { name: shown(name), hint }
    }

    /// The SQL with numbered parameters (`?1`), line for line as it is in the file; and that of its freshness.
    pub fn numbered(&self, placeholder: Placeholder) -> (String, Option<String>) {
        let values = vec![Value::Null; self.parameters.len()];
        let nothing = Arguments { values, after: Vec::new(), first: String::new(), canonical: String::new() };
        let freshness = self.freshness_statement(&nothing, "", placeholder).map(|(sql, _)| sql);
        (self.bind(&self.sql, &nothing, "", placeholder).0, freshness)
    }

    /// The SQL of a page behind some row with numbered parameters (`?1`), of a query in pages.
    pub fn numbered_page(&self, placeholder: Placeholder) -> Option<String> {
        let page = self.page.as_ref()?;
        let values = vec![Value::Null; self.parameters.len()];
        let after = vec![Value::Null; page.by.len()];
        let some = Arguments { values, after, first: String::new(), canonical: String::new() };
        Some(self.statement(&some, "", placeholder).0)
    }

    /// The SQL of a page with numbered parameters (`?1`), and the value of each; it gives one row more where there is another page, and all rows
    /// of a query without pages. `user`: who asks. PostgreSQL is told their types, which it would guess
    /// otherwise.
    pub fn statement(&self, arguments: &Arguments, user: &str, placeholder: Placeholder) -> (String, Vec<Value>) {
        let (sql, mut bound) = self.bind(&self.sql, arguments, user, placeholder);
        let Some(page) = &self.page else { return (sql, bound) };
        let names = names(page);
        let places: Vec<String> = arguments
            .after
            .iter()
            .zip(&page.by)
            .map(|(value, (_, kind))| {
                bound.push(value.clone());
                placeholder(bound.len(), *kind)
            })
            .collect();
        let behind =
            if places.is_empty() { String::new() } else { format!(" WHERE ({names}) > ({})", places.join(", ")) };
        // One row more says whether there is another page. The line's end ends a comment.
        let rows = page.rows + 1;
        let rest = format!("SELECT * FROM (\n{sql}\n) AS page{behind} ORDER BY {names} LIMIT {rows}");
        let first = page.by.first().filter(|_| self.puts_null_last() && !places.is_empty());
        let Some((first, _)) = first else { return (rest, bound) };
        // No key is behind NULL nor before it, so such a row would be in no page: it comes last, to be told.
        let nulls = format!("SELECT * FROM (\n{sql}\n) AS page WHERE {} IS NULL LIMIT 1", quote(first));
        (format!("SELECT * FROM (({rest}) UNION ALL ({nulls})) AS pages ORDER BY {names} LIMIT {rows}"), bound)
    }

    /// The same of all rows, whatever pages they come in.
    pub fn whole_statement(&self, arguments: &Arguments, user: &str, placeholder: Placeholder) -> (String, Vec<Value>) {
        self.bind(&self.sql, arguments, user, placeholder)
    }

    /// The same of the rows of all pages, one page behind the other.
    pub fn pages_statement(&self, arguments: &Arguments, user: &str, placeholder: Placeholder) -> (String, Vec<Value>) {
        let (sql, bound) = self.whole_statement(arguments, user, placeholder);
        match &self.page {
            Some(page) => (format!("SELECT * FROM (\n{sql}\n) AS page ORDER BY {}", names(page)), bound),
            None => (sql, bound),
        }
    }

    /// The same of the query that tells whether an answer may have changed, if there is one.
    pub fn freshness_statement(
        &self,
        arguments: &Arguments,
        user: &str,
        placeholder: Placeholder,
    ) -> Option<(String, Vec<Value>)> {
        self.freshness.sql.as_ref().map(|sql| self.bind(sql, arguments, user, placeholder))
    }

    fn bind(&self, sql: &str, arguments: &Arguments, user: &str, placeholder: Placeholder) -> (String, Vec<Value>) {
        let mut bound = Vec::new();
        let mut names: Vec<String> = Vec::new();
        let sql = with_parameters_in(sql, self.syntax, |name| {
            let number = names.iter().position(|known| known == name).unwrap_or_else(|| {
                let place = self.parameters.iter().position(|parameter| name[1..] == *parameter.name);
                bound.push(match place {
                    Some(place) => arguments.values[place].clone(),
                    None if name == USER => Value::text(user),
                    None => Value::Null, // there is none: the file was checked
                });
                names.push(name.to_owned());
                names.len() - 1
            });
            let kind =
                self.parameters.iter().find(|parameter| name[1..] == *parameter.name).map_or(Type::Text, |it| it.kind);
            placeholder(number + 1, kind)
        });
        (sql, bound)
    }
}

impl Arguments {
    /// The query string of the one URL for these values: parameters in the file's order, those that have their default left out, every
    /// value in its one form.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }
}

/// The columns by which a page is ordered, in SQL.
fn names(page: &Page) -> String {
    page.by.iter().map(|(name, _)| quote(name)).collect::<Vec<_>>().join(", ")
}

/// The beginning of what a stranger sent.
fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}
