//! Reading a query's file.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use headwater_model::parse::closest;
use headwater_model::sql;
use headwater_protocol::text::coerce;
use headwater_protocol::{Type, Value};
use serde::Deserialize;
use toml::Spanned;

use super::{Freshness, Page, Parameter, Query, QueryError, QueryLimits, USER, Who};

/// The most characters of a text whose file does not say.
const LENGTH_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Head {
    title: String,
    public: bool,
    users: Option<Vec<String>>,
    max_age_s: u32,
    stale_while_revalidate_s: u32,
    stale_if_error_s: u32,
    freshness: Option<String>,
    rows_max: u64,
    bytes_max: u64,
    time_out_s: f64,
    page_by: toml::Table,
    page_rows: u64,
    parameters: toml::Table,
    types: BTreeMap<Spanned<String>, Spanned<String>>,
}

impl Default for Head {
    fn default() -> Head {
        let QueryLimits { rows_max, bytes_max, time_out, .. } = QueryLimits::default();
        Head {
            title: String::new(),
            public: false,
            users: None,
            max_age_s: 0,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            freshness: None,
            rows_max,
            bytes_max,
            time_out_s: time_out.as_secs_f64(),
            page_by: toml::Table::new(),
            page_rows: 1_000,
            parameters: toml::Table::new(),
            types: BTreeMap::new(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParameterHead {
    r#type: String,
    default: Option<toml::Value>,
    min: Option<toml::Value>,
    max: Option<toml::Value>,
    length_max: Option<usize>,
    #[serde(default)]
    values: Vec<toml::Value>,
}

/// A file that is being read, and what was found wrong with it.
struct Reading<'f> {
    file: &'f str,
    text: &'f str,
    errors: Vec<QueryError>,
}

pub(super) fn parse(file: &str, text: &str) -> Result<Query, Vec<QueryError>> {
    // Some editors begin a file with a mark of its encoding.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reading = Reading { file, text, errors: Vec::new() };
    let query = reading.query();
    match query {
        Some(query) if reading.errors.is_empty() => Ok(query),
        _ => Err(reading.errors),
    }
}

impl Reading<'_> {
    fn fault(&mut self, line: usize, text: impl Into<String>) {
        self.errors.push(QueryError { file: self.file.to_owned(), line, text: text.into() });
    }

    fn query(&mut self) -> Option<Query> {
        let name = Path::new(self.file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
        if name.is_empty() || !name.chars().all(is_name) {
            self.fault(
                1,
                format!("a query can't be called {name:?}: letters, digits, _ and - go into a URL as they are"),
            );
        }
        let is_head = |line: &&str| line.trim_start().starts_with("--") || line.trim().is_empty();
        let lines: Vec<&str> = self.text.lines().take_while(is_head).map(str::trim_start).collect();
        // Line for line, so that a place in it is one in the file.
        let toml = lines.iter().map(|line| line.trim_start_matches('-')).collect::<Vec<_>>().join("\n");
        let head: Head = match toml::from_str(&toml) {
            Ok(head) => head,
            Err(error) => {
                let line = error.span().map_or(1, |span| line_of(&toml, span.start));
                self.fault(line, error.message().trim().replace('\n', ": "));
                return None;
            }
        };
        let body = self.text.split_inclusive('\n').skip(lines.len()).collect::<String>();
        let parameters = head.parameters.iter();
        let parameters: Vec<Parameter> =
            parameters.filter_map(|(name, value)| self.parameter(name, value, &lines)).collect();
        let declared: Vec<&str> = head.parameters.keys().map(String::as_str).collect();
        self.body(&body, lines.len(), &declared, &lines);
        for parameter in head.freshness.as_deref().map(sql::parameters).unwrap_or_default() {
            let is_known = parameter.name.strip_prefix(':').is_some_and(|name| declared.contains(&name));
            if !is_known && parameter.name != USER {
                let line = line_with(&lines, "freshness");
                self.fault(line, format!("freshness has {}, which is not among [parameters]", parameter.name));
            }
        }
        let types = self.types(&head.types, &toml);
        let page = self.page(&head.page_by, head.page_rows, &lines);
        let who = match (head.public, head.users) {
            (true, Some(_)) => {
                self.fault(line_with(&lines, "users"), "public = true, and users: expected one of them");
                return None;
            }
            (true, None) => Who::Public,
            (false, None) => Who::Known,
            (false, Some(users)) => Who::Users(users),
        };
        let Ok(time_out) = Duration::try_from_secs_f64(head.time_out_s) else {
            self.fault(line_with(&lines, "time_out_s"), "time_out_s is below zero, expected seconds");
            return None;
        };
        for (option, value) in [("rows_max", head.rows_max), ("bytes_max", head.bytes_max)] {
            if value == 0 {
                self.fault(line_with(&lines, option), format!("{option} is 0, expected 1 or more"));
            }
        }
        if time_out.is_zero() {
            self.fault(line_with(&lines, "time_out_s"), "time_out_s is 0, expected more");
        }
        let query = Query {
            name,
            title: head.title,
            who,
            freshness: Freshness {
                max_age_s: head.max_age_s,
                stale_while_revalidate_s: head.stale_while_revalidate_s,
                stale_if_error_s: head.stale_if_error_s,
                sql: head.freshness,
            },
            limits: QueryLimits {
                rows_max: head.rows_max,
                bytes_max: head.bytes_max,
                time_out,
                ..QueryLimits::default()
            },
            parameters,
            page,
            types,
            sql: body.trim().trim_end_matches(';').trim_end().to_owned(),
            line: lines.len() + line_of(&body, body.len() - body.trim_start().len()),
        };
        if query.is_personal() && query.who == Who::Public {
            let what = "public = true, and the query asks for :s.user, whom nobody knows then: leave one of them out";
            self.fault(line_with(&lines, "public"), what);
        }
        Some(query)
    }

    fn parameter(&mut self, name: &str, value: &toml::Value, lines: &[&str]) -> Option<Parameter> {
        let line = line_with(lines, name);
        let head: ParameterHead = match value.clone().try_into() {
            Ok(head) => head,
            Err(error) => {
                let text = error.to_string();
                self.fault(line, format!("parameter {name}: {}", text.trim().replace('\n', " ")));
                return None;
            }
        };
        let Some(kind) = type_named(&head.r#type) else {
            self.fault(line, unknown_type(&format!("parameter {name}"), &head.r#type));
            return None;
        };
        if kind == Type::Bytes {
            self.fault(line, format!("parameter {name} has the type bytes, which no URL holds: expected another"));
            return None;
        }
        let is_known = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        if !is_known {
            self.fault(line, format!("a parameter can't be called {name:?}, expected letters, digits and _"));
        }
        let mut read = |what: &str, value: &toml::Value| {
            let read = value_of(value, kind);
            if read.is_none() {
                self.fault(
                    line,
                    format!("parameter {name}: {what} is {value}, expected a value of type {}", kind.name()),
                );
            }
            read
        };
        let default = head.default.as_ref().and_then(|value| read("default", value));
        let min = head.min.as_ref().and_then(|value| read("min", value));
        let max = head.max.as_ref().and_then(|value| read("max", value));
        let values = head.values.iter().filter_map(|value| read("one of values", value)).collect();
        let length_max = head.length_max.unwrap_or(LENGTH_MAX);
        let parameter = Parameter { name: name.to_owned(), kind, default: None, range: [min, max], length_max, values };
        if head.length_max.is_some() && !matches!(kind, Type::Text | Type::Json) {
            self.fault(line, format!("parameter {name} has length_max, which is for texts: leave it out"));
        }
        if let [Some(least), Some(_)] = &parameter.range
            && let Err(why) = parameter.accepts(least)
        {
            self.fault(line, format!("parameter {name} takes no value: min {why}"));
        }
        if let Some(Err(why)) = default.as_ref().map(|default| parameter.accepts(default)) {
            self.fault(line, format!("parameter {name}: the default {why}"));
        }
        Some(Parameter { default, ..parameter })
    }

    fn page(&mut self, by: &toml::Table, rows: u64, lines: &[&str]) -> Option<Page> {
        if by.is_empty() {
            return None;
        }
        let mut columns = Vec::new();
        for (name, kind) in by {
            let kind = kind.as_str().unwrap_or_default();
            match type_named(kind).filter(|kind| !matches!(kind, Type::Bytes | Type::Json)) {
                Some(kind) => columns.push((name.clone(), kind)),
                None => self.fault(line_with(lines, "page_by"), unknown_type(&format!("page_by {name}"), kind)),
            }
        }
        if !(1..=100_000).contains(&rows) {
            self.fault(line_with(lines, "page_rows"), format!("page_rows is {rows}, expected 1 to 100000"));
        }
        Some(Page { by: columns, rows })
    }

    /// One statement, whose parameters are those of the head.
    fn body(&mut self, body: &str, before: usize, declared: &[&str], lines: &[&str]) {
        if body.trim().trim_end_matches(';').is_empty() {
            self.fault(before.max(1), "there is no query below the head");
            return;
        }
        let mut used = Vec::new();
        for parameter in sql::parameters(body) {
            let line = before + line_of(body, parameter.place.start);
            match parameter.name.strip_prefix(':') {
                _ if parameter.name == USER => {}
                Some(name) if declared.contains(&name) => used.push(name),
                Some(name) => {
                    let near = closest(name, declared.iter().copied());
                    let hint = near.map_or_else(String::new, |near| format!("; did you mean :{near}?"));
                    self.fault(line, format!(":{name} is not among [parameters] of the head{hint}"));
                }
                None => self.fault(line, format!("{} has no name, expected :name", parameter.name)),
            }
        }
        for name in declared.iter().filter(|name| !used.contains(name)) {
            self.fault(line_with(lines, name), format!("parameter {name} is not in the query"));
        }
    }

    fn types(&mut self, types: &BTreeMap<Spanned<String>, Spanned<String>>, toml: &str) -> BTreeMap<String, Type> {
        let mut known = BTreeMap::new();
        for (column, kind) in types {
            match type_named(kind.get_ref()) {
                Some(found) => {
                    known.insert(column.get_ref().clone(), found);
                }
                None => {
                    let what = unknown_type(&format!("column {}", column.get_ref()), kind.get_ref());
                    self.fault(line_of(toml, kind.span().start), what);
                }
            }
        }
        known
    }
}

/// The line of the head that sets this key.
fn line_with(lines: &[&str], key: &str) -> usize {
    let sets = |line: &&str| {
        let line = line.trim_start_matches('-').trim_start().trim_start_matches("[parameters.");
        line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', ']']))
    };
    lines.iter().position(sets).map_or(1, |place| place + 1)
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

fn type_named(name: &str) -> Option<Type> {
    Type::ALL.into_iter().find(|kind| kind.name() == name)
}

fn unknown_type(what: &str, name: &str) -> String {
    let known = Type::ALL.map(Type::name);
    let hint = closest(name, known).map_or_else(String::new, |near| format!("; did you mean {near}?"));
    format!("{what} has the type {name:?}, expected one of {}{hint}", known.join(", "))
}

/// A value of a head, in a parameter's type.
fn value_of(value: &toml::Value, kind: Type) -> Option<Value> {
    let text = match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(real) => real.to_string(),
        toml::Value::Boolean(truth) => truth.to_string(),
        toml::Value::Datetime(time) => time.to_string(),
        toml::Value::Array(_) | toml::Value::Table(_) => return None,
    };
    coerce(&Value::text(text), kind)
}
